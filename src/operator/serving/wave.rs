//! One change on its way through the pods of a fleet: what they report, as the planner of releases needs it.

use crate::delivery::feed::{AgentReport, AgentState};
use crate::fleet::release::{Health, Observed, Pod, Progress, Rules};
use crate::haproxy::bundle::{Digest, ResourceKey};
use std::collections::BTreeMap;
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

/// Where the pods of a fleet are, by name: all that the cluster knows of.
pub type Places = BTreeMap<String, Place>;

/// One change on its way: everything up to a generation.
#[derive(Debug)]
pub(super) struct Wave {
    pub(super) generation: u64,
    /// Whether a pod that served before was let.
    is_begun: bool,
    pods: BTreeMap<String, Followed>,
    is_looked_at: bool,
    /// Up to which generation pods were let, and how often they had reloaded by then.
    released: BTreeMap<String, (u64, u64)>,
}

#[derive(Debug)]
struct Followed {
    progress: Progress,
    since: Duration,
    /// Since when it is lost, or was not long ago.
    lost: Option<Duration>,
    was_before: bool,
    /// Whether clients reached it when it was let, or since.
    served: bool,
    /// How often it reloaded.
    reloads: u64,
    /// Whether it waits for something that came later, in the place of what is on its way.
    is_overtaken: bool,
    place: Place,
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
    /// Its agents by pod, in their order.
    pub(super) agents: Vec<(&'s str, &'s AgentReport)>,
    pub(super) places: Places,
    /// What they are to serve.
    pub(super) digest: Digest,
}

/// What is on its way.
#[derive(Clone, Copy)]
pub(super) struct Moving<'m> {
    /// Whether all pods served it before.
    pub(super) proven: bool,
    /// Whether a resource is part of it.
    pub(super) has: &'m dyn Fn(&ResourceKey) -> bool,
}

impl Seen<'_> {
    /// The pods that clients are sent to and whose agents say nothing.
    pub(super) fn missing(&self) -> impl Iterator<Item = &str> {
        let says = |name: &str| {
            let found = self.agents.binary_search_by(|(agent, _)| (*agent).cmp(name));
            found.is_ok_and(|at| self.agents[at].1.state.is_some())
        };
        self.places.iter().filter(move |(name, place)| place.serves && !place.ends && !says(name)).map(|(name, _)| name.as_str())
    }

    /// What those that are to stay say; `None`: nothing yet.
    pub(super) fn states(&self) -> impl Iterator<Item = Option<&AgentState>> {
        let ends = |pod: &str| self.places.get(pod).is_some_and(|place| place.ends);
        self.agents.iter().filter(move |(pod, _)| !ends(pod)).map(|(_, report)| report.state.as_ref())
    }

    /// Whether it is known of all pods what they have, and nothing of it is refused.
    pub(super) fn is_whole(&self) -> bool {
        let is_any = self.places.values().all(|place| place.ends) || self.states().flatten().any(|state| state.ready);
        is_any && self.missing().next().is_none() && self.states().all(|state| state.is_some_and(|state| state.refused_count == 0))
    }
}

impl Wave {
    pub(super) fn new(generation: u64) -> Self {
        Self { generation, is_begun: false, pods: BTreeMap::new(), is_looked_at: false, released: BTreeMap::new() }
    }

    /// What the planner is to decide on.
    pub(super) fn observe(&mut self, seen: &Seen<'_>, rules: Rules, zones: &[Arc<str>], moving: Moving<'_>, now: Duration) -> Observed {
        let is_first = !std::mem::replace(&mut self.is_looked_at, true);
        let mut states: BTreeMap<&str, Option<&AgentState>> =
            seen.agents.iter().map(|(name, report)| (*name, report.state.as_ref())).collect();
        for name in seen.missing() {
            states.insert(name, None);
        }
        self.pods.retain(|name, followed| states.contains_key(name.as_str()) || followed.has_it());
        let gone: Vec<String> = self.pods.keys().filter(|name| !states.contains_key(name.as_str())).cloned().collect();
        states.extend(gone.iter().map(|name| (name.as_str(), None)));
        for (name, state) in &states {
            self.follow(name, *state, seen, rules, is_first, now);
        }
        // it may have begun before: under another leader, or as part of one that was put back
        let has_begun = |followed: &Followed| followed.was_before && followed.progress == Progress::Changed;
        self.is_begun |= self.pods.values().any(has_begun) && self.pods.values().any(|followed| followed.progress == Progress::Held);
        let mut pods = Vec::with_capacity(self.pods.len());
        for (name, followed) in &mut self.pods {
            let state = states.get(name.as_str()).copied().flatten();
            if let Some(state) = state {
                followed.figures.take(state, self.is_begun);
            }
            // a certificate that is refused meanwhile is no fault of what spreads
            let refused = state.iter().flat_map(|state| state.refused.iter()).map(|refusal| &refusal.resource);
            pods.push(Pod {
                name: name.as_str().into(),
                zone: followed.place.zone.clone(),
                serves: followed.place.serves,
                served: followed.served && state.is_none_or(|state| !state.drained),
                progress: followed.progress,
                since: followed.since,
                was_before: followed.was_before,
                refused: refused.filter(|key| (moving.has)(key)).cloned().collect(),
                health: followed.figures.health(),
            });
        }
        Observed { rules, proven: moving.proven, zones: zones.to_vec(), pods }
    }

    /// Takes in how far the pod `name` is.
    fn follow(&mut self, name: &str, state: Option<&AgentState>, seen: &Seen<'_>, rules: Rules, is_first: bool, now: Duration) {
        let place = seen.places.get(name).cloned();
        if place.as_ref().is_some_and(|place| place.ends) {
            // it is meant to go: what becomes of it says nothing
            self.pods.remove(name);
            return;
        }
        let released = self.released.get(name).filter(|(up_to, _)| *up_to >= self.generation).map(|(_, reloads)| *reloads);
        let before = self.pods.get(name);
        let progress = progress(state, seen.digest, self.generation, released, before);
        let place = place.unwrap_or_else(|| Place {
            zone: before.map(|before| before.place.zone.clone()).unwrap_or_default(),
            serves: state.is_some_and(|state| state.ready),
            ends: false,
        });
        let followed = self.pods.entry(name.to_owned()).or_insert_with(|| Followed {
            progress,
            since: now,
            lost: None,
            was_before: false,
            served: false,
            reloads: 0,
            is_overtaken: false,
            place: Place::default(),
            figures: Figures::default(),
        });
        followed.served = place.serves || followed.served && self.released.contains_key(name);
        followed.place = place;
        if let Some(state) = state {
            followed.reloads = state.reload_count;
            followed.is_overtaken = progress == Progress::Held && state.held_from > self.generation;
        }
        followed.goes_on(progress, rules, now);
        // what serves and has yet to get it serves what was before
        let is_as_before = matches!(progress, Progress::Held | Progress::Behind) || is_first;
        followed.was_before |= is_as_before && state.is_some_and(|state| state.ready);
    }

    /// Lets `pods` go, and returns those that were not let before.
    pub(super) fn let_go(&mut self, pods: Vec<Arc<str>>) -> Vec<Arc<str>> {
        let mut let_now = pods;
        let_now.retain(|pod| {
            let reloads = self.pods.get(&**pod).map_or(0, |followed| followed.reloads);
            let before = self.released.get(&**pod).is_some_and(|(up_to, _)| *up_to == self.generation);
            if !before {
                self.released.insert(pod.to_string(), (self.generation, reloads));
            }
            !before
        });
        let is_held = |pod: &Arc<str>| self.pods.get(&**pod).is_some_and(|followed| followed.progress == Progress::Held);
        self.is_begun |= let_now.iter().any(is_held);
        let_now
    }

    /// Whether what is on its way is not what those of `pods` wait for that have it yet to come, but what came later in
    /// its place: letting them is in vain.
    pub(super) fn is_overtaken(&self, pods: &[Arc<str>]) -> bool {
        let followed = pods.iter().filter_map(|pod| self.pods.get(&**pod));
        let mut held = followed.filter(|followed| followed.progress == Progress::Held).peekable();
        held.peek().is_some() && held.all(|followed| followed.is_overtaken)
    }

    /// What came up to `generation` is part of it, and goes to one pod first.
    pub(super) fn take_in(&mut self, generation: u64) {
        (self.generation, self.is_begun) = (generation, false);
        for followed in self.pods.values_mut() {
            followed.figures = Figures::default();
        }
    }

    /// Whether nobody has it yet to come.
    pub(super) fn is_through(&self) -> bool {
        self.pods.values().all(|followed| matches!(followed.progress, Progress::Changed | Progress::New))
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

/// How far a pod is, of which `before` was seen last and that had reloaded so often when it was let, if it was.
fn progress(state: Option<&AgentState>, digest: Digest, generation: u64, released: Option<u64>, before: Option<&Followed>) -> Progress {
    let before = before.filter(|before| before.was_before);
    let is_lost = before.is_some_and(Followed::has_it);
    let Some(state) = state else { return if is_lost { Progress::Lost } else { Progress::Behind } };
    if !state.ready {
        return match before {
            Some(_) if is_lost => Progress::Lost,
            // its HAProxy starts again with what it had
            Some(before) => before.progress,
            None => Progress::New,
        };
    }
    if is_behind(Some(state), digest, generation) {
        // its agent starts again
        return if is_lost && released.is_some() { Progress::Lost } else { Progress::Behind };
    }
    // whoever waits for what came later and did not reload since it was let may have nothing of what came before: of what is
    // changed twice, agents know the last time
    let is_overtaken = state.held_from > generation && released.is_none_or(|reloads| state.reload_count <= reloads);
    match state.held > 0 && (is_held(state, generation) || is_overtaken) {
        true if released.is_none() || is_overtaken && !state.reload_pending => Progress::Held,
        true => Progress::Let,
        false if is_reloading(state) => Progress::Let,
        false => Progress::Changed,
    }
}

impl Followed {
    /// Whether it has the change, or was let have it, and was there before it.
    fn has_it(&self) -> bool {
        self.was_before && matches!(self.progress, Progress::Let | Progress::Changed | Progress::Lost)
    }

    fn goes_on(&mut self, progress: Progress, rules: Rules, now: Duration) {
        if self.progress == Progress::Changed && now.saturating_sub(self.since) >= rules.observation {
            self.lost = None;
        }
        if self.progress == progress {
            return;
        }
        if progress == Progress::Changed {
            self.figures.begin();
        }
        // one that comes and goes is lost since it first went
        let since = if progress == Progress::Lost { *self.lost.get_or_insert(now) } else { now };
        (self.progress, self.since) = (progress, since);
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
    use Progress::{Behind, Changed, Held, Lost};

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

    pub(super) const RULES: Rules = Rules { observation: Duration::from_secs(12), patience: Duration::from_secs(60) };

    const MOVING: Moving<'static> = Moving { proven: false, has: &|key| matches!(key, ResourceKey::Section(_)) };

    /// Agents that say these, in pods that serve.
    pub(super) fn agents(states: &[(&'static str, AgentState)]) -> Vec<(&'static str, AgentReport)> {
        let report = |state: &AgentState| AgentReport {
            connected_since: std::time::SystemTime::UNIX_EPOCH,
            agent_version: String::new(),
            haproxy_version: String::new(),
            state: Some(state.clone()),
        };
        states.iter().map(|(name, state)| (*name, report(state))).collect()
    }

    pub(super) fn pod(serves: bool) -> Place {
        Place { zone: "a".into(), serves, ends: false }
    }

    /// How far pods are by the planner's input.
    fn look(wave: &mut Wave, states: &[(&'static str, AgentState)], places: &[(&str, Place)], now: u64) -> BTreeMap<String, Progress> {
        let agents = agents(states);
        let places = places.iter().map(|(name, place)| ((*name).to_owned(), place.clone())).collect();
        let seen = Seen { agents: agents.iter().map(|(name, report)| (*name, report)).collect(), places, digest: Digest(0) };
        let observed = wave.observe(&seen, RULES, &[], MOVING, Duration::from_secs(now));
        observed.pods.iter().map(|pod| (pod.name.to_string(), pod.progress)).collect()
    }

    fn all(of: &[(&str, Progress)]) -> BTreeMap<String, Progress> {
        of.iter().map(|(name, progress)| ((*name).to_owned(), *progress)).collect()
    }

    fn says(held: u32, held_from: u64, generation: u64) -> AgentState {
        AgentState { ready: true, held, waiting: held, held_from, generation, digest: Digest(9), ..AgentState::default() }
    }

    #[test]
    fn a_pod_that_is_lost_with_the_change_stays_in_the_wave_unless_it_is_to_go() {
        let (here, held, has) = ([("a", pod(true)), ("b", pod(true))], says(1, 5, 5), says(0, 0, 5));
        let down = AgentState { ready: false, ..has.clone() };
        let begin = || {
            let mut wave = Wave::new(5);
            assert_eq!(look(&mut wave, &[("a", held.clone()), ("b", held.clone())], &here, 0), all(&[("a", Held), ("b", Held)]));
            // its HAProxy starts again as it was
            let restarts = AgentState { ready: false, ..held.clone() };
            assert_eq!(look(&mut wave, &[("a", held.clone()), ("b", restarts)], &here, 1), all(&[("a", Held), ("b", Held)]));
            wave.let_go(vec!["a".into()]);
            look(&mut wave, &[("a", has.clone()), ("b", held.clone())], &here, 2);
            wave
        };
        let lost = all(&[("a", Lost), ("b", Held)]);
        let mut wave = begin();
        assert_eq!(look(&mut wave, &[("a", down), ("b", held.clone())], &here, 3), lost);
        assert_eq!(look(&mut wave, &[("b", held.clone())], &here, 4), lost, "and its agent");
        assert_eq!(look(&mut wave, &[("b", held.clone())], &here[1..], 5), lost, "and its node");
        assert_eq!(wave.pods["a"].since, Duration::from_secs(3));
        let ends = [("a", Place { ends: true, ..pod(false) }), here[1].clone()];
        assert_eq!(look(&mut wave, &[("b", held.clone())], &ends, 6), all(&[("b", Held)]), "somebody deletes it");
        assert_eq!(look(&mut wave, &[("b", held.clone())], &here[1..], 7), all(&[("b", Held)]));
        // one that comes and goes is lost since it first went
        let mut wave = begin();
        look(&mut wave, &[("b", held.clone())], &here, 10);
        look(&mut wave, &[("a", has.clone()), ("b", held.clone())], &here, 15);
        assert_eq!(look(&mut wave, &[("b", held)], &here, 20), lost);
        assert_eq!(wave.pods["a"].since, Duration::from_secs(10));
    }

    #[test]
    fn what_is_changed_twice_is_still_to_come_for_those_who_did_not_reload() {
        let mut wave = Wave::new(5);
        let here = [("a", pod(true)), ("b", pod(true)), ("c", pod(true))];
        look(&mut wave, &["a", "b", "c"].map(|name| (name, says(1, 5, 5))), &here, 0);
        wave.let_go(vec!["a".into(), "c".into()]);
        // it changes again: `a` has what came first, `b` was not let and `c` was too late
        let has = AgentState { reload_count: 1, ..says(1, 6, 6) };
        let states = [("a", has), ("b", says(1, 6, 6)), ("c", says(1, 6, 6))];
        assert_eq!(look(&mut wave, &states, &here, 1), all(&[("a", Changed), ("b", Held), ("c", Held)]));
        assert!(!wave.is_overtaken(&["a".into()]) && wave.is_overtaken(&["b".into(), "c".into()]));
        assert!(!wave.is_through());
        wave.take_in(6);
        assert_eq!(look(&mut wave, &states, &here, 2), all(&[("a", Held), ("b", Held), ("c", Held)]));
        assert!(!wave.is_overtaken(&["b".into()]));
        // an agent that starts again in between knows nothing of when things came
        let mut wave = Wave::new(5);
        look(&mut wave, &[("a", says(1, 5, 5))], &here[..1], 0);
        assert_eq!(look(&mut wave, &[("a", says(1, 6, 6))], &here[..1], 1), all(&[("a", Held)]));
    }

    #[test]
    fn whoever_served_when_it_was_let_is_expected_to_serve_unless_it_is_drained() {
        let mut wave = Wave::new(5);
        let served = |wave: &mut Wave, state: AgentState, serves: bool| {
            let agents = agents(&[("a", state)]);
            let places = [("a".to_owned(), pod(serves))].into();
            let seen = Seen { agents: agents.iter().map(|(name, report)| (*name, report)).collect(), places, digest: Digest(0) };
            wave.observe(&seen, RULES, &[], MOVING, Duration::ZERO).pods[0].served
        };
        assert!(served(&mut wave, says(1, 5, 5), true));
        assert!(!served(&mut wave, says(1, 5, 5), false), "it did not when its turn came");
        assert!(served(&mut wave, says(1, 5, 5), true));
        wave.let_go(vec!["a".into()]);
        assert!(served(&mut wave, says(0, 0, 5), false));
        assert!(!served(&mut wave, AgentState { drained: true, ..says(0, 0, 5) }, false));
    }

    #[test]
    fn a_pod_that_serves_and_is_not_connected_has_it_yet_to_come() {
        let mut wave = Wave::new(5);
        let here = [("a", pod(true)), ("b", pod(true)), ("c", pod(false))];
        let has = says(0, 0, 5);
        assert_eq!(look(&mut wave, &[("a", has.clone()), ("b", says(1, 5, 5))], &here, 0), all(&[("a", Changed), ("b", Held)]));
        assert_eq!(look(&mut wave, &[("a", has.clone())], &here, 1), all(&[("a", Changed), ("b", Behind)]));
        assert!(!wave.is_through());
        let places: Places = here.iter().map(|(name, place)| ((*name).to_owned(), place.clone())).collect();
        let is_whole = |states: &[(&'static str, AgentState)], places: &Places| {
            let agents = agents(states);
            let agents = agents.iter().map(|(name, report)| (*name, report)).collect();
            Seen { agents, places: places.clone(), digest: Digest(0) }.is_whole()
        };
        assert!(!is_whole(&[("a", has.clone())], &places));
        assert!(is_whole(&[("a", has.clone()), ("b", has.clone())], &places));
        assert!(!is_whole(&[("a", has.clone()), ("b", AgentState { refused_count: 1, ..has })], &places));
        assert!(!is_whole(&[], &[("c".to_owned(), pod(false))].into()), "nobody has it");
        assert!(is_whole(&[], &Places::new()), "there is nobody");
    }

    #[test]
    fn only_what_is_on_its_way_is_refused_on_its_account() {
        let refusal = |resource| crate::agent::Refusal { generation: 5, sources: Arc::new([]), resource, message: String::new() };
        let section = ResourceKey::Section("20-frontends".into());
        let refused = [refusal(ResourceKey::Certificate("certs/a.pem".into())), refusal(section.clone())];
        let agents = agents(&[("a", AgentState { refused: refused.into(), ..says(0, 0, 5) })]);
        let agents = agents.iter().map(|(name, report)| (*name, report)).collect();
        let seen = Seen { agents, places: Places::new(), digest: Digest(0) };
        let observed = Wave::new(5).observe(&seen, RULES, &[], MOVING, Duration::ZERO);
        assert_eq!(observed.pods[0].refused, [section].into());
    }

    #[test]
    fn a_wave_that_begins_with_pods_that_have_it_compares_them_at_once() {
        let mut wave = Wave::new(5);
        let here = [("a", pod(true)), ("b", pod(true))];
        for number in 1..4 {
            let fares = |failed: u64, state: AgentState| {
                let health = Some(Look { number, requests: 100 * number, failed: failed * number, ..Look::default() });
                AgentState { health, ..state }
            };
            look(&mut wave, &[("a", fares(50, says(0, 0, 5))), ("b", fares(0, says(1, 5, 5)))], &here, 2 * number);
        }
        let counted = |name: &str| wave.pods[name].figures.health().map(|health| (health.requests, health.failed));
        assert_eq!((counted("a"), counted("b")), (Some((200, 100)), Some((200, 0))));
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
