#![allow(clippy::unwrap_used)]
use super::*;
use crate::report::PrivateBytes;

const OLD: Capabilities = Capabilities { dynamic_backends: false, set_timeout_connect: false, max_payload: 14_000 };
const NEW: Capabilities = Capabilities { dynamic_backends: true, set_timeout_connect: true, max_payload: 120_000 };

fn put(bundle: &mut Bundle, key: ResourceKey, content: Content) {
    bundle.set(&key.clone(), Some(Resource::new(key, content, Arc::new([]))));
}

fn section(bundle: &mut Bundle, name: &str, text: &str) {
    put(bundle, ResourceKey::Section(name.into()), Content::Section(text.into()));
}

fn server(name: &str) -> Server {
    Server {
        name: name.into(),
        address: "127.0.0.1:80".parse().unwrap(),
        id: 1,
        guid: name.into(),
        keywords: "".into(),
        checked: false,
        weight: 100,
        drain: false,
        zone: None,
        here: None,
    }
}

fn backend(bundle: &mut Bundle, name: &str, shape: &str, servers: &[&str]) {
    let class = BackendClass::Shaped { shape: shape.into(), mode: "http", guid: name.into() };
    let text = format!("backend {name} from {shape}\n").into();
    put(bundle, ResourceKey::Backend(name.into()), Content::Backend(BackendHead { text, class }));
    put(bundle, ResourceKey::Servers(name.into()), Content::Servers(servers.iter().map(|name| server(name)).collect::<Vec<_>>().into()));
}

fn routes(bundle: &mut Bundle, host: &str, entries: &[(&str, &str)]) {
    let entries = entries.iter().map(|(key, value)| MapEntry { key: (*key).into(), value: (*value).into() }).collect();
    let key = ResourceKey::MapEntries { map: "maps/http/routes.map".into(), owner: host.into() };
    put(bundle, key, Content::MapEntries(entries));
}

fn start() -> Bundle {
    let mut bundle = Bundle::default();
    section(&mut bundle, "20-frontends", "frontend x\n");
    section(&mut bundle, "30-shape-a", "defaults shape-a\n");
    backend(&mut bundle, "one", "shape-a", &["s1", "s2"]);
    routes(&mut bundle, "h", &[("h|/", "one")]);
    bundle
}

fn plan_between(before: &Bundle, process: &Process, after: &Bundle, capabilities: &Capabilities) -> Plan {
    let keys = before.diff(after).into_iter().map(|change| change.key).collect();
    let (aside, forced) = (BTreeSet::new(), BTreeMap::new());
    plan(before, process, Target { wanted: after, aside: &aside, forced: &forced }, &keys, capabilities)
}

fn from_loaded(before: &Bundle, after: &Bundle, capabilities: &Capabilities) -> Plan {
    plan_between(before, &Process::loaded(before), after, capabilities)
}

fn steps(plan: &Plan) -> Vec<&Step> {
    let mut steps: Vec<&Step> = plan.takes.iter().flat_map(|take| &take.steps).collect();
    steps.sort_by_key(|step| step.phase());
    steps
}

#[test]
fn the_same_bundle_needs_nothing() {
    assert_eq!(from_loaded(&start(), &start(), &NEW), Plan::default());
}

#[test]
fn a_replaced_endpoint_is_added_before_the_old_one_retires() {
    let mut after = start();
    backend(&mut after, "one", "shape-a", &["s2", "s3"]);
    let plan = from_loaded(&start(), &after, &OLD);
    assert!(plan.reload.is_none() && plan.waiting.is_empty());
    let steps = steps(&plan);
    assert!(matches!(steps[..], [Step::AddServer { .. }, Step::RetireServer { .. }]), "{steps:?}");
}

#[test]
fn draining_sets_the_weight_to_zero() {
    let mut after = start();
    let mut servers = vec![server("s1"), server("s2")];
    servers[0].drain = true;
    put(&mut after, ResourceKey::Servers("one".into()), Content::Servers(servers.into()));
    assert!(matches!(steps(&from_loaded(&start(), &after, &OLD))[..], [Step::SetWeight { .. }]));
}

#[test]
fn a_server_that_waits_for_its_deletion_is_enabled_again() {
    let mut before = start();
    backend(&mut before, "one", "shape-a", &["s1"]);
    let mut process = Process::loaded(&before);
    process.done(&Step::RetireServer { backend: "one".into(), server: server("s2") });
    let plan = plan_between(&before, &process, &start(), &OLD);
    assert!(matches!(steps(&plan)[..], [Step::ReturnServer { .. }]));
}

#[test]
fn a_new_backend_of_a_loaded_shape_is_live_where_haproxy_can() {
    let mut after = start();
    backend(&mut after, "two", "shape-a", &["t1"]);
    routes(&mut after, "g", &[("g|/", "two")]);
    let plan = from_loaded(&start(), &after, &NEW);
    assert!(plan.reload.is_none() && plan.waiting.is_empty());
    let steps = steps(&plan);
    let expected =
        matches!(steps[..], [Step::AddBackend { .. }, Step::AddServer { .. }, Step::PublishBackend { .. }, Step::AddMapEntries { .. }]);
    assert!(expected, "{steps:?}");
}

#[test]
fn elsewhere_a_route_to_it_waits_for_the_reload_and_the_old_one_serves() {
    let mut after = start();
    let gone = ["one"].map(|name| [ResourceKey::Backend(name.into()), ResourceKey::Servers(name.into())]);
    gone.iter().flatten().for_each(|key| _ = after.set(key, None));
    backend(&mut after, "two", "shape-a", &["t1"]);
    routes(&mut after, "h", &[("h|/", "two"), ("h|/new", "_404")]);
    let plan = from_loaded(&start(), &after, &OLD);
    let reasons = plan.reload.clone().unwrap().reasons;
    assert_eq!(reasons.len(), 1);
    assert_eq!(reasons[0].key, ResourceKey::Backend("two".into()));
    // the other entry of the host is live; the route and everything it needs stays
    let steps = steps(&plan);
    assert!(matches!(&steps[..], [Step::AddMapEntries { entries, .. }] if entries.len() == 1), "{steps:?}");
    for key in gone.iter().flatten() {
        assert!(plan.waiting.contains(key), "{key}");
    }
}

#[test]
fn a_backend_that_is_set_aside_keeps_the_one_it_would_replace() {
    let mut after = start();
    for key in [ResourceKey::Backend("one".into()), ResourceKey::Servers("one".into())] {
        after.set(&key, None);
    }
    backend(&mut after, "two", "shape-a", &["t1"]);
    routes(&mut after, "h", &[("h|/", "two")]);
    let before = start();
    let keys = before.diff(&after).into_iter().map(|change| change.key).collect();
    let aside = BTreeSet::from([ResourceKey::Backend("two".into())]);
    let forced = BTreeMap::new();
    let target = Target { wanted: &after, aside: &aside, forced: &forced };
    let plan = plan(&before, &Process::loaded(&before), target, &keys, &OLD);
    assert!(plan.reload.is_none());
    assert!(steps(&plan).is_empty());
    assert!(plan.waiting.contains(&ResourceKey::Backend("one".into())));
}

#[test]
fn a_shape_that_is_set_aside_asks_for_no_reload_and_its_backend_leaves_the_old_one_in_place() {
    let mut after = start();
    for key in [ResourceKey::Backend("one".into()), ResourceKey::Servers("one".into())] {
        after.set(&key, None);
    }
    section(&mut after, "30-shape-b", "defaults shape-b\n");
    backend(&mut after, "two", "b", &["t1"]);
    routes(&mut after, "h", &[("h|/", "two")]);
    let before = start();
    let keys = before.diff(&after).into_iter().map(|change| change.key).collect();
    let aside = BTreeSet::from([ResourceKey::Section("30-shape-b".into())]);
    let forced = BTreeMap::new();
    let target = Target { wanted: &after, aside: &aside, forced: &forced };
    for capabilities in [&NEW, &OLD] {
        let plan = plan(&before, &Process::loaded(&before), target, &keys, capabilities);
        assert!(plan.reload.is_none(), "{:?}", plan.reload);
        assert!(steps(&plan).is_empty());
        for key in [ResourceKey::Backend("one".into()), ResourceKey::Backend("two".into())] {
            assert!(plan.waiting.contains(&key), "{key}");
        }
    }
}

#[test]
fn what_serves_in_the_place_of_a_refused_backend_follows_its_endpoints_but_not_into_a_name() {
    for (address, follows) in [("127.0.0.2:80", true), ("0.0.0.0:0", false)] {
        let mut before = start();
        backend(&mut before, "n_s_80_ha", "shape-a", &["old"]);
        routes(&mut before, "s", &[("s|/", "n_s_80_ha")]);
        let mut after = start();
        backend(&mut after, "n_s_80_hb", "shape-a", &[]);
        let next = Server { address: address.parse().unwrap(), ..server("new") };
        put(&mut after, ResourceKey::Servers("n_s_80_hb".into()), Content::Servers(vec![next].into()));
        routes(&mut after, "s", &[("s|/", "n_s_80_hb")]);
        let keys = before.diff(&after).into_iter().map(|change| change.key).collect();
        let aside = BTreeSet::from([ResourceKey::Backend("n_s_80_hb".into())]);
        let forced = BTreeMap::new();
        let target = Target { wanted: &after, aside: &aside, forced: &forced };
        let plan = plan(&before, &Process::loaded(&before), target, &keys, &NEW);
        let added = steps(&plan).into_iter().any(|step| matches!(step, Step::AddServer { backend, .. } if &**backend == "n_s_80_ha"));
        let retired = steps(&plan).into_iter().any(|step| matches!(step, Step::RetireServer { .. }));
        assert_eq!((added, retired), (follows, follows), "{address}: {:?}", steps(&plan));
    }
}

#[test]
fn a_removed_backend_never_reloads() {
    let mut after = start();
    for key in [ResourceKey::Backend("one".into()), ResourceKey::Servers("one".into())] {
        after.set(&key, None);
    }
    routes(&mut after, "h", &[("h|/", "_404")]);
    let live = from_loaded(&start(), &after, &NEW);
    assert!(live.reload.is_none() && steps(&live).iter().any(|step| matches!(step, Step::UnpublishBackend { .. })));
    let deferred = from_loaded(&start(), &after, &OLD);
    assert!(deferred.reload.is_none() && steps(&deferred).iter().any(|step| matches!(step, Step::Leave(_))));
    // the route leaves first
    assert_eq!(steps(&deferred)[0].phase(), 5);
}

#[test]
fn a_shape_that_comes_back_before_a_reload_is_still_loaded() {
    let with = start();
    let mut without = start();
    let key = ResourceKey::Section("30-shape-a".into());
    without.set(&key, None);
    let gone = from_loaded(&with, &without, &NEW);
    assert!(gone.reload.is_none());
    let mut process = Process::loaded(&with);
    for step in steps(&gone) {
        process.done(step);
    }
    let back = plan_between(&without, &process, &with, &NEW);
    assert!(back.reload.is_none());
    assert!(matches!(steps(&back)[..], [Step::Rejoin(_)]));
}

#[test]
fn a_changed_frontend_reloads_and_holds_removals_and_conditional_routes_back() {
    let mut after = start();
    section(&mut after, "20-frontends", "frontend y\n");
    section(&mut after, "30-shape-b", "defaults shape-b\n");
    routes(&mut after, "h", &[("h|/", "~c1")]);
    for key in [ResourceKey::Backend("one".into()), ResourceKey::Servers("one".into())] {
        after.set(&key, None);
    }
    let plan = from_loaded(&start(), &after, &NEW);
    assert_eq!(plan.reload.clone().unwrap().reasons.len(), 2);
    assert!(steps(&plan).is_empty(), "{:?}", steps(&plan));
}

#[test]
fn a_list_entry_comes_after_its_certificate_and_a_large_certificate_reloads() {
    let list = || ResourceKey::CertificateList { list: "lists/x.list".into(), owner: "c".into() };
    let other = ResourceKey::CertificateList { list: "lists/x.list".into(), owner: "".into() };
    let mut before = start();
    put(&mut before, other, Content::CertificateList(vec![]));
    let with = |pem: &[u8]| {
        let mut after = before.clone();
        let entry = ListEntry { file: "certs/c.pem".into(), names: vec!["c".into()] };
        put(&mut after, list(), Content::CertificateList(vec![entry]));
        put(&mut after, ResourceKey::Certificate("certs/c.pem".into()), Content::Certificate(PrivateBytes::new(pem.to_vec())));
        after
    };
    let small = from_loaded(&before, &with(b"x"), &OLD);
    assert!(matches!(steps(&small)[..], [Step::Certificate { fresh: true, .. }, Step::AddListEntry { .. }]));
    let large = from_loaded(&before, &with(&vec![b'x'; 20_000]), &OLD);
    assert!(large.reload.is_some());
    assert!(steps(&large).is_empty());
    assert!(from_loaded(&before, &with(&vec![b'x'; 20_000]), &NEW).reload.is_none());
}

#[test]
fn diff_says_how_and_why() {
    let mut after = start();
    backend(&mut after, "two", "shape-a", &["t1"]);
    let found = classify(&start().diff(&after), &start(), &OLD);
    let lines: Vec<String> = found.iter().map(|c| format!("{} {}: {}", c.class.as_str(), c.key, c.reason)).collect();
    assert_eq!(
        lines,
        [
            "reload backend two: backend two is new, which this HAProxy takes only by a reload",
            "reload servers two: backend two comes by a reload"
        ]
    );
}
