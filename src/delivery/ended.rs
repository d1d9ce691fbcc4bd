//! How pods ended, as their agents said last of all. Readers look at it when they like: sums are kept, and the last
//! endings, numbered.

use crate::agent::Ending;
use crate::model::FleetId;
use std::collections::{BTreeMap, VecDeque};

/// Endings that are kept: far more than come between two looks of a reader.
const KEPT: usize = 500;

/// How the connections to one pod ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrainResult {
    /// The fleet of the pod.
    pub fleet: FleetId,
    /// The pod.
    pub pod: String,
    /// How its connections ended.
    pub ending: Ending,
}

/// How pods ended.
#[derive(Clone, Debug, Default)]
pub struct Endings {
    sums: BTreeMap<FleetId, Ending>,
    last: VecDeque<DrainResult>,
    count: u64,
}

impl Endings {
    /// All endings of each fleet together.
    pub fn sums(&self) -> &BTreeMap<FleetId, Ending> {
        &self.sums
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Those after the first `known` ones, the oldest first, as far as they are kept.
    pub fn after(&self, known: u64) -> impl Iterator<Item = &DrainResult> {
        let new = usize::try_from(self.count.saturating_sub(known)).unwrap_or(usize::MAX);
        self.last.iter().skip(self.last.len().saturating_sub(new))
    }

    pub(super) fn push(&mut self, result: DrainResult) {
        let sum = self.sums.entry(result.fleet.clone()).or_default();
        let Ending { finished, closed, cut, unseen, forced, time } = result.ending;
        *sum = Ending {
            finished: sum.finished.saturating_add(finished),
            closed: sum.closed.saturating_add(closed),
            cut: sum.cut.saturating_add(cut),
            unseen: sum.unseen.saturating_add(unseen),
            forced: sum.forced || forced,
            time: sum.time.saturating_add(time),
        };
        self.last.push_back(result);
        self.count += 1;
        if self.last.len() > KEPT {
            self.last.pop_front();
        }
    }

    /// Nobody asks for its sum any more.
    pub(super) fn forget(&mut self, fleet: &FleetId) {
        self.sums.remove(fleet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_finds_what_came_since_it_looked_and_sums_have_all() {
        let fleet = FleetId { namespace: "infra".into(), name: "edge".into() };
        let mut endings = Endings::default();
        let pods = |endings: &Endings, known| endings.after(known).map(|result| result.pod.clone()).collect::<Vec<_>>();
        for number in 0..KEPT + 10 {
            let ending = Ending { finished: 2, cut: 1, ..Ending::default() };
            endings.push(DrainResult { fleet: fleet.clone(), pod: number.to_string(), ending });
        }
        let count = endings.count();
        assert_eq!(pods(&endings, count), Vec::<String>::new());
        assert_eq!(pods(&endings, count - 2), ["508", "509"]);
        assert_eq!(pods(&endings, 0).len(), KEPT);
        assert_eq!(endings.sums().get(&fleet).map(|sum| (sum.finished, sum.cut)), Some((1020, 510)));
    }
}
