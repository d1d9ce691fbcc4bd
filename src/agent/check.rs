//! Whether HAProxy would load a configuration that it does not run.

use super::last_good::Directory;
use super::pod::{self, Pod};
use super::process;
use crate::haproxy::bundle::Bundle;
use std::io;
use std::path::{Path, PathBuf};

/// Asks the program `haproxy` whether it would load `bundle` in `pod`; if not, what it says. It is put together in
/// `directory`, which is removed in the end: it holds keys.
pub async fn check(haproxy: &Path, directory: PathBuf, pod: &Pod, bundle: &Bundle) -> io::Result<Result<(), String>> {
    let files = pod::files(pod, "check").map_err(io::Error::other)?;
    let staged = stage(directory.clone(), files, bundle.clone()).await;
    let checked = match staged {
        Ok(staged) => process::validate(haproxy, &staged).await,
        Err(error) => Err(error),
    };
    match tokio::fs::remove_dir_all(&directory).await {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => checked,
    }
}

async fn stage(root: PathBuf, files: super::last_good::PodFiles, bundle: Bundle) -> io::Result<PathBuf> {
    let work = move || {
        let directory = Directory::open(root, files)?;
        directory.stager().stage(&Bundle::default(), &bundle)?;
        Ok(directory.staged())
    };
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}
