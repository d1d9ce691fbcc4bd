//! The soft stop: SIGUSR1, wait for all workers, SIGTERM at the deadline.

use super::process::signal;
use rustix::process::Signal;
use std::time::Duration;
use tokio::process::Child;

/// How to stop.
#[derive(Clone, Copy, Debug)]
pub struct Drain {
    /// How long connections may go on.
    pub deadline: Duration,
}

/// How it went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drained {
    /// Whether all connections ended by themselves before the deadline.
    pub in_time: bool,
}

/// Stops `child`, the master, softly. It ends when its last worker has.
pub(crate) async fn drain(child: &mut Child, options: Drain) -> Drained {
    let Some(pid) = child.id() else { return Drained { in_time: true } };
    signal(pid, Signal::USR1);
    if tokio::time::timeout(options.deadline, child.wait()).await.is_ok() {
        return Drained { in_time: true };
    }
    stop(child).await;
    Drained { in_time: false }
}

/// Stops it at once: SIGTERM is a hard stop; SIGKILL if even that does not help.
pub(crate) async fn stop(child: &mut Child) {
    if let Some(pid) = child.id() {
        signal(pid, Signal::TERM);
        if tokio::time::timeout(Duration::from_secs(2), child.wait()).await.is_err() {
            // workers end with their master
            let _ = child.kill().await;
        }
    }
}
