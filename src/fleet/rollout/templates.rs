//! Templates: which zone gets one next, and why it has to wait.

use super::observed::{Pod, PodState, Template, Zone, count};
use super::step::{Act, Change, Job, Look, Reason, Why};
use k8s_openapi::jiff::Timestamp;

impl<'o> Look<'o> {
    pub(super) fn rollout(&self) -> Option<Job<'o>> {
        let Some(target) = self.observed.target() else {
            let zone = self.zones().find(|zone| zone.is_mixed())?;
            let reason = Reason::new(Why::Aborted, "the template was given up, and there is none to go back to");
            return Some(Job { zone, todo: Err(reason) });
        };
        let is_due = |zone: &&Zone| zone.template != *target || zone.is_mixed() || zone.paused;
        let may_go = |zone: &&Zone| self.waits_for_others(zone, target).is_none();
        // what is begun is finished first, and what is broken is repaired
        let rank = |zone: &&Zone| (!zone.has(target), zone.template != *target, !zone.is_mixed(), self.trouble(zone).is_none());
        let next = self.zones().filter(is_due).filter(may_go).min_by_key(rank);
        let zone = next.or_else(|| self.zones().find(is_due))?;
        Some(Job { zone, todo: self.roll(zone, target) })
    }

    pub(super) fn roll(&self, zone: &Zone, target: &Template) -> Result<Act, Reason> {
        if let Some(reason) = self.holds_back(zone, target) {
            return Err(reason);
        }
        let resumes = Change::Resume.to(zone, "its pods are replaced");
        let is_done = zone.template == *target && !zone.is_mixed() && self.ready(zone) >= zone.replicas;
        if is_done {
            return Ok(resumes);
        }
        if let Some(text) = Self::ends(zone).or_else(|| self.elsewhere(zone, Self::drains)) {
            return Err(Reason::waits(text));
        }
        // one that is about to close with another template holds up all others, and gets this one first
        if let Some(reason) = self.waits_for_proof(zone, target).filter(|_| zone.template == *target || !zone.is_closing()) {
            return Err(reason);
        }
        if zone.template != *target {
            return Ok(Change::Template(target.clone()).to(zone, format!("gets the template {target}")));
        }
        if zone.paused {
            return Ok(resumes);
        }
        if let Some(stalled) = self.denied(zone) {
            return Err(Reason::new(Why::Stalled, stalled));
        }
        Err(Reason::waits(format!("{}: its pods are replaced", zone.label())))
    }

    /// Why Kubernetes may replace no pods of `zone` now.
    pub(super) fn holds(&self, zone: &Zone) -> Option<Reason> {
        if self.observed.frozen {
            return Some(Reason::new(Why::Frozen, "spec.paused is set"));
        }
        if !zone.turn {
            return Some(Reason::waits("it is not its turn"));
        }
        if self.observed.target() != Some(&zone.template) {
            return Some(Reason::waits("another template is wanted"));
        }
        self.holds_back(zone, &zone.template)
    }

    /// Why the rollout may not go on in `zone`, apart from pods that are on their way out: these do not stop what has begun.
    pub(super) fn holds_back(&self, zone: &Zone, target: &Template) -> Option<Reason> {
        if self.observed.rollout_paused {
            return Some(Reason::new(Why::Paused, "the rollout is paused"));
        }
        if let Some((other, pod)) = self.pods().find(|(_, pod)| pod.drained && pod.state != PodState::Ending) {
            return Some(Reason::waits(format!("{} is drained by hand", Self::name(other, pod))));
        }
        if let Some(late) = self.late(zone) {
            return Some(Reason::new(Why::Stalled, late));
        }
        if let Some(text) = self.unproven(zone, target).filter(|_| zone.template == *target) {
            return Some(Reason::waits(text));
        }
        // whether a pod counts yet is not asked of a clock that may be slow
        let loss = zone.at_stake(target).min(count(zone.without(target).filter(|pod| pod.may_count())));
        let spare = || self.lacks_spare(zone, loss, true).or_else(|| self.exceeds_budget(zone, zone.replicas, loss)).map(Reason::waits);
        self.waits_for_others(zone, target).or_else(spare)
    }

    /// Every other zone is whole, or nothing that serves is taken from this one: it is broken, or done but for being
    /// paused, or about to close with a template that nobody wants any more.
    pub(super) fn waits_for_others(&self, zone: &Zone, target: &Template) -> Option<Reason> {
        let is_harmless = if zone.template == *target { !zone.is_mixed() } else { zone.is_closing() };
        let is_repair = zone.at_stake(target) == 0 && (zone.is_broken() || is_harmless);
        let trouble = self.trouble_elsewhere(zone).filter(|_| !is_repair)?;
        Some(Reason::waits(format!("{} waits: {trouble}", zone.label())))
    }

    /// A template that is new to the fleet goes to a further zone once all of its pods count and the pause is over; to one
    /// that is broken without a pause, as the others cannot go on before that is whole.
    pub(super) fn waits_for_proof(&self, zone: &Zone, target: &Template) -> Option<Reason> {
        if self.observed.stable.as_ref() == Some(target) || zone.has(target) {
            return None;
        }
        let has_begun = |other: &&Zone| other.has(target) || other.template == *target && !other.paused;
        let mut changed = self.zones().filter(|other| !Self::is(other, zone)).filter(has_begun);
        changed.find_map(|other| {
            let is_over = |completed: Timestamp| self.now.duration_since(completed) >= self.observed.rules.between_zones;
            let may_go = zone.is_broken() && other.has(target) || other.completed.is_some_and(is_over);
            let pause = || (!may_go).then(|| format!("the pause after {} is not over", other.label()));
            let text = self.unproven(other, target).or_else(pause)?;
            Some(Reason::waits(format!("{} waits: {text}", zone.label())))
        })
    }

    /// A pod of `zone` that has `template` and does not count.
    pub(super) fn unproven(&self, zone: &Zone, template: &Template) -> Option<String> {
        let mut ours = zone.staying().filter(|pod| pod.template.as_ref() == Some(template));
        ours.find_map(|pod| Some(format!("{} {}", Self::name(zone, pod), self.lacks(pod)?)))
    }

    /// What of the new template in `zone` does not come, or does not become ready, in time.
    pub(super) fn stalled(&self, zone: &Zone) -> Option<String> {
        self.late(zone).or_else(|| self.denied(zone))
    }

    fn is_tried(&self, zone: &Zone) -> bool {
        self.observed.target() == Some(&zone.template) && self.observed.stable.as_ref() != Some(&zone.template)
    }

    /// Whether Kubernetes cannot even add pods to `zone`. That is no reason to pause it: only where it goes on does
    /// Kubernetes try again, and say so when it succeeds.
    fn denied(&self, zone: &Zone) -> Option<String> {
        let is_denied = zone.overdue && zone.is_mixed() && self.is_tried(zone);
        is_denied.then(|| format!("{}: Kubernetes makes no progress; see the Events of its Deployment", zone.label()))
    }

    /// A pod of the new template in `zone` that does not become ready in time.
    fn late(&self, zone: &Zone) -> Option<String> {
        let observed = self.observed;
        if !self.is_tried(zone) {
            return None;
        }
        let is_late = |pod: &&Pod| {
            let is_new = pod.template.as_ref() == Some(&zone.template) && !pod.node_lost && !pod.drained;
            is_new && self.lacks(pod).is_some() && pod.is_late_at(&observed.rules).is_some_and(|late| late <= self.now)
        };
        let pod = zone.staying().find(is_late)?;
        Some(format!("{} {} and its time is over", Self::name(zone, pod), self.lacks(pod)?))
    }
}
