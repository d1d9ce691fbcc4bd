//! From an object and a field to file, line and column.
//!
//! Positions are not kept for everything that is read: the file is read again when somebody asks.

use super::Files;

use super::state::{FileKey, FileState, Place};
use crate::ingest::object::path::{Step, steps};
use crate::ingest::object::tree::{self, Content, Node};
use crate::report::{Diagnostic, Kind, Located, Location, ObjectRef, codes};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

/// Files that were read again to show places in them: each once, however many findings it has.
#[derive(Default)]
struct Texts(RefCell<BTreeMap<FileKey, Option<Arc<[u8]>>>>);

impl Texts {
    fn of(&self, key: &FileKey, file: &FileState) -> Option<Arc<[u8]>> {
        if let Some(known) = self.0.borrow().get(key) {
            return known.clone();
        }
        let read = file.text().cloned().or_else(|| fs::read(&key.path).ok().map(Into::into));
        self.0.borrow_mut().insert(key.clone(), read.clone());
        read
    }
}

/// A line and a column of a file, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) line: u32,
    pub(super) column: u32,
}

/// A key or value in a document.
struct Target {
    line: u32,
    column: u32,
    width: u32,
    /// How many steps of the path there are.
    steps: usize,
}

impl Files {
    /// Where `field` of `object` is (of the first, if it is there more than once). Where there is no such field,
    /// the nearest that contains it. `None` for an object that is in no file.
    pub fn locate(&self, object: &ObjectRef, field: &str) -> Option<Location> {
        self.find(object, field, &Texts::default())
    }

    /// The findings of the files and `others`, each once, with their places and in the order of these. Of many
    /// findings in one file it is read once.
    pub fn locate_all(&self, others: impl IntoIterator<Item = Diagnostic>) -> Vec<Located> {
        let texts = Texts::default();
        let place = |diagnostic| Located { location: self.find_diagnostic(&diagnostic, &texts), diagnostic };
        let mut located: Vec<Located> = self.diagnostics().into_iter().chain(others).map(place).collect();
        Located::sort(&mut located);
        located.dedup();
        located
    }

    fn find(&self, object: &ObjectRef, field: &str, texts: &Texts) -> Option<Location> {
        if let Some(places) = self.places.get(object)
            && let Some(place) = places.iter().find(|place| !place.is_kept())
        {
            return self.show(object, place, field, texts);
        }
        let of_file =
            |(key, file): (_, &FileState)| file.faults().iter().find(|(fault, _)| fault.object == *object).map(|(_, spot)| (key, *spot));
        if let Some((key, spot)) = self.states.iter().find_map(of_file) {
            return Some(self.show_spot(key, self.states.get(key)?, spot, texts));
        }
        let kept = self.places.get(object).and_then(|places| places.first());
        if let Some(place) = kept {
            let (_, file) = self.states.get_key_value(&place.file)?;
            return Some(self.show_spot(
                &place.file,
                file,
                file.faults().first().map_or(Spot { line: 1, column: 1 }, |(_, spot)| *spot),
                texts,
            ));
        }
        let (key, place) = self.states.iter().find_map(|(key, file)| {
            let (_, place) = file.nameless(key).find(|(item, _)| item.reference == *object)?;
            Some((key, place))
        })?;
        debug_assert_eq!(*key, place.file);
        self.show(object, &place, field, texts)
    }

    /// Where the object or field is that `diagnostic` is about: as [`Files::locate`], but a fault of a file is
    /// found in it, and of an object that is there more than once the one that is meant.
    pub fn locate_diagnostic(&self, diagnostic: &Diagnostic) -> Option<Location> {
        self.find_diagnostic(diagnostic, &Texts::default())
    }

    fn find_diagnostic(&self, diagnostic: &Diagnostic, texts: &Texts) -> Option<Location> {
        for (key, file) in &self.states {
            if let Some((_, spot)) = file.faults().iter().find(|(fault, _)| fault == diagnostic) {
                return Some(self.show_spot(key, file, *spot, texts));
            }
        }
        if diagnostic.code == codes::DUPLICATE_OBJECT {
            let (_, place) = self.duplicates().find(|(duplicate, _)| duplicate == diagnostic)?;
            return self.show(&diagnostic.object, place, &diagnostic.field, texts);
        }
        // Of several objects of the same name it is the one that was told so.
        let told = self.places.get(&diagnostic.object).into_iter().flatten().find(|place| {
            let item = self.states.get(&place.file).and_then(|file| file.item(place));
            item.is_some_and(|item| item.diagnostics.contains(diagnostic))
        });
        match told {
            Some(place) => self.show(&diagnostic.object, place, &diagnostic.field, texts),
            None => self.find(&diagnostic.object, &diagnostic.field, texts),
        }
    }

    fn show(&self, object: &ObjectRef, place: &Place, field: &str, texts: &Texts) -> Option<Location> {
        let file = self.states.get(&place.file)?;
        let (piece, item) = (file.piece(place)?, file.item(place)?);
        let start = Spot { line: piece.line + item.line - 1, column: 1 };
        let Some(bytes) = texts.of(&place.file, file) else { return Some(self.show_spot(&place.file, file, start, texts)) };
        let text = bytes.get(piece.range.clone()).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default();
        let nodes = tree::parse(text).unwrap_or_default();
        let path: Vec<Step> = steps(&item.pointer).into_iter().chain(steps(field)).collect();
        // Few files have more than one tree in a piece; then the line says which.
        let root = nodes.iter().rev().find(|node| node.line <= item.line).or(nodes.first());
        let Some(mut target) = root.map(|root| walk(root, &path)) else { return Some(self.show_spot(&place.file, file, start, texts)) };
        // Content of a Secret is called data wherever it was written, and stringData wins.
        if let (Kind::Secret, Some(root), Some(rest)) = (&object.kind, root, field.strip_prefix("data[")) {
            let inner: Vec<Step> = steps(&item.pointer).into_iter().chain(steps(&format!("stringData[{rest}"))).collect();
            let written = walk(root, &inner);
            if written.steps == inner.len() {
                target = written;
            }
        }
        let mut line = line_of(text, target.line);
        if object.kind == Kind::Secret && (field.starts_with("data") || field.starts_with("stringData")) {
            line = line.split_once(':').map_or_else(|| "…".to_owned(), |(key, _)| format!("{key}: …"));
        }
        let width = usize::try_from(target.width).unwrap_or(1);
        let visible = line.chars().count().saturating_sub(usize::try_from(target.column).unwrap_or(1).saturating_sub(1)).max(1);
        Some(Location {
            file: place.file.path.display().to_string(),
            line: piece.line + target.line - 1,
            column: target.column,
            text: line,
            width: width.clamp(1, visible),
        })
    }

    #[allow(clippy::unused_self)] // reads as its siblings do
    fn show_spot(&self, key: &FileKey, file: &FileState, spot: Spot, texts: &Texts) -> Location {
        let bytes = texts.of(key, file).unwrap_or_default();
        let text = line_of(&String::from_utf8_lossy(&bytes), spot.line);
        Location { file: key.path.display().to_string(), line: spot.line, column: spot.column, text: without_value(&text), width: 1 }
    }
}

fn line_of(text: &str, line: u32) -> String {
    let index = usize::try_from(line.saturating_sub(1)).unwrap_or_default();
    text.lines().nth(index).unwrap_or_default().chars().map(|character| if character.is_control() { ' ' } else { character }).collect()
}

/// A line without its value where that may be private: that of a Secret, or of a document that cannot be read.
fn without_value(line: &str) -> String {
    let Some((key, value)) = line.split_once(": ") else {
        // Inside a block there are no keys: a certificate or key would be shown.
        let is_block = !line.trim_end().ends_with(':') && !line.trim_start().starts_with('-') && line.trim().len() > 40;
        return if is_block { "…".to_owned() } else { line.to_owned() };
    };
    if value.len() > 40 { format!("{key}: …") } else { line.to_owned() }
}

/// The key or value at `path`, or what contains it.
fn walk(root: &Node<'_>, path: &[Step]) -> Target {
    let mut node = root;
    let mut target = Target { line: root.line, column: root.column, width: 1, steps: 0 };
    for (at, step) in path.iter().enumerate() {
        match step {
            Step::Index(index) => {
                let Content::List(items) = &node.content else { break };
                let Some(next) = items.get(*index) else { break };
                node = next;
                target = Target {
                    line: next.line,
                    column: next.column,
                    width: if next.text().is_some() { next.width } else { 1 },
                    steps: at + 1,
                };
            }
            Step::Key(key) => {
                let Some((name, value)) = node.entry(key) else { break };
                node = value;
                let is_last = at + 1 == path.len();
                let shown = if is_last && value.text().is_some_and(|text| !text.is_empty()) { value } else { name };
                target = Target { line: shown.line, column: shown.column, width: shown.width, steps: at + 1 };
            }
        }
    }
    target
}
