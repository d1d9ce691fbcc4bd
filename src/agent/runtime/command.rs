//! From steps to the text of commands: escapes, payloads, and what an answer must say.

use super::random;
use crate::haproxy::bundle::{ListEntry, MapEntry};
use crate::haproxy::files::{effective_weight, write_list_entry, write_map_entry, write_server_words};
use crate::haproxy::plan::Step;

/// What the answer to a command that worked says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expect {
    Nothing,
    Any,
    /// One of these.
    Text(&'static [&'static str]),
}

/// A command with its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Command {
    /// All its lines.
    pub text: Vec<u8>,
    expect: Expect,
}

impl Command {
    /// A command whose answer is data.
    pub fn plain(text: &str) -> Self {
        Self { text: format!("{text}\n").into_bytes(), expect: Expect::Any }
    }

    fn silent(text: &str) -> Self {
        Self { text: format!("{text}\n").into_bytes(), expect: Expect::Nothing }
    }

    fn said(text: &str, expect: &'static [&'static str]) -> Self {
        Self { text: format!("{text}\n").into_bytes(), expect: Expect::Text(expect) }
    }

    fn payload(text: &str, payload: &[u8], expect: Expect) -> Self {
        // at most 7 characters until 3.2; a new one if the payload happens to hold it
        let pattern = loop {
            let pattern = format!("%{:06x}", random() & 0xff_ffff);
            if !payload.windows(pattern.len()).any(|window| window == pattern.as_bytes()) {
                break pattern;
            }
        };
        let mut out = format!("{text} <<{pattern}\n").into_bytes();
        out.extend_from_slice(payload);
        if !payload.ends_with(b"\n") {
            out.push(b'\n');
        }
        out.extend_from_slice(format!("{pattern}\n").as_bytes());
        Self { text: out, expect }
    }

    /// What HAProxy objects to, if `answer` is not that of success.
    pub fn objection(&self, answer: &str) -> Option<String> {
        let answer = answer.trim();
        let fine = match self.expect {
            Expect::Any => true,
            Expect::Nothing => answer.is_empty(),
            Expect::Text(texts) => texts.iter().any(|text| answer.contains(text)),
        };
        // an unknown command answers with the whole help
        let first: Vec<&str> = answer.lines().filter(|line| !line.trim().is_empty()).take(3).map(str::trim).collect();
        (!fine).then(|| if first.is_empty() { "no answer".to_owned() } else { first.join("; ") })
    }
}

/// One word of a command line.
fn word(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        if matches!(character, '\\' | ' ' | ';' | '\t') {
            out.push('\\');
        }
        out.push(character);
    }
    out
}

/// The commands of `step`; `max_payload` bounds each of them.
pub fn commands(step: &Step, max_payload: usize) -> Vec<Command> {
    match step {
        Step::Certificate { path, pem, fresh, authority } => certificate(path, pem.expose(), *fresh, *authority),
        Step::DeleteCertificate { path } => vec![Command::said(&format!("del ssl cert {path}"), &["deleted!"])],
        Step::AddBackend { name, shape, mode, guid } => {
            let text = format!("add backend {name} from {shape} mode {mode} guid {guid}");
            vec![Command::said(&text, &["New backend registered."])]
        }
        Step::PublishBackend { name } => vec![Command::said(&format!("publish backend {name}"), &["Backend published."])],
        Step::UnpublishBackend { name, .. } => vec![Command::said(&format!("unpublish backend {name}"), &["Backend unpublished."])],
        Step::AddServer { backend, server } => {
            let name = format!("{backend}/{}", server.name);
            let mut words = Vec::new();
            write_server_words(&mut words, server);
            let words = String::from_utf8_lossy(&words);
            let mut out = vec![Command::said(&format!("add server {name} {words}"), &["New server registered."])];
            if server.checked {
                out.push(Command::silent(&format!("enable health {name}")));
            }
            out.push(Command::silent(&format!("enable server {name}")));
            out
        }
        Step::ReturnServer { backend, server } => {
            let name = format!("{backend}/{}", server.name);
            let weight = effective_weight(server);
            vec![Command::silent(&format!("set server {name} weight {weight}")), Command::silent(&format!("set server {name} state ready"))]
        }
        Step::SetAddress { backend, server } => {
            let (name, ip, port) = (&server.name, server.address.ip(), server.address.port());
            // it answers with what it changed
            let fine: &[&str] = &["changed from", "no need to change"];
            vec![Command::said(&format!("set server {backend}/{name} addr {ip} port {port}"), fine)]
        }
        Step::SetWeight { backend, server } => {
            vec![Command::silent(&format!("set server {backend}/{} weight {}", server.name, effective_weight(server)))]
        }
        Step::RetireServer { backend, server } => vec![Command::silent(&format!("set server {backend}/{} state maint", server.name))],
        Step::AddListEntry { list, entry } => vec![add_list_entry(list, entry)],
        Step::AddMapEntries { map, entries } => add_map_entries(map, entries, max_payload),
        Step::SetMapEntry { map, entry } if entry.value.contains("<<") => {
            // At the start of the last word of a line this opens a payload, and what HAProxy takes for a word there
            // begins after any blank, escaped or not: `set map M k a\ <<x` swallowed all commands that followed.
            let mut out = vec![delete_map_entry(map, &entry.key)];
            out.extend(add_map_entries(map, std::slice::from_ref(entry), max_payload));
            out
        }
        Step::SetMapEntry { map, entry } => {
            vec![Command::silent(&format!("set map {map} {} {}", word(&entry.key), word(&entry.value)))]
        }
        Step::DeleteMapEntry { map, key } => vec![delete_map_entry(map, key)],
        // its line number has to be asked for first
        Step::DeleteListEntry { .. } | Step::Leave(_) | Step::Rejoin(_) => Vec::new(),
    }
}

fn certificate(path: &str, pem: &[u8], fresh: bool, authority: bool) -> Vec<Command> {
    let noun = if authority { "ca-file" } else { "cert" };
    let mut out = Vec::new();
    if fresh {
        let said: &[&str] = &["New empty certificate store", "New CA file created"];
        out.push(Command::said(&format!("new ssl {noun} {path}"), said));
    }
    let set = Expect::Text(&["ransaction created", "ransaction updated"]);
    out.push(Command::payload(&format!("set ssl {noun} {path}"), pem, set));
    out.push(Command::said(&format!("commit ssl {noun} {path}"), &["Success!"]));
    out
}

/// What takes a failed step back as far as possible.
pub fn undo(step: &Step) -> Vec<Command> {
    let Step::Certificate { path, fresh, authority, .. } = step else { return Vec::new() };
    let noun = if *authority { "ca-file" } else { "cert" };
    let mut out = vec![Command::plain(&format!("abort ssl {noun} {path}"))];
    if *fresh {
        out.push(Command::plain(&format!("del ssl {noun} {path}")));
    }
    out
}

fn delete_map_entry(map: &str, key: &str) -> Command {
    Command::silent(&format!("del map {map} {}", word(key)))
}

fn add_list_entry(list: &str, entry: &ListEntry) -> Command {
    let mut line = Vec::new();
    write_list_entry(&mut line, entry);
    Command::payload(&format!("add ssl crt-list {list}"), &line, Expect::Text(&["Success!"]))
}

/// Deletes the line `number` of a crt-list.
pub fn delete_list_entry(list: &str, file: &str, number: u32) -> Command {
    Command::said(&format!("del ssl crt-list {list} {file}:{number}"), &["deleted in crtlist"])
}

fn add_map_entries(map: &str, entries: &[MapEntry], max_payload: usize) -> Vec<Command> {
    let room = max_payload.saturating_sub(512);
    let mut out = Vec::new();
    let mut payload = Vec::new();
    let mut line = Vec::new();
    let mut flush = |payload: &mut Vec<u8>| {
        if !payload.is_empty() {
            out.push(Command::payload(&format!("add map {map}"), payload, Expect::Nothing));
            payload.clear();
        }
    };
    for entry in entries {
        line.clear();
        write_map_entry(&mut line, entry);
        if payload.len() + line.len() > room {
            flush(&mut payload);
        }
        payload.extend_from_slice(&line);
    }
    flush(&mut payload);
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn text(command: &Command) -> String {
        String::from_utf8(command.text.clone()).unwrap()
    }

    #[test]
    fn blanks_semicolons_and_backslashes_in_values_stay_values() {
        let entry = MapEntry { key: "a|/;b".into(), value: r"x y\z;show version".into() };
        let commands = commands(&Step::SetMapEntry { map: "maps/m".into(), entry }, 14_000);
        assert_eq!(text(&commands[0]), "set map maps/m a|/\\;b x\\ y\\\\z\\;show\\ version\n");
    }

    #[test]
    fn a_value_that_looks_like_a_payload_goes_as_a_payload() {
        let entry = MapEntry { key: "a".into(), value: "<<x".into() };
        let commands = commands(&Step::SetMapEntry { map: "maps/m".into(), entry }, 14_000);
        assert_eq!(text(&commands[0]), "del map maps/m a\n");
        assert!(text(&commands[1]).contains("\na <<x\n%"));
    }

    #[test]
    fn no_command_is_larger_than_a_payload_may_be() {
        let entries: Vec<MapEntry> =
            (0..2000).map(|n| MapEntry { key: format!("host-{n}.example|/").into(), value: "backend".into() }).collect();
        let commands = commands(&Step::AddMapEntries { map: "maps/m".into(), entries }, 14_000);
        assert!(commands.len() > 3);
        assert!(commands.iter().all(|command| command.text.len() <= 14_000));
        let lines: usize = commands.iter().map(|command| text(command).lines().count() - 2).sum();
        assert_eq!(lines, 2000);
    }

    #[test]
    fn an_answer_is_checked_by_its_text() {
        let command = Command::said("publish backend x", &["Backend published."]);
        assert_eq!(command.objection("Server x is going DOWN.\nBackend published.\n\n"), None);
        assert_eq!(command.objection("No such backend.\n\n"), Some("No such backend.".to_owned()));
        assert_eq!(Command::silent("x").objection("\n"), None);
    }
}
