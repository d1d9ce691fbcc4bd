//! One update: which records a change makes stale, and how far the wave goes.

use super::lookups::{Key, Lookups, Records};
use super::state::{Dependent, Dirty, State};
use super::{Options, backend_cr, certificates, diff, fleet, hosts, services};
use crate::model::{FleetId, Touched};
use crate::report::{Kind, ObjectRef};
use crate::world::{Changed, Reference, World};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What is to be looked at again.
#[derive(Default)]
struct Due {
    fleet: bool,
    policies: BTreeSet<Key>,
    certificates: BTreeSet<Key>,
    services: BTreeSet<Key>,
    ingresses: BTreeSet<Key>,
}

fn object(kind: Kind, key: &Key) -> Reference {
    Reference::Object(ObjectRef::new(kind, key.0.clone(), key.1.clone()))
}

/// Brings `state` up to `world`, which differs by `changes`.
pub(super) fn update(state: &mut State, id: &FleetId, options: &Options, world: &World, changes: &[Changed]) -> Touched {
    let mut due = Due::default();
    let mut dirty = Dirty::default();
    for reference in changes.iter().flat_map(|change| &change.references) {
        note(state, world, reference, &mut due, &mut dirty);
    }
    policies(state, world, &mut due, &mut dirty);
    certificates(state, world, &mut due, &mut dirty);
    services(state, options, world, &mut due, &mut dirty);
    if due.fleet {
        // Into copies of nothing: what the fleet looks at is there already, or is new.
        let mut records = Records::default();
        std::mem::swap(&mut records, &mut state.records);
        let read = fleet::read(id, Lookups::new(world, options, &mut records));
        state.records = records;
        // no fragment depends on these
        state.fleet.common = read.0.common.clone();
        dirty.authorities |= state.fleet.authorities != read.0.authorities;
        state.fleet.authorities.clone_from(&read.0.authorities);
        if read.0 != state.fleet {
            let before = std::mem::take(state);
            let model = before.model.clone();
            *state = State::build(id, options, world, before);
            return diff::touched(&model, &state.model);
        }
        state.set_fleet(read);
    }
    let mut touched = Touched::default();
    if state.model.settings != state.fleet.common {
        state.model.settings = state.fleet.common.clone();
        touched.settings = true;
    }
    if state.fleet.object.is_some() {
        for key in due.ingresses {
            state.translate(&key, options, world, &mut dirty);
        }
        state.assemble(options, world, dirty, &mut touched);
    }
    touched
}

/// What `reference`, which has another answer now, makes stale.
fn note(state: &State, world: &World, reference: &Reference, due: &mut Due, dirty: &mut Dirty) {
    match reference {
        Reference::EndpointsOf { namespace, service } => {
            let key = (namespace.clone(), service.clone());
            if state.endpoints.contains_key(&key) {
                dirty.endpoints.insert(key);
            }
        }
        Reference::AllOf(_) => due.fleet |= state.index.dependents(reference).any(|d| *d == Dependent::Fleet),
        Reference::Object(object) => {
            let key = || (object.namespace.clone(), object.name.clone());
            match object.kind {
                Kind::Ingress => drop(due.ingresses.insert(key())),
                Kind::Namespace if state.fleet.class.looks_at_namespaces() => {
                    due.ingresses.extend(
                        world.ingresses_in(&object.name).map(|ingress| (ingress.meta.namespace.clone(), ingress.meta.name.clone())),
                    );
                }
                Kind::Service if state.records.services.contains_key(&key()) => drop(due.services.insert(key())),
                Kind::Backend if state.records.policies.contains_key(&key()) => drop(due.policies.insert(key())),
                Kind::Secret if state.records.certificates.contains_key(&key()) => drop(due.certificates.insert(key())),
                _ => {}
            }
            // A certificate has a record of its own; what else the fleet names is read along with it.
            due.fleet |= state.index.dependents(reference).any(|d| *d == Dependent::Fleet);
            // CA certificates are read along with the Backend that names them.
            if matches!(object.kind, Kind::Secret | Kind::ConfigMap) {
                due.policies.extend(state.index.dependents(reference).filter_map(|d| match d {
                    Dependent::Policy(key) => Some(key.clone()),
                    Dependent::Fleet | Dependent::Service(_) | Dependent::Ingress(_) => None,
                }));
            }
        }
    }
}

/// Whoever looked at `reference` looks again.
fn pass_on(state: &State, reference: &Reference, due: &mut Due) {
    for dependent in state.index.dependents(reference) {
        match dependent {
            Dependent::Fleet => due.fleet = true,
            Dependent::Policy(key) => drop(due.policies.insert(key.clone())),
            Dependent::Service(key) => drop(due.services.insert(key.clone())),
            Dependent::Ingress(key) => drop(due.ingresses.insert(key.clone())),
        }
    }
}

fn policies(state: &mut State, world: &World, due: &mut Due, dirty: &mut Dirty) {
    for key in std::mem::take(&mut due.policies) {
        let new = backend_cr::read(world, &key);
        dirty.authorities = true;
        let Some(old) = state.records.policies.insert(key.clone(), new.clone()) else { continue };
        dirty.dropped.extend(state.index.set(Dependent::Policy(key.clone()), new.references.clone()));
        if old.exists != new.exists || old.policy != new.policy {
            pass_on(state, &object(Kind::Backend, &key), due);
        }
    }
}

fn certificates(state: &mut State, world: &World, due: &mut Due, dirty: &mut Dirty) {
    for key in std::mem::take(&mut due.certificates) {
        let new = certificates::read(world, &key);
        let (missing, key_type) = (new.is_missing(), new.key_type());
        let Some(old) = state.records.certificates.insert(key.clone(), new) else { continue };
        if old.is_missing() != missing || old.key_type() != key_type {
            pass_on(state, &object(Kind::Secret, &key), due);
        }
        dirty.certificates.insert(hosts::certificate_id(&key.0, &key.1));
    }
}

fn services(state: &mut State, options: &Options, world: &World, due: &mut Due, dirty: &mut Dirty) {
    for key in std::mem::take(&mut due.services) {
        let mut made = BTreeSet::new();
        let new = Arc::new(services::read(world, options, &mut state.records, &mut made, &key));
        state.register(made);
        dirty.dropped.extend(state.index.set(Dependent::Service(key.clone()), new.references.clone()));
        let Some(old) = state.records.services.insert(key.clone(), new.clone()) else { continue };
        dirty.authorities = true;
        if old.routing != new.routing {
            pass_on(state, &object(Kind::Service, &key), due);
        }
        if old.routing != new.routing || old.policy != new.policy || old.prefers_zone != new.prefers_zone || old.sources != new.sources {
            dirty.backends.extend(state.backends_of(&key).cloned());
            dirty.endpoints.insert(key);
        }
    }
}
