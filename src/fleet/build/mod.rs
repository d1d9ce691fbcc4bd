//! The Kubernetes objects that one `IngressDeployment` asks for. Pure: the same input leads to the same bytes.
//!
//! One file for each kind of object. What comes out is for server-side apply: every body holds `apiVersion`, `kind` and
//! the fields that are ours, no others, so that what other people and controllers write stays.

mod autoscaler;
pub(super) mod budget;
mod config_map;
pub(super) mod deployment;
mod guard;
mod in_use;
mod ingress_class;
mod names;
mod network_policy;
mod patch;
mod pod;
mod pod_monitor;
mod restricted;
mod secret;
mod service;
mod service_account;
mod template;

pub use in_use::{ANNOTATION_DRAINED, ANNOTATION_PREVIOUS, ANNOTATION_TEMPLATE, ANNOTATION_TURN, Applied, InUse};
pub use names::{COMPONENT, LABEL_FLEET, LABEL_FLEET_NAMESPACE, LABEL_ZONE, Names, selector_text};
pub use pod::{AGENT, HAPROXY, INSTALL};

use super::rollout::{Change, Template};
use crate::api::{HaproxyLine, IngressDeployment, PublishingType, Verbs};
use crate::report::{Diagnostic, Kind, ObjectRef, PrivateBytes};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;

/// What says `controller` in the `IngressClass` of a fleet.
pub const CONTROLLER: &str = "haproxy-fleet.dev/ingress";
/// Annotation of the Secret with keys: since when those of tickets are what they are (RFC 3339).
pub const ANNOTATION_TICKETS_SINCE: &str = "haproxy-fleet.dev/tickets-since";

/// An object as it is to be.
#[derive(Clone, PartialEq)]
pub struct Desired {
    /// Its `apiVersion`.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// The kind's name in URLs.
    pub plural: String,
    /// Its namespace; `None`: it is cluster-scoped.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// The fields that are ours, `apiVersion` and `kind` among them.
    pub body: Value,
    /// How it hangs together with the fleet.
    pub ownership: Ownership,
    /// The `resourceVersion` on which it was decided, if nothing else may be changed.
    pub only_if: Option<String>,
}

/// How an object hangs together with its fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ownership {
    /// The `IngressDeployment` is its controller: it goes when that goes. For what is harmless to lose.
    Owned,
    /// By labels only, so that no cascade takes it before traffic is withdrawn and drained.
    Labelled,
}

impl Desired {
    /// The body without what must stay private and what is there twice: for people and for reviews.
    pub fn redacted(&self) -> Value {
        let mut body = self.body.clone();
        if let Some(annotations) = body.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) {
            annotations.remove(in_use::ANNOTATION_APPLIED);
        }
        if self.kind == "Secret" {
            for value in body["data"].as_object_mut().into_iter().flat_map(|data| data.values_mut()) {
                *value = json!("[redacted]");
            }
        }
        body
    }
}

impl fmt::Debug for Desired {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desired").field("ownership", &self.ownership).field("body", &self.redacted()).finish_non_exhaustive()
    }
}

/// What every fleet of an operator has in common, and the keys of this one.
#[derive(Clone, Debug)]
pub struct Context {
    /// The operator's namespace.
    pub operator_namespace: String,
    /// The operator's image, which brings the agent.
    pub operator_image: String,
    /// The image of HAProxy for each release line.
    pub haproxy_images: BTreeMap<HaproxyLine, String>,
    /// The Service that leads agents to all replicas of the operator.
    pub agents_service: String,
    /// The port that the operator answers agents on.
    pub agents_port: u16,
    /// The CA certificates that agents trust, PEM.
    pub ca_bundle: String,
    /// The keys of TLS session tickets of this fleet, as `haproxy::tickets` makes them.
    pub ticket_keys: PrivateBytes,
    /// Since when these (RFC 3339), if somebody renews them.
    pub ticket_keys_since: Option<String>,
    /// The certificate and key that this fleet serves where no other fits, PEM.
    pub default_certificate: PrivateBytes,
    /// Whether it is this fleet's turn to take what a new operator brings: one fleet after the other.
    pub upgrade_turn: bool,
    /// Whether Services know `trafficDistribution`: Kubernetes 1.31 and newer.
    pub traffic_distribution: bool,
}

/// What is in the cluster already, as far as a decision needs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Services of the fleet's namespace that have a name of ours.
    pub services: BTreeMap<String, ObservedService>,
    /// What the Deployments of the fleet are and have, by name.
    pub deployments: BTreeMap<String, InUse>,
    /// Bytes of all that HAProxy reads: the bundle's size.
    pub bundle_bytes: u64,
}

/// A Service that exists.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedService {
    /// Its `spec.type`.
    pub kind: String,
    /// Its `spec.loadBalancerClass`.
    pub class: Option<String>,
    /// An address by which its load balancer can be reached.
    pub address: Option<String>,
}

impl ObservedService {
    /// What matters of a Service as the API server gives it.
    pub fn of(service: &Value) -> Self {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let ingress = &service["status"]["loadBalancer"]["ingress"][0];
        Self {
            kind: text(&service["spec"]["type"]).unwrap_or_else(|| "ClusterIP".to_owned()),
            class: text(&service["spec"]["loadBalancerClass"]),
            address: text(&ingress["ip"]).or_else(|| text(&ingress["hostname"])),
        }
    }
}

/// A fleet whose objects are made.
#[derive(Clone, Copy, Debug)]
pub struct Fleet<'a> {
    /// What is asked for.
    pub deployment: &'a IngressDeployment,
    /// Its `metadata.uid`.
    pub uid: &'a str,
    /// What all fleets have in common.
    pub context: &'a Context,
    /// What is there already.
    pub observed: &'a Observed,
    /// What is to be done to the Deployment of a zone. The others keep template and size.
    pub change: Option<(Option<&'a str>, &'a Change)>,
}

impl Fleet<'_> {
    /// Who it is.
    pub fn object(&self) -> ObjectRef {
        let meta = &self.deployment.meta;
        ObjectRef::new(Kind::IngressDeployment, meta.namespace.clone(), meta.name.clone())
    }

    /// How people steer it.
    pub fn verbs(&self) -> Verbs {
        Verbs::of(&self.deployment.meta.annotations, &self.object())
    }

    /// The names of its objects.
    pub fn names(&self) -> Names<'_> {
        Names { namespace: &self.deployment.meta.namespace, fleet: &self.deployment.meta.name }
    }

    fn publishing(&self) -> PublishingType {
        self.deployment.spec.publishing.kind
    }

    /// An object of the fleet's namespace: what all have, and the fields `rest`.
    fn namespaced(&self, group: Group, name: &str, ownership: Ownership, rest: &Value) -> Desired {
        let names = self.names();
        let mut metadata = json!({"name": name, "namespace": names.namespace, "labels": names.labels()});
        if ownership == Ownership::Owned {
            metadata["ownerReferences"] = json!([{
                "apiVersion": crate::api::API_VERSION, "kind": "IngressDeployment", "name": names.fleet, "uid": self.uid,
                "controller": true,
            }]);
        }
        group.desired(Some(names.namespace.to_owned()), name, &metadata, ownership, rest)
    }
}

/// A kind as the API server has it.
#[derive(Clone, Copy, Debug)]
struct Group {
    api_version: &'static str,
    kind: &'static str,
    plural: &'static str,
}

impl Group {
    fn desired(self, namespace: Option<String>, name: &str, metadata: &Value, ownership: Ownership, rest: &Value) -> Desired {
        let mut body = json!({"apiVersion": self.api_version, "kind": self.kind, "metadata": metadata});
        json_patch::merge(&mut body, rest);
        Desired {
            api_version: self.api_version.to_owned(),
            kind: self.kind.to_owned(),
            plural: self.plural.to_owned(),
            namespace,
            name: name.to_owned(),
            body,
            ownership,
            only_if: None,
        }
    }
}

/// The pod template that `fleet` asks for.
///
/// # Errors
///
/// What of the spec cannot be done.
pub fn wanted_template(fleet: Fleet<'_>) -> Result<Template, Vec<Diagnostic>> {
    template::Wanted::of(fleet).map(|wanted| wanted.template)
}

/// The objects that `fleet` asks for, in an order in which they can be applied: what pods need comes before pods.
///
/// # Errors
///
/// What of the spec cannot be done. Nothing is to be changed then: the last good objects keep serving.
pub fn build(fleet: Fleet<'_>) -> Result<Vec<Desired>, Vec<Diagnostic>> {
    let mut refused = fleet.deployment.spec.violations(&fleet.object());
    if !refused.is_empty() {
        return Err(refused);
    }
    refused.extend(service::conflicts(fleet));
    let deployments = match deployment::deployments(fleet) {
        Ok(deployments) => deployments,
        Err(errors) => {
            refused.extend(errors);
            Vec::new()
        }
    };
    if !refused.is_empty() {
        return Err(refused);
    }
    let mut objects = vec![service_account::service_account(fleet), config_map::config_map(fleet), secret::secret(fleet)];
    objects.extend(network_policy::network_policy(fleet));
    objects.extend(budget::budget(fleet));
    objects.extend(service::services(fleet));
    objects.extend(deployments);
    objects.extend(autoscaler::autoscalers(fleet));
    objects.push(ingress_class::ingress_class(fleet));
    // the last one: its kind need not exist
    objects.extend(pod_monitor::pod_monitor(fleet));
    Ok(objects)
}

#[cfg(test)]
mod tests;
