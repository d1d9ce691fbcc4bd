//! A cluster in miniature: what Kubernetes does with the Deployments of a fleet, as far as a rollout meets it, and what
//! may never happen, by the numbers of the invariants.

mod edge;
mod kubernetes;

use crate::fleet::rollout::{Action, Asked};
use std::collections::BTreeMap;

/// What stays the same over a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools)] // each says what it is in Kubernetes
pub(super) struct Settings {
    pub(super) zones: u8,
    /// Whether zones are listed; else one Deployment is spread over three.
    pub(super) listed: bool,
    pub(super) surge: u32,
    pub(super) unavailable: u32,
    /// Seconds.
    pub(super) min_ready: i64,
    pub(super) between_zones: i64,
    pub(super) auto_abort: bool,
    pub(super) autoscaled: bool,
    /// What has to serve in a zone.
    pub(super) least: u32,
    /// Whether the planner acts before Kubernetes takes its next step. If not, it only knows what was once the case.
    pub(super) prompt: bool,
}

pub(super) const DEADLINE: i64 = 600;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Cluster {
    pub(super) settings: Settings,
    /// Seconds on the clock of Kubernetes, and how far the planner's is ahead.
    pub(super) now: i64,
    pub(super) skew: i64,
    pub(super) desired: u8,
    pub(super) stable: Option<u8>,
    pub(super) aborted: Option<u8>,
    pub(super) frozen: bool,
    pub(super) paused: bool,
    pub(super) zones: Vec<Deployment>,
    /// Writes that controllers have decided on, and whether their object is still as they saw it.
    pub(super) pending: Vec<Option<(Action, bool)>>,
    /// The first thing that happened and may not.
    pub(super) broken: Option<&'static str>,
    /// Whether this is only to see what Kubernetes would make of a write.
    is_trial: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(clippy::struct_excessive_bools)]
pub(super) struct Deployment {
    pub(super) template: u8,
    pub(super) paused: bool,
    pub(super) turn: bool,
    pub(super) replicas: u32,
    pub(super) wanted: u32,
    /// Whether its controller has seen the spec.
    seen: bool,
    /// The sizes of its `ReplicaSet`s by template, and the number of replicas that they were made for.
    sets: BTreeMap<u8, u32>,
    sized_for: u32,
    reported: u32,
    available: u32,
    completed: Option<i64>,
    pub(super) lost: bool,
    /// Whether its size ever changed: then pods come and go for more than one reason.
    resized: bool,
    pub(super) pods: Vec<Member>,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Member {
    pub(super) id: u8,
    place: u8,
    pub(super) template: u8,
    pub(super) state: State,
    confirmed: bool,
    streams: u64,
    cost: i32,
    asked: Option<Asked>,
    drained: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum State {
    NotReady(i64),
    Ready(i64),
    /// On its way out, and whether the planner led clients away from it.
    Ending(bool),
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Event {
    Tick(i64),
    /// The planner's clock jumps to so far ahead.
    Jump(i64),
    /// A controller looks and decides; what it decides arrives, or never does.
    Look(usize),
    Act(usize),
    Crash(usize),
    /// The Deployment controller looks at a zone.
    Sync(usize),
    Starts(usize),
    Fails(usize),
    Ends(usize),
    Deleted(usize),
    /// An eviction is asked for.
    Evict(usize),
    /// The agent of a pod confirms what it serves, or does not any more.
    Confirms(usize),
    Streams(usize, u64),
    Lost(usize),
    Found(usize),
    Edit(u8),
    Abort,
    Retry,
    PauseRollout(bool),
    Freeze(bool),
    /// By the spec, or by the autoscaler.
    Size(usize, u32),
    Ask(usize, Option<Asked>),
}

/// Pods that are made from these never become ready.
pub(super) fn is_bad(template: u8) -> bool {
    template % 3 == 2
}

impl Member {
    fn is_ready(&self) -> bool {
        matches!(self.state, State::Ready(_))
    }

    /// Nobody asks for it, and its agent works.
    pub(super) fn calm(&mut self) {
        (self.asked, self.confirmed) = (None, true);
    }

    pub(super) fn stays(&self) -> bool {
        !matches!(self.state, State::Ending(_))
    }

    /// Whether Kubernetes calls it available.
    fn is_available(&self, cluster: &Cluster) -> bool {
        matches!(self.state, State::Ready(since) if since + cluster.settings.min_ready <= cluster.now)
    }

    /// I3 and I18, by the true time.
    fn counts(&self, cluster: &Cluster) -> bool {
        self.is_available(cluster) && self.confirmed && !self.drained
    }
}

impl Deployment {
    fn staying(&self) -> impl Iterator<Item = &Member> {
        self.pods.iter().filter(|pod| pod.stays())
    }

    fn number(&self, matches: impl Fn(&Member) -> bool) -> u32 {
        u32::try_from(self.pods.iter().filter(|pod| matches(pod)).count()).unwrap()
    }

    fn is_mixed(&self) -> bool {
        self.staying().any(|pod| pod.template != self.template)
    }
}

impl Cluster {
    /// All zones have the template 0 and are whole.
    pub(super) fn new(settings: Settings, replicas: u32, controllers: usize) -> Self {
        let zone = |_| Deployment {
            template: 0,
            paused: false,
            turn: false,
            replicas,
            wanted: replicas,
            seen: true,
            sets: BTreeMap::from([(0, replicas)]),
            sized_for: replicas,
            reported: 0,
            available: 0,
            completed: None,
            lost: false,
            resized: false,
            pods: Vec::new(),
        };
        let mut cluster = Self {
            settings,
            now: 0,
            skew: 0,
            desired: 0,
            stable: Some(0),
            aborted: None,
            frozen: false,
            paused: false,
            zones: (0..settings.zones).map(zone).collect(),
            pending: vec![None; controllers],
            broken: None,
            is_trial: false,
        };
        for zone in 0..cluster.zones.len() {
            cluster.sync(zone);
            for pod in &mut cluster.zones[zone].pods {
                pod.state = State::Ready(0);
            }
        }
        cluster.now = 1000;
        (0..cluster.zones.len()).for_each(|zone| cluster.sync(zone));
        cluster
    }

    /// The smallest size of a zone that contradicts nothing.
    pub(super) fn smallest(&self) -> u32 {
        (self.settings.least + self.settings.unavailable).max(1)
    }

    fn min_ready(&self) -> u32 {
        u32::from(self.settings.zones) * self.smallest() - self.settings.unavailable
    }

    fn budget(&self) -> u32 {
        self.settings.unavailable.max(1)
    }

    fn breaks(&mut self, is_broken: bool, what: &'static str) {
        if is_broken && self.broken.is_none() {
            self.broken = Some(what);
        }
    }

    pub(super) fn target(&self) -> Option<u8> {
        if self.aborted == Some(self.desired) { self.stable } else { Some(self.desired) }
    }

    pub(super) fn apply(&mut self, event: &Event) {
        match *event {
            Event::Tick(seconds) => self.now += seconds,
            Event::Jump(seconds) => self.skew = seconds,
            Event::Look(controller) => self.look(controller),
            Event::Act(controller) => _ = self.act(controller),
            Event::Crash(controller) => self.pending[controller] = None,
            Event::Sync(zone) => self.sync(zone),
            Event::Lost(zone) => self.lose(zone),
            Event::Found(zone) => self.find_zone(zone),
            Event::Edit(template) => self.edit(|cluster| cluster.desired = template),
            Event::Abort => self.edit(|cluster| cluster.aborted = Some(cluster.desired)),
            Event::Retry => self.edit(|cluster| cluster.aborted = None),
            Event::PauseRollout(paused) => self.edit(|cluster| cluster.paused = paused),
            Event::Freeze(frozen) => self.edit(|cluster| cluster.frozen = frozen),
            Event::Size(zone, replicas) => self.size(zone, replicas),
            Event::Evict(pod) => self.evict(pod),
            Event::Starts(pod)
            | Event::Fails(pod)
            | Event::Ends(pod)
            | Event::Deleted(pod)
            | Event::Confirms(pod)
            | Event::Streams(pod, _)
            | Event::Ask(pod, _) => {
                if let Some((zone, index)) = self.find(pod) {
                    self.pod(zone, index, event);
                }
            }
        }
    }

    /// The pod of this number, from the first zone to the last.
    fn find(&self, number: usize) -> Option<(usize, usize)> {
        let all = self.zones.iter().enumerate().flat_map(|(zone, deployment)| (0..deployment.pods.len()).map(move |pod| (zone, pod)));
        let all: Vec<_> = all.collect();
        all.get(number % all.len().max(1)).copied()
    }

    fn pod(&mut self, zone: usize, index: usize, event: &Event) {
        let (now, deployment) = (self.now, &mut self.zones[zone]);
        let is_lost = deployment.lost;
        // pods that cannot share ports wait for each other
        let waits = self.settings.surge == 0 && deployment.pods.len() > deployment.replicas as usize;
        let pod = &mut deployment.pods[index];
        match *event {
            Event::Starts(_) if matches!(pod.state, State::NotReady(_)) && !is_bad(pod.template) && !is_lost && !pod.drained && !waits => {
                pod.state = State::Ready(now);
            }
            Event::Fails(_) if pod.is_ready() => pod.state = State::NotReady(now),
            Event::Deleted(_) if pod.stays() => pod.state = State::Ending(false),
            Event::Ends(_) if !pod.stays() && !is_lost => _ = deployment.pods.remove(index),
            Event::Confirms(_) => pod.confirmed = !pod.confirmed,
            Event::Streams(_, streams) => pod.streams = streams,
            Event::Ask(_, asked) => pod.asked = asked,
            _ => {}
        }
        if matches!(event, Event::Starts(_) | Event::Fails(_)) {
            // the one part of a status that follows at once
            self.zones[zone].available = self.zones[zone].number(|pod| pod.is_available(self));
        }
    }

    fn lose(&mut self, zone: usize) {
        self.zones[zone].lost = true;
        for pod in self.zones[zone].pods.iter_mut().filter(|pod| pod.is_ready()) {
            pod.state = State::NotReady(self.now);
        }
    }

    /// Nodes that are back have nothing left that was on its way out.
    pub(super) fn find_zone(&mut self, zone: usize) {
        if std::mem::take(&mut self.zones[zone].lost) {
            self.zones[zone].pods.retain(Member::stays);
        }
    }

    /// A change of the `IngressDeployment`: what was decided on it before does not arrive.
    fn edit(&mut self, change: impl Fn(&mut Self)) {
        change(self);
        self.outdate(|action| matches!(action, Action::Settle(_) | Action::Abort(_)));
    }

    fn outdate(&mut self, is_about: impl Fn(&Action) -> bool) {
        for (action, is_valid) in self.pending.iter_mut().flatten() {
            *is_valid &= !is_about(action);
        }
    }

    fn outdate_zone(&mut self, zone: usize) {
        let name = self.name(zone);
        self.outdate(|action| matches!(action, Action::Zone(other, _) if *other == name));
    }

    fn name(&self, zone: usize) -> Option<std::sync::Arc<str>> {
        self.settings.listed.then(|| ["a", "b", "c"][zone].into())
    }

    fn size(&mut self, zone: usize, replicas: u32) {
        let replicas = replicas.max(self.smallest());
        self.zones[zone].wanted = replicas;
        if self.settings.autoscaled && self.zones[zone].replicas != replicas {
            self.zones[zone].replicas = replicas;
            self.zones[zone].seen = false;
            self.outdate_zone(zone);
        }
    }

    /// As the PodDisruptionBudget has it.
    fn evict(&mut self, pod: usize) {
        let Some((zone, index)) = self.find(pod) else { return };
        let healthy: u32 = self.zones.iter().map(|zone| zone.number(Member::is_ready)).sum();
        let wanted: u32 = self.zones.iter().map(|zone| zone.replicas).sum();
        let pod = &mut self.zones[zone].pods[index];
        if pod.stays() && (!pod.is_ready() || healthy > wanted.saturating_sub(self.settings.unavailable.max(1))) {
            pod.state = State::Ending(false);
        }
    }
}
