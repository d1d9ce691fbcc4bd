//! The suites. One after the other: they share a cluster of two processors.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

mod certificates;
mod faults;
mod figures;
mod isolation;
mod objects;
mod roles;
mod serve;
mod trust;
mod uninstall;

use haproxy_fleet_e2e::Outcome;
use haproxy_fleet_e2e::setting::Setting;
use std::time::Duration;

/// `NAME`, a time in seconds, else `usual`.
fn seconds(name: &str, usual: u64) -> Duration {
    Duration::from_secs(std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual))
}

/// Runs `suite` if the cluster is ours to disturb, and says so if not.
fn run_on_ours<F: Future<Output = Outcome>>(suite: impl FnOnce(&'static Setting) -> F) {
    let name = std::any::type_name_of_val(&suite).trim_end_matches("::{{closure}}").to_owned();
    run(|setting| async move {
        if setting.cluster().is_none() {
            println!("SKIPPED: {name} (it disturbs the cluster: only that of `make cluster-up`)");
            return Ok(());
        }
        suite(setting).await
    });
}

/// Runs `suite` in the cluster with the operator in it.
fn run<F: Future<Output = Outcome>>(suite: impl FnOnce(&'static Setting) -> F) {
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
