//! A fleet with a tenant behind it, and clients of all kinds at its door.

use crate::setting::{Setting, echo, ingress};
use crate::{Failure, Outcome, SOON, eventually, http};
use fleet_load::{Config, Handle, Load, Mix, Part, Protocol, Report, Target, Unit};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

/// A host that is answered.
pub const HOST: &str = "web.example";

/// The fleet `edge` in a namespace of its own, with a tenant beside it.
#[derive(Clone, Copy, Debug)]
pub struct Edge {
    setting: &'static Setting,
    /// The namespace, which is also the class.
    pub name: &'static str,
    /// Where clients connect to.
    pub address: SocketAddr,
}

/// The manifest of a fleet with short phases: `spec` is merged into what it says.
pub fn manifest(name: &str, spec: &Value) -> Value {
    let mut fleet = json!({
        "apiVersion": "haproxy-fleet.dev/v1alpha1", "kind": "IngressDeployment", "metadata": {"name": "edge", "namespace": name},
        "spec": {
            "ingressClassName": name, "replicas": 2,
            "rollout": {"minReadySeconds": 2}, "drain": {"deregistrationDelay": "3s", "timeout": "10s"},
        },
    });
    merge(&mut fleet["spec"], spec);
    fleet
}

/// As a JSON Merge Patch (RFC 7386) does.
fn merge(into: &mut Value, patch: &Value) {
    let (Some(target), Some(patch)) = (into.as_object_mut(), patch.as_object()) else { return into.clone_from(patch) };
    for (name, value) in patch {
        if value.is_null() {
            target.remove(name);
        } else {
            merge(target.entry(name).or_insert(Value::Null), value);
        }
    }
}

impl Edge {
    /// Makes it, and waits until it answers.
    pub async fn new(setting: &'static Setting, name: &'static str, spec: &Value) -> Outcome<Self> {
        setting.namespace(name).await?;
        setting.apply(&echo(name, "web", 3)).await?;
        // its servers are not all taken at a time either
        let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web", "namespace": name},
            "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "web"}}}});
        setting.apply(&budget.to_string()).await?;
        setting.apply(&ingress(name, "web", name, HOST, "web")).await?;
        setting.apply(&manifest(name, spec).to_string()).await?;
        setting.ready(name, "edge").await?;
        let address = setting.address(name, "edge", 80).await?;
        eventually("the tenant", SOON, || http::expect(address, HOST, "/", 200)).await?;
        Ok(Self { setting, name, address })
    }

    /// Changes its spec.
    pub async fn change(&self, spec: &Value) -> Outcome {
        self.patch(&json!({ "spec": spec })).await
    }

    /// Writes or takes away an annotation of it.
    pub async fn annotate(&self, annotation: &str, value: Option<&str>) -> Outcome {
        self.patch(&json!({"metadata": {"annotations": {annotation: value}}})).await
    }

    async fn patch(&self, patch: &Value) -> Outcome {
        self.setting.kubectl(&["-n", self.name, "patch", "ingd", "edge", "--type=merge", "-p", &patch.to_string()]).await.map(drop)
    }

    /// All of its pods, those on their way out included.
    pub async fn all_pods(&self) -> Outcome<Vec<Value>> {
        let list = self.setting.get(&["-n", self.name, "pods", "-l", "haproxy-fleet.dev/fleet=edge"]).await?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// The templates that its pods were made from.
    pub async fn templates(&self) -> Outcome<BTreeSet<String>> {
        Ok(self.all_pods().await?.iter().map(|pod| text(&pod["metadata"]["annotations"]["haproxy-fleet.dev/template"])).collect())
    }

    /// Waits until all pods are `replicas` of one template that is none of `before`, ready, and no other is left.
    pub async fn replaced(&self, before: &BTreeSet<String>, replicas: usize, limit: Duration) -> Outcome {
        eventually("pods of another template alone", limit, || async {
            let pods = self.all_pods().await?;
            let templates: BTreeSet<String> =
                pods.iter().map(|pod| text(&pod["metadata"]["annotations"]["haproxy-fleet.dev/template"])).collect();
            let is_so = pods.len() == replicas && pods.iter().all(is_ready) && templates.len() == 1 && templates.is_disjoint(before);
            if is_so { Ok(()) } else { Err(Failure::new(format_args!("{} pods of {templates:?}", pods.len()))) }
        })
        .await
    }

    /// Waits until it has `replicas` pods that are ready, and no other.
    pub async fn has(&self, replicas: usize) -> Outcome {
        eventually("the pods", SOON, || async {
            let pods = self.all_pods().await?;
            let ready = pods.iter().filter(|pod| is_ready(pod)).count();
            if pods.len() == replicas && ready == replicas { Ok(()) } else { Err(Failure::new(format_args!("{ready} of {}", pods.len()))) }
        })
        .await
    }

    /// Waits until `status.rollout` is as `is_so` wants it.
    pub async fn rollout(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Outcome<Value> {
        eventually(what, SOON, || async {
            let rollout = self.setting.fleet(self.name, "edge").await?["rollout"].clone();
            if is_so(&rollout) { Ok(rollout) } else { Err(Failure::new(rollout)) }
        })
        .await
    }

    /// Sends what clients of all kinds send: over kept connections and new ones, what takes time, sockets and downloads.
    pub fn clients(&self, rate: f64) -> Outcome<Handle> {
        self.send(rate, true)
    }

    /// The same without what a server's end cuts off: for where servers of the tenant go as well.
    pub fn clients_of_requests(&self, rate: f64) -> Outcome<Handle> {
        self.send(rate, false)
    }

    fn send(&self, rate: f64, lasting: bool) -> Outcome<Handle> {
        // twice as many as are busy at a time, so that no request waits for one
        let enough = |share: f64, seconds: f64| count(2.0 * rate * share / 100.0 * seconds).max(16);
        let part = |name: &str, share: f64, protocol: Protocol, path: &str, unit: Unit, connections: usize| {
            let target = Target::new(self.address, HOST, path);
            Part { name: name.to_owned(), share, config: Config { protocol, unit, connections, ..Config::new(vec![target]) } }
        };
        let socket = Unit::WebSocket { lasts: Duration::from_secs(5), every: Duration::from_millis(500), stays: Duration::ZERO };
        let mut parts = vec![
            part("kept", 58.0, Protocol::Http1KeepAlive, "/", Unit::Request, 16),
            part("new", 29.0, Protocol::Http1Close, "/", Unit::Request, 64),
            part("h2", 10.0, Protocol::Http2, "/", Unit::Request, 4),
            part("slow", 2.0, Protocol::Http1KeepAlive, "/slow?for=2s", Unit::Request, enough(2.0, 2.0)),
        ];
        if lasting {
            let download = Unit::Download { bytes_per_second: 60_000 };
            parts.push(part("sockets", 0.5, Protocol::Http1KeepAlive, "/ws", socket, enough(0.5, 5.0)));
            parts.push(part("downloads", 0.5, Protocol::Http1Close, "/bytes?n=300000", download, enough(0.5, 5.0)));
        }
        Load::start_mix(Mix { rate, duration: None, parts }).map_err(Failure::new)
    }

    /// Deletes it with its namespace.
    pub async fn remove(&self) -> Outcome {
        self.setting.remove(&[self.name]).await
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a few hundred
fn count(number: f64) -> usize {
    number.ceil() as usize
}

/// Whether a pod is ready.
pub fn is_ready(pod: &Value) -> bool {
    pod["status"]["conditions"].as_array().into_iter().flatten().any(|one| one["type"] == "Ready" && one["status"] == "True")
}

/// The highest rate that leaves the machine a third idle, as far as steps of a half show it: `E2E_RATE` if that is set.
pub async fn calm_rate(edge: &Edge) -> Outcome<f64> {
    if let Some(rate) = std::env::var("E2E_RATE").ok().and_then(|text| text.parse().ok()) {
        return Ok(rate);
    }
    let mut rate = 60.0;
    while rate < 2000.0 {
        let next = rate * 1.5;
        let load = edge.clients(next)?;
        // connections are opened first
        tokio::time::sleep(Duration::from_secs(2)).await;
        let before = busy()?;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let after = busy()?;
        drop(load);
        #[allow(clippy::cast_precision_loss)] // jiffies of seconds
        let idle = (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64;
        if idle < 1.0 / 3.0 {
            break;
        }
        rate = next;
    }
    Ok(rate)
}

/// Jiffies that the machine was idle, and all of them.
fn busy() -> Outcome<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let numbers: Vec<u64> = text.lines().next().unwrap_or_default().split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let idle = numbers.get(3).copied().unwrap_or(0) + numbers.get(4).copied().unwrap_or(0);
    Ok((idle, numbers.iter().take(8).sum()))
}

/// Prints what a suite under load is judged by, and keeps the report and its picture beside the build.
#[allow(clippy::print_stdout)] // it is what a run is looked at for
pub fn tell(suite: &str, updates: u64, report: &Report) -> Outcome {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/e2e");
    std::fs::create_dir_all(&directory)?;
    let file = |ending: &str| directory.join(format!("{}.{ending}", suite.replace(' ', "-")));
    std::fs::write(file("json"), serde_json::to_vec_pretty(report)?)?;
    std::fs::write(file("svg"), report.svg())?;
    println!("{}", crate::json_line(suite, updates, report));
    Ok(())
}
