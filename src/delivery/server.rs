//! The operator's end: one stream for each agent, let in by its token, followed from its feed.

use super::feed::{AgentReport, AgentState, Authority, Connection, Delivery, Feed, Feeds};
use super::identity::{Identity, IdentityError, PodIdentity};
use super::proto::delivery_server::{self, DeliveryServer};
use super::proto::{self, from_agent, from_operator};
use super::wire::{self, Malformed};
use crate::agent::runtime::random;
use crate::agent::{Ending, Health, Refusal, ReloadRecord};
use crate::haproxy::bundle::{Digest, Name};
use crate::report::object_number;
use prost::Message;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};

/// How often an agent hears that its operator is there.
pub const HEARTBEAT: Duration = Duration::from_secs(1);
/// Pings of a connection that is silent, and how long an answer may take.
pub(crate) const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5));
/// About what one message holds; a resource that is larger goes alone.
const PART: usize = 1 << 20;
/// What an agent may say at once.
const REPORT: usize = 4 << 20;
/// An agent that takes nothing for this long is given up.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time for a TLS handshake, and for the first word of an agent.
const INTRODUCTION: Duration = Duration::from_secs(10);
/// Connections at a time.
const CONNECTIONS: usize = 8192;
/// Reloads that are remembered of an agent.
const RELOADS: usize = 50;

type Outgoing = mpsc::Sender<Result<proto::FromOperator, Status>>;

/// Serves `feeds` at `listener` until `shutdown`. `tls` may change at any time: streams that run go on.
pub async fn serve<I: Identity>(
    listener: TcpListener,
    tls: watch::Receiver<Arc<rustls::ServerConfig>>,
    feeds: Feeds,
    identity: I,
    shutdown: impl Future<Output = ()> + Send,
) -> io::Result<()> {
    let (stop, stopped) = watch::channel(());
    let (accepted, incoming) = mpsc::channel(64);
    let accepting = tokio::spawn(accept(listener, tls, accepted));
    let service = DeliveryServer::new(Service { feeds, identity: Arc::new(identity), stopped }).max_decoding_message_size(REPORT);
    let ended = async move {
        shutdown.await;
        // streams would never end by themselves
        drop(stop);
    };
    let served = Server::builder()
        .http2_keepalive_interval(Some(KEEPALIVE.0))
        .http2_keepalive_timeout(Some(KEEPALIVE.1))
        .max_concurrent_streams(4)
        .add_service(service)
        .serve_with_incoming_shutdown(ReceiverStream::new(incoming).map(Ok::<_, io::Error>), ended)
        .await;
    accepting.abort();
    served.map_err(io::Error::other)
}

/// Accepts and shakes hands, each connection for itself: one that stalls keeps nobody waiting.
async fn accept(listener: TcpListener, tls: watch::Receiver<Arc<rustls::ServerConfig>>, accepted: mpsc::Sender<Accepted>) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    while let Ok(permit) = connections.clone().acquire_owned().await {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // most likely out of file descriptors: others end
                tracing::warn!(%error, "no connection can be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let acceptor = TlsAcceptor::from(tls.borrow().clone());
        let accepted = accepted.clone();
        tokio::spawn(async move {
            // small messages are not to wait for larger ones
            let _ = stream.set_nodelay(true);
            match tokio::time::timeout(INTRODUCTION, acceptor.accept(stream)).await {
                // nobody takes it when the server ends
                Ok(Ok(stream)) => _ = accepted.send(Accepted { stream, _permit: permit }).await,
                Ok(Err(error)) => tracing::debug!(%error, "a TLS handshake failed"),
                Err(_) => tracing::debug!("a TLS handshake takes too long"),
            }
        });
    }
}

mod accepted {
    //! A connection that counts as one as long as it lives.

    use super::{OwnedSemaphorePermit, TcpStream, TlsStream};
    use std::io;
    use std::pin::Pin;
    use std::task::{Context, Poll};
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
    use tonic::transport::server::Connected;

    pub(super) struct Accepted {
        pub(super) stream: TlsStream<TcpStream>,
        pub(super) _permit: OwnedSemaphorePermit,
    }

    impl Connected for Accepted {
        type ConnectInfo = ();

        fn connect_info(&self) {}
    }

    impl AsyncRead for Accepted {
        fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_read(context, buffer)
        }
    }

    impl AsyncWrite for Accepted {
        fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &[u8]) -> Poll<io::Result<usize>> {
            Pin::new(&mut self.stream).poll_write(context, buffer)
        }

        fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_flush(context)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.stream).poll_shutdown(context)
        }
    }
}
use accepted::Accepted;

struct Service<I> {
    feeds: Feeds,
    identity: Arc<I>,
    stopped: watch::Receiver<()>,
}

#[tonic::async_trait]
impl<I: Identity> delivery_server::Delivery for Service<I> {
    type FollowStream = ReceiverStream<Result<proto::FromOperator, Status>>;

    async fn follow(&self, request: Request<Streaming<proto::FromAgent>>) -> Result<Response<Self::FollowStream>, Status> {
        let header = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        let token = header.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default().to_owned();
        if token.is_empty() {
            return Err(Status::unauthenticated("no bearer token"));
        }
        let pod = self.identity.pod(&token).await.map_err(not_let_in)?;
        let (out, messages) = mpsc::channel(2);
        let (feeds, identity, mut stopped) = (self.feeds.clone(), self.identity.clone(), self.stopped.clone());
        tokio::spawn(async move {
            let end = tokio::select! {
                end = follow(feeds, &*identity, &token, pod, request.into_inner(), out.clone()) => end,
                _ = stopped.changed() => Status::unavailable("this replica of the operator stops"),
                () = out.closed() => return,
            };
            // it may be gone itself
            let _ = tokio::time::timeout(PATIENCE, out.send(Err(end))).await;
        });
        Ok(Response::new(ReceiverStream::new(messages)))
    }
}

fn not_let_in(error: IdentityError) -> Status {
    match error {
        IdentityError::Refused(why) => Status::unauthenticated(why),
        IdentityError::Unavailable(_) => Status::unavailable(error.to_string()),
    }
}

impl From<Malformed> for Status {
    fn from(error: Malformed) -> Self {
        Self::invalid_argument(error.to_string())
    }
}

/// Follows the feed of `pod` for it until something ends that: what is returned says what.
async fn follow<I: Identity>(
    feeds: Feeds,
    identity: &I,
    token: &str,
    pod: PodIdentity,
    mut agent: Streaming<proto::FromAgent>,
    out: Outgoing,
) -> Status {
    let left = pod.expires.duration_since(SystemTime::now()).unwrap_or_default();
    let session = async {
        let hello = introduce(&pod, &mut agent).await?;
        let session = Session::start(&feeds, &pod, &hello, out)?;
        tokio::select! {
            end = session.run(agent) => end,
            // beside it: an API server that does not answer silences no stream
            end = review(identity, token, &pod) => Err(end),
        }
    };
    match tokio::time::timeout(left, session).await {
        Ok(Ok(())) => Status::ok("the agent ended the stream"),
        Ok(Err(status)) => status,
        Err(_) => Status::unauthenticated("the token has expired"),
    }
}

/// Looks at the token again and again; returns once its pod is to be let in no more. That nobody can say so ends no
/// stream: what serves goes on.
async fn review<I: Identity>(identity: &I, token: &str, known: &PodIdentity) -> Status {
    loop {
        // replicas and streams that began together do not ask together
        tokio::time::sleep(identity.interval().mul_f64(0.9 + jitter() / 5.0)).await;
        match identity.pod(token).await {
            Ok(pod) if pod == *known => {}
            Ok(_) => return Status::permission_denied("the pod belongs to another fleet by now"),
            Err(IdentityError::Unavailable(why)) => tracing::warn!(pod = known.pod, why, "a stream goes on without a review"),
            Err(error) => return not_let_in(error),
        }
    }
}

/// Between 0 and 1.
fn jitter() -> f64 {
    f64::from(u32::try_from(random() % 1000).unwrap_or_default()) / 1000.0
}

/// The first word of an agent, which has to be the one that its token says.
async fn introduce(pod: &PodIdentity, agent: &mut Streaming<proto::FromAgent>) -> Result<proto::Hello, Status> {
    let first = tokio::time::timeout(INTRODUCTION, agent.message()).await;
    let message = first.map_err(|_| Status::deadline_exceeded("no hello came"))??;
    let Some(from_agent::Kind::Hello(hello)) = message.and_then(|message| message.kind) else {
        return Err(Status::failed_precondition("a stream begins with hello"));
    };
    if (hello.namespace.as_str(), hello.pod.as_str()) != (pod.namespace.as_str(), pod.pod.as_str()) {
        let said = format!("the token is that of pod {}/{}, not of {}/{}", pod.namespace, pod.pod, hello.namespace, hello.pod);
        return Err(Status::permission_denied(said));
    }
    if hello.fleet.as_str() != &*pod.fleet.name {
        let said = format!("pod {}/{} belongs to the fleet {}, not to {}", pod.namespace, pod.pod, pod.fleet.name, hello.fleet);
        return Err(Status::permission_denied(said));
    }
    Ok(hello)
}

/// What one agent has been told.
struct Session {
    pod: String,
    /// The number of the pod.
    number: u64,
    feed: Arc<Feed>,
    authority: watch::Receiver<Authority>,
    connection: Connection,
    out: Outgoing,
    /// The bundle that the agent has once all that was sent has arrived.
    at: Option<Digest>,
    /// What its HAProxy serves, of which it has no more than the digest.
    serves: Option<Digest>,
    /// Everything has to be sent, whatever it has.
    resync: bool,
    told: Option<(Authority, u64, Digest)>,
    released: u64,
    /// Whether it is drained by hand, as it was told, and in which term.
    drained: Option<(u64, bool)>,
    /// Whether it said its last word.
    ended: bool,
    zone: Option<Name>,
}

impl Session {
    fn start(feeds: &Feeds, pod: &PodIdentity, hello: &proto::Hello, out: Outgoing) -> Result<Self, Status> {
        let at = wire::optional_digest("holds", &hello.holds)?;
        let serves = wire::optional_digest("serves", &hello.serves)?.filter(|_| at.is_none());
        feeds.heard_of_term(hello.highest_term);
        let report = AgentReport {
            connected_since: SystemTime::now(),
            agent_version: hello.agent_version.clone(),
            haproxy_version: hello.haproxy_version.clone(),
            state: None,
        };
        let connection = feeds.connected(&pod.fleet, &pod.pod, report);
        let (feed, authority) = (feeds.feed(&pod.fleet), feeds.authority());
        let number = object_number("Pod", &pod.namespace, &pod.pod, &pod.uid);
        Ok(Self {
            pod: pod.pod.clone(),
            number,
            feed,
            authority,
            connection,
            out,
            at,
            serves,
            resync: false,
            told: None,
            released: 0,
            drained: None,
            ended: false,
            zone: None,
        })
    }

    async fn run(mut self, mut agent: Streaming<proto::FromAgent>) -> Result<(), Status> {
        let mut moved = self.feed.moved();
        let mut authority = self.authority.clone();
        let mut beat = tokio::time::interval(HEARTBEAT);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = agent.message() => {
                    let Some(message) = message? else { return Ok(()) };
                    self.hear(message)?;
                }
                // neither sender goes away while this is here
                _ = moved.changed() => {}
                _ = authority.changed() => {}
                _ = beat.tick() => self.say(None).await?,
            }
            self.catch_up().await?;
        }
    }

    fn hear(&mut self, message: proto::FromAgent) -> Result<(), Status> {
        match message.kind {
            Some(from_agent::Kind::Report(report)) => {
                let state = decode_report(report)?;
                self.connection.said(|known| merge(known, state));
            }
            Some(from_agent::Kind::Resync(_)) => self.resync = true,
            Some(from_agent::Kind::Ended(_)) if self.ended => return Err(Status::failed_precondition("a pod ends once")),
            Some(from_agent::Kind::Ended(ended)) => {
                self.ended = true;
                self.connection.ended(decode_ended(&ended));
            }
            Some(from_agent::Kind::Hello(_)) => return Err(Status::failed_precondition("a stream has one hello")),
            // what a newer agent says
            None => {}
        }
        Ok(())
    }

    /// Says what the agent does not know yet.
    async fn catch_up(&mut self) -> Result<(), Status> {
        // first: the shares of servers are right from the beginning then
        let zone = self.feed.zone_of(self.number);
        if let Some(zone) = zone.filter(|zone| self.zone.as_ref() != Some(zone)) {
            self.say(Some(from_operator::Kind::Place(proto::Place { zone: zone.to_string() }))).await?;
            self.zone = Some(zone);
        }
        if let Some(delivery) = self.serves.and_then(|serves| self.feed.as_of(serves)) {
            let digest = delivery.digest;
            self.deliver(delivery).await?;
            self.at = Some(digest);
        }
        let resync = std::mem::take(&mut self.resync);
        let at = self.at.filter(|_| !resync);
        if let Some(delivery) = self.feed.way_from(at) {
            let news = (*self.authority.borrow(), delivery.generation, delivery.digest);
            if delivery.base != Some(delivery.digest) || self.told != Some(news) {
                self.deliver(delivery).await?;
                self.at = Some(news.2);
                self.told = Some(news);
                self.serves = None;
            }
        }
        let released = self.feed.released(&self.pod);
        if released != self.released && self.authority.borrow().leads {
            self.released = released;
            self.say(Some(from_operator::Kind::Release(proto::Release { generation: released }))).await?;
        }
        self.say_drained().await
    }

    /// Says it anew in every term: another leader may have said something else meanwhile.
    async fn say_drained(&mut self) -> Result<(), Status> {
        let Authority { term, leads } = *self.authority.borrow();
        let Some(drained) = self.feed.drained(&self.pod).filter(|_| leads) else { return Ok(()) };
        if self.drained.replace((term, drained)) != Some((term, drained)) {
            self.say(Some(from_operator::Kind::Drain(proto::Drain { drained }))).await?;
        }
        Ok(())
    }

    async fn deliver(&self, delivery: Delivery) -> Result<(), Status> {
        for part in parts(delivery) {
            self.say(Some(from_operator::Kind::Bundle(part))).await?;
        }
        Ok(())
    }

    async fn say(&self, kind: Option<from_operator::Kind>) -> Result<(), Status> {
        let Authority { term, leads } = *self.authority.borrow();
        let message = proto::FromOperator { term, leads, kind };
        match tokio::time::timeout(PATIENCE, self.out.send(Ok(message))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Status::cancelled("the agent is gone")),
            Err(_) => Err(Status::deadline_exceeded("the agent takes nothing")),
        }
    }
}

/// The messages of `delivery`, each made when it is its turn: as many as it takes, at least one.
pub(super) fn parts(delivery: Delivery) -> impl Iterator<Item = proto::Bundle> + Send {
    let Delivery { generation, digest, base, set, removed } = delivery;
    let header = proto::Bundle {
        generation,
        digest: wire::hash_bytes(digest.0),
        base: base.map(|base| wire::hash_bytes(base.0)).unwrap_or_default(),
        ..proto::Bundle::default()
    };
    let (mut set, mut removed) = (set.into_iter().peekable(), removed.into_iter().peekable());
    let mut next: Option<proto::Resource> = None;
    let mut done = false;
    std::iter::from_fn(move || {
        if done {
            return None;
        }
        let (mut part, mut size) = (header.clone(), 0);
        while let Some(message) = next.take().or_else(|| set.next().map(|resource| wire::encode(&resource))) {
            let length = message.encoded_len();
            if size > 0 && size + length > PART {
                next = Some(message);
                break;
            }
            size += length;
            part.set.push(message);
        }
        while next.is_none() && size < PART {
            let Some(key) = removed.next() else { break };
            let message = wire::encode_key(&key);
            size += message.encoded_len();
            part.removed.push(message);
        }
        part.more = next.is_some() || set.peek().is_some() || removed.peek().is_some();
        done = !part.more;
        Some(part)
    })
}

fn health(health: proto::Health) -> Health {
    let proto::Health { number, requests, failed, queued, down, reloads } = health;
    Health { number, requests, failed, queued, down, reloads }
}

fn decode_report(report: proto::Report) -> Result<AgentState, Malformed> {
    let reload = |reload: proto::Reload| ReloadRecord { generation: reload.generation, reason: reload.reason };
    let refusal = |refusal: proto::Refusal| {
        Ok::<_, Malformed>(Refusal {
            generation: refusal.generation,
            sources: wire::decode_sources(refusal.sources)?,
            resource: wire::decode_key(refusal.resource)?,
            message: refusal.message,
        })
    };
    Ok(AgentState {
        generation: report.generation,
        digest: wire::digest("report.digest", &report.digest)?,
        ready: report.ready,
        last_good: report.last_good,
        waiting: report.waiting,
        held: report.held,
        reload_count: report.reload_count,
        reloads: report.reloads.into_iter().map(reload).collect(),
        refused: report.refused.into_iter().map(refusal).collect::<Result<_, _>>()?,
        refused_count: report.refused_count,
        runtime_commands: report.runtime_commands,
        drift_repairs: report.drift_repairs,
        restarts: report.restarts,
        failed_starts: report.failed_starts,
        connections: report.connections,
        drained: report.drained,
        reload_pending: report.reload_pending,
        held_from: report.held_from,
        old_workers: report.old_workers,
        health: report.health.map(health),
    })
}

fn decode_ended(ended: &proto::Ended) -> Ending {
    let proto::Ended { finished, closed, cut, unseen, forced, millis } = *ended;
    Ending { finished, closed, cut, unseen, forced, time: Duration::from_millis(millis) }
}

/// A report has the reloads since the one before. Says whether there is more in it than numbers that change all the time.
fn merge(known: &mut AgentReport, mut state: AgentState) -> bool {
    let mut is_news = true;
    if let Some(mut before) = known.state.take() {
        let new = std::mem::replace(&mut state.reloads, std::mem::take(&mut before.reloads));
        let is_idle = |state: &AgentState| state.connections == 0;
        if new.is_empty() && is_idle(&before) == is_idle(&state) {
            let reloads = std::mem::take(&mut state.reloads);
            is_news = state != AgentState { connections: state.connections, runtime_commands: state.runtime_commands, ..before };
            state.reloads = reloads;
        }
        state.reloads.extend(new);
        let surplus = state.reloads.len().saturating_sub(RELOADS);
        state.reloads.drain(..surplus);
    }
    known.state = Some(state);
    is_news
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_woken_for_numbers_that_change_all_the_time() {
        let mut known = AgentReport {
            connected_since: SystemTime::UNIX_EPOCH,
            agent_version: String::new(),
            haproxy_version: String::new(),
            state: None,
        };
        let reload = || ReloadRecord { generation: 1, reason: "first".to_owned() };
        let state = |connections| AgentState { connections, ..AgentState::default() };
        assert!(merge(&mut known, AgentState { reloads: [reload()].into(), ..state(3) }));
        assert!(!merge(&mut known, AgentState { runtime_commands: 7, ..state(4) }));
        assert_eq!(known.state, Some(AgentState { runtime_commands: 7, reloads: [reload()].into(), ..state(4) }));
        assert!(merge(&mut known, state(0)), "the last one ended");
        assert!(merge(&mut known, AgentState { drained: true, ..state(0) }));
        assert!(merge(&mut known, AgentState { drained: true, reloads: [reload()].into(), ..state(0) }));
    }
}
