//! The second reader of everything: from what stages, agents and the cluster say to statuses, Events and `/status`.

use super::document::document;
use super::observed::{self, Moment};
use super::stage::{BackendView, FleetView, Translated};
use crate::api::{IngressDeploymentStatus, ZoneStatus, crd::IngressDeploymentResource};
use crate::delivery::ended::{DrainResult, Endings};
use crate::delivery::feed::{AgentReport, Agents};
use crate::fleet::apply::FleetKey;
use crate::fleet::build::selector_text;
use crate::fleet::controller::{FleetState, States};
use crate::ingest::cluster::SeenBackend;
use crate::model::FleetId;
use crate::report::{Diagnostic, Kind, ObjectRef, Severity, codes};
use crate::status::backend;
use crate::status::events::Event;
use crate::status::fleet::{Address, Observed, Pod, status};
use crate::status::ingress::{Ingresses, Point};
use crate::status::json::{Operator, Status};
use crate::status::writer::{BackendReport, FleetStatus, Reports, Writer};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1 as core;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// What changed is told after this long: changes come in groups.
const QUIET: Duration = Duration::from_millis(200);
/// It is looked through again this often, whatever is told: some of it is a matter of time.
const AGAIN: Duration = Duration::from_secs(5);

/// Everything that is told.
pub(super) struct Sources {
    pub(super) translated: watch::Receiver<Arc<Translated>>,
    pub(super) agents: watch::Receiver<Agents>,
    pub(super) ended: watch::Receiver<Arc<Endings>>,
    pub(super) states: watch::Receiver<Arc<States>>,
    pub(super) leads: Box<dyn Fn() -> bool + Send + Sync>,
    /// The name of this pod.
    pub(super) pod: String,
}

/// Tells `/status` at every replica, and the cluster at the one that leads.
pub(super) async fn tell(
    mut sources: Sources,
    writer: impl Fn() -> Writer,
    ingresses: Arc<Mutex<Ingresses>>,
    told: watch::Sender<Arc<Status>>,
) {
    let started = Instant::now();
    let mut writing: Option<Writer> = None;
    let mut due: Option<Instant> = None;
    // what ended before is told by whoever led then
    let mut ended = 0;
    loop {
        let (translated, agents) = (sources.translated.borrow_and_update().clone(), sources.agents.borrow_and_update().clone());
        let states = sources.states.borrow_and_update().clone();
        let endings = sources.ended.borrow_and_update().clone();
        let before = std::mem::replace(&mut ended, endings.count());
        let (leads, whole) = ((sources.leads)(), translated.whole);
        let operator = Operator { pod: sources.pod.clone(), leads, whole };
        if leads && whole {
            let now = Moment::now();
            let looked = look(&translated, &agents, &states, started, now);
            let findings = findings(&translated, &looked);
            told.send_replace(Arc::new(document(operator, &translated, &agents, &looked, &findings)));
            for (fleet, looked) in &looked {
                reach(&super::stage::object_of(fleet), looked, &ingresses);
            }
            let backends = backends(&translated, &findings, now);
            let happened = endings.after(before).filter_map(|result| cut(result, looked.get(&result.fleet)?)).collect();
            let reports = Reports { fleets: statuses(looked), backends, findings: Arc::new(findings), happened };
            due = writing.get_or_insert_with(&writer).pass(&reports).await;
        } else {
            told.send_replace(Arc::new(document(operator, &translated, &agents, &BTreeMap::new(), &translated.findings)));
            // whoever leads next begins with what the objects say then
            writing = None;
        }
        let again = Instant::now() + AGAIN;
        let due = due.take().map_or(again, |due| due.min(again));
        tokio::select! {
            changed = sources.translated.changed() => if changed.is_err() { return },
            changed = sources.agents.changed() => if changed.is_err() { return },
            changed = sources.states.changed() => if changed.is_err() { return },
            changed = sources.ended.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(due) => continue,
        }
        tokio::time::sleep(QUIET).await;
    }
}

/// One fleet, by the word of all who know something of it.
pub(super) struct Looked<'l> {
    state: &'l FleetState,
    /// What the cluster says, if that can be read.
    reading: Option<Reading<'l>>,
    /// What was found while it was brought about and served.
    beside: Vec<Diagnostic>,
    /// Everything that was found about it and what it serves.
    pub(super) own: Vec<Diagnostic>,
    /// What its status should say; `None` before it was looked at.
    pub(super) wanted: Option<IngressDeploymentStatus>,
}

impl Looked<'_> {
    pub(super) fn class(&self) -> Option<String> {
        self.reading.as_ref().map(|reading| reading.spec.ingress_class_name.clone())
    }

    pub(super) fn desired(&self) -> Option<u32> {
        self.reading.as_ref().map(|reading| desired(&reading.spec, self.state))
    }

    pub(super) fn pods(&self) -> &[Pod] {
        self.reading.as_ref().map_or(&[], |reading| &reading.pods)
    }
}

fn look<'l>(
    translated: &'l Translated,
    agents: &Agents,
    states: &'l States,
    started: Instant,
    now: Moment,
) -> BTreeMap<FleetId, Looked<'l>> {
    let one = |(key, state): (&FleetKey, &'l FleetState)| {
        let fleet = FleetId { namespace: key.namespace.as_str().into(), name: key.name.as_str().into() };
        let beside: Vec<Diagnostic> =
            state.problems.iter().chain(&state.refused).chain(&state.findings).cloned().chain(refusals(&fleet, agents)).collect();
        let reading = Reading::of(&fleet, state, translated, agents, started, now);
        let translated_ones = reading.as_ref().and_then(|reading| reading.view).map(|view| view.findings.iter());
        let mut own: Vec<Diagnostic> = translated_ones.into_iter().flatten().chain(&beside).cloned().collect();
        own.sort();
        own.dedup();
        let wanted = reading.as_ref().filter(|_| state.generation > 0).map(|reading| reading.status(state, &fleet, &own, now));
        (fleet, Looked { state, reading, beside, own, wanted })
    };
    states.iter().map(one).collect()
}

/// All findings, each once, in order.
fn findings(translated: &Translated, looked: &BTreeMap<FleetId, Looked<'_>>) -> Vec<Diagnostic> {
    let beside = looked.values().flat_map(|looked| &looked.beside);
    let mut all: Vec<Diagnostic> = translated.findings.iter().chain(beside).cloned().collect();
    all.sort();
    all.dedup();
    all
}

/// What fleets say and should say.
fn statuses(looked: BTreeMap<FleetId, Looked<'_>>) -> BTreeMap<ObjectRef, FleetStatus> {
    let status = |(fleet, looked): (FleetId, Looked<'_>)| {
        Some((super::stage::object_of(&fleet), FleetStatus { wanted: looked.wanted?, says: looked.reading?.says }))
    };
    looked.into_iter().filter_map(status).collect()
}

/// What `Backend`s of ours should say. Those of other controllers are theirs to write.
fn backends(translated: &Translated, findings: &[Diagnostic], now: Moment) -> BTreeMap<ObjectRef, BackendReport> {
    let mut found: BTreeMap<&ObjectRef, Vec<&Diagnostic>> = BTreeMap::new();
    for finding in findings.iter().filter(|finding| finding.object.kind == Kind::Backend) {
        found.entry(&finding.object).or_default().push(finding);
    }
    let report = |(object, view): (&ObjectRef, &BackendView)| {
        let SeenBackend { uid, generation, status: says } = &view.seen;
        let findings = found.get(object).map_or(&[][..], Vec::as_slice);
        let observed = backend::Observed { generation: *generation, uses: view.uses, used_by: &view.used_by, findings };
        let wanted = backend::status(&observed, says, now.wall);
        (object.clone(), BackendReport { uid: uid.clone(), says: says.clone(), wanted })
    };
    translated.backends.iter().map(report).collect()
}

/// One fleet as it was read.
struct Reading<'r> {
    spec: crate::api::IngressDeploymentSpec,
    says: IngressDeploymentStatus,
    view: Option<&'r FleetView>,
    pods: Vec<Pod>,
    rollout: (u32, bool, u32),
    address: Address,
    haproxy_version: Option<String>,
}

impl<'r> Reading<'r> {
    fn of(fleet: &FleetId, state: &FleetState, translated: &'r Translated, agents: &Agents, started: Instant, now: Moment) -> Option<Self> {
        let full: IngressDeploymentResource = typed(state.fleet.as_ref()?)?;
        let view = translated.fleets.get(fleet);
        let pods: Vec<core::Pod> = state.pods.values().filter_map(|pod| typed(pod)).collect();
        let report =
            |pod: &core::Pod| -> Option<&AgentReport> { agents.get(&(fleet.clone(), pod.metadata.name.clone()?)).map(AsRef::as_ref) };
        let versions = pods.iter().filter_map(report).map(|report| report.haproxy_version.clone());
        let deployments: Vec<Deployment> = state.deployments.values().filter_map(|deployment| typed(deployment)).collect();
        let service: Option<core::Service> = state.services.get(&*fleet.name).and_then(|service| typed(service));
        Some(Self {
            address: observed::address(&full.spec, service.as_ref(), &pods),
            spec: full.spec,
            says: full.status.unwrap_or_default(),
            view,
            haproxy_version: versions.min(),
            rollout: observed::rollout(deployments.iter()),
            pods: pods.iter().map(|pod| observed::pod(pod, report(pod), view, started, now)).collect(),
        })
    }

    fn status(&self, state: &FleetState, fleet: &FleetId, findings: &[Diagnostic], now: Moment) -> IngressDeploymentStatus {
        let desired = desired(&self.spec, state);
        let revision = self.view.map(|view| view.revision.to_string());
        let zones: Vec<String> = self.spec.zones.iter().map(|zone| zone.name.clone()).collect();
        let (updated, rolled_out, available) = self.rollout;
        let observed = Observed {
            generation: state.generation,
            paused: state.paused,
            deleting: state.deletion.map(observed::deleting),
            refused: state.refused.first().or_else(|| unrealised(&super::stage::object_of(fleet), findings)),
            not_applied: state
                .failure
                .clone()
                .or_else(|| state.problems.first().map(|problem| format!("{}; {}", problem.message, problem.help))),
            desired,
            updated,
            rolled_out: rolled_out && !is_rolling(state),
            available,
            least: desired - (desired / 4).max(1).min(desired.saturating_sub(1)),
            pods: &self.pods,
            zones: &zones,
            address: self.address.clone(),
            selector: &selector_text(&fleet.name),
            haproxy_version: self.haproxy_version.as_deref(),
            revision: revision.as_deref(),
            rollout: state.rollout.as_ref(),
            known_as: self.view.and_then(|view| view.known_as),
            pinned: self.view.filter(|view| view.settled).map(|view| view.pinned),
            last_kept: self.view.map_or(0, |view| view.last_kept),
            findings,
        };
        status(&observed, &self.says, now.wall)
    }
}

/// Whether zones are still to get the template that is asked for, even if nothing is done about it for now.
fn is_rolling(state: &FleetState) -> bool {
    state.rollout.as_ref().is_some_and(|rollout| {
        let is_other = |zone: &ZoneStatus| zone.replicas > 0 && zone.template != rollout.template;
        matches!(rollout.state.as_str(), "Progressing" | "Stalled" | "Aborted") || rollout.zones.iter().any(is_other)
    })
}

/// The first error about a field of the fleet's own spec, such as a Secret that it names and that is not there. Errors about
/// what tenants write are about their objects.
fn unrealised<'f>(fleet: &ObjectRef, findings: &'f [Diagnostic]) -> Option<&'f Diagnostic> {
    let is_own = |finding: &&Diagnostic| finding.object == *fleet && finding.field.starts_with("spec.");
    findings.iter().find(|finding| is_own(finding) && finding.severity == Severity::Error)
}

/// Pods that are wanted: what Deployments say where an autoscaler decides, else what is asked for.
fn desired(spec: &crate::api::IngressDeploymentSpec, state: &FleetState) -> u32 {
    let asked = u32::try_from(spec.total_replicas()).unwrap_or(0);
    if spec.autoscaling.is_none() {
        return asked;
    }
    let wanted = state.deployments.values().filter_map(|deployment| deployment["spec"]["replicas"].as_u64()).sum::<u64>();
    u32::try_from(wanted).unwrap_or(u32::MAX)
}

/// Says to the Ingresses of a fleet where it is reached: nowhere while it is deleted, or no pod serves.
fn reach(object: &ObjectRef, looked: &Looked<'_>, ingresses: &Mutex<Ingresses>) {
    let Some(reading) = &looked.reading else { return };
    let reachable = looked.state.deletion.is_none() && reading.pods.iter().any(|pod| pod.serves);
    let points = match &reading.address {
        Address::Assigned(addresses) if reachable => addresses.iter().map(|text| Point::parse(text)).collect(),
        _ => Arc::from([]),
    };
    ingresses.lock().unwrap_or_else(PoisonError::into_inner).reach(object, &points);
}

/// What HAProxies of a fleet refused, once for each object and message.
fn refusals(fleet: &FleetId, agents: &Agents) -> Vec<Diagnostic> {
    let of_fleet = agents.iter().filter(|((of, _), _)| of == fleet).filter_map(|(_, report)| report.state.as_ref());
    let mut found: Vec<Diagnostic> = of_fleet
        .flat_map(|state| state.refused.iter())
        .filter_map(|refusal| {
            let object = refusal.sources.first()?;
            let message = format!("HAProxy refused what this leads to ({}): {}", refusal.resource, refusal.message);
            let help = "its last good version keeps serving; change the object and it is tried again";
            Some(Diagnostic { severity: Severity::Error, ..Diagnostic::error(object, "", codes::REFUSED_BY_HAPROXY, message, help) })
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

/// What is told of a pod that ended with connections open.
fn cut(DrainResult { fleet, pod, ending }: &DrainResult, looked: &Looked<'_>) -> Option<Event> {
    let timeout = &looked.reading.as_ref()?.spec.drain.timeout.0;
    let connections = match ending.cut {
        0 => return None,
        1 => "1 connection".to_owned(),
        number => format!("{number} connections"),
    };
    let note = format!(
        "pod {pod} ended with {connections} cut at the end of drain.timeout ({timeout}); give longer connections more time by \
         spec.drain.timeout"
    );
    Some(Event::of(&super::stage::object_of(fleet), true, "ConnectionsCut", note))
}

fn typed<T: DeserializeOwned>(value: &Value) -> Option<T> {
    match T::deserialize(value) {
        Ok(object) => Some(object),
        Err(error) => {
            tracing::warn!(%error, name = %value["metadata"]["name"], "an object cannot be read");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::RolloutStatus;

    #[test]
    fn a_fleet_is_not_rolled_out_while_a_zone_keeps_its_old_template_whatever_keeps_it() {
        let is_rolling = |state: &str, templates: [(&str, i32); 2]| {
            let zones =
                templates.map(|(template, replicas)| ZoneStatus { template: template.to_owned(), replicas, ..ZoneStatus::default() });
            let rollout =
                RolloutStatus { state: state.to_owned(), template: "new".to_owned(), zones: zones.into(), ..RolloutStatus::default() };
            is_rolling(&FleetState { rollout: Some(rollout), ..FleetState::default() })
        };
        for state in ["Paused", "Frozen", "Waiting", "Complete", "Aborted"] {
            assert!(is_rolling(state, [("new", 2), ("old", 2)]), "{state}");
        }
        assert!(!is_rolling("Paused", [("new", 2), ("new", 2)]));
        assert!(!is_rolling("Complete", [("new", 2), ("old", 0)]), "a zone that is no more");
        assert!(is_rolling("Progressing", [("new", 2), ("new", 2)]));
    }

    #[test]
    fn a_fleet_answers_for_its_own_spec_and_for_nothing_that_tenants_write() {
        let fleet = ObjectRef::new(Kind::IngressDeployment, "infra", "edge");
        let tenant = ObjectRef::new(Kind::Ingress, "shop", "web");
        let of_tenant = Diagnostic::error(&tenant, "spec.rules[0]", codes::NOT_FOUND, "no Service", "create it");
        let of_haproxy = Diagnostic::error(&fleet, "", codes::REFUSED_BY_HAPROXY, "no", "change it");
        let weak = Diagnostic::warning(&fleet, "spec.configMapRef", codes::CONFLICT, "two names", "remove one");
        let missing = Diagnostic::error(&fleet, "spec.tls.defaultCertificateRef.name", codes::NOT_FOUND, "no Secret", "create it");
        let findings = [of_tenant, of_haproxy, weak, missing.clone()];
        assert_eq!(unrealised(&fleet, &findings), Some(&missing));
        assert_eq!(unrealised(&fleet, &findings[..3]), None);
    }
}
