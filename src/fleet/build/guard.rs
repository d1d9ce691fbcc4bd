//! What a patch of the pod template must leave as it is: what HAProxy and its agent need to serve and to drain, what keeps
//! keys and tokens where they belong, and the Restricted Pod Security Standard.

use super::pod::{AGENT, AUDIENCE, HAPROXY, INSTALL, VOLUMES};
use super::restricted;
use serde_json::Value;

/// Fields of the pod that stay what they are.
const FIXED: [&str; 11] = [
    "serviceAccountName",
    "serviceAccount",
    "automountServiceAccountToken",
    "hostNetwork",
    "hostPID",
    "hostIPC",
    "hostUsers",
    "shareProcessNamespace",
    "restartPolicy",
    "activeDeadlineSeconds",
    "ephemeralContainers",
];
/// Fields of our containers that may change.
const FREE: [&str; 5] = ["resources", "imagePullPolicy", "env", "volumeMounts", "terminationMessagePolicy"];
/// Our containers, with the lists that they are in.
const OURS: [(&str, &str); 3] = [("initContainers", INSTALL), ("initContainers", AGENT), ("containers", HAPROXY)];

/// What of `after` must not be, as a patched `before`.
pub(super) fn faults(before: &Value, after: &Value, on_hosts: bool) -> Vec<String> {
    let mut found = Vec::new();
    metadata(&before["metadata"], &after["metadata"], &mut found);
    let (old, new) = (&before["spec"], &after["spec"]);
    found.extend(FIXED.iter().filter(|field| old[**field] != new[**field]).map(|field| format!("spec.{field} has to stay as it is")));
    let grace = |pod: &Value| pod["terminationGracePeriodSeconds"].as_i64();
    if grace(new) < grace(old) {
        found.push("spec.terminationGracePeriodSeconds has to cover the phases of the drain".to_owned());
    }
    for (list, name) in OURS {
        match (named(&old[list], name), named(&new[list], name)) {
            (Some(old), Some(new)) => container(name, old, new, &mut found),
            _ => found.push(format!("the container {name} has to stay in spec.{list}")),
        }
    }
    let order = |list: &Value| items(list).filter_map(|item| item["name"].as_str()).position(|name| name == INSTALL);
    let agent = items(&new["initContainers"]).position(|item| item["name"] == AGENT);
    if order(&new["initContainers"]) > agent {
        found.push(format!("the container {INSTALL} has to come before {AGENT}"));
    }
    volumes(old, new, &mut found);
    found.extend(restricted::faults(after, on_hosts));
    found
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

fn named<'v>(list: &'v Value, name: &str) -> Option<&'v Value> {
    items(list).find(|item| item["name"] == name)
}

fn metadata(old: &Value, new: &Value, found: &mut Vec<String>) {
    for (label, value) in old["labels"].as_object().into_iter().flatten() {
        if new["labels"][label.as_str()] != *value {
            found.push(format!("the label {label} has to stay as it is"));
        }
    }
    for part in ["labels", "annotations"] {
        for key in new[part].as_object().into_iter().flat_map(|all| all.keys()) {
            if key.starts_with("haproxy-fleet.dev/") && old[part].get(key).is_none() {
                found.push(format!("metadata.{part} must not get {key}: what is below haproxy-fleet.dev/ is ours"));
            }
        }
    }
}

fn container(name: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
    let fields = |container: &Value| container.as_object().into_iter().flat_map(|all| all.keys().cloned()).collect::<Vec<_>>();
    let mut all = fields(old);
    all.extend(fields(new).into_iter().filter(|field| old.get(field).is_none()));
    let changed = all.iter().filter(|field| !FREE.contains(&field.as_str()) && old[field.as_str()] != new[field.as_str()]);
    found.extend(changed.map(|field| format!("{field} of the container {name} has to stay as it is")));
    for list in ["env", "volumeMounts"] {
        for item in items(&old[list]) {
            let key = if list == "env" { "name" } else { "mountPath" };
            let same: Vec<_> = items(&new[list]).filter(|other| other[key] == item[key]).collect();
            if same != [item] {
                let what = item[key].as_str().unwrap_or_default();
                found.push(format!("{list} of the container {name} has to keep {what} as it is"));
            }
        }
    }
    let ours: Vec<&str> = items(&old["volumeMounts"]).filter_map(|mount| mount["mountPath"].as_str()).collect();
    for mount in items(&new["volumeMounts"]).filter(|mount| !items(&old["volumeMounts"]).any(|old| old == *mount)) {
        let path = mount["mountPath"].as_str().unwrap_or_default();
        let below = |inner: &str, outer: &str| inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let clash = |ours: &&str| below(path, ours) || below(ours, path.trim_end_matches('/'));
        if VOLUMES.contains(&mount["name"].as_str().unwrap_or_default()) || ours.iter().any(clash) {
            found.push(format!("the container {name} must not get the mount {path}: it is one of ours, or hides one"));
        }
    }
}

/// Ours are as they were, and nobody else gets them.
fn volumes(old: &Value, new: &Value, found: &mut Vec<String>) {
    for name in VOLUMES {
        if named(&old["volumes"], name) != named(&new["volumes"], name) {
            found.push(format!("the volume {name} has to stay as it is"));
        }
    }
    for volume in items(&new["volumes"]).filter(|volume| named(&old["volumes"], volume["name"].as_str().unwrap_or_default()).is_none()) {
        let tokens = items(&volume["projected"]["sources"]).filter_map(|source| source["serviceAccountToken"]["audience"].as_str());
        if tokens.into_iter().any(|audience| audience == AUDIENCE) {
            found.push(format!("the volume {} must not hold a token for the operator", volume["name"]));
        }
    }
    for list in ["initContainers", "containers"] {
        for container in items(&new[list]).filter(|container| !OURS.iter().any(|(_, name)| container["name"] == *name)) {
            let taken = items(&container["volumeMounts"]).filter_map(|mount| mount["name"].as_str()).find(|name| VOLUMES.contains(name));
            if let Some(volume) = taken {
                found.push(format!("the container {} must not mount the volume {volume}", container["name"]));
            }
        }
    }
}
