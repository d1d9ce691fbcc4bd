//! The registry and everything in it.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};
use std::fmt;

/// Which fleet.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct FleetLabels {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub fleet: String,
}

/// How bad.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
pub struct SeverityLabels {
    /// `error`, `warning` or `info`.
    pub severity: &'static str,
}

/// All metrics, with the registry that they are read from. No global state: tests have their own.
pub struct Metrics {
    registry: Registry,
    /// Generation that a fleet is meant to serve.
    pub generation: Family<FleetLabels, Gauge>,
    /// Replicas of a fleet.
    pub replicas: Family<FleetLabels, Gauge>,
    /// Replicas of a fleet that serve.
    pub ready_replicas: Family<FleetLabels, Gauge>,
    /// Reloads of a fleet's replicas.
    pub reloads: Family<FleetLabels, Counter>,
    /// Runtime commands to a fleet's replicas.
    pub runtime_commands: Family<FleetLabels, Counter>,
    /// Resources that a fleet's replicas do not serve because HAProxy refused them.
    pub refused: Family<FleetLabels, Gauge>,
    /// Present findings.
    pub diagnostics: Family<SeverityLabels, Gauge>,
    /// From a change of the input to bundles that follow it.
    pub pipeline: Histogram,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("haproxy_fleet"),
            generation: Family::default(),
            replicas: Family::default(),
            ready_replicas: Family::default(),
            reloads: Family::default(),
            runtime_commands: Family::default(),
            refused: Family::default(),
            diagnostics: Family::default(),
            pipeline: Histogram::new([0.0001, 0.000_3, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0]),
        };
        let registry = &mut metrics.registry;
        registry.register("generation", "Generation that the fleet is meant to serve", metrics.generation.clone());
        registry.register("replicas", "Replicas of the fleet", metrics.replicas.clone());
        registry.register("ready_replicas", "Replicas of the fleet that serve", metrics.ready_replicas.clone());
        registry.register("reloads", "Reloads of the fleet's replicas", metrics.reloads.clone());
        registry.register("runtime_commands", "Runtime commands to the fleet's replicas", metrics.runtime_commands.clone());
        registry.register("refused", "Resources that HAProxy refused and replicas do not serve", metrics.refused.clone());
        registry.register("diagnostics", "Present findings about source objects", metrics.diagnostics.clone());
        let help = "Time from a change of the input to the bundles that follow it";
        registry.register_with_unit("pipeline", help, Unit::Seconds, metrics.pipeline.clone());
        metrics
    }
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
}
