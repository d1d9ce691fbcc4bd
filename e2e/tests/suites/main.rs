//! The suites. One after the other: they share a cluster of two processors.

#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

mod faults;
mod isolation;
mod serve;

use haproxy_fleet_e2e::Outcome;
use haproxy_fleet_e2e::setting::Setting;

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
