//! The pods of a fleet, as far as somebody here may see them.

use super::admin::Admin;
use super::cluster::Cluster;
use crate::fleet::build::{ANNOTATION_TEMPLATE, LABEL_FLEET, LABEL_ZONE};
use crate::status::json::{Fleet, Replica};
use k8s_openapi::api::core::v1::Pod as KubernetesPod;
use kube::Api;
use kube::api::ListParams;
use std::time::Duration;

/// A pod of a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pod {
    pub(super) name: String,
    /// The listed zone that it is in.
    pub(super) zone: Option<String>,
    pub(super) node: Option<String>,
    pub(super) template: Option<String>,
    pub(super) phase: Phase,
}

/// What a pod does. The order is that in which pods of a zone are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    Ready,
    Drained,
    Starting,
    Terminating,
}

impl Phase {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Ready => "ready",
            Self::Drained => "drained",
            Self::Starting => "starting",
            Self::Terminating => "terminating",
        }
    }

    fn of(ends: bool, is_drained: bool, is_ready: bool) -> Self {
        match (ends, is_drained, is_ready) {
            (true, ..) => Self::Terminating,
            (_, true, _) => Self::Drained,
            (.., true) => Self::Ready,
            _ => Self::Starting,
        }
    }
}

/// Where pods are seen.
pub(super) trait HasPods {
    /// How often a look at them is worth what it costs.
    const EVERY: Duration;

    /// The pods of `fleet`; none if they cannot be seen.
    async fn pods(&self, fleet: &Fleet) -> Option<Vec<Pod>>;
}

impl HasPods for Admin {
    // they come with the state
    const EVERY: Duration = Duration::ZERO;

    async fn pods(&self, fleet: &Fleet) -> Option<Vec<Pod>> {
        Some(fleet.replicas.iter().map(|replica| of_replica(replica, fleet)).collect())
    }
}

impl HasPods for Cluster {
    const EVERY: Duration = Duration::from_secs(1);

    async fn pods(&self, fleet: &Fleet) -> Option<Vec<Pod>> {
        let pods: Api<KubernetesPod> = Api::namespaced(self.client.clone(), &fleet.namespace);
        // who may not see them sees the zones all the same
        let found = pods.list(&ListParams::default().labels(&format!("{LABEL_FLEET}={}", fleet.name))).await.ok()?;
        Some(found.items.into_iter().filter(is_there).map(|pod| of_cluster(pod, fleet)).collect())
    }
}

fn of_replica(replica: &Replica, fleet: &Fleet) -> Pod {
    Pod {
        name: replica.name.clone(),
        zone: replica.zone.clone(),
        node: None,
        template: replica.template.clone(),
        phase: Phase::of(replica.ends == Some(true), is_drained(fleet, &replica.name), replica.ready),
    }
}

/// Whether it is more than a record of a pod that was.
fn is_there(pod: &KubernetesPod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Succeeded" | "Failed"))
}

fn of_cluster(pod: KubernetesPod, fleet: &Fleet) -> Pod {
    let KubernetesPod { metadata, spec, status } = pod;
    let name = metadata.name.unwrap_or_default();
    let mut conditions = status.into_iter().flat_map(|status| status.conditions.unwrap_or_default());
    let is_ready = conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True");
    Pod {
        zone: metadata.labels.and_then(|mut labels| labels.remove(LABEL_ZONE)).filter(|zone| !zone.is_empty()),
        node: spec.and_then(|spec| spec.node_name),
        template: metadata.annotations.and_then(|mut annotations| annotations.remove(ANNOTATION_TEMPLATE)),
        phase: Phase::of(metadata.deletion_timestamp.is_some(), is_drained(fleet, &name), is_ready),
        name,
    }
}

fn is_drained(fleet: &Fleet, pod: &str) -> bool {
    fleet.rollout.iter().flat_map(|rollout| &rollout.drained).any(|drained| drained == pod)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::status::json::Rollout;
    use serde_json::{Value, json};

    fn fleet() -> Fleet {
        let rollout = Rollout { drained: vec!["edge-1".into()], ..Rollout::default() };
        Fleet { namespace: "infra".into(), name: "edge".into(), rollout: Some(rollout), ..Fleet::default() }
    }

    #[tokio::test]
    async fn pods_of_a_cluster_say_where_they_are_what_they_run_and_what_they_do() {
        let server = fleet_api_server::ApiServer::new();
        server.put(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "infra"}})).unwrap();
        let put = |name: &str, of: &str, ready: &str, phase: &str| {
            let labels = json!({LABEL_FLEET: of, LABEL_ZONE: "a"});
            let pod: Value = json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"namespace": "infra", "name": name, "labels": labels, "annotations": {ANNOTATION_TEMPLATE: "t2"}},
                "spec": {"nodeName": "worker-1", "containers": []},
                "status": {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]},
            });
            server.put(&pod).unwrap();
        };
        put("edge-0", "edge", "True", "Running");
        put("edge-1", "edge", "False", "Running");
        put("edge-2", "edge", "False", "Pending");
        put("edge-3", "edge", "False", "Failed");
        put("inner-0", "inner", "True", "Running");
        let cluster = Cluster { client: server.client(), namespace: None };
        let pods = cluster.pods(&fleet()).await.unwrap();
        let phases: Vec<(&str, Phase)> = pods.iter().map(|pod| (&*pod.name, pod.phase)).collect();
        assert_eq!(phases, [("edge-0", Phase::Ready), ("edge-1", Phase::Drained), ("edge-2", Phase::Starting)]);
        let Pod { zone, node, template, .. } = &pods[0];
        assert_eq!((zone.as_deref(), node.as_deref(), template.as_deref()), (Some("a"), Some("worker-1"), Some("t2")));
    }

    #[test]
    fn a_pod_that_ends_does_nothing_else() {
        let replica = |name: &str, ready, ends| Replica { name: name.into(), ready, ends, ..Replica::default() };
        let phase = |replica: Replica| of_replica(&replica, &fleet()).phase;
        assert_eq!(phase(replica("edge-1", true, Some(true))), Phase::Terminating);
        assert_eq!(phase(replica("edge-1", true, Some(false))), Phase::Drained);
        assert_eq!(phase(replica("edge-0", true, None)), Phase::Ready);
        assert_eq!(phase(replica("edge-0", false, None)), Phase::Starting);
    }
}
