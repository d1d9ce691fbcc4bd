//! What is kept of a revision: everything of a bundle but endpoints and certificates, which follow the present. Pure.

use crate::delivery::proto;
use crate::delivery::wire::{self, Malformed};
use crate::haproxy::bundle::{Bundle, Change, Content, Digest, Resource, ResourceKey, Servers};
use prost::Message;
use std::io::Read;
use std::sync::Arc;

/// How hard it is packed: a bundle of thousands of routes takes some tens of milliseconds.
const LEVEL: i32 = 3;
/// What is larger once it is unpacked is no revision.
const LARGEST: u64 = 512 << 20;

/// A revision that can be gone back to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its number.
    pub number: u64,
    /// What was kept.
    pub bundle: Bundle,
}

/// Why a revision cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// It is not packed as it should be.
    #[error("it cannot be unpacked: {0}")]
    Packed(#[from] std::io::Error),
    /// It is no message.
    #[error("it cannot be read: {0}")]
    Message(#[from] prost::DecodeError),
    /// Something in it is not what it must be.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// It is another one than it says.
    #[error("it holds the revision {found} instead of {said}")]
    Other {
        /// What it is.
        found: Digest,
        /// What it should be.
        said: Digest,
    },
}

/// What is kept of `bundle`.
pub(super) fn kept(bundle: &Bundle) -> Vec<Arc<Resource>> {
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
pub(super) fn revision_of(bundle: &Bundle) -> Digest {
    let hashes = bundle.resources().filter(|resource| resource.key.is_of_revision()).map(|resource| resource.hash());
    Digest(hashes.fold(0, u128::wrapping_add))
}

/// The bytes of `resources`.
pub fn pack(resources: &[Arc<Resource>]) -> std::io::Result<Vec<u8>> {
    let message = proto::Bundle { set: resources.iter().map(|resource| wire::encode(resource)).collect(), ..proto::Bundle::default() };
    zstd::encode_all(message.encode_to_vec().as_slice(), LEVEL)
}

/// The revision `number` with the identity `said`, from its bytes.
pub fn unpack(number: u64, said: Digest, bytes: &[u8]) -> Result<Record, Unreadable> {
    let mut plain = Vec::new();
    zstd::Decoder::new(bytes)?.take(LARGEST).read_to_end(&mut plain)?;
    let mut bundle = Bundle::default();
    for message in proto::Bundle::decode(plain.as_slice())?.set {
        let resource = Arc::new(wire::decode(message)?);
        bundle.apply(&[Change { key: resource.key.clone(), before: None, after: Some(resource) }]);
    }
    let found = revision_of(&bundle);
    if found == said { Ok(Record { number, bundle }) } else { Err(Unreadable::Other { found, said }) }
}
