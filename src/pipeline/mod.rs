//! World → models → bundles: the same composition in `local`, in the offline commands and in tests.
//!
//! Pure: objects go in, changes of bundles come out. What it costs follows the change: each stage is told
//! what the one before touched.

mod unserved;
mod unused;

use crate::api::{HaproxyLine, Ingress, IngressDeployment};
use crate::haproxy::bundle::{Bundle, Change};
use crate::haproxy::render::{self, Renderer};
use crate::haproxy::version::Capabilities;
use crate::model::{FleetId, Model, Touched};
use crate::report::{Diagnostic, Kind, ObjectRef, codes};
use crate::translate::{self, Translator};
use crate::world::{Changed, Object, World};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use unserved::Unserved;
use unused::Unused;

/// What the world outside says about the work: which HAProxy a fleet runs, what its pods may reach.
pub struct Options {
    /// What the HAProxy of a fleet that asks for this release line can do.
    pub capabilities: Box<dyn Fn(HaproxyLine) -> Capabilities + Send + Sync>,
    /// For translation.
    pub translate: translate::Options,
    /// For rendering.
    pub render: render::Options,
}

/// What a change of the world means for one fleet.
#[derive(Debug)]
pub struct FleetUpdate {
    /// Which.
    pub fleet: FleetId,
    /// What becomes of it.
    pub change: FleetChange,
}

/// A part of the work, for whoever wants to know what takes how long: nothing here has a clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Step {
    /// From the world to models.
    Translate,
    /// From models to bundles.
    Render,
}

/// What becomes of a fleet.
#[derive(Debug)]
pub enum FleetChange {
    /// It exists; these resources of its bundle differ from before (none, if only its own spec or its
    /// findings changed).
    Bundle(Vec<Change>),
    /// It is gone.
    Removed,
}

/// One fleet's part of the pipeline.
struct Fleet {
    line: HaproxyLine,
    translator: Translator,
    renderer: Renderer,
}

/// The pipeline.
pub struct Pipeline {
    options: Options,
    world: World,
    fleets: BTreeMap<FleetId, Fleet>,
    refused_fleets: Vec<Diagnostic>,
    unserved: Unserved,
    unused: Unused,
}

impl Pipeline {
    /// An empty world.
    pub fn new(options: Options) -> Self {
        Self {
            options,
            world: World::default(),
            fleets: BTreeMap::new(),
            refused_fleets: Vec::new(),
            unserved: Unserved::default(),
            unused: Unused::default(),
        }
    }

    /// All objects.
    pub fn world(&self) -> &World {
        &self.world
    }

    /// The fleets that are served.
    pub fn fleets(&self) -> impl Iterator<Item = &FleetId> {
        self.fleets.keys()
    }

    /// The `IngressDeployment` of a fleet that is served.
    pub fn deployment(&self, fleet: &FleetId) -> Option<&Arc<IngressDeployment>> {
        self.fleets.get(fleet)?;
        self.world.ingress_deployment(&fleet.namespace, &fleet.name)
    }

    /// The bundle of a fleet.
    pub fn bundle(&self, fleet: &FleetId) -> Option<&Bundle> {
        self.fleets.get(fleet).map(|fleet| fleet.renderer.bundle())
    }

    /// The model of a fleet.
    pub fn model(&self, fleet: &FleetId) -> Option<&Model> {
        self.fleets.get(fleet).map(|fleet| fleet.translator.model())
    }

    /// The fleet that serves an Ingress of the world.
    pub fn fleet_of(&self, ingress: &Ingress) -> Option<&FleetId> {
        self.unserved.fleet_of(&self.world, ingress)
    }

    /// How many objects that fleets serve name the `Backend` `namespace/name`, and the first `most` of them: fleets, then
    /// Ingresses, then Services, each with the fields that its annotations override.
    pub fn uses_of_backend(&self, namespace: &Arc<str>, name: &Arc<str>, most: usize) -> (usize, Vec<(ObjectRef, Vec<&'static str>)>) {
        // a Service may be served by several fleets; the order of kinds is that of scopes
        let users: BTreeSet<ObjectRef> =
            self.fleets.values().flat_map(|fleet| fleet.translator.users_of_backend(namespace, name)).collect();
        let count = users.len();
        let with_overridden = |user: ObjectRef| {
            let overridden = translate::overridden_fields(&self.world, &user, namespace, name);
            (user, overridden)
        };
        (count, users.into_iter().take(most).map(with_overridden).collect())
    }

    /// All findings, each once, in order.
    pub fn diagnostics(&self) -> BTreeSet<&Diagnostic> {
        let of_fleets = self.fleets.values().flat_map(|fleet| fleet.translator.diagnostics().chain(fleet.renderer.findings()));
        of_fleets.chain(&self.refused_fleets).chain(self.unserved.diagnostics()).chain(self.unused.diagnostics()).collect()
    }

    /// The findings of one fleet.
    pub fn fleet_diagnostics(&self, fleet: &FleetId) -> BTreeSet<&Diagnostic> {
        let fleets = self.fleets.get(fleet).into_iter();
        fleets.flat_map(|fleet| fleet.translator.diagnostics().chain(fleet.renderer.findings())).collect()
    }

    /// Takes in what changed outside, and says what that means for each fleet it touches.
    pub fn apply(&mut self, set: impl IntoIterator<Item = Object>, removed: &[ObjectRef]) -> Vec<FleetUpdate> {
        self.apply_observed(set, removed, &mut |_| {})
    }

    /// [`Pipeline::apply`], which calls `ended` at the end of each step: the time since the call before is that step's.
    pub fn apply_observed(
        &mut self,
        set: impl IntoIterator<Item = Object>,
        removed: &[ObjectRef],
        ended: &mut dyn FnMut(Step),
    ) -> Vec<FleetUpdate> {
        let mut news: Vec<Changed> = removed.iter().filter_map(|object| self.world.remove(object)).collect();
        news.extend(set.into_iter().filter_map(|object| self.world.set(object)));
        if news.is_empty() {
            return Vec::new();
        }
        let fleets_changed = news.iter().any(|change| change.object.kind == Kind::IngressDeployment);
        let mut updates = if fleets_changed { self.admit_fleets() } else { Vec::new() };
        for (id, fleet) in &mut self.fleets {
            let touched = fleet.translator.update(&self.world, &news);
            ended(Step::Translate);
            let mut changes = fleet.renderer.update(fleet.translator.model(), &touched);
            let own = news.iter().find(|change| is_fleet(&change.object, id));
            if own.is_some() {
                changes = fleet.follow_line(id, &self.world, &self.options, changes);
            }
            ended(Step::Render);
            if !changes.is_empty() || own.is_some() {
                updates.push(FleetUpdate { fleet: id.clone(), change: FleetChange::Bundle(changes) });
            }
        }
        self.unserved.update(&self.world, &news, fleets_changed);
        self.unused.update(&self.world, &self.fleets.values().map(|fleet| &fleet.translator), &news);
        ended(Step::Translate);
        updates
    }

    /// Starts and ends fleets after their `IngressDeployment`s. A younger one to which the older ones of its class
    /// leave nothing is told, and never touches what they serve.
    fn admit_fleets(&mut self) -> Vec<FleetUpdate> {
        let classes: BTreeSet<&str> = self.world.ingress_deployments().map(|fleet| fleet.spec.ingress_class_name.as_str()).collect();
        let mut admitted: BTreeMap<FleetId, HaproxyLine> = BTreeMap::new();
        self.refused_fleets.clear();
        for place in classes.into_iter().flat_map(|class| translate::places(&self.world, class)) {
            match place.taken_by {
                Some(owner) => self.refused_fleets.push(class_taken(place.fleet, owner)),
                None => {
                    admitted.insert(fleet_id(place.fleet), place.fleet.spec.haproxy_version);
                }
            }
        }
        let gone: Vec<FleetId> = self.fleets.keys().filter(|id| !admitted.contains_key(id)).cloned().collect();
        for id in &gone {
            self.fleets.remove(id);
        }
        for (id, line) in admitted {
            self.fleets.entry(id.clone()).or_insert_with(|| Fleet::new(&id, line, &self.options));
        }
        gone.into_iter().map(|fleet| FleetUpdate { fleet, change: FleetChange::Removed }).collect()
    }
}

impl Fleet {
    fn new(id: &FleetId, line: HaproxyLine, options: &Options) -> Self {
        Self {
            line,
            translator: Translator::new(id.clone(), options.translate.clone()),
            renderer: Renderer::with_options(id.clone(), (options.capabilities)(line), options.render.clone()),
        }
    }

    /// Renders everything anew where the fleet now runs another release line: `changes` are those that
    /// lead to the old one's bundle.
    fn follow_line(&mut self, id: &FleetId, world: &World, options: &Options, changes: Vec<Change>) -> Vec<Change> {
        let Some(deployment) = world.ingress_deployment(&id.namespace, &id.name) else { return changes };
        let line = deployment.spec.haproxy_version;
        if line == self.line {
            return changes;
        }
        let mut before = self.renderer.bundle().clone();
        let undo: Vec<Change> =
            changes.into_iter().map(|change| Change { key: change.key, before: change.after, after: change.before }).collect();
        before.apply(&undo);
        self.line = line;
        self.renderer = Renderer::with_options(id.clone(), (options.capabilities)(line), options.render.clone());
        let model = self.translator.model();
        self.renderer.update(model, &Touched::all(model));
        let now = self.renderer.bundle();
        let mut changes = before.diff(now);
        // What is the same and comes from other objects is a change, too: they are to blame from now on.
        changes.extend(now.resources().filter_map(|after| {
            let before = before.get(&after.key).filter(|before| before.hash() == after.hash() && before.sources != after.sources)?;
            Some(Change { key: after.key.clone(), before: Some(before.clone()), after: Some(after.clone()) })
        }));
        changes.sort_by(|a, b| a.key.cmp(&b.key));
        changes
    }
}

/// The fleet that an `IngressDeployment` declares.
pub fn fleet_id(deployment: &IngressDeployment) -> FleetId {
    FleetId { namespace: deployment.meta.namespace.clone(), name: deployment.meta.name.clone() }
}

fn is_fleet(object: &ObjectRef, fleet: &FleetId) -> bool {
    object.kind == Kind::IngressDeployment && object.namespace == fleet.namespace && object.name == fleet.name
}

fn class_taken(deployment: &IngressDeployment, owner: &IngressDeployment) -> Diagnostic {
    let object = ObjectRef::new(Kind::IngressDeployment, deployment.meta.namespace.clone(), deployment.meta.name.clone());
    Diagnostic::error(
        &object,
        "spec.ingressClassName",
        codes::CONFLICT,
        format!(
            "the class {:?} belongs to the older IngressDeployment {}, so this one serves nothing",
            deployment.spec.ingress_class_name,
            fleet_id(owner)
        ),
        "choose another class, delete one of the two, or let the older one serve a part by its namespaceSelector or routeSelector",
    )
}
