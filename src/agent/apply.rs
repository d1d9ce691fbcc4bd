//! The serialised part: one update after the other, live as far as possible.

use super::execute::{Outcome, execute};
use super::last_good::Directory;
use super::process::Haproxy;
use super::runtime::{Master, Session};
use super::status::{Refusal, ReloadRecord, Status};
use super::stop;
use super::{Inbox, Reloads, Settings, UpdateContent};
use crate::haproxy::bundle::{Bundle, Change, Content, Digest, Name, Resource, ResourceKey, Server, Servers, file_of};
use crate::haproxy::plan::{Plan, Process, Step, Target, is_same, plan};
use crate::haproxy::version::Capabilities;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Notify, watch};
use tokio::time::Instant;

/// What HAProxy runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Base {
    /// Nothing but a health check.
    Bootstrap,
    /// A configuration from before the start of the agent, by its digest if that is known.
    LastGood(Option<Digest>),
    /// Exactly `accepted`.
    Accepted,
}

/// What the reaper shares with the applier.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) process: Process,
    pub(crate) worker: Option<u32>,
    /// Whether backends can be deleted.
    pub(crate) dynamic_backends: bool,
}

/// Everything about one HAProxy.
pub(crate) struct Applier {
    pub(crate) settings: Settings,
    pub(crate) capabilities: Capabilities,
    pub(crate) master: Master,
    pub(crate) directory: Directory,
    pub(crate) haproxy: Haproxy,
    pub(crate) worker: u32,
    /// Workers that may still run.
    pub(crate) workers: Vec<u32>,
    /// Old workers that already send their requests to the present one.
    pub(crate) relayed: BTreeSet<u32>,
    /// When to try again with those that did not take it.
    pub(crate) relay_due: Option<Instant>,
    pub(crate) session: Option<Session>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) shared: Arc<Mutex<Shared>>,
    pub(crate) reap: Arc<Notify>,
    pub(crate) base: Base,
    /// Where the pod is, once that is known.
    pub(crate) zone: Option<Name>,
    /// Backends whose requests stay in that zone.
    pub(crate) keeps_zone: BTreeSet<Name>,
    /// What was delivered last, with the shares that servers have in this zone.
    pub(crate) wanted: Bundle,
    /// What the files in `current/` hold.
    pub(crate) accepted: Bundle,
    pub(crate) generation: u64,
    /// Whether `wanted` is what was meant: its digest fitted.
    pub(crate) synced: bool,
    /// Where `accepted` is not, or may not be, what is wanted.
    pub(crate) waiting: BTreeSet<ResourceKey>,
    /// With which generation each of these came.
    pub(crate) since: BTreeMap<ResourceKey, u64>,
    /// Those that ask for a reload which is not allowed yet.
    pub(crate) held: BTreeSet<ResourceKey>,
    /// What HAProxy refused, and the hash of what it refused.
    pub(crate) aside: BTreeSet<ResourceKey>,
    pub(crate) refusals: BTreeMap<ResourceKey, (u128, Refusal)>,
    /// What it refused to do live.
    pub(crate) forced: BTreeMap<ResourceKey, String>,
    /// Somebody else reloaded: everything has to be read again.
    pub(crate) foreign_reload: bool,
    /// Files that could not be written yet.
    pub(crate) unwritten: BTreeSet<Name>,
    pub(crate) reasons: Vec<String>,
    pub(crate) last_reload: Option<Instant>,
    pub(crate) reload_due: Option<Instant>,
    /// While a reload is prepared: what was delivered or done meanwhile.
    pub(crate) meanwhile: Option<BTreeSet<ResourceKey>>,
    /// What the worker was told of being drained; `None`: its configuration knows nothing of it, or there is none.
    pub(crate) told_drained: Option<bool>,
    /// When to try again to tell it.
    pub(crate) drained_due: Option<Instant>,
    /// A reload that was not told yet: it is told along with what it led to.
    pub(crate) reloaded: Option<ReloadRecord>,
    pub(crate) status: watch::Sender<Status>,
}

/// The servers of a backend after only some of the steps were done.
fn servers_after<'a>(key: &ResourceKey, before: Option<&Arc<Resource>>, done: impl Iterator<Item = &'a Step>) -> Option<Resource> {
    let ResourceKey::Servers(_) = key else { return None };
    let (servers, sources) = match before.map(|resource| (&resource.content, &resource.sources)) {
        Some((Content::Servers(servers), sources)) => (servers.clone(), sources.clone()),
        _ => (Servers::default(), Arc::new([]) as Arc<[_]>),
    };
    let zones = servers.zones;
    let mut servers: BTreeMap<Name, Server> = servers.iter().map(|server| (server.name.clone(), server.clone())).collect();
    for step in done {
        match step {
            Step::AddServer { server, .. } | Step::ReturnServer { server, .. } | Step::SetWeight { server, .. } => {
                servers.insert(server.name.clone(), server.clone());
            }
            Step::RetireServer { server, .. } => _ = servers.remove(&server.name),
            _ => {}
        }
    }
    let servers = Servers { all: servers.into_values().collect(), zones };
    Some(Resource::new(key.clone(), Content::Servers(servers), sources))
}

impl Applier {
    /// Takes what was delivered and applies it.
    pub(crate) async fn absorb(&mut self) {
        self.move_to_zone();
        let updates = self.inbox.take();
        let delivered = !updates.is_empty();
        for update in updates {
            let keys: Vec<ResourceKey> = match &update.content {
                UpdateContent::Full(bundle) => {
                    self.recognise(bundle);
                    let before = std::mem::replace(&mut self.wanted, Bundle::clone(bundle));
                    self.weigh_all();
                    let keys: Vec<ResourceKey> = self.accepted.diff(&self.wanted).into_iter().map(|change| change.key).collect();
                    let hash = |bundle: &Bundle, key| bundle.get(key).map(|resource| resource.hash());
                    let new = keys.iter().filter(|key| hash(&before, key) != hash(&self.wanted, key));
                    self.since.extend(new.map(|key| (key.clone(), update.generation)));
                    self.synced = true;
                    keys
                }
                // not for the bundle that is here
                UpdateContent::Changes(_) if !self.synced => continue,
                UpdateContent::Changes(changes) => {
                    self.wanted.apply(changes);
                    self.since.extend(changes.iter().map(|change| (change.key.clone(), update.generation)));
                    let keys: Vec<ResourceKey> = changes.iter().map(|change| change.key.clone()).collect();
                    self.weigh(&keys);
                    keys
                }
            };
            self.synced &= self.wanted.digest() == update.digest;
            self.number(update.generation);
            self.look_at(keys);
        }
        if !self.synced {
            self.status.send_if_modified(|status| {
                status.out_of_sync |= delivered;
                delivered
            });
            return;
        }
        if self.base == Base::LastGood(Some(self.wanted.digest())) {
            self.recognise(&self.wanted.clone());
        }
        self.advance().await;
    }

    /// What was found at the start may be `bundle`.
    fn recognise(&mut self, bundle: &Bundle) {
        if self.base != Base::LastGood(Some(bundle.digest())) {
            return;
        }
        self.accepted = bundle.clone();
        self.waiting.clear();
        self.base = Base::Accepted;
        // what was done to it right before the agent ended may not be in the files
        self.foreign_reload |= matches!(self.haproxy, Haproxy::Attached(_));
    }

    /// What came from a replica that numbers nothing gets its number once the leader says it.
    fn number(&mut self, generation: u64) {
        if self.generation == 0 && generation > 0 {
            self.since.values_mut().filter(|since| **since == 0).for_each(|since| *since = generation);
        }
        self.generation = generation;
    }

    /// Whether a reload for the resource `key` has to wait until it is allowed.
    fn is_held(&self, key: &ResourceKey) -> bool {
        let Some(since) = self.since.get(key) else { return false };
        match self.inbox.reloads() {
            Reloads::All => false,
            Reloads::UpTo(generation) => *since == 0 || *since > generation,
            Reloads::None => true,
        }
    }

    pub(crate) fn look_at(&mut self, keys: Vec<ResourceKey>) {
        // a key that waits may be fine again
        let refused: Vec<ResourceKey> = self.refusals.keys().cloned().collect();
        for key in keys.iter().chain(&refused) {
            let hash = self.wanted.get(key).map_or(0, |resource| resource.hash());
            if self.refusals.get(key).is_some_and(|(refused, _)| *refused != hash) {
                self.refusals.remove(key);
                self.aside.remove(key);
            }
        }
        for key in keys {
            self.forced.remove(&key);
            self.meanwhile.iter_mut().for_each(|touched| _ = touched.insert(key.clone()));
            self.waiting.insert(key);
        }
    }

    pub(crate) fn target(&self) -> Target<'_> {
        Target { wanted: &self.wanted, aside: &self.aside, forced: &self.forced }
    }

    /// Does what can be done live, and says when the reload for the rest is due.
    pub(crate) async fn advance(&mut self) {
        if !self.synced || !self.haproxy.is_up() {
            return self.publish();
        }
        if self.stops_softly() {
            return self.publish();
        }
        if self.base != Base::Accepted {
            let serves = self.base != Base::Bootstrap;
            self.held.clear();
            self.reasons = vec!["the first configuration".to_owned()];
            if serves && self.inbox.reloads() == Reloads::None {
                self.held.clone_from(&self.waiting);
                self.reasons.clear();
            }
            self.schedule();
            return self.publish();
        }
        // each further round is the answer to something that HAProxy refused
        for _ in 0..16 {
            match self.round().await {
                Ok(true) => break,
                Ok(false) => {}
                Err(error) => {
                    self.lost_connection(&error);
                    break;
                }
            }
        }
        self.publish();
    }

    /// One plan and its execution; `true` if nothing was refused.
    async fn round(&mut self) -> io::Result<bool> {
        self.connect().await?;
        let shared = self.shared.clone();
        let mut shared = shared.lock().await;
        let plan = plan(&self.accepted, &shared.process, self.target(), &self.waiting, &self.capabilities);
        let Some(session) = &mut self.session else { return Err(io::ErrorKind::NotConnected.into()) };
        let outcome = execute(session, &plan.takes, &mut shared.process, self.capabilities.max_payload).await?;
        let lingering = !shared.process.lingering.servers.is_empty() || !shared.process.lingering.resources.is_empty();
        drop(shared);
        if lingering {
            self.reap.notify_one();
        }
        self.count(outcome.commands);
        let clean = outcome.failed.is_empty();
        self.accept(plan, outcome);
        Ok(clean)
    }

    /// Remembers and writes what is through.
    fn accept(&mut self, plan: Plan, outcome: Outcome) {
        for failure in outcome.failed {
            let key = plan.takes[failure.take].key.clone();
            tracing::warn!(resource = %key, message = failure.message, "HAProxy refused a live change");
            if failure.content {
                self.set_aside(&key, failure.message);
            } else {
                self.forced.insert(key, failure.message);
            }
        }
        self.waiting = plan.waiting;
        let mut changes = Vec::with_capacity(plan.takes.len());
        for (number, (mut take, finished)) in plan.takes.into_iter().zip(outcome.finished).enumerate() {
            let before = self.accepted.get(&take.key).cloned();
            if !finished {
                self.waiting.insert(take.key.clone());
                let done = outcome.done.iter().filter(|(of, _)| *of == number).filter_map(|(_, step)| take.steps.get(*step));
                let Some(partly) = servers_after(&take.key, before.as_ref(), done) else { continue };
                take.after = Some(Arc::new(partly));
            }
            if !is_same(before.as_ref(), take.after.as_ref()) {
                self.unwritten.insert(file_of(&take.key));
            }
            self.meanwhile.iter_mut().for_each(|touched| _ = touched.insert(take.key.clone()));
            changes.push(Change { key: take.key, before, after: take.after });
        }
        self.accepted.apply(&changes);
        self.write();
        self.since.retain(|key, _| self.waiting.contains(key));
        let reasons = plan.reload.map(|reload| reload.reasons).unwrap_or_default();
        let (held, allowed): (Vec<_>, Vec<_>) = reasons.into_iter().partition(|reason| self.is_held(&reason.key));
        self.held = held.into_iter().map(|reason| reason.key).collect();
        self.reasons = allowed.into_iter().map(|reason| reason.reason).collect();
        self.schedule();
    }

    /// Writes the files that changed. What fails is tried again with the next change and at every drift check.
    pub(crate) fn write(&mut self) {
        if self.unwritten.is_empty() || self.base != Base::Accepted {
            return;
        }
        let digest = self.settled();
        match self.directory.update(&self.accepted, &self.unwritten, digest) {
            Ok(()) => self.unwritten.clear(),
            Err(error) => tracing::error!(%error, "the configuration files cannot be written: a restart would lose changes"),
        }
    }

    /// The digest of what is wanted, if all of it is accepted.
    pub(crate) fn settled(&self) -> Option<Digest> {
        let digest = self.wanted.digest();
        (self.accepted.digest() == digest).then_some(digest)
    }

    fn schedule(&mut self) {
        self.reload_due = (!self.reasons.is_empty()).then(|| {
            let now = Instant::now();
            let earliest = self.last_reload.map_or(now, |last| last + self.settings.reload_interval);
            earliest.max(now)
        });
    }

    /// Keeps the resource `key` as it is until it changes.
    pub(crate) fn set_aside(&mut self, key: &ResourceKey, message: String) {
        let wanted = self.wanted.get(key);
        let hash = wanted.map_or(0, |resource| resource.hash());
        let sources = wanted.or_else(|| self.accepted.get(key)).map_or_else(|| Arc::new([]) as Arc<[_]>, |r| r.sources.clone());
        let refusal = Refusal { generation: self.generation, sources, resource: key.clone(), message };
        self.aside.insert(key.clone());
        self.refusals.insert(key.clone(), (hash, refusal));
        self.waiting.insert(key.clone());
    }

    /// After this it is unknown which commands were run: a reload makes it certain.
    fn lost_connection(&mut self, error: &io::Error) {
        self.session = None;
        tracing::warn!(%error, "the connection to HAProxy broke");
        for key in &self.waiting {
            self.forced.insert(key.clone(), format!("the connection broke: {error}"));
        }
        self.held = self.waiting.iter().filter(|key| self.is_held(key)).cloned().collect();
        self.reasons.clear();
        if self.held.is_empty() || self.held.len() < self.waiting.len() {
            self.reasons.push(format!("the connection to HAProxy broke: {error}"));
        }
        self.schedule();
    }

    /// Whether HAProxy stops softly. Nothing is applied to it any more, and it does not have to wait for our connection.
    pub(crate) fn stops_softly(&mut self) -> bool {
        let stops = self.settings.attach.as_ref().is_some_and(|socket| stop::stops_softly(socket));
        if stops {
            (self.session, self.reload_due) = (None, None);
        }
        stops
    }

    /// Makes sure that there is a connection to the worker.
    pub(crate) async fn connect(&mut self) -> io::Result<()> {
        if self.session.as_ref().is_none_or(Session::is_stale) {
            let processes = self.master.processes().await?;
            if processes.worker.is_some_and(|worker| worker != self.worker) {
                // what it holds has to be read first
                self.foreign_reload = true;
            }
            self.session = Some(Session::open(&self.master.socket, self.worker, Duration::from_secs(2)).await?);
        }
        Ok(())
    }

    pub(crate) fn count(&self, commands: u64) {
        self.status.send_if_modified(|status| {
            status.runtime_commands += commands;
            false
        });
    }

    /// Says what is.
    pub(crate) fn publish(&mut self) {
        let reloaded = self.reloaded.take();
        let refused: Vec<Refusal> = self.refusals.values().map(|(_, refusal)| refusal.clone()).collect();
        self.status.send_modify(|status| {
            if let Some(record) = reloaded {
                status.reloaded(record);
            }
            status.ready = self.base != Base::Bootstrap && self.haproxy.is_up();
            status.last_good = matches!(self.base, Base::LastGood(_));
            status.out_of_sync = !self.synced && self.generation > 0;
            if let Base::LastGood(Some(digest)) = self.base {
                status.digest = digest;
            }
            if self.base == Base::Accepted && self.synced {
                status.generation = self.generation;
                status.digest = self.wanted.digest();
            }
            status.waiting = self.waiting.len();
            status.held = self.held.len();
            status.zone.clone_from(&self.zone);
            status.keeps_zone = self.keeps_zone.len();
            status.held_from = self.held.iter().filter_map(|key| self.since.get(key)).min().copied().unwrap_or(0);
            status.reload_pending = self.reload_due.is_some() || self.meanwhile.is_some();
            status.master_pid = self.haproxy.id();
            status.worker_pid = self.haproxy.is_up().then_some(self.worker);
            status.refused = refused;
            status.drained = self.is_drained();
        });
    }
}
