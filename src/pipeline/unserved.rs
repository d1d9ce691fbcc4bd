//! Which fleet takes an Ingress, and which Ingresses none does: the questions that no single fleet can answer.

use super::fleet_id;
use crate::api::{Ingress, Shard};
use crate::model::FleetId;
use crate::report::{Diagnostic, Kind, ObjectRef, codes};
use crate::translate;
use crate::world::{Changed, World};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A fleet and its part of a class.
#[derive(Debug)]
struct Member {
    fleet: FleetId,
    shard: Shard,
}

/// Findings about Ingresses that no fleet takes, kept up with the world.
#[derive(Debug, Default)]
pub(super) struct Unserved {
    /// Whose class each is, the oldest first.
    classes: BTreeMap<Box<str>, Vec<Member>>,
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
        let mut members = self.classes.get(class).filter(|_| ours)?.iter();
        members.find(|member| translate::takes(&member.shard, world, ingress)).map(|member| &member.fleet)
    }

    /// Looks at the Ingresses that may have changed their fleet.
    pub(super) fn update(&mut self, world: &World, changed: &[Changed], fleets_changed: bool) {
        let changed = || changed.iter().map(|change| &change.object);
        if fleets_changed || changed().any(|object| object.kind == Kind::IngressClass) {
            self.read_classes(world);
            self.findings.clear();
            for ingress in world.ingresses() {
                self.look_at(world, ingress);
            }
            return;
        }
        for namespace in changed().filter(|object| object.kind == Kind::Namespace) {
            for ingress in world.ingresses_in(&namespace.name) {
                self.look_at(world, ingress);
            }
        }
        for object in changed().filter(|object| object.kind == Kind::Ingress) {
            match world.ingress(&object.namespace, &object.name) {
                Some(ingress) => self.look_at(world, ingress),
                None => drop(self.findings.remove(object)),
            }
        }
    }

    fn read_classes(&mut self, world: &World) {
        let names: BTreeSet<&str> = world.ingress_deployments().map(|fleet| fleet.spec.ingress_class_name.as_str()).collect();
        let members = |class| {
            let places = translate::places(world, class).into_iter().filter(|place| place.taken_by.is_none());
            places.map(|place| Member { fleet: fleet_id(place.fleet), shard: place.shard }).collect()
        };
        self.classes = names.into_iter().map(|class| (class.into(), members(class))).collect();
        let is_default = |class: &str| world.ingress_class(class).is_some_and(|class| class.is_ours() && class.is_default());
        self.default_class = self.classes.keys().find(|class| is_default(class)).cloned();
    }

    fn look_at(&mut self, world: &World, ingress: &Arc<Ingress>) {
        let object = ObjectRef::new(Kind::Ingress, ingress.meta.namespace.clone(), ingress.meta.name.clone());
        let class = ingress.class_name().or(self.default_class.as_deref());
        match class.map(|class| (class, self.classes.get(class))) {
            Some((class, Some(members))) => {
                if members.iter().any(|member| translate::takes(&member.shard, world, ingress)) {
                    self.findings.remove(&object);
                    return;
                }
                let names: Vec<String> = members.iter().map(|member| member.fleet.to_string()).collect();
                let message =
                    format!("none of the fleets of the class {class:?} selects this Ingress or its namespace, so it is not served");
                let help =
                    format!("label it or its namespace as namespaceSelector and routeSelector of one of these ask: {}", names.join(", "));
                let finding = Diagnostic::warning(&object, "metadata.labels", codes::NOT_FOUND, message, help);
                self.findings.insert(object, finding);
            }
            Some((class, None)) => {
                let message = format!("no fleet has the class {class:?}, so this Ingress is left to others");
                self.left_to_others(object, message);
            }
            None => {
                let message = "it names no class and no fleet has the default class, so this Ingress is left to others".to_owned();
                self.left_to_others(object, message);
            }
        }
    }

    fn left_to_others(&mut self, object: ObjectRef, message: String) {
        let known: Vec<&str> = self.classes.keys().map(AsRef::as_ref).collect();
        let help = if known.is_empty() {
            "create an IngressDeployment with that class".to_owned()
        } else {
            format!("if a fleet is to serve it, set spec.ingressClassName to one of: {}", known.join(", "))
        };
        let finding = Diagnostic::info(&object, "spec.ingressClassName", codes::NOT_FOUND, message, help);
        self.findings.insert(object, finding);
    }
}
