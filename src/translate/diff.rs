//! What differs between two models: the keys that a rebuild touched.

use crate::model::{Model, Touched};
use std::collections::{BTreeMap, BTreeSet};

/// Keys that are in one map only, or have another value.
fn differing<'a, K: Ord, V>(before: &'a BTreeMap<K, V>, after: &'a BTreeMap<K, V>, same: impl Fn(&V, &V) -> bool) -> Vec<&'a K> {
    let gone = before.keys().filter(|key| !after.contains_key(*key));
    let changed = after.iter().filter(|(key, value)| !before.get(*key).is_some_and(|old| same(old, value))).map(|(key, _)| key);
    gone.chain(changed).collect()
}

/// The keys of which `after` says something else than `before`.
pub(super) fn touched(before: &Model, after: &Model) -> Touched {
    let mut touched = Touched {
        settings: before.settings != after.settings,
        listeners: differing(&before.listeners, &after.listeners, PartialEq::eq).into_iter().cloned().collect(),
        certificates: differing(&before.certificates, &after.certificates, PartialEq::eq).into_iter().cloned().collect(),
        ca_bundles: differing(&before.ca_bundles, &after.ca_bundles, PartialEq::eq).into_iter().cloned().collect(),
        default_certificate: before.default_certificate != after.default_certificate,
        ..Touched::default()
    };
    let tables: BTreeSet<_> = before.tables.keys().chain(after.tables.keys()).collect();
    let empty = crate::model::RouteTable::default();
    for table in tables {
        let (old, new) = (before.tables.get(table).unwrap_or(&empty), after.tables.get(table).unwrap_or(&empty));
        touched.hosts.extend(differing(&old.hosts, &new.hosts, PartialEq::eq).into_iter().map(|host| (table.clone(), host.clone())));
    }
    let lists: BTreeSet<_> = before.certificate_lists.keys().chain(after.certificate_lists.keys()).collect();
    let none = crate::model::CertificateList::default();
    for list in lists {
        let (old, new) = (before.certificate_lists.get(list).unwrap_or(&none), after.certificate_lists.get(list).unwrap_or(&none));
        touched.list_entries.extend(differing(&old.entries, &new.entries, PartialEq::eq).into_iter().map(|id| (list.clone(), id.clone())));
    }
    for id in differing(&before.backends, &after.backends, PartialEq::eq) {
        let only_endpoints = match (before.backends.get(id), after.backends.get(id)) {
            (Some(old), Some(new)) => {
                old.kind == new.kind && old.mode == new.mode && old.policy == new.policy && old.sources == new.sources
            }
            _ => false,
        };
        if only_endpoints {
            touched.endpoints.insert(id.clone());
        } else {
            touched.backends.insert(id.clone());
        }
    }
    touched
}
