//! The suites. One after the other: they share a cluster of two processors.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

mod certificates;
mod drains;
mod faults;
mod figures;
mod isolation;
mod objects;
mod releases;
mod roles;
mod rollouts;
mod serve;
mod trust;
mod uninstall;

use haproxy_fleet_e2e::Outcome;
use haproxy_fleet_e2e::setting::Setting;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What the function that a suite was written in is called.
fn name_of<T>(suite: &T) -> String {
    std::any::type_name_of_val(suite).trim_end_matches("::{{closure}}").to_owned()
}

/// `NAME`, a time in seconds, else `usual`.
fn seconds(name: &str, usual: u64) -> Duration {
    Duration::from_secs(std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual))
}

/// Runs `suite` if the cluster is ours to disturb, and says so if not.
fn run_on_ours<F: Future<Output = Outcome>>(suite: impl FnOnce(&'static Setting) -> F) {
    let name = name_of(&suite);
    run(|setting| async move {
        if setting.cluster().is_none() {
            println!("SKIPPED: {name} (it disturbs the cluster: only that of `make cluster-up`)");
            return Ok(());
        }
        suite(setting).await
    });
}

/// Suites that were left out because time was up.
static LEFT_OUT: AtomicUsize = AtomicUsize::new(0);

/// Whether time is up: `E2E_UNTIL`, in seconds since 1970, says when the last suite may begin.
fn is_late() -> bool {
    let until: Option<u64> = std::env::var("E2E_UNTIL").ok().and_then(|text| text.parse().ok());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    until.is_some_and(|until| now > until)
}

/// Runs `suite` in the cluster with the operator in it.
fn run<F: Future<Output = Outcome>>(suite: impl FnOnce(&'static Setting) -> F) {
    if is_late() {
        LEFT_OUT.fetch_add(1, Ordering::Relaxed);
        println!("SKIPPED: {} (time is up)", name_of(&suite));
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let outcome = runtime.block_on(async {
        let setting = Setting::shared().await?;
        // a suite that failed may have left it scaled down
        setting.install().await?;
        suite(setting).await
    });
    if let Err(failure) = outcome {
        panic!("{failure}");
    }
}
