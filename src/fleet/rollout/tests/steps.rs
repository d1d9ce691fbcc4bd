//! Single steps: what is done, and what people are told.

use super::cluster::{Cluster, Event, Settings};
use crate::fleet::rollout::{Action, Asked, Change, Decision, Observed, Pod, PodState, Rules, Template, Why, Zone, step};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

const NOW: i64 = 10_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap()
}

fn template(name: &str) -> Template {
    Template(name.into())
}

fn pod(name: &str) -> Pod {
    Pod {
        name: name.into(),
        place: None,
        template: Some(template("old")),
        state: PodState::Ready(at(0)),
        crashes_since: None,
        node_lost: false,
        confirmed: true,
        streams: 0,
        cost: 0,
        asked: None,
        drained: false,
    }
}

fn zone(name: &str) -> Zone {
    Zone {
        name: Some(name.into()),
        template: template("old"),
        paused: false,
        turn: false,
        replicas: 3,
        wanted: Some(3),
        min_ready: 2,
        max_unavailable: 0,
        generation: 7,
        observed_generation: 7,
        reported: 3,
        available: 3,
        completed: Some(at(0)),
        overdue: false,
        pods: (0..3).map(|number| pod(&format!("{name}{number}"))).collect(),
    }
}

/// Two zones of three pods, as asked.
fn fleet() -> Observed {
    let seconds = SignedDuration::from_secs;
    Observed {
        synced: true,
        desired: template("old"),
        stable: Some(template("old")),
        aborted: None,
        frozen: false,
        rollout_paused: false,
        min_ready: 4,
        budget: 1,
        rules: Rules { min_ready: seconds(30), deadline: seconds(600), between_zones: seconds(0), auto_abort: false },
        zones: vec![zone("a"), zone("b")],
        missing: Vec::new(),
    }
}

/// The fleet while zone a gets a new template: it has the turn and one new pod.
fn rolling() -> Observed {
    let mut fleet = fleet();
    fleet.desired = template("new");
    let zone = &mut fleet.zones[0];
    (zone.template, zone.turn, zone.paused) = (template("new"), true, true);
    (zone.reported, zone.completed) = (4, None);
    zone.pods.push(Pod { template: Some(template("new")), state: PodState::NotReady(at(NOW - 60)), ..pod("a3") });
    fleet
}

fn decide(fleet: &Observed) -> Decision {
    step(fleet, at(NOW))
}

fn change(fleet: &Observed) -> Option<Change> {
    match decide(fleet).action {
        Some(Action::Zone(_, change)) => Some(change),
        Some(other) => panic!("{other:?}"),
        None => None,
    }
}

fn reason(fleet: &Observed) -> (Why, String) {
    let decision = decide(fleet);
    assert_eq!(decision.action, None);
    let reason = decision.reasons[0].clone();
    (reason.why, reason.text)
}

fn waits(text: &str) -> (Why, String) {
    (Why::Waits, text.to_owned())
}

/// The writes by which a fleet of one zone gets another template, if pods start and end at once.
#[test]
fn a_rollout_is_written_step_by_step() {
    let settings = Settings {
        zones: 1,
        listed: false,
        surge: 1,
        unavailable: 0,
        min_ready: 0,
        between_zones: 0,
        auto_abort: false,
        autoscaled: false,
        least: 2,
        prompt: true,
    };
    let mut cluster = Cluster::new(settings, 2, 1);
    cluster.apply(&Event::Edit(1));
    let mut writes = Vec::new();
    for _ in 0..40 {
        cluster.look(0);
        match &cluster.pending[0] {
            Some((Action::Zone(_, change), _)) => writes.push(format!("{change:?}")),
            Some((other, _)) => writes.push(format!("{other:?}")),
            None => {
                (0..8).rev().for_each(|pod| [Event::Ends(pod), Event::Starts(pod)].iter().for_each(|event| cluster.apply(event)));
                cluster.apply(&Event::Sync(0));
            }
        }
        cluster.act(0);
    }
    let turns = ["TakeTurn", "Template(Template(\"t1\"))", "Resume", "Pause", "Resume", "Pause", "Resume"];
    let end = ["Settle(Template(\"t1\"))", "EndTurn"];
    assert_eq!(writes, [&turns[..], &end[..]].concat());
}

#[test]
fn a_fleet_as_asked_is_left_alone() {
    assert_eq!(reason(&fleet()), (Why::AsAsked, "all zones run the desired template".to_owned()));
}

#[test]
fn nothing_is_decided_on_what_may_be_old() {
    let lags: [fn(&mut Observed); 4] = [
        |fleet| fleet.synced = false,
        |fleet| fleet.zones[1].generation = 8,
        |fleet| fleet.zones[1].reported = 2,
        |fleet| fleet.zones[1].available = 2,
    ];
    for lag in lags {
        let mut fleet = fleet();
        fleet.desired = template("new");
        assert_eq!(change(&fleet), Some(Change::TakeTurn));
        lag(&mut fleet);
        assert_eq!(reason(&fleet).0, Why::Unsure);
    }
}

#[test]
fn a_rollout_waits_for_its_new_pod_and_says_for_which() {
    let mut fleet = rolling();
    assert_eq!(reason(&fleet), waits("pod a3 in zone a is not ready"));
    assert_eq!(decide(&fleet).recheck_at, Some(at(NOW - 60 + 600)));
    fleet.zones[0].pods[3].state = PodState::Ready(at(NOW - 10));
    assert_eq!(reason(&fleet), waits("pod a3 in zone a is not ready for long enough"));
    assert_eq!(decide(&fleet).recheck_at, Some(at(NOW - 10 + 30)));
    (fleet.zones[0].pods[3].state, fleet.zones[0].available) = (PodState::Ready(at(NOW - 30)), 4);
    fleet.zones[0].pods[3].confirmed = false;
    assert_eq!(reason(&fleet), waits("pod a3 in zone a has not confirmed its configuration"));
    fleet.zones[0].pods[3].confirmed = true;
    assert_eq!(change(&fleet), Some(Change::Resume));
}

#[test]
fn what_replaces_pods_is_paused_as_soon_as_it_may_not_go_on() {
    let stops: [fn(&mut Observed); 6] = [
        |_| {},
        |fleet| fleet.frozen = true,
        |fleet| fleet.rollout_paused = true,
        |fleet| fleet.aborted = Some(template("new")),
        |fleet| fleet.zones[0].turn = false,
        |fleet| fleet.zones[0].generation = 8,
    ];
    for stop in stops {
        let mut fleet = rolling();
        fleet.zones[0].paused = false;
        stop(&mut fleet);
        assert_eq!(change(&fleet), Some(Change::Pause));
    }
}

#[test]
fn nothing_begins_while_another_pod_is_on_its_way_out_unless_its_node_is_lost() {
    let mut fleet = fleet();
    fleet.desired = template("new");
    fleet.zones[1].pods.push(Pod { state: PodState::Ending, ..pod("b3") });
    assert_eq!(reason(&fleet), waits("pod b3 in zone b is on its way out"));
    fleet.zones[1].pods[3].node_lost = true;
    assert_eq!(change(&fleet), Some(Change::TakeTurn));
}

#[test]
fn a_zone_that_is_not_whole_goes_first_and_with_two_of_them_only_what_fails_is_replaced() {
    let mut fleet = fleet();
    fleet.desired = template("new");
    fleet.zones.push(zone("c"));
    let fails = |zone: &mut Zone| (zone.pods[0].state, zone.available) = (PodState::NotReady(at(0)), 2);
    fails(&mut fleet.zones[2]);
    assert_eq!(decide(&fleet).action, Some(Action::Zone(Some("c".into()), Change::TakeTurn)));
    fails(&mut fleet.zones[1]);
    assert_eq!(decide(&fleet).action, Some(Action::Zone(Some("b".into()), Change::TakeTurn)));
    fleet.zones.iter_mut().for_each(|zone| zone.max_unavailable = 2);
    assert_eq!(reason(&fleet), waits("zone a waits: pod b0 in zone b is not ready"));
}

#[test]
fn a_template_that_does_not_become_ready_stalls_and_is_given_up_where_that_is_asked() {
    let mut fleet = rolling();
    fleet.zones[0].pods[3].state = PodState::NotReady(at(NOW - 600));
    let stalled = (Why::Stalled, "pod a3 in zone a is not ready and its time is over".to_owned());
    assert_eq!(reason(&fleet), stalled);
    fleet.rules.auto_abort = true;
    assert_eq!(decide(&fleet).action, Some(Action::Abort(template("new"))));
    fleet.stable = None;
    assert_eq!(reason(&fleet), stalled);
    let late = fleet.clone();
    (fleet.zones[0].pods[3].drained, fleet.zones[0].pods[3].asked) = (true, Some(Asked::Pod));
    (fleet.stable, fleet.rules.auto_abort) = (Some(template("old")), true);
    assert_eq!(reason(&fleet), waits("pod a3 in zone a is drained by hand"), "whoever drains it does not give the template up");
    fleet = late;
    fleet.zones[0].pods[3].node_lost = true;
    assert_eq!(reason(&fleet), waits("pod a3 in zone a is not ready"));
}

#[test]
fn a_template_whose_pods_kubernetes_cannot_add_stalls_and_is_not_paused_for_it() {
    let mut fleet = rolling();
    let zone = &mut fleet.zones[0];
    zone.pods.pop();
    (zone.reported, zone.paused, zone.overdue) = (3, false, true);
    let stalled = "zone a: Kubernetes makes no progress; see the Events of its Deployment";
    assert_eq!(reason(&fleet), (Why::Stalled, stalled.to_owned()));
    fleet.rules.auto_abort = true;
    assert_eq!(decide(&fleet).action, Some(Action::Abort(template("new"))));
    // another template is another try
    fleet.desired = template("newer");
    fleet.zones[0].paused = true;
    assert_eq!(change(&fleet), Some(Change::Template(template("newer"))));
}

#[test]
fn a_template_that_is_given_up_goes_from_where_it_is() {
    let mut fleet = rolling();
    fleet.aborted = Some(template("new"));
    assert_eq!(change(&fleet), Some(Change::Template(template("old"))));
    fleet.stable = None;
    assert_eq!(reason(&fleet), (Why::Aborted, "the template was given up, and there is none to go back to".to_owned()));
    let mut done = super::steps::fleet();
    (done.desired, done.aborted) = (template("new"), Some(template("new")));
    assert_eq!(reason(&done).0, Why::Aborted);
}

#[test]
fn the_next_zone_begins_after_the_pause() {
    let mut fleet = fleet();
    (fleet.desired, fleet.rules.between_zones) = (template("new"), SignedDuration::from_secs(300));
    let first = &mut fleet.zones[0];
    (first.template, first.completed) = (template("new"), Some(at(NOW - 299)));
    first.pods.iter_mut().for_each(|pod| pod.template = Some(template("new")));
    assert_eq!(reason(&fleet), waits("zone b waits: the pause after zone a is not over"));
    assert_eq!(decide(&fleet).recheck_at, Some(at(NOW + 1)));
    fleet.zones[0].completed = Some(at(NOW - 300));
    assert_eq!(change(&fleet), Some(Change::TakeTurn));
}

#[test]
fn what_all_zones_run_is_remembered_before_the_next_rollout_begins() {
    let mut fleet = fleet();
    (fleet.desired, fleet.stable) = (template("new"), Some(template("older")));
    assert_eq!(decide(&fleet).action, Some(Action::Settle(template("old"))));
}

#[test]
fn a_template_that_is_given_up_while_its_last_pods_come_is_taken_back_all_the_same() {
    let mut fleet = fleet();
    (fleet.stable, fleet.aborted) = (Some(template("older")), Some(template("old")));
    assert_eq!(change(&fleet), Some(Change::TakeTurn));
    fleet.zones[0].turn = true;
    assert_eq!(change(&fleet), Some(Change::Template(template("older"))));
    fleet.stable = None;
    assert_eq!(decide(&fleet).action, Some(Action::Settle(template("old"))), "there is nothing to go back to");
}

#[test]
fn a_rollout_never_takes_more_than_min_ready_and_the_budget_leave() {
    let mut fleet = fleet();
    fleet.zones.remove(1);
    let zone = &mut fleet.zones[0];
    (fleet.desired, zone.template, zone.turn, zone.paused, zone.max_unavailable) = (template("new"), template("new"), true, true, 1);
    fleet.min_ready = 2;
    assert_eq!(change(&fleet), Some(Change::Resume));
    fleet.min_ready = 3;
    assert_eq!(reason(&fleet), waits("the fleet would have fewer than its minReady of 3 pods"));
    fleet.zones[0].min_ready = 3;
    assert_eq!(reason(&fleet), waits("zone a would have fewer than its minReady of 3 pods"));
    (fleet.min_ready, fleet.zones[0].min_ready, fleet.budget) = (0, 0, 0);
    assert_eq!(reason(&fleet), waits("the disruption budget is 0, and 1 would be missing"));
}

#[test]
fn pods_with_the_fewest_streams_go_first_and_from_the_place_that_has_most() {
    let mut fleet = fleet();
    fleet.zones.remove(1);
    (fleet.zones[0].wanted, fleet.zones[0].turn, fleet.min_ready) = (Some(2), true, 2);
    for (pod, (place, streams)) in fleet.zones[0].pods.iter_mut().zip([("x", 9), ("x", 5), ("y", 0)]) {
        (pod.place, pod.streams) = (Some(place.into()), streams);
    }
    assert_eq!(decide(&fleet).action, Some(Action::DeletionCost("a1".into(), -1)));
    // it stays the one that was chosen
    (fleet.zones[0].pods[1].cost, fleet.zones[0].pods[1].streams) = (-1, 50);
    assert_eq!(change(&fleet), Some(Change::Scale(2)));
    fleet.zones[0].pods[2].confirmed = false;
    assert_eq!(decide(&fleet).action, Some(Action::DeletionCost("a1".into(), 0)));
    fleet.zones[0].wanted = Some(3);
    assert_eq!(decide(&fleet).action, Some(Action::DeletionCost("a1".into(), 0)));
}

#[test]
fn a_zone_that_is_listed_no_more_is_scaled_to_nothing_if_the_rest_is_enough() {
    let mut fleet = fleet();
    (fleet.zones[1].wanted, fleet.zones[1].min_ready, fleet.zones[1].turn) = (Some(0), 0, true);
    fleet.zones[1].pods.iter_mut().for_each(|pod| pod.cost = -1);
    assert_eq!(reason(&fleet), waits("zone b is not scaled to 0: the fleet would have fewer than its minReady of 4 pods"));
    fleet.min_ready = 3;
    assert_eq!(change(&fleet), Some(Change::Scale(0)));
}

#[test]
fn a_drain_by_hand_takes_what_can_be_spared_unless_it_is_forced() {
    let mut fleet = fleet();
    fleet.zones[0].turn = true;
    fleet.zones[0].pods[0].asked = Some(Asked::Pod);
    assert_eq!(change(&fleet), Some(Change::Drain("a0".into())));
    fleet.min_ready = 6;
    let refused = "pod a0 in zone a is not drained: the fleet would have fewer than its minReady of 6 pods";
    assert_eq!(reason(&fleet), waits(refused));
    fleet.zones[0].pods[0].asked = Some(Asked::Forced);
    assert_eq!(change(&fleet), Some(Change::Drain("a0".into())));
    fleet.zones[0].pods[0].drained = true;
    assert_eq!(change(&fleet), Some(Change::EndTurn));
    fleet.zones[0].pods[0].asked = None;
    assert_eq!(change(&fleet), Some(Change::Undrain("a0".into())));
}

#[test]
fn a_zone_is_drained_by_hand_whatever_it_needs_itself() {
    let mut fleet = fleet();
    (fleet.zones[0].turn, fleet.min_ready) = (true, 3);
    fleet.zones[0].pods.iter_mut().for_each(|pod| pod.asked = Some(Asked::Zone));
    for name in ["a0", "a1", "a2"] {
        assert_eq!(change(&fleet), Some(Change::Drain(name.into())));
        let zone = &mut fleet.zones[0];
        let pod = zone.pods.iter_mut().find(|pod| *pod.name == *name).unwrap();
        (pod.drained, pod.state, zone.available) = (true, PodState::NotReady(at(NOW)), zone.available - 1);
    }
    fleet.zones[1].pods[0].asked = Some(Asked::Pod);
    fleet.zones[0].turn = false;
    assert_eq!(reason(&fleet), waits("pod b0 in zone b is not drained: pod a0 in zone a is drained by hand"));
    fleet.desired = template("new");
    assert_eq!(reason(&fleet), waits("pod a0 in zone a is drained by hand"));
}

#[test]
fn of_two_turns_the_later_one_is_given_back() {
    let mut fleet = rolling();
    fleet.zones[1].turn = true;
    assert_eq!(decide(&fleet).action, Some(Action::Zone(Some("b".into()), Change::EndTurn)));
}

#[test]
fn a_size_goes_before_a_rollout_that_waits() {
    let mut fleet = rolling();
    fleet.zones[1].wanted = Some(2);
    fleet.zones[1].pods[0].cost = -1;
    assert_eq!(decide(&fleet).action, Some(Action::Zone(Some("a".into()), Change::EndTurn)));
    fleet.zones[1].wanted = Some(4);
    fleet.zones[1].pods[0].cost = 0;
    assert_eq!(change(&fleet), Some(Change::Scale(4)));
}

#[test]
fn what_was_given_up_does_not_come_back_with_another_operator_but_an_upgrade_may() {
    let mut fleet = fleet();
    let mut is_aborted = |stable: &str, aborted: &str, desired: &str| {
        (fleet.stable, fleet.aborted, fleet.desired) = (Some(template(stable)), Some(template(aborted)), template(desired));
        fleet.is_aborted()
    };
    assert!(is_aborted("11111-a", "22222-a", "22222-a"));
    assert!(is_aborted("11111-a", "22222-a", "22222-b"), "the same spec, made by another operator");
    assert!(!is_aborted("11111-a", "22222-a", "33333-a"), "another spec");
    assert!(is_aborted("11111-a", "11111-b", "11111-b"), "an upgrade of the operator");
    assert!(!is_aborted("11111-a", "11111-b", "11111-c"), "and the next one");
    assert!(!is_aborted("22222-a", "22222-a", "22222-a"), "it ran");
}
