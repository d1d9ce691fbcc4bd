//! What takes a running HAProxy from one bundle to the next: live steps, deferred removals, at most one
//! reload with its reasons. Pure, and O(change).

mod cause;
mod process;
#[cfg(test)]
mod tests;

pub use cause::cause;
pub use process::{Lingering, Process, Step};

use super::bundle::{
    BackendClass, BackendHead, Bundle, Change, Content, ListEntry, MapEntry, Name, Resource, ResourceKey, Server, Servers, cookie_of,
};
use super::files::{effective_weight, pem_lines};
use super::maps::{self, Purpose};
use super::version::Capabilities;
use crate::report::ObjectRef;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How a change comes into a running HAProxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// By commands, at once.
    Live,
    /// It leaves the files at once and the process later: never a reason to reload.
    Deferred,
    /// By a reload.
    Reload,
}

impl Class {
    /// As in `diff -o json`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Live => "live",
            Self::Deferred => "deferred",
            Self::Reload => "reload",
        }
    }
}

/// One change, how it comes into the process, and why that way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classified {
    /// Which resource.
    pub key: ResourceKey,
    /// How.
    pub class: Class,
    /// Why.
    pub reason: String,
    /// The source objects of the resource.
    pub sources: Arc<[ObjectRef]>,
}

/// A resource that can be taken over now.
#[derive(Clone, Debug, PartialEq)]
pub struct Take {
    /// Which.
    pub key: ResourceKey,
    /// What the files hold of it afterwards. For a map or list with entries that must wait it is a mixture.
    pub after: Option<Arc<Resource>>,
    /// What brings the process there.
    pub steps: Vec<Step>,
}

/// A reload and why.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reload {
    /// The reasons, one for each resource that asks for it.
    pub reasons: Vec<Classified>,
}

/// What to do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// What can be done now, in the order of keys; the steps of all of them are run in the order of their phase.
    pub takes: Vec<Take>,
    /// What has to be looked at again: it waits for a reload, or for something that does.
    pub waiting: BTreeSet<ResourceKey>,
    /// The reload that is needed, if one is.
    pub reload: Option<Reload>,
    /// Class and reason of every change.
    pub classified: Vec<Classified>,
}

/// Where to go.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// What is wanted.
    pub wanted: &'a Bundle,
    /// What HAProxy refused: it stays as it was.
    pub aside: &'a BTreeSet<ResourceKey>,
    /// What HAProxy refused to do live, and what it said: only a reload brings it.
    pub forced: &'a BTreeMap<ResourceKey, String>,
}

/// Plans the way from `accepted` (what the files hold) and `process` to `target` for the resources `keys`.
pub fn plan(accepted: &Bundle, process: &Process, target: Target<'_>, keys: &BTreeSet<ResourceKey>, capabilities: &Capabilities) -> Plan {
    let mut planner = Planner::new(accepted, process, target, capabilities, false);
    planner.consider_all(keys);
    planner.finish()
}

/// What a reload can bring: the changes from `accepted` to `target` without what is set aside and without what
/// would lead to it.
pub fn reload_target(accepted: &Bundle, target: Target<'_>, keys: &BTreeSet<ResourceKey>, capabilities: &Capabilities) -> Vec<Change> {
    let process = Process::default();
    let mut planner = Planner::new(accepted, &process, target, capabilities, true);
    planner.consider_all(keys);
    let takes = planner.finish().takes;
    let differs = |take: &Take| !is_same(accepted.get(&take.key), take.after.as_ref());
    takes
        .into_iter()
        .filter(differs)
        .map(|take| Change { before: accepted.get(&take.key).cloned(), key: take.key, after: take.after })
        .collect()
}

/// Says of each of `changes` how it comes into a HAProxy that runs `before`.
pub fn classify(changes: &[Change], before: &Bundle, capabilities: &Capabilities) -> Vec<Classified> {
    let mut wanted = before.clone();
    wanted.apply(changes);
    let (aside, forced) = (BTreeSet::new(), BTreeMap::new());
    let target = Target { wanted: &wanted, aside: &aside, forced: &forced };
    let keys = changes.iter().map(|change| change.key.clone()).collect();
    plan(before, &Process::loaded(before), target, &keys, capabilities).classified
}

/// Whether `key` is a section other than a shape: what everything else hangs on.
fn is_skeleton(key: &ResourceKey) -> bool {
    matches!(key, ResourceKey::Section(name) if !name.starts_with("30-shape-"))
}

/// The keys under which the section of a shape may stand.
pub fn shape_sections(shape: &str) -> [ResourceKey; 2] {
    [format!("30-{shape}"), format!("30-shape-{shape}")].map(|name| ResourceKey::Section(name.into()))
}

struct Planner<'a> {
    accepted: &'a Bundle,
    process: &'a Process,
    target: Target<'a>,
    capabilities: &'a Capabilities,
    plan: Plan,
    reasons: Vec<Classified>,
    /// Referents that come with this plan: shapes, backends, certificates.
    coming: BTreeSet<ResourceKey>,
    /// Referents that must stay because something that waits still points to them.
    kept: BTreeSet<ResourceKey>,
    /// Candidates that routes still point to although they are no longer wanted: their targets stay.
    held_candidates: BTreeSet<Box<str>>,
    /// Backends that keep serving in the place of others of the same service, which wait.
    successors: BTreeMap<Name, Name>,
    removals: Vec<&'a Arc<Resource>>,
    frontends_wait: bool,
    hold_removals: bool,
    /// Everything can come, and no step is asked for.
    by_reload: bool,
}

impl<'a> Planner<'a> {
    fn new(accepted: &'a Bundle, process: &'a Process, target: Target<'a>, capabilities: &'a Capabilities, by_reload: bool) -> Self {
        let frontends_aside = target.aside.iter().any(is_skeleton);
        Self {
            accepted,
            process,
            target,
            capabilities,
            plan: Plan::default(),
            reasons: Vec::new(),
            coming: BTreeSet::new(),
            kept: BTreeSet::new(),
            held_candidates: BTreeSet::new(),
            successors: BTreeMap::new(),
            removals: Vec::new(),
            frontends_wait: frontends_aside,
            hold_removals: frontends_aside,
            by_reload,
        }
    }

    fn wanted(&self, key: &ResourceKey) -> Option<&'a Arc<Resource>> {
        if self.target.aside.contains(key) { self.accepted.get(key) } else { self.target.wanted.get(key) }
    }

    /// In the order of keys: sections before backends before servers before maps, certificates before lists. But
    /// what candidates lead to comes after the routes that lead to candidates.
    fn consider_all(&mut self, keys: &BTreeSet<ResourceKey>) {
        let later = |key: &&ResourceKey| {
            let ResourceKey::MapEntries { map, .. } = key else { return false };
            matches!(Purpose::of(map), Purpose::Targets | Purpose::Redirects)
        };
        for key in keys.iter().filter(|key| !later(key)).chain(keys.iter().filter(later)) {
            self.consider(key);
        }
    }

    fn consider(&mut self, key: &ResourceKey) {
        let (before, after) = (self.accepted.get(key), self.wanted(key));
        let Some(new) = after else {
            self.removals.extend(before);
            return;
        };
        if before.is_some_and(|old| old.is_same_here(new)) {
            // at most the source objects differ
            self.plan.takes.push(Take { key: key.clone(), after: Some(new.clone()), steps: Vec::new() });
            return;
        }
        if self.by_reload && !matches!(new.content, Content::MapEntries(_) | Content::CertificateList(_)) {
            return self.bring_by_reload(new);
        }
        if let Some(message) = self.target.forced.get(key).filter(|_| !self.by_reload) {
            return self.reload(new, format!("HAProxy refused it live: {message}"));
        }
        match &new.content {
            Content::Section(_) => self.section(new, before.is_some()),
            Content::Backend(head) => self.backend(new, head, before.is_some()),
            Content::Servers(servers) => self.servers(new, servers, before),
            Content::MapEntries(entries) => self.map_entries(new, entries, before),
            Content::Certificate(pem) => self.certificate(new, pem.expose().len(), false),
            Content::CertificateList(entries) => self.list_entries(new, entries, before),
            Content::File(bytes) => self.file(new, bytes.expose().len()),
        }
    }

    fn bring_by_reload(&mut self, new: &Arc<Resource>) {
        let missing = match &new.content {
            Content::Servers(_) => match &new.key {
                ResourceKey::Servers(backend) => !self.backend_is_there(backend),
                _ => false,
            },
            Content::Backend(BackendHead { class: BackendClass::Shaped { shape, .. }, .. }) => self.shape_is_aside(shape),
            _ => false,
        };
        if missing { self.wait(new, "what it needs is set aside".to_owned()) } else { self.take(new, Vec::new(), "") }
    }

    fn shape_is_aside(&self, shape: &str) -> bool {
        shape_sections(shape).iter().any(|key| self.target.aside.contains(key) && self.accepted.get(key).is_none())
    }

    fn take(&mut self, new: &Arc<Resource>, steps: Vec<Step>, reason: impl Into<String>) {
        self.note(new, Class::Live, reason.into());
        self.coming.insert(new.key.clone());
        self.plan.takes.push(Take { key: new.key.clone(), after: Some(new.clone()), steps });
    }

    fn note(&mut self, resource: &Resource, class: Class, reason: String) {
        let (key, sources) = (resource.key.clone(), resource.sources.clone());
        self.plan.classified.push(Classified { key, class, reason, sources });
    }

    fn reload(&mut self, new: &Resource, reason: String) {
        self.frontends_wait |= is_skeleton(&new.key);
        self.hold_removals = true;
        let (key, sources) = (new.key.clone(), new.sources.clone());
        self.reasons.push(Classified { key, class: Class::Reload, reason: reason.clone(), sources });
        self.wait(new, reason);
    }

    fn wait(&mut self, resource: &Resource, reason: String) {
        self.note(resource, Class::Reload, reason);
        self.plan.waiting.insert(resource.key.clone());
    }

    /// The process still holds the very same thing, although the files do not.
    fn lingers(&self, new: &Resource) -> bool {
        self.process.lingering.resources.get(&new.key).is_some_and(|old| old.hash() == new.hash())
    }

    fn section(&mut self, new: &Arc<Resource>, known: bool) {
        if self.lingers(new) && !known {
            return self.take(new, vec![Step::Rejoin(new.key.clone())], "still loaded");
        }
        let ResourceKey::Section(name) = &new.key else { return };
        let what = if known { "changed" } else { "is new" };
        let reason = match name.strip_prefix("30-shape-") {
            Some(shape) => format!("the policy shape {shape} {what}"),
            None => format!("section {name} {what}"),
        };
        self.reload(new, reason);
    }

    fn file(&mut self, new: &Arc<Resource>, size: usize) {
        match &new.key {
            ResourceKey::File(path) if path.starts_with("ca/") => self.certificate(new, size, true),
            ResourceKey::File(path) => self.reload(new, format!("file {path} is read at start only")),
            _ => {}
        }
    }

    fn certificate(&mut self, new: &Arc<Resource>, size: usize, authority: bool) {
        let (ResourceKey::Certificate(path) | ResourceKey::File(path)) = &new.key else { return };
        let (Content::Certificate(pem) | Content::File(pem)) = &new.content else { return };
        if size + 512 > self.capabilities.max_payload {
            return self.reload(new, format!("{path} is larger than a command may be on this HAProxy"));
        }
        let known = if authority { &self.process.authorities } else { &self.process.certificates };
        let fresh = !known.contains(path);
        let pem = crate::report::PrivateBytes::new(pem_lines(pem.expose()));
        let step = Step::Certificate { path: path.clone(), pem, fresh, authority };
        self.take(new, vec![step], if fresh { "new certificates are live" } else { "certificates are replaced live" });
    }

    fn backend(&mut self, new: &Arc<Resource>, head: &BackendHead, known: bool) {
        let ResourceKey::Backend(name) = &new.key else { return };
        if self.lingers(new) && !known {
            let published = matches!(head.class, BackendClass::Shaped { .. }) && self.capabilities.dynamic_backends;
            let step = if published { Step::PublishBackend { name: name.clone() } } else { Step::Rejoin(new.key.clone()) };
            return self.take(new, vec![step], "still loaded");
        }
        let what = if known { "changed" } else { "is new" };
        let BackendClass::Shaped { shape, mode, guid } = &head.class else {
            return self.reload(new, format!("backend {name} has directives of its own and {what}"));
        };
        if self.shape_is_aside(shape) {
            // no reload brings it
            return self.wait(new, format!("its policy shape {shape} is set aside"));
        }
        if known || self.process.lingering.resources.contains_key(&new.key) {
            return self.reload(new, format!("backend {name} changed its head"));
        }
        if !self.capabilities.dynamic_backends {
            return self.reload(new, format!("backend {name} is new, which this HAProxy takes only by a reload"));
        }
        if !self.shape_is_loaded(shape) {
            return self.reload(new, format!("backend {name} is new and so is its policy shape {shape}"));
        }
        let add = Step::AddBackend { name: name.clone(), shape: shape.clone(), mode, guid: guid.clone() };
        self.take(new, vec![add, Step::PublishBackend { name: name.clone() }], "new backends of a loaded shape are live");
    }

    fn shape_is_loaded(&self, shape: &str) -> bool {
        shape_sections(shape).into_iter().any(|key| {
            let (loaded, wanted) = (self.accepted.get(&key), self.wanted(&key));
            self.coming.contains(&key) || loaded.is_some() && loaded.map(|r| r.hash()) == wanted.map(|r| r.hash())
        })
    }

    /// Whether commands and map values can name the backend `name` once this plan is done.
    fn backend_is_there(&self, name: &str) -> bool {
        let key = ResourceKey::Backend(name.into());
        self.accepted.get(&key).is_some() || self.coming.contains(&key)
    }

    fn servers(&mut self, new: &Arc<Resource>, servers: &[Server], before: Option<&Arc<Resource>>) {
        let ResourceKey::Servers(backend) = &new.key else { return };
        if !self.backend_is_there(backend) {
            return self.wait(new, format!("backend {backend} comes by a reload"));
        }
        let steps = match self.server_steps(backend, servers, before.map_or(&[], |resource| servers_of(resource))) {
            Ok(steps) => steps,
            Err(reason) => return self.reload(new, reason),
        };
        let removed = steps.iter().filter(|step| matches!(step, Step::RetireServer { .. })).count();
        let changed = steps.iter().filter(|step| matches!(step, Step::SetWeight { .. })).count();
        let added = steps.len() - removed - changed;
        self.take(new, steps, format!("servers are live: {added} added, {removed} removed, {changed} weights"));
    }

    /// What takes the servers of `backend` from `old` to `servers`; why only a reload can.
    fn server_steps(&self, backend: &Name, servers: &[Server], old: &[Server]) -> Result<Vec<Step>, String> {
        let old: BTreeMap<&str, &Server> = old.iter().map(|server| (server.name.as_ref(), server)).collect();
        let mut steps = Vec::new();
        for server in servers {
            match old.get(server.name.as_ref()) {
                None => steps.push(self.bring(backend, server)?),
                Some(old) if !same_server(old, server) => {
                    return Err(format!("server {backend}/{} changed its keywords under its name", server.name));
                }
                Some(old) if effective_weight(old) != effective_weight(server) => {
                    steps.push(Step::SetWeight { backend: backend.clone(), server: server.clone() });
                }
                Some(_) => {}
            }
        }
        let names: BTreeSet<&str> = servers.iter().map(|server| server.name.as_ref()).collect();
        let gone = old.into_values().filter(|server| !names.contains(server.name.as_ref()));
        steps.extend(gone.map(|server| Step::RetireServer { backend: backend.clone(), server: server.clone() }));
        Ok(steps)
    }

    fn bring(&self, backend: &Name, server: &Server) -> Result<Step, String> {
        let (backend, name) = (backend.clone(), server.name.clone());
        match self.process.lingering.servers.get(&(backend.clone(), name.clone())) {
            None => Ok(Step::AddServer { backend, server: server.clone() }),
            Some(old) if same_server(old, server) => Ok(Step::ReturnServer { backend, server: server.clone() }),
            Some(_) => Err(format!("server {backend}/{name} comes back with other keywords before the old one is gone")),
        }
    }

    fn map_entries(&mut self, new: &Arc<Resource>, entries: &[MapEntry], before: Option<&Arc<Resource>>) {
        let ResourceKey::MapEntries { map, .. } = &new.key else { return };
        let old: &[MapEntry] = before.map_or(&[], |resource| entries_of(resource));
        if !self.by_reload && !self.process.maps.contains(map) {
            // nothing that runs reads it
            return if self.hold_removals {
                self.wait(new, format!("map {map} is new"));
            } else {
                self.take(new, Vec::new(), "nothing reads this map yet");
            };
        }
        let purpose = Purpose::of(map);
        let old: BTreeMap<&str, &MapEntry> = old.iter().map(|entry| (entry.key.as_ref(), entry)).collect();
        let mut mixed = Vec::with_capacity(entries.len());
        let mut held = None;
        for entry in entries {
            let was = old.get(entry.key.as_ref()).copied();
            if was == Some(entry) || !(purpose.leads_somewhere() && self.has_to_wait(&entry.value)) {
                mixed.push(entry.clone());
                continue;
            }
            held = Some(entry.value.clone());
            let meanwhile = match was {
                Some(was) => Some(was.value.clone()),
                // a route that is new leads to what serves in the place of its backend
                None => self.predecessor(&entry.value).map(|name| Box::from(&**name)),
            };
            if let Some(value) = meanwhile {
                self.keep_referent(&new.key, &value, Some(&entry.value));
                mixed.push(MapEntry { key: entry.key.clone(), value });
            }
        }
        if let Some(kept) = self.kept_of_candidates(purpose, &old, entries) {
            held = held.or_else(|| kept.first().map(|entry| entry.key.clone()));
            mixed.extend(kept);
            mixed.sort();
        }
        let steps = map_steps(map, &old, &mixed);
        match held {
            None => self.take(new, steps, "map entries are live"),
            Some(value) => {
                let content = Content::MapEntries(mixed);
                let after = Arc::new(Resource::new(new.key.clone(), content, new.sources.clone()));
                self.plan.takes.push(Take { key: new.key.clone(), after: Some(after), steps });
                self.wait(new, format!("it points to {value}, which a reload brings"));
            }
        }
    }

    /// Keeps what the value `was` of an entry of `key` leads to, because `next` has to wait.
    fn keep_referent(&mut self, key: &ResourceKey, was: &str, next: Option<&str>) {
        if !was.starts_with(maps::CANDIDATES) {
            self.kept.insert(ResourceKey::Backend(was.into()));
            self.kept.insert(ResourceKey::Servers(was.into()));
            if let Some(next) = next.filter(|next| same_service(was, next)) {
                self.successors.insert(was.into(), next.into());
            }
            return;
        }
        self.held_candidates.insert(was.into());
        let ResourceKey::MapEntries { map, owner } = key else { return };
        let targets = ResourceKey::MapEntries { map: maps::beside(map, Purpose::Targets).into(), owner: owner.clone() };
        let entries = self.accepted.get(&targets).map_or(&[][..], |resource| entries_of(resource));
        for entry in entries.iter().filter(|entry| maps::is_of_candidates(&entry.key, was)) {
            self.keep_referent(&targets, &entry.value, None);
        }
    }

    /// The entries of `old` that candidates need which routes still point to, without those that `entries` has.
    fn kept_of_candidates(&self, purpose: Purpose, old: &BTreeMap<&str, &MapEntry>, entries: &[MapEntry]) -> Option<Vec<MapEntry>> {
        if !matches!(purpose, Purpose::Targets | Purpose::Redirects) || self.held_candidates.is_empty() {
            return None;
        }
        let wanted: BTreeSet<&str> = entries.iter().map(|entry| entry.key.as_ref()).collect();
        let needed = |key: &str| !wanted.contains(key) && self.is_of_held_candidates(key);
        let kept: Vec<MapEntry> = old.values().filter(|entry| needed(&entry.key)).map(|entry| (*entry).clone()).collect();
        (!kept.is_empty()).then_some(kept)
    }

    fn is_of_held_candidates(&self, key: &str) -> bool {
        let id = key.split(['/', '.']).next().unwrap_or_default();
        self.held_candidates.contains(id)
    }

    /// Whether a route to `value` would lead nowhere before a reload.
    fn has_to_wait(&self, value: &str) -> bool {
        if value.starts_with(maps::CANDIDATES) {
            return self.frontends_wait;
        }
        let wanted = self.target.wanted.get(&ResourceKey::Backend(value.into())).is_some();
        wanted && !self.backend_is_there(value)
    }

    fn list_entries(&mut self, new: &Arc<Resource>, entries: &[ListEntry], before: Option<&Arc<Resource>>) {
        let ResourceKey::CertificateList { list, .. } = &new.key else { return };
        if !self.by_reload && !self.process.lists.contains(list) {
            return if self.hold_removals {
                self.wait(new, format!("list {list} is new"));
            } else {
                self.take(new, Vec::new(), "nothing reads this list yet");
            };
        }
        let old: &[ListEntry] = before.map_or(&[], |resource| list_of(resource));
        let mut mixed: BTreeSet<ListEntry> = BTreeSet::new();
        let mut held = None;
        for entry in entries {
            let key = ResourceKey::Certificate(entry.file.clone());
            if old.contains(entry) || self.accepted.get(&key).is_some() || self.coming.contains(&key) {
                mixed.insert(entry.clone());
                continue;
            }
            held = Some(entry.file.clone());
            // names that it takes over stay with the certificate that has them
            let served = |old: &&ListEntry| old.names.iter().any(|name| entry.names.contains(name));
            for old in old.iter().filter(served) {
                self.kept.insert(ResourceKey::Certificate(old.file.clone()));
                mixed.insert(old.clone());
            }
        }
        let mixed: Vec<ListEntry> = mixed.into_iter().collect();
        let mut steps: Vec<Step> = Vec::new();
        steps.extend(mixed.iter().filter(|e| !old.contains(e)).map(|e| Step::AddListEntry { list: list.clone(), entry: e.clone() }));
        steps.extend(old.iter().filter(|e| !mixed.contains(e)).map(|e| Step::DeleteListEntry { list: list.clone(), entry: e.clone() }));
        match held {
            None => self.take(new, steps, "entries of certificate lists are live"),
            Some(file) => {
                let content = Content::CertificateList(mixed);
                let after = Arc::new(Resource::new(new.key.clone(), content, new.sources.clone()));
                self.plan.takes.push(Take { key: new.key.clone(), after: Some(after), steps });
                self.wait(new, format!("certificate {file} is not loaded"));
            }
        }
    }

    fn finish(mut self) -> Plan {
        let removals = std::mem::take(&mut self.removals);
        let by_reload = self.by_reload;
        for old in removals.iter().filter(|old| is_skeleton(&old.key) && !by_reload) {
            self.reload(old, format!("{} is gone", old.key));
        }
        for old in removals.into_iter().filter(|old| by_reload || !is_skeleton(&old.key)) {
            self.remove(old);
        }
        if !self.reasons.is_empty() {
            self.plan.reload = Some(Reload { reasons: std::mem::take(&mut self.reasons) });
        }
        self.plan
    }

    /// Values of a backend that keeps serving, entries that kept candidates need.
    fn is_read_by_what_is_kept(&self, old: &Resource) -> bool {
        let ResourceKey::MapEntries { map, owner } = &old.key else { return false };
        match Purpose::of(map) {
            Purpose::Values => self.kept.contains(&ResourceKey::Backend(owner.clone())),
            Purpose::Targets | Purpose::Redirects => entries_of(old).iter().any(|entry| self.is_of_held_candidates(&entry.key)),
            Purpose::Routes | Purpose::Streams => false,
        }
    }

    /// A backend that serves in the place of another one of its service has the endpoints of that one meanwhile.
    fn follow(&self, old: &Arc<Resource>) -> Option<Take> {
        let (ResourceKey::Servers(backend), Content::Servers(before)) = (&old.key, &old.content) else { return None };
        if self.by_reload || self.target.forced.contains_key(&old.key) {
            return None;
        }
        let next = self.successors.get(backend).and_then(|next| self.wanted_servers(next)).or_else(|| self.of_same_service(backend))?;
        let servers = in_place_of(backend, before, next);
        let steps = self.server_steps(backend, &servers, before).ok()?;
        let servers = Servers { all: servers, zones: before.zones };
        let after = Arc::new(Resource::new(old.key.clone(), Content::Servers(servers), old.sources.clone()));
        (!after.is_same_here(old)).then(|| Take { key: old.key.clone(), after: Some(after), steps })
    }

    /// What has the identity of the backend `name` and another shape.
    fn predecessor(&self, name: &str) -> Option<&'a Name> {
        let (identity, _) = name.rsplit_once('_').filter(|_| service_of(name).is_some())?;
        let prefix: Name = format!("{identity}_").into();
        let mut backends = self.accepted.backends_after(Some(&prefix)).take_while(|name| name.starts_with(&*prefix));
        backends.find(|name| !name[prefix.len()..].contains('_'))
    }

    /// The servers of a wanted backend, unless a rule sets where its connections go: without that rule they lead nowhere.
    fn wanted_servers(&self, backend: &Name) -> Option<&'a [Server]> {
        let servers = servers_of(self.target.wanted.get(&ResourceKey::Servers(backend.clone()))?);
        servers.iter().all(|server| !server.address.ip().is_unspecified()).then_some(servers)
    }

    /// The servers of a backend that is wanted and is of the same service: all of these have the same endpoints.
    fn of_same_service(&self, backend: &str) -> Option<&'a [Server]> {
        let prefix: Name = service_of(backend)?.into();
        let backends = self.target.wanted.backends_after(Some(&prefix)).take_while(|name| name.starts_with(&*prefix));
        backends.filter_map(|name| self.wanted_servers(name)).find(|servers| !servers.is_empty())
    }

    fn remove(&mut self, old: &Arc<Resource>) {
        // what is still loaded may name it: the files must stay loadable, so it goes with the reload
        let last_of_file = |path: &Name| self.accepted.in_file(path).nth(1).is_none();
        let referent = match &old.key {
            ResourceKey::MapEntries { map, .. } => last_of_file(map),
            ResourceKey::CertificateList { list, .. } => last_of_file(list),
            _ => true,
        };
        if referent && (self.hold_removals || self.kept.contains(&old.key)) || self.is_read_by_what_is_kept(old) {
            if let Some(followed) = self.follow(old) {
                self.plan.takes.push(followed);
            }
            return self.wait(old, "it goes once nothing that is loaded names it".to_owned());
        }
        let mut class = Class::Live;
        let steps = match (&old.key, &old.content) {
            (ResourceKey::Servers(backend), Content::Servers(servers)) => {
                servers.iter().map(|server| Step::RetireServer { backend: backend.clone(), server: server.clone() }).collect()
            }
            (ResourceKey::Backend(name), Content::Backend(head)) => {
                let shaped = matches!(head.class, BackendClass::Shaped { .. });
                if shaped && self.capabilities.dynamic_backends {
                    vec![Step::UnpublishBackend { name: name.clone(), resource: old.clone() }]
                } else {
                    class = Class::Deferred;
                    vec![Step::Leave(old.clone())]
                }
            }
            (ResourceKey::MapEntries { map, .. }, Content::MapEntries(entries)) if self.process.maps.contains(map) => {
                entries.iter().map(|entry| Step::DeleteMapEntry { map: map.clone(), key: entry.key.clone() }).collect()
            }
            (ResourceKey::CertificateList { list, .. }, Content::CertificateList(entries)) if self.process.lists.contains(list) => {
                entries.iter().map(|entry| Step::DeleteListEntry { list: list.clone(), entry: entry.clone() }).collect()
            }
            (ResourceKey::Certificate(path), _) => vec![Step::DeleteCertificate { path: path.clone() }],
            (ResourceKey::Section(_) | ResourceKey::File(_), _) => {
                class = Class::Deferred;
                vec![Step::Leave(old.clone())]
            }
            _ => Vec::new(),
        };
        let reason = match class {
            Class::Deferred => "it leaves the files now and the process at the next reload",
            _ => "removals are live",
        };
        self.note(old, class, reason.to_owned());
        self.plan.takes.push(Take { key: old.key.clone(), after: None, steps });
    }
}

/// Whether two backends are of the same service and port, by their names.
fn same_service(a: &str, b: &str) -> bool {
    service_of(a).is_some_and(|left| Some(left) == service_of(b))
}

/// What the names of all backends of its service and port begin with.
pub fn service_of(name: &str) -> Option<&str> {
    // NAMESPACE_SERVICE_PORT_…, and no part holds an underscore
    let (end, _) = name.match_indices('_').nth(2).filter(|_| !name.starts_with('_'))?;
    Some(&name[..=end])
}

/// The servers of the backend `backend` if it had the endpoints of `next`: those that it has stay what they are,
/// the others get its keywords.
pub fn in_place_of(backend: &str, old: &[Server], next: &[Server]) -> Vec<Server> {
    let mut servers: Vec<Server> = Vec::with_capacity(next.len());
    let mut ids: BTreeSet<u32> = old.iter().map(|server| server.id).collect();
    for server in next {
        if let Some(known) = old.iter().find(|known| known.address == server.address) {
            let Server { weight, drain, here, .. } = *server;
            servers.push(Server { weight, drain, here, zone: server.zone.clone(), ..known.clone() });
            continue;
        }
        let mut id = server.id;
        while !ids.insert(id) {
            id = if id >= u32::MAX >> 1 { 1 } else { id + 1 };
        }
        let template = old.first().unwrap_or(server);
        let keywords = with_cookie(&template.keywords, server.address);
        let guid = blake3::hash(format!("{backend} {}", server.name).as_bytes()).to_hex();
        let guid = format!("f.{}", &guid[..32]).into();
        servers.push(Server { id, guid, keywords, checked: template.checked, ..server.clone() });
    }
    servers.sort();
    servers
}

/// `keywords` with the cookie, if there is one, of a server at `address`.
fn with_cookie(keywords: &Arc<str>, address: std::net::SocketAddr) -> Arc<str> {
    match keywords.split_once(" cookie ") {
        None => keywords.clone(),
        Some((before, after)) => {
            let rest = after.split_once(' ').map_or_else(String::new, |(_, rest)| format!(" {rest}"));
            format!("{before} cookie {}{rest}", cookie_of(address)).into()
        }
    }
}

/// Whether both are there and are the same in this pod, or neither is.
pub fn is_same(a: Option<&Arc<Resource>>, b: Option<&Arc<Resource>>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a.is_same_here(b),
        (a, b) => a.is_none() && b.is_none(),
    }
}

fn same_server(a: &Server, b: &Server) -> bool {
    a.address == b.address && a.id == b.id && a.guid == b.guid && a.keywords == b.keywords
}

fn servers_of(resource: &Resource) -> &[Server] {
    if let Content::Servers(servers) = &resource.content { servers } else { &[] }
}

fn entries_of(resource: &Resource) -> &[MapEntry] {
    if let Content::MapEntries(entries) = &resource.content { entries } else { &[] }
}

fn list_of(resource: &Resource) -> &[ListEntry] {
    if let Content::CertificateList(entries) = &resource.content { entries } else { &[] }
}

fn map_steps(map: &Name, old: &BTreeMap<&str, &MapEntry>, new: &[MapEntry]) -> Vec<Step> {
    let mut added = Vec::new();
    let mut steps = Vec::new();
    for entry in new {
        match old.get(entry.key.as_ref()) {
            None => added.push(entry.clone()),
            Some(was) if was.value != entry.value => steps.push(Step::SetMapEntry { map: map.clone(), entry: entry.clone() }),
            Some(_) => {}
        }
    }
    if !added.is_empty() {
        steps.insert(0, Step::AddMapEntries { map: map.clone(), entries: added });
    }
    let keys: BTreeSet<&str> = new.iter().map(|entry| entry.key.as_ref()).collect();
    let gone = old.values().filter(|entry| !keys.contains(entry.key.as_ref()));
    steps.extend(gone.map(|entry| Step::DeleteMapEntry { map: map.clone(), key: entry.key.clone() }));
    steps
}
