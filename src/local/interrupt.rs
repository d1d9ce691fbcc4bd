//! Ctrl-C: the first asks for a drain, the second for the end.

use std::io;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How often the process was asked to stop. Clones see the same.
#[derive(Clone, Debug)]
pub struct Interrupts(watch::Receiver<usize>);

impl Interrupts {
    /// Listens for SIGINT and SIGTERM from now on; they no longer end the process by themselves.
    pub fn listen() -> io::Result<Self> {
        let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        let (sender, receiver) = watch::channel(0);
        tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    () = sender.closed() => return,
                }
                sender.send_modify(|count| *count += 1);
            }
        });
        Ok(Self(receiver))
    }

    /// Completes once the process was asked to stop: drain, then stop.
    pub async fn drain(&self) {
        self.at_least(1).await;
    }

    /// Completes once it was asked again: stop at once.
    pub async fn stop(&self) {
        self.at_least(2).await;
    }

    async fn at_least(&self, count: usize) {
        // without a sender nobody is left to ask
        if self.0.clone().wait_for(|seen| *seen >= count).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::process::{Signal, getpid, kill_process};

    #[tokio::test]
    async fn the_first_signal_asks_for_a_drain_and_the_second_for_the_end() {
        let interrupts = Interrupts::listen().unwrap();
        kill_process(getpid(), Signal::INT).unwrap();
        interrupts.drain().await;
        assert_eq!(*interrupts.0.borrow(), 1);
        kill_process(getpid(), Signal::TERM).unwrap();
        interrupts.stop().await;
    }
}
