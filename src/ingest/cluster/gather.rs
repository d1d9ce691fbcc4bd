//! What all watches together say: which objects there are, and from when on that is the whole truth. Pure.

use super::source::{Resource, Source};
use super::watch::{Found, News};
use super::{SeenBackend, Settings};
use crate::ingest::Delta;
use crate::ingest::object::Read;
use crate::report::{Diagnostic, Kind, ObjectRef, codes};
use crate::world::Object;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How a source is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    /// Nothing is known yet.
    Fresh,
    /// All of it is known.
    Listed,
    /// The cluster has no such kind.
    Absent,
    /// We may not read it.
    Forbidden(String),
    /// What is known may be old: the reason.
    Failing(String),
}

/// One source and what it has told.
#[derive(Debug)]
struct Told {
    condition: Condition,
    /// Whether all of it was known once.
    complete: bool,
    known: BTreeSet<ObjectRef>,
    /// What was found since the last listing began.
    listing: Option<BTreeSet<ObjectRef>>,
}

/// Sources to begin and to end.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Follow {
    pub(super) start: Vec<Source>,
    pub(super) stop: Vec<Source>,
}

/// Namespaces with objects that may refer to others, and how many.
#[derive(Debug, Default)]
struct Near(BTreeMap<Arc<str>, usize>);

impl Near {
    fn add(&mut self, namespace: &Arc<str>) {
        *self.0.entry(namespace.clone()).or_default() += 1;
    }

    fn remove(&mut self, namespace: &Arc<str>) {
        let Some(count) = self.0.get_mut(namespace) else { return };
        *count -= 1;
        if *count == 0 {
            self.0.remove(namespace);
        }
    }

    fn sources(&self, resource: Resource) -> impl Iterator<Item = Source> {
        self.0.keys().map(move |namespace| Source { resource, namespace: Some(namespace.clone()) })
    }
}

/// What all watches together say.
#[derive(Debug)]
pub(super) struct Gather {
    settings: Settings,
    sources: BTreeMap<Source, Told>,
    /// Where objects are that may refer to Secrets, and to `ConfigMap`s.
    secrets_near: Near,
    config_maps_near: Near,
    /// `Backend`s of haproxy.org: they count where there is none of ours of the same name.
    stand_ins: BTreeMap<ObjectRef, Object>,
    /// Objects of ours that were read once, of those kinds that have stand-ins.
    preferred: BTreeSet<ObjectRef>,
    findings: BTreeMap<ObjectRef, Vec<Diagnostic>>,
    findings_changed: bool,
    set: BTreeMap<ObjectRef, Object>,
    removed: BTreeSet<ObjectRef>,
    addresses: BTreeMap<ObjectRef, Box<[Box<str>]>>,
    backends: BTreeMap<ObjectRef, Option<SeenBackend>>,
    /// Changes that a later one of the same object overtook.
    coalesced: u64,
}

impl Gather {
    pub(super) fn new(settings: Settings) -> Self {
        Self {
            settings,
            sources: BTreeMap::new(),
            secrets_near: Near::default(),
            config_maps_near: Near::default(),
            stand_ins: BTreeMap::new(),
            preferred: BTreeSet::new(),
            findings: BTreeMap::new(),
            findings_changed: true,
            set: BTreeMap::new(),
            removed: BTreeSet::new(),
            addresses: BTreeMap::new(),
            backends: BTreeMap::new(),
            coalesced: 0,
        }
    }

    /// Brings the sources up to what is wanted now. Secrets are asked for in all namespaces, and where that is not
    /// permitted in those that may refer to some.
    pub(super) fn follow(&mut self) -> Follow {
        let mut wanted: BTreeSet<Source> =
            Resource::FROM_THE_START.into_iter().chain([Resource::Secrets]).flat_map(|resource| resource.sources(&self.settings)).collect();
        let everywhere = Source { resource: Resource::Secrets, namespace: None };
        if self.sources.get(&everywhere).is_some_and(|told| matches!(told.condition, Condition::Forbidden(_))) {
            wanted.extend(self.secrets_near.sources(Resource::Secrets));
        }
        wanted.extend(self.config_maps_near.sources(Resource::ConfigMaps));
        let stop: Vec<Source> = self.sources.keys().filter(|source| !wanted.contains(source)).cloned().collect();
        for source in &stop {
            let known = self.sources.get(source).map(|told| told.known.clone()).unwrap_or_default();
            for object in &known {
                self.forget(source, object);
            }
            self.sources.remove(source);
        }
        wanted.retain(|source| !self.sources.contains_key(source));
        for source in &wanted {
            let told = Told { condition: Condition::Fresh, complete: false, known: BTreeSet::new(), listing: None };
            self.sources.insert(source.clone(), told);
        }
        Follow { start: wanted.into_iter().collect(), stop }
    }

    /// Takes in what a watch tells.
    pub(super) fn hear(&mut self, source: &Source, news: News) {
        let Some(told) = self.sources.get_mut(source) else { return };
        let before = told.condition.clone();
        match news {
            News::Listing => told.listing = Some(BTreeSet::new()),
            News::Listed => {
                told.condition = Condition::Listed;
                told.complete = true;
                let found = told.listing.take().unwrap_or_default();
                let gone: Vec<ObjectRef> = told.known.difference(&found).cloned().collect();
                for object in &gone {
                    self.forget(source, object);
                }
            }
            News::Found(found) => {
                let Found { read, addresses, backend } = *found;
                if let Some(backend) = backend {
                    self.backends.insert(read.reference.clone(), Some(*backend));
                }
                if source.resource == Resource::Ingresses {
                    self.addresses.insert(read.reference.clone(), addresses);
                }
                if let Some(listing) = &mut told.listing {
                    listing.insert(read.reference.clone());
                } else {
                    told.condition = Condition::Listed;
                }
                if told.known.insert(read.reference.clone()) {
                    self.count(&read.reference, Near::add);
                }
                self.take(source.resource, read);
            }
            News::Gone(object) => {
                told.condition = Condition::Listed;
                self.forget(source, &object);
            }
            // an API server that has just started knows no custom resources for a moment: what was read of ours stays
            News::Absent if !source.resource.is_optional() && told.complete => told.condition = Condition::Absent,
            News::Absent => {
                told.condition = Condition::Absent;
                told.listing = None;
                for object in told.known.clone() {
                    self.forget(source, &object);
                }
            }
            // what was read before stays
            News::Forbidden(why) => told.condition = Condition::Forbidden(why),
            News::Failed(why) => told.condition = Condition::Failing(why),
        }
        self.findings_changed |= self.sources.get(source).is_some_and(|told| told.condition != before);
    }

    fn take(&mut self, resource: Resource, read: Read) {
        let Read { reference, object, diagnostics } = read;
        self.find(&reference, diagnostics);
        // one that cannot be used any more stays as it was
        let Some(object) = object else { return };
        if resource == Resource::HaproxyOrgBackends {
            self.stand_ins.insert(reference.clone(), object.clone());
            if self.preferred.contains(&reference) {
                return;
            }
        } else if resource == Resource::Backends {
            self.preferred.insert(reference.clone());
        }
        self.put(reference, object);
    }

    fn put(&mut self, reference: ObjectRef, object: Object) {
        let overtaken = self.removed.remove(&reference);
        self.coalesced += u64::from(self.set.insert(reference, object).is_some() || overtaken);
    }

    fn count(&mut self, object: &ObjectRef, change: fn(&mut Near, &Arc<str>)) {
        if matches!(object.kind, Kind::Ingress | Kind::IngressDeployment | Kind::Backend) {
            change(&mut self.secrets_near, &object.namespace);
        }
        if matches!(object.kind, Kind::IngressDeployment | Kind::Backend) {
            change(&mut self.config_maps_near, &object.namespace);
        }
    }

    fn find(&mut self, object: &ObjectRef, diagnostics: Vec<Diagnostic>) {
        if self.findings.get(object).map_or(&[][..], Vec::as_slice) == diagnostics {
            return;
        }
        self.findings_changed = true;
        if diagnostics.is_empty() {
            self.findings.remove(object);
        } else {
            self.findings.insert(object.clone(), diagnostics);
        }
    }

    fn forget(&mut self, source: &Source, object: &ObjectRef) {
        if !self.sources.get_mut(source).is_some_and(|told| told.known.remove(object)) {
            return;
        }
        self.count(object, Near::remove);
        self.find(object, Vec::new());
        if source.resource == Resource::HaproxyOrgBackends {
            self.stand_ins.remove(object);
            if self.preferred.contains(object) {
                return;
            }
        } else if source.resource == Resource::Backends {
            self.backends.insert(object.clone(), None);
            self.preferred.remove(object);
            if let Some(instead) = self.stand_ins.get(object) {
                self.put(object.clone(), instead.clone());
                return;
            }
        }
        let overtaken = self.set.remove(object).is_some();
        self.addresses.remove(object);
        self.coalesced += u64::from(!self.removed.insert(object.clone()) || overtaken);
    }

    /// Whether every source has told all it has, or that it has nothing to tell: before that, what is missing may be
    /// there, and nothing may be made of it.
    pub(super) fn is_whole(&self) -> bool {
        self.sources.iter().all(|(source, told)| {
            told.complete
                || source.resource.is_remark()
                || match told.condition {
                    Condition::Forbidden(_) => source.resource == Resource::Secrets,
                    Condition::Absent => source.resource.is_optional(),
                    Condition::Fresh | Condition::Listed | Condition::Failing(_) => false,
                }
        })
    }

    /// What changed since it was last taken.
    pub(super) fn delta(&mut self) -> Delta {
        Delta {
            set: std::mem::take(&mut self.set).into_values().collect(),
            removed: std::mem::take(&mut self.removed).into_iter().collect(),
        }
    }

    /// What the status of Ingresses says that were heard of since it was last taken.
    pub(super) fn addresses(&mut self) -> Vec<(ObjectRef, Box<[Box<str>]>)> {
        std::mem::take(&mut self.addresses).into_iter().collect()
    }

    /// What `Backend`s of ours say of themselves that were heard of since it was last taken.
    pub(super) fn backends(&mut self) -> Vec<(ObjectRef, Option<SeenBackend>)> {
        std::mem::take(&mut self.backends).into_iter().collect()
    }

    /// Changes that were not taken yet.
    pub(super) fn waiting(&self) -> usize {
        self.set.len() + self.removed.len()
    }

    /// Changes that a later one of the same object overtook before they were taken.
    pub(super) fn coalesced(&self) -> u64 {
        self.coalesced
    }

    /// Whether there is something to tell.
    pub(super) fn has_news(&self) -> bool {
        self.findings_changed || !self.addresses.is_empty() || !self.backends.is_empty() || !self.set.is_empty() || !self.removed.is_empty()
    }

    /// All findings, in order, if they differ from those that were last taken.
    pub(super) fn findings(&mut self) -> Option<Vec<Diagnostic>> {
        if !std::mem::take(&mut self.findings_changed) {
            return None;
        }
        let mut all: Vec<Diagnostic> = self.findings.values().flatten().cloned().collect();
        all.extend(self.sources.iter().filter_map(|(source, told)| trouble(source, told)));
        all.sort();
        Some(all)
    }
}

/// What is wrong with a source itself.
fn trouble(source: &Source, told: &Told) -> Option<Diagnostic> {
    let (api_version, _, plural) = source.resource.names();
    let place = match &source.namespace {
        Some(namespace) => ObjectRef::new(Kind::Namespace, "", namespace.clone()),
        None => ObjectRef::new(Kind::Other("Cluster".into()), "", "cluster"),
    };
    match &told.condition {
        Condition::Fresh | Condition::Listed => None,
        Condition::Absent if source.resource.is_optional() => None,
        Condition::Absent => {
            let message = format!("the cluster has no {plural} of {api_version}, so nothing is served");
            let help = "install the custom resource definitions: `haproxy-fleet crds | kubectl apply --server-side -f -`";
            Some(Diagnostic::error(&place, "", codes::NOT_FOUND, message, help))
        }
        Condition::Forbidden(_) if source.resource == Resource::Secrets && source.namespace.is_none() => {
            // then it is asked for namespace by namespace
            None
        }
        Condition::Forbidden(why) => {
            let message = format!("{plural} may not be read ({why}); what was read before stays");
            let help = if source.resource == Resource::Secrets {
                "bind the ClusterRole haproxy-fleet-secrets to the operator in this namespace, if its routes need certificates"
            } else {
                "bind the ClusterRole haproxy-fleet to the operator"
            };
            Some(Diagnostic::error(&place, "", codes::NOT_PERMITTED, message, help))
        }
        Condition::Failing(why) => {
            let message = format!("{plural} of {api_version} cannot be read ({why}); what was read before stays");
            Some(Diagnostic::warning(&place, "", codes::NOT_FOUND, message, "it is tried again; see whether the API server is well"))
        }
    }
}

#[cfg(test)]
mod tests;
