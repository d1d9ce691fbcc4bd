//! Packs a directory as an OCI image archive: one layer, no base, no daemon, the same bytes each time.
//!
//! The archive is a tar of an OCI image layout (image-spec 1.1): `oci-layout`, `index.json` and `blobs/sha256/…`. Each tag
//! is an entry of the index with the annotations that importers go by: containerd reads `io.containerd.image.name`, others
//! `org.opencontainers.image.ref.name`.

mod archive;
mod layer;
mod reference;

pub use archive::Image;
pub use reference::{BadReference, Reference};

use std::path::PathBuf;

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum PackError {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    File {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A socket, pipe or device: it means nothing in an image.
    #[error("{path} is neither file, directory nor link: leave it out of the directory")]
    Special {
        /// The file.
        path: PathBuf,
    },
    /// The machine's processor has no name in the image format's list that we know.
    #[error("images for {processor} are not supported: build on x86_64 or aarch64")]
    Processor {
        /// As Rust names it.
        processor: &'static str,
    },
    /// The description of the image did not serialize.
    #[error("the image's description: {0}")]
    Description(#[from] serde_json::Error),
}

impl PackError {
    fn file(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}
