//! Tests of what an update costs, and of names.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::model::*;

fn id(service: &str) -> BackendId {
    BackendId { namespace: "shop".into(), service: service.into(), port: 80, owner: Owner::Shared }
}

fn endpoint(last: u8) -> Endpoint {
    Endpoint { address: [10, 0, 0, last].into(), port: 80, state: EndpointState::Ready, weight: None, zone: None }
}

fn model() -> Model {
    let mut model = Model::default();
    let protocol = Protocol::Http { table: "t".into(), https_port: None };
    model.listeners.insert("http".into(), Listener { protocol, public_port: 80, pod_port: 8080, proxy_protocol: false });
    for service in ["one", "two", "three"] {
        let source = ObjectRef::new(Kind::Ingress, "shop", service);
        let backend = Backend {
            kind: BackendKind::Endpoints,
            mode: Mode::Http,
            policy: Arc::default(),
            endpoints: Arc::new([endpoint(1)]),
            zones: None,
            sources: Arc::new([source.clone()]),
        };
        model.backends.insert(id(service), backend);
        let target = Target::Backend(id(service));
        let route = Route { path: PathMatch::Prefix("/".into()), conditions: Conditions::default(), target, https_redirect: None, source };
        let host = HostMatch::Exact(format!("{service}.test").into());
        model.tables.entry("t".into()).or_default().hosts.insert(host, Host { routes: vec![route] });
    }
    model
}

fn renderer(model: &Model) -> Renderer {
    let fleet = FleetId { namespace: "infra".into(), name: "edge".into() };
    let mut renderer = Renderer::new(fleet, Capabilities::of("3.4".parse().unwrap()));
    renderer.update(model, &Touched::all(model));
    renderer
}

fn keys(changes: &[Change]) -> Vec<String> {
    changes.iter().map(|change| change.key.to_string()).collect()
}

fn change_policy(model: &mut Model, service: &str, policy: Policy) -> Touched {
    model.backends.get_mut(&id(service)).unwrap().policy = Arc::new(policy);
    Touched { backends: [id(service)].into(), ..Touched::default() }
}

#[test]
fn changed_endpoints_change_one_resource() {
    let mut model = model();
    let mut renderer = renderer(&model);
    model.backends.get_mut(&id("two")).unwrap().endpoints = Arc::new([endpoint(1), endpoint(2)]);
    let changes = renderer.update(&model, &Touched { endpoints: [id("two")].into(), ..Touched::default() });
    assert_eq!(changes.len(), 1);
    assert!(matches!(&changes[0].key, ResourceKey::Servers(name) if name.starts_with("shop_two_80_h")));
}

#[test]
fn a_changed_value_changes_one_map_entry() {
    let mut model = model();
    let timeout = |millis| Policy { server_timeout: Some(Millis(millis)), ..Policy::default() };
    change_policy(&mut model, "one", timeout(1_000));
    let mut renderer = renderer(&model);
    let touched = change_policy(&mut model, "one", timeout(2_000));
    let changes = renderer.update(&model, &touched);
    assert_eq!(changes.len(), 1);
    assert!(matches!(&changes[0].key, ResourceKey::MapEntries { map, .. } if &**map == "maps/values/timeout-server.map"));
}

#[test]
fn a_changed_shape_leads_only_the_hosts_that_use_it_to_a_new_backend() {
    let mut model = model();
    let mut renderer = renderer(&model);
    let policy = Policy { balance: Some(Balance::LeastConn), ..Policy::default() };
    let touched = change_policy(&mut model, "three", policy);
    let changed = keys(&renderer.update(&model, &touched)).join("\n");
    assert!(changed.contains("map maps/t/routes.map three.test") && !changed.contains("one.test"), "{changed}");
    assert!(changed.contains("section 30-shape-h"), "{changed}");
}

#[test]
fn a_namespace_beyond_its_shapes_is_served_by_defaults_or_told_503() {
    let mut model = model();
    change_policy(&mut model, "one", Policy { retries: Some(1), ..Policy::default() });
    change_policy(&mut model, "three", Policy { retries: Some(2), ..Policy::default() });
    change_policy(&mut model, "two", Policy { rewrite: Some(PathRewrite::Full("/x".into())), ..Policy::default() });
    let options = Options { max_shapes: 1, ..Options::default() };
    let fleet = FleetId { namespace: "infra".into(), name: "edge".into() };
    let mut renderer = Renderer::with_options(fleet, Capabilities::of("3.4".parse().unwrap()), options);
    renderer.update(&model, &Touched::all(&model));
    let found: Vec<_> = renderer.findings().map(|finding| (&*finding.object.name, finding.code)).collect();
    assert_eq!(found, [("three", crate::report::codes::LIMIT_REACHED), ("two", crate::report::codes::LIMIT_REACHED)]);
    assert_eq!(&*renderer.backend_name(&id("two")), "_503");
    assert_ne!(&*renderer.backend_name(&id("three")), "_503");
    // Once there is room again, both come back.
    let touched = change_policy(&mut model, "one", Policy::default());
    renderer.update(&model, &touched);
    assert_eq!(&*renderer.backend_name(&id("two")), "_503");
    let touched = change_policy(&mut model, "three", Policy::default());
    renderer.update(&model, &touched);
    assert_ne!(&*renderer.backend_name(&id("two")), "_503");
    assert_eq!(renderer.findings().count(), 0);
}

#[test]
fn names_are_readable_bounded_and_never_the_same() {
    let name =
        |namespace: &str, service: &str| names::backend_name(&BackendId { namespace: namespace.into(), ..id(service) }, "h0123456789");
    assert_eq!(&*name("shop", "web"), "shop_web_80_h0123456789");
    let long = "a".repeat(63);
    assert!(name(&long, &long).len() <= 127);
    assert_ne!(name(&long, &format!("{long}b")), name(&long, &format!("{long}c")));
    assert_ne!(name("a", "b_80"), name("a_b", "80"));
}

#[test]
fn the_default_shape_has_no_rules() {
    let model = model();
    let renderer = renderer(&model);
    for resource in renderer.bundle().resources() {
        if let (ResourceKey::Section(name), Content::Section(text)) = (&resource.key, &resource.content)
            && name.starts_with("30-shape-")
        {
            assert!(!text.contains("http-request"), "{text}");
        }
    }
}
