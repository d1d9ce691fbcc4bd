//! Brings the objects of a fleet into the cluster, and removes those that are not wanted any more.
//!
//! Server-side apply with one field manager: what other people and controllers write stays. Nothing is written that is
//! as it is to be. A write names the version that was looked at, so a decision is never about another object. What is
//! removed was read freshly, after everything that is wanted was there.

pub(super) mod owned;

use super::build::{Desired, Ownership};
use crate::report::{Diagnostic, Kind, ObjectRef, codes};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, Preconditions, PropagationPolicy};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind, Status};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// Label of everything that belongs to a fleet: the fleet's name.
pub(super) const FLEET: &str = "haproxy-fleet.dev/fleet";
/// Label of cluster-scoped objects beside it: the fleet's namespace.
const FLEET_NAMESPACE: &str = "haproxy-fleet.dev/fleet-namespace";
/// Who keeps an object, and its value for us.
pub(super) const MANAGED_BY: (&str, &str) = ("app.kubernetes.io/managed-by", "haproxy-fleet");
/// Annotation on somebody else's object: the fleet (`NAMESPACE/NAME`) that may take it over.
const ADOPT: &str = "haproxy-fleet.dev/adopt";
/// Annotation on a Service: its address may be given up.
const RELEASE_ADDRESS: &str = "haproxy-fleet.dev/release-address";
/// The kind that fleets of one class share an object of.
const SCALER: &str = "HorizontalPodAutoscaler";
const INGRESS_CLASS: &str = "IngressClass";
/// The kind that a cluster need not have. It is not watched either.
pub(super) const POD_MONITOR: &str = "PodMonitor";
/// Conflicts in a row on one object before the rest is tried first.
const ATTEMPTS: usize = 5;

/// The kinds that a fleet may be made of: API version, kind, plural, whether in a namespace. In the order in which what
/// is not wanted any more goes: what sends traffic first.
pub(super) const KINDS: [(&str, &str, &str, bool); 10] = [
    ("networking.k8s.io/v1", INGRESS_CLASS, "ingressclasses", false),
    ("autoscaling/v2", SCALER, "horizontalpodautoscalers", true),
    ("apps/v1", "Deployment", "deployments", true),
    ("v1", "Service", "services", true),
    ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", true),
    ("monitoring.coreos.com/v1", POD_MONITOR, "podmonitors", true),
    ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies", true),
    ("v1", "ConfigMap", "configmaps", true),
    ("v1", "Secret", "secrets", true),
    ("v1", "ServiceAccount", "serviceaccounts", true),
];

/// The API server did not do what was asked; trying again later may help.
#[derive(Debug, Error)]
#[error("{verb} {kind} {name}: {source}")]
pub struct ApplyError {
    /// What was asked.
    verb: &'static str,
    /// Of which kind.
    kind: String,
    /// Of which object.
    name: String,
    /// The answer.
    source: Box<kube::Error>,
}

impl ApplyError {
    pub(super) fn new(verb: &'static str, kind: &str, name: &str, source: kube::Error) -> Self {
        Self { verb, kind: kind.to_owned(), name: name.to_owned(), source: Box::new(source) }
    }
}

/// Which fleet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct FleetKey {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl FleetKey {
    /// As findings name it.
    pub fn object(&self) -> ObjectRef {
        ObjectRef::new(Kind::IngressDeployment, self.namespace.as_str(), self.name.as_str())
    }
}

/// How one round went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Applied {
    /// What cannot be done until somebody changes something.
    pub problems: Vec<Diagnostic>,
    /// Something waits for the cluster: to be looked at again soon.
    pub waits: bool,
}

/// What was written of one object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Written {
    body: blake3::Hash,
    fields: Option<blake3::Hash>,
}

type Place = (String, String, String);

/// Applies for one fleet, and remembers what it wrote.
pub struct Applier {
    client: Client,
    fleet: FleetKey,
    written: BTreeMap<Place, Written>,
}

/// What is to be done about an object that is there.
enum Verdict {
    Apply,
    Leave(Box<Diagnostic>),
    /// Another fleet keeps it for all of them, if that is still there.
    Shared,
    Wait,
}

impl Applier {
    /// For one fleet.
    pub fn new(client: Client, fleet: FleetKey) -> Self {
        Self { client, fleet, written: BTreeMap::new() }
    }

    /// One round: everything that is `desired` in its order, then what is ours and not desired goes.
    pub async fn apply(&mut self, desired: &[Desired]) -> Result<Applied, ApplyError> {
        let (mut applied, deployments) = self.write_all(desired).await?;
        let is_whole = applied.problems.is_empty() && !applied.waits;
        let is_replaced = is_whole && deployments.iter().all(is_available);
        // an autoscaler that is not asked for any more would undo every size that is written, whatever else cannot be done
        for kind in KINDS.into_iter().filter(|(_, kind, ..)| is_whole || *kind == SCALER) {
            self.sweep(kind, desired, is_replaced, &mut applied).await?;
        }
        Ok(applied)
    }

    /// Writes everything that is `desired` in its order, and leaves the rest as it is.
    pub async fn write(&mut self, desired: &[Desired]) -> Result<Applied, ApplyError> {
        Ok(self.write_all(desired).await?.0)
    }

    /// The same, with the Deployments as they are then.
    async fn write_all(&mut self, desired: &[Desired]) -> Result<(Applied, Vec<Value>), ApplyError> {
        let mut applied = Applied::default();
        let mut deployments = Vec::new();
        for object in desired {
            let live = self.one(object, &mut applied).await?;
            deployments.extend(live.filter(|_| object.kind == "Deployment"));
        }
        Ok((applied, deployments))
    }

    async fn one(&mut self, desired: &Desired, applied: &mut Applied) -> Result<Option<Value>, ApplyError> {
        let api = api(&self.client, &desired.api_version, &desired.kind, &desired.plural, desired.namespace.as_deref());
        for _ in 0..ATTEMPTS {
            let live = get(&api, desired).await?;
            let mut body = desired.body.clone();
            if let Some(live) = &live {
                match self.judge(desired, live) {
                    Verdict::Apply => {}
                    Verdict::Shared => {
                        if self.is_kept(live).await? {
                            return Ok(None);
                        }
                    }
                    Verdict::Wait => {
                        applied.waits = true;
                        return Ok(None);
                    }
                    Verdict::Leave(problem) => {
                        applied.problems.push(*problem);
                        return Ok(None);
                    }
                }
                if self.is_settled(desired, live) {
                    return Ok(Some(live.clone()));
                }
                let version = &live["metadata"]["resourceVersion"];
                if desired.only_if.as_ref().is_some_and(|decided_on| version != decided_on) {
                    applied.waits = true;
                    return Ok(None);
                }
                // no object ever had this version before, so it names the object as well
                body["metadata"]["resourceVersion"] = version.clone();
            }
            // what is new is not forced: somebody else's object that appears meanwhile is a conflict
            let parameters = PatchParams { force: live.is_some(), ..PatchParams::apply(owned::MANAGER) };
            match api.patch(&desired.name, &parameters, &Patch::Apply(&body)).await {
                Ok(object) => {
                    let object = json!(object);
                    self.remember(desired, &object);
                    return Ok(Some(object));
                }
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(kube::Error::Api(status)) if matches!(status.code, 400 | 403 | 404 | 413 | 422) => {
                    applied.problems.push(self.refused(desired, &status));
                    return Ok(None);
                }
                Err(error) => return Err(ApplyError::new("apply", &desired.kind, &desired.name, error)),
            }
        }
        applied.waits = true;
        Ok(None)
    }

    fn judge(&self, desired: &Desired, live: &Value) -> Verdict {
        if !self.is_ours(desired, live) {
            if desired.kind == INGRESS_CLASS && live["metadata"]["labels"][MANAGED_BY.0] == MANAGED_BY.1 {
                // the fleets of a class have one IngressClass: that of the first of them, which hands it over when it goes
                return Verdict::Shared;
            }
            let adopt = format!("{}/{}", self.fleet.namespace, self.fleet.name);
            if live["metadata"]["annotations"][ADOPT] != adopt {
                let message = format!("{} {} exists and belongs to somebody else", desired.kind, desired.name);
                let help = format!("delete it, or let this fleet take it over by its annotation {ADOPT}: {adopt}");
                return Verdict::Leave(Box::new(Diagnostic::error(&self.fleet.object(), "", codes::CONFLICT, message, help)));
            }
        }
        if !live["metadata"]["deletionTimestamp"].is_null() {
            return Verdict::Wait;
        }
        let is_other_type =
            desired.kind == "Service" && live["spec"]["type"] == "LoadBalancer" && desired.body["spec"]["type"] != "LoadBalancer";
        if is_other_type && is_address_in_use(live) {
            return Verdict::Leave(Box::new(self.keeps_address(&desired.name)));
        }
        Verdict::Apply
    }

    /// Whether the fleet that a shared object is labelled with exists. Its finalizer may have been removed by hand.
    async fn is_kept(&self, live: &Value) -> Result<bool, ApplyError> {
        let label = |name: &str| live["metadata"]["labels"][name].as_str().unwrap_or_default();
        let (namespace, name) = (label(FLEET_NAMESPACE), label(FLEET));
        if namespace.is_empty() || name.is_empty() {
            return Ok(false);
        }
        let api = api(&self.client, crate::api::API_VERSION, "IngressDeployment", "ingressdeployments", Some(namespace));
        let found = api.get_opt(name).await.map_err(|error| ApplyError::new("get", "IngressDeployment", name, error))?;
        Ok(found.is_some())
    }

    /// By its labels, or by its owner.
    fn is_ours(&self, desired: &Desired, live: &Value) -> bool {
        let labels = &live["metadata"]["labels"];
        let is_labelled = self.has_labels(labels, desired.namespace.is_none());
        let wanted = &desired.body["metadata"]["ownerReferences"][0]["uid"];
        let mut owners = live["metadata"]["ownerReferences"].as_array().into_iter().flatten();
        is_labelled || (desired.ownership == Ownership::Owned && owners.any(|owner| owner["uid"] == *wanted))
    }

    fn has_labels(&self, labels: &Value, is_cluster_scoped: bool) -> bool {
        labels[FLEET] == self.fleet.name
            && labels[MANAGED_BY.0] == MANAGED_BY.1
            && (!is_cluster_scoped || labels[FLEET_NAMESPACE] == self.fleet.namespace)
    }

    fn is_settled(&mut self, desired: &Desired, live: &Value) -> bool {
        let body = hash(&desired.body);
        if self.written.get(&place(desired)).is_some_and(|written| written.body == body && written.fields == owned::fingerprint(live)) {
            return true;
        }
        let is_settled = owned::is_as_wanted(live, &desired.body);
        if is_settled {
            self.remember(desired, live);
        }
        is_settled
    }

    fn remember(&mut self, desired: &Desired, live: &Value) {
        self.written.insert(place(desired), Written { body: hash(&desired.body), fields: owned::fingerprint(live) });
    }

    fn refused(&self, desired: &Desired, status: &Status) -> Diagnostic {
        if desired.kind == POD_MONITOR && status.code == 404 {
            let message = "the cluster has no PodMonitors (monitoring.coreos.com/v1)";
            let help = "install the CRDs of the Prometheus operator, or take spec.metrics.podMonitor away";
            return Diagnostic::error(&self.fleet.object(), "spec.metrics.podMonitor", codes::NOT_APPLIED, message, help);
        }
        let message = &status.message;
        let message = format!("{} {} cannot be written: {message}", desired.kind, desired.name);
        let help = "see what the API server says; what served before still does";
        Diagnostic::error(&self.fleet.object(), "", codes::NOT_APPLIED, message, help)
    }

    fn keeps_address(&self, service: &str) -> Diagnostic {
        let message = format!("service {service} keeps its load balancer: clients may use its address");
        let help = format!("once nobody does, write {RELEASE_ADDRESS}: \"true\" on the service");
        Diagnostic::warning(&self.fleet.object(), "spec.publishing", codes::NOT_APPLIED, message, help)
    }

    /// Removes what is ours, of one kind, and not `desired`. A Deployment waits until what replaces it is there.
    async fn sweep(
        &mut self,
        (api_version, kind, plural, namespaced): (&str, &str, &str, bool),
        desired: &[Desired],
        is_replaced: bool,
        applied: &mut Applied,
    ) -> Result<(), ApplyError> {
        let wanted: BTreeSet<(&str, &str)> = desired.iter().map(|object| (object.plural.as_str(), object.name.as_str())).collect();
        for object in self.ours(api_version, kind, plural, namespaced).await? {
            let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            // what has our labels and was written by another part of the operator is that part's matter
            let is_mine = owned::fields(&object).is_some();
            if !is_mine || wanted.contains(&(plural, &name)) || !object["metadata"]["deletionTimestamp"].is_null() {
                continue;
            }
            if kind == "Deployment" && !is_replaced {
                applied.waits = true;
                continue;
            }
            if kind == "Service" && is_address_in_use(&object) {
                applied.problems.push(self.keeps_address(&name));
                continue;
            }
            applied.waits |= !self.remove(api_version, kind, plural, &object).await?;
        }
        Ok(())
    }

    /// The objects of one kind that have our labels, read freshly.
    pub(super) async fn ours(&self, api_version: &str, kind: &str, plural: &str, namespaced: bool) -> Result<Vec<Value>, ApplyError> {
        let namespace = namespaced.then_some(self.fleet.namespace.as_str());
        let api = api(&self.client, api_version, kind, plural, namespace);
        let mut selector = format!("{FLEET}={},{}={}", self.fleet.name, MANAGED_BY.0, MANAGED_BY.1);
        if !namespaced {
            selector.extend([",", FLEET_NAMESPACE, "=", &self.fleet.namespace]);
        }
        let found = match api.list(&ListParams::default().labels(&selector)).await {
            Ok(found) => found.items,
            // the kind does not exist in this cluster
            Err(kube::Error::Api(status)) if status.code == 404 => Vec::new(),
            Err(error) => return Err(ApplyError::new("list", kind, "", error)),
        };
        Ok(found.into_iter().map(|object| json!(object)).collect())
    }

    /// Makes `heir` the keeper of the `IngressClass` that this fleet keeps. False: one changed meanwhile.
    pub(super) async fn hand_over(&self, heir: &FleetKey) -> Result<bool, ApplyError> {
        for (api_version, kind, plural, namespaced) in KINDS.into_iter().filter(|(_, kind, ..)| *kind == INGRESS_CLASS) {
            for object in self.ours(api_version, kind, plural, namespaced).await? {
                let metadata = &object["metadata"];
                let name = metadata["name"].as_str().unwrap_or_default();
                let labels = json!({FLEET: heir.name, FLEET_NAMESPACE: heir.namespace});
                let change =
                    json!({"metadata": {"resourceVersion": metadata["resourceVersion"], "uid": metadata["uid"], "labels": labels}});
                let parameters = PatchParams { field_manager: Some("haproxy-fleet-heir".to_owned()), ..PatchParams::default() };
                match api(&self.client, api_version, kind, plural, None).patch(name, &parameters, &Patch::Merge(&change)).await {
                    Ok(_) => {}
                    Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => return Ok(false),
                    Err(error) => return Err(ApplyError::new("patch", kind, name, error)),
                }
            }
        }
        Ok(true)
    }

    /// Deletes this very object, which nobody changed since it was read. False: somebody did, or somebody waits for it.
    pub(super) async fn remove(&self, api_version: &str, kind: &str, plural: &str, object: &Value) -> Result<bool, ApplyError> {
        let text = |field: &str| object["metadata"][field].as_str().map(str::to_owned);
        let name = text("name").unwrap_or_default();
        let api = api(&self.client, api_version, kind, plural, text("namespace").as_deref());
        let parameters = DeleteParams {
            preconditions: Some(Preconditions { uid: text("uid"), resource_version: text("resourceVersion") }),
            propagation_policy: Some(PropagationPolicy::Background),
            ..DeleteParams::default()
        };
        match api.delete(&name, &parameters).await {
            Ok(left) => {
                tracing::info!(fleet = %self.fleet.object(), kind, name, "removed");
                Ok(left.right().is_some())
            }
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(true),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
            Err(error) => Err(ApplyError::new("delete", kind, &name, error)),
        }
    }
}

/// Whether clients may use the address of a load balancer, and nobody said that it may go.
fn is_address_in_use(service: &Value) -> bool {
    let has_address = service["status"]["loadBalancer"]["ingress"].as_array().is_some_and(|ingress| !ingress.is_empty());
    has_address && service["metadata"]["annotations"][RELEASE_ADDRESS] != "true"
}

/// Whether a Deployment runs all that it is to run.
fn is_available(deployment: &Value) -> bool {
    let number = |value: &Value| value.as_i64().unwrap_or_default();
    let (status, wanted) = (&deployment["status"], deployment["spec"]["replicas"].as_i64().unwrap_or(1));
    number(&status["observedGeneration"]) >= number(&deployment["metadata"]["generation"])
        && number(&status["availableReplicas"]) >= wanted
        && number(&status["updatedReplicas"]) >= wanted
}

async fn get(api: &Api<DynamicObject>, desired: &Desired) -> Result<Option<Value>, ApplyError> {
    let found = api.get_opt(&desired.name).await.map_err(|error| ApplyError::new("get", &desired.kind, &desired.name, error))?;
    Ok(found.map(|object| json!(object)))
}

fn place(desired: &Desired) -> Place {
    (desired.plural.clone(), desired.namespace.clone().unwrap_or_default(), desired.name.clone())
}

fn hash(body: &Value) -> blake3::Hash {
    blake3::hash(body.to_string().as_bytes())
}

/// The objects of a kind, in a namespace or in the cluster.
pub(super) fn api(client: &Client, api_version: &str, kind: &str, plural: &str, namespace: Option<&str>) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}
