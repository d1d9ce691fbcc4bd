//! The `NetworkPolicy` of the pods: nothing but their listeners and their health check can be reached. Where they connect to
//! is open, as backends are wherever Services and `EndpointSlice`s say.

use super::{Desired, Fleet, Group, Ownership, pod};
use crate::api::PublishingType;
use serde_json::{Value, json};

const GROUP: Group = Group { api_version: "networking.k8s.io/v1", kind: "NetworkPolicy", plural: "networkpolicies" };

pub(super) fn network_policy(fleet: Fleet<'_>) -> Option<Desired> {
    let wanted = fleet.deployment.spec.network_policy.enabled && fleet.publishing() != PublishingType::HostNetwork;
    let ports: Vec<Value> = pod::ports(fleet).iter().map(|(_, port)| json!({"port": port, "protocol": "TCP"})).collect();
    let names = fleet.names();
    wanted.then(|| {
        let spec = json!({
            "podSelector": {"matchLabels": names.selector()}, "policyTypes": ["Ingress"], "ingress": [{"ports": ports}],
        });
        fleet.namespaced(GROUP, names.fleet, Ownership::Owned, &json!({"spec": spec}))
    })
}
