//! One change on its way through the pods of a fleet: what they report, as the planner of releases needs it.

use crate::delivery::feed::{AgentReport, AgentState};
use crate::fleet::release::{Health, Observed, Pod, Progress, Rules};
use crate::haproxy::bundle::Digest;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Where a pod is, by the word of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Its zone; empty if that is not known.
    pub zone: Arc<str>,
    /// Whether clients are sent to it.
    pub serves: bool,
    /// Whether it is on its way out.
    pub ends: bool,
}

/// One change on its way: everything up to a generation.
#[derive(Debug)]
pub(super) struct Wave {
    pub(super) generation: u64,
    /// Whether a pod that served before was let.
    is_begun: bool,
    pods: BTreeMap<String, Followed>,
    is_looked_at: bool,
    /// Up to which generation pods were let.
    released: BTreeMap<String, u64>,
}

#[derive(Debug)]
struct Followed {
    progress: Progress,
    since: Duration,
    was_before: bool,
    figures: Figures,
}

/// What was seen of the health of a pod.
#[derive(Debug, Default)]
struct Figures {
    last: Option<crate::agent::Health>,
    /// What was queued and down at the look before the last one.
    previous: Option<(u64, u64)>,
    sum: Health,
}

/// What is known of the pods of one fleet.
pub(super) struct Seen<'s> {
    /// Its agents by pod.
    pub(super) agents: Vec<(&'s str, &'s AgentReport)>,
    pub(super) place: &'s dyn Fn(&str) -> Option<Place>,
    /// What they are to serve.
    pub(super) digest: Digest,
}

impl Wave {
    pub(super) fn new(generation: u64) -> Self {
        Self { generation, is_begun: false, pods: BTreeMap::new(), is_looked_at: false, released: BTreeMap::new() }
    }

    /// What the planner is to decide on.
    pub(super) fn observe(&mut self, seen: &Seen<'_>, rules: Rules, zones: &[Arc<str>], proven: bool, now: Duration) -> Observed {
        let is_first = !std::mem::replace(&mut self.is_looked_at, true);
        let here: BTreeSet<&str> = seen.agents.iter().map(|(name, _)| *name).collect();
        self.pods.retain(|name, _| here.contains(name.as_str()));
        let mut pods = Vec::with_capacity(seen.agents.len());
        for (name, report) in &seen.agents {
            let state = report.state.as_ref();
            let place = (seen.place)(name).unwrap_or_else(|| Place { serves: state.is_some_and(|state| state.ready), ..Place::default() });
            if place.ends {
                continue;
            }
            let released = self.released.get(*name).is_some_and(|released| *released >= self.generation);
            let progress = progress(state, seen.digest, self.generation, released);
            let followed = self.pods.entry((*name).to_owned()).or_insert_with(|| Followed {
                progress,
                since: now,
                was_before: false,
                figures: Figures::default(),
            });
            if followed.progress != progress {
                (followed.progress, followed.since) = (progress, now);
                if progress == Progress::Changed {
                    followed.figures.begin();
                }
            }
            followed.was_before |= progress == Progress::Held || is_first && state.is_some_and(|state| state.ready);
            if let Some(state) = state {
                followed.figures.take(state, self.is_begun);
            }
            pods.push(Pod {
                name: (*name).into(),
                zone: place.zone,
                serves: place.serves,
                progress,
                since: followed.since,
                was_before: followed.was_before,
                refused: state.iter().flat_map(|state| state.refused.iter()).map(|refusal| refusal.resource.clone()).collect(),
                health: followed.figures.health(),
            });
        }
        Observed { rules, proven, zones: zones.to_vec(), pods }
    }

    /// Lets `pods` go, and returns those that were not let before.
    pub(super) fn let_go(&mut self, pods: Vec<Arc<str>>) -> Vec<Arc<str>> {
        let mut let_now = pods;
        let_now.retain(|pod| self.released.insert(pod.to_string(), self.generation) != Some(self.generation));
        let is_held = |pod: &Arc<str>| self.pods.get(&**pod).is_some_and(|followed| followed.progress == Progress::Held);
        self.is_begun |= let_now.iter().any(is_held);
        let_now
    }

    /// Whether pods that served before were let.
    pub(super) fn is_begun(&self) -> bool {
        self.is_begun
    }

    /// Whether a pod was let, and its agent, which is of before, cannot say of what came later that it is something else.
    pub(super) fn is_let_anyway(&self, pod: &str, state: &AgentState) -> bool {
        state.held > 0 && state.held_from == 0 && self.released.contains_key(pod)
    }
}

/// Whether a pod asks for a reload for something that came up to `generation`.
pub(super) fn is_held(state: &AgentState, generation: u64) -> bool {
    // agents of before do not say since when
    state.held > 0 && state.held_from <= generation
}

/// Whether a pod has yet to say that it knows what came up to `generation`.
pub(super) fn is_behind(state: Option<&AgentState>, digest: Digest, generation: u64) -> bool {
    state.is_none_or(|state| state.last_good || state.generation < generation && state.digest != digest)
}

/// Whether a reload that a pod may make is still to come.
pub(super) fn is_reloading(state: &AgentState) -> bool {
    state.reload_pending || state.waiting > 0 && state.held == 0 && state.refused_count == 0
}

fn progress(state: Option<&AgentState>, digest: Digest, generation: u64, released: bool) -> Progress {
    let Some(state) = state else { return Progress::Behind };
    if !state.ready {
        return Progress::New;
    }
    if is_behind(Some(state), digest, generation) {
        return Progress::Behind;
    }
    match is_held(state, generation) {
        true if !released => Progress::Held,
        true => Progress::Let,
        false if is_reloading(state) => Progress::Let,
        false => Progress::Changed,
    }
}

impl Figures {
    /// What was counted before is of a time that matters no more.
    fn begin(&mut self) {
        (self.previous, self.sum) = (None, Health::default());
    }

    /// Takes what an agent says. What is counted counts from the first look on that has one before it, or from the start of
    /// a new worker.
    fn take(&mut self, state: &AgentState, counts: bool) {
        let Some(now) = state.health.filter(|health| self.last.is_none_or(|last| last.number != health.number)) else { return };
        let before = match self.last {
            Some(last) if last.reloads != now.reloads || now.requests < last.requests => crate::agent::Health::default(),
            Some(last) => last,
            None => now,
        };
        self.last = Some(now);
        if !counts {
            return;
        }
        let sum = &mut self.sum;
        sum.requests += now.requests.saturating_sub(before.requests);
        sum.failed += now.failed.saturating_sub(before.failed);
        // what lasts is the case at two looks in a row; servers are not found to be down before some of their checks
        let (queued, down) = self.previous.unwrap_or_default();
        sum.queued = (queued.min(now.queued), sum.queued.1.max(now.queued));
        sum.down = (down.min(now.down), sum.down.1.max(now.down));
        self.previous = Some((now.queued, now.down));
    }

    fn health(&self) -> Option<Health> {
        self.last.map(|_| self.sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::Health as Look;

    /// What is known after looks at backends that are down.
    fn down(looks: &[u64]) -> (u64, u64) {
        let mut figures = Figures::default();
        for (number, down) in (1..).zip(looks) {
            let look = Look { number, down: *down, queued: *down, ..Look::default() };
            let state = AgentState { health: Some(look), ..AgentState::default() };
            // what an agent says again is the same look
            figures.take(&state, true);
            figures.take(&state, true);
        }
        let health = figures.health().unwrap_or_default();
        assert_eq!(health.queued, health.down);
        health.down
    }

    #[test]
    fn what_lasts_is_seen_at_two_looks_in_a_row_however_late_it_began() {
        assert_eq!(down(&[2]), (0, 2), "one look is no proof");
        assert_eq!(down(&[0, 0, 0, 2, 2]), (2, 2), "servers fail their checks some time after the change");
        assert_eq!(down(&[2, 0]), (0, 2), "it is over");
        assert_eq!(down(&[0, 3, 0]), (0, 3));
        assert_eq!(down(&[1, 3]), (1, 3));
    }
}
