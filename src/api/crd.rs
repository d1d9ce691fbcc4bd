//! Our kinds as the API server knows them.

pub use super::backend::BackendResource;
pub use super::ingress_deployment::IngressDeploymentResource;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

/// The definitions of all our kinds, by name.
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![BackendResource::crd(), IngressDeploymentResource::crd()]
}

/// A definition as YAML, as it stands in `crds/`.
pub fn to_yaml(definition: &CustomResourceDefinition) -> Result<String, serde_saphyr::SerializeError> {
    serde_saphyr::to_string(definition)
}
