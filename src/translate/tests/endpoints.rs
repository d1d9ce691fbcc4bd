use super::{Case, FLEET, ingress, service};
use crate::model::{BackendKind, EndpointState};
use crate::report::{Kind, codes};
use crate::translate::Options;

fn slice(name: &str, rest: &str) -> String {
    format!("kind: EndpointSlice\nmetadata: {{name: {name}, labels: {{kubernetes.io/service-name: a}}}}\n{rest}\n---\n")
}

fn web() -> String {
    "kind: Service\nmetadata: {name: a}\nspec: {ports: [{name: http, port: 80}, {name: other, port: 81}]}\n---\n".to_owned()
        + &ingress("web", "foo.com", "a")
}

fn v4(name: &str, port: u16, endpoints: &str) -> String {
    slice(name, &format!("addressType: IPv4\nports: [{{name: other, port: 1}}, {{name: http, port: {port}}}]\nendpoints: {endpoints}"))
}

#[test]
fn endpoints_come_from_all_slices_each_with_its_own_target_port() {
    let case = Case::edge(&(web() + &v4("s1", 8080, "[{addresses: [10.0.0.2]}]") + &v4("s2", 9090, "[{addresses: [10.0.0.1], zone: z1}]")));
    assert_eq!(case.addresses(), ["10.0.0.1:9090", "10.0.0.2:8080"]);
    assert_eq!(case.only().1.endpoints[0].zone.as_deref(), Some("z1"));
}

#[test]
fn duplicates_over_slices_count_once_and_the_living_state_wins() {
    let dying = "[{addresses: [10.0.0.1], conditions: {ready: false, serving: true, terminating: true}}]";
    let case = Case::edge(&(web() + &v4("s1", 8080, dying) + &v4("s2", 8080, "[{addresses: [10.0.0.1]}]")));
    assert_eq!(case.addresses(), ["10.0.0.1:8080"]);
    assert_eq!(case.only().1.endpoints[0].state, EndpointState::Ready);
}

#[test]
fn ready_serves_terminating_but_serving_drains_and_the_rest_is_left_out() {
    let all =
        "[{addresses: [10.0.0.1]}, {addresses: [10.0.0.2], conditions: {ready: true}}, {addresses: [10.0.0.3], conditions: {ready: false}},
  {addresses: [10.0.0.4], conditions: {ready: false, serving: true, terminating: true}},
  {addresses: [10.0.0.5], conditions: {ready: false, serving: false, terminating: true}}]";
    let case = Case::edge(&(web() + &v4("s1", 8080, all)));
    assert_eq!(case.addresses(), ["10.0.0.1:8080", "10.0.0.2:8080", "10.0.0.4:8080"]);
    assert_eq!(case.only().1.endpoints[2].state, EndpointState::Draining);
}

#[test]
fn a_dual_stack_pod_is_one_server_and_an_ipv6_pod_is_one_too() {
    let six = "addressType: IPv6\nports: [{name: http, port: 8080}]\nendpoints: [{addresses: ['2001:db8::1'], targetRef: {kind: Pod, name: p1}}, {addresses: ['2001:db8::2'], targetRef: {kind: Pod, name: p2}}]";
    let case = Case::edge(&(web() + &slice("a6", six) + &v4("z4", 8080, "[{addresses: [10.0.0.1], targetRef: {kind: Pod, name: p1}}]")));
    assert_eq!(case.addresses(), ["10.0.0.1:8080", "[2001:db8::2]:8080"]);
}

#[test]
fn addresses_that_lead_inside_are_refused_unless_loopback_is_allowed() {
    let all = v4("s1", 8080, "[{addresses: [127.0.0.1]}, {addresses: [169.254.169.254]}, {addresses: [10.0.0.1]}]");
    let case = Case::edge(&(web() + &all));
    assert_eq!(case.addresses(), ["10.0.0.1:8080"]);
    assert!(case.told().iter().all(|(code, object, _)| *code == codes::ADDRESS_REFUSED && object == "EndpointSlice shop/s1"));
    assert_eq!(case.told().len(), 2);
    let local = Case::with(&format!("{FLEET}\n---\n{}{all}", web()), Options { allow_loopback: true });
    assert_eq!(local.addresses(), ["10.0.0.1:8080", "127.0.0.1:8080"]);
    assert_eq!(local.told().len(), 1);
}

#[test]
fn a_service_without_endpoints_is_a_backend_without_servers() {
    let case = Case::edge(&web());
    assert_eq!((case.only().1.endpoints.len(), &case.only().1.kind), (0, &BackendKind::Endpoints));
    case.silent();
}

#[test]
fn a_headless_service_is_like_any_other() {
    let case = Case::edge(&(web().replace("spec: {ports", "spec: {clusterIP: None, ports") + &v4("s1", 8080, "[{addresses: [10.0.0.1]}]")));
    assert_eq!(case.addresses(), ["10.0.0.1:8080"]);
}

#[test]
fn an_external_name_is_resolved_later_with_the_port_that_the_rule_names() {
    let external = |name: &str| {
        format!("kind: Service\nmetadata: {{name: a}}\nspec: {{type: ExternalName, externalName: {name}}}\n---\n")
            + &ingress("web", "foo.com", "a")
    };
    let case = Case::edge(&external("API.example.com."));
    assert_eq!(case.only().1.kind, BackendKind::ExternalName { host: "api.example.com".into(), port: 80 });
    case.silent();
    for bad in ["127.0.0.1", "'::1'", "localhost", "a_b.com", "1.2.3", "''"] {
        let case = Case::edge(&external(bad));
        assert_eq!(case.target("foo.com", "/"), "Unavailable", "{bad}");
        assert!(case.told().iter().any(|(_, object, field)| object == "Service shop/a" && *field == "spec.externalName"), "{bad}");
    }
}

#[test]
fn an_endpoint_change_touches_only_the_endpoints_of_its_backends() {
    let mut case = Case::edge(&(service("a") + &service("b") + &ingress("x", "foo.com", "a") + &ingress("w", "bar.com", "b")));
    let touched = case.set(&v4("a-1", 8081, "[{addresses: [10.0.0.9]}]"));
    assert_eq!(touched.endpoints.iter().map(ToString::to_string).collect::<Vec<_>>(), ["shop/a:80"]);
    assert_eq!(crate::model::Touched { endpoints: touched.endpoints.clone(), ..Default::default() }, touched);
    let touched = case.remove(Kind::EndpointSlice, "a-1");
    assert_eq!(touched.endpoints.len(), 1);
    assert!(case.backend("shop/a:80").endpoints.is_empty());
    assert!(case.remove(Kind::EndpointSlice, "a-1").is_empty());
}
