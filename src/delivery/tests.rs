//! The two ends against each other, without a connection between them.

#![allow(clippy::unwrap_used)]
use super::assembly::{Assembled, Assembly, Held};
use super::feed::{Feeds, Published};
use super::proto;
use super::server::parts;
use crate::haproxy::bundle::{Bundle, Change, Content, Digest, Resource, ResourceKey};
use crate::model::FleetId;
use proptest::prelude::*;
use std::sync::Arc;

fn fleet() -> FleetId {
    FleetId { namespace: "infra".into(), name: "edge".into() }
}

fn section(name: &str, text: &str) -> Resource {
    Resource::new(ResourceKey::Section(name.into()), Content::Section(text.into()), Arc::new([]))
}

fn change(bundle: &mut Bundle, name: &str, text: Option<&str>) -> Vec<Change> {
    bundle.set(&ResourceKey::Section(name.into()), text.map(|text| section(name, text))).into_iter().collect()
}

/// The parts that lead from `at` to what `feeds` has now.
fn sent(feeds: &Feeds, at: Option<Digest>) -> Vec<proto::Bundle> {
    parts(feeds.feed(&fleet()).way_from(at).unwrap()).collect()
}

#[test]
fn a_large_bundle_comes_in_bounded_parts_and_is_taken_as_one() {
    let mut bundle = Bundle::default();
    for number in 0..40 {
        change(&mut bundle, &format!("s{number}"), Some(&"x".repeat(100_000)));
    }
    change(&mut bundle, "huge", Some(&"y".repeat(3 << 20)));
    let feeds = Feeds::new();
    feeds.publish(&fleet(), Published { generation: 1, changes: &[], bundle: &bundle });
    let parts = sent(&feeds, None);
    let sizes: Vec<usize> = parts.iter().map(prost::Message::encoded_len).collect();
    assert!(sizes.iter().all(|size| *size < (1 << 20) + 1000 || *size > 3 << 20), "{sizes:?}");
    assert_eq!(sizes.len(), 5, "{sizes:?}");
    let (held, mut assembly) = (Held::default(), Assembly::default());
    let last = parts.len() - 1;
    for (number, part) in parts.into_iter().enumerate() {
        let assembled = assembly.take(part, &held, &Held::default()).unwrap();
        assert_eq!(matches!(assembled, Assembled::Step(_)), number == last);
        assert_eq!(held.digest().is_some(), number == last);
    }
    assert_eq!(held.all(), (1, bundle));
}

#[test]
fn what_does_not_lead_to_its_digest_changes_nothing() {
    let mut bundle = Bundle::default();
    change(&mut bundle, "a", Some("a"));
    let feeds = Feeds::new();
    feeds.publish(&fleet(), Published { generation: 1, changes: &[], bundle: &bundle });
    let (held, mut assembly) = (Held::default(), Assembly::default());
    let mut take = |part: proto::Bundle| assembly.take(part, &held, &Held::default()).unwrap();
    let [full] = sent(&feeds, None).try_into().unwrap();
    assert!(matches!(take(proto::Bundle { digest: vec![7; 16], ..full.clone() }), Assembled::Unfit));
    assert!(matches!(take(proto::Bundle { base: vec![7; 16], ..full.clone() }), Assembled::Unfit));
    assert_eq!(held.digest(), None);
    assert!(matches!(take(full), Assembled::Step(_)));
    let before = bundle.digest();
    let changes = change(&mut bundle, "b", Some("b"));
    feeds.publish(&fleet(), Published { generation: 2, changes: &changes, bundle: &bundle });
    let [step] = sent(&feeds, Some(before)).try_into().unwrap();
    assert!(matches!(take(proto::Bundle { set: Vec::new(), ..step.clone() }), Assembled::Unfit));
    // parts of two bundles are none of either
    assert!(matches!(take(proto::Bundle { more: true, ..step.clone() }), Assembled::More));
    assert!(matches!(take(proto::Bundle { generation: 3, ..step.clone() }), Assembled::Unfit));
    assert_eq!(held.all().1.digest(), before);
    assert!(matches!(take(step), Assembled::Step(_)));
    assert_eq!(held.all(), (2, bundle));
}

#[test]
fn what_another_replica_sent_already_is_kept_once() {
    let mut bundle = Bundle::default();
    change(&mut bundle, "a", Some("a"));
    let feeds = Feeds::new();
    feeds.publish(&fleet(), Published { generation: 1, changes: &[], bundle: &bundle });
    let (first, second) = (Held::default(), Held::default());
    for (held, obeyed) in [(&first, &Held::default()), (&second, &first)] {
        for part in sent(&feeds, None) {
            Assembly::default().take(part, held, obeyed).unwrap();
        }
    }
    let key = ResourceKey::Section("a".into());
    let of = |held: &Held| held.all().1.get(&key).cloned().unwrap();
    assert!(Arc::ptr_eq(&of(&first), &of(&second)));
}

#[derive(Clone, Debug)]
enum Event {
    /// Something is published: a resource and its text, or its end.
    Change(u8, Option<u8>),
    /// A change that the stage forgot to say.
    Unsaid(u8),
    /// The stream takes the way to the present.
    CatchUp,
    /// The stream breaks after so many parts of it.
    Break(usize),
    /// The agent starts anew.
    Restart,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        5 => (0..6_u8, proptest::option::of(0..4_u8)).prop_map(|(key, text)| Event::Change(key, text)),
        1 => (0..6_u8).prop_map(Event::Unsaid),
        3 => Just(Event::CatchUp),
        1 => (0..3_usize).prop_map(Event::Break),
        1 => Just(Event::Restart),
    ]
}

proptest! {
    #[test]
    fn whatever_is_missed_or_breaks_the_agent_ends_with_the_bundle_of_the_operator(events in proptest::collection::vec(event(), 0..60)) {
        let (feeds, mut bundle, mut generation) = (Feeds::new(), Bundle::default(), 1);
        feeds.publish(&fleet(), Published { generation, changes: &[], bundle: &bundle });
        let mut held = Held::default();
        // large enough for several parts
        let text = |text: u8| text.to_string().repeat(400_000);
        for event in events.into_iter().chain([Event::CatchUp]) {
            match event {
                Event::Change(key, new) => {
                    let changes = change(&mut bundle, &key.to_string(), new.map(text).as_deref());
                    generation += 1;
                    feeds.publish(&fleet(), Published { generation, changes: &changes, bundle: &bundle });
                }
                Event::Unsaid(key) => _ = change(&mut bundle, &key.to_string(), Some("unsaid")),
                Event::CatchUp => {
                    let mut assembly = Assembly::default();
                    for part in sent(&feeds, held.digest()) {
                        prop_assert!(!matches!(assembly.take(part, &held, &Held::default()), Ok(Assembled::Unfit) | Err(_)));
                    }
                }
                Event::Break(after) => {
                    let before = held.all().1;
                    let parts = sent(&feeds, held.digest());
                    let mut assembly = Assembly::default();
                    for part in parts.into_iter().filter(|part| part.more).take(after) {
                        assembly.take(part, &held, &Held::default()).unwrap();
                    }
                    prop_assert!(held.all().1 == before, "half of a bundle was taken");
                }
                Event::Restart => held = Held::default(),
            }
            prop_assert!(held.digest().is_none_or(|digest| digest == held.all().1.digest()));
        }
        // what was never said comes with the next thing that is
        feeds.publish(&fleet(), Published { generation: generation + 1, changes: &[], bundle: &bundle });
        let mut assembly = Assembly::default();
        for part in sent(&feeds, held.digest()) {
            assembly.take(part, &held, &Held::default()).unwrap();
        }
        prop_assert!(held.all() == (generation + 1, bundle), "the bundles differ");
    }
}
