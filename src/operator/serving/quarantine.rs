//! Putting back a change that did harm, until somebody changes what it comes from.

use super::Fleet;
use crate::fleet::release::Trouble;
use crate::haproxy::bundle::{Bundle, Change, Resource, ResourceKey};
use crate::haproxy::plan::{Class, classify};
use crate::haproxy::revision::closure;
use crate::haproxy::version::{Capabilities, FLOOR};
use crate::model::FleetId;
use crate::report::{Diagnostic, Kind, ObjectRef, codes};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Objects that are told of one change.
const NAMED: usize = 50;
/// Where people say which revision a fleet is to go back to.
const FIELD: &str = "metadata.annotations[\"haproxy-fleet.dev/rollback\"]";

/// A change that is put back.
#[derive(Debug)]
pub(super) struct Quarantine {
    /// What is put back.
    pub(super) put_back: BTreeSet<ResourceKey>,
    /// What that and everything else was that changed since then.
    pub(super) former: BTreeMap<ResourceKey, Option<Arc<Resource>>>,
    /// What is to blame, with the hash of what it was to be.
    pub(super) culprits: BTreeMap<ResourceKey, u128>,
    /// Whom it comes from.
    pub(super) named: BTreeSet<ObjectRef>,
    /// What happened.
    pub(super) why: String,
}

impl Quarantine {
    /// Takes in what else changes in what is asked for meanwhile.
    fn follow(&mut self, changes: &[Change]) {
        for change in changes {
            let before = self.former.entry(change.key.clone()).or_insert_with(|| change.before.clone());
            // what came and went meanwhile was never there: whoever makes new backends all day leaves nothing behind
            if before.is_none() && change.after.is_none() && !self.put_back.contains(&change.key) {
                self.former.remove(&change.key);
            }
        }
    }

    /// Whether what is to blame is something else by now, or somebody touched what it comes from.
    pub(super) fn ends(&self, touched: &dyn Fn(&ObjectRef) -> bool, present: &Bundle) -> bool {
        let is_other = |(key, hash): (&ResourceKey, &u128)| hash_of(present, key) != *hash;
        self.culprits.iter().any(is_other) || self.named.iter().any(touched)
    }
}

fn hash_of(bundle: &Bundle, key: &ResourceKey) -> u128 {
    bundle.get(key).map_or(0, |resource| resource.hash())
}

impl Fleet {
    /// Puts back what did harm, and says what that changes in what is served. `None`: it is not known what was there before.
    pub(super) fn quarantine(&mut self, trouble: &Trouble, present: &Bundle) -> Option<Vec<Change>> {
        if self.overlay.record.is_some() {
            // what people went back to is theirs to change
            return None;
        }
        let generation = self.wave.as_ref()?.generation;
        let served = self.served.as_ref().unwrap_or(present);
        let eligible: BTreeSet<&ResourceKey> =
            self.moved.iter().filter(|(_, moves)| moves.is_open(generation)).map(|(key, _)| key).collect();
        let refused: BTreeSet<ResourceKey> = match trouble {
            Trouble::Refused(_, keys) => keys.iter().filter(|key| eligible.contains(key)).cloned().collect(),
            Trouble::Unhealthy(_) | Trouble::Unconfirmed(_) | Trouble::Unready(_) => BTreeSet::new(),
        };
        let culprits = match trouble {
            // who is to blame is known, and nobody else is
            Trouble::Refused(..) => refused,
            Trouble::Unhealthy(_) | Trouble::Unconfirmed(_) | Trouble::Unready(_) => self.reloading(&eligible, served),
        };
        if culprits.is_empty() {
            return None;
        }
        let former: BTreeMap<_, _> = self.moved.iter().map(|(key, moves)| (key.clone(), moves.first().cloned())).collect();
        // what only leads somewhere is not to blame for what is there
        let leads = |key: &&ResourceKey| !matches!(key, ResourceKey::MapEntries { .. } | ResourceKey::Servers(_));
        let to_blame: Vec<&ResourceKey> =
            if culprits.iter().any(|key| leads(&key)) { culprits.iter().filter(leads).collect() } else { culprits.iter().collect() };
        let named = to_blame.iter().flat_map(|key| sources(former.get(*key).and_then(Option::as_ref), served.get(key)));
        let named: BTreeSet<ObjectRef> = named.take(NAMED).collect();
        let why = told(trouble);
        tracing::error!(?culprits, why, "a change is put back");
        self.quarantines.push(Quarantine {
            culprits: to_blame.into_iter().map(|key| (key.clone(), hash_of(present, key))).collect(),
            put_back: culprits,
            former,
            named,
            why,
        });
        self.wave = None;
        Some(self.lay_anew(present))
    }

    /// Resources that are served as they were: what is in quarantine, and whatever else it takes so that nothing leads to
    /// something that is not there.
    pub(super) fn pins(&self, present: &Bundle) -> BTreeMap<ResourceKey, Option<Arc<Resource>>> {
        let put_back: BTreeSet<ResourceKey> = self.quarantines.iter().flat_map(|one| &one.put_back).cloned().collect();
        let own = self.quarantines.iter().flat_map(|one| one.former.iter().filter(|(key, _)| one.put_back.contains(*key)));
        let all = self.quarantines.iter().rev().flat_map(|one| &one.former);
        // of what several know something else, the oldest counts, but what is put back is as it was then
        let former = all.chain(own).map(|(key, before)| (key.clone(), before.clone())).collect();
        closure(&put_back, &former, present)
    }

    /// Takes `changes` of what is asked for in, which led to `present`: others may change what is as it was along with what is
    /// in quarantine, or take away what that leads to. Whether something else is to be as it was now.
    pub(super) fn keep_whole(&mut self, changes: &[Change], present: &Bundle) -> bool {
        let is_traced = changes.iter().any(super::is_traced);
        if self.quarantines.is_empty() || !is_traced {
            return false;
        }
        self.quarantines.iter_mut().for_each(|quarantine| quarantine.follow(changes));
        self.pins(present) != self.overlay.pins
    }

    /// Those of `keys` that came by a reload.
    fn reloading(&self, keys: &BTreeSet<&ResourceKey>, served: &Bundle) -> BTreeSet<ResourceKey> {
        let former = |(key, moves): (&ResourceKey, &super::Moves)| Change {
            key: key.clone(),
            before: served.get(key).cloned(),
            after: moves.first().cloned(),
        };
        let back: Vec<Change> = self.moved.iter().map(former).collect();
        let mut before = served.clone();
        before.apply(&back);
        let of_keys = back.into_iter().filter(|change| keys.contains(&change.key));
        let changes: Vec<Change> = of_keys.map(|change| Change { key: change.key, before: change.after, after: change.before }).collect();
        let capabilities = self.capabilities.unwrap_or_else(|| Capabilities::of(FLOOR));
        let classified = classify(&changes, &before, &capabilities);
        classified.into_iter().filter(|one| one.class == Class::Reload).map(|one| one.key).collect()
    }
}

/// The objects that a change of a resource comes from: new ones, if there are any, else the fleet if it is one of them.
fn sources(before: Option<&Arc<Resource>>, after: Option<&Arc<Resource>>) -> Vec<ObjectRef> {
    let of = |resource: Option<&Arc<Resource>>| resource.map(|resource| resource.sources.clone()).unwrap_or_default();
    let (before, after) = (of(before), of(after));
    let new: Vec<ObjectRef> = after.iter().filter(|object| !before.contains(object)).cloned().collect();
    if !new.is_empty() && !before.is_empty() {
        return new;
    }
    let all = if after.is_empty() { before } else { after };
    let fleet: Vec<ObjectRef> = all.iter().filter(|object| object.kind == Kind::IngressDeployment).cloned().collect();
    if fleet.is_empty() { all.to_vec() } else { fleet }
}

fn told(trouble: &Trouble) -> String {
    match trouble {
        Trouble::Refused(pod, _) => format!("HAProxy refused it in the pod {pod}, the first that got it"),
        Trouble::Unhealthy(how) => format!("pods that got it fare worse than the others: {how}"),
        Trouble::Unconfirmed(pod) => format!("the pod {pod} was the first to get it and did not confirm it"),
        Trouble::Unready(pod) => format!("the pod {pod} serves no more since it got it"),
    }
}

/// What there is to say about what `fleet` does not serve as asked.
pub(super) fn findings(id: &FleetId, fleet: &Fleet) -> Vec<Diagnostic> {
    let object = ObjectRef::new(Kind::IngressDeployment, id.namespace.clone(), id.name.clone());
    let mut found = Vec::new();
    for quarantine in &fleet.quarantines {
        for named in &quarantine.named {
            let message = format!("what this leads to is taken back: {}", quarantine.why);
            let help = "what served before still does; change the object and it is tried again, in one pod first";
            found.push(Diagnostic::error(named, "", codes::QUARANTINED, message, help));
        }
    }
    if let Some(trouble) = &fleet.stuck {
        let message = format!("a change that needs a reload goes to no further pods: {}", told(trouble));
        let help = "change what it comes from, or go back to a revision by the annotation haproxy-fleet.dev/rollback";
        found.push(Diagnostic::error(&object, "", codes::QUARANTINED, message, help));
    }
    if let Some(record) = &fleet.overlay.record {
        let message = format!("the fleet is pinned to revision {}: changes of routes and policies have no effect", record.number);
        let help = "remove the annotation to return to what is asked for; endpoints and certificates are those of now";
        found.push(Diagnostic::warning(&object, FIELD, codes::PINNED, message, help));
    }
    found.extend(fleet.refused.iter().chain(&fleet.unkept).cloned());
    found
}

/// That a revision is not kept because it would take so many `bytes`.
pub fn too_large(id: &FleetId, number: u64, bytes: usize) -> Diagnostic {
    let object = ObjectRef::new(Kind::IngressDeployment, id.namespace.clone(), id.name.clone());
    let message =
        format!("revision {number} takes {bytes} bytes once it is packed, and no Secret holds as much: it cannot be gone back to");
    Diagnostic::warning(&object, "", codes::TOO_LARGE, message, "split the fleet's routes over several fleets by spec.routeSelector")
}

/// That a revision cannot be gone back to.
pub fn no_way_back(id: &FleetId, said: &str, why: &str, help: impl Into<String>) -> Diagnostic {
    let object = ObjectRef::new(Kind::IngressDeployment, id.namespace.clone(), id.name.clone());
    Diagnostic::error(&object, FIELD, codes::NOT_APPLIED, format!("the fleet cannot go back to revision {said}: {why}"), help)
}
