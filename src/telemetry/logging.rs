//! Where events of the program go.

use std::io::IsTerminal;
use tracing_subscriber::filter::LevelFilter;
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
fn filter(text: &str) -> Result<EnvFilter, LogLevelError> {
    let is_level = |part: &str| part.contains('=') || part.contains('[') || part.parse::<LevelFilter>().is_ok();
    // a word that is no level would be taken for a module, and nothing else be logged
    if let Some(word) = text.split(',').find(|part| !is_level(part)) {
        return Err(LogLevelError::Word { word: word.to_owned() });
    }
    let wrong = |source| LogLevelError::Filter { text: text.to_owned(), source };
    let mut filter = EnvFilter::builder().parse(text).map_err(wrong)?;
    if !text.contains("kube") {
        for directive in NOISE {
            filter = filter.add_directive(directive.parse().map_err(wrong)?);
        }
    }
    Ok(filter)
}

/// The filter that `asked` says, else `level`; and what is wrong with `asked`.
fn filter_or(asked: Option<&str>, level: &str) -> (EnvFilter, Option<LogLevelError>) {
    let (asked, wrong) = match asked.map(filter).transpose() {
        Ok(asked) => (asked, None),
        Err(error) => (None, Some(error)),
    };
    (asked.or_else(|| filter(level).ok()).unwrap_or_else(|| EnvFilter::new(level)), wrong)
}

/// The filter of the environment, else `level`; and what is wrong with the former, to be told once something can be.
fn filter_of_environment(level: &str) -> (EnvFilter, Option<LogLevelError>) {
    let asked = std::env::var(VARIABLE).ok().filter(|text| !text.is_empty());
    filter_or(asked.as_deref(), level)
}

fn tell(wrong: Option<LogLevelError>) {
    if let Some(error) = wrong {
        tracing::error!("{VARIABLE} is not used: {error}");
    }
}

/// What is logged, to be changed while the program runs.
#[derive(Clone, Debug)]
pub struct LogLevel(reload::Handle<EnvFilter, Registry>);

/// It cannot be logged like that.
#[derive(Debug, thiserror::Error)]
pub enum LogLevelError {
    /// A word is no level.
    #[error("{word:?} is no level: write error, warn, info, debug or trace, or as haproxy_fleet=debug,kube=warn")]
    Word {
        /// The word.
        word: String,
    },
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
        Ok(self.0.reload(filter(text)?)?)
    }
}

/// Sends events as lines of JSON to standard error: those that `HAPROXY_FLEET_LOG` asks for, else those of `level` and
/// worse. What is logged can be changed later. A second call changes nothing.
pub fn log_json_to_stderr(level: &str) -> LogLevel {
    let (filter, wrong) = filter_of_environment(level);
    let (filter, handle) = reload::Layer::new(filter);
    let lines = tracing_subscriber::fmt::layer().json().flatten_event(true).with_writer(std::io::stderr);
    // set already: by a test, or by an earlier call
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
    tell(wrong);
    LogLevel(handle)
}

/// Sends events to standard error: those that `HAPROXY_FLEET_LOG` asks for, else those of `level` and worse.
/// A second call changes nothing.
pub fn log_to_stderr(level: &str) {
    let (filter, wrong) = filter_of_environment(level);
    let colours = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    // set already: by a test, or by an earlier call
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(colours).with_target(false).try_init();
    tell(wrong);
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
    fn what_says_no_level_is_told_and_the_usual_one_is_used() {
        for (asked, told) in [("inof", "\"inof\" is no level"), ("info,haproxy_fleet", "\"haproxy_fleet\""), ("a=loud", "says no level")] {
            let (filter, wrong) = filter_or(Some(asked), "warn");
            let wrong = wrong.unwrap().to_string();
            assert!(wrong.contains(told) && wrong.contains("write error, warn"), "{wrong}");
            assert_eq!(filter.max_level_hint(), Some(LevelFilter::WARN), "{asked}");
        }
        for fine in ["info", "haproxy_fleet=debug,kube=warn", "trace,[span]=debug", "OFF"] {
            assert!(filter_or(Some(fine), "warn").1.is_none(), "{fine}");
        }
    }

    #[test]
    fn the_client_does_not_tell_of_every_request_that_fails_unless_it_is_asked_to() {
        let text = logged("info");
        assert_eq!(text.lines().count(), 2, "{text}");
        assert!(text.contains("authority") && text.contains("leads"), "{text}");
        assert_eq!(logged("info,kube_client=info").lines().count(), 5);
    }
}
