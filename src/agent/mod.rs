//! What stands beside one HAProxy: it starts it and keeps it alive, or finds the one that somebody else starts, and
//! brings every bundle into it, live where that is possible and by a reload where it is not.
//!
//! One task owns the process and applies one thing after the other (`apply`); only the deletion of what is
//! out of use runs beside it (`reaper`).

mod apply;
mod attach;
mod census;
mod check;
mod drain;
mod drained;
mod drift;
mod execute;
mod health;
pub mod last_good;
pub mod linger;
mod pod;
mod process;
mod reaper;
mod reload;
pub mod room;
pub mod runtime;
mod status;
pub mod stop;
mod supervise;
pub mod supervisor;
mod tally;
mod tickets;
mod zone;

pub use check::check;
pub use drain::{Drain, Drained};
pub use health::Health;
pub use pod::{Pod, files as pod_files};
pub use status::{Refusal, ReloadRecord, Status};
pub use tally::Ending;

use crate::haproxy::bundle::{Bundle, Change, Digest, Name};
use crate::report::PrivateBytes;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, watch};

/// What an agent is started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The program.
    pub haproxy: PathBuf,
    /// Where the configuration lives; best in memory.
    pub directory: PathBuf,
    /// A short directory for the master socket: its path must fit into 107 bytes.
    pub sockets: PathBuf,
    /// The master socket of the HAProxy that somebody else starts with `directory/live`; none: the agent starts one.
    pub attach: Option<PathBuf>,
    /// This pod.
    pub pod: Pod,
    /// The least time between two reloads.
    pub reload_interval: Duration,
    /// How often what runs is compared with what should.
    pub drift_interval: Duration,
    /// Words before the program, such as a command that ties it to its parent; none to start it plainly.
    pub launcher: Option<Vec<OsString>>,
}

/// What is delivered.
#[derive(Clone, Debug)]
pub struct Update {
    /// The number of the bundle.
    pub generation: u64,
    /// Its digest.
    pub digest: Digest,
    /// What is in it.
    pub content: UpdateContent,
}

/// A bundle, or what is new since the last one.
#[derive(Clone, Debug)]
pub enum UpdateContent {
    /// All of it.
    Full(Arc<Bundle>),
    /// What changed since the update before.
    Changes(Arc<[Change]>),
}

/// Why no HAProxy runs.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The program does not run or says no version.
    #[error("{} does not run: {source}", path.display())]
    Program {
        /// The program.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The directories cannot be written.
    #[error("{}: {source}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It ends at once or never gets ready, with its last good configuration and with the bootstrap.
    #[error("HAProxy does not start: {0}")]
    Haproxy(io::Error),
}

/// Which reloads may happen. What can be done live is never held back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reloads {
    /// All.
    #[default]
    All,
    /// Those for what came with this generation or before, and the first of an agent, which brings everything.
    UpTo(u64),
    /// None, but for a HAProxy that serves nothing yet.
    None,
}

pub(crate) enum Control {
    Drain(Drain, tokio::sync::oneshot::Sender<Drained>),
    Kill(tokio::sync::oneshot::Sender<()>),
    CheckDrift(tokio::sync::oneshot::Sender<usize>),
    TicketKeys(PrivateBytes),
}

/// What was delivered and not looked at yet.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    updates: Mutex<Vec<Update>>,
    reloads: Mutex<Reloads>,
    /// Whether the pod is drained by hand, once somebody who may say so has.
    drained: Mutex<Option<bool>>,
    zone: Mutex<Option<Name>>,
    arrived: Notify,
    stopping: AtomicBool,
}

impl Inbox {
    fn push(&self, update: Update) {
        let mut updates = self.updates.lock().unwrap_or_else(PoisonError::into_inner);
        if matches!(update.content, UpdateContent::Full(_)) {
            updates.clear();
        }
        updates.push(update);
        drop(updates);
        self.arrived.notify_one();
    }

    pub(crate) fn reloads(&self) -> Reloads {
        *self.reloads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn drained(&self) -> Option<bool> {
        *self.drained.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn zone(&self) -> Option<Name> {
        self.zone.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn take(&self) -> Vec<Update> {
        std::mem::take(&mut *self.updates.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.updates.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(crate) async fn arrived(&self) {
        self.arrived.notified().await;
    }
}

/// A handle of the agent of one HAProxy. When the last one is dropped, HAProxy is stopped at once, if the agent
/// started it.
#[derive(Clone, Debug)]
pub struct Agent {
    inbox: Arc<Inbox>,
    control: mpsc::Sender<Control>,
    status: watch::Receiver<Status>,
    /// Whether HAProxy is a child.
    owned: bool,
}

impl Agent {
    /// Starts HAProxy from its last good configuration if that verifies, else as a bootstrap that answers only
    /// health checks, with 503. One that somebody else starts finds either there once this returns.
    pub async fn start(settings: Settings) -> Result<Self, StartError> {
        let inbox = Arc::new(Inbox::default());
        let (control, commands) = mpsc::channel(4);
        let owned = settings.attach.is_none();
        let (applier, status) = supervise::start(settings, inbox.clone()).await?;
        tokio::spawn(applier.run(commands));
        Ok(Self { inbox, control, status, owned })
    }

    /// Takes an update. Never blocks: what is overtaken before it is applied is skipped.
    pub fn deliver(&self, update: Update) {
        self.inbox.push(update);
    }

    /// Says which reloads may happen from now on: all, unless this is called.
    pub fn allow_reloads(&self, reloads: Reloads) {
        let mut allowed = self.inbox.reloads.lock().unwrap_or_else(PoisonError::into_inner);
        if std::mem::replace(&mut *allowed, reloads) != reloads {
            self.inbox.arrived.notify_one();
        }
    }

    /// Says whether the pod is drained by hand: it is to get no traffic, serves what it gets, and asks its clients to
    /// connect to others. Until this is called it stays as it was before the agent began.
    pub fn set_drained(&self, drained: bool) {
        let mut said = self.inbox.drained.lock().unwrap_or_else(PoisonError::into_inner);
        if said.replace(drained) != Some(drained) {
            self.inbox.arrived.notify_one();
        }
    }

    /// Says in which zone the pod is: from then on it prefers servers of that zone where backends ask for it. Until then
    /// all zones are the same.
    pub fn set_zone(&self, zone: Name) {
        let zone = Some(zone).filter(|zone| !zone.is_empty());
        let mut known = self.inbox.zone.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != zone {
            *known = zone;
            self.inbox.arrived.notify_one();
        }
    }

    /// What is applied, and what was refused.
    pub fn status(&self) -> watch::Receiver<Status> {
        self.status.clone()
    }

    /// Stops softly: no new connections, the present ones may end until the deadline. Nothing is applied after it.
    pub async fn drain(&self, options: Drain) -> Drained {
        let (done, wait) = tokio::sync::oneshot::channel();
        if self.control.send(Control::Drain(options, done)).await.is_err() {
            return Drained::NOTHING;
        }
        wait.await.unwrap_or(Drained::NOTHING)
    }

    /// Stops at once. A HAProxy that somebody else started goes on.
    pub async fn kill(&self) {
        let (done, wait) = tokio::sync::oneshot::channel();
        self.inbox.stopping.store(true, Ordering::Release);
        // a long validation or reload is not waited for
        if let Some(pid) = self.status.borrow().master_pid.filter(|_| self.owned) {
            process::signal(pid, rustix::process::Signal::TERM);
        }
        if self.control.send(Control::Kill(done)).await.is_ok() {
            let _ = wait.await;
        }
    }

    /// Gives HAProxy other keys of TLS session tickets, three lines as in [`Pod::ticket_keys`], without a reload.
    pub async fn set_ticket_keys(&self, keys: PrivateBytes) {
        // an agent that has ended has no HAProxy
        let _ = self.control.send(Control::TicketKeys(keys)).await;
    }

    /// Compares what runs with what should now instead of at the next interval, and repairs it. Returns how many
    /// things were not as they should be.
    pub async fn check_drift(&self) -> usize {
        let (done, wait) = tokio::sync::oneshot::channel();
        if self.control.send(Control::CheckDrift(done)).await.is_err() {
            return 0;
        }
        wait.await.unwrap_or(0)
    }
}
