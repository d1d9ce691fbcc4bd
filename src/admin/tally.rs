//! What replicas did, added up by fleet: they come and go, and what each counts ends with it, while a counter may only
//! grow. Pure.

use crate::status::json::{Fleet, Object, Replica, Status};
use std::collections::{BTreeMap, BTreeSet};

/// From when on what a replica counts is added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CountFrom {
    /// From its start: it began with this process.
    Start,
    /// From when it is first heard of: it may be older than this process, which must not tell old things as news.
    FirstWord,
}

/// What the replicas of a fleet did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Reloads, by cause.
    pub(super) reloads: BTreeMap<String, u64>,
    pub(super) runtime_commands: u64,
    pub(super) refusals: u64,
}

type Refused = BTreeSet<(u64, Option<Object>, String)>;

/// What a replica said last.
#[derive(Debug, Default)]
struct Seen {
    reloads: u64,
    runtime_commands: u64,
    refused: Refused,
}

/// What was added up.
#[derive(Debug)]
pub(super) struct Tally {
    from: CountFrom,
    fleets: BTreeMap<(String, String), (Counts, BTreeMap<String, Seen>)>,
}

impl Tally {
    pub(super) fn new(from: CountFrom) -> Self {
        Self { from, fleets: BTreeMap::new() }
    }

    /// Adds what is new in `status`. Fleets and replicas that are gone are forgotten.
    pub(super) fn follow(&mut self, status: &Status) {
        let mut before = std::mem::take(&mut self.fleets);
        for fleet in &status.fleets {
            let key = (fleet.namespace.clone(), fleet.name.clone());
            let (mut counts, seen) = before.remove(&key).unwrap_or_default();
            let seen = counts.add(fleet, seen, self.from);
            self.fleets.insert(key, (counts, seen));
        }
    }

    /// What the replicas of a fleet did.
    pub(super) fn of(&self, namespace: &str, name: &str) -> Option<&Counts> {
        self.fleets.get(&(namespace.to_owned(), name.to_owned())).map(|(counts, _)| counts)
    }
}

impl Counts {
    fn add(&mut self, fleet: &Fleet, mut seen: BTreeMap<String, Seen>, from: CountFrom) -> BTreeMap<String, Seen> {
        fleet
            .replicas
            .iter()
            .map(|replica| {
                match (seen.remove(&replica.name), from) {
                    (Some(before), _) => self.add_replica(replica, &before),
                    (None, CountFrom::Start) => self.add_replica(replica, &Seen::default()),
                    (None, CountFrom::FirstWord) => {}
                }
                (replica.name.clone(), Seen::of(replica))
            })
            .collect()
    }

    fn add_replica(&mut self, replica: &Replica, before: &Seen) {
        // what counts less than before was started anew
        let news = |now: u64, before: u64| if now >= before { now - before } else { now };
        let reloads = news(replica.reload_count, before.reloads);
        let known = usize::try_from(reloads).unwrap_or(usize::MAX).min(replica.reloads.len());
        for reload in &replica.reloads[replica.reloads.len() - known..] {
            *self.reloads.entry(reload.cause.clone()).or_default() += 1;
        }
        let unknown = reloads - known as u64;
        if unknown > 0 {
            *self.reloads.entry("other".to_owned()).or_default() += unknown;
        }
        self.runtime_commands += news(replica.runtime_commands, before.runtime_commands);
        self.refusals += Seen::of(replica).refused.difference(&before.refused).count() as u64;
    }
}

impl Seen {
    fn of(replica: &Replica) -> Self {
        let refused = replica.refused.iter().map(|one| (one.generation, one.object.clone(), one.message.clone())).collect();
        Self { reloads: replica.reload_count, runtime_commands: replica.runtime_commands, refused }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::status::json::{Refused as Refusal, Reload};

    fn replica(name: &str, causes: &[&str], count: u64) -> Replica {
        let reloads = causes.iter().map(|cause| Reload { cause: (*cause).to_owned(), ..Reload::default() }).collect();
        Replica { name: name.to_owned(), reloads, reload_count: count, runtime_commands: count * 10, ..Replica::default() }
    }

    fn follow(tally: &mut Tally, replicas: Vec<Replica>) -> Counts {
        let fleet = Fleet { namespace: "infra".into(), name: "edge".into(), replicas, ..Fleet::default() };
        tally.follow(&Status { fleets: vec![fleet], ..Status::default() });
        tally.of("infra", "edge").unwrap().clone()
    }

    #[test]
    fn what_a_replica_did_stays_counted_when_it_is_gone_or_begins_anew() {
        let mut tally = Tally::new(CountFrom::FirstWord);
        assert_eq!(follow(&mut tally, vec![replica("a", &["shape"], 1)]), Counts::default(), "that was before us");
        let counts = follow(&mut tally, vec![replica("a", &["shape", "section", "shape"], 3)]);
        assert_eq!(counts.reloads, BTreeMap::from([("section".to_owned(), 1), ("shape".to_owned(), 1)]));
        assert_eq!(counts.runtime_commands, 20);
        assert_eq!(follow(&mut tally, vec![]), counts);
        follow(&mut tally, vec![replica("b", &[], 0)]);
        assert_eq!(follow(&mut tally, vec![replica("b", &["drift"], 1)]).reloads.values().sum::<u64>(), 3);
        follow(&mut tally, vec![replica("b", &["drift", "drift"], 5)]);
        let anew = follow(&mut tally, vec![replica("b", &["start"], 1)]);
        assert_eq!(anew.reloads.get("start"), Some(&1));
        assert_eq!(anew.reloads.get("other"), Some(&2), "more than what is remembered");
    }

    #[test]
    fn where_replicas_begin_with_this_process_their_first_word_counts() {
        let mut tally = Tally::new(CountFrom::Start);
        assert_eq!(follow(&mut tally, vec![replica("a", &["shape"], 1)]).reloads.get("shape"), Some(&1));
    }

    #[test]
    fn a_refusal_counts_once_and_again_when_it_comes_back() {
        let mut tally = Tally::new(CountFrom::Start);
        let refusal = Refusal { generation: 3, object: None, message: "no".into() };
        let with = || Replica { name: "a".into(), refused: vec![refusal.clone()], ..Replica::default() };
        assert_eq!(follow(&mut tally, vec![with()]).refusals, 1);
        assert_eq!(follow(&mut tally, vec![with()]).refusals, 1);
        follow(&mut tally, vec![Replica { name: "a".into(), ..Replica::default() }]);
        assert_eq!(follow(&mut tally, vec![with()]).refusals, 2);
    }
}
