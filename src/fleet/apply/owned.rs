//! What of an object is ours, by its `managedFields`, and whether that is as it is to be.
//!
//! The names of fields are those of `FieldsV1`: `f:NAME`, `k:{KEYS}` (an item of a list by key), `v:VALUE` (of a set).

use serde_json::{Map, Value, json};

/// Whose fields they are: the manager of everything that `apply` writes.
pub(super) const MANAGER: &str = "haproxy-fleet";

/// The fields that we applied, as `fieldsV1` has them. None: we never wrote the object.
pub(super) fn fields(live: &Value) -> Option<&Value> {
    entries(live).find(|entry| is_ours(entry)).map(|entry| &entry["fieldsV1"])
}

fn entries(live: &Value) -> impl Iterator<Item = &Value> {
    live["metadata"]["managedFields"].as_array().into_iter().flatten()
}

fn is_ours(entry: &Value) -> bool {
    entry["manager"] == MANAGER && entry["operation"] == "Apply" && entry["subresource"].is_null()
}

/// Whether we applied the field `name` of the spec: it is gone once we do so no more, unless somebody else wrote it, too.
pub(in crate::fleet) fn is_applied(live: &Value, name: &str) -> bool {
    fields(live).is_some_and(|fields| has_field(fields, name))
}

/// Whether somebody else wrote the field `name` of the spec: it stays although we apply it no more.
pub(in crate::fleet) fn is_shared(live: &Value, name: &str) -> bool {
    entries(live).any(|entry| !is_ours(entry) && has_field(&entry["fieldsV1"], name))
}

fn has_field(fields: &Value, name: &str) -> bool {
    !fields["f:spec"][format!("f:{name}")].is_null()
}

/// A hash of the fields that are ours and of their values: the same as long as nobody changes any of them. The API
/// server may write a value in another way than we do, so this is compared with what it was after our last write.
pub(super) fn fingerprint(live: &Value) -> Option<blake3::Hash> {
    let fields = fields(live)?;
    Some(blake3::hash(json!([fields, project(live, fields)]).to_string().as_bytes()))
}

/// The values of `fields`.
fn project(live: &Value, fields: &Value) -> Value {
    let below: Vec<(&String, &Value)> = fields.as_object().into_iter().flatten().filter(|(element, _)| *element != ".").collect();
    if below.is_empty() {
        return live.clone();
    }
    let values =
        below.into_iter().map(|(element, inner)| (element.clone(), at(live, element).map_or(Value::Null, |value| project(value, inner))));
    Value::Object(values.collect())
}

fn at<'a>(value: &'a Value, element: &str) -> Option<&'a Value> {
    let (tag, name) = element.split_once(':')?;
    match tag {
        "f" => value.get(name),
        "k" => {
            let keys: Map<String, Value> = serde_json::from_str(name).ok()?;
            value.as_array()?.iter().find(|item| keys.iter().all(|(key, wanted)| has_key(item, key, wanted)))
        }
        _ => {
            let wanted: Value = serde_json::from_str(name).ok()?;
            value.as_array()?.iter().find(|item| **item == wanted)
        }
    }
}

/// Ports without a protocol are TCP.
fn has_key(item: &Value, key: &str, wanted: &Value) -> bool {
    item.get(key).map_or(key == "protocol" && wanted == "TCP", |value| value == wanted)
}

/// Whether everything that `body` says is so, and nothing else is ours.
pub(super) fn is_as_wanted(live: &Value, body: &Value) -> bool {
    let Some(fields) = fields(live) else { return false };
    let mut wanted = body.clone();
    if let Some(map) = wanted.as_object_mut() {
        map.retain(|name, _| name != "apiVersion" && name != "kind");
    }
    if let Some(metadata) = wanted.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.retain(|name, _| name != "name" && name != "namespace");
    }
    is_so(live, &wanted, fields)
}

fn is_so(live: &Value, wanted: &Value, fields: &Value) -> bool {
    let ours = || fields.as_object().into_iter().flatten().map(|(element, _)| element.as_str()).filter(|element| *element != ".");
    match (live, wanted) {
        (Value::Object(live), Value::Object(wanted)) => {
            let none_left = ours().all(|element| element.strip_prefix("f:").is_none_or(|name| wanted.contains_key(name)));
            let empty = json!({});
            none_left
                && wanted.iter().all(|(name, value)| {
                    let fields = fields.get(format!("f:{name}")).unwrap_or(&empty);
                    live.get(name).is_some_and(|live| is_so(live, value, fields))
                })
        }
        (Value::Array(live_items), Value::Array(items)) => {
            let keyed: Vec<&str> = ours().filter(|element| element.starts_with("k:") || element.starts_with("v:")).collect();
            if keyed.is_empty() {
                // one owner of the whole list; the API server may have set defaults in its items
                let empty = json!({});
                return live_items.len() == items.len() && live_items.iter().zip(items).all(|(live, item)| is_so(live, item, &empty));
            }
            keyed.len() == items.len()
                && keyed.iter().all(|element| match (at(live, element), at(wanted, element)) {
                    (Some(live), Some(item)) => is_so(live, item, &fields[*element]),
                    _ => false,
                })
        }
        _ => live == wanted,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn live() -> Value {
        json!({
            "metadata": {"name": "a", "labels": {"ours": "1", "theirs": "1"}, "managedFields": [
                {"manager": "kubectl", "operation": "Update", "fieldsV1": {"f:metadata": {"f:labels": {"f:theirs": {}}}}},
                {"manager": MANAGER, "operation": "Apply", "fieldsV1": {
                    "f:metadata": {"f:labels": {"f:ours": {}}},
                    "f:spec": {"f:replicas": {}, "f:args": {}, "f:ports": {
                        "k:{\"port\":80,\"protocol\":\"TCP\"}": {".": {}, "f:port": {}, "f:name": {}},
                    }},
                }},
            ]},
            "spec": {"replicas": 2, "args": ["a"], "default": true, "ports": [
                {"port": 80, "protocol": "TCP", "name": "http", "nodePort": 31000}, {"port": 9, "protocol": "UDP"},
            ]},
            "status": {"ready": 1},
        })
    }

    fn body() -> Value {
        json!({"metadata": {"name": "a", "labels": {"ours": "1"}},
            "spec": {"replicas": 2, "args": ["a"], "ports": [{"port": 80, "name": "http"}]}})
    }

    /// What `change` does to the live object, and whether it is still as wanted.
    fn after(change: impl Fn(&mut Value)) -> (bool, bool) {
        let mut changed = live();
        change(&mut changed);
        (is_as_wanted(&changed, &body()), fingerprint(&changed) == fingerprint(&live()))
    }

    #[test]
    fn what_others_write_is_no_difference() {
        assert_eq!(after(|_| ()), (true, true));
        assert_eq!(after(|live| live["metadata"]["labels"]["theirs"] = json!("2")), (true, true));
        assert_eq!(after(|live| live["status"]["ready"] = json!(2)), (true, true));
        assert_eq!(after(|live| live["spec"]["ports"][0]["nodePort"] = json!(31001)), (true, true));
        assert_eq!(after(|live| _ = live["spec"]["ports"].as_array_mut().unwrap().remove(1)), (true, true));
    }

    #[test]
    fn what_is_ours_is_a_difference() {
        assert_eq!(after(|live| live["metadata"]["labels"]["ours"] = json!("2")), (false, false));
        assert_eq!(after(|live| live["spec"]["replicas"] = json!(3)), (false, false));
        assert_eq!(after(|live| live["spec"]["args"] = json!(["a", "b"])), (false, false));
        assert_eq!(after(|live| live["spec"]["ports"][0]["name"] = json!("web")), (false, false));
        assert_eq!(after(|live| live["metadata"]["managedFields"] = json!([])), (false, false));
    }

    #[test]
    fn a_field_is_ours_or_somebody_elses_by_who_wrote_it() {
        let mut live = live();
        assert_eq!((is_applied(&live, "replicas"), is_shared(&live, "replicas")), (true, false));
        live["metadata"]["managedFields"][0]["fieldsV1"]["f:spec"] = json!({"f:paused": {}});
        assert_eq!((is_applied(&live, "paused"), is_shared(&live, "paused")), (false, true));
        assert_eq!((is_applied(&live, "none"), is_shared(&live, "none")), (false, false));
    }

    #[test]
    fn what_is_not_wanted_any_more_is_a_difference() {
        for field in ["replicas", "args", "ports"] {
            let mut less = body();
            less["spec"].as_object_mut().unwrap().remove(field);
            assert!(!is_as_wanted(&live(), &less), "{field}");
        }
        let mut less = body();
        less["metadata"].as_object_mut().unwrap().remove("labels");
        assert!(!is_as_wanted(&live(), &less));
        let mut none = body();
        none.as_object_mut().unwrap().remove("spec");
        assert!(!is_as_wanted(&live(), &none));
    }
}
