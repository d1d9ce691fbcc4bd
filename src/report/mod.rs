//! What the pipeline says about source objects: references and diagnostics.
//!
//! A leaf: every room may use it, it uses none. User mistakes are [`Diagnostic`]s, never errors: they
//! name object, field and remedy, and whatever else was given keeps working.

pub mod codes;
mod located;

use std::fmt;
use std::sync::Arc;

pub use codes::Code;
pub use located::{Located, Location};

/// A number for one object in one life of it: for whoever has to tell objects apart, and to know them again, without
/// keeping their names.
pub fn object_number(kind: &str, namespace: &str, name: &str, uid: &str) -> u64 {
    let hash = blake3::hash(format!("{:?}", (kind, namespace, name, uid)).as_bytes());
    hash.as_bytes().iter().take(8).fold(0, |number, byte| (number << 8) | u64::from(*byte))
}

/// The kind of a source object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// `haproxy-fleet.dev` `IngressDeployment`
    IngressDeployment,
    /// `haproxy-fleet.dev` (or `ingress.v3.haproxy.org`) `Backend`
    Backend,
    /// `networking.k8s.io` `Ingress`
    Ingress,
    /// `networking.k8s.io` `IngressClass`
    IngressClass,
    /// `gateway.networking.k8s.io` `GatewayClass`
    GatewayClass,
    /// core `Namespace`
    Namespace,
    /// core `Service`
    Service,
    /// `discovery.k8s.io` `EndpointSlice`
    EndpointSlice,
    /// core `Secret`
    Secret,
    /// core `ConfigMap`
    ConfigMap,
    /// Something else, by the name it was given: an unknown kind, or a document that is not an object.
    Other(Arc<str>),
}

impl Kind {
    /// The name as in a manifest's `kind`.
    pub fn as_str(&self) -> &str {
        match self {
            Self::IngressDeployment => "IngressDeployment",
            Self::Backend => "Backend",
            Self::Ingress => "Ingress",
            Self::IngressClass => "IngressClass",
            Self::GatewayClass => "GatewayClass",
            Self::Namespace => "Namespace",
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
            Self::Other(name) => name,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Names one source object. `namespace` is empty for cluster-scoped kinds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectRef {
    /// The kind.
    pub kind: Kind,
    /// The namespace, empty for cluster-scoped kinds.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl ObjectRef {
    /// A reference to the object `namespace/name` of `kind`.
    pub fn new(kind: Kind, namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { kind, namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            write!(f, "{} {}", self.kind, self.name)
        } else {
            write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
        }
    }
}

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Part of the object has no effect.
    Error,
    /// It works, but probably not as meant.
    Warning,
    /// Worth knowing.
    Info,
}

impl Severity {
    /// As in `/status` and `lint -o json`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
        }
    }
}

/// A finding about one source object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Diagnostic {
    /// Which object.
    pub object: ObjectRef,
    /// The path of the field inside it, such as `spec.rules[0].http.paths[1].path`; empty for the whole
    /// object. Map keys with dots stand in brackets: `metadata.annotations["haproxy-fleet.dev/backend"]`.
    pub field: String,
    /// What kind of finding: stable, for filters.
    pub code: Code,
    /// How bad.
    pub severity: Severity,
    /// What is wrong: stable text, no times, no counters that move by themselves.
    pub message: String,
    /// What to do about it.
    pub help: String,
}

impl Diagnostic {
    /// An error about `field` of `object`.
    pub fn error(object: &ObjectRef, field: impl Into<String>, code: Code, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self::with(Severity::Error, object, field, code, message, help)
    }

    /// A warning about `field` of `object`.
    pub fn warning(object: &ObjectRef, field: impl Into<String>, code: Code, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self::with(Severity::Warning, object, field, code, message, help)
    }

    /// A remark about `field` of `object`.
    pub fn info(object: &ObjectRef, field: impl Into<String>, code: Code, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self::with(Severity::Info, object, field, code, message, help)
    }

    fn with(
        severity: Severity,
        object: &ObjectRef,
        field: impl Into<String>,
        code: Code,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Self {
        Self { object: object.clone(), field: field.into(), code, severity, message: message.into(), help: help.into() }
    }
}

/// Bytes that must not reach a log, a golden file or a terminal: private keys, passwords.
/// Equality and ordering compare the content; `Debug` shows its length only.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PrivateBytes(Arc<[u8]>);

impl PrivateBytes {
    /// Wraps `bytes`.
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Self {
        Self(bytes.into())
    }

    /// The content, for the few places that write it to HAProxy.
    pub fn expose(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for PrivateBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[redacted, {} bytes]", self.0.len())
    }
}

/// An error with what caused it, each said once.
pub fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let said = inner.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        cause = inner.source();
    }
    text
}

/// A number of things in words: `1 error`, `2 errors`.
pub fn counted<N: fmt::Display + PartialEq + From<u8> + Copy>(count: N, one: &str, many: &str) -> String {
    let what = if count == N::from(1) { one } else { many };
    format!("{count} {what}")
}

/// How many findings there are of each severity, in words; empty if there is none.
pub fn severities(count: impl Fn(Severity) -> usize) -> String {
    let named = [(Severity::Error, "error", "errors"), (Severity::Warning, "warning", "warnings"), (Severity::Info, "remark", "remarks")];
    let found = named.into_iter().map(|(severity, one, many)| (count(severity), one, many)).filter(|(count, ..)| *count > 0);
    found.map(|(count, one, many)| counted(count, one, many)).collect::<Vec<_>>().join(", ")
}
