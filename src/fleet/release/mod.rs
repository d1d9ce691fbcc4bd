//! The planner of releases: which pods may reload now for what they were told, from what is observed of them. Pure: no
//! client, no clock.
//!
//! A change that needs a reload goes to one pod first, then to the rest of its zone, then zone by zone. Each step waits
//! until whoever was let before has confirmed, serves, and has been watched for a moment beside the pods that are still
//! as they were. What is worse there than here stops it.
//!
//! Nothing is remembered between two steps: who has the change and who waits for it is in what agents report. Times are
//! since any moment that stays the same.

mod health;
mod observed;
mod step;

pub use health::Health;
pub use observed::{Observed, Pod, Progress, Rules};
pub use step::{Decision, Outcome, Trouble, step};

#[cfg(test)]
mod tests;
