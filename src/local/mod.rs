//! The whole thing without a cluster: what `haproxy-fleet local` consists of.

pub mod admin;
pub mod echo;
pub mod state;
pub mod view;
