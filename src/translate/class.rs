//! Which Ingresses are a fleet's.

use super::lookups::Lookups;
use super::{names, shards};
use crate::api::{ANNOTATION_INGRESS_CLASS, CONTROLLER_PREFIX, Ingress, Shard};
use crate::report::{Diagnostic, Kind, ObjectRef, codes};
use crate::world::{Reference, World};

/// What a fleet's class is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Class {
    /// Its name.
    pub name: Box<str>,
    /// Whether it is ours: there is no `IngressClass` of another controller by that name.
    pub ours: bool,
    /// Whether Ingresses without a class belong to it.
    pub default: bool,
    /// The fleet's part of it.
    pub shard: Shard,
    /// The parts that older fleets have.
    pub elders: Vec<Shard>,
}

impl Class {
    /// Looks the class `name` of the fleet `fleet` up.
    pub(super) fn read(name: &str, fleet: &ObjectRef, look: &mut Lookups<'_>, diagnostics: &mut Vec<Diagnostic>) -> Self {
        look.note(Kind::IngressClass, &("".into(), name.into()));
        look.references.insert(Reference::AllOf(Kind::IngressDeployment));
        let (shard, elders) = share(look.world, name, fleet);
        let Some(class) = look.world.ingress_class(name) else {
            return Self { name: name.into(), ours: true, default: false, shard, elders };
        };
        let ours = class.is_ours();
        if !ours {
            let controller = class.controller.as_deref().unwrap_or_default();
            diagnostics.push(Diagnostic::error(
                fleet,
                "spec.ingressClassName",
                codes::CONFLICT,
                format!("IngressClass {name} belongs to the controller {}, so the fleet serves no Ingress", names::quoted(controller)),
                format!("use another class, or give that IngressClass a controller that starts with {CONTROLLER_PREFIX}"),
            ));
        }
        Self { name: name.into(), ours, default: ours && class.is_default(), shard, elders }
    }

    /// Whether `ingress` is the fleet's.
    pub(super) fn takes(&self, world: &World, ingress: &Ingress) -> bool {
        let of_class = self.ours && ingress.class_name().map_or(self.default, |name| *name == *self.name);
        of_class && shards::takes(&self.shard, world, ingress) && !self.elders.iter().any(|elder| shards::takes(elder, world, ingress))
    }

    /// Whether it depends on labels of namespaces which Ingresses are the fleet's.
    pub(super) fn looks_at_namespaces(&self) -> bool {
        self.elders.iter().chain([&self.shard]).any(|shard| shard.namespaces.is_some())
    }

    /// Tells of an annotation that says something else than the field.
    pub(super) fn tell_difference(ingress: &Ingress, object: &ObjectRef, diagnostics: &mut Vec<Diagnostic>) {
        let annotation = ingress.meta.annotations.get(ANNOTATION_INGRESS_CLASS);
        if let (Some(annotation), Some(class)) = (annotation, ingress.class.as_deref())
            && annotation != class
        {
            diagnostics.push(Diagnostic::warning(
                object,
                super::annotations::field(ANNOTATION_INGRESS_CLASS),
                codes::CONFLICT,
                format!(
                    "the annotation says class {}, spec.ingressClassName says {}; the annotation counts",
                    names::quoted(annotation),
                    names::quoted(class)
                ),
                "remove the annotation; spec.ingressClassName replaces it",
            ));
        }
    }
}

/// What `fleet` has of the class `name`, and what older fleets have.
fn share(world: &World, name: &str, fleet: &ObjectRef) -> (Shard, Vec<Shard>) {
    let mut elders = Vec::new();
    for place in shards::places(world, name) {
        if place.fleet.meta.namespace == fleet.namespace && place.fleet.meta.name == fleet.name {
            return (place.shard, elders);
        }
        if place.taken_by.is_none() {
            elders.push(place.shard);
        }
    }
    (Shard::default(), elders)
}
