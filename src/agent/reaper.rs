//! Deletes what is out of use, beside the serialised applying: servers in maintenance once their last request
//! is answered, unpublished backends once they are empty. Nobody waits for it.

use super::apply::Shared;
use super::runtime::{Command, Master, Session};
use super::status::Status;
use super::stop;
use crate::haproxy::bundle::{BackendClass, Content, Name, ResourceKey};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, Notify, watch};

/// Deletions in one go: the applier waits for no more than these.
const AT_ONCE: usize = 32;
const SHORT: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(2);
/// A connection that is not used for this long is closed: it would keep a HAProxy there that stops.
const KEPT: Duration = Duration::from_secs(1);

/// Runs until it is aborted. `attached`: somebody else stops HAProxy.
pub(super) async fn run(shared: Arc<Mutex<Shared>>, wake: Arc<Notify>, master: Master, status: watch::Sender<Status>, attached: bool) {
    let mut session: Option<(u32, Session)> = None;
    let mut pause = SHORT;
    let mut after: Option<(Name, Name)> = None;
    loop {
        if attached && stop::stops_softly(&master.socket) {
            session = None;
            wake.notified().await;
            continue;
        }
        let left = match sweep(&shared, &master, &mut session, &mut after, &status).await {
            Ok(left) => left,
            Err(error) => {
                tracing::debug!(%error, "the reaper lost its connection");
                session = None;
                Left { any: true, progress: false }
            }
        };
        if !left.any {
            tokio::select! {
                () = wake.notified() => {}
                () = tokio::time::sleep(KEPT), if session.is_some() => session = None,
            }
            pause = SHORT;
            continue;
        }
        pause = if left.progress { SHORT } else { (pause * 2).min(LONG) };
        tokio::select! {
            () = wake.notified() => pause = SHORT,
            () = tokio::time::sleep(pause) => {}
        }
    }
}

struct Left {
    any: bool,
    progress: bool,
}

async fn sweep(
    shared: &Mutex<Shared>,
    master: &Master,
    session: &mut Option<(u32, Session)>,
    after: &mut Option<(Name, Name)>,
    status: &watch::Sender<Status>,
) -> std::io::Result<Left> {
    let (worker, idle) = {
        let shared = shared.lock().await;
        (shared.worker, !has_work(&shared))
    };
    let Some(worker) = worker.filter(|_| !idle) else { return Ok(Left { any: false, progress: false }) };
    if session.as_ref().is_none_or(|(pid, session)| *pid != worker || session.is_stale()) {
        *session = Some((worker, Session::open(&master.socket, worker, Duration::from_secs(2)).await?));
    }
    let Some((_, session)) = session else { return Ok(Left { any: true, progress: false }) };
    // held while deleting, so that what comes back meanwhile is either still there or known to be gone
    let mut shared = shared.lock().await;
    if shared.worker != Some(worker) {
        return Ok(Left { any: true, progress: true });
    }
    let servers = next_servers(&shared, after);
    let empty = empty_backends(&shared);
    let mut commands: Vec<Command> =
        servers.iter().map(|(backend, name)| Command::plain(&format!("del server {backend}/{name}"))).collect();
    commands.extend(empty.iter().map(|name| Command::plain(&format!("del backend {name}"))));
    let answers = session.exchange(&commands).await?;
    let mut progress = false;
    for (server, answer) in servers.iter().zip(&answers) {
        if answer.contains("Server deleted.") || answer.contains("No such server") || answer.contains("No such backend") {
            shared.process.lingering.servers.remove(server);
            progress = true;
        }
    }
    for (name, answer) in empty.iter().zip(&answers[servers.len()..]) {
        if answer.contains("Backend deleted.") || answer.contains("No such backend") {
            shared.process.lingering.resources.remove(&ResourceKey::Backend(name.clone()));
            progress = true;
        }
    }
    let any = has_work(&shared);
    drop(shared);
    status.send_if_modified(|status| {
        status.runtime_commands += commands.len() as u64;
        false
    });
    Ok(Left { any, progress })
}

fn has_work(shared: &Shared) -> bool {
    !shared.process.lingering.servers.is_empty() || !empty_backends(shared).is_empty()
}

/// The next ones after those of the sweep before: none keeps the others from their turn.
fn next_servers(shared: &Shared, after: &mut Option<(Name, Name)>) -> Vec<(Name, Name)> {
    let servers = &shared.process.lingering.servers;
    let start = after.take();
    let later = servers.keys().filter(|key| start.as_ref().is_none_or(|start| *key > start));
    let found: Vec<(Name, Name)> = later.take(AT_ONCE).cloned().collect();
    if found.len() == AT_ONCE {
        *after = found.last().cloned();
    }
    found
}

/// Unpublished backends without servers. Others (private ones, and all on releases that cannot) go with a reload.
fn empty_backends(shared: &Shared) -> Vec<Name> {
    let lingering = &shared.process.lingering;
    let mut found = Vec::new();
    for (key, resource) in &lingering.resources {
        let (ResourceKey::Backend(name), Content::Backend(head)) = (key, &resource.content) else { continue };
        let first = lingering.servers.range((name.clone(), Name::from(""))..).next();
        let has_servers = first.is_some_and(|((backend, _), _)| backend == name);
        if shared.dynamic_backends && matches!(head.class, BackendClass::Shaped { .. }) && !has_servers {
            found.push(name.clone());
        }
    }
    found
}
