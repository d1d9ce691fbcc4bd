//! The status of an `IngressDeployment`, from what is observed. Pure.

use super::conditions::{Claim, merge};
use crate::api::conditions as named;
use crate::api::{Diagnostics, Finding, IngressDeploymentStatus, RolloutStatus};
use crate::report::{Diagnostic, Severity};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;

/// A pod that has not confirmed the present configuration for this long is behind. A shorter wait is the normal case
/// while things change, and no state to write down.
const BEHIND: SignedDuration = SignedDuration::from_secs(10);

/// One pod of a fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// The zone of its node, if that is known.
    pub zone: Option<String>,
    /// Whether it serves: `Ready`, and not on its way out.
    pub serves: bool,
    /// Whether it is on its way out.
    pub terminating: bool,
    /// Since when it has not confirmed what it should serve; `None` if it has.
    pub behind_since: Option<Timestamp>,
    /// Whether it waits for its turn to reload: it has not confirmed, and nothing is wrong with that.
    pub holds: bool,
    /// Why it does not start, if that is known.
    pub trouble: Option<Trouble>,
}

/// Why a pod does not start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trouble {
    /// The reason of a condition.
    pub reason: &'static str,
    /// What is the case, and what to do.
    pub message: String,
}

impl Pod {
    fn is_behind(&self, now: Timestamp) -> bool {
        self.serves && self.behind_since.is_some_and(|since| now.duration_since(since) > BEHIND)
    }
}

/// Where clients connect to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// Nothing from outside is asked for.
    NotWanted,
    /// Somebody else has to give one, and has not yet.
    Pending,
    /// These, in order; there is at least one.
    Assigned(Vec<String>),
}

/// What is observed of a fleet.
#[derive(Clone, Debug)]
pub struct Observed<'o> {
    /// `metadata.generation` that the rest is about.
    pub generation: i64,
    /// Whether nothing is to be changed.
    pub paused: bool,
    /// What its deletion waits for, if it is deleted.
    pub deleting: Option<&'static str>,
    /// Why the spec, or a part of it, cannot be realised; what served before it still does.
    pub refused: Option<&'o Diagnostic>,
    /// Why objects could not be written, if that was so.
    pub not_applied: Option<String>,
    /// Pods that are wanted.
    pub desired: u32,
    /// Pods that are made from the present template.
    pub updated: u32,
    /// Whether these are all, and no others are left.
    pub rolled_out: bool,
    /// Pods that have been ready for long enough.
    pub available: u32,
    /// Pods that have to serve at least for the fleet to be as asked.
    pub least: u32,
    /// Its pods, in the order of their names.
    pub pods: &'o [Pod],
    /// The zones that it is spread over; empty where nobody said.
    pub zones: &'o [String],
    /// Where clients connect to.
    pub address: Address,
    /// Selects the pods.
    pub selector: &'o str,
    /// The version of HAProxy that its pods run, the oldest while they differ.
    pub haproxy_version: Option<&'o str>,
    /// The identity of its present sections, backends and routing maps; `None` while that is not known.
    pub revision: Option<&'o str>,
    /// How far its rollout is, if that is known.
    pub rollout: Option<&'o RolloutStatus>,
    /// The number that this has already: people went back to it, or it is the last one that was kept.
    pub known_as: Option<u64>,
    /// The revision that people went back to, if any; `None` while not all pods confirm what is served.
    pub pinned: Option<Option<u64>>,
    /// The number of the last revision that was kept; 0 if there is none.
    pub last_kept: u64,
    /// Its findings.
    pub findings: &'o [Diagnostic],
}

impl Observed<'_> {
    fn serving(&self) -> u32 {
        count(self.pods.iter().filter(|pod| pod.serves))
    }

    /// The first pod that does not start, and why.
    fn trouble(&self) -> Option<(&str, &Trouble)> {
        self.pods.iter().filter(|pod| !pod.terminating).find_map(|pod| Some((pod.name.as_str(), pod.trouble.as_ref()?)))
    }
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

fn number(count: u32) -> Option<i32> {
    i32::try_from(count).ok()
}

/// The status that follows from `observed`. `before` is what the object says now; what nobody here knows stays.
pub fn status(observed: &Observed<'_>, before: &IngressDeploymentStatus, now: Timestamp) -> IngressDeploymentStatus {
    let claims = claims(observed, now);
    let addresses = match &observed.address {
        Address::Assigned(addresses) => addresses.clone(),
        Address::NotWanted | Address::Pending => Vec::new(),
    };
    let (revision, revision_digest) = revision(observed, before);
    IngressDeploymentStatus {
        observed_generation: Some(observed.generation),
        replicas: number(count(observed.pods.iter().filter(|pod| !pod.terminating))),
        ready_replicas: number(observed.serving()),
        updated_replicas: number(observed.updated),
        available_replicas: number(observed.available),
        ready: Some(format!("{}/{}", observed.serving(), observed.desired)),
        selector: Some(observed.selector.to_owned()),
        zones: zones(observed),
        address: addresses.first().cloned(),
        addresses,
        haproxy_version: observed.haproxy_version.map(str::to_owned),
        revision,
        revision_digest,
        pinned_revision: pinned(observed, before),
        confirmed: Some(confirmed(observed, now)),
        rollout: observed.rollout.cloned(),
        diagnostics: diagnostics(observed.findings),
        conditions: merge(&before.conditions, &claims, observed.generation, now),
    }
}

/// The number of the revision: one more than before if that was another one. Changes that follow each other faster than
/// a status is written are one revision, as they are one reload. One that was kept keeps its number.
fn revision(observed: &Observed<'_>, before: &IngressDeploymentStatus) -> (Option<i64>, Option<String>) {
    match observed.revision {
        Some(digest) if before.revision_digest.as_deref() != Some(digest) => {
            let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
            let next = || before.revision.unwrap_or(0).max(signed(observed.last_kept)).saturating_add(1);
            (Some(observed.known_as.map_or_else(next, signed)), Some(digest.to_owned()))
        }
        _ => (before.revision, before.revision_digest.clone()),
    }
}

/// The revision that all pods went back to. What is on its way to them is not said yet.
fn pinned(observed: &Observed<'_>, before: &IngressDeploymentStatus) -> Option<i64> {
    observed.pinned.map_or(before.pinned_revision, |pinned| pinned.map(|number| i64::try_from(number).unwrap_or(i64::MAX)))
}

/// Pods that confirm the present configuration, of those that serve.
fn confirmed(observed: &Observed<'_>, now: Timestamp) -> String {
    let serving = observed.serving();
    let behind = count(observed.pods.iter().filter(|pod| pod.is_behind(now) || pod.serves && pod.holds));
    format!("{}/{serving}", serving.saturating_sub(behind))
}

fn diagnostics(findings: &[Diagnostic]) -> Option<Diagnostics> {
    let of = |severity| findings.iter().filter(move |finding| finding.severity == severity);
    let (errors, warnings) = (count(of(Severity::Error)), count(of(Severity::Warning)));
    (errors + warnings > 0).then(|| Diagnostics {
        errors: number(errors).unwrap_or(i32::MAX),
        warnings: number(warnings).unwrap_or(i32::MAX),
        worst: worst(findings).into_iter().map(finding).collect(),
    })
}

/// Serving of wanted pods by zone, such as `a 2/2, b 1/1`.
fn zones(observed: &Observed<'_>) -> Option<String> {
    let mut by_zone: BTreeMap<&str, (u32, u32)> = observed.zones.iter().map(|zone| (zone.as_str(), (0, 0))).collect();
    for pod in observed.pods.iter().filter(|pod| !pod.terminating) {
        let (serving, all) = by_zone.entry(pod.zone.as_deref().unwrap_or("?")).or_default();
        *all += 1;
        *serving += u32::from(pod.serves);
    }
    let texts: Vec<String> = by_zone.iter().map(|(zone, (serving, all))| format!("{zone} {serving}/{all}")).collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

fn claims(observed: &Observed<'_>, now: Timestamp) -> Vec<Claim> {
    let accepted = accepted(observed);
    let details = vec![available(observed), address(observed), rolled_out(observed), synced(observed, now), balanced(observed)];
    let troubles: Vec<&Claim> = std::iter::once(&accepted)
        .chain(details.iter().filter(|claim| claim.type_ != named::ZONES_BALANCED))
        .filter(|claim| claim.holds != Some(true))
        .collect();
    let ready = match (observed.deleting, troubles.first()) {
        (Some(waits), _) => Claim::new(named::READY, false, named::REASON_DELETING, format!("it is deleted: {waits}")),
        (None, None) => Claim::new(named::READY, true, named::REASON_AS_ASKED, "the fleet serves as asked"),
        (None, Some(trouble)) => Claim::new(named::READY, false, trouble.reason, trouble.message.clone()),
    };
    let mut claims = vec![ready];
    let moving = |claim: &&&Claim| matches!(claim.type_, named::ROLLED_OUT | named::ADDRESS_READY);
    if accepted.holds == Some(false) {
        claims.push(Claim::new(named::STALLED, true, accepted.reason, accepted.message.clone()));
    } else if let Some((reason, message)) = stalled(observed) {
        claims.push(Claim::new(named::STALLED, true, reason, message));
    } else if observed.paused {
        claims.push(Claim::new(named::PAUSED, true, named::REASON_PAUSED, "spec.paused: nothing is changed until it is taken away"));
    } else if let Some(change) = troubles.iter().find(moving) {
        claims.push(Claim::new(named::RECONCILING, true, change.reason, change.message.clone()));
    }
    claims.push(accepted);
    claims.extend(details);
    claims
}

fn accepted(observed: &Observed<'_>) -> Claim {
    if let Some(refused) = observed.refused {
        let field = if refused.field.is_empty() { String::new() } else { format!("{}: ", refused.field) };
        let message = format!("{field}{}; {}", refused.message, refused.help);
        return Claim::new(named::ACCEPTED, false, refused.code.as_str(), message);
    }
    if let Some(why) = &observed.not_applied {
        return Claim { holds: None, ..Claim::new(named::ACCEPTED, false, named::REASON_NOT_APPLIED, why.clone()) };
    }
    Claim::new(named::ACCEPTED, true, named::REASON_AS_ASKED, "the spec can be realised")
}

fn available(observed: &Observed<'_>) -> Claim {
    let (serving, least) = (observed.serving(), observed.least);
    if observed.desired == 0 {
        return Claim::new(named::AVAILABLE, true, named::REASON_SCALED_TO_ZERO, "no pods are asked for");
    }
    if let (0, Some((pod, trouble))) = (serving, observed.trouble()) {
        let message = format!("no pod serves, and {pod} does not start: {}", trouble.message);
        return Claim::new(named::AVAILABLE, false, trouble.reason, message);
    }
    if serving == 0 {
        let message = "no pod serves; see the Events of the pods and of the Deployment";
        return Claim::new(named::AVAILABLE, false, named::REASON_NO_READY_PODS, message);
    }
    if serving < least {
        let message = format!("fewer than {least} of {} pods serve; see the Events of the pods", observed.desired);
        return Claim::new(named::AVAILABLE, false, named::REASON_REPLICAS_NOT_READY, message);
    }
    Claim::new(named::AVAILABLE, true, named::REASON_AS_ASKED, "enough pods serve")
}

fn address(observed: &Observed<'_>) -> Claim {
    match &observed.address {
        Address::NotWanted => {
            Claim::new(named::ADDRESS_READY, true, named::REASON_NOT_WANTED, "no address outside the cluster is asked for")
        }
        Address::Assigned(_) => Claim::new(named::ADDRESS_READY, true, named::REASON_AS_ASKED, "the fleet has an address"),
        Address::Pending => {
            let message = "the load balancer has given no address yet; see the Events of the fleet's Service";
            Claim::new(named::ADDRESS_READY, false, named::REASON_ADDRESS_PENDING, message)
        }
    }
}

/// Why a rollout goes on no more until somebody changes something.
fn stalled(observed: &Observed<'_>) -> Option<(&'static str, String)> {
    let rollout = observed.rollout?;
    let reason = match rollout.state.as_str() {
        "Stalled" => named::REASON_ROLLOUT_STALLED,
        "Aborted" => named::REASON_ROLLOUT_ABORTED,
        _ => return None,
    };
    Some((reason, rollout.message.clone()))
}

fn rolled_out(observed: &Observed<'_>) -> Claim {
    if let Some((reason, message)) = stalled(observed) {
        return Claim::new(named::ROLLED_OUT, false, reason, message);
    }
    if observed.rolled_out {
        return Claim::new(named::ROLLED_OUT, true, named::REASON_AS_ASKED, "all pods are made from the present template");
    }
    if let Some((pod, trouble)) = observed.trouble() {
        let message = format!("pods are being started or replaced, and {pod} does not start: {}", trouble.message);
        return Claim::new(named::ROLLED_OUT, false, trouble.reason, message);
    }
    match observed.rollout {
        Some(rollout) if rollout.state == "Paused" => Claim::new(
            named::ROLLED_OUT,
            false,
            named::REASON_ROLLOUT_PAUSED,
            "the rollout is paused; `kubectl haproxy-fleet rollout resume`",
        ),
        Some(rollout) if rollout.state == "Frozen" => Claim::new(
            named::ROLLED_OUT,
            false,
            named::REASON_PAUSED,
            "pods are not made from the present template, and spec.paused keeps them",
        ),
        _ => Claim::new(named::ROLLED_OUT, false, named::REASON_ROLLING_OUT, "pods are being started or replaced"),
    }
}

fn synced(observed: &Observed<'_>, now: Timestamp) -> Claim {
    let names: Vec<&str> = observed.pods.iter().filter(|pod| pod.is_behind(now)).map(|pod| pod.name.as_str()).collect();
    if names.is_empty() {
        return Claim::new(named::CONFIG_SYNCED, true, named::REASON_AS_ASKED, "every pod that serves confirms the present configuration");
    }
    let message = format!("not confirmed for more than {} s by {}; they serve what they had", BEHIND.as_secs(), names.join(", "));
    Claim::new(named::CONFIG_SYNCED, false, named::REASON_PODS_BEHIND, message)
}

fn balanced(observed: &Observed<'_>) -> Claim {
    let mut by_zone: BTreeMap<&str, u32> = observed.zones.iter().map(|zone| (zone.as_str(), 0)).collect();
    for pod in observed.pods.iter().filter(|pod| pod.serves) {
        *by_zone.entry(pod.zone.as_deref().unwrap_or("?")).or_default() += 1;
    }
    let (least, most) = (by_zone.values().min().copied().unwrap_or(0), by_zone.values().max().copied().unwrap_or(0));
    if most.saturating_sub(least) <= 1 {
        return Claim::new(named::ZONES_BALANCED, true, named::REASON_AS_ASKED, "pods are spread evenly over the zones");
    }
    let short: Vec<&str> = by_zone.iter().filter(|(_, count)| most - **count > 1).map(|(zone, _)| *zone).collect();
    let message = format!("the zones {} have fewer pods than others; see whether their nodes are well", short.join(", "));
    Claim::new(named::ZONES_BALANCED, false, named::REASON_UNBALANCED, message)
}

/// The ten findings that matter most, the worst first.
pub fn worst(findings: &[Diagnostic]) -> Vec<&Diagnostic> {
    let mut sorted: Vec<&Diagnostic> = findings.iter().filter(|finding| finding.severity != Severity::Info).collect();
    sorted.sort_by(|a, b| (a.severity, *a).cmp(&(b.severity, *b)));
    sorted.truncate(10);
    sorted
}

/// A finding as the status shows it; the schema bounds every text.
fn finding(finding: &Diagnostic) -> Finding {
    let bounded = |text: &str, most: usize| text.chars().take(most).collect::<String>();
    Finding {
        severity: finding.severity.as_str().to_owned(),
        code: bounded(finding.code.as_str(), 64),
        object: bounded(&finding.object.to_string(), 600),
        field: bounded(&finding.field, 512),
        message: bounded(&finding.message, 1024),
        help: bounded(&finding.help, 1024),
    }
}

#[cfg(test)]
mod tests;
