//! What the tests share: the real HAProxy of both release lines.

use haproxy_fleet::haproxy::version::Version;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The HAProxy of both supported release lines, newest first, as `tools/haproxy` finds or gets them.
pub fn haproxies() -> &'static [(Version, PathBuf)] {
    static FOUND: OnceLock<Vec<(Version, PathBuf)>> = OnceLock::new();
    FOUND.get_or_init(|| ["3.4", "3.2"].map(haproxy).to_vec())
}

fn haproxy(line: &str) -> (Version, PathBuf) {
    let tool = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/haproxy");
    let output = Command::new(tool).arg(line).output().expect("tools/haproxy runs");
    assert!(output.status.success(), "tools/haproxy {line}: {}", String::from_utf8_lossy(&output.stderr));
    let stdout = String::from_utf8(output.stdout).expect("a path in UTF-8");
    let path = PathBuf::from(stdout.lines().last().expect("a path"));
    let banner = Command::new(&path).arg("-v").output().expect("haproxy runs").stdout;
    let banner = String::from_utf8_lossy(&banner).into_owned();
    let number = banner.split_whitespace().nth(2).expect("HAProxy version X");
    (number.parse().expect("a version"), path)
}
