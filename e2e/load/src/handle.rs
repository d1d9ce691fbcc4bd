//! Starting, watching and ending runs.

use crate::account::{Progress, lock};
use crate::config::{Config, ConfigError, Mix};
use crate::engine::Run;
use crate::report::{Mark, Report};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

/// Starts runs.
pub struct Load;

/// A run that goes on. Dropping it ends the run without a report.
#[derive(Debug)]
pub struct Handle {
    stop: watch::Sender<bool>,
    report: oneshot::Receiver<Report>,
    thread: thread::JoinHandle<()>,
    progress: Arc<Progress>,
    marker: Marker,
}

/// Notes in the report of a run what happens beside it, for whoever does not hold the [`Handle`].
#[derive(Clone, Debug)]
pub struct Marker {
    started: Instant,
    marks: Arc<Mutex<Vec<Mark>>>,
}

impl Marker {
    /// Notes that this happens now, such as "pod edge-a-0 drains". Once the run has ended nobody reads it any more.
    pub fn mark(&self, text: impl Into<String>) {
        let mut marks = lock(&self.marks);
        // under the lock, so that marks are in order
        marks.push(Mark { at: self.started.elapsed().as_secs_f64(), text: text.into() });
    }
}

impl Load {
    /// Starts sending, on a thread of its own.
    pub fn start(config: Config) -> Result<Handle, ConfigError> {
        spawn(Configs::One(Box::new(config)), Mode::Open)
    }

    /// Starts several loads at once, on one thread of their own. The report is about all of them, and has a part for
    /// each.
    pub fn start_mix(mix: Mix) -> Result<Handle, ConfigError> {
        spawn(Configs::Mix(mix.configs()?), Mode::Open)
    }
}

/// The most answered requests a second with all connections busy, over [`Config::duration`] (2 s without one).
/// Losses do not count.
pub async fn capacity(config: Config) -> Result<f64, ConfigError> {
    Ok(spawn(Configs::One(Box::new(config)), Mode::Closed)?.wait().await.rps)
}

impl Handle {
    /// Ends the schedule, waits for every request under way (at most [`Config::timeout`] beyond its planned duration) and
    /// reports.
    pub async fn stop(self) -> Report {
        self.stop.send_replace(true);
        self.wait().await
    }

    /// Waits until [`Config::requests`] or [`Config::duration`] is reached, and reports. Without either, for ever.
    pub async fn wait(self) -> Report {
        self.wait_or(std::future::pending()).await
    }

    /// The same, but stops when `interrupted` completes before.
    pub async fn wait_or(mut self, interrupted: impl Future<Output = ()>) -> Report {
        let report = tokio::select! {
            biased;
            report = &mut self.report => report,
            () = interrupted => {
                self.stop.send_replace(true);
                self.report.await
            }
        };
        let marks = std::mem::take(&mut *lock(&self.marker.marks));
        match report {
            Ok(report) => report.with_marks(marks),
            // the thread ended without a report: it panicked, and the caller shall know
            Err(_) => match self.thread.join() {
                Err(panic) => std::panic::resume_unwind(panic),
                Ok(()) => Report::default(),
            },
        }
    }

    /// Requests answered as expected so far.
    pub fn answered(&self) -> u64 {
        self.progress.answered.load(Ordering::Relaxed)
    }

    /// Requests lost so far.
    pub fn lost(&self) -> u64 {
        self.progress.lost.load(Ordering::Relaxed)
    }

    /// Notes in the report that this happens now, such as "pod edge-a-0 drains".
    pub fn mark(&self, text: impl Into<String>) {
        self.marker.mark(text);
    }

    /// The same for others than the holder of this handle.
    pub fn marker(&self) -> Marker {
        self.marker.clone()
    }
}

#[derive(Clone, Copy)]
enum Mode {
    Open,
    Closed,
}

enum Configs {
    One(Box<Config>),
    Mix(BTreeMap<String, Config>),
}

/// What runs, in the same shape as [`Configs`].
enum Runs {
    One(Arc<Run>),
    Mix(BTreeMap<String, Arc<Run>>),
}

impl Runs {
    fn new(configs: Configs, started: Instant, progress: &Arc<Progress>) -> Result<Self, ConfigError> {
        let run = |config| Run::new(config, started, Arc::clone(progress)).map(Arc::new);
        match configs {
            Configs::One(config) => Ok(Self::One(run(*config)?)),
            Configs::Mix(configs) => {
                Ok(Self::Mix(configs.into_iter().map(|(name, config)| Ok((name, run(config)?))).collect::<Result<_, ConfigError>>()?))
            }
        }
    }

    async fn all(self, mode: Mode, stop: watch::Receiver<bool>) -> Report {
        let runs = match self {
            Self::One(run) => return one(run, mode, stop).await,
            Self::Mix(runs) => runs,
        };
        let runs: Vec<_> = runs.into_iter().map(|(name, run)| (name, tokio::spawn(one(run, mode, stop.clone())))).collect();
        let mut parts = BTreeMap::new();
        for (name, run) in runs {
            match run.await {
                Ok(report) => parts.insert(name, report),
                Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
                // nobody cancels it
                Err(_) => None,
            };
        }
        Report::of_parts(parts)
    }
}

async fn one(run: Arc<Run>, mode: Mode, stop: watch::Receiver<bool>) -> Report {
    match mode {
        Mode::Open => run.open_loop(stop).await,
        Mode::Closed => run.closed_loop(stop).await,
    }
}

fn spawn(configs: Configs, mode: Mode) -> Result<Handle, ConfigError> {
    let progress = Arc::new(Progress::default());
    let started = Instant::now();
    let runs = Runs::new(configs, started, &progress)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (stop, stopped) = watch::channel(false);
    let (mut sender, report) = oneshot::channel();
    let thread = thread::Builder::new().name("load".into()).spawn(move || {
        let result = runtime.block_on(async {
            tokio::select! {
                result = runs.all(mode, stopped) => Some(result),
                // nobody wants the report any more
                () = sender.closed() => None,
            }
        });
        if let Some(result) = result {
            // whoever dropped the handle meanwhile does not want it either
            let _ = sender.send(result);
        }
    })?;
    Ok(Handle { stop, report, thread, progress, marker: Marker { started, marks: Arc::default() } })
}
