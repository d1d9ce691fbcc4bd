//! Where in its file a finding is.

use super::Diagnostic;

/// A place in a source file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// The file as it was named or found; `<stdin>` for standard input.
    pub file: String,
    /// The line, from 1.
    pub line: u32,
    /// The column in characters, from 1.
    pub column: u32,
    /// That source line, without its end.
    pub text: String,
    /// How many characters of it are meant.
    pub width: usize,
}

/// A finding with its place, if its object came from a file.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Located {
    /// The finding.
    pub diagnostic: Diagnostic,
    /// The place.
    pub location: Option<Location>,
}

impl Located {
    /// Sorts by place, then by object: the order in which a reader works through files.
    pub fn sort(findings: &mut [Self]) {
        findings.sort_by(|a, b| (&a.location, &a.diagnostic).cmp(&(&b.location, &b.diagnostic)));
    }
}

impl From<Diagnostic> for Located {
    fn from(diagnostic: Diagnostic) -> Self {
        Self { diagnostic, location: None }
    }
}
