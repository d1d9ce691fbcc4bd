//! Golden files: models written by hand, the files that they become, and both HAProxy's word that they are good.
//!
//! `BLESS=1 cargo test --test it render` writes them anew.

use crate::models::*;
use crate::running::*;
use crate::support::haproxies;
use crate::{policies, running};
use haproxy_fleet::haproxy::bundle::Bundle;
use haproxy_fleet::haproxy::render::{Options, Renderer};
use haproxy_fleet::haproxy::version::Capabilities;
use haproxy_fleet::model::*;
use haproxy_fleet::report::PrivateBytes;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn fleet() -> FleetId {
    FleetId { namespace: "infra".into(), name: "edge".into() }
}

fn render(model: &Model, version: &str) -> (Bundle, Vec<String>) {
    let mut renderer = Renderer::new(fleet(), Capabilities::of(version.parse().unwrap()));
    renderer.update(model, &Touched::all(model));
    let findings =
        renderer.findings().map(|f| format!("{} {} {}: {} ({})\n", f.severity.as_str(), f.object, f.code.as_str(), f.message, f.help));
    (renderer.bundle().clone(), findings.collect())
}

fn addresses(count: u8) -> Vec<SocketAddr> {
    (1..=count).map(|i| SocketAddr::from(([10, 0, 0, i], 8080))).collect()
}

fn policies(list: Vec<(&'static str, Policy)>) -> Model {
    let mut model = empty();
    for (service, policy) in list {
        if let Some(ca) = &policy.server.ca {
            let pem: Arc<str> = CA.with(Clone::clone);
            model.ca_bundles.insert(ca.clone(), CaBundle { pem, sources: Arc::new([source()]) });
        }
        backend(&mut model, service, &addresses(2), policy);
        host(&mut model, name(&format!("{service}.test")), vec![route(prefix("/"), to(service))]);
    }
    model
}

thread_local! {
    static CA: Arc<str> = rcgen::generate_simple_self_signed(vec!["ca.test".to_owned()]).unwrap().cert.pem().into();
}

fn plain() -> Model {
    let mut model = empty();
    backend(&mut model, "web", &addresses(3), Policy::default());
    backend(&mut model, "api", &["[fd00::1]:80".parse().unwrap()], Policy::default());
    backend(&mut model, "empty", &[], Policy::default());
    let draining = |state| Endpoint { address: [10, 0, 1, 1].into(), port: 80, state, weight: Some(200), zone: None };
    let ready = Endpoint { address: [10, 0, 1, 2].into(), ..draining(EndpointState::Ready) };
    backend(
        &mut model,
        "rolling",
        &[],
        Policy { server: ServerOptions { weight: Some(3), ..ServerOptions::default() }, ..Policy::default() },
    );
    model.backends.get_mut(&id("rolling")).unwrap().endpoints = Arc::new([draining(EndpointState::Draining), ready]);
    backend(&mut model, "leaving", &[], Policy::default());
    model.backends.get_mut(&id("leaving")).unwrap().endpoints = Arc::new([draining(EndpointState::Draining)]);
    let routes = vec![route(exact("/x"), to("api")), route(prefix("/api"), to("api")), route(prefix("/"), to("web"))];
    host(&mut model, name("a.test"), routes);
    host(&mut model, HostMatch::Wildcard("w.test".into()), vec![route(prefix("/r"), to("rolling")), route(prefix("/l"), to("leaving"))]);
    host(&mut model, HostMatch::DeepWildcard("d.test".into()), vec![route(prefix("/"), to("missing"))]);
    host(&mut model, HostMatch::Any, vec![route(prefix("/"), Target::Unavailable), route(exact("/e"), to("empty"))]);
    model
}

fn conditions() -> Model {
    let mut model = empty();
    for service in ["one", "two", "three"] {
        backend(&mut model, service, &addresses(1), Policy::default());
    }
    let value = |text: &str| ValueMatch::Exact(text.into());
    let conditions = Conditions {
        method: Some("POST".into()),
        headers: vec![("x-a".into(), value("it's } # 100%")), ("x-b".into(), ValueMatch::Regex("^a|b$".into())), ("x-c".into(), value(""))],
        query: vec![("q\"(),".into(), value("}")), ("r".into(), ValueMatch::Present)],
    };
    let routes = vec![
        Route { conditions, ..route(prefix("/a"), to("one")) },
        route(PathMatch::Regex("^/[0-9]+'$".into()), to("two")),
        route(prefix("/a"), to("three")),
        Route {
            https_redirect: Some(301),
            ..route(prefix("/s"), Target::Split(vec![(Some(id("one")), 1), (Some(id("two")), 2), (None, 1)]))
        },
    ];
    host(&mut model, name("a.test"), routes);
    model
}

fn listeners() -> Model {
    let mut model = plain();
    let listener = |protocol, port| Listener { protocol, public_port: port, pod_port: port + 8000, proxy_protocol: false };
    model.listeners.insert("http".into(), listener(Protocol::Http { table: "t".into(), https_port: Some(443) }, 80));
    model.listeners.insert("https".into(), listener(Protocol::Https { table: "t".into(), certificates: "https".into() }, 443));
    let secure = Route { https_redirect: Some(308), ..route(prefix("/"), to("web")) };
    host(&mut model, name("s.test"), vec![secure, route(prefix("/open"), to("web"))]);
    backend(&mut model, "raw", &addresses(2), Policy { server_timeout: Some(Millis(9_000)), ..Policy::default() });
    model.backends.get_mut(&id("raw")).unwrap().mode = Mode::Tcp;
    model.listeners.insert("tcp-1".into(), listener(Protocol::Tcp { backend: id("raw") }, 5432));
    let names = [name("p.test"), HostMatch::Wildcard("p.test".into()), HostMatch::DeepWildcard("far.test".into())];
    let names: BTreeMap<_, _> = names.into_iter().map(|host| (host, id("raw"))).collect();
    model.listeners.insert("tls".into(), listener(Protocol::TlsPassthrough { names }, 8443));
    let certificate = CertificateId("shop_tls".into());
    let pem = PrivateBytes::new(self_signed("s.test").into_bytes());
    model.certificates.insert(certificate.clone(), Certificate { pem, sources: Arc::new([source()]) });
    let names: BTreeSet<Box<str>> = ["*.s.test".into(), "s.test".into()].into();
    model.certificate_lists.insert("https".into(), CertificateList { entries: [(certificate, names)].into() });
    model
}

fn special() -> Model {
    let mut model = empty();
    backend(&mut model, "outside", &[], Policy::default());
    model.backends.get_mut(&id("outside")).unwrap().kind = BackendKind::ExternalName { host: "db.example.com".into(), port: 8443 };
    let cors = Cors {
        allow_origins: vec!["https://*.b.test".into(), "https://it's".into()],
        allow_methods: vec!["GET".into()],
        allow_headers: vec!["X-A".into()],
        expose_headers: vec!["X-B".into()],
        allow_credentials: true,
        max_age: Some(60),
    };
    backend(&mut model, "cors", &addresses(1), Policy { cors: Some(cors), mirror: vec![(id("outside"), 100)], ..Policy::default() });
    let bad = HeaderEdits { set: vec![("Content-Length".into(), "0".into()), ("X-A".into(), "a\r\nb".into())], ..HeaderEdits::default() };
    backend(&mut model, "bad", &addresses(1), Policy { request_headers: bad, ..Policy::default() });
    host(
        &mut model,
        name("a.test"),
        vec![route(prefix("/o"), to("outside")), route(prefix("/c"), to("cors")), route(prefix("/b c"), to("bad"))],
    );
    model
}

fn cases() -> Vec<(&'static str, Model)> {
    vec![
        ("plain", plain()),
        ("conditions", conditions()),
        ("listeners", listeners()),
        ("special", special()),
        ("policies-choosing", policies(policies::choosing())),
        ("policies-speaking", policies(policies::speaking())),
        ("policies-changing", policies(policies::changing())),
        ("policies-serving", policies(policies::serving())),
    ]
}

fn pod(model: &Model, directory: &Path) -> String {
    let binds: Vec<(&str, SocketAddr)> = model.listeners.keys().map(|name| (&**name, free())).collect();
    running::pod(&binds, free(), &directory.join("s"))
}

/// All that is to be compared: no certificates, and each shard of backends in one file.
fn golden(bundle: &Bundle, findings: &[String]) -> BTreeMap<PathBuf, String> {
    let mut files: BTreeMap<PathBuf, String> = BTreeMap::new();
    for path in bundle.files().filter(|path| !path.starts_with("certs/") && !path.starts_with("ca/")) {
        let text = file_text(bundle, path);
        if text.is_empty() {
            continue;
        }
        let shard = path.starts_with("50-backends-") || path.starts_with("30-shape-");
        let name = if shard { &path[..if path.starts_with('5') { 11 } else { 8 }] } else { path };
        files.entry(name.into()).or_default().push_str(&text);
    }
    if !findings.is_empty() {
        files.insert("diagnostics.txt".into(), findings.concat());
    }
    files
}

fn read(directory: &Path, below: &Path, files: &mut BTreeMap<PathBuf, String>) {
    for entry in std::fs::read_dir(directory.join(below)).into_iter().flatten() {
        let entry = entry.unwrap();
        let path = below.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            read(directory, &path, files);
        } else {
            files.insert(path.clone(), std::fs::read_to_string(directory.join(&path)).unwrap());
        }
    }
}

#[test]
fn every_model_becomes_its_golden_files() {
    for (case, model) in cases() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/model").join(case);
        let (bundle, findings) = render(&model, "3.4");
        let now = golden(&bundle, &findings);
        if std::env::var_os("BLESS").is_some() {
            let _ = std::fs::remove_dir_all(&root);
            for (path, text) in &now {
                std::fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
                std::fs::write(root.join(path), text).unwrap();
            }
        }
        let mut then = BTreeMap::new();
        read(&root, Path::new(""), &mut then);
        assert_eq!(then.keys().collect::<Vec<_>>(), now.keys().collect::<Vec<_>>(), "{case}: BLESS=1 writes them");
        for (path, text) in &now {
            assert_eq!(&then[path], text, "{case}/{}: BLESS=1 writes it", path.display());
        }
    }
}

#[test]
fn both_release_lines_accept_every_golden_configuration() {
    for (version, haproxy) in haproxies() {
        for (case, model) in cases() {
            let (bundle, _) = render(&model, &version.to_string());
            let directory = tempfile::tempdir().unwrap();
            write_bundle(&bundle, directory.path(), &pod(&model, directory.path()));
            assert_accepted(haproxy, directory.path(), case);
        }
    }
}

#[test]
fn updates_one_by_one_and_in_any_order_lead_to_the_same_bundle() {
    let options = Options { max_shapes: 3, max_checked_servers: 9, ..Options::default() };
    let new = || Renderer::with_options(fleet(), Capabilities::of("3.4".parse().unwrap()), options.clone());
    let mut steps: Vec<Model> = cases().into_iter().map(|(_, model)| model).collect();
    steps.push(Model::default());
    steps.extend(cases().into_iter().rev().map(|(_, model)| model));
    let mut incremental = new();
    let mut followed = Bundle::default();
    let mut before = Model::default();
    for model in steps {
        let (old, now) = (Touched::all(&before), Touched::all(&model));
        let touched = Touched {
            settings: true,
            listeners: &old.listeners | &now.listeners,
            hosts: &old.hosts | &now.hosts,
            backends: &old.backends | &now.backends,
            endpoints: BTreeSet::new(),
            certificates: &old.certificates | &now.certificates,
            list_entries: &old.list_entries | &now.list_entries,
            default_certificate: true,
            ca_bundles: &old.ca_bundles | &now.ca_bundles,
        };
        // Backends first and hosts later, one by one: the end must be the same.
        for backend in &touched.backends {
            followed.apply(&incremental.update(&model, &Touched { backends: [backend.clone()].into(), ..Touched::default() }));
        }
        for host in &touched.hosts {
            followed.apply(&incremental.update(&model, &Touched { hosts: [host.clone()].into(), ..Touched::default() }));
        }
        followed.apply(&incremental.update(&model, &Touched { backends: BTreeSet::new(), hosts: BTreeSet::new(), ..touched.clone() }));
        let mut scratch = new();
        scratch.update(&model, &now);
        let differ: Vec<_> = incremental.bundle().diff(scratch.bundle()).into_iter().map(|change| change.key).collect();
        assert!(differ.is_empty(), "{differ:?}");
        assert_eq!(incremental.bundle().digest(), scratch.bundle().digest());
        assert_eq!(followed.digest(), scratch.bundle().digest());
        assert_eq!(incremental.findings().collect::<Vec<_>>(), scratch.findings().collect::<Vec<_>>());
        assert_eq!(incremental.update(&model, &touched), []);
        before = model;
    }
}
