//! How pods fare, and whether those that have a change fare worse than those that do not.

/// Requests that failed below this are no proof of anything.
const FEW: u64 = 10;
/// Requests that wait, of a pod that has none to compare with.
const SHORT_QUEUE: u64 = 50;

/// How one pod fared since the first pod was let.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Requests that were answered.
    pub requests: u64,
    /// Of these, with a status from 500 on.
    pub failed: u64,
    /// Requests that waited for a server: the least of the last two looks, and the most at any.
    pub queued: (u64, u64),
    /// Backends in which the last server failed its checks: the least of the last two looks, and the most at any.
    pub down: (u64, u64),
}

/// Why pods with a change fare worse than those without it; `None`: they do not, or there is nothing to compare.
pub(super) fn worse(with: &[Health], without: &[Health]) -> Option<String> {
    if with.is_empty() || without.is_empty() {
        return None;
    }
    let (with, without) = (Sum::of(with), Sum::of(without));
    // more than twice the share and 5 % beside that: what clients do differs from pod to pod
    if with.failed >= FEW && with.per_mille() > 2 * without.per_mille() + 50 {
        let text =
            format!("{} of {} requests fail there, {} of {} elsewhere", with.failed, with.requests, without.failed, without.requests);
        return Some(text);
    }
    if with.queued.0 > 2 * without.queued.1 + SHORT_QUEUE {
        return Some(format!("at least {} requests wait there, at most {} elsewhere", with.queued.0, without.queued.1));
    }
    if with.down.0 > without.down.1 {
        return Some(format!("at least {} backends are down there by their checks, at most {} elsewhere", with.down.0, without.down.1));
    }
    None
}

/// Several pods: what happened is added up, and of what is the case the pod counts that is worst off.
struct Sum {
    requests: u64,
    failed: u64,
    queued: (u64, u64),
    down: (u64, u64),
}

impl Sum {
    fn of(all: &[Health]) -> Self {
        let most = |of: fn(&Health) -> u64| all.iter().map(of).max().unwrap_or(0);
        Self {
            requests: all.iter().map(|one| one.requests).sum(),
            failed: all.iter().map(|one| one.failed).sum(),
            queued: (most(|one| one.queued.0), most(|one| one.queued.1)),
            down: (most(|one| one.down.0), most(|one| one.down.1)),
        }
    }

    fn per_mille(&self) -> u64 {
        self.failed.saturating_mul(1000) / self.requests.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(requests: u64, failed: u64) -> Health {
        Health { requests, failed, ..Health::default() }
    }

    #[test]
    fn nothing_is_worse_than_nothing() {
        assert_eq!(worse(&[], &[answers(9, 0)]), None);
        assert_eq!(worse(&[answers(90, 90)], &[]), None);
        assert_eq!(worse(&[Health::default()], &[Health::default()]), None);
    }

    #[test]
    fn failures_are_compared_by_their_share() {
        let says = |with, without| worse(&[with], &[without]).is_some();
        assert!(says(answers(100, 12), answers(100, 1)));
        assert!(!says(answers(100, 9), answers(100, 0)), "few prove nothing");
        assert!(!says(answers(10_000, 400), answers(10_000, 0)), "4 % is within what differs anyway");
        assert!(!says(answers(100, 50), answers(100, 40)), "it is so everywhere");
        assert!(says(answers(100, 50), Health::default()), "what has no clients has no failures");
        let pods = [answers(1000, 0), answers(100, 60)];
        assert!(worse(&pods, &[answers(10, 0)]).is_some(), "54 in a thousand");
    }

    #[test]
    fn queues_and_checks_count_when_they_last() {
        let says = |with, without| worse(&[with], &[without]).is_some();
        let queue = |least, most| Health { queued: (least, most), ..Health::default() };
        assert!(says(queue(60, 80), queue(0, 2)));
        assert!(!says(queue(0, 800), queue(0, 2)), "it was one moment");
        assert!(!says(queue(60, 80), queue(0, 20)));
        let down = |least, most| Health { down: (least, most), ..Health::default() };
        assert!(says(down(2, 2), down(0, 1)));
        assert!(!says(down(1, 2), down(0, 1)), "one that is down elsewhere, too");
    }
}
