//! What suites against a real cluster share: the cluster with the operator in it, namespaces of their own, and clients.

pub mod edge;
pub mod http;
pub mod kubectl;
pub mod operator;
pub mod setting;

use std::fmt;
use std::time::Duration;
use tokio::time::Instant;

/// Why a suite could not go on.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Failure(String);

impl Failure {
    /// With these words.
    pub fn new(words: impl fmt::Display) -> Self {
        Self(words.to_string())
    }
}

macro_rules! from {
    ($($error:ty),*) => { $(
        impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                Self::new(error)
            }
        }
    )* };
}

from!(std::io::Error, kube::Error, serde_json::Error, fleet_cluster::ClusterError);

/// What a suite does.
pub type Outcome<T = ()> = Result<T, Failure>;

/// How long what follows from a change may take on a busy machine.
pub const SOON: Duration = Duration::from_secs(120);

/// Asks until there is an answer, for at most `limit`; then fails with what was last in the way.
pub async fn eventually<T, F>(what: &str, limit: Duration, mut ask: impl FnMut() -> F) -> Outcome<T>
where
    F: Future<Output = Outcome<T>>,
{
    let end = Instant::now() + limit;
    loop {
        let failure = match ask().await {
            Ok(answer) => return Ok(answer),
            Err(failure) => failure,
        };
        if Instant::now() > end {
            return Err(Failure::new(format_args!("{what}: not within {} s: {failure}", limit.as_secs())));
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// What a suite under load is judged by, as one line.
pub fn json_line(suite: &str, updates: u64, report: &fleet_load::Report) -> String {
    #[allow(clippy::cast_precision_loss)] // far below 2^52
    let success = if report.requests == 0 { 0.0 } else { 1.0 - report.lost as f64 / report.requests as f64 };
    serde_json::json!({
        "suite": suite, "updates": updates, "requests": report.requests, "lost": report.lost,
        "lost_by_kind": report.lost_by_kind, "success": success, "seconds": report.seconds,
    })
    .to_string()
}
