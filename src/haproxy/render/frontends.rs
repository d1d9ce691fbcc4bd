//! Frontends: one for each listener, with as few rules as routing needs.

use super::certificates::{DEFAULT_CERTIFICATE, TICKET_KEYS, list_path};
use super::hosts::entry;
use super::names::host_key;
use super::{Renderer, Subject, settings};
use crate::haproxy::bundle::{Content, ResourceKey};
use crate::haproxy::config::{Expr, Fmt, Line, Refused, Section, Word, write};
use crate::haproxy::maps::{self, Purpose};
use crate::haproxy::shape::Problem;
use crate::model::{HostMatch, Listener, ListenerName, Model, Protocol, Settings};
use crate::report::{Diagnostic, ObjectRef, codes};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What the rules of a table depend on, beside its maps.
struct Table<'a> {
    name: &'a str,
    /// Some routes are not plain.
    indirect: bool,
    rules: Vec<&'a Line>,
    /// Numbers of labels in its deep wildcards, most first.
    deep: BTreeSet<std::cmp::Reverse<usize>>,
}

/// The frontend of health checks.
pub const HEALTH: &str = "_health";
/// The backend by which workers of before a reload pass requests on.
pub const RELAY: &str = "_relay";
/// What frontends call the bind of requests that workers of before a reload pass on.
pub const RELAY_BIND: &str = "relay";

const NOT_FOUND: &str = "if !{ var(txn.route) -m found }";
/// The same, and there is a label that `*` can stand for.
const NOT_FOUND_LABELLED: &str = "if !{ var(txn.route) -m found } !{ req.hdr(host) -m beg . }";
const INDIRECT: &str = "if { var(txn.route) -m beg ~ }";
const HOST: &str = "req.hdr(host),host_only,lower,rtrim(.)";

impl Renderer {
    /// Writes every frontend and the backends of our own.
    pub(super) fn write_frontends(&mut self, model: &Model) {
        // names and addresses of ours: nothing that could be refused
        let mut sections: Vec<Section> = health(&model.settings).into_iter().collect();
        let mut sources: BTreeSet<ObjectRef> = BTreeSet::from([self.fleet_object()]);
        let mut relays = Vec::new();
        let (plain, secure) = (settings::lines(&model.settings, false), settings::lines(&model.settings, true));
        self.tell_settings(plain.1.into_iter().chain(secure.1));
        let verification = settings::verification(&model.settings);
        for (name, listener) in &model.listeners {
            let settings = if matches!(listener.protocol, Protocol::Https { .. }) { &secure.0 } else { &plain.0 };
            match self.frontend(name, listener, settings, &verification) {
                Ok(section) => {
                    self.findings.remove(&Subject::Listener(name.clone()));
                    sections.push(section);
                    if let Protocol::Http { .. } | Protocol::Https { .. } = listener.protocol {
                        relays.push(name);
                    }
                }
                Err(refused) => {
                    let finding = Diagnostic::error(
                        &self.fleet_object(),
                        "",
                        codes::INVALID_VALUE,
                        format!("the listener {name} {refused}"),
                        "choose another name",
                    );
                    self.find(Subject::Listener(name.clone()), vec![finding]);
                }
            }
        }
        let removed: Vec<_> = self
            .findings
            .keys()
            .filter(|subject| matches!(subject, Subject::Listener(name) if !model.listeners.contains_key(name)))
            .cloned()
            .collect();
        for subject in removed {
            self.findings.remove(&subject);
        }
        sources.extend(self.hosts.values().filter(|host| !host.rules.is_empty()).flat_map(|host| host.sources.iter().cloned()));
        sections.extend(fixed(&relays, &model.settings).into_iter().flatten());
        let text = write(&sections).unwrap_or_default();
        self.put(ResourceKey::Section("20-frontends".into()), Some((Content::Section(text.into()), sources.into_iter().collect())));

        self.update_standing(model);
    }

    /// Tells what of the settings had to be left out, once.
    fn tell_settings(&mut self, problems: impl Iterator<Item = Problem>) {
        let fleet = self.fleet_object();
        let mut findings: Vec<Diagnostic> =
            problems.map(|Problem { field, code, message, help }| Diagnostic::error(&fleet, field, code, message, help)).collect();
        findings.sort();
        findings.dedup();
        self.find(Subject::Settings, findings);
    }

    /// The files that frontends name exist, and no others.
    fn update_standing(&mut self, model: &Model) {
        let values =
            self.standing.iter().filter(|key| matches!(key, ResourceKey::MapEntries { map, .. } if map.starts_with("maps/values/")));
        let mut wanted: BTreeSet<ResourceKey> = values.cloned().collect();
        let map = |path: String| ResourceKey::MapEntries { map: path.into(), owner: "".into() };
        for (name, listener) in &model.listeners {
            match &listener.protocol {
                Protocol::Http { table, .. } => wanted.extend(maps::TABLE.map(|purpose| map(maps::of_table(table, purpose)))),
                Protocol::Https { table, certificates } => {
                    wanted.extend(maps::TABLE.map(|purpose| map(maps::of_table(table, purpose))));
                    wanted.insert(ResourceKey::CertificateList { list: list_path(certificates).into(), owner: "".into() });
                }
                Protocol::TlsPassthrough { .. } => {
                    wanted.insert(map(maps::of_listener(name)));
                }
                Protocol::Tcp { .. } => {
                    wanted.insert(map(maps::TCP.to_owned()));
                }
            }
        }
        let gone: Vec<_> = self.standing.difference(&wanted).cloned().collect();
        for key in gone {
            self.standing.remove(&key);
            self.put(key, None);
        }
        for key in wanted {
            self.stand(key);
        }
    }

    /// `settings`: the lines that go in front of its routing, where it has some. `verification`: what is said where its TLS
    /// ends.
    fn frontend(&self, name: &str, listener: &Listener, settings: &[Line], verification: &[Word]) -> Result<Section, Refused> {
        let http = matches!(listener.protocol, Protocol::Http { .. } | Protocol::Https { .. });
        let head = Line::of("frontend").with(Word::name(name)?).and("from").and(if http { "_front" } else { "_front_tcp" });
        let mut section = Section::new(head);
        // Where a pod listens on all addresses, it does so once for each family: a client over IPv4 at a socket of IPv6 would
        // be told to servers as ::ffff:192.0.2.1 (X-Forwarded-For).
        let mut bind = Line::of("bind").with(Word::env("", &variable(name), "")?).and("v6only");
        if listener.proxy_protocol {
            bind = bind.and("accept-proxy");
        }
        match &listener.protocol {
            Protocol::Http { table, https_port } => {
                section.push(bind).push(relay_bind(name)?);
                section.lines.extend_from_slice(settings);
                section.push(closing()?);
                self.routing(&mut section, table, *https_port)?;
            }
            Protocol::Https { table, certificates } => {
                let bind = bind.and("ssl default-crt").and(DEFAULT_CERTIFICATE).and("crt-list").with(Word::text(&list_path(certificates))?);
                let bind = bind.and("alpn h2,http/1.1 tls-ticket-keys").and(TICKET_KEYS);
                let bind = verification.iter().cloned().fold(bind, Line::with);
                section.push(bind).push(relay_bind(name)?);
                section.lines.extend_from_slice(settings);
                section.push(closing()?);
                self.routing(&mut section, table, None)?;
            }
            Protocol::TlsPassthrough { names } => {
                section.push(bind);
                passthrough(&mut section, name, names.keys())?;
            }
            Protocol::Tcp { .. } => {
                let target = Expr::of("fe_name").then("map_str", &[maps::TCP])?;
                section.push(bind).push(Line::of("use_backend").with(Word::value(&target)));
                section.add("default_backend _reject");
            }
        }
        Ok(section)
    }

    /// A plain request costs one look-up, one test and, where redirects to HTTPS are possible, one more
    /// look-up: it is found by its Host as it stands. Only if it is not is the Host brought into shape.
    fn routing(&self, section: &mut Section, table: &str, https_port: Option<u16>) -> Result<(), Refused> {
        let table = self.table(table);
        let routes = maps::of_table(table.name, Purpose::Routes);
        let https = maps::of_table(table.name, Purpose::Redirects);
        let raw = Expr::of("base").then("concat", &["/#"])?;
        let key = Expr::of("var(txn.key)");
        let by_key = key.then("map_beg", &[&routes])?;
        section.push(relayed()?);
        section.push(Line::of("http-request set-var(txn.route)").with(Word::expr(&raw.then("map_beg", &[&routes])?)));
        let mut done = Line::of("http-request allow if { var(txn.route) -m found }");
        if table.indirect {
            done = done.and("!{ var(txn.route) -m beg ~ }");
        }
        if https_port.is_some() {
            done = done.and("!{").with(Word::expr(&raw.then("map_beg", &[&https])?)).and("-m found }");
        }
        section.push(done);

        let path = Expr::of("path");
        let tail = [Fmt::Expr(&path), Fmt::Text("/#")];
        let look = |section: &mut Section, head: &[Fmt<'_>], guard: Option<&'static str>| -> Result<(), Refused> {
            let parts: Vec<Fmt<'_>> = head.iter().chain(&tail).copied().collect();
            let set_key = Line::of("http-request set-var-fmt(txn.key)").with(Word::fmt(&parts)?);
            let set_route = Line::of("http-request set-var(txn.route)").with(Word::expr(&by_key));
            match guard {
                Some(guard) => section.push(set_key.and(guard)).push(set_route.and(guard)),
                None => section.push(set_key).push(set_route),
            };
            Ok(())
        };
        let host = Expr::of(HOST);
        look(section, &[Fmt::Expr(&host)], None)?;
        let rest = host.then("field", &["2", ".", "0"])?;
        look(section, &[Fmt::Text("*."), Fmt::Expr(&rest)], Some(NOT_FOUND_LABELLED))?;
        for std::cmp::Reverse(labels) in &table.deep {
            // At least one label more than the suffix has.
            let suffix = host.then("field", &["-1", ".", &labels.to_string()])?;
            let more = host.then("field", &[&format!("-{}", labels + 1), ".", "1"])?;
            let guard = |line: Line| line.and(NOT_FOUND).and("{").with(Word::expr(&more)).and("-m len ge 1 }");
            let parts = [Fmt::Text("**."), Fmt::Expr(&suffix), tail[0], tail[1]];
            section.push(guard(Line::of("http-request set-var-fmt(txn.key)").with(Word::fmt(&parts)?)));
            section.push(guard(Line::of("http-request set-var(txn.route)").with(Word::expr(&by_key))));
        }
        look(section, &[Fmt::Text("*|")], Some(NOT_FOUND))?;
        if table.indirect {
            section.lines.extend(table.rules.iter().map(|line| (*line).clone()));
            let drawn = Expr::of("rand(1000000),add(1000000)");
            let route = Expr::of("var(txn.route)");
            let parts = [Fmt::Expr(&route), Fmt::Text("/"), Fmt::Expr(&drawn)];
            section.push(Line::of("http-request set-var-fmt(txn.key)").with(Word::fmt(&parts)?).and(INDIRECT));
            let target = key.then("map_beg", &[&maps::of_table(table.name, Purpose::Targets), "_404"])?;
            section.push(Line::of("http-request set-var(txn.route)").with(Word::expr(&target)).and(INDIRECT));
        }
        if let Some(port) = https_port {
            redirects(section, &key.then("map_beg", &[&https])?, port)?;
        }
        section.add("use_backend %[var(txn.route)]").add("default_backend _404");
        Ok(())
    }

    fn table<'a>(&'a self, name: &'a str) -> Table<'a> {
        let mut table = Table { name, indirect: false, rules: Vec::new(), deep: BTreeSet::new() };
        let first = (super::Name::from(name), HostMatch::Exact("".into()));
        for ((_, host), state) in self.hosts.range(first..).take_while(|((own, _), _)| &**own == name) {
            table.indirect |= state.indirect;
            table.rules.extend(&state.rules);
            if let HostMatch::DeepWildcard(suffix) = host {
                table.deep.insert(std::cmp::Reverse(suffix.split('.').count()));
            }
        }
        table
    }

    /// Map entries of a listener that names backends itself.
    pub(super) fn update_listener_entries(&mut self, model: &Model, name: &ListenerName) {
        let old = self.listener_entries.remove(name).unwrap_or_default();
        let mut new = BTreeSet::new();
        let mut uses = BTreeSet::new();
        let sources: Arc<[ObjectRef]> = Arc::new([self.fleet_object()]);
        match model.listeners.get(name).map(|listener| &listener.protocol) {
            Some(Protocol::Tcp { backend }) => {
                uses.insert(backend.clone());
                let target = self.tcp_target(model, backend);
                self.put_entries(maps::TCP, name, vec![entry(name, &target)], &sources);
                new.insert(ResourceKey::MapEntries { map: maps::TCP.into(), owner: name.clone() });
            }
            Some(Protocol::TlsPassthrough { names }) => {
                let map = maps::of_listener(name);
                for (host, backend) in names {
                    let Some(key) = host_key(host) else { continue };
                    uses.insert(backend.clone());
                    let target = self.tcp_target(model, backend);
                    self.put_entries(&map, &key, vec![entry(&key, &target)], &sources);
                    new.insert(ResourceKey::MapEntries { map: map.as_str().into(), owner: key.into() });
                }
            }
            _ => {}
        }
        for gone in old.difference(&new) {
            self.put(gone.clone(), None);
        }
        if !new.is_empty() {
            self.listener_entries.insert(name.clone(), new);
        }
        if uses.is_empty() {
            self.passthrough.remove(name);
        } else {
            self.passthrough.insert(name.clone(), uses);
        }
    }

    /// A backend in HTTP mode cannot take what a TCP listener gives.
    fn tcp_target(&self, model: &Model, id: &crate::model::BackendId) -> super::Name {
        match model.backends.get(id) {
            Some(backend) if backend.mode == crate::model::Mode::Tcp => match self.backend_name(id) {
                name if &*name == "_503" => "_reject".into(),
                name => name,
            },
            _ => "_reject".into(),
        }
    }
}

fn variable(listener: &str) -> String {
    format!("FLEET_BIND_{}", listener.to_ascii_uppercase().replace(['-', '.'], "_"))
}

/// Asks clients of HTTP/1 to close their connections while the pod is about to stop; a soft stop asks those of HTTP/2. A
/// connection that is upgraded says `Connection: Upgrade`.
fn closing() -> Result<Line, Refused> {
    let state = Expr::fetch("str", maps::CLOSING)?.then("map_str", &[maps::POD])?;
    Ok(Line::of("http-after-response set-header Connection close if").test(&state, "str", maps::TRUE)?.and("!{ status 101 }"))
}

/// A worker of before a reload passes everything on while it is told so. Its own routes stay as they were: once the pod stops
/// there is no other worker that takes anything.
fn relayed() -> Result<Line, Refused> {
    let relay = Expr::fetch("str", maps::RELAYED)?.then("map_str", &[maps::POD])?.then("set-var", &["txn.route"])?;
    Ok(Line::of("http-request allow if {").with(Word::expr(&relay)).and("-m found }"))
}

/// Where workers of before a reload send what they still get. TLS has ended there already.
fn relay_bind(name: &str) -> Result<Line, Refused> {
    let bind = Line::of("bind").with(Word::env("abns@", "FLEET_RELAY", &format!("-{name}"))?).and("accept-proxy");
    Ok(bind.and("name").and(RELAY_BIND))
}

/// By the code that the map names; never for what proves to certificate authorities who owns a host.
fn redirects(section: &mut Section, code: &Expr, port: u16) -> Result<(), Refused> {
    section.add("http-request allow if { path -m beg /.well-known/acme-challenge/ }");
    let (host, path) = (Expr::of("req.hdr(host),host_only"), Expr::of("pathq"));
    let port = if port == 443 { String::new() } else { format!(":{port}") };
    let location = Word::fmt(&[Fmt::Text("https://"), Fmt::Expr(&host), Fmt::Text(&port), Fmt::Expr(&path)])?;
    for number in ["301", "302", "303", "307", "308"] {
        let line = Line::of("http-request redirect code").and(number).and("location").with(location.clone());
        section.push(line.and("if").test(code, "str", number)?);
    }
    Ok(())
}

fn passthrough<'a>(section: &mut Section, listener: &str, names: impl Iterator<Item = &'a HostMatch>) -> Result<(), Refused> {
    let map = maps::of_listener(listener);
    let name = Expr::of("req.ssl_sni,lower,rtrim(.)");
    let key = Expr::of("var(txn.key)").then("map_str", &[&map])?;
    section.add("tcp-request inspect-delay 5s").add("tcp-request content reject unless { req.ssl_hello_type 1 }");
    section.push(Line::of("tcp-request content set-var(txn.route)").with(Word::expr(&name.then("map_str", &[&map])?)));
    let mut look = |parts: &[Fmt<'_>], more: Option<&Expr>| -> Result<(), Refused> {
        let guard = |line: Line| match more {
            Some(more) => line.and(NOT_FOUND).and("{").with(Word::expr(more)).and("-m len ge 1 }"),
            None => line.and(NOT_FOUND),
        };
        section.push(guard(Line::of("tcp-request content set-var-fmt(txn.key)").with(Word::fmt(parts)?)));
        section.push(guard(Line::of("tcp-request content set-var(txn.route)").with(Word::expr(&key))));
        Ok(())
    };
    look(&[Fmt::Text("*."), Fmt::Expr(&name.then("field", &["2", ".", "0"])?)], None)?;
    let deep: BTreeSet<_> = names
        .filter_map(|host| match host {
            HostMatch::DeepWildcard(suffix) => Some(std::cmp::Reverse(suffix.split('.').count())),
            _ => None,
        })
        .collect();
    for std::cmp::Reverse(labels) in deep {
        let suffix = name.then("field", &["-1", ".", &labels.to_string()])?;
        let more = name.then("field", &[&format!("-{}", labels + 1), ".", "1"])?;
        look(&[Fmt::Text("**."), Fmt::Expr(&suffix)], Some(&more))?;
    }
    look(&[Fmt::Text("*|")], None)?;
    section.add("tcp-request content reject unless { var(txn.route) -m found }");
    section.add("use_backend %[var(txn.route)]").add("default_backend _reject");
    Ok(())
}

/// 200 as long as the pod is to get traffic.
fn health(common: &Settings) -> Result<Section, Refused> {
    let unready = |key: &'static str| {
        let state = Expr::fetch("str", key)?.then("map_str", &[maps::POD])?;
        let line = Line::of("http-request return status 503 content-type text/plain string").and(key);
        line.and("if { path /healthz }").test(&state, "str", maps::TRUE)
    };
    let mut section = Section::new(Line::of("frontend").and(HEALTH).and("from _front"));
    section.push(Line::of("bind").with(Word::env("", "FLEET_BIND_HEALTH", "")?)).push(unready(maps::DRAINED)?);
    if common.unready_while_closing {
        section.push(unready(maps::CLOSING)?);
    }
    section.add("http-request return status 200 content-type text/plain string ok if { path /healthz }");
    if common.metrics {
        section.add("http-request use-service prometheus-exporter if { path /metrics }");
    }
    section.add("http-request return status 404");
    Ok(section)
}

/// Backends of our own.
fn fixed(relays: &[&ListenerName], common: &Settings) -> Result<[Section; 4], Refused> {
    let section = |head| Section::new(Line::of(head));
    let (mut missing, mut unavailable) = (section("backend _404 from _static"), section("backend _503 from _static"));
    missing.push(settings::answer(common, 404)?);
    unavailable.push(settings::answer(common, 503)?);
    let mut relay = section("backend _relay from _static");
    if common.access_log.is_some() {
        // the worker that it goes to writes it down
        relay.add("http-request set-log-level silent");
    }
    for name in relays {
        let server = Line::of("server").with(Word::name(name)?).with(Word::env("abns@", "FLEET_RELAY", &format!("-{name}"))?);
        relay.push(server.and("send-proxy-v2"));
    }
    for name in relays {
        let rule = Line::of("use-server").with(Word::name(name)?).and("if").test(&Expr::of("fe_name"), "str", name)?;
        relay.push(rule);
    }
    Ok([missing, unavailable, relay, section("backend _reject from _static_tcp")])
}
