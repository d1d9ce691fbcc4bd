//! What a fleet is made of: how its replicas are shared out, and the Kubernetes objects that it needs.

pub mod build;
mod replicas;

pub use replicas::{Replica, ZoneSize, replicas};
