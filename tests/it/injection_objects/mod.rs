//! No text of an object adds or alters a directive, a map line or a command: whole objects, read as text, through
//! the whole pipeline, with hostile texts in any of their fields.
//!
//! `PROPTEST_CASES` scales the number of cases (a fifth of it), `INJECTION_SEED` repeats a run.

mod base;
mod commands;
mod lines;

use crate::hostile::PIECES;
use crate::running::{assert_accepted, free, pod, write_bundle};
use crate::seeds::{self, runner, seed};
use crate::support::haproxies;
use base::{HARMLESS, Place, Way, document, objects, places, put};
use haproxy_fleet::haproxy;
use haproxy_fleet::haproxy::bundle::{Bundle, Change, ResourceKey};
use haproxy_fleet::haproxy::plan::{Process, Target, plan};
use haproxy_fleet::haproxy::version::Capabilities;
use haproxy_fleet::ingest::files::{Files, Limits};
use haproxy_fleet::model::FleetId;
use haproxy_fleet::pipeline::{FleetChange, Options, Pipeline};
use haproxy_fleet::report::ObjectRef;
use haproxy_fleet::translate;
use haproxy_fleet::world::Object;
use lines::{Known, lines};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use serde_json::Value;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

const SEED: &str = "INJECTION_SEED";

/// Pieces that many fields take.
const PRINTABLE: [&str; 12] = ["a", "'", "\"", "\\", "#", "%[src]", "${HOME}", "{", "}", "'\\''", "<<%", "%"];

/// A text of these pieces, now and then a very long one.
fn texts() -> impl Strategy<Value = String> {
    let pieces = prop::collection::vec(prop::sample::select(PIECES), 0..6).prop_map(|pieces| pieces.concat());
    let long = (prop::sample::select(PIECES), 200..3000_usize).prop_map(|(piece, times)| piece.repeat(times / piece.len()));
    prop_oneof![40 => pieces, 1 => long]
}

/// Texts and their places (by number).
type Case = Vec<(prop::sample::Index, Way, String)>;

fn cases() -> impl Strategy<Value = Case> {
    let way = prop::sample::select(&[Way::Instead, Way::Before, Way::Inside, Way::After][..]);
    let number = prop_oneof![2 => Just(1), 1 => 2..5_usize];
    number.prop_flat_map(move |number| prop::collection::vec((any::<prop::sample::Index>(), way.clone(), texts()), number))
}

/// What a harmless twin of a case has in the place of a hostile text: some are taken and some are refused.
const TWINS: [(Way, &str); 9] = [
    (Way::Instead, HARMLESS),
    (Way::Instead, ""),
    (Way::Instead, "\n"),
    (Way::After, HARMLESS),
    (Way::Instead, "bnign.bnign"),
    (Way::Instead, "/bnign"),
    (Way::Instead, "https://bnign"),
    (Way::Before, HARMLESS),
    (Way::Inside, HARMLESS),
];

/// A pipeline with good objects, in the place of which each case puts some of its own: a case costs what it changes.
struct Bench {
    capabilities: Capabilities,
    objects: Vec<Value>,
    places: Vec<Place>,
    pipeline: Pipeline,
    /// As read from `objects`, and what becomes of them.
    good: BTreeMap<ObjectRef, Object>,
    bundles: BTreeMap<FleetId, Bundle>,
    /// What is in the place of good objects or beside them at present, and what may differ thereby.
    inside: BTreeSet<ObjectRef>,
    touched: BTreeMap<FleetId, BTreeSet<ResourceKey>>,
    /// Cases that changed the bundle of a fleet.
    effective: u32,
}

fn read(text: &str) -> Vec<Object> {
    let mut files = Files::new(vec!["-".into()], Limits::default());
    files.load_with(&mut text.as_bytes()).unwrap().set
}

impl Bench {
    fn new(capabilities: Capabilities) -> Self {
        let objects = objects();
        let places = places(&objects);
        let read = read(&objects.iter().map(document).collect::<String>());
        assert_eq!(read.len(), objects.len(), "all of them are good");
        let mut pipeline = Pipeline::new(Options {
            capabilities: Box::new(move |_| capabilities),
            translate: translate::Options::default(),
            render: haproxy::render::Options::default(),
        });
        pipeline.apply(read.clone(), &[]);
        let bundles = pipeline.fleets().map(|fleet| (fleet.clone(), pipeline.bundle(fleet).unwrap().clone())).collect();
        let good = read.into_iter().map(|object| (object.reference(), object)).collect();
        let (inside, touched) = (BTreeSet::new(), BTreeMap::new());
        Self { capabilities, objects, places, pipeline, good, bundles, inside, touched, effective: 0 }
    }

    /// The objects with these texts in them, as text.
    fn documents<'a>(&self, texts: impl IntoIterator<Item = (&'a Place, Way, &'a str)>) -> String {
        let mut changed: BTreeMap<usize, Value> = BTreeMap::new();
        for (place, way, text) in texts {
            put(changed.entry(place.object).or_insert_with(|| self.objects[place.object].clone()), place, way, text);
        }
        changed.values().map(document).collect()
    }

    /// What differs from the good bundles with the objects in `text` in the place of good ones, or beside them.
    fn put(&mut self, text: &str) -> Vec<(FleetId, Vec<Change>)> {
        let mut set = read(text);
        let inside: BTreeSet<ObjectRef> = set.iter().map(Object::reference).collect();
        let back = |object: &&ObjectRef| self.inside.contains(*object) && !inside.contains(*object);
        set.extend(self.good.iter().filter(|(object, _)| back(object)).map(|(_, object)| object.clone()));
        let gone: Vec<ObjectRef> =
            self.inside.iter().filter(|object| !inside.contains(object) && !self.good.contains_key(object)).cloned().collect();
        for update in self.pipeline.apply(set, &gone) {
            match update.change {
                FleetChange::Bundle(changes) => {
                    self.touched.entry(update.fleet).or_default().extend(changes.into_iter().map(|change| change.key));
                }
                FleetChange::Removed => _ = self.touched.remove(&update.fleet),
            }
        }
        self.inside = inside;
        let mut out = Vec::new();
        for (fleet, touched) in &mut self.touched {
            let (before, after) = (self.bundles.get(fleet), self.pipeline.bundle(fleet));
            let resource = |bundle: Option<&Bundle>, key: &ResourceKey| bundle.and_then(|bundle| bundle.get(key)).cloned();
            let change = |key: &ResourceKey| Change { key: key.clone(), before: resource(before, key), after: resource(after, key) };
            let differs = |change: &Change| change.before.as_ref().map(|r| r.hash()) != change.after.as_ref().map(|r| r.hash());
            let changes: Vec<Change> = touched.iter().map(change).filter(differs).collect();
            *touched = changes.iter().map(|change| change.key.clone()).collect();
            if !changes.is_empty() {
                out.push((fleet.clone(), changes));
            }
        }
        out
    }

    /// All is as it was once the hostile objects are gone.
    fn assert_good(&mut self) {
        self.put("");
        let digests = |bundles: &mut dyn Iterator<Item = (FleetId, &Bundle)>| -> Vec<_> {
            bundles.map(|(fleet, bundle)| (fleet, bundle.digest())).collect()
        };
        let now = digests(&mut self.pipeline.fleets().map(|fleet| (fleet.clone(), self.pipeline.bundle(fleet).unwrap())));
        assert_eq!(now, digests(&mut self.bundles.iter().map(|(fleet, bundle)| (fleet.clone(), bundle))));
    }

    /// Adds the lines that twins of a case with texts in `places` lead to: those where one text differs, or where
    /// all do.
    fn learn(&mut self, places: &[Place], all: bool, known: &mut Known) {
        let mut twins: Vec<String> = Vec::new();
        if all {
            for number in 0..4_usize.pow(u32::try_from(places.len()).unwrap()) {
                let twin = |index: usize| TWINS[number / 4_usize.pow(u32::try_from(index).unwrap()) % 4];
                twins.push(self.documents(places.iter().enumerate().map(|(index, place)| (place, twin(index).0, twin(index).1))));
            }
        } else {
            for place in places.iter().filter(|place| known.places.insert((place.object, place.pointer.clone(), place.key))) {
                twins.extend(TWINS.map(|(way, text)| self.documents([(place, way, text)])));
            }
        }
        for twin in twins {
            let changes: Vec<Change> = self.put(&twin).into_iter().flat_map(|(_, changes)| changes).collect();
            let resources = changes.iter().filter_map(|change| change.after.as_ref());
            resources.flat_map(|resource| lines(resource).unwrap()).for_each(|line| known.add(line));
        }
    }

    /// Looks at all that a case leads to.
    fn judge(&mut self, case: &Case, known: &mut Known) -> Result<(), String> {
        let places: Vec<Place> = case.iter().map(|(index, _, _)| index.get(&self.places).clone()).collect();
        let text = self.documents(places.iter().zip(case).map(|(place, (_, way, text))| (place, *way, text.as_str())));
        let told = |error: String| format!("{error}\nof {text}");
        let mut differing = self.put(&text);
        for all in [false, true] {
            if unknown(&differing, known).map_err(told)?.is_none() {
                break;
            }
            self.learn(&places, all, known);
            differing = self.put(&text);
        }
        if let Some(line) = unknown(&differing, known).map_err(told)? {
            return Err(told(format!("no harmless twin leads to this: {line}")));
        }
        self.effective += u32::from(!differing.is_empty());
        for (fleet, changes) in differing {
            let nothing = Bundle::default();
            let good = self.bundles.get(&fleet).unwrap_or(&nothing);
            let bad = self.pipeline.bundle(&fleet).unwrap_or(&nothing);
            self.judge_commands(&changes, good, bad).and_then(|()| self.judge_commands(&changes, bad, good)).map_err(told)?;
        }
        Ok(())
    }

    /// Looks at the commands that lead from one bundle to the other.
    fn judge_commands(&self, changes: &[Change], before: &Bundle, after: &Bundle) -> Result<(), String> {
        let keys = changes.iter().map(|change| change.key.clone()).collect();
        let target = Target { wanted: after, aside: &BTreeSet::new(), forced: &BTreeMap::new() };
        let plan = plan(before, &Process::loaded(before), target, &keys, &self.capabilities);
        plan.takes.iter().flat_map(|take| &take.steps).try_for_each(|step| commands::check(step, self.capabilities.max_payload))
    }
}

/// The first line that is not known; what is wrong with anything else.
fn unknown(differing: &[(FleetId, Vec<Change>)], known: &Known) -> Result<Option<String>, String> {
    let changes = differing.iter().flat_map(|(_, changes)| changes);
    for resource in changes.filter_map(|change| change.after.as_ref()) {
        if let Some(line) = lines(resource)?.into_iter().find(|line| !known.has(line)) {
            return Ok(Some(format!("{:?} has {line:?}", resource.key)));
        }
    }
    Ok(None)
}

#[test]
fn no_text_in_any_field_of_an_object_adds_a_directive_or_a_command() {
    let (wanted, seed) = (seeds::cases(), seed(SEED));
    // In two threads, one for each release line, each with half of the cases.
    std::thread::scope(|scope| {
        let halves = ["3.4", "3.2"].map(|line| scope.spawn(move || prove(line, seed, (wanted / 10).max(1))));
        for half in halves {
            if let Err(failure) = half.join().unwrap() {
                panic!("INJECTION_SEED={seed}: {failure}");
            }
        }
    });
}

fn prove(line: &str, seed: u64, wanted: u32) -> Result<(), String> {
    let mut bench = Bench::new(Capabilities::of(line.parse().unwrap()));
    let mut known = Known::default();
    bench.bundles.values().flat_map(Bundle::resources).flat_map(|resource| lines(resource).unwrap()).for_each(|line| known.add(line));
    let state = RefCell::new((&mut bench, known));
    let result = runner(seed ^ u64::from(line == "3.2"), wanted).run(&cases(), |case| {
        let (bench, known) = &mut *state.borrow_mut();
        bench.judge(&case, known).map_err(TestCaseError::fail)
    });
    result.map_err(|error| error.to_string())?;
    bench.assert_good();
    assert!(wanted < 1000 || bench.effective > wanted / 4, "only {} of {wanted} cases changed anything", bench.effective);
    Ok(())
}

#[test]
fn haproxy_accepts_a_sample_of_what_hostile_objects_lead_to() {
    let seed = seed(SEED);
    for (version, haproxy) in haproxies() {
        let mut bench = Bench::new(Capabilities::of(*version));
        let mut runner = runner(seed, 1);
        // Texts that many fields take, in places that do not decide whether a fleet serves the object at all.
        let counts = |place: &&Place| {
            let kind = bench.objects[place.object]["kind"].as_str().unwrap();
            let deciding = ["IngressDeployment", "IngressClass"].contains(&kind) || place.pointer.ends_with("/ingressClassName");
            !deciding && ["/spec", "/data", "/stringData", "/metadata/annotations"].iter().any(|at| place.pointer.starts_with(at))
        };
        let places: Vec<Place> = bench.places.iter().filter(counts).cloned().collect();
        let way = prop::sample::select(&[Way::Instead, Way::Before, Way::Inside, Way::After][..]);
        let pieces = prop::collection::vec(prop::sample::select(&PRINTABLE[..]), 1..4).prop_map(|pieces| pieces.concat());
        let strategy = prop::collection::vec((prop::sample::select(places), way, prop_oneof![4 => pieces, 1 => texts()]), 60);
        for _ in 0..20 {
            let mut case: Vec<(Place, Way, String)> = Vec::new();
            for (place, way, text) in strategy.new_tree(&mut runner).unwrap().current() {
                case.push((place, way, text));
                let object = case.last().unwrap().0.object;
                let same = case.iter().filter(|(place, ..)| place.object == object);
                // Without those for which an object is not read.
                if read(&bench.documents(same.map(|(place, way, text)| (place, *way, text.as_str())))).is_empty() {
                    case.pop();
                }
            }
            let text = bench.documents(case.iter().map(|(place, way, text)| (place, *way, text.as_str())));
            bench.put(&text);
            for fleet in bench.pipeline.fleets() {
                let directory = tempfile::tempdir().unwrap();
                let pod = pod(&[("http", free()), ("https", free())], free(), &directory.path().join("s"));
                write_bundle(bench.pipeline.bundle(fleet).unwrap(), directory.path(), &pod);
                assert_accepted(haproxy, directory.path(), &format!("INJECTION_SEED={seed}: {fleet} of {text}"));
            }
        }
    }
}
