//! A Kubernetes cluster of real parts on one machine: etcd, API server, controllers, scheduler, and four nodes in three zones
//! with their own containerd, kubelet and kube-proxy, all built from Go modules, without a container runtime around them,
//! a registry or a way out to the Internet.
//!
//! | what | IPv4 | IPv6 |
//! |---|---|---|
//! | host, with the API server at port 6443 | 10.89.0.1 | `fd00:89::1` |
//! | nodes | 10.89.0.11 to .14 | `fd00:89::11` to `::14` |
//! | pods of node N, routed, never masqueraded between pods | 10.90.N.0/24 | `fd00:90:0:N::/64` |
//! | services | 10.96.0.0/16 | `fd00:96::/112` |
//! | load balancers | 10.91.0.0/24 | `fd00:91::/112` |
//!
//! The machine's own network gets no interface, route or setting, and the cluster has no way out. So clients run inside
//! ([`Cluster::enter_command`]), pod traffic cannot leak, and two clusters do not see each other.

mod api_server;
mod balancer;
mod cgroups;
mod cluster;
mod command;
mod control;
mod error;
mod images;
mod keys;
mod layout;
mod machine;
mod manifests;
mod network;
mod node;
mod programs;
mod prove;

pub use api_server::{ApiServer, ApiServerGuard};
pub use balancer::run as balance;
pub use cluster::{Cluster, Zone};
pub use control::{CONTROL_DAEMONS, Control};
pub use error::ClusterError;
pub use images::{ECHO, HAPROXY, HAPROXY_LINES};
pub use layout::Layout;
pub use network::{Addresses, BALANCERS, DNS, Family, HOST, NODES, Node, PODS, Ranges, SERVICES};
pub use node::{NODE_DAEMONS, NodeHandle};
pub use prove::prove;

/// Builds every program and image of the cluster, and installs the few Debian packages that it takes. Safe to run again.
/// Tells `progress` of each step.
pub fn build(layout: &Layout, progress: impl Fn(&str)) -> Result<(), ClusterError> {
    let _lock = layout.lock_build()?;
    programs::build(layout, &progress)?;
    images::build(layout, &progress)
}

/// Puts the running program, which must be `fleet-cluster`, where the cluster looks for its balancer.
pub fn install_itself(layout: &Layout) -> Result<(), ClusterError> {
    programs::install_itself(layout)
}
