//! Which fleet is meant. Pure.

use crate::admin::Target;
use crate::cli::Error;
use crate::status::json::{Fleet, Status};
use std::str::FromStr;

/// A fleet as people name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FleetName {
    namespace: Option<String>,
    name: String,
}

impl FromStr for FleetName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (namespace, name) = match text.split_once('/') {
            Some((namespace, name)) => (Some(namespace.to_owned()), name),
            None => (None, text),
        };
        if name.is_empty() || name.contains('/') || namespace.as_deref() == Some("") {
            return Err(format!("{text:?} names no fleet: write NAME or NAMESPACE/NAME"));
        }
        Ok(Self { namespace, name: name.to_owned() })
    }
}

impl FleetName {
    pub(super) fn namespace(&self) -> Option<&String> {
        self.namespace.as_ref()
    }

    fn is_of(&self, fleet: &Fleet) -> bool {
        fleet.name == self.name && self.namespace.as_ref().is_none_or(|namespace| fleet.namespace == *namespace)
    }
}

/// The one fleet that is `named`, or that has `target`.
pub(super) fn fleet<'s>(status: &'s Status, named: Option<&FleetName>, target: Option<&Target>) -> Result<&'s Fleet, Error> {
    let all: Vec<&Fleet> = status.fleets.iter().collect();
    let found: Vec<&Fleet> = match (named, target) {
        (Some(named), _) => all.iter().copied().filter(|fleet| named.is_of(fleet)).collect(),
        (None, Some(target)) if all.len() > 1 => all.iter().copied().filter(|fleet| has(fleet, target)).collect(),
        (None, _) => all.clone(),
    };
    match (&found[..], &all[..]) {
        ([fleet], _) => Ok(fleet),
        (_, []) => Err(Error::new("there is no fleet", "give an IngressDeployment")),
        ([], _) => Err(Error::new("no such fleet is there", format_args!("name one of {}", names(&all)))),
        (several, _) => Err(Error::new("which fleet is meant cannot be told", format_args!("name one of {}", names(several)))),
    }
}

fn has(fleet: &Fleet, target: &Target) -> bool {
    match target {
        Target::Pod(name) => fleet.replicas.iter().any(|replica| replica.name == *name),
        // which pods are on it is for the fleet to know
        Target::Node(_) => false,
        Target::Zone(name) => fleet.rollout.iter().flat_map(|rollout| &rollout.zones).any(|zone| zone.name.as_ref() == Some(name)),
    }
}

fn names(fleets: &[&Fleet]) -> String {
    fleets.iter().map(|fleet| format!("{}/{}", fleet.namespace, fleet.name)).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::status::json::Replica;

    fn status(fleets: &[(&str, &str)]) -> Status {
        let fleet = |(namespace, name): &(&str, &str)| Fleet {
            namespace: (*namespace).into(),
            name: (*name).into(),
            replicas: vec![Replica { name: format!("{name}-0"), ..Replica::default() }],
            ..Fleet::default()
        };
        Status { fleets: fleets.iter().map(fleet).collect(), ..Status::default() }
    }

    #[test]
    fn a_fleet_is_found_by_its_name_by_what_it_has_or_as_the_only_one() {
        let pick = |status: &Status, named: Option<&str>, target: Option<&str>| {
            let named = named.map(|named| named.parse().unwrap());
            let target = target.map(|target| target.parse().unwrap());
            fleet(status, named.as_ref(), target.as_ref()).map(|fleet| fleet.namespace.clone()).map_err(|error| error.to_string())
        };
        let one = status(&[("a", "edge")]);
        let three = status(&[("a", "edge"), ("b", "edge"), ("b", "inner")]);
        assert_eq!(pick(&one, None, None).unwrap(), "a");
        assert_eq!(pick(&three, Some("inner"), None).unwrap(), "b");
        assert_eq!(pick(&three, Some("b/edge"), None).unwrap(), "b");
        assert_eq!(pick(&three, None, Some("pod/inner-0")).unwrap(), "b");
        assert!(pick(&three, None, None).unwrap_err().contains("name one of a/edge, b/edge, b/inner"));
        assert!(pick(&three, Some("edge"), None).unwrap_err().contains("name one of a/edge, b/edge"));
        assert!(pick(&three, Some("other"), None).unwrap_err().contains("no such fleet is there"));
        assert!(pick(&status(&[]), None, None).unwrap_err().contains("there is no fleet"));
        assert!("a/b/c".parse::<FleetName>().is_err() && "/c".parse::<FleetName>().is_err());
    }
}
