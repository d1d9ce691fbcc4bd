//! Zones: whether a pod keeps to the servers of its own, and the shares that servers have in it. Pure.
//!
//! Every pod of a fleet has the same bundle, so what differs is worked out in the pod: from what is known of the servers,
//! where the pod is, and whether it kept to its zone before. Servers that HAProxy finds dead are none of it: HAProxy goes
//! on to the others by itself, which have a small share and not none for that.

use super::bundle::{Server, Servers};
use std::collections::BTreeSet;

/// The share of a server of another zone: the least that HAProxy still sends requests to.
const FAR: u16 = 1;
/// The share of the largest server of the pod's own zone.
const NEAR: u32 = 256;

/// Whether a pod in `zone` keeps to the servers of that zone, if it did (`kept`) before.
///
/// They have to be enough (`min_ready`), and enough for what the zone has to take: a fair share is an equal part for each
/// zone that has servers. Whoever keeps to its zone leaves that only below two thirds of the share that it began with, so
/// that a single server that comes and goes moves nothing.
pub fn keeps(servers: &Servers, zone: &str, kept: bool) -> bool {
    let Some(rule) = servers.zones else { return false };
    let ready = || servers.iter().filter(|server| !server.drain && server.weight > 0);
    let near = ready().filter(|server| server.zone.as_deref() == Some(zone)).count();
    let all = ready().count();
    let zones = ready().filter_map(|server| server.zone.as_deref()).collect::<BTreeSet<_>>().len();
    // near of all, against one of so many zones, in percent; in thirds of that
    let has = near * zones * 300;
    let needs = all * usize::from(rule.min_share) * if kept { 2 } else { 3 };
    near > 0 && near < all && near >= usize::from(rule.min_ready) && has >= needs
}

/// The servers with the shares that they have in a pod in `zone`, which keeps to that zone if `keeps`.
pub fn weigh(servers: &Servers, zone: &str, keeps: bool) -> Servers {
    let is_near = |server: &Server| server.zone.as_deref() == Some(zone);
    let most = servers.iter().filter(|server| is_near(server)).map(|server| u32::from(server.weight)).max().unwrap_or_default().max(1);
    let share = |server: &Server| match server.weight {
        0 => 0,
        weight if is_near(server) => u16::try_from((u32::from(weight) * NEAR / most).max(1)).unwrap_or(u16::MAX),
        _ => FAR,
    };
    let all = servers.iter().map(|server| Server { here: keeps.then(|| share(server)), ..server.clone() }).collect();
    Servers { all, zones: servers.zones }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::haproxy::files::effective_weight;
    use crate::model::ZoneRule;
    use proptest::prelude::*;

    const RULE: ZoneRule = ZoneRule { min_ready: 2, min_share: 75 };

    /// Servers of these zones, each with its weight.
    fn servers(of: &[(&str, u16)]) -> Servers {
        let server = |(number, (zone, weight)): (u16, &(&str, u16))| Server {
            name: format!("s{number:03}").into(),
            address: format!("10.0.0.1:{}", number + 1).parse().unwrap(),
            id: 1,
            guid: "".into(),
            keywords: "".into(),
            checked: false,
            weight: *weight,
            drain: false,
            zone: (!zone.is_empty()).then(|| (*zone).into()),
            here: None,
        };
        Servers { all: (0..).zip(of).map(server).collect(), zones: Some(RULE) }
    }

    /// So many servers in each of `a`, `b`, …
    fn counts(of: &[usize]) -> Servers {
        let zones = ["a", "b", "c", "d"];
        servers(&of.iter().zip(zones).flat_map(|(count, zone)| vec![(zone, 1); *count]).collect::<Vec<_>>())
    }

    #[test]
    fn a_zone_with_enough_for_its_share_is_kept_to() {
        assert!(keeps(&counts(&[2, 2, 2]), "a", false));
        assert!(keeps(&counts(&[3, 4, 4]), "a", false), "3 of 3.7");
        assert!(!keeps(&counts(&[2, 4, 4]), "a", false), "2 of 3.3");
        assert!(!keeps(&counts(&[1, 1, 1]), "a", false), "fewer than two");
        assert!(!keeps(&counts(&[0, 2, 2]), "a", false), "none");
        assert!(!keeps(&counts(&[2, 2, 2]), "elsewhere", false));
    }

    #[test]
    fn a_zone_that_is_kept_to_is_left_later_than_it_was_begun_with() {
        let fewer = counts(&[2, 4, 4]);
        assert!(keeps(&fewer, "a", true) && !keeps(&fewer, "a", false));
        assert!(keeps(&counts(&[2, 5, 5]), "a", true), "2 of 4: exactly two thirds of 75 %");
        assert!(!keeps(&counts(&[2, 5, 6]), "a", true));
        assert!(!keeps(&counts(&[1, 1, 1]), "a", true), "the least number has no such margin");
    }

    #[test]
    fn what_takes_no_new_work_does_not_count() {
        let mut all = counts(&[2, 2]);
        assert!(keeps(&all, "a", false));
        all.all[0].drain = true;
        assert!(!keeps(&all, "a", false));
        assert!(!keeps(&servers(&[("a", 0), ("a", 1), ("b", 1), ("b", 1)]), "a", false));
    }

    #[test]
    fn servers_whose_zone_is_not_known_are_far_and_count_as_ready() {
        let all = servers(&[("a", 1), ("a", 1), ("", 1)]);
        assert!(!keeps(&all, "a", false), "2 of 3 for the only zone that is known");
        let shares: Vec<Option<u16>> = weigh(&all, "a", true).iter().map(|server| server.here).collect();
        assert_eq!(shares, [Some(256), Some(256), Some(1)]);
    }

    #[test]
    fn without_a_rule_no_zone_is_kept_to() {
        let all = Servers { zones: None, ..counts(&[2, 2]) };
        assert!(!keeps(&all, "a", true));
    }

    #[test]
    fn ratios_of_the_own_zone_stay_and_the_others_have_the_least() {
        let all = servers(&[("a", 20), ("a", 10), ("a", 0), ("b", 200), ("b", 0)]);
        let shares: Vec<Option<u16>> = weigh(&all, "a", true).iter().map(|server| server.here).collect();
        assert_eq!(shares, [Some(256), Some(128), Some(0), Some(1), Some(0)]);
        let left = weigh(&weigh(&all, "a", true), "a", false);
        assert_eq!(left, all);
    }

    proptest! {
        #[test]
        fn whoever_takes_requests_takes_some_from_every_zone(
            of in proptest::collection::vec((0..4_usize, 0..=256_u16), 0..12), kept: bool,
        ) {
            let zones = ["a", "b", "c", ""];
            let all = servers(&of.iter().map(|(zone, weight)| (zones[*zone], *weight)).collect::<Vec<_>>());
            let keeps = keeps(&all, "a", kept);
            for (before, server) in all.iter().zip(weigh(&all, "a", keeps).iter()) {
                let here = effective_weight(server);
                prop_assert!(here <= 256);
                prop_assert_eq!(here == 0, before.weight == 0);
            }
        }
    }
}
