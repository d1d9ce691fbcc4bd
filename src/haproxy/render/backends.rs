//! Backends, their shapes, values and servers.

use super::names::{backend_name, short_hash};
use super::{Name, Renderer, Subject};
use crate::haproxy::bundle::{BackendClass, BackendHead, Content, MapEntry, ResourceKey, Server, Servers, cookie_of};
use crate::haproxy::config::{Line, Refused, Section, Word, write};
use crate::haproxy::shape::{Problem, ServerKeywords, Split, ValueMap, split};
use crate::model::{Backend, BackendId, BackendKind, EndpointState, Mode, Model, Policy, Touched};
use crate::report::{Diagnostic, ObjectRef, codes};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

/// Everything that is remembered about backends.
#[derive(Clone, Debug, Default)]
pub(super) struct Backends {
    states: BTreeMap<BackendId, State>,
    /// Who uses a shape, as it is rendered.
    shapes: BTreeMap<Name, BTreeSet<BackendId>>,
    /// Who wants which shape, by namespace: what the limit is about.
    spaces: BTreeMap<Name, Space>,
    /// Endpoints of each backend, and of all.
    counted: BTreeMap<BackendId, usize>,
    endpoints: usize,
    unchecked: bool,
    default_shapes: BTreeSet<Name>,
}

#[derive(Clone, Debug, Default)]
struct Space {
    wanted: BTreeMap<Name, BTreeSet<BackendId>>,
    refused: BTreeSet<Name>,
}

#[derive(Clone, Debug)]
struct State {
    wanted: Name,
    /// `None` where requests are answered with 503 instead.
    rendered: Option<Rendered>,
}

#[derive(Clone, Debug)]
struct Rendered {
    name: Name,
    shape: Option<Name>,
    values: BTreeSet<ValueMap>,
    servers: ServerKeywords,
}

/// A split policy with the names that follow from its text.
struct Shaped {
    split: Split,
    problems: Vec<Problem>,
    suffix: Name,
}

impl Renderer {
    /// The name of `id` in maps.
    pub(super) fn backend_name(&self, id: &BackendId) -> Name {
        let rendered = self.backends.states.get(id).and_then(|state| state.rendered.as_ref());
        rendered.map_or_else(|| "_503".into(), |rendered| rendered.name.clone())
    }

    /// Takes over changed backends and endpoints; returns the backends whose name is another one now.
    pub(super) fn update_backends(&mut self, model: &Model, touched: &Touched) -> BTreeSet<BackendId> {
        let all = self.count_endpoints(model, touched);
        let everyone: BTreeSet<BackendId>;
        let ids = if all {
            everyone = touched.backends.iter().chain(self.backends.states.keys()).cloned().collect();
            &everyone
        } else {
            &touched.backends
        };
        if self.backends.default_shapes.is_empty() {
            self.note_default_shapes();
        }

        let mut shaped: BTreeMap<BackendId, Shaped> = BTreeMap::new();
        let mut spaces = BTreeSet::new();
        for id in ids {
            spaces.insert(id.namespace.clone());
            let backend = model.backends.get(id).map(|backend| self.shape(backend));
            self.want(id, backend.as_ref().map(|shaped| &shaped.suffix));
            shaped.extend(backend.map(|shaped| (id.clone(), shaped)));
        }
        let mut work: BTreeSet<BackendId> = ids.clone();
        for space in &spaces {
            work.extend(self.apply_limit(space));
        }

        let mut renamed = BTreeSet::new();
        for id in work {
            let before = self.backend_name(&id);
            match model.backends.get(&id) {
                Some(backend) => {
                    let own = match shaped.remove(&id) {
                        Some(own) => own,
                        None => self.shape(backend),
                    };
                    self.render_backend(&id, backend, own);
                }
                None if ids.contains(&id) => self.remove_backend(&id),
                // Gone, but nobody has said so yet.
                None => {}
            }
            if self.backend_name(&id) != before {
                renamed.insert(id);
            }
        }
        for id in touched.endpoints.difference(ids) {
            if let Some(backend) = model.backends.get(id) {
                self.render_servers(id, backend);
            }
        }
        renamed
    }

    /// Keeps the number of servers; whether every backend has to be looked at because checks go on or off.
    fn count_endpoints(&mut self, model: &Model, touched: &Touched) -> bool {
        for id in touched.backends.union(&touched.endpoints) {
            let now = model.backends.get(id).map_or(0, |backend| backend.endpoints.len());
            let before = if now == 0 { self.backends.counted.remove(id) } else { self.backends.counted.insert(id.clone(), now) };
            self.backends.endpoints = self.backends.endpoints + now - before.unwrap_or(0);
        }
        let unchecked = self.backends.endpoints > self.options.max_checked_servers;
        if unchecked == self.backends.unchecked {
            return false;
        }
        self.backends.unchecked = unchecked;
        let object = self.fleet_object();
        let finding = Diagnostic::warning(
            &object,
            "",
            codes::LIMIT_REACHED,
            format!("more than {} servers: health checks are off where no Backend asks for them", self.options.max_checked_servers),
            "endpoints are still left by readiness; a Backend with default_server.check turns checks on for its services",
        );
        self.find(Subject::Fleet, if unchecked { vec![finding] } else { Vec::new() });
        true
    }

    fn note_default_shapes(&mut self) {
        for mode in [Mode::Http, Mode::Tcp] {
            let backend = plain(mode, &Policy::default());
            let suffix = self.shape(&backend).suffix;
            self.backends.default_shapes.insert(suffix);
        }
    }

    fn shape(&self, backend: &Backend) -> Shaped {
        let (split, problems) = split(backend, self.capabilities, &self.options, !self.backends.unchecked);
        let kind = match (split.own.is_empty(), split.mode) {
            (false, _) => 'p',
            (true, Mode::Http) => 'h',
            (true, Mode::Tcp) => 't',
        };
        let mut section = Section::new(Line::of("defaults"));
        section.lines.extend(split.lines.iter().chain(&split.own).cloned());
        let text = write(&[section]).unwrap_or_default();
        Shaped { split, problems, suffix: format!("{kind}{}", short_hash(&text, 10)).into() }
    }

    /// Notes which shape `id` wants.
    fn want(&mut self, id: &BackendId, shape: Option<&Name>) {
        let before = self.backends.states.get(id).map(|state| state.wanted.clone());
        if before.as_ref() == shape {
            return;
        }
        let space = self.backends.spaces.entry(id.namespace.clone()).or_default();
        if let Some(old) = before
            && let Some(users) = space.wanted.get_mut(&old)
        {
            users.remove(id);
            if users.is_empty() {
                space.wanted.remove(&old);
            }
        }
        if let Some(new) = shape {
            space.wanted.entry(new.clone()).or_default().insert(id.clone());
        }
        if space.wanted.is_empty() {
            self.backends.spaces.remove(&id.namespace);
        }
    }

    /// Which shapes of a namespace are beyond its limit: those whose first backend comes last. Returns the
    /// backends that are beyond it now and were not, or the other way round.
    fn apply_limit(&mut self, namespace: &Name) -> BTreeSet<BackendId> {
        let Backends { spaces, default_shapes, .. } = &mut self.backends;
        let Some(space) = spaces.get_mut(namespace) else { return BTreeSet::new() };
        let mut refused = BTreeSet::new();
        if space.wanted.len() > self.options.max_shapes {
            let mut counted: Vec<_> = space
                .wanted
                .iter()
                .filter(|(shape, _)| !default_shapes.contains(*shape))
                .map(|(shape, ids)| (ids.first(), shape))
                .collect();
            counted.sort();
            refused = counted.into_iter().skip(self.options.max_shapes).map(|(_, shape)| shape.clone()).collect();
        }
        let changed = refused.symmetric_difference(&space.refused).filter_map(|shape| space.wanted.get(shape));
        let changed = changed.flatten().cloned().collect();
        space.refused = refused;
        changed
    }

    fn render_backend(&mut self, id: &BackendId, backend: &Backend, own: Shaped) {
        let wanted = own.suffix.clone();
        let refused = self.backends.spaces.get(&id.namespace).is_some_and(|space| space.refused.contains(&wanted));
        let mut findings = own.problems.iter().map(|problem| finding(backend, problem)).collect::<Vec<_>>();
        let used = if refused {
            findings.push(limit(backend, self.options.max_shapes, own.split.essential));
            // Served by the defaults where that is only worse, not where it would be wrong.
            (!own.split.essential)
                .then(|| self.shape(&plain(backend.mode, &Policy { server: backend.policy.server.clone(), ..Policy::default() })))
        } else {
            Some(own)
        };
        let rendered = used.and_then(|shaped| match self.render_head(id, backend, &shaped) {
            Ok(rendered) => Some(rendered),
            Err(refused) => {
                let problem = Problem {
                    field: "",
                    code: codes::INVALID_VALUE,
                    message: format!("a value of the policy {refused}"),
                    help: "correct the policy; requests are answered with 503 until then",
                };
                findings.push(finding(backend, &problem));
                None
            }
        });
        let old = self.backends.states.get(id).and_then(|state| state.rendered.clone());
        if let Some(old) = old {
            self.clear(id, &old, rendered.as_ref());
        }
        let state = State { wanted, rendered };
        self.backends.states.insert(id.clone(), state);
        self.render_servers(id, backend);
        self.find(Subject::Backend(id.clone()), findings.into_iter().flatten().collect());
    }

    /// The backend's own resource, its values and its shape.
    fn render_head(&mut self, id: &BackendId, backend: &Backend, shaped: &Shaped) -> Result<Rendered, Refused> {
        let split = &shaped.split;
        let name = backend_name(id, &shaped.suffix);
        let (mode, private) = match split.mode {
            Mode::Http => ("http", "_private_http"),
            Mode::Tcp => ("tcp", "_private_tcp"),
        };
        let is_private = !split.own.is_empty();
        let head = Line::of("backend").with(Word::name(&name)?).and("from");
        let mut section = Section::new(head.with(if is_private { Word::of(private) } else { Word::name(&shaped.suffix)? }));
        section.push(Line::of("guid").with(Word::name(&name)?));
        let class = if is_private {
            section.lines.extend(split.lines.iter().chain(&split.own).cloned());
            BackendClass::Private
        } else {
            BackendClass::Shaped { shape: shaped.suffix.clone(), mode, guid: name.clone() }
        };
        let text = write(&[section])?.into();
        let mut rendered = Rendered { name: name.clone(), shape: None, values: BTreeSet::new(), servers: split.servers.clone() };
        if !is_private {
            let mut section = Section::new(Line::of("defaults").with(Word::name(&shaped.suffix)?));
            section.lines.clone_from(&split.lines);
            self.use_shape(&shaped.suffix, id, write(&[section])?.into(), &backend.sources);
            rendered.shape = Some(shaped.suffix.clone());
        }
        self.put(ResourceKey::Backend(name.clone()), Some((Content::Backend(BackendHead { text, class }), backend.sources.clone())));
        let mut maps: BTreeMap<ValueMap, Vec<MapEntry>> = BTreeMap::new();
        for value in &split.values {
            let key = format!("{name}{}", value.suffix).into();
            maps.entry(value.map).or_default().push(MapEntry { key, value: value.text.clone() });
        }
        for (map, entries) in maps {
            self.put_entries(map.path(), &name, entries, &backend.sources);
            rendered.values.insert(map);
        }
        Ok(rendered)
    }

    /// Takes out what `old` has and `new` has not.
    fn clear(&mut self, id: &BackendId, old: &Rendered, new: Option<&Rendered>) {
        let same = new.filter(|new| new.name == old.name);
        if same.is_none() {
            self.put(ResourceKey::Backend(old.name.clone()), None);
            self.put(ResourceKey::Servers(old.name.clone()), None);
        }
        for map in old.values.iter().filter(|map| same.is_none_or(|new| !new.values.contains(map))) {
            self.put(ResourceKey::MapEntries { map: map.path().into(), owner: old.name.clone() }, None);
        }
        if let Some(shape) = old.shape.as_ref().filter(|shape| new.is_none_or(|new| new.shape.as_ref() != Some(shape))) {
            self.leave_shape(shape, id);
        }
    }

    fn use_shape(&mut self, shape: &Name, id: &BackendId, text: Arc<str>, sources: &Arc<[ObjectRef]>) {
        let users = self.backends.shapes.entry(shape.clone()).or_default();
        users.insert(id.clone());
        if users.first() == Some(id) {
            self.put(shape_key(shape), Some((Content::Section(text), sources.clone())));
        }
    }

    fn leave_shape(&mut self, shape: &Name, id: &BackendId) {
        let Some(users) = self.backends.shapes.get_mut(shape) else { return };
        users.remove(id);
        let Some(first) = users.first() else {
            self.backends.shapes.remove(shape);
            self.put(shape_key(shape), None);
            return;
        };
        // The section is told about to one that still uses it.
        let name = self.backends.states.get(first).and_then(|state| state.rendered.as_ref()).map(|rendered| rendered.name.clone());
        let sources = name.and_then(|name| self.bundle.get(&ResourceKey::Backend(name))).map(|head| head.sources.clone());
        let content = self.bundle.get(&shape_key(shape)).map(|section| section.content.clone());
        if let (Some(sources), Some(content)) = (sources, content) {
            self.put(shape_key(shape), Some((content, sources)));
        }
    }

    fn remove_backend(&mut self, id: &BackendId) {
        if let Some(old) = self.backends.states.remove(id).and_then(|state| state.rendered) {
            self.clear(id, &old, None);
        }
        self.find(Subject::Backend(id.clone()), Vec::new());
    }

    /// All that runs for changed endpoints.
    fn render_servers(&mut self, id: &BackendId, backend: &Backend) {
        let Some(rendered) = self.backends.states.get(id).and_then(|state| state.rendered.as_ref()) else { return };
        let name = rendered.name.clone();
        let all = servers(&name, backend, &rendered.servers);
        let servers = Servers { all, zones: backend.zones };
        self.put(ResourceKey::Servers(name), Some((Content::Servers(servers), backend.sources.clone())));
    }
}

fn shape_key(shape: &str) -> ResourceKey {
    ResourceKey::Section(format!("30-shape-{shape}").into())
}

/// A backend with this policy and nothing else to it.
fn plain(mode: Mode, policy: &Policy) -> Backend {
    let (policy, endpoints, sources) = (Arc::new(policy.clone()), Arc::new([]), Arc::new([]));
    Backend { kind: BackendKind::Endpoints, mode, policy, endpoints, zones: None, sources }
}

fn finding(backend: &Backend, problem: &Problem) -> Option<Diagnostic> {
    let object = backend.sources.first()?;
    let message = if problem.field.is_empty() { problem.message.clone() } else { format!("{}: {}", problem.field, problem.message) };
    Some(Diagnostic::error(object, "", problem.code, message, problem.help))
}

fn limit(backend: &Backend, most: usize, essential: bool) -> Option<Diagnostic> {
    let effect = if essential { "requests are answered with 503" } else { "it is served with the default policy" };
    let message = format!("the namespace has more than {most} different shapes of policies; {effect}");
    Some(Diagnostic::error(
        backend.sources.first()?,
        "",
        codes::LIMIT_REACHED,
        message,
        "let services share a policy: values may differ, options and header names make a shape",
    ))
}

/// The servers of a backend, sorted by name.
fn servers(backend_name: &str, backend: &Backend, keywords: &ServerKeywords) -> Vec<Server> {
    match backend.kind {
        BackendKind::None => return Vec::new(),
        BackendKind::ExternalName { .. } => {
            let address = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0);
            return vec![server(backend_name, address, keywords, keywords.weight, false)];
        }
        BackendKind::Endpoints => {}
    }
    let share = |weight: Option<u16>| u32::from(weight.unwrap_or(1)) * u32::from(keywords.weight);
    let most = backend.endpoints.iter().map(|endpoint| share(endpoint.weight)).max().unwrap_or(1).max(256);
    // If nothing else is left, those that are going still serve.
    let all_leave = backend.endpoints.iter().all(|endpoint| endpoint.state == EndpointState::Draining);
    let mut out: Vec<Server> = backend
        .endpoints
        .iter()
        .map(|endpoint| {
            let share = share(endpoint.weight);
            // Proportions are kept where products do not fit.
            let scaled = if share == 0 { 0 } else { (share * 256 / most).max(1).min(share) };
            let weight = u16::try_from(if most == 256 { share } else { scaled }).unwrap_or(256);
            let address = SocketAddr::new(endpoint.address, endpoint.port);
            let drain = endpoint.state == EndpointState::Draining && !all_leave;
            let zone = endpoint.zone.clone().filter(|_| backend.zones.is_some());
            Server { zone, ..server(backend_name, address, keywords, weight, drain) }
        })
        .collect();
    out.sort();
    out.dedup_by(|a, b| a.name == b.name);
    unique_ids(&mut out);
    out
}

fn server(backend: &str, address: SocketAddr, keywords: &ServerKeywords, weight: u16, drain: bool) -> Server {
    let mut hasher = blake3::Hasher::new();
    hasher.update(address.to_string().as_bytes());
    let text = if keywords.cookie { format!("{} cookie {}", keywords.text, cookie_of(address)).into() } else { keywords.text.clone() };
    hasher.update(text.as_bytes());
    let hash = hasher.finalize();
    let bytes = hash.as_bytes();
    let name = format!("{}_{}_{}", address.ip(), address.port(), &hash.to_hex()[..6]);
    // 31 bits without 0: HAProxy's ids are positive.
    let id = (u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]) >> 1).max(1);
    hasher.update(backend.as_bytes());
    let guid = format!("s.{}", &hasher.finalize().to_hex()[..32]).into();
    Server { name: name.into(), address, id, guid, keywords: text, checked: keywords.checked, weight, drain, zone: None, here: None }
}

/// Two servers of one backend with the same id: the later by name takes the next free one.
fn unique_ids(servers: &mut [Server]) {
    let mut taken = BTreeSet::new();
    for server in servers {
        while !taken.insert(server.id) {
            server.id = if server.id == u32::MAX >> 1 { 1 } else { server.id + 1 };
        }
    }
}
