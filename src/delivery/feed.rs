//! What each fleet is to serve, and what its agents say: the state between the operator's stages and its server.
//!
//! Nothing is queued for an agent. Whoever follows a feed remembers where it is (a digest) and asks for the way from
//! there to the present: the changes since if the log still has them, else everything. So an agent that is slow gets
//! one step over all that it missed.

use super::ended::{DrainResult, Endings};
use crate::agent::{Ending, Health, Refusal, ReloadRecord};
use crate::haproxy::bundle::{Bundle, Change, Digest, Name, Resource, ResourceKey};
use crate::model::FleetId;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;
use tokio::sync::watch;

/// Changes that a log keeps: about as many as are cheaper to send than everything.
const LOGGED_CHANGES: usize = 20_000;

/// The term of the lease as this replica knows it, and whether it holds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Authority {
    /// Grows with every change of the holder; 0 until it is known.
    pub term: u64,
    /// Whether this replica leads.
    pub leads: bool,
}

/// What a stage made of a fleet.
#[derive(Clone, Copy, Debug)]
pub struct Published<'a> {
    /// The number of the bundle; 0 from a replica that does not lead.
    pub generation: u64,
    /// What differs from what was published before.
    pub changes: &'a [Change],
    /// All of it. It is read only where `changes` do not lead to it.
    pub bundle: &'a Bundle,
}

/// What the agent of one pod said last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentReport {
    /// Since when it is connected.
    pub connected_since: SystemTime,
    /// Its version.
    pub agent_version: String,
    /// The version of its HAProxy.
    pub haproxy_version: String,
    /// What it applied; `None` until it says.
    pub state: Option<AgentState>,
}

/// The state of one HAProxy, as its agent said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // each is a fact of its own
pub struct AgentState {
    /// The generation that was applied last, 0 if that came without a number.
    pub generation: u64,
    /// The digest of it.
    pub digest: Digest,
    /// Whether it serves a configuration.
    pub ready: bool,
    /// Whether it serves what it found when it started.
    pub last_good: bool,
    /// How many resources wait for a reload, are set aside, or are held back for one that is.
    pub waiting: u32,
    /// How many ask for a reload that was not released.
    pub held: u32,
    /// Reloads since the start of the agent.
    pub reload_count: u64,
    /// The last 50 of them.
    pub reloads: VecDeque<ReloadRecord>,
    /// What is set aside at present, or the first of it.
    pub refused: Arc<[Refusal]>,
    /// How much of that there is.
    pub refused_count: u32,
    /// Commands sent since the start of the agent.
    pub runtime_commands: u64,
    /// How many things in the running process were repaired.
    pub drift_repairs: u64,
    /// How often HAProxy was started again.
    pub restarts: u64,
    /// How often in a row it was started in vain.
    pub failed_starts: u64,
    /// Open connections of clients. Nobody is woken for another number, only when the last one ends or the first one begins.
    pub connections: u64,
    /// Whether the pod is drained by hand.
    pub drained: bool,
    /// Whether a reload that was released is due or under way.
    pub reload_pending: bool,
    /// The first generation that something of `held` came with; 0 if nothing is, or nobody says.
    pub held_from: u64,
    /// Workers of before a reload that still serve somebody.
    pub old_workers: u32,
    /// How it fares, while that is watched.
    pub health: Option<Health>,
}

/// What agents said last, by fleet and pod. Only those that are connected.
pub type Agents = Arc<BTreeMap<(FleetId, String), Arc<AgentReport>>>;

/// What every fleet is to serve. A clone is another handle of the same.
#[derive(Clone, Debug)]
pub struct Feeds {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    feeds: Mutex<BTreeMap<FleetId, Arc<Feed>>>,
    authority: watch::Sender<Authority>,
    highest_term: watch::Sender<u64>,
    agents: watch::Sender<Agents>,
    ended: watch::Sender<Arc<Endings>>,
    connections: Mutex<Connections>,
}

/// Which connection of a pod is the newest: an older one may be noticed late.
#[derive(Debug, Default)]
struct Connections {
    last: u64,
    newest: BTreeMap<(FleetId, String), u64>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Default for Feeds {
    fn default() -> Self {
        Self::new()
    }
}

impl Feeds {
    /// No fleet yet, and nobody leads.
    pub fn new() -> Self {
        let shared = Shared {
            feeds: Mutex::default(),
            authority: watch::Sender::default(),
            highest_term: watch::Sender::default(),
            agents: watch::Sender::default(),
            ended: watch::Sender::default(),
            connections: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Makes `published` what the agents of `fleet` are to serve.
    pub fn publish(&self, fleet: &FleetId, published: Published<'_>) {
        self.feed(fleet).publish(published);
    }

    /// Forgets `fleet`: its agents keep what they have.
    pub fn remove(&self, fleet: &FleetId) {
        if let Some(feed) = locked(&self.shared.feeds).get(fleet) {
            feed.forget();
        }
        self.shared.ended.send_modify(|endings| Arc::make_mut(endings).forget(fleet));
    }

    /// Says whether this replica leads. What one that leads no more said of pods that are drained may not hold when it leads
    /// again.
    pub fn set_authority(&self, authority: Authority) {
        if !authority.leads {
            locked(&self.shared.feeds).values().for_each(|feed| feed.set_drained(None));
        }
        self.shared.authority.send_if_modified(|present| std::mem::replace(present, authority) != authority);
    }

    /// Says which pods of `fleet` are drained by hand; all others are not. Until this is called nothing is said to any of
    /// them, and each stays as it is. It costs nothing to say it again, which whoever leads does with every look.
    pub fn set_drained(&self, fleet: &FleetId, pods: &BTreeSet<String>) {
        self.feed(fleet).set_drained(Some(pods));
    }

    /// How pods ended.
    pub fn ended(&self) -> watch::Receiver<Arc<Endings>> {
        self.shared.ended.subscribe()
    }

    /// Lets all agents of `fleet` reload for what came with `generation` or before.
    pub fn release(&self, fleet: &FleetId, generation: u64) {
        self.feed(fleet).release(None, generation);
    }

    /// Lets the agent of `pod` reload for what came with `generation` or before.
    pub fn release_pod(&self, fleet: &FleetId, pod: &str, generation: u64) {
        self.feed(fleet).release(Some(pod), generation);
    }

    /// Says in which zone each pod of `fleet` is, by [`crate::report::object_number`].
    pub fn place(&self, fleet: &FleetId, zones: BTreeMap<u64, Name>) {
        self.feed(fleet).place(zones);
    }

    /// What agents said last.
    pub fn agents(&self) -> watch::Receiver<Agents> {
        self.shared.agents.subscribe()
    }

    /// The highest term that agents have heard of. They obey nobody below it, so a lease that was lost and made anew
    /// has to go on above.
    pub fn highest_term(&self) -> watch::Receiver<u64> {
        self.shared.highest_term.subscribe()
    }

    pub(crate) fn authority(&self) -> watch::Receiver<Authority> {
        self.shared.authority.subscribe()
    }

    pub(crate) fn heard_of_term(&self, term: u64) {
        self.shared.highest_term.send_if_modified(|highest| term > std::mem::replace(highest, term.max(*highest)));
    }

    /// The feed of `fleet`, which may be empty so far.
    pub(crate) fn feed(&self, fleet: &FleetId) -> Arc<Feed> {
        locked(&self.shared.feeds).entry(fleet.clone()).or_default().clone()
    }

    /// Registers a connection of a pod.
    pub(crate) fn connected(&self, fleet: &FleetId, pod: &str, report: AgentReport) -> Connection {
        let key = (fleet.clone(), pod.to_owned());
        let mut connections = locked(&self.shared.connections);
        connections.last += 1;
        let number = connections.last;
        connections.newest.insert(key.clone(), number);
        self.shared.agents.send_modify(|agents| _ = Arc::make_mut(agents).insert(key.clone(), Arc::new(report)));
        Connection { feeds: self.clone(), key, number }
    }
}

/// One connection of the agent of a pod. What it said is forgotten with it.
#[derive(Debug)]
pub(crate) struct Connection {
    feeds: Feeds,
    key: (FleetId, String),
    number: u64,
}

impl Connection {
    /// Takes what the agent says. `change` says whether that is news.
    pub(crate) fn said(&self, change: impl FnOnce(&mut AgentReport) -> bool) {
        let connections = locked(&self.feeds.shared.connections);
        if connections.newest.get(&self.key) != Some(&self.number) {
            return;
        }
        self.feeds
            .shared
            .agents
            .send_if_modified(|agents| Arc::make_mut(agents).get_mut(&self.key).is_some_and(|report| change(Arc::make_mut(report))));
    }

    /// Takes the last word of the agent.
    pub(crate) fn ended(&self, ending: Ending) {
        let (fleet, pod) = self.key.clone();
        self.feeds.shared.ended.send_modify(|endings| Arc::make_mut(endings).push(DrainResult { fleet, pod, ending }));
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut connections = locked(&self.feeds.shared.connections);
        if connections.newest.get(&self.key) != Some(&self.number) {
            return;
        }
        connections.newest.remove(&self.key);
        self.feeds.shared.agents.send_modify(|agents| _ = Arc::make_mut(agents).remove(&self.key));
    }
}

/// What one fleet is to serve, and how it came to that.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    state: Mutex<State>,
    moved: watch::Sender<()>,
}

#[derive(Debug, Default)]
struct State {
    present: Option<Present>,
    released: u64,
    released_pods: BTreeMap<String, u64>,
    /// `None`: it is not known which pods are drained by hand.
    drained: Option<BTreeSet<String>>,
    zones: BTreeMap<u64, Name>,
}

#[derive(Debug)]
struct Present {
    generation: u64,
    bundle: Bundle,
    log: Log,
}

/// The way from where somebody is to the present.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) generation: u64,
    pub(crate) digest: Digest,
    /// What `set` and `removed` change; `None`: they are everything.
    pub(crate) base: Option<Digest>,
    pub(crate) set: Vec<Arc<Resource>>,
    pub(crate) removed: Vec<ResourceKey>,
}

impl Feed {
    fn publish(&self, published: Published<'_>) {
        let mut state = locked(&self.state);
        let Published { generation, changes, bundle } = published;
        match &mut state.present {
            None => state.present = Some(Present { generation, bundle: bundle.clone(), log: Log::default() }),
            Some(present) => {
                let before = present.bundle.digest();
                present.generation = generation;
                present.bundle.apply(changes);
                if present.bundle.digest() == bundle.digest() {
                    present.log.push(before, changes);
                } else {
                    // something was not published, or not all of it
                    present.bundle = bundle.clone();
                    present.log = Log::default();
                }
            }
        }
        drop(state);
        self.moved.send_replace(());
    }

    fn forget(&self) {
        *locked(&self.state) = State::default();
        self.moved.send_replace(());
    }

    fn release(&self, pod: Option<&str>, generation: u64) {
        let mut state = locked(&self.state);
        let released = match pod {
            None => &mut state.released,
            Some(pod) => state.released_pods.entry(pod.to_owned()).or_default(),
        };
        *released = generation.max(*released);
        let everywhere = state.released;
        state.released_pods.retain(|_, released| *released > everywhere);
        drop(state);
        self.moved.send_replace(());
    }

    fn set_drained(&self, pods: Option<&BTreeSet<String>>) {
        let mut state = locked(&self.state);
        if state.drained.as_ref() != pods {
            state.drained = pods.cloned();
            drop(state);
            self.moved.send_replace(());
        }
    }

    /// Whether `pod` is drained by hand, if that is known.
    pub(crate) fn drained(&self, pod: &str) -> Option<bool> {
        locked(&self.state).drained.as_ref().map(|pods| pods.contains(pod))
    }

    fn place(&self, zones: BTreeMap<u64, Name>) {
        let mut state = locked(&self.state);
        if std::mem::replace(&mut state.zones, zones) == state.zones {
            return;
        }
        drop(state);
        self.moved.send_replace(());
    }

    /// The zone of the pod with the number `pod`, if that is known.
    pub(crate) fn zone_of(&self, pod: u64) -> Option<Name> {
        locked(&self.state).zones.get(&pod).cloned()
    }

    /// Marks every change of what is published or released, of who is drained, and of where pods are.
    pub(crate) fn moved(&self) -> watch::Receiver<()> {
        self.moved.subscribe()
    }

    /// Up to which generation `pod` may reload.
    pub(crate) fn released(&self, pod: &str) -> u64 {
        let state = locked(&self.state);
        state.released_pods.get(pod).copied().unwrap_or_default().max(state.released)
    }

    /// The bundle that had the digest `at`, if that is not long ago and not the present one.
    pub(crate) fn as_of(&self, at: Digest) -> Option<Delivery> {
        let state = locked(&self.state);
        let Present { bundle, log, .. } = state.present.as_ref()?;
        if at == bundle.digest() {
            return None;
        }
        let mut old = bundle.clone();
        old.apply(&log.back_to(at)?);
        let set = old.resources().cloned().collect();
        // whoever numbered it may not lead any more
        Some(Delivery { generation: 0, digest: old.digest(), base: None, set, removed: Vec::new() })
    }

    /// The way from `at` to the present; `None` while nothing is published.
    pub(crate) fn way_from(&self, at: Option<Digest>) -> Option<Delivery> {
        let state = locked(&self.state);
        let Present { generation, bundle, log } = state.present.as_ref()?;
        let (generation, digest) = (*generation, bundle.digest());
        let Some(since) = at.and_then(|at| if at == digest { Some(BTreeMap::new()) } else { log.since(at) }) else {
            let set = bundle.resources().cloned().collect();
            return Some(Delivery { generation, digest, base: None, set, removed: Vec::new() });
        };
        let mut delivery = Delivery { generation, digest, base: at, set: Vec::new(), removed: Vec::new() };
        for (key, after) in since {
            match after {
                Some(resource) => delivery.set.push(resource),
                None => delivery.removed.push(key),
            }
        }
        Some(delivery)
    }
}

/// The last changes, by the digest of what they changed.
#[derive(Debug, Default)]
struct Log {
    entries: VecDeque<(Digest, Arc<[Change]>)>,
    /// The number of the first entry.
    first: u64,
    /// The last entry that changed a bundle of this digest.
    by_digest: BTreeMap<Digest, u64>,
    changes: usize,
}

impl Log {
    fn push(&mut self, before: Digest, changes: &[Change]) {
        if changes.is_empty() {
            return;
        }
        let number = self.first + self.entries.len() as u64;
        self.entries.push_back((before, changes.into()));
        self.by_digest.insert(before, number);
        self.changes += changes.len();
        while self.changes > LOGGED_CHANGES {
            let Some((digest, changes)) = self.entries.pop_front() else { break };
            if self.by_digest.get(&digest) == Some(&self.first) {
                self.by_digest.remove(&digest);
            }
            self.first += 1;
            self.changes -= changes.len();
        }
    }

    /// All changes since `at`, in order.
    fn changes_since(&self, at: Digest) -> Option<impl DoubleEndedIterator<Item = &Change>> {
        let start = usize::try_from(self.by_digest.get(&at)? - self.first).ok()?;
        Some(self.entries.range(start..).flat_map(|(_, changes)| changes.iter()))
    }

    /// What became of each resource that changed since `at`.
    fn since(&self, at: Digest) -> Option<BTreeMap<ResourceKey, Option<Arc<Resource>>>> {
        Some(self.changes_since(at)?.map(|change| (change.key.clone(), change.after.clone())).collect())
    }

    /// What leads back to `at`.
    fn back_to(&self, at: Digest) -> Option<Vec<Change>> {
        let back = |change: &Change| Change { key: change.key.clone(), before: change.after.clone(), after: change.before.clone() };
        Some(self.changes_since(at)?.rev().map(back).collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::haproxy::bundle::Content;

    fn fleet() -> FleetId {
        FleetId { namespace: "infra".into(), name: "edge".into() }
    }

    fn set(bundle: &mut Bundle, name: &str, text: Option<&str>) -> Change {
        let key = ResourceKey::Section(name.into());
        let resource = text.map(|text| Resource::new(key.clone(), Content::Section(text.into()), Arc::new([])));
        bundle.set(&key, resource).unwrap()
    }

    struct Fleet {
        feeds: Feeds,
        bundle: Bundle,
        generation: u64,
    }

    impl Fleet {
        fn new() -> Self {
            let mut fleet = Self { feeds: Feeds::new(), bundle: Bundle::default(), generation: 0 };
            fleet.change("a", Some("a"));
            fleet
        }

        fn change(&mut self, name: &str, text: Option<&str>) -> Digest {
            let before = self.bundle.digest();
            let change = set(&mut self.bundle, name, text);
            self.generation += 1;
            let published = Published { generation: self.generation, changes: &[change], bundle: &self.bundle };
            self.feeds.publish(&fleet(), published);
            before
        }

        fn way_from(&self, at: Option<Digest>) -> Delivery {
            self.feeds.feed(&fleet()).way_from(at).unwrap()
        }
    }

    #[test]
    fn whoever_has_the_present_bundle_is_sent_nothing() {
        let fleet = Fleet::new();
        let way = fleet.way_from(Some(fleet.bundle.digest()));
        assert_eq!((way.base, way.set.len(), way.removed.len()), (Some(fleet.bundle.digest()), 0, 0));
    }

    #[test]
    fn whoever_missed_changes_gets_the_last_of_each_resource_in_one_step() {
        let mut fleet = Fleet::new();
        let start = fleet.change("b", Some("1"));
        fleet.change("b", Some("2"));
        fleet.change("c", Some("c"));
        fleet.change("a", None);
        let way = fleet.way_from(Some(start));
        assert_eq!(way.base, Some(start));
        assert_eq!(way.set.iter().map(|resource| resource.key.to_string()).collect::<Vec<_>>(), ["section b", "section c"]);
        assert_eq!(way.removed, [ResourceKey::Section("a".into())]);
        assert_eq!((way.generation, way.digest), (5, fleet.bundle.digest()));
    }

    #[test]
    fn a_bundle_that_comes_back_starts_from_its_last_change() {
        let mut fleet = Fleet::new();
        let start = fleet.change("b", Some("b"));
        fleet.change("b", None);
        assert_eq!(fleet.change("c", Some("c")), start);
        let way = fleet.way_from(Some(start));
        assert_eq!(way.set.len(), 1);
        assert!(way.removed.is_empty());
    }

    #[test]
    fn a_bundle_of_a_while_ago_is_known_as_it_was() {
        let mut fleet = Fleet::new();
        let mut known = Vec::new();
        for (name, text) in [("b", Some("1")), ("b", Some("2")), ("c", Some("c")), ("a", None), ("b", None), ("a", Some("a"))] {
            known.push(fleet.bundle.clone());
            fleet.change(name, text);
        }
        let feed = fleet.feeds.feed(&super::tests::fleet());
        for bundle in known {
            let found = feed.as_of(bundle.digest()).unwrap();
            assert_eq!((found.digest, found.base), (bundle.digest(), None));
            assert!(found.set.iter().eq(bundle.resources()));
        }
        assert_eq!(feed.as_of(fleet.bundle.digest()), None);
        assert_eq!(feed.as_of(Digest(1)), None);
    }

    #[test]
    fn whoever_is_unknown_or_too_far_behind_gets_everything() {
        let mut fleet = Fleet::new();
        let start = fleet.bundle.digest();
        for number in 0..=LOGGED_CHANGES {
            fleet.change("b", Some(&number.to_string()));
        }
        for at in [None, Some(Digest(1)), Some(start)] {
            let way = fleet.way_from(at);
            assert_eq!((way.base, way.set.len()), (None, 2), "{at:?}");
        }
        let feed = fleet.feeds.feed(&super::tests::fleet());
        let state = locked(&feed.state);
        let log = &state.present.as_ref().unwrap().log;
        assert_eq!((log.entries.len(), log.by_digest.len()), (LOGGED_CHANGES, LOGGED_CHANGES));
    }

    #[test]
    fn changes_that_do_not_lead_to_the_bundle_are_not_passed_on() {
        let mut fleet = Fleet::new();
        let start = fleet.bundle.digest();
        // one change is never published
        set(&mut fleet.bundle, "b", Some("b"));
        fleet.change("c", Some("c"));
        let way = fleet.way_from(Some(start));
        assert_eq!((way.base, way.set.len(), way.digest), (None, 3, fleet.bundle.digest()));
    }

    #[test]
    fn a_release_of_a_pod_is_for_that_pod_and_one_of_the_fleet_for_all() {
        let feeds = Fleet::new().feeds;
        feeds.release_pod(&fleet(), "pod-0", 7);
        let feed = feeds.feed(&fleet());
        assert_eq!((feed.released("pod-0"), feed.released("pod-1")), (7, 0));
        feeds.release(&fleet(), 9);
        feeds.release(&fleet(), 8);
        assert_eq!((feed.released("pod-0"), feed.released("pod-1")), (9, 9));
        assert!(locked(&feed.state).released_pods.is_empty());
    }

    #[test]
    fn what_an_older_connection_says_or_its_end_does_not_hide_the_newer_one() {
        let feeds = Feeds::new();
        let report = |version: &str| AgentReport {
            connected_since: SystemTime::UNIX_EPOCH,
            agent_version: version.to_owned(),
            haproxy_version: String::new(),
            state: None,
        };
        let older = feeds.connected(&fleet(), "pod-0", report("old"));
        let newer = feeds.connected(&fleet(), "pod-0", report("new"));
        older.said(|report| {
            report.agent_version = "late".to_owned();
            true
        });
        drop(older);
        let agents = feeds.agents();
        let version = |agents: &Agents| agents.get(&(fleet(), "pod-0".to_owned())).map(|report| report.agent_version.clone());
        assert_eq!(version(&agents.borrow()), Some("new".to_owned()));
        drop(newer);
        assert_eq!(version(&agents.borrow()), None);
    }

    #[test]
    fn who_is_drained_is_known_once_it_was_said_and_as_long_as_this_replica_leads() {
        let feeds = Feeds::new();
        feeds.set_authority(Authority { term: 1, leads: true });
        let feed = feeds.feed(&fleet());
        let mut moved = feed.moved();
        assert_eq!(feed.drained("pod-0"), None);
        feeds.set_drained(&fleet(), &BTreeSet::from(["pod-0".to_owned()]));
        assert_eq!((feed.drained("pod-0"), feed.drained("pod-1")), (Some(true), Some(false)));
        assert!(moved.has_changed().unwrap());
        moved.mark_unchanged();
        feeds.set_drained(&fleet(), &BTreeSet::from(["pod-0".to_owned()]));
        assert!(!moved.has_changed().unwrap(), "it was said again");
        feeds.set_authority(Authority { term: 2, leads: false });
        assert_eq!((feed.drained("pod-0"), feed.drained("pod-1")), (None, None));
    }

    #[test]
    fn only_a_higher_term_is_news() {
        let feeds = Feeds::new();
        let mut term = feeds.highest_term();
        feeds.heard_of_term(4);
        assert_eq!(*term.borrow_and_update(), 4);
        feeds.heard_of_term(3);
        assert!(!term.has_changed().unwrap());
    }
}
