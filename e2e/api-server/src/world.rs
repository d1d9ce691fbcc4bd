//! All objects and the log of their changes.

use crate::failure::Failure;
use crate::kinds::{Kind, Kinds};
use crate::selector::Selector;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeMap;
use tokio::sync::watch;
use tokio::time::Instant;

/// When the clock of every server starts: 2026-01-01.
const EPOCH: i64 = 1_767_225_600;

/// Which object: kind by plural and group, namespace (empty for cluster scope), name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) plural: String,
    pub(crate) group: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

impl Key {
    pub(crate) fn of(kind: &Kind, namespace: &str, name: &str) -> Self {
        let namespace = if kind.namespaced { namespace } else { "" };
        Self { plural: kind.plural.clone(), group: kind.group().to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
    }

    fn is_of(&self, kind: &Kind) -> bool {
        self.plural == kind.plural && self.group == kind.group()
    }
}

/// One change. An object that is deleted has no `after`, one that is created no `before`.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) version: u64,
    pub(crate) key: Key,
    pub(crate) before: Option<Value>,
    pub(crate) after: Option<Value>,
}

/// Everything that a server knows.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) kinds: Kinds,
    pub(crate) objects: BTreeMap<Key, Value>,
    /// Who a bearer token is, for `TokenReview`: what goes into its status.
    pub(crate) tokens: BTreeMap<String, Value>,
    /// What `SubjectAccessReview` refuses: verb, resource, namespace.
    pub(crate) denied: Vec<(String, String, String)>,
    log: Vec<Change>,
    version: u64,
    /// Changes up to this version are forgotten.
    compacted: u64,
    uids: u64,
    start: Instant,
    pub(crate) changed: watch::Sender<u64>,
}

impl World {
    pub(crate) fn new() -> Self {
        let mut world = Self {
            kinds: Kinds::built_in(),
            objects: BTreeMap::new(),
            tokens: BTreeMap::new(),
            denied: Vec::new(),
            log: Vec::new(),
            version: 1,
            compacted: 1,
            uids: 0,
            start: Instant::now(),
            changed: watch::Sender::new(1),
        };
        for name in ["default", "kube-system"] {
            let mut namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "status": {"phase": "Active"}});
            world.identify(&mut namespace);
            let key = Key { plural: "namespaces".to_owned(), group: String::new(), namespace: String::new(), name: name.to_owned() };
            world.store(&key, Some(namespace));
        }
        world
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn now(&self) -> String {
        let now = Timestamp::from_second(EPOCH).unwrap_or_default();
        let elapsed = i64::try_from(self.start.elapsed().as_secs()).unwrap_or_default();
        (now + SignedDuration::from_secs(elapsed)).to_string()
    }

    /// Gives a new object its identity.
    pub(crate) fn identify(&mut self, object: &mut Value) {
        self.uids += 1;
        object["metadata"]["uid"] = json!(format!("00000000-0000-4000-8000-{:012}", self.uids));
        object["metadata"]["creationTimestamp"] = json!(self.now());
    }

    /// Writes one object, or removes it, as one change.
    pub(crate) fn store(&mut self, key: &Key, object: Option<Value>) -> Option<Value> {
        self.version += 1;
        let after = object.map(|mut object| {
            object["metadata"]["resourceVersion"] = json!(self.version.to_string());
            object
        });
        let mut before = match &after {
            Some(object) => self.objects.insert(key.clone(), object.clone()),
            None => self.objects.remove(key),
        };
        let last = match (&after, &mut before) {
            (None, Some(removed)) => {
                // what watchers see of a deletion carries its version
                let mut last = removed.clone();
                last["metadata"]["resourceVersion"] = json!(self.version.to_string());
                Some(last)
            }
            _ => after.clone(),
        };
        self.log.push(Change { version: self.version, key: key.clone(), before, after });
        self.changed.send_replace(self.version);
        last
    }

    /// Forgets the history.
    pub(crate) fn compact(&mut self) {
        self.log.clear();
        self.compacted = self.version;
        self.changed.send_replace(self.version);
    }

    /// The objects of one kind and namespace (all if empty) that are selected, by namespace and name.
    pub(crate) fn select<'a>(
        &'a self,
        kind: &'a Kind,
        namespace: &'a str,
        selector: &'a Selector,
    ) -> impl Iterator<Item = (&'a Key, &'a Value)> {
        let here = move |key: &Key| key.is_of(kind) && (namespace.is_empty() || key.namespace == namespace);
        self.objects.iter().filter(move |(key, object)| here(key) && selector.matches(object))
    }

    /// All objects as they were at `version`.
    pub(crate) fn at(&self, version: u64) -> Result<Cow<'_, BTreeMap<Key, Value>>, Failure> {
        if version < self.compacted {
            return Err(Failure::gone(version, self.compacted));
        }
        if version >= self.version {
            return Ok(Cow::Borrowed(&self.objects));
        }
        let mut objects = self.objects.clone();
        for change in self.log.iter().rev().take_while(|change| change.version > version) {
            match &change.before {
                Some(before) => _ = objects.insert(change.key.clone(), before.clone()),
                None => _ = objects.remove(&change.key),
            }
        }
        Ok(Cow::Owned(objects))
    }

    /// What a watch of one kind sees of the changes after `version`, as type and object.
    pub(crate) fn since(
        &self,
        version: u64,
        kind: &Kind,
        namespace: &str,
        selector: &Selector,
    ) -> Result<Vec<(&'static str, Value)>, Failure> {
        if version < self.compacted {
            return Err(Failure::gone(version, self.compacted));
        }
        let start = self.log.partition_point(|change| change.version <= version);
        let here = |key: &Key| key.is_of(kind) && (namespace.is_empty() || key.namespace == namespace);
        let changes = self.log[start..].iter().filter(|change| here(&change.key));
        Ok(changes.filter_map(|change| seen(change, selector)).collect())
    }
}

/// A change as a watcher with this selector sees it: what leaves the selection is deleted to it.
fn seen(change: &Change, selector: &Selector) -> Option<(&'static str, Value)> {
    let before = change.before.as_ref().filter(|object| selector.matches(object));
    let after = change.after.as_ref().filter(|object| selector.matches(object));
    match (before, after) {
        (None, None) => None,
        (None, Some(after)) => Some(("ADDED", after.clone())),
        (Some(_), Some(after)) => Some(("MODIFIED", after.clone())),
        (Some(before), None) => {
            let mut last = before.clone();
            last["metadata"]["resourceVersion"] = json!(change.version.to_string());
            Some(("DELETED", last))
        }
    }
}
