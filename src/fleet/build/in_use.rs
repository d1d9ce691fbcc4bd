//! What a Deployment says of itself: what a look at it has to keep, unless it is the planner's turn to change it.
//!
//! The template is kept as we wrote it, in an annotation: the API server shows it with all defaults, and what is applied
//! must be the fields that are ours and no others. The template before it is kept as well, to go back to.

use super::pod::{self, HAPROXY, INSTALL};
use super::{LABEL_ZONE, Template};
use crate::fleet::apply::owned;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Annotation of a Deployment, and of every pod: its pod template, by its hash. The same in all zones.
pub const ANNOTATION_TEMPLATE: &str = "haproxy-fleet.dev/template";
/// Annotation of a Deployment: its pod template as we applied it.
pub(super) const ANNOTATION_APPLIED: &str = "haproxy-fleet.dev/applied-template";
/// Annotation of a Deployment: the pod template that the whole fleet ran before, to go back to.
pub const ANNOTATION_PREVIOUS: &str = "haproxy-fleet.dev/previous-template";
/// Annotation of a Deployment: whether pods may be taken from its zone now.
pub const ANNOTATION_TURN: &str = "haproxy-fleet.dev/turn";
/// Annotation of a Deployment: the pods that are drained by hand, with commas between them.
pub const ANNOTATION_DRAINED: &str = "haproxy-fleet.dev/drained";

/// A pod template as it was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// Its hash.
    pub template: Template,
    /// A hash of everything that asked for it.
    pub made_from: String,
    /// When all pods were asked to be replaced last, if they were.
    pub restarted: Option<String>,
    /// The pod template itself.
    pub body: Value,
}

impl Applied {
    fn read(text: &Value) -> Option<Self> {
        let said: Value = serde_json::from_str(text.as_str()?).ok()?;
        let body = said.get("body").filter(|body| body.is_object())?.clone();
        let (template, made_from) = (Template(said["template"].as_str()?.into()), said["madeFrom"].as_str()?.to_owned());
        Some(Self { template, made_from, restarted: said["restarted"].as_str().map(str::to_owned), body })
    }

    pub(super) fn write(&self) -> String {
        let mut said = json!({"template": self.template.0, "madeFrom": self.made_from, "body": self.body});
        if let Some(restarted) = &self.restarted {
            said["restarted"] = json!(restarted);
        }
        said.to_string()
    }
}

/// What a Deployment is and has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools)] // each says what it is in Kubernetes
pub struct InUse {
    /// Its listed zone.
    pub zone: Option<String>,
    /// Its `resourceVersion`, if it was read.
    pub version: Option<String>,
    /// The pod template that it has.
    pub applied: Applied,
    /// The one before, if that is known.
    pub previous: Option<Applied>,
    /// Whether Kubernetes replaces no pods of it for now.
    pub paused: bool,
    /// Whether somebody else paused it, too: then it has to be said that it is not.
    pub shares_pause: bool,
    /// Whether pods may be taken from its zone.
    pub turn: bool,
    /// Pods that are drained by hand.
    pub drained: BTreeSet<String>,
    /// `spec.replicas`.
    pub replicas: i32,
    /// Whether `spec.replicas` is what we applied, and nobody wrote another number since.
    pub applies_size: bool,
    /// Whether it has no pods and is to have none.
    pub is_empty: bool,
    /// The image that brings the agent.
    pub operator_image: Option<String>,
    /// The image of HAProxy.
    pub haproxy_image: Option<String>,
    /// Bytes that the volume takes in which HAProxy's files are.
    pub run_volume: Option<u64>,
}

impl InUse {
    /// What matters of a Deployment as the API server gives it.
    pub fn of(deployment: &Value) -> Self {
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let (annotations, spec) = (&deployment["metadata"]["annotations"], &deployment["spec"]);
        let applied = Applied::read(&annotations[ANNOTATION_APPLIED]).unwrap_or_else(|| unknown(deployment));
        let pod = &applied.body["spec"];
        let named = |list: &str, name: &str| pod[list].as_array().into_iter().flatten().find(|item| item["name"] == name).cloned();
        let drained = annotations[ANNOTATION_DRAINED].as_str().into_iter().flat_map(|names| names.split(','));
        let replicas = spec["replicas"].as_i64().and_then(|replicas| replicas.try_into().ok()).unwrap_or(1);
        let is_reported = deployment["status"]["observedGeneration"] == deployment["metadata"]["generation"];
        Self {
            is_empty: replicas == 0 && is_reported && deployment["status"]["replicas"].as_i64().unwrap_or(0) == 0,
            zone: text(&spec["selector"]["matchLabels"][LABEL_ZONE]),
            version: text(&deployment["metadata"]["resourceVersion"]),
            previous: Applied::read(&annotations[ANNOTATION_PREVIOUS]),
            paused: spec["paused"] == true,
            shares_pause: spec["paused"] == true && owned::is_shared(deployment, "paused"),
            applies_size: owned::is_applied(deployment, "replicas"),
            turn: annotations[ANNOTATION_TURN] == "true",
            drained: drained.filter(|name| !name.is_empty()).map(str::to_owned).collect(),
            replicas,
            operator_image: named("initContainers", INSTALL).and_then(|container| text(&container["image"])),
            haproxy_image: named("containers", HAPROXY).and_then(|container| text(&container["image"])),
            run_volume: named("volumes", pod::RUN).and_then(|volume| pod::volume_bytes(volume["emptyDir"]["sizeLimit"].as_str()?)),
            applied,
        }
    }
}

/// The template of a Deployment that does not say what we applied: an older operator wrote it, or somebody took the
/// annotation away. It is kept as it is, until it is replaced.
fn unknown(deployment: &Value) -> Applied {
    Applied {
        template: Template("unknown".into()),
        made_from: String::new(),
        restarted: None,
        body: deployment["spec"]["template"].clone(),
    }
}
