//! Where events of the program go.

use std::io::IsTerminal;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// The variable that says what to log, in the syntax of `RUST_LOG`.
const VARIABLE: &str = "HAPROXY_FLEET_LOG";

/// What is logged, to be changed while the program runs.
#[derive(Clone, Debug)]
pub struct LogLevel(reload::Handle<EnvFilter, Registry>);

/// It cannot be logged like that.
#[derive(Debug, thiserror::Error)]
pub enum LogLevelError {
    /// The text says no filter.
    #[error("{text:?} says no level: write error, warn, info, debug or trace, or as haproxy_fleet=debug,kube=warn ({source})")]
    Filter {
        /// The text.
        text: String,
        /// What is wrong with it.
        source: tracing_subscriber::filter::ParseError,
    },
    /// Nobody logs any more.
    #[error("logging has ended: {0}")]
    Gone(#[from] reload::Error),
}

impl LogLevel {
    /// Logs what `text` says from now on, in the syntax of `RUST_LOG`.
    pub fn set(&self, text: &str) -> Result<(), LogLevelError> {
        let filter = EnvFilter::builder().parse(text).map_err(|source| LogLevelError::Filter { text: text.to_owned(), source })?;
        Ok(self.0.reload(filter)?)
    }
}

/// Sends events as lines of JSON to standard error: those that `HAPROXY_FLEET_LOG` asks for, else those of `level` and
/// worse. What is logged can be changed later. A second call changes nothing.
pub fn log_json_to_stderr(level: &str) -> LogLevel {
    let (filter, handle) = reload::Layer::new(EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new(level)));
    let lines = tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(std::io::stderr);
    // set already: by a test, or by an earlier call
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    LogLevel(handle)
}

/// Sends events to standard error: those that `HAPROXY_FLEET_LOG` asks for, else those of `level` and worse.
/// A second call changes nothing.
pub fn log_to_stderr(level: &str) {
    let filter = EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new(level));
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    // set already: by a test, or by an earlier call
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).with_target(false).try_init();
}
