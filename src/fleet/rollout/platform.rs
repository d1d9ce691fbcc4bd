//! What carries decisions out: Kubernetes in the operator, processes on loopback addresses in `local`.

use super::{Action, Decision, Observed, Reason, step};
use k8s_openapi::jiff::Timestamp;

/// Where a fleet runs.
pub trait Platform {
    /// Why it cannot be seen or changed.
    type Error;

    /// The fleet as it is and as it is to be, at `now`.
    fn observe(&mut self, now: Timestamp) -> impl Future<Output = Result<Observed, Self::Error>> + Send;

    /// Does `action`, unless what it is about has changed since it was observed: then this is no error, and what is to be
    /// done follows from the next look.
    fn act(&mut self, action: &Action, why: &Reason) -> impl Future<Output = Result<(), Self::Error>> + Send;
}

/// Looks at a fleet and does what is to be done next, if anything is. What comes after an action follows from another
/// call.
pub async fn advance<P: Platform + Send>(platform: &mut P, now: Timestamp) -> Result<Decision, P::Error> {
    let observed = platform.observe(now).await?;
    let decision = step(&observed, now);
    if let (Some(action), Some(why)) = (&decision.action, decision.reasons.first()) {
        platform.act(action, why).await?;
    }
    Ok(decision)
}
