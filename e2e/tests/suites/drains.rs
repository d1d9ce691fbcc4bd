//! Pods of a fleet end in all the ways that there are, and no client notices.

use crate::{run, run_on_ours, seconds};
use fleet_cluster::NodeHandle;
use fleet_load::{Config, Load, Protocol, Report, Target};
use haproxy_fleet_e2e::edge::{Edge, HOST, is_ready, tell};
use haproxy_fleet_e2e::setting::Setting;
use haproxy_fleet_e2e::{Failure, Outcome, SOON, eventually, http};
use serde_json::{Value, json};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

fn name_of(pod: &Value) -> String {
    pod["metadata"]["name"].as_str().unwrap_or_default().to_owned()
}

/// Where HAProxy of a pod listens.
fn door_of(pod: &Value) -> Outcome<SocketAddr> {
    let ip: Option<IpAddr> = pod["status"]["podIP"].as_str().and_then(|ip| ip.parse().ok());
    ip.map(|ip| SocketAddr::new(ip, 8080)).ok_or_else(|| Failure::new("a pod has no address"))
}

fn node_of(setting: &Setting, pod: &Value) -> Outcome<NodeHandle> {
    let number = pod["spec"]["nodeName"].as_str().and_then(|name| name.strip_prefix("node")).and_then(|number| number.parse().ok());
    Ok(setting.ours()?.node(number.ok_or_else(|| Failure::new("the pod is on no node"))?)?)
}

/// As `kubectl drain` does, as soon as the budget of disruptions allows it.
async fn evict(setting: &Setting, namespace: &str, pod: &str) -> Outcome {
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"namespace": namespace, "name": pod}}).to_string();
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/eviction");
    let ask = || async { setting.kubectl_with(&["create", "--raw", &path, "-f", "-"], &eviction).await };
    eventually("the eviction to be allowed", SOON, ask).await.map(drop)
}

fn assert_none_is_lost(report: &Report) {
    assert_eq!(report.lost, 0, "{:?} {:?}", report.lost_by_kind, report.examples);
}

#[allow(clippy::cast_precision_loss)] // far below 2^52
fn success(report: &Report) -> f64 {
    1.0 - report.lost as f64 / report.requests.max(1) as f64
}

#[test]
fn every_node_is_drained_in_turn_under_load() {
    run_on_ours(|setting| async move {
        let edge = Edge::new(setting, "nodes", &json!({"replicas": 3})).await?;
        let load = edge.clients_of_requests(60.0)?;
        for node in setting.ours()?.nodes() {
            let node = node.node().name();
            load.mark(format!("{node} is drained"));
            setting.kubectl(&["drain", &node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=180s"]).await?;
            edge.has(3).await?;
            setting.kubectl(&["uncordon", &node]).await?;
        }
        let report = load.stop().await;
        tell("nodes drained", 4, &report)?;
        assert_none_is_lost(&report);
        edge.remove().await
    });
}

#[test]
fn a_storm_of_evictions_and_sizes_up_and_down_lose_no_request() {
    run(|setting| async move {
        let edge = Edge::new(setting, "storm", &json!({})).await?;
        let load = edge.clients(100.0)?;
        for round in 1..=2 {
            load.mark(format!("evictions, round {round}"));
            for pod in setting.pods("storm", "edge").await? {
                evict(setting, "storm", &name_of(&pod)).await?;
            }
            edge.has(2).await?;
        }
        for replicas in [6, 2] {
            load.mark(format!("{replicas} pods"));
            setting.kubectl(&["-n", "storm", "scale", "ingd/edge", &format!("--replicas={replicas}")]).await?;
            edge.has(replicas).await?;
        }
        load.mark("a pod is deleted by hand");
        let pods = setting.pods("storm", "edge").await?;
        setting.kubectl(&["-n", "storm", "delete", "pod", &name_of(&pods[0]), "--wait=false"]).await?;
        edge.has(2).await?;
        let report = load.stop().await;
        tell("evictions and sizes", 5, &report)?;
        assert_none_is_lost(&report);
        edge.remove().await
    });
}

#[test]
fn a_pod_serves_while_a_load_balancer_goes_on_sending_to_it() {
    run(|setting| async move {
        // one that takes a minute to deregister; kubectl comes back some seconds after the pod was told to end
        let edge = Edge::new(setting, "late", &json!({"drain": {"deregistrationDelay": "70s", "timeout": "10s"}})).await?;
        let pods = setting.pods("late", "edge").await?;
        let target = Target::new(door_of(&pods[0])?, HOST, "/");
        let config = Config { protocol: Protocol::Http1Close, rate: 50.0, connections: 32, ..Config::new(vec![target]) };
        setting.kubectl(&["-n", "late", "delete", "pod", &name_of(&pods[0]), "--wait=false"]).await?;
        let load = Load::start(Config { duration: Some(Duration::from_secs(60)), ..config }).map_err(Failure::new)?;
        let report = load.wait().await;
        tell("late deregistration", 1, &report)?;
        assert_none_is_lost(&report);
        edge.remove().await
    });
}

#[test]
fn a_zone_is_lost_and_comes_back() {
    run_on_ours(|setting| async move {
        let spec = json!({"replicas": 3, "zones": [{"name": "zone-a"}, {"name": "zone-b"}, {"name": "zone-c"}],
            "publishing": {"externalTrafficPolicy": "Local"}});
        let edge = Edge::new(setting, "lost", &spec).await?;
        let before = edge.clients_of_requests(60.0)?;
        let zone = setting.ours()?.zone("zone-c")?;
        let began = Instant::now();
        zone.crash()?;
        // detected: new connections reach living nodes only
        let mut good = 0;
        while good < 30 {
            let answer = tokio::time::timeout(Duration::from_millis(500), http::expect(edge.address, HOST, "/", 200)).await;
            good = if answer.is_ok_and(|answer| answer.is_ok()) { good + 1 } else { 0 };
        }
        println!("{}", json!({"figure": "zone_lost_detection", "seconds": began.elapsed().as_secs_f64()}));
        drop(before);
        let load = edge.clients_of_requests(60.0)?;
        tokio::time::sleep(seconds("E2E_ZONE_LOST", 60)).await;
        load.mark("the zone is back");
        zone.start()?;
        edge.has(3).await?;
        let report = load.stop().await;
        tell("zone lost", 1, &report)?;
        assert!(success(&report) >= 0.999, "{:?} {:?}", report.lost_by_kind, report.examples);
        edge.remove().await
    });
}

/// A process of HAProxy of a pod: its master, or the worker that serves.
fn haproxy_of(setting: &Setting, pod: &Value, is_worker: bool) -> Outcome<(NodeHandle, String)> {
    let node = node_of(setting, pod)?;
    // systemd's names of control groups have no dashes
    let uid = pod["metadata"]["uid"].as_str().unwrap_or_default().replace('-', "[-_]");
    // of all processes on the machine those of this pod, by its control group
    let script = format!(
        "for p in $(pgrep -x haproxy); do grep -q '{uid}' /proc/$p/cgroup 2>/dev/null && echo $p $(ps -o ppid= -p $p) $(ps -o comm= -p $(ps -o ppid= -p $p)); done; true"
    );
    let output = node.command("sh")?.args(["-c", &script]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (pid, _, parent) = (words.next()?, words.next()?, words.next()?);
        ((parent == "haproxy") == is_worker).then(|| pid.to_owned())
    });
    found.map(|pid| (node, pid)).ok_or_else(|| Failure::new(format_args!("no such process of {}: {text}", name_of(pod))))
}

#[test]
fn a_haproxy_that_is_killed_comes_back_and_the_others_serve_on() {
    run_on_ours(|setting| async move {
        let edge = Edge::new(setting, "killed", &json!({"replicas": 4})).await?;
        let load = edge.clients_of_requests(100.0)?;
        let began = Instant::now();
        let pods = setting.pods("killed", "edge").await?;
        for (pod, (what, is_worker)) in pods.iter().zip([("worker", true), ("master", false)]) {
            let (door, (node, pid)) = (door_of(pod)?, haproxy_of(setting, pod, is_worker)?);
            load.mark(format!("a {what} is killed"));
            let killed = Instant::now();
            assert!(node.command("kill")?.args(["-KILL", &pid]).status()?.success());
            // until the kernel has taken the process away it may still answer
            while tokio::net::TcpStream::connect(door).await.is_ok() && killed.elapsed() < Duration::from_millis(300) {}
            eventually("it to serve again", SOON, || http::expect(door, HOST, "/", 200)).await?;
            println!("{}", json!({"figure": format!("{what}_killed"), "seconds": killed.elapsed().as_secs_f64()}));
            assert!(killed.elapsed() < SOON);
        }
        eventually("all pods to be ready", SOON, || async {
            let pods = setting.pods("killed", "edge").await?;
            if pods.iter().all(is_ready) { Ok(()) } else { Err(Failure::new("not yet")) }
        })
        .await?;
        let rest = seconds("E2E_KILLED", 60).saturating_sub(began.elapsed());
        tokio::time::sleep(rest).await;
        let report = load.stop().await;
        tell("haproxy killed", 2, &report)?;
        // a pod in four refuses connections until the kubelet has started its container again
        assert!(success(&report) >= 0.95, "{:?} {:?}", report.lost_by_kind, report.examples);
        edge.remove().await
    });
}

#[test]
fn a_kubelet_that_is_killed_costs_nothing() {
    run_on_ours(|setting| async move {
        let edge = Edge::new(setting, "kubelet", &json!({})).await?;
        let load = edge.clients(60.0)?;
        let pods = setting.pods("kubelet", "edge").await?;
        let node = node_of(setting, &pods[0])?;
        load.mark("a kubelet is killed");
        node.stop("kubelet")?;
        tokio::time::sleep(Duration::from_secs(15)).await;
        load.mark("it is back, and its pod is replaced");
        node.start_daemon("kubelet")?;
        evict(setting, "kubelet", &name_of(&pods[0])).await?;
        edge.has(2).await?;
        let report = load.stop().await;
        tell("kubelet killed", 1, &report)?;
        assert_none_is_lost(&report);
        edge.remove().await
    });
}
