//! One source object of any kind.

use crate::api::{Backend, ConfigMap, EndpointSlice, Ingress, IngressClass, IngressDeployment, Meta, Namespace, Secret, Service};
use crate::report::{Kind, ObjectRef};
use std::sync::Arc;

/// One source object.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the kinds
pub enum Object {
    IngressDeployment(Arc<IngressDeployment>),
    Backend(Arc<Backend>),
    Ingress(Arc<Ingress>),
    IngressClass(Arc<IngressClass>),
    Service(Arc<Service>),
    EndpointSlice(Arc<EndpointSlice>),
    Secret(Arc<Secret>),
    ConfigMap(Arc<ConfigMap>),
    Namespace(Arc<Namespace>),
}

impl Object {
    /// Names it.
    pub fn reference(&self) -> ObjectRef {
        let meta = self.meta();
        ObjectRef { kind: self.kind(), namespace: meta.namespace.clone(), name: meta.name.clone() }
    }

    /// Its kind.
    pub fn kind(&self) -> Kind {
        match self {
            Self::IngressDeployment(_) => Kind::IngressDeployment,
            Self::Backend(_) => Kind::Backend,
            Self::Ingress(_) => Kind::Ingress,
            Self::IngressClass(_) => Kind::IngressClass,
            Self::Service(_) => Kind::Service,
            Self::EndpointSlice(_) => Kind::EndpointSlice,
            Self::Secret(_) => Kind::Secret,
            Self::ConfigMap(_) => Kind::ConfigMap,
            Self::Namespace(_) => Kind::Namespace,
        }
    }

    /// Who it is.
    pub fn meta(&self) -> &Meta {
        match self {
            Self::IngressDeployment(object) => &object.meta,
            Self::Backend(object) => &object.meta,
            Self::Ingress(object) => &object.meta,
            Self::IngressClass(object) => &object.meta,
            Self::Service(object) => &object.meta,
            Self::EndpointSlice(object) => &object.meta,
            Self::Secret(object) => &object.meta,
            Self::ConfigMap(object) => &object.meta,
            Self::Namespace(object) => &object.meta,
        }
    }
}

macro_rules! from {
    ($($kind:ident),*) => { $(
        impl From<$kind> for Object {
            fn from(object: $kind) -> Self {
                Self::$kind(Arc::new(object))
            }
        }
    )* };
}

from!(IngressDeployment, Backend, Ingress, IngressClass, Service, EndpointSlice, Secret, ConfigMap, Namespace);
