//! What happens, one line for each thing: for terminals that cannot do more, logs and programs.

use super::urls::command;
use super::view::{STOPPING, Shown, brief, url};
use crate::cli::report::printable;
use crate::status::json::{Diagnostic, Fleet, Replica, Rollout, Status};
use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::Arc;

/// Findings that come or go at once and are told one by one.
const TOLD: usize = 20;

/// Remembers what it has told.
#[derive(Debug, Default)]
pub(super) struct Teller {
    before: Arc<Status>,
    seen: bool,
    stopping: bool,
    /// The generation that was told to be served everywhere, by fleet.
    served: BTreeMap<String, u64>,
}

impl Teller {
    /// The lines for what is new in `now`.
    pub(super) fn tell(&mut self, now: &Shown) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(status) = &now.status {
            self.tell_status(status, now, &mut lines);
            self.before = status.clone();
            self.seen = true;
        }
        if now.stopping && !self.stopping {
            lines.push(STOPPING.to_owned());
            self.stopping = true;
        }
        lines.iter().map(|line| printable(line, false)).collect()
    }

    fn tell_status(&mut self, now: &Status, shown: &Shown, lines: &mut Vec<String>) {
        let before = self.before.clone();
        let mut moved = false;
        if !self.seen && now.fleets.is_empty() {
            lines.push("no fleet: there is no IngressDeployment in the input".to_owned());
        }
        for fleet in &now.fleets {
            let old = before.fleets.iter().find(|old| (&old.namespace, &old.name) == (&fleet.namespace, &fleet.name));
            if old.is_none_or(|old| old.listeners != fleet.listeners) {
                moved = true;
                introduce(fleet, lines);
            }
            self.tell_fleet(old, fleet, lines);
        }
        for old in &before.fleets {
            if !now.fleets.iter().any(|fleet| (&old.namespace, &old.name) == (&fleet.namespace, &fleet.name)) {
                let id = format!("{}/{}", old.namespace, old.name);
                self.served.remove(&id);
                lines.push(format!("fleet {id}: gone"));
            }
        }
        findings(&before.diagnostics, &now.diagnostics, lines);
        if let Some(admin) = shown.admin.filter(|_| !self.seen) {
            lines.push(format!("admin: http://{admin}/status (also /healthz, /readyz, /metrics)"));
        }
        if now.ready && (!before.ready || moved) {
            let replicas: usize = now.fleets.iter().map(|fleet| fleet.replicas.len()).sum();
            lines.push(format!(
                "ready: {replicas} {} up; change the files and they follow",
                if replicas == 1 { "replica is" } else { "replicas are" }
            ));
        } else if before.ready && !now.ready && !shown.stopping {
            lines.push("not ready".to_owned());
        }
    }

    fn tell_fleet(&mut self, before: Option<&Fleet>, now: &Fleet, lines: &mut Vec<String>) {
        let id = format!("{}/{}", now.namespace, now.name);
        let starting = !self.served.contains_key(&id);
        let old = before.map_or(&[][..], |fleet| &fleet.replicas);
        let mut reloads: BTreeMap<(u64, &str), Vec<&str>> = BTreeMap::new();
        for replica in &now.replicas {
            let old = old.iter().find(|old| old.name == replica.name);
            if old.is_none_or(|old| old.listeners != replica.listeners) && !replica.listeners.is_empty() && !starting {
                let own: Vec<String> = replica.listeners.iter().map(url).collect();
                lines.push(format!("fleet {id}: replica {} is at {}", replica.name, own.join(" and ")));
            }
            if old.is_some_and(|old| old.ready != replica.ready) && !starting {
                lines.push(format!("fleet {id}: replica {} is {}", replica.name, if replica.ready { "ready" } else { "not ready" }));
            }
            for reload in new_reloads(old, replica) {
                reloads.entry((reload.generation, &reload.reason)).or_default().push(&replica.name);
            }
            for refused in replica.refused.iter().filter(|refused| !old.is_some_and(|old| old.refused.contains(refused))) {
                lines.push(format!("fleet {id}: replica {}: HAProxy refused a part of generation {}", replica.name, refused.generation));
            }
        }
        if !starting {
            for ((generation, reason), names) in reloads {
                lines.push(format!("fleet {id}: reload of {} for generation {generation}: {reason}", names.join(", ")));
            }
            for gone in old.iter().filter(|old| !now.replicas.iter().any(|replica| replica.name == old.name)) {
                lines.push(format!("fleet {id}: replica {} is gone", gone.name));
            }
        }
        tell_rollout(&id, before.and_then(|fleet| fleet.rollout.as_ref()), now.rollout.as_ref(), lines);
        let everywhere =
            !now.replicas.is_empty() && now.replicas.iter().all(|replica| replica.ready && replica.generation == now.generation);
        if everywhere && self.served.insert(id.clone(), now.generation) != Some(now.generation) && !starting {
            lines.push(format!("fleet {id}: generation {} (revision {}) is served by all replicas", now.generation, now.revision));
        }
    }
}

/// That a rollout does not go on by itself any more, and why, or that it does again.
fn tell_rollout(id: &str, before: Option<&Rollout>, now: Option<&Rollout>, lines: &mut Vec<String>) {
    let stands = |rollout: &&Rollout| !["AsAsked", "Progressing"].contains(&rollout.state.as_str());
    let (before, now) = (before.filter(stands), now.filter(stands));
    match (before, now) {
        (_, Some(now)) if before.is_none_or(|before| before.reasons != now.reasons) => {
            lines.push(format!("fleet {id}: the rollout stands: {}", now.reasons.join("; ")));
        }
        (Some(_), None) => lines.push(format!("fleet {id}: the rollout goes on")),
        _ => {}
    }
}

/// All that a fleet is reached by.
fn introduce(fleet: &Fleet, lines: &mut Vec<String>) {
    let stable: Vec<String> = fleet.listeners.iter().map(url).collect();
    lines.push(format!("fleet {}/{} is at {}", fleet.namespace, fleet.name, stable.join(" and ")));
    let names = fleet.replicas.iter().map(|replica| replica.name.chars().count()).max().unwrap_or(0);
    for replica in &fleet.replicas {
        let own: Vec<String> = replica.listeners.iter().map(url).collect();
        let zone = replica.zone.as_ref().map(|zone| format!("  {zone}")).unwrap_or_default();
        lines.push(format!("  {:<names$}{zone}  {}", replica.name, own.join("  ")));
    }
    for url in &fleet.urls {
        lines.push(format!("  {}", command(url, Ipv4Addr::LOCALHOST.into())));
    }
}

fn new_reloads<'a>(before: Option<&Replica>, now: &'a Replica) -> impl Iterator<Item = &'a crate::status::json::Reload> {
    let seen = before.map_or(0, |before| before.reload_count);
    let new = usize::try_from(now.reload_count.saturating_sub(seen)).unwrap_or(usize::MAX);
    now.reloads.iter().skip(now.reloads.len().saturating_sub(new))
}

fn findings(before: &[Diagnostic], now: &[Diagnostic], lines: &mut Vec<String>) {
    if before == now {
        return;
    }
    let (old, new): (BTreeSet<&Diagnostic>, BTreeSet<&Diagnostic>) = (before.iter().collect(), now.iter().collect());
    let tell = |lines: &mut Vec<String>, all: Vec<&Diagnostic>, what: &str, help: bool| {
        for finding in all.iter().take(TOLD) {
            lines.push(format!("{what}{}", brief(finding)));
            if help && !finding.help.is_empty() {
                lines.push(format!("  help: {}", finding.help));
            }
        }
        if all.len() > TOLD {
            lines.push(format!("… and {} more: see /status or `haproxy-fleet lint`", all.len() - TOLD));
        }
    };
    tell(lines, new.difference(&old).copied().collect(), "", true);
    tell(lines, old.difference(&new).copied().collect(), "solved: ", false);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::json::{Listener, Object, Protocol, Reload};

    fn finding(number: usize) -> Diagnostic {
        Diagnostic {
            code: "NotFound".into(),
            severity: "error".into(),
            object: Object { kind: "Ingress".into(), namespace: "shop".into(), name: format!("web-{number:03}") },
            field: String::new(),
            message: "no Service \x1b[2J".into(),
            help: "create it".into(),
            file: Some("a.yaml".into()),
            line: Some(3),
        }
    }

    fn status() -> Status {
        let listener = |address: &str| Listener { name: "http".into(), protocol: Protocol::Http, address: address.into() };
        let replica = |name: &str, address: &str| Replica {
            name: name.into(),
            ready: true,
            generation: 4,
            listeners: vec![listener(address)],
            ..Replica::default()
        };
        let fleet = Fleet {
            namespace: "edge".into(),
            name: "public".into(),
            revision: 2,
            generation: 4,
            listeners: vec![listener("127.0.0.1:8080")],
            replicas: vec![replica("public-0", "127.1.0.1:8080"), replica("public-1", "127.1.0.2:8080")],
            urls: vec!["http://shop.localhost:8080/".into()],
            ..Fleet::default()
        };
        Status { ready: true, fleets: vec![fleet], diagnostics: vec![finding(0)], ..Status::default() }
    }

    fn told(teller: &mut Teller, status: &Status) -> Vec<String> {
        teller.tell(&Shown { status: Some(Arc::new(status.clone())), ..Shown::default() })
    }

    #[test]
    fn a_start_tells_all_addresses_and_then_that_it_is_ready() {
        let mut teller = Teller::default();
        assert!(teller.tell(&Shown::default()).is_empty());
        assert_eq!(
            told(&mut teller, &status()),
            [
                "fleet edge/public is at http://127.0.0.1:8080",
                "  public-0  http://127.1.0.1:8080",
                "  public-1  http://127.1.0.2:8080",
                "  curl http://shop.localhost:8080/",
                "error[NotFound] a.yaml:3: Ingress shop/web-000: no Service \\u{1b}[2J",
                "  help: create it",
                "ready: 2 replicas are up; change the files and they follow",
            ]
        );
        assert!(told(&mut teller, &status()).is_empty());
    }

    #[test]
    fn a_change_is_told_once_for_all_replicas() {
        let mut teller = Teller::default();
        told(&mut teller, &status());
        let mut next = status();
        next.diagnostics.clear();
        (next.fleets[0].generation, next.fleets[0].revision) = (5, 3);
        next.fleets[0].replicas[0].generation = 5;
        assert_eq!(told(&mut teller, &next), ["solved: error[NotFound] a.yaml:3: Ingress shop/web-000: no Service \\u{1b}[2J"]);
        for replica in &mut next.fleets[0].replicas {
            (replica.generation, replica.reload_count) = (5, 1);
            replica.reloads.push(Reload { generation: 5, reason: "a new shape".into(), ..Reload::default() });
        }
        assert_eq!(
            told(&mut teller, &next),
            [
                "fleet edge/public: reload of public-0, public-1 for generation 5: a new shape",
                "fleet edge/public: generation 5 (revision 3) is served by all replicas",
            ]
        );
    }

    #[test]
    fn a_replica_that_comes_later_tells_where_it_is_and_a_rollout_why_it_stands() {
        let mut teller = Teller::default();
        let mut now = status();
        told(&mut teller, &now);
        let mut new = now.fleets[0].replicas[0].clone();
        new.name = "public-2".into();
        new.listeners[0].address = "127.1.0.3:8080".into();
        now.fleets[0].replicas.push(new);
        now.fleets[0].replicas.remove(0);
        let rollout = |state: &str| Some(Rollout { state: state.into(), reasons: vec!["a pod is late".into()], ..Rollout::default() });
        now.fleets[0].rollout = rollout("Stalled");
        assert_eq!(
            told(&mut teller, &now),
            [
                "fleet edge/public: replica public-2 is at http://127.1.0.3:8080",
                "fleet edge/public: replica public-0 is gone",
                "fleet edge/public: the rollout stands: a pod is late",
            ]
        );
        now.fleets[0].rollout = rollout("Progressing");
        assert_eq!(told(&mut teller, &now), ["fleet edge/public: the rollout goes on"]);
    }

    #[test]
    fn thousands_of_findings_are_not_told_one_by_one() {
        let mut teller = Teller::default();
        let many = Status { diagnostics: (0..5000).map(finding).collect(), ..status() };
        let lines = told(&mut teller, &many);
        assert!(lines.len() < 60, "{}", lines.len());
        assert!(lines.iter().any(|line| line == "… and 4980 more: see /status or `haproxy-fleet lint`"), "{lines:?}");
    }
}
