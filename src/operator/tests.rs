//! From watches to statuses against an API server in the process.

#![allow(clippy::unwrap_used)]

use super::report::{Sources, tell};
use super::run::{options, pass_on};
use super::stage::Stage;
use crate::delivery::Feeds;
use crate::fleet::controller::States;
use crate::ingest::cluster::{self, Cluster};
use crate::pipeline::Pipeline;
use crate::status::ingress::Ingresses;
use crate::status::json::Status;
use crate::status::writer::{INTERVAL, Writer};
use crate::telemetry::{Metrics, OperatorMetrics};
use fleet_api_server::ApiServer;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

const GROUP: &str = "haproxy-fleet.dev/v1alpha1";
const THEIRS: &str = "ingress.v3.haproxy.org/v3";

/// A cluster, and of an operator what says how `Backend`s are.
struct Rig {
    server: ApiServer,
    _parts: JoinSet<()>,
    _states: watch::Sender<Arc<States>>,
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
        let stage = Stage::new(Pipeline::new(options()), feeds.clone(), ingresses.clone(), Arc::new(metrics), times);
        let (states, observed) = watch::channel(Arc::new(States::new()));
        let sources = Sources { translated: stage.translated(), agents: feeds.agents(), states: observed, leads: Box::new(|| true) };
        let (inputs, received) = mpsc::channel(4);
        let client = server.client();
        let mut parts = JoinSet::new();
        parts.spawn(pass_on(Cluster::watch(client.clone(), cluster::Settings::default()), inputs));
        parts.spawn(stage.run(received));
        let book = ingresses.clone();
        let writer = move || Writer::new(client.clone(), "operator-0".to_owned(), book.clone());
        parts.spawn(async move { tell(sources, writer, ingresses, watch::Sender::new(Arc::new(Status::default()))).await });
        Self { server, _parts: parts, _states: states }
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
