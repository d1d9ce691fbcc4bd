//! The cgroups of the nodes, in every hierarchy of either version.

use crate::command::until;
use crate::error::ClusterError;
use crate::layout::Layout;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Makes the cgroups of a node: its kubelet wants to find them.
pub(crate) fn make(layout: &Layout, node: &str) -> Result<(), ClusterError> {
    for hierarchy in hierarchies()? {
        let path = under(&hierarchy, &layout.cgroup()).join(node);
        fs::create_dir_all(&path).map_err(ClusterError::file(path))?;
    }
    Ok(())
}

/// Removes a node's cgroups, or with `None` those of all nodes; no process may be left in them.
pub(crate) fn remove(layout: &Layout, node: Option<&str>) -> Result<(), ClusterError> {
    for hierarchy in hierarchies()? {
        let mut path = under(&hierarchy, &layout.cgroup());
        path.extend(node);
        // a killed process leaves its cgroup a little later than it leaves /proc
        until("the end of the nodes' cgroups", Duration::from_secs(10), &layout.log(), || Ok(remove_tree(&path).is_ok()))?;
    }
    Ok(())
}

fn under(hierarchy: &Path, cgroup: &str) -> PathBuf {
    hierarchy.join(cgroup.trim_start_matches('/'))
}

fn remove_tree(path: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    fs::remove_dir(path)
}

/// Where the hierarchies are mounted; links such as `cpu,cpuacct` are left out.
fn hierarchies() -> Result<Vec<PathBuf>, ClusterError> {
    let table = fs::read_to_string("/proc/self/mounts").map_err(ClusterError::file("/proc/self/mounts"))?;
    Ok(mount_points(&table))
}

fn mount_points(table: &str) -> Vec<PathBuf> {
    let mounts = table.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let of_cgroups = mounts.filter(|fields| fields.get(2).is_some_and(|kind| ["cgroup", "cgroup2"].contains(kind)));
    let mut found: Vec<_> = of_cgroups.filter_map(|fields| fields.get(1).map(PathBuf::from)).collect();
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_of_both_versions_are_found() {
        let table = "proc /proc proc rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(mount_points(table), [PathBuf::from("/sys/fs/cgroup/cpu"), PathBuf::from("/sys/fs/cgroup/unified")]);
    }
}
