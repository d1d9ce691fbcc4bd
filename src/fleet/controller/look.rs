//! One look at one fleet: reads freshly, builds, writes what differs.

use super::deletion::{Deletion, Step};
use super::{FINALIZER, FleetState, Settings};
use crate::api::{ANNOTATION_ABORT, ANNOTATION_STABLE, RolloutStatus};
use crate::fleet::apply::{Applier, ApplyError, FleetKey, api};
use crate::fleet::build::Desired;
use crate::fleet::rollout::Action;
use crate::fleet::rollout::kubernetes::DELETION_COST;
use crate::report::Diagnostic;
use futures::future::BoxFuture;
use kube::api::{Patch, PatchParams};
use kube::core::DynamicObject;
use kube::{Api, Client};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What is there already of a fleet that objects are made for, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// Its Deployments.
    pub deployments: BTreeMap<String, Value>,
    /// Its Services.
    pub services: BTreeMap<String, Value>,
    /// Its pods, read after the Deployments.
    pub pods: BTreeMap<String, Value>,
}

/// What is to be done to a fleet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Built {
    /// Its objects, in an order that is safe to apply. Of a fleet that is paused only those that have to be written.
    pub objects: Vec<Desired>,
    /// How its rollout goes.
    pub rollout: Option<Rolling>,
    /// What was found beside that.
    pub findings: Vec<Diagnostic>,
}

/// How a rollout goes.
#[derive(Clone, Debug, PartialEq)]
pub struct Rolling {
    /// What is to be done beside the writes to Deployments, which are in the objects already.
    pub action: Option<Action>,
    /// What it does and waits for.
    pub status: RolloutStatus,
    /// Whether anything is left to be done, or may be soon.
    pub is_moving: bool,
    /// Whether somebody or something else has to do that.
    pub is_held: bool,
    /// When time alone changes something.
    pub recheck: Option<Duration>,
}

/// Why there are no objects: then everything stays as it is.
#[derive(Clone, Debug, PartialEq)]
pub enum BuildError {
    /// The spec asks for what cannot be done.
    Refused(Vec<Diagnostic>),
    /// Something is not there yet; it is tried again.
    Wait(String),
}

/// What the objects of a fleet are made by.
pub trait Build: Send + Sync + 'static {
    /// What `fleet`, an `IngressDeployment` as the API server gives it, asks for.
    fn build<'b>(&'b self, fleet: &'b Value, seen: &'b Seen) -> BoxFuture<'b, Result<Built, BuildError>>;
}

/// What says whether clients have been led away from a fleet that is deleted.
pub trait Withdraw: Send + Sync + 'static {
    /// Whether nothing leads to the fleet any more. It is asked until it says so, or for a bounded time.
    fn is_withdrawn(&self, fleet: &FleetKey) -> bool;
}

/// What a look came to.
#[derive(Debug)]
pub(super) enum Look {
    /// The fleet is no more.
    Gone,
    /// It was looked at.
    Done(Box<Outcome>),
    /// Something is not there yet.
    Waits(String),
    /// The API server took too long.
    TimedOut,
    /// It panicked.
    Died,
}

/// What a look found out.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    generation: i64,
    paused: bool,
    refused: Vec<Diagnostic>,
    problems: Vec<Diagnostic>,
    findings: Vec<Diagnostic>,
    deletion: Option<Step>,
    rollout: Option<RolloutStatus>,
    /// Whether pods that come and go are to be looked at: its rollout goes on.
    pub(super) is_moving: bool,
    /// When to look again, if before the next resync.
    pub(super) again: Option<Duration>,
}

impl Outcome {
    pub(super) fn tell(self, state: &mut FleetState) {
        state.generation = self.generation;
        state.paused = self.paused;
        state.refused = self.refused;
        state.problems = self.problems;
        state.findings = self.findings;
        state.deletion = self.deletion;
        state.rollout = self.rollout;
        state.failure = None;
    }
}

/// When to look again at what waits for the cluster.
pub(super) const SOON: Duration = Duration::from_secs(2);

/// When to look again at what goes on when others do something: all but the word of an agent is watched.
const HELD: Duration = Duration::from_secs(30);

/// When to look again at what is refused: what stands in its way, such as an older fleet of its class, is not watched.
const REFUSED: Duration = Duration::from_secs(10);

/// Looks at one fleet, and remembers what it wrote.
pub(super) struct Looker {
    client: Client,
    fleet: FleetKey,
    build: Arc<dyn Build>,
    applier: Applier,
    deletion: Deletion,
}

impl Looker {
    pub(super) fn new(client: Client, fleet: FleetKey, settings: &Settings, build: Arc<dyn Build>, withdraw: Arc<dyn Withdraw>) -> Self {
        Self {
            applier: Applier::new(client.clone(), fleet.clone()),
            deletion: Deletion::new(fleet.clone(), settings, withdraw),
            client,
            fleet,
            build,
        }
    }

    pub(super) async fn look(&mut self) -> Result<Look, ApplyError> {
        let api = fleets(&self.client, &self.fleet.namespace);
        let Some(found) = api.get_opt(&self.fleet.name).await.map_err(|error| self.failed("get", error))? else { return Ok(Look::Gone) };
        let fleet = json!(found);
        let mut outcome = Outcome {
            generation: fleet["metadata"]["generation"].as_i64().unwrap_or_default(),
            paused: fleet["spec"]["paused"] == true,
            ..Outcome::default()
        };
        if !fleet["metadata"]["deletionTimestamp"].is_null() {
            return self.take_down(&fleet, outcome).await;
        }
        match self.build.build(&fleet, &self.seen().await?).await {
            // whatever is asked for counts once the pause is over
            Err(_) if outcome.paused => {}
            Err(BuildError::Wait(why)) => return Ok(Look::Waits(why)),
            Err(BuildError::Refused(refused)) => {
                outcome.refused = refused;
                outcome.again = Some(REFUSED);
            }
            Ok(built) => {
                if !has_finalizer(&fleet) && !self.hold(&fleet).await? {
                    outcome.again = Some(SOON);
                    return Ok(Look::Done(Box::new(outcome)));
                }
                self.bring_about(&fleet, built, &mut outcome).await?;
            }
        }
        Ok(Look::Done(Box::new(outcome)))
    }

    async fn bring_about(&mut self, fleet: &Value, built: Built, outcome: &mut Outcome) -> Result<(), ApplyError> {
        let applied = if outcome.paused { self.applier.write(&built.objects).await? } else { self.applier.apply(&built.objects).await? };
        let mut again = applied.waits.then_some(SOON);
        outcome.problems = applied.problems;
        outcome.findings = built.findings;
        if let Some(rolling) = built.rollout {
            if let Some(action) = &rolling.action {
                self.act(fleet, action).await?;
            }
            let soon = rolling.is_moving.then_some(if rolling.is_held { HELD } else { SOON });
            again = [again, soon, rolling.recheck].into_iter().flatten().min();
            outcome.is_moving = rolling.is_moving;
            outcome.rollout = Some(rolling.status);
        }
        outcome.again = again;
        Ok(())
    }

    /// Carries out what the planner wants beside the writes to Deployments. What changed meanwhile is looked at again.
    async fn act(&self, fleet: &Value, action: &Action) -> Result<(), ApplyError> {
        let annotate = |name: &str, value: &str| json!({"metadata": {"annotations": {name: value}}});
        match action {
            Action::Zone(..) => {}
            Action::Settle(template) => _ = self.change(fleet, annotate(ANNOTATION_STABLE, &template.0), "rollout").await?,
            Action::Abort(template) => _ = self.change(fleet, annotate(ANNOTATION_ABORT, &template.0), "rollout").await?,
            Action::DeletionCost(pod, cost) => self.mark(pod, *cost).await?,
        }
        Ok(())
    }

    /// Says how readily a pod goes when there are to be fewer.
    async fn mark(&self, pod: &str, cost: i32) -> Result<(), ApplyError> {
        let change = json!({"metadata": {"annotations": {DELETION_COST: (cost != 0).then(|| cost.to_string())}}});
        let parameters = PatchParams { field_manager: Some("haproxy-fleet-rollout".to_owned()), ..PatchParams::default() };
        let api = api(&self.client, "v1", "Pod", "pods", Some(&self.fleet.namespace));
        match api.patch(pod, &parameters, &Patch::Merge(&change)).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(error) => Err(ApplyError::new("patch", "Pod", pod, error)),
        }
    }

    async fn seen(&self) -> Result<Seen, ApplyError> {
        let by_name = |objects: Vec<Value>| {
            objects.into_iter().map(|object| (object["metadata"]["name"].as_str().unwrap_or_default().to_owned(), object)).collect()
        };
        Ok(Seen {
            deployments: by_name(self.applier.ours("apps/v1", "Deployment", "deployments", true).await?),
            services: by_name(self.applier.ours("v1", "Service", "services", true).await?),
            pods: by_name(self.applier.ours("v1", "Pod", "pods", true).await?),
        })
    }

    async fn take_down(&mut self, fleet: &Value, mut outcome: Outcome) -> Result<Look, ApplyError> {
        if !has_finalizer(fleet) {
            // somebody else's finalizer keeps it
            return Ok(Look::Done(Box::new(outcome)));
        }
        let (step, problems) = self.deletion.advance(&self.client, &self.applier, fleet).await?;
        outcome.problems = problems;
        outcome.deletion = Some(step);
        if step == Step::Done && self.release(fleet).await? {
            return Ok(Look::Done(Box::new(outcome)));
        }
        outcome.again = Some(SOON);
        Ok(Look::Done(Box::new(outcome)))
    }

    /// Adds the finalizer, before anything outside exists. False: the fleet changed meanwhile.
    async fn hold(&self, fleet: &Value) -> Result<bool, ApplyError> {
        let mut finalizers = finalizers(fleet);
        finalizers.push(FINALIZER.to_owned());
        self.set_finalizers(fleet, &finalizers).await
    }

    /// Lets the fleet go. False: it changed meanwhile.
    async fn release(&self, fleet: &Value) -> Result<bool, ApplyError> {
        let mut finalizers = finalizers(fleet);
        finalizers.retain(|name| name != FINALIZER);
        self.set_finalizers(fleet, &finalizers).await
    }

    async fn set_finalizers(&self, fleet: &Value, finalizers: &[String]) -> Result<bool, ApplyError> {
        self.change(fleet, json!({"metadata": {"finalizers": finalizers}}), "finalizer").await
    }

    /// Changes this very version of the fleet, as the manager of what `part` says. False: it changed meanwhile.
    async fn change(&self, fleet: &Value, mut change: Value, part: &str) -> Result<bool, ApplyError> {
        for field in ["resourceVersion", "uid"] {
            change["metadata"][field] = fleet["metadata"][field].clone();
        }
        let parameters = PatchParams { field_manager: Some(format!("haproxy-fleet-{part}")), ..PatchParams::default() };
        let api = fleets(&self.client, &self.fleet.namespace);
        match api.patch(&self.fleet.name, &parameters, &Patch::Merge(&change)).await {
            Ok(_) => Ok(true),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409 | 422) => Ok(false),
            Err(error) => Err(self.failed("patch", error)),
        }
    }

    fn failed(&self, verb: &'static str, error: kube::Error) -> ApplyError {
        ApplyError::new(verb, "IngressDeployment", &self.fleet.name, error)
    }
}

fn fleets(client: &Client, namespace: &str) -> Api<DynamicObject> {
    api(client, crate::api::API_VERSION, "IngressDeployment", "ingressdeployments", Some(namespace))
}

fn finalizers(fleet: &Value) -> Vec<String> {
    let names = fleet["metadata"]["finalizers"].as_array().into_iter().flatten();
    names.filter_map(Value::as_str).map(str::to_owned).collect()
}

pub(super) fn has_finalizer(fleet: &Value) -> bool {
    finalizers(fleet).iter().any(|name| name == FINALIZER)
}
