//! Policies that between them use every directive that a shape may hold, and every server keyword.

use haproxy_fleet::model::*;

fn edits(set: &[(&str, &str)], add: &[(&str, &str)], remove: &[&str]) -> HeaderEdits {
    let pairs = |list: &[(&str, &str)]| list.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    HeaderEdits { set: pairs(set), add: pairs(add), remove: remove.iter().map(|name| (*name).into()).collect() }
}

fn cookie(dynamic: bool) -> Cookie {
    Cookie {
        name: "SRV".into(),
        mode: CookieMode::Insert,
        dynamic,
        indirect: true,
        nocache: true,
        postonly: false,
        preserve: true,
        httponly: true,
        secure: true,
        maxidle: Some(1800),
        maxlife: Some(28_800),
        domains: vec![".shop.test".into()],
        attributes: vec!["SameSite=Lax".into()],
    }
}

fn balanced(balance: Balance) -> Policy {
    Policy { balance: Some(balance), ..Policy::default() }
}

fn hashed(function: HashFunction, factor: u32) -> HashType {
    HashType { function: Some(function), avalanche: true, balance_factor: Some(factor) }
}

fn check(pattern: HttpCheckPattern, negate: bool) -> Policy {
    let check = HttpCheck {
        method: Some("GET".into()),
        uri: Some("/health?x='%[src]".into()),
        version: Some("HTTP/1.1".into()),
        host: Some("health.test".into()),
        expect: Some(HttpCheckExpect { negate, pattern }),
    };
    Policy { http_check: Some(check), check_timeout: Some(Millis(700)), ..Policy::default() }
}

/// How a server is chosen, and kept.
pub fn choosing() -> Vec<(&'static str, Policy)> {
    let uri = Balance::Uri { depth: Some(2), len: Some(32), whole: true, path_only: true };
    let parameter = Balance::UrlParam { name: "sid".into(), check_post: Some(64) };
    let header = Balance::Header { name: "x-user".into(), domain_only: true };
    let key = Some("a'secret\"key".into());
    vec![
        ("default", Policy::default()),
        ("leastconn", balanced(Balance::LeastConn)),
        ("first", balanced(Balance::First)),
        ("random", balanced(Balance::Random(Some(3)))),
        ("source", Policy { hash_type: Some(hashed(HashFunction::Crc32, 150)), ..balanced(Balance::Source) }),
        ("uri", Policy { hash_type: Some(hashed(HashFunction::Wt6, 0)), ..balanced(uri) }),
        ("parameter", balanced(parameter)),
        ("header", balanced(header)),
        ("rdp", balanced(Balance::RdpCookie(None))),
        ("cookie", Policy { cookie: Some(cookie(false)), ..Policy::default() }),
        ("dynamic", Policy { cookie: Some(cookie(true)), dynamic_cookie_key: key, ..Policy::default() }),
    ]
}

/// How a server is spoken to.
pub fn speaking() -> Vec<(&'static str, Policy)> {
    let some = |millis| Some(Millis(millis));
    let timeouts = Policy {
        connect_timeout: some(1_000),
        server_timeout: some(5_000),
        queue_timeout: some(3_000),
        tunnel_timeout: some(0),
        ..Policy::default()
    };
    let retries = Policy {
        retries: Some(5),
        retry_on: Some(vec![RetryOn::ConnFailure, RetryOn::EmptyResponse, RetryOn::ResponseTimeout, RetryOn::Status(503)]),
        redispatch: Some(Redispatch { enabled: true, interval: Some(-1) }),
        http_connection_mode: Some(HttpConnectionMode::ServerClose),
        fullconn: Some(1000),
        abortonclose: Some(true),
        ..Policy::default()
    };
    let forward = ForwardFor { enabled: true, header: Some("X-Client".into()), except: Some("10.0.0.0/8".into()), ifnone: true };
    let stubborn = Policy {
        redispatch: Some(Redispatch { enabled: false, interval: None }),
        http_connection_mode: Some(HttpConnectionMode::Close),
        forwardfor: Some(forward),
        abortonclose: Some(false),
        ..Policy::default()
    };
    let keep = Policy { http_connection_mode: Some(HttpConnectionMode::KeepAlive), ..Policy::default() };
    vec![
        ("timeouts", timeouts),
        ("retries", retries),
        ("stubborn", stubborn),
        ("keepalive", keep),
        ("check-status", check(HttpCheckPattern::Status("200-299,401".into()), false)),
        ("check-rstatus", check(HttpCheckPattern::StatusRegex("^[23]".into()), false)),
        ("check-string", check(HttpCheckPattern::String("it's # \"ok\"".into()), true)),
        ("check-rstring", check(HttpCheckPattern::StringRegex("o[k]$".into()), false)),
    ]
}

/// What is changed on the way.
pub fn changing() -> Vec<(&'static str, Policy)> {
    let prefix = PathRewrite::Prefix { matched: "/app".into(), replacement: "/v2".into() };
    let parts =
        RedirectTo::Parts { scheme: Some("https".into()), host: Some("x.test".into()), port: Some(8443), path: Some(prefix.clone()) };
    let location = Redirect { code: 301, to: RedirectTo::Location("https://x.test/?a=%20".into()) };
    vec![
        ("prefix", Policy { rewrite: Some(prefix), ..Policy::default() }),
        ("full", Policy { rewrite: Some(PathRewrite::Full("/all".into())), rewrite_host: Some("in.test".into()), ..Policy::default() }),
        ("location", Policy { redirect: Some(location), ..Policy::default() }),
        ("parts", Policy { redirect: Some(Redirect { code: 307, to: parts }), ..Policy::default() }),
        (
            "headers",
            Policy {
                request_headers: edits(&[("X-A", "100% \"a' # ${HOME}")], &[("X-B", "b")], &["X-C"]),
                response_headers: edits(&[("X-D", "d")], &[("X-E", "e")], &["X-F"]),
                ..Policy::default()
            },
        ),
    ]
}

/// What stands on servers.
pub fn serving() -> Vec<(&'static str, Policy)> {
    let server = ServerOptions {
        check: Some(true),
        inter: Some(Millis(500)),
        rise: Some(1),
        fall: Some(2),
        maxconn: Some(100),
        weight: Some(10),
        slowstart: Some(Millis(1000)),
        send_proxy: Some(SendProxy::V2),
        ..ServerOptions::default()
    };
    let tls = ServerOptions {
        ssl: Some(true),
        verify: Some(Verify::Required),
        ca: Some(CaId("shop.secret.ca.crt".into())),
        sni: Some(Sni::Name("in.test".into())),
        alpn: Some(vec!["h2".into(), "http/1.1".into()]),
        ..ServerOptions::default()
    };
    let loose =
        ServerOptions { ssl: Some(true), sni: Some(Sni::RequestHost), check: Some(false), send_proxy: Some(SendProxy::V1), ..tls.clone() };
    let loose = ServerOptions { verify: Some(Verify::None), ca: None, alpn: None, ..loose };
    let h2c = ServerOptions { h2c: Some(true), ..ServerOptions::default() };
    [("server", server), ("tls", tls), ("tls-loose", loose), ("h2c", h2c)]
        .map(|(name, server)| (name, Policy { server, ..Policy::default() }))
        .to_vec()
}

/// All of them.
pub fn all() -> Vec<(&'static str, Policy)> {
    [choosing(), speaking(), changing(), serving()].concat()
}
