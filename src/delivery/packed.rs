//! A revision as the bytes that are kept of it. Pure.

use super::proto;
use super::wire::{self, Malformed};
use crate::haproxy::bundle::{Bundle, Change, Digest, Resource};
use crate::haproxy::revision::{Record, revision_of};
use prost::Message;
use std::io::Read;
use std::sync::Arc;

/// How hard it is packed: a bundle of thousands of routes takes some tens of milliseconds.
const LEVEL: i32 = 3;
/// What is larger once it is unpacked is no revision.
const LARGEST: u64 = 512 << 20;

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
