//! How the replicas of a fleet are shared out over its zones.

use std::sync::Arc;

/// A listed zone with what is said about its size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneSize {
    /// Its name.
    pub name: Arc<str>,
    /// Its own number of replicas; excludes a total.
    pub replicas: Option<u32>,
}

/// One replica of a fleet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Replica {
    /// Its zone, if zones are listed.
    pub zone: Option<Arc<str>>,
    /// Its number in the zone, from 0.
    pub index: u32,
}

impl Replica {
    /// Its name in a fleet called `fleet`: stable as long as its zone keeps at least that many replicas.
    pub fn name(&self, fleet: &str) -> String {
        match &self.zone {
            Some(zone) => format!("{fleet}-{zone}-{}", self.index),
            None => format!("{fleet}-{}", self.index),
        }
    }
}

/// The replicas of a fleet: `total` of them shared by the listed zones by largest remainder in their order
/// (with equal shares: the first zones get the extra ones), or what each zone says itself.
pub fn replicas(total: u32, zones: &[ZoneSize]) -> Vec<Replica> {
    if zones.is_empty() {
        return (0..total).map(|index| Replica { zone: None, index }).collect();
    }
    let count = u32::try_from(zones.len()).unwrap_or(u32::MAX);
    let own_sizes = zones.iter().any(|zone| zone.replicas.is_some());
    let share = |position: u32| total / count + u32::from(position < total % count);
    zones
        .iter()
        .zip(0u32..)
        .flat_map(|(zone, position)| {
            let size = if own_sizes { zone.replicas.unwrap_or(0) } else { share(position) };
            (0..size).map(|index| Replica { zone: Some(zone.name.clone()), index })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zones(sizes: &[(&str, Option<u32>)]) -> Vec<ZoneSize> {
        sizes.iter().map(|(name, replicas)| ZoneSize { name: (*name).into(), replicas: *replicas }).collect()
    }

    fn names(total: u32, sizes: &[(&str, Option<u32>)]) -> Vec<String> {
        replicas(total, &zones(sizes)).iter().map(|replica| replica.name("edge")).collect()
    }

    #[test]
    fn without_zones_replicas_are_numbered() {
        assert_eq!(names(2, &[]), ["edge-0", "edge-1"]);
    }

    #[test]
    fn listed_zones_share_the_total_and_the_first_ones_get_the_remainder() {
        assert_eq!(names(5, &[("a", None), ("b", None), ("c", None)]), ["edge-a-0", "edge-a-1", "edge-b-0", "edge-b-1", "edge-c-0"]);
    }

    #[test]
    fn fewer_replicas_than_zones_leave_the_last_zones_empty() {
        assert_eq!(names(1, &[("a", None), ("b", None)]), ["edge-a-0"]);
    }

    #[test]
    fn a_zone_may_say_its_own_size() {
        assert_eq!(names(9, &[("a", Some(1)), ("b", Some(2))]), ["edge-a-0", "edge-b-0", "edge-b-1"]);
    }
}
