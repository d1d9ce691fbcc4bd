//! What the agent says about itself.

use super::health::Health;
use crate::haproxy::bundle::{Digest, Name, ResourceKey};
use crate::haproxy::version::{Capabilities, Version};
use crate::report::ObjectRef;
use std::collections::VecDeque;
use std::sync::Arc;

/// A reload that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReloadRecord {
    /// The generation that it brought.
    pub generation: u64,
    /// Why it was needed.
    pub reason: String,
}

/// Something that HAProxy did not take. What it replaces keeps serving.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The generation that first had it.
    pub generation: u64,
    /// Where it comes from.
    pub sources: Arc<[ObjectRef]>,
    /// What it is.
    pub resource: ResourceKey,
    /// What HAProxy said.
    pub message: String,
}

/// The state of one HAProxy.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // none follows from the others
pub struct Status {
    /// Whether it serves a configuration (and not the bootstrap).
    pub ready: bool,
    /// Its version.
    pub version: Version,
    /// What it can do.
    pub capabilities: Capabilities,
    /// The generation that was applied last: everything of it but what is in `refused` and what `waiting` counts.
    pub generation: u64,
    /// The digest of that generation, or that of the last good configuration before there is one.
    pub digest: Digest,
    /// How many resources wait for the next reload, are set aside, or are held back for one that is.
    pub waiting: usize,
    /// How many of them ask for a reload that is not allowed yet.
    pub held: usize,
    /// The first generation that one of those came with; 0 if there is none, or it came without a number.
    pub held_from: u64,
    /// Whether a reload that is allowed is due or under way.
    pub reload_pending: bool,
    /// Whether it serves what it was started with, and nothing was delivered yet.
    pub last_good: bool,
    /// Whether a delivered digest did not fit: everything has to be delivered again.
    pub out_of_sync: bool,
    /// The process id of the master.
    pub master_pid: Option<u32>,
    /// The process id of the worker that serves.
    pub worker_pid: Option<u32>,
    /// Reloads since the start of the agent.
    pub reload_count: u64,
    /// Workers of before a reload that were still there when they were looked for last.
    pub old_workers: usize,
    /// How it fares, while a reload is waited for and for a while after one.
    pub health: Option<Health>,
    /// The last 50 of them.
    pub reloads: VecDeque<ReloadRecord>,
    /// Commands sent since the start of the agent.
    pub runtime_commands: u64,
    /// How many things in the running process were not as they should be, and were repaired.
    pub drift_repairs: u64,
    /// What is set aside at present.
    pub refused: Vec<Refusal>,
    /// How often HAProxy died and was started again.
    pub restarts: u64,
    /// How often in a row somebody else started it in vain.
    pub failed_starts: u64,
    /// Open connections of clients, those to workers of earlier configurations among them. Counted every few seconds.
    pub connections: u64,
    /// Whether the pod is drained by hand.
    pub drained: bool,
    /// Where it is, if that is known.
    pub zone: Option<Name>,
    /// How many backends have their requests stay in that zone.
    pub keeps_zone: usize,
}

impl Status {
    pub(crate) fn new(version: Version) -> Self {
        Self {
            ready: false,
            version,
            capabilities: Capabilities::of(version),
            generation: 0,
            digest: Digest::default(),
            waiting: 0,
            held: 0,
            held_from: 0,
            reload_pending: false,
            last_good: false,
            out_of_sync: false,
            master_pid: None,
            worker_pid: None,
            reload_count: 0,
            old_workers: 0,
            health: None,
            reloads: VecDeque::new(),
            runtime_commands: 0,
            drift_repairs: 0,
            refused: Vec::new(),
            restarts: 0,
            failed_starts: 0,
            connections: 0,
            drained: false,
            zone: None,
            keeps_zone: 0,
        }
    }

    pub(crate) fn reloaded(&mut self, record: ReloadRecord) {
        self.reload_count += 1;
        self.reloads.push_back(record);
        if self.reloads.len() > 50 {
            self.reloads.pop_front();
        }
    }
}
