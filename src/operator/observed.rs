//! What the cluster says of a fleet, as the status needs it. Pure.

use super::stage::FleetView;
use crate::api::conditions as named;
use crate::api::{IngressDeploymentSpec, PublishingType};
use crate::delivery::feed::AgentReport;
use crate::fleet::controller::Step;
use crate::status::fleet::{Address, Pod, Trouble};
use k8s_openapi::api::apps::v1::{Deployment, DeploymentStatus};
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::jiff::Timestamp;
use std::collections::BTreeSet;
use std::time::Duration;

/// The label of nodes, and since Kubernetes 1.35 of pods, that names their zone.
const ZONE: &str = "topology.kubernetes.io/zone";
/// An agent has so long to connect before its pod may be called behind: that of a pod that is new, or all of them after a
/// restart of the operator.
pub(super) const TO_CONNECT: Duration = Duration::from_secs(35);

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
        holds: report.and_then(|report| report.state.as_ref()).is_some_and(|state| state.held > 0),
        trouble: pod.status.as_ref().and_then(trouble),
    }
}

/// Characters of what the scheduler says that are told.
const SAID: usize = 300;

/// Why a pod does not start. What kubelets say in turn about one trouble is told as one, so that a status stays as it is.
fn trouble(status: &core::PodStatus) -> Option<Trouble> {
    let conditions = status.conditions.iter().flatten();
    let mut unscheduled = conditions.filter(|one| one.type_ == "PodScheduled" && one.status == "False");
    if let Some(condition) = unscheduled.find(|one| one.reason.as_deref() == Some("Unschedulable")) {
        // why, without what was tried to make room
        let said = condition.message.as_deref().unwrap_or_default().split(". ").next().unwrap_or_default();
        let said: String = said.trim_end_matches('.').chars().take(SAID).collect();
        let message = format!("no node takes it: {said}; see spec.zones, nodeSelector, affinity and resources, and what nodes there are");
        return Some(Trouble { reason: named::REASON_UNSCHEDULABLE, message });
    }
    let mut containers = status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten());
    containers.find_map(container_trouble)
}

fn container_trouble(container: &core::ContainerStatus) -> Option<Trouble> {
    let waits = container.state.as_ref()?.waiting.as_ref()?.reason.as_deref()?;
    let (name, image) = (&container.name, &container.image);
    match waits {
        "ErrImagePull" | "ImagePullBackOff" | "InvalidImageName" | "ErrImageNeverPull" | "ImageInspectError" => {
            let message = format!(
                "the image {image} of its container {name} cannot be had; correct spec.image or the operator's images, or let nodes reach it"
            );
            Some(Trouble { reason: named::REASON_IMAGE_NOT_PULLED, message })
        }
        "CrashLoopBackOff" | "CreateContainerConfigError" | "CreateContainerError" | "RunContainerError" => {
            let message = format!("its container {name} does not start, or ends again and again; see its log and the Events of the pod");
            Some(Trouble { reason: named::REASON_CONTAINER_NOT_STARTING, message })
        }
        _ => None,
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
            && positive(status.replicas) == wanted
            && was_available(&status);
    }
    (updated, complete, available)
}

/// Whether all pods of the present template were available once. One that is lost later is no rollout.
fn was_available(status: &DeploymentStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    let progress = conditions.find(|condition| condition.type_ == "Progressing").and_then(|condition| condition.reason.as_deref());
    progress.is_none_or(|reason| reason == "NewReplicaSetAvailable")
}

/// What a deletion waits for, in words.
pub(super) fn deleting(step: Step) -> &'static str {
    match step {
        Step::Withdrawing => "Ingresses stop telling its address",
        Step::Draining => "its pods drain and end",
        Step::Releasing => "its load balancer is taken down",
        Step::Done => "nothing is left of it",
    }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn told(status: serde_json::Value) -> Option<(&'static str, String)> {
        trouble(&serde_json::from_value(status).unwrap()).map(|trouble| (trouble.reason, trouble.message))
    }

    fn waiting(reason: &str) -> serde_json::Value {
        let state = json!({"waiting": {"reason": reason, "message": "something that changes all the time"}});
        let one =
            json!({"name": "haproxy", "image": "example/haproxy:1", "imageID": "", "ready": false, "restartCount": 0, "state": state});
        json!({"containerStatuses": [one]})
    }

    #[test]
    fn what_kubelets_say_in_turn_is_one_trouble_with_one_text() {
        let first = told(waiting("ErrImagePull")).unwrap();
        assert_eq!(first.0, named::REASON_IMAGE_NOT_PULLED);
        assert!(first.1.contains("example/haproxy:1") && first.1.contains("spec.image"));
        assert_eq!(told(waiting("ImagePullBackOff")), Some(first));
        assert_eq!(told(waiting("CrashLoopBackOff")).unwrap().0, named::REASON_CONTAINER_NOT_STARTING);
        assert_eq!(told(waiting("ContainerCreating")), None, "that is the way that things go");
        assert_eq!(told(json!({})), None);
    }

    #[test]
    fn pods_that_never_served_are_a_rollout_and_pods_that_are_lost_are_none() {
        let deployment = |reason: &str, available: i32| -> Deployment {
            let progress = json!({"type": "Progressing", "status": "True", "reason": reason});
            serde_json::from_value(json!({
                "metadata": {"generation": 1}, "spec": {"replicas": 2, "selector": {}, "template": {}},
                "status": {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": available, "conditions": [progress]},
            }))
            .unwrap()
        };
        assert_eq!(rollout([deployment("ReplicaSetUpdated", 0)].iter()), (2, false, 0));
        assert_eq!(rollout([deployment("NewReplicaSetAvailable", 2)].iter()), (2, true, 2));
        assert_eq!(rollout([deployment("NewReplicaSetAvailable", 1)].iter()), (2, true, 1));
    }

    #[test]
    fn a_pod_that_no_node_takes_says_what_the_scheduler_says() {
        let message = "0/4 nodes are available: 4 node(s) didn't match Pod's node affinity/selector. no new claims to deallocate, preemption: 0/4 nodes are available.";
        let condition = json!({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message});
        let (reason, message) = told(json!({"conditions": [condition]})).unwrap();
        assert_eq!(reason, named::REASON_UNSCHEDULABLE);
        assert!(message.contains("didn't match Pod's node affinity/selector; see spec.zones") && !message.contains("claims"), "{message}");
    }
}
