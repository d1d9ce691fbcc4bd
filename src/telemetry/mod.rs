//! Metrics and logging: set up once, passed as values.

mod logging;
mod metrics;

pub use logging::{LogLevel, LogLevelError, log_json_to_stderr, log_to_stderr};
pub use metrics::{
    Described, DiagnosticLabels, EndingLabels, FleetLabels, Labels, Metrics, OperatorMetrics, ReloadLabels, ResourceLabels, Seconds,
    StepLabels, WatchLabels, WriteLabels, set_counter,
};
