//! How clients reach a fleet.

// `httpPort` and its like are named as in other operators
#![allow(clippy::struct_field_names)]

use super::patterns::DNS_LABEL;
use super::pods::Texts;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How clients reach the pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("oldSelf.type != 'LoadBalancer' || self.type == 'LoadBalancer'")
    .message("type stays LoadBalancer: another would give up the address; publish a second fleet and move the traffic"))]
#[x_kube(validation = Rule::new(
    "self.type != oldSelf.type || (has(self.loadBalancer) && has(self.loadBalancer.class) ? self.loadBalancer.class : '') == (has(oldSelf.loadBalancer) && has(oldSelf.loadBalancer.class) ? oldSelf.loadBalancer.class : '')")
    .message("loadBalancer.class cannot change: Kubernetes would need a new Service, with a new address; use additionalServices or a second fleet"))]
#[x_kube(validation = Rule::new("!has(self.loadBalancer) || self.type == 'LoadBalancer'")
    .message("loadBalancer needs type LoadBalancer"))]
#[x_kube(validation = Rule::new("!has(self.nodePorts) || self.type == 'LoadBalancer' || self.type == 'NodePort'")
    .message("nodePorts needs type LoadBalancer or NodePort"))]
#[x_kube(validation = Rule::new("!has(self.hostNetwork) || self.type == 'HostNetwork'")
    .message("hostNetwork needs type HostNetwork"))]
#[x_kube(validation = Rule::new("!has(self.externalTrafficPolicy) || self.type == 'LoadBalancer' || self.type == 'NodePort'")
    .message("externalTrafficPolicy needs type LoadBalancer or NodePort"))]
#[x_kube(validation = Rule::new("!has(self.ipFamilies) || self.ipFamilies.size() < 2 || has(self.ipFamilyPolicy) && self.ipFamilyPolicy != 'SingleStack'")
    .message("two ipFamilies need ipFamilyPolicy PreferDualStack or RequireDualStack"))]
pub struct Publishing {
    /// LoadBalancer: a Service with an address from outside the cluster. NodePort: ports of every node, for a
    /// load balancer of your own. HostNetwork: ports of the nodes that pods run on; the namespace has to allow
    /// privileged pods. Private: a Service inside the cluster.
    #[serde(default, rename = "type")]
    pub kind: PublishingType,
    /// The load balancer's side of a Service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<LoadBalancer>,
    /// The ports of nodes; given by Kubernetes if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_ports: Option<NodePorts>,
    /// The ports of nodes that pods listen on themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_network: Option<HostNetwork>,
    /// Whether nodes hand traffic to other nodes. Local (the default) keeps the client's address and saves a hop;
    /// Cluster reaches pods from every node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_traffic_policy: Option<ExternalTrafficPolicy>,
    /// Which pods clients inside the cluster are sent to, as in a Service. It has no effect before Kubernetes 1.31.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic_distribution: Option<TrafficDistribution>,
    /// The address families of the Service, the first one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub ip_families: Vec<IpFamily>,
    /// Whether the Service has addresses of one or of both families.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip_family_policy: Option<IpFamilyPolicy>,
    /// Whether what connects speaks the PROXY protocol, which tells the client's address. All of it has to: a
    /// connection without it is closed, one with it while this is off as well.
    #[serde(default)]
    pub proxy_protocol: bool,
    /// Further Services in front of the same pods, such as one for inside and one for outside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub additional_services: Vec<AdditionalService>,
}

/// How clients reach the pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PublishingType {
    /// By a Service with an address from outside the cluster.
    #[default]
    LoadBalancer,
    /// By ports of every node.
    NodePort,
    /// By ports of the nodes that pods run on.
    HostNetwork,
    /// By a Service inside the cluster.
    Private,
}

/// The load balancer's side of a Service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LoadBalancer {
    /// Which implementation serves it (`loadBalancerClass`). The cluster's default if nothing is said. It cannot
    /// be changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 253))]
    pub class: Option<String>,
    /// The address to ask for (`loadBalancerIP`). Providers that take addresses by annotation do not read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 45))]
    #[x_kube(validation = Rule::new("isIP(self)").message("this takes an IP address"))]
    pub address: Option<String>,
    /// Annotations of the Service, for its provider. Annotations of others stay as they are.
    #[serde(default, skip_serializing_if = "Texts::is_empty")]
    #[schemars(extend("maxProperties" = 64), inner(length(max = 4096)))]
    #[x_kube(validation = Rule::new("self.all(key, !key.startsWith('haproxy-fleet.dev/'))").message("keys below haproxy-fleet.dev/ are ours"))]
    pub annotations: Texts,
    /// Where clients may come from, as CIDR blocks. Everywhere if nothing is said.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 43)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    #[x_kube(validation = Rule::new("self.all(range, isCIDR(range))").message("these are CIDR blocks such as 10.0.0.0/8"))]
    pub allowed_source_ranges: Vec<String>,
    /// What becomes of the Service, and of its address, when the fleet is deleted. A Service that is retained leads nowhere
    /// until there is a fleet of the same name again, which takes it over.
    #[serde(default)]
    pub deletion_policy: DeletionPolicy,
}

/// What becomes of a load balancer when its fleet is deleted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DeletionPolicy {
    /// It goes.
    #[default]
    Delete,
    /// It stays, with its address.
    Retain,
}

/// Ports of every node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.http) || !has(self.https) || self.http != self.https").message("http and https need different ports"))]
pub struct NodePorts {
    /// For plain HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub http: Option<i32>,
    /// For HTTP over TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65535))]
    pub https: Option<i32>,
}

/// Ports of nodes that pods listen on themselves. HAProxy does not run as root: ports below 1024 need nodes whose
/// sysctl `net.ipv4.ip_unprivileged_port_start` is no higher than them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.httpPort != self.httpsPort && self.httpPort != self.healthPort && self.httpsPort != self.healthPort")
    .message("httpPort, httpsPort and healthPort are different ports"))]
pub struct HostNetwork {
    /// For plain HTTP.
    #[serde(default = "host_http_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub http_port: i32,
    /// For HTTP over TLS.
    #[serde(default = "host_https_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub https_port: i32,
    /// For health checks: `GET /healthz` is answered 200 by a pod that serves, and 503 from when it is to end: it serves on
    /// for `drain.deregistrationDelay` after that.
    #[serde(default = "host_health_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub health_port: i32,
}

fn host_http_port() -> i32 {
    8080
}

fn host_https_port() -> i32 {
    8443
}

fn host_health_port() -> i32 {
    8404
}

impl Default for HostNetwork {
    fn default() -> Self {
        Self { http_port: host_http_port(), https_port: host_https_port(), health_port: host_health_port() }
    }
}

/// Whether nodes hand traffic to other nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ExternalTrafficPolicy {
    /// They do not.
    #[default]
    Local,
    /// They do.
    Cluster,
}

impl ExternalTrafficPolicy {
    /// As Kubernetes writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Local => "Local",
            Self::Cluster => "Cluster",
        }
    }
}

/// Which pods clients inside the cluster are sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TrafficDistribution {
    /// To those of their own zone, if there are any.
    PreferClose,
}

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum IpFamily {
    /// IPv4
    IPv4,
    /// IPv6
    IPv6,
}

/// Of how many families a Service has addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum IpFamilyPolicy {
    /// Of one.
    SingleStack,
    /// Of both where the cluster has both.
    PreferDualStack,
    /// Of both.
    RequireDualStack,
}

/// A further Service in front of the same pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.loadBalancer) || self.type == 'LoadBalancer'").message("loadBalancer needs type LoadBalancer"))]
#[x_kube(validation = Rule::new("!has(self.externalTrafficPolicy) || self.type != 'Private'").message("externalTrafficPolicy needs type LoadBalancer or NodePort"))]
#[x_kube(validation = Rule::new("self.type == oldSelf.type && (has(self.loadBalancer) && has(self.loadBalancer.class) ? self.loadBalancer.class : '') == (has(oldSelf.loadBalancer) && has(oldSelf.loadBalancer.class) ? oldSelf.loadBalancer.class : '')")
    .message("type and loadBalancer.class of a Service cannot change: add one of another name, and remove this one when nobody uses it"))]
pub struct AdditionalService {
    /// What is added to the fleet's name to make the Service's.
    #[schemars(length(min = 1, max = 20), pattern(DNS_LABEL))]
    pub name: String,
    /// How it is reached.
    #[serde(rename = "type")]
    pub kind: ServiceType,
    /// The load balancer's side of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_balancer: Option<LoadBalancer>,
    /// Whether nodes hand traffic to other nodes; Local if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_traffic_policy: Option<ExternalTrafficPolicy>,
}

/// How a Service is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ServiceType {
    /// By an address from outside the cluster.
    LoadBalancer,
    /// By ports of every node.
    NodePort,
    /// From inside the cluster.
    Private,
}

/// Whether traffic that is none of the fleet's is kept from its pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NetworkPolicy {
    /// Whether there is a NetworkPolicy that lets nothing but the fleet's ports be reached. With HostNetwork
    /// there is none, as it would not concern the ports of nodes.
    #[serde(default = "enabled")]
    pub enabled: bool,
}

fn enabled() -> bool {
    true
}

impl Default for NetworkPolicy {
    fn default() -> Self {
        Self { enabled: enabled() }
    }
}
