//! What comes step by step through the whole pipeline is what comes of the last state from scratch: the same bundles,
//! files and findings, whatever the steps, their grouping and their order, for several fleets at a time.
//!
//! `INCREMENTAL_SEED` repeats a run, `PROPTEST_CASES` scales the number of cases.

use crate::running::self_signed;
use crate::seeds::{cases, runner, seed};
use haproxy_fleet::haproxy;
use haproxy_fleet::haproxy::bundle::{Bundle, Digest, Resource};
use haproxy_fleet::haproxy::files::render_bytes;
use haproxy_fleet::haproxy::version::{Capabilities, Version};
use haproxy_fleet::ingest::files::{Files, Limits};
use haproxy_fleet::model::FleetId;
use haproxy_fleet::pipeline::{FleetChange, Options, Pipeline};
use haproxy_fleet::report::{Diagnostic, ObjectRef};
use haproxy_fleet::translate;
use haproxy_fleet::world::Object;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

fn read(yaml: &str) -> Object {
    let mut files = Files::new(vec!["-".into()], Limits::default());
    let mut set = files.load_with(&mut yaml.as_bytes()).unwrap().set;
    assert_eq!(set.len(), 1, "{yaml}: {:?}", files.diagnostics());
    set.remove(0)
}

/// Objects that exist or not, each in several versions that collide in every way.
fn universe() -> &'static [Vec<Object>] {
    static UNIVERSE: OnceLock<Vec<Vec<Object>>> = OnceLock::new();
    UNIVERSE.get_or_init(|| {
        let mut slots = Vec::new();
        let mut slot = |versions: Vec<String>| slots.push(versions.iter().map(|yaml| read(yaml)).collect());
        shared(&mut slot);
        let certificates: Vec<String> = (0..2).map(|_| self_signed("foo.test")).collect();
        for namespace in ["shop", "zoo", "infra"] {
            of_namespace(&mut slot, namespace, &certificates);
        }
        slots
    })
}

fn shared(slot: &mut impl FnMut(Vec<String>)) {
    let fleet = |name: &str, age: &str, spec: &str| {
        format!(
            "apiVersion: haproxy-fleet.dev/v1alpha1\nkind: IngressDeployment\nmetadata: {{namespace: infra, name: {name}{age}}}\nspec: {{{spec}}}\n"
        )
    };
    let old = ", creationTimestamp: '2020-01-01T00:00:00Z'";
    slot(vec![
        fleet("edge", "", "ingressClassName: edge"),
        fleet("edge", old, "ingressClassName: edge, haproxyVersion: '3.2', backendRef: {name: b}"),
        fleet("edge", "", "ingressClassName: other, configMapRef: {name: settings}"),
        fleet(
            "edge",
            old,
            "ingressClassName: edge, namespaceSelector: {matchLabels: {tier: gold}}, routeSelector: {matchLabels: {part: a}}",
        ),
        fleet(
            "edge",
            old,
            "ingressClassName: edge, routeAdmission: {namespaceOwnership: Strict}, tls: {defaultCertificateRef: {name: cert}}",
        ),
        fleet(
            "edge",
            "",
            "ingressClassName: edge, ports: {http: 81, https: 8443}, defaultBackend: {service: {name: a, port: {number: 80}}}",
        ),
    ]);
    slot(vec![
        fleet("other", "", "ingressClassName: other"),
        fleet("other", old, "ingressClassName: edge"),
        fleet("other", old, "ingressClassName: edge, namespaceSelector: {matchLabels: {tier: gold}}"),
        fleet("other", "", "ingressClassName: edge, routeSelector: {matchExpressions: [{key: part, operator: Exists}]}"),
        fleet("other", "", "ingressClassName: other, haproxyVersion: '3.2', configMapRef: {name: settings}"),
    ]);
    for (name, default) in [("edge", true), ("other", false)] {
        let class = |controller: &str, default: bool| {
            format!(
                "apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {{name: {name}, annotations: {{ingressclass.kubernetes.io/is-default-class: '{default}'}}}}\nspec: {{controller: {controller}}}\n"
            )
        };
        slot(vec![class("haproxy-fleet.dev/x", default), class("haproxy-fleet.dev/x", !default), class("k8s.io/nginx", true)]);
    }
    let settings = |backend| {
        format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{namespace: infra, name: settings}}\ndata: {{cr-backend: {backend}}}\n")
    };
    slot(["b", "gone", "zoo/b"].map(settings).into());
}

fn of_namespace(slot: &mut impl FnMut(Vec<String>), namespace: &str, certificates: &[String]) {
    let labelled = |labels: &str| format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: {namespace}, labels: {{{labels}}}}}\n");
    slot(["", "tier: gold", "tier: iron"].map(labelled).into());
    let object = |kind: &str, name: &str, more: &str, rest: &str| {
        let version = match kind {
            "Backend" => "haproxy-fleet.dev/v1alpha1",
            "Ingress" => "networking.k8s.io/v1",
            "EndpointSlice" => "discovery.k8s.io/v1",
            _ => "v1",
        };
        format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{namespace: {namespace}, name: {name}{more}}}\n{rest}\n")
    };
    let block = |text: &str| text.lines().flat_map(|line| ["    ", line, "\n"]).collect::<String>();
    let secret = |pem: &str| {
        let (chain, key) = pem.split_at(pem.find("-----BEGIN PRIVATE").unwrap());
        object(
            "Secret",
            "cert",
            "",
            &format!("type: kubernetes.io/tls\nstringData:\n  tls.crt: |\n{}  tls.key: |\n{}", block(chain), block(key)),
        )
    };
    slot(vec![secret(&certificates[0]), secret(&certificates[1]), secret("half -----BEGIN PRIVATE a key")]);
    let authority = |pem: &str| {
        object("ConfigMap", "ca", "", &format!("data:\n  ca.crt: |\n{}", block(pem.split("-----BEGIN PRIVATE").next().unwrap())))
    };
    slot(vec![authority(&certificates[0]), authority(&certificates[1]), authority("nothing")]);
    let backends = [
        "{server_timeout: 5000}",
        "{server_timeout: 6000, connect_timeout: 700, id: 5}",
        "{balance: {algorithm: leastconn}, cookie: {name: S, type: insert}}",
        "{default_server: {ssl: enabled, verify: required, ssl_cafile: configmap/ca}}",
        "{}",
    ];
    slot(backends.map(|spec| object("Backend", "b", "", &format!("spec: {spec}"))).into());
    for name in ["a", "c"] {
        let services = [
            ("", "{ports: [{name: http, port: 80}]}"),
            ("haproxy-fleet.dev/backend: b", "{ports: [{name: web, port: 80}, {name: http, port: 81}]}"),
            ("haproxy-fleet.dev/rewrite-path-prefix: /r", "{ports: [{name: http, port: 80}]}"),
            ("haproxy-fleet.dev/request-header.X-A: '1'", "{type: ExternalName, externalName: x.test, ports: [{name: http, port: 80}]}"),
            ("haproxy-fleet.dev/redirect-to: /x", "{ports: [{name: http, port: 80}]}"),
        ];
        slot(services.map(|(keys, spec)| object("Service", name, &format!(", annotations: {{{keys}}}"), &format!("spec: {spec}"))).into());
        for number in 1..3 {
            let endpoints = [
                format!("[{{addresses: [10.0.0.{number}]}}, {{addresses: [10.0.0.9]}}]"),
                format!("[{{addresses: [10.0.1.{number}]}}]"),
                "[{addresses: [10.0.0.9], conditions: {ready: false, serving: true, terminating: true}}]".to_owned(),
            ];
            let slice = |index: usize, endpoints: &str| {
                let service = if index == 1 { "a" } else { name };
                let labels = format!(", labels: {{kubernetes.io/service-name: {service}}}");
                let rest =
                    format!("addressType: IPv4\nports: [{{name: http, port: 8080}}, {{name: web, port: 8081}}]\nendpoints: {endpoints}");
                object("EndpointSlice", &format!("{name}-{number}"), &labels, &rest)
            };
            slot(endpoints.iter().enumerate().map(|(index, endpoints)| slice(index, endpoints)).collect());
        }
    }
    for name in ["i1", "i2", "i3"] {
        let ingress = |(number, (keys, spec)): (usize, &(&str, &str))| {
            let age = if number % 3 == 0 { format!(", creationTimestamp: '202{}-01-01T00:00:00Z'", number % 5) } else { String::new() };
            let part = if number % 2 == 0 { ", labels: {part: a}" } else { "" };
            object("Ingress", name, &format!("{age}{part}, annotations: {{{keys}}}"), &format!("spec: {{{spec}}}"))
        };
        slot(INGRESSES.iter().enumerate().map(ingress).collect());
    }
}

const INGRESSES: [(&str, &str); 9] = [
    (
        "",
        "ingressClassName: edge, rules: [{host: foo.test, http: {paths: [{pathType: Prefix, path: /, backend: {service: {name: a, port: {number: 80}}}}]}}]",
    ),
    (
        "haproxy-fleet.dev/backend: b",
        "ingressClassName: edge, tls: [{secretName: cert}], rules: [{host: foo.test, http: {paths: [{pathType: Prefix, path: /x, backend: {service: {name: c, port: {name: http}}}}]}}]",
    ),
    (
        "haproxy-fleet.dev/rewrite-path-prefix: /n, haproxy-fleet.dev/timeout-server: 1s",
        "ingressClassName: other, rules: [{host: foo.test, http: {paths: [{pathType: Exact, path: /x, backend: {service: {name: a, port: {name: web}}}}]}}]",
    ),
    (
        "",
        "tls: [{hosts: [foo.test, '*.foo.test'], secretName: cert}], rules: [{host: '*.foo.test', http: {paths: [{pathType: Prefix, path: /, backend: {service: {name: c, port: {number: 80}}}}]}}]",
    ),
    (
        "kubernetes.io/ingress.class: other",
        "ingressClassName: edge, rules: [{http: {paths: [{pathType: Prefix, path: /y, backend: {service: {name: a, port: {number: 80}}}}]}}]",
    ),
    ("haproxy-fleet.dev/redirect-to: /y", "ingressClassName: edge, defaultBackend: {service: {name: a, port: {number: 80}}}"),
    (
        "haproxy-fleet.dev/backend: gone, haproxy.org/check: 'true'",
        "ingressClassName: other, rules: [{host: bad_host, http: {paths: [{pathType: Prefix, path: /, backend: {service: {name: c, port: {number: 81}}}}]}}]",
    ),
    (
        "",
        "ingressClassName: nobody, rules: [{host: foo.test, http: {paths: [{pathType: Prefix, path: /, backend: {service: {name: a, port: {number: 80}}}}]}}]",
    ),
    (
        "haproxy-fleet.dev/ssl-redirect: 'true'",
        "ingressClassName: other, tls: [{hosts: [foo.test], secretName: cert}], rules: [{host: foo.test, http: {paths: [{pathType: Prefix, path: /z, backend: {service: {name: c, port: {number: 80}}}}]}}]",
    ),
];

fn pipeline() -> Pipeline {
    let of = |line: &str| Capabilities::of(line.parse::<Version>().unwrap());
    Pipeline::new(Options {
        capabilities: Box::new(move |line| of(line.as_str())),
        translate: translate::Options::default(),
        render: haproxy::render::Options::default(),
    })
}

/// All that a pipeline says to the outside.
#[derive(Debug, PartialEq)]
struct Outcome {
    digests: Vec<(FleetId, Digest)>,
    diagnostics: Vec<Diagnostic>,
    of_fleets: Vec<Vec<Diagnostic>>,
    /// Hashes of all files.
    files: Vec<(String, blake3::Hash)>,
    sources: Vec<(String, Vec<ObjectRef>)>,
}

fn outcome(pipeline: &Pipeline) -> Outcome {
    let bundles: Vec<(&FleetId, &Bundle)> = pipeline.fleets().map(|fleet| (fleet, pipeline.bundle(fleet).unwrap())).collect();
    let files = bundles.iter().flat_map(|(fleet, bundle)| {
        bundle.files().map(move |path| (format!("{fleet}: {path}"), blake3::hash(&render_bytes(bundle, path))))
    });
    let sources = bundles.iter().flat_map(|(fleet, bundle)| {
        bundle.resources().map(move |resource| (format!("{fleet}: {}", resource.key), resource.sources.to_vec()))
    });
    Outcome {
        digests: bundles.iter().map(|(fleet, bundle)| ((*fleet).clone(), bundle.digest())).collect(),
        diagnostics: pipeline.diagnostics().into_iter().cloned().collect(),
        of_fleets: bundles.iter().map(|(fleet, _)| pipeline.fleet_diagnostics(fleet).into_iter().cloned().collect()).collect(),
        files: files.collect(),
        sources: sources.collect(),
    }
}

/// A pipeline, and copies of its bundles that follow what it tells.
struct Follower {
    pipeline: Pipeline,
    copies: BTreeMap<FleetId, Bundle>,
}

impl Follower {
    fn new() -> Self {
        Self { pipeline: pipeline(), copies: BTreeMap::new() }
    }

    fn apply(&mut self, set: Vec<Object>, removed: &[ObjectRef]) {
        for update in self.pipeline.apply(set, removed) {
            match update.change {
                FleetChange::Bundle(changes) => self.copies.entry(update.fleet).or_default().apply(&changes),
                FleetChange::Removed => _ = self.copies.remove(&update.fleet).expect("a fleet that was told of"),
            }
        }
    }

    /// What the pipeline holds and who was told of every change does not.
    fn missed(&self) -> Vec<String> {
        let mut missed = Vec::new();
        if !self.pipeline.fleets().eq(self.copies.keys()) {
            missed.push("a fleet".to_owned());
        }
        for (fleet, copy) in &self.copies {
            let Some(bundle) = self.pipeline.bundle(fleet) else { continue };
            let other = |resource: &&Arc<Resource>| copy.get(&resource.key) != Some(*resource);
            missed.extend(bundle.resources().filter(other).map(|resource| format!("{fleet}: {}", resource.key)));
            if copy.digest() != bundle.digest() {
                missed.push(format!("{fleet}: {}", bundle.digest()));
            }
        }
        missed
    }
}

type Edit = (prop::sample::Index, Option<prop::sample::Index>);

fn edits() -> impl Strategy<Value = Vec<Vec<Edit>>> {
    let version = prop::option::weighted(0.8, any::<prop::sample::Index>());
    prop::collection::vec(prop::collection::vec((any::<prop::sample::Index>(), version), 1..6), 1..20)
}

/// What there is at the end, in an order that follows from `salt`.
fn shuffled(state: &BTreeMap<usize, Object>, salt: u64) -> Vec<Object> {
    let mut all: Vec<Object> = state.values().cloned().collect();
    all.sort_by_key(|object| *blake3::hash(format!("{salt}{}", object.reference()).as_bytes()).as_bytes());
    all
}

#[test]
fn steps_in_any_order_and_grouping_lead_to_what_comes_from_scratch() {
    let seed = seed("INCREMENTAL_SEED");
    let start = prop::collection::vec(prop::option::weighted(0.6, any::<prop::sample::Index>()), universe().len());
    let strategy = (start, edits(), any::<u64>(), 1..9_usize);
    let result = runner(seed, (cases() / 250).max(1)).run(&strategy, |(start, batches, salt, group)| {
        let mut state: BTreeMap<usize, Object> = BTreeMap::new();
        for (slot, version) in start.iter().enumerate() {
            state.extend(version.map(|version| (slot, version.get(&universe()[slot]).clone())));
        }
        let mut steps = Follower::new();
        steps.apply(shuffled(&state, salt), &[]);
        for (number, batch) in batches.iter().enumerate() {
            let edits: BTreeMap<usize, Option<Object>> = batch
                .iter()
                .map(|(slot, version)| {
                    let slot = slot.index(universe().len());
                    (slot, version.map(|version| version.get(&universe()[slot]).clone()))
                })
                .collect();
            let removed: Vec<ObjectRef> =
                edits.iter().filter(|(_, object)| object.is_none()).map(|(slot, _)| universe()[*slot][0].reference()).collect();
            steps.apply(edits.values().flatten().cloned().collect(), &removed);
            for (slot, object) in edits {
                match object {
                    Some(object) => _ = state.insert(slot, object),
                    None => _ = state.remove(&slot),
                }
            }
            prop_assert_eq!(steps.missed(), Vec::<String>::new());
            if number % 4 == 0 {
                let mut scratch = pipeline();
                scratch.apply(state.values().cloned(), &[]);
                prop_assert_eq!(outcome(&steps.pipeline), outcome(&scratch));
            }
        }
        // From scratch, in another order; and again in groups of some, in yet another.
        let mut scratch = pipeline();
        scratch.apply(shuffled(&state, !salt), &[]);
        let last = outcome(&scratch);
        prop_assert_eq!(&outcome(&steps.pipeline), &last);
        let mut grouped = Follower::new();
        for objects in shuffled(&state, salt.rotate_left(7)).chunks(group) {
            grouped.apply(objects.to_vec(), &[]);
        }
        prop_assert_eq!(grouped.missed(), Vec::<String>::new());
        prop_assert_eq!(&outcome(&grouped.pipeline), &last);
        // And all of it goes again.
        let all: Vec<ObjectRef> = shuffled(&state, salt.rotate_left(9)).iter().map(Object::reference).collect();
        all.chunks(group).for_each(|objects| grouped.apply(Vec::new(), objects));
        prop_assert_eq!(outcome(&grouped.pipeline), outcome(&pipeline()));
        prop_assert_eq!(grouped.missed(), Vec::<String>::new());
        Ok(())
    });
    if let Err(failure) = result {
        panic!("INCREMENTAL_SEED={seed}: {failure}");
    }
}

#[test]
fn the_same_objects_again_change_nothing() {
    let mut follower = Follower::new();
    let all: Vec<Object> = universe().iter().map(|versions| versions[0].clone()).collect();
    follower.apply(all.clone(), &[]);
    assert_eq!(follower.copies.len(), 2, "two fleets");
    let backends = follower.copies.values().map(|bundle| bundle.backends_after(None).count()).max();
    assert!(backends >= Some(3), "with something in them: {backends:?}");
    assert_eq!(follower.pipeline.apply(all, &[]).len(), 0);
    assert_eq!(follower.pipeline.apply([], &[ObjectRef::new(haproxy_fleet::report::Kind::Service, "shop", "nobody")]).len(), 0);
}
