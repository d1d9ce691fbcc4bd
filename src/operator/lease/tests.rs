//! The election, model-checked: every order of steps, messages, losses, crashes and ticks of clocks at different rates.

#![allow(clippy::unwrap_used)]

use super::step::{Action, Election, Moment, Record, Timing, Write};
use stateright::{Checker, Model, Property};
use std::time::Duration;

/// One tick of a perfect clock is a second; the proportions are those of the default.
const TIMING: Timing = Timing {
    duration: Duration::from_secs(6),
    renew: Duration::from_secs(2),
    deadline: Duration::from_secs(4),
    retry: Duration::from_secs(1),
};

/// What may happen, and how often.
#[derive(Clone)]
struct Bounds {
    /// How many ticks of the local clock a replica sees in 4 real ones.
    rates: Vec<u64>,
    ticks: u64,
    losses: u8,
    crashes: u8,
    leaves: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Replica {
    /// None: it has crashed.
    election: Option<Election>,
    /// A write on its way, and when it was sent. What is read is read in one step.
    sent: Option<(Moment, Write)>,
    /// A write that it has given up, and that may still arrive.
    late: Option<Write>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    ticks: u64,
    lease: Option<Record>,
    replicas: Vec<Replica>,
    losses: u8,
    crashes: u8,
    leaves: u8,
    /// The highest term that was ever claimed, and by whom.
    highest: (u64, usize),
    /// Whether a claim ever was valid beside another, of a lower term, or of the same term as another's.
    is_broken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Tick,
    /// Reads, or sends a write.
    Step(usize),
    /// The write arrives, and the answer comes back.
    Arrive(usize),
    /// The write does not arrive.
    Lose(usize),
    /// The write arrives, but the answer does not.
    LoseAnswer(usize),
    /// The replica gives up, and the write arrives later.
    Delay(usize),
    ArriveLate(usize),
    Crash(usize),
    Leave(usize),
}

impl Bounds {
    fn now(&self, state: &State, replica: usize) -> Moment {
        Moment(Duration::from_secs(state.ticks * self.rates[replica] / 4))
    }

    /// The new version, unless the write is refused.
    fn arrive(state: &mut State, write: &Write) -> Option<String> {
        if state.lease.as_ref().map(|record| &record.version) != write.replaces.as_ref() {
            return None;
        }
        let version = write.replaces.as_ref().map_or(1, |version| version.parse::<u64>().unwrap() + 1).to_string();
        let record = Record { holder: write.holder.clone(), transitions: write.transitions, version: version.clone() };
        state.lease = Some(record);
        Some(version)
    }

    /// Looks at all claims after every event: a claim is what lets writes pass.
    fn judge(&self, state: &mut State) {
        let mut valid = 0;
        for index in 0..state.replicas.len() {
            let now = self.now(state, index);
            let Some((term, _)) = state.replicas[index].election.as_ref().and_then(|election| election.claim(now)) else { continue };
            valid += 1;
            state.is_broken |= valid > 1 || term < state.highest.0 || (term == state.highest.0 && index != state.highest.1);
            state.highest = state.highest.max((term, index));
        }
    }
}

impl Model for Bounds {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        let replica = |index: usize| Replica { election: Some(Election::new(format!("replica {index}"), TIMING)), sent: None, late: None };
        vec![State {
            ticks: 0,
            lease: None,
            replicas: (0..self.rates.len()).map(replica).collect(),
            losses: 0,
            crashes: 0,
            leaves: 0,
            highest: (0, 0),
            is_broken: false,
        }]
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        if state.ticks < self.ticks {
            events.push(Event::Tick);
        }
        for (index, replica) in state.replicas.iter().enumerate() {
            if replica.late.is_some() {
                events.push(Event::ArriveLate(index));
            }
            let Some(election) = &replica.election else { continue };
            let next = election.next(self.now(state, index));
            match (&replica.sent, next) {
                (None, Action::Read | Action::Write(_)) => events.push(Event::Step(index)),
                (None, _) => {}
                (Some(_), _) => {
                    events.push(Event::Arrive(index));
                    if state.losses < self.losses {
                        events.extend([Event::Lose(index), Event::LoseAnswer(index), Event::Delay(index)]);
                    }
                }
            }
            if state.crashes < self.crashes {
                events.push(Event::Crash(index));
            }
            if state.leaves < self.leaves && election.claim(self.now(state, index)).is_some() {
                events.push(Event::Leave(index));
            }
        }
    }

    fn next_state(&self, before: &State, event: Event) -> Option<State> {
        let mut state = before.clone();
        match event {
            Event::Tick => state.ticks += 1,
            Event::Step(index) => {
                let now = self.now(&state, index);
                let replica = &mut state.replicas[index];
                let election = replica.election.as_mut()?;
                match election.next(now) {
                    Action::Read => election.read(now, state.lease.clone()),
                    Action::Write(write) => replica.sent = Some((now, write)),
                    Action::Wait(_) | Action::End => return None,
                }
            }
            Event::Arrive(index) => {
                let now = self.now(&state, index);
                let (sent, write) = state.replicas[index].sent.take()?;
                let version = Self::arrive(&mut state, &write);
                let election = state.replicas[index].election.as_mut()?;
                match version {
                    Some(version) => election.wrote(sent, now, write, version),
                    None => election.refused(),
                }
            }
            Event::Lose(index) | Event::LoseAnswer(index) | Event::Delay(index) => {
                let now = self.now(&state, index);
                state.losses += 1;
                let (_, write) = state.replicas[index].sent.take()?;
                match event {
                    Event::LoseAnswer(_) => _ = Self::arrive(&mut state, &write),
                    Event::Delay(_) => state.replicas[index].late = Some(write),
                    _ => {}
                }
                state.replicas[index].election.as_mut()?.failed(now);
            }
            Event::ArriveLate(index) => {
                let write = state.replicas[index].late.take()?;
                Self::arrive(&mut state, &write);
            }
            Event::Crash(index) => {
                state.crashes += 1;
                let replica = &mut state.replicas[index];
                replica.election = None;
                replica.late = replica.sent.take().map(|(_, write)| write).or(replica.late.take());
            }
            Event::Leave(index) => {
                state.leaves += 1;
                state.replicas[index].election.as_mut()?.leave();
            }
        }
        self.judge(&mut state);
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nobody writes beside or after a higher term", |_, state: &State| !state.is_broken),
            Property::sometimes("another replica takes over", |_, state: &State| state.highest.0 > 1 && state.highest.1 == 1),
        ]
    }
}

/// The number of different states, all of which have the properties.
fn explore(bounds: Bounds) -> usize {
    let checker = bounds.checker().spawn_bfs().join();
    checker.assert_properties();
    checker.unique_state_count()
}

#[test]
fn a_replica_that_crashes_or_loses_a_message_never_writes_beside_or_after_a_higher_term() {
    let states = explore(Bounds { rates: vec![4, 6], ticks: 5, losses: 1, crashes: 0, leaves: 0 });
    assert_eq!(states, 155_538);
    let states = explore(Bounds { rates: vec![4, 5], ticks: 6, losses: 0, crashes: 1, leaves: 0 });
    assert_eq!(states, 37_290);
}

#[test]
fn nor_does_one_that_gives_the_lease_back() {
    let states = explore(Bounds { rates: vec![4, 5], ticks: 5, losses: 0, crashes: 0, leaves: 1 });
    assert_eq!(states, 34_592);
}

#[test]
fn nor_does_one_whose_clock_is_the_slower_one() {
    let states = explore(Bounds { rates: vec![5, 4], ticks: 6, losses: 0, crashes: 0, leaves: 0 });
    assert_eq!(states, 29_684);
}

#[test]
fn nor_does_one_of_three() {
    let states = explore(Bounds { rates: vec![4, 6, 6], ticks: 4, losses: 0, crashes: 0, leaves: 0 });
    assert_eq!(states, 189_333);
}

/// The model can tell: clocks whose rates differ by more than the rules allow do break the election.
#[test]
fn clocks_at_twice_the_rate_are_found_to_be_too_fast() {
    let checker = Bounds { rates: vec![4, 8], ticks: 9, losses: 1, crashes: 0, leaves: 0 }.checker().spawn_bfs().join();
    assert!(checker.discovery("nobody writes beside or after a higher term").is_some());
}
