//! The Services in front of a fleet. That of a load balancer is never made anew while its address is in use.

use super::{Desired, Fleet, Group, Ownership};
use crate::api::{ExternalTrafficPolicy, LoadBalancer, NodePorts, Publishing, PublishingType, ServiceType, Texts, TrafficDistribution};
use crate::report::{Diagnostic, codes};
use serde_json::{Value, json};

const GROUP: Group = Group { api_version: "v1", kind: "Service", plural: "services" };

/// A Service that is asked for.
struct Wanted<'a> {
    name: String,
    /// The field of the spec that asks for it.
    field: String,
    kind: ServiceType,
    balancer: Option<&'a LoadBalancer>,
    traffic_policy: Option<ExternalTrafficPolicy>,
    node_ports: Option<&'a NodePorts>,
}

fn wanted(fleet: Fleet<'_>) -> Vec<Wanted<'_>> {
    let publishing = &fleet.deployment.spec.publishing;
    let first = Wanted {
        name: fleet.names().fleet.to_owned(),
        field: "spec.publishing".to_owned(),
        kind: match publishing.kind {
            PublishingType::LoadBalancer => ServiceType::LoadBalancer,
            PublishingType::NodePort => ServiceType::NodePort,
            // clients inside the cluster need no node's port
            PublishingType::HostNetwork | PublishingType::Private => ServiceType::Private,
        },
        balancer: publishing.load_balancer.as_ref(),
        traffic_policy: publishing.external_traffic_policy,
        node_ports: publishing.node_ports.as_ref(),
    };
    let more = publishing.additional_services.iter().zip(0..).map(|(service, index)| Wanted {
        name: fleet.names().additional_service(&service.name),
        field: format!("spec.publishing.additionalServices[{index}]"),
        kind: service.kind,
        balancer: service.load_balancer.as_ref(),
        traffic_policy: service.external_traffic_policy,
        node_ports: None,
    });
    std::iter::once(first).chain(more).collect()
}

pub(super) fn services(fleet: Fleet<'_>) -> Vec<Desired> {
    wanted(fleet).iter().map(|wanted| service(fleet, wanted)).collect()
}

/// What cannot be done without giving up a load balancer's address, or not at all.
pub(super) fn conflicts(fleet: Fleet<'_>) -> Vec<Diagnostic> {
    const HELP: &str = "take the change back; to move to another, add one to spec.publishing.additionalServices or create a second fleet";
    let mut found = Vec::new();
    for wanted in wanted(fleet) {
        let Some(existing) = fleet.observed.services.get(&wanted.name).filter(|service| service.kind == "LoadBalancer") else { continue };
        let class = wanted.balancer.and_then(|balancer| balancer.class.as_deref());
        let address = existing.address.as_deref().map_or(String::new(), |address| format!(" and the address {address}"));
        let (field, message) = if wanted.kind != ServiceType::LoadBalancer && existing.address.is_some() {
            let message = format!("the Service {} is of type LoadBalancer{address}, which another type would give up", wanted.name);
            (format!("{}.type", wanted.field), message)
        } else if wanted.kind == ServiceType::LoadBalancer && class.is_some() && class != existing.class.as_deref() {
            let has = existing.class.as_deref().map_or("no class".to_owned(), |class| format!("the class {class}"));
            let message = format!("the Service {} has {has}{address}; Kubernetes lets no Service change its class", wanted.name);
            (format!("{}.loadBalancer.class", wanted.field), message)
        } else {
            continue;
        };
        found.push(Diagnostic::error(&fleet.object(), field, codes::NOT_APPLIED, message, HELP));
    }
    found
}

fn service(fleet: Fleet<'_>, wanted: &Wanted<'_>) -> Desired {
    let publishing = &fleet.deployment.spec.publishing;
    let mut spec = json!({
        "type": match wanted.kind {
            ServiceType::LoadBalancer => "LoadBalancer",
            ServiceType::NodePort => "NodePort",
            ServiceType::Private => "ClusterIP",
        },
        "selector": fleet.names().selector(),
        "ports": ports(fleet, wanted.node_ports),
    });
    if wanted.kind != ServiceType::Private {
        spec["externalTrafficPolicy"] = json!(wanted.traffic_policy.unwrap_or_default().as_str());
    }
    families(&mut spec, publishing);
    if fleet.context.traffic_distribution && publishing.traffic_distribution == Some(TrafficDistribution::PreferClose) {
        spec["trafficDistribution"] = json!("PreferClose");
    }
    let mut rest = json!({});
    if let Some(balancer) = wanted.balancer {
        balance(&mut spec, balancer);
        annotate(&mut rest, &balancer.annotations);
    }
    rest["spec"] = spec;
    let ownership = if wanted.kind == ServiceType::LoadBalancer { Ownership::Labelled } else { Ownership::Owned };
    fleet.namespaced(GROUP, &wanted.name, ownership, &rest)
}

fn ports(fleet: Fleet<'_>, node_ports: Option<&NodePorts>) -> Value {
    let ports = &fleet.deployment.spec.ports;
    let port = |name: &str, port: i32, node_port: Option<i32>| {
        let mut entry = json!({"name": name, "port": port, "protocol": "TCP", "targetPort": name});
        if let Some(node_port) = node_port {
            entry["nodePort"] = json!(node_port);
        }
        entry
    };
    let given = |of: fn(&NodePorts) -> Option<i32>| node_ports.and_then(of);
    json!([port("http", ports.http, given(|ports| ports.http)), port("https", ports.https, given(|ports| ports.https))])
}

fn families(spec: &mut Value, publishing: &Publishing) {
    if !publishing.ip_families.is_empty() {
        spec["ipFamilies"] = json!(publishing.ip_families);
    }
    if let Some(policy) = publishing.ip_family_policy {
        spec["ipFamilyPolicy"] = json!(policy);
    }
}

fn balance(spec: &mut Value, balancer: &LoadBalancer) {
    if let Some(class) = &balancer.class {
        spec["loadBalancerClass"] = json!(class);
    }
    if let Some(address) = &balancer.address {
        spec["loadBalancerIP"] = json!(address);
    }
    if !balancer.allowed_source_ranges.is_empty() {
        spec["loadBalancerSourceRanges"] = json!(balancer.allowed_source_ranges);
    }
}

fn annotate(rest: &mut Value, annotations: &Texts) {
    if !annotations.is_empty() {
        rest["metadata"] = json!({"annotations": annotations});
    }
}
