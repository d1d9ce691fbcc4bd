//! The `IngressClass` whose Ingresses a fleet serves.

use super::names::with;
use super::{CONTROLLER, Desired, Fleet, Group, LABEL_FLEET_NAMESPACE, Ownership};
use serde_json::json;

const GROUP: Group = Group { api_version: "networking.k8s.io/v1", kind: "IngressClass", plural: "ingressclasses" };

pub(super) fn ingress_class(fleet: Fleet<'_>) -> Desired {
    let names = fleet.names();
    let name = &fleet.deployment.spec.ingress_class_name;
    let labels = with(names.labels(), [(LABEL_FLEET_NAMESPACE.to_owned(), names.namespace.to_owned())]);
    let metadata = json!({"name": name, "labels": labels});
    GROUP.desired(None, name, &metadata, Ownership::Labelled, &json!({"spec": {"controller": CONTROLLER}}))
}
