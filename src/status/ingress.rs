//! Which addresses stand in the status of every Ingress, and which should. Pure.
//!
//! An Ingress says the addresses of the fleet that serves it, and none while that fleet cannot be reached: whoever makes
//! DNS records from it (external-dns) then leads nobody to a dead end.

use crate::report::ObjectRef;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// A way in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Point {
    /// An address.
    Ip(IpAddr),
    /// A name, as some clouds give.
    Hostname(Box<str>),
}

impl Point {
    /// As text.
    pub fn parse(text: &str) -> Self {
        text.parse().map_or_else(|_| Self::Hostname(text.into()), Self::Ip)
    }
}

/// Ways in, in order.
pub type Points = Arc<[Point]>;

/// One Ingress.
#[derive(Debug)]
struct Entry {
    /// Who serves it.
    fleet: Option<ObjectRef>,
    /// What its status says.
    says: Points,
}

/// What all Ingresses say and should say.
#[derive(Debug, Default)]
pub struct Ingresses {
    entries: BTreeMap<ObjectRef, Entry>,
    reachable: BTreeMap<ObjectRef, Points>,
    due: BTreeSet<ObjectRef>,
}

impl Ingresses {
    /// The Ingress `ingress` is there, served by `fleet`, and its status says `says`.
    pub fn observe(&mut self, ingress: &ObjectRef, fleet: Option<&ObjectRef>, says: Points) {
        let before = self.entries.insert(ingress.clone(), Entry { fleet: fleet.cloned(), says });
        // whoever serves it now writes for himself; what is ours is taken back
        let left = before.and_then(|before| before.fleet).filter(|_| fleet.is_none());
        let ours = left.and_then(|fleet| self.reachable.get(&fleet).cloned());
        let stale = ours.is_some_and(|ours| !ours.is_empty() && self.says(ingress) == Some(&ours));
        if stale || self.wanted(ingress).is_some_and(|wanted| self.says(ingress) != Some(&wanted)) {
            self.due.insert(ingress.clone());
        } else {
            self.due.remove(ingress);
        }
    }

    /// Who serves which may have changed: `fleet_of` says it of every Ingress.
    pub fn assign(&mut self, fleet_of: impl Fn(&ObjectRef) -> Option<ObjectRef>) {
        let moved: Vec<(ObjectRef, Option<ObjectRef>, Points)> = self
            .entries
            .iter()
            .map(|(ingress, entry)| (ingress, fleet_of(ingress), entry))
            .filter(|(_, fleet, entry)| *fleet != entry.fleet)
            .map(|(ingress, fleet, entry)| (ingress.clone(), fleet, entry.says.clone()))
            .collect();
        for (ingress, fleet, says) in moved {
            self.observe(&ingress, fleet.as_ref(), says);
        }
    }

    /// The Ingress `ingress` is gone.
    pub fn forget(&mut self, ingress: &ObjectRef) {
        self.entries.remove(ingress);
        self.due.remove(ingress);
    }

    /// The fleet `fleet` is reached by `points`; by none while it cannot be.
    pub fn reach(&mut self, fleet: &ObjectRef, points: &Points) {
        if self.reachable.get(fleet) == Some(points) {
            return;
        }
        self.reachable.insert(fleet.clone(), points.clone());
        for (ingress, entry) in self.entries.iter().filter(|(_, entry)| entry.fleet.as_ref() == Some(fleet)) {
            if entry.says == *points {
                self.due.remove(ingress);
            } else {
                self.due.insert(ingress.clone());
            }
        }
    }

    /// Whether no Ingress says an address of `fleet` any more that it should not.
    pub fn is_withdrawn(&self, fleet: &ObjectRef) -> bool {
        let of_fleet = self.entries.values().filter(|entry| entry.fleet.as_ref() == Some(fleet));
        self.reachable.get(fleet).is_none_or(|points| points.is_empty()) && of_fleet.into_iter().all(|entry| entry.says.is_empty())
    }

    /// At most `limit` Ingresses whose status has to be written, with what it should say.
    pub fn due(&self, limit: usize) -> Vec<(ObjectRef, Points)> {
        let wanted = |ingress: &ObjectRef| (ingress.clone(), self.wanted(ingress).unwrap_or_default());
        self.due.iter().take(limit).map(wanted).collect()
    }

    /// How many Ingresses have a status that has to be written.
    pub fn waiting(&self) -> usize {
        self.due.len()
    }

    /// The status of `ingress` was written and says `points`.
    pub fn written(&mut self, ingress: &ObjectRef, points: Points) {
        let fleet = self.entries.get(ingress).and_then(|entry| entry.fleet.clone());
        if self.entries.contains_key(ingress) {
            self.observe(ingress, fleet.as_ref(), points);
        }
        if fleet.is_none() {
            self.due.remove(ingress);
        }
    }

    fn says(&self, ingress: &ObjectRef) -> Option<&Points> {
        self.entries.get(ingress).map(|entry| &entry.says)
    }

    /// What it should say; `None` if that is not ours to say, or not known yet.
    fn wanted(&self, ingress: &ObjectRef) -> Option<Points> {
        let fleet = self.entries.get(ingress)?.fleet.as_ref()?;
        self.reachable.get(fleet).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Kind;

    fn points(texts: &[&str]) -> Points {
        texts.iter().map(|text| Point::parse(text)).collect()
    }

    fn ingress() -> ObjectRef {
        ObjectRef::new(Kind::Ingress, "shop", "web")
    }

    fn fleet(name: &str) -> ObjectRef {
        ObjectRef::new(Kind::IngressDeployment, "infra", name)
    }

    fn due(book: &Ingresses) -> Vec<Points> {
        book.due(10).into_iter().map(|(_, points)| points).collect()
    }

    #[test]
    fn an_ingress_says_the_addresses_of_its_fleet_and_none_while_nobody_can_reach_it() {
        let mut book = Ingresses::default();
        book.observe(&ingress(), Some(&fleet("edge")), points(&[]));
        assert_eq!(due(&book), Vec::<Points>::new(), "nothing is known of the fleet yet");
        let address = points(&["192.0.2.1", "2001:db8::1", "lb.example.org"]);
        book.reach(&fleet("edge"), &address);
        assert_eq!(due(&book), std::slice::from_ref(&address));
        book.written(&ingress(), address.clone());
        assert_eq!(due(&book), Vec::<Points>::new());
        book.reach(&fleet("edge"), &points(&[]));
        assert_eq!(due(&book), [points(&[])]);
        assert!(!book.is_withdrawn(&fleet("edge")));
        book.written(&ingress(), points(&[]));
        assert!(book.is_withdrawn(&fleet("edge")));
    }

    #[test]
    fn what_somebody_else_writes_over_ours_is_put_right() {
        let mut book = Ingresses::default();
        let address = points(&["192.0.2.1"]);
        book.reach(&fleet("edge"), &address);
        book.observe(&ingress(), Some(&fleet("edge")), points(&["198.51.100.7"]));
        assert_eq!(due(&book), [address]);
    }

    #[test]
    fn an_ingress_that_leaves_us_loses_our_addresses_and_keeps_those_of_others() {
        let mut book = Ingresses::default();
        let address = points(&["192.0.2.1"]);
        book.reach(&fleet("edge"), &address);
        book.observe(&ingress(), Some(&fleet("edge")), address.clone());
        book.observe(&ingress(), None, address.clone());
        assert_eq!(due(&book), [points(&[])]);
        book.written(&ingress(), points(&[]));
        assert_eq!(due(&book), Vec::<Points>::new());
        book.observe(&ingress(), Some(&fleet("edge")), address);
        book.observe(&ingress(), None, points(&["198.51.100.7"]));
        assert_eq!(due(&book), Vec::<Points>::new());
    }

    #[test]
    fn an_ingress_that_changes_its_fleet_says_the_new_one() {
        let mut book = Ingresses::default();
        book.reach(&fleet("edge"), &points(&["192.0.2.1"]));
        book.reach(&fleet("other"), &points(&["192.0.2.2"]));
        book.observe(&ingress(), Some(&fleet("edge")), points(&["192.0.2.1"]));
        book.observe(&ingress(), Some(&fleet("other")), points(&["192.0.2.1"]));
        assert_eq!(due(&book), [points(&["192.0.2.2"])]);
        book.forget(&ingress());
        assert_eq!(due(&book), Vec::<Points>::new());
    }
}
