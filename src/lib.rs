//! `haproxy-fleet`: fleets of HAProxy as the entry layer of Kubernetes.
//!
//! The rooms and the arrows between them are in `ARCHITECTURE.md`; `tests/it/arrows.rs` holds them to it.

pub mod api;
pub mod haproxy;
pub mod ingest;
pub mod model;
pub mod report;
pub mod translate;
pub mod world;
