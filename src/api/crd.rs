//! Our kinds as the API server knows them.

pub use super::backend::BackendResource;
pub use super::ingress_deployment::IngressDeploymentResource;

use super::conditions::{READY, REASON_PENDING, RECONCILING};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSON, JSONSchemaProps, JSONSchemaPropsOrArray,
};
use kube::CustomResourceExt;
use serde_json::json;

/// The definitions of all our kinds, by name.
pub fn crds() -> Vec<CustomResourceDefinition> {
    [BackendResource::crd(), IngressDeploymentResource::crd()].into_iter().map(finished).collect()
}

/// A definition as YAML, as it stands in `crds/`.
pub fn to_yaml(definition: &CustomResourceDefinition) -> Result<String, serde_saphyr::SerializeError> {
    serde_saphyr::to_string(definition)
}

/// What the derive macros leave to be done.
fn finished(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut definition.spec.versions {
        let root = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut());
        let Some(properties) = root.and_then(|root| root.properties.as_mut()) else { continue };
        for part in properties.values_mut() {
            without_item_defaults(part, false);
        }
        if let Some(status) = properties.get_mut("status") {
            set_default(status);
        }
    }
    definition
}

/// Takes the defaults out of list items. Argo CD compares lists as a whole: an item that the API server completes never
/// equals the one in Git again.
fn without_item_defaults(schema: &mut JSONSchemaProps, in_item: bool) {
    if in_item {
        schema.default = None;
    }
    for property in schema.properties.iter_mut().flat_map(|properties| properties.values_mut()) {
        without_item_defaults(property, in_item);
    }
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => without_item_defaults(items, true),
        Some(JSONSchemaPropsOrArray::Schemas(all)) => all.iter_mut().for_each(|items| without_item_defaults(items, true)),
        None => {}
    }
}

/// Gives the status a default that says "not seen yet". Without it an object looks finished to kstatus (Flux, Argo CD
/// with its conventions) until the operator has written its first status: no `Ready` condition counts as done.
fn set_default(status: &mut JSONSchemaProps) {
    let condition = |kind: &str, is: &str| {
        json!({
            "type": kind, "status": is, "reason": REASON_PENDING, "message": "the operator has not seen it yet",
            "lastTransitionTime": "1970-01-01T00:00:00Z",
        })
    };
    status.default =
        Some(JSON(json!({"observedGeneration": -1, "conditions": [condition(READY, "Unknown"), condition(RECONCILING, "True")]})));
}
