//! What a translator remembers, and how its parts are put into the model.

use super::endpoints::{self, ServiceEndpoints};
use super::fleet::{self, CERTIFICATES, FleetState, TABLE};
use super::hosts::{self, Age, Claimant, Merged, certificate_id};
use super::ingress::{self, Fragment, Wish};
use super::lookups::{CertificateState, Key, Lookups, Records};
use super::services::Behind;
use super::{Options, backends};
use crate::api::ServicePort;
use crate::model::{Backend, BackendId, CaBundle, CaId, Certificate, CertificateId, FleetId, HostMatch, Model, Owner, Target, Touched};
use crate::report::{Diagnostic, Kind, ObjectRef};
use crate::world::{Reference, ReverseIndex, World};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Who looks things up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Dependent {
    /// The fleet itself.
    Fleet,
    /// The record of a Backend.
    Policy(Key),
    /// The record of a Service.
    Service(Key),
    /// The fragment of an Ingress.
    Ingress(Key),
}

/// Parts of the model that are to be put together again.
#[derive(Debug, Default)]
pub(super) struct Dirty {
    pub hosts: BTreeSet<HostMatch>,
    pub backends: BTreeSet<BackendId>,
    /// Services whose endpoints are to be collected again.
    pub endpoints: BTreeSet<Key>,
    pub certificates: BTreeSet<CertificateId>,
    /// What somebody no longer looks at.
    pub dropped: BTreeSet<Reference>,
    /// Whether CA bundles may have come, changed or gone. Not so when only endpoints change.
    pub authorities: bool,
}

/// What a translator remembers.
#[derive(Debug, Default)]
pub(super) struct State {
    pub fleet: FleetState,
    pub records: Records,
    pub index: ReverseIndex<Dependent>,
    pub fragments: BTreeMap<Key, Fragment>,
    /// Who says something about each host, the oldest first.
    claimants: BTreeSet<(HostMatch, Age)>,
    /// What became of each host, but for its routes, which are in the model.
    merged: BTreeMap<HostMatch, (Vec<CertificateId>, Vec<Diagnostic>)>,
    /// Which backends are wanted, and by how many.
    pub wishes: BTreeMap<BackendId, (Wish, usize)>,
    pub endpoints: BTreeMap<Key, ServiceEndpoints>,
    /// What is told about backends that want something which does not go with the rest.
    vain: BTreeMap<BackendId, Diagnostic>,
    pub model: Model,
}

/// The Service of a backend, as a key.
fn service_of(id: &BackendId) -> Key {
    (id.namespace.clone(), id.service.clone())
}

/// The least identity of a backend of `service`: the others follow it.
fn first_of(service: &Key) -> BackendId {
    BackendId { namespace: service.0.clone(), service: service.1.clone(), port: 0, owner: Owner::Shared }
}

/// The key of the Secret that holds the certificate `id`.
fn secret_of(id: &CertificateId) -> Option<Key> {
    let (namespace, name) = id.0.split_once('_')?;
    Some((namespace.into(), name.into()))
}

impl State {
    /// Everything from scratch. Certificates that `before` checked are not checked again.
    pub(super) fn build(id: &FleetId, options: &Options, world: &World, before: Self) -> Self {
        let mut state = Self::default();
        state.records.certificates = before.records.certificates;
        let read = fleet::read(id, Lookups::new(world, options, &mut state.records));
        state.set_fleet(read);
        if state.fleet.object.is_none() {
            state.records.certificates.clear();
            return state;
        }
        fleet::listeners(&state.fleet.settings, &mut state.model);
        state.model.settings = state.fleet.common.clone();
        state.model.default_certificate = state.fleet.default_certificate.as_ref().map(|key| certificate_id(&key.0, &key.1));
        let mut dirty = Dirty { authorities: true, ..Dirty::default() };
        dirty.certificates.extend(state.model.default_certificate.clone());
        dirty.hosts.insert(HostMatch::Any);
        if let Some((_, Some((id, wish)))) = state.fleet.last.clone() {
            state.wish(&id, &wish, &mut dirty);
        }
        for ingress in world.ingresses() {
            if state.fleet.class.takes(world, ingress) {
                state.translate(&(ingress.meta.namespace.clone(), ingress.meta.name.clone()), options, world, &mut dirty);
            }
        }
        let unused: Vec<Key> = state.records.certificates.keys().filter(|key| !state.is_used(Kind::Secret, key)).cloned().collect();
        for key in unused {
            state.records.certificates.remove(&key);
        }
        state.assemble(options, world, dirty, &mut Touched::default());
        state
    }

    /// Takes what was read of the fleet.
    pub(super) fn set_fleet(&mut self, (fleet, references, made): fleet::Read) {
        self.fleet = fleet;
        self.index.set(Dependent::Fleet, references);
        self.register(made);
    }

    /// Remembers what new records looked up.
    pub(super) fn register(&mut self, made: BTreeSet<ObjectRef>) {
        for object in made {
            let key = (object.namespace, object.name);
            match object.kind {
                Kind::Service => {
                    let references = self.records.services.get(&key).map(|record| record.references.clone()).unwrap_or_default();
                    self.index.set(Dependent::Service(key), references);
                }
                Kind::Backend => {
                    let references = self.records.policies.get(&key).map(|record| record.references.clone()).unwrap_or_default();
                    self.index.set(Dependent::Policy(key), references);
                }
                _ => {}
            }
        }
    }

    pub(super) fn is_used(&self, kind: Kind, key: &Key) -> bool {
        self.index.dependents(&Reference::Object(ObjectRef::new(kind, key.0.clone(), key.1.clone()))).next().is_some()
    }

    /// Redoes the fragment of the Ingress named `key`, which may be gone or of another class.
    pub(super) fn translate(&mut self, key: &Key, options: &Options, world: &World, dirty: &mut Dirty) {
        dirty.authorities = true;
        let ingress = world.ingress(&key.0, &key.1).filter(|ingress| self.fleet.class.takes(world, ingress));
        let Some(ingress) = ingress else {
            dirty.dropped.extend(self.index.remove(&Dependent::Ingress(key.clone())));
            return self.replace(key, None, dirty);
        };
        let (fragment, references, made) = ingress::translate(ingress, &self.fleet, Lookups::new(world, options, &mut self.records));
        self.register(made);
        dirty.dropped.extend(self.index.set(Dependent::Ingress(key.clone()), references));
        self.replace(key, Some(fragment), dirty);
    }

    fn replace(&mut self, key: &Key, new: Option<Fragment>, dirty: &mut Dirty) {
        let old = self.fragments.remove(key);
        let same_age = matches!((&old, &new), (Some(old), Some(new)) if old.age == new.age);
        let new_claims = |host: &HostMatch| new.as_ref().and_then(|new| new.hosts.get(host));
        for (host, claims) in old.iter().flat_map(|old| &old.hosts) {
            if same_age && new_claims(host) == Some(claims) {
                continue;
            }
            dirty.hosts.insert(host.clone());
            if let Some(old) = &old {
                self.claimants.remove(&(host.clone(), old.age.clone()));
            }
        }
        for (host, claims) in new.iter().flat_map(|new| &new.hosts) {
            if same_age && old.as_ref().and_then(|old| old.hosts.get(host)) == Some(claims) {
                continue;
            }
            dirty.hosts.insert(host.clone());
            if let Some(new) = &new {
                self.claimants.insert((host.clone(), new.age.clone()));
            }
        }
        // New wishes first: what both want is never unwanted in between.
        for (id, wish) in new.iter().flat_map(|new| &new.backends) {
            if old.as_ref().is_some_and(|old| old.backends.contains_key(id)) {
                self.wish_again(id, wish, dirty);
            } else {
                self.wish(id, wish, dirty);
            }
        }
        for id in old.iter().flat_map(|old| old.backends.keys()) {
            if !new.as_ref().is_some_and(|new| new.backends.contains_key(id)) {
                self.unwish(id, dirty);
            }
        }
        if let Some(new) = new {
            self.fragments.insert(key.clone(), new);
        }
    }

    fn wish(&mut self, id: &BackendId, wish: &Wish, dirty: &mut Dirty) {
        if let Some((_, wanted)) = self.wishes.get_mut(id) {
            // Several only ever want the shared one, and all want it alike.
            *wanted += 1;
            return;
        }
        self.wishes.insert(id.clone(), (wish.clone(), 1));
        dirty.backends.insert(id.clone());
        dirty.endpoints.insert(service_of(id));
    }

    fn wish_again(&mut self, id: &BackendId, wish: &Wish, dirty: &mut Dirty) {
        if let Some((old, _)) = self.wishes.get_mut(id)
            && old != wish
        {
            *old = wish.clone();
            dirty.backends.insert(id.clone());
            dirty.endpoints.insert(service_of(id));
        }
    }

    fn unwish(&mut self, id: &BackendId, dirty: &mut Dirty) {
        let Some((_, wanted)) = self.wishes.get_mut(id) else { return };
        *wanted -= 1;
        if *wanted == 0 {
            self.wishes.remove(id);
            dirty.backends.insert(id.clone());
            dirty.endpoints.insert(service_of(id));
        }
    }

    /// The wanted backends of a Service.
    pub(super) fn backends_of(&self, service: &Key) -> impl Iterator<Item = &BackendId> {
        self.wishes.range(first_of(service)..).map(|(id, _)| id).take_while(|id| id.service == service.1 && id.namespace == service.0)
    }

    /// Forgets records that nobody looks at any more.
    fn collect_garbage(&mut self, dropped: BTreeSet<Reference>) {
        let mut dropped: Vec<Reference> = dropped.into_iter().collect();
        while let Some(reference) = dropped.pop() {
            let Reference::Object(object) = &reference else { continue };
            if self.index.dependents(&reference).next().is_some() {
                continue;
            }
            let key = (object.namespace.clone(), object.name.clone());
            match object.kind {
                Kind::Service => {
                    self.records.services.remove(&key);
                    dropped.extend(self.index.remove(&Dependent::Service(key)));
                }
                Kind::Backend => {
                    self.records.policies.remove(&key);
                    self.index.remove(&Dependent::Policy(key));
                }
                Kind::Secret => drop(self.records.certificates.remove(&key)),
                _ => {}
            }
        }
    }

    /// Puts the dirty parts of the model together again.
    pub(super) fn assemble(&mut self, options: &Options, world: &World, mut dirty: Dirty, touched: &mut Touched) {
        let dropped = std::mem::take(&mut dirty.dropped);
        self.collect_garbage(dropped);
        if dirty.authorities && self.authorities(touched) {
            dirty.backends.extend(self.wishes.keys().cloned());
        }
        for host in &dirty.hosts {
            self.merge(host, &mut dirty.certificates, touched);
        }
        for id in &dirty.certificates {
            self.certificate(id, touched);
        }
        for service in &dirty.endpoints {
            self.collect_endpoints(service, options, world);
        }
        for id in &dirty.backends {
            self.backend(id, touched);
        }
        for service in &dirty.endpoints {
            self.put_endpoints(service, touched);
        }
    }

    /// Brings the CA bundles up to date. Whether one came or went.
    fn authorities(&mut self, touched: &mut Touched) -> bool {
        let named = self.records.policies.values().filter_map(|policy| policy.authorities.as_ref()).chain(self.fleet.authorities.as_ref());
        let new: BTreeMap<&CaId, &CaBundle> = named.map(|(id, bundle)| (id, bundle)).collect();
        let old = &self.model.ca_bundles;
        if new.len() == old.len() && new.iter().zip(old).all(|(a, b)| a == (&b.0, &b.1) as (&&CaId, &&CaBundle)) {
            return false;
        }
        let new: BTreeMap<CaId, CaBundle> = new.into_iter().map(|(id, bundle)| (id.clone(), bundle.clone())).collect();
        let mut flipped = false;
        for id in new.keys().chain(old.keys()) {
            flipped |= new.contains_key(id) != old.contains_key(id);
            if new.get(id) != old.get(id) {
                touched.ca_bundles.insert(id.clone());
            }
        }
        self.model.ca_bundles = new;
        flipped
    }

    fn merge(&mut self, host: &HostMatch, certificates: &mut BTreeSet<CertificateId>, touched: &mut Touched) {
        let ages = self.claimants.range((host.clone(), Age::first())..).take_while(|(of, _)| of == host).map(|(_, age)| age);
        let fragments = ages.filter_map(|age| self.fragments.get(&(age.namespace.clone(), age.name.clone())));
        let claimants: Vec<Claimant<'_>> =
            fragments.filter_map(|f| f.hosts.get(host).map(|claims| Claimant { age: &f.age, object: &f.object, claims })).collect();
        let last =
            self.fleet.last.as_ref().zip(self.fleet.object.as_ref()).map(|((target, _), object): (&(Target, _), _)| (target, object));
        let Merged { host: routes, certificates: served, diagnostics } =
            hosts::merge(host, &claimants, self.fleet.settings.ownership, last);
        if let Some(table) = self.model.tables.get_mut(TABLE)
            && table.hosts.get(host) != routes.as_ref()
        {
            touched.hosts.insert((TABLE.into(), host.clone()));
            match routes {
                Some(routes) => drop(table.hosts.insert(host.clone(), routes)),
                None => drop(table.hosts.remove(host)),
            }
        }
        let before = self.merged.get(host).map(|(served, _)| served.clone()).unwrap_or_default();
        if before != served {
            self.serve(host, &before, &served, certificates, touched);
        }
        if served.is_empty() && diagnostics.is_empty() {
            self.merged.remove(host);
        } else {
            self.merged.insert(host.clone(), (served, diagnostics));
        }
    }

    /// `host` has the certificates `after` instead of `before`.
    fn serve(
        &mut self,
        host: &HostMatch,
        before: &[CertificateId],
        after: &[CertificateId],
        dirty: &mut BTreeSet<CertificateId>,
        touched: &mut Touched,
    ) {
        let name: Box<str> = match host {
            HostMatch::Exact(name) => name.clone(),
            HostMatch::Wildcard(suffix) => format!("*.{suffix}").into(),
            // Nobody can ask for a certificate for these.
            HostMatch::DeepWildcard(_) | HostMatch::Any => return,
        };
        let Some(list) = self.model.certificate_lists.get_mut(CERTIFICATES) else { return };
        for id in before.iter().filter(|id| !after.contains(id)) {
            if let Some(names) = list.entries.get_mut(id) {
                names.remove(&name);
                if names.is_empty() {
                    list.entries.remove(id);
                }
            }
            touched.list_entries.insert((CERTIFICATES.into(), id.clone()));
            dirty.insert(id.clone());
        }
        for id in after.iter().filter(|id| !before.contains(id)) {
            list.entries.entry(id.clone()).or_default().insert(name.clone());
            touched.list_entries.insert((CERTIFICATES.into(), id.clone()));
            dirty.insert(id.clone());
        }
    }

    /// A certificate is in the model while it is on the list or the default one.
    fn certificate(&mut self, id: &CertificateId, touched: &mut Touched) {
        let listed = self.model.certificate_lists.get(CERTIFICATES).is_some_and(|list| list.entries.contains_key(id));
        let wanted = listed || self.model.default_certificate.as_ref() == Some(id);
        let record = secret_of(id).and_then(|key| Some((self.records.certificates.get(&key)?, key)));
        let new = match record {
            Some((CertificateState::Usable(checked), key)) if wanted => {
                Some(Certificate { pem: checked.pem.clone(), sources: [ObjectRef::new(Kind::Secret, key.0, key.1)].into() })
            }
            _ => None,
        };
        if self.model.certificates.get(id) != new.as_ref() {
            touched.certificates.insert(id.clone());
            match new {
                Some(new) => drop(self.model.certificates.insert(id.clone(), new)),
                None => drop(self.model.certificates.remove(id)),
            }
        }
    }

    /// Collects the endpoints of a Service for those of its ports that are wanted.
    pub(super) fn collect_endpoints(&mut self, service: &Key, options: &Options, world: &World) {
        let ports: BTreeSet<u16> = self.backends_of(service).filter(|id| id.port != 0).map(|id| id.port).collect();
        let routing = self.records.services.get(service).map(|record| record.routing.clone()).filter(|r| r.behind == Behind::Endpoints);
        let Some(routing) = routing.filter(|_| !ports.is_empty()) else {
            self.endpoints.remove(service);
            return;
        };
        let ports: Vec<&ServicePort> = routing.ports.iter().filter(|port| ports.contains(&port.port)).collect();
        let slices = world.endpoint_slices_of(&service.0, &service.1).map(|slice| &**slice);
        let found = endpoints::collect(slices, &ports, options.allow_loopback);
        self.endpoints.insert(service.clone(), found);
    }

    fn endpoints(&self, id: &BackendId) -> Option<&Arc<[crate::model::Endpoint]>> {
        self.endpoints.get(&service_of(id)).and_then(|found| found.by_port.get(&id.port))
    }

    /// Builds the backend `id`, or removes it.
    fn backend(&mut self, id: &BackendId, touched: &mut Touched) {
        let new: Option<Backend> = self.wishes.get(id).map(|(wish, _)| {
            let service = wish.service.as_ref().and_then(|key| self.records.services.get(key)).map(|record| &**record);
            backends::build(id, wish, service, &self.fleet, &self.model.ca_bundles, self.endpoints(id))
        });
        match new.as_ref().and_then(|backend| self.told(id, backend)) {
            Some(diagnostic) => drop(self.vain.insert(id.clone(), diagnostic)),
            None => drop(self.vain.remove(id)),
        }
        let old = self.model.backends.get(id);
        if old == new.as_ref() {
            return;
        }
        let only_endpoints = matches!((old, &new), (Some(old), Some(new))
            if old.kind == new.kind && old.mode == new.mode && old.policy == new.policy && old.sources == new.sources);
        if only_endpoints {
            touched.endpoints.insert(id.clone());
        } else {
            touched.backends.insert(id.clone());
        }
        match new {
            Some(new) => drop(self.model.backends.insert(id.clone(), new)),
            None => drop(self.model.backends.remove(id)),
        }
    }

    fn told(&self, id: &BackendId, backend: &Backend) -> Option<Diagnostic> {
        let (wish, _) = self.wishes.get(id)?;
        let service = wish.service.as_ref().and_then(|key| self.records.services.get(key)).map(|record| &**record);
        backends::told_in_vain(wish, service, &self.fleet, backend)
    }

    /// Gives the backends of a Service the endpoints that were collected.
    pub(super) fn put_endpoints(&mut self, service: &Key, touched: &mut Touched) {
        let Some(found) = self.endpoints.get(service) else { return };
        let backends = self.model.backends.range_mut(first_of(service)..);
        for (id, backend) in backends.take_while(|(id, _)| id.service == service.1 && id.namespace == service.0) {
            if backend.kind == crate::model::BackendKind::Endpoints
                && let Some(endpoints) = found.by_port.get(&id.port)
                && backend.endpoints != *endpoints
            {
                backend.endpoints = endpoints.clone();
                touched.endpoints.insert(id.clone());
            }
        }
    }

    /// Everything that is wrong.
    pub(super) fn diagnostics(&self) -> impl Iterator<Item = &Diagnostic> {
        let certificates = self.records.certificates.values().filter_map(|state| match state {
            CertificateState::Unusable(diagnostic) => Some(&**diagnostic),
            CertificateState::Missing | CertificateState::Usable(_) => None,
        });
        self.fleet
            .diagnostics
            .iter()
            .chain(self.fragments.values().flat_map(|fragment| &fragment.diagnostics))
            .chain(self.merged.values().flat_map(|(_, diagnostics)| diagnostics))
            .chain(self.records.services.values().flat_map(|record| &record.diagnostics))
            .chain(self.records.policies.values().flat_map(|record| &record.diagnostics))
            .chain(certificates)
            .chain(self.endpoints.values().flat_map(|found| &found.diagnostics))
            .chain(self.vain.values())
    }
}
