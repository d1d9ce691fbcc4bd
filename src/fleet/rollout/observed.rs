//! What is observed of a fleet, and what follows from it for one zone or pod.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Which pod template: a name for its content that is the same in all zones, such as its hash.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Template(pub Arc<str>);

impl Template {
    /// So many characters of a name say what the template was made from: two that differ in the rest only were made from one
    /// spec by different operators, or for configurations of different sizes.
    pub const ASKED: usize = 5;

    /// Whether both were made from the same.
    pub fn is_alike(&self, other: &Self) -> bool {
        let asked = |template: &Self| template.0.get(..Self::ASKED).map(str::to_owned);
        asked(self).is_some_and(|this| asked(other) == Some(this))
    }
}

/// A fleet as it is and as it is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// Whether it can be decided on: this replica leads, agents had time to report since it started to lead, all Deployments
    /// that there are were read at one moment, and the pods after that.
    pub synced: bool,
    /// The template that the spec asks for. A restart by hand is a template of its own: it holds the time of the restart.
    pub desired: Template,
    /// The template that the whole fleet ran last, as [`Action::Settle`](super::Action::Settle) wrote it.
    pub stable: Option<Template>,
    /// The template that is given up, by hand or by [`Action::Abort`](super::Action::Abort). It means nothing once another
    /// one is desired.
    pub aborted: Option<Template>,
    /// `spec.paused`: nothing is changed.
    pub frozen: bool,
    /// Whether the rollout is paused. Scaling and drains by hand go on.
    pub rollout_paused: bool,
    /// Pods that have to serve, over all zones.
    pub min_ready: u32,
    /// Pods that may be missing: `maxUnavailable` of the PodDisruptionBudget.
    pub budget: u32,
    /// How a rollout goes.
    pub rules: Rules,
    /// The zones in the order in which they are changed; one without a name where none are listed. A zone that is listed no
    /// more is here as long as its Deployment is, with 0 pods wanted.
    pub zones: Vec<Zone>,
    /// Zones that have no Deployment, although they are to have one.
    pub missing: Vec<Option<Arc<str>>>,
}

/// How a rollout goes, as the spec says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// `minReadySeconds`: a pod counts when it has been ready for so long.
    pub min_ready: SignedDuration,
    /// `progressDeadlineSeconds`: a new pod that does not count after so long stalls the rollout.
    pub deadline: SignedDuration,
    /// The pause after a zone before the next one begins.
    pub between_zones: SignedDuration,
    /// Whether a rollout that stalls is taken back.
    pub auto_abort: bool,
}

/// A zone: one Deployment and its pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Zone {
    /// Its name, if zones are listed.
    pub name: Option<Arc<str>>,
    /// The template of the Deployment, from its annotation.
    pub template: Template,
    /// `spec.paused` of the Deployment.
    pub paused: bool,
    /// Whether it has the turn, from its annotation.
    pub turn: bool,
    /// `spec.replicas` of the Deployment.
    pub replicas: u32,
    /// How many pods the fleet's spec wants here; `None`: an autoscaler decides.
    pub wanted: Option<u32>,
    /// Pods that have to serve in this zone.
    pub min_ready: u32,
    /// `maxUnavailable` of the Deployment, in pods. It is not more than [`Observed::budget`].
    pub max_unavailable: u32,
    /// `metadata.generation`.
    pub generation: i64,
    /// `status.observedGeneration`: what is reported is of that.
    pub observed_generation: i64,
    /// `status.replicas`: pods that are not on their way out, as Kubernetes counts them.
    pub reported: u32,
    /// `status.availableReplicas`: pods that are ready for long enough by the clock of Kubernetes.
    pub available: u32,
    /// When all of its pods had its template: `lastUpdateTime` of `Progressing` with the reason `NewReplicaSetAvailable`.
    pub completed: Option<Timestamp>,
    /// Whether Kubernetes fails to add the pods that it should: `Progressing` has the reason `ProgressDeadlineExceeded`, pods
    /// are lacking, and the Deployment is not paused. It never takes that reason back while it is.
    pub overdue: bool,
    /// Its pods that have not ended (`Failed`, `Succeeded`), those on their way out included, in the order of their names.
    pub pods: Vec<Pod>,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub name: Arc<str>,
    /// The zone of its node, if that is known.
    pub place: Option<Arc<str>>,
    /// Its template, from the annotation of its `ReplicaSet`; `None`: not known.
    pub template: Option<Template>,
    /// How it is.
    pub state: PodState,
    /// When it was made, if its containers end again and again: then it becomes ready anew each time.
    pub crashes_since: Option<Timestamp>,
    /// Whether its node is gone or does not answer: what is on its way out there is in nobody's way.
    pub node_lost: bool,
    /// Whether its agent has confirmed a configuration that is not too old.
    pub confirmed: bool,
    /// Connections that are open, as its agent says.
    pub streams: u64,
    /// Its annotation `controller.kubernetes.io/pod-deletion-cost`; 0 without one.
    pub cost: i32,
    /// Whether somebody asks that it be drained by hand.
    pub asked: Option<Asked>,
    /// Whether it is named as drained by hand in the annotation of its Deployment.
    pub drained: bool,
}

/// How a pod is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PodState {
    /// `Ready` since then.
    Ready(Timestamp),
    /// Not `Ready` since then, or since it was made.
    NotReady(Timestamp),
    /// It has a `deletionTimestamp`.
    Ending,
}

/// What a drain by hand respects. It is the first phase of a drain only: the pod stays, and can be given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Asked {
    /// Everything that a rollout respects, and the budget.
    Pod,
    /// The whole zone is to be left: its own `minReady` and the budget mean nothing, those of the fleet do.
    Zone,
    /// Nothing.
    Forced,
}

impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Observed {
    /// The template that zones are to have; `None`: the desired one is given up, and there is none to go back to.
    pub(super) fn target(&self) -> Option<&Template> {
        if self.is_aborted() { self.stable.as_ref() } else { Some(&self.desired) }
    }

    pub(super) fn is_aborted(&self) -> bool {
        let Some(aborted) = self.aborted.as_ref().filter(|_| self.stable.as_ref() != Some(&self.desired)) else { return false };
        // what was given up does not come back because another operator makes something else of it; but an upgrade that was
        // given up may be better the next time
        let was_spec = !self.stable.as_ref().is_some_and(|stable| stable.is_alike(aborted));
        *aborted == self.desired || was_spec && aborted.is_alike(&self.desired)
    }
}

impl Zone {
    /// How people call it.
    pub(super) fn label(&self) -> String {
        label(self.name.as_ref())
    }

    /// Its pods that are not on their way out.
    pub(super) fn staying(&self) -> impl Iterator<Item = &Pod> {
        self.pods.iter().filter(|pod| pod.state != PodState::Ending)
    }

    /// Whether it has pods of `template`.
    pub(super) fn has(&self, template: &Template) -> bool {
        self.staying().any(|pod| pod.template.as_ref() == Some(template))
    }

    /// Its pods that have another template than this one.
    pub(super) fn without(&self, template: &Template) -> impl Iterator<Item = &Pod> {
        self.staying().filter(|pod| pod.template.as_ref() != Some(template))
    }

    /// Whether pods have another template than their Deployment: Kubernetes replaces them, unless it is paused.
    pub(super) fn is_mixed(&self) -> bool {
        self.without(&self.template).next().is_some()
    }

    /// Whether fewer pods than it is to have do their work, or will once they have been ready for long enough.
    pub(super) fn is_broken(&self) -> bool {
        count(self.staying().filter(|pod| pod.may_count())) < self.replicas
    }

    /// Whether Kubernetes takes its last old pods as soon as the new ones are available, even while it is paused: it does so
    /// when the new `ReplicaSet` has exactly its full size.
    pub(super) fn is_closing(&self) -> bool {
        self.is_mixed() && self.new_pods() == self.replicas
    }

    /// Its pods that have its template.
    pub(super) fn new_pods(&self) -> u32 {
        count(self.staying().filter(|pod| pod.template.as_ref() == Some(&self.template)))
    }

    /// How many pods that serve Kubernetes may take while it replaces those without `target`: not the ones that it keeps
    /// available. None in a zone where enough pods fail: those are replaced first.
    pub(super) fn at_stake(&self, target: &Template) -> u32 {
        let serving = count(self.staying().filter(|pod| pod.serves()));
        let spare = serving.saturating_sub(self.replicas.saturating_sub(self.max_unavailable));
        spare.min(count(self.without(target).filter(|pod| pod.serves())))
    }
}

impl Pod {
    /// Whether clients reach it.
    pub(super) fn serves(&self) -> bool {
        matches!(self.state, PodState::Ready(_))
    }

    /// Whether it is on its way out, and clients may still be there.
    pub(super) fn ends(&self) -> bool {
        self.state == PodState::Ending && !self.node_lost
    }

    /// Whether it counts, or does so once it has been ready for long enough.
    pub(super) fn may_count(&self) -> bool {
        self.serves() && self.confirmed && !self.drained
    }

    /// Why it is no capacity to rely on, if it is none.
    pub(super) fn lacks(&self, rules: &Rules, now: Timestamp) -> Option<&'static str> {
        match self.state {
            PodState::Ending => Some("is on its way out"),
            _ if self.drained => Some("is drained by hand"),
            PodState::NotReady(_) => Some("is not ready"),
            PodState::Ready(_) if !self.confirmed => Some("has not confirmed its configuration"),
            PodState::Ready(_) if self.counts_at(rules).is_none_or(|counts| counts > now) => Some("is not ready for long enough"),
            PodState::Ready(_) => None,
        }
    }

    /// When it has been ready for long enough.
    pub(super) fn counts_at(&self, rules: &Rules) -> Option<Timestamp> {
        let PodState::Ready(since) = self.state else { return None };
        since.checked_add(rules.min_ready).ok()
    }

    /// When it has lacked that for longer than a rollout waits.
    pub(super) fn is_late_at(&self, rules: &Rules) -> Option<Timestamp> {
        let late = |since: Timestamp| since.checked_add(rules.deadline).ok();
        let now = match self.state {
            PodState::NotReady(since) => late(since),
            PodState::Ready(_) => self.counts_at(rules).and_then(late),
            PodState::Ending => return None,
        };
        let from_its_start = self.crashes_since.and_then(|made| late(made.checked_add(rules.min_ready).ok()?));
        [now, from_its_start].into_iter().flatten().min()
    }
}

pub(super) fn label(zone: Option<&Arc<str>>) -> String {
    zone.map_or_else(|| "the fleet".to_owned(), |name| format!("zone {name}"))
}

pub(super) fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}
