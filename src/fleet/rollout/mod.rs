//! The planner of rollouts: what is to be done next to a fleet, from what is observed of it. Pure: no client, no clock.
//!
//! Everything is derived from [`Observed`] in every step. What has to outlive a step is in Kubernetes: each Deployment
//! says which template it has and whether it has the turn, the `IngressDeployment` says which template the whole fleet
//! ran last and which one is given up.
//!
//! A [`Platform`] says what is observed and carries the write out.
//!
//! A zone is a Deployment, and Kubernetes replaces its pods, new ones first. The planner holds the Deployment paused
//! while a pod of the new template does not count yet or any pod of the fleet drains, and lets it go on when taking the
//! next old pod is safe. So nothing is lost when the planner is absent: one zone goes on by the rules of Kubernetes, and
//! no other zone begins.
//!
//! **The turn.** Nothing is taken from a zone whose Deployment does not have the turn, and nothing while two have it. It
//! is taken and given back by writes to that very Deployment. Every write is on condition that its object is still the
//! version that was observed, and all Deployments of a fleet are observed at one moment. So two controllers, however old
//! what they know is, never take pods from two zones at a time.

mod capacity;
pub mod kubernetes;
mod observed;
mod platform;
pub mod policy;
mod sizes;
mod step;
mod templates;

pub use observed::{Asked, Observed, Pod, PodState, Rules, Template, Zone};
pub use platform::{Platform, advance};
pub use step::{Action, Change, Decision, Reason, Why, step};

#[cfg(test)]
mod tests;
