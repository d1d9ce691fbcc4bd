//! In which zones the pods of fleets are.
//!
//! Nobody but the scheduler knows that before a pod runs, and nodes are not ours to read. But every fleet has a Service in
//! front of all its pods, and Kubernetes writes the zone of each into the slices of endpoints of that: with listed zones and
//! without, ready or not.

use crate::haproxy::bundle::Name;
use crate::ingest::Delta;
use crate::model::FleetId;
use crate::report::Kind;
use crate::world::World;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The namespaces in which pods may have another zone after `delta`.
pub(super) fn moved(delta: &Delta) -> BTreeSet<Arc<str>> {
    let decides = |kind: &Kind| matches!(kind, Kind::EndpointSlice | Kind::IngressDeployment);
    let set = delta.set.iter().map(crate::world::Object::reference);
    set.chain(delta.removed.iter().cloned()).filter(|object| decides(&object.kind)).map(|object| object.namespace).collect()
}

/// The zones of the pods of `fleet`, by their numbers.
pub(super) fn zones(world: &World, fleet: &FleetId) -> BTreeMap<u64, Name> {
    let slices = world.endpoint_slices_of(&fleet.namespace, &fleet.name);
    let endpoints = slices.flat_map(|slice| slice.endpoints.iter());
    endpoints.filter_map(|endpoint| Some((endpoint.target?, endpoint.zone.clone()?))).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::api::{EndpointSlice, Meta};
    use crate::report::object_number;
    use crate::world::Object;
    use serde_json::json;

    /// A slice of the Service `service` as Kubernetes writes it for pods that run and for one that does not yet.
    fn slice(service: &str) -> Object {
        let endpoint = |pod: &str, zone: Option<&str>| {
            let target = json!({"kind": "Pod", "namespace": "infra", "name": pod, "uid": format!("uid-{pod}")});
            json!({"addresses": ["10.0.0.1"], "conditions": {"ready": pod == "edge-0"}, "zone": zone, "targetRef": target})
        };
        let endpoints = [endpoint("edge-0", Some("zone-a")), endpoint("edge-1", Some("zone-b")), endpoint("edge-2", None)];
        let labels = json!({"kubernetes.io/service-name": service});
        let full = json!({"metadata": {"labels": labels}, "addressType": "IPv4", "endpoints": endpoints});
        let meta = Meta { labels: [("kubernetes.io/service-name", service)].into_iter().collect(), ..Meta::named("infra", service) };
        let mut told = Vec::new();
        let slice = EndpointSlice::from_full(meta, serde_json::from_value(full).unwrap(), &mut told);
        assert_eq!(told, []);
        Object::EndpointSlice(Arc::new(slice))
    }

    #[test]
    fn the_zone_of_each_pod_is_found_by_its_number_ready_or_not() {
        let mut world = World::default();
        world.set(slice("edge"));
        let fleet = FleetId { namespace: "infra".into(), name: "edge".into() };
        let number = |pod: &str| object_number("Pod", "infra", pod, &format!("uid-{pod}"));
        let expected = BTreeMap::from([(number("edge-0"), Name::from("zone-a")), (number("edge-1"), Name::from("zone-b"))]);
        assert_eq!(zones(&world, &fleet), expected);
        assert!(zones(&world, &FleetId { name: "other".into(), ..fleet }).is_empty());
    }

    #[test]
    fn only_slices_and_fleets_move_pods() {
        let delta = Delta { set: vec![slice("edge")], removed: vec![crate::report::ObjectRef::new(Kind::Service, "shop", "a")] };
        assert_eq!(moved(&delta), BTreeSet::from(["infra".into()]));
    }
}
