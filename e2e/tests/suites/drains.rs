//! Pods of a fleet come and go, and no client notices.

use crate::run;
use fleet_load::{Config, Load, Mix, Part, Protocol, Target};
use haproxy_fleet_e2e::setting::{Setting, echo, fleet, ingress};
use haproxy_fleet_e2e::{Failure, Outcome, SOON, eventually, http};
use serde_json::json;
use std::net::SocketAddr;

/// What clients of all kinds send: over kept connections and over new ones, and some of what takes two seconds.
fn clients(address: SocketAddr) -> Mix {
    let part = |name: &str, share: f64, protocol: Protocol, path: &str| {
        let config = Config { protocol, connections: 16, ..Config::new(vec![Target::new(address, "web.example", path)]) };
        Part { name: name.to_owned(), share, config }
    };
    let parts = vec![
        part("kept", 60.0, Protocol::Http1KeepAlive, "/"),
        part("new", 30.0, Protocol::Http1Close, "/"),
        part("slow", 2.0, Protocol::Http1KeepAlive, "/slow?for=2s"),
    ];
    Mix { rate: 92.0, duration: None, parts }
}

/// Waits until every pod of the fleet was made with the annotation `example.com/round` of this value, and no other is left.
async fn replaced(setting: &Setting, name: &str, round: &str) -> Outcome {
    eventually("pods of the new template alone", SOON, || async {
        let pods = setting.get(&["-n", name, "pods", "-l", "haproxy-fleet.dev/fleet=edge"]).await?;
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        let is_new = |pod: &serde_json::Value| pod["metadata"]["annotations"]["example.com/round"] == round;
        if pods.len() == 2 && pods.iter().all(is_new) { Ok(()) } else { Err(Failure::new(format_args!("{} pods", pods.len()))) }
    })
    .await?;
    setting.ready(name, "edge").await
}

#[test]
fn pods_are_replaced_and_evicted_under_load_and_no_request_is_lost() {
    run(|setting| async move {
        let name = "replaced";
        setting.namespace(name).await?;
        setting.apply(&echo(name, "web", 2)).await?;
        setting.apply(&ingress(name, "web", name, "web.example", "web")).await?;
        setting.apply(&fleet(name, "edge", name, 2)).await?;
        setting.ready(name, "edge").await?;
        let address = setting.address(name, "edge", 80).await?;
        eventually("the tenant", SOON, || http::expect(address, "web.example", "/", 200)).await?;
        let load = Load::start_mix(clients(address)).map_err(Failure::new)?;
        for round in ["1", "2"] {
            load.mark(format!("template {round}"));
            let annotations = json!({"spec": {"podAnnotations": {"example.com/round": round}}}).to_string();
            setting.kubectl(&["-n", name, "patch", "ingd", "edge", "--type=merge", "-p", &annotations]).await?;
            replaced(setting, name, round).await?;
        }
        for pod in setting.pods(name, "edge").await? {
            let pod = pod["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            load.mark(format!("{pod} is evicted"));
            evict(setting, name, &pod).await?;
            eventually("it to be gone", SOON, || async {
                let left = setting.kubectl(&["-n", name, "get", "pod", &pod, "--ignore-not-found", "-o", "name"]).await?;
                if left.trim().is_empty() { Ok(()) } else { Err(Failure::new(left)) }
            })
            .await?;
            replaced(setting, name, "2").await?;
        }
        let report = load.stop().await;
        println!("{}", haproxy_fleet_e2e::json_line("pods replaced", 4, &report));
        assert_eq!(report.lost, 0, "{:?}", report.examples);
        setting.remove(&[name]).await
    });
}

/// As `kubectl drain` does, as soon as the budget of disruptions allows it.
async fn evict(setting: &Setting, namespace: &str, pod: &str) -> Outcome {
    let eviction = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"namespace": namespace, "name": pod}}).to_string();
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}/eviction");
    let ask = || async { setting.kubectl_with(&["create", "--raw", &path, "-f", "-"], &eviction).await };
    eventually("the eviction to be allowed", SOON, ask).await.map(drop)
}
