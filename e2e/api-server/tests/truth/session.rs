//! Calls to one server, and the record of its answers.

use fleet_api_server::ApiServer;
use futures::future::BoxFuture;
use futures::{AsyncBufReadExt, StreamExt};
use http::Request;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

pub(crate) const JSON: &str = "application/json";
pub(crate) const MERGE: &str = "application/merge-patch+json";
pub(crate) const JSON_PATCH: &str = "application/json-patch+json";
pub(crate) const APPLY: &str = "application/apply-patch+yaml";

/// A custom resource to try things on: a list by key, a set, defaults, a status.
pub(crate) fn definition() -> Value {
    let text = json!({"type": "string"});
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "probes.truth.haproxy-fleet.dev"},
        "spec": {
            "group": "truth.haproxy-fleet.dev", "scope": "Namespaced",
            "names": {"plural": "probes", "singular": "probe", "kind": "Probe", "listKind": "ProbeList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "properties": {
                        "text": text, "size": {"type": "integer", "default": 3},
                        "zones": {"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                            "items": {"type": "object", "required": ["name"], "properties": {"name": text, "size": {"type": "integer"}}}},
                        "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": text},
                        "whole": {"type": "array", "items": text},
                        "atom": {"type": "object", "x-kubernetes-map-type": "atomic", "additionalProperties": text},
                        "grain": {"type": "object", "additionalProperties": text},
                        "nested": {"type": "object", "properties": {"deep": {"type": "string", "default": "set"}}},
                    }},
                    "status": {"type": "object", "properties": {"phase": text, "seen": {"type": "integer"}}},
                }}},
            }],
        },
    })
}

/// A server that is called.
pub(crate) struct Session {
    client: Client,
    /// None: a real one.
    pub(crate) model: Option<ApiServer>,
    pub(crate) namespace: String,
    answers: Map<String, Value>,
    /// Resource versions in the order in which they were first seen, by object.
    versions: BTreeMap<String, Vec<String>>,
}

impl Session {
    /// `/api/v1/namespaces/NS/configmaps` and the like: `NS` stands for the namespace of the session.
    fn path(&self, path: &str) -> String {
        path.replace("/NS/", &format!("/{}/", self.namespace))
    }

    async fn send(&self, method: &str, path: &str, content: &str, body: &Value) -> (u16, Value) {
        let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request =
            Request::builder().method(method).uri(self.path(path)).header("content-type", content).header("user-agent", "truth/1");
        let answer = self.client.send(request.body(bytes.into()).unwrap()).await.unwrap();
        let (parts, body) = answer.into_parts();
        let body = body.collect_bytes().await.unwrap();
        (parts.status.as_u16(), serde_json::from_slice(&body).unwrap_or_else(|_| json!(String::from_utf8_lossy(&body))))
    }

    /// One call. Its answer is recorded as that of `rule`, and comes back as it was.
    pub(crate) async fn call(&mut self, rule: &str, method: &str, path: &str, content: &str, body: Value) -> Value {
        let (code, answer) = self.send(method, path, content, &body).await;
        let normal = self.normal(&answer);
        let earlier = self.answers.insert(rule.to_owned(), json!({"code": code, "answer": normal}));
        assert!(earlier.is_none(), "two rules are called {rule:?}");
        answer
    }

    pub(crate) async fn get(&mut self, rule: &str, path: &str) -> Value {
        self.call(rule, "GET", path, JSON, Value::Null).await
    }

    pub(crate) async fn apply(&mut self, rule: &str, path: &str, manager: &str, body: Value) -> Value {
        let join = if path.contains('?') { '&' } else { '?' };
        self.call(rule, "PATCH", &format!("{path}{join}fieldManager={manager}"), APPLY, body).await
    }

    /// Waits for the garbage collector, until `path` is gone, or for what it is given time to do.
    pub(crate) async fn collect(&mut self, rule: &str, path: &str, is_done: impl Fn(u16, &Value) -> bool) {
        for _ in 0..300 {
            if let Some(model) = &self.model {
                model.collect_garbage();
            }
            let (code, answer) = self.send("GET", path, JSON, &Value::Null).await;
            if is_done(code, &answer) {
                let normal = self.normal(&answer);
                self.answers.insert(rule.to_owned(), json!({"code": code, "answer": normal}));
                return;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        panic!("{rule}: the garbage collector does not get there");
    }

    /// The first `count` events of a watch; a bookmark counts.
    pub(crate) async fn watch(&mut self, rule: &str, path: &str, count: usize) {
        let request = Request::get(self.path(path)).body(Vec::new()).unwrap();
        let lines = self.client.request_stream(request).await;
        let mut events = Vec::new();
        match lines {
            Ok(lines) => {
                let mut lines = lines.lines();
                while events.len() < count {
                    let line = tokio::time::timeout(Duration::from_secs(10), lines.next()).await.expect(rule);
                    let Some(Ok(line)) = line else { break };
                    let event: Value = serde_json::from_str(&line).unwrap();
                    events.push(json!({"type": event["type"], "object": self.normal(&event["object"])}));
                }
            }
            Err(kube::Error::Api(status)) => events.push(json!({"refused": status.code})),
            Err(error) => panic!("{rule}: {error}"),
        }
        self.answers.insert(rule.to_owned(), Value::Array(events));
    }

    /// An answer without what differs from run to run: identities, times, and the text of refusals.
    fn normal(&mut self, answer: &Value) -> Value {
        if answer["kind"] == "Status" {
            return match answer["status"].as_str() {
                Some("Failure") => {
                    let fields: Vec<&Value> = answer["details"]["causes"]
                        .as_array()
                        .into_iter()
                        .flatten()
                        .filter(|cause| cause["reason"] == "FieldManagerConflict")
                        .map(|cause| &cause["field"])
                        .collect();
                    json!({"refused": answer["reason"], "fields": fields})
                }
                _ => json!({"status": answer["status"]}),
            };
        }
        let mut answer = answer.clone();
        if let Some(items) = answer.get_mut("items").and_then(Value::as_array_mut) {
            let items: Vec<Value> = std::mem::take(items);
            let items: Vec<Value> = items.iter().map(|item| self.normal(item)).collect();
            let is_continued = answer["metadata"]["continue"].as_str().is_some_and(|token| !token.is_empty());
            return json!({"kind": answer["kind"], "items": items, "continued": is_continued, "left": answer["metadata"]["remainingItemCount"]});
        }
        let kind = answer["kind"].as_str().unwrap_or_default().to_owned();
        let name = answer["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if kind == "TokenReview" {
            // what it says of an unknown token is for people
            answer["status"].as_object_mut().unwrap().remove("error");
        }
        let Some(metadata) = answer.get_mut("metadata").and_then(Value::as_object_mut) else { return answer };
        if let Some(version) = metadata.get("resourceVersion").and_then(Value::as_str) {
            let seen = self.versions.entry(format!("{kind} {name}")).or_default();
            let place = seen.iter().position(|other| other == version).unwrap_or_else(|| {
                seen.push(version.to_owned());
                seen.len() - 1
            });
            metadata.insert("resourceVersion".to_owned(), json!(format!("v{}", place + 1)));
        }
        for (field, stand_in) in [("uid", "UID"), ("creationTimestamp", "TIME"), ("deletionTimestamp", "TIME"), ("namespace", "NS")] {
            if let Some(value) = metadata.get_mut(field).filter(|value| !value.is_null()) {
                *value = json!(stand_in);
            }
        }
        metadata.retain(|_, value| !value.is_null());
        if let Some(entries) = metadata.remove("managedFields") {
            metadata.insert("managedFields".to_owned(), owners(&kind, &entries));
        }
        for owner in metadata.get_mut("ownerReferences").and_then(Value::as_array_mut).into_iter().flatten() {
            owner["uid"] = json!("UID");
        }
        answer
    }
}

/// Kinds whose objects get defaults and fields that the model does not know: only what the model says is compared.
const WITH_DEFAULTS: [&str; 4] = ["Deployment", "Service", "Pod", "TokenReview"];

/// Who owns which fields, as sorted paths. Of kinds with defaults only what was applied: updates own defaults as well.
fn owners(kind: &str, entries: &Value) -> Value {
    let mut all = Map::new();
    for entry in entries.as_array().into_iter().flatten() {
        if WITH_DEFAULTS.contains(&kind) && entry["operation"] != "Apply" {
            continue;
        }
        let mut paths = BTreeSet::new();
        leaves(&entry["fieldsV1"], String::new(), &mut paths);
        let paths: BTreeSet<String> = paths.iter().map(|path| anonymous(path)).collect();
        let name = format!(
            "{} {} {}",
            entry["operation"].as_str().unwrap(),
            entry["manager"].as_str().unwrap(),
            entry["subresource"].as_str().unwrap_or_default()
        );
        all.insert(name.trim().to_owned(), json!(paths));
    }
    Value::Object(all)
}

/// The path without the identity of an owner.
fn anonymous(path: &str) -> String {
    match path.split_once("k:{\"uid\":") {
        Some((before, after)) => format!("{before}k:UID{}", after.split_once('}').map_or("", |(_, rest)| rest)),
        None => path.to_owned(),
    }
}

fn leaves(fields: &Value, path: String, found: &mut BTreeSet<String>) {
    let below = fields.as_object().into_iter().flatten().filter(|(element, _)| *element != ".");
    let mut is_leaf = true;
    for (element, inner) in below {
        is_leaf = false;
        leaves(inner, format!("{path}/{}", element.replace("\\\"", "\"")), found);
    }
    if is_leaf {
        found.insert(path);
    }
}

/// Whether everything that the model says is what the real server says.
fn agree(model: &Value, real: &Value, is_loose: bool) -> bool {
    match (model, real) {
        (Value::Object(model), Value::Object(real)) => {
            let is_loose = is_loose || real.get("kind").and_then(Value::as_str).is_some_and(|kind| WITH_DEFAULTS.contains(&kind));
            model.iter().all(|(name, value)| real.get(name).is_some_and(|other| agree(value, other, is_loose)))
                && (is_loose || real.keys().all(|name| model.contains_key(name)))
        }
        (Value::Array(model), Value::Array(real)) => {
            model.len() == real.len() && model.iter().zip(real).all(|(model, real)| agree(model, real, is_loose))
        }
        _ => model == real,
    }
}

fn file() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/truth/answers.json")
}

pub(crate) type Script = for<'a> fn(&'a mut Session) -> BoxFuture<'a, ()>;

async fn run(client: Client, model: Option<ApiServer>, name: &str, script: Script) -> Map<String, Value> {
    let mut namespace = format!("truth-{}", name.replace('_', "-"));
    namespace.truncate(40);
    if model.is_none() {
        namespace = format!("{namespace}-{}", std::process::id());
    }
    let namespace = namespace.replace("--", "-");
    let mut session = Session { client, model, namespace, answers: Map::new(), versions: BTreeMap::new() };
    let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": session.namespace}});
    session.send("POST", "/api/v1/namespaces", JSON, &object).await;
    script(&mut session).await;
    if session.model.is_none() {
        session.send("DELETE", &format!("/api/v1/namespaces/{}", session.namespace), JSON, &Value::Null).await;
    }
    session.answers
}

/// A client of the real server, if there is one.
pub(crate) async fn real() -> Option<Client> {
    let path = std::env::var_os("FLEET_API_SERVER")?;
    let config = kube::Config::from_custom_kubeconfig(Kubeconfig::read_from(path).unwrap(), &KubeConfigOptions::default()).await.unwrap();
    let client = Client::try_from(config).unwrap();
    let session = Session { client, model: None, namespace: String::new(), answers: Map::new(), versions: BTreeMap::new() };
    session.send("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", JSON, &definition()).await;
    for _ in 0..100 {
        if session.send("GET", "/apis/truth.haproxy-fleet.dev/v1/probes", JSON, &Value::Null).await.0 == 200 {
            return Some(session.client);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("the definition of probes is not served");
}

/// Runs a script against the model, and the real server if there is one, and compares their answers.
pub(crate) fn check(name: &str, script: Script) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        if let Some(client) = real().await {
            let answers = run(client, None, name, script).await;
            record(name, answers);
        }
        let server = ApiServer::new();
        assert!(server.define(&definition()));
        let model = run(server.client(), Some(server), name, script).await;
        let recorded: Value = serde_json::from_slice(&std::fs::read(file()).unwrap()).unwrap();
        let mut wrong = Vec::new();
        for (rule, answer) in &model {
            let real = &recorded[name][rule];
            if !agree(answer, real, false) {
                wrong.push(format!("{rule}\n   model: {answer}\n    real: {real}"));
            }
        }
        assert!(wrong.is_empty(), "the model differs from a real server:\n{}", wrong.join("\n"));
        let rules: BTreeSet<&String> = model.keys().collect();
        assert_eq!(rules, recorded[name].as_object().unwrap().keys().collect::<BTreeSet<_>>(), "record the new rules with BLESS=1");
    });
}

/// Writes the answers of a real server down, or compares them with what is written.
fn record(name: &str, answers: Map<String, Value>) {
    static FILE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _guard = FILE.lock().unwrap();
    let mut all: BTreeMap<String, Value> =
        std::fs::read(file()).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default();
    if std::env::var_os("BLESS").is_some() {
        all.insert(name.to_owned(), Value::Object(answers));
        std::fs::write(file(), format!("{}\n", serde_json::to_string_pretty(&all).unwrap())).unwrap();
        return;
    }
    for (rule, answer) in &answers {
        assert_eq!(all[name][rule], *answer, "this server answers {rule:?} differently from the recorded one");
    }
}
