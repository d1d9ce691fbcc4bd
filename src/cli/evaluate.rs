//! The seam between the offline commands and the pipeline.

use super::{Error, files, placeholder};
use crate::agent::pod_files;
use crate::fleet::build::{Desired, Fleet, Observed, build};
use crate::haproxy::bundle::Bundle;
use crate::haproxy::plan::{self, classify};
use crate::haproxy::render;
use crate::haproxy::version::{Capabilities, Version};
use crate::ingest::files::{Files, Limits};
use crate::model::FleetId;
use crate::pipeline::{self, Pipeline};
use crate::report::{self, Located};
use crate::status::json::{Change, Class};
use crate::translate;
use std::collections::BTreeSet;
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
    /// The objects that the operator keeps in the cluster for it, as YAML; empty if they cannot be made.
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

/// Reads manifests and runs the pipeline over them, for HAProxies like `version`.
pub fn evaluate(inputs: &[PathBuf], version: Version) -> Result<Evaluation, Error> {
    let read = Read::from(inputs, version)?;
    let fleets = read.pipeline.fleets().map(|id| read.fleet(id)).collect::<Result<Vec<_>, _>>()?;
    let refused: Vec<report::Diagnostic> = read.pipeline.fleets().flat_map(|id| read.objects(id, 0).err().unwrap_or_default()).collect();
    let diagnostics = read.located(read.pipeline.diagnostics().into_iter().chain(&refused).collect());
    Ok(Evaluation { fleets, diagnostics })
}

/// Runs the pipeline over both and compares.
pub(super) fn compare(before: &Path, after: &Path, version: Version) -> Result<Comparison, Error> {
    let (before, after) = (Read::from(&[before.to_owned()], version)?, Read::from(&[after.to_owned()], version)?);
    let fleets: BTreeSet<&FleetId> = before.pipeline.fleets().chain(after.pipeline.fleets()).collect();
    let (nothing, capabilities) = (Bundle::default(), Capabilities::of(version));
    let mut changes = Vec::new();
    for id in fleets {
        let old = before.pipeline.bundle(id).unwrap_or(&nothing);
        let new = after.pipeline.bundle(id).unwrap_or(&nothing);
        let classified = classify(&old.diff(new), old, &capabilities);
        changes.extend(classified.iter().map(|change| Change {
            key: format!("{id}: {}", change.key),
            object: change.sources.first().map(Into::into),
            class: match change.class {
                plan::Class::Live => Class::Live,
                plan::Class::Deferred => Class::Deferred,
                plan::Class::Reload => Class::Reload,
            },
            reason: change.reason.clone(),
        }));
    }
    Ok(Comparison { changes, diagnostics: after.located(after.pipeline.diagnostics()) })
}

/// Manifests that were read and went through the pipeline.
struct Read {
    files: Files,
    pipeline: Pipeline,
}

impl Read {
    fn from(inputs: &[PathBuf], version: Version) -> Result<Self, Error> {
        check(inputs)?;
        let mut files = Files::new(inputs.to_vec(), Limits::default());
        let delta = files.load().map_err(|error| Error::new(error, "name a directory or a file that can be read"))?;
        let mut pipeline = Pipeline::new(pipeline::Options {
            capabilities: Box::new(move |_| Capabilities::of(version)),
            translate: translate::Options::default(),
            render: render::Options::default(),
        });
        pipeline.apply(delta.set, &delta.removed);
        Ok(Self { files, pipeline })
    }

    /// The findings of the files and those of `ours`, with their places.
    fn located(&self, ours: BTreeSet<&report::Diagnostic>) -> Vec<Located> {
        self.files.locate_all(ours.into_iter().cloned())
    }

    fn fleet(&self, id: &FleetId) -> Result<FleetFiles, Error> {
        let mut haproxy: Vec<OutputFile> = Vec::new();
        if let (Some(bundle), Some(model)) = (self.pipeline.bundle(id), self.pipeline.model(id)) {
            haproxy.extend(files::of(bundle));
            let pod = placeholder::pod(model).map_err(|error| Error::new(error, ""))?;
            let own = pod_files(&pod, "render")
                .map_err(|error| Error::new(error, ""))?
                .into_iter()
                .filter(|(path, _)| bundle.files().all(|known| **known != **path));
            haproxy.extend(own.map(|(path, content)| OutputFile { private: path.starts_with("certs/"), path, content }));
        }
        haproxy.sort_by(|a, b| a.path.cmp(&b.path));
        let bytes = haproxy.iter().map(|file| file.content.len() as u64).sum();
        let (objects, refused) = match self.objects(id, bytes) {
            Ok(objects) => (objects, Vec::new()),
            Err(refused) => (Vec::new(), refused),
        };
        let objects = yaml(&objects).map_err(|error| Error::new(error, ""))?;
        let diagnostics = self.located(self.pipeline.fleet_diagnostics(id).into_iter().chain(&refused).collect());
        Ok(FleetFiles { fleet: id.clone(), haproxy, objects, diagnostics })
    }

    /// What the operator would keep in the cluster for the fleet, with stand-ins for what only a cluster knows.
    fn objects(&self, id: &FleetId, bundle_bytes: u64) -> Result<Vec<Desired>, Vec<report::Diagnostic>> {
        let Some(deployment) = self.pipeline.deployment(id) else { return Ok(Vec::new()) };
        let observed = Observed { bundle_bytes, ..Observed::default() };
        build(Fleet { deployment, uid: placeholder::UID, context: &placeholder::context(), observed: &observed, change: None })
    }
}

/// All of them as YAML, in the order in which they are applied, without what is private.
fn yaml(objects: &[Desired]) -> Result<String, serde_saphyr::SerializeError> {
    let documents = objects.iter().map(|object| serde_saphyr::to_string(&object.redacted())).collect::<Result<Vec<_>, _>>()?;
    Ok(documents.join("---\n"))
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
