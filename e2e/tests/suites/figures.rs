//! How quick it is, on the real cluster. `E2E_ROUNDS` says how often each thing is done, `E2E_ROUTES` how many routes there
//! are beside it, `E2E_REST` for how many seconds the operator is watched at rest. Figures are printed, a JSON line each; what
//! must be so on any machine (no reload, no write) is asserted.

use crate::{run, run_on_ours, seconds};
use haproxy_fleet_e2e::operator::{Call, Tally};
use haproxy_fleet_e2e::setting::{Setting, echo, fleet, ingress};
use haproxy_fleet_e2e::{Failure, Outcome, SOON, eventually, http};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::Ingress;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

fn number(name: &str, usual: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

/// The share `of` (0 to 1) of `times` are at most this, in milliseconds.
fn quantile(times: &mut [Duration], of: f64) -> f64 {
    times.sort();
    #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a handful of them
    let at = ((times.len() as f64 * of).ceil() as usize).clamp(1, times.len().max(1)) - 1;
    times.get(at).map_or(f64::NAN, |time| (time.as_secs_f64() * 10_000.0).round() / 10.0)
}

fn tell(figure: &str, mut times: Vec<Duration>, more: &Value) {
    let mut line = json!({
        "figure": figure, "count": times.len(), "p50_ms": quantile(&mut times, 0.5), "p99_ms": quantile(&mut times, 0.99),
        "max_ms": quantile(&mut times, 1.0), "cores": std::thread::available_parallelism().map_or(0, usize::from),
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        line[name] = value.clone();
    }
    println!("{line}");
}

async fn pods(setting: &Setting, namespace: &str) -> Outcome<Vec<SocketAddr>> {
    let addresses = setting.pods(namespace, "edge").await?;
    let address =
        |pod: &Value| pod["status"]["podIP"].as_str().and_then(|ip| ip.parse::<IpAddr>().ok()).map(|ip| SocketAddr::new(ip, 8080));
    addresses.iter().map(|pod| address(pod).ok_or_else(|| Failure::new("a pod has no address"))).collect()
}

/// Waits until `address` answers `host` as `is_so` wants it.
async fn until(address: SocketAddr, host: &str, is_so: impl Fn(&http::Answer) -> bool) -> Outcome {
    let began = Instant::now();
    loop {
        let answer = http::get(address, host, "/").await;
        if answer.as_ref().is_ok_and(&is_so) {
            return Ok(());
        }
        if began.elapsed() > SOON {
            return Err(Failure::new(format_args!("{address} for {host}: {answer:?}")));
        }
        tokio::time::sleep(Duration::from_millis(4)).await;
    }
}

/// A fleet of three in a namespace of its own, with `routes` routes of as many Ingresses to one Service.
async fn with_routes(setting: &Setting, name: &str, routes: usize) -> Outcome {
    setting.namespace(name).await?;
    setting.apply(&echo(name, "web", 2)).await?;
    setting.apply(&fleet(name, "edge", name, 3)).await?;
    let client = setting.client().await?;
    let ingresses: Api<Ingress> = Api::namespaced(client, name);
    for number in 0..routes {
        let one: Ingress = serde_json::from_value(route(name, &format!("many-{number}"), &format!("h{number}.{name}.example")))?;
        ingresses.create(&PostParams::default(), &one).await?;
    }
    setting.ready(name, "edge").await?;
    let last = format!("h{}.{name}.example", routes.max(1) - 1);
    for pod in pods(setting, name).await? {
        until(pod, &last, |answer| answer.status == 200).await?;
    }
    Ok(())
}

fn route(class: &str, name: &str, host: &str) -> Value {
    let path = json!({"path": "/", "pathType": "Prefix", "backend": {"service": {"name": "web", "port": {"number": 80}}}});
    json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": name},
        "spec": {"ingressClassName": class, "rules": [{"host": host, "http": {"paths": [path]}}]}})
}

#[test]
fn a_fleet_that_is_applied_serves_as_soon_as_its_pods_have_started() {
    run(|setting| async move {
        let name = "start";
        setting.namespace(name).await?;
        setting.apply(&echo(name, "web", 2)).await?;
        setting.apply(&ingress(name, "web", name, "web.example", "web")).await?;
        setting.kubectl(&["-n", name, "rollout", "status", "deployment/web", "--timeout=180s"]).await?;
        let began = Instant::now();
        setting.apply(&fleet(name, "edge", name, 3)).await?;
        // from the first pod that exists to the first one that is ready is the pods' own time
        let (created, ready) = eventually("a ready pod", SOON, || async {
            let mut created = None;
            loop {
                let pods = setting.pods(name, "edge").await?;
                if !pods.is_empty() {
                    created.get_or_insert(began.elapsed());
                }
                let is_ready = |pod: &Value| {
                    pod["status"]["conditions"]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .any(|one| one["type"] == "Ready" && one["status"] == "True")
                };
                if let (Some(created), true) = (created, pods.iter().any(is_ready)) {
                    return Ok((created, began.elapsed()));
                }
                if began.elapsed() > SOON {
                    return Err(Failure::new("none"));
                }
            }
        })
        .await?;
        let address = setting.address(name, "edge", 80).await?;
        eventually("the first request", SOON, || http::expect(address, "web.example", "/", 200)).await?;
        let served = began.elapsed();
        let start = ready.saturating_sub(created);
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        println!(
            "{}",
            json!({"figure": "apply_to_first_request", "ms": milliseconds(served), "pods_own_start_ms": milliseconds(start),
                "beyond_ms": milliseconds(served.saturating_sub(start))})
        );
        setting.remove(&[name]).await
    });
}

#[test]
fn endpoints_reach_every_pod_without_a_reload() {
    run(|setting| async move {
        let (name, routes, rounds) = ("speed", number("E2E_ROUTES", 200), number("E2E_ROUNDS", 20));
        with_routes(setting, name, routes).await?;
        // a Service whose endpoints are written by this suite: now one server, now the other
        let servers = setting.get(&["pods", "-n", name, "-l", "app=web"]).await?;
        let servers: Vec<(String, String)> = servers["items"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|pod| {
                (
                    pod["status"]["podIP"].as_str().unwrap_or_default().to_owned(),
                    pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
                )
            })
            .collect();
        let service =
            "apiVersion: v1\nkind: Service\nmetadata: {name: moving, namespace: speed}\nspec: {ports: [{name: http, port: 80}]}\n";
        setting.apply(service).await?;
        setting.apply(&ingress(name, "moving", name, "moving.example", "moving")).await?;
        let slices: Api<EndpointSlice> = Api::namespaced(setting.client().await?, name);
        let slice = |address: &str| {
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"name": "moving-1", "labels": {"kubernetes.io/service-name": "moving"}},
                "ports": [{"name": "http", "port": 8080}], "endpoints": [{"addresses": [address], "conditions": {"ready": true}}]})
        };
        let pods = pods(setting, name).await?;
        let says = |server: &str| {
            let server = server.to_owned();
            move |answer: &http::Answer| answer.status == 200 && answer.text.contains(&server)
        };
        let write = |address: String| {
            let body = slice(&address);
            let slices = slices.clone();
            async move { slices.patch("moving-1", &PatchParams::apply("e2e").force(), &Patch::Apply(&body)).await }
        };
        write(servers[0].0.clone()).await?;
        for pod in &pods {
            until(*pod, "moving.example", says(&servers[0].1)).await?;
        }
        let reloads = setting.reloads(name, "edge").await?;
        let mut times = Vec::new();
        for round in 1..=rounds {
            let (address, server) = &servers[round % servers.len()];
            write(address.clone()).await?;
            let began = Instant::now();
            let all = pods.iter().map(|pod| async { until(*pod, "moving.example", says(server)).await.map(|()| began.elapsed()) });
            times.extend(futures::future::try_join_all(all).await?);
        }
        assert_eq!(setting.reloads(name, "edge").await?, reloads, "endpoints are live");
        tell("endpoints_to_every_pod", times, &json!({"routes": routes, "reloads": 0}));
        setting.remove(&[name]).await
    });
}

#[test]
fn an_ingress_is_served_by_every_pod_without_a_reload() {
    run(|setting| async move {
        let (name, routes, rounds) = ("arrival", number("E2E_ROUTES", 200), number("E2E_ROUNDS", 20));
        with_routes(setting, name, routes).await?;
        let ingresses: Api<Ingress> = Api::namespaced(setting.client().await?, name);
        let pods = pods(setting, name).await?;
        let reloads = setting.reloads(name, "edge").await?;
        let mut times = Vec::new();
        for round in 0..rounds {
            let host = format!("new-{round}.{name}.example");
            let one: Ingress = serde_json::from_value(route(name, &format!("new-{round}"), &host))?;
            ingresses.create(&PostParams::default(), &one).await?;
            let began = Instant::now();
            let all = pods.iter().map(|pod| async { until(*pod, &host, |answer| answer.status == 200).await.map(|()| began.elapsed()) });
            times.extend(futures::future::try_join_all(all).await?);
        }
        assert_eq!(setting.reloads(name, "edge").await?, reloads, "a route is live");
        ingresses.delete("new-0", &DeleteParams::default()).await?;
        tell("ingress_to_every_pod", times, &json!({"routes": routes, "reloads": 0}));
        setting.remove(&[name]).await
    });
}

/// What was written but Leases. Reviews of tokens are stored nowhere.
fn writes(calls: &BTreeMap<Call, Tally>) -> Vec<String> {
    let is_write = |(_, resource, verb): &Call| {
        !matches!(verb.as_str(), "get" | "list" | "watch") && !matches!(resource.as_str(), "leases" | "tokenreviews")
    };
    calls
        .iter()
        .filter(|(call, _)| is_write(call))
        .map(|((_, resource, verb), tally)| format!("{verb} {resource}: {}", tally.allowed))
        .collect()
}

/// Waits until nothing was written for a moment, and says how long the log is then.
async fn at_rest(setting: &Setting) -> Outcome<u64> {
    let log = || async { setting.calls(0).await?.map(|(_, end)| end).ok_or_else(|| Failure::new("nothing is written down")) };
    let mut last = log().await?;
    for _ in 0..30 {
        tokio::time::sleep(Duration::from_secs(6)).await;
        let (calls, end) = setting.calls(last).await?.ok_or_else(|| Failure::new("nothing is written down"))?;
        if writes(&calls).is_empty() {
            return Ok(end);
        }
        last = end;
    }
    Err(Failure::new("the operator is never at rest"))
}

#[test]
fn an_operator_at_rest_writes_nothing_but_its_lease() {
    run_on_ours(|setting| async move {
        let name = "rest";
        setting.namespace(name).await?;
        setting.apply(&echo(name, "web", 2)).await?;
        setting.apply(&ingress(name, "web", name, "web.example", "web")).await?;
        setting.apply(&fleet(name, "edge", name, 2)).await?;
        setting.ready(name, "edge").await?;
        let from = at_rest(setting).await?;
        let watched = seconds("E2E_REST", 30);
        tokio::time::sleep(watched).await;
        let (calls, _) = setting.calls(from).await?.ok_or_else(|| Failure::new("nothing is written down"))?;
        let writes = writes(&calls);
        println!("{}", json!({"figure": "writes_at_rest", "seconds": watched.as_secs(), "calls": calls.len(), "writes": writes}));
        assert!(writes.is_empty(), "{writes:?}");
        setting.remove(&[name]).await
    });
}
