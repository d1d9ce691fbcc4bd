//! `history` and `rollback`: the revisions of a fleet's configuration that are kept, and going back to one.

use super::admin::Admin;
use super::choice::FleetName;
use super::{LOOK, Verbs, Whose, block_on, choice};
use crate::admin::Order;
use crate::cli::report::printable;
use crate::cli::{Error, Exit, Output};
use clap::Args;
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
certificates stay those of now. Until --present, changes of routes have no effect.

Examples:
  kubectl haproxy-fleet rollback 7 edge -n ingress
  kubectl haproxy-fleet rollback --present edge -n ingress
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
    /// The revision
    #[arg(value_name = "REVISION", required_unless_present = "present")]
    revision: Option<String>,
    /// Go back to what is asked for now: no revision is named then, but the fleet may be
    #[arg(long)]
    present: bool,
    #[command(flatten)]
    whose: Whose,
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

impl RollbackArguments {
    /// The revision, or none for the present, and whose.
    fn read(&self) -> Result<(Option<u64>, Whose), Error> {
        let mut whose = self.whose.clone();
        let wrong =
            |error: String| Error::new(error, "write rollback REVISION [[NAMESPACE/]FLEET], or rollback --present [[NAMESPACE/]FLEET]");
        match (self.present, &self.revision, &whose.fleet) {
            (true, None, _) => Ok((None, whose)),
            (true, Some(fleet), None) => {
                whose.fleet = Some(fleet.parse().map_err(wrong)?);
                Ok((None, whose))
            }
            (true, Some(_), Some(_)) => Err(wrong("a revision is no present".to_owned())),
            (false, revision, _) => {
                let revision = revision.as_deref().unwrap_or_default();
                let number = revision.parse().map_err(|_| wrong(format!("{revision:?} is no number of a revision")))?;
                Ok((Some(number), whose))
            }
        }
    }
}

pub(in crate::cli) fn rollback(arguments: &RollbackArguments, out: &mut Output) -> Result<Exit, Error> {
    let (revision, whose) = arguments.read()?;
    block_on(async {
        match whose.admin {
            Some(address) => go(&Admin { address }, whose.fleet.as_ref(), revision, out).await,
            None => go(&whose.cluster().await?, whose.fleet.as_ref(), revision, out).await,
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

async fn go<V: Verbs>(verbs: &V, named: Option<&FleetName>, revision: Option<u64>, out: &mut Output) -> Result<Exit, Error> {
    let status = verbs.status().await?;
    let fleet = choice::fleet(&status, named, None)?;
    let before = verbs.serves(fleet).await?.revision;
    let began = Instant::now();
    let done = verbs.order(fleet, &Order::Rollback(revision)).await?;
    out.line(&printable(&done.message, false))?;
    loop {
        let serves = verbs.serves(fleet).await?;
        let is_it = match revision {
            Some(_) => serves.revision == revision,
            None => serves.pinned.is_none() && (serves.revision != before || began.elapsed() >= V::SAYS_WITHIN),
        };
        if is_it && serves.is_confirmed() {
            let number = serves.revision.map(|number| number.to_string()).unwrap_or_default();
            out.line(&printable(&format!("revision {number} is confirmed by {} pods", serves.confirmed), false))?;
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
    /// How many pods confirm it, of how many that serve, as in `2/3`.
    pub(super) confirmed: String,
}

impl Serves {
    /// Whether every pod that serves confirms what it should.
    fn is_confirmed(&self) -> bool {
        self.confirmed.split_once('/').is_some_and(|(confirmed, all)| confirmed == all && all != "0")
    }
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
    let help = if numbers.is_empty() { "none is yet".to_owned() } else { format!("choose one of {}", numbers.join(", ")) };
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
    use clap::Parser;

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
    fn a_fleet_is_named_after_the_revision_or_the_present() {
        let read = |line: &str| {
            #[derive(Parser)]
            struct Line {
                #[command(flatten)]
                arguments: RollbackArguments,
            }
            let arguments = Line::try_parse_from(["rollback"].into_iter().chain(line.split(' '))).unwrap().arguments;
            let (revision, whose) = arguments.read().map_err(|error| error.to_string())?;
            Ok::<_, String>((revision, whose.fleet))
        };
        let edge = Some("infra/edge".parse().unwrap());
        assert_eq!(read("7 infra/edge"), Ok((Some(7), edge.clone())));
        assert_eq!(read("7"), Ok((Some(7), None)));
        assert_eq!(read("--present infra/edge"), Ok((None, edge.clone())));
        assert_eq!(read("infra/edge --present"), Ok((None, edge)));
        assert_eq!(read("--present"), Ok((None, None)));
        assert!(read("edge").unwrap_err().contains("\"edge\" is no number of a revision"));
        assert!(read("7 edge --present").unwrap_err().contains("write rollback REVISION"));
    }

    #[test]
    fn a_revision_is_confirmed_by_all_pods_that_serve_and_by_one_at_least() {
        let is = |text: &str| Serves { confirmed: text.into(), ..Serves::default() }.is_confirmed();
        assert!(is("3/3") && !is("2/3") && !is("0/0") && !is(""));
    }
}
