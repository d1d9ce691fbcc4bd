//! What the cluster says of a fleet, as the status needs it. Pure.

use super::stage::FleetView;
use crate::api::{IngressDeploymentSpec, PublishingType};
use crate::delivery::feed::AgentReport;
use crate::status::fleet::{Address, Pod};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::Timestamp;
use std::collections::BTreeSet;
use std::time::Duration;

/// The label of nodes, and since Kubernetes 1.35 of pods, that names their zone.
const ZONE: &str = "topology.kubernetes.io/zone";
/// An agent has so long to connect before its pod may be called behind: that of a pod that is new, or all of them after a
/// restart of the operator.
const TO_CONNECT: Duration = Duration::from_secs(35);

/// A moment of now, by both clocks: what was measured by one is told by the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    pub(super) wall: Timestamp,
    pub(super) clock: tokio::time::Instant,
}

impl Moment {
    pub(super) fn now() -> Self {
        // whole seconds, as the API server keeps them: what comes back is what was written
        let wall = Timestamp::now();
        let wall = Timestamp::from_second(wall.as_second()).unwrap_or(wall);
        Self { wall, clock: tokio::time::Instant::now() }
    }

    fn at(self, clock: tokio::time::Instant) -> Timestamp {
        let before = k8s_openapi::jiff::SignedDuration::try_from(self.clock.saturating_duration_since(clock)).unwrap_or_default();
        self.wall.checked_sub(before).unwrap_or(self.wall)
    }
}

/// A pod as the status needs it. `view` is what it should serve; agents are followed since `started`.
pub(super) fn pod(
    pod: &core::Pod,
    report: Option<&AgentReport>,
    view: Option<&FleetView>,
    started: tokio::time::Instant,
    now: Moment,
) -> Pod {
    let labels = pod.metadata.labels.as_ref();
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let ready = conditions.into_iter().flatten().any(|condition| condition.type_ == "Ready" && condition.status == "True");
    let terminating = pod.metadata.deletion_timestamp.is_some();
    Pod {
        name: pod.metadata.name.clone().unwrap_or_default(),
        zone: labels
            .and_then(|labels| labels.get(ZONE).or_else(|| labels.get(crate::fleet::build::LABEL_ZONE)))
            .filter(|zone| !zone.is_empty())
            .cloned(),
        serves: ready && !terminating,
        terminating,
        behind_since: view.and_then(|view| behind_since(report, view, started, now)),
    }
}

fn behind_since(report: Option<&AgentReport>, view: &FleetView, started: tokio::time::Instant, now: Moment) -> Option<Timestamp> {
    match report.and_then(|report| report.state.as_ref()) {
        Some(state) if state.digest == view.digest => None,
        Some(_) => Some(now.at(view.since)),
        None => {
            let since = now.at(view.since.max(started));
            since.checked_add(k8s_openapi::jiff::SignedDuration::try_from(TO_CONNECT).unwrap_or_default()).ok()
        }
    }
}

/// What Deployments say: pods of the present template, whether that is all, and pods that are ready for long enough.
pub(super) fn rollout<'d>(deployments: impl Iterator<Item = &'d Deployment>) -> (u32, bool, u32) {
    let positive = |number: Option<i32>| number.and_then(|number| u32::try_from(number).ok()).unwrap_or(0);
    let (mut updated, mut complete, mut available) = (0, true, 0);
    for deployment in deployments {
        let wanted = positive(deployment.spec.as_ref().and_then(|spec| spec.replicas));
        let status = deployment.status.clone().unwrap_or_default();
        updated += positive(status.updated_replicas);
        available += positive(status.available_replicas);
        complete &= status.observed_generation == deployment.metadata.generation
            && positive(status.updated_replicas) == wanted
            && positive(status.replicas) == wanted;
    }
    (updated, complete, available)
}

/// Where clients connect to. `service` is the fleet's first one.
pub(super) fn address(spec: &IngressDeploymentSpec, service: Option<&core::Service>, pods: &[core::Pod]) -> Address {
    let addresses: Vec<String> = match spec.publishing.kind {
        PublishingType::LoadBalancer => balancers(service),
        PublishingType::Private => service.and_then(|service| service.spec.as_ref()?.cluster_ips.clone()).unwrap_or_default(),
        PublishingType::NodePort | PublishingType::HostNetwork => hosts(pods),
    };
    if addresses.is_empty() { Address::Pending } else { Address::Assigned(addresses) }
}

fn balancers(service: Option<&core::Service>) -> Vec<String> {
    let status = service.and_then(|service| service.status.as_ref()?.load_balancer.as_ref()?.ingress.as_ref());
    status.into_iter().flatten().filter_map(|point| point.ip.clone().or_else(|| point.hostname.clone())).collect()
}

/// The addresses of the nodes that pods run on.
fn hosts(pods: &[core::Pod]) -> Vec<String> {
    let of_pod = |pod: &core::Pod| {
        let status = pod.status.clone().unwrap_or_default();
        let many: Vec<String> = status.host_ips.into_iter().flatten().map(|host| host.ip).collect();
        if many.is_empty() { status.host_ip.into_iter().collect() } else { many }
    };
    let all: BTreeSet<String> = pods.iter().flat_map(of_pod).collect();
    all.into_iter().collect()
}
