//! Going back to what was served before: what is kept of a revision, and laying it over the present. Pure.

mod overlay;

pub use overlay::{Overlay, closure};

use super::bundle::{Bundle, Content, Digest, Resource, ResourceKey, Servers};
use std::sync::Arc;

/// A revision that can be gone back to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number.
    pub number: u64,
    /// What was kept.
    pub bundle: Bundle,
}

/// What is kept of `bundle`: everything but endpoints and certificates, which follow the present.
pub fn kept(bundle: &Bundle) -> Vec<Arc<Resource>> {
    let keep = |resource: &Arc<Resource>| match (&resource.key, &resource.content) {
        (ResourceKey::Section(_) | ResourceKey::Backend(_) | ResourceKey::MapEntries { .. } | ResourceKey::File(_), _) => {
            Some(resource.clone())
        }
        // one is enough to know how the others are written
        (ResourceKey::Servers(_), Content::Servers(servers)) => {
            let first = Servers { all: servers.iter().take(1).cloned().collect(), zones: servers.zones };
            let first = Content::Servers(first);
            Some(Arc::new(Resource::new(resource.key.clone(), first, resource.sources.clone())))
        }
        // a list that sections name exists even while nothing is in it
        (ResourceKey::CertificateList { .. }, Content::CertificateList(entries)) if entries.is_empty() => Some(resource.clone()),
        _ => None,
    };
    bundle.resources().filter_map(keep).collect()
}

/// The identity of what makes a revision of `bundle`.
pub fn revision_of(bundle: &Bundle) -> Digest {
    let hashes = bundle.resources().filter(|resource| resource.key.is_of_revision()).map(|resource| resource.hash());
    Digest(hashes.fold(0, u128::wrapping_add))
}
