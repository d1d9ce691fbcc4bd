//! Tests against real parts: one binary, one module per subject.
#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

mod arrows;
mod command;
mod agent;
mod rig;
mod models;
mod running;
mod support;
mod traffic;
