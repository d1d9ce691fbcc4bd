//! `metadata.managedFields`: who owns which field.

use crate::fields::{Fields, differing, fields_of};
use crate::kinds::Kind;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// What a manager did: one entry of `managedFields`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Manager {
    /// `Apply` or `Update`: in this order.
    pub(crate) operation: &'static str,
    pub(crate) name: String,
    /// `status`, or empty.
    pub(crate) subresource: String,
}

#[derive(Clone, Debug)]
struct Entry {
    fields: Fields,
    time: String,
}

/// All entries of one object.
#[derive(Clone, Debug, Default)]
pub(crate) struct Managed(BTreeMap<Manager, Entry>);

/// Fields of the metadata that nobody owns.
/// Source: `stripFields` in `k8s.io/apimachinery/pkg/util/managedfields/internal/stripmeta.go`.
const NOBODYS: [&str; 11] = [
    "name",
    "namespace",
    "creationTimestamp",
    "selfLink",
    "uid",
    "clusterName",
    "generation",
    "managedFields",
    "resourceVersion",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];

/// The part of an object that can be owned through a subresource.
pub(crate) fn ownable(kind: &Kind, object: &Value, subresource: &str) -> Value {
    let mut part = Map::new();
    for (name, value) in object.as_object().into_iter().flatten() {
        let is_status = name == "status";
        let wanted = match (subresource, name.as_str()) {
            (_, "apiVersion" | "kind") => false,
            ("status", _) => is_status,
            _ => !(is_status && kind.has_status),
        };
        if wanted {
            part.insert(name.clone(), value.clone());
        }
    }
    if let Some(metadata) = part.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|name, _| !NOBODYS.contains(&name.as_str()));
        if metadata.is_empty() {
            part.remove("metadata");
        }
    }
    Value::Object(part)
}

/// The fields of an object that can be owned through a subresource.
pub(crate) fn ownable_fields(kind: &Kind, object: &Value, subresource: &str) -> Fields {
    let part = ownable(kind, object, subresource);
    if part.as_object().is_some_and(Map::is_empty) { Fields::default() } else { fields_of(kind, &mut Vec::new(), &part) }
}

impl Managed {
    pub(crate) fn of(object: &Value) -> Self {
        let entries = object["metadata"]["managedFields"].as_array().into_iter().flatten();
        let text = |entry: &Value, field: &str| entry[field].as_str().unwrap_or_default().to_owned();
        Self(
            entries
                .map(|entry| {
                    let operation = if entry["operation"] == "Apply" { "Apply" } else { "Update" };
                    let manager = Manager { operation, name: text(entry, "manager"), subresource: text(entry, "subresource") };
                    (manager, Entry { fields: Fields::from_json(&entry["fieldsV1"]), time: text(entry, "time") })
                })
                .collect(),
        )
    }

    /// None if nobody owns anything.
    pub(crate) fn to_json(&self, kind: &Kind) -> Option<Value> {
        let entries = self.0.iter().map(|(manager, entry)| {
            let mut json = json!({
                "manager": manager.name, "operation": manager.operation, "apiVersion": kind.api_version, "time": entry.time,
                "fieldsType": "FieldsV1", "fieldsV1": entry.fields.to_json(),
            });
            if !manager.subresource.is_empty() {
                json["subresource"] = json!(manager.subresource);
            }
            json
        });
        Some(Value::Array(entries.collect())).filter(|_| !self.0.is_empty())
    }

    pub(crate) fn get(&self, manager: &Manager) -> Fields {
        self.0.get(manager).map(|entry| entry.fields.clone()).unwrap_or_default()
    }

    pub(crate) fn set(&mut self, manager: &Manager, fields: Fields, now: &str) {
        if fields.is_empty() {
            self.0.remove(manager);
            return;
        }
        if self.0.get(manager).is_none_or(|entry| entry.fields != fields) {
            self.0.insert(manager.clone(), Entry { fields, time: now.to_owned() });
        }
    }

    /// The others and what they own.
    pub(crate) fn others(&self, but: &Manager) -> Vec<(Manager, Fields)> {
        let others = self.0.iter().filter(|(manager, _)| *manager != but);
        others.map(|(manager, entry)| (manager.clone(), entry.fields.clone())).collect()
    }

    /// Gives a manager what it changed by an update, and takes that from everybody else.
    pub(crate) fn track(&mut self, kind: &Kind, manager: &Manager, before: &Value, after: &Value, now: &str) {
        let (old, new) = (ownable(kind, before, &manager.subresource), ownable(kind, after, &manager.subresource));
        let old_fields = ownable_fields(kind, before, &manager.subresource);
        let new_fields = ownable_fields(kind, after, &manager.subresource);
        let removed = old_fields.difference(&new_fields);
        let changed = differing(&new_fields, kind, &mut Vec::new(), Some(&old), Some(&new));
        for (other, fields) in self.others(manager) {
            self.set(&other, fields.difference(&removed).difference(&changed), now);
        }
        let mine = self.get(manager).difference(&removed).union(&changed);
        self.set(manager, mine, now);
    }
}
