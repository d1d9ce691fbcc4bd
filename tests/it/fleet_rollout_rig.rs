//! A cluster around the controller of fleets as it runs in the operator: the real planner and the real objects, against
//! an API server, what plays Kubernetes, and somebody who looks on.

#![allow(clippy::needless_pass_by_value)] // calls read better without a reference to what they make

use crate::fleet_controller_rig::{Operator, Withdrawn, api_server, fleet};
use crate::fleet_objects::context;
use crate::fleet_rollout_onlooker::Onlooker;
use crate::fleet_rollout_world::{TICK, VERSION, View, World, now, ready_since, stays};
use fleet_api_server::ApiServer;
use fleet_api_server::faults::{Faults, Plan};
use futures::future::BoxFuture;
use haproxy_fleet::api::crd::IngressDeploymentResource;
use haproxy_fleet::api::{ANNOTATION_STABLE, IngressDeployment, Meta};
use haproxy_fleet::fleet::build::{ANNOTATION_TEMPLATE, ANNOTATION_TURN, Context, Fleet, InUse, Observed, ObservedService};
use haproxy_fleet::fleet::controller::{Build, BuildError, Built, Seen, Settings};
use haproxy_fleet::fleet::plan::{Agents, plan};
use haproxy_fleet::fleet::rollout::kubernetes::Said;
use kube::Client;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower::Layer;

/// Agents find an operator that begins to lead within this time.
const TO_CONNECT: Duration = Duration::from_secs(2);
/// Kubernetes is faster than operators.
const QUIET: Duration = Duration::from_millis(1500);

/// What the operator decides by. Agents have confirmed whatever is ready.
struct Planner {
    context: Context,
    start: Instant,
    leads_since: Instant,
}

impl Build for Planner {
    fn build<'b>(&'b self, fleet: &'b Value, seen: &'b Seen) -> BoxFuture<'b, Result<Built, BuildError>> {
        let full: IngressDeploymentResource = serde_json::from_value(fleet.clone()).unwrap();
        let uid = full.metadata.uid.clone().unwrap();
        let deployment = IngressDeployment { meta: Meta::from_full(full.metadata, "infra".into(), "edge".into()), spec: full.spec };
        let observed = Observed {
            services: seen.services.iter().map(|(name, service)| (name.clone(), ObservedService::of(service))).collect(),
            deployments: seen.deployments.iter().map(|(name, deployment)| (name.clone(), InUse::of(deployment))).collect(),
            bundle_bytes: 0,
        };
        let fleet = Fleet { deployment: &deployment, uid: &uid, context: &self.context, observed: &observed, change: None };
        // streams differ from pod to pod, and stay
        let said = |pod: &str| Said { confirmed: true, connections: u64::from(pod.bytes().fold(0_u8, u8::wrapping_add) % 5) };
        let agents = Agents { said: &said, are_known: self.leads_since.elapsed() > TO_CONNECT };
        let built = plan(fleet, seen, agents, now(self.start)).map_err(BuildError::Refused);
        Box::pin(std::future::ready(built))
    }
}

/// Everything but the operator.
pub(crate) struct Cluster {
    pub(crate) server: ApiServer,
    pub(crate) onlooker: Arc<Onlooker>,
    start: Instant,
    /// Pods that a quota lets there be.
    pub(crate) quota: Arc<AtomicUsize>,
    view: Mutex<Arc<View>>,
    task: JoinHandle<()>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A fleet whose pods start, count and end within seconds, with `more` of its spec.
pub(crate) fn spec(more: &Value) -> Value {
    let mut spec = json!({
        "ingressClassName": "edge", "podAnnotations": {VERSION: "1"}, "publishing": {"type": "Private"},
        "drain": {"deregistrationDelay": "5s", "timeout": "5s"},
        "rollout": {"minReadySeconds": 1, "progressDeadlineSeconds": 20},
    });
    json_patch::merge(&mut spec, more);
    spec
}

/// A change of the spec that leads to another template.
pub(crate) fn version(version: &str) -> Value {
    json!({"podAnnotations": {VERSION: version}})
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let (server, start) = (api_server(), Instant::now());
        let onlooker = Arc::new(Onlooker::new(start));
        let quota = Arc::new(AtomicUsize::new(usize::MAX));
        let world = World::new(server.clone(), start, Arc::clone(&onlooker), Arc::clone(&quota));
        Self { server, onlooker, start, quota, view: Mutex::default(), task: tokio::spawn(world.run()) }
    }

    /// A cluster with a fleet whose pods all serve, and its operator.
    pub(crate) async fn with(more: Value) -> (Self, Operator) {
        let cluster = Self::new();
        cluster.put(spec(&more));
        let operator = cluster.operator(Plan::default());
        cluster.serves("1", "created").await;
        (cluster, operator)
    }

    pub(crate) fn put(&self, spec: Value) {
        self.server.put(&fleet(spec)).unwrap();
    }

    /// Writes an annotation of the fleet, or takes it away.
    pub(crate) fn annotate(&self, name: &str, value: Option<&str>) {
        let mut fleet = fleet(json!({}));
        fleet["metadata"]["annotations"] = json!({name: value});
        self.server.put(&fleet).unwrap();
    }

    pub(crate) fn operator(&self, plan: Plan) -> Operator {
        self.operator_with(plan, context())
    }

    pub(crate) fn operator_with(&self, plan: Plan, context: Context) -> Operator {
        let faults = Faults::new(plan);
        let client = Client::new(faults.layer(self.server.clone()), "default");
        let planner = Planner { context, start: self.start, leads_since: Instant::now() };
        let settings = Settings { quiet: QUIET, ..Settings::default() };
        Operator::start(client, faults, settings, Arc::new(planner), Arc::new(Withdrawn::default()))
    }

    pub(crate) fn fleet(&self) -> Value {
        self.server.get("haproxy-fleet.dev/v1alpha1", "IngressDeployment", "infra", "edge").unwrap()
    }

    /// The template that the whole fleet ran last, as the operator wrote it.
    pub(crate) fn stable(&self) -> String {
        self.view().fleet["metadata"]["annotations"][ANNOTATION_STABLE].as_str().unwrap_or_default().to_owned()
    }

    /// Everything that is there.
    pub(crate) fn view(&self) -> Arc<View> {
        let mut view = self.view.lock().unwrap();
        if view.version != self.server.version() {
            *view = Arc::new(View::of(&self.server));
        }
        Arc::clone(&view)
    }

    pub(crate) fn deployment(&self, name: &str) -> Value {
        self.server.get("apps/v1", "Deployment", "infra", name).unwrap_or_default()
    }

    /// What somebody else writes to a Deployment.
    pub(crate) fn edit(&self, name: &str, mut change: Value) {
        json_patch::merge(
            &mut change,
            &json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "infra", "name": name}}),
        );
        self.server.put(&change).unwrap();
    }

    /// Pods that are not on their way out.
    pub(crate) fn pods(&self) -> Vec<Value> {
        self.view().pods.iter().filter(|pod| stays(pod)).cloned().collect()
    }

    /// How many pods of a Deployment there are of each version that tests tell templates apart by.
    pub(crate) fn versions(&self, deployment: &str) -> BTreeMap<String, usize> {
        let mut versions = BTreeMap::new();
        let of = |pod: &Value| pod["metadata"]["ownerReferences"][0]["name"] == *deployment;
        for pod in self.view().pods.iter().filter(|pod| stays(pod) && of(pod)) {
            let version = pod["metadata"]["annotations"][VERSION].as_str().unwrap_or("none").to_owned();
            *versions.entry(version).or_default() += 1;
        }
        versions
    }

    /// Whether all pods of a Deployment are of `version`, one at least.
    pub(crate) fn is_all(&self, deployment: &str, version: &str) -> bool {
        self.versions(deployment).into_keys().eq([version])
    }

    pub(crate) fn ready(&self) -> usize {
        self.view().pods.iter().filter(|pod| stays(pod) && ready_since(pod).is_some()).count()
    }

    /// Whether all pods are of `version` and serve, and nothing is left to be done.
    pub(crate) fn is_at(&self, version: &str) -> bool {
        let (view, stable) = (self.view(), self.stable());
        let is_as_wanted = |pod: &Value| stays(pod) && pod["metadata"]["annotations"][VERSION] == *version && ready_since(pod).is_some();
        let is_at_rest = |deployment: &Value| {
            let (annotations, status) = (&deployment["metadata"]["annotations"], &deployment["status"]);
            annotations[ANNOTATION_TEMPLATE] == *stable
                && annotations[ANNOTATION_TURN].is_null()
                && deployment["spec"]["paused"] != true
                && status["observedGeneration"] == deployment["metadata"]["generation"]
                && ["replicas", "updatedReplicas", "availableReplicas"].iter().all(|field| status[*field] == replicas(deployment))
        };
        let total: i64 = view.deployments.iter().map(replicas).sum();
        total > 0
            && i64::try_from(view.pods.len()) == Ok(total)
            && view.pods.iter().all(is_as_wanted)
            && view.deployments.iter().all(is_at_rest)
    }

    pub(crate) async fn serves(&self, version: &str, what: &str) {
        self.until(what, || self.is_at(version)).await;
    }

    /// Lets time pass until `is_so`, up to a quarter of an hour of the virtual clock.
    pub(crate) async fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let end = Instant::now() + Duration::from_secs(900);
        while Instant::now() < end {
            if is_so() {
                return;
            }
            tokio::time::sleep(TICK).await;
        }
        let deployments: Vec<String> = self.view().deployments.iter().map(brief).collect();
        panic!("{what}: not within a quarter of an hour; there is {deployments:#?}; wrong was {:#?}", self.onlooker.wrongs());
    }

    /// Lets time pass in which nothing may be written.
    pub(crate) async fn rests(&self, time: Duration, what: &str) {
        let writes = self.writes();
        tokio::time::sleep(time).await;
        assert_eq!(self.writes()[writes.len()..], [] as [String; 0], "{what}");
    }

    pub(crate) fn assert_nothing_went_wrong(&self, what: &str) {
        let wrongs = self.onlooker.wrongs();
        assert!(wrongs.is_empty(), "{what}: {wrongs:#?}");
    }

    /// Writes of operators that arrived, as KIND/NAME.
    pub(crate) fn writes(&self) -> Vec<String> {
        self.server.writes().iter().map(|write| format!("{} {}/{}", write.call.verb, write.call.plural, write.call.name)).collect()
    }
}

/// How many pods a Deployment asks for.
pub(crate) fn replicas(deployment: &Value) -> i64 {
    deployment["spec"]["replicas"].as_i64().unwrap_or(1)
}

fn brief(deployment: &Value) -> String {
    let (metadata, spec, status) = (&deployment["metadata"], &deployment["spec"], &deployment["status"]);
    let mut annotations = metadata["annotations"].clone();
    annotations.as_object_mut().into_iter().for_each(|map| map.retain(|name, _| !name.contains("applied") && !name.contains("previous")));
    format!("{} {annotations} replicas {} paused {} status {status}", metadata["name"], spec["replicas"], spec["paused"])
}
