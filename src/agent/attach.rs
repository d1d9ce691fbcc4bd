//! A HAProxy that somebody else starts and stops, such as the kubelet: known by its master socket alone.
//!
//! Process ids mean nothing here (it lives in another namespace, where the master is always 1), so nothing is ever
//! signalled. A master that was just started says that it made no reload, and it binds its socket anew, which gives
//! the file another number: together these tell a restart from a reload, whoever asked for it. A start that fails
//! leaves a socket behind that nobody listens to.

use super::runtime::{Master, Processes, Session};
use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// How often the socket is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// Looks in vain until the master counts as gone: while it executes itself for a reload it does not answer for 0.1 s.
const IN_VAIN: u32 = 3;
/// A worker that does not answer within this is still loading.
const WORKER: Duration = Duration::from_millis(500);

/// Names one binding of a master socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SocketId {
    inode: u64,
    changed: (i64, i64),
}

impl SocketId {
    /// The socket that is at `path` now.
    pub(crate) fn of(path: &Path) -> Option<Self> {
        let found = std::fs::metadata(path).ok()?;
        Some(Self { inode: found.ino(), changed: (found.ctime(), found.ctime_nsec()) })
    }
}

impl std::fmt::Display for SocketId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}.{:09}", self.inode, self.changed.0, self.changed.1)
    }
}

/// What happened to it.
#[derive(Debug)]
pub(crate) enum Sighting {
    /// It is there, and this worker serves.
    Came(Session, u32),
    /// It is not there any more, or another one is.
    Went(&'static str),
    /// It was started in vain.
    Failed,
}

/// A HAProxy of somebody else.
#[derive(Debug)]
pub(crate) struct Attached {
    master: Master,
    /// The binding that was seen last while it was up.
    up: Option<(SocketId, u32)>,
    /// Bindings that nobody listens to any more: of those that served, and of starts that failed.
    dead: BTreeSet<SocketId>,
    vain: u32,
}

impl Attached {
    pub(crate) fn new(master: Master) -> Self {
        Self { master, up: None, dead: BTreeSet::new(), vain: 0 }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.up.is_some()
    }

    /// Waits until it goes or comes. Nothing is lost if that is given up in between.
    pub(crate) async fn sight(&mut self) -> Sighting {
        loop {
            tokio::time::sleep(LOOK).await;
            let before = SocketId::of(&self.master.socket);
            let answer = self.master.processes().await;
            // what answered has to be what is there
            let seen = SocketId::of(&self.master.socket).filter(|seen| before == Some(*seen));
            let sighting = match (self.up, answer, seen) {
                (Some(up), Ok(found), Some(seen)) if found.master.is_some() => self.still_there(up, seen, &found),
                (Some(_), ..) => self.silent(seen),
                (None, Ok(found), Some(seen)) if found.master.is_some() => self.coming(seen, &found).await,
                (None, Err(error), Some(seen)) if error.kind() == ErrorKind::ConnectionRefused => self.refused(seen),
                (None, ..) => None,
            };
            if let Some(sighting) = sighting {
                return sighting;
            }
        }
    }

    fn still_there(&mut self, (known, reloads): (SocketId, u32), seen: SocketId, found: &Processes) -> Option<Sighting> {
        self.vain = 0;
        if seen != known && found.reloads < reloads.max(1) {
            self.went(known);
            return Some(Sighting::Went("another one was started"));
        }
        self.up = Some((seen, found.reloads));
        None
    }

    fn silent(&mut self, seen: Option<SocketId>) -> Option<Sighting> {
        self.vain += 1;
        if self.vain < IN_VAIN {
            return None;
        }
        if let Some((known, _)) = self.up {
            self.went(known);
        }
        // a reload binds as well: this is the last thing of the one that went, or else of a start that fails
        self.dead.extend(seen);
        Some(Sighting::Went("its master does not answer"))
    }

    fn went(&mut self, known: SocketId) {
        self.up = None;
        self.vain = 0;
        self.dead = BTreeSet::from([known]);
    }

    async fn coming(&mut self, seen: SocketId, found: &Processes) -> Option<Sighting> {
        self.vain = 0;
        let worker = found.serving()?;
        let session = Session::open(&self.master.socket, worker, WORKER).await.ok()?;
        self.up = Some((seen, found.reloads));
        Some(Sighting::Came(session, worker))
    }

    /// Nobody listens at `seen`, or not yet.
    fn refused(&mut self, seen: SocketId) -> Option<Sighting> {
        if self.dead.contains(&seen) {
            return None;
        }
        self.vain += 1;
        if self.vain < IN_VAIN {
            return None;
        }
        self.vain = 0;
        self.dead.insert(seen);
        Some(Sighting::Failed)
    }

    /// Whether there is one before the first sight of it. What is left of an older one is no start that fails.
    pub(crate) async fn look(&mut self) -> bool {
        let up = self.master.processes().await.is_ok_and(|found| found.master.is_some());
        if !up {
            self.dead.extend(SocketId::of(&self.master.socket));
        }
        up
    }
}
