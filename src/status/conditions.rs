//! Conditions: what they were, what is the case, and what they are from now on. Pure.
//!
//! Tools that deploy from git (kstatus, Flux, Argo CD) read `Ready`, `Reconciling` and `Stalled`; a condition moves its
//! transition time only when its status changes, or such tools never see an end of waiting.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::jiff::Timestamp;

/// The longest message that the API server takes of a condition (32,768), with room to spare.
const MESSAGE_BYTES: usize = 30_000;

/// What is said about an object under one type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Of [`crate::api::conditions`].
    pub type_: &'static str,
    /// Whether it is so; `None` where that is not known.
    pub holds: Option<bool>,
    /// Of [`crate::api::conditions`].
    pub reason: &'static str,
    /// For people: what is the case, and the way out if that is not as wanted. Stable: no counts that change by
    /// themselves, no times.
    pub message: String,
}

impl Claim {
    /// A claim that something is so, or not.
    pub fn new(type_: &'static str, holds: bool, reason: &'static str, message: impl Into<String>) -> Self {
        Self { type_, holds: Some(holds), reason, message: message.into() }
    }

    fn status(&self) -> &'static str {
        match self.holds {
            Some(true) => "True",
            Some(false) => "False",
            None => "Unknown",
        }
    }
}

/// The conditions of an object whose spec has this `generation`, by type, given those `before`.
pub fn merge(before: &[Condition], claims: &[Claim], generation: i64, now: Timestamp) -> Vec<Condition> {
    let mut conditions: Vec<Condition> = claims
        .iter()
        .map(|claim| {
            let same = before.iter().find(|old| old.type_ == claim.type_ && old.status == claim.status());
            Condition {
                type_: claim.type_.to_owned(),
                status: claim.status().to_owned(),
                reason: claim.reason.to_owned(),
                message: shortened(&claim.message),
                observed_generation: Some(generation),
                last_transition_time: same.map_or(Time(now), |old| old.last_transition_time.clone()),
            }
        })
        .collect();
    conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
    conditions
}

/// Conditions that are now otherwise than before: each is worth one Event.
pub fn transitions<'c>(before: &[Condition], after: &'c [Condition]) -> Vec<&'c Condition> {
    let differs = |now: &&Condition| {
        let old = before.iter().find(|old| old.type_ == now.type_);
        // what starts as nobody fears it is no news
        old.map_or(now.status != "Unknown", |old| old.status != now.status || old.reason != now.reason)
    };
    after.iter().filter(differs).collect()
}

fn shortened(message: &str) -> String {
    if message.len() <= MESSAGE_BYTES {
        return message.to_owned();
    }
    let end = (0..=MESSAGE_BYTES).rev().find(|end| message.is_char_boundary(*end)).unwrap_or(0);
    format!("{}…", &message[..end])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_time_of_a_transition_moves_only_with_the_status() {
        let first = merge(&[], &[Claim::new("Ready", false, "Starting", "one")], 1, at(10));
        assert_eq!(first[0].last_transition_time.0, at(10));
        let reason = merge(&first, &[Claim::new("Ready", false, "RollingOut", "two")], 2, at(20));
        assert_eq!((reason[0].last_transition_time.0, reason[0].observed_generation), (at(10), Some(2)));
        let status = merge(&reason, &[Claim::new("Ready", true, "AsAsked", "three")], 2, at(30));
        assert_eq!(status[0].last_transition_time.0, at(30));
    }

    #[test]
    fn conditions_stand_in_the_order_of_their_types_and_what_is_not_claimed_is_gone() {
        let before = merge(&[], &[Claim::new("Stalled", true, "Invalid", "")], 1, at(1));
        let after = merge(&before, &[Claim::new("Ready", true, "AsAsked", ""), Claim::new("Accepted", true, "AsAsked", "")], 1, at(2));
        assert_eq!(after.iter().map(|condition| &*condition.type_).collect::<Vec<_>>(), ["Accepted", "Ready"]);
    }

    #[test]
    fn a_transition_is_told_once() {
        let before = merge(&[], &[Claim::new("Ready", false, "RollingOut", "a")], 1, at(1));
        assert_eq!(transitions(&[], &before).len(), 1);
        assert_eq!(transitions(&before, &before).len(), 0);
        let message = merge(&before, &[Claim::new("Ready", false, "RollingOut", "b")], 2, at(2));
        assert_eq!(transitions(&before, &message).len(), 0);
        let reason = merge(&before, &[Claim::new("Ready", false, "NoReadyPods", "b")], 2, at(2));
        assert_eq!(transitions(&before, &reason).len(), 1);
    }

    #[test]
    fn a_message_never_exceeds_what_the_api_server_takes() {
        let long = merge(&[], &[Claim::new("Ready", false, "Invalid", "ü".repeat(40_000))], 1, at(1));
        assert!(long[0].message.len() < 32_768);
    }
}
