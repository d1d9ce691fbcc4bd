//! The way of a change through a reload: staged, validated by the very HAProxy that will load it, new
//! addresses tried, reloaded, confirmed, kept. What is refused leaves everything as it was.

use super::apply::{Applier, Base};
use super::runtime::{Command, Processes, Session};
use super::status::ReloadRecord;
use super::stop::Permit;
use super::{pod, process};
use crate::haproxy::bundle::{BackendClass, Bundle, Change, Content, Resource, ResourceKey, file_of};
use crate::haproxy::files::{Complaint, complaints, culprits};
use crate::haproxy::maps;
use crate::haproxy::plan::{Target, is_same, reload_target};
use crate::haproxy::render::RELAY;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Validations for one reload: with several culprits each round finds at least one.
const ROUNDS: usize = 64;
/// After this an old worker that did not take the relay is asked again.
const RELAY_AGAIN: Duration = Duration::from_secs(1);
/// After this a reload that has no permit is tried again.
const PERMIT_AGAIN: Duration = Duration::from_secs(1);
/// What a file of a bundle is called on disk, with its checksum.
type Sums = BTreeMap<String, String>;

/// A configuration that HAProxy would load.
struct Valid {
    changes: Vec<Change>,
    candidate: Bundle,
    sums: Sums,
}

impl Applier {
    /// Brings all that waits, without what is refused.
    pub(crate) async fn reload(&mut self) {
        self.reload_due = None;
        // nothing is prepared in vain
        if let Err(why) = self.permit() {
            tracing::warn!(why, "no reload now");
            self.reload_due = Some(Instant::now() + self.settings.reload_interval.max(PERMIT_AGAIN));
            // it is not tried again then
            self.stops_softly();
            return;
        }
        // whatever comes of it: never more often than this
        self.last_reload = Some(Instant::now());
        match self.try_reload().await {
            Ok(()) => self.advance().await,
            Err(error) => {
                tracing::error!(%error, "the reload could not be tried");
                self.reload_due = Some(Instant::now() + self.settings.reload_interval);
                self.publish();
            }
        }
    }

    /// What keeps a pod from being stopped softly while a reload runs: a reload after that would start a worker that
    /// accepts again. Says why there is none.
    fn permit(&self) -> Result<Option<Permit>, &'static str> {
        self.settings.attach.as_ref().map(|socket| Permit::for_reload(socket)).transpose()
    }

    async fn try_reload(&mut self) -> io::Result<()> {
        let mut reasons = self.reasons.clone();
        let found = self.prepare().await;
        self.meanwhile = None;
        let Some(valid) = found? else { return Ok(()) };
        if let Some(address) = self.taken_address(&valid.candidate) {
            return Err(io::Error::other(format!("{address} is in use by another program")));
        }
        if !self.reasons.is_empty() {
            reasons.clone_from(&self.reasons);
        }
        let reason = reasons.join("; ");
        // a pod may have stopped while all this was prepared, which takes as long as it takes
        let _permit = self.permit().map_err(io::Error::other)?;
        self.directory.point("staged")?;
        let answer = match self.master.reload().await {
            Ok(answer) => answer,
            Err(error) => {
                self.point_back()?;
                return Err(error);
            }
        };
        if answer.starts_with("Success=0") {
            self.point_back()?;
            self.refuse_reload(&valid, &answer);
            return Ok(());
        }
        // without a clear answer the new worker is the proof
        let processes = match self.new_worker().await {
            Ok(processes) => processes,
            Err(error) => {
                self.point_back()?;
                return Err(error);
            }
        };
        let digest = (valid.candidate.digest() == self.wanted.digest()).then(|| self.wanted.digest());
        self.accepted = valid.candidate;
        self.base = Base::Accepted;
        self.unwritten.clear();
        self.forced.clear();
        for change in &valid.changes {
            self.waiting.remove(&change.key);
        }
        // what is set aside, or held back for it, is looked at again whenever something changes
        self.waiting.extend(self.accepted.diff(&self.wanted).into_iter().map(|change| change.key));
        self.directory.promote(valid.sums, digest)?;
        self.session = None;
        if let Err(error) = self.look_inside().await {
            // it is there, but slow
            tracing::warn!(%error, "the new worker does not answer yet");
            self.look_inside().await?;
        }
        self.relay(&processes.old).await;
        self.reloaded = Some(ReloadRecord { generation: self.generation, reason });
        Ok(())
    }

    /// A configuration that HAProxy accepts and that holds all that was done live while it was looked at.
    async fn prepare(&mut self) -> io::Result<Option<Valid>> {
        for attempt in 0..4 {
            // the last time nothing is done meanwhile
            self.meanwhile = (attempt < 3 && self.base == Base::Accepted).then(BTreeSet::new);
            let Some(mut valid) = self.find_valid().await? else { return Ok(None) };
            let Some(touched) = self.meanwhile.take().filter(|touched| !touched.is_empty()) else { return Ok(Some(valid)) };
            if self.fold(&mut valid, &touched)? {
                return Ok(Some(valid));
            }
        }
        Ok(None)
    }

    /// Brings what was done live into `valid` and the staged files; `false` if it has to be validated again. What
    /// is only half done stays as it was validated: it goes on live after the reload.
    fn fold(&self, valid: &mut Valid, touched: &BTreeSet<ResourceKey>) -> io::Result<bool> {
        let mut changes = Vec::new();
        for key in touched {
            let is_accepted = |bundle: &Bundle| is_same(self.accepted.get(key), bundle.get(key));
            let done = is_accepted(&self.wanted);
            let known = valid.changes.iter().any(|change| change.key == *key);
            if is_accepted(&valid.candidate) || !done && known {
                continue;
            }
            // HAProxy has taken these by commands; nothing else comes without being looked at by `haproxy -c`
            let by_command = match (key, self.accepted.get(key).map(|resource| &resource.content)) {
                (ResourceKey::Section(_), _) | (ResourceKey::Backend(_), None) => false,
                (ResourceKey::Backend(_), Some(Content::Backend(head))) => head.class != BackendClass::Private && !known,
                (ResourceKey::File(path), _) => path.starts_with("ca/"),
                _ => true,
            };
            if !by_command {
                return Ok(false);
            }
            let (before, after) = (valid.candidate.get(key).cloned(), self.accepted.get(key).cloned());
            changes.push(Change { key: key.clone(), before, after });
        }
        valid.candidate.apply(&changes);
        let paths = touched.iter().map(file_of).collect();
        self.directory.restage(&valid.candidate, &paths, &mut valid.sums)?;
        Ok(true)
    }

    fn point_back(&self) -> io::Result<()> {
        let whole = self.base != Base::Bootstrap && self.directory.is_whole();
        self.directory.point(if whole { "current" } else { "bootstrap" })
    }

    /// A configuration that `haproxy -c` accepts; what it does not is set aside. `None` if nothing is left.
    async fn find_valid(&mut self) -> io::Result<Option<Valid>> {
        for _ in 0..ROUNDS {
            let valid = self.candidate(&self.aside);
            if valid.changes.is_empty() && self.base == Base::Accepted && self.forced.keys().all(|key| self.aside.contains(key)) {
                return Ok(None);
            }
            let (valid, objection) = self.validate(valid).await?;
            let Some(objection) = objection else { return Ok(Some(valid)) };
            let found = blamed(&valid, &complaints(&objection));
            if found.is_empty() {
                self.bisect(&valid.changes).await?;
            }
            for (key, message) in found {
                tracing::warn!(resource = %key, message, "HAProxy refuses a resource");
                self.set_aside(&key, message);
            }
        }
        Err(io::Error::other("HAProxy refuses everything that was tried"))
    }

    fn candidate(&self, aside: &BTreeSet<ResourceKey>) -> Valid {
        // what is not allowed yet stays as it is, unless nothing is known of what runs
        let all: BTreeSet<ResourceKey>;
        let aside = if self.base == Base::Accepted && !self.held.is_empty() {
            all = aside.union(&self.held).cloned().collect();
            &all
        } else {
            aside
        };
        let target = Target { aside, ..self.target() };
        let changes = reload_target(&self.accepted, target, &self.waiting, &self.capabilities);
        let mut candidate = self.accepted.clone();
        candidate.apply(&changes);
        Valid { changes, candidate, sums: BTreeMap::new() }
    }

    /// Stages and validates. What is delivered meanwhile is done live as far as it can be.
    async fn validate(&mut self, mut valid: Valid) -> io::Result<(Valid, Option<String>)> {
        let (writer, accepted, candidate) = (self.directory.stager(), self.accepted.clone(), valid.candidate.clone());
        let (program, staged) = (self.settings.haproxy.clone(), self.directory.staged());
        let work = async move {
            let staging = tokio::task::spawn_blocking(move || writer.stage(&accepted, &candidate));
            let sums = staging.await.map_err(io::Error::other)??;
            Ok::<_, io::Error>((sums, process::validate(&program, &staged).await?.err()))
        };
        tokio::pin!(work);
        let inbox = self.inbox.clone();
        let (sums, objection) = loop {
            tokio::select! {
                done = &mut work => break done?,
                () = inbox.arrived(), if self.meanwhile.is_some() => self.absorb().await,
            }
        };
        valid.sums = sums;
        Ok((valid, objection))
    }

    /// HAProxy names no line that changed: halves what changed, by source object, until the culprits are alone.
    async fn bisect(&mut self, changes: &[Change]) -> io::Result<()> {
        let mut groups: BTreeMap<String, Vec<ResourceKey>> = BTreeMap::new();
        for change in changes {
            let sources = change.after.as_ref().or(change.before.as_ref()).map(|resource| resource.sources.clone());
            let name = sources.as_deref().and_then(<[_]>::first).map_or_else(|| change.key.to_string(), ToString::to_string);
            groups.entry(name).or_default().push(change.key.clone());
        }
        let mut undecided: BTreeSet<ResourceKey> = groups.values().flatten().cloned().collect();
        let mut stack: Vec<Vec<Vec<ResourceKey>>> = vec![groups.into_values().collect()];
        let mut checks = 0;
        while let Some(set) = stack.pop() {
            for key in set.iter().flatten() {
                undecided.remove(key);
            }
            checks += 1;
            let aside: BTreeSet<ResourceKey> = self.aside.union(&undecided).cloned().collect();
            let candidate = self.candidate(&aside);
            let (_, objection) = self.validate(candidate).await?;
            let Some(objection) = objection else { continue };
            if set.len() == 1 || checks > ROUNDS {
                let message = complaints(&objection).into_iter().map(|complaint| complaint.message).next();
                let message = message.unwrap_or_else(|| objection.trim().to_owned());
                set.iter().flatten().for_each(|key| self.set_aside(key, message.clone()));
                continue;
            }
            let mut first = set;
            let second = first.split_off(first.len() / 2);
            undecided.extend(second.iter().chain(&first).flatten().cloned());
            stack.push(second);
            stack.push(first);
        }
        Ok(())
    }

    /// An address that the reload would bind anew and that somebody else has: HAProxy would stop accepting for
    /// two seconds while it tries, and `haproxy -c` cannot see it.
    fn taken_address(&self, candidate: &Bundle) -> Option<std::net::SocketAddr> {
        if matches!(self.base, Base::LastGood(_)) {
            // not known what it binds: at least all that it serves
            return None;
        }
        let before = pod::listeners(&self.settings.pod, sections(&self.accepted));
        let after = pod::listeners(&self.settings.pod, sections(candidate));
        let new = pod::new_addresses(&self.settings.pod, &before, &after);
        new.into_iter().find(|address| std::net::TcpListener::bind(address).is_err())
    }

    /// A reload failed that `haproxy -c` had found fine. It is not tried again with the same content.
    fn refuse_reload(&mut self, valid: &Valid, answer: &str) {
        let complaints = complaints(answer);
        let mut found = blamed(valid, &complaints);
        if found.is_empty() {
            let message = complaints.first().map_or_else(|| "the reload failed".to_owned(), |complaint| complaint.message.clone());
            found = valid.changes.iter().map(|change| (change.key.clone(), message.clone())).collect();
        }
        for (key, message) in found {
            tracing::error!(resource = %key, message, "a reload failed");
            self.set_aside(&key, message);
        }
    }

    /// Waits for the worker of the reload that succeeded.
    async fn new_worker(&mut self) -> io::Result<Processes> {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let processes = self.master.processes().await.unwrap_or_default();
            if let Some(worker) = processes.worker.filter(|worker| *worker != self.worker) {
                self.worker = worker;
                self.workers = processes.old.iter().copied().chain([worker]).collect();
                return Ok(processes);
            }
            if Instant::now() > deadline {
                return Err(io::Error::other("no new worker shows up after a successful reload"));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Lets workers of earlier configurations send every request to the present one: their servers are frozen,
    /// but their maps are not.
    pub(crate) async fn relay(&mut self, old: &[u32]) {
        self.relayed.retain(|pid| old.contains(pid));
        self.count_old(old.len());
        let started = Instant::now();
        let mut failed = false;
        for pid in old {
            if self.relayed.contains(pid) {
                continue;
            }
            match relay_one(&self.master.socket, *pid).await {
                Ok(()) => _ = self.relayed.insert(*pid),
                Err(error) => {
                    // most have no connection left and end at once
                    tracing::debug!(pid, %error, "an old worker takes no relay");
                    failed = true;
                }
            }
        }
        // nothing else is applied meanwhile: workers that hang must not take more than a tenth of the time
        self.relay_due = failed.then(|| Instant::now() + RELAY_AGAIN + started.elapsed() * 9);
    }

    /// Says how many workers of before a reload there are.
    pub(crate) fn count_old(&self, workers: usize) {
        self.status.send_if_modified(|status| std::mem::replace(&mut status.old_workers, workers) != workers);
    }

    /// Tries again with old workers that were too busy: until they end or take it.
    pub(crate) async fn relay_again(&mut self) {
        self.relay_due = None;
        // once the pod stops softly nobody takes what they would pass on
        let Ok(_permit) = self.permit() else { return };
        match self.master.processes().await {
            Ok(processes) => self.relay(&processes.old).await,
            Err(error) => {
                tracing::debug!(%error, "the master does not say which old workers there are");
                self.relay_due = Some(Instant::now() + RELAY_AGAIN);
            }
        }
    }
}

fn sections(bundle: &Bundle) -> impl Iterator<Item = &str> {
    bundle.resources().filter_map(|resource| match &resource.content {
        Content::Section(text) => Some(text.as_ref()),
        _ => None,
    })
}

/// The changed resources that `complaints` point to, each with the first message about it.
fn blamed(valid: &Valid, complaints: &[Complaint]) -> BTreeMap<ResourceKey, String> {
    let changed: BTreeSet<&ResourceKey> = valid.changes.iter().map(|change| &change.key).collect();
    // a shape that does not load makes its backends fail as well: they are not to blame
    let follows = |complaint: &&Complaint| complaint.message.contains("defaults section") && complaint.message.contains("not found");
    let first_hand: Vec<&Complaint> = complaints.iter().filter(|complaint| !follows(complaint)).collect();
    let all: Vec<&Complaint> = if first_hand.is_empty() { complaints.iter().collect() } else { first_hand };
    let mut found = BTreeMap::new();
    for complaint in all {
        let culprit = culprits(&valid.candidate, complaint).into_iter().map(|resource: &Arc<Resource>| &resource.key);
        if let Some(key) = culprit.into_iter().find(|key| changed.contains(key)) {
            found.entry(key.clone()).or_insert_with(|| complaint.message.clone());
        }
    }
    found
}

async fn relay_one(socket: &std::path::Path, pid: u32) -> io::Result<()> {
    let mut session = Session::open(socket, pid, Duration::from_secs(1)).await?;
    let answers = session.exchange(&[Command::plain("show backend")]).await?;
    if !answers[0].lines().any(|name| name == RELAY) {
        return Ok(());
    }
    // TCP listeners stay as they are: nothing new arrives at an old worker, and what it has keeps its server
    let tell = Command::plain(&format!("add map {} {} {RELAY}", maps::POD, maps::RELAYED));
    let answers = session.exchange(&[tell]).await?;
    match answers.iter().find(|answer| !answer.trim().is_empty()) {
        Some(answer) => Err(io::Error::other(answer.trim().to_owned())),
        None => Ok(()),
    }
}
