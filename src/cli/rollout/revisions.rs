//! `history` and `rollback`: the revisions of a fleet's configuration that are kept in a cluster, and going back to one.

use super::cluster::Cluster;
use super::{LOOK, Verbs, Whose, block_on, choice};
use crate::api::ANNOTATION_ROLLBACK;
use crate::cli::report::printable;
use crate::cli::{Error, Exit, Output};
use crate::status::json::Fleet;
use clap::Args;
use serde_json::{Value, json};
use std::str::FromStr;
use std::time::Duration;
use tokio::time::Instant;

pub(in crate::cli) const HISTORY_HELP: &str = "\
The last 20 revisions that all pods of a fleet had are kept beside it, as Secrets. It takes the permission
to list Secrets in the fleet's namespace.

Examples:
  kubectl haproxy-fleet history edge -n ingress

Exit status:
  0  they are shown
  2  usage, or they cannot be read";

pub(in crate::cli) const ROLLBACK_HELP: &str = "\
Sections, backends and routes become those of the revision, in all pods at once. Endpoints and
certificates stay those of now. Until `present`, changes of routes have no effect.

Examples:
  kubectl haproxy-fleet rollback 7 edge -n ingress
  kubectl haproxy-fleet rollback present edge -n ingress

Exit status:
  0  all pods confirm it
  1  some do not within a minute
  2  usage, or it cannot be done";

/// How long all pods may take to confirm a revision.
const PATIENCE: Duration = Duration::from_secs(60);

/// `history`.
#[derive(Debug, Args)]
pub struct HistoryArguments {
    #[command(flatten)]
    whose: Whose,
}

/// `rollback`.
#[derive(Debug, Args)]
pub struct RollbackArguments {
    /// The revision; `present` for what is asked for now
    #[arg(value_name = "REVISION|present")]
    to: To,
    #[command(flatten)]
    whose: Whose,
}

/// Where a fleet goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum To {
    /// To a revision that is kept.
    Revision(u64),
    /// To what is asked for now.
    Present,
}

impl FromStr for To {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "present" {
            return Ok(Self::Present);
        }
        text.parse()
            .map(Self::Revision)
            .map_err(|_| format!("{text:?} is no revision: write one of those that `history` lists, or `present`"))
    }
}

impl To {
    fn revision(self) -> Option<u64> {
        match self {
            Self::Revision(revision) => Some(revision),
            Self::Present => None,
        }
    }
}

pub(in crate::cli) fn history(arguments: &HistoryArguments, out: &mut Output) -> Result<Exit, Error> {
    block_on(async {
        let cluster = cluster(&arguments.whose).await?;
        let status = cluster.status().await?;
        let fleet = choice::fleet(&status, arguments.whose.fleet.as_ref(), None)?;
        let object = cluster.object(fleet).await?;
        let kept = cluster.revisions(fleet).await?;
        if kept.is_empty() {
            out.line("none is kept yet: a revision is once all pods have it")?;
            return Ok(Exit::Success);
        }
        for line in table(&kept, &object) {
            out.line(&printable(&line, false))?;
        }
        Ok(Exit::Success)
    })
}

pub(in crate::cli) fn rollback(arguments: &RollbackArguments, out: &mut Output) -> Result<Exit, Error> {
    block_on(async {
        let cluster = cluster(&arguments.whose).await?;
        let status = cluster.status().await?;
        let fleet = choice::fleet(&status, arguments.whose.fleet.as_ref(), None)?;
        let id = format!("{}/{}", fleet.namespace, fleet.name);
        let kept = cluster.revisions(fleet).await?;
        let to = arguments.to.revision();
        if let Some(revision) = to.filter(|revision| !kept.iter().any(|kept| kept.number == *revision)) {
            let numbers: Vec<String> = kept.iter().map(|kept| kept.number.to_string()).collect();
            let help = if numbers.is_empty() { "none is yet".to_owned() } else { format!("choose one of {}", numbers.join(", ")) };
            return Err(Error::new(format_args!("revision {revision} of {id} is not kept"), help));
        }
        let began = Instant::now();
        let pinned = to.map(|revision| revision.to_string());
        cluster.annotate(fleet, |_| Ok(json!({ANNOTATION_ROLLBACK: pinned}))).await?;
        let what = to.map_or_else(|| "what is asked for now".to_owned(), |revision| format!("revision {revision}"));
        out.line(&printable(&format!("{id} goes to {what}"), false))?;
        confirmed(&cluster, fleet, to, began, out).await
    })
}

async fn cluster(whose: &Whose) -> Result<Cluster, Error> {
    if whose.admin.is_some() {
        return Err(Error::new("local keeps no revisions", "go back in the files that it serves"));
    }
    whose.cluster().await
}

/// Waits until all pods confirm the revision, or the present.
async fn confirmed(cluster: &Cluster, fleet: &Fleet, revision: Option<u64>, began: Instant, out: &mut Output) -> Result<Exit, Error> {
    loop {
        let status = cluster.object(fleet).await?["status"].clone();
        if status["pinnedRevision"].as_u64() == revision {
            out.line(&format!("revision {} is confirmed by all pods, after {:.1} s", status["revision"], began.elapsed().as_secs_f64()))?;
            return Ok(Exit::Success);
        }
        if began.elapsed() > PATIENCE {
            out.line("not all pods confirm it: see kubectl haproxy-fleet status")?;
            return Ok(Exit::Findings);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// A revision that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) number: u64,
    pub(super) since: String,
    pub(super) digest: String,
}

/// The revisions for people, the newest first.
fn table(kept: &[Kept], object: &Value) -> Vec<String> {
    let pinned = object["metadata"]["annotations"][ANNOTATION_ROLLBACK].as_str();
    let row = |kept: &Kept| {
        let is_served = object["status"]["revision"] == kept.number;
        let is_pinned = pinned == Some(&*kept.number.to_string());
        let mark = match (is_served, is_pinned) {
            (_, true) => "  served, pinned",
            (true, false) => "  served",
            (false, false) => "",
        };
        format!("{:<9} {:<21} {}{mark}", kept.number, kept.since, kept.digest)
    };
    let head = format!("{:<9} {:<21} {}", "REVISION", "SINCE", "DIGEST");
    std::iter::once(head).chain(kept.iter().rev().map(row)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_revision_or_the_present_is_gone_to() {
        assert_eq!("7".parse(), Ok(To::Revision(7)));
        assert_eq!("present".parse(), Ok(To::Present));
        assert!("edge".parse::<To>().unwrap_err().contains("`history`"));
    }

    #[test]
    fn revisions_are_listed_the_newest_first_with_what_is_served() {
        let kept: Vec<Kept> =
            [6, 7].map(|number| Kept { number, since: "2026-01-31T12:00:00Z".into(), digest: format!("d{number}") }).into();
        let object = json!({"status": {"revision": 7}});
        assert_eq!(
            table(&kept, &object),
            ["REVISION  SINCE                 DIGEST", "7         2026-01-31T12:00:00Z  d7  served", "6         2026-01-31T12:00:00Z  d6"]
        );
        let pinned = json!({"status": {"revision": 6}, "metadata": {"annotations": {ANNOTATION_ROLLBACK: "6"}}});
        assert!(table(&kept, &pinned)[2].ends_with("d6  served, pinned"));
    }
}
