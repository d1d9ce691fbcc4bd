//! How the connections to a HAProxy that stops end, from looks at its workers. Pure.
//!
//! A worker says how many connections are open and how many it has taken, not why one ended: whether a client left by
//! itself or because it was asked to cannot be told. What can be told is when.

use super::runtime::Connections;
use std::collections::BTreeMap;
use std::time::Duration;

/// How the connections of clients ended, from the beginning of a stop on: those that were open then, and those that
/// came while HAProxy served on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ending {
    /// Before the soft stop.
    pub finished: u64,
    /// After it and before the deadline.
    pub closed: u64,
    /// Open at the deadline.
    pub cut: u64,
    /// Open at the last look, before the deadline; then HAProxy was gone. They ended with it, or it was killed with them.
    pub unseen: u64,
    /// Whether the deadline ended it.
    pub forced: bool,
    /// How long it took until nothing changed any more.
    pub time: Duration,
}

/// What was seen so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// The last look.
    workers: Option<BTreeMap<u32, Connections>>,
    /// How many each worker had taken when it was seen last: one may be missed in between.
    taken: BTreeMap<u32, u64>,
    /// All connections that there were.
    all: u64,
    /// Those of them that had ended at the soft stop.
    finished: Option<u64>,
}

impl Tally {
    /// Takes a look at all workers. `asked`: they were asked to stop softly.
    pub(super) fn look(&mut self, workers: BTreeMap<u32, Connections>, asked: bool) {
        for (pid, worker) in &workers {
            let before = self.taken.insert(*pid, worker.taken);
            self.all += match &self.workers {
                None => worker.open,
                // of one that a reload started all are new
                Some(_) => worker.taken.saturating_sub(before.unwrap_or_default()),
            };
        }
        let stopping = asked && workers.values().all(|worker| worker.stopping);
        self.workers = Some(workers);
        if stopping && self.finished.is_none() {
            self.finished = Some(self.ended());
        }
    }

    fn open(&self) -> u64 {
        self.workers.iter().flat_map(BTreeMap::values).map(|worker| worker.open).sum()
    }

    /// A connection is open before it counts as taken.
    fn ended(&self) -> u64 {
        self.all.saturating_sub(self.open())
    }

    /// The end, if HAProxy has ended since the last look; `None` without one.
    pub(super) fn ending(&self) -> Option<Ending> {
        self.workers.as_ref()?;
        let finished = self.finished.unwrap_or_else(|| self.ended());
        Some(Ending { finished, closed: self.ended().saturating_sub(finished), unseen: self.open(), ..Ending::default() })
    }

    /// The end, if HAProxy is ended by force now.
    pub(super) fn forced(&self) -> Option<Ending> {
        let ending = self.ending()?;
        Some(Ending { cut: ending.unseen, unseen: 0, forced: true, ..ending })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Whether it stops; and of each worker process id, open and taken connections.
    type Look<'l> = (bool, &'l [(u32, u64, u64)]);

    fn looked(looks: &[Look<'_>]) -> Tally {
        let mut tally = Tally::default();
        for (stopping, workers) in looks {
            let worker = |(pid, open, taken): &(u32, u64, u64)| (*pid, Connections { open: *open, taken: *taken, stopping: *stopping });
            tally.look(workers.iter().map(worker).collect(), *stopping);
        }
        tally
    }

    fn counts(ending: Ending) -> [u64; 4] {
        [ending.finished, ending.closed, ending.cut, ending.unseen]
    }

    #[test]
    fn a_connection_counts_once_by_when_it_ended() {
        // 5 open; 7 more come; 9 of the 12 are gone at the soft stop, and one more at the deadline
        let tally = looked(&[(false, &[(1, 5, 100)]), (false, &[(1, 6, 104)]), (true, &[(1, 3, 107)]), (true, &[(1, 2, 107)])]);
        assert_eq!(counts(tally.ending().unwrap()), [9, 1, 0, 2]);
        let forced = tally.forced().unwrap();
        assert_eq!((counts(forced), forced.forced), ([9, 1, 2, 0], true));
    }

    #[test]
    fn a_reload_on_the_way_neither_loses_nor_adds_any() {
        let tally = looked(&[(false, &[(1, 5, 100)]), (false, &[(1, 4, 100), (2, 3, 3)]), (true, &[(2, 1, 4)]), (true, &[])]);
        assert_eq!(counts(tally.ending().unwrap()), [8, 1, 0, 0]);
    }

    #[test]
    fn a_worker_that_did_not_answer_once_is_not_counted_anew() {
        let tally = looked(&[(false, &[(1, 5, 100), (2, 1, 50)]), (false, &[(1, 5, 100)]), (true, &[(1, 4, 100), (2, 1, 51)])]);
        assert_eq!(counts(tally.ending().unwrap()), [2, 0, 0, 5]);
    }

    #[test]
    fn what_ended_before_the_soft_stop_was_seen_to_begin_is_finished() {
        let mut tally = looked(&[(false, &[(1, 5, 100)])]);
        tally.look(BTreeMap::from([(1, Connections { open: 2, taken: 100, stopping: false })]), true);
        assert_eq!(counts(tally.ending().unwrap()), [3, 0, 0, 2]);
    }

    #[test]
    fn connections_that_are_not_taken_yet_make_no_negative_numbers() {
        let tally = looked(&[(false, &[(1, 0, 10)]), (true, &[(1, 3, 10)]), (true, &[(1, 0, 13)])]);
        assert_eq!(counts(tally.ending().unwrap()), [0, 3, 0, 0]);
    }

    #[test]
    fn nothing_is_said_of_what_was_never_looked_at() {
        assert_eq!(Tally::default().ending(), None);
        assert_eq!(Tally::default().forced(), None);
    }
}
