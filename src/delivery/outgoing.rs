//! What an agent says on a stream: hello, then its state whenever that changed, and how its HAProxy ended as the last
//! word. It is made when the connection has room for it, so nothing queues up.

use super::proto::{self, from_agent};
use super::wire;
use crate::agent::{Ending, Health, ReloadRecord, Status};
use futures::{Stream, stream};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// The least time between two reports.
const INTERVAL: Duration = Duration::from_millis(50);
/// Refusals that are reported, and characters of each.
const REFUSALS: usize = 500;
const REFUSAL: usize = 2000;

struct Voice {
    hello: Option<proto::Hello>,
    status: watch::Receiver<Status>,
    /// Counts how often everything was asked for.
    asked: watch::Receiver<u64>,
    /// The last word, once there is one.
    ending: watch::Receiver<Option<Ending>>,
    ended: bool,
    /// Reloads that were reported.
    reloads: u64,
    reported: Option<Instant>,
}

/// The messages of one stream. It ends when the agent, or whoever counts in `asked`, does, and with the last word.
pub(super) fn messages(
    hello: proto::Hello,
    status: watch::Receiver<Status>,
    asked: watch::Receiver<u64>,
    ending: watch::Receiver<Option<Ending>>,
) -> impl Stream<Item = proto::FromAgent> + Send + 'static {
    let voice = Voice { hello: Some(hello), status, asked, ending, ended: false, reloads: 0, reported: None };
    stream::unfold(voice, |mut voice| async move {
        let kind = voice.next().await?;
        Some((proto::FromAgent { kind: Some(kind) }, voice))
    })
}

impl Voice {
    async fn next(&mut self) -> Option<from_agent::Kind> {
        if let Some(hello) = self.hello.take() {
            return Some(from_agent::Kind::Hello(hello));
        }
        if self.ended {
            return None;
        }
        if let Some(last) = self.reported {
            let (status, ending) = (&mut self.status, &mut self.ending);
            tokio::select! {
                ending = async { ending.wait_for(Option::is_some).await.ok().and_then(|ending| *ending) } => {
                    self.ended = true;
                    return Some(from_agent::Kind::Ended(ended(ending?)));
                }
                changed = async { tokio::time::sleep_until(last + INTERVAL).await; status.changed().await } => changed.ok()?,
                asked = self.asked.changed() => {
                    asked.ok()?;
                    return Some(from_agent::Kind::Resync(proto::Resync {}));
                }
            }
        }
        self.reported = Some(Instant::now());
        let status = self.status.borrow_and_update();
        let report = report(&status, self.reloads);
        self.reloads = status.reload_count;
        Some(from_agent::Kind::Report(report))
    }
}

fn ended(ending: Ending) -> proto::Ended {
    let Ending { finished, closed, cut, unseen, forced, time } = ending;
    proto::Ended { finished, closed, cut, unseen, forced, millis: u64::try_from(time.as_millis()).unwrap_or(u64::MAX) }
}

/// The report of `status` to somebody who knows of the first `known` reloads.
fn report(status: &Status, known: u64) -> proto::Report {
    let new = usize::try_from(status.reload_count.saturating_sub(known)).unwrap_or(usize::MAX).min(status.reloads.len());
    let reload = |record: &ReloadRecord| proto::Reload { generation: record.generation, reason: record.reason.clone() };
    let refused = status.refused.iter().take(REFUSALS).map(|refusal| proto::Refusal {
        generation: refusal.generation,
        resource: Some(wire::encode_key(&refusal.resource)),
        sources: wire::encode_sources(&refusal.sources),
        message: refusal.message.chars().take(REFUSAL).collect(),
    });
    proto::Report {
        generation: status.generation,
        digest: wire::hash_bytes(status.digest.0),
        ready: status.ready,
        last_good: status.last_good,
        waiting: count(status.waiting),
        held: count(status.held),
        reload_count: status.reload_count,
        reloads: status.reloads.iter().skip(status.reloads.len() - new).map(reload).collect(),
        refused: refused.collect(),
        refused_count: count(status.refused.len()),
        runtime_commands: status.runtime_commands,
        drift_repairs: status.drift_repairs,
        restarts: status.restarts,
        failed_starts: status.failed_starts,
        connections: status.connections,
        drained: status.drained,
        reload_pending: status.reload_pending,
        held_from: status.held_from,
        old_workers: count(status.old_workers),
        health: status.health.map(health),
    }
}

fn health(health: Health) -> proto::Health {
    let Health { number, requests, failed, queued, down, reloads } = health;
    proto::Health { number, requests, failed, queued, down, reloads }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
