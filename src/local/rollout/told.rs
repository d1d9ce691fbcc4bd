//! A rollout as `/status` shows it.

use super::{Deployment, Rollout, Seen, Wanted, serves};
use crate::fleet::rollout::{Decision, Reason, Template, Why};
use crate::status::json;

impl Rollout {
    /// How it goes, by what was decided last.
    pub(in crate::local) fn told(&self, wanted: &Wanted, replicas: &[Seen], decision: &Decision) -> json::Rollout {
        let desired = self.desired(wanted).name();
        let mut reasons: Vec<String> = decision.reasons.iter().map(|reason| reason.text.clone()).collect();
        let drained = self.zones.iter().flat_map(|zone| &zone.drained).map(|name| format!("pod {name} is drained by hand"));
        reasons.extend(drained);
        json::Rollout {
            state: decision.reasons.first().map_or("Unknown", state).to_owned(),
            template: desired.to_string(),
            stable: self.stable.as_ref().map(Template::to_string),
            reasons,
            zones: self.zones.iter().map(|zone| zone.told(&desired, replicas)).collect(),
            drained: self.zones.iter().flat_map(|zone| &zone.drained).map(ToString::to_string).collect(),
        }
    }
}

impl Deployment {
    fn told(&self, desired: &Template, replicas: &[Seen]) -> json::RolloutZone {
        let staying = || replicas.iter().filter(|seen| seen.zone == self.name && seen.stays());
        json::RolloutZone {
            name: self.name.as_deref().map(str::to_owned),
            template: self.template.to_string(),
            pods: staying().count() as u64,
            updated: staying().filter(|seen| seen.template == *desired).count() as u64,
            ready: staying().filter(|seen| serves(seen)).count() as u64,
            turn: self.turn,
            paused: self.paused,
        }
    }
}

fn state(reason: &Reason) -> &'static str {
    match reason.why {
        Why::AsAsked => "Complete",
        Why::Acts | Why::Waits | Why::Unsure => "Progressing",
        Why::Paused => "Paused",
        Why::Frozen => "Frozen",
        Why::Aborted => "Aborted",
        Why::Stalled => "Stalled",
    }
}
