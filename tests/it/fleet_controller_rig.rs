//! A cluster around the controller of fleets: an API server, what plays Deployments, kubelets and load balancers, and
//! somebody who looks on and notes what must never happen.

#![allow(clippy::needless_pass_by_value)] // calls read better without a reference to what they make

use fleet_api_server::ApiServer;
use fleet_api_server::faults::{Faults, Plan};
use futures::future::BoxFuture;
use haproxy_fleet::fleet::apply::FleetKey;
use haproxy_fleet::fleet::build::{Desired, Ownership};
use haproxy_fleet::fleet::controller::{Build, BuildError, Built, Controller, FleetState, Seen, Settings, States, Withdraw};
use haproxy_fleet::report::{Diagnostic, Kind, ObjectRef, codes};
use kube::Client;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower::Layer;

pub(crate) const GRACE: u64 = 20;
const FLEET: &str = "haproxy-fleet.dev/fleet";
const KINDS: [(&str, &str); 6] = [
    ("apps/v1", "Deployment"),
    ("v1", "Service"),
    ("v1", "ConfigMap"),
    ("v1", "ServiceAccount"),
    ("policy/v1", "PodDisruptionBudget"),
    ("networking.k8s.io/v1", "IngressClass"),
];

/// Makes the objects of a fleet: one of each kind that matters here.
pub(crate) struct Sample;

fn labels(fleet: &Value) -> Value {
    json!({FLEET: fleet["metadata"]["name"], "app.kubernetes.io/managed-by": "haproxy-fleet", "app.kubernetes.io/component": "proxy"})
}

fn desired(fleet: &Value, (api_version, kind, plural): (&str, &str, &str), name: &str, ownership: Ownership, rest: Value) -> Desired {
    let namespace = fleet["metadata"]["namespace"].as_str().unwrap().to_owned();
    let namespace = (kind != "IngressClass").then_some(namespace);
    let mut body = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name, "labels": labels(fleet)}});
    match &namespace {
        Some(namespace) => body["metadata"]["namespace"] = json!(namespace),
        None => body["metadata"]["labels"]["haproxy-fleet.dev/fleet-namespace"] = fleet["metadata"]["namespace"].clone(),
    }
    if ownership == Ownership::Owned {
        body["metadata"]["ownerReferences"] = json!([{"apiVersion": "haproxy-fleet.dev/v1alpha1", "kind": "IngressDeployment",
            "name": fleet["metadata"]["name"], "uid": fleet["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true}]);
    }
    body.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    Desired {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
        namespace,
        name: name.to_owned(),
        body,
        ownership,
        only_if: None,
    }
}

impl Build for Sample {
    fn build<'b>(&'b self, fleet: &'b Value, _: &'b Seen) -> BoxFuture<'b, Result<Built, BuildError>> {
        // of a paused fleet nothing has to be written
        let objects = if fleet["spec"]["paused"] == true { Ok(Vec::new()) } else { Self::make(fleet) };
        let built = objects.map(|objects| Built { objects, ..Built::default() });
        Box::pin(std::future::ready(built.map_err(BuildError::Refused)))
    }
}

impl Sample {
    fn make(fleet: &Value) -> Result<Vec<Desired>, Vec<Diagnostic>> {
        let (spec, name) = (&fleet["spec"], fleet["metadata"]["name"].as_str().unwrap());
        let object = ObjectRef::new(Kind::IngressDeployment, fleet["metadata"]["namespace"].as_str().unwrap(), name);
        assert_ne!(spec["replicas"], 666, "a panic on purpose");
        if spec["replicas"] == 13 {
            return Err(vec![Diagnostic::error(&object, "spec.replicas", codes::INVALID_VALUE, "13 replicas are refused", "take 14")]);
        }
        let service = |name: &str, kind: &str| {
            let rest = json!({"spec": {"type": kind, "selector": {FLEET: fleet["metadata"]["name"]}, "ports": [{"name": "http", "port": 80, "protocol": "TCP"}]}});
            desired(fleet, ("v1", "Service", "services"), name, Ownership::Labelled, rest)
        };
        let mut objects = vec![
            desired(fleet, ("v1", "ServiceAccount", "serviceaccounts"), name, Ownership::Owned, json!({})),
            desired(
                fleet,
                ("v1", "ConfigMap", "configmaps"),
                &format!("{name}-operator-ca"),
                Ownership::Owned,
                json!({"data": {"ca.crt": "PEM"}}),
            ),
            desired(
                fleet,
                ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
                name,
                Ownership::Owned,
                json!({"spec": {
                "maxUnavailable": 1, "selector": {"matchLabels": {FLEET: name}}}}),
            ),
            service(name, spec["publishing"]["type"].as_str().unwrap_or("LoadBalancer")),
        ];
        for more in spec["publishing"]["additionalServices"].as_array().into_iter().flatten() {
            objects.push(service(&format!("{name}-{}", more["name"].as_str().unwrap()), "LoadBalancer"));
        }
        let zones: Vec<Option<&str>> = match spec["zones"].as_array() {
            Some(zones) if !zones.is_empty() => zones.iter().map(|zone| zone["name"].as_str()).collect(),
            _ => vec![None],
        };
        for zone in zones {
            let name = zone.map_or(name.to_owned(), |zone| format!("{name}-{zone}"));
            let rest = json!({"spec": {"replicas": spec["replicas"].as_i64().unwrap_or(2), "selector": {"matchLabels": {"app": name}},
                "template": {"metadata": {"labels": labels(fleet)}, "spec": {"terminationGracePeriodSeconds": GRACE,
                    "containers": [{"name": "haproxy", "image": "haproxy", "ports": [{"containerPort": 8080}],
                        "resources": {"requests": {"cpu": "1000m"}}}]}}}});
            objects.push(desired(fleet, ("apps/v1", "Deployment", "deployments"), &name, Ownership::Labelled, rest));
        }
        let class = spec["ingressClassName"].as_str().unwrap();
        let rest = json!({"spec": {"controller": "haproxy-fleet.dev/ingress"}});
        objects.push(desired(fleet, ("networking.k8s.io/v1", "IngressClass", "ingressclasses"), class, Ownership::Labelled, rest));
        if spec["metrics"]["podMonitor"].is_object() {
            let rest = json!({"spec": {"selector": {}, "podMetricsEndpoints": [{"port": "health"}]}});
            objects.push(desired(fleet, ("monitoring.coreos.com/v1", "PodMonitor", "podmonitors"), name, Ownership::Owned, rest));
        }
        Ok(objects)
    }
}

/// Says that traffic is withdrawn when a test wants it.
#[derive(Default)]
pub(crate) struct Withdrawn(AtomicBool);

impl Withdrawn {
    pub(crate) fn set(&self, is_withdrawn: bool) {
        self.0.store(is_withdrawn, Ordering::Relaxed);
    }

    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Withdraw for Withdrawn {
    fn is_withdrawn(&self, _: &FleetKey) -> bool {
        self.get()
    }
}

/// Everything but the operator.
pub(crate) struct Cluster {
    pub(crate) server: ApiServer,
    pub(crate) withdrawn: Arc<Withdrawn>,
    /// What must never happen, and did.
    pub(crate) wrongs: Arc<Mutex<Vec<String>>>,
    task: JoinHandle<()>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// One operator's controller.
pub(crate) struct Operator {
    pub(crate) faults: Faults,
    pub(crate) states: watch::Receiver<Arc<States>>,
    task: JoinHandle<()>,
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Operator {
    /// Runs until it crashes or is dropped.
    pub(crate) fn start(client: Client, faults: Faults, settings: Settings, build: Arc<dyn Build>, withdraw: Arc<dyn Withdraw>) -> Self {
        let (controller, states) = Controller::new(client, settings, build, withdraw);
        let crashed = faults.clone();
        let task = tokio::spawn(async move {
            tokio::select! {
                () = controller.run() => {}
                () = crashed.crashed() => {}
            }
        });
        Self { faults, states, task }
    }

    pub(crate) fn state(&self) -> FleetState {
        self.states.borrow().get(&key()).cloned().unwrap_or_default()
    }
}

pub(crate) fn key() -> FleetKey {
    FleetKey { namespace: "infra".to_owned(), name: "edge".to_owned() }
}

pub(crate) fn fleet(spec: Value) -> Value {
    json!({"apiVersion": "haproxy-fleet.dev/v1alpha1", "kind": "IngressDeployment", "metadata": {"namespace": "infra", "name": "edge"}, "spec": spec})
}

/// An API server that knows fleets, and a namespace for them.
pub(crate) fn api_server() -> ApiServer {
    static FLEETS: LazyLock<Value> = LazyLock::new(|| {
        let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/crds/haproxy-fleet.dev_ingressdeployments.yaml")).unwrap();
        serde_saphyr::from_str(&text).unwrap()
    });
    let server = ApiServer::new();
    assert!(server.define(&FLEETS));
    server.put(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "infra"}})).unwrap();
    server
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let server = api_server();
        let (withdrawn, wrongs) = (Arc::new(Withdrawn::default()), Arc::default());
        let world = World {
            server: server.clone(),
            withdrawn: withdrawn.clone(),
            wrongs: Arc::clone(&wrongs),
            version: 0,
            ends: BTreeMap::new(),
            before: BTreeMap::new(),
            reached: None,
        };
        Self { server, withdrawn, wrongs, task: tokio::spawn(world.run()) }
    }

    pub(crate) fn put(&self, spec: Value) {
        self.server.put(&fleet(spec)).unwrap();
    }

    pub(crate) fn delete(&self, propagation: &str) {
        self.server.delete("haproxy-fleet.dev/v1alpha1", "IngressDeployment", "infra", "edge", propagation).unwrap();
    }

    pub(crate) fn has_fleet(&self) -> bool {
        self.server.get("haproxy-fleet.dev/v1alpha1", "IngressDeployment", "infra", "edge").is_some()
    }

    pub(crate) fn operator(&self, plan: Plan) -> Operator {
        let faults = Faults::new(plan);
        let client = Client::new(faults.layer(self.server.clone()), "default");
        self.operator_with(client, faults)
    }

    pub(crate) fn operator_with(&self, client: Client, faults: Faults) -> Operator {
        Operator::start(client, faults, Settings::default(), Arc::new(Sample), self.withdrawn.clone())
    }

    /// The objects of the fleet, as KIND/NAME.
    pub(crate) fn objects(&self) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for (api_version, kind) in KINDS {
            for object in self.server.all(api_version, kind) {
                if object["metadata"]["labels"][FLEET] == "edge" {
                    found.insert(format!("{kind}/{}", object["metadata"]["name"].as_str().unwrap()));
                }
            }
        }
        found
    }

    /// Whether everything is as the spec asks, and nothing else is there.
    pub(crate) fn is_as_asked(&self) -> bool {
        let Some(fleet) = self.server.get("haproxy-fleet.dev/v1alpha1", "IngressDeployment", "infra", "edge") else { return false };
        let wanted = Sample::make(&fleet).unwrap();
        let names: BTreeSet<String> = wanted.iter().map(|object| format!("{}/{}", object.kind, object.name)).collect();
        let is_there = |object: &Desired| {
            let live = self.server.get(&object.api_version, &object.kind, object.namespace.as_deref().unwrap_or_default(), &object.name);
            live.is_some_and(|live| says(&live, &object.body))
        };
        names == self.objects() && wanted.iter().all(is_there)
    }

    /// Lets time pass until `is_so`, in steps of half a second, up to a quarter of an hour of the virtual clock.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        for _ in 0..1800 {
            if is_so() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        panic!("{what}: not within a quarter of an hour; there is {:?}; wrong was {:?}", self.objects(), self.wrongs.lock().unwrap());
    }

    pub(crate) async fn settles(&self, what: &str) {
        self.until(what, || self.is_as_asked()).await;
    }

    pub(crate) async fn is_gone(&self, what: &str) {
        self.until(what, || !self.has_fleet() && self.objects().is_empty()).await;
    }

    pub(crate) fn assert_nothing_went_wrong(&self, what: &str) {
        let wrongs = self.wrongs.lock().unwrap();
        assert!(wrongs.is_empty(), "{what}: {wrongs:?}");
    }

    /// Writes that arrived, whatever came of them.
    pub(crate) fn writes(&self) -> usize {
        self.server.writes().len()
    }
}

/// Whether `live` says all that `wanted` says; lists item by item.
fn says(live: &Value, wanted: &Value) -> bool {
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            wanted.iter().all(|(name, value)| live.get(name).is_some_and(|live| says(live, value)))
        }
        (Value::Array(live), Value::Array(wanted)) => wanted.iter().all(|item| live.iter().any(|live| says(live, item))),
        _ => live == wanted,
    }
}

/// What plays the rest of the cluster.
struct World {
    server: ApiServer,
    withdrawn: Arc<Withdrawn>,
    wrongs: Arc<Mutex<Vec<String>>>,
    /// Up to here everything was looked at.
    version: u64,
    /// When pods that are deleted end.
    ends: BTreeMap<String, Instant>,
    /// The load balancers with an address, a moment ago.
    before: BTreeMap<String, Value>,
    /// Since when the fleet is deleted.
    reached: Option<Instant>,
}

impl World {
    async fn run(mut self) {
        loop {
            tokio::time::sleep(Duration::from_millis(200)).await;
            // what nobody changed needs no second look, unless time is to tell
            let version = self.server.version();
            if version == self.version && self.ends.is_empty() {
                continue;
            }
            self.version = version;
            self.watch_out();
            self.server.collect_garbage();
            self.deployments();
            self.kubelets();
            self.load_balancers();
        }
    }

    fn wrong(&self, what: String) {
        self.wrongs.lock().unwrap().push(what);
    }

    /// Notes what must never happen.
    fn watch_out(&mut self) {
        let fleet = self.server.get("haproxy-fleet.dev/v1alpha1", "IngressDeployment", "infra", "edge");
        let is_deleted = fleet.as_ref().is_none_or(|fleet| !fleet["metadata"]["deletionTimestamp"].is_null());
        self.reached = if is_deleted { self.reached.or_else(|| Some(Instant::now())) } else { None };
        let has_pods = self.server.all("v1", "Pod").iter().any(|pod| pod["metadata"]["labels"][FLEET] == "edge");
        let mut now = BTreeMap::new();
        for service in self.server.all("v1", "Service") {
            if !service["status"]["loadBalancer"]["ingress"].is_null() {
                now.insert(service["metadata"]["name"].as_str().unwrap().to_owned(), service);
            }
        }
        for (name, service) in &self.before {
            let is_same = now.get(name).is_some_and(|other| {
                other["metadata"]["uid"] == service["metadata"]["uid"]
                    && other["metadata"]["deletionTimestamp"] == service["metadata"]["deletionTimestamp"]
            });
            let may_go = service["metadata"]["annotations"]["haproxy-fleet.dev/release-address"] == "true";
            if !is_same && !may_go && (!is_deleted || has_pods) {
                self.wrong(format!(
                    "service {name} lost its address while {}",
                    if has_pods { "pods serve" } else { "the fleet is wanted" }
                ));
            }
        }
        self.before = now.into_iter().filter(|(_, service)| service["metadata"]["deletionTimestamp"].is_null()).collect();
        // the wait for withdrawal is bounded by a minute
        let must_serve = !self.withdrawn.get() && self.reached.is_none_or(|since| since.elapsed() < Duration::from_secs(60));
        let serves = self.server.all("apps/v1", "Deployment").iter().any(|object| object["metadata"]["deletionTimestamp"].is_null());
        if is_deleted && must_serve && has_pods && !serves {
            self.wrong("the pods of a fleet that clients still come to are taken away".to_owned());
        }
        if fleet.is_none() && has_pods {
            self.wrong("the fleet is gone before its pods".to_owned());
        }
    }

    fn deployments(&self) {
        for deployment in self.server.all("apps/v1", "Deployment") {
            let (name, replicas) = (deployment["metadata"]["name"].as_str().unwrap(), deployment["spec"]["replicas"].as_i64().unwrap_or(1));
            for index in 0..replicas {
                let pod = format!("{name}-{index}");
                if self.server.get("v1", "Pod", "infra", &pod).is_some() {
                    continue;
                }
                let mut metadata = deployment["spec"]["template"]["metadata"].clone();
                metadata["name"] = json!(pod);
                metadata["namespace"] = json!("infra");
                metadata["ownerReferences"] =
                    json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": name, "uid": deployment["metadata"]["uid"]}]);
                let mut spec = deployment["spec"]["template"]["spec"].clone();
                spec["nodeName"] = json!("node");
                self.server.put(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})).unwrap();
            }
            let status = json!({"observedGeneration": deployment["metadata"]["generation"], "replicas": replicas, "updatedReplicas": replicas,
                "readyReplicas": replicas, "availableReplicas": replicas});
            if deployment["status"] != status {
                self.server.put(&json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "infra", "name": name}, "status": status})).unwrap();
            }
        }
    }

    fn kubelets(&mut self) {
        for pod in self.server.all("v1", "Pod") {
            let name = pod["metadata"]["name"].as_str().unwrap();
            if pod["metadata"]["deletionTimestamp"].is_null() {
                continue;
            }
            let grace = pod["metadata"]["deletionGracePeriodSeconds"].as_u64().unwrap();
            let end = *self.ends.entry(pod["metadata"]["uid"].to_string()).or_insert_with(|| Instant::now() + Duration::from_secs(grace));
            // a pod with this annotation hangs
            if Instant::now() >= end && pod["metadata"]["annotations"]["hangs"].is_null() {
                self.ends.remove(&pod["metadata"]["uid"].to_string());
                self.server.remove("v1", "Pod", "infra", name);
            }
        }
    }

    fn load_balancers(&self) {
        for service in self.server.all("v1", "Service") {
            let metadata = json!({"namespace": "infra", "name": service["metadata"]["name"]});
            let mut change = json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata});
            if !service["metadata"]["deletionTimestamp"].is_null() {
                if service["metadata"]["annotations"]["hangs"].is_null() {
                    change["metadata"]["finalizers"] = Value::Null;
                    self.server.put(&change).unwrap();
                }
            } else if service["spec"]["type"] == "LoadBalancer" && service["status"]["loadBalancer"]["ingress"].is_null() {
                change["metadata"]["finalizers"] = json!(["service.kubernetes.io/load-balancer-cleanup"]);
                change["status"] = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}});
                self.server.put(&change).unwrap();
            }
        }
    }
}
