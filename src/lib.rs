//! `haproxy-fleet`: fleets of HAProxy as the entry layer of Kubernetes.
//!
//! The rooms and the arrows between them are in `ARCHITECTURE.md`; `tests/it/arrows.rs` holds them to it.

pub mod admin;
pub mod agent;
pub mod api;
pub mod cli;
pub mod delivery;
pub mod fleet;
pub mod haproxy;
pub mod ingest;
pub mod local;
pub mod model;
pub mod operator;
pub mod pipeline;
pub mod report;
pub mod status;
pub mod telemetry;
pub mod translate;
pub mod world;
