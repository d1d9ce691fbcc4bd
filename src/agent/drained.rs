//! A pod that is drained by hand: the first half of a stop, for as long as the operator says so.
//!
//! It is told by two keys of the map of the pod: health checks are answered with 503, and clients are asked to close
//! their connections. Listeners stay open, and endpoints, configuration and reloads go on. The files that HAProxy starts
//! from say the same, so neither a reload nor a restart lets traffic in for a moment. Nothing is decided here: an agent
//! that begins finds in the files what the pod was, and keeps it so until an operator that is obeyed says otherwise,
//! as a pod that comes back by itself would get traffic that somebody wanted to keep away from it.
//!
//! The files say "drained" before the process does and until after it does not: whatever ends the agent in between, the
//! next one finds what is left to do.

use super::apply::{Applier, Base};
use super::runtime::{Command, map_entries};
use crate::haproxy::maps;
use std::io;
use std::time::Duration;
use tokio::time::Instant;

/// What failed is tried again after this long.
const RETRY: Duration = Duration::from_secs(1);

/// What `show map` of the map of the pod says; `None` if it does not say anything of it.
pub(super) fn told(answer: &str) -> Option<bool> {
    let entries = map_entries(answer);
    entries.iter().find(|(key, _)| *key == maps::DRAINED).map(|(_, value)| *value == maps::TRUE)
}

impl Applier {
    /// Whether all of the pod is known to be drained: what HAProxy reads, and what runs. The bootstrap gets no traffic anyway.
    pub(crate) fn is_drained(&self) -> bool {
        let runs = self.haproxy.is_up() && (self.base == Base::Bootstrap || self.told_drained == Some(true));
        runs && self.directory.is_drained()
    }

    /// Brings files and process to what was said last.
    pub(super) async fn follow_drained(&mut self) {
        let wanted = self.inbox.drained().unwrap_or_else(|| self.directory.is_drained());
        let done = self.directory.is_drained() == wanted && self.told_drained.is_none_or(|told| told == wanted);
        if !done && self.drained_due.is_none() && !self.stops_softly() {
            match self.make_drained(wanted).await {
                Ok(()) => tracing::info!(drained = wanted, "the pod is drained by hand, or not any more"),
                Err(error) => {
                    tracing::warn!(%error, drained = wanted, "the pod cannot be drained, or get traffic again, yet");
                    self.drained_due = Some(Instant::now() + RETRY);
                }
            }
        }
        let drained = self.is_drained();
        self.status.send_if_modified(|status| std::mem::replace(&mut status.drained, drained) != drained);
    }

    async fn make_drained(&mut self, drained: bool) -> io::Result<()> {
        let digest = match self.base {
            Base::Accepted if self.unwritten.is_empty() => self.settled(),
            Base::LastGood(digest) => digest,
            Base::Accepted | Base::Bootstrap => None,
        };
        if drained {
            self.directory.set_drained(true, digest)?;
        }
        self.tell_drained(drained).await?;
        if !drained {
            self.directory.set_drained(false, digest)?;
        }
        Ok(())
    }

    /// Tells the worker, if it does not know and can.
    async fn tell_drained(&mut self, drained: bool) -> io::Result<()> {
        if !self.haproxy.is_up() || self.told_drained.is_none_or(|told| told == drained) {
            return Ok(());
        }
        self.connect().await?;
        let Some(session) = &mut self.session else { return Err(io::ErrorKind::NotConnected.into()) };
        let value = if drained { maps::TRUE } else { maps::FALSE };
        // whoever stops the pod says again and again that it closes
        let keys = [maps::DRAINED, maps::CLOSING];
        let commands = keys.map(|key| Command::plain(&format!("set map {} {key} {value}", maps::POD)));
        let answers = match session.exchange(&commands).await {
            Ok(answers) => answers,
            Err(error) => {
                self.session = None;
                return Err(error);
            }
        };
        self.count(answers.len() as u64);
        if let Some(answer) = answers.iter().find(|answer| !answer.trim().is_empty()) {
            return Err(io::Error::other(answer.trim().to_owned()));
        }
        self.told_drained = Some(drained);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_says_whether_it_is_drained_if_it_knows() {
        assert_eq!(told("0x7f1 closing 1\n0x7f2 drained 1\n\n"), Some(true));
        assert_eq!(told("0x7f1 closing 1\n0x7f2 drained 0\n\n"), Some(false));
        assert_eq!(told("0x7f1 closing 1\n\n"), None);
        assert_eq!(told("Unknown map identifier. Please use #<id> or <file>.\n\n"), None);
    }
}
