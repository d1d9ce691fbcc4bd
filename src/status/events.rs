//! Which findings are worth an Event, each once. Pure.
//!
//! An Event has a name that follows from what it says, so that another leader, or this one after a restart, finds it
//! already there instead of saying it again.

use crate::report::{Diagnostic, Kind, ObjectRef, Severity};
use std::collections::{BTreeMap, BTreeSet};

/// The longest `note` of an Event that the API server takes (1,024 bytes).
const NOTE_BYTES: usize = 1024;

/// An Event to be told.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    /// About which object.
    pub object: ObjectRef,
    /// Whether it asks for somebody's attention.
    pub warning: bool,
    /// In `CamelCase`.
    pub reason: String,
    /// For people, at most 1,024 bytes.
    pub note: String,
    /// Whether it may have been told before this process began, and need not be again.
    pub maybe_told: bool,
}

impl Event {
    /// About a finding.
    fn finding(finding: &Diagnostic, maybe_told: bool) -> Self {
        let field = if finding.field.is_empty() { String::new() } else { format!("{}: ", finding.field) };
        let note = shortened(format!("{field}{}; {}", finding.message, finding.help));
        Self { object: finding.object.clone(), warning: true, reason: finding.code.as_str().to_owned(), note, maybe_told }
    }

    /// About something that happened to `object`.
    pub fn of(object: &ObjectRef, warning: bool, reason: impl Into<String>, note: impl Into<String>) -> Self {
        Self { object: object.clone(), warning, reason: reason.into(), note: shortened(note.into()), maybe_told: false }
    }

    /// Its name, the same for the same words about the same object.
    pub fn name(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for part in [self.object.kind.as_str(), &self.object.namespace, &self.object.name, &self.reason, &self.note] {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part.as_bytes());
        }
        let hash = hasher.finalize().to_hex();
        // 253 bytes at most, with the dot and the hash
        let name: String = self.object.name.chars().take(230).collect();
        format!("{}.{}", name.trim_end_matches(['.', '-']), &hash[..16])
    }
}

fn shortened(note: String) -> String {
    if note.len() <= NOTE_BYTES {
        return note;
    }
    let end = (0..=NOTE_BYTES - '…'.len_utf8()).rev().find(|end| note.is_char_boundary(*end)).unwrap_or(0);
    format!("{}…", &note[..end])
}

/// What was told and what has to be.
#[derive(Debug, Default)]
pub struct Events {
    known: BTreeSet<Diagnostic>,
    begun: bool,
    due: BTreeMap<String, Event>,
}

impl Events {
    /// These are all present findings. What is new among them is told, but for remarks.
    pub fn present<'d>(&mut self, findings: impl Iterator<Item = &'d Diagnostic>) {
        let now: BTreeSet<Diagnostic> = findings.filter(|finding| is_told(finding)).cloned().collect();
        for finding in now.difference(&self.known) {
            let event = Event::finding(finding, !self.begun);
            self.due.insert(event.name(), event);
        }
        for gone in self.known.difference(&now) {
            // what came and went before its turn is no news
            self.due.remove(&Event::finding(gone, false).name());
        }
        self.known = now;
        self.begun = true;
    }

    /// Something happened.
    pub fn happened(&mut self, event: Event) {
        self.due.insert(event.name(), event);
    }

    /// At most `limit` Events that have to be told; they are taken for told.
    pub fn take(&mut self, limit: usize) -> Vec<Event> {
        let names: Vec<String> = self.due.keys().take(limit).cloned().collect();
        names.iter().filter_map(|name| self.due.remove(name)).collect()
    }

    /// Whether something has to be told.
    pub fn is_due(&self) -> bool {
        !self.due.is_empty()
    }
}

/// Whether a finding gets an Event: those about the operator's own surroundings are in its status.
fn is_told(finding: &Diagnostic) -> bool {
    finding.severity != Severity::Info && !matches!(finding.object.kind, Kind::Other(_))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::codes;

    fn finding(message: &str) -> Diagnostic {
        let object = ObjectRef::new(Kind::Ingress, "shop", "web");
        Diagnostic::error(&object, "spec.rules[0].host", codes::INVALID_VALUE, message, "correct it")
    }

    #[test]
    fn a_finding_is_told_once_and_again_when_it_comes_back() {
        let mut events = Events::default();
        events.present([].iter());
        events.present([finding("a")].iter());
        let told = events.take(10);
        assert_eq!(
            told.iter().map(|event| (&*event.note, event.maybe_told)).collect::<Vec<_>>(),
            [("spec.rules[0].host: a; correct it", false)]
        );
        events.present([finding("a")].iter());
        assert!(!events.is_due());
        events.present([].iter());
        events.present([finding("a")].iter());
        assert_eq!(events.take(10), told);
    }

    #[test]
    fn what_is_there_at_the_start_may_have_been_told() {
        let mut events = Events::default();
        events.present([finding("a")].iter());
        assert!(events.take(10)[0].maybe_told);
    }

    #[test]
    fn what_came_and_went_before_its_turn_is_not_told() {
        let mut events = Events::default();
        events.present([finding("a"), finding("b")].iter());
        events.present([finding("b")].iter());
        assert_eq!(events.take(10).len(), 1);
    }

    #[test]
    fn an_event_fits_into_what_the_api_server_takes() {
        let object = ObjectRef::new(Kind::Ingress, "shop", "w".repeat(253));
        let event = Event::of(&object, true, "Odd", "ü".repeat(2000));
        assert!(event.note.len() <= 1024 && event.name().len() <= 253);
        assert_ne!(event.name(), Event::of(&object, true, "Odd", "x").name());
    }
}
