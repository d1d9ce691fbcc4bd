//! What is remembered of each file.

use super::locate::Spot;
use super::read::{self, Document, Item};
use super::split::{self, Piece};
use super::walk::Stamp;
use super::{Limits, file_reference, parallel};
use crate::report::{Diagnostic, ObjectRef, codes};
use crate::world::Object;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

/// Names a file. Its order is the order in which files count.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileKey {
    /// Which input it belongs to.
    pub(super) input: usize,
    pub(super) path: Arc<Path>,
}

/// Where an object is.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    pub(super) file: FileKey,
    document: u32,
    item: u32,
}

/// The document of objects that a file had when it could last be read.
const KEPT: u32 = u32::MAX;

impl Place {
    /// Whether it is nowhere in the file any more.
    pub(super) fn is_kept(&self) -> bool {
        self.document == KEPT
    }
}

/// A document as last read.
#[derive(Debug)]
struct Part {
    piece: Piece,
    hash: blake3::Hash,
    content: Arc<Document>,
}

/// What is remembered of a file.
#[derive(Debug, Default)]
pub(super) struct FileState {
    /// When nothing of this changed, neither did the file; `None`: look again in any case.
    pub(super) stamp: Option<Stamp>,
    parts: Vec<Part>,
    /// Objects that cannot be read at present, as they were.
    kept: BTreeMap<ObjectRef, Object>,
    /// What is wrong with the file as a whole.
    faults: Vec<(Diagnostic, Spot)>,
    /// The content, where it cannot be read again (standard input).
    text: Option<Arc<[u8]>>,
}

/// A file to be read.
pub(super) struct Stale {
    key: FileKey,
    text: Option<Arc<[u8]>>,
}

impl Stale {
    pub(super) fn file(key: FileKey) -> Self {
        Self { key, text: None }
    }

    pub(super) fn text(key: FileKey, text: Vec<u8>) -> Self {
        Self { key, text: Some(text.into()) }
    }
}

/// A file as it is now.
struct Raw {
    bytes: Arc<[u8]>,
    stamp: Option<Stamp>,
    pieces: Vec<(Piece, blake3::Hash)>,
}

/// Files whose bytes are in memory at a time.
const BATCH: usize = 512;

/// Reads `stale` files. Documents that `old` has already are not read again. `None` for a file that is gone.
pub(super) fn read_all<'s>(
    stale: &[Stale],
    old: impl Fn(&FileKey) -> Option<&'s FileState>,
    limits: Limits,
) -> Vec<(FileKey, Option<FileState>)> {
    stale.chunks(BATCH).flat_map(|batch| read_batch(batch, &old, limits)).collect()
}

fn read_batch<'s>(stale: &[Stale], old: &impl Fn(&FileKey) -> Option<&'s FileState>, limits: Limits) -> Vec<(FileKey, Option<FileState>)> {
    let raw = parallel::map(stale, |stale| raw(stale, limits));
    let mut known: Vec<HashMap<blake3::Hash, Arc<Document>>> = Vec::with_capacity(stale.len());
    let mut jobs = Vec::new();
    for (at, (stale, raw)) in stale.iter().zip(&raw).enumerate() {
        let parts = old(&stale.key).map(|old| old.parts.as_slice()).unwrap_or_default();
        let documents: HashMap<_, _> = parts.iter().map(|part| (part.hash, part.content.clone())).collect();
        if let Ok(raw) = raw {
            let fresh = raw.pieces.iter().filter(|(_, hash)| !documents.contains_key(hash));
            jobs.extend(fresh.map(|(piece, hash)| (at, *hash, raw.bytes.get(piece.range.clone()).unwrap_or_default())));
        }
        known.push(documents);
    }
    let documents = parallel::map(&jobs, |(_, _, bytes)| Arc::new(read::read(bytes, limits.object_bytes)));
    for ((at, hash, _), document) in jobs.iter().zip(documents) {
        if let Some(known) = known.get_mut(*at) {
            known.insert(*hash, document);
        }
    }
    let files = raw.iter().zip(&known).zip(stale);
    let states: Vec<Option<FileState>> = files.map(|((raw, known), stale)| state(raw.as_ref(), known, stale, old(&stale.key))).collect();
    stale.iter().map(|stale| stale.key.clone()).zip(states).collect()
}

fn raw(stale: &Stale, limits: Limits) -> io::Result<Raw> {
    let (bytes, stamp): (Arc<[u8]>, _) = if let Some(text) = &stale.text {
        (text.clone(), None)
    } else {
        let file = File::open(&stale.key.path)?;
        let metadata = file.metadata()?;
        if metadata.len() > limits.file_bytes {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {} bytes", limits.file_bytes)));
        }
        let stamp = Stamp::is_settled(&metadata).then(|| Stamp::of(&metadata));
        let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or_default());
        file.take(limits.file_bytes).read_to_end(&mut bytes)?;
        (bytes.into(), stamp)
    };
    let pieces = split::split(&bytes).into_iter();
    let pieces = pieces.map(|piece| (piece.clone(), blake3::hash(bytes.get(piece.range).unwrap_or_default()))).collect();
    Ok(Raw { bytes, stamp, pieces })
}

fn state(
    raw: Result<&Raw, &io::Error>,
    known: &HashMap<blake3::Hash, Arc<Document>>,
    stale: &Stale,
    old: Option<&FileState>,
) -> Option<FileState> {
    let path = &stale.key.path;
    let mut now = FileState::default();
    let mut lost_sight = false;
    match raw {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            lost_sight = true;
            now.faults.push((super::unreadable(path, error), Spot { line: 1, column: 1 }));
        }
        Ok(raw) => {
            now.stamp = raw.stamp;
            now.text.clone_from(&stale.text);
            for (piece, hash) in &raw.pieces {
                let Some(content) = known.get(hash) else { continue };
                now.parts.push(Part { piece: piece.clone(), hash: *hash, content: content.clone() });
            }
        }
    }
    for part in &now.parts {
        if let Some(error) = &part.content.malformed {
            lost_sight = true;
            let spot = Spot { line: part.piece.line + error.line - 1, column: error.column };
            let what = error.message.trim_end_matches('.');
            let message = format!("line {}, column {}: {what}; objects that were read before stay", spot.line, spot.column);
            let help = "correct the text; other documents of the file are used";
            now.faults.push((Diagnostic::error(&file_reference(path), "", codes::SYNTAX, message, help), spot));
        }
    }
    if let Some(old) = old {
        now.keep(old, lost_sight);
    }
    Some(now)
}

impl FileState {
    fn items(&self) -> impl Iterator<Item = &Item> {
        self.parts.iter().flat_map(|part| &part.content.items)
    }

    /// Keeps those objects of `old` that cannot be read now: those that are there but faulty, and when not all
    /// of the file can be read (`lost_sight`) also those that are nowhere to be seen.
    fn keep(&mut self, old: &FileState, lost_sight: bool) {
        let good: BTreeSet<&ObjectRef> = self.items().filter(|item| item.object.is_some()).map(|item| &item.reference).collect();
        let faulty: BTreeSet<&ObjectRef> = self.items().filter(|item| item.object.is_none()).map(|item| &item.reference).collect();
        let before = old.items().filter_map(|item| Some((&item.reference, item.object.as_ref()?))).chain(&old.kept);
        let mut kept = BTreeMap::new();
        for (reference, object) in before {
            if !good.contains(reference) && (lost_sight || faulty.contains(reference)) {
                kept.entry(reference.clone()).or_insert_with(|| object.clone());
            }
        }
        self.kept = kept;
    }

    /// Every object with its place, but for documents that `other` has just so in the same place.
    pub(super) fn places(&self, key: &FileKey, other: Option<&Self>) -> Vec<(ObjectRef, Place)> {
        let place = |document, item| Place { file: key.clone(), document: number(document), item: number(item) };
        let mut places = Vec::new();
        for (document, part) in self.parts.iter().enumerate() {
            if other.and_then(|other| other.parts.get(document)).is_some_and(|other| Arc::ptr_eq(&other.content, &part.content)) {
                continue;
            }
            places.extend(part.content.items.iter().enumerate().map(|(at, item)| (item.reference.clone(), place(document, at))));
        }
        let kept = |reference: &ObjectRef| (reference.clone(), Place { file: key.clone(), document: KEPT, item: 0 });
        places.extend(self.kept.keys().map(kept));
        places.retain(|(reference, place)| place.is_kept() || !reference.name.is_empty());
        places
    }

    /// The object at a place of this file.
    pub(super) fn object(&self, place: &Place) -> Option<&Object> {
        self.item(place)?.object.as_ref()
    }

    /// The object of this name that is kept.
    pub(super) fn kept(&self, reference: &ObjectRef) -> Option<&Object> {
        self.kept.get(reference)
    }

    pub(super) fn item(&self, place: &Place) -> Option<&Item> {
        self.parts.get(place.document as usize)?.content.items.get(place.item as usize)
    }

    /// Which document a place is in, and the line that it starts on.
    pub(super) fn piece(&self, place: &Place) -> Option<&Piece> {
        self.parts.get(place.document as usize).map(|part| &part.piece)
    }

    /// The line of a place.
    pub(super) fn line(&self, place: &Place) -> Option<u32> {
        Some(self.piece(place)?.line + self.item(place)?.line - 1)
    }

    /// What is wrong with the file and its objects.
    pub(super) fn diagnostics(&self) -> impl Iterator<Item = &Diagnostic> {
        self.faults.iter().map(|(diagnostic, _)| diagnostic).chain(self.items().flat_map(|item| &item.diagnostics))
    }

    pub(super) fn faults(&self) -> &[(Diagnostic, Spot)] {
        &self.faults
    }

    pub(super) fn text(&self) -> Option<&Arc<[u8]>> {
        self.text.as_ref()
    }

    /// Every item without a name, with its place: what `places` leaves out.
    pub(super) fn nameless(&self, key: &FileKey) -> impl Iterator<Item = (&Item, Place)> {
        self.parts.iter().enumerate().flat_map(move |(document, part)| {
            let place = move |item| Place { file: key.clone(), document: number(document), item: number(item) };
            part.content
                .items
                .iter()
                .enumerate()
                .filter(|(_, item)| item.reference.name.is_empty())
                .map(move |(at, item)| (item, place(at)))
        })
    }
}

fn number(at: usize) -> u32 {
    u32::try_from(at).unwrap_or(KEPT - 1)
}
