//! Compares what runs with what should and repairs the difference: nobody else is meant to change it, but
//! somebody with the socket or a signal can.

use super::apply::{Applier, Base, Shared};
use super::execute::{is_line, repair};
use super::runtime::{Command, ServerState, Session, list_lines, map_entries, names, server_states};
use crate::haproxy::bundle::{Bundle, Content, ListEntry, MapEntry, Name, ResourceKey, Server};
use crate::haproxy::files::effective_weight;
use crate::haproxy::maps;
use crate::haproxy::plan::Step;
use crate::haproxy::render::DEFAULT_CERTIFICATE;
use crate::report::PrivateBytes;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

/// What is not as it should be.
#[derive(Default)]
struct Found {
    repairs: Vec<Step>,
    /// Backends and certificates that are not there: a reload brings them.
    missing: Vec<ResourceKey>,
}

impl Applier {
    /// Looks, repairs, and says how many things were not as they should be.
    pub(crate) async fn check_drift(&mut self) -> usize {
        self.write();
        if self.base != Base::Accepted || !self.haproxy.is_up() || self.stops_softly() {
            return 0;
        }
        match self.compare().await {
            Ok(found) => {
                self.status.send_if_modified(|status| {
                    status.drift_repairs += found as u64;
                    found > 0
                });
                found
            }
            Err(error) => {
                // if HAProxy died, that is seen elsewhere
                tracing::warn!(%error, "what runs could not be compared with what should");
                self.session = None;
                0
            }
        }
    }

    async fn compare(&mut self) -> io::Result<usize> {
        let processes = self.master.processes().await?;
        self.count_old(processes.old.len());
        let mut drifted = 0;
        // after a failed reload HAProxy lists the worker that serves among the old ones
        if let Some(worker) = processes.worker.filter(|worker| *worker != self.worker) {
            tracing::warn!(worker, "somebody else reloaded HAProxy");
            drifted += 1;
            // until it answers, it is still loading: it is seen again at the next look
            let session = Session::open(&self.master.socket, worker, Duration::from_secs(1)).await?;
            self.worker = worker;
            self.workers = processes.old.iter().copied().chain([worker]).collect();
            self.session = Some(session);
            self.look_inside().await?;
            self.relay(&processes.old).await;
        }
        let mut missing = Vec::new();
        // a slice at a time: what is delivered meanwhile comes first
        let mut after = None;
        while let Some(slice) = self.next_slice(&mut after) {
            drifted += self.check(Part::Servers(slice), &mut missing).await?;
            self.absorb_if_any().await;
        }
        let maps: Vec<Name> = self.shared.lock().await.process.maps.iter().cloned().collect();
        for map in maps {
            drifted += self.check(Part::Map(map), &mut missing).await?;
            self.absorb_if_any().await;
        }
        drifted += self.check(Part::Certificates, &mut missing).await?;
        let paths: Vec<Name> = self.shared.lock().await.process.certificates.iter().cloned().collect();
        for slice in paths.chunks(SLICE) {
            drifted += self.check(Part::Contents(slice.to_vec()), &mut missing).await?;
            self.absorb_if_any().await;
        }
        if missing.is_empty() {
            self.reap.notify_one();
            return Ok(drifted);
        }
        for key in missing {
            self.forced.insert(key.clone(), "it vanished from the running process".to_owned());
            self.waiting.insert(key);
        }
        self.reasons = vec!["the running process is not as it should be".to_owned()];
        self.reload().await;
        Ok(drifted)
    }

    async fn absorb_if_any(&mut self) {
        if !self.inbox.is_empty() {
            self.absorb().await;
        }
    }

    /// The next backends, in order.
    fn next_slice(&self, after: &mut Option<Name>) -> Option<Vec<Name>> {
        let backends = self.accepted.backends_after(after.as_ref());
        let slice: Vec<Name> = backends.take(SLICE).cloned().collect();
        *after = slice.last().cloned();
        after.is_some().then_some(slice)
    }

    /// Checks one part and repairs it; `missing` gets what only a reload brings back.
    async fn check(&mut self, part: Part, missing: &mut Vec<ResourceKey>) -> io::Result<usize> {
        if self.base != Base::Accepted {
            return Ok(0);
        }
        self.connect().await?;
        let shared = self.shared.clone();
        let mut shared = shared.lock().await;
        let Some(session) = &mut self.session else { return Err(io::ErrorKind::NotConnected.into()) };
        let mut found = Found::default();
        match part {
            Part::Servers(backends) => servers(session, &self.accepted, &shared, &backends, &mut found).await?,
            Part::Map(name) => map(session, &self.accepted, &name, &mut found).await?,
            Part::Contents(paths) => {
                contents(session, &self.accepted, &self.settings.pod.default_certificate, &paths, &mut found).await?;
            }
            Part::Certificates => certificates(session, &self.accepted, &shared, &mut found).await?,
        }
        for step in &found.repairs {
            tracing::warn!(?step, "HAProxy is not as it should be");
        }
        let outcome = repair(session, &found.repairs, &mut shared.process, self.capabilities.max_payload).await?;
        drop(shared);
        self.count(outcome.commands);
        for failure in &outcome.failed {
            tracing::error!(failure.message, "a repair failed");
            missing.push(ResourceKey::Section("repair".into()));
        }
        missing.extend(found.missing.iter().cloned());
        Ok(found.repairs.len() + found.missing.len())
    }
}

/// Backends in one look.
const SLICE: usize = 64;

enum Part {
    Servers(Vec<Name>),
    Map(Name),
    Certificates,
    Contents(Vec<Name>),
}

async fn servers(session: &mut Session, accepted: &Bundle, shared: &Shared, backends: &[Name], found: &mut Found) -> io::Result<()> {
    let questions: Vec<Command> = backends.iter().map(|name| Command::plain(&format!("show servers state {name}"))).collect();
    let answers = session.exchange(&questions).await?;
    for (backend, answer) in backends.iter().zip(&answers) {
        if !answer.contains("# be_id") {
            found.missing.push(ResourceKey::Backend(backend.clone()));
            continue;
        }
        let key = ResourceKey::Servers(backend.clone());
        let wanted: &[Server] = match accepted.get(&key).map(|resource| &resource.content) {
            Some(Content::Servers(servers)) => servers,
            _ => &[],
        };
        servers_of_one(backend, wanted, server_states(answer), shared, found);
    }
    Ok(())
}

fn servers_of_one(backend: &Name, wanted: &[Server], actual: Vec<ServerState<'_>>, shared: &Shared, found: &mut Found) {
    let mut actual: BTreeMap<&str, ServerState<'_>> = actual.into_iter().map(|state| (state.name, state)).collect();
    for server in wanted {
        let (backend, server) = (backend.clone(), server.clone());
        match actual.remove(server.name.as_ref()) {
            None => found.repairs.push(Step::AddServer { backend, server }),
            Some(state) if !is_at(&state, server.address) => {
                found.repairs.push(Step::SetAddress { backend: backend.clone(), server: server.clone() });
                if state.maintenance {
                    found.repairs.push(Step::ReturnServer { backend, server });
                }
            }
            Some(state) if state.maintenance => found.repairs.push(Step::ReturnServer { backend, server }),
            Some(state) if state.weight != effective_weight(&server).to_string() => {
                found.repairs.push(Step::SetWeight { backend, server });
            }
            Some(_) => {}
        }
    }
    for (name, state) in actual {
        let name: Name = name.into();
        let known = shared.process.lingering.servers.get(&(backend.clone(), name.clone()));
        if known.is_some() && state.maintenance {
            continue;
        }
        let server = known.cloned().unwrap_or_else(|| foreign(&name, state.address, state.port));
        found.repairs.push(Step::RetireServer { backend: backend.clone(), server });
    }
}

fn is_at(state: &ServerState<'_>, address: SocketAddr) -> bool {
    // `-` where a rule sets the destination
    let ip = state.address.parse().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    ip == address.ip() && state.port.parse() == Ok(address.port())
}

/// Certificates that are there but are others. `default` is the pod's own, where the bundle has none in its place.
async fn contents(session: &mut Session, accepted: &Bundle, default: &PrivateBytes, paths: &[Name], found: &mut Found) -> io::Result<()> {
    let questions: Vec<Command> = paths.iter().map(|path| Command::plain(&format!("show ssl cert {path}"))).collect();
    let answers = session.exchange(&questions).await?;
    for (path, answer) in paths.iter().zip(&answers) {
        let pem = match accepted.get(&ResourceKey::Certificate(path.clone())).map(|resource| &resource.content) {
            Some(Content::Certificate(pem)) => pem,
            _ if path.as_ref() == DEFAULT_CERTIFICATE => default,
            _ => continue,
        };
        let actual = certificate_identity(answer);
        if actual.is_some() && pem_identity(pem.expose()).is_some_and(|wanted| Some(wanted) != actual) {
            let pem = PrivateBytes::new(crate::haproxy::files::pem_lines(pem.expose()));
            found.repairs.push(Step::Certificate { path: path.clone(), pem, fresh: false, authority: false });
        }
    }
    Ok(())
}

/// Serial number and end of validity as `show ssl cert FILE` prints them.
fn certificate_identity(text: &str) -> Option<(String, String)> {
    let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_owned());
    let serial = field("Serial: ")?.trim_start_matches('0').to_ascii_uppercase();
    let end = field("notAfter: ")?.split_whitespace().collect::<Vec<_>>().join(" ");
    Some((serial, end))
}

/// The same of the first certificate in `pem`.
fn pem_identity(pem: &[u8]) -> Option<(String, String)> {
    let block = x509_parser::pem::Pem::iter_from_buffer(pem).flatten().find(|block| block.label.ends_with("CERTIFICATE"))?;
    let certificate = block.parse_x509().ok()?;
    let hex = certificate.raw_serial_as_string().replace(':', "").to_ascii_uppercase();
    let end = certificate.validity().not_after.to_datetime();
    let month = end.month().to_string();
    let (hour, minute, second) = end.to_hms();
    let text = format!("{} {} {hour:02}:{minute:02}:{second:02} {} GMT", &month[..3], end.day(), end.year());
    Some((hex.trim_start_matches('0').to_owned(), text))
}

/// A server that nobody here has added.
fn foreign(name: &Name, address: &str, port: &str) -> Server {
    let address = address.parse().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let address = SocketAddr::new(address, port.parse().unwrap_or_default());
    Server {
        name: name.clone(),
        address,
        id: 0,
        guid: "".into(),
        keywords: "".into(),
        checked: false,
        weight: 0,
        drain: false,
        zone: None,
        here: None,
    }
}

async fn map(session: &mut Session, accepted: &Bundle, map: &Name, found: &mut Found) -> io::Result<()> {
    // what is the case with a pod is told to its process alone
    if map.as_ref() == maps::POD || accepted.in_file(map).next().is_none() {
        return Ok(());
    }
    let answers = session.exchange(&[Command::plain(&format!("show map {map}"))]).await?;
    let mut actual: BTreeMap<&str, &str> = answers.iter().flat_map(|answer| map_entries(answer)).collect();
    let mut missing: Vec<MapEntry> = Vec::new();
    for resource in accepted.in_file(map).filter_map(|key| accepted.get(key)) {
        let Content::MapEntries(entries) = &resource.content else { continue };
        for entry in entries {
            match actual.remove(entry.key.as_ref()) {
                None => missing.push(entry.clone()),
                Some(value) if value != entry.value.as_ref() => {
                    found.repairs.push(Step::SetMapEntry { map: map.clone(), entry: entry.clone() });
                }
                Some(_) => {}
            }
        }
    }
    if !missing.is_empty() {
        found.repairs.push(Step::AddMapEntries { map: map.clone(), entries: missing });
    }
    found.repairs.extend(actual.into_keys().map(|key| Step::DeleteMapEntry { map: map.clone(), key: key.into() }));
    Ok(())
}

async fn certificates(session: &mut Session, accepted: &Bundle, shared: &Shared, found: &mut Found) -> io::Result<()> {
    let loaded: Vec<&Name> = shared.process.lists.iter().filter(|list| accepted.in_file(list).next().is_some()).collect();
    let mut questions: Vec<Command> = loaded.iter().map(|list| Command::plain(&format!("show ssl crt-list -n {list}"))).collect();
    questions.push(Command::plain("show ssl cert"));
    let answers = session.exchange(&questions).await?;
    let present: BTreeSet<Name> = answers.last().map(|answer| names(answer).into_iter().collect()).unwrap_or_default();
    for path in shared.process.certificates.iter().filter(|path| !present.contains(*path)) {
        let key = ResourceKey::Certificate(path.clone());
        if let Some(Content::Certificate(pem)) = accepted.get(&key).map(|resource| &resource.content) {
            let pem = PrivateBytes::new(crate::haproxy::files::pem_lines(pem.expose()));
            found.repairs.push(Step::Certificate { path: path.clone(), pem, fresh: true, authority: false });
        }
    }
    for (list, answer) in loaded.into_iter().zip(&answers) {
        let mut actual = list_lines(answer);
        for resource in accepted.in_file(list).filter_map(|key| accepted.get(key)) {
            let Content::CertificateList(entries) = &resource.content else { continue };
            for entry in entries {
                match actual.iter().position(|line| is_line(line, entry)) {
                    Some(at) => _ = actual.remove(at),
                    None => found.repairs.push(Step::AddListEntry { list: list.clone(), entry: entry.clone() }),
                }
            }
        }
        for line in actual {
            let entry = ListEntry { file: line.file.into(), names: line.names.into_iter().map(Into::into).collect() };
            found.repairs.push(Step::DeleteListEntry { list: list.clone(), entry });
        }
    }
    Ok(())
}
