//! `IngressDeployment`: one fleet.

// The columns of one kind name the same type more than once.
#![allow(clippy::duplicated_attributes)]

use super::Meta;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One fleet, as the pipeline sees it.
#[derive(Clone, Debug, PartialEq)]
pub struct IngressDeployment {
    /// Who it is.
    pub meta: Meta,
    /// What is asked for.
    pub spec: IngressDeploymentSpec,
}

/// What a fleet of HAProxy pods serves and how.
#[derive(CustomResource, Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[kube(
    group = "haproxy-fleet.dev",
    version = "v1alpha1",
    kind = "IngressDeployment",
    root = "IngressDeploymentResource",
    plural = "ingressdeployments",
    shortname = "ingd",
    category = "haproxy-fleet",
    doc = "A fleet of HAProxy pods that serves every Ingress of one class.",
    namespaced,
    derive = "PartialEq",
    status = "IngressDeploymentStatus",
    scale(spec_replicas_path = ".spec.replicas", status_replicas_path = ".status.replicas", label_selector_path = ".status.selector"),
    printcolumn(name = "Class", type_ = "string", json_path = ".spec.ingressClassName"),
    printcolumn(name = "Ready", type_ = "integer", json_path = ".status.readyReplicas"),
    printcolumn(name = "Desired", type_ = "integer", json_path = ".status.replicas"),
    printcolumn(name = "Zones", type_ = "string", json_path = ".status.zones"),
    printcolumn(name = "Address", type_ = "string", json_path = ".status.address"),
    printcolumn(name = "Revision", type_ = "integer", json_path = ".status.revision"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.replicas) || !has(self.zones) || self.zones.all(z, !has(z.replicas))")
    .message("replicas and zones[].replicas exclude each other"))]
#[x_kube(validation = Rule::new("!has(self.zones) || self.zones.all(z, has(z.replicas)) || self.zones.all(z, !has(z.replicas))")
    .message("either every zone has replicas or none has"))]
pub struct IngressDeploymentSpec {
    /// The `IngressClass` whose Ingresses the fleet serves.
    #[schemars(length(min = 1, max = 253))]
    pub ingress_class_name: String,

    /// How many pods, over all zones. 2 if nothing is said here or in `zones`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: Option<i32>,

    /// The zones that pods are spread over. They share `replicas` by largest remainder in their order, unless
    /// each has a number of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub zones: Vec<Zone>,

    /// The release line of HAProxy.
    #[serde(default)]
    pub haproxy_version: HaproxyLine,

    /// Where requests go that no Ingress has a rule for: a Service of the fleet's namespace. 404 if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_backend: Option<DefaultBackend>,

    /// A Backend of the fleet's namespace: how every service is reached, unless an Ingress or a Service says
    /// otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backend_ref: Option<LocalRef>,

    /// A ConfigMap of the fleet's namespace; its key `cr-backend` names a Backend, as `backendRef` does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<ConfigMapRef>,

    /// How TLS ends at the fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<FleetTls>,

    /// Which routes are let in.
    #[serde(default)]
    pub route_admission: RouteAdmission,

    /// The ports that clients connect to.
    #[serde(default)]
    pub ports: FleetPorts,
}

impl IngressDeploymentSpec {
    /// How many pods there are when nothing is said.
    pub const DEFAULT_REPLICAS: i32 = 2;

    /// How many pods are asked for, over all zones.
    pub fn total_replicas(&self) -> i32 {
        if let Some(replicas) = self.replicas {
            return replicas;
        }
        if self.zones.iter().any(|zone| zone.replicas.is_some()) {
            return self.zones.iter().filter_map(|zone| zone.replicas).fold(0, i32::saturating_add);
        }
        Self::DEFAULT_REPLICAS
    }
}

/// A zone and its share of the pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Zone {
    /// The value of the node label `topology.kubernetes.io/zone`.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// How many pods in this zone. Excludes `spec.replicas`; all zones have it or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: Option<i32>,
}

/// A release line of HAProxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum HaproxyLine {
    /// 3.4, the default.
    #[default]
    #[serde(rename = "3.4")]
    V3_4,
    /// 3.2: new Services need a reload.
    #[serde(rename = "3.2")]
    V3_2,
}

impl HaproxyLine {
    /// As it is written: `3.4`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::V3_4 => "3.4",
            Self::V3_2 => "3.2",
        }
    }
}

/// Where requests go that no rule is for. The shape is that of an Ingress' `defaultBackend`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DefaultBackend {
    /// The Service.
    pub service: DefaultBackendService,
}

/// A port of a Service of the fleet's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DefaultBackendService {
    /// Its name.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Its port.
    pub port: DefaultBackendPort,
}

/// A port of a Service, by number or by name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.number) != has(self.name)").message("give either number or name"))]
pub struct DefaultBackendPort {
    /// The number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub number: Option<i32>,
    /// The name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 63))]
    pub name: Option<String>,
}

/// Names an object of the fleet's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LocalRef {
    /// Its name.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
}

/// Names a ConfigMap of the fleet's namespace.
pub type ConfigMapRef = LocalRef;

/// How TLS ends at the fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FleetTls {
    /// A TLS Secret of the fleet's namespace: the certificate for names that no Ingress has one for. A
    /// self-signed one if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_certificate_ref: Option<LocalRef>,
}

/// Which routes are let in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RouteAdmission {
    /// Whether several namespaces may have routes for one host.
    #[serde(default)]
    pub namespace_ownership: NamespaceOwnership,
}

/// Whether several namespaces may have routes for one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum NamespaceOwnership {
    /// They may; for one host and path the oldest wins.
    #[default]
    Shared,
    /// A host belongs to the namespace of its oldest route.
    Strict,
}

/// The ports that clients connect to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.http != self.https").message("http and https need different ports"))]
pub struct FleetPorts {
    /// Plain HTTP.
    #[serde(default = "http_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub http: i32,
    /// HTTP over TLS.
    #[serde(default = "https_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub https: i32,
}

fn http_port() -> i32 {
    80
}

fn https_port() -> i32 {
    443
}

impl Default for FleetPorts {
    fn default() -> Self {
        Self { http: http_port(), https: https_port() }
    }
}

/// What is the case.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct IngressDeploymentStatus {
    /// The generation of the spec that this status is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How many pods are wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// How many pods serve the present revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// Selects the pods, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selector: Option<String>,
    /// Ready of wanted pods by zone, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zones: Option<String>,
    /// Where clients connect to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The revision that is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// Conditions; those of kstatus among them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}
