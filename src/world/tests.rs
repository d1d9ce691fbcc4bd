#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::*;
use crate::api::{AddressType, Meta, Pairs};

fn config_map(name: &str, value: &str) -> Object {
    ConfigMap { meta: Meta::named("shop", name), data: [("key", value)].into_iter().collect() }.into()
}

fn slice(name: &str, service: Option<&str>) -> Object {
    let (ports, endpoints) = (Box::default(), Box::default());
    let meta = Meta::named("shop", name);
    EndpointSlice { meta, service: service.map(Into::into), address_type: AddressType::V4, ports, endpoints }.into()
}

fn endpoints_of(service: &str) -> Reference {
    Reference::EndpointsOf { namespace: "shop".into(), service: service.into() }
}

fn names(world: &World, service: &str) -> Vec<String> {
    world.endpoint_slices_of("shop", service).map(|slice| slice.meta.name.to_string()).collect()
}

#[test]
fn an_equal_object_is_no_change_and_the_old_one_stays() {
    let mut world = World::default();
    let changed = world.set(config_map("a", "1")).unwrap();
    let reference = ObjectRef::new(Kind::ConfigMap, "shop", "a");
    assert_eq!(changed.references, [Reference::Object(reference.clone()), Reference::AllOf(Kind::ConfigMap)]);
    let before = world.config_map("shop", "a").unwrap().clone();
    assert_eq!(world.set(config_map("a", "1")), None);
    assert!(Arc::ptr_eq(&before, world.config_map("shop", "a").unwrap()));
    assert!(world.set(config_map("a", "2")).is_some());
    assert_eq!(world.get(&reference), Some(config_map("a", "2")));
}

#[test]
fn what_is_removed_is_gone_once() {
    let mut world = World::default();
    world.set(config_map("a", "1"));
    let reference = ObjectRef::new(Kind::ConfigMap, "shop", "a");
    assert_eq!(world.remove(&reference).unwrap().object, reference);
    assert_eq!(world.remove(&reference), None);
    assert_eq!((world.get(&reference), world.config_maps().count()), (None, 0));
}

#[test]
fn objects_come_in_the_order_of_namespace_and_name() {
    let mut world = World::default();
    for (namespace, name) in [("b", "a"), ("a", "c"), ("a", "b")] {
        world.set(ConfigMap { meta: Meta::named(namespace, name), data: Pairs::default() }.into());
    }
    let all: Vec<_> = world.config_maps().map(|map| format!("{}/{}", map.meta.namespace, map.meta.name)).collect();
    assert_eq!(all, ["a/b", "a/c", "b/a"]);
    assert_eq!(world.config_maps_in("a").count(), 2);
}

#[test]
fn a_slice_that_moves_answers_for_both_services() {
    let mut world = World::default();
    world.set(slice("one", Some("web")));
    world.set(slice("two", Some("web")));
    assert_eq!(names(&world, "web"), ["one", "two"]);
    let changed = world.set(slice("one", Some("api"))).unwrap();
    assert_eq!(changed.references[2..], [endpoints_of("web"), endpoints_of("api")]);
    assert_eq!((names(&world, "web"), names(&world, "api")), (vec!["two".to_owned()], vec!["one".to_owned()]));
    let changed = world.set(slice("one", None)).unwrap();
    assert_eq!(changed.references[2..], [endpoints_of("api")]);
    assert_eq!(names(&world, "api").len(), 0);
    let changed = world.remove(&ObjectRef::new(Kind::EndpointSlice, "shop", "two")).unwrap();
    assert_eq!(changed.references[2..], [endpoints_of("web")]);
    assert_eq!((names(&world, "web").len(), world.endpoint_slices().count()), (0, 1));
}

#[test]
fn who_looked_for_something_is_found_until_it_looks_no_more() {
    let mut index = ReverseIndex::new();
    let (web, api) = (endpoints_of("web"), endpoints_of("api"));
    index.set("first", [web.clone(), api.clone()].into());
    index.set("second", [web.clone()].into());
    assert_eq!(index.dependents(&web).collect::<Vec<_>>(), [&"first", &"second"]);
    index.set("first", [api.clone()].into());
    assert_eq!(index.dependents(&web).collect::<Vec<_>>(), [&"second"]);
    index.remove(&"second");
    assert_eq!((index.dependents(&web).count(), index.dependents(&api).count()), (0, 1));
}
