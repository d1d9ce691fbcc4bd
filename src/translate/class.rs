//! Which Ingresses are a fleet's.

use super::lookups::Lookups;
use super::names;
use crate::api::{ANNOTATION_INGRESS_CLASS, CONTROLLER_PREFIX, Ingress};
use crate::report::{Diagnostic, Kind, ObjectRef, codes};

/// What a fleet's class is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Class {
    /// Its name.
    pub name: Box<str>,
    /// Whether it is ours: there is no `IngressClass` of another controller by that name.
    pub ours: bool,
    /// Whether Ingresses without a class belong to it.
    pub default: bool,
}

impl Class {
    /// Looks the class `name` of the fleet `fleet` up.
    pub(super) fn read(name: &str, fleet: &ObjectRef, look: &mut Lookups<'_>, diagnostics: &mut Vec<Diagnostic>) -> Self {
        look.note(Kind::IngressClass, &("".into(), name.into()));
        let Some(class) = look.world.ingress_class(name) else {
            return Self { name: name.into(), ours: true, default: false };
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
        Self { name: name.into(), ours, default: ours && class.is_default() }
    }

    /// Whether `ingress` is the fleet's.
    pub(super) fn takes(&self, ingress: &Ingress) -> bool {
        self.ours && ingress.class_name().map_or(self.default, |name| *name == *self.name)
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
