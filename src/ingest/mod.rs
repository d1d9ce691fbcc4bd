//! What fills the world.

pub mod files;
