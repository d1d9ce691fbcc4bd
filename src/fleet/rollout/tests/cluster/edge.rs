//! What stands between planner and cluster: it observes, decides, and writes if nobody wrote before it. Every write is
//! judged.

use super::{Cluster, DEADLINE, Deployment, Member, State};
use crate::fleet::rollout::{Action, Change, Observed, Pod, PodState, Rules, Template, Zone, step};
use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// The other way round than in `observe`.
fn number(template: &Template) -> u8 {
    template.0[1..].parse().unwrap()
}

impl Cluster {
    pub(in super::super) fn time(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    pub(in super::super) fn planner_time(&self) -> Timestamp {
        Self::time(self.now + self.skew)
    }

    pub(in super::super) fn observe(&self) -> Observed {
        let template = |number: u8| Template(["t0", "t1", "t2", "t3", "t4"][usize::from(number)].into());
        let seconds = SignedDuration::from_secs;
        let pod = |zone: &Deployment, index: usize, pod: &Member| Pod {
            name: format!("{index}-{}", pod.id).into(),
            place: Some(["a", "b", "c"][usize::from(pod.place)].into()),
            template: Some(template(pod.template)),
            state: match pod.state {
                State::NotReady(since) => PodState::NotReady(Self::time(since)),
                State::Ready(since) => PodState::Ready(Self::time(since)),
                State::Ending(_) => PodState::Ending,
            },
            crashes_since: None,
            node_lost: zone.lost,
            confirmed: pod.confirmed,
            streams: pod.streams,
            cost: pod.cost,
            asked: pod.asked,
            drained: pod.drained,
        };
        let zone = |(index, zone): (usize, &Deployment)| Zone {
            name: self.name(index),
            template: template(zone.template),
            paused: zone.paused,
            turn: zone.turn,
            replicas: zone.replicas,
            wanted: (!self.settings.autoscaled).then_some(zone.wanted),
            min_ready: self.settings.least,
            max_unavailable: self.settings.unavailable,
            generation: 1,
            observed_generation: i64::from(zone.seen),
            reported: zone.reported,
            available: zone.available,
            completed: zone.completed.map(Self::time),
            overdue: false,
            pods: zone.pods.iter().map(|member| pod(zone, index, member)).collect(),
        };
        Observed {
            synced: true,
            desired: template(self.desired),
            stable: self.stable.map(template),
            aborted: self.aborted.map(template),
            frozen: self.frozen,
            rollout_paused: self.paused,
            min_ready: self.min_ready(),
            budget: self.budget(),
            rules: Rules {
                min_ready: seconds(self.settings.min_ready),
                deadline: seconds(DEADLINE),
                between_zones: seconds(self.settings.between_zones),
                auto_abort: self.settings.auto_abort,
            },
            zones: self.zones.iter().enumerate().map(zone).collect(),
            missing: Vec::new(),
        }
    }

    pub(in super::super) fn look(&mut self, controller: usize) {
        self.pending[controller] = step(&self.observe(), self.planner_time()).action.map(|action| (action, true));
    }

    /// Whether something was written.
    pub(in super::super) fn act(&mut self, controller: usize) -> bool {
        let Some((action, true)) = self.pending[controller].take() else { return false };
        match &action {
            Action::Zone(name, change) => {
                let zone = (0..self.zones.len()).find(|zone| self.name(*zone) == *name).unwrap();
                self.judge(zone, change);
                self.change(zone, change);
                self.outdate_zone(zone);
                if matches!(change, Change::Scale(_)) && !self.is_trial {
                    let mut trial = Self { is_trial: true, ..self.clone() };
                    trial.sync(zone);
                    self.broken = self.broken.or(trial.broken);
                }
            }
            Action::DeletionCost(name, cost) => {
                let (zone, id) = name.split_once('-').unwrap();
                let pods = &mut self.zones[zone.parse::<usize>().unwrap()].pods;
                pods.iter_mut().filter(|pod| pod.id.to_string() == id).for_each(|pod| pod.cost = *cost);
            }
            Action::Settle(template) => self.edit(|cluster| cluster.stable = Some(number(template))),
            Action::Abort(template) => self.edit(|cluster| cluster.aborted = Some(number(template))),
        }
        true
    }

    fn change(&mut self, zone: usize, change: &Change) {
        let now = self.now;
        let zone = &mut self.zones[zone];
        let spec = (zone.template, zone.paused, zone.replicas);
        let is_named = |pod: &&mut Member, name: &str| name.ends_with(&format!("-{}", pod.id)) && pod.stays();
        match change {
            Change::TakeTurn => zone.turn = true,
            Change::EndTurn => zone.turn = false,
            Change::Template(template) => (zone.template, zone.paused) = (number(template), true),
            Change::Resume => zone.paused = false,
            Change::Pause => zone.paused = true,
            Change::Scale(replicas) => zone.replicas = *replicas,
            Change::Drain(name) => {
                for pod in zone.pods.iter_mut().filter(|pod| is_named(pod, name)) {
                    (pod.drained, pod.state) = (true, State::NotReady(now));
                }
            }
            Change::Undrain(name) => zone.pods.iter_mut().filter(|pod| is_named(pod, name)).for_each(|pod| pod.drained = false),
        }
        zone.seen &= spec == (zone.template, zone.paused, zone.replicas);
    }

    /// What a write to a zone may not do.
    fn judge(&mut self, zone: usize, change: &Change) {
        let deployment = &self.zones[zone];
        let is_prompt = self.settings.prompt;
        let target = self.target();
        let is_wanted = match change {
            Change::Template(template) => number(template) != deployment.template && target == Some(number(template)),
            _ => true,
        };
        let is_young = |pod: &Member| {
            let is_old = matches!(pod.state, State::Ready(since) if since + self.settings.min_ready <= self.now);
            pod.stays() && Some(pod.template) == target && !is_old
        };
        let is_first = *change == Change::Resume && !deployment.pods.iter().any(|pod| pod.stays() && Some(pod.template) == target);
        let is_new = is_prompt && is_first && target != self.stable;
        let is_early = is_new && self.zones.iter().any(|other| other.pods.iter().any(is_young));
        let replaces = matches!(change, Change::Template(_) | Change::Resume);
        let is_frozen = self.frozen && !matches!(change, Change::Pause | Change::EndTurn);
        let is_scaled = matches!(change, Change::Scale(_)) && self.settings.autoscaled;
        let is_repair = !self.is_whole(deployment);
        let opens = *change == Change::Resume;
        let is_second = is_prompt && opens && deployment.is_mixed() && !is_repair && !self.are_others_whole(zone);
        let is_paused = self.paused && replaces;
        let is_open = |(other, it): (usize, &Deployment)| other != zone && !it.paused && it.is_mixed();
        let is_out_of_turn = replaces && !deployment.turn || opens && self.zones.iter().enumerate().any(is_open);
        self.breaks(is_prompt && !is_wanted, "I9: a template that nobody wants");
        self.breaks(is_early, "I18: a further zone before new pods have been ready for long enough");
        self.breaks(is_second, "I2: a zone is changed while another one is not whole");
        self.breaks(is_prompt && (is_frozen || is_paused), "I29: a change while changes are stopped");
        self.breaks(is_scaled, "I19: replicas are the autoscaler's");
        self.breaks(is_out_of_turn, "I2: a change out of turn");
    }

    /// Pods of one kind are alike, and so are controllers: what differs in numbers only is one state.
    pub(in super::super) fn canonical(&mut self) {
        let now = self.now;
        for zone in &mut self.zones {
            for pod in &mut zone.pods {
                pod.state = match pod.state {
                    State::NotReady(_) => State::NotReady(now),
                    State::Ready(_) => State::Ready(now),
                    State::Ending(ours) => State::Ending(ours),
                };
                pod.id = 0;
            }
            zone.pods.sort();
            zone.pods.iter_mut().zip(0..).for_each(|(pod, id)| pod.id = id);
            zone.completed = zone.completed.map(|_| now);
        }
        self.pending.sort();
    }

    /// Whether there is nothing left to do.
    pub(in super::super) fn is_done(&self) -> bool {
        let is_done = |zone: &Deployment| {
            let is_rolled = Some(zone.template) == self.target() && !zone.is_mixed() && !zone.paused && !zone.turn;
            is_rolled && self.is_whole(zone) && (self.settings.autoscaled || zone.replicas == zone.wanted)
        };
        self.zones.iter().all(is_done) && self.stable == self.target()
    }
}
