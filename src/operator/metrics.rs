//! The second reader that metrics come from: what stages published last, looked at when somebody asks.

use super::history::Lag;
use super::lease::Claim;
use super::stage::{Input, Translated};
use crate::agent::Ending;
use crate::delivery::ended::Endings;
use crate::delivery::feed::Agents;
use crate::ingest::cluster::{Health, WatchState};
use crate::model::FleetId;
use crate::status::ingress::Ingresses;
use crate::telemetry::{EndingLabels, FleetLabels, OperatorMetrics, ResourceLabels, WatchLabels, set_counter};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// What is looked at.
pub(super) struct Published {
    pub(super) health: watch::Receiver<Health>,
    /// The way into translation: of it only how full it is. It does not keep the stage running.
    pub(super) inputs: mpsc::WeakSender<Input>,
    pub(super) translated: watch::Receiver<Arc<Translated>>,
    pub(super) agents: watch::Receiver<Agents>,
    pub(super) ended: watch::Receiver<Arc<Endings>>,
    pub(super) ingresses: Arc<Mutex<Ingresses>>,
    pub(super) claim: watch::Receiver<Claim>,
}

impl Published {
    /// Brings `metrics` up to the present.
    pub(super) fn observe(&self, metrics: &OperatorMetrics) {
        let now = Instant::now();
        observe_watches(&self.health.borrow(), metrics);
        let waiting = self.inputs.upgrade().map_or(0, |inputs| inputs.max_capacity() - inputs.capacity());
        metrics.inputs_waiting.set(number(waiting));
        observe_agents(&self.translated.borrow().clone(), &self.agents.borrow().clone(), now, metrics);
        observe_endings(&self.translated.borrow(), &self.ended.borrow(), metrics);
        let due = self.ingresses.lock().unwrap_or_else(PoisonError::into_inner).waiting();
        metrics.ingress_statuses_waiting.set(number(due));
        let term = self.claim.borrow().term(now);
        metrics.leader.set(i64::from(term.is_some()));
        metrics.term.set(term.and_then(|term| i64::try_from(term).ok()).unwrap_or(0));
    }
}

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

fn observe_watches(health: &Health, metrics: &OperatorMetrics) {
    metrics.changes_waiting.set(number(health.waiting));
    set_counter(&metrics.changes_coalesced, health.coalesced);
    for (resource, kind) in health.kinds() {
        let labels = ResourceLabels { resource };
        set_counter(&metrics.watch_events.get_or_create(&labels), kind.events);
        set_counter(&metrics.watch_restarts.get_or_create(&labels), kind.restarts);
        set_counter(&metrics.watch_forbidden.get_or_create(&labels), kind.forbidden);
        if let Some(since) = kind.last_event.and_then(|last| last.duration_since(SystemTime::UNIX_EPOCH).ok()) {
            metrics.watch_last_event.get_or_create(&labels).set(since.as_secs_f64());
        }
        for state in WatchState::ALL {
            let count = kind.watches.get(&state).copied().unwrap_or(0);
            let labels = WatchLabels { resource: labels.resource.clone(), state: state.as_str() };
            metrics.watches.get_or_create(&labels).set(number(count));
        }
    }
}

fn observe_agents(translated: &Translated, agents: &Agents, now: Instant, metrics: &OperatorMetrics) {
    metrics.agents.clear();
    metrics.agents_behind.clear();
    metrics.lag_generations.clear();
    metrics.lag.clear();
    metrics.connections.clear();
    metrics.old_workers.clear();
    let mut lags: BTreeMap<&FleetId, Vec<Lag>> = translated.fleets.keys().map(|fleet| (fleet, Vec::new())).collect();
    let mut connections: BTreeMap<&FleetId, u64> = BTreeMap::new();
    let mut old_workers: BTreeMap<&FleetId, u32> = BTreeMap::new();
    for ((fleet, _), report) in agents.iter() {
        // agents of what is no fleet (any more) are nobody's
        let (Some(view), Some(lags)) = (translated.fleets.get(fleet), lags.get_mut(fleet)) else { continue };
        let confirmed = report.state.as_ref().map(|state| state.digest);
        lags.push(view.history.lag(confirmed, now));
        let open = connections.entry(fleet).or_default();
        *open = open.saturating_add(report.state.as_ref().map_or(0, |state| state.connections));
        let most = old_workers.entry(fleet).or_default();
        *most = report.state.as_ref().map_or(0, |state| state.old_workers).max(*most);
    }
    for (fleet, lags) in lags {
        let labels = FleetLabels { namespace: fleet.namespace.to_string(), fleet: fleet.name.to_string() };
        let open = connections.get(fleet).copied().unwrap_or_default();
        metrics.connections.get_or_create(&labels).set(i64::try_from(open).unwrap_or(i64::MAX));
        let behind = lags.iter().filter(|lag| lag.generations > 0).count();
        metrics.agents.get_or_create(&labels).set(number(lags.len()));
        metrics.old_workers.get_or_create(&labels).set(i64::from(old_workers.get(fleet).copied().unwrap_or(0)));
        metrics.agents_behind.get_or_create(&labels).set(number(behind));
        let generations = lags.iter().map(|lag| lag.generations).max().unwrap_or(0);
        metrics.lag_generations.get_or_create(&labels).set(number(generations));
        metrics.lag.get_or_create(&labels).set(lags.iter().map(|lag| lag.time).max().unwrap_or_default().as_secs_f64());
    }
}

fn observe_endings(translated: &Translated, endings: &Endings, metrics: &OperatorMetrics) {
    metrics.drained_connections.clear();
    for fleet in translated.fleets.keys() {
        // a rate can be taken from the first on
        let Ending { finished, closed, cut, unseen, .. } = endings.sums().get(fleet).copied().unwrap_or_default();
        for (how, count) in [("finished", finished), ("closed", closed), ("cut", cut), ("unseen", unseen)] {
            let labels = EndingLabels { namespace: fleet.namespace.to_string(), fleet: fleet.name.to_string(), how };
            set_counter(&metrics.drained_connections.get_or_create(&labels), count);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::delivery::Feeds;
    use crate::delivery::feed::{AgentReport, AgentState};
    use crate::haproxy::bundle::Digest;
    use crate::operator::history::History;
    use crate::operator::stage::FleetView;
    use crate::telemetry::Metrics;
    use std::time::Duration;

    fn report(digest: Option<u128>) -> Arc<AgentReport> {
        Arc::new(AgentReport {
            connected_since: SystemTime::UNIX_EPOCH,
            agent_version: String::new(),
            haproxy_version: String::new(),
            state: digest.map(|digest| AgentState {
                digest: Digest(digest),
                connections: 20,
                old_workers: u32::from(digest == 1) * 2,
                ..AgentState::default()
            }),
        })
    }

    #[test]
    fn a_fleet_tells_its_agents_and_how_far_the_last_of_them_is_behind() {
        let mut metrics = Metrics::default();
        let operator = OperatorMetrics::register(&mut metrics);
        let fleet = |name: &str| FleetId { namespace: "infra".into(), name: name.into() };
        let start = Instant::now();
        let mut history = History::default();
        for (digest, second) in [(1, 0), (2, 3), (3, 4)] {
            history.push(Digest(digest), start + Duration::from_secs(second));
        }
        let view = |history: History| FleetView {
            class: "edge".into(),
            generation: 3,
            digest: Digest(3),
            since: start,
            history: Arc::new(history),
            ..FleetView::new()
        };
        let fleets = BTreeMap::from([(fleet("edge"), view(history)), (fleet("idle"), view(History::default()))]);
        let translated = Translated { whole: true, fleets, ..Translated::default() };
        let agents = [("edge", "a", Some(3)), ("edge", "b", Some(1)), ("edge", "c", Some(2)), ("gone", "d", None)];
        let agents: Agents =
            Arc::new(agents.into_iter().map(|(name, pod, digest)| ((fleet(name), pod.to_owned()), report(digest))).collect());
        observe_agents(&translated, &agents, start + Duration::from_secs(10), &operator);
        let feeds = Feeds::new();
        for (name, cut) in [("edge", 2), ("edge", 3), ("gone", 4)] {
            let report = AgentReport::clone(&report(None));
            feeds.connected(&fleet(name), "a", report).ended(Ending { finished: 7, cut, ..Ending::default() });
        }
        observe_endings(&translated, &feeds.ended().borrow(), &operator);
        let text = metrics.encode().unwrap();
        for line in [
            r#"haproxy_fleet_agents{namespace="infra",fleet="edge"} 3"#,
            r#"haproxy_fleet_agents_behind{namespace="infra",fleet="edge"} 2"#,
            r#"haproxy_fleet_old_workers{namespace="infra",fleet="edge"} 2"#,
            r#"haproxy_fleet_lag_generations{namespace="infra",fleet="edge"} 2"#,
            r#"haproxy_fleet_lag_seconds{namespace="infra",fleet="edge"} 7.0"#,
            r#"haproxy_fleet_connections{namespace="infra",fleet="edge"} 60"#,
            r#"haproxy_fleet_drained_connections_total{namespace="infra",fleet="edge",how="finished"} 14"#,
            r#"haproxy_fleet_drained_connections_total{namespace="infra",fleet="edge",how="cut"} 5"#,
            r#"haproxy_fleet_drained_connections_total{namespace="infra",fleet="idle",how="cut"} 0"#,
            r#"haproxy_fleet_agents{namespace="infra",fleet="idle"} 0"#,
            r#"haproxy_fleet_lag_seconds{namespace="infra",fleet="idle"} 0.0"#,
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        assert!(!text.contains("gone"), "{text}");
    }
}
