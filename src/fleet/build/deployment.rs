//! The Deployments of a fleet: one for each listed zone, else one.
//!
//! One that is there keeps its template, its size and whether it is paused: these are the planner's to change, one
//! [`Change`] at a time, on the version of the Deployment that it looked at.

use super::in_use::{ANNOTATION_APPLIED, ANNOTATION_DRAINED, ANNOTATION_PREVIOUS, ANNOTATION_TEMPLATE, ANNOTATION_TURN, Applied, InUse};
use super::template::{Wanted, known};
use super::{Desired, Fleet, Group, Ownership, budget};
use crate::api::{IngressDeploymentSpec, IntOrPercent, PublishingType};
use crate::fleet::rollout::{Change, Template};
use crate::fleet::{ZoneSize, replicas};
use crate::report::Diagnostic;
use serde_json::{Map, Value, json};

const GROUP: Group = Group { api_version: "apps/v1", kind: "Deployment", plural: "deployments" };
/// Former templates that Kubernetes keeps for `kubectl rollout undo`.
const HISTORY: i32 = 3;

pub(super) fn deployments(fleet: Fleet<'_>) -> Result<Vec<Desired>, Vec<Diagnostic>> {
    let spec = &fleet.deployment.spec;
    let wanted = Wanted::of(fleet)?;
    let listed = zones(spec, spec.total_replicas());
    let is_listed = |zone: Option<&str>| listed.iter().any(|(listed, _)| *listed == zone);
    let left = fleet.observed.deployments.values().filter(|in_use| !in_use.is_empty).map(|in_use| in_use.zone.as_deref());
    let left = left.filter(|zone| !is_listed(*zone));
    // one that is listed no more stays until the planner has emptied it
    let all: Vec<(Option<&str>, i32)> = listed.iter().copied().chain(left.map(|zone| (zone, 0))).collect();
    all.into_iter().map(|(zone, size)| deployment(fleet, &wanted, zone, size)).collect()
}

/// The Deployments of a fleet by zone, each with its share of `total` pods (or what the zone says itself).
pub(in crate::fleet) fn zones(spec: &IngressDeploymentSpec, total: i32) -> Vec<(Option<&str>, i32)> {
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

fn deployment(fleet: Fleet<'_>, wanted: &Wanted, zone: Option<&str>, size: i32) -> Result<Desired, Vec<Diagnostic>> {
    let name = fleet.names().deployment(zone);
    let in_use = fleet.observed.deployments.get(&name);
    let mut state = match in_use {
        Some(in_use) => in_use.clone(),
        None => InUse { replicas: size, ..InUse::fresh(first(fleet, wanted, zone)?) },
    };
    let change = fleet.change.filter(|(changed, _)| *changed == zone).map(|(_, change)| change);
    if let Some(change) = change {
        state.change(fleet, wanted, zone, change)?;
    }
    let spec = body(fleet, zone, size, &state);
    let rest = json!({"metadata": {"annotations": state.annotations()}, "spec": spec});
    let only_if = in_use.and_then(|in_use| in_use.version.clone());
    Ok(Desired { only_if, ..fleet.namespaced(GROUP, &name, Ownership::Labelled, &rest) })
}

/// The template of a Deployment that is not there: what the rest of the fleet runs is known to serve, and what is asked for
/// beside that, or was given up, comes in its turn.
fn first(fleet: Fleet<'_>, wanted: &Wanted, zone: Option<&str>) -> Result<Applied, Vec<Diagnostic>> {
    let stable = fleet.verbs().stable.map(|stable| Template(stable.into()));
    match stable.and_then(|stable| known(fleet, &stable, zone)) {
        Some(applied) => Ok(applied),
        None => wanted.in_zone(fleet, zone),
    }
}

fn body(fleet: Fleet<'_>, zone: Option<&str>, size: i32, state: &InUse) -> Value {
    let spec = &fleet.deployment.spec;
    let mut body = json!({
        "minReadySeconds": spec.rollout.min_ready_seconds,
        "progressDeadlineSeconds": spec.rollout.progress_deadline_seconds,
        "revisionHistoryLimit": HISTORY,
        "selector": {"matchLabels": fleet.names().deployment_selector(zone)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling_update(spec, size)},
        "template": state.applied.body,
    });
    // an autoscaler counts the pods of the zones that are listed; a number that we wrote stays until it writes another
    // one, as none is the same as one pod
    if spec.autoscaling.is_none() || size == 0 || state.applies_size {
        body["replicas"] = json!(state.replicas);
    }
    if state.paused || state.shares_pause {
        body["paused"] = json!(state.paused);
    }
    body
}

/// New pods serve before old ones go; where nothing may be added, a quarter is missing for a while, and at least one.
/// Never more than evictions may take: rollouts and evictions have one budget.
fn rolling_update(spec: &IngressDeploymentSpec, size: i32) -> Value {
    let on_hosts = spec.publishing.kind == PublishingType::HostNetwork;
    let surge = match &spec.rollout.max_surge {
        Some(surge) => json!(surge),
        None if on_hosts => json!(0),
        None => json!("25%"),
    };
    let none_added = on_hosts || spec.rollout.max_surge.as_ref().is_some_and(IntOrPercent::is_zero);
    let unavailable = match &spec.rollout.max_unavailable {
        Some(unavailable) if !(none_added && unavailable.is_zero()) => unavailable.of(size, false).unwrap_or(0),
        _ if none_added => (size / 4).max(1),
        _ => 0,
    };
    let least = i32::from(none_added);
    json!({"maxSurge": surge, "maxUnavailable": unavailable.min(budget::pods(spec)).max(least)})
}

impl InUse {
    fn fresh(applied: Applied) -> Self {
        Self {
            zone: None,
            version: None,
            applied,
            previous: None,
            paused: false,
            shares_pause: false,
            turn: false,
            drained: std::collections::BTreeSet::new(),
            replicas: 0,
            applies_size: false,
            is_empty: false,
            operator_image: None,
            haproxy_image: None,
            run_volume: None,
        }
    }

    fn annotations(&self) -> Value {
        let mut annotations = Map::new();
        let mut put = |name: &str, value: String| _ = annotations.insert(name.to_owned(), value.into());
        put(ANNOTATION_TEMPLATE, self.applied.template.to_string());
        put(ANNOTATION_APPLIED, self.applied.write());
        if let Some(previous) = &self.previous {
            put(ANNOTATION_PREVIOUS, previous.write());
        }
        if self.turn {
            put(ANNOTATION_TURN, "true".to_owned());
        }
        if !self.drained.is_empty() {
            put(ANNOTATION_DRAINED, self.drained.iter().map(String::as_str).collect::<Vec<_>>().join(","));
        }
        annotations.into()
    }

    fn change(&mut self, fleet: Fleet<'_>, wanted: &Wanted, zone: Option<&str>, change: &Change) -> Result<(), Vec<Diagnostic>> {
        match change {
            Change::TakeTurn => self.turn = true,
            Change::EndTurn => self.turn = false,
            Change::Resume => self.paused = false,
            Change::Pause => self.paused = true,
            Change::Scale(pods) => self.replicas = i32::try_from(*pods).unwrap_or(i32::MAX),
            Change::Drain(pod) => _ = self.drained.insert(pod.to_string()),
            Change::Undrain(pod) => _ = self.drained.remove(&**pod),
            Change::Template(template) => {
                if let Some(next) = named(fleet, wanted, zone, template)? {
                    let before = std::mem::replace(&mut self.applied, next);
                    // what the whole fleet ran last is what it can go back to
                    if fleet.verbs().stable.as_deref() == Some(&*before.template.0) {
                        self.previous = Some(before);
                    }
                    self.paused = true;
                }
            }
        }
        Ok(())
    }
}

/// The template of that name, if there is one.
fn named(fleet: Fleet<'_>, wanted: &Wanted, zone: Option<&str>, template: &Template) -> Result<Option<Applied>, Vec<Diagnostic>> {
    if wanted.template == *template {
        return wanted.in_zone(fleet, zone).map(Some);
    }
    Ok(known(fleet, template, zone))
}
