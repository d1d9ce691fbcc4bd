//! The `ServiceAccount` of the pods: an identity for the operator, and nothing at the API server.

use super::{Desired, Fleet, Group, Ownership};
use serde_json::json;

const GROUP: Group = Group { api_version: "v1", kind: "ServiceAccount", plural: "serviceaccounts" };

pub(super) fn service_account(fleet: Fleet<'_>) -> Desired {
    fleet.namespaced(GROUP, fleet.names().fleet, Ownership::Owned, &json!({"automountServiceAccountToken": false}))
}
