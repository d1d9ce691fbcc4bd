use super::{Case, FLEET, ingress};
use crate::model::ZoneRule;
use crate::report::codes;

const RULE: Option<ZoneRule> = Some(ZoneRule { min_ready: 2, min_share: 75 });

/// A Service with these annotations and fields, and an Ingress to it.
fn web(annotations: &str, spec: &str) -> String {
    let service =
        format!("kind: Service\nmetadata: {{name: a, annotations: {{{annotations}}}}}\nspec: {{ports: [{{name: http, port: 80}}]{spec}}}");
    format!("{service}\n---\n{}", ingress("web", "foo.com", "a"))
}

fn fleet(zones: &str) -> String {
    FLEET.replace("{ingressClassName: edge}", &format!("{{ingressClassName: edge, zoneAwareness: {{{zones}}}}}"))
}

/// The rule of the only backend, in a fleet of this kind.
fn rule(zones: &str, service: &str) -> Option<ZoneRule> {
    let case = Case::of(&format!("{}\n---\n{service}", fleet(zones)));
    case.silent();
    case.only().1.zones
}

#[test]
fn a_service_asks_in_the_ways_of_kubernetes_or_in_ours() {
    for distribution in ["PreferClose", "PreferSameZone", "PreferSameNode"] {
        assert_eq!(rule("", &web("", &format!(", trafficDistribution: {distribution}"))), RULE, "{distribution}");
    }
    assert_eq!(rule("", &web("service.kubernetes.io/topology-mode: Auto", "")), RULE);
    assert_eq!(rule("", &web("haproxy-fleet.dev/zone-aware: 'true'", "")), RULE);
    assert_eq!(rule("", &web("", "")), None);
    assert_eq!(rule("", &web("service.kubernetes.io/topology-mode: Disabled", "")), None);
    assert_eq!(rule("", &web("haproxy-fleet.dev/zone-aware: 'false'", ", trafficDistribution: PreferClose")), None);
}

#[test]
fn the_fleet_says_for_whom_and_from_when_on() {
    assert_eq!(rule("mode: Always", &web("", "")), RULE);
    assert_eq!(rule("mode: Always", &web("haproxy-fleet.dev/zone-aware: 'false'", "")), None);
    assert_eq!(rule("mode: Never", &web("", ", trafficDistribution: PreferClose")), None);
    let other = Some(ZoneRule { min_ready: 5, min_share: 100 });
    assert_eq!(rule("mode: Always, minReadyEndpoints: 5, minSharePercent: 100", &web("", "")), other);
}

#[test]
fn a_hash_is_the_same_in_every_pod_and_whoever_asked_for_more_is_told() {
    let hashing = "\n---\nkind: Backend\nmetadata: {name: b}\nspec: {balance: {algorithm: uri}}";
    let backend = "haproxy-fleet.dev/backend: b";
    let case = Case::edge(&(web(backend, ", trafficDistribution: PreferClose") + hashing));
    assert_eq!(case.only().1.zones, None);
    case.silent();
    let case = Case::edge(&(web(&format!("{backend}, haproxy-fleet.dev/zone-aware: 'true'"), "") + hashing));
    assert_eq!(case.only().1.zones, None);
    let field = "metadata.annotations[\"haproxy-fleet.dev/zone-aware\"]";
    assert_eq!(case.told(), [(codes::CONFLICT, "Service shop/a".to_owned(), field)]);
    for algorithm in ["roundrobin", "leastconn", "random"] {
        let case = Case::edge(&(web(&format!("{backend}, haproxy-fleet.dev/zone-aware: 'true'"), "") + &hashing.replace("uri", algorithm)));
        assert_eq!(case.only().1.zones, RULE, "{algorithm}");
        case.silent();
    }
}

#[test]
fn an_ingress_asks_for_its_own_backend_and_is_told_where_the_fleet_does_not_want_it() {
    let asking = ingress("web", "foo.com", "a")
        .replace("metadata: {name: web", "metadata: {annotations: {haproxy-fleet.dev/zone-aware: 'true'}, name: web");
    let service = "kind: Service\nmetadata: {name: a}\nspec: {ports: [{name: http, port: 80}]}\n---\n";
    let case = Case::edge(&format!("{service}{asking}"));
    assert_eq!(case.only().1.zones, RULE);
    case.silent();
    let case = Case::of(&format!("{}\n---\n{service}{asking}", fleet("mode: Never")));
    assert_eq!(
        case.told().iter().map(|(code, object, _)| (*code, object.as_str())).collect::<Vec<_>>(),
        [(codes::CONFLICT, "Ingress shop/web")]
    );
}

#[test]
fn what_a_service_asks_for_later_touches_no_more_than_its_endpoints() {
    let mut case = Case::edge(&web("", ""));
    let touched = case.set(web("", ", trafficDistribution: PreferClose").split("\n---").next().unwrap());
    assert_eq!(case.only().1.zones, RULE);
    assert_eq!((touched.endpoints.len(), touched.backends.len(), touched.hosts.len()), (1, 0, 0));
}
