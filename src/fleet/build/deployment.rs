//! The Deployments of a fleet: one for each listed zone, else one.

use super::{ANNOTATION_TEMPLATE, Desired, Fleet, Group, Ownership, patch, pod};
use crate::api::{IngressDeploymentSpec, PublishingType, UpgradePolicy};
use crate::fleet::{ZoneSize, replicas};
use crate::report::Diagnostic;
use serde_json::{Value, json};

const GROUP: Group = Group { api_version: "apps/v1", kind: "Deployment", plural: "deployments" };
/// Former templates that Kubernetes keeps for `kubectl rollout undo`.
const HISTORY: i32 = 3;

pub(super) fn deployments(fleet: Fleet<'_>) -> Result<Vec<Desired>, Vec<Diagnostic>> {
    let spec = &fleet.deployment.spec;
    zones(spec, spec.total_replicas()).into_iter().map(|(zone, size)| deployment(fleet, zone, size)).collect()
}

/// The Deployments of a fleet by zone, each with its share of `total` pods (or what the zone says itself).
pub(super) fn zones(spec: &IngressDeploymentSpec, total: i32) -> Vec<(Option<&str>, i32)> {
    if spec.zones.is_empty() {
        return vec![(None, total)];
    }
    let size = |replicas: i32| u32::try_from(replicas).unwrap_or(0);
    let sizes: Vec<ZoneSize> =
        spec.zones.iter().map(|zone| ZoneSize { name: zone.name.as_str().into(), replicas: zone.replicas.map(size) }).collect();
    let all = replicas(size(total), &sizes);
    let count = |name: &str| all.iter().filter(|replica| replica.zone.as_deref() == Some(name)).count();
    spec.zones.iter().map(|zone| (Some(zone.name.as_str()), i32::try_from(count(&zone.name)).unwrap_or(i32::MAX))).collect()
}

fn deployment(fleet: Fleet<'_>, zone: Option<&str>, size: i32) -> Result<Desired, Vec<Diagnostic>> {
    let spec = &fleet.deployment.spec;
    let names = fleet.names();
    let name = names.deployment(zone);
    let (template, made_from) = template(fleet, zone, &name)?;
    let mut body = json!({
        "minReadySeconds": spec.rollout.min_ready_seconds,
        "progressDeadlineSeconds": spec.rollout.progress_deadline_seconds,
        "revisionHistoryLimit": HISTORY,
        "selector": {"matchLabels": names.deployment_selector(zone)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling_update(spec, size)},
        "template": template,
    });
    if spec.autoscaling.is_none() {
        body["replicas"] = json!(size);
    }
    let rest = json!({"metadata": {"annotations": {ANNOTATION_TEMPLATE: made_from}}, "spec": body});
    Ok(fleet.namespaced(GROUP, &name, Ownership::Labelled, &rest))
}

/// New pods serve before old ones go; where nothing may be added, a quarter is missing for a while, and at least one.
fn rolling_update(spec: &IngressDeploymentSpec, size: i32) -> Value {
    let on_hosts = spec.publishing.kind == PublishingType::HostNetwork;
    let surge = match &spec.rollout.max_surge {
        Some(surge) => json!(surge),
        None if on_hosts => json!(0),
        None => json!("25%"),
    };
    let none_added = on_hosts || spec.rollout.max_surge.as_ref().is_some_and(crate::api::IntOrPercent::is_zero);
    let unavailable = match &spec.rollout.max_unavailable {
        Some(unavailable) if !(none_added && unavailable.is_zero()) => json!(unavailable),
        _ if none_added => json!((size / 4).max(1)),
        _ => json!(0),
    };
    json!({"maxSurge": surge, "maxUnavailable": unavailable})
}

/// The pod template, and what it was made from.
///
/// Images that follow the operator, and the size of the volume, stay what they are in the Deployment `name` as long as
/// nothing else of the template changes: an upgrade of the operator replaces no pod, unless the fleet asks for that and
/// it is its turn.
fn template(fleet: Fleet<'_>, zone: Option<&str>, name: &str) -> Result<(Value, String), Vec<Diagnostic>> {
    let spec = &fleet.deployment.spec;
    let plain = patch::patched(fleet, pod::template(fleet, zone, &pod::Images::NONE, 0))?;
    let made_from = json!([plain, spec.haproxy_version, spec.image]).to_string();
    let made_from = blake3::hash(made_from.as_bytes()).to_hex()[..16].to_owned();
    let in_use = fleet.observed.deployments.get(name);
    let unchanged = in_use.filter(|in_use| in_use.template.as_deref() == Some(&made_from));
    let take_new = spec.upgrade_policy == UpgradePolicy::Automatic && fleet.context.upgrade_turn;
    let images = pod::Images::of(fleet, unchanged.filter(|_| !take_new));
    let volume = pod::run_volume_bytes(fleet.observed.bundle_bytes, unchanged.and_then(|in_use| in_use.run_volume));
    let template = patch::patched(fleet, pod::template(fleet, zone, &images, volume))?;
    Ok((template, made_from))
}
