//! What a fleet serves, which is what its manifests ask for unless people went back to a revision; and the revisions that
//! can be gone back to: files beside the record of the fleet, written once all replicas have one.

use super::record::directory;
use crate::delivery::packed::{Unreadable, pack, unpack};
use crate::haproxy::bundle::{Bundle, Change, Digest, Resource};
use crate::haproxy::revision::{Overlay, Record};
use crate::model::FleetId;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How many are kept.
pub(super) const LAST: usize = 20;

/// A revision that is kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    /// Its identity.
    pub digest: String,
    /// Since when it is kept.
    pub since: String,
}

/// Those of a fleet by number.
pub(super) type Revisions = BTreeMap<u64, Kept>;

/// What a fleet serves.
#[derive(Clone, Debug, Default)]
pub(super) struct Served {
    overlay: Overlay,
    /// All of it, where that is not what is asked for.
    bundle: Option<Bundle>,
}

impl Served {
    /// What is served by one who went back to `record`, or to the present. All of it is there after [`Self::follow`].
    pub(super) fn of(record: Option<Record>) -> Self {
        Self { overlay: Overlay { record: record.map(Arc::new), ..Overlay::default() }, bundle: None }
    }

    /// The same over `present`, which is asked for.
    pub(super) fn over(mut self, present: &Bundle) -> Self {
        self.bundle = (!self.overlay.is_empty()).then(|| self.overlay.over(present));
        self
    }

    /// The revision that people went back to.
    pub(super) fn pinned(&self) -> Option<u64> {
        Some(self.overlay.record.as_ref()?.number)
    }

    /// What changes in what is served if `changes` of what is asked for led to `present`.
    pub(super) fn follow(&mut self, changes: Vec<Change>, present: &Bundle) -> Vec<Change> {
        if self.overlay.is_empty() {
            return changes;
        }
        if let Some(bundle) = &mut self.bundle {
            return self.overlay.follow(bundle, &changes, present);
        }
        let bundle = self.bundle.insert(self.overlay.over(present));
        Bundle::default().diff(bundle)
    }

    /// All that is served if `present` is asked for.
    pub(super) fn bundle<'b>(&'b self, present: &'b Bundle) -> &'b Bundle {
        self.bundle.as_ref().unwrap_or(present)
    }
}

fn file(state: &Path, id: &FleetId, number: u64) -> PathBuf {
    directory(state, id).join("revisions").join(number.to_string())
}

/// Keeps what is to be kept of the revision `number`, whole or not at all. It may hold headers and error pages that are
/// nobody else's matter.
pub(super) fn write(state: &Path, id: &FleetId, number: u64, resources: &[Arc<Resource>]) -> io::Result<()> {
    let file = file(state, id, number);
    let new = file.with_extension("new");
    fs::create_dir_all(directory(state, id).join("revisions"))?;
    let mut options = fs::OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600).open(&new)?.write_all(&pack(resources)?)?;
    fs::rename(new, file)
}

/// The revision `number`, which is `kept`.
pub(super) fn read(state: &Path, id: &FleetId, number: u64, kept: &Kept) -> Result<Record, Unreadable> {
    // what is no digest is that of nothing, and nothing is no revision
    let said = u128::from_str_radix(&kept.digest, 16).map_or_else(|_| Digest::default(), Digest);
    unpack(number, said, &fs::read(file(state, id, number))?)
}

/// Takes those out of `revisions` that are not kept any more: the oldest.
pub(super) fn beyond(revisions: &mut Revisions) -> Vec<u64> {
    let surplus = revisions.len().saturating_sub(LAST);
    (0..surplus).filter_map(|_| Some(revisions.pop_first()?.0)).collect()
}

/// Removes the files of revisions.
pub(super) fn remove(state: &Path, id: &FleetId, numbers: &[u64]) {
    for number in numbers {
        if let Err(error) = fs::remove_file(file(state, id, *number)) {
            tracing::warn!(fleet = %id, revision = number, %error, "a revision that is not kept any more cannot be removed");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::haproxy::bundle::{Content, ResourceKey};
    use crate::haproxy::revision::{kept, revision_of};
    use std::os::unix::fs::PermissionsExt;

    fn fleet() -> FleetId {
        FleetId { namespace: "infra".into(), name: "edge".into() }
    }

    fn bundle(text: &str) -> Bundle {
        let mut bundle = Bundle::default();
        let key = ResourceKey::Section("20-http".into());
        bundle.set(&key.clone(), Some(Resource::new(key, Content::Section(text.into()), Arc::new([]))));
        bundle
    }

    #[test]
    fn a_revision_comes_back_from_its_file_which_nobody_else_can_read() {
        let state = tempfile::tempdir().unwrap();
        let then = bundle("frontend http\n");
        write(state.path(), &fleet(), 7, &kept(&then)).unwrap();
        let known = Kept { digest: revision_of(&then).to_string(), since: String::new() };
        assert_eq!(read(state.path(), &fleet(), 7, &known).unwrap(), Record { number: 7, bundle: then });
        let mode = fs::metadata(file(state.path(), &fleet(), 7)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(read(state.path(), &fleet(), 8, &known).is_err());
        fs::write(file(state.path(), &fleet(), 7), "nothing").unwrap();
        assert!(read(state.path(), &fleet(), 7, &known).is_err());
    }

    #[test]
    fn the_last_twenty_are_kept() {
        let state = tempfile::tempdir().unwrap();
        let mut revisions = Revisions::new();
        for number in 1..=23 {
            write(state.path(), &fleet(), number, &[]).unwrap();
            revisions.insert(number, Kept::default());
            remove(state.path(), &fleet(), &beyond(&mut revisions));
        }
        assert_eq!(revisions.keys().copied().collect::<Vec<_>>(), (4..=23).collect::<Vec<_>>());
        assert_eq!(fs::read_dir(directory(state.path(), &fleet()).join("revisions")).unwrap().count(), LAST);
    }

    #[test]
    fn what_is_asked_for_has_no_effect_until_people_go_back_to_it() {
        let (then, mut now) = (bundle("then\n"), bundle("now\n"));
        let mut served = Served::of(Some(Record { number: 3, bundle: then.clone() })).over(&now);
        assert_eq!((served.pinned(), served.bundle(&now)), (Some(3), &then));
        let later = bundle("later\n");
        assert_eq!(served.follow(now.diff(&later), &later), []);
        now = later;
        served = Served::of(None).over(&now);
        assert_eq!((served.pinned(), served.bundle(&now)), (None, &now));
        // after a restart all of it is new
        let mut restarted = Served::of(Some(Record { number: 3, bundle: then.clone() }));
        assert_eq!(restarted.follow(Vec::new(), &now).len(), 1);
        assert_eq!(restarted.bundle(&now), &then);
    }
}
