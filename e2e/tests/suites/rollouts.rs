//! Pod templates and configurations are rolled out, and no client notices.

use crate::{run, run_on_ours};
use haproxy_fleet_e2e::edge::{Edge, calm_rate, tell};
use haproxy_fleet_e2e::setting::{SYSTEM, Setting};
use haproxy_fleet_e2e::{Failure, Outcome, SOON, eventually};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const ABORT: &str = "haproxy-fleet.dev/abort";
const ROLLOUT: &str = "haproxy-fleet.dev/rollout";

fn zones(names: &[&str]) -> Value {
    names.iter().map(|name| json!({"name": name})).collect()
}

/// One of the updates that people make.
#[derive(Clone, Copy, Debug)]
enum Update {
    /// Something of the pod template.
    Template,
    /// The release line of HAProxy.
    Haproxy,
    /// The agent, with an operator of another image.
    Agent,
    /// The operator's pods.
    Operator,
    /// What takes a reload.
    Reload,
    /// A reload in the middle of new pods, while the operator is replaced.
    Mixed,
}

/// Six of them make a round.
const ROUND: [Update; 6] = [Update::Template, Update::Reload, Update::Operator, Update::Haproxy, Update::Mixed, Update::Agent];

async fn operator_restarts(setting: &Setting) -> Outcome {
    setting.kubectl(&["-n", SYSTEM, "rollout", "restart", "deployment/haproxy-fleet"]).await?;
    operator_is_back(setting).await
}

async fn operator_is_back(setting: &Setting) -> Outcome {
    setting.kubectl(&["-n", SYSTEM, "rollout", "status", "deployment/haproxy-fleet", "--timeout=180s"]).await.map(drop)
}

/// Gives the operator, and with it agents, its image under another name.
async fn another_image(setting: &Setting, number: usize) -> Outcome {
    let name = "haproxy-fleet.dev/haproxy-fleet";
    let (old, new) = (format!("{name}:0.1.0"), format!("{name}:update-{number}"));
    let cluster = setting.ours()?;
    for node in cluster.nodes() {
        let ctr = cluster.layout().program("ctr").display().to_string();
        let tagged = node.command(&ctr)?.args(["-n", "k8s.io", "images", "tag", "--force", &old, &new]).output()?;
        if !tagged.status.success() {
            return Err(Failure::new(String::from_utf8_lossy(&tagged.stderr)));
        }
    }
    let container = json!({"name": "operator", "image": new, "args": [
        "operator", "--namespace=$(NAMESPACE)", "--pod-name=$(POD)", format!("--image={new}"),
        "--haproxy-image=3.4=haproxy-fleet.dev/haproxy:3.4", "--haproxy-image=3.2=haproxy-fleet.dev/haproxy:3.2",
    ]});
    let patch = json!({"spec": {"template": {"spec": {"containers": [container]}}}}).to_string();
    setting.kubectl(&["-n", SYSTEM, "patch", "deployment", "haproxy-fleet", "-p", &patch]).await?;
    operator_is_back(setting).await
}

/// Waits until every pod reloaded since `before`, or is new.
async fn reloaded(setting: &Setting, name: &str, before: &BTreeMap<String, u64>) -> Outcome {
    eventually("reloads of all pods", SOON, || async {
        let now = setting.reloads(name, "edge").await?;
        let is_so = !now.is_empty() && now.iter().all(|(pod, count)| before.get(pod).is_none_or(|before| count > before));
        if is_so { Ok(()) } else { Err(Failure::new(format_args!("{before:?} {now:?}"))) }
    })
    .await
}

async fn update(setting: &Setting, edge: &Edge, update: Update, number: usize) -> Outcome {
    let before = edge.templates().await?;
    let annotations = json!({"podAnnotations": {"example.com/update": number.to_string()}});
    // the buffers of a process are made at its start
    let reload = json!({"tuning": {"headerBufferBytes": 16384 + 16 * number}});
    match update {
        Update::Template => edge.change(&annotations).await?,
        Update::Haproxy => edge.change(&json!({"haproxyVersion": if number % 12 < 6 { "3.2" } else { "3.4" }})).await?,
        Update::Agent => another_image(setting, number).await?,
        Update::Operator => return operator_restarts(setting).await,
        Update::Reload => {
            let reloads = setting.reloads(edge.name, "edge").await?;
            edge.change(&reload).await?;
            return reloaded(setting, edge.name, &reloads).await;
        }
        Update::Mixed => {
            edge.change(&annotations).await?;
            edge.change(&reload).await?;
            operator_restarts(setting).await?;
        }
    }
    edge.replaced(&before, 2, SOON * 2).await
}

#[test]
fn updates_in_a_row_of_everything_lose_no_request() {
    run_on_ours(|setting| async move {
        let spec = json!({"zones": zones(&["zone-a", "zone-b"]), "upgradePolicy": "Automatic"});
        let edge = Edge::new(setting, "updates", &spec).await?;
        let rate = calm_rate(&edge).await?;
        let updates = std::env::var("E2E_UPDATES").ok().and_then(|text| text.parse().ok()).unwrap_or(36);
        println!("{updates} updates at {rate:.0} requests a second");
        let load = edge.clients(rate)?;
        for number in 1..=updates {
            let what = ROUND[(number - 1) % ROUND.len()];
            let began = Instant::now();
            load.mark(format!("{number} {what:?}"));
            update(setting, &edge, what, number).await?;
            println!("update {number} {what:?}: {:.0} s, lost so far: {}", began.elapsed().as_secs_f64(), load.lost());
        }
        let report = load.stop().await;
        tell("rollouts", updates as u64, &report)?;
        assert_eq!(report.lost, 0, "{:?}", report.examples);
        edge.remove().await?;
        setting.install().await
    });
}

#[test]
fn an_update_with_the_times_that_are_usual_loses_no_request() {
    run(|setting| async move {
        let edge = Edge::new(setting, "usual", &json!({"rollout": null, "drain": null})).await?;
        let (before, load) = (edge.templates().await?, edge.clients(100.0)?);
        edge.change(&json!({"podAnnotations": {"example.com/update": "1"}})).await?;
        edge.replaced(&before, 2, SOON * 5).await?;
        let report = load.stop().await;
        tell("usual times", 1, &report)?;
        assert_eq!(report.lost, 0, "{:?}", report.examples);
        edge.remove().await
    });
}

#[test]
fn a_template_that_never_gets_ready_stops_in_its_zone_and_is_taken_back() {
    run(|setting| async move {
        let spec = json!({"replicas": 3, "zones": zones(&["zone-a", "zone-b", "zone-c"]), "rollout": {"progressDeadlineSeconds": 20}});
        let edge = Edge::new(setting, "stalled", &spec).await?;
        let stable = edge.rollout("the template that all run", |rollout| rollout["stable"].is_string()).await?["stable"].clone();
        let load = edge.clients(60.0)?;
        // no node has so much
        edge.change(&json!({"resources": {"requests": {"memory": "900Gi"}, "limits": {"memory": "900Gi"}}})).await?;
        let stalled = edge.rollout("the rollout to stall", |rollout| rollout["state"] == "Stalled").await?;
        let message = stalled["message"].as_str().unwrap_or_default().to_owned();
        println!("it says: {message}");
        assert!(message.contains("zone-a"), "it names the zone: {message}");
        let touched: Vec<&Value> =
            stalled["zones"].as_array().into_iter().flatten().filter(|zone| zone["template"] != stable).map(|zone| &zone["name"]).collect();
        assert_eq!(touched, ["zone-a"]);
        edge.annotate(ABORT, stalled["template"].as_str()).await?;
        edge.rollout("the fleet to be back", |rollout| {
            let zones = rollout["zones"].as_array().cloned().unwrap_or_default();
            rollout["state"] == "Aborted"
                && zones.iter().all(|zone| zone["template"] == stable && zone["updated"] == 1 && zone["ready"] == 1)
        })
        .await?;
        // another spec is another template
        edge.annotate(ABORT, None).await?;
        edge.change(&json!({"resources": null})).await?;
        edge.rollout("a fleet as asked", |rollout| rollout["state"] == "Complete").await?;
        setting.ready("stalled", "edge").await?;
        let report = load.stop().await;
        tell("stalled", 1, &report)?;
        assert_eq!(report.lost, 0, "{:?}", report.examples);
        edge.remove().await
    });
}

#[test]
fn a_rollout_is_paused_aborted_and_goes_on_under_load() {
    run(|setting| async move {
        let edge = Edge::new(setting, "paused", &json!({"replicas": 4, "zones": zones(&["zone-a", "zone-b"])})).await?;
        edge.rollout("the template that all run", |rollout| rollout["stable"].is_string()).await?;
        let (before, load) = (edge.templates().await?, edge.clients(60.0)?);
        edge.change(&json!({"podAnnotations": {"example.com/update": "1"}})).await?;
        eventually("a pod of the new template", SOON, || async {
            if edge.templates().await?.len() > 1 { Ok(()) } else { Err(Failure::new("none")) }
        })
        .await?;
        load.mark("paused");
        edge.annotate(ROLLOUT, Some("paused")).await?;
        let paused = edge.rollout("the pause", |rollout| rollout["state"] == "Paused").await?;
        let untouched = paused["zones"].as_array().into_iter().flatten().find(|zone| zone["name"] == "zone-b").cloned();
        assert!(untouched.is_some_and(|zone| before.contains(zone["template"].as_str().unwrap_or_default())), "{paused}");
        load.mark("aborted");
        edge.annotate(ABORT, paused["template"].as_str()).await?;
        edge.annotate(ROLLOUT, None).await?;
        eventually("the pods of before alone", SOON, || async {
            let now = edge.templates().await?;
            if now == before && edge.all_pods().await?.len() == 4 { Ok(()) } else { Err(Failure::new(format_args!("{now:?}"))) }
        })
        .await?;
        load.mark("again");
        edge.annotate(ABORT, None).await?;
        edge.replaced(&before, 4, SOON * 2).await?;
        let report = load.stop().await;
        tell("paused and aborted", 2, &report)?;
        assert_eq!(report.lost, 0, "{:?}", report.examples);
        edge.remove().await
    });
}

/// Seconds that nine pods take at least: each of them starts and is ready for long enough before an old one goes, and the
/// old ones of a zone are gone before the next zone begins.
fn least(start: Duration) -> Duration {
    let (min_ready, deregistration, pods, zones) = (Duration::from_secs(2), Duration::from_secs(3), 9, 3);
    (start + min_ready) * pods + deregistration * zones
}

#[test]
fn nine_pods_are_replaced_as_fast_as_the_budget_allows() {
    run(|setting| async move {
        let edge = Edge::new(setting, "nine", &json!({"replicas": 9, "zones": zones(&["zone-a", "zone-b", "zone-c"])})).await?;
        let (before, load) = (edge.templates().await?, edge.clients(60.0)?);
        let began = Instant::now();
        edge.change(&json!({"podAnnotations": {"example.com/update": "1"}})).await?;
        edge.replaced(&before, 9, SOON * 3).await?;
        let took = began.elapsed();
        let report = load.stop().await;
        tell("nine pods", 1, &report)?;
        let starts: Vec<Duration> = edge.all_pods().await?.iter().filter_map(start_of).collect();
        let start = starts.iter().sum::<Duration>() / u32::try_from(starts.len().max(1)).unwrap_or(1);
        let least = least(start);
        println!(
            "{}",
            json!({"figure": "nine_pods", "seconds": took.as_secs_f64(), "forced_seconds": least.as_secs_f64(),
                "ratio": took.as_secs_f64() / least.as_secs_f64(), "start_seconds": start.as_secs_f64(),
                "cores": std::thread::available_parallelism().map_or(0, usize::from)})
        );
        assert_eq!(report.lost, 0, "{:?}", report.examples);
        edge.remove().await
    });
}

/// How long a pod took from its making to its being ready.
fn start_of(pod: &Value) -> Option<Duration> {
    let time = |value: &Value| value.as_str()?.parse::<k8s_openapi::jiff::Timestamp>().ok();
    let ready = pod["status"]["conditions"].as_array()?.iter().find(|one| one["type"] == "Ready")?;
    time(&ready["lastTransitionTime"])?.duration_since(time(&pod["metadata"]["creationTimestamp"])?).try_into().ok()
}

#[test]
fn no_zone_is_changed_while_another_one_is_not_whole() {
    run_on_ours(|setting| async move {
        let edge = Edge::new(setting, "unwell", &json!({"replicas": 2, "zones": zones(&["zone-b", "zone-c"])})).await?;
        let (before, load) = (edge.templates().await?, edge.clients(60.0)?);
        // the only pod of a zone that nothing can be scheduled in goes
        setting.kubectl(&["cordon", "node4"]).await?;
        setting.kubectl(&["-n", "unwell", "delete", "pod", "-l", "haproxy-fleet.dev/zone=zone-c", "--wait=false"]).await?;
        edge.change(&json!({"podAnnotations": {"example.com/update": "1"}})).await?;
        let waits = edge
            .rollout("the rollout to wait for the zone", |rollout| {
                let zones = rollout["zones"].as_array().cloned().unwrap_or_default();
                zones.iter().any(|zone| zone["name"] == "zone-c" && zone["template"] != rollout["stable"])
            })
            .await?;
        println!("it says: {}", waits["message"]);
        // what is broken is repaired first; the other zone stays as it is
        let untouched = |rollout: &Value| {
            let mut zones = rollout["zones"].as_array().into_iter().flatten();
            zones.any(|zone| zone["name"] == "zone-b" && before.contains(zone["template"].as_str().unwrap_or_default()))
        };
        for _ in 0..10 {
            let rollout = setting.fleet("unwell", "edge").await?["rollout"].clone();
            assert!(untouched(&rollout), "{rollout}");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        setting.kubectl(&["uncordon", "node4"]).await?;
        edge.replaced(&before, 2, SOON * 2).await?;
        let report = load.stop().await;
        tell("a zone unwell", 1, &report)?;
        assert_eq!(report.lost, 0, "{:?}", report.examples);
        edge.remove().await
    });
}
