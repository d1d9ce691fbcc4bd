//! What a fleet's settings do to requests and responses, through a real HAProxy of both release lines.

use crate::models::*;
use crate::running::*;
use crate::site::certificate;
use crate::support::haproxies;
use haproxy_fleet::haproxy::bundle::{BackendClass, Bundle, Content, ResourceKey};
use haproxy_fleet::haproxy::render::Renderer;
use haproxy_fleet::haproxy::version::{Capabilities, Version};
use haproxy_fleet::model::*;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

/// A model with both listeners, a host and a server behind it; and the certificate of the host.
fn site(settings: Settings) -> (Model, String) {
    let mut model = Model { settings, ..empty() };
    let protocol = Protocol::Https { table: "t".into(), certificates: "https".into() };
    model.listeners.insert("https".into(), Listener { protocol, public_port: 443, pod_port: 8443, proxy_protocol: false });
    backend(&mut model, "app", &[origin("app")], Policy::default());
    host(&mut model, name("a.test"), vec![route(prefix("/"), to("app"))]);
    let pem = self_signed("a.test");
    certificate(&mut model, "site", &pem, &["a.test"]);
    (model, pem)
}

fn run(model: &Model, check: impl Fn(&Running)) {
    for (version, haproxy) in haproxies() {
        check(&Running::start(haproxy, &bundle(*version, model), &["http", "https"]));
    }
}

fn bundle(version: Version, model: &Model) -> Bundle {
    let fleet = FleetId { namespace: "infra".into(), name: "edge".into() };
    let mut renderer = Renderer::new(fleet, Capabilities::of(version));
    renderer.update(model, &Touched::all(model));
    assert_eq!(renderer.findings().collect::<Vec<_>>(), Vec::<&haproxy_fleet::report::Diagnostic>::new());
    renderer.bundle().clone()
}

fn client(pem: &str) -> Arc<ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    Arc::new(builder.with_safe_default_protocol_versions().unwrap().with_root_certificates(roots).with_no_client_auth())
}

/// Everything that comes back over TLS; what is left of it if the connection fails.
fn ask_tls(client: &Arc<ClientConfig>, address: SocketAddr, request: &str) -> String {
    let mut connection = ClientConnection::new(client.clone(), ServerName::try_from("a.test").unwrap()).unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let mut tls = rustls::Stream::new(&mut connection, &mut stream);
    let mut answer = Vec::new();
    if tls.write_all(request.as_bytes()).is_ok() {
        // how the connection ends does not matter
        let _ = tls.read_to_end(&mut answer);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: a.test\r\n{headers}Connection: close\r\n\r\n")
}

/// The header lines that the server got, in lower case.
fn seen(haproxy: &Running, headers: &str) -> String {
    got(&haproxy.request("GET", "a.test", "/", headers)).1.to_lowercase()
}

#[test]
fn servers_are_told_of_the_client_as_the_forwarded_policy_says() {
    let (for_client, own) = ("x-forwarded-for: 127.0.0.1\n", "x-forwarded-for: 192.0.2.9\n");
    let said = "X-Forwarded-For: 192.0.2.9\r\nX-Forwarded-Proto: wss\r\n";
    let (http, wss) = ("x-forwarded-proto: http\n", "x-forwarded-proto: wss\n");
    let forwardfor = |enabled, ifnone| Some(ForwardFor { enabled, header: None, except: None, ifnone });
    for (forwarded, of_backends, expected) in [
        (Forwarded::Append, None, vec![own, for_client, http]),
        (Forwarded::Replace, None, vec![for_client, http]),
        (Forwarded::IfNone, forwardfor(true, true), vec![own, wss]),
        (Forwarded::Never, forwardfor(false, false), vec![own, wss]),
    ] {
        let (mut model, _) = site(Settings { forwarded, ..Settings::default() });
        Arc::make_mut(&mut model.backends.get_mut(&id("app")).unwrap().policy).forwardfor = of_backends;
        run(&model, |haproxy| {
            let lines = seen(haproxy, said);
            for line in [own, for_client, http, wss] {
                assert_eq!(lines.contains(line), expected.contains(&line), "{forwarded:?} {line}: {lines}");
            }
            let silent = seen(haproxy, "");
            let told = forwarded != Forwarded::Never;
            assert_eq!((silent.contains(for_client), silent.contains(http)), (told, told), "{forwarded:?}: {silent}");
        });
    }
}

fn edits(set: &[(&str, &str)], remove: &[&str]) -> HeaderEdits {
    HeaderEdits {
        set: set.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect(),
        add: Vec::new(),
        remove: remove.iter().map(|name| (*name).into()).collect(),
    }
}

#[test]
fn headers_of_every_request_and_every_answer_are_changed_as_they_are_written() {
    let hostile = "%[src] ${HOME} 'q' \"d\" #h \\ %% é";
    let (model, _) = site(Settings {
        request_headers: edits(&[("X-Set", hostile)], &["X-Drop"]),
        response_headers: edits(&[("X-Frame-Options", "DENY"), ("X-Text", hostile)], &["X-Origin"]),
        unique_id: Some("X-Request-ID".into()),
        ..Settings::default()
    });
    run(&model, |haproxy| {
        let lines = seen(haproxy, "X-Set: old\r\nX-Drop: 1\r\n");
        assert!(lines.contains(&format!("x-set: {}\n", hostile.to_lowercase())) && !lines.contains("old"), "{lines}");
        assert!(!lines.contains("x-drop"), "{lines}");
        for (answer, status_is) in [(haproxy.get("a.test", "/"), 200), (haproxy.get("none.test", "/"), 404)] {
            assert_eq!(status(&answer), status_is);
            assert_eq!((header(&answer, "x-frame-options"), header(&answer, "x-origin")), (Some("DENY"), None), "{answer}");
            assert_eq!(header(&answer, "x-text"), Some(hostile));
        }
        let id = |headers| {
            let lines = seen(haproxy, headers);
            let ids: Vec<String> = lines.lines().filter_map(|line| line.strip_prefix("x-request-id: ")).map(str::to_owned).collect();
            assert_eq!(ids.len(), 1, "{lines}");
            ids[0].clone()
        };
        assert!(id("").len() == 36 && id("") != id(""));
        assert_eq!(id("X-Request-ID: mine\r\n"), "mine");
    });
}

#[test]
fn browsers_are_kept_to_https_by_every_answer_to_https_and_by_no_other() {
    let hsts = Some(Hsts { max_age: 31_536_000, include_sub_domains: true, preload: true });
    let (mut model, pem) = site(Settings { hsts, ..Settings::default() });
    let own = HeaderEdits { set: vec![("Strict-Transport-Security".into(), "max-age=5".into())], ..HeaderEdits::default() };
    backend(&mut model, "own", &[origin("own")], Policy { response_headers: own, ..Policy::default() });
    host(&mut model, name("a.test"), vec![route(prefix("/app"), to("app")), route(prefix("/own"), to("own"))]);
    let client = client(&pem);
    run(&model, |haproxy| {
        let over_tls = |path| ask_tls(&client, haproxy.address("https"), &get(path, ""));
        let whole = Some("max-age=31536000; includeSubDomains; preload");
        for (path, status_is, value) in [("/app", 200, whole), ("/none", 404, whole), ("/own", 200, Some("max-age=5"))] {
            let answer = over_tls(path);
            assert_eq!((status(&answer), header(&answer, "strict-transport-security")), (status_is, value), "{answer}");
        }
        assert_eq!(header(&haproxy.get("a.test", "/app"), "strict-transport-security"), None);
    });
}

#[test]
fn a_connection_that_asks_for_nothing_gets_an_answer_or_its_end() {
    for ignore_empty_requests in [false, true] {
        let (model, _) = site(Settings { ignore_empty_requests, ..Settings::default() });
        run(&model, |haproxy| {
            let mut stream = TcpStream::connect(haproxy.address("http")).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            let expected = if ignore_empty_requests { 0 } else { 400 };
            assert_eq!(status(&answer), expected, "{answer}");
        });
    }
}

/// A server whose every answer is of this media type and has a body of this many bytes.
fn sender(kind: &'static str, bytes: usize) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let mut request = Vec::new();
            let mut byte = [0];
            while !request.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|read| read == 1) {
                request.push(byte[0]);
            }
            let head = format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {bytes}\r\nConnection: close\r\n\r\n");
            // HAProxy may hang up
            let _ = stream.write_all(&[head.as_bytes(), &vec![b'x'; bytes]].concat());
        }
    });
    address
}

#[test]
fn as_many_headers_as_a_fleet_may_set_fit_beside_a_body_of_any_size() {
    let value = "v".repeat(1024);
    let set = (0..20).map(|number| (format!("X-{number}").into(), value.as_str().into())).collect::<Vec<_>>();
    let edits = HeaderEdits { set, ..HeaderEdits::default() };
    let page = |status| (status, page(PageKind::Text, &"p".repeat(ErrorPage::MAX_BYTES)));
    let (mut model, _) = site(Settings {
        request_headers: edits.clone(),
        response_headers: edits,
        error_pages: [page(404), page(503)].into(),
        ..Settings::default()
    });
    backend(&mut model, "large", &[sender("text/plain", 1_000_000)], Policy::default());
    backend(&mut model, "down", &[], Policy::default());
    host(&mut model, name("a.test"), vec![route(prefix("/large"), to("large")), route(prefix("/down"), to("down"))]);
    run(&model, |haproxy| {
        for (path, expected) in [("/large", 200), ("/down", 503), ("/none", 404)] {
            let answer = haproxy.get("a.test", path);
            assert_eq!((status(&answer), header(&answer, "x-19").map(str::len)), (expected, Some(1024)), "{path}");
            let body = answer.split_once("\r\n\r\n").unwrap().1.len();
            assert_eq!(body, if expected == 200 { 1_000_000 } else { ErrorPage::MAX_BYTES }, "{path}");
        }
    });
}

fn page(kind: PageKind, body: &str) -> ErrorPage {
    ErrorPage { kind, body: body.into(), sources: Arc::new([source()]) }
}

#[test]
fn what_haproxy_answers_by_itself_has_the_pages_of_the_fleet() {
    let hostile = "<p>%[src] ${HOME} 'q' \"d\" #h \\ %%\n\nend</p>";
    let pages = [
        (404, page(PageKind::Json, r#"{"error": "no such page"}"#)),
        (503, page(PageKind::Html, hostile)),
        (504, page(PageKind::Html, "slow")),
    ];
    let (mut model, _) = site(Settings { error_pages: pages.into(), ..Settings::default() });
    let impatient = Policy { server_timeout: Some(Millis(50)), retries: Some(0), ..Policy::default() };
    backend(&mut model, "slow", &[origin("slow")], impatient);
    backend(&mut model, "down", &[], Policy::default());
    let routes = [("/app", to("app")), ("/down", to("down")), ("/gone", Target::Unavailable), ("/never-answered", to("slow"))];
    host(&mut model, name("a.test"), routes.into_iter().map(|(path, target)| route(prefix(path), target)).collect());
    run(&model, |haproxy| {
        let html = Some("text/html; charset=utf-8");
        for (path, expected) in [
            ("/down", (503, html, hostile)),
            ("/gone", (503, html, hostile)),
            ("/none", (404, Some("application/json"), r#"{"error": "no such page"}"#)),
            ("/never-answered", (504, html, "slow")),
        ] {
            let answer = haproxy.get("a.test", path);
            let body = answer.split_once("\r\n\r\n").unwrap().1;
            assert_eq!((status(&answer), header(&answer, "content-type"), body), expected, "{path}");
            assert_eq!(header(&answer, "cache-control"), Some("no-cache"));
        }
        assert_eq!(status(&haproxy.get("a.test", "/app")), 200);
    });
}

#[test]
fn answers_of_the_media_types_that_are_named_are_compressed_for_who_takes_it() {
    let (mut model, _) = site(Settings { compressed: ["application/json".into(), "text/html".into()].into(), ..Settings::default() });
    for (service, kind) in [("html", "text/html; charset=utf-8"), ("png", "image/png")] {
        backend(&mut model, service, &[sender(kind, 2_000)], Policy::default());
    }
    host(&mut model, name("a.test"), vec![route(prefix("/html"), to("html")), route(prefix("/png"), to("png"))]);
    for (version, haproxy) in haproxies() {
        let bundle = bundle(*version, &model);
        let running = Running::start(haproxy, &bundle, &["http", "https"]);
        let encoding = |path, headers| header(&running.request("GET", "a.test", path, headers), "content-encoding").map(str::to_owned);
        let asked = "Accept-Encoding: br, gzip\r\n";
        assert_eq!(encoding("/html", asked), Some("gzip".to_owned()));
        assert_eq!((encoding("/html", ""), encoding("/png", asked)), (None, None));
        if !Capabilities::of(*version).dynamic_backends {
            continue;
        }
        // a backend that is added later, like the one of `html`
        let like = bundle.backends_after(None).find(|name| name.starts_with("shop_html_")).unwrap();
        let Content::Backend(head) = &bundle.get(&ResourceKey::Backend(like.clone())).unwrap().content else { panic!() };
        let BackendClass::Shaped { shape, .. } = &head.class else { panic!() };
        let server = format!("add server new/s {} id 1 guid s", sender("text/html", 2_000));
        for command in [&*format!("add backend new from {shape} mode http guid new"), &server, "enable server new/s", "publish backend new"]
        {
            running.command(command);
        }
        assert_eq!(running.command("add map maps/t/routes.map new.test/ new"), "");
        let answer = running.request("GET", "new.test", "/", asked);
        assert_eq!((status(&answer), header(&answer, "content-encoding")), (200, Some("gzip")), "{answer}");
    }
}
