//! The fleet itself: what its `IngressDeployment` says about everything.

mod http;
mod logging;
mod tls;
mod tuning;

use super::class::Class;
use super::ingress::{Wish, look_up_port};
use super::lookups::{Key, Lookups};
use super::names;
use crate::api::{ConfigMap, FleetTls, IngressDeployment, NamespaceOwnership, PortRef, PublishingType, WildcardPolicy, ZoneAwareness};
use crate::model::{BackendId, CaBundle, CaId, FleetId, Listener, ListenerName, Model, Name, Owner, Policy, Protocol, Settings, Target};
use crate::report::{Code, Diagnostic, Kind, ObjectRef, codes};
use crate::world::Reference;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The listener for plain HTTP.
pub const HTTP: &str = "http";
/// The listener for HTTP over TLS.
pub const HTTPS: &str = "https";
/// The table that both look requests up in.
pub const TABLE: &str = "ingress";
/// The certificate list of the listener for HTTPS.
pub const CERTIFICATES: &str = "ingress";
/// The ports that pods listen on: not privileged.
const POD_HTTP: u16 = 8080;
const POD_HTTPS: u16 = 8443;

/// What a fleet's `IngressDeployment` says about its listeners and hosts. Sizes and releases are none of it: a
/// fleet that grows is not translated anew.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FleetSettings {
    /// The port for plain HTTP.
    pub http_port: u16,
    /// The port for HTTPS, if it is served.
    pub https_port: Option<u16>,
    /// Whether what connects speaks the PROXY protocol.
    pub proxy_protocol: bool,
    /// Whether several namespaces may have routes for one host.
    pub ownership: NamespaceOwnership,
    /// Whether rules may have wildcards for hosts.
    pub wildcards: WildcardPolicy,
}

/// All that every fragment depends on. When it changes, everything is done anew.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FleetState {
    /// `None`: there is no such fleet.
    pub object: Option<ObjectRef>,
    pub settings: FleetSettings,
    /// What listeners do with every request. No fragment depends on it.
    pub common: Settings,
    /// The CA certificates that clients are verified with.
    pub authorities: Option<(CaId, CaBundle)>,
    pub class: Class,
    /// Whether pods keep to the endpoints of their zone.
    pub zones: ZoneAwareness,
    /// The fleet scope.
    pub policy: Arc<Policy>,
    /// The Backend that it comes from.
    pub policy_source: Option<ObjectRef>,
    /// The Secret with the default certificate, if it can be served.
    pub default_certificate: Option<Key>,
    /// Where requests go that nobody has a rule for.
    pub last: Option<(Target, Option<(BackendId, Wish)>)>,
    pub diagnostics: Vec<Diagnostic>,
}

/// What was read, what was looked up for it, and which records were made on the way.
pub(super) type Read = (FleetState, BTreeSet<Reference>, BTreeSet<ObjectRef>);

/// Reads the fleet `id`.
pub(super) fn read(id: &FleetId, mut look: Lookups<'_>) -> Read {
    let object = look.note(Kind::IngressDeployment, &(id.namespace.clone(), id.name.clone()));
    let mut state = FleetState::default();
    if let Some(fleet) = look.world.ingress_deployment(&id.namespace, &id.name).cloned() {
        let mut reader = Reader { id, object: object.clone(), state: &mut state, look: &mut look };
        reader.settings(&fleet);
        reader.scope(&fleet);
        reader.state.zones = fleet.spec.zone_awareness.clone();
        reader.http(&fleet.spec.http);
        reader.state.common.metrics = fleet.spec.metrics.as_ref().is_some_and(|metrics| metrics.enabled);
        // those in front of ports of nodes do not hear from Kubernetes that a pod ends
        reader.state.common.unready_while_closing = fleet.spec.publishing.kind == PublishingType::HostNetwork;
        if let Some(logging) = &fleet.spec.logging {
            reader.logging(logging);
        }
        if let Some(tuning) = &fleet.spec.tuning {
            reader.tuning(tuning);
        }
        reader.drain(&fleet.spec.drain);
        reader.tls(fleet.spec.tls.as_ref().unwrap_or(&FleetTls::default()));
        reader.default_certificate(&fleet);
        reader.default_backend(&fleet);
        state.object = Some(object);
        state.diagnostics.sort();
    }
    (state, look.references, look.made)
}

struct Reader<'r, 'w> {
    id: &'r FleetId,
    object: ObjectRef,
    state: &'r mut FleetState,
    look: &'r mut Lookups<'w>,
}

impl Reader<'_, '_> {
    fn error(&mut self, field: &str, code: Code, message: impl Into<String>, help: &str) {
        self.state.diagnostics.push(Diagnostic::error(&self.object, field, code, message, help));
    }

    /// Adds `policy` below the fleet scope: what holds where no Backend says otherwise.
    fn widest(&mut self, policy: &Policy) {
        if *policy != Policy::default() {
            self.state.policy = Arc::new((*self.state.policy).clone().or(policy));
        }
    }

    fn settings(&mut self, fleet: &IngressDeployment) {
        let spec = &fleet.spec;
        self.state.class = Class::read(&spec.ingress_class_name, &self.object, self.look, &mut self.state.diagnostics);
        let ports = [("spec.ports.http", spec.ports.http, 80), ("spec.ports.https", spec.ports.https, 443)];
        let [http, https] = ports.map(|(field, port, default)| {
            u16::try_from(port).ok().filter(|port| *port != 0).unwrap_or_else(|| {
                self.error(
                    field,
                    codes::INVALID_VALUE,
                    format!("{port} is not a port number; {default} is used"),
                    "use a number from 1 to 65535",
                );
                default
            })
        });
        let https_port = if http == https {
            self.error(
                "spec.ports",
                codes::CONFLICT,
                format!("http and https have the same port {http}; HTTPS is not served"),
                "use two ports",
            );
            None
        } else {
            Some(https)
        };
        self.state.settings = FleetSettings {
            http_port: http,
            https_port,
            proxy_protocol: spec.publishing.proxy_protocol,
            ownership: spec.route_admission.namespace_ownership,
            wildcards: spec.route_admission.wildcard_policy,
        };
    }

    /// The fleet scope: `spec.backendRef`, else the key `cr-backend` of the ConfigMap.
    fn scope(&mut self, fleet: &IngressDeployment) {
        let by_map = fleet.spec.config_map_ref.as_ref().and_then(|reference| self.by_config_map(&reference.name));
        let (field, name) = match (&fleet.spec.backend_ref, by_map) {
            (Some(reference), by_map) => {
                if by_map.is_some_and(|name| name != reference.name) {
                    let help = "remove one of the two";
                    let message = "backendRef and the key cr-backend of the ConfigMap name different Backends; backendRef is used";
                    self.state.diagnostics.push(Diagnostic::warning(&self.object, "spec.configMapRef", codes::CONFLICT, message, help));
                }
                ("spec.backendRef.name", reference.name.clone())
            }
            (None, Some(name)) => ("spec.configMapRef.name", name),
            (None, None) => return,
        };
        if names::object_name(&name).is_some() {
            self.error(
                field,
                codes::INVALID_VALUE,
                format!("{} is not a name", names::quoted(&name)),
                "name a Backend of the fleet's namespace",
            );
            return;
        }
        let key = (self.id.namespace.clone(), Name::from(name));
        let record = self.look.policy(&key);
        if record.exists {
            self.state.policy = record.policy.clone();
            self.state.policy_source = Some(ObjectRef::new(Kind::Backend, key.0, key.1));
        } else {
            self.error(
                field,
                codes::NOT_FOUND,
                format!("there is no Backend {}/{}", key.0, key.1),
                "create it in the fleet's namespace, or correct the name",
            );
        }
    }

    /// The ConfigMap of the fleet's namespace that `field` names.
    fn config_map(&mut self, field: &str, name: &str) -> Option<(ObjectRef, Arc<ConfigMap>)> {
        let object = self.look.note(Kind::ConfigMap, &(self.id.namespace.clone(), name.into()));
        let map = self.look.world.config_map(&self.id.namespace, name).cloned();
        if map.is_none() {
            self.error(field, codes::NOT_FOUND, format!("there is no {object}"), "create it in the fleet's namespace, or correct the name");
        }
        Some((object, map?))
    }

    fn by_config_map(&mut self, name: &str) -> Option<String> {
        const FIELD: &str = "spec.configMapRef.name";
        let (object, map) = self.config_map(FIELD, name)?;
        for (key, _) in map.data.iter().filter(|(key, _)| *key != "cr-backend") {
            let (message, help) = (format!("the key {} has no effect", names::quoted(key)), "the only known key is cr-backend");
            self.state.diagnostics.push(Diagnostic::warning(
                &object,
                format!("data[{}]", names::quoted(key)),
                codes::UNKNOWN_FIELD,
                message,
                help,
            ));
        }
        let value = map.data.get("cr-backend")?.trim();
        // Other controllers write NAMESPACE/NAME there.
        match value.split_once('/') {
            None => Some(value.to_owned()),
            Some((namespace, name)) if namespace == &*self.id.namespace => Some(name.to_owned()),
            Some(_) => {
                let message = format!("{} names another namespace", names::quoted(value));
                let help = "name a Backend of the fleet's namespace";
                self.state.diagnostics.push(Diagnostic::error(&object, "data[\"cr-backend\"]", codes::REF_NOT_PERMITTED, message, help));
                None
            }
        }
    }

    fn default_certificate(&mut self, fleet: &IngressDeployment) {
        const FIELD: &str = "spec.tls.defaultCertificateRef.name";
        let Some(reference) = fleet.spec.tls.as_ref().and_then(|tls| tls.default_certificate_ref.as_ref()) else { return };
        if names::object_name(&reference.name).is_some() {
            let message = format!("{} is not a name", names::quoted(&reference.name));
            self.error(FIELD, codes::INVALID_VALUE, message, "name a Secret of the fleet's namespace");
            return;
        }
        let key = (self.id.namespace.clone(), Name::from(reference.name.as_str()));
        let state = self.look.certificate(&key);
        let (missing, usable) = (state.is_missing(), state.key_type().is_some());
        if missing {
            let message = format!("there is no Secret {}/{}; a self-signed certificate is served", key.0, key.1);
            self.error(FIELD, codes::NOT_FOUND, message, "create it in the fleet's namespace, or correct the name");
        } else if usable {
            self.state.default_certificate = Some(key);
        }
    }

    fn default_backend(&mut self, fleet: &IngressDeployment) {
        let Some(backend) = &fleet.spec.default_backend else { return };
        let service = (self.id.namespace.clone(), Name::from(backend.service.name.as_str()));
        let port = match (backend.service.port.number, backend.service.port.name.as_deref()) {
            (Some(number), Some(name)) => Some(PortRef::Both(number, name.into())),
            (Some(number), None) => Some(PortRef::Number(number)),
            (None, Some(name)) => Some(PortRef::Name(name.into())),
            (None, None) => None,
        };
        match look_up_port(self.look, &service, port.as_ref()).0 {
            Ok(port) => {
                let id = BackendId { namespace: service.0.clone(), service: service.1.clone(), port, owner: Owner::Shared };
                let wish = Wish { service: Some(service), ..Wish::default() };
                self.state.last = Some((Target::Backend(id.clone()), Some((id, wish))));
            }
            Err(refused) => {
                self.error(&format!("spec.defaultBackend.service.{}", refused.field), refused.code, refused.message, &refused.help);
                self.state.last = Some((Target::Unavailable, None));
            }
        }
    }
}

/// Puts the listeners of `settings` into `model`.
pub(super) fn listeners(settings: &FleetSettings, model: &mut Model) {
    let http = Protocol::Http { table: TABLE.into(), https_port: settings.https_port };
    let proxy_protocol = settings.proxy_protocol;
    let http = Listener { protocol: http, public_port: settings.http_port, pod_port: POD_HTTP, proxy_protocol };
    model.listeners.insert(ListenerName::from(HTTP), http);
    if let Some(port) = settings.https_port {
        let https = Protocol::Https { table: TABLE.into(), certificates: CERTIFICATES.into() };
        model
            .listeners
            .insert(ListenerName::from(HTTPS), Listener { protocol: https, public_port: port, pod_port: POD_HTTPS, proxy_protocol });
        model.certificate_lists.entry(CERTIFICATES.into()).or_default();
    }
    model.tables.entry(TABLE.into()).or_default();
}
