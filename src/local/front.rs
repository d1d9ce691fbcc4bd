//! The HAProxy in front of a fleet's replicas.

use super::addresses::HEALTH_PORT;
use super::balancer::{self, Balanced, Member};
use super::record::ListenerRecord;
use crate::agent::{Agent, Update, UpdateContent};
use crate::haproxy::render::Renderer;
use crate::model::{FleetId, Touched};
use std::sync::Arc;

/// The HAProxy in front.
pub(super) struct Balancer {
    pub agent: Agent,
    renderer: Renderer,
    pub listeners: Vec<ListenerRecord>,
    /// Number of the last bundle that it was given.
    pub generation: u64,
}

impl Balancer {
    pub(super) fn new(id: &FleetId, agent: Agent, listeners: Vec<ListenerRecord>) -> Self {
        let capabilities = agent.status().borrow().capabilities;
        Self { agent, renderer: Renderer::new(id.clone(), capabilities), listeners, generation: 0 }
    }

    /// Sends to `members` from now on.
    pub(super) fn follow(&mut self, id: &FleetId, members: &[Member]) {
        let listeners: Vec<Balanced> = self
            .listeners
            .iter()
            .map(|listener| Balanced {
                name: listener.name.as_str().into(),
                public_port: listener.public_port,
                pod_port: listener.pod_port,
            })
            .collect();
        let model = balancer::model(&id.name, &listeners, members, HEALTH_PORT);
        let changes = self.renderer.update(&model, &Touched::all(&model));
        if changes.is_empty() && self.generation > 0 {
            return;
        }
        self.generation += 1;
        let content = UpdateContent::Full(Arc::new(self.renderer.bundle().clone()));
        self.agent.deliver(Update { generation: self.generation, digest: self.renderer.bundle().digest(), content });
    }

    /// Whether it does what it was told last.
    pub(super) fn serves(&self) -> bool {
        let status = self.agent.status();
        let status = status.borrow();
        status.ready && status.generation == self.generation
    }
}
