//! Sets of fields, as `managedFields` has them (`fieldsType: FieldsV1`), and what is done with them.
//!
//! Source: the packages `fieldpath` and `typed` of kubernetes-sigs/structured-merge-diff, whose words are used here.

use crate::kinds::{Kind, Topology};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A set of fields as a tree of path elements: `f:NAME`, `k:{KEYS}` (an item of a list by key), `v:VALUE` (of a set).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Fields {
    /// Whether this very field is in the set.
    pub(crate) here: bool,
    pub(crate) below: BTreeMap<String, Fields>,
}

impl Fields {
    fn leaf() -> Self {
        Self { here: true, below: BTreeMap::new() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        !self.here && self.below.values().all(Self::is_empty)
    }

    /// What is in both.
    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let below = self.below.iter().filter_map(|(element, fields)| Some((element, fields.intersection(other.below.get(element)?))));
        Self { here: self.here && other.here, below: not_empty(below) }
    }

    /// What is in this one only.
    pub(crate) fn difference(&self, other: &Self) -> Self {
        let below = self.below.iter().map(|(element, fields)| match other.below.get(element) {
            Some(other) => (element, fields.difference(other)),
            None => (element, fields.clone()),
        });
        Self { here: self.here && !other.here, below: not_empty(below) }
    }

    /// With every field that has something below it.
    pub(crate) fn with_parents(&self) -> Self {
        let below = self.below.iter().map(|(element, fields)| {
            let mut fields = fields.with_parents();
            fields.here |= !fields.below.is_empty();
            (element.clone(), fields)
        });
        Self { here: self.here, below: below.collect() }
    }

    /// What is in any of the two.
    pub(crate) fn union(&self, other: &Self) -> Self {
        let mut all = self.clone();
        all.here |= other.here;
        for (element, fields) in &other.below {
            let mine = all.below.entry(element.clone()).or_default();
            *mine = mine.union(fields);
        }
        all
    }

    /// The paths, readable, for messages.
    pub(crate) fn paths(&self) -> Vec<String> {
        let mut found = Vec::new();
        self.collect(&mut String::new(), &mut found);
        found
    }

    fn collect(&self, path: &mut String, found: &mut Vec<String>) {
        if self.here {
            found.push(path.clone());
        }
        for (element, fields) in &self.below {
            let length = path.len();
            match element.split_once(':') {
                Some(("f", name)) => {
                    path.push('.');
                    path.push_str(name);
                }
                Some(("k", keys)) => {
                    let keys: BTreeMap<String, Value> = serde_json::from_str(keys).unwrap_or_default();
                    let keys: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
                    path.extend(["[", &keys.join(","), "]"]);
                }
                Some((_, value)) => path.extend(["[=", value, "]"]),
                None => path.push_str(element),
            }
            fields.collect(path, found);
            path.truncate(length);
        }
    }

    /// As it stands in `fieldsV1`.
    pub(crate) fn to_json(&self) -> Value {
        let mut map = Map::new();
        if self.here && !self.below.is_empty() {
            map.insert(".".to_owned(), json!({}));
        }
        for (element, fields) in &self.below {
            map.insert(element.clone(), fields.to_json());
        }
        Value::Object(map)
    }

    pub(crate) fn from_json(value: &Value) -> Self {
        let mut fields = Self::default();
        let Some(map) = value.as_object() else { return fields };
        for (element, inner) in map {
            if element == "." {
                fields.here = true;
                continue;
            }
            let mut below = Self::from_json(inner);
            below.here |= below.below.is_empty();
            fields.below.insert(element.clone(), below);
        }
        fields
    }
}

fn not_empty<'a>(below: impl Iterator<Item = (&'a String, Fields)>) -> BTreeMap<String, Fields> {
    below.filter(|(_, fields)| !fields.is_empty()).map(|(element, fields)| (element.clone(), fields)).collect()
}

/// The element of an item of a list by key. Ports without a protocol are TCP.
pub(crate) fn key_of(item: &Value, keys: &[String]) -> String {
    let mut map = BTreeMap::new();
    for key in keys {
        match item.get(key) {
            Some(value) => _ = map.insert(key.clone(), value.clone()),
            None if key == "protocol" => _ = map.insert(key.clone(), json!("TCP")),
            None => {}
        }
    }
    format!("k:{}", json!(map))
}

fn value_of(item: &Value) -> String {
    format!("v:{item}")
}

/// The fields that `value` sets.
pub(crate) fn fields_of<'a>(kind: &Kind, path: &mut Vec<&'a str>, value: &'a Value) -> Fields {
    match (value, kind.topology(path)) {
        (Value::Object(map), topology) if topology != Some(&Topology::AtomicMap) && !map.is_empty() => {
            let mut fields = Fields::default();
            for (name, inner) in map {
                path.push(name);
                let inner = fields_of(kind, path, inner);
                path.pop();
                fields.below.insert(format!("f:{name}"), inner);
            }
            fields
        }
        (Value::Array(items), Some(Topology::Set)) if !items.is_empty() => {
            Fields { here: false, below: items.iter().map(|item| (value_of(item), Fields::leaf())).collect() }
        }
        (Value::Array(items), Some(Topology::Map(keys))) if !items.is_empty() => {
            let mut fields = Fields::default();
            for item in items {
                let mut inner = item_fields(kind, path, item);
                inner.here = true;
                fields.below.insert(key_of(item, keys), inner);
            }
            fields
        }
        _ => Fields::leaf(),
    }
}

fn item_fields<'a>(kind: &Kind, path: &mut Vec<&'a str>, item: &'a Value) -> Fields {
    let Value::Object(map) = item else { return Fields::leaf() };
    // the only lists by key whose items are atomic: references to owners, pull secrets
    if matches!(path.last(), Some(&("ownerReferences" | "imagePullSecrets" | "secrets"))) {
        return Fields::leaf();
    }
    let mut fields = Fields::default();
    for (name, inner) in map {
        path.push(name);
        let inner = fields_of(kind, path, inner);
        path.pop();
        fields.below.insert(format!("f:{name}"), inner);
    }
    fields
}

/// What of `fields` has another value in the two objects, or is in one of them only.
pub(crate) fn differing(fields: &Fields, kind: &Kind, path: &mut Vec<String>, one: Option<&Value>, other: Option<&Value>) -> Fields {
    if one == other {
        return Fields::default();
    }
    let below = fields.below.iter().map(|(element, inner)| {
        let named = element.strip_prefix("f:");
        let (one, other) = {
            let borrowed: Vec<&str> = path.iter().map(String::as_str).collect();
            (step(kind, &borrowed, one, element), step(kind, &borrowed, other, element))
        };
        path.extend(named.map(str::to_owned));
        let found = differing(inner, kind, path, one, other);
        if named.is_some() {
            path.pop();
        }
        (element, found)
    });
    let below = not_empty(below);
    // an item by key differs itself only in whether it is there; a leaf differs in its value
    let here = fields.here && (fields.below.is_empty() || one.is_none() != other.is_none());
    Fields { here, below }
}

/// What is at `element` below `value`.
pub(crate) fn step<'a>(kind: &Kind, path: &[&str], value: Option<&'a Value>, element: &str) -> Option<&'a Value> {
    let value = value?;
    match element.split_once(':')? {
        ("f", name) => value.get(name),
        ("v", _) => value.as_array()?.iter().find(|item| value_of(item) == element),
        _ => {
            let Some(Topology::Map(keys)) = kind.topology(path) else { return None };
            value.as_array()?.iter().find(|item| key_of(item, keys) == element)
        }
    }
}

/// The value of `applied` laid over `live`.
pub(crate) fn merge<'a>(kind: &Kind, path: &mut Vec<&'a str>, live: Option<&Value>, applied: &'a Value) -> Value {
    let Some(live) = live else { return applied.clone() };
    match (live, applied, kind.topology(path)) {
        (Value::Object(live), Value::Object(applied), topology) if topology != Some(&Topology::AtomicMap) => {
            let mut merged = live.clone();
            for (name, inner) in applied {
                path.push(name);
                let inner = merge(kind, path, live.get(name), inner);
                path.pop();
                merged.insert(name.clone(), inner);
            }
            Value::Object(merged)
        }
        (Value::Array(live), Value::Array(applied), Some(Topology::Set)) => {
            let refs: Vec<(String, &Value)> = applied.iter().map(|item| (value_of(item), item)).collect();
            Value::Array(in_order(live, &refs, value_of, |_, item| item.clone()))
        }
        (Value::Array(live), Value::Array(applied), Some(Topology::Map(keys))) => {
            let atomic = matches!(path.last(), Some(&("ownerReferences" | "imagePullSecrets" | "secrets")));
            let refs: Vec<(String, &'a Value)> = applied.iter().map(|item| (key_of(item, keys), item)).collect();
            let merged = in_order(
                live,
                &refs,
                |item| key_of(item, keys),
                |live, item| match (live, item) {
                    (Some(Value::Object(live)), Value::Object(applied)) if !atomic => {
                        let mut merged = live.clone();
                        for (name, inner) in applied {
                            path.push(name);
                            let inner = merge(kind, path, live.get(name), inner);
                            path.pop();
                            merged.insert(name.clone(), inner);
                        }
                        Value::Object(merged)
                    }
                    _ => item.clone(),
                },
            );
            Value::Array(merged)
        }
        _ => applied.clone(),
    }
}

/// The items of both lists: those that are only live keep their places, the applied ones have their own order.
fn in_order<'a>(
    live: &[Value],
    applied: &[(String, &'a Value)],
    element: impl Fn(&Value) -> String,
    mut merged: impl FnMut(Option<&Value>, &'a Value) -> Value,
) -> Vec<Value> {
    let live: Vec<(String, &Value)> = live.iter().map(|item| (element(item), item)).collect();
    let mut out = Vec::new();
    let (mut left, mut right) = (0, 0);
    // what both have, in the order of the applied list: items of the live one out of this order are left out
    let shared: Vec<&String> = applied.iter().map(|(key, _)| key).filter(|key| live.iter().any(|(other, _)| other == *key)).collect();
    let mut next = 0;
    while left < live.len() || right < applied.len() {
        if let Some((key, item)) = live.get(left) {
            let is_shared = shared.contains(&key);
            let is_same = applied.get(right).is_some_and(|(other, _)| other == key);
            if !is_same && is_shared && (right == applied.len() || shared.get(next) != Some(&key)) {
                left += 1;
                continue;
            }
            if !is_shared {
                out.push((*item).clone());
                left += 1;
                continue;
            }
            left += usize::from(is_same);
        }
        let Some((key, item)) = applied.get(right) else { break };
        next += usize::from(shared.contains(&key));
        right += 1;
        out.push(merged(live.iter().find(|(other, _)| other == key).map(|(_, item)| *item), item));
    }
    out
}

/// Takes `fields` out of `value`, each with all that is below it.
pub(crate) fn remove(kind: &Kind, path: &mut Vec<String>, value: &mut Value, fields: &Fields) {
    for (element, inner) in &fields.below {
        let Some((tag, name)) = element.split_once(':') else { continue };
        if tag == "f" {
            let Some(map) = value.as_object_mut() else { continue };
            // the metadata of an object has fields that nobody owns
            if inner.here && !(path.is_empty() && name == "metadata") {
                map.remove(name);
                continue;
            }
            let Some(child) = map.get_mut(name) else { continue };
            path.push(name.to_owned());
            remove(kind, path, child, inner);
            path.pop();
            continue;
        }
        let borrowed: Vec<&str> = path.iter().map(String::as_str).collect();
        let keys = match kind.topology(&borrowed) {
            Some(Topology::Map(keys)) => keys.clone(),
            _ => Vec::new(),
        };
        let Some(items) = value.as_array_mut() else { continue };
        let is_it = |item: &Value| if tag == "v" { value_of(item) == *element } else { key_of(item, &keys) == *element };
        if inner.here {
            items.retain(|item| !is_it(item));
        } else if let Some(item) = items.iter_mut().find(|item| is_it(item)) {
            remove(kind, path, item, inner);
        }
    }
}
