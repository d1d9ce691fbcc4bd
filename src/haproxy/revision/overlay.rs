//! What is served in the place of what is asked for: a revision that people went back to, or what was there before a
//! change that is in quarantine. Pure, and what a change costs follows the change.

use super::Record;
use crate::haproxy::bundle::{BackendClass, Bundle, Change, Content, Name, Resource, ResourceKey, Server};
use crate::haproxy::maps::{CANDIDATES, Purpose};
use crate::haproxy::plan::{in_place_of, service_of, shape_sections};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is served in the place of what is asked for.
#[derive(Clone, Debug, Default)]
pub struct Overlay {
    /// Resources as they were before a change; `None`: there was none.
    pub pins: BTreeMap<ResourceKey, Option<Arc<Resource>>>,
    /// A revision that people went back to. Pins mean nothing meanwhile.
    pub record: Option<Arc<Record>>,
}

impl Overlay {
    /// Whether what is asked for is served.
    pub fn is_empty(&self) -> bool {
        self.pins.is_empty() && self.record.is_none()
    }

    /// All that is served if `present` is asked for.
    pub fn over(&self, present: &Bundle) -> Bundle {
        let own = self.record.iter().flat_map(|record| record.bundle.resources()).map(|resource| &resource.key);
        let keys: BTreeSet<&ResourceKey> = present.resources().map(|resource| &resource.key).chain(own).chain(self.pins.keys()).collect();
        let changes: Vec<Change> =
            keys.into_iter().map(|key| Change { key: key.clone(), before: None, after: self.serve(present, key) }).collect();
        let mut served = Bundle::default();
        served.apply(&changes);
        served
    }

    /// Brings `served` along with `changes` of what is asked for, which led to `present`, and says what changes in it.
    pub fn follow(&self, served: &mut Bundle, changes: &[Change], present: &Bundle) -> Vec<Change> {
        let followed = self.affected(changes).into_iter().filter_map(|key| {
            let (before, after) = (served.get(&key).cloned(), self.serve(present, &key));
            (before != after).then_some(Change { key, before, after })
        });
        let followed: Vec<Change> = followed.collect();
        served.apply(&followed);
        followed
    }

    /// The resources of what is served that `changes` of what is asked for may change.
    fn affected(&self, changes: &[Change]) -> BTreeSet<ResourceKey> {
        let mut keys: BTreeSet<ResourceKey> = changes.iter().map(|change| change.key.clone()).collect();
        for change in changes {
            let (ResourceKey::Servers(name) | ResourceKey::Backend(name)) = &change.key else { continue };
            keys.insert(ResourceKey::Servers(name.clone()));
            keys.extend(self.own_of_service(name).map(ResourceKey::Servers));
        }
        keys
    }

    /// Backends of the service of `backend` that this may bring.
    fn own_of_service(&self, backend: &str) -> impl Iterator<Item = Name> {
        let prefix: Option<Name> = service_of(backend).map(Into::into);
        let found = prefix.map(|prefix| {
            let of_service = |name: &&Name| name.starts_with(&*prefix);
            let recorded = self.record.iter().flat_map(|record| record.bundle.backends_after(Some(&prefix)).take_while(of_service));
            let pinned = self.pins.range(ResourceKey::Servers(prefix.clone())..).map_while(|(key, _)| match key {
                ResourceKey::Servers(name) => Some(name),
                _ => None,
            });
            recorded.chain(pinned.take_while(of_service)).cloned().collect::<Vec<Name>>()
        });
        found.into_iter().flatten()
    }

    /// What is served as `key` if `present` is asked for.
    fn serve(&self, present: &Bundle, key: &ResourceKey) -> Option<Arc<Resource>> {
        if let Some(record) = &self.record {
            return recorded(&record.bundle, present, key);
        }
        match (self.pins.get(key), key) {
            (None, _) => present.get(key).cloned(),
            (Some(Some(template)), ResourceKey::Servers(backend)) => Some(endpoints(present, backend, template)),
            // which certificates there are is a matter of now
            (Some(pinned), ResourceKey::CertificateList { .. }) => present.get(key).or(pinned.as_ref()).cloned(),
            (Some(pinned), _) => pinned.clone(),
        }
    }
}

/// What a fleet that went back to `record` serves as `key` if `present` is asked for.
fn recorded(record: &Bundle, present: &Bundle, key: &ResourceKey) -> Option<Arc<Resource>> {
    let is_there = |bundle: &Bundle, backend: &Name| bundle.get(&ResourceKey::Backend(backend.clone())).is_some();
    let (of_record, of_present) = (record.get(key).cloned(), present.get(key).cloned());
    match key {
        ResourceKey::Certificate(_) => of_present,
        // its sections may name lists that are not there any more
        ResourceKey::CertificateList { .. } => of_present.or(of_record),
        ResourceKey::File(path) if path.starts_with("ca/") => of_present.or(of_record),
        // what its sections name, and what servers of the present name
        ResourceKey::File(_) => of_record.or(of_present),
        ResourceKey::Servers(backend) if is_there(record, backend) => match &of_record {
            Some(template) => Some(endpoints(present, backend, template)),
            None => of_present,
        },
        ResourceKey::Servers(_) => None,
        ResourceKey::MapEntries { owner, .. } if !key.is_of_revision() => {
            // of the present where the backend is there, too: it has the same shape then
            if is_there(record, owner) && is_there(present, owner) { of_present } else { of_record }
        }
        ResourceKey::Section(_) | ResourceKey::Backend(_) | ResourceKey::MapEntries { .. } => of_record,
    }
}

/// The servers of `backend`, which is served and which `present` need not have: with the endpoints that its service has
/// now, never with those of then, as somebody else may have their addresses. `template` says how they are written.
fn endpoints(present: &Bundle, backend: &Name, template: &Arc<Resource>) -> Arc<Resource> {
    let key = ResourceKey::Servers(backend.clone());
    let is_there = present.get(&ResourceKey::Backend(backend.clone())).is_some();
    if let Some(servers) = present.get(&key).filter(|_| is_there) {
        return servers.clone();
    }
    let template_servers = servers_of(template);
    // where rules say to which name it goes
    let is_named = |servers: &[Server]| servers.iter().any(|server| server.address.ip().is_unspecified());
    let of_service = service_of(backend).map(Name::from).and_then(|prefix| {
        let names = present.backends_after(Some(&prefix)).take_while(|name| name.starts_with(&*prefix)).cloned();
        let mut servers = names.filter_map(|name| present.get(&ResourceKey::Servers(name))).map(|resource| servers_of(resource));
        servers.find(|servers| !servers.is_empty() && is_named(servers) == is_named(template_servers))
    });
    if is_named(template_servers) && of_service.is_some() {
        return template.clone();
    }
    let servers = of_service.map(|servers| in_place_of(backend, template_servers, servers)).unwrap_or_default();
    // it keeps to no zone: whether the service asks for that now is a matter of its backend of now
    let servers: Vec<Server> = servers.into_iter().map(|server| Server { zone: None, here: None, ..server }).collect();
    Arc::new(Resource::new(key, Content::Servers(servers.into()), template.sources.clone()))
}

fn servers_of(resource: &Resource) -> &[Server] {
    if let Content::Servers(servers) = &resource.content { servers } else { &[] }
}

/// What has to be pinned along with `culprits` so that nothing leads to something that is not there. `former` is what
/// everything that changed was before, `present` what it is now.
pub fn closure(
    culprits: &BTreeSet<ResourceKey>,
    former: &BTreeMap<ResourceKey, Option<Arc<Resource>>>,
    present: &Bundle,
) -> BTreeMap<ResourceKey, Option<Arc<Resource>>> {
    let links = Links::between(former, present);
    let mut pinned: BTreeSet<&ResourceKey> = BTreeSet::new();
    let mut open: Vec<&ResourceKey> = former.keys().filter(|key| culprits.contains(*key)).chain(links.broken.iter().copied()).collect();
    while let Some(key) = open.pop() {
        if pinned.insert(key) {
            links.companions(key, &mut open);
        }
    }
    pinned.into_iter().filter_map(|key| Some((key.clone(), former.get(key)?.clone()))).collect()
}

/// How what changed hangs together.
struct Links<'a> {
    former: &'a BTreeMap<ResourceKey, Option<Arc<Resource>>>,
    present: &'a Bundle,
    /// Entries of maps by their owner.
    of_owner: BTreeMap<&'a Name, Vec<&'a ResourceKey>>,
    /// What leads to something now.
    leads_to: BTreeMap<ResourceKey, Vec<&'a ResourceKey>>,
    /// What goes along with the sections of frontends: entries that lead to candidates, which their rules resolve, and what
    /// they name that was there.
    of_frontends: Vec<&'a ResourceKey>,
    /// What leads nowhere as it is.
    broken: Vec<&'a ResourceKey>,
}

impl<'a> Links<'a> {
    fn between(former: &'a BTreeMap<ResourceKey, Option<Arc<Resource>>>, present: &'a Bundle) -> Self {
        let mut links =
            Self { former, present, of_owner: BTreeMap::new(), leads_to: BTreeMap::new(), of_frontends: Vec::new(), broken: Vec::new() };
        for (key, before) in former {
            let now = present.get(key);
            if let ResourceKey::MapEntries { owner, .. } = key {
                links.of_owner.entry(owner).or_default().push(key);
            }
            let is_named = match key {
                // CA certificates are those of now
                ResourceKey::File(path) => before.is_some() && (now.is_none() || !path.starts_with("ca/")),
                ResourceKey::MapEntries { owner, .. } | ResourceKey::CertificateList { owner, .. } if owner.is_empty() => before.is_some(),
                ResourceKey::MapEntries { .. } => now.is_some_and(|resource| leads_to_candidates(resource)),
                _ => false,
            };
            if is_named {
                links.of_frontends.push(key);
            }
            for reference in now.map(|resource| links.references(resource)).unwrap_or_default() {
                if present.get(&reference).is_none() {
                    let it = former.get_key_value(&reference).filter(|(_, before)| before.is_some());
                    links.broken.push(it.map_or(key, |(reference, _)| reference));
                }
                links.leads_to.entry(reference).or_default().push(key);
            }
        }
        links
    }

    fn references(&self, resource: &Resource) -> Vec<ResourceKey> {
        references(resource, |key| self.former.contains_key(key) || self.present.get(key).is_some())
    }

    /// What is as it was where `pinned` is.
    fn companions(&self, pinned: &ResourceKey, open: &mut Vec<&'a ResourceKey>) {
        let before = self.former.get(pinned).and_then(Option::as_ref);
        match pinned {
            ResourceKey::Backend(backend) => {
                open.extend(self.former.get_key_value(&ResourceKey::Servers(backend.clone())).map(|(key, _)| key));
                open.extend(self.of_owner.get(backend).into_iter().flatten().filter(|key| !key.is_of_revision()));
            }
            // the maps of a table say things about each other
            ResourceKey::MapEntries { map, owner } if pinned.is_of_revision() => {
                let is_of_table = |key: &&&ResourceKey| matches!(key, ResourceKey::MapEntries { map: other, .. } if key.is_of_revision() && room(map) == room(other));
                open.extend(self.of_owner.get(owner).into_iter().flatten().filter(is_of_table));
            }
            ResourceKey::Section(name) if !name.starts_with("30-shape-") => open.extend(&self.of_frontends),
            _ => {}
        }
        match before {
            // what it leads to was there
            Some(before) => {
                let gone = self.references(before).into_iter().filter(|reference| self.present.get(reference).is_none());
                open.extend(gone.filter_map(|reference| self.former.get_key_value(&reference)).map(|(key, _)| key));
            }
            // nothing may lead to it
            None => open.extend(self.leads_to.get(pinned).into_iter().flatten()),
        }
    }
}

/// Whether entries lead to candidates.
fn leads_to_candidates(resource: &Resource) -> bool {
    matches!(&resource.content, Content::MapEntries(entries) if entries.iter().any(|entry| entry.value.starts_with(CANDIDATES)))
}

fn room(map: &str) -> &str {
    map.rsplit_once('/').map_or("", |(room, _)| room)
}

/// What `resource` leads to. A shape has one of two names: the one that `is_known`.
fn references(resource: &Resource, is_known: impl Fn(&ResourceKey) -> bool) -> Vec<ResourceKey> {
    match (&resource.key, &resource.content) {
        (_, Content::Backend(head)) => match &head.class {
            BackendClass::Shaped { shape, .. } => shape_sections(shape).into_iter().find(is_known).into_iter().collect(),
            BackendClass::Private => Vec::new(),
        },
        (ResourceKey::MapEntries { map, .. }, Content::MapEntries(entries)) if Purpose::of(map).leads_somewhere() => {
            let names = entries.iter().map(|entry| &entry.value);
            // names with an underscore in front are those of sections
            names.filter(|name| !name.starts_with([CANDIDATES, '_'])).map(|name| ResourceKey::Backend((&**name).into())).collect()
        }
        _ => Vec::new(),
    }
}
