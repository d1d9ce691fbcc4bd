//! The soft stop: SIGUSR1, wait for all workers, SIGTERM at the deadline.

use super::process::signal;
use super::runtime::Master;
use super::stop as pod_stop;
use super::tally::{Ending, Tally};
use rustix::process::Signal;
use std::time::Duration;
use tokio::process::Child;
use tokio::time::Instant;

/// How often connections are counted: HAProxy ends with the last one.
const LOOK: Duration = Duration::from_millis(100);

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
    /// How connections ended, if that was seen.
    pub ending: Option<Ending>,
}

impl Drained {
    /// There was nothing to stop.
    pub(crate) const NOTHING: Self = Self { in_time: true, ending: None };
}

/// Stops `child`, the master behind `master`, softly. It ends when its last worker has.
pub(crate) async fn drain(child: &mut Child, master: &Master, options: Drain) -> Drained {
    let Some(pid) = child.id() else { return Drained::NOTHING };
    let began = Instant::now();
    let deadline = began + options.deadline;
    let mut tally = Tally::default();
    look(&mut tally, master, false, deadline).await;
    // within the time that it has
    let _ = tokio::time::timeout_at(deadline, master.tell(&pod_stop::keep_own())).await;
    signal(pid, Signal::USR1);
    let in_time = loop {
        let next = deadline.min(Instant::now() + LOOK);
        if tokio::time::timeout_at(next, child.wait()).await.is_ok() {
            break true;
        }
        look(&mut tally, master, true, deadline + LOOK).await;
        if Instant::now() >= deadline {
            break false;
        }
    };
    let ending = if in_time {
        // it ends by itself only once there is no connection any more
        tally.ending().map(|ending| Ending { closed: ending.closed + ending.unseen, unseen: 0, ..ending })
    } else {
        stop(child).await;
        tally.forced()
    };
    Drained { in_time, ending: ending.map(|ending| Ending { time: began.elapsed(), ..ending }) }
}

/// A look that fails, or takes longer than until `late`, is left out.
async fn look(tally: &mut Tally, master: &Master, asked: bool, late: Instant) {
    if let Ok(Ok(workers)) = tokio::time::timeout_at(late, master.connections()).await {
        tally.look(workers, asked);
    }
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
