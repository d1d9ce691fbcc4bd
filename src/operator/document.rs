//! The document of `/status`: what every fleet is to serve, and what its agents say. Pure.

use super::stage::Translated;
use crate::agent::ReloadRecord;
use crate::delivery::feed::{AgentState, Agents};
use crate::haproxy::plan::cause;
use crate::model::FleetId;
use crate::report::{Diagnostic, Located};
use crate::status::json::{self, Status};

/// The state of everything, as far as this replica knows it. `addresses` are those that clients use.
pub(super) fn document(translated: &Translated, agents: &Agents) -> Status {
    let fleets: Vec<json::Fleet> = translated
        .fleets
        .iter()
        .map(|(fleet, view)| json::Fleet {
            namespace: fleet.namespace.to_string(),
            name: fleet.name.to_string(),
            generation: view.generation,
            digest: view.digest.to_string(),
            replicas: replicas(fleet, agents),
            ..json::Fleet::default()
        })
        .collect();
    let ready = translated.whole && fleets.iter().all(|fleet| fleet.replicas.iter().all(|replica| replica.ready));
    Status { ready, fleets, diagnostics: translated.findings.iter().map(in_no_file).collect() }
}

fn replicas(fleet: &FleetId, agents: &Agents) -> Vec<json::Replica> {
    let of_fleet = agents.iter().filter(|((of, _), _)| of == fleet);
    of_fleet.map(|((_, pod), report)| replica(pod, report.state.as_ref())).collect()
}

fn replica(pod: &str, state: Option<&AgentState>) -> json::Replica {
    let Some(state) = state else { return json::Replica { name: pod.to_owned(), ..json::Replica::default() } };
    json::Replica {
        name: pod.to_owned(),
        ready: state.ready,
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
