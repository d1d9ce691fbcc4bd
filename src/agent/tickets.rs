//! Keys of TLS session tickets, which all pods of a fleet take over from its Secret while they serve.

use super::apply::{Applier, Base};
use super::runtime::Command;
use crate::haproxy::render::TICKET_KEYS;
use crate::haproxy::tickets::to_give;
use crate::report::PrivateBytes;
use std::io;

impl Applier {
    /// Takes other keys over, first where HAProxy starts from. What is none is left out.
    pub(super) async fn set_ticket_keys(&mut self, keys: PrivateBytes) {
        let Some(new) = to_give(self.settings.pod.ticket_keys.expose(), keys.expose()) else {
            return tracing::error!("the keys of TLS session tickets are none; those of before stay");
        };
        if new.is_empty() {
            return;
        }
        if let Err(error) = self.directory.set_pod_file(TICKET_KEYS, keys.expose().to_vec()) {
            return tracing::error!(%error, "the keys of TLS session tickets cannot be written");
        }
        match self.give(&new).await {
            Ok(()) => tracing::info!(new = new.len(), "HAProxy has other keys of TLS session tickets"),
            // the next worker has them
            Err(error) => tracing::warn!(%error, "HAProxy does not take other keys of TLS session tickets"),
        }
        self.settings.pod.ticket_keys = keys;
    }

    async fn give(&mut self, keys: &[&str]) -> io::Result<()> {
        // one that is down, or has no listener yet, starts with them
        if !self.haproxy.is_up() || self.base == Base::Bootstrap {
            return Ok(());
        }
        self.connect().await?;
        let Some(session) = &mut self.session else { return Err(io::ErrorKind::NotConnected.into()) };
        let commands: Vec<Command> = keys.iter().map(|key| Command::plain(&format!("set ssl tls-key {TICKET_KEYS} {key}"))).collect();
        let answers = session.exchange(&commands).await?;
        self.count(answers.len() as u64);
        match answers.iter().find(|answer| !answer.contains("TLS ticket key updated!")) {
            Some(answer) => Err(io::Error::other(answer.trim().to_owned())),
            None => Ok(()),
        }
    }
}
