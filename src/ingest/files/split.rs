//! A file into its documents, so that a fault in one leaves the others alone and one that did not change is
//! not read again.

use std::ops::Range;

/// One document of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Its bytes.
    pub(super) range: Range<usize>,
    /// The line that it starts on, from 1.
    pub(super) line: u32,
}

/// The documents of a file, without those that hold nothing but comments.
pub(super) fn split(bytes: &[u8]) -> Vec<Piece> {
    let pieces = json(bytes).unwrap_or_else(|| yaml(bytes));
    pieces.into_iter().filter(|piece| has_content(bytes.get(piece.range.clone()).unwrap_or_default())).collect()
}

/// JSON documents may follow each other without a mark. `None` if it is no JSON.
fn json(bytes: &[u8]) -> Option<Vec<Piece>> {
    if !bytes.trim_ascii_start().starts_with(b"{") {
        return None;
    }
    let mut stream = serde_json::Deserializer::from_slice(bytes).into_iter::<serde::de::IgnoredAny>();
    let (mut pieces, mut start, mut line) = (Vec::new(), 0, 1);
    while let Some(document) = stream.next() {
        document.ok()?;
        let end = stream.byte_offset();
        let text = bytes.get(start..end)?;
        pieces.push(Piece { range: start..end, line });
        line += newlines(text);
        start = end;
    }
    Some(pieces)
}

/// YAML documents start at a line of `---`.
fn yaml(bytes: &[u8]) -> Vec<Piece> {
    let (mut pieces, mut start, mut first_line, mut line, mut at) = (Vec::new(), 0, 1, 1, 0);
    for text in bytes.split_inclusive(|byte| *byte == b'\n') {
        if at > start && is_mark(text) {
            pieces.push(Piece { range: start..at, line: first_line });
            (start, first_line) = (at, line);
        }
        at += text.len();
        line += 1;
    }
    pieces.push(Piece { range: start..at, line: first_line });
    pieces
}

fn is_mark(line: &[u8]) -> bool {
    line.strip_prefix(b"---").is_some_and(|rest| rest.first().is_none_or(u8::is_ascii_whitespace))
}

/// Whether there is more than blanks, comments, marks and directives.
fn has_content(bytes: &[u8]) -> bool {
    bytes.split(|byte| *byte == b'\n').any(|line| {
        let line = line.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(line);
        let line = if is_mark(line) { line.get(3..).unwrap_or_default() } else { line };
        let line = line.trim_ascii();
        !line.is_empty() && !line.starts_with(b"#") && !line.starts_with(b"%") && line != b"..."
    })
}

fn newlines(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.split(|byte| *byte == b'\n').count() - 1).unwrap_or(u32::MAX)
}
