//! The registry and everything in it.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Metric, Registry, Unit};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// What all names begin with.
const PREFIX: &str = "haproxy_fleet";

/// Labels with their names, for the documentation.
pub trait Labels {
    /// Their names, in order.
    const NAMES: &'static [&'static str];
}

macro_rules! labels {
    ($(#[$about:meta])* $name:ident { $($(#[$meaning:meta])* $label:ident: $kind:ty,)* }) => {
        $(#[$about])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
        pub struct $name { $($(#[$meaning])* pub $label: $kind,)* }

        impl Labels for $name {
            const NAMES: &'static [&'static str] = &[$(stringify!($label)),*];
        }
    };
}

labels! {
    /// Which fleet.
    FleetLabels {
        /// Its namespace.
        namespace: String,
        /// Its name.
        fleet: String,
    }
}

labels! {
    /// Connections to pods of a fleet that ended in one way.
    EndingLabels {
        /// The namespace of the fleet.
        namespace: String,
        /// Its name.
        fleet: String,
        /// `finished`, `closed`, `cut` or `unseen`.
        how: &'static str,
    }
}

labels! {
    /// Reloads of a fleet of one kind.
    ReloadLabels {
        /// The namespace of the fleet.
        namespace: String,
        /// Its name.
        fleet: String,
        /// What asked for them: one of a dozen words.
        reason: String,
    }
}

labels! {
    /// Findings of one kind.
    DiagnosticLabels {
        /// The kind of object; `other` for what is no kind that is read.
        kind: String,
        /// `error`, `warning` or `info`.
        severity: String,
        /// The code of the finding.
        code: String,
    }
}

labels! {
    /// A part of the way from a change to the agents.
    StepLabels {
        /// `wait`, `translate`, `render` or `publish`.
        step: &'static str,
    }
}

labels! {
    /// A kind of object of the API server.
    ResourceLabels {
        /// `PLURAL.GROUP`.
        resource: String,
    }
}

labels! {
    /// Watches of a kind in one state.
    WatchLabels {
        /// `PLURAL.GROUP`.
        resource: String,
        /// `up`, `starting`, `failing`, `forbidden` or `absent`.
        state: &'static str,
    }
}

labels! {
    /// Writes to the API server.
    WriteLabels {
        /// `PLURAL.GROUP`, with `/status` and the like.
        resource: String,
        /// `create`, `update`, `patch` or `delete`.
        verb: &'static str,
        /// `done`, `conflict`, `forbidden`, `refused`, `failed` or `fenced`.
        outcome: &'static str,
    }
}

/// A metric that is registered, for the documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Described {
    /// As it is read.
    pub name: String,
    /// `gauge`, `counter` or `histogram`.
    pub kind: String,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

/// All metrics, with the registry that they are read from. No global state: tests have their own.
pub struct Metrics {
    registry: Registry,
    described: Vec<Described>,
    /// Generation that a fleet is meant to serve.
    pub generation: Family<FleetLabels, Gauge>,
    /// Replicas of a fleet.
    pub replicas: Family<FleetLabels, Gauge>,
    /// Replicas of a fleet that serve.
    pub ready_replicas: Family<FleetLabels, Gauge>,
    /// Reloads of a fleet's replicas.
    pub reloads: Family<ReloadLabels, Counter>,
    /// Runtime commands to a fleet's replicas.
    pub runtime_commands: Family<FleetLabels, Counter>,
    /// Resources that a fleet's replicas do not serve because HAProxy refused them.
    pub refused: Family<FleetLabels, Gauge>,
    /// Refusals of a fleet's replicas.
    pub refusals: Family<FleetLabels, Counter>,
    /// Present findings.
    pub diagnostics: Family<DiagnosticLabels, Gauge>,
    /// From a change of the input to bundles that follow it.
    pub pipeline: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix(PREFIX),
            described: Vec::new(),
            generation: Family::default(),
            replicas: Family::default(),
            ready_replicas: Family::default(),
            reloads: Family::default(),
            runtime_commands: Family::default(),
            refused: Family::default(),
            refusals: Family::default(),
            diagnostics: Family::default(),
            pipeline: seconds(),
        };
        let all = &mut metrics;
        all.family("generation", "Generation that the fleet is meant to serve", all.generation.clone());
        all.family("replicas", "Replicas of the fleet that are known", all.replicas.clone());
        all.family("ready_replicas", "Replicas of the fleet that serve", all.ready_replicas.clone());
        all.family("reloads", "Reloads of the fleet's replicas, by what asked for them", all.reloads.clone());
        all.family("runtime_commands", "Runtime commands to the fleet's replicas", all.runtime_commands.clone());
        all.family("refused", "Resources that HAProxy refused and replicas do not serve", all.refused.clone());
        all.family("refusals", "Times that a replica's HAProxy refused a resource", all.refusals.clone());
        all.family("diagnostics", "Present findings about source objects", all.diagnostics.clone());
        let help = "Time from a change of the input to the bundles that follow it";
        all.single("pipeline", help, Some(Unit::Seconds), all.pipeline.clone());
        metrics
    }
}

/// Buckets for what takes from a tenth of a millisecond to ten seconds.
fn seconds() -> Histogram {
    Histogram::new([0.0001, 0.000_3, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0])
}

impl Metrics {
    /// The content type of [`Metrics::encode`].
    pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// Everything in the `OpenMetrics` text format.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// What is registered, in order.
    pub fn described(&self) -> &[Described] {
        &self.described
    }

    fn family<L: Labels, M: TypedMetric>(&mut self, name: &str, help: &'static str, family: Family<L, M>)
    where
        Family<L, M>: Metric,
    {
        self.describe::<M>(name, None, L::NAMES, help);
        self.registry.register(name, help, family);
    }

    fn single<M: TypedMetric + Metric>(&mut self, name: &str, help: &'static str, unit: Option<Unit>, metric: M) {
        self.describe::<M>(name, unit.as_ref(), &[], help);
        match unit {
            Some(unit) => self.registry.register_with_unit(name, help, unit, metric),
            None => self.registry.register(name, help, metric),
        }
    }

    fn timed<L: Labels, M: TypedMetric>(&mut self, name: &str, help: &'static str, family: Family<L, M>)
    where
        Family<L, M>: Metric,
    {
        self.describe::<M>(name, Some(&Unit::Seconds), L::NAMES, help);
        self.registry.register_with_unit(name, help, Unit::Seconds, family);
    }

    fn describe<M: TypedMetric>(&mut self, name: &str, unit: Option<&Unit>, labels: &'static [&'static str], help: &'static str) {
        let kind = M::TYPE.as_str().to_owned();
        let unit = unit.map_or_else(String::new, |unit| format!("_{}", unit.as_str()));
        let suffix = if kind == "counter" { "_total" } else { "" };
        self.described.push(Described { name: format!("{PREFIX}_{name}{unit}{suffix}"), kind, labels, help });
    }
}

/// A number of seconds.
pub type Seconds = Gauge<f64, AtomicU64>;

/// What only an operator has to tell. A clone is another handle of the same.
#[derive(Clone)]
pub struct OperatorMetrics {
    /// How long each part of the way from a change to the agents takes.
    pub steps: Family<StepLabels, Histogram>,
    /// Changes that the watches hold back.
    pub changes_waiting: Gauge,
    /// Changes that never went further because a later one overtook them.
    pub changes_coalesced: Counter,
    /// Batches and other news that wait for translation.
    pub inputs_waiting: Gauge,
    /// Watches of each kind, by state.
    pub watches: Family<WatchLabels, Gauge>,
    /// What they told.
    pub watch_events: Family<ResourceLabels, Counter>,
    /// When they told something last: seconds since 1970.
    pub watch_last_event: Family<ResourceLabels, Seconds>,
    /// How often they began anew.
    pub watch_restarts: Family<ResourceLabels, Counter>,
    /// How often they were turned away.
    pub watch_forbidden: Family<ResourceLabels, Counter>,
    /// Agents that are connected.
    pub agents: Family<FleetLabels, Gauge>,
    /// Those of them that do not confirm what they should serve.
    pub agents_behind: Family<FleetLabels, Gauge>,
    /// How many bundles the last of them is behind.
    pub lag_generations: Family<FleetLabels, Gauge>,
    /// Workers of before a reload that still serve somebody, in the pod that has most of them.
    pub old_workers: Family<FleetLabels, Gauge>,
    /// For how long it has been behind.
    pub lag: Family<FleetLabels, Seconds>,
    /// Open connections of clients to a fleet's pods.
    pub connections: Family<FleetLabels, Gauge>,
    /// Connections to pods that stopped.
    pub drained_connections: Family<EndingLabels, Counter>,
    /// Writes to the API server.
    pub api_writes: Family<WriteLabels, Counter>,
    /// Ingresses whose status is not as it should be.
    pub ingress_statuses_waiting: Gauge,
    /// Whether this replica leads.
    pub leader: Gauge,
    /// The term of the Lease, while this replica leads.
    pub term: Gauge,
}

impl OperatorMetrics {
    /// Makes them part of `metrics`.
    pub fn register(metrics: &mut Metrics) -> Self {
        let all = Self {
            steps: Family::new_with_constructor(seconds),
            changes_waiting: Gauge::default(),
            changes_coalesced: Counter::default(),
            inputs_waiting: Gauge::default(),
            watches: Family::default(),
            watch_events: Family::default(),
            watch_last_event: Family::default(),
            watch_restarts: Family::default(),
            watch_forbidden: Family::default(),
            agents: Family::default(),
            agents_behind: Family::default(),
            lag_generations: Family::default(),
            old_workers: Family::default(),
            lag: Family::default(),
            connections: Family::default(),
            drained_connections: Family::default(),
            api_writes: Family::default(),
            ingress_statuses_waiting: Gauge::default(),
            leader: Gauge::default(),
            term: Gauge::default(),
        };
        all.register_way(metrics);
        all.register_watches(metrics);
        all.register_agents(metrics);
        metrics.family("api_writes", "Writes to the API server", all.api_writes.clone());
        let help = "Ingresses whose status does not say yet where clients connect to";
        metrics.single("ingress_statuses_waiting", help, None, all.ingress_statuses_waiting.clone());
        metrics.single("leader", "Whether this replica leads: 1 or 0", None, all.leader.clone());
        metrics.single("term", "Term of the Lease that this replica leads by; 0 while it does not", None, all.term.clone());
        all
    }

    fn register_way(&self, metrics: &mut Metrics) {
        metrics.timed("step", "Time for each part of the way from a change to the agents", self.steps.clone());
        metrics.single("changes_waiting", "Changed objects that the watches hold back for a moment", None, self.changes_waiting.clone());
        let help = "Changes of objects that a later one overtook while they were held back";
        metrics.single("changes_coalesced", help, None, self.changes_coalesced.clone());
        metrics.single("inputs_waiting", "Batches and other news that wait for translation", None, self.inputs_waiting.clone());
    }

    fn register_watches(&self, metrics: &mut Metrics) {
        metrics.family("watches", "Watches of a kind, by state", self.watches.clone());
        metrics.family("watch_events", "Objects that watches told as there, changed or gone", self.watch_events.clone());
        let help = "When a watch of the kind told an object last, since 1970";
        metrics.timed("watch_last_event_timestamp", help, self.watch_last_event.clone());
        metrics.family("watch_restarts", "Times that a watch had to begin anew with all there is", self.watch_restarts.clone());
        metrics.family("watch_forbidden", "Times that the API server answered a watch with 401 or 403", self.watch_forbidden.clone());
    }

    fn register_agents(&self, metrics: &mut Metrics) {
        metrics.family("agents", "Agents of the fleet that are connected", self.agents.clone());
        metrics.family("agents_behind", "Agents that do not confirm the present bundle", self.agents_behind.clone());
        let help = "Workers of before a reload that still serve connections, in the pod that has most of them";
        metrics.family("old_workers", help, self.old_workers.clone());
        metrics.family("lag_generations", "Bundles that the agent furthest behind has not confirmed", self.lag_generations.clone());
        metrics.timed("lag", "Age of the oldest bundle that an agent has not confirmed", self.lag.clone());
        metrics.family("connections", "Open connections of clients to the fleet's pods", self.connections.clone());
        let help = "Connections to pods that stopped, by how they ended: finished before the soft stop, closed after it, cut at the \
                    deadline, or unseen: open when they were last looked at, before HAProxy ended in time";
        metrics.family("drained_connections", help, self.drained_connections.clone());
    }
}

/// Makes `counter` say `value`, which somebody else counts.
pub fn set_counter(counter: &Counter, value: u64) {
    counter.inner().store(value, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_described_is_what_is_read() {
        let mut metrics = Metrics::default();
        let operator = OperatorMetrics::register(&mut metrics);
        operator.steps.get_or_create(&StepLabels { step: "wait" }).observe(1.0);
        metrics.refusals.get_or_create(&FleetLabels { namespace: "infra".into(), fleet: "edge".into() }).inc();
        let text = metrics.encode().unwrap();
        let typed: Vec<(String, String)> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
            .map(|(name, kind)| (format!("{name}{}", if kind == "counter" { "_total" } else { "" }), kind.to_owned()))
            .collect();
        let described: Vec<(String, String)> =
            metrics.described().iter().map(|metric| (metric.name.clone(), metric.kind.clone())).collect();
        for one in &typed {
            assert!(described.contains(one), "{one:?} is not described");
        }
        assert!(text.contains("haproxy_fleet_step_seconds_sum{step=\"wait\"} 1"), "{text}");
        assert!(text.contains("haproxy_fleet_refusals_total{namespace=\"infra\",fleet=\"edge\"} 1"), "{text}");
    }

    #[test]
    fn names_follow_the_conventions() {
        let mut metrics = Metrics::default();
        OperatorMetrics::register(&mut metrics);
        for Described { name, kind, labels, help } in metrics.described() {
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
            assert!(kind != "histogram" || name.ends_with("_seconds"), "{name}");
            assert!(!help.ends_with('.') && !help.is_empty(), "{name}");
            // whose label is a namespace, its fleet is one as well: no tenant's
            assert!(!labels.contains(&"namespace") || labels.contains(&"fleet"), "{name}");
        }
    }
}
