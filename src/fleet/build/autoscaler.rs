//! A `HorizontalPodAutoscaler` of each Deployment. Listed zones share the bounds as they share replicas.

use super::deployment::zones;
use super::pod::HAPROXY;
use super::{Desired, Fleet, Group, Ownership};
use crate::api::Autoscaling;
use serde_json::{Value, json};

const GROUP: Group = Group { api_version: "autoscaling/v2", kind: "HorizontalPodAutoscaler", plural: "horizontalpodautoscalers" };
/// The share of CPU requests that is aimed at when nothing is said, in percent.
const CPU_UTILIZATION: i32 = 70;

pub(super) fn autoscalers(fleet: Fleet<'_>) -> Vec<Desired> {
    let spec = &fleet.deployment.spec;
    let Some(autoscaling) = &spec.autoscaling else { return Vec::new() };
    let least = zones(spec, autoscaling.min_replicas);
    let most = zones(spec, autoscaling.max_replicas);
    let bounds = least.into_iter().zip(most).map(|((zone, least), (_, most))| (zone, least.max(1), most.max(1)));
    bounds.map(|(zone, least, most)| autoscaler(fleet, autoscaling, &fleet.names().deployment(zone), (least, most))).collect()
}

fn autoscaler(fleet: Fleet<'_>, autoscaling: &Autoscaling, deployment: &str, (least, most): (i32, i32)) -> Desired {
    let mut spec = json!({
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment},
        "minReplicas": least,
        "maxReplicas": most,
        "metrics": autoscaling.metrics.as_ref().map_or_else(|| by_cpu(autoscaling), |metrics| json!(metrics)),
    });
    if let Some(behavior) = &autoscaling.behavior {
        spec["behavior"] = json!(behavior);
    }
    fleet.namespaced(GROUP, deployment, Ownership::Owned, &json!({"spec": spec}))
}

/// By the CPU of HAProxy alone: what the agent beside it needs for a change says nothing about the load.
fn by_cpu(autoscaling: &Autoscaling) -> Value {
    let target = autoscaling.target_cpu_utilization.unwrap_or(CPU_UTILIZATION);
    let source = json!({"name": "cpu", "container": HAPROXY, "target": {"type": "Utilization", "averageUtilization": target}});
    json!([{"type": "ContainerResource", "containerResource": source}])
}
