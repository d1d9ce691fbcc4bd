//! What `render` and `local` put where only a cluster or a pod knows: a pod that is nobody's, but one that HAProxy loads, and an
//! operator that is nowhere.

use crate::agent::Pod;
use crate::api::HaproxyLine;
use crate::fleet::build::Context;
use crate::haproxy::tickets::ticket_keys;
use crate::model::Model;
use crate::report::PrivateBytes;
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls_pki_types::PrivatePkcs8KeyDer;
use std::net::{Ipv6Addr, SocketAddr};

/// Where pods answer health checks.
const HEALTH_PORT: u16 = 8404;

/// A PKCS #8 wrapper of a 32-byte Ed25519 seed (RFC 8410, section 7).
const ED25519_PREFIX: [u8; 16] = [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

/// A pod that listens on all addresses. Its default certificate is the same for everybody, so that rendering
/// twice gives the same bytes; no running fleet uses it, each pod makes its own.
pub(super) fn pod(model: &Model) -> Result<Pod, rcgen::Error> {
    let any = |port| SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    Ok(Pod {
        name: "render".to_owned(),
        binds: model.listeners.iter().map(|(name, listener)| (name.to_string(), vec![any(listener.pod_port)])).collect(),
        health: any(HEALTH_PORT),
        threads: None,
        max_connections: 10_000,
        default_certificate: PrivateBytes::new(certificate()?.into_bytes()),
        ticket_keys: PrivateBytes::new(ticket_keys(b"keys that guard nothing", "render")),
    })
}

/// The `uid` of an `IngressDeployment` that is in no cluster.
pub(crate) const UID: &str = "00000000-0000-0000-0000-000000000000";

/// The operator of a cluster that nobody has. Nothing in it is private.
pub(crate) fn context() -> Context {
    Context {
        operator_namespace: "haproxy-fleet".to_owned(),
        operator_image: "haproxy-fleet:placeholder".to_owned(),
        haproxy_images: [HaproxyLine::V3_4, HaproxyLine::V3_2].map(|line| (line, format!("haproxy:{}", line.as_str()))).into(),
        agents_service: "haproxy-fleet-agents".to_owned(),
        agents_port: 9443,
        ca_bundle: "the operator's CA certificates\n".to_owned(),
        ticket_keys: PrivateBytes::new(Vec::new()),
        ticket_keys_since: None,
        default_certificate: PrivateBytes::new(Vec::new()),
        upgrade_turn: false,
        traffic_distribution: true,
    }
}

fn certificate() -> Result<String, rcgen::Error> {
    let seed = blake3::hash(b"haproxy-fleet render: a key that guards nothing");
    let key = [ED25519_PREFIX.as_slice(), seed.as_bytes()].concat();
    let key = KeyPair::from_pkcs8_der_and_sign_algo(&PrivatePkcs8KeyDer::from(key), &PKCS_ED25519)?;
    let certificate = CertificateParams::new(vec!["placeholder.invalid".to_owned()])?.self_signed(&key)?;
    Ok(format!("{}{}", certificate.pem(), key.serialize_pem()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_placeholder_is_the_same_each_time() {
        assert_eq!(certificate().unwrap(), certificate().unwrap());
    }
}
