//! What a fleet is made of: how its replicas are shared out, and the Kubernetes objects that it needs.

pub mod apply;
pub mod build;
pub mod controller;
pub mod plan;
pub mod release;
mod replicas;
pub mod rollout;

pub use replicas::{Replica, ZoneSize, replicas};
