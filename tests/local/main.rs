//! `haproxy-fleet local` as its user meets it: real processes, files that are edited, requests that go on meanwhile.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "../it/support.rs"]
mod support;

use fleet_load::{Config, Handle, Load, Protocol, Target};
use haproxy_fleet::local::echo::Echo;
use haproxy_fleet::status::json::{Fleet, Rollout, RolloutZone, Status};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use support::haproxies;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(45);

/// Clients use no connection that was idle for longer: less than fleets keep one.
const IDLE: Duration = Duration::from_secs(1);

/// The directories of a `local`: what it reads and what it keeps.
struct Home {
    directory: tempfile::TempDir,
}

impl Home {
    fn new() -> Self {
        let home = Self { directory: tempfile::tempdir().unwrap() };
        std::fs::create_dir(home.manifests()).unwrap();
        home
    }

    fn manifests(&self) -> PathBuf {
        self.directory.path().join("manifests")
    }

    fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    /// Writes a file as editors do: beside it, then renamed.
    fn write(&self, name: &str, text: &str) {
        let new = self.directory.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.manifests().join(name)).unwrap();
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.manifests().join(name)).unwrap();
    }

    /// Every HAProxy that was started with this state.
    fn survivors(&self) -> BTreeSet<i32> {
        let needle = self.state().into_os_string().into_encoded_bytes();
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
        let ours = |pid: &i32| {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            command.windows(needle.len()).any(|window| window == needle) && !command.windows(10).any(|window| window == b"--state-di")
        };
        pids.filter(ours).collect()
    }

    async fn nobody_survives(&self) {
        until("no HAProxy is left", async || self.survivors().is_empty().then_some(())).await;
    }
}

/// A running `local`.
struct Local {
    child: Child,
    admin: SocketAddr,
    /// What it has said so far.
    said: std::sync::Arc<std::sync::Mutex<String>>,
}

impl Local {
    async fn start(home: &Home, haproxies: &[&Path], more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_haproxy-fleet"));
        command.arg("local").arg("-f").arg(home.manifests()).arg("--state-dir").arg(home.state());
        for haproxy in haproxies {
            command.arg("--haproxy").arg(haproxy);
        }
        command.args(["--admin", "127.0.0.1:0", "--output", "plain"]).args(more);
        // a group of its own, as a shell makes one
        command.stdout(Stdio::piped()).stderr(Stdio::inherit()).stdin(Stdio::null()).process_group(0).kill_on_drop(true);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let said = std::sync::Arc::<std::sync::Mutex<String>>::default();
        let (sender, admin) = tokio::sync::oneshot::channel();
        let saying = said.clone();
        tokio::spawn(async move {
            let mut sender = Some(sender);
            while let Ok(Some(line)) = lines.next_line().await {
                let address = line.strip_prefix("admin: http://").and_then(|rest| rest.split('/').next()?.parse().ok());
                if let (Some(address), true) = (address, sender.is_some()) {
                    sender.take().map(|sender| sender.send(address));
                }
                writeln!(saying.lock().unwrap(), "{line}").unwrap();
            }
        });
        let admin = tokio::time::timeout(PATIENCE, admin).await.expect("it tells where its admin server is").expect("it goes on");
        Self { child, admin, said }
    }

    /// Started and ready.
    async fn ready(home: &Home, haproxies: &[&Path], more: &[&str]) -> Self {
        let local = Self::start(home, haproxies, more).await;
        local.until("ready", |status| status.ready).await;
        assert!(get(local.admin, "admin", "/readyz").await.unwrap().starts_with("HTTP/1.1 200"));
        local
    }

    async fn status(&self) -> Option<Status> {
        let answer = get(self.admin, "admin", "/status").await?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// Waits until the status is as it should be.
    async fn until(&self, what: &str, condition: impl Fn(&Status) -> bool) -> Status {
        let last = std::cell::RefCell::new(None);
        let tries = async {
            loop {
                let status = self.status().await;
                if let Some(status) = status.clone().filter(&condition) {
                    return status;
                }
                *last.borrow_mut() = status;
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let found = tokio::time::timeout(PATIENCE, tries).await;
        found.unwrap_or_else(|_| panic!("never: {what}: {:#?}\n{}", last.borrow(), self.said.lock().unwrap()))
    }

    /// Waits until every replica of every fleet serves what is wanted, and a generation beyond `generation`.
    async fn beyond(&self, generation: u64) -> Status {
        self.until("the change is served", |status| status.ready && status.fleets[0].generation > generation).await
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().unwrap().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// As a terminal does it: to everything in the group.
    fn interrupt(&self) {
        let pid = Pid::from_raw(self.child.id().unwrap().cast_signed()).unwrap();
        rustix::process::kill_process_group(pid, Signal::INT).unwrap();
    }

    async fn ended(&mut self) -> ExitStatus {
        tokio::time::timeout(PATIENCE, self.child.wait()).await.expect("it ends").unwrap()
    }
}

async fn until<T>(what: &str, mut attempt: impl AsyncFnMut() -> Option<T>) -> T {
    let tries = async {
        loop {
            if let Some(found) = attempt().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, tries).await.unwrap_or_else(|_| panic!("never: {what}"))
}

/// The whole answer.
async fn get(address: SocketAddr, host: &str, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.ok()?;
    String::from_utf8(answer).ok()
}

fn address_of(fleet: &Fleet, listener: &str) -> SocketAddr {
    fleet.listeners.iter().find(|found| found.name == listener).unwrap().address.parse().unwrap()
}

fn reloads(status: &Status) -> Vec<u64> {
    status.fleets[0].replicas.iter().map(|replica| replica.reload_count).collect()
}

/// An `IngressDeployment` of the class of its name, with more lines of spec.
fn fleet(name: &str, replicas: u32, more: &str) -> String {
    let [http, https] = [0, 1].map(|_| std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port());
    format!(
        "apiVersion: haproxy-fleet.dev/v1alpha1\nkind: IngressDeployment\nmetadata: {{name: {name}, namespace: infra}}\n\
         spec:\n  ingressClassName: {name}\n  replicas: {replicas}\n  ports: {{http: {http}, https: {https}}}\n  \
         rollout: {{minReadySeconds: 0, progressDeadlineSeconds: 5}}\n{more}---\n"
    )
}

fn ingress(class: &str, name: &str, host: &str, path: &str, service: &str, annotations: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata:\n  name: {name}\n  namespace: shop\n  annotations: {{{annotations}}}\n\
         spec:\n  ingressClassName: {class}\n  rules:\n    - host: {host}\n      http:\n        paths:\n          - path: {path}\n            \
         pathType: Prefix\n            backend: {{service: {{name: {service}, port: {{number: 80}}}}}}\n---\n"
    )
}

fn service(name: &str) -> String {
    format!("apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n  ports: [{{name: http, port: 80}}]\n---\n")
}

fn slice(service: &str, echo: &Echo) -> String {
    let mut text = String::new();
    for (index, address) in echo.addresses().iter().enumerate() {
        let (ip, port) = (address.ip(), address.port());
        write!(
            text,
            "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: {service}-{index}\n  namespace: shop\n  \
             labels: {{kubernetes.io/service-name: {service}}}\naddressType: IPv4\nports: [{{name: http, port: {port}}}]\n\
             endpoints: [{{addresses: [{ip}]}}]\n---\n"
        )
        .unwrap();
    }
    text
}

/// Keep-alive requests and new connections through the stable address, until stopped.
struct Requests(Vec<Handle>);

impl Requests {
    fn start(target: &Target) -> Self {
        Self::at(60.0, target)
    }

    /// So many of each kind in a second.
    fn at(rate: f64, target: &Target) -> Self {
        let start =
            |protocol| Load::start(Config { protocol, rate, idle: IDLE, requests: None, ..Config::new(vec![target.clone()]) }).unwrap();
        Self([Protocol::Http1KeepAlive, Protocol::Http1Close].map(start).into())
    }

    async fn none_is_lost(self, when: &str) {
        for load in self.0 {
            let report = load.stop().await;
            assert_eq!((report.lost, report.requests > 0), (0, true), "{when}: {report:?}");
        }
    }
}

fn both() -> [&'static Path; 2] {
    [&haproxies()[0].1, &haproxies()[1].1]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_edited_is_served_without_a_lost_request_and_what_cannot_be_read_changes_nothing() {
    for (line, haproxy) in ["3.4", "3.2"].into_iter().zip(both()) {
        let home = Home::new();
        let edge = fleet("edge", 2, &format!("  haproxyVersion: \"{line}\"\n"));
        home.write("fleet.yaml", &edge);
        home.write("web.yaml", &format!("{}{}", ingress("edge", "web", "web.localhost", "/", "web", ""), service("web")));
        let valued =
            |value: &str| ingress("edge", "value", "value.localhost", "/", "web", &format!("haproxy-fleet.dev/timeout-server: {value}"));
        home.write("value.yaml", &valued("5s"));
        let local = Local::ready(&home, &[haproxy], &["--echo"]).await;
        let status = local.status().await.unwrap();
        let edge_fleet = &status.fleets[0];
        let http = address_of(edge_fleet, "http");

        // every address answers, stable or of a replica
        let of_replicas = edge_fleet.replicas.iter().flat_map(|replica| &replica.listeners);
        for listener in edge_fleet.listeners.iter().chain(of_replicas) {
            let mut config = Config {
                requests: Some(1),
                ..Config::new(vec![Target::new(listener.address.parse().unwrap(), "web.localhost", "/").answered_by("shop/web")])
            };
            config.tls = (listener.name == "https").then_some(fleet_load::Tls { trust: fleet_load::Trust::Anything, server_name: None });
            let report = Load::start(config).unwrap().wait().await;
            assert_eq!((report.requests, report.lost), (1, 0), "{listener:?}: {report:?}");
        }
        assert!(edge_fleet.urls.contains(&format!("http://web.localhost:{}/", http.port())), "{:?}", edge_fleet.urls);
        assert!(local.said.lock().unwrap().contains(&format!("curl http://web.localhost:{}/", http.port())));

        let started = reloads(&status);
        let load = Requests::start(&Target::new(http, "web.localhost", "/").answered_by("shop/web"));
        // real endpoints take over from the echo servers, and change by every way of writing
        let real = Echo::start("shop", "web", "http", 2).await.unwrap();
        home.write("slices.yaml", &slice("web", &real));
        let mut now = local.beyond(status.fleets[0].generation).await;
        let other = Echo::start("shop", "web", "http", 1).await.unwrap();
        std::fs::write(home.manifests().join("slices.yaml"), slice("web", &other)).unwrap();
        now = local.beyond(now.fleets[0].generation).await;
        home.remove("slices.yaml");
        now = local.beyond(now.fleets[0].generation).await;
        // a directory as the kubelet mounts a ConfigMap
        let mount = home.manifests().join("mount");
        for (number, host) in ["one.localhost", "two.localhost"].into_iter().enumerate() {
            let version = mount.join(format!("..v{number}"));
            std::fs::create_dir_all(&version).unwrap();
            std::fs::write(version.join("route.yaml"), ingress("edge", "mounted", host, "/", "web", "")).unwrap();
            std::os::unix::fs::symlink(format!("..v{number}"), mount.join("..new")).unwrap();
            std::fs::rename(mount.join("..new"), mount.join("..data")).unwrap();
            if number == 0 {
                std::os::unix::fs::symlink("..data/route.yaml", mount.join("route.yaml")).unwrap();
            }
            until(host, async || get(http, host, "/").await?.starts_with("HTTP/1.1 200").then_some(())).await;
        }
        until("the first is gone", async || get(http, "one.localhost", "/").await?.starts_with("HTTP/1.1 404").then_some(())).await;
        // policy values
        let before = local.until("settled", |status| status.ready).await.fleets[0].generation;
        home.write("value.yaml", &valued("7s"));
        local.beyond(before).await;
        // broken: the last good state stays, the fleet as well
        let before = local.until("settled", |status| status.ready).await;
        home.write("web.yaml", "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: web, namespace: [");
        home.write("fleet.yaml", &edge.replace("replicas: 2", "replicas: many"));
        let broken = local.until("both are told", |s| s.diagnostics.iter().filter(|d| d.severity == "error").count() >= 2).await;
        assert_eq!((broken.ready, broken.fleets[0].replicas.len()), (true, 2), "{broken:#?}");
        assert_eq!(broken.fleets[0].generation, before.fleets[0].generation);
        home.write("fleet.yaml", &edge);
        home.write("web.yaml", &format!("{}{}", ingress("edge", "web", "web.localhost", "/", "web", ""), service("web")));
        let healed = local.until("both are solved", |s| s.ready && s.diagnostics.iter().all(|d| d.severity != "error")).await;
        if line == "3.4" {
            assert_eq!(reloads(&healed), started, "{healed:#?}");
        }
        // a shape that is new: one reload for several files, with its reason
        let before = reloads(&local.until("no reload is due", |status| status.ready).await);
        for name in ["x", "y", "z"] {
            let annotations = "haproxy-fleet.dev/request-header.X-New: a";
            home.write(&format!("{name}.yaml"), &ingress("edge", name, &format!("{name}.localhost"), "/", "web", annotations));
        }
        until("the new shape", async || get(http, "z.localhost", "/").await?.starts_with("HTTP/1.1 200").then_some(())).await;
        let after = local.until("all serve", |s| s.ready && reloads(s).iter().zip(&before).all(|(now, before)| now > before)).await;
        for (replica, before) in after.fleets[0].replicas.iter().zip(&before) {
            assert_eq!(replica.reload_count, before + 1, "{replica:#?}");
            assert!(!replica.reloads.last().unwrap().reason.is_empty());
        }
        drop(now);
        load.none_is_lost(line).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_is_killed_the_last_good_state_serves_again_and_nothing_is_left_behind() {
    for haproxy in both() {
        let home = Home::new();
        home.write("fleet.yaml", &fleet("edge", 1, ""));
        let echo = Echo::start("shop", "web", "http", 1).await.unwrap();
        let web = [ingress("edge", "web", "web.localhost", "/", "web", ""), service("web"), slice("web", &echo)].concat();
        home.write("web.yaml", &web);
        let mut local = Local::ready(&home, &[haproxy], &[]).await;
        let status = local.status().await.unwrap();
        let http = address_of(&status.fleets[0], "http");
        let serves = async |what: &str| {
            until(what, async || get(http, "web.localhost", "/").await?.contains("x-service: shop/web").then_some(())).await;
        };
        // a worker (children of masters), then masters
        for masters in [false, true] {
            let all = home.survivors();
            let parent = |pid: &i32| {
                let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
                stat.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(1)?.parse::<i32>().ok())
            };
            let killed: Vec<i32> = all.iter().copied().filter(|pid| parent(pid).is_some_and(|p| all.contains(&p)) != masters).collect();
            assert!(!killed.is_empty(), "{all:?}");
            for pid in &killed {
                kill_process(Pid::from_raw(*pid).unwrap(), Signal::KILL).unwrap();
            }
            until("others run", async || {
                let now = home.survivors();
                (killed.iter().all(|pid| !now.contains(pid)) && now.len() >= all.len()).then_some(())
            })
            .await;
            serves("after a HAProxy was killed").await;
            local.until("ready again", |status| status.ready).await;
        }
        local.signal(Signal::KILL);
        local.ended().await;
        home.nobody_survives().await;
        // now nothing can be read: what served last serves
        home.write("fleet.yaml", "kind: [");
        home.write("web.yaml", "kind: [");
        let mut local = Local::ready(&home, &[haproxy], &[]).await;
        serves("the last good state").await;
        let restored = local.status().await.unwrap();
        assert_eq!(restored.fleets[0].listeners, status.fleets[0].listeners);
        assert_eq!(restored.fleets[0].replicas[0].listeners, status.fleets[0].replicas[0].listeners);
        local.interrupt();
        assert_eq!(local.ended().await.code(), Some(0));
        home.nobody_survives().await;
    }
}

/// A server that answers its only request when told to.
async fn slow() -> (SocketAddr, tokio::sync::oneshot::Sender<()>, tokio::sync::oneshot::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (answer, may_answer) = tokio::sync::oneshot::channel::<()>();
    let (asked, was_asked) = tokio::sync::oneshot::channel();
    tokio::spawn(async move {
        let (mut asked, mut may_answer) = (Some(asked), Some(may_answer));
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = vec![0; 4096];
            // checks connect and say nothing
            let Ok(read @ 1..) = stream.read(&mut request).await else { continue };
            assert!(request[..read].starts_with(b"GET"));
            let (Some(asked), Some(may_answer)) = (asked.take(), may_answer.take()) else { continue };
            asked.send(()).unwrap();
            tokio::spawn(async move {
                let _ = may_answer.await;
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nslow").await.unwrap();
            });
        }
    });
    (address, answer, was_asked)
}

fn slow_slice(address: SocketAddr) -> String {
    let (ip, port) = (address.ip(), address.port());
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: web\n  namespace: shop\n  \
         labels: {{kubernetes.io/service-name: web}}\naddressType: IPv4\nports: [{{name: http, port: {port}}}]\n\
         endpoints: [{{addresses: [{ip}]}}]\n---\n"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interrupt_lets_a_request_finish_and_a_second_one_does_not() {
    for twice in [false, true] {
        let home = Home::new();
        let (address, answer, asked) = slow().await;
        let web = [fleet("edge", 1, ""), ingress("edge", "web", "web.localhost", "/", "web", ""), service("web"), slow_slice(address)];
        home.write("all.yaml", &web.concat());
        let mut local = Local::ready(&home, &[both()[0]], &[]).await;
        let http = address_of(&local.status().await.unwrap().fleets[0], "http");
        let request = tokio::spawn(async move { get(http, "web.localhost", "/").await });
        let asked = tokio::time::timeout(PATIENCE, asked).await;
        assert!(matches!(asked, Ok(Ok(()))), "the request did not arrive: {:#?}", local.status().await);
        local.interrupt();
        until("it is said", async || local.said.lock().unwrap().contains("stopping").then_some(())).await;
        until("no new connection", async || TcpStream::connect(http).await.is_err().then_some(())).await;
        if twice {
            local.interrupt();
            assert_eq!(local.ended().await.code(), Some(0));
            assert_ne!(request.await.unwrap().unwrap_or_default().split("\r\n\r\n").nth(1), Some("slow"));
        } else {
            answer.send(()).unwrap();
            let answer = request.await.unwrap().unwrap();
            assert!(answer.ends_with("slow"), "{answer}");
            assert_eq!(local.ended().await.code(), Some(0));
        }
        home.nobody_survives().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_changes_its_size_zones_and_release_without_a_lost_request() {
    let home = Home::new();
    home.write("web.yaml", &format!("{}{}", ingress("edge", "web", "web.localhost", "/", "web", ""), service("web")));
    let base = fleet("edge", 1, "");
    home.write("fleet.yaml", &base);
    let local = Local::ready(&home, &both(), &["--echo"]).await;
    let http = address_of(&local.status().await.unwrap().fleets[0], "http");
    let load = Requests::start(&Target::new(http, "web.localhost", "/").answered_by("shop/web"));
    let names = |status: &Status| status.fleets[0].replicas.iter().map(|replica| replica.name.clone()).collect::<Vec<_>>();
    let zones = "  zones: [{name: a}, {name: b}]\n";
    for (spec, wanted) in [
        (base.replace("replicas: 1", "replicas: 3"), vec!["edge-", "edge-", "edge-"]),
        (base.clone(), vec!["edge-"]),
        (base.replace("replicas: 1\n", &format!("replicas: 2\n{zones}")), vec!["edge-a-0", "edge-b-0"]),
    ] {
        home.write("fleet.yaml", &spec);
        let are_wanted =
            |names: &[String]| names.len() == wanted.len() && names.iter().zip(&wanted).all(|(name, start)| name.starts_with(start));
        local.until("the size is right", |status| status.ready && are_wanted(&names(status))).await;
    }
    // tools/haproxy may be a script that runs the program with libraries of its own
    let running = |haproxy: &Path| {
        let home_of_program = haproxy.parent().unwrap().as_os_str().as_encoded_bytes().to_vec();
        let runs_it = |pid: &i32| {
            let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            command.windows(home_of_program.len()).any(|window| window == home_of_program)
        };
        home.survivors().iter().filter(|pid| runs_it(pid)).count()
    };
    assert_eq!(running(both()[1]), 0);
    home.write("fleet.yaml", &base.replace("replicas: 1", "replicas: 1\n  haproxyVersion: \"3.2\""));
    local.until("one replica is left", |status| status.ready && names(status).len() == 1).await;
    // master and worker
    assert_eq!(running(both()[1]), 2);
    load.none_is_lost("sizes, zones and releases").await;
}

/// Endpoints of the Service `web` in `zone`.
fn zoned_slice(zone: &str, echo: &Echo) -> String {
    slice("web", echo).replace("name: web-", &format!("name: {zone}-")).replace("]}]\n", &format!("], zone: {zone}}}]\n"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_stay_in_the_zone_of_their_replica_while_enough_is_ready_there() {
    for (line, haproxy) in ["3.4", "3.2"].into_iter().zip(both()) {
        let home = Home::new();
        home.write("fleet.yaml", &fleet("edge", 2, &format!("  haproxyVersion: \"{line}\"\n  zones: [{{name: a}}, {{name: b}}]\n")));
        let asking = service("web").replace("spec:\n", "spec:\n  trafficDistribution: PreferClose\n");
        home.write("web.yaml", &format!("{}{asking}", ingress("edge", "web", "web.localhost", "/", "web", "")));
        let (of_a, of_b) = (Echo::start("shop", "in-a", "http", 2).await.unwrap(), Echo::start("shop", "in-b", "http", 2).await.unwrap());
        home.write("a.yaml", &zoned_slice("a", &of_a));
        home.write("b.yaml", &zoned_slice("b", &of_b));
        let local = Local::ready(&home, &[haproxy], &[]).await;
        let status = local.until("both serve", |status| status.ready && status.fleets[0].replicas.len() == 2).await;
        let started = reloads(&status);
        let load = Requests::start(&Target::new(address_of(&status.fleets[0], "http"), "web.localhost", "/"));
        // of thirty answers those from zone `a`, by replica
        let answers = async || {
            let mut found = Vec::new();
            for replica in &status.fleets[0].replicas {
                let http = replica.listeners.iter().find(|listener| listener.name == "http").unwrap().address.parse().unwrap();
                let mut of_a = 0;
                for _ in 0..30 {
                    let answer = get(http, "web.localhost", "/").await.unwrap();
                    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
                    of_a += usize::from(answer.contains("shop/in-a"));
                }
                found.push(of_a);
            }
            found
        };
        let stays = async || (answers().await[0] >= 27).then_some(());
        until("requests stay in both zones", async || stays().await).await;
        assert!(answers().await[1] <= 3, "{line}");
        // one endpoint is not enough: that zone goes to all, the other stays
        let alone = Echo::start("shop", "in-a", "http", 1).await.unwrap();
        home.write("a.yaml", &zoned_slice("a", &alone));
        until("requests leave the zone", async || (answers().await[0] <= 20).then_some(())).await;
        assert!(answers().await[1] <= 3, "{line}");
        home.write("a.yaml", &zoned_slice("a", &of_a));
        until("requests are back in the zone", async || stays().await).await;
        assert_eq!(reloads(&local.status().await.unwrap()), started, "{line}");
        load.none_is_lost(line).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fleets_side_by_side_do_not_hurt_each_other() {
    let home = Home::new();
    home.write("edge.yaml", &fleet("edge", 1, ""));
    home.write("inner.yaml", &fleet("inner", 1, "  haproxyVersion: \"3.2\"\n"));
    let routes = [ingress("edge", "web", "web.localhost", "/", "web", ""), ingress("inner", "api", "api.localhost", "/", "web", "")];
    home.write("routes.yaml", &format!("{}{}", routes.concat(), service("web")));
    let mut local = Local::ready(&home, &[both()[0]], &["--echo"]).await;
    let status = local.status().await.unwrap();
    let line = status.diagnostics.iter().find(|found| found.field == "spec.haproxyVersion").expect("a finding about the release");
    assert!(line.message.contains("no HAProxy 3.2 here") && line.message.contains("runs on 3.4"), "{line:?}");
    let [edge, inner] = [0, 1].map(|index| address_of(&status.fleets[index], "http"));
    let load = Requests::start(&Target::new(edge, "web.localhost", "/").answered_by("shop/web"));
    // a younger one of the same class, with a name that comes first
    home.write("aaa.yaml", &fleet("aaa", 1, "").replace("ingressClassName: aaa", "ingressClassName: edge"));
    let told = local.until("it is told", |status| status.diagnostics.iter().any(|found| found.code == "Conflict")).await;
    assert_eq!(told.fleets.len(), 2, "{told:#?}");
    assert!(told.diagnostics.iter().any(|found| found.code == "Conflict" && found.object.name == "aaa"));
    home.remove("aaa.yaml");
    assert!(get(inner, "api.localhost", "/").await.unwrap().contains("x-service: shop/web"));
    home.remove("inner.yaml");
    local.until("one is left", |status| status.ready && status.fleets.len() == 1 && status.fleets[0].name == "edge").await;
    until("its state is removed", async || (!home.state().join("fleets/infra/inner").exists()).then_some(())).await;
    load.none_is_lost("the other fleet").await;

    // a second one on the same state, or on none that can be had, says so
    let another = Command::new(env!("CARGO_BIN_EXE_haproxy-fleet"));
    for (state, message) in [(home.state(), "another `haproxy-fleet local` uses"), ("/dev/null/x".into(), "cannot make /dev/null/x")] {
        let mut command = Command::new(another.as_std().get_program());
        command.arg("local").arg("-f").arg(home.manifests()).arg("--state-dir").arg(state).arg("--haproxy").arg(both()[0]);
        let output = command.output().await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2));
        assert!(said.contains(message) && said.contains("--state-dir"), "{said}");
    }

    // somebody takes a stable address while it is away: that is told, and the others serve
    home.write("inner.yaml", &fleet("inner", 1, ""));
    let status = local.until("two again", |status| status.ready && status.fleets.len() == 2).await;
    local.interrupt();
    local.ended().await;
    let taken = address_of(&status.fleets[0], "http");
    let thief = TcpListener::bind(taken).await.unwrap();
    let local = Local::start(&home, &[both()[0]], &["--echo"]).await;
    let status = local.until("it is told", |status| status.diagnostics.iter().any(|found| found.code == "NotApplied")).await;
    let found = status.diagnostics.iter().find(|found| found.code == "NotApplied").unwrap();
    assert!(found.message.contains(&taken.to_string()) && found.help.contains("spec.ports.http"), "{found:?}");
    let inner = address_of(&status.fleets[1], "http");
    until("the other serves", async || get(inner, "api.localhost", "/").await?.contains("x-service: shop/web").then_some(())).await;
    drop(thief);
    local.until("the address is taken", |status| status.ready).await;
    assert!(get(taken, "web.localhost", "/").await.unwrap().contains("x-service: shop/web"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_haproxy_refuses_names_its_source_and_leaves_the_rest_as_it_was() {
    let home = Home::new();
    home.write("fleet.yaml", &fleet("edge", 1, ""));
    home.write("web.yaml", &format!("{}{}", ingress("edge", "web", "web.localhost", "/", "web", ""), service("web")));
    let local = Local::ready(&home, &[both()[0]], &["--echo"]).await;
    let http = address_of(&local.status().await.unwrap().fleets[0], "http");
    let load = Requests::start(&Target::new(http, "web.localhost", "/").answered_by("shop/web"));
    // its key is too short for OpenSSL's default level, which nobody but OpenSSL knows
    let pem = include_str!("../it/data/weak.pem");
    let (certificate, key) = pem.split_at(pem.find("-----BEGIN PRIVATE").unwrap());
    let indented = |text: &str| text.lines().flat_map(|line| ["    ", line, "\n"]).collect::<String>();
    for name in ["weak-a", "weak-b"] {
        let secret = format!(
            "apiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\nmetadata: {{name: {name}, namespace: shop}}\nstringData:\n  tls.crt: |\n{}  \
             tls.key: |\n{}---\n",
            indented(certificate),
            indented(key)
        );
        let route = ingress("edge", name, "weak.localhost", &format!("/{name}"), "web", "");
        let route = route.replace("spec:\n", &format!("spec:\n  tls: [{{hosts: [weak.localhost], secretName: {name}}}]\n"));
        home.write(&format!("{name}.yaml"), &format!("{secret}{route}"));
    }
    home.write("good.yaml", &ingress("edge", "good", "good.localhost", "/", "web", ""));
    until("what is good", async || get(http, "good.localhost", "/").await?.starts_with("HTTP/1.1 200").then_some(())).await;
    let told = local
        .until("both are told", |status| {
            let about = |name: &str| status.diagnostics.iter().any(|found| found.severity == "error" && found.object.name == name);
            about("weak-a") && about("weak-b")
        })
        .await;
    assert!(told.fleets[0].replicas[0].ready, "{told:#?}");
    for name in ["weak-a", "weak-b"] {
        home.remove(&format!("{name}.yaml"));
    }
    local.until("all is well", |status| status.ready && status.diagnostics.iter().all(|found| found.severity != "error")).await;
    load.none_is_lost("refusals").await;
}

impl Local {
    /// Gives an order as a person does.
    async fn order(&self, path: &str, body: &str) -> (u16, String) {
        let mut stream = TcpStream::connect(self.admin).await.unwrap();
        let length = body.len();
        let request = format!(
            "POST /fleets/infra/edge/{path} HTTP/1.1\r\nHost: admin\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
        );
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer.split_once("\r\n\r\n").unwrap().1.to_owned())
    }

    /// The exit status of a command about it, and what that says.
    async fn verb(&self, line: &str) -> (Option<i32>, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_haproxy-fleet"));
        let output = command.args(line.split(' ')).arg("--admin").arg(self.admin.to_string()).output().await.unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    }

    /// Waits until nothing is left to do, with as many replicas of this template, or of another one than `before`.
    async fn rolled_out(&self, before: &str, replicas: usize) -> String {
        let is_done = |status: &Status| {
            let fleet = &status.fleets[0];
            let rollout = fleet.rollout.as_ref().is_some_and(|rollout| {
                let is_whole = |zone: &RolloutZone| zone.updated == zone.pods && zone.ready == zone.pods && !zone.turn;
                rollout.template != before && rollout.stable.as_ref() == Some(&rollout.template) && rollout.zones.iter().all(is_whole)
            });
            status.ready && rollout && fleet.replicas.len() == replicas
        };
        template(&self.until("all of it has another template", is_done).await)
    }
}

fn rollout(status: &Status) -> &Rollout {
    status.fleets[0].rollout.as_ref().unwrap()
}

fn template(status: &Status) -> String {
    rollout(status).template.clone()
}

/// A HAProxy that says that it is one of 3.2, and never starts.
fn broken_haproxy(home: &Home) -> PathBuf {
    let path = home.directory.path().join("haproxy-that-does-not-start");
    let script = "#!/bin/sh\n[ \"$1\" = -v ] && { echo 'HAProxy version 3.2.26 2026/01/01'; exit 0; }\n\
                  echo '[ALERT]    (1) : cannot start on this machine' >&2\nexit 1\n";
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_are_replaced_scaled_restarted_and_drained_without_a_lost_request() {
    let home = Home::new();
    home.write("web.yaml", &format!("{}{}", ingress("edge", "web", "web.localhost", "/", "web", ""), service("web")));
    // what ends waits for idle clients
    let keep_alive = "timeouts: {httpKeepAlive: 3s}";
    let base = fleet("edge", 2, "").replace("  rollout:", &format!("  tuning: {{{keep_alive}}}\n  rollout:"));
    home.write("fleet.yaml", &base);
    let local = Local::ready(&home, &both(), &["--echo"]).await;
    let mut now = local.rolled_out("", 2).await;
    let http = address_of(&local.status().await.unwrap().fleets[0], "http");
    let load = Requests::at(20.0, &Target::new(http, "web.localhost", "/").answered_by("shop/web"));
    let zones = base.replace("replicas: 2\n", "replicas: 2\n  zones: [{name: a}, {name: b}]\n");
    let with = |base: &str, more: &str| base.replace("  rollout:", &format!("{more}  rollout:"));
    for spec in [
        with(&base, "  haproxyVersion: \"3.2\"\n"),
        base.replace(keep_alive, &format!("threads: 2, {keep_alive}")),
        with(&base, "  podTemplatePatch: [{op: add, path: /spec/hostname, value: edge}]\n"),
    ] {
        home.write("fleet.yaml", &spec);
        now = local.rolled_out(&now, 2).await;
    }
    assert_eq!(local.order("rollout/restart", "").await.0, 200);
    now = local.rolled_out(&now, 2).await;

    // sizes
    for size in [4, 2] {
        let spec = with(&base, "  podTemplatePatch: [{op: add, path: /spec/hostname, value: edge}]\n");
        home.write("fleet.yaml", &spec.replace("replicas: 2", &format!("replicas: {size}")));
        local.until("the size is right", |status| status.ready && status.fleets[0].replicas.len() == size).await;
        assert_eq!(template(&local.status().await.unwrap()), now, "a size is no part of a template");
    }

    // zone by zone
    home.write("fleet.yaml", &zones);
    now = local.rolled_out(&now, 2).await;
    home.write("fleet.yaml", &with(&zones, "  podAnnotations: {a: b}\n"));
    local.rolled_out(&now, 2).await;

    // by hand: the first one is led away from, the last one is not
    let name = |status: &Status, zone: &str| {
        let ours = status.fleets[0].replicas.iter().find(|replica| replica.zone.as_deref() == Some(zone));
        ours.unwrap().name.clone()
    };
    let status = local.status().await.unwrap();
    let (a, b) = (name(&status, "a"), name(&status, "b"));
    let drained = |status: &Status, name: &str| status.fleets[0].replicas.iter().any(|replica| replica.name == name && !replica.ready);
    let (code, said) = local.order("drain", &format!(r#"{{"pod": "{a}"}}"#)).await;
    assert_eq!(code, 200, "{said}");
    local.until("it is drained", |status| drained(status, &a)).await;
    let (code, said) = local.order("drain", r#"{"zone": "b"}"#).await;
    assert!(code == 409 && said.contains("zone/b of fleet infra/edge is not drained: no other replica serves"), "{code} {said}");
    assert!(said.contains("by force"), "{said}");
    assert!(!drained(&local.status().await.unwrap(), &b));
    let (code, said) = local.order("undrain", &format!(r#"{{"pod": "{a}"}}"#)).await;
    assert_eq!(code, 200, "{said}");
    local.until("it serves again", |status| status.ready && !drained(status, &a)).await;
    assert_eq!(local.order("drain", r#"{"pod": "nobody"}"#).await.0, 404);
    assert_eq!(local.order("rollout/undo", "").await.0, 404);
    assert_eq!(local.order("drain", "{}").await.0, 400);
    load.none_is_lost("rollouts").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rollout_is_paused_resumed_and_aborted_and_one_that_never_gets_ready_stops_in_its_zone() {
    let home = Home::new();
    home.write("web.yaml", &format!("{}{}", ingress("edge", "web", "web.localhost", "/", "web", ""), service("web")));
    let base = fleet("edge", 2, "  zones: [{name: a}, {name: b}]\n  tuning: {timeouts: {httpKeepAlive: 3s}}\n");
    home.write("fleet.yaml", &base);
    let broken = broken_haproxy(&home);
    let local = Local::ready(&home, &[both()[0], &broken], &["--echo"]).await;
    let first = local.rolled_out("", 2).await;
    let http = address_of(&local.status().await.unwrap().fleets[0], "http");
    let load = Requests::at(20.0, &Target::new(http, "web.localhost", "/").answered_by("shop/web"));
    let with = |more: &str| base.replace("  rollout:", &format!("{more}  rollout:"));
    let threads = |number: u32| base.replace("tuning: {", &format!("tuning: {{threads: {number}, "));
    let pods = |status: &Status, template: &str| {
        let zones = rollout(status).zones.iter().filter(|zone| zone.template == template);
        zones.map(|zone| zone.pods).sum::<u64>()
    };

    // paused: nothing is replaced until it is resumed
    let (code, said) = local.verb("rollout status edge").await;
    assert!(code == Some(0) && said.contains("the rollout of infra/edge is done: 2 pods"), "{said}");
    let (code, said) = local.verb("rollout pause infra/edge").await;
    assert!(code == Some(0) && said.contains("the rollout of fleet infra/edge is paused"), "{said}");
    home.write("fleet.yaml", &threads(2));
    let paused = local.until("it is paused", |status| rollout(status).state == "Paused" && template(status) != first).await;
    assert_eq!(pods(&paused, &first), 2, "{paused:#?}");
    let (code, said) = local.verb("rollout status").await;
    assert!(code == Some(1) && said.contains("the rollout of infra/edge is paused\n  zone a: 0 of 1 pods have"), "{said}");
    assert_eq!(local.verb("rollout resume").await.0, Some(0));
    let second = local.rolled_out(&first, 2).await;
    let (code, said) = local.verb("rollout pause other").await;
    assert!(code == Some(2) && said.contains("no such fleet is there") && said.contains("infra/edge"), "{said}");
    let (code, said) = local.verb("drain pod/nobody").await;
    assert!(code == Some(2) && said.contains("fleet infra/edge has no pod nobody") && said.contains("help: it has edge-a-"), "{said}");
    let (code, said) = local.order("rollout/abort", "").await;
    assert!(code == 409 && said.contains("there is no rollout of fleet infra/edge to abort"), "{code} {said}");

    // one that does not start: the first zone is named, and the old replicas serve on
    home.write("fleet.yaml", &with("  haproxyVersion: \"3.2\"\n"));
    let is_told = |status: &Status| status.diagnostics.iter().any(|found| found.message.contains("cannot start on this machine"));
    let stalled = local.until("it stalls", |status| rollout(status).state == "Stalled" && is_told(status)).await;
    let reasons = &rollout(&stalled).reasons;
    assert!(reasons[0].contains("in zone a is not ready and its time is over"), "{reasons:?}");
    assert_eq!(stalled.fleets[0].replicas.iter().filter(|replica| replica.ready).count(), 2, "{stalled:#?}");
    assert_eq!(rollout(&stalled).zones[1].template, second, "the other zone is not touched");
    let (code, said) = local.order("rollout/abort", "").await;
    assert!(code == 200 && said.contains(&second), "{code} {said}");
    let aborted =
        |status: &Status| rollout(status).state == "Aborted" && pods(status, &second) == 2 && status.fleets[0].replicas.len() == 2;
    local.until("all of it is as before", aborted).await;

    // what is given up is not tried again, and another change is
    home.write("fleet.yaml", &threads(3));
    local.rolled_out(&second, 2).await;
    load.none_is_lost("pauses and aborts").await;
}

/// Whether the answer of `address` asks its client to leave; nothing if there is no whole one.
async fn asks_to_leave(address: SocketAddr, host: &str) -> Option<bool> {
    let mut stream = TcpStream::connect(address).await.ok()?;
    stream.write_all(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await.ok()?;
    let mut answer = Vec::new();
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        if stream.read_buf(&mut answer).await.ok()? == 0 {
            return None;
        }
    }
    let answer = String::from_utf8_lossy(&answer).to_lowercase();
    assert!(answer.starts_with("http/1.1 200"), "{answer}");
    Some(answer.contains("\r\nconnection: close\r\n"))
}

fn own_address(status: &Status, zone: Option<&str>) -> SocketAddr {
    let replica = status.fleets[0].replicas.iter().find(|replica| replica.zone.as_deref() == zone).unwrap();
    replica.listeners.iter().find(|listener| listener.name == "http").unwrap().address.parse().unwrap()
}

fn kept(status: &Status) -> Vec<u64> {
    status.fleets[0].revisions.iter().map(|revision| revision.number).collect()
}

/// The HAProxy `real`, which refuses everything with `X-Poison` in it while the file `mark` exists.
fn fastidious_haproxy(home: &Home, real: &Path, mark: &Path) -> PathBuf {
    let path = home.directory.path().join("fastidious-haproxy");
    let (real, mark) = (real.display(), mark.display());
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = -c ] && [ -e {mark} ] && grep -rqs X-Poison \"$3\"; then\n  \
         echo '[ALERT]    (1) : config : poison is not taken here' >&2\n  exit 1\nfi\nexec {real} \"$@\"\n"
    );
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    path
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fleet_goes_back_to_a_revision_over_a_restart_and_on_to_the_present_without_a_lost_request() {
    let home = Home::new();
    let mark = home.directory.path().join("no-poison");
    let haproxy = fastidious_haproxy(&home, both()[0], &mark);
    let route = |name: &str, header: &str| {
        let annotations = format!("haproxy-fleet.dev/request-header.{header}: a");
        ingress("edge", name, &format!("{name}.localhost"), "/", "web", &annotations)
    };
    home.write("fleet.yaml", &fleet("edge", 2, ""));
    home.write("stays.yaml", &format!("{}{}", ingress("edge", "stays", "stays.localhost", "/", "web", ""), service("web")));
    home.write("route.yaml", &route("first", "X-Poison"));
    let mut local = Local::ready(&home, &[&haproxy], &["--echo"]).await;
    let http = address_of(&local.status().await.unwrap().fleets[0], "http");
    let load = Requests::at(20.0, &Target::new(http, "stays.localhost", "/").answered_by("shop/web"));
    let answers = async |host: &str, code: &str| {
        until(&format!("{host} is answered with {code}"), async || {
            get(http, host, "/").await?.starts_with(&format!("HTTP/1.1 {code}")).then_some(())
        })
        .await;
    };
    let first = *kept(&local.until("the first is kept", |status| !kept(status).is_empty()).await).last().unwrap();
    home.write("route.yaml", &route("second", "X-Second"));
    let status = local.until("the second is kept", |status| kept(status).last().is_some_and(|last| *last > first)).await;
    let second = *kept(&status).last().unwrap();
    assert_eq!((status.fleets[0].revision, status.fleets[0].pinned), (second, None));

    // what is not kept, and what HAProxy does not take, changes nothing
    let (code, said) = local.verb("rollback 99 edge").await;
    assert!(code == Some(2) && said.contains("revision 99 of infra/edge is not kept"), "{said}");
    assert!(said.contains(&format!("help: choose one of {first}, {second}")), "{said}");
    std::fs::write(&mark, "").unwrap();
    let (code, said) = local.verb(&format!("rollback {first}")).await;
    assert!(code == Some(2) && said.contains(&format!("infra/edge does not go back to revision {first}: HAProxy 3.4 refuses")), "{said}");
    assert!(said.contains("poison is not taken here") && said.contains("what serves stays as it is"), "{said}");
    let unchanged = local.status().await.unwrap();
    assert_eq!((unchanged.fleets[0].pinned, unchanged.fleets[0].generation), (None, status.fleets[0].generation));
    answers("second.localhost", "200").await;
    std::fs::remove_file(&mark).unwrap();

    // back: routes are those of then, and changes of them have no effect
    let (code, said) = local.verb(&format!("rollback {first}")).await;
    let confirmed = format!("infra/edge goes to revision {first}\nrevision {first} is confirmed by all pods, after ");
    assert!(code == Some(0) && said.starts_with(&confirmed), "{said}");
    answers("first.localhost", "200").await;
    answers("second.localhost", "404").await;
    let pinned = local.status().await.unwrap();
    let told = pinned.diagnostics.iter().find(|found| found.code == "Pinned").expect("it says so");
    assert!(told.message.contains(&format!("pinned to revision {first}")), "{told:?}");
    let (_, said) = local.verb("history").await;
    let rows: Vec<&str> = said.lines().collect();
    assert!(rows[0].starts_with("REVISION") && rows[1].starts_with(&second.to_string()) && !rows[1].contains("served"), "{said}");
    assert!(rows[2].starts_with(&first.to_string()) && rows[2].ends_with("served, pinned"), "{said}");
    home.write("third.yaml", &route("third", "X-Third"));
    let real = Echo::start("shop", "real", "http", 1).await.unwrap();
    home.write("slices.yaml", &slice("web", &real));
    // endpoints are those of now
    let is_real = async || get(http, "first.localhost", "/").await?.contains("x-service: shop/real").then_some(());
    load.none_is_lost("back").await;
    until("endpoints follow", is_real).await;
    answers("third.localhost", "404").await;

    // a restart changes nothing of it, even where nothing can be read
    local.interrupt();
    local.ended().await;
    let mut local = Local::start(&home, &[&haproxy], &["--echo"]).await;
    let is_back = |status: &Status| status.ready && status.fleets[0].pinned == Some(first) && status.fleets[0].revision == first;
    let status = local.until("it is pinned still", is_back).await;
    assert_eq!(kept(&status), [first, second]);
    until("endpoints are those of now", is_real).await;
    answers("third.localhost", "404").await;
    let history = get(local.admin, "admin", "/fleets/infra/edge/history").await.unwrap();
    assert!(history.starts_with("HTTP/1.1 200") && history.contains(&format!("\"number\":{first}")), "{history}");
    assert!(get(local.admin, "admin", "/fleets/infra/none/history").await.unwrap().starts_with("HTTP/1.1 404"));

    // on to what is asked for now
    let load = Requests::at(20.0, &Target::new(http, "stays.localhost", "/").answered_by("shop/real"));
    let (code, said) = local.verb("rollback present edge").await;
    assert!(code == Some(0) && said.starts_with("infra/edge goes to what is asked for now\nrevision "), "{said}");
    for (host, code) in [("first.localhost", "404"), ("second.localhost", "200"), ("third.localhost", "200")] {
        answers(host, code).await;
    }
    let now = local.until("the third is kept", |status| kept(status).len() == 3).await;
    assert_eq!((now.fleets[0].pinned, now.fleets[0].revision > second), (None, true));
    assert!(now.diagnostics.iter().all(|found| found.code != "Pinned"), "{now:#?}");
    load.none_is_lost("and on").await;

    // one that is lost is not gone back to
    std::fs::write(home.state().join(format!("fleets/infra/edge/revisions/{first}")), "nothing").unwrap();
    let (code, said) = local.order("rollback", &format!(r#"{{"revision": {first}}}"#)).await;
    assert!(code == 409 && said.contains(&format!("infra/edge cannot go back to revision {first}: it cannot be unpacked")), "{said}");
    assert_eq!(local.order("rollback", "{}").await.0, 400);
    local.interrupt();
    local.ended().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_is_drained_by_hand_asks_its_clients_to_leave_until_it_is_given_back_over_a_restart() {
    for haproxy in both() {
        let home = Home::new();
        home.write("fleet.yaml", &fleet("edge", 2, "  zones: [{name: a}, {name: b}]\n"));
        let asking = service("web").replace("spec:\n", "spec:\n  trafficDistribution: PreferClose\n");
        home.write("web.yaml", &format!("{}{asking}", ingress("edge", "web", "web.localhost", "/", "web", "")));
        // answers tell by which replica they came: each keeps to its zone
        let (of_a, of_b) = (Echo::start("shop", "in-a", "http", 2).await.unwrap(), Echo::start("shop", "in-b", "http", 2).await.unwrap());
        home.write("a.yaml", &zoned_slice("a", &of_a));
        home.write("b.yaml", &zoned_slice("b", &of_b));
        let mut local = Local::ready(&home, &[haproxy], &[]).await;
        let status = local.status().await.unwrap();
        let (front, a, b) = (address_of(&status.fleets[0], "http"), own_address(&status, Some("a")), own_address(&status, Some("b")));
        let load = Requests::at(20.0, &Target::new(front, "web.localhost", "/"));
        let came_by_a = async || Some(get(front, "web.localhost", "/").await?.contains("shop/in-a"));
        until("requests stay in the zone", async || get(a, "web.localhost", "/").await?.contains("shop/in-a").then_some(())).await;
        until("both are sent to", async || came_by_a().await.filter(|by_a| *by_a)).await;
        assert_eq!(asks_to_leave(a, "web.localhost").await, Some(false));

        let (code, said) = local.verb("drain zone/a").await;
        assert!(code == Some(0) && said.contains("zone/a of fleet infra/edge is drained"), "{said}");
        let is_left =
            |status: &Status| status.fleets[0].replicas.iter().any(|replica| replica.zone.as_deref() == Some("a") && !replica.ready);
        local.until("it is led away from", is_left).await;
        until("it asks to leave", async || asks_to_leave(a, "web.localhost").await.filter(|asks| *asks)).await;
        until("it gets nothing new", async || came_by_a().await.filter(|by_a| !*by_a)).await;
        for _ in 0..20 {
            assert_eq!(came_by_a().await, Some(false));
        }
        assert_eq!(asks_to_leave(b, "web.localhost").await, Some(false), "the other one goes on");
        load.none_is_lost("drained").await;

        local.interrupt();
        local.ended().await;
        let mut local = Local::start(&home, &[haproxy], &[]).await;
        let is_said = |status: &Status| {
            let rollout = status.fleets.first().and_then(|fleet| fleet.rollout.as_ref());
            rollout.is_some_and(|rollout| rollout.reasons.iter().any(|reason| reason.contains("is drained by hand")))
        };
        let others_serve = |status: &Status| status.fleets[0].replicas.iter().any(|replica| replica.ready);
        local.until("it is drained still", |status| is_said(status) && is_left(status) && others_serve(status)).await;
        assert_eq!(asks_to_leave(a, "web.localhost").await, Some(true));
        let load = Requests::at(20.0, &Target::new(front, "web.localhost", "/"));
        let (code, said) = local.verb("undrain zone/a").await;
        assert!(code == Some(0) && said.contains("gets new connections again"), "{said}");
        local.until("it serves again", |status| status.ready && !is_said(status)).await;
        assert_eq!(asks_to_leave(a, "web.localhost").await, Some(false));
        until("it gets requests", async || came_by_a().await.filter(|by_a| *by_a)).await;
        load.none_is_lost("given back").await;
        local.interrupt();
        local.ended().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_ends_serves_on_for_the_time_of_its_spec_and_follows_endpoints() {
    let home = Home::new();
    home.write("web.yaml", &format!("{}{}", ingress("edge", "web", "web.localhost", "/", "web", ""), service("web")));
    // longer than any test
    let base = fleet("edge", 1, "  drain: {deregistrationDelay: 15m, timeout: 5s}\n");
    home.write("fleet.yaml", &base);
    let mut local = Local::ready(&home, &[both()[0]], &["--echo"]).await;
    let before = local.rolled_out("", 1).await;
    let status = local.status().await.unwrap();
    let (front, old) = (address_of(&status.fleets[0], "http"), own_address(&status, None));
    let load = Requests::at(20.0, &Target::new(front, "web.localhost", "/"));
    home.write("fleet.yaml", &base.replace("  rollout:", "  tuning: {threads: 2}\n  rollout:"));
    local.until("the new one is there", |status| template(status) != before && status.fleets[0].replicas.len() == 2).await;
    until("the old one asks to leave", async || asks_to_leave(old, "web.localhost").await.filter(|asks| *asks)).await;
    let real = Echo::start("shop", "real", "http", 1).await.unwrap();
    home.write("slices.yaml", &slice("web", &real));
    for address in [front, old] {
        until("endpoints follow", async || get(address, "web.localhost", "/").await?.contains("shop/real").then_some(())).await;
    }
    load.none_is_lost("a replacement").await;
    local.interrupt();
    assert_eq!(local.ended().await.code(), Some(0));
    home.nobody_survives().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_template_patch_that_cannot_be_done_leaves_the_replicas_and_other_fleets_as_they_are() {
    let home = Home::new();
    let edge = fleet("edge", 1, "");
    home.write("edge.yaml", &edge);
    home.write("inner.yaml", &fleet("inner", 1, ""));
    let inner = |host: &str| format!("{}{}", ingress("inner", "api", host, "/", "web", ""), service("web"));
    home.write("routes.yaml", &inner("api.localhost"));
    let mut local = Local::ready(&home, &[both()[0]], &["--echo"]).await;
    let before = local.rolled_out("", 1).await;
    let status = local.status().await.unwrap();
    let [at_edge, at_inner] = [0, 1].map(|index| address_of(&status.fleets[index], "http"));
    let patch = |path: &str| format!("{}  podTemplatePatch: [{{op: add, path: {path}, value: true}}]\n", edge.trim_end_matches("---\n"));
    home.write("edge.yaml", &patch("/spec/hostNetwork"));
    let refused =
        |status: &Status| status.diagnostics.iter().any(|found| found.field == "spec.podTemplatePatch" && found.severity == "error");
    let told = local.until("it is refused", refused).await;
    let found = told.diagnostics.iter().find(|found| found.field == "spec.podTemplatePatch").unwrap();
    assert_eq!((&*found.object.name, &*found.message), ("edge", "spec.hostNetwork has to stay as it is"));
    let [edge_fleet, inner_fleet] = [0, 1].map(|index| &told.fleets[index]);
    assert_eq!((edge_fleet.ready, edge_fleet.state.as_deref(), inner_fleet.ready), (Some(false), Some("InvalidValue"), Some(true)));
    assert_eq!((template(&told), edge_fleet.replicas.len()), (before.clone(), 1));
    // routes follow all the same, of both
    let both_routes = format!("{}{}", ingress("edge", "web", "web.localhost", "/", "web", ""), inner("other.localhost"));
    home.write("routes.yaml", &both_routes);
    for (address, host) in [(at_edge, "web.localhost"), (at_inner, "other.localhost")] {
        until(host, async || get(address, host, "/").await?.starts_with("HTTP/1.1 200").then_some(())).await;
    }
    home.write("edge.yaml", &patch("/spec/hostPID"));
    home.write("edge.yaml", &edge);
    local.until("all is well", |status| status.ready && !refused(status)).await;
    assert_eq!(template(&local.status().await.unwrap()), before);
    local.interrupt();
    local.ended().await;
}
