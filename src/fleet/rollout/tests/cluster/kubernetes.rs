//! What the controllers of Kubernetes do with a Deployment, as `kubernetes/pkg/controller/deployment` has it: `sync`,
//! `scale` and `rolloutRolling`. Every pod that it takes is judged.

use super::{Cluster, Deployment, Member, State};
use std::collections::{BTreeMap, BTreeSet};

/// Why a pod is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Rollout,
    /// All new pods are available: the last old ones go, whether it is paused or not.
    Closing,
    Size,
    /// The autoscaler has its own mind, and what closes after that.
    Others,
}

impl Cluster {
    /// One step of the Deployment controller, and what the `ReplicaSet` controller makes of it.
    pub(in super::super) fn sync(&mut self, zone: usize) {
        self.zones[zone].seen = true;
        self.replace(zone, Cause::Rollout);
        let deployment = &mut self.zones[zone];
        let is_scaled = deployment.sized_for != deployment.replicas;
        deployment.resized |= is_scaled;
        if deployment.paused || is_scaled {
            self.scale(zone);
        } else {
            self.roll(zone);
        }
        self.zones[zone].sized_for = self.zones[zone].replicas;
        let is_paused = self.zones[zone].paused;
        let cause = match is_scaled {
            _ if self.settings.autoscaled && self.zones[zone].resized && (is_scaled || is_paused) => Cause::Others,
            true => Cause::Size,
            false if is_paused => Cause::Closing,
            false => Cause::Rollout,
        };
        self.replace(zone, cause);
        self.tell(zone);
    }

    /// While it is paused or was scaled: all `ReplicaSet`s in proportion.
    fn scale(&mut self, zone: usize) {
        let surge = self.settings.surge;
        let available = self.available_of(zone, self.zones[zone].template);
        let deployment = &mut self.zones[zone];
        let (replicas, template) = (deployment.replicas, deployment.template);
        let active: Vec<u8> = deployment.sets.iter().filter(|(_, size)| **size > 0).map(|(set, _)| *set).collect();
        match active[..] {
            [] => {
                let latest = deployment.sets.keys().copied().max_by_key(|set| (*set == template, *set)).unwrap();
                deployment.sets.insert(latest, replicas);
            }
            [only] => _ = deployment.sets.insert(only, replicas),
            _ if deployment.sized_for == replicas && deployment.sets.get(&template) == Some(&replicas) && available == replicas => {
                deployment.sets.iter_mut().filter(|(set, _)| **set != template).for_each(|(_, size)| *size = 0);
            }
            _ => {
                let allowed = if replicas > 0 { replicas + surge } else { 0 };
                while deployment.sets.values().sum::<u32>() != allowed {
                    let is_grown = deployment.sets.values().sum::<u32>() < allowed;
                    let largest = |(set, size): &(&u8, &mut u32)| (**size, (**set == template) == is_grown);
                    let (_, size) = deployment.sets.iter_mut().filter(|(_, size)| **size > 0).max_by_key(largest).unwrap();
                    *size = if is_grown { *size + 1 } else { *size - 1 };
                }
            }
        }
    }

    /// A rolling update: either the new `ReplicaSet` grows, or the old ones shrink.
    fn roll(&mut self, zone: usize) {
        let (surge, unavailable) = (self.settings.surge, self.settings.unavailable);
        let available = self.available_of(zone, self.zones[zone].template);
        let old: Vec<u8> = self.zones[zone].sets.keys().copied().filter(|set| *set != self.zones[zone].template).collect();
        let old_available: BTreeMap<u8, u32> = old.iter().map(|set| (*set, self.available_of(zone, *set))).collect();
        let deployment = &mut self.zones[zone];
        let replicas = deployment.replicas;
        let total: u32 = deployment.sets.values().sum();
        let new = deployment.sets.entry(deployment.template).or_default();
        if *new != replicas {
            let grown = (replicas + surge).saturating_sub(total).min(replicas.saturating_sub(*new));
            *new = (*new + grown).min(replicas);
            if grown > 0 {
                let draining = self.zones[zone].number(|pod| pod.state == State::Ending(true));
                let is_plain = self.settings.prompt && !self.zones[zone].lost && !self.zones[zone].resized;
                let is_more = is_plain && draining > surge + unavailable;
                return self.breaks(is_more, "I28: pods are added while those of an earlier step drain");
            }
        }
        let least = replicas.saturating_sub(unavailable);
        let mut fewer = total.saturating_sub(least + new.saturating_sub(available));
        for set in &old {
            let size = deployment.sets.get_mut(set).unwrap();
            let broken = size.saturating_sub(old_available[set]).min(fewer);
            *size -= broken;
            fewer -= broken;
        }
        let all_available = available + old_available.values().sum::<u32>();
        let mut fewer = all_available.saturating_sub(least);
        for set in &old {
            let size = deployment.sets.get_mut(set).unwrap();
            let taken = (*size).min(fewer);
            *size -= taken;
            fewer -= taken;
        }
    }

    fn available_of(&self, zone: usize, template: u8) -> u32 {
        self.zones[zone].number(|pod| pod.template == template && pod.is_available(self))
    }

    /// Makes and takes pods until every `ReplicaSet` has its number.
    fn replace(&mut self, zone: usize, cause: Cause) {
        let deployment = &self.zones[zone];
        let templates: BTreeSet<u8> = deployment.sets.keys().copied().chain(deployment.staying().map(|pod| pod.template)).collect();
        for template in templates {
            let size = self.zones[zone].sets.get(&template).copied().unwrap_or_default();
            let is_of = |pod: &Member| pod.stays() && pod.template == template;
            while self.zones[zone].number(is_of) < size {
                self.make(zone, template);
            }
            while self.zones[zone].number(is_of) > size {
                let rank = |pod: &&Member| match pod.state {
                    State::Ready(since) => (true, pod.cost, -since, 0),
                    State::NotReady(_) | State::Ending(_) => (false, 0, 0, pod.id),
                };
                let id = self.zones[zone].pods.iter().filter(|pod| is_of(pod)).min_by_key(rank).unwrap().id;
                self.take(zone, id, cause);
            }
        }
    }

    fn make(&mut self, zone: usize, template: u8) {
        let (now, is_listed) = (self.now, self.settings.listed);
        let deployment = &mut self.zones[zone];
        let id = (0..=u8::MAX).find(|id| deployment.pods.iter().all(|pod| pod.id != *id)).unwrap();
        let crowd = |place: &u8| deployment.staying().filter(|pod| pod.place == *place && pod.template == template).count();
        let place = if is_listed { u8::try_from(zone).unwrap() } else { (0..3).min_by_key(crowd).unwrap() };
        let state = State::NotReady(now);
        let pod = Member { id, place, template, state, confirmed: true, streams: 0, cost: 0, asked: None, drained: false };
        deployment.pods.push(pod);
        deployment.pods.sort_by_key(|pod| pod.id);
    }

    /// The `ReplicaSet` controller takes a pod.
    fn take(&mut self, zone: usize, id: u8, cause: Cause) {
        let index = self.zones[zone].pods.iter().position(|pod| pod.id == id).unwrap();
        let pod = &self.zones[zone].pods[index];
        let template = pod.template;
        let (counted, was_available, was_ready) = (pod.counts(self), pod.is_available(self), pod.is_ready());
        let others_whole = self.are_others_whole(zone);
        self.zones[zone].pods[index].state = State::Ending(cause != Cause::Others && was_ready);
        if cause == Cause::Others {
            return;
        }
        let drains = |zone: &&Deployment| !zone.lost && zone.number(|pod| pod.state == State::Ending(true)) > 0;
        let draining = self.zones.iter().filter(drains).count();
        self.breaks(draining > 1, "I2: two zones drain at a time");
        let ready = |zone: &Deployment| zone.number(|pod| pod.counts(self));
        let (here, all) = (ready(&self.zones[zone]), self.zones.iter().map(ready).sum::<u32>());
        let missing: u32 = self.zones.iter().map(|zone| zone.replicas.saturating_sub(ready(zone))).sum();
        // new pods beyond the size of their zone go whatever anybody does; a size was judged when it was written
        let is_new = self.zones[zone].template == template && cause == Cause::Rollout;
        let cause = if is_new { Cause::Closing } else { cause };
        let is_strict = self.settings.prompt && (cause == Cause::Rollout || self.is_trial);
        let available = self.zones[zone].number(|pod| pod.is_available(self));
        self.breaks(
            cause == Cause::Closing && was_available && available < self.zones[zone].replicas,
            "I1: fewer pods than a zone is to have",
        );
        let is_short = cause == Cause::Rollout && was_available && available < self.settings.least;
        self.breaks(is_short, "I1: fewer available pods than minReady of a zone");
        self.breaks(is_strict && counted && here < self.settings.least, "I1: fewer pods than minReady of a zone");
        self.breaks(is_strict && counted && all < self.min_ready(), "I1: fewer pods than minReady of the fleet");
        self.breaks(is_strict && counted && !others_whole, "I2: a pod is taken while another zone is not whole");
        self.breaks(is_strict && counted && missing > self.budget(), "I16: more pods are missing than the budget has");
    }

    pub(super) fn is_whole(&self, zone: &Deployment) -> bool {
        let ends = zone.pods.iter().any(|pod| !pod.stays() && !zone.lost);
        !ends && zone.number(|pod| pod.counts(self)) >= zone.replicas
    }

    pub(super) fn are_others_whole(&self, zone: usize) -> bool {
        self.zones.iter().enumerate().all(|(other, deployment)| other == zone || self.is_whole(deployment))
    }

    /// The status of a Deployment.
    fn tell(&mut self, zone: usize) {
        let available = self.zones[zone].number(|pod| pod.is_available(self));
        let (now, deployment) = (self.now, &mut self.zones[zone]);
        deployment.reported = deployment.number(Member::stays);
        deployment.available = available;
        let total: u32 = deployment.sets.values().sum();
        let is_one = total == deployment.replicas && deployment.sets.get(&deployment.template) == Some(&total);
        if deployment.paused || deployment.is_mixed() {
            deployment.completed = None;
        } else if is_one && deployment.available >= deployment.replicas {
            deployment.completed.get_or_insert(now);
        }
    }
}
