//! The operator in a cluster: wiring of watches, pipeline, delivery, controllers and status.
