//! What is told about the state of fleets: conditions and addresses on objects, Events, and the document that
//! `/status` serves.

pub mod backend;
pub mod conditions;
pub mod events;
pub mod fleet;
pub mod ingress;
pub mod json;
pub mod writer;
