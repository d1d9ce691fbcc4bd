//! Renders a model as resources, incrementally: what an update costs is what it touches.

mod backends;
mod candidates;
mod certificates;
mod frontends;
mod hosts;
mod names;
mod settings;
mod skeleton;
#[cfg(test)]
mod tests;

pub use certificates::{DEFAULT_CERTIFICATE, TICKET_KEYS};
pub use frontends::{HEALTH, RELAY, RELAY_BIND};
pub(in crate::haproxy) use names::safe_name;

use super::bundle::{Bundle, Change, Content, MapEntry, Resource, ResourceKey};
use super::version::Capabilities;
use crate::model::{BackendId, CertificateId, FleetId, HostMatch, ListName, ListenerName, Millis, Model, TableName, Touched};
use crate::report::{Diagnostic, Kind, ObjectRef};
use backends::Backends;
use hosts::HostState;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

/// A short shared text.
pub type Name = Arc<str>;

/// What a fleet's operator chooses, beside the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Name servers for ExternalName Services; the pod's `resolv.conf` if none is given.
    pub resolvers: Vec<SocketAddr>,
    /// Addresses and networks that an ExternalName Service must not lead to. HAProxy compares IPv4 with
    /// IPv6 in its mapped forms by itself, so these are not listed: they would match every IPv4 address.
    pub blocked_networks: Vec<Box<str>>,
    /// Servers a pod may have before health checks stop being the default: each reserves a file descriptor.
    pub max_checked_servers: usize,
    /// Shapes that the backends of one namespace may have beside the default: each new one is a reload.
    pub max_shapes: usize,
    /// Over how long the closing of connections is spread at most: workers of before a reload live by it, too.
    pub max_close_spread: Millis,
}

impl Default for Options {
    fn default() -> Self {
        let blocked = ["0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4", "::/96", "fe80::/10", "ff00::/8"];
        Self {
            resolvers: Vec::new(),
            blocked_networks: blocked.iter().map(|network| Box::from(*network)).collect(),
            max_checked_servers: 20_000,
            max_shapes: 50,
            max_close_spread: Millis(30_000),
        }
    }
}

/// What a finding is about, so that it goes when its cause does.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Subject {
    Fleet,
    Settings,
    Backend(BackendId),
    Host(TableName, HostMatch),
    Listener(ListenerName),
}

type HostId = (TableName, HostMatch);

/// Keeps the bundle of one fleet.
#[derive(Clone, Debug)]
pub struct Renderer {
    fleet: FleetId,
    capabilities: Capabilities,
    options: Options,
    bundle: Bundle,
    backends: Backends,
    hosts: BTreeMap<HostId, HostState>,
    /// The reverse index: who looks at a backend's name.
    users: BTreeSet<(BackendId, HostId)>,
    /// Listeners that name backends themselves, with the owners of their map entries.
    passthrough: BTreeMap<ListenerName, BTreeSet<BackendId>>,
    listener_entries: BTreeMap<ListenerName, BTreeSet<ResourceKey>>,
    /// Files that exist because a section names them.
    standing: BTreeSet<ResourceKey>,
    lists: BTreeMap<ListName, BTreeSet<CertificateId>>,
    error_pages: BTreeSet<Name>,
    findings: BTreeMap<Subject, Vec<Diagnostic>>,
    pending: BTreeMap<ResourceKey, Option<Arc<Resource>>>,
}

impl Renderer {
    /// A renderer that has seen nothing yet.
    pub fn new(fleet: FleetId, capabilities: Capabilities) -> Self {
        Self::with_options(fleet, capabilities, Options::default())
    }

    /// The same with options.
    pub fn with_options(fleet: FleetId, capabilities: Capabilities, options: Options) -> Self {
        Self {
            fleet,
            capabilities,
            options,
            bundle: Bundle::default(),
            backends: Backends::default(),
            hosts: BTreeMap::new(),
            users: BTreeSet::new(),
            passthrough: BTreeMap::new(),
            listener_entries: BTreeMap::new(),
            standing: BTreeSet::new(),
            lists: BTreeMap::new(),
            error_pages: BTreeSet::new(),
            findings: BTreeMap::new(),
            pending: BTreeMap::new(),
        }
    }

    /// Takes over what changed in `model`, and says what changed in the bundle.
    pub fn update(&mut self, model: &Model, touched: &Touched) -> Vec<Change> {
        let first = self.standing.is_empty();
        if first || touched.settings {
            self.write_global(&model.settings);
            self.write_error_pages(&model.settings);
        }
        let renamed = self.update_backends(model, touched);

        let mut hosts: BTreeSet<HostId> = touched.hosts.clone();
        let mut listeners = touched.listeners.clone();
        for id in &renamed {
            let first: HostId = ("".into(), HostMatch::Exact("".into()));
            hosts.extend(self.users.range((id.clone(), first)..).take_while(|(of, _)| of == id).map(|(_, host)| host.clone()));
            listeners.extend(self.passthrough.iter().filter(|(_, ids)| ids.contains(id)).map(|(name, _)| name.clone()));
        }
        let mut frontends = first || touched.settings || !touched.listeners.is_empty();
        for host in &hosts {
            frontends |= self.update_host(model, host);
        }
        for listener in &listeners {
            self.update_listener_entries(model, listener);
        }
        if frontends {
            self.write_frontends(model);
        }
        self.update_certificates(model, touched, first);
        self.take_changes()
    }

    /// The present bundle.
    pub fn bundle(&self) -> &Bundle {
        &self.bundle
    }

    /// What of the model could not be had, and why.
    pub fn findings(&self) -> impl Iterator<Item = &Diagnostic> {
        self.findings.values().flatten()
    }

    /// The object that stands for the fleet in findings.
    fn fleet_object(&self) -> ObjectRef {
        ObjectRef::new(Kind::IngressDeployment, self.fleet.namespace.clone(), self.fleet.name.clone())
    }

    fn find(&mut self, subject: Subject, findings: Vec<Diagnostic>) {
        if findings.is_empty() {
            self.findings.remove(&subject);
        } else {
            self.findings.insert(subject, findings);
        }
    }

    /// Puts a resource in, or takes it out.
    fn put(&mut self, key: ResourceKey, content: Option<(Content, Arc<[ObjectRef]>)>) {
        let resource = content.map(|(content, sources)| Resource::new(key.clone(), content, sources));
        if let Some(change) = self.bundle.set(&key, resource) {
            self.pending.entry(key).or_insert(change.before);
        }
    }

    /// Puts the entries in that `owner` has in `map`; without entries the resource goes.
    fn put_entries(&mut self, map: &str, owner: &str, mut entries: Vec<MapEntry>, sources: &Arc<[ObjectRef]>) {
        entries.sort();
        entries.dedup_by(|a, b| a.key == b.key);
        let key = ResourceKey::MapEntries { map: map.into(), owner: owner.into() };
        let content = (!entries.is_empty()).then(|| (Content::MapEntries(entries), sources.clone()));
        self.put(key, content);
    }

    fn take_changes(&mut self) -> Vec<Change> {
        let pending = std::mem::take(&mut self.pending);
        let mut changes = Vec::with_capacity(pending.len());
        for (key, before) in pending {
            let after = self.bundle.get(&key).cloned();
            if before != after {
                changes.push(Change { key, before, after });
            }
        }
        changes
    }
}
