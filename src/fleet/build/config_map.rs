//! The `ConfigMap` with the CA certificates that agents trust the operator by.

use super::{Desired, Fleet, Group, Ownership};
use serde_json::json;

const GROUP: Group = Group { api_version: "v1", kind: "ConfigMap", plural: "configmaps" };
/// Its key.
pub(super) const CA: &str = "ca.crt";

pub(super) fn config_map(fleet: Fleet<'_>) -> Desired {
    let data = json!({"data": {CA: fleet.context.ca_bundle}});
    fleet.namespaced(GROUP, &fleet.names().operator_ca(), Ownership::Owned, &data)
}
