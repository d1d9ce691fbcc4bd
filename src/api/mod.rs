//! What we read, as lean types, and the kinds that are ours.
//!
//! Lean: the fields that the pipeline uses and nothing else, in shared or boxed strings. A cluster's objects
//! take a tenth of the memory that the complete types need, and two objects are equal when nothing that
//! matters differs. The complete types of Kubernetes are only used while reading, where they find unknown
//! fields and wrong types; `from_full` of each lean type makes the step, and says what it had to leave out.
//!
//! The custom resources as the API server knows them (schema, printer columns, rules) are in [`crd`].

pub mod backend;
pub mod conditions;
pub mod crd;
mod endpoints;
mod ingress;
mod ingress_deployment;
mod ingress_deployment_rules;
mod meta;
mod plain;
mod schema;
mod service;
mod verbs;

pub use backend::{Backend, BackendSpec};
pub use crd::crds;
pub use endpoints::{AddressType, Endpoint, EndpointPort, EndpointSlice, LABEL_SERVICE_NAME};
pub use ingress::{
    ANNOTATION_DEFAULT_CLASS, ANNOTATION_INGRESS_CLASS, CONTROLLER_PREFIX, Ingress, IngressBackend, IngressClass, IngressPath, IngressRule,
    IngressService, IngressTls, PathType, PortRef, TypedRef,
};
pub use ingress_deployment::{
    AccessLog, AdditionalService, Amounts, Autoscaling, CaRef, CaRefKind, Capture, Captures, ClientCertificatePolicy, ClientTls,
    Compression, ConfigMapRef, DefaultBackend, DefaultBackendPort, DefaultBackendService, DeletionPolicy, Diagnostics, Disruption, Drain,
    Duration, EmptyRequests, ExternalTrafficPolicy, Finding, FleetMetrics, FleetPorts, FleetTls, ForwardedPolicy, HaproxyLine,
    HeaderAction, HeaderActionType, HostNetwork, Hsts, Http, HttpHeaders, IngressDeployment, IngressDeploymentSpec,
    IngressDeploymentStatus, IntOrPercent, IpFamily, IpFamilyPolicy, LoadBalancer, LocalRef, LogDestination, LogEmptyRequests, Logging,
    NamespaceOwnership, NetworkPolicy, NodePorts, Operator, PatchOperation, PatchStep, PodMonitor, Publishing, PublishingType, Quantity,
    Requirement, Resources, Rollout, RolloutStatus, RouteAdmission, Selector, ServiceType, Shard, Syslog, Texts, Timeouts, TlsProfile,
    TopologySpread, TrafficDistribution, Tuning, UnhealthyPodEvictionPolicy, UniqueId, UpgradePolicy, WhenUnsatisfiable, WildcardPolicy,
    Zone, ZoneAwareness, ZoneAwarenessMode, ZonePolicy, ZoneStatus,
};
pub use meta::{Created, Meta, Pairs};
pub use plain::{ConfigMap, Namespace, Secret};
pub use service::{Protocol, Service, ServiceKind, ServicePort, TOPOLOGY_MODE};
pub use verbs::{
    ANNOTATION_ABORT, ANNOTATION_DRAIN, ANNOTATION_RESTARTED_AT, ANNOTATION_ROLLBACK, ANNOTATION_ROLLOUT, ANNOTATION_STABLE, DrainWish,
    Place, Verbs,
};

/// The group of our own kinds.
pub const GROUP: &str = "haproxy-fleet.dev";
/// The version of our own kinds.
pub const VERSION: &str = "v1alpha1";
/// `apiVersion` of our own kinds.
pub const API_VERSION: &str = "haproxy-fleet.dev/v1alpha1";
/// `apiVersion` of Gateway API.
pub const GATEWAY_API_VERSION: &str = "gateway.networking.k8s.io/v1";
/// `apiVersion` of the `Backend` objects of HAProxy Technologies' ingress controller, which are read in place.
pub const HAPROXY_ORG_API_VERSION: &str = "ingress.v3.haproxy.org/v3";
/// What comes before the name in every annotation of ours.
pub const ANNOTATION_PREFIX: &str = "haproxy-fleet.dev/";

#[cfg(test)]
mod tests;
