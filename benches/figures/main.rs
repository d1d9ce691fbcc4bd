//! The figures that the product promises, measured.
//!
//! `make bench` runs all, `make bench BENCH=name` one (or several: `a,b`), `ROUTES=100` one size. Each result is one
//! line of JSON on standard output; a table of all of them follows on standard error.

mod changes;
mod context;
mod generator;
mod measure;
mod origin;
mod result;
mod rig;
mod start;
mod under_load;
mod world;

use context::Context;
use mimalloc::MiMalloc;
use result::Results;
use std::io::Write;
use std::process::ExitCode;

// the one of the product, which is measured
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

/// A measurement: writes its lines as they come.
type Bench = fn(&Context, &mut Results) -> Result<(), Box<dyn std::error::Error>>;

/// All measurements by name, in the order in which they run.
const BENCHES: &[(&str, Bench)] = &[
    ("generator", generator::run),
    ("endpoint_change", changes::endpoint_change),
    ("new_route", changes::new_route),
    ("live_changes", under_load::live_changes),
    ("reload_under_load", under_load::reload_under_load),
    ("full_start", start::full_start),
    ("throughput", under_load::throughput),
    ("memory", start::memory),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        // `cargo test --all-targets` only wants to know that it builds
        return ExitCode::SUCCESS;
    }
    let named = arguments.into_iter().filter(|argument| !argument.starts_with('-'));
    let wanted: Vec<String> = named
        .chain(std::env::var("BENCH"))
        .flat_map(|names| names.split([',', ' ']).map(str::to_owned).collect::<Vec<_>>())
        .filter(|name| !name.is_empty())
        .collect();
    if let Some(unknown) = wanted.iter().find(|name| !BENCHES.iter().any(|(known, _)| known == name)) {
        let known: Vec<&str> = BENCHES.iter().map(|(name, _)| *name).collect();
        say(&format!("there is no bench {unknown:?}; there are: {}", known.join(", ")));
        return ExitCode::from(2);
    }
    let context = match Context::new() {
        Ok(context) => context,
        Err(error) => {
            say(&format!("error: {error}"));
            return ExitCode::from(2);
        }
    };
    let mut results = Results::default();
    let mut failed = false;
    for (name, bench) in BENCHES {
        if wanted.is_empty() || wanted.iter().any(|wanted| wanted == name) {
            say(&format!("bench {name} …"));
            if let Err(error) = bench(&context, &mut results) {
                say(&format!("bench {name} failed: {error}"));
                failed = true;
            }
        }
    }
    say(&results.table());
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// Tells a person, who may not be there.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}
