//! Between the operator and the agents: bundles one way, acknowledgements and refusals the other.
//!
//! The operator publishes what a fleet is to serve into its [`Feeds`]; [`server`] follows them for every agent that
//! proves to be a pod of that fleet ([`identity`]). An agent follows every replica of the operator ([`client`]) and
//! decides which of them it obeys ([`choice`]).

mod assembly;
pub mod certificates;
pub mod choice;
pub mod client;
pub mod ended;
pub mod feed;
pub mod identity;
mod outgoing;
pub mod packed;
mod resolve;
pub mod server;
#[cfg(test)]
mod tests;
pub mod wire;

pub use feed::{AgentReport, AgentState, Agents, Authority, Feeds, Published};

/// The messages, as `proto/` says.
#[allow(missing_docs, clippy::pedantic)]
pub mod proto {
    tonic::include_proto!("haproxy_fleet.v1");
}
