//! What the API server would refuse of an `IngressDeployment`: its schema, and the rules in CEL, for objects that do
//! not come from one. A test holds the two together. Rules about what a field was before are the API server's alone.

use super::crd::crds;
use super::ingress_deployment::http::{RESERVED, RESERVED_HEADERS};
use super::ingress_deployment::patterns;
use super::schema::{Fault, faults};
use super::{
    AccessLog, AdditionalService, Autoscaling, Duration, FleetMetrics, HeaderAction, HeaderActionType, Http, IngressDeploymentSpec,
    IntOrPercent, LoadBalancer, LogDestination, Publishing, PublishingType, Selector, ServiceType, Texts,
};
use crate::report::{Diagnostic, ObjectRef, codes};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use std::net::IpAddr;
use std::sync::LazyLock;

const HELP: &str = "correct it; until then the fleet is as it was last good, or not there at all";

/// The label of nodes that names their zone.
const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// Characters that a fleet's name may have: that of its Services has some more.
const NAME_LENGTH: usize = 40;

/// The schema of the spec.
static SCHEMA: LazyLock<JSONSchemaProps> = LazyLock::new(|| {
    let definition = crds().into_iter().find(|definition| definition.spec.names.kind == "IngressDeployment");
    let version = definition.and_then(|definition| definition.spec.versions.into_iter().next());
    let root = version.and_then(|version| version.schema).and_then(|schema| schema.open_api_v3_schema);
    root.and_then(|root| root.properties).and_then(|mut properties| properties.remove("spec")).unwrap_or_default()
});

impl IngressDeploymentSpec {
    /// What the API server would refuse, field by field. `object` is what it is the spec of.
    pub fn violations(&self, object: &ObjectRef) -> Vec<Diagnostic> {
        let value = serde_json::to_value(self).unwrap_or_default();
        let mut rules = Rules { object, found: Vec::new() };
        for Fault { field, message } in faults(&SCHEMA, &value, "spec", patterns::matches) {
            rules.broken(field, message);
        }
        rules.name();
        rules.selector("spec.namespaceSelector", self.namespace_selector.as_ref());
        rules.selector("spec.routeSelector", self.route_selector.as_ref());
        rules.sizes(self);
        rules.scheduling(self);
        if let Some(backend) = &self.default_backend {
            let port = &backend.service.port;
            rules.hold(port.number.is_some() != port.name.is_some(), "spec.defaultBackend.service.port", "give either number or name");
        }
        rules.hold(self.ports.http != self.ports.https, "spec.ports.https", "http and https need different ports");
        rules.metadata(self);
        rules.rollout(self);
        rules.publishing(&self.publishing);
        rules.http(&self.http);
        if let Some(access) = self.logging.as_ref().and_then(|logging| logging.access.as_ref()) {
            rules.access_log(access);
        }
        if let Some(metrics) = &self.metrics {
            rules.metrics(metrics);
        }
        rules.found
    }
}

struct Rules<'o> {
    object: &'o ObjectRef,
    found: Vec<Diagnostic>,
}

impl Rules<'_> {
    fn broken(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.found.push(Diagnostic::error(self.object, field, codes::INVALID_VALUE, message, HELP));
    }

    fn hold(&mut self, holds: bool, field: impl Into<String>, message: &str) {
        if !holds {
            self.broken(field, message);
        }
    }

    fn name(&mut self) {
        let name: &str = &self.object.name;
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let valid = name.starts_with(|first: char| first.is_ascii_lowercase()) && !name.ends_with('-') && name.bytes().all(inner);
        self.hold(
            valid && name.len() <= NAME_LENGTH,
            "metadata.name",
            "the name of a fleet is the name of its Services, too: at most 40 lower-case letters, digits and dashes, the first one a letter",
        );
    }

    fn selector(&mut self, field: &str, selector: Option<&Selector>) {
        for (index, requirement) in selector.into_iter().flat_map(|selector| selector.match_expressions.iter().enumerate()) {
            let field = format!("{field}.matchExpressions[{index}]");
            self.hold(requirement.is_whole(), field, "In and NotIn take values, Exists and DoesNotExist take none");
        }
    }

    fn sizes(&mut self, spec: &IngressDeploymentSpec) {
        let (with, without): (Vec<_>, Vec<_>) = (0..).zip(&spec.zones).partition::<Vec<(usize, _)>, _>(|(_, zone)| zone.replicas.is_some());
        if spec.replicas.is_some() && !with.is_empty() {
            self.broken("spec.replicas", "replicas and zones[].replicas exclude each other");
        } else if let (false, Some((index, _))) = (with.is_empty(), without.first()) {
            self.broken(format!("spec.zones[{index}]"), "either every zone has replicas or none has");
        }
        let Some(autoscaling) = &spec.autoscaling else { return };
        self.hold(spec.replicas.is_none(), "spec.replicas", "replicas and autoscaling exclude each other");
        self.hold(with.is_empty(), "spec.autoscaling", "autoscaling and zones[].replicas exclude each other");
        self.autoscaling(autoscaling, spec.zones.len());
    }

    fn autoscaling(&mut self, autoscaling: &Autoscaling, zones: usize) {
        let Autoscaling { min_replicas, max_replicas, .. } = *autoscaling;
        self.hold(min_replicas <= max_replicas, "spec.autoscaling.minReplicas", "minReplicas is at most maxReplicas");
        self.hold(
            usize::try_from(min_replicas).is_ok_and(|least| least >= zones) || min_replicas < 1,
            "spec.autoscaling.minReplicas",
            "autoscaling.minReplicas is at least the number of zones",
        );
        self.hold(
            autoscaling.metrics.is_none() || autoscaling.target_cpu_utilization.is_none(),
            "spec.autoscaling.metrics",
            "targetCpuUtilization and metrics exclude each other",
        );
    }

    fn scheduling(&mut self, spec: &IngressDeploymentSpec) {
        self.hold(
            spec.zones.is_empty() || !spec.node_selector.contains_key(ZONE_LABEL),
            "spec.nodeSelector",
            "zones and nodeSelector with topology.kubernetes.io/zone exclude each other",
        );
    }

    fn metadata(&mut self, spec: &IngressDeploymentSpec) {
        let reserved =
            |key: &str| key.starts_with("haproxy-fleet.dev/") || key.starts_with("app.kubernetes.io/") || key == "pod-template-hash";
        self.hold(
            !spec.pod_labels.keys().any(|key| reserved(key)),
            "spec.podLabels",
            "keys below haproxy-fleet.dev/ and app.kubernetes.io/ and pod-template-hash are not yours to set",
        );
        self.annotations("spec.podAnnotations", &spec.pod_annotations);
        self.hold(
            !spec.pod_annotations.keys().any(|key| key.starts_with("container.apparmor.security.beta.kubernetes.io/")),
            "spec.podAnnotations",
            "the AppArmor profile of pods stays that of the container runtime",
        );
    }

    fn annotations(&mut self, field: &str, annotations: &Texts) {
        let ours = annotations.keys().any(|key| key.starts_with("haproxy-fleet.dev/"));
        self.hold(!ours, field, "keys below haproxy-fleet.dev/ are ours");
    }

    fn rollout(&mut self, spec: &IngressDeploymentSpec) {
        let rollout = &spec.rollout;
        let (surge, unavailable) = (rollout.max_surge.as_ref(), rollout.max_unavailable.as_ref());
        self.hold(
            rollout.min_ready_seconds < rollout.progress_deadline_seconds,
            "spec.rollout.progressDeadlineSeconds",
            "progressDeadlineSeconds is more than minReadySeconds",
        );
        let none = surge.is_some_and(IntOrPercent::is_zero) && unavailable.is_some_and(IntOrPercent::is_zero);
        self.hold(!none, "spec.rollout.maxUnavailable", "maxSurge and maxUnavailable are not both 0");
        let on_hosts = spec.publishing.kind == PublishingType::HostNetwork;
        self.hold(
            !on_hosts || surge.is_none_or(IntOrPercent::is_zero),
            "spec.rollout.maxSurge",
            "with HostNetwork rollout.maxSurge is 0: two pods cannot have one port of a node",
        );
        let pause = spec.rollout.zone_policy.pause_between_zones.seconds();
        self.hold(pause.is_none_or(|pause| pause <= 24 * 3600), "spec.rollout.zonePolicy.pauseBetweenZones", "at most 24h");
        self.least(spec);
        let delay = spec.drain.deregistration_delay.as_ref().and_then(Duration::seconds);
        self.hold(delay.is_none_or(|delay| delay <= 15 * 60), "spec.drain.deregistrationDelay", "at most 15m");
        self.hold(spec.drain.timeout.seconds().is_none_or(|timeout| timeout <= 24 * 3600), "spec.drain.timeout", "at most 24h");
    }

    /// What has to serve at any time, and what may be taken.
    fn least(&mut self, spec: &IngressDeploymentSpec) {
        let (rollout, total) = (&spec.rollout, spec.total_replicas());
        for (index, name) in rollout.zone_policy.order.iter().enumerate() {
            let is_listed = spec.zones.iter().any(|zone| zone.name == *name);
            let field = format!("spec.rollout.zonePolicy.order[{index}]");
            self.hold(is_listed, field, "rollout.zonePolicy.order names listed zones only");
        }
        let none_added =
            spec.publishing.kind == PublishingType::HostNetwork || rollout.max_surge.as_ref().is_some_and(IntOrPercent::is_zero);
        let zones = i32::try_from(spec.zones.len()).unwrap_or(i32::MAX).max(1);
        for ((index, zone), place) in spec.zones.iter().enumerate().zip(0_i32..) {
            let pods = zone.replicas.unwrap_or(total / zones);
            let all = zone.replicas.unwrap_or(total / zones + i32::from(place < total % zones));
            let field = format!("spec.zones[{index}].minReady");
            self.hold(
                zone.min_ready.is_none_or(|least| least <= pods),
                field.clone(),
                "zones[].minReady is at most the number of pods of the zone",
            );
            self.hold(
                !none_added || zone.min_ready.is_none_or(|least| least == 0 || least != all),
                field,
                "zones[].minReady leaves no pod to replace where none may be added: lower it, or allow maxSurge",
            );
        }
        let Some(least) = rollout.min_ready else { return };
        self.hold(least <= total, "spec.rollout.minReady", "rollout.minReady is at most the number of pods");
        let budget = spec.disruption.max_unavailable.unwrap_or(0);
        self.hold(
            least > total || least.saturating_add(budget) <= total,
            "spec.disruption.maxUnavailable",
            "rollout.minReady and disruption.maxUnavailable are together at most the number of pods: evictions may take what the budget allows",
        );
        self.hold(
            least != total || !none_added,
            "spec.rollout.minReady",
            "rollout.minReady leaves no pod to replace where none may be added: lower it, or allow maxSurge",
        );
    }

    fn publishing(&mut self, publishing: &Publishing) {
        const FIELD: &str = "spec.publishing";
        let kind = publishing.kind;
        let by_nodes = matches!(kind, PublishingType::LoadBalancer | PublishingType::NodePort);
        let balanced = kind == PublishingType::LoadBalancer;
        self.hold(publishing.load_balancer.is_none() || balanced, "spec.publishing.loadBalancer", "loadBalancer needs type LoadBalancer");
        self.hold(
            publishing.node_ports.is_none() || by_nodes,
            "spec.publishing.nodePorts",
            "nodePorts needs type LoadBalancer or NodePort",
        );
        self.hold(
            publishing.host_network.is_none() || kind == PublishingType::HostNetwork,
            "spec.publishing.hostNetwork",
            "hostNetwork needs type HostNetwork",
        );
        self.hold(
            publishing.external_traffic_policy.is_none() || by_nodes,
            "spec.publishing.externalTrafficPolicy",
            "externalTrafficPolicy needs type LoadBalancer or NodePort",
        );
        self.hold(
            publishing.ip_families.len() < 2
                || publishing.ip_family_policy.is_some_and(|policy| policy != super::IpFamilyPolicy::SingleStack),
            "spec.publishing.ipFamilyPolicy",
            "two ipFamilies need ipFamilyPolicy PreferDualStack or RequireDualStack",
        );
        if let Some(ports) = &publishing.node_ports {
            let differ = ports.http.is_none() || ports.http != ports.https;
            self.hold(differ, "spec.publishing.nodePorts.https", "http and https need different ports");
        }
        if let Some(host) = &publishing.host_network {
            let (http, https, health) = (host.http_port, host.https_port, host.health_port);
            let differ = http != https && http != health && https != health;
            self.hold(differ, "spec.publishing.hostNetwork", "httpPort, httpsPort and healthPort are different ports");
        }
        if let Some(balancer) = &publishing.load_balancer {
            self.load_balancer(&format!("{FIELD}.loadBalancer"), balancer);
        }
        for (index, service) in publishing.additional_services.iter().enumerate() {
            self.additional_service(&format!("{FIELD}.additionalServices[{index}]"), service);
        }
    }

    fn http(&mut self, http: &Http) {
        let headers = &http.headers;
        if let Some(id) = &headers.unique_id {
            self.header_name("spec.http.headers.uniqueId.name", &id.name);
        }
        self.header_actions("spec.http.headers.request", &headers.request);
        self.header_actions("spec.http.headers.response", &headers.response);
        if let Some(hsts) = &http.hsts {
            self.hold(
                !hsts.preload || hsts.include_sub_domains && hsts.max_age >= 31_536_000,
                "spec.http.hsts.preload",
                "preload needs includeSubDomains and a maxAge of at least 31536000",
            );
        }
    }

    fn access_log(&mut self, access: &AccessLog) {
        self.hold(
            access.syslog.is_some() == (access.destination == LogDestination::Syslog),
            "spec.logging.access.syslog",
            "destination Syslog needs syslog, and Container takes none",
        );
        if let Some(syslog) = &access.syslog {
            self.hold(syslog.address.parse::<IpAddr>().is_ok(), "spec.logging.access.syslog.address", "this takes an IP address");
        }
    }

    fn metrics(&mut self, metrics: &FleetMetrics) {
        let Some(monitor) = &metrics.pod_monitor else { return };
        self.hold(metrics.enabled, "spec.metrics.podMonitor", "podMonitor needs enabled: true");
        let reserved = |key: &String| key.starts_with("haproxy-fleet.dev/") || key.starts_with("app.kubernetes.io/");
        let free = !monitor.labels.keys().any(reserved);
        self.hold(free, "spec.metrics.podMonitor.labels", "keys below haproxy-fleet.dev/ and app.kubernetes.io/ are ours");
    }

    fn header_actions(&mut self, field: &str, actions: &[HeaderAction]) {
        for (index, action) in actions.iter().enumerate() {
            self.header_name(&format!("{field}[{index}].name"), &action.name);
            self.hold(
                action.value.is_some() == (action.kind == HeaderActionType::Set),
                format!("{field}[{index}].value"),
                "type Set needs value, and Delete takes none",
            );
        }
    }

    fn header_name(&mut self, field: &str, name: &str) {
        self.hold(!RESERVED_HEADERS.contains(&name.to_ascii_lowercase().as_str()), field, RESERVED);
    }

    fn additional_service(&mut self, field: &str, service: &AdditionalService) {
        let has_one = service.kind == ServiceType::LoadBalancer;
        let balancer = format!("{field}.loadBalancer");
        self.hold(service.load_balancer.is_none() || has_one, balancer.as_str(), "loadBalancer needs type LoadBalancer");
        self.hold(
            service.external_traffic_policy.is_none() || service.kind != ServiceType::Private,
            format!("{field}.externalTrafficPolicy"),
            "externalTrafficPolicy needs type LoadBalancer or NodePort",
        );
        if let Some(settings) = &service.load_balancer {
            self.load_balancer(&balancer, settings);
        }
    }

    fn load_balancer(&mut self, field: &str, balancer: &LoadBalancer) {
        let address = balancer.address.as_deref();
        self.hold(address.is_none_or(|address| address.parse::<IpAddr>().is_ok()), format!("{field}.address"), "this takes an IP address");
        self.annotations(&format!("{field}.annotations"), &balancer.annotations);
        let ranges = &balancer.allowed_source_ranges;
        self.hold(
            ranges.iter().all(|range| is_cidr(range)),
            format!("{field}.allowedSourceRanges"),
            "these are CIDR blocks such as 10.0.0.0/8",
        );
    }
}

/// Whether `text` is an address and the length of a prefix.
fn is_cidr(text: &str) -> bool {
    let Some((address, length)) = text.split_once('/') else { return false };
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let plain = length.bytes().all(|byte| byte.is_ascii_digit()) && (length == "0" || !length.starts_with('0'));
    plain && length.parse::<u8>().is_ok_and(|length| length <= bits)
}

#[cfg(test)]
mod tests {
    // one table has a row for each rule
    #![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::too_many_lines)]
    use super::*;
    use crate::report::Kind;
    use serde_json::{Value, json};
    use std::collections::{BTreeMap, BTreeSet};

    fn object() -> ObjectRef {
        ObjectRef::new(Kind::IngressDeployment, "infra", "edge")
    }

    fn violations(spec: &Value) -> Vec<(String, String)> {
        let spec: IngressDeploymentSpec = serde_json::from_value(spec.clone()).unwrap();
        spec.violations(&object()).into_iter().map(|found| (found.field, found.message)).collect()
    }

    fn found(mut spec: Value) -> Vec<(String, String)> {
        let fields = spec.as_object_mut().unwrap();
        fields.entry("ingressClassName").or_insert(json!("edge"));
        violations(&spec)
    }

    /// A spec in which every constrained field stands (those of the first kind of publishing, and of the first size).
    fn full() -> Value {
        let port = |port: Value| json!({"service": {"name": "a", "port": port}});
        let balancer = json!({
            "class": "c", "address": "192.0.2.1", "annotations": {"a": "b"}, "allowedSourceRanges": ["192.0.2.0/24"],
        });
        let selector = json!({"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]});
        json!({
            "ingressClassName": "edge", "namespaceSelector": selector, "routeSelector": selector,
            "replicas": 2, "zones": [{"name": "z", "minReady": 1}], "image": "haproxy:3.4.7",
            "autoscaling": {"minReplicas": 2, "maxReplicas": 4, "targetCpuUtilization": 50},
            "defaultBackend": port(json!({"number": 1})), "backendRef": {"name": "a"}, "configMapRef": {"name": "a"},
            "zoneAwareness": {"minReadyEndpoints": 2, "minSharePercent": 75},
            "tls": {"defaultCertificateRef": {"name": "a"}, "clientTLS": {"policy": "Required", "caRef": {"name": "a"}}}, "ports": {"http": 80, "https": 443},
            "nodeSelector": {"a": "b"}, "tolerations": [{"key": "a"}], "topologySpread": {"maxSkew": 1}, "priorityClassName": "a",
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "1", "memory": "1Gi"}},
            "tuning": {
                "threads": 1, "maxConnections": 1000, "headerBufferBytes": 16384, "healthCheckInterval": "2s", "hardStopAfter": "1h",
                "timeouts": {
                    "client": "1s", "clientFin": "1s", "httpRequest": "1s", "httpKeepAlive": "1s", "connect": "1s", "queue": "1s",
                    "server": "1s", "tunnel": "1s",
                },
            }, "podLabels": {"a": "b"}, "podAnnotations": {"a": "b"},
            "podTemplatePatch": [{"op": "copy", "path": "/a", "from": "/b"}],
            "rollout": {
                "maxSurge": "25%", "maxUnavailable": 1, "minReadySeconds": 1, "progressDeadlineSeconds": 5, "minReady": 1,
                "zonePolicy": {"order": ["z"], "pauseBetweenZones": "1s", "autoAbort": true},
            },
            "http": {
                "headers": {
                    "uniqueId": {"name": "X-Id"}, "request": [{"name": "X-A", "type": "Set", "value": "a"}],
                    "response": [{"name": "X-B", "type": "Set", "value": "b"}],
                },
                "hsts": {"maxAge": 31_536_000, "includeSubDomains": true, "preload": true}, "errorPagesRef": {"name": "a"},
                "compression": {"mimeTypes": ["text/html"]},
            },
            "logging": {"access": {
                "destination": "Syslog", "syslog": {"address": "192.0.2.1", "port": 514, "facility": "local0"}, "format": "%ci",
                "maxLength": 1024, "captures": {
                    "requestHeaders": [{"name": "a", "maxLength": 1}], "responseHeaders": [{"name": "a", "maxLength": 1}],
                    "cookies": [{"name": "a", "maxLength": 1}],
                },
            }},
            "metrics": {"enabled": true, "podMonitor": {"interval": "30s", "labels": {"a": "b"}}},
            "disruption": {"maxUnavailable": 1}, "drain": {"deregistrationDelay": "45s", "timeout": "60s"},
            "publishing": {
                "type": "LoadBalancer", "loadBalancer": balancer, "nodePorts": {"http": 30080, "https": 30443},
                "hostNetwork": {"httpPort": 1, "httpsPort": 2, "healthPort": 3}, "ipFamilies": ["IPv4"],
                "additionalServices": [{"name": "a", "type": "LoadBalancer", "loadBalancer": balancer}],
            },
        })
    }

    /// The parts of [`full`] that exclude others, as alternatives.
    fn variants() -> Vec<Value> {
        let mut sized = full();
        sized.as_object_mut().unwrap().remove("autoscaling");
        sized["publishing"].as_object_mut().unwrap().remove("hostNetwork");
        let mut scaled = sized.clone();
        scaled.as_object_mut().unwrap().remove("replicas");
        scaled["autoscaling"] = full()["autoscaling"].clone();
        let mut by_metrics = scaled.clone();
        by_metrics["autoscaling"] = json!({"maxReplicas": 4, "metrics": [{"type": "Resource"}]});
        by_metrics["defaultBackend"]["service"]["port"] = json!({"name": "http"});
        let mut on_hosts = sized.clone();
        on_hosts["publishing"] = json!({"type": "HostNetwork", "hostNetwork": full()["publishing"]["hostNetwork"]});
        on_hosts["rollout"] = json!({"maxUnavailable": 1});
        let mut by_zone = sized.clone();
        by_zone.as_object_mut().unwrap().remove("replicas");
        by_zone["zones"] = json!([{"name": "z", "replicas": 2}]);
        vec![sized, scaled, by_metrics, on_hosts, by_zone]
    }

    /// What a schema constrains, by `PATH CONSTRAINT`, with the limit.
    type Constraints = BTreeMap<String, Value>;

    fn constraints(schema: &Value, path: &str, out: &mut Constraints) {
        const NAMES: [&str; 10] = [
            "minimum",
            "maximum",
            "minLength",
            "maxLength",
            "maxItems",
            "minItems",
            "maxProperties",
            "pattern",
            "x-kubernetes-list-map-keys",
            "x-kubernetes-list-type",
        ];
        for name in NAMES {
            if let Some(limit) = schema.get(name).filter(|limit| **limit != json!("map") && **limit != json!("atomic")) {
                out.insert(format!("{path} {name}"), limit.clone());
            }
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            constraints(property, &format!("{path}.{name}"), out);
        }
        for (items, suffix) in [("items", "[0]"), ("additionalProperties", ".a")] {
            if let Some(items) = schema.get(items).filter(|items| items.is_object()) {
                constraints(items, &format!("{path}{suffix}"), out);
            }
        }
    }

    /// Every rule in CEL as `PATH MESSAGE`, but for those about what was before.
    fn rules(schema: &Value, path: &str, out: &mut BTreeSet<String>) {
        for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
            if !rule["rule"].as_str().unwrap().contains("oldSelf") {
                out.insert(format!("{path} {}", rule["message"].as_str().unwrap()));
            }
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            rules(property, &format!("{path}.{name}"), out);
        }
        if let Some(items) = schema.get("items") {
            rules(items, &format!("{path}[]"), out);
        }
    }

    fn schema() -> Value {
        let crd = crds().into_iter().find(|crd| crd.spec.names.kind == "IngressDeployment").unwrap();
        serde_json::to_value(crd.spec.versions[0].schema.as_ref().unwrap()).unwrap()["openAPIV3Schema"].clone()
    }

    /// The place in `spec` that a path such as `spec.zones[0].name` leads to.
    fn place<'v>(spec: &'v mut Value, path: &str) -> Option<&'v mut Value> {
        let pointer = path.trim_start_matches("spec").replace("[0]", ".0").replace('.', "/");
        spec.pointer_mut(&pointer)
    }

    /// Breaks one constraint; says which field is told.
    fn breach(value: &mut Value, path: &str, constraint: &str, limit: &Value) -> String {
        let number = limit.as_f64().unwrap_or_default().round() as i64;
        let count = usize::try_from(number).unwrap_or_default();
        let texts = |count: usize| (0..count).map(|index| format!("text-{index}"));
        match constraint {
            "minimum" => *value = json!(number - 1),
            "maximum" => *value = json!(number + 1),
            "minLength" => *value = json!(""),
            "maxLength" => *value = json!("1".repeat(count + 1)),
            "pattern" => *value = json!("!\u{1}"),
            "minItems" => *value = json!([]),
            "maxProperties" => *value = texts(count + 1).map(|key| (key, json!("b"))).collect::<serde_json::Map<_, _>>().into(),
            "maxItems" => {
                let item = value[0].clone();
                *value = (0..=count).map(|_| item.clone()).collect();
            }
            "x-kubernetes-list-map-keys" | "x-kubernetes-list-type" => {
                let item = value[0].clone();
                *value = json!([item, item]);
                let key = limit.get(0).map_or(String::new(), |key| format!(".{}", key.as_str().unwrap()));
                return format!("{path}[1]{key}");
            }
            other => panic!("a constraint that this test does not know: {other}"),
        }
        path.to_owned()
    }

    #[test]
    fn every_constraint_of_the_schema_is_held_without_an_api_server() {
        let mut all = Constraints::new();
        constraints(&schema()["properties"]["spec"], "spec", &mut all);
        assert!(all.len() > 100, "{all:?}");
        for variant in variants() {
            assert_eq!(violations(&variant), [], "{variant}");
        }
        for (name, limit) in &all {
            let (path, constraint) = name.split_once(' ').unwrap();
            let mut spec = variants().into_iter().find(|variant| place(&mut variant.clone(), path).is_some()).unwrap_or_else(|| {
                panic!("no example has {path}: a constraint is tested by breaking it");
            });
            let field = breach(place(&mut spec, path).unwrap(), path, constraint, limit);
            let found = violations(&spec);
            assert!(found.iter().any(|(told, _)| *told == field), "{name}: {found:?}");
        }
    }

    #[test]
    fn every_pattern_of_the_schema_is_known() {
        let mut all = Constraints::new();
        constraints(&schema()["properties"]["spec"], "spec", &mut all);
        for (name, pattern) in all.iter().filter(|(name, _)| name.ends_with(" pattern")) {
            assert!(patterns::ALL.contains(&pattern.as_str().unwrap()), "{name}: {pattern}");
        }
    }

    /// A spec that breaks one rule, and the field that is told.
    fn broken_rules() -> Vec<(&'static str, Value, &'static str)> {
        let scaled = |autoscaling: Value, more: Value| {
            let mut spec = more;
            spec["autoscaling"] = autoscaling;
            spec
        };
        let port = |port: Value| json!({"defaultBackend": {"service": {"name": "a", "port": port}}});
        let publishing = |publishing: Value| json!({"publishing": publishing});
        let balancer = |balancer: Value| json!({"publishing": {"loadBalancer": balancer}});
        let service = |service: Value| json!({"publishing": {"additionalServices": [service]}});
        let by_another = |balancer: Value| service(json!({"name": "a", "type": "LoadBalancer", "loadBalancer": balancer}));
        let ours = json!({"haproxy-fleet.dev/x": "y"});
        let headers = |headers: Value| json!({"http": {"headers": headers}});
        let action = |field: &str, action: Value| headers(json!({field: [action]}));
        vec![
            (
                "spec replicas and zones[].replicas exclude each other",
                json!({"replicas": 3, "zones": [{"name": "a", "replicas": 1}]}),
                "spec.replicas",
            ),
            (
                "spec either every zone has replicas or none has",
                json!({"zones": [{"name": "a", "replicas": 1}, {"name": "b"}]}),
                "spec.zones[1]",
            ),
            (
                "spec replicas and autoscaling exclude each other",
                scaled(json!({"maxReplicas": 3}), json!({"replicas": 3})),
                "spec.replicas",
            ),
            (
                "spec autoscaling and zones[].replicas exclude each other",
                scaled(json!({"maxReplicas": 3}), json!({"zones": [{"name": "a", "replicas": 1}]})),
                "spec.autoscaling",
            ),
            (
                "spec autoscaling.minReplicas is at least the number of zones",
                scaled(json!({"maxReplicas": 3}), json!({"zones": [{"name": "a"}, {"name": "b"}, {"name": "c"}]})),
                "spec.autoscaling.minReplicas",
            ),
            (
                "spec.autoscaling minReplicas is at most maxReplicas",
                scaled(json!({"maxReplicas": 1}), json!({})),
                "spec.autoscaling.minReplicas",
            ),
            (
                "spec.autoscaling targetCpuUtilization and metrics exclude each other",
                scaled(json!({"maxReplicas": 3, "targetCpuUtilization": 9, "metrics": [{"type": "Resource"}]}), json!({})),
                "spec.autoscaling.metrics",
            ),
            (
                "spec zones and nodeSelector with topology.kubernetes.io/zone exclude each other",
                json!({"zones": [{"name": "a"}], "nodeSelector": {"topology.kubernetes.io/zone": "b"}}),
                "spec.nodeSelector",
            ),
            (
                "spec with HostNetwork rollout.maxSurge is 0: two pods cannot have one port of a node",
                json!({"publishing": {"type": "HostNetwork"}, "rollout": {"maxSurge": 1}}),
                "spec.rollout.maxSurge",
            ),
            (
                "spec.namespaceSelector.matchExpressions[] In and NotIn take values, Exists and DoesNotExist take none",
                json!({"namespaceSelector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}),
                "spec.namespaceSelector.matchExpressions[0]",
            ),
            (
                "spec.routeSelector.matchExpressions[] In and NotIn take values, Exists and DoesNotExist take none",
                json!({"routeSelector": {"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}}),
                "spec.routeSelector.matchExpressions[0]",
            ),
            ("spec.defaultBackend.service.port give either number or name", port(json!({})), "spec.defaultBackend.service.port"),
            ("spec.ports http and https need different ports", json!({"ports": {"http": 443}}), "spec.ports.https"),
            (
                "spec.podLabels keys below haproxy-fleet.dev/ and app.kubernetes.io/ and pod-template-hash are not yours to set",
                json!({"podLabels": {"app.kubernetes.io/name": "x"}}),
                "spec.podLabels",
            ),
            ("spec.podAnnotations keys below haproxy-fleet.dev/ are ours", json!({"podAnnotations": ours}), "spec.podAnnotations"),
            (
                "spec.podAnnotations the AppArmor profile of pods stays that of the container runtime",
                json!({"podAnnotations": {"container.apparmor.security.beta.kubernetes.io/haproxy": "unconfined"}}),
                "spec.podAnnotations",
            ),
            (
                "spec.rollout progressDeadlineSeconds is more than minReadySeconds",
                json!({"rollout": {"minReadySeconds": 600}}),
                "spec.rollout.progressDeadlineSeconds",
            ),
            (
                "spec.rollout maxSurge and maxUnavailable are not both 0",
                json!({"rollout": {"maxSurge": "0%", "maxUnavailable": 0}}),
                "spec.rollout.maxUnavailable",
            ),
            (
                "spec.rollout.zonePolicy.pauseBetweenZones at most 24h",
                json!({"rollout": {"zonePolicy": {"pauseBetweenZones": "25h"}}}),
                "spec.rollout.zonePolicy.pauseBetweenZones",
            ),
            (
                "spec rollout.zonePolicy.order names listed zones only",
                json!({"zones": [{"name": "a"}], "rollout": {"zonePolicy": {"order": ["b"]}}}),
                "spec.rollout.zonePolicy.order[0]",
            ),
            (
                "spec rollout.minReady is at most the number of pods",
                json!({"replicas": 3, "rollout": {"minReady": 4}}),
                "spec.rollout.minReady",
            ),
            (
                "spec rollout.minReady and disruption.maxUnavailable are together at most the number of pods: evictions may take what the budget allows",
                json!({"replicas": 3, "rollout": {"minReady": 2}, "disruption": {"maxUnavailable": 2}}),
                "spec.disruption.maxUnavailable",
            ),
            (
                "spec zones[].minReady is at most the number of pods of the zone",
                json!({"replicas": 3, "zones": [{"name": "a", "minReady": 1}, {"name": "b", "minReady": 2}]}),
                "spec.zones[1].minReady",
            ),
            (
                "spec rollout.minReady leaves no pod to replace where none may be added: lower it, or allow maxSurge",
                json!({"replicas": 3, "rollout": {"minReady": 3, "maxSurge": 0}}),
                "spec.rollout.minReady",
            ),
            (
                "spec zones[].minReady leaves no pod to replace where none may be added: lower it, or allow maxSurge",
                json!({"replicas": 3, "zones": [{"name": "a", "minReady": 1}, {"name": "b", "minReady": 1}],
                    "publishing": {"type": "HostNetwork"}}),
                "spec.zones[1].minReady",
            ),
            (
                "spec.drain.deregistrationDelay at most 15m",
                json!({"drain": {"deregistrationDelay": "901s"}}),
                "spec.drain.deregistrationDelay",
            ),
            ("spec.drain.timeout at most 24h", json!({"drain": {"timeout": "25h"}}), "spec.drain.timeout"),
            (
                "spec.publishing loadBalancer needs type LoadBalancer",
                publishing(json!({"type": "Private", "loadBalancer": {}})),
                "spec.publishing.loadBalancer",
            ),
            (
                "spec.publishing nodePorts needs type LoadBalancer or NodePort",
                publishing(json!({"type": "Private", "nodePorts": {}})),
                "spec.publishing.nodePorts",
            ),
            ("spec.publishing hostNetwork needs type HostNetwork", publishing(json!({"hostNetwork": {}})), "spec.publishing.hostNetwork"),
            (
                "spec.publishing externalTrafficPolicy needs type LoadBalancer or NodePort",
                publishing(json!({"type": "Private", "externalTrafficPolicy": "Local"})),
                "spec.publishing.externalTrafficPolicy",
            ),
            (
                "spec.publishing two ipFamilies need ipFamilyPolicy PreferDualStack or RequireDualStack",
                publishing(json!({"ipFamilies": ["IPv4", "IPv6"]})),
                "spec.publishing.ipFamilyPolicy",
            ),
            (
                "spec.publishing.nodePorts http and https need different ports",
                publishing(json!({"nodePorts": {"http": 30000, "https": 30000}})),
                "spec.publishing.nodePorts.https",
            ),
            (
                "spec.publishing.hostNetwork httpPort, httpsPort and healthPort are different ports",
                publishing(json!({"type": "HostNetwork", "hostNetwork": {"httpPort": 8404}})),
                "spec.publishing.hostNetwork",
            ),
            (
                "spec.publishing.loadBalancer.address this takes an IP address",
                balancer(json!({"address": "x"})),
                "spec.publishing.loadBalancer.address",
            ),
            (
                "spec.publishing.loadBalancer.annotations keys below haproxy-fleet.dev/ are ours",
                balancer(json!({"annotations": ours})),
                "spec.publishing.loadBalancer.annotations",
            ),
            (
                "spec.publishing.loadBalancer.allowedSourceRanges these are CIDR blocks such as 10.0.0.0/8",
                balancer(json!({"allowedSourceRanges": ["10.0.0.0/33"]})),
                "spec.publishing.loadBalancer.allowedSourceRanges",
            ),
            (
                "spec.http.headers.uniqueId.name this header belongs to the connection, to routing or to another field",
                headers(json!({"uniqueId": {"name": "Host"}})),
                "spec.http.headers.uniqueId.name",
            ),
            (
                "spec.http.headers.request[].name this header belongs to the connection, to routing or to another field",
                action("request", json!({"name": "Transfer-Encoding", "type": "Delete"})),
                "spec.http.headers.request[0].name",
            ),
            (
                "spec.http.headers.request[] type Set needs value, and Delete takes none",
                action("request", json!({"name": "X-A", "type": "Set"})),
                "spec.http.headers.request[0].value",
            ),
            (
                "spec.http.headers.response[].name this header belongs to the connection, to routing or to another field",
                action("response", json!({"name": "Strict-Transport-Security", "type": "Delete"})),
                "spec.http.headers.response[0].name",
            ),
            (
                "spec.http.headers.response[] type Set needs value, and Delete takes none",
                action("response", json!({"name": "X-A", "type": "Delete", "value": "x"})),
                "spec.http.headers.response[0].value",
            ),
            (
                "spec.http.hsts preload needs includeSubDomains and a maxAge of at least 31536000",
                json!({"http": {"hsts": {"maxAge": 31_535_999, "includeSubDomains": true, "preload": true}}}),
                "spec.http.hsts.preload",
            ),
            (
                "spec.logging.access destination Syslog needs syslog, and Container takes none",
                json!({"logging": {"access": {"destination": "Syslog"}}}),
                "spec.logging.access.syslog",
            ),
            (
                "spec.logging.access.syslog.address this takes an IP address",
                json!({"logging": {"access": {"destination": "Syslog", "syslog": {"address": "logs"}}}}),
                "spec.logging.access.syslog.address",
            ),
            (
                "spec.metrics podMonitor needs enabled: true",
                json!({"metrics": {"enabled": false, "podMonitor": {}}}),
                "spec.metrics.podMonitor",
            ),
            (
                "spec.metrics.podMonitor.labels keys below haproxy-fleet.dev/ and app.kubernetes.io/ are ours",
                json!({"metrics": {"enabled": true, "podMonitor": {"labels": {"haproxy-fleet.dev/fleet": "other"}}}}),
                "spec.metrics.podMonitor.labels",
            ),
            (
                "spec.publishing.additionalServices[] loadBalancer needs type LoadBalancer",
                service(json!({"name": "a", "type": "NodePort", "loadBalancer": {}})),
                "spec.publishing.additionalServices[0].loadBalancer",
            ),
            (
                "spec.publishing.additionalServices[] externalTrafficPolicy needs type LoadBalancer or NodePort",
                service(json!({"name": "a", "type": "Private", "externalTrafficPolicy": "Local"})),
                "spec.publishing.additionalServices[0].externalTrafficPolicy",
            ),
            (
                "spec.publishing.additionalServices[].loadBalancer.address this takes an IP address",
                by_another(json!({"address": "1.2.3"})),
                "spec.publishing.additionalServices[0].loadBalancer.address",
            ),
            (
                "spec.publishing.additionalServices[].loadBalancer.annotations keys below haproxy-fleet.dev/ are ours",
                by_another(json!({"annotations": ours})),
                "spec.publishing.additionalServices[0].loadBalancer.annotations",
            ),
            (
                "spec.publishing.additionalServices[].loadBalancer.allowedSourceRanges these are CIDR blocks such as 10.0.0.0/8",
                by_another(json!({"allowedSourceRanges": ["::/129"]})),
                "spec.publishing.additionalServices[0].loadBalancer.allowedSourceRanges",
            ),
        ]
    }

    #[test]
    fn every_rule_of_the_schema_is_held_without_an_api_server() {
        let mut all = BTreeSet::new();
        rules(&schema()["properties"]["spec"], "spec", &mut all);
        let known: BTreeSet<String> = broken_rules().iter().map(|(name, ..)| (*name).to_owned()).collect();
        assert_eq!(all, known);
        for (name, spec, field) in broken_rules() {
            let found = found(spec);
            // Rules say the same here as there.
            let (_, message) = name.split_once(' ').unwrap();
            assert_eq!(found, [(field.to_owned(), message.to_owned())], "{name}");
        }
    }

    #[test]
    fn headers_that_are_reserved_here_are_reserved_by_the_api_server() {
        let rules = schema()["properties"]["spec"]["properties"]["http"]["properties"]["headers"]["properties"]["request"]["items"]["properties"]
            ["name"]["x-kubernetes-validations"][0]["rule"]
            .as_str()
            .unwrap()
            .to_owned();
        let listed: Vec<&str> = rules.split('\'').skip(1).step_by(2).collect();
        assert_eq!(listed, RESERVED_HEADERS);
    }

    #[test]
    fn a_fleet_has_a_name_that_its_services_can_have() {
        let spec: IngressDeploymentSpec = serde_json::from_value(json!({"ingressClassName": "edge"})).unwrap();
        let mut roots = BTreeSet::new();
        let mut root = schema();
        root.as_object_mut().unwrap().remove("properties");
        rules(&root, "", &mut roots);
        for name in ["1a", "a.b", "a-", "", &"a".repeat(41)] {
            let found = spec.violations(&ObjectRef::new(Kind::IngressDeployment, "infra", name));
            assert_eq!(found.iter().map(|found| format!(" {}", found.message)).collect::<BTreeSet<_>>(), roots, "{name}");
        }
        assert_eq!(spec.violations(&ObjectRef::new(Kind::IngressDeployment, "infra", "a".repeat(40))), []);
    }

    #[test]
    fn a_spec_with_everything_in_order_breaks_no_rule() {
        let zones = json!([{"name": "a", "replicas": 1}, {"name": "b", "replicas": 0}]);
        assert_eq!(found(json!({"zones": zones, "ports": {"http": 8080}})), []);
        assert_eq!(found(json!({"replicas": 3, "zones": [{"name": "a"}, {"name": "b"}]})), []);
        assert_eq!(found(json!({"defaultBackend": {"service": {"name": "a", "port": {"name": "http"}}}})), []);
    }
}
