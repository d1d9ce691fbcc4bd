//! Services: their ports, what stands behind them, and what is written on them about how to reach them.

use super::lookups::{Key, Records};
use super::{Options, annotations, backend_cr, names};
use crate::api::{self, PortRef, Protocol, ServiceKind, ServicePort};
use crate::model::{Policy, ServerOptions};
use crate::report::{Code, Diagnostic, Kind, ObjectRef, codes};
use crate::world::{Reference, World};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What fragments need to know of a Service.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ServiceRecord {
    /// What its routes depend on.
    pub routing: Arc<Routing>,
    /// The fields of the Service scope.
    pub policy: Arc<Policy>,
    /// Whether the Service asks, in the ways of Kubernetes, that requests stay in their zone.
    pub prefers_zone: bool,
    /// Where these come from beside the Service.
    pub sources: Vec<ObjectRef>,
    /// What was looked up for it.
    pub references: BTreeSet<Reference>,
    /// About the Service.
    pub diagnostics: Vec<Diagnostic>,
}

/// What the routes to a Service depend on.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Routing {
    /// What stands behind it.
    pub behind: Behind,
    /// Its ports.
    pub ports: Box<[ServicePort]>,
    /// Whether it answers with a redirect by itself.
    pub redirects: bool,
    /// What a matched prefix is replaced by.
    pub rewrite_prefix: Option<Box<str>>,
    /// Whether plain HTTP is sent to HTTPS.
    pub ssl_redirect: Option<bool>,
    /// With which code.
    pub ssl_redirect_code: Option<u16>,
}

/// What stands behind a Service.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Behind {
    /// There is no such Service.
    #[default]
    Missing,
    /// Endpoints.
    Endpoints,
    /// A DNS name.
    Name(Box<str>),
    /// Something wrong, of which the Service was told.
    Unusable,
}

/// Reads the Service named `key`. Backends that it names are looked up in `records`.
pub(super) fn read(world: &World, options: &Options, records: &mut Records, made: &mut BTreeSet<ObjectRef>, key: &Key) -> ServiceRecord {
    let Some(service) = world.service(&key.0, &key.1) else { return ServiceRecord::default() };
    let object = ObjectRef::new(Kind::Service, key.0.clone(), key.1.clone());
    let mut record = ServiceRecord::default();
    let native = annotations::read(&object, service.meta.annotations.iter(), &mut record.diagnostics);
    let mut policy = native.policy;
    if let Some(name) = native.backend {
        let backend = (key.0.clone(), name);
        let reference = ObjectRef::new(Kind::Backend, backend.0.clone(), backend.1.clone());
        record.references.insert(Reference::Object(reference.clone()));
        let wider = records.policies.entry(backend.clone()).or_insert_with(|| {
            made.insert(reference.clone());
            backend_cr::read(world, &backend)
        });
        if wider.exists {
            backend_cr::tell_overlap(&object, &policy, &wider.policy, &reference, &mut record.diagnostics);
            policy = policy.or(&wider.policy);
            record.sources.push(reference);
        } else {
            record.diagnostics.push(backend_cr::missing(&object, &reference));
        }
    }
    let behind = behind(service, &object, options, &mut record.diagnostics);
    record.routing = Arc::new(Routing {
        behind,
        ports: service.ports.clone(),
        redirects: policy.redirect.is_some(),
        rewrite_prefix: native.rewrite_prefix,
        ssl_redirect: native.ssl_redirect,
        ssl_redirect_code: native.ssl_redirect_code,
    });
    record.policy = policy.shared();
    record.prefers_zone = service.prefers_zone;
    record
}

fn behind(service: &api::Service, object: &ObjectRef, options: &Options, diagnostics: &mut Vec<Diagnostic>) -> Behind {
    let ServiceKind::ExternalName(name) = &service.kind else { return Behind::Endpoints };
    let mut refuse = |code: Code, message: String| {
        diagnostics.push(Diagnostic::error(object, "spec.externalName", code, message, "name a host by its DNS name"));
        Behind::Unusable
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    if let Ok(address) = name.parse::<std::net::IpAddr>() {
        return refuse(codes::ADDRESS_REFUSED, format!("{address} is an address, not a DNS name"));
    }
    match names::dns_name(name) {
        Err(wrong) => refuse(codes::INVALID_VALUE, format!("the name {} {wrong}", names::quoted(name))),
        Ok(name) if !options.allow_loopback && (name == "localhost" || name.ends_with(".localhost")) => {
            refuse(codes::ADDRESS_REFUSED, format!("{name} is the proxy itself"))
        }
        // `1.2.3` and the like are names to some resolvers and addresses to others.
        Ok(name) if name.rsplit('.').next().is_some_and(|label| label.bytes().all(|b| b.is_ascii_digit())) => {
            refuse(codes::ADDRESS_REFUSED, format!("{name} looks like an address"))
        }
        Ok(name) => Behind::Name(name.into()),
    }
}

/// What the servers behind the port `port` speak by its `appProtocol`; `None` for HTTP/1.1 without TLS.
///
/// The names are those of Kubernetes (Service, "application protocol") and of the IANA; in capitals they are what
/// some clouds write.
pub(super) fn spoken(routing: &Routing, port: u16) -> Option<ServerOptions> {
    let name = app_protocol(routing, port)?;
    if name == "kubernetes.io/h2c" {
        return Some(ServerOptions { h2c: Some(true), ..ServerOptions::default() });
    }
    let tls = name.eq_ignore_ascii_case("https") || name == "kubernetes.io/wss";
    tls.then(|| ServerOptions { ssl: Some(true), ..ServerOptions::default() })
}

/// The `appProtocol` of the port `port` if it says nothing about HTTP.
pub(super) fn unknown_protocol(routing: &Routing, port: u16) -> Option<&str> {
    let name = app_protocol(routing, port)?;
    let plain = name.eq_ignore_ascii_case("http") || name == "kubernetes.io/ws";
    (!plain && spoken(routing, port).is_none()).then_some(name)
}

fn app_protocol(routing: &Routing, port: u16) -> Option<&str> {
    routing.ports.iter().find(|p| p.port == port && p.protocol == Protocol::Tcp)?.app_protocol.as_deref()
}

/// Why a port cannot be used: which part of the reference is to blame, what is wrong, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub field: &'static str,
    pub code: Code,
    pub message: String,
    pub help: String,
}

fn refused(field: &'static str, code: Code, message: impl Into<String>, help: impl Into<String>) -> Refused {
    Refused { field, code, message: message.into(), help: help.into() }
}

/// The number of the port of the Service `name` that `port` means.
pub(super) fn port(name: &str, routing: &Routing, port: Option<&PortRef>) -> Result<u16, Refused> {
    let ports = || {
        let all: Vec<String> =
            routing.ports.iter().map(|p| p.name.as_ref().map_or_else(|| p.port.to_string(), |n| format!("{n} ({})", p.port))).collect();
        if all.is_empty() { "it has none".to_owned() } else { format!("it has {}", all.join(", ")) }
    };
    let found = match port {
        None => return Err(refused("port", codes::INVALID_FIELD, "the port is missing", "give port.number or port.name")),
        Some(PortRef::Both(..)) => {
            return Err(refused("port", codes::INVALID_FIELD, "the port has both a number and a name", "give one of the two"));
        }
        Some(PortRef::Number(number)) => {
            let Some(valid) = u16::try_from(*number).ok().filter(|n| *n != 0) else {
                return Err(refused(
                    "port.number",
                    codes::INVALID_VALUE,
                    format!("{number} is not a port number"),
                    "use a number from 1 to 65535",
                ));
            };
            // A DNS name needs no port list: any port may be asked for.
            if matches!(routing.behind, Behind::Name(_)) && routing.ports.is_empty() {
                return Ok(valid);
            }
            let tcp = routing.ports.iter().find(|p| p.port == valid && p.protocol == Protocol::Tcp);
            tcp.or_else(|| routing.ports.iter().find(|p| p.port == valid)).ok_or_else(|| {
                refused(
                    "port.number",
                    codes::NOT_FOUND,
                    format!("Service {name} has no port {number}; {}", ports()),
                    "use a port of the Service",
                )
            })?
        }
        Some(PortRef::Name(port)) => routing.ports.iter().find(|p| p.name.as_deref() == Some(port)).ok_or_else(|| {
            refused(
                "port.name",
                codes::NOT_FOUND,
                format!("Service {name} has no port named {}; {}", names::quoted(port), ports()),
                "use a port of the Service",
            )
        })?,
    };
    if found.protocol != Protocol::Tcp {
        return Err(refused("port", codes::UNSUPPORTED, format!("port {} of Service {name} is not TCP", found.port), "use a TCP port"));
    }
    Ok(found.port)
}
