//! Puts bundles together from what arrives, whole or not at all, and keeps what several replicas send once.

use super::proto;
use super::wire::{self, Malformed};
use crate::haproxy::bundle::{Bundle, Change, Digest, Resource, ResourceKey};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What one replica wants to be served. A clone is another handle of the same.
#[derive(Clone, Debug, Default)]
pub(super) struct Held(Arc<Mutex<Kept>>);

#[derive(Clone, Debug, Default)]
struct Kept {
    /// `None`: nothing was said yet.
    bundle: Option<Bundle>,
    generation: u64,
}

impl Held {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The same as now, apart from what becomes of this one.
    pub(super) fn copy(&self) -> Self {
        Self(Arc::new(Mutex::new(self.kept().clone())))
    }

    /// Its digest, if anything was said.
    pub(super) fn digest(&self) -> Option<Digest> {
        self.kept().bundle.as_ref().map(Bundle::digest)
    }

    /// Generation and digest.
    pub(super) fn present(&self) -> (u64, Digest) {
        let kept = self.kept();
        (kept.generation, kept.bundle.as_ref().map(Bundle::digest).unwrap_or_default())
    }

    /// Generation and all of it.
    pub(super) fn all(&self) -> (u64, Bundle) {
        let kept = self.kept();
        (kept.generation, kept.bundle.clone().unwrap_or_default())
    }

    /// The resource that is here already, if it is the same.
    fn share(&self, new: &Resource) -> Option<Arc<Resource>> {
        let kept = self.kept();
        let known = kept.bundle.as_ref()?.get(&new.key)?;
        (known.hash() == new.hash() && known.sources == new.sources).then(|| known.clone())
    }
}

/// What a replica wants now.
#[derive(Clone, Debug)]
pub(super) struct Step {
    /// Its number.
    pub(super) generation: u64,
    /// Its digest.
    pub(super) digest: Digest,
    /// What it changes.
    pub(super) base: Option<Digest>,
    /// What is new; `None` if it is something else altogether.
    pub(super) changes: Option<Arc<[Change]>>,
    /// All of it, if it came whole.
    pub(super) whole: Option<Arc<Bundle>>,
}

/// What a part led to.
#[derive(Debug)]
pub(super) enum Assembled {
    /// More parts have to come.
    More,
    /// What the replica wants.
    Step(Step),
    /// It does not fit: everything has to be sent.
    Unfit,
}

/// Parts of the bundle that is on its way.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    arrived: BTreeMap<ResourceKey, Option<Arc<Resource>>>,
    of: Option<Header>,
}

type Header = (u64, Digest, Option<Digest>);

impl Assembly {
    /// Takes the next part. What is complete is in `held` then. `obeyed` may hold some of it already.
    pub(super) fn take(&mut self, part: proto::Bundle, held: &Held, obeyed: &Held) -> Result<Assembled, Malformed> {
        let digest = wire::digest("bundle.digest", &part.digest)?;
        let header = (part.generation, digest, wire::optional_digest("bundle.base", &part.base)?);
        if *self.of.get_or_insert(header) != header {
            *self = Self::default();
            return Ok(Assembled::Unfit);
        }
        for message in part.set {
            let new = wire::decode(message)?;
            let known = held.share(&new).or_else(|| obeyed.share(&new));
            self.arrived.insert(new.key.clone(), Some(known.unwrap_or_else(|| Arc::new(new))));
        }
        for key in part.removed {
            self.arrived.insert(wire::decode_key(Some(key))?, None);
        }
        if part.more {
            return Ok(Assembled::More);
        }
        let Self { arrived, .. } = std::mem::take(self);
        Ok(finish(arrived, header, held).map_or(Assembled::Unfit, Assembled::Step))
    }
}

/// Brings what arrived into `held`, if it leads to the digest that was said.
fn finish(arrived: BTreeMap<ResourceKey, Option<Arc<Resource>>>, (generation, digest, base): Header, held: &Held) -> Option<Step> {
    let mut kept = held.kept();
    let Some(base) = base else {
        let mut bundle = Bundle::default();
        let changes: Vec<Change> = arrived.into_iter().map(|(key, after)| Change { key, before: None, after }).collect();
        bundle.apply(&changes);
        if bundle.digest() != digest {
            return None;
        }
        let whole = Some(Arc::new(bundle.clone()));
        *kept = Kept { bundle: Some(bundle), generation };
        return Some(Step { generation, digest, base: None, changes: None, whole });
    };
    let bundle = kept.bundle.as_mut().filter(|bundle| bundle.digest() == base)?;
    let change = |(key, after): (ResourceKey, Option<Arc<Resource>>)| Change { before: bundle.get(&key).cloned(), key, after };
    let changes: Arc<[Change]> = arrived.into_iter().map(change).collect();
    let hash = |resource: &Option<Arc<Resource>>| resource.as_ref().map_or(0, |resource| resource.hash());
    let sum = changes.iter().fold(base.0, |sum, change| sum.wrapping_sub(hash(&change.before)).wrapping_add(hash(&change.after)));
    if sum != digest.0 {
        return None;
    }
    bundle.apply(&changes);
    kept.generation = generation;
    Some(Step { generation, digest, base: Some(base), changes: Some(changes), whole: None })
}
