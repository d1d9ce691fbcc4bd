//! Counts the connections of clients, beside the serialised applying: of the worker that serves and of those of earlier
//! configurations.

use super::runtime::Master;
use super::status::Status;
use std::time::Duration;
use tokio::sync::watch;

/// How often: whoever follows the state is told of another number that often at most.
const INTERVAL: Duration = Duration::from_secs(5);

/// Runs until it is aborted.
pub(super) async fn run(master: Master, status: watch::Sender<Status>) {
    let mut ticks = tokio::time::interval(INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Some(open) = count(&master, &status).await {
            status.send_if_modified(|status| std::mem::replace(&mut status.connections, open) != open);
        }
    }
}

/// How many there are; `None` if that cannot be said now.
async fn count(master: &Master, status: &watch::Sender<Status>) -> Option<u64> {
    if status.borrow().worker_pid.is_none() {
        return Some(0);
    }
    match master.connections().await {
        Ok(workers) => Some(workers.values().map(|connections| connections.open).sum()),
        Err(error) => {
            // it reloads, or died, which is seen elsewhere
            tracing::debug!(%error, "the connections cannot be counted");
            None
        }
    }
}
