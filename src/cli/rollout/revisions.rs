//! `history` and `rollback`: the revisions of a fleet's configuration that are kept, and going back to one.

use super::admin::Admin;
use super::choice::FleetName;
use super::{LOOK, Verbs, Whose, block_on, choice};
use crate::admin::Order;
use crate::cli::report::printable;
use crate::cli::{Error, Exit, Output};
use clap::Args;
use std::str::FromStr;
use std::time::Duration;
use tokio::time::Instant;

pub(in crate::cli) const HISTORY_HELP: &str = "\
The last 20 revisions that all pods of a fleet had are kept beside it: in a cluster as Secrets, which it
takes the permission to list in the fleet's namespace, and by `local` in its --state-dir.

Examples:
  kubectl haproxy-fleet history edge -n ingress
  haproxy-fleet history --admin 127.0.0.1:9901

Exit status:
  0  they are shown
  2  usage, or they cannot be read";

pub(in crate::cli) const ROLLBACK_HELP: &str = "\
Sections, backends and routes become those of the revision, in all pods at once. Endpoints and
certificates stay those of now. Until `present`, changes of routes have no effect.

Examples:
  kubectl haproxy-fleet rollback 7 edge -n ingress
  kubectl haproxy-fleet rollback present edge -n ingress
  haproxy-fleet rollback 7 --admin 127.0.0.1:9901

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
pub(super) enum To {
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
    /// Where a fleet is that went back to `revision`, if to any.
    pub(super) fn of(revision: Option<u64>) -> Self {
        revision.map_or(Self::Present, Self::Revision)
    }

    fn revision(self) -> Option<u64> {
        match self {
            Self::Revision(revision) => Some(revision),
            Self::Present => None,
        }
    }
}

pub(in crate::cli) fn history(arguments: &HistoryArguments, out: &mut Output) -> Result<Exit, Error> {
    let whose = &arguments.whose;
    block_on(async {
        match whose.admin {
            Some(address) => show(&Admin { address }, whose.fleet.as_ref(), out).await,
            None => show(&whose.cluster().await?, whose.fleet.as_ref(), out).await,
        }
    })
}

pub(in crate::cli) fn rollback(arguments: &RollbackArguments, out: &mut Output) -> Result<Exit, Error> {
    let (to, whose) = (arguments.to, &arguments.whose);
    block_on(async {
        match whose.admin {
            Some(address) => go(&Admin { address }, whose.fleet.as_ref(), to, out).await,
            None => go(&whose.cluster().await?, whose.fleet.as_ref(), to, out).await,
        }
    })
}

async fn show(verbs: &impl Verbs, named: Option<&FleetName>, out: &mut Output) -> Result<Exit, Error> {
    let status = verbs.status().await?;
    let fleet = choice::fleet(&status, named, None)?;
    let (serves, kept) = (verbs.serves(fleet).await?, verbs.revisions(fleet).await?);
    if kept.is_empty() {
        out.line("none is kept yet: a revision is once all pods have it")?;
        return Ok(Exit::Success);
    }
    for line in table(&kept, &serves) {
        out.line(&printable(&line, false))?;
    }
    Ok(Exit::Success)
}

async fn go<V: Verbs>(verbs: &V, named: Option<&FleetName>, to: To, out: &mut Output) -> Result<Exit, Error> {
    let status = verbs.status().await?;
    let fleet = choice::fleet(&status, named, None)?;
    let began = Instant::now();
    let done = verbs.order(fleet, &Order::Rollback(to.revision())).await?;
    out.line(&printable(&done.message, false))?;
    loop {
        let serves = verbs.serves(fleet).await?;
        if serves.at == Some(to) {
            let number = serves.revision.map(|number| number.to_string()).unwrap_or_default();
            out.line(&format!("revision {number} is confirmed by all pods, after {:.1} s", began.elapsed().as_secs_f64()))?;
            return Ok(Exit::Success);
        }
        if began.elapsed() > PATIENCE {
            out.line("not all pods confirm it: see haproxy-fleet status")?;
            return Ok(Exit::Findings);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Which revision a fleet serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Serves {
    pub(super) revision: Option<u64>,
    /// The one that people went back to.
    pub(super) pinned: Option<u64>,
    /// The one that all pods confirm to have gone back to, or that all confirm the present; `None` while some do neither.
    pub(super) at: Option<To>,
}

/// A revision that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    pub(super) number: u64,
    pub(super) since: String,
    pub(super) digest: String,
}

/// Whether `revision` is one of those that are `kept` of the fleet `id`; if not, which are.
pub(super) fn find(kept: &[Kept], revision: u64, id: &str) -> Result<(), Error> {
    if kept.iter().any(|kept| kept.number == revision) {
        return Ok(());
    }
    let numbers: Vec<String> = kept.iter().map(|kept| kept.number.to_string()).collect();
    let help = if numbers.is_empty() {
        "none is yet: a revision is once all pods have it".to_owned()
    } else {
        format!("choose one of {}", numbers.join(", "))
    };
    Err(Error::new(format_args!("revision {revision} of {id} is not kept"), help))
}

/// The revisions for people, the newest first.
fn table(kept: &[Kept], serves: &Serves) -> Vec<String> {
    let row = |kept: &Kept| {
        let is = |number: Option<u64>| number == Some(kept.number);
        let mark = match (is(serves.revision), is(serves.pinned)) {
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
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn revisions_are_listed_the_newest_first_with_what_is_served() {
        let kept: Vec<Kept> =
            [6, 7].map(|number| Kept { number, since: "2026-01-31T12:00:00Z".into(), digest: format!("d{number}") }).into();
        let serves = Serves { revision: Some(7), ..Serves::default() };
        assert_eq!(
            table(&kept, &serves),
            ["REVISION  SINCE                 DIGEST", "7         2026-01-31T12:00:00Z  d7  served", "6         2026-01-31T12:00:00Z  d6"]
        );
        let pinned = Serves { revision: Some(6), pinned: Some(6), ..Serves::default() };
        assert!(table(&kept, &pinned)[2].ends_with("d6  served, pinned"));
    }

    #[test]
    fn a_revision_or_the_present_is_gone_to() {
        assert_eq!("7".parse(), Ok(To::Revision(7)));
        assert_eq!("present".parse(), Ok(To::Present));
        assert!("edge".parse::<To>().unwrap_err().contains("`history`"));
    }
}
