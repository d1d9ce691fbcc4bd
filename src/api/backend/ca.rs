//! Where the certificates are that servers are verified with.

/// The key that is looked at when none is named.
pub const DEFAULT_CA_KEY: &str = "ca.crt";

/// Where the certificates are that servers are verified with: what the text of `ssl_cafile` names. Files of
/// the proxy cannot be named; what they would hold is in a Secret or ConfigMap of the Backend's namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CaReference {
    /// The kind of object.
    pub kind: CaKind,
    /// Its name.
    pub name: Box<str>,
    /// The key in it.
    pub key: Box<str>,
}

/// The kind of object that holds CA certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CaKind {
    /// A Secret.
    Secret,
    /// A ConfigMap.
    ConfigMap,
}

impl CaReference {
    /// Reads `secret/NAME`, `configmap/NAME` (each with `/KEY` if it is not `ca.crt`) or the `NAME` of a Secret.
    /// `None` if `text` is none of these; a path that starts with a slash is never one.
    pub fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split('/').collect();
        let (kind, name, key) = match *parts.as_slice() {
            [name] => (CaKind::Secret, name, DEFAULT_CA_KEY),
            [kind, name] => (CaKind::parse(kind)?, name, DEFAULT_CA_KEY),
            [kind, name, key] => (CaKind::parse(kind)?, name, key),
            _ => return None,
        };
        if name.is_empty() || key.is_empty() {
            return None;
        }
        Some(Self { kind, name: name.into(), key: key.into() })
    }
}

impl CaKind {
    fn parse(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "secret" => Some(Self::Secret),
            "configmap" => Some(Self::ConfigMap),
            _ => None,
        }
    }
}
