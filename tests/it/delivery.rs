//! From the operator's servers over real connections into real HAProxies.

use crate::crosscheck::Random;
use crate::rig::{Origin, Rig, backend, eventually, frontends, private, route, section, server, servers, skeleton, without_backend};
use crate::seeds::fixed_seed;
use crate::support::haproxies;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use fleet_api_server::ApiServer;
use haproxy_fleet::agent::Status;
use haproxy_fleet::delivery::certificates::{Material, Plan, carry_out};
use haproxy_fleet::delivery::client::{Follower, Settings};
use haproxy_fleet::delivery::identity::{AUDIENCE, FLEET_LABEL, Identity, IdentityError, PodIdentity, TokenReviews};
use haproxy_fleet::delivery::proto::delivery_client::DeliveryClient;
use haproxy_fleet::delivery::proto::{self, from_agent, from_operator};
use haproxy_fleet::delivery::{AgentReport, Authority, Feeds, Published, server as delivery_server};
use haproxy_fleet::haproxy::bundle::{Bundle, Change, Content, ResourceKey};
use haproxy_fleet::haproxy::files::render_bytes;
use haproxy_fleet::model::FleetId;
use haproxy_fleet::report::object_number;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Streaming};

const SERVER_NAME: &str = "operator.test";

fn fleet() -> FleetId {
    FleetId { namespace: "infra".into(), name: "edge".into() }
}

/// The API server, the operator's authority, and what the kubelet mounts into pods.
pub struct Cluster {
    pub api: ApiServer,
    pub material: Material,
    pub mounts: tempfile::TempDir,
}

impl Cluster {
    pub fn new() -> Self {
        let names = [SERVER_NAME.to_owned()];
        let material = carry_out(Plan::Create, None, SystemTime::now(), &names).unwrap();
        let mounts = tempfile::tempdir().unwrap();
        std::fs::write(mounts.path().join("ca.crt"), material.bundle()).unwrap();
        let api = ApiServer::new();
        api.put(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "infra"}})).unwrap();
        Self { api, material, mounts }
    }

    /// A pod of `fleet` with its token.
    pub fn pod(&self, name: &str, fleet: &str) -> PathBuf {
        self.pod_until(name, fleet, SystemTime::now() + Duration::from_secs(3600))
    }

    fn pod_until(&self, name: &str, fleet: &str, expires: SystemTime) -> PathBuf {
        let labels = json!({ FLEET_LABEL: fleet });
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "infra", "name": name, "labels": labels}});
        let pod = self.api.put(&pod).unwrap();
        let claims = json!({"exp": expires.duration_since(UNIX_EPOCH).unwrap().as_secs(), "jti": name});
        let token = format!("h.{}.s", URL_SAFE_NO_PAD.encode(claims.to_string()));
        let extra = json!({
            "authentication.kubernetes.io/pod-name": [name],
            "authentication.kubernetes.io/pod-uid": [pod["metadata"]["uid"]],
        });
        let user = json!({"username": format!("system:serviceaccount:infra:{fleet}"), "extra": extra});
        self.api.know_token(&token, json!({"audiences": [AUDIENCE], "user": user}));
        let path = self.mounts.path().join(format!("token-{name}"));
        std::fs::write(&path, token).unwrap();
        path
    }

    pub fn ca(&self) -> PathBuf {
        self.mounts.path().join("ca.crt")
    }
}

/// One replica of the operator.
pub struct Replica {
    pub address: SocketAddr,
    pub feeds: Feeds,
    pub tls: watch::Sender<Arc<rustls::ServerConfig>>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Replica {
    pub async fn start(cluster: &Cluster) -> Self {
        Self::start_at(cluster, SocketAddr::from((crate::rig::address(), 9443))).await
    }

    async fn start_at(cluster: &Cluster, address: SocketAddr) -> Self {
        let feeds = Feeds::new();
        let listener = eventually(async || TcpListener::bind(address).await.ok()).await;
        let (tls, config) = watch::channel(cluster.material.server_config().unwrap());
        let identity = TokenReviews::new(cluster.api.client()).every(Duration::from_secs(2));
        let (stop, stopped) = oneshot::channel();
        let serving = delivery_server::serve(listener, config, feeds.clone(), identity, async { _ = stopped.await });
        let task = tokio::spawn(async move { serving.await.unwrap() });
        Self { address, feeds, tls, stop: Some(stop), task }
    }

    async fn stop(mut self) -> SocketAddr {
        self.stop.take().unwrap().send(()).unwrap();
        tokio::time::timeout(Duration::from_secs(10), &mut self.task).await.expect("it never ends").unwrap();
        self.address
    }

    pub fn leads(&self, term: u64) {
        self.feeds.set_authority(Authority { term, leads: true });
    }

    fn stands_by(&self, term: u64) {
        self.feeds.set_authority(Authority { term, leads: false });
    }

    pub fn publish(&self, generation: u64, changes: &[Change], bundle: &Bundle) {
        self.feeds.publish(&fleet(), Published { generation, changes, bundle });
    }

    pub fn report(&self, pod: &str) -> Option<Arc<AgentReport>> {
        self.feeds.agents().borrow().get(&(fleet(), pod.to_owned())).cloned()
    }

    /// Waits until the agent of `pod` says what `condition` wants.
    pub async fn hears(&self, pod: &str, condition: impl Fn(&haproxy_fleet::delivery::AgentState) -> bool) -> Arc<AgentReport> {
        eventually(async || self.report(pod).filter(|report| report.state.as_ref().is_some_and(&condition))).await
    }
}

/// What fleets are to serve, published to several replicas.
struct Wanted {
    bundle: Bundle,
    generation: u64,
}

impl Wanted {
    fn change(&mut self, change: impl FnOnce(&mut Bundle)) -> Vec<Change> {
        let before = self.bundle.clone();
        change(&mut self.bundle);
        self.generation += 1;
        before.diff(&self.bundle)
    }
}

/// The way to a replica, which may fall silent without anybody noticing.
struct Way {
    address: SocketAddr,
    silent: Arc<AtomicBool>,
    /// Bytes from the replica.
    received: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl Drop for Way {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Way {
    async fn to(target: SocketAddr) -> Self {
        let address = SocketAddr::from((crate::rig::address(), 9443));
        let listener = TcpListener::bind(address).await.unwrap();
        let (silent, received) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (quiet, bytes) = (silent.clone(), received.clone());
        let task = tokio::spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let (quiet, bytes) = (quiet.clone(), bytes.clone());
                connections.spawn(async move {
                    let Ok(replica) = TcpStream::connect(target).await else { return };
                    let ((mut from_client, mut to_client), (mut from_replica, mut to_replica)) =
                        (client.into_split(), replica.into_split());
                    let ignored = AtomicU64::new(0);
                    tokio::select! {
                        () = pass(&mut from_client, &mut to_replica, &quiet, &ignored) => {}
                        () = pass(&mut from_replica, &mut to_client, &quiet, &bytes) => {}
                    }
                });
            }
        });
        Self { address, silent, received, task }
    }

    fn silence(&self, silent: bool) {
        self.silent.store(silent, Ordering::Relaxed);
    }

    fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}

/// Passes on what comes; while it is silent, everything is swallowed.
async fn pass(from: &mut (impl AsyncReadExt + Unpin), to: &mut (impl AsyncWriteExt + Unpin), silent: &AtomicBool, count: &AtomicU64) {
    let mut buffer = vec![0; 16384];
    let mut broken = false;
    while let Ok(length) = from.read(&mut buffer).await {
        if length == 0 && !broken {
            return;
        }
        // what was swallowed is missing from now on: it stays silent
        broken |= silent.load(Ordering::Relaxed);
        if broken {
            tokio::time::sleep(Duration::from_millis(5)).await;
            continue;
        }
        count.fetch_add(length as u64, Ordering::Relaxed);
        if to.write_all(&buffer[..length]).await.is_err() {
            return;
        }
    }
}

/// A pod: HAProxy, agent, and the stream to every replica.
pub struct FleetPod {
    pub rig: Rig,
    name: String,
    settings: Settings,
    follower: Option<Follower>,
}

impl FleetPod {
    pub async fn start(cluster: &Cluster, haproxy: &Path, name: &str, replicas: &[SocketAddr]) -> Self {
        let rig = Rig::bare(haproxy).await;
        let replicas: Vec<String> = replicas.iter().map(ToString::to_string).collect();
        let settings = Settings {
            fleet: fleet(),
            pod: name.to_owned(),
            operator: replicas.join(","),
            server_name: Some(SERVER_NAME.to_owned()),
            token: cluster.pod(name, "edge"),
            authorities: cluster.ca(),
            haproxy_version: rig.status().version.to_string(),
            term_file: rig.home.join("term"),
        };
        let mut pod = Self { rig, name: name.to_owned(), settings, follower: None };
        pod.follow();
        pod
    }

    fn follow(&mut self) {
        self.follower = None;
        self.follower = Some(Follower::start(self.settings.clone(), self.rig.agent.clone()).unwrap());
    }

    async fn until(&self, what: &str, condition: impl FnMut(&Status) -> bool) -> Status {
        self.rig.until(what, condition).await
    }

    async fn serves(&self, wanted: &Wanted) -> Status {
        let digest = wanted.bundle.digest();
        self.until("served", |status| status.digest == digest && status.waiting == 0).await
    }
}

fn one(origin: &Origin) -> Bundle {
    let mut bundle = skeleton();
    backend(&mut bundle, "a", &[origin.address]);
    route(&mut bundle, "a.example", "a");
    bundle
}

#[tokio::test(flavor = "multi_thread")]
async fn changes_arrive_and_are_acknowledged() {
    for (version, haproxy) in haproxies() {
        let cluster = Cluster::new();
        let (a, b) = (Origin::start("a").await, Origin::start("b").await);
        let replica = Replica::start(&cluster).await;
        let pod = FleetPod::start(&cluster, haproxy, "edge-0", &[replica.address]).await;
        // connected, and nothing to serve yet
        replica.hears("edge-0", |state| !state.ready).await;
        let mut wanted = Wanted { bundle: one(&a), generation: 7 };
        replica.leads(3);
        replica.publish(wanted.generation, &[], &wanted.bundle);
        let report = replica.hears("edge-0", |state| state.generation == 7 && state.ready).await;
        let state = report.state.as_ref().unwrap();
        assert_eq!((state.digest, state.reload_count, state.reloads.len()), (wanted.bundle.digest(), 1, 1), "{version}");
        assert_eq!(report.haproxy_version, version.to_string());
        let changes = wanted.change(|bundle| servers(bundle, "a", vec![server("a", b.address)]));
        replica.publish(wanted.generation, &changes, &wanted.bundle);
        replica.hears("edge-0", |state| state.generation == 8).await;
        pod.rig.answers("a.example", "b").await;
        // what needs a reload waits for its release
        let changes = wanted.change(|bundle| section(bundle, "20-frontends", &frontends(1)));
        replica.publish(wanted.generation, &changes, &wanted.bundle);
        replica.hears("edge-0", |state| state.generation == 9 && state.held == 1).await;
        replica.feeds.release(&fleet(), 9);
        let report = replica.hears("edge-0", |state| state.held == 0 && state.reload_count == 2).await;
        assert_eq!(report.state.as_ref().unwrap().reloads.back().unwrap().generation, 9);
        // and what HAProxy refuses is told with where it comes from
        let changes = wanted.change(|bundle| private(bundle, "bad", "    no-such-directive\n", &[a.address]));
        replica.publish(wanted.generation, &changes, &wanted.bundle);
        replica.feeds.release(&fleet(), wanted.generation);
        let report = replica.hears("edge-0", |state| state.refused_count > 0).await;
        let refused = &report.state.as_ref().unwrap().refused;
        assert!(refused[0].message.contains("no-such-directive"), "{refused:?}");
        assert_eq!(refused[0].sources[0], crate::rig::source("bad"));
        assert_eq!(pod.name, "edge-0");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_word_of_the_leader_a_standby_is_heard_in_what_is_live() {
    let (_, haproxy) = &haproxies()[0];
    let cluster = Cluster::new();
    let (a, b) = (Origin::start("a").await, Origin::start("b").await);
    let (leader, standby) = (Replica::start(&cluster).await, Replica::start(&cluster).await);
    let way = Way::to(leader.address).await;
    let mut wanted = Wanted { bundle: one(&a), generation: 1 };
    leader.leads(3);
    standby.stands_by(3);
    leader.publish(1, &[], &wanted.bundle);
    leader.feeds.release(&fleet(), 1);
    standby.publish(0, &[], &wanted.bundle);
    let pod = FleetPod::start(&cluster, haproxy, "edge-0", &[way.address, standby.address]).await;
    pod.serves(&wanted).await;
    standby.hears("edge-0", |state| state.generation == 1).await;
    way.silence(true);
    let changes = wanted.change(|bundle| {
        section(bundle, "20-frontends", &frontends(1));
        servers(bundle, "a", vec![server("a", b.address)]);
    });
    standby.publish(0, &changes, &wanted.bundle);
    pod.rig.answers("a.example", "b").await;
    let report = standby.hears("edge-0", |state| state.digest == wanted.bundle.digest()).await;
    let state = report.state.as_ref().unwrap();
    assert_eq!((state.generation, state.held, state.reload_count), (0, 1, 1));
    // once it leads, it says the number and releases
    standby.leads(4);
    standby.publish(wanted.generation, &[], &wanted.bundle);
    standby.hears("edge-0", |state| state.generation == 2 && state.held == 1).await;
    standby.feeds.release(&fleet(), 2);
    let report = standby.hears("edge-0", |state| state.reload_count == 2).await;
    assert_eq!(report.state.as_ref().unwrap().held, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_term_is_over_is_not_obeyed_any_more() {
    let (_, haproxy) = &haproxies()[0];
    let cluster = Cluster::new();
    let (a, b, c) = (Origin::start("a").await, Origin::start("b").await, Origin::start("c").await);
    let (old, new) = (Replica::start(&cluster).await, Replica::start(&cluster).await);
    let mut wanted = Wanted { bundle: one(&a), generation: 1 };
    old.leads(3);
    old.publish(1, &[], &wanted.bundle);
    let pod = FleetPod::start(&cluster, haproxy, "edge-0", &[old.address, new.address]).await;
    pod.serves(&wanted).await;
    let before = wanted.bundle.clone();
    wanted.change(|bundle| servers(bundle, "a", vec![server("a", b.address)]));
    new.leads(4);
    new.publish(2, &[], &wanted.bundle);
    pod.rig.answers("a.example", "b").await;
    // the one that was paused comes back and still believes that it leads
    let mut stale = Wanted { bundle: before, generation: 8 };
    let changes = stale.change(|bundle| servers(bundle, "a", vec![server("a", c.address)]));
    old.publish(9, &changes, &stale.bundle);
    let changes = wanted.change(|bundle| route(bundle, "b.example", "a"));
    new.publish(wanted.generation, &changes, &wanted.bundle);
    pod.rig.answers("b.example", "b").await;
    assert_eq!(pod.rig.ask("a.example").await, "b");
    // not even when nobody else is left, nor by an agent that was restarted
    let mut pod = pod;
    new.stop().await;
    pod.follow();
    old.hears("edge-0", |state| state.generation == 3).await;
    old.feeds.release(&fleet(), 9);
    assert_eq!(*old.feeds.highest_term().borrow(), 4);
    let changes = stale.change(|bundle| route(bundle, "c.example", "a"));
    old.publish(10, &changes, &stale.bundle);
    // long enough to listen to a standby, if it were one
    let alone = std::time::Instant::now();
    while alone.elapsed() < Duration::from_secs(5) {
        assert_eq!(pod.rig.ask("a.example").await, "b");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    // until it knows better
    old.leads(5);
    pod.rig.answers("c.example", "c").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_drained_by_hand_as_the_leader_of_the_highest_term_says_and_nobody_else() {
    let (_, haproxy) = &haproxies()[0];
    let cluster = Cluster::new();
    let a = Origin::start("a").await;
    let (leader, other) = (Replica::start(&cluster).await, Replica::start(&cluster).await);
    let wanted = Wanted { bundle: one(&a), generation: 1 };
    let of = |pods: &[&str]| pods.iter().map(|pod| (*pod).to_owned()).collect::<BTreeSet<_>>();
    for replica in [&leader, &other] {
        replica.publish(1, &[], &wanted.bundle);
    }
    leader.leads(4);
    leader.feeds.release(&fleet(), 1);
    other.stands_by(4);
    let mut pod = FleetPod::start(&cluster, haproxy, "edge-0", &[leader.address, other.address]).await;
    pod.serves(&wanted).await;
    let beside = FleetPod::start(&cluster, haproxy, "edge-1", &[leader.address]).await;
    beside.serves(&wanted).await;
    // neither one that stands by nor one whose term is over drains a pod
    for authority in [Authority { term: 4, leads: false }, Authority { term: 3, leads: true }] {
        other.feeds.set_authority(authority);
        other.feeds.set_drained(&fleet(), &of(&["edge-0"]));
        other.hears("edge-0", |state| state.ready && !state.drained).await;
        let tried = tokio::time::Instant::now();
        while tried.elapsed() < Duration::from_secs(2) {
            assert!(!pod.rig.status().drained, "{authority:?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    leader.feeds.set_drained(&fleet(), &of(&["edge-0"]));
    for replica in [&leader, &other] {
        replica.hears("edge-0", |state| state.drained).await;
    }
    leader.hears("edge-1", |state| state.ready && !state.drained).await;
    // it stays so without a leader, and for an agent that begins then
    leader.stop().await;
    pod.follow();
    other.stands_by(4);
    other.hears("edge-0", |state| state.drained).await;
    // whoever leads next says nothing of it until it knows
    other.leads(5);
    other.publish(2, &[], &wanted.bundle);
    other.hears("edge-0", |state| state.generation == 2 && state.drained).await;
    other.feeds.set_drained(&fleet(), &BTreeSet::new());
    other.hears("edge-0", |state| !state.drained).await;
    assert!(!pod.rig.status().drained);
}

/// A stream as a stranger may open it.
async fn stream(
    cluster: &Cluster,
    address: SocketAddr,
    token: Option<&str>,
    messages: Vec<from_agent::Kind>,
) -> Result<Streaming<proto::FromOperator>, tonic::Status> {
    let ca = Certificate::from_pem(cluster.material.bundle());
    let tls = ClientTlsConfig::new().ca_certificate(ca).domain_name(SERVER_NAME);
    let channel: Channel = Endpoint::from_shared(format!("https://{address}")).unwrap().tls_config(tls).unwrap().connect().await.unwrap();
    let messages = messages.into_iter().map(|kind| proto::FromAgent { kind: Some(kind) });
    let messages = tokio_stream::StreamExt::chain(tokio_stream::iter(messages), tokio_stream::pending());
    let mut request = Request::new(messages);
    if let Some(token) = token {
        request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
    }
    DeliveryClient::new(channel).follow(request).await.map(tonic::Response::into_inner)
}

fn hello(fleet: &str, pod: &str) -> from_agent::Kind {
    from_agent::Kind::Hello(proto::Hello {
        namespace: "infra".to_owned(),
        fleet: fleet.to_owned(),
        pod: pod.to_owned(),
        ..proto::Hello::default()
    })
}

/// How a stream ends that nobody is to have.
async fn refusal(stream: Result<Streaming<proto::FromOperator>, tonic::Status>) -> tonic::Status {
    let mut stream = match stream {
        Err(status) => return status,
        Ok(stream) => stream,
    };
    loop {
        match stream.message().await {
            Err(status) => return status,
            Ok(message) => assert!(message.expect("a reason").kind.is_none(), "something was delivered"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_gets_what_its_own_fleet_serves_and_nothing_else() {
    let cluster = Cluster::new();
    let replica = Replica::start(&cluster).await;
    replica.leads(1);
    replica.publish(1, &[], &skeleton());
    let token = |name: &str, fleet: &str| std::fs::read_to_string(cluster.pod(name, fleet)).unwrap();
    let (own, other) = (token("edge-0", "edge"), token("other-0", "other"));
    let open =
        async |token: Option<&str>, hello: from_agent::Kind| refusal(stream(&cluster, replica.address, token, vec![hello]).await).await;

    let status = open(Some(&other), hello("edge", "other-0")).await;
    assert_eq!(status.code(), Code::PermissionDenied);
    assert_eq!(status.message(), "pod infra/other-0 belongs to the fleet other, not to edge");
    assert_eq!(open(Some(&other), hello("edge", "edge-0")).await.code(), Code::PermissionDenied);
    assert_eq!(open(None, hello("edge", "edge-0")).await.code(), Code::Unauthenticated);
    assert_eq!(open(Some("h.e30.s"), hello("edge", "edge-0")).await.code(), Code::Unauthenticated);
    let report = from_agent::Kind::Report(proto::Report::default());
    assert_eq!(open(Some(&own), report).await.code(), Code::FailedPrecondition);
    let malformed = proto::Hello {
        namespace: "infra".to_owned(),
        fleet: "edge".to_owned(),
        pod: "edge-0".to_owned(),
        holds: vec![1],
        ..proto::Hello::default()
    };
    let status = open(Some(&own), from_agent::Kind::Hello(malformed)).await;
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "holds has 1 bytes instead of 16"));
    assert!(replica.feeds.agents().borrow().is_empty());

    // a token for somebody else's audience, and one of a pod that has been replaced
    cluster.api.know_token("h.e30.api", json!({"audiences": ["https://kubernetes.default.svc"], "user": {"username": "x"}}));
    assert_eq!(open(Some("h.e30.api"), hello("edge", "edge-0")).await.code(), Code::Unauthenticated);
    cluster.api.remove("v1", "Pod", "infra", "other-0");
    token("other-1", "other");
    let replaced =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "infra", "name": "other-0", "labels": {FLEET_LABEL: "other"}}});
    cluster.api.put(&replaced).unwrap();
    let fresh = Replica::start(&cluster).await;
    let status = refusal(stream(&cluster, fresh.address, Some(&other), vec![hello("other", "other-0")]).await).await;
    assert_eq!((status.code(), status.message()), (Code::Unauthenticated, "pod infra/other-0 is another one by now"));

    let mut stream = stream(&cluster, replica.address, Some(&own), vec![hello("edge", "edge-0")]).await.unwrap();
    let delivered = loop {
        if let Some(from_operator::Kind::Bundle(bundle)) = stream.message().await.unwrap().unwrap().kind {
            break bundle;
        }
    };
    assert_eq!((delivered.set.len(), delivered.generation), (skeleton().resources().count(), 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_ends_with_its_pod_and_with_its_token() {
    let cluster = Cluster::new();
    let replica = Replica::start(&cluster).await;
    let token = std::fs::read_to_string(cluster.pod("edge-0", "edge")).unwrap();
    let soon = SystemTime::now() + Duration::from_secs(4);
    let short = std::fs::read_to_string(cluster.pod_until("edge-1", "edge", soon)).unwrap();
    let lives = stream(&cluster, replica.address, Some(&token), vec![hello("edge", "edge-0")]).await;
    let ends = stream(&cluster, replica.address, Some(&short), vec![hello("edge", "edge-1")]).await;
    eventually(async || (replica.feeds.agents().borrow().len() == 2).then_some(())).await;
    cluster.api.remove("v1", "Pod", "infra", "edge-0");
    let status = refusal(ends).await;
    assert_eq!((status.code(), status.message()), (Code::Unauthenticated, "the token has expired"));
    let status = refusal(lives).await;
    assert_eq!((status.code(), status.message()), (Code::Unauthenticated, "pod infra/edge-0 is gone"));
    eventually(async || replica.feeds.agents().borrow().is_empty().then_some(())).await;
}

/// Lets everybody in once, and answers nothing any more after that.
struct Hanging(AtomicBool);

impl Identity for Hanging {
    async fn pod(&self, _: &str) -> Result<PodIdentity, IdentityError> {
        if self.0.swap(true, Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        let expires = SystemTime::now() + Duration::from_secs(3600);
        let (namespace, pod, uid) = ("infra".to_owned(), "edge-0".to_owned(), "u".to_owned());
        Ok(PodIdentity { namespace, pod, uid, service_account: "edge".to_owned(), fleet: fleet(), expires })
    }

    fn interval(&self) -> Duration {
        Duration::from_millis(10)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_server_that_does_not_answer_silences_no_stream() {
    let cluster = Cluster::new();
    let (feeds, address) = (Feeds::new(), SocketAddr::from((crate::rig::address(), 9443)));
    let listener = TcpListener::bind(address).await.unwrap();
    let (_tls, config) = watch::channel(cluster.material.server_config().unwrap());
    let hanging = Hanging(AtomicBool::new(false));
    let _serving = tokio::spawn(delivery_server::serve(listener, config, feeds.clone(), hanging, std::future::pending()));
    let mut stream = stream(&cluster, address, Some("t"), vec![hello("edge", "edge-0")]).await.unwrap();
    for _ in 0..2 {
        assert!(stream.message().await.unwrap().unwrap().kind.is_none());
    }
    feeds.publish(&fleet(), Published { generation: 0, changes: &[], bundle: &skeleton() });
    while stream.message().await.unwrap().unwrap().kind.is_none() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_for_everything_gets_everything_once() {
    let cluster = Cluster::new();
    let replica = Replica::start(&cluster).await;
    let bundle = skeleton();
    replica.leads(1);
    replica.publish(1, &[], &bundle);
    let token = std::fs::read_to_string(cluster.pod("edge-0", "edge")).unwrap();
    let holds = bundle.digest().0.to_le_bytes().to_vec();
    let from_agent::Kind::Hello(known) = hello("edge", "edge-0") else { unreachable!("hello") };
    let known = from_agent::Kind::Hello(proto::Hello { holds: holds.clone(), ..known });
    let resync = from_agent::Kind::Resync(proto::Resync {});
    let mut stream = stream(&cluster, replica.address, Some(&token), vec![known, resync]).await.unwrap();
    let mut delivered = Vec::new();
    let mut beats = 0;
    while beats < 3 {
        match stream.message().await.unwrap().unwrap().kind {
            Some(from_operator::Kind::Bundle(bundle)) => delivered.push((bundle.base, bundle.set.len())),
            Some(from_operator::Kind::Release(_) | from_operator::Kind::Drain(_) | from_operator::Kind::Place(_)) => {}
            None => beats += 1,
        }
    }
    // that it has what there is, if that was said before it asked; and everything
    assert_eq!(delivered.last(), Some(&(Vec::new(), bundle.resources().count())));
    assert!(delivered.len() <= 2 && delivered.iter().all(|(base, set)| *base == holds && *set == 0 || base.is_empty()), "{delivered:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_is_told_its_zone_by_any_replica_and_none_but_its_own() {
    let (_, haproxy) = &haproxies()[0];
    let cluster = Cluster::new();
    let origin = Origin::start("a").await;
    let (leader, standby) = (Replica::start(&cluster).await, Replica::start(&cluster).await);
    leader.leads(3);
    standby.stands_by(3);
    let pod = FleetPod::start(&cluster, haproxy, "edge-0", &[leader.address, standby.address]).await;
    leader.publish(1, &[], &one(&origin));
    pod.until("served", |status| status.ready).await;
    cluster.pod("edge-1", "edge");
    let number = |pod: &str| {
        let uid = cluster.api.get("v1", "Pod", "infra", pod).unwrap()["metadata"]["uid"].as_str().unwrap().to_owned();
        object_number("Pod", "infra", pod, &uid)
    };
    standby.feeds.place(&fleet(), BTreeMap::from([(number("edge-0"), "zone-a".into()), (number("edge-1"), "zone-b".into())]));
    let status = pod.until("in its zone", |status| status.zone.is_some()).await;
    assert_eq!(status.zone.as_deref(), Some("zone-a"));
    // whoever does not know it, or knows it no more, changes nothing
    standby.feeds.place(&fleet(), BTreeMap::new());
    leader.feeds.place(&fleet(), BTreeMap::from([(number("edge-0"), "zone-c".into())]));
    pod.until("moved", |status| status.zone.as_deref() == Some("zone-c")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_is_dead_without_a_sign_is_noticed_and_replaced() {
    let (_, haproxy) = &haproxies()[0];
    let cluster = Cluster::new();
    let (a, b) = (Origin::start("a").await, Origin::start("b").await);
    let replica = Replica::start(&cluster).await;
    let way = Way::to(replica.address).await;
    let mut wanted = Wanted { bundle: one(&a), generation: 1 };
    replica.leads(1);
    replica.publish(1, &[], &wanted.bundle);
    let pod = FleetPod::start(&cluster, haproxy, "edge-0", &[way.address]).await;
    pod.serves(&wanted).await;
    way.silence(true);
    eventually(async || replica.feeds.agents().borrow().is_empty().then_some(())).await;
    assert_eq!(pod.rig.ask("a.example").await, "a");
    way.silence(false);
    let changes = wanted.change(|bundle| servers(bundle, "a", vec![server("a", b.address)]));
    replica.publish(wanted.generation, &changes, &wanted.bundle);
    pod.rig.answers("a.example", "b").await;
    assert_eq!(pod.rig.status().reload_count, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_certificate_is_shown_to_new_connections_and_ends_no_stream() {
    let (_, haproxy) = &haproxies()[0];
    let mut cluster = Cluster::new();
    let a = Origin::start("a").await;
    let replica = Replica::start(&cluster).await;
    let wanted = Wanted { bundle: one(&a), generation: 1 };
    replica.leads(1);
    replica.publish(1, &[], &wanted.bundle);
    let pod = FleetPod::start(&cluster, haproxy, "edge-0", &[replica.address]).await;
    pod.serves(&wanted).await;
    let since = replica.report("edge-0").unwrap().connected_since;
    // another authority altogether: whoever trusts the old one only is turned away from now on
    let old = cluster.ca();
    let names = [SERVER_NAME.to_owned()];
    cluster.material = carry_out(Plan::Create, None, SystemTime::now(), &names).unwrap();
    replica.tls.send_replace(cluster.material.server_config().unwrap());
    let other = FleetPod::start(&cluster, haproxy, "edge-1", &[replica.address]).await;
    tokio::time::timeout(Duration::from_secs(2), replica.hears("edge-1", |_| true)).await.unwrap_err();
    std::fs::write(old, cluster.material.bundle()).unwrap();
    other.serves(&wanted).await;
    assert_eq!(replica.report("edge-0").unwrap().connected_since, since);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_restart_of_all_replicas_all_agents_are_back_and_nothing_is_sent_again() {
    // `AGENTS=100` is what a large fleet has
    let agents: usize = std::env::var("AGENTS").ok().and_then(|text| text.parse().ok()).unwrap_or(20);
    let (_, haproxy) = &haproxies()[0];
    let cluster = Cluster::new();
    let a = Origin::start("a").await;
    let mut wanted = Wanted { bundle: one(&a), generation: 1 };
    for number in 0..200 {
        backend(&mut wanted.bundle, &format!("b{number}"), &[a.address]);
        route(&mut wanted.bundle, &format!("b{number}.example"), &format!("b{number}"));
    }
    let bytes: usize = wanted.bundle.files().map(|file| render_bytes(&wanted.bundle, file).len()).sum();
    let replicas = [Replica::start(&cluster).await, Replica::start(&cluster).await];
    let ways = [Way::to(replicas[0].address).await, Way::to(replicas[1].address).await];
    let addresses = [ways[0].address, ways[1].address];
    let lead = |replicas: &[Replica; 2], term: u64, wanted: &Wanted| {
        replicas[0].leads(term);
        replicas[1].stands_by(term);
        replicas[0].publish(wanted.generation, &[], &wanted.bundle);
        replicas[0].feeds.release(&fleet(), wanted.generation);
        replicas[1].publish(0, &[], &wanted.bundle);
    };
    lead(&replicas, 1, &wanted);
    let mut pods = Vec::new();
    for number in 0..agents {
        pods.push(FleetPod::start(&cluster, haproxy, &format!("edge-{number}"), &addresses).await);
    }
    for pod in &pods {
        pod.serves(&wanted).await;
    }
    let connected = |replicas: &[Replica; 2]| replicas.iter().all(|replica| replica.feeds.agents().borrow().len() == agents);
    eventually(async || connected(&replicas).then_some(())).await;
    let before: u64 = ways.iter().map(Way::received).sum();
    let [first, second] = replicas;
    let again = [first.stop().await, second.stop().await];
    let replicas = [Replica::start_at(&cluster, again[0]).await, Replica::start_at(&cluster, again[1]).await];
    let restarted = tokio::time::Instant::now();
    lead(&replicas, 2, &wanted);
    eventually(async || connected(&replicas).then_some(())).await;
    #[allow(clippy::print_stderr)] // a figure for whoever asks for it
    {
        eprintln!("{agents} agents are back after {:.1} s", restarted.elapsed().as_secs_f64());
    }
    let changes = wanted.change(|bundle| route(bundle, "new.example", "a"));
    for (replica, generation) in replicas.iter().zip([wanted.generation, 0]) {
        replica.publish(generation, &changes, &wanted.bundle);
    }
    for pod in &pods {
        let status = pod.serves(&wanted).await;
        assert_eq!(status.reload_count, 1, "{}", pod.name);
        replicas[0].hears(&pod.name, |state| state.generation == 2).await;
    }
    let sent = ways.iter().map(Way::received).sum::<u64>() - before;
    // two handshakes for each, and one small change
    let streams = agents as u64 * 2;
    assert!(sent * 10 < bytes as u64 * streams, "{sent} bytes for {streams} streams to a bundle of {bytes}");
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_breaks_on_the_way_the_agent_ends_with_what_the_operator_published() {
    let (_, haproxy) = &haproxies()[0];
    let mut random = Random(fixed_seed("DELIVERY_SEED", 20));
    let cluster = Cluster::new();
    let origins = [Origin::start("o0").await, Origin::start("o1").await, Origin::start("o2").await];
    let mut wanted = Wanted { bundle: one(&origins[0]), generation: 1 };
    let mut replicas = vec![Replica::start(&cluster).await, Replica::start(&cluster).await];
    let (mut term, mut leader) = (1, 0);
    let addresses: Vec<SocketAddr> = replicas.iter().map(|replica| replica.address).collect();
    let say = |replicas: &[Replica], leader: usize, term: u64, wanted: &Wanted, changes: &[Change]| {
        for (number, replica) in replicas.iter().enumerate() {
            let leads = number == leader;
            replica.feeds.set_authority(Authority { term, leads });
            replica.publish(if leads { wanted.generation } else { 0 }, changes, &wanted.bundle);
            if leads {
                replica.feeds.release(&fleet(), wanted.generation);
            }
        }
    };
    say(&replicas, leader, term, &wanted, &[]);
    let mut pod = FleetPod::start(&cluster, haproxy, "edge-0", &addresses).await;
    pod.serves(&wanted).await;
    let mut done: BTreeMap<&str, u32> = BTreeMap::new();
    for step in 0..60 {
        let what = match random.below(12) {
            0 => {
                // one that has missed nothing takes over
                (term, leader) = (term + 1, 1 - leader);
                say(&replicas, leader, term, &wanted, &[]);
                "leader"
            }
            1 => {
                let number = random.below(2);
                let address = replicas.remove(number).stop().await;
                replicas.insert(number, Replica::start_at(&cluster, address).await);
                say(&replicas, leader, term, &wanted, &[]);
                "restart"
            }
            2 => {
                pod.follow();
                "agent"
            }
            3 => {
                pod.serves(&wanted).await;
                "wait"
            }
            4 => {
                let changes = wanted.change(|bundle| section(bundle, "20-frontends", &frontends(step)));
                say(&replicas, leader, term, &wanted, &changes);
                "reload"
            }
            _ => {
                let name = format!("b{}", random.below(4));
                let origin = random.below(5);
                let changes = wanted.change(|bundle| match origins.get(origin) {
                    Some(origin) => backend(bundle, &name, &[origin.address]),
                    None => without_backend(bundle, &name),
                });
                say(&replicas, leader, term, &wanted, &changes);
                "change"
            }
        };
        *done.entry(what).or_default() += 1;
    }
    pod.serves(&wanted).await;
    let current = pod.rig.home.join("config/current");
    for file in wanted.bundle.files() {
        let found = std::fs::read(current.join(&**file)).unwrap();
        assert!(found == render_bytes(&wanted.bundle, file), "{file} is not what was published, after {done:?}");
    }
    assert_eq!(pod.rig.agent.check_drift().await, 0);
    let names = |bundle: &Bundle| {
        bundle.resources().filter(|r| matches!(r.content, Content::Backend(_))).map(|r| r.key.clone()).collect::<Vec<_>>()
    };
    assert!(names(&wanted.bundle).contains(&ResourceKey::Backend("a".into())), "{done:?}");
}
