//! Routing, twice: by a matcher of a few lines after the text of the Ingress specification, and by HAProxies of
//! both release lines that run what the pipeline makes of the same Ingresses. They must agree on every request.
//!
//! `CROSSCHECK_SEED` repeats a run; `CROSSCHECK_WORLDS` sets how many sets of Ingresses are tried.

use crate::running::*;
use crate::support::haproxies;
use haproxy_fleet::haproxy::version::Capabilities;
use haproxy_fleet::ingest::files::{Files, Limits};
use haproxy_fleet::model::FleetId;
use haproxy_fleet::pipeline::{Options, Pipeline};
use haproxy_fleet::{haproxy, translate};
use std::collections::hash_map::RandomState;
use std::fmt::Write as _;
use std::hash::{BuildHasher, Hasher};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// The services, each with a server that says its name.
const SERVICES: [&str; 12] = ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11"];
const HOSTS: [&str; 11] =
    ["", "a.test", "b.test", "sub.a.test", "x.sub.a.test", "*.a.test", "*.sub.a.test", "*.test", "A.test", "Sub.*", "xn--bcher-kva.test"];
const PATHS: [&str; 22] = [
    "/",
    "/a",
    "/a/",
    "/a/b",
    "/a/b/",
    "/a/b/c",
    "/ab",
    "/A",
    "/a%20b",
    "/a%2Fb",
    "/%61",
    "/a.b",
    "/a;x=1",
    "/a=b",
    "/a,b",
    "/~a",
    "/aa",
    "/b",
    "/b/a",
    "/a/b/c/d/e",
    "/%C3%A9",
    "/a%",
];
const REQUEST_HOSTS: [&str; 20] = [
    "a.test",
    "b.test",
    "sub.a.test",
    "x.sub.a.test",
    "y.sub.a.test",
    "z.a.test",
    "c.test",
    "test",
    "deep.er.a.test",
    "other.example",
    "A.TEST",
    "Sub.A.Test",
    "a.test:80",
    "z.a.test:8080",
    "a.test.",
    "z.A.test.:81",
    "xn--bcher-kva.test",
    ".a.test",
    "..a.test",
    "*.a.test",
];
const REQUEST_ENDS: [&str; 18] =
    ["", "/", "//", "/b", "/b/", "b", "/.", "/..", "/./b", "?q=/a", "?", "/b?x#y", "%20", ".b", ";x", "/b//c", "/b/c/d/e/f", "%2f"];

/// Numbers that follow from a seed (splitmix64).
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, limit: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(limit).unwrap()).unwrap()
    }

    fn of<'a>(&mut self, list: &[&'a str]) -> &'a str {
        list[self.below(list.len())]
    }

    pub fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

#[derive(Debug)]
struct Rule {
    host: &'static str,
    /// Path, whether exact, service; none: all goes to the default backend.
    paths: Vec<(&'static str, bool, &'static str)>,
}

#[derive(Debug)]
struct Ingress {
    namespace: &'static str,
    name: String,
    year: Option<usize>,
    default: Option<&'static str>,
    rules: Vec<Rule>,
}

#[derive(Debug)]
struct Scene {
    fleet_default: Option<&'static str>,
    ingresses: Vec<Ingress>,
}

fn scene(random: &mut Random) -> Scene {
    let fleet_default = random.one_in(3).then(|| random.of(&SERVICES));
    let mut ingresses = Vec::new();
    for number in 0..=random.below(9) {
        let default = random.one_in(4).then(|| random.of(&SERVICES));
        let mut rules = Vec::new();
        for _ in 0..random.below(4) + usize::from(default.is_none()) {
            let path = |random: &mut Random| (random.of(&PATHS), random.one_in(3), random.of(&SERVICES));
            let least = usize::from(default.is_none());
            let paths = (0..random.below(5) + least).map(|_| path(random)).collect();
            rules.push(Rule { host: random.of(&HOSTS), paths });
        }
        let year = random.one_in(2).then(|| 2000 + random.below(4));
        let namespace = random.of(&["one", "two"]);
        ingresses.push(Ingress { namespace, name: format!("i{number}"), year, default, rules });
    }
    Scene { fleet_default, ingresses }
}

// --- the specification ---------------------------------------------------------------------------------

/// Whether the path of a request is below `prefix`, element by element; a trailing slash means nothing.
fn below(prefix: &str, path: &str) -> bool {
    let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
    path.strip_prefix(prefix).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Who answers: the name of a service, or nobody (404).
fn expected(scene: &Scene, host: &str, path: &str) -> Option<&'static str> {
    let host = host.split(':').next().unwrap().to_lowercase();
    let host = host.strip_suffix('.').unwrap_or(&host);
    let mut order: Vec<&Ingress> = scene.ingresses.iter().collect();
    order.sort_by_key(|i| (i.year.is_none(), i.year, i.namespace, i.name.clone()));
    // The most specific host that any rule has: exact, then with one label replaced, then none.
    let wildcard = host.split_once('.').filter(|(label, _)| !label.is_empty()).map(|(_, rest)| format!("*.{rest}"));
    let is_known = |wanted: &str| wanted.is_empty() || order.iter().any(|i| i.rules.iter().any(|r| r.host.to_lowercase() == wanted));
    let wanted = [Some(host.to_owned()), wildcard].into_iter().flatten().find(|name| !name.is_empty() && is_known(name));
    let wanted = wanted.unwrap_or_default();
    let mut rules: Vec<(&str, bool, &'static str)> = Vec::new();
    let mut last = Vec::new();
    for ingress in order {
        let mine: Vec<&Rule> = ingress.rules.iter().filter(|rule| rule.host.to_lowercase() == wanted).collect();
        rules.extend(mine.iter().flat_map(|rule| rule.paths.iter().copied()));
        if let Some(default) = ingress.default {
            match ingress.rules.is_empty() {
                // A default backend without rules is a rule for every host and path.
                true if wanted.is_empty() => rules.push(("/", false, default)),
                true => {}
                false => last.extend((!mine.is_empty()).then_some(default)),
            }
        }
    }
    let exact = rules.iter().find(|(rule, exact, _)| *exact && *rule == path);
    let length = |prefix: &str| prefix.strip_suffix('/').unwrap_or(prefix).len();
    // Of equally long ones the first, which is the oldest.
    let prefix = rules.iter().rev().filter(|(rule, exact, _)| !exact && below(rule, path)).max_by_key(|(rule, _, _)| length(rule));
    exact.or(prefix).map(|(_, _, service)| *service).or(last.first().copied()).or(scene.fleet_default)
}

// --- the product ---------------------------------------------------------------------------------------

fn manifests(scene: &Scene, servers: &[(&'static str, SocketAddr)]) -> String {
    let mut yaml = String::new();
    let default =
        scene.fleet_default.map_or(String::new(), |name| format!(", defaultBackend: {{service: {{name: {name}, port: {{number: 80}}}}}}"));
    writeln!(yaml, "{{apiVersion: haproxy-fleet.dev/v1alpha1, kind: IngressDeployment, metadata: {{namespace: one, name: edge}}, spec: {{ingressClassName: edge{default}}}}}").unwrap();
    for namespace in ["one", "two"] {
        for (name, address) in servers {
            writeln!(yaml, "---\n{{apiVersion: v1, kind: Service, metadata: {{namespace: {namespace}, name: {name}}}, spec: {{ports: [{{port: 80}}]}}}}").unwrap();
            let port = address.port();
            writeln!(yaml, "---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{namespace: {namespace}, name: {name}, labels: {{kubernetes.io/service-name: {name}}}}}, addressType: IPv4, ports: [{{port: {port}}}], endpoints: [{{addresses: [127.0.0.1]}}]}}").unwrap();
        }
    }
    let backend = |service: &str| format!("{{service: {{name: {service}, port: {{number: 80}}}}}}");
    for ingress in &scene.ingresses {
        let Ingress { namespace, name, .. } = ingress;
        let age = ingress.year.map_or(String::new(), |year| format!(", creationTimestamp: '{year}-01-01T00:00:00Z'"));
        writeln!(yaml, "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{namespace: {namespace}, name: {name}{age}}}\nspec:\n  ingressClassName: edge").unwrap();
        if let Some(default) = ingress.default {
            writeln!(yaml, "  defaultBackend: {}", backend(default)).unwrap();
        }
        writeln!(yaml, "  rules:{}", if ingress.rules.is_empty() { " []" } else { "" }).unwrap();
        for rule in &ingress.rules {
            let host = if rule.host.is_empty() { String::new() } else { format!("host: '{}', ", rule.host) };
            let paths: Vec<String> = rule
                .paths
                .iter()
                .map(|(path, exact, service)| {
                    let kind = if *exact { "Exact" } else { "Prefix" };
                    format!("{{path: '{path}', pathType: {kind}, backend: {}}}", backend(service))
                })
                .collect();
            let http = if paths.is_empty() { String::new() } else { format!("http: {{paths: [{}]}}", paths.join(", ")) };
            writeln!(yaml, "  - {{{host}{http}}}").unwrap();
        }
    }
    yaml
}

fn pipeline(yaml: &str, capabilities: Capabilities) -> (Pipeline, FleetId) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("in.yaml");
    std::fs::write(&path, yaml).unwrap();
    let mut files = Files::new(vec![path], Limits::default());
    let delta = files.load().unwrap();
    assert_eq!(files.diagnostics(), [], "{yaml}");
    let mut pipeline = Pipeline::new(Options {
        capabilities: Box::new(move |_| capabilities),
        translate: translate::Options { allow_loopback: true },
        render: haproxy::render::Options::default(),
    });
    pipeline.apply(delta.set, &delta.removed);
    (pipeline, FleetId { namespace: "one".into(), name: "edge".into() })
}

/// A connection that is kept as long as HAProxy keeps it.
struct Client {
    address: SocketAddr,
    stream: Option<BufReader<TcpStream>>,
}

impl Client {
    /// Status, and the name of the service that answered.
    fn get(&mut self, host: &str, target: &str) -> (u16, Option<String>) {
        let stream = self.stream.get_or_insert_with(|| BufReader::new(TcpStream::connect(self.address).unwrap()));
        stream.get_mut().write_all(format!("GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).unwrap();
        let (mut line, mut status, mut length, mut close, mut origin) = (String::new(), 0, 0, false, None);
        loop {
            line.clear();
            assert!(stream.read_line(&mut line).unwrap() > 0, "the connection was cut: {host} {target}");
            let lower = line.trim().to_lowercase();
            if lower.is_empty() {
                break;
            }
            if status == 0 {
                status = lower.split(' ').nth(1).unwrap().parse().unwrap();
            }
            match lower.split_once(": ") {
                Some(("content-length", value)) => length = value.parse().unwrap(),
                Some(("connection", "close")) => close = true,
                Some(("x-origin", value)) => origin = Some(value.to_owned()),
                _ => {}
            }
        }
        std::io::copy(&mut stream.take(length), &mut std::io::sink()).unwrap();
        if close {
            self.stream = None;
        }
        (status, origin)
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap())
}

#[test]
fn haproxy_routes_as_the_specification_says() {
    let seed = number("CROSSCHECK_SEED").unwrap_or_else(|| RandomState::new().build_hasher().finish());
    writeln!(std::io::stderr(), "CROSSCHECK_SEED={seed}").unwrap();
    let servers: Vec<(&'static str, SocketAddr)> = SERVICES.iter().map(|name| (*name, origin(name))).collect();
    std::thread::scope(|scope| {
        for (version, path) in haproxies() {
            let servers = &servers;
            scope.spawn(move || {
                let mut random = Random(seed ^ u64::from(version.minor));
                for _ in 0..number("CROSSCHECK_WORLDS").unwrap_or(8) {
                    compare(&mut random, Capabilities::of(*version), path, servers, seed);
                }
            });
        }
    });
}

fn compare(random: &mut Random, capabilities: Capabilities, haproxy: &std::path::Path, servers: &[(&'static str, SocketAddr)], seed: u64) {
    let scene = scene(random);
    let (pipeline, fleet) = pipeline(&manifests(&scene, servers), capabilities);
    let running = Running::start(haproxy, pipeline.bundle(&fleet).unwrap(), &["http", "https"]);
    let mut client = Client { address: running.address("http"), stream: None };
    for _ in 0..400 {
        let host = random.of(&REQUEST_HOSTS);
        let mut target = random.of(&PATHS).to_owned();
        if random.one_in(2) {
            target = format!("{}{}", target.trim_end_matches('/'), random.of(&REQUEST_ENDS));
        }
        let target = if target.starts_with('/') { target.replace('#', "%23") } else { "/".to_owned() };
        let path = target.split('?').next().unwrap();
        let want = expected(&scene, host, path);
        let absolute = if random.one_in(20) { format!("http://{host}{target}") } else { target.clone() };
        let got = client.get(host, &absolute);
        let wanted = (if want.is_some() { 200 } else { 404 }, want.map(ToOwned::to_owned));
        assert_eq!(got, wanted, "CROSSCHECK_SEED={seed}: {host} {absolute} of {scene:#?}");
    }
}

#[test]
fn no_host_header_stands_for_a_part_of_the_path() {
    let name = "only";
    let servers = [(name, origin(name))];
    let rule = |host, path| Rule { host, paths: vec![(path, false, name)] };
    let rules = vec![rule("a.test", "/a"), rule("*.a.test", "/a"), rule("", "/a")];
    let ingress = Ingress { namespace: "one", name: "i".into(), year: None, default: None, rules };
    let scene = Scene { fleet_default: None, ingresses: vec![ingress] };
    for (version, path) in haproxies() {
        let (pipeline, fleet) = pipeline(&manifests(&scene, &servers), Capabilities::of(*version));
        let running = Running::start(path, pipeline.bundle(&fleet).unwrap(), &["http", "https"]);
        for host in [
            "a.test/a",
            "a.test/a/",
            "a.test:80/a",
            "*|/a",
            "x.a.test/a",
            "*.a.test/a",
            "/a",
            "a.test/a#",
            "a.test|/a",
            "x/a",
            "a.test/a?",
            "a.test./a",
        ] {
            for target in ["/", "/private", "/?/a"] {
                let answer = running.get(host, target);
                assert!([400, 404].contains(&status(&answer)), "{version}: {host} {target}: {answer}");
            }
        }
    }
}
