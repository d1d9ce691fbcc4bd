//! Who leads: one replica of the operator, by a Lease of `coordination.k8s.io/v1`.
//!
//! `step` decides and is a pure function of what was read and of a local monotonic clock; no clock of another machine
//! is ever believed. `driver` reads, writes and publishes the [`Claim`].
//!
//! Invariants, each model-checked in `tests`: no two claims are valid at once; a term is claimed once; nothing is
//! written in a term after something was written in a higher one.

mod driver;
mod step;
#[cfg(test)]
mod tests;

pub use driver::{Driver, Handle, LeaseError, Settings};
pub use step::Timing;

use tokio::time::Instant;

/// Whether this replica leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claim {
    /// Another one leads, or nobody.
    Standby,
    /// This one leads until `valid_until`, unless the claim is renewed before.
    Leader {
        /// Grows with every change of the leader; the Lease keeps it as `leaseTransitions`.
        term: u64,
        /// By the local monotonic clock; well before another replica may take over.
        valid_until: Instant,
    },
}

impl Claim {
    /// The term, if this replica leads at `now`.
    pub fn term(self, now: Instant) -> Option<u64> {
        match self {
            Self::Leader { term, valid_until } if now < valid_until => Some(term),
            _ => None,
        }
    }
}
