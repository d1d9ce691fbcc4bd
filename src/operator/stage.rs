//! The stage between watches and delivery: the world goes in, what every fleet is to serve comes out.
//!
//! Every replica runs it, so that a standby has everything when it is needed. The one that leads numbers what it
//! publishes and lets pods reload for it.

use super::history::History;
use super::numbers::Numbers;
use super::places;
use crate::api::backend::BackendUse;
use crate::delivery::feed::{Authority, Feeds, Published};
use crate::haproxy::bundle::{Change, Digest};
use crate::ingest::cluster::{Batch, SeenBackend};
use crate::model::FleetId;
use crate::pipeline::{FleetChange, Pipeline, Step};
use crate::report::{Diagnostic, Kind, ObjectRef};
use crate::status::backend::NAMED_USES;
use crate::status::ingress::{Ingresses, Point};
use crate::telemetry::{Metrics, OperatorMetrics, StepLabels};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Findings are gathered at most that often: they are many, and nobody needs them at once.
const TELL_INTERVAL: Duration = Duration::from_millis(500);

/// What the stage is told.
#[derive(Debug)]
pub(super) enum Input {
    /// The world changed.
    Batch(Batch),
    /// Who leads changed.
    Authority(Authority),
    /// These numbers may be used.
    Numbers(RangeInclusive<u64>),
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
}

/// The stage.
pub(super) struct Stage {
    pipeline: Pipeline,
    feeds: Feeds,
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
    translated: watch::Sender<Arc<Translated>>,
    state: Translated,
}

impl Stage {
    pub(super) fn new(
        pipeline: Pipeline,
        feeds: Feeds,
        ingresses: Arc<Mutex<Ingresses>>,
        metrics: Arc<Metrics>,
        times: OperatorMetrics,
    ) -> Self {
        Self {
            pipeline,
            feeds,
            ingresses,
            metrics,
            times,
            authority: Authority::default(),
            numbers: Numbers::default(),
            of_reading: Vec::new(),
            backends: BTreeMap::new(),
            backends_moved: false,
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
        let mut findings_due: Option<Instant> = None;
        loop {
            let due = findings_due;
            let input = tokio::select! {
                input = inputs.recv() => input,
                () = async { tokio::time::sleep_until(due.unwrap_or_else(Instant::now)).await }, if due.is_some() => {
                    findings_due = None;
                    self.gather_findings();
                    continue;
                }
            };
            let Some(input) = input else { return };
            match input {
                Input::Batch(batch) => {
                    self.take(batch);
                    findings_due.get_or_insert(Instant::now() + TELL_INTERVAL);
                }
                Input::Authority(authority) => self.obey(authority),
                Input::Numbers(block) => {
                    self.numbers.add(block);
                    self.number_all();
                }
            }
            self.tell();
        }
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
                    self.feeds.remove(&update.fleet);
                }
            }
        }
        self.place(&moved);
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

    fn publish(&mut self, fleet: &FleetId, changes: &[Change]) {
        let Some(bundle) = self.pipeline.bundle(fleet) else { return };
        let before = self.state.fleets.get(fleet);
        let class = self.pipeline.deployment(fleet).map(|deployment| deployment.spec.ingress_class_name.as_str().into());
        let mut view = FleetView {
            class: class.unwrap_or_default(),
            generation: before.map_or(0, |view| view.generation),
            digest: bundle.digest(),
            revision: before.map_or(Digest::default(), |view| view.revision),
            bytes: before.map_or(0, |view| view.bytes),
            since: before.map_or_else(Instant::now, |view| view.since),
            history: before.map(|view| view.history.clone()).unwrap_or_default(),
            findings: before.map(|view| view.findings.clone()).unwrap_or_default(),
        };
        for change in changes {
            view.follow(change);
        }
        if before.is_none_or(|before| before.digest != view.digest) {
            view.generation = if self.authority.leads { self.numbers.take().unwrap_or(0) } else { 0 };
            view.since = Instant::now();
            Arc::make_mut(&mut view.history).push(view.digest, view.since);
            self.feeds.publish(fleet, Published { generation: view.generation, changes, bundle });
            self.release(fleet, view.generation);
        }
        self.state.fleets.insert(fleet.clone(), view);
    }

    /// Lets all pods reload for what has this number.
    fn release(&self, fleet: &FleetId, generation: u64) {
        if generation > 0 {
            self.feeds.release(fleet, generation);
        }
    }

    fn obey(&mut self, authority: Authority) {
        self.authority = authority;
        self.numbers.clear();
        for view in self.state.fleets.values_mut() {
            view.generation = 0;
        }
        self.feeds.set_authority(authority);
    }

    /// Numbers what has none yet.
    fn number_all(&mut self) {
        let unnumbered: Vec<FleetId> =
            self.state.fleets.iter().filter(|(_, view)| view.generation == 0).map(|(fleet, _)| fleet.clone()).collect();
        for fleet in unnumbered {
            let (Some(generation), Some(bundle)) = (self.numbers.take(), self.pipeline.bundle(&fleet)) else { return };
            self.feeds.publish(&fleet, Published { generation, changes: &[], bundle });
            self.release(&fleet, generation);
            self.state.fleets.entry(fleet).and_modify(|view| view.generation = generation);
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
        all.sort();
        all.dedup();
        self.state.findings = Arc::new(all);
        for (fleet, view) in &mut self.state.fleets {
            view.findings = Arc::new(self.pipeline.fleet_diagnostics(fleet).into_iter().cloned().collect());
        }
        self.tell();
    }

    fn tell(&mut self) {
        self.state.numbers_low = self.authority.leads && self.numbers.is_low();
        self.translated.send_replace(Arc::new(self.state.clone()));
    }
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
