//! The load generator against servers on loopback: what behaves loses nothing, and each kind of loss is found and named.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod command;
mod losses;
mod mixes;
mod pictures;
mod reports;
mod servers;
mod transfers;
mod websockets;
