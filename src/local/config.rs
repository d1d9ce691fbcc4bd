//! What the replicas of a fleet are given, for people who ask by `--admin`.

use super::fleet::LocalFleet;
use crate::admin::{Refusal, RefusalKind};
use crate::cli::files;
use crate::haproxy::bundle::Bundle;
use crate::model::FleetId;
use crate::status::json;

/// What `fleet` is given, where its manifest leads to `bundle`, which a rollback lies over.
pub(super) fn of(id: &FleetId, fleet: &LocalFleet, bundle: Option<&Bundle>) -> Result<json::Config, Refusal> {
    let refused = |error: String, help: &str| Refusal { kind: RefusalKind::Conflict, error, help: help.to_owned() };
    let bundle = bundle.ok_or_else(|| {
        refused(
            format!("fleet {id} serves its last good state: its manifest has not been read"),
            "correct the manifests that cannot be read, or look into the state directory: it has the files of each replica",
        )
    })?;
    let (given, revision, generation) =
        fleet.given(bundle).ok_or_else(|| refused(format!("fleet {id} is about to get another configuration"), "ask again"))?;
    Ok(json::Config { revision, generation, files: files::shown(given) })
}
