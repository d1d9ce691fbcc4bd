//! Reads and writes the Lease as `step` says, and publishes the claim.

use super::Claim;
use super::step::{Action, Election, Moment, Record, Timing, Write};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client};
use std::future::Future;
use std::ops::RangeInclusive;
use std::pin::pin;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

/// The highest generation number that was ever reserved.
const GENERATIONS: &str = "haproxy-fleet.dev/generations";

/// Which Lease, and who asks for it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The namespace of the operator.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// A name that no other process has, not even an earlier one of the same pod: pod name and something random.
    pub identity: String,
    /// How long everything takes.
    pub timing: Timing,
    /// The highest term that agents obey: they follow nobody below it, also when the Lease was deleted and begins anew.
    pub highest_term: watch::Receiver<u64>,
}

/// Why no generation numbers were reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum LeaseError {
    /// Only the leader numbers generations.
    #[error("no generations were reserved: this replica does not lead")]
    NotLeading,
    /// The task of the driver is gone.
    #[error("no generations were reserved: the election has ended")]
    Ended,
}

struct Reserve {
    block: u64,
    reply: oneshot::Sender<Result<RangeInclusive<u64>, LeaseError>>,
}

/// What the rest of the operator has of the election.
#[derive(Clone, Debug)]
pub struct Handle {
    claim: watch::Receiver<Claim>,
    known_term: watch::Receiver<u64>,
    requests: mpsc::Sender<Reserve>,
}

impl Handle {
    /// The claim. It turns to standby by a timer when it expires, and when the driver ends in whatever way.
    pub fn claim(&self) -> watch::Receiver<Claim> {
        self.claim.clone()
    }

    /// The term of the Lease as this replica saw it last, whoever leads; 0 before it saw any. One that stands by says it to
    /// agents: they listen to nobody who has missed a change of the leader.
    pub fn known_term(&self) -> watch::Receiver<u64> {
        self.known_term.clone()
    }

    /// Reserves the next `block` generation numbers: they are persisted before this returns, and nobody gets them again.
    pub async fn reserve(&self, block: u64) -> Result<RangeInclusive<u64>, LeaseError> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Reserve { block, reply }).await.map_err(|_| LeaseError::Ended)?;
        answer.await.map_err(|_| LeaseError::Ended)?
    }
}

/// Turns the claim to standby when it is dropped, so also when the task panics or is aborted.
#[derive(Debug)]
struct Publisher(watch::Sender<Claim>);

impl Publisher {
    fn publish(&self, claim: Claim) {
        self.0.send_if_modified(|published| {
            let is_news = *published != claim;
            *published = claim;
            is_news
        });
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.publish(Claim::Standby);
    }
}

/// Takes part in the election until it is told to stop.
#[derive(Debug)]
pub struct Driver {
    settings: Settings,
    election: Election,
    publisher: Publisher,
    known_term: watch::Sender<u64>,
    requests: mpsc::Receiver<Reserve>,
    /// The zero of the clock of `election`.
    start: Instant,
    /// The Lease as it was read or written last.
    lease: Option<Lease>,
}

/// How a request ended, as far as the election is concerned.
enum Outcome<T> {
    Done(T),
    Conflict,
    Unknown,
}

impl Driver {
    /// A driver that does nothing yet, and what others have of it.
    pub fn new(settings: Settings) -> (Self, Handle) {
        let (sender, claim) = watch::channel(Claim::Standby);
        let (known, known_term) = watch::channel(0);
        let (requests, received) = mpsc::channel(1);
        let timing = Timing { retry: jittered(settings.timing.retry, &settings.identity), ..settings.timing };
        let driver = Self {
            election: Election::new(settings.identity.clone(), timing),
            settings,
            publisher: Publisher(sender),
            known_term: known,
            requests: received,
            start: Instant::now(),
            lease: None,
        };
        (driver, Handle { claim, known_term, requests })
    }

    /// Runs until `stop` is ready, which must be after the last write of this replica; then gives the Lease back.
    /// The client must let writes of this Lease pass even while this replica does not lead.
    pub async fn run(mut self, client: Client, stop: impl Future<Output = ()>) {
        let api = Api::namespaced(client, &self.settings.namespace);
        let mut stop = pin!(stop);
        loop {
            self.publish();
            self.election.hear_of(*self.settings.highest_term.borrow());
            let wait = match self.election.next(self.now()) {
                Action::Wait(until) => until,
                Action::End => return,
                action => {
                    self.act(&api, action).await;
                    continue;
                }
            };
            let expiry = self.election.claim(self.now()).map_or(wait, |(_, until)| until);
            tokio::select! {
                biased;
                () = &mut stop => break,
                Some(request) = self.requests.recv() => self.reserve(&api, request).await,
                () = tokio::time::sleep_until(self.start + wait.0.min(expiry.0)) => {}
            }
        }
        self.leave(&api).await;
    }

    /// Gives the Lease back, so that the next leader need not wait. Does not try for longer than the claim was good for.
    async fn leave(mut self, api: &Api<Lease>) {
        let end = Instant::now() + self.settings.timing.deadline;
        self.election.leave();
        self.publish();
        loop {
            let until = match self.election.next(self.now()) {
                Action::End => return,
                Action::Wait(until) => self.start + until.0,
                action => {
                    self.act(api, action).await;
                    Instant::now()
                }
            };
            if until >= end {
                tracing::warn!(lease = self.settings.name, "the lease could not be released; it expires by itself");
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }

    async fn act(&mut self, api: &Api<Lease>, action: Action) {
        match action {
            Action::Read => self.read(api).await,
            Action::Write(write) => _ = self.write(api, write, None).await,
            Action::Wait(_) | Action::End => {}
        }
    }

    async fn read(&mut self, api: &Api<Lease>) {
        let name = self.settings.name.clone();
        match self.ask(api.get_opt(&name)).await {
            Outcome::Done(lease) => {
                let record = lease.as_ref().map(record);
                self.lease = lease;
                self.election.read(self.now(), record);
            }
            Outcome::Conflict | Outcome::Unknown => self.election.failed(self.now()),
        }
    }

    /// Whether the write was accepted.
    async fn write(&mut self, api: &Api<Lease>, write: Write, generations: Option<u64>) -> bool {
        let sent = self.now();
        let lease = self.lease_for(&write, generations);
        let is_new = write.replaces.is_none();
        let (name, parameters) = (self.settings.name.clone(), PostParams::default());
        let outcome =
            if is_new { self.ask(api.create(&parameters, &lease)).await } else { self.ask(api.replace(&name, &parameters, &lease)).await };
        match outcome {
            Outcome::Done(lease) => {
                let version = lease.metadata.resource_version.clone().unwrap_or_default();
                tracing::debug!(lease = name, purpose = ?write.purpose, term = write.transitions, "wrote the lease");
                self.lease = Some(lease);
                self.election.wrote(sent, self.now(), write, version);
                true
            }
            Outcome::Conflict => {
                self.election.refused();
                false
            }
            Outcome::Unknown => {
                self.election.failed(self.now());
                false
            }
        }
    }

    /// One request, bounded in time. The claim expires meanwhile if its time comes.
    async fn ask<T>(&mut self, request: impl Future<Output = kube::Result<T>>) -> Outcome<T> {
        let mut request = pin!(tokio::time::timeout(self.settings.timing.deadline / 2, request));
        let answer = loop {
            let expiry = self.election.claim(self.now()).map(|(_, until)| self.start + until.0);
            tokio::select! {
                biased;
                answer = &mut request => break answer,
                () = tokio::time::sleep_until(expiry.unwrap_or_else(Instant::now)), if expiry.is_some() => self.publish(),
            }
        };
        match answer {
            Ok(Ok(answer)) => Outcome::Done(answer),
            Ok(Err(kube::Error::Api(status))) if status.code == 409 || status.code == 404 => Outcome::Conflict,
            Ok(Err(error)) => {
                tracing::warn!(lease = self.settings.name, %error, "a request for the lease failed");
                Outcome::Unknown
            }
            Err(_) => {
                tracing::warn!(lease = self.settings.name, "a request for the lease was not answered in time");
                Outcome::Unknown
            }
        }
    }

    /// Writes until the numbers are reserved or this replica does not lead any more.
    async fn reserve(&mut self, api: &Api<Lease>, request: Reserve) {
        loop {
            self.publish();
            if self.election.claim(self.now()).is_none() {
                // nobody waits for the answer if the caller is gone
                let _ = request.reply.send(Err(LeaseError::NotLeading));
                return;
            }
            let Some(write) = self.election.renewal(self.now()) else {
                match self.election.next(self.now()) {
                    Action::Wait(until) => tokio::time::sleep_until(self.start + until.0).await,
                    action => self.act(api, action).await,
                }
                continue;
            };
            let last = self.lease.as_ref().map_or(0, generations);
            if self.write(api, write, Some(last + request.block)).await {
                let _ = request.reply.send(Ok(last + 1..=last + request.block));
                return;
            }
        }
    }

    /// The Lease to write: the one that was read, with what belongs to the election replaced.
    fn lease_for(&self, write: &Write, generations: Option<u64>) -> Lease {
        let mut lease = self.lease.clone().filter(|_| write.replaces.is_some()).unwrap_or_else(|| Lease {
            metadata: ObjectMeta { name: Some(self.settings.name.clone()), ..ObjectMeta::default() },
            ..Lease::default()
        });
        lease.metadata.resource_version.clone_from(&write.replaces);
        lease.metadata.managed_fields = None;
        if let Some(last) = generations {
            lease.metadata.annotations.get_or_insert_default().insert(GENERATIONS.to_owned(), last.to_string());
        }
        let spec = lease.spec.get_or_insert_default();
        let now = MicroTime(Timestamp::now());
        let transitions = i32::try_from(write.transitions).unwrap_or(i32::MAX);
        if spec.lease_transitions != Some(transitions) {
            spec.acquire_time = Some(now.clone());
        }
        spec.holder_identity = Some(write.holder.clone());
        spec.lease_transitions = Some(transitions);
        spec.lease_duration_seconds = i32::try_from(self.settings.timing.duration.as_secs()).ok();
        // for people and their tools; no replica judges by it
        spec.renew_time = Some(now);
        lease
    }

    fn now(&self) -> Moment {
        Moment(self.start.elapsed())
    }

    fn publish(&self) {
        let claim = match self.election.claim(self.now()) {
            Some((term, until)) => Claim::Leader { term, valid_until: self.start + until.0 },
            None => Claim::Standby,
        };
        self.publisher.publish(claim);
        let term = self.election.known_term();
        self.known_term.send_if_modified(|known| term != std::mem::replace(known, term));
    }
}

fn record(lease: &Lease) -> Record {
    let spec = lease.spec.as_ref();
    Record {
        holder: spec.and_then(|spec| spec.holder_identity.clone()).unwrap_or_default(),
        transitions: spec.and_then(|spec| spec.lease_transitions).and_then(|count| u64::try_from(count).ok()).unwrap_or_default(),
        version: lease.metadata.resource_version.clone().unwrap_or_default(),
    }
}

fn generations(lease: &Lease) -> u64 {
    let annotation = lease.metadata.annotations.as_ref().and_then(|annotations| annotations.get(GENERATIONS));
    annotation.and_then(|last| last.parse().ok()).unwrap_or_default()
}

/// Up to a fifth more, by the replica's name: replicas do not ask in step.
fn jittered(time: Duration, identity: &str) -> Duration {
    let byte = blake3::hash(identity.as_bytes()).as_bytes()[0];
    time + time * u32::from(byte) / (5 * 256)
}
