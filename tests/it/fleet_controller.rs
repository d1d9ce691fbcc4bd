//! The controller of fleets against an API server: every fault at every write.

use crate::fleet_controller_rig::{Cluster, fleet, key};
use fleet_api_server::Verb;
use fleet_api_server::faults::{Action, Faults, Matcher, Plan};
use haproxy_fleet::fleet::controller::{FINALIZER, Step};
use haproxy_fleet::operator::fence::Fence;
use haproxy_fleet::operator::lease::{Driver, Settings, Timing};
use kube::Client;
use serde_json::{Value, json};
use std::time::Duration;
use tower::{Layer, ServiceBuilder};

const MINUTE: Duration = Duration::from_secs(60);

fn first() -> Value {
    json!({"ingressClassName": "edge", "replicas": 2, "zones": [{"name": "a"}, {"name": "b"}]})
}

/// Fewer zones, more replicas: something is changed, something is made and something is removed.
fn second() -> Value {
    json!({"ingressClassName": "edge", "replicas": 3, "zones": [{"name": "b"}, {"name": "c"}]})
}

fn service(cluster: &Cluster) -> Value {
    cluster.server.get("v1", "Service", "infra", "edge").unwrap()
}

/// A fleet is created, changed and deleted; what crashes is started again. Says how often the fault struck.
async fn lives(plan: Plan) -> bool {
    let text = plan.to_string();
    let cluster = Cluster::new();
    let mut operator = cluster.operator(plan);
    let mut has_crashed = false;
    cluster.put(first());
    for phase in ["created", "changed", "deleted"] {
        match phase {
            "changed" => cluster.put(second()),
            "deleted" => {
                cluster.delete("Background");
                cluster.withdrawn.set(true);
            }
            _ => {}
        }
        let is_done = || match phase {
            "deleted" => !cluster.has_fleet() && cluster.objects().is_empty(),
            _ => cluster.is_as_asked(),
        };
        cluster.until(&format!("{phase} with {text}"), || operator.faults.has_crashed() || is_done()).await;
        if operator.faults.has_crashed() {
            has_crashed = true;
            operator = cluster.operator(Plan::default());
            cluster.until(&format!("{phase} after a crash with {text}"), is_done).await;
        }
    }
    cluster.assert_nothing_went_wrong(&text);
    has_crashed
}

#[tokio::test(start_paused = true)]
async fn a_fleet_is_created_changed_and_deleted() {
    assert!(!lives(Plan::default()).await);
}

#[tokio::test(start_paused = true)]
async fn a_crash_after_any_write_leaves_nothing_behind_and_takes_nothing_away() {
    let mut crashes = 0;
    while lives(Plan::one(Matcher::writes(), crashes + 1, 1, Action::CrashAfter)).await {
        crashes += 1;
    }
    assert_eq!(crashes, 16, "one for every write in the life of a fleet");
}

#[tokio::test(start_paused = true)]
async fn a_crash_before_any_write_leaves_nothing_behind_and_takes_nothing_away() {
    let mut crashes = 0;
    while lives(Plan::one(Matcher::writes(), crashes + 1, 1, Action::CrashBefore)).await {
        crashes += 1;
    }
    assert_eq!(crashes, 16, "one for every write in the life of a fleet");
}

#[tokio::test(start_paused = true)]
async fn any_write_may_lose_its_answer() {
    for write in 1..=24 {
        lives(Plan::one(Matcher::writes(), write, 1, Action::LoseAnswer)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn storms_of_refusals_pass() {
    for code in [409, 429, 500, 503] {
        for (from, times) in [(1, 7), (3, 4), (9, 12)] {
            lives(Plan::one(Matcher::writes(), from, times, Action::Answer(code))).await;
            lives(Plan::one(Matcher::default(), from, times * 4, Action::Answer(code))).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn any_mixture_of_faults_passes() {
    for seed in 0..40 {
        lives(Plan::random(seed, 6)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn stale_reads_do_no_harm() {
    for (from, times) in [(1, 1000), (20, 40), (40, 200)] {
        let matcher = Matcher { verbs: vec![Verb::List], ..Matcher::default() };
        // for a while: what is stale for ever hides the change itself
        let cluster = Cluster::new();
        let operator = cluster.operator(Plan::one(matcher, from, times, Action::Stale));
        cluster.put(first());
        cluster.settles("created by stale lists").await;
        cluster.put(second());
        tokio::time::sleep(5 * MINUTE).await;
        cluster.assert_nothing_went_wrong("stale lists");
        operator.faults.end();
        cluster.settles("changed once lists are fresh").await;
        cluster.assert_nothing_went_wrong("stale lists");
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_is_seen_although_a_watch_is_frozen() {
    let cluster = Cluster::new();
    let operator = cluster.operator(Plan::default());
    cluster.put(first());
    cluster.settles("created").await;
    for plural in ["ingressdeployments", "deployments", "services"] {
        operator.faults.freeze(plural);
    }
    cluster.put(second());
    cluster.settles("changed behind a frozen watch").await;
    let scale = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "infra", "name": "edge-b"}, "spec": {"replicas": 1}});
    cluster.server.put(&scale).unwrap();
    cluster.settles("put right behind a frozen watch").await;
}

#[tokio::test(start_paused = true)]
async fn watches_begin_again_after_the_history_is_gone() {
    let cluster = Cluster::new();
    let operator = cluster.operator(Plan::default());
    cluster.put(first());
    cluster.settles("created").await;
    cluster.server.compact();
    operator.faults.cut("ingressdeployments");
    cluster.put(second());
    cluster.server.compact();
    cluster.settles("changed").await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_written_at_rest_nor_by_an_operator_that_starts() {
    let cluster = Cluster::new();
    let operator = cluster.operator(Plan::default());
    cluster.put(first());
    cluster.settles("created").await;
    tokio::time::sleep(MINUTE).await;
    let (writes, reads) = (cluster.writes(), cluster.server.answered().len());
    tokio::time::sleep(11 * MINUTE).await;
    assert_eq!(cluster.writes(), writes, "{:?}", &cluster.server.writes()[writes..]);
    assert!(cluster.server.answered().len() > reads, "and yet it was looked at");
    drop(operator);
    let _next = cluster.operator(Plan::default());
    tokio::time::sleep(11 * MINUTE).await;
    assert_eq!(cluster.writes(), writes, "{:?}", &cluster.server.writes()[writes..]);
}

#[tokio::test(start_paused = true)]
async fn what_others_write_stays_and_what_is_ours_is_put_back() {
    let cluster = Cluster::new();
    let _operator = cluster.operator(Plan::default());
    cluster.put(first());
    cluster.settles("created").await;
    let edit = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "infra", "name": "edge",
        "labels": {"team": "x"}, "annotations": {"cloud.example/id": "7"}},
        "spec": {"externalTrafficPolicy": "Local", "ports": [{"name": "http", "port": 80, "protocol": "TCP", "nodePort": 30080}]}});
    cluster.server.put(&edit).unwrap();
    let scale = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "infra", "name": "edge-a"}, "spec": {"replicas": 9}});
    cluster.server.put(&scale).unwrap();
    tokio::time::sleep(MINUTE).await;
    cluster.put(second());
    cluster.settles("changed").await;
    let service = service(&cluster);
    assert_eq!(service["metadata"]["labels"]["team"], "x");
    assert_eq!(service["metadata"]["annotations"]["cloud.example/id"], "7");
    assert_eq!(service["spec"]["externalTrafficPolicy"], "Local");
    assert_eq!(service["spec"]["ports"][0]["nodePort"], 30080);
    assert_eq!(service["status"]["loadBalancer"]["ingress"][0]["ip"], "192.0.2.1");
    cluster.assert_nothing_went_wrong("edits");
}

#[tokio::test(start_paused = true)]
async fn an_object_of_somebody_else_is_left_alone_until_it_may_be_adopted() {
    let cluster = Cluster::new();
    let theirs = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "infra", "name": "edge", "labels": {"helm": "1"}},
        "spec": {"type": "LoadBalancer", "selector": {"app": "old"}, "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}});
    cluster.server.put(&theirs).unwrap();
    let operator = cluster.operator(Plan::default());
    cluster.put(first());
    cluster.until("the rest is made", || cluster.objects().len() == 6).await;
    tokio::time::sleep(MINUTE).await;
    let problems = operator.state().problems;
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert_eq!(problems[0].message, "Service edge exists and belongs to somebody else");
    assert!(problems[0].help.contains("haproxy-fleet.dev/adopt: infra/edge"), "{}", problems[0].help);
    assert_eq!(service(&cluster)["spec"]["selector"]["app"], "old");
    let other = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "infra", "name": "edge",
        "annotations": {"haproxy-fleet.dev/adopt": "infra/other"}}});
    cluster.server.put(&other).unwrap();
    tokio::time::sleep(6 * MINUTE).await;
    assert_eq!(service(&cluster)["spec"]["selector"]["app"], "old", "another fleet may adopt it");
    let uid = service(&cluster)["metadata"]["uid"].clone();
    let adopt = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "infra", "name": "edge",
        "annotations": {"haproxy-fleet.dev/adopt": "infra/edge"}}});
    cluster.server.put(&adopt).unwrap();
    cluster.settles("adopted").await;
    assert_eq!(service(&cluster)["metadata"]["uid"], uid);
    assert_eq!(service(&cluster)["metadata"]["labels"]["helm"], "1");
    cluster.until("no problem is left", || operator.state().problems.is_empty()).await;
    cluster.assert_nothing_went_wrong("adoption");
}

#[tokio::test(start_paused = true)]
async fn a_deployment_that_is_replaced_goes_when_its_successor_serves() {
    let cluster = Cluster::new();
    let _operator = cluster.operator(Plan::default());
    cluster.put(json!({"ingressClassName": "edge", "replicas": 2}));
    cluster.settles("created").await;
    cluster.put(first());
    let deployment = |name: &str| cluster.server.get("apps/v1", "Deployment", "infra", name);
    cluster.until("the old one goes", || deployment("edge").is_none()).await;
    assert_eq!(deployment("edge-a").unwrap()["status"]["availableReplicas"], 2);
    assert_eq!(deployment("edge-b").unwrap()["status"]["availableReplicas"], 2);
    cluster.settles("changed").await;
}

#[tokio::test(start_paused = true)]
async fn an_address_in_use_is_kept_until_somebody_gives_it_up() {
    let cluster = Cluster::new();
    let operator = cluster.operator(Plan::default());
    let mut spec = first();
    spec["publishing"] = json!({"additionalServices": [{"name": "inside", "type": "LoadBalancer"}]});
    cluster.put(spec);
    cluster.settles("created").await;
    tokio::time::sleep(MINUTE).await;
    cluster.put(json!({"publishing": {"additionalServices": null, "type": "NodePort"}}));
    tokio::time::sleep(10 * MINUTE).await;
    cluster.assert_nothing_went_wrong("a service less and one of another type");
    assert!(cluster.objects().contains("Service/edge-inside"));
    assert_eq!(service(&cluster)["spec"]["type"], "LoadBalancer");
    let problems = operator.state().problems;
    assert!(problems.iter().any(|problem| problem.message.contains("service edge keeps its load balancer")), "{problems:?}");
    for name in ["edge", "edge-inside"] {
        let release = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": "infra", "name": name,
            "annotations": {"haproxy-fleet.dev/release-address": "true"}}});
        cluster.server.put(&release).unwrap();
    }
    cluster.settles("released").await;
}

#[tokio::test(start_paused = true)]
async fn a_spec_that_cannot_be_built_keeps_the_last_good_objects_and_says_so() {
    let cluster = Cluster::new();
    let operator = cluster.operator(Plan::default());
    cluster.put(first());
    cluster.settles("created").await;
    tokio::time::sleep(MINUTE).await;
    let (objects, writes) = (cluster.objects(), cluster.writes());
    cluster.put(json!({"replicas": 13}));
    cluster.until("it says so", || !operator.state().refused.is_empty()).await;
    assert_eq!(operator.state().generation, 2);
    tokio::time::sleep(10 * MINUTE).await;
    assert_eq!((cluster.objects(), cluster.writes()), (objects, writes));
    cluster.put(second());
    cluster.settles("mended").await;
    cluster.until("it says so", || operator.state().refused.is_empty()).await;
}

#[tokio::test(start_paused = true)]
async fn a_look_that_dies_takes_neither_the_others_nor_later_ones_with_it() {
    let cluster = Cluster::new();
    let operator = cluster.operator(Plan::default());
    cluster.put(json!({"ingressClassName": "edge", "replicas": 666}));
    cluster.until("it says so", || operator.state().failure.is_some()).await;
    cluster.put(first());
    cluster.settles("mended").await;
    cluster.until("it says so", || operator.state().failure.is_none()).await;
}

#[tokio::test(start_paused = true)]
async fn a_paused_fleet_is_not_written_but_can_be_deleted() {
    let cluster = Cluster::new();
    let operator = cluster.operator(Plan::default());
    cluster.put(first());
    cluster.settles("created").await;
    tokio::time::sleep(MINUTE).await;
    let (objects, writes) = (cluster.objects(), cluster.writes());
    let mut spec = second();
    spec["paused"] = json!(true);
    cluster.put(spec);
    tokio::time::sleep(11 * MINUTE).await;
    assert!(operator.state().paused);
    assert_eq!((cluster.objects(), cluster.writes()), (objects, writes));
    cluster.withdrawn.set(true);
    cluster.delete("Background");
    cluster.is_gone("deleted while paused").await;
    cluster.assert_nothing_went_wrong("paused");
}

#[tokio::test(start_paused = true)]
async fn a_foreground_deletion_takes_no_pods_before_traffic_is_withdrawn() {
    for propagation in ["Foreground", "Background"] {
        let cluster = Cluster::new();
        let operator = cluster.operator(Plan::default());
        cluster.put(first());
        cluster.settles("created").await;
        tokio::time::sleep(MINUTE).await;
        cluster.delete(propagation);
        tokio::time::sleep(MINUTE / 2).await;
        assert_eq!(operator.state().deletion, Some(Step::Withdrawing));
        let deployments = cluster.server.all("apps/v1", "Deployment");
        assert_eq!(deployments.len(), 2);
        assert!(deployments.iter().all(|object| object["metadata"]["deletionTimestamp"].is_null()));
        cluster.withdrawn.set(true);
        cluster.until("it drains", || operator.state().deletion == Some(Step::Draining)).await;
        assert_eq!(service(&cluster)["metadata"]["deletionTimestamp"], Value::Null, "clients that come late still find it");
        cluster.is_gone(propagation).await;
        cluster.assert_nothing_went_wrong(propagation);
        cluster.until("it is forgotten", || !operator.states.borrow().contains_key(&key())).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_deletion_ends_although_nothing_withdraws_pods_hang_and_the_load_balancer_stays() {
    let cluster = Cluster::new();
    let operator = cluster.operator(Plan::default());
    cluster.put(first());
    cluster.settles("created").await;
    tokio::time::sleep(MINUTE).await;
    let hang = |api_version: &str, kind: &str, name: &str| {
        let object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"namespace": "infra", "name": name, "annotations": {"hangs": "yes"}}});
        cluster.server.put(&object).unwrap();
    };
    hang("v1", "Pod", "edge-a-0");
    hang("v1", "Service", "edge");
    cluster.delete("Background");
    cluster.until("it waits for pods", || operator.state().deletion == Some(Step::Draining)).await;
    cluster.until("the fleet is gone", || !cluster.has_fleet()).await;
    assert_eq!(cluster.objects().into_iter().collect::<Vec<_>>(), ["Service/edge"], "what its own controller still holds");
}

#[tokio::test(start_paused = true)]
async fn a_load_balancer_that_is_to_be_retained_outlives_its_fleet_and_serves_the_next_one_of_its_name() {
    let cluster = Cluster::new();
    let _operator = cluster.operator(Plan::default());
    let mut spec = first();
    spec["publishing"] = json!({
        "loadBalancer": {"deletionPolicy": "Retain"},
        "additionalServices": [{"name": "inside", "type": "LoadBalancer"}, {"name": "kept", "type": "LoadBalancer", "loadBalancer": {"deletionPolicy": "Retain"}}],
    });
    cluster.put(spec.clone());
    cluster.settles("created").await;
    tokio::time::sleep(MINUTE).await;
    let before = service(&cluster);
    cluster.withdrawn.set(true);
    cluster.delete("Foreground");
    cluster.until("the fleet is gone", || !cluster.has_fleet()).await;
    assert_eq!(cluster.objects().into_iter().collect::<Vec<_>>(), ["Service/edge", "Service/edge-kept"]);
    assert_eq!(service(&cluster)["status"], before["status"], "and so does its address");
    cluster.withdrawn.set(false);
    cluster.put(spec);
    cluster.settles("created again").await;
    assert_eq!(service(&cluster)["metadata"]["uid"], before["metadata"]["uid"]);
    cluster.assert_nothing_went_wrong("retained");
}

#[tokio::test(start_paused = true)]
async fn a_pod_monitor_without_its_kind_is_told_with_a_way_out_and_goes_when_it_is_not_wanted_any_more() {
    let cluster = Cluster::new();
    let operator = cluster.operator(Plan::default());
    let mut spec = first();
    spec["metrics"] = json!({"enabled": true, "podMonitor": {}});
    cluster.put(spec);
    cluster.until("it says so", || !operator.state().problems.is_empty()).await;
    let problems = operator.state().problems;
    assert_eq!((problems.len(), problems[0].field.as_str()), (1, "spec.metrics.podMonitor"), "{problems:?}");
    assert!(problems[0].help.contains("CRDs of the Prometheus operator"), "{problems:?}");
    assert_eq!(cluster.server.all("apps/v1", "Deployment").len(), 2, "everything else is there");
    assert!(cluster.server.define(&json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "podmonitors.monitoring.coreos.com"},
        "spec": {"group": "monitoring.coreos.com", "names": {"kind": "PodMonitor", "plural": "podmonitors"}, "scope": "Namespaced",
            "versions": [{"name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]},
    })));
    let monitor = || cluster.server.get("monitoring.coreos.com/v1", "PodMonitor", "infra", "edge");
    cluster.until("it is made", || monitor().is_some() && operator.state().problems.is_empty()).await;
    cluster.put(json!({"metrics": null}));
    cluster.until("it goes", || monitor().is_none()).await;
    cluster.settles("the rest stays").await;
}

#[tokio::test(start_paused = true)]
async fn the_finalizer_is_there_before_anything_else_is() {
    let cluster = Cluster::new();
    let _operator = cluster.operator(Plan::default());
    cluster.put(first());
    cluster.settles("created").await;
    let writes = cluster.server.writes();
    assert_eq!((writes[0].call.verb, writes[0].call.plural.as_str()), (Verb::Patch, "ingressdeployments"));
    let fleet = cluster.server.get("haproxy-fleet.dev/v1alpha1", "IngressDeployment", "infra", "edge").unwrap();
    assert_eq!(fleet["metadata"]["finalizers"], json!([FINALIZER]));
}

#[tokio::test(start_paused = true)]
async fn of_two_operators_with_one_lease_only_the_leader_writes_and_either_goes_on_where_the_other_died() {
    let cluster = Cluster::new();
    let start = |name: &str| {
        let settings = Settings {
            namespace: "kube-system".to_owned(),
            name: "l".to_owned(),
            identity: name.to_owned(),
            timing: Timing::default(),
            highest_term: tokio::sync::watch::channel(0).1,
        };
        let (driver, handle) = Driver::new(settings);
        let faults = Faults::new(Plan::default());
        let election = Client::new(faults.layer(cluster.server.clone()), "default");
        let task = tokio::spawn(driver.run(election, std::future::pending()));
        let fence = Fence::new(handle.claim(), "kube-system", "l");
        let service = ServiceBuilder::new().layer(fence).layer(faults.clone()).service(cluster.server.clone());
        (cluster.operator_with(Client::new(service, "default"), faults), handle, task)
    };
    let (one, _, _) = start("one");
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (two, handle, _) = start("two");
    cluster.put(first());
    cluster.settles("created by the leader").await;
    assert_eq!(handle.claim().borrow().term(tokio::time::Instant::now()), None);
    assert!(two.state().failure.is_none_or(|failure| failure.contains("does not lead")));
    cluster.put(second());
    // in the middle of the change
    tokio::time::sleep(Duration::from_millis(250)).await;
    one.faults.crash();
    cluster.settles("changed by the other").await;
    cluster.until("it leads", || handle.claim().borrow().term(tokio::time::Instant::now()) == Some(2)).await;
    cluster.withdrawn.set(true);
    cluster.delete("Background");
    cluster.is_gone("deleted by the other").await;
    cluster.assert_nothing_went_wrong("a change of the leader");
}

#[tokio::test(start_paused = true)]
async fn fleets_of_one_class_share_its_ingress_class_and_the_last_one_takes_it_along() {
    let cluster = Cluster::new();
    let _operator = cluster.operator(Plan::default());
    let keeper = || {
        let class = cluster.server.get("networking.k8s.io/v1", "IngressClass", "", "edge")?;
        class["metadata"]["labels"]["haproxy-fleet.dev/fleet"].as_str().map(str::to_owned)
    };
    let deleted_classes = || {
        let is_deletion = |verb, plural: &str| verb == Verb::Delete && plural == "ingressclasses";
        cluster.server.writes().iter().filter(|write| is_deletion(write.call.verb, &write.call.plural)).count()
    };
    cluster.put(first());
    cluster.settles("the first").await;
    let mut other = fleet(json!({"ingressClassName": "edge", "replicas": 1, "routeSelector": {"matchLabels": {"a": "b"}}}));
    other["metadata"]["name"] = json!("other");
    cluster.server.put(&other).unwrap();
    cluster.until("the second", || cluster.server.get("apps/v1", "Deployment", "infra", "other").is_some()).await;
    assert_eq!(keeper().as_deref(), Some("edge"), "it is left to the first");
    cluster.withdrawn.set(true);
    cluster.delete("Background");
    cluster.until("the first is gone", || !cluster.has_fleet()).await;
    assert_eq!((keeper().as_deref(), deleted_classes()), (Some("other"), 0), "it is handed over");
    cluster.server.delete("haproxy-fleet.dev/v1alpha1", "IngressDeployment", "infra", "other", "Background").unwrap();
    let is_gone = || cluster.server.get("haproxy-fleet.dev/v1alpha1", "IngressDeployment", "infra", "other").is_none();
    cluster.until("the second is gone", is_gone).await;
    assert_eq!((keeper(), deleted_classes()), (None, 1));
}

#[tokio::test(start_paused = true)]
async fn an_ingress_class_is_not_handed_over_to_a_fleet_that_was_refused() {
    let cluster = Cluster::new();
    let _operator = cluster.operator(Plan::default());
    cluster.put(first());
    cluster.settles("the first").await;
    // refused by what makes objects
    let mut other = fleet(json!({"ingressClassName": "edge", "replicas": 13}));
    other["metadata"]["name"] = json!("other");
    cluster.server.put(&other).unwrap();
    cluster.withdrawn.set(true);
    cluster.delete("Background");
    cluster.until("the first is gone", || !cluster.has_fleet()).await;
    assert_eq!(cluster.server.get("networking.k8s.io/v1", "IngressClass", "", "edge"), None);
}

#[tokio::test(start_paused = true)]
async fn an_ingress_class_of_a_fleet_that_is_gone_without_a_word_is_taken_over() {
    let cluster = Cluster::new();
    let labels = json!({"app.kubernetes.io/managed-by": "haproxy-fleet", "haproxy-fleet.dev/fleet": "gone",
        "haproxy-fleet.dev/fleet-namespace": "infra"});
    let class = json!({"apiVersion": "networking.k8s.io/v1", "kind": "IngressClass", "metadata": {"name": "edge", "labels": labels},
        "spec": {"controller": "haproxy-fleet.dev/ingress"}});
    cluster.server.put(&class).unwrap();
    let _operator = cluster.operator(Plan::default());
    cluster.put(first());
    cluster.settles("created").await;
    cluster.withdrawn.set(true);
    cluster.delete("Background");
    cluster.is_gone("deleted").await;
    assert_eq!(cluster.server.get("networking.k8s.io/v1", "IngressClass", "", "edge"), None, "and goes with that fleet");
}
