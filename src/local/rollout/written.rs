//! What is drained by hand, in a file: each target as people write it.

use crate::admin::Target;
use serde::{Deserialize, Deserializer, Serializer};
use std::collections::BTreeMap;

pub(super) fn serialize<S: Serializer>(drains: &BTreeMap<Target, bool>, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(drains.iter().map(|(target, force)| (target.to_string(), force)))
}

pub(super) fn deserialize<'d, D: Deserializer<'d>>(from: D) -> Result<BTreeMap<Target, bool>, D::Error> {
    let written = BTreeMap::<String, bool>::deserialize(from)?;
    // what names nothing drains nothing
    Ok(written.into_iter().filter_map(|(target, force)| Some((target.parse().ok()?, force))).collect())
}
