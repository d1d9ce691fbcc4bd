//! Things break, and fleets go on.

use crate::{run, run_on_ours, seconds};
use fleet_cluster::NodeHandle;
use fleet_load::{Config, Load, Protocol, Target};
use haproxy_fleet_e2e::setting::{SYSTEM, Setting, echo, fleet, ingress};
use haproxy_fleet_e2e::{Failure, Outcome, SOON, eventually, http};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;

/// A fleet of two that serves one tenant in the same namespace.
async fn two(setting: &Setting, name: &str, replicas: usize) -> Outcome<SocketAddr> {
    setting.namespace(name).await?;
    setting.apply(&echo(name, "web", replicas)).await?;
    setting.apply(&ingress(name, "web", name, "web.example", "web")).await?;
    setting.apply(&fleet(name, "edge", name, 2)).await?;
    setting.ready(name, "edge").await?;
    let address = setting.address(name, "edge", 80).await?;
    eventually("the tenant", SOON, || http::expect(address, "web.example", "/", 200)).await?;
    Ok(address)
}

fn load(address: SocketAddr, rate: f64) -> Outcome<fleet_load::Handle> {
    let config =
        Config { protocol: Protocol::Http1KeepAlive, rate, connections: 16, ..Config::new(vec![Target::new(address, "web.example", "/")]) };
    Load::start(config).map_err(Failure::new)
}

async fn scale_operator(setting: &Setting, replicas: u32) -> Outcome {
    setting.kubectl(&["-n", SYSTEM, "scale", "deployment/haproxy-fleet", &format!("--replicas={replicas}")]).await?;
    if replicas > 0 {
        return setting.kubectl(&["-n", SYSTEM, "rollout", "status", "deployment/haproxy-fleet", "--timeout=180s"]).await.map(drop);
    }
    eventually("the operator to be gone", SOON, || async {
        let pods = setting.kubectl(&["-n", SYSTEM, "get", "pods", "-l", "app.kubernetes.io/component=operator", "-o", "name"]).await?;
        if pods.trim().is_empty() { Ok(()) } else { Err(Failure::new(pods)) }
    })
    .await
}

/// The status of a container of a pod.
fn container(pod: &Value, name: &str) -> Value {
    let lists = ["containerStatuses", "initContainerStatuses"].into_iter().filter_map(|list| pod["status"][list].as_array());
    lists.flatten().find(|status| status["name"] == name).cloned().unwrap_or_default()
}

fn node_of(setting: &Setting, pod: &Value) -> Outcome<NodeHandle> {
    let number = pod["spec"]["nodeName"].as_str().and_then(|name| name.strip_prefix("node")).and_then(|number| number.parse().ok());
    Ok(setting.ours()?.node(number.ok_or_else(|| Failure::new("the pod is on no node"))?)?)
}

/// Kills the first process of a container of a pod, as the kernel's out-of-memory killer does.
fn kill(setting: &Setting, pod: &Value, name: &str) -> Outcome {
    let node = node_of(setting, pod)?;
    let status = container(pod, name);
    let id = status["containerID"].as_str().and_then(|id| id.split_once("://")).map(|(_, id)| id.to_owned());
    let id = id.ok_or_else(|| Failure::new(format_args!("{name} does not run: {status}")))?;
    let killed = node
        .command(&setting.ours()?.layout().program("ctr").display().to_string())?
        .args(["-n", "k8s.io", "tasks", "kill", "-s", "SIGKILL", &id])
        .status()?;
    if killed.success() { Ok(()) } else { Err(Failure::new(format_args!("{name} was not killed"))) }
}

fn is_ready(pod: &Value) -> bool {
    pod["status"]["conditions"].as_array().into_iter().flatten().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

#[test]
fn a_fleet_serves_while_the_operator_is_away_and_a_third_of_the_endpoints_is_replaced() {
    run(|setting| async move {
        let address = two(setting, "away", 3).await?;
        scale_operator(setting, 0).await?;
        let load = load(address, 100.0)?;
        let pods = setting.get(&["pods", "-n", "away", "-l", "app=web"]).await?;
        let name = pods["items"][0]["metadata"]["name"].as_str().unwrap_or_default();
        setting.kubectl(&["-n", "away", "delete", "pod", name, "--wait=false"]).await?;
        // 600 as long as people sleep
        tokio::time::sleep(seconds("E2E_AWAY", 60)).await;
        let report = load.stop().await;
        println!("{}", haproxy_fleet_e2e::json_line("operator away", 1, &report));
        #[allow(clippy::cast_precision_loss)]
        let success = 1.0 - report.lost as f64 / report.requests as f64;
        assert!(success >= 0.999, "{:?} {:?}", report.lost_by_kind, report.examples);
        scale_operator(setting, 2).await?;
        setting.ready("away", "edge").await?;
        setting.remove(&["away"]).await
    });
}

#[test]
fn a_new_pod_without_an_operator_is_never_ready_and_an_old_one_comes_back_with_what_it_served() {
    run_on_ours(|setting| async move {
        let address = two(setting, "alone", 1).await?;
        scale_operator(setting, 0).await?;
        // a container that starts again finds its last good configuration
        let pods = setting.pods("alone", "edge").await?;
        for pod in &pods {
            kill(setting, pod, "haproxy")?;
        }
        eventually("both pods to serve again", SOON, || async {
            let now = setting.pods("alone", "edge").await?;
            let back = now.iter().all(|pod| is_ready(pod) && container(pod, "haproxy")["restartCount"] == 1);
            if back { Ok(()) } else { Err(Failure::new("not yet")) }
        })
        .await?;
        eventually("the tenant", SOON, || http::expect(address, "web.example", "/", 200)).await?;
        // a pod that is new has nothing
        let victim = pods[0]["metadata"]["name"].as_str().unwrap_or_default();
        setting.kubectl(&["-n", "alone", "delete", "pod", victim, "--timeout=180s"]).await?;
        let fresh = eventually("a new pod to run", SOON, || async {
            let now = setting.pods("alone", "edge").await?;
            let running =
                |pod: &&Value| container(pod, "haproxy")["state"]["running"].is_object() && container(pod, "haproxy")["restartCount"] == 0;
            now.iter().find(running).cloned().ok_or_else(|| Failure::new("none yet"))
        })
        .await?;
        for _ in 0..50 {
            let name = fresh["metadata"]["name"].as_str().unwrap_or_default();
            assert!(!is_ready(&setting.get(&["pod", "-n", "alone", name]).await?), "it has nothing to serve");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        http::expect(address, "web.example", "/", 200).await?;
        scale_operator(setting, 2).await?;
        setting.ready("alone", "edge").await?;
        setting.remove(&["alone"]).await
    });
}

#[test]
fn an_agent_that_is_killed_again_and_again_leaves_its_pod_ready_and_serving() {
    run_on_ours(|setting| async move {
        let address = two(setting, "agent", 1).await?;
        let load = load(address, 100.0)?;
        let pods = setting.pods("agent", "edge").await?;
        for round in 0..6 {
            for pod in &pods {
                // the process below the supervisor: whatever else ends it, an OOM kill or a panic, ends that one
                let killed =
                    node_of(setting, pod)?.command("pkill")?.args(["-KILL", "-f", "haproxy-fleet agent .*--supervisor"]).status()?;
                assert!(killed.success(), "there is an agent to kill in round {round}");
                let name = pod["metadata"]["name"].as_str().unwrap_or_default();
                let now = setting.get(&["pod", "-n", "agent", name]).await?;
                assert!(is_ready(&now), "HAProxy serves whatever its agent does");
                assert_eq!(container(&now, "agent")["restartCount"], 0, "its supervisor starts it again");
            }
            eventually("every agent to be back", SOON, || async {
                for pod in &pods {
                    let found = node_of(setting, pod)?.command("pgrep")?.args(["-f", "haproxy-fleet agent .*--supervisor"]).output()?;
                    if !found.status.success() {
                        return Err(Failure::new("one is not"));
                    }
                }
                Ok(())
            })
            .await?;
        }
        // and they still follow changes
        setting.apply(&ingress("agent", "more", "agent", "more.example", "web")).await?;
        eventually("a new route", SOON, || http::expect(address, "more.example", "/", 200)).await?;
        let report = load.stop().await;
        println!("{}", haproxy_fleet_e2e::json_line("agents killed", 1, &report));
        assert_eq!(report.lost, 0, "{:?}", report.examples);
        setting.remove(&["agent"]).await
    });
}

#[test]
fn the_leader_is_killed_and_another_one_writes() {
    run_on_ours(|setting| async move {
        let address = two(setting, "leader", 1).await?;
        let lease = || async { setting.get(&["lease", "-n", SYSTEM, "haproxy-fleet"]).await };
        let holder = lease().await?["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
        let pod = holder.split('_').next().unwrap_or_default().to_owned();
        let dead = setting.get(&["pod", "-n", SYSTEM, &pod]).await?;
        kill(setting, &dead, "operator")?;
        let began = std::time::Instant::now();
        // agents are served while nobody leads
        setting.apply(&ingress("leader", "more", "leader", "more.example", "web")).await?;
        eventually("a new route from a standby", SOON, || http::expect(address, "more.example", "/", 200)).await?;
        let is_led = lease().await?["spec"]["holderIdentity"] != holder.as_str();
        println!("a new route after {:.1} s", began.elapsed().as_secs_f64());
        assert!(!is_led, "the route came with the next leader only: no replica that stands by was heard");
        eventually("another leader", SOON, || async {
            let now = lease().await?["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned();
            if now.is_empty() || now == holder { Err(Failure::new(now)) } else { Ok(()) }
        })
        .await?;
        println!("another leader after {:.1} s", began.elapsed().as_secs_f64());
        eventually("a status that the new leader writes", SOON, || async {
            let status = setting.get(&["ingress", "-n", "leader", "more"]).await?["status"].clone();
            if status["loadBalancer"]["ingress"].is_array() { Ok(()) } else { Err(Failure::new(status)) }
        })
        .await?;
        setting.remove(&["leader"]).await
    });
}

#[test]
fn endpoints_change_behind_an_api_server_that_was_gone() {
    run_on_ours(|setting| async move {
        let address = two(setting, "gap", 2).await?;
        let load = load(address, 100.0)?;
        let api_server = setting.ours()?.control("kube-apiserver")?;
        api_server.stop()?;
        tokio::time::sleep(Duration::from_secs(20)).await;
        api_server.start()?;
        setting.ours()?.wait_for_api_server()?;
        eventually("the API server to take changes", SOON, || async {
            setting.kubectl(&["-n", "gap", "rollout", "restart", "deployment/web"]).await
        })
        .await?;
        eventually("the rollout", SOON, || async {
            setting.kubectl(&["-n", "gap", "rollout", "status", "deployment/web", "--timeout=10s"]).await
        })
        .await?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let report = load.stop().await;
        println!("{}", haproxy_fleet_e2e::json_line("API server gone", 1, &report));
        assert_eq!(report.lost, 0, "{:?}", report.examples);
        setting.remove(&["gap"]).await
    });
}
