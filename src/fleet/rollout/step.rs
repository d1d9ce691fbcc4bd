//! One step: what is observed, to at most one write.

use super::observed::{Asked, Observed, Pod, Template, Zone, count};
use super::sizes::GOES_FIRST;
use k8s_openapi::jiff::Timestamp;
use std::sync::Arc;

/// What is to be done next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// One write, if any: what comes after it is decided on what is observed then.
    pub action: Option<Action>,
    /// Why that, or what is waited for. The most important one first; there is at least one. The same state leads to the
    /// same texts.
    pub reasons: Vec<Reason>,
    /// When time alone may change the decision.
    pub recheck_at: Option<Timestamp>,
}

/// A reason, for people and for conditions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// What sort of a reason.
    pub why: Why,
    /// What is the case: names the zone and the pod.
    pub text: String,
}

/// What sort of a reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Why {
    /// Everything is as asked.
    AsAsked,
    /// Something is being done.
    Acts,
    /// Something has to happen first, and is expected to.
    Waits,
    /// What is observed is not the present yet.
    Unsure,
    /// Somebody paused the rollout.
    Paused,
    /// `spec.paused`.
    Frozen,
    /// The desired template was given up.
    Aborted,
    /// The new template does not become ready: somebody has to change something.
    Stalled,
}

/// One write, on condition that its object is the version that was observed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Action {
    /// To the Deployment of a zone.
    Zone(Option<Arc<str>>, Change),
    /// To a pod: its annotation `controller.kubernetes.io/pod-deletion-cost`.
    DeletionCost(Arc<str>, i32),
    /// To the `IngressDeployment`: the whole fleet runs this template.
    Settle(Template),
    /// To the `IngressDeployment`: this template is given up.
    Abort(Template),
}

/// A write to the Deployment of a zone.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// It gets the turn.
    TakeTurn,
    /// It gives the turn back.
    EndTurn,
    /// It gets this template and is paused.
    Template(Template),
    /// Kubernetes goes on replacing its pods.
    Resume,
    /// Kubernetes replaces no more of its pods for now.
    Pause,
    /// It gets as many pods.
    Scale(u32),
    /// This pod is drained by hand.
    Drain(Arc<str>),
    /// This pod is not drained by hand any more.
    Undrain(Arc<str>),
}

/// What is to be done next to `observed` at `now`.
pub fn step(observed: &Observed, now: Timestamp) -> Decision {
    let look = Look { observed, now };
    match look.next() {
        Ok((action, reason)) => Decision { action: Some(action), reasons: vec![reason], recheck_at: None },
        Err(reasons) => Decision { action: None, reasons, recheck_at: look.recheck_at() },
    }
}

/// An action, and why it is taken.
pub(super) type Act = (Action, Reason);

/// Something that takes pods away, so that its zone needs the turn.
pub(super) struct Job<'o> {
    pub(super) zone: &'o Zone,
    /// Or why it has to wait.
    pub(super) todo: Result<Act, Reason>,
}

/// What is decided on.
pub(super) struct Look<'o> {
    pub(super) observed: &'o Observed,
    pub(super) now: Timestamp,
}

impl Reason {
    pub(super) fn new(why: Why, text: impl Into<String>) -> Self {
        Self { why, text: text.into() }
    }

    pub(super) fn waits(text: impl Into<String>) -> Self {
        Self::new(Why::Waits, text)
    }
}

impl Change {
    pub(super) fn to(self, zone: &Zone, text: impl AsRef<str>) -> Act {
        let reason = Reason::new(Why::Acts, format!("{}: {}", zone.label(), text.as_ref()));
        (Action::Zone(zone.name.clone(), self), reason)
    }
}

impl<'o> Look<'o> {
    fn next(&self) -> Result<Act, Vec<Reason>> {
        if !self.observed.synced {
            return Err(vec![Reason::new(Why::Unsure, "the fleet is being looked at")]);
        }
        if let Some(act) = self.stop() {
            return Ok(act);
        }
        if let Some(reason) = self.unsure() {
            return Err(vec![reason]);
        }
        if self.observed.frozen {
            return Err(vec![Reason::new(Why::Frozen, "spec.paused: nothing is changed")]);
        }
        self.give().or_else(|| self.keep()).map_or_else(|| self.take(), Ok)
    }

    pub(super) fn zones(&self) -> impl Iterator<Item = &'o Zone> + use<'o> {
        self.observed.zones.iter()
    }

    pub(super) fn is(zone: &Zone, other: &Zone) -> bool {
        zone.name == other.name
    }

    /// What keeps things as they are. It comes first, whatever else is unclear or frozen: it takes nothing from anybody.
    fn stop(&self) -> Option<Act> {
        let is_open = |zone: &&Zone| !zone.paused && zone.is_mixed();
        let stop = self.zones().filter(is_open).find_map(|zone| Some((zone, self.holds(zone)?)));
        if let Some((zone, reason)) = stop {
            return Some(Change::Pause.to(zone, format!("paused, as {}", reason.text)));
        }
        let second = self.zones().filter(|zone| zone.turn).nth(1)?;
        Some(Self::end_turn(second))
    }

    /// Whether what is observed of Deployments and pods fits together. Who decides on an old view takes pods twice.
    fn unsure(&self) -> Option<Reason> {
        let is_old = |pod: &&Pod| pod.counts_at(&self.observed.rules).is_some_and(|counts| counts <= self.now);
        let unsure = |zone: &Zone| {
            let text = if zone.generation != zone.observed_generation {
                "Kubernetes has yet to take its last change in"
            } else if count(zone.staying()) != zone.reported {
                "its pods are coming and going"
            } else if count(zone.staying().filter(is_old)) > zone.available {
                // either its status is old, or one of the two clocks is wrong
                "Kubernetes has yet to call its pods available"
            } else {
                return None;
            };
            Some(Reason::new(Why::Unsure, format!("{}: {text}", zone.label())))
        };
        self.zones().find_map(unsure)
    }

    /// What takes nothing from a zone, and what somebody forces.
    fn give(&self) -> Option<Act> {
        self.zones().find_map(|zone| {
            if let Some(pod) = zone.staying().find(|pod| pod.drained && pod.asked.is_none()) {
                return Some(Change::Undrain(pod.name.clone()).to(zone, format!("{} is given back", pod.name)));
            }
            if let Some(pod) = zone.staying().find(|pod| !pod.drained && pod.asked == Some(Asked::Forced)) {
                return Some(Change::Drain(pod.name.clone()).to(zone, format!("{} is drained by force", pod.name)));
            }
            let wanted = zone.wanted.unwrap_or(zone.replicas);
            if wanted > zone.replicas {
                return Some(Change::Scale(wanted).to(zone, format!("gets {wanted} pods")));
            }
            // a mark that is left over would choose pods in a rollout
            let marked = zone.staying().find(|pod| pod.cost == GOES_FIRST && wanted == zone.replicas)?;
            Some(Self::mark(zone, marked, 0))
        })
    }

    /// What has to be remembered before anything else is begun.
    fn keep(&self) -> Option<Act> {
        let observed = self.observed;
        let common = observed.zones.first().map(|zone| &zone.template)?;
        let runs = |zone: &Zone| zone.template == *common && !zone.is_mixed() && self.trouble(zone).is_none();
        let runs_all = observed.missing.is_empty() && self.zones().all(runs) && self.zones().any(|zone| self.ready(zone) > 0);
        // Kubernetes may have ended what was given up in the meantime
        let is_given_up = observed.is_aborted() && observed.stable.is_some() && *common == observed.desired;
        if runs_all && !is_given_up && observed.stable.as_ref() != Some(common) {
            let reason = Reason::new(Why::Acts, format!("all zones run the template {common}"));
            return Some((Action::Settle(common.clone()), reason));
        }
        let may_abort = observed.rules.auto_abort && !observed.is_aborted() && !observed.rollout_paused && observed.stable.is_some();
        let stalled = self.zones().filter(|_| may_abort).find_map(|zone| self.stalled(zone))?;
        let reason = Reason::new(Why::Acts, format!("the template {} is given up: {stalled}", observed.desired));
        Some((Action::Abort(observed.desired.clone()), reason))
    }

    /// What takes pods away, the most urgent first: what people ask for by name, then sizes, then templates.
    fn take(&self) -> Result<Act, Vec<Reason>> {
        let drains = self.zones().filter_map(|zone| self.drain(zone));
        let sizes = self.zones().filter_map(|zone| self.scale_down(zone));
        let mut jobs: Vec<Job> = drains.chain(sizes).chain(self.rollout()).collect();
        if let Some(possible) = jobs.iter().position(|job| job.todo.is_ok()) {
            let Job { zone, todo } = jobs.swap_remove(possible);
            return todo.map(|act| self.in_turn(zone, act)).map_err(|reason| vec![reason]);
        }
        let is_idle = |zone: &&Zone| zone.turn && !jobs.iter().any(|job| Self::is(job.zone, zone));
        if let Some(zone) = self.zones().find(is_idle) {
            return Ok(Self::end_turn(zone));
        }
        let mut reasons: Vec<Reason> = jobs.into_iter().rev().filter_map(|job| job.todo.err()).collect();
        let told = |text: &String| reasons.iter().any(|reason| reason.text.contains(text.as_str()));
        let missing = self.lacks_deployment().filter(|text| !told(text));
        reasons.extend(missing.map(Reason::waits));
        Err(if reasons.is_empty() { vec![self.rest()] } else { reasons })
    }

    fn rest(&self) -> Reason {
        if self.observed.is_aborted() {
            let text = format!("the template {} was given up: change the spec, or restart the rollout", self.observed.desired);
            return Reason::new(Why::Aborted, text);
        }
        Reason::new(Why::AsAsked, "all zones run the desired template")
    }

    /// `act`, or what has to be done first so that `zone` alone has the turn.
    fn in_turn(&self, zone: &Zone, act: Act) -> Act {
        match self.zones().find(|zone| zone.turn) {
            None => Change::TakeTurn.to(zone, "it is its turn"),
            Some(holder) if Self::is(holder, zone) => act,
            Some(holder) => Self::end_turn(holder),
        }
    }

    fn end_turn(zone: &Zone) -> Act {
        Change::EndTurn.to(zone, "its turn ends")
    }

    fn recheck_at(&self) -> Option<Timestamp> {
        let rules = &self.observed.rules;
        let pods = self.pods().flat_map(|(_, pod)| [pod.counts_at(rules), pod.is_late_at(rules).filter(|_| !self.counts(pod))]);
        let pauses = self.zones().map(|zone| zone.completed.and_then(|completed| completed.checked_add(rules.between_zones).ok()));
        pods.chain(pauses).flatten().filter(|moment| *moment > self.now).min()
    }
}
