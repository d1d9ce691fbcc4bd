//! Types and reasons of conditions, in one place: people and tools filter by them.
//!
//! `Ready`, `Reconciling` and `Stalled` are those of `kstatus`, so that tools that deploy from git understand them.

/// The object works as asked.
pub const READY: &str = "Ready";
/// A change is on its way.
pub const RECONCILING: &str = "Reconciling";
/// Nothing moves until somebody changes something.
pub const STALLED: &str = "Stalled";
/// The object was read without an error.
pub const ACCEPTED: &str = "Accepted";
/// Every object that it names exists and may be used.
pub const RESOLVED_REFS: &str = "ResolvedRefs";

/// Everything is as asked.
pub const REASON_AS_ASKED: &str = "AsAsked";
/// Replicas are being started, changed or removed.
pub const REASON_ROLLING_OUT: &str = "RollingOut";
/// Some replicas are not ready.
pub const REASON_REPLICAS_NOT_READY: &str = "ReplicasNotReady";
/// The object says something that cannot be done.
pub const REASON_INVALID: &str = "Invalid";
/// An object that it names does not exist.
pub const REASON_NOT_FOUND: &str = "NotFound";
/// HAProxy refused what the object leads to.
pub const REASON_REFUSED_BY_HAPROXY: &str = "RefusedByHaproxy";
