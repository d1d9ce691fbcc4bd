//! Where a cluster keeps its things.

use crate::error::ClusterError;
use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The directories of a cluster: what is built is shared by all clusters of a user, the state is one cluster's own.
#[derive(Clone, Debug)]
pub struct Layout {
    built: PathBuf,
    state: PathBuf,
}

impl Layout {
    /// By the environment: built things in `cluster` of the project's cache (`HAPROXY_FLEET_CACHE`, else `haproxy-fleet` in
    /// `XDG_CACHE_HOME` or `~/.cache`), the state in `CLUSTER_DIR`, else beside them.
    pub fn from_environment() -> Result<Self, ClusterError> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let cache = variable("HAPROXY_FLEET_CACHE")
            .or_else(|| variable("XDG_CACHE_HOME").map(|home| home.join("haproxy-fleet")))
            .or_else(|| variable("HOME").map(|home| home.join(".cache/haproxy-fleet")))
            .ok_or(ClusterError::NoHome)?;
        let built = cache.join("cluster");
        let state = variable("CLUSTER_DIR").unwrap_or_else(|| built.join("state"));
        Self::new(&built, &state)
    }

    /// With built things in `built` and the state in `state`.
    pub fn new(built: &Path, state: &Path) -> Result<Self, ClusterError> {
        let layout = Self { built: absolute(built)?, state: absolute(state)? };
        let bad = [&layout.built, &layout.state].into_iter().find(|path| covered(path)).cloned();
        bad.map_or(Ok(layout), |path| Err(ClusterError::Covered { path }))
    }

    /// The programs.
    pub fn bin(&self) -> PathBuf {
        self.built.join("bin")
    }

    /// A program.
    pub fn program(&self, name: &str) -> PathBuf {
        self.bin().join(name)
    }

    /// The image archives that every node starts with.
    pub fn images(&self) -> PathBuf {
        self.built.join("images")
    }

    /// The image archives that were loaded since the cluster is up.
    pub fn loaded(&self) -> PathBuf {
        self.state.join("loaded")
    }

    /// All that `down` removes.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Keys and certificates.
    pub fn pki(&self) -> PathBuf {
        self.state.join("pki")
    }

    /// Kubeconfigs.
    pub fn conf(&self) -> PathBuf {
        self.state.join("conf")
    }

    /// The kubeconfig of the administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.conf().join("admin.conf")
    }

    /// Process ids.
    pub fn run(&self) -> PathBuf {
        self.state.join("run")
    }

    /// What daemons print.
    pub fn log(&self) -> PathBuf {
        self.state.join("log")
    }

    /// What the API server writes down of what pods asked of it, a JSON object a line.
    pub fn audit_log(&self) -> PathBuf {
        self.log().join("audit.log")
    }

    /// What that is.
    pub(crate) fn audit_policy(&self) -> PathBuf {
        self.conf().join("audit-policy.yaml")
    }

    /// What is `/var/lib` and `/var/log` on a node, and its configuration.
    pub fn node(&self, name: &str) -> PathBuf {
        self.state.join("nodes").join(name)
    }

    /// The parent of all cgroups of the cluster, as a path within each hierarchy.
    pub fn cgroup(&self) -> String {
        format!("/fleet-cluster-{}", self.short_name())
    }

    /// Keeps others from bringing this cluster up or down until the file is closed.
    pub(crate) fn lock(&self) -> Result<File, ClusterError> {
        // not in the state, which is removed while the lock is held
        self.locked(&format!("{}.lock", self.short_name()))
    }

    /// Keeps others from building until the file is closed.
    pub(crate) fn lock_build(&self) -> Result<File, ClusterError> {
        fs::create_dir_all(&self.built).map_err(ClusterError::file(&self.built))?;
        self.locked("build.lock")
    }

    fn locked(&self, name: &str) -> Result<File, ClusterError> {
        let path = self.built.join(name);
        let file = File::create(&path).map_err(ClusterError::file(&path))?;
        file.lock().map_err(ClusterError::file(&path))?;
        Ok(file)
    }

    /// Tells this cluster from others, where a path would be too long.
    fn short_name(&self) -> String {
        let hash = Sha256::digest(self.state.as_os_str().as_encoded_bytes());
        format!("{:02x}{:02x}{:02x}{:02x}", hash[0], hash[1], hash[2], hash[3])
    }

    /// Refuses to go on without what `build` makes.
    pub(crate) fn require_built(&self) -> Result<(), ClusterError> {
        let needed = [self.program("kubelet"), self.program("fleet-cluster"), self.images().join("pause.tar")];
        match needed.into_iter().find(|path| !path.exists()) {
            Some(path) => Err(ClusterError::NotBuilt { path }),
            None => Ok(()),
        }
    }
}

fn absolute(path: &Path) -> Result<PathBuf, ClusterError> {
    std::path::absolute(path).map_err(ClusterError::file(path))
}

fn covered(path: &Path) -> bool {
    ["/run", "/var/run", "/var/lib", "/var/log"].into_iter().any(|directory| path.starts_with(directory))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_directory_that_nodes_cover_is_refused() {
        for state in ["/run/a", "/var/lib/a", "/var/log"] {
            let error = Layout::new(Path::new("/srv"), Path::new(state)).unwrap_err();
            assert!(matches!(error, ClusterError::Covered { .. }), "{error}");
        }
    }

    #[test]
    fn two_clusters_share_what_is_built_and_no_cgroup() {
        let of = |state: &str| Layout::new(Path::new("/srv"), Path::new(state)).unwrap();
        assert_eq!(of("/a").bin(), of("/b").bin());
        assert_ne!(of("/a").cgroup(), of("/b").cgroup());
    }
}
