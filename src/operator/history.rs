//! The last bundles of a fleet, and how far behind them somebody is. Pure.

use crate::haproxy::bundle::Digest;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// Bundles that are remembered: whoever is further behind is that far behind.
const REMEMBERED: usize = 128;

/// The last bundles of a fleet, the present one last.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct History(VecDeque<(Digest, Instant)>);

/// How far behind somebody is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Lag {
    /// The age of the oldest bundle that it has not confirmed.
    pub(super) time: Duration,
    /// How many bundles it has not confirmed.
    pub(super) generations: usize,
}

impl History {
    /// The bundle `digest` is to be served from `since` on.
    pub(super) fn push(&mut self, digest: Digest, since: Instant) {
        if self.0.len() == REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back((digest, since));
    }

    /// How far behind somebody is who confirms `digest`; one that confirms nothing that is remembered has it all to do.
    pub(super) fn lag(&self, digest: Option<Digest>, now: Instant) -> Lag {
        let confirmed = digest.and_then(|digest| self.0.iter().rposition(|(known, _)| *known == digest));
        let first = confirmed.map_or(0, |at| at + 1);
        let since = self.0.get(first).map(|(_, since)| *since);
        Lag { time: since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since)), generations: self.0.len() - first }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_confirms_the_present_bundle_is_not_behind_and_who_confirms_none_is_behind_all() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let lag = |time, generations| Lag { time: Duration::from_secs(time), generations };
        let mut history = History::default();
        assert_eq!(history.lag(None, at(9)), Lag::default(), "there is nothing to confirm");
        history.push(Digest(1), at(0));
        history.push(Digest(2), at(5));
        history.push(Digest(1), at(7));
        assert_eq!(history.lag(Some(Digest(1)), at(9)), Lag::default(), "what comes back is the present again");
        assert_eq!(history.lag(Some(Digest(2)), at(9)), lag(2, 1));
        assert_eq!(history.lag(None, at(9)), lag(9, 3));
        assert_eq!(history.lag(Some(Digest(8)), at(9)), lag(9, 3));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let now = Instant::now();
        let mut history = History::default();
        for number in 0..1000 {
            history.push(Digest(number), now);
        }
        assert_eq!(history.lag(Some(Digest(0)), now).generations, REMEMBERED);
    }
}
