//! Single steps, and random histories of a small fleet.

#![allow(clippy::unwrap_used)]

use super::{Decision, Health, Observed, Outcome, Pod, Progress, Rules, Trouble, step};
use crate::haproxy::bundle::ResourceKey;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn rules() -> Rules {
    Rules { observation: at(8), patience: at(60) }
}

fn pod(name: &str, progress: Progress, since: u64) -> Pod {
    Pod {
        name: name.into(),
        zone: name[..1].into(),
        serves: true,
        served: true,
        progress,
        since: at(since),
        was_before: true,
        refused: BTreeSet::new(),
        health: None,
    }
}

/// Zones b and a, in this order, of two pods each; all wait.
fn fleet() -> Observed {
    let pods = ["a0", "a1", "b0", "b1"].map(|name| pod(name, Progress::Held, 0));
    Observed { rules: rules(), proven: false, zones: vec!["b".into(), "a".into()], pods: pods.to_vec() }
}

/// The fleet in which some pods are further.
fn with(further: &[(usize, Progress, u64)]) -> Observed {
    let mut fleet = fleet();
    for (number, progress, since) in further {
        (fleet.pods[*number].progress, fleet.pods[*number].since) = (*progress, at(*since));
    }
    fleet
}

fn released(fleet: &Observed, now: u64) -> Vec<String> {
    step(fleet, at(now)).release.iter().map(ToString::to_string).collect()
}

fn stopped(fleet: &Observed, now: u64) -> Option<Trouble> {
    let Decision { release, outcome, .. } = step(fleet, at(now));
    let Outcome::Stopped(trouble) = outcome else { return None };
    assert!(release.is_empty(), "{release:?}");
    Some(trouble)
}

use Progress::{Behind, Changed, Held, Let, Lost, New};

#[test]
fn one_pod_then_its_zone_then_the_next() {
    assert_eq!(released(&fleet(), 100), ["b0"]);
    let reloads = with(&[(2, Let, 100)]);
    assert_eq!((released(&reloads, 101), step(&reloads, at(101)).recheck_at), (vec![], Some(at(160))));
    let watched = with(&[(2, Changed, 101)]);
    assert_eq!((released(&watched, 108), step(&watched, at(108)).recheck_at), (vec![], Some(at(109))));
    assert_eq!(released(&watched, 109), ["b1"]);
    assert!(released(&with(&[(2, Changed, 101), (3, Changed, 110)]), 117).is_empty());
    assert_eq!(released(&with(&[(2, Changed, 101), (3, Changed, 110)]), 118), ["a0", "a1"]);
    let done = with(&[(0, Changed, 120), (1, Changed, 120), (2, Changed, 101), (3, Changed, 110)]);
    assert_eq!(step(&done, at(120)).outcome, Outcome::Done, "nobody is left to compare with");
}

#[test]
fn what_all_served_before_goes_everywhere_at_once() {
    let fleet = Observed { proven: true, ..with(&[(2, Let, 100)]) };
    assert_eq!(released(&fleet, 100), ["a0", "a1", "b1"]);
}

#[test]
fn who_serves_nothing_waits_for_nobody_and_is_no_evidence() {
    assert!(released(&with(&[(0, New, 0), (2, Let, 100)]), 100).is_empty(), "it may serve by now, and needs no leave");
    let all_new = with(&[(0, New, 0), (1, New, 0), (2, New, 0), (3, New, 0)]);
    assert_eq!(step(&all_new, at(0)).outcome, Outcome::Done);
    let mut fleet = with(&[(0, Changed, 0)]);
    fleet.pods[0].was_before = false;
    assert_eq!(released(&fleet, 100), ["b0"], "one that came with the change is no canary");
}

#[test]
fn a_pod_that_does_not_serve_is_no_canary_and_in_nobodys_way() {
    let mut fleet = fleet();
    fleet.pods[2].serves = false;
    assert_eq!(released(&fleet, 100), ["b1"]);
    fleet.pods[3].serves = false;
    assert_eq!(released(&fleet, 100), ["a0"]);
    (fleet.pods[2].progress, fleet.pods[2].since) = (Let, at(100));
    assert!(released(&fleet, 159).is_empty());
    assert_eq!(released(&fleet, 160), ["a0"], "it is another one's turn to be the first");
}

#[test]
fn one_that_is_silent_is_waited_for_and_then_not() {
    let first = with(&[(2, Behind, 100)]);
    assert!(released(&first, 107).is_empty(), "it may be its turn to be the first");
    assert_eq!(released(&first, 108), ["b1"]);
    let fleet = with(&[(0, Behind, 100), (2, Changed, 100)]);
    assert!(released(&fleet, 159).is_empty());
    assert_eq!(released(&fleet, 160), ["b1"]);
}

#[test]
fn a_refusal_of_the_first_pod_stops_it_unless_the_others_refuse_the_same() {
    let key = |name: &str| BTreeSet::from([ResourceKey::Backend(name.into())]);
    let mut fleet = with(&[(2, Changed, 100)]);
    fleet.pods[2].refused = key("bad");
    assert_eq!(stopped(&fleet, 101), Some(Trouble::Refused("b0".into(), key("bad"))));
    fleet.pods[0].refused = key("bad");
    assert_eq!(stopped(&fleet, 101), None, "it was refused before");
    fleet.pods[2].refused.extend(key("worse"));
    assert_eq!(stopped(&fleet, 101), Some(Trouble::Refused("b0".into(), key("worse"))));
}

#[test]
fn one_that_never_confirms_or_serves_no_more_stops_it() {
    assert_eq!(stopped(&with(&[(2, Let, 100)]), 159), None);
    assert_eq!(stopped(&with(&[(2, Let, 100)]), 160), Some(Trouble::Unconfirmed("b0".into())));
    let mut fleet = with(&[(2, Changed, 100)]);
    fleet.pods[2].serves = false;
    assert_eq!(stopped(&fleet, 107), None, "it may be one that clients are led back to");
    assert_eq!(stopped(&fleet, 108), Some(Trouble::Unready("b0".into())));
}

#[test]
fn one_that_did_not_serve_when_it_was_let_or_is_alone_in_not_confirming_is_no_trouble_of_the_change() {
    let mut fleet = with(&[(2, Changed, 100)]);
    (fleet.pods[2].serves, fleet.pods[2].served) = (false, false);
    assert_eq!(released(&fleet, 200), ["b1"]);
    fleet.pods[2].progress = Lost;
    assert_eq!(released(&fleet, 200), ["b1"], "another one is the first");
    let one_is_late = with(&[(2, Changed, 100), (3, Let, 110)]);
    assert!(released(&one_is_late, 169).is_empty());
    assert_eq!(released(&one_is_late, 170), ["a0", "a1"]);
    let said = Outcome::Spreads("zone a gets it, and not confirmed by b1".to_owned());
    assert_eq!(step(&one_is_late, at(170)).outcome, said);
    let proven = Observed { proven: true, ..with(&[(0, Let, 0), (1, Let, 0), (2, Let, 0), (3, Let, 0)]) };
    assert_eq!(stopped(&proven, 170), None, "all pods served it before");
}

#[test]
fn one_that_is_lost_with_the_change_is_waited_for_and_then_stops_it() {
    let lost = with(&[(2, Lost, 100)]);
    assert_eq!((released(&lost, 159), step(&lost, at(159)).recheck_at), (vec![], Some(at(160))));
    assert_eq!(stopped(&lost, 160), Some(Trouble::Unready("b0".into())));
    let everywhere = with(&[(0, Changed, 0), (1, Changed, 0), (2, Lost, 100), (3, Changed, 0)]);
    assert_eq!(step(&everywhere, at(160)).outcome, Outcome::Done, "nobody is left to be spared");
}

#[test]
fn pods_that_fare_worse_than_the_others_stop_it() {
    let mut fleet = with(&[(2, Changed, 100)]);
    for pod in &mut fleet.pods {
        pod.health = Some(Health { requests: 500, failed: 1, ..Health::default() });
    }
    assert_eq!(released(&fleet, 108), ["b1"]);
    fleet.pods[2].health = Some(Health { requests: 500, failed: 100, ..Health::default() });
    let said = "100 of 500 requests fail there, 3 of 1500 elsewhere";
    assert_eq!(stopped(&fleet, 102), Some(Trouble::Unhealthy(said.to_owned())));
    fleet.pods[2].health = None;
    assert_eq!(released(&fleet, 108), ["b1"], "an agent of before that says nothing of it");
}

/// What may happen to a pod.
#[derive(Clone, Debug)]
enum Event {
    /// Time passes.
    Wait(u64),
    /// A pod that was let ends its reload, and refuses something or not.
    Reloads(usize, bool),
    /// A pod is lost, or its agent.
    Lost(usize),
    /// It is there again, as it was.
    Back(usize),
    /// A pod begins or ends to serve.
    Serves(usize, bool),
    /// A new leader: since when is forgotten.
    Forget,
}

fn event() -> impl Strategy<Value = Event> {
    let pod = 0..6_usize;
    prop_oneof![
        4 => (1..30_u64).prop_map(Event::Wait),
        4 => (pod.clone(), prop::bool::weighted(0.05)).prop_map(|(pod, refuses)| Event::Reloads(pod, refuses)),
        1 => pod.clone().prop_map(Event::Lost),
        2 => pod.clone().prop_map(Event::Back),
        1 => (pod, any::<bool>()).prop_map(|(pod, serves)| Event::Serves(pod, serves)),
        1 => Just(Event::Forget),
    ]
}

/// Three zones of two pods, some of which are lost.
struct Model {
    pods: Vec<Pod>,
    lost: BTreeSet<usize>,
    now: u64,
    /// Zones with pods that were let, in the order in which they were.
    begun: Vec<Arc<str>>,
    is_stopped: bool,
}

impl Model {
    fn new() -> Self {
        let pods = ["a0", "a1", "b0", "b1", "c0", "c1"].map(|name| pod(name, Held, 0)).to_vec();
        Self { pods, lost: BTreeSet::new(), now: 0, begun: Vec::new(), is_stopped: false }
    }

    fn observed(&self) -> Observed {
        let pods = (0..self.pods.len()).filter(|number| !self.lost.contains(number)).map(|number| self.pods[number].clone());
        let zones = ["a", "b", "c"].map(Into::into).to_vec();
        Observed { rules: rules(), proven: false, zones, pods: pods.collect() }
    }

    fn apply(&mut self, event: &Event) {
        match event {
            Event::Wait(seconds) => self.now += seconds,
            Event::Reloads(number, refuses) if self.pods[*number].progress == Let && !self.lost.contains(number) => {
                let pod = &mut self.pods[*number];
                (pod.progress, pod.since) = (Changed, at(self.now));
                if *refuses {
                    pod.refused.insert(ResourceKey::Backend("bad".into()));
                }
            }
            Event::Reloads(..) => {}
            Event::Lost(number) => _ = self.lost.insert(*number),
            Event::Back(number) => _ = self.lost.remove(number),
            Event::Serves(number, serves) => self.pods[*number].serves = *serves,
            Event::Forget => self.pods.iter_mut().for_each(|pod| pod.since = at(self.now)),
        }
    }

    /// One step of the planner, and what must be true of it.
    fn step(&mut self) {
        let observed = self.observed();
        let Decision { release, outcome, .. } = step(&observed, at(self.now));
        let is_bad = observed.pods.iter().any(|pod| !pod.refused.is_empty());
        self.is_stopped = matches!(outcome, Outcome::Stopped(_));
        assert!(!self.is_stopped || release.is_empty());
        assert!(!is_bad || release.is_empty(), "it spreads what is refused");
        if release.is_empty() {
            return;
        }
        let zones: BTreeSet<Arc<str>> = release.iter().map(|name| name[..1].into()).collect();
        assert_eq!(zones.len(), 1, "more than one zone at once: {release:?}");
        let has: Vec<&Pod> = observed.pods.iter().filter(|pod| pod.progress == Changed).collect();
        if has.is_empty() {
            assert_eq!(release.len(), 1, "nobody has it, and several get it");
        }
        for pod in &observed.pods {
            // whoever is connected and serves has confirmed and was watched
            let is_open = pod.progress == Let && at(self.now).saturating_sub(pod.since) < rules().patience
                || pod.progress == Changed && at(self.now).saturating_sub(pod.since) < rules().observation;
            assert!(!is_open, "{} is not through and {release:?} follow", pod.name);
        }
        for name in release {
            let pod = self.pods.iter_mut().find(|pod| pod.name == name).unwrap();
            assert_eq!(pod.progress, Held);
            (pod.progress, pod.since, pod.served) = (Let, at(self.now), pod.serves);
            self.begun.push(pod.zone.clone());
        }
    }
}

proptest! {
    #[test]
    fn whatever_happens_it_spreads_zone_by_zone_and_ends(events in prop::collection::vec(event(), 0..80)) {
        let mut model = Model::new();
        for event in &events {
            model.apply(event);
            model.step();
        }
        // then nothing happens any more but that pods do what they may
        model.lost.clear();
        for pod in &mut model.pods {
            pod.serves = true;
        }
        for _ in 0..40 {
            for number in 0..model.pods.len() {
                model.apply(&Event::Reloads(number, false));
            }
            model.step();
            model.apply(&Event::Wait(8));
        }
        let mut counts: BTreeMap<Progress, usize> = BTreeMap::new();
        for pod in &model.pods {
            *counts.entry(pod.progress).or_default() += 1;
        }
        let refused = model.pods.iter().any(|pod| !pod.refused.is_empty());
        prop_assert!(counts.get(&Changed) == Some(&6) || refused && model.is_stopped, "{counts:?} {:?}", model.pods);
    }
}
