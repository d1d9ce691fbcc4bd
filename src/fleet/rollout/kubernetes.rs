//! What the planner decides on, from what the API server and agents say, and its decision in the words of a status.

use super::observed::{Asked, Observed, Pod, PodState, Template, Zone, count};
use super::policy;
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
/// A pod that was not ready when its deletion began, and is still there so long after the end of its grace period, is on a
/// node that does not answer.
const BEYOND_GRACE: SignedDuration = SignedDuration::from_secs(60);
/// So is one that was ready, so long after that: clocks do not differ by as much.
const FAR_BEYOND_GRACE: SignedDuration = SignedDuration::from_hours(1);
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
    let in_use = facts.deployments.values().map(|deployment| (deployment, InUse::of(deployment)));
    let in_use: Vec<(&Value, InUse)> = in_use.filter(|(_, in_use)| !is_left_behind(facts, in_use)).collect();
    let budget = unsigned(budget::pods(spec));
    let sizes = sizes(spec, &in_use);
    let zones: Vec<Zone> = sizes.iter().filter_map(|(name, wanted)| zone(facts, &in_use, name.as_deref(), *wanted, budget)).collect();
    let lacks = |name: Option<&str>| zones.iter().all(|zone| zone.name.as_deref() != name);
    let missing: Vec<&(Option<String>, Option<u32>)> = sizes.iter().filter(|(name, _)| lacks(name.as_deref())).collect();
    let there: u32 = zones.iter().map(|zone| zone.wanted.unwrap_or(zone.replicas)).sum();
    let total = there + missing.iter().filter_map(|(_, wanted)| *wanted).sum::<u32>();
    let aborted = facts.verbs.aborted.as_deref().map(template);
    let stable = facts.verbs.stable.as_deref().map(template);
    let mut observed = Observed {
        synced: facts.agents_known,
        desired: facts.desired.clone(),
        stable,
        aborted,
        frozen: spec.paused,
        rollout_paused: facts.verbs.paused,
        min_ready: policy::min_ready(spec, total, budget),
        budget,
        rules: policy::rules(spec),
        missing: missing.into_iter().map(|(name, _)| name.as_deref().map(Arc::from)).collect(),
        zones,
    };
    // who gives a template up has to have another one
    if observed.is_aborted() {
        observed.stable = observed.stable.filter(|stable| can_have(&in_use, stable));
    }
    observed
}

/// Whether all Deployments can have a template: those of listed zones have what any of them has.
fn can_have(in_use: &[(&Value, InUse)], template: &Template) -> bool {
    let has = |in_use: &InUse| std::iter::once(&in_use.applied).chain(&in_use.previous).any(|applied| applied.template == *template);
    let a_zone_has = in_use.iter().any(|(_, in_use)| in_use.zone.is_some() && has(in_use));
    in_use.iter().all(|(_, in_use)| has(in_use) || in_use.zone.is_some() && a_zone_has)
}

fn template(name: &str) -> Template {
    Template(name.into())
}

fn unsigned(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

/// Whether a Deployment is of a zone that is listed no more, and has nothing left: it is written no more, only removed.
fn is_left_behind(facts: &Facts<'_>, in_use: &InUse) -> bool {
    let (spec, zone) = (&facts.fleet.spec, in_use.zone.as_deref());
    let is_listed = || deployment::zones(spec, spec.total_replicas()).iter().any(|(listed, _)| *listed == zone);
    let mut pods = facts.pods.values().filter(|pod| is_of(pod, zone));
    in_use.is_empty && !is_listed() && pods.all(|pod| is_lost(pod, facts.now))
}

/// The zones in their order with the pods that are wanted there: listed ones, then those that are listed no more.
fn sizes(spec: &IngressDeploymentSpec, in_use: &[(&Value, InUse)]) -> Vec<(Option<String>, Option<u32>)> {
    let mut listed = deployment::zones(spec, spec.total_replicas());
    listed.sort_by_key(|(zone, _)| policy::place(spec, *zone));
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
    let replicas = unsigned(in_use.replicas);
    let pods: Vec<Pod> = facts.pods.values().filter(|pod| is_of(pod, name)).map(|one| pod(facts, one, &in_use.drained)).collect();
    let strategy = &deployment["spec"]["strategy"]["rollingUpdate"];
    let added = share(&strategy["maxSurge"], in_use.replicas, true);
    let lacks_pods = count(pods.iter().filter(|pod| pod.state != PodState::Ending)) < replicas.saturating_add(added);
    Some(Zone {
        name: name.map(Arc::from),
        template: in_use.applied.template.clone(),
        paused: in_use.paused,
        turn: in_use.turn,
        replicas,
        wanted,
        min_ready: policy::min_ready_in(&facts.fleet.spec, name),
        max_unavailable: share(&strategy["maxUnavailable"], in_use.replicas, false).min(budget),
        generation: deployment["metadata"]["generation"].as_i64().unwrap_or(0),
        observed_generation: status["observedGeneration"].as_i64().unwrap_or(0),
        reported: number(&status["replicas"]),
        available: number(&status["availableReplicas"]),
        completed,
        overdue: progress["reason"] == "ProgressDeadlineExceeded" && !in_use.paused && lacks_pods,
        pods,
    })
}

/// Whether a pod is of `zone`, and has not ended.
fn is_of(pod: &Value, zone: Option<&str>) -> bool {
    let metadata = &pod["metadata"];
    // what else has our labels, Kubernetes does not count
    let is_owner = |owner: &Value| owner["kind"] == "ReplicaSet" && owner["controller"] == true;
    metadata["labels"][LABEL_ZONE].as_str().unwrap_or_default() == zone.unwrap_or_default()
        && metadata["ownerReferences"].as_array().into_iter().flatten().any(is_owner)
        && !matches!(pod["status"]["phase"].as_str(), Some("Failed" | "Succeeded"))
}

fn share(said: &Value, replicas: i32, round_up: bool) -> u32 {
    let said: Option<IntOrPercent> = serde_json::from_value(said.clone()).ok();
    said.and_then(|said| said.of(replicas, round_up)).map_or(0, unsigned)
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
        crashes_since: time(&metadata["creationTimestamp"]).filter(|_| crashes(facts, pod)),
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
    let ready = condition(pod, "Ready");
    let since = time(&ready["lastTransitionTime"]).or_else(|| time(&metadata["creationTimestamp"])).unwrap_or(Timestamp::UNIX_EPOCH);
    if ready["status"] == "True" { PodState::Ready(since) } else { PodState::NotReady(since) }
}

/// Whether containers of a pod end again and again: neither what ran last nor what runs now held for as long as a rollout
/// waits.
fn crashes(facts: &Facts<'_>, pod: &Value) -> bool {
    let rules = policy::rules(&facts.fleet.spec);
    let held = |from: &Value, to: Timestamp| time(from).is_some_and(|from| to.duration_since(from) >= rules.min_ready + rules.deadline);
    let crashes = |container: &Value| {
        let (last, present) = (&container["lastState"]["terminated"], &container["state"]);
        let has_held = time(&last["finishedAt"]).is_some_and(|end| held(&last["startedAt"], end));
        let is_over = has_held || held(&present["running"]["startedAt"], facts.now) || present["terminated"]["exitCode"] == 0;
        container["restartCount"].as_u64().is_some_and(|restarts| restarts > 0) && !is_over
    };
    let lists = ["containerStatuses", "initContainerStatuses"].map(|list| pod["status"][list].as_array());
    lists.into_iter().flatten().flatten().any(crashes)
}

/// Whether the node of a pod that is on its way out does not answer: the pod was taken from it for that, or is there long
/// after its grace period. Kubernetes marks the pods of such a node as not ready before it takes them. Who was ready until
/// then drains, whatever took it: a taint drives pods from nodes that are well, too.
fn is_lost(pod: &Value, now: Timestamp) -> bool {
    let metadata = &pod["metadata"];
    let Some(ends) = time(&metadata["deletionTimestamp"]) else { return false };
    let grace = SignedDuration::from_secs(metadata["deletionGracePeriodSeconds"].as_i64().unwrap_or(0));
    let is_taken = condition(pod, "DisruptionTarget")["reason"] == "DeletionByTaintManager";
    let ready = condition(pod, "Ready");
    let was_unready = ready["status"] != "True" && time(&ready["lastTransitionTime"]).is_none_or(|since| since <= ends - grace);
    let beyond = now.duration_since(ends);
    was_unready && (is_taken || beyond > BEYOND_GRACE) || beyond > FAR_BEYOND_GRACE
}

fn condition<'p>(pod: &'p Value, kind: &str) -> &'p Value {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.find(|condition| condition["type"] == *kind).unwrap_or(&Value::Null)
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
        paused: zone.paused,
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
    let is_rolling =
        !observed.missing.is_empty() || observed.zones.iter().any(|zone| observed.target() != Some(&zone.template) || zone.is_mixed());
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

/// Whether `zone` has pods, those on their way out included, but for those on nodes that do not answer.
pub fn has_pods(observed: &Observed, zone: Option<&str>) -> bool {
    let mut here = observed.zones.iter().filter(|one| one.name.as_deref() == zone);
    here.any(|zone| zone.pods.iter().any(|pod| !pod.node_lost))
}

/// Whether anything is left to be done, or may be soon.
pub fn is_moving(observed: &Observed, decision: &Decision) -> bool {
    let is_whole =
        |zone: &Zone| count(zone.staying().filter(|pod| pod.may_count())) >= zone.replicas && zone.pods.iter().all(|pod| !pod.ends());
    decision.action.is_some() || decision.reasons.iter().any(|reason| reason.why != Why::AsAsked) || !observed.zones.iter().all(is_whole)
}

/// Whether there is nothing to do before somebody changes something, or a pod becomes what it is to be.
pub fn is_held(decision: &Decision) -> bool {
    let is_held = |why: Why| matches!(why, Why::AsAsked | Why::Paused | Why::Frozen | Why::Aborted | Why::Stalled);
    decision.action.is_none() && decision.reasons.iter().all(|reason| is_held(reason.why))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::api::{Meta, Pairs};
    use crate::fleet::rollout::{Action, Change, step};
    use crate::report::Kind;
    use serde_json::json;

    const NOW: &str = "2026-01-31T12:00:00Z";

    /// What the API server shows of a Deployment whose pods are all as they should be.
    fn deployment(zone: &str, template: &str, replicas: u32) -> (String, Value) {
        let applied = json!({"template": template, "madeFrom": "m", "body": {"spec": {}}}).to_string();
        let name = if zone.is_empty() { "edge".to_owned() } else { format!("edge-{zone}") };
        let object = json!({
            "metadata": {"name": name, "generation": 3, "resourceVersion": "7", "annotations": {
                "haproxy-fleet.dev/applied-template": applied, "haproxy-fleet.dev/template": template,
            }},
            "spec": {"replicas": replicas, "selector": {"matchLabels": {LABEL_ZONE: zone}},
                "strategy": {"rollingUpdate": {"maxSurge": "25%", "maxUnavailable": 0}}},
            "status": {"observedGeneration": 3, "replicas": replicas, "availableReplicas": replicas, "conditions": [
                {"type": "Available", "status": "True"},
                {"type": "Progressing", "status": "True", "reason": "NewReplicaSetAvailable", "lastUpdateTime": "2026-01-31T11:00:00Z"},
            ]},
        });
        (name, object)
    }

    fn pod(name: &str, zone: &str, template: &str) -> (String, Value) {
        let object = json!({
            "metadata": {"name": name, "labels": {LABEL_ZONE: zone, NODE_ZONE: zone}, "annotations": {ANNOTATION_TEMPLATE: template},
                "creationTimestamp": "2026-01-31T10:00:00Z",
                "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "edge-1", "controller": true}]},
            "spec": {"nodeName": format!("node-{zone}")},
            "status": {"phase": "Running", "conditions": [
                {"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-31T10:01:00Z"},
            ]},
        });
        (name.to_owned(), object)
    }

    struct World {
        fleet: IngressDeployment,
        desired: &'static str,
        deployments: BTreeMap<String, Value>,
        pods: BTreeMap<String, Value>,
        agents_known: bool,
    }

    impl World {
        /// Two zones of two pods, all with the template `t1`, which the fleet asks for and ran last.
        fn new() -> Self {
            let spec = json!({"ingressClassName": "edge", "replicas": 4, "zones": [{"name": "a"}, {"name": "b"}]});
            let mut world = Self {
                fleet: IngressDeployment { meta: Meta::named("infra", "edge"), spec: serde_json::from_value(spec).unwrap() },
                desired: "t1",
                deployments: ["a", "b"].map(|zone| deployment(zone, "t1", 2)).into(),
                pods: ["a", "b"].into_iter().flat_map(|zone| [0, 1].map(|n| pod(&format!("{zone}{n}"), zone, "t1"))).collect(),
                agents_known: true,
            };
            world.annotate(&[]);
            world
        }

        fn annotate(&mut self, annotations: &[(&str, &str)]) {
            let stable = (crate::api::ANNOTATION_STABLE, "t1");
            self.fleet.meta.annotations = annotations.iter().copied().chain([stable]).collect::<Pairs>();
        }

        fn observed(&self) -> Observed {
            let verbs = Verbs::of(&self.fleet.meta.annotations, &object());
            let said = |_: &str| Said { confirmed: true, connections: 5 };
            observe(&Facts {
                fleet: &self.fleet,
                verbs: &verbs,
                desired: &template(self.desired),
                deployments: &self.deployments,
                pods: &self.pods,
                said: &said,
                agents_known: self.agents_known,
                now: NOW.parse().unwrap(),
            })
        }

        /// The state and the message that the status tells.
        fn told(&self) -> (String, String) {
            let (observed, now) = (self.observed(), NOW.parse().unwrap());
            let status = describe(&observed, &step(&observed, now), now);
            (status.state, status.message)
        }
    }

    fn object() -> ObjectRef {
        ObjectRef::new(Kind::IngressDeployment, "infra", "edge")
    }

    #[test]
    fn a_fleet_as_asked_has_nothing_to_do_and_is_not_looked_at_again_for_it() {
        let world = World::new();
        let (observed, now) = (world.observed(), NOW.parse().unwrap());
        let decision = step(&observed, now);
        assert_eq!(decision.action, None, "{decision:?}");
        assert!(!is_moving(&observed, &decision));
        assert_eq!(world.told(), ("Complete".to_owned(), "all zones run the desired template".to_owned()));
        let status = describe(&observed, &decision, now);
        let zones: Vec<(&str, i32, i32, i32)> =
            status.zones.iter().map(|zone| (&*zone.name, zone.replicas, zone.updated, zone.ready)).collect();
        assert_eq!(zones, [("a", 2, 2, 2), ("b", 2, 2, 2)]);
        assert_eq!((status.template.as_str(), status.stable.as_deref()), ("t1", Some("t1")));
    }

    #[test]
    fn zones_are_changed_in_the_order_that_the_spec_says() {
        let mut world = World::new();
        world.fleet.spec.rollout.zone_policy.order = vec!["b".to_owned()];
        let names = |world: &World| world.observed().zones.iter().map(|zone| zone.name.as_deref().unwrap().to_owned()).collect::<Vec<_>>();
        assert_eq!(names(&world), ["b", "a"]);
        // one that is listed no more comes last, and is to be emptied
        world.fleet.spec.zones.remove(0);
        world.fleet.spec.rollout.zone_policy.order.clear();
        assert_eq!(names(&world), ["b", "a"]);
        assert_eq!(world.observed().zones[1].wanted, Some(0));
    }

    #[test]
    fn nothing_is_decided_before_agents_could_speak() {
        let mut world = World::new();
        assert!(world.observed().synced);
        world.agents_known = false;
        assert!(!world.observed().synced);
    }

    #[test]
    fn a_zone_without_a_deployment_is_waited_for_and_the_others_are_looked_after() {
        let mut world = World::new();
        let b = world.deployments.remove("edge-b").unwrap();
        let observed = world.observed();
        assert_eq!((observed.missing.len(), observed.min_ready), (1, 3));
        assert_eq!(world.told(), ("Progressing".to_owned(), "zone b has no Deployment".to_owned()));
        world.desired = "t2";
        assert_eq!(world.told(), ("Progressing".to_owned(), "zone a waits: zone b has no Deployment".to_owned()));
        // nothing of that is what the whole fleet runs
        world.fleet.meta.annotations = Pairs::default();
        world.desired = "t1";
        let action = |world: &World| step(&world.observed(), NOW.parse().unwrap()).action;
        assert_eq!(action(&world), None);
        // what is under way is stopped, and what adds pods is done
        world.annotate(&[]);
        let mut a = world.deployments["edge-a"].clone();
        a["spec"]["replicas"] = json!(1);
        let change = |change: Change| Some(Action::Zone(Some("a".into()), change));
        world.deployments.insert("edge-a".to_owned(), a);
        assert_eq!(action(&world), change(Change::Scale(2)));
        world.desired = "t2";
        world.deployments = [deployment("a", "t2", 2)].into();
        assert_eq!(action(&world), change(Change::Pause));
        world.deployments = BTreeMap::new();
        assert_eq!(world.told(), ("Progressing".to_owned(), "zone a has no Deployment".to_owned()));
        world.deployments = [deployment("a", "t1", 2), ("edge-b".to_owned(), b)].into();
        assert_eq!(world.observed().missing, []);
    }

    #[test]
    fn a_zone_that_is_listed_no_more_and_has_nothing_left_is_not_asked_for_anything() {
        let mut world = World::new();
        world.fleet.spec.zones.remove(1);
        world.fleet.spec.replicas = Some(2);
        // as long as it is there, it has another template than is asked for
        let (name, mut b) = deployment("b", "t0", 0);
        b["spec"]["paused"] = json!(true);
        world.deployments.insert(name, b);
        let names = |world: &World| world.observed().zones.into_iter().filter_map(|zone| zone.name).collect::<Vec<_>>();
        assert_eq!(names(&world), ["a".into(), "b".into()], "its pods are there");
        world.pods.retain(|name, _| !name.starts_with('b'));
        assert_eq!(names(&world), ["a".into()]);
        assert_eq!(world.told(), ("Complete".to_owned(), "all zones run the desired template".to_owned()));
    }

    #[test]
    fn a_pod_that_only_has_our_labels_is_not_ours() {
        let mut world = World::new();
        for owners in [Value::Null, json!([{"apiVersion": "batch/v1", "kind": "Job", "name": "edge", "controller": true}])] {
            let (name, mut stray) = pod("stray", "a", "t0");
            stray["metadata"]["ownerReferences"] = owners;
            world.pods.insert(name, stray);
            assert_eq!(world.observed().zones[0].pods.len(), 2);
            assert_eq!(world.told(), ("Complete".to_owned(), "all zones run the desired template".to_owned()));
        }
    }

    #[test]
    fn what_serves_at_least_is_what_disruptions_leave_unless_it_is_said() {
        let mut world = World::new();
        assert_eq!((world.observed().min_ready, world.observed().budget), (3, 1));
        world.fleet.spec.rollout.min_ready = Some(1);
        world.fleet.spec.disruption.max_unavailable = Some(2);
        world.fleet.spec.zones[1].min_ready = Some(2);
        let observed = world.observed();
        assert_eq!((observed.min_ready, observed.budget, observed.zones[0].min_ready, observed.zones[1].min_ready), (1, 2, 0, 2));
    }

    #[test]
    fn a_pod_that_is_going_or_that_has_ended_is_no_capacity() {
        let mut world = World::new();
        let state = |world: &World, name: &str| {
            world
                .observed()
                .zones
                .iter()
                .flat_map(|zone| zone.pods.clone())
                .find(|pod| &*pod.name == name)
                .map(|pod| (pod.state, pod.node_lost))
        };
        let since = "2026-01-31T10:01:00Z".parse().unwrap();
        assert_eq!(state(&world, "a0"), Some((PodState::Ready(since), false)));
        world.pods.get_mut("a0").unwrap()["status"]["conditions"][0]["status"] = json!("False");
        assert_eq!(state(&world, "a0"), Some((PodState::NotReady(since), false)));
        world.pods.get_mut("a0").unwrap()["metadata"]["deletionTimestamp"] = json!("2026-01-31T12:01:00Z");
        assert_eq!(state(&world, "a0"), Some((PodState::Ending, false)));
        world.pods.get_mut("a0").unwrap()["metadata"]["deletionTimestamp"] = json!("2026-01-31T11:58:00Z");
        assert_eq!(state(&world, "a0"), Some((PodState::Ending, true)), "it is there long after its end: its node is lost");
        world.pods.get_mut("a1").unwrap()["status"]["phase"] = json!("Failed");
        assert_eq!(state(&world, "a1"), None);
    }

    #[test]
    fn kubernetes_lacks_progress_only_where_it_may_go_on_and_pods_are_lacking() {
        let mut world = World::new();
        world.desired = "t2";
        let (name, mut a) = deployment("a", "t2", 2);
        a["metadata"]["annotations"][crate::fleet::build::ANNOTATION_TURN] = json!("true");
        a["status"]["conditions"][1] = json!({"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"});
        world.deployments.insert(name, a);
        let stalled = "zone a: Kubernetes makes no progress; see the Events of its Deployment";
        assert_eq!(world.told(), ("Stalled".to_owned(), stalled.to_owned()));
        // what Kubernetes said before it was paused says nothing of the template that it got since
        let paused = |world: &mut World, paused: bool| world.deployments.get_mut("edge-a").unwrap()["spec"]["paused"] = json!(paused);
        paused(&mut world, true);
        assert_eq!(world.told(), ("Progressing".to_owned(), "zone a: its pods are replaced".to_owned()));
        // nor does it take it back before the next pod has gone
        paused(&mut world, false);
        world.pods.extend([pod("a2", "a", "t2")]);
        (
            world.deployments.get_mut("edge-a").unwrap()["status"]["replicas"],
            world.deployments.get_mut("edge-a").unwrap()["status"]["availableReplicas"],
        ) = (json!(3), json!(3));
        assert_eq!(world.told().0, "Progressing");
    }

    #[test]
    fn a_pod_that_crashes_again_and_again_is_late_although_it_becomes_ready_each_time() {
        let mut world = World::new();
        world.desired = "t2";
        let (name, mut a) = deployment("a", "t2", 2);
        a["metadata"]["annotations"][crate::fleet::build::ANNOTATION_TURN] = json!("true");
        (a["spec"]["paused"], a["status"]["replicas"]) = (json!(true), json!(3));
        world.deployments.insert(name, a);
        let crashed = |made: &str, last: [&str; 2], present: Value| {
            let (name, mut pod) = pod("a2", "a", "t2");
            pod["metadata"]["creationTimestamp"] = json!(made);
            pod["status"]["conditions"][0] = json!({"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-31T11:59:50Z"});
            let last = json!({"terminated": {"startedAt": last[0], "finishedAt": last[1]}});
            pod["status"]["containerStatuses"] = json!([{"restartCount": 3, "lastState": last, "state": present}]);
            (name, pod)
        };
        let backs_off = json!({"waiting": {"reason": "CrashLoopBackOff"}});
        let briefly = ["2026-01-31T11:59:00Z", "2026-01-31T11:59:40Z"];
        // the deadline is 600 s
        world.pods.extend([crashed("2026-01-31T11:50:10Z", briefly, backs_off.clone())]);
        assert_eq!(world.told(), ("Progressing".to_owned(), "pod a2 in zone a is not ready".to_owned()));
        let made = "2026-01-31T11:49:00Z";
        world.pods.extend([crashed(made, briefly, backs_off.clone())]);
        assert_eq!(world.told(), ("Stalled".to_owned(), "pod a2 in zone a is not ready and its time is over".to_owned()));
        let ready = json!({"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-31T12:00:00Z"});
        world.pods.get_mut("a2").unwrap()["status"]["conditions"][0] = ready;
        world.fleet.spec.rollout.min_ready_seconds = 30;
        assert_eq!(world.told().0, "Stalled", "it is ready for a moment");
        // one that ran for long has its time again, and so has one that runs for long
        world.pods.extend([crashed(made, ["2026-01-31T09:00:00Z", "2026-01-31T11:59:40Z"], backs_off)]);
        assert_eq!(world.told().0, "Progressing");
        world.pods.extend([crashed(made, briefly, json!({"running": {"startedAt": "2026-01-31T11:49:10Z"}}))]);
        assert_eq!(world.told().0, "Progressing");
    }

    #[test]
    fn a_pod_that_was_ready_when_its_deletion_began_drains_and_is_not_lost() {
        let is_lost = |ready: (&str, &str), ends: &str, taken: bool| {
            let (_, mut pod) = pod("a0", "a", "t1");
            (pod["metadata"]["deletionTimestamp"], pod["metadata"]["deletionGracePeriodSeconds"]) = (json!(ends), json!(120));
            let taken = taken.then(|| json!({"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}));
            let ready = json!({"type": "Ready", "status": ready.0, "lastTransitionTime": ready.1});
            pod["status"]["conditions"] = [Some(ready), taken].into_iter().flatten().collect();
            super::is_lost(&pod, NOW.parse().unwrap())
        };
        // a deletion that began at 11:59
        let ends = "2026-01-31T12:01:00Z";
        assert!(!is_lost(("True", "2026-01-31T10:01:00Z"), ends, true), "a taint of a node that is well");
        assert!(!is_lost(("False", "2026-01-31T11:59:45Z"), ends, true), "it stops");
        assert!(is_lost(("False", "2026-01-31T11:59:00Z"), ends, true), "its node does not answer");
        assert!(is_lost(("Unknown", "2026-01-31T11:54:00Z"), ends, true));
        assert!(!is_lost(("False", "2026-01-31T11:54:00Z"), ends, false));
        // one that should be gone
        let ends = "2026-01-31T11:58:00Z";
        assert!(!is_lost(("True", "2026-01-31T10:01:00Z"), ends, false), "our clock may be wrong");
        assert!(is_lost(("False", "2026-01-31T11:50:00Z"), ends, false));
        // a node that was lost after that is in nobody's way for ever
        assert!(is_lost(("False", "2026-01-31T10:59:30Z"), "2026-01-31T10:59:00Z", false));
    }

    #[test]
    fn wishes_to_drain_reach_pods_by_name_node_and_zone() {
        let mut world = World::new();
        let asked = |world: &World| {
            let of = |pod: &Pod| pod.asked.map(|asked| (pod.name.to_string(), asked));
            world.observed().zones.iter().flat_map(|zone| &zone.pods).filter_map(of).collect::<Vec<_>>()
        };
        let is = |wishes: &[(&str, Asked)]| wishes.iter().map(|(pod, asked)| ((*pod).to_owned(), *asked)).collect::<Vec<_>>();
        world.annotate(&[(crate::api::ANNOTATION_DRAIN, "pod/a0")]);
        assert_eq!(asked(&world), is(&[("a0", Asked::Pod)]));
        world.annotate(&[(crate::api::ANNOTATION_DRAIN, "node/node-b, pod/b1:force")]);
        assert_eq!(asked(&world), is(&[("b0", Asked::Pod), ("b1", Asked::Forced)]));
        world.annotate(&[(crate::api::ANNOTATION_DRAIN, "zone/a,pod/a1")]);
        assert_eq!(asked(&world), is(&[("a0", Asked::Zone), ("a1", Asked::Zone)]));
        world.annotate(&[(crate::api::ANNOTATION_DRAIN, "zone/c,pod/x,node/y,zone/a")]);
        let verbs = Verbs::of(&world.fleet.meta.annotations, &object());
        let idle: Vec<String> =
            idle_wishes(&verbs, &world.observed(), &world.pods, &object()).into_iter().map(|found| found.message).collect();
        assert_eq!(idle, ["pod/x", "node/y", "zone/c"].map(|wish| format!("{wish} is no pod, node or zone of this fleet")));
    }

    #[test]
    fn the_last_pod_that_serves_is_drained_by_force_only() {
        let mut world = World::new();
        world.fleet.spec.zones.clear();
        world.fleet.spec.replicas = Some(1);
        world.deployments = [deployment("", "t1", 1)].into();
        world.pods = [pod("a0", "", "t1")].into();
        world.annotate(&[(crate::api::ANNOTATION_DRAIN, "pod/a0")]);
        let (state, message) = world.told();
        assert_eq!(state, "Waiting");
        assert!(message.starts_with("pod a0 is not drained: no other pod serves; `:force`"), "{message}");
        world.annotate(&[(crate::api::ANNOTATION_DRAIN, "pod/a0:force")]);
        assert!(world.told().1.contains("drained by force"), "{:?}", world.told());
    }

    #[test]
    fn the_state_of_a_rollout_is_told_in_a_word() {
        let mut world = World::new();
        world.desired = "t2";
        assert_eq!(world.told().0, "Progressing");
        let held = |world: &World| is_held(&step(&world.observed(), NOW.parse().unwrap()));
        assert!(!held(&world));
        world.annotate(&[(crate::api::ANNOTATION_ROLLOUT, "paused")]);
        assert_eq!(world.told(), ("Paused".to_owned(), "the rollout is paused".to_owned()));
        assert!(held(&world), "it is not looked at time and again until somebody changes something");
        world.annotate(&[(crate::api::ANNOTATION_ABORT, "t2")]);
        assert_eq!(world.told().0, "Aborted");
        world.annotate(&[]);
        world.fleet.spec.paused = true;
        assert_eq!(world.told().0, "Frozen");
    }

    #[test]
    fn a_template_is_given_up_only_where_the_one_before_is_known() {
        let mut world = World::new();
        world.desired = "t2";
        world.annotate(&[(crate::api::ANNOTATION_ABORT, "t2")]);
        let set = |world: &mut World, previous: Value| {
            let (_, mut b) = deployment("b", "t2", 2);
            b["metadata"]["annotations"][crate::fleet::build::ANNOTATION_PREVIOUS] = previous;
            world.deployments.insert("edge-b".to_owned(), b);
        };
        set(&mut world, Value::Null);
        assert_eq!(world.observed().stable, Some(template("t1")), "zone b can have what zone a has");
        let (name, a) = deployment("a", "t2", 2);
        world.deployments.insert(name, a);
        assert_eq!(world.observed().stable, None);
        set(&mut world, json!(json!({"template": "t1", "madeFrom": "m", "body": {"spec": {}}}).to_string()));
        assert_eq!(world.observed().stable, Some(template("t1")));
    }
}
