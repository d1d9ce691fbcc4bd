//! `live_changes`, `reload_under_load` and `throughput`: what changes cost those who are served meanwhile.

use crate::context::{Context, Haproxy};
use crate::measure::{cpu, median};
use crate::origin::Origin;
use crate::result::Results;
use crate::rig::Rig;
use crate::world::Plan;
use fleet_load::{Config, Load, Protocol, Report, Target, Tls, Trust, capacity};
use serde_json::{Value, json};
use std::error::Error;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Routes that the load goes to.
const LOADED: usize = 50;
/// Changes that need a reload, in each protocol.
const RELOADS: usize = 50;
/// The interval between reloads here: the product's own 5 s would only make the bench longer.
const RELOAD_INTERVAL: Duration = Duration::from_millis(200);
/// Pairs of measurements of `throughput`.
const PAIRS: usize = 15;
/// Requests of each of its measurements.
const REQUESTS: u64 = 40_000;

fn targets(address: SocketAddr, routes: usize) -> Vec<Target> {
    (0..routes.min(LOADED)).map(|route| Target::new(address, Plan::host(route), "/").answered_by(Plan::host(route))).collect()
}

/// The same, spread over all routes: neighbours of each other share what a processor caches.
fn spread_targets(address: SocketAddr, routes: usize) -> Vec<Target> {
    let loaded = routes.min(LOADED);
    let route = |number| Plan::host(number * routes / loaded);
    (0..loaded).map(|number| Target::new(address, route(number), "/").answered_by(route(number))).collect()
}

fn loopback(routes: usize, origin: &Origin) -> Plan {
    Plan { loopback: true, port: origin.port(), ..Plan::new(routes) }
}

pub fn live_changes(context: &Context, results: &mut Results) -> Result<(), Box<dyn Error>> {
    let haproxy = context.haproxy();
    let origin = Origin::start(&haproxy.path)?;
    for &routes in &context.sizes {
        let mut rig = Rig::start(haproxy, loopback(routes, &origin), Duration::from_secs(5))?;
        // whatever is changed below exists: a first rewrite or redirect is a new shape, and that is a reload
        rig.apply(&with_values(0)?)?;
        rig.settle()?;
        let before = rig.status().reload_count;
        let load = Load::start(Config { rate: 1_000.0, ..Config::new(targets(rig.http, routes)) })?;
        let changed = all_changes(&mut rig);
        let report = rig.runtime.block_on(load.stop());
        changed?;
        results.add(
            context
                .line("live_changes", haproxy)
                .with("routes", routes)
                .with("reloads", rig.status().reload_count - before)
                .losses(&report),
        );
    }
    Ok(())
}

fn all_changes(rig: &mut Rig) -> Result<(), Box<dyn Error>> {
    for change in 0..1_000 {
        let (route, endpoint) = (change % LOADED.min(rig.plan.routes), change / LOADED % rig.plan.endpoints);
        let mut addresses = rig.plan.addresses(route);
        addresses[endpoint] = rig.plan.address(route, endpoint, 1 + change % 200);
        rig.apply(&[rig.plan.endpoint_slice(route, &addresses)])?;
        rig.settle()?;
    }
    for change in 1..=200 {
        rig.apply(&[weight(1 + change % 100)])?;
        rig.settle()?;
    }
    for change in 1..=200 {
        rig.apply(&[certificate()?])?;
        rig.settle()?;
        rig.apply(&[extra_path(change)])?;
        rig.settle()?;
        rig.apply(&values(change))?;
        rig.settle()?;
    }
    Ok(())
}

fn object(name: &str, kind: &str, annotations: &Value, path: &str) -> Value {
    let mut ingress = Plan::ingress(0);
    ingress["kind"] = kind.into();
    ingress["metadata"]["name"] = name.into();
    ingress["metadata"]["annotations"] = annotations.clone();
    ingress["spec"]["rules"][0]["host"] = format!("{name}.bench.example").into();
    ingress["spec"]["rules"][0]["http"]["paths"][0]["path"] = path.into();
    ingress
}

/// Four Ingresses of which each has one value that changes.
fn values(change: usize) -> Vec<Value> {
    let one = |name: &str, key: &str, value: String| object(name, "Ingress", &json!({ format!("haproxy-fleet.dev/{key}"): value }), "/app");
    vec![
        one("rewrite", "rewrite-path-prefix", format!("/v{change}")),
        one("header", "request-header.X-Change", change.to_string()),
        one("timeout", "timeout-server", format!("{}s", 10 + change)),
        one("redirect", "redirect-to", format!("https://other.example/{change}")),
    ]
}

/// A Backend that a loaded Service uses, with a weight that changes.
fn weight(weight: usize) -> Value {
    json!({
        "apiVersion": "haproxy-fleet.dev/v1alpha1", "kind": "Backend",
        "metadata": { "namespace": Plan::namespace(1), "name": "weighted" },
        "spec": { "default_server": { "weight": weight } },
    })
}

fn certificate() -> Result<Value, Box<dyn Error>> {
    let made = rcgen::generate_simple_self_signed(vec!["tls.bench.example".to_owned()])?;
    Ok(json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": { "namespace": Plan::namespace(0), "name": "tls" },
        "stringData": { "tls.crt": made.cert.pem(), "tls.key": made.signing_key.serialize_pem() },
    }))
}

fn extra_path(change: usize) -> Value {
    object("paths", "Ingress", &json!({}), &format!("/path-{change}"))
}

fn with_values(change: usize) -> Result<Vec<Value>, Box<dyn Error>> {
    let mut tls = object("tls", "Ingress", &json!({}), "/");
    tls["spec"]["tls"] = json!([{ "hosts": ["tls.bench.example"], "secretName": "tls" }]);
    let mut service = Plan::service(1);
    service["metadata"]["annotations"] = json!({ "haproxy-fleet.dev/backend": "weighted" });
    let mut objects = values(change);
    objects.extend([certificate()?, tls, weight(1), service, extra_path(change)]);
    Ok(objects)
}

pub fn reload_under_load(context: &Context, results: &mut Results) -> Result<(), Box<dyn Error>> {
    let haproxy = context.haproxy();
    let origin = Origin::start(&haproxy.path)?;
    let routes = context.sizes.iter().copied().filter(|size| *size <= 1_000).max().unwrap_or(1_000);
    let mut rig = Rig::start(haproxy, loopback(routes, &origin), RELOAD_INTERVAL)?;
    let tls = Some(Tls { trust: Trust::Anything, server_name: None });
    let ways = [
        ("close", Protocol::Http1Close, None),
        ("keep-alive", Protocol::Http1KeepAlive, None),
        ("h2", Protocol::Http2, None),
        ("tls", Protocol::Http1KeepAlive, tls.clone()),
        ("tls h2", Protocol::Http2, tls),
    ];
    for (round, (name, protocol, tls)) in ways.into_iter().enumerate() {
        let address = if tls.is_some() { rig.https } else { rig.http };
        let connections = if protocol == Protocol::Http2 { 4 } else { 32 };
        let config = Config { protocol, tls, connections, ..Config::new(targets(address, routes)) };
        let most = rig.runtime.block_on(capacity(Config { duration: Some(Duration::from_secs(2)), ..config.clone() }))?;
        let before = rig.status().reload_count;
        let load = Load::start(Config { rate: most / 2.0, ..config })?;
        let changed = reloads(&mut rig, round);
        let report = rig.runtime.block_on(load.stop());
        changed?;
        results.add(
            context
                .line("reload_under_load", haproxy)
                .with("routes", routes)
                .with("protocol", name)
                .with("reloads", rig.status().reload_count - before)
                .measured("capacity_rps", most)
                .measured("rps", report.rps)
                .measured("p99_ms", report.latency.p99_ms)
                .losses(&report),
        );
    }
    Ok(())
}

/// Changes the retries of one Service: part of a shape, and a shape that is not in use is a reload.
fn reloads(rig: &mut Rig, round: usize) -> Result<(), Box<dyn Error>> {
    for change in 0..RELOADS {
        let mut service = Plan::service(1);
        service["metadata"]["annotations"] = json!({ "haproxy-fleet.dev/backend": "retrying" });
        let backend = json!({
            "apiVersion": "haproxy-fleet.dev/v1alpha1", "kind": "Backend",
            "metadata": { "namespace": Plan::namespace(1), "name": "retrying" },
            "spec": { "fullconn": 1_000 + round * RELOADS + change },
        });
        rig.apply(&[service, backend])?;
        rig.settle()?;
    }
    Ok(())
}

/// A HAProxy with a configuration that somebody wrote by hand, until it is dropped.
struct ByHand {
    process: Child,
    address: SocketAddr,
    _home: tempfile::TempDir,
}

impl ByHand {
    /// The best we know for the same routes and the same service to clients: one look-up of the host in a
    /// map, the same headers, time-outs and connection handling.
    fn start(haproxy: &Haproxy, plan: &Plan) -> Result<Self, Box<dyn Error>> {
        let home = tempfile::tempdir()?;
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let (mut map, mut backends) = (String::new(), String::new());
        for route in 0..plan.routes {
            writeln!(map, "{} b{route}", Plan::host(route))?;
            writeln!(backends, "backend b{route}")?;
            for (number, endpoint) in plan.addresses(route).iter().enumerate() {
                writeln!(backends, "    server s{number} {endpoint}:{}", plan.port)?;
            }
        }
        let hosts = home.path().join("hosts.map");
        std::fs::write(&hosts, map)?;
        let text = format!(
            "global\n    nbthread 1\n    maxconn 4000\n\
             defaults\n    mode http\n    balance roundrobin\n    timeout client 60s\n    timeout http-request 10s\n    timeout http-keep-alive 10s\n    \
             timeout connect 2s\n    timeout server 60s\n    timeout queue 30s\n    timeout tunnel 1h\n    retries 3\n    option redispatch 1\n    \
             option idle-close-on-response\n    option http-restrict-req-hdr-names delete\n    option dontlognull\n    option forwardfor\n\
             frontend http\n    bind {address}\n    http-request set-header X-Forwarded-Proto http\n    \
             use_backend %[req.hdr(host),host_only,lower,map_str({},none)]\n\
             {backends}",
            hosts.display()
        );
        let file = home.path().join("haproxy.cfg");
        std::fs::write(&file, text)?;
        let mut command = Command::new(&haproxy.path);
        command.args(["-db", "-f"]).arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn()?;
        while TcpStream::connect(address).is_err() {
            if let Some(status) = process.try_wait()? {
                return Err(format!("the configuration by hand does not start: {status}").into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Self { process, address, _home: home })
    }
}

impl Drop for ByHand {
    fn drop(&mut self) {
        // it may have ended by itself
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub fn throughput(context: &Context, results: &mut Results) -> Result<(), Box<dyn Error>> {
    let haproxy = context.haproxy();
    let origin = Origin::start(&haproxy.path)?;
    for &routes in context.sizes.iter().filter(|size| **size != 1_000) {
        let rig = Rig::start(haproxy, loopback(routes, &origin), Duration::from_secs(5))?;
        let by_hand = ByHand::start(haproxy, &rig.plan)?;
        let ours = rig.status().worker_pid.ok_or("no worker runs")?;
        let config = |address| Config { connections: 32, ..Config::new(spread_targets(address, routes)) };
        let most = |address| rig.runtime.block_on(capacity(Config { duration: Some(Duration::from_secs(2)), ..config(address) }));
        let (most_ours, most_by_hand) = (most(rig.http)?, most(by_hand.address)?);
        let rate = most_ours.min(most_by_hand) / 2.0;
        let (mut cpus, mut p99s) = (Vec::new(), Vec::new());
        for _ in 0..PAIRS {
            let (our_cpu, our_report) = measure(&rig, config(rig.http), rate, ours)?;
            let (their_cpu, their_report) = measure(&rig, config(by_hand.address), rate, by_hand.process.id())?;
            cpus.push(our_cpu / their_cpu);
            p99s.push(our_report.latency.p99_ms / their_report.latency.p99_ms.max(0.001));
        }
        results.add(
            context
                .line("throughput", haproxy)
                .with("routes", routes)
                .measured("ratio_cpu", median(&mut cpus))
                .measured("ratio_rps", most_ours / most_by_hand)
                .measured("ratio_p99", median(&mut p99s))
                .measured("rps", rate),
        );
    }
    Ok(())
}

/// Worker processor time for each request, in seconds.
#[allow(clippy::cast_precision_loss)] // thousands
fn measure(rig: &Rig, config: Config, rate: f64, worker: u32) -> Result<(f64, Report), Box<dyn Error>> {
    let before = cpu(worker)?;
    let report = rig.runtime.block_on(Load::start(Config { rate, requests: Some(REQUESTS), ..config })?.wait());
    let used = cpu(worker)?.saturating_sub(before);
    if report.lost > 0 {
        return Err(format!("{} of {} requests were lost: {:?}", report.lost, report.requests, report.lost_by_kind).into());
    }
    Ok((used.as_secs_f64() / report.requests as f64, report))
}
