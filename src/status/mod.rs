//! What is told about the state of fleets: the document that `/status` serves.

pub mod json;
