#![allow(clippy::unwrap_used, clippy::expect_used, clippy::format_collect)]
//! What objects mean, told as sentences.

mod endpoints;
mod fleets;
mod incremental;
mod policies;
mod routes;
mod settings;
mod tls;
mod zones;

use crate::api::{self, Meta};
use crate::model::{Backend, BackendId, FleetId, Host, HostMatch, PathMatch, Route, Target};
use crate::report::{Code, Diagnostic, ObjectRef};
use crate::translate::{Options, TABLE, Translator, names};
use crate::world::{Changed, Object, World};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) const FLEET: &str = "
kind: IngressDeployment
metadata: {namespace: infra, name: edge}
spec: {ingressClassName: edge}
";

pub(super) fn fleet_id() -> FleetId {
    FleetId { namespace: "infra".into(), name: "edge".into() }
}

/// The objects of a file with several documents. A namespace that is not given is `shop`.
pub(super) fn objects(yaml: &str) -> Vec<Object> {
    yaml.split("\n---").filter(|doc| !doc.trim().is_empty()).map(|doc| object(&serde_saphyr::from_str(doc).expect(doc))).collect()
}

pub(super) fn object(doc: &Value) -> Object {
    let kind = doc["kind"].as_str().unwrap();
    let full_meta = serde_json::from_value(doc["metadata"].clone()).unwrap();
    let namespace = if matches!(kind, "IngressClass" | "Namespace") { "" } else { doc["metadata"]["namespace"].as_str().unwrap_or("shop") };
    let meta = Meta::from_full(full_meta, namespace.into(), doc["metadata"]["name"].as_str().unwrap().into());
    let spec = doc["spec"].clone();
    let mut ignored = Vec::new();
    match kind {
        "IngressDeployment" => {
            Object::IngressDeployment(Arc::new(api::IngressDeployment { meta, spec: serde_json::from_value(spec).unwrap() }))
        }
        "Ingress" => Object::Ingress(Arc::new(api::Ingress::from_full(meta, Some(serde_json::from_value(spec).unwrap()), &mut ignored))),
        "IngressClass" => Object::IngressClass(Arc::new(api::IngressClass::from_full(meta, serde_json::from_value(spec).unwrap()))),
        "Namespace" => Object::Namespace(Arc::new(api::Namespace { meta })),
        "Service" => Object::Service(Arc::new(api::Service::from_full(meta, Some(serde_json::from_value(spec).unwrap()), &mut ignored))),
        "EndpointSlice" => {
            let full = serde_json::from_value(doc.clone()).unwrap();
            Object::EndpointSlice(Arc::new(api::EndpointSlice::from_full(meta, full, &mut ignored)))
        }
        "Secret" => Object::Secret(Arc::new(api::Secret::from_full(meta, serde_json::from_value(doc.clone()).unwrap()))),
        "ConfigMap" => Object::ConfigMap(Arc::new(api::ConfigMap::from_full(meta, serde_json::from_value(doc.clone()).unwrap()))),
        "Backend" => {
            let typed: api::BackendSpec = serde_json::from_value(spec.clone()).unwrap();
            let known = serde_json::to_value(&typed).unwrap();
            let unknown = spec.as_object().unwrap().iter().filter(|(name, _)| known.get(name).is_none());
            let unsupported: BTreeMap<Box<str>, Value> = unknown.map(|(name, value)| (name.as_str().into(), value.clone())).collect();
            Object::Backend(Arc::new(api::Backend { meta, group: api::backend::BackendGroup::HaproxyFleet, spec: typed, unsupported }))
        }
        other => panic!("{other}"),
    }
}

/// A world and a translator that follows it.
pub(super) struct Case {
    pub world: World,
    pub translator: Translator,
}

impl Case {
    pub(super) fn of(yaml: &str) -> Self {
        Self::with(yaml, Options::default())
    }

    /// The fleet named `edge`, and `yaml`.
    pub(super) fn edge(yaml: &str) -> Self {
        Self::of(&format!("{FLEET}\n---\n{yaml}"))
    }

    pub(super) fn with(yaml: &str, options: Options) -> Self {
        let mut world = World::default();
        for object in objects(yaml) {
            world.set(object);
        }
        let mut translator = Translator::new(fleet_id(), options);
        translator.update(&world, &[]);
        Self { world, translator }
    }

    pub(super) fn set(&mut self, yaml: &str) -> crate::model::Touched {
        let changes: Vec<Changed> = objects(yaml).into_iter().filter_map(|object| self.world.set(object)).collect();
        self.translator.update(&self.world, &changes)
    }

    pub(super) fn remove(&mut self, kind: crate::report::Kind, name: &str) -> crate::model::Touched {
        let changes: Vec<Changed> = self.world.remove(&ObjectRef::new(kind, "shop", name)).into_iter().collect();
        self.translator.update(&self.world, &changes)
    }

    pub(super) fn host(&self, host: &str) -> Option<&Host> {
        let host = if host == "*" { HostMatch::Any } else { names::host(host).unwrap() };
        self.translator.model().tables.get(TABLE)?.hosts.get(&host)
    }

    pub(super) fn paths(&self, host: &str) -> Vec<String> {
        self.host(host).map(|host| host.routes.iter().map(|route| path_text(&route.path)).collect()).unwrap_or_default()
    }

    pub(super) fn route(&self, host: &str, path: &str) -> &Route {
        self.host(host).unwrap().routes.iter().find(|route| path_text(&route.path) == path).unwrap()
    }

    /// Where a route leads, as text.
    pub(super) fn target(&self, host: &str, path: &str) -> String {
        match &self.route(host, path).target {
            Target::Backend(id) => id.to_string(),
            other => format!("{other:?}"),
        }
    }

    pub(super) fn backend(&self, text: &str) -> &Backend {
        let all = &self.translator.model().backends;
        all.iter()
            .find(|(id, _)| id.to_string() == text)
            .map_or_else(|| panic!("{text} of {:?}", all.keys().collect::<Vec<_>>()), |(_, backend)| backend)
    }

    /// The only backend.
    pub(super) fn only(&self) -> (&BackendId, &Backend) {
        let all = &self.translator.model().backends;
        assert_eq!(all.len(), 1, "{all:?}");
        all.iter().next().unwrap()
    }

    pub(super) fn addresses(&self) -> Vec<String> {
        self.only().1.endpoints.iter().map(|e| std::net::SocketAddr::new(e.address, e.port).to_string()).collect()
    }

    pub(super) fn diagnostics(&self) -> Vec<&Diagnostic> {
        self.translator.diagnostics().collect()
    }

    /// Code, object and field of each diagnostic.
    pub(super) fn told(&self) -> Vec<(Code, String, &str)> {
        self.translator.diagnostics().map(|d| (d.code, d.object.to_string(), &*d.field)).collect()
    }

    pub(super) fn silent(&self) {
        assert_eq!(self.diagnostics(), Vec::<&Diagnostic>::new());
    }
}

fn path_text(path: &PathMatch) -> String {
    match path {
        PathMatch::Exact(path) => format!("={path}"),
        PathMatch::Prefix(path) => path.to_string(),
        PathMatch::Regex(path) => format!("~{path}"),
    }
}

/// A Service with one port and two endpoints.
pub(super) fn service(name: &str) -> String {
    format!(
        "
kind: Service
metadata: {{name: {name}}}
spec: {{ports: [{{name: http, port: 80}}]}}
---
kind: EndpointSlice
metadata: {{name: {name}-1, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}]
endpoints: [{{addresses: [10.0.0.1]}}, {{addresses: [10.0.0.2]}}]
---
"
    )
}

/// An Ingress of the class with one rule for the host and the path `/`.
pub(super) fn ingress(name: &str, host: &str, service: &str) -> String {
    format!(
        "
kind: Ingress
metadata: {{name: {name}}}
spec:
  ingressClassName: edge
  rules:
  - host: {host}
    http: {{paths: [{{path: /, pathType: Prefix, backend: {{service: {{name: {service}, port: {{number: 80}}}}}}}}]}}
---
"
    )
}

/// A TLS Secret for `host`.
pub(super) fn secret(name: &str, host: &str) -> String {
    let made = rcgen::generate_simple_self_signed(vec![host.to_owned()]).unwrap();
    let indent = |pem: String| pem.lines().map(|line| format!("    {line}\n")).collect::<String>();
    format!(
        "
kind: Secret
metadata: {{name: {name}}}
type: kubernetes.io/tls
stringData:
  tls.crt: |
{}  tls.key: |
{}---
",
        indent(made.cert.pem()),
        indent(made.signing_key.serialize_pem())
    )
}
