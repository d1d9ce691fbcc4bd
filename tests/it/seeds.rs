//! Seeds and sizes of property tests.

use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::Write as _;

/// The seed that the environment names, or another one for each run; it is printed, so that a run can be repeated.
pub fn seed(variable: &str) -> u64 {
    let given = std::env::var(variable).ok().map(|text| text.parse().expect("a number"));
    let seed = given.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    writeln!(std::io::stderr(), "{variable}={seed}").expect("standard error");
    seed
}

/// The seed that the environment names, or always the same one; it is printed.
pub fn fixed_seed(variable: &str, usual: u64) -> u64 {
    let seed = std::env::var(variable).map_or(usual, |text| text.parse().expect("a number"));
    writeln!(std::io::stderr(), "{variable}={seed}").expect("standard error");
    seed
}

/// Runs properties with this many cases, which follow from `seed`.
pub fn runner(seed: u64, cases: u32) -> TestRunner {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

/// How many cases `PROPTEST_CASES` asks for, for tests that have 100,000 if it says nothing.
pub fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(100_000)
}
