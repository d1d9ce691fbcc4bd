//! How pods come and go: rollouts, disruptions, drain, upgrades.

use super::values::{Duration, IntOrPercent};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a changed pod template comes into force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.minReadySeconds < self.progressDeadlineSeconds")
    .message("progressDeadlineSeconds is more than minReadySeconds"))]
#[x_kube(validation = Rule::new(
    "!has(self.maxSurge) || !has(self.maxUnavailable) || self.maxSurge != 0 && self.maxSurge != '0%' || self.maxUnavailable != 0 && self.maxUnavailable != '0%'")
    .message("maxSurge and maxUnavailable are not both 0"))]
pub struct Rollout {
    /// Pods beyond the wanted ones, as a number or a share (rounded up). `25%` if nothing is said, so that new pods
    /// serve before old ones go; 0 with HostNetwork, whose pods cannot share a node's ports.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_surge: Option<IntOrPercent>,
    /// Pods that may be missing, as a number or a share (rounded down). 0 if nothing is said; where nothing may
    /// be added, a quarter and at least one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_unavailable: Option<IntOrPercent>,
    /// For how long a new pod is ready before it counts: what a load balancer needs to find it healthy.
    #[serde(default = "min_ready_seconds")]
    #[schemars(range(min = 0, max = 3600))]
    pub min_ready_seconds: i32,
    /// After how long without progress a rollout counts as stalled. The old pods keep serving.
    #[serde(default = "progress_deadline_seconds")]
    #[schemars(range(min = 1, max = 86_400))]
    pub progress_deadline_seconds: i32,
    /// Pods that serve at least, over all zones, whatever the operator does: rollouts, sizes and drains by hand wait for
    /// that. If nothing is said, what disruptions leave: all but `disruption.maxUnavailable`. Evictions keep to that
    /// budget only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 1000))]
    pub min_ready: Option<i32>,
    /// How a rollout goes from zone to zone. Never are two listed zones changed at a time.
    #[serde(default)]
    pub zone_policy: ZonePolicy,
}

/// How a rollout goes from zone to zone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ZonePolicy {
    /// The zones that come first, by name; the others follow in the order in which they are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32), inner(length(max = 63)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub order: Vec<String>,
    /// For how long a zone serves with the new template before the next one begins. `0s` if nothing is said.
    #[serde(default = "no_pause")]
    #[x_kube(validation = Rule::new("duration(self) <= duration('24h')").message("at most 24h"))]
    pub pause_between_zones: Duration,
    /// Whether a rollout that makes no progress for `progressDeadlineSeconds` is taken back to the template that the
    /// whole fleet ran last. Else it stops where it is, and says so.
    #[serde(default)]
    pub auto_abort: bool,
}

fn no_pause() -> Duration {
    Duration::from("0s")
}

impl Default for ZonePolicy {
    fn default() -> Self {
        Self { order: Vec::new(), pause_between_zones: no_pause(), auto_abort: false }
    }
}

fn min_ready_seconds() -> i32 {
    30
}

fn progress_deadline_seconds() -> i32 {
    600
}

impl Default for Rollout {
    fn default() -> Self {
        Self {
            max_surge: None,
            max_unavailable: None,
            min_ready_seconds: min_ready_seconds(),
            progress_deadline_seconds: progress_deadline_seconds(),
            min_ready: None,
            zone_policy: ZonePolicy::default(),
        }
    }
}

/// What node drains and other evictions may take: a PodDisruptionBudget over all pods, of two pods or more. It always
/// allows one, so that nodes can be drained.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Disruption {
    /// Pods that may be missing at a time. If nothing is said: one of two or three, a quarter of more,
    /// and not more than `rollout.minReady` and `zones[].minReady` leave, but one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 1000))]
    pub max_unavailable: Option<i32>,
    /// Whether pods that are not ready may be evicted though the budget is spent.
    #[serde(default)]
    pub unhealthy_pod_eviction_policy: UnhealthyPodEvictionPolicy,
}

/// Whether pods that are not ready may be evicted though the budget is spent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UnhealthyPodEvictionPolicy {
    /// They may: a broken pod never keeps a node from being drained.
    #[default]
    AlwaysAllow,
    /// Only while enough others are ready.
    IfHealthyBudget,
}

impl UnhealthyPodEvictionPolicy {
    /// As Kubernetes writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AlwaysAllow => "AlwaysAllow",
            Self::IfHealthyBudget => "IfHealthyBudget",
        }
    }
}

/// How a pod ends without losing a request: it serves while load balancers still send to it, then asks clients
/// to leave, then ends. Its grace period is the sum of the two times and 15 s.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Drain {
    /// For how long a pod that is to end keeps serving: what load balancers need to send nothing more. If nothing is
    /// said, `45s`; `10s` with Private, where only the cluster has to notice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = Rule::new("duration(self) <= duration('15m')").message("at most 15m"))]
    pub deregistration_delay: Option<Duration>,
    /// For how long connections that are left may finish. What is open then is cut.
    #[serde(default = "timeout")]
    #[x_kube(validation = Rule::new("duration(self) <= duration('24h')").message("at most 24h"))]
    pub timeout: Duration,
}

fn timeout() -> Duration {
    Duration::from("60s")
}

impl Default for Drain {
    fn default() -> Self {
        Self { deregistration_delay: None, timeout: timeout() }
    }
}

/// When the pods of a fleet take what a new operator brings: its agent, and its default image of HAProxy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum UpgradePolicy {
    /// With the next change of the fleet that replaces its pods anyway. An upgrade of the operator replaces none.
    #[default]
    WithNextRollout,
    /// When it is the fleet's turn: one fleet after the other.
    Automatic,
}
