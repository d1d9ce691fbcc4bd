//! A small in-process API server, and a fault layer under the kube client.
//!
//! [`ApiServer`] models what controllers call, and no more: get, list, watch, create, update, patch (merge, JSON,
//! server-side apply), delete, the status subresource, finalizers, owner references, reviews. Its clock is tokio's, its
//! answers are a function of the requests, so that a test with a paused clock is deterministic. `tests/truth.rs` compares
//! it with a real one.
//!
//! What it does not model: admission, validation and defaults of built-in kinds, strategic merge patches, deletion of
//! collections, namespaces that end. A patch or path that it does not know is refused, never guessed.

mod call;
mod collector;
mod defaults;
mod failure;
pub mod faults;
mod fields;
mod kinds;
mod managed;
mod selector;
mod service;
mod watch;
mod world;
mod write;

pub use call::{Call, Verb};
pub use service::{AnswerBody, Answered};

use failure::Failure;
use kube::Client;
use serde_json::Value;
use std::sync::{Arc, Mutex, PoisonError};
use world::{Key, World};
use write::{Deletion, Write};

/// A server and everything in it. Clones are the same server.
#[derive(Clone, Debug)]
pub struct ApiServer {
    world: Arc<Mutex<World>>,
    answered: Arc<Mutex<Vec<Answered>>>,
}

impl Default for ApiServer {
    fn default() -> Self {
        Self::new()
    }
}

impl ApiServer {
    /// A server with the built-in kinds and the namespaces `default` and `kube-system`.
    pub fn new() -> Self {
        Self { world: Arc::new(Mutex::new(World::new())), answered: Arc::default() }
    }

    /// A client without faults. Needs a tokio runtime.
    pub fn client(&self) -> Client {
        Client::new(self.clone(), "default")
    }

    /// Serves the kind of a `CustomResourceDefinition`. False if the definition cannot be read.
    pub fn define(&self, definition: &Value) -> bool {
        self.with(|world| world.kinds.define(definition))
    }

    /// Knows a bearer token from now on; `status` is what `TokenReview` says about it.
    pub fn know_token(&self, token: &str, status: Value) {
        self.with(|world| world.tokens.insert(token.to_owned(), status));
    }

    /// Does not know a bearer token any more.
    pub fn forget_token(&self, token: &str) {
        self.with(|world| world.tokens.remove(token));
    }

    /// Lets `SubjectAccessReview` refuse a verb on a resource in a namespace.
    pub fn deny(&self, verb: &str, resource: &str, namespace: &str) {
        self.with(|world| world.denied.push((verb.to_owned(), resource.to_owned(), namespace.to_owned())));
    }

    /// The object, if it is there.
    pub fn get(&self, api_version: &str, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        self.with(|world| {
            let kind = world.kinds.by_kind(api_version, kind)?;
            world.objects.get(&Key::of(kind, namespace, name)).cloned()
        })
    }

    /// All objects of a kind, by namespace and name.
    pub fn all(&self, api_version: &str, kind: &str) -> Vec<Value> {
        self.with(|world| {
            let Some(kind) = world.kinds.by_kind(api_version, kind) else { return Vec::new() };
            world.select(kind, "", &selector::Selector::default()).map(|(_, object)| object.clone()).collect()
        })
    }

    /// Creates an object, or merges it into the one that is there, as the field manager `test` does. What it says of
    /// its status is written as well.
    pub fn put(&self, object: &Value) -> Result<Value, String> {
        self.with(|world| {
            let write = writer(world, object).map_err(|failure| failure.message)?;
            let written = put(world, &write, object).map_err(|failure| failure.message)?;
            if object.get("status").is_none() || !write.kind.has_status {
                return Ok(written);
            }
            let write = Write { subresource: "status".to_owned(), ..write };
            merge(world, &write, object).map_err(|failure| failure.message)
        })
    }

    /// Deletes an object as `kubectl delete --cascade=PROPAGATION` does: `Background`, `Foreground` or `Orphan`.
    pub fn delete(&self, api_version: &str, kind: &str, namespace: &str, name: &str, propagation: &str) -> Result<(), String> {
        let object = serde_json::json!({"apiVersion": api_version, "kind": kind, "metadata": {"namespace": namespace, "name": name}});
        self.with(|world| {
            let how = Deletion { propagation: Some(propagation.to_owned()), ..Deletion::default() };
            let write = writer(world, &object).map_err(|failure| failure.message)?;
            write.delete(world, &how).map(|_| ()).map_err(|failure| failure.message)
        })
    }

    /// Takes an object away at once, whatever its finalizers and grace period say: what a kubelet does with a pod that has ended.
    pub fn remove(&self, api_version: &str, kind: &str, namespace: &str, name: &str) {
        self.with(|world| {
            let Some(kind) = world.kinds.by_kind(api_version, kind) else { return };
            let key = Key::of(kind, namespace, name);
            if world.objects.contains_key(&key) {
                world.store(&key, None);
            }
        });
    }

    /// Does what the garbage collector does, until it has nothing to do. Says whether it did anything.
    pub fn collect_garbage(&self) -> bool {
        self.with(collector::collect)
    }

    /// Forgets the history: older watches and pages are answered with 410.
    pub fn compact(&self) {
        self.with(World::compact);
    }

    /// The version of the last change.
    pub fn version(&self) -> u64 {
        self.with(|world| world.version())
    }

    /// All requests that were answered, in their order.
    pub fn answered(&self) -> Vec<Answered> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Those of them that write, reviews aside.
    pub fn writes(&self) -> Vec<Answered> {
        let all = self.answered().into_iter();
        all.filter(|answered| answered.call.verb.is_write() && !answered.call.plural.ends_with("reviews")).collect()
    }

    fn record(&self, answered: Answered) {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner).push(answered);
    }

    fn with<T>(&self, act: impl FnOnce(&mut World) -> T) -> T {
        act(&mut self.world.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

fn writer(world: &World, object: &Value) -> Result<Write, Failure> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (version, kind) = (text(&object["apiVersion"]), text(&object["kind"]));
    let kind = world.kinds.by_kind(&version, &kind).cloned();
    let kind = kind.ok_or_else(|| Failure::bad_request(format!("no kind {} of {version}", object["kind"])))?;
    let key = Key::of(&kind, &text(&object["metadata"]["namespace"]), &text(&object["metadata"]["name"]));
    Ok(Write { kind, key, subresource: String::new(), manager: "test".to_owned(), dry_run: false })
}

fn merge(world: &mut World, write: &Write, object: &Value) -> Result<Value, Failure> {
    write.patch(world, |live| {
        json_patch::merge(live, object);
        Ok(())
    })
}

fn put(world: &mut World, write: &Write, object: &Value) -> Result<Value, Failure> {
    if world.objects.contains_key(&write.key) {
        return merge(world, write, object);
    }
    write.create(world, object.clone())
}
