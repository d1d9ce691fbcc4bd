//! What the fleet controller is given: how the objects of a fleet are made here, and whether clients were led away from
//! one that is deleted.

use super::authority::Trust;
use super::keys::{KeyStore, Keys};
use super::observed;
use super::settings::{AGENTS_SERVICE, Settings};
use super::stage::Translated;
use crate::api::crd::IngressDeploymentResource;
use crate::api::{HaproxyLine, IngressDeployment, Meta, UpgradePolicy};
use crate::delivery::feed::{Agents, Feeds};
use crate::fleet::apply::FleetKey;
use crate::fleet::build::{Context, Fleet, InUse, Names, Observed, ObservedService};
use crate::fleet::controller::{Build, BuildError, Built, FleetState, Seen, States, Withdraw};
use crate::fleet::plan::{self, plan};
use crate::fleet::rollout::kubernetes::Said;
use crate::model::FleetId;
use crate::report::{Diagnostic, Kind, ObjectRef, Severity, codes};
use crate::status::ingress::Ingresses;
use futures::future::BoxFuture;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokio::sync::{OnceCell, watch};
use tokio::time::Instant;

/// A pod that had the configuration before this one counts for so long.
const LATE: Duration = Duration::from_secs(10);

/// Makes the objects of fleets.
pub(super) struct Maker {
    settings: Settings,
    trust: watch::Receiver<Option<Trust>>,
    translated: watch::Receiver<Arc<Translated>>,
    keys: KeyStore,
    client: Client,
    /// Whether the API server keeps `trafficDistribution`, once it was asked.
    knows_distribution: OnceCell<bool>,
    feeds: Feeds,
    /// Since when this replica leads: agents need some time to find it.
    leads_since: Mutex<Instant>,
    /// What is observed of all fleets: known once the controller that this is given to is made.
    states: OnceLock<watch::Receiver<Arc<States>>>,
}

impl Maker {
    pub(super) fn new(
        settings: Settings,
        client: Client,
        trust: watch::Receiver<Option<Trust>>,
        translated: watch::Receiver<Arc<Translated>>,
        feeds: Feeds,
    ) -> Self {
        Self {
            settings,
            trust,
            translated,
            keys: KeyStore::new(client.clone()),
            client,
            knows_distribution: OnceCell::new(),
            feeds,
            leads_since: Mutex::new(Instant::now()),
            states: OnceLock::new(),
        }
    }

    /// Says that this replica begins to lead.
    pub(super) fn begins(&self) {
        *self.leads_since.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    fn leads_since(&self) -> Instant {
        *self.leads_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets it see what is observed of all fleets.
    pub(super) fn watch(&self, states: watch::Receiver<Arc<States>>) {
        // it is called once
        let _ = self.states.set(states);
    }

    async fn make(&self, fleet: &Value, seen: &Seen) -> Result<Built, BuildError> {
        let (deployment, uid) = read(fleet).map_err(|refused| BuildError::Refused(vec![*refused]))?;
        let id = crate::pipeline::fleet_id(&deployment);
        let bundle_bytes = self.admitted(&id)?;
        let bundle = self.trust.borrow().as_ref().map(|trust| trust.bundle.to_string());
        let ca_bundle = bundle.ok_or_else(|| BuildError::Wait("the operator's authority is not there yet".to_owned()))?;
        let names = Names { namespace: &id.namespace, fleet: &id.name };
        let keys = self.keys.of(&id, &names.keys(), Timestamp::now()).await.map_err(|error| BuildError::Wait(error.to_string()))?;
        let ask = || async { self.client.apiserver_version().await.map(|version| knows_distribution(&version.major, &version.minor)) };
        let knows = self.knows_distribution.get_or_try_init(ask).await;
        let traffic_distribution = *knows.map_err(|error| BuildError::Wait(error.to_string()))?;
        let context = self.context(&id, ca_bundle, keys, traffic_distribution);
        let observed = in_cluster(seen, bundle_bytes);
        self.tell_drained(&id, &observed);
        let fleet = Fleet { deployment: &deployment, uid: &uid, context: &context, observed: &observed, change: None };
        let (translated, agents) = (self.translated.borrow().clone(), self.feeds.agents().borrow().clone());
        let said = |pod: &str| said(&id, pod, &translated, &agents);
        let are_known = self.leads_since().elapsed() > observed::TO_CONNECT || knows_all(&id, seen, &agents);
        plan(fleet, seen, plan::Agents { said: &said, are_known }, Timestamp::now()).map_err(BuildError::Refused)
    }

    /// Says to agents whose pods are drained by hand, as the Deployments have it.
    fn tell_drained(&self, fleet: &FleetId, observed: &Observed) {
        let drained = observed.deployments.values().flat_map(|in_use| in_use.drained.iter().cloned());
        self.feeds.set_drained(fleet, &drained.collect());
    }

    /// How many bytes the fleet's configuration takes, if it may have the class that it asks for.
    fn admitted(&self, fleet: &FleetId) -> Result<u64, BuildError> {
        let translated = self.translated.borrow();
        if !translated.whole {
            return Err(BuildError::Wait("the cluster was not seen as a whole yet".to_owned()));
        }
        let object = super::stage::object_of(fleet);
        let is_taken = |finding: &&Diagnostic| {
            finding.object == object
                && finding.severity == Severity::Error
                && finding.code == codes::CONFLICT
                && finding.field == "spec.ingressClassName"
        };
        let taken: Vec<Diagnostic> = translated.findings.iter().filter(is_taken).cloned().collect();
        if !taken.is_empty() {
            return Err(BuildError::Refused(taken));
        }
        let view = translated.fleets.get(fleet).ok_or_else(|| BuildError::Wait("its routes were not translated yet".to_owned()))?;
        Ok(view.bytes as u64)
    }

    fn context(&self, fleet: &FleetId, ca_bundle: String, keys: Keys, traffic_distribution: bool) -> Context {
        let image = |line: HaproxyLine| Some((line, self.settings.haproxy_images.get(line.as_str())?.clone()));
        let states = self.states.get().map(|states| states.borrow().clone());
        Context {
            operator_namespace: self.settings.namespace.clone(),
            operator_image: self.settings.image.clone(),
            haproxy_images: HaproxyLine::ALL.into_iter().filter_map(image).collect(),
            agents_service: AGENTS_SERVICE.to_owned(),
            agents_port: self.settings.delivery.port(),
            ca_bundle,
            ticket_keys: keys.tickets,
            ticket_keys_since: Some(keys.since.to_string()),
            default_certificate: keys.default_certificate,
            upgrade_turn: states.is_some_and(|states| has_turn(&states, fleet, &self.settings.image)),
            traffic_distribution,
        }
    }
}

impl Build for Maker {
    fn build<'b>(&'b self, fleet: &'b Value, seen: &'b Seen) -> BoxFuture<'b, Result<Built, BuildError>> {
        Box::pin(self.make(fleet, seen))
    }
}

/// Whether an API server of this version keeps `trafficDistribution`: from 1.31 on (KEP-4444). One that drops the field would
/// be written to at every look. Some providers write a plus sign behind the minor version.
fn knows_distribution(major: &str, minor: &str) -> bool {
    let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().unwrap_or(0_u32);
    (number(major), number(minor)) >= (1, 31)
}

/// An `IngressDeployment` as the API server gives it, and its uid.
fn read(fleet: &Value) -> Result<(IngressDeployment, String), Box<Diagnostic>> {
    let text = |field: &str| fleet["metadata"][field].as_str().unwrap_or_default().to_owned();
    let (namespace, name) = (text("namespace"), text("name"));
    let object = ObjectRef::new(Kind::IngressDeployment, namespace.as_str(), name.as_str());
    let full: IngressDeploymentResource = serde_json::from_value(fleet.clone()).map_err(|error| {
        let help = "correct it, or see whether the custom resource definitions are of this version: `haproxy-fleet crds`";
        Box::new(Diagnostic::error(&object, "spec", codes::INVALID_FIELD, format!("it cannot be read: {error}"), help))
    })?;
    let meta = Meta::from_full(full.metadata, namespace.as_str().into(), name.as_str().into());
    Ok((IngressDeployment { meta, spec: full.spec }, text("uid")))
}

/// What the agent of `pod` says: whether it has what the fleet is to serve, or had it a moment ago.
fn said(fleet: &FleetId, pod: &str, translated: &Translated, agents: &Agents) -> Said {
    let state = agents.get(&(fleet.clone(), pod.to_owned())).and_then(|report| report.state.as_ref());
    let (Some(state), Some(view)) = (state, translated.fleets.get(fleet)) else { return Said::default() };
    let is_recent = || view.since.elapsed() < LATE;
    Said { confirmed: state.ready && (state.digest == view.digest || !state.last_good && is_recent()), connections: state.connections }
}

/// Whether the agents of all pods that serve have said something.
fn knows_all(fleet: &FleetId, seen: &Seen, agents: &Agents) -> bool {
    let is_ready = |pod: &Value| {
        pod["status"]["conditions"].as_array().into_iter().flatten().any(|one| one["type"] == "Ready" && one["status"] == "True")
    };
    let mut ready = seen.pods.iter().filter(|(_, pod)| is_ready(pod));
    ready.all(|(name, _)| agents.get(&(fleet.clone(), name.clone())).is_some_and(|report| report.state.is_some()))
}

fn in_cluster(seen: &Seen, bundle_bytes: u64) -> Observed {
    Observed {
        services: seen.services.iter().map(|(name, service)| (name.clone(), ObservedService::of(service))).collect(),
        deployments: seen.deployments.iter().map(|(name, deployment)| (name.clone(), InUse::of(deployment))).collect(),
        bundle_bytes,
    }
}

/// Whether `fleet` may take the agent that comes with `image`: the first in order that has another one, follows upgrades by
/// itself and was not told to stop, while no other is replacing pods. One that has begun goes on whatever others do.
fn has_turn(states: &States, fleet: &FleetId, image: &str) -> bool {
    let of_key = |key: &FleetKey| *key.namespace == *fleet.namespace && *key.name == *fleet.name;
    let moving = states.iter().any(|(key, state)| !of_key(key) && !state.deployments.values().all(|one| is_complete(one)));
    let uses = |state: &FleetState, is_so: &dyn Fn(&str) -> bool| {
        state.deployments.values().any(|deployment| InUse::of(deployment).operator_image.is_some_and(|used| is_so(&used)))
    };
    let is_behind = |state: &FleetState| uses(state, &|used| used != image);
    let has_begun = |state: &FleetState| uses(state, &|used| used == image);
    let is_stopped = |state: &FleetState| {
        state.paused || state.rollout.as_ref().is_some_and(|rollout| matches!(rollout.state.as_str(), "Paused" | "Aborted" | "Frozen"))
    };
    let follows =
        |state: &FleetState| state.fleet.as_ref().is_some_and(|fleet| fleet["spec"]["upgradePolicy"] == json!(UpgradePolicy::Automatic));
    let mut due = states.iter().filter(|(_, state)| follows(state) && is_behind(state));
    let goes_on = due.clone().any(|(key, state)| of_key(key) && has_begun(state));
    goes_on || !moving && due.find(|(_, state)| !is_stopped(state)).is_some_and(|(key, _)| of_key(key))
}

/// Whether all pods of a Deployment are made from its template, and serve.
fn is_complete(deployment: &Value) -> bool {
    let (spec, status) = (&deployment["spec"], &deployment["status"]);
    let number = |value: &Value| value.as_i64().unwrap_or(0);
    status["observedGeneration"] == deployment["metadata"]["generation"]
        && ["updatedReplicas", "replicas", "availableReplicas"].iter().all(|field| number(&status[*field]) == number(&spec["replicas"]))
}

/// Says whether clients were led away.
pub(super) struct Withdrawn(pub(super) Arc<Mutex<Ingresses>>);

impl Withdraw for Withdrawn {
    fn is_withdrawn(&self, fleet: &FleetKey) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_withdrawn(&fleet.object())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fleet that follows upgrades by itself, whose Deployments use these images, the last of them with a pod missing.
    fn follows(images: &[&str], missing: i64) -> FleetState {
        let one = |(at, image): (usize, &&str)| {
            let pod = json!({"spec": {"initContainers": [{"name": "install", "image": image}]}});
            let available = if at + 1 == images.len() { 2 - missing } else { 2 };
            let status = json!({"observedGeneration": 1, "updatedReplicas": 2, "replicas": 2, "availableReplicas": available});
            let body = json!({"metadata": {"generation": 1}, "spec": {"replicas": 2, "template": pod}, "status": status});
            (format!("edge-{at}"), Arc::new(body))
        };
        let fleet = Some(Arc::new(json!({"spec": {"upgradePolicy": "Automatic"}})));
        FleetState { deployments: images.iter().enumerate().map(one).collect(), fleet, ..FleetState::default() }
    }

    /// Whose turn it is.
    fn turns(states: &[(&str, FleetState)]) -> Vec<String> {
        let key = |name: &str| FleetKey { namespace: "infra".to_owned(), name: name.to_owned() };
        let all: States = states.iter().map(|(name, state)| (key(name), state.clone())).collect();
        let has = |name: &&str| has_turn(&all, &FleetId { namespace: "infra".into(), name: (*name).into() }, "2");
        states.iter().map(|(name, _)| *name).filter(has).map(str::to_owned).collect()
    }

    #[test]
    fn one_fleet_after_the_other_takes_a_new_agent() {
        assert_eq!(turns(&[("a", follows(&["1", "1"], 0)), ("b", follows(&["1"], 0))]), ["a"]);
        assert_eq!(turns(&[("a", follows(&["2", "2"], 0)), ("b", follows(&["1"], 0))]), ["b"]);
        assert!(turns(&[("a", follows(&["2", "2"], 1)), ("b", follows(&["1"], 0))]).is_empty(), "another one is not whole");
    }

    #[test]
    fn an_upgrade_that_has_begun_goes_on_though_another_fleet_is_not_whole() {
        assert_eq!(turns(&[("a", follows(&["2", "1"], 0)), ("b", follows(&["1"], 1))]), ["a"]);
    }

    #[test]
    fn a_fleet_that_is_stopped_keeps_no_other_from_its_upgrade() {
        let rollout = |state: &str| Some(crate::api::RolloutStatus { state: state.to_owned(), ..crate::api::RolloutStatus::default() });
        let frozen = FleetState { paused: true, ..follows(&["1"], 0) };
        let aborted = FleetState { rollout: rollout("Aborted"), ..follows(&["1"], 0) };
        assert_eq!(turns(&[("a", frozen), ("b", aborted), ("c", follows(&["1"], 0))]), ["c"]);
    }

    #[test]
    fn traffic_distribution_is_written_where_it_is_kept() {
        assert!(knows_distribution("1", "31") && knows_distribution("1", "36+") && knows_distribution("2", "0"));
        assert!(!knows_distribution("1", "30") && !knows_distribution("1", "30+") && !knows_distribution("", ""));
    }
}
