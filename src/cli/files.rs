//! The files of a configuration for people: private keys are not among what is shown. Pure.

use super::OutputFile;
use super::report::{Style, printable};
use crate::haproxy::bundle::{Bundle, Change, Name, ResourceKey};
use crate::haproxy::files::render_bytes;
use crate::status::json::ConfigFile;
use similar::TextDiff;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

/// What stands in front of every private key.
const KEY: &[u8] = b"PRIVATE KEY-----";
/// A difference is no longer looked for than that: what is not the smallest one is a difference all the same.
const PATIENCE: Duration = Duration::from_secs(5);

/// The files of `bundle`, in the order of their paths.
pub(super) fn of(bundle: &Bundle) -> Vec<OutputFile> {
    let file = |path: &Name| {
        let content = render_bytes(bundle, path);
        let private = bundle.in_file(path).any(|key| match key {
            ResourceKey::Certificate(_) => true,
            // it should hold none, but people make it
            ResourceKey::File(_) => content.windows(KEY.len()).any(|part| part == KEY),
            _ => false,
        });
        OutputFile { path: path.to_string(), content, private }
    };
    bundle.files().map(file).collect()
}

/// The files of `bundle` as they may be shown.
pub fn shown(bundle: &Bundle) -> Vec<ConfigFile> {
    let file = |file: OutputFile| ConfigFile {
        path: file.path,
        bytes: file.content.len() as u64,
        text: (!file.private).then(|| String::from_utf8_lossy(&file.content).into_owned()),
    };
    of(bundle).into_iter().map(file).collect()
}

/// `bundle` without its endpoints, which are no part of a revision.
pub(super) fn without_endpoints(bundle: &Bundle) -> Bundle {
    let endpoints = bundle.resources().filter(|resource| matches!(resource.key, ResourceKey::Servers(_)));
    let gone: Vec<Change> = endpoints.map(|resource| Change { key: resource.key.clone(), before: None, after: None }).collect();
    let mut rest = bundle.clone();
    rest.apply(&gone);
    rest
}

/// What HAProxy reads first, one file after the other, each below its name: all but maps, lists and the like.
pub(super) fn page(files: &[ConfigFile]) -> String {
    let mut text = String::new();
    let is_read_first = |file: &&ConfigFile| Path::new(&file.path).extension().is_some_and(|extension| extension == "cfg");
    for file in files.iter().filter(is_read_first) {
        // writing to a string cannot fail
        let _ = writeln!(text, "# ==> {} <==", file.path);
        text.push_str(file.text.as_deref().unwrap_or_default());
    }
    text
}

/// The names of all files with their sizes.
pub(super) fn table(files: &[ConfigFile]) -> String {
    let width = files.iter().map(|file| file.bytes.to_string().len()).max().unwrap_or(0).max("BYTES".len());
    let mut text = format!("{:>width$}  FILE\n", "BYTES");
    for file in files {
        let private = if file.text.is_none() { "  (a private key, which is not shown)" } else { "" };
        // writing to a string cannot fail
        let _ = writeln!(text, "{:>width$}  {}{private}", file.bytes, file.path);
    }
    text
}

/// What is written differently in `new`, as `diff -u` says it; empty if nothing is.
pub(super) fn difference(old: &[ConfigFile], new: &[ConfigFile], names: (&str, &str)) -> String {
    let texts = |files: &[ConfigFile]| -> BTreeMap<String, String> {
        files.iter().filter_map(|file| Some((file.path.clone(), file.text.clone()?))).collect()
    };
    let (old, new) = (texts(old), texts(new));
    let paths: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    let mut text = String::new();
    for path in paths {
        let side = |files: &BTreeMap<String, String>| files.get(path).cloned().unwrap_or_default();
        let (before, after) = (side(&old), side(&new));
        if before == after {
            continue;
        }
        let compared = TextDiff::configure().timeout(PATIENCE).diff_lines(&before, &after);
        let (from, to) = (format!("{}/{path}", names.0), format!("{}/{path}", names.1));
        text.push_str(&compared.unified_diff().header(&from, &to).to_string());
    }
    text
}

/// A difference in colours.
pub(super) fn painted(difference: &str, style: Style) -> String {
    let line = |line: &str| match line.as_bytes().first() {
        Some(b'+') => style.paint("32", line),
        Some(b'-') => style.paint("31", line),
        Some(b'@') => style.paint("36", line),
        _ => line.to_owned(),
    };
    difference.lines().map(|text| line(text) + "\n").collect()
}

/// `text` for a terminal: as it is, but for what a terminal would act on.
pub(super) fn for_terminal(text: &str) -> String {
    // the head of an error page has ends of lines as HTTP does
    let lines = text.replace("\r\n", "\n");
    lines.split('\t').map(|part| printable(part, true)).collect::<Vec<_>>().join("\t")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::haproxy::bundle::{BackendClass, BackendHead, Content, Resource, Server};
    use crate::report::PrivateBytes;
    use std::sync::Arc;

    fn bundle(resources: Vec<(ResourceKey, Content)>) -> Bundle {
        let mut bundle = Bundle::default();
        for (key, content) in resources {
            bundle.set(&key.clone(), Some(Resource::new(key, content, Arc::new([]))));
        }
        bundle
    }

    fn file(path: &str, text: &str) -> ConfigFile {
        ConfigFile { path: path.into(), bytes: text.len() as u64, text: Some(text.into()) }
    }

    #[test]
    fn no_private_key_is_among_what_is_shown_wherever_it_stands() {
        let key = "-----BEGIN PRIVATE KEY-----\nQUJD\n-----END PRIVATE KEY-----\n";
        let bytes = || PrivateBytes::new(key.as_bytes().to_vec());
        let files = shown(&bundle(vec![
            (ResourceKey::Section("10-global".into()), Content::Section("global\n".into())),
            (ResourceKey::Certificate("certs/a.pem".into()), Content::Certificate(PrivateBytes::new(*b"QUJD"))),
            (ResourceKey::File("ca/b.pem".into()), Content::File(bytes())),
        ]));
        let paths: Vec<(&str, bool)> = files.iter().map(|file| (&*file.path, file.text.is_some())).collect();
        assert_eq!(paths, [("10-global.cfg", true), ("ca/b.pem", false), ("certs/a.pem", false)]);
        let all = format!("{}{}{}", page(&files), table(&files), serde_json::to_string(&files).unwrap());
        assert!(!all.contains("QUJD") && all.contains("5  certs/a.pem  (a private key, which is not shown)"), "{all}");
    }

    #[test]
    fn the_page_is_what_haproxy_reads_first_in_its_order() {
        let files = [file("10-global.cfg", "global\n"), file("20-frontends.cfg", "frontend x\n"), file("maps/a.map", "a b\n")];
        assert_eq!(page(&files), "# ==> 10-global.cfg <==\nglobal\n# ==> 20-frontends.cfg <==\nfrontend x\n");
        assert_eq!(table(&files), "BYTES  FILE\n    7  10-global.cfg\n   11  20-frontends.cfg\n    4  maps/a.map\n");
    }

    #[test]
    fn a_difference_is_told_by_file_with_what_stands_around_it() {
        let old = [file("10-global.cfg", "global\n    maxconn 1\n"), file("maps/old.map", "a b\n")];
        let new = [file("10-global.cfg", "global\n    maxconn 2\n"), file("maps/same.map", "")];
        let told = difference(&old, &new, ("6", "7"));
        assert_eq!(
            told,
            "\
--- 6/10-global.cfg
+++ 7/10-global.cfg
@@ -1,2 +1,2 @@
 global
-    maxconn 1
+    maxconn 2
--- 6/maps/old.map
+++ 7/maps/old.map
@@ -1 +0,0 @@
-a b
"
        );
        assert_eq!(difference(&new, &new, ("7", "7")), "");
        assert!(painted(&told, Style { colours: true }).contains("\x1b[32m+    maxconn 2\x1b[0m\n"));
    }

    #[test]
    fn endpoints_are_left_out_where_revisions_are_compared() {
        let head = BackendHead { text: "backend a\n".into(), class: BackendClass::Private };
        let server = Server {
            name: "s1".into(),
            address: "192.0.2.1:80".parse().unwrap(),
            id: 1,
            guid: "g".into(),
            keywords: "".into(),
            checked: false,
            weight: 1,
            drain: false,
            zone: None,
            here: None,
        };
        let whole = bundle(vec![
            (ResourceKey::Backend("a".into()), Content::Backend(head)),
            (ResourceKey::Servers("a".into()), Content::Servers(vec![server].into())),
        ]);
        assert!(page(&shown(&whole)).contains("server s1 192.0.2.1:80"));
        assert!(page(&shown(&without_endpoints(&whole))).ends_with("backend a\n"));
    }

    #[test]
    fn a_terminal_gets_the_text_without_what_it_would_act_on() {
        assert_eq!(for_terminal("HTTP/1.0 503\r\n\r\n\tx\x1b[2J\n"), "HTTP/1.0 503\n\n\tx\\u{1b}[2J\n");
    }
}
