//! The status of a `Backend`: whether it is understood, and where it applies. Pure.

use super::conditions::{Claim, merge};
use crate::api::backend::{BackendStatus, BackendUse};
use crate::api::conditions as named;
use crate::report::{Diagnostic, Severity, codes};
use k8s_openapi::jiff::Timestamp;

/// Uses that are named; the schema has no room for more.
pub const NAMED_USES: usize = 32;

/// What is known of a `Backend`.
#[derive(Clone, Debug)]
pub struct Observed<'o> {
    /// `metadata.generation` of the spec that the rest is about.
    pub generation: i64,
    /// How many objects name it, of those that a fleet serves.
    pub uses: usize,
    /// The first [`NAMED_USES`] of them, in order.
    pub used_by: &'o [BackendUse],
    /// What was found about it.
    pub findings: &'o [&'o Diagnostic],
}

/// The status that follows from `observed`. `before` is what the object says now.
pub fn status(observed: &Observed<'_>, before: &BackendStatus, now: Timestamp) -> BackendStatus {
    BackendStatus {
        observed_generation: Some(observed.generation),
        uses: Some(i32::try_from(observed.uses).unwrap_or(i32::MAX)),
        used_by: observed.used_by.iter().take(NAMED_USES).cloned().collect(),
        conditions: merge(&before.conditions, &claims(observed), observed.generation, now),
    }
}

fn claims(observed: &Observed<'_>) -> Vec<Claim> {
    let accepted = accepted(observed);
    let ready = ready(observed, &accepted);
    let mut claims = vec![accepted];
    if ready.holds == Some(false) {
        // it stays like that until somebody changes it
        claims.push(Claim::new(named::STALLED, true, ready.reason, ready.message.clone()));
    }
    claims.push(ready);
    claims
}

/// Whether all of it is understood. A warning changes nothing about that, but is what has to be said.
fn accepted(observed: &Observed<'_>) -> Claim {
    let of_spec = |finding: &&&Diagnostic| finding.code != codes::REFUSED_BY_HAPROXY && finding.severity != Severity::Info;
    match worst(observed.findings.iter().filter(of_spec)) {
        Some(finding) => Claim::new(named::ACCEPTED, finding.severity != Severity::Error, finding.code.as_str(), text(finding)),
        None => Claim::new(named::ACCEPTED, true, named::REASON_AS_ASKED, "every field is understood"),
    }
}

/// Whether all of it has an effect wherever it is used. One that nobody uses is as ready as it can be.
fn ready(observed: &Observed<'_>, accepted: &Claim) -> Claim {
    if accepted.holds != Some(true) {
        return Claim { type_: named::READY, ..accepted.clone() };
    }
    let refused = |finding: &&&Diagnostic| finding.code == codes::REFUSED_BY_HAPROXY;
    if let Some(finding) = worst(observed.findings.iter().filter(refused)) {
        return Claim::new(named::READY, false, named::REASON_REFUSED_BY_HAPROXY, text(finding));
    }
    if accepted.reason != named::REASON_AS_ASKED {
        return Claim { type_: named::READY, ..accepted.clone() };
    }
    if let Some(finding) = observed.findings.iter().find(|finding| finding.code == codes::UNUSED) {
        return Claim::new(named::READY, true, finding.code.as_str(), text(finding));
    }
    Claim::new(named::READY, true, named::REASON_AS_ASKED, "it applies where usedBy says")
}

fn worst<'f>(findings: impl Iterator<Item = &'f &'f Diagnostic>) -> Option<&'f Diagnostic> {
    findings.copied().min_by_key(|finding| (finding.severity, *finding))
}

fn text(finding: &Diagnostic) -> String {
    let field = if finding.field.is_empty() { String::new() } else { format!("{}: ", finding.field) };
    format!("{field}{}; {}", finding.message, finding.help)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::report::{Kind, ObjectRef};

    fn object() -> ObjectRef {
        ObjectRef::new(Kind::Backend, "shop", "cart")
    }

    fn of(findings: &[Diagnostic], uses: usize) -> BackendStatus {
        let findings: Vec<&Diagnostic> = findings.iter().collect();
        let used_by: Vec<BackendUse> = (0..uses)
            .map(|number| BackendUse {
                kind: "Service".into(),
                namespace: "shop".into(),
                name: format!("s{number:03}"),
                overridden: Vec::new(),
            })
            .collect();
        let observed = Observed { generation: 3, uses, used_by: &used_by, findings: &findings };
        status(&observed, &BackendStatus::default(), Timestamp::from_second(10).unwrap())
    }

    /// Type, status and reason of every condition.
    fn said(status: &BackendStatus) -> Vec<String> {
        status.conditions.iter().map(|one| format!("{} {} {}", one.type_, one.status, one.reason)).collect()
    }

    fn error(field: &str) -> Diagnostic {
        Diagnostic::error(&object(), field, codes::INVALID_VALUE, "0 is not a number from 1", "correct it")
    }

    #[test]
    fn a_backend_that_is_understood_and_used_is_ready_and_says_where() {
        let status = of(&[], 2);
        assert_eq!(said(&status), ["Accepted True AsAsked", "Ready True AsAsked"]);
        assert_eq!((status.observed_generation, status.uses, status.used_by.len()), (Some(3), Some(2), 2));
        assert!(status.conditions.iter().all(|condition| condition.observed_generation == Some(3)));
    }

    #[test]
    fn many_uses_are_a_number_and_the_first_of_them() {
        let status = of(&[], 1000);
        assert_eq!((status.uses, status.used_by.len()), (Some(1000), NAMED_USES));
        assert_eq!(status.used_by[0].name, "s000");
    }

    #[test]
    fn one_that_nobody_uses_is_ready_and_says_so() {
        let unused = Diagnostic::info(&object(), "", codes::UNUSED, "nothing names it", "name it");
        let status = of(&[unused], 0);
        assert_eq!(said(&status), ["Accepted True AsAsked", "Ready True Unused"]);
        assert_eq!(status.conditions[1].message, "nothing names it; name it");
    }

    #[test]
    fn the_worst_finding_is_what_its_conditions_say() {
        let warning = Diagnostic::warning(&object(), "spec.a", codes::UNKNOWN_FIELD, "no such field", "remove it");
        let status = of(&[warning.clone(), error("spec.retries"), error("spec.fullconn")], 1);
        let reason = "InvalidValue";
        assert_eq!(said(&status), [format!("Accepted False {reason}"), format!("Ready False {reason}"), format!("Stalled True {reason}")]);
        assert_eq!(status.conditions[1].message, "spec.fullconn: 0 is not a number from 1; correct it");
        assert_eq!(said(&of(&[warning], 1)), ["Accepted True UnknownField", "Ready True UnknownField"]);
    }

    #[test]
    fn what_haproxy_refuses_is_understood_and_yet_not_ready() {
        let refused = Diagnostic::error(&object(), "", codes::REFUSED_BY_HAPROXY, "no", "change it");
        assert_eq!(said(&of(&[refused], 1)), ["Accepted True AsAsked", "Ready False RefusedByHaproxy", "Stalled True RefusedByHaproxy"]);
    }

    #[test]
    fn nothing_changes_without_a_change() {
        let first = of(&[error("spec.retries")], 1);
        let finding = error("spec.retries");
        let used_by = first.used_by.clone();
        let observed = Observed { generation: 3, uses: 1, used_by: &used_by, findings: &[&finding] };
        assert_eq!(status(&observed, &first, Timestamp::from_second(99).unwrap()), first);
    }
}
