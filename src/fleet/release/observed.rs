//! What is observed of the pods of a fleet while a change spreads.

use super::Health;
use crate::haproxy::bundle::ResourceKey;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// How a change spreads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Pods that have it are watched for so long before others get it.
    pub observation: Duration,
    /// A pod that was let has so long to confirm, and one that is told something has so long to take it in.
    pub patience: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        // a check of a server has to fail as often as it takes, by default three times 2 s apart, and two looks at that, as
        // far apart, have to see it
        Self { observation: Duration::from_secs(12), patience: Duration::from_secs(60) }
    }
}

/// A fleet while something that needs a reload spreads in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observed {
    /// How it spreads.
    pub rules: Rules,
    /// Whether all pods served it before: there is nothing to find out about it, so nobody waits for anybody.
    pub proven: bool,
    /// Zones in the order in which they get it. Those that are not here come after them, by name.
    pub zones: Vec<Arc<str>>,
    /// The pods whose agents are connected and that are not on their way out, and those that were lost, by name.
    pub pods: Vec<Pod>,
}

/// A pod whose agent is connected, or was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub name: Arc<str>,
    /// Its zone; empty if that is not known.
    pub zone: Arc<str>,
    /// Whether clients reach it.
    pub serves: bool,
    /// Whether clients reached it when it was let, and it is not drained by hand since.
    pub served: bool,
    /// How far it is with the change.
    pub progress: Progress,
    /// Since when it is that far.
    pub since: Duration,
    /// Whether it was seen as it was before the change: one that began with the change says little about it.
    pub was_before: bool,
    /// What its HAProxy refused.
    pub refused: BTreeSet<ResourceKey>,
    /// How it fared since the first pod was let; `None`: its agent does not say.
    pub health: Option<Health>,
}

/// How far a pod is with a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Progress {
    /// It serves nothing yet, and gets everything with its first configuration.
    New,
    /// It has yet to say that it knows of the change.
    Behind,
    /// It asks for the reload and was not let.
    Held,
    /// It was let.
    Let,
    /// It has all of it, but for what HAProxy refused.
    Changed,
    /// It was let or had it, and its HAProxy or its agent is gone since.
    Lost,
}
