//! What fills the world.

pub mod cluster;
pub mod files;
mod object;

use crate::report::ObjectRef;
use crate::world::Object;

/// What changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Delta {
    /// Objects that are new or different, by reference.
    pub set: Vec<Object>,
    /// Objects that are gone, by reference.
    pub removed: Vec<ObjectRef>,
}

impl Delta {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.removed.is_empty()
    }
}
