//! The JSON of `/status`, `lint -o json` and `diff -o json`.
//!
//! A contract with readers outside: fields are added, never renamed. Every field is always present; what is not
//! known is `null`.

use crate::api::{RolloutStatus, ZoneStatus};
use crate::report;
use serde::{Deserialize, Serialize};

/// The whole document of `/status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Status {
    /// Whether every fleet serves with all its replicas.
    pub ready: bool,
    /// The replica of the operator that says all this; `null` in `local`.
    pub operator: Option<Operator>,
    /// Fleets in the order of namespace and name.
    pub fleets: Vec<Fleet>,
    /// All present findings.
    pub diagnostics: Vec<Diagnostic>,
}

/// A replica of the operator. Only the one that leads knows the states and pods of fleets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Operator {
    /// Its pod.
    pub pod: String,
    /// Whether it leads.
    pub leads: bool,
    /// Whether it has seen all objects.
    pub whole: bool,
}

/// One fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Fleet {
    /// Namespace of the `IngressDeployment`.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its class.
    pub class: String,
    /// Whether it is as asked: its condition `Ready`.
    pub ready: Option<bool>,
    /// The reason of that, in `CamelCase`.
    pub state: Option<String>,
    /// The message of that.
    pub message: Option<String>,
    /// Replicas that are wanted.
    pub desired: Option<u64>,
    /// Where clients connect to, without ports.
    pub addresses: Vec<String>,
    /// Its ten worst findings, the worst first; all are in `diagnostics` of the document.
    pub worst: Vec<Diagnostic>,
    /// Number of the last change of sections, backends or routing maps.
    pub revision: u64,
    /// The revision that people went back to; `null` if what is asked for is served, or if that is not known here.
    pub pinned: Option<u64>,
    /// The revisions that can be gone back to, the oldest first. In a cluster they are Secrets, and none is named here.
    pub revisions: Vec<Revision>,
    /// Number of the last change of anything.
    pub generation: u64,
    /// Identity of the wanted bundle.
    pub digest: String,
    /// Stable addresses that clients use.
    pub listeners: Vec<Listener>,
    /// Replicas by name.
    pub replicas: Vec<Replica>,
    /// Some URLs that the fleet answers, to try it out.
    pub urls: Vec<String>,
    /// How its pods are replaced.
    pub rollout: Option<Rollout>,
}

/// A revision that can be gone back to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Revision {
    /// Its number.
    pub number: u64,
    /// Since when it is kept.
    pub since: String,
    /// Its identity.
    pub digest: String,
}

/// How the pods of a fleet are replaced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rollout {
    /// `Complete`, `Progressing`, `Waiting`, `Paused` (the rollout), `Frozen` (`spec.paused`), `Aborted` or `Stalled`.
    pub state: String,
    /// The template that all pods are to have.
    pub template: String,
    /// The one that all of them had last.
    pub stable: Option<String>,
    /// What is done, or waited for, the most important thing first.
    pub reasons: Vec<String>,
    /// The zones in the order in which they are changed.
    pub zones: Vec<RolloutZone>,
    /// The pods that are drained by hand.
    pub drained: Vec<String>,
}

impl From<&RolloutStatus> for Rollout {
    fn from(status: &RolloutStatus) -> Self {
        let count = |number: i32| u64::try_from(number).unwrap_or(0);
        let zone = |zone: &ZoneStatus| RolloutZone {
            name: (!zone.name.is_empty()).then(|| zone.name.clone()),
            template: zone.template.clone(),
            pods: count(zone.replicas),
            updated: if zone.template == status.template { count(zone.updated) } else { 0 },
            ready: count(zone.ready),
            turn: zone.turn,
            paused: zone.paused,
        };
        Self {
            state: status.state.clone(),
            template: status.template.clone(),
            stable: status.stable.clone(),
            reasons: status.message.split("; ").filter(|reason| !reason.is_empty()).map(str::to_owned).collect(),
            zones: status.zones.iter().map(zone).collect(),
            drained: status.drained.clone(),
        }
    }
}

/// How far a zone is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RolloutZone {
    /// Its name; `null` where no zones are listed.
    pub name: Option<String>,
    /// The template that its pods get.
    pub template: String,
    /// Pods that are not on their way out.
    pub pods: u64,
    /// Those of them that have the template that all are to have.
    pub updated: u64,
    /// Those of them that serve.
    pub ready: u64,
    /// Whether pods may be taken from it.
    pub turn: bool,
    /// Whether no more of its pods are replaced for now.
    pub paused: bool,
}

/// An address that is listened on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listener {
    /// The listener's name.
    pub name: String,
    /// What is spoken there.
    pub protocol: Protocol,
    /// `ip:port`, or `[ip6]:port`.
    pub address: String,
}

/// What is spoken on a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Protocol {
    /// Plain HTTP.
    Http,
    /// HTTP over TLS that ends here.
    Https,
    /// TLS that is passed on unopened.
    Tls,
    /// Plain TCP.
    Tcp,
}

impl Protocol {
    /// As in the JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "HTTP",
            Self::Https => "HTTPS",
            Self::Tls => "TLS",
            Self::Tcp => "TCP",
        }
    }
}

/// One HAProxy of a fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Replica {
    /// Its name.
    pub name: String,
    /// Its zone, if the fleet has zones.
    pub zone: Option<String>,
    /// The template that it was made from; `null` if that is not known here.
    pub template: Option<String>,
    /// Whether it is on its way out; `null` if that is not known here.
    pub ends: Option<bool>,
    /// Whether it serves.
    pub ready: bool,
    /// Whether its agent is connected.
    pub connected: bool,
    /// Whether it confirms what the fleet is meant to serve.
    pub confirmed: bool,
    /// The version of its HAProxy.
    pub haproxy_version: Option<String>,
    /// The generation that it serves.
    pub generation: u64,
    /// Its own addresses.
    pub listeners: Vec<Listener>,
    /// Reloads since it started.
    pub reload_count: u64,
    /// The last 50 of them.
    pub reloads: Vec<Reload>,
    /// Runtime commands since it started.
    pub runtime_commands: u64,
    /// What it does not serve because its HAProxy refused it.
    pub refused: Vec<Refused>,
}

/// A reload and what asked for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reload {
    /// The generation that it brought.
    pub generation: u64,
    /// Why it could not be done live.
    pub reason: String,
    /// That in one of a dozen words, for counting.
    pub cause: String,
}

/// A refusal of HAProxy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The generation that was refused.
    pub generation: u64,
    /// The object that it comes from, if that is known.
    pub object: Option<Object>,
    /// What HAProxy said.
    pub message: String,
}

/// Names an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Object {
    /// As in a manifest's `kind`.
    pub kind: String,
    /// Empty for cluster-scoped kinds.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl From<&report::ObjectRef> for Object {
    fn from(object: &report::ObjectRef) -> Self {
        Self { kind: object.kind.to_string(), namespace: object.namespace.to_string(), name: object.name.to_string() }
    }
}

/// A finding.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Diagnostic {
    /// Stable name of the kind of finding.
    pub code: String,
    /// `error`, `warning` or `info`.
    pub severity: String,
    /// About which object.
    pub object: Object,
    /// About which field of it; empty for the whole object.
    pub field: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub help: String,
    /// The file that the object came from.
    pub file: Option<String>,
    /// The line in it, from 1.
    pub line: Option<u32>,
}

impl From<&report::Located> for Diagnostic {
    fn from(report::Located { diagnostic, location }: &report::Located) -> Self {
        Self {
            code: diagnostic.code.as_str().to_owned(),
            severity: diagnostic.severity.as_str().to_owned(),
            object: Object::from(&diagnostic.object),
            field: diagnostic.field.clone(),
            message: diagnostic.message.clone(),
            help: diagnostic.help.clone(),
            file: location.as_ref().map(|location| location.file.clone()),
            line: location.as_ref().map(|location| location.line),
        }
    }
}

/// The document of `diff -o json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Diff {
    /// What would change.
    pub changes: Vec<Change>,
    /// Findings in the newer input.
    pub diagnostics: Vec<Diagnostic>,
}

/// One change of a fleet's bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The resource that changes, after its fleet: `edge/public: backend shop_cart_80`.
    pub key: String,
    /// The object that it comes from, if it comes from one.
    pub object: Option<Object>,
    /// How it is put into effect.
    pub class: Class,
    /// Why in that way.
    pub reason: String,
}

/// The document of `GET /fleets/NAMESPACE/NAME/config`: what the replicas of a fleet are given.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Number of the last change of sections, backends or routing maps.
    pub revision: u64,
    /// Number of the last change of anything.
    pub generation: u64,
    /// The files that HAProxy reads, in the order of their paths.
    pub files: Vec<ConfigFile>,
}

/// A file that HAProxy reads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConfigFile {
    /// Relative to the configuration directory.
    pub path: String,
    /// How large it is.
    pub bytes: u64,
    /// What is in it; `null` if that is a private key.
    pub text: Option<String>,
}

/// How a change is put into effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// In the running worker, at once.
    Live,
    /// A removal that waits for the next reload and asks for none.
    Deferred,
    /// By a new worker.
    Reload,
}

impl Class {
    /// As in the JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Deferred => "deferred",
            Self::Reload => "reload",
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    #[test]
    fn the_status_document_has_exactly_the_documented_fields() {
        let listener = Listener { name: "http".into(), protocol: Protocol::Http, address: "127.0.0.1:80".into() };
        let object = report::ObjectRef::new(report::Kind::Ingress, "shop", "web");
        let finding = report::Diagnostic::error(&object, "spec", report::codes::NOT_FOUND, "no Service", "create it");
        let status = Status {
            ready: true,
            operator: Some(Operator { pod: "haproxy-fleet-0".into(), leads: true, whole: true }),
            fleets: vec![Fleet {
                namespace: "edge".into(),
                name: "public".into(),
                class: "public".into(),
                ready: Some(true),
                state: Some("AsAsked".into()),
                message: Some("the fleet serves as asked".into()),
                desired: Some(1),
                addresses: vec!["192.0.2.1".into()],
                worst: vec![(&report::Located::from(finding.clone())).into()],
                urls: Vec::new(),
                rollout: Some(Rollout {
                    state: "Progressing".into(),
                    template: "t2".into(),
                    stable: Some("t1".into()),
                    reasons: vec!["zone a: its pods are replaced".into()],
                    zones: vec![RolloutZone {
                        name: Some("a".into()),
                        template: "t2".into(),
                        pods: 3,
                        updated: 1,
                        ready: 2,
                        turn: true,
                        paused: false,
                    }],
                    drained: vec!["public-0".into()],
                }),
                revision: 1,
                pinned: Some(1),
                revisions: vec![Revision { number: 1, since: "2026-01-31T12:00:00Z".into(), digest: "0a".into() }],
                generation: 2,
                digest: "00".into(),
                listeners: vec![listener.clone()],
                replicas: vec![Replica {
                    name: "public-0".into(),
                    ready: true,
                    connected: true,
                    confirmed: true,
                    haproxy_version: Some("3.4.7".into()),
                    generation: 2,
                    listeners: vec![listener],
                    reload_count: 1,
                    reloads: vec![Reload { generation: 2, reason: "a new listener".into(), cause: "section".into() }],
                    runtime_commands: 3,
                    refused: vec![Refused { generation: 1, object: Some((&object).into()), message: "no".into() }],
                    zone: None,
                    template: Some("t1".into()),
                    ends: Some(false),
                }],
            }],
            diagnostics: vec![(&report::Located::from(finding)).into()],
        };
        let listener = json!({"name": "http", "protocol": "HTTP", "address": "127.0.0.1:80"});
        let object = json!({"kind": "Ingress", "namespace": "shop", "name": "web"});
        let finding = json!({
            "code": "NotFound", "severity": "error", "object": object, "field": "spec", "message": "no Service",
            "help": "create it", "file": null, "line": null,
        });
        let replica = json!({
            "name": "public-0", "zone": null, "template": "t1", "ends": false,
            "ready": true, "connected": true, "confirmed": true, "haproxy_version": "3.4.7",
            "generation": 2, "listeners": [listener], "reload_count": 1,
            "reloads": [{"generation": 2, "reason": "a new listener", "cause": "section"}], "runtime_commands": 3,
            "refused": [{"generation": 1, "object": object, "message": "no"}],
        });
        assert_eq!(
            serde_json::to_value(&status).unwrap(),
            json!({
                "ready": true,
                "operator": {"pod": "haproxy-fleet-0", "leads": true, "whole": true},
                "fleets": [{
                    "namespace": "edge", "name": "public", "class": "public", "ready": true, "state": "AsAsked",
                    "message": "the fleet serves as asked", "desired": 1, "addresses": ["192.0.2.1"], "worst": [finding],
                    "urls": [], "rollout": {
                        "state": "Progressing", "template": "t2", "stable": "t1", "reasons": ["zone a: its pods are replaced"],
                        "zones": [{
                            "name": "a", "template": "t2", "pods": 3, "updated": 1, "ready": 2, "turn": true, "paused": false,
                        }],
                        "drained": ["public-0"],
                    },
                    "revision": 1, "pinned": 1,
                    "revisions": [{"number": 1, "since": "2026-01-31T12:00:00Z", "digest": "0a"}],
                    "generation": 2, "digest": "00",
                    "listeners": [listener],
                    "replicas": [replica],
                }],
                "diagnostics": [finding],
            })
        );
    }

    #[test]
    fn a_change_names_its_class_in_lower_case() {
        let change = Change { key: "servers a".into(), object: None, class: Class::Deferred, reason: "unused".into() };
        let json = json!({"key": "servers a", "object": null, "class": "deferred", "reason": "unused"});
        assert_eq!(serde_json::to_value(change).unwrap(), json);
    }
}
