//! Tells when a file may have changed.
//!
//! Directories are watched, not files: editors replace a file by renaming another over it, Kubernetes swaps a
//! link. Which directories that are is found out again after every change of names, so that links and
//! directories may come, go and come back.

use super::walk::{Found, STANDARD_INPUT};
use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind};
use notify::{Event, RecommendedWatcher, RecursiveMode, Watcher};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// How long a change is held back, so that one that takes several steps is told once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HoldOff {
    /// A change is told when nothing happened for this long, and no file is being written.
    pub quiet: Duration,
    /// It is told after this long in any case.
    pub at_most: Duration,
}

impl Default for HoldOff {
    fn default() -> Self {
        Self { quiet: Duration::from_millis(20), at_most: Duration::from_millis(500) }
    }
}

/// Why nothing can be watched.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// The system's watcher does not start.
    #[error("cannot watch files: {0}")]
    Watcher(#[from] notify::Error),
    /// The thread does not start.
    #[error("cannot watch files: {0}")]
    Thread(#[from] std::io::Error),
}

/// Tells changes until it is dropped.
#[derive(Debug)]
pub struct Watch {
    ticks: tokio::sync::mpsc::Receiver<()>,
    /// Ends the thread when dropped.
    end: mpsc::Sender<Message>,
}

impl Watch {
    /// Waits until something may have changed since the last call. `None`: watching has failed for good.
    pub async fn changed(&mut self) -> Option<()> {
        self.ticks.recv().await
    }

    /// As [`Watch::changed`], for callers without a runtime.
    pub fn blocking_changed(&mut self) -> Option<()> {
        self.ticks.blocking_recv()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // The thread may be gone already.
        let _ = self.end.send(Message::End);
    }
}

#[derive(Debug)]
enum Message {
    Event(notify::Result<Event>),
    End,
}

/// Watches `inputs` (what [`Files::new`](super::Files::new) takes). What changes after this returns is told.
pub fn watch(inputs: &[PathBuf], hold_off: HoldOff) -> Result<Watch, WatchError> {
    let (events, receiver) = mpsc::channel();
    let sender = events.clone();
    // The receiver ends before the watcher only when nobody listens any more.
    let watcher = notify::recommended_watcher(move |event| drop(sender.send(Message::Event(event))))?;
    let (ticker, ticks) = tokio::sync::mpsc::channel(1);
    let inputs = inputs.iter().filter(|input| input.as_os_str() != STANDARD_INPUT).cloned().collect();
    let mut directories = Watched { inputs, watcher, directories: BTreeMap::new() };
    directories.refresh(&Lost::default());
    thread::Builder::new().name("watch-files".to_owned()).spawn(move || run(&mut directories, &receiver, &ticker, hold_off))?;
    Ok(Watch { ticks, end: events })
}

fn run(watched: &mut Watched, events: &mpsc::Receiver<Message>, ticker: &tokio::sync::mpsc::Sender<()>, hold_off: HoldOff) {
    while let Ok(Message::Event(first)) = events.recv() {
        let mut burst = Burst::default();
        burst.add(first);
        let end = Instant::now() + hold_off.at_most;
        while burst.matters {
            let left = end.saturating_duration_since(Instant::now());
            let wait = if burst.writing.is_empty() { hold_off.quiet.min(left) } else { left };
            match events.recv_timeout(wait) {
                Ok(Message::Event(event)) => burst.add(event),
                Err(RecvTimeoutError::Timeout) => break,
                Ok(Message::End) | Err(RecvTimeoutError::Disconnected) => return,
            }
            if Instant::now() >= end {
                break;
            }
        }
        if !burst.matters {
            continue;
        }
        if burst.names {
            watched.refresh(&burst.lost);
        }
        // A tick that was not taken yet stands for this change, too.
        if let Err(tokio::sync::mpsc::error::TrySendError::Closed(())) = ticker.try_send(()) {
            return;
        }
    }
}

/// Events that are told together.
#[derive(Default)]
struct Burst {
    /// Whether anything may have changed.
    matters: bool,
    /// Whether names may have changed: directories must be looked at again.
    names: bool,
    /// Files that were opened for writing and not closed yet.
    writing: BTreeSet<PathBuf>,
    lost: Lost,
}

/// What is no longer watched, whatever stands at its path now: its inode number may be used again.
#[derive(Default)]
struct Lost {
    everything: bool,
    paths: BTreeSet<PathBuf>,
}

impl Burst {
    fn add(&mut self, event: notify::Result<Event>) {
        let Ok(event) = event else {
            // Events were lost: look at everything.
            (self.matters, self.names, self.lost.everything) = (true, true, true);
            return;
        };
        if event.need_rescan() {
            (self.matters, self.names, self.lost.everything) = (true, true, true);
        }
        match event.kind {
            EventKind::Access(AccessKind::Close(AccessMode::Write)) => {
                self.matters = true;
                for path in &event.paths {
                    self.writing.remove(path);
                }
            }
            EventKind::Access(_) => {}
            EventKind::Modify(ModifyKind::Data(_)) => {
                self.matters = true;
                self.writing.extend(event.paths);
            }
            EventKind::Modify(ModifyKind::Metadata(_)) => self.matters = true,
            EventKind::Any | EventKind::Create(_) | EventKind::Modify(_) | EventKind::Remove(_) | EventKind::Other => {
                (self.matters, self.names) = (true, true);
                for path in event.paths {
                    self.writing.remove(&path);
                    if matches!(event.kind, EventKind::Remove(_)) {
                        self.lost.paths.insert(path);
                    }
                }
            }
        }
    }
}

struct Watched {
    inputs: Vec<PathBuf>,
    watcher: RecommendedWatcher,
    /// Watched directories, with what tells one from another of the same name.
    directories: BTreeMap<PathBuf, (u64, u64)>,
}

impl Watched {
    /// Watches what the inputs lead to now. New directories may have been filled before they were watched, so
    /// this comes before the tick that makes everybody look.
    fn refresh(&mut self, lost: &Lost) {
        self.directories.retain(|path, _| {
            let stays = !lost.everything && !lost.paths.contains(path);
            if !stays {
                // The system forgets a directory that is gone by itself.
                let _ = self.watcher.unwatch(path);
            }
            stays
        });
        // Directories that appear while others are added are found by the second look.
        for _ in 0..4 {
            let wanted = self.wanted();
            let gone: Vec<PathBuf> =
                self.directories.iter().filter(|(path, id)| wanted.get(*path) != Some(id)).map(|(path, _)| path.clone()).collect();
            for path in gone {
                self.directories.remove(&path);
                let _ = self.watcher.unwatch(&path);
            }
            let new: Vec<_> = wanted.into_iter().filter(|(path, _)| !self.directories.contains_key(path)).collect();
            if new.is_empty() {
                return;
            }
            for (path, id) in new {
                if let Err(error) = self.watcher.watch(&path, RecursiveMode::NonRecursive) {
                    tracing::warn!(path = %path.display(), %error, "a directory cannot be watched; its changes are seen late");
                }
                self.directories.insert(path, id);
            }
        }
    }

    fn wanted(&self) -> BTreeMap<PathBuf, (u64, u64)> {
        let mut found = Found::default();
        for input in &self.inputs {
            found.add(input);
        }
        let mut wanted = BTreeMap::new();
        for directory in found.directories {
            // Events name absolute paths.
            let Ok(directory) = std::path::absolute(&directory) else { continue };
            // Of what is not there the nearest that is, to see it come.
            let existing = directory.ancestors().find_map(|ancestor| {
                fs::metadata(ancestor).ok().filter(fs::Metadata::is_dir).map(|metadata| (ancestor.to_owned(), metadata))
            });
            if let Some((path, metadata)) = existing {
                wanted.insert(path, (metadata.dev(), metadata.ino()));
            }
        }
        wanted
    }
}
