//! What is remembered of a fleet over a restart: enough to serve its last good state before any manifest is read.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::revisions::Revisions;
use super::rollout::Rollout;
use crate::fleet::rollout::Template;
use crate::model::FleetId;
use crate::status::json::Protocol;

/// A fleet as it was last served.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Number of the last bundle. Written before the bundle is used, so that no number is given twice.
    pub generation: u64,
    /// Number of the last change of sections, backends or routing maps.
    pub revision: u64,
    /// The identity of what that number stands for.
    #[serde(default)]
    pub revision_digest: String,
    /// The revisions that can be gone back to.
    #[serde(default)]
    pub revisions: Revisions,
    /// The one that people went back to.
    #[serde(default)]
    pub pinned: Option<u64>,
    /// The digest of the last bundle.
    #[serde(default)]
    pub digest: String,
    /// When the fleet was first seen, in nanoseconds since 1970: a class belongs to the oldest that asks for it,
    /// and manifests in files do not say how old they are.
    #[serde(default)]
    pub since: i64,
    /// Its listeners.
    pub listeners: Vec<ListenerRecord>,
    /// Its replicas.
    pub replicas: Vec<ReplicaRecord>,
    /// How they come and go.
    pub rollout: Rollout,
}

/// A listener of a fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ListenerRecord {
    /// Its name.
    pub name: String,
    /// What is spoken on it.
    pub protocol: Protocol,
    /// The port that clients would use in a cluster.
    pub public_port: u16,
    /// The port of the replicas.
    pub pod_port: u16,
}

/// A replica of a fleet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct ReplicaRecord {
    /// Its name.
    pub name: Arc<str>,
    /// Its zone.
    pub zone: Option<Arc<str>>,
    /// What it is made of.
    pub template: Template,
}

/// Where the fleet `id` keeps its things below the state directory.
pub(super) fn directory(state: &Path, id: &FleetId) -> PathBuf {
    state.join("fleets").join(&*id.namespace).join(&*id.name)
}

fn file(state: &Path, id: &FleetId) -> PathBuf {
    directory(state, id).join("fleet.json")
}

impl ListenerRecord {
    /// The address that clients use: its port is the one that `local` gave the fleet.
    pub(super) fn stable_address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.public_port))
    }
}

impl Record {
    /// The ports of its replicas, by listener.
    pub(super) fn ports(&self) -> BTreeMap<String, u16> {
        self.listeners.iter().map(|listener| (listener.name.clone(), listener.pod_port)).collect()
    }

    /// Takes in that what is served is the revision with this identity. It gets the next number, unless it has one: because
    /// people went back to it, or because it is the one that was kept last.
    pub(super) fn renumber(&mut self, identity: String) {
        let last = self.revisions.last_key_value();
        self.revision = match (self.pinned, last) {
            (Some(pinned), _) => pinned,
            (None, Some((number, kept))) if kept.digest == identity => *number,
            (None, _) if self.revision_digest == identity => self.revision,
            (None, last) => self.revision.max(last.map_or(0, |(number, _)| *number)) + 1,
        };
        self.revision_digest = identity;
    }

    /// Writes it, whole or not at all.
    pub(super) fn save(&self, state: &Path, id: &FleetId) -> io::Result<()> {
        let file = file(state, id);
        std::fs::create_dir_all(directory(state, id))?;
        let new = file.with_extension("json.new");
        std::fs::write(&new, serde_json::to_vec_pretty(self)?)?;
        std::fs::rename(new, file)
    }
}

/// The fleets that were served last, in order. A record that cannot be read is passed over: its fleet then
/// starts from the manifests alone.
pub(super) fn load(state: &Path) -> Vec<(FleetId, Record)> {
    let mut found = Vec::new();
    for namespace in names(&state.join("fleets")) {
        for name in names(&state.join("fleets").join(&namespace)) {
            let id = FleetId { namespace: namespace.as_str().into(), name: name.as_str().into() };
            let record = std::fs::read(file(state, &id)).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
            found.extend(record.map(|record| (id, record)));
        }
    }
    found
}

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Forgets the fleet `id` with everything it kept.
pub(super) fn forget(state: &Path, id: &FleetId) -> io::Result<()> {
    std::fs::remove_dir_all(directory(state, id))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::local::revisions::Kept;

    fn fleet() -> FleetId {
        FleetId { namespace: "infra".into(), name: "edge".into() }
    }

    #[test]
    fn a_fleet_is_found_again_after_a_restart() {
        let state = tempfile::tempdir().unwrap();
        let replica = ReplicaRecord { name: "edge-0".into(), zone: Some("a".into()), template: Template("t".into()) };
        let record = Record { generation: 7, revision: 3, replicas: vec![replica], ..Record::default() };
        record.save(state.path(), &fleet()).unwrap();
        assert_eq!(load(state.path()), [(fleet(), record)]);
    }

    #[test]
    fn a_revision_has_one_number() {
        let mut record = Record::default();
        let mut numbered = |pinned: Option<u64>, kept: Option<(u64, &str)>, identity: &str| {
            record.pinned = pinned;
            record.revisions.extend(kept.map(|(number, digest)| (number, Kept { digest: digest.into(), since: String::new() })));
            record.renumber(identity.to_owned());
            record.revision
        };
        assert_eq!(numbered(None, None, "a"), 1);
        assert_eq!(numbered(None, Some((1, "a")), "b"), 2);
        assert_eq!(numbered(None, Some((2, "b")), "b"), 2);
        assert_eq!(numbered(Some(1), None, "a"), 1);
        assert_eq!(numbered(None, None, "b"), 2, "it was kept with that number");
        assert_eq!(numbered(Some(1), None, "a"), 1);
        assert_eq!(numbered(None, None, "c"), 3, "no number of a revision that is kept");
    }

    #[test]
    fn a_record_that_cannot_be_read_is_passed_over() {
        let state = tempfile::tempdir().unwrap();
        Record::default().save(state.path(), &fleet()).unwrap();
        std::fs::write(file(state.path(), &fleet()), "{").unwrap();
        assert_eq!(load(state.path()), []);
    }

    #[test]
    fn a_forgotten_fleet_is_not_found() {
        let state = tempfile::tempdir().unwrap();
        Record::default().save(state.path(), &fleet()).unwrap();
        forget(state.path(), &fleet()).unwrap();
        assert_eq!(load(state.path()), []);
    }
}
