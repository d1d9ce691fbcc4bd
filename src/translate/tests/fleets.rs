use super::{Case, FLEET, ingress, service};
use crate::model::Protocol;
use crate::report::{Kind, ObjectRef, codes};

fn unclassed(yaml: &str) -> String {
    yaml.replace("  ingressClassName: edge\n", "")
}

fn class(name: &str, controller: &str, default: bool) -> String {
    format!(
        "kind: IngressClass\nmetadata: {{name: {name}, annotations: {{ingressclass.kubernetes.io/is-default-class: '{default}'}}}}\nspec: {{controller: {controller}}}\n---\n"
    )
}

#[test]
fn the_field_or_the_legacy_annotation_names_the_class() {
    let legacy = unclassed(&ingress("b", "b.com", "a")).replace("{name: b}", "{name: b, annotations: {kubernetes.io/ingress.class: edge}}");
    let other = ingress("c", "c.com", "a").replace("ingressClassName: edge", "ingressClassName: nginx");
    let case = Case::edge(&(service("a") + &ingress("a", "a.com", "a") + &legacy + &other + &unclassed(&ingress("d", "d.com", "a"))));
    assert!(case.host("a.com").is_some() && case.host("b.com").is_some() && case.host("c.com").is_none() && case.host("d.com").is_none());
    case.silent();
}

#[test]
fn an_annotation_comes_before_the_field_and_the_difference_is_told() {
    let both = ingress("a", "a.com", "a")
        .replace("ingressClassName: edge", "ingressClassName: nginx")
        .replace("{name: a}", "{name: a, annotations: {kubernetes.io/ingress.class: edge}}");
    let case = Case::edge(&(service("a") + &both));
    assert!(case.host("a.com").is_some());
    assert_eq!(case.told().iter().map(|(code, ..)| *code).collect::<Vec<_>>(), [codes::CONFLICT]);
}

#[test]
fn ingresses_without_a_class_belong_to_the_default_class() {
    let mut case =
        Case::edge(&(service("a") + &unclassed(&ingress("d", "d.com", "a")) + &class("edge", "haproxy-fleet.dev/ingress", true)));
    assert!(case.host("d.com").is_some());
    let touched = case.set(&class("edge", "haproxy-fleet.dev/ingress", false));
    assert!(case.host("d.com").is_none());
    assert_eq!(touched.hosts.len(), 1);
}

#[test]
fn a_class_of_another_controller_is_not_ours() {
    let case = Case::edge(&(service("a") + &ingress("a", "a.com", "a") + &class("edge", "k8s.io/ingress-nginx", true)));
    assert!(case.host("a.com").is_none());
    assert_eq!(case.told(), [(codes::CONFLICT, "IngressDeployment infra/edge".to_owned(), "spec.ingressClassName")]);
}

#[test]
fn there_is_nothing_without_the_fleet_and_everything_once_it_appears() {
    let mut case = Case::of(&(service("a") + &ingress("a", "a.com", "a")));
    assert_eq!(*case.translator.model(), crate::model::Model::default());
    case.set(FLEET);
    assert!(case.host("a.com").is_some());
    let changed = case.world.remove(&ObjectRef::new(Kind::IngressDeployment, "infra", "edge")).unwrap();
    case.translator.update(&case.world, &[changed]);
    assert_eq!(*case.translator.model(), crate::model::Model::default());
    case.silent();
}

#[test]
fn the_listeners_have_the_ports_of_the_fleet() {
    let case = Case::of(
        "kind: IngressDeployment\nmetadata: {namespace: infra, name: edge}\nspec: {ingressClassName: edge, ports: {http: 8000, https: 8443}}",
    );
    let listeners = &case.translator.model().listeners;
    assert_eq!((listeners["http"].public_port, listeners["http"].pod_port), (8000, 8080));
    assert_eq!((listeners["https"].public_port, listeners["https"].pod_port), (8443, 8443));
    assert!(matches!(&listeners["http"].protocol, Protocol::Http { https_port: Some(8443), .. }));
}

#[test]
fn a_fleet_that_grows_is_not_translated_anew() {
    let mut case = Case::edge(&(service("a") + &ingress("a", "a.com", "a")));
    let touched = case.set(&FLEET.replace("ingressClassName: edge", "ingressClassName: edge, replicas: 7"));
    assert!(touched.is_empty(), "{touched:?}");
}

#[test]
fn a_strict_fleet_gives_a_host_to_the_namespace_of_its_oldest_route() {
    let strict = "kind: IngressDeployment\nmetadata: {namespace: infra, name: edge}\nspec: {ingressClassName: edge, routeAdmission: {namespaceOwnership: Strict}}\n---\n";
    let other = |yaml: String| yaml.replace("metadata: {name", "metadata: {namespace: zoo, name").replace("path: /,", "path: /zoo,");
    let yaml = service("a") + &ingress("web", "foo.com", "a") + &other(service("a")) + &other(ingress("web", "foo.com", "a"));
    let case = Case::of(&(strict.to_owned() + &yaml));
    assert_eq!(case.paths("foo.com"), ["/"]);
    assert_eq!(case.told(), [(codes::CONFLICT, "Ingress zoo/web".to_owned(), "spec.rules[0].http.paths[0].path")]);
    let case = Case::edge(&yaml);
    assert_eq!(case.paths("foo.com"), ["/zoo", "/"]);
    case.silent();
}

#[test]
fn the_default_backend_of_a_fleet_that_is_missing_answers_503() {
    let fleet = "kind: IngressDeployment\nmetadata: {namespace: infra, name: edge}\nspec: {ingressClassName: edge, defaultBackend: {service: {name: d, port: {number: 80}}}}";
    let mut case = Case::of(fleet);
    assert_eq!(case.target("*", "/"), "Unavailable");
    assert_eq!(case.told(), [(codes::NOT_FOUND, "IngressDeployment infra/edge".to_owned(), "spec.defaultBackend.service.name")]);
    case.set(&service("d").replace("metadata: {name", "metadata: {namespace: infra, name"));
    assert_eq!(case.target("*", "/"), "infra/d:80");
    case.silent();
}

/// A fleet of the class that `edge` has, older than it.
fn elder(name: &str, selectors: &str) -> String {
    format!(
        "kind: IngressDeployment\nmetadata: {{namespace: infra, name: {name}, creationTimestamp: '2020-01-01T00:00:00Z'}}\nspec: {{ingressClassName: edge, {selectors}}}\n---\n"
    )
}

fn labelled(name: &str, labels: &str) -> String {
    ingress(name, &format!("{name}.com"), "a").replace(&format!("{{name: {name}}}"), &format!("{{name: {name}, labels: {{{labels}}}}}"))
}

fn namespace(labels: &str) -> String {
    format!("kind: Namespace\nmetadata: {{name: shop, labels: {{{labels}}}}}\n---\n")
}

#[test]
fn a_fleet_serves_what_its_selectors_ask_for_as_labels_change() {
    let fleet = FLEET.replace(
        "ingressClassName: edge",
        "ingressClassName: edge, routeSelector: {matchLabels: {part: a}}, namespaceSelector: {matchExpressions: [{key: tier, operator: In, values: [gold]}]}",
    );
    let mut case = Case::of(&format!("{fleet}\n---\n{}{}{}", service("a"), labelled("a", "part: a"), labelled("b", "part: b")));
    assert!(case.host("a.com").is_none(), "nothing is known of the namespace's labels");
    case.set(&namespace("tier: gold"));
    assert!(case.host("a.com").is_some() && case.host("b.com").is_none());
    let touched = case.set(&labelled("b", "part: a"));
    assert!(case.host("b.com").is_some());
    assert_eq!(touched.hosts.len(), 1, "nothing else is touched");
    case.set(&namespace("tier: iron"));
    assert!(case.host("a.com").is_none() && case.host("b.com").is_none());
    case.silent();
}

#[test]
fn a_namespace_can_be_chosen_by_its_name() {
    let fleet = FLEET
        .replace("ingressClassName: edge", "ingressClassName: edge, namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: shop}}");
    let case = Case::of(&format!("{fleet}\n---\n{}{}", service("a"), ingress("a", "a.com", "a")));
    assert!(case.host("a.com").is_some());
}

#[test]
fn what_an_older_fleet_selects_is_left_to_it_until_it_is_gone() {
    let old = elder("old", "routeSelector: {matchLabels: {part: a}}");
    let mut case = Case::edge(&(service("a") + &labelled("a", "part: a") + &labelled("b", "part: b") + &old));
    assert!(case.host("a.com").is_none() && case.host("b.com").is_some());
    // one that gets nothing takes nothing
    case.set(&elder("thief", "routeSelector: {matchLabels: {part: a}}"));
    assert!(case.host("a.com").is_none() && case.host("b.com").is_some());
    for name in ["old", "thief"] {
        let changed = case.world.remove(&ObjectRef::new(Kind::IngressDeployment, "infra", name)).unwrap();
        case.translator.update(&case.world, &[changed]);
    }
    assert!(case.host("a.com").is_some() && case.host("b.com").is_some());
}
