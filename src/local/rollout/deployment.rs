//! What the Deployment controller of Kubernetes does for the operator, done for processes: which replicas of a zone
//! are started and which end. Pure.
//!
//! The rules are those of `kubernetes/pkg/controller/deployment` (`sync`, `scale` and `rolloutRolling`), as the planner of
//! rollouts takes them for granted: new ones first, never fewer available than allowed, nothing while it is paused, and
//! those with the least deletion cost go first.

use crate::fleet::rollout::{PodState, Template};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How many replicas may be added, and how many may be missing, while a zone is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::local) struct Strategy {
    pub surge: u32,
    pub unavailable: u32,
}

/// A replica as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::local) struct Seen {
    pub name: Arc<str>,
    pub zone: Option<Arc<str>>,
    pub template: Template,
    pub state: PodState,
    /// Whether it serves what it should.
    pub confirmed: bool,
}

/// What is to be done with the replicas of a zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::local) struct Turnover {
    /// One replica of each of these is started.
    pub make: Vec<Template>,
    /// These end.
    pub take: Vec<Arc<str>>,
}

/// The replicas of a zone: how many of which template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::local) struct Deployment {
    /// The zone; none where none are listed.
    pub name: Option<Arc<str>>,
    pub template: Template,
    pub paused: bool,
    pub turn: bool,
    pub replicas: u32,
    /// Those that are drained by hand.
    pub drained: BTreeSet<Arc<str>>,
    /// Since when all have its template.
    #[serde(skip)]
    pub completed: Option<Timestamp>,
    /// How many there are to be by template, and the number that they are shares of.
    sets: BTreeMap<Template, u32>,
    sized_for: u32,
}

impl Seen {
    pub(in crate::local) fn stays(&self) -> bool {
        self.state != PodState::Ending
    }

    /// Whether it has been ready for long enough.
    pub(in crate::local) fn is_available(&self, min_ready: SignedDuration, now: Timestamp) -> bool {
        matches!(self.state, PodState::Ready(since) if since.checked_add(min_ready).is_ok_and(|counts| counts <= now))
    }
}

impl Turnover {
    pub(in crate::local) fn is_empty(&self) -> bool {
        self.make.is_empty() && self.take.is_empty()
    }
}

impl Deployment {
    /// A zone that begins with `replicas` of `template`.
    pub(in crate::local) fn new(name: Option<Arc<str>>, template: Template, replicas: u32) -> Self {
        let sets = BTreeMap::from([(template.clone(), replicas)]);
        let (drained, sized_for) = (BTreeSet::new(), replicas);
        Self { name, template, paused: false, turn: false, replicas, drained, completed: None, sets, sized_for }
    }

    /// The templates that it is or was to have replicas of.
    pub(in crate::local) fn templates(&self) -> impl Iterator<Item = &Template> {
        self.sets.keys().chain([&self.template])
    }

    /// One step, from its own `replicas` as they are at `now`.
    pub(in crate::local) fn sync(&mut self, replicas: &[&Seen], costs: &BTreeMap<Arc<str>, i32>, how: &Rules, now: Timestamp) -> Turnover {
        let staying: Vec<&Seen> = replicas.iter().copied().filter(|seen| seen.stays()).collect();
        self.drained.retain(|name| staying.iter().any(|seen| seen.name == *name));
        let available =
            |template: &Template| count(staying.iter().filter(|seen| seen.template == *template && seen.is_available(how.min_ready, now)));
        if self.paused || self.sized_for != self.replicas {
            self.scale(how.strategy.surge, &available);
        } else {
            self.roll(how.strategy, &available);
        }
        self.sized_for = self.replicas;
        self.sets.retain(|template, size| *size > 0 || *template == self.template);
        let turnover = self.turnover(&staying, costs);
        let is_one = staying.iter().all(|seen| seen.template == self.template);
        if self.paused || !is_one {
            self.completed = None;
        } else if turnover.is_empty() && available(&self.template) >= self.replicas {
            self.completed.get_or_insert(now);
        }
        turnover
    }

    /// While it is paused, and when its size has changed: all templates in proportion.
    fn scale(&mut self, surge: u32, available: &impl Fn(&Template) -> u32) {
        let (wanted, template) = (self.replicas, self.template.clone());
        let active: Vec<Template> = self.sets.iter().filter(|(_, size)| **size > 0).map(|(set, _)| set.clone()).collect();
        match &active[..] {
            [] => _ = self.sets.insert(template, wanted),
            [only] => _ = self.sets.insert(only.clone(), wanted),
            _ if self.sized_for == wanted && self.sets.get(&template) == Some(&wanted) && available(&template) == wanted => {
                self.sets.retain(|set, _| *set == template);
            }
            _ => {
                let allowed = if wanted > 0 { wanted + surge } else { 0 };
                while self.total() != allowed {
                    let grows = self.total() < allowed;
                    let rank = |(set, size): &(&Template, &mut u32)| (**size, (**set == template) == grows);
                    let Some((_, size)) = self.sets.iter_mut().filter(|(_, size)| **size > 0).max_by_key(rank) else { break };
                    *size = if grows { *size + 1 } else { *size - 1 };
                }
            }
        }
    }

    /// Either there are more of the new template, or fewer of the old ones.
    fn roll(&mut self, strategy: Strategy, available: &impl Fn(&Template) -> u32) {
        let (wanted, total) = (self.replicas, self.total());
        let new = self.sets.entry(self.template.clone()).or_default();
        if *new != wanted {
            let grown = (wanted + strategy.surge).saturating_sub(total).min(wanted.saturating_sub(*new));
            *new = (*new + grown).min(wanted);
            if grown > 0 {
                return;
            }
        }
        let missing = new.saturating_sub(available(&self.template));
        let least = wanted.saturating_sub(strategy.unavailable);
        let mut fewer = total.saturating_sub(least + missing);
        let is_old = |set: &Template| *set != self.template;
        // those that do not serve go first
        for (set, size) in self.sets.iter_mut().filter(|(set, _)| is_old(set)) {
            let broken = size.saturating_sub(available(set)).min(fewer);
            *size -= broken;
            fewer -= broken;
        }
        let all_available: u32 = self.sets.keys().map(available).sum();
        let mut fewer = all_available.saturating_sub(least);
        for (_, size) in self.sets.iter_mut().filter(|(set, _)| is_old(set)) {
            let taken = (*size).min(fewer);
            *size -= taken;
            fewer -= taken;
        }
    }

    fn total(&self) -> u32 {
        self.sets.values().sum()
    }

    /// What makes `staying` as many of each template as there are to be.
    fn turnover(&self, staying: &[&Seen], costs: &BTreeMap<Arc<str>, i32>) -> Turnover {
        let mut turnover = Turnover::default();
        let templates: BTreeSet<&Template> = self.sets.keys().chain(staying.iter().map(|seen| &seen.template)).collect();
        for template in templates {
            let mut of: Vec<&Seen> = staying.iter().copied().filter(|seen| seen.template == *template).collect();
            let size = self.sets.get(template).copied().unwrap_or_default() as usize;
            turnover.make.extend((of.len()..size).map(|_| template.clone()));
            // those that do not serve, then those that cost least, then the youngest
            of.sort_by_key(|seen| match seen.state {
                PodState::Ready(since) => (true, costs.get(&seen.name).copied().unwrap_or_default(), std::cmp::Reverse(Some(since))),
                _ => (false, 0, std::cmp::Reverse(None)),
            });
            turnover.take.extend(of.iter().take(of.len().saturating_sub(size)).map(|seen| seen.name.clone()));
        }
        turnover
    }
}

/// How replicas of a zone are replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::local) struct Rules {
    pub strategy: Strategy,
    pub min_ready: SignedDuration,
}

fn count<T>(items: impl Iterator<Item = T>) -> u32 {
    u32::try_from(items.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const HOW: Rules = Rules { strategy: Strategy { surge: 1, unavailable: 0 }, min_ready: SignedDuration::from_secs(10) };

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap()
    }

    fn template(name: &str) -> Template {
        Template(name.into())
    }

    fn seen(name: &str, of: &str, state: PodState) -> Seen {
        Seen { name: name.into(), zone: None, template: template(of), state, confirmed: true }
    }

    fn zone(replicas: u32) -> Deployment {
        Deployment::new(None, template("old"), replicas)
    }

    fn sync(zone: &mut Deployment, replicas: &[Seen], now: i64) -> (Vec<String>, Vec<String>) {
        let all: Vec<&Seen> = replicas.iter().collect();
        let Turnover { make, take } = zone.sync(&all, &BTreeMap::new(), &HOW, at(now));
        (make.iter().map(ToString::to_string).collect(), take.iter().map(ToString::to_string).collect())
    }

    fn nothing() -> (Vec<String>, Vec<String>) {
        (Vec::new(), Vec::new())
    }

    #[test]
    fn what_is_missing_is_started_and_a_zone_is_complete_when_all_have_been_ready_for_long_enough() {
        let mut zone = zone(2);
        assert_eq!(sync(&mut zone, &[], 0).0, ["old", "old"]);
        let mut replicas = vec![seen("a", "old", PodState::Ready(at(0))), seen("b", "old", PodState::NotReady(at(0)))];
        assert_eq!(sync(&mut zone, &replicas, 100), nothing());
        assert_eq!(zone.completed, None);
        replicas[1].state = PodState::Ready(at(100));
        assert_eq!((sync(&mut zone, &replicas, 109), zone.completed), (nothing(), None));
        assert_eq!((sync(&mut zone, &replicas, 110), zone.completed), (nothing(), Some(at(110))));
    }

    #[test]
    fn a_new_one_is_ready_for_long_enough_before_an_old_one_goes() {
        let mut zone = zone(2);
        zone.template = template("new");
        let mut replicas = vec![seen("a", "old", PodState::Ready(at(0))), seen("b", "old", PodState::Ready(at(1)))];
        assert_eq!(sync(&mut zone, &replicas, 100), (vec!["new".into()], vec![]));
        replicas.push(seen("c", "new", PodState::NotReady(at(100))));
        assert_eq!(sync(&mut zone, &replicas, 105), nothing(), "it does not serve yet");
        replicas[2].state = PodState::Ready(at(105));
        assert_eq!(sync(&mut zone, &replicas, 114), nothing(), "it does not serve for long enough");
        assert_eq!(sync(&mut zone, &replicas, 115), (vec![], vec!["b".into()]), "the younger one first");
        replicas[1].state = PodState::Ending;
        assert_eq!(sync(&mut zone, &replicas, 115), (vec!["new".into()], vec![]));
    }

    #[test]
    fn nothing_is_replaced_while_it_is_paused_and_sizes_change_all_the_same() {
        let mut zone = zone(2);
        (zone.template, zone.paused) = (template("new"), true);
        let replicas = [seen("a", "old", PodState::Ready(at(0))), seen("b", "old", PodState::Ready(at(0)))];
        assert_eq!(sync(&mut zone, &replicas, 100), nothing());
        zone.replicas = 3;
        assert_eq!(sync(&mut zone, &replicas, 100).0, ["old"]);
        zone.replicas = 1;
        assert_eq!(sync(&mut zone, &replicas, 100).1.len(), 1);
    }

    #[test]
    fn what_does_not_serve_goes_before_what_costs_less_and_that_before_the_rest() {
        let mut zone = zone(3);
        let replicas = [
            seen("a", "old", PodState::Ready(at(0))),
            seen("b", "old", PodState::NotReady(at(0))),
            seen("c", "old", PodState::Ready(at(0))),
        ];
        let all: Vec<&Seen> = replicas.iter().collect();
        let costs = BTreeMap::from([("c".into(), -1)]);
        zone.replicas = 2;
        assert_eq!(zone.clone().sync(&all, &costs, &HOW, at(100)).take, ["b".into()]);
        zone.replicas = 1;
        assert_eq!(zone.sync(&all, &costs, &HOW, at(100)).take, ["b".into(), "c".into()]);
    }

    #[test]
    fn a_template_that_is_taken_back_ends_its_replicas_that_never_served() {
        let mut zone = zone(1);
        zone.template = template("bad");
        let mut replicas = vec![seen("a", "old", PodState::Ready(at(0)))];
        assert_eq!(sync(&mut zone, &replicas, 100).0, ["bad"]);
        replicas.push(seen("b", "bad", PodState::NotReady(at(100))));
        zone.template = template("old");
        assert_eq!(sync(&mut zone, &replicas, 200), (vec![], vec!["b".into()]));
    }

    #[test]
    fn where_nothing_may_be_added_one_goes_first() {
        let how = Rules { strategy: Strategy { surge: 0, unavailable: 1 }, ..HOW };
        let mut zone = zone(2);
        zone.template = template("new");
        let mut replicas = vec![seen("a", "old", PodState::Ready(at(0))), seen("b", "old", PodState::Ready(at(0)))];
        let take =
            |zone: &mut Deployment, replicas: &[Seen]| zone.sync(&replicas.iter().collect::<Vec<_>>(), &BTreeMap::new(), &how, at(100));
        assert_eq!(take(&mut zone, &replicas).take.len(), 1);
        replicas[0].state = PodState::Ending;
        assert_eq!(take(&mut zone, &replicas).make.len(), 1);
    }
}
