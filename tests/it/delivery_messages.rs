//! Messages that were recorded once must be understood for ever: agents stay at their version while the operator moves
//! on, and the other way round. `BLESS=1` records what is not recorded yet, and never changes what is.

use haproxy_fleet::delivery::proto::{self, FromAgent, FromOperator, from_agent, from_operator};
use haproxy_fleet::delivery::wire;
use haproxy_fleet::haproxy::bundle::{BackendClass, BackendHead, Content, ListEntry, MapEntry, Resource, ResourceKey, Server, Servers};
use haproxy_fleet::model::ZoneRule;
use haproxy_fleet::report::{Kind, ObjectRef, PrivateBytes};
use prost::Message;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

const DIGEST: [u8; 16] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16];

/// One of each kind.
fn resources() -> Vec<Resource> {
    let resource = |key, content| Resource::new(key, content, Arc::new([ObjectRef::new(Kind::Ingress, "shop", "web")]));
    let server = Server {
        name: "s1".into(),
        address: "[fd00::1]:8080".parse().unwrap(),
        id: 7,
        guid: "b:s1".into(),
        keywords: "check inter 2000".into(),
        checked: true,
        weight: 256,
        drain: true,
        zone: None,
        here: None,
    };
    let shaped = BackendClass::Shaped { shape: "shape-h1".into(), mode: "http", guid: "b:1".into() };
    let head = |class| Content::Backend(BackendHead { text: "backend b1\n".into(), class });
    let entry = MapEntry { key: "a.example/".into(), value: "b1".into() };
    let line = ListEntry { file: "certs/a.pem".into(), names: vec!["a.example".into(), "b.example".into()] };
    vec![
        resource(ResourceKey::Section("10-global".into()), Content::Section("global\n".into())),
        resource(ResourceKey::Backend("b1".into()), head(shaped)),
        resource(ResourceKey::Backend("b2".into()), head(BackendClass::Private)),
        resource(ResourceKey::Servers("b1".into()), Content::Servers(vec![server].into())),
        resource(ResourceKey::MapEntries { map: "maps/t/routes.map".into(), owner: "a".into() }, Content::MapEntries(vec![entry])),
        resource(ResourceKey::Certificate("certs/a.pem".into()), Content::Certificate(PrivateBytes::new(*b"certificate and key"))),
        resource(ResourceKey::CertificateList { list: "lists/l.list".into(), owner: "a".into() }, Content::CertificateList(vec![line])),
        resource(ResourceKey::File("ca/a.pem".into()), Content::File(PrivateBytes::new(*b"authorities"))),
    ]
}

/// Servers of which pods prefer those of their zone.
fn zoned() -> Resource {
    let Content::Servers(servers) = &resources()[3].content else { unreachable!("servers") };
    let all = servers.iter().map(|server| Server { zone: Some("zone-a".into()), ..server.clone() }).collect();
    let zones = Some(ZoneRule { min_ready: 2, min_share: 75 });
    Resource::new(ResourceKey::Servers("b1".into()), Content::Servers(Servers { all, zones }), Arc::new([]))
}

fn from_operator() -> Vec<(&'static str, FromOperator)> {
    let message = |kind| FromOperator { term: 3, leads: true, kind };
    let bundle = proto::Bundle {
        generation: 9,
        digest: DIGEST.to_vec(),
        base: Vec::new(),
        set: resources().iter().map(wire::encode).collect(),
        removed: Vec::new(),
        more: true,
    };
    let removed = resources().iter().map(|resource| wire::encode_key(&resource.key)).collect();
    let changes = proto::Bundle { base: DIGEST.to_vec(), set: Vec::new(), removed, more: false, ..bundle.clone() };
    let zoned_bundle = proto::Bundle { set: vec![wire::encode(&zoned())], ..bundle.clone() };
    vec![
        ("operator-alive", message(None)),
        ("operator-full", message(Some(from_operator::Kind::Bundle(bundle)))),
        ("operator-changes", message(Some(from_operator::Kind::Bundle(changes)))),
        ("operator-zones", message(Some(from_operator::Kind::Bundle(zoned_bundle)))),
        ("operator-place", message(Some(from_operator::Kind::Place(proto::Place { zone: "zone-a".to_owned() })))),
        ("operator-release", message(Some(from_operator::Kind::Release(proto::Release { generation: 9 })))),
        ("operator-drain", message(Some(from_operator::Kind::Drain(proto::Drain { drained: true })))),
    ]
}

fn from_agent() -> Vec<(&'static str, FromAgent)> {
    let hello = proto::Hello {
        namespace: "infra".to_owned(),
        fleet: "edge".to_owned(),
        pod: "edge-0".to_owned(),
        agent_version: "0.1.0".to_owned(),
        haproxy_version: "3.4.7".to_owned(),
        holds: DIGEST.to_vec(),
        highest_term: 3,
        serves: Vec::new(),
    };
    let serving = proto::Hello { holds: Vec::new(), serves: DIGEST.to_vec(), ..hello.clone() };
    let refusal = proto::Refusal {
        generation: 8,
        resource: Some(wire::encode_key(&ResourceKey::Backend("b2".into()))),
        sources: vec![proto::ObjectRef { kind: "Ingress".to_owned(), namespace: "shop".to_owned(), name: "web".to_owned() }],
        message: "unknown keyword".to_owned(),
    };
    let report = proto::Report {
        generation: 9,
        digest: DIGEST.to_vec(),
        ready: true,
        last_good: true,
        waiting: 1,
        held: 2,
        reload_count: 3,
        reloads: vec![proto::Reload { generation: 8, reason: "section 20-frontends changed".to_owned() }],
        refused: vec![refusal],
        runtime_commands: 4,
        drift_repairs: 5,
        restarts: 6,
        refused_count: 7,
        failed_starts: 8,
        // recorded before the rest was there
        ..proto::Report::default()
    };
    let drained = proto::Report { connections: 9, drained: true, ..report.clone() };
    let ended = proto::Ended { finished: 1, closed: 2, cut: 3, unseen: 4, forced: true, millis: 5 };
    let health = proto::Health { number: 1, requests: 2, failed: 3, queued: 4, down: 5, reloads: 6 };
    let spreading = proto::Report { reload_pending: true, held_from: 9, old_workers: 2, health: Some(health), ..proto::Report::default() };
    [
        ("agent-hello", from_agent::Kind::Hello(hello)),
        ("agent-hello-serves", from_agent::Kind::Hello(serving)),
        ("agent-report", from_agent::Kind::Report(report)),
        ("agent-report-drained", from_agent::Kind::Report(drained)),
        ("agent-ended", from_agent::Kind::Ended(ended)),
        ("agent-report-spreading", from_agent::Kind::Report(spreading)),
        ("agent-resync", from_agent::Kind::Resync(proto::Resync {})),
    ]
    .map(|(name, kind)| (name, FromAgent { kind: Some(kind) }))
    .to_vec()
}

/// What was recorded under `name`; `message` if nothing was and it may be.
fn recorded(name: &str, message: &impl Message) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/delivery").join(format!("{name}.hex"));
    if !path.exists() && std::env::var_os("BLESS").is_some() {
        let mut text = String::new();
        for line in message.encode_to_vec().chunks(48) {
            for byte in line {
                write!(text, "{byte:02x}").unwrap();
            }
            text.push('\n');
        }
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let text: String = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

/// The same with a field that nobody knows yet.
fn newer(mut bytes: Vec<u8>) -> Vec<u8> {
    // field 1000 of the type for bytes, with two of them
    bytes.extend([0xc2, 0x3e, 2, 0xff, 0xff]);
    bytes
}

#[test]
fn recorded_messages_are_understood_as_they_were_meant_and_with_what_is_added_to_them() {
    for (name, message) in from_operator() {
        let bytes = recorded(name, &message);
        assert_eq!(FromOperator::decode(&*bytes).unwrap(), message, "{name}");
        assert_eq!(FromOperator::decode(&*newer(bytes)).unwrap(), message, "{name}");
    }
    for (name, message) in from_agent() {
        let bytes = recorded(name, &message);
        assert_eq!(FromAgent::decode(&*bytes).unwrap(), message, "{name}");
        assert_eq!(FromAgent::decode(&*newer(bytes)).unwrap(), message, "{name}");
    }
}

#[test]
fn recorded_resources_have_the_hash_that_they_had() {
    for (wanted, expected) in [("operator-full", resources()), ("operator-zones", vec![zoned()])] {
        let (name, message) = from_operator().into_iter().find(|(name, _)| *name == wanted).unwrap();
        let bytes = recorded(name, &message);
        let Some(from_operator::Kind::Bundle(bundle)) = FromOperator::decode(&*bytes).unwrap().kind else { panic!("a bundle") };
        let decoded: Vec<Resource> = bundle.set.into_iter().map(|message| wire::decode(message).unwrap()).collect();
        assert_eq!(decoded, expected, "{name}");
    }
}
