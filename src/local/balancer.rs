//! The model of the HAProxy that plays Service and load balancer in front of a fleet's replicas: TCP, one
//! stable address per listener, replicas by their health. Pure.

use crate::model::{
    Backend, BackendId, BackendKind, Balance, Endpoint, EndpointState, HttpCheck, Listener, Millis, Mode, Model, Owner, Policy, Protocol,
    ServerOptions,
};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// A listener that is balanced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balanced {
    /// Its name.
    pub name: Arc<str>,
    /// The port that clients use.
    pub public_port: u16,
    /// The port of the replicas.
    pub pod_port: u16,
}

/// A replica behind it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Where it is.
    pub address: IpAddr,
    /// Whether it is being deregistered: no new connections.
    pub leaving: bool,
}

/// The model: one TCP listener and one backend for each of `listeners`, over all `members`, whose health is
/// asked for at `health_port`.
pub fn model(fleet: &str, listeners: &[Balanced], members: &[Member], health_port: u16) -> Model {
    let policy = Arc::new(policy(health_port));
    let mut model = Model::default();
    for listener in listeners {
        let id = BackendId {
            namespace: "local".into(),
            service: format!("{fleet}-{}", listener.name).into(),
            port: listener.pod_port,
            owner: Owner::Shared,
        };
        let protocol = Protocol::Tcp { backend: id.clone() };
        model.listeners.insert(
            listener.name.clone(),
            Listener { protocol, public_port: listener.public_port, pod_port: listener.public_port, proxy_protocol: false },
        );
        model.backends.insert(id, backend(listener.pod_port, members, policy.clone()));
    }
    model.tables = BTreeMap::new();
    model
}

fn backend(port: u16, members: &[Member], policy: Arc<Policy>) -> Backend {
    let mut endpoints: Vec<Endpoint> = members
        .iter()
        .map(|member| Endpoint {
            address: member.address,
            port,
            state: if member.leaving { EndpointState::Draining } else { EndpointState::Ready },
            weight: None,
            zone: None,
        })
        .collect();
    endpoints.sort();
    Backend { kind: BackendKind::Endpoints, mode: Mode::Tcp, policy, endpoints: endpoints.into(), zones: None, sources: Arc::new([]) }
}

/// Load balancers notice within seconds; this one within a fraction of one, so that what is tried out by
/// hand does not wait for it. A connection that a replica refuses goes to another one at once.
fn policy(health_port: u16) -> Policy {
    Policy {
        balance: Some(Balance::RoundRobin),
        server_timeout: Some(Millis(3_600_000)),
        // one that is gone refuses at once; one that is slow is slow because this machine has no time
        check_timeout: Some(Millis(5_000)),
        http_check: Some(HttpCheck { method: Some("GET".into()), uri: Some("/healthz".into()), ..HttpCheck::default() }),
        server: ServerOptions {
            check: Some(true),
            check_port: Some(health_port),
            inter: Some(Millis(200)),
            rise: Some(1),
            fall: Some(2),
            ..ServerOptions::default()
        },
        ..Policy::default()
    }
}
