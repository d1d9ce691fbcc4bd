//! A cluster, by the `IngressDeployment`s that are there: their status says how rollouts go, and orders are annotations of
//! them. It takes the permission to list and patch them, and to list pods where one is named.

use super::revisions::{self, Kept, Serves, To};
use super::{Namespace, Verbs};
use crate::admin::{Done, Order, Target};
use crate::api::{
    ANNOTATION_ABORT, ANNOTATION_DRAIN, ANNOTATION_RESTARTED_AT, ANNOTATION_ROLLBACK, ANNOTATION_ROLLOUT, DrainWish,
    IngressDeploymentStatus, Pairs, Place, Verbs as Said,
};
use crate::cli::Error;
use crate::cli::status::cluster::client;
use crate::fleet::build::{LABEL_FLEET, LABEL_ZONE};
use crate::operator::revisions::{DIGEST, NUMBER};
use crate::report::{Kind, ObjectRef, with_causes};
use crate::status::json::{self, Fleet, Replica, Status};
use k8s_openapi::api::core::v1::{Pod, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ListParams, Patch, PatchParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;

/// Who writes these annotations, as `managedFields` show it.
const MANAGER: &str = "kubectl-haproxy-fleet";

/// The fleets of a cluster.
pub(super) struct Cluster {
    pub(super) client: Client,
    /// Whose fleets; `None`: of all namespaces.
    pub(super) namespace: Option<String>,
}

impl Cluster {
    /// The cluster that a kubeconfig leads to.
    pub(super) async fn connect(kubeconfig: Option<&Path>, context: Option<&str>, namespace: &Namespace) -> Result<Self, Error> {
        let (client, of_context) = client(kubeconfig, context).await?;
        let namespace = match namespace {
            Namespace::All => None,
            Namespace::Named(name) => Some(name.clone()),
            Namespace::OfContext => Some(of_context),
        };
        Ok(Self { client, namespace })
    }

    fn fleets(&self, namespace: Option<&str>) -> Api<DynamicObject> {
        let (group, version) = crate::api::API_VERSION.split_once('/').unwrap_or_default();
        let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, "IngressDeployment"), "ingressdeployments");
        match namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &kind),
            None => Api::all_with(self.client.clone(), &kind),
        }
    }

    async fn pods(&self) -> Result<Vec<Pod>, Error> {
        let pods: Api<Pod> = match &self.namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let found = pods.list(&ListParams::default().labels(LABEL_FLEET)).await;
        Ok(found.map_err(|error| failed("the pods of fleets cannot be listed", &error))?.items)
    }

    /// The object of a fleet.
    async fn object(&self, fleet: &Fleet) -> Result<Value, Error> {
        let found = self.fleets(Some(&fleet.namespace)).get(&fleet.name).await;
        found.map(|found| json!(found)).map_err(|error| failed("the fleet cannot be read", &error))
    }

    /// Changes the annotations of a fleet as they are now.
    async fn annotate(&self, fleet: &Fleet, change: impl Fn(&Value) -> Result<Value, Error>) -> Result<(), Error> {
        let api = self.fleets(Some(&fleet.namespace));
        let id = format!("IngressDeployment {}/{}", fleet.namespace, fleet.name);
        // who changes it at the same time makes it another version
        for _ in 0..3 {
            let found = api.get(&fleet.name).await.map_err(|error| failed(&format!("{id} cannot be read"), &error))?;
            let found = json!(found);
            let annotations = change(&found["metadata"]["annotations"])?;
            let patch = json!({"metadata": {"resourceVersion": found["metadata"]["resourceVersion"], "annotations": annotations}});
            let parameters = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
            match api.patch(&fleet.name, &parameters, &Patch::Merge(&patch)).await {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if status.is_conflict() => {}
                Err(error) => return Err(failed(&format!("{id} cannot be annotated"), &error)),
            }
        }
        Err(Error::new(format_args!("{id} changes all the time"), "try it again"))
    }
}

impl Verbs for Cluster {
    async fn status(&self) -> Result<Status, Error> {
        let listed = self.fleets(self.namespace.as_deref()).list(&ListParams::default()).await;
        let listed = listed.map_err(|error| failed("fleets cannot be listed", &error))?;
        let fleets = listed.items.iter().map(|object| fleet(&json!(object))).collect();
        Ok(Status { fleets, ..Status::default() })
    }

    async fn having(&self, status: &mut Status) -> Result<(), Error> {
        for pod in self.pods().await? {
            let labels = pod.metadata.labels.unwrap_or_default();
            let (namespace, name) = (pod.metadata.namespace.unwrap_or_default(), labels.get(LABEL_FLEET));
            let owner = status.fleets.iter_mut().find(|fleet| fleet.namespace == namespace && Some(&fleet.name) == name);
            let zone = labels.get(LABEL_ZONE).filter(|zone| !zone.is_empty()).cloned();
            let replica = Replica { name: pod.metadata.name.unwrap_or_default(), zone, ..Replica::default() };
            if let Some(fleet) = owner {
                fleet.replicas.push(replica);
            }
        }
        Ok(())
    }

    async fn revisions(&self, fleet: &Fleet) -> Result<Vec<Kept>, Error> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &fleet.namespace);
        let selector = format!("{LABEL_FLEET}={},{NUMBER}", fleet.name);
        // what they hold is not needed
        let found = secrets.list_metadata(&ListParams::default().labels(&selector)).await;
        let found = found.map_err(|error| {
            let help = format!("ask for the permission to list secrets in namespace {}", fleet.namespace);
            Error::new(format_args!("the revisions cannot be listed: {}", with_causes(&error)), help)
        })?;
        let kept = |metadata: ObjectMeta| {
            let digest = metadata.annotations.unwrap_or_default().remove(DIGEST).unwrap_or_default();
            let since = metadata.creation_timestamp.map(|time| time.0.to_string()).unwrap_or_default();
            Some(Kept { number: metadata.labels?.get(NUMBER)?.parse().ok()?, since, digest })
        };
        let mut kept: Vec<Kept> = found.items.into_iter().filter_map(|secret| kept(secret.metadata)).collect();
        kept.sort_by_key(|kept| kept.number);
        Ok(kept)
    }

    async fn serves(&self, fleet: &Fleet) -> Result<Serves, Error> {
        let object = self.object(fleet).await?;
        let status = &object["status"];
        Ok(Serves {
            revision: status["revision"].as_u64(),
            pinned: object["metadata"]["annotations"][ANNOTATION_ROLLBACK].as_str().and_then(|pinned| pinned.parse().ok()),
            at: Some(To::of(status["pinnedRevision"].as_u64())),
        })
    }

    async fn order(&self, fleet: &Fleet, order: &Order) -> Result<Done, Error> {
        let id = format!("{}/{}", fleet.namespace, fleet.name);
        match order {
            Order::Drain { target, .. } => has(fleet, target)?,
            Order::Rollback(Some(revision)) => revisions::find(&self.revisions(fleet).await?, *revision, &id)?,
            _ => {}
        }
        let message = match order {
            Order::Pause => format!("the rollout of {id} is paused; sizes and drains by hand go on"),
            Order::Resume => format!("the rollout of {id} goes on"),
            Order::Abort => format!("the template {} of {id} is given up; pods go back to {}", template(fleet)?, stable(fleet)?),
            Order::Restart => format!("the pods of {id} are replaced one after the other"),
            Order::Drain { target, .. } => {
                format!("{target} of {id} is to be drained; `haproxy-fleet rollout status` says whether it is, and what it waits for")
            }
            Order::Undrain(target) => format!("{target} of {id} is given back"),
            Order::Rollback(Some(revision)) => format!("{id} goes to revision {revision}"),
            Order::Rollback(None) => format!("{id} goes to what is asked for now"),
        };
        self.annotate(fleet, |said| annotations(said, fleet, order, &Timestamp::now().to_string())).await?;
        Ok(Done { message })
    }
}

/// What an order changes of the annotations `said`.
fn annotations(said: &Value, fleet: &Fleet, order: &Order, now: &str) -> Result<Value, Error> {
    Ok(match order {
        Order::Pause => json!({ANNOTATION_ROLLOUT: "paused"}),
        Order::Resume => json!({ANNOTATION_ROLLOUT: null}),
        Order::Abort => json!({ANNOTATION_ABORT: template(fleet)?}),
        Order::Rollback(revision) => json!({ANNOTATION_ROLLBACK: revision.map(|revision| revision.to_string())}),
        // what was given up is asked for again
        Order::Restart => json!({ANNOTATION_RESTARTED_AT: now, ANNOTATION_ABORT: null}),
        Order::Drain { target, force } => {
            let mut wishes = drains(said, fleet);
            wishes.retain(|wish| wish.place != place(target));
            wishes.push(DrainWish { place: place(target), force: *force });
            json!({ANNOTATION_DRAIN: written(&wishes)})
        }
        Order::Undrain(target) => {
            let mut wishes = drains(said, fleet);
            let before = wishes.len();
            wishes.retain(|wish| wish.place != place(target));
            if wishes.len() == before {
                let drained: Vec<String> = wishes.iter().map(ToString::to_string).collect();
                let help = if drained.is_empty() { "nothing is".to_owned() } else { format!("these are: {}", drained.join(", ")) };
                return Err(Error::new(format_args!("{target} of {}/{} is not drained by hand", fleet.namespace, fleet.name), help));
            }
            json!({ANNOTATION_DRAIN: written(&wishes)})
        }
    })
}

/// Refuses to drain what is not there: it would be a wish that nobody sees.
fn has(fleet: &Fleet, target: &Target) -> Result<(), Error> {
    let zones = fleet.rollout.iter().flat_map(|rollout| rollout.zones.iter().filter_map(|zone| zone.name.as_deref()));
    let (kind, name, known): (&str, &str, BTreeSet<&str>) = match target {
        Target::Pod(name) => ("pod", name, fleet.replicas.iter().map(|replica| replica.name.as_str()).collect()),
        Target::Zone(name) => ("zone", name, zones.chain(fleet.replicas.iter().filter_map(|replica| replica.zone.as_deref())).collect()),
        // pods may come there later
        Target::Node(_) => return Ok(()),
    };
    if known.contains(name) {
        return Ok(());
    }
    let known: Vec<&str> = known.into_iter().collect();
    let help = if known.is_empty() { format!("it has no {kind}s") } else { format!("it has {}", known.join(", ")) };
    Err(Error::new(format_args!("{}/{} has no {kind} {name}", fleet.namespace, fleet.name), help))
}

fn place(target: &Target) -> Place {
    match target {
        Target::Pod(name) => Place::Pod(name.clone()),
        Target::Zone(name) => Place::Zone(name.clone()),
        Target::Node(name) => Place::Node(name.clone()),
    }
}

/// What is drained by hand. What cannot be understood goes with the next change: it had no effect.
fn drains(said: &Value, fleet: &Fleet) -> Vec<DrainWish> {
    let object = ObjectRef::new(Kind::IngressDeployment, fleet.namespace.as_str(), fleet.name.as_str());
    let annotations: Pairs =
        said.as_object().into_iter().flatten().filter_map(|(name, value)| Some((name.as_str(), value.as_str()?))).collect();
    Said::of(&annotations, &object).drains
}

fn written(wishes: &[DrainWish]) -> Option<String> {
    let texts: Vec<String> = wishes.iter().map(ToString::to_string).collect();
    (!texts.is_empty()).then(|| texts.join(","))
}

/// The template that is asked for.
fn template(fleet: &Fleet) -> Result<&str, Error> {
    let id = format!("{}/{}", fleet.namespace, fleet.name);
    let rollout = fleet.rollout.as_ref();
    let rollout = rollout.ok_or_else(|| Error::new(format_args!("how the rollout of {id} goes is not known yet"), "try it again soon"))?;
    Ok(&rollout.template)
}

/// The template that is gone back to.
fn stable(fleet: &Fleet) -> Result<&str, Error> {
    let id = format!("{}/{}", fleet.namespace, fleet.name);
    let wanted = template(fleet)?;
    match fleet.rollout.as_ref().and_then(|rollout| rollout.stable.as_deref()) {
        Some(stable) if stable != wanted => Ok(stable),
        Some(_) => Err(Error::new(
            format_args!("there is no rollout of {id} to abort: all of it runs the template {wanted}"),
            "change the spec to what it was before",
        )),
        None => Err(Error::new(
            format_args!("the rollout of {id} cannot be aborted: no template ever ran in the whole fleet, so there is none to go back to"),
            "correct the spec instead, or pause the rollout",
        )),
    }
}

/// What the object of a fleet says.
fn fleet(object: &Value) -> Fleet {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let status = IngressDeploymentStatus::deserialize(&object["status"]).unwrap_or_default();
    Fleet {
        namespace: text(&object["metadata"]["namespace"]),
        name: text(&object["metadata"]["name"]),
        class: text(&object["spec"]["ingressClassName"]),
        revision: status.revision.and_then(|revision| u64::try_from(revision).ok()).unwrap_or(0),
        // of an older spec it says nothing
        rollout: status
            .rollout
            .as_ref()
            .filter(|_| status.observed_generation == object["metadata"]["generation"].as_i64())
            .map(json::Rollout::from),
        ..Fleet::default()
    }
}

fn failed(what: &str, error: &kube::Error) -> Error {
    let help = match error {
        kube::Error::Api(status) if status.is_forbidden() => {
            "ask for the permission to list and patch ingressdeployments.haproxy-fleet.dev there"
        }
        kube::Error::Api(status) if status.is_not_found() => {
            "install the custom resource definitions: haproxy-fleet crds | kubectl apply --server-side -f -"
        }
        _ => "see whether kubectl gets an answer with the same context",
    };
    Error::new(format_args!("{what}: {}", with_causes(error)), help)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn object(stable: &str) -> Value {
        json!({
            "apiVersion": crate::api::API_VERSION, "kind": "IngressDeployment",
            "metadata": {"namespace": "infra", "name": "edge", "generation": 1},
            "spec": {"ingressClassName": "edge"},
            "status": {"observedGeneration": 1, "rollout": {
                "state": "Progressing", "message": "zone a: it is its turn", "template": "t2", "stable": stable,
                "zones": [{"name": "a", "template": "t2", "replicas": 2, "updated": 1, "ready": 2, "turn": true}],
            }},
        })
    }

    /// What an order leaves of these annotations, by name.
    fn after(said: &Value, order: &Order) -> Result<Value, String> {
        annotations(said, &fleet(&object("t1")), order, "2026-01-31T12:00:00Z").map_err(|error| error.to_string())
    }

    #[test]
    fn an_order_is_an_annotation() {
        assert_eq!(after(&Value::Null, &Order::Pause).unwrap(), json!({"haproxy-fleet.dev/rollout": "paused"}));
        assert_eq!(after(&Value::Null, &Order::Resume).unwrap(), json!({"haproxy-fleet.dev/rollout": null}));
        assert_eq!(after(&Value::Null, &Order::Abort).unwrap(), json!({"haproxy-fleet.dev/abort": "t2"}));
        let back = |revision| after(&Value::Null, &Order::Rollback(revision)).unwrap();
        assert_eq!(back(Some(7)), json!({"haproxy-fleet.dev/rollback": "7"}));
        assert_eq!(back(None), json!({"haproxy-fleet.dev/rollback": null}));
        let restart = json!({"haproxy-fleet.dev/restarted-at": "2026-01-31T12:00:00Z", "haproxy-fleet.dev/abort": null});
        assert_eq!(after(&Value::Null, &Order::Restart).unwrap(), restart);
    }

    #[test]
    fn drains_are_added_to_what_is_drained_and_taken_out_of_it() {
        let drain = |target: &str, force| Order::Drain { target: target.parse().unwrap(), force };
        let said = |text: &str| json!({"haproxy-fleet.dev/drain": text});
        assert_eq!(after(&Value::Null, &drain("pod/a", false)).unwrap(), said("pod/a"));
        assert_eq!(after(&said("pod/a,zone/b"), &drain("pod/a", true)).unwrap(), said("zone/b,pod/a:force"));
        assert_eq!(after(&said("pod/a,nonsense"), &drain("node/n", false)).unwrap(), said("pod/a,node/n"));
        let undrain = |target: &str| Order::Undrain(target.parse().unwrap());
        assert_eq!(after(&said("pod/a:force"), &undrain("pod/a")).unwrap(), json!({"haproxy-fleet.dev/drain": null}));
        let refused = after(&said("pod/a"), &undrain("pod/b")).unwrap_err();
        assert!(refused.contains("pod/b of infra/edge is not drained by hand") && refused.contains("these are: pod/a"), "{refused}");
    }

    #[test]
    fn what_is_not_there_is_not_drained_and_what_is_there_is_named() {
        let mut edge = fleet(&object("t1"));
        edge.replicas = vec![Replica { name: "edge-1".into(), zone: Some("b".into()), ..Replica::default() }];
        let said = |target: &str| has(&edge, &target.parse().unwrap()).map_err(|error| error.to_string());
        assert_eq!((said("pod/edge-1"), said("zone/a"), said("zone/b"), said("node/n")), (Ok(()), Ok(()), Ok(()), Ok(())));
        let refused = said("pod/edge-2").unwrap_err();
        assert!(refused.contains("infra/edge has no pod edge-2") && refused.contains("it has edge-1"), "{refused}");
        assert!(said("zone/c").unwrap_err().contains("it has a, b"));
    }

    #[test]
    fn what_cannot_be_aborted_says_why() {
        assert_eq!(stable(&fleet(&object("t1"))).unwrap(), "t1");
        assert!(stable(&fleet(&object("t2"))).unwrap_err().to_string().contains("there is no rollout of infra/edge to abort"));
        let mut first = object("t1");
        first["status"]["rollout"].as_object_mut().unwrap().remove("stable");
        assert!(stable(&fleet(&first)).unwrap_err().to_string().contains("there is none to go back to"));
        first["metadata"]["generation"] = json!(2);
        assert!(template(&fleet(&first)).unwrap_err().to_string().contains("is not known yet"), "the status is about an older spec");
    }

    #[tokio::test]
    async fn orders_reach_the_object_and_leave_other_annotations_alone() {
        let server = fleet_api_server::ApiServer::new();
        for definition in crate::api::crds() {
            assert!(server.define(&json!(definition)));
        }
        server.put(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "infra"}})).unwrap();
        let mut edge = object("t1");
        edge["metadata"]["annotations"] = json!({"mine": "x"});
        server.put(&edge).unwrap();
        let cluster = Cluster { client: server.client(), namespace: Some("infra".to_owned()) };
        let status = cluster.status().await.unwrap();
        let done = cluster.order(&status.fleets[0], &Order::Pause).await.unwrap();
        assert_eq!(done.message, "the rollout of infra/edge is paused; sizes and drains by hand go on");
        let now = server.get(crate::api::API_VERSION, "IngressDeployment", "infra", "edge").unwrap();
        assert_eq!(now["metadata"]["annotations"], json!({"mine": "x", "haproxy-fleet.dev/rollout": "paused"}));
    }
}
