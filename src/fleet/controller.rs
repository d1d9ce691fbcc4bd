//! Keeps the objects of every fleet as its `IngressDeployment` asks, and takes a deleted one down without a lost request.
//!
//! One loop for all fleets: watches tell what changed, a fleet that may be affected is looked at after a moment of quiet,
//! and each of them again every few minutes, whatever the watches say. A look reads freshly what it decides on. Fleets
//! are looked at beside each other, up to a bound; one fleet is never looked at twice at a time.
//!
//! Runs where this replica leads, and is dropped when it does not: every step can be taken again from any point.

mod deletion;
mod look;
mod watching;

pub use deletion::Step;
pub use look::{Build, BuildError, Built, Rolling, Seen, Withdraw};

use super::apply::{ApplyError, FleetKey};
use crate::api::RolloutStatus;
use crate::report::Diagnostic;
use futures::FutureExt;
use kube::Client;
use look::{Look, Looker};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use watching::{News, Store, Watched};

/// Keeps the fleet until everything outside is taken down.
pub const FINALIZER: &str = "haproxy-fleet.dev/teardown";

/// How the controller goes about it.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The namespaces with fleets; `None`: all.
    pub namespaces: Option<BTreeSet<String>>,
    /// A change is looked at after this long.
    pub quiet: Duration,
    /// Every fleet is looked at this often.
    pub resync: Duration,
    /// What failed is tried again after this long, then after twice that, up to a minute.
    pub retry: Duration,
    /// Fleets that are looked at beside each other.
    pub concurrency: usize,
    /// Time for a look.
    pub timeout: Duration,
    /// Time for Ingresses to stop telling an address that is given up.
    pub withdrawal: Duration,
    /// Time for pods to end, beyond their grace period, and for a load balancer to be taken down.
    pub slack: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            namespaces: None,
            quiet: Duration::from_millis(200),
            resync: Duration::from_secs(300),
            retry: Duration::from_secs(1),
            concurrency: 4,
            timeout: Duration::from_secs(60),
            withdrawal: Duration::from_secs(60),
            slack: Duration::from_secs(60),
        }
    }
}

/// The longest pause between two tries.
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// News that wait.
const QUEUE: usize = 1024;

/// What is observed of a fleet: what its status is made from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FleetState {
    /// `metadata.generation` of the spec that was looked at last; 0: none yet.
    pub generation: i64,
    /// Whether nothing is changed.
    pub paused: bool,
    /// Why the spec cannot be realised; what served before it still does.
    pub refused: Vec<Diagnostic>,
    /// Objects that cannot be as asked until somebody changes something.
    pub problems: Vec<Diagnostic>,
    /// What was found beside that, such as wishes that nobody can fulfil. The fleet is as asked all the same.
    pub findings: Vec<Diagnostic>,
    /// Why the last look failed, if it did. It is tried again.
    pub failure: Option<String>,
    /// How far its deletion is, if it is deleted.
    pub deletion: Option<Step>,
    /// How far its rollout is, since it was planned.
    pub rollout: Option<RolloutStatus>,
    /// The `IngressDeployment` itself, its status included.
    pub fleet: Option<Arc<Value>>,
    /// Its Deployments, by name.
    pub deployments: BTreeMap<String, Arc<Value>>,
    /// Its Services, by name.
    pub services: BTreeMap<String, Arc<Value>>,
    /// Its pods, by name.
    pub pods: BTreeMap<String, Arc<Value>>,
}

/// All fleets.
pub type States = BTreeMap<FleetKey, FleetState>;

/// The controller.
pub struct Controller {
    client: Client,
    settings: Settings,
    build: Arc<dyn Build>,
    withdraw: Arc<dyn Withdraw>,
    states: watch::Sender<Arc<States>>,
}

/// One fleet in the loop.
struct Entry {
    /// None while it is looked at.
    looker: Option<Looker>,
    due: Option<Instant>,
    /// Something changed while it was looked at.
    is_touched: bool,
    /// Its rollout goes on: pods that come and go are to be looked at.
    is_moving: bool,
    failures: u32,
}

type Looked = (FleetKey, Looker, Result<Look, ApplyError>);

impl Controller {
    /// A controller, and what it observes.
    pub fn new(
        client: Client,
        settings: Settings,
        build: Arc<dyn Build>,
        withdraw: Arc<dyn Withdraw>,
    ) -> (Self, watch::Receiver<Arc<States>>) {
        let (states, observed) = watch::channel(Arc::default());
        (Self { client, settings, build, withdraw, states }, observed)
    }

    /// Runs until it is dropped.
    pub async fn run(self) {
        let (sender, mut news) = mpsc::channel(QUEUE);
        let mut watches = JoinSet::new();
        watching::start(&self.client, self.settings.namespaces.as_ref(), &sender, &mut watches);
        let mut store = Store::default();
        let mut fleets: BTreeMap<FleetKey, Entry> = BTreeMap::new();
        let mut looks: JoinSet<Looked> = JoinSet::new();
        loop {
            self.start_looks(&mut fleets, &mut looks);
            let can_start = looks.len() < self.settings.concurrency;
            let due = fleets.values().filter(|entry| entry.looker.is_some()).filter_map(|entry| entry.due).min();
            tokio::select! {
                biased;
                // a look ends in no other way: its panics are caught, and nobody aborts it
                Some(Ok(looked)) = looks.join_next() => self.looked(&mut fleets, &store, looked),
                Some(first) = news.recv() => {
                    let mut told = vec![first];
                    while let Ok(more) = news.try_recv() {
                        told.push(more);
                    }
                    self.tell(&mut store, &mut fleets, told);
                }
                () = sleep_until(due), if can_start => {}
            }
        }
    }

    fn start_looks(&self, fleets: &mut BTreeMap<FleetKey, Entry>, looks: &mut JoinSet<Looked>) {
        let now = Instant::now();
        for (key, entry) in fleets.iter_mut() {
            if looks.len() >= self.settings.concurrency {
                return;
            }
            if entry.due.is_none_or(|due| due > now) {
                continue;
            }
            let Some(mut looker) = entry.looker.take() else { continue };
            entry.due = None;
            let (key, timeout) = (key.clone(), self.settings.timeout);
            looks.spawn(async move {
                let look = AssertUnwindSafe(tokio::time::timeout(timeout, looker.look())).catch_unwind().await;
                (key, looker, look.map_or(Ok(Look::Died), |look| look.unwrap_or(Ok(Look::TimedOut))))
            });
        }
    }

    fn looked(&self, fleets: &mut BTreeMap<FleetKey, Entry>, store: &Store, (key, looker, result): Looked) {
        let Some(entry) = fleets.get_mut(&key) else { return };
        let (pause, outcome) = match result {
            Ok(Look::Gone) => {
                fleets.remove(&key);
                return self.change(|states| _ = states.remove(&key));
            }
            Ok(Look::Done(outcome)) => {
                entry.failures = 0;
                entry.is_moving = outcome.is_moving;
                (outcome.again.unwrap_or_else(|| spread(self.settings.resync, &key)), Ok(outcome))
            }
            Ok(Look::Died) => {
                tracing::error!(fleet = %key.object(), "the look at this fleet died; trying again");
                (self.retry(entry), Err("an internal error; see the operator's log".to_owned()))
            }
            Ok(Look::Waits(why)) => (self.retry(entry), Err(why)),
            Ok(Look::TimedOut) => (self.retry(entry), Err("the API server did not answer in time".to_owned())),
            Err(error) => {
                tracing::warn!(fleet = %key.object(), %error, "its objects cannot be brought about; trying again");
                (self.retry(entry), Err(error.to_string()))
            }
        };
        // what fails keeps its pause, whatever it touches while it fails
        let is_touched = std::mem::take(&mut entry.is_touched) && entry.failures == 0;
        let pause = if is_touched { pause.min(self.settings.quiet) } else { pause };
        entry.looker = Some(looker);
        entry.due = Some(Instant::now() + pause);
        self.change(|states| {
            let state = states.entry(key.clone()).or_default();
            store.observe(&key, state);
            match outcome {
                Ok(outcome) => outcome.tell(state),
                Err(failure) => state.failure = Some(failure),
            }
        });
    }

    fn retry(&self, entry: &mut Entry) -> Duration {
        entry.failures = (entry.failures + 1).min(16);
        (self.settings.retry * 2_u32.pow(entry.failures - 1)).min(LONGEST_RETRY)
    }

    fn looker(&self, key: &FleetKey) -> Looker {
        Looker::new(self.client.clone(), key.clone(), &self.settings, self.build.clone(), self.withdraw.clone())
    }

    /// Takes news in: fleets that they are about are looked at soon, and what is observed of them is told at once.
    fn tell(&self, store: &mut Store, fleets: &mut BTreeMap<FleetKey, Entry>, told: Vec<News>) {
        let mut seen: BTreeSet<FleetKey> = BTreeSet::new();
        for news in told {
            for Watched { fleet, is_asked } in store.take(news) {
                let is_moving = fleets.get(&fleet).is_some_and(|entry| entry.is_moving);
                if (is_asked || is_moving) && (fleets.contains_key(&fleet) || store.has_fleet(&fleet)) {
                    let entry = fleets.entry(fleet.clone()).or_insert_with(|| Entry {
                        looker: Some(self.looker(&fleet)),
                        due: None,
                        is_touched: false,
                        is_moving: false,
                        failures: 0,
                    });
                    entry.is_touched |= entry.looker.is_none();
                    let soon = Instant::now() + self.settings.quiet;
                    // what failed keeps its pause
                    if entry.failures == 0 || entry.due.is_none() {
                        entry.due = Some(entry.due.map_or(soon, |due| due.min(soon)));
                    }
                }
                seen.insert(fleet);
            }
        }
        seen.retain(|fleet| fleets.contains_key(fleet));
        if seen.is_empty() {
            return;
        }
        self.change(|states| {
            for key in seen {
                store.observe(&key, states.entry(key.clone()).or_default());
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut States)) {
        self.states.send_if_modified(|states| {
            let mut next = States::clone(states);
            change(&mut next);
            let is_news = next != **states;
            if is_news {
                *states = Arc::new(next);
            }
            is_news
        });
    }
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

/// Up to a tenth less or more, by the fleet's name: fleets are not looked at in step.
fn spread(time: Duration, key: &FleetKey) -> Duration {
    let hash = blake3::hash(format!("{}/{}", key.namespace, key.name).as_bytes());
    time * (230 + u32::from(hash.as_bytes()[0]) * 52 / 256) / 256
}
