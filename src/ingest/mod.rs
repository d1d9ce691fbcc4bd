//! What fills the world.

pub mod cluster;
pub mod files;
