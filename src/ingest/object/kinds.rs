//! Which kinds are read, and what their names may look like.

use crate::api;
use crate::report::{Diagnostic, Kind, ObjectRef, codes};

/// What is known about a kind.
pub(in crate::ingest) enum Known {
    /// It is read.
    Read(Kind),
    /// It is usual beside what is read, and nothing that we need.
    NotNeeded,
    /// It is of Gateway API, of which only the classes are read.
    GatewayApi,
    /// It is read in another version: this one.
    OtherVersion(&'static str),
    /// Nothing.
    Unknown,
}

const READ: [(&str, Kind); 11] = [
    ("v1", Kind::Service),
    ("v1", Kind::Secret),
    ("v1", Kind::ConfigMap),
    ("v1", Kind::Namespace),
    ("discovery.k8s.io/v1", Kind::EndpointSlice),
    ("networking.k8s.io/v1", Kind::Ingress),
    ("networking.k8s.io/v1", Kind::IngressClass),
    (api::GATEWAY_API_VERSION, Kind::GatewayClass),
    (api::API_VERSION, Kind::IngressDeployment),
    (api::API_VERSION, Kind::Backend),
    (api::HAPROXY_ORG_API_VERSION, Kind::Backend),
];

/// Groups of Kubernetes of which nothing is needed beyond what is read.
const USUAL_GROUPS: [&str; 12] = [
    "apps",
    "batch",
    "autoscaling",
    "policy",
    "rbac.authorization.k8s.io",
    "storage.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "events.k8s.io",
];

pub(in crate::ingest) fn known(api_version: &str, kind: &str) -> Known {
    if let Some((_, kind)) = READ.iter().find(|(version, read)| *version == api_version && read.as_str() == kind) {
        return Known::Read(kind.clone());
    }
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    let same_group = |version: &str| version.split_once('/').map_or("", |(group, _)| group) == group;
    let moved = |version: &str| kind == "Ingress" && group == "extensions" && version.starts_with("networking");
    if let Some((version, _)) = READ.iter().find(|(version, read)| read.as_str() == kind && (same_group(version) || moved(version))) {
        return Known::OtherVersion(version);
    }
    if same_group(api::GATEWAY_API_VERSION) {
        return Known::GatewayApi;
    }
    let old_backend = kind == "Backend" && group.ends_with(".haproxy.org");
    if old_backend {
        return Known::OtherVersion(api::API_VERSION);
    }
    let usual = USUAL_GROUPS.contains(&group)
        || api_version == "v1" && !kind.ends_with("List")
        || api_version == "networking.k8s.io/v1" && kind == "NetworkPolicy"
        || group == "kustomize.config.k8s.io";
    if usual { Known::NotNeeded } else { Known::Unknown }
}

pub(in crate::ingest) fn is_cluster_scoped(kind: &Kind) -> bool {
    matches!(kind, Kind::IngressClass | Kind::GatewayClass | Kind::Namespace)
}

/// What is wrong with a name, so that nothing odd becomes a key of the world.
pub(in crate::ingest) fn name_fault(object: &ObjectRef, namespace: &str, name: &str) -> Option<Diagnostic> {
    if name.is_empty() {
        let help = "give it a name; generateName works with the API server only";
        return Some(Diagnostic::error(object, "metadata.name", codes::INVALID_FIELD, "the object has no name", help));
    }
    let valid = if matches!(object.kind, Kind::Service | Kind::Namespace) { is_label(name) } else { is_subdomain(name) };
    if !valid {
        let help = "use lower-case letters, digits and dashes (and dots, but for Services and Namespaces)";
        return Some(Diagnostic::error(object, "metadata.name", codes::INVALID_VALUE, "the name is not one that Kubernetes takes", help));
    }
    if !namespace.is_empty() && !is_label(namespace) {
        let help = "use at most 63 lower-case letters, digits and dashes";
        let message = "the namespace is not one that Kubernetes takes";
        return Some(Diagnostic::error(object, "metadata.namespace", codes::INVALID_VALUE, message, help));
    }
    None
}

/// A DNS label (RFC 1123).
fn is_label(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    !text.is_empty() && text.len() <= 63 && text.bytes().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// A DNS name (RFC 1123).
fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}
