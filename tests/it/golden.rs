//! Golden pairs: `tests/golden/AREA/CASE/in.yaml` and all that the pipeline makes of it, below `out`.
//!
//! Every sentence about Ingress, fleets and policies has its case. `BLESS=1 cargo test --test it golden` writes
//! `out` anew. Private keys are left out; files that say the same for every fleet stand in one case only.

use crate::running::assert_accepted;
use crate::support::haproxies;
use haproxy_fleet::cli::evaluate::evaluate;
use haproxy_fleet::cli::report::{Style, findings};
use haproxy_fleet::cli::{Evaluation, FleetFiles};
use haproxy_fleet::haproxy::version::Version;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The case that shows what is the same for every fleet, and those files.
const USUAL: &str = "tests/golden/ingress/an-exact-host-is-served";
const USUAL_FILES: [&str; 5] = ["00-pod.cfg", "10-global.cfg", "20-frontends.cfg", "certs/_default.pem", "certs/_tickets.keys"];

type Tree = BTreeMap<PathBuf, String>;

/// Directories below `tests/golden` that hold an `in.yaml` or an `out`, relative to the package.
fn cases() -> Vec<PathBuf> {
    let mut cases = Vec::new();
    for area in children(Path::new("tests/golden")) {
        cases.extend(children(&area).into_iter().filter(|case| case.join("in.yaml").exists() || case.join("out").exists()));
    }
    cases.sort();
    assert!(cases.len() > 50, "the cases were not found: run this from the package's directory");
    cases
}

fn children(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_dir()).collect()
}

fn run(case: &Path, version: Version) -> Evaluation {
    evaluate(&[case.join("in.yaml")], version).unwrap_or_else(|error| panic!("{}: {error}", case.display()))
}

/// Where the files of a fleet go: with one fleet, to `haproxy`.
fn home(evaluation: &Evaluation, fleet: &FleetFiles) -> PathBuf {
    let one = evaluation.fleets.len() == 1;
    if one { "haproxy".into() } else { Path::new(&*fleet.fleet.namespace).join(&*fleet.fleet.name).join("haproxy") }
}

/// `text` without private keys.
fn redacted(text: &str) -> String {
    let mut out = String::new();
    let mut hidden = false;
    for line in text.lines() {
        if line.starts_with("-----BEGIN") && line.contains("PRIVATE KEY") {
            hidden = true;
            out.push_str("[a private key]\n");
        }
        if !hidden {
            out.push_str(line);
            out.push('\n');
        }
        hidden &= !line.starts_with("-----END");
    }
    out
}

/// All that is to be compared. Maps without entries are left out, and files that `usual` has too. Kubernetes objects
/// stand in the cases about fleets, without the configuration where that is the usual one.
fn tree(case: &Path, evaluation: &Evaluation, usual: Option<&Tree>) -> Tree {
    let mut tree = Tree::new();
    for fleet in &evaluation.fleets {
        let home = home(evaluation, fleet);
        if case.starts_with("tests/golden/fleet") {
            tree.insert(home.with_file_name("objects.yaml"), fleet.objects.clone());
        }
        for file in fleet.haproxy.iter().filter(|file| !file.content.is_empty()) {
            let text = redacted(std::str::from_utf8(&file.content).unwrap());
            let shown = usual.and_then(|usual| usual.get(&Path::new("haproxy").join(&file.path)));
            if !(USUAL_FILES.contains(&file.path.as_str()) && shown == Some(&text)) {
                tree.insert(home.join(&file.path), text);
            }
        }
    }
    let place = format!("{}/", case.display());
    tree.insert("diagnostics.txt".into(), findings(&evaluation.diagnostics, Style::PLAIN).replace(&place, ""));
    tree
}

fn read(directory: &Path, below: &Path, tree: &mut Tree) {
    for entry in fs::read_dir(directory.join(below)).into_iter().flatten() {
        let entry = entry.unwrap();
        let path = below.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            read(directory, &path, tree);
        } else {
            tree.insert(path.clone(), fs::read_to_string(directory.join(&path)).unwrap());
        }
    }
}

fn bless(out: &Path, tree: &Tree) {
    let _ = fs::remove_dir_all(out);
    for (path, text) in tree {
        fs::create_dir_all(out.join(path).parent().unwrap()).unwrap();
        fs::write(out.join(path), text).unwrap();
    }
}

/// The first line in which two texts differ.
fn difference(was: &str, is: &str) -> String {
    let (mut old, mut new) = (was.lines(), is.lines());
    for number in 1.. {
        match (old.next(), new.next()) {
            (None, None) => return "the last line feed".to_owned(),
            (a, b) if a == b => {}
            (a, b) => return format!("line {number}\n  golden: {}\n  now:    {}", a.unwrap_or("(none)"), b.unwrap_or("(none)")),
        }
    }
    String::new()
}

#[test]
fn every_golden_input_becomes_its_golden_output() {
    let version = haproxy_version("3.4");
    let usual = tree(Path::new(USUAL), &run(Path::new(USUAL), version), None);
    let mut faults = Vec::new();
    for case in cases() {
        if !case.join("in.yaml").exists() {
            faults.push(format!("{}: an out without an in.yaml", case.display()));
            continue;
        }
        let is = tree(&case, &run(&case, version), (case != Path::new(USUAL)).then_some(&usual));
        let out = case.join("out");
        if std::env::var_os("BLESS").is_some() {
            bless(&out, &is);
        }
        let mut was = Tree::new();
        read(&out, Path::new(""), &mut was);
        for path in was.keys().chain(is.keys()).collect::<BTreeSet<_>>() {
            let shown = out.join(path).display().to_string();
            match (was.get(path), is.get(path)) {
                (Some(was), Some(is)) if was == is => {}
                (Some(was), Some(is)) => faults.push(format!("{shown}: {}", difference(was, is))),
                (Some(_), None) => faults.push(format!("{shown}: stale, it is not made any more")),
                (None, _) => faults.push(format!("{shown}: new, it is not there yet")),
            }
        }
    }
    assert!(faults.is_empty(), "{}\nBLESS=1 writes what is made now", faults.join("\n"));
}

fn haproxy_version(line: &str) -> Version {
    format!("{line}.0").parse().unwrap()
}

#[test]
fn no_golden_file_holds_a_private_key() {
    for case in cases() {
        let mut tree = Tree::new();
        read(&case.join("out"), Path::new(""), &mut tree);
        for (path, text) in tree {
            assert!(!text.contains("BEGIN PRIVATE KEY") && !text.contains("BEGIN EC PRIVATE KEY"), "{}", case.join(path).display());
        }
    }
}

#[test]
fn both_release_lines_accept_what_every_golden_input_becomes() {
    let cases = cases();
    let work: Vec<(&Version, &Path, &PathBuf)> =
        haproxies().iter().flat_map(|(version, haproxy)| cases.iter().map(move |case| (version, haproxy.as_path(), case))).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while let Some((version, haproxy, case)) = work.get(next.fetch_add(1, Ordering::Relaxed)) {
                    check(**version, haproxy, case);
                }
            });
        }
    });
}

fn check(version: Version, haproxy: &Path, case: &Path) {
    let directory = tempfile::tempdir().unwrap();
    let evaluation = run(case, version);
    for fleet in &evaluation.fleets {
        let home = directory.path().join(home(&evaluation, fleet));
        for file in &fleet.haproxy {
            let path = home.join(&file.path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, &file.content).unwrap();
        }
        assert_accepted(haproxy, &home, &case.display().to_string());
    }
}
