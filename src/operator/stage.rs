//! The stage between watches and delivery: the world goes in, what every fleet is to serve comes out.
//!
//! Every replica runs it, so that a standby has everything when it is needed. The one that leads numbers what it
//! publishes, and lets pods reload for it one after the other.

use super::history::History;
use super::numbers::Numbers;
use super::places;
use super::pods;
use super::serving::{Kept, News, Revisions, Serving, Timing};
use crate::api::IngressDeployment;
use crate::api::backend::BackendUse;
use crate::delivery::feed::{Agents, Authority, Feeds, Published};
use crate::fleet::controller::States;
use crate::haproxy::bundle::{Bundle, Change, Digest};
use crate::haproxy::revision::Record;
use crate::haproxy::version::{Capabilities, FLOOR, Version};
use crate::ingest::Delta;
use crate::ingest::cluster::{Batch, SeenBackend};
use crate::model::FleetId;
use crate::pipeline::{FleetChange, Pipeline, Step};
use crate::report::{Diagnostic, Kind, ObjectRef};
use crate::status::backend::NAMED_USES;
use crate::status::ingress::{Ingresses, Point};
use crate::telemetry::{Metrics, OperatorMetrics, StepLabels};
use crate::world::{Object, World};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Findings are gathered at most that often: they are many, and nobody needs them at once.
const TELL_INTERVAL: Duration = Duration::from_millis(500);
/// What agents say is looked at this long after it is said, and this often in any case.
const LOOK: Duration = Duration::from_millis(50);
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Says which revision a fleet is to go back to.
const ROLLBACK: &str = crate::api::ANNOTATION_ROLLBACK;

/// What the stage is told.
#[derive(Debug)]
pub(super) enum Input {
    /// The world changed.
    Batch(Batch),
    /// Who leads changed.
    Authority(Authority),
    /// These numbers may be used.
    Numbers(RangeInclusive<u64>),
    /// These revisions of a fleet can be gone back to; and why the present one cannot, if that is so.
    Revisions(FleetId, Revisions, Option<Box<Diagnostic>>),
    /// The revision that a fleet is to go back to, as it was asked for; or why it cannot be had.
    Record(FleetId, Arc<str>, Result<Box<Record>, Box<Diagnostic>>),
}

/// What a fleet is to serve.
#[derive(Clone, Debug)]
pub(super) struct FleetView {
    /// Its class.
    pub(super) class: Arc<str>,
    /// The number of its bundle; 0 while this replica does not lead.
    pub(super) generation: u64,
    pub(super) digest: Digest,
    /// What of it counts as a revision.
    pub(super) revision: Digest,
    /// About how many bytes its configuration takes.
    pub(super) bytes: usize,
    /// Since when it is to be served.
    pub(super) since: Instant,
    /// The bundles before it.
    pub(super) history: Arc<History>,
    /// Its findings, in order: a fleet tells those of nobody else.
    pub(super) findings: Arc<Vec<Diagnostic>>,
    /// The last revision that can be gone back to; 0 if there is none.
    pub(super) last_kept: u64,
    /// The number of what it serves, if that has one already.
    pub(super) known_as: Option<u64>,
    /// What is to be kept of the present revision, now that all pods have it.
    pub(super) keep: Option<Kept>,
    /// The revision that people went back to.
    pub(super) pinned: Option<u64>,
    /// Whether all pods have what it serves.
    pub(super) settled: bool,
}

/// A `Backend` of ours.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct BackendView {
    /// What it says of itself.
    pub(super) seen: SeenBackend,
    /// How many objects that fleets serve name it.
    pub(super) uses: usize,
    /// The first of them.
    pub(super) used_by: Vec<BackendUse>,
}

/// What became of the world.
#[derive(Clone, Debug, Default)]
pub(super) struct Translated {
    /// Whether all of the world was seen.
    pub(super) whole: bool,
    pub(super) fleets: BTreeMap<FleetId, FleetView>,
    /// All findings, in order.
    pub(super) findings: Arc<Vec<Diagnostic>>,
    /// All `Backend`s of ours.
    pub(super) backends: Arc<BTreeMap<ObjectRef, BackendView>>,
    /// More numbers are needed.
    pub(super) numbers_low: bool,
    /// Revisions that fleets are to go back to and that are not there yet.
    pub(super) rollbacks: BTreeMap<FleetId, Arc<str>>,
}

/// The stage.
pub(super) struct Stage {
    pipeline: Pipeline,
    feeds: Feeds,
    serving: Serving,
    states: watch::Receiver<Arc<States>>,
    started: Instant,
    ingresses: Arc<Mutex<Ingresses>>,
    metrics: Arc<Metrics>,
    times: OperatorMetrics,
    authority: Authority,
    numbers: Numbers,
    of_reading: Vec<Diagnostic>,
    /// What `Backend`s of ours say of themselves.
    backends: BTreeMap<ObjectRef, SeenBackend>,
    /// Whether that, or who uses them, may have changed since it was gathered.
    backends_moved: bool,
    findings_due: Option<Instant>,
    translated: watch::Sender<Arc<Translated>>,
    state: Translated,
}

impl Stage {
    /// `states` says where pods are.
    pub(super) fn new(
        pipeline: Pipeline,
        feeds: Feeds,
        states: watch::Receiver<Arc<States>>,
        ingresses: Arc<Mutex<Ingresses>>,
        metrics: Arc<Metrics>,
        times: OperatorMetrics,
    ) -> Self {
        Self {
            pipeline,
            serving: Serving::new(feeds.clone(), Timing::default()),
            feeds,
            states,
            started: Instant::now(),
            ingresses,
            metrics,
            times,
            authority: Authority::default(),
            numbers: Numbers::default(),
            of_reading: Vec::new(),
            backends: BTreeMap::new(),
            backends_moved: false,
            findings_due: None,
            translated: watch::Sender::default(),
            state: Translated::default(),
        }
    }

    /// What became of the world, always the latest.
    pub(super) fn translated(&self) -> watch::Receiver<Arc<Translated>> {
        self.translated.subscribe()
    }

    /// Takes in what it is told until nobody is left to tell it anything.
    pub(super) async fn run(mut self, mut inputs: mpsc::Receiver<Input>) {
        let mut agents = self.feeds.agents();
        let mut look_due = Instant::now() + LOOK_AGAIN;
        loop {
            let findings_due = self.findings_due;
            tokio::select! {
                input = inputs.recv() => match input {
                    Some(input) => self.hear(input),
                    None => return,
                },
                // it lives as long as the feeds
                _ = agents.changed() => {
                    look_due = look_due.min(Instant::now() + LOOK);
                    continue;
                }
                () = tokio::time::sleep_until(look_due) => {
                    look_due = Instant::now() + LOOK_AGAIN;
                    let said = agents.borrow_and_update().clone();
                    if !self.look(&said) {
                        continue;
                    }
                }
                () = async { tokio::time::sleep_until(findings_due.unwrap_or_else(Instant::now)).await }, if findings_due.is_some() => {
                    self.findings_due = None;
                    self.gather_findings();
                    continue;
                }
            }
            self.tell();
        }
    }

    fn hear(&mut self, input: Input) {
        match input {
            Input::Batch(batch) => {
                self.take(batch);
                self.have_findings();
            }
            Input::Authority(authority) => self.obey(authority),
            Input::Numbers(block) => {
                self.numbers.add(block);
                self.number_all();
            }
            Input::Revisions(fleet, revisions, unkept) => {
                self.serving.set_revisions(&fleet, revisions, unkept.map(|why| *why));
                self.have_findings();
                self.note_revisions(&fleet);
            }
            Input::Record(fleet, wanted, record) => self.go_back(&fleet, &wanted, record),
        }
    }

    fn have_findings(&mut self) {
        self.findings_due.get_or_insert(Instant::now() + TELL_INTERVAL);
    }

    /// Lets pods reload, and follows what became of those that did; whether there is something to tell.
    fn look(&mut self, agents: &Agents) -> bool {
        let states = self.states.borrow().clone();
        let pipeline = &self.pipeline;
        let places = |fleet: &FleetId| pods::places(&states, fleet);
        let news = self.serving.look(self.started.elapsed(), agents, &places, &|fleet| pipeline.bundle(fleet));
        let mut is_news = !news.is_empty();
        for news in news {
            self.have_findings();
            if let News::Serves(fleet, changes) = news {
                self.serve(&fleet, &changes);
            }
        }
        for (fleet, view) in &mut self.state.fleets {
            is_news |= view.settle(&self.serving, fleet);
            // what is settled is not put together again
            if view.keep.as_ref().is_some_and(|keep| keep.digest == view.revision) {
                continue;
            }
            view.keep = self.pipeline.bundle(fleet).and_then(|present| self.serving.to_keep(fleet, present));
            is_news |= view.keep.is_some();
        }
        is_news
    }

    /// Goes back to a revision, or says why not.
    fn go_back(&mut self, fleet: &FleetId, wanted: &str, record: Result<Box<Record>, Box<Diagnostic>>) {
        let Some(present) = self.pipeline.bundle(fleet) else { return };
        let changes = match record {
            Ok(record) => self.serving.go_back(fleet, wanted, *record, present),
            Err(why) => {
                self.serving.refuse(fleet, wanted, *why);
                // if it was withheld so far
                Some(Vec::new()).filter(|_| !self.state.fleets.contains_key(fleet))
            }
        };
        if let Some(changes) = changes {
            self.serve(fleet, &changes);
        }
        self.have_findings();
    }

    fn take(&mut self, batch: Batch) {
        let began = Instant::now();
        let Batch { delta, addresses, backends, findings, since } = batch;
        self.took("wait", began.saturating_duration_since(since));
        // what decides whose an Ingress is, beside itself
        let decides = |kind: &Kind| matches!(kind, Kind::IngressDeployment | Kind::IngressClass | Kind::Namespace);
        let fleets_moved =
            delta.set.iter().any(|object| decides(&object.kind())) || delta.removed.iter().any(|object| decides(&object.kind));
        if let Some(findings) = findings {
            self.of_reading = findings;
        }
        // what endpoints cost stays as it is
        let has_uses = |kind: &Kind| !matches!(kind, Kind::EndpointSlice | Kind::Namespace | Kind::Secret);
        self.backends_moved |= !backends.is_empty()
            || delta.set.iter().any(|object| has_uses(&object.kind()))
            || delta.removed.iter().any(|object| has_uses(&object.kind));
        self.hear_backends(backends);
        let moved = places::moved(&delta);
        let asked = self.hear_of_fleets(&delta.set);
        let touched: BTreeSet<ObjectRef> =
            if self.serving.has_quarantines() { touched(self.pipeline.world(), &delta) } else { BTreeSet::new() };
        let mut steps = Steps { last: Instant::now(), translate: Duration::ZERO, render: Duration::ZERO };
        let updates = self.pipeline.apply_observed(delta.set, &delta.removed, &mut |step| steps.ended(step));
        self.took("translate", steps.translate);
        self.took("render", steps.render);
        self.state.whole = true;
        let published = Instant::now();
        for update in updates {
            match update.change {
                FleetChange::Bundle(changes) => self.publish(&update.fleet, &changes),
                FleetChange::Removed => {
                    self.state.fleets.remove(&update.fleet);
                    self.serving.remove(&update.fleet);
                    self.feeds.remove(&update.fleet);
                }
            }
        }
        self.place(&moved);
        for gone in delta.removed.iter().filter(|object| object.kind == Kind::IngressDeployment) {
            self.serving.remove(&FleetId { namespace: gone.namespace.clone(), name: gone.name.clone() });
        }
        self.ask_for_revisions(asked);
        self.try_again(&touched);
        self.took("publish", published.elapsed());
        self.follow_ingresses(&delta.removed, addresses, fleets_moved);
        self.metrics.pipeline.observe(began.elapsed().as_secs_f64());
    }

    /// Tells the pods of fleets in these namespaces in which zone they are.
    fn place(&self, namespaces: &BTreeSet<Arc<str>>) {
        for fleet in self.pipeline.fleets().filter(|fleet| namespaces.contains(&fleet.namespace)) {
            self.feeds.place(fleet, places::zones(self.pipeline.world(), fleet));
        }
    }

    fn took(&self, step: &'static str, time: Duration) {
        self.times.steps.get_or_create(&StepLabels { step }).observe(time.as_secs_f64());
    }

    /// Takes in what fleets are, and returns which revisions they are asked to go back to.
    fn hear_of_fleets(&mut self, objects: &[Object]) -> Vec<(FleetId, Option<Arc<str>>)> {
        let mut asked = Vec::new();
        for object in objects {
            let Object::IngressDeployment(deployment) = object else { continue };
            let wanted = hear_of_fleet(&mut self.serving, deployment);
            asked.push((crate::pipeline::fleet_id(deployment), wanted));
        }
        asked
    }

    /// Ends what is not asked for any more, now that the present is known.
    fn ask_for_revisions(&mut self, asked: Vec<(FleetId, Option<Arc<str>>)>) {
        for (fleet, _) in asked.into_iter().filter(|(_, wanted)| wanted.is_none()) {
            let changes = self.serving.want(&fleet, None, self.pipeline.bundle(&fleet));
            let was_withheld = self.pipeline.bundle(&fleet).is_some() && !self.state.fleets.contains_key(&fleet);
            if let Some(changes) = changes.or(was_withheld.then(Vec::new)) {
                self.serve(&fleet, &changes);
            }
        }
    }

    /// Tries again what is in quarantine and comes from these objects, or is something else by now.
    fn try_again(&mut self, touched: &BTreeSet<ObjectRef>) {
        if !self.serving.has_quarantines() {
            return;
        }
        let fleets: Vec<FleetId> = self.state.fleets.keys().cloned().collect();
        for fleet in fleets {
            let Some(present) = self.pipeline.bundle(&fleet) else { continue };
            if let Some(changes) = self.serving.touched(&fleet, &|object| touched.contains(object), present) {
                self.serve(&fleet, &changes);
            }
        }
    }

    /// Publishes what follows from `changes` of what is asked for.
    fn publish(&mut self, fleet: &FleetId, changes: &[Change]) {
        let Some(present) = self.pipeline.bundle(fleet) else { return };
        if let Some(deployment) = self.pipeline.deployment(fleet).filter(|_| !self.state.fleets.contains_key(fleet)) {
            // it may have waited long for its class
            hear_of_fleet(&mut self.serving, deployment);
        }
        if let Some(changes) = self.serving.follow(fleet, changes, present) {
            self.serve(fleet, &changes);
        }
    }

    /// Publishes what is served, which `changes` lead to.
    fn serve(&mut self, fleet: &FleetId, changes: &[Change]) {
        let Some(present) = self.pipeline.bundle(fleet) else { return };
        let bundle = self.serving.bundle(fleet, present);
        let before = self.state.fleets.get(fleet);
        let all: Vec<Change>;
        let changes = if before.is_some() {
            changes
        } else {
            all = Bundle::default().diff(bundle);
            &all
        };
        let class = self.pipeline.deployment(fleet).map(|deployment| deployment.spec.ingress_class_name.as_str().into());
        let mut view =
            FleetView { class: class.unwrap_or_default(), digest: bundle.digest(), ..before.cloned().unwrap_or_else(FleetView::new) };
        for change in changes {
            view.follow(change);
        }
        if before.is_none_or(|before| before.digest != view.digest) {
            view.generation = if self.authority.leads { self.numbers.take().unwrap_or(0) } else { 0 };
            view.since = Instant::now();
            Arc::make_mut(&mut view.history).push(view.digest, view.since);
            self.feeds.publish(fleet, Published { generation: view.generation, changes, bundle });
            self.serving.published(fleet, view.generation, changes, view.digest, view.revision);
        }
        view.settle(&self.serving, fleet);
        self.state.fleets.insert(fleet.clone(), view);
        self.note_revisions(fleet);
    }

    /// Says which revisions of a fleet there are.
    fn note_revisions(&mut self, fleet: &FleetId) {
        let Some(view) = self.state.fleets.get_mut(fleet) else { return };
        let last = self.serving.revisions(fleet).and_then(|known| known.last_key_value().map(|(number, digest)| (*number, *digest)));
        view.last_kept = last.map_or(0, |(number, _)| number);
        view.known_as = self.serving.pinned(fleet).or(last.filter(|(_, digest)| *digest == view.revision).map(|(number, _)| number));
        if view.keep.as_ref().is_some_and(|keep| keep.digest != view.revision || view.known_as.is_some()) {
            view.keep = None;
        }
    }

    fn obey(&mut self, authority: Authority) {
        self.authority = authority;
        self.numbers.clear();
        for view in self.state.fleets.values_mut() {
            view.generation = 0;
        }
        let pipeline = &self.pipeline;
        let anew = self.serving.lead(authority.leads, self.started.elapsed(), &|fleet| pipeline.bundle(fleet));
        self.feeds.set_authority(authority);
        for (fleet, changes) in anew {
            self.serve(&fleet, &changes);
            self.have_findings();
        }
    }

    /// Numbers what has none yet.
    fn number_all(&mut self) {
        let unnumbered: Vec<FleetId> =
            self.state.fleets.iter().filter(|(_, view)| view.generation == 0).map(|(fleet, _)| fleet.clone()).collect();
        for fleet in unnumbered {
            let (Some(generation), Some(present)) = (self.numbers.take(), self.pipeline.bundle(&fleet)) else { return };
            let Some(view) = self.state.fleets.get_mut(&fleet) else { return };
            let bundle = self.serving.bundle(&fleet, present);
            self.feeds.publish(&fleet, Published { generation, changes: &[], bundle });
            view.generation = generation;
            self.serving.published(&fleet, generation, &[], view.digest, view.revision);
        }
    }

    fn follow_ingresses(&self, removed: &[ObjectRef], addresses: Vec<(ObjectRef, Box<[Box<str>]>)>, fleets_moved: bool) {
        let fleet_of = |ingress: &ObjectRef| {
            let ingress = self.pipeline.world().ingress(&ingress.namespace, &ingress.name)?;
            self.pipeline.fleet_of(ingress).map(object_of)
        };
        let mut ingresses = self.ingresses.lock().unwrap_or_else(PoisonError::into_inner);
        for ingress in removed.iter().filter(|object| object.kind == Kind::Ingress) {
            ingresses.forget(ingress);
        }
        for (ingress, says) in addresses {
            let fleet = fleet_of(&ingress);
            ingresses.observe(&ingress, fleet.as_ref(), says.iter().map(|text| Point::parse(text)).collect());
        }
        if fleets_moved {
            ingresses.assign(fleet_of);
        }
    }

    fn hear_backends(&mut self, backends: Vec<(ObjectRef, Option<SeenBackend>)>) {
        for (object, seen) in backends {
            match seen {
                Some(seen) => drop(self.backends.insert(object, seen)),
                None => drop(self.backends.remove(&object)),
            }
        }
    }

    /// Says of every `Backend` of ours who uses it. Along with the findings: a generation without them would say too much.
    fn gather_backends(&mut self) {
        if !std::mem::take(&mut self.backends_moved) {
            return;
        }
        let view = |(object, seen): (&ObjectRef, &SeenBackend)| {
            let (uses, first) = self.pipeline.uses_of_backend(&object.namespace, &object.name, NAMED_USES);
            let used_by = first.into_iter().map(|(user, overridden)| use_of(&user, &overridden)).collect();
            (object.clone(), BackendView { seen: seen.clone(), uses, used_by })
        };
        self.state.backends = Arc::new(self.backends.iter().map(view).collect());
    }

    fn gather_findings(&mut self) {
        self.gather_backends();
        let mut all: Vec<Diagnostic> = self.pipeline.diagnostics().into_iter().cloned().collect();
        all.extend(self.of_reading.iter().cloned());
        for (fleet, view) in &mut self.state.fleets {
            let of_serving = self.serving.findings(fleet);
            all.extend(of_serving.iter().cloned());
            let mut own: Vec<Diagnostic> = self.pipeline.fleet_diagnostics(fleet).into_iter().cloned().chain(of_serving).collect();
            own.sort();
            view.findings = Arc::new(own);
        }
        all.sort();
        all.dedup();
        self.state.findings = Arc::new(all);
        self.tell();
    }

    fn tell(&mut self) {
        self.state.rollbacks = self.serving.rollbacks();
        // one that has no class has nothing to go back from
        self.state.rollbacks.retain(|fleet, _| self.pipeline.bundle(fleet).is_some());
        self.state.numbers_low = self.authority.leads && self.numbers.is_low();
        self.translated.send_replace(Arc::new(self.state.clone()));
    }
}

/// Takes in what a fleet is, and returns which revision it is asked to go back to.
fn hear_of_fleet(serving: &mut Serving, deployment: &IngressDeployment) -> Option<Arc<str>> {
    let id = crate::pipeline::fleet_id(deployment);
    let zones = deployment.spec.zones.iter().map(|zone| zone.name.as_str().into()).collect();
    let line = deployment.spec.haproxy_version.as_str().parse::<Version>().unwrap_or(FLOOR);
    serving.know(&id, zones, Capabilities::of(line));
    let wanted: Option<Arc<str>> = deployment.meta.annotations.get(ROLLBACK).map(|text| text.trim().into());
    if wanted.is_some() {
        // nothing is served of a fleet that has yet to find out what
        serving.want(&id, wanted.clone(), None);
    }
    wanted
}

fn use_of(user: &ObjectRef, overridden: &[&str]) -> BackendUse {
    BackendUse {
        kind: user.kind.to_string(),
        namespace: user.namespace.to_string(),
        name: user.name.to_string(),
        overridden: overridden.iter().map(|field| (*field).to_owned()).collect(),
    }
}

/// How long the steps of one change took.
struct Steps {
    last: Instant,
    translate: Duration,
    render: Duration,
}

impl Steps {
    fn ended(&mut self, step: Step) {
        let now = Instant::now();
        let sum = match step {
            Step::Translate => &mut self.translate,
            Step::Render => &mut self.render,
        };
        *sum += now - self.last;
        self.last = now;
    }
}

impl FleetView {
    /// Nothing is served yet.
    pub(super) fn new() -> Self {
        Self {
            class: Arc::default(),
            generation: 0,
            digest: Digest::default(),
            revision: Digest::default(),
            bytes: 0,
            since: Instant::now(),
            history: Arc::default(),
            findings: Arc::default(),
            last_kept: 0,
            known_as: None,
            keep: None,
            pinned: None,
            settled: false,
        }
    }

    /// Takes in whether all pods have what is served, and which revision that is of; whether that is news.
    fn settle(&mut self, serving: &Serving, fleet: &FleetId) -> bool {
        let now = (serving.pinned(fleet), serving.is_settled(fleet));
        let before = (std::mem::replace(&mut self.pinned, now.0), std::mem::replace(&mut self.settled, now.1));
        before != now
    }

    fn follow(&mut self, change: &Change) {
        let is_revision = change.is_revision();
        if let Some(before) = &change.before {
            self.bytes = self.bytes.saturating_sub(before.bytes());
            if is_revision {
                self.revision.0 = self.revision.0.wrapping_sub(before.hash());
            }
        }
        if let Some(after) = &change.after {
            self.bytes += after.bytes();
            if is_revision {
                self.revision.0 = self.revision.0.wrapping_add(after.hash());
            }
        }
    }
}

/// The object that declares a fleet.
pub(super) fn object_of(fleet: &FleetId) -> ObjectRef {
    ObjectRef::new(Kind::IngressDeployment, fleet.namespace.clone(), fleet.name.clone())
}

/// What somebody changed. Of an object only its status may be new, which we write ourselves, often because of what became
/// of it.
fn touched(world: &World, delta: &Delta) -> BTreeSet<ObjectRef> {
    let is_other = |object: &&Object| world.get(&object.reference()).as_ref() != Some(*object);
    delta.set.iter().filter(is_other).map(Object::reference).chain(delta.removed.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Ingress, Meta};

    fn ingress(name: &str, annotation: Option<&str>) -> Object {
        let annotations = annotation.iter().map(|value| ("example.com/try", *value)).collect();
        let meta = Meta { annotations, ..Meta::named("shop", name) };
        Object::Ingress(Arc::new(Ingress { meta, class: None, default_backend: None, rules: [].into(), tls: [].into() }))
    }

    #[test]
    fn an_object_is_touched_by_whoever_changes_what_is_read_of_it_and_not_by_its_status() {
        let mut world = World::default();
        for name in ["same", "other", "gone"] {
            world.set(ingress(name, None));
        }
        let gone = ingress("gone", None).reference();
        let set = vec![ingress("same", None), ingress("other", Some("again")), ingress("new", None)];
        let named = |name: &str| ingress(name, None).reference();
        assert_eq!(touched(&world, &Delta { set, removed: vec![gone.clone()] }), BTreeSet::from([named("other"), named("new"), gone]));
    }
}
