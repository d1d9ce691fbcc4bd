//! Field paths: `spec.rules[0].host`, `metadata.annotations["haproxy-fleet.dev/backend"]`.

use std::fmt;

/// A path while a document is walked: each step points to the one before.
#[derive(Clone, Copy, Debug)]
pub(in crate::ingest) enum Path<'p> {
    Root,
    Key(&'p Path<'p>, &'p str),
    Index(&'p Path<'p>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Key(parent, key) => {
                write!(f, "{parent}")?;
                if !is_plain(key) {
                    write!(f, "[{key:?}]")
                } else if matches!(parent, Self::Root) {
                    f.write_str(key)
                } else {
                    write!(f, ".{key}")
                }
            }
            Self::Index(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

fn is_plain(key: &str) -> bool {
    !key.is_empty() && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::ingest) enum Step {
    Key(String),
    Index(usize),
}

/// The steps of a written path. What cannot be read ends it: the place of its beginning is better than none.
pub(in crate::ingest) fn steps(path: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut rest = path;
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('.') {
            rest = after;
        } else if rest.starts_with("[\"") {
            let Some((key, after)) = quoted(rest) else { break };
            steps.push(Step::Key(key));
            rest = after;
        } else if let Some(after) = rest.strip_prefix('[') {
            let Some((number, after)) = after.split_once(']') else { break };
            let Ok(number) = number.parse() else { break };
            steps.push(Step::Index(number));
            rest = after;
        } else {
            let end = rest.find(['.', '[']).unwrap_or(rest.len());
            steps.push(Step::Key(rest[..end].to_owned()));
            rest = &rest[end..];
        }
    }
    steps
}

/// Reads `["text"]`.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut key = String::new();
    let mut characters = text.char_indices().skip(2);
    while let Some((at, character)) = characters.next() {
        match character {
            '\\' => key.push(characters.next()?.1),
            '"' => return text.get(at + 1..)?.strip_prefix(']').map(|rest| (key, rest)),
            other => key.push(other),
        }
    }
    None
}
