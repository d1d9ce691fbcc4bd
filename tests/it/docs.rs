//! Documentation that is printed from the code it describes. `BLESS=1` rewrites it.

use haproxy_fleet::api::crds;
use haproxy_fleet::haproxy::shape::{Part, table};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaProps, JSONSchemaPropsOrArray};
use std::fmt::Write;
use std::path::Path;

fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(known == text, "docs/{name} does not say what the code does; `BLESS=1 cargo test --test it docs` rewrites it");
}

#[test]
fn the_page_on_policies_prints_the_table_that_splits_them() {
    let word = |part: Part| match part {
        Part::Shape => "shape",
        Part::Value => "value",
        Part::Server => "server",
        Part::Private => "private",
        Part::Refused => "refused",
    };
    let mut text = "# What a change of a policy costs\n\n\
        A policy is how a service is reached: what native annotations and `Backend` objects say, merged field by field\n\
        (Service over Ingress over fleet).\n\n\
        - **value**: an entry of a map. Changing it is live.\n\
        - **server**: keywords of each server. Changing it is live: new servers are added, the old ones drained.\n\
        - **shape**: part of a named `defaults` section that any number of backends share. Taking a shape that is in use is\n  \
        live on HAProxy 3.4; a new shape is one reload, coalesced with others. A namespace may have 50 of them.\n\
        - **private**: the backend is written in full, and changing it is a reload.\n\
        - **refused**: known, not supported; a finding says so.\n\n\
        | field | since 3.4 | on 3.2 | becomes |\n|---|---|---|---|\n"
        .to_owned();
    for row in table() {
        writeln!(text, "| `{}` | {} | {} | {} |", row.field, word(row.since_3_4), word(row.before), row.directives).unwrap();
    }
    check("policies.md", &text);
}

#[test]
fn the_page_on_custom_resources_prints_their_schemas() {
    let mut text = "# Custom resources\n\n\
        Printed from the schemas that `haproxy-fleet crds` writes. Fields that are not listed are refused by name or, where\n\
        they exist nowhere, told as unknown.\n"
        .to_owned();
    for definition in crds() {
        let names = &definition.spec.names;
        for version in &definition.spec.versions {
            writeln!(text, "\n## {} (`{}/{}`)\n", names.kind, definition.spec.group, version.name).unwrap();
            let root = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref()).unwrap();
            let properties = root.properties.as_ref().unwrap();
            writeln!(text, "{}\n", sentence(root)).unwrap();
            for part in ["spec", "status"] {
                let Some(schema) = properties.get(part) else { continue };
                writeln!(text, "### `{part}`\n\n| field | type | default | meaning |\n|---|---|---|---|").unwrap();
                rows(&mut text, "", schema);
                rules(&mut text, schema);
                text.push('\n');
            }
        }
    }
    check("crds.md", &format!("{}\n", text.trim_end()));
}

fn sentence(schema: &JSONSchemaProps) -> String {
    schema.description.as_deref().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn rows(text: &mut String, prefix: &str, schema: &JSONSchemaProps) {
    for (name, field) in schema.properties.iter().flatten() {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        let (kind, inner) = kind(field);
        let required = schema.required.iter().flatten().any(|required| required == name);
        let default = match &field.default {
            Some(value) => format!("`{}`", value.0),
            None if required => "required".to_owned(),
            None => String::new(),
        };
        writeln!(text, "| `{path}` | {kind} | {default} | {} |", sentence(field)).unwrap();
        if let Some(inner) = inner {
            rows(text, &if kind.starts_with("list") { format!("{path}[]") } else { path }, inner);
        }
    }
}

fn kind(field: &JSONSchemaProps) -> (String, Option<&JSONSchemaProps>) {
    if let Some(JSONSchemaPropsOrArray::Schema(item)) = &field.items {
        let (of, _) = kind(item);
        return (format!("list of {of}"), Some(item));
    }
    if let Some(values) = &field.enum_ {
        let values = values.iter().filter(|value| !value.0.is_null());
        let values: Vec<String> = values.map(|value| format!("`{}`", value.0)).collect();
        return (values.join(", "), None);
    }
    let name = field.type_.as_deref().unwrap_or("any");
    let range = match (field.minimum, field.maximum) {
        (Some(least), Some(most)) => format!(" {least} to {most}"),
        _ => String::new(),
    };
    (format!("{name}{range}"), Some(field).filter(|field| field.properties.is_some()))
}

fn rules(text: &mut String, schema: &JSONSchemaProps) {
    let messages: Vec<&str> = schema.x_kubernetes_validations.iter().flatten().filter_map(|rule| rule.message.as_deref()).collect();
    if !messages.is_empty() {
        text.push_str("\nRules:\n\n");
    }
    for message in messages {
        writeln!(text, "- {message}").unwrap();
    }
}
