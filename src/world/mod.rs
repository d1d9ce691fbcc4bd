//! All source objects that matter, indexed, and who looked for what.
//!
//! A [`World`] is filled by `ingest`, one object at a time, and tells what each change answers: the
//! [`Reference`]s that somebody may have looked for, found or not. A [`ReverseIndex`] leads from those to
//! whoever did look. Objects are shared, so a copy of a world costs its indexes only.

mod object;
mod reference;

pub use object::Object;
pub use reference::{Changed, Reference, ReverseIndex};

use crate::api::{Backend, ConfigMap, EndpointSlice, Ingress, IngressClass, IngressDeployment, Namespace, Secret, Service};
use crate::report::{Kind, ObjectRef};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Objects of one kind by namespace and name.
type Objects<T> = BTreeMap<Arc<str>, BTreeMap<Arc<str>, Arc<T>>>;

/// All source objects that matter.
#[derive(Clone, Debug, Default)]
pub struct World {
    ingress_deployments: Objects<IngressDeployment>,
    backends: Objects<Backend>,
    ingresses: Objects<Ingress>,
    ingress_classes: Objects<IngressClass>,
    services: Objects<Service>,
    endpoint_slices: Objects<EndpointSlice>,
    secrets: Objects<Secret>,
    config_maps: Objects<ConfigMap>,
    namespaces: Objects<Namespace>,
    /// Endpoint slices by namespace, service and name.
    slices_of: BTreeMap<Arc<str>, Objects<EndpointSlice>>,
}

macro_rules! readers {
    ($($field:ident, $all:ident, $in_namespace:ident, $kind:ty;)*) => { $(
        #[doc = concat!("The `", stringify!($kind), "` `namespace/name`.")]
        pub fn $field(&self, namespace: &str, name: &str) -> Option<&Arc<$kind>> {
            self.$all.get(namespace)?.get(name)
        }

        #[doc = concat!("Every `", stringify!($kind), "`, by namespace and name.")]
        pub fn $all(&self) -> impl Iterator<Item = &Arc<$kind>> {
            self.$all.values().flat_map(BTreeMap::values)
        }

        #[doc = concat!("Every `", stringify!($kind), "` of one namespace, by name.")]
        pub fn $in_namespace(&self, namespace: &str) -> impl Iterator<Item = &Arc<$kind>> {
            self.$all.get(namespace).into_iter().flat_map(BTreeMap::values)
        }
    )* };
}

macro_rules! cluster_readers {
    ($($field:ident, $all:ident, $kind:ty;)*) => { $(
        #[doc = concat!("The `", stringify!($kind), "` of this name.")]
        pub fn $field(&self, name: &str) -> Option<&Arc<$kind>> {
            self.$all.get("")?.get(name)
        }

        #[doc = concat!("Every `", stringify!($kind), "`, by name.")]
        pub fn $all(&self) -> impl Iterator<Item = &Arc<$kind>> {
            self.$all.values().flat_map(BTreeMap::values)
        }
    )* };
}

impl World {
    readers! {
        ingress_deployment, ingress_deployments, ingress_deployments_in, IngressDeployment;
        backend, backends, backends_in, Backend;
        ingress, ingresses, ingresses_in, Ingress;
        service, services, services_in, Service;
        endpoint_slice, endpoint_slices, endpoint_slices_in, EndpointSlice;
        secret, secrets, secrets_in, Secret;
        config_map, config_maps, config_maps_in, ConfigMap;
    }

    cluster_readers! {
        ingress_class, ingress_classes, IngressClass;
        namespace, namespaces, Namespace;
    }

    /// The endpoint slices of the Service `namespace/service` (by their label), by name.
    pub fn endpoint_slices_of(&self, namespace: &str, service: &str) -> impl Iterator<Item = &Arc<EndpointSlice>> {
        self.slices_of.get(namespace).and_then(|services| services.get(service)).into_iter().flat_map(BTreeMap::values)
    }

    /// Puts `object` in the place of the one of the same kind and name. `None` if that is equal.
    pub fn set(&mut self, object: Object) -> Option<Changed> {
        let reference = object.reference();
        match object {
            Object::IngressDeployment(new) => put(&mut self.ingress_deployments, &reference, new)?,
            Object::Backend(new) => put(&mut self.backends, &reference, new)?,
            Object::Ingress(new) => put(&mut self.ingresses, &reference, new)?,
            Object::IngressClass(new) => put(&mut self.ingress_classes, &reference, new)?,
            Object::Service(new) => put(&mut self.services, &reference, new)?,
            Object::Secret(new) => put(&mut self.secrets, &reference, new)?,
            Object::ConfigMap(new) => put(&mut self.config_maps, &reference, new)?,
            Object::Namespace(new) => put(&mut self.namespaces, &reference, new)?,
            Object::EndpointSlice(new) => return self.set_slice(reference, new),
        }
        Some(Changed::of(reference, Vec::new()))
    }

    /// Removes the object that `reference` names. `None` if there is none.
    pub fn remove(&mut self, reference: &ObjectRef) -> Option<Changed> {
        match reference.kind {
            Kind::IngressDeployment => drop(take(&mut self.ingress_deployments, reference)?),
            Kind::Backend => drop(take(&mut self.backends, reference)?),
            Kind::Ingress => drop(take(&mut self.ingresses, reference)?),
            Kind::IngressClass => drop(take(&mut self.ingress_classes, reference)?),
            Kind::Service => drop(take(&mut self.services, reference)?),
            Kind::Secret => drop(take(&mut self.secrets, reference)?),
            Kind::ConfigMap => drop(take(&mut self.config_maps, reference)?),
            Kind::Namespace => drop(take(&mut self.namespaces, reference)?),
            Kind::EndpointSlice => {
                let old = take(&mut self.endpoint_slices, reference)?;
                self.forget_slice(&old);
                return Some(Changed::of(reference.clone(), vec![old.service.clone()]));
            }
            Kind::GatewayClass | Kind::Other(_) => return None,
        }
        Some(Changed::of(reference.clone(), Vec::new()))
    }

    fn set_slice(&mut self, reference: ObjectRef, new: Arc<EndpointSlice>) -> Option<Changed> {
        let old = self.endpoint_slice(&reference.namespace, &reference.name).cloned();
        put(&mut self.endpoint_slices, &reference, new.clone())?;
        let services = vec![old.as_ref().and_then(|old| old.service.clone()), new.service.clone()];
        if let Some(old) = old {
            self.forget_slice(&old);
        }
        if let Some(service) = &new.service {
            let slices = self.slices_of.entry(reference.namespace.clone()).or_default().entry(service.clone()).or_default();
            slices.insert(reference.name.clone(), new);
        }
        Some(Changed::of(reference, services))
    }

    fn forget_slice(&mut self, old: &EndpointSlice) {
        let Some(service) = &old.service else { return };
        let Some(services) = self.slices_of.get_mut(&old.meta.namespace) else { return };
        if let Some(slices) = services.get_mut(service) {
            slices.remove(&old.meta.name);
            if slices.is_empty() {
                services.remove(service);
            }
        }
        if services.is_empty() {
            self.slices_of.remove(&old.meta.namespace);
        }
    }

    /// The object that `reference` names.
    pub fn get(&self, reference: &ObjectRef) -> Option<Object> {
        let (namespace, name) = (&*reference.namespace, &*reference.name);
        match reference.kind {
            Kind::IngressDeployment => self.ingress_deployment(namespace, name).cloned().map(Object::IngressDeployment),
            Kind::Backend => self.backend(namespace, name).cloned().map(Object::Backend),
            Kind::Ingress => self.ingress(namespace, name).cloned().map(Object::Ingress),
            Kind::IngressClass => self.ingress_class(name).cloned().map(Object::IngressClass),
            Kind::Service => self.service(namespace, name).cloned().map(Object::Service),
            Kind::EndpointSlice => self.endpoint_slice(namespace, name).cloned().map(Object::EndpointSlice),
            Kind::Secret => self.secret(namespace, name).cloned().map(Object::Secret),
            Kind::ConfigMap => self.config_map(namespace, name).cloned().map(Object::ConfigMap),
            Kind::Namespace => self.namespace(name).cloned().map(Object::Namespace),
            Kind::GatewayClass | Kind::Other(_) => None,
        }
    }
}

/// Puts `new` in; `None` if an equal object is there (which stays, so that what others hold is still it).
fn put<T: PartialEq>(objects: &mut Objects<T>, reference: &ObjectRef, new: Arc<T>) -> Option<()> {
    if let Some(names) = objects.get_mut(&reference.namespace) {
        if let Some(old) = names.get_mut(&reference.name) {
            if Arc::ptr_eq(old, &new) || **old == *new {
                return None;
            }
            *old = new;
        } else {
            names.insert(reference.name.clone(), new);
        }
    } else {
        objects.insert(reference.namespace.clone(), BTreeMap::from([(reference.name.clone(), new)]));
    }
    Some(())
}

fn take<T>(objects: &mut Objects<T>, reference: &ObjectRef) -> Option<Arc<T>> {
    let names = objects.get_mut(&reference.namespace)?;
    let old = names.remove(&reference.name)?;
    if names.is_empty() {
        objects.remove(&reference.namespace);
    }
    Some(old)
}

#[cfg(test)]
mod tests;
