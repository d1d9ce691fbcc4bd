//! The `Secret` with what the pods of a fleet share: keys of TLS session tickets, and the default certificate.

use super::{ANNOTATION_TICKETS_SINCE, Desired, Fleet, Group, Ownership};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

const GROUP: Group = Group { api_version: "v1", kind: "Secret", plural: "secrets" };

pub(super) fn secret(fleet: Fleet<'_>) -> Desired {
    let text = |bytes: &crate::report::PrivateBytes| STANDARD.encode(bytes.expose());
    let data = json!({"tickets": text(&fleet.context.ticket_keys), "default.pem": text(&fleet.context.default_certificate)});
    let mut rest = json!({"type": "Opaque", "data": data});
    if let Some(since) = &fleet.context.ticket_keys_since {
        rest["metadata"] = json!({"annotations": {ANNOTATION_TICKETS_SINCE: since}});
    }
    fleet.namespaced(GROUP, &fleet.names().keys(), Ownership::Owned, &rest)
}
