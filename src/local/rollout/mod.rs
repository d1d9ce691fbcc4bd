//! How the replicas of a fleet come and go: what the planner of rollouts observes of them, what it writes, and which
//! replicas follow from that. Pure: no process, no clock.

mod deployment;
mod orders;
mod template;
mod told;
mod wanted;
mod written;

pub(super) use deployment::{Seen, Turnover};
pub(super) use template::PodTemplate;
pub(super) use wanted::{Wanted, remarks};

use crate::admin::Target;
use crate::fleet::rollout::{Action, Asked, Change, Observed, Platform, Pod, PodState, Reason, Template, Zone};
use deployment::{Deployment, Rules};
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;

/// What is written, by the planner and by people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Rollout {
    /// Zones in the order in which they are changed, then those that are listed no more.
    zones: Vec<Deployment>,
    /// What is known of the templates that are about.
    templates: BTreeMap<Template, PodTemplate>,
    /// The one that the whole fleet ran last.
    stable: Option<Template>,
    /// The one that was given up.
    aborted: Option<Template>,
    paused: bool,
    /// When people asked for a restart last.
    restarted_at: Option<String>,
    /// What people want drained, and whether by force.
    #[serde(default, with = "written")]
    drains: BTreeMap<Target, bool>,
    #[serde(skip)]
    costs: BTreeMap<Arc<str>, i32>,
}

impl Rollout {
    /// What `template` stands for, if it is about.
    pub(super) fn template(&self, template: &Template) -> Option<&PodTemplate> {
        self.templates.get(template)
    }

    /// The template that `wanted` asks for, with restarts.
    fn desired(&self, wanted: &Wanted) -> PodTemplate {
        wanted.template.restarted(wanted.restarted_at.iter().chain(&self.restarted_at).map(String::as_str))
    }

    fn aborted<'a>(&'a self, wanted: &'a Wanted) -> Option<&'a Template> {
        wanted.aborted.as_ref().or(self.aborted.as_ref())
    }

    fn is_aborted(&self, wanted: &Wanted, desired: &Template) -> bool {
        self.aborted(wanted) == Some(desired) && self.stable.as_ref() != Some(desired)
    }

    /// Takes in which zones there are to be and what is left of others, and forgets what nobody needs any more.
    pub(super) fn follow(&mut self, wanted: &Wanted, replicas: &[Seen]) {
        let content = self.desired(wanted);
        let desired = content.name();
        if !wanted.frozen {
            let begun = if self.is_aborted(wanted, &desired) { self.stable.clone() } else { None };
            let begun = begun.unwrap_or_else(|| desired.clone());
            let mut before = std::mem::take(&mut self.zones);
            for (name, size) in &wanted.zones {
                let known = before.iter().position(|zone| zone.name == *name).map(|at| before.remove(at));
                self.zones.push(known.unwrap_or_else(|| Deployment::new(name.clone(), begun.clone(), *size)));
            }
            before.retain(|zone| zone.replicas > 0 || replicas.iter().any(|seen| seen.zone == zone.name));
            self.zones.append(&mut before);
        }
        self.templates.insert(desired.clone(), content);
        let kept: BTreeSet<&Template> = self.zones.iter().flat_map(Deployment::templates).chain(&self.stable).chain([&desired]).collect();
        self.templates.retain(|name, _| kept.contains(name) || replicas.iter().any(|seen| seen.template == *name));
        self.costs.retain(|name, _| replicas.iter().any(|seen| seen.name == *name && seen.stays()));
        let is_there = |target: &Target| match target {
            Target::Pod(name) => replicas.iter().any(|seen| *seen.name == **name && seen.stays()),
            Target::Zone(name) => self.zones.iter().any(|zone| zone.name.as_deref() == Some(name)),
            Target::Node(_) => false,
        };
        self.drains.retain(|target, _| is_there(target));
    }

    /// Which replicas are to be started and which are to end.
    pub(super) fn sync(&mut self, wanted: &Wanted, replicas: &[Seen], now: Timestamp) -> Vec<(Option<Arc<str>>, Turnover)> {
        let mut turnovers = Vec::new();
        for zone in &mut self.zones {
            let ours: Vec<&Seen> = replicas.iter().filter(|seen| seen.zone == zone.name).collect();
            let rules = Rules { strategy: wanted.strategy(zone.replicas), min_ready: wanted.rules.min_ready };
            let turnover = zone.sync(&ours, &self.costs, &rules, now);
            if !turnover.is_empty() {
                turnovers.push((zone.name.clone(), turnover));
            }
        }
        turnovers
    }

    /// The fleet as the planner sees it.
    fn observe(&self, wanted: &Wanted, replicas: &[Seen], now: Timestamp) -> Observed {
        let zones: Vec<Zone> = self.zones.iter().map(|zone| self.observe_zone(zone, wanted, replicas, now)).collect();
        let missing = zones.iter().map(|zone| zone.max_unavailable).max().unwrap_or_default();
        let total: u32 = wanted.zones.iter().map(|(_, size)| size).sum();
        Observed {
            synced: true,
            desired: self.desired(wanted).name(),
            stable: self.stable.clone(),
            aborted: self.aborted(wanted).cloned(),
            frozen: wanted.frozen,
            rollout_paused: self.paused || wanted.paused,
            min_ready: wanted.min_ready.unwrap_or_else(|| total.saturating_sub(missing).min(1)),
            budget: wanted.disruptions.max(missing),
            rules: wanted.rules,
            zones,
            missing: Vec::new(),
        }
    }

    fn observe_zone(&self, zone: &Deployment, wanted: &Wanted, replicas: &[Seen], now: Timestamp) -> Zone {
        let ours: Vec<&Seen> = replicas.iter().filter(|seen| seen.zone == zone.name).collect();
        let staying = || ours.iter().filter(|seen| seen.stays());
        let size = wanted.zones.iter().find(|(name, _)| *name == zone.name).map_or(0, |(_, size)| *size);
        let unavailable = wanted.strategy(zone.replicas).unavailable;
        let available = staying().filter(|seen| seen.is_available(wanted.rules.min_ready, now)).count();
        Zone {
            name: zone.name.clone(),
            template: zone.template.clone(),
            paused: zone.paused,
            turn: zone.turn,
            replicas: zone.replicas,
            wanted: Some(size),
            min_ready: zone.name.as_ref().and_then(|name| wanted.min_ready_in.get(name)).copied().unwrap_or(0),
            max_unavailable: unavailable,
            // what is written is known here at once
            generation: 0,
            observed_generation: 0,
            reported: u32::try_from(staying().count()).unwrap_or(u32::MAX),
            available: u32::try_from(available).unwrap_or(u32::MAX),
            completed: zone.completed,
            overdue: false,
            pods: ours.iter().map(|seen| self.observe_pod(zone, wanted, seen)).collect(),
        }
    }

    fn observe_pod(&self, zone: &Deployment, wanted: &Wanted, seen: &Seen) -> Pod {
        Pod {
            name: seen.name.clone(),
            place: seen.zone.clone(),
            template: Some(seen.template.clone()),
            state: seen.state,
            crashes_since: None,
            node_lost: false,
            confirmed: seen.confirmed,
            streams: 0,
            cost: self.costs.get(&seen.name).copied().unwrap_or_default(),
            asked: self.asked(wanted, seen),
            drained: zone.drained.contains(&seen.name),
        }
    }

    /// What is asked by hand of a replica.
    fn asked(&self, wanted: &Wanted, seen: &Seen) -> Option<Asked> {
        let force = |target: Target| [&wanted.drains, &self.drains].into_iter().filter_map(|drains| drains.get(&target)).max().copied();
        let zone = seen.zone.as_ref().and_then(|zone| force(Target::Zone(zone.to_string())));
        match (force(Target::Pod(seen.name.to_string())), zone) {
            (Some(true), _) | (_, Some(true)) => Some(Asked::Forced),
            (_, Some(false)) => Some(Asked::Zone),
            (Some(false), None) => Some(Asked::Pod),
            (None, None) => None,
        }
    }

    /// Writes what the planner decided.
    fn act(&mut self, action: &Action) {
        match action {
            Action::Zone(name, change) => {
                if let Some(zone) = self.zones.iter_mut().find(|zone| zone.name == *name) {
                    zone.write(change);
                }
            }
            Action::DeletionCost(name, cost) => _ = self.costs.insert(name.clone(), *cost),
            Action::Settle(template) => self.stable = Some(template.clone()),
            Action::Abort(template) => self.aborted = Some(template.clone()),
        }
    }

    /// Whether clients are led away from the replica `name`.
    pub(super) fn is_drained(&self, name: &str) -> bool {
        self.zones.iter().any(|zone| zone.drained.contains(name))
    }

    /// Whether there are the replicas that are wanted, and no others.
    pub(super) fn is_done(&self, wanted: &Wanted, replicas: &[Seen]) -> bool {
        let desired = self.desired(wanted).name();
        let is_whole = |(name, size): &(Option<Arc<str>>, u32)| {
            let ours = replicas.iter().filter(|seen| seen.stays() && seen.zone == *name);
            ours.filter(|seen| seen.template == desired).count() == *size as usize
        };
        let total: u32 = wanted.zones.iter().map(|(_, size)| size).sum();
        wanted.zones.iter().all(is_whole) && replicas.iter().filter(|seen| seen.stays()).count() == total as usize
    }
}

/// The processes of a fleet, as the planner meets them.
pub(super) struct Processes<'a> {
    pub rollout: &'a mut Rollout,
    pub wanted: &'a Wanted,
    pub replicas: &'a [Seen],
}

impl Platform for Processes<'_> {
    type Error = Infallible;

    async fn observe(&mut self, now: Timestamp) -> Result<Observed, Infallible> {
        Ok(self.rollout.observe(self.wanted, self.replicas, now))
    }

    async fn act(&mut self, action: &Action, _: &Reason) -> Result<(), Infallible> {
        self.rollout.act(action);
        Ok(())
    }
}

impl Deployment {
    fn write(&mut self, change: &Change) {
        match change {
            Change::TakeTurn => self.turn = true,
            Change::EndTurn => self.turn = false,
            Change::Template(template) => (self.template, self.paused) = (template.clone(), true),
            Change::Resume => self.paused = false,
            Change::Pause => self.paused = true,
            Change::Scale(replicas) => self.replicas = *replicas,
            Change::Drain(name) => _ = self.drained.insert(name.clone()),
            Change::Undrain(name) => _ = self.drained.remove(name),
        }
    }
}

/// Whether clients reach it.
fn serves(seen: &Seen) -> bool {
    matches!(seen.state, PodState::Ready(_))
}

#[cfg(test)]
mod tests;
