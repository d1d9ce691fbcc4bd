//! What fleets serve, which is what is asked for but where people went back to a revision or a change is in quarantine;
//! and how a change that needs a reload gets from pod to pod.
//!
//! Only the replica that leads lets pods reload. It knows from the reports of agents who waits for what; a new leader
//! begins with what they say. What a change replaced is remembered until all pods have it, so that it can be put back.

mod quarantine;
mod wave;

#[cfg(test)]
mod tests;

pub use quarantine::{no_way_back, too_large};
pub use wave::{Place, Places};

use crate::delivery::feed::{AgentReport, AgentState, Agents, Feeds};
use crate::fleet::release::{Outcome, Rules, Trouble, step};
use crate::haproxy::bundle::{Bundle, Change, Digest, Resource, ResourceKey};
use crate::haproxy::revision::{self, Overlay, Record};
use crate::haproxy::version::Capabilities;
use crate::model::FleetId;
use crate::report::{Diagnostic, ObjectRef};
use quarantine::Quarantine;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use wave::{Moving, Seen, Wave};

/// How it is gone about.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// How a change spreads.
    pub rules: Rules,
    /// Agents have so long to connect after this replica began to lead before it says what all pods have.
    pub gathering: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self { rules: Rules::default(), gathering: Duration::from_secs(30) }
    }
}

/// Revisions that can be gone back to, by number.
pub type Revisions = BTreeMap<u64, Digest>;

/// What is to be kept of a revision that all pods have.
#[derive(Clone, Debug)]
pub struct Kept {
    /// Its identity.
    pub digest: Digest,
    /// What is kept.
    pub resources: Arc<[Arc<Resource>]>,
}

/// What fleets serve.
#[derive(Debug)]
pub struct Serving {
    feeds: Feeds,
    timing: Timing,
    fleets: BTreeMap<FleetId, Fleet>,
    /// Since when this replica leads, if it does.
    leads_since: Option<Duration>,
}

#[derive(Debug, Default)]
struct Fleet {
    /// What is served in the place of what is asked for.
    overlay: Overlay,
    /// All that is served, where that is not what is asked for.
    served: Option<Bundle>,
    /// Whether it was published.
    is_published: bool,
    /// The number and the identity of what is served; 0 without a number.
    generation: u64,
    digest: Digest,
    /// The identity of its revision.
    revision: Digest,
    /// What changed since all pods had the same.
    moved: BTreeMap<ResourceKey, Moves>,
    /// The last generation with something that may need a reload.
    last_moved: u64,
    /// Whether `moved` is all of it: all pods were seen with the same since this replica leads.
    is_traced: bool,
    /// Whether it is known of all pods what they have, and nothing of it is refused.
    is_whole: bool,
    /// What of `moved` a pod refuses.
    refused_by: BTreeSet<ResourceKey>,
    settled: u64,
    wave: Option<Wave>,
    /// Why the wave goes on no more.
    stuck: Option<Trouble>,
    quarantines: Vec<Quarantine>,
    zones: Vec<Arc<str>>,
    capabilities: Option<Capabilities>,
    /// The revision that people ask for.
    wanted: Option<Arc<str>>,
    /// What speaks against it.
    refused: Option<Diagnostic>,
    revisions: Option<Revisions>,
    /// Why its present revision is not kept.
    unkept: Option<Diagnostic>,
}

/// What became of one resource since all pods had the same.
#[derive(Debug, Default)]
struct Moves {
    /// What it was, by the generation that changed it, the oldest first.
    former: Vec<(u64, Option<Arc<Resource>>)>,
    now: Option<Arc<Resource>>,
}

impl Moves {
    /// What it was when all pods had the same.
    fn first(&self) -> Option<&Arc<Resource>> {
        self.former.first().and_then(|(_, former)| former.as_ref())
    }

    /// Whether it changed up to `generation`, and is not what it was.
    fn is_open(&self, generation: u64) -> bool {
        self.former.first().is_some_and(|(at, _)| *at <= generation) && !self.is_back()
    }

    fn is_back(&self) -> bool {
        self.first().map(|resource| resource.hash()) == self.now.as_ref().map(|resource| resource.hash())
    }
}

/// What became of a look at a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// What is served is something else now: it has to be published by [`Serving::published`].
    Serves(FleetId, Vec<Change>),
    /// What there is to say about it changed.
    Says(FleetId),
}

impl Serving {
    /// Nothing is served yet.
    pub fn new(feeds: Feeds, timing: Timing) -> Self {
        Self { feeds, timing, fleets: BTreeMap::new(), leads_since: None }
    }

    /// Whether this replica leads from now on. What was in quarantine is tried again by whoever leads: what that changes in
    /// what fleets serve has to be published. `present` is what is asked for.
    pub fn lead<'b>(
        &mut self,
        leads: bool,
        now: Duration,
        present: &dyn Fn(&FleetId) -> Option<&'b Bundle>,
    ) -> Vec<(FleetId, Vec<Change>)> {
        self.leads_since = leads.then_some(now);
        let mut anew = Vec::new();
        for (id, fleet) in &mut self.fleets {
            fleet.generation = 0;
            fleet.moved.clear();
            (fleet.is_traced, fleet.settled, fleet.last_moved) = (false, 0, 0);
            (fleet.wave, fleet.stuck) = (None, None);
            if fleet.quarantines.is_empty() {
                continue;
            }
            fleet.quarantines.clear();
            if let Some(present) = present(id) {
                anew.push((id.clone(), fleet.lay_anew(present)));
            }
        }
        anew
    }

    /// The zones of a fleet in their order, and what its HAProxies can do.
    pub fn know(&mut self, fleet: &FleetId, zones: Vec<Arc<str>>, capabilities: Capabilities) {
        let fleet = self.fleets.entry(fleet.clone()).or_default();
        (fleet.zones, fleet.capabilities) = (zones, Some(capabilities));
    }

    /// Forgets a fleet.
    pub fn remove(&mut self, fleet: &FleetId) {
        self.fleets.remove(fleet);
    }

    /// What changes in what `fleet` serves if `changes` led to `present`, which is asked for. `None`: nothing of it may be
    /// served before it is known which revision it went back to.
    pub fn follow<'c>(&mut self, fleet: &FleetId, changes: &'c [Change], present: &Bundle) -> Option<Cow<'c, [Change]>> {
        let fleet = self.fleets.entry(fleet.clone()).or_default();
        if !fleet.is_published && fleet.looks_for().is_some() {
            return None;
        }
        if fleet.keep_whole(changes, present) {
            return Some(Cow::Owned(fleet.lay_anew(present)));
        }
        let Some(served) = &mut fleet.served else { return Some(Cow::Borrowed(changes)) };
        Some(Cow::Owned(fleet.overlay.follow(served, changes, present)))
    }

    /// All that `fleet` serves if `present` is asked for.
    pub fn bundle<'b>(&'b self, fleet: &FleetId, present: &'b Bundle) -> &'b Bundle {
        self.fleets.get(fleet).and_then(|fleet| fleet.served.as_ref()).unwrap_or(present)
    }

    /// What `fleet` serves was published: `changes` led to a bundle with these identities.
    pub fn published(&mut self, fleet: &FleetId, generation: u64, changes: &[Change], digest: Digest, revision: Digest) {
        let fleet = self.fleets.entry(fleet.clone()).or_default();
        (fleet.generation, fleet.digest, fleet.revision) = (generation, digest, revision);
        let is_first = !std::mem::replace(&mut fleet.is_published, true);
        if generation == 0 || is_first {
            return;
        }
        for change in changes.iter().filter(|change| is_traced(change)) {
            if change.before.as_ref().map(|r| r.hash()) == change.after.as_ref().map(|r| r.hash()) {
                continue;
            }
            fleet.last_moved = generation;
            let moves = fleet.moved.entry(change.key.clone()).or_default();
            if moves.former.last().is_none_or(|(last, _)| *last != generation) {
                moves.former.push((generation, change.before.clone()));
            }
            moves.now.clone_from(&change.after);
        }
    }

    /// Looks at what agents report, lets pods reload, and says what is to be published. `present` is what is asked for.
    pub fn look<'b>(
        &mut self,
        now: Duration,
        agents: &Agents,
        places: &dyn Fn(&FleetId) -> Places,
        present: &dyn Fn(&FleetId) -> Option<&'b Bundle>,
    ) -> Vec<News> {
        let Some(leads_since) = self.leads_since else { return Vec::new() };
        let is_gathered = now.saturating_sub(leads_since) >= self.timing.gathering;
        let mut news = Vec::new();
        for (id, fleet) in self.fleets.iter_mut().filter(|(_, fleet)| fleet.generation > 0) {
            let of_fleet = agents.range((id.clone(), String::new())..).take_while(|((of, _), _)| of == id);
            let reports: Vec<(&str, &AgentReport)> = of_fleet.map(|((_, pod), report)| (pod.as_str(), &**report)).collect();
            let seen = Seen { agents: reports, places: places(id), digest: fleet.digest };
            let Some(trouble) = fleet.advance(id, &seen, &self.feeds, self.timing.rules, is_gathered, now) else { continue };
            let Some(present) = present(id) else { continue };
            if let Some(changes) = fleet.quarantine(&trouble, present) {
                news.push(News::Serves(id.clone(), changes));
            } else {
                tracing::error!(fleet = %id, ?trouble, "a change is stopped, and what was before it is not known");
                fleet.stuck = Some(trouble);
                news.push(News::Says(id.clone()));
            }
        }
        news
    }

    /// Objects changed: what of them is in quarantine is tried again. `present` is what is asked for.
    pub fn touched(&mut self, fleet: &FleetId, objects: &dyn Fn(&ObjectRef) -> bool, present: &Bundle) -> Option<Vec<Change>> {
        let fleet = self.fleets.get_mut(fleet)?;
        let before = fleet.quarantines.len();
        fleet.quarantines.retain(|quarantine| !quarantine.ends(objects, present));
        (fleet.quarantines.len() != before).then(|| fleet.lay_anew(present))
    }

    /// The revision that people want `fleet` to go back to, in their words. `None` if nothing changes at once.
    pub fn want(&mut self, fleet: &FleetId, wanted: Option<Arc<str>>, present: Option<&Bundle>) -> Option<Vec<Change>> {
        let fleet = self.fleets.entry(fleet.clone()).or_default();
        if fleet.wanted == wanted {
            return None;
        }
        fleet.wanted = wanted;
        fleet.refused = None;
        if fleet.wanted.is_some() {
            // until it is there, what is served stays
            return None;
        }
        fleet.overlay.record.take()?;
        Some(fleet.lay_anew(present?))
    }

    /// The revisions that fleets are to go back to and that are not there yet.
    pub fn rollbacks(&self) -> BTreeMap<FleetId, Arc<str>> {
        self.fleets.iter().filter_map(|(id, fleet)| Some((id.clone(), fleet.looks_for()?.clone()))).collect()
    }

    /// Goes back to `record`, if it is still `wanted`.
    pub fn go_back(&mut self, fleet: &FleetId, wanted: &str, record: Record, present: &Bundle) -> Option<Vec<Change>> {
        let fleet = self.fleets.get_mut(fleet)?;
        if fleet.looks_for().is_none_or(|still| **still != *wanted) {
            return None;
        }
        fleet.overlay.record = Some(Arc::new(record));
        Some(fleet.lay_anew(present))
    }

    /// The revision that was `wanted` cannot be had: what is served stays.
    pub fn refuse(&mut self, fleet: &FleetId, wanted: &str, why: Diagnostic) {
        if let Some(fleet) = self.fleets.get_mut(fleet).filter(|fleet| fleet.looks_for().is_some_and(|still| **still == *wanted)) {
            fleet.refused = Some(why);
        }
    }

    /// Whether anything is in quarantine.
    pub fn has_quarantines(&self) -> bool {
        self.fleets.values().any(|fleet| !fleet.quarantines.is_empty())
    }

    /// The revisions that can be gone back to, and why the present one cannot.
    pub fn set_revisions(&mut self, fleet: &FleetId, revisions: Revisions, unkept: Option<Diagnostic>) {
        if let Some(fleet) = self.fleets.get_mut(fleet) {
            (fleet.revisions, fleet.unkept) = (Some(revisions), unkept);
        }
    }

    /// The revisions of a fleet, once they are known.
    pub fn revisions(&self, fleet: &FleetId) -> Option<&Revisions> {
        self.fleets.get(fleet)?.revisions.as_ref()
    }

    /// The revision that a fleet went back to.
    pub fn pinned(&self, fleet: &FleetId) -> Option<u64> {
        Some(self.fleets.get(fleet)?.overlay.record.as_ref()?.number)
    }

    /// The revision that all pods of a fleet have and that is not kept yet.
    pub fn to_keep(&self, id: &FleetId, present: &Bundle) -> Option<Kept> {
        let fleet = self.fleets.get(id)?;
        let is_new = fleet.revisions.as_ref().is_some_and(|known| known.values().next_back() != Some(&fleet.revision));
        if !is_new || !fleet.is_settled() || fleet.overlay.record.is_some() {
            return None;
        }
        let resources = revision::kept(self.bundle(id, present)).into();
        Some(Kept { digest: fleet.revision, resources })
    }

    /// Whether all pods of a fleet have what it serves.
    pub fn is_settled(&self, id: &FleetId) -> bool {
        self.fleets.get(id).is_some_and(Fleet::is_settled)
    }

    /// What there is to say about what a fleet does not serve as asked.
    pub fn findings(&self, id: &FleetId) -> Vec<Diagnostic> {
        let Some(fleet) = self.fleets.get(id) else { return Vec::new() };
        quarantine::findings(id, fleet)
    }
}

/// Whether a change is one of those that may have to be put back. What endpoints do is not, nor are certificates.
fn is_traced(change: &Change) -> bool {
    match &change.key {
        ResourceKey::Certificate(_) => false,
        // a section may name the list
        ResourceKey::CertificateList { owner, .. } => owner.is_empty() && change.after.is_none(),
        // those of a backend that comes or goes
        ResourceKey::Servers(_) => change.before.is_none() || change.after.is_none(),
        _ => true,
    }
}

impl Fleet {
    /// The revision that it is to go back to and that is not there yet.
    fn looks_for(&self) -> Option<&Arc<str>> {
        let has = self.overlay.record.as_ref().map(|record| record.number.to_string());
        self.wanted.as_ref().filter(|wanted| has.as_deref() != Some(&***wanted) && self.refused.is_none())
    }

    /// Goes on with what is on its way; what is wrong with it, if that is new.
    fn advance(&mut self, id: &FleetId, seen: &Seen<'_>, feeds: &Feeds, rules: Rules, is_gathered: bool, now: Duration) -> Option<Trouble> {
        self.is_whole = seen.is_whole();
        let refused = seen.states().flatten().flat_map(|state| state.refused.iter()).map(|refusal| &refusal.resource);
        self.refused_by = refused.filter(|key| self.moved.contains_key(key)).cloned().collect();
        if self.stuck.is_some() && self.wave.as_ref().is_some_and(|wave| self.last_moved > wave.generation) {
            // somebody changed something: perhaps what was wrong
            (self.stuck, self.wave) = (None, None);
        }
        if !is_gathered && seen.agents.iter().any(|(pod, _)| !seen.places.contains_key(*pod)) {
            // it would not be known which zone is whose
            return None;
        }
        let is_asked =
            seen.agents.iter().filter_map(|(_, report)| report.state.as_ref()).any(|state| wave::is_held(state, self.generation));
        if self.wave.is_none() && !is_asked {
            if self.is_everywhere(seen) && (is_gathered || self.is_traced) {
                self.settle(self.generation);
            }
            return None;
        }
        let generation = self.generation;
        let proven = self.is_proven();
        let wave = self.wave.get_or_insert_with(|| Wave::new(generation));
        if proven {
            // back to where everybody was: what came in between is part of it
            wave.generation = generation;
        }
        let moved = &self.moved;
        let up_to = wave.generation;
        let moving = Moving { proven, has: &|key| moved.get(key).is_some_and(|moves| moves.is_open(up_to)) };
        let observed = wave.observe(seen, rules, &self.zones, moving, now);
        let decision = step(&observed, now);
        if self.stuck.is_none() {
            if wave.generation < generation && wave.is_overtaken(&decision.release) {
                // what was on its way is not to be had any more, and what came in its place was tried by nobody
                wave.take_in(generation);
                return None;
            }
            for pod in &wave.let_go(decision.release) {
                tracing::info!(fleet = %id, %pod, generation = wave.generation, outcome = ?decision.outcome, "a pod may reload");
                feeds.release_pod(id, pod, wave.generation);
            }
        }
        for (pod, report) in &seen.agents {
            if report.state.as_ref().is_some_and(|state| wave.is_let_anyway(pod, state)) {
                feeds.release_pod(id, pod, generation);
            }
        }
        match decision.outcome {
            Outcome::Done => {
                let (generation, is_begun, is_through) = (wave.generation, wave.is_begun(), wave.is_through());
                (self.wave, self.stuck) = (None, None);
                if is_begun && is_through {
                    // who was away meanwhile need not ask
                    feeds.release(id, generation);
                }
                if is_through && (is_gathered || self.is_traced) {
                    self.settle(generation);
                }
                None
            }
            Outcome::Spreads(_) => None,
            Outcome::Stopped(trouble) => Some(trouble).filter(|_| self.stuck.is_none()),
        }
    }

    /// Whether all pods have what is served, with nothing on its way. Those that serve nobody and are not connected get it
    /// when they are.
    fn is_everywhere(&self, seen: &Seen<'_>) -> bool {
        let is_empty = seen.places.values().all(|place| place.ends);
        let is_known = is_empty || seen.states().flatten().any(|state| state.ready);
        let has_it = |state: Option<&AgentState>| match state {
            // it gets what there is with its first configuration
            Some(state) if !state.ready => true,
            Some(known) => known.held == 0 && !wave::is_behind(state, self.digest, self.generation) && !wave::is_reloading(known),
            None => false,
        };
        is_known && seen.missing().next().is_none() && seen.states().all(has_it)
    }

    fn is_settled(&self) -> bool {
        self.is_traced && self.is_whole && self.settled >= self.last_moved && self.wave.is_none()
    }

    /// All pods have everything up to `generation`, but for what they refuse: of that they have what was before.
    fn settle(&mut self, generation: u64) {
        (self.settled, self.is_traced) = (generation, true);
        let refused_by = &self.refused_by;
        self.moved.retain(|key, moves| {
            if refused_by.contains(key) {
                return true;
            }
            moves.former.retain(|(at, _)| *at > generation);
            !moves.former.is_empty()
        });
    }

    /// Whether all pods had what is served before, as far as it needs reloads.
    fn is_proven(&self) -> bool {
        let is_known = self.revisions.as_ref().is_some_and(|known| known.values().any(|digest| *digest == self.revision));
        let mut open = self.moved.iter().filter(|(_, moves)| !moves.is_back());
        if is_known {
            // what is no part of a revision may be new
            self.overlay.record.is_some() || !open.any(|(key, _)| matches!(key, ResourceKey::File(_)))
        } else {
            self.is_traced && open.next().is_none()
        }
    }

    /// Puts the overlay together, and says what that changes in what is served.
    fn lay_anew(&mut self, present: &Bundle) -> Vec<Change> {
        self.overlay.pins = self.pins(present);
        let served = (!self.overlay.is_empty()).then(|| self.overlay.over(present));
        let before = self.served.take();
        let changes = before.as_ref().unwrap_or(present).diff(served.as_ref().unwrap_or(present));
        self.served = served;
        changes
    }
}
