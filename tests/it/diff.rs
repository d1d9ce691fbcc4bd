//! `diff` through the built command: what each kind of change comes to on both release lines, and why.

use rcgen::generate_simple_self_signed;
use serde_json::Value;
use std::fs;
use std::process::{Command, Output};

const BINARY: &str = env!("CARGO_BIN_EXE_haproxy-fleet");

/// A fleet, a Service that an Ingress leads to over TLS, and one with a Backend of its own.
const BEFORE: &str = "
apiVersion: haproxy-fleet.dev/v1alpha1
kind: IngressDeployment
metadata: {namespace: infra, name: edge}
spec: {ingressClassName: edge, ports: {http: 80, https: 443}}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: web}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.0.0.1]}]
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: cart, annotations: {haproxy-fleet.dev/backend: tuned}}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: cart-1, labels: {kubernetes.io/service-name: cart}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.0.1.1]}]
---
apiVersion: haproxy-fleet.dev/v1alpha1
kind: Backend
metadata: {namespace: shop, name: tuned}
spec: {balance: {algorithm: leastconn}, server_timeout: 5000}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: shop, name: web}
spec:
  ingressClassName: edge
  tls: [{hosts: [web.test], secretName: cert}]
  rules: [{host: web.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: shop, name: cart}
spec:
  ingressClassName: edge
  rules: [{host: cart.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: cart, port: {number: 80}}}}]}}]
---
";

/// Another Service of the usual shape, and an Ingress that leads to it.
const SEARCH: &str = "
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: search}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: shop, name: search}
spec:
  ingressClassName: edge
  rules: [{host: search.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: search, port: {number: 80}}}}]}}]
---
";

fn secret() -> String {
    let made = generate_simple_self_signed(["web.test".to_owned()]).unwrap();
    let indented = |text: &str| text.lines().flat_map(|line| ["    ", line, "\n"]).collect::<String>();
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{namespace: shop, name: cert}}\ntype: kubernetes.io/tls\nstringData:\n  tls.crt: |\n{}  tls.key: |\n{}---\n",
        indented(&made.cert.pem()),
        indented(&made.signing_key.serialize_pem())
    )
}

/// Two directories, `before` and `after`.
struct Review {
    directory: tempfile::TempDir,
}

impl Review {
    fn new(before: &str, after: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (side, text) in [("before", before), ("after", after)] {
            fs::create_dir(directory.path().join(side)).unwrap();
            fs::write(directory.path().join(side).join("all.yaml"), text).unwrap();
        }
        Self { directory }
    }

    /// What `change` makes of the usual manifests.
    fn of(change: impl FnOnce(&str) -> String) -> Self {
        let before = format!("{BEFORE}{}", secret());
        let after = change(&before);
        assert_ne!(before, after, "something is changed");
        Self::new(&before, &after)
    }

    fn diff(&self, options: &[&str]) -> Output {
        let paths = ["before", "after"].map(|side| self.directory.path().join(side));
        Command::new(BINARY).arg("diff").args(paths).args(options).output().unwrap()
    }

    /// Class, resource, source object and reason of each change, on a HAProxy of this line.
    fn changes(&self, line: &str) -> Vec<[String; 4]> {
        let output = self.diff(&["-o", "json", "--haproxy-version", line]);
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let changes = document["changes"].as_array().unwrap();
        assert_eq!(output.status.code(), Some(i32::from(!changes.is_empty())), "{document:#}");
        let object = |change: &Value| {
            let part = |name| change["object"][name].as_str().unwrap_or_default().to_owned();
            format!("{} {}/{}", part("kind"), part("namespace"), part("name"))
        };
        let text = |change: &Value, field| change[field].as_str().unwrap().to_owned();
        changes.iter().map(|change| [text(change, "class"), text(change, "key"), object(change), text(change, "reason")]).collect()
    }

    /// The change of the resource whose name starts like this.
    fn change(&self, line: &str, key: &str) -> [String; 4] {
        let changes = self.changes(line);
        let mut found = changes.iter().filter(|[_, name, ..]| name.starts_with(&format!("infra/edge: {key}")));
        let change = found.next().unwrap_or_else(|| panic!("{line}: no {key} in {changes:#?}"));
        assert!(found.next().is_none(), "{line}: more than one {key} in {changes:#?}");
        change.clone()
    }

    fn classes(&self, line: &str) -> Vec<String> {
        let mut classes: Vec<String> = self.changes(line).into_iter().map(|[class, ..]| class).collect();
        classes.sort();
        classes.dedup();
        classes
    }
}

const LINES: [&str; 2] = ["3.4", "3.2"];

#[test]
fn endpoints_come_and_go_live_and_nothing_else_changes() {
    let review = Review::of(|text| text.replace("[{addresses: [10.0.0.1]}]", "[{addresses: [10.0.0.2]}, {addresses: [10.0.0.3]}]"));
    for line in LINES {
        let [class, _, object, reason] = review.change(line, "servers shop_web_80");
        let wanted = ["live", "servers are live: 2 added, 1 removed, 0 weights", "Service shop/web"];
        assert_eq!([&*class, &*reason, &*object], wanted, "{line}");
        assert_eq!(review.changes(line).len(), 1, "{line}: {:#?}", review.changes(line));
    }
}

#[test]
fn a_renewed_certificate_is_replaced_live() {
    let review = Review::of(|_| format!("{BEFORE}{}", secret()));
    for line in LINES {
        let [class, _, object, reason] = review.change(line, "certificate certs/");
        assert_eq!([&*class, &*reason], ["live", "certificates are replaced live"], "{line}");
        assert_eq!(object, "Secret shop/cert");
        assert_eq!(review.classes(line), ["live"]);
    }
}

#[test]
fn a_changed_value_of_a_policy_is_live() {
    let review = Review::of(|text| text.replace("server_timeout: 5000", "server_timeout: 9000"));
    for line in LINES {
        let [class, _, _, reason] = review.change(line, "map maps/values/timeout-server.map");
        assert_eq!([&*class, &*reason], ["live", "map entries are live"], "{line}");
        assert_eq!(review.changes(line).len(), 1, "{line}: {:#?}", review.changes(line));
    }
}

#[test]
fn a_new_service_of_a_known_shape_is_live_on_3_4_and_a_reload_on_3_2() {
    let review = Review::of(|text| format!("{text}{SEARCH}"));
    let [class, _, object, reason] = review.change("3.4", "backend shop_search_80");
    assert_eq!([&*class, &*reason], ["live", "new backends of a loaded shape are live"]);
    assert_eq!(object.split(' ').next_back(), Some("shop/search"));
    assert_eq!(review.classes("3.4"), ["live"]);

    let [class, name, _, reason] = review.change("3.2", "backend shop_search_80");
    let name = name.rsplit(' ').next().unwrap();
    assert_eq!([class, reason], ["reload".to_owned(), format!("backend {name} is new, which this HAProxy takes only by a reload")]);
    let [class, _, _, reason] = review.change("3.2", "map maps/ingress/routes.map search.test");
    assert_eq!([class, reason], ["reload".to_owned(), format!("it points to {name}, which a reload brings")]);
}

#[test]
fn a_new_shape_of_a_backend_is_one_reload_and_touches_no_other_backend() {
    let review = Review::of(|text| text.replace("algorithm: leastconn", "algorithm: first"));
    for line in LINES {
        let changes = review.changes(line);
        let reason = |wanted: &str| {
            let there = |[class, key, object, reason]: &&[String; 4]| {
                class == "reload" && object == "Backend shop/tuned" && key.starts_with("infra/edge: ") && reason.contains(wanted)
            };
            changes.iter().filter(there).count()
        };
        let backend = if line == "3.4" { "is new and so is its policy shape" } else { "is new, which this HAProxy takes only by a reload" };
        assert_eq!([reason("the policy shape h"), reason(backend), reason("comes by a reload")], [1, 1, 1], "{line}: {changes:#?}");
        assert_eq!(reason("it goes once nothing that is loaded names it"), 4, "shape, backend, servers, value: {changes:#?}");
        let [class, _, object, reason] = review.change(line, "map maps/ingress/routes.map");
        assert!(class == "reload" && object == "Ingress shop/cart" && reason.ends_with("which a reload brings"), "{changes:#?}");
        assert!(!changes.iter().any(|[_, key, ..]| key.contains("shop_web_80")), "{line}: {changes:#?}");
    }
}

#[test]
fn a_removed_route_is_live_and_what_nothing_needs_any_more_leaves_without_a_reload() {
    let without = |text: &str| {
        let start =
            text.find("kind: Ingress\nmetadata: {namespace: shop, name: cart}").unwrap() - "apiVersion: networking.k8s.io/v1\n".len();
        let end = start + text[start..].find("---\n").unwrap() + 4;
        format!("{}{}", &text[..start], &text[end..])
    };
    let review = Review::of(without);
    for line in LINES {
        let [class, _, object, reason] = review.change(line, "map maps/ingress/routes.map cart.test");
        assert_eq!([&*class, &*reason, &*object], ["live", "removals are live", "Ingress shop/cart"], "{line}");
        let [class, _, _, reason] = review.change(line, "section 30-");
        assert_eq!([&*class, &*reason], ["deferred", "it leaves the files now and the process at the next reload"], "{line}");
        assert_eq!(review.classes(line), ["deferred", "live"], "{line}");
    }
    // HAProxy 3.2 cannot delete a backend at run time.
    let backends = LINES.map(|line| review.change(line, "backend shop_cart_80")[0].clone());
    assert_eq!(backends, ["live", "deferred"]);
}

#[test]
fn a_changed_port_of_a_fleet_is_a_reload_where_redirects_name_it() {
    let review = Review::of(|text| text.replace("https: 443", "https: 8443"));
    for line in LINES {
        let [class, _, object, reason] = review.change(line, "section 20-frontends");
        assert_eq!([&*class, &*reason], ["reload", "section 20-frontends changed"], "{line}");
        assert_eq!(object, "IngressDeployment infra/edge");
    }
}

#[test]
fn a_new_fleet_is_a_reload_and_a_fleet_that_goes_names_its_resources() {
    let other = "apiVersion: haproxy-fleet.dev/v1alpha1\nkind: IngressDeployment\nmetadata: {namespace: infra, name: other}\nspec: {ingressClassName: other}\n---\n";
    for (before, after) in [(BEFORE.to_owned(), format!("{other}{BEFORE}")), (format!("{other}{BEFORE}"), BEFORE.to_owned())] {
        let changes = Review::new(&before, &after).changes("3.4");
        assert!(!changes.is_empty());
        assert!(changes.iter().all(|[_, key, ..]| key.starts_with("infra/other: ")), "{changes:#?}");
        assert!(changes.iter().any(|[class, key, ..]| class == "reload" && key == "infra/other: section 10-global"), "{changes:#?}");
    }
}

#[test]
fn the_same_twice_has_no_changes_and_is_0() {
    let same = format!("{BEFORE}{}", secret());
    // The order of objects, comments and the form are no change.
    let shuffled = format!(
        "# comment\n{SEARCH}{}{BEFORE}",
        same.split_once("apiVersion: v1\nkind: Secret").map(|(_, rest)| format!("apiVersion: v1\nkind: Secret{rest}")).unwrap()
    );
    let with_search = format!("{same}{SEARCH}");
    for line in LINES {
        assert_eq!(Review::new(&same, &same).changes(line), Vec::<[String; 4]>::new());
        assert_eq!(Review::new(&with_search, &shuffled).changes(line), Vec::<[String; 4]>::new());
    }
    let output = Review::new(&same, &same).diff(&[]);
    assert_eq!((output.status.code(), String::from_utf8_lossy(&output.stdout).trim()), (Some(0), "no changes"));
}

#[test]
fn input_that_cannot_be_read_or_a_wrong_version_is_2() {
    let review = Review::new(BEFORE, BEFORE);
    let before = review.directory.path().join("before");
    for [a, b] in [[before.as_path(), "/no/such/place".as_ref()], ["/no/such/place".as_ref(), before.as_path()]] {
        let output = Command::new(BINARY).arg("diff").args([a, b]).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("error: cannot read /no/such/place"));
        assert!(output.stdout.is_empty());
    }
    let output = review.diff(&["--haproxy-version", "3.0"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("3.0 is older than"));
    assert_eq!(Command::new(BINARY).args(["diff", before.to_str().unwrap()]).output().unwrap().status.code(), Some(2));
}

#[test]
fn a_mistake_in_the_newer_manifests_is_told_with_its_file_and_line() {
    let review = Review::of(|text| text.replace("server_timeout: 5000", "server_timeout: 5000, retry_on: nonsense"));
    let document: Value = serde_json::from_slice(&review.diff(&["-o", "json"]).stdout).unwrap();
    let found = document["diagnostics"].as_array().unwrap();
    assert_eq!(found.len(), 1, "{document:#}");
    assert_eq!((found[0]["code"].as_str(), found[0]["field"].as_str()), (Some("InvalidValue"), Some("spec.retry_on")));
    let text = String::from_utf8(review.diff(&[]).stdout).unwrap();
    let line = BEFORE.lines().position(|line| line.contains("server_timeout")).unwrap() + 1;
    assert!(text.contains(&format!("after/all.yaml:{line}:")), "{text}");
}

#[test]
fn as_text_each_change_has_its_class_resource_source_and_reason() {
    let output =
        Review::of(|text| format!("{}{SEARCH}", text.replace("10.0.0.1", "10.0.0.2").replace("https: 443", "https: 8443"))).diff(&[]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let after = |start: &str| {
        let at = lines.iter().position(|line| line.starts_with(start)).unwrap_or_else(|| panic!("no {start:?} in {text}"));
        lines[at + 1].trim()
    };
    assert_eq!(after("reload    infra/edge: section 20-frontends"), "from IngressDeployment infra/edge: section 20-frontends changed");
    assert!(after("live      infra/edge: servers shop_web_80").ends_with(": servers are live: 1 added, 1 removed, 0 weights"), "{text}");
    assert!(after("live      infra/edge: backend shop_search_80").ends_with("new backends of a loaded shape are live"), "{text}");
    assert!(lines.last().unwrap().contains(" changes: ") && lines.last().unwrap().ends_with("1 reload"), "{text}");
}
