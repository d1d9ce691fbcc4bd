use super::{Case, ingress, service};
use crate::report::{Kind, codes};

fn paths(name: &str, host: &str, paths: &str) -> String {
    format!(
        "kind: Ingress\nmetadata: {{name: {name}}}\nspec:\n  ingressClassName: edge\n  rules:\n  - host: '{host}'\n    http:\n      paths:\n{paths}\n---\n"
    )
}

fn path(kind: &str, path: &str, service: &str) -> String {
    format!("      - {{pathType: {kind}, path: '{path}', backend: {{service: {{name: {service}, port: {{name: http}}}}}}}}\n")
}

#[test]
fn exact_paths_come_first_and_then_the_longest_prefix() {
    let all = [
        path("Prefix", "/", "a"),
        path("Prefix", "/shop/", "a"),
        path("Exact", "/shop", "a"),
        path("ImplementationSpecific", "/shop/cart", "a"),
    ];
    let case = Case::edge(&(service("a") + &paths("web", "Foo.COM", &all.concat())));
    assert_eq!(case.paths("foo.com"), ["=/shop", "/shop/cart", "/shop", "/"]);
    assert_eq!(case.target("foo.com", "/shop"), "shop/a:80");
    case.silent();
}

#[test]
fn an_exact_path_keeps_its_trailing_slash() {
    let case = Case::edge(&(service("a") + &paths("web", "foo.com", &(path("Exact", "/a/", "a") + &path("Exact", "/a", "a")))));
    assert_eq!(case.paths("foo.com"), ["=/a/", "=/a"]);
}

#[test]
fn hosts_are_exact_or_wildcards_or_any() {
    let case = Case::edge(&(service("a") + &ingress("x", "a.foo.com", "a") + &ingress("w", "'*.foo.com'", "a") + &ingress("z", "''", "a")));
    assert!(case.host("a.foo.com").is_some() && case.host("*.foo.com").is_some() && case.host("*").is_some());
    case.silent();
}

#[test]
fn wrong_hosts_and_paths_are_told_and_the_rest_serves() {
    let all = [
        path("Prefix", "/ok", "a"),
        path("Prefix", "no", "a"),
        path("Exact", "/a b", "a"),
        path("Regex", "/x", "a"),
        path("Prefix", "/a//b", "a"),
    ];
    let case = Case::edge(&(service("a") + &paths("web", "foo.com", &all.concat()) + &ingress("bad", "foo_bar.com", "a")));
    assert_eq!(case.paths("foo.com"), ["/ok"]);
    let fields: Vec<_> = case.told().into_iter().map(|(code, _, field)| (code, field)).collect();
    assert_eq!(
        fields,
        [
            (codes::INVALID_VALUE, "spec.rules[0].host"),
            (codes::INVALID_VALUE, "spec.rules[0].http.paths[1].path"),
            (codes::INVALID_VALUE, "spec.rules[0].http.paths[2].path"),
            (codes::INVALID_VALUE, "spec.rules[0].http.paths[3].pathType"),
            (codes::INVALID_VALUE, "spec.rules[0].http.paths[4].path"),
        ]
    );
}

#[test]
fn the_older_of_two_claims_wins_and_the_younger_is_told() {
    let old = ingress("zz", "foo.com", "a").replace("{name: zz}", "{name: zz, creationTimestamp: '2024-01-01T00:00:00Z'}");
    let young = ingress("aa", "foo.com", "b").replace("{name: aa}", "{name: aa, creationTimestamp: '2025-01-01T00:00:00Z'}");
    let mut case = Case::edge(&(service("a") + &service("b") + &young + &old));
    assert_eq!(case.target("foo.com", "/"), "shop/a:80");
    let told = case.diagnostics();
    assert_eq!(told.len(), 1);
    assert_eq!((told[0].code, told[0].object.to_string().as_str()), (codes::CONFLICT, "Ingress shop/aa"));
    assert!(told[0].message.contains("Ingress shop/zz"), "{}", told[0].message);
    case.remove(Kind::Ingress, "zz");
    assert_eq!(case.target("foo.com", "/"), "shop/b:80");
    case.silent();
}

#[test]
fn of_claims_of_the_same_age_the_first_name_wins() {
    let case = Case::edge(&(service("a") + &service("b") + &ingress("z", "foo.com", "b") + &ingress("x", "foo.com", "a")));
    assert_eq!(case.target("foo.com", "/"), "shop/a:80");
}

#[test]
fn a_rule_without_a_usable_backend_answers_503() {
    let broken = paths(
        "web",
        "foo.com",
        "      - {pathType: Prefix, path: /gone, backend: {service: {name: gone, port: {number: 80}}}}
      - {pathType: Prefix, path: /port, backend: {service: {name: a, port: {number: 81}}}}
      - {pathType: Prefix, path: /name, backend: {service: {name: a, port: {name: web}}}}
      - {pathType: Prefix, path: /resource, backend: {resource: {apiGroup: x.io, kind: Bucket, name: b}}}
      - {pathType: Prefix, path: /none, backend: {service: {name: a}}}",
    );
    let case = Case::edge(&(service("a") + &broken));
    for path in ["/gone", "/port", "/name", "/resource", "/none"] {
        assert_eq!(case.target("foo.com", path), "Unavailable");
    }
    let codes: Vec<_> = case.told().into_iter().map(|(code, _, field)| (field.rsplit_once("backend.").unwrap().1, code)).collect();
    assert_eq!(
        codes,
        [
            ("service.name", codes::NOT_FOUND),
            ("service.port.number", codes::NOT_FOUND),
            ("service.port.name", codes::NOT_FOUND),
            ("resource", codes::UNSUPPORTED),
            ("service.port", codes::INVALID_FIELD),
        ]
    );
    assert!(case.translator.model().backends.is_empty());
}

#[test]
fn a_missing_service_that_appears_is_used() {
    let mut case = Case::edge(&ingress("web", "foo.com", "a"));
    assert_eq!(case.target("foo.com", "/"), "Unavailable");
    let touched = case.set(&service("a"));
    assert_eq!(case.target("foo.com", "/"), "shop/a:80");
    assert_eq!((touched.hosts.len(), touched.backends.len()), (1, 1));
    assert_eq!(case.addresses(), ["10.0.0.1:8080", "10.0.0.2:8080"]);
    case.silent();
    case.remove(Kind::Service, "a");
    assert_eq!(case.target("foo.com", "/"), "Unavailable");
    assert!(case.translator.model().backends.is_empty());
}

#[test]
fn a_default_backend_without_rules_takes_every_unknown_host() {
    let case = Case::edge(
        &(service("a")
            + "kind: Ingress\nmetadata: {name: d}\nspec: {ingressClassName: edge, defaultBackend: {service: {name: a, port: {number: 80}}}}"),
    );
    assert_eq!(case.target("*", "/"), "shop/a:80");
    case.silent();
}

#[test]
fn a_default_backend_with_rules_takes_what_nobody_claims_on_its_hosts() {
    let yaml = service("a")
        + &service("b")
        + &paths("web", "foo.com", &path("Prefix", "/a", "a"))
            .replace("  rules:", "  defaultBackend: {service: {name: b, port: {number: 80}}}\n  rules:");
    let mut case = Case::edge(&yaml);
    assert_eq!((case.target("foo.com", "/a"), case.target("foo.com", "/")), ("shop/a:80".into(), "shop/b:80".into()));
    assert!(case.host("*").is_none());
    case.set(&ingress("younger", "foo.com", "a"));
    assert_eq!(case.target("foo.com", "/"), "shop/a:80");
    case.silent();
}

#[test]
fn a_rule_without_paths_goes_to_the_default_backend() {
    let yaml = service("a")
        + "kind: Ingress\nmetadata: {name: d}\nspec: {ingressClassName: edge, defaultBackend: {service: {name: a, port: {number: 80}}}, rules: [{host: foo.com}]}";
    assert_eq!(Case::edge(&yaml).target("foo.com", "/"), "shop/a:80");
}

#[test]
fn ten_thousand_hosts_in_one_ingress_are_served() {
    use std::fmt::Write;
    let mut yaml =
        "kind: Ingress\nmetadata: {name: big}\nspec:\n  ingressClassName: edge\n  tls: [{secretName: none}]\n  rules:\n".to_owned();
    for n in 0..10_000 {
        writeln!(yaml, "  - {{host: h{n}.foo.com, http: {{paths: [{{path: /, pathType: Prefix, backend: {{service: {{name: a, port: {{number: 80}}}}}}}}]}}}}").unwrap();
    }
    let mut case = Case::edge(&yaml);
    assert_eq!(case.translator.model().tables["ingress"].hosts.len(), 10_000);
    // The same mistake is told once: no Service, no Secret.
    assert_eq!(case.diagnostics().len(), 2);
    case.set(&service("a"));
    assert_eq!(case.target("h9999.foo.com", "/"), "shop/a:80");
}

#[test]
fn the_fleets_default_backend_comes_last() {
    let fleet = "kind: IngressDeployment\nmetadata: {namespace: infra, name: edge}\nspec: {ingressClassName: edge, defaultBackend: {service: {name: d, port: {number: 80}}}}\n---\n";
    let yaml = fleet.to_owned()
        + &service("a")
        + &service("d").replace("{name: d", "{namespace: infra, name: d")
        + &paths("web", "foo.com", &path("Prefix", "/a", "a"));
    let mut case = Case::of(&yaml);
    assert_eq!((case.target("*", "/"), case.target("foo.com", "/")), ("infra/d:80".into(), "infra/d:80".into()));
    assert_eq!(case.target("foo.com", "/a"), "shop/a:80");
    case.silent();
    case.set(&ingress("all", "''", "a"));
    assert_eq!(case.target("*", "/"), "shop/a:80");
}
