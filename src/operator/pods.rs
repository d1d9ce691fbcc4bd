//! Where pods are, from what is observed of fleets. Pure.

use super::serving::{Place, Places};
use crate::fleet::apply::FleetKey;
use crate::fleet::build::LABEL_ZONE;
use crate::fleet::controller::States;
use crate::model::FleetId;
use serde_json::Value;

/// The label of pods that names the zone of their node, where the cluster tells it.
const ZONE: &str = "topology.kubernetes.io/zone";

/// Where the pods of `fleet` are, by name: all that the cluster knows of.
pub(super) fn places(states: &States, fleet: &FleetId) -> Places {
    let key = FleetKey { namespace: fleet.namespace.to_string(), name: fleet.name.to_string() };
    let pods = states.get(&key).map(|state| &state.pods).into_iter().flatten();
    pods.map(|(name, pod)| (name.clone(), of_pod(pod))).collect()
}

fn of_pod(pod: &Value) -> Place {
    let label = |name: &str| pod["metadata"]["labels"][name].as_str().filter(|zone| !zone.is_empty());
    let ends = !pod["metadata"]["deletionTimestamp"].is_null();
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    let is_ready = conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
    Place { zone: label(LABEL_ZONE).or_else(|| label(ZONE)).unwrap_or_default().into(), serves: is_ready && !ends, ends }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::controller::FleetState;
    use serde_json::json;
    use std::collections::BTreeMap;
    use std::sync::Arc;

    #[test]
    fn a_pod_is_where_its_labels_say_and_serves_until_it_ends() {
        let fleet = FleetId { namespace: "infra".into(), name: "edge".into() };
        let key = FleetKey { namespace: "infra".to_owned(), name: "edge".to_owned() };
        let ready = json!([{"type": "Ready", "status": "True"}]);
        let pods = BTreeMap::from([
            ("listed".to_owned(), Arc::new(json!({"metadata": {"labels": {LABEL_ZONE: "a", ZONE: "x"}}, "status": {"conditions": ready}}))),
            ("spread".to_owned(), Arc::new(json!({"metadata": {"labels": {LABEL_ZONE: "", ZONE: "x"}}}))),
            ("ends".to_owned(), Arc::new(json!({"metadata": {"deletionTimestamp": "now"}, "status": {"conditions": ready}}))),
        ]);
        let states = States::from([(key, FleetState { pods, ..FleetState::default() })]);
        let places = places(&states, &fleet);
        let of = |name: &str| places.get(name).cloned();
        assert_eq!(of("listed"), Some(Place { zone: "a".into(), serves: true, ends: false }));
        assert_eq!(of("spread"), Some(Place { zone: "x".into(), serves: false, ends: false }));
        assert_eq!(of("ends"), Some(Place { zone: "".into(), serves: false, ends: true }));
        assert_eq!(of("unknown"), None);
    }
}
