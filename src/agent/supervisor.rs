//! The parent of the agent in its container: starts it again whatever it ended of, and stays small itself. HAProxy
//! does not notice.
//!
//! It is process 1 there, so it also takes the exit status of whatever the agent left behind.

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io;
use std::process::{Child, Command};
use std::time::Duration;
use tokio::signal::unix::{Signal as Signals, SignalKind, signal};
use tokio::time::Instant;

/// The first pause between two starts, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
/// What ran for so long was fine: the next start comes soon.
const FINE: Duration = Duration::from_secs(60);

/// Runs what `command` makes again and again until a SIGTERM, SIGINT or SIGUSR1, which it passes on as SIGTERM and waits for.
///
/// SIGUSR1 is the stop signal that HAProxy's image names, and the agent's container is made from that image: the kubelet
/// ends it by that one, and would kill it at the end of the grace period if it were ignored.
///
/// Before it returns it waits for `last`: there may be no agent at that moment that does what is to be done at the end.
pub async fn supervise(command: impl Fn() -> Command, last: impl Future<Output = ()>) -> io::Result<()> {
    let mut signals = Listening { ended: signal(SignalKind::child())?, stop: Stop::listen()? };
    let mut pause = PAUSES.0;
    loop {
        let started = Instant::now();
        match command().spawn() {
            Ok(child) => {
                if signals.follow(&child).await {
                    break;
                }
            }
            Err(error) => tracing::error!(%error, "the agent cannot be started"),
        }
        if started.elapsed() > FINE {
            pause = PAUSES.0;
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = signals.stop.told() => break,
        }
        pause = (pause * 2).min(PAUSES.1);
    }
    last.await;
    Ok(())
}

/// The signals that end it.
struct Stop([Signals; 3]);

impl Stop {
    fn listen() -> io::Result<Self> {
        Ok(Self([signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?, signal(SignalKind::user_defined1())?]))
    }

    async fn told(&mut self) {
        let [terminate, interrupt, user_defined1] = &mut self.0;
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
            _ = user_defined1.recv() => {}
        }
    }
}

struct Listening {
    ended: Signals,
    stop: Stop,
}

impl Listening {
    /// Waits for the end of `child`; `true` if it was told to end.
    async fn follow(&mut self, child: &Child) -> bool {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let mut told = false;
        loop {
            if reap(pid) {
                return told;
            }
            tokio::select! {
                _ = self.ended.recv() => continue,
                () = self.stop.told() => {}
            }
            told = true;
            // it may have ended by itself
            _ = pid.map(|pid| kill_process(pid, Signal::TERM));
        }
    }
}

/// Takes the exit status of every child that ended; `true` if `child` is among them.
fn reap(child: Option<Pid>) -> bool {
    let mut found = false;
    while let Ok(Some((pid, status))) = waitpid(None, WaitOptions::NOHANG) {
        if Some(pid) == child {
            found = true;
            tracing::warn!(status = ?status, "the agent ended");
        }
    }
    found
}
