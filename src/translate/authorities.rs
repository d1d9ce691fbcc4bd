//! CA certificates, in a `Secret` or `ConfigMap`.

use super::{names, pem};
use crate::model::{CaBundle, CaId};
use crate::report::{Code, Kind, ObjectRef, codes};
use crate::world::World;

/// The identity of those in `key` of `source`, or of whatever else these parts name.
pub(super) fn id(parts: &[&str]) -> CaId {
    let clean = |part: &&str| part.chars().map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '.' }).collect::<String>();
    CaId(parts.iter().map(clean).collect::<Vec<_>>().join("_").into())
}

/// What says in an identity which kind it is of.
pub(super) fn tag(kind: &Kind) -> &'static str {
    if *kind == Kind::Secret { "secret" } else { "configmap" }
}

/// The certificates in `key` of the Secret or ConfigMap `source`, or why they cannot be used.
pub(super) fn read(world: &World, source: &ObjectRef, key: &str) -> Result<CaBundle, (Code, String)> {
    let (namespace, name) = (&source.namespace, &source.name);
    let content: Option<Option<Vec<u8>>> = if source.kind == Kind::Secret {
        world.secret(namespace, name).map(|secret| secret.get(key).map(|bytes| bytes.expose().to_vec()))
    } else {
        world.config_map(namespace, name).map(|map| map.data.get(key).map(|text| text.as_bytes().to_vec()))
    };
    match content {
        None => Err((codes::NOT_FOUND, format!("there is no {source}"))),
        Some(None) => Err((codes::NOT_FOUND, format!("{source} has no key {}", names::quoted(key)))),
        Some(Some(pem)) => {
            let pem = pem::check_authorities(&pem);
            let pem = pem.map_err(|wrong| (codes::INVALID_CERTIFICATE, format!("{key} of {source} {wrong}")))?;
            Ok(CaBundle { pem: pem.into(), sources: [source.clone()].into() })
        }
    }
}
