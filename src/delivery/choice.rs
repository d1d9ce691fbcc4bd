//! Which replica of the operator an agent obeys. Pure: a function of what each of them said, and when.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// So long without a word of the leader, and an agent listens to others. Each says that it is there every second.
pub const PATIENCE: Duration = Duration::from_secs(3);

/// What is known of one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replica {
    /// The term that it knows.
    pub term: u64,
    /// Whether it says that it leads.
    pub leads: bool,
    /// Whether it has said what the fleet is to serve.
    pub complete: bool,
    /// When it was heard last, since some fixed time.
    pub heard: Duration,
}

/// Whom to obey.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Nobody new: what is there stays, and so does what it may do.
    Nobody,
    /// The leader: in everything.
    Leader(SocketAddr),
    /// One that does not lead: in what can be done live.
    Standby(SocketAddr),
}

impl Choice {
    /// The replica, if there is one.
    pub fn replica(self) -> Option<SocketAddr> {
        match self {
            Self::Nobody => None,
            Self::Leader(replica) | Self::Standby(replica) => Some(replica),
        }
    }
}

/// Whom to obey at `now`, if `highest_term` is the highest that was ever heard of, a leader was obeyed last at
/// `led`, and `before` was the choice until now.
pub fn choose(replicas: &BTreeMap<SocketAddr, Replica>, highest_term: u64, led: Duration, now: Duration, before: Choice) -> Choice {
    let heard = |replica: &Replica| now.saturating_sub(replica.heard) < PATIENCE;
    // whoever knows a lower term only has missed that it leads no more
    let candidates = || replicas.iter().filter(|(_, replica)| replica.complete && replica.term >= highest_term && heard(replica));
    let prefer = |mut found: Vec<SocketAddr>| {
        let kept = before.replica().filter(|replica| found.contains(replica));
        kept.or_else(|| found.drain(..).next())
    };
    let leaders = candidates().filter(|(_, replica)| replica.leads).map(|(address, _)| *address).collect();
    if let Some(leader) = prefer(leaders) {
        return Choice::Leader(leader);
    }
    if now.saturating_sub(led) < PATIENCE {
        return Choice::Nobody;
    }
    prefer(candidates().map(|(address, _)| *address).collect()).map_or(Choice::Nobody, Choice::Standby)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn address(number: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, number], 9443))
    }

    fn seconds(number: u64) -> Duration {
        Duration::from_secs(number)
    }

    fn replica(term: u64, leads: bool, heard: u64) -> Replica {
        Replica { term, leads, complete: true, heard: seconds(heard) }
    }

    fn chosen(replicas: &[Replica], highest_term: u64, led: u64, now: u64) -> Choice {
        let replicas = replicas.iter().zip(1..).map(|(replica, number)| (address(number), *replica)).collect();
        choose(&replicas, highest_term, seconds(led), seconds(now), Choice::Nobody)
    }

    #[test]
    fn the_leader_of_the_highest_term_is_obeyed() {
        let replicas = [replica(5, true, 10), replica(6, true, 10), replica(6, false, 10)];
        assert_eq!(chosen(&replicas, 6, 10, 10), Choice::Leader(address(2)));
    }

    #[test]
    fn a_leader_of_a_term_that_is_over_is_not_obeyed_even_if_it_is_alone() {
        assert_eq!(chosen(&[replica(5, true, 10)], 6, 0, 10), Choice::Nobody);
    }

    #[test]
    fn a_standby_is_listened_to_after_three_seconds_without_a_leader() {
        let replicas = [replica(6, true, 8), replica(6, false, 10)];
        assert_eq!(chosen(&replicas, 6, 8, 10), Choice::Leader(address(1)));
        let replicas = [replica(6, true, 7), replica(6, false, 10)];
        assert_eq!(chosen(&replicas, 6, 8, 10), Choice::Nobody);
        assert_eq!(chosen(&replicas, 6, 7, 10), Choice::Standby(address(2)));
    }

    #[test]
    fn whoever_has_not_said_what_to_serve_is_not_obeyed() {
        let empty = Replica { complete: false, ..replica(6, true, 10) };
        assert_eq!(chosen(&[empty], 6, 0, 10), Choice::Nobody);
        assert_eq!(chosen(&[empty, replica(6, false, 10)], 6, 0, 10), Choice::Standby(address(2)));
    }

    fn any_replica() -> impl Strategy<Value = Replica> {
        (0..4_u64, any::<bool>(), any::<bool>(), 0..12_u64).prop_map(|(term, leads, complete, heard)| Replica {
            term,
            leads,
            complete,
            heard: seconds(heard),
        })
    }

    proptest! {
        #[test]
        fn nobody_below_the_highest_term_or_silent_or_empty_is_ever_obeyed(
            found in proptest::collection::vec(any_replica(), 0..5), more in 0..2_u64, led in 0..12_u64, before in 0..6_u8,
        ) {
            let replicas: BTreeMap<SocketAddr, Replica> = found.into_iter().zip(1..).map(|(r, number)| (address(number), r)).collect();
            let highest = replicas.values().map(|r| r.term).max().unwrap_or_default() + more;
            let now = seconds(12);
            let before = if before == 0 { Choice::Nobody } else { Choice::Standby(address(before)) };
            let choice = choose(&replicas, highest, seconds(led), now, before);
            let since = |then: Duration| now.saturating_sub(then);
            let fine = |r: &Replica| r.complete && r.term == highest && since(r.heard) < PATIENCE;
            match choice {
                Choice::Leader(leader) => prop_assert!(fine(&replicas[&leader]) && replicas[&leader].leads),
                Choice::Standby(standby) => {
                    prop_assert!(fine(&replicas[&standby]) && since(seconds(led)) >= PATIENCE);
                    prop_assert!(!replicas.values().any(|r| fine(r) && r.leads));
                }
                Choice::Nobody => prop_assert!(!replicas.values().any(|r| fine(r) && (r.leads || since(seconds(led)) >= PATIENCE))),
            }
            // a choice that still holds is kept
            prop_assert_eq!(choose(&replicas, highest, seconds(led), now, choice), choice);
        }
    }
}
