//! How TLS ends at a fleet.

use super::LocalRef;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How TLS ends at the fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetTls {
    /// A TLS Secret of the fleet's namespace: the certificate for names that no Ingress has one for. A
    /// self-signed one if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_certificate_ref: Option<LocalRef>,
    /// Which versions and ciphers clients may use, after Mozilla's recommendations. Modern: TLS 1.3. Intermediate:
    /// TLS 1.2 with forward secrecy, too. Old: TLS 1.0 and ciphers of its time, too, for clients that are beyond help.
    #[serde(default)]
    pub profile: TlsProfile,
    /// Whether clients show certificates. Servers are told the subject (RFC 2253) in X-SSL-Client-DN and the SHA-256
    /// fingerprint in X-SSL-Client-SHA256; what clients say in headers of X-SSL-Client- is dropped. Plain HTTP is served
    /// as before: redirect it to HTTPS. Connections that are open when this changes go on as they began.
    #[serde(default, rename = "clientTLS", skip_serializing_if = "Option::is_none")]
    pub client_tls: Option<ClientTls>,
}

/// Which versions and ciphers clients may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TlsProfile {
    /// TLS 1.0 and newer.
    Old,
    /// TLS 1.2 and newer, with forward secrecy.
    #[default]
    Intermediate,
    /// TLS 1.3.
    Modern,
}

/// Whether clients show certificates, and which ones are good.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientTls {
    /// Required: a client without a good certificate has no connection. Optional: it may come without one, but not with a
    /// bad one.
    pub policy: ClientCertificatePolicy,
    /// The certificates of authorities that good ones come from. If they cannot be had, Required serves nobody over HTTPS
    /// and Optional asks for no certificates.
    pub ca_ref: CaRef,
}

/// Whether a client may come without a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ClientCertificatePolicy {
    /// It may not.
    Required,
    /// It may.
    Optional,
}

/// Names an object of the fleet's namespace whose key `ca.crt` holds certificates of authorities as PEM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CaRef {
    /// Its kind.
    #[serde(default)]
    pub kind: CaRefKind,
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// What holds certificates of authorities.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum CaRefKind {
    /// A ConfigMap.
    #[default]
    ConfigMap,
    /// A Secret.
    Secret,
}
