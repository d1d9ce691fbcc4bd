//! The pods of a fleet: how many, where they run, what they get.

use super::patterns::{LABEL_VALUE, TEN_SECONDS, TIMEOUT};
use super::values::{Duration, Quantity};
use k8s_openapi::api::autoscaling::v2::{HorizontalPodAutoscalerBehavior, MetricSpec};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A zone and its share of the pods.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Zone {
    /// The value of the node label `topology.kubernetes.io/zone`.
    #[schemars(length(min = 1, max = 63), pattern(LABEL_VALUE))]
    pub name: String,
    /// How many pods in this zone. Excludes `spec.replicas` and `spec.autoscaling`; all zones have it or none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub replicas: Option<i32>,
    /// Pods that serve in this zone at least, whatever the operator does, unless somebody drains the whole zone. 0 if
    /// nothing is said: `rollout.minReady` is about the whole fleet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub min_ready: Option<i32>,
}

/// How the number of pods follows the load: a HorizontalPodAutoscaler of each Deployment. Listed zones share
/// both bounds as they share `replicas`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.minReplicas <= self.maxReplicas").message("minReplicas is at most maxReplicas"))]
#[x_kube(validation = Rule::new("!has(self.metrics) || !has(self.targetCpuUtilization)")
    .message("targetCpuUtilization and metrics exclude each other"))]
pub struct Autoscaling {
    /// Pods at least, over all zones.
    #[serde(default = "min_replicas")]
    #[schemars(range(min = 1, max = 1000))]
    pub min_replicas: i32,
    /// Pods at most, over all zones.
    #[schemars(range(min = 1, max = 1000))]
    pub max_replicas: i32,
    /// The share of the CPU requests, in percent, that pods use on average: more pods above it, fewer below.
    /// 70 if nothing is said here or in `metrics`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 100))]
    pub target_cpu_utilization: Option<i32>,
    /// What to scale by instead: the `metrics` of a HorizontalPodAutoscaler (autoscaling/v2), as they are.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 16))]
    pub metrics: Option<Vec<MetricSpec>>,
    /// How fast to scale: the `behavior` of a HorizontalPodAutoscaler (autoscaling/v2), as it is. Without it
    /// pods are taken away after five minutes of less load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub behavior: Option<HorizontalPodAutoscalerBehavior>,
}

fn min_replicas() -> i32 {
    2
}

/// How pods are spread, each revision for itself: over zones where none are listed, and over nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologySpread {
    /// By how many pods two zones (or nodes) may differ.
    #[serde(default = "max_skew")]
    #[schemars(range(min = 1, max = 100))]
    pub max_skew: i32,
    /// What becomes of a pod that no place fits. `ScheduleAnyway` takes the best place there is; with
    /// `DoNotSchedule` pods stay pending while a zone is down.
    #[serde(default)]
    pub when_unsatisfiable: WhenUnsatisfiable,
}

fn max_skew() -> i32 {
    1
}

impl Default for TopologySpread {
    fn default() -> Self {
        Self { max_skew: max_skew(), when_unsatisfiable: WhenUnsatisfiable::default() }
    }
}

/// What becomes of a pod that no place fits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum WhenUnsatisfiable {
    /// It takes the best place there is.
    #[default]
    ScheduleAnyway,
    /// It stays pending.
    DoNotSchedule,
}

impl WhenUnsatisfiable {
    /// As Kubernetes writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ScheduleAnyway => "ScheduleAnyway",
            Self::DoNotSchedule => "DoNotSchedule",
        }
    }
}

/// CPU and memory of the container that runs HAProxy. What is not said is as it is by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Resources {
    /// What the scheduler sets aside. By default 250m of CPU and 512Mi of memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requests: Option<Amounts>,
    /// What is never exceeded. By default no limit of CPU, as throttling costs latency, and 1Gi of memory, to which
    /// the size of the volume that the configuration is kept in is added.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits: Option<Amounts>,
}

/// Amounts of CPU and memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Amounts {
    /// CPUs, such as `2` or `500m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Quantity>,
    /// Bytes, such as `1Gi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Quantity>,
}

/// What HAProxy may use of a node, and how long it waits.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tuning {
    /// Threads of each HAProxy. As many as its CPU limit allows, or its node has, if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 64))]
    pub threads: Option<i32>,
    /// Connections that each HAProxy accepts at a time; further ones wait in the kernel. About 50 KB of memory
    /// each with TLS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100, max = 1_000_000))]
    pub max_connections: Option<i32>,
    /// Bytes of each of the two buffers of a connection: the headers of a request have to fit in one. 16384 if nothing is
    /// said, and more by what the fleet adds to headers. Connections need more memory with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 16_384, max = 131_072))]
    pub header_buffer_bytes: Option<i32>,
    /// How long HAProxy waits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeouts: Option<Timeouts>,
    /// The time between two health checks of a server, where no Backend says otherwise. `2s` if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(pattern(TIMEOUT))]
    pub health_check_interval: Option<Duration>,
    /// For how long a worker of before a reload may serve the connections that it has. What is open then is cut. `1h` if
    /// nothing is said, and never less than `drain.timeout` and 10 s, as HAProxy takes it for pods that end, too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(pattern(TIMEOUT))]
    pub hard_stop_after: Option<Duration>,
}

/// How long HAProxy waits, in whole seconds, minutes or hours. The last four hold where no Backend says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Timeouts {
    /// For a client that neither sends nor takes anything. `60s` if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(pattern(TIMEOUT))]
    pub client: Option<Duration>,
    /// The same once the client has closed its half of the connection. `client` if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(pattern(TIMEOUT))]
    pub client_fin: Option<Duration>,
    /// For all headers of a request. `10s` if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(pattern(TIMEOUT))]
    pub http_request: Option<Duration>,
    /// For the next request on a connection, `1s` to `10s`: a client that waits longer would keep workers of before a
    /// reload. `10s` if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(pattern(TEN_SECONDS))]
    pub http_keep_alive: Option<Duration>,
    /// For a server to take a connection. `2s` if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(pattern(TIMEOUT))]
    pub connect: Option<Duration>,
    /// For a free slot of a server. `30s` if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(pattern(TIMEOUT))]
    pub queue: Option<Duration>,
    /// For a server that neither sends nor takes anything. `60s` if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(pattern(TIMEOUT))]
    pub server: Option<Duration>,
    /// For both sides of an upgraded connection, such as a WebSocket. `1h` if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(pattern(TIMEOUT))]
    pub tunnel: Option<Duration>,
}

/// One step of a JSON Patch (RFC 6902).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PatchStep {
    /// What is done.
    pub op: PatchOperation,
    /// Where: a JSON Pointer into the pod template, such as `/spec/hostAliases` or `/spec/containers/-`.
    #[schemars(length(min = 1, max = 512))]
    pub path: String,
    /// Where it comes from, for `move` and `copy`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 512))]
    pub from: Option<String>,
    /// What is put there (or expected, for `test`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "any_value")]
    pub value: Option<serde_json::Value>,
}

fn any_value(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({"x-kubernetes-preserve-unknown-fields": true})
}

/// What a step of a JSON Patch does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PatchOperation {
    /// Adds a value.
    Add,
    /// Removes one.
    Remove,
    /// Puts one in the place of another.
    Replace,
    /// Moves one.
    Move,
    /// Copies one.
    Copy,
    /// Refuses the patch unless the value is the one given.
    Test,
}

/// Labels or annotations.
pub type Texts = BTreeMap<String, String>;
