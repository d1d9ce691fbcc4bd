//! Starts HAProxy or finds it, keeps it alive, and is the loop in which everything is done one after the other.

use super::apply::{Applier, Base, Shared};
use super::attach::Attached;
use super::drain;
use super::last_good::Directory;
use super::process::{Event, Haproxy};
use super::runtime::{Command, Master, Session, names};
use super::status::Status;
use super::{Control, Inbox, Settings, StartError, census, drained, health, pod, process, reaper, stop};
use crate::haproxy::bundle::Bundle;
use crate::haproxy::maps;
use crate::haproxy::plan::Process;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Child;
use tokio::sync::{Mutex, Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// A worker has this long to load its configuration.
const PATIENCE: Duration = Duration::from_secs(120);
/// How often it is looked whether HAProxy was asked to stop, while there is a connection that would keep it there.
const LOOK_FOR_STOP: Duration = Duration::from_secs(1);
/// Starts in a row that fail until a configuration is given up.
const FAILED_STARTS: u64 = 2;

pub(super) async fn start(settings: Settings, inbox: Arc<Inbox>) -> Result<(Applier, watch::Receiver<Status>), StartError> {
    let version =
        process::version(&settings.haproxy).await.map_err(|source| StartError::Program { path: settings.haproxy.clone(), source })?;
    let at = |path: &Path| {
        let path = path.to_owned();
        move |source| StartError::Directory { path, source }
    };
    let id = blake3::hash(settings.directory.as_os_str().as_encoded_bytes()).to_hex();
    // pods that share the network of a node have the same directory
    let relay = blake3::hash(format!("{id} {}", settings.pod.name).as_bytes()).to_hex();
    let relay = format!("fleet-{}", &relay[..16]);
    std::fs::create_dir_all(&settings.sockets).map_err(at(&settings.sockets))?;
    let socket = settings.attach.clone().unwrap_or_else(|| settings.sockets.join(format!("{}.sock", &id[..12])));
    let master = Master { socket };
    let own = pod::files(&settings.pod, &relay).map_err(io::Error::other).map_err(at(&settings.directory))?;
    let bootstrap = pod::bootstrap(&settings.pod, &relay).map_err(io::Error::other).map_err(at(&settings.directory))?;
    let mut directory = Directory::open(settings.directory.clone(), own).map_err(at(&settings.directory))?;
    directory.write_bootstrap(&bootstrap).map_err(at(&settings.directory))?;
    let (base, haproxy, found) = if settings.attach.is_some() {
        let mut attached = Attached::new(master.clone());
        let up = attached.look().await;
        let base = prepare(&mut directory, up).map_err(at(&settings.directory))?;
        (base, Haproxy::Attached(attached), None)
    } else {
        let (base, (child, session, worker)) = first_launch(&settings, &master, &mut directory).await.map_err(StartError::Haproxy)?;
        (base, Haproxy::Spawned(child), Some((session, worker)))
    };
    let (session, worker) = found.map_or((None, 0), |(session, worker)| (Some(session), worker));
    let (status, receiver) = watch::channel(Status::new(version));
    let shared = Arc::new(Mutex::new(Shared::default()));
    let reap = Arc::new(Notify::new());
    let mut applier = Applier {
        capabilities: crate::haproxy::version::Capabilities::of(version),
        settings,
        master,
        directory,
        haproxy,
        worker,
        workers: vec![worker],
        relayed: BTreeSet::new(),
        relay_due: None,
        session,
        inbox,
        shared,
        reap,
        base,
        zone: None,
        keeps_zone: BTreeSet::new(),
        wanted: Bundle::default(),
        accepted: Bundle::default(),
        generation: 0,
        synced: false,
        waiting: BTreeSet::new(),
        since: BTreeMap::new(),
        held: BTreeSet::new(),
        aside: BTreeSet::new(),
        refusals: BTreeMap::new(),
        forced: BTreeMap::new(),
        foreign_reload: false,
        unwritten: BTreeSet::new(),
        reasons: Vec::new(),
        last_reload: None,
        reload_due: None,
        meanwhile: None,
        told_drained: None,
        drained_due: None,
        reloaded: None,
        status,
    };
    if applier.haproxy.is_up() {
        applier.look_inside().await.map_err(StartError::Haproxy)?;
    }
    applier.publish();
    Ok((applier, receiver))
}

/// Starts HAProxy with what is found in the directory, else as a bootstrap.
async fn first_launch(settings: &Settings, master: &Master, directory: &mut Directory) -> io::Result<(Base, (Child, Session, u32))> {
    if let Ok(left) = master.processes().await {
        let pids: Vec<u32> = left.master.into_iter().chain(left.worker).chain(left.old).collect();
        process::end_orphans(&pids, &directory.live());
    }
    let found = directory.verify();
    if let Err(why) = &found {
        tracing::info!(why, "no last good configuration");
    }
    let base = found.map_or(Base::Bootstrap, |last| Base::LastGood(last.digest));
    match launch(settings, master, directory, base).await {
        Err(error) if base != Base::Bootstrap => {
            tracing::error!(%error, "HAProxy does not start with its last good configuration");
            Ok((Base::Bootstrap, launch(settings, master, directory, Base::Bootstrap).await?))
        }
        started => Ok((base, started?)),
    }
}

/// Makes sure that somebody else's HAProxy can start with what `live` leads to, and says what it was started with if
/// it is `up` already, else what it will be started with.
fn prepare(directory: &mut Directory, up: bool) -> io::Result<Base> {
    let was = directory.points_to();
    let found = directory.verify();
    if let Err(why) = &found {
        tracing::info!(why, "no last good configuration");
    }
    let base = match (was.as_deref(), &found) {
        // it was given up: what does not start may be whole
        (Some("bootstrap"), Ok(_)) => return Ok(Base::Bootstrap),
        (None | Some("current"), Ok(last)) => Base::LastGood(last.digest),
        (None | Some("bootstrap"), Err(_)) => Base::Bootstrap,
        (Some(_), Ok(last)) if !up => Base::LastGood(last.digest),
        (Some(_), Err(_)) if !up => Base::Bootstrap,
        // in the middle of a reload, or it has read what was whole then
        (Some(_), _) => Base::LastGood(None),
    };
    directory.point(if found.is_ok() { "current" } else { "bootstrap" })?;
    Ok(base)
}

/// Starts HAProxy and waits until its worker answers.
async fn launch(settings: &Settings, master: &Master, directory: &Directory, base: Base) -> io::Result<(Child, Session, u32)> {
    directory.point(if base == Base::Bootstrap { "bootstrap" } else { "current" })?;
    let (mut child, words) = process::spawn(settings.launcher.as_deref(), &settings.haproxy, &master.socket, &directory.live())?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait()? {
            let said = words.of_the_dead().await.map_or_else(String::new, |said| format!(": {said}"));
            return Err(io::Error::other(format!("it ended with {status}{said}")));
        }
        // another one may still listen until the new one has replaced the socket
        let found = master.processes().await.unwrap_or_default();
        if let (Some(worker), true) = (found.worker, found.master == child.id()) {
            // a command that meets a worker before it is ready is never answered
            if let Ok(session) = Session::open(&master.socket, worker, Duration::from_millis(200)).await {
                return Ok((child, session, worker));
            }
        }
        if Instant::now() > deadline {
            drain::stop(&mut child).await;
            return Err(io::ErrorKind::TimedOut.into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// What runs beside the loop, until this is dropped.
struct Beside([JoinHandle<()>; 3]);

impl Drop for Beside {
    fn drop(&mut self) {
        self.0.iter().for_each(JoinHandle::abort);
    }
}

impl Applier {
    /// The loop. Ends when told to, or when nobody holds a handle any more.
    pub(super) async fn run(mut self, mut control: mpsc::Receiver<Control>) {
        let beside = Beside([
            tokio::spawn(reaper::run(
                self.shared.clone(),
                self.reap.clone(),
                self.master.clone(),
                self.status.clone(),
                self.settings.attach.is_some(),
            )),
            tokio::spawn(census::run(self.master.clone(), self.status.clone())),
            tokio::spawn(health::run(self.shared.clone(), self.master.clone(), self.status.clone())),
        ]);
        let inbox = self.inbox.clone();
        let mut drift = tokio::time::interval_at(Instant::now() + self.settings.drift_interval, self.settings.drift_interval);
        drift.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut stop_looks = tokio::time::interval(LOOK_FOR_STOP);
        stop_looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            self.follow_drained().await;
            let (reload, relay, drained) = (until(self.reload_due), until(self.relay_due), until(self.drained_due));
            tokio::select! {
                command = control.recv() => { match command {
                    Some(Control::CheckDrift(done)) => {
                        let _ = done.send(self.check_drift().await);
                    }
                    Some(Control::TicketKeys(keys)) => self.set_ticket_keys(keys).await,
                    Some(Control::Drain(options, done)) => {
                        drop(beside);
                        let drained = self.haproxy.drain(&self.master, options).await;
                        tracing::info!(?drained, "HAProxy was stopped");
                        self.ended();
                        let _ = done.send(drained);
                        return;
                    }
                    Some(Control::Kill(done)) => {
                        drop(beside);
                        self.haproxy.stop().await;
                        self.ended();
                        let _ = done.send(());
                        return;
                    }
                    None => {
                        drop(beside);
                        return self.haproxy.stop().await;
                    }
                } }
                event = self.haproxy.event() => {
                    if !inbox.is_stopping() {
                        self.follow(event).await;
                    }
                    if inbox.is_stopping() {
                        return self.ended();
                    }
                }
                () = reload => self.reload().await,
                () = relay => self.relay_again().await,
                () = drained => self.drained_due = None,
                () = inbox.arrived() => {
                    self.absorb().await;
                    if std::mem::take(&mut self.foreign_reload) {
                        self.check_drift().await;
                    }
                }
                _ = stop_looks.tick(), if self.session.is_some() => { self.stops_softly(); }
                _ = drift.tick() => { self.check_drift().await; }
            }
        }
    }

    async fn follow(&mut self, event: Event) {
        match event {
            Event::Died(how) if matches!(self.haproxy, Haproxy::Attached(_)) => {
                tracing::warn!(how, "HAProxy is gone");
                self.lose().await;
            }
            Event::Died(how) => {
                tracing::error!(how, "HAProxy died");
                self.restart().await;
            }
            Event::Came(session, worker) => {
                tracing::info!(worker, base = ?self.base, "HAProxy is there");
                stop::forget_older(&self.master.socket);
                (self.session, self.worker) = (Some(session), worker);
                self.status.send_modify(|status| status.failed_starts = 0);
                self.take_over().await;
            }
            Event::Failed => {
                tracing::error!(base = ?self.base, "HAProxy does not start");
                self.status.send_modify(|status| status.failed_starts += 1);
                if self.status.borrow().failed_starts == FAILED_STARTS {
                    self.give_up();
                }
            }
        }
    }

    /// Nothing is applied until somebody starts HAProxy again: with what `live` leads to.
    async fn lose(&mut self) {
        self.ended();
        self.session = None;
        self.shared.lock().await.worker = None;
        self.reload_due = None;
        self.relay_due = None;
        if self.directory.points_to().as_deref() == Some("bootstrap") {
            self.start_over();
        }
        self.status.send_modify(|status| status.restarts += 1);
    }

    /// Serves nothing rather than what does not start.
    fn give_up(&mut self) {
        if self.base == Base::Bootstrap {
            return;
        }
        self.start_over();
        if let Err(error) = self.directory.point("bootstrap") {
            tracing::error!(%error, "HAProxy cannot be given the bootstrap");
        }
    }

    fn start_over(&mut self) {
        self.base = Base::Bootstrap;
        self.accepted = Bundle::default();
        self.waiting = self.wanted.resources().map(|resource| resource.key.clone()).collect();
    }

    fn ended(&mut self) {
        if let Haproxy::Spawned(_) = self.haproxy {
            process::end_orphans(&self.workers, &self.directory.live());
        }
        self.told_drained = None;
        self.status.send_modify(|status| {
            status.ready = false;
            status.master_pid = None;
            status.worker_pid = None;
        });
    }

    /// Starts HAProxy again, with a growing pause, from what it ran last; if that fails twice, as a bootstrap.
    async fn restart(&mut self) {
        self.ended();
        self.session = None;
        self.shared.lock().await.worker = None;
        let mut pause = Duration::from_millis(50);
        let mut failures = 0;
        while !self.inbox.is_stopping() {
            if failures == FAILED_STARTS {
                self.start_over();
            }
            self.write();
            match launch(&self.settings, &self.master, &self.directory, self.base).await {
                Ok((child, session, worker)) => {
                    (self.haproxy, self.session, self.worker) = (Haproxy::Spawned(child), Some(session), worker);
                    break;
                }
                Err(error) => tracing::error!(%error, "HAProxy does not start"),
            }
            failures += 1;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(5));
        }
        self.status.send_modify(|status| status.restarts += 1);
        self.take_over().await;
    }

    /// Goes on with a HAProxy that was not here before.
    async fn take_over(&mut self) {
        self.workers = vec![self.worker];
        self.relayed.clear();
        self.relay_due = None;
        self.forced.clear();
        if let Err(error) = self.look_inside().await {
            tracing::error!(%error, "HAProxy does not say what it has loaded");
        }
        self.publish();
        self.advance().await;
        if let Haproxy::Attached(_) = self.haproxy {
            // it was started with the files as they were at that moment
            self.check_drift().await;
        }
    }

    /// Asks the worker what it has loaded; what lingered in the one before is gone.
    pub(crate) async fn look_inside(&mut self) -> io::Result<()> {
        self.connect().await?;
        let Some(session) = &mut self.session else { return Err(io::ErrorKind::NotConnected.into()) };
        let state = format!("show map {}", maps::POD);
        let questions = ["show map", "show ssl crt-list", "show ssl cert", "show ssl ca-file", &state].map(Command::plain);
        let answers = session.exchange(&questions).await?;
        self.told_drained = answers.last().and_then(|answer| drained::told(answer));
        let mut sets = answers.iter().map(|answer| names(answer).into_iter().collect::<BTreeSet<_>>());
        let mut next = || sets.next().unwrap_or_default();
        let process = Process { maps: next(), lists: next(), certificates: next(), authorities: next(), ..Process::default() };
        let mut shared = self.shared.lock().await;
        *shared = Shared { process, worker: Some(self.worker), dynamic_backends: self.capabilities.dynamic_backends };
        drop(shared);
        self.count(questions.len() as u64);
        Ok(())
    }
}
