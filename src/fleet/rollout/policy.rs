//! What a spec says about rollouts, wherever the fleet runs.

use super::observed::Rules;
use crate::api::IngressDeploymentSpec;
use k8s_openapi::jiff::SignedDuration;

/// How a rollout goes.
pub fn rules(spec: &IngressDeploymentSpec) -> Rules {
    let (rollout, policy) = (&spec.rollout, &spec.rollout.zone_policy);
    Rules {
        min_ready: SignedDuration::from_secs(rollout.min_ready_seconds.into()),
        deadline: SignedDuration::from_secs(rollout.progress_deadline_seconds.into()),
        between_zones: SignedDuration::from_secs(policy.pause_between_zones.seconds().unwrap_or(0).into()),
        auto_abort: policy.auto_abort,
    }
}

/// Where `zone` stands in the order of zones, of which those that are not named follow in the order of the list.
pub fn place(spec: &IngressDeploymentSpec, zone: Option<&str>) -> usize {
    let order = &spec.rollout.zone_policy.order;
    order.iter().position(|name| Some(name.as_str()) == zone).unwrap_or(order.len())
}

/// How many of `total` pods have to serve, if disruptions may take `budget`.
pub fn min_ready(spec: &IngressDeploymentSpec, total: u32, budget: u32) -> u32 {
    spec.rollout.min_ready.map_or(total.saturating_sub(budget), unsigned)
}

/// How many pods have to serve in `zone`.
pub fn min_ready_in(spec: &IngressDeploymentSpec, zone: Option<&str>) -> u32 {
    let said = spec.zones.iter().find(|listed| Some(listed.name.as_str()) == zone).and_then(|listed| listed.min_ready);
    said.map_or(0, unsigned)
}

fn unsigned(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}
