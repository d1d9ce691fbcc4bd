//! The garbage collector: what has lost its owners goes, and an owner that is deleted in the foreground waits.
//!
//! Source: "Garbage Collection" of the Kubernetes documentation; `pkg/controller/garbagecollector/garbagecollector.go`.

use crate::kinds::Kind;
use crate::world::{Key, World};
use crate::write::{Deletion, Write, finalizers};
use serde_json::{Value, json};

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

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
    if !object["metadata"]["deletionTimestamp"].is_null() && finalizers(&object).iter().any(|name| name == ORPHAN) {
        return orphan(world, &kind, key, &object);
    }
    let owners: Vec<&Value> = owners(&object).collect();
    if owners.is_empty() || !object["metadata"]["deletionTimestamp"].is_null() {
        return;
    }
    let found: Vec<Option<Value>> = owners.iter().map(|reference| owner(world, key, reference)).collect();
    if found.iter().flatten().any(|owner| !is_foreground(owner)) {
        if found.iter().any(Option::is_none) {
            let left: Vec<&Value> =
                owners.iter().zip(&found).filter(|(_, owner)| owner.is_some()).map(|(reference, _)| *reference).collect();
            disown(world, kind, key, &json!(left));
        }
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
    release(world, kind, key, object, FOREGROUND);
}

/// Takes the owner out of everything that it owns.
fn orphan(world: &mut World, kind: &Kind, key: &Key, object: &Value) {
    let uid = object["metadata"]["uid"].clone();
    let owned: Vec<(Key, Value)> = world
        .objects
        .iter()
        .filter(|(_, other)| owners(other).any(|reference| reference["uid"] == uid))
        .map(|(key, other)| (key.clone(), other.clone()))
        .collect();
    for (key, other) in owned {
        let Some(kind) = kind_of(world, &other) else { continue };
        let left: Vec<&Value> = owners(&other).filter(|reference| reference["uid"] != uid).collect();
        let left = if left.is_empty() { Value::Null } else { json!(left) };
        disown(world, kind, &key, &left);
    }
    release(world, kind, key, object, ORPHAN);
}

fn disown(world: &mut World, kind: Kind, key: &Key, left: &Value) {
    // a conflict is looked at again in the next round
    let _ = writer(kind, key).patch(world, |object| {
        object["metadata"]["ownerReferences"] = left.clone();
        Ok(())
    });
}

fn release(world: &mut World, kind: &Kind, key: &Key, object: &Value, finalizer: &str) {
    let mut left = finalizers(object);
    left.retain(|name| name != finalizer);
    // a conflict is looked at again in the next round
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
