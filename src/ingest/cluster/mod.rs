//! Objects from a cluster: watches into the world.
//!
//! Every kind is listed and followed by a task of its own. What they tell is gathered in one place, which says nothing
//! before it has heard all of them once: a half-seen world has no routes that a whole one has. From then on changes are
//! passed on after a moment of quiet, or after a while in any case; what arrives while the reader is busy waits as one
//! batch.
//!
//! One object that cannot be read is one diagnostic; it stays as it was last good. A watch that is turned away or dies
//! leaves what it told, and is tried again. Kinds that are optional are looked for as long as they are not there.

mod gather;
mod health;
mod source;
mod watch;

pub use health::{Health, KindHealth, WatchState};

use super::Delta;
use crate::api::backend::BackendStatus;
use crate::report::{Diagnostic, ObjectRef};
use gather::{Follow, Gather};
use health::Turn;
use kube::Client;
use source::Source;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::{mpsc, watch as latest};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use watch::News;

/// News that wait to be gathered.
const QUEUE: usize = 1024;

/// Which namespaces are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// All of them.
    All,
    /// These.
    Only(BTreeSet<Arc<str>>),
}

/// What is read, and how changes are held back.
#[derive(Clone, Debug)]
pub struct Settings {
    /// From which namespaces.
    pub namespaces: Namespaces,
    /// In which namespaces there may be fleets: elsewhere an `IngressDeployment` means nothing.
    pub fleets: Namespaces,
    /// A change is told when nothing happened for this long.
    pub quiet: Duration,
    /// It is told after this long in any case.
    pub at_most: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { namespaces: Namespaces::All, fleets: Namespaces::All, quiet: Duration::from_millis(5), at_most: Duration::from_millis(50) }
    }
}

/// What changed in the cluster.
#[derive(Debug)]
pub struct Batch {
    /// Objects. The first batch holds the whole world.
    pub delta: Delta,
    /// Where the status of Ingresses says that clients connect to, for those that were heard of.
    pub addresses: Vec<(ObjectRef, Box<[Box<str>]>)>,
    /// What `Backend`s of ours say of themselves, for those that were heard of; `None`: it is gone.
    pub backends: Vec<(ObjectRef, Option<SeenBackend>)>,
    /// All that is wrong with objects and with reading them; `None` if that is the same as before.
    pub findings: Option<Vec<Diagnostic>>,
    /// When the first of it was heard of.
    pub since: Instant,
}

/// A `Backend` of ours, beside its spec: what its status is made from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SeenBackend {
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.generation`.
    pub generation: i64,
    /// What its status says.
    pub status: BackendStatus,
}

/// The watches. They end when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    batches: mpsc::Receiver<Batch>,
    health: latest::Receiver<Health>,
    _task: JoinSet<()>,
}

impl Cluster {
    /// Starts to watch.
    pub fn watch(client: Client, settings: Settings) -> Self {
        let (sender, batches) = mpsc::channel(1);
        let (health, told) = latest::channel(Health::default());
        let mut task = JoinSet::new();
        task.spawn(run(client, settings, sender, health));
        Self { batches, health: told, _task: task }
    }

    /// How the watches are, always the latest.
    pub fn health(&self) -> latest::Receiver<Health> {
        self.health.clone()
    }

    /// What changed since the last call. `None` if a task died.
    pub async fn next(&mut self) -> Option<Batch> {
        self.batches.recv().await
    }
}

async fn run(client: Client, settings: Settings, batches: mpsc::Sender<Batch>, health: latest::Sender<Health>) {
    let (sender, mut news) = mpsc::channel(QUEUE);
    let mut gather = Gather::new(settings.clone());
    let mut watches = Watches { client, sender, tasks: JoinSet::new(), handles: BTreeMap::new() };
    let mut held: Option<Held> = None;
    watches.follow(gather.follow(), &health);
    loop {
        let due = held.as_ref().map(|held| held.due(&settings));
        tokio::select! {
            heard = news.recv() => {
                let Some((source, news)) = heard else { return };
                hear(&mut gather, &source, news, &health);
                watches.follow(gather.follow(), &health);
                if gather.has_news() {
                    let now = Instant::now();
                    held.get_or_insert(Held { first: now, last: now }).last = now;
                }
            }
            permit = ready(&batches, due), if due.is_some() && gather.is_whole() => {
                let Ok(permit) = permit else { return };
                let since = held.take().map_or_else(Instant::now, |held| held.first);
                let (delta, addresses, backends) = (gather.delta(), gather.addresses(), gather.backends());
                permit.send(Batch { delta, addresses, backends, findings: gather.findings(), since });
                health.send_modify(|health| health.waiting = 0);
            }
            ended = watches.tasks.join_next() => {
                if let Some(Err(error)) = ended.filter(|ended| ended.as_ref().is_err_and(|error| !error.is_cancelled())) {
                    tracing::error!(%error, "a watch died");
                    return;
                }
            }
        }
    }
}

/// Since when something is held back.
struct Held {
    first: Instant,
    last: Instant,
}

impl Held {
    fn due(&self, settings: &Settings) -> Instant {
        (self.last + settings.quiet).min(self.first + settings.at_most)
    }
}

async fn ready(batches: &mpsc::Sender<Batch>, due: Option<Instant>) -> Result<mpsc::Permit<'_, Batch>, mpsc::error::SendError<()>> {
    if let Some(due) = due {
        tokio::time::sleep_until(due).await;
    }
    batches.reserve().await
}

/// The tasks, one for each source.
struct Watches {
    client: Client,
    sender: mpsc::Sender<(Source, News)>,
    tasks: JoinSet<()>,
    handles: BTreeMap<Source, AbortHandle>,
}

impl Watches {
    fn follow(&mut self, follow: Follow, health: &latest::Sender<Health>) {
        for source in follow.stop {
            health.send_modify(|health| health.stop(&source));
            if let Some(handle) = self.handles.remove(&source) {
                handle.abort();
            }
        }
        for source in follow.start {
            tracing::debug!(%source, "watching");
            health.send_modify(|health| health.start(&source));
            let handle = self.tasks.spawn(watch::follow(self.client.clone(), source.clone(), self.sender.clone()));
            self.handles.insert(source, handle);
        }
    }
}

fn hear(gather: &mut Gather, source: &Source, news: News, health: &latest::Sender<Health>) {
    if let News::Absent | News::Forbidden(_) | News::Failed(_) = &news {
        tracing::debug!(%source, ?news, "not read");
    }
    let mut turn = None;
    health.send_modify(|health| turn = health.hear(source, &news, SystemTime::now()));
    gather.hear(source, news);
    health.send_modify(|health| (health.waiting, health.coalesced) = (gather.waiting(), gather.coalesced()));
    let kind = source.resource.qualified();
    // one line for a kind, however many watches it has and however often they fail
    match turn {
        Some(Turn::Lost(why)) => tracing::warn!(kind, %source, why, "cannot be read; what was read before stays, and it is tried again"),
        Some(Turn::Back) => tracing::info!(kind, "is read again"),
        None => {}
    }
}

/// A number that differs each time: pauses of several watches do not end together.
fn random() -> u32 {
    u32::try_from(RandomState::new().hash_one(()) >> 32).unwrap_or(0)
}
