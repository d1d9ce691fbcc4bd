//! How the fleets of one class share it: by age. A route is of the oldest fleet that selects it, and of no other.

use crate::api::{Ingress, IngressDeployment, Shard};
use crate::world::World;
use std::sync::Arc;

/// A fleet and its place in its class.
#[derive(Clone, Debug)]
pub struct Place<'w> {
    /// The fleet.
    pub fleet: &'w Arc<IngressDeployment>,
    /// What it selects.
    pub shard: Shard,
    /// The older fleet that leaves nothing to it. Then it serves nothing.
    pub taken_by: Option<&'w Arc<IngressDeployment>>,
}

/// The fleets that name `class`, the oldest first.
pub fn places<'w>(world: &'w World, class: &str) -> Vec<Place<'w>> {
    let mut fleets: Vec<_> = world.ingress_deployments().filter(|fleet| fleet.spec.ingress_class_name == class).collect();
    fleets.sort_by(|a, b| a.meta.older_first(&b.meta));
    let mut places: Vec<Place<'w>> = Vec::new();
    for fleet in fleets {
        let shard = fleet.spec.shard();
        let leaves_nothing = |elder: &&Place<'_>| elder.taken_by.is_none() && (elder.shard.is_whole() || elder.shard == shard);
        let taken_by = places.iter().find(leaves_nothing).map(|elder| elder.fleet);
        places.push(Place { fleet, shard, taken_by });
    }
    places
}

/// Whether `shard` has `ingress`.
pub fn takes(shard: &Shard, world: &World, ingress: &Ingress) -> bool {
    shard.is_whole() || shard.takes(&ingress.meta, world.namespace(&ingress.meta.namespace).map(AsRef::as_ref))
}
