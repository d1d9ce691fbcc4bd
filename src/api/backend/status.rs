//! What is the case with a `Backend`: whether it is understood, and where it applies.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Whether the Backend is understood, and where it applies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackendStatus {
    /// The generation of the spec that this status is about; -1 before the operator has seen it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// How many objects name it, of those that fleets serve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<i32>,
    /// The first 32 of them, by scope, namespace and name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub used_by: Vec<BackendUse>,
    /// Conditions. `Ready`, `Reconciling` and `Stalled` are those of kstatus.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["type".into()]))]
    pub conditions: Vec<Condition>,
}

/// An object that names the Backend. Of several Backends the nearest wins field by field: Service over Ingress over fleet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct BackendUse {
    /// `IngressDeployment`, `Ingress` or `Service`.
    #[schemars(length(max = 63))]
    pub kind: String,
    /// Its namespace.
    #[schemars(length(max = 63))]
    pub namespace: String,
    /// Its name.
    #[schemars(length(max = 253))]
    pub name: String,
    /// Top-level fields of the Backend that annotations of that object override.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), inner(length(max = 63)))]
    pub overridden: Vec<String>,
}
