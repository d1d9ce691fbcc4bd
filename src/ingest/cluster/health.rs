//! How the watches are: what metrics and the log say of them. Pure.

use super::source::{Resource, Source};
use super::watch::News;
use std::collections::BTreeMap;
use std::time::SystemTime;

/// How one watch is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum WatchState {
    /// It has not told all there is yet.
    #[default]
    Starting,
    /// It tells what happens.
    Up,
    /// It does not work at present, and is tried again.
    Failing,
    /// The API server answers with 401 or 403.
    Forbidden,
    /// The cluster has no such kind.
    Absent,
}

impl WatchState {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Starting, Self::Up, Self::Failing, Self::Forbidden, Self::Absent];

    /// As metrics name it.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Up => "up",
            Self::Failing => "failing",
            Self::Forbidden => "forbidden",
            Self::Absent => "absent",
        }
    }
}

/// How the watches of one kind are: one, or one for each namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KindHealth {
    /// Watches in each state; those that are in none of them are not there.
    pub watches: BTreeMap<WatchState, usize>,
    /// Objects that were told as there, changed or gone.
    pub events: u64,
    /// When the last of them was.
    pub last_event: Option<SystemTime>,
    /// How often one had to begin anew with all there is.
    pub restarts: u64,
    /// How often one was turned away.
    pub forbidden: u64,
    /// Whether it was told that one of them is lost, and not yet that all are back.
    lost: bool,
}

/// How all watches are, and what waits to be passed on.
#[derive(Clone, Debug, Default)]
pub struct Health {
    sources: BTreeMap<Source, WatchState>,
    kinds: BTreeMap<Resource, KindHealth>,
    /// Changes that are held back.
    pub waiting: usize,
    /// Changes that a later one of the same object overtook while they were held back.
    pub coalesced: u64,
}

/// News for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// A kind is read no more, or not all of it: why.
    Lost(String),
    /// It is again.
    Back,
}

impl Health {
    /// The kinds, as `PLURAL.GROUP`, which is how `kubectl` and roles name them.
    pub fn kinds(&self) -> impl Iterator<Item = (String, &KindHealth)> {
        self.kinds.iter().map(|(resource, health)| (resource.qualified(), health))
    }

    /// A watch begins.
    pub(super) fn start(&mut self, source: &Source) {
        if self.sources.insert(source.clone(), WatchState::Starting).is_none() {
            *self.kind(source).watches.entry(WatchState::Starting).or_default() += 1;
        }
    }

    /// A watch is needed no more.
    pub(super) fn stop(&mut self, source: &Source) {
        if let Some(state) = self.sources.remove(source) {
            self.kind(source).leave(state);
        }
    }

    /// Takes in what a watch tells at `now`.
    pub(super) fn hear(&mut self, source: &Source, news: &News, now: SystemTime) -> Option<Turn> {
        let before = *self.sources.get(source)?;
        let kind = self.kind(source);
        let (after, why) = match news {
            News::Listing => return None,
            News::Listed => {
                kind.restarts += u64::from(before != WatchState::Starting);
                (WatchState::Up, "")
            }
            News::Found(_) | News::Gone(_) => {
                kind.events += 1;
                kind.last_event = Some(now);
                // before all is told, it is not known whether all can be read; after a failure a list says so
                return None;
            }
            News::Absent => (WatchState::Absent, "the cluster has no such kind"),
            News::Forbidden(why) => {
                kind.forbidden += 1;
                (WatchState::Forbidden, why.as_str())
            }
            News::Failed(why) => (WatchState::Failing, why.as_str()),
        };
        if after != before {
            kind.leave(before);
            *kind.watches.entry(after).or_default() += 1;
            self.sources.insert(source.clone(), after);
        }
        let kind = self.kind(source);
        let is_lost = [WatchState::Failing, WatchState::Forbidden].iter().any(|state| kind.watches.contains_key(state))
            || kind.watches.contains_key(&WatchState::Absent) && !source.resource.is_optional();
        let was_lost = std::mem::replace(&mut kind.lost, is_lost);
        match (was_lost, is_lost) {
            (false, true) => Some(Turn::Lost(why.to_owned())),
            (true, false) => Some(Turn::Back),
            _ => None,
        }
    }

    fn kind(&mut self, source: &Source) -> &mut KindHealth {
        self.kinds.entry(source.resource).or_default()
    }
}

impl KindHealth {
    fn leave(&mut self, state: WatchState) {
        let Some(count) = self.watches.get_mut(&state) else { return };
        *count -= 1;
        if *count == 0 {
            self.watches.remove(&state);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::report::{Kind, ObjectRef};

    fn source(namespace: &str) -> Source {
        Source { resource: Resource::ConfigMaps, namespace: Some(namespace.into()) }
    }

    fn hear(health: &mut Health, namespace: &str, news: &News) -> Option<Turn> {
        health.hear(&source(namespace), news, SystemTime::UNIX_EPOCH)
    }

    fn of_kind(health: &Health) -> (String, KindHealth) {
        health.kinds().next().map(|(name, kind)| (name, kind.clone())).unwrap()
    }

    #[test]
    fn an_outage_is_told_once_for_a_kind_and_its_end_once_when_all_of_it_is_back() {
        let mut health = Health::default();
        for namespace in ["a", "b"] {
            health.start(&source(namespace));
            assert_eq!(hear(&mut health, namespace, &News::Listing), None);
            assert_eq!(hear(&mut health, namespace, &News::Listed), None);
        }
        let failed = || News::Failed("connection refused".into());
        assert_eq!(hear(&mut health, "a", &failed()), Some(Turn::Lost("connection refused".into())));
        assert_eq!([hear(&mut health, "b", &failed()), hear(&mut health, "a", &failed())], [None, None]);
        hear(&mut health, "a", &News::Listing);
        assert_eq!(hear(&mut health, "a", &News::Listed), None, "b is still lost");
        hear(&mut health, "b", &News::Listing);
        assert_eq!(hear(&mut health, "b", &News::Listed), Some(Turn::Back));
        let (name, kind) = of_kind(&health);
        assert_eq!((name.as_str(), kind.watches, kind.restarts), ("configmaps", BTreeMap::from([(WatchState::Up, 2)]), 2));
    }

    #[test]
    fn who_is_turned_away_again_and_again_is_told_so_once_and_counted_each_time() {
        let mut health = Health::default();
        health.start(&source("a"));
        let forbidden = || News::Forbidden("403".into());
        assert_eq!(hear(&mut health, "a", &forbidden()), Some(Turn::Lost("403".into())));
        assert_eq!(hear(&mut health, "a", &forbidden()), None);
        let (_, kind) = of_kind(&health);
        assert_eq!((kind.forbidden, kind.watches), (2, BTreeMap::from([(WatchState::Forbidden, 1)])));
    }

    #[test]
    fn an_optional_kind_that_is_not_there_is_nothing_to_be_told() {
        let mut health = Health::default();
        let optional = Source { resource: Resource::HaproxyOrgBackends, namespace: None };
        health.start(&optional);
        assert_eq!(health.hear(&optional, &News::Absent, SystemTime::UNIX_EPOCH), None);
        assert_eq!(of_kind(&health).0, "backends.ingress.v3.haproxy.org");
    }

    #[test]
    fn events_are_counted_with_the_time_of_the_last_one_and_a_watch_that_is_stopped_counts_no_more() {
        let mut health = Health::default();
        health.start(&source("a"));
        let gone = News::Gone(ObjectRef::new(Kind::ConfigMap, "a", "x"));
        hear(&mut health, "a", &gone);
        let (_, kind) = of_kind(&health);
        assert_eq!((kind.events, kind.last_event), (1, Some(SystemTime::UNIX_EPOCH)));
        health.stop(&source("a"));
        assert_eq!(of_kind(&health).1.watches, BTreeMap::new());
        assert_eq!(hear(&mut health, "a", &News::Listed), None);
    }
}
