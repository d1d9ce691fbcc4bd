use super::{Case, ingress, service};
use crate::model::{
    ClientCertificates, ErrorPage, ForwardFor, Forwarded, HeaderEdits, Hsts, LogDestination, Millis, PageKind, Settings, TlsVersions,
    Touched,
};
use crate::report::codes;

/// The fleet with `spec` beside its class, before what else there is.
fn fleet(spec: &str) -> String {
    let spec = if spec.is_empty() { String::new() } else { format!(", {spec}") };
    format!("kind: IngressDeployment\nmetadata: {{namespace: infra, name: edge}}\nspec: {{ingressClassName: edge{spec}}}\n---\n")
}

fn routes() -> String {
    service("a") + &ingress("a", "a.com", "a")
}

fn case(spec: &str) -> Case {
    Case::of(&(fleet(spec) + &routes()))
}

fn settings(case: &Case) -> &Settings {
    &case.translator.model().settings
}

#[test]
fn a_fleet_that_says_nothing_has_the_default_settings() {
    let case = case("");
    assert_eq!(*settings(&case), Settings { close_spread: Some(Millis(30_000)), ..Settings::default() });
    case.silent();
}

#[test]
fn a_pod_with_ports_of_its_node_tells_load_balancers_itself_that_it_ends() {
    for (spec, unready) in [("", false), ("publishing: {type: Private}", false), ("publishing: {type: HostNetwork}", true)] {
        assert_eq!(settings(&case(spec)).unready_while_closing, unready, "{spec}");
    }
}

#[test]
fn settings_change_without_any_route_being_translated_anew() {
    let mut case = case("");
    let touched = case.set(&fleet("http: {hsts: {}, headers: {response: [{name: X-A, type: Set, value: b}]}}"));
    assert_eq!(touched, Touched { settings: true, ..Touched::default() });
    assert_eq!(settings(&case).hsts, Some(Hsts { max_age: 31_536_000, include_sub_domains: false, preload: false }));
    let set = vec![("X-A".into(), "b".into())];
    assert_eq!(settings(&case).response_headers, HeaderEdits { set, ..HeaderEdits::default() });
    assert_eq!(
        case.set(&fleet("http: {hsts: {}, headers: {response: [{name: X-A, type: Set, value: b}]}}, replicas: 3")),
        Touched::default()
    );
    assert_eq!(case.set(&fleet("")), Touched { settings: true, ..Touched::default() });
}

#[test]
fn the_forwarded_policy_is_the_widest_scope_of_backends() {
    let policy = |case: &Case| case.translator.model().backends.values().next().unwrap().policy.forwardfor.clone();
    let forwardfor = |enabled, ifnone| Some(ForwardFor { enabled, header: None, except: None, ifnone });
    for (name, forwarded, of_backends) in [
        ("Append", Forwarded::Append, None),
        ("Replace", Forwarded::Replace, None),
        ("IfNone", Forwarded::IfNone, forwardfor(true, true)),
        ("Never", Forwarded::Never, forwardfor(false, false)),
    ] {
        let spec = format!("http: {{headers: {{forwardedPolicy: {name}}}}}");
        let of_fleet = case(&spec);
        assert_eq!((settings(&of_fleet).forwarded, policy(&of_fleet)), (forwarded, of_backends));
        let backend = "kind: Backend\nmetadata: {namespace: infra, name: b}\nspec: {forwardfor: {enabled: enabled}}\n---\n";
        let by_backend = Case::of(&(fleet(&format!("{spec}, backendRef: {{name: b}}")) + backend + &routes()));
        assert_eq!(policy(&by_backend), forwardfor(true, false), "{name}");
    }
}

fn pages(data: &str) -> String {
    format!("kind: ConfigMap\nmetadata: {{namespace: infra, name: pages}}\ndata: {data}\n---\n")
}

#[test]
fn a_page_that_cannot_be_used_is_told_and_the_others_are() {
    let long = "x".repeat(ErrorPage::MAX_BYTES + 1);
    let data = format!(
        "{{503.html: <p>, 404.json: '{{}}', 404.txt: gone, 200.html: fine, 503: raw, page.html: x, 502.txt: '', 500.txt: {long}, 0503.txt: x}}"
    );
    let case = Case::of(&(fleet("http: {errorPagesRef: {name: pages}}") + &pages(&data) + &routes()));
    let found: Vec<_> = settings(&case).error_pages.iter().map(|(status, page)| (*status, page.kind, &*page.body)).collect();
    assert_eq!(found, [(404, PageKind::Json, "{}"), (503, PageKind::Html, "<p>")]);
    let told: Vec<_> = case.told().into_iter().map(|(code, object, field)| (code, object, field.to_owned())).collect();
    let expected = |code, key: &str| (code, "ConfigMap infra/pages".to_owned(), format!("data[\"{key}\"]"));
    let mut all = vec![
        expected(codes::INVALID_FIELD, "0503.txt"),
        expected(codes::INVALID_FIELD, "200.html"),
        expected(codes::CONFLICT, "404.txt"),
        expected(codes::TOO_LARGE, "500.txt"),
        expected(codes::INVALID_VALUE, "502.txt"),
        expected(codes::INVALID_FIELD, "503"),
        expected(codes::INVALID_FIELD, "page.html"),
    ];
    let by_field = |told: &(_, String, String)| told.2.clone();
    all.sort_by_key(by_field);
    let mut told = told;
    told.sort_by_key(by_field);
    assert_eq!(told, all);
}

#[test]
fn pages_that_appear_or_change_are_used_and_touch_the_settings_only() {
    let mut case = case("http: {errorPagesRef: {name: pages}}");
    assert_eq!(case.told(), [(codes::NOT_FOUND, "IngressDeployment infra/edge".to_owned(), "spec.http.errorPagesRef.name")]);
    case.set(&pages("{503.html: one}"));
    case.silent();
    assert_eq!(case.set(&pages("{503.html: two}")), Touched { settings: true, ..Touched::default() });
    assert_eq!(&*settings(&case).error_pages[&503].body, "two");
}

#[test]
fn authorities_of_clients_come_from_either_kind_and_their_absence_lets_nobody_pass() {
    const FIELD: &str = "spec.tls.clientTLS.caRef.name";
    let spec = |kind: &str| format!("tls: {{profile: Modern, clientTLS: {{policy: Required, caRef: {{kind: {kind}, name: ca}}}}}}");
    let object = |kind: &str, host: &str| {
        let pem = super::secret("ca", host).replace("tls.crt", "ca.crt");
        let pem = pem.replace("metadata: {name", "metadata: {namespace: infra, name");
        if kind == "Secret" { pem } else { pem.replace("kind: Secret", "kind: ConfigMap").replace("stringData", "data") }
    };
    for kind in ["Secret", "ConfigMap"] {
        let mut case = case(&spec(kind));
        assert_eq!(case.told(), [(codes::NOT_FOUND, "IngressDeployment infra/edge".to_owned(), FIELD)]);
        assert_eq!(settings(&case).client_certificates, Some(ClientCertificates { required: true, authorities: None }));
        assert_eq!(settings(&case).tls, TlsVersions::Modern);
        case.set(&object(kind, "one"));
        case.silent();
        let id = settings(&case).client_certificates.clone().unwrap().authorities.unwrap();
        assert!(case.translator.model().ca_bundles[&id].pem.starts_with("-----BEGIN CERTIFICATE"), "{kind}");
        // the certificates themselves are live
        let touched = case.set(&object(kind, "two"));
        assert_eq!(touched, Touched { ca_bundles: [id].into(), ..Touched::default() });
    }
}

#[test]
fn a_log_format_with_anything_but_known_variables_is_told_and_the_usual_one_is_used() {
    for (format, good) in [
        ("%ci:%cp [%tr] %{+Q,-E}r %ST 100%% {x}", true),
        ("no variable at all", true),
        ("%[env(HOME)]", false),
        ("%{+Q}[src]", false),
        ("%nothing", false),
        ("%cix", false),
        ("%", false),
        ("%{+Z}r", false),
        ("%{+Q", false),
    ] {
        let case = case(&format!("logging: {{access: {{format: '{format}'}}}}"));
        assert_eq!(settings(&case).access_log.as_ref().unwrap().format.is_some(), good, "{format}");
        let expected = (codes::INVALID_VALUE, "IngressDeployment infra/edge".to_owned(), "spec.logging.access.format");
        assert_eq!(case.told(), if good { vec![] } else { vec![expected] }, "{format}");
    }
}

#[test]
fn a_log_goes_where_the_fleet_says() {
    assert_eq!(settings(&case("")).access_log, None);
    let destination = |spec: &str| settings(&case(spec)).access_log.as_ref().unwrap().destination;
    assert_eq!(destination("logging: {access: {}}"), LogDestination::Output);
    let syslog = "logging: {access: {destination: Syslog, syslog: {address: '2001:db8::1', facility: local7}}}";
    assert_eq!(destination(syslog), LogDestination::Syslog { address: "[2001:db8::1]:514".parse().unwrap(), facility: 7 });
}

#[test]
fn times_of_the_fleet_hold_where_no_backend_says_otherwise() {
    let tuning = "tuning: {headerBufferBytes: 32768, healthCheckInterval: 7s, hardStopAfter: 2h, timeouts: {client: 1m, clientFin: 5s, \
        httpRequest: 3s, httpKeepAlive: 4s, connect: 6s, queue: 8s, server: 9s, tunnel: 1h}}";
    let backend = "kind: Backend\nmetadata: {namespace: infra, name: b}\nspec: {server_timeout: 1000}\n---\n";
    let case = Case::of(&(fleet(&format!("backendRef: {{name: b}}, {tuning}")) + backend + &routes()));
    let policy = &case.only().1.policy;
    let seconds = |seconds: u32| Some(Millis(seconds * 1000));
    assert_eq!((policy.connect_timeout, policy.queue_timeout), (seconds(6), seconds(8)));
    assert_eq!((policy.server_timeout, policy.tunnel_timeout, policy.server.inter), (seconds(1), seconds(3600), seconds(7)));
    let settings = settings(&case);
    assert_eq!((settings.client_timeout, settings.client_fin_timeout), (seconds(60), seconds(5)));
    assert_eq!((settings.http_request_timeout, settings.keep_alive_timeout), (seconds(3), seconds(4)));
    assert_eq!((settings.hard_stop_after, settings.buffer_bytes), (seconds(7200), Some(32_768)));
    case.silent();
}

#[test]
fn connections_are_closed_over_half_of_the_time_that_they_have() {
    for (spec, spread, hard_stop) in [
        ("", Some(30_000), None),
        ("drain: {timeout: 3s}", Some(1_500), None),
        ("drain: {timeout: 0s}", None, None),
        // HAProxy itself cuts nothing before the time that a pod has is over
        ("drain: {timeout: 2m}, tuning: {hardStopAfter: 10s}", Some(60_000), Some(130_000)),
        ("drain: {timeout: 2m}, tuning: {hardStopAfter: 5m}", Some(60_000), Some(300_000)),
        ("drain: {timeout: 1h}", Some(1_800_000), Some(3_610_000)),
    ] {
        let case = case(spec);
        let settings = settings(&case);
        assert_eq!((settings.close_spread, settings.hard_stop_after), (spread.map(Millis), hard_stop.map(Millis)), "{spec}");
    }
}

#[test]
fn a_fleet_may_let_no_wildcard_in_and_still_serves_certificates_for_them() {
    let wild = ingress("w", "'*.a.com'", "a").replace("  rules:", "  tls: [{hosts: ['*.a.com'], secretName: cert}]\n  rules:");
    let objects = routes() + &wild + &super::secret("cert", "*.a.com");
    let open = Case::of(&(fleet("") + &objects));
    assert!(open.host("*.a.com").is_some());
    open.silent();
    let closed = Case::of(&(fleet("routeAdmission: {wildcardPolicy: Disallowed}") + &objects));
    assert!(closed.host("a.com").is_some() && closed.host("*.a.com").is_none());
    assert_eq!(closed.told(), [(codes::NOT_PERMITTED, "Ingress shop/w".to_owned(), "spec.rules[0].host")]);
    assert_eq!(closed.translator.model().certificates.len(), 1);
}
