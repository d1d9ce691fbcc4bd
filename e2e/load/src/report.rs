//! What became of the requests.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// Why a request did not end in its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Nobody listens there (or no way leads there).
    Refused,
    /// HTTP/2: the server gave the request back unprocessed (`REFUSED_STREAM`, or beyond a GOAWAY's last stream).
    RefusedStream,
    /// The connection or stream was reset before the first byte of an answer.
    Reset,
    /// The connection was closed before the first byte of an answer.
    Closed,
    /// The answer began and did not end.
    Truncated,
    /// A 5xx that was not expected.
    ProxyError,
    /// Another answer than the expected one: status, service, or no HTTP at all.
    Unexpected,
    /// No whole answer in time.
    Timeout,
    /// The TLS handshake failed.
    Tls,
    /// The generator's own machine was in the way: no free port, no file descriptor. Says nothing about the server.
    Local,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Refused => "refused",
            Self::RefusedStream => "refused_stream",
            Self::Reset => "reset",
            Self::Closed => "closed",
            Self::Truncated => "truncated",
            Self::ProxyError => "proxy_error",
            Self::Unexpected => "unexpected",
            Self::Timeout => "timeout",
            Self::Tls => "tls",
            Self::Local => "local",
        })
    }
}

/// How one request failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub loss: Loss,
    pub detail: String,
}

impl Failure {
    pub(crate) fn new(loss: Loss, detail: impl fmt::Display) -> Self {
        Self { loss, detail: detail.to_string() }
    }
}

/// Time from the intended start of a request to the end of its answer, in milliseconds, of answered requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// Median.
    pub p50_ms: f64,
    /// 90th percentile.
    pub p90_ms: f64,
    /// 99th percentile.
    pub p99_ms: f64,
    /// 99.9th percentile.
    pub p999_ms: f64,
    /// The longest.
    pub max_ms: f64,
}

/// One lost request, for whoever looks for the reason.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Example {
    /// Seconds after the start of the run at which the loss was noticed.
    pub at: f64,
    /// What kind.
    pub loss: Loss,
    /// Host and path.
    pub target: String,
    /// What was seen.
    pub detail: String,
}

/// What became of all requests of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// Requests made: answered and lost.
    pub requests: u64,
    /// Lost ones.
    pub lost: u64,
    /// Lost ones by kind; kinds that did not occur are absent.
    pub lost_by_kind: BTreeMap<Loss, u64>,
    /// Of answered requests.
    pub latency: Latency,
    /// From the first intended start to the end of the last request.
    pub seconds: f64,
    /// Answered requests a second.
    pub rps: f64,
    /// The first losses in detail (at most 3 of a kind, 20 in all).
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub examples: Vec<Example>,
    #[serde(skip, default = "histogram")]
    histogram: Option<Histogram<u64>>,
}

const EXAMPLES: usize = 20;
const EXAMPLES_OF_A_KIND: u64 = 3;

/// Microseconds from 1 to 10 minutes, to three digits. These bounds are valid, so there always is one.
fn histogram() -> Option<Histogram<u64>> {
    Histogram::new_with_bounds(1, 600_000_000, 3).ok()
}

impl Default for Report {
    fn default() -> Self {
        Self {
            requests: 0,
            lost: 0,
            lost_by_kind: BTreeMap::new(),
            latency: Latency::default(),
            seconds: 0.0,
            rps: 0.0,
            examples: Vec::new(),
            histogram: histogram(),
        }
    }
}

impl Report {
    /// Puts two runs that went on side by side together: sums, percentiles over all requests, the longer time.
    #[must_use]
    pub fn merge(mut self, other: Self) -> Self {
        self.requests += other.requests;
        self.lost += other.lost;
        for (kind, count) in other.lost_by_kind {
            *self.lost_by_kind.entry(kind).or_default() += count;
        }
        if let (Some(own), Some(other)) = (&mut self.histogram, other.histogram) {
            *own += other;
        }
        self.examples.extend(other.examples);
        self.examples.truncate(EXAMPLES);
        let seconds = self.seconds.max(other.seconds);
        self.finish(seconds)
    }

    /// How many were lost in that way.
    pub fn lost_as(&self, kind: Loss) -> u64 {
        self.lost_by_kind.get(&kind).copied().unwrap_or_default()
    }

    pub(crate) fn answered(&mut self, latency: Duration) {
        self.requests += 1;
        if let Some(histogram) = &mut self.histogram {
            histogram.saturating_record(u64::try_from(latency.as_micros()).unwrap_or(u64::MAX));
        }
    }

    pub(crate) fn failed(&mut self, at: Duration, target: impl FnOnce() -> String, failure: Failure) {
        self.requests += 1;
        self.lost += 1;
        let of_kind = self.lost_by_kind.entry(failure.loss).or_default();
        *of_kind += 1;
        if *of_kind <= EXAMPLES_OF_A_KIND && self.examples.len() < EXAMPLES {
            self.examples.push(Example { at: at.as_secs_f64(), loss: failure.loss, target: target(), detail: failure.detail });
        }
    }

    #[allow(clippy::cast_precision_loss)] // counts and microseconds far below 2^52
    pub(crate) fn finish(mut self, seconds: f64) -> Self {
        if let Some(histogram) = &self.histogram {
            let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1000.0;
            self.latency = Latency { p50_ms: at(0.5), p90_ms: at(0.9), p99_ms: at(0.99), p999_ms: at(0.999), max_ms: at(1.0) };
        }
        self.seconds = seconds;
        self.rps = if seconds > 0.0 { (self.requests - self.lost) as f64 / seconds } else { 0.0 };
        self
    }
}
