//! What a fleet's settings do to requests and responses, through a real HAProxy of both release lines.

use crate::models::*;
use crate::running::*;
use crate::site::{Site, certificate};
use crate::support::haproxies;
use haproxy_fleet::haproxy::bundle::{BackendClass, Bundle, Content, ResourceKey};
use haproxy_fleet::haproxy::render::Renderer;
use haproxy_fleet::haproxy::version::{Capabilities, Version};
use haproxy_fleet::model::*;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

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
    client_with(pem, rustls::DEFAULT_VERSIONS, None)
}

/// A client that trusts `pem`, speaks `versions` and shows the chain and key `own`.
fn client_with(pem: &str, versions: &[&'static rustls::SupportedProtocolVersion], own: Option<&str>) -> Arc<ClientConfig> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()).unwrap();
    let builder = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let builder = builder.with_protocol_versions(versions).unwrap().with_root_certificates(roots);
    Arc::new(match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let chain = CertificateDer::pem_slice_iter(own.as_bytes()).map(Result::unwrap).collect();
            builder.with_client_auth_cert(chain, PrivateKeyDer::from_pem_slice(own.as_bytes()).unwrap()).unwrap()
        }
    })
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

/// What a server answers to a hello of a client that speaks TLS of this version (3 is TLS 1.2) with a CBC cipher only:
/// the version it takes, or none.
fn old_hello(address: SocketAddr, minor: u8) -> Option<u8> {
    let extensions: &[&[u8]] = &[
        // server name a.test; curves P-256; uncompressed points; ECDSA with SHA-256 and SHA-1
        &[0, 0, 0, 11, 0, 9, 0, 0, 6, b'a', b'.', b't', b'e', b's', b't'],
        &[0, 10, 0, 4, 0, 2, 0, 23],
        &[0, 11, 0, 2, 1, 0],
        &[0, 13, 0, 6, 0, 4, 4, 3, 2, 3],
    ];
    let extensions = extensions.concat();
    let length = |bytes: usize| u16::try_from(bytes).unwrap().to_be_bytes();
    // ECDHE-ECDSA-AES256-SHA
    let rest = [&[0u8, 0, 2, 0xc0, 0x0a, 1, 0][..], &length(extensions.len()), &extensions].concat();
    let body = [&[3, minor][..], &[7; 32], &rest].concat();
    let hello = [&[1, 0][..], &length(body.len()), &body].concat();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(&[&[22, 3, 1][..], &length(hello.len()), &hello].concat()).unwrap();
    let mut answer = [0; 11];
    stream.read_exact(&mut answer).ok()?;
    // a record of a handshake with a hello in it
    (answer[0] == 22 && answer[5] == 2).then_some(answer[10])
}

#[test]
fn clients_speak_what_the_profile_has() {
    for (tls, old, intermediate) in
        [(TlsVersions::Old, true, true), (TlsVersions::Intermediate, false, true), (TlsVersions::Modern, false, false)]
    {
        let (model, pem) = site(Settings { tls, ..Settings::default() });
        run(&model, |haproxy| {
            let https = haproxy.address("https");
            let serves = |version| status(&ask_tls(&client_with(&pem, &[version], None), https, &get("/", ""))) == 200;
            assert!(serves(&rustls::version::TLS13), "{tls:?}");
            assert_eq!(serves(&rustls::version::TLS12), intermediate, "{tls:?}");
            let answered = [1, 3].map(|minor| old_hello(https, minor));
            assert_eq!(answered, if old { [Some(1), Some(3)] } else { [None, None] }, "{tls:?}");
        });
    }
}

/// An authority, and chain and key of a client that it vouches for.
fn authority(title: &str) -> (String, String) {
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
    let (key, own) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let mut parameters = CertificateParams::new(Vec::new()).unwrap();
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.distinguished_name.push(DnType::CommonName, title);
    let certificate = parameters.self_signed(&key).unwrap().pem();
    let issuer = Issuer::from_ca_cert_pem(&certificate, key).unwrap();
    let mut parameters = CertificateParams::new(Vec::new()).unwrap();
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, format!("of {title}\nX-Bad: 1"));
    let leaf = parameters.signed_by(&own, &issuer).unwrap().pem();
    (certificate, format!("{leaf}{}", own.serialize_pem()))
}

/// Lets clients show certificates of the authority `pem`.
fn verified(model: &mut Model, required: bool, pem: &str) {
    let authorities = CaId("infra_configmap_clients_ca.crt".into());
    let lines: Vec<&str> = pem.lines().filter(|line| !line.is_empty()).collect();
    model.ca_bundles.insert(authorities.clone(), CaBundle { pem: (lines.join("\n") + "\n").into(), sources: Arc::new([source()]) });
    model.settings.client_certificates = Some(ClientCertificates { required, authorities: Some(authorities) });
}

#[test]
fn clients_show_certificates_and_servers_are_told_whose() {
    let ((good_ca, good), (_, bad)) = (authority("good"), authority("bad"));
    for required in [true, false] {
        let (mut model, pem) = site(Settings::default());
        verified(&mut model, required, &good_ca);
        run(&model, |haproxy| {
            let ask = |own| {
                let client = client_with(&pem, rustls::DEFAULT_VERSIONS, own);
                ask_tls(&client, haproxy.address("https"), &get("/", "X-SSL-Client-DN: CN=boss\r\nX-SSL-Client-Cert: x\r\n"))
            };
            let lines = |answer: &str| got(answer).1.to_lowercase();
            let answer = ask(Some(&good));
            assert_eq!(status(&answer), 200, "{answer}");
            let told = lines(&answer);
            assert!(told.contains("x-ssl-client-dn: cn=of good\\0ax-bad: 1\n"), "{told}");
            assert!(told.contains("x-ssl-client-sha256: ") && !told.contains("boss") && !told.contains("client-cert"), "{told}");
            assert_eq!(status(&ask(Some(&bad))), 0);
            let without = ask(None);
            assert_eq!(status(&without), if required { 0 } else { 200 }, "{without}");
            assert!(!lines(&without).contains("x-ssl-client"), "{without}");
            // without TLS nobody is anybody
            let plain = haproxy.request("GET", "a.test", "/", "X-SSL-Client-DN: CN=boss\r\n");
            assert!(status(&plain) == 200 && !lines(&plain).contains("x-ssl-client"), "{plain}");
        });
    }
}

#[test]
fn without_authorities_nobody_is_let_in_where_certificates_are_required() {
    for required in [true, false] {
        let (mut model, pem) = site(Settings::default());
        model.settings.client_certificates = Some(ClientCertificates { required, authorities: None });
        run(&model, |haproxy| {
            let mut connection = ClientConnection::new(client(&pem), ServerName::try_from("a.test").unwrap()).unwrap();
            let mut stream = TcpStream::connect(haproxy.address("https")).unwrap();
            let refused = connection.complete_io(&mut stream).is_err();
            assert_eq!(refused, required);
            assert_eq!(status(&haproxy.get("a.test", "/")), 200);
        });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_authority_for_clients_is_live() {
    let ((first_ca, first), (second_ca, second)) = (authority("first"), authority("second"));
    for (version, haproxy) in haproxies() {
        let (mut model, pem) = site(Settings::default());
        verified(&mut model, true, &first_ca);
        let mut site = Site::start(*version, haproxy, model).await;
        let https = site.rig.https;
        let serves = |own: &str| status(&ask_tls(&client_with(&pem, rustls::DEFAULT_VERSIONS, Some(own)), https, &get("/", ""))) == 200;
        assert!(serves(&first) && !serves(&second));
        let reloads = site.rig.status().reload_count;
        let status = site.change(|model| verified(model, true, &second_ca)).await;
        assert!(!serves(&first) && serves(&second));
        assert_eq!(status.reload_count, reloads);
    }
}

fn access_log(destination: LogDestination) -> AccessLog {
    AccessLog {
        destination,
        format: None,
        max_length: 1024,
        request_headers: Vec::new(),
        response_headers: Vec::new(),
        cookies: Vec::new(),
        empty_requests: false,
    }
}

/// What a server of syslog gets.
fn syslog() -> (UdpSocket, LogDestination) {
    let server = UdpSocket::bind("127.0.0.1:0").unwrap();
    server.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let destination = LogDestination::Syslog { address: server.local_addr().unwrap(), facility: 3 };
    (server, destination)
}

fn line(server: &UdpSocket) -> String {
    let mut buffer = [0; 9000];
    let (size, _) = server.recv_from(&mut buffer).unwrap();
    String::from_utf8_lossy(&buffer[..size]).trim_end().to_owned()
}

#[test]
fn a_server_of_syslog_is_told_of_each_request_what_the_format_says() {
    let (server, destination) = syslog();
    let (mut model, _) = site(Settings { unique_id: Some("X-Request-ID".into()), ..Settings::default() });
    let captured = |name: &str, bytes| vec![(Box::from(name), bytes)];
    model.settings.access_log = Some(AccessLog {
        format: Some(LogFormat::read(r#"{"to":"%{+E}HM %{+E}HP","is":%ST,"all":"%hr %hs","100%%":"'#$(x) é"}"#).unwrap()),
        request_headers: captured("X-Request-ID", 36),
        response_headers: captured("X-Origin", 2),
        cookies: captured("session", 3),
        ..access_log(destination)
    });
    run(&model, |haproxy| {
        haproxy.request("GET", "a.test", "/x?y", "X-Request-ID: mine\r\nCookie: a=b; session=12345\r\n");
        let line = line(&server);
        // facility 19 (local3) and severity 6 (informational)
        assert!(line.starts_with("<158>1 "), "{line}");
        assert!(line.ends_with(r#"{"to":"GET /x","is":200,"all":"{mine|123} {ap}","100%":"'#$(x) é"}"#), "{line}");
        // a health check is no request of a client: the next line is that of the next request
        haproxy.get("none.test", "/later");
        assert!(self::line(&server).contains(r#""to":"GET /later","is":404"#));
    });
}

#[test]
fn every_variable_of_a_log_format_is_known_to_haproxy_and_lines_are_cut_where_it_is_said() {
    let (server, destination) = syslog();
    let (mut model, _) = site(Settings::default());
    let all = format!("%{{+Q,-X}}{}", LOG_VARIABLES.join(" %{+Q,-X}"));
    model.settings.access_log =
        Some(AccessLog { format: Some(LogFormat::read(&all).unwrap()), max_length: 480, ..access_log(destination) });
    run(&model, |haproxy| {
        haproxy.get("a.test", &format!("/{}", "x".repeat(400)));
        assert!(line(&server).len() <= 480);
    });
}

#[test]
fn connections_without_a_request_are_written_down_where_that_is_asked_for() {
    for empty_requests in [false, true] {
        let (server, destination) = syslog();
        let (mut model, _) = site(Settings::default());
        model.settings.access_log = Some(AccessLog { empty_requests, ..access_log(destination) });
        run(&model, |haproxy| {
            let mut stream = TcpStream::connect(haproxy.address("http")).unwrap();
            stream.shutdown(std::net::Shutdown::Write).unwrap();
            stream.read_to_end(&mut Vec::new()).unwrap();
            haproxy.get("a.test", "/next");
            let first = line(&server);
            assert_eq!(first.contains("BADREQ"), empty_requests, "{first}");
            let next = if empty_requests { line(&server) } else { first };
            assert!(next.contains("\"GET /next HTTP/1.1\""), "{next}");
        });
    }
}

#[test]
fn lines_go_to_the_output_of_the_process() {
    let (mut model, _) = site(Settings::default());
    model.settings.access_log = Some(access_log(LogDestination::Output));
    for (version, haproxy) in haproxies() {
        let running = Running::with_output(haproxy, &bundle(*version, &model), &["http", "https"]);
        running.get("a.test", "/x");
        let mut lines = BufReader::new(running.output()).lines().map(Result::unwrap);
        assert!(lines.any(|line| line.contains(" http shop_app_80_") && line.ends_with("\"GET /x HTTP/1.1\"")));
    }
}

#[test]
fn a_request_has_to_fit_the_buffer_that_the_fleet_has() {
    for (buffer_bytes, expected) in [(None, 431), (Some(65_536), 200)] {
        let (model, _) = site(Settings { buffer_bytes, ..Settings::default() });
        run(&model, |haproxy| {
            let header = format!("X-Long: {}\r\n", "x".repeat(30_000));
            let found = status(&haproxy.request("GET", "a.test", "/", &header));
            // the line that says that it is too long differs between releases
            assert!(found == expected || expected == 431 && found == 400, "{found}");
        });
    }
}

#[test]
fn a_client_is_waited_for_as_long_as_the_fleet_says() {
    let second = Some(Millis(1_000));
    let (model, _) = site(Settings {
        http_request_timeout: second,
        keep_alive_timeout: second,
        client_timeout: Some(Millis(5_000)),
        client_fin_timeout: second,
        hard_stop_after: Some(Millis(60_000)),
        ..Settings::default()
    });
    run(&model, |haproxy| {
        // half of a request
        assert_eq!(status(&ask(haproxy.address("http"), "GET / HTTP/1.1\r\nHost: a.te")), 408);
        // nothing after a request: the connection ends without a word
        let answer = ask(haproxy.address("http"), "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
        assert_eq!((status(&answer), answer.matches("HTTP/1.1 ").count()), (200, 1));
        let global = std::fs::read_to_string(haproxy.directory.path().join("10-global.cfg")).unwrap();
        assert!(global.contains("hard-stop-after 60s\n"), "{global}");
    });
}

/// A client of HTTP/2 that has asked for one thing and waits.
fn idle_http2(address: SocketAddr) -> TcpStream {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    // GET http://a.test/ of HPACK's static table, and the name in full
    let headers = b"\x82\x86\x84\x41\x06a.test";
    sent.extend([0, 0, u8::try_from(headers.len()).unwrap(), 1, 5, 0, 0, 0, 1]);
    sent.extend(headers);
    stream.write_all(&sent).unwrap();
    while !frame(&mut stream).is_some_and(|(kind, flags)| kind == 0 && flags & 1 == 1) {}
    stream
}

/// Kind and flags of the next frame; `None` if there is no more.
fn frame(stream: &mut TcpStream) -> Option<(u8, u8)> {
    let mut header = [0; 9];
    stream.read_exact(&mut header).ok()?;
    let length = u64::from(u32::from_be_bytes([0, header[0], header[1], header[2]]));
    std::io::copy(&mut stream.take(length), &mut std::io::sink()).unwrap();
    Some((header[3], header[4]))
}

#[test]
fn clients_are_asked_to_leave_one_after_the_other_where_that_is_spread_over_time() {
    const GOAWAY: u8 = 7;
    for close_spread in [None, Some(Millis(5_000))] {
        // forty connections take long on a machine that does something else as well
        let (model, _) = site(Settings { close_spread, http_request_timeout: Some(Millis(60_000)), ..Settings::default() });
        run(&model, |haproxy| {
            let mut clients: Vec<TcpStream> = (0..40).map(|_| idle_http2(haproxy.address("http"))).collect();
            let mut kept = TcpStream::connect(haproxy.address("http")).unwrap();
            haproxy.stop_softly();
            let is_told = |client: &TcpStream| {
                client.set_nonblocking(true).unwrap();
                let told = client.peek(&mut [0]).is_ok();
                client.set_nonblocking(false).unwrap();
                told
            };
            while !clients.iter().any(is_told) {
                std::thread::sleep(Duration::from_millis(1));
            }
            // by this answer those of the same moment have been told as well
            kept.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n").unwrap();
            let mut answer = String::new();
            kept.read_to_string(&mut answer).unwrap();
            assert_eq!(status(&answer), 200);
            let waiting = clients.iter().filter(|client| !is_told(client)).count();
            assert!(close_spread.is_none() || waiting > 0, "all at once");
            for client in &mut clients {
                assert_eq!(frame(client).map(|(kind, _)| kind), Some(GOAWAY));
            }
        });
    }
}

#[test]
fn haproxys_own_numbers_are_beside_its_health_check_where_they_are_asked_for() {
    for metrics in [false, true] {
        let (model, _) = site(Settings { metrics, ..Settings::default() });
        run(&model, |haproxy| {
            assert_eq!(status(&haproxy.get("a.test", "/")), 200);
            let answer = ask(haproxy.health, "GET /metrics HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
            assert_eq!(status(&answer), if metrics { 200 } else { 404 });
            assert_eq!(answer.contains("haproxy_frontend_http_requests_total{proxy=\"http\"} 1"), metrics, "{answer}");
            assert_eq!(status(&haproxy.get("a.test", "/metrics")), 200, "clients get what the server says");
        });
    }
}

#[test]
fn clients_are_asked_to_close_while_the_pod_is_about_to_stop_and_upgraded_ones_are_left_alone() {
    use haproxy_fleet::haproxy::maps::{CLOSING, POD, TRUE};
    let (model, pem) = site(Settings::default());
    run(&model, |haproxy| {
        let kept = |answer: &str| header(answer, "connection").is_none_or(|value| value != "close");
        let request = "GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
        let both = ask(haproxy.address("http"), &format!("{request}{}", get("/", "")));
        assert_eq!((both.matches("HTTP/1.1 200").count(), kept(&both)), (2, true), "{both}");
        assert_eq!(haproxy.command(&format!("set map {POD} {CLOSING} {TRUE}")), "");
        for answer in [ask(haproxy.address("http"), request), ask_tls(&client(&pem), haproxy.address("https"), request)] {
            // or it would not have ended by itself
            assert_eq!((status(&answer), kept(&answer)), (200, false), "{answer}");
        }
        let upgrade = "GET /upgrade HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n";
        let answer = ask(haproxy.address("http"), upgrade);
        assert!(answer.starts_with("HTTP/1.1 101") && kept(&answer), "{answer}");
    });
}

#[test]
fn health_checks_of_a_pod_that_closes_fail_where_nothing_else_tells_of_it() {
    use haproxy_fleet::haproxy::maps::{CLOSING, POD, TRUE};
    for (unready_while_closing, expected) in [(true, 503), (false, 200)] {
        let (model, _) = site(Settings { unready_while_closing, ..Settings::default() });
        run(&model, |haproxy| {
            let health = || status(&ask(haproxy.health, &get("/healthz", "")));
            assert_eq!(health(), 200);
            assert_eq!(haproxy.command(&format!("set map {POD} {CLOSING} {TRUE}")), "");
            assert_eq!((health(), status(&haproxy.get("a.test", "/"))), (expected, 200));
        });
    }
}

#[test]
fn health_checks_of_a_pod_that_is_drained_fail_and_requests_do_not() {
    use haproxy_fleet::haproxy::maps::{DRAINED, FALSE, POD, TRUE};
    let (model, _) = site(Settings { metrics: true, ..Settings::default() });
    run(&model, |haproxy| {
        let health = |path: &str| status(&ask(haproxy.health, &get(path, "")));
        for (drained, expected) in [(TRUE, 503), (FALSE, 200)] {
            assert_eq!(haproxy.command(&format!("set map {POD} {DRAINED} {drained}")), "");
            assert_eq!((health("/healthz"), health("/metrics"), status(&haproxy.get("a.test", "/"))), (expected, 200, 200));
        }
    });
}
