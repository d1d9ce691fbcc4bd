//! What happened when, second by second.

use crate::report::Loss;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One second of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Second {
    /// How many seconds after the start it begins.
    pub at: u64,
    /// Requests that were to start in it, whether there was a connection for them or not.
    pub sent: u64,
    /// Requests whose answer ended in it.
    pub answered: u64,
    /// Requests whose loss was noticed in it.
    pub lost: u64,
    /// The same by kind; kinds that did not occur are absent.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub lost_by_kind: BTreeMap<Loss, u64>,
    /// Median latency of what was answered in it, in milliseconds; none without an answer.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the same.
    pub p99_ms: Option<f64>,
    /// Microseconds to two digits: the picture needs no more, and a long run has many seconds.
    #[serde(skip)]
    histogram: Option<Histogram<u32>>,
}

impl Second {
    pub(crate) fn lose(&mut self, kind: Loss) {
        self.lost += 1;
        *self.lost_by_kind.entry(kind).or_default() += 1;
    }

    pub(crate) fn took(&mut self, microseconds: u64) {
        if self.histogram.is_none() {
            self.histogram = Histogram::new(2).ok();
        }
        if let Some(histogram) = &mut self.histogram {
            // it grows as needed: only a value near 2^63 does not fit
            let _ = histogram.record(microseconds);
        }
    }

    /// Computes the percentiles.
    pub(crate) fn finish(&mut self) {
        if let Some(histogram) = &self.histogram {
            #[allow(clippy::cast_precision_loss)] // microseconds far below 2^52
            let at = |quantile: f64| Some(histogram.value_at_quantile(quantile) as f64 / 1000.0);
            (self.p50_ms, self.p99_ms) = (at(0.5), at(0.99));
        }
    }

    fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.answered += other.answered;
        self.lost += other.lost;
        for (kind, count) in other.lost_by_kind {
            *self.lost_by_kind.entry(kind).or_default() += count;
        }
        match (&mut self.histogram, other.histogram) {
            (Some(own), Some(other)) => {
                // both grow as needed
                let _ = own.add(other);
            }
            (own @ None, other) => *own = other,
            (Some(_), None) => {}
        }
    }
}

/// The second that begins so many seconds after the start; all before it are there as well.
pub(crate) fn at(series: &mut Vec<Second>, second: u64) -> &mut Second {
    let index = usize::try_from(second).unwrap_or(usize::MAX);
    while series.len() <= index {
        series.push(Second { at: series.len() as u64, ..Second::default() });
    }
    &mut series[index]
}

/// Adds each second of `other` to the same second of `series`.
pub(crate) fn add(series: &mut Vec<Second>, other: Vec<Second>) {
    for second in other {
        at(series, second.at).add(second);
    }
}
