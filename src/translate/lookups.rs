//! What fragments share: one record per object that they refer to, made when the first of them looks it up
//! and kept while one of them does. A record stands for a missing object too, so that its appearance is seen.

use super::backend_cr::{self, BackendPolicy};
use super::pem::Checked;
use super::services::{self, ServiceRecord};
use super::{Options, certificates};
use crate::model::Name;
use crate::report::{Diagnostic, Kind, ObjectRef};
use crate::world::{Reference, World};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Namespace and name.
pub(super) type Key = (Name, Name);

/// What became of a Secret that should hold a certificate.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CertificateState {
    /// There is no such Secret.
    Missing,
    /// It cannot be served; the Secret is told.
    Unusable(Box<Diagnostic>),
    /// It can.
    Usable(Checked),
}

/// The records.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Records {
    pub policies: BTreeMap<Key, BackendPolicy>,
    pub services: BTreeMap<Key, Arc<ServiceRecord>>,
    pub certificates: BTreeMap<Key, CertificateState>,
}

/// A reader of the world that remembers what was looked up.
pub(super) struct Lookups<'a> {
    pub world: &'a World,
    pub options: &'a Options,
    pub records: &'a mut Records,
    /// What was looked up, found or not.
    pub references: BTreeSet<Reference>,
    /// Services and Backends whose record was made on the way: their references are to be remembered.
    pub made: BTreeSet<ObjectRef>,
}

impl<'a> Lookups<'a> {
    pub(super) fn new(world: &'a World, options: &'a Options, records: &'a mut Records) -> Self {
        Self { world, options, records, references: BTreeSet::new(), made: BTreeSet::new() }
    }

    /// Remembers that `object` was looked at.
    pub(super) fn note(&mut self, kind: Kind, key: &Key) -> ObjectRef {
        let object = ObjectRef::new(kind, key.0.clone(), key.1.clone());
        self.references.insert(Reference::Object(object.clone()));
        object
    }

    /// What the `Backend` named `key` says.
    pub(super) fn policy(&mut self, key: &Key) -> &BackendPolicy {
        let object = self.note(Kind::Backend, key);
        let Self { world, records, made, .. } = self;
        records.policies.entry(key.clone()).or_insert_with(|| {
            made.insert(object);
            backend_cr::read(world, key)
        })
    }

    /// What the Service named `key` is.
    pub(super) fn service(&mut self, key: &Key) -> Arc<ServiceRecord> {
        let object = self.note(Kind::Service, key);
        if let Some(record) = self.records.services.get(key) {
            return record.clone();
        }
        let record = Arc::new(services::read(self.world, self.options, self.records, &mut self.made, key));
        self.made.insert(object);
        self.records.services.insert(key.clone(), record.clone());
        record
    }

    /// What became of the certificate in the Secret named `key`.
    pub(super) fn certificate(&mut self, key: &Key) -> &CertificateState {
        self.note(Kind::Secret, key);
        let world = self.world;
        self.records.certificates.entry(key.clone()).or_insert_with(|| certificates::read(world, key))
    }
}
