//! The arrows between rooms: what `ARCHITECTURE.md` promises about who may use whom.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Which rooms a room may use. A room that is not listed here does not exist.
const ARROWS: &[(&str, &[&str])] = &[
    ("report", &[]),
    ("api", &["report"]),
    ("world", &["api", "report"]),
    ("ingest", &["world", "api", "report"]),
    ("model", &["report"]),
    ("translate", &["world", "api", "model", "report"]),
    ("haproxy", &["model", "report"]),
    ("pipeline", &["world", "api", "translate", "model", "haproxy", "report"]),
    ("agent", &["haproxy", "report"]),
    ("delivery", &["agent", "haproxy", "model", "report"]),
    ("fleet", &["api", "world", "report", "haproxy"]),
    ("status", &["api", "world", "report"]),
    ("telemetry", &[]),
    ("admin", &["status", "telemetry"]),
];

/// Rooms that wire the others together.
const WIRING: &[&str] = &["local", "operator", "cli"];

/// Rooms whose code is a function of its input.
const PURE: &[&str] = &["report", "api", "world", "model", "translate", "haproxy", "pipeline"];

/// What a pure room cannot reach: a runtime, a socket, a file, a process, a clock, a client.
const IMPURE: &[&str] = &[
    "tokio",
    "std::fs",
    "std::net::Tcp",
    "std::net::Udp",
    "std::os::unix::net",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "Instant::now",
    "SystemTime::now",
    "notify::",
    "axum",
    "kube::Client",
    "kube::client",
];

fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

/// Every room with the text of its product code: tests may use what they like.
fn rooms() -> BTreeMap<String, Vec<(PathBuf, String)>> {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = Vec::new();
    files(&src, &mut found);
    let mut rooms: BTreeMap<String, Vec<(PathBuf, String)>> = BTreeMap::new();
    for path in found {
        let relative = path.strip_prefix(&src).unwrap().to_path_buf();
        let first = relative.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned();
        let is_test = relative.components().any(|c| matches!(c.as_os_str().to_str(), Some("tests" | "tests.rs")));
        if matches!(first.as_str(), "lib" | "main") || is_test {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let product = text.split("#[cfg(test)]\nmod ").next().unwrap().to_owned();
        rooms.entry(first).or_default().push((relative, product));
    }
    rooms
}

fn code(text: &str) -> impl Iterator<Item = &str> {
    text.lines().filter(|line| !line.trim_start().starts_with("//"))
}

#[test]
fn every_room_is_in_the_table_and_uses_only_what_the_table_allows() {
    let allowed: BTreeMap<&str, BTreeSet<&str>> = ARROWS.iter().map(|(room, uses)| (*room, uses.iter().copied().collect())).collect();
    let mut wrong = Vec::new();
    for (room, files) in rooms() {
        if WIRING.contains(&room.as_str()) {
            continue;
        }
        let Some(uses) = allowed.get(room.as_str()) else {
            wrong.push(format!("src/{room} is not in the table of rooms"));
            continue;
        };
        for (path, text) in files {
            for line in code(&text) {
                for part in line.split("crate::").skip(1) {
                    let other: String = part.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                    if !other.is_empty() && other != room && !uses.contains(other.as_str()) {
                        wrong.push(format!("{}: {room} may not use {other}: {}", path.display(), line.trim()));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn pure_rooms_reach_no_runtime_socket_file_process_or_clock() {
    let mut wrong = Vec::new();
    for (room, files) in rooms() {
        if !PURE.contains(&room.as_str()) {
            continue;
        }
        for (path, text) in files {
            for line in code(&text) {
                for word in IMPURE.iter().filter(|word| line.contains(**word)) {
                    wrong.push(format!("{}: {room} is pure but reaches {word}: {}", path.display(), line.trim()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn main_stays_under_thirty_lines() {
    let main = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("src/main.rs")).unwrap();
    assert!(main.lines().count() < 30);
}
