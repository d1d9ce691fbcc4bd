//! What counts, and what can be spared.

use super::observed::{Pod, Zone, count, label};
use super::step::Look;

impl<'o> Look<'o> {
    /// Why `loss` pods of `zone` cannot be spared.
    pub(super) fn lacks_spare(&self, zone: &Zone, loss: u32, holds_zone: bool) -> Option<String> {
        if loss == 0 {
            return None;
        }
        if holds_zone && self.ready(zone) < zone.min_ready.saturating_add(loss) {
            return Some(format!("{} would have fewer than its minReady of {} pods", zone.label(), zone.min_ready));
        }
        let ready: u32 = self.zones().map(|zone| self.ready(zone)).sum();
        let least = self.observed.min_ready;
        (ready < least.saturating_add(loss)).then(|| format!("the fleet would have fewer than its minReady of {least} pods"))
    }

    /// Why `loss` pods of `zone`, which is to have `replicas`, are more than disruptions may take.
    pub(super) fn exceeds_budget(&self, zone: &Zone, replicas: u32, loss: u32) -> Option<String> {
        let missing = |other: &Zone| {
            let (replicas, loss) = if Self::is(other, zone) { (replicas, loss) } else { (other.replicas, 0) };
            replicas.saturating_sub(self.ready(other).saturating_sub(loss))
        };
        let missing: u32 = self.zones().map(missing).sum();
        let budget = self.observed.budget;
        (loss > 0 && missing > budget).then(|| format!("the disruption budget is {budget}, and {missing} would be missing"))
    }

    pub(super) fn elsewhere(&self, zone: &Zone, what: impl Fn(&Zone) -> Option<String>) -> Option<String> {
        self.zones().filter(|other| !Self::is(other, zone)).find_map(what)
    }

    pub(super) fn trouble_elsewhere(&self, zone: &Zone) -> Option<String> {
        self.elsewhere(zone, |other| self.trouble(other)).or_else(|| self.lacks_deployment())
    }

    /// A zone that cannot even be looked at is not whole.
    pub(super) fn lacks_deployment(&self) -> Option<String> {
        let zone = self.observed.missing.first()?;
        Some(format!("{} has no Deployment", label(zone.as_ref())))
    }

    pub(super) fn ends(zone: &Zone) -> Option<String> {
        let pod = zone.pods.iter().find(|pod| pod.ends())?;
        Some(format!("{} is on its way out", Self::name(zone, pod)))
    }

    /// Whether clients are led away from pods of `zone`, or may be at any moment.
    pub(super) fn drains(zone: &Zone) -> Option<String> {
        let closes = || zone.is_closing().then(|| format!("{}: its last old pods are about to go", zone.label()));
        Self::ends(zone).or_else(closes)
    }

    /// Why `zone` is not whole.
    pub(super) fn trouble(&self, zone: &Zone) -> Option<String> {
        if let Some(text) = Self::drains(zone) {
            return Some(text);
        }
        let ready = self.ready(zone);
        if ready >= zone.replicas {
            return None;
        }
        let broken = zone.staying().find_map(|pod| Some(format!("{} {}", Self::name(zone, pod), self.lacks(pod)?)));
        Some(broken.unwrap_or_else(|| format!("{} has {ready} of {} pods", zone.label(), zone.replicas)))
    }

    /// Pods of `zone` that count.
    pub(super) fn ready(&self, zone: &Zone) -> u32 {
        count(zone.staying().filter(|pod| self.counts(pod)))
    }

    pub(super) fn counts(&self, pod: &Pod) -> bool {
        self.lacks(pod).is_none()
    }

    pub(super) fn lacks(&self, pod: &Pod) -> Option<&'static str> {
        pod.lacks(&self.observed.rules, self.now)
    }

    pub(super) fn pods(&self) -> impl Iterator<Item = (&'o Zone, &'o Pod)> + use<'o> {
        self.zones().flat_map(|zone| zone.pods.iter().map(move |pod| (zone, pod)))
    }

    pub(super) fn name(zone: &Zone, pod: &Pod) -> String {
        match &zone.name {
            Some(name) => format!("pod {} in zone {name}", pod.name),
            None => format!("pod {}", pod.name),
        }
    }
}
