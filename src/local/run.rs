//! The loop of `local`: follow the files, keep the fleets, tell how it goes.

use super::addresses::{Addresses, preferred_port};
use super::echoes::Echoes;
use super::fleet::{Environment, FleetError, LocalFleet};
use super::haproxies::{Haproxy, choose};
use super::interrupt::Interrupts;
use super::{admin, record, state, view};
use crate::api::IngressDeployment;
use crate::cli::Output;
use crate::haproxy::render;
use crate::haproxy::version::{Capabilities, FLOOR, Version};
use crate::ingest::files::{Files, HoldOff, Limits, watch};
use crate::model::FleetId;
use crate::pipeline::{self, FleetChange, FleetUpdate, Pipeline};
use crate::report::{Diagnostic, Kind, Located, ObjectRef, PrivateBytes, Severity, codes};
use crate::status::json::{self, Status};
use crate::telemetry::Metrics;
use crate::translate;
use crate::world::Object;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch as latest};
use tokio::time::Instant;

/// The state is told at most that often: findings and replicas of large fleets are many.
const TELL_INTERVAL: Duration = Duration::from_millis(50);

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
    #[error("another `haproxy-fleet local` uses {0}. Stop it, or give this one a directory of its own by --state-dir")]
    InUse(PathBuf),
    /// Files or sockets.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// The input could not be read at all.
    #[error("{0}")]
    Input(String),
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
    serve_admin(&settings, &status, &metrics).await?;
    let shown = tokio::spawn(view::show(status.subscribe(), out, settings.live));
    let mut local = Local::new(settings, status, metrics)?;
    local.restore().await;
    let served = local.serve(&interrupts).await;
    local.shut_down(&interrupts).await;
    drop(local);
    // what it shows ends with its sender; a closed terminal is no reason to complain
    let _ = shown.await;
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

async fn serve_admin(settings: &Settings, status: &latest::Sender<Arc<Status>>, metrics: &Arc<Metrics>) -> Result<(), LocalError> {
    let Some(address) = settings.admin else { return Ok(()) };
    let listener = TcpListener::bind(address).await.map_err(io_error(format!("cannot listen on {address} (--admin)")))?;
    let (status, metrics) = (status.subscribe(), metrics.clone());
    tokio::spawn(async move {
        if let Err(error) = admin::serve(listener, status, metrics, std::future::pending()).await {
            tracing::error!(%error, "the admin server has ended");
        }
    });
    Ok(())
}

struct Local {
    settings: Settings,
    environment: Arc<Environment>,
    addresses: Addresses,
    files: Files,
    pipeline: Pipeline,
    echoes: Echoes,
    fleets: BTreeMap<FleetId, LocalFleet>,
    /// What could not be done for a fleet, until it can.
    troubles: BTreeMap<FleetId, Diagnostic>,
    located: Vec<Located>,
    status: latest::Sender<Arc<Status>>,
    metrics: Arc<Metrics>,
}

impl Local {
    /// Follows the files until interrupted.
    async fn serve(&mut self, interrupts: &Interrupts) -> Result<(), LocalError> {
        let mut changes = watch(&self.settings.inputs, HoldOff::default()).map_err(|error| LocalError::Input(error.to_string()))?;
        self.follow_files().await?;
        self.tell();
        let news = self.environment.news.clone();
        let mut tell_at: Option<Instant> = None;
        loop {
            let due = async {
                match tell_at {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = interrupts.drain() => return Ok(()),
                Some(()) = changes.changed() => self.follow_files().await?,
                () = news.notified() => self.tidy().await,
                () = due => {
                    tell_at = None;
                    self.tell();
                    continue;
                }
            }
            tell_at.get_or_insert_with(|| Instant::now() + TELL_INTERVAL);
        }
    }

    fn new(settings: Settings, status: latest::Sender<Arc<Status>>, metrics: Arc<Metrics>) -> Result<Self, LocalError> {
        let default_certificate = state::default_certificate(&settings.state).map_err(io_error("cannot make a default certificate"))?;
        let sockets = state::socket_directory(&settings.state).map_err(io_error("cannot make a directory for sockets"))?;
        let environment = Environment {
            state: settings.state.clone(),
            sockets,
            haproxies: settings.haproxies.clone(),
            launcher: settings.launcher.clone(),
            default_certificate: PrivateBytes::new(default_certificate),
            news: Arc::new(Notify::new()),
        };
        let haproxies = settings.haproxies.clone();
        let options = pipeline::Options {
            capabilities: Box::new(move |line| {
                let wanted: Option<Version> = line.as_str().parse().ok();
                let found = choose(&haproxies, wanted).or(haproxies.first());
                Capabilities::of(found.map_or(FLOOR, |haproxy| haproxy.version))
            }),
            translate: translate::Options { allow_loopback: true, ..translate::Options::default() },
            render: render::Options::default(),
        };
        Ok(Self {
            addresses: Addresses::open(&settings.state),
            files: Files::new(settings.inputs.clone(), Limits::default()),
            pipeline: Pipeline::new(options),
            environment: Arc::new(environment),
            echoes: Echoes::default(),
            fleets: BTreeMap::new(),
            troubles: BTreeMap::new(),
            located: Vec::new(),
            settings,
            status,
            metrics,
        })
    }

    /// Serves what was served last, before any manifest is read.
    async fn restore(&mut self) {
        for (id, record) in record::load(&self.settings.state) {
            match LocalFleet::restore(id.clone(), record, self.environment.clone(), &mut self.addresses).await {
                Ok(fleet) => {
                    self.fleets.insert(id, fleet);
                }
                Err(error) => self.trouble(&id, &error),
            }
        }
    }

    async fn follow_files(&mut self) -> Result<(), LocalError> {
        let started = Instant::now();
        let first = self.pipeline.fleets().next().is_none();
        let delta = self.files.load().map_err(|error| LocalError::Input(error.to_string()))?;
        let set = delta.set.into_iter().map(|object| self.on_loopback(object)).collect::<Result<Vec<_>, _>>()?;
        let updates = self.pipeline.apply(set, &delta.removed);
        self.metrics.pipeline.observe(started.elapsed().as_secs_f64());
        self.follow_updates(updates).await;
        if self.settings.echo {
            let echoes = self.echoes.follow(self.pipeline.world()).await.map_err(io_error("cannot start an echo server"))?;
            let updates = self.pipeline.apply(echoes.set, &echoes.removed);
            self.follow_updates(updates).await;
        }
        if first {
            self.drop_fleets_without_manifest().await;
        }
        self.locate();
        Ok(())
    }

    /// Gives a fleet the ports of its stable addresses instead of those that its manifest asks for: they are
    /// privileged as a rule, and redirects have to name those that clients here can reach.
    fn on_loopback(&mut self, object: Object) -> Result<Object, LocalError> {
        let Object::IngressDeployment(deployment) = object else { return Ok(object) };
        let mut deployment = IngressDeployment::clone(&deployment);
        let id = pipeline::fleet_id(&deployment);
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
    async fn drop_fleets_without_manifest(&mut self) {
        let unreadable = self.files.diagnostics().iter().any(|finding| finding.severity == Severity::Error);
        let known: Vec<FleetId> = self.pipeline.fleets().cloned().collect();
        let gone: Vec<FleetId> = self.fleets.keys().filter(|id| !known.contains(id)).cloned().collect();
        for id in gone {
            if unreadable {
                tracing::warn!(fleet = %id, "no manifest declares this fleet, but not all can be read: it keeps serving its last good state");
            } else {
                self.end_fleet(&id).await;
            }
        }
    }

    async fn end_fleet(&mut self, id: &FleetId) {
        if let Some(mut fleet) = self.fleets.remove(id) {
            fleet.shut_down().await;
        }
        self.troubles.remove(id);
        if let Err(error) = record::forget(&self.settings.state, id) {
            tracing::warn!(fleet = %id, %error, "the state of a fleet that is gone cannot be removed");
        }
    }

    async fn follow_updates(&mut self, updates: Vec<FleetUpdate>) {
        for FleetUpdate { fleet: id, change } in updates {
            let changes = match change {
                FleetChange::Removed => {
                    self.end_fleet(&id).await;
                    continue;
                }
                FleetChange::Bundle(changes) => changes,
            };
            let (Some(deployment), Some(model), Some(bundle)) =
                (self.pipeline.deployment(&id), self.pipeline.model(&id), self.pipeline.bundle(&id))
            else {
                continue;
            };
            let fleet = self.fleets.entry(id.clone()).or_insert_with(|| LocalFleet::new(id.clone(), self.environment.clone()));
            match fleet.update(deployment, model, bundle, changes, &mut self.addresses).await {
                Ok(()) => drop(self.troubles.remove(&id)),
                Err(error) => self.trouble(&id, &error),
            }
        }
    }

    fn trouble(&mut self, id: &FleetId, error: &FleetError) {
        tracing::error!(fleet = %id, %error, "the fleet cannot be brought to what is wanted");
        let object = ObjectRef::new(Kind::IngressDeployment, id.namespace.clone(), id.name.clone());
        let help = "what serves keeps serving; the next change of a manifest tries again";
        self.troubles.insert(id.clone(), Diagnostic::error(&object, "", codes::INVALID_VALUE, error.to_string(), help));
    }

    async fn tidy(&mut self) {
        let mut failed = Vec::new();
        for (id, fleet) in &mut self.fleets {
            if let Err(error) = fleet.tidy(&mut self.addresses).await {
                failed.push((id.clone(), error));
            }
        }
        for (id, error) in failed {
            self.trouble(&id, &error);
        }
    }

    fn locate(&mut self) {
        self.located = locate(&self.files, &self.pipeline);
    }

    fn tell(&mut self) {
        let fleets: Vec<json::Fleet> = self.fleets.values().map(LocalFleet::status).collect();
        let refusals = self.fleets.values().flat_map(LocalFleet::refusals);
        let late = refusals
            .chain(self.troubles.values().cloned())
            .map(|diagnostic| Located { location: self.files.locate_diagnostic(&diagnostic), diagnostic });
        let mut all: Vec<Located> = self.located.iter().cloned().chain(late).collect();
        Located::sort(&mut all);
        let ready = !self.fleets.is_empty() && self.troubles.is_empty() && self.fleets.values().all(LocalFleet::ready);
        let now = Status { ready, fleets, diagnostics: all.iter().map(Into::into).collect() };
        self.status.send_if_modified(|before| {
            let changed = **before != now;
            if changed {
                *before = Arc::new(now);
            }
            changed
        });
    }

    /// Lets every fleet finish; a second interrupt ends all of it at once.
    async fn shut_down(&mut self, interrupts: &Interrupts) {
        let agents: Vec<_> = self.fleets.values().flat_map(LocalFleet::agents).collect();
        let drain = futures::future::join_all(self.fleets.values_mut().map(LocalFleet::shut_down));
        tokio::select! {
            _ = drain => {}
            () = interrupts.stop() => {
                futures::future::join_all(agents.iter().map(|agent| agent.kill())).await;
            }
        }
        if let Err(error) = std::fs::remove_dir_all(&self.environment.sockets) {
            tracing::debug!(%error, "the directory of sockets stays");
        }
    }
}

/// All findings of files and pipeline with their places, sorted.
pub(crate) fn locate(files: &Files, pipeline: &Pipeline) -> Vec<Located> {
    let ours = pipeline.diagnostics().into_iter().cloned();
    let mut located: Vec<Located> = files
        .diagnostics()
        .into_iter()
        .chain(ours)
        .map(|diagnostic| Located { location: files.locate_diagnostic(&diagnostic), diagnostic })
        .collect();
    Located::sort(&mut located);
    located.dedup();
    located
}
