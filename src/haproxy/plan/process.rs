//! What a running HAProxy holds beyond the files that it is started from, and the steps that change it.

use crate::haproxy::bundle::{Bundle, ListEntry, MapEntry, Name, Resource, ResourceKey, Server};
use crate::haproxy::maps::Purpose;
use crate::report::PrivateBytes;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What the process holds although the files do not any more.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lingering {
    /// Shapes, files and backends.
    pub resources: BTreeMap<ResourceKey, Arc<Resource>>,
    /// Servers in maintenance, by backend and name: the reaper deletes them.
    pub servers: BTreeMap<(Name, Name), Server>,
}

/// What commands can name in the running process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Process {
    /// Paths of the maps that it has loaded.
    pub maps: BTreeSet<Name>,
    /// Paths of its crt-lists.
    pub lists: BTreeSet<Name>,
    /// Paths of its certificates.
    pub certificates: BTreeSet<Name>,
    /// Paths of its CA files.
    pub authorities: BTreeSet<Name>,
    /// What has left the files and not the process.
    pub lingering: Lingering,
}

impl Process {
    /// What a HAProxy that was started with `bundle` is taken to hold when there is none to ask.
    pub fn loaded(bundle: &Bundle) -> Self {
        let mut process = Self::default();
        for resource in bundle.resources() {
            match &resource.key {
                ResourceKey::MapEntries { map, .. } => process.maps.insert(map.clone()),
                ResourceKey::CertificateList { list, .. } => process.lists.insert(list.clone()),
                ResourceKey::Certificate(path) => process.certificates.insert(path.clone()),
                ResourceKey::File(path) if path.starts_with("ca/") => process.authorities.insert(path.clone()),
                _ => continue,
            };
        }
        process
    }

    /// Remembers that `step` was done.
    pub fn done(&mut self, step: &Step) {
        match step {
            Step::Certificate { path, authority: true, .. } => _ = self.authorities.insert(path.clone()),
            Step::Certificate { path, authority: false, .. } => _ = self.certificates.insert(path.clone()),
            Step::DeleteCertificate { path } => _ = self.certificates.remove(path),
            Step::PublishBackend { name } => _ = self.lingering.resources.remove(&ResourceKey::Backend(name.clone())),
            Step::Rejoin(key) => _ = self.lingering.resources.remove(key),
            Step::UnpublishBackend { resource, .. } | Step::Leave(resource) => {
                self.lingering.resources.insert(resource.key.clone(), resource.clone());
            }
            Step::ReturnServer { backend, server } => _ = self.lingering.servers.remove(&(backend.clone(), server.name.clone())),
            Step::RetireServer { backend, server } => {
                self.lingering.servers.insert((backend.clone(), server.name.clone()), server.clone());
            }
            Step::AddBackend { .. }
            | Step::AddServer { .. }
            | Step::SetWeight { .. }
            | Step::SetAddress { .. }
            | Step::AddListEntry { .. }
            | Step::DeleteListEntry { .. }
            | Step::AddMapEntries { .. }
            | Step::SetMapEntry { .. }
            | Step::DeleteMapEntry { .. } => {}
        }
    }
}

/// One thing done to the running process.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Put a certificate, or a CA file, in place.
    Certificate {
        /// Its path.
        path: Name,
        /// What it holds, without blank lines.
        pem: PrivateBytes,
        /// Whether the process does not know it yet.
        fresh: bool,
        /// Whether it is a CA file.
        authority: bool,
    },
    /// Delete a certificate that nothing uses any more.
    DeleteCertificate {
        /// Its path.
        path: Name,
    },
    /// Add a backend, not yet reachable.
    AddBackend {
        /// Its name.
        name: Name,
        /// The defaults section that it comes from.
        shape: Name,
        /// `http` or `tcp`.
        mode: &'static str,
        /// Its guid.
        guid: Name,
    },
    /// Make a backend reachable (again).
    PublishBackend {
        /// Its name.
        name: Name,
    },
    /// Make a backend unreachable; the reaper deletes it.
    UnpublishBackend {
        /// Its name.
        name: Name,
        /// What it was.
        resource: Arc<Resource>,
    },
    /// Add a server and let it work.
    AddServer {
        /// Its backend.
        backend: Name,
        /// What it is.
        server: Server,
    },
    /// Let a server that is in maintenance work again.
    ReturnServer {
        /// Its backend.
        backend: Name,
        /// What it is.
        server: Server,
    },
    /// Set the address that somebody else has changed.
    SetAddress {
        /// Its backend.
        backend: Name,
        /// What it is.
        server: Server,
    },
    /// Set the weight.
    SetWeight {
        /// Its backend.
        backend: Name,
        /// What it is from now on.
        server: Server,
    },
    /// Into maintenance at once; the reaper deletes it.
    RetireServer {
        /// Its backend.
        backend: Name,
        /// What it was.
        server: Server,
    },
    /// Add a line to a crt-list.
    AddListEntry {
        /// The list.
        list: Name,
        /// The line.
        entry: ListEntry,
    },
    /// Delete a line of a crt-list.
    DeleteListEntry {
        /// The list.
        list: Name,
        /// The line.
        entry: ListEntry,
    },
    /// Add entries to a map.
    AddMapEntries {
        /// The map.
        map: Name,
        /// What is new.
        entries: Vec<MapEntry>,
    },
    /// Change the value of a key.
    SetMapEntry {
        /// The map.
        map: Name,
        /// Key and new value.
        entry: MapEntry,
    },
    /// Delete a key.
    DeleteMapEntry {
        /// The map.
        map: Name,
        /// The key.
        key: Box<str>,
    },
    /// Nothing to do in the process: it leaves the files and stays loaded.
    Leave(Arc<Resource>),
    /// Nothing to do in the process: it is loaded, and is in the files again.
    Rejoin(ResourceKey),
}

impl Step {
    /// When it is done: referents come first (1 to 4), then what points to them (5), then removals (6, 7).
    pub fn phase(&self) -> u8 {
        match self {
            Self::Certificate { .. } | Self::AddBackend { .. } | Self::Rejoin(_) => 1,
            Self::AddServer { .. } | Self::ReturnServer { .. } | Self::SetWeight { .. } | Self::SetAddress { .. } => 2,
            Self::PublishBackend { .. } => 3,
            // what a request reads first leads to what is complete by then
            Self::AddMapEntries { map, .. } | Self::SetMapEntry { map, .. } if !Purpose::of(map).is_entrance() => 4,
            Self::AddListEntry { .. } | Self::AddMapEntries { .. } | Self::SetMapEntry { .. } => 5,
            Self::DeleteListEntry { .. } | Self::DeleteMapEntry { .. } => 6,
            Self::RetireServer { .. } | Self::UnpublishBackend { .. } | Self::DeleteCertificate { .. } | Self::Leave(_) => 7,
        }
    }
}
