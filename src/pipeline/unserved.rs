//! Which fleet takes an Ingress, and which Ingresses none does: the questions that no single fleet can answer.

use super::fleet_id;
use crate::api::Ingress;
use crate::model::FleetId;
use crate::report::{Diagnostic, Kind, ObjectRef, codes};
use crate::world::{Changed, World};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Findings about Ingresses that no fleet takes, kept up with the world.
#[derive(Debug, Default)]
pub(super) struct Unserved {
    /// Whose class each is.
    classes: BTreeMap<Box<str>, FleetId>,
    /// The class of Ingresses that name none.
    default_class: Option<Box<str>>,
    findings: BTreeMap<ObjectRef, Diagnostic>,
}

impl Unserved {
    /// The findings, by object.
    pub(super) fn diagnostics(&self) -> impl Iterator<Item = &Diagnostic> {
        self.findings.values()
    }

    /// The fleet that serves `ingress`.
    pub(super) fn fleet_of(&self, world: &World, ingress: &Ingress) -> Option<&FleetId> {
        let class = ingress.class_name().or(self.default_class.as_deref())?;
        let ours = world.ingress_class(class).is_none_or(|class| class.is_ours());
        self.classes.get(class).filter(|_| ours)
    }

    /// Looks at the Ingresses that changed, or at all when the classes did.
    pub(super) fn update<'a>(
        &mut self,
        world: &World,
        fleets: impl Iterator<Item = &'a FleetId>,
        changed: &[Changed],
        fleets_changed: bool,
    ) {
        let classes_changed = changed.iter().any(|change| change.object.kind == Kind::IngressClass);
        if fleets_changed || classes_changed {
            self.read_classes(world, fleets);
            self.findings.clear();
            for ingress in world.ingresses() {
                self.look_at(ingress);
            }
            return;
        }
        for object in changed.iter().map(|change| &change.object).filter(|object| object.kind == Kind::Ingress) {
            self.findings.remove(object);
            if let Some(ingress) = world.ingress(&object.namespace, &object.name) {
                self.look_at(ingress);
            }
        }
    }

    fn read_classes<'a>(&mut self, world: &World, fleets: impl Iterator<Item = &'a FleetId>) {
        let deployments = fleets.filter_map(|fleet| world.ingress_deployment(&fleet.namespace, &fleet.name));
        self.classes = deployments.map(|deployment| (deployment.spec.ingress_class_name.as_str().into(), fleet_id(deployment))).collect();
        let is_default = |class: &str| world.ingress_class(class).is_some_and(|class| class.is_ours() && class.is_default());
        self.default_class = self.classes.keys().find(|class| is_default(class)).cloned();
    }

    fn look_at(&mut self, ingress: &Arc<Ingress>) {
        let message = match ingress.class_name() {
            Some(class) if self.classes.contains_key(class) => return,
            Some(class) => format!("no fleet has the class {class:?}, so this Ingress is left to others"),
            None if self.default_class.is_some() => return,
            None => "it names no class and no fleet has the default class, so this Ingress is left to others".to_owned(),
        };
        let known: Vec<&str> = self.classes.keys().map(AsRef::as_ref).collect();
        let help = if known.is_empty() {
            "create an IngressDeployment with that class".to_owned()
        } else {
            format!("if a fleet is to serve it, set spec.ingressClassName to one of: {}", known.join(", "))
        };
        let object = ObjectRef::new(Kind::Ingress, ingress.meta.namespace.clone(), ingress.meta.name.clone());
        let finding = Diagnostic::info(&object, "spec.ingressClassName", codes::NOT_FOUND, message, help);
        self.findings.insert(object, finding);
    }
}
