//! What takes single pods away: drains by hand, and smaller sizes.

use super::observed::{Asked, Pod, Zone, count};
use super::step::{Act, Action, Change, Job, Look, Reason, Why};

/// The deletion cost of pods that are to go first; that of others is not touched.
pub(super) const GOES_FIRST: i32 = -1;

impl<'o> Look<'o> {
    pub(super) fn drain(&self, zone: &'o Zone) -> Option<Job<'o>> {
        let is_next = |pod: &&Pod| !pod.drained && matches!(pod.asked, Some(Asked::Pod | Asked::Zone));
        let pod = zone.staying().find(is_next)?;
        let refused = self.refuses_drain(zone, pod).filter(|_| pod.serves());
        let act = Change::Drain(pod.name.clone()).to(zone, format!("{} is drained by hand", pod.name));
        Some(Job { zone, todo: refused.map_or(Ok(act), Err) })
    }

    pub(super) fn refuses_drain(&self, zone: &Zone, pod: &Pod) -> Option<Reason> {
        let why = |text: String| Reason::waits(format!("{} is not drained: {text}", Self::name(zone, pod)));
        if let Some(trouble) = self.trouble_elsewhere(zone) {
            return Some(why(trouble));
        }
        let is_alone = pod.asked == Some(Asked::Pod);
        let loss = u32::from(self.counts(pod));
        let is_last = self.pods().all(|(other, one)| one.name == pod.name && Self::is(other, zone) || !self.counts(one));
        if loss > 0 && is_last {
            return Some(why("no other pod serves; `:force` drains it all the same".to_owned()));
        }
        let budget = self.exceeds_budget(zone, zone.replicas, loss).filter(|_| is_alone);
        budget.or_else(|| self.lacks_spare(zone, loss, is_alone)).map(why)
    }

    pub(super) fn scale_down(&self, zone: &'o Zone) -> Option<Job<'o>> {
        let wanted = zone.wanted.filter(|wanted| *wanted < zone.replicas)?;
        let goes = self.go_first(zone, zone.replicas - wanted);
        let refused = self.refuses_scale(zone, wanted, &goes);
        // the order is that of Kubernetes where two templates are about
        let unmarked = zone.staying().filter(|_| !zone.is_mixed()).find_map(|pod| {
            let is_marked = pod.cost == GOES_FIRST;
            let cost = if goes.iter().any(|first| first.name == pod.name) { GOES_FIRST } else { 0 };
            (is_marked != (cost == GOES_FIRST)).then_some((pod, cost))
        });
        let act = match unmarked {
            Some((pod, cost)) => Self::mark(zone, pod, cost),
            // else Kubernetes adds pods of the new template beside those that go
            None if zone.is_mixed() && !zone.paused => Change::Pause.to(zone, "paused, as its size changes first"),
            None => Change::Scale(wanted).to(zone, format!("gets {wanted} pods")),
        };
        Some(Job { zone, todo: refused.map_or(Ok(act), Err) })
    }

    pub(super) fn mark(zone: &Zone, pod: &Pod, cost: i32) -> Act {
        let text = format!("{} gets the deletion cost {cost}", Self::name(zone, pod));
        (Action::DeletionCost(pod.name.clone(), cost), Reason::new(Why::Acts, text))
    }

    pub(super) fn refuses_scale(&self, zone: &Zone, wanted: u32, goes: &[&Pod]) -> Option<Reason> {
        let why = |text: String| Reason::waits(format!("{} is not scaled to {wanted}: {text}", zone.label()));
        let fewer = zone.replicas - wanted;
        let loss = if !zone.is_mixed() {
            count(goes.iter().filter(|pod| pod.may_count()))
        } else if zone.new_pods() >= wanted && self.unproven(zone, &zone.template).is_some() {
            // all old pods go when there are enough new ones, and it is not known whether these are any good
            count(zone.staying().filter(|pod| pod.may_count()))
        } else {
            fewer
        };
        let is_felt = zone.is_mixed() || goes.iter().any(|pod| pod.serves());
        let trouble = if is_felt { self.trouble_elsewhere(zone) } else { self.elsewhere(zone, Self::drains) };
        let budget = || self.exceeds_budget(zone, wanted, loss);
        trouble.or_else(|| self.lacks_spare(zone, loss, true)).or_else(budget).map(why)
    }

    /// The `number` pods of `zone` that are missed least: those that do not count, then from the place that has most, those
    /// with the fewest streams. One that is marked stays so, as streams come and go.
    pub(super) fn go_first(&self, zone: &'o Zone, number: u32) -> Vec<&'o Pod> {
        let mut rest: Vec<&Pod> = zone.staying().collect();
        let mut goes = Vec::new();
        for _ in 0..number {
            let here = |pod: &Pod| count(rest.iter().filter(|other| other.place == pod.place));
            let missed = |pod: &Pod| (pod.may_count(), self.counts(pod), u32::MAX - here(pod), pod.cost != GOES_FIRST, pod.streams);
            let Some(first) = (0..rest.len()).min_by_key(|index| missed(rest[*index])) else { break };
            goes.push(rest.remove(first));
        }
        goes
    }
}
