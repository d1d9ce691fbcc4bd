//! The zone of the pod: which shares servers have because of it. Worked out as resources come in, so that whatever plans,
//! writes or compares after that has the pod's own shares before it.

use super::apply::Applier;
use crate::haproxy::bundle::{Change, Content, Name, Resource, ResourceKey};
use crate::haproxy::zones::{keeps, weigh};
use std::sync::Arc;

impl Applier {
    /// Takes what was said about where the pod is.
    pub(crate) fn move_to_zone(&mut self) {
        let zone = self.inbox.zone();
        if zone == self.zone {
            return;
        }
        tracing::info!(?zone, before = ?self.zone, "the zone of this pod");
        self.zone = zone;
        self.weigh_all();
        let changed = self.accepted.diff(&self.wanted).into_iter().map(|change| change.key).collect();
        self.look_at(changed);
    }

    /// Gives the servers of `wanted` among `keys` the shares that they have in this pod.
    pub(crate) fn weigh(&mut self, keys: &[ResourceKey]) {
        let mut changes = Vec::new();
        for key in keys {
            let ResourceKey::Servers(backend) = key else { continue };
            let Some(before) = self.wanted.get(key).cloned() else {
                self.keeps_zone.remove(backend);
                continue;
            };
            let Some(after) = self.seen_from_here(backend, &before) else { continue };
            changes.push(Change { key: key.clone(), before: Some(before), after: Some(Arc::new(after)) });
        }
        self.wanted.apply(&changes);
    }

    /// The same for all that is wanted.
    pub(crate) fn weigh_all(&mut self) {
        let keys: Vec<ResourceKey> = self.wanted.resources().map(|resource| resource.key.clone()).collect();
        self.keeps_zone.retain(|backend| self.wanted.get(&ResourceKey::Servers(backend.clone())).is_some());
        self.weigh(&keys);
    }

    /// The servers of `backend` as this pod sees them, if that is not how they are in `resource`.
    fn seen_from_here(&mut self, backend: &Name, resource: &Resource) -> Option<Resource> {
        let Content::Servers(servers) = &resource.content else { return None };
        let zone = self.zone.as_deref().unwrap_or_default();
        let kept = self.keeps_zone.contains(backend);
        let keeps = keeps(servers, zone, kept);
        if keeps {
            self.keeps_zone.insert(backend.clone());
        } else {
            self.keeps_zone.remove(backend);
        }
        if kept != keeps {
            tracing::info!(%backend, zone, keeps, "whether requests stay in the zone of this pod");
        }
        if servers.zones.is_none() || !keeps && servers.iter().all(|server| server.here.is_none()) {
            return None;
        }
        Some(Resource::new(resource.key.clone(), Content::Servers(weigh(servers, zone, keeps)), resource.sources.clone()))
    }
}
