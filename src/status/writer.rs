//! The one who writes: statuses of fleets, `Backend`s and Ingresses, and Events.
//!
//! Runs at the leader only; the client it is given refuses writes to anybody else. Nothing is written that is there
//! already, and the status of a fleet or a `Backend` at most once in [`INTERVAL`], but that all pods went back to a revision is
//! said at once.

use super::conditions::transitions;
use super::events::{Event, Events};
use super::ingress::{Ingresses, Point, Points};
use crate::api::IngressDeploymentStatus;
use crate::api::backend::BackendStatus;
use crate::api::crd::{BackendResource, IngressDeploymentResource};
use crate::report::{Diagnostic, Kind, ObjectRef};
use futures::StreamExt;
use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1 as events;
use k8s_openapi::api::networking::v1 as networking;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::{Api, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind, ObjectMeta};
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// The status of a fleet, and that of a `Backend`, is written at most that often.
pub const INTERVAL: Duration = Duration::from_secs(5);
/// What could not be written is tried again after this long.
const RETRY: Duration = Duration::from_secs(2);
/// Ingresses that are written in one pass, and how many of them at a time.
const INGRESSES: (usize, usize) = (200, 8);
/// The same of `Backend`s.
const BACKENDS: (usize, usize) = (200, 8);
/// Events of one pass, and the least time between two passes that tell some.
const EVENTS: (usize, Duration) = (20, Duration::from_secs(1));

/// What an object's status says, and what it should.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetStatus {
    /// What it says as far as is known.
    pub says: IngressDeploymentStatus,
    /// What it should say.
    pub wanted: IngressDeploymentStatus,
}

/// What a `Backend` says, and what it should.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendReport {
    /// Its uid: one of the same name that comes later is another one.
    pub uid: String,
    /// What it says as far as is known.
    pub says: BackendStatus,
    /// What it should say.
    pub wanted: BackendStatus,
}

/// Everything that is to be told.
#[derive(Clone, Debug, Default)]
pub struct Reports {
    /// By `IngressDeployment`.
    pub fleets: BTreeMap<ObjectRef, FleetStatus>,
    /// By `Backend`, of our group.
    pub backends: BTreeMap<ObjectRef, BackendReport>,
    /// All findings.
    pub findings: Arc<Vec<Diagnostic>>,
    /// What happened since the last pass.
    pub happened: Vec<Event>,
}

/// Writes.
pub struct Writer {
    client: Client,
    /// Who says it: the pod's name.
    instance: String,
    ingresses: Arc<Mutex<Ingresses>>,
    events: Events,
    fleets: BTreeMap<ObjectRef, Written>,
    backends: BTreeMap<ObjectRef, WrittenBackend>,
    events_due: Instant,
}

/// What was written of a fleet.
struct Written {
    at: Instant,
    status: IngressDeploymentStatus,
}

/// What was written of a `Backend`.
struct WrittenBackend {
    at: Instant,
    uid: String,
    status: BackendStatus,
}

impl Writer {
    /// A writer that has written nothing. `instance` is the name of this pod.
    pub fn new(client: Client, instance: String, ingresses: Arc<Mutex<Ingresses>>) -> Self {
        let events_due = Instant::now();
        Self { client, instance, ingresses, events: Events::default(), fleets: BTreeMap::new(), backends: BTreeMap::new(), events_due }
    }

    /// Writes what has to be written now. Returns when there is more to do; `None` if there is not.
    pub async fn pass(&mut self, reports: &Reports) -> Option<Instant> {
        self.fleets.retain(|fleet, _| reports.fleets.contains_key(fleet));
        self.events.present(reports.findings.iter());
        reports.happened.iter().for_each(|event| self.events.happened(event.clone()));
        let mut next: Vec<Instant> = Vec::new();
        for (fleet, status) in &reports.fleets {
            next.extend(self.fleet(fleet, status).await);
        }
        next.extend(self.write_backends(&reports.backends).await);
        next.extend(self.write_ingresses().await);
        next.extend(self.tell_events().await);
        next.into_iter().min()
    }

    async fn fleet(&mut self, fleet: &ObjectRef, status: &FleetStatus) -> Option<Instant> {
        let written = self.fleets.get(fleet);
        // what was written last is truer than what a watch has not brought back yet
        let says = written.map_or(&status.says, |written| &written.status);
        if *says == status.wanted {
            return None;
        }
        let due = written.map(|written| written.at + INTERVAL).filter(|due| *due > Instant::now());
        // somebody waits for that
        let is_awaited = says.pinned_revision != status.wanted.pinned_revision;
        if due.is_some() && !is_awaited {
            return due;
        }
        let news: Vec<Event> = transitions(&says.conditions, &status.wanted.conditions)
            .into_iter()
            .map(|condition| {
                let warning = condition.status == "False" || condition.type_ == crate::api::conditions::STALLED;
                Event::of(fleet, warning, &condition.reason, format!("{} is {}: {}", condition.type_, condition.status, condition.message))
            })
            .collect();
        let patch = patch(says, &status.wanted);
        if let Err(error) = self.patch_fleet(fleet, patch).await {
            tracing::warn!(%fleet, %error, "its status cannot be written; trying again");
            return Some(Instant::now() + RETRY);
        }
        for event in news {
            self.events.happened(event);
        }
        self.fleets.insert(fleet.clone(), Written { at: Instant::now(), status: status.wanted.clone() });
        None
    }

    async fn patch_fleet(&self, fleet: &ObjectRef, patch: Value) -> kube::Result<()> {
        let api: Api<IngressDeploymentResource> = Api::namespaced(self.client.clone(), &fleet.namespace);
        api.patch_status(&fleet.name, &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
    }

    async fn write_backends(&mut self, reports: &BTreeMap<ObjectRef, BackendReport>) -> Option<Instant> {
        self.backends.retain(|backend, written| reports.get(backend).is_some_and(|report| report.uid == written.uid));
        let now = Instant::now();
        let (mut due, mut next) = (Vec::new(), None::<Instant>);
        for (backend, report) in reports {
            let written = self.backends.get(backend);
            let says = written.map_or(&report.says, |written| &written.status);
            if *says == report.wanted {
                continue;
            }
            let at = written.map_or(now, |written| written.at + INTERVAL);
            if at <= now && due.len() < BACKENDS.0 {
                due.push((backend, report, patch(says, &report.wanted)));
            } else {
                next = Some(next.map_or(at, |next| next.min(at)).max(now));
            }
        }
        let writes: Vec<_> = due
            .into_iter()
            .map(|(backend, report, patch)| {
                let client = self.client.clone();
                async move { (backend, report, patch_backend(client, backend, patch).await) }
            })
            .collect();
        let done: Vec<_> = futures::stream::iter(writes).buffer_unordered(BACKENDS.1).collect().await;
        for (backend, report, result) in done {
            if let Err(error) = result {
                tracing::warn!(%backend, %error, "its status cannot be written; trying again");
                let again = Instant::now() + RETRY;
                next = Some(next.map_or(again, |next| next.min(again)));
                continue;
            }
            let written = WrittenBackend { at: Instant::now(), uid: report.uid.clone(), status: report.wanted.clone() };
            self.backends.insert(backend.clone(), written);
        }
        next
    }

    async fn write_ingresses(&self) -> Option<Instant> {
        let due = self.lock().due(INGRESSES.0);
        if due.is_empty() {
            return None;
        }
        let all = due.len() == INGRESSES.0;
        let writes = due.into_iter().map(|(ingress, points)| self.write_ingress(ingress, points));
        let failed =
            futures::stream::iter(writes).buffer_unordered(INGRESSES.1).filter(|done| futures::future::ready(!*done)).count().await;
        if failed > 0 {
            return Some(Instant::now() + RETRY);
        }
        all.then(Instant::now)
    }

    async fn write_ingress(&self, ingress: ObjectRef, points: Points) -> bool {
        let api: Api<networking::Ingress> = Api::namespaced(self.client.clone(), &ingress.namespace);
        let patch = json!({"status": {"loadBalancer": {"ingress": points.iter().map(point).collect::<Vec<Value>>()}}});
        match api.patch_status(&ingress.name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Ok(_) => self.lock().written(&ingress, points),
            Err(kube::Error::Api(status)) if status.is_not_found() => self.lock().forget(&ingress),
            Err(error) => {
                tracing::warn!(%ingress, %error, "its status cannot be written; trying again");
                return false;
            }
        }
        true
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Ingresses> {
        self.ingresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn tell_events(&mut self) -> Option<Instant> {
        if !self.events.is_due() {
            return None;
        }
        if self.events_due > Instant::now() {
            return Some(self.events_due);
        }
        self.events_due = Instant::now() + EVENTS.1;
        for event in self.events.take(EVENTS.0) {
            if let Err(error) = self.tell(&event).await {
                tracing::warn!(object = %event.object, reason = event.reason, %error, "an Event cannot be told");
            }
        }
        self.events.is_due().then_some(self.events_due)
    }

    /// Creates the Event, or counts it once more where it is there and that is news.
    async fn tell(&self, event: &Event) -> kube::Result<()> {
        let Some(regarding) = self.regarding(&event.object).await? else { return Ok(()) };
        let namespace = if event.object.namespace.is_empty() { "default" } else { &*event.object.namespace };
        let api: Api<events::Event> = Api::namespaced(self.client.clone(), namespace);
        let now = MicroTime(Timestamp::now());
        let full = events::Event {
            metadata: ObjectMeta { name: Some(event.name()), namespace: Some(namespace.to_owned()), ..ObjectMeta::default() },
            event_time: Some(now.clone()),
            type_: Some(if event.warning { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(event.reason.clone()),
            note: Some(event.note.clone()),
            action: Some("Observe".to_owned()),
            regarding: Some(regarding),
            reporting_controller: Some("haproxy-fleet.dev/operator".to_owned()),
            reporting_instance: Some(self.instance.clone()),
            ..events::Event::default()
        };
        match api.create(&PostParams::default(), &full).await {
            Err(kube::Error::Api(status)) if status.is_already_exists() && event.maybe_told => Ok(()),
            Err(kube::Error::Api(status)) if status.is_already_exists() => {
                let told = api.get(&event.name()).await?;
                let count = told.series.map_or(1, |series| series.count) + 1;
                let patch = json!({"series": {"count": count, "lastObservedTime": now}});
                api.patch(&event.name(), &PatchParams::default(), &Patch::Merge(patch)).await.map(drop)
            }
            done => done.map(drop),
        }
    }

    /// The object with its uid, by which `kubectl describe` finds its Events; `None` if it is gone.
    async fn regarding(&self, object: &ObjectRef) -> kube::Result<Option<ObjectReference>> {
        let Some((api_version, plural)) = served_as(&object.kind) else { return Ok(None) };
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, object.kind.as_str()), plural);
        let api: Api<DynamicObject> = if object.namespace.is_empty() {
            Api::all_with(self.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.client.clone(), &object.namespace, &resource)
        };
        let Some(found) = api.get_metadata_opt(&object.name).await? else { return Ok(None) };
        Ok(Some(ObjectReference {
            api_version: Some(api_version.to_owned()),
            kind: Some(object.kind.as_str().to_owned()),
            namespace: found.metadata.namespace.clone(),
            name: found.metadata.name.clone(),
            uid: found.metadata.uid,
            ..ObjectReference::default()
        }))
    }
}

/// `apiVersion` and plural of the kinds that findings are about.
fn served_as(kind: &Kind) -> Option<(&'static str, &'static str)> {
    Some(match kind {
        Kind::IngressDeployment => (crate::api::API_VERSION, "ingressdeployments"),
        Kind::Backend => (crate::api::API_VERSION, "backends"),
        Kind::Ingress => ("networking.k8s.io/v1", "ingresses"),
        Kind::IngressClass => ("networking.k8s.io/v1", "ingressclasses"),
        Kind::GatewayClass => (crate::api::GATEWAY_API_VERSION, "gatewayclasses"),
        Kind::EndpointSlice => ("discovery.k8s.io/v1", "endpointslices"),
        Kind::Service => ("v1", "services"),
        Kind::Secret => ("v1", "secrets"),
        Kind::ConfigMap => ("v1", "configmaps"),
        Kind::Namespace => ("v1", "namespaces"),
        Kind::Other(_) => return None,
    })
}

async fn patch_backend(client: Client, backend: &ObjectRef, patch: Value) -> kube::Result<()> {
    let api: Api<BackendResource> = Api::namespaced(client, &backend.namespace);
    match api.patch_status(&backend.name, &PatchParams::default(), &Patch::Merge(patch)).await {
        // it is gone, and so is what it should say
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        done => done.map(drop),
    }
}

/// What takes a status from `says` to `wanted`. Not a server-side apply: conditions that the schema puts there by default
/// are nobody's, and would stay.
fn patch<S: Serialize>(says: &S, wanted: &S) -> Value {
    let (before, mut status) = (json!(says), json!(wanted));
    if let (Some(before), Some(status)) = (before.as_object(), status.as_object_mut()) {
        for field in before.keys() {
            status.entry(field).or_insert(Value::Null);
        }
    }
    json!({"status": status})
}

fn point(point: &Point) -> Value {
    match point {
        Point::Ip(ip) => json!({"ip": ip.to_string()}),
        Point::Hostname(name) => json!({"hostname": name}),
    }
}
