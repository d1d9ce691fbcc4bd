//! The loop of `local`: follow the files, keep the fleets, tell how it goes.

use super::addresses::{Addresses, HEALTH_PORT, preferred_port, wait_until_free};
use super::echoes::Echoes;
use super::fleet::{Environment, LocalFleet, MAX_CLOSE_SPREAD, MAX_REPLICAS, Trouble};
use super::haproxies::{Haproxy, choose};
use super::interrupt::Interrupts;
use super::record::Record;
use super::refused::refused;
use super::{config, record, rollout, state, view};
use crate::admin::{self, ConfigAsked, Ordered, Refusal, RefusalKind};
use crate::agent::Agent;
use crate::agent::room::make_room;
use crate::api::{Created, IngressDeployment, conditions};
use crate::cli::Output;
use crate::haproxy::bundle::Change;
use crate::haproxy::render;
use crate::haproxy::version::{Capabilities, FLOOR, Version};
use crate::ingest::files::{Files, HoldOff, Limits, watch};
use crate::model::FleetId;
use crate::pipeline::{self, FleetChange, FleetUpdate, Pipeline};
use crate::report::{Diagnostic, Kind, Located, ObjectRef, PrivateBytes, Severity, codes};
use crate::status::fleet::worst;
use crate::status::json::{self, Status};
use crate::telemetry::Metrics;
use crate::translate;
use crate::world::Object;
use k8s_openapi::jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, watch as latest};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// The state is told at most that often: findings and replicas of large fleets are many.
const TELL_INTERVAL: Duration = Duration::from_millis(50);

/// Connections of each HAProxy: plenty on one machine.
const MAX_CONNECTIONS: u32 = 4_000;
/// Orders that may wait for an answer.
const ORDERS: usize = 16;
/// What could not be done is tried again that often.
const RETRY: Duration = Duration::from_secs(2);
/// How long the HAProxies of a `local` that was killed may take to end.
const PATIENCE: Duration = Duration::from_secs(3);

/// What `local` is to do.
#[derive(Debug)]
pub struct Settings {
    /// Files and directories with manifests; `-` is standard input.
    pub inputs: Vec<PathBuf>,
    /// Whether Services without endpoints get echo servers.
    pub echo: bool,
    /// Where it keeps what must outlive it.
    pub state: PathBuf,
    /// Where to serve health, metrics and status.
    pub admin: Option<SocketAddr>,
    /// The HAProxy programs to choose from, newest first; there is at least one.
    pub haproxies: Vec<Haproxy>,
    /// What every HAProxy is started through, so that none outlives this process.
    pub launcher: Option<Vec<OsString>>,
    /// Whether to show a live view instead of lines.
    pub live: bool,
}

/// Why `local` could not go on.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// Another one runs on the same state.
    #[error("another `haproxy-fleet local` uses {0}")]
    InUse(PathBuf),
    /// Files or sockets.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The address of the admin server cannot be had.
    #[error("cannot serve --admin on {address}: {source}")]
    Admin {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The input could not be read at all.
    #[error("{0}")]
    Input(String),
}

impl LocalError {
    /// What to do about it; may be empty.
    pub fn help(&self) -> String {
        match self {
            Self::InUse(_) => "stop it, or give this one a directory of its own by --state-dir DIR".to_owned(),
            Self::Admin { address, source } if source.kind() == io::ErrorKind::AddrInUse => {
                format!("choose another port, such as --admin {}:0 for any free one", address.ip())
            }
            Self::Admin { .. } => "name an address of this machine, such as --admin 127.0.0.1:9901".to_owned(),
            Self::Io { .. } => "choose a directory that can be written by --state-dir DIR".to_owned(),
            Self::Input(_) => String::new(),
        }
    }
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> LocalError {
    let what = what.into();
    |source| LocalError::Io { what, source }
}

/// Runs until interrupted: the first time it drains and ends, the second time it ends at once. How it goes is
/// shown on `out`.
pub async fn run(settings: Settings, out: Output, interrupts: Interrupts) -> Result<(), LocalError> {
    let _lock = lock(&settings.state)?;
    let metrics = Arc::new(Metrics::default());
    let (status, _) = latest::channel(Arc::new(Status::default()));
    let (orders, ordered) = mpsc::channel(ORDERS);
    let (configs, config_asked) = mpsc::channel(ORDERS);
    let admin = serve_admin(&settings, &status, &metrics, (orders, configs)).await?;
    let (shown, view) = latest::channel(view::Shown { admin, ..view::Shown::default() });
    let view = tokio::spawn(view::show(view, out, settings.live));
    let mut local = Local::new(settings, status, shown, metrics, (ordered, config_asked))?;
    // the start of a HAProxy may take long: whoever wants it to end need not wait for that
    let served = tokio::select! {
        served = local.serve() => served,
        () = interrupts.drain() => Ok(()),
    };
    local.shut_down(&interrupts).await;
    drop(local);
    // what it shows ends with its sender; a closed terminal is no reason to complain
    let _ = view.await;
    served
}

/// One `local` for one state directory. The lock goes with the process, however that ends.
fn lock(state: &Path) -> Result<File, LocalError> {
    std::fs::create_dir_all(state).map_err(io_error(format!("cannot make {}", state.display())))?;
    let path = state.join("lock");
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path)
        .map_err(io_error(format!("cannot open {}", path.display())))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(LocalError::InUse(state.to_owned())),
        Err(std::fs::TryLockError::Error(source)) => Err(LocalError::Io { what: format!("cannot lock {}", path.display()), source }),
    }
}

async fn serve_admin(
    settings: &Settings,
    status: &latest::Sender<Arc<Status>>,
    metrics: &Arc<Metrics>,
    (orders, configs): (admin::Orders, admin::Configs),
) -> Result<Option<SocketAddr>, LocalError> {
    let Some(address) = settings.admin else { return Ok(None) };
    let listener = TcpListener::bind(address).await.map_err(|source| LocalError::Admin { address, source })?;
    let address = listener.local_addr().map_err(|source| LocalError::Admin { address, source })?;
    let all_serve = status.subscribe();
    let served = admin::Served {
        status: status.subscribe(),
        metrics: metrics.clone(),
        observe: Arc::new(|| ()),
        count_from: admin::CountFrom::Start,
        ready: Arc::new(move || all_serve.borrow().ready),
        log_level: None,
        open: true,
    };
    tokio::spawn(async move {
        if let Err(error) = admin::serve_with_orders(listener, served, orders, configs, std::future::pending()).await {
            tracing::error!(%error, "the admin server has ended");
        }
    });
    Ok(Some(address))
}

struct Local {
    settings: Settings,
    environment: Arc<Environment>,
    addresses: Addresses,
    files: Files,
    pipeline: Pipeline,
    echoes: Echoes,
    fleets: BTreeMap<FleetId, LocalFleet>,
    /// Fleets that are gone and finish what they have, with their agents for an end at once.
    endings: JoinSet<FleetId>,
    ending: BTreeMap<FleetId, Vec<Agent>>,
    /// What could not be done for a fleet, until it can.
    troubles: BTreeMap<FleetId, Diagnostic>,
    /// What is different here from what a fleet asks for.
    remarks: BTreeMap<FleetId, Vec<Diagnostic>>,
    located: Vec<Located>,
    status: latest::Sender<Arc<Status>>,
    shown: latest::Sender<view::Shown>,
    metrics: Arc<Metrics>,
    /// What people ask for by `--admin`.
    ordered: mpsc::Receiver<Ordered>,
    config_asked: mpsc::Receiver<ConfigAsked>,
}

impl Local {
    /// Serves what was served last, then follows the files.
    async fn serve(&mut self) -> Result<(), LocalError> {
        self.restore().await;
        let mut changes = watch(&self.settings.inputs, HoldOff::default()).map_err(|error| LocalError::Input(error.to_string()))?;
        self.follow_files().await?;
        self.tell();
        let news = self.environment.news.clone();
        let mut tell_at: Option<Instant> = None;
        let mut retry = interval(RETRY);
        retry.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let due = async {
                match tell_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let recheck = self.recheck_in();
            let recheck = async {
                match recheck {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                Some(()) = changes.changed() => self.follow_files().await?,
                () = news.notified() => self.tidy().await,
                () = recheck => self.tidy().await,
                Some(ordered) = self.ordered.recv() => self.order(ordered).await,
                Some(asked) = self.config_asked.recv() => {
                    self.show_config(asked);
                    continue;
                }
                Some(ended) = self.endings.join_next() => self.ended(ended),
                _ = retry.tick(), if !self.troubles.is_empty() => self.retry().await,
                () = due => {
                    tell_at = None;
                    self.tell();
                    continue;
                }
            }
            tell_at.get_or_insert_with(|| Instant::now() + TELL_INTERVAL);
        }
    }

    fn new(
        settings: Settings,
        status: latest::Sender<Arc<Status>>,
        shown: latest::Sender<view::Shown>,
        metrics: Arc<Metrics>,
        (ordered, config_asked): (mpsc::Receiver<Ordered>, mpsc::Receiver<ConfigAsked>),
    ) -> Result<Self, LocalError> {
        let default_certificate = state::default_certificate(&settings.state).map_err(io_error("cannot make a default certificate"))?;
        let secret = state::secret(&settings.state).map_err(io_error("cannot make a secret"))?;
        let sockets = state::socket_directory(&settings.state).map_err(io_error("cannot make a directory for sockets"))?;
        let room = make_room();
        let environment = Environment {
            state: settings.state.clone(),
            sockets,
            haproxies: settings.haproxies.clone(),
            launcher: settings.launcher.clone(),
            max_connections: room.connections.min(MAX_CONNECTIONS),
            default_certificate: PrivateBytes::new(default_certificate),
            secret: PrivateBytes::new(secret),
            news: Arc::new(Notify::new()),
        };
        let haproxies = settings.haproxies.clone();
        let options = pipeline::Options {
            capabilities: Box::new(move |line| {
                let wanted: Option<Version> = line.as_str().parse().ok();
                let found = choose(&haproxies, wanted).or(haproxies.first());
                Capabilities::of(found.map_or(FLOOR, |haproxy| haproxy.version))
            }),
            translate: translate::Options { allow_loopback: true },
            render: render::Options {
                max_checked_servers: room.checked_servers,
                max_close_spread: MAX_CLOSE_SPREAD,
                ..render::Options::default()
            },
        };
        Ok(Self {
            addresses: Addresses::open(&settings.state),
            files: Files::new(settings.inputs.clone(), Limits::default()),
            pipeline: Pipeline::new(options),
            environment: Arc::new(environment),
            echoes: Echoes::default(),
            fleets: BTreeMap::new(),
            endings: JoinSet::new(),
            ending: BTreeMap::new(),
            remarks: BTreeMap::new(),
            troubles: BTreeMap::new(),
            located: Vec::new(),
            settings,
            status,
            shown,
            metrics,
            ordered,
            config_asked,
        })
    }

    /// Serves what was served last, before any manifest is read.
    async fn restore(&mut self) {
        let records = record::load(&self.settings.state);
        if records.is_empty() {
            return;
        }
        // what the `local` before left behind may need a moment to end
        let ports: BTreeSet<u16> = records.iter().flat_map(|(_, record)| record.ports().into_values()).chain([HEALTH_PORT]).collect();
        let ports: Vec<u16> = ports.into_iter().collect();
        wait_until_free(self.addresses.remembered(&ports), PATIENCE).await;
        for (id, record) in records {
            let mut fleet = LocalFleet::new(id.clone(), record, self.environment.clone());
            let converged = fleet.converge(&mut self.addresses).await;
            self.fleets.insert(id.clone(), fleet);
            self.settle(&id, converged);
        }
    }

    async fn follow_files(&mut self) -> Result<(), LocalError> {
        let started = Instant::now();
        let delta = self.files.load().map_err(|error| LocalError::Input(error.to_string()))?;
        let set = delta.set.into_iter().map(|object| self.on_loopback(object)).collect::<Result<Vec<_>, _>>()?;
        let mut updates = self.pipeline.apply(set, &delta.removed);
        if self.settings.echo {
            let echoes = self.echoes.follow(self.pipeline.world()).await;
            updates.extend(self.pipeline.apply(echoes.set, &echoes.removed));
        }
        self.metrics.pipeline.observe(started.elapsed().as_secs_f64());
        self.follow_updates(merge(updates)).await;
        self.drop_fleets_without_manifest();
        self.located = self.files.locate_all(self.pipeline.diagnostics().into_iter().cloned());
        Ok(())
    }

    /// Gives a fleet the ports of its stable addresses instead of those that its manifest asks for: they are
    /// privileged as a rule, and redirects have to name those that clients here can reach. And an age, as
    /// a cluster would: a new fleet takes no class from one that serves.
    fn on_loopback(&mut self, object: Object) -> Result<Object, LocalError> {
        let Object::IngressDeployment(deployment) = object else { return Ok(object) };
        let mut deployment = IngressDeployment::clone(&deployment);
        let id = pipeline::fleet_id(&deployment);
        let since = self.fleets.get(&id).map_or_else(now, LocalFleet::since);
        deployment.meta.creation.get_or_insert(Created(since));
        // The balancer in front is one of TCP that says nothing, and clients may ask replicas directly.
        deployment.spec.publishing.proxy_protocol = false;
        let ports = &mut deployment.spec.ports;
        for (listener, port) in [("http", &mut ports.http), ("https", &mut ports.https)] {
            let Ok(wanted) = u16::try_from(*port) else { continue };
            let given = self.addresses.listener(&format!("{id}/{listener}/{wanted}"), preferred_port(wanted));
            *port = given.map_err(io_error(format!("no address for the listener {listener} of {id}")))?.port().into();
        }
        Ok(Object::IngressDeployment(Arc::new(deployment)))
    }

    /// Fleets that were served before a restart and are not in the manifests now end, unless a manifest
    /// cannot be read: then theirs may be the one, and they keep serving their last good state.
    fn drop_fleets_without_manifest(&mut self) {
        let known: BTreeSet<FleetId> = self.pipeline.fleets().cloned().collect();
        let gone: Vec<FleetId> = self.fleets.keys().filter(|id| !known.contains(*id)).cloned().collect();
        if gone.is_empty() {
            return;
        }
        let unreadable = self.files.diagnostics().iter().any(|finding| finding.severity == Severity::Error);
        for id in gone {
            if unreadable {
                let message = "no manifest declares this fleet, but not all can be read: it keeps serving its last good state";
                let finding =
                    Diagnostic::warning(&object_of(&id), "", codes::NOT_FOUND, message, "correct the manifests that cannot be read");
                self.remarks.insert(id, vec![finding]);
            } else {
                self.end_fleet(&id);
            }
        }
    }

    /// Lets a fleet finish what it has, while everything else goes on.
    fn end_fleet(&mut self, id: &FleetId) {
        self.troubles.remove(id);
        self.remarks.remove(id);
        if let Some(mut fleet) = self.fleets.remove(id) {
            self.ending.insert(id.clone(), fleet.agents());
            let id = id.clone();
            self.endings.spawn(async move {
                fleet.shut_down().await;
                id
            });
        }
    }

    fn ended(&mut self, ended: Result<FleetId, tokio::task::JoinError>) {
        let Ok(id) = ended else { return };
        self.ending.remove(&id);
        if let Err(error) = record::forget(&self.settings.state, &id).and_then(|()| self.addresses.forget_fleet(&id.to_string())) {
            tracing::warn!(fleet = %id, %error, "the state of a fleet that is gone cannot be removed");
        }
    }

    /// A fleet that is back before it has ended: its things are needed now.
    async fn hasten(&mut self, id: &FleetId) {
        while let Some(agents) = self.ending.get(id) {
            futures::future::join_all(agents.iter().map(Agent::kill)).await;
            match self.endings.join_next().await {
                Some(ended) => self.ended(ended),
                None => drop(self.ending.remove(id)),
            }
        }
    }

    async fn follow_updates(&mut self, updates: Vec<FleetUpdate>) {
        for FleetUpdate { fleet: id, change } in updates {
            match change {
                FleetChange::Removed => self.end_fleet(&id),
                FleetChange::Bundle(changes) => self.bring(&id, changes).await,
            }
        }
    }

    /// Brings a fleet to what the pipeline says.
    async fn bring(&mut self, id: &FleetId, changes: Vec<Change>) {
        self.hasten(id).await;
        let (Some(deployment), Some(model), Some(bundle)) =
            (self.pipeline.deployment(id), self.pipeline.model(id), self.pipeline.bundle(id))
        else {
            return;
        };
        let refused = refused(deployment);
        // as in a cluster, its routes are followed, and its replicas stay as they are
        let is_refused = !refused.is_empty();
        let mut remarks = remarks(deployment, &self.settings.haproxies, self.environment.max_connections);
        remarks.extend(refused);
        self.remarks.insert(id.clone(), remarks);
        let fleet = self.fleets.entry(id.clone()).or_insert_with(|| {
            let since = deployment.meta.creation.map_or(0, |created| created.0);
            LocalFleet::new(id.clone(), Record { since, ..Record::default() }, self.environment.clone())
        });
        let asked = if is_refused { Ok(()) } else { fleet.ask(deployment, model) };
        let updated = fleet.update(bundle, changes, &mut self.addresses).await;
        self.settle(id, asked.and(updated));
    }

    /// Tries again what could not be done.
    async fn retry(&mut self) {
        let ids: Vec<FleetId> = self.troubles.keys().cloned().collect();
        for id in ids {
            if self.pipeline.deployment(&id).is_some() {
                self.bring(&id, Vec::new()).await;
            } else if let Some(fleet) = self.fleets.get_mut(&id) {
                fleet.try_again();
                let converged = fleet.converge(&mut self.addresses).await;
                self.settle(&id, converged);
            }
        }
    }

    fn settle(&mut self, id: &FleetId, outcome: Result<(), Trouble>) {
        let Err(Trouble { message, help }) = outcome else {
            self.troubles.remove(id);
            return;
        };
        let finding = Diagnostic::error(&object_of(id), "", codes::NOT_APPLIED, message, help);
        if self.troubles.get(id) != Some(&finding) {
            tracing::info!(fleet = %id, error = finding.message, "the fleet cannot be brought to what is wanted");
        }
        self.troubles.insert(id.clone(), finding);
    }

    async fn tidy(&mut self) {
        let ids: Vec<FleetId> = self.fleets.keys().cloned().collect();
        for id in ids {
            let Some(fleet) = self.fleets.get_mut(&id) else { continue };
            let converged = fleet.converge(&mut self.addresses).await;
            if let Some(bundle) = self.pipeline.bundle(&id) {
                fleet.resync(bundle);
                fleet.keep(bundle).await;
            }
            self.settle(&id, converged);
        }
    }

    /// How long nothing but time can change what is to be done.
    fn recheck_in(&self) -> Option<Duration> {
        let first = self.fleets.values().filter_map(LocalFleet::recheck_at).min()?;
        Some(Duration::try_from(first.duration_since(Timestamp::now())).unwrap_or_default())
    }

    async fn order(&mut self, ordered: Ordered) {
        let Ordered { namespace, fleet, order, answer } = ordered;
        let id = FleetId { namespace: namespace.into(), name: fleet.into() };
        let taken = if let Some(fleet) = self.fleets.get_mut(&id) {
            fleet.order(&order, self.pipeline.bundle(&id), &mut self.addresses).await
        } else {
            Err(self.no_such(&id))
        };
        // whoever has the answer finds in the status what came of it
        self.tell();
        // whoever asked may not wait for the answer
        let _ = answer.send(taken);
    }

    fn show_config(&self, asked: ConfigAsked) {
        let id = FleetId { namespace: asked.namespace.into(), name: asked.fleet.into() };
        let shown = match self.fleets.get(&id) {
            Some(fleet) => config::of(&id, fleet, self.pipeline.bundle(&id)),
            None => Err(self.no_such(&id)),
        };
        // whoever asked may not wait for the answer
        let _ = asked.answer.send(shown);
    }

    fn no_such(&self, id: &FleetId) -> Refusal {
        let known: Vec<String> = self.fleets.keys().map(ToString::to_string).collect();
        let help = if known.is_empty() { "there is none".to_owned() } else { format!("there is {}", known.join(", ")) };
        Refusal { kind: RefusalKind::NotFound, error: format!("there is no fleet {id}"), help }
    }

    fn tell(&mut self) {
        let refusals = self.fleets.values().flat_map(LocalFleet::findings);
        let late = refusals
            .chain(self.troubles.values().cloned())
            .chain(self.remarks.values().flatten().cloned())
            .map(|diagnostic| Located { location: self.files.locate_diagnostic(&diagnostic), diagnostic });
        let mut all: Vec<Located> = self.located.iter().cloned().chain(late).collect();
        Located::sort(&mut all);
        let fleets: Vec<json::Fleet> = self.fleets.iter().map(|(id, fleet)| self.told(id, fleet, &all)).collect();
        let ready = !fleets.is_empty() && self.troubles.is_empty() && fleets.iter().all(|fleet| fleet.ready == Some(true));
        self.say(Status { ready, operator: None, fleets, diagnostics: all.iter().map(Into::into).collect() });
    }

    /// A fleet as `/status` shows it; `all` are all findings, with their places.
    fn told(&self, id: &FleetId, fleet: &LocalFleet, all: &[Located]) -> json::Fleet {
        let trouble = self.troubles.get(id);
        let mut own: Vec<Diagnostic> = self.pipeline.fleet_diagnostics(id).into_iter().cloned().collect();
        own.extend(fleet.findings().into_iter().chain(trouble.cloned()));
        own.extend(self.remarks.get(id).into_iter().flatten().cloned());
        let place = |diagnostic: &Diagnostic| all.iter().find(|located| located.diagnostic == *diagnostic).map(json::Diagnostic::from);
        let refused = self.remarks.get(id).into_iter().flatten().find(|remark| remark.severity == Severity::Error);
        let why_not = trouble.or(refused);
        let ready = why_not.is_none() && fleet.ready();
        let (state, message) = match why_not {
            Some(why) => (why.code.as_str(), format!("{}; {}", why.message, why.help)),
            None if ready => (conditions::REASON_AS_ASKED, "the fleet serves as asked".to_owned()),
            None => (conditions::REASON_REPLICAS_NOT_READY, "not all replicas serve what they should yet".to_owned()),
        };
        json::Fleet {
            class: self.pipeline.deployment(id).map(|deployment| deployment.spec.ingress_class_name.clone()).unwrap_or_default(),
            ready: Some(ready),
            state: Some(state.to_owned()),
            message: Some(message),
            worst: worst(&own).into_iter().filter_map(place).collect(),
            ..fleet.status()
        }
    }

    fn say(&self, now: Status) {
        if **self.status.borrow() == now && self.shown.borrow().status.is_some() {
            return;
        }
        let now = Arc::new(now);
        self.status.send_replace(now.clone());
        self.shown.send_modify(|shown| shown.status = Some(now));
    }

    /// Lets every fleet finish; a second interrupt ends all of it at once.
    async fn shut_down(&mut self, interrupts: &Interrupts) {
        let last = Status::clone(&self.status.borrow());
        self.say(Status { ready: false, ..last });
        self.shown.send_modify(|shown| shown.stopping = true);
        let mut agents: Vec<Agent> = self.fleets.values().flat_map(LocalFleet::agents).collect();
        agents.extend(self.ending.values().flatten().cloned());
        let drain = async {
            futures::future::join_all(self.fleets.values_mut().map(LocalFleet::shut_down)).await;
            while self.endings.join_next().await.is_some() {}
        };
        tokio::select! {
            () = drain => {}
            () = interrupts.stop() => {
                futures::future::join_all(agents.iter().map(Agent::kill)).await;
            }
        }
        if let Err(error) = std::fs::remove_dir_all(&self.environment.sockets) {
            tracing::debug!(%error, "the directory of sockets stays");
        }
    }
}

/// At most one update for each fleet: their changes one after the other.
fn merge(updates: Vec<FleetUpdate>) -> Vec<FleetUpdate> {
    let mut merged: Vec<FleetUpdate> = Vec::new();
    for update in updates {
        let before = merged.iter_mut().find(|before| before.fleet == update.fleet);
        match (before, update.change) {
            (Some(FleetUpdate { change: FleetChange::Bundle(before), .. }), FleetChange::Bundle(after)) => before.extend(after),
            (_, change) => merged.push(FleetUpdate { fleet: update.fleet, change }),
        }
    }
    merged
}

fn object_of(id: &FleetId) -> ObjectRef {
    ObjectRef::new(Kind::IngressDeployment, id.namespace.clone(), id.name.clone())
}

/// What a fleet asks for and does not get here.
fn remarks(deployment: &IngressDeployment, haproxies: &[Haproxy], most: u32) -> Vec<Diagnostic> {
    let mut found = rollout::remarks(deployment);
    let object = object_of(&pipeline::fleet_id(deployment));
    let line = deployment.spec.haproxy_version.as_str();
    if let (None, Some(instead)) = (choose(haproxies, line.parse().ok()), haproxies.first()) {
        found.push(Diagnostic::warning(
            &object,
            "spec.haproxyVersion",
            codes::NOT_FOUND,
            format!("there is no HAProxy {line} here, so this fleet runs on {}", instead.version),
            format!("start `local` with --haproxy PATH once for each line that is wanted; `tools/haproxy {line}` finds or gets one"),
        ));
    }
    let connections = deployment.spec.tuning.as_ref().and_then(|tuning| u32::try_from(tuning.max_connections?).ok());
    if let Some(asked) = connections.filter(|asked| *asked > most) {
        found.push(Diagnostic::warning(
            &object,
            "spec.tuning.maxConnections",
            codes::LIMIT_REACHED,
            format!("{asked} connections are too many for a HAProxy of several on one machine: each takes {most} here"),
            "a cluster gives each as many as are asked for",
        ));
    }
    let asked = deployment.spec.total_replicas();
    if asked > MAX_REPLICAS {
        found.push(Diagnostic::warning(
            &object,
            "spec.replicas",
            codes::LIMIT_REACHED,
            format!("{asked} replicas are too many for one machine: {MAX_REPLICAS} of them run here"),
            "a cluster runs all of them",
        ));
    }
    found
}

/// Nanoseconds since 1970.
fn now() -> i64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok().and_then(|since| i64::try_from(since.as_nanos()).ok()).unwrap_or(0)
}
