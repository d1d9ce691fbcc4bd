//! Where events of the program go.

use std::io::IsTerminal;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

/// The variable that says what to log, in the syntax of `RUST_LOG`.
const VARIABLE: &str = "HAPROXY_FLEET_LOG";

/// What the Kubernetes client says of every single request and event that fails: in an outage of the API server a line for
/// each refused connection of each watch. Whoever asks hears of it from the caller, which tells it once.
const NOISE: [&str; 4] =
    ["kube_client::client=error", "kube_client::client::tls=warn", "kube_client::client::builder=off", "kube_runtime::watcher=off"];

/// The filter that `text` says in the syntax of `RUST_LOG`, without noise, unless `text` says something about that.
fn filter(text: &str) -> Result<EnvFilter, tracing_subscriber::filter::ParseError> {
    let mut filter = EnvFilter::builder().parse(text)?;
    if !text.contains("kube") {
        for directive in NOISE {
            filter = filter.add_directive(directive.parse()?);
        }
    }
    Ok(filter)
}

/// The filter of the environment, else `level`.
fn filter_of_environment(level: &str) -> EnvFilter {
    let asked = std::env::var(VARIABLE).ok().and_then(|text| filter(&text).ok());
    asked.or_else(|| filter(level).ok()).unwrap_or_else(|| EnvFilter::new(level))
}

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
        let filter = filter(text).map_err(|source| LogLevelError::Filter { text: text.to_owned(), source })?;
        Ok(self.0.reload(filter)?)
    }
}

/// Sends events as lines of JSON to standard error: those that `HAPROXY_FLEET_LOG` asks for, else those of `level` and
/// worse. What is logged can be changed later. A second call changes nothing.
pub fn log_json_to_stderr(level: &str) -> LogLevel {
    let (filter, handle) = reload::Layer::new(filter_of_environment(level));
    let lines = tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(std::io::stderr);
    // set already: by a test, or by an earlier call
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    LogLevel(handle)
}

/// Sends events to standard error: those that `HAPROXY_FLEET_LOG` asks for, else those of `level` and worse.
/// A second call changes nothing.
pub fn log_to_stderr(level: &str) {
    let filter = filter_of_environment(level);
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    // set already: by a test, or by an earlier call
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).with_target(false).try_init();
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    /// What of the messages of client, watcher and operator is logged under `text`.
    fn logged(text: &str) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = tracing_subscriber::fmt::layer().with_ansi(false).without_time().with_writer(move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(filter(text).unwrap()).with(layer), || {
            tracing::error!(target: "kube_client::client::builder", "request");
            tracing::warn!(target: "kube_client::client", "eof");
            tracing::warn!(target: "kube_client::client::tls", "authority");
            tracing::warn!(target: "kube_runtime::watcher", "turned away");
            tracing::info!(target: "haproxy_fleet::operator", "leads");
        });
        let bytes = lines.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn the_client_does_not_tell_of_every_request_that_fails_unless_it_is_asked_to() {
        let text = logged("info");
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("authority") && text.contains("leads"), "{text}");
        assert_eq!(logged("info,kube_client=info").lines().count(), 5);
    }
}
