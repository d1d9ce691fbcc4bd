//! Every history of a small fleet, up to a bound: what controllers decide arrives late, in any order, or is outdated; pods
//! start and end, Kubernetes looks at its Deployments, pods fail and the spec changes at any time.

use super::cluster::{Cluster, Event, Settings, State};
use crate::fleet::rollout::step;
use stateright::{Checker, Model, Property};

#[derive(Clone)]
struct Bounds {
    settings: Settings,
    replicas: u32,
    controllers: usize,
    /// What people do and what befalls zones, in this order, each at any time.
    script: Vec<Event>,
    /// Pods that fail, and pods that are deleted, at any time.
    failures: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Seen {
    cluster: Cluster,
    done: usize,
    failures: usize,
}

impl Bounds {
    /// Three zones of three pods, two controllers.
    fn usual() -> Self {
        let settings = Settings {
            zones: 3,
            listed: true,
            surge: 1,
            unavailable: 0,
            min_ready: 0,
            between_zones: 0,
            auto_abort: false,
            autoscaled: false,
            least: 2,
            prompt: false,
        };
        Self { settings, replicas: 3, controllers: 2, script: vec![Event::Edit(1)], failures: 0 }
    }

    /// Whether nothing will ever happen again by itself.
    fn is_over(seen: &Seen) -> bool {
        let cluster = &seen.cluster;
        let is_still = |zone: usize| {
            let mut other = cluster.clone();
            other.sync(zone);
            other == *cluster
        };
        let rests = cluster.zones.iter().flat_map(|zone| &zone.pods).all(|pod| matches!(pod.state, State::Ready(_)));
        rests
            && cluster.pending.iter().all(Option::is_none)
            && step(&cluster.observe(), cluster.planner_time()).action.is_none()
            && (0..cluster.zones.len()).all(is_still)
    }
}

impl Model for Bounds {
    type State = Seen;
    type Action = Event;

    fn init_states(&self) -> Vec<Seen> {
        let mut cluster = Cluster::new(self.settings, self.replicas, self.controllers);
        cluster.canonical();
        vec![Seen { cluster, done: 0, failures: 0 }]
    }

    fn actions(&self, seen: &Seen, events: &mut Vec<Event>) {
        let cluster = &seen.cluster;
        for (controller, pending) in cluster.pending.iter().enumerate() {
            events.push(if pending.is_some() { Event::Act(controller) } else { Event::Look(controller) });
        }
        events.extend((0..cluster.zones.len()).map(Event::Sync));
        for (number, pod) in cluster.zones.iter().flat_map(|zone| &zone.pods).enumerate() {
            match pod.state {
                State::NotReady(_) => events.push(Event::Starts(number)),
                State::Ending(_) => events.push(Event::Ends(number)),
                State::Ready(_) if seen.failures < self.failures => events.extend([Event::Fails(number), Event::Deleted(number)]),
                State::Ready(_) => {}
            }
        }
        events.extend(self.script.get(seen.done).cloned());
    }

    fn next_state(&self, before: &Seen, event: Event) -> Option<Seen> {
        let mut seen = before.clone();
        seen.cluster.apply(&event);
        match event {
            Event::Fails(_) | Event::Deleted(_) => seen.failures += 1,
            _ => seen.done += usize::from(self.script.get(seen.done) == Some(&event)),
        }
        seen.cluster.canonical();
        (seen != *before).then_some(seen)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no invariant is broken", |_, seen: &Seen| seen.cluster.broken.is_none()),
            Property::always("what is over is done", |bounds: &Bounds, seen: &Seen| {
                seen.done < bounds.script.len() || !Bounds::is_over(seen) || seen.cluster.is_done()
            }),
            Property::eventually("the fleet gets its template", |bounds: &Bounds, seen: &Seen| {
                seen.done == bounds.script.len() && seen.cluster.is_done()
            }),
        ]
    }
}

/// The number of different states, all of which have the properties.
fn explore(script: &[Event], failures: usize, change: impl Fn(&mut Settings)) -> usize {
    let mut bounds = Bounds { script: script.to_vec(), failures, ..Bounds::usual() };
    change(&mut bounds.settings);
    let checker = bounds.checker().spawn_bfs().join();
    checker.assert_properties();
    checker.unique_state_count()
}

fn as_usual(_: &mut Settings) {}

/// Ports of nodes are not shared: an old pod goes first.
fn on_hosts(settings: &mut Settings) {
    (settings.surge, settings.unavailable) = (0, 1);
}

/// Zones may be small.
fn loosely(settings: &mut Settings) {
    settings.least = 1;
}

#[test]
fn a_rollout_reaches_all_zones_one_by_one_whatever_arrives_late() {
    assert_eq!(explore(&[Event::Edit(1)], 0, as_usual), 5_464);
    assert_eq!(explore(&[Event::Edit(1)], 0, on_hosts), 2_630);
}

#[test]
fn a_template_that_never_becomes_ready_is_corrected_or_given_up() {
    assert_eq!(explore(&[Event::Edit(2), Event::Edit(1)], 0, as_usual), 12_744);
    assert_eq!(explore(&[Event::Edit(2), Event::Abort], 0, as_usual), 254);
}

#[test]
fn zones_are_scaled_one_by_one() {
    let back_and_forth = [Event::Size(1, 2), Event::Size(0, 2), Event::Size(0, 3), Event::Size(0, 2)];
    assert_eq!(explore(&back_and_forth, 0, loosely), 9_419);
    assert_eq!(explore(&[Event::Size(1, 2), Event::Size(2, 1), Event::Size(0, 4)], 0, loosely), 1_827);
}

#[test]
#[ignore = "half a minute optimised: cargo test --release --lib -- --ignored fleet::rollout"]
fn a_rollout_ends_whatever_befalls_it() {
    let states = explore(&[Event::Edit(1)], 1, as_usual)
        + explore(&[Event::Edit(1)], 1, on_hosts)
        + explore(&[Event::Edit(1), Event::Lost(1), Event::Found(1)], 0, as_usual)
        + explore(&[Event::Edit(1), Event::Size(2, 1), Event::Size(0, 4)], 0, loosely)
        + explore(&[Event::Edit(1), Event::Abort], 0, as_usual)
        + explore(&[Event::Edit(1), Event::Edit(3)], 0, on_hosts);
    assert!(states > 700_000, "{states}");
}

#[test]
#[ignore = "half a minute optimised: cargo test --release --lib -- --ignored fleet::rollout"]
fn a_rollout_ends_when_the_spec_changes_its_mind_at_any_time() {
    let states = explore(&[Event::Edit(1), Event::Edit(3), Event::Edit(4)], 0, as_usual);
    assert!(states > 1_000_000, "{states}");
}
