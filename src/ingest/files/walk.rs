//! Which files there are.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The path that stands for standard input.
pub(super) const STANDARD_INPUT: &str = "-";
/// A file that was written just before it was read may be written again within the same tick of its clock.
const CLOCK_TICK: Duration = Duration::from_millis(100);

/// What changes when a file does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    device: u64,
    inode: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Whether a later change would certainly show.
    pub(super) fn is_settled(metadata: &Metadata) -> bool {
        let modified = metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        SystemTime::now().duration_since(modified).is_ok_and(|age| age > CLOCK_TICK)
    }
}

/// What an input leads to.
#[derive(Debug, Default)]
pub(super) struct Found {
    /// Files in their order, each once.
    pub(super) files: Vec<(PathBuf, Stamp)>,
    /// Directories that were looked into, and those that symbolic links lead to: what is to be watched.
    pub(super) directories: BTreeSet<PathBuf>,
    /// What could not be looked at.
    pub(super) faults: Vec<(PathBuf, io::Error)>,
    seen: BTreeSet<(u64, u64)>,
}

impl Found {
    /// Looks at `input`: a file, or a directory and everything below it.
    pub(super) fn add(&mut self, input: &Path) {
        match fs::metadata(input) {
            Ok(metadata) if metadata.is_dir() => self.add_directory(input, &metadata),
            Ok(metadata) => self.add_file(input, &metadata),
            Err(error) => self.faults.push((input.to_owned(), error)),
        }
        self.follow(input);
    }

    fn add_file(&mut self, path: &Path, metadata: &Metadata) {
        if self.seen.insert((metadata.dev(), metadata.ino())) {
            self.files.push((path.to_owned(), Stamp::of(metadata)));
        }
    }

    fn add_directory(&mut self, path: &Path, metadata: &Metadata) {
        if !self.seen.insert((metadata.dev(), metadata.ino())) {
            return;
        }
        self.directories.insert(path.to_owned());
        let entries = match fs::read_dir(path) {
            Ok(entries) => entries,
            Err(error) => return self.faults.push((path.to_owned(), error)),
        };
        let mut paths: Vec<(PathBuf, bool)> = entries
            .filter_map(Result::ok)
            .filter(|entry| !is_hidden(&entry.file_name()))
            .map(|entry| (entry.path(), entry.file_type().is_ok_and(|kind| kind.is_symlink())))
            .collect();
        paths.sort();
        for (path, is_link) in paths {
            // What vanished in between is not there.
            let Ok(metadata) = fs::metadata(&path) else { continue };
            if is_link {
                self.follow(&path);
            }
            if metadata.is_dir() {
                self.add_directory(&path, &metadata);
            } else if metadata.is_file() && is_manifest(&path) {
                self.add_file(&path, &metadata);
            }
        }
    }

    /// Adds the directories of every link on the way from `path` to what it is: a link that is replaced there
    /// replaces what `path` is.
    fn follow(&mut self, path: &Path) {
        let mut path = path.to_owned();
        for _ in 0..16 {
            if let Some(parent) = path.parent() {
                self.directories.insert(if parent.as_os_str().is_empty() { PathBuf::from(".") } else { parent.to_owned() });
            }
            // A directory on the way may be a link itself, as `..data` is.
            for ancestor in path.ancestors().skip(1).filter(|ancestor| !ancestor.as_os_str().is_empty()) {
                if let Ok(target) = fs::read_link(ancestor) {
                    let parent = ancestor.parent().unwrap_or(Path::new(""));
                    self.directories.insert(parent.join(&target).parent().map_or_else(|| parent.to_owned(), Path::to_owned));
                    self.directories.insert(parent.to_owned());
                }
            }
            let Ok(target) = fs::read_link(&path) else { return };
            path = path.parent().unwrap_or(Path::new("")).join(target);
        }
    }
}

fn is_hidden(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b".")
}

fn is_manifest(path: &Path) -> bool {
    path.extension().and_then(OsStr::to_str).is_some_and(|extension| matches!(extension, "yaml" | "yml" | "json"))
}
