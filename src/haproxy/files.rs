//! The bytes of every file of a bundle, and the way back: from a line that HAProxy complains about to the
//! resource that it came from.

use super::bundle::{Bundle, Content, ListEntry, MapEntry, Resource, ResourceKey, Server};
use std::io::Write;
use std::sync::Arc;

/// A file as HAProxy reads it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RenderedFile {
    /// What is in it.
    pub bytes: Vec<u8>,
    /// The first line (from 1) of each resource in it, in order.
    pub lines: Vec<(u32, ResourceKey)>,
}

/// The file `path` of `bundle`. A `Servers` resource without its `Backend` is left out: servers stand behind
/// the head of their backend.
pub fn render_file(bundle: &Bundle, path: &str) -> RenderedFile {
    let mut file = RenderedFile::default();
    let mut line = 1;
    for resource in in_written_order(bundle, path) {
        let start = file.bytes.len();
        write_content(&mut file.bytes, resource);
        let written = file.bytes[start..].split(|byte| *byte == b'\n').count() - 1;
        file.lines.push((line, resource.key.clone()));
        line += u32::try_from(written).unwrap_or(u32::MAX);
    }
    file
}

/// The bytes alone of the file `path` of `bundle`: what a change of one endpoint costs.
pub fn render_bytes(bundle: &Bundle, path: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4096);
    for resource in in_written_order(bundle, path) {
        write_content(&mut bytes, resource);
    }
    bytes
}

fn in_written_order<'a>(bundle: &'a Bundle, path: &str) -> impl Iterator<Item = &'a Arc<Resource>> {
    bundle.in_file(path).flat_map(move |key| {
        let (first, second) = match key {
            ResourceKey::Servers(_) => (None, None),
            ResourceKey::Backend(name) => (bundle.get(key), bundle.get(&ResourceKey::Servers(name.clone()))),
            _ => (bundle.get(key), None),
        };
        first.into_iter().chain(second)
    })
}

fn write_content(out: &mut Vec<u8>, resource: &Resource) {
    match &resource.content {
        Content::Section(text) => out.extend_from_slice(text.as_bytes()),
        Content::Backend(head) => out.extend_from_slice(head.text.as_bytes()),
        Content::Servers(servers) => servers.iter().for_each(|server| {
            out.extend_from_slice(b"    server ");
            write_server(out, server);
            out.push(b'\n');
        }),
        Content::MapEntries(entries) => entries.iter().for_each(|entry| write_map_entry(out, entry)),
        Content::CertificateList(entries) => entries.iter().for_each(|entry| write_list_entry(out, entry)),
        Content::Certificate(pem) => out.extend_from_slice(&pem_lines(pem.expose())),
        Content::File(bytes) => out.extend_from_slice(bytes.expose()),
    }
}

/// `NAME ADDRESS:PORT id N guid G KEYWORDS weight W`, as in the configuration.
pub fn write_server(out: &mut Vec<u8>, server: &Server) {
    out.extend_from_slice(server.name.as_bytes());
    out.push(b' ');
    write_server_words(out, server);
}

/// The same after the name: what `add server` takes as well.
pub fn write_server_words(out: &mut Vec<u8>, server: &Server) {
    // writing to memory cannot fail
    let _ = write!(out, "{} id {} guid {} ", server.address, server.id, server.guid);
    if !server.keywords.is_empty() {
        out.extend_from_slice(server.keywords.as_bytes());
        out.push(b' ');
    }
    let _ = write!(out, "weight {}", effective_weight(server));
}

/// The weight that HAProxy is given in this pod: a draining server has 0.
pub fn effective_weight(server: &Server) -> u16 {
    if server.drain { 0 } else { server.here.unwrap_or(server.weight) }
}

/// `KEY VALUE` and a line feed.
pub fn write_map_entry(out: &mut Vec<u8>, entry: &MapEntry) {
    for part in [entry.key.as_bytes(), b" ", entry.value.as_bytes(), b"\n"] {
        out.extend_from_slice(part);
    }
}

/// `FILE NAME…` and a line feed.
pub fn write_list_entry(out: &mut Vec<u8>, entry: &ListEntry) {
    out.extend_from_slice(entry.file.as_bytes());
    for name in &entry.names {
        out.push(b' ');
        out.extend_from_slice(name.as_bytes());
    }
    out.push(b'\n');
}

/// PEM without blank lines and carriage returns (a blank line ends a payload), ended by a line feed.
pub fn pem_lines(pem: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(pem.len() + 1);
    for line in pem.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty()) {
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    out
}

/// The resource that wrote line `line` (from 1) of the file `path`.
pub fn locate<'a>(bundle: &'a Bundle, path: &str, line: u32) -> Option<&'a Arc<Resource>> {
    let file = render_file(bundle, path);
    let (_, key) = file.lines.iter().rev().find(|(first, _)| *first <= line)?;
    bundle.get(key)
}

/// One complaint of `haproxy -c` or of a failed reload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// Files and lines that it names, the most telling first: a certificate before the line that loads it.
    pub places: Vec<(String, Option<u32>)>,
    /// What HAProxy said, without its prefix.
    pub message: String,
}

/// The complaints in what HAProxy printed, without those that only sum up the others.
pub fn complaints(output: &str) -> Vec<Complaint> {
    let mut blocks: Vec<String> = Vec::new();
    let mut alert = false;
    for line in output.lines() {
        if line.starts_with('[') {
            alert = line.starts_with("[ALERT]");
            if alert {
                let text = line.split_once(") : ").map_or(line, |(_, rest)| rest);
                blocks.push(text.trim_start_matches("config : ").trim().to_owned());
            }
        } else if let (true, Some(block)) = (alert, blocks.last_mut()) {
            block.push(' ');
            block.push_str(line.trim());
        }
    }
    let sums_up = |text: &str| text.starts_with("Error(s) found") || text.starts_with("Fatal errors found");
    blocks.retain(|text| !sums_up(text));
    blocks.into_iter().map(|message| Complaint { places: places(&message), message }).collect()
}

fn places(message: &str) -> Vec<(String, Option<u32>)> {
    let mut found = Vec::new();
    // `unable to load certificate from file 'certs/x.pem'`, `Couldn't open the ca-file 'ca/x'`
    for word in message.split(['\'', ' ', ',']) {
        let word = word.trim_end_matches(['.', ':']);
        if ["certs/", "ca/", "maps/", "lists/", "errors/"].iter().any(|room| word.starts_with(room)) {
            found.push((word.to_owned(), None));
        }
    }
    // `error processing line 2 in file 'lists/https.list'`
    if let Some((_, rest)) = message.split_once("processing line ") {
        let line = rest.split(' ').next().and_then(|number| number.parse().ok());
        let file = rest.split('\'').nth(1).unwrap_or_default();
        found.retain(|(place, _)| place != file);
        found.push((file.to_owned(), line));
    }
    // `parsing [./50-backends-0a.cfg:12] : …`, `[dir/50-backends-0a.cfg:2] : …`
    for part in message.split('[').skip(1) {
        let place = part.split(']').next().unwrap_or_default();
        let Some((path, line)) = place.rsplit_once(':') else { continue };
        let Ok(line) = line.parse() else { continue };
        let name = path.rsplit('/').next().unwrap_or(path);
        found.push((name.to_owned(), Some(line)));
    }
    found
}

/// The resources that `complaint` points to, the most telling first.
pub fn culprits<'a>(bundle: &'a Bundle, complaint: &Complaint) -> Vec<&'a Arc<Resource>> {
    let mut found: Vec<&Arc<Resource>> = Vec::new();
    for (path, line) in &complaint.places {
        let resource = match line {
            Some(line) => locate(bundle, path, *line),
            None => [ResourceKey::Certificate(path.as_str().into()), ResourceKey::File(path.as_str().into())]
                .iter()
                .find_map(|key| bundle.get(key)),
        };
        found.extend(resource);
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::haproxy::bundle::{BackendClass, BackendHead, file_of};
    use crate::report::PrivateBytes;

    fn put(bundle: &mut Bundle, key: ResourceKey, content: Content) {
        bundle.set(&key.clone(), Some(Resource::new(key, content, Arc::new([]))));
    }

    fn server(name: &str) -> Server {
        Server {
            name: name.into(),
            address: "[::1]:80".parse().unwrap(),
            id: 7,
            guid: "g7".into(),
            keywords: "check inter 2000".into(),
            checked: true,
            weight: 5,
            drain: false,
            zone: None,
            here: None,
        }
    }

    fn backend(bundle: &mut Bundle, name: &str, servers: Vec<Server>) {
        let head = BackendHead { text: format!("backend {name} from s\n    guid {name}\n").into(), class: BackendClass::Private };
        put(bundle, ResourceKey::Backend(name.into()), Content::Backend(head));
        put(bundle, ResourceKey::Servers(name.into()), Content::Servers(servers.into()));
    }

    #[test]
    fn a_backend_is_followed_by_its_servers_and_each_line_finds_its_resource() {
        // names that fall into one shard
        let names: Vec<String> = (0..1000).map(|n| format!("b{n}")).collect();
        let shard = file_of(&ResourceKey::Backend("b0".into()));
        let names: Vec<&String> =
            names.iter().filter(|name| file_of(&ResourceKey::Backend(name.as_str().into())) == shard).take(2).collect();
        let mut bundle = Bundle::default();
        for name in &names {
            backend(&mut bundle, name, vec![server("s1"), server("s2")]);
        }
        let file = render_file(&bundle, &shard);
        let text = String::from_utf8(file.bytes.clone()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[2], "    server s1 [::1]:80 id 7 guid g7 check inter 2000 weight 5");
        assert_eq!(lines.len(), 8);
        assert_eq!(locate(&bundle, &shard, 4).unwrap().key, ResourceKey::Servers(names[0].as_str().into()));
        assert_eq!(locate(&bundle, &shard, 5).unwrap().key, ResourceKey::Backend(names[1].as_str().into()));
        assert_eq!(locate(&bundle, &shard, 6).unwrap().key, ResourceKey::Backend(names[1].as_str().into()));
        assert_eq!(render_bytes(&bundle, &shard), file.bytes);
    }

    #[test]
    fn a_draining_server_has_weight_zero() {
        let mut out = Vec::new();
        write_server(&mut out, &Server { drain: true, ..server("s1") });
        assert!(String::from_utf8(out).unwrap().ends_with(" weight 0"));
    }

    #[test]
    fn servers_without_a_backend_are_left_out() {
        let mut bundle = Bundle::default();
        put(&mut bundle, ResourceKey::Servers("lost".into()), Content::Servers(vec![server("s1")].into()));
        assert!(render_bytes(&bundle, &file_of(&ResourceKey::Servers("lost".into()))).is_empty());
    }

    #[test]
    fn a_map_without_entries_is_an_empty_file() {
        let mut bundle = Bundle::default();
        let key = ResourceKey::MapEntries { map: "maps/x.map".into(), owner: "".into() };
        put(&mut bundle, key, Content::MapEntries(vec![]));
        assert_eq!(bundle.files().map(AsRef::as_ref).collect::<Vec<&str>>(), ["maps/x.map"]);
        assert!(render_bytes(&bundle, "maps/x.map").is_empty());
    }

    #[test]
    fn blank_lines_and_carriage_returns_leave_a_pem() {
        assert_eq!(pem_lines(b"A\r\n\r\n\nB"), b"A\nB\n");
    }

    #[test]
    fn a_complaint_names_the_certificate_before_the_line_that_loads_it() {
        let output = "[NOTICE]   (1) : haproxy version is 3.2.26-1\n\
            [ALERT]    (1) : config : parsing [d/20-frontends.cfg:3] : 'bind 127.0.0.1:18443' in section 'frontend' : \n\
            \x20 'crt-list' : error processing line 2 in file 'lists/https.list' : unable to load certificate from file 'certs/x.pem': no start line.\n\
            [ALERT]    (1) : config : Error(s) found in configuration file : d/20-frontends.cfg\n\
            [ALERT]    (1) : config : [d/50-backends-01.cfg:2] : 'server q/s1' : Couldn't open the ca-file 'ca/none' (No such file).\n\
            [ALERT]    (1) : config : Fatal errors found in configuration.\n";
        let found = complaints(output);
        assert_eq!(found.len(), 2);
        let expected: Vec<(String, Option<u32>)> =
            vec![("certs/x.pem".into(), None), ("lists/https.list".into(), Some(2)), ("20-frontends.cfg".into(), Some(3))];
        assert_eq!(found[0].places, expected);
        assert_eq!(found[1].places[1], ("50-backends-01.cfg".into(), Some(2)));
        let mut bundle = Bundle::default();
        put(&mut bundle, ResourceKey::Certificate("certs/x.pem".into()), Content::Certificate(PrivateBytes::new(b"x".to_vec())));
        put(&mut bundle, ResourceKey::Section("20-frontends".into()), Content::Section("a\nb\nc\n".into()));
        let keys: Vec<String> = culprits(&bundle, &found[0]).iter().map(|resource| resource.key.to_string()).collect();
        assert_eq!(keys, ["certificate certs/x.pem", "section 20-frontends"]);
    }
}
