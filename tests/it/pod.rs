//! An agent beside a HAProxy that it did not start, as in a pod: the test plays the kubelet.

use crate::rig::{
    Client, Download, Gate, Origin, Trickle, address, backend, eventually, frontends, pem, private, route, section, server, servers,
    skeleton,
};
use crate::support::haproxies;
use haproxy_fleet::agent::stop::{self, Stopped, Times};
use haproxy_fleet::agent::{Agent, Ending, Pod, Reloads, Settings, Status, Update, UpdateContent};
use haproxy_fleet::haproxy::bundle::{Bundle, Change};
use haproxy_fleet::haproxy::tickets::ticket_keys;
use haproxy_fleet::report::PrivateBytes;
use rustix::process::{Pid, Signal, kill_process_group};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

/// A container of HAProxy: a master with its workers, in a process group of their own.
pub struct Container {
    child: Child,
}

impl Container {
    /// As the kubelet starts it: with what `live` leads to.
    pub fn start(haproxy: &Path, run: &Path) -> Self {
        let mut listen = stop::master_socket(run).into_os_string();
        listen.push(",level,admin");
        let mut command = Command::new(haproxy);
        command.args(["-W", "-db", "-S"]).arg(listen).arg("-f").arg(run.join("config/live"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        Self { child: command.spawn().unwrap() }
    }

    pub fn pid(&self) -> i32 {
        self.child.id().try_into().unwrap()
    }

    /// Everything in it is gone at once.
    pub fn kill(&mut self) {
        // it may have ended by itself
        let _ = kill_process_group(Pid::from_raw(self.pid()).unwrap(), Signal::KILL);
        self.child.wait().unwrap();
    }

    pub async fn ended(&mut self) -> ExitStatus {
        eventually(async || self.child.try_wait().unwrap()).await
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        self.kill();
    }
}

struct Rig {
    haproxy: PathBuf,
    /// What the agent validates with.
    validator: PathBuf,
    run: tempfile::TempDir,
    ip: Ipv4Addr,
    agent: Option<Agent>,
    container: Option<Container>,
    bundle: Bundle,
    generation: u64,
}

impl Rig {
    /// A pod with nothing in it.
    fn new(haproxy: &Path) -> Self {
        let (run, ip) = (tempfile::tempdir().unwrap(), address());
        let (haproxy, validator) = (haproxy.to_owned(), haproxy.to_owned());
        Self { haproxy, validator, run, ip, agent: None, container: None, bundle: Bundle::default(), generation: 0 }
    }

    /// A pod that serves `bundle`.
    async fn serving(haproxy: &Path, bundle: Bundle) -> Self {
        let mut rig = Self::new(haproxy);
        rig.start_agent().await;
        rig.start_haproxy();
        rig.bundle = bundle;
        rig.deliver();
        rig.settled().await;
        rig
    }

    fn at(&self, port: u16) -> SocketAddr {
        SocketAddr::from((self.ip, port))
    }

    async fn start_agent(&mut self) {
        let pod = Pod {
            name: "edge-0".to_owned(),
            binds: BTreeMap::from([("http".to_owned(), vec![self.at(8080)]), ("https".to_owned(), vec![self.at(8443)])]),
            health: self.at(8404),
            threads: Some(2),
            max_connections: 500,
            default_certificate: PrivateBytes::new(pem("default.example").into_bytes()),
            ticket_keys: PrivateBytes::new(ticket_keys(b"test", "pod")),
        };
        let settings = Settings {
            haproxy: self.validator.clone(),
            directory: self.run.path().join("config"),
            sockets: self.run.path().to_owned(),
            attach: Some(stop::master_socket(self.run.path())),
            pod,
            reload_interval: Duration::ZERO,
            drift_interval: Duration::from_secs(3600),
            launcher: None,
        };
        self.agent = Some(Agent::start(settings).await.unwrap());
    }

    fn start_haproxy(&mut self) {
        self.container = None;
        self.container = Some(Container::start(&self.haproxy, self.run.path()));
    }

    fn kill_haproxy(&mut self) {
        self.container.as_mut().unwrap().kill();
    }

    fn agent(&self) -> &Agent {
        self.agent.as_ref().unwrap()
    }

    fn deliver(&mut self) {
        self.generation += 1;
        let content = UpdateContent::Full(Arc::new(self.bundle.clone()));
        self.agent().deliver(Update { generation: self.generation, digest: self.bundle.digest(), content });
    }

    fn send(&mut self, change: impl FnOnce(&mut Bundle)) {
        let before = self.bundle.clone();
        change(&mut self.bundle);
        self.generation += 1;
        let changes: Arc<[Change]> = before.diff(&self.bundle).into();
        let content = UpdateContent::Changes(changes);
        self.agent().deliver(Update { generation: self.generation, digest: self.bundle.digest(), content });
    }

    fn status(&self) -> Status {
        self.agent().status().borrow().clone()
    }

    async fn until(&self, what: &str, condition: impl FnMut(&Status) -> bool) -> Status {
        let mut status = self.agent().status();
        let found = tokio::time::timeout(Duration::from_secs(30), status.wait_for(condition)).await.map(|found| found.unwrap().clone());
        found.unwrap_or_else(|_| panic!("not {what}: {:#?}", self.status()))
    }

    async fn settled(&self) -> Status {
        let generation = self.generation;
        self.until("applied", |status| status.generation == generation && (status.waiting == 0 || !status.refused.is_empty())).await
    }

    async fn up(&self) -> Status {
        self.until("up", |status| status.worker_pid.is_some()).await
    }

    /// What the readiness probe sees.
    async fn health(&self) -> Option<String> {
        let mut client = Client::of(TcpStream::connect(self.at(8404)).await.ok()?);
        client.ask("health").await.ok()
    }

    async fn health_is(&self, expected: &str) {
        // the rig's bundles answer 200 without a body, which `ask` gives back
        let expected = if expected == "200" { "" } else { expected };
        eventually(async || (self.health().await.as_deref() == Some(expected)).then_some(())).await;
    }

    async fn ask(&self, host: &str) -> String {
        let Ok(stream) = TcpStream::connect(self.at(8080)).await else { return "refused".to_owned() };
        Client::of(stream).ask(host).await.unwrap_or_else(|error| format!("lost: {error}"))
    }

    async fn answers(&self, host: &str, answer: &str) {
        eventually(async || (self.ask(host).await == answer).then_some(())).await;
    }
}

/// A bundle with one backend that `a.example` leads to.
fn one(origin: &Origin) -> Bundle {
    let mut bundle = skeleton();
    backend(&mut bundle, "a", &[origin.address]);
    route(&mut bundle, "a.example", "a");
    bundle
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_ready_with_its_first_bundle_and_not_before() {
    for (version, haproxy) in haproxies() {
        let a = Origin::start("a").await;
        let mut rig = Rig::new(haproxy);
        rig.start_agent().await;
        rig.start_haproxy();
        rig.health_is("503").await;
        assert!(!rig.up().await.ready, "{version}");
        assert_eq!(rig.ask("a.example").await, "refused");
        rig.bundle = one(&a);
        rig.deliver();
        assert!(rig.settled().await.ready);
        rig.health_is("200").await;
        assert_eq!(rig.ask("a.example").await, "a");
        assert_eq!(rig.status().reload_count, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn haproxy_comes_back_with_the_last_good_configuration_when_there_is_no_agent() {
    for (version, haproxy) in haproxies() {
        let (a, b) = (Origin::start("a").await, Origin::start("b").await);
        let mut rig = Rig::serving(haproxy, one(&a)).await;
        rig.send(|bundle| servers(bundle, "a", vec![server("a", b.address)]));
        rig.settled().await;
        rig.agent = None;
        rig.kill_haproxy();
        rig.start_haproxy();
        rig.health_is("200").await;
        assert_eq!(rig.ask("a.example").await, "b", "{version}");
        // a new agent has nothing to do
        rig.start_agent().await;
        rig.deliver();
        let status = rig.settled().await;
        assert_eq!((status.reload_count, status.drift_repairs, status.waiting), (0, 0, 0), "{version}");
        assert_eq!(rig.agent().check_drift().await, 0);
        rig.send(|bundle| servers(bundle, "a", vec![server("a", a.address)]));
        assert_eq!(rig.settled().await.reload_count, 0);
        assert_eq!(rig.ask("a.example").await, "a");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_finds_the_haproxy_that_was_started_again_and_brings_what_came_meanwhile() {
    for (version, haproxy) in haproxies() {
        let (a, b) = (Origin::start("a").await, Origin::start("b").await);
        let mut rig = Rig::serving(haproxy, one(&a)).await;
        rig.kill_haproxy();
        rig.until("gone", |status| status.worker_pid.is_none() && !status.ready).await;
        rig.send(|bundle| servers(bundle, "a", vec![server("a", b.address)]));
        rig.start_haproxy();
        let status = rig.settled().await;
        assert_eq!((status.restarts, status.reload_count), (1, 1), "{version}");
        rig.answers("a.example", "b").await;
        // a restart that is faster than the agent looks
        rig.kill_haproxy();
        rig.start_haproxy();
        rig.until("seen", |status| status.restarts == 2 && status.ready).await;
        rig.send(|bundle| servers(bundle, "a", vec![server("a", a.address)]));
        assert_eq!(rig.settled().await.reload_count, 1);
        rig.answers("a.example", "a").await;
        assert_eq!(rig.agent().check_drift().await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_of_ones_own_or_of_somebody_else_is_no_restart() {
    for (version, haproxy) in haproxies() {
        let a = Origin::start("a").await;
        let mut rig = Rig::serving(haproxy, one(&a)).await;
        rig.send(|bundle| section(bundle, "20-frontends", &frontends(1)));
        rig.settled().await;
        let worker = rig.status().worker_pid;
        let pid = Pid::from_raw(rig.container.as_ref().unwrap().pid()).unwrap();
        rustix::process::kill_process(pid, Signal::USR2).unwrap();
        let found = eventually(async || {
            rig.agent().check_drift().await;
            (rig.status().drift_repairs > 0).then(|| rig.status())
        })
        .await;
        rig.send(|bundle| section(bundle, "20-frontends", &frontends(2)));
        let status = rig.settled().await;
        assert_eq!((status.restarts, status.reload_count), (0, 3), "{version}: {found:?}");
        assert_ne!(status.worker_pid, worker);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_start_twice_is_given_up_and_the_next_bundle_heals_it() {
    for (version, haproxy) in haproxies() {
        let a = Origin::start("a").await;
        let mut rig = Rig::serving(haproxy, one(&a)).await;
        rig.kill_haproxy();
        rig.until("gone", |status| status.worker_pid.is_none()).await;
        // somebody takes the address: a validation does not notice
        let taken = TcpListener::bind(rig.at(8080)).unwrap();
        let live = rig.run.path().join("config/live");
        for round in 1..=2 {
            assert_eq!(std::fs::read_link(&live).unwrap(), Path::new("current"), "{version}: {round}");
            rig.start_haproxy();
            assert!(!rig.container.as_mut().unwrap().ended().await.success());
            rig.until("noticed", |status| status.failed_starts == round).await;
        }
        eventually(async || (std::fs::read_link(&live).unwrap() == Path::new("bootstrap")).then_some(())).await;
        rig.start_haproxy();
        rig.health_is("503").await;
        assert!(!rig.up().await.ready);
        drop(taken);
        rig.until("healed", |status| status.ready && status.waiting == 0).await;
        rig.answers("a.example", "a").await;
        assert_eq!(std::fs::read_link(&live).unwrap(), Path::new("current"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_haproxy_refuses_leaves_the_pod_as_it_is() {
    for (version, haproxy) in haproxies() {
        let a = Origin::start("a").await;
        let mut rig = Rig::serving(haproxy, one(&a)).await;
        rig.send(|bundle| private(bundle, "bad", "    no-such-directive\n", &[a.address]));
        let status = rig.until("refused", |status| !status.refused.is_empty()).await;
        assert!(status.refused[0].message.contains("no-such-directive"), "{version}: {:?}", status.refused);
        assert_eq!(rig.ask("a.example").await, "a");
        rig.health_is("200").await;
        // and is not what a restart reads
        rig.kill_haproxy();
        rig.start_haproxy();
        rig.answers("a.example", "a").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_restarted_serves_nothing_until_the_operator_is_there() {
    let (_, haproxy) = &haproxies()[0];
    let a = Origin::start("a").await;
    let mut rig = Rig::serving(haproxy, one(&a)).await;
    rig.agent = None;
    rig.container = None;
    // what lives in memory is gone
    rig.run = tempfile::tempdir().unwrap();
    rig.start_agent().await;
    rig.start_haproxy();
    rig.health_is("503").await;
    rig.deliver();
    rig.settled().await;
    rig.health_is("200").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_last_good_configuration_is_not_started() {
    let (_, haproxy) = &haproxies()[0];
    let a = Origin::start("a").await;
    let mut rig = Rig::serving(haproxy, one(&a)).await;
    rig.agent = None;
    let file = rig.run.path().join("config/current/20-frontends.cfg");
    std::fs::write(file, "frontend other\n").unwrap();
    // while HAProxy runs it serves on, and only what it would start with next is another thing
    rig.start_agent().await;
    assert!(rig.up().await.ready);
    assert_eq!(std::fs::read_link(rig.run.path().join("config/live")).unwrap(), Path::new("bootstrap"));
    assert_eq!(rig.ask("a.example").await, "a");
    rig.kill_haproxy();
    rig.start_haproxy();
    rig.health_is("503").await;
    rig.deliver();
    rig.settled().await;
    rig.answers("a.example", "a").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_waits_until_it_is_allowed_and_what_is_live_does_not() {
    for (version, haproxy) in haproxies() {
        let (a, b) = (Origin::start("a").await, Origin::start("b").await);
        let mut rig = Rig::serving(haproxy, one(&a)).await;
        rig.agent().allow_reloads(Reloads::UpTo(rig.generation));
        rig.send(|bundle| private(bundle, "own", "    balance static-rr\n", &[a.address]));
        let asked_with = rig.generation;
        let status = rig.until("held", |status| status.held == 1).await;
        assert_eq!((status.reload_count, status.generation), (1, asked_with), "{version}");
        // the endpoints of the one that waits, and of the one that serves
        rig.send(|bundle| servers(bundle, "own", vec![server("own", b.address)]));
        rig.send(|bundle| servers(bundle, "a", vec![server("a", b.address)]));
        rig.send(|bundle| route(bundle, "own.example", "own"));
        rig.answers("a.example", "b").await;
        let generation = rig.generation;
        let status = rig.until("applied", |status| status.generation == generation).await;
        assert_eq!((status.reload_count, status.held), (1, 1), "{version}");
        assert_eq!(rig.ask("own.example").await, "404");
        // another one comes, and the first is allowed
        rig.send(|bundle| section(bundle, "20-frontends", &frontends(1)));
        rig.until("held", |status| status.held == 2).await;
        rig.agent().allow_reloads(Reloads::UpTo(asked_with));
        let status = rig.until("reloaded", |status| status.reload_count == 2 && status.held == 1).await;
        assert!(status.reloads[1].reason.contains("backend own"), "{:?}", status.reloads);
        rig.answers("own.example", "b").await;
        rig.agent().allow_reloads(Reloads::All);
        let status = rig.until("all of it", |status| status.waiting == 0).await;
        assert_eq!((status.reload_count, status.held), (3, 0), "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_serves_nothing_yet_waits_for_no_release() {
    let (_, haproxy) = &haproxies()[0];
    let a = Origin::start("a").await;
    let mut rig = Rig::new(haproxy);
    rig.start_agent().await;
    rig.agent().allow_reloads(Reloads::None);
    rig.start_haproxy();
    rig.bundle = one(&a);
    rig.deliver();
    rig.settled().await;
    rig.answers("a.example", "a").await;
}

/// Stops the pod as its preStop does, in a thread.
fn stopping(rig: &Rig, times: Times) -> tokio::task::JoinHandle<Stopped> {
    let (run, pid) = (rig.run.path().to_owned(), rig.container.as_ref().unwrap().pid());
    tokio::task::spawn_blocking(move || stop::stop(&run, pid, times).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_stops_serves_on_and_asks_its_last_clients_to_leave() {
    for (version, haproxy) in haproxies() {
        for with_agent in [true, false] {
            let a = Origin::start("a").await;
            let mut rig = Rig::serving(haproxy, one(&a)).await;
            if !with_agent {
                rig.agent = None;
            }
            let load = fleet_load::Target::new(rig.at(8080), "a.example", "/");
            let config =
                fleet_load::Config { rate: 200.0, protocol: fleet_load::Protocol::Http1Close, ..fleet_load::Config::new(vec![load]) };
            let load = fleet_load::Load::start(config).unwrap();
            let (mut kept, mut idle) = (Client::connect(rig.at(8080)).await, Client::connect(rig.at(8080)).await);
            for client in [&mut kept, &mut idle] {
                assert_eq!((client.ask("a.example").await.unwrap().as_str(), client.closed), ("a", false), "{version}");
            }
            let times = Times { deregistration: Duration::from_secs(6), timeout: Duration::from_secs(20) };
            let stopped = stopping(&rig, times);
            let second = stopping(&rig, times);
            eventually(async || rig.run.path().join("stop-began").exists().then_some(())).await;
            // as soon as the worker was told
            eventually(async || {
                assert_eq!(kept.ask("a.example").await.unwrap(), "a", "{version}");
                kept.closed.then_some(())
            })
            .await;
            eventually(async || (load.answered() > 50).then_some(())).await;
            // load balancers have taken the pod out
            let report = load.stop().await;
            assert_eq!(report.lost, 0, "{version}: {report:?}");
            assert!(report.requests > 0 && !stopped.is_finished(), "{version}: {report:?}");
            eventually(async || (rig.ask("a.example").await == "refused").then_some(())).await;
            assert_eq!(idle.ask("a.example").await.unwrap(), "a", "{version}");
            assert!(idle.closed, "{version}");
            // the kernel gives the master's status to its parent only, without which it is a zombie that can be signalled
            assert!(rig.container.as_mut().unwrap().ended().await.success(), "{version}");
            assert_eq!((stopped.await.unwrap(), second.await.unwrap()), (Stopped::InTime, Stopped::InTime), "{version}");
            let ending = stop::result(rig.run.path()).unwrap();
            assert!(ending.finished > 50 && ending.cut == 0 && !ending.forced, "{version}: {ending:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_of_a_worker_of_before_a_reload_are_asked_to_leave_and_answered_after_the_soft_stop() {
    for (version, haproxy) in haproxies() {
        let a = Origin::start("a").await;
        let mut bundle = one(&a);
        // a worker that ends has no reason of its own to close a connection before that
        let spread = |bundle: &mut Bundle, number| section(bundle, "15-spread", &format!("# {number}\nglobal\n    close-spread-time 1h\n"));
        spread(&mut bundle, 1);
        let mut rig = Rig::serving(haproxy, bundle).await;
        let (mut kept, mut idle) = (Client::connect(rig.at(8080)).await, Client::connect(rig.at(8080)).await);
        assert_eq!((kept.ask("a.example").await.unwrap(), idle.ask("a.example").await.unwrap()), ("a".to_owned(), "a".to_owned()));
        rig.send(|bundle| spread(bundle, 2));
        assert_eq!(rig.settled().await.reload_count, 2, "{version}");
        let stopped = stopping(&rig, Times { deregistration: Duration::from_secs(3), timeout: Duration::from_secs(20) });
        eventually(async || {
            assert_eq!(kept.ask("a.example").await.unwrap(), "a", "{version}");
            kept.closed.then_some(())
        })
        .await;
        assert!(!rig.run.path().join("stopping").exists(), "{version}: in the first phase");
        eventually(async || (rig.ask("a.example").await == "refused").then_some(())).await;
        assert_eq!(idle.ask("a.example").await.unwrap(), "a", "{version}");
        assert!(idle.closed, "{version}");
        rig.container.as_mut().unwrap().ended().await;
        assert_eq!(stopped.await.unwrap(), Stopped::InTime, "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_left_at_the_deadline_is_cut() {
    let (_, haproxy) = &haproxies()[0];
    let a = Origin::start("a").await;
    let mut rig = Rig::serving(haproxy, one(&a)).await;
    let mut kept = Client::connect(rig.at(8080)).await;
    assert_eq!(kept.ask("a.example").await.unwrap(), "a");
    let stopped = stopping(&rig, Times { deregistration: Duration::ZERO, timeout: Duration::from_millis(500) });
    rig.container.as_mut().unwrap().ended().await;
    assert_eq!(stopped.await.unwrap(), Stopped::Cut);
    assert!(kept.ask("a.example").await.is_err());
}

/// The same with a backend whose answers take their time.
fn with_downloads(origin: &Origin, trickle: &Trickle) -> Bundle {
    let mut bundle = one(origin);
    backend(&mut bundle, "t", &[trickle.address]);
    route(&mut bundle, "t.example", "t");
    bundle
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_counted_to_all_workers_and_each_once() {
    for (version, haproxy) in haproxies() {
        let (a, trickle) = (Origin::start("a").await, Trickle::start().await);
        let mut rig = Rig::serving(haproxy, with_downloads(&a, &trickle)).await;
        let connect = async || TcpStream::connect(rig.at(8080)).await.unwrap();
        let (old, mut relayed) = (Download::begin(connect().await, "t.example", 1).await, Client::connect(rig.at(8080)).await);
        assert_eq!(relayed.ask("a.example").await.unwrap(), "a");
        let _health = TcpStream::connect(rig.at(8404)).await.unwrap();
        rig.until("counted", |status| status.connections == 2).await;
        rig.send(|bundle| section(bundle, "20-frontends", &frontends(1)));
        assert_eq!(rig.settled().await.reload_count, 2);
        // the old worker passes this on to the new one, which has a connection more then, but no client
        let relayed = Download::begin(relayed.into_stream(), "t.example", 2).await;
        let new = Download::begin(TcpStream::connect(rig.at(8080)).await.unwrap(), "t.example", 2).await;
        rig.until("counted", |status| status.connections == 3).await;
        trickle.end(1);
        assert!(old.whole().await, "{version}");
        rig.until("counted", |status| status.connections == 2).await;
        trickle.end(2);
        assert!(relayed.whole().await && new.whole().await, "{version}");
        rig.until("counted", |status| status.connections == 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn how_the_connections_of_a_pod_ended_is_counted_at_all_workers() {
    for (version, haproxy) in haproxies() {
        let (a, trickle) = (Origin::start("a").await, Trickle::start().await);
        let mut rig = Rig::serving(haproxy, with_downloads(&a, &trickle)).await;
        let to = rig.at(8080);
        let download = async |number| Download::begin(TcpStream::connect(to).await.unwrap(), "t.example", number).await;
        let old = download(9).await;
        rig.send(|bundle| section(bundle, "20-frontends", &frontends(1)));
        assert_eq!(rig.settled().await.reload_count, 2);
        let (new, first, second) = (download(9).await, download(1).await, download(2).await);
        let stopped = stopping(&rig, Times { deregistration: Duration::from_secs(2), timeout: Duration::from_secs(8) });
        let known = |condition: fn(&Ending) -> bool| {
            let run = rig.run.path().to_owned();
            eventually(async move || stop::result(&run).filter(condition))
        };
        known(|ending| ending.unseen == 4).await;
        assert_eq!(rig.ask("a.example").await, "a", "{version}: it serves on");
        eventually(async || (rig.ask("a.example").await == "refused").then_some(())).await;
        // nothing is taken any more, so whoever looks next sees that it stops
        trickle.end(1);
        assert!(first.whole().await, "{version}");
        let seen = known(|ending| ending.unseen == 3).await;
        trickle.end(2);
        assert!(second.whole().await, "{version}");
        let closed = known(|ending| ending.unseen == 2).await;
        assert_eq!(closed, Ending { closed: seen.closed + 1, unseen: 2, time: closed.time, ..seen }, "{version}");
        assert!(!old.whole().await && !new.whole().await, "{version}: the deadline comes before their end");
        assert_eq!(stopped.await.unwrap(), Stopped::Cut);
        rig.container.as_mut().unwrap().ended().await;
        let ending = stop::result(rig.run.path()).unwrap();
        assert_eq!(ending, Ending { cut: 2, unseen: 0, forced: true, time: ending.time, ..closed }, "{version}");
        assert!(ending.finished >= 1, "{version}: {ending:?}");
        // a container that is started again after all has another end before it
        rig.start_haproxy();
        rig.up().await;
        assert_eq!(stop::result(rig.run.path()), None, "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_is_drained_by_hand_serves_what_it_gets_and_is_so_until_it_is_not() {
    for (version, haproxy) in haproxies() {
        let (a, b) = (Origin::start("a").await, Origin::start("b").await);
        let mut rig = Rig::serving(haproxy, one(&a)).await;
        assert!(!rig.status().drained);
        rig.agent().set_drained(true);
        rig.until("drained", |status| status.drained).await;
        let served = async |rig: &Rig| {
            let mut client = Client::connect(rig.at(8080)).await;
            (rig.health().await.unwrap(), client.ask("a.example").await.unwrap(), client.closed)
        };
        let answer = |health: &str, name: &str, closed| (health.to_owned(), name.to_owned(), closed);
        assert_eq!(served(&rig).await, answer("503", "a", true), "{version}");
        assert_eq!(rig.agent().check_drift().await, 0, "{version}: it is no drift");
        // what is live and what is not goes on
        rig.send(|bundle| servers(bundle, "a", vec![server("a", b.address)]));
        rig.send(|bundle| section(bundle, "20-frontends", &frontends(1)));
        let mut status = rig.agent().status();
        while status.borrow().reload_count < 2 {
            tokio::select! {
                changed = status.changed() => changed.unwrap(),
                health = rig.health() => assert_eq!(health.as_deref(), Some("503"), "{version}: not for a moment"),
            }
        }
        rig.settled().await;
        assert_eq!(served(&rig).await, answer("503", "b", true), "{version}");
        // nor is it undone by the end of HAProxy, of the agent, or of both
        rig.kill_haproxy();
        rig.start_haproxy();
        rig.health_is("503").await;
        rig.agent = None;
        rig.kill_haproxy();
        rig.start_haproxy();
        rig.health_is("503").await;
        rig.start_agent().await;
        rig.deliver();
        rig.settled().await;
        rig.until("drained, as nobody said anything else", |status| status.drained).await;
        assert_eq!(served(&rig).await, answer("503", "b", true), "{version}");
        rig.agent().set_drained(false);
        rig.until("not drained", |status| !status.drained).await;
        rig.health_is("200").await;
        assert_eq!(served(&rig).await, answer("", "b", false), "{version}");
        rig.kill_haproxy();
        rig.start_haproxy();
        rig.answers("a.example", "b").await;
        assert_eq!(served(&rig).await, answer("", "b", false), "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_was_drained_before_it_served_anything_is_never_ready() {
    let (_, haproxy) = &haproxies()[0];
    let a = Origin::start("a").await;
    let mut rig = Rig::new(haproxy);
    rig.start_agent().await;
    rig.agent().set_drained(true);
    rig.start_haproxy();
    rig.until("drained", |status| status.worker_pid.is_some() && status.drained).await;
    rig.bundle = one(&a);
    rig.deliver();
    assert!(rig.settled().await.drained);
    assert_eq!((rig.health().await.unwrap().as_str(), rig.ask("a.example").await.as_str()), ("503", "a"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_stops_gets_endpoints_and_configuration_until_it_stops_softly_and_is_not_reloaded_after_that() {
    for (version, haproxy) in haproxies() {
        let (a, b) = (Origin::start("a").await, Origin::start("b").await);
        let mut rig = Rig::serving(haproxy, one(&a)).await;
        // what keeps the worker there until its keep-alive ends, after the soft stop
        let mut idle = Client::connect(rig.at(8080)).await;
        assert_eq!(idle.ask("a.example").await.unwrap(), "a");
        let stopped = stopping(&rig, Times { deregistration: Duration::from_secs(4), timeout: Duration::from_secs(60) });
        eventually(async || rig.run.path().join("stop-began").exists().then_some(())).await;
        rig.send(|bundle| section(bundle, "20-frontends", &frontends(1)));
        rig.send(|bundle| servers(bundle, "a", vec![server("a", b.address)]));
        assert_eq!(rig.settled().await.reload_count, 2, "{version}");
        rig.answers("a.example", "b").await;
        // the worker that this started is told, too
        eventually(async || {
            let mut client = Client::connect(rig.at(8080)).await;
            assert_eq!(client.ask("a.example").await.unwrap(), "b", "{version}");
            client.closed.then_some(())
        })
        .await;
        assert_eq!(rig.agent().check_drift().await, 0, "{version}: it is no drift");
        eventually(async || rig.run.path().join("stopping").exists().then_some(())).await;
        rig.send(|bundle| section(bundle, "20-frontends", &frontends(2)));
        assert!(rig.container.as_mut().unwrap().is_running());
        rig.container.as_mut().unwrap().ended().await;
        assert_eq!(stopped.await.unwrap(), Stopped::InTime);
        assert_eq!(rig.status().reload_count, 2, "{version}");
        // the container is started again after all: nothing is left of that
        rig.start_haproxy();
        assert_eq!(rig.settled().await.reload_count, 3, "{version}");
        let mut client = Client::connect(rig.at(8080)).await;
        assert_eq!((client.ask("a.example").await.unwrap().as_str(), client.closed), ("b", false), "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_that_is_prepared_when_the_pod_stops_softly_never_comes() {
    for (version, haproxy) in haproxies() {
        let a = Origin::start("a").await;
        let mut rig = Rig::new(haproxy);
        let home = tempfile::tempdir().unwrap();
        let gate;
        (gate, rig.validator) = Gate::of(haproxy, home.path());
        rig.start_agent().await;
        rig.start_haproxy();
        rig.bundle = one(&a);
        rig.deliver();
        rig.settled().await;
        // what keeps the worker there
        let mut idle = Client::connect(rig.at(8080)).await;
        assert_eq!(idle.ask("a.example").await.unwrap(), "a");
        gate.close();
        rig.send(|bundle| section(bundle, "20-frontends", &frontends(1)));
        gate.waited_at().await;
        let stopped = stopping(&rig, Times { deregistration: Duration::ZERO, timeout: Duration::from_secs(30) });
        let began = std::time::Instant::now();
        eventually(async || (rig.ask("a.example").await == "refused").then_some(())).await;
        assert!(began.elapsed() < Duration::from_secs(9), "{version}: nothing waits for what is only prepared");
        gate.open();
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            assert_eq!(rig.ask("a.example").await, "refused", "{version}");
        }
        assert_eq!(rig.status().reload_count, 1, "{version}");
        assert_eq!(idle.ask("a.example").await.unwrap(), "a", "{version}");
        rig.container.as_mut().unwrap().ended().await;
        assert_eq!(stopped.await.unwrap(), Stopped::InTime, "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_without_connections_ends_at_once_however_often_endpoints_change() {
    for (version, haproxy) in haproxies() {
        let (a, b) = (Origin::start("a").await, Origin::start("b").await);
        let mut rig = Rig::serving(haproxy, one(&a)).await;
        let stopped = stopping(&rig, Times { deregistration: Duration::from_secs(1), timeout: Duration::from_secs(60) });
        let mut softly = None;
        for origin in [&b, &a].into_iter().cycle() {
            if !rig.container.as_mut().unwrap().is_running() {
                break;
            }
            if rig.run.path().join("stopping").exists() {
                let since: std::time::Instant = *softly.get_or_insert_with(std::time::Instant::now);
                assert!(since.elapsed() < Duration::from_secs(6), "{version}: the agent keeps it there");
            }
            rig.send(|bundle| servers(bundle, "a", vec![server("a", origin.address)]));
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert_eq!(stopped.await.unwrap(), Stopped::InTime, "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_that_never_served_anything_ends_at_once() {
    for (version, haproxy) in haproxies() {
        let mut rig = Rig::new(haproxy);
        rig.start_agent().await;
        rig.start_haproxy();
        rig.health_is("503").await;
        let minute = Duration::from_secs(60);
        let stopped = stopping(&rig, Times { deregistration: minute, timeout: minute });
        assert!(rig.container.as_mut().unwrap().ended().await.success(), "{version}");
        assert_eq!(stopped.await.unwrap(), Stopped::InTime, "{version}");
    }
}
