//! What the planner decides on, from what the API server and agents say, and its decision in the words of a status.

use super::observed::{Asked, Observed, Pod, PodState, Rules, Template, Zone, count};
use super::step::{Decision, Why};
use crate::api::{IngressDeployment, IngressDeploymentSpec, IntOrPercent, Place, RolloutStatus, Verbs, ZoneStatus};
use crate::fleet::build::{ANNOTATION_TEMPLATE, InUse, LABEL_ZONE, budget, deployment};
use crate::report::{Diagnostic, ObjectRef, codes};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The label of nodes, and since Kubernetes 1.35 of pods, that names their zone.
const NODE_ZONE: &str = "topology.kubernetes.io/zone";
/// The annotation of a pod that says how readily it goes when there are to be fewer.
pub const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// A pod that is still there so long after the end of its grace period is on a node that does not answer.
const BEYOND_GRACE: SignedDuration = SignedDuration::from_secs(60);
/// Characters of a message that a status holds.
const MESSAGE: usize = 1024;
/// Reasons that a message tells.
const REASONS: usize = 4;

/// What the agent of a pod says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// Whether it has confirmed a configuration that is not too old.
    pub confirmed: bool,
    /// Connections that are open.
    pub connections: u64,
}

/// What is known of a fleet.
#[derive(Clone, Copy)]
pub struct Facts<'f> {
    /// What is asked for.
    pub fleet: &'f IngressDeployment,
    /// How it is steered.
    pub verbs: &'f Verbs,
    /// The template that is asked for.
    pub desired: &'f Template,
    /// Its Deployments by name, all read at one moment.
    pub deployments: &'f BTreeMap<String, Value>,
    /// Its pods by name, read after that.
    pub pods: &'f BTreeMap<String, Value>,
    /// What the agent of a pod says.
    pub said: &'f (dyn Fn(&str) -> Said + Sync),
    /// Whether agents had time to say something since this replica began to lead.
    pub agents_known: bool,
    /// The present.
    pub now: Timestamp,
}

/// What the planner decides on.
pub fn observe(facts: &Facts<'_>) -> Observed {
    let spec = &facts.fleet.spec;
    let in_use: Vec<(&Value, InUse)> = facts.deployments.values().map(|deployment| (deployment, InUse::of(deployment))).collect();
    let budget = unsigned(budget::pods(spec));
    let sizes = sizes(spec, &in_use);
    let zones: Vec<Zone> = sizes.iter().filter_map(|(name, wanted)| zone(facts, &in_use, name.as_deref(), *wanted, budget)).collect();
    let total: u32 = zones.iter().map(|zone| zone.wanted.unwrap_or(zone.replicas)).sum();
    let aborted = facts.verbs.aborted.as_deref().map(template);
    let stable = facts.verbs.stable.as_deref().map(template);
    let is_aborted = aborted.as_ref() == Some(facts.desired);
    // who gives a template up has to have another one everywhere
    let has = |in_use: &InUse, template: &Template| {
        in_use.applied.template == *template || in_use.previous.as_ref().is_some_and(|previous| previous.template == *template)
    };
    let stable = stable.filter(|stable| !is_aborted || in_use.iter().all(|(_, in_use)| has(in_use, stable)));
    Observed {
        synced: facts.agents_known && zones.len() == sizes.len(),
        desired: facts.desired.clone(),
        stable,
        aborted,
        frozen: spec.paused,
        rollout_paused: facts.verbs.paused,
        min_ready: spec.rollout.min_ready.map_or(total.saturating_sub(budget), unsigned),
        budget,
        rules: rules(spec),
        zones,
    }
}

fn template(name: &str) -> Template {
    Template(name.into())
}

fn unsigned(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

fn rules(spec: &IngressDeploymentSpec) -> Rules {
    let (rollout, policy) = (&spec.rollout, &spec.rollout.zone_policy);
    Rules {
        min_ready: SignedDuration::from_secs(rollout.min_ready_seconds.into()),
        deadline: SignedDuration::from_secs(rollout.progress_deadline_seconds.into()),
        between_zones: SignedDuration::from_secs(policy.pause_between_zones.seconds().unwrap_or(0).into()),
        auto_abort: policy.auto_abort,
    }
}

/// The zones in their order with the pods that are wanted there: listed ones, then those that are listed no more.
fn sizes(spec: &IngressDeploymentSpec, in_use: &[(&Value, InUse)]) -> Vec<(Option<String>, Option<u32>)> {
    let order = &spec.rollout.zone_policy.order;
    let place = |zone: Option<&str>| order.iter().position(|name| Some(name.as_str()) == zone).unwrap_or(order.len());
    let mut listed = deployment::zones(spec, spec.total_replicas());
    listed.sort_by_key(|(zone, _)| place(*zone));
    let is_listed = |zone: Option<&str>| listed.iter().any(|(listed, _)| *listed == zone);
    let left = in_use.iter().map(|(_, in_use)| in_use.zone.as_deref()).filter(|zone| !is_listed(*zone)).map(|zone| (zone, Some(0)));
    let wanted = |size: i32| spec.autoscaling.is_none().then(|| unsigned(size));
    let all = listed.iter().map(|(zone, size)| (*zone, wanted(*size))).chain(left);
    all.map(|(zone, wanted)| (zone.map(str::to_owned), wanted)).collect()
}

fn zone(facts: &Facts<'_>, in_use: &[(&Value, InUse)], name: Option<&str>, wanted: Option<u32>, budget: u32) -> Option<Zone> {
    let (deployment, in_use) = in_use.iter().find(|(_, in_use)| in_use.zone.as_deref() == name)?;
    let (status, number) = (&deployment["status"], |value: &Value| value.as_u64().and_then(|number| number.try_into().ok()).unwrap_or(0));
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let progress = conditions.find(|condition| condition["type"] == "Progressing").unwrap_or(&Value::Null);
    let completed = (progress["reason"] == "NewReplicaSetAvailable").then(|| time(&progress["lastUpdateTime"])).flatten();
    let said = facts.fleet.spec.zones.iter().find(|zone| Some(zone.name.as_str()) == name).and_then(|zone| zone.min_ready);
    let replicas = unsigned(in_use.replicas);
    let is_here = |pod: &&Value| pod["metadata"]["labels"][LABEL_ZONE].as_str().unwrap_or_default() == name.unwrap_or_default();
    let has_ended = |pod: &Value| matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"));
    Some(Zone {
        name: name.map(Arc::from),
        template: in_use.applied.template.clone(),
        paused: in_use.paused,
        turn: in_use.turn,
        replicas,
        wanted,
        min_ready: said.map_or(0, unsigned),
        max_unavailable: max_unavailable(&deployment["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"], in_use.replicas).min(budget),
        generation: deployment["metadata"]["generation"].as_i64().unwrap_or(0),
        observed_generation: status["observedGeneration"].as_i64().unwrap_or(0),
        reported: number(&status["replicas"]),
        available: number(&status["availableReplicas"]),
        completed,
        overdue: progress["reason"] == "ProgressDeadlineExceeded",
        pods: facts.pods.values().filter(is_here).filter(|pod| !has_ended(pod)).map(|one| pod(facts, one, &in_use.drained)).collect(),
    })
}

fn max_unavailable(said: &Value, replicas: i32) -> u32 {
    let said: Option<IntOrPercent> = serde_json::from_value(said.clone()).ok();
    said.and_then(|said| said.of(replicas, false)).map_or(0, unsigned)
}

fn pod(facts: &Facts<'_>, pod: &Value, drained: &BTreeSet<String>) -> Pod {
    let metadata = &pod["metadata"];
    let name = metadata["name"].as_str().unwrap_or_default();
    let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(Arc::from);
    let place: Option<Arc<str>> = text(&metadata["labels"][NODE_ZONE]).or_else(|| text(&metadata["labels"][LABEL_ZONE]));
    let Said { confirmed, connections } = (facts.said)(name);
    Pod {
        name: name.into(),
        asked: asked(facts.verbs, name, pod["spec"]["nodeName"].as_str(), place.as_deref()),
        place,
        template: text(&metadata["annotations"][ANNOTATION_TEMPLATE]).map(Template),
        state: state(pod),
        node_lost: is_lost(pod, facts.now),
        confirmed,
        streams: connections,
        cost: metadata["annotations"][DELETION_COST].as_str().and_then(|cost| cost.parse().ok()).unwrap_or(0),
        drained: drained.contains(name),
    }
}

fn state(pod: &Value) -> PodState {
    let metadata = &pod["metadata"];
    if !metadata["deletionTimestamp"].is_null() {
        return PodState::Ending;
    }
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let ready = conditions.find(|condition| condition["type"] == "Ready").unwrap_or(&Value::Null);
    let since = time(&ready["lastTransitionTime"]).or_else(|| time(&metadata["creationTimestamp"])).unwrap_or(Timestamp::UNIX_EPOCH);
    if ready["status"] == "True" { PodState::Ready(since) } else { PodState::NotReady(since) }
}

/// Whether the node of a pod that is on its way out does not answer: the pod was taken from it for that, or is there long
/// after its grace period.
fn is_lost(pod: &Value, now: Timestamp) -> bool {
    let Some(ends) = time(&pod["metadata"]["deletionTimestamp"]) else { return false };
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let is_taken = conditions.any(|condition| condition["type"] == "DisruptionTarget" && condition["reason"] == "DeletionByTaintManager");
    is_taken || now.duration_since(ends) > BEYOND_GRACE
}

fn time(value: &Value) -> Option<Timestamp> {
    value.as_str()?.parse().ok()
}

/// What is asked of a pod by hand: the wish that respects least counts.
fn asked(verbs: &Verbs, pod: &str, node: Option<&str>, place: Option<&str>) -> Option<Asked> {
    let wishes = verbs.drains.iter().filter_map(|wish| {
        let (is_meant, asked) = match &wish.place {
            Place::Pod(name) => (name == pod, Asked::Pod),
            Place::Node(name) => (Some(name.as_str()) == node, Asked::Pod),
            Place::Zone(name) => (Some(name.as_str()) == place, Asked::Zone),
        };
        is_meant.then_some(if wish.force { Asked::Forced } else { asked })
    });
    wishes.max()
}

/// Wishes that are about nothing that is there.
pub fn idle_wishes(verbs: &Verbs, observed: &Observed, pods: &BTreeMap<String, Value>, object: &ObjectRef) -> Vec<Diagnostic> {
    let zones: BTreeSet<&str> = observed.zones.iter().filter_map(|zone| zone.name.as_deref()).collect();
    let places: BTreeSet<&str> = observed.zones.iter().flat_map(|zone| &zone.pods).filter_map(|pod| pod.place.as_deref()).collect();
    let is_idle = |place: &Place| match place {
        Place::Pod(name) => !pods.contains_key(name),
        Place::Node(name) => !pods.values().any(|pod| pod["spec"]["nodeName"] == **name),
        Place::Zone(name) => !zones.contains(name.as_str()) && !places.contains(name.as_str()),
    };
    let field = format!("metadata.annotations[\"{}\"]", crate::api::ANNOTATION_DRAIN);
    let tell = |wish: &crate::api::DrainWish| {
        let message = format!("{wish} is no pod, node or zone of this fleet");
        Diagnostic::info(object, field.clone(), codes::NOT_FOUND, message, "take it out of the annotation: `kubectl haproxy-fleet undrain`")
    };
    verbs.drains.iter().filter(|wish| is_idle(&wish.place)).map(tell).collect()
}

/// A decision in the words of a status.
pub fn describe(observed: &Observed, decision: &Decision, now: Timestamp) -> RolloutStatus {
    let look = super::step::Look { observed, now };
    let texts: Vec<&str> = decision.reasons.iter().take(REASONS).map(|reason| reason.text.as_str()).collect();
    let number = |pods: u32| i32::try_from(pods).unwrap_or(i32::MAX);
    let zone = |zone: &Zone| ZoneStatus {
        name: zone.name.as_deref().unwrap_or_default().to_owned(),
        template: zone.template.to_string(),
        replicas: number(zone.replicas),
        updated: number(zone.new_pods()),
        ready: number(look.ready(zone)),
        turn: zone.turn,
    };
    let pods = observed.zones.iter().flat_map(|zone| &zone.pods);
    RolloutStatus {
        state: state_of(observed, decision).to_owned(),
        message: texts.join("; ").chars().take(MESSAGE).collect(),
        template: observed.desired.to_string(),
        stable: observed.stable.as_ref().map(ToString::to_string),
        zones: observed.zones.iter().map(zone).collect(),
        drained: pods.filter(|pod| pod.drained && pod.state != PodState::Ending).map(|pod| pod.name.to_string()).take(100).collect(),
    }
}

fn state_of(observed: &Observed, decision: &Decision) -> &'static str {
    let is_rolling = observed.zones.iter().any(|zone| observed.target() != Some(&zone.template) || zone.is_mixed());
    match decision.reasons.first().map(|reason| reason.why) {
        _ if observed.frozen => "Frozen",
        Some(Why::Stalled) => "Stalled",
        _ if observed.is_aborted() => "Aborted",
        _ if observed.rollout_paused => "Paused",
        Some(Why::AsAsked) | None => "Complete",
        Some(Why::Waits) if !is_rolling => "Waiting",
        Some(_) => "Progressing",
    }
}

/// Whether anything is left to be done, or may be soon.
pub fn is_moving(observed: &Observed, decision: &Decision) -> bool {
    let is_whole =
        |zone: &Zone| count(zone.staying().filter(|pod| pod.may_count())) >= zone.replicas && zone.pods.iter().all(|pod| !pod.ends());
    decision.action.is_some() || decision.reasons.iter().any(|reason| reason.why != Why::AsAsked) || !observed.zones.iter().all(is_whole)
}
