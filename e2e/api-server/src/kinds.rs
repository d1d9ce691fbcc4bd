//! The kinds that are served, and how their lists and maps are merged.

use serde_json::Value;
use std::collections::BTreeMap;

/// How a list or map is merged by server-side apply, by the words of the `OpenAPI` extension
/// `x-kubernetes-list-type` and `x-kubernetes-map-type`. What is not named is a granular map or an atomic list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Topology {
    /// A list whose items are known by some of their fields.
    Map(Vec<String>),
    /// A list of scalars, each of which has its owners.
    Set,
    /// A map that has one owner as a whole.
    AtomicMap,
}

/// The topology of the built-in kinds, as a Kubernetes 1.36 API server publishes it at `/openapi/v2`:
/// API version, kind, path, topology. `tests/truth.rs` holds it to that of a real server.
const BUILT_IN: &str = include_str!("topology.txt");

/// API version, kind, plural, scope, and what is special: `status` (a subresource), `generation` (counted),
/// `annotations` (they count for the generation), `guarded` (an update must say which version it replaces).
/// Source: `/apis` of a real server; the strategies under `pkg/registry` of kubernetes/kubernetes for the rest.
const KINDS: &[(&str, &str, &str, bool, &[&str])] = &[
    ("v1", "Namespace", "namespaces", false, &["status"]),
    ("v1", "Node", "nodes", false, &["status"]),
    ("v1", "Pod", "pods", true, &["status", "generation"]),
    ("v1", "Service", "services", true, &["status"]),
    ("v1", "ConfigMap", "configmaps", true, &[]),
    ("v1", "Secret", "secrets", true, &[]),
    ("v1", "ServiceAccount", "serviceaccounts", true, &[]),
    ("v1", "Event", "events", true, &[]),
    ("apps/v1", "Deployment", "deployments", true, &["status", "generation", "annotations"]),
    ("apps/v1", "ReplicaSet", "replicasets", true, &["status", "generation"]),
    ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", true, &["status", "generation", "guarded"]),
    ("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", true, &["status"]),
    ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", true, &["generation"]),
    ("networking.k8s.io/v1", "Ingress", "ingresses", true, &["status", "generation"]),
    ("networking.k8s.io/v1", "IngressClass", "ingressclasses", false, &["generation"]),
    ("coordination.k8s.io/v1", "Lease", "leases", true, &["guarded"]),
    ("events.k8s.io/v1", "Event", "events", true, &[]),
    ("discovery.k8s.io/v1", "EndpointSlice", "endpointslices", true, &["generation"]),
];

/// One kind.
// the facts are independent of each other, and `kind` is what Kubernetes calls its name
#[allow(clippy::struct_excessive_bools, clippy::struct_field_names)]
#[derive(Clone, Debug)]
pub(crate) struct Kind {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) plural: String,
    pub(crate) namespaced: bool,
    /// Whether `status` is written by its own subresource only.
    pub(crate) has_status: bool,
    /// Whether `metadata.generation` counts changes of what is asked for.
    pub(crate) counted: bool,
    /// Whether that includes changes of annotations.
    pub(crate) counts_annotations: bool,
    /// Whether an update without a resource version is refused.
    pub(crate) guarded: bool,
    /// The schema of a custom resource: prunes and sets defaults.
    pub(crate) schema: Option<Value>,
    topology: BTreeMap<String, Topology>,
}

impl Kind {
    pub(crate) fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }

    pub(crate) fn topology(&self, path: &[&str]) -> Option<&Topology> {
        self.topology.get(&path.join("."))
    }

    /// From a `CustomResourceDefinition`: its first served version.
    fn custom(definition: &Value) -> Option<Self> {
        let spec = &definition["spec"];
        let version = spec["versions"].as_array()?.iter().find(|version| version["served"] == true)?;
        let schema = version["schema"]["openAPIV3Schema"].clone();
        let mut topology = BTreeMap::new();
        for (path, kind) in [("metadata.finalizers", Topology::Set), ("metadata.ownerReferences", Topology::Map(vec!["uid".to_owned()]))] {
            topology.insert(path.to_owned(), kind);
        }
        read_schema(&schema, &mut Vec::new(), &mut topology);
        Some(Self {
            api_version: format!("{}/{}", spec["group"].as_str()?, version["name"].as_str()?),
            kind: spec["names"]["kind"].as_str()?.to_owned(),
            plural: spec["names"]["plural"].as_str()?.to_owned(),
            namespaced: spec["scope"] == "Namespaced",
            has_status: version["subresources"]["status"].is_object(),
            counted: true,
            counts_annotations: false,
            guarded: true,
            schema: Some(schema),
            topology,
        })
    }
}

fn read_schema(schema: &Value, path: &mut Vec<String>, topology: &mut BTreeMap<String, Topology>) {
    if schema["x-kubernetes-map-type"] == "atomic" {
        topology.insert(path.join("."), Topology::AtomicMap);
        return;
    }
    match schema["x-kubernetes-list-type"].as_str() {
        Some("set") => _ = topology.insert(path.join("."), Topology::Set),
        Some("map") => {
            let keys = schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten();
            let keys = keys.filter_map(Value::as_str).map(str::to_owned).collect();
            topology.insert(path.join("."), Topology::Map(keys));
            read_schema(&schema["items"], path, topology);
        }
        _ => {}
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        path.push(name.clone());
        read_schema(field, path, topology);
        path.pop();
    }
    if schema["additionalProperties"].is_object() {
        path.push("*".to_owned());
        read_schema(&schema["additionalProperties"], path, topology);
        path.pop();
    }
}

fn built_in_topology() -> BTreeMap<(&'static str, &'static str), BTreeMap<String, Topology>> {
    let mut all: BTreeMap<_, BTreeMap<String, Topology>> = BTreeMap::new();
    for line in BUILT_IN.lines() {
        let mut words = line.split(' ');
        let (Some(version), Some(kind), Some(path), Some(how)) = (words.next(), words.next(), words.next(), words.next()) else { continue };
        let topology = match how {
            "map" => Topology::Map(words.next().unwrap_or_default().split(',').map(str::to_owned).collect()),
            "set" => Topology::Set,
            // an item of a list by key that is atomic itself is known by the same path; its key decides
            _ if all.get(&(version, kind)).is_some_and(|paths: &BTreeMap<String, Topology>| paths.contains_key(path)) => continue,
            _ => Topology::AtomicMap,
        };
        all.entry((version, kind)).or_default().insert(path.to_owned(), topology);
    }
    all
}

/// All kinds that are served.
#[derive(Clone, Debug)]
pub(crate) struct Kinds(Vec<Kind>);

impl Kinds {
    pub(crate) fn built_in() -> Self {
        let mut topology = built_in_topology();
        let kinds = KINDS.iter().map(|(api_version, kind, plural, namespaced, special)| Kind {
            api_version: (*api_version).to_owned(),
            kind: (*kind).to_owned(),
            plural: (*plural).to_owned(),
            namespaced: *namespaced,
            has_status: special.contains(&"status"),
            counted: special.contains(&"generation"),
            counts_annotations: special.contains(&"annotations"),
            guarded: special.contains(&"guarded"),
            schema: None,
            topology: topology.remove(&(*api_version, *kind)).unwrap_or_default(),
        });
        Self(kinds.collect())
    }

    /// Serves the kind of a `CustomResourceDefinition`. False if it cannot be read.
    pub(crate) fn define(&mut self, definition: &Value) -> bool {
        let Some(kind) = Kind::custom(definition) else { return false };
        self.0.retain(|other| (other.group(), &other.plural) != (kind.group(), &kind.plural));
        self.0.push(kind);
        true
    }

    pub(crate) fn by_plural(&self, api_version: &str, plural: &str) -> Option<&Kind> {
        self.0.iter().find(|kind| kind.api_version == api_version && kind.plural == plural)
    }

    pub(crate) fn by_kind(&self, api_version: &str, kind: &str) -> Option<&Kind> {
        self.0.iter().find(|found| found.api_version == api_version && found.kind == kind)
    }

    pub(crate) fn of_version<'a>(&'a self, api_version: &'a str) -> impl Iterator<Item = &'a Kind> {
        self.0.iter().filter(move |kind| kind.api_version == api_version)
    }

    pub(crate) fn api_versions(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|kind| kind.api_version.as_str())
    }
}
