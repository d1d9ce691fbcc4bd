//! What every object has.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The annotation that kubectl keeps a copy of the whole object in: nothing that matters, and large.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Texts by name, sorted: what a `BTreeMap` does, in a third of its memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pairs(Box<[(Box<str>, Box<str>)]>);

impl Pairs {
    /// The value of `key`.
    pub fn get(&self, key: &str) -> Option<&str> {
        let at = self.0.binary_search_by(|(name, _)| (**name).cmp(key)).ok()?;
        self.0.get(at).map(|(_, value)| &**value)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> + DoubleEndedIterator {
        self.0.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Those whose name starts with `prefix`, by name.
    pub fn with_prefix<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        let first = self.0.partition_point(|(name, _)| &**name < prefix);
        self.iter().skip(first).take_while(move |(name, _)| name.starts_with(prefix))
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<K: Into<Box<str>>, V: Into<Box<str>>> FromIterator<(K, V)> for Pairs {
    /// Of two values for one name the later stays.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let sorted: BTreeMap<Box<str>, Box<str>> = pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        Self(sorted.into_iter().collect())
    }
}

impl From<Option<BTreeMap<String, String>>> for Pairs {
    fn from(map: Option<BTreeMap<String, String>>) -> Self {
        Self(map.unwrap_or_default().into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// When an object was created: nanoseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Created(pub i64);

/// Who an object is, how old it is, and what is written on it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Meta {
    /// The namespace; empty for cluster-scoped kinds.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
    /// When it was created. Objects in files usually do not say.
    pub creation: Option<Created>,
    /// Its annotations, without kubectl's copy of the object.
    pub annotations: Pairs,
    /// Its labels.
    pub labels: Pairs,
}

impl Meta {
    /// That of an object of which only the name is known.
    pub fn named(namespace: impl Into<Arc<str>>, name: impl Into<Arc<str>>) -> Self {
        Self { namespace: namespace.into(), name: name.into(), creation: None, annotations: Pairs::default(), labels: Pairs::default() }
    }

    /// The part of `full` that matters. `namespace` is empty for cluster-scoped kinds.
    pub fn from_full(full: ObjectMeta, namespace: Arc<str>, name: Arc<str>) -> Self {
        let mut annotations = full.annotations;
        if let Some(annotations) = &mut annotations {
            annotations.remove(LAST_APPLIED);
        }
        let creation = full.creation_timestamp.and_then(|time| i64::try_from(time.0.as_nanosecond()).ok()).map(Created);
        Self { namespace, name, creation, annotations: annotations.into(), labels: full.labels.into() }
    }

    /// Orders the older before the younger: by time of creation, then by namespace and name. An object that
    /// does not say when it was created counts as younger than all that do; so objects of files, which do
    /// not say, have an order that depends on nothing but their names.
    pub fn older_first(&self, other: &Self) -> Ordering {
        self.seniority().cmp(&other.seniority())
    }

    /// The key of [`Meta::older_first`].
    pub fn seniority(&self) -> (bool, Option<Created>, &str, &str) {
        (self.creation.is_none(), self.creation, &self.namespace, &self.name)
    }
}
