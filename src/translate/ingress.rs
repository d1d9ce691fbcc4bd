//! One Ingress: its fragment of the model, before it meets those of others.

use super::annotations::{self, Native};
use super::class::Class;
use super::fleet::FleetState;
use super::hosts::{Age, Claim, HostClaims, TlsClaim};
use super::lookups::{Key, Lookups};
use super::services::{self, Behind, Refused, ServiceRecord};
use super::{backend_cr, names};
use crate::api::{Ingress, IngressBackend, IngressTls, PathType, PortRef, WildcardPolicy};
use crate::model::{BackendId, HostMatch, Name, Owner, PathMatch, PathRewrite, Policy, Target};
use crate::report::{Code, Diagnostic, Kind, ObjectRef, codes};
use crate::world::Reference;
use litemap::LiteMap;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Findings about one Ingress, at most.
const MAX_DIAGNOSTICS: usize = 100;

/// What a route wants of a backend, beside what is said at the Service and the fleet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Wish {
    /// The Service; `None`: the policy answers by itself.
    pub service: Option<Key>,
    /// The fields of the Ingress scope.
    pub policy: Arc<Policy>,
    /// Where these come from.
    pub sources: Vec<ObjectRef>,
}

/// What one Ingress contributes.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Fragment {
    pub object: ObjectRef,
    pub age: Age,
    // most have one host and one backend, for which a tree is a kilobyte of empty slots
    pub hosts: LiteMap<HostMatch, HostClaims>,
    pub backends: LiteMap<BackendId, Wish>,
    pub diagnostics: Vec<Diagnostic>,
}

/// What reading an Ingress gave: its part, what was looked up for it, and the records that were made on the way.
pub(super) type Read = (Fragment, BTreeSet<Reference>, BTreeSet<ObjectRef>);

/// Translates `ingress`, which is the fleet's.
pub(super) fn translate(ingress: &Ingress, fleet: &FleetState, mut look: Lookups<'_>) -> Read {
    let object = ObjectRef::new(Kind::Ingress, ingress.meta.namespace.clone(), ingress.meta.name.clone());
    let mut reader = Reader {
        namespace: ingress.meta.namespace.clone(),
        name: ingress.meta.name.clone(),
        native: Native::default(),
        policy: Policy::default().shared(),
        sources: vec![object.clone()],
        secured: BTreeSet::new(),
        https: fleet.settings.https_port.is_some(),
        wildcards: fleet.settings.wildcards,
        resolved: HashMap::new(),
        hosts: BTreeMap::new(),
        backends: BTreeMap::new(),
        diagnostics: Vec::new(),
        object,
        look: &mut look,
    };
    if reader.is_well_named() {
        Class::tell_difference(ingress, &reader.object, &mut reader.diagnostics);
        reader.scope(ingress);
        reader.read(ingress);
    }
    let Reader { object, mut hosts, backends, mut diagnostics, .. } = reader;
    diagnostics.sort();
    diagnostics.dedup();
    if diagnostics.len() > MAX_DIAGNOSTICS {
        let message = format!("{} more findings about this object are not listed", diagnostics.len() - MAX_DIAGNOSTICS);
        diagnostics.truncate(MAX_DIAGNOSTICS);
        diagnostics.push(Diagnostic::error(&object, "", codes::LIMIT_REACHED, message, "correct those that are listed first"));
    }
    for claims in hosts.values_mut() {
        claims.rules.shrink_to_fit();
    }
    // from vectors of the very length
    let hosts = LiteMap::from_sorted_store_unchecked(hosts.into_iter().collect());
    let backends = LiteMap::from_sorted_store_unchecked(backends.into_iter().collect());
    (Fragment { object, age: Age::of(&ingress.meta), hosts, backends, diagnostics }, look.references, look.made)
}

/// A backend as an Ingress names it, once looked up: the same for every path that names it.
#[derive(Clone)]
struct Resolved {
    result: Result<u16, Refused>,
    record: Arc<ServiceRecord>,
}

struct Reader<'r, 'w> {
    object: ObjectRef,
    namespace: Name,
    name: Name,
    native: Native,
    /// The Ingress scope: its native keys over its Backend.
    policy: Arc<Policy>,
    sources: Vec<ObjectRef>,
    /// Hosts under `tls`.
    secured: BTreeSet<HostMatch>,
    https: bool,
    wildcards: WildcardPolicy,
    resolved: HashMap<(Name, Option<PortRef>), Resolved>,
    hosts: BTreeMap<HostMatch, HostClaims>,
    backends: BTreeMap<BackendId, Wish>,
    diagnostics: Vec<Diagnostic>,
    look: &'r mut Lookups<'w>,
}

impl Reader<'_, '_> {
    fn error(&mut self, field: impl Into<String>, code: Code, message: impl Into<String>, help: impl Into<String>) {
        self.diagnostics.push(Diagnostic::error(&self.object, field, code, message, help));
    }

    /// Names become parts of identities and file names: from files they may be anything.
    fn is_well_named(&mut self) -> bool {
        let wrong = [("metadata.namespace", self.namespace.clone()), ("metadata.name", self.name.clone())];
        for (field, name) in wrong {
            if let Some(problem) = names::object_name(&name) {
                self.error(
                    field,
                    codes::INVALID_VALUE,
                    format!("the name {} {problem}", names::quoted(&name)),
                    "use lower-case letters, digits, dashes and dots",
                );
                return false;
            }
        }
        true
    }

    /// The Ingress scope of the policy.
    fn scope(&mut self, ingress: &Ingress) {
        self.native = annotations::read(&self.object, ingress.meta.annotations.iter(), &mut self.diagnostics);
        let mut policy = std::mem::take(&mut self.native.policy);
        if let Some(name) = self.native.backend.clone() {
            let key = (self.namespace.clone(), name);
            let reference = ObjectRef::new(Kind::Backend, key.0.clone(), key.1.clone());
            let wider = self.look.policy(&key);
            if wider.exists {
                backend_cr::tell_overlap(&self.object, &policy, &wider.policy, &reference, &mut self.diagnostics);
                policy = policy.or(&wider.policy);
                self.sources.push(reference);
            } else {
                self.diagnostics.push(backend_cr::missing(&self.object, &reference));
            }
        }
        self.policy = Arc::new(policy);
    }

    fn read(&mut self, ingress: &Ingress) {
        let hosts: Vec<Option<HostMatch>> = ingress
            .rules
            .iter()
            .enumerate()
            .map(|(i, rule)| self.rule_host(rule.host.as_deref().unwrap_or(""), &format!("spec.rules[{i}].host")))
            .collect();
        for (i, tls) in ingress.tls.iter().enumerate() {
            self.tls(i, tls, &hosts);
        }
        for (i, (rule, host)) in ingress.rules.iter().zip(&hosts).enumerate() {
            let Some(host) = host else { continue };
            for (j, path) in rule.paths.iter().flatten().enumerate() {
                let field = format!("spec.rules[{i}].http.paths[{j}]");
                if let Some(matched) = self.path(path.path.as_deref(), &path.path_type, &field) {
                    let claim = self.claim(host, matched, path.path.as_deref().unwrap_or("/"), &path.backend, &field, ".path", ".backend");
                    self.hosts.entry(host.clone()).or_default().rules.push(claim);
                }
            }
        }
        self.default_backend(ingress, &hosts);
        if ingress.rules.is_empty() && ingress.default_backend.is_none() && ingress.tls.is_empty() {
            self.diagnostics.push(Diagnostic::warning(
                &self.object,
                "spec",
                codes::INVALID_FIELD,
                "the Ingress has neither rules nor a default backend, so it does nothing",
                "add rules or a default backend",
            ));
        }
    }

    fn default_backend(&mut self, ingress: &Ingress, hosts: &[Option<HostMatch>]) {
        let Some(backend) = &ingress.default_backend else {
            for (i, (rule, host)) in ingress.rules.iter().zip(hosts).enumerate() {
                if rule.paths.as_ref().is_none_or(|paths| paths.is_empty()) && host.is_some() {
                    self.error(
                        format!("spec.rules[{i}]"),
                        codes::INVALID_FIELD,
                        "the rule has no paths and the Ingress no default backend",
                        "add paths or a default backend",
                    );
                }
            }
            return;
        };
        let root = || names::prefix("/");
        if ingress.rules.is_empty() {
            let claim = self.claim(&HostMatch::Any, root(), "/", backend, "spec", ".defaultBackend", ".defaultBackend");
            self.hosts.entry(HostMatch::Any).or_default().rules.push(claim);
            return;
        }
        let hosts: BTreeSet<&HostMatch> = hosts.iter().flatten().collect();
        for host in hosts {
            let claim = self.claim(host, root(), "/", backend, "spec", ".defaultBackend", ".defaultBackend");
            self.hosts.entry(host.clone()).or_default().fallback = Some(claim);
        }
    }

    /// The host of a rule. Wildcards of certificates are another matter: they claim no requests.
    fn rule_host(&mut self, text: &str, field: &str) -> Option<HostMatch> {
        let host = self.host(text, field)?;
        if self.wildcards == WildcardPolicy::Disallowed && matches!(host, HostMatch::Wildcard(_)) {
            let message = format!("the fleet lets no wildcard such as {} in", names::quoted(text));
            self.error(field, codes::NOT_PERMITTED, message, "name each host, or ask for routeAdmission.wildcardPolicy Allowed");
            return None;
        }
        Some(host)
    }

    fn host(&mut self, text: &str, field: &str) -> Option<HostMatch> {
        match names::host(text) {
            Ok(host) => Some(host),
            Err(wrong) => {
                self.error(
                    field,
                    codes::INVALID_VALUE,
                    format!("the host {} {wrong}", names::quoted(text)),
                    "use a DNS name, with *. in front for any one label",
                );
                None
            }
        }
    }

    fn path(&mut self, path: Option<&str>, kind: &PathType, field: &str) -> Option<PathMatch> {
        // Only ImplementationSpecific may leave the path out.
        let path = match (path, kind) {
            (None | Some(""), PathType::ImplementationSpecific) => "/",
            (path, _) => path.unwrap_or(""),
        };
        if let PathType::Other(other) = kind {
            self.error(
                format!("{field}.pathType"),
                codes::INVALID_VALUE,
                format!("{} is not a path type", names::quoted(other)),
                "use Exact, Prefix or ImplementationSpecific",
            );
            return None;
        }
        if let Err(wrong) = names::path(path) {
            self.error(
                format!("{field}.path"),
                codes::INVALID_VALUE,
                format!("the path {} {wrong}", names::quoted(path)),
                "use an absolute, encoded path such as /shop",
            );
            return None;
        }
        Some(if *kind == PathType::Exact { PathMatch::Exact(path.into()) } else { names::prefix(path) })
    }

    fn tls(&mut self, index: usize, tls: &IngressTls, rule_hosts: &[Option<HostMatch>]) {
        let field = format!("spec.tls[{index}]");
        let hosts: Vec<(HostMatch, String)> = if tls.hosts.is_empty() {
            let unique: BTreeSet<&HostMatch> = rule_hosts.iter().flatten().collect();
            unique.into_iter().map(|host| (host.clone(), format!("{field}.secretName"))).collect()
        } else {
            let mut hosts = Vec::with_capacity(tls.hosts.len());
            for (i, text) in tls.hosts.iter().enumerate() {
                let at = format!("{field}.hosts[{i}]");
                if text.is_empty() {
                    self.error(
                        at,
                        codes::INVALID_VALUE,
                        "the host is empty",
                        "use a DNS name, or leave hosts out to mean those of the rules",
                    );
                } else if let Some(host) = self.host(text, &at) {
                    hosts.push((host, at));
                }
            }
            hosts
        };
        self.secured.extend(hosts.iter().map(|(host, _)| host.clone()));
        let Some(secret) = &tls.secret else { return };
        let key_type = self.certificate(secret, &field);
        if !hosts.iter().any(|(host, _)| *host != HostMatch::Any) {
            self.diagnostics.push(Diagnostic::warning(
                &self.object,
                format!("{field}.hosts"),
                codes::INVALID_FIELD,
                "there is no host name to serve the certificate for",
                "name hosts here or in the rules; the fleet's tls.defaultCertificateRef is for all other names",
            ));
        }
        for (host, field) in hosts {
            if host != HostMatch::Any {
                let claim = TlsClaim { secret: secret.clone(), key_type, field: field.into() };
                self.hosts.entry(host).or_default().tls.push(claim);
            }
        }
    }

    /// The key type of the certificate, if it can be served.
    fn certificate(&mut self, secret: &Name, field: &str) -> Option<super::pem::KeyType> {
        let field = format!("{field}.secretName");
        if secret.contains('/') {
            self.error(
                field,
                codes::REF_NOT_PERMITTED,
                format!("{} names another namespace", names::quoted(secret)),
                "use a Secret of the Ingress' own namespace",
            );
            return None;
        }
        if let Some(wrong) = names::object_name(secret) {
            self.error(field, codes::INVALID_VALUE, format!("the name {} {wrong}", names::quoted(secret)), "name a Secret");
            return None;
        }
        let state = self.look.certificate(&(self.namespace.clone(), secret.clone()));
        let (missing, key_type) = (state.is_missing(), state.key_type());
        if missing {
            let message = format!("there is no Secret {}/{secret}; its hosts are served with the default certificate", self.namespace);
            self.error(field, codes::NOT_FOUND, message, "create the Secret, of type kubernetes.io/tls");
            return None;
        }
        key_type
    }

    #[allow(clippy::too_many_arguments)] // a path with where it stands
    fn claim(
        &mut self,
        host: &HostMatch,
        path: PathMatch,
        written: &str,
        backend: &IngressBackend,
        field: &str,
        at: &str,
        to: &str,
    ) -> Claim {
        let (target, record) = self.target(backend, &path, written, &format!("{field}{to}"));
        let https_redirect = self.https_redirect(host, &record);
        Claim { path, target, https_redirect, field: format!("{field}{at}").into() }
    }

    fn https_redirect(&self, host: &HostMatch, record: &ServiceRecord) -> Option<u16> {
        if !self.https {
            return None;
        }
        let wanted = record.routing.ssl_redirect.or(self.native.ssl_redirect);
        let secured = || self.secured.contains(host) || names::parent(host).is_some_and(|wide| self.secured.contains(&wide));
        let code = record.routing.ssl_redirect_code.or(self.native.ssl_redirect_code).unwrap_or(308);
        wanted.unwrap_or_else(secured).then_some(code)
    }

    /// Where a path leads, and the record of the Service behind it.
    fn target(&mut self, backend: &IngressBackend, path: &PathMatch, written: &str, field: &str) -> (Target, Arc<ServiceRecord>) {
        // A redirect needs no Service, so what is wrong with one does not matter.
        let redirects = self.policy.redirect.is_some();
        let told = self.diagnostics.len();
        let resolved = self.resolve(backend, field);
        if redirects {
            self.diagnostics.truncate(told);
        }
        match resolved {
            Some((name, port, record)) if !redirects || record.routing.redirects => {
                let id = self.want(name, port, path, written, &record);
                (Target::Backend(id), record)
            }
            other if redirects => {
                let id = BackendId {
                    namespace: self.namespace.clone(),
                    service: self.name.clone(),
                    port: 0,
                    owner: Owner::Route { name: self.name.clone() },
                };
                self.backends.insert(id.clone(), Wish { service: None, policy: self.policy.clone(), sources: self.sources.clone() });
                (Target::Backend(id), other.map(|(_, _, record)| record).unwrap_or_default())
            }
            _ => (Target::Unavailable, Arc::default()),
        }
    }

    fn resolve(&mut self, backend: &IngressBackend, field: &str) -> Option<(Name, u16, Arc<ServiceRecord>)> {
        let Some(service) = &backend.service else {
            match &backend.resource {
                Some(resource) => {
                    let what = names::quoted(&format!("{} {}", resource.kind, resource.name));
                    self.error(
                        format!("{field}.resource"),
                        codes::UNSUPPORTED,
                        format!("a resource ({what}) as backend is not supported"),
                        "use a service",
                    );
                }
                None => self.error(field, codes::INVALID_FIELD, "the backend names no service", "give service.name and service.port"),
            }
            return None;
        };
        if backend.resource.is_some() {
            self.error(
                format!("{field}.resource"),
                codes::INVALID_FIELD,
                "the backend names a service and a resource",
                "keep one of the two; the service is used",
            );
        }
        let key = (service.name.clone(), service.port.clone());
        let known = self.resolved.get(&key).cloned();
        let first = known.is_none();
        let resolved = known.unwrap_or_else(|| {
            let resolved = look_up(self.look, &(self.namespace.clone(), service.name.clone()), service.port.as_ref());
            self.resolved.insert(key, resolved.clone());
            resolved
        });
        match resolved.result {
            Ok(port) => {
                if let (true, Some(unknown)) = (first, services::unknown_protocol(&resolved.record.routing, port)) {
                    let message = format!(
                        "port {port} of Service {} has the appProtocol {}, which says nothing here: HTTP/1.1 is spoken",
                        service.name,
                        names::quoted(unknown)
                    );
                    self.diagnostics.push(Diagnostic::warning(
                        &self.object,
                        format!("{field}.service.port"),
                        codes::UNSUPPORTED,
                        message,
                        "use http, https, kubernetes.io/h2c, kubernetes.io/ws or kubernetes.io/wss, or leave it out",
                    ));
                }
                Some((service.name.clone(), port, resolved.record))
            }
            // The same mistake is told once, where it stands first.
            Err(_) if !first => None,
            Err(refused) => {
                let at = if refused.field.is_empty() { format!("{field}.service") } else { format!("{field}.service.{}", refused.field) };
                self.error(at, refused.code, refused.message, refused.help);
                None
            }
        }
    }

    /// The backend for a path to a port of a Service, with the owner of its policy.
    fn want(&mut self, service: Name, port: u16, path: &PathMatch, written: &str, record: &ServiceRecord) -> BackendId {
        let replacement = record.routing.rewrite_prefix.as_ref().or(self.native.rewrite_prefix.as_ref());
        let (owner, policy, sources) = if let Some(replacement) = replacement {
            let (PathMatch::Exact(matched) | PathMatch::Prefix(matched) | PathMatch::Regex(matched)) = path;
            let matched = if &**matched == "/" { "".into() } else { matched.clone() };
            let mut policy = (*self.policy).clone();
            policy.rewrite = Some(PathRewrite::Prefix { matched, replacement: replacement.clone() });
            (Owner::Rule { name: self.name.clone(), path: written.into() }, Arc::new(policy), self.sources.clone())
        } else if *self.policy == Policy::default() {
            // What all routes share must not depend on who was first: no policy, no sources.
            (Owner::Shared, Policy::default().shared(), Vec::new())
        } else {
            (Owner::Route { name: self.name.clone() }, self.policy.clone(), self.sources.clone())
        };
        let id = BackendId { namespace: self.namespace.clone(), service: service.clone(), port, owner };
        self.backends.entry(id.clone()).or_insert_with(|| Wish { service: Some((self.namespace.clone(), service)), policy, sources });
        id
    }
}

/// Looks a port of a Service up: what stands behind it, or why nothing does.
pub(super) fn look_up_port(look: &mut Lookups<'_>, service: &Key, port: Option<&PortRef>) -> (Result<u16, Refused>, Arc<ServiceRecord>) {
    let refused = |code, message: String, help: &str| Refused { field: "name", code, message, help: help.to_owned() };
    let (namespace, name) = service;
    if let Some(wrong) = names::object_name(name) {
        let message = format!("the name {} {wrong}", names::quoted(name));
        return (Err(refused(codes::INVALID_VALUE, message, "name a Service of the same namespace")), Arc::default());
    }
    let record = look.service(service);
    let result = match record.routing.behind {
        Behind::Missing => Err(refused(
            codes::NOT_FOUND,
            format!("there is no Service {namespace}/{name}; requests get 503"),
            "create the Service, or correct the name",
        )),
        Behind::Unusable => Err(refused(
            codes::NOT_FOUND,
            format!("Service {namespace}/{name} cannot be used; requests get 503"),
            "see what is said about the Service",
        )),
        Behind::Endpoints | Behind::Name(_) => services::port(name, &record.routing, port),
    };
    (result, record)
}

fn look_up(look: &mut Lookups<'_>, service: &Key, port: Option<&PortRef>) -> Resolved {
    let (result, record) = look_up_port(look, service, port);
    Resolved { result, record }
}
