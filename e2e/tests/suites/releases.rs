//! A configuration that takes a reload gets from pod to pod, is taken back where it does harm, and can be gone back to.

use crate::run;
use haproxy_fleet_e2e::edge::{Edge, tell};
use haproxy_fleet_e2e::setting::{Setting, ingress};
use haproxy_fleet_e2e::{Failure, Outcome, SOON, eventually, http};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The zone of each pod of a fleet.
async fn zones(edge: &Edge) -> Outcome<BTreeMap<String, String>> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let pods = edge.all_pods().await?;
    let metadata = pods.iter().map(|pod| &pod["metadata"]);
    Ok(metadata.map(|data| (text(&data["name"]), text(&data["labels"]["haproxy-fleet.dev/zone"]))).collect())
}

/// Pods that reloaded since `before`.
async fn reloaded(setting: &Setting, edge: &Edge, before: &BTreeMap<String, u64>) -> Outcome<BTreeSet<String>> {
    let now = setting.reloads(edge.name, "edge").await?;
    Ok(now.into_iter().filter(|(pod, count)| before.get(pod).is_some_and(|before| count > before)).map(|(pod, _)| pod).collect())
}

/// The zones of pods in the order in which these reload, once all have.
async fn order(setting: &Setting, edge: &Edge, before: &BTreeMap<String, u64>) -> Outcome<Vec<BTreeSet<String>>> {
    let (seen, began) = (tokio::sync::Mutex::new(vec![BTreeSet::new()]), Instant::now());
    eventually("reloads of all pods", SOON, || async {
        let (now, mut seen) = (reloaded(setting, edge, before).await?, seen.lock().await);
        if seen.last() != Some(&now) {
            println!("{:.1} s: reloaded {now:?}", began.elapsed().as_secs_f64());
            seen.push(now.clone());
        }
        if now.len() == before.len() { Ok(()) } else { Err(Failure::new(format_args!("{now:?} of {before:?}"))) }
    })
    .await?;
    Ok(seen.into_inner())
}

fn assert_goes_by_zones(order: &[BTreeSet<String>], zones: &BTreeMap<String, String>) {
    assert_eq!(order.get(1).map(BTreeSet::len), Some(1), "one pod is the first: {order:?}");
    for pair in order.windows(2) {
        let touched: BTreeSet<&String> = pair[1].difference(&pair[0]).filter_map(|pod| zones.get(pod)).collect();
        assert_eq!(touched.len(), 1, "one zone at a time: {order:?}");
        let whole = |zone: &String| zones.iter().filter(|(_, of)| *of == zone).all(|(pod, _)| pair[0].contains(pod));
        let begun: BTreeSet<&String> = pair[0].iter().filter_map(|pod| zones.get(pod)).collect();
        assert!(begun.iter().all(|zone| touched.contains(*zone) || whole(zone)), "a zone is finished first: {order:?}");
    }
}

/// What its checks of servers expect; nobody answers with anything but 200.
fn checks(namespace: &str, status: u16) -> String {
    let expect = json!([{"type": "expect", "match": "status", "pattern": status.to_string()}]);
    json!({"apiVersion": "haproxy-fleet.dev/v1alpha1", "kind": "Backend", "metadata": {"name": "checked", "namespace": namespace},
        "spec": {"adv_check": "httpchk", "httpchk_params": {"method": "GET", "uri": "/"}, "http_check_list": expect}})
    .to_string()
}

/// The reason for which the Backend is not as asked.
async fn refusal(setting: &Setting, edge: &Edge) -> Outcome<String> {
    let backend = setting.get(&["-n", edge.name, "backends.haproxy-fleet.dev", "checked"]).await?;
    let conditions = backend["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let ready = conditions.into_iter().find(|one| one["type"] == "Ready" && one["status"] == "False").unwrap_or_default();
    Ok(format!("{}: {}", ready["reason"].as_str().unwrap_or_default(), ready["message"].as_str().unwrap_or_default()))
}

/// The number of the present revision, once all pods have it and it is kept.
async fn settled(setting: &Setting, edge: &Edge) -> Outcome<u64> {
    eventually("the present revision to be kept", SOON, || async {
        let history = setting.plugin(&["history", "edge", "--namespace", edge.name]).await?;
        match history.lines().find(|line| line.contains("served")).and_then(|line| line.split_whitespace().next()) {
            // what is not said yet is the one before
            Some(number) if history.lines().nth(1).is_some_and(|newest| newest.starts_with(number)) => number.parse().map_err(Failure::new),
            _ => Err(Failure::new(history)),
        }
    })
    .await
}

/// The same, of one that came after `before`.
async fn settled_after(setting: &Setting, edge: &Edge, before: u64) -> Outcome<u64> {
    eventually("another revision", SOON, || async {
        let now = settled(setting, edge).await?;
        if now > before { Ok(now) } else { Err(Failure::new(now)) }
    })
    .await
}

#[test]
fn a_reload_goes_from_pod_to_pod_and_what_does_harm_stays_in_the_first_one() {
    run(|setting| async move {
        let spec = json!({"replicas": 4, "zones": [{"name": "zone-a"}, {"name": "zone-b"}]});
        let edge = Edge::new(setting, "releases", &spec).await?;
        // another tenant, with servers of the same Deployment
        let service = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "checked", "namespace": edge.name, "annotations": {"haproxy-fleet.dev/backend": "checked"}},
            "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]}});
        let first = settled(setting, &edge).await?;
        setting.apply(&checks(edge.name, 200)).await?;
        setting.apply(&service.to_string()).await?;
        setting.apply(&ingress(edge.name, "checked", edge.name, "checked.example", "checked")).await?;
        eventually("the other tenant", SOON, || http::expect(edge.address, "checked.example", "/", 200)).await?;
        settled_after(setting, &edge, first).await?;
        let zones = zones(&edge).await?;
        let load = edge.clients(60.0)?;

        load.mark("a reload");
        let before = setting.reloads(edge.name, "edge").await?;
        edge.change(&json!({"tuning": {"headerBufferBytes": 20000}})).await?;
        assert_goes_by_zones(&order(setting, &edge, &before).await?, &zones);

        load.mark("checks that fail");
        let before = setting.reloads(edge.name, "edge").await?;
        setting.apply(&checks(edge.name, 418)).await?;
        let why = eventually("the change to be taken back", SOON, || async {
            let why = refusal(setting, &edge).await?;
            if why.starts_with("Quarantined") { Ok(why) } else { Err(Failure::new(why)) }
        })
        .await?;
        println!("it says: {why}");
        assert!(why.contains("fare worse"), "{why}");
        // it is not tried again by itself: there and back is all that the first pod sees of it
        let there_and_back = eventually("the first pod to be back", SOON, || async {
            let now = setting.reloads(edge.name, "edge").await?;
            let more: Vec<(&String, u64)> =
                now.iter().map(|(pod, count)| (pod, count - before[pod])).filter(|(_, more)| *more > 0).collect();
            if more.len() == 1 && more[0].1 == 2 { Ok(now.clone()) } else { Err(Failure::new(format_args!("{more:?}"))) }
        })
        .await?;
        for _ in 0..20 {
            assert_eq!(setting.reloads(edge.name, "edge").await?, there_and_back);
            assert!(refusal(setting, &edge).await?.starts_with("Quarantined"));
            http::expect(edge.address, "checked.example", "/", 200).await?;
            tokio::time::sleep(Duration::from_secs(1)).await;
        }

        load.mark("mended");
        setting.apply(&checks(edge.name, 200)).await?;
        eventually("the Backend to be as asked", SOON, || async {
            let why = refusal(setting, &edge).await?;
            if why == ": " { Ok(()) } else { Err(Failure::new(why)) }
        })
        .await?;
        http::expect(edge.address, "checked.example", "/", 200).await?;
        let report = load.stop().await;
        tell("releases", 3, &report)?;
        assert_eq!(report.lost, 0, "{:?}", report.examples);
        edge.remove().await
    });
}

/// Goes to a revision; how long it took until all pods confirmed it.
async fn roll_back(setting: &Setting, edge: &Edge, to: &str) -> Outcome<Duration> {
    let began = Instant::now();
    let said = setting.plugin(&["rollback", to, "edge", "--namespace", edge.name]).await?;
    let took = began.elapsed();
    if !said.contains("is confirmed by all pods") {
        return Err(Failure::new(said));
    }
    println!("{said}");
    Ok(took)
}

#[test]
fn a_fleet_goes_back_to_a_revision_and_to_the_present_in_seconds() {
    run(|setting| async move {
        let spec = json!({"replicas": 4, "zones": [{"name": "zone-a"}, {"name": "zone-b"}]});
        let edge = Edge::new(setting, "back", &spec).await?;
        let first = settled(setting, &edge).await?;
        // a reload and a route
        edge.change(&json!({"tuning": {"headerBufferBytes": 20000}})).await?;
        setting.apply(&ingress(edge.name, "new", edge.name, "new.example", "web")).await?;
        eventually("the new route", SOON, || http::expect(edge.address, "new.example", "/", 200)).await?;
        let second = settled_after(setting, &edge, first).await?;
        let load = edge.clients(60.0)?;
        let mut seconds: Vec<f64> = Vec::new();
        for round in 1..=5 {
            for (to, answer) in [(first.to_string(), 404), ("present".to_owned(), 200)] {
                // a pod reloads once in five seconds at most, and somebody who goes back has looked for longer at what is wrong
                tokio::time::sleep(Duration::from_secs(6)).await;
                load.mark(format!("{to} {round}"));
                seconds.push(roll_back(setting, &edge, &to).await?.as_secs_f64());
                // each connection may be another pod's
                for _ in 0..20 {
                    http::expect(edge.address, "new.example", "/", answer).await?;
                }
            }
        }
        assert_eq!(setting.fleet(edge.name, "edge").await?["revision"].as_u64(), Some(second));
        println!(
            "{}",
            json!({"figure": "rollback", "seconds": seconds, "most": seconds.iter().copied().fold(0.0, f64::max),
            "cores": std::thread::available_parallelism().map_or(0, usize::from)})
        );
        let report = load.stop().await;
        tell("rollback", 10, &report)?;
        assert_eq!(report.lost, 0, "{:?}", report.examples);
        let refused = setting.plugin(&["rollback", "4711", "edge", "--namespace", edge.name]).await;
        assert!(refused.is_err_and(|why| why.to_string().contains("choose one of")));
        edge.remove().await
    });
}
