//! The planner, what it writes and what the replicas become of it, with replicas that start and end as time goes by.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::admin::{Order, RefusalKind};
use crate::api::{IngressDeployment, Meta};
use crate::fleet::rollout::{Decision, Why, advance};
use serde_json::{Value, json};

/// A fleet of replicas that are ready a second after they were made, and gone a second after they were taken.
struct Fleet {
    rollout: Rollout,
    wanted: Wanted,
    replicas: Vec<Seen>,
    made: usize,
    now: i64,
    decision: Option<Decision>,
    /// Replicas of this template never get ready.
    broken: Option<Template>,
    /// The fewest that were ready at a time since [`Fleet::change`], and the most that were there.
    extremes: (usize, usize),
}

fn wanted(spec: &Value) -> Wanted {
    let mut spec = spec.clone();
    spec["ingressClassName"] = json!("edge");
    spec["rollout"] = json!({"minReadySeconds": 3, "progressDeadlineSeconds": 20});
    let deployment = IngressDeployment { meta: Meta::named("infra", "edge"), spec: serde_json::from_value(spec).unwrap() };
    Wanted::of(&deployment, "3.4".into(), BTreeMap::new())
}

impl Fleet {
    async fn new(spec: &Value) -> Self {
        let mut fleet = Self {
            rollout: Rollout::default(),
            wanted: wanted(spec),
            replicas: Vec::new(),
            made: 0,
            now: 1000,
            decision: None,
            broken: None,
            extremes: (usize::MAX, 0),
        };
        fleet.settle().await;
        fleet
    }

    fn time(&self) -> Timestamp {
        Timestamp::from_second(self.now).unwrap()
    }

    fn change(&mut self, spec: &Value) {
        self.wanted = wanted(spec);
        self.extremes = (usize::MAX, 0);
    }

    /// All that is decided at one moment.
    async fn plan(&mut self) {
        loop {
            self.rollout.follow(&self.wanted, &self.replicas);
            let now = self.time();
            let turnovers = self.rollout.sync(&self.wanted, &self.replicas, now);
            for (zone, turnover) in &turnovers {
                for template in &turnover.make {
                    let (name, state) = (format!("r{:02}", self.made).into(), PodState::NotReady(now));
                    self.replicas.push(Seen { name, zone: zone.clone(), template: template.clone(), state, confirmed: true });
                    self.made += 1;
                }
                for seen in self.replicas.iter_mut().filter(|seen| turnover.take.contains(&seen.name)) {
                    seen.state = PodState::Ending;
                }
            }
            if !turnovers.is_empty() {
                continue;
            }
            let mut processes = Processes { rollout: &mut self.rollout, wanted: &self.wanted, replicas: &self.replicas };
            let Ok(decision) = advance(&mut processes, now).await;
            let acts = decision.action.is_some();
            self.decision = Some(decision);
            if !acts {
                return;
            }
        }
    }

    async fn tick(&mut self) {
        self.plan().await;
        self.now += 1;
        let now = self.time();
        self.replicas.retain(Seen::stays);
        for seen in &mut self.replicas {
            let reached = self.broken.as_ref() != Some(&seen.template) && !self.rollout.is_drained(&seen.name);
            seen.state = match (seen.state, reached) {
                (PodState::NotReady(_), true) => PodState::Ready(now),
                (PodState::Ready(_), false) => PodState::NotReady(now),
                (same, _) => same,
            };
        }
        let ready = self.replicas.iter().filter(|seen| serves(seen)).count();
        self.extremes = (self.extremes.0.min(ready), self.extremes.1.max(self.replicas.len()));
    }

    /// Long enough for everything that is to happen.
    async fn settle(&mut self) {
        for _ in 0..200 {
            self.tick().await;
        }
        self.plan().await;
    }

    fn why(&self) -> Why {
        self.decision.as_ref().unwrap().reasons[0].why
    }

    fn is_done(&self) -> bool {
        self.why() == Why::AsAsked && self.rollout.is_done(&self.wanted, &self.replicas)
    }

    fn order(&mut self, order: &Order) -> Result<String, (RefusalKind, String)> {
        let done = self.rollout.order("fleet infra/edge", order, &self.wanted, &self.replicas, &format!("at {}", self.now));
        done.map(|done| done.message).map_err(|refusal| (refusal.kind, refusal.error))
    }

    fn desired(&self) -> Template {
        self.rollout.desired(&self.wanted).name()
    }
}

fn zones() -> Value {
    json!([{"name": "a"}, {"name": "b"}])
}

#[tokio::test]
async fn every_change_of_the_template_replaces_all_and_never_fewer_are_ready() {
    let mut fleet = Fleet::new(&json!({"replicas": 4, "zones": zones()})).await;
    assert!(fleet.is_done() && fleet.replicas.len() == 4);
    for change in [json!({"threads": 2}), json!({"threads": 3})] {
        fleet.change(&json!({"replicas": 4, "zones": zones(), "tuning": change}));
        let before: BTreeSet<Arc<str>> = fleet.replicas.iter().map(|seen| seen.name.clone()).collect();
        fleet.settle().await;
        assert!(fleet.is_done(), "{:?}", fleet.decision);
        assert!(fleet.replicas.iter().all(|seen| !before.contains(&seen.name)));
        assert_eq!(fleet.extremes, (4, 5), "one more than wanted, and never fewer ready");
        assert_eq!(fleet.rollout.stable, Some(fleet.desired()));
    }
    assert_eq!(fleet.rollout.templates.len(), 1, "nothing is remembered of templates that are gone");
}

#[tokio::test]
async fn a_further_zone_begins_when_the_one_before_is_whole() {
    let mut fleet = Fleet::new(&json!({"replicas": 4, "zones": zones()})).await;
    fleet.change(&json!({"replicas": 4, "zones": zones(), "podLabels": {"a": "b"}}));
    let mut seen_mixed = 0;
    for _ in 0..200 {
        fleet.tick().await;
        let new = fleet.desired();
        let of = |zone: &str| fleet.replicas.iter().filter(|seen| seen.zone.as_deref() == Some(zone)).collect::<Vec<_>>();
        let mixed = |zone: &str| of(zone).iter().any(|seen| seen.template == new) && of(zone).iter().any(|seen| seen.template != new);
        seen_mixed += usize::from(mixed("a"));
        assert!(!(mixed("a") && of("b").iter().any(|seen| seen.template == new)), "{:?}", fleet.replicas);
    }
    assert!(fleet.is_done() && seen_mixed > 0);
}

#[tokio::test]
async fn sizes_change_and_zones_come_and_go_with_enough_left() {
    let mut fleet = Fleet::new(&json!({"replicas": 2})).await;
    for (spec, least) in [
        (json!({"replicas": 4}), 2),
        (json!({"replicas": 2}), 2),
        (json!({"replicas": 2, "zones": zones()}), 2),
        (json!({"replicas": 3, "zones": [{"name": "b"}]}), 2),
    ] {
        fleet.change(&spec);
        fleet.settle().await;
        assert!(fleet.is_done(), "{spec}: {:?} {:?}", fleet.decision, fleet.replicas);
        assert!(fleet.extremes.0 >= least, "{spec}: {:?}", fleet.extremes);
    }
    assert_eq!(fleet.rollout.zones.len(), 1);
    fleet.change(&json!({"replicas": 0}));
    fleet.settle().await;
    assert!(fleet.is_done() && fleet.replicas.is_empty(), "{:?}", fleet.decision);
}

#[tokio::test]
async fn what_never_gets_ready_stops_in_its_zone_and_an_abort_takes_it_back() {
    let mut fleet = Fleet::new(&json!({"replicas": 2, "zones": zones()})).await;
    let old = fleet.desired();
    assert!(fleet.order(&Order::Abort).unwrap_err().1.contains("there is no rollout of fleet infra/edge to abort"));
    fleet.change(&json!({"replicas": 2, "zones": zones(), "tuning": {"threads": 2}}));
    fleet.broken = Some(fleet.desired());
    fleet.settle().await;
    assert_eq!((fleet.why(), fleet.extremes), (Why::Stalled, (2, 3)));
    assert!(fleet.decision.as_ref().unwrap().reasons[0].text.contains("in zone a is not ready and its time is over"));
    assert_eq!(fleet.rollout.zones[1].template, old);

    assert!(fleet.order(&Order::Abort).unwrap().contains(&format!("replicas go back to {old}")));
    fleet.settle().await;
    assert_eq!((fleet.why(), fleet.extremes.0), (Why::Aborted, 2));
    assert!(fleet.replicas.len() == 2 && fleet.replicas.iter().all(|seen| seen.template == old));
    assert!(!fleet.rollout.is_done(&fleet.wanted, &fleet.replicas), "what is asked for is not there");

    fleet.broken = None;
    fleet.order(&Order::Restart).unwrap();
    fleet.settle().await;
    assert!(fleet.is_done(), "a restart is another try: {:?}", fleet.decision);
}

#[tokio::test]
async fn nothing_is_replaced_while_it_is_paused_and_sizes_follow() {
    let mut fleet = Fleet::new(&json!({"replicas": 2})).await;
    let old = fleet.desired();
    fleet.order(&Order::Pause).unwrap();
    fleet.change(&json!({"replicas": 3, "tuning": {"threads": 2}}));
    fleet.settle().await;
    assert_eq!(fleet.why(), Why::Paused);
    assert!(fleet.replicas.len() == 3 && fleet.replicas.iter().all(|seen| seen.template == old));
    fleet.order(&Order::Resume).unwrap();
    fleet.settle().await;
    assert!(fleet.is_done());

    fleet.change(&json!({"replicas": 5, "paused": true}));
    fleet.settle().await;
    assert_eq!((fleet.why(), fleet.replicas.len()), (Why::Frozen, 3));
}

#[tokio::test]
async fn the_last_ready_one_is_drained_by_force_only_and_all_are_given_back() {
    let mut fleet = Fleet::new(&json!({"replicas": 2, "zones": zones()})).await;
    let [a, b] = [0, 1].map(|index: usize| fleet.replicas[index].name.to_string());
    let drain = |name: &str, force| Order::Drain { target: Target::Pod(name.into()), force };
    fleet.order(&drain(&a, false)).unwrap();
    fleet.settle().await;
    assert!(fleet.rollout.is_drained(&a) && fleet.replicas.len() == 2, "it stays: {:?}", fleet.decision);
    let (kind, error) = fleet.order(&drain(&b, false)).unwrap_err();
    assert!(kind == RefusalKind::Conflict && error.contains("no other replica serves"), "{error}");
    let (kind, _) = fleet.order(&Order::Drain { target: Target::Zone("b".into()), force: false }).unwrap_err();
    assert_eq!(kind, RefusalKind::Conflict);
    fleet.order(&drain(&b, true)).unwrap();
    fleet.settle().await;
    assert!(fleet.rollout.is_drained(&b));
    for name in [&a, &b] {
        fleet.order(&Order::Undrain(Target::Pod(name.clone()))).unwrap();
    }
    fleet.settle().await;
    assert!(fleet.is_done() && fleet.replicas.iter().all(serves));
    assert_eq!(fleet.order(&drain("nobody", false)).unwrap_err().0, RefusalKind::NotFound);
    assert_eq!(fleet.order(&Order::Undrain(Target::Pod(a))).unwrap_err().0, RefusalKind::Conflict);
}

#[tokio::test]
async fn a_zone_is_drained_as_a_whole() {
    let mut fleet = Fleet::new(&json!({"replicas": 4, "zones": zones()})).await;
    let zone = Target::Zone("a".into());
    fleet.order(&Order::Drain { target: zone.clone(), force: false }).unwrap();
    fleet.settle().await;
    let ready: Vec<_> = fleet.replicas.iter().filter(|seen| serves(seen)).map(|seen| seen.zone.clone().unwrap()).collect();
    assert_eq!(ready, ["b".into(), "b".into()] as [Arc<str>; 2]);
    let one = fleet.replicas.iter().find(|seen| seen.zone.as_deref() == Some("a")).unwrap().name.to_string();
    let refused = fleet.order(&Order::Undrain(Target::Pod(one))).unwrap_err();
    assert_eq!(refused.0, RefusalKind::Conflict);
    fleet.order(&Order::Undrain(zone)).unwrap();
    fleet.settle().await;
    assert!(fleet.is_done() && fleet.replicas.iter().all(serves));
}

#[tokio::test]
async fn what_is_written_survives_a_restart_of_local() {
    let mut fleet = Fleet::new(&json!({"replicas": 2})).await;
    fleet.order(&Order::Pause).unwrap();
    let old = fleet.desired();
    fleet.change(&json!({"replicas": 2, "tuning": {"threads": 2}}));
    fleet.settle().await;
    fleet.rollout = serde_json::from_value(serde_json::to_value(&fleet.rollout).unwrap()).unwrap();
    fleet.settle().await;
    assert_eq!((fleet.why(), fleet.rollout.stable.clone()), (Why::Paused, Some(old)));
    assert!(fleet.order(&Order::Abort).is_ok());
}
