//! Starts everything, and ends when any part of it does.

use super::authority::{self, Trust};
use super::fence::Fence;
use super::fleets::{Maker, Withdrawn};
use super::leading;
use super::lease::{self, Claim, Driver, Timing};
use super::metrics::Published;
use super::report::{self, Sources};
use super::revisions;
use super::settings::{LEASE, Settings};
use super::stage::{Input, Stage, Translated};
use super::writes::CountWrites;
use crate::admin::{self, CountFrom, Served};
use crate::api::HaproxyLine;
use crate::delivery::identity::TokenReviews;
use crate::delivery::{Feeds, server};
use crate::fleet::controller::{self, Controller, States};
use crate::haproxy::version::{Capabilities, FLOOR, Version};
use crate::ingest::cluster::{self, Cluster, Namespaces};
use crate::pipeline::{self, Pipeline};
use crate::status::ingress::Ingresses;
use crate::status::json::Status;
use crate::status::writer::Writer;
use crate::telemetry::{LogLevel, Metrics, OperatorMetrics};
use crate::{haproxy, translate};
use kube::client::ClientBuilder;
use kube::{Client, Config};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// A connection to the API server that says nothing for this long is given up. Longer than a watch is silent.
const READ_TIMEOUT: Duration = Duration::from_secs(65);
/// Time to connect to the API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Batches that wait for the stage.
const QUEUE: usize = 4;

/// Why the operator ended.
#[derive(Debug, thiserror::Error)]
pub enum OperatorError {
    /// There is no way to the API server.
    #[error("cannot reach the API server: {0}")]
    Client(Box<dyn std::error::Error + Send + Sync>),
    /// A port cannot be had.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// A part of it ended, so that the rest cannot go on.
    #[error("{part} ended: {why}")]
    Ended {
        /// Which.
        part: &'static str,
        /// How.
        why: String,
    },
}

impl OperatorError {
    /// What to do about it; may be empty.
    pub fn help(&self) -> String {
        match self {
            Self::Client(_) => "run it in a pod with a service account, or set KUBECONFIG".to_owned(),
            Self::Listen { .. } => "choose another port by --delivery or --admin".to_owned(),
            Self::Ended { .. } => String::new(),
        }
    }
}

/// The parts that run beside each other. When one ends, all do: a half operator is worse than a restart.
#[derive(Default)]
struct Parts(JoinSet<(&'static str, Result<(), String>)>);

impl Parts {
    fn start(&mut self, part: &'static str, work: impl Future<Output = Result<(), String>> + Send + 'static) {
        self.0.spawn(async move { (part, work.await) });
    }

    fn run(&mut self, part: &'static str, work: impl Future<Output = ()> + Send + 'static) {
        self.start(part, async {
            work.await;
            Ok(())
        });
    }

    async fn ended(&mut self) -> OperatorError {
        match self.0.join_next().await {
            Some(Ok((part, outcome))) => OperatorError::Ended { part, why: outcome.err().unwrap_or_else(|| "it stopped".to_owned()) },
            Some(Err(error)) => OperatorError::Ended { part: "a task", why: error.to_string() },
            None => OperatorError::Ended { part: "everything", why: "nothing was started".to_owned() },
        }
    }
}

/// Runs until `stop`, or until a part of it ends.
pub async fn run(settings: Settings, log_level: LogLevel, stop: impl Future<Output = ()> + Send) -> Result<(), OperatorError> {
    let config = config().await?;
    let feeds = Feeds::new();
    let lease_settings = lease::Settings {
        namespace: settings.namespace.clone(),
        name: LEASE.to_owned(),
        identity: format!("{}_{:016x}", settings.pod, crate::agent::runtime::random()),
        timing: Timing::default(),
        highest_term: feeds.highest_term(),
    };
    let (driver, election) = Driver::new(lease_settings);
    let mut metrics = Metrics::default();
    let operator_metrics = OperatorMetrics::register(&mut metrics);
    let metrics = Arc::new(metrics);
    let client = client(&config, &Fence::new(election.claim(), &settings.namespace, LEASE), &operator_metrics)?;
    let mut parts = Parts::default();
    let (leave, mut leaving) = watch::channel(false);
    let of_election = client.clone();
    let election_task = tokio::spawn(driver.run(of_election, async move { _ = leaving.wait_for(|left| *left).await }));

    let ingresses = Arc::new(Mutex::new(Ingresses::default()));
    let (states, observed) = watch::channel(Arc::new(States::new()));
    let pipeline = Pipeline::new(options());
    let stage = Stage::new(pipeline, feeds.clone(), observed.clone(), ingresses.clone(), metrics.clone(), operator_metrics.clone());
    let translated = stage.translated();
    let (inputs, received) = mpsc::channel(QUEUE);
    parts.run("translation", stage.run(received));
    let watched =
        cluster::Settings { namespaces: settings.namespaces.clone(), fleets: settings.fleets.clone(), ..cluster::Settings::default() };
    let cluster = Cluster::watch(client.clone(), watched);
    let published = Published {
        health: cluster.health(),
        inputs: inputs.downgrade(),
        translated: translated.clone(),
        agents: feeds.agents(),
        ended: feeds.ended(),
        ingresses: ingresses.clone(),
        claim: election.claim(),
    };
    parts.run("watching", pass_on(cluster, inputs.clone()));
    parts.run("numbering", leading::follow(election.clone(), inputs.clone(), translated.clone()));
    let claim = election.claim();
    let of_revisions = revisions::Sources {
        translated: translated.clone(),
        states: observed.clone(),
        leads: Box::new(move || claim.borrow().term(Instant::now()).is_some()),
    };
    parts.run("keeping revisions", revisions::keep(client.clone(), of_revisions, inputs));

    let (trust, trusted) = watch::channel(None::<Trust>);
    parts.run("the operator's authority", authority::keep(client.clone(), settings.namespace.clone(), settings.server_names(), trust));
    let listener = listen(settings.delivery).await?;
    parts.start("delivery", deliver(listener, trusted.clone(), feeds.clone(), client.clone()));

    let maker = Arc::new(Maker::new(settings.clone(), client.clone(), trusted.clone(), translated.clone(), feeds.clone()));
    let withdrawn = Arc::new(Withdrawn(ingresses.clone()));
    maker.watch(observed.clone());
    let keeping = KeepFleets { client: client.clone(), settings: settings.clone(), maker, withdrawn, states };
    parts.run("keeping fleets", while_leading(election.claim(), move || keeping.clone().keep()));

    let (document, told) = watch::channel(Arc::new(Status::default()));
    let (writing, pod, claim, of_writer) = (client.clone(), settings.pod.clone(), election.claim(), ingresses.clone());
    let sources = Sources {
        translated: translated.clone(),
        agents: feeds.agents(),
        ended: feeds.ended(),
        states: observed,
        leads: Box::new(move || claim.borrow().term(Instant::now()).is_some()),
        pod: settings.pod.clone(),
    };
    let writer = move || Writer::new(writing.clone(), pod.clone(), of_writer.clone());
    parts.run("status", report::tell(sources, writer, ingresses, document));

    let listener = listen(settings.admin).await?;
    let ready = readiness(translated.clone(), trusted.clone());
    let observe = Arc::new(move || published.observe(&operator_metrics));
    // agents outlive the operator: what they count began before it
    let count_from = CountFrom::FirstWord;
    let served = Served { status: told, metrics, observe, count_from, ready, log_level: Some(log_level), open: false };
    parts.start("health and metrics", async move {
        admin::serve(listener, served, std::future::pending()).await.map_err(|error| error.to_string())
    });

    let ended = tokio::select! {
        () = stop => None,
        error = parts.ended() => Some(error),
    };
    // writers first, then the Lease: whoever leads next finds nothing under way
    parts.0.shutdown().await;
    leave.send_replace(true);
    if let Err(error) = election_task.await {
        tracing::error!(%error, "the election died");
    }
    ended.map_or(Ok(()), Err)
}

async fn config() -> Result<Config, OperatorError> {
    let mut config = Config::infer().await.map_err(|error| OperatorError::Client(error.into()))?;
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    Ok(config)
}

/// A client whose writes are fenced, and counted with those that are held back.
fn client(config: &Config, fence: &Fence, metrics: &OperatorMetrics) -> Result<Client, OperatorError> {
    let builder = ClientBuilder::try_from(config.clone()).map_err(|error| OperatorError::Client(error.into()))?;
    Ok(builder.with_layer(fence).with_layer(&CountWrites(metrics.clone())).build())
}

async fn listen(address: SocketAddr) -> Result<TcpListener, OperatorError> {
    TcpListener::bind(address).await.map_err(|source| OperatorError::Listen { address, source })
}

/// What fleets of every release line can do at least, and what they may reach.
pub(super) fn options() -> pipeline::Options {
    pipeline::Options {
        capabilities: Box::new(|line: HaproxyLine| Capabilities::of(line.as_str().parse::<Version>().unwrap_or(FLOOR))),
        translate: translate::Options { allow_loopback: false },
        render: haproxy::render::Options::default(),
    }
}

/// What the controller of fleets is made of, each time that this replica begins to lead.
#[derive(Clone)]
struct KeepFleets {
    client: Client,
    settings: Settings,
    maker: Arc<Maker>,
    withdrawn: Arc<Withdrawn>,
    states: watch::Sender<Arc<States>>,
}

impl KeepFleets {
    async fn keep(self) {
        let settings = controller::Settings {
            namespaces: match self.settings.fleets {
                Namespaces::All => None,
                Namespaces::Only(names) => Some(names.iter().map(ToString::to_string).collect()),
            },
            ..controller::Settings::default()
        };
        self.maker.begins();
        let (controller, mut observed) = Controller::new(self.client, settings, self.maker, self.withdrawn);
        let passing = async {
            while observed.changed().await.is_ok() {
                self.states.send_replace(observed.borrow_and_update().clone());
            }
        };
        tokio::select! {
            () = controller.run() => {}
            () = passing => {}
        }
    }
}

/// Does `work` whenever this replica leads, and drops it when it does not.
async fn while_leading<F: Future<Output = ()>>(mut claim: watch::Receiver<Claim>, work: impl Fn() -> F) {
    loop {
        let leads = |claim: &Claim| claim.term(Instant::now()).is_some();
        if claim.wait_for(leads).await.is_err() {
            return;
        }
        tokio::select! {
            () = work() => return,
            lost = claim.wait_for(|claim| !leads(claim)) => if lost.is_err() { return },
        }
    }
}

pub(super) async fn pass_on(mut cluster: Cluster, inputs: mpsc::Sender<Input>) {
    while let Some(batch) = cluster.next().await {
        if inputs.send(Input::Batch(batch)).await.is_err() {
            return;
        }
    }
}

/// Serves agents once there is a certificate to show.
async fn deliver(listener: TcpListener, mut trust: watch::Receiver<Option<Trust>>, feeds: Feeds, client: Client) -> Result<(), String> {
    let gone = |_| "the operator's authority is gone".to_owned();
    let first = trust.wait_for(Option::is_some).await.map_err(gone)?.clone().ok_or_else(String::new)?;
    let (certificate, shown) = watch::channel(first.server);
    let renewals = async {
        while trust.changed().await.is_ok() {
            if let Some(trust) = &*trust.borrow_and_update() {
                certificate.send_replace(trust.server.clone());
            }
        }
    };
    let serving = server::serve(listener, shown, feeds, TokenReviews::new(client), std::future::pending());
    tokio::select! {
        served = serving => served.map_err(|error| error.to_string()),
        () = renewals => Err("the operator's authority is gone".to_owned()),
    }
}

/// Whether agents get here what they need: all of the world was seen, and there is a certificate to show.
fn readiness(translated: watch::Receiver<Arc<Translated>>, trust: watch::Receiver<Option<Trust>>) -> Arc<dyn Fn() -> bool + Send + Sync> {
    Arc::new(move || translated.borrow().whole && trust.borrow().is_some())
}
