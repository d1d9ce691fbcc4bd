//! One step: what is observed, to the pods that may reload now.

use super::health::{Health, worse};
use super::observed::{Observed, Pod, Progress};
use crate::haproxy::bundle::ResourceKey;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Who may reload now, and how it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// These pods may.
    pub release: Vec<Arc<str>>,
    /// How far the change is.
    pub outcome: Outcome,
    /// When time alone may change the decision.
    pub recheck_at: Option<Duration>,
}

/// How far a change is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nobody waits for it any more.
    Done,
    /// It spreads; what it waits for, for people.
    Spreads(String),
    /// It must not go on.
    Stopped(Trouble),
}

/// Why a change must not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// HAProxy refused these resources in a pod.
    Refused(Arc<str>, BTreeSet<ResourceKey>),
    /// Pods with the change fare worse than those without it.
    Unhealthy(String),
    /// A pod that was let does not confirm.
    Unconfirmed(Arc<str>),
    /// A pod with the change serves no more.
    Unready(Arc<str>),
}

/// Who may reload at `now`.
pub fn step(observed: &Observed, now: Duration) -> Decision {
    let look = Look { observed, now };
    // whoever serves nothing yet needs no leave: its first configuration brings everything. To let it would be to let one
    // that serves by the time it hears of that
    let (release, outcome, recheck_at) = match look.spread() {
        Spread::Done => (Vec::new(), Outcome::Done, None),
        Spread::Release(pods, why) => (names(pods.into_iter()), Outcome::Spreads(why), None),
        Spread::Wait(why, until) => (Vec::new(), Outcome::Spreads(why), Some(until)),
        Spread::Stop(trouble) => (Vec::new(), Outcome::Stopped(trouble), None),
    };
    Decision { release, outcome, recheck_at }
}

fn names<'p>(pods: impl Iterator<Item = &'p Pod>) -> Vec<Arc<str>> {
    pods.map(|pod| pod.name.clone()).collect()
}

enum Spread<'o> {
    Done,
    Release(Vec<&'o Pod>, String),
    Wait(String, Duration),
    Stop(Trouble),
}

struct Look<'o> {
    observed: &'o Observed,
    now: Duration,
}

impl<'o> Look<'o> {
    fn with(&self, progress: Progress) -> impl Iterator<Item = &'o Pod> + use<'o> {
        self.observed.pods.iter().filter(move |pod| pod.progress == progress)
    }

    fn spread(&self) -> Spread<'o> {
        let held: Vec<&Pod> = self.with(Progress::Held).collect();
        if self.observed.proven && !held.is_empty() {
            return Spread::Release(held, "all pods served it before".to_owned());
        }
        if let Some(trouble) = self.trouble(&held) {
            return Spread::Stop(trouble);
        }
        if let Some((why, until)) = self.waits_for(!held.is_empty()) {
            return Spread::Wait(why, until);
        }
        if held.is_empty() {
            return Spread::Done;
        }
        self.next(&held)
    }

    /// Those that have the change, or were let have it, and say something about it.
    fn evidence(&self) -> impl Iterator<Item = &'o Pod> + use<'o> {
        let all = self.observed.pods.iter().filter(|pod| pod.was_before);
        all.filter(|pod| matches!(pod.progress, Progress::Let | Progress::Changed))
    }

    /// Those that have it and say something about it.
    fn changed(&self) -> impl Iterator<Item = &'o Pod> + use<'o> {
        self.evidence().filter(|pod| pod.progress == Progress::Changed)
    }

    /// Those that were let, serve, and do not confirm.
    fn late(&self) -> impl Iterator<Item = &'o Pod> + use<'o, '_> {
        let is_late = |pod: &&Pod| pod.progress == Progress::Let && pod.serves && self.age(pod) >= self.observed.rules.patience;
        self.evidence().filter(is_late)
    }

    fn age(&self, pod: &Pod) -> Duration {
        self.now.saturating_sub(pod.since)
    }

    /// What keeps the change from going on to those that are `held`.
    fn trouble(&self, held: &[&Pod]) -> Option<Trouble> {
        if self.observed.proven {
            return None;
        }
        // where others have confirmed it, it is that pod's own trouble
        if let Some(pod) = self.late().next().filter(|_| self.changed().next().is_none()) {
            return Some(Trouble::Unconfirmed(pod.name.clone()));
        }
        if held.is_empty() {
            // it is everywhere: what is refused or slow now is no matter of spreading
            return None;
        }
        if let Some(pod) = self.with(Progress::Lost).find(|pod| pod.served && self.age(pod) >= self.observed.rules.patience) {
            return Some(Trouble::Unready(pod.name.clone()));
        }
        let known: BTreeSet<&ResourceKey> = held.iter().flat_map(|pod| &pod.refused).collect();
        for pod in self.changed() {
            let refused: BTreeSet<ResourceKey> = pod.refused.iter().filter(|key| !known.contains(key)).cloned().collect();
            if !refused.is_empty() {
                return Some(Trouble::Refused(pod.name.clone(), refused));
            }
            if pod.served && !pod.serves && self.age(pod) >= self.observed.rules.observation {
                return Some(Trouble::Unready(pod.name.clone()));
            }
        }
        let figures =
            |pods: &mut dyn Iterator<Item = &Pod>| -> Vec<Health> { pods.filter(|pod| pod.serves).filter_map(|pod| pod.health).collect() };
        let with = figures(&mut self.changed());
        let without = figures(&mut held.iter().copied());
        worse(&with, &without).map(Trouble::Unhealthy)
    }

    /// What has to happen first, and until when that is waited for.
    fn waits_for(&self, goes_on: bool) -> Option<(String, Duration)> {
        let rules = self.observed.rules;
        // who is the first does not depend on who says so first; but it need not wait for all
        let is_begun = !goes_on || self.changed().next().is_some();
        let to_hear = if is_begun { rules.patience } else { rules.observation.min(rules.patience) };
        let told = |pod: &&Pod| pod.progress == Progress::Behind && self.age(pod) < to_hear;
        if let Some(pod) = self.with(Progress::Behind).find(told) {
            return Some((format!("{} has yet to take it in", pod.name), pod.since + to_hear));
        }
        if let Some(pod) = self.with(Progress::Lost).find(|pod| self.age(pod) < rules.patience) {
            return Some((format!("{} is lost since it got it", pod.name), pod.since + rules.patience));
        }
        let busy = |pod: &&Pod| pod.progress == Progress::Let && self.age(pod) < rules.patience;
        if let Some(pod) = self.evidence().find(busy) {
            return Some((format!("{} reloads", pod.name), pod.since + rules.patience));
        }
        let watched = |pod: &&Pod| goes_on && self.age(pod) < rules.observation;
        let last = self.changed().filter(watched).max_by_key(|pod| pod.since)?;
        Some((format!("{} is watched", last.name), last.since + rules.observation))
    }

    /// Those whose turn it is: there is nothing to wait for.
    fn next(&self, held: &[&'o Pod]) -> Spread<'o> {
        let Some(zone) = self.zone_of_next(held) else { return Spread::Done };
        if self.changed().next().is_none() {
            let of_zone = || held.iter().copied().filter(|pod| pod.zone == zone);
            let canary = of_zone().find(|pod| pod.serves).or_else(|| of_zone().next());
            return Spread::Release(canary.into_iter().collect(), "one pod gets it first".to_owned());
        }
        let pods = held.iter().copied().filter(|pod| pod.zone == zone).collect();
        let place = if zone.is_empty() { "the fleet".to_owned() } else { format!("zone {zone}") };
        let late: Vec<&str> = self.late().map(|pod| &*pod.name).collect();
        let but = if late.is_empty() { String::new() } else { format!(", and not confirmed by {}", late.join(", ")) };
        Spread::Release(pods, format!("{place} gets it{but}"))
    }

    /// The zone that goes on: one that has begun, else the first in which a pod serves, else the first.
    fn zone_of_next(&self, held: &[&'o Pod]) -> Option<Arc<str>> {
        let place = |zone: &Arc<str>| self.observed.zones.iter().position(|known| known == zone).unwrap_or(usize::MAX);
        let rank = |pod: &&&Pod| {
            let begun = self.changed().any(|other| other.zone == pod.zone);
            let serves = held.iter().any(|other| other.zone == pod.zone && other.serves);
            (!begun, !serves, place(&pod.zone), pod.zone.clone())
        };
        held.iter().min_by_key(rank).map(|pod| pod.zone.clone())
    }
}
