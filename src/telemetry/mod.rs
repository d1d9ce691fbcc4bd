//! Metrics and logging: set up once, passed as values.

mod logging;
mod metrics;

pub use logging::log_to_stderr;
pub use metrics::{FleetLabels, Metrics, SeverityLabels};
