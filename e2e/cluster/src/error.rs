//! What can go wrong with a cluster.

use std::path::PathBuf;

/// Why a verb did not do what it says.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// A file or directory could not be read, written or run.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A program that does part of the work failed.
    #[error("`{command}` failed ({status}): {output}")]
    Program {
        /// The program with its arguments.
        command: String,
        /// How it ended.
        status: String,
        /// What it printed.
        output: String,
    },
    /// Something did not come about in time.
    #[error("{what} did not come about within {seconds} s; logs are in {logs}")]
    Timeout {
        /// What was waited for.
        what: String,
        /// How long.
        seconds: u64,
        /// Where the daemons write.
        logs: PathBuf,
    },
    /// Nothing was built, or not all.
    #[error("{path} is missing: run `fleet-cluster build` first")]
    NotBuilt {
        /// What is missing.
        path: PathBuf,
    },
    /// The cluster, or this machine of it, is not up.
    #[error("{name} is not up: run `fleet-cluster {remedy}` first")]
    NotUp {
        /// `host` or a node.
        name: String,
        /// The verb that brings it up.
        remedy: String,
    },
    /// There is no such node, zone or daemon.
    #[error("there is no {kind} `{name}`: choose one of {known}")]
    Unknown {
        /// `node`, `zone`, `daemon`.
        kind: &'static str,
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// Nodes cover these directories with their own.
    #[error(
        "the directory {path} cannot hold a cluster: choose one outside /run, /var/lib and /var/log (CLUSTER_DIR, HAPROXY_FLEET_CACHE)"
    )]
    Covered {
        /// The directory.
        path: PathBuf,
    },
    /// The cache has no place, as there is no home.
    #[error("there is no home directory to keep a cluster in: set HAPROXY_FLEET_CACHE")]
    NoHome,
    /// A key or certificate could not be made.
    #[error("keys: {0}")]
    Keys(#[from] rcgen::Error),
    /// The API server, as the balancer sees it.
    #[error("API server: {0}")]
    Api(#[from] Box<kube::Error>),
    /// A kubeconfig of the cluster cannot be used.
    #[error("kubeconfig: {0}")]
    Kubeconfig(#[from] kube::config::KubeconfigError),
    /// Something that a program printed is no JSON.
    #[error("not the expected JSON: {0}")]
    Json(#[from] serde_json::Error),
    /// An image could not be packed.
    #[error("image: {0}")]
    Image(#[from] fleet_image::PackError),
    /// An image's name cannot be used.
    #[error(transparent)]
    Reference(#[from] fleet_image::BadReference),
    /// A check of `prove` failed.
    #[error("{0}")]
    Unproven(String),
}

impl ClusterError {
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }

    pub(crate) fn unknown(kind: &'static str, name: &str, known: impl IntoIterator<Item = impl ToString>) -> Self {
        let known = known.into_iter().map(|name| name.to_string()).collect::<Vec<_>>().join(", ");
        Self::Unknown { kind, name: name.to_owned(), known }
    }
}
