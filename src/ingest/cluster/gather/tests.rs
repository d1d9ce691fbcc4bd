//! What is passed on, and when.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::api::backend::BackendGroup::{HaproxyFleet, HaproxyOrg};
use crate::ingest::cluster::Namespaces;
use crate::ingest::cluster::watch::found;
use serde_json::{Value, json};

fn everywhere(resource: Resource) -> Source {
    Source { resource, namespace: None }
}

fn within(resource: Resource, namespace: &str) -> Source {
    Source { resource, namespace: Some(namespace.into()) }
}

fn object(resource: Resource, namespace: &str, name: &str, rest: &Value) -> News {
    let mut value = json!({"metadata": {"name": name, "namespace": namespace}});
    value.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    News::Found(Box::new(found(resource, &value)))
}

fn ingress(namespace: &str, name: &str) -> News {
    object(Resource::Ingresses, namespace, name, &json!({"spec": {"ingressClassName": "edge"}}))
}

fn list(gather: &mut Gather, source: &Source, objects: Vec<News>) {
    gather.hear(source, News::Listing);
    for object in objects {
        gather.hear(source, object);
    }
    gather.hear(source, News::Listed);
}

/// Everything that is followed from the start has told that it has nothing.
fn whole() -> Gather {
    let mut gather = Gather::new(Settings::default());
    for source in gather.follow().start {
        list(&mut gather, &source, Vec::new());
    }
    assert!(gather.is_whole());
    gather.delta();
    gather.findings();
    gather
}

fn names(delta: &Delta) -> (Vec<String>, Vec<String>) {
    (delta.set.iter().map(|object| object.reference().to_string()).collect(), delta.removed.iter().map(ToString::to_string).collect())
}

#[test]
fn nothing_is_whole_before_every_source_has_told_all_it_has() {
    let mut gather = Gather::new(Settings::default());
    let sources = gather.follow().start;
    for source in &sources {
        assert!(!gather.is_whole(), "before {source}");
        gather.hear(source, News::Listing);
        assert!(!gather.is_whole(), "while {source} is listed");
        gather.hear(source, News::Failed("reset".to_owned()));
        assert!(!gather.is_whole(), "while {source} fails");
        list(&mut gather, source, Vec::new());
    }
    assert!(gather.is_whole());
}

#[test]
fn config_maps_of_a_fleet_belong_to_what_has_to_be_known_first() {
    let mut gather = whole();
    let fleet = object(Resource::IngressDeployments, "infra", "edge", &json!({"spec": {"ingressClassName": "edge"}}));
    gather.hear(&everywhere(Resource::IngressDeployments), fleet);
    let follow = gather.follow();
    assert_eq!(follow.start, [within(Resource::ConfigMaps, "infra")]);
    assert!(!gather.is_whole());
    let map = object(Resource::ConfigMaps, "infra", "settings", &json!({"data": {"cr-backend": "defaults"}}));
    list(&mut gather, &within(Resource::ConfigMaps, "infra"), vec![map]);
    assert!(gather.is_whole());
    gather.delta();
    gather.hear(&everywhere(Resource::IngressDeployments), News::Gone(ObjectRef::new(Kind::IngressDeployment, "infra", "edge")));
    assert_eq!(gather.follow().stop, [within(Resource::ConfigMaps, "infra")]);
    assert!(names(&gather.delta()).1.contains(&"ConfigMap infra/settings".to_owned()), "what nobody may refer to is let go of");
}

#[test]
fn what_a_new_list_does_not_have_is_gone_once_the_list_is_complete() {
    let mut gather = whole();
    let source = everywhere(Resource::Ingresses);
    list(&mut gather, &source, vec![ingress("a", "one"), ingress("a", "two")]);
    gather.delta();
    gather.hear(&source, News::Listing);
    gather.hear(&source, ingress("a", "two"));
    // the list broke off and began again
    gather.hear(&source, News::Failed("reset".to_owned()));
    gather.hear(&source, News::Listing);
    assert_eq!(names(&gather.delta()).1, Vec::<String>::new());
    gather.hear(&source, ingress("a", "two"));
    gather.hear(&source, News::Listed);
    assert_eq!(names(&gather.delta()).1, ["Ingress a/one"]);
}

#[test]
fn an_object_that_cannot_be_read_any_more_stays_and_is_told() {
    let mut gather = whole();
    let source = everywhere(Resource::Ingresses);
    list(&mut gather, &source, vec![ingress("a", "one"), ingress("a", "two")]);
    gather.delta();
    let broken = object(Resource::Ingresses, "a", "one", &json!({"spec": {"rules": "none"}}));
    gather.hear(&source, broken);
    assert!(gather.delta().is_empty());
    let findings = gather.findings().unwrap();
    assert_eq!(
        findings.iter().map(|found| (found.object.to_string(), found.field.clone())).collect::<Vec<_>>(),
        [("Ingress a/one".to_owned(), "spec.rules".to_owned())]
    );
    gather.hear(&source, ingress("a", "one"));
    assert_eq!(gather.findings(), Some(Vec::new()));
}

#[test]
fn secrets_are_asked_for_by_namespace_where_all_of_them_may_not_be_read() {
    let mut gather = whole();
    gather.hear(&everywhere(Resource::Ingresses), ingress("shop", "one"));
    assert_eq!(gather.follow(), Follow::default());
    gather.hear(&everywhere(Resource::Secrets), News::Forbidden("no".to_owned()));
    let secrets = within(Resource::Secrets, "shop");
    assert_eq!(gather.follow().start, std::slice::from_ref(&secrets));
    assert!(!gather.is_whole());
    gather.hear(&secrets, News::Forbidden("not there either".to_owned()));
    assert!(gather.is_whole(), "a tenant that grants nothing holds nobody up");
    let findings = gather.findings().unwrap();
    assert_eq!(findings.iter().map(|found| found.object.to_string()).collect::<Vec<_>>(), ["Namespace shop"]);
    // granted later
    let secret = object(Resource::Secrets, "shop", "tls", &json!({"type": "kubernetes.io/tls", "data": {}}));
    list(&mut gather, &secrets, vec![secret]);
    assert_eq!(gather.findings(), Some(Vec::new()));
    gather.delta();
    // and taken away again: what was read stays
    gather.hear(&secrets, News::Forbidden("no more".to_owned()));
    assert!(gather.delta().is_empty());
    assert_eq!(gather.findings().unwrap().len(), 1);
}

#[test]
fn a_backend_of_haproxy_org_counts_where_there_is_none_of_ours() {
    let mut gather = whole();
    let (ours, theirs) = (everywhere(Resource::Backends), everywhere(Resource::HaproxyOrgBackends));
    let backend = |resource| object(resource, "a", "policy", &json!({"spec": {}}));
    let group = |delta: &Delta| match delta.set.first() {
        Some(Object::Backend(backend)) => Some(backend.group),
        _ => None,
    };
    gather.hear(&theirs, backend(Resource::HaproxyOrgBackends));
    assert_eq!(group(&gather.delta()), Some(HaproxyOrg));
    gather.hear(&ours, backend(Resource::Backends));
    assert_eq!(group(&gather.delta()), Some(HaproxyFleet));
    gather.hear(&theirs, backend(Resource::HaproxyOrgBackends));
    assert!(gather.delta().is_empty());
    let reference = ObjectRef::new(Kind::Backend, "a", "policy");
    gather.hear(&ours, News::Gone(reference.clone()));
    let delta = gather.delta();
    assert_eq!((group(&delta), delta.removed.len()), (Some(HaproxyOrg), 0));
    // their kind vanishes from the cluster
    gather.hear(&theirs, News::Absent);
    assert_eq!(gather.delta().removed, [reference]);
}

#[test]
fn a_missing_kind_of_ours_is_told_and_holds_everything_up() {
    let mut gather = Gather::new(Settings::default());
    for source in gather.follow().start {
        if source.resource == Resource::Backends {
            gather.hear(&source, News::Absent);
        } else {
            list(&mut gather, &source, Vec::new());
        }
    }
    assert!(!gather.is_whole());
    let findings = gather.findings().unwrap();
    assert!(findings[0].message.contains("no backends of haproxy-fleet.dev/v1alpha1"), "{findings:?}");
    list(&mut gather, &everywhere(Resource::Backends), Vec::new());
    assert!(gather.is_whole());
}

#[test]
fn only_the_named_namespaces_are_read_and_fleets_only_where_they_may_be() {
    let only = |names: &[&str]| Namespaces::Only(names.iter().map(|name| Arc::from(*name)).collect());
    let settings = Settings { namespaces: only(&["a", "b"]), fleets: only(&["edge"]), ..Settings::default() };
    let mut gather = Gather::new(settings);
    let sources = gather.follow().start;
    let scoped: Vec<&Source> = sources.iter().filter(|source| source.namespace.is_none()).collect();
    assert_eq!(scoped, [&everywhere(Resource::IngressClasses), &everywhere(Resource::GatewayClasses), &everywhere(Resource::Namespaces)]);
    assert!(sources.contains(&within(Resource::Secrets, "b")));
    let fleets: Vec<&Source> = sources.iter().filter(|source| source.resource == Resource::IngressDeployments).collect();
    assert_eq!(fleets, [&within(Resource::IngressDeployments, "edge")]);
}

#[test]
fn what_the_status_of_an_ingress_says_is_passed_on_beside_the_world() {
    let mut gather = whole();
    let source = everywhere(Resource::Ingresses);
    gather.hear(&source, ingress("shop", "web"));
    gather.delta();
    gather.addresses();
    let status = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}, {"hostname": "lb.example.org"}]}});
    gather.hear(&source, object(Resource::Ingresses, "shop", "web", &json!({"spec": {"ingressClassName": "edge"}, "status": status})));
    assert!(gather.has_news());
    let addresses = gather.addresses();
    assert_eq!(
        addresses.iter().map(|(object, points)| (object.to_string(), points.join(" "))).collect::<Vec<_>>(),
        [("Ingress shop/web".to_owned(), "192.0.2.1 lb.example.org".to_owned())]
    );
}

#[test]
fn fleets_stay_while_an_api_server_that_just_started_does_not_know_their_kind() {
    let mut gather = whole();
    let source = everywhere(Resource::IngressDeployments);
    let fleet = object(Resource::IngressDeployments, "infra", "edge", &json!({"spec": {"ingressClassName": "edge"}}));
    list(&mut gather, &source, vec![fleet]);
    gather.delta();
    gather.hear(&source, News::Absent);
    assert!(gather.delta().is_empty(), "nothing that serves is taken away for that");
    assert!(gather.findings().unwrap().iter().any(|found| found.message.contains("no ingressdeployments")));
    list(&mut gather, &source, Vec::new());
    assert_eq!(gather.delta().removed.len(), 1, "once the kind is known again, what is gone is gone");
}

#[test]
fn a_gateway_class_that_waits_for_us_is_a_finding_until_its_kind_vanishes() {
    let mut gather = whole();
    let classes = everywhere(Resource::GatewayClasses);
    let class = |controller: &str| {
        let value = json!({"metadata": {"name": "edge"}, "spec": {"controllerName": controller}});
        News::Found(Box::new(found(Resource::GatewayClasses, &value)))
    };
    gather.findings();
    gather.hear(&classes, class("example.com/other"));
    assert_eq!(gather.findings(), None);
    gather.hear(&classes, class("haproxy-fleet.dev/gateway"));
    let findings = gather.findings().unwrap();
    let told: Vec<_> = findings.iter().map(|found| (found.code, found.object.to_string(), found.field.as_str())).collect();
    assert_eq!(told, [(codes::UNSUPPORTED, "GatewayClass edge".to_owned(), "spec.controllerName")]);
    gather.hear(&classes, News::Absent);
    assert_eq!(gather.findings(), Some(Vec::new()));
    assert!(gather.is_whole() && gather.delta().set.is_empty());
}

#[test]
fn nobody_waits_for_gateway_classes_that_cannot_be_read() {
    for news in [News::Forbidden("no".to_owned()), News::Failed("a webhook".to_owned())] {
        let mut gather = Gather::new(Settings::default());
        for source in gather.follow().start {
            if source.resource == Resource::GatewayClasses {
                continue;
            }
            list(&mut gather, &source, Vec::new());
        }
        assert!(gather.is_whole());
        gather.hear(&everywhere(Resource::GatewayClasses), news);
        assert!(gather.is_whole());
        assert!(gather.findings().unwrap()[0].message.contains("gatewayclasses"), "and yet it is told");
    }
}

#[test]
fn what_a_backend_of_ours_says_of_itself_is_passed_on_and_what_others_say_is_not() {
    let mut gather = whole();
    let (ours, theirs) = (everywhere(Resource::Backends), everywhere(Resource::HaproxyOrgBackends));
    let backend = |resource| {
        let metadata = json!({"namespace": "a", "name": "policy", "uid": "1-2", "generation": 4});
        object(resource, "a", "policy", &json!({"metadata": metadata, "spec": {}, "status": {"uses": 7}}))
    };
    gather.hear(&theirs, backend(Resource::HaproxyOrgBackends));
    assert_eq!(gather.backends(), []);
    gather.hear(&ours, backend(Resource::Backends));
    let reference = ObjectRef::new(Kind::Backend, "a", "policy");
    let seen = gather.backends();
    let (object, said) = &seen[0];
    let said = said.as_ref().unwrap();
    assert_eq!((object, said.uid.as_str(), said.generation, said.status.uses), (&reference, "1-2", 4, Some(7)));
    gather.hear(&ours, News::Gone(reference.clone()));
    assert_eq!(gather.backends(), [(reference, None)]);
}
