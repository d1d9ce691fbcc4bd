//! `crds`: the custom resource definitions.

use super::{Error, Exit, Output};
use crate::api::crd::{crds, to_yaml};

pub(super) fn run(out: &mut Output) -> Result<Exit, Error> {
    out.write(definitions()?)?;
    Ok(Exit::Success)
}

/// All definitions as one YAML stream.
fn definitions() -> Result<String, Error> {
    let documents: Result<Vec<String>, _> = crds().iter().map(to_yaml).collect();
    let documents = documents.map_err(|error| Error::new(format_args!("cannot write the definitions: {error}"), ""))?;
    Ok(documents.iter().map(|document| format!("---\n{document}")).collect())
}
