//! The rules of the election. Pure: time comes in by argument.
//!
//! A replica that waits counts from the moment when *it* saw the Lease change last; after the whole duration without a
//! change it may take over. A replica that leads counts from the moment when it *sent* the write that was accepted last,
//! and gives up after two thirds of the duration. So the claims of two replicas stay apart as long as their clocks run
//! at rates that differ by less than a half. Every write replaces the version that was read, or it is refused.

use std::time::Duration;

/// A moment of the local monotonic clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Moment(pub(super) Duration);

impl Moment {
    fn after(self, time: Duration) -> Self {
        Self(self.0 + time)
    }
}

/// How long everything takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Timing {
    /// Without a change for so long, the Lease may be taken over.
    pub duration: Duration,
    /// A leader writes so often.
    pub renew: Duration,
    /// A leader that could not write for so long gives up.
    pub deadline: Duration,
    /// One that waits reads so often; what failed is tried again after so long.
    pub retry: Duration,
}

impl Default for Timing {
    /// A leader that is killed is replaced within 18 s.
    fn default() -> Self {
        Self {
            duration: Duration::from_secs(15),
            renew: Duration::from_secs(5),
            deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

/// What of a Lease matters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Record {
    /// Who leads; empty if it was released.
    pub(super) holder: String,
    /// How often the leader has changed.
    pub(super) transitions: u64,
    /// The version of the object: changes with every write.
    pub(super) version: String,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Action {
    /// Read the Lease.
    Read,
    /// Write it.
    Write(Write),
    /// Nothing before this moment.
    Wait(Moment),
    /// Nothing any more: this replica has left.
    End,
}

/// Why the Lease is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Purpose {
    Acquire,
    Renew,
    Release,
}

/// A write that is accepted only if nobody wrote in between.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Write {
    pub(super) purpose: Purpose,
    /// Empty to release it.
    pub(super) holder: String,
    pub(super) transitions: u64,
    /// The version that it replaces. None: there is no Lease yet.
    pub(super) replaces: Option<String>,
}

/// A claim to lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub(super) term: u64,
    /// When the write that was accepted last was sent.
    since: Moment,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Seen {
    /// None: there is no Lease.
    record: Option<Record>,
    /// When it was first seen like this.
    since: Moment,
    /// When it was read last.
    read: Moment,
}

/// What one replica knows.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Election {
    me: String,
    timing: Timing,
    seen: Option<Seen>,
    /// The last read or write may be outdated: read before anything else.
    is_outdated: bool,
    held: Option<Held>,
    /// After a failure: nothing before this.
    pause: Option<Moment>,
    leaves: bool,
    /// The highest term that anybody obeys: a Lease that was lost and made anew goes on above it.
    floor: u64,
}

impl Election {
    /// `me` is a name that no other process has, not even an earlier one of the same pod.
    pub(super) fn new(me: String, timing: Timing) -> Self {
        Self { me, timing, seen: None, is_outdated: true, held: None, pause: None, leaves: false, floor: 0 }
    }

    /// Somebody obeys `term`.
    pub(super) fn hear_of(&mut self, term: u64) {
        self.floor = self.floor.max(term);
    }

    /// The claim at `now`, and until when it is good.
    pub(super) fn claim(&self, now: Moment) -> Option<(u64, Moment)> {
        let held = self.held.filter(|_| !self.leaves)?;
        let until = held.since.after(self.timing.deadline);
        (now < until).then_some((held.term, until))
    }

    /// The term of the Lease as it was read or written last.
    pub(super) fn known_term(&self) -> u64 {
        self.seen.as_ref().and_then(|seen| seen.record.as_ref()).map_or(0, |record| record.transitions)
    }

    pub(super) fn next(&self, now: Moment) -> Action {
        if let Some(pause) = self.pause.filter(|pause| now < *pause) {
            return Action::Wait(pause);
        }
        let Some(seen) = self.seen.as_ref().filter(|_| !self.is_outdated) else {
            let has_nothing = self.leaves && self.held.is_none();
            return if has_nothing { Action::End } else { Action::Read };
        };
        if self.leaves {
            return self.leaving(seen);
        }
        if self.claim(now).is_some() {
            let renew = self.held.map_or(now, |held| held.since.after(self.timing.renew));
            return if now < renew { Action::Wait(renew) } else { self.renewal(now).map_or(Action::Read, Action::Write) };
        }
        let expiry = seen.since.after(self.timing.duration);
        let is_free = seen.record.as_ref().is_none_or(|record| record.holder.is_empty() || record.holder == self.me);
        if is_free || expiry <= now {
            return Action::Write(self.write(Purpose::Acquire, seen, |transitions| transitions.max(self.floor) + 1));
        }
        let again = seen.read.after(self.timing.retry);
        if again <= now { Action::Read } else { Action::Wait(again.min(expiry)) }
    }

    /// A write that keeps the claim, if there is one and it is known what it replaces.
    pub(super) fn renewal(&self, now: Moment) -> Option<Write> {
        self.claim(now)?;
        let seen = self.seen.as_ref().filter(|_| !self.is_outdated)?;
        // a leader below what others obey leads nobody: it takes a higher term
        Some(self.write(Purpose::Renew, seen, |transitions| if transitions < self.floor { self.floor + 1 } else { transitions }))
    }

    fn leaving(&self, seen: &Seen) -> Action {
        let is_mine = seen.record.as_ref().is_some_and(|record| record.holder == self.me);
        if !is_mine {
            return Action::End;
        }
        Action::Write(Write { holder: String::new(), ..self.write(Purpose::Release, seen, |transitions| transitions) })
    }

    fn write(&self, purpose: Purpose, seen: &Seen, transitions: impl Fn(u64) -> u64) -> Write {
        Write {
            purpose,
            holder: self.me.clone(),
            transitions: transitions(seen.record.as_ref().map_or(0, |record| record.transitions)),
            replaces: seen.record.as_ref().map(|record| record.version.clone()),
        }
    }

    /// The Lease was read at `now`, or was not there.
    pub(super) fn read(&mut self, now: Moment, record: Option<Record>) {
        let term = self.held.map(|held| held.term);
        let is_mine = record.as_ref().is_some_and(|record| record.holder == self.me && Some(record.transitions) == term);
        if !is_mine {
            self.held = None;
        }
        let since = self.seen.as_ref().filter(|seen| seen.record == record).map_or(now, |seen| seen.since);
        self.seen = Some(Seen { record, since, read: now });
        self.is_outdated = false;
        self.pause = None;
    }

    /// A write that was sent at `sent` was accepted, and the answer came at `now`.
    pub(super) fn wrote(&mut self, sent: Moment, now: Moment, write: Write, version: String) {
        self.held = match write.purpose {
            Purpose::Release => None,
            Purpose::Acquire | Purpose::Renew => Some(Held { term: write.transitions, since: sent }),
        };
        let record = Record { holder: write.holder, transitions: write.transitions, version };
        self.seen = Some(Seen { record: Some(record), since: now, read: now });
        self.is_outdated = false;
        self.pause = None;
    }

    /// Somebody else wrote in between.
    pub(super) fn refused(&mut self) {
        self.is_outdated = true;
    }

    /// No answer, or one that says nothing. Whether a write was done is not known.
    pub(super) fn failed(&mut self, now: Moment) {
        self.is_outdated = true;
        self.pause = Some(now.after(self.timing.retry));
    }

    /// Gives the Lease back, if this replica holds it, and takes part no more.
    pub(super) fn leave(&mut self) {
        self.leaves = true;
        self.pause = None;
    }
}
