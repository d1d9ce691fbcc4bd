//! The operator in a cluster: wiring of watches, pipeline, delivery, controllers and status.

pub mod fence;
pub mod lease;
