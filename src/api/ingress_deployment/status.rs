//! What is the case with a fleet.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What is the case with a fleet. Written at most once in 5 s; what changes faster is in the operator's metrics and
/// in its `/status`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct IngressDeploymentStatus {
    /// The generation of the spec that this status is about; -1 before the operator has seen it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How many pods are wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    /// How many pods are ready and serve the present revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_replicas: Option<i32>,
    /// How many pods are of the present pod template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated_replicas: Option<i32>,
    /// How many pods have been ready for `rollout.minReadySeconds`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_replicas: Option<i32>,
    /// Ready of wanted pods as text, such as `2/3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub ready: Option<String>,
    /// Selects the pods, for the scale subresource.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    pub selector: Option<String>,
    /// Ready of wanted pods by zone as text, such as `a 2/2, b 1/1`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 4096))]
    pub zones: Option<String>,
    /// Where clients connect to: the first of `addresses`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub address: Option<String>,
    /// All IP addresses and host names that clients can connect to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 253)))]
    pub addresses: Vec<String>,
    /// The version of HAProxy that the pods run; the oldest one while they differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub haproxy_version: Option<String>,
    /// The revision that is served: it grows with every change of sections, backends and routes. While the fleet is rolled
    /// back, the one that it went back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<i64>,
    /// The digest of what is served in that revision.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub revision_digest: Option<String>,
    /// The revision that people went back to, once all pods have confirmed it; gone once all have confirmed the present again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pinned_revision: Option<i64>,
    /// How many pods have confirmed the revision, of how many are ready, as text such as `3/3`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub confirmed: Option<String>,
    /// How far the rollout of the pod template is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<RolloutStatus>,
    /// What was found wrong in the objects that the fleet serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diagnostics: Option<Diagnostics>,
    /// Conditions. `Ready`, `Reconciling` and `Stalled` are those of kstatus.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// How far the rollout of the pod template is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RolloutStatus {
    /// `Complete`, `Progressing`, `Waiting`, `Paused`, `Aborted` or `Stalled`; `Frozen` with `spec.paused`.
    #[schemars(length(max = 16))]
    pub state: String,
    /// What it does or waits for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub message: String,
    /// The template that the spec asks for, by its hash.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 64))]
    pub template: String,
    /// The template that the whole fleet ran last: what a rollout is taken back to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub stable: Option<String>,
    /// The zones in the order in which they are changed; one without a name where none are listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 40))]
    pub zones: Vec<ZoneStatus>,
    /// The pods that are drained by hand.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 100), inner(length(max = 253)))]
    pub drained: Vec<String>,
}

/// How far the rollout of the pod template is in one zone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ZoneStatus {
    /// Its name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 63))]
    pub name: String,
    /// The template that its pods are to have now, by its hash.
    #[schemars(length(max = 64))]
    pub template: String,
    /// How many pods it is to have.
    pub replicas: i32,
    /// How many have that template.
    pub updated: i32,
    /// How many serve, have confirmed their configuration, and are ready for long enough.
    pub ready: i32,
    /// Whether pods may be taken from it now.
    pub turn: bool,
    /// Whether no more of its pods are replaced for now.
    #[serde(default)]
    pub paused: bool,
}

/// What was found wrong in the objects that a fleet serves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Diagnostics {
    /// How many things have no effect.
    #[serde(default)]
    pub errors: i32,
    /// How many things probably work otherwise than meant.
    #[serde(default)]
    pub warnings: i32,
    /// The ten worst. All of them are in the operator's `/status`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 10))]
    pub worst: Vec<Finding>,
}

/// A finding about one object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Finding {
    /// `error` or `warning`.
    #[schemars(length(max = 16))]
    pub severity: String,
    /// What kind of finding: a stable name.
    #[schemars(length(max = 64))]
    pub code: String,
    /// The object, such as `Ingress shop/web`.
    #[schemars(length(max = 600))]
    pub object: String,
    /// The field.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 512))]
    pub field: String,
    /// What is wrong.
    #[schemars(length(max = 1024))]
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub help: String,
}
