//! From watches to statuses against an API server in the process.

#![allow(clippy::unwrap_used)]

use super::report::{Sources, tell};
use super::revisions;
use super::run::{options, pass_on};
use super::stage::{Input, Stage};
use crate::agent::Ending;
use crate::delivery::{AgentReport, Authority, Feeds};
use crate::fleet::apply::FleetKey;
use crate::fleet::controller::{FleetState, States};
use crate::ingest::cluster::{self, Cluster};
use crate::model::FleetId;
use crate::pipeline::Pipeline;
use crate::status::ingress::Ingresses;
use crate::status::json::Status;
use crate::status::writer::{INTERVAL, Writer};
use crate::telemetry::{Metrics, OperatorMetrics};
use fleet_api_server::faults::{Action, Faults, Matcher, Plan};
use fleet_api_server::{ApiServer, Verb};
use kube::Client;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tower::Layer;

const GROUP: &str = "haproxy-fleet.dev/v1alpha1";
const THEIRS: &str = "ingress.v3.haproxy.org/v3";

/// A cluster, and of an operator what says how `Backend`s are.
struct Rig {
    server: ApiServer,
    feeds: Feeds,
    states: watch::Sender<Arc<States>>,
    told: watch::Receiver<Arc<Status>>,
    inputs: mpsc::Sender<Input>,
    _parts: JoinSet<()>,
}

fn put(server: &ApiServer, (api_version, kind): (&str, &str), name: &str, rest: &Value) {
    let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"namespace": "shop", "name": name}});
    for (field, value) in rest.as_object().unwrap() {
        if field == "annotations" {
            object["metadata"][field] = value.clone();
        } else {
            object[field] = value.clone();
        }
    }
    server.put(&object).unwrap();
}

/// A server with a fleet that serves one Service, which names the Backend `cart`.
fn cluster() -> ApiServer {
    let server = ApiServer::new();
    for definition in crate::api::crd::crds() {
        assert!(server.define(&json!(definition)));
    }
    assert!(server.define(&json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "backends.ingress.v3.haproxy.org"},
        "spec": {"group": "ingress.v3.haproxy.org", "names": {"kind": "Backend", "plural": "backends"}, "scope": "Namespaced",
            "versions": [{"name": "v3", "served": true, "storage": true, "subresources": {"status": {}}}]},
    })));
    server.put(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})).unwrap();
    put(&server, (GROUP, "IngressDeployment"), "edge", &json!({"spec": {"ingressClassName": "edge"}}));
    put(&server, (GROUP, "Backend"), "cart", &json!({"spec": {"retries": 2, "server_timeout": 5000}}));
    put(&server, (GROUP, "Backend"), "idle", &json!({"spec": {"retries": 2}}));
    put(&server, (THEIRS, "Backend"), "foreign", &json!({"spec": {"retries": 2}}));
    let names = json!({"haproxy-fleet.dev/backend": "cart", "haproxy-fleet.dev/timeout-server": "7s"});
    put(&server, ("v1", "Service"), "cart", &json!({"annotations": names, "spec": {"ports": [{"port": 80}]}}));
    let to = |service: &str| {
        let backend = json!({"service": {"name": service, "port": {"number": 80}}});
        json!({"http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}})
    };
    let route = json!({"spec": {"ingressClassName": "edge", "rules": [to("cart")]}});
    put(&server, ("networking.k8s.io/v1", "Ingress"), "web", &route);
    server
}

impl Rig {
    fn start(server: ApiServer) -> Self {
        let mut metrics = Metrics::default();
        let times = OperatorMetrics::register(&mut metrics);
        let (feeds, ingresses) = (Feeds::new(), Arc::new(Mutex::new(Ingresses::default())));
        let (states, observed) = watch::channel(Arc::new(States::new()));
        let stage = Stage::new(Pipeline::new(options()), feeds.clone(), observed.clone(), ingresses.clone(), Arc::new(metrics), times);
        let of_revisions = revisions::Sources { translated: stage.translated(), states: observed.clone(), leads: Box::new(|| true) };
        let sources = Sources {
            translated: stage.translated(),
            agents: feeds.agents(),
            ended: feeds.ended(),
            states: observed,
            leads: Box::new(|| true),
            pod: "operator-0".to_owned(),
        };
        let (inputs, received) = mpsc::channel(4);
        let client = server.client();
        let mut parts = JoinSet::new();
        parts.spawn(pass_on(Cluster::watch(client.clone(), cluster::Settings::default()), inputs.clone()));
        parts.spawn(revisions::keep(client.clone(), of_revisions, inputs.clone()));
        parts.spawn(stage.run(received));
        let book = ingresses.clone();
        let writer = move || Writer::new(client.clone(), "operator-0".to_owned(), book.clone());
        let (document, told) = watch::channel(Arc::new(Status::default()));
        parts.spawn(tell(sources, writer, ingresses, document));
        Self { server, feeds, states, told, inputs, _parts: parts }
    }

    /// It leads, and may number what it publishes.
    async fn lead(&self) {
        self.inputs.send(Input::Authority(Authority { term: 1, leads: true })).await.unwrap();
        self.inputs.send(Input::Numbers(1..=1000)).await.unwrap();
    }

    /// Sees the fleet as the cluster has it, and returns it.
    fn fleet(&self) -> Value {
        let fleet = self.server.get(GROUP, "IngressDeployment", "shop", "edge").unwrap();
        let key = FleetKey { namespace: "shop".to_owned(), name: "edge".to_owned() };
        let seen = FleetState { generation: 1, fleet: Some(Arc::new(fleet.clone())), ..FleetState::default() };
        let states = Arc::new(States::from([(key, seen)]));
        self.states.send_if_modified(|present| std::mem::replace(present, states.clone()) != states);
        fleet
    }

    /// The numbers and identities of the revisions that are kept.
    fn revisions(&self) -> BTreeMap<u64, String> {
        let all = self.server.all("v1", "Secret");
        let of_fleet = all.iter().filter(|secret| secret["type"] == "haproxy-fleet.dev/revision");
        let number = |secret: &Value| secret["metadata"]["labels"]["haproxy-fleet.dev/revision"].as_str().unwrap().parse().unwrap();
        let digest = |secret: &Value| secret["metadata"]["annotations"]["haproxy-fleet.dev/revision-digest"].as_str().unwrap().to_owned();
        of_fleet.map(|secret| (number(secret), digest(secret))).collect()
    }

    /// Writes of revisions.
    fn kept(&self) -> usize {
        self.server.writes().iter().filter(|answered| answered.call.plural == "secrets").count()
    }

    /// Asks for a revision, or for none.
    async fn roll_back(&self, to: Value) {
        let api: kube::Api<kube::core::DynamicObject> = kube::Api::namespaced_with(
            self.server.client(),
            "shop",
            &kube::core::ApiResource::from_gvk_with_plural(
                &kube::core::GroupVersionKind::gvk("haproxy-fleet.dev", "v1alpha1", "IngressDeployment"),
                "ingressdeployments",
            ),
        );
        let patch = json!({"metadata": {"annotations": {"haproxy-fleet.dev/rollback": to}}});
        api.patch("edge", &kube::api::PatchParams::default(), &kube::api::Patch::Merge(&patch)).await.unwrap();
    }

    /// What the document says of the fleet by this code.
    fn says(&self, code: &str) -> Option<String> {
        let told = self.told.borrow();
        let found = told.diagnostics.iter().find(|found| found.code == code && found.object.kind == "IngressDeployment");
        found.map(|found| format!("{}; {}", found.message, found.help))
    }

    fn status(&self, name: &str) -> Value {
        self.server.get(GROUP, "Backend", "shop", name).map(|object| object["status"].clone()).unwrap_or_default()
    }

    /// `STATUS REASON` of a condition.
    fn condition(&self, name: &str, kind: &str) -> String {
        let status = self.status(name);
        let condition = status["conditions"].as_array().into_iter().flatten().find(|condition| condition["type"] == kind);
        let text = |field: &str| condition.and_then(|condition| condition[field].as_str()).unwrap_or("-").to_owned();
        format!("{} {}", text("status"), text("reason"))
    }

    /// Writes of statuses of Backends, of any group.
    fn writes(&self) -> usize {
        self.server.writes().iter().filter(|answered| answered.call.plural == "backends").count()
    }

    /// Lets virtual time pass until `is_so`.
    async fn until(&self, what: &str, is_so: impl Fn(&Self) -> bool) {
        for _ in 0..1200 {
            if is_so(self) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{what}: not within two minutes; there is {:#} and {:#}", self.status("cart"), self.status("idle"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_backend_says_where_it_applies_and_one_that_nobody_uses_says_that_and_is_ready() {
    let rig = Rig::start(cluster());
    rig.until("statuses", |rig| rig.status("cart")["uses"] == 1 && rig.status("idle")["uses"] == 0).await;
    let used_by = json!([{"kind": "Service", "namespace": "shop", "name": "cart", "overridden": ["server_timeout"]}]);
    assert_eq!(rig.status("cart")["usedBy"], used_by);
    assert_eq!(rig.status("cart")["observedGeneration"], 1);
    assert_eq!((rig.condition("cart", "Ready"), rig.condition("cart", "Accepted")), ("True AsAsked".into(), "True AsAsked".into()));
    assert_eq!(rig.condition("cart", "Reconciling"), "- -", "what the schema puts there by default is gone");
    assert_eq!(rig.condition("idle", "Ready"), "True Unused");
    let foreign = rig.server.get(THEIRS, "Backend", "shop", "foreign").unwrap();
    assert!(foreign["status"].is_null(), "it is not ours to write: {foreign}");
}

#[tokio::test(start_paused = true)]
async fn a_backend_is_written_once_for_a_change_and_seldom_for_many() {
    let rig = Rig::start(cluster());
    rig.until("statuses", |rig| rig.condition("cart", "Ready") == "True AsAsked" && rig.condition("idle", "Ready") == "True Unused").await;
    assert_eq!(rig.writes(), 2);
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(rig.writes(), 2, "nothing changed");
    let since = Instant::now();
    for retries in 0..20 {
        put(&rig.server, (GROUP, "Backend"), "cart", &json!({"spec": {"retries": 1000 + retries}}));
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    rig.until("the last change", |rig| rig.status("cart")["observedGeneration"] == 21).await;
    let most = 2 + usize::try_from(since.elapsed().as_secs() / INTERVAL.as_secs()).unwrap();
    assert!(rig.writes() - 2 <= most, "{} writes in {:?} of virtual time", rig.writes() - 2, since.elapsed());
    assert_eq!(
        (rig.condition("cart", "Ready"), rig.condition("cart", "Stalled")),
        ("False InvalidValue".into(), "True InvalidValue".into())
    );
    let ready = rig.status("cart");
    let message = ready["conditions"].as_array().unwrap().iter().find(|condition| condition["type"] == "Ready").unwrap()["message"].clone();
    assert!(message.as_str().unwrap().starts_with("spec.retries: 1019 is not a number from 0 to 100; "), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_is_made_anew_under_its_name_is_told_anew() {
    let rig = Rig::start(cluster());
    rig.until("statuses", |rig| rig.condition("idle", "Ready") == "True Unused").await;
    let uid = rig.server.get(GROUP, "Backend", "shop", "idle").unwrap()["metadata"]["uid"].clone();
    rig.server.delete(GROUP, "Backend", "shop", "idle", "Background").unwrap();
    put(&rig.server, (GROUP, "Backend"), "idle", &json!({"spec": {"retries": 2}}));
    assert_ne!(rig.server.get(GROUP, "Backend", "shop", "idle").unwrap()["metadata"]["uid"], uid);
    assert_ne!(rig.condition("idle", "Ready"), "True Unused", "the new one knows nothing of it");
    rig.until("the new one", |rig| rig.condition("idle", "Ready") == "True Unused").await;
}

#[tokio::test(start_paused = true)]
async fn the_document_tells_of_a_fleet_its_class_state_pods_and_worst_findings() {
    let rig = Rig::start(cluster());
    put(
        &rig.server,
        ("networking.k8s.io/v1", "Ingress"),
        "lost",
        &json!({"spec": {"ingressClassName": "edge", "defaultBackend": {"service": {"name": "nowhere", "port": {"number": 80}}}}}),
    );
    let pod = json!({
        "metadata": {"namespace": "shop", "name": "edge-0", "labels": {"topology.kubernetes.io/zone": "zone-a"}},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    });
    let state = FleetState {
        generation: 1,
        fleet: rig.server.get(GROUP, "IngressDeployment", "shop", "edge").map(Arc::new),
        pods: BTreeMap::from([("edge-0".to_owned(), Arc::new(pod))]),
        ..FleetState::default()
    };
    let key = FleetKey { namespace: "shop".to_owned(), name: "edge".to_owned() };
    rig.states.send_replace(Arc::new(States::from([(key, state)])));
    let told = || rig.told.borrow().clone();
    rig.until("the fleet", |_| told().fleets.first().is_some_and(|fleet| fleet.ready.is_some() && !fleet.worst.is_empty())).await;
    let document = told();
    let fleet = &document.fleets[0];
    assert!(document.operator.as_ref().is_some_and(|operator| operator.leads && operator.whole && operator.pod == "operator-0"));
    assert_eq!((fleet.class.as_str(), fleet.ready, document.ready), ("edge", Some(false), false));
    assert_eq!(fleet.state.as_deref(), Some("AddressPending"), "{:?}", fleet.message);
    let replica = &fleet.replicas[0];
    assert_eq!((replica.name.as_str(), replica.zone.as_deref()), ("edge-0", Some("zone-a")));
    assert_eq!((replica.ready, replica.connected, replica.confirmed), (true, false, false), "its agent says nothing");
    assert_eq!((fleet.worst[0].code.as_str(), fleet.worst[0].object.name.as_str()), ("NotFound", "lost"));
    assert!(document.diagnostics.contains(&fleet.worst[0]));
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_ended_with_connections_open_is_told_at_its_fleet_once() {
    let rig = Rig::start(cluster());
    let state = FleetState {
        generation: 1,
        fleet: rig.server.get(GROUP, "IngressDeployment", "shop", "edge").map(Arc::new),
        ..FleetState::default()
    };
    let key = FleetKey { namespace: "shop".to_owned(), name: "edge".to_owned() };
    rig.states.send_replace(Arc::new(States::from([(key, state)])));
    rig.until("the fleet", |rig| rig.told.borrow().fleets.first().is_some_and(|fleet| fleet.ready.is_some())).await;
    let fleet = FleetId { namespace: "shop".into(), name: "edge".into() };
    for (pod, cut) in [("edge-0", 0), ("edge-1", 3)] {
        let report = AgentReport {
            connected_since: SystemTime::UNIX_EPOCH,
            agent_version: String::new(),
            haproxy_version: String::new(),
            state: None,
        };
        rig.feeds.connected(&fleet, pod, report).ended(Ending { finished: 5, closed: 7, unseen: 1, cut, ..Ending::default() });
    }
    let events = |rig: &Rig| {
        let mut events = rig.server.all("events.k8s.io/v1", "Event");
        events.retain(|event| event["reason"] == "ConnectionsCut");
        events
    };
    rig.until("the Event", |rig| !events(rig).is_empty()).await;
    // whatever else there is to tell
    tokio::time::sleep(Duration::from_secs(60)).await;
    let [event] = events(&rig).try_into().unwrap();
    assert_eq!((&event["type"], &event["regarding"]["name"]), (&json!("Warning"), &json!("edge")));
    let note = "pod edge-1 ended with 3 connections cut at the end of drain.timeout (60s); give longer connections more time by \
                spec.drain.timeout";
    assert_eq!((&event["note"], &event["series"]), (&json!(note), &Value::Null));
}

/// Another route of the fleet.
fn route(server: &ApiServer, host: &str) {
    let backend = json!({"service": {"name": "cart", "port": {"number": 80}}});
    let rule = json!({"host": host, "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": backend}]}});
    put(server, ("networking.k8s.io/v1", "Ingress"), "more", &json!({"spec": {"ingressClassName": "edge", "rules": [rule]}}));
}

#[tokio::test(start_paused = true)]
async fn revisions_are_kept_under_the_number_of_the_status_survive_a_restart_and_can_be_gone_back_to() {
    let rig = Rig::start(cluster());
    rig.lead().await;
    let is_kept = |number: u64| {
        move |rig: &Rig| {
            let fleet = rig.fleet();
            fleet["status"]["revision"] == number
                && rig.revisions().get(&number).map(String::as_str) == fleet["status"]["revisionDigest"].as_str()
        }
    };
    rig.until("the first one", is_kept(1)).await;
    route(&rig.server, "new.example");
    rig.until("the second one", is_kept(2)).await;
    let (kept, all) = (rig.kept(), rig.revisions());
    assert_eq!((kept, all.len()), (2, 2));
    let owner = rig.server.get("v1", "Secret", "shop", "edge-revision-2").unwrap()["metadata"]["ownerReferences"][0].clone();
    assert_eq!((owner["kind"].as_str(), &owner["uid"]), (Some("IngressDeployment"), &rig.fleet()["metadata"]["uid"]));

    let Rig { server, _parts: mut parts, .. } = rig;
    parts.shutdown().await;
    let rig = Rig::start(server);
    rig.lead().await;
    rig.until("the fleet", |rig| rig.told.borrow().fleets.first().is_some_and(|fleet| fleet.revision == 2 || rig.fleet().is_null())).await;
    tokio::time::sleep(Duration::from_secs(90)).await;
    assert_eq!((rig.kept(), rig.revisions()), (kept, all.clone()), "nothing is written that is there");

    rig.roll_back(json!("1")).await;
    rig.until("the first one again", |rig| rig.fleet()["status"]["revisionDigest"] == all[&1]).await;
    assert_eq!(rig.fleet()["status"]["revision"], 1);
    rig.until("all pods to have it", |rig| rig.fleet()["status"]["pinnedRevision"] == 1).await;
    rig.until("what is said of it", |rig| rig.says("Pinned").is_some()).await;
    assert!(rig.says("Pinned").unwrap().starts_with("the fleet is pinned to revision 1: "));
    rig.roll_back(json!("9")).await;
    rig.until("a refusal", |rig| rig.says("NotApplied").is_some()).await;
    assert!(rig.says("NotApplied").unwrap().ends_with("choose one of 1, 2, or remove the annotation"));
    assert_eq!(rig.fleet()["status"]["revision"], 1, "what is served stays");
    rig.roll_back(Value::Null).await;
    rig.until("the present", |rig| rig.fleet()["status"]["revisionDigest"] == all[&2]).await;
    rig.until("all pods to have it", |rig| rig.fleet()["status"]["pinnedRevision"].is_null()).await;
    rig.until("what is said of it", |rig| rig.says("Pinned").is_none()).await;
    assert_eq!((&rig.fleet()["status"]["revision"], rig.kept()), (&json!(2), kept));
}

#[tokio::test(start_paused = true)]
async fn the_last_twenty_revisions_are_kept_and_those_before_are_removed() {
    let rig = Rig::start(cluster());
    rig.lead().await;
    for number in 1..=22_u64 {
        rig.until("it is kept", |rig| rig.fleet()["status"]["revision"] == number && rig.revisions().contains_key(&number)).await;
        route(&rig.server, &format!("h{number}.example"));
    }
    rig.until("the last one", |rig| !rig.fleet().is_null() && rig.revisions().contains_key(&23)).await;
    assert_eq!(rig.revisions().into_keys().collect::<Vec<u64>>(), (4..=23).collect::<Vec<u64>>());
}

/// What is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Log {
    /// How many lines at `level` there are for each kind.
    fn kinds(&self, level: &str) -> BTreeMap<String, usize> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let mut counts = BTreeMap::new();
        for line in text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()).filter(|line| line["level"] == level) {
            *counts.entry(line["kind"].as_str().unwrap_or("none").to_owned()).or_default() += 1;
        }
        counts
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_of_the_api_server_is_one_warning_for_each_kind_and_its_end_one_line() {
    let log = Log::default();
    let writer = log.clone();
    let lines = tracing_subscriber::fmt().json().flatten_event(true).with_writer(move || writer.clone()).finish();
    let _guard = tracing::subscriber::set_default(lines);
    let reads = Matcher { verbs: vec![Verb::List, Verb::Watch], ..Matcher::default() };
    let faults = Faults::new(Plan::one(reads, 1, u64::MAX / 2, Action::Answer(503)));
    let client = Client::new(faults.layer(cluster()), "default");
    let mut watched = Cluster::watch(client, cluster::Settings::default());
    tokio::time::sleep(Duration::from_secs(600)).await;
    let lost = log.kinds("WARN");
    assert!(lost.len() >= 9 && lost.values().all(|count| *count == 1), "{lost:?}");
    assert_eq!(log.kinds("INFO"), BTreeMap::new());
    faults.end();
    watched.next().await.unwrap();
    // nobody waits for what nothing that is served depends on
    tokio::time::sleep(Duration::from_secs(60)).await;
    // what follows later, such as the ConfigMaps of a fleet, was never lost
    assert_eq!(log.kinds("INFO"), lost);
    assert_eq!(log.kinds("WARN"), lost);
}
