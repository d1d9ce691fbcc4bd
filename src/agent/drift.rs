//! Compares what runs with what should and repairs the difference: nobody else is meant to change it, but
//! somebody with the socket or a signal can.

use super::apply::{Applier, Base, Shared};
use super::execute::{is_line, repair};
use super::runtime::{Command, Session, list_lines, map_entries, names, server_states};
use crate::haproxy::bundle::{Bundle, Content, ListEntry, MapEntry, Name, ResourceKey, Server};
use crate::haproxy::files::effective_weight;
use crate::haproxy::plan::Step;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

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
        if self.base != Base::Accepted {
            return 0;
        }
        match self.compare().await {
            Ok(found) => found,
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
        let mut drifted = 0;
        // after a failed reload HAProxy lists the worker that serves among the old ones
        if let Some(worker) = processes.worker.filter(|worker| *worker != self.worker) {
            tracing::warn!(worker, "somebody else reloaded HAProxy");
            drifted += 1;
            self.worker = worker;
            self.workers = processes.old.iter().copied().chain([worker]).collect();
            self.session = None;
            self.look_inside().await?;
            self.relay(&processes.old).await;
        }
        self.connect().await?;
        let shared = self.shared.clone();
        let mut shared = shared.lock().await;
        let Some(session) = &mut self.session else { return Err(io::ErrorKind::NotConnected.into()) };
        let mut found = Found::default();
        servers(session, &self.accepted, &shared, &mut found).await?;
        maps(session, &self.accepted, &shared, &mut found).await?;
        certificates(session, &self.accepted, &shared, &mut found).await?;
        drifted += found.repairs.len() + found.missing.len();
        for step in &found.repairs {
            tracing::warn!(?step, "HAProxy is not as it should be");
        }
        let outcome = repair(session, &found.repairs, &mut shared.process, self.capabilities.max_payload).await?;
        drop(shared);
        self.count(outcome.commands);
        for failure in &outcome.failed {
            tracing::error!(failure.message, "a repair failed");
        }
        let mut again = found.missing;
        if !outcome.failed.is_empty() {
            again.push(ResourceKey::Section("repair".into()));
        }
        if again.is_empty() {
            self.reap.notify_one();
            return Ok(drifted);
        }
        for key in again {
            self.forced.insert(key.clone(), "it vanished from the running process".to_owned());
            self.waiting.insert(key);
        }
        self.reasons = vec!["the running process is not as it should be".to_owned()];
        self.reload().await;
        Ok(drifted)
    }
}

async fn servers(session: &mut Session, accepted: &Bundle, shared: &Shared, found: &mut Found) -> io::Result<()> {
    let questions = [Command::plain("show servers state"), Command::plain("show backend")];
    let answers = session.exchange(&questions).await?;
    let backends: BTreeSet<&str> = answers[1].lines().collect();
    let mut actual: BTreeMap<(&str, &str), _> =
        server_states(&answers[0]).into_iter().map(|state| ((state.backend, state.name), state)).collect();
    for resource in accepted.resources() {
        let (ResourceKey::Servers(backend), Content::Servers(servers)) = (&resource.key, &resource.content) else { continue };
        if !backends.contains(backend.as_ref()) {
            found.missing.push(ResourceKey::Backend(backend.clone()));
            continue;
        }
        for server in servers {
            let step = |step: fn(Name, Server) -> Step| step(backend.clone(), server.clone());
            match actual.remove(&(backend.as_ref(), server.name.as_ref())) {
                None => found.repairs.push(step(|backend, server| Step::AddServer { backend, server })),
                Some(state) if state.maintenance => found.repairs.push(step(|backend, server| Step::ReturnServer { backend, server })),
                Some(state) if state.weight != effective_weight(server).to_string() => {
                    found.repairs.push(step(|backend, server| Step::SetWeight { backend, server }));
                }
                Some(_) => {}
            }
        }
    }
    for ((backend, name), state) in actual {
        let (backend, name): (Name, Name) = (backend.into(), name.into());
        let known = shared.process.lingering.servers.get(&(backend.clone(), name.clone()));
        let ours = known.is_some() || accepted.get(&ResourceKey::Backend(backend.clone())).is_some();
        if !ours || (known.is_some() && state.maintenance) {
            continue;
        }
        let server = known.cloned().unwrap_or_else(|| foreign(&name, state.address, state.port));
        found.repairs.push(Step::RetireServer { backend, server });
    }
    Ok(())
}

/// A server that nobody here has added.
fn foreign(name: &Name, address: &str, port: &str) -> Server {
    let address = address.parse().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    let address = SocketAddr::new(address, port.parse().unwrap_or_default());
    Server { name: name.clone(), address, id: 0, guid: "".into(), keywords: "".into(), checked: false, weight: 0, drain: false }
}

async fn maps(session: &mut Session, accepted: &Bundle, shared: &Shared, found: &mut Found) -> io::Result<()> {
    let loaded: Vec<&Name> = shared.process.maps.iter().filter(|map| accepted.in_file(map).next().is_some()).collect();
    let questions: Vec<Command> = loaded.iter().map(|map| Command::plain(&format!("show map {map}"))).collect();
    let answers = session.exchange(&questions).await?;
    for (map, answer) in loaded.into_iter().zip(&answers) {
        let mut actual: BTreeMap<&str, &str> = map_entries(answer).into_iter().collect();
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
        let extra = actual.into_keys();
        found.repairs.extend(extra.map(|key| Step::DeleteMapEntry { map: map.clone(), key: key.into() }));
    }
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
            let pem = crate::report::PrivateBytes::new(crate::haproxy::files::pem_lines(pem.expose()));
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
