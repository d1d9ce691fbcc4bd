//! Bad input through the built command: each fault is one diagnostic on one object, with its place, and what is
//! beside it serves.

use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const BINARY: &str = env!("CARGO_BIN_EXE_haproxy-fleet");

const FLEET: &str = "apiVersion: haproxy-fleet.dev/v1alpha1
kind: IngressDeployment
metadata: {namespace: infra, name: edge}
spec: {ingressClassName: edge}
";

/// A service and an Ingress that leads `host` to it. `{spec}` and `{keys}` are room for faults.
fn shop(name: &str, host: &str) -> String {
    format!(
        "apiVersion: v1
kind: Service
metadata:
  namespace: shop
  name: {name}
spec:
  ports:
  - name: http
    port: 80
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{namespace: shop, name: {name}-1, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}]
endpoints: [{{addresses: [10.0.0.1]}}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  namespace: shop
  name: {name}
spec:
  ingressClassName: edge
  rules:
  - host: {host}
    http:
      paths:
      - path: /
        pathType: Prefix
        backend:
          service:
            name: {name}
            port:
              number: 80
"
    )
}

fn run(arguments: &[&str]) -> Output {
    Command::new(BINARY).args(arguments).output().unwrap()
}

/// What `lint -o json` says.
fn lint(directory: &Path) -> Vec<Value> {
    let output = run(&["lint", "-o", "json", "-f", directory.to_str().unwrap()]);
    assert!(output.status.code().is_some_and(|code| code < 2), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The routing map that is rendered.
fn routes(directory: &Path) -> String {
    let out = tempfile::tempdir().unwrap();
    let output = run(&["render", "-f", directory.to_str().unwrap(), "-o", out.path().to_str().unwrap()]);
    assert!(output.status.code().is_some_and(|code| code < 2), "{}", String::from_utf8_lossy(&output.stderr));
    fs::read_to_string(out.path().join("infra/edge/haproxy/maps/ingress/routes.map")).unwrap()
}

/// A good shop beside `bad`; the one finding, which is about `object` and stands in the line that starts with
/// `line` of `bad.yaml`.
fn only_finding(bad: &str, object: &str, line: &str) -> Value {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("fleet.yaml"), FLEET).unwrap();
    fs::write(directory.path().join("good.yaml"), shop("good", "good.example.com")).unwrap();
    fs::write(directory.path().join("bad.yaml"), bad).unwrap();
    let found = lint(directory.path());
    assert_eq!(found.len(), 1, "{:#?}", found.iter().take(5).collect::<Vec<_>>());
    let finding = found.into_iter().next().unwrap();
    let name = &finding["object"];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let reference = format!("{} {}/{}", text(&name["kind"]), text(&name["namespace"]), text(&name["name"]));
    assert!(reference.starts_with(object), "{finding}");
    assert!(text(&finding["file"]).ends_with("/bad.yaml"), "{finding}");
    let number = usize::try_from(finding["line"].as_u64().unwrap()).unwrap();
    let there = bad.lines().nth(number - 1).unwrap();
    assert!(there.trim().starts_with(line), "line {number} is {there:?}: {finding}");
    assert!(!text(&finding["message"]).is_empty() && !text(&finding["help"]).is_empty(), "{finding}");
    assert!(routes(directory.path()).contains("good.example.com/ shop_good_80_"), "the rest serves");
    finding
}

#[test]
fn malformed_yaml_is_one_finding_where_it_stops_to_be_yaml() {
    let found = only_finding("apiVersion: v1\nkind: [Service\nmetadata: {name: a}\n", "File /", "metadata");
    assert_eq!(found["code"], "Syntax");
}

#[test]
fn a_wrong_type_is_one_finding_at_the_field() {
    let bad = shop("bad", "bad.example.com").replace("    port: 80\n", "    port: eighty\n");
    // The Ingress that needs the Service is told, too: its requests get 503.
    let alone = bad.split("---").next().unwrap();
    let found = only_finding(alone, "Service shop/bad", "port: eighty");
    assert_eq!((found["code"].as_str(), found["field"].as_str()), (Some("InvalidField"), Some("spec.ports[0].port")));
}

#[test]
fn an_unknown_field_is_one_warning_at_the_field_and_the_object_serves() {
    let bad = shop("bad", "bad.example.com").replace("    http:\n", "    htpp: {}\n    http:\n");
    let found = only_finding(&bad, "Ingress shop/bad", "htpp");
    assert_eq!((found["code"].as_str(), found["severity"].as_str()), (Some("UnknownField"), Some("warning")));
}

#[test]
fn an_object_of_two_megabytes_is_one_finding_on_it() {
    let bad = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{namespace: shop, name: bad}}\ndata: {{a: {}}}\n", "x".repeat(2 << 20));
    assert_eq!(only_finding(&bad, "ConfigMap shop/bad", "apiVersion")["code"], "TooLarge");
    let key = "    haproxy-fleet.dev/redirect-to: /";
    let fat = format!("  name: bad\n  annotations:\n{key}{}\nspec:\n  ingressClassName", "x".repeat(2 << 20));
    let bad = shop("bad", "bad.example.com").replace("  name: bad\nspec:\n  ingressClassName", &fat);
    assert_eq!(only_finding(&bad, "Ingress shop/bad", "apiVersion")["code"], "TooLarge");
}

#[test]
fn ten_thousand_hosts_in_one_ingress_are_one_finding_on_it() {
    for (name, wrong) in [("right", ""), ("wrong", "_")] {
        let mut bad = shop("bad", "h0.example.com");
        for number in 1..10_000 {
            writeln!(bad, "  - host: h{wrong}{number}.example.com\n    http: {{paths: [{{path: /, pathType: Prefix, backend: {{service: {{name: bad, port: {{number: 80}}}}}}}}]}}").unwrap();
        }
        let found = only_finding(&bad, "Ingress shop/bad", "rules");
        assert_eq!(found["code"], "TooLarge", "{name}");
    }
}

#[test]
fn half_a_key_is_one_finding_on_the_secret() {
    let made = rcgen::generate_simple_self_signed(vec!["bad.example.com".to_owned()]).unwrap();
    let indented = |pem: &str| pem.lines().flat_map(|line| ["    ", line, "\n"]).collect::<String>();
    let key = made.signing_key.serialize_pem();
    let half = &key[..key.len() / 2];
    let secret = format!(
        "---\napiVersion: v1\nkind: Secret\nmetadata: {{namespace: shop, name: cert}}\ntype: kubernetes.io/tls\nstringData:\n  tls.crt: |\n{}  tls.key: |\n{}",
        indented(&made.cert.pem()),
        indented(half)
    );
    let tls = "spec:\n  tls: [{hosts: [bad.example.com], secretName: cert}]\n  ingressClassName";
    let bad = shop("bad", "bad.example.com").replace("spec:\n  ingressClassName", tls) + &secret;
    let found = only_finding(&bad, "Secret shop/cert", "-----BEGIN PRIVATE KEY");
    assert_eq!(found["code"], "InvalidCertificate");
    assert!(!found.to_string().contains(half.lines().last().unwrap()), "the key is told");
}

#[test]
fn a_pattern_that_does_not_compile_is_one_finding_at_the_pattern() {
    for pattern in ["ok(", "[a-", "a**", "(a+)+", "\\", "(?<n>a)", "[[:foo:]]", "[z-a]", "a{9999}", "\\p{Xx}", "[[:alpha:]-z]", "(?:a"] {
        let bad = format!(
            "{}---
apiVersion: haproxy-fleet.dev/v1alpha1
kind: Backend
metadata: {{namespace: shop, name: tuned}}
spec:
  adv_check: httpchk
  http_check_list:
  - type: expect
    match: rstring
    pattern: '{pattern}'
",
            shop("bad", "bad.example.com").replacen("  name: bad\n", "  name: bad\n  annotations: {haproxy-fleet.dev/backend: tuned}\n", 1)
        );

        let found = only_finding(&bad, "Backend shop/tuned", "pattern");
        assert_eq!((found["code"].as_str(), found["field"].as_str()), (Some("InvalidValue"), Some("spec.http_check_list[0].pattern")));
    }
}

#[test]
fn a_fleet_that_breaks_a_rule_is_one_finding_at_the_field() {
    let bad = "apiVersion: haproxy-fleet.dev/v1alpha1
kind: IngressDeployment
metadata: {namespace: infra, name: other}
spec:
  ingressClassName: other
  replicas: 3
  zones:
  - name: a
    replicas: 1
";
    let found = only_finding(bad, "IngressDeployment infra/other", "replicas: 3");
    assert_eq!(found["message"], "replicas and zones[].replicas exclude each other");
}

#[test]
fn lint_says_0_1_or_2_and_its_json_has_every_field() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    fs::write(directory.path().join("a.yaml"), format!("{FLEET}---\n{}", shop("good", "good.example.com"))).unwrap();
    assert_eq!(run(&["lint", "-f", path]).status.code(), Some(0));
    fs::write(directory.path().join("b.yaml"), shop("bad", "bad.example.com").replace("  rules:", "  rulez: []\n  rules:")).unwrap();
    assert_eq!(run(&["lint", "-f", path]).status.code(), Some(0));
    assert_eq!(run(&["lint", "-f", path, "--fail-on", "warning"]).status.code(), Some(1));
    let found = lint(directory.path());
    let keys: Vec<&String> = found[0].as_object().unwrap().keys().collect();
    let mut wanted = vec!["code", "severity", "object", "field", "message", "help", "file", "line"];
    wanted.sort_unstable();
    let mut keys: Vec<&str> = keys.into_iter().map(String::as_str).collect();
    keys.sort_unstable();
    assert_eq!(keys, wanted);
    fs::write(directory.path().join("b.yaml"), "a: [").unwrap();
    assert_eq!(run(&["lint", "-f", path]).status.code(), Some(1));
    assert_eq!(run(&["lint", "-f", "/no/such/place"]).status.code(), Some(2));
}
