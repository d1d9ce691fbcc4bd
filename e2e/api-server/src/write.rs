//! What a write does to an object.
//!
//! Sources: `k8s.io/apiserver/pkg/registry/rest/{create,update,delete}.go`, `.../registry/generic/registry/store.go`,
//! `.../endpoints/handlers/patch.go`; structured-merge-diff `merge/update.go` for server-side apply.

use crate::defaults::shape;
use crate::failure::Failure;
use crate::fields::{differing, merge, remove};
use crate::kinds::Kind;
use crate::managed::{Managed, Manager, ownable, ownable_fields};
use crate::world::{Key, World};
use serde_json::{Map, Value, json};

/// What all writes have in common.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) kind: Kind,
    pub(crate) key: Key,
    /// `status`, or empty.
    pub(crate) subresource: String,
    /// The field manager.
    pub(crate) manager: String,
    pub(crate) dry_run: bool,
}

/// What is asked of a deletion.
#[derive(Clone, Debug, Default)]
pub(crate) struct Deletion {
    pub(crate) uid: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) propagation: Option<String>,
    pub(crate) grace: Option<i64>,
}

const FOREGROUND: &str = "foregroundDeletion";
const ORPHAN: &str = "orphan";

impl Write {
    fn updater(&self) -> Manager {
        Manager { operation: "Update", name: self.manager.clone(), subresource: self.subresource.clone() }
    }

    fn live(&self, world: &World) -> Result<Value, Failure> {
        world.objects.get(&self.key).cloned().ok_or_else(|| Failure::not_found(&self.full_plural(), &self.key.name))
    }

    /// `deployments.apps`, as messages have it.
    fn full_plural(&self) -> String {
        match self.kind.group() {
            "" => self.kind.plural.clone(),
            group => format!("{}.{group}", self.kind.plural),
        }
    }

    fn full_kind(&self) -> String {
        match self.kind.group() {
            "" => self.kind.kind.clone(),
            group => format!("{}.{group}", self.kind.kind),
        }
    }

    /// A new object.
    pub(crate) fn create(&self, world: &mut World, mut object: Value) -> Result<Value, Failure> {
        self.check_type(&object)?;
        if world.objects.contains_key(&self.key) {
            return Err(Failure::exists(&self.full_plural(), &self.key.name));
        }
        if object["metadata"]["resourceVersion"].as_str().is_some_and(|version| !version.is_empty()) {
            return Err(Failure::new(500, "", "resourceVersion should not be set on objects to be created"));
        }
        self.settle_new(world, &mut object)?;
        let mut owners = Managed::default();
        owners.track(&self.kind, &self.updater(), &json!({}), &object, &world.now());
        Ok(self.insert(world, object, &owners))
    }

    fn settle_new(&self, world: &World, object: &mut Value) -> Result<(), Failure> {
        if self.kind.namespaced {
            let namespace =
                Key { plural: "namespaces".to_owned(), group: String::new(), namespace: String::new(), name: self.key.namespace.clone() };
            if !world.objects.contains_key(&namespace) {
                return Err(Failure::not_found("namespaces", &self.key.namespace));
            }
            object["metadata"]["namespace"] = json!(self.key.namespace);
        }
        object["metadata"]["name"] = json!(self.key.name);
        object["apiVersion"] = json!(self.kind.api_version);
        object["kind"] = json!(self.kind.kind);
        drop_nulls(object);
        if let Some(metadata) = object["metadata"].as_object_mut() {
            for system in ["uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation", "managedFields"] {
                metadata.remove(system);
            }
        }
        if self.kind.has_status
            && let Some(map) = object.as_object_mut()
        {
            map.remove("status");
        }
        shape(&self.kind, object);
        Ok(())
    }

    fn insert(&self, world: &mut World, mut object: Value, owners: &Managed) -> Value {
        if self.kind.counted {
            object["metadata"]["generation"] = json!(1);
        }
        put(&mut object["metadata"], "managedFields", owners.to_json(&self.kind).as_ref());
        world.identify(&mut object);
        if self.dry_run {
            return object;
        }
        world.store(&self.key, Some(object)).unwrap_or_default()
    }

    fn check_type(&self, object: &Value) -> Result<(), Failure> {
        for (field, expected) in [("apiVersion", &self.kind.api_version), ("kind", &self.kind.kind)] {
            if object[field].as_str().is_some_and(|given| given != expected) {
                return Err(Failure::bad_request(format!(
                    "the {field} in the data ({}) does not match the expected {field} ({expected})",
                    object[field].as_str().unwrap_or_default()
                )));
            }
        }
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        if !name.is_empty() && name != self.key.name {
            return Err(Failure::bad_request(format!(
                "the name of the object ({name}) does not match the name on the URL ({})",
                self.key.name
            )));
        }
        Ok(())
    }

    fn check_version(&self, live: &Value, given: &Value) -> Result<(), Failure> {
        let version = given["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        if !version.is_empty() && live["metadata"]["resourceVersion"] != version {
            return Err(Failure::stale(&self.full_plural(), &self.key.name));
        }
        let uid = given["metadata"]["uid"].as_str().unwrap_or_default();
        let found = live["metadata"]["uid"].as_str().unwrap_or_default();
        if !uid.is_empty() && uid != found {
            let why = format!("Precondition failed: UID in precondition: {uid}, UID in object meta: {found}");
            return Err(Failure::conflict(&self.full_plural(), &self.key.name, &why));
        }
        Ok(())
    }

    /// The whole object, anew.
    pub(crate) fn update(&self, world: &mut World, object: Value) -> Result<Value, Failure> {
        self.check_type(&object)?;
        let live = self.live(world)?;
        let version = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
        if version.is_empty() && self.kind.guarded {
            let why = "metadata.resourceVersion: Invalid value: 0: must be specified for an update";
            return Err(Failure::invalid(&self.full_kind(), &self.key.name, why));
        }
        self.check_version(&live, &object)?;
        self.replace(world, &live, object)
    }

    /// A merge patch or a JSON patch.
    pub(crate) fn patch(&self, world: &mut World, change: impl FnOnce(&mut Value) -> Result<(), Failure>) -> Result<Value, Failure> {
        let live = self.live(world)?;
        let mut object = live.clone();
        change(&mut object)?;
        self.check_version(&live, &object)?;
        self.replace(world, &live, object)
    }

    fn replace(&self, world: &mut World, live: &Value, mut object: Value) -> Result<Value, Failure> {
        self.settle(live, &mut object);
        let mut owners = Managed::of(live);
        owners.track(&self.kind, &self.updater(), live, &object, &world.now());
        self.commit(world, live, object, &owners)
    }

    /// Gives an object back what this request cannot change.
    fn settle(&self, live: &Value, object: &mut Value) {
        drop_nulls(object);
        if self.subresource == "status" {
            let status = object.get("status").cloned();
            *object = live.clone();
            put(object, "status", status.as_ref());
            shape(&self.kind, object);
            return;
        }
        for system in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"] {
            put(&mut object["metadata"], system, live["metadata"].get(system));
        }
        object["apiVersion"] = live["apiVersion"].clone();
        object["kind"] = live["kind"].clone();
        if self.kind.has_status {
            put(object, "status", live.get("status"));
        }
        shape(&self.kind, object);
    }

    fn commit(&self, world: &mut World, live: &Value, mut object: Value, owners: &Managed) -> Result<Value, Failure> {
        self.check_finalizers(live, &object)?;
        let is_asked = asked(live) != asked(&object)
            || (self.kind.counts_annotations && live["metadata"]["annotations"] != object["metadata"]["annotations"]);
        let is_changed = self.kind.counted && self.subresource.is_empty() && is_asked;
        if is_changed {
            object["metadata"]["generation"] = json!(live["metadata"]["generation"].as_i64().unwrap_or_default() + 1);
        }
        put(&mut object["metadata"], "managedFields", owners.to_json(&self.kind).as_ref());
        object["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
        if object == *live || self.dry_run {
            return Ok(object);
        }
        let is_deleted = !object["metadata"]["deletionTimestamp"].is_null();
        let waits = object["metadata"]["deletionGracePeriodSeconds"].as_i64().is_some_and(|grace| grace > 0);
        if is_deleted && !waits && finalizers(&object).is_empty() {
            world.store(&self.key, None);
            return Ok(object);
        }
        Ok(world.store(&self.key, Some(object)).unwrap_or_default())
    }

    fn check_finalizers(&self, live: &Value, object: &Value) -> Result<(), Failure> {
        if live["metadata"]["deletionTimestamp"].is_null() {
            return Ok(());
        }
        let before = finalizers(live);
        let new: Vec<String> = finalizers(object).into_iter().filter(|name| !before.contains(name)).collect();
        if new.is_empty() {
            return Ok(());
        }
        let why = format!(
            "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers {new:?}"
        );
        Err(Failure::invalid(&self.full_kind(), &self.key.name, &why))
    }

    /// Server-side apply. Says whether the object is new.
    pub(crate) fn apply(&self, world: &mut World, mut applied: Value, force: bool) -> Result<(Value, bool), Failure> {
        self.check_type(&applied)?;
        if applied["metadata"].get("managedFields").is_some() {
            return Err(Failure::bad_request("metadata.managedFields must be nil"));
        }
        drop_nulls(&mut applied);
        let manager = Manager { operation: "Apply", name: self.manager.clone(), subresource: self.subresource.clone() };
        let Some(live) = world.objects.get(&self.key).cloned() else {
            return Ok((self.apply_new(world, applied, &manager)?, true));
        };
        self.check_version(&live, &applied)?;
        let part = ownable(&self.kind, &applied, &self.subresource);
        let fields = ownable_fields(&self.kind, &applied, &self.subresource);
        let mut owners = Managed::of(&live);
        let mut object = merge(&self.kind, &mut Vec::new(), Some(&live), &part);
        let mut dropped = owners.get(&manager).with_parents().difference(&fields.with_parents());
        for (_, others) in owners.others(&manager) {
            dropped = dropped.difference(&others.with_parents());
        }
        remove(&self.kind, &mut Vec::new(), &mut object, &dropped);
        self.settle_conflicts(world, &mut owners, &manager, (&live, &object, &fields), force)?;
        owners.set(&manager, fields, &world.now());
        self.settle(&live, &mut object);
        Ok((self.commit(world, &live, object, &owners)?, false))
    }

    fn apply_new(&self, world: &mut World, mut applied: Value, manager: &Manager) -> Result<Value, Failure> {
        if !self.subresource.is_empty() {
            return Err(Failure::not_found(&self.full_plural(), &self.key.name));
        }
        let fields = ownable_fields(&self.kind, &applied, "");
        self.settle_new(world, &mut applied)?;
        let mut owners = Managed::default();
        owners.set(manager, fields, &world.now());
        Ok(self.insert(world, applied, &owners))
    }

    fn settle_conflicts(
        &self,
        world: &World,
        owners: &mut Managed,
        manager: &Manager,
        (live, object, fields): (&Value, &Value, &crate::fields::Fields),
        force: bool,
    ) -> Result<(), Failure> {
        let mut causes = Vec::new();
        for (other, theirs) in owners.others(manager) {
            let shared = theirs.intersection(fields);
            let conflicts = differing(&shared, &self.kind, &mut Vec::new(), Some(live), Some(object));
            if conflicts.is_empty() {
                continue;
            }
            for path in conflicts.paths() {
                let message = format!("conflict with \"{}\" using {}", other.name, self.kind.api_version);
                causes.push(json!({"reason": "FieldManagerConflict", "message": message, "field": path}));
            }
            owners.set(&other, theirs.difference(&conflicts), &world.now());
        }
        if causes.is_empty() || force {
            return Ok(());
        }
        let mut failure = Failure::new(409, "Conflict", format!("Apply failed with {} conflict(s): {}", causes.len(), json!(causes)));
        failure.causes = causes;
        Err(failure)
    }

    /// Deletes, or marks as deleted what somebody waits for.
    pub(crate) fn delete(&self, world: &mut World, how: &Deletion) -> Result<Option<Value>, Failure> {
        let live = self.live(world)?;
        let found = |field: &str| live["metadata"][field].as_str().unwrap_or_default().to_owned();
        let preconditions = [("UID", &how.uid, found("uid")), ("ResourceVersion", &how.version, found("resourceVersion"))];
        for (name, wanted, found) in preconditions {
            if let Some(wanted) = wanted
                && *wanted != found
            {
                let why = format!("Precondition failed: {name} in precondition: {wanted}, {name} in object meta: {found}");
                return Err(Failure::conflict(&self.full_plural(), &self.key.name, &why));
            }
        }
        let mut object = live.clone();
        let mut names = finalizers(&live);
        let wanted = match how.propagation.as_deref() {
            Some("Foreground") => Some(FOREGROUND),
            Some("Orphan") => Some(ORPHAN),
            Some(_) => None,
            // what an earlier deletion said stays
            None => names.iter().map(String::as_str).find_map(|name| [FOREGROUND, ORPHAN].into_iter().find(|known| *known == name)),
        };
        names.retain(|name| name != FOREGROUND && name != ORPHAN);
        names.extend(wanted.map(str::to_owned));
        let grace = self.grace(&live, how);
        if names.is_empty() && grace == 0 {
            if !self.dry_run {
                world.store(&self.key, None);
            }
            return Ok(None);
        }
        put(&mut object["metadata"], "finalizers", Some(&json!(names)).filter(|_| !names.is_empty()));
        self.mark(world, &mut object, grace);
        if object == live || self.dry_run {
            return Ok(Some(object));
        }
        Ok(world.store(&self.key, Some(object)))
    }

    fn mark(&self, world: &World, object: &mut Value, grace: i64) {
        if !object["metadata"]["deletionTimestamp"].is_null() {
            let left = object["metadata"]["deletionGracePeriodSeconds"].as_i64().unwrap_or_default();
            object["metadata"]["deletionGracePeriodSeconds"] = json!(left.min(grace));
            return;
        }
        object["metadata"]["deletionTimestamp"] = json!(world.now());
        object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        if self.kind.counted {
            object["metadata"]["generation"] = json!(object["metadata"]["generation"].as_i64().unwrap_or_default() + 1);
        }
    }

    /// Seconds that a pod on a node has to end. Nothing else has any.
    fn grace(&self, live: &Value, how: &Deletion) -> i64 {
        if self.kind.kind != "Pod" || !live["spec"]["nodeName"].is_string() {
            return 0;
        }
        how.grace.or(live["spec"]["terminationGracePeriodSeconds"].as_i64()).unwrap_or(30)
    }
}

pub(crate) fn finalizers(object: &Value) -> Vec<String> {
    let names = object["metadata"]["finalizers"].as_array().into_iter().flatten();
    names.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// What counts for the generation: all but metadata and status.
fn asked(object: &Value) -> Map<String, Value> {
    let mut object = object.as_object().cloned().unwrap_or_default();
    object.retain(|name, _| name != "metadata" && name != "status");
    object
}

fn put(object: &mut Value, name: &str, value: Option<&Value>) {
    let Some(map) = object.as_object_mut() else { return };
    match value {
        Some(value) => _ = map.insert(name.to_owned(), value.clone()),
        None => _ = map.remove(name),
    }
}

/// A field that is null is a field that is not there.
fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}
