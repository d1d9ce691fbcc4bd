//! What the API server checks of an object by its schema: lengths, ranges, patterns, sizes and keys of lists. Rules
//! in CEL are none of it.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool};
use serde_json::Value;
use std::collections::BTreeSet;

/// A value that the schema does not take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// Where.
    pub field: String,
    /// What is wrong.
    pub message: String,
}

/// What `schema` does not take of `value`, which stands at `field`. `matches` says whether a text has a pattern.
pub(super) fn faults(schema: &JSONSchemaProps, value: &Value, field: &str, matches: fn(&str, &str) -> bool) -> Vec<Fault> {
    let mut check = Check { matches, found: Vec::new() };
    check.value(schema, value, field);
    check.found
}

struct Check {
    matches: fn(&str, &str) -> bool,
    found: Vec<Fault>,
}

impl Check {
    fn fault(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.found.push(Fault { field: field.into(), message: message.into() });
    }

    fn value(&mut self, schema: &JSONSchemaProps, value: &Value, field: &str) {
        match value {
            Value::String(text) => self.text(schema, text, field),
            Value::Number(number) => self.number(schema, number.as_f64().unwrap_or(f64::NAN), field),
            Value::Array(items) => self.list(schema, items, field),
            Value::Object(members) => self.object(schema, members, field),
            Value::Null | Value::Bool(_) => {}
        }
    }

    fn text(&mut self, schema: &JSONSchemaProps, text: &str, field: &str) {
        let length = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
        let (least, most) = (schema.min_length.unwrap_or(0), schema.max_length.unwrap_or(i64::MAX));
        if length < least || length > most {
            self.fault(field, format!("this takes {least} to {most} characters"));
            return;
        }
        if let Some(pattern) = schema.pattern.as_deref().filter(|pattern| !(self.matches)(pattern, text)) {
            self.fault(field, format!("this does not match {pattern}"));
        }
    }

    fn number(&mut self, schema: &JSONSchemaProps, number: f64, field: &str) {
        let (least, most) = (schema.minimum.unwrap_or(f64::MIN), schema.maximum.unwrap_or(f64::MAX));
        if number < least || number > most {
            self.fault(field, format!("{number} is not within {least} and {most}"));
        }
    }

    fn list(&mut self, schema: &JSONSchemaProps, items: &[Value], field: &str) {
        let count = i64::try_from(items.len()).unwrap_or(i64::MAX);
        if let Some(most) = schema.max_items.filter(|most| count > *most) {
            self.fault(field, format!("{count} entries are more than {most}"));
        }
        if let Some(least) = schema.min_items.filter(|least| count < *least) {
            self.fault(field, format!("{count} entries are less than {least}"));
        }
        self.keys(schema, items, field);
        if let Some(JSONSchemaPropsOrArray::Schema(schema)) = &schema.items {
            for (index, item) in items.iter().enumerate() {
                self.value(schema, item, &format!("{field}[{index}]"));
            }
        }
    }

    /// No two items of a map have one key, no two of a set are equal.
    fn keys(&mut self, schema: &JSONSchemaProps, items: &[Value], field: &str) {
        let mut seen = BTreeSet::new();
        for (index, item) in items.iter().enumerate() {
            let field = format!("{field}[{index}]");
            match (schema.x_kubernetes_list_type.as_deref(), schema.x_kubernetes_list_map_keys.as_deref()) {
                (Some("set"), _) if !seen.insert(item.to_string()) => self.fault(field, "this stands in the list already"),
                (_, Some([key])) if !seen.insert(item[key].to_string()) => {
                    self.fault(format!("{field}.{key}"), format!("another entry has this {key} already"));
                }
                _ => {}
            }
        }
    }

    fn object(&mut self, schema: &JSONSchemaProps, members: &serde_json::Map<String, Value>, field: &str) {
        let count = i64::try_from(members.len()).unwrap_or(i64::MAX);
        if let Some(most) = schema.max_properties.filter(|most| count > *most) {
            self.fault(field, format!("{count} entries are more than {most}"));
        }
        for (name, member) in members {
            let field = format!("{field}.{name}");
            if let Some(schema) = schema.properties.as_ref().and_then(|properties| properties.get(name)) {
                self.value(schema, member, &field);
            } else if let Some(JSONSchemaPropsOrBool::Schema(schema)) = &schema.additional_properties {
                self.value(schema, member, &field);
            }
        }
    }
}
