//! What is served in the place of what is asked for.

#![allow(clippy::unwrap_used)]

use super::quarantine::Quarantine;
use super::{Place, Places, Revisions, Serving, Timing};
use crate::delivery::Feeds;
use crate::delivery::feed::{AgentReport, AgentState, Agents};
use crate::delivery::packed::{pack, unpack};
use crate::haproxy::bundle::{BackendClass, BackendHead, Bundle, Change, Content, MapEntry, Resource, ResourceKey, Server};
use crate::haproxy::revision::{Overlay, Record, closure, kept, revision_of};
use crate::model::FleetId;
use crate::report::{Kind, ObjectRef, PrivateBytes};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

fn put(bundle: &mut Bundle, key: ResourceKey, content: Content, source: &str) {
    let sources = Arc::new([ObjectRef::new(Kind::Ingress, "shop", source)]);
    bundle.set(&key.clone(), Some(Resource::new(key, content, sources)));
}

fn server(backend: &str, port: u16, keywords: &str) -> Server {
    Server {
        name: format!("s-{port}").into(),
        address: format!("192.0.2.1:{port}").parse().unwrap(),
        id: u32::from(port),
        guid: format!("{backend}:{port}").into(),
        keywords: keywords.into(),
        checked: false,
        weight: 1,
        drain: false,
        zone: None,
        here: None,
    }
}

fn shape(name: &str) -> ResourceKey {
    ResourceKey::Section(format!("30-shape-{name}").into())
}

fn route(host: &str) -> ResourceKey {
    ResourceKey::MapEntries { map: "maps/http/routes.map".into(), owner: host.into() }
}

fn values(backend: &str) -> ResourceKey {
    ResourceKey::MapEntries { map: "maps/values/header.map".into(), owner: backend.into() }
}

fn servers(backend: &str) -> ResourceKey {
    ResourceKey::Servers(backend.into())
}

fn head(backend: &str) -> ResourceKey {
    ResourceKey::Backend(backend.into())
}

fn entries(key: &str, value: &str) -> Content {
    Content::MapEntries(vec![MapEntry { key: key.into(), value: value.into() }])
}

/// The service `web` of the shape `of`, with servers at `ports`, at `host`.
fn serve(bundle: &mut Bundle, host: &str, of: &str, ports: &[u16]) {
    let name = format!("shop_web_80_{of}");
    put(bundle, shape(of), Content::Section(format!("defaults {of}\n").into()), of);
    let class = BackendClass::Shaped { shape: of.into(), mode: "http", guid: name.as_str().into() };
    let text = format!("backend {name} from {of}\n").into();
    put(bundle, head(&name), Content::Backend(BackendHead { text, class }), of);
    let all: Vec<Server> = ports.iter().map(|port| server(&name, *port, &format!("of-{of}"))).collect();
    put(bundle, servers(&name), Content::Servers(all.into()), of);
    put(bundle, values(&name), entries(&name, of), of);
    put(bundle, route(host), entries(&format!("{host}|/"), &name), host);
}

fn remove(bundle: &mut Bundle, of: &str) {
    let name = format!("shop_web_80_{of}");
    for key in [shape(of), head(&name), servers(&name), values(&name)] {
        bundle.set(&key, None);
    }
}

fn ports(bundle: &Bundle, backend: &str) -> Vec<(u16, String)> {
    match bundle.get(&servers(backend)).map(|resource| &resource.content) {
        Some(Content::Servers(servers)) => servers.iter().map(|server| (server.address.port(), server.keywords.to_string())).collect(),
        _ => Vec::new(),
    }
}

fn recorded(bundle: &Bundle) -> Overlay {
    let record = unpack(1, revision_of(bundle), &pack(&kept(bundle)).unwrap()).unwrap();
    Overlay { record: Some(Arc::new(record)), pins: BTreeMap::new() }
}

/// A fleet with the shape `a`, and the same with the shape `b` and other endpoints.
fn two() -> (Bundle, Bundle) {
    let (mut then, mut now) = (Bundle::default(), Bundle::default());
    serve(&mut then, "x.example", "a", &[1, 2]);
    serve(&mut now, "x.example", "b", &[2, 3]);
    (then, now)
}

#[test]
fn what_is_kept_of_a_revision_comes_back_and_holds_neither_keys_nor_endpoints() {
    let (mut bundle, _) = two();
    put(&mut bundle, ResourceKey::Certificate("certs/a.pem".into()), Content::Certificate(PrivateBytes::new(*b"secret")), "tls");
    let Record { number, bundle: kept_one } = unpack(7, revision_of(&bundle), &pack(&kept(&bundle)).unwrap()).unwrap();
    assert_eq!((number, revision_of(&kept_one)), (7, revision_of(&bundle)));
    assert!(kept_one.get(&ResourceKey::Certificate("certs/a.pem".into())).is_none());
    assert_eq!(ports(&kept_one, "shop_web_80_a").len(), 1, "one to know how they are written");
    let wrong = unpack(7, revision_of(&Bundle::default()), &pack(&kept(&bundle)).unwrap());
    assert!(wrong.unwrap_err().to_string().starts_with("it holds the revision "));
    assert!(unpack(7, revision_of(&bundle), b"nothing").is_err());
}

#[test]
fn a_revision_is_served_with_the_endpoints_and_certificates_of_now() {
    let (then, mut now) = two();
    let certificate = ResourceKey::Certificate("certs/a.pem".into());
    put(&mut now, certificate.clone(), Content::Certificate(PrivateBytes::new(*b"new")), "tls");
    let served = recorded(&then).over(&now);
    assert_eq!(revision_of(&served), revision_of(&then));
    assert!(served.get(&certificate).is_some());
    let of_a = |port| (port, "of-a".to_owned());
    assert_eq!(ports(&served, "shop_web_80_a"), [of_a(2), of_a(3)], "of the backend that has its place now, written as then");
    assert_eq!(served.get(&values("shop_web_80_a")), then.get(&values("shop_web_80_a")));
    assert!(served.get(&servers("shop_web_80_b")).is_none() && served.get(&values("shop_web_80_b")).is_none());
    // a service that is gone has no endpoints: its addresses may be somebody else's
    remove(&mut now, "b");
    assert_eq!(ports(&recorded(&then).over(&now), "shop_web_80_a"), []);
    // and one that is there serves as it does now
    assert_eq!(ports(&recorded(&then).over(&then), "shop_web_80_a"), ports(&then, "shop_web_80_a"));
}

#[test]
fn what_is_put_back_takes_along_what_leads_to_it_and_what_it_leads_to() {
    let (mut then, mut now) = two();
    serve(&mut then, "y.example", "c", &[9]);
    serve(&mut now, "y.example", "d", &[9]);
    let former: BTreeMap<_, _> = then.diff(&now).into_iter().map(|change| (change.key, change.before)).collect();
    let pins = closure(&BTreeSet::from([shape("b")]), &former, &now);
    let overlay = Overlay { pins, record: None };
    let served = overlay.over(&now);
    for key in [shape("a"), head("shop_web_80_a"), values("shop_web_80_a"), route("x.example")] {
        assert_eq!(served.get(&key), then.get(&key), "{key}");
    }
    assert!([shape("b"), head("shop_web_80_b"), servers("shop_web_80_b")].iter().all(|key| served.get(key).is_none()));
    // the other one is nobody's fault
    for key in [shape("d"), head("shop_web_80_d"), servers("shop_web_80_d"), route("y.example")] {
        assert_eq!(served.get(&key), now.get(&key), "{key}");
    }
    assert!(served.get(&shape("c")).is_none());
}

fn fleet() -> FleetId {
    FleetId { namespace: "infra".into(), name: "edge".into() }
}

#[test]
fn a_fleet_that_is_to_go_back_serves_nothing_else_after_a_restart() {
    let (then, now) = two();
    let mut serving = Serving::new(Feeds::new(), Timing::default());
    let all = Bundle::default().diff(&now);
    serving.want(&fleet(), Some("1".into()), None);
    assert!(serving.follow(&fleet(), &all, &now).is_none());
    assert_eq!(serving.rollbacks(), BTreeMap::from([(fleet(), "1".into())]));
    let record = recorded(&then).record.unwrap();
    serving.go_back(&fleet(), "1", Record::clone(&record), &now).unwrap();
    assert_eq!((serving.pinned(&fleet()), serving.rollbacks()), (Some(1), BTreeMap::new()));
    assert_eq!(revision_of(serving.bundle(&fleet(), &now)), revision_of(&then));
    // one that is not there changes nothing
    serving.want(&fleet(), Some("9".into()), Some(&now));
    serving.refuse(&fleet(), "9", super::no_way_back(&fleet(), "9", "it is not kept", "choose one of 1"));
    assert_eq!(serving.pinned(&fleet()), Some(1));
    assert_eq!(serving.findings(&fleet()).len(), 2);
    let changes = serving.want(&fleet(), None, Some(&now)).unwrap();
    assert!(!changes.is_empty());
    assert_eq!(serving.bundle(&fleet(), &now), &now);
    assert_eq!(serving.findings(&fleet()), []);
}

#[test]
fn a_revision_is_kept_once_and_only_when_all_pods_have_it() {
    let (_, now) = two();
    let mut serving = Serving::new(Feeds::new(), Timing { gathering: Duration::from_secs(30), ..Timing::default() });
    serving.lead(true, Duration::ZERO, &|_| None);
    let (digest, revision) = (now.digest(), revision_of(&now));
    serving.published(&fleet(), 1, &[], digest, revision);
    serving.set_revisions(&fleet(), Revisions::new(), None);
    let look = |serving: &mut Serving, seconds| {
        serving.look(Duration::from_secs(seconds), &Arc::default(), &|_| Places::new(), &|_| Some(&now));
        serving.to_keep(&fleet(), &now).map(|kept| kept.digest)
    };
    assert_eq!(look(&mut serving, 29), None, "agents may still come");
    assert_eq!(look(&mut serving, 30), Some(revision));
    serving.set_revisions(&fleet(), [(1, revision)].into(), None);
    assert_eq!(look(&mut serving, 31), None);
}

#[test]
fn what_is_in_quarantine_is_served_again_once_another_replica_leads() {
    let (then, now) = two();
    let mut serving = Serving::new(Feeds::new(), Timing::default());
    serving.lead(true, Duration::ZERO, &|_| None);
    serving.published(&fleet(), 1, &[], then.digest(), revision_of(&then));
    serving.published(&fleet(), 2, &then.diff(&now), now.digest(), revision_of(&now));
    let state = serving.fleets.get_mut(&fleet()).unwrap();
    state.wave = Some(super::Wave::new(2));
    state.quarantine(&crate::fleet::release::Trouble::Unready("a".into()), &now).unwrap();
    assert!(serving.has_quarantines() && serving.bundle(&fleet(), &now) != &now);
    let mut served = serving.bundle(&fleet(), &now).clone();
    for (_, changes) in serving.lead(false, Duration::ZERO, &|_| Some(&now)) {
        served.apply(&changes);
    }
    assert!(!serving.has_quarantines());
    assert_eq!(serving.findings(&fleet()), []);
    assert_eq!((serving.bundle(&fleet(), &now), &served), (&now, &now));
}

/// The pods `a` and `b`, with what they have, since when they wait, and how often they reloaded.
fn agents(all: [(u64, u64, u64); 2]) -> Agents {
    let report = |(generation, held_from, reload_count): (u64, u64, u64)| {
        let held = u32::from(held_from > 0);
        let state = AgentState { ready: true, generation, held, waiting: held, held_from, reload_count, ..AgentState::default() };
        let connected_since = std::time::SystemTime::UNIX_EPOCH;
        Arc::new(AgentReport { connected_since, agent_version: String::new(), haproxy_version: String::new(), state: Some(state) })
    };
    Arc::new(["a", "b"].into_iter().zip(all).map(|(pod, said)| ((fleet(), pod.to_owned()), report(said))).collect())
}

#[test]
fn what_changes_again_on_its_way_begins_anew_and_counts_as_served_by_nobody() {
    let versions = [0, 1, 2].map(|version| {
        let mut bundle = Bundle::default();
        put(&mut bundle, shape("x"), Content::Section(format!("defaults x-{version}\n").into()), "x");
        bundle
    });
    let mut serving = Serving::new(Feeds::new(), Timing { gathering: Duration::ZERO, ..Timing::default() });
    serving.lead(true, Duration::ZERO, &|_| None);
    let publish = |serving: &mut Serving, generation: u64, changes: &[Change], present: &Bundle| {
        serving.published(&fleet(), generation, changes, present.digest(), revision_of(present));
    };
    let look = |serving: &mut Serving, seconds, all| {
        let place = Place { zone: "".into(), serves: true, ends: false };
        let places: Places = ["a", "b"].map(|pod| (pod.to_owned(), place.clone())).into();
        let news = serving.look(Duration::from_secs(seconds), &agents(all), &|_| places.clone(), &|_| Some(&versions[2]));
        assert_eq!(news, []);
        serving.is_settled(&fleet())
    };
    publish(&mut serving, 1, &[], &versions[0]);
    assert!(look(&mut serving, 0, [(1, 0, 1), (1, 0, 1)]));
    publish(&mut serving, 2, &versions[0].diff(&versions[1]), &versions[1]);
    assert!(!look(&mut serving, 1, [(2, 2, 1), (2, 2, 1)]));
    assert!(!look(&mut serving, 2, [(2, 0, 2), (2, 2, 1)]));
    publish(&mut serving, 3, &versions[1].diff(&versions[2]), &versions[2]);
    for seconds in [3, 20, 21] {
        assert!(!look(&mut serving, seconds, [(3, 3, 2), (3, 3, 1)]));
    }
    let state = &serving.fleets[&fleet()];
    assert_eq!(state.wave.as_ref().unwrap().generation, 3);
    assert_eq!(state.moved[&shape("x")].first(), versions[0].get(&shape("x")), "what all had is what is put back");
    // one pod has it, then both
    assert!(!look(&mut serving, 22, [(3, 0, 3), (3, 3, 1)]));
    assert!(!look(&mut serving, 40, [(3, 0, 3), (3, 3, 1)]));
    assert!(look(&mut serving, 41, [(3, 0, 3), (3, 0, 2)]));
}

/// What may change: a route to a shape with some endpoints, or the end of a shape.
fn change() -> impl Strategy<Value = (u8, u8, Vec<u16>, bool)> {
    (0..3_u8, 0..4_u8, prop::collection::vec(1..6_u16, 0..4), prop::bool::weighted(0.3))
}

fn apply(bundle: &mut Bundle, (host, of, ports, gone): &(u8, u8, Vec<u16>, bool)) {
    let of = format!("h{of}");
    if *gone {
        remove(bundle, &of);
    } else {
        let ports: BTreeSet<u16> = ports.iter().copied().collect();
        serve(bundle, &format!("{host}.example"), &of, &ports.into_iter().collect::<Vec<_>>());
    }
}

proptest! {
    #[test]
    fn what_is_served_follows_each_change_as_if_it_were_put_together_anew(
        then in prop::collection::vec(change(), 1..5),
        changes in prop::collection::vec(prop::collection::vec(change(), 1..3), 1..8),
        pinned in any::<bool>(),
    ) {
        let mut present = Bundle::default();
        for change in &then {
            apply(&mut present, change);
        }
        let mut serving = Serving::new(Feeds::new(), Timing::default());
        let overlay = if pinned {
            let mut other = present.clone();
            apply(&mut other, &changes[0][0]);
            let former: BTreeMap<_, _> = present.diff(&other).into_iter().map(|change| (change.key, change.before)).collect();
            present = other;
            Overlay { pins: former, record: None }
        } else {
            recorded(&present)
        };
        let fleet_state = serving.fleets.entry(fleet()).or_default();
        fleet_state.is_published = true;
        fleet_state.served = Some(overlay.over(&present));
        fleet_state.overlay = overlay.clone();
        let mut elsewhere = overlay.over(&present);
        for group in &changes {
            let before = present.clone();
            for change in group {
                apply(&mut present, change);
            }
            let asked: Vec<Change> = before.diff(&present);
            let told = serving.follow(&fleet(), &asked, &present).unwrap().into_owned();
            elsewhere.apply(&told);
            let anew = overlay.over(&present);
            prop_assert_eq!(anew.diff(serving.bundle(&fleet(), &present)), Vec::new());
            prop_assert_eq!(anew.diff(&elsewhere), Vec::new());
            prop_assert_eq!(anew.digest(), elsewhere.digest());
        }
    }
}

/// What is served leads to these and they are not served.
fn missing(bundle: &Bundle) -> Vec<ResourceKey> {
    let leads_to = |resource: &Arc<Resource>| -> Vec<ResourceKey> {
        match &resource.content {
            Content::MapEntries(entries) if !resource.key.to_string().contains("values") => {
                entries.iter().map(|entry| head(&entry.value)).collect()
            }
            Content::Backend(head) => match &head.class {
                BackendClass::Shaped { shape: of, .. } => vec![shape(of)],
                BackendClass::Private => Vec::new(),
            },
            _ => Vec::new(),
        }
    };
    bundle.resources().flat_map(leads_to).filter(|key| bundle.get(key).is_none()).collect()
}

/// A fleet that serves `present`, to which `then` led, with `put_back` of it in quarantine.
fn quarantined(then: &Bundle, present: &Bundle, put_back: &[ResourceKey]) -> Serving {
    let mut serving = Serving::new(Feeds::new(), Timing::default());
    let state = serving.fleets.entry(fleet()).or_default();
    state.is_published = true;
    state.quarantines.push(Quarantine {
        put_back: put_back.iter().cloned().collect(),
        former: then.diff(present).into_iter().map(|change| (change.key, change.before)).collect(),
        culprits: BTreeMap::new(),
        named: BTreeSet::new(),
        why: String::new(),
    });
    state.lay_anew(present);
    serving
}

/// Follows from one to the other, and checks that what was told leads to what is served.
fn follow(serving: &mut Serving, from: &Bundle, to: &Bundle) {
    let mut elsewhere = serving.bundle(&fleet(), from).clone();
    let told = serving.follow(&fleet(), &from.diff(to), to).unwrap().into_owned();
    elsewhere.apply(&told);
    assert_eq!(elsewhere.diff(serving.bundle(&fleet(), to)), Vec::new());
}

#[test]
fn a_host_that_is_as_it_was_goes_on_to_lead_somewhere_whatever_others_change() {
    let mut then = Bundle::default();
    serve(&mut then, "x.example", "a", &[1]);
    let mut now = then.clone();
    serve(&mut now, "x.example", "new", &[7]);
    let both = |old: &str, new: &str| {
        let entry =
            |key: &str, value: &str| MapEntry { key: format!("x.example|{key}").into(), value: format!("shop_web_80_{value}").into() };
        Content::MapEntries(vec![entry("/", old), entry("/new", new)])
    };
    put(&mut now, route("x.example"), both("a", "new"), "x.example");
    let mut serving = quarantined(&then, &now, &[head("shop_web_80_new"), servers("shop_web_80_new")]);
    assert_eq!(serving.bundle(&fleet(), &now).get(&route("x.example")), then.get(&route("x.example")));
    // the policy of the backend that is not to blame becomes another one
    let mut later = now.clone();
    remove(&mut later, "a");
    serve(&mut later, "y.example", "b", &[2]);
    put(&mut later, route("x.example"), both("b", "new"), "x.example");
    follow(&mut serving, &now, &later);
    let served = serving.bundle(&fleet(), &later);
    assert_eq!(missing(served), []);
    assert_eq!(served.get(&route("x.example")), then.get(&route("x.example")), "as it was");
    assert_eq!(ports(served, "shop_web_80_a"), [(2, "of-a".to_owned())], "with the endpoints of now");
}

#[test]
fn what_comes_and_goes_while_something_is_in_quarantine_is_not_remembered() {
    let (then, mut now) = two();
    let mut serving = quarantined(&then, &now, &[shape("b")]);
    let known = |serving: &Serving| serving.fleets[&fleet()].quarantines[0].former.len();
    let (before, first) = (known(&serving), now.clone());
    for number in 0..9 {
        let mut next = first.clone();
        serve(&mut next, "y.example", &format!("c{number}"), &[2]);
        follow(&mut serving, &now, &next);
        now = next;
    }
    follow(&mut serving, &now, &first);
    assert_eq!(known(&serving), before);
}

#[test]
fn a_section_that_is_as_it_was_finds_the_files_and_lists_that_it_names() {
    let frontends = ResourceKey::Section("20-frontends".into());
    let page = ResourceKey::File("errors/503.html".into());
    let list = ResourceKey::CertificateList { list: "lists/https.list".into(), owner: "".into() };
    let mut then = Bundle::default();
    put(&mut then, frontends.clone(), Content::Section("v0".into()), "edge");
    put(&mut then, page.clone(), Content::File(PrivateBytes::new(*b"sorry")), "edge");
    put(&mut then, list.clone(), Content::CertificateList(Vec::new()), "edge");
    let mut now = Bundle::default();
    put(&mut now, frontends.clone(), Content::Section("v1".into()), "edge");
    let serving = quarantined(&then, &now, std::slice::from_ref(&frontends));
    let served = serving.bundle(&fleet(), &now);
    for key in [frontends, page, list] {
        assert_eq!(served.get(&key), then.get(&key), "{key}");
    }
}

#[test]
fn a_name_outside_is_not_gone_back_to_once_its_service_is_none_any_more() {
    let by_name = |bundle: &mut Bundle, of: &str| {
        serve(bundle, "x.example", of, &[]);
        let name = format!("shop_web_80_{of}");
        let server = Server { address: "0.0.0.0:443".parse().unwrap(), ..server(&name, 443, "") };
        put(bundle, servers(&name), Content::Servers(vec![server].into()), of);
    };
    let (mut then, mut still, mut now) = (Bundle::default(), Bundle::default(), Bundle::default());
    by_name(&mut then, "a");
    by_name(&mut still, "b");
    serve(&mut now, "x.example", "b", &[2]);
    let overlay = recorded(&then);
    assert_eq!(ports(&overlay.over(&still), "shop_web_80_a").len(), 1);
    assert_eq!(ports(&overlay.over(&now), "shop_web_80_a"), [], "it has addresses now");
    assert_eq!(ports(&overlay.over(&Bundle::default()), "shop_web_80_a"), [], "it is gone");
}

/// Takes away what nothing leads to.
fn tidy(bundle: &mut Bundle) {
    let used: BTreeSet<String> = bundle
        .resources()
        .filter(|resource| matches!(&resource.key, ResourceKey::MapEntries { map, .. } if map.contains("routes")))
        .flat_map(|resource| match &resource.content {
            Content::MapEntries(entries) => entries.iter().map(|entry| entry.value.to_string()).collect::<Vec<_>>(),
            _ => Vec::new(),
        })
        .collect();
    for of in (0..4).map(|of| format!("h{of}")).filter(|of| !used.contains(&format!("shop_web_80_{of}"))) {
        remove(bundle, &of);
    }
}

proptest! {
    #[test]
    fn nothing_leads_nowhere_whatever_changes_while_something_is_in_quarantine(
        groups in prop::collection::vec(prop::collection::vec(change(), 1..4), 3..9),
        back in any::<prop::sample::Index>(),
    ) {
        let mut worlds = vec![Bundle::default()];
        for group in &groups {
            let mut next = worlds.last().unwrap().clone();
            for (host, of, ports, _) in group {
                apply(&mut next, &(*host, *of, ports.clone(), false));
            }
            tidy(&mut next);
            worlds.push(next);
        }
        let changed: Vec<ResourceKey> = worlds[1].diff(&worlds[2]).into_iter().map(|change| change.key).collect();
        if changed.is_empty() {
            return Ok(());
        }
        let mut serving = quarantined(&worlds[1], &worlds[2], &[changed[back.index(changed.len())].clone()]);
        prop_assert_eq!(missing(serving.bundle(&fleet(), &worlds[2])), vec![]);
        for pair in worlds[2..].windows(2) {
            follow(&mut serving, &pair[0], &pair[1]);
            prop_assert_eq!(missing(serving.bundle(&fleet(), &pair[1])), vec![]);
        }
    }
}
