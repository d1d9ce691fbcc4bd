//! One object, from wherever it comes: what it is, and what is wrong with it.
//!
//! Files and watches go through the same tree, so that a mistake is told in the same words in a review and in a
//! cluster.

pub(in crate::ingest) mod de;
pub(in crate::ingest) mod json;
pub(in crate::ingest) mod kinds;
pub(in crate::ingest) mod path;
pub(in crate::ingest) mod tree;

use crate::api::{
    Backend, ConfigMap, EndpointSlice, Ingress, IngressClass, IngressDeployment, Meta, Namespace, Secret, Service, backend::BackendGroup,
    crd,
};
use crate::report::{Diagnostic, Kind, ObjectRef, codes};
use crate::world::Object;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kinds::Known;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::sync::Arc;
use tree::{Content, Node};

/// What to do without Gateway API.
const INSTEAD_OF_GATEWAY_API: &str = "write an Ingress of a fleet's class; annotations and Backends say the rest";
/// Unknown fields that are told of one object.
const MAX_UNKNOWN_FIELDS: usize = 50;

/// What was found in the place of one object.
#[derive(Clone, Debug)]
pub(in crate::ingest) struct Read {
    /// What it says it is.
    pub(in crate::ingest) reference: ObjectRef,
    /// What it is; `None` if it cannot be used.
    pub(in crate::ingest) object: Option<Object>,
    /// What is wrong with it.
    pub(in crate::ingest) diagnostics: Vec<Diagnostic>,
}

/// Names an object in diagnostics, however odd its name is.
fn printable(text: &str) -> String {
    text.chars().take(253).map(|character| if character.is_control() { '\u{FFFD}' } else { character }).collect()
}

/// Reads `node` as one object. One of more than `limit` bytes is refused.
pub(in crate::ingest) fn read(node: &Node<'_>, limit: usize) -> Read {
    let text = |node: Option<&Node<'_>>| node.and_then(Node::text).unwrap_or_default().to_owned();
    let (api_version, kind) = (text(node.get("apiVersion")), text(node.get("kind")));
    let metadata = node.get("metadata");
    let known = kinds::known(&api_version, &kind);
    let report_kind = match &known {
        Known::Read(kind) => kind.clone(),
        _ if kind.is_empty() => Kind::Other("Document".into()),
        _ => Kind::Other(printable(&kind).into()),
    };
    let name = text(metadata.and_then(|metadata| metadata.get("name")));
    let mut namespace = text(metadata.and_then(|metadata| metadata.get("namespace")));
    if kinds::is_cluster_scoped(&report_kind) {
        namespace.clear();
    } else if namespace.is_empty() {
        "default".clone_into(&mut namespace);
    }
    let reference = ObjectRef::new(report_kind, printable(&namespace), printable(&name));
    let mut item = Read { reference: reference.clone(), object: None, diagnostics: Vec::new() };
    if let Err(diagnostic) = check(node, &reference, &known, &kind, &api_version) {
        item.diagnostics.push(*diagnostic);
        return item;
    }
    if let Some(diagnostic) = kinds::name_fault(&reference, &namespace, &name) {
        item.diagnostics.push(diagnostic);
        return item;
    }
    if node.size > limit {
        let message = format!("the object takes {} bytes; it is not used", node.size);
        let help = format!("Kubernetes itself takes no more than about 1,500,000 bytes; here the limit is {limit}: split it");
        item.diagnostics.push(Diagnostic::error(&reference, "", codes::TOO_LARGE, message, help));
        return item;
    }
    match typed(node, &reference, &mut item.diagnostics) {
        Ok(object) => item.object = object,
        Err(diagnostic) => item.diagnostics.push(*diagnostic),
    }
    item
}

/// Whether it is an object of a kind that is read.
fn check(node: &Node<'_>, reference: &ObjectRef, known: &Known, kind: &str, api_version: &str) -> Result<(), Box<Diagnostic>> {
    if !matches!(node.content, Content::Map { .. }) {
        let help = "each document is a map with apiVersion, kind and metadata";
        return Err(Box::new(Diagnostic::error(reference, "", codes::INVALID_FIELD, "this is no Kubernetes object", help)));
    }
    for (field, value) in [("apiVersion", api_version), ("kind", kind)] {
        if value.is_empty() {
            let message = format!("the object has no {field}");
            return Err(Box::new(Diagnostic::error(reference, field, codes::INVALID_FIELD, message, format!("add {field}"))));
        }
    }
    match known {
        Known::Read(_) => Ok(()),
        Known::NotNeeded => {
            let message = format!("{} objects are not needed; it is skipped", printable(kind));
            Err(Box::new(Diagnostic::info(reference, "kind", codes::UNKNOWN_KIND, message, "nothing needs to be done")))
        }
        Known::GatewayApi => {
            let message = format!("Gateway API is not served by this version; the {} is skipped", printable(kind));
            Err(Box::new(Diagnostic::warning(reference, "kind", codes::UNSUPPORTED, message, INSTEAD_OF_GATEWAY_API)))
        }
        Known::OtherVersion(expected) => {
            let message = format!("`{}` of {} is not read; the object is skipped", printable(api_version), printable(kind));
            Err(Box::new(Diagnostic::warning(
                reference,
                "apiVersion",
                codes::UNKNOWN_KIND,
                message,
                format!("write `apiVersion: {expected}`"),
            )))
        }
        Known::Unknown => {
            let message = format!("the kind {} of `{}` is not known; the object is skipped", printable(kind), printable(api_version));
            Err(Box::new(Diagnostic::warning(reference, "kind", codes::UNKNOWN_KIND, message, "check the spelling, or leave it out")))
        }
    }
}

/// Reads `node` as a `T`; fields that a `T` does not have become warnings.
fn full<T: DeserializeOwned>(node: &Node<'_>, reference: &ObjectRef, diagnostics: &mut Vec<Diagnostic>) -> Result<T, Box<Diagnostic>> {
    let (value, ignored) = de::read(node).map_err(|error| fault(reference, error))?;
    for (path, _) in ignored {
        unknown_field(reference, &path, diagnostics);
    }
    Ok(value)
}

fn unknown_field(reference: &ObjectRef, path: &str, diagnostics: &mut Vec<Diagnostic>) {
    // Types of Kubernetes know these; ours do not read them.
    let expected = matches!(path, "apiVersion" | "kind") || path == "status" || path.starts_with("status.");
    if !expected && diagnostics.len() < MAX_UNKNOWN_FIELDS {
        let message = format!("{} has no field `{path}`; it has no effect", reference.kind);
        diagnostics.push(Diagnostic::warning(reference, path, codes::UNKNOWN_FIELD, message, "check the spelling and the indentation"));
    }
}

fn fault(reference: &ObjectRef, error: de::Error) -> Box<Diagnostic> {
    let (path, message) = error.into_parts();
    let private = reference.kind == Kind::Secret && (path.starts_with("data") || path.starts_with("stringData"));
    let (message, help) = if private && path.starts_with("data") {
        ("the value is no base64; the object is not used".to_owned(), "encode it as base64, or move it to stringData")
    } else if private {
        ("the value is no text; the object is not used".to_owned(), "put it in quotes")
    } else {
        let help = if message.contains("expected a string") && !message.contains("sequence") && !message.contains("map") {
            "put the value in quotes"
        } else {
            "correct the field; until then the object is used as it was last good, or not at all"
        };
        (format!("{} cannot be read: {}", if path.is_empty() { "the object" } else { &*path }, printable(&message)), help)
    };
    Box::new(Diagnostic::error(reference, path, codes::INVALID_FIELD, message, help))
}

fn typed(node: &Node<'_>, reference: &ObjectRef, diagnostics: &mut Vec<Diagnostic>) -> Result<Option<Object>, Box<Diagnostic>> {
    use k8s_openapi::api::{core::v1 as core, discovery::v1 as discovery, networking::v1 as networking};
    let meta = |full: ObjectMeta| Meta::from_full(full, reference.namespace.clone(), reference.name.clone());
    Ok(Some(match reference.kind {
        Kind::Ingress => {
            let full: networking::Ingress = full(node, reference, diagnostics)?;
            let ingress = Ingress::from_full(meta(full.metadata), full.spec, diagnostics);
            if let Some(excess) = ingress.excess() {
                return Err(Box::new(excess));
            }
            ingress.into()
        }
        Kind::IngressClass => {
            let full: networking::IngressClass = full(node, reference, diagnostics)?;
            IngressClass::from_full(meta(full.metadata), full.spec).into()
        }
        Kind::Service => {
            let full: core::Service = full(node, reference, diagnostics)?;
            Service::from_full(meta(full.metadata), full.spec, diagnostics).into()
        }
        Kind::EndpointSlice => {
            let mut full: discovery::EndpointSlice = full(node, reference, diagnostics)?;
            EndpointSlice::from_full(meta(std::mem::take(&mut full.metadata)), full, diagnostics).into()
        }
        Kind::Secret => {
            let mut full: core::Secret = full(node, reference, diagnostics)?;
            Secret::from_full(meta(std::mem::take(&mut full.metadata)), full).into()
        }
        Kind::ConfigMap => {
            let mut full: core::ConfigMap = full(node, reference, diagnostics)?;
            ConfigMap::from_full(meta(std::mem::take(&mut full.metadata)), full).into()
        }
        Kind::Namespace => {
            let full: core::Namespace = full(node, reference, diagnostics)?;
            Namespace { meta: meta(full.metadata) }.into()
        }
        Kind::IngressDeployment => {
            let full: crd::IngressDeploymentResource = full(node, reference, diagnostics)?;
            let violations = full.spec.violations(reference);
            if !violations.is_empty() {
                // As on the API server, it does not come in.
                diagnostics.extend(violations);
                return Ok(None);
            }
            IngressDeployment { meta: meta(full.metadata), spec: full.spec }.into()
        }
        Kind::Backend => backend(node, reference, diagnostics)?.into(),
        Kind::GatewayClass => {
            diagnostics.extend(gateway_class(node, reference));
            return Ok(None);
        }
        Kind::Other(_) => return Ok(None),
    }))
}

/// What a class that waits for us has to be told: nobody would ever accept its Gateways.
fn gateway_class(node: &Node<'_>, reference: &ObjectRef) -> Option<Diagnostic> {
    let controller = node.get("spec").and_then(|spec| spec.get("controllerName")).and_then(Node::text)?;
    if !controller.starts_with(crate::api::CONTROLLER_PREFIX) {
        return None;
    }
    let message = format!("the controller {} serves no Gateways in this version", printable(controller));
    Some(Diagnostic::warning(reference, "spec.controllerName", codes::UNSUPPORTED, message, INSTEAD_OF_GATEWAY_API))
}

fn backend(node: &Node<'_>, reference: &ObjectRef, diagnostics: &mut Vec<Diagnostic>) -> Result<Backend, Box<Diagnostic>> {
    let (full, ignored) = de::read::<crd::BackendResource>(node).map_err(|error| fault(reference, error))?;
    let mut unsupported = BTreeMap::new();
    for (path, node) in ignored {
        match path.strip_prefix("spec.").or_else(|| path.starts_with("spec[").then(|| &path[4..])) {
            Some(field) if crate::api::backend::is_known(field) => {
                let value = de::read(node).map(|(value, _)| value).unwrap_or_default();
                unsupported.insert(field.into(), value);
            }
            _ => unknown_field(reference, &path, diagnostics),
        }
    }
    let ours = node.get("apiVersion").and_then(Node::text) == Some(crate::api::API_VERSION);
    let group = if ours { BackendGroup::HaproxyFleet } else { BackendGroup::HaproxyOrg };
    let meta = Meta::from_full(full.metadata, Arc::clone(&reference.namespace), Arc::clone(&reference.name));
    Ok(Backend { meta, group, spec: full.spec, unsupported })
}
