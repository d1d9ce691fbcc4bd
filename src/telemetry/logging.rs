//! Where events of the program go.

use std::io::IsTerminal;
use tracing_subscriber::EnvFilter;

/// The variable that says what to log, in the syntax of `RUST_LOG`.
const VARIABLE: &str = "HAPROXY_FLEET_LOG";

/// Sends events to standard error: those that `HAPROXY_FLEET_LOG` asks for, else those of `level` and worse.
/// A second call changes nothing.
pub fn log_to_stderr(level: &str) {
    let filter = EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new(level));
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    // set already: by a test, or by an earlier call
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).with_target(false).try_init();
}
