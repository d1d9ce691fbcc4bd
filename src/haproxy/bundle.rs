//! A bundle: the model rendered for HAProxy as keyed, hashed resources.
//!
//! The difference of two bundles by key and hash *is* the change between them. The digest is an order-free
//! sum of resource hashes, so keeping it costs what the change costs.

use crate::model::ZoneRule;
use crate::report::{ObjectRef, PrivateBytes};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::ops::{Bound, Deref};
use std::sync::Arc;

/// A short shared text.
pub type Name = Arc<str>;

/// Names a resource. The order of keys is the order in files.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ResourceKey {
    /// A configuration file of its own, `NAME.cfg`: global, defaults, frontends, one shape each.
    Section(Name),
    /// The head of a backend: its `backend` line and, if it is private, its directives.
    Backend(Name),
    /// The servers of that backend.
    Servers(Name),
    /// Entries of one map that come from one owner (a host of a table, or a backend).
    MapEntries {
        /// The map's path relative to the configuration directory, such as `maps/routes.map`.
        map: Name,
        /// Whose entries.
        owner: Name,
    },
    /// A certificate with its key, by its path such as `certs/shop_tls.pem`.
    Certificate(Name),
    /// Entries of one crt-list that come from one owner (a certificate).
    CertificateList {
        /// The list's path, such as `lists/https.list`.
        list: Name,
        /// Whose entries.
        owner: Name,
    },
    /// Any other file, by its path: CA bundles.
    File(Name),
}

impl ResourceKey {
    /// Whether it is one of those that make a revision: sections, backends, routing maps.
    pub fn is_of_revision(&self) -> bool {
        match self {
            Self::Section(_) | Self::Backend(_) => true,
            Self::MapEntries { map, .. } => !map.starts_with("maps/values"),
            _ => false,
        }
    }
}

impl fmt::Display for ResourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Section(name) => write!(f, "section {name}"),
            Self::Backend(name) => write!(f, "backend {name}"),
            Self::Servers(name) => write!(f, "servers {name}"),
            Self::MapEntries { map, owner } => write!(f, "map {map} {owner}"),
            Self::Certificate(file) => write!(f, "certificate {file}"),
            Self::CertificateList { list, owner } => write!(f, "list {list} {owner}"),
            Self::File(path) => write!(f, "file {path}"),
        }
    }
}

/// What a resource holds. All configuration text in here came out of the one writer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Lines of a configuration file, each ended by a line feed.
    Section(Arc<str>),
    /// The head of a backend.
    Backend(BackendHead),
    /// Servers.
    Servers(Servers),
    /// Map entries, sorted by key; no key stands twice in one map.
    MapEntries(Vec<MapEntry>),
    /// Chain and key.
    Certificate(PrivateBytes),
    /// Lines of a crt-list.
    CertificateList(Vec<ListEntry>),
    /// The bytes of a file.
    File(PrivateBytes),
}

/// The head of a backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendHead {
    /// The lines in the configuration, from the `backend` line on, without servers.
    pub text: Arc<str>,
    /// How it comes into a running process.
    pub class: BackendClass,
}

/// How a backend comes into a running process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BackendClass {
    /// It holds nothing but servers: where HAProxy can, by `add backend NAME from SHAPE mode MODE guid GUID`.
    Shaped {
        /// The named defaults section (whose resource is `Section("30-shape-…")`).
        shape: Name,
        /// `http` or `tcp`.
        mode: &'static str,
        /// Its guid.
        guid: Name,
    },
    /// It has directives of its own: only by a reload.
    Private,
}

/// The servers of a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Servers {
    /// All of them, sorted by name.
    pub all: Vec<Server>,
    /// When a pod keeps to those of its own zone; `None`: never, and no server says its zone.
    pub zones: Option<ZoneRule>,
}

impl Deref for Servers {
    type Target = [Server];

    fn deref(&self) -> &[Server] {
        &self.all
    }
}

impl From<Vec<Server>> for Servers {
    fn from(all: Vec<Server>) -> Self {
        Self { all, zones: None }
    }
}

/// A server of a backend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Server {
    /// Its name, made of address, port and a short hash of its keywords: a server never changes these.
    pub name: Name,
    /// Where it is; `0.0.0.0:0` where a rule sets the destination.
    pub address: SocketAddr,
    /// Its id, unique in the backend, 1 or more.
    pub id: u32,
    /// Its guid, unique in the process, at most 127 bytes.
    pub guid: Name,
    /// Keywords in the order they are written (`check inter 2000 …`), already in the form of the
    /// configuration and safe for the runtime API as well: words of `[A-Za-z0-9_.:/@,()-]` only.
    /// Without weight and state. The same text is used for `add server`.
    pub keywords: Arc<str>,
    /// Whether it is health checked (`check` is among the keywords): `enable health` after `add server`.
    pub checked: bool,
    /// Its share, 0 to 256.
    pub weight: u16,
    /// Whether it takes new work. A draining one is written with weight 0.
    pub drain: bool,
    /// The zone that it is in, where pods keep to their own.
    pub zone: Option<Name>,
    /// Its share in one pod, where that is another one because of zones ([`super::zones`]). It is the pod's own: no part
    /// of the hash, and told to nobody.
    pub here: Option<u16>,
}

/// What a cookie says for the server at `address`: it tells clients nothing, and is the same in every pod.
pub fn cookie_of(address: SocketAddr) -> String {
    blake3::hash(address.to_string().as_bytes()).to_hex()[..16].to_owned()
}

/// One entry of a map.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MapEntry {
    /// The key: no blank, no control byte, does not start with `#`.
    pub key: Box<str>,
    /// The value: no control byte, not empty, no blank at either end.
    pub value: Box<str>,
}

/// One line of a crt-list.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListEntry {
    /// The certificate's path.
    pub file: Name,
    /// Names it is served for, sorted.
    pub names: Vec<Box<str>>,
}

/// One keyed piece of a bundle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// Its key.
    pub key: ResourceKey,
    /// What it holds.
    pub content: Content,
    /// The source objects that it comes from: who is told when HAProxy complains about it.
    pub sources: Arc<[ObjectRef]>,
    hash: u128,
}

impl Resource {
    /// A resource with its hash. `sources` take no part in the hash.
    pub fn new(key: ResourceKey, content: Content, sources: Arc<[ObjectRef]>) -> Self {
        let hash = hash(&key, &content);
        Self { key, content, sources, hash }
    }

    /// About how many bytes it takes in a file.
    pub fn bytes(&self) -> usize {
        match &self.content {
            Content::Section(text) => text.len(),
            Content::Backend(head) => head.text.len(),
            Content::Servers(servers) => {
                servers.iter().map(|server| 64 + server.name.len() + server.guid.len() + server.keywords.len()).sum()
            }
            Content::MapEntries(entries) => entries.iter().map(|entry| 2 + entry.key.len() + entry.value.len()).sum(),
            Content::Certificate(bytes) | Content::File(bytes) => bytes.expose().len(),
            Content::CertificateList(entries) => {
                let names = |entry: &ListEntry| entry.names.iter().map(|name| 1 + name.len()).sum::<usize>();
                entries.iter().map(|entry| 1 + entry.file.len() + names(entry)).sum()
            }
        }
    }

    /// First 128 bits of the BLAKE3 of key and content.
    pub fn hash(&self) -> u128 {
        self.hash
    }

    /// Whether it is the same in this pod: content, and the shares that servers have here.
    pub fn is_same_here(&self, other: &Self) -> bool {
        let here = |resource: &Self| match &resource.content {
            Content::Servers(servers) if servers.zones.is_some() => servers.iter().map(|server| server.here).collect(),
            _ => Vec::new(),
        };
        self.hash == other.hash && (std::ptr::eq(self, other) || here(self) == here(other))
    }
}

fn hash(key: &ResourceKey, content: &Content) -> u128 {
    let mut hasher = blake3::Hasher::new();
    let mut field = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    field(key.to_string().as_bytes());
    match content {
        Content::Section(text) => field(text.as_bytes()),
        Content::Backend(head) => {
            field(head.text.as_bytes());
            if let BackendClass::Shaped { shape, mode, guid } = &head.class {
                for word in [shape.as_ref(), mode, guid.as_ref()] {
                    field(word.as_bytes());
                }
            }
        }
        Content::Servers(servers) => {
            for server in servers.iter() {
                field(server.name.as_bytes());
                field(server.address.to_string().as_bytes());
                field(&server.id.to_le_bytes());
                field(server.guid.as_bytes());
                field(server.keywords.as_bytes());
                field(&server.weight.to_le_bytes());
                field(&[u8::from(server.drain)]);
            }
            if let Some(rule) = servers.zones {
                field(&rule.min_ready.to_le_bytes());
                field(&rule.min_share.to_le_bytes());
                servers.iter().for_each(|server| field(server.zone.as_deref().unwrap_or_default().as_bytes()));
            }
        }
        Content::MapEntries(entries) => {
            for entry in entries {
                field(entry.key.as_bytes());
                field(entry.value.as_bytes());
            }
        }
        Content::Certificate(bytes) | Content::File(bytes) => field(bytes.expose()),
        Content::CertificateList(entries) => {
            for entry in entries {
                field(entry.file.as_bytes());
                for name in &entry.names {
                    field(name.as_bytes());
                }
                field(&[]);
            }
        }
    }
    let bytes = *hasher.finalize().as_bytes();
    u128::from_le_bytes(std::array::from_fn(|i| bytes[i]))
}

/// Identity of a bundle's content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub u128);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// What happened to one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Which.
    pub key: ResourceKey,
    /// What it was; `None` if it is new.
    pub before: Option<Arc<Resource>>,
    /// What it is now; `None` if it is gone.
    pub after: Option<Arc<Resource>>,
}

impl Change {
    /// Whether it is one of those that people see and can go back to.
    pub fn is_revision(&self) -> bool {
        self.key.is_of_revision()
    }
}

/// A set of resources with its digest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bundle {
    resources: BTreeMap<ResourceKey, Arc<Resource>>,
    files: BTreeMap<Name, BTreeSet<ResourceKey>>,
    digest: Digest,
}

impl Bundle {
    /// Its identity.
    pub fn digest(&self) -> Digest {
        self.digest
    }

    /// The resource `key`.
    pub fn get(&self, key: &ResourceKey) -> Option<&Arc<Resource>> {
        self.resources.get(key)
    }

    /// All resources in the order of their keys.
    pub fn resources(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.resources.values()
    }

    /// The paths of all files that this bundle is written to, in order.
    pub fn files(&self) -> impl Iterator<Item = &Name> {
        self.files.keys()
    }

    /// The keys of the resources in the file `path`, in their order. What is written is in another order where a
    /// file holds backends: each is followed by its servers.
    pub fn in_file(&self, path: &str) -> impl Iterator<Item = &ResourceKey> {
        self.files.get(path).into_iter().flatten()
    }

    /// The names of the backends after `name`, or of all, in order.
    pub fn backends_after(&self, name: Option<&Name>) -> impl Iterator<Item = &Name> {
        let first = Bound::Included(ResourceKey::Backend("".into()));
        let start = name.map_or(first, |name| Bound::Excluded(ResourceKey::Backend(name.clone())));
        self.resources.range((start, Bound::Unbounded)).map_while(|(key, _)| match key {
            ResourceKey::Backend(name) => Some(name),
            _ => None,
        })
    }

    /// Puts `resource` in, or takes the resource `key` out; `None` if that changes nothing.
    pub fn set(&mut self, key: &ResourceKey, resource: Option<Resource>) -> Option<Change> {
        let before = self.resources.get(key).cloned();
        match (&before, &resource) {
            (None, None) => return None,
            (Some(old), Some(new)) if old.hash == new.hash && old.sources == new.sources => return None,
            _ => {}
        }
        let after = resource.map(Arc::new);
        self.replace(key, after.clone());
        Some(Change { key: key.clone(), before, after })
    }

    /// Makes the changes of a newer bundle here too.
    pub fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            self.replace(&change.key, change.after.clone());
        }
    }

    fn replace(&mut self, key: &ResourceKey, after: Option<Arc<Resource>>) {
        if let Some(new) = &after {
            self.digest.0 = self.digest.0.wrapping_add(new.hash);
            self.files.entry(file_of(key)).or_default().insert(key.clone());
        }
        let before = match after {
            Some(new) => self.resources.insert(key.clone(), new),
            None => self.resources.remove(key),
        };
        let Some(old) = before else { return };
        self.digest.0 = self.digest.0.wrapping_sub(old.hash);
        if self.resources.contains_key(key) {
            return;
        }
        let file = file_of(key);
        if let Some(keys) = self.files.get_mut(&file) {
            keys.remove(key);
            if keys.is_empty() {
                self.files.remove(&file);
            }
        }
    }

    /// What takes `self` to `newer`, in the order of keys.
    pub fn diff(&self, newer: &Self) -> Vec<Change> {
        let keys: BTreeSet<&ResourceKey> = self.resources.keys().chain(newer.resources.keys()).collect();
        keys.into_iter()
            .filter_map(|key| {
                let (before, after) = (self.resources.get(key), newer.resources.get(key));
                let same = before.zip(after).is_some_and(|(before, after)| before.is_same_here(after));
                (!same).then(|| Change { key: key.clone(), before: before.cloned(), after: after.cloned() })
            })
            .collect()
    }
}

/// Number of files that backends are spread over: a change rewrites one of them, a few kilobytes.
pub const BACKEND_SHARDS: u16 = 256;

/// The path, relative to the configuration directory, of the file that `key` is written to. Backends with
/// their servers are spread over `50-backends-XX.cfg` by the hash of their name.
pub fn file_of(key: &ResourceKey) -> Name {
    match key {
        ResourceKey::Section(name) => format!("{name}.cfg").into(),
        ResourceKey::Backend(name) | ResourceKey::Servers(name) => {
            let shard = u16::from(blake3::hash(name.as_bytes()).as_bytes()[0]) % BACKEND_SHARDS;
            format!("50-backends-{shard:02x}.cfg").into()
        }
        ResourceKey::MapEntries { map, .. } => map.clone(),
        ResourceKey::Certificate(path) | ResourceKey::File(path) => path.clone(),
        ResourceKey::CertificateList { list, .. } => list.clone(),
    }
}
