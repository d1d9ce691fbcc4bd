//! `Ingress` and `IngressClass`.

use super::Meta;
use crate::report::{Diagnostic, Kind, ObjectRef, codes};
use k8s_openapi::api::networking::v1 as full;
use std::sync::Arc;

/// The annotation that named an Ingress's class before `spec.ingressClassName` did.
pub const ANNOTATION_INGRESS_CLASS: &str = "kubernetes.io/ingress.class";
/// The annotation that makes an `IngressClass` the default one.
pub const ANNOTATION_DEFAULT_CLASS: &str = "ingressclass.kubernetes.io/is-default-class";

/// Rules, paths and hosts under `tls` that one Ingress may have of each.
const MAX_ENTRIES: usize = 5_000;

/// A set of rules that lead requests to Services.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ingress {
    /// Who it is.
    pub meta: Meta,
    /// `spec.ingressClassName`. The legacy annotation is in `meta`.
    pub class: Option<Arc<str>>,
    /// `spec.defaultBackend`
    pub default_backend: Option<IngressBackend>,
    /// `spec.rules`, in their order: positions are those of field paths.
    pub rules: Box<[IngressRule]>,
    /// `spec.tls`, in their order.
    pub tls: Box<[IngressTls]>,
}

/// One host and its paths.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IngressRule {
    /// The host as written; `None` (or empty): every host.
    pub host: Option<Box<str>>,
    /// `http.paths`; `None` when `http` is missing: everything for this host goes to the default backend.
    pub paths: Option<Box<[IngressPath]>>,
}

/// One path and where it leads.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IngressPath {
    /// The path as written.
    pub path: Option<Box<str>>,
    /// How it is compared.
    pub path_type: PathType,
    /// Where it leads.
    pub backend: IngressBackend,
}

/// How a path is compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PathType {
    /// `Exact`
    Exact,
    /// `Prefix`, element by element
    Prefix,
    /// `ImplementationSpecific`
    ImplementationSpecific,
    /// Something that Kubernetes does not have.
    Other(Box<str>),
}

/// Where a path leads. One of the two is set in a valid object; the other cases are the translator's to tell.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct IngressBackend {
    /// A Service.
    pub service: Option<IngressService>,
    /// Some other object.
    pub resource: Option<Box<TypedRef>>,
}

/// A port of a Service of the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IngressService {
    /// Its name.
    pub name: Arc<str>,
    /// The port; `None` when neither number nor name is given.
    pub port: Option<PortRef>,
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PortRef {
    /// By number, as written: may be out of range.
    Number(i32),
    /// By name.
    Name(Box<str>),
    /// Both are given, which Kubernetes refuses.
    Both(i32, Box<str>),
}

/// Names an object of any kind in the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TypedRef {
    /// Its group; empty for the core.
    pub group: Box<str>,
    /// Its kind.
    pub kind: Box<str>,
    /// Its name.
    pub name: Box<str>,
}

/// Hosts and their certificate.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IngressTls {
    /// The hosts as written.
    pub hosts: Box<[Box<str>]>,
    /// Name of the Secret; `None`: TLS with the default certificate.
    pub secret: Option<Arc<str>>,
}

/// What the `controller` of an `IngressClass` of ours starts with.
pub const CONTROLLER_PREFIX: &str = "haproxy-fleet.dev/";

/// Names a controller for Ingresses.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IngressClass {
    /// Who it is.
    pub meta: Meta,
    /// `spec.controller`
    pub controller: Option<Box<str>>,
}

impl IngressClass {
    /// Whether it names one of our controllers.
    pub fn is_ours(&self) -> bool {
        self.controller.as_ref().is_some_and(|controller| controller.starts_with(CONTROLLER_PREFIX))
    }

    /// Whether Ingresses that name no class belong to it.
    pub fn is_default(&self) -> bool {
        self.meta.annotations.get(ANNOTATION_DEFAULT_CLASS) == Some("true")
    }

    /// The lean form of `full`.
    pub fn from_full(meta: Meta, full: Option<full::IngressClassSpec>) -> Self {
        Self { meta, controller: full.and_then(|spec| spec.controller).map(Into::into) }
    }
}

impl Ingress {
    /// The class that it names. The legacy annotation comes before the field, as Kubernetes asks for.
    pub fn class_name(&self) -> Option<&str> {
        self.meta.annotations.get(ANNOTATION_INGRESS_CLASS).or(self.class.as_deref())
    }

    /// What is too much about it, if anything: an Ingress beyond a limit does not come in. It would cost more
    /// than one object may, and whatever is wrong in it would be told thousands of times.
    pub fn excess(&self) -> Option<Diagnostic> {
        let paths = self.rules.iter().flat_map(|rule| &rule.paths).map(|paths| paths.len()).sum();
        let secured = self.tls.iter().map(|tls| tls.hosts.len().max(1)).sum();
        let counts: [(&str, &str, usize); 3] =
            [("spec.rules", "rules", self.rules.len()), ("spec.rules", "paths", paths), ("spec.tls", "hosts with TLS", secured)];
        let (field, what, count) = counts.into_iter().find(|(_, _, count)| *count > MAX_ENTRIES)?;
        let object = ObjectRef::new(Kind::Ingress, self.meta.namespace.clone(), self.meta.name.clone());
        let message = format!("the Ingress has {count} {what}, more than {MAX_ENTRIES}; it is not used");
        Some(Diagnostic::error(&object, field, codes::TOO_LARGE, message, "share them out over several Ingresses"))
    }

    /// The lean form of `full`; what is odd about it goes to `diagnostics`.
    pub fn from_full(meta: Meta, full: Option<full::IngressSpec>, diagnostics: &mut Vec<Diagnostic>) -> Self {
        let Some(spec) = full else {
            let object = ObjectRef::new(Kind::Ingress, meta.namespace.clone(), meta.name.clone());
            diagnostics.push(Diagnostic::error(
                &object,
                "spec",
                codes::INVALID_FIELD,
                "the Ingress has no spec",
                "add rules or a default backend",
            ));
            return Self { meta, class: None, default_backend: None, rules: Box::default(), tls: Box::default() };
        };
        Self {
            meta,
            class: spec.ingress_class_name.map(Into::into),
            default_backend: spec.default_backend.map(backend),
            rules: spec.rules.unwrap_or_default().into_iter().map(rule).collect(),
            tls: spec.tls.unwrap_or_default().into_iter().map(tls).collect(),
        }
    }
}

fn rule(full: full::IngressRule) -> IngressRule {
    IngressRule {
        host: full.host.filter(|host| !host.is_empty()).map(Into::into),
        paths: full.http.map(|http| http.paths.into_iter().map(path).collect()),
    }
}

fn path(full: full::HTTPIngressPath) -> IngressPath {
    let path_type = match full.path_type.as_str() {
        "Exact" => PathType::Exact,
        "Prefix" => PathType::Prefix,
        "ImplementationSpecific" => PathType::ImplementationSpecific,
        other => PathType::Other(other.into()),
    };
    IngressPath { path: full.path.map(Into::into), path_type, backend: backend(full.backend) }
}

fn backend(full: full::IngressBackend) -> IngressBackend {
    IngressBackend {
        service: full.service.map(|service| IngressService {
            name: service.name.into(),
            port: service.port.and_then(|port| match (port.number, port.name.filter(|name| !name.is_empty())) {
                (Some(number), Some(name)) => Some(PortRef::Both(number, name.into())),
                (Some(number), None) => Some(PortRef::Number(number)),
                (None, Some(name)) => Some(PortRef::Name(name.into())),
                (None, None) => None,
            }),
        }),
        resource: full.resource.map(|resource| {
            Box::new(TypedRef {
                group: resource.api_group.unwrap_or_default().into(),
                kind: resource.kind.into(),
                name: resource.name.into(),
            })
        }),
    }
}

fn tls(full: full::IngressTLS) -> IngressTls {
    IngressTls {
        hosts: full.hosts.unwrap_or_default().into_iter().map(Into::into).collect(),
        secret: full.secret_name.filter(|name| !name.is_empty()).map(Into::into),
    }
}
