//! The operator in a cluster: wiring of watches, pipeline, delivery, controllers and status.
//!
//! Every replica watches, translates and serves agents. One leads: it alone numbers generations, releases reloads, keeps
//! the objects of fleets and writes statuses. All its writes pass the [`fence`].

mod authority;
mod document;
pub mod fence;
mod fleets;
mod history;
mod keys;
mod leading;
pub mod lease;
mod metrics;
mod numbers;
mod observed;
mod places;
mod pods;
pub mod rbac;
mod report;
pub(crate) mod revisions;
mod run;
pub mod serving;
mod settings;
mod stage;
mod writes;

#[cfg(test)]
mod tests;

pub use run::{OperatorError, run};
pub use settings::{AGENTS_SERVICE, AUTHORITY_SECRET, LEASE, Settings};
