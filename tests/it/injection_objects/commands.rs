//! A reader of commands after the rules of HAProxy's `cli.c`, and what each step has to come to.

use haproxy_fleet::agent::runtime::{Command, commands, delete_list_entry};
use haproxy_fleet::haproxy::bundle::{ListEntry, MapEntry, Server};
use haproxy_fleet::haproxy::plan::Step;

/// A command as HAProxy would read it.
#[derive(Debug, PartialEq, Eq)]
struct Read {
    words: Vec<String>,
    payload: Option<String>,
}

/// Compares the commands of `step` with what they have to be: no more and no fewer, word by word.
pub fn check(step: &Step, max_payload: usize) -> Result<(), String> {
    let mut found: Vec<Read> = Vec::new();
    for command in commands(step, max_payload) {
        if command.text.len() > max_payload {
            return Err(format!("{} bytes in one command", command.text.len()));
        }
        found.push(read_one(&command)?);
    }
    if let Step::AddMapEntries { entries, .. } = step {
        // As many commands as it takes, which together have all lines.
        let lines: String = found.iter().filter_map(|read| read.payload.as_deref()).collect();
        found.truncate(1);
        if let Some(read) = found.first_mut() {
            read.payload = Some(lines.clone());
        }
        if lines.lines().count() != entries.len() {
            return Err(format!("{lines:?} for {entries:?}"));
        }
    }
    let wanted = wanted(step);
    if found != wanted {
        return Err(format!("{found:?} instead of {wanted:?}"));
    }
    if let Step::DeleteListEntry { list, entry } = step {
        let read = read_one(&delete_list_entry(list, &entry.file, 7))?;
        if read != command(&["del", "ssl", "crt-list", list, &format!("{}:7", entry.file)]) {
            return Err(format!("{read:?}"));
        }
    }
    Ok(())
}

fn read_one(command: &Command) -> Result<Read, String> {
    let text = String::from_utf8(command.text.clone()).map_err(|error| error.to_string())?;
    let mut all = read(&text).map_err(|error| format!("{error}: {text:?}"))?;
    match (all.pop(), all.is_empty()) {
        (Some(one), true) => Ok(one),
        _ => Err(format!("more or less than one command: {text:?}")),
    }
}

fn read(text: &str) -> Result<Vec<Read>, String> {
    let mut out = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (line, after) = rest.split_once('\n').ok_or("a line that does not end")?;
        rest = after;
        if line.bytes().any(|b| b < 0x20 || b == 0x7f) {
            return Err("a control byte".to_owned());
        }
        // The last word alone may open a payload, and it begins after any blank, escaped or not.
        let last = line.rfind(' ').map_or(line, |at| &line[at + 1..]);
        let (line, payload) = match last.strip_prefix("<<") {
            None => (line, None),
            Some(end) => {
                let mark = format!("\n{end}\n");
                let inner = format!("\n{rest}");
                let at = inner.find(&mark).ok_or("a payload that does not end")?;
                let payload = inner[..at].strip_prefix('\n').unwrap_or_default().to_owned() + "\n";
                if payload.contains(end) || payload.lines().any(str::is_empty) || payload.contains(['\0', '\r']) {
                    return Err("what ends a payload stands in it".to_owned());
                }
                rest = &rest[at + mark.len() - 1..];
                (line[..line.len() - last.len()].trim_end_matches(' '), Some(payload))
            }
        };
        let mut several = words(line);
        if several.len() > 1 && payload.is_some() {
            return Err("a payload for several commands".to_owned());
        }
        let last = several.pop();
        out.extend(several.into_iter().map(|words| Read { words, payload: None }));
        out.extend(last.map(|words| Read { words, payload }));
    }
    Ok(out)
}

/// The words of each command on a line.
fn words(line: &str) -> Vec<Vec<String>> {
    let mut commands = vec![Vec::new()];
    let mut word: Option<String> = None;
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => word.get_or_insert_default().extend(characters.next()),
            ' ' => commands.last_mut().unwrap().extend(word.take()),
            ';' => {
                commands.last_mut().unwrap().extend(word.take());
                commands.push(Vec::new());
            }
            other => word.get_or_insert_default().push(other),
        }
    }
    commands.last_mut().unwrap().extend(word);
    commands
}

fn command(words: &[&str]) -> Read {
    Read { words: words.iter().map(|word| (*word).to_owned()).collect(), payload: None }
}

fn with_payload(words: &[&str], payload: String) -> Read {
    Read { payload: Some(payload), ..command(words) }
}

fn wanted(step: &Step) -> Vec<Read> {
    let of = |backend: &str, server: &Server| format!("{backend}/{}", server.name);
    let weight = |server: &Server| if server.drain { "0".to_owned() } else { server.weight.to_string() };
    match step {
        Step::Certificate { path, pem, fresh, authority } => {
            let noun = if *authority { "ca-file" } else { "cert" };
            let pem = String::from_utf8(pem.expose().to_vec()).unwrap();
            let new = fresh.then(|| command(&["new", "ssl", noun, path]));
            let rest = [with_payload(&["set", "ssl", noun, path], pem), command(&["commit", "ssl", noun, path])];
            new.into_iter().chain(rest).collect()
        }
        Step::DeleteCertificate { path } => vec![command(&["del", "ssl", "cert", path])],
        Step::AddBackend { name, shape, mode, guid } => {
            vec![command(&["add", "backend", name, "from", shape, "mode", mode, "guid", guid])]
        }
        Step::PublishBackend { name } => vec![command(&["publish", "backend", name])],
        Step::UnpublishBackend { name, .. } => vec![command(&["unpublish", "backend", name])],
        Step::AddServer { backend, server } => {
            let name = of(backend, server);
            let words = format!("{} id {} guid {} {} weight {}", server.address, server.id, server.guid, server.keywords, weight(server));
            let mut add = command(&["add", "server", &name]);
            add.words.extend(words.split(' ').map(str::to_owned));
            let health = server.checked.then(|| command(&["enable", "health", &name]));
            [add].into_iter().chain(health).chain([command(&["enable", "server", &name])]).collect()
        }
        Step::ReturnServer { backend, server } => {
            let name = of(backend, server);
            vec![command(&["set", "server", &name, "weight", &weight(server)]), command(&["set", "server", &name, "state", "ready"])]
        }
        Step::SetAddress { backend, server } => {
            let (ip, port) = (server.address.ip().to_string(), server.address.port().to_string());
            vec![command(&["set", "server", &of(backend, server), "addr", &ip, "port", &port])]
        }
        Step::SetWeight { backend, server } => vec![command(&["set", "server", &of(backend, server), "weight", &weight(server)])],
        Step::RetireServer { backend, server } => vec![command(&["set", "server", &of(backend, server), "state", "maint"])],
        Step::AddListEntry { list, entry: ListEntry { file, names } } => {
            let names: String = names.iter().flat_map(|name| [" ", name]).collect();
            vec![with_payload(&["add", "ssl", "crt-list", list], format!("{file}{names}\n"))]
        }
        Step::AddMapEntries { map, entries } => {
            let lines = entries.iter().flat_map(|MapEntry { key, value }| [key, " ", value, "\n"]);
            vec![with_payload(&["add", "map", map], lines.collect())]
        }
        Step::SetMapEntry { map, entry: MapEntry { key, value } } if value.contains("<<") => {
            vec![command(&["del", "map", map, key]), with_payload(&["add", "map", map], format!("{key} {value}\n"))]
        }
        Step::SetMapEntry { map, entry: MapEntry { key, value } } => vec![command(&["set", "map", map, key, value])],
        Step::DeleteMapEntry { map, key } => vec![command(&["del", "map", map, key])],
        Step::DeleteListEntry { .. } | Step::Leave(_) | Step::Rejoin(_) => Vec::new(),
    }
}

#[test]
fn the_reader_finds_what_would_be_a_second_command_or_an_open_payload() {
    assert_eq!(words(r"set map m k a\;b\ c"), [["set", "map", "m", "k", "a;b c"].map(str::to_owned)]);
    assert_eq!(words("set map m k a;show info").len(), 2);
    assert!(read("set map m k a\\ <<x\n").is_err(), "a payload that nobody ends");
    assert!(read("add map m <<%a\nk v\n%a\nshow info\n").unwrap().len() == 2, "a command after a payload");
    assert!(read("add map m <<%a\nk %a\n%a\n").is_err(), "the end of the payload in it");
    assert!(read("set map m k a\rb\n").is_err());
}
