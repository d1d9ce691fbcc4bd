//! The document of `/status`: how fleets are, what every one of them is to serve, and what its agents say. Pure.

use super::report::Looked;
use super::stage::{FleetView, Translated};
use crate::agent::ReloadRecord;
use crate::api::conditions::READY;
use crate::delivery::feed::{AgentReport, AgentState, Agents};
use crate::haproxy::plan::cause;
use crate::model::FleetId;
use crate::report::{Diagnostic, Located};
use crate::status::fleet::{Pod, worst};
use crate::status::json::{self, Status};
use std::collections::{BTreeMap, BTreeSet};

/// The state of everything, as far as this replica knows it: how fleets and their pods are is `looked` at only by the one
/// that leads. `findings` are all of them.
pub(super) fn document(
    operator: json::Operator,
    translated: &Translated,
    agents: &Agents,
    looked: &BTreeMap<FleetId, Looked<'_>>,
    findings: &[Diagnostic],
) -> Status {
    // one whose class is another's is asked for, and not translated
    let ids: BTreeSet<&FleetId> = translated.fleets.keys().chain(looked.keys()).collect();
    let fleets: Vec<json::Fleet> = ids.into_iter().map(|id| fleet(id, translated.fleets.get(id), looked.get(id), agents)).collect();
    let serves = |fleet: &json::Fleet| fleet.ready.unwrap_or_else(|| fleet.replicas.iter().all(|replica| replica.ready));
    let ready = operator.whole && fleets.iter().all(serves);
    Status { ready, operator: Some(operator), fleets, diagnostics: findings.iter().map(in_no_file).collect() }
}

fn fleet(id: &FleetId, view: Option<&FleetView>, looked: Option<&Looked<'_>>, agents: &Agents) -> json::Fleet {
    let wanted = looked.and_then(|looked| looked.wanted.as_ref());
    let condition = wanted.and_then(|status| status.conditions.iter().find(|condition| condition.type_ == READY));
    let own: &[Diagnostic] = looked.map_or_else(|| view.map_or(&[][..], |view| view.findings.as_slice()), |looked| looked.own.as_slice());
    json::Fleet {
        namespace: id.namespace.to_string(),
        name: id.name.to_string(),
        class: looked.and_then(Looked::class).or_else(|| view.map(|view| view.class.to_string())).unwrap_or_default(),
        ready: condition.and_then(|condition| match condition.status.as_str() {
            "True" => Some(true),
            "False" => Some(false),
            _ => None,
        }),
        state: condition.map(|condition| condition.reason.clone()),
        message: condition.map(|condition| condition.message.clone()),
        desired: looked.and_then(Looked::desired).map(u64::from),
        addresses: wanted.map(|status| status.addresses.clone()).unwrap_or_default(),
        worst: worst(own).into_iter().map(in_no_file).collect(),
        revision: wanted.and_then(|status| u64::try_from(status.revision?).ok()).unwrap_or(0),
        generation: view.map_or(0, |view| view.generation),
        digest: view.map(|view| view.digest.to_string()).unwrap_or_default(),
        rollout: wanted.and_then(|status| status.rollout.as_ref()).map(Into::into),
        replicas: replicas(id, view, looked.map_or(&[][..], Looked::pods), agents),
        ..json::Fleet::default()
    }
}

/// The pods that the cluster or an agent tells of, by name.
fn replicas(fleet: &FleetId, view: Option<&FleetView>, pods: &[Pod], agents: &Agents) -> Vec<json::Replica> {
    let pods: BTreeMap<&str, &Pod> = pods.iter().map(|pod| (pod.name.as_str(), pod)).collect();
    let of_fleet = agents.iter().filter(|((of, _), _)| of == fleet);
    let reports: BTreeMap<&str, &AgentReport> = of_fleet.map(|((_, pod), report)| (pod.as_str(), &**report)).collect();
    let names: BTreeSet<&str> = pods.keys().chain(reports.keys()).copied().collect();
    names.into_iter().map(|name| replica(name, view, pods.get(name).copied(), reports.get(name).copied())).collect()
}

fn replica(name: &str, view: Option<&FleetView>, pod: Option<&Pod>, report: Option<&AgentReport>) -> json::Replica {
    let default = AgentState::default();
    let said = report.and_then(|report| report.state.as_ref());
    let state = said.unwrap_or(&default);
    json::Replica {
        name: name.to_owned(),
        zone: pod.and_then(|pod| pod.zone.clone()),
        ready: pod.map_or(state.ready, |pod| pod.serves),
        connected: report.is_some(),
        confirmed: said.is_some_and(|state| view.is_some_and(|view| view.digest == state.digest && state.held == 0)),
        haproxy_version: report.map(|report| report.haproxy_version.clone()),
        generation: state.generation,
        reload_count: state.reload_count,
        reloads: state.reloads.iter().map(reload).collect(),
        runtime_commands: state.runtime_commands,
        refused: state
            .refused
            .iter()
            .map(|refusal| json::Refused {
                generation: refusal.generation,
                object: refusal.sources.first().map(Into::into),
                message: refusal.message.clone(),
            })
            .collect(),
        ..json::Replica::default()
    }
}

fn reload(record: &ReloadRecord) -> json::Reload {
    json::Reload { generation: record.generation, reason: record.reason.clone(), cause: cause(&record.reason).to_owned() }
}

fn in_no_file(diagnostic: &Diagnostic) -> json::Diagnostic {
    json::Diagnostic::from(&Located { location: None, diagnostic: diagnostic.clone() })
}
