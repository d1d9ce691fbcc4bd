//! What is looked for, and who looked for it.

use crate::report::{Kind, ObjectRef};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Something that can be looked for in a world, whether it is there or not.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reference {
    /// One object.
    Object(ObjectRef),
    /// The endpoint slices of a Service.
    EndpointsOf {
        /// Their namespace.
        namespace: Arc<str>,
        /// The Service.
        service: Arc<str>,
    },
    /// All objects of a kind, such as every `IngressClass`. For kinds with few objects: every change of any of
    /// them answers it.
    AllOf(Kind),
}

/// A change of a world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The object that is new, different or gone.
    pub object: ObjectRef,
    /// What it answers, without repetition: the object, all of its kind, for an endpoint slice the endpoints of
    /// the Services that it belonged and belongs to.
    pub references: Vec<Reference>,
}

impl Changed {
    /// A change of `object`; `services` are those that it belonged and belongs to as an endpoint slice.
    pub(super) fn of(object: ObjectRef, services: Vec<Option<Arc<str>>>) -> Self {
        let mut references = vec![Reference::Object(object.clone()), Reference::AllOf(object.kind.clone())];
        for service in services.into_iter().flatten() {
            let reference = Reference::EndpointsOf { namespace: object.namespace.clone(), service };
            if !references.contains(&reference) {
                references.push(reference);
            }
        }
        Self { object, references }
    }
}

/// Who looked for what.
#[derive(Clone, Debug)]
pub struct ReverseIndex<D> {
    /// In order.
    looked_for: BTreeMap<D, Box<[Reference]>>,
    /// One tree of pairs, as most are looked for by one; none stands before the first of a reference.
    dependents: BTreeSet<(Reference, Option<D>)>,
}

impl<D> Default for ReverseIndex<D> {
    fn default() -> Self {
        Self { looked_for: BTreeMap::new(), dependents: BTreeSet::new() }
    }
}

impl<D: Ord + Clone> ReverseIndex<D> {
    /// Nobody looked for anything.
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on `dependent` has looked for `references`, and for nothing else. Returns what it looked for before
    /// and no longer does.
    pub fn set(&mut self, dependent: D, references: BTreeSet<Reference>) -> Vec<Reference> {
        let old = self.looked_for.remove(&dependent).unwrap_or_default();
        for reference in references.iter().filter(|reference| old.binary_search(reference).is_err()) {
            self.dependents.insert((reference.clone(), Some(dependent.clone())));
        }
        let mut gone = old.into_vec();
        gone.retain(|reference| !references.contains(reference));
        self.unlink(&gone, &dependent);
        if !references.is_empty() {
            self.looked_for.insert(dependent, references.into_iter().collect());
        }
        gone
    }

    /// From now on `dependent` has looked for nothing. Returns what it looked for before.
    pub fn remove(&mut self, dependent: &D) -> Vec<Reference> {
        let gone = self.looked_for.remove(dependent).unwrap_or_default().into_vec();
        self.unlink(&gone, dependent);
        gone
    }

    /// Who has looked for `reference`, in order.
    pub fn dependents(&self, reference: &Reference) -> impl Iterator<Item = &D> {
        let pairs = self.dependents.range((reference.clone(), None)..).take_while(move |(of, _)| of == reference);
        pairs.filter_map(|(_, dependent)| dependent.as_ref())
    }

    fn unlink(&mut self, references: &[Reference], dependent: &D) {
        for reference in references {
            self.dependents.remove(&(reference.clone(), Some(dependent.clone())));
        }
    }
}
