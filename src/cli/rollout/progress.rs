//! How far a rollout is, for people. Pure.

use crate::cli::Error;
use crate::status::json::{Fleet, Rollout, RolloutZone};

/// How far it is.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Progress {
    pub(super) lines: Vec<String>,
    /// Whether there is nothing to wait for: it is done, or does not go on by itself.
    pub(super) is_over: bool,
    pub(super) is_done: bool,
}

/// The progress of the rollout of `fleet`.
pub(super) fn of(fleet: &Fleet) -> Result<Progress, Error> {
    let id = format!("{}/{}", fleet.namespace, fleet.name);
    let Some(rollout) = &fleet.rollout else {
        return Err(Error::new(
            format_args!("how the rollout of {id} goes is not known"),
            "ask again in some seconds: its manifest has to be read, and a replica of an operator has to lead",
        ));
    };
    let is_whole = |zone: &RolloutZone| zone.pods == zone.updated && zone.pods == zone.ready;
    let is_settled = rollout.stable.as_ref() == Some(&rollout.template);
    if rollout.state == "Complete" && is_settled && rollout.zones.iter().all(is_whole) {
        let pods: u64 = rollout.zones.iter().map(|zone| zone.pods).sum();
        let lines = vec![format!("the rollout of {id} is done: {pods} pods of the template {}", rollout.template)];
        return Ok(Progress { lines, is_over: true, is_done: true });
    }
    // what is drained by hand stays so until somebody gives it back
    let is_over = ["Paused", "Frozen", "Aborted", "Stalled"].contains(&rollout.state.as_str()) || is_drained(rollout);
    Ok(Progress { lines: lines(&id, rollout), is_over, is_done: false })
}

/// Whether pods that are drained by hand are all that is left.
fn is_drained(rollout: &Rollout) -> bool {
    let is_updated = |zone: &RolloutZone| zone.pods == zone.updated;
    rollout.state == "Complete" && !rollout.drained.is_empty() && rollout.zones.iter().all(is_updated)
}

fn lines(id: &str, rollout: &Rollout) -> Vec<String> {
    let state = match rollout.state.as_str() {
        "Paused" => "is paused",
        "Frozen" => "is kept as it is by spec.paused",
        "Aborted" => "was aborted",
        "Stalled" => "does not get on",
        _ if is_drained(rollout) => "is done, but for pods that are drained by hand",
        _ => "goes on",
    };
    let zones = rollout.zones.iter().map(|zone| {
        let name = zone.name.as_ref().map_or_else(String::new, |name| format!("zone {name}: "));
        format!("  {name}{} of {} pods have the template {}, {} ready", zone.updated, zone.pods, rollout.template, zone.ready)
    });
    let drained = rollout.drained.iter().map(|pod| format!("  pod {pod} is drained by hand"));
    let reasons = rollout.reasons.iter().map(|reason| format!("  {reason}"));
    std::iter::once(format!("the rollout of {id} {state}")).chain(zones).chain(drained).chain(reasons).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn fleet(state: &str, stable: &str, updated: u64) -> Fleet {
        let zone = RolloutZone { name: Some("a".into()), pods: 2, updated, ready: 2, ..RolloutZone::default() };
        let rollout = Rollout {
            state: state.into(),
            template: "new".into(),
            stable: Some(stable.into()),
            reasons: vec!["pod edge-a-0 in zone a is not ready".into()],
            zones: vec![zone],
            ..Rollout::default()
        };
        Fleet { namespace: "infra".into(), name: "edge".into(), rollout: Some(rollout), ..Fleet::default() }
    }

    #[test]
    fn what_goes_on_is_told_by_zone_with_what_it_waits_for() {
        let told = of(&fleet("Progressing", "old", 1)).unwrap();
        assert_eq!(
            told.lines,
            [
                "the rollout of infra/edge goes on",
                "  zone a: 1 of 2 pods have the template new, 2 ready",
                "  pod edge-a-0 in zone a is not ready",
            ]
        );
        assert!(!told.is_over && !told.is_done);
    }

    #[test]
    fn it_is_done_once_the_whole_fleet_has_run_the_template_for_long_enough() {
        assert!(of(&fleet("Complete", "new", 2)).unwrap().is_done);
        assert!(!of(&fleet("Complete", "old", 2)).unwrap().is_over, "not for long enough");
        for state in ["Paused", "Frozen", "Aborted", "Stalled"] {
            let told = of(&fleet(state, "old", 1)).unwrap();
            assert!(told.is_over && !told.is_done, "{state}");
        }
    }

    #[test]
    fn pods_that_are_drained_by_hand_are_named_and_not_waited_for() {
        let mut fleet = fleet("Complete", "new", 2);
        let rollout = fleet.rollout.as_mut().unwrap();
        (rollout.drained, rollout.zones[0].ready, rollout.reasons) = (vec!["edge-a-0".into()], 1, Vec::new());
        let told = of(&fleet).unwrap();
        assert_eq!(told.lines[0], "the rollout of infra/edge is done, but for pods that are drained by hand");
        assert_eq!(told.lines[2], "  pod edge-a-0 is drained by hand");
        assert!(told.is_over && !told.is_done);
        fleet.rollout.as_mut().unwrap().zones[0].updated = 1;
        assert!(!of(&fleet).unwrap().is_over, "pods are still to be replaced");
    }

    #[test]
    fn what_is_not_known_is_an_error() {
        let error = of(&Fleet { rollout: None, ..fleet("", "", 0) }).unwrap_err().to_string();
        assert!(error.contains("how the rollout of infra/edge goes is not known"), "{error}");
    }
}
