//! `IngressDeployment`: one fleet.

// The columns of one kind name the same type more than once.
#![allow(clippy::duplicated_attributes)]

pub(in crate::api) mod http;
mod logging;
mod metrics;
pub(in crate::api) mod patterns;
mod pods;
mod publishing;
mod rollout;
mod sharding;
mod status;
mod tls;
mod values;
mod zones;

pub use http::{Compression, EmptyRequests, ForwardedPolicy, HeaderAction, HeaderActionType, Hsts, Http, HttpHeaders, UniqueId};
pub use logging::{AccessLog, Capture, Captures, LogDestination, LogEmptyRequests, Logging, Syslog};
pub use metrics::{FleetMetrics, PodMonitor};
pub use pods::{
    Amounts, Autoscaling, PatchOperation, PatchStep, Resources, Texts, Timeouts, TopologySpread, Tuning, WhenUnsatisfiable, Zone,
};
pub use publishing::{
    AdditionalService, DeletionPolicy, ExternalTrafficPolicy, HostNetwork, IpFamily, IpFamilyPolicy, LoadBalancer, NetworkPolicy,
    NodePorts, Publishing, PublishingType, ServiceType, TrafficDistribution,
};
pub use rollout::{Disruption, Drain, Rollout, UnhealthyPodEvictionPolicy, UpgradePolicy, ZonePolicy};
pub use sharding::{Operator, Requirement, Selector, Shard};
pub use status::{Diagnostics, Finding, IngressDeploymentStatus, RolloutStatus, ZoneStatus};
pub use tls::{CaRef, CaRefKind, ClientCertificatePolicy, ClientTls, FleetTls, TlsProfile};
pub use values::{Duration, IntOrPercent, Quantity};
pub use zones::{ZoneAwareness, ZoneAwarenessMode};

use super::Meta;
use k8s_openapi::api::core::v1::{Affinity, Toleration};
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
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.ready"),
    printcolumn(name = "Zones", type_ = "string", json_path = ".status.zones"),
    printcolumn(name = "Address", type_ = "string", json_path = ".status.address"),
    printcolumn(name = "Revision", type_ = "integer", json_path = ".status.revision"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Updated", type_ = "integer", json_path = ".status.updatedReplicas", priority = 1),
    printcolumn(name = "Confirmed", type_ = "string", json_path = ".status.confirmed", priority = 1),
    printcolumn(name = "Version", type_ = "string", json_path = ".status.haproxyVersion", priority = 1),
    printcolumn(name = "Errors", type_ = "integer", json_path = ".status.diagnostics.errors", priority = 1),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1),
    validation = Rule::new("self.metadata.name.matches('^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$')").message("the name of a fleet is the name of its Services, too: at most 40 lower-case letters, digits and dashes, the first one a letter")
)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.replicas) || !has(self.zones) || self.zones.all(z, !has(z.replicas))")
    .message("replicas and zones[].replicas exclude each other"))]
#[x_kube(validation = Rule::new("!has(self.zones) || self.zones.all(z, has(z.replicas)) || self.zones.all(z, !has(z.replicas))")
    .message("either every zone has replicas or none has"))]
#[x_kube(validation = Rule::new("!has(self.autoscaling) || !has(self.replicas)").message("replicas and autoscaling exclude each other"))]
#[x_kube(validation = Rule::new("!has(self.autoscaling) || !has(self.zones) || self.zones.all(z, !has(z.replicas))")
    .message("autoscaling and zones[].replicas exclude each other"))]
#[x_kube(validation = Rule::new("!has(self.autoscaling) || !has(self.zones) || self.autoscaling.minReplicas >= self.zones.size()")
    .message("autoscaling.minReplicas is at least the number of zones"))]
#[x_kube(validation = Rule::new("!has(self.zones) || self.zones.size() == 0 || !has(self.nodeSelector) || !('topology.kubernetes.io/zone' in self.nodeSelector)")
    .message("zones and nodeSelector with topology.kubernetes.io/zone exclude each other"))]
#[x_kube(validation = Rule::new("self.publishing.type != 'HostNetwork' || !has(self.rollout.maxSurge) || self.rollout.maxSurge == 0 || self.rollout.maxSurge == '0%'")
    .message("with HostNetwork rollout.maxSurge is 0: two pods cannot have one port of a node"))]
#[x_kube(validation = Rule::new("!has(self.rollout.zonePolicy.order) || self.rollout.zonePolicy.order.all(name, has(self.zones) && self.zones.exists(z, z.name == name))")
    .message("rollout.zonePolicy.order names listed zones only"))]
#[x_kube(validation = Rule::new("!has(self.rollout.minReady) || self.rollout.minReady <= (has(self.replicas) ? self.replicas : has(self.autoscaling) ? self.autoscaling.minReplicas : has(self.zones) && self.zones.exists(z, has(z.replicas)) ? self.zones.map(z, has(z.replicas) ? z.replicas : 0).sum() : 2)")
    .message("rollout.minReady is at most the number of pods"))]
#[x_kube(validation = Rule::new("!has(self.rollout.minReady) || !has(self.disruption.maxUnavailable) || self.rollout.minReady > (has(self.replicas) ? self.replicas : has(self.autoscaling) ? self.autoscaling.minReplicas : has(self.zones) && self.zones.exists(z, has(z.replicas)) ? self.zones.map(z, has(z.replicas) ? z.replicas : 0).sum() : 2) || self.rollout.minReady + self.disruption.maxUnavailable <= (has(self.replicas) ? self.replicas : has(self.autoscaling) ? self.autoscaling.minReplicas : has(self.zones) && self.zones.exists(z, has(z.replicas)) ? self.zones.map(z, has(z.replicas) ? z.replicas : 0).sum() : 2)")
    .message("rollout.minReady and disruption.maxUnavailable are together at most the number of pods: evictions may take what the budget allows"))]
#[x_kube(validation = Rule::new("!has(self.zones) || self.zones.all(z, !has(z.minReady) || z.minReady <= (has(z.replicas) ? z.replicas : (has(self.replicas) ? self.replicas : has(self.autoscaling) ? self.autoscaling.minReplicas : has(self.zones) && self.zones.exists(z, has(z.replicas)) ? self.zones.map(z, has(z.replicas) ? z.replicas : 0).sum() : 2) / self.zones.size()))")
    .message("zones[].minReady is at most the number of pods of the zone"))]
#[x_kube(validation = Rule::new("!has(self.rollout.minReady) || self.rollout.minReady != (has(self.replicas) ? self.replicas : has(self.autoscaling) ? self.autoscaling.minReplicas : has(self.zones) && self.zones.exists(z, has(z.replicas)) ? self.zones.map(z, has(z.replicas) ? z.replicas : 0).sum() : 2) || self.publishing.type != 'HostNetwork' && (!has(self.rollout.maxSurge) || self.rollout.maxSurge != 0 && self.rollout.maxSurge != '0%')")
    .message("rollout.minReady leaves no pod to replace where none may be added: lower it, or allow maxSurge"))]
#[x_kube(validation = Rule::new("!has(self.zones) || self.publishing.type != 'HostNetwork' && (!has(self.rollout.maxSurge) || self.rollout.maxSurge != 0 && self.rollout.maxSurge != '0%') || [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31].all(i, i >= self.zones.size() || !has(self.zones[i].minReady) || self.zones[i].minReady == 0 || self.zones[i].minReady != (has(self.zones[i].replicas) ? self.zones[i].replicas : ((has(self.replicas) ? self.replicas : has(self.autoscaling) ? self.autoscaling.minReplicas : 2) + self.zones.size() - 1 - i) / self.zones.size()))")
    .message("zones[].minReady leaves no pod to replace where none may be added: lower it, or allow maxSurge"))]
pub struct IngressDeploymentSpec {
    /// The `IngressClass` whose Ingresses the fleet serves. It cannot be changed: a second fleet serves another one.
    #[schemars(length(min = 1, max = 253), pattern(patterns::DNS_NAME))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("ingressClassName cannot change: create a second fleet for the other class"))]
    pub ingress_class_name: String,

    /// Labels of the namespaces whose routes are the fleet's; all if nothing is said. Several fleets may share a class
    /// if each but the youngest selects: a route is served by the oldest fleet that selects it, and by no other.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<Selector>,

    /// Labels of the routes (Ingresses) that are the fleet's; all if nothing is said. Both selectors have to match. Whoever
    /// writes a route writes its labels, too: what keeps tenants apart is `namespaceSelector`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub route_selector: Option<Selector>,

    /// Whether the operator leaves everything of the fleet in the cluster as it is. The pods keep serving and still
    /// follow routes and endpoints; a drain that has begun goes on.
    #[serde(default)]
    pub paused: bool,

    /// How many pods, over all zones. 2 if nothing is said here, in `zones` or in `autoscaling`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: Option<i32>,

    /// The zones that pods are spread over. They share `replicas` by largest remainder in their order, unless
    /// each has a number of its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub zones: Vec<Zone>,

    /// How the number of pods follows the load, instead of `replicas`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoscaling: Option<Autoscaling>,

    /// The release line of HAProxy. Pods are replaced when it changes.
    #[serde(default)]
    pub haproxy_version: HaproxyLine,

    /// The image of HAProxy, instead of the operator's for `haproxyVersion`. It has to be of that line, 3.2.22 or newer,
    /// and name no tag that moves: pods of one fleet run one HAProxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512), pattern(patterns::IMAGE))]
    pub image: Option<String>,

    /// When pods take what a new operator brings.
    #[serde(default)]
    pub upgrade_policy: UpgradePolicy,

    /// Labels of the nodes that pods may run on.
    #[serde(default, skip_serializing_if = "Texts::is_empty")]
    #[schemars(extend("maxProperties" = 32), inner(length(max = 63)))]
    pub node_selector: Texts,

    /// Taints of nodes that pods put up with, as in a pod.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub tolerations: Vec<Toleration>,

    /// Where pods would rather or must run, as in a pod. Spreading over zones and nodes is done anyway; a listed
    /// zone is added to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,

    /// How pods are spread over zones and nodes.
    #[serde(default)]
    pub topology_spread: TopologySpread,

    /// The PriorityClass of the pods: who has to make room when nodes are full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub priority_class_name: Option<String>,

    /// CPU and memory of HAProxy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resources: Option<Resources>,

    /// What HAProxy may use of a node, and how long it waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tuning: Option<Tuning>,

    /// Labels of the pods, beside ours.
    #[serde(default, skip_serializing_if = "Texts::is_empty")]
    #[schemars(extend("maxProperties" = 32), inner(length(max = 63)))]
    #[x_kube(validation = Rule::new("self.all(key, !key.startsWith('haproxy-fleet.dev/') && !key.startsWith('app.kubernetes.io/') && key != 'pod-template-hash')")
        .message("keys below haproxy-fleet.dev/ and app.kubernetes.io/ and pod-template-hash are not yours to set"))]
    pub pod_labels: Texts,

    /// Annotations of the pods.
    #[serde(default, skip_serializing_if = "Texts::is_empty")]
    #[schemars(extend("maxProperties" = 64), inner(length(max = 4096)))]
    #[x_kube(validation = Rule::new("self.all(key, !key.startsWith('haproxy-fleet.dev/'))").message("keys below haproxy-fleet.dev/ are ours"))]
    #[x_kube(validation = Rule::new("self.all(key, !key.startsWith('container.apparmor.security.beta.kubernetes.io/'))")
        .message("the AppArmor profile of pods stays that of the container runtime"))]
    pub pod_annotations: Texts,

    /// Changes of the pod template that no other field makes: a JSON Patch (RFC 6902), step by step. What comes
    /// out still has our containers with their commands, probes and volumes, and meets the Restricted Pod Security
    /// Standard; a patch that would change that is refused.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    pub pod_template_patch: Vec<PatchStep>,

    /// How a changed pod template comes into force.
    #[serde(default)]
    pub rollout: Rollout,

    /// What node drains and other evictions may take.
    #[serde(default)]
    pub disruption: Disruption,

    /// How a pod ends.
    #[serde(default)]
    pub drain: Drain,

    /// How clients reach the fleet.
    #[serde(default)]
    pub publishing: Publishing,

    /// Whether traffic that is none of the fleet's is kept from its pods.
    #[serde(default)]
    pub network_policy: NetworkPolicy,

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

    /// Whether requests stay in the zone of the pod that takes them, while enough endpoints there are ready.
    #[serde(default)]
    pub zone_awareness: ZoneAwareness,

    /// How TLS ends at the fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tls: Option<FleetTls>,

    /// What the fleet does with every request and response, whatever the routes say.
    #[serde(default)]
    pub http: Http,

    /// What the fleet writes down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logging: Option<Logging>,

    /// What the fleet counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics: Option<FleetMetrics>,

    /// Which routes are let in.
    #[serde(default)]
    pub route_admission: RouteAdmission,

    /// The ports that clients connect to: those of the Services, and the ones that redirects name.
    #[serde(default)]
    pub ports: FleetPorts,
}

impl IngressDeploymentSpec {
    /// How many pods there are when nothing is said.
    pub const DEFAULT_REPLICAS: i32 = 2;

    /// Which part of its class the fleet serves.
    pub fn shard(&self) -> Shard {
        let selects = |selector: &Option<Selector>| selector.clone().filter(|selector| !selector.is_empty());
        Shard { namespaces: selects(&self.namespace_selector), routes: selects(&self.route_selector) }
    }

    /// How many pods are asked for, over all zones; with autoscaling, how many at least.
    pub fn total_replicas(&self) -> i32 {
        if let Some(replicas) = self.replicas {
            return replicas;
        }
        if let Some(autoscaling) = &self.autoscaling {
            return autoscaling.min_replicas;
        }
        if self.zones.iter().any(|zone| zone.replicas.is_some()) {
            return self.zones.iter().filter_map(|zone| zone.replicas).fold(0, i32::saturating_add);
        }
        Self::DEFAULT_REPLICAS
    }
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
    /// All of them, the newest first.
    pub const ALL: [Self; 2] = [Self::V3_4, Self::V3_2];

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

/// Which routes are let in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RouteAdmission {
    /// Whether several namespaces may have routes for one host.
    #[serde(default)]
    pub namespace_ownership: NamespaceOwnership,
    /// Whether rules may have wildcards such as `*.example.com` for hosts. Where they may not, such a rule is left out;
    /// certificates may still be for wildcards.
    #[serde(default)]
    pub wildcard_policy: WildcardPolicy,
}

/// Whether rules may have wildcards for hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum WildcardPolicy {
    /// They may.
    #[default]
    Allowed,
    /// They may not.
    Disallowed,
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
