//! The `PodDisruptionBudget` over all pods of a fleet: exactly one, as two that select one pod make evictions fail. It always
//! allows one pod, so that no node is undrainable.

use super::{Desired, Fleet, Group, Ownership, deployment};
use crate::api::{IngressDeploymentSpec, Zone};
use serde_json::json;

const GROUP: Group = Group { api_version: "policy/v1", kind: "PodDisruptionBudget", plural: "poddisruptionbudgets" };

pub(super) fn budget(fleet: Fleet<'_>) -> Option<Desired> {
    let spec = &fleet.deployment.spec;
    let names = fleet.names();
    let most = spec.autoscaling.as_ref().map_or(spec.total_replicas(), |autoscaling| autoscaling.max_replicas);
    // of one pod none can be spared: then nothing is said, as its node has to be drained some day
    (most >= 2).then(|| {
        let budget = json!({
            "maxUnavailable": pods(spec),
            "unhealthyPodEvictionPolicy": spec.disruption.unhealthy_pod_eviction_policy.as_str(),
            "selector": {"matchLabels": names.selector()},
        });
        fleet.namespaced(GROUP, names.fleet, Ownership::Owned, &json!({"spec": budget}))
    })
}

/// How many pods may be missing at a time, through evictions and through what the operator does: as said, else one of two
/// or three and a quarter of more, as far as what has to serve leaves that. An integer: Kubernetes would round a share up.
pub(in crate::fleet) fn pods(spec: &IngressDeploymentSpec) -> i32 {
    let total = spec.total_replicas();
    let usual = || {
        // evictions may all be in one zone
        let left = |(zone, (_, size)): (&Zone, (_, i32))| zone.min_ready.filter(|least| *least > 0).map(|least| size - least);
        let left_in_zones = spec.zones.iter().zip(deployment::zones(spec, total)).filter_map(left);
        let left = spec.rollout.min_ready.map(|least| total - least);
        left_in_zones.chain(left).fold(total / 4, i32::min)
    };
    spec.disruption.max_unavailable.unwrap_or_else(usual).max(1)
}
