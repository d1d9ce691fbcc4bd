//! What the schema of a custom resource does to an object: unknown fields go, defaults come.
//!
//! Source: "Field pruning" and "Defaulting" of the documentation of `CustomResourceDefinition`.

use crate::kinds::Kind;
use serde_json::Value;

/// Prunes and sets defaults. Built-in kinds stay as they are: their defaults are not modelled.
pub(crate) fn shape(kind: &Kind, object: &mut Value) {
    let Some(schema) = &kind.schema else { return };
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        if matches!(name.as_str(), "apiVersion" | "kind" | "metadata") {
            continue;
        }
        if object.get(name).is_none() && !field["default"].is_null() {
            object[name] = field["default"].clone();
        }
        if let Some(value) = object.get_mut(name) {
            descend(field, value);
        }
    }
}

fn descend(schema: &Value, value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let Some(properties) = schema["properties"].as_object() {
                if schema["x-kubernetes-preserve-unknown-fields"] != true {
                    map.retain(|name, _| properties.contains_key(name));
                }
                for (name, field) in properties {
                    if !map.contains_key(name) && !field["default"].is_null() {
                        map.insert(name.clone(), field["default"].clone());
                    }
                    if let Some(value) = map.get_mut(name) {
                        descend(field, value);
                    }
                }
            } else if schema["additionalProperties"].is_object() {
                map.values_mut().for_each(|value| descend(&schema["additionalProperties"], value));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| descend(&schema["items"], item)),
        _ => {}
    }
}
