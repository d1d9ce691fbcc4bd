//! World → Model: what the source objects mean for one fleet, and what is wrong with them. Pure.
//!
//! Incremental: each Ingress is one **fragment** that remembers what it looked up; Services, Backends and
//! Secrets have a record while somebody looks at them; merging is per host. A change redoes the records and
//! fragments that it touches, each of which stops the wave when it comes out the same. What every fragment
//! depends on (the class, the fleet's policy …) is in one place, `fleet`; when it changes, all is done anew.
//!
//! Order of claims everywhere: the older object, then namespace and name. Nothing depends on the order in
//! which objects arrive: the result is always that of a translation from scratch (a property test holds it
//! to that).

mod annotations;
mod authorities;
mod backend_cr;
mod backends;
mod certificates;
mod class;
mod diff;
mod endpoints;
mod fleet;
mod hosts;
mod ingress;
mod lookups;
mod names;
mod pem;
mod services;
mod shards;
mod state;
mod step;

#[cfg(test)]
mod tests;

pub use fleet::{CERTIFICATES, HTTP, HTTPS, TABLE};
pub use shards::{Place, places, takes};

use crate::model::{FleetId, Model, Touched};
use crate::report::{Diagnostic, Kind, ObjectRef};
use crate::world::{Changed, Reference, World};
use state::{Dependent, State};
use std::sync::Arc;

/// What the surroundings allow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Whether endpoints on loopback addresses are used: only where everything runs on one machine.
    pub allow_loopback: bool,
}

/// Translates a world for one fleet, and keeps up with its changes.
#[derive(Debug)]
pub struct Translator {
    fleet: FleetId,
    options: Options,
    /// `None` before the first update.
    state: Option<State>,
    empty: Model,
}

impl Translator {
    /// A translator for the fleet `fleet` that has seen nothing yet.
    pub fn new(fleet: FleetId, options: Options) -> Self {
        Self { fleet, options, state: None, empty: Model::default() }
    }

    /// The fleet.
    pub fn fleet(&self) -> &FleetId {
        &self.fleet
    }

    /// Brings the model up to `world`, which differs from that of the last call by `changes`. The first call
    /// takes everything, whatever `changes` says. The answer names what may differ in the model.
    pub fn update(&mut self, world: &World, changes: &[Changed]) -> Touched {
        if let Some(state) = &mut self.state {
            return step::update(state, &self.fleet, &self.options, world, changes);
        }
        let state = self.state.insert(State::build(&self.fleet, &self.options, world, State::default()));
        diff::touched(&self.empty, &state.model)
    }

    /// What the fleet's proxies must do. Empty before the first update and while the fleet does not exist.
    pub fn model(&self) -> &Model {
        self.state.as_ref().map_or(&self.empty, |state| &state.model)
    }

    /// Whether the fleet uses the `Backend` `namespace/name`, or would if it were there.
    pub fn uses_backend(&self, namespace: &Arc<str>, name: &Arc<str>) -> bool {
        self.state.as_ref().is_some_and(|state| state.records.policies.contains_key(&(namespace.clone(), name.clone())))
    }

    /// Which objects of the fleet name the `Backend` `namespace/name`: its `IngressDeployment`, Ingresses, Services.
    pub fn users_of_backend(&self, namespace: &Arc<str>, name: &Arc<str>) -> impl Iterator<Item = ObjectRef> {
        let reference = Reference::Object(ObjectRef::new(Kind::Backend, namespace.clone(), name.clone()));
        self.state.iter().flat_map(move |state| {
            let users: Vec<ObjectRef> = state
                .index
                .dependents(&reference)
                .filter_map(|dependent| match dependent {
                    Dependent::Fleet => state.fleet.object.clone(),
                    Dependent::Service(key) => Some(ObjectRef::new(Kind::Service, key.0.clone(), key.1.clone())),
                    Dependent::Ingress(key) => Some(ObjectRef::new(Kind::Ingress, key.0.clone(), key.1.clone())),
                    Dependent::Policy(_) => None,
                })
                .collect();
            users
        })
    }

    /// What is wrong with the objects that concern the fleet, in an order that depends on nothing but them.
    /// Objects that several fleets use are told by each of them.
    pub fn diagnostics(&self) -> impl Iterator<Item = &Diagnostic> {
        self.state.iter().flat_map(State::diagnostics)
    }
}

/// What is wrong with the `Backend` `namespace/name` in itself, whoever uses it.
pub fn check_backend(world: &World, namespace: &Arc<str>, name: &Arc<str>) -> Vec<Diagnostic> {
    backend_cr::read(world, &(namespace.clone(), name.clone())).diagnostics
}

/// Top-level fields of the `Backend` `namespace/name` that annotations of `user` override, which names it.
pub fn overridden_fields(world: &World, user: &ObjectRef, namespace: &Arc<str>, name: &Arc<str>) -> Vec<&'static str> {
    backend_cr::overridden(world, user, &(namespace.clone(), name.clone()))
}
