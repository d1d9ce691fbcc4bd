//! A directory as the tar of a layer.

use crate::PackError;
use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tar::{Builder, EntryType, Header};

/// Writes all that is under `root`, parents first and names in byte order, owned by root and dated 1970.
pub(crate) fn write(root: &Path, out: impl Write) -> Result<(), PackError> {
    let mut tar = Builder::new(out);
    directory(&mut tar, root, Path::new(""))?;
    tar.finish().map_err(PackError::file(root))
}

fn directory(tar: &mut Builder<impl Write>, root: &Path, inside: &Path) -> Result<(), PackError> {
    let path = root.join(inside);
    let entries = fs::read_dir(&path).and_then(Iterator::collect::<io::Result<Vec<_>>>);
    let mut names: Vec<_> = entries.map_err(PackError::file(&path))?.iter().map(fs::DirEntry::file_name).collect();
    names.sort();
    names.iter().try_for_each(|name| entry(tar, root, &inside.join(name)))
}

fn entry(tar: &mut Builder<impl Write>, root: &Path, inside: &Path) -> Result<(), PackError> {
    let path = root.join(inside);
    let metadata = fs::symlink_metadata(&path).map_err(PackError::file(&path))?;
    let kind = metadata.file_type();
    if kind.is_dir() {
        tar.append_data(&mut header(EntryType::Directory, &metadata, 0), inside, io::empty()).map_err(PackError::file(&path))?;
        return directory(tar, root, inside);
    }
    if kind.is_symlink() {
        let target = fs::read_link(&path).map_err(PackError::file(&path))?;
        return tar.append_link(&mut header(EntryType::Symlink, &metadata, 0), inside, target).map_err(PackError::file(&path));
    }
    if !kind.is_file() {
        return Err(PackError::Special { path });
    }
    let content = File::open(&path).map_err(PackError::file(&path))?;
    tar.append_data(&mut header(EntryType::Regular, &metadata, metadata.len()), inside, content).map_err(PackError::file(&path))
}

fn header(kind: EntryType, metadata: &Metadata, size: u64) -> Header {
    let mut header = owned_by_root(kind, size);
    header.set_mode(metadata.permissions().mode() & 0o7777);
    header
}

/// A header with nothing in it that differs from one packing to the next.
pub(crate) fn owned_by_root(kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(size);
    header
}
