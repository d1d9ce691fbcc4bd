#![allow(clippy::unwrap_used)]

use super::*;
use crate::api::{Meta, Pairs};
use serde_json::json;

fn context() -> Context {
    Context {
        operator_namespace: "operators".to_owned(),
        operator_image: "operator:1".to_owned(),
        haproxy_images: BTreeMap::from([(HaproxyLine::V3_4, "haproxy:3.4.1".to_owned()), (HaproxyLine::V3_2, "haproxy:3.2.1".to_owned())]),
        agents_service: "agents".to_owned(),
        agents_port: 9443,
        ca_bundle: "ca".to_owned(),
        ticket_keys: PrivateBytes::new(b"ticket keys".to_vec()),
        ticket_keys_since: None,
        default_certificate: PrivateBytes::new(b"a private key".to_vec()),
        upgrade_turn: false,
        traffic_distribution: true,
    }
}

fn fleet(mut spec: Value) -> IngressDeployment {
    spec["ingressClassName"] = json!("public");
    IngressDeployment { meta: Meta::named("infra", "edge"), spec: serde_json::from_value(spec).unwrap() }
}

fn built(deployment: &IngressDeployment, context: &Context, observed: &Observed) -> Result<Vec<Desired>, Vec<Diagnostic>> {
    build(Fleet { deployment, uid: "uid-1", context, observed, change: None })
}

/// The objects after every zone got the template that is asked for, if that is another one.
fn rolled(deployment: &IngressDeployment, context: &Context, observed: &Observed) -> Vec<Desired> {
    let fleet = Fleet { deployment, uid: "uid-1", context, observed, change: None };
    let wanted = Change::Template(wanted_template(fleet).unwrap());
    let mut objects = build(fleet).unwrap();
    for in_use in observed.deployments.values().filter(|in_use| Change::Template(in_use.applied.template.clone()) != wanted) {
        let zone = in_use.zone.as_deref();
        let changed = build(Fleet { change: Some((zone, &wanted)), ..fleet }).unwrap();
        let name = fleet.names().deployment(zone);
        let is_it = |object: &Desired| object.kind == "Deployment" && object.name == name;
        let at = objects.iter().position(is_it).unwrap();
        objects[at] = changed.into_iter().find(is_it).unwrap();
    }
    objects
}

fn objects(spec: Value) -> Vec<Desired> {
    built(&fleet(spec), &context(), &Observed::default()).unwrap()
}

fn of_kind<'o>(objects: &'o [Desired], kind: &str) -> Vec<&'o Desired> {
    objects.iter().filter(|object| object.kind == kind).collect()
}

fn template(objects: &[Desired]) -> Value {
    of_kind(objects, "Deployment")[0].body["spec"]["template"].clone()
}

fn refusals(deployment: &IngressDeployment, observed: &Observed) -> Vec<(String, String)> {
    built(deployment, &context(), observed).unwrap_err().into_iter().map(|found| (found.field, found.message)).collect()
}

/// What the API server would show of the fleet's Deployments after `objects` were applied.
fn running(objects: &[Desired]) -> Observed {
    let deployments = of_kind(objects, "Deployment").into_iter().map(|object| (object.name.clone(), InUse::of(&object.body)));
    Observed { deployments: deployments.collect(), ..Observed::default() }
}

fn budget(spec: Value) -> Option<i64> {
    let objects = objects(spec);
    let budgets = of_kind(&objects, "PodDisruptionBudget");
    assert!(budgets.len() < 2);
    budgets.first().map(|budget| budget.body["spec"]["maxUnavailable"].as_i64().unwrap())
}

#[test]
fn evictions_may_take_a_quarter_and_at_least_one_of_two() {
    for (replicas, expected) in [(0, None), (1, None), (2, Some(1)), (3, Some(1)), (7, Some(1)), (8, Some(2)), (100, Some(25))] {
        assert_eq!(budget(json!({"replicas": replicas})), expected, "{replicas}");
    }
    assert_eq!(budget(json!({"replicas": 8, "disruption": {"maxUnavailable": 3}})), Some(3));
    assert_eq!(budget(json!({"replicas": 1, "disruption": {"maxUnavailable": 3}})), None);
    for (least, expected) in [(1, 2), (6, 2), (7, 1), (8, 1)] {
        assert_eq!(budget(json!({"replicas": 8, "rollout": {"minReady": least}})), Some(expected), "{least}");
        let zones = json!([{"name": "a"}, {"name": "b", "minReady": (least - 4).max(0)}]);
        assert_eq!(budget(json!({"replicas": 8, "zones": zones})), Some(expected), "{least} but for the other zone");
    }
    assert_eq!(budget(json!({"autoscaling": {"minReplicas": 1, "maxReplicas": 9}})), Some(1));
    assert_eq!(budget(json!({"autoscaling": {"minReplicas": 1, "maxReplicas": 1}})), None);
}

#[test]
fn a_new_operator_replaces_no_pod() {
    let deployment = fleet(json!({"zones": [{"name": "a"}, {"name": "b"}]}));
    let before = built(&deployment, &context(), &Observed::default()).unwrap();
    let newer = Context {
        operator_image: "operator:2".to_owned(),
        haproxy_images: BTreeMap::from([(HaproxyLine::V3_4, "haproxy:3.4.2".to_owned())]),
        upgrade_turn: true,
        ..context()
    };
    let after = rolled(&deployment, &newer, &running(&before));
    assert_eq!(of_kind(&after, "Deployment"), of_kind(&before, "Deployment"));
}

#[test]
fn pods_that_are_replaced_anyway_take_what_a_new_operator_brings() {
    let before = objects(json!({}));
    let newer = Context { operator_image: "operator:2".to_owned(), ..context() };
    let after = rolled(&fleet(json!({"podLabels": {"a": "b"}})), &newer, &running(&before));
    assert_eq!(template(&after)["spec"]["initContainers"][0]["image"], "operator:2");
}

#[test]
fn a_fleet_that_asks_for_upgrades_takes_them_when_it_is_its_turn() {
    let deployment = fleet(json!({"upgradePolicy": "Automatic"}));
    let before = built(&deployment, &context(), &Observed::default()).unwrap();
    let newer = Context { operator_image: "operator:2".to_owned(), ..context() };
    let image = |context: &Context| {
        let after = rolled(&deployment, context, &running(&before));
        template(&after)["spec"]["initContainers"][0]["image"].clone()
    };
    assert_eq!(image(&newer), "operator:1");
    assert_eq!(image(&Context { upgrade_turn: true, ..newer }), "operator:2");
}

/// With annotations.
fn noted(deployment: &IngressDeployment, annotations: &[(&str, &str)]) -> IngressDeployment {
    let meta = Meta { annotations: annotations.iter().copied().collect::<Pairs>(), ..deployment.meta.clone() };
    IngressDeployment { meta, ..deployment.clone() }
}

fn template_name(deployment: &Desired) -> &str {
    deployment.body["metadata"]["annotations"][ANNOTATION_TEMPLATE].as_str().unwrap()
}

#[test]
fn a_zone_that_is_new_or_was_lost_begins_with_what_the_others_are_known_to_serve_with() {
    let zones = |names: &[&str]| names.iter().map(|name| json!({"name": name})).collect::<Value>();
    let term = json!({"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "Exists"}]});
    let affinity = json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term.clone(), term]}}});
    let expected = objects(json!({"zones": zones(&["a", "b", "c"]), "affinity": affinity}));
    let before = objects(json!({"zones": zones(&["a", "b"]), "affinity": affinity}));
    let stable = template_name(of_kind(&before, "Deployment")[0]).to_owned();
    let spec = json!({"zones": zones(&["a", "b", "c"]), "affinity": affinity, "podLabels": {"new": "template"}});
    let wanted = noted(&fleet(spec), &[(crate::api::ANNOTATION_STABLE, &stable)]);
    let mut observed = running(&before);
    observed.deployments.remove("edge-b");
    let after = built(&wanted, &context(), &observed).unwrap();
    let templates = |objects: &[Desired]| -> Vec<Value> {
        of_kind(objects, "Deployment").iter().map(|deployment| deployment.body["spec"]["template"].clone()).collect()
    };
    assert_eq!(templates(&after), templates(&expected));
}

#[test]
fn who_takes_the_time_of_a_restart_away_or_writes_nonsense_replaces_no_pod() {
    let deployment = fleet(json!({}));
    let at = |time: &str| noted(&deployment, &[(crate::api::ANNOTATION_RESTARTED_AT, time)]);
    let first = built(&deployment, &context(), &Observed::default()).unwrap();
    let restarted = rolled(&at("2026-01-31T12:00:00Z"), &context(), &running(&first));
    let name = |objects: &[Desired]| template_name(of_kind(objects, "Deployment")[0]).to_owned();
    assert_ne!(name(&restarted), name(&first));
    for later in [deployment.clone(), at("now"), at("2026-01-31T12:00:00Z")] {
        assert_eq!(name(&rolled(&later, &context(), &running(&restarted))), name(&restarted));
    }
    assert_ne!(name(&rolled(&at("2026-02-01T12:00:00Z"), &context(), &running(&restarted))), name(&restarted));
}

#[test]
fn an_upgrade_that_reached_a_zone_is_still_wanted_while_it_is_another_fleets_turn() {
    let deployment = fleet(json!({"upgradePolicy": "Automatic", "zones": [{"name": "a"}, {"name": "b"}]}));
    let before = built(&deployment, &context(), &Observed::default()).unwrap();
    let stable = template_name(of_kind(&before, "Deployment")[0]).to_owned();
    let deployment = noted(&deployment, &[(crate::api::ANNOTATION_STABLE, &stable)]);
    let newer = Context { operator_image: "operator:2".to_owned(), upgrade_turn: true, ..context() };
    let observed = running(&before);
    let fleet = Fleet { deployment: &deployment, uid: "uid-1", context: &newer, observed: &observed, change: None };
    let wanted = wanted_template(fleet).unwrap();
    let change = Change::Template(wanted.clone());
    let half = build(Fleet { change: Some((Some("b"), &change)), ..fleet }).unwrap();
    let (waits, half) = (Context { upgrade_turn: false, ..newer.clone() }, running(&half));
    assert_eq!(wanted_template(Fleet { context: &waits, observed: &half, ..fleet }).unwrap(), wanted);
}

#[test]
fn another_release_line_or_image_of_haproxy_is_another_template() {
    let before = objects(json!({}));
    for (spec, image) in [(json!({"haproxyVersion": "3.2"}), "haproxy:3.2.1"), (json!({"image": "mine:1"}), "mine:1")] {
        let after = rolled(&fleet(spec), &context(), &running(&before));
        let template = template(&after);
        assert_eq!(template["spec"]["containers"][0]["image"], image);
        // `haproxy -c` of the agent is that of the HAProxy that loads it
        assert_eq!(template["spec"]["initContainers"][1]["image"], image);
    }
}

#[test]
fn pods_stay_while_the_configuration_fits_into_their_memory() {
    let size = |observed: &Observed| {
        let objects = rolled(&fleet(json!({})), &context(), observed);
        (template(&objects)["spec"]["volumes"][1]["emptyDir"]["sizeLimit"].clone(), running(&objects))
    };
    let (first, running) = size(&Observed { bundle_bytes: 1 << 20, ..Observed::default() });
    let (grown, _) = size(&Observed { bundle_bytes: 20 << 20, ..running.clone() });
    let (larger, running) = size(&Observed { bundle_bytes: 90 << 20, ..running });
    let (shrunk, _) = size(&Observed { bundle_bytes: 1 << 20, ..running });
    assert_eq!([first, grown, larger, shrunk], ["64Mi", "64Mi", "512Mi", "512Mi"].map(Value::from));
}

fn deployment<'o>(objects: &'o [Desired], name: &str) -> &'o Value {
    &of_kind(objects, "Deployment").into_iter().find(|object| object.name == name).unwrap().body
}

/// The Deployments of `observed` after `change` to `zone`.
fn changed(deployment: &IngressDeployment, observed: &Observed, zone: Option<&str>, change: &Change) -> Vec<Desired> {
    build(Fleet { deployment, uid: "uid-1", context: &context(), observed, change: Some((zone, change)) }).unwrap()
}

#[test]
fn a_deployment_that_is_there_keeps_template_and_size_until_it_is_told_otherwise() {
    let zones = json!([{"name": "a"}, {"name": "b"}]);
    let before = objects(json!({"zones": zones, "replicas": 4}));
    let next = fleet(json!({"zones": zones, "replicas": 6, "podLabels": {"x": "y"}, "rollout": {"minReadySeconds": 7}}));
    let kept = built(&next, &context(), &running(&before)).unwrap();
    for name in ["edge-a", "edge-b"] {
        let (old, new) = (deployment(&before, name), deployment(&kept, name));
        assert_eq!((&new["spec"]["template"], &new["spec"]["replicas"]), (&old["spec"]["template"], &json!(2)));
        assert_eq!(new["spec"]["minReadySeconds"], 7, "what replaces no pod counts at once");
    }
    let wanted =
        wanted_template(Fleet { deployment: &next, uid: "", context: &context(), observed: &running(&before), change: None }).unwrap();
    let told = changed(&next, &running(&before), Some("b"), &Change::Template(wanted.clone()));
    assert_eq!(deployment(&told, "edge-a"), deployment(&kept, "edge-a"));
    let b = deployment(&told, "edge-b");
    assert_eq!((&b["spec"]["paused"], &b["spec"]["template"]["metadata"]["labels"]["x"]), (&json!(true), &json!("y")));
    assert_eq!(b["spec"]["template"]["metadata"]["annotations"][ANNOTATION_TEMPLATE], *wanted.0);
    assert_eq!(b["metadata"]["annotations"][ANNOTATION_TEMPLATE], *wanted.0);
    let sized = changed(&next, &running(&told), Some("b"), &Change::Scale(3));
    assert_eq!(
        (&deployment(&sized, "edge-b")["spec"]["replicas"], &deployment(&sized, "edge-b")["spec"]["paused"]),
        (&json!(3), &json!(true))
    );
    let resumed = changed(&next, &running(&sized), Some("b"), &Change::Resume);
    assert!(deployment(&resumed, "edge-b")["spec"].get("paused").is_none());
}

#[test]
fn a_restart_by_hand_is_a_template_of_its_own() {
    let mut deployment = fleet(json!({}));
    let before = built(&deployment, &context(), &Observed::default()).unwrap();
    let mut seen = vec![template(&before)];
    for time in ["2026-01-31T12:00:00Z", "2026-01-31T13:00:00Z"] {
        deployment.meta.annotations = Pairs::from_iter([("haproxy-fleet.dev/restarted-at", time)]);
        let after = template(&rolled(&deployment, &context(), &running(&before)));
        assert!(!seen.contains(&after), "{time}");
        seen.push(after);
    }
}

#[test]
fn a_number_of_pods_stays_until_an_autoscaler_writes_another_one() {
    let before = objects(json!({"replicas": 4}));
    let scaled = fleet(json!({"autoscaling": {"minReplicas": 2, "maxReplicas": 8}}));
    let mut live = deployment(&before, "edge").clone();
    let ours = |fields: Value| json!([{"manager": "haproxy-fleet", "operation": "Apply", "fieldsV1": {"f:spec": fields}}]);
    let written = |live: &Value| {
        let observed = Observed { deployments: BTreeMap::from([("edge".to_owned(), InUse::of(live))]), ..Observed::default() };
        deployment(&built(&scaled, &context(), &observed).unwrap(), "edge")["spec"]["replicas"].clone()
    };
    live["metadata"]["managedFields"] = ours(json!({"f:replicas": {}}));
    assert_eq!(written(&live), 4);
    live["metadata"]["managedFields"] = ours(json!({}));
    live["spec"]["replicas"] = json!(5);
    assert_eq!(written(&live), Value::Null);
}

#[test]
fn a_pause_of_somebody_else_is_ended_in_so_many_words() {
    let fleet = fleet(json!({}));
    let mut live = deployment(&built(&fleet, &context(), &Observed::default()).unwrap(), "edge").clone();
    live["spec"]["paused"] = json!(true);
    let resumed = |live: &Value| {
        let observed = Observed { deployments: BTreeMap::from([("edge".to_owned(), InUse::of(live))]), ..Observed::default() };
        deployment(&changed(&fleet, &observed, None, &Change::Resume), "edge")["spec"]["paused"].clone()
    };
    assert_eq!(resumed(&live), Value::Null);
    let theirs = json!({"manager": "kubectl-rollout", "operation": "Update", "fieldsV1": {"f:spec": {"f:paused": {}}}});
    live["metadata"]["managedFields"] = json!([theirs]);
    assert_eq!(resumed(&live), false);
}

#[test]
fn a_zone_goes_back_to_the_very_template_that_the_whole_fleet_ran() {
    let before = objects(json!({}));
    let first = deployment(&before, "edge")["spec"]["template"].clone();
    let stable = InUse::of(deployment(&before, "edge")).applied.template;
    let steered = |spec: Value| {
        let mut next = fleet(spec);
        next.meta.annotations = Pairs::from_iter([("haproxy-fleet.dev/stable", &*stable.0)]);
        next
    };
    // a third template in the middle of a rollout does not make the second one what is gone back to
    let (second, third) = (steered(json!({"podLabels": {"x": "2"}})), steered(json!({"podLabels": {"x": "3"}})));
    let on_way = rolled(&second, &context(), &running(&before));
    let on_way = rolled(&third, &context(), &running(&on_way));
    assert_eq!(template(&on_way)["metadata"]["labels"]["x"], "3");
    let back = changed(&third, &running(&on_way), None, &Change::Template(stable));
    assert_eq!(deployment(&back, "edge")["spec"]["template"], first);
}

#[test]
fn a_deployment_that_does_not_say_what_was_applied_keeps_what_it_has() {
    let mut live = deployment(&objects(json!({})), "edge").clone();
    live["metadata"]["annotations"] = json!({"haproxy-fleet.dev/applied-template": "{broken"});
    live["spec"]["template"]["spec"]["dnsPolicy"] = json!("ClusterFirst");
    let observed = Observed { deployments: BTreeMap::from([("edge".to_owned(), InUse::of(&live))]), ..Observed::default() };
    let kept = built(&fleet(json!({})), &context(), &observed).unwrap();
    assert_eq!(deployment(&kept, "edge")["spec"]["template"], live["spec"]["template"]);
    let replaced = rolled(&fleet(json!({})), &context(), &observed);
    assert!(template(&replaced)["spec"].get("dnsPolicy").is_none());
}

#[test]
fn a_zone_that_is_listed_no_more_stays_until_it_is_empty() {
    let before = objects(json!({"zones": [{"name": "a"}, {"name": "b"}], "replicas": 4}));
    let less = fleet(json!({"zones": [{"name": "a"}], "replicas": 4}));
    let names = |observed: &Observed| -> Vec<String> {
        let objects = built(&less, &context(), observed).unwrap();
        of_kind(&objects, "Deployment").iter().map(|object| object.name.clone()).collect()
    };
    let mut observed = running(&before);
    assert_eq!(names(&observed), ["edge-a", "edge-b"]);
    observed.deployments.get_mut("edge-b").unwrap().is_empty = true;
    assert_eq!(names(&observed), ["edge-a"]);
}

#[test]
fn everything_that_a_template_is_made_from_makes_another_one() {
    let base = json!({"publishing": {"type": "HostNetwork"}, "rollout": {"maxUnavailable": 1}});
    let changes = [
        json!({"haproxyVersion": "3.2"}),
        json!({"image": "mine:1"}),
        json!({"nodeSelector": {"a": "b"}}),
        json!({"tolerations": [{"key": "a"}]}),
        json!({"affinity": {"podAffinity": {}}}),
        json!({"topologySpread": {"maxSkew": 3}}),
        json!({"priorityClassName": "high"}),
        json!({"resources": {"limits": {"cpu": "1"}}}),
        json!({"tuning": {"threads": 3}}),
        json!({"tuning": {"maxConnections": 5000}}),
        json!({"podLabels": {"a": "b"}}),
        json!({"podAnnotations": {"a": "b"}}),
        json!({"podTemplatePatch": [{"op": "add", "path": "/spec/hostname", "value": "x"}]}),
        json!({"drain": {"timeout": "61s"}}),
        json!({"drain": {"deregistrationDelay": "1s"}}),
        json!({"publishing": {"type": "HostNetwork", "hostNetwork": {"httpPort": 81}}}),
        json!({"publishing": {"type": "Private"}}),
    ];
    let before = objects(base.clone());
    let differs = |change: &Value| {
        let mut spec = base.clone();
        json_patch::merge(&mut spec, change);
        // as if it were new, and as a change of what is there: both have to find it
        (
            template(&objects(spec.clone())) != template(&before),
            template(&rolled(&fleet(spec), &context(), &running(&before))) != template(&before),
        )
    };
    for change in &changes {
        assert_eq!(differs(change), (true, true), "{change}");
    }
    // everything else of a spec replaces no pod
    for change in [
        json!({"replicas": 5}),
        json!({"tuning": {"hardStopAfter": "2h"}}),
        json!({"disruption": {"maxUnavailable": 1}}),
        json!({"ports": {"http": 8000}}),
    ] {
        assert_eq!(differs(&change), (false, false), "{change}");
    }
}

#[test]
fn labels_and_annotations_of_the_fleet_are_not_passed_on() {
    let mut deployment = fleet(json!({}));
    deployment.meta.labels = Pairs::from_iter([("argocd.argoproj.io/instance", "app"), ("team", "edge")]);
    deployment.meta.annotations = Pairs::from_iter([("argocd.argoproj.io/tracking-id", "app:x")]);
    let with = built(&deployment, &context(), &Observed::default()).unwrap();
    assert_eq!(with, objects(json!({})));
}

#[test]
fn what_must_outlive_a_cascade_has_no_owner() {
    let objects = objects(json!({"publishing": {"additionalServices": [
        {"name": "out", "type": "LoadBalancer"}, {"name": "in", "type": "Private"},
    ]}, "autoscaling": {"maxReplicas": 3}}));
    let mut labelled = Vec::new();
    for object in &objects {
        let owned = !object.body["metadata"]["ownerReferences"].is_null();
        assert_eq!(owned, object.ownership == Ownership::Owned, "{object:?}");
        assert_eq!(object.body["metadata"]["labels"][LABEL_FLEET], "edge");
        if !owned {
            labelled.push((object.kind.as_str(), object.name.as_str()));
        }
    }
    assert_eq!(labelled, [("Service", "edge"), ("Service", "edge-out"), ("Deployment", "edge"), ("IngressClass", "public")]);
}

#[test]
fn what_pods_need_is_applied_before_them() {
    let objects = objects(json!({"autoscaling": {"maxReplicas": 3}}));
    let kinds: Vec<&str> = objects.iter().map(|object| object.kind.as_str()).collect();
    assert_eq!(
        kinds,
        [
            "ServiceAccount",
            "ConfigMap",
            "Secret",
            "NetworkPolicy",
            "PodDisruptionBudget",
            "Service",
            "Deployment",
            "HorizontalPodAutoscaler",
            "IngressClass"
        ]
    );
}

fn balanced(class: Option<&str>, address: Option<&str>) -> Observed {
    let service = ObservedService { kind: "LoadBalancer".to_owned(), class: class.map(str::to_owned), address: address.map(str::to_owned) };
    Observed { services: BTreeMap::from([("edge".to_owned(), service)]), ..Observed::default() }
}

#[test]
fn an_address_in_use_is_not_given_up_for_another_type_or_class() {
    let private = fleet(json!({"publishing": {"type": "Private"}}));
    let found = refusals(&private, &balanced(None, Some("192.0.2.1")));
    assert_eq!(found.len(), 1);
    assert!(found[0].0 == "spec.publishing.type" && found[0].1.contains("192.0.2.1"), "{found:?}");
    assert!(built(&private, &context(), &balanced(None, None)).is_ok());

    let class = |class: &str| fleet(json!({"publishing": {"loadBalancer": {"class": class}}}));
    assert_eq!(refusals(&class("b"), &balanced(Some("a"), None))[0].0, "spec.publishing.loadBalancer.class");
    assert_eq!(refusals(&class("b"), &balanced(None, None))[0].0, "spec.publishing.loadBalancer.class");
    assert!(built(&class("a"), &context(), &balanced(Some("a"), Some("192.0.2.1"))).is_ok());
    // a class that the cluster gave by itself is none of ours
    assert!(built(&fleet(json!({})), &context(), &balanced(Some("a"), Some("192.0.2.1"))).is_ok());
}

#[test]
fn an_observed_service_is_read_as_the_api_server_gives_it() {
    let service = json!({
        "spec": {"type": "LoadBalancer", "loadBalancerClass": "c"},
        "status": {"loadBalancer": {"ingress": [{"hostname": "lb.example.com"}]}},
    });
    let expected =
        ObservedService { kind: "LoadBalancer".to_owned(), class: Some("c".to_owned()), address: Some("lb.example.com".to_owned()) };
    assert_eq!(ObservedService::of(&service), expected);
}

#[test]
fn a_spec_that_the_api_server_would_refuse_builds_nothing() {
    let found = refusals(&fleet(json!({"replicas": -1})), &Observed::default());
    assert_eq!(found[0].0, "spec.replicas");
}

#[test]
fn listed_zones_share_pods_and_the_bounds_of_their_autoscalers() {
    let zones = json!([{"name": "a"}, {"name": "b"}]);
    let sized = objects(json!({"zones": zones, "replicas": 5}));
    let replicas: Vec<_> = of_kind(&sized, "Deployment").iter().map(|object| object.body["spec"]["replicas"].clone()).collect();
    assert_eq!(replicas, [3, 2]);
    let scaled = objects(json!({"zones": zones, "autoscaling": {"minReplicas": 3, "maxReplicas": 9}}));
    assert!(of_kind(&scaled, "Deployment").iter().all(|object| object.body["spec"].get("replicas").is_none()));
    let bounds: Vec<_> = of_kind(&scaled, "HorizontalPodAutoscaler")
        .iter()
        .map(|object| {
            let spec = &object.body["spec"];
            (spec["scaleTargetRef"]["name"].clone(), spec["minReplicas"].clone(), spec["maxReplicas"].clone())
        })
        .collect();
    assert_eq!(bounds, [(json!("edge-a"), json!(2), json!(5)), (json!("edge-b"), json!(1), json!(4))]);
}

#[test]
fn a_fleet_whose_pods_cannot_surge_lets_some_be_missing() {
    let strategy = |spec: Value| of_kind(&objects(spec), "Deployment")[0].body["spec"]["strategy"]["rollingUpdate"].clone();
    assert_eq!(strategy(json!({})), json!({"maxSurge": "25%", "maxUnavailable": 0}));
    assert_eq!(strategy(json!({"rollout": {"maxSurge": 0}})), json!({"maxSurge": 0, "maxUnavailable": 1}));
    let on_hosts = json!({"replicas": 9, "publishing": {"type": "HostNetwork"}});
    assert_eq!(strategy(on_hosts), json!({"maxSurge": 0, "maxUnavailable": 2}));
    let told = json!({"publishing": {"type": "HostNetwork"}, "rollout": {"maxUnavailable": "0%"}});
    assert_eq!(strategy(told), json!({"maxSurge": 0, "maxUnavailable": 1}));
}

#[test]
fn keys_are_nowhere_but_in_their_secret() {
    use base64::Engine;
    let encoded = base64::engine::general_purpose::STANDARD.encode("a private key");
    for object in objects(json!({})) {
        let text = object.body.to_string();
        assert_eq!(text.contains(&encoded), object.kind == "Secret");
        assert!(!text.contains("a private key") && !format!("{object:?}").contains(&encoded));
    }
}

/// The findings about a patch.
fn patched(steps: &Value) -> Result<Value, Vec<String>> {
    let deployment = fleet(json!({"podTemplatePatch": steps}));
    let found = built(&deployment, &context(), &Observed::default());
    let text = |found: Vec<Diagnostic>| found.into_iter().map(|found| format!("{}: {}", found.field, found.message)).collect();
    found.map(|objects| template(&objects)).map_err(text)
}

#[test]
fn a_patch_is_told_by_the_step_that_cannot_be_done() {
    let found = patched(&json!([{"op": "test", "path": "/spec/hostNetwork", "value": true}])).unwrap_err();
    assert!(found[0].starts_with("spec.podTemplatePatch[0]: the step cannot be done"), "{found:?}");
    let found = patched(&json!([{"op": "add", "path": "/spec/hostAliasses", "value": []}, {"op": "move", "path": "/a"}])).unwrap_err();
    assert!(found[0].starts_with("spec.podTemplatePatch[1]: missing field `from`"), "{found:?}");
    let found = patched(&json!([{"op": "add", "path": "/spec/hostAliasses", "value": [1]}])).unwrap_err();
    assert_eq!(found, ["spec.podTemplatePatch: the result is no pod template: spec.hostAliasses[0] is not known"]);
}

#[test]
fn a_patch_that_takes_away_what_pods_need_is_refused() {
    let haproxy = "/spec/containers/0";
    let hostile = [
        json!({"op": "remove", "path": "/spec/containers/0/readinessProbe"}),
        json!({"op": "remove", "path": format!("{haproxy}/lifecycle")}),
        json!({"op": "replace", "path": format!("{haproxy}/command"), "value": ["sh"]}),
        json!({"op": "replace", "path": format!("{haproxy}/image"), "value": "other"}),
        json!({"op": "remove", "path": format!("{haproxy}/volumeMounts/0")}),
        json!({"op": "add", "path": format!("{haproxy}/volumeMounts/-"), "value": {"name": "keys", "mountPath": "/keys"}}),
        json!({"op": "add", "path": format!("{haproxy}/volumeMounts/-"), "value": {"name": "x", "mountPath": "/run"}}),
        json!({"op": "add", "path": format!("{haproxy}/workingDir"), "value": "/tmp"}),
        json!({"op": "add", "path": "/spec/initContainers/1/env/0", "value": {"name": "POD_UID", "value": "x"}}),
        json!({"op": "move", "from": "/spec/initContainers/1", "path": "/spec/initContainers/0"}),
        json!({"op": "remove", "path": "/spec/initContainers/1/restartPolicy"}),
        json!({"op": "replace", "path": "/spec/volumes/2", "value": {"name": "token", "emptyDir": {}}}),
        json!({"op": "add", "path": "/spec/volumes/-", "value": {"name": "t", "projected": {"sources": [
            {"serviceAccountToken": {"audience": "haproxy-fleet.dev/operator", "path": "t"}},
        ]}}}),
        json!({"op": "replace", "path": "/spec/serviceAccountName", "value": "default"}),
        json!({"op": "replace", "path": "/spec/automountServiceAccountToken", "value": true}),
        json!({"op": "replace", "path": "/spec/terminationGracePeriodSeconds", "value": 119}),
        json!({"op": "remove", "path": "/spec/terminationGracePeriodSeconds"}),
        json!({"op": "replace", "path": "/metadata/labels/haproxy-fleet.dev~1fleet", "value": "other"}),
        json!({"op": "add", "path": "/metadata/annotations", "value": {"haproxy-fleet.dev/x": "y"}}),
        json!({"op": "add", "path": "/spec/shareProcessNamespace", "value": true}),
        json!({"op": "remove", "path": "/spec/containers/0"}),
        json!({"op": "replace", "path": "/spec", "value": {"containers": []}}),
        json!({"op": "replace", "path": "", "value": null}),
    ];
    for step in hostile {
        let found = patched(&json!([step])).unwrap_err();
        assert!(!found.is_empty() && found.iter().all(|found| found.starts_with("spec.podTemplatePatch")), "{step}: {found:?}");
    }
}

#[test]
fn a_patch_may_add_what_leaves_the_rest_as_it_is() {
    let template = patched(&json!([
        {"op": "add", "path": "/spec/dnsConfig", "value": {"options": [{"name": "ndots", "value": "1"}]}},
        {"op": "add", "path": "/spec/containers/0/env", "value": [{"name": "TZ", "value": "UTC"}]},
        {"op": "add", "path": "/spec/volumes/-", "value": {"name": "geo", "configMap": {"name": "geo"}}},
        {"op": "add", "path": "/spec/containers/0/volumeMounts/-", "value": {"name": "geo", "mountPath": "/geo", "readOnly": true}},
        {"op": "add", "path": "/spec/imagePullSecrets", "value": [{"name": "registry"}]},
        {"op": "replace", "path": "/spec/securityContext/runAsUser", "value": 1234},
        {"op": "add", "path": "/metadata/annotations", "value": {"example.com/a": "b"}},
    ]))
    .unwrap();
    assert_eq!(template["spec"]["containers"][0]["env"][0]["value"], "UTC");
    assert_eq!(template["spec"]["securityContext"]["runAsUser"], 1234);
}
