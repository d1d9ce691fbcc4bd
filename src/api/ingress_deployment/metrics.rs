//! The numbers of HAProxy itself.

use super::pods::Texts;
use super::values::Duration;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// The numbers of HAProxy itself, for Prometheus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.podMonitor) || self.enabled").message("podMonitor needs enabled: true"))]
pub struct FleetMetrics {
    /// Whether `/metrics` of each pod's port for health checks has the numbers of HAProxy. They name the namespaces,
    /// Services and hosts of every route, and the port asks nobody who they are: with HostNetwork it is a port of the node.
    #[serde(default)]
    pub enabled: bool,
    /// A PodMonitor of the Prometheus operator (`monitoring.coreos.com/v1`) for the pods. The cluster needs its CRDs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_monitor: Option<PodMonitor>,
}

/// How Prometheus is told of the pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodMonitor {
    /// How often the numbers are read.
    #[serde(default = "interval")]
    pub interval: Duration,
    /// Labels of the PodMonitor, beside ours: those that your Prometheus selects PodMonitors by.
    #[serde(default, skip_serializing_if = "Texts::is_empty")]
    #[schemars(extend("maxProperties" = 32), inner(length(max = 63)))]
    #[x_kube(validation = Rule::new("self.all(key, !key.startsWith('haproxy-fleet.dev/') && !key.startsWith('app.kubernetes.io/'))")
        .message("keys below haproxy-fleet.dev/ and app.kubernetes.io/ are ours"))]
    pub labels: Texts,
}

fn interval() -> Duration {
    "30s".into()
}
