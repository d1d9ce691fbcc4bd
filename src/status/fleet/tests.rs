//! What a fleet's state reads like.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::report::{Kind, ObjectRef, codes};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn pod(name: &str, zone: &str) -> Pod {
    Pod {
        name: name.to_owned(),
        zone: Some(zone.to_owned()),
        serves: true,
        terminating: false,
        behind_since: None,
        holds: false,
        trouble: None,
    }
}

fn three() -> Vec<Pod> {
    vec![pod("p1", "a"), pod("p2", "b"), pod("p3", "c")]
}

fn observed<'o>(pods: &'o [Pod], zones: &'o [String]) -> Observed<'o> {
    Observed {
        generation: 4,
        paused: false,
        deleting: None,
        refused: None,
        not_applied: None,
        desired: 3,
        updated: 3,
        rolled_out: true,
        available: 3,
        least: 2,
        pods,
        zones,
        address: Address::Assigned(vec!["192.0.2.1".to_owned()]),
        selector: "haproxy-fleet.dev/fleet=edge",
        haproxy_version: Some("3.4.7"),
        revision: Some("abc"),
        rollout: None,
        known_as: None,
        pinned: Some(None),
        last_kept: 0,
        findings: &[],
    }
}

fn of(observed: &Observed<'_>) -> BTreeMap<String, Condition> {
    let status = status(observed, &IngressDeploymentStatus::default(), at(100));
    status.conditions.into_iter().map(|condition| (condition.type_.clone(), condition)).collect()
}

fn ready(observed: &Observed<'_>) -> (String, String) {
    let conditions = of(observed);
    (conditions["Ready"].status.clone(), conditions["Ready"].reason.clone())
}

#[test]
fn a_fleet_that_serves_as_asked_is_ready_and_nothing_else() {
    let (pods, zones) = (three(), ["a", "b", "c"].map(str::to_owned));
    let observed = observed(&pods, &zones);
    let status = status(&observed, &IngressDeploymentStatus::default(), at(100));
    assert_eq!(status.zones.as_deref(), Some("a 1/1, b 1/1, c 1/1"));
    assert_eq!((status.ready_replicas, status.address.as_deref(), status.revision), (Some(3), Some("192.0.2.1"), Some(1)));
    assert_eq!((status.ready.as_deref(), status.confirmed.as_deref()), (Some("3/3"), Some("3/3")));
    assert!(status.conditions.iter().all(|condition| condition.status == "True" && condition.observed_generation == Some(4)));
    assert!(status.conditions.iter().all(|condition| !matches!(&*condition.type_, "Reconciling" | "Stalled" | "Paused")));
}

#[test]
fn a_revision_counts_on_only_when_what_is_served_is_another() {
    let pods = three();
    let first = status(&observed(&pods, &[]), &IngressDeploymentStatus::default(), at(100));
    let same = status(&observed(&pods, &[]), &first, at(200));
    assert_eq!((first.revision, same.revision), (Some(1), Some(1)));
    let next = status(&Observed { revision: Some("def"), ..observed(&pods, &[]) }, &same, at(300));
    assert_eq!((next.revision, next.revision_digest.as_deref()), (Some(2), Some("def")));
    let back = status(&Observed { revision: Some("abc"), known_as: Some(1), last_kept: 2, ..observed(&pods, &[]) }, &next, at(300));
    assert_eq!(back.revision, Some(1), "people went back to it");
    let other = status(&Observed { revision: Some("ghi"), last_kept: 2, ..observed(&pods, &[]) }, &back, at(300));
    assert_eq!(other.revision, Some(3), "no number is given twice");
    let unknown = status(&Observed { revision: None, ..observed(&pods, &[]) }, &next, at(400));
    assert_eq!(unknown.revision, Some(2), "a restart of the operator is no change");
}

#[test]
fn a_pod_that_a_node_drain_takes_leaves_the_fleet_ready() {
    let mut pods = three();
    pods[0].terminating = true;
    pods[0].serves = false;
    pods.push(Pod { serves: false, ..pod("p4", "a") });
    assert_eq!(ready(&observed(&pods, &[])), ("True".to_owned(), "AsAsked".to_owned()));
    pods[1].serves = false;
    assert_eq!(ready(&observed(&pods, &[])), ("False".to_owned(), "ReplicasNotReady".to_owned()));
}

#[test]
fn a_fleet_without_its_address_is_not_ready_and_waits() {
    let pods = three();
    let pending = Observed { address: Address::Pending, ..observed(&pods, &[]) };
    let conditions = of(&pending);
    assert_eq!((&*conditions["Ready"].status, &*conditions["Ready"].reason), ("False", "AddressPending"));
    assert_eq!(conditions["Reconciling"].status, "True");
    assert!(!conditions.contains_key("Stalled"));
    let private = Observed { address: Address::NotWanted, ..observed(&pods, &[]) };
    assert_eq!(ready(&private).0, "True");
}

#[test]
fn a_spec_that_cannot_be_realised_stalls_and_says_field_and_remedy() {
    let pods = three();
    let fleet = ObjectRef::new(Kind::IngressDeployment, "infra", "edge");
    let refused = Diagnostic::error(&fleet, "spec.zones[0].name", codes::NOT_FOUND, "no node is in zone \"d\"", "name one of a, b, c");
    let conditions = of(&Observed { refused: Some(&refused), ..observed(&pods, &[]) });
    assert_eq!(conditions["Stalled"].message, "spec.zones[0].name: no node is in zone \"d\"; name one of a, b, c");
    assert_eq!(conditions["Ready"].reason, "NotFound");
    assert_eq!(conditions["Available"].status, "True", "what served before still does");
}

#[test]
fn an_api_server_that_refuses_a_write_is_no_end_of_the_way() {
    let pods = three();
    let conditions = of(&Observed { not_applied: Some("Deployment edge: quota exceeded".to_owned()), ..observed(&pods, &[]) });
    assert_eq!((&*conditions["Accepted"].status, &*conditions["Ready"].reason), ("Unknown", "NotApplied"));
    assert!(!conditions.contains_key("Stalled"));
}

#[test]
fn a_pod_that_waits_for_a_moment_is_not_behind() {
    let mut pods = three();
    pods[0].behind_since = Some(at(95));
    assert_eq!(ready(&observed(&pods, &[])).0, "True");
    pods[0].behind_since = Some(at(80));
    let conditions = of(&observed(&pods, &[]));
    assert_eq!(conditions["Ready"].reason, "PodsBehind");
    assert!(conditions["ConfigSynced"].message.contains("by p1;"));
}

#[test]
fn a_zone_that_is_short_of_pods_is_named_and_hurts_nobody() {
    let pods = vec![pod("p1", "a"), pod("p2", "a"), pod("p3", "b")];
    let zones = ["a", "b", "c"].map(str::to_owned);
    let conditions = of(&observed(&pods, &zones));
    assert_eq!((&*conditions["ZonesBalanced"].status, &*conditions["Ready"].status), ("False", "True"));
    assert!(conditions["ZonesBalanced"].message.contains("the zones c have"), "{}", conditions["ZonesBalanced"].message);
}

#[test]
fn a_rollout_is_told_until_the_last_old_pod_is_gone() {
    let pods = three();
    let conditions = of(&Observed { updated: 1, rolled_out: false, ..observed(&pods, &[]) });
    assert_eq!((&*conditions["Reconciling"].reason, &*conditions["Ready"].status), ("RollingOut", "False"));
    assert!(!of(&observed(&pods, &[])).contains_key("Reconciling"));
}

#[test]
fn a_pause_is_told_in_the_place_of_a_rollout() {
    let pods = three();
    let conditions = of(&Observed { paused: true, rolled_out: false, ..observed(&pods, &[]) });
    assert_eq!(conditions["Paused"].status, "True");
    assert!(!conditions.contains_key("Reconciling"));
}

#[test]
fn no_pods_is_what_was_asked_for_if_so() {
    let none = Observed { desired: 0, least: 0, ..observed(&[], &[]) };
    assert_eq!(ready(&none).0, "True");
    assert_eq!(ready(&Observed { desired: 3, ..none }).1, "NoReadyPods");
}

#[test]
fn the_worst_ten_findings_come_first() {
    let object = ObjectRef::new(Kind::Ingress, "shop", "web");
    let mut findings: Vec<Diagnostic> =
        (0..20).map(|n| Diagnostic::warning(&object, format!("spec.rules[{n}]"), codes::UNUSED, "unused", "")).collect();
    findings.push(Diagnostic::error(&object, "spec", codes::NOT_FOUND, "missing", ""));
    let worst = worst(&findings);
    assert_eq!((worst.len(), &*worst[0].message), (10, "missing"));
}

#[test]
fn a_pod_that_does_not_start_is_told_with_its_reason_and_nothing_of_what_serves_is_called_lost() {
    let trouble = Trouble { reason: named::REASON_IMAGE_NOT_PULLED, message: "the image x cannot be had; correct it".to_owned() };
    let mut pods = three();
    pods.push(Pod { serves: false, trouble: Some(trouble.clone()), ..pod("p4", "a") });
    let rolling = Observed { rolled_out: false, ..observed(&pods, &[]) };
    assert_eq!(ready(&rolling), ("False".to_owned(), "ImageNotPulled".to_owned()));
    let conditions = of(&rolling);
    assert_eq!(conditions["Available"].status, "True");
    assert!(conditions["RolledOut"].message.contains("p4 does not start: the image x cannot be had"));
    let alone = [Pod { serves: false, trouble: Some(trouble), ..pod("p1", "a") }];
    let none = Observed { rolled_out: false, ..observed(&alone, &[]) };
    assert_eq!(of(&none)["Available"].reason, "ImageNotPulled");
}

#[test]
fn a_fleet_that_is_deleted_says_what_that_waits_for() {
    let pods = three();
    let deleted = Observed { deleting: Some("its pods drain"), ..observed(&pods, &[]) };
    assert_eq!(ready(&deleted), ("False".to_owned(), "Deleting".to_owned()));
    assert_eq!(of(&deleted)["Ready"].message, "it is deleted: its pods drain");
}

#[test]
fn a_revision_that_was_gone_back_to_is_said_once_all_pods_have_it_and_until_all_have_the_present() {
    let pods = three();
    let mut said = IngressDeploymentStatus::default();
    let mut says = |pinned| {
        said = status(&Observed { pinned, ..observed(&pods, &[]) }, &said, at(0));
        said.pinned_revision
    };
    let (on_its_way, present) = (None, Some(None));
    assert_eq!([says(present), says(on_its_way), says(Some(Some(7)))], [None, None, Some(7)]);
    assert_eq!([says(on_its_way), says(present)], [Some(7), None]);
}

#[test]
fn a_pod_that_waits_for_its_turn_to_reload_has_not_confirmed_and_is_no_trouble() {
    let mut pods = three();
    pods[1].holds = true;
    let said = status(&observed(&pods, &[]), &IngressDeploymentStatus::default(), at(300));
    assert_eq!(said.confirmed.as_deref(), Some("2/3"));
    let synced = said.conditions.iter().find(|condition| condition.type_ == named::CONFIG_SYNCED).unwrap();
    assert_eq!(synced.status, "True");
}
