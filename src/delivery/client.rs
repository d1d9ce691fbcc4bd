//! The agent's end: a stream to every replica of the operator, what each of them wants, and whom to obey.
//!
//! Each stream has a task of its own, which puts bundles together and checks them; one task decides and delivers to
//! the agent. Resources that several replicas send are kept once.

use super::assembly::{Assembled, Assembly, Held, Step};
use super::choice::{Choice, Replica, choose};
use super::proto::delivery_client::DeliveryClient;
use super::proto::{self, from_operator};
use super::resolve::Resolver;
use super::server::KEEPALIVE;
use super::wire::{self, Malformed};
use super::{identity, outgoing};
use crate::agent::{Agent, Ending, Reloads, Status, Update, UpdateContent};
use crate::haproxy::bundle::{Bundle, Digest};
use crate::model::FleetId;
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::Request;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

/// A connection has this long to come about.
const CONNECT: Duration = Duration::from_secs(5);
/// The first pause between two tries, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// A stream that held for so long was fine: the next try comes at once.
const FINE: Duration = Duration::from_secs(60);
/// How often the name of the operator is looked up while it has been found, and while it has not.
const LOOKUPS: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(1));
/// How often it is thought about whom to obey when nobody says anything.
const TICK: Duration = Duration::from_millis(250);
/// A stream ends so long before its token does.
const BEFORE_EXPIRY: Duration = Duration::from_secs(60);
/// What an operator may send at once: a resource that is larger than a part goes alone.
const MESSAGE: usize = 64 << 20;

/// Whom an agent follows, and as whom.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The fleet of the pod.
    pub fleet: FleetId,
    /// The pod.
    pub pod: String,
    /// Where the operator is: `HOST:PORT`. Every address of the host is a replica.
    pub operator: String,
    /// The name that the operator's certificate is for, if it is not the host.
    pub server_name: Option<String>,
    /// The file with the token, read for every stream.
    pub token: PathBuf,
    /// The file with the authorities that are trusted, read for every stream.
    pub authorities: PathBuf,
    /// The version of HAProxy, as it is reported.
    pub haproxy_version: String,
    /// Where the highest term is kept over a restart.
    pub term_file: PathBuf,
}

/// Follows the operator and delivers to `agent` until it is dropped.
#[derive(Debug)]
pub struct Follower {
    task: JoinHandle<()>,
    farewell: Farewell,
}

/// The last word, and who has not heard it yet.
#[derive(Clone, Debug, Default)]
struct Farewell {
    ending: watch::Sender<Option<Ending>>,
    /// Streams that are open.
    streams: watch::Sender<usize>,
}

impl Farewell {
    fn is_said(&self) -> bool {
        self.ending.borrow().is_some()
    }

    /// Counts a stream until it is dropped.
    fn open(&self) -> OpenStream<'_> {
        self.streams.send_modify(|streams| *streams += 1);
        OpenStream(&self.streams)
    }
}

struct OpenStream<'f>(&'f watch::Sender<usize>);

impl Drop for OpenStream<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|streams| *streams -= 1);
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Follower {
    /// Begins to follow.
    pub fn start(settings: Settings, agent: Agent) -> io::Result<Self> {
        let resolver = Resolver::new(&settings.operator)?;
        let settings = Arc::new(settings);
        let farewell = Farewell::default();
        Ok(Self { task: tokio::spawn(follow(settings, resolver, agent, farewell.clone())), farewell })
    }

    /// Tells every replica that it has a stream to how HAProxy ended, and follows none of them any more. Returns once all
    /// have taken it, or after `patience`.
    pub async fn tell_ending(&self, ending: Ending, patience: Duration) {
        self.farewell.ending.send_replace(Some(ending));
        let mut streams = self.farewell.streams.subscribe();
        // a replica ends the stream in answer to its end; one that does not answer is not waited for
        let _ = tokio::time::timeout(patience, streams.wait_for(|streams| *streams == 0)).await;
    }

    /// Waits for its end, which only a fault brings about.
    pub async fn ended(&mut self) {
        // whatever it ended with: it was not to end
        let _ = (&mut self.task).await;
    }
}

/// What one stream has told.
#[derive(Debug)]
enum News {
    /// It is there; with a step to what it wants if that is new, what it releases, and whether it drains the pod.
    Heard { term: u64, leads: bool, step: Option<Step>, released: Option<u64>, drained: Option<bool> },
    /// The stream ended.
    Ended,
}

/// What all streams share.
struct Shared {
    settings: Arc<Settings>,
    news: mpsc::Sender<(SocketAddr, News)>,
    status: watch::Receiver<Status>,
    highest_term: watch::Receiver<u64>,
    /// What the replica wants that was obeyed last: a stream to a new one begins there.
    obeyed: Mutex<Held>,
    farewell: Farewell,
}

async fn follow(settings: Arc<Settings>, resolver: Resolver, agent: Agent, farewell: Farewell) {
    let (sender, mut news) = mpsc::channel(16);
    let known = std::fs::read_to_string(&settings.term_file).ok().and_then(|text| text.trim().parse().ok()).unwrap_or_default();
    let (terms, highest_term) = watch::channel(known);
    let (status, obeyed) = (agent.status(), Mutex::default());
    let shared = Arc::new(Shared { settings: settings.clone(), news: sender, status, highest_term, obeyed, farewell });
    let mut obedience = Obedience::new(agent, terms, shared.clone());
    let mut streams: BTreeMap<SocketAddr, AbortOnDrop> = BTreeMap::new();
    let mut tick = tokio::time::interval(TICK);
    let (addresses, mut found) = mpsc::channel(1);
    let _lookups = AbortOnDrop(tokio::spawn(look_up(resolver, addresses)));
    loop {
        tokio::select! {
            Some((replica, news)) = news.recv() => obedience.hear(replica, news),
            Some(addresses) = found.recv() => {
                streams.retain(|address, _| addresses.contains(address));
                obedience.keep(&addresses);
                for address in addresses {
                    streams.entry(address).or_insert_with(|| {
                        let held = shared.obeyed().copy();
                        obedience.add(address, held.clone());
                        AbortOnDrop(tokio::spawn(keep_up(shared.clone(), address, held)))
                    });
                }
            }
            _ = tick.tick() => {}
        }
        obedience.act();
    }
}

/// Sends the addresses of the operator whenever they may have changed. An answer that has none changes nothing.
async fn look_up(resolver: Resolver, addresses: mpsc::Sender<Vec<SocketAddr>>) {
    loop {
        let pause = match resolver.addresses().await {
            Ok(found) if !found.is_empty() => {
                if addresses.send(found).await.is_err() {
                    return;
                }
                LOOKUPS.0
            }
            Ok(_) => LOOKUPS.1,
            Err(error) => {
                tracing::debug!(%error, "the operator is not found");
                LOOKUPS.1
            }
        };
        tokio::time::sleep(pause).await;
    }
}

#[derive(Debug)]
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// One replica, as the agent knows it.
#[derive(Debug)]
struct Known {
    held: Held,
    /// What it said last; `None`: there is no stream.
    said: Option<Replica>,
    released: u64,
    /// Whether it drains the pod, and in which term it said so last.
    drained: Option<(u64, bool)>,
    /// What it said first, until something was delivered: it may be what HAProxy serves already.
    first: Option<Arc<Bundle>>,
}

/// Decides whom to obey, and delivers.
struct Obedience {
    agent: Agent,
    shared: Arc<Shared>,
    replicas: BTreeMap<SocketAddr, Known>,
    highest_term: watch::Sender<u64>,
    choice: Choice,
    started: Instant,
    /// When a leader was obeyed last.
    led: Duration,
    /// What was delivered last, and whose it was.
    delivered: Option<(SocketAddr, u64, Digest)>,
    /// Steps of the replica that is obeyed which were not delivered yet.
    steps: Vec<Step>,
}

impl Obedience {
    fn new(agent: Agent, highest_term: watch::Sender<u64>, shared: Arc<Shared>) -> Self {
        agent.allow_reloads(Reloads::None);
        Self {
            agent,
            shared,
            replicas: BTreeMap::new(),
            highest_term,
            choice: Choice::Nobody,
            started: Instant::now(),
            led: Duration::ZERO,
            delivered: None,
            steps: Vec::new(),
        }
    }

    fn add(&mut self, address: SocketAddr, held: Held) {
        self.replicas.insert(address, Known { held, said: None, released: 0, drained: None, first: None });
    }

    fn keep(&mut self, addresses: &[SocketAddr]) {
        self.replicas.retain(|address, _| addresses.contains(address));
    }

    fn hear(&mut self, address: SocketAddr, news: News) {
        let heard = self.started.elapsed();
        let Some(known) = self.replicas.get_mut(&address) else { return };
        let News::Heard { term, leads, step, released, drained } = news else {
            (known.said, known.drained) = (None, None);
            return;
        };
        let complete = step.is_some() || known.said.is_some_and(|said| said.complete);
        known.said = Some(Replica { term, leads, complete, heard });
        known.released = released.unwrap_or(known.released);
        known.drained = drained.map(|drained| (term, drained)).or(known.drained);
        if self.delivered.is_none() {
            known.first = known.first.take().or_else(|| step.as_ref().and_then(|step| step.whole.clone()));
        }
        if let Some(step) = step.filter(|_| self.delivered.is_some_and(|(from, ..)| from == address)) {
            self.steps.push(step);
        }
        if term > *self.highest_term.borrow() {
            self.highest_term.send_replace(term);
            // without it an agent that was restarted would obey whoever it meets first
            if let Err(error) = std::fs::write(&self.shared.settings.term_file, term.to_string()) {
                tracing::warn!(%error, "the highest term cannot be kept");
            }
        }
    }

    fn act(&mut self) {
        let replicas = self.replicas.iter().filter_map(|(address, known)| Some((*address, known.said?))).collect();
        let now = self.started.elapsed();
        let highest_term = *self.highest_term.borrow();
        let choice = choose(&replicas, highest_term, self.led, now, self.choice);
        if choice != self.choice {
            tracing::info!(?choice, highest_term, "the agent obeys another replica of the operator");
        }
        self.choice = choice;
        let Some(known) = choice.replica().and_then(|replica| self.replicas.get(&replica)) else { return };
        let (held, released) = (known.held.clone(), known.released);
        // others may have said something else since it said this in an earlier term
        let drained = known.drained.filter(|(term, _)| known.said.is_some_and(|said| said.term == *term)).map(|(_, drained)| drained);
        match choice {
            Choice::Nobody => {}
            Choice::Leader(leader) => {
                self.led = now;
                self.deliver(leader, &held);
                self.agent.allow_reloads(Reloads::UpTo(released));
                if let Some(drained) = drained {
                    self.agent.set_drained(drained);
                }
            }
            Choice::Standby(standby) => {
                self.agent.allow_reloads(Reloads::None);
                self.deliver(standby, &held);
            }
        }
    }

    fn deliver(&mut self, replica: SocketAddr, held: &Held) {
        let lost = self.agent.status().borrow().out_of_sync;
        let steps = std::mem::take(&mut self.steps);
        match self.delivered {
            Some((from, ..)) if from == replica && !lost => self.deliver_steps(replica, held, steps),
            _ => self.switch(replica, held, lost),
        }
    }

    /// Goes on with the replica that was obeyed until now.
    fn deliver_steps(&mut self, replica: SocketAddr, held: &Held, steps: Vec<Step>) {
        for step in steps {
            let Some((_, generation, at)) = self.delivered else { return };
            if (generation, at) == held.present() {
                // more than these steps was delivered already
                return;
            }
            let Some(changes) = step.changes.filter(|_| step.base == Some(at)) else { return self.switch(replica, held, true) };
            let Step { generation, digest, .. } = Step { changes: None, ..step };
            self.agent.deliver(Update { generation, digest, content: UpdateContent::Changes(changes) });
            self.delivered = Some((replica, generation, digest));
        }
    }

    /// Delivers what `replica` wants, whatever was delivered before.
    fn switch(&mut self, replica: SocketAddr, held: &Held, all: bool) {
        if let Some(first) = self.replicas.get(&replica).and_then(|known| known.first.clone()) {
            let digest = first.digest();
            self.agent.deliver(Update { generation: 0, digest, content: UpdateContent::Full(first.clone()) });
            let (generation, bundle) = held.all();
            let digest = bundle.digest();
            let content = UpdateContent::Changes(first.diff(&bundle).into());
            self.agent.deliver(Update { generation, digest, content });
            self.delivered = Some((replica, generation, digest));
            self.replicas.values_mut().for_each(|known| known.first = None);
            return self.shared.obey(held);
        }
        let (generation, digest) = held.present();
        let known = self.delivered.filter(|_| !all).is_some_and(|(.., at)| at == digest);
        let (generation, digest, content) = if known {
            (generation, digest, UpdateContent::Changes(Arc::new([])))
        } else {
            let (generation, bundle) = held.all();
            (generation, bundle.digest(), UpdateContent::Full(Arc::new(bundle)))
        };
        self.agent.deliver(Update { generation, digest, content });
        self.delivered = Some((replica, generation, digest));
        self.shared.obey(held);
    }
}

impl Shared {
    fn obeyed(&self) -> Held {
        self.obeyed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn obey(&self, held: &Held) {
        *self.obeyed.lock().unwrap_or_else(PoisonError::into_inner) = held.clone();
    }
}

/// Keeps a stream to `address`, again and again.
async fn keep_up(shared: Arc<Shared>, address: SocketAddr, held: Held) {
    let mut pause = PAUSES.0;
    loop {
        let started = Instant::now();
        let end = stream_once(&shared, address, &held).await;
        if shared.farewell.is_said() {
            return;
        }
        match end {
            Ok(()) => tracing::debug!(%address, "the stream to the operator is renewed"),
            Err(error) => tracing::warn!(%address, %error, "the stream to the operator ended"),
        }
        if shared.news.send((address, News::Ended)).await.is_err() {
            return;
        }
        if started.elapsed() > FINE {
            pause = PAUSES.0;
            continue;
        }
        // agents that lost the same replica at the same time do not come back at the same time
        tokio::time::sleep(jittered(pause)).await;
        pause = (pause * 2).min(PAUSES.1);
    }
}

/// Between a half of `pause` and all of it.
fn jittered(pause: Duration) -> Duration {
    let share = crate::agent::runtime::random() % 1000;
    pause / 2 + pause / 2 * u32::try_from(share).unwrap_or_default() / 1000
}

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
enum Ended {
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("no connection: {0}")]
    Connect(#[source] tonic::transport::Error),
    #[error("{} ({})", .0.message(), .0.code())]
    Refused(tonic::Status),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("the token is no text that a header can hold")]
    Token,
    #[error("the operator ended it")]
    Operator,
}

/// One stream from its beginning to its end: `Ok` if its token has to be renewed.
async fn stream_once(shared: &Arc<Shared>, address: SocketAddr, held: &Held) -> Result<(), Ended> {
    let settings = &shared.settings;
    let read = |path: &PathBuf| {
        let path = path.clone();
        async move { tokio::fs::read_to_string(&path).await.map_err(|source| Ended::File { path, source }) }
    };
    let token = read(&settings.token).await?;
    let authorities = read(&settings.authorities).await?;
    let host = settings.operator.rsplit_once(':').map_or(settings.operator.as_str(), |(host, _)| host);
    let name = settings.server_name.as_deref().unwrap_or(host);
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authorities)).domain_name(name);
    let endpoint = Endpoint::from_shared(format!("https://{address}")).and_then(|endpoint| endpoint.tls_config(tls));
    let endpoint = endpoint
        .map_err(Ended::Connect)?
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(KEEPALIVE.0)
        .keep_alive_timeout(KEEPALIVE.1)
        .keep_alive_while_idle(true);
    let channel = endpoint.connect().await.map_err(Ended::Connect)?;
    let (resync, asked) = watch::channel(0_u64);
    let farewell = &shared.farewell;
    let mut request = Request::new(outgoing::messages(shared.hello(held), shared.status.clone(), asked, farewell.ending.subscribe()));
    let bearer = format!("Bearer {}", token.trim()).parse().map_err(|_| Ended::Token)?;
    request.metadata_mut().insert("authorization", bearer);
    let mut client = DeliveryClient::new(channel).max_decoding_message_size(MESSAGE);
    let _open = farewell.open();
    let mut incoming = client.follow(request).await.map_err(Ended::Refused)?.into_inner();
    let expires = identity::expiry(token.trim()).map(|expires| expires - BEFORE_EXPIRY);
    let renew = async {
        match expires.map(|expires| expires.duration_since(SystemTime::now()).unwrap_or(BEFORE_EXPIRY / 4)) {
            Some(left) => tokio::time::sleep(left).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(renew);
    let mut assembly = Assembly::default();
    loop {
        let message = tokio::select! {
            message = incoming.message() => message.map_err(Ended::Refused)?.ok_or(Ended::Operator)?,
            () = &mut renew => return Ok(()),
        };
        let proto::FromOperator { term, leads, kind } = message;
        let (mut step, mut released, mut drained) = (None, None, None);
        match kind {
            Some(from_operator::Kind::Bundle(part)) => match assembly.take(part, held, &shared.obeyed())? {
                Assembled::Step(new) => step = Some(new),
                Assembled::More => {}
                Assembled::Unfit => {
                    tracing::warn!(%address, "a bundle has not the digest that was said: all of it is asked for");
                    resync.send_modify(|number| *number += 1);
                }
            },
            Some(from_operator::Kind::Release(release)) => released = Some(release.generation),
            Some(from_operator::Kind::Drain(drain)) => drained = Some(drain.drained),
            // that it is there, or what a newer operator says
            None => {}
        }
        if shared.news.send((address, News::Heard { term, leads, step, released, drained })).await.is_err() {
            return Ok(());
        }
    }
}

impl Shared {
    fn hello(&self, held: &Held) -> proto::Hello {
        let Settings { fleet, pod, haproxy_version, .. } = &*self.settings;
        proto::Hello {
            namespace: fleet.namespace.to_string(),
            fleet: fleet.name.to_string(),
            pod: pod.clone(),
            agent_version: env!("CARGO_PKG_VERSION").to_owned(),
            haproxy_version: haproxy_version.clone(),
            holds: held.digest().map(|digest| wire::hash_bytes(digest.0)).unwrap_or_default(),
            highest_term: *self.highest_term.borrow(),
            serves: Some(self.status.borrow().digest)
                .filter(|digest| *digest != Digest::default())
                .map(|d| wire::hash_bytes(d.0))
                .unwrap_or_default(),
        }
    }
}
