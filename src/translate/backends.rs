//! Backends: the three scopes of policy meet here, field by field.

mod zones;

pub(super) use zones::told_in_vain;

use super::fleet::FleetState;
use super::ingress::Wish;
use super::services::{self, Behind, ServiceRecord};
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
    if let Some(spoken) = service.and_then(|s| services::spoken(&s.routing, id.port)) {
        // the widest scope: whoever writes a Backend means it
        policy = Arc::new((*policy).clone().or(&Policy { server: spoken, ..Policy::default() }));
    }
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
    let endpoints = if kind == BackendKind::Endpoints { endpoints.cloned() } else { None };
    let of_service = service.map_or(&[][..], |s| &s.sources);
    let sources = nearest_first(wish, of_service, fleet.policy_source.as_ref());
    let zones = if kind == BackendKind::Endpoints { zones::rule(&policy, service, fleet) } else { None };
    Backend { kind, mode: Mode::Http, policy, endpoints: endpoints.unwrap_or_default(), zones, sources }
}

/// Whom a complaint is told to: the first is the likeliest culprit. What holds a policy comes before what only
/// names it, near scopes before wide ones; the fleet's own policy is the last to blame.
fn nearest_first(wish: &Wish, of_service: &[ObjectRef], of_fleet: Option<&ObjectRef>) -> Arc<[ObjectRef]> {
    let (routes, policies): (Vec<&ObjectRef>, Vec<&ObjectRef>) = wish.sources.iter().partition(|object| object.kind == Kind::Ingress);
    let service = wish.service.as_ref().map(|(namespace, name)| ObjectRef::new(Kind::Service, namespace.clone(), name.clone()));
    let mut sources: Vec<ObjectRef> = Vec::new();
    for object in of_service.iter().chain(policies).chain(routes).chain(&service).chain(of_fleet) {
        if !sources.contains(object) {
            sources.push(object.clone());
        }
    }
    sources.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_holds_the_policy_is_told_first_and_the_fleet_last() {
        let object = |kind, name| ObjectRef::new(kind, "shop", name);
        let (ingress, of_ingress) = (object(Kind::Ingress, "web"), object(Kind::Backend, "of-ingress"));
        let (of_service, of_fleet) = (object(Kind::Backend, "of-service"), ObjectRef::new(Kind::Backend, "infra", "defaults"));
        let wish = Wish {
            service: Some(("shop".into(), "cart".into())),
            policy: Arc::default(),
            sources: vec![ingress.clone(), of_ingress.clone()],
        };
        let sources = nearest_first(&wish, std::slice::from_ref(&of_service), Some(&of_fleet));
        assert_eq!(*sources, [of_service, of_ingress, ingress, object(Kind::Service, "cart"), of_fleet]);
    }
}
