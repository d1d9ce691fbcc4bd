//! What became of the requests.

use crate::series::{self, Second};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why a request did not end in its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Loss {
    /// Nobody listens there (or no way leads there).
    Refused,
    /// HTTP/2: the server gave the request back unprocessed (`REFUSED_STREAM`, or beyond a GOAWAY's last stream).
    RefusedStream,
    /// The connection or stream was reset before the first byte of an answer. An upload may have begun.
    Reset,
    /// The connection was closed before the first byte of an answer. An upload may have begun.
    Closed,
    /// The answer began and did not end; of a WebSocket: it ended before its deadline without a close frame.
    Truncated,
    /// A 5xx that was not expected.
    ProxyError,
    /// Another answer than the expected one: status, service, or no HTTP at all.
    Unexpected,
    /// No whole answer in time.
    Timeout,
    /// The server closed a WebSocket with a close frame, but before its deadline.
    ClosedEarly,
    /// A message of a WebSocket did not come back, or not in time.
    NoEcho,
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
            Self::ClosedEarly => "closed_early",
            Self::NoEcho => "no_echo",
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
    /// Who had answered on the connection.
    pub pod: Option<Arc<str>>,
    /// Whether the other side ended what lasts and had begun.
    pub cut: bool,
}

impl Failure {
    pub(crate) fn new(loss: Loss, detail: impl fmt::Display) -> Self {
        Self { loss, detail: detail.to_string(), pod: None, cut: false }
    }

    /// The same, noticed on a connection on which that pod had answered.
    pub(crate) fn with_pod(self, pod: Option<Arc<str>>) -> Self {
        Self { pod, ..self }
    }

    /// The same of a transfer or WebSocket that had begun: if the other side ended it, it was cut.
    pub(crate) fn after_begin(self) -> Self {
        let cut = matches!(self.loss, Loss::Reset | Loss::Closed | Loss::Truncated | Loss::ClosedEarly);
        Self { cut, ..self }
    }
}

/// How a unit ended that was not lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// With the answer to a plain request.
    Answered,
    /// With the last byte of a transfer, or with the client's own close of a WebSocket.
    Complete,
    /// With the server's close frame, after the deadline.
    ClosedLate,
    /// Without a close frame, after the deadline.
    CutLate,
}

/// How one request went well.
#[derive(Debug)]
pub(crate) struct Answer {
    pub pod: Option<Arc<str>>,
    /// How long it was to last: what it took beyond that is its latency.
    pub planned: Duration,
    pub end: End,
}

/// What became of downloads, uploads and every WebSocket that had begun.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lasting {
    /// Downloads with their last byte, uploads answered, each WebSocket that the client closed as planned.
    pub complete: u64,
    /// Each WebSocket that the server closed with a close frame after its deadline.
    pub closed_late: u64,
    /// Each WebSocket that ended without a close frame, but after its deadline.
    pub cut_late: u64,
    /// Ended by the other side before the deadline (of a transfer: before its end). All are among the lost, as
    /// `reset`, `closed`, `truncated` or `closed_early`.
    pub cut: u64,
    /// Messages of all WebSocket connections that were sent.
    pub messages: u64,
    /// Those that came back as they were sent.
    pub echoes: u64,
}

impl Lasting {
    fn is_none(&self) -> bool {
        *self == Self::default()
    }

    fn add(&mut self, other: Self) {
        let Self { complete, closed_late, cut_late, cut, messages, echoes } = other;
        self.complete += complete;
        self.closed_late += closed_late;
        self.cut_late += cut_late;
        self.cut += cut;
        self.messages += messages;
        self.echoes += echoes;
    }
}

/// Requests of which an answer named the pod.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// Answered by it.
    pub answered: u64,
    /// Lost on a connection on which it had answered last.
    pub lost: u64,
}

/// Something that happened beside the load and may explain it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// Seconds after the start of the run.
    pub at: f64,
    /// What happened.
    pub text: String,
}

/// Time from the intended start of a request to the end of its answer, in milliseconds, of answered requests. Of what
/// lasts, the planned duration is taken off. The echoes of a WebSocket count as well, each from the time at which its
/// message was to be sent.
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
    /// The pod that had answered last on this connection, if it is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub pod: Option<String>,
}

/// What became of all requests of a run.
#[derive(Clone, Serialize, Deserialize)]
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
    /// The first losses in detail (at most 20 of a kind, 100 in all).
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub examples: Vec<Example>,
    /// What became of each WebSocket and transfer, if there were any.
    #[serde(skip_serializing_if = "Lasting::is_none", default)]
    pub lasting: Lasting,
    /// By pod, if [`crate::Config::pod_header`] says which header names it.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub pods: BTreeMap<String, Pod>,
    /// What happened meanwhile, in order.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub marks: Vec<Mark>,
    /// Second by second, from the start of the run.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub series: Vec<Second>,
    /// The parts of a mix by name. All else here is their sum.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub parts: BTreeMap<String, Report>,
    #[serde(skip, default = "histogram")]
    histogram: Option<Histogram<u64>>,
}

const EXAMPLES: usize = 100;
const EXAMPLES_OF_A_KIND: u64 = 20;

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
            lasting: Lasting::default(),
            pods: BTreeMap::new(),
            marks: Vec::new(),
            series: Vec::new(),
            parts: BTreeMap::new(),
            histogram: histogram(),
        }
    }
}

/// Without the series and the histogram: a failed assertion shall fit on a screen.
impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Report")
            .field("requests", &self.requests)
            .field("lost", &self.lost)
            .field("lost_by_kind", &self.lost_by_kind)
            .field("latency", &self.latency)
            .field("seconds", &self.seconds)
            .field("rps", &self.rps)
            .field("lasting", &self.lasting)
            .field("pods", &self.pods)
            .field("marks", &self.marks)
            .field("examples", &self.examples)
            .field("parts", &self.parts)
            .finish_non_exhaustive()
    }
}

impl Report {
    /// Puts two runs that went on side by side together: sums, percentiles over all requests, the longer time. Seconds
    /// count from the start of each.
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
        self.examples.sort_by(|a, b| a.at.total_cmp(&b.at));
        self.examples.truncate(EXAMPLES);
        self.lasting.add(other.lasting);
        for (name, pod) in other.pods {
            let own = self.pods.entry(name).or_default();
            own.answered += pod.answered;
            own.lost += pod.lost;
        }
        self.marks.extend(other.marks);
        self.marks.sort_by(|a, b| a.at.total_cmp(&b.at));
        series::add(&mut self.series, other.series);
        for (name, part) in other.parts {
            let own = self.parts.remove(&name).unwrap_or_default();
            self.parts.insert(name, own.merge(part));
        }
        let seconds = self.seconds.max(other.seconds);
        self.finish(seconds)
    }

    /// How many were lost in that way.
    pub fn lost_as(&self, kind: Loss) -> u64 {
        self.lost_by_kind.get(&kind).copied().unwrap_or_default()
    }

    /// The same without the series: what fits on a line.
    #[must_use]
    pub fn without_series(mut self) -> Self {
        self.series.clear();
        self.parts = self.parts.into_iter().map(|(name, part)| (name, part.without_series())).collect();
        self
    }

    /// The sum of `parts`, and the parts.
    pub(crate) fn of_parts(parts: BTreeMap<String, Self>) -> Self {
        let sum = parts.values().cloned().fold(Self::default(), Self::merge);
        Self { parts, ..sum }
    }

    pub(crate) fn with_marks(self, marks: Vec<Mark>) -> Self {
        Self { marks, ..self }
    }

    pub(crate) fn sent(&mut self, planned: Duration) {
        self.second(planned).sent += 1;
    }

    pub(crate) fn answered(&mut self, at: Duration, latency: Duration, answer: &Answer) {
        self.requests += 1;
        self.second(at).answered += 1;
        self.took(at, latency);
        if let Some(pod) = &answer.pod {
            self.pod(pod).answered += 1;
        }
        match answer.end {
            End::Answered => {}
            End::Complete => self.lasting.complete += 1,
            End::ClosedLate => self.lasting.closed_late += 1,
            End::CutLate => self.lasting.cut_late += 1,
        }
    }

    pub(crate) fn failed(&mut self, at: Duration, target: impl FnOnce() -> String, failure: Failure) {
        self.requests += 1;
        self.lost += 1;
        self.lasting.cut += u64::from(failure.cut);
        self.second(at).lose(failure.loss);
        if let Some(pod) = &failure.pod {
            self.pod(pod).lost += 1;
        }
        let of_kind = self.lost_by_kind.entry(failure.loss).or_default();
        *of_kind += 1;
        if *of_kind <= EXAMPLES_OF_A_KIND && self.examples.len() < EXAMPLES {
            let pod = failure.pod.map(|pod| pod.to_string());
            self.examples.push(Example { at: at.as_secs_f64(), loss: failure.loss, target: target(), detail: failure.detail, pod });
        }
    }

    /// Records a latency that ended at that time.
    pub(crate) fn took(&mut self, at: Duration, latency: Duration) {
        let microseconds = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        if let Some(histogram) = &mut self.histogram {
            histogram.saturating_record(microseconds);
        }
        self.second(at).took(microseconds);
    }

    fn second(&mut self, at: Duration) -> &mut Second {
        series::at(&mut self.series, at.as_secs())
    }

    fn pod(&mut self, name: &str) -> &mut Pod {
        self.pods.entry(name.to_owned()).or_default()
    }

    #[allow(clippy::cast_precision_loss)] // counts and microseconds far below 2^52
    pub(crate) fn finish(mut self, seconds: f64) -> Self {
        if let Some(histogram) = &self.histogram {
            let at = |quantile: f64| histogram.value_at_quantile(quantile) as f64 / 1000.0;
            self.latency = Latency { p50_ms: at(0.5), p90_ms: at(0.9), p99_ms: at(0.99), p999_ms: at(0.999), max_ms: at(1.0) };
        }
        self.series.iter_mut().for_each(Second::finish);
        self.seconds = seconds;
        self.rps = if seconds > 0.0 { (self.requests - self.lost) as f64 / seconds } else { 0.0 };
        self
    }
}
