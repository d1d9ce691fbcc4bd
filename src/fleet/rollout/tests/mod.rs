//! The planner against a cluster in miniature: histories at random, all histories up to a bound, and single steps.

#![allow(clippy::unwrap_used, clippy::panic)]

mod cluster;
mod histories;
mod model;
mod steps;
