//! The garbage collector: what has lost its owners goes, and an owner that is deleted in the foreground waits.
//!
//! Source: "Garbage Collection" of the Kubernetes documentation; `pkg/controller/garbagecollector/garbagecollector.go`.

use crate::kinds::Kind;
use crate::world::{Key, World};
use crate::write::{Deletion, Write, finalizers};
use serde_json::{Value, json};

const FOREGROUND: &str = "foregroundDeletion";

/// Collects until nothing changes. Says whether anything did.
pub(crate) fn collect(world: &mut World) -> bool {
    let start = world.version();
    loop {
        let before = world.version();
        let keys: Vec<Key> = world.objects.keys().cloned().collect();
        for key in keys {
            one(world, &key);
        }
        if world.version() == before {
            return before != start;
        }
    }
}

fn one(world: &mut World, key: &Key) {
    let Some(object) = world.objects.get(key).cloned() else { return };
    let Some(kind) = kind_of(world, &object) else { return };
    if is_foreground(&object) {
        return foreground(world, &kind, key, &object);
    }
    let owners: Vec<&Value> = owners(&object).collect();
    if owners.is_empty() || !object["metadata"]["deletionTimestamp"].is_null() {
        return;
    }
    let found: Vec<Option<Value>> = owners.iter().map(|reference| owner(world, key, reference)).collect();
    let solid = found.iter().flatten().any(|owner| !is_foreground(owner));
    if solid {
        return;
    }
    // an owner that is deleted in the foreground takes what it blocks on in the foreground as well
    let propagation = if found.iter().any(Option::is_some) && has_dependents(world, &object) { "Foreground" } else { "Background" };
    delete(world, kind, key, &object, propagation);
}

fn foreground(world: &mut World, kind: &Kind, key: &Key, object: &Value) {
    let uid = object["metadata"]["uid"].clone();
    let blocks = |other: &Value| owners(other).any(|reference| reference["uid"] == uid && reference["blockOwnerDeletion"] == true);
    if world.objects.values().any(blocks) {
        return;
    }
    let mut left = finalizers(object);
    left.retain(|name| name != FOREGROUND);
    let _ = writer(kind.clone(), key).patch(world, |object| {
        object["metadata"]["finalizers"] = json!(left);
        Ok(())
    });
}

fn delete(world: &mut World, kind: Kind, key: &Key, object: &Value, propagation: &str) {
    let text = |field: &str| object["metadata"][field].as_str().map(str::to_owned);
    let how = Deletion { uid: text("uid"), version: text("resourceVersion"), propagation: Some(propagation.to_owned()), grace: None };
    // a conflict is looked at again in the next round
    let _ = writer(kind, key).delete(world, &how);
}

fn writer(kind: Kind, key: &Key) -> Write {
    Write { kind, key: key.clone(), subresource: String::new(), manager: "kube-controller-manager".to_owned(), dry_run: false }
}

fn is_foreground(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null() && finalizers(object).iter().any(|name| name == FOREGROUND)
}

fn owners(object: &Value) -> impl Iterator<Item = &Value> {
    object["metadata"]["ownerReferences"].as_array().into_iter().flatten()
}

fn kind_of(world: &World, object: &Value) -> Option<Kind> {
    world.kinds.by_kind(object["apiVersion"].as_str()?, object["kind"].as_str()?).cloned()
}

/// The owner, if it still is the one that is meant.
fn owner(world: &World, dependent: &Key, reference: &Value) -> Option<Value> {
    let kind = world.kinds.by_kind(reference["apiVersion"].as_str()?, reference["kind"].as_str()?)?;
    let found = world.objects.get(&Key::of(kind, &dependent.namespace, reference["name"].as_str()?))?;
    (found["metadata"]["uid"] == reference["uid"]).then(|| found.clone())
}

fn has_dependents(world: &World, object: &Value) -> bool {
    world.objects.values().any(|other| owners(other).any(|reference| reference["uid"] == object["metadata"]["uid"]))
}
