//! Which HAProxies there are to run.

use crate::haproxy::version::{FLOOR, Version};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A HAProxy that fleets can run on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Haproxy {
    /// Its version.
    pub version: Version,
    /// Its program.
    pub path: PathBuf,
}

/// Why there is no HAProxy to run.
#[derive(Debug, thiserror::Error)]
pub enum NoHaproxy {
    /// It does not run, or it is none.
    #[error("{path} is no HAProxy that runs here: {reason}")]
    Broken {
        /// The program.
        path: PathBuf,
        /// What happened.
        reason: String,
    },
    /// It lacks fixes that changes under load need.
    #[error("{path} is HAProxy {version}, and fleets need at least {FLOOR}")]
    TooOld {
        /// The program.
        path: PathBuf,
        /// Its version.
        version: Version,
    },
    /// Nothing was named, and nothing found.
    #[error("there is no haproxy on PATH")]
    NotFound,
}

impl NoHaproxy {
    /// What to do about it.
    pub fn help() -> String {
        format!("`tools/haproxy` of this repository finds or gets one; name it by --haproxy PATH or HAPROXY=PATH (at least {FLOOR})")
    }
}

/// The HAProxies to run: the `named` ones, else `$HAPROXY`, else the one on PATH. Newest first; each is asked for
/// its version.
pub fn find(named: &[PathBuf]) -> Result<Vec<Haproxy>, NoHaproxy> {
    let mut found = match named {
        [] => vec![probe(&default_program(std::env::var_os("HAPROXY").as_deref(), std::env::var_os("PATH").as_deref())?)?],
        named => named.iter().map(|path| probe(path)).collect::<Result<Vec<_>, _>>()?,
    };
    found.sort_by_key(|haproxy| std::cmp::Reverse(haproxy.version));
    Ok(found)
}

/// The HAProxy for a fleet that wants the release line of `wanted`, else the newest: `found` is as [`find`] returns it.
pub fn choose(found: &[Haproxy], wanted: Option<Version>) -> Option<&Haproxy> {
    let line = |version: Version| (version.major, version.minor);
    match wanted {
        Some(wanted) => found.iter().find(|haproxy| line(haproxy.version) == line(wanted)),
        None => found.first(),
    }
}

fn default_program(variable: Option<&OsStr>, path: Option<&OsStr>) -> Result<PathBuf, NoHaproxy> {
    if let Some(variable) = variable.filter(|variable| !variable.is_empty()) {
        return Ok(PathBuf::from(variable));
    }
    let directories = path.map(|path| std::env::split_paths(path).collect::<Vec<_>>()).unwrap_or_default();
    directories.into_iter().map(|directory| directory.join("haproxy")).find(|program| program.is_file()).ok_or(NoHaproxy::NotFound)
}

fn probe(path: &Path) -> Result<Haproxy, NoHaproxy> {
    let broken = |reason: String| NoHaproxy::Broken { path: path.to_owned(), reason };
    let output = Command::new(path).arg("-v").output().map_err(|error| broken(error.to_string()))?;
    let banner = String::from_utf8_lossy(&output.stdout);
    let number = banner.strip_prefix("HAProxy version ").and_then(|rest| rest.split_whitespace().next());
    let version: Version = number
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| broken(format!("-v does not say \"HAProxy version …\" ({})", output.status)))?;
    if version < FLOOR { Err(NoHaproxy::TooOld { path: path.to_owned(), version }) } else { Ok(Haproxy { version, path: path.to_owned() }) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;

    fn program(home: &Path, name: &str, version: &str) -> PathBuf {
        let path = home.join(name);
        let mut file = std::fs::OpenOptions::new().create_new(true).write(true).mode(0o755).open(&path).unwrap();
        write!(file, "#!/bin/sh\necho 'HAProxy version {version} 2026/01/01'\n").unwrap();
        path
    }

    #[test]
    fn the_newest_comes_first_and_a_fleet_gets_its_line() {
        let home = tempfile::tempdir().unwrap();
        let (older, newer) = (program(home.path(), "a", "3.2.26-1"), program(home.path(), "b", "3.4.7"));
        // a test beside this one may have forked while the scripts were open for writing, and then they do not run yet
        let found = loop {
            match find(&[older.clone(), newer.clone()]) {
                Err(NoHaproxy::Broken { reason, .. }) if reason.contains("busy") => {}
                found => break found.unwrap(),
            }
        };
        assert_eq!(found.iter().map(|haproxy| &haproxy.path).collect::<Vec<_>>(), [&newer, &older]);
        assert_eq!(choose(&found, None).unwrap().path, newer);
        assert_eq!(choose(&found, Some("3.2".parse().unwrap())).unwrap().path, older);
        assert_eq!(choose(&found, Some("3.3".parse().unwrap())), None);
    }

    #[test]
    fn an_old_one_is_refused_and_so_is_what_is_none() {
        let home = tempfile::tempdir().unwrap();
        let old = program(home.path(), "a", "2.8.1");
        let refused = loop {
            match find(std::slice::from_ref(&old)) {
                Err(NoHaproxy::Broken { reason, .. }) if reason.contains("busy") => {}
                other => break other.unwrap_err(),
            }
        };
        assert!(refused.to_string().contains("HAProxy 2.8.1, and fleets need at least 3.2.22"), "{refused}");
        assert!(matches!(find(&["/bin/true".into()]), Err(NoHaproxy::Broken { .. })));
        assert!(matches!(find(&["/no/such".into()]), Err(NoHaproxy::Broken { .. })));
    }

    #[test]
    fn the_variable_goes_before_the_path() {
        let home = tempfile::tempdir().unwrap();
        program(home.path(), "haproxy", "3.4.7");
        let path = Some(home.path().as_os_str());
        assert_eq!(default_program(Some(OsStr::new("/x")), path).unwrap(), Path::new("/x"));
        assert_eq!(default_program(Some(OsStr::new("")), path).unwrap(), home.path().join("haproxy"));
        assert!(matches!(default_program(None, None), Err(NoHaproxy::NotFound)));
    }
}
