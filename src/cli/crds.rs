//! `crds`: the custom resource definitions.

use super::{Error, Exit, Output};
use crate::api::crd::{crds, to_yaml};

pub(super) fn run(out: &mut Output) -> Result<Exit, Error> {
    out.write(definitions()?)?;
    Ok(Exit::Success)
}

/// All definitions as one YAML stream.
fn definitions() -> Result<String, Error> {
    let mut stream = String::new();
    for definition in crds() {
        let document = to_yaml(&definition).map_err(|error| Error::new(format_args!("cannot write the definitions: {error}"), ""))?;
        stream.push_str("---\n");
        stream.push_str(&document);
    }
    Ok(stream)
}
