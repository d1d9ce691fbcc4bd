//! The whole thing without a cluster: manifests from files, one HAProxy per replica on loopback, and in front
//! of each fleet a HAProxy in TCP mode that plays Service and load balancer.

pub mod addresses;
pub mod balancer;
mod config;
pub mod echo;
mod echoes;
mod fleet;
mod front;
pub mod haproxies;
pub mod interrupt;
mod lines;
mod record;
mod refused;
mod replica;
mod revisions;
mod rollout;
mod run;
pub mod state;
mod urls;
pub mod view;

pub use run::{LocalError, Settings, run};
