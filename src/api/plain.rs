//! `Secret`, `ConfigMap` and `Namespace`.

use super::{Meta, Pairs};
use crate::report::PrivateBytes;
use k8s_openapi::api::core::v1 as full;
use std::collections::BTreeMap;

/// Bytes by name that must stay private.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Secret {
    /// Who it is.
    pub meta: Meta,
    /// Its type, such as `kubernetes.io/tls`.
    pub kind: Box<str>,
    /// Its content, decoded, `stringData` included; by name.
    data: Box<[(Box<str>, PrivateBytes)]>,
}

impl Secret {
    /// A Secret with this content.
    pub fn new(meta: Meta, kind: impl Into<Box<str>>, data: BTreeMap<String, Vec<u8>>) -> Self {
        Self { meta, kind: kind.into(), data: data.into_iter().map(|(name, value)| (name.into(), PrivateBytes::new(value))).collect() }
    }

    /// The content of `key`.
    pub fn get(&self, key: &str) -> Option<&PrivateBytes> {
        let at = self.data.binary_search_by(|(name, _)| (**name).cmp(key)).ok()?;
        self.data.get(at).map(|(_, value)| value)
    }

    /// The names of its content.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.data.iter().map(|(name, _)| &**name)
    }

    /// The lean form of `full`. As on the API server, `stringData` wins over `data`.
    pub fn from_full(meta: Meta, full: full::Secret) -> Self {
        let mut data: BTreeMap<String, Vec<u8>> = full.data.unwrap_or_default().into_iter().map(|(name, value)| (name, value.0)).collect();
        data.extend(full.string_data.unwrap_or_default().into_iter().map(|(name, value)| (name, value.into_bytes())));
        Self::new(meta, full.type_.unwrap_or_else(|| "Opaque".to_owned()), data)
    }
}

/// Texts by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ConfigMap {
    /// Who it is.
    pub meta: Meta,
    /// Its content (`binaryData` is not read).
    pub data: Pairs,
}

impl ConfigMap {
    /// The lean form of `full`.
    pub fn from_full(meta: Meta, full: full::ConfigMap) -> Self {
        Self { meta, data: full.data.into() }
    }
}

/// A namespace; its labels choose namespaces.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Namespace {
    /// Who it is: the name is `meta.name`, `meta.namespace` is empty.
    pub meta: Meta,
}
