//! The directory that HAProxy reads, and the record that proves it whole.
//!
//! `current/` always holds the last configuration that HAProxy accepted, live changes included. A reload is
//! staged beside it in `staged/`, made of hard links and the files that differ; `live` is a link to the one
//! that HAProxy reads. Every file is replaced by rename, so a hard link is never written through.
//! `.record` in it holds the checksum of every file; one line is added before a file is replaced, so at any instant
//! a file matches the last or the last but one line about it.

use crate::haproxy::bundle::{Bundle, Digest, Name};
use crate::haproxy::files::render_bytes;
use crate::haproxy::maps;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

/// Inside the directory, so that it changes with it; HAProxy reads `*.cfg` only.
const RECORD: &str = ".record";

/// There while the pod is drained by hand, beside what HAProxy reads.
const DRAINED: &str = "drained";

/// Files that the agent writes itself, by path: `00-pod.cfg` and what else no bundle holds.
pub type PodFiles = BTreeMap<String, Vec<u8>>;

/// The directory of one HAProxy.
#[derive(Debug)]
pub struct Directory {
    root: PathBuf,
    pod: PodFiles,
    /// Whether the map of the pod says that it is drained by hand, whatever bundles say.
    drained: bool,
    /// Checksums of the files in `current/`.
    sums: BTreeMap<String, String>,
    record: Option<File>,
    lines: usize,
}

/// A configuration directory that verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastGood {
    /// The digest of the bundle that it was written from, if nothing was waiting then.
    pub digest: Option<Digest>,
}

fn sum(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..32].to_owned()
}

/// The file `path` of `bundle` in a pod that is `drained`, or not.
fn bytes_of(bundle: &Bundle, path: &str, drained: bool) -> Vec<u8> {
    let bytes = render_bytes(bundle, path);
    if path == maps::POD && drained { said(&bytes, true) } else { bytes }
}

/// The map of the pod with what is said of being drained by hand.
fn said(map: &[u8], drained: bool) -> Vec<u8> {
    let value = if drained { maps::TRUE } else { maps::FALSE };
    let mut out = Vec::with_capacity(map.len());
    for line in map.split_inclusive(|byte| *byte == b'\n') {
        let key =
            [maps::DRAINED, maps::CLOSING].into_iter().find(|key| line.strip_prefix(key.as_bytes()).is_some_and(|l| l.starts_with(b" ")));
        match key {
            Some(key) => out.extend_from_slice(format!("{key} {value}\n").as_bytes()),
            None => out.extend_from_slice(line),
        }
    }
    out
}

impl Directory {
    /// The directory below `root`, made if it does not exist.
    pub fn open(root: PathBuf, pod: PodFiles) -> io::Result<Self> {
        fs::create_dir_all(&root)?;
        let drained = root.join(DRAINED).exists();
        Ok(Self { root, pod, drained, sums: BTreeMap::new(), record: None, lines: 0 })
    }

    /// Where HAProxy reads: a link to one of the directories here.
    pub fn live(&self) -> PathBuf {
        self.root.join("live")
    }

    /// Where the next configuration is put together.
    pub fn staged(&self) -> PathBuf {
        self.root.join("staged")
    }

    fn current(&self) -> PathBuf {
        self.root.join("current")
    }

    /// Lets `live` point to `name` (`current`, `staged` or `bootstrap`).
    pub fn point(&self, name: &str) -> io::Result<()> {
        let new = self.root.join("live.new");
        remove(&new)?;
        symlink(name, &new)?;
        fs::rename(&new, self.live())
    }

    /// What `live` points to, if it is there.
    pub fn points_to(&self) -> Option<String> {
        fs::read_link(self.live()).ok()?.into_os_string().into_string().ok()
    }

    /// Whether there is a configuration that HAProxy accepted.
    pub fn is_whole(&self) -> bool {
        !self.sums.is_empty()
    }

    /// Writes `files` as the bootstrap.
    pub fn write_bootstrap(&self, files: &PodFiles) -> io::Result<()> {
        let path = self.root.join("bootstrap");
        remove_tree(&path)?;
        for (name, bytes) in files {
            create(&path, name, bytes)?;
        }
        Ok(())
    }

    /// Checks `current/` against the record and puts this pod's own files in. An error says what is wrong.
    pub fn verify(&mut self) -> Result<LastGood, String> {
        let record = fs::read_to_string(self.current().join(RECORD)).map_err(|error| format!("no record: {error}"))?;
        // of each file the present and the state before: its checksum, or nothing where it was not there
        let mut sums: BTreeMap<String, Vec<Option<String>>> = BTreeMap::new();
        let mut digest = None;
        // a torn last line was about a file that has not been replaced yet
        let whole = record.rsplit_once('\n').map_or("", |(whole, _)| whole);
        for line in whole.lines() {
            let (word, rest) = line.split_once(' ').ok_or_else(|| format!("a record with the line {line:?}"))?;
            if word == "digest" {
                digest = u128::from_str_radix(rest, 16).ok().map(Digest);
                continue;
            }
            let states = sums.entry(rest.to_owned()).or_default();
            states.push((word != "gone").then(|| word.to_owned()));
            states.drain(..states.len().saturating_sub(2));
            // a change that was not finished belongs to no digest
            digest = None;
        }
        if sums.is_empty() {
            return Err("an empty record".to_owned());
        }
        let mut found = BTreeMap::new();
        for (path, states) in sums {
            let actual = match fs::read(self.current().join(&path)) {
                Ok(bytes) => Some(sum(&bytes)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                Err(error) => return Err(format!("{path}: {error}")),
            };
            if !states.contains(&actual) {
                return Err(format!("{path} is not what was written"));
            }
            found.extend(actual.map(|sum| (path, sum)));
        }
        self.sums = found;
        let write = self.write_pod().and_then(|()| self.rewrite_record(digest)).and_then(|()| self.say_drained(self.drained, digest));
        write.map_err(|error| error.to_string())?;
        Ok(LastGood { digest })
    }

    fn write_pod(&self) -> io::Result<()> {
        for (name, bytes) in self.pod.iter().filter(|(name, _)| !self.sums.contains_key(*name)) {
            replace(&self.current(), name, bytes)?;
        }
        Ok(())
    }

    /// Gives this pod another file of its own: what is put together from now on has it, and so has what HAProxy starts with.
    pub fn set_pod_file(&mut self, name: &str, bytes: Vec<u8>) -> io::Result<()> {
        if self.is_whole() {
            replace(&self.current(), name, &bytes)?;
        }
        self.pod.insert(name.to_owned(), bytes);
        Ok(())
    }

    /// Whether the pod is drained by hand.
    pub fn is_drained(&self) -> bool {
        self.drained
    }

    /// Makes it so, or not any more, for whatever starts from now on. `digest` is that of the bundle that `current/` holds.
    pub fn set_drained(&mut self, drained: bool, digest: Option<Digest>) -> io::Result<()> {
        if drained {
            File::create(self.root.join(DRAINED))?;
        }
        self.say_drained(drained, digest)?;
        if !drained {
            remove(&self.root.join(DRAINED))?;
        }
        self.drained = drained;
        Ok(())
    }

    fn say_drained(&mut self, drained: bool, digest: Option<Digest>) -> io::Result<()> {
        let Some(known) = self.sums.get(maps::POD) else { return Ok(()) };
        let bytes = said(&fs::read(self.current().join(maps::POD))?, drained);
        let sum = sum(&bytes);
        if *known == sum {
            return Ok(());
        }
        if self.record.is_none() {
            self.rewrite_record(None)?;
        }
        self.note(&format!("{sum} {}\n", maps::POD))?;
        replace(&self.current(), maps::POD, &bytes)?;
        self.sums.insert(maps::POD.to_owned(), sum);
        self.note(&digest_line(digest))
    }

    /// Brings the files `paths` of `current/` to what `accepted` holds: referents before what names them.
    pub fn update(&mut self, accepted: &Bundle, paths: &BTreeSet<Name>, digest: Option<Digest>) -> io::Result<()> {
        if self.record.is_none() && !self.sums.is_empty() {
            self.rewrite_record(None)?;
        }
        let done = self.write_files(accepted, paths);
        if done.is_err() {
            // it may be ahead of the files by more than a step, or torn: it is written anew before the next try
            self.record = None;
        }
        done?;
        self.write_pod_if_missing()?;
        self.note(&digest_line(digest))?;
        if self.lines > 4 * self.sums.len() + 1000 {
            self.rewrite_record(digest)?;
        }
        Ok(())
    }

    fn write_files(&mut self, accepted: &Bundle, paths: &BTreeSet<Name>) -> io::Result<()> {
        let mut paths: Vec<&Name> = paths.iter().collect();
        paths.sort_by_key(|path| rank(path));
        let (present, gone): (Vec<&Name>, Vec<&Name>) = paths.into_iter().partition(|path| accepted.in_file(path).next().is_some());
        for path in present {
            let bytes = bytes_of(accepted, path, self.drained);
            let sum = sum(&bytes);
            if self.sums.get(path.as_ref()) == Some(&sum) {
                continue;
            }
            let fresh = !self.sums.contains_key(path.as_ref());
            self.note(&if fresh { format!("gone {path}\n{sum} {path}\n") } else { format!("{sum} {path}\n") })?;
            replace(&self.current(), path, &bytes)?;
            self.sums.insert(path.to_string(), sum);
        }
        for path in gone.into_iter().rev() {
            self.note(&format!("gone {path}\n"))?;
            remove(&self.current().join(path.as_ref()))?;
            self.sums.remove(path.as_ref());
        }
        Ok(())
    }

    fn write_pod_if_missing(&self) -> io::Result<()> {
        for (name, bytes) in &self.pod {
            if !self.current().join(name).exists() {
                replace(&self.current(), name, bytes)?;
            }
        }
        Ok(())
    }

    /// What puts the next configuration together, apart from the directory itself: it takes a while.
    pub fn stager(&self) -> Stager {
        let (current, staged) = (self.current(), self.staged());
        Stager { current, staged, pod: self.pod.clone(), drained: self.drained, sums: self.sums.clone() }
    }

    /// Writes the files `paths` of `staged/` again as `candidate` has them, and corrects `sums`.
    pub fn restage(&self, candidate: &Bundle, paths: &BTreeSet<Name>, sums: &mut BTreeMap<String, String>) -> io::Result<()> {
        for path in paths {
            if candidate.in_file(path).next().is_none() {
                remove(&self.staged().join(path.as_ref()))?;
                sums.remove(path.as_ref());
                continue;
            }
            let bytes = bytes_of(candidate, path, self.drained);
            // never through a hard link
            replace(&self.staged(), path, &bytes)?;
            sums.insert(path.to_string(), sum(&bytes));
        }
        for (name, bytes) in self.pod.iter().filter(|(name, _)| !sums.contains_key(*name)) {
            if !self.staged().join(name).exists() {
                create(&self.staged(), name, bytes)?;
            }
        }
        Ok(())
    }

    /// Makes `staged/`, which HAProxy runs by now, the last good one.
    pub fn promote(&mut self, sums: BTreeMap<String, String>, digest: Option<Digest>) -> io::Result<()> {
        let (current, staged) = (self.current(), self.staged());
        self.sums = sums;
        replace(&staged, RECORD, self.record_text(digest).as_bytes())?;
        // files and record change places in one step
        if current.exists() {
            renameat_with(CWD, &staged, CWD, &current, RenameFlags::EXCHANGE)?;
        } else {
            fs::rename(&staged, &current)?;
        }
        self.open_record()?;
        self.point("current")?;
        remove_tree(&staged)
    }

    fn rewrite_record(&mut self, digest: Option<Digest>) -> io::Result<()> {
        replace(&self.current(), RECORD, self.record_text(digest).as_bytes())?;
        self.open_record()
    }

    fn open_record(&mut self) -> io::Result<()> {
        self.record = Some(OpenOptions::new().append(true).open(self.current().join(RECORD))?);
        self.lines = self.sums.len();
        Ok(())
    }

    fn record_text(&self, digest: Option<Digest>) -> String {
        let mut text = String::new();
        for (path, sum) in &self.sums {
            text.push_str(sum);
            text.push(' ');
            text.push_str(path);
            text.push('\n');
        }
        if let Some(digest) = digest {
            text.push_str("digest ");
            text.push_str(&digest.to_string());
            text.push('\n');
        }
        text
    }

    fn note(&mut self, line: &str) -> io::Result<()> {
        self.lines += 1;
        match &mut self.record {
            Some(record) => record.write_all(line.as_bytes()),
            None => Err(io::Error::other("nothing was accepted yet")),
        }
    }
}

/// Puts a configuration together in `staged/`, beside live changes of `current/`.
#[derive(Debug)]
pub struct Stager {
    current: PathBuf,
    staged: PathBuf,
    pod: PodFiles,
    drained: bool,
    sums: BTreeMap<String, String>,
}

impl Stager {
    /// Puts `candidate` together: hard links to what `current/` already holds, given that it holds `accepted`, and
    /// the rest written. Returns the checksums for [`Directory::promote`]. A file of `current/` that is replaced
    /// meanwhile has to be staged again.
    pub fn stage(&self, accepted: &Bundle, candidate: &Bundle) -> io::Result<BTreeMap<String, String>> {
        let staged = &self.staged;
        remove_tree(staged)?;
        fs::create_dir_all(staged)?;
        let differing: BTreeSet<Name> =
            accepted.diff(candidate).into_iter().map(|change| crate::haproxy::bundle::file_of(&change.key)).collect();
        let mut sums = BTreeMap::new();
        for path in candidate.files() {
            let known = self.sums.get(path.as_ref()).filter(|_| !differing.contains(path));
            let sum = match known {
                Some(sum) if link(&self.current, staged, path).is_ok() => sum.clone(),
                _ => {
                    let bytes = bytes_of(candidate, path, self.drained);
                    create(staged, path, &bytes)?;
                    sum(&bytes)
                }
            };
            sums.insert(path.to_string(), sum);
        }
        for (name, bytes) in self.pod.iter().filter(|(name, _)| !sums.contains_key(*name)) {
            create(staged, name, bytes)?;
        }
        Ok(sums)
    }
}

fn digest_line(digest: Option<Digest>) -> String {
    format!("digest {}\n", digest.map_or_else(|| "-".to_owned(), |digest| digest.to_string()))
}

fn rank(path: &str) -> u8 {
    match path.split('/').next().unwrap_or_default() {
        "certs" | "ca" => 0,
        "lists" => 2,
        "maps" => 3,
        _ => 1,
    }
}

fn create(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let path = directory.join(name);
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?.write_all(bytes)
}

fn replace(directory: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    // HAProxy reads *.cfg only, so that a left-over is harmless
    let new = format!("{name}.new");
    create(directory, &new, bytes)?;
    fs::rename(directory.join(new), directory.join(name))
}

fn link(from: &Path, to: &Path, name: &str) -> io::Result<()> {
    let target = to.join(name);
    if let Some(parent) = target.parent() {
        fs::create_dir_all(parent)?;
    }
    fs::hard_link(from.join(name), target)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::haproxy::bundle::{Content, MapEntry, Resource, ResourceKey};
    use std::sync::Arc;

    fn set(bundle: &mut Bundle, name: &str, text: &str) -> BTreeSet<Name> {
        let key = ResourceKey::Section(name.into());
        bundle.set(&key, Some(Resource::new(key.clone(), Content::Section(text.into()), Arc::new([]))));
        BTreeSet::from([format!("{name}.cfg").into()])
    }

    fn pod() -> PodFiles {
        BTreeMap::from([("00-pod.cfg".to_owned(), b"pod\n".to_vec())])
    }

    fn accepted(root: &Path) -> (Directory, Bundle) {
        let mut bundle = Bundle::default();
        set(&mut bundle, "10-a", "a\n");
        set(&mut bundle, "20-b", "b\n");
        let mut directory = Directory::open(root.to_owned(), pod()).unwrap();
        let sums = directory.stager().stage(&Bundle::default(), &bundle).unwrap();
        directory.promote(sums, Some(bundle.digest())).unwrap();
        (directory, bundle)
    }

    fn verify(root: &Path) -> Result<LastGood, String> {
        Directory::open(root.to_owned(), pod()).unwrap().verify()
    }

    #[test]
    fn what_was_accepted_verifies_with_its_digest_after_every_change() {
        let root = tempfile::tempdir().unwrap();
        let (mut directory, mut bundle) = accepted(root.path());
        assert_eq!(verify(root.path()), Ok(LastGood { digest: Some(bundle.digest()) }));
        // verifying writes the record anew
        directory.verify().unwrap();
        for number in 0..2000 {
            let paths = set(&mut bundle, "10-a", &format!("a{number}\n"));
            directory.update(&bundle, &paths, Some(bundle.digest())).unwrap();
        }
        let key = ResourceKey::Section("20-b".into());
        bundle.set(&key, None);
        directory.update(&bundle, &BTreeSet::from(["20-b.cfg".into()]), None).unwrap();
        assert!(!root.path().join("current/20-b.cfg").exists());
        assert_eq!(verify(root.path()), Ok(LastGood { digest: None }));
    }

    #[test]
    fn a_flipped_bit_or_a_lost_file_is_found() {
        let root = tempfile::tempdir().unwrap();
        accepted(root.path());
        fs::write(root.path().join("current/20-b.cfg"), "c\n").unwrap();
        assert!(verify(root.path()).unwrap_err().contains("20-b.cfg"));
        fs::remove_file(root.path().join("current/20-b.cfg")).unwrap();
        assert!(verify(root.path()).is_err());
        assert!(verify(&root.path().join("nothing")).is_err());
    }

    #[test]
    fn a_crash_between_record_and_file_leaves_a_state_that_verifies() {
        let root = tempfile::tempdir().unwrap();
        let (mut directory, _) = accepted(root.path());
        directory.note(&format!("{} 20-b.cfg\n", sum(b"never written\n"))).unwrap();
        assert_eq!(verify(root.path()), Ok(LastGood { digest: None }));
        // and in the middle of a line
        let (mut directory, bundle) = accepted(root.path());
        directory.note("0123").unwrap();
        assert_eq!(verify(root.path()), Ok(LastGood { digest: Some(bundle.digest()) }));
    }

    fn with_pod_map(bundle: &mut Bundle, closing: &str) -> BTreeSet<Name> {
        let key = ResourceKey::MapEntries { map: maps::POD.into(), owner: "pod".into() };
        let entry = |key: &str, value: &str| MapEntry { key: key.into(), value: value.into() };
        let entries = vec![entry("closing", closing), entry("closing-not", "0"), entry("drained", "0")];
        bundle.set(&key, Some(Resource::new(key.clone(), Content::MapEntries(entries), Arc::new([]))));
        BTreeSet::from([maps::POD.into()])
    }

    #[test]
    fn a_drained_pod_says_so_in_whatever_is_written_until_it_is_not() {
        let root = tempfile::tempdir().unwrap();
        let (mut directory, mut bundle) = accepted(root.path());
        let says = |room: &str| fs::read_to_string(root.path().join(room).join(maps::POD)).unwrap();
        directory.set_drained(true, Some(bundle.digest())).unwrap();
        let paths = with_pod_map(&mut bundle, "0");
        directory.update(&bundle, &paths, Some(bundle.digest())).unwrap();
        assert_eq!(says("current"), "closing 1\nclosing-not 0\ndrained 1\n");
        // another agent finds it so
        let mut directory = Directory::open(root.path().to_owned(), pod()).unwrap();
        assert_eq!(directory.verify(), Ok(LastGood { digest: Some(bundle.digest()) }));
        assert!(directory.is_drained());
        let mut next = bundle.clone();
        let paths = with_pod_map(&mut next, "x");
        let mut sums = directory.stager().stage(&bundle, &next).unwrap();
        assert_eq!(says("staged"), "closing 1\nclosing-not 0\ndrained 1\n");
        directory.restage(&next, &paths, &mut sums).unwrap();
        assert_eq!(says("staged"), "closing 1\nclosing-not 0\ndrained 1\n");
        directory.promote(sums, Some(next.digest())).unwrap();
        directory.set_drained(false, Some(next.digest())).unwrap();
        assert_eq!(says("current"), "closing 0\nclosing-not 0\ndrained 0\n");
        assert_eq!(verify(root.path()), Ok(LastGood { digest: Some(next.digest()) }));
        assert!(!Directory::open(root.path().to_owned(), pod()).unwrap().is_drained());
    }

    #[test]
    fn an_agent_that_ended_while_it_drained_its_pod_is_followed_by_one_that_goes_on() {
        let root = tempfile::tempdir().unwrap();
        let (mut directory, mut bundle) = accepted(root.path());
        let paths = with_pod_map(&mut bundle, "0");
        directory.update(&bundle, &paths, Some(bundle.digest())).unwrap();
        File::create(root.path().join(DRAINED)).unwrap();
        assert_eq!(verify(root.path()), Ok(LastGood { digest: Some(bundle.digest()) }));
        let map = fs::read_to_string(root.path().join("current").join(maps::POD)).unwrap();
        assert!(map.contains("drained 1\n"), "{map}");
    }

    #[test]
    fn a_stage_shares_what_did_not_change_and_leaves_current_alone() {
        use std::os::unix::fs::MetadataExt;
        let root = tempfile::tempdir().unwrap();
        let (directory, bundle) = accepted(root.path());
        let mut next = bundle.clone();
        set(&mut next, "20-b", "c\n");
        directory.stager().stage(&bundle, &next).unwrap();
        let inode = |path: &str| fs::metadata(root.path().join(path)).unwrap().ino();
        assert_eq!(inode("current/10-a.cfg"), inode("staged/10-a.cfg"));
        assert_ne!(inode("current/20-b.cfg"), inode("staged/20-b.cfg"));
        assert_eq!(fs::read_to_string(root.path().join("current/20-b.cfg")).unwrap(), "b\n");
        assert_eq!(fs::read_to_string(root.path().join("staged/00-pod.cfg")).unwrap(), "pod\n");
    }
}
