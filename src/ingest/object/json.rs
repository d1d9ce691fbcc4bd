//! JSON, as an API server sends it, as a tree.

use super::tree::{Content, Node};
use serde_json::Value;
use std::borrow::Cow;

/// The object `value` of this kind as a tree, without what nobody here reads: its status and who manages its fields.
/// Objects of a list say no kind of their own. `size` is that of the texts in it.
pub(in crate::ingest) fn object<'v>(value: &'v Value, api_version: &'v str, kind: &'v str) -> Node<'v> {
    let Value::Object(fields) = value else { return node(value) };
    let mut entries = vec![pair("apiVersion", text(api_version)), pair("kind", text(kind))];
    for (key, value) in fields {
        match key.as_str() {
            "apiVersion" | "kind" | "status" => {}
            "metadata" => entries.push(pair(key, map(value.as_object().into_iter().flatten().filter(|(key, _)| *key != "managedFields")))),
            _ => entries.push(pair(key, node(value))),
        }
    }
    of_entries(entries)
}

fn node(value: &Value) -> Node<'_> {
    match value {
        Value::Null => scalar(Cow::Borrowed("null"), true),
        Value::Bool(value) => scalar(Cow::Borrowed(if *value { "true" } else { "false" }), true),
        Value::Number(number) => scalar(Cow::Owned(number.to_string()), true),
        Value::String(value) => text(value),
        Value::Array(items) => {
            let items: Vec<Node<'_>> = items.iter().map(node).collect();
            let size = items.iter().map(|item| item.size).sum();
            at_no_place(Content::List(items), size)
        }
        Value::Object(fields) => map(fields.iter()),
    }
}

fn map<'v>(fields: impl Iterator<Item = (&'v String, &'v Value)>) -> Node<'v> {
    of_entries(fields.map(|(key, value)| pair(key, node(value))).collect())
}

fn of_entries<'v>(entries: Vec<(Node<'v>, Node<'v>)>) -> Node<'v> {
    let size = entries.iter().map(|(key, value)| key.size + value.size).sum();
    at_no_place(Content::Map { entries, twice: None }, size)
}

fn pair<'v>(key: &'v str, value: Node<'v>) -> (Node<'v>, Node<'v>) {
    (text(key), value)
}

fn text(text: &str) -> Node<'_> {
    scalar(Cow::Borrowed(text), false)
}

fn scalar(text: Cow<'_, str>, plain: bool) -> Node<'_> {
    let size = text.len();
    at_no_place(Content::Scalar { text, plain }, size)
}

fn at_no_place(content: Content<'_>, size: usize) -> Node<'_> {
    Node { content, line: 0, column: 0, width: 0, size }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::ingest::object::read;
    use crate::report::Kind;
    use serde_json::json;

    #[test]
    fn an_object_of_a_list_is_what_its_list_says() {
        let service = json!({
            "metadata": {"name": "shop", "namespace": "tenant", "managedFields": [{"manager": "kubectl"}]},
            "spec": {"ports": [{"port": 80, "name": "http"}]},
            "status": {"loadBalancer": {}},
        });
        let read = read(&object(&service, "v1", "Service"), 1000);
        assert_eq!(read.reference.to_string(), "Service tenant/shop");
        assert_eq!(read.diagnostics, []);
        assert_eq!(read.object.unwrap().kind(), Kind::Service);
    }

    #[test]
    fn a_fault_is_told_with_its_field() {
        let ingress = json!({"metadata": {"name": "shop", "namespace": "tenant"}, "spec": {"rules": [{"host": 12}]}});
        let read = read(&object(&ingress, "networking.k8s.io/v1", "Ingress"), 1000);
        assert!(read.object.is_none());
        assert_eq!(read.diagnostics.iter().map(|found| found.field.as_str()).collect::<Vec<_>>(), ["spec.rules[0].host"]);
    }
}
