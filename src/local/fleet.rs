//! One fleet without a cluster: its replicas, and the HAProxy in front of them that plays Service and load
//! balancer.

use super::addresses::{Addresses, HEALTH_PORT};
use super::balancer::{self, Balanced, Member};
use super::haproxies::{Haproxy, choose};
use super::record::{self, ListenerRecord, Record, ReplicaRecord};
use crate::agent::{Agent, Drain, Pod, Settings, StartError, Update, UpdateContent};
use crate::api::IngressDeployment;
use crate::fleet::{Replica, ZoneSize, replicas};
use crate::haproxy::bundle::{Bundle, Change, Digest, ResourceKey};
use crate::haproxy::render::Renderer;
use crate::haproxy::version::Version;
use crate::model::{self, FleetId, Model, Touched};
use crate::report::PrivateBytes;
use crate::status::json::{self, Protocol};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinSet;

/// How long the load balancer needs to stop sending to a replica: it is told at once, and a moment passes.
const DEREGISTRATION: Duration = Duration::from_millis(300);
/// How long a replica that leaves may finish what it has. Longer than the keep-alive time-out, so that idle
/// clients are asked to close rather than cut.
const DRAIN: Duration = Duration::from_secs(15);
/// How long all of it may finish when `local` ends.
const SHUTDOWN: Duration = Duration::from_secs(10);
/// The least time between two reloads of a replica.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);
/// How often a replica's HAProxy is compared with what it should be.
const DRIFT_INTERVAL: Duration = Duration::from_secs(60);
/// Connections that a replica takes: plenty on one machine, within the usual limit of open files.
const MAX_CONNECTIONS: u32 = 4_000;

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
    /// Served where no certificate matches.
    pub default_certificate: PrivateBytes,
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
    /// Files or addresses.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> FleetError {
    let what = what.into();
    |source| FleetError::Io { what, source }
}

/// A HAProxy that runs.
struct Running {
    agent: Agent,
    record: ReplicaRecord,
    /// What its address is remembered for.
    purpose: String,
    address: IpAddr,
    /// Whether it has been given the present bundle once: from then on changes are enough.
    current: bool,
    phase: Phase,
}

/// Where a replica is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// It is one of those that are wanted.
    Wanted,
    /// It is not wanted any more, but serves until those that are wanted do.
    Retiring,
    /// It finishes what it has.
    Leaving,
}

/// The HAProxy in front.
struct Balancer {
    agent: Agent,
    renderer: Renderer,
    listeners: Vec<ListenerRecord>,
    generation: u64,
}

/// A fleet that runs.
pub(super) struct LocalFleet {
    id: FleetId,
    environment: Arc<Environment>,
    record: Record,
    digest: Digest,
    replicas: BTreeMap<String, Running>,
    balancer: Option<Balancer>,
    departures: JoinSet<String>,
}

impl LocalFleet {
    /// A fleet that is new here.
    pub(super) fn new(id: FleetId, environment: Arc<Environment>) -> Self {
        Self {
            id,
            environment,
            record: Record::default(),
            digest: Digest::default(),
            replicas: BTreeMap::new(),
            balancer: None,
            departures: JoinSet::new(),
        }
    }

    /// The fleet as it was last served, before any manifest is read.
    pub(super) async fn restore(
        id: FleetId,
        record: Record,
        environment: Arc<Environment>,
        addresses: &mut Addresses,
    ) -> Result<Self, FleetError> {
        let mut fleet = Self { record, ..Self::new(id, environment) };
        let replicas = fleet.record.replicas.clone();
        fleet.start_replicas(replicas, addresses).await?;
        fleet.follow_balancer(addresses).await?;
        Ok(fleet)
    }

    /// Makes the fleet what its `IngressDeployment` says and gives its replicas the new bundle: `changes`
    /// lead from the last one to `bundle`.
    pub(super) async fn update(
        &mut self,
        deployment: &IngressDeployment,
        model: &Model,
        bundle: &Bundle,
        changes: Vec<Change>,
        addresses: &mut Addresses,
    ) -> Result<(), FleetError> {
        let wanted = wanted(&self.id, deployment);
        let listeners = listeners(model);
        let line = deployment.spec.haproxy_version.as_str().to_owned();
        let restart = !self.record.line.is_empty() && self.record.line != line;
        if bundle.digest() != self.digest || self.record.generation == 0 {
            self.record.generation += 1;
            self.record.revision += u64::from(self.record.revision == 0 || changes.iter().any(is_revision));
            self.digest = bundle.digest();
        }
        let shape_changed = restart || wanted != self.record.replicas || listeners != self.record.listeners;
        (self.record.line, self.record.listeners) = (line, listeners);
        self.record.replicas.clone_from(&wanted);
        self.record.save(&self.environment.state, &self.id).map_err(io_error("cannot remember the fleet"))?;
        if shape_changed {
            self.resize(&wanted, restart, addresses).await?;
        }
        self.deliver(bundle, changes);
        if shape_changed || self.balancer.is_none() {
            self.follow_balancer(addresses).await?;
        }
        Ok(())
    }

    fn deliver(&mut self, bundle: &Bundle, changes: Vec<Change>) {
        let (generation, digest) = (self.record.generation, self.digest);
        let changes: Arc<[Change]> = changes.into();
        let mut whole: Option<Arc<Bundle>> = None;
        for running in self.replicas.values_mut().filter(|running| running.phase != Phase::Leaving) {
            let content = if running.current {
                UpdateContent::Changes(changes.clone())
            } else {
                running.current = true;
                UpdateContent::Full(whole.get_or_insert_with(|| Arc::new(bundle.clone())).clone())
            };
            running.agent.deliver(Update { generation, digest, content });
        }
    }

    /// Starts replicas that are missing and retires those that are not wanted (all of them, if they must run
    /// another release). Capacity first: see [`LocalFleet::tidy`].
    async fn resize(&mut self, wanted: &[ReplicaRecord], restart: bool, addresses: &mut Addresses) -> Result<(), FleetError> {
        let stays = |running: &Running| !restart && wanted.contains(&running.record);
        let retiring: Vec<String> =
            self.replicas.iter().filter(|(_, r)| r.phase == Phase::Wanted && !stays(r)).map(|(name, _)| name.clone()).collect();
        for name in retiring {
            let Some(mut running) = self.replicas.remove(&name) else { continue };
            running.phase = Phase::Retiring;
            self.replicas.insert(format!("{name} at {}", running.address), running);
        }
        let missing = wanted.iter().filter(|record| !self.replicas.contains_key(&record.name)).cloned().collect();
        self.start_replicas(missing, addresses).await
    }

    /// Moves replicas that are not wanted towards their end: once all others serve they leave the balancer,
    /// finish what they have, and are let go of.
    pub(super) async fn tidy(&mut self, addresses: &mut Addresses) -> Result<(), FleetError> {
        let mut changed = false;
        let others_serve = self.replicas.values().all(|running| running.phase != Phase::Wanted || running.serves(self.record.generation));
        if others_serve {
            let retiring = self.replicas.iter_mut().filter(|(_, running)| running.phase == Phase::Retiring);
            for (name, running) in retiring {
                changed = true;
                running.phase = Phase::Leaving;
                let (name, agent, news) = (name.clone(), running.agent.clone(), self.environment.news.clone());
                self.departures.spawn(async move {
                    tokio::time::sleep(DEREGISTRATION).await;
                    agent.drain(Drain { deadline: DRAIN }).await;
                    news.notify_one();
                    name
                });
            }
        }
        while let Some(gone) = self.departures.try_join_next() {
            let Some(running) = gone.ok().and_then(|name| self.replicas.remove(&name)) else { continue };
            changed = true;
            addresses.forget_replica(&running.purpose).map_err(io_error("cannot remember addresses"))?;
        }
        if changed { self.follow_balancer(addresses).await } else { Ok(()) }
    }

    fn purpose(&self, replica: &str) -> String {
        format!("{}/{replica}/{}", self.id, self.record.line)
    }

    async fn start_replicas(&mut self, records: Vec<ReplicaRecord>, addresses: &mut Addresses) -> Result<(), FleetError> {
        let mut starting = Vec::new();
        for record in records {
            let ports: Vec<u16> = self.record.listeners.iter().map(|listener| listener.pod_port).collect();
            let address = addresses.replica(&self.purpose(&record.name), &ports).map_err(io_error("no address for a replica"))?;
            let binds = self.record.listeners.iter();
            let binds = binds.map(|l| (l.name.clone(), vec![SocketAddr::new(address, l.pod_port)])).collect();
            let settings = self.settings(&record.name, binds, SocketAddr::new(address, HEALTH_PORT))?;
            starting.push(async move { (Agent::start(settings).await, record, address) });
        }
        for (agent, record, address) in futures::future::join_all(starting).await {
            let agent = agent.map_err(|source| FleetError::Start { name: record.name.clone(), source: Box::new(source) })?;
            self.announce(&agent);
            let purpose = self.purpose(&record.name);
            self.replicas.insert(record.name.clone(), Running { agent, record, purpose, address, current: false, phase: Phase::Wanted });
        }
        Ok(())
    }

    /// Rings for every change of the agent's status.
    fn announce(&self, agent: &Agent) {
        let (mut status, news) = (agent.status(), self.environment.news.clone());
        tokio::spawn(async move {
            while status.changed().await.is_ok() {
                news.notify_one();
            }
        });
    }

    fn settings(&self, name: &str, binds: BTreeMap<String, Vec<SocketAddr>>, health: SocketAddr) -> Result<Settings, FleetError> {
        let environment = &self.environment;
        let wanted: Option<Version> = self.record.line.parse().ok();
        let haproxy = choose(&environment.haproxies, wanted)
            .or(environment.haproxies.first())
            .ok_or_else(|| FleetError::Io { what: "no HAProxy to start".to_owned(), source: io::ErrorKind::NotFound.into() })?;
        let directory = record::directory(&environment.state, &self.id).join(name).join(&self.record.line);
        std::fs::create_dir_all(&directory).map_err(io_error(format!("cannot make {}", directory.display())))?;
        let socket = blake3::hash(self.purpose(name).as_bytes()).to_hex();
        let sockets = environment.sockets.join(&socket[..12]);
        std::fs::create_dir_all(&sockets).map_err(io_error(format!("cannot make {}", sockets.display())))?;
        let pod = Pod {
            name: name.to_owned(),
            binds,
            health,
            threads: Some(1),
            max_connections: MAX_CONNECTIONS,
            default_certificate: environment.default_certificate.clone(),
        };
        Ok(Settings {
            haproxy: haproxy.path.clone(),
            directory,
            sockets,
            pod,
            reload_interval: RELOAD_INTERVAL,
            drift_interval: DRIFT_INTERVAL,
            launcher: environment.launcher.clone(),
        })
    }

    /// Gives the balancer the present listeners and replicas, and starts it first where there is none.
    async fn follow_balancer(&mut self, addresses: &mut Addresses) -> Result<(), FleetError> {
        let listeners = self.record.listeners.clone();
        if listeners.is_empty() {
            return Ok(());
        }
        if self.balancer.as_ref().is_none_or(|balancer| balancer.listeners != listeners) {
            self.replace_balancer(listeners, addresses).await?;
        }
        let members: Vec<Member> =
            self.replicas.values().map(|running| Member { address: running.address, leaving: running.phase == Phase::Leaving }).collect();
        if let Some(balancer) = &mut self.balancer {
            balancer.follow(&self.id, &members);
        }
        Ok(())
    }

    async fn replace_balancer(&mut self, listeners: Vec<ListenerRecord>, addresses: &mut Addresses) -> Result<(), FleetError> {
        if let Some(old) = self.balancer.take() {
            old.agent.drain(Drain { deadline: DRAIN }).await;
        }
        let mut binds = BTreeMap::new();
        for listener in &listeners {
            binds.insert(listener.name.clone(), vec![stable_address(listener)]);
        }
        let health = addresses.listener(&format!("{}/balancer/health", self.id), 0).map_err(io_error("no address for the balancer"))?;
        let settings = self.settings("balancer", binds, health)?;
        let agent =
            Agent::start(settings).await.map_err(|source| FleetError::Start { name: "balancer".to_owned(), source: Box::new(source) })?;
        self.announce(&agent);
        let capabilities = agent.status().borrow().capabilities;
        let renderer = Renderer::new(self.id.clone(), capabilities);
        self.balancer = Some(Balancer { agent, renderer, listeners, generation: 0 });
        Ok(())
    }

    /// Whether all of it serves what is wanted.
    pub(super) fn ready(&self) -> bool {
        let in_front = self.balancer.as_ref().is_some_and(|balancer| {
            let status = balancer.agent.status();
            let status = status.borrow();
            status.ready && status.generation == balancer.generation
        });
        in_front && self.replicas.values().all(|running| running.phase != Phase::Wanted || running.serves(self.record.generation))
    }

    /// The fleet as `/status` shows it.
    pub(super) fn status(&self) -> json::Fleet {
        let stable = self.record.listeners.iter().map(|listener| json::Listener {
            name: listener.name.clone(),
            protocol: listener.protocol,
            address: stable_address(listener).to_string(),
        });
        json::Fleet {
            namespace: self.id.namespace.to_string(),
            name: self.id.name.to_string(),
            revision: self.record.revision,
            generation: self.record.generation,
            digest: self.digest.to_string(),
            listeners: stable.collect(),
            replicas: self.replicas.iter().map(|(name, running)| running.status(name, &self.record.listeners)).collect(),
        }
    }

    /// What the replicas refused, once for each object and message.
    pub(super) fn refusals(&self) -> Vec<crate::report::Diagnostic> {
        let mut found = BTreeSet::new();
        for running in self.replicas.values() {
            for refusal in &running.agent.status().borrow().refused {
                found.extend(refusal.sources.first().map(|object| {
                    crate::report::Diagnostic::error(
                        object,
                        "",
                        crate::report::codes::REFUSED_BY_HAPROXY,
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
        if let Some(balancer) = self.balancer.take() {
            balancer.agent.drain(Drain { deadline: SHUTDOWN }).await;
        }
        let agents: Vec<Agent> = std::mem::take(&mut self.replicas).into_values().map(|running| running.agent).collect();
        futures::future::join_all(agents.iter().map(|agent| agent.drain(Drain { deadline: SHUTDOWN }))).await;
    }

    /// The agents that still run, for an end at once.
    pub(super) fn agents(&self) -> Vec<Agent> {
        let in_front = self.balancer.iter().map(|balancer| balancer.agent.clone());
        in_front.chain(self.replicas.values().map(|running| running.agent.clone())).collect()
    }
}

impl Balancer {
    fn follow(&mut self, id: &FleetId, members: &[Member]) {
        let listeners: Vec<Balanced> = self
            .listeners
            .iter()
            .map(|listener| Balanced {
                name: listener.name.as_str().into(),
                public_port: listener.public_port,
                pod_port: listener.pod_port,
            })
            .collect();
        let model = balancer::model(&id.name, &listeners, members, HEALTH_PORT);
        let changes = self.renderer.update(&model, &Touched::all(&model));
        if changes.is_empty() && self.generation > 0 {
            return;
        }
        self.generation += 1;
        let content = UpdateContent::Full(Arc::new(self.renderer.bundle().clone()));
        self.agent.deliver(Update { generation: self.generation, digest: self.renderer.bundle().digest(), content });
    }
}

impl Running {
    /// Whether it serves this generation.
    fn serves(&self, generation: u64) -> bool {
        let status = self.agent.status();
        let status = status.borrow();
        status.ready && self.current && status.generation == generation
    }

    fn status(&self, name: &str, listeners: &[ListenerRecord]) -> json::Replica {
        let status = self.agent.status();
        let status = status.borrow();
        let own = |listener: &ListenerRecord| json::Listener {
            name: listener.name.clone(),
            protocol: listener.protocol,
            address: SocketAddr::new(self.address, listener.pod_port).to_string(),
        };
        json::Replica {
            name: name.to_owned(),
            zone: self.record.zone.clone(),
            ready: status.ready && self.phase != Phase::Leaving,
            generation: status.generation,
            listeners: listeners.iter().map(own).collect(),
            reload_count: status.reload_count,
            reloads: status.reloads.iter().map(|r| json::Reload { generation: r.generation, reason: r.reason.clone() }).collect(),
            runtime_commands: status.runtime_commands,
            refused: status
                .refused
                .iter()
                .map(|r| json::Refused { generation: r.generation, object: r.sources.first().map(Into::into), message: r.message.clone() })
                .collect(),
        }
    }
}

/// The address of a listener that clients use: its port is the one that `local` gave the fleet.
fn stable_address(listener: &ListenerRecord) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, listener.public_port))
}

/// The replicas that an `IngressDeployment` asks for.
fn wanted(id: &FleetId, deployment: &IngressDeployment) -> Vec<ReplicaRecord> {
    let size = |replicas: i32| u32::try_from(replicas).unwrap_or(0);
    let zones: Vec<ZoneSize> =
        deployment.spec.zones.iter().map(|zone| ZoneSize { name: zone.name.as_str().into(), replicas: zone.replicas.map(size) }).collect();
    let record = |replica: &Replica| ReplicaRecord { name: replica.name(&id.name), zone: replica.zone.as_deref().map(str::to_owned) };
    replicas(size(deployment.spec.total_replicas()), &zones).iter().map(record).collect()
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

/// Whether a change is one of those that people see and can go back to: sections, backends, routing maps.
fn is_revision(change: &Change) -> bool {
    match &change.key {
        ResourceKey::Section(_) | ResourceKey::Backend(_) => true,
        ResourceKey::MapEntries { map, .. } => !Path::new(&**map).starts_with("maps/values"),
        _ => false,
    }
}
