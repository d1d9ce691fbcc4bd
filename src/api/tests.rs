#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::backend::{CaKind, CaReference, is_known};
use super::*;
use kube::CustomResourceExt;
use serde_json::{Value, json};
use std::cmp::Ordering;
use std::fs;
use std::path::PathBuf;

/// `BLESS=1 cargo test` writes them anew.
#[test]
fn the_definitions_in_crds_are_those_of_the_code() {
    for definition in crds() {
        let name = format!("{}_{}.yaml", definition.spec.group, definition.spec.names.plural);
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("crds").join(name);
        let text = crd::to_yaml(&definition).unwrap();
        if std::env::var_os("BLESS").is_some() {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, &text).unwrap();
        }
        let written = fs::read_to_string(&path).unwrap_or_default();
        assert!(written == text, "{} is not what the code says; BLESS=1 cargo test --lib api writes it", path.display());
    }
}

fn schema(definition: &impl serde::Serialize) -> Value {
    serde_json::to_value(definition).unwrap()["spec"]["versions"][0].clone()
}

#[test]
fn an_ingress_deployment_needs_its_class_only() {
    let version = schema(&crd::IngressDeploymentResource::crd());
    let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
    assert_eq!(spec["required"], json!(["ingressClassName"]));
    assert_eq!(spec["properties"]["haproxyVersion"]["default"], json!("3.4"));
    assert_eq!(spec["properties"]["ports"]["default"], json!({"http": 80, "https": 443}));
    assert_eq!(spec["properties"]["zones"]["x-kubernetes-list-map-keys"], json!(["name"]));
    assert_eq!(version["subresources"]["scale"]["specReplicasPath"], json!(".spec.replicas"));
    // A default here would make `zones[].replicas` impossible.
    assert_eq!(spec["properties"]["replicas"].get("default"), None);
    let minimal: IngressDeploymentSpec = serde_json::from_value(json!({"ingressClassName": "x"})).unwrap();
    assert_eq!((minimal.total_replicas(), minimal.haproxy_version.as_str()), (2, "3.4"));
}

/// Every schema below `schema`, with whether it is inside of a list item.
fn each<'s>(schema: &'s Value, in_item: bool, visit: &mut dyn FnMut(&'s Value, bool)) {
    visit(schema, in_item);
    for property in schema["properties"].as_object().into_iter().flat_map(|all| all.values()) {
        each(property, in_item, visit);
    }
    if schema["items"].is_object() {
        each(&schema["items"], true, visit);
    }
    if schema["additionalProperties"].is_object() {
        each(&schema["additionalProperties"], in_item, visit);
    }
}

#[test]
fn no_list_item_has_defaults_and_no_number_a_format_that_api_servers_do_not_know() {
    for definition in crds() {
        let root = schema(&definition)["schema"]["openAPIV3Schema"].clone();
        for part in ["spec", "status"] {
            each(&root["properties"][part], false, &mut |schema, in_item| {
                assert!(!in_item || schema.get("default").is_none(), "{}: {schema}", definition.spec.names.kind);
                let known = ["int32", "int64", "double", "float", "date-time"].map(Value::from);
                assert!(schema.get("format").is_none_or(|format| known.contains(format)), "{schema}");
            });
        }
    }
}

#[test]
fn an_object_that_nobody_has_looked_at_is_not_ready() {
    for definition in crds() {
        let status = &schema(&definition)["schema"]["openAPIV3Schema"]["properties"]["status"];
        assert_eq!(status["default"]["observedGeneration"], json!(-1));
        let conditions = status["default"]["conditions"].as_array().unwrap();
        let is = |kind: &str| conditions.iter().find(|condition| condition["type"] == kind).map(|condition| condition["status"].clone());
        assert_eq!((is("Ready"), is("Reconciling"), is("Stalled")), (Some(json!("Unknown")), Some(json!("True")), None));
    }
}

#[test]
fn every_field_says_what_it_is_for() {
    for definition in crds().into_iter().filter(|definition| definition.spec.names.kind == "IngressDeployment") {
        let root = schema(&definition)["schema"]["openAPIV3Schema"].clone();
        let mut silent = Vec::new();
        for part in ["spec", "status"] {
            silent.extend(undescribed(&root["properties"][part], part));
        }
        assert!(silent.is_empty(), "{silent:?}");
    }
}

fn undescribed(schema: &Value, path: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        found.extend(undescribed(property, &path));
        found.extend(undescribed(&property["items"], &path));
        if property["description"].as_str().unwrap_or_default().is_empty() {
            found.push(path);
        }
    }
    found
}

#[test]
fn replicas_of_zones_add_up() {
    let zones = json!({"ingressClassName": "x", "zones": [{"name": "a", "replicas": 1}, {"name": "b", "replicas": 4}]});
    assert_eq!(serde_json::from_value::<IngressDeploymentSpec>(zones).unwrap().total_replicas(), 5);
    let shared = json!({"ingressClassName": "x", "replicas": 3, "zones": [{"name": "a"}, {"name": "b"}]});
    assert_eq!(serde_json::from_value::<IngressDeploymentSpec>(shared).unwrap().total_replicas(), 3);
}

#[test]
fn fields_of_a_backend_that_are_not_supported_pass_the_api_server() {
    let version = schema(&crd::BackendResource::crd());
    let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
    for object in [spec, &spec["properties"]["default_server"], &spec["properties"]["http_check_list"]["items"]] {
        assert_eq!(object["x-kubernetes-preserve-unknown-fields"], json!(true), "{object}");
    }
    assert_eq!(spec["properties"].get("http_request_rule_list"), None);
}

/// Every property of an object of the schema, with its path.
fn properties(schema: &Value, path: &str, all: &mut Vec<String>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        properties(property, &path, all);
        properties(&property["items"], &format!("{path}[]"), all);
        all.push(path);
    }
}

#[test]
fn every_supported_field_of_a_backend_is_one_of_the_model() {
    let version = schema(&crd::BackendResource::crd());
    let mut all = Vec::new();
    properties(&version["schema"]["openAPIV3Schema"]["properties"]["spec"], "", &mut all);
    assert!(all.len() > 70, "{all:?}");
    let unknown: Vec<_> = all.iter().filter(|path| !is_known(path)).collect();
    assert!(unknown.is_empty(), "{unknown:?}");
}

#[test]
fn fields_of_the_model_are_known_wherever_they_are_in_a_list() {
    for path in ["http_request_rule_list", "default_server.tfo", "http_check_list[7].addr", "servers", "balance.uri_depth"] {
        assert!(is_known(path), "{path}");
    }
    for path in ["no_such_field", "default_server.no_such_field", "http_check_list[7].no_such_field", "", "monitor_uri"] {
        assert!(!is_known(path), "{path}");
    }
}

#[test]
fn a_ca_is_named_by_object_and_never_by_file() {
    let reference = |kind, name: &str, key: &str| Some(CaReference { kind, name: name.into(), key: key.into() });
    assert_eq!(CaReference::parse("pki"), reference(CaKind::Secret, "pki", "ca.crt"));
    assert_eq!(CaReference::parse("configmap/pki"), reference(CaKind::ConfigMap, "pki", "ca.crt"));
    assert_eq!(CaReference::parse("Secret/pki/root.pem"), reference(CaKind::Secret, "pki", "root.pem"));
    for file in ["/etc/ssl/ca.pem", "ssl/ca.pem", "", "secret/", "a/b/c/d"] {
        assert_eq!(CaReference::parse(file), None, "{file}");
    }
}

#[test]
fn objects_without_a_time_are_younger_than_all_with_one_and_ordered_by_name() {
    let old = Meta { creation: Some(Created(1)), ..Meta::named("z", "z") };
    let young = Meta { creation: Some(Created(2)), ..Meta::named("a", "a") };
    let (first, second) = (Meta::named("a", "a"), Meta::named("a", "b"));
    for (older, younger) in [(&old, &young), (&young, &first), (&first, &second)] {
        assert_eq!(older.older_first(younger), Ordering::Less);
        assert_eq!(younger.older_first(older), Ordering::Greater);
    }
}

#[test]
fn texts_by_name_are_found_by_name_and_prefix() {
    let pairs: Pairs = [("b/x", "1"), ("a", "2"), ("b/y", "3"), ("c", "4"), ("a", "5")].into_iter().collect();
    assert_eq!((pairs.len(), pairs.get("a"), pairs.get("b/y"), pairs.get("b")), (4, Some("5"), Some("3"), None));
    assert_eq!(pairs.with_prefix("b/").collect::<Vec<_>>(), [("b/x", "1"), ("b/y", "3")]);
}

#[test]
fn an_endpoint_that_says_nothing_is_ready_and_serves() {
    let endpoint =
        |ready, serving, terminating| Endpoint { addresses: Box::default(), ready, serving, terminating, zone: None, target: None };
    for (endpoint, ready, serving) in [
        (endpoint(None, None, None), true, true),
        (endpoint(Some(false), None, None), false, false),
        (endpoint(Some(false), Some(true), Some(true)), false, true),
        (endpoint(Some(true), None, Some(true)), false, true),
    ] {
        assert_eq!((endpoint.is_ready(), endpoint.is_serving()), (ready, serving), "{endpoint:?}");
    }
}
