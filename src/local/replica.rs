//! One HAProxy of a fleet.

use super::record::{ListenerRecord, ReplicaRecord};
use super::rollout::Seen;
use crate::agent::{Agent, ReloadRecord, Status};
use crate::fleet::rollout::PodState;
use crate::haproxy::plan::cause;
use crate::status::json;
use k8s_openapi::jiff::Timestamp;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use tokio::task::AbortHandle;

/// A replica from the moment on that it is decided on.
pub(super) struct Replica {
    pub record: ReplicaRecord,
    pub life: Life,
    /// Where it keeps its things, below the directory of the fleet.
    pub directory: PathBuf,
    /// What its address is remembered for.
    pub purpose: String,
    /// Where it is, once it was started.
    pub address: Option<IpAddr>,
    /// Whether it has been given the present bundle once: from then on changes are enough.
    pub current: bool,
    /// The number of the balancer's bundle that first had it. It has to have served by then: one that does not serve yet
    /// would count as down there for a moment longer than it is.
    pub admitted: Option<u64>,
    pub state: PodState,
    /// Whether it is being stopped.
    pub departs: bool,
}

/// The process of a replica.
pub(super) enum Life {
    /// It is to be started.
    Missing,
    /// It is being started, by the attempt of this number.
    Starting(u64, AbortHandle),
    /// It runs.
    Running(Agent),
    /// It did not start, for this reason.
    Failed(String),
}

impl Replica {
    /// One that is to be started.
    pub(super) fn new(record: ReplicaRecord, directory: PathBuf, purpose: String, now: Timestamp) -> Self {
        let (life, state) = (Life::Missing, PodState::NotReady(now));
        Self { record, life, directory, purpose, address: None, current: false, admitted: None, state, departs: false }
    }

    pub(super) fn agent(&self) -> Option<&Agent> {
        if let Life::Running(agent) = &self.life { Some(agent) } else { None }
    }

    pub(super) fn stays(&self) -> bool {
        self.state != PodState::Ending
    }

    /// Whether its HAProxy serves something.
    pub(super) fn is_up(&self) -> bool {
        self.agent().is_some_and(|agent| agent.status().borrow().ready)
    }

    /// Whether it sends clients away, or did until a moment ago.
    pub(super) fn is_led_away(&self) -> bool {
        self.agent().is_some_and(|agent| agent.status().borrow().drained)
    }

    /// Takes in whether clients reach it.
    pub(super) fn turn(&mut self, reached: bool, now: Timestamp) {
        self.state = match (self.state, reached) {
            (PodState::NotReady(_), true) => PodState::Ready(now),
            (PodState::Ready(_), false) => PodState::NotReady(now),
            (same, _) => same,
        };
    }

    /// Whether clients reach it, and it serves this generation; before anything is delivered, whatever it has.
    pub(super) fn serves(&self, generation: Option<u64>) -> bool {
        let is_present = |agent: &Agent| generation.is_none_or(|wanted| self.current && agent.status().borrow().generation == wanted);
        matches!(self.state, PodState::Ready(_)) && self.agent().is_some_and(is_present)
    }

    /// Whether it runs with all of this generation, and HAProxy refused nothing of it.
    pub(super) fn has_all_of(&self, generation: u64) -> bool {
        self.agent().is_some_and(|agent| {
            let status = agent.status();
            let status = status.borrow();
            confirms(&status, generation) && status.refused.is_empty()
        })
    }

    /// As the planner of rollouts is told of it.
    pub(super) fn seen(&self) -> Seen {
        // what it was given first it has taken by then; what came later may be on its way
        let confirmed = self.current && self.agent().is_some_and(|agent| agent.status().borrow().generation > 0);
        let ReplicaRecord { name, zone, template } = self.record.clone();
        Seen { name, zone, template, state: self.state, confirmed }
    }

    /// As `/status` shows it, where the fleet is to serve `generation`.
    pub(super) fn status(&self, listeners: &[ListenerRecord], generation: u64) -> json::Replica {
        let name = self.record.name.to_string();
        let zone = self.record.zone.as_deref().map(str::to_owned);
        let own = |listener: &ListenerRecord| {
            let address = SocketAddr::new(self.address?, listener.pod_port).to_string();
            Some(json::Listener { name: listener.name.clone(), protocol: listener.protocol, address })
        };
        let listeners = listeners.iter().filter_map(own).collect();
        let (template, ends) = (Some(self.record.template.to_string()), Some(!self.stays()));
        let Some(agent) = self.agent() else {
            return json::Replica { name, zone, template, ends, listeners, ..json::Replica::default() };
        };
        let status = agent.status();
        let status = status.borrow();
        json::Replica {
            name,
            zone,
            template,
            ends,
            ready: status.ready && matches!(self.state, PodState::Ready(_)),
            connected: true,
            confirmed: confirms(&status, generation),
            haproxy_version: Some(status.version.to_string()),
            generation: status.generation,
            listeners,
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

/// Whether what runs is this generation, but for what was refused: no reload for it is still to come.
fn confirms(status: &Status, generation: u64) -> bool {
    let reloads = status.reload_pending || status.waiting > 0 && status.refused.is_empty();
    status.generation == generation && !status.last_good && !reloads
}

fn reload(record: &ReloadRecord) -> json::Reload {
    json::Reload { generation: record.generation, reason: record.reason.clone(), cause: cause(&record.reason).to_owned() }
}
