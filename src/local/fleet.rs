//! One fleet without a cluster: its replicas, and the HAProxy in front of them that plays Service and load
//! balancer.

use super::addresses::{Addresses, HEALTH_PORT, is_free, wait_until_free};
use super::balancer::Member;
use super::front::Balancer;
use super::haproxies::{Haproxy, choose};
use super::record::{self, ListenerRecord, Record, ReplicaRecord};
use super::replica::{Phase, Running};
use crate::agent::{Agent, Drain, Pod, Settings, StartError, Update, UpdateContent};
use crate::api::IngressDeployment;
use crate::fleet::{Replica, ZoneSize, replicas};
use crate::haproxy::bundle::{Bundle, Change, Digest};
use crate::haproxy::tickets::ticket_keys;
use crate::haproxy::version::Version;
use crate::model::{self, FleetId, Model};
use crate::report::{Diagnostic, PrivateBytes, codes};
use crate::status::json::{self, Protocol};
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
/// How long a replica that leaves may finish what it has. Longer than the keep-alive time-out, so that idle
/// clients are asked to close rather than cut.
const DRAIN: Duration = Duration::from_secs(15);
/// How long all of it may finish when `local` ends.
const SHUTDOWN: Duration = Duration::from_secs(10);
/// The least time between two reloads of a replica.
const RELOAD_INTERVAL: Duration = Duration::from_secs(5);
/// Replicas of a fleet at most: each is a process of this machine.
pub(super) const MAX_REPLICAS: i32 = 32;
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

impl FleetError {
    /// What to do about it.
    pub(super) fn help(&self) -> String {
        match self {
            Self::InUse { listener, address } => format!(
                "stop that program (`ss -ltnp 'sport = :{}'` shows it) and the fleet takes the address within seconds; \
                 or give the fleet another port by spec.ports.{listener}",
                address.port()
            ),
            _ => "what serves keeps serving; it is tried again every few seconds".to_owned(),
        }
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
}

impl Environment {
    /// Starts a HAProxy of the fleet `id` with its agent, and rings for all its news.
    pub(super) async fn start(&self, id: &FleetId, launch: Launch<'_>) -> Result<Agent, FleetError> {
        let directory = record::directory(&self.state, id).join(launch.directory);
        std::fs::create_dir_all(&directory).map_err(io_error(format!("cannot make {}", directory.display())))?;
        let sockets = self.socket_directory(launch.purpose);
        std::fs::create_dir_all(&sockets).map_err(io_error(format!("cannot make {}", sockets.display())))?;
        let pod = Pod {
            name: launch.name.to_owned(),
            binds: launch.binds,
            health: launch.health,
            threads: Some(1),
            max_connections: self.max_connections,
            default_certificate: self.default_certificate.clone(),
            ticket_keys: PrivateBytes::new(ticket_keys(self.secret.expose(), &id.to_string())),
        };
        let settings = Settings {
            haproxy: launch.program.path.clone(),
            directory,
            sockets,
            attach: None,
            pod,
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
    digest: Digest,
    replicas: BTreeMap<String, Running>,
    balancer: Option<Balancer>,
    /// Replicas on their way out.
    departures: JoinSet<()>,
    /// Those that are out, by key: sent before the bell is rung for it, so that whoever hears it finds them.
    departed: (mpsc::UnboundedSender<String>, mpsc::UnboundedReceiver<String>),
    /// Addresses that people may try.
    urls: Vec<String>,
    /// Whether a bundle was delivered since the start; before, the last good state serves.
    delivered: bool,
}

impl LocalFleet {
    /// The fleet `id` as it was last, or never yet, served. Nothing runs until [`Self::converge`].
    pub(super) fn new(id: FleetId, record: Record, environment: Arc<Environment>) -> Self {
        let (replicas, departures, departed) = (BTreeMap::new(), JoinSet::new(), mpsc::unbounded_channel());
        let digest = u128::from_str_radix(&record.digest, 16).map_or_else(|_| Digest::default(), Digest);
        Self { id, environment, record, digest, replicas, balancer: None, departures, departed, urls: Vec::new(), delivered: false }
    }

    /// When it was first seen.
    pub(super) fn since(&self) -> i64 {
        self.record.since
    }

    /// Makes the fleet what its `IngressDeployment` says and gives its replicas the new bundle: `changes`
    /// lead from the last one to `bundle`. After an error the next call, or [`Self::converge`], does what is left.
    pub(super) async fn update(
        &mut self,
        deployment: &IngressDeployment,
        model: &Model,
        bundle: &Bundle,
        changes: Vec<Change>,
        addresses: &mut Addresses,
    ) -> Result<(), FleetError> {
        let before = self.record.clone();
        if bundle.digest() != self.digest || self.record.generation == 0 {
            self.record.generation += 1;
            self.record.revision += u64::from(self.record.revision == 0 || changes.iter().any(Change::is_revision));
            self.digest = bundle.digest();
            self.record.digest = self.digest.to_string();
        }
        let line = self.environment.program(deployment.spec.haproxy_version.as_str())?.version;
        self.record.line = format!("{}.{}", line.major, line.minor);
        self.record.listeners = listeners(model);
        self.record.replicas = wanted(&self.id, deployment);
        self.urls = super::urls::of(model, Ipv4Addr::LOCALHOST.into());
        let saved = if before == self.record { Ok(()) } else { self.record.save(&self.environment.state, &self.id) };
        let converged = self.converge(addresses).await;
        // whatever could not be started: what runs must not miss a change
        self.deliver(bundle, changes);
        saved.map_err(io_error(format!("cannot write {}", record::directory(&self.environment.state, &self.id).display())))?;
        converged
    }

    fn deliver(&mut self, bundle: &Bundle, changes: Vec<Change>) {
        self.delivered = true;
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

    /// Gives all of `bundle` to replicas that say that they have something else, or that were started by themselves.
    pub(super) fn resync(&mut self, bundle: &Bundle) {
        let astray =
            |running: &Running| running.phase != Phase::Leaving && (!running.current || running.agent.status().borrow().out_of_sync);
        let keys: Vec<String> = self.replicas.iter().filter(|(_, running)| astray(running)).map(|(key, _)| key.clone()).collect();
        if keys.is_empty() || !self.delivered || bundle.digest() != self.digest {
            return;
        }
        let whole = Arc::new(bundle.clone());
        for key in keys {
            if let Some(running) = self.replicas.get_mut(&key) {
                running.current = true;
                let content = UpdateContent::Full(whole.clone());
                running.agent.deliver(Update { generation: self.record.generation, digest: self.digest, content });
            }
        }
    }

    /// Starts what is missing and retires what is not wanted (all replicas, if they must run another release):
    /// capacity first, see [`Self::tidy`].
    pub(super) async fn converge(&mut self, addresses: &mut Addresses) -> Result<(), FleetError> {
        let program = self.environment.program(&self.record.line)?.path.clone();
        let ports = self.record.ports();
        let fits =
            |running: &Running| running.program == program && running.ports == ports && self.record.replicas.contains(&running.record);
        let turning: Vec<String> = self.replicas.iter().filter(|(_, r)| r.must_turn(fits(r))).map(|(key, _)| key.clone()).collect();
        for key in turning {
            let Some(mut running) = self.replicas.remove(&key) else { continue };
            if running.phase == Phase::Retiring && !self.replicas.contains_key(&running.record.name) {
                // wanted again before it left
                running.phase = Phase::Wanted;
                self.replicas.insert(running.record.name.clone(), running);
            } else {
                running.phase = Phase::Retiring;
                self.replicas.insert(format!("{} at {}", running.record.name, running.address), running);
            }
        }
        let missing: Vec<ReplicaRecord> = self.record.replicas.iter().filter(|r| !self.replicas.contains_key(&r.name)).cloned().collect();
        let started = self.start_replicas(missing, addresses).await;
        let fronted = self.follow_balancer(addresses).await;
        started.and(fronted)
    }

    async fn start_replicas(&mut self, records: Vec<ReplicaRecord>, addresses: &mut Addresses) -> Result<(), FleetError> {
        let environment = self.environment.clone();
        let program = environment.program(&self.record.line)?;
        let ports = self.record.ports();
        let numbers: Vec<u16> = ports.values().copied().collect();
        let mut starting = Vec::new();
        for record in records {
            let directory = self.free_directory(&record.name);
            let taken: BTreeSet<IpAddr> = self.replicas.values().map(|running| running.address).collect();
            let purpose = format!("{}/{}", self.id, directory.display());
            let address = addresses.replica(&purpose, &numbers, &taken).map_err(io_error("no address for a replica"))?;
            let binds = ports.iter().map(|(name, port)| (name.clone(), vec![SocketAddr::new(address, *port)])).collect();
            let (id, environment) = (&self.id, &environment);
            starting.push(async move {
                let health = SocketAddr::new(address, HEALTH_PORT);
                let launch = Launch { name: &record.name, program, directory: directory.clone(), purpose: &purpose, binds, health };
                let agent = environment.start(id, launch).await;
                (agent, record, directory, purpose, address)
            });
        }
        let mut failed = Ok(());
        for (agent, record, directory, purpose, address) in futures::future::join_all(starting).await {
            match agent {
                Ok(agent) => {
                    if let Some(zone) = &record.zone {
                        agent.set_zone(zone.as_str().into());
                    }
                    let key = record.name.clone();
                    let (ports, program) = (ports.clone(), program.path.clone());
                    let (current, phase, joined) = (false, Phase::Wanted, false);
                    self.replicas
                        .insert(key, Running { agent, record, program, ports, directory, purpose, address, current, phase, joined });
                }
                Err(error) => failed = failed.and(Err(error)),
            }
        }
        failed
    }

    /// Where a new replica `name` keeps its things: one of the same name may still be on its way out.
    fn free_directory(&self, name: &str) -> PathBuf {
        let all = (0..)
            .map(|turn| Path::new(name).join(if turn == 0 { self.record.line.clone() } else { format!("{}-{turn}", self.record.line) }));
        let mut free = all.filter(|path| self.replicas.values().all(|running| running.directory != *path)).take(8);
        let first = free.next().unwrap_or_default();
        let home = record::directory(&self.environment.state, &self.id);
        // after a restart the last good state may be in a later one
        if home.join(&first).exists() { first } else { free.find(|path| home.join(path).exists()).unwrap_or(first) }
    }

    /// Moves replicas that are not wanted towards their end: once all others serve they leave the balancer,
    /// finish what they have, and are let go of.
    pub(super) async fn tidy(&mut self, addresses: &mut Addresses) -> Result<(), FleetError> {
        // before anything is decided: no news may come after it
        let joins = self.join();
        let leaving: Vec<String> = if self.replicas.values().any(|running| running.phase == Phase::Retiring) && self.replicas_serve() {
            self.replicas.iter().filter(|(_, running)| running.phase == Phase::Retiring).map(|(key, _)| key.clone()).collect()
        } else {
            Vec::new()
        };
        for key in &leaving {
            self.replicas.entry(key.clone()).and_modify(|running| running.phase = Phase::Leaving);
        }
        let mut changed = !leaving.is_empty() || joins;
        while self.departures.try_join_next().is_some() {}
        while let Ok(key) = self.departed.1.try_recv() {
            let Some(running) = self.replicas.remove(&key) else { continue };
            changed = true;
            addresses.forget_replica(&running.purpose).map_err(io_error("cannot remember addresses"))?;
            let directory = record::directory(&self.environment.state, &self.id).join(&running.directory);
            self.environment.clear(&directory, &running.purpose);
        }
        let followed = if changed { self.follow_balancer(addresses).await } else { Ok(()) };
        for key in leaving {
            self.depart(key);
        }
        followed
    }

    /// Lets replicas that serve by now into the balancer with its next bundle; whether there are any.
    fn join(&mut self) -> bool {
        let mut joins = false;
        for running in self.replicas.values_mut().filter(|running| !running.joined) {
            running.joined = running.agent.status().borrow().ready;
            joins |= running.joined;
        }
        joins
    }

    /// Lets a replica go once the balancer has stopped sending to it.
    fn depart(&mut self, key: String) {
        let Some(running) = self.replicas.get(&key) else { return };
        let (agent, news, departed) = (running.agent.clone(), self.environment.news.clone(), self.departed.0.clone());
        let front = self.balancer.as_ref().map(|balancer| (balancer.agent.status(), balancer.generation));
        self.departures.spawn(async move {
            if let Some((mut status, generation)) = front {
                // without an answer in time it goes all the same: it refuses connections, and they go to others
                let _ = tokio::time::timeout(DEREGISTRATION, status.wait_for(|status| status.generation >= generation)).await;
            }
            agent.drain(Drain { deadline: DRAIN }).await;
            // nobody listens any more only when all of it ends
            let _ = departed.send(key);
            news.notify_one();
        });
    }

    /// Gives the balancer the present listeners and replicas, and starts it first where there is none.
    async fn follow_balancer(&mut self, addresses: &mut Addresses) -> Result<(), FleetError> {
        if self.record.listeners.is_empty() {
            return Ok(());
        }
        if self.balancer.as_ref().is_none_or(|balancer| balancer.listeners != self.record.listeners) {
            self.replace_balancer(addresses).await?;
        }
        self.join();
        let joined = self.replicas.values().filter(|running| running.joined);
        let members: Vec<Member> =
            joined.map(|running| Member { address: running.address, leaving: running.phase == Phase::Leaving }).collect();
        if let Some(balancer) = &mut self.balancer {
            balancer.follow(&self.id, &members);
        }
        Ok(())
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
        };
        let agent = self.environment.start(&self.id, launch).await?;
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

    /// Whether the replicas that are wanted are there and serve what is wanted; before anything was delivered
    /// that is the last good state.
    fn replicas_serve(&self) -> bool {
        let serves = |record: &ReplicaRecord| match self.replicas.get(&record.name) {
            Some(running) if !running.joined => false,
            Some(running) if self.delivered => running.serves(self.record.generation),
            Some(running) => running.agent.status().borrow().ready,
            None => false,
        };
        self.record.replicas.iter().all(serves)
    }

    /// Whether all of it serves what is wanted.
    pub(super) fn ready(&self) -> bool {
        self.balancer.as_ref().is_some_and(Balancer::serves) && self.replicas_serve()
    }

    /// The fleet as `/status` shows it, without what its manifest says.
    pub(super) fn status(&self) -> json::Fleet {
        let stable = self.record.listeners.iter().map(|listener| json::Listener {
            name: listener.name.clone(),
            protocol: listener.protocol,
            address: listener.stable_address().to_string(),
        });
        let addresses: BTreeSet<IpAddr> = self.record.listeners.iter().map(|listener| listener.stable_address().ip()).collect();
        json::Fleet {
            desired: Some(self.record.replicas.len() as u64),
            addresses: addresses.iter().map(ToString::to_string).collect(),
            namespace: self.id.namespace.to_string(),
            name: self.id.name.to_string(),
            revision: self.record.revision,
            generation: self.record.generation,
            digest: self.digest.to_string(),
            listeners: stable.collect(),
            replicas: self
                .replicas
                .iter()
                .map(|(name, running)| running.status(name, &self.record.listeners, self.record.generation))
                .collect(),
            urls: self.urls.clone(),
            ..json::Fleet::default()
        }
    }

    /// What the replicas refused, once for each object and message.
    pub(super) fn refusals(&self) -> Vec<Diagnostic> {
        let mut found = BTreeSet::new();
        for running in self.replicas.values() {
            for refusal in &running.agent.status().borrow().refused {
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
        let agents: Vec<Agent> = std::mem::take(&mut self.replicas).into_values().map(|running| running.agent).collect();
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
        in_front.chain(self.replicas.values().map(|running| running.agent.clone())).collect()
    }
}

/// The replicas that an `IngressDeployment` asks for.
fn wanted(id: &FleetId, deployment: &IngressDeployment) -> Vec<ReplicaRecord> {
    let size = |replicas: i32| u32::try_from(replicas).unwrap_or(0);
    let zones: Vec<ZoneSize> =
        deployment.spec.zones.iter().map(|zone| ZoneSize { name: zone.name.as_str().into(), replicas: zone.replicas.map(size) }).collect();
    let record = |replica: &Replica| ReplicaRecord { name: replica.name(&id.name), zone: replica.zone.as_deref().map(str::to_owned) };
    replicas(size(deployment.spec.total_replicas().min(MAX_REPLICAS)), &zones)
        .iter()
        .take(size(MAX_REPLICAS) as usize)
        .map(record)
        .collect()
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
