//! Each fault is one diagnostic on one object, and what is beside it is used.

use super::*;

#[test]
fn of_a_file_with_a_malformed_document_the_others_are_used() {
    let text = format!("{}---\nkind: [broken\n---\n{}", config_map("a", "1"), config_map("b", "1"));
    let mut fixture = Fixture::new(&[("x.yaml", &text), ("y.yaml", &config_map("c", "1"))]);
    assert_eq!(fixture.set(), ["ConfigMap default/a", "ConfigMap default/b", "ConfigMap default/c"]);
    let diagnostic = fixture.only_diagnostic();
    assert_eq!((diagnostic.code, diagnostic.severity), (codes::SYNTAX, Severity::Error));
    let place = fixture.files.locate_diagnostic(&diagnostic).unwrap();
    assert!(place.file.ends_with("x.yaml") && (8..=9).contains(&place.line), "{place:?}");
    assert_eq!(fixture.files.locate(&diagnostic.object, &diagnostic.field), Some(place));
}

#[test]
fn a_file_that_is_no_yaml_any_more_keeps_its_objects() {
    let mut fixture = Fixture::new(&[("a.yaml", &format!("{}---\n{}", config_map("a", "1"), config_map("b", "1")))]);
    fixture.load();
    fixture.write("a.yaml", "apiVersion: v1\nkind: {\n");
    assert!(fixture.load().is_empty());
    assert_eq!(fixture.only_diagnostic().code, codes::SYNTAX);
    // What can be read of it counts, also for what is kept.
    fixture.write("a.yaml", &format!("{}---\n'", config_map("b", "2")));
    assert_eq!(fixture.set(), ["ConfigMap default/b"]);
    fixture.write("a.yaml", &config_map("b", "2"));
    let delta = fixture.load();
    assert_eq!((delta.set.len(), delta.removed[0].to_string()), (0, "ConfigMap default/a".to_owned()));
    assert_eq!(fixture.files.diagnostics(), []);
}

#[test]
fn a_wrong_type_sets_the_object_aside_and_keeps_its_last_good_version() {
    let broken = INGRESS.replace("number: 80", "number: eighty");
    let mut fixture = Fixture::new(&[("a.yaml", &format!("{broken}---\n{}", config_map("a", "")))]);
    assert_eq!(fixture.set(), ["ConfigMap default/a"]);
    let diagnostic = fixture.only_diagnostic();
    assert_eq!(diagnostic.field, "spec.rules[0].http.paths[0].backend.service.port.number");
    assert_eq!((diagnostic.code, diagnostic.object.to_string()), (codes::INVALID_FIELD, "Ingress shop/web".to_owned()));
    fixture.write("a.yaml", INGRESS);
    assert_eq!(fixture.set(), ["Ingress shop/web"]);
    fixture.write("a.yaml", &broken);
    assert!(fixture.load().is_empty());
    assert_eq!(fixture.only_diagnostic().code, codes::INVALID_FIELD);
}

#[test]
fn an_unknown_field_is_a_warning_and_the_object_is_used() {
    let mut fixture = Fixture::new(&[
        ("a.yaml", &INGRESS.replace("path: /named", "pth: /named")),
        (
            "b.yaml",
            "apiVersion: haproxy-fleet.dev/v1alpha1\nkind: IngressDeployment\nmetadata: {name: e}\nspec: {ingressClassName: p, replica: 3}\n",
        ),
    ]);
    assert_eq!(fixture.set().len(), 2);
    let fields: Vec<_> = fixture.files.diagnostics().into_iter().map(|found| (found.severity, found.code, found.field)).collect();
    let expected = |field: &str| (Severity::Warning, codes::UNKNOWN_FIELD, field.to_owned());
    assert_eq!(fields, [expected("spec.replica"), expected("spec.rules[0].http.paths[1].pth")]);
}

#[test]
fn backend_fields_of_the_model_are_kept_and_others_are_told() {
    let text = "apiVersion: ingress.v3.haproxy.org/v3
kind: Backend
metadata: {name: all}
spec:
  server_timeout: 5000
  log_tag: x
  no_such_field: 1
  default_server: {send-proxy-v2: enabled, tfo: enabled, check: disabled}
  http_check_list: [{type: send, port: 80}]
";
    let mut fixture = Fixture::new(&[("a.yaml", text)]);
    let delta = fixture.load();
    let [Object::Backend(backend)] = delta.set.as_slice() else { panic!("{:?}", fixture.files.diagnostics()) };
    assert_eq!(backend.spec.server_timeout, Some(5000));
    let unsupported: Vec<_> = backend.unsupported.iter().map(|(path, value)| format!("{path}={value}")).collect();
    assert_eq!(unsupported, ["default_server.tfo=\"enabled\"", "http_check_list[0].port=80", "log_tag=\"x\""]);
    let diagnostic = fixture.only_diagnostic();
    assert_eq!((diagnostic.code, diagnostic.field.as_str()), (codes::UNKNOWN_FIELD, "spec.no_such_field"));
}

#[test]
fn kinds_that_are_not_needed_are_remarks_and_unknown_ones_are_warnings() {
    let object = |version: &str, kind: &str| format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x}}\n");
    for (version, kind, severity) in [
        ("apps/v1", "Deployment", Severity::Info),
        ("v1", "Pod", Severity::Info),
        ("autoscaling/v2", "HorizontalPodAutoscaler", Severity::Info),
        ("extensions/v1beta1", "Ingress", Severity::Warning),
        ("ingress.v1.haproxy.org/v1", "Backend", Severity::Warning),
        ("example.com/v1", "Gizmo", Severity::Warning),
    ] {
        let mut fixture = Fixture::new(&[("a.yaml", &object(version, kind))]);
        assert!(fixture.load().is_empty());
        let diagnostic = fixture.only_diagnostic();
        assert_eq!((diagnostic.code, diagnostic.severity), (codes::UNKNOWN_KIND, severity), "{kind}");
    }
}

#[test]
fn what_waits_for_us_by_gateway_api_is_told_that_it_is_not_served_and_classes_of_others_are_left_alone() {
    let class = |controller: &str| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: GatewayClass\nmetadata: {{name: x}}\nspec: {{controllerName: {controller}}}\n"
        )
    };
    let route = "apiVersion: gateway.networking.k8s.io/v1\nkind: HTTPRoute\nmetadata: {name: x}\n";
    for (text, object) in [(&*class("haproxy-fleet.dev/gateway"), "GatewayClass x"), (route, "HTTPRoute default/x")] {
        let mut fixture = Fixture::new(&[("a.yaml", text)]);
        assert!(fixture.load().is_empty());
        let diagnostic = fixture.only_diagnostic();
        assert_eq!((diagnostic.code, diagnostic.object.to_string()), (codes::UNSUPPORTED, object.to_owned()));
        assert!(diagnostic.help.contains("Ingress"), "{diagnostic:?}");
    }
    let mut fixture = Fixture::new(&[("a.yaml", &*class("example.com/gateways"))]);
    assert!(fixture.load().is_empty() && fixture.files.diagnostics().is_empty());
}

#[test]
fn an_object_of_two_megabytes_is_refused() {
    let mut fixture =
        Fixture::new(&[("a.yaml", &format!("{}---\n{}", config_map("big", &"x".repeat(2_000_001)), config_map("small", "")))]);
    assert_eq!(fixture.set(), ["ConfigMap default/small"]);
    let diagnostic = fixture.only_diagnostic();
    assert_eq!((diagnostic.code, diagnostic.object.to_string()), (codes::TOO_LARGE, "ConfigMap default/big".to_owned()));
}

#[test]
fn names_that_kubernetes_does_not_take_are_refused() {
    for (name, field) in [
        ("name: Upper", "metadata.name"),
        ("name: a/b", "metadata.name"),
        ("name: \"a\\nb\"", "metadata.name"),
        ("name: ../x", "metadata.name"),
        ("generateName: x-", "metadata.name"),
        ("name: x, namespace: a.b", "metadata.namespace"),
    ] {
        let mut fixture = Fixture::new(&[("a.yaml", &format!("apiVersion: v1\nkind: Secret\nmetadata: {{{name}}}\n"))]);
        assert!(fixture.load().is_empty(), "{name}");
        let diagnostic = fixture.only_diagnostic();
        assert_eq!(diagnostic.field, field, "{name}");
        assert!(fixture.files.locate_diagnostic(&diagnostic).is_some());
    }
}

#[test]
fn bad_base64_is_told_without_the_value() {
    let text = "apiVersion: v1\nkind: Secret\nmetadata: {name: s}\ndata:\n  tls.key: \"se cret!\"\n";
    let mut fixture = Fixture::new(&[("a.yaml", text)]);
    assert!(fixture.load().is_empty());
    let diagnostic = fixture.only_diagnostic();
    assert_eq!(diagnostic.field, "data[\"tls.key\"]");
    let place = fixture.files.locate_diagnostic(&diagnostic).unwrap();
    assert_eq!(place.line, 5);
    assert!(!format!("{diagnostic:?} {place:?}").contains("cret!"));
}

#[test]
fn plain_values_are_taken_as_kubectl_takes_them() {
    for value in ["true", "on", "12", "1.5", "0x1F", "~", "no"] {
        let text = config_map("a", "x").replace("\"x\"", value);
        let mut fixture = Fixture::new(&[("a.yaml", &text)]);
        let refused = fixture.load().is_empty();
        assert!(refused || value == "~", "{value}");
    }
    for value in ["12.3.4", "\"12\"", "!!str 12", "2024-01-01T00:00:00Z", "yes sir", "'true'", "1e", "-"] {
        let mut fixture = Fixture::new(&[("a.yaml", &config_map("a", "x").replace("\"x\"", value))]);
        assert_eq!(fixture.set().len(), usize::from(value != "-"), "{value}");
    }
}

#[test]
fn a_field_that_is_there_twice_is_told() {
    let mut fixture = Fixture::new(&[("a.yaml", &format!("{}  key: again\n", config_map("a", "x")))]);
    assert!(fixture.load().is_empty());
    let diagnostic = fixture.only_diagnostic();
    assert_eq!((diagnostic.field.as_str(), diagnostic.object.to_string()), ("data.key", "ConfigMap default/a".to_owned()));
}

#[test]
fn an_address_that_is_none_is_left_out_and_told() {
    let text = "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s, labels: {kubernetes.io/service-name: w}}
addressType: IPv4
ports: [{port: 80}, {port: 70000}]
endpoints: [{addresses: [10.0.0.1]}, {addresses: [localhost]}, {addresses: ['::1']}]
";
    let mut fixture = Fixture::new(&[("a.yaml", text)]);
    let delta = fixture.load();
    let [Object::EndpointSlice(slice)] = delta.set.as_slice() else { panic!("{delta:?}") };
    assert_eq!((slice.ports.len(), slice.endpoints.iter().map(|one| one.addresses.len()).collect::<Vec<_>>()), (1, vec![1, 0, 0]));
    let fields: Vec<_> = fixture.files.diagnostics().into_iter().map(|found| found.field).collect();
    assert_eq!(fields, ["endpoints[1].addresses[0]", "endpoints[2].addresses[0]", "ports[1].port"]);
}

#[test]
fn aliases_of_aliases_do_not_fill_the_memory() {
    let mut text = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for at in 1..12 {
        let before = format!("*a{}, ", at - 1).repeat(9);
        text = format!("{text}a{at}: &a{at} [{}]\n", before.trim_end_matches(", "));
    }
    let mut fixture = Fixture::new(&[("a.yaml", &text)]);
    assert!(fixture.load().is_empty());
    assert_eq!(fixture.only_diagnostic().code, codes::SYNTAX);
}

#[test]
fn bytes_that_are_no_text_are_told() {
    let fixture = Fixture::new(&[]);
    fs::write(fixture.dir.path().join("a.yaml"), b"apiVersion: v1\nkind: \xff\n").unwrap();
    let mut fixture = fixture;
    assert!(fixture.load().is_empty());
    assert_eq!(fixture.only_diagnostic().code, codes::SYNTAX);
}

#[test]
fn five_thousand_hosts_in_one_object_are_read_and_more_are_one_finding() {
    let text = |hosts: usize| {
        let rules: Vec<String> = (0..hosts).map(|at| format!("  - host: h{at}.example\n")).collect();
        let rules = rules.concat();
        format!("apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: wide}}\nspec:\n  rules:\n{rules}")
    };
    let mut fixture = Fixture::new(&[("a.yaml", &text(5_000))]);
    assert_eq!(fixture.set(), ["Ingress default/wide"]);
    assert_eq!(fixture.files.diagnostics(), []);
    fixture.write("a.yaml", &text(10_000));
    assert!(fixture.load().is_empty(), "what was good stays");
    assert_eq!(fixture.only_diagnostic().code, codes::TOO_LARGE);
}

#[test]
fn a_fleet_that_breaks_a_rule_of_its_schema_stays_as_it_was() {
    let fleet = |replicas: &str| {
        let spec = format!("{{ingressClassName: edge, {replicas}zones: [{{name: a, replicas: 1}}]}}");
        format!("apiVersion: haproxy-fleet.dev/v1alpha1\nkind: IngressDeployment\nmetadata: {{name: edge}}\nspec: {spec}\n")
    };
    let mut fixture = Fixture::new(&[("a.yaml", &fleet(""))]);
    assert_eq!(fixture.set(), ["IngressDeployment default/edge"]);
    fixture.write("a.yaml", &fleet("replicas: 3, "));
    assert!(fixture.load().is_empty());
    let told = fixture.only_diagnostic();
    assert_eq!((told.field.as_str(), told.code), ("spec.replicas", codes::INVALID_VALUE));
    assert_eq!(fixture.files.locate_diagnostic(&told).map(|found| (found.line, found.column)), Some((4, 42)));
}
