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
    looks: u64,
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
        (self.looks, self.sum) = (0, Health::default());
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
        let range =
            |(least, most): (u64, u64), is_first: bool, value: u64| (if is_first { value } else { least.min(value) }, most.max(value));
        sum.queued = range(sum.queued, self.looks == 0, now.queued);
        sum.down = range(sum.down, self.looks == 0, now.down);
        self.looks += 1;
    }

    fn health(&self) -> Option<Health> {
        self.last?;
        // one look is no proof of what lasts
        let lasting = |(least, most): (u64, u64)| (if self.looks < 2 { 0 } else { least }, most);
        Some(Health { queued: lasting(self.sum.queued), down: lasting(self.sum.down), ..self.sum })
    }
}
