use super::{Case, ingress, service};
use crate::model::{BackendKind, Balance, Millis, Owner, PathRewrite, Policy, RedirectTo, Sni, Verify};
use crate::report::{Kind, codes};

fn annotated(yaml: &str, name: &str, keys: &str) -> String {
    yaml.replace(&format!("metadata: {{name: {name}}}"), &format!("metadata: {{name: {name}, annotations: {{{keys}}}}}"))
}

fn backend(name: &str, spec: &str) -> String {
    format!("kind: Backend\nmetadata: {{name: {name}}}\nspec: {spec}\n---\n")
}

fn scoped(service_keys: &str, ingress_keys: &str) -> String {
    annotated(&service("a"), "a", service_keys) + &annotated(&ingress("web", "foo.com", "a"), "web", ingress_keys)
}

fn policy(case: &Case) -> &Policy {
    &case.only().1.policy
}

#[test]
fn routes_share_a_backend_unless_their_ingress_sets_a_field() {
    let case = Case::edge(&(scoped("", "haproxy-fleet.dev/timeout-server: 5s") + &ingress("plain", "bar.com", "a")));
    assert_eq!(case.target("foo.com", "/"), "shop/a:80 for web");
    assert_eq!(case.target("bar.com", "/"), "shop/a:80");
    assert_eq!(case.backend("shop/a:80 for web").policy.server_timeout, Some(Millis(5000)));
    assert_eq!(*case.backend("shop/a:80").policy, Policy::default());
}

#[test]
fn the_nearest_scope_wins_field_by_field() {
    let fleet =
        "kind: IngressDeployment\nmetadata: {namespace: infra, name: edge}\nspec: {ingressClassName: edge, backendRef: {name: all}}\n---\n";
    let all =
        backend("all", "{connect_timeout: 1, server_timeout: 1, queue_timeout: 1}").replace("{name: all}", "{namespace: infra, name: all}");
    let yaml = fleet.to_owned()
        + &all
        + &backend("near", "{connect_timeout: 3}")
        + &backend("middle", "{connect_timeout: 2, server_timeout: 2}")
        + &scoped("haproxy-fleet.dev/backend: near", "haproxy-fleet.dev/backend: middle");
    let case = Case::of(&yaml);
    case.silent();
    let policy = policy(&case);
    assert_eq!((policy.connect_timeout, policy.server_timeout, policy.queue_timeout), (Some(Millis(3)), Some(Millis(2)), Some(Millis(1))));
    let sources: Vec<String> = case.only().1.sources.iter().map(ToString::to_string).collect();
    assert_eq!(sources, ["Backend shop/near", "Backend shop/middle", "Ingress shop/web", "Service shop/a", "Backend infra/all"]);
}

#[test]
fn a_native_key_beats_a_backend_field_of_the_same_scope_and_says_so() {
    let case = Case::edge(
        &(backend("b", "{server_timeout: 1}") + &scoped("haproxy-fleet.dev/backend: b, haproxy-fleet.dev/timeout-server: 2ms", "")),
    );
    assert_eq!(policy(&case).server_timeout, Some(Millis(2)));
    assert_eq!(case.told().iter().map(|(code, ..)| *code).collect::<Vec<_>>(), [codes::CONFLICT]);
}

#[test]
fn a_missing_backend_is_told_and_used_once_it_appears() {
    let mut case = Case::edge(&scoped("", "haproxy-fleet.dev/backend: b"));
    assert_eq!(case.told(), [(codes::NOT_FOUND, "Ingress shop/web".to_owned(), "metadata.annotations[\"haproxy-fleet.dev/backend\"]")]);
    case.set(&backend("b", "{balance: {algorithm: leastconn}}"));
    case.silent();
    assert_eq!(policy(&case).balance, Some(Balance::LeastConn));
    case.remove(Kind::Backend, "b");
    assert_eq!(policy(&case).balance, None);
}

#[test]
fn a_rewrite_has_a_backend_for_each_path() {
    let yaml = scoped("", "haproxy-fleet.dev/rewrite-path-prefix: /v2").replace("path: /,", "path: /api/,");
    let case = Case::edge(&yaml);
    let (id, backend) = case.only();
    assert_eq!(id.owner, Owner::Rule { name: "web".into(), path: "/api/".into() });
    assert_eq!(backend.policy.rewrite, Some(PathRewrite::Prefix { matched: "/api".into(), replacement: "/v2".into() }));
}

#[test]
fn a_redirect_needs_no_service() {
    let case = Case::edge(&annotated(&ingress("web", "foo.com", "gone"), "web", "haproxy-fleet.dev/redirect-to: 'https://bar.com/x'"));
    case.silent();
    let (id, backend) = case.only();
    assert_eq!((id.to_string().as_str(), &backend.kind), ("shop/web:0 for web", &BackendKind::None));
    assert_eq!(backend.policy.redirect.as_ref().unwrap().to, RedirectTo::Location("https://bar.com/x".into()));
}

#[test]
fn every_supported_field_of_a_backend_is_taken() {
    let case = Case::edge(&(scoped("haproxy-fleet.dev/backend: b", "") + "
kind: Backend
metadata: {name: b}
spec:
  balance: {algorithm: uri, uri_depth: 2}
  hash_type: {method: consistent, function: crc32, modifier: avalanche}
  cookie: {name: SRV, type: insert, indirect: true, nocache: true, dynamic: true, domain: [{value: .foo.com}], attr: [{value: SameSite=Lax}]}
  dynamic_cookie_key: k
  connect_timeout: 1000
  server_timeout: 2000
  queue_timeout: 3000
  tunnel_timeout: 4000
  check_timeout: 5000
  retries: 2
  retry_on: conn-failure 503
  redispatch: {enabled: enabled, interval: -1}
  http_connection_mode: http-server-close
  forwardfor: {enabled: enabled, header: X-Client, except: 10.0.0.0/8, ifnone: true}
  fullconn: 100
  abortonclose: enabled
  adv_check: httpchk
  httpchk_params: {method: GET, uri: /healthz, version: HTTP/1.1, host: foo.com}
  http_check_list: [{type: expect, match: status, pattern: 200-299}]
  default_server: {check: enabled, inter: 1000, rise: 1, fall: 2, maxconn: 50, weight: 10, slowstart: 1000, ssl: enabled, verify: none, sni: req.hdr(host), alpn: 'h2,http/1.1', send-proxy-v2: enabled}
"));
    case.silent();
    insta::assert_debug_snapshot!(policy(&case));
}

#[test]
fn what_is_known_but_not_supported_is_refused_by_name() {
    let spec = "{name: x, mode: http, balance: {algorithm: static-rr}, hash_type: {method: map-based}, tcp_request_rule_list: [], id: 5, adv_check: redis-check}";
    let case = Case::edge(&(scoped("haproxy-fleet.dev/backend: b", "") + &backend("b", spec)));
    assert_eq!(*policy(&case), Policy::default());
    let fields: Vec<&str> = case.told().iter().map(|(_, _, field)| *field).collect();
    assert_eq!(fields, ["spec.adv_check", "spec.balance.algorithm", "spec.hash_type.method", "spec.id", "spec.tcp_request_rule_list"]);
    assert!(case.diagnostics().iter().all(|d| d.code == codes::UNSUPPORTED));
    assert!(case.diagnostics()[1].message.contains("static-rr") && case.diagnostics()[2].message.contains("map-based"));
}

#[test]
fn wrong_values_in_a_backend_are_told_one_by_one() {
    let spec = r#"{connect_timeout: 0, retries: -1, retry_on: never, dynamic_cookie_key: "a b", fullconn: 0,
  cookie: {name: "a b", type: insert}, forwardfor: {enabled: enabled, header: "x y", except: nowhere},
  adv_check: httpchk, httpchk_params: {uri: "/a b", version: "1\r\n"}, http_check_list: [{type: expect, match: rstring, pattern: "(a+)+"}],
  default_server: {weight: 300, sni: "a b", alpn: ",", ssl_cafile: /etc/passwd}}"#;
    let case = Case::edge(&(scoped("haproxy-fleet.dev/backend: b", "") + &backend("b", spec)));
    let fields: Vec<&str> = case.told().iter().map(|(_, _, field)| field.strip_prefix("spec.").unwrap()).collect();
    assert_eq!(
        fields,
        [
            "connect_timeout",
            "cookie.name",
            "default_server.alpn",
            "default_server.sni",
            "default_server.ssl_cafile",
            "default_server.weight",
            "dynamic_cookie_key",
            "forwardfor.except",
            "forwardfor.header",
            "fullconn",
            "http_check_list[0].pattern",
            "httpchk_params.uri",
            "httpchk_params.version",
            "retries",
            "retry_on",
        ]
        .iter()
        .copied()
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect::<Vec<_>>()
    );
}

#[test]
fn a_ca_that_cannot_be_had_answers_503_instead_of_not_verifying() {
    let made = rcgen::generate_simple_self_signed(vec!["ca".to_owned()]).unwrap();
    let pem: String = made.cert.pem().lines().map(|line| format!("    {line}\n")).collect();
    let map = format!("kind: ConfigMap\nmetadata: {{name: ca}}\ndata:\n  ca.crt: |\n{pem}");
    let spec = "{default_server: {ssl: enabled, verify: required, ssl_cafile: configmap/ca, sni: a.internal}}";
    let mut case = Case::edge(&(scoped("haproxy-fleet.dev/backend: b", "") + &backend("b", spec)));
    assert_eq!(case.told(), [(codes::NOT_FOUND, "Backend shop/b".to_owned(), "spec.default_server.ssl_cafile")]);
    assert_eq!((&case.only().1.kind, case.only().1.endpoints.len()), (&BackendKind::None, 0));
    let touched = case.set(&map);
    case.silent();
    assert_eq!((touched.ca_bundles.len(), touched.backends.len()), (1, 1));
    assert_eq!((&case.only().1.kind, case.only().1.endpoints.len()), (&BackendKind::Endpoints, 2));
    let server = &policy(&case).server;
    assert_eq!(
        (server.verify, &server.sni, server.ca.as_ref().unwrap().0.as_ref()),
        (Some(Verify::Required), &Some(Sni::Name("a.internal".into())), "shop_configmap_ca_ca.crt")
    );
    case.remove(Kind::ConfigMap, "ca");
    assert_eq!(case.only().1.kind, BackendKind::None);
    assert!(case.translator.model().ca_bundles.is_empty());
}

#[test]
fn the_config_map_of_the_fleet_names_a_backend_too() {
    let fleet = "kind: IngressDeployment\nmetadata: {namespace: infra, name: edge}\nspec: {ingressClassName: edge, configMapRef: {name: cm}}\n---\n";
    let here = |yaml: String| yaml.replace("metadata: {name", "metadata: {namespace: infra, name");
    let mut case = Case::of(&(fleet.to_owned() + &service("a") + &ingress("web", "foo.com", "a")));
    assert_eq!(case.told().len(), 1);
    case.set(&here("kind: ConfigMap\nmetadata: {name: cm}\ndata: {cr-backend: infra/all}\n---\n".to_owned()));
    assert_eq!(case.told(), [(codes::NOT_FOUND, "IngressDeployment infra/edge".to_owned(), "spec.configMapRef.name")]);
    case.set(&here(backend("all", "{retries: 7}")));
    case.silent();
    assert_eq!(policy(&case).retries, Some(7));
    let touched = case.set(&here(backend("all", "{retries: 8}")));
    assert_eq!((policy(&case).retries, touched.backends.len(), touched.hosts.len()), (Some(8), 1, 0));
}

#[test]
fn a_policy_value_that_changes_touches_its_backend_only() {
    let mut case = Case::edge(&(scoped("haproxy-fleet.dev/backend: b", "") + &backend("b", "{server_timeout: 1}")));
    let touched = case.set(&backend("b", "{server_timeout: 2}"));
    assert_eq!((touched.backends.len(), touched.hosts.len(), touched.endpoints.len()), (1, 0, 0));
}
