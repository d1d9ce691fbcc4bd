//! One fleet without a cluster: its replicas, and the HAProxy in front of them that plays Service and load
//! balancer.

mod rollback;

use super::addresses::{Addresses, HEALTH_PORT, is_free, wait_until_free};
use super::balancer::Member;
use super::front::Balancer;
use super::haproxies::{Haproxy, choose};
use super::record::{self, ListenerRecord, Record, ReplicaRecord};
use super::replica::{Life, Replica};
use super::revisions::Served;
use super::rollout::{PodTemplate, Processes, Seen, Wanted};
use crate::admin::{Done, Order, Refusal, RefusalKind};
use crate::agent::{Agent, Drain, Pod, Settings, StartError, Update, UpdateContent};
use crate::api::IngressDeployment;
use crate::fleet;
use crate::fleet::rollout::{Decision, PodState, advance};
use crate::haproxy::bundle::{Bundle, Change, Digest};
use crate::haproxy::revision::revision_of;
use crate::haproxy::tickets::ticket_keys;
use crate::haproxy::version::Version;
use crate::model::{self, FleetId, Millis, Model};
use crate::report::{Diagnostic, PrivateBytes, codes};
use crate::status::json::{self, Protocol};
use k8s_openapi::jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

/// How long the load balancer may take to stop sending to a replica that leaves.
const DEREGISTRATION: Duration = Duration::from_secs(5);
/// How long what a balancer that is replaced has may finish, and a replica of which nothing is known any more. Longer than
/// the keep-alive time-out, so that idle clients are asked to close rather than cut.
const DRAIN: Duration = Duration::from_secs(15);
/// How long all of it may finish when `local` ends.
const SHUTDOWN: Duration = Duration::from_secs(10);
/// Over how long the closing of connections is spread: short beside both.
pub(super) const MAX_CLOSE_SPREAD: Millis = Millis(2_000);
/// The least time between two reloads of a replica.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);
/// Replicas of a fleet at most: each is a process of this machine.
pub(super) const MAX_REPLICAS: i32 = 32;
/// Threads of a HAProxy where nothing is said: many of them share this machine.
const THREADS: u16 = 1;
/// Decisions in a row at most before others have their turn.
const STEPS: usize = 100;
/// How often a replica's HAProxy is compared with what it should be.
const DRIFT_INTERVAL: Duration = Duration::from_secs(60);

/// What all fleets of a `local` share.
pub(super) struct Environment {
    /// Where everything is kept.
    pub state: PathBuf,
    /// A short directory for sockets.
    pub sockets: PathBuf,
    /// The programs to choose from.
    pub haproxies: Vec<Haproxy>,
    /// What every HAProxy is started through, so that none outlives this process.
    pub launcher: Option<Vec<OsString>>,
    /// Connections that each HAProxy takes at most.
    pub max_connections: u32,
    /// Served where no certificate matches.
    pub default_certificate: PrivateBytes,
    /// What keys of fleets are made from.
    pub secret: PrivateBytes,
    /// Rung whenever an agent has news.
    pub news: Arc<Notify>,
}

/// Why a fleet could not be brought up or changed.
#[derive(Debug, thiserror::Error)]
pub(super) enum FleetError {
    /// A HAProxy did not start.
    #[error("{name}: {source}")]
    Start {
        /// Which.
        name: String,
        /// Why.
        source: Box<StartError>,
    },
    /// A stable address belongs to somebody else.
    #[error("the stable address {address} of the listener {listener} is in use by another program")]
    InUse {
        /// The listener.
        listener: String,
        /// The address.
        address: SocketAddr,
    },
    /// Files or addresses.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

/// What a fleet lacks, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trouble {
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub help: String,
}

const RETRIED: &str = "what serves keeps serving; it is tried again every few seconds";

impl From<FleetError> for Trouble {
    fn from(error: FleetError) -> Self {
        let help = match &error {
            FleetError::InUse { listener, address } => format!(
                "stop that program (`ss -ltnp 'sport = :{}'` shows it) and the fleet takes the address within seconds; \
                 or give the fleet another port by spec.ports.{listener}",
                address.port()
            ),
            _ => RETRIED.to_owned(),
        };
        Self { message: error.to_string(), help }
    }
}

pub(super) fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> FleetError {
    let what = what.into();
    |source| FleetError::Io { what, source }
}

/// A HAProxy to start: which program, where it keeps its things, what it listens on.
pub(super) struct Launch<'a> {
    pub name: &'a str,
    pub program: &'a Haproxy,
    /// Below the fleet's directory.
    pub directory: PathBuf,
    /// What nobody else is called.
    pub purpose: &'a str,
    pub binds: BTreeMap<String, Vec<SocketAddr>>,
    pub health: SocketAddr,
    /// If something is said about it.
    pub threads: Option<u16>,
    pub max_connections: Option<u32>,
}

impl Environment {
    /// Starts a HAProxy of the fleet `id` with its agent, and rings for all its news.
    pub(super) async fn start(&self, id: &FleetId, launch: Launch<'_>) -> Result<Agent, FleetError> {
        let directory = record::directory(&self.state, id).join(&launch.directory);
        std::fs::create_dir_all(&directory).map_err(io_error(format!("cannot make {}", directory.display())))?;
        let sockets = self.socket_directory(launch.purpose);
        std::fs::create_dir_all(&sockets).map_err(io_error(format!("cannot make {}", sockets.display())))?;
        let settings = Settings {
            haproxy: launch.program.path.clone(),
            directory,
            sockets,
            attach: None,
            pod: self.pod(id, &launch),
            reload_interval: RELOAD_INTERVAL,
            drift_interval: DRIFT_INTERVAL,
            launcher: self.launcher.clone(),
        };
        let failed = |source| FleetError::Start { name: launch.name.to_owned(), source: Box::new(source) };
        let agent = Agent::start(settings).await.map_err(failed)?;
        let (mut status, news) = (agent.status(), self.news.clone());
        tokio::spawn(async move {
            while status.changed().await.is_ok() {
                news.notify_one();
            }
        });
        Ok(agent)
    }

    /// What is particular to a HAProxy of the fleet `id`.
    fn pod(&self, id: &FleetId, launch: &Launch<'_>) -> Pod {
        Pod {
            name: launch.name.to_owned(),
            binds: launch.binds.clone(),
            health: launch.health,
            threads: Some(launch.threads.unwrap_or(THREADS)),
            max_connections: launch.max_connections.map_or(self.max_connections, |asked| asked.min(self.max_connections)),
            default_certificate: self.default_certificate.clone(),
            ticket_keys: PrivateBytes::new(ticket_keys(self.secret.expose(), &id.to_string())),
        }
    }

    /// The program for fleets that ask for the release `line`: the newest, if there is none of that line.
    pub(super) fn program(&self, line: &str) -> Result<&Haproxy, FleetError> {
        let wanted: Option<Version> = line.parse().ok();
        choose(&self.haproxies, wanted)
            .or(self.haproxies.first())
            .ok_or_else(|| FleetError::Io { what: "no HAProxy to start".to_owned(), source: io::ErrorKind::NotFound.into() })
    }

    fn socket_directory(&self, purpose: &str) -> PathBuf {
        self.sockets.join(&blake3::hash(purpose.as_bytes()).to_hex()[..12])
    }

    /// Removes what a HAProxy that is gone for good kept.
    fn clear(&self, directory: &Path, purpose: &str) {
        for path in [directory.to_owned(), self.socket_directory(purpose)] {
            match std::fs::remove_dir_all(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), %error, "cannot be removed");
                }
                _ => {}
            }
        }
    }
}

/// A fleet that runs.
pub(super) struct LocalFleet {
    id: FleetId,
    environment: Arc<Environment>,
    record: Record,
    /// What was last written of it.
    saved: Option<Record>,
    digest: Digest,
    /// What is served, if that is not what is asked for.
    served: Served,
    /// Why the revision that it went back to before a restart cannot be had.
    unread: Option<String>,
    /// Why its revision is not kept.
    unkept: Option<String>,
    /// What the manifest asks for, once it was read.
    wanted: Option<Wanted>,
    replicas: BTreeMap<Arc<str>, Replica>,
    balancer: Option<Balancer>,
    /// Why there is no balancer for the present listeners.
    front_trouble: Option<Trouble>,
    /// Starts and ends of replicas.
    tasks: JoinSet<()>,
    /// What came of them: sent before the bell is rung for it, so that whoever hears it finds it.
    outcomes: (mpsc::UnboundedSender<Outcome>, mpsc::UnboundedReceiver<Outcome>),
    attempts: u64,
    /// What was decided last.
    decision: Option<Decision>,
    /// Addresses that people may try.
    urls: Vec<String>,
    /// Whether a bundle was delivered since the start; before, the last good state serves.
    delivered: bool,
}

/// What came of a task.
enum Outcome {
    /// Of the start of a replica, in the attempt of this number.
    Started(Arc<str>, u64, Result<Agent, FleetError>),
    /// A replica has ended.
    Departed(Arc<str>),
}

impl LocalFleet {
    /// The fleet `id` as it was last, or never yet, served. Nothing runs until [`Self::converge`].
    pub(super) fn new(id: FleetId, mut record: Record, environment: Arc<Environment>) -> Self {
        let (served, unread) = rollback::restored(&environment.state, &id, &mut record);
        let digest = u128::from_str_radix(&record.digest, 16).map_or_else(|_| Digest::default(), Digest);
        let mut fleet = Self {
            id,
            environment,
            record,
            saved: None,
            digest,
            served,
            unread,
            unkept: None,
            wanted: None,
            replicas: BTreeMap::new(),
            balancer: None,
            front_trouble: None,
            tasks: JoinSet::new(),
            outcomes: mpsc::unbounded_channel(),
            attempts: 0,
            decision: None,
            urls: Vec::new(),
            delivered: false,
        };
        for record in fleet.record.replicas.clone() {
            fleet.add(record, Timestamp::now());
        }
        fleet
    }

    /// When it was first seen.
    pub(super) fn since(&self) -> i64 {
        self.record.since
    }

    /// Takes in what its `IngressDeployment` asks for. What follows from it is done by [`Self::update`].
    pub(super) fn ask(&mut self, deployment: &IngressDeployment, model: &Model) -> Result<(), Trouble> {
        self.record.listeners = listeners(model);
        let version = self.environment.program(deployment.spec.haproxy_version.as_str())?.version;
        self.wanted = Some(Wanted::of(deployment, format!("{}.{}", version.major, version.minor), self.record.ports()));
        self.urls = super::urls::of(model, Ipv4Addr::LOCALHOST.into());
        Ok(())
    }

    /// Makes the fleet what was asked for last and gives its replicas the new bundle: `changes` lead from the last one to
    /// `bundle`. After an error the next call, or [`Self::converge`], does what is left.
    pub(super) async fn update(&mut self, bundle: &Bundle, changes: Vec<Change>, addresses: &mut Addresses) -> Result<(), Trouble> {
        let changes = self.served.follow(changes, bundle);
        self.number(bundle, changes.iter().any(Change::is_revision));
        // no number is given twice
        let saved = self.save();
        self.try_again();
        let converged = self.converge(addresses).await;
        // whatever could not be started: what runs must not miss a change
        self.deliver(bundle, changes);
        saved.and(converged)
    }

    /// Numbers what is served while `present` is asked for; `is_other` if it may be another revision.
    fn number(&mut self, present: &Bundle, is_other: bool) {
        let served = self.served.bundle(present);
        if served.digest() != self.digest || self.record.generation == 0 {
            self.record.generation += 1;
            self.digest = served.digest();
            self.record.digest = self.digest.to_string();
        }
        if is_other || self.record.revision_digest.is_empty() {
            self.record.renumber(revision_of(served).to_string());
        }
    }

    /// What its replicas are given while `present` is asked for, with its numbers, revision and generation, if they have them.
    pub(super) fn given<'b>(&'b self, present: &'b Bundle) -> Option<(&'b Bundle, u64, u64)> {
        let bundle = self.served.bundle(present);
        (self.delivered && bundle.digest() == self.digest).then_some((bundle, self.record.revision, self.record.generation))
    }

    fn save(&mut self) -> Result<(), Trouble> {
        self.record.replicas = self.replicas.values().filter(|replica| replica.stays()).map(|replica| replica.record.clone()).collect();
        if self.saved.as_ref() == Some(&self.record) {
            return Ok(());
        }
        let directory = record::directory(&self.environment.state, &self.id);
        self.record.save(&self.environment.state, &self.id).map_err(io_error(format!("cannot write {}", directory.display())))?;
        self.saved = Some(self.record.clone());
        Ok(())
    }

    /// Gives replicas what is served while `present` is asked for: `changes` lead to it.
    fn deliver(&mut self, present: &Bundle, changes: Vec<Change>) {
        self.delivered = true;
        let bundle = self.served.bundle(present);
        let (generation, digest) = (self.record.generation, self.digest);
        let changes: Arc<[Change]> = changes.into();
        let mut whole: Option<Arc<Bundle>> = None;
        for replica in self.replicas.values_mut() {
            // those that end as well, as long as they serve
            let Some(agent) = replica.agent().cloned() else { continue };
            let content = if replica.current {
                UpdateContent::Changes(changes.clone())
            } else {
                replica.current = true;
                UpdateContent::Full(whole.get_or_insert_with(|| Arc::new(bundle.clone())).clone())
            };
            agent.deliver(Update { generation, digest, content });
        }
    }

    /// Gives all that is served to replicas that say that they have something else, or that were started by themselves.
    pub(super) fn resync(&mut self, present: &Bundle) {
        let bundle = self.served.bundle(present);
        if !self.delivered || bundle.digest() != self.digest {
            return;
        }
        let mut whole: Option<Arc<Bundle>> = None;
        for replica in self.replicas.values_mut() {
            let Some(agent) = replica.agent().cloned() else { continue };
            if replica.current && !agent.status().borrow().out_of_sync {
                continue;
            }
            replica.current = true;
            let content = UpdateContent::Full(whole.get_or_insert_with(|| Arc::new(bundle.clone())).clone());
            agent.deliver(Update { generation: self.record.generation, digest: self.digest, content });
        }
    }

    /// Lets what did not start be tried again.
    pub(super) fn try_again(&mut self) {
        self.front_trouble = None;
        for replica in self.replicas.values_mut().filter(|replica| matches!(replica.life, Life::Failed(_))) {
            replica.life = Life::Missing;
        }
    }

    /// Takes an order, and does what follows from it. `present` is what is asked for.
    pub(super) async fn order(&mut self, order: &Order, present: Option<&Bundle>, addresses: &mut Addresses) -> Result<Done, Refusal> {
        if let Order::Rollback(revision) = order {
            return self.roll_back(*revision, present, addresses).await;
        }
        let fleet = format!("fleet {}", self.id);
        let now = Timestamp::now();
        let Some(wanted) = &self.wanted else { return Err(self.no_manifest()) };
        let seen = self.seen();
        let mut done = self.record.rollout.order(&fleet, order, wanted, &seen, &now.to_string())?;
        // whoever wants to know how it goes on looks at the status
        let _ = self.converge(addresses).await;
        if let Order::Drain { target, .. } = order
            && let Some(reason) = self.record.rollout.drain_waits(target, &self.seen(), self.decision.as_ref())
        {
            done.message = format!("{target} of {fleet} is to be drained, which waits: {reason}");
        }
        Ok(done)
    }

    /// That it takes no orders yet.
    fn no_manifest(&self) -> Refusal {
        Refusal {
            kind: RefusalKind::Conflict,
            error: format!("fleet {} serves its last good state: its manifest was not read, or is refused", self.id),
            help: "correct the manifests that cannot be read, or what is refused".to_owned(),
        }
    }

    /// Does what there is to do: starts, admits and ends replicas as the planner of rollouts has it.
    pub(super) async fn converge(&mut self, addresses: &mut Addresses) -> Result<(), Trouble> {
        let now = Timestamp::now();
        let settled = self.take_outcomes(addresses);
        self.plan(now).await;
        self.lead_away();
        let started = self.start_missing(addresses);
        self.follow_balancer(addresses).await;
        self.depart();
        let saved = self.save();
        let failed = self.replicas.values().find_map(|replica| match &replica.life {
            Life::Failed(reason) if replica.stays() => Some(Trouble { message: reason.clone(), help: RETRIED.to_owned() }),
            _ => None,
        });
        let troubles = self.front_trouble.clone().into_iter().chain(failed);
        settled.and(started)?;
        saved.and(troubles.map(Err).next().unwrap_or(Ok(())))
    }

    fn take_outcomes(&mut self, addresses: &mut Addresses) -> Result<(), FleetError> {
        while self.tasks.try_join_next().is_some() {}
        let mut settled = Ok(());
        while let Ok(outcome) = self.outcomes.1.try_recv() {
            match outcome {
                Outcome::Started(name, attempt, started) => {
                    let Some(replica) = self.replicas.get_mut(&name) else { continue };
                    if matches!(replica.life, Life::Starting(present, _) if present == attempt) {
                        if let (Ok(agent), Some(zone)) = (&started, &replica.record.zone) {
                            agent.set_zone(zone.clone());
                        }
                        replica.life = started.map_or_else(|error| Life::Failed(error.to_string()), Life::Running);
                    }
                }
                Outcome::Departed(name) => settled = settled.and(self.remove(&name, addresses)),
            }
        }
        // those that never ran have nothing to finish
        let ended = |replica: &&Replica| !replica.stays() && replica.agent().is_none();
        let ended: Vec<Arc<str>> = self.replicas.values().filter(ended).map(|replica| replica.record.name.clone()).collect();
        for name in ended {
            settled = settled.and(self.remove(&name, addresses));
        }
        settled
    }

    /// Forgets a replica that has ended.
    fn remove(&mut self, name: &str, addresses: &mut Addresses) -> Result<(), FleetError> {
        let Some(replica) = self.replicas.remove(name) else { return Ok(()) };
        if let Life::Starting(_, start) = &replica.life {
            start.abort();
        }
        let directory = record::directory(&self.environment.state, &self.id).join(&replica.directory);
        self.environment.clear(&directory, &replica.purpose);
        addresses.forget_replica(&replica.purpose).map_err(io_error("cannot remember addresses"))
    }

    /// Decides until there is nothing more to decide at `now`.
    async fn plan(&mut self, now: Timestamp) {
        for _ in 0..STEPS {
            self.look(now);
            let Some(wanted) = self.wanted.clone() else { return };
            let seen = self.seen();
            self.record.rollout.follow(&wanted, &seen);
            if self.turn_over(&wanted, &seen, now) {
                continue;
            }
            let Ok(decision) = advance(&mut Processes { rollout: &mut self.record.rollout, wanted: &wanted, replicas: &seen }, now).await;
            let acts = decision.action.is_some();
            if let (Some(action), Some(why)) = (&decision.action, decision.reasons.first()) {
                tracing::info!(fleet = %self.id, ?action, why = why.text, "the rollout goes on");
            }
            self.decision = Some(decision);
            if !acts {
                return;
            }
        }
        self.environment.news.notify_one();
    }

    /// Takes in which replicas clients reach.
    fn look(&mut self, now: Timestamp) {
        let front = self.balancer.as_ref().map(|balancer| balancer.agent.status().borrow().generation);
        for replica in self.replicas.values_mut() {
            let is_admitted = replica.admitted.is_some_and(|since| front.is_some_and(|present| present >= since));
            let is_drained = self.record.rollout.is_drained(&replica.record.name) || replica.is_led_away();
            replica.turn(is_admitted && replica.is_up() && !is_drained, now);
        }
    }

    /// Lets replicas ask their clients to leave, or not any more, as people want it.
    fn lead_away(&self) {
        for replica in self.replicas.values().filter(|replica| replica.stays()) {
            if let Some(agent) = replica.agent() {
                // also where it is not drained: its files may say so, from before a restart
                agent.set_drained(self.record.rollout.is_drained(&replica.record.name));
            }
        }
    }

    fn seen(&self) -> Vec<Seen> {
        self.replicas.values().map(Replica::seen).collect()
    }

    /// Makes and takes the replicas that are to come and go; whether there are any.
    fn turn_over(&mut self, wanted: &Wanted, seen: &[Seen], now: Timestamp) -> bool {
        let turnovers = self.record.rollout.sync(wanted, seen, now);
        for (zone, turnover) in &turnovers {
            for name in &turnover.take {
                tracing::info!(fleet = %self.id, replica = %name, "ends");
                self.replicas.entry(name.clone()).and_modify(|replica| replica.state = PodState::Ending);
            }
            for template in &turnover.make {
                let name = self.free_name(zone.as_ref());
                tracing::info!(fleet = %self.id, replica = %name, %template, "begins");
                self.add(ReplicaRecord { name, zone: zone.clone(), template: template.clone() }, now);
            }
        }
        !turnovers.is_empty()
    }

    /// The first name in `zone` that nobody has.
    fn free_name(&self, zone: Option<&Arc<str>>) -> Arc<str> {
        let mut names = (0..).map(|index| Arc::from(fleet::Replica { zone: zone.cloned(), index }.name(&self.id.name)));
        names.find(|name| !self.replicas.contains_key(name)).unwrap_or_default()
    }

    fn add(&mut self, record: ReplicaRecord, now: Timestamp) {
        let Some(template) = self.record.rollout.template(&record.template) else { return };
        let directory = Path::new(&*record.name).join(&template.line);
        let purpose = format!("{}/{}", self.id, directory.display());
        self.replicas.insert(record.name.clone(), Replica::new(record, directory, purpose, now));
    }

    fn start_missing(&mut self, addresses: &mut Addresses) -> Result<(), FleetError> {
        let is_missing = |replica: &&Replica| replica.stays() && matches!(replica.life, Life::Missing);
        let missing: Vec<Arc<str>> = self.replicas.values().filter(is_missing).map(|replica| replica.record.name.clone()).collect();
        missing.iter().map(|name| self.start(name, addresses)).fold(Ok(()), Result::and)
    }

    /// Starts the replica `name` while everything else goes on.
    fn start(&mut self, name: &Arc<str>, addresses: &mut Addresses) -> Result<(), FleetError> {
        let taken: BTreeSet<IpAddr> = self.replicas.values().filter_map(|replica| replica.address).collect();
        let Some(replica) = self.replicas.get_mut(name) else { return Ok(()) };
        let Some(template) = self.record.rollout.template(&replica.record.template).cloned() else { return Ok(()) };
        let ports: Vec<u16> = template.ports.values().copied().collect();
        let given = || addresses.replica(&replica.purpose, &ports, &taken).map_err(io_error("no address for a replica"));
        let address = replica.address.map_or_else(given, Ok)?;
        replica.address = Some(address);
        self.attempts += 1;
        let (attempt, id, environment, outcomes) = (self.attempts, self.id.clone(), self.environment.clone(), self.outcomes.0.clone());
        let (name, directory, purpose) = (name.clone(), replica.directory.clone(), replica.purpose.clone());
        let start = self.tasks.spawn(async move {
            let started = start_replica(&environment, &id, &name, &template, (directory, &purpose), address).await;
            // without a receiver the fleet is gone
            let _ = outcomes.send(Outcome::Started(name, attempt, started));
            environment.news.notify_one();
        });
        replica.life = Life::Starting(attempt, start);
        Ok(())
    }

    /// Lets replicas go that end, once the balancer has stopped sending to them.
    fn depart(&mut self) {
        let front = self.balancer.as_ref().map(|balancer| (balancer.agent.status(), balancer.generation));
        for replica in self.replicas.values_mut().filter(|replica| !replica.stays() && !replica.departs) {
            let Some(agent) = replica.agent().cloned() else {
                // it goes with the next look
                self.environment.news.notify_one();
                continue;
            };
            replica.departs = true;
            let template = self.record.rollout.template(&replica.record.template);
            let (serves_on, deadline) =
                template.map_or((Duration::ZERO, DRAIN), |template| (template.deregistration(), template.timeout()));
            agent.set_drained(true);
            let (name, news, outcomes) = (replica.record.name.clone(), self.environment.news.clone(), self.outcomes.0.clone());
            let front = front.clone();
            self.tasks.spawn(async move {
                let known = async {
                    if let Some((mut status, generation)) = front {
                        // without an answer in time it goes all the same: it refuses connections, and they go to others
                        let _ = tokio::time::timeout(DEREGISTRATION, status.wait_for(|status| status.generation >= generation)).await;
                    }
                };
                tokio::join!(known, tokio::time::sleep(serves_on));
                agent.drain(Drain { deadline }).await;
                // nobody listens any more only when all of it ends
                let _ = outcomes.send(Outcome::Departed(name));
                news.notify_one();
            });
        }
    }

    /// Gives the balancer the present listeners and replicas, and starts it first where there is none.
    async fn follow_balancer(&mut self, addresses: &mut Addresses) {
        let is_other = self.balancer.as_ref().is_none_or(|balancer| balancer.listeners != self.record.listeners);
        if is_other
            && !self.record.listeners.is_empty()
            && self.front_trouble.is_none()
            && let Err(error) = self.replace_balancer(addresses).await
        {
            self.front_trouble = Some(error.into());
        }
        let Some(balancer) = &mut self.balancer else { return };
        let mut members = Vec::new();
        for replica in self.replicas.values_mut() {
            if replica.admitted.is_none() && replica.stays() && replica.is_up() {
                replica.admitted = Some(balancer.generation + 1);
            }
            if let (Some(address), Some(_)) = (replica.address, replica.admitted) {
                let leaving = !replica.stays() || self.record.rollout.is_drained(&replica.record.name);
                members.push(Member { address, leaving });
            }
        }
        balancer.follow(&self.id, &members);
    }

    /// Starts the balancer for the present listeners. The one before goes when the new one listens: both share the
    /// addresses that stay.
    async fn replace_balancer(&mut self, addresses: &mut Addresses) -> Result<(), FleetError> {
        let listeners = self.record.listeners.clone();
        let ours: BTreeSet<SocketAddr> =
            self.balancer.iter().flat_map(|old| old.listeners.iter().map(ListenerRecord::stable_address)).collect();
        for listener in &listeners {
            let address = listener.stable_address();
            if !ours.contains(&address) && !is_free(address) {
                return Err(FleetError::InUse { listener: listener.name.clone(), address });
            }
        }
        let ports: Vec<String> = listeners.iter().map(|listener| listener.public_port.to_string()).collect();
        let health = addresses
            .listener(&format!("{}/balancer/{}/health", self.id, ports.join("-")), 0)
            .map_err(io_error("no address for the balancer"))?;
        let program = self.environment.haproxies.first().ok_or_else(|| io_error("no HAProxy to start")(io::ErrorKind::NotFound.into()))?;
        let purpose = format!("{}/balancer/{}", self.id, ports.join("-"));
        let launch = Launch {
            name: "balancer",
            program,
            directory: Path::new("balancer").join(ports.join("-")),
            purpose: &purpose,
            binds: listeners.iter().map(|listener| (listener.name.clone(), vec![listener.stable_address()])).collect(),
            health,
            threads: None,
            max_connections: None,
        };
        let agent = self.environment.start(&self.id, launch).await?;
        for replica in self.replicas.values_mut().filter(|replica| replica.admitted.is_some()) {
            // it is known to the new one from the beginning
            replica.admitted = Some(0);
        }
        if let Some(old) = self.balancer.replace(Balancer::new(&self.id, agent, listeners)) {
            let mut status = self.balancer.iter().map(|new| new.agent.status());
            let status = status.next();
            tokio::spawn(async move {
                if let Some(mut status) = status {
                    let _ = tokio::time::timeout(DEREGISTRATION, status.wait_for(|status| status.ready && status.generation > 0)).await;
                }
                old.agent.drain(Drain { deadline: DRAIN }).await;
            });
        }
        Ok(())
    }

    /// Whether all of it serves what is wanted.
    pub(super) fn ready(&self) -> bool {
        let generation = self.delivered.then_some(self.record.generation);
        let all_serve = self.replicas.values().filter(|replica| replica.stays()).all(|replica| replica.serves(generation));
        let is_done = self.wanted.as_ref().is_none_or(|wanted| self.record.rollout.is_done(wanted, &self.seen()));
        self.balancer.as_ref().is_some_and(Balancer::serves) && all_serve && is_done
    }

    /// When time alone may change what is to be done.
    pub(super) fn recheck_at(&self) -> Option<Timestamp> {
        self.decision.as_ref()?.recheck_at
    }

    /// The fleet as `/status` shows it, without what its manifest says.
    pub(super) fn status(&self) -> json::Fleet {
        let stable = self.record.listeners.iter().map(|listener| json::Listener {
            name: listener.name.clone(),
            protocol: listener.protocol,
            address: listener.stable_address().to_string(),
        });
        let addresses: BTreeSet<IpAddr> = self.record.listeners.iter().map(|listener| listener.stable_address().ip()).collect();
        let seen = self.seen();
        let desired = |wanted: &Wanted| wanted.zones.iter().map(|(_, size)| u64::from(*size)).sum();
        let told = |wanted| Some(self.record.rollout.told(wanted, &seen, self.decision.as_ref()?));
        json::Fleet {
            desired: self.wanted.as_ref().map(desired),
            addresses: addresses.iter().map(ToString::to_string).collect(),
            namespace: self.id.namespace.to_string(),
            name: self.id.name.to_string(),
            revision: self.record.revision,
            pinned: self.served.pinned(),
            revisions: self.record.revisions.iter().map(revision).collect(),
            generation: self.record.generation,
            digest: self.digest.to_string(),
            listeners: stable.collect(),
            replicas: self.replicas.values().map(|replica| replica.status(&self.record.listeners, self.record.generation)).collect(),
            urls: self.urls.clone(),
            rollout: self.wanted.as_ref().and_then(told),
            ..json::Fleet::default()
        }
    }

    /// What is not served as asked.
    pub(super) fn findings(&self) -> Vec<Diagnostic> {
        let mut found = self.refusals();
        found.extend(self.told_of_revisions());
        found
    }

    /// What the replicas refused, once for each object and message.
    fn refusals(&self) -> Vec<Diagnostic> {
        let mut found = BTreeSet::new();
        for agent in self.replicas.values().filter_map(Replica::agent) {
            for refusal in &agent.status().borrow().refused {
                found.extend(refusal.sources.first().map(|object| {
                    Diagnostic::error(
                        object,
                        "",
                        codes::REFUSED_BY_HAPROXY,
                        format!("HAProxy refused what this leads to ({}): {}", refusal.resource, refusal.message),
                        "its last good version keeps serving; change the object and it is tried again",
                    )
                }));
            }
        }
        found.into_iter().collect()
    }

    /// Ends it: the balancer first, so that nothing new arrives, then the replicas, each when it is done.
    pub(super) async fn shut_down(&mut self) {
        let front = self.balancer.take();
        let agents: Vec<Agent> = std::mem::take(&mut self.replicas).into_values().filter_map(|replica| replica.agent().cloned()).collect();
        // what is being started ends with its task
        self.tasks.abort_all();
        let closing = async {
            if let Some(balancer) = &front {
                balancer.agent.drain(Drain { deadline: SHUTDOWN }).await;
            }
        };
        let behind = async {
            let stable = front.iter().flat_map(|balancer| balancer.listeners.iter().map(ListenerRecord::stable_address)).collect();
            // once it takes no new connections, none can arrive at replicas that do not either
            wait_until_free(stable, Duration::from_secs(1)).await;
            futures::future::join_all(agents.iter().map(|agent| agent.drain(Drain { deadline: SHUTDOWN }))).await;
        };
        futures::future::join(closing, behind).await;
    }

    /// The agents that still run, for an end at once.
    pub(super) fn agents(&self) -> Vec<Agent> {
        let in_front = self.balancer.iter().map(|balancer| balancer.agent.clone());
        in_front.chain(self.replicas.values().filter_map(Replica::agent).cloned()).collect()
    }
}

/// Starts the HAProxy of a replica at `address`, with what it keeps and is known for.
async fn start_replica(
    environment: &Environment,
    id: &FleetId,
    name: &str,
    template: &PodTemplate,
    (directory, purpose): (PathBuf, &str),
    address: IpAddr,
) -> Result<Agent, FleetError> {
    let launch = launch_of(environment, name, template, (directory, purpose), address)?;
    environment.start(id, launch).await
}

/// The HAProxy of a replica of this template at `address`.
fn launch_of<'a>(
    environment: &'a Environment,
    name: &'a str,
    template: &PodTemplate,
    (directory, purpose): (PathBuf, &'a str),
    address: IpAddr,
) -> Result<Launch<'a>, FleetError> {
    Ok(Launch {
        name,
        program: environment.program(&template.line)?,
        directory,
        purpose,
        binds: template.ports.iter().map(|(listener, port)| (listener.clone(), vec![SocketAddr::new(address, *port)])).collect(),
        health: SocketAddr::new(address, HEALTH_PORT),
        threads: template.threads,
        max_connections: template.max_connections,
    })
}

fn revision((number, kept): (&u64, &super::revisions::Kept)) -> json::Revision {
    json::Revision { number: *number, since: kept.since.clone(), digest: kept.digest.clone() }
}

fn listeners(model: &Model) -> Vec<ListenerRecord> {
    let protocol = |protocol: &model::Protocol| match protocol {
        model::Protocol::Http { .. } => Protocol::Http,
        model::Protocol::Https { .. } => Protocol::Https,
        model::Protocol::TlsPassthrough { .. } => Protocol::Tls,
        model::Protocol::Tcp { .. } => Protocol::Tcp,
    };
    let record = |(name, listener): (&model::ListenerName, &model::Listener)| ListenerRecord {
        name: name.to_string(),
        protocol: protocol(&listener.protocol),
        public_port: listener.public_port,
        pod_port: listener.pod_port,
    };
    model.listeners.iter().map(record).collect()
}
