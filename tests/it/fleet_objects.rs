//! Whatever an `IngressDeployment` asks for: its objects fit together, its pods are Restricted, and nothing but a change
//! of their template replaces them.

use crate::seeds::{fixed_seed, runner};
use haproxy_fleet::api::{HaproxyLine, IngressDeployment, Meta};
use haproxy_fleet::fleet::build::{AGENT, Context, Desired, Fleet, HAPROXY, INSTALL, Observed, build};
use haproxy_fleet::report::{Diagnostic, PrivateBytes};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1::{
    ConfigMap, Container, PodSpec, PodTemplateSpec, Secret, SecurityContext, Service, ServiceAccount, Volume,
};
use k8s_openapi::api::networking::v1::{IngressClass, NetworkPolicy};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_oneof};
use proptest::sample::{Index, select};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

pub(crate) fn context() -> Context {
    Context {
        operator_namespace: "operators".to_owned(),
        operator_image: "operator:1".to_owned(),
        haproxy_images: BTreeMap::from([(HaproxyLine::V3_4, "haproxy:3.4".to_owned()), (HaproxyLine::V3_2, "haproxy:3.2".to_owned())]),
        agents_service: "agents".to_owned(),
        agents_port: 9443,
        ca_bundle: "ca".to_owned(),
        ticket_keys: PrivateBytes::new(b"keys".to_vec()),
        ticket_keys_since: None,
        default_certificate: PrivateBytes::new(b"certificate".to_vec()),
        upgrade_turn: false,
        traffic_distribution: true,
    }
}

fn built(spec: &Value) -> Result<Vec<Desired>, Vec<Diagnostic>> {
    let deployment = IngressDeployment { meta: Meta::named("infra", "edge"), spec: serde_json::from_value(spec.clone()).unwrap() };
    build(Fleet { deployment: &deployment, uid: "uid", context: &context(), observed: &Observed::default(), change: None })
}

fn of_kind<'o, T: DeserializeOwned>(objects: &'o [Desired], kind: &'o str) -> impl Iterator<Item = T> + 'o {
    objects.iter().filter(move |object| object.kind == kind).map(|object| serde_json::from_value(object.body.clone()).unwrap())
}

fn templates(objects: &[Desired]) -> Vec<Value> {
    objects.iter().filter(|object| object.kind == "Deployment").map(|object| object.body["spec"]["template"].clone()).collect()
}

// ---- specs --------------------------------------------------------------------

/// One of `values`, or nothing.
fn maybe(values: Vec<Value>) -> impl Strategy<Value = Option<Value>> {
    proptest::option::of(select(values))
}

/// Fields that may stand beside each other in any combination; some of these break a rule.
fn specs() -> impl Strategy<Value = Value> {
    let sizes = prop_oneof![
        (0..40).prop_map(|replicas| json!({"replicas": replicas})),
        (1..12, 0..9).prop_map(|(least, more)| json!({"autoscaling": {"minReplicas": least, "maxReplicas": least + more}})),
        vec(0..5, 1..5).prop_map(|sizes| {
            let zones: Vec<Value> = sizes.iter().enumerate().map(|(n, size)| json!({"name": format!("z{n}"), "replicas": size})).collect();
            json!({"zones": zones})
        }),
        (1..4_usize, 0..9).prop_map(|(zones, replicas)| {
            let zones: Vec<Value> = (0..zones).map(|n| json!({"name": format!("z{n}")})).collect();
            json!({"zones": zones, "replicas": replicas})
        }),
    ];
    let publishing = vec![
        json!({"type": "Private"}),
        json!({"type": "NodePort", "nodePorts": {"https": 30443}}),
        json!({"type": "HostNetwork"}),
        json!({"type": "HostNetwork", "hostNetwork": {"httpPort": 80, "httpsPort": 443, "healthPort": 1936}}),
        json!({"loadBalancer": {"class": "c", "annotations": {"a": "b"}, "allowedSourceRanges": ["10.0.0.0/8"]}}),
        json!({"additionalServices": [{"name": "a", "type": "Private"}, {"name": "b", "type": "LoadBalancer"}], "proxyProtocol": true}),
    ];
    let pods = (
        maybe(vec![json!({"pool": "edge"}), json!({"topology.kubernetes.io/zone": "z0"})]),
        maybe(vec![json!([{"operator": "Exists"}])]),
        maybe(vec![json!({"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]},
        ]}}})]),
        maybe(vec![json!({"maxSkew": 3}), json!({"whenUnsatisfiable": "DoNotSchedule"})]),
        maybe(vec![json!({"requests": {"memory": "4Gi"}}), json!({"limits": {"cpu": "100m", "memory": "256Mi"}})]),
        maybe(vec![json!({"threads": 4}), json!({"maxConnections": 100})]),
        maybe(vec![json!({"team": "a"}), json!({"app.kubernetes.io/name": "x"}), json!({"b": "c", "d": "e"})]),
        maybe(vec![json!({"x": "y"}), json!({"container.apparmor.security.beta.kubernetes.io/haproxy": "unconfined"})]),
    );
    let rest = (
        maybe(publishing),
        maybe(vec![json!({"maxSurge": 0}), json!({"maxSurge": "50%", "maxUnavailable": "10%"}), json!({"maxUnavailable": 1})]),
        maybe(vec![json!({"maxUnavailable": 5}), json!({"unhealthyPodEvictionPolicy": "IfHealthyBudget"})]),
        maybe(vec![
            json!({"deregistrationDelay": "0s", "timeout": "0s"}),
            json!({"timeout": "24h"}),
            json!({"deregistrationDelay": "15m"}),
        ]),
        maybe(vec![json!("3.2")]),
        maybe(vec![json!("Automatic")]),
    );
    (sizes, pods, rest).prop_map(|(sizes, pods, rest)| {
        let (selector, tolerations, affinity, spread, resources, tuning, labels, annotations) = pods;
        let (publishing, rollout, disruption, drain, version, upgrade) = rest;
        let fields = [
            ("nodeSelector", selector),
            ("tolerations", tolerations),
            ("affinity", affinity),
            ("topologySpread", spread),
            ("resources", resources),
            ("tuning", tuning),
            ("podLabels", labels),
            ("podAnnotations", annotations),
            ("publishing", publishing),
            ("rollout", rollout),
            ("disruption", disruption),
            ("drain", drain),
            ("haproxyVersion", version),
            ("upgradePolicy", upgrade),
        ];
        let mut spec = sizes;
        spec["ingressClassName"] = json!("public");
        for (name, value) in fields {
            if let Some(value) = value {
                spec[name] = value;
            }
        }
        spec
    })
}

/// Steps of a patch: at any place of a template, and where they hurt most.
fn steps() -> impl Strategy<Value = Vec<Value>> {
    let mut places = Vec::new();
    let objects = built(&json!({"ingressClassName": "public"})).unwrap();
    pointers(&templates(&objects)[0], String::new(), &mut places);
    let values = vec![
        json!(null),
        json!(true),
        json!(false),
        json!(0),
        json!(-1),
        json!("x"),
        json!(""),
        json!([]),
        json!({}),
        json!(["ALL"]),
        json!({"type": "Unconfined"}),
        json!({"privileged": true}),
        json!({"hostPath": {"path": "/"}, "name": "run"}),
        json!({"name": "evil", "image": "evil"}),
        json!({"runAsNonRoot": true, "runAsUser": 0}),
    ];
    let anywhere = (any::<Index>(), select(vec!["add", "remove", "replace", "copy", "move"]), any::<Index>(), select(values))
        .prop_map(move |(to, op, from, value)| json!({"op": op, "path": to.get(&places), "from": from.get(&places), "value": value}));
    let harmless = json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}});
    let container = |more: Value| {
        let mut container = json!({"name": "more", "image": "more", "securityContext": harmless});
        json_merge(&mut container, &more);
        container
    };
    let add = |path: &str, value: Value| json!({"op": "add", "path": path, "value": value});
    let aimed = vec![
        add("/spec/hostNetwork", json!(true)),
        add("/spec/hostPID", json!(true)),
        add("/spec/hostIPC", json!(true)),
        add("/spec/hostUsers", json!(true)),
        add("/spec/os", json!({"name": "windows"})),
        add("/spec/nodeName", json!("node-1")),
        add("/spec/volumes/-", json!({"name": "host", "hostPath": {"path": "/"}})),
        add("/spec/volumes/-", json!({"name": "nfs", "nfs": {"path": "/", "server": "s"}})),
        add("/spec/volumes/-", json!({"name": "scratch", "emptyDir": {}})),
        add("/spec/securityContext/sysctls", json!([{"name": "kernel.msgmax", "value": "1"}])),
        add("/spec/securityContext/sysctls", json!([{"name": "net.ipv4.ip_unprivileged_port_start", "value": "0"}])),
        add("/spec/securityContext/seLinuxOptions", json!({"type": "spc_t"})),
        add("/spec/securityContext/appArmorProfile", json!({"type": "Unconfined"})),
        add("/spec/securityContext/windowsOptions", json!({"hostProcess": true})),
        add("/spec/securityContext/runAsNonRoot", json!(false)),
        add("/spec/securityContext/runAsUser", json!(0)),
        add("/spec/securityContext/seccompProfile", json!({"type": "Unconfined"})),
        add("/spec/containers/0/securityContext/capabilities", json!({"drop": ["ALL"], "add": ["NET_ADMIN"]})),
        add("/spec/containers/0/ports/0/hostPort", json!(80)),
        add("/spec/ephemeralContainers", json!([{"name": "e", "image": "e"}])),
        add("/metadata/annotations", json!({"container.apparmor.security.beta.kubernetes.io/more": "unconfined"})),
        add("/spec/containers/-", container(json!({}))),
        add("/spec/initContainers/-", container(json!({"securityContext": {"procMount": "Unmasked"}}))),
        add("/spec/containers/-", container(json!({"securityContext": {"capabilities": {"add": ["NET_BIND_SERVICE"]}}}))),
        add("/spec/containers/-", container(json!({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}))),
        add("/spec/containers/-", container(json!({"securityContext": {"allowPrivilegeEscalation": true}}))),
        add("/spec/containers/-", container(json!({"securityContext": {"seccompProfile": {"type": "Unconfined"}}}))),
        add("/spec/containers/-", container(json!({"ports": [{"containerPort": 1, "hostPort": 1}]}))),
        add("/spec/containers/-", container(json!({"livenessProbe": {"httpGet": {"port": 1, "host": "169.254.169.254"}}}))),
        add("/spec/containers/-", container(json!({"volumeMounts": [{"name": "token", "mountPath": "/t"}]}))),
        add("/spec/containers/-", json!({"name": "bare", "image": "bare"})),
    ];
    vec(prop_oneof![2 => anywhere, 3 => select(aimed)], 1..4)
}

fn json_merge(target: &mut Value, more: &Value) {
    match (target, more) {
        (Value::Object(target), Value::Object(more)) => {
            for (name, value) in more {
                json_merge(target.entry(name.clone()).or_insert(Value::Null), value);
            }
        }
        (target, more) => *target = more.clone(),
    }
}

/// JSON Pointers to everything in `value`.
fn pointers(value: &Value, path: String, all: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                pointers(member, format!("{path}/{}", name.replace('~', "~0").replace('/', "~1")), all);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                pointers(item, format!("{path}/{index}"), all);
            }
            all.push(format!("{path}/-"));
        }
        _ => {}
    }
    all.push(path);
}

// ---- the Restricted Pod Security Standard -------------------------------------

/// What of a pod template the Restricted standard forbids, control by control of kubernetes.io's table. Not the check of
/// the product: typed, and from the table alone.
fn restricted(template: &PodTemplateSpec) -> Vec<String> {
    let pod = template.spec.as_ref().unwrap();
    let mut broken = Vec::new();
    if [pod.host_network, pod.host_pid, pod.host_ipc].contains(&Some(true)) {
        broken.push("host namespaces".to_owned());
    }
    let annotations = template.metadata.as_ref().and_then(|metadata| metadata.annotations.clone()).unwrap_or_default();
    let unconfined = |(key, value): &(&String, &String)| {
        key.starts_with("container.apparmor.security.beta.kubernetes.io/")
            && *value != "runtime/default"
            && !value.starts_with("localhost/")
    };
    broken.extend(annotations.iter().filter(unconfined).map(|(key, _)| format!("annotation {key}")));
    broken.extend(pod.volumes.iter().flatten().filter(|volume| !is_allowed(volume)).map(|volume| format!("volume {}", volume.name)));
    let context = pod.security_context.clone().unwrap_or_default();
    let safe = ["kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start"];
    if context.sysctls.iter().flatten().any(|sysctl| !safe.contains(&sysctl.name.as_str())) {
        broken.push("sysctls".to_owned());
    }
    if pod.os.as_ref().is_some_and(|os| os.name == "windows") || pod.ephemeral_containers.iter().flatten().count() > 0 {
        broken.push("operating system, or containers for debugging".to_owned());
    }
    // what pods say for all their containers, in the shape that containers say it in
    let for_all = SecurityContext {
        run_as_non_root: context.run_as_non_root,
        run_as_user: context.run_as_user,
        seccomp_profile: context.seccomp_profile,
        app_armor_profile: context.app_armor_profile,
        se_linux_options: context.se_linux_options,
        windows_options: context.windows_options,
        ..SecurityContext::default()
    };
    broken.extend(said(&for_all).into_iter().map(|what| format!("pod: {what}")));
    for container in pod.init_containers.iter().flatten().chain(&pod.containers) {
        broken.extend(container_broken(container, &for_all).into_iter().map(|what| format!("{}: {what}", container.name)));
    }
    broken
}

fn is_allowed(volume: &Volume) -> bool {
    let allowed = [
        volume.config_map.is_some(),
        volume.csi.is_some(),
        volume.downward_api.is_some(),
        volume.empty_dir.is_some(),
        volume.ephemeral.is_some(),
        volume.persistent_volume_claim.is_some(),
        volume.projected.is_some(),
        volume.secret.is_some(),
    ];
    let fields = serde_json::to_value(volume).unwrap().as_object().unwrap().len();
    allowed.iter().filter(|is| **is).count() == 1 && fields == 2
}

fn said(context: &SecurityContext) -> Vec<&'static str> {
    let profile = |kind: &str| !matches!(kind, "RuntimeDefault" | "Localhost");
    let selinux = context.se_linux_options.clone().unwrap_or_default();
    let labelled = |text: Option<String>| text.is_some_and(|text| !text.is_empty());
    let types = ["", "container_t", "container_init_t", "container_kvm_t"];
    let checks = [
        ("run as root", context.run_as_user == Some(0) || context.run_as_non_root == Some(false)),
        ("seccomp", context.seccomp_profile.as_ref().is_some_and(|seccomp| profile(&seccomp.type_))),
        ("AppArmor", context.app_armor_profile.as_ref().is_some_and(|armor| profile(&armor.type_))),
        (
            "SELinux",
            selinux.type_.as_deref().is_some_and(|kind| !types.contains(&kind)) || labelled(selinux.user) || labelled(selinux.role),
        ),
        ("host process", context.windows_options.as_ref().is_some_and(|windows| windows.host_process == Some(true))),
    ];
    checks.into_iter().filter(|(_, broken)| *broken).map(|(what, _)| what).collect()
}

fn container_broken(container: &Container, pod: &SecurityContext) -> Vec<&'static str> {
    let context = container.security_context.clone().unwrap_or_default();
    let mut broken = said(&context);
    let capabilities = context.capabilities.clone().unwrap_or_default();
    let probes = [&container.liveness_probe, &container.readiness_probe, &container.startup_probe];
    let hosts = probes.into_iter().flatten().any(|probe| {
        let http = probe.http_get.as_ref().and_then(|get| get.host.clone());
        http.or_else(|| probe.tcp_socket.as_ref().and_then(|tcp| tcp.host.clone())).is_some_and(|host| !host.is_empty())
    });
    let checks = [
        ("privileged", context.privileged == Some(true)),
        ("privilege escalation", context.allow_privilege_escalation != Some(false)),
        ("drop of all capabilities", !capabilities.drop.iter().flatten().any(|name| name == "ALL")),
        ("capabilities", capabilities.add.iter().flatten().any(|name| name != "NET_BIND_SERVICE")),
        ("non-root", context.run_as_non_root.or(pod.run_as_non_root) != Some(true)),
        ("seccomp unset", context.seccomp_profile.is_none() && pod.seccomp_profile.is_none()),
        ("/proc", context.proc_mount.is_some_and(|mount| mount != "Default")),
        ("host port", container.ports.iter().flatten().any(|port| port.host_port.is_some_and(|port| port != 0))),
        ("host of a probe", hosts),
    ];
    broken.extend(checks.into_iter().filter(|(_, broken)| *broken).map(|(what, _)| what));
    broken
}

/// Breaks of the standard that a fleet on the host's network is for.
fn is_excepted(what: &str, spec: &Value) -> bool {
    spec["publishing"]["type"] == "HostNetwork" && (what == "host namespaces" || what == "haproxy: host port")
}

fn assert_restricted(objects: &[Desired], spec: &Value) {
    for deployment in of_kind::<Deployment>(objects, "Deployment") {
        let broken = restricted(&deployment.spec.unwrap().template);
        let broken: Vec<&String> = broken.iter().filter(|what| !is_excepted(what, spec)).collect();
        assert!(broken.is_empty(), "{broken:?}\n{spec}");
    }
}

// ---- what always holds --------------------------------------------------------

/// Says whether `body` is an object of type `T` and nothing else.
fn is_whole<T: Serialize + DeserializeOwned>(body: &Value) -> bool {
    serde_json::from_value::<T>(body.clone()).is_ok_and(|typed| serde_json::to_value(typed).unwrap() == *body)
}

fn assert_known(object: &Desired) {
    let body = &object.body;
    let known = match object.kind.as_str() {
        "ServiceAccount" => is_whole::<ServiceAccount>(body),
        "ConfigMap" => is_whole::<ConfigMap>(body),
        "Secret" => is_whole::<Secret>(body),
        "NetworkPolicy" => is_whole::<NetworkPolicy>(body),
        "PodDisruptionBudget" => is_whole::<PodDisruptionBudget>(body),
        "Service" => is_whole::<Service>(body),
        "HorizontalPodAutoscaler" => is_whole::<HorizontalPodAutoscaler>(body),
        "IngressClass" => is_whole::<IngressClass>(body),
        "Deployment" => {
            // `blockOwnerDeletion` and its like aside, a template is what its type says
            is_whole::<PodTemplateSpec>(&body["spec"]["template"]) && is_whole::<Deployment>(body)
        }
        other => panic!("a kind that this test does not know: {other}"),
    };
    assert!(known, "{} has a field that its kind does not: {body}", object.kind);
}

fn is_part(part: &BTreeMap<String, String>, of: &BTreeMap<String, String>) -> bool {
    part.iter().all(|(key, value)| of.get(key) == Some(value))
}

fn assert_fits_together(objects: &[Desired]) {
    let places: BTreeSet<_> = objects.iter().map(|object| (&object.kind, &object.namespace, &object.name)).collect();
    assert_eq!(places.len(), objects.len(), "two objects in one place");
    let mut names = BTreeSet::new();
    for deployment in of_kind::<Deployment>(objects, "Deployment") {
        names.insert(deployment.metadata.name.clone().unwrap());
        let spec = deployment.spec.unwrap();
        let labels = spec.template.metadata.as_ref().unwrap().labels.clone().unwrap();
        assert!(is_part(&spec.selector.match_labels.unwrap(), &labels));
        let pod = spec.template.spec.unwrap();
        assert_pod(&pod, objects);
        let budgets: Vec<PodDisruptionBudget> = of_kind(objects, "PodDisruptionBudget").collect();
        assert!(budgets.len() <= 1, "two budgets make evictions fail");
        for budget in budgets {
            let budget = budget.spec.unwrap();
            assert!(budget.min_available.is_none());
            assert!(matches!(budget.max_unavailable, Some(IntOrString::Int(pods)) if pods >= 1), "nodes could not be drained");
            assert!(is_part(&budget.selector.unwrap().match_labels.unwrap(), &labels));
        }
        for service in of_kind::<Service>(objects, "Service").map(|service| service.spec.unwrap()) {
            assert!(is_part(&service.selector.unwrap(), &labels));
            let offered_by_pods: BTreeSet<_> =
                pod.containers.iter().flat_map(|container| container.ports.iter().flatten()).filter_map(|port| port.name.clone()).collect();
            for offered in service.ports.unwrap() {
                assert!(matches!(offered.target_port, Some(IntOrString::String(name)) if offered_by_pods.contains(&name)));
            }
        }
    }
    for autoscaler in of_kind::<HorizontalPodAutoscaler>(objects, "HorizontalPodAutoscaler").map(|autoscaler| autoscaler.spec.unwrap()) {
        assert!(names.contains(&autoscaler.scale_target_ref.name));
        assert!((1..=autoscaler.max_replicas).contains(&autoscaler.min_replicas.unwrap()));
    }
}

fn assert_pod(pod: &PodSpec, objects: &[Desired]) {
    let has = |kind: &str, name: &str| objects.iter().any(|object| object.kind == kind && object.name == name);
    assert!(has("ServiceAccount", pod.service_account_name.as_deref().unwrap()));
    assert_eq!(pod.automount_service_account_token, Some(false));
    let volumes = pod.volumes.as_ref().unwrap();
    for volume in volumes {
        assert!(volume.secret.iter().all(|secret| has("Secret", secret.secret_name.as_deref().unwrap())));
        assert!(volume.config_map.iter().all(|map| has("ConfigMap", &map.name)));
    }
    for container in pod.init_containers.iter().flatten().chain(&pod.containers) {
        for mount in container.volume_mounts.iter().flatten() {
            assert!(volumes.iter().any(|volume| volume.name == mount.name), "{} mounts nothing as {}", container.name, mount.name);
        }
    }
    let haproxy = pod.containers.iter().find(|container| container.name == HAPROXY).unwrap();
    let stop = haproxy.lifecycle.as_ref().unwrap().pre_stop.as_ref().unwrap().exec.as_ref().unwrap().command.as_ref().unwrap();
    let phase = |name: &str| -> i64 {
        let at = stop.iter().position(|word| word == name).unwrap();
        stop[at + 1].trim_end_matches('s').parse().unwrap()
    };
    let phases = phase("--deregistration-delay") + phase("--timeout");
    assert!(pod.termination_grace_period_seconds.unwrap() >= phases + 10, "a drain would be cut");
    let rooms = haproxy.resources.as_ref().unwrap();
    assert!(rooms.limits.as_ref().unwrap().contains_key("memory"));
}

#[test]
fn objects_of_any_spec_fit_together_and_follow_from_it_alone() {
    let good = Cell::new(0);
    let run = runner(fixed_seed("FLEET_OBJECTS_SEED", 1), 400).run(&specs(), |spec| {
        let Ok(objects) = built(&spec) else { return Ok(()) };
        good.set(good.get() + 1);
        assert_eq!(objects, built(&spec).unwrap());
        objects.iter().for_each(assert_known);
        assert_fits_together(&objects);
        assert_restricted(&objects, &spec);
        Ok(())
    });
    run.unwrap();
    assert!(good.get() > 100, "too few of the specs are good ones: {}", good.get());
}

#[test]
fn scaling_and_rollout_settings_never_change_a_pod_template() {
    let other = (0..30, select(vec![json!({}), json!({"maxUnavailable": 2})]), select(vec![json!({}), json!({"minReadySeconds": 3})]));
    let compared = Cell::new(0);
    let run = runner(fixed_seed("FLEET_SCALE_SEED", 2), 300).run(&(specs(), other), |(spec, (replicas, disruption, rollout))| {
        let mut scaled = spec.clone();
        if spec.get("autoscaling").is_some() {
            scaled["autoscaling"] = json!({"minReplicas": replicas + 4, "maxReplicas": replicas + 5});
        } else if spec.get("replicas").is_some() {
            scaled["replicas"] = json!(replicas);
        } else {
            for zone in scaled["zones"].as_array_mut().unwrap() {
                zone["replicas"] = json!(replicas);
            }
        }
        scaled["disruption"] = disruption;
        json_merge(&mut scaled["rollout"], &rollout);
        if scaled["rollout"].is_null() {
            scaled.as_object_mut().unwrap().remove("rollout");
        }
        if let (Ok(before), Ok(after)) = (built(&spec), built(&scaled)) {
            compared.set(compared.get() + 1);
            assert_eq!(templates(&before), templates(&after));
        }
        Ok(())
    });
    run.unwrap();
    assert!(compared.get() > 75, "{}", compared.get());
}

#[test]
fn what_haproxy_does_with_requests_never_changes_a_pod_template() {
    let settings = json!({
        "http": {"hsts": {}, "errorPagesRef": {"name": "pages"}, "compression": {"mimeTypes": ["text/html"]}},
        "tls": {"profile": "Modern", "clientTLS": {"policy": "Required", "caRef": {"name": "clients"}}},
        "logging": {"access": {}},
        "metrics": {"enabled": true, "podMonitor": {"labels": {"release": "prometheus"}}},
        "routeAdmission": {"wildcardPolicy": "Disallowed"},
        "tuning": {"headerBufferBytes": 32768, "hardStopAfter": "2h", "healthCheckInterval": "9s", "timeouts": {"client": "9s"}},
    });
    let run = runner(fixed_seed("FLEET_SETTINGS_SEED", 4), 100).run(&specs(), |spec| {
        let mut other = spec.clone();
        json_merge(&mut other, &settings);
        if let (Ok(before), Ok(after)) = (built(&spec), built(&other)) {
            assert_eq!(templates(&before), templates(&after));
        }
        Ok(())
    });
    run.unwrap();
}

#[test]
fn prometheus_is_told_of_the_pods_where_that_is_asked_for() {
    let monitors = |metrics: Value| -> Vec<Value> {
        let objects = built(&json!({"ingressClassName": "public", "metrics": metrics})).unwrap();
        objects.into_iter().filter(|object| object.kind == "PodMonitor").map(|object| object.body).collect()
    };
    assert_eq!(monitors(json!({"enabled": true})), Vec::<Value>::new());
    let found = monitors(json!({"enabled": true, "podMonitor": {"interval": "15s", "labels": {"release": "prometheus"}}}));
    let [monitor] = found.as_slice() else { panic!("{found:?}") };
    assert_eq!(monitor["metadata"]["labels"]["release"], "prometheus");
    assert_eq!(monitor["metadata"]["labels"]["app.kubernetes.io/managed-by"], "haproxy-fleet", "{monitor}");
    assert_eq!(monitor["spec"]["podMetricsEndpoints"], json!([{"port": "health", "path": "/metrics", "interval": "15s"}]));
    let objects = built(&json!({"ingressClassName": "public"})).unwrap();
    let pod = &templates(&objects)[0];
    let selected = monitor["spec"]["selector"]["matchLabels"].as_object().unwrap();
    assert!(selected.iter().all(|(label, value)| pod["metadata"]["labels"][label] == *value), "{pod}");
    let ports = pod["spec"]["containers"][0]["ports"].as_array().unwrap();
    assert!(ports.iter().any(|port| port["name"] == "health"), "{ports:?}");
}

/// Our containers without what a patch may change.
fn kept(template: &Value) -> Vec<Value> {
    let all = ["initContainers", "containers"].into_iter().flat_map(|list| template["spec"][list].as_array().cloned().unwrap_or_default());
    let ours = all.filter(|container| [INSTALL, AGENT, HAPROXY].iter().any(|name| container["name"] == *name));
    ours.map(|mut container| {
        for field in ["resources", "env", "volumeMounts", "imagePullPolicy", "terminationMessagePolicy"] {
            container.as_object_mut().unwrap().remove(field);
        }
        container
    })
    .collect()
}

#[test]
fn whatever_is_patched_pods_are_restricted_and_serve_or_the_patch_is_refused() {
    let (accepted, refused) = (Cell::new(0), Cell::new(0));
    let run = runner(fixed_seed("FLEET_PATCH_SEED", 3), 1_000).run(&(specs(), steps()), |(spec, steps)| {
        let Ok(plain) = built(&spec) else { return Ok(()) };
        let mut patched = spec.clone();
        patched["podTemplatePatch"] = json!(steps);
        match built(&patched) {
            Err(found) => {
                refused.set(refused.get() + 1);
                assert!(found.iter().all(|finding| finding.field.starts_with("spec.podTemplatePatch")), "{found:?}");
            }
            Ok(objects) => {
                accepted.set(accepted.get() + 1);
                objects.iter().for_each(assert_accepted_by_type);
                assert_restricted(&objects, &patched);
                for (before, after) in templates(&plain).iter().zip(templates(&objects)) {
                    assert_eq!(kept(before), kept(&after), "{steps:?}");
                    assert_private(&after);
                }
                let grace =
                    |objects: &[Desired]| templates(objects).iter().map(|pod| pod["spec"]["terminationGracePeriodSeconds"].as_i64()).min();
                assert!(grace(&objects) >= grace(&plain));
            }
        }
        Ok(())
    });
    run.unwrap();
    assert!(accepted.get() > 20 && refused.get() > 200, "{} accepted, {} refused", accepted.get(), refused.get());
}

fn assert_accepted_by_type(object: &Desired) {
    if object.kind == "Deployment" {
        serde_json::from_value::<Deployment>(object.body.clone()).unwrap();
    }
}

/// Keys, tokens and sockets are where they were and nowhere else.
fn assert_private(template: &Value) {
    let mounts = |list: &str| template["spec"][list].as_array().cloned().unwrap_or_default();
    for container in mounts("initContainers").into_iter().chain(mounts("containers")) {
        let name = container["name"].as_str().unwrap();
        let mounted: BTreeSet<&str> =
            container["volumeMounts"].as_array().into_iter().flatten().filter_map(|mount| mount["name"].as_str()).collect();
        let allowed: &[&str] = match name {
            INSTALL => &["program"],
            AGENT => &["program", "run", "token", "ca", "keys"],
            HAPROXY => &["program", "run"],
            _ => &[],
        };
        let private = ["program", "run", "token", "ca", "keys"].into_iter().filter(|volume| mounted.contains(volume));
        assert!(private.clone().all(|volume| allowed.contains(&volume)), "{name} mounts {mounted:?}");
    }
}

#[test]
fn the_check_of_the_standard_finds_what_is_not_restricted() {
    let template = |change: Value| -> PodTemplateSpec {
        let objects = built(&json!({"ingressClassName": "public"})).unwrap();
        let mut template = templates(&objects)[0].clone();
        json_merge(&mut template, &change);
        serde_json::from_value(template).unwrap()
    };
    assert_eq!(restricted(&template(json!({}))), Vec::<String>::new());
    for change in [
        json!({"spec": {"hostPID": true}}),
        json!({"spec": {"securityContext": {"runAsNonRoot": null}}}),
        json!({"spec": {"securityContext": {"seccompProfile": null}}}),
        json!({"spec": {"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}}),
        json!({"spec": {"containers": [{"name": "a"}]}}),
    ] {
        assert_ne!(restricted(&template(change.clone())), Vec::<String>::new(), "{change}");
    }
}
