//! Requests through a real HAProxy of both release lines.

use crate::models::*;
use crate::running::*;
use crate::site::certificate;
use crate::support::haproxies;
use haproxy_fleet::haproxy::render::{Options, Renderer};
use haproxy_fleet::haproxy::version::{Capabilities, Version};
use haproxy_fleet::local::echo::Echo;
use haproxy_fleet::model::*;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;

fn renderer(version: Version, options: Options) -> Renderer {
    let fleet = FleetId { namespace: "infra".into(), name: "edge".into() };
    Renderer::with_options(fleet, Capabilities::of(version), options)
}

fn run(model: &Model, check: impl Fn(&Running)) {
    run_with(model, &Options::default(), check);
}

fn run_with(model: &Model, options: &Options, check: impl Fn(&Running)) {
    for (version, haproxy) in haproxies() {
        let mut renderer = renderer(*version, options.clone());
        renderer.update(model, &Touched::all(model));
        let listeners: Vec<&str> = model.listeners.keys().map(|name| &**name).collect();
        check(&Running::start(haproxy, renderer.bundle(), &listeners));
    }
}

fn first(answer: &str) -> String {
    got(answer).0
}

#[test]
fn hosts_and_paths_choose_the_most_specific_route() {
    let mut model = empty();
    for service in ["root", "app", "deep", "exact", "wild", "any", "far"] {
        let name: &'static str = Box::leak(service.to_owned().into_boxed_str());
        backend(&mut model, service, &[origin(name)], Policy::default());
    }
    let routes = vec![
        route(exact("/app/x"), to("exact")),
        route(prefix("/app/deep"), to("deep")),
        route(prefix("/app"), to("app")),
        route(prefix("/"), to("root")),
    ];
    host(&mut model, name("a.test"), routes);
    host(&mut model, name("b.test"), vec![route(prefix("/only"), to("app")), route(exact("/gone"), Target::Unavailable)]);
    host(&mut model, HostMatch::Wildcard("w.test".into()), vec![route(prefix("/"), to("wild"))]);
    host(&mut model, HostMatch::DeepWildcard("far.test".into()), vec![route(prefix("/"), to("far"))]);
    host(&mut model, HostMatch::Any, vec![route(prefix("/any"), to("any"))]);
    run(&model, |haproxy| {
        for (host, path, want) in [
            ("a.test", "/", "root GET /"),
            ("A.Test:8080", "/app", "app GET /app"),
            ("a.test.", "/app/", "app GET /app/"),
            ("a.test", "/app/x", "exact GET /app/x"),
            ("a.test", "/app/x/y", "app GET /app/x/y"),
            ("a.test", "/app/x?q=/#", "exact GET /app/x?q=/#"),
            ("a.test", "/apple", "root GET /apple"),
            ("a.test", "/app/deep/er", "deep GET /app/deep/er"),
            ("b.test", "/only/x", "app GET /only/x"),
            ("x.w.test", "/p", "wild GET /p"),
            ("x.far.test", "/", "far GET /"),
            ("x.y.FAR.test", "/", "far GET /"),
            ("elsewhere", "/any/x", "any GET /any/x"),
            ("w.test", "/any", "any GET /any"),
        ] {
            if path.contains('#') {
                continue;
            }
            assert_eq!(first(&haproxy.get(host, path)), want, "{host} {path}");
        }
        for (host, path, want) in [
            ("b.test", "/", 404),
            ("b.test", "/any", 404),
            ("b.test", "/gone", 503),
            ("x.y.w.test", "/p", 404),
            ("far.test", "/", 404),
            ("elsewhere", "/other", 404),
            ("localhost", "/x.w.test/", 404),
        ] {
            assert_eq!(status(&haproxy.get(host, path)), want, "{host} {path}");
        }
    });
}

#[test]
fn conditions_are_tried_in_order_before_the_plain_route() {
    let mut model = empty();
    for service in ["post", "header", "query", "regex", "many", "plain"] {
        backend(&mut model, service, &[origin(Box::leak(service.to_owned().into_boxed_str()))], Policy::default());
    }
    let with = |path: PathMatch, conditions, service: &str| Route { conditions, ..route(path, to(service)) };
    let value = |text: &str| ValueMatch::Exact(text.into());
    let many = (0..16).map(|i| (format!("x-{i}").into(), value(&i.to_string()))).collect();
    let routes = vec![
        with(PathMatch::Regex("^/r/[0-9]+$".into()), Conditions::default(), "regex"),
        with(prefix("/"), Conditions { method: Some("POST".into()), ..Conditions::default() }, "post"),
        with(prefix("/p"), Conditions { headers: many, ..Conditions::default() }, "many"),
        with(prefix("/p"), Conditions { headers: vec![("x-kind".into(), value("a, } \"b'"))], ..Conditions::default() }, "header"),
        with(
            prefix("/p"),
            Conditions { query: vec![("q".into(), value("a b")), ("r".into(), ValueMatch::Present)], ..Conditions::default() },
            "query",
        ),
        route(prefix("/p"), to("plain")),
    ];
    host(&mut model, name("a.test"), routes);
    run(&model, |haproxy| {
        let numbered = |count| (0..count).map(|i| format!("X-{i}: {i}\r\n")).collect::<Vec<_>>().concat();
        let all: String = numbered(16);
        let most: String = numbered(15);
        for (method, path, headers, want) in [
            ("POST", "/p/x", "", "post"),
            ("GET", "/p/x", "", "plain"),
            ("GET", "/p/x", "X-Kind: a, } \"b'\r\n", "header"),
            ("GET", "/p/x", all.as_str(), "many"),
            ("GET", "/p/x", most.as_str(), "plain"),
            ("GET", "/p?q=a%20b&r=1", "", "query"),
            ("GET", "/p?q=a+b&r=1", "", "query"),
            ("GET", "/p?q=a+b", "", "plain"),
            ("GET", "/r/12", "", "regex"),
        ] {
            let answer = first(&haproxy.request(method, "A.test", path, &format!("{headers}Content-Length: 0\r\n")));
            assert_eq!(answer, format!("{want} {method} {path}"));
        }
        assert_eq!(status(&haproxy.get("a.test", "/r/x")), 404);
    });
}

#[test]
fn weights_share_requests_out_and_an_invalid_share_gets_503() {
    let mut model = empty();
    backend(&mut model, "one", &[origin("one")], Policy::default());
    backend(&mut model, "two", &[origin("two")], Policy::default());
    let split = Target::Split(vec![(Some(id("one")), 6), (Some(id("two")), 2), (None, 2), (Some(id("two")), 0)]);
    host(&mut model, name("a.test"), vec![route(prefix("/"), split)]);
    host(&mut model, name("z.test"), vec![route(prefix("/"), Target::Split(vec![(Some(id("one")), 0)]))]);
    run(&model, |haproxy| {
        let mut counts = [0; 3];
        for _ in 0..600 {
            let answer = haproxy.get("a.test", "/");
            match header(&answer, "x-origin") {
                Some("one") => counts[0] += 1,
                Some(_) => counts[1] += 1,
                None => counts[2] += 1,
            }
        }
        // Six standard deviations: a fair draw misses this once in half a billion.
        for (count, want) in counts.into_iter().zip([360, 120, 120]) {
            assert!(i32::abs(count - want) < 73, "{counts:?}");
        }
        assert_eq!(status(&haproxy.get("z.test", "/")), 503);
    });
}

#[test]
fn headers_are_set_added_and_removed_with_any_value() {
    let mut model = empty();
    let edits = |set: &[(&str, &str)], add: &[(&str, &str)], remove: &[&str]| HeaderEdits {
        set: set.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect(),
        add: add.iter().map(|(n, v)| ((*n).into(), (*v).into())).collect(),
        remove: remove.iter().map(|n| (*n).into()).collect(),
    };
    let policy = Policy {
        request_headers: edits(&[("X-Set", "%[src] ${HOME} 'q' \"d\" #h \\ é"), ("X-Empty", "")], &[("X-Add", "two")], &["X-Drop"]),
        response_headers: edits(&[("X-Res", "100% sure")], &[("X-Origin", "more")], &["X-Gone"]),
        ..Policy::default()
    };
    backend(&mut model, "app", &[origin("app")], policy);
    host(&mut model, name("a.test"), vec![route(prefix("/"), to("app"))]);
    run(&model, |haproxy| {
        let answer = haproxy.request("GET", "a.test", "/", "X-Set: old\r\nX-Add: one\r\nX-Drop: 1\r\nX-Forwarded-Proto: https\r\n");
        let lines = got(&answer).1.to_lowercase();
        assert!(lines.contains("x-set: %[src] ${home} 'q' \"d\" #h \\ é\n"), "{lines}");
        assert!(lines.contains("x-add: one\n") && lines.contains("x-add: two\n"), "{lines}");
        assert!(!lines.contains("x-drop") && !lines.contains("x-set: old"), "{lines}");
        assert!(lines.contains("x-forwarded-proto: http\n") && lines.contains("x-forwarded-for: 127.0.0.1\n"), "{lines}");
        assert_eq!(header(&answer, "x-res"), Some("100% sure"));
        assert_eq!(header(&answer, "x-gone"), None);
    });
}

#[test]
fn paths_and_hosts_are_rewritten_and_the_query_is_kept() {
    let mut model = empty();
    let cases = [("strip", "/app", ""), ("move", "/app", "/v2"), ("under", "", "/v2")];
    for (service, matched, replacement) in cases {
        let rewrite = PathRewrite::Prefix { matched: matched.into(), replacement: replacement.into() };
        let policy = Policy { rewrite: Some(rewrite), ..Policy::default() };
        backend(&mut model, service, &[origin(Box::leak(service.to_owned().into_boxed_str()))], policy);
        let path = if matched.is_empty() { "/" } else { matched };
        host(&mut model, name(&format!("{service}.test")), vec![route(prefix(path), to(service))]);
    }
    let full =
        Policy { rewrite: Some(PathRewrite::Full("/only%20this".into())), rewrite_host: Some("inner.test".into()), ..Policy::default() };
    backend(&mut model, "full", &[origin("full")], full);
    host(&mut model, name("full.test"), vec![route(prefix("/"), to("full"))]);
    run(&model, |haproxy| {
        for (host, path, want) in [
            ("strip.test", "/app", "strip GET /"),
            ("strip.test", "/app?q=1", "strip GET /?q=1"),
            ("strip.test", "/app/", "strip GET /"),
            ("strip.test", "/app/x?q=1", "strip GET /x?q=1"),
            ("move.test", "/app", "move GET /v2"),
            ("move.test", "/app/x?q=%20", "move GET /v2/x?q=%20"),
            ("under.test", "/x", "under GET /v2/x"),
            ("full.test", "/a/b?c", "full GET /only%20this?c"),
        ] {
            assert_eq!(first(&haproxy.get(host, path)), want, "{host}{path}");
        }
        assert!(got(&haproxy.get("full.test", "/")).1.to_lowercase().contains("host: inner.test\n"));
    });
}

#[test]
fn redirects_lead_where_they_say() {
    let mut model = empty();
    let parts = |scheme: Option<&str>, host: Option<&str>, port, path| RedirectTo::Parts {
        scheme: scheme.map(Into::into),
        host: host.map(Into::into),
        port,
        path,
    };
    let moved = PathRewrite::Prefix { matched: "/old".into(), replacement: "/new".into() };
    let cases = [
        ("location", 301, RedirectTo::Location("https://x.test/%7Ea?b=%[src]".into()), "https://x.test/%7Ea?b=%[src]"),
        ("scheme", 308, parts(Some("https"), None, None, None), "https://scheme.test/old/a?q=1"),
        ("host", 302, parts(None, Some("y.test"), Some(8443), None), "http://y.test:8443/old/a?q=1"),
        ("port", 307, parts(Some("https"), None, Some(8443), None), "https://port.test:8443/old/a?q=1"),
        ("path", 303, parts(None, None, None, Some(moved)), "http://path.test/new/a?q=1"),
    ];
    for (service, code, to_where, _) in &cases {
        let policy = Policy { redirect: Some(Redirect { code: *code, to: to_where.clone() }), ..Policy::default() };
        backend(&mut model, service, &[], policy);
        host(&mut model, name(&format!("{service}.test")), vec![route(prefix("/old"), to(service))]);
    }
    run(&model, |haproxy| {
        for (service, code, _, want) in &cases {
            let answer = haproxy.get(&format!("{service}.test:80"), "/old/a?q=1");
            assert_eq!((status(&answer), header(&answer, "location")), (*code, Some(*want)), "{service}");
        }
    });
}

#[test]
fn plain_http_leads_to_https_where_a_route_says_so_but_never_for_acme() {
    let mut model = empty();
    let protocol = Protocol::Http { table: "t".into(), https_port: Some(8443) };
    model.listeners.insert("http".into(), Listener { protocol, public_port: 80, pod_port: 8080, proxy_protocol: false });
    backend(&mut model, "app", &[origin("app")], Policy::default());
    let secure = |path, code| Route { https_redirect: Some(code), ..route(path, to("app")) };
    let split = Route { target: Target::Split(vec![(Some(id("app")), 1)]), ..secure(prefix("/split"), 301) };
    host(&mut model, name("a.test"), vec![split, route(prefix("/open"), to("app")), secure(prefix("/"), 308)]);
    host(&mut model, HostMatch::Wildcard("w.test".into()), vec![secure(prefix("/"), 302)]);
    host(&mut model, name("plain.test"), vec![route(prefix("/"), to("app"))]);
    run(&model, |haproxy| {
        for (host, path, code, location) in [
            ("a.test", "/x?q", 308, Some("https://a.test:8443/x?q")),
            ("A.test:80", "/x", 308, Some("https://A.test:8443/x")),
            ("a.test", "/split/x", 301, Some("https://a.test:8443/split/x")),
            ("a.test", "/open/x", 200, None),
            ("a.test", "/.well-known/acme-challenge/t", 200, None),
            ("x.w.test", "/y", 302, Some("https://x.w.test:8443/y")),
            ("x.w.test", "/.well-known/acme-challenge/t", 200, None),
            ("plain.test", "/", 200, None),
            ("none.test", "/", 404, None),
        ] {
            let answer = haproxy.get(host, path);
            let location = location.map(|text| text.replace("A.test", "a.test"));
            assert_eq!((status(&answer), header(&answer, "location")), (code, location.as_deref()), "{host}{path}");
        }
    });
}

#[test]
fn who_connects_by_the_proxy_protocol_is_who_it_says_and_nobody_else_is_heard() {
    let mut model = empty();
    let protocol = Protocol::Http { table: "t".into(), https_port: None };
    model.listeners.insert("http".into(), Listener { protocol, public_port: 80, pod_port: 8080, proxy_protocol: true });
    backend(&mut model, "app", &[origin("app")], Policy::default());
    host(&mut model, name("a.test"), vec![route(prefix("/"), to("app"))]);
    run(&model, |haproxy| {
        let request = "GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n";
        let answer = ask(haproxy.address("http"), &format!("PROXY TCP4 192.0.2.7 192.0.2.1 4711 80\r\n{request}"));
        assert!(status(&answer) == 200 && got(&answer).1.to_lowercase().contains("x-forwarded-for: 192.0.2.7"), "{answer}");
        assert_ne!(status(&ask(haproxy.address("http"), request)), 200);
    });
}

#[test]
fn a_server_that_does_not_answer_in_time_gives_504() {
    let mut model = empty();
    let policy = Policy { server_timeout: Some(Millis(50)), connect_timeout: Some(Millis(500)), retries: Some(0), ..Policy::default() };
    backend(&mut model, "app", &[origin("app")], policy);
    host(&mut model, name("a.test"), vec![route(prefix("/"), to("app"))]);
    run(&model, |haproxy| {
        assert_eq!(status(&haproxy.get("a.test", "/never-answered")), 504);
        assert_eq!(status(&haproxy.get("a.test", "/")), 200);
    });
}

#[test]
fn cors_answers_preflights_and_marks_answers_of_allowed_origins() {
    let mut model = empty();
    let cors = Cors {
        allow_origins: vec!["https://a.test".into(), "https://*.b.test".into()],
        allow_methods: vec!["GET".into(), "PUT".into()],
        allow_headers: vec!["*".into()],
        expose_headers: vec!["X-Origin".into()],
        allow_credentials: true,
        max_age: Some(600),
    };
    backend(&mut model, "app", &[origin("app")], Policy { cors: Some(cors), ..Policy::default() });
    host(&mut model, name("a.test"), vec![route(prefix("/"), to("app"))]);
    run(&model, |haproxy| {
        let ask = "Access-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: x-a\r\n";
        let preflight = haproxy.request("OPTIONS", "a.test", "/", &format!("Origin: https://x.b.test\r\n{ask}"));
        assert_eq!(status(&preflight), 204);
        assert_eq!(header(&preflight, "access-control-allow-origin"), Some("https://x.b.test"));
        assert_eq!(header(&preflight, "access-control-allow-methods"), Some("GET, PUT"));
        assert_eq!(header(&preflight, "access-control-allow-headers"), Some("x-a"));
        assert_eq!(header(&preflight, "access-control-max-age"), Some("600"));
        let answer = haproxy.request("GET", "a.test", "/", "Origin: https://a.test\r\n");
        assert_eq!((status(&answer), header(&answer, "access-control-allow-origin")), (200, Some("https://a.test")));
        assert_eq!(header(&answer, "vary"), Some("Origin"));
        let other = haproxy.request("GET", "a.test", "/", "Origin: https://evil.test\r\n");
        assert_eq!((status(&other), header(&other, "access-control-allow-origin")), (200, None));
    });
}

/// A name server that knows `good.test` at 127.0.0.1 and `bad.test` at a blocked address.
fn name_server() -> std::net::SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((size, peer)) = socket.recv_from(&mut buffer) {
            let query = &buffer[..size];
            let end = 12 + query[12..].iter().position(|b| *b == 0).unwrap() + 5;
            let (name, kind) = (&query[12..end - 4], query[end - 3]);
            let known = match (kind, name) {
                (1, n) if n.starts_with(b"\x04good") => Some([127, 0, 0, 1]),
                (1, n) if n.starts_with(b"\x03bad") => Some([169, 254, 169, 254]),
                _ => None,
            };
            let exists = name.starts_with(b"\x04good") || name.starts_with(b"\x03bad");
            let mut answer =
                vec![query[0], query[1], 0x81, if exists { 0x80 } else { 0x83 }, 0, 1, 0, u8::from(known.is_some()), 0, 0, 0, 0];
            answer.extend_from_slice(&query[12..end]);
            if let Some(octets) = known {
                answer.extend_from_slice(&[0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
                answer.extend_from_slice(&octets);
            }
            socket.send_to(&answer, peer).unwrap();
        }
    });
    address
}

#[test]
fn an_external_name_is_resolved_for_each_request_and_blocked_ranges_are_denied() {
    let mut model = empty();
    let origin = origin("outside");
    for (service, external) in [("good", "good.test"), ("bad", "bad.test"), ("none", "none.test")] {
        backend(&mut model, service, &[], Policy::default());
        let kind = BackendKind::ExternalName { host: external.into(), port: origin.port() };
        model.backends.get_mut(&id(service)).unwrap().kind = kind;
        host(&mut model, name(&format!("{service}.example")), vec![route(prefix("/"), to(service))]);
    }
    let mut options = Options { resolvers: vec![name_server()], ..Options::default() };
    run_with(&model, &options, |haproxy| {
        assert_eq!(status(&haproxy.get("good.example", "/")), 503, "loopback is blocked");
    });
    options.blocked_networks.retain(|network| !network.starts_with("127."));
    run_with(&model, &options, |haproxy| {
        assert_eq!(first(&haproxy.get("good.example", "/x")), "outside GET /x");
        assert_eq!(status(&haproxy.get("bad.example", "/")), 503);
        assert_eq!(status(&haproxy.get("none.example", "/")), 503);
    });
}

#[test]
fn tcp_listeners_pass_bytes_on_to_servers_that_are_checked_elsewhere() {
    let mut model = Model::default();
    let check = HttpCheck { method: Some("GET".into()), uri: Some("/healthz".into()), ..HttpCheck::default() };
    let server = ServerOptions { check_port: Some(origin("health").port()), check: Some(true), ..ServerOptions::default() };
    backend(&mut model, "lb", &[origin("replica")], Policy { http_check: Some(check), server, ..Policy::default() });
    model.backends.get_mut(&id("lb")).unwrap().mode = Mode::Tcp;
    let protocol = Protocol::Tcp { backend: id("lb") };
    model.listeners.insert("http".into(), Listener { protocol, public_port: 80, pod_port: 80, proxy_protocol: false });
    run(&model, |haproxy| assert_eq!(first(&haproxy.get("a.test", "/x")), "replica GET /x"));
}

#[test]
fn servers_are_spoken_to_in_http_2_without_tls_where_the_policy_says_so() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let echo = runtime.block_on(Echo::start("shop", "web", "http", 1)).unwrap();
    let mut model = empty();
    for (name, h2c) in [("two", Some(true)), ("one", None)] {
        let policy = Policy { server: ServerOptions { h2c, ..ServerOptions::default() }, ..Policy::default() };
        backend(&mut model, name, &[echo.addresses()[0]], policy);
    }
    host(&mut model, name("a.test"), vec![route(prefix("/two"), to("two")), route(prefix("/"), to("one"))]);
    run(&model, |haproxy| {
        let (two, one) = (haproxy.get("a.test", "/two"), haproxy.get("a.test", "/"));
        assert!(two.contains(r#""protocol":"HTTP/2""#), "{two}");
        assert!(one.contains(r#""protocol":"HTTP/1.1""#), "{one}");
    });
}

#[test]
fn a_client_resumes_its_tls_session_with_any_pod_of_the_fleet() {
    let mut model = empty();
    let protocol = Protocol::Https { table: "t".into(), certificates: "https".into() };
    model.listeners.insert("https".into(), Listener { protocol, public_port: 443, pod_port: 8443, proxy_protocol: false });
    backend(&mut model, "app", &[origin("app")], Policy::default());
    host(&mut model, name("a.test"), vec![route(prefix("/"), to("app"))]);
    let pem = self_signed("a.test");
    certificate(&mut model, "site", &pem, &["a.test"]);
    for (version, haproxy) in haproxies() {
        let mut renderer = renderer(*version, Options::default());
        renderer.update(&model, &Touched::all(&model));
        let pods = [0, 1].map(|_| Running::start(haproxy, renderer.bundle(), &["http", "https"]));
        for tls in [&rustls::version::TLS13, &rustls::version::TLS12] {
            let client = tls_client(&pem, tls);
            let handshakes = pods.each_ref().map(|pod| handshake(&client, pod.address("https")));
            assert_eq!(handshakes, [HandshakeKind::Full, HandshakeKind::Resumed], "{version} {:?}", tls.version);
        }
    }
}

/// A client that trusts `pem` and keeps its sessions.
fn tls_client(pem: &str, version: &'static rustls::SupportedProtocolVersion) -> Arc<ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    Arc::new(builder.with_protocol_versions(&[version]).unwrap().with_root_certificates(roots).with_no_client_auth())
}

/// How the TLS session of one request came about.
fn handshake(client: &Arc<ClientConfig>, address: SocketAddr) -> HandshakeKind {
    let mut connection = ClientConnection::new(client.clone(), ServerName::try_from("a.test").unwrap()).unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let mut tls = rustls::Stream::new(&mut connection, &mut stream);
    tls.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    // tickets come before the answer; how the connection ends does not matter
    let _ = tls.read_to_end(&mut answer);
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    connection.handshake_kind().unwrap()
}
