//! What came step by step is what a translation from scratch gives, whatever the steps and their order.

use super::{fleet_id, objects, secret};
use crate::model::{Model, Touched};
use crate::report::Diagnostic;
use crate::translate::{Options, Translator, diff};
use crate::world::{Changed, Object, World};
use proptest::prelude::*;
use std::sync::OnceLock;

/// Objects that exist or not, each in several versions that collide in every way.
fn universe() -> &'static Vec<Vec<Object>> {
    static UNIVERSE: OnceLock<Vec<Vec<Object>>> = OnceLock::new();
    UNIVERSE.get_or_init(|| {
        let mut slots: Vec<Vec<Object>> = Vec::new();
        let mut slot = |versions: Vec<String>| slots.push(versions.iter().flat_map(|yaml| objects(yaml)).collect());
        let in_ns = |ns: &str, yaml: &str| yaml.replace("metadata: {name", &format!("metadata: {{namespace: {ns}, name"));
        slot(
            [
                "{ingressClassName: edge}",
                "{ingressClassName: edge, backendRef: {name: b}, defaultBackend: {service: {name: a, port: {number: 80}}}}",
                "{ingressClassName: edge, zoneAwareness: {mode: Always}, configMapRef: {name: cm}, tls: {defaultCertificateRef: {name: cert}}}",
                "{ingressClassName: edge, routeAdmission: {namespaceOwnership: Strict}, ports: {http: 80, https: 80}}",
                "{ingressClassName: other, tls: {defaultCertificateRef: {name: gone}}}",
            ]
            .map(|spec| format!("kind: IngressDeployment\nmetadata: {{namespace: infra, name: edge}}\nspec: {spec}"))
            .into(),
        );
        let class = |controller: &str, default: bool| format!("kind: IngressClass\nmetadata: {{name: edge, annotations: {{ingressclass.kubernetes.io/is-default-class: '{default}'}}}}\nspec: {{controller: {controller}}}");
        slot(vec![class("haproxy-fleet.dev/x", true), class("haproxy-fleet.dev/x", false), class("k8s.io/nginx", true)]);
        slot(["b", "gone", "zoo/b"].map(|name| format!("kind: ConfigMap\nmetadata: {{namespace: infra, name: cm}}\ndata: {{cr-backend: {name}}}")).into());
        let pems: Vec<String> = (0..3).map(|_| secret("cert", "foo.com").strip_suffix("---\n").unwrap().to_owned()).collect();
        let ca = |pem: &str| format!("kind: ConfigMap\nmetadata: {{name: ca}}\ndata:\n{}", pem.lines().skip_while(|l| !l.contains("tls.crt")).map(|l| l.replace("tls.crt", "ca.crt") + "\n").collect::<String>());
        for ns in ["shop", "zoo", "infra"] {
            let half: String = pems[0].lines().take(8).map(|line| format!("{line}\n")).collect();
            slot(vec![in_ns(ns, &pems[0]), in_ns(ns, &pems[1]), in_ns(ns, &half)]);
            slot(vec![in_ns(ns, &pems[2].replace("name: cert", "name: cert2"))]);
            slot(vec![in_ns(ns, &ca(&pems[0])), in_ns(ns, &ca(&pems[1])), in_ns(ns, "kind: ConfigMap\nmetadata: {name: ca}\ndata: {ca.crt: nothing}")]);
            slot(
                [
                    "{connect_timeout: 5}",
                    "{connect_timeout: 6, server_timeout: 7, id: 5}",
                    "{default_server: {ssl: enabled, verify: required, ssl_cafile: configmap/ca}}",
                    "{}",
                ]
                .map(|spec| in_ns(ns, &format!("kind: Backend\nmetadata: {{name: b}}\nspec: {spec}")))
                .into(),
            );
            for name in ["a", "c"] {
                slot(
                    [
                        "{ports: [{name: http, port: 80}]}",
                        "{ports: [{name: web, port: 80}, {name: http, port: 81}]}",
                        "{type: ExternalName, externalName: x.example}",
                        "{type: ExternalName, externalName: 127.0.0.1}",
                    ]
                    .iter()
                    .zip(["", "haproxy-fleet.dev/backend: b", "haproxy-fleet.dev/rewrite-path-prefix: /r, haproxy-fleet.dev/ssl-redirect: 'true'", "haproxy-fleet.dev/redirect-to: /x, haproxy-fleet.dev/zone-aware: 'true'"])
                    .flat_map(|(spec, keys)| [(*spec, keys), ("{ports: [{name: http, port: 80}], trafficDistribution: PreferClose}", keys)])
                    .map(|(spec, keys)| in_ns(ns, &format!("kind: Service\nmetadata: {{name: {name}, annotations: {{{keys}}}}}\nspec: {spec}")))
                    .collect(),
                );
                for n in 1..3 {
                    slot(
                        [format!("[{{addresses: [10.0.0.{n}], zone: z{n}}}, {{addresses: [10.0.0.9]}}]"), "[{addresses: [127.0.0.1]}]".into(), "[{addresses: [10.0.0.9], conditions: {ready: false, serving: true, terminating: true}}]".into()]
                            .iter()
                            .enumerate()
                            .map(|(i, endpoints)| {
                                let of = if i == 1 { "a" } else { name };
                                in_ns(ns, &format!("kind: EndpointSlice\nmetadata: {{name: {name}-{n}, labels: {{kubernetes.io/service-name: {of}}}}}\naddressType: IPv4\nports: [{{name: http, port: 8080}}, {{name: web, port: 8081}}]\nendpoints: {endpoints}"))
                            })
                            .collect(),
                    );
                }
            }
            for name in ["i1", "i2", "i3"] {
                slot(ingresses(name).iter().map(|yaml| in_ns(ns, yaml)).collect());
            }
        }
        slots
    })
}

fn ingresses(name: &str) -> Vec<String> {
    let path = |path: &str, service: &str, port: &str| {
        format!("{{pathType: Prefix, path: {path}, backend: {{service: {{name: {service}, port: {port}}}}}}}")
    };
    let rule = |host: &str, paths: &[String]| format!("{{host: '{host}', http: {{paths: [{}]}}}}", paths.join(", "));
    let one = path("/", "a", "{number: 80}");
    let two = path("/x", "c", "{name: http}");
    let three = path("/x", "a", "{name: web}");
    let fallback = "defaultBackend: {service: {name: a, port: {number: 80}}}";
    let all = [
        ("", "ingressClassName: edge", rule("foo.com", std::slice::from_ref(&one)), "", ""),
        ("", "ingressClassName: edge", rule("foo.com", &[one.clone(), two.clone()]), "{secretName: cert}", ""),
        (
            "haproxy-fleet.dev/backend: b",
            "ingressClassName: edge",
            rule("*.foo.com", std::slice::from_ref(&two)),
            "{hosts: [foo.com, '*.foo.com'], secretName: cert2}",
            fallback,
        ),
        (
            "haproxy-fleet.dev/rewrite-path-prefix: /n, haproxy-fleet.dev/timeout-server: 1s",
            "",
            rule("foo.com", &[three.clone(), one.clone()]),
            "",
            "",
        ),
        (
            "kubernetes.io/ingress.class: edge",
            "ingressClassName: other",
            rule("", std::slice::from_ref(&two)),
            "{hosts: [foo.com], secretName: cert}",
            "",
        ),
        ("haproxy-fleet.dev/redirect-to: /y", "ingressClassName: edge", rule("foo.com", &[three]), "", fallback),
        ("haproxy-fleet.dev/backend: gone, haproxy.org/check: 'true'", "ingressClassName: edge", rule("bad_host", &[one]), "", ""),
        ("", "ingressClassName: edge", String::new(), "", fallback),
    ];
    let mut out = Vec::new();
    for (n, (keys, class, rules, tls, fallback)) in all.iter().enumerate() {
        let age = if n % 3 == 0 { format!(", creationTimestamp: '202{}-01-01T00:00:00Z'", n % 5) } else { String::new() };
        let parts: Vec<String> = [(*class).to_owned(), format!("rules: [{rules}]"), format!("tls: [{tls}]"), (*fallback).to_owned()]
            .into_iter()
            .filter(|p| !p.is_empty())
            .collect();
        out.push(format!("kind: Ingress\nmetadata: {{name: {name}{age}, annotations: {{{keys}}}}}\nspec: {{{}}}", parts.join(", ")));
    }
    out
}

fn edit(world: &mut World, (slot, version): (usize, Option<usize>)) -> Option<Changed> {
    let versions = &universe()[slot % universe().len()];
    match version {
        Some(version) => world.set(versions[version % versions.len()].clone()),
        None => world.remove(&versions[0].reference()),
    }
}

fn scratch(world: &World) -> (Model, Vec<Diagnostic>) {
    let mut translator = Translator::new(fleet_id(), Options::default());
    translator.update(world, &[]);
    (translator.model().clone(), translator.diagnostics().cloned().collect())
}

/// Whether `touched` names everything in which the two differ.
fn names_all(before: &Model, after: &Model, touched: &Touched) -> bool {
    let differing = diff::touched(before, after);
    differing.listeners.is_subset(&touched.listeners)
        && differing.hosts.is_subset(&touched.hosts)
        && differing.backends.is_subset(&touched.backends)
        && differing.endpoints.iter().all(|id| touched.endpoints.contains(id) || touched.backends.contains(id))
        && differing.certificates.is_subset(&touched.certificates)
        && differing.list_entries.is_subset(&touched.list_entries)
        && differing.ca_bundles.is_subset(&touched.ca_bundles)
        && (touched.default_certificate || !differing.default_certificate)
}

type Edit = (usize, Option<usize>);

fn edits() -> impl Strategy<Value = Vec<Vec<Edit>>> {
    let one = (any::<usize>(), prop_oneof![5 => any::<usize>().prop_map(Some), 1 => Just(None)]);
    let fleet = any::<usize>().prop_map(|version| (0, Some(version)));
    let one = prop_oneof![12 => one, 1 => fleet];
    prop::collection::vec(prop::collection::vec(one, 1..4), 1..25)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn step_by_step_is_the_same_as_from_scratch(
        start in prop::collection::vec(prop::option::weighted(0.7, any::<usize>()), 60),
        batches in edits(),
        order in any::<u64>(),
    ) {
        let mut world = World::default();
        for (slot, version) in start.iter().enumerate().take(universe().len()) {
            if version.is_some() {
                edit(&mut world, (slot, *version));
            }
        }
        edit(&mut world, (0, Some(start.len())));
        let mut translator = Translator::new(fleet_id(), Options::default());
        translator.update(&world, &[]);
        for batch in &batches {
            let before = translator.model().clone();
            let changes: Vec<Changed> = batch.iter().filter_map(|one| edit(&mut world, *one)).collect();
            let touched = translator.update(&world, &changes);
            let (model, diagnostics) = scratch(&world);
            prop_assert_eq!(translator.model(), &model);
            prop_assert_eq!(translator.diagnostics().cloned().collect::<Vec<_>>(), diagnostics);
            prop_assert!(names_all(&before, translator.model(), &touched), "{:?} of {:?}", touched, diff::touched(&before, translator.model()));
        }
        // The same objects, one at a time in another order.
        let mut all: Vec<Object> = universe().iter().filter_map(|versions| world.get(&versions[0].reference())).collect();
        all.sort_by_key(|object| blake3::hash(format!("{order}{}", object.reference()).as_bytes()).as_bytes()[0..8].to_vec());
        let (mut other, mut follower) = (World::default(), Translator::new(fleet_id(), Options::default()));
        follower.update(&other, &[]);
        for object in all {
            let changes: Vec<Changed> = other.set(object).into_iter().collect();
            follower.update(&other, &changes);
        }
        prop_assert_eq!(follower.model(), translator.model());
        prop_assert_eq!(follower.diagnostics().collect::<Vec<_>>(), translator.diagnostics().collect::<Vec<_>>());
    }
}

#[test]
fn a_change_that_concerns_nobody_touches_nothing() {
    let mut case = super::Case::edge(&(super::service("a") + &super::ingress("web", "foo.com", "a")));
    let touched = case.set(&(super::service("unused") + &secret("unused", "x.com") + "kind: ConfigMap\nmetadata: {name: x}\ndata: {}"));
    assert!(touched.is_empty(), "{touched:?}");
}
