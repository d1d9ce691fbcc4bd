//! How large the operator is with a large cluster: a real API server with many objects and no nodes, and the operator as it
//! is released. `SIZE_INGRESSES` (10,000) Ingresses, as many Services, each with five endpoints, two fleets. One JSON line.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use fleet_cluster::ApiServer;
use futures::{StreamExt, TryStreamExt};
use kube::api::{DynamicObject, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const SYSTEM: &str = "haproxy-fleet-system";
/// Requests to the API server at a time.
const AT_ONCE: usize = 32;
/// Namespaces that the objects are in.
const NAMESPACES: usize = 20;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// The operator, killed when this goes.
struct Operator(Child);

impl Drop for Operator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Operator {
    /// What the kernel says of its memory: `VmRSS` now, `VmHWM` at most, in MiB.
    fn mebibytes(&self, field: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or_default() / 1024
    }
}

fn free_port() -> Outcome<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

fn kubectl(kubeconfig: &Path, arguments: &[&str]) -> Outcome {
    let programs = fleet_cluster::Layout::from_environment()?;
    let status = Command::new(programs.program("kubectl")).args(arguments).env("KUBECONFIG", kubeconfig).stdout(Stdio::null()).status()?;
    if status.success() { Ok(()) } else { Err(format!("kubectl {}", arguments.join(" ")).into()) }
}

async fn create(client: &Client, objects: impl Iterator<Item = Value>) -> Outcome {
    let one = |object: Value| async move {
        let (version, kind) = (object["apiVersion"].as_str().unwrap_or_default(), object["kind"].as_str().unwrap_or_default());
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
        let api: Api<DynamicObject> = match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        Outcome::Ok(())
    };
    futures::stream::iter(objects).map(one).buffer_unordered(AT_ONCE).try_collect().await
}

fn namespace(number: usize) -> String {
    format!("tenant-{}", number % NAMESPACES)
}

fn objects(number: usize) -> [Value; 3] {
    let (namespace, name) = (namespace(number), format!("app-{number}"));
    let class = if number.is_multiple_of(2) { "one" } else { "two" };
    let endpoints: Vec<Value> = (0..5)
        .map(|pod| {
            let at = number * 5 + pod;
            let address = format!("10.{}.{}.{}", 100 + at / 62_500, at / 250 % 250, at % 250 + 1);
            json!({"addresses": [address], "conditions": {"ready": true, "serving": true, "terminating": false}, "zone": "zone-a",
                "nodeName": format!("node-{}", at % 100), "targetRef": {"kind": "Pod", "namespace": namespace, "name": format!("{name}-{pod}")}})
        })
        .collect();
    let path = json!({"path": "/", "pathType": "Prefix", "backend": {"service": {"name": name, "port": {"number": 80}}}});
    [
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"namespace": namespace, "name": name},
            "spec": {"clusterIP": "None", "ports": [{"name": "http", "port": 80, "targetPort": 8080}]}}),
        json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {"namespace": namespace, "name": format!("{name}-x"), "labels": {"kubernetes.io/service-name": name}},
            "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}], "endpoints": endpoints}),
        json!({"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"namespace": namespace, "name": name},
            "spec": {"ingressClassName": class, "rules": [{"host": format!("{name}.example"), "http": {"paths": [path]}}]}}),
    ]
}

async fn get(address: SocketAddr, path: &str) -> Option<String> {
    let answer = haproxy_fleet_e2e::http::get(address, "localhost", path).await.ok()?;
    (answer.status == 200).then(|| answer.body().to_owned())
}

fn operator(program: &str, kubeconfig: &Path, admin: SocketAddr) -> Outcome<Operator> {
    let mut command = Command::new(program);
    command.args(["operator", "--namespace", SYSTEM, "--pod-name", "size", "--image", "operator", "--haproxy-image", "3.4=haproxy:3.4"]);
    command.args(["--delivery", &format!("127.0.0.1:{}", free_port()?), "--admin", &admin.to_string()]);
    let child = command.env("KUBECONFIG", kubeconfig).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    Ok(Operator(child))
}

/// Waits until both fleets are translated; how long that took.
async fn translated(admin: SocketAddr) -> Outcome<Duration> {
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(300) {
        let status: Option<Value> = get(admin, "/status").await.and_then(|text| serde_json::from_str(&text).ok());
        let fleets = status.map_or(0, |status| status["fleets"].as_array().map_or(0, Vec::len));
        if fleets == 2 {
            return Ok(began.elapsed());
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    Err("the operator does not translate".into())
}

#[tokio::main]
async fn main() -> Outcome {
    // `cargo test --benches` asks for a list
    if std::env::args().any(|argument| argument == "--list") {
        return Ok(());
    }
    let program = std::env::var("OPERATOR").map_err(|_| "set OPERATOR to the operator's program: `make bench BENCH=operator` does")?;
    let count: usize = std::env::var("SIZE_INGRESSES").ok().and_then(|text| text.parse().ok()).unwrap_or(10_000);
    let directory = tempfile::tempdir()?;
    let server = ApiServer::new(directory.path());
    let server = server?.guarded()?;
    let kubeconfig = directory.path().join("conf/admin.conf");
    let config = kube::Config::from_custom_kubeconfig(Kubeconfig::read_from(&kubeconfig)?, &KubeConfigOptions::default()).await?;
    let client = Client::try_from(config)?;
    let manifests = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    kubectl(&kubeconfig, &["apply", "--server-side", "-k", &manifests.join("config/default").display().to_string()])?;
    kubectl(&kubeconfig, &["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"])?;
    create(
        &client,
        (0..NAMESPACES).map(|number| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace(number)}})),
    )
    .await?;
    for class in ["one", "two"] {
        let fleet = json!({"apiVersion": "haproxy-fleet.dev/v1alpha1", "kind": "IngressDeployment",
            "metadata": {"namespace": "tenant-0", "name": class}, "spec": {"ingressClassName": class}});
        create(&client, std::iter::once(fleet)).await?;
    }
    create(&client, (0..count).flat_map(objects)).await?;
    let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
    let operator = operator(&program, &kubeconfig, admin)?;
    let start = translated(admin).await?;
    // what the start left is given back, and statuses are written, for as long as somebody would look
    tokio::time::sleep(Duration::from_secs(60)).await;
    println!(
        "{}",
        json!({"bench": "operator_size", "ingresses": count, "endpoints": count * 5, "fleets": 2, "translated_s": (start.as_secs_f64() * 10.0).round() / 10.0,
            "rss_mib": operator.mebibytes("VmRSS"), "peak_mib": operator.mebibytes("VmHWM")})
    );
    drop(operator);
    drop(server);
    Ok(())
}
