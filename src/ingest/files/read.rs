//! One document into objects and what is wrong with them.

use crate::ingest::object::path::Path;
use crate::ingest::object::tree::{self, Content, Node, SyntaxError};
use crate::ingest::object::{self, Read};
use crate::report::{Diagnostic, ObjectRef};
use crate::world::Object;

/// Lists in lists, deeper than anybody writes.
const MAX_LISTS: usize = 4;

/// One object of a document.
#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) reference: ObjectRef,
    /// Its path in the document: empty, or `items[3]`.
    pub(super) pointer: Box<str>,
    /// Its line in the document, from 1.
    pub(super) line: u32,
    /// What it is; `None` if it cannot be used.
    pub(super) object: Option<Object>,
    pub(super) diagnostics: Vec<Diagnostic>,
}

/// What a document holds.
#[derive(Clone, Debug, Default)]
pub(super) struct Document {
    pub(super) items: Vec<Item>,
    /// It is no YAML: nothing is known about what it holds.
    pub(super) malformed: Option<SyntaxError>,
}

/// Reads one document. An object of more than `limit` bytes is refused.
pub(super) fn read(bytes: &[u8], limit: usize) -> Document {
    let text = match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => {
            let before = bytes.get(..error.valid_up_to()).unwrap_or_default();
            let line = u32::try_from(before.split(|byte| *byte == b'\n').count()).unwrap_or(u32::MAX);
            let malformed = Some(SyntaxError { line, column: 1, message: "this is no UTF-8".to_owned() });
            return Document { items: Vec::new(), malformed };
        }
    };
    match tree::parse(text) {
        Ok(nodes) => {
            let mut items = Vec::new();
            for node in nodes.iter().filter(|node| !node.is_null()) {
                collect(node, &Path::Root, limit, MAX_LISTS, &mut items);
            }
            items.shrink_to_fit();
            Document { items, malformed: None }
        }
        Err(error) => Document { items: Vec::new(), malformed: Some(error) },
    }
}

fn collect(node: &Node<'_>, path: &Path<'_>, limit: usize, lists: usize, items: &mut Vec<Item>) {
    let kind = node.get("kind").and_then(Node::text).unwrap_or_default();
    if lists > 0
        && kind.ends_with("List")
        && let Some(list) = node.get("items")
    {
        if let Content::List(nodes) = &list.content {
            let path = Path::Key(path, "items");
            for (index, node) in nodes.iter().enumerate() {
                collect(node, &Path::Index(&path, index), limit, lists - 1, items);
            }
            return;
        }
        if list.is_null() {
            return;
        }
    }
    let pointer = path.to_string();
    let Read { reference, object, diagnostics } = object::read(node, limit);
    items.push(Item { reference, pointer: pointer.into(), line: node.line, object, diagnostics });
}
