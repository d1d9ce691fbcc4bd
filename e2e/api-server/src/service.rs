//! Requests in, answers out.

use crate::ApiServer;
use crate::call::{Call, Verb};
use crate::failure::Failure;
use crate::kinds::Kind;
use crate::selector::Selector;
use crate::watch;
use crate::world::{Key, World};
use crate::write::{Deletion, Write};
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode, header};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use kube::client::Body;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::task::{Context, Poll};
use tower::{BoxError, Service};

/// A request that was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// What was asked.
    pub call: Call,
    /// The status code of the answer.
    pub code: u16,
}

/// The body of an answer: JSON, or the lines of a watch.
pub type AnswerBody = UnsyncBoxBody<Bytes, BoxError>;

pub(crate) struct Answer {
    code: u16,
    body: AnswerBody,
}

/// The body of a text.
pub(crate) fn whole(text: impl Into<Bytes>) -> AnswerBody {
    Full::new(text.into()).map_err(|never| match never {}).boxed_unsync()
}

impl Answer {
    pub(crate) fn json(code: u16, body: &Value) -> Self {
        Self { code, body: whole(body.to_string()) }
    }
}

impl From<Failure> for Answer {
    fn from(failure: Failure) -> Self {
        Self::json(failure.code, &failure.to_json())
    }
}

impl Service<Request<Body>> for ApiServer {
    type Response = Response<AnswerBody>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<AnswerBody>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let server = self.clone();
        Box::pin(async move { Ok(server.serve(request).await) })
    }
}

impl ApiServer {
    async fn serve(&self, request: Request<Body>) -> Response<AnswerBody> {
        let call = Call::of(&request);
        let path = request.uri().path().to_owned();
        let agent = text(&request, header::USER_AGENT);
        let content = text(&request, header::CONTENT_TYPE);
        let answer = match (&call, request.into_body().collect_bytes().await) {
            (_, Err(_)) => Failure::bad_request("the body cannot be read").into(),
            (Some(call), Ok(body)) => self.answer(call, &agent, &content, &body).unwrap_or_else(Answer::from),
            (None, _) if path == "/version" => Answer::json(200, &json!({"major": "1", "minor": "36", "gitVersion": "v1.36.3"})),
            (None, _) => self.with(|world| groups(world, &path)).unwrap_or_else(Answer::from),
        };
        if let Some(call) = call {
            self.record(Answered { call, code: answer.code });
        }
        let mut response = Response::new(answer.body);
        *response.status_mut() = StatusCode::from_u16(answer.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        response
    }

    fn answer(&self, call: &Call, agent: &str, content: &str, body: &[u8]) -> Result<Answer, Failure> {
        if call.verb == Verb::Create && matches!(call.plural.as_str(), "tokenreviews" | "subjectaccessreviews") {
            let given = parse(body)?;
            return Ok(self.with(|world| review(world, call, &given)));
        }
        if call.plural.is_empty() {
            return self.with(|world| resources(world, &call.api_version));
        }
        let kind = self.with(|world| world.kinds.by_plural(&call.api_version, &call.plural).cloned());
        let kind = kind.ok_or_else(|| Failure::new(404, "NotFound", "the server could not find the requested resource"))?;
        if !matches!(call.subresource.as_str(), "" | "status") || (call.subresource == "status" && !kind.has_status) {
            return Err(Failure::new(404, "NotFound", "the server could not find the requested resource"));
        }
        match call.verb {
            Verb::Watch => watch::watch(self, call, kind),
            Verb::List => self.with(|world| list(world, call, &kind)),
            Verb::Get => self.with(|world| get(world, call, &kind)),
            _ => self.with(|world| write(world, call, kind, agent, content, body)),
        }
    }
}

fn text(request: &Request<Body>, name: header::HeaderName) -> String {
    request.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

fn parse(body: &[u8]) -> Result<Value, Failure> {
    serde_json::from_slice(body).map_err(|error| Failure::bad_request(format!("the body is no JSON: {error}")))
}

pub(crate) fn selector(call: &Call) -> Result<Selector, Failure> {
    Selector::parse(call.parameter("labelSelector"), call.parameter("fieldSelector"))
        .ok_or_else(|| Failure::bad_request("unable to parse requirement"))
}

fn get(world: &World, call: &Call, kind: &Kind) -> Result<Answer, Failure> {
    let found = world.objects.get(&Key::of(kind, &call.namespace, &call.name));
    let plural = if kind.group().is_empty() { kind.plural.clone() } else { format!("{}.{}", kind.plural, kind.group()) };
    found.map(|object| Answer::json(200, object)).ok_or_else(|| Failure::not_found(&plural, &call.name))
}

/// A list, in pages where a limit is given. The token of a page is the version and the key after which the next starts.
fn list(world: &World, call: &Call, kind: &Kind) -> Result<Answer, Failure> {
    let selector = selector(call)?;
    let (version, after) = match call.parameter("continue").split_once(' ') {
        Some((version, after)) => (version.parse().map_err(|_| Failure::bad_request("continue key is not valid"))?, after.to_owned()),
        None => (world.version(), String::new()),
    };
    let limit: usize = call.parameter("limit").parse().ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let objects = world.at(version)?;
    let place = |key: &Key| format!("{}/{}", key.namespace, key.name);
    let here = |key: &Key| {
        (&key.plural, key.group.as_str()) == (&kind.plural, kind.group()) && (call.namespace.is_empty() || key.namespace == call.namespace)
    };
    let mut left: Vec<(&Key, &Value)> =
        objects.iter().filter(|(key, object)| here(key) && place(key) > after && selector.matches(object)).collect();
    let rest = left.split_off(limit.min(left.len()));
    let mut metadata = json!({ "resourceVersion": version.to_string() });
    if let (Some((last, _)), false) = (left.last(), rest.is_empty()) {
        metadata["continue"] = json!(format!("{version} {}", place(last)));
        metadata["remainingItemCount"] = json!(rest.len());
    }
    let items: Vec<Value> = left.into_iter().map(|(_, object)| listed(kind, object)).collect();
    Ok(Answer::json(
        200,
        &json!({"kind": format!("{}List", kind.kind), "apiVersion": kind.api_version, "metadata": metadata, "items": items}),
    ))
}

/// Items of built-in kinds do not say in a list what they are.
fn listed(kind: &Kind, object: &Value) -> Value {
    let mut object = object.clone();
    if kind.schema.is_none()
        && let Some(map) = object.as_object_mut()
    {
        map.remove("apiVersion");
        map.remove("kind");
    }
    object
}

fn write(world: &mut World, call: &Call, kind: Kind, agent: &str, content: &str, body: &[u8]) -> Result<Answer, Failure> {
    let mut name = call.name.clone();
    let mut given = if body.is_empty() { Value::Null } else { parse(body)? };
    if call.verb == Verb::Create {
        given["metadata"]["name"].as_str().unwrap_or_default().clone_into(&mut name);
        if name.is_empty() {
            let prefix = given["metadata"]["generateName"].as_str().unwrap_or_default();
            name = if prefix.is_empty() { String::new() } else { format!("{prefix}{:05}", world.version()) };
        }
    }
    if name.is_empty() {
        return Err(Failure::invalid(&kind.kind, "", "metadata.name: Required value: name or generateName is required"));
    }
    let manager = match (call.parameter("fieldManager"), agent.split('/').next().unwrap_or_default()) {
        ("", "") => "unknown",
        ("", agent) => agent,
        (manager, _) => manager,
    };
    let write = Write {
        key: Key::of(&kind, &call.namespace, &name),
        kind,
        subresource: call.subresource.clone(),
        manager: manager.to_owned(),
        dry_run: call.parameter("dryRun") == "All" || given["dryRun"][0] == "All",
    };
    match call.verb {
        Verb::Create => Ok(Answer::json(201, &write.create(world, given)?)),
        Verb::Update => Ok(Answer::json(200, &write.update(world, given)?)),
        Verb::Delete => {
            let how = Deletion {
                uid: given["preconditions"]["uid"].as_str().map(str::to_owned),
                version: given["preconditions"]["resourceVersion"].as_str().map(str::to_owned),
                propagation: given["propagationPolicy"].as_str().map(str::to_owned),
                grace: given["gracePeriodSeconds"].as_i64(),
            };
            let gone =
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": {"name": write.key.name}});
            Ok(Answer::json(200, &write.delete(world, &how)?.unwrap_or(gone)))
        }
        Verb::Apply => {
            if call.parameter("fieldManager").is_empty() {
                return Err(Failure::invalid("PatchOptions.meta.k8s.io", "", "fieldManager: Required value: is required for apply patch"));
            }
            let (object, is_new) = write.apply(world, given, call.parameter("force") == "true")?;
            Ok(Answer::json(if is_new { 201 } else { 200 }, &object))
        }
        _ => {
            let patched = write.patch(world, |object| match content {
                "application/merge-patch+json" => {
                    json_patch::merge(object, &given);
                    Ok(())
                }
                "application/json-patch+json" => {
                    let patch: json_patch::Patch =
                        serde_json::from_value(given.take()).map_err(|error| Failure::bad_request(error.to_string()))?;
                    json_patch::patch(object, &patch).map_err(|error| {
                        Failure::new(422, "Invalid", format!("the server rejected our request due to an error in our request: {error}"))
                    })
                }
                other => Err(Failure::new(415, "UnsupportedMediaType", format!("patches of type {other:?} are not modelled"))),
            });
            Ok(Answer::json(200, &patched?))
        }
    }
}

/// `TokenReview` and `SubjectAccessReview`: answered, not stored.
fn review(world: &World, call: &Call, given: &Value) -> Answer {
    let mut answer = given.clone();
    if call.plural == "tokenreviews" {
        let token = given["spec"]["token"].as_str().unwrap_or_default();
        let wanted: Vec<&str> = given["spec"]["audiences"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let known = world.tokens.get(token).filter(|status| {
            let has: Vec<&str> = status["audiences"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            wanted.is_empty() || wanted.iter().any(|audience| has.contains(audience))
        });
        answer["status"] = match known {
            Some(status) => {
                let mut status = status.clone();
                status["authenticated"] = json!(true);
                if let Some(audiences) = status["audiences"].as_array_mut() {
                    audiences.retain(|audience| wanted.is_empty() || audience.as_str().is_some_and(|name| wanted.contains(&name)));
                }
                status
            }
            None => json!({"user": {}, "error": "invalid bearer token"}),
        };
        return Answer::json(201, &answer);
    }
    let attributes = &given["spec"]["resourceAttributes"];
    let text = |field: &str| attributes[field].as_str().unwrap_or_default().to_owned();
    let is_denied = world.denied.contains(&(text("verb"), text("resource"), text("namespace")));
    answer["status"] = json!({ "allowed": !is_denied });
    Answer::json(201, &answer)
}

/// Discovery: the groups.
fn groups(world: &World, path: &str) -> Result<Answer, Failure> {
    match path {
        "/api" => Ok(Answer::json(200, &json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}))),
        "/apis" => {
            let mut groups: BTreeMap<&str, &str> = BTreeMap::new();
            groups.extend(world.kinds.api_versions().filter_map(|version| Some((version.split_once('/')?.0, version))));
            let groups: Vec<Value> = groups
                .into_iter()
                .map(|(group, version)| {
                    let version = json!({"groupVersion": version, "version": version.split_once('/').map_or("", |(_, version)| version)});
                    json!({"name": group, "versions": [version], "preferredVersion": version})
                })
                .collect();
            Ok(Answer::json(200, &json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})))
        }
        _ => Err(Failure::new(404, "NotFound", "the server could not find the requested resource")),
    }
}

/// Discovery: the kinds of one group and version.
fn resources(world: &World, api_version: &str) -> Result<Answer, Failure> {
    let mut resources = Vec::new();
    for kind in world.kinds.of_version(api_version) {
        let verbs = ["create", "delete", "get", "list", "patch", "update", "watch"];
        resources.push(json!({"name": kind.plural, "singularName": "", "namespaced": kind.namespaced, "kind": kind.kind, "verbs": verbs}));
        if kind.has_status {
            let (name, verbs) = (format!("{}/status", kind.plural), ["get", "patch", "update"]);
            resources.push(json!({"name": name, "singularName": "", "namespaced": kind.namespaced, "kind": kind.kind, "verbs": verbs}));
        }
    }
    if resources.is_empty() {
        return Err(Failure::new(404, "NotFound", "the server could not find the requested resource"));
    }
    Ok(Answer::json(200, &json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": resources})))
}

impl Answer {
    pub(crate) fn stream(body: AnswerBody) -> Self {
        Self { code: 200, body }
    }
}
