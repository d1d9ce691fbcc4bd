//! Objects from files: YAML and JSON, one or many to a file, directories, standard input.
//!
//! [`Files::load`] reads what changed since it was called before and returns the difference. Every fault is one
//! diagnostic on one object; what is beside it is used. An object that can no longer be read stays as it was
//! last good, and so do the objects of a file that is no YAML any more. What is *gone* from a readable file is
//! removed.
//!
//! The same object twice: the first in the order of inputs, paths and documents is used.

mod locate;
mod parallel;
mod read;
mod split;
mod state;
mod walk;
mod watch;

pub use watch::{HoldOff, Watch, WatchError, watch};

use super::Delta;
use crate::report::{Diagnostic, Kind, ObjectRef, codes};
use crate::world::Object;
use state::{FileKey, FileState, Place};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use walk::{Found, STANDARD_INPUT};

/// What is refused for its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one object as written.
    pub object_bytes: usize,
    /// Bytes of one file.
    pub file_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { object_bytes: 2_000_000, file_bytes: 1 << 30 }
    }
}

/// An input that cannot be read at all.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}: {source}", path.display())]
pub struct ReadError {
    /// Which.
    pub path: PathBuf,
    /// Why.
    pub source: io::Error,
}

/// Objects from files.
#[derive(Debug)]
pub struct Files {
    inputs: Vec<PathBuf>,
    limits: Limits,
    states: BTreeMap<FileKey, FileState>,
    /// Where each object is, in order.
    places: BTreeMap<ObjectRef, Vec<Place>>,
    /// What was returned by [`Files::load`].
    current: BTreeMap<ObjectRef, Object>,
    /// What is wrong with inputs and directories.
    faults: Vec<Diagnostic>,
    loaded: bool,
}

impl Files {
    /// The objects of `inputs`: files, directories, `-` for standard input. Nothing is read yet.
    pub fn new(inputs: Vec<PathBuf>, limits: Limits) -> Self {
        let (states, places, current) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { inputs, limits, states, places, current, faults: Vec::new(), loaded: false }
    }

    /// Reads what changed since the last call. An input that cannot be read is an error the first time; later
    /// its objects stay, and a diagnostic says so.
    pub fn load(&mut self) -> Result<Delta, ReadError> {
        self.load_with(&mut io::stdin())
    }

    /// As [`Files::load`], with `standard_input` for `-`.
    pub fn load_with(&mut self, standard_input: &mut dyn Read) -> Result<Delta, ReadError> {
        let mut present = BTreeSet::new();
        let mut stale = Vec::new();
        let mut faults = Vec::new();
        let mut found = Found::default();
        for (index, input) in self.inputs.iter().enumerate() {
            if input.as_os_str() == STANDARD_INPUT {
                let key = FileKey { input: index, path: Arc::from(Path::new("<stdin>")) };
                if !self.states.contains_key(&key) {
                    let mut bytes = Vec::new();
                    let failed = |source| ReadError { path: input.clone(), source };
                    standard_input.take(self.limits.file_bytes).read_to_end(&mut bytes).map_err(failed)?;
                    stale.push(state::Stale::text(key.clone(), bytes));
                }
                present.insert(key);
                continue;
            }
            found.add(input);
            for (path, stamp) in std::mem::take(&mut found.files) {
                let key = FileKey { input: index, path: path.into() };
                if self.states.get(&key).is_none_or(|file| file.stamp != Some(stamp)) {
                    stale.push(state::Stale::file(key.clone()));
                }
                present.insert(key);
            }
            for (path, source) in std::mem::take(&mut found.faults) {
                if !self.loaded && path == *input {
                    return Err(ReadError { path, source });
                }
                faults.push(unreadable(&path, &source));
                // What is below it cannot be seen now, which does not mean that it is gone.
                present.extend(self.states.keys().filter(|key| key.input == index && key.path.starts_with(&path)).cloned());
            }
        }
        self.faults = faults;
        self.loaded = true;
        Ok(self.take_over(&present, &stale))
    }

    fn take_over(&mut self, present: &BTreeSet<FileKey>, stale: &[state::Stale]) -> Delta {
        let mut affected = BTreeSet::new();
        let gone: Vec<FileKey> = self.states.keys().filter(|key| !present.contains(*key)).cloned().collect();
        for key in gone {
            if let Some(file) = self.states.remove(&key) {
                self.unlink(file.places(&key, None), &mut affected);
            }
        }
        let old = |key: &FileKey| self.states.get(key);
        for (key, fresh) in state::read_all(stale, old, self.limits) {
            // A file that vanished while it was read is gone, or will be back with the next change.
            let before = self.states.remove(&key);
            if let Some(before) = &before {
                self.unlink(before.places(&key, fresh.as_ref()), &mut affected);
            }
            if let Some(file) = fresh {
                self.link(file.places(&key, before.as_ref()), &mut affected);
                self.states.insert(key, file);
            }
        }
        self.difference(affected)
    }

    fn unlink(&mut self, places: Vec<(ObjectRef, Place)>, affected: &mut BTreeSet<ObjectRef>) {
        for (reference, place) in places {
            if let Some(places) = self.places.get_mut(&reference) {
                places.retain(|known| *known != place);
                if places.is_empty() {
                    self.places.remove(&reference);
                }
            }
            affected.insert(reference);
        }
    }

    fn link(&mut self, places: Vec<(ObjectRef, Place)>, affected: &mut BTreeSet<ObjectRef>) {
        for (reference, place) in places {
            // Nearly every object is in one place only.
            let places = self.places.entry(reference.clone()).or_insert_with(|| Vec::with_capacity(1));
            if let Err(at) = places.binary_search(&place) {
                places.insert(at, place);
            }
            affected.insert(reference);
        }
    }

    fn difference(&mut self, affected: BTreeSet<ObjectRef>) -> Delta {
        let mut delta = Delta::default();
        for reference in affected {
            match self.winner(&reference).map(|(_, object)| object.clone()) {
                Some(object) if self.current.get(&reference) == Some(&object) => {}
                Some(object) => {
                    self.current.insert(reference, object.clone());
                    delta.set.push(object);
                }
                None => {
                    if self.current.remove(&reference).is_some() {
                        delta.removed.push(reference);
                    }
                }
            }
        }
        delta
    }

    /// The first place of `reference` that has an object.
    fn winner(&self, reference: &ObjectRef) -> Option<(&Place, &Object)> {
        self.places.get(reference)?.iter().find_map(|place| {
            let file = self.states.get(&place.file)?;
            let object = if place.is_kept() { file.kept(reference) } else { file.object(place) };
            object.map(|object| (place, object))
        })
    }

    /// What is wrong with the files and the objects in them, in order.
    pub fn diagnostics(&self) -> Vec<Diagnostic> {
        let mut all = self.faults.clone();
        for file in self.states.values() {
            all.extend(file.diagnostics().cloned());
        }
        all.extend(self.duplicates().map(|(diagnostic, _)| diagnostic));
        all.sort();
        all
    }

    /// Every use of a name but the first, with its place.
    fn duplicates(&self) -> impl Iterator<Item = (Diagnostic, &Place)> {
        self.places.iter().filter(|(reference, places)| places.len() > 1 && !matches!(reference.kind, Kind::Other(_))).flat_map(
            move |(reference, places)| {
                let mut written = places.iter().filter(|place| !place.is_kept());
                let first = written.next();
                written.filter_map(move |place| Some((duplicate(reference, &self.spot(first?)?, &self.spot(place)?), place)))
            },
        )
    }

    /// File and line of a place.
    fn spot(&self, place: &Place) -> Option<String> {
        let line = self.states.get(&place.file)?.line(place)?;
        Some(format!("{}:{line}", place.file.path.display()))
    }
}

fn duplicate(reference: &ObjectRef, first: &str, this: &str) -> Diagnostic {
    let message = format!("{this} has {reference} again, which {first} has already; the first is used");
    Diagnostic::error(reference, "", codes::DUPLICATE_OBJECT, message, "remove one of them, or give it another name")
}

/// The reference under which faults of a file are told that belong to no object.
fn file_reference(path: &Path) -> ObjectRef {
    ObjectRef::new(Kind::Other("File".into()), "", path.display().to_string())
}

fn unreadable(path: &Path, error: &io::Error) -> Diagnostic {
    let message = format!("it cannot be read ({error}); objects that were read from it before stay");
    Diagnostic::error(&file_reference(path), "", codes::NOT_FOUND, message, "put it back, or start again without it")
}

#[cfg(test)]
mod tests;
