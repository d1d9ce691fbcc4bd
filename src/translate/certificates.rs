//! Secrets with certificates. Each is checked once per version, whoever refers to it.

use super::lookups::{CertificateState, Key};
use super::pem::{self, KeyType};
use crate::report::{Diagnostic, Kind, ObjectRef, codes};
use crate::world::World;

/// Reads and checks the Secret named `key`.
pub(super) fn read(world: &World, key: &Key) -> CertificateState {
    let Some(secret) = world.secret(&key.0, &key.1) else { return CertificateState::Missing };
    let data = |name| secret.get(name).map(crate::report::PrivateBytes::expose);
    match pem::check(data("tls.crt"), data("tls.key")) {
        Ok(checked) => CertificateState::Usable(checked),
        Err(flaw) => CertificateState::Unusable(Box::new(Diagnostic::error(
            &ObjectRef::new(Kind::Secret, key.0.clone(), key.1.clone()),
            format!("data[\"{}\"]", flaw.field),
            codes::INVALID_CERTIFICATE,
            format!("{}; the certificate is not served", flaw.message),
            flaw.help,
        ))),
    }
}

impl CertificateState {
    /// The part that fragments depend on: a renewal with a key of the same type does not change it.
    pub(super) fn key_type(&self) -> Option<KeyType> {
        match self {
            Self::Usable(checked) => Some(checked.key_type),
            Self::Missing | Self::Unusable(_) => None,
        }
    }

    pub(super) fn is_missing(&self) -> bool {
        matches!(self, Self::Missing)
    }
}
