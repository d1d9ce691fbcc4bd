//! Hosts of routing tables: entries of maps, and rules where maps do not do.

use super::candidates::{Node, candidates, split_entries};
use super::names::{host_key, short_hash};
use super::{HostId, Renderer, Subject};
use crate::haproxy::bundle::MapEntry;
use crate::haproxy::config::Line;
use crate::haproxy::maps;
use crate::model::{BackendId, Host, HostMatch, Model, PathMatch, Route, Target};
use crate::report::{Diagnostic, ObjectRef, codes};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What is remembered about a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HostState {
    /// In order.
    pub(super) uses: Box<[BackendId]>,
    /// Rules for its candidates.
    pub(super) rules: Vec<Line>,
    /// Whether some of its routes are not plain.
    pub(super) indirect: bool,
    pub(super) sources: Arc<[ObjectRef]>,
}

#[derive(Default)]
struct Entries {
    routes: Vec<MapEntry>,
    https: Vec<MapEntry>,
    targets: Vec<MapEntry>,
}

impl Renderer {
    /// Renders one host of one table; whether the frontends have to be written again.
    pub(super) fn update_host(&mut self, model: &Model, id: &HostId) -> bool {
        let (table, matched) = id;
        let host = model.tables.get(table).and_then(|routes| routes.hosts.get(matched));
        let mut findings = Vec::new();
        let key = host_key(matched);
        let (state, entries) = match (host, &key) {
            (Some(host), Some(key)) => self.render_host(table, key, host, &mut findings),
            _ => (HostState::default(), Entries::default()),
        };
        if let (Some(host), None) = (host, &key)
            && let Some(route) = host.routes.first()
        {
            findings.push(Diagnostic::error(
                &route.source,
                "",
                codes::INVALID_VALUE,
                "a host is not a valid name",
                "write a DNS name in lower case",
            ));
        }
        self.find(Subject::Host(table.clone(), matched.clone()), findings);
        if let Some(key) = key {
            let lists = [entries.routes, entries.https, entries.targets];
            for (purpose, list) in maps::TABLE.into_iter().zip(lists) {
                self.put_entries(&maps::of_table(table, purpose), &key, list, &state.sources);
            }
        }

        let existed = self.hosts.contains_key(id);
        let before = self.hosts.remove(id).unwrap_or_default();
        for gone in before.uses.iter().filter(|id| state.uses.binary_search(id).is_err()) {
            self.users.remove(&(gone.clone(), id.clone()));
        }
        for new in state.uses.iter().filter(|id| before.uses.binary_search(id).is_err()) {
            self.users.insert((new.clone(), id.clone()));
        }
        let deep = matches!(matched, HostMatch::DeepWildcard(_)) && existed != host.is_some();
        let changed = before.rules != state.rules || before.indirect != state.indirect || deep;
        if host.is_some() {
            self.hosts.insert(id.clone(), state);
        }
        changed
    }

    fn render_host(&self, table: &str, key: &str, host: &Host, findings: &mut Vec<Diagnostic>) -> (HostState, Entries) {
        let mut routes: Vec<&Route> = Vec::with_capacity(host.routes.len());
        for route in &host.routes {
            match bad_path(&route.path) {
                Some(why) => findings.push(Diagnostic::error(
                    &route.source,
                    "",
                    codes::INVALID_VALUE,
                    format!("a path {why}: its route is left out"),
                    "start it with / and encode blanks, # and ?",
                )),
                None => routes.push(route),
            }
        }
        let sources: BTreeSet<&ObjectRef> = routes.iter().map(|route| &route.source).collect();
        let mut state = HostState { sources: sources.into_iter().cloned().collect(), ..HostState::default() };
        let uses: BTreeSet<&BackendId> = routes.iter().flat_map(|route| backends_of(&route.target)).collect();
        state.uses = uses.into_iter().cloned().collect();
        let mut entries = Entries::default();
        let redirects = routes.iter().any(|route| route.https_redirect.is_some());
        let plain = routes.iter().all(|route| route.conditions.is_empty() && !matches!(route.path, PathMatch::Regex(_)));
        for (node, list) in nodes(&routes, plain) {
            let name = format!("{key}{node}");
            match list.as_slice() {
                // The plain case: one entry says it all.
                [] => entries.routes.push(entry(&name, "_404")),
                [only] if is_plain(only) => {
                    entries.routes.push(entry(&name, &self.plain_target(&only.target)));
                    if redirects {
                        entries.https.push(entry(&name, &redirect_code(only)));
                    }
                }
                list => {
                    state.indirect = true;
                    let id = format!("~{}", short_hash(&format!("{table} {name} {}", conditions_text(list)), 12));
                    entries.routes.push(entry(&name, &id));
                    self.indirect(&id, list, &mut state.rules, &mut entries, findings);
                }
            }
        }
        (state, entries)
    }

    /// Entries and rules of a node whose target is not known by its path alone.
    fn indirect(&self, id: &str, list: &[&Route], rules: &mut Vec<Line>, entries: &mut Entries, findings: &mut Vec<Diagnostic>) {
        for Node { name, route, lines } in candidates(id, list, findings) {
            rules.extend(lines);
            let Some(route) = route else {
                entries.targets.push(entry(&format!("{name}/"), "_404"));
                continue;
            };
            entries.https.push(entry(&format!("{name}/"), &redirect_code(route)));
            match &route.target {
                Target::Split(weights) => {
                    let named =
                        weights.iter().map(|(id, weight)| (id.as_ref().map_or_else(|| "_503".into(), |id| self.backend_name(id)), *weight));
                    entries.targets.extend(split_entries(&name, &named.collect::<Vec<_>>()));
                }
                target => entries.targets.push(entry(&format!("{name}/"), &self.plain_target(target))),
            }
        }
    }

    fn plain_target(&self, target: &Target) -> super::Name {
        match target {
            Target::Backend(id) => self.backend_name(id),
            Target::Split(_) | Target::Unavailable => "_503".into(),
        }
    }
}

pub(super) fn entry(key: &str, value: &str) -> MapEntry {
    MapEntry { key: key.into(), value: value.into() }
}

fn redirect_code(route: &Route) -> String {
    match route.https_redirect {
        Some(code @ (301 | 302 | 303 | 307 | 308)) => code.to_string(),
        Some(_) => "308".to_owned(),
        None => "-".to_owned(),
    }
}

fn is_plain(route: &Route) -> bool {
    route.conditions.is_empty() && !matches!(route.path, PathMatch::Regex(_)) && !matches!(route.target, Target::Split(_))
}

fn backends_of(target: &Target) -> Vec<&BackendId> {
    match target {
        Target::Backend(id) => vec![id],
        Target::Split(weights) => weights.iter().filter_map(|(id, _)| id.as_ref()).collect(),
        Target::Unavailable => Vec::new(),
    }
}

/// Everything that decides which rules a node has: their name changes with them, so that an old worker
/// never reads new conditions into its old rules.
fn conditions_text(list: &[&Route]) -> String {
    format!("{:?}", list.iter().map(|route| (&route.path, &route.conditions)).collect::<Vec<_>>())
}

fn bad_path(path: &PathMatch) -> Option<&'static str> {
    match path {
        PathMatch::Regex(regex) if regex.is_empty() || regex.bytes().any(|b| b < 0x20 || b == 0x7f) => {
            Some("expression is empty or holds control bytes")
        }
        PathMatch::Regex(_) => None,
        PathMatch::Exact(path) | PathMatch::Prefix(path) if !path.starts_with('/') => Some("does not start with /"),
        PathMatch::Exact(path) | PathMatch::Prefix(path) => {
            path.bytes().any(|b| b <= 0x20 || b == 0x7f || b == b'#' || b == b'?').then_some("holds blanks, control bytes, # or ?")
        }
    }
}

/// What follows the host in a key. A request is looked up as its path and `/#`, which no path holds.
fn node_key(path: &PathMatch) -> Option<String> {
    match path {
        PathMatch::Exact(path) => Some(format!("{path}/#")),
        PathMatch::Prefix(path) => Some(format!("{}/", path.trim_end_matches('/'))),
        PathMatch::Regex(_) => None,
    }
}

/// For each entry of the map the routes that come into question there, in order, up to the first that
/// always matches. Every host has `/`, so that a known host never falls through to a less specific one.
fn nodes<'a>(routes: &[&'a Route], plain: bool) -> BTreeMap<String, Vec<&'a Route>> {
    let mut nodes: BTreeMap<String, Vec<&Route>> = BTreeMap::new();
    nodes.insert("/".to_owned(), Vec::new());
    for route in routes {
        if let Some(key) = node_key(&route.path) {
            let list = nodes.entry(key).or_default();
            if plain && list.is_empty() {
                list.push(route);
            }
        }
    }
    if plain {
        return nodes;
    }
    for (key, list) in &mut nodes {
        for route in routes {
            let always = match node_key(&route.path) {
                Some(_) if matches!(route.path, PathMatch::Exact(_)) => node_key(&route.path).as_deref() == Some(key),
                Some(own) => key.starts_with(&own),
                None => {
                    list.push(route);
                    continue;
                }
            };
            if always {
                list.push(route);
                if route.conditions.is_empty() {
                    break;
                }
            }
        }
    }
    nodes
}
