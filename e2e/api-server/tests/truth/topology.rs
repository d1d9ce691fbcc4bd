//! The topology of the built-in kinds is that which a real server publishes.

use super::session::real;
use http::Request;
use serde_json::Value;
use std::collections::BTreeSet;

struct Definitions(Value);

impl Definitions {
    fn walk(&self, schema: &Value, path: &str, seen: &[&str], found: &mut BTreeSet<(String, String)>) {
        let mut schema = schema.clone();
        let mut seen = seen.to_vec();
        let reference = schema["$ref"].as_str().map(|reference| reference.rsplit('/').next().unwrap().to_owned());
        if let Some(name) = &reference {
            if seen.contains(&name.as_str()) {
                return;
            }
            seen.push(name);
            let extra = schema.as_object().unwrap().clone();
            schema = self.0[name].clone();
            schema.as_object_mut().unwrap().extend(extra.into_iter().filter(|(name, _)| name != "$ref"));
        }
        if schema["x-kubernetes-map-type"] == "atomic" {
            found.insert((path.to_owned(), "atomic-map".to_owned()));
            return;
        }
        let below = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        match schema["x-kubernetes-list-type"].as_str() {
            Some("set") => _ = found.insert((path.to_owned(), "set".to_owned())),
            Some("map") => {
                let keys: Vec<&str> = schema["x-kubernetes-list-map-keys"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
                found.insert((path.to_owned(), format!("map {}", keys.join(","))));
                self.walk(&schema["items"], path, &seen, found);
            }
            _ => {}
        }
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            self.walk(field, &below(name), &seen, found);
        }
        if schema["additionalProperties"].is_object() {
            self.walk(&schema["additionalProperties"], &below("*"), &seen, found);
        }
    }
}

#[tokio::test]
async fn the_topology_is_that_of_a_real_server() {
    let Some(client) = real().await else { return eprintln!("no FLEET_API_SERVER: the topology is not compared") };
    let text = client.request_text(Request::get("/openapi/v2").body(Vec::new()).unwrap()).await.unwrap();
    let definitions = serde_json::from_str::<Value>(&text).unwrap()["definitions"].clone();
    let ours = include_str!("../../src/topology.txt");
    let kinds: BTreeSet<(&str, &str)> =
        ours.lines().map(|line| line.split_once(' ').unwrap()).map(|(version, rest)| (version, rest.split(' ').next().unwrap())).collect();
    let mut lines = BTreeSet::new();
    for (version, kind) in kinds {
        let is_it = |found: &Value| {
            let group = found["group"].as_str().unwrap();
            let of = if group.is_empty() {
                found["version"].as_str().unwrap().to_owned()
            } else {
                format!("{group}/{}", found["version"].as_str().unwrap())
            };
            of == version && found["kind"] == kind
        };
        let mut all = definitions.as_object().unwrap().iter();
        let (_, schema) = all
            .find(|(_, schema)| schema["x-kubernetes-group-version-kind"].as_array().is_some_and(|kinds| kinds.iter().any(is_it)))
            .unwrap();
        let mut found = BTreeSet::new();
        Definitions(definitions.clone()).walk(schema, "", &[], &mut found);
        let own = found.into_iter().filter(|(path, _)| !path.starts_with("metadata.managedFields"));
        lines.extend(own.map(|(path, how)| format!("{version} {kind} {path} {how}")));
    }
    assert_eq!(ours.lines().map(str::to_owned).collect::<BTreeSet<_>>(), lines);
}
