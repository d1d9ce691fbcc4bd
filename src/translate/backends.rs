//! Backends: the three scopes of policy meet here, field by field.

use super::fleet::FleetState;
use super::ingress::Wish;
use super::services::{Behind, ServiceRecord};
use crate::model::{Backend, BackendId, BackendKind, CaBundle, CaId, Endpoint, Mode, Policy, Verify};
use crate::report::{Kind, ObjectRef};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The nearest scope wins: Service over Ingress over fleet. Where only one says something it is shared.
fn merged(service: Option<&Arc<Policy>>, ingress: &Arc<Policy>, fleet: &Arc<Policy>) -> Arc<Policy> {
    let nothing = Policy::default();
    let scopes = [service, Some(ingress), Some(fleet)];
    let mut saying = scopes.into_iter().flatten().filter(|policy| ***policy != nothing);
    let Some(first) = saying.next() else { return fleet.clone() };
    let mut rest = saying.peekable();
    if rest.peek().is_none() {
        return first.clone();
    }
    Arc::new(rest.fold((**first).clone(), |near, wider| near.or(wider)))
}

/// Whether servers are verified with CA certificates that cannot be had: then nothing may be sent to them.
fn unverifiable(policy: &Policy, authorities: &BTreeMap<CaId, CaBundle>) -> bool {
    let server = &policy.server;
    let verifies = server.ssl == Some(true) && server.verify != Some(Verify::None);
    verifies && server.ca.as_ref().is_some_and(|ca| !authorities.contains_key(ca))
}

/// The backend `id`.
pub(super) fn build(
    id: &BackendId,
    wish: &Wish,
    service: Option<&ServiceRecord>,
    fleet: &FleetState,
    authorities: &BTreeMap<CaId, CaBundle>,
    endpoints: Option<&Arc<[Endpoint]>>,
) -> Backend {
    let mut policy = merged(service.map(|s| &s.policy), &wish.policy, &fleet.policy);
    let kind = if policy.redirect.is_some() || unverifiable(&policy, authorities) {
        BackendKind::None
    } else {
        match service.map(|s| &s.routing.behind) {
            Some(Behind::Endpoints) => BackendKind::Endpoints,
            Some(Behind::Name(host)) => BackendKind::ExternalName { host: host.clone(), port: id.port },
            Some(Behind::Missing | Behind::Unusable) | None => BackendKind::None,
        }
    };
    if policy.server.ca.as_ref().is_some_and(|ca| !authorities.contains_key(ca)) {
        // Nobody verifies with it (see above): no reference to what is not there.
        Arc::make_mut(&mut policy).server.ca = None;
    }
    let mut sources: Vec<ObjectRef> = Vec::new();
    if let Some((namespace, name)) = &wish.service {
        sources.push(ObjectRef::new(Kind::Service, namespace.clone(), name.clone()));
    }
    sources.extend(service.into_iter().flat_map(|s| s.sources.iter().cloned()));
    sources.extend(wish.sources.iter().cloned());
    sources.extend(fleet.policy_source.clone());
    sources.sort();
    sources.dedup();
    let endpoints = if kind == BackendKind::Endpoints { endpoints.cloned() } else { None };
    Backend { kind, mode: Mode::Http, policy, endpoints: endpoints.unwrap_or_default(), sources: sources.into() }
}
