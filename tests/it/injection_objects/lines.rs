//! What stands in the resources of a bundle, in a form that can be compared; and which forms are known.

use super::base::HARMLESS;
use haproxy_fleet::haproxy::bundle::{BackendClass, Content, ListEntry, MapEntry, Resource, ResourceKey, Server};
use haproxy_fleet::haproxy::config::parse::parse;
use haproxy_fleet::haproxy::shape::allowed;
use std::collections::{BTreeMap, BTreeSet};

/// A line as words, with the names that are made of texts made the same.
pub type Words = Vec<String>;

/// The lines of configuration in `resource`; what is wrong with anything else in it.
pub fn lines(resource: &Resource) -> Result<Vec<Words>, String> {
    let good = match &resource.key {
        ResourceKey::Section(name) | ResourceKey::Backend(name) | ResourceKey::Servers(name) => is_name(name),
        ResourceKey::MapEntries { map: path, .. }
        | ResourceKey::CertificateList { list: path, .. }
        | ResourceKey::Certificate(path)
        | ResourceKey::File(path) => is_path(path),
    };
    if !good {
        return Err(format!("the name of {:?}", resource.key));
    }
    match (&resource.key, &resource.content) {
        (ResourceKey::Section(name), Content::Section(text)) => section(name, text),
        (ResourceKey::Backend(name), Content::Backend(head)) => {
            let BackendClass::Shaped { shape, guid, .. } = &head.class else {
                return Err(format!("{name} is written in full, which no object can ask for"));
            };
            let parsed = parse(&head.text).map_err(|error| format!("{error}: {:?}", head.text))?;
            let wanted = vec![vec!["backend".to_owned(), name.to_string(), "from".to_owned(), shape.to_string()]];
            let heads: Vec<Words> = parsed.iter().map(|section| section.head.clone()).collect();
            let guids = vec![vec!["guid".to_owned(), guid.to_string()]];
            if heads != wanted || parsed[0].directives != guids || !is_name(guid) || !is_name(shape) {
                return Err(format!("the head of {name}: {:?}", head.text));
            }
            Ok(Vec::new())
        }
        (_, Content::Servers(servers)) => servers.iter().map(server).collect(),
        (_, Content::MapEntries(entries)) => entries.iter().try_for_each(entry).map(|()| Vec::new()),
        (_, Content::CertificateList(entries)) => entries.iter().try_for_each(list_entry).map(|()| Vec::new()),
        // sent as it stands, and read as nothing
        (ResourceKey::File(path), Content::File(_)) if path.starts_with("errors/") => Ok(Vec::new()),
        (_, Content::Certificate(bytes) | Content::File(bytes)) => pem(bytes.expose()).map(|()| Vec::new()),
        _ => Err(format!("{:?} holds something else", resource.key)),
    }
}

fn section(name: &str, text: &str) -> Result<Vec<Words>, String> {
    let shape = name.strip_prefix("30-");
    let mut out = Vec::new();
    for section in parse(text).map_err(|error| format!("{error}: {text:?}"))? {
        if let Some(shape) = shape {
            let forbidden = section.directives.iter().find(|line| !allowed(&line.iter().map(String::as_str).collect::<Vec<_>>()));
            if let Some(line) = forbidden {
                return Err(format!("not on the list of what a shape may hold: {line:?}"));
            }
            if section.head[0] != "defaults" || !shape.ends_with(&section.head[1]) {
                return Err(format!("the head of {name}: {:?}", section.head));
            }
        } else {
            out.push(section.head.clone());
        }
        out.extend(section.directives);
    }
    Ok(out.into_iter().map(|line| line.into_iter().map(normal).collect()).collect())
}

fn server(server: &Server) -> Result<Words, String> {
    let safe = |b: u8| b.is_ascii_alphanumeric() || b"_.:/@,()- ".contains(&b);
    if !server.keywords.bytes().all(safe) || !is_name(&server.name) || !is_name(&server.guid) {
        return Err(format!("{server:?}"));
    }
    Ok(format!("server {}", server.keywords).split(' ').map(|word| normal(word.to_owned())).collect())
}

fn entry(entry: &MapEntry) -> Result<(), String> {
    let bad = |text: &str| text.is_empty() || text.bytes().any(|b| b < 0x20 || b == 0x7f);
    let (key, value) = (&*entry.key, &*entry.value);
    let wrong = bad(key) || bad(value) || key.contains(' ') || key.starts_with('#') || value.trim_matches([' ', '\t']) != value;
    if wrong { Err(format!("{entry:?}")) } else { Ok(()) }
}

fn list_entry(entry: &ListEntry) -> Result<(), String> {
    let is_host = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._*!".contains(&b));
    let good = is_path(&entry.file) && entry.names.iter().all(|name| is_host(name));
    if good { Ok(()) } else { Err(format!("{entry:?}")) }
}

/// Only blocks of PEM: HAProxy reads nothing else from such a file, and nothing in it is a name of a file.
fn pem(bytes: &[u8]) -> Result<(), String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let safe = |b: u8| b.is_ascii_alphanumeric() || b"+/=- \t".contains(&b);
    match text.lines().find(|line| !line.bytes().all(safe)) {
        Some(line) => Err(format!("in a PEM file: {line:?}")),
        None => Ok(()),
    }
}

fn is_name(text: &str) -> bool {
    !text.is_empty() && text.len() <= 200 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"_.:-".contains(&b))
}

fn is_path(text: &str) -> bool {
    text.split('/').all(|part| is_name(part) && !part.starts_with('.'))
}

/// `word` with numbers made the same.
fn normal(word: String) -> String {
    let number = word.strip_suffix("ms").or(word.strip_suffix('s')).unwrap_or(&word);
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b",-".contains(&b));
    if digits(number) { "N".to_owned() } else { word }
}

/// Directives whose groups of words are left out one by one when what they say is refused.
const IN_GROUPS: [&[&str]; 4] = [&["cookie"], &["http-check", "send"], &["retry-on"], &["server"]];

/// Lines that good objects and harmless texts lead to.
#[derive(Default)]
pub struct Known {
    lines: BTreeSet<Words>,
    by_first: BTreeMap<String, Vec<Words>>,
    /// Places that harmless texts have been in.
    pub places: BTreeSet<(usize, String, bool)>,
}

impl Known {
    pub fn add(&mut self, line: Words) {
        if self.lines.insert(line.clone()) {
            assert!(!line[0].contains(HARMLESS), "a text is a directive: {line:?}");
            self.by_first.entry(line[0].clone()).or_default().push(line);
        }
    }

    /// Whether `line` is a known one, where a word with a harmless text stands for any word.
    pub fn has(&self, line: &Words) -> bool {
        if self.lines.contains(line) {
            return true;
        }
        let groups = IN_GROUPS.iter().any(|first| first.iter().zip(line).filter(|(a, b)| a == b).count() == first.len());
        self.by_first.get(&line[0]).into_iter().flatten().any(|known| {
            let same = known.len() == line.len() && known.iter().zip(line).all(|(known, word)| covers(known, word));
            same || groups && known.len() > line.len() && is_part(line, known)
        })
    }
}

/// Whether `line` is `known` without some of its words.
fn is_part(line: &[String], known: &[String]) -> bool {
    let mut rest = known.iter();
    line.iter().all(|word| rest.any(|known| covers(known, word)))
}

/// Whether `word` is `known` with other texts for the harmless ones.
fn covers(known: &str, word: &str) -> bool {
    if known == word {
        return true;
    }
    let Some((before, rest)) = known.split_once(HARMLESS) else { return false };
    let after = rest.rsplit(HARMLESS).next().unwrap_or(rest);
    word.len() >= before.len() + after.len() && word.starts_with(before) && word.ends_with(after)
}
