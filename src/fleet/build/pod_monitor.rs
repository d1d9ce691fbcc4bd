//! The `PodMonitor` by which Prometheus finds the pods, where its operator is.

use super::names::with;
use super::{Desired, Fleet, Group, Ownership};
use serde_json::json;

const GROUP: Group = Group { api_version: "monitoring.coreos.com/v1", kind: "PodMonitor", plural: "podmonitors" };

pub(super) fn pod_monitor(fleet: Fleet<'_>) -> Option<Desired> {
    let metrics = fleet.deployment.spec.metrics.as_ref().filter(|metrics| metrics.enabled)?;
    let monitor = metrics.pod_monitor.as_ref()?;
    let names = fleet.names();
    let spec = json!({
        "selector": {"matchLabels": names.selector()},
        "podMetricsEndpoints": [{"port": "health", "path": "/metrics", "interval": monitor.interval.0}],
    });
    let labels = with(names.labels(), monitor.labels.clone());
    Some(fleet.namespaced(GROUP, names.fleet, Ownership::Owned, &json!({"metadata": {"labels": labels}, "spec": spec})))
}
