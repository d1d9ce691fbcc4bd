//! What is to be done to a fleet now, from all that was seen of it: its objects, with at most one step of its rollout.
//! Pure.

use super::build::{Fleet, build, wanted_template};
use super::controller::{Built, Rolling, Seen};
use super::rollout::kubernetes::{Facts, Said, describe, has_pods, idle_wishes, is_held, is_moving, observe};
use super::rollout::{Action, step};
use crate::report::Diagnostic;
use k8s_openapi::jiff::Timestamp;

/// What agents say.
#[derive(Clone, Copy)]
pub struct Agents<'a> {
    /// Of the agent of a pod.
    pub said: &'a (dyn Fn(&str) -> Said + Sync),
    /// Whether they had time to say something since this replica began to lead.
    pub are_known: bool,
}

/// What is to be done to `fleet`, of which `seen` is there.
///
/// # Errors
///
/// What of the spec cannot be done. Nothing is to be changed then.
pub fn plan(fleet: Fleet<'_>, seen: &Seen, agents: Agents<'_>, now: Timestamp) -> Result<Built, Vec<Diagnostic>> {
    let (desired, verbs) = (wanted_template(fleet)?, fleet.verbs());
    let observed = observe(&Facts {
        fleet: fleet.deployment,
        verbs: &verbs,
        desired: &desired,
        deployments: &seen.deployments,
        pods: &seen.pods,
        said: agents.said,
        agents_known: agents.are_known,
        now,
    });
    let decision = step(&observed, now);
    let change = match &decision.action {
        Some(Action::Zone(zone, change)) => Some((zone.as_deref(), change)),
        _ => None,
    };
    let mut there = fleet.observed.clone();
    for in_use in there.deployments.values_mut() {
        // clients are still at pods on their way out, which Kubernetes counts no more
        in_use.is_empty &= !has_pods(&observed, in_use.zone.as_deref());
    }
    let mut objects = build(Fleet { change, observed: &there, ..fleet })?;
    if observed.frozen {
        // what stops a rollout counts although nothing else is to be changed
        let changed = change.map(|(zone, _)| fleet.names().deployment(zone));
        objects.retain(|object| object.kind == "Deployment" && Some(&object.name) == changed.as_ref());
    }
    let mut findings = verbs.faults.clone();
    findings.extend(idle_wishes(&verbs, &observed, &seen.pods, &fleet.object()));
    let rollout = Rolling {
        status: describe(&observed, &decision, now),
        is_moving: is_moving(&observed, &decision),
        is_held: is_held(&decision),
        recheck: decision.recheck_at.and_then(|at| at.duration_since(now).try_into().ok()),
        action: decision.action,
    };
    Ok(Built { objects, rollout: Some(rollout), findings })
}
