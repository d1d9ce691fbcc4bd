//! The account of what became of each request while a run goes on.

use crate::report::{Answer, Failure, Report};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// What can be asked for during a run.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    pub answered: AtomicU64,
    pub lost: AtomicU64,
}

/// What has become of requests so far.
pub(crate) struct Account {
    started: Instant,
    progress: Arc<Progress>,
    report: Mutex<Report>,
}

/// No code that holds one of these locks can panic half-way through a change.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Account {
    pub(crate) fn new(started: Instant, progress: Arc<Progress>) -> Self {
        Self { started, progress, report: Mutex::default() }
    }

    /// A request was to start then.
    pub(crate) fn sent(&self, intended: Instant) {
        lock(&self.report).sent(intended.saturating_duration_since(self.started));
    }

    /// A request that was to start then has gone well.
    pub(crate) fn answered(&self, intended: Instant, answer: &Answer) {
        self.progress.answered.fetch_add(1, Ordering::Relaxed);
        let latency = intended.elapsed().saturating_sub(answer.planned);
        lock(&self.report).answered(self.started.elapsed(), latency, answer);
    }

    /// A request to `target` is lost.
    pub(crate) fn failed(&self, target: impl FnOnce() -> String, failure: Failure) {
        self.progress.lost.fetch_add(1, Ordering::Relaxed);
        lock(&self.report).failed(self.started.elapsed(), target, failure);
    }

    /// A message was sent over a WebSocket.
    pub(crate) fn message(&self) {
        lock(&self.report).lasting.messages += 1;
    }

    /// A message that was to be sent then has come back.
    pub(crate) fn echo(&self, planned: Instant) {
        let mut report = lock(&self.report);
        report.lasting.echoes += 1;
        report.took(self.started.elapsed(), planned.elapsed());
    }

    /// The report, once all requests have ended.
    pub(crate) fn close(&self) -> Report {
        std::mem::take(&mut *lock(&self.report)).finish(self.started.elapsed().as_secs_f64())
    }
}
