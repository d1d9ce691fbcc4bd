//! Packs a directory as an OCI image archive.
fn main() {}
