//! Follows a rollout on a terminal: its tree, drawn over as it changes.

use super::choice::{self, FleetName};
use super::pods::{HasPods, Pod};
use super::{LOOK, Verbs, known, progress, tree};
use crate::cli::report::{Style, printable};
use crate::cli::screen::{self, Screen};
use crate::cli::{Error, Exit, Output};
use crate::status::json::Fleet;
use std::time::Duration;
use tokio::time::Instant;

/// How soon pods are asked for again where they cannot be seen.
const RETRY: Duration = Duration::from_secs(30);

/// After an interrupt the terminal drops what it has not shown: that may be the end of a colour.
const PLAIN_AGAIN: &str = "\x1b[0m\n";

/// Draws the tree until the rollout is over, or once unless it is to `watch`; then says what came of it.
pub(super) async fn follow(
    verbs: &(impl Verbs + HasPods),
    named: Option<&FleetName>,
    watch: bool,
    out: &mut Output,
) -> Result<Exit, Error> {
    tokio::select! {
        ended = draw(verbs, named, watch, out) => ended,
        Ok(()) = tokio::signal::ctrl_c() => {
            out.write(PLAIN_AGAIN)?;
            Ok(Exit::Findings)
        }
    }
}

async fn draw(verbs: &(impl Verbs + HasPods), named: Option<&FleetName>, watch: bool, out: &mut Output) -> Result<Exit, Error> {
    let (mut screen, mut seen) = (Screen::default(), Seen::default());
    loop {
        let status = known(verbs, named).await?;
        let fleet = choice::fleet(&status, named, None)?;
        let progress = progress::of(fleet)?;
        let is_last = progress.is_over || !watch;
        let pods = seen.pods(verbs, fleet, is_last).await;
        screen.draw(&frame(fleet, pods, is_last, out.has_colours()), out)?;
        if is_last {
            // the tree has said the rest
            let verdict = progress.lines.first().map_or("", String::as_str);
            out.line(&printable(verdict, false))?;
            return Ok(if progress.is_done { Exit::Success } else { Exit::Findings });
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The tree as it fits the terminal now; the last one, which nothing is drawn over, in its full height.
fn frame(fleet: &Fleet, pods: &[Pod], is_last: bool, colours: bool) -> String {
    let (columns, lines) = screen::size();
    // a terminal may go on to the next line once the last column is written
    let width = columns.saturating_sub(1);
    let rows = tree::rows(fleet, pods, width);
    let rows = if is_last { rows } else { tree::fitting(rows, lines, width) };
    tree::frame(&rows, Style { colours })
}

/// The pods that were seen last.
#[derive(Default)]
struct Seen {
    pods: Vec<Pod>,
    due: Option<Instant>,
}

impl Seen {
    /// The pods of `fleet`, which are looked at if it is time, or `now`.
    async fn pods<V: HasPods>(&mut self, verbs: &V, fleet: &Fleet, now: bool) -> &[Pod] {
        if now || self.due.is_none_or(|due| due <= Instant::now()) {
            let found = verbs.pods(fleet).await;
            self.due = Some(Instant::now() + if found.is_some() { V::EVERY } else { RETRY });
            self.pods = found.unwrap_or_default();
        }
        &self.pods
    }
}
