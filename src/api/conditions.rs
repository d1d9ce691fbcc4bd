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
/// Enough pods serve.
pub const AVAILABLE: &str = "Available";
/// The fleet has the addresses that it needs.
pub const ADDRESS_READY: &str = "AddressReady";
/// All pods are made from the present template.
pub const ROLLED_OUT: &str = "RolledOut";
/// Every pod that serves confirms the present configuration.
pub const CONFIG_SYNCED: &str = "ConfigSynced";
/// Pods are spread evenly over zones.
pub const ZONES_BALANCED: &str = "ZonesBalanced";
/// Nothing is changed, because somebody asked for that.
pub const PAUSED: &str = "Paused";

/// Nobody has looked at the object yet.
pub const REASON_PENDING: &str = "Pending";
/// Everything is as asked.
pub const REASON_AS_ASKED: &str = "AsAsked";
/// The object is deleted, and what it stands for is taken down.
pub const REASON_DELETING: &str = "Deleting";
/// Replicas are being started, changed or removed.
pub const REASON_ROLLING_OUT: &str = "RollingOut";
/// New pods do not become ready in time: the rollout stays where it is.
pub const REASON_ROLLOUT_STALLED: &str = "RolloutStalled";
/// The pod template was given up: the fleet is back at the one before, or on its way there.
pub const REASON_ROLLOUT_ABORTED: &str = "RolloutAborted";
/// Somebody paused the rollout.
pub const REASON_ROLLOUT_PAUSED: &str = "RolloutPaused";
/// No node takes a pod.
pub const REASON_UNSCHEDULABLE: &str = "Unschedulable";
/// The image of a container of a pod cannot be had.
pub const REASON_IMAGE_NOT_PULLED: &str = "ImageNotPulled";
/// A container of a pod does not start, or ends again and again.
pub const REASON_CONTAINER_NOT_STARTING: &str = "ContainerNotStarting";
/// Some replicas are not ready.
pub const REASON_REPLICAS_NOT_READY: &str = "ReplicasNotReady";
/// The object says something that cannot be done.
pub const REASON_INVALID: &str = "Invalid";
/// An object that it names does not exist.
pub const REASON_NOT_FOUND: &str = "NotFound";
/// HAProxy refused what the object leads to.
pub const REASON_REFUSED_BY_HAPROXY: &str = "RefusedByHaproxy";
/// Objects of the fleet could not be written.
pub const REASON_NOT_APPLIED: &str = "NotApplied";
/// No pods are asked for.
pub const REASON_SCALED_TO_ZERO: &str = "ScaledToZero";
/// Not one pod serves.
pub const REASON_NO_READY_PODS: &str = "NoReadyPods";
/// It was not asked for.
pub const REASON_NOT_WANTED: &str = "NotWanted";
/// A load balancer has to give an address and has not yet.
pub const REASON_ADDRESS_PENDING: &str = "AddressPending";
/// Some pods do not confirm what they should serve.
pub const REASON_PODS_BEHIND: &str = "PodsBehind";
/// Some zones have fewer pods than others.
pub const REASON_UNBALANCED: &str = "Unbalanced";
/// Somebody asked for a pause.
pub const REASON_PAUSED: &str = "Paused";
