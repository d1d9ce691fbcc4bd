//! Tests against real parts: one binary, one module per subject.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod agent;
mod allowed;
mod arrows;
mod bad_input;
mod command;
mod crosscheck;
mod delivery;
mod delivery_messages;
mod diff;
mod docs;
mod fleet_controller;
mod fleet_controller_rig;
mod fleet_objects;
mod foreign;
mod golden;
mod held;
mod hostile;
mod incremental;
mod injection;
mod injection_objects;
mod killed;
mod lease;
mod models;
mod pod;
mod pod_command;
mod policies;
mod relay;
mod render;
mod rig;
mod running;
mod seeds;
mod site;
mod support;
mod traffic;
mod validating;
