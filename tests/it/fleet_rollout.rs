//! Rollouts as they are wired: the controller with the real planner against an API server and what plays Kubernetes.

use crate::fleet_controller_rig::Operator;
use crate::fleet_objects::context;
use crate::fleet_rollout_rig::{Cluster, replicas, spec, version};
use fleet_api_server::Verb;
use fleet_api_server::faults::{Action, Matcher, Plan, Rule};
use haproxy_fleet::api::{
    ANNOTATION_ABORT, ANNOTATION_DRAIN, ANNOTATION_RESTARTED_AT, ANNOTATION_ROLLOUT, IngressDeployment, Meta, RolloutStatus,
};
use haproxy_fleet::fleet::build::{ANNOTATION_DRAINED, ANNOTATION_TEMPLATE, Fleet, Observed, build};
use kube::api::{Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};
use std::sync::atomic::Ordering;
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Two zones of two pods.
fn two_zones() -> Value {
    json!({"replicas": 4, "zones": [{"name": "a"}, {"name": "b"}]})
}

/// Two zones of one pod: what matters is who writes when.
fn two_small_zones() -> Value {
    json!({"replicas": 2, "zones": [{"name": "a"}, {"name": "b"}]})
}

fn rollout(operator: &Operator) -> RolloutStatus {
    operator.state().rollout.unwrap_or_default()
}

async fn says(cluster: &Cluster, operator: &Operator, state: &str) -> RolloutStatus {
    cluster.until(&format!("it says {state}"), || rollout(operator).state == state).await;
    rollout(operator)
}

#[tokio::test(start_paused = true)]
async fn a_changed_template_goes_zone_by_zone_and_nothing_is_written_at_rest() {
    let (cluster, operator) = Cluster::with(json!({"replicas": 4, "zones": [{"name": "a"}, {"name": "b"}, {"name": "c"}]})).await;
    let before = cluster.stable();
    cluster.put(version("2"));
    for (zone, rest) in [("edge-a", vec!["edge-b", "edge-c"]), ("edge-b", vec!["edge-c"]), ("edge-c", vec![])] {
        cluster.until(&format!("{zone} is changed"), || cluster.is_all(zone, "2")).await;
        for other in rest {
            assert!(cluster.is_all(other, "1"), "{other} before {zone} is done");
        }
    }
    cluster.serves("2", "rolled out").await;
    cluster.assert_nothing_went_wrong("a rollout");
    assert_ne!(cluster.stable(), before);
    let rollout = says(&cluster, &operator, "Complete").await;
    assert_eq!((rollout.template.as_str(), rollout.stable.as_deref()), (&*cluster.stable(), Some(&*cluster.stable())));
    let zones: Vec<(&str, i32, i32, i32)> = rollout.zones.iter().map(|it| (&*it.name, it.replicas, it.updated, it.ready)).collect();
    assert_eq!(zones, [("a", 2, 2, 2), ("b", 1, 1, 1), ("c", 1, 1, 1)]);
    assert!(cluster.pods().iter().all(|pod| pod["metadata"]["annotations"][ANNOTATION_TEMPLATE] == *rollout.template));
    cluster.rests(6 * MINUTE, "at rest").await;
    drop(operator);
    let _next = cluster.operator(Plan::default());
    cluster.rests(6 * MINUTE, "an operator that starts").await;
}

#[tokio::test(start_paused = true)]
async fn an_operator_that_dies_at_every_single_write_of_a_rollout_gets_it_done() {
    for (from, action) in [(1, Action::CrashAfter), (2, Action::CrashBefore)] {
        let (cluster, operator) = Cluster::with(two_small_zones()).await;
        drop(operator);
        cluster.put(version("2"));
        let mut deaths = 0;
        loop {
            let operator = cluster.operator(Plan::one(Matcher::writes(), from, 1, action));
            cluster.until(&format!("{action:?} or the end"), || operator.faults.has_crashed() || cluster.is_at("2")).await;
            if !operator.faults.has_crashed() {
                break;
            }
            deaths += 1;
        }
        // a turn, a template, going on, the end of the turn: for each zone
        assert!(deaths >= 8, "{action:?}: {deaths}");
        cluster.assert_nothing_went_wrong(&format!("{action:?}"));
    }
}

#[tokio::test(start_paused = true)]
async fn writes_whose_answers_are_lost_or_refused_do_a_rollout_no_harm() {
    let (cluster, operator) = Cluster::with(two_small_zones()).await;
    drop(operator);
    let troubles = [Action::LoseAnswer, Action::Answer(409), Action::Answer(500), Action::Answer(429)].into_iter().cycle();
    let rules = troubles.zip(1..20).map(|(action, n)| Rule { matcher: Matcher::writes(), from: 2 * n, times: 1, action });
    let _operator = cluster.operator(Plan { seed: 0, rules: rules.collect() });
    cluster.put(version("2"));
    cluster.serves("2", "every other write has trouble").await;
    cluster.assert_nothing_went_wrong("every other write has trouble");
}

#[tokio::test(start_paused = true)]
async fn two_controllers_that_both_believe_that_they_lead_do_no_harm() {
    let (cluster, _one) = Cluster::with(two_zones()).await;
    let _other = cluster.operator(Plan::default());
    cluster.put(version("2"));
    cluster.serves("2", "rolled out").await;
    cluster.assert_nothing_went_wrong("two controllers");
}

/// What each of two controllers sees is some seconds old when it writes.
#[tokio::test(start_paused = true)]
async fn two_controllers_that_decide_on_what_was_once_the_case_never_drain_two_zones() {
    for seed in 0..2_u64 {
        let (cluster, one) = Cluster::with(two_small_zones()).await;
        drop(one);
        cluster.onlooker.expect_old_decisions();
        let slow = |plural: &str, seconds: u64, from: u64| Rule {
            matcher: Matcher::of(Verb::List, plural),
            from,
            times: 1000,
            action: Action::Delay(Duration::from_secs(seconds)),
        };
        let _one = cluster.operator(Plan { seed, rules: vec![slow("pods", 1 + seed, 2)] });
        let _other = cluster.operator(Plan { seed, rules: vec![slow("pods", 3, 3 + seed), slow("services", 2 * seed, 5)] });
        cluster.put(version("2"));
        cluster.serves("2", &format!("seed {seed}")).await;
        cluster.assert_nothing_went_wrong(&format!("seed {seed}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_rollout_is_paused_goes_on_and_is_aborted_by_annotations() {
    let (cluster, operator) = Cluster::with(json!({"replicas": 3, "zones": [{"name": "a"}, {"name": "b"}]})).await;
    let before = [cluster.deployment("edge-a")["spec"]["template"].clone(), cluster.deployment("edge-b")["spec"]["template"].clone()];
    let stable = cluster.stable();
    cluster.put(version("2"));
    cluster.until("it has begun", || cluster.versions("edge-a").contains_key("2")).await;
    cluster.annotate(ANNOTATION_ROLLOUT, Some("paused"));
    says(&cluster, &operator, "Paused").await;
    tokio::time::sleep(MINUTE / 2).await;
    assert_eq!((cluster.deployment("edge-a")["spec"]["paused"].clone(), cluster.is_all("edge-b", "1")), (json!(true), true));
    let paused = cluster.versions("edge-a");
    assert!(paused.contains_key("1"), "{paused:?}");
    cluster.rests(5 * MINUTE, "paused").await;
    assert_eq!(cluster.versions("edge-a"), paused);
    cluster.annotate(ANNOTATION_ROLLOUT, None);
    cluster.until("the second zone has begun", || cluster.versions("edge-b").contains_key("2")).await;
    cluster.annotate(ANNOTATION_ABORT, Some(&rollout(&operator).template));
    cluster.serves("1", "aborted").await;
    let rollout = says(&cluster, &operator, "Aborted").await;
    assert_eq!((cluster.stable(), rollout.stable.as_deref()), (stable.clone(), Some(&*stable)));
    let after = [cluster.deployment("edge-a")["spec"]["template"].clone(), cluster.deployment("edge-b")["spec"]["template"].clone()];
    assert_eq!(after, before, "the very template before");
    cluster.rests(10 * MINUTE, "aborted").await;
    cluster.annotate(ANNOTATION_ABORT, None);
    cluster.until("it is tried again", || cluster.versions("edge-a").contains_key("2")).await;
    cluster.assert_nothing_went_wrong("pause and abort");
}

#[tokio::test(start_paused = true)]
async fn a_template_that_never_becomes_ready_stops_in_the_first_zone_until_it_is_mended() {
    let (cluster, operator) = Cluster::with(two_small_zones()).await;
    cluster.put(version("bad"));
    let rollout = says(&cluster, &operator, "Stalled").await;
    assert!(rollout.message.contains("in zone a is not ready and its time is over"), "{}", rollout.message);
    tokio::time::sleep(MINUTE).await;
    cluster.rests(10 * MINUTE, "stalled").await;
    assert_eq!((cluster.is_all("edge-b", "1"), cluster.versions("edge-a")["1"], cluster.ready()), (true, 1, 2));
    cluster.put(version("2"));
    cluster.serves("2", "mended").await;
    says(&cluster, &operator, "Complete").await;
    cluster.assert_nothing_went_wrong("a template that never becomes ready");
}

#[tokio::test(start_paused = true)]
async fn a_template_that_never_becomes_ready_is_taken_back_where_that_is_asked_for() {
    let mut fleet = two_small_zones();
    fleet["rollout"] = json!({"zonePolicy": {"autoAbort": true}});
    let (cluster, operator) = Cluster::with(fleet).await;
    let stable = cluster.stable();
    cluster.put(version("bad"));
    cluster.until("it has begun", || cluster.versions("edge-a").contains_key("bad")).await;
    cluster.serves("1", "taken back").await;
    let rollout = says(&cluster, &operator, "Aborted").await;
    assert_eq!(cluster.fleet()["metadata"]["annotations"][ANNOTATION_ABORT], *rollout.template);
    assert_eq!(cluster.stable(), stable);
    assert!(cluster.is_all("edge-b", "1"));
    cluster.rests(10 * MINUTE, "taken back").await;
    cluster.assert_nothing_went_wrong("a template that is taken back");
}

#[tokio::test(start_paused = true)]
async fn a_fleet_that_is_bad_from_its_creation_is_mended_by_another_template() {
    for auto_abort in [false, true] {
        let mut fleet = two_zones();
        json_patch::merge(&mut fleet, &json!({"rollout": {"zonePolicy": {"autoAbort": auto_abort}}}));
        json_patch::merge(&mut fleet, &version("bad"));
        let cluster = Cluster::new();
        cluster.put(spec(&fleet));
        let operator = cluster.operator(Plan::default());
        let is_overdue = |name: &str| cluster.deployment(name)["status"].to_string().contains("ProgressDeadlineExceeded");
        cluster.until("Kubernetes gives it up", || is_overdue("edge-a") && is_overdue("edge-b")).await;
        cluster.put(version("2"));
        cluster.serves("2", "mended").await;
        says(&cluster, &operator, "Complete").await;
        assert!(cluster.fleet()["metadata"]["annotations"][ANNOTATION_ABORT].is_null());
        cluster.assert_nothing_went_wrong("bad from its creation");
    }
}

#[tokio::test(start_paused = true)]
async fn a_rollout_whose_pods_are_denied_goes_on_when_they_are_not_any_more() {
    let (cluster, operator) = Cluster::with(two_zones()).await;
    cluster.quota.store(4, Ordering::Relaxed);
    cluster.put(version("2"));
    let rollout = says(&cluster, &operator, "Stalled").await;
    assert!(rollout.message.starts_with("zone a: Kubernetes makes no progress"), "{}", rollout.message);
    cluster.rests(10 * MINUTE, "denied").await;
    assert_eq!((cluster.is_all("edge-a", "1"), cluster.is_all("edge-b", "1"), cluster.ready()), (true, true, 4));
    // another template is tried, and denied
    cluster.put(version("3"));
    says(&cluster, &operator, "Progressing").await;
    says(&cluster, &operator, "Stalled").await;
    cluster.quota.store(usize::MAX, Ordering::Relaxed);
    cluster.serves("3", "allowed").await;
    says(&cluster, &operator, "Complete").await;
    cluster.assert_nothing_went_wrong("pods that are denied");
}

#[tokio::test(start_paused = true)]
async fn a_rollout_that_is_taken_back_for_pods_that_were_denied_leaves_the_next_template_its_time() {
    let mut fleet = two_zones();
    fleet["rollout"] = json!({"zonePolicy": {"autoAbort": true}});
    let (cluster, operator) = Cluster::with(fleet).await;
    cluster.quota.store(4, Ordering::Relaxed);
    cluster.put(version("2"));
    let aborted = |operator: &Operator| rollout(operator).state == "Aborted";
    cluster.until("taken back", || aborted(&operator) && cluster.is_at("1")).await;
    cluster.quota.store(usize::MAX, Ordering::Relaxed);
    cluster.put(version("3"));
    cluster.serves("3", "the next one").await;
    cluster.assert_nothing_went_wrong("taken back and mended");
}

#[tokio::test(start_paused = true)]
async fn an_edit_in_the_middle_of_a_rollout_counts_at_once_and_so_does_its_reversal() {
    let (cluster, operator) = Cluster::with(two_zones()).await;
    let stable = cluster.stable();
    cluster.put(version("2"));
    cluster.until("the first zone is in the middle", || cluster.versions("edge-a").len() == 2).await;
    cluster.put(version("3"));
    cluster.until("the first zone has the third", || cluster.versions("edge-a").contains_key("3")).await;
    assert!(cluster.is_all("edge-b", "1"));
    cluster.put(version("1"));
    cluster.serves("1", "as it was").await;
    assert_eq!(cluster.stable(), stable, "the very template before");
    says(&cluster, &operator, "Complete").await;
    cluster.assert_nothing_went_wrong("edits in the middle");
}

#[tokio::test(start_paused = true)]
async fn a_fleet_that_is_paused_in_the_middle_stops_its_deployment_and_nothing_else_is_written() {
    let (cluster, operator) = Cluster::with(json!({"replicas": 3, "zones": [{"name": "a"}, {"name": "b"}]})).await;
    cluster.put(version("2"));
    // Kubernetes goes on in it
    let is_open = || cluster.versions("edge-a").len() == 2 && cluster.deployment("edge-a")["spec"]["paused"] != true;
    cluster.until("the first zone is in the middle", is_open).await;
    let writes = cluster.writes().len();
    cluster.put(json!({"paused": true, "replicas": 4, "podAnnotations": {"example.com/version": "3"}}));
    says(&cluster, &operator, "Frozen").await;
    tokio::time::sleep(MINUTE).await;
    assert_eq!(cluster.writes()[writes..], ["apply deployments/edge-a"]);
    let (deployment, there) = (cluster.deployment("edge-a"), cluster.versions("edge-a"));
    assert_eq!((&deployment["spec"]["paused"], replicas(&deployment)), (&json!(true), 2));
    cluster.rests(10 * MINUTE, "frozen").await;
    assert_eq!(cluster.versions("edge-a"), there);
    cluster.put(json!({"paused": false}));
    cluster.serves("3", "thawed").await;
    assert_eq!(cluster.pods().len(), 4);
    cluster.assert_nothing_went_wrong("spec.paused");
}

#[tokio::test(start_paused = true)]
async fn somebody_elses_pause_and_size_of_a_deployment_are_put_right() {
    let (cluster, _operator) = Cluster::with(two_small_zones()).await;
    cluster.edit("edge-a", json!({"spec": {"paused": true}}));
    cluster.edit("edge-b", json!({"spec": {"replicas": 2}}));
    cluster.until("it is put right", || cluster.is_at("1") && cluster.pods().len() == 2).await;
    cluster.edit("edge-b", json!({"spec": {"replicas": 0}}));
    cluster.until("it is put right again", || cluster.is_at("1") && cluster.pods().len() == 2).await;
    assert_eq!(cluster.onlooker.forgive(), 1, "a pod was taken out of turn by somebody else");
    cluster.put(version("2"));
    cluster.serves("2", "rolled out").await;
    cluster.rests(10 * MINUTE, "put right").await;
    cluster.assert_nothing_went_wrong("somebody else's edits");
}

#[tokio::test(start_paused = true)]
async fn a_restart_by_hand_replaces_every_pod_once() {
    let (cluster, _operator) = Cluster::with(two_small_zones()).await;
    let (before, stable) = (cluster.pods(), cluster.stable());
    cluster.annotate(ANNOTATION_RESTARTED_AT, Some("2026-01-31T12:00:00Z"));
    cluster.until("all are new", || cluster.stable() != stable && cluster.is_at("1")).await;
    let names = |pods: &[Value]| pods.iter().map(|pod| pod["metadata"]["name"].clone()).collect::<Vec<_>>();
    let (old, new) = (names(&before), names(&cluster.pods()));
    assert!(new.iter().all(|name| !old.contains(name)), "{old:?} {new:?}");
    cluster.rests(10 * MINUTE, "restarted").await;
    cluster.assert_nothing_went_wrong("a restart");
}

#[tokio::test(start_paused = true)]
async fn sizes_go_up_and_down_one_zone_after_the_other() {
    for zones in [json!([]), json!([{"name": "a"}, {"name": "b"}])] {
        let (cluster, operator) = Cluster::with(json!({"replicas": 2, "zones": zones})).await;
        for size in [6, 2] {
            cluster.put(json!({"replicas": size}));
            cluster.until(&format!("{size} pods"), || cluster.pods().len() == size && cluster.is_at("1")).await;
        }
        says(&cluster, &operator, "Complete").await;
        let costs = |pod: &Value| pod["metadata"]["annotations"]["controller.kubernetes.io/pod-deletion-cost"].is_null();
        cluster.until("no cost is left", || cluster.pods().iter().all(costs)).await;
        let writes = cluster.writes();
        assert!(writes.iter().any(|write| write.starts_with("patch pods/")), "those that go were chosen");
        cluster.rests(10 * MINUTE, "sized").await;
        cluster.assert_nothing_went_wrong(&format!("sizes with {zones}"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_size_that_changes_in_the_middle_of_a_rollout_is_reached_and_so_is_the_template() {
    let (cluster, _operator) = Cluster::with(two_zones()).await;
    cluster.put(version("2"));
    cluster.until("the first zone is in the middle", || cluster.versions("edge-a").len() == 2).await;
    cluster.put(json!({"replicas": 6}));
    cluster.until("the second zone is in the middle", || cluster.versions("edge-b").len() == 2).await;
    cluster.put(json!({"replicas": 4}));
    cluster.until("rolled out", || cluster.is_at("2") && cluster.pods().len() == 4).await;
    cluster.assert_nothing_went_wrong("sizes in the middle");
}

#[tokio::test(start_paused = true)]
async fn a_zone_that_is_listed_no_more_is_emptied_and_then_removed() {
    let (cluster, _operator) = Cluster::with(two_zones()).await;
    cluster.put(json!({"zones": [{"name": "a"}, {"name": "b"}, {"name": "c"}], "replicas": 6}));
    cluster.until("a zone more", || cluster.is_at("1") && cluster.pods().len() == 6).await;
    // the zone that goes and a template: one after the other
    cluster.put(json!({"zones": [{"name": "b"}, {"name": "c"}], "replicas": 4, "podAnnotations": {"example.com/version": "2"}}));
    let pods = || cluster.versions("edge-a").values().sum::<usize>();
    cluster.until("it is emptied", || pods() == 0).await;
    cluster.until("it is removed", || cluster.deployment("edge-a").is_null()).await;
    cluster.serves("2", "a zone less").await;
    assert_eq!(cluster.pods().len(), 4);
    let empty = cluster.server.writes().iter().rposition(|write| write.call.name == "edge-a" && write.call.verb == Verb::Apply);
    let removed = cluster.server.writes().iter().position(|write| write.call.name == "edge-a" && write.call.verb == Verb::Delete);
    assert!(empty < removed, "{empty:?} {removed:?}");
    cluster.rests(10 * MINUTE, "a zone less").await;
    cluster.assert_nothing_went_wrong("zones that come and go");
}

#[tokio::test(start_paused = true)]
async fn zones_are_listed_for_the_first_time_and_not_any_more_without_a_gap() {
    let (cluster, _operator) = Cluster::with(json!({"replicas": 4})).await;
    for (zones, names) in [(json!([{"name": "a"}, {"name": "b"}]), vec!["edge-a", "edge-b"]), (json!([]), vec!["edge"])] {
        cluster.put(json!({"zones": zones}));
        let is_there =
            || cluster.view().deployments.iter().map(|one| one["metadata"]["name"].clone()).eq(names.iter().map(|name| json!(name)));
        let mut least = usize::MAX;
        while !(is_there() && cluster.is_at("1")) {
            least = least.min(cluster.ready());
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        assert!(least >= 4, "{least} of 4 were ready on the way to {names:?}");
        cluster.assert_nothing_went_wrong(&format!("zones {names:?}"));
    }
    cluster.rests(10 * MINUTE, "as it was").await;
}

#[tokio::test(start_paused = true)]
async fn pods_zones_and_nodes_are_drained_by_hand_and_given_back() {
    let mut fleet = two_zones();
    fleet["rollout"] = json!({"minReady": 2});
    let (cluster, operator) = Cluster::with(fleet).await;
    let drained = |name: &str| {
        let text = cluster.deployment(name)["metadata"]["annotations"][ANNOTATION_DRAINED].as_str().unwrap_or_default().to_owned();
        text.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    let of = |name: &str| {
        let is_of = |pod: &&Value| pod["metadata"]["ownerReferences"][0]["name"] == *name;
        cluster.pods().iter().filter(is_of).map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let node = cluster.pods().iter().find(|pod| pod["metadata"]["name"] == *of("edge-b")[1]).unwrap()["spec"]["nodeName"].clone();
    let wishes = [
        (format!("pod/{}", of("edge-a")[0]), "edge-a", vec![of("edge-a")[0].clone()]),
        ("zone/b".to_owned(), "edge-b", of("edge-b")),
        (format!("node/{}", node.as_str().unwrap()), "edge-b", vec![of("edge-b")[1].clone()]),
    ];
    for (wish, deployment, pods) in wishes {
        cluster.annotate(ANNOTATION_DRAIN, Some(&wish));
        cluster.until(&wish, || drained(deployment) == pods && cluster.ready() == 4 - pods.len()).await;
        cluster.until("it says so", || rollout(&operator).drained == pods).await;
        assert_eq!(cluster.pods().len(), 4, "they stay");
        cluster.annotate(ANNOTATION_DRAIN, None);
        cluster.until("given back", || drained(deployment).is_empty() && cluster.is_at("1")).await;
    }
    cluster.rests(10 * MINUTE, "given back").await;
    cluster.assert_nothing_went_wrong("drains by hand");
}

#[tokio::test(start_paused = true)]
async fn a_wish_that_nobody_can_fulfil_is_told_and_the_fleet_is_as_asked_all_the_same() {
    let (cluster, operator) = Cluster::with(json!({"replicas": 2})).await;
    cluster.annotate(ANNOTATION_DRAIN, Some("pod/nope,everything"));
    cluster.until("it is told", || operator.state().findings.len() == 2).await;
    assert_eq!(operator.state().problems, []);
    cluster.annotate(ANNOTATION_DRAIN, None);
    cluster.until("it is told no more", || operator.state().findings.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn the_last_pod_that_serves_is_drained_by_force_only_and_no_rollout_goes_on_meanwhile() {
    let (cluster, operator) = Cluster::with(json!({"replicas": 2})).await;
    let pods: Vec<String> = cluster.pods().iter().map(|pod| format!("pod/{}", pod["metadata"]["name"].as_str().unwrap())).collect();
    cluster.annotate(ANNOTATION_DRAIN, Some(&pods.join(",")));
    let says_why = || rollout(&operator).message.contains("`:force` drains it all the same");
    cluster.until("it says why not", || says_why() && cluster.ready() == 1).await;
    cluster.put(version("2"));
    tokio::time::sleep(MINUTE / 3).await;
    assert_eq!((cluster.ready(), cluster.is_all("edge", "1")), (1, true));
    cluster.annotate(ANNOTATION_DRAIN, Some(&format!("{},{}:force", pods[0], pods[1])));
    cluster.until("it is drained by force", || cluster.ready() == 0).await;
    cluster.annotate(ANNOTATION_DRAIN, None);
    cluster.serves("2", "given back and rolled out").await;
    cluster.assert_nothing_went_wrong("drains by force");
}

/// What an operator before planned rollouts left behind.
async fn old_objects(cluster: &Cluster, more: Value) {
    let spec = spec(&more);
    cluster.put(spec.clone());
    let deployment = IngressDeployment { meta: Meta::named("infra", "edge"), spec: serde_json::from_value(spec).unwrap() };
    let uid = cluster.fleet()["metadata"]["uid"].as_str().unwrap().to_owned();
    let observed = Observed::default();
    let fleet = Fleet { deployment: &deployment, uid: &uid, context: &context(), observed: &observed, change: None };
    for mut object in build(fleet).unwrap() {
        if object.kind == "Deployment" {
            object.body["metadata"]["annotations"] = json!({ANNOTATION_TEMPLATE: "0123456789abcdef"});
            object.body["spec"]["template"]["metadata"]["annotations"].as_object_mut().unwrap().remove(ANNOTATION_TEMPLATE);
        }
        let (group, version) = object.api_version.split_once('/').unwrap_or(("", &object.api_version));
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, &object.kind), &object.plural);
        let api: kube::Api<DynamicObject> = match &object.namespace {
            Some(namespace) => kube::Api::namespaced_with(cluster.server.client(), namespace, &resource),
            None => kube::Api::all_with(cluster.server.client(), &resource),
        };
        api.patch(&object.name, &PatchParams::apply("haproxy-fleet").force(), &Patch::Apply(&object.body)).await.unwrap();
        if object.kind == "Deployment" {
            // what an API server adds
            let defaults = json!({"restartPolicy": "Always", "schedulerName": "default-scheduler"});
            cluster.edit(&object.name, json!({"spec": {"template": {"spec": defaults}}}));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_objects_of_an_older_operator_are_taken_over_in_one_rollout_zone_by_zone() {
    let cluster = Cluster::new();
    old_objects(&cluster, two_zones()).await;
    let has_template = |pod: &Value| pod["metadata"]["annotations"][ANNOTATION_TEMPLATE].is_string();
    cluster.until("the old pods serve", || cluster.ready() == 4).await;
    tokio::time::sleep(MINUTE / 4).await;
    assert!(!cluster.pods().iter().any(has_template));
    let operator = cluster.operator(Plan::default());
    let are_new = |name: &str| {
        let view = cluster.view();
        let mut mine = view.pods.iter().filter(|pod| pod["metadata"]["ownerReferences"][0]["name"] == *name);
        mine.all(has_template)
    };
    let are_old = |name: &str| {
        let view = cluster.view();
        let mut mine = view.pods.iter().filter(|pod| pod["metadata"]["ownerReferences"][0]["name"] == *name);
        mine.all(|pod| !has_template(pod))
    };
    cluster.until("the first zone is new", || are_new("edge-a")).await;
    assert!(are_old("edge-b"));
    cluster.serves("1", "taken over").await;
    assert!(cluster.pods().iter().all(has_template));
    says(&cluster, &operator, "Complete").await;
    cluster.assert_nothing_went_wrong("an upgrade");
    cluster.rests(10 * MINUTE, "taken over").await;
}

#[tokio::test(start_paused = true)]
async fn an_autoscaler_decides_on_sizes_at_rest_and_in_the_middle_of_a_rollout() {
    let fleet = json!({"zones": [{"name": "a"}, {"name": "b"}], "autoscaling": {"minReplicas": 2, "maxReplicas": 8}});
    let (cluster, _operator) = Cluster::with(fleet).await;
    let scale = |name: &str, size: i64| cluster.edit(name, json!({"spec": {"replicas": size}}));
    let sizes = || (replicas(&cluster.deployment("edge-a")), replicas(&cluster.deployment("edge-b")));
    scale("edge-a", 3);
    scale("edge-b", 2);
    cluster.until("scaled", || cluster.pods().len() == 5 && cluster.is_at("1")).await;
    tokio::time::sleep(10 * MINUTE).await;
    assert_eq!(sizes(), (3, 2), "at rest");
    cluster.put(version("2"));
    cluster.until("the first zone is in the middle", || cluster.versions("edge-a").len() == 2).await;
    scale("edge-a", 2);
    scale("edge-b", 3);
    cluster.serves("2", "rolled out").await;
    assert_eq!(sizes(), (2, 3), "after a rollout");
    cluster.assert_nothing_went_wrong("an autoscaler");
}

#[tokio::test(start_paused = true)]
async fn no_pod_goes_when_an_autoscaler_takes_over_from_a_number_and_when_it_goes() {
    let (cluster, _operator) = Cluster::with(two_zones()).await;
    let is_at = |size: usize| cluster.pods().len() == size && cluster.is_at("1");
    cluster.put(json!({"replicas": null, "autoscaling": {"minReplicas": 2, "maxReplicas": 8}}));
    tokio::time::sleep(MINUTE).await;
    assert!(is_at(4), "{:?}", cluster.pods().len());
    cluster.edit("edge-a", json!({"spec": {"replicas": 3}}));
    tokio::time::sleep(10 * MINUTE).await;
    assert!(is_at(5), "the autoscaler's");
    cluster.put(json!({"replicas": 6, "autoscaling": null}));
    cluster.until("the number counts", || is_at(6)).await;
    assert_eq!(cluster.server.all("autoscaling/v2", "HorizontalPodAutoscaler").len(), 0);
    cluster.rests(10 * MINUTE, "without an autoscaler").await;
    cluster.assert_nothing_went_wrong("an autoscaler that comes and goes");
}
