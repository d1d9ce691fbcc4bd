//! What people ask by hand.

use super::{Rollout, Seen, Wanted, serves};
use crate::admin::{Done, Order, Refusal, RefusalKind, Target};
use crate::fleet::rollout::Decision;

impl Rollout {
    /// Takes an order for the fleet called `fleet`. What follows from it is the planner's; `now` is what a restart is
    /// known by.
    pub(in crate::local) fn order(
        &mut self,
        fleet: &str,
        order: &Order,
        wanted: &Wanted,
        replicas: &[Seen],
        now: &str,
    ) -> Result<Done, Refusal> {
        match order {
            Order::Pause => {
                self.paused = true;
                Ok(Done { message: format!("the rollout of {fleet} is paused; sizes and drains by hand go on") })
            }
            Order::Resume if wanted.paused => refused(
                format!("the rollout of {fleet} is paused by the annotation haproxy-fleet.dev/rollout"),
                "remove the annotation from the manifest",
            ),
            Order::Resume => {
                self.paused = false;
                Ok(Done { message: format!("the rollout of {fleet} goes on") })
            }
            Order::Abort => self.abort(fleet, wanted),
            Order::Restart => {
                self.restarted_at = Some(now.to_owned());
                let waits = if self.paused || wanted.paused { ", once the rollout is not paused any more" } else { "" };
                Ok(Done { message: format!("the replicas of {fleet} are replaced one after the other{waits}") })
            }
            Order::Drain { target, force } => self.drain(fleet, target, *force, replicas),
            Order::Undrain(target) => self.undrain(fleet, target, wanted, replicas),
            Order::Rollback(_) => refused(format!("what {fleet} serves is no matter of its replicas"), ""),
        }
    }

    fn abort(&mut self, fleet: &str, wanted: &Wanted) -> Result<Done, Refusal> {
        let desired = self.desired(wanted).name();
        match &self.stable {
            None => refused(
                format!(
                    "the rollout of {fleet} cannot be aborted: the fleet never ran a template as a whole, so there is none to go back to"
                ),
                "correct the manifest instead, or pause the rollout",
            ),
            Some(stable) if *stable == desired => refused(
                format!("there is no rollout of {fleet} to abort: all of it ran the template {desired} already"),
                "change the manifest to what it was before",
            ),
            Some(stable) => {
                let message = format!("the template {desired} of {fleet} is given up; replicas go back to {stable}");
                self.aborted = Some(desired);
                Ok(Done { message })
            }
        }
    }

    fn drain(&mut self, fleet: &str, target: &Target, force: bool, replicas: &[Seen]) -> Result<Done, Refusal> {
        self.find(fleet, target, replicas)?;
        let others_serve = replicas.iter().any(|seen| serves(seen) && !is_of(seen, target));
        if !force && !others_serve {
            return refused(
                format!("{target} of {fleet} is not drained: no other replica serves"),
                "wait for another one to be ready, or drain it all the same by force",
            );
        }
        self.drains.insert(target.clone(), force);
        Ok(Done {
            message: format!(
                "{target} of {fleet} is drained: it gets no new connections, asks its clients to leave, and stays until it is undrained"
            ),
        })
    }

    /// Why what was asked to be drained is not, if it is not: by what was decided last.
    pub(in crate::local) fn drain_waits(&self, target: &Target, replicas: &[Seen], decision: Option<&Decision>) -> Option<String> {
        let waiting = replicas.iter().find(|seen| seen.stays() && is_of(seen, target) && !self.is_drained(&seen.name))?;
        let reasons = decision.map_or(&[][..], |decision| &decision.reasons);
        let named = format!("pod {} ", waiting.name);
        let own = reasons.iter().find(|reason| reason.text.starts_with(&named) && reason.text.contains("is not drained"));
        Some(own.or(reasons.first()).map_or_else(|| "nothing is decided yet".to_owned(), |reason| reason.text.clone()))
    }

    fn undrain(&mut self, fleet: &str, target: &Target, wanted: &Wanted, replicas: &[Seen]) -> Result<Done, Refusal> {
        self.find(fleet, target, replicas)?;
        if wanted.drains.contains_key(target) {
            return refused(
                format!("{target} of {fleet} is drained by the annotation haproxy-fleet.dev/drain"),
                "remove it from the annotation in the manifest",
            );
        }
        if self.drains.remove(target).is_some() {
            return Ok(Done { message: format!("{target} of {fleet} gets new connections again") });
        }
        let zone = replicas.iter().find(|seen| is_of(seen, target)).and_then(|seen| seen.zone.as_ref());
        let zone = zone.map(|zone| Target::Zone(zone.to_string())).filter(|zone| self.drains.contains_key(zone));
        let help =
            zone.map_or_else(|| "see what is: haproxy-fleet rollout status".to_owned(), |zone| format!("its zone is: undrain {zone}"));
        refused(format!("{target} of {fleet} is not drained by hand"), help)
    }

    fn find(&self, fleet: &str, target: &Target, replicas: &[Seen]) -> Result<(), Refusal> {
        let (kind, names): (&str, Vec<&str>) = match target {
            Target::Pod(_) => ("pod", replicas.iter().filter(|seen| seen.stays()).map(|seen| &*seen.name).collect()),
            Target::Zone(_) => ("zone", self.zones.iter().filter_map(|zone| zone.name.as_deref()).collect()),
            // replicas of `local` are on no node
            Target::Node(_) => ("node", Vec::new()),
        };
        let (Target::Pod(name) | Target::Zone(name) | Target::Node(name)) = target;
        if names.contains(&name.as_str()) {
            return Ok(());
        }
        let help = if names.is_empty() { format!("it has no {kind}s") } else { format!("it has {}", names.join(", ")) };
        Err(Refusal { kind: RefusalKind::NotFound, error: format!("{fleet} has no {kind} {name}"), help })
    }
}

fn is_of(seen: &Seen, target: &Target) -> bool {
    match target {
        Target::Pod(name) => *seen.name == **name,
        Target::Zone(name) => seen.zone.as_deref() == Some(name),
        Target::Node(_) => false,
    }
}

fn refused(error: String, help: impl Into<String>) -> Result<Done, Refusal> {
    Err(Refusal { kind: RefusalKind::Conflict, error, help: help.into() })
}
