//! HAProxy as data: its syntax and only writer, the rendering of a model, what a bundle is, and what takes
//! a running HAProxy from one bundle to the next. Pure: no process, socket, file or clock.

pub mod bundle;
pub mod config;
pub mod files;
pub mod maps;
pub mod plan;
pub mod render;
pub mod revision;
pub mod shape;
pub mod tickets;
pub mod version;
pub mod zones;
