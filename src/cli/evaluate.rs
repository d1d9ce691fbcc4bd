//! The seam between the offline commands and the pipeline.

use super::Error;
use crate::haproxy::version::Version;
use crate::model::FleetId;
use crate::report::Located;
use crate::status::json::Change;
use std::path::{Path, PathBuf};

/// What the pipeline makes of manifests.
#[derive(Debug, Default)]
pub struct Evaluation {
    /// Fleets in the order of namespace and name.
    pub fleets: Vec<FleetFiles>,
    /// All findings, in the order of [`Located::sort`].
    pub diagnostics: Vec<Located>,
}

/// What is rendered for one fleet.
#[derive(Debug)]
pub struct FleetFiles {
    /// Which.
    pub fleet: FleetId,
    /// What HAProxy reads, relative to its configuration directory, in the order of paths.
    pub haproxy: Vec<OutputFile>,
    /// Kubernetes objects as one YAML stream; empty if there is none.
    pub objects: String,
    /// Findings that concern the fleet.
    pub diagnostics: Vec<Located>,
}

/// A file of a configuration.
#[derive(Debug)]
pub struct OutputFile {
    /// Relative to the configuration directory.
    pub path: String,
    /// What is in it.
    pub content: Vec<u8>,
    /// Whether it holds a private key: readable by the owner only, and never on standard output.
    pub private: bool,
}

/// What differs between what the pipeline makes of two sets of manifests.
#[derive(Debug, Default)]
pub struct Comparison {
    /// Changes of all fleets, by fleet and in the order of their keys.
    pub changes: Vec<Change>,
    /// Findings in the newer set.
    pub diagnostics: Vec<Located>,
}

/// Reads manifests and runs the pipeline over them.
pub(super) fn evaluate(inputs: &[PathBuf], version: Version) -> Result<Evaluation, Error> {
    let _ = version;
    check(inputs)?;
    Err(Error::new("the pipeline is not part of this build", ""))
}

/// Runs the pipeline over both and compares.
pub(super) fn compare(before: &Path, after: &Path, version: Version) -> Result<Comparison, Error> {
    let _ = version;
    check(&[before.to_owned(), after.to_owned()])?;
    Err(Error::new("the pipeline is not part of this build", ""))
}

/// Says which input does not exist, before anything is done.
pub(super) fn check(inputs: &[PathBuf]) -> Result<(), Error> {
    for input in inputs.iter().filter(|input| input.as_os_str() != "-") {
        if let Err(error) = std::fs::metadata(input) {
            let help = "name a directory or a file with manifests, or - for standard input";
            return Err(Error::new(format_args!("cannot read {}: {error}", input.display()), help));
        }
    }
    Ok(())
}
