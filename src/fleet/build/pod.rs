//! The pod template: HAProxy, the agent beside it, and what both need. Restricted Pod Security throughout; the only
//! exception is the host's network where a fleet asks for it.

use super::config_map::CA;
use super::names::with;
use super::{Fleet, InUse, LABEL_ZONE};
use crate::api::{Amounts, IngressDeploymentSpec, PublishingType, Quantity};
use serde_json::{Map, Value, json};

/// The init container that puts our program into a volume.
pub const INSTALL: &str = "install";
/// The container of the agent.
pub const AGENT: &str = "agent";
/// The container of HAProxy.
pub const HAPROXY: &str = "haproxy";

pub(super) const PROGRAM: &str = "program";
pub(super) const RUN: &str = "run";
pub(super) const TOKEN: &str = "token";
pub(super) const CA_VOLUME: &str = "ca";
pub(super) const KEYS: &str = "keys";
/// The volumes of ours.
pub(super) const VOLUMES: [&str; 5] = [PROGRAM, RUN, TOKEN, CA_VOLUME, KEYS];

/// What the operator asks of the tokens of agents.
pub(super) const AUDIENCE: &str = "haproxy-fleet.dev/operator";
/// Seconds that a token is valid; the kubelet renews it before.
const TOKEN_SECONDS: i32 = 3600;

const PROGRAM_PATH: &str = "/haproxy-fleet";
const BINARY: &str = "/haproxy-fleet/haproxy-fleet";
const RUN_PATH: &str = "/run/haproxy-fleet";
const TOKEN_PATH: &str = "/var/run/haproxy-fleet/token";
const CA_PATH: &str = "/var/run/haproxy-fleet/ca";
const KEYS_PATH: &str = "/var/run/haproxy-fleet/keys";

/// Nobody in particular, in the images of both HAProxy and operator: agent and HAProxy share sockets, so it is one for
/// both.
const USER: i32 = 65_532;
/// Ports that are not privileged.
const HTTP_PORT: i32 = 8080;
const HTTPS_PORT: i32 = 8443;
const HEALTH_PORT: i32 = 8404;
/// Seconds that load balancers have to deregister a pod, and those that only the cluster has to notice in.
const DEREGISTRATION: u32 = 45;
const DEREGISTRATION_PRIVATE: u32 = 10;
/// Seconds beyond the phases of a drain.
const MARGIN: u32 = 15;
const MIB: u64 = 1 << 20;
const SMALLEST_RUN_VOLUME: u64 = 64 * MIB;

/// The images of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Images {
    /// Brings the agent.
    operator: String,
    haproxy: String,
}

impl Images {
    /// Those of the spec, else those in use, else those of the operator.
    pub(super) fn of(fleet: Fleet<'_>, in_use: Option<&InUse>) -> Self {
        let spec = &fleet.deployment.spec;
        let ours = fleet.context.haproxy_images.get(&spec.haproxy_version).cloned().unwrap_or_default();
        let used = |image: fn(&InUse) -> Option<String>| in_use.and_then(image);
        Self {
            operator: used(|in_use| in_use.operator_image.clone()).unwrap_or_else(|| fleet.context.operator_image.clone()),
            haproxy: spec.image.clone().or_else(|| used(|in_use| in_use.haproxy_image.clone())).unwrap_or(ours),
        }
    }
}

/// Bytes of the volume in memory for a bundle of `bundle` bytes: HAProxy's files, the last good ones and those of a
/// reload that is tried, each with some room. In steps, and what is in use stays while it is enough, so that a growing
/// configuration replaces pods a few times in its life.
pub(super) fn run_volume_bytes(bundle: u64, in_use: Option<u64>) -> u64 {
    let needed = bundle.saturating_mul(3);
    match in_use {
        Some(bytes) if bytes >= needed => bytes,
        _ => needed.saturating_add(bundle).max(SMALLEST_RUN_VOLUME).checked_next_power_of_two().unwrap_or(1 << 40),
    }
}

/// The bytes that a volume's `sizeLimit` stands for.
pub(super) fn volume_bytes(size: &str) -> Option<u64> {
    Quantity::from(size).units().and_then(|bytes| u64::try_from(bytes).ok())
}

/// The ports that pods listen on, by name.
pub(super) fn ports(fleet: Fleet<'_>) -> [(&'static str, i32); 3] {
    let publishing = &fleet.deployment.spec.publishing;
    if publishing.kind != PublishingType::HostNetwork {
        return [("http", HTTP_PORT), ("https", HTTPS_PORT), ("health", HEALTH_PORT)];
    }
    let host = publishing.host_network.clone().unwrap_or_default();
    [("http", host.http_port), ("https", host.https_port), ("health", host.health_port)]
}

/// Seconds of the phases of a drain: serving on, and finishing.
fn phases(spec: &IngressDeploymentSpec) -> (u32, u32) {
    let unsaid = if spec.publishing.kind == PublishingType::Private { DEREGISTRATION_PRIVATE } else { DEREGISTRATION };
    let said = spec.drain.deregistration_delay.as_ref().and_then(crate::api::Duration::seconds);
    (said.unwrap_or(unsaid), spec.drain.timeout.seconds().unwrap_or_default())
}

/// The pod template of the pods in `zone`.
pub(super) fn template(fleet: Fleet<'_>, zone: Option<&str>, images: &Images, run_volume: u64) -> Value {
    let spec = &fleet.deployment.spec;
    let names = fleet.names();
    let (deregistration, timeout) = phases(spec);
    let labels = with(names.labels(), [(LABEL_ZONE.to_owned(), zone.unwrap_or_default().to_owned())]);
    let mut metadata = json!({"labels": with(labels, spec.pod_labels.clone())});
    if !spec.pod_annotations.is_empty() {
        metadata["annotations"] = json!(spec.pod_annotations);
    }
    let mut pod = json!({
        "serviceAccountName": names.fleet,
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "terminationGracePeriodSeconds": deregistration + timeout + MARGIN,
        "securityContext": {
            "runAsNonRoot": true, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "initContainers": [install(&images.operator), agent(fleet, &images.haproxy, run_volume)],
        "containers": [haproxy(fleet, &images.haproxy, run_volume, (deregistration, timeout))],
        "volumes": volumes(fleet, run_volume),
        "topologySpreadConstraints": spread(fleet, zone),
    });
    if spec.publishing.kind == PublishingType::HostNetwork {
        pod["hostNetwork"] = json!(true);
        // names of Services are looked up in the cluster all the same
        pod["dnsPolicy"] = json!("ClusterFirstWithHostNet");
    }
    placement(&mut pod, spec, zone);
    json!({"metadata": metadata, "spec": pod})
}

fn placement(pod: &mut Value, spec: &IngressDeploymentSpec, zone: Option<&str>) {
    if !spec.node_selector.is_empty() {
        pod["nodeSelector"] = json!(spec.node_selector);
    }
    if !spec.tolerations.is_empty() {
        pod["tolerations"] = json!(spec.tolerations);
    }
    if let Some(class) = &spec.priority_class_name {
        pod["priorityClassName"] = json!(class);
    }
    let mut affinity = spec.affinity.as_ref().map_or(Value::Null, |affinity| json!(affinity));
    if let Some(zone) = zone {
        in_zone(&mut affinity, zone);
    }
    if !affinity.is_null() {
        pod["affinity"] = affinity;
    }
}

/// Restricts `affinity` to nodes of `zone`. Any one of the terms is enough for the scheduler, so it is in each.
fn in_zone(affinity: &mut Value, zone: &str) {
    let required = &mut affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    let demand = zone_demand(zone);
    match required.as_array_mut().filter(|terms| !terms.is_empty()) {
        None => *required = json!([{"matchExpressions": [demand]}]),
        Some(terms) => {
            for term in terms {
                match term["matchExpressions"].as_array_mut() {
                    Some(demands) => demands.push(demand.clone()),
                    None => term["matchExpressions"] = json!([demand]),
                }
            }
        }
    }
}

/// Makes of a template for the zone `from` one for the zone `to`.
pub(super) fn move_to_zone(template: &mut Value, from: &str, to: &str) {
    template["metadata"]["labels"][LABEL_ZONE] = json!(to);
    let pod = &mut template["spec"];
    // a patch may have written lists that lack what ours have
    let required = "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms";
    let terms = pod.pointer_mut(required).and_then(Value::as_array_mut).into_iter().flatten();
    let demands = terms.filter_map(|term| term.get_mut("matchExpressions").and_then(Value::as_array_mut)).flatten();
    for demand in demands.filter(|demand| **demand == zone_demand(from)) {
        *demand = zone_demand(to);
    }
    for constraint in pod.get_mut("topologySpreadConstraints").and_then(Value::as_array_mut).into_iter().flatten() {
        let labels = constraint.pointer_mut("/labelSelector/matchLabels").and_then(Value::as_object_mut);
        if let Some(zone) = labels.and_then(|labels| labels.get_mut(LABEL_ZONE)).filter(|zone| **zone == from) {
            *zone = json!(to);
        }
    }
}

fn zone_demand(zone: &str) -> Value {
    json!({"key": "topology.kubernetes.io/zone", "operator": "In", "values": [zone]})
}

/// Over zones and, softly, over nodes; within a listed zone over nodes. Each revision for itself: during a rollout the
/// old pods would push the new ones aside.
fn spread(fleet: Fleet<'_>, zone: Option<&str>) -> Value {
    let wish = &fleet.deployment.spec.topology_spread;
    let over = |key: &str, unsatisfiable: &str| {
        json!({
            "maxSkew": wish.max_skew, "topologyKey": key, "whenUnsatisfiable": unsatisfiable,
            "labelSelector": {"matchLabels": fleet.names().deployment_selector(zone)},
            "matchLabelKeys": ["pod-template-hash"],
        })
    };
    let (zones, nodes) = ("topology.kubernetes.io/zone", "kubernetes.io/hostname");
    match zone {
        None => json!([over(zones, wish.when_unsatisfiable.as_str()), over(nodes, "ScheduleAnyway")]),
        Some(_) => json!([over(nodes, wish.when_unsatisfiable.as_str())]),
    }
}

fn volumes(fleet: Fleet<'_>, run_volume: u64) -> Value {
    let names = fleet.names();
    let token = json!({"audience": AUDIENCE, "expirationSeconds": TOKEN_SECONDS, "path": "token"});
    json!([
        {"name": PROGRAM, "emptyDir": {}},
        {"name": RUN, "emptyDir": {"medium": "Memory", "sizeLimit": mebibytes(run_volume)}},
        {"name": TOKEN, "projected": {"sources": [{"serviceAccountToken": token}]}},
        {"name": CA_VOLUME, "configMap": {"name": names.operator_ca(), "items": [{"key": CA, "path": CA}]}},
        {"name": KEYS, "secret": {"secretName": names.keys(), "defaultMode": 0o440}},
    ])
}

fn mebibytes(bytes: u64) -> String {
    format!("{}Mi", bytes.div_ceil(MIB))
}

fn container(name: &str, image: &str, rest: &Value) -> Value {
    let mut container = json!({
        "name": name,
        "image": image,
        "securityContext": {
            "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]},
        },
    });
    json_patch::merge(&mut container, rest);
    container
}

fn install(image: &str) -> Value {
    let rest = json!({
        "command": ["/haproxy-fleet", "agent", "install", "/install"],
        "volumeMounts": [{"name": PROGRAM, "mountPath": "/install"}],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
    });
    container(INSTALL, image, &rest)
}

fn agent(fleet: Fleet<'_>, image: &str, run_volume: u64) -> Value {
    let spec = &fleet.deployment.spec;
    let read_only = |name: &str, path: &str| json!({"name": name, "mountPath": path, "readOnly": true});
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    // It loads what HAProxy loads, to check it.
    let memory = memory_limit(spec, run_volume);
    let rest = json!({
        "restartPolicy": "Always",
        "command": [BINARY, "agent"],
        "args": agent_arguments(fleet),
        "env": [
            field("POD_NAME", "metadata.name"),
            field("POD_NAMESPACE", "metadata.namespace"),
            field("POD_UID", "metadata.uid"),
            field("POD_IP", "status.podIP"),
            field("NODE_NAME", "spec.nodeName"),
        ],
        "startupProbe": {
            "exec": {"command": [BINARY, "agent", "started", "--directory", RUN_PATH]},
            "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 60,
        },
        "volumeMounts": [
            read_only(PROGRAM, PROGRAM_PATH),
            {"name": RUN, "mountPath": RUN_PATH},
            read_only(TOKEN, TOKEN_PATH),
            read_only(CA_VOLUME, CA_PATH),
            read_only(KEYS, KEYS_PATH),
        ],
        "resources": {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": memory}},
    });
    container(AGENT, image, &rest)
}

fn agent_arguments(fleet: Fleet<'_>) -> Vec<String> {
    let (context, names, spec) = (fleet.context, fleet.names(), &fleet.deployment.spec);
    let mut arguments = vec![
        ("--fleet", format!("{}/{}", names.namespace, names.fleet)),
        ("--operator", format!("{}.{}.svc:{}", context.agents_service, context.operator_namespace, context.agents_port)),
        ("--directory", RUN_PATH.to_owned()),
        ("--token", format!("{TOKEN_PATH}/token")),
        ("--ca", format!("{CA_PATH}/{CA}")),
        ("--keys", KEYS_PATH.to_owned()),
    ];
    let [(_, http), (_, https), (_, health)] = ports(fleet);
    arguments.extend([("--http", http.to_string()), ("--https", https.to_string()), ("--health", health.to_string())]);
    let tuning = spec.tuning.as_ref();
    let threads = tuning.and_then(|tuning| tuning.threads).map(|threads| ("--threads", threads.to_string()));
    let connections = tuning.and_then(|tuning| tuning.max_connections).map(|most| ("--max-connections", most.to_string()));
    arguments.extend(threads.into_iter().chain(connections));
    arguments.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
}

fn haproxy(fleet: Fleet<'_>, image: &str, run_volume: u64, (deregistration, timeout): (u32, u32)) -> Value {
    let on_hosts = fleet.publishing() == PublishingType::HostNetwork;
    let ports = ports(fleet).map(|(name, port)| {
        let mut entry = json!({"name": name, "containerPort": port, "protocol": "TCP"});
        if on_hosts {
            entry["hostPort"] = json!(port);
        }
        entry
    });
    let seconds = |number: u32| format!("{number}s");
    let stop = json!([
        BINARY,
        "agent",
        "stop",
        "--directory",
        RUN_PATH,
        "--deregistration-delay",
        seconds(deregistration),
        "--timeout",
        seconds(timeout),
    ]);
    let rest = json!({
        "command": ["haproxy"],
        "args": ["-W", "-db", "-S", format!("{RUN_PATH}/master.sock,level,admin"), "-f", format!("{RUN_PATH}/config/live")],
        "ports": ports,
        "readinessProbe": {
            "httpGet": {"path": "/healthz", "port": "health"},
            "periodSeconds": 1, "timeoutSeconds": 2, "failureThreshold": 2,
        },
        "lifecycle": {"preStop": {"exec": {"command": stop}}},
        "volumeMounts": [{"name": PROGRAM, "mountPath": PROGRAM_PATH, "readOnly": true}, {"name": RUN, "mountPath": RUN_PATH}],
        "resources": resources(&fleet.deployment.spec, run_volume),
    });
    container(HAPROXY, image, &rest)
}

/// What is said, on top of what is usual.
fn resources(spec: &IngressDeploymentSpec, run_volume: u64) -> Value {
    let said = spec.resources.clone().unwrap_or_default();
    let (requests, limits) = (said.requests.unwrap_or_default(), said.limits.unwrap_or_default());
    let limit = memory_limit(spec, run_volume);
    let mut usual = Amounts { cpu: Some(Quantity::from("250m")), memory: Some(Quantity::from("512Mi")) };
    // A request beyond its limit would be refused.
    for (usual, limit) in [(&mut usual.cpu, &limits.cpu), (&mut usual.memory, &limits.memory)] {
        if let Some(limit) = limit.clone().filter(|limit| usual.as_ref().is_some_and(|usual| limit.thousandths() < usual.thousandths())) {
            *usual = Some(limit);
        }
    }
    let amounts = |cpu: Option<Quantity>, memory: Option<Quantity>| -> Map<String, Value> {
        [("cpu", cpu), ("memory", memory)].into_iter().filter_map(|(name, amount)| Some((name.to_owned(), json!(amount?)))).collect()
    };
    json!({
        "requests": amounts(requests.cpu.or(usual.cpu), requests.memory.or(usual.memory)),
        "limits": amounts(limits.cpu, Some(limit)),
    })
}

/// The most memory that HAProxy takes: what is said, else what is usual, its files included, as they are in memory, and
/// never less than what is requested.
fn memory_limit(spec: &IngressDeploymentSpec, run_volume: u64) -> Quantity {
    let said = spec.resources.as_ref();
    let amount = |of: Option<&Amounts>| of.and_then(|amounts| amounts.memory.clone());
    if let Some(limit) = amount(said.and_then(|said| said.limits.as_ref())) {
        return limit;
    }
    let requested = amount(said.and_then(|said| said.requests.as_ref())).and_then(|request| request.units());
    let requested = requested.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or_default();
    Quantity(mebibytes(requested.max(1024 * MIB) + run_volume))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_volume_grows_in_steps_and_stays_while_it_is_enough() {
        let size = |bundle: u64, in_use: Option<u64>| run_volume_bytes(bundle * MIB, in_use.map(|bytes| bytes * MIB)) / MIB;
        assert_eq!((size(0, None), size(1, None), size(16, None), size(17, None)), (64, 64, 64, 128));
        assert_eq!((size(20, Some(64)), size(22, Some(64)), size(1, Some(256))), (64, 128, 256));
        assert_eq!(volume_bytes("64Mi"), Some(64 * MIB));
        assert!(run_volume_bytes(u64::MAX, None) > 0);
    }
}
