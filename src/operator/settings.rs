//! What the operator is started with.

use crate::ingest::cluster::Namespaces;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// The Service whose addresses are those of all replicas, for agents.
pub const AGENTS_SERVICE: &str = "haproxy-fleet-agents";
/// The Lease of the leader.
pub const LEASE: &str = "haproxy-fleet";
/// The Secret with the operator's own authority.
pub const AUTHORITY_SECRET: &str = "haproxy-fleet-authority";

/// What the operator is started with.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its own namespace.
    pub namespace: String,
    /// The name of its pod.
    pub pod: String,
    /// Its own image: agents are copied out of it.
    pub image: String,
    /// The image of HAProxy by release line, such as `3.4`.
    pub haproxy_images: BTreeMap<String, String>,
    /// Where routes and what belongs to them are read.
    pub namespaces: Namespaces,
    /// Where there may be fleets.
    pub fleets: Namespaces,
    /// Where agents connect to.
    pub delivery: SocketAddr,
    /// Where health, metrics and status are served.
    pub admin: SocketAddr,
}

impl Settings {
    /// The names by which agents reach the operator.
    pub(super) fn server_names(&self) -> Vec<String> {
        let service = format!("{AGENTS_SERVICE}.{}.svc", self.namespace);
        vec![service.clone(), format!("{service}.cluster.local")]
    }
}
