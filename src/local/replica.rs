//! One HAProxy of a fleet.

use super::record::{ListenerRecord, ReplicaRecord};
use crate::agent::{Agent, ReloadRecord};
use crate::haproxy::plan::cause;
use crate::status::json;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

/// A HAProxy that runs.
pub(super) struct Running {
    pub agent: Agent,
    pub record: ReplicaRecord,
    /// The program that it runs.
    pub program: PathBuf,
    /// The ports that it was started with, by listener.
    pub ports: BTreeMap<String, u16>,
    /// Where it keeps its things, below the directory of the fleet.
    pub directory: PathBuf,
    /// What its address is remembered for.
    pub purpose: String,
    pub address: IpAddr,
    /// Whether it has been given the present bundle once: from then on changes are enough.
    pub current: bool,
    pub phase: Phase,
    /// Whether it has served once and is known to the balancer: one that does not serve yet would count as down
    /// there for a moment longer than it is.
    pub joined: bool,
}

/// Where a replica is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It is one of those that are wanted.
    Wanted,
    /// It is not wanted any more, but serves until those that are wanted do.
    Retiring,
    /// It finishes what it has.
    Leaving,
}

impl Running {
    /// Whether it is wanted and does not fit any more, or was on its way out and fits again.
    pub(super) fn must_turn(&self, fits: bool) -> bool {
        match self.phase {
            Phase::Wanted => !fits,
            Phase::Retiring => fits,
            Phase::Leaving => false,
        }
    }

    /// Whether it serves this generation.
    pub(super) fn serves(&self, generation: u64) -> bool {
        let status = self.agent.status();
        let status = status.borrow();
        status.ready && self.current && status.generation == generation
    }

    /// As `/status` shows it, where the fleet is to serve `generation`.
    pub(super) fn status(&self, name: &str, listeners: &[ListenerRecord], generation: u64) -> json::Replica {
        let status = self.agent.status();
        let status = status.borrow();
        let own = |listener: &ListenerRecord| json::Listener {
            name: listener.name.clone(),
            protocol: listener.protocol,
            address: SocketAddr::new(self.address, listener.pod_port).to_string(),
        };
        json::Replica {
            name: name.to_owned(),
            zone: self.record.zone.clone(),
            ready: status.ready && self.phase != Phase::Leaving,
            connected: true,
            confirmed: status.generation == generation,
            haproxy_version: Some(status.version.to_string()),
            generation: status.generation,
            listeners: listeners.iter().map(own).collect(),
            reload_count: status.reload_count,
            reloads: status.reloads.iter().map(reload).collect(),
            runtime_commands: status.runtime_commands,
            refused: status
                .refused
                .iter()
                .map(|r| json::Refused { generation: r.generation, object: r.sources.first().map(Into::into), message: r.message.clone() })
                .collect(),
        }
    }
}

fn reload(record: &ReloadRecord) -> json::Reload {
    json::Reload { generation: record.generation, reason: record.reason.clone(), cause: cause(&record.reason).to_owned() }
}
