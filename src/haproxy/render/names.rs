//! Names of backends, files and map keys.

use super::Name;
use crate::model::{BackendId, HostMatch, Owner};

/// HAProxy's limit for a guid, which is a backend's name too.
const LONGEST: usize = 127;

/// Hex digits of the BLAKE3 of `text`.
pub(super) fn short_hash(text: &str, digits: usize) -> String {
    let mut hex = blake3::hash(text.as_bytes()).to_hex().to_string();
    hex.truncate(digits);
    hex
}

/// `text` if it can stand in a file's or backend's name, else a hash of it. A leading underscore is ours.
pub(in crate::haproxy) fn safe_name(text: &str) -> String {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    if !text.is_empty() && text.len() <= 200 && text.bytes().all(good) && !text.starts_with(['_', '.']) {
        text.to_owned()
    } else {
        format!("x-{}", short_hash(text, 16))
    }
}

/// One part of a backend's name: `_` separates parts, and Kubernetes' names hold none.
fn part(text: &str) -> String {
    if text.contains('_') { format!("x-{}", short_hash(text, 16)) } else { safe_name(text) }
}

/// `NAMESPACE_SERVICE_PORT[_OWNER[_PATHHASH]]_SUFFIX`.
pub(super) fn backend_name(id: &BackendId, suffix: &str) -> Name {
    let mut name = format!("{}_{}_{}", part(&id.namespace), part(&id.service), id.port);
    match &id.owner {
        Owner::Shared => {}
        Owner::Route { name: owner } => {
            name.push('_');
            name.push_str(&part(owner));
        }
        Owner::Rule { name: owner, path } => {
            name.push('_');
            name.push_str(&part(owner));
            name.push('_');
            name.push_str(&short_hash(path, 8));
        }
    }
    if name.len() + 1 + suffix.len() > LONGEST {
        let hash = short_hash(&format!("{id:?}"), 12);
        // ASCII only, by `part`.
        name.truncate(LONGEST - suffix.len() - hash.len() - 2);
        name.push('_');
        name.push_str(&hash);
    }
    format!("{name}_{suffix}").into()
}

/// Whose entries a host's are: also what stands before the path in their keys. `None` for what is no host name.
pub(super) fn host_key(host: &HostMatch) -> Option<String> {
    let (prefix, name) = match host {
        HostMatch::Exact(name) => ("", name),
        HostMatch::Wildcard(name) => ("*.", name),
        HostMatch::DeepWildcard(name) => ("**.", name),
        HostMatch::Any => return Some("*|".to_owned()),
    };
    let good = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-._".contains(&b);
    (!name.is_empty() && name.len() <= 253 && name.bytes().all(good)).then(|| format!("{prefix}{name}"))
}
