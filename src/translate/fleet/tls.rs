//! `spec.tls`: what clients may speak, and who they are.

use super::Reader;
use crate::api::{CaRefKind, ClientCertificatePolicy, ClientTls, FleetTls, TlsProfile};
use crate::model::{ClientCertificates, TlsVersions};
use crate::report::{Kind, codes};
use crate::translate::{authorities, names};

/// The key of the object that holds certificates of authorities.
const KEY: &str = "ca.crt";

impl Reader<'_, '_> {
    pub(super) fn tls(&mut self, tls: &FleetTls) {
        self.state.common.tls = match tls.profile {
            TlsProfile::Old => TlsVersions::Old,
            TlsProfile::Intermediate => TlsVersions::Intermediate,
            TlsProfile::Modern => TlsVersions::Modern,
        };
        if let Some(wish) = &tls.client_tls {
            self.client_certificates(wish);
        }
    }

    /// Without authorities nobody can be verified: a certificate that is required is then one that nobody has.
    fn client_certificates(&mut self, wish: &ClientTls) {
        const FIELD: &str = "spec.tls.clientTLS.caRef.name";
        let required = wish.policy == ClientCertificatePolicy::Required;
        let outcome = if required { "nobody is served over HTTPS" } else { "clients are not asked for certificates" };
        self.state.common.client_certificates = Some(ClientCertificates { required, authorities: None });
        let name = wish.ca_ref.name.as_str();
        if names::object_name(name).is_some() {
            let message = format!("{} is not a name; {outcome}", names::quoted(name));
            self.error(FIELD, codes::INVALID_VALUE, message, "name a ConfigMap or Secret of the fleet's namespace");
            return;
        }
        let kind = if wish.ca_ref.kind == CaRefKind::Secret { Kind::Secret } else { Kind::ConfigMap };
        let source = self.look.note(kind, &(self.id.namespace.clone(), name.into()));
        match authorities::read(self.look.world, &source, KEY) {
            Ok(bundle) => {
                let id = authorities::id(&[&source.namespace, authorities::tag(&source.kind), &source.name, KEY]);
                self.state.common.client_certificates = Some(ClientCertificates { required, authorities: Some(id.clone()) });
                self.state.authorities = Some((id, bundle));
            }
            Err((code, message)) => {
                self.error(FIELD, code, format!("{message}; {outcome}"), "put PEM certificates into its key ca.crt, or correct the name");
            }
        }
    }
}
