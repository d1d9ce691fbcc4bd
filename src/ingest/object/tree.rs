//! One YAML (or JSON) document as a tree that knows the position of everything in it.
//!
//! Read with the strictness of kubectl: no key twice, plain `true` and `12` are no texts. The same tree feeds
//! the typed objects and finds the place of a diagnostic.

use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, Span, Tag};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// More nodes than this in one document is an attack (aliases of aliases) or no Kubernetes object.
const MAX_NODES: usize = 4_000_000;
/// Deeper nesting than this is no Kubernetes object.
const MAX_DEPTH: usize = 100;

/// A value and where it is.
#[derive(Clone, Debug)]
pub(in crate::ingest) struct Node<'a> {
    pub(in crate::ingest) content: Content<'a>,
    /// Line in the document, from 1.
    pub(in crate::ingest) line: u32,
    /// Column in characters, from 1.
    pub(in crate::ingest) column: u32,
    /// Width in characters, of what stands on that line.
    pub(in crate::ingest) width: u32,
    /// How much text it takes.
    pub(in crate::ingest) size: usize,
}

/// A value.
#[derive(Clone, Debug)]
pub(in crate::ingest) enum Content<'a> {
    /// A text; `plain` if without quotes, so that it may be something else than a text.
    Scalar {
        text: Cow<'a, str>,
        plain: bool,
    },
    List(Vec<Node<'a>>),
    /// Keys and values in their order. `twice` is the key that is there a second time.
    Map {
        entries: Vec<(Node<'a>, Node<'a>)>,
        twice: Option<usize>,
    },
}

/// Why a document cannot be read.
#[derive(Clone, Debug)]
pub(in crate::ingest) struct SyntaxError {
    pub(in crate::ingest) line: u32,
    pub(in crate::ingest) column: u32,
    pub(in crate::ingest) message: String,
}

impl<'a> Node<'a> {
    /// The text of a scalar.
    pub(in crate::ingest) fn text(&self) -> Option<&str> {
        match &self.content {
            Content::Scalar { text, .. } => Some(text),
            Content::List(_) | Content::Map { .. } => None,
        }
    }

    /// The value of `key` in a map.
    pub(in crate::ingest) fn get(&self, key: &str) -> Option<&Node<'a>> {
        self.entry(key).map(|(_, value)| value)
    }

    /// `key` and its value in a map.
    pub(in crate::ingest) fn entry(&self, key: &str) -> Option<&(Node<'a>, Node<'a>)> {
        let Content::Map { entries, .. } = &self.content else { return None };
        entries.iter().find(|(name, _)| name.text() == Some(key))
    }

    /// Whether it is `null`, or nothing at all.
    pub(in crate::ingest) fn is_null(&self) -> bool {
        matches!(&self.content, Content::Scalar { text, plain: true } if matches!(&**text, "" | "~" | "null" | "Null" | "NULL"))
    }

    fn count(&self) -> usize {
        match &self.content {
            Content::Scalar { .. } => 1,
            Content::List(items) => 1 + items.iter().map(Node::count).sum::<usize>(),
            Content::Map { entries, .. } => 1 + entries.iter().map(|(key, value)| key.count() + value.count()).sum::<usize>(),
        }
    }
}

/// The documents in `text`: usually one.
pub(in crate::ingest) fn parse(text: &str) -> Result<Vec<Node<'_>>, SyntaxError> {
    let mut builder = Builder { anchors: BTreeMap::new(), nodes: 0 };
    let mut parser = Parser::new_from_str(text);
    let mut documents = Vec::new();
    while let Some(event) = parser.next_event() {
        let (event, span) = event.map_err(|error| scan_error(&error))?;
        match event {
            Event::StreamStart | Event::StreamEnd | Event::DocumentStart(..) | Event::DocumentEnd | Event::Comment(..) => {}
            event => documents.push(builder.node(&mut parser, event, span, 0)?),
        }
    }
    Ok(documents)
}

fn scan_error(error: &serde_saphyr::granit_parser::ScanError) -> SyntaxError {
    let marker = error.marker();
    SyntaxError { line: narrow(marker.line()).max(1), column: narrow(marker.col()) + 1, message: error.kind().to_string() }
}

fn narrow(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

struct Builder<'a> {
    anchors: BTreeMap<usize, Node<'a>>,
    nodes: usize,
}

type StrParser<'a> = Parser<'a, serde_saphyr::granit_parser::StrInput<'a>>;

impl<'a> Builder<'a> {
    fn node(&mut self, parser: &mut StrParser<'a>, event: Event<'a>, span: Span, depth: usize) -> Result<Node<'a>, SyntaxError> {
        self.nodes += 1;
        if self.nodes > MAX_NODES || depth > MAX_DEPTH {
            return Err(at(span, "the document is nested too deeply, or holds too much"));
        }
        let (anchor, content, end) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = style == ScalarStyle::Plain && !is_string(tag.as_deref());
                (anchor, Content::Scalar { text, plain }, span)
            }
            Event::SequenceStart(_, anchor, _) => {
                let mut items = Vec::new();
                let end = loop {
                    match Self::next(parser, span)? {
                        (Event::SequenceEnd, end) => break end,
                        (event, span) => items.push(self.node(parser, event, span, depth + 1)?),
                    }
                };
                (anchor, Content::List(items), end)
            }
            Event::MappingStart(_, anchor, _) => {
                let (entries, end) = self.entries(parser, span, depth)?;
                (anchor, map(entries), end)
            }
            Event::Alias(id) => {
                let Some(target) = self.anchors.get(&id) else { return Err(at(span, "the alias names nothing that is complete")) };
                let target = target.clone();
                self.nodes += target.count();
                return Ok(Node { line: narrow(span.start.line()), column: narrow(span.start.col()) + 1, ..target });
            }
            _ => return Err(at(span, "the document is not complete")),
        };
        let width = if span.end.line() == span.start.line() { narrow(span.end.col().saturating_sub(span.start.col())) } else { 1 };
        let node = Node {
            content,
            line: narrow(span.start.line()).max(1),
            column: narrow(span.start.col()) + 1,
            width: width.max(1),
            size: offset(&end.end).saturating_sub(offset(&span.start)),
        };
        if anchor != 0 {
            self.anchors.insert(anchor, node.clone());
        }
        Ok(node)
    }

    fn entries(&mut self, parser: &mut StrParser<'a>, span: Span, depth: usize) -> Result<(Vec<(Node<'a>, Node<'a>)>, Span), SyntaxError> {
        let mut entries = Vec::new();
        let mut merged = Vec::new();
        let end = loop {
            let (event, span) = Self::next(parser, span)?;
            if matches!(event, Event::MappingEnd) {
                break span;
            }
            let key = self.node(parser, event, span, depth + 1)?;
            let (event, span) = Self::next(parser, span)?;
            let value = self.node(parser, event, span, depth + 1)?;
            match &key.content {
                Content::Scalar { text, plain: true } if text == "<<" => merged.push(value),
                Content::Scalar { .. } => entries.push((key, value)),
                Content::List(_) | Content::Map { .. } => return Err(at(span, "a key must be a text")),
            }
        };
        // What is merged in gives way to what is written here.
        for source in merged.into_iter().flat_map(|node| if let Content::List(items) = node.content { items } else { vec![node] }) {
            let Content::Map { entries: more, .. } = source.content else { return Err(at(span, "`<<` takes a map")) };
            for (key, value) in more {
                if !entries.iter().any(|(known, _): &(Node<'_>, Node<'_>)| known.text() == key.text()) {
                    entries.push((key, value));
                }
            }
        }
        Ok((entries, end))
    }

    fn next(parser: &mut StrParser<'a>, span: Span) -> Result<(Event<'a>, Span), SyntaxError> {
        loop {
            match parser.next_event() {
                Some(Ok((Event::Comment(..), _))) => {}
                Some(Ok(event)) => return Ok(event),
                Some(Err(error)) => return Err(scan_error(&error)),
                None => return Err(at(span, "the document is not complete")),
            }
        }
    }
}

fn map<'a>(entries: Vec<(Node<'a>, Node<'a>)>) -> Content<'a> {
    let twice = if entries.len() <= 12 {
        (1..entries.len())
            .find(|at| entries.iter().take(*at).any(|(key, _)| Some(key.text()) == entries.get(*at).map(|(key, _)| key.text())))
    } else {
        let mut seen = BTreeSet::new();
        entries.iter().position(|(key, _)| !seen.insert(key.text()))
    };
    Content::Map { entries, twice }
}

fn is_string(tag: Option<&Tag>) -> bool {
    tag.is_some_and(|tag| tag.is_yaml_core_schema_tag("str"))
}

fn offset(marker: &serde_saphyr::granit_parser::Marker) -> usize {
    marker.byte_offset().unwrap_or_else(|| marker.index())
}

fn at(span: Span, message: &str) -> SyntaxError {
    SyntaxError { line: narrow(span.start.line()).max(1), column: narrow(span.start.col()) + 1, message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn comments_may_stand_wherever_yaml_lets_them() {
        let text = "# first\na: # at a key\n  # before an item\n  - [b] # after an item\n# between\nc: {d: e} # last\n# end\n";
        let documents = parse(text).unwrap();
        let keys = |key: &str| documents.first().and_then(|node| node.get(key)).is_some();
        assert_eq!((documents.len(), keys("a"), keys("c")), (1, true, true));
    }
}
