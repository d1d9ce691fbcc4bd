//! What is watched.

use super::{Namespaces, Settings};
use crate::api;
use kube::core::{ApiResource, DynamicResourceScope, GroupVersionKind, ObjectMeta};
use serde::Deserialize;
use serde_json::Value;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// Secrets that no route can need, by type: releases of Helm alone can be most of what a cluster keeps in Secrets.
const USEFUL_SECRETS: &str = "type!=helm.sh/release.v1,type!=kubernetes.io/service-account-token,type!=bootstrap.kubernetes.io/token,\
    type!=kubernetes.io/dockercfg,type!=kubernetes.io/dockerconfigjson,type!=haproxy-fleet.dev/revision";

/// One kind of object that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Resource {
    IngressDeployments,
    Backends,
    /// The `Backend`s of HAProxy Technologies' controller, whose CRD need not exist.
    HaproxyOrgBackends,
    IngressClasses,
    /// Those of Gateway API, whose CRDs need not exist.
    GatewayClasses,
    Namespaces,
    Ingresses,
    Services,
    EndpointSlices,
    Secrets,
    ConfigMaps,
}

/// What is said about a namespace's worth of objects of one kind, or of all namespaces (`None`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Source {
    pub(super) resource: Resource,
    pub(super) namespace: Option<Arc<str>>,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (_, _, plural) = self.resource.names();
        match &self.namespace {
            Some(namespace) => write!(f, "{plural} of {namespace}"),
            None => f.write_str(plural),
        }
    }
}

impl Resource {
    /// What is watched from the start; Secrets and `ConfigMap`s follow where somebody may refer to them.
    pub(super) const FROM_THE_START: [Self; 9] = [
        Self::IngressDeployments,
        Self::Backends,
        Self::HaproxyOrgBackends,
        Self::IngressClasses,
        Self::GatewayClasses,
        Self::Namespaces,
        Self::Ingresses,
        Self::Services,
        Self::EndpointSlices,
    ];

    /// `apiVersion`, kind and plural.
    pub(super) fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::IngressDeployments => (api::API_VERSION, "IngressDeployment", "ingressdeployments"),
            Self::Backends => (api::API_VERSION, "Backend", "backends"),
            Self::HaproxyOrgBackends => (api::HAPROXY_ORG_API_VERSION, "Backend", "backends"),
            Self::IngressClasses => ("networking.k8s.io/v1", "IngressClass", "ingressclasses"),
            Self::GatewayClasses => (api::GATEWAY_API_VERSION, "GatewayClass", "gatewayclasses"),
            Self::Namespaces => ("v1", "Namespace", "namespaces"),
            Self::Ingresses => ("networking.k8s.io/v1", "Ingress", "ingresses"),
            Self::Services => ("v1", "Service", "services"),
            Self::EndpointSlices => ("discovery.k8s.io/v1", "EndpointSlice", "endpointslices"),
            Self::Secrets => ("v1", "Secret", "secrets"),
            Self::ConfigMaps => ("v1", "ConfigMap", "configmaps"),
        }
    }

    /// `PLURAL.GROUP`; the plural alone for the core group.
    pub(super) fn qualified(self) -> String {
        let (api_version, _, plural) = self.names();
        match api_version.split_once('/') {
            Some((group, _)) => format!("{plural}.{group}"),
            None => plural.to_owned(),
        }
    }

    /// As the client names it.
    pub(super) fn api_resource(self) -> ApiResource {
        let (api_version, kind, plural) = self.names();
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural)
    }

    /// Whether the cluster need not have it.
    pub(super) fn is_optional(self) -> bool {
        matches!(self, Self::HaproxyOrgBackends | Self::GatewayClasses)
    }

    /// Whether nothing that is served depends on it.
    pub(super) fn is_remark(self) -> bool {
        self == Self::GatewayClasses
    }

    /// What the server is to leave out, by field and by label.
    pub(super) fn selectors(self) -> (Option<&'static str>, Option<&'static str>) {
        match self {
            Self::Secrets => (Some(USEFUL_SECRETS), None),
            Self::EndpointSlices => (None, Some(api::LABEL_SERVICE_NAME)),
            _ => (None, None),
        }
    }

    fn is_cluster_scoped(self) -> bool {
        matches!(self, Self::IngressClasses | Self::GatewayClasses | Self::Namespaces)
    }

    /// One source for all namespaces, or one for each.
    pub(super) fn sources(self, settings: &Settings) -> Vec<Source> {
        let namespaces = if self == Self::IngressDeployments { &settings.fleets } else { &settings.namespaces };
        match namespaces {
            Namespaces::Only(names) if !self.is_cluster_scoped() => {
                names.iter().map(|name| Source { resource: self, namespace: Some(name.clone()) }).collect()
            }
            _ => vec![Source { resource: self, namespace: None }],
        }
    }
}

/// An object as the server sent it. Reading never fails, so that one odd object cannot end a watch; what is wrong
/// with it is found later.
#[derive(Clone, Debug)]
pub(super) struct Raw {
    pub(super) value: Value,
    meta: ObjectMeta,
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let text = |field: &str| value.get("metadata").and_then(|meta| meta.get(field)).and_then(Value::as_str).map(str::to_owned);
        let meta = ObjectMeta {
            name: text("name"),
            namespace: text("namespace"),
            resource_version: text("resourceVersion"),
            ..ObjectMeta::default()
        };
        Ok(Self { value, meta })
    }
}

impl kube::Resource for Raw {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        resource.kind.as_str().into()
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        resource.group.as_str().into()
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        resource.version.as_str().into()
    }

    fn api_version(resource: &ApiResource) -> Cow<'_, str> {
        resource.api_version.as_str().into()
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        resource.plural.as_str().into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.meta
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.meta
    }
}
