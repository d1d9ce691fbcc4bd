//! The operator is allowed what it does, and nothing else. What it did is what the API server wrote down during the suites
//! before this one, so it says nothing if it runs alone.

use crate::{LEFT_OUT, run_on_ours};
use haproxy_fleet_e2e::Failure;
use haproxy_fleet_e2e::operator::Call;
use haproxy_fleet_e2e::setting::SYSTEM;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

/// What is granted and seen in no log, with the reason.
const UNSEEN: [(&str, &str, &str, &str); 3] = [
    (
        "haproxy-fleet.dev",
        "ingressdeployments/finalizers",
        "update",
        "clusters with OwnerReferencesPermissionEnforcement ask for it when an owner reference is written",
    ),
    ("", "secrets", "update", "the authority is renewed months later"),
    ("", "secrets", "delete", "revisions are many before the first of them is removed"),
];

fn granted(role: &Value) -> impl Iterator<Item = Call> {
    let texts =
        |value: &Value| -> Vec<String> { value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect() };
    let rules: Vec<_> = role["rules"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|rule| [&rule["apiGroups"], &rule["resources"], &rule["verbs"]].map(texts))
        .collect();
    rules.into_iter().flat_map(|[groups, resources, verbs]| {
        let mut calls = Vec::new();
        for group in &groups {
            for resource in &resources {
                calls.extend(verbs.iter().map(|verb| (group.clone(), resource.clone(), verb.clone())));
            }
        }
        calls
    })
}

#[test]
fn roles_grant_what_was_used_and_nothing_else() {
    run_on_ours(|setting| async move {
        let (calls, _) = setting.calls(0).await?.ok_or_else(|| Failure::new("nothing was written down"))?;
        let mut all: BTreeSet<Call> = BTreeSet::new();
        for name in ["haproxy-fleet", "haproxy-fleet-secrets", "haproxy-fleet-fleets"] {
            all.extend(granted(&setting.get(&["clusterrole", name]).await?));
        }
        all.extend(granted(&setting.get(&["role", "-n", SYSTEM, "haproxy-fleet"]).await?));
        let used: BTreeSet<Call> = calls.iter().filter(|(_, tally)| tally.allowed > 0).map(|(call, _)| call.clone()).collect();
        let is_known = |(group, resource, verb): &Call| {
            UNSEEN.iter().any(|(g, r, v, _)| (group, resource, verb) == (&(*g).to_owned(), &(*r).to_owned(), &(*v).to_owned()))
        };
        // servers without streaming lists are asked for lists; what an Event is about is got, where there was something to say
        let is_other_way = |(group, resource, verb): &Call| {
            matches!(verb.as_str(), "list" | "get") && used.contains(&(group.clone(), resource.clone(), "watch".to_owned()))
        };
        let unused: Vec<&Call> = all.difference(&used).filter(|call| !is_known(call) && !is_other_way(call)).collect();
        // an API server that has just started refuses what it allows a moment later
        let wanted: Vec<&Call> =
            calls.iter().filter(|(_, tally)| tally.allowed == 0 && tally.forbidden > 0).map(|(call, _)| call).collect();
        if LEFT_OUT.load(Ordering::Relaxed) > 0 {
            println!("SKIPPED: roles against calls (suites were left out, so calls are missing)");
            return Ok(());
        }
        println!(
            "{}",
            serde_json::json!({"suite": "roles", "granted": all.len(), "used": used.len(), "calls": calls.values().map(|tally| tally.allowed).sum::<u64>()})
        );
        assert!(unused.is_empty(), "granted and never used: {unused:#?}");
        assert!(wanted.is_empty(), "asked for and never granted: {wanted:#?}");
        Ok(())
    });
}
