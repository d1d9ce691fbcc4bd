//! How HAProxy fares while a change spreads: what the operator compares between pods that have it and those that do not.
//!
//! It is looked at only while a reload is waited for and for a while after one: with 5,000 backends a look takes HAProxy
//! 50 ms of processor time, in pieces. Each look has a connection of its own: nothing that is applied waits for it, and a
//! worker that is to end does not wait for one that stays open.

use super::apply::Shared;
use super::runtime::{Command, Master, Session};
use super::status::Status;
use crate::haproxy::plan::service_of;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

/// How often it is looked.
const INTERVAL: Duration = Duration::from_secs(2);
/// For how long after the last reason to look.
const AFTERWARDS: Duration = Duration::from_secs(60);

/// One look at a HAProxy. What is counted begins anew with every worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Which look of this agent.
    pub number: u64,
    /// Requests that were answered.
    pub requests: u64,
    /// Of these, with a status from 500 on.
    pub failed: u64,
    /// Requests that wait for a server.
    pub queued: u64,
    /// Backends all of whose servers are down.
    pub down: u64,
    /// How often HAProxy was reloaded before the worker that says so.
    pub reloads: u64,
}

/// Looks as long as somebody may want to know, until it is aborted.
pub(super) async fn run(shared: Arc<Mutex<Shared>>, master: Master, status: watch::Sender<Status>) {
    let mut said = status.subscribe();
    let (mut reloads, mut until, mut number) = (0, Instant::now(), 0);
    let mut known = Known::default();
    loop {
        let wanted = {
            let said = said.borrow_and_update();
            let reloaded = std::mem::replace(&mut reloads, said.reload_count) != said.reload_count;
            if said.held > 0 || said.reload_pending || reloaded {
                until = Instant::now() + AFTERWARDS;
            }
            Instant::now() < until
        };
        if !wanted {
            status.send_if_modified(|status| status.health.take().is_some());
            known = Known::default();
            // the sender is here
            let _ = said.changed().await;
            continue;
        }
        match look(&shared, &master).await {
            Ok(Some((worker, mut health, backends))) => {
                number += 1;
                health.down = known.down(worker, &backends);
                status.send_modify(|status| status.health = Some(Health { number, reloads: status.reload_count, ..health }));
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "HAProxy does not say how it fares"),
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// `None` while no worker serves.
async fn look(shared: &Mutex<Shared>, master: &Master) -> io::Result<Option<(u32, Health, Backends)>> {
    let Some(worker) = shared.lock().await.worker else { return Ok(None) };
    let mut session = Session::open(&master.socket, worker, Duration::from_secs(2)).await?;
    let answers = session.exchange(&[Command::plain("show stat -1 1 -1"), Command::plain("show stat -1 2 -1")]).await?;
    // a reload that came in between has other figures
    let is_same = shared.lock().await.worker == Some(worker);
    Ok(is_same.then(|| {
        let (health, backends) = health(&answers[0], &answers[1]);
        (worker, health, backends)
    }))
}

/// Backends by name, and whether they are down.
type Backends = BTreeMap<String, bool>;

/// The services whose backends a HAProxy had before its last reload. One that came with it is down nowhere else, as it is
/// nowhere else: that says nothing about what it came with. A service that was there has another backend once its policy is
/// another one.
#[derive(Debug, Default)]
struct Known {
    worker: u32,
    before: Option<BTreeSet<String>>,
    last: Option<BTreeSet<String>>,
}

impl Known {
    /// How many of `backends`, which are those of `worker`, are down and were there before it.
    fn down(&mut self, worker: u32, backends: &Backends) -> u64 {
        if self.worker != worker {
            (self.worker, self.before) = (worker, self.last.take());
        }
        let service = |name: &str| service_of(name).unwrap_or(name).to_owned();
        let is_old = |name: &String| self.before.as_ref().is_none_or(|before| before.contains(&service(name)));
        let down = backends.iter().filter(|(name, down)| **down && is_old(name)).count();
        self.last = Some(backends.keys().map(|name| service(name)).collect());
        down as u64
    }
}

/// From the statistics of frontends and of backends.
fn health(frontends: &str, backends: &str) -> (Health, Backends) {
    let mut health = Health::default();
    for row in rows(frontends, &["pxname", "req_tot", "hrsp_5xx"]) {
        // ours answer nobody but ourselves
        if !row[0].starts_with('_') {
            health.requests += row[1].parse().unwrap_or(0);
            health.failed += row[2].parse().unwrap_or(0);
        }
    }
    let mut all = Backends::new();
    for row in rows(backends, &["pxname", "qcur", "status"]) {
        health.queued += row[1].parse().unwrap_or(0);
        all.insert(row[0].to_owned(), row[2].starts_with("DOWN"));
    }
    (health, all)
}

/// The columns that are called `names`, of all rows. An answer without one of them has none.
fn rows<'t, const COLUMNS: usize>(text: &'t str, names: &[&str; COLUMNS]) -> Vec<[&'t str; COLUMNS]> {
    let mut lines = text.lines();
    let Some(header) = lines.next().and_then(|line| line.strip_prefix("# ")) else { return Vec::new() };
    let places: Vec<usize> = names.iter().filter_map(|name| header.split(',').position(|column| column == *name)).collect();
    let Ok(places) = <[usize; COLUMNS]>::try_from(places) else { return Vec::new() };
    let row = |line: &'t str| {
        let fields: Vec<&str> = line.split(',').collect();
        (fields.len() > 1).then(|| places.map(|place| fields.get(place).copied().unwrap_or_default()))
    };
    lines.filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_found_by_the_names_of_their_columns() {
        let frontends = "# pxname,svname,qcur,status,req_tot,hrsp_5xx,\nhttp,FRONTEND,,OPEN,100,7,\n_health,FRONTEND,,OPEN,9,9,\n\
            https,FRONTEND,,OPEN,20,1,\n\n";
        let backends = "# pxname,svname,qcur,status,req_tot,hrsp_5xx,\na,BACKEND,3,UP,1,1,\nb,BACKEND,4,DOWN,1,1,\n\n";
        let all = Backends::from([("a".to_owned(), false), ("b".to_owned(), true)]);
        assert_eq!(health(frontends, backends), (Health { requests: 120, failed: 8, queued: 7, ..Health::default() }, all));
        assert_eq!(health("Unknown command\n", ""), (Health::default(), Backends::new()));
    }

    #[test]
    fn a_backend_that_came_with_the_last_reload_is_not_down_on_its_account() {
        let backends = |all: &[(&str, bool)]| all.iter().map(|(name, down)| ((*name).to_owned(), *down)).collect::<Backends>();
        let mut known = Known::default();
        assert_eq!(known.down(1, &backends(&[("a", false), ("b", true)])), 1, "nobody looked before");
        let after = backends(&[("a", true), ("b", true), ("new", true)]);
        assert_eq!((known.down(2, &after), known.down(2, &after)), (2, 2));
        assert_eq!(known.down(3, &after), 3, "by now it is one of them");
    }

    #[test]
    fn a_backend_that_is_down_with_another_policy_of_its_service_is() {
        let one = |name: &str, down| Backends::from([(name.to_owned(), down)]);
        let mut known = Known::default();
        assert_eq!(known.down(1, &one("shop_web_80_h1", false)), 0);
        assert_eq!(known.down(2, &one("shop_web_80_h2", true)), 1);
        assert_eq!(known.down(3, &one("shop_web_81_h2", true)), 0, "of another port");
    }
}
