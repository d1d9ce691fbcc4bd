//! Between the operator and the agents: bundles one way, acknowledgements and refusals the other.
//!
//! The operator publishes what a fleet is to serve into its [`Feeds`]; [`server`] follows them for every agent that
//! proves to be a pod of that fleet ([`identity`]). An agent follows every replica of the operator ([`client`]) and
//! decides which of them it obeys ([`choice`]).

pub mod certificates;
pub mod feed;
pub mod identity;
pub mod server;
pub mod wire;

pub use feed::{AgentReport, Authority, Feeds, Published};

/// The messages, as `proto/` says.
#[allow(missing_docs, clippy::pedantic)]
pub(crate) mod proto {
    tonic::include_proto!("haproxy_fleet.v1");
}
