//! `haproxy-fleet agent` as the containers of a pod run it.

use crate::delivery::{Cluster, Replica};
use crate::pod::Container;
use crate::rig::{
    Client, Download, Origin, Trickle, address, backend, eventually, frontends, pem, route, section, server, servers, skeleton,
};
use crate::support::haproxies;
use haproxy_fleet::haproxy::bundle::{Bundle, Change};
use haproxy_fleet::haproxy::tickets::ticket_keys;
use rustix::process::{Pid, Signal, kill_process};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use tokio::net::TcpStream;

const BINARY: &str = env!("CARGO_BIN_EXE_haproxy-fleet");

/// The container of the agent.
struct AgentContainer {
    child: Child,
}

impl Drop for AgentContainer {
    fn drop(&mut self) {
        // a container that is killed loses all of its processes
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl AgentContainer {
    /// The process that really is the agent.
    async fn agent(&self) -> Pid {
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        eventually(async || {
            let found = std::fs::read_to_string(&children).ok()?;
            found.split_whitespace().next().and_then(|pid| Pid::from_raw(pid.parse().ok()?))
        })
        .await
    }

    async fn another_agent(&self, before: Pid) -> Pid {
        eventually(async || Some(self.agent().await).filter(|pid| *pid != before)).await
    }
}

struct PodOfFleet {
    run: tempfile::TempDir,
    ip: Ipv4Addr,
    cluster: Cluster,
    replica: Replica,
    bundle: Bundle,
    generation: u64,
}

impl PodOfFleet {
    async fn new(bundle: Bundle) -> Self {
        let cluster = Cluster::new();
        let replica = Replica::start(&cluster).await;
        cluster.pod("edge-0", "edge");
        std::fs::write(cluster.mounts.path().join("tickets"), ticket_keys(b"test", "pod")).unwrap();
        std::fs::write(cluster.mounts.path().join("default.pem"), pem("default.example")).unwrap();
        replica.leads(1);
        let mut pod = Self { run: tempfile::tempdir().unwrap(), ip: address(), cluster, replica, bundle, generation: 0 };
        pod.publish(&[]);
        pod
    }

    fn publish(&mut self, changes: &[Change]) {
        self.generation += 1;
        self.replica.publish(self.generation, changes, &self.bundle);
        let fleet = haproxy_fleet::model::FleetId { namespace: "infra".into(), name: "edge".into() };
        self.replica.feeds.release(&fleet, self.generation);
    }

    async fn change(&mut self, change: impl FnOnce(&mut Bundle)) {
        let before = self.bundle.clone();
        change(&mut self.bundle);
        let changes = before.diff(&self.bundle);
        self.publish(&changes);
        self.applied().await;
    }

    async fn applied(&self) {
        let digest = self.bundle.digest();
        self.replica.hears("edge-0", |state| state.digest == digest && state.waiting == 0 && state.ready).await;
    }

    fn agent(&self, haproxy: &Path) -> AgentContainer {
        let mounts = self.cluster.mounts.path();
        let mut command = Command::new(BINARY);
        command
            .args(["agent", "--fleet", "infra/edge", "--server-name", "operator.test", "--operator"])
            .arg(self.replica.address.to_string());
        command.arg("--directory").arg(self.run.path()).arg("--haproxy").arg(haproxy).arg("--keys").arg(mounts);
        command.arg("--token").arg(mounts.join("token-edge-0")).arg("--ca").arg(self.cluster.ca());
        command.args(["--address", &self.ip.to_string(), "--threads", "2", "--max-connections", "500", "--reload-interval", "0s"]);
        command.args(["--deregistration-delay", "1s", "--timeout", "10s"]);
        command.env("POD_NAME", "edge-0").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        AgentContainer { child: command.spawn().unwrap() }
    }

    async fn started(&self) {
        let run = self.run.path().to_owned();
        eventually(async || {
            let status = Command::new(BINARY).args(["agent", "started", "--directory"]).arg(&run).status().unwrap();
            status.success().then_some(())
        })
        .await;
    }

    fn stop(&self, pid: i32, times: &[&str]) -> tokio::task::JoinHandle<Output> {
        let mut command = Command::new(BINARY);
        command.args(["agent", "stop", "--directory"]).arg(self.run.path()).args(["--pid", &pid.to_string()]).args(times);
        tokio::task::spawn_blocking(move || command.output().unwrap())
    }

    async fn ask(&self, host: &str) -> String {
        let Ok(stream) = TcpStream::connect(SocketAddr::from((self.ip, 8080))).await else { return "refused".to_owned() };
        Client::of(stream).ask(host).await.unwrap_or_else(|error| format!("lost: {error}"))
    }

    fn reloads(&self) -> u64 {
        self.replica.report("edge-0").and_then(|report| Some(report.state.as_ref()?.reload_count)).unwrap_or_default()
    }
}

fn one(origin: &Origin) -> Bundle {
    let mut bundle = skeleton();
    backend(&mut bundle, "a", &[origin.address]);
    route(&mut bundle, "a.example", "a");
    bundle
}

#[tokio::test(flavor = "multi_thread")]
async fn whatever_ends_the_agent_it_comes_back_and_haproxy_does_not_notice() {
    let (_, haproxy) = &haproxies()[0];
    let (a, b) = (Origin::start("a").await, Origin::start("b").await);
    let mut pod = PodOfFleet::new(one(&a)).await;
    let mut container = pod.agent(haproxy);
    pod.started().await;
    let mut proxy = Container::start(haproxy, pod.run.path());
    pod.applied().await;
    assert_eq!((pod.ask("a.example").await.as_str(), pod.reloads()), ("a", 1));
    let mut agent = container.agent().await;
    // as a panic ends it, and as the kernel does that is out of memory
    for (signal, origin) in [(Signal::ABORT, &b), (Signal::KILL, &a)] {
        kill_process(agent, signal).unwrap();
        agent = container.another_agent(agent).await;
        pod.change(|bundle| servers(bundle, "a", vec![server("a", origin.address)])).await;
        assert_eq!(pod.reloads(), 0);
    }
    assert_eq!(pod.ask("a.example").await, "a");
    pod.change(|bundle| section(bundle, "20-frontends", &frontends(1))).await;
    assert_eq!(pod.reloads(), 1);
    // the parent passes on that it is to end
    kill_process(Pid::from_child(&container.child), Signal::TERM).unwrap();
    let status = eventually(async || container.child.try_wait().unwrap()).await;
    assert!(status.success(), "{status}");
    assert!(!Path::new(&format!("/proc/{}", agent.as_raw_nonzero())).exists());
    assert!(proxy.is_running());
    assert_eq!(pod.ask("a.example").await, "a");
    assert_eq!(pod.replica.feeds.ended().borrow().count(), 0, "no pod has ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_operator_is_told_how_the_connections_of_a_pod_ended() {
    let (_, haproxy) = &haproxies()[0];
    let trickle = Trickle::start().await;
    let mut bundle = skeleton();
    backend(&mut bundle, "t", &[trickle.address]);
    route(&mut bundle, "t.example", "t");
    let pod = PodOfFleet::new(bundle).await;
    let mut container = pod.agent(haproxy);
    pod.started().await;
    let mut proxy = Container::start(haproxy, pod.run.path());
    pod.applied().await;
    let stream = TcpStream::connect(SocketAddr::from((pod.ip, 8080))).await.unwrap();
    let download = Download::begin(stream, "t.example", 1).await;
    pod.replica.hears("edge-0", |state| state.connections == 1).await;
    let stopping = pod.stop(proxy.pid(), &["--deregistration-delay", "0s", "--timeout", "1s"]);
    proxy.ended().await;
    assert!(!download.whole().await);
    assert_eq!(String::from_utf8_lossy(&stopping.await.unwrap().stdout), "stopped: the deadline cut what was left\n");
    // the kubelet ends a sidecar after the containers of the pod
    assert_eq!(pod.replica.feeds.ended().borrow().count(), 0);
    kill_process(Pid::from_child(&container.child), Signal::TERM).unwrap();
    let status = eventually(async || container.child.try_wait().unwrap()).await;
    assert!(status.success(), "{status}");
    let endings = pod.replica.feeds.ended().borrow().clone();
    let told: Vec<_> = endings.after(0).map(|result| (result.fleet.to_string(), result.pod.clone(), result.ending)).collect();
    let [(fleet, name, ending)] = told.try_into().unwrap();
    assert_eq!((fleet.as_str(), name.as_str()), ("infra/edge", "edge-0"));
    assert_eq!((ending.finished, ending.closed, ending.cut, ending.unseen, ending.forced), (0, 0, 1, 0, true));
}

#[tokio::test(flavor = "multi_thread")]
async fn every_signal_that_a_container_is_stopped_by_ends_the_agent() {
    let (_, haproxy) = &haproxies()[0];
    let a = Origin::start("a").await;
    let pod = PodOfFleet::new(one(&a)).await;
    // the agent's container is of HAProxy's image, which names SIGUSR1
    for signal in [Signal::USR1, Signal::TERM, Signal::INT] {
        let mut container = pod.agent(haproxy);
        let agent = container.agent().await;
        kill_process(Pid::from_child(&container.child), signal).unwrap();
        let status = eventually(async || container.child.try_wait().unwrap()).await;
        assert!(status.success(), "{signal:?}: {status}");
        assert!(!Path::new(&format!("/proc/{}", agent.as_raw_nonzero())).exists(), "{signal:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_is_stopped_as_the_agent_was_told_even_if_it_is_dead() {
    let (_, haproxy) = &haproxies()[0];
    let a = Origin::start("a").await;
    let pod = PodOfFleet::new(one(&a)).await;
    let container = pod.agent(haproxy);
    pod.started().await;
    let mut proxy = Container::start(haproxy, pod.run.path());
    pod.applied().await;
    drop(container);
    let stopping = pod.stop(proxy.pid(), &[]);
    eventually(async || pod.run.path().join("stop-began").exists().then_some(())).await;
    assert_eq!(pod.ask("a.example").await, "a");
    assert!(proxy.ended().await.success());
    let output = stopping.await.unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "stopped: every connection ended by itself\n");
    assert_eq!(output.status.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_is_sent_before_the_container_ends_even_if_no_agent_runs_at_that_moment() {
    let (_, haproxy) = &haproxies()[0];
    let a = Origin::start("a").await;
    let pod = PodOfFleet::new(one(&a)).await;
    let mut container = pod.agent(haproxy);
    pod.started().await;
    let agent = container.agent().await;
    // as a stop of the pod leaves it: a socket of its port that is closed and has bytes left
    std::fs::write(pod.run.path().join("stop-began"), "").unwrap();
    let listener = std::net::TcpListener::bind((pod.ip, 8080)).unwrap();
    let mut client = std::net::TcpStream::connect((pod.ip, 8080)).unwrap();
    let (mut server, _) = listener.accept().unwrap();
    server.set_nonblocking(true).unwrap();
    while std::io::Write::write(&mut server, &[0; 4096]).is_ok() {}
    drop((server, listener));
    // nor can one be started
    let file = pod.cluster.ca();
    std::fs::rename(&file, file.with_extension("away")).unwrap();
    kill_process(agent, Signal::KILL).unwrap();
    let children = format!("/proc/{0}/task/{0}/children", container.child.id());
    eventually(async || std::fs::read_to_string(&children).unwrap().trim().is_empty().then_some(())).await;
    kill_process(Pid::from_child(&container.child), Signal::TERM).unwrap();
    tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    assert!(container.child.try_wait().unwrap().is_none(), "the end of the download would be lost");
    std::io::Read::read_to_end(&mut client, &mut Vec::new()).unwrap();
    let status = eventually(async || container.child.try_wait().unwrap()).await;
    assert!(status.success(), "{status}");
}

#[test]
fn what_is_not_haproxy_is_not_stopped_and_what_is_missing_is_named() {
    let run = tempfile::tempdir().unwrap();
    let output = |arguments: &[&str]| Command::new(BINARY).arg("agent").args(arguments).env_remove("POD_NAME").output().unwrap();
    let directory = run.path().to_str().unwrap();
    let stop = output(&["stop", "--directory", directory, "--pid", &std::process::id().to_string()]);
    assert_eq!(stop.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&stop.stderr).contains("not haproxy"));
    assert_eq!(output(&["started", "--directory", directory]).status.code(), Some(1));
    assert_eq!(output(&[]).status.code(), Some(2));
    assert_eq!(output(&["--fleet", "edge", "--operator", "x:1"]).status.code(), Some(2));
}

#[test]
fn the_program_is_installed_whole_and_executable() {
    let target = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let status = Command::new(BINARY).args(["agent", "install"]).arg(target.path()).status().unwrap();
        assert!(status.success());
    }
    let installed = target.path().join("haproxy-fleet");
    assert_eq!(std::fs::metadata(&installed).unwrap().permissions().mode() & 0o777, 0o755);
    assert_eq!(target.path().read_dir().unwrap().count(), 1);
    assert!(Command::new(installed).arg("version").output().unwrap().status.success());
}
