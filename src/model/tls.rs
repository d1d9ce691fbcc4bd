//! Certificates and who gets which.

use super::Name;
use crate::report::{ObjectRef, PrivateBytes};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Names a certificate: `NAMESPACE_SECRET`, which Kubernetes names make unambiguous (they hold no `_`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CertificateId(pub Name);

/// Names a CA bundle: `NAMESPACE_KIND_NAME_KEY` with `.` for whatever is not a letter, digit or dash.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CaId(pub Name);

/// Names a certificate list.
pub type ListName = Name;

/// A certificate with its chain and key, already checked to belong together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// Chain and key as PEM, leaf first, without blank lines (they end a payload of the runtime API).
    pub pem: PrivateBytes,
    /// The objects that it comes from.
    pub sources: Arc<[ObjectRef]>,
}

/// CA certificates as PEM, without blank lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaBundle {
    /// The certificates.
    pub pem: Arc<str>,
    /// The objects that they come from.
    pub sources: Arc<[ObjectRef]>,
}

/// Which names a certificate is served for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CertificateList {
    /// Names by certificate: valid DNS names in lower case, `*.` in front for a wildcard. One name may
    /// stand at two certificates of different key types: the client's hello decides.
    pub entries: BTreeMap<CertificateId, BTreeSet<Box<str>>>,
}
