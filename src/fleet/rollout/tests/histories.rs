//! Histories at random: whatever happens in whatever order, the invariants hold, and when it is over the fleet gets where
//! it is to be. `PROPTEST_CASES` asks for more of them; a history that fails is printed, and so is the seed of all.

use super::cluster::{Cluster, Event, Settings, is_bad};
use crate::fleet::rollout::{Asked, Why, step};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::Write as _;

/// More writes in a row than any state of three zones needs.
const BUSY: usize = 60;

fn settings(prompt: bool) -> impl Strategy<Value = Settings> {
    let steps = prop_oneof![4 => Just((1, 0)), 1 => Just((2, 0)), 2 => Just((0, 1)), 1 => Just((1, 1))];
    let times = (prop_oneof![Just(0_i64), Just(30)], prop_oneof![Just(0_i64), Just(120)]);
    (1..=3_u8, steps, times, any::<bool>(), prop::bool::weighted(0.2), 0..=2_u32).prop_map(
        move |(zones, (surge, unavailable), (min_ready, between_zones), auto_abort, autoscaled, least)| Settings {
            zones,
            listed: zones > 1,
            surge,
            unavailable,
            min_ready,
            between_zones,
            auto_abort,
            autoscaled,
            least,
            prompt,
        },
    )
}

fn asked() -> impl Strategy<Value = Option<Asked>> {
    prop_oneof![2 => Just(None), 1 => Just(Some(Asked::Pod)), 1 => Just(Some(Asked::Zone)), 1 => Just(Some(Asked::Forced))]
}

fn event(zones: u8) -> impl Strategy<Value = Event> {
    let zone = move || 0..usize::from(zones);
    let pod = || 0..16_usize;
    let work = prop_oneof![
        12 => zone().prop_map(Event::Sync),
        8 => pod().prop_map(Event::Starts),
        8 => pod().prop_map(Event::Ends),
        3 => prop_oneof![Just(1_i64), Just(10), Just(31), Just(121), Just(601)].prop_map(Event::Tick),
        4 => (0..2_usize).prop_map(Event::Look),
        4 => (0..2_usize).prop_map(Event::Act),
    ];
    let trouble = prop_oneof![
        2 => pod().prop_map(Event::Fails),
        2 => pod().prop_map(Event::Deleted),
        2 => pod().prop_map(Event::Evict),
        1 => pod().prop_map(Event::Confirms),
        2 => (pod(), 0..3_u64).prop_map(|(pod, streams)| Event::Streams(pod, streams)),
        1 => zone().prop_map(Event::Lost),
        1 => zone().prop_map(Event::Found),
        1 => prop_oneof![Just(0_i64), Just(-100), Just(40), Just(3600)].prop_map(Event::Jump),
        1 => (0..2_usize).prop_map(Event::Crash),
    ];
    let people = prop_oneof![
        4 => (0..5_u8).prop_map(Event::Edit),
        1 => Just(Event::Abort),
        1 => Just(Event::Retry),
        1 => any::<bool>().prop_map(Event::PauseRollout),
        1 => any::<bool>().prop_map(Event::Freeze),
        3 => (zone(), 1..5_u32).prop_map(|(zone, size)| Event::Size(zone, size)),
        2 => (pod(), asked()).prop_map(|(pod, asked)| Event::Ask(pod, asked)),
    ];
    prop_oneof![14 => work, 3 => trouble, 1 => people]
}

/// A cluster in which a template is wanted, most often another one than there is, and what happens to it.
fn history(prompt: bool) -> impl Strategy<Value = (Settings, u32, u8, Vec<Event>)> {
    let events = |settings: Settings| {
        let template = prop_oneof![1 => Just(0_u8), 4 => Just(1), 1 => Just(2)];
        (Just(settings), 1..=4_u32, template, prop::collection::vec(event(settings.zones), 0..120))
    };
    settings(prompt).prop_flat_map(events)
}

fn start(settings: Settings, replicas: u32, template: u8) -> Cluster {
    let smallest = (settings.least + settings.unavailable).max(1);
    let mut cluster = Cluster::new(settings, replicas.max(smallest), 2);
    cluster.apply(&Event::Edit(template));
    cluster
}

/// Both controllers write in turn until there is nothing to write.
fn plan(cluster: &mut Cluster) -> Result<(), TestCaseError> {
    for round in 0..BUSY {
        cluster.look(round % 2);
        if !cluster.act(round % 2) {
            return Ok(());
        }
    }
    Err(TestCaseError::fail(format!("the planner writes without end: {:?}", step(&cluster.observe(), cluster.planner_time()))))
}

/// No more trouble, and a template that works.
fn calm(cluster: &mut Cluster) {
    // what was late has its chance now
    cluster.settings.auto_abort = false;
    (cluster.skew, cluster.aborted, cluster.frozen, cluster.paused) = (0, None, false, false);
    if is_bad(cluster.desired) {
        cluster.desired = 4;
    }
    cluster.pending.iter_mut().for_each(|pending| *pending = None);
    (0..cluster.zones.len()).for_each(|zone| cluster.find_zone(zone));
    for zone in &mut cluster.zones {
        zone.pods.iter_mut().for_each(super::cluster::Member::calm);
    }
}

/// Kubernetes and pods do what they do, until nothing is left to do.
fn finish(cluster: &mut Cluster) -> Result<(), TestCaseError> {
    calm(cluster);
    let pods: u32 = cluster.zones.iter().map(|zone| zone.replicas.max(zone.wanted)).sum();
    for round in 0..40 + 24 * pods {
        for zone in 0..cluster.zones.len() {
            cluster.apply(&Event::Sync(zone));
            plan(cluster)?;
        }
        // pods start sooner than others end
        for pod in (0..32).rev() {
            if round % 3 == 2 {
                cluster.apply(&Event::Ends(pod));
            }
            cluster.apply(&Event::Starts(pod));
        }
        cluster.apply(&Event::Tick(20));
        plan(cluster)?;
        prop_assert_eq!(cluster.broken, None);
        if cluster.is_done() {
            (0..cluster.zones.len()).for_each(|zone| cluster.sync(zone));
            let decision = step(&cluster.observe(), cluster.planner_time());
            prop_assert_eq!((decision.action, decision.reasons[0].why), (None, Why::AsAsked));
            return Ok(());
        }
    }
    Err(TestCaseError::fail(format!("it never gets there: {:?} {:#?}", step(&cluster.observe(), cluster.planner_time()), cluster.zones)))
}

/// The seed that `ROLLOUT_SEED` names, or another one for each run; it is printed, so that a run can be repeated.
fn runner() -> TestRunner {
    let given = std::env::var("ROLLOUT_SEED").ok().map(|text| text.parse().unwrap());
    let seed: u64 = given.unwrap_or_else(|| RandomState::new().build_hasher().finish());
    writeln!(std::io::stderr(), "ROLLOUT_SEED={seed}").unwrap();
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let usual = Config::default();
    let cases = if std::env::var_os("PROPTEST_CASES").is_some() { usual.cases } else { 200 };
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 20_000, ..usual };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &bytes))
}

#[test]
fn a_planner_that_keeps_up_breaks_no_invariant_and_ends_where_it_should() {
    let result = runner().run(&history(true), |(settings, replicas, template, events)| {
        let mut cluster = start(settings, replicas, template);
        for event in &events {
            cluster.apply(event);
            plan(&mut cluster)?;
            prop_assert_eq!(cluster.broken, None);
            for template in (0..5).filter(|template| is_bad(*template)) {
                let touched = cluster.zones.iter().filter(|zone| zone.pods.iter().any(|pod| pod.stays() && pod.template == template));
                prop_assert!(touched.count() < 2, "a template that never becomes ready is in two zones");
            }
        }
        finish(&mut cluster)
    });
    result.unwrap();
}

#[test]
fn two_controllers_that_decide_on_what_was_once_the_case_never_drain_two_zones() {
    let result = runner().run(&history(false), |(settings, replicas, template, events)| {
        let mut cluster = start(settings, replicas, template);
        for event in &events {
            cluster.apply(event);
            prop_assert_eq!(cluster.broken, None);
        }
        finish(&mut cluster)
    });
    result.unwrap();
}
