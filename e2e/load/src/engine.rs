//! The schedule, the pool of connections, and the account of what became of each request.

use crate::config::{Config, ConfigError, Protocol, Target};
use crate::connect::Connector;
use crate::http1::{self, Expected};
use crate::http2;
use crate::report::{Failure, Loss, Report};
use bytes::Bytes;
use rustls::pki_types::ServerName;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep_until, timeout_at};

/// Starts runs.
pub struct Load;

/// A run that goes on. Dropping it ends the run without a report.
#[derive(Debug)]
pub struct Handle {
    stop: oneshot::Sender<()>,
    report: oneshot::Receiver<Report>,
    thread: thread::JoinHandle<()>,
    progress: Arc<Progress>,
}

#[derive(Debug, Default)]
struct Progress {
    answered: AtomicU64,
    lost: AtomicU64,
}

impl Load {
    /// Starts sending, on a thread of its own.
    pub fn start(config: Config) -> Result<Handle, ConfigError> {
        if !(config.rate.is_finite() && config.rate > 0.0) {
            return Err(ConfigError::Rate(config.rate));
        }
        spawn(config, Mode::Open)
    }
}

/// The most answered requests a second with all connections busy, over [`Config::duration`] (2 s without one).
/// Losses do not count.
pub async fn capacity(config: Config) -> Result<f64, ConfigError> {
    Ok(spawn(config, Mode::Closed)?.wait().await.rps)
}

impl Handle {
    /// Ends the schedule, waits for every request under way (at most [`Config::timeout`]) and reports.
    pub async fn stop(self) -> Report {
        // whoever is not there to hear it has ended already
        let _ = self.stop.send(());
        finished(self.report.await, self.thread)
    }

    /// Waits until [`Config::requests`] or [`Config::duration`] is reached, and reports. Without either, for ever.
    pub async fn wait(self) -> Report {
        self.wait_or(std::future::pending()).await
    }

    /// The same, but stops when `interrupted` completes before.
    pub async fn wait_or(mut self, interrupted: impl Future<Output = ()>) -> Report {
        tokio::select! {
            biased;
            report = &mut self.report => finished(report, self.thread),
            () = interrupted => self.stop().await,
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
}

fn finished(report: Result<Report, oneshot::error::RecvError>, thread: thread::JoinHandle<()>) -> Report {
    match report {
        Ok(report) => report,
        // the thread ended without a report: it panicked, and the caller shall know
        Err(_) => match thread.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => Report::default(),
        },
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Open,
    Closed,
}

fn spawn(config: Config, mode: Mode) -> Result<Handle, ConfigError> {
    let progress = Arc::new(Progress::default());
    let run = Arc::new(Run::new(config, Arc::clone(&progress))?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (stop, stopped) = oneshot::channel();
    let (sender, report) = oneshot::channel();
    let thread = thread::Builder::new().name("load".into()).spawn(move || {
        let result = runtime.block_on(async move {
            match mode {
                Mode::Open => run.open_loop(stopped).await,
                Mode::Closed => run.closed_loop(stopped).await,
            }
        });
        // whoever dropped the handle does not want it
        let _ = sender.send(result);
    })?;
    Ok(Handle { stop, report, thread, progress })
}

/// Requests to one address under one server name share connections.
struct Group {
    address: SocketAddr,
    name: Option<ServerName<'static>>,
    idle: Mutex<Vec<http1::Connection>>,
    shared: Vec<tokio::sync::Mutex<Option<http2::Connection>>>,
}

struct Prepared {
    group: usize,
    target: Target,
    http1: Bytes,
    http2: http::Request<()>,
}

#[derive(Clone, Copy)]
struct Job {
    number: u64,
    intended: Instant,
}

struct Run {
    config: Config,
    connector: Connector,
    groups: Vec<Group>,
    targets: Vec<Prepared>,
    started: Instant,
    progress: Arc<Progress>,
    report: Mutex<Report>,
    queue: Mutex<Queue>,
    idle: Notify,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Job>,
    running: usize,
}

/// No code that holds one of these locks can panic half-way through a change.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Run {
    fn new(config: Config, progress: Arc<Progress>) -> Result<Self, ConfigError> {
        if config.targets.is_empty() {
            return Err(ConfigError::NoTarget);
        }
        let connector = Connector::new(&config)?;
        let (groups, targets) = prepare(&config)?;
        Ok(Self {
            config,
            connector,
            groups,
            targets,
            started: Instant::now(),
            progress,
            report: Mutex::default(),
            queue: Mutex::default(),
            idle: Notify::new(),
        })
    }

    /// Starts requests at their times, whatever the answers do.
    async fn open_loop(self: Arc<Self>, mut stopped: oneshot::Receiver<()>) -> Report {
        let end = self.config.duration.map(|duration| self.started + duration);
        let mut number = 0;
        loop {
            #[allow(clippy::cast_precision_loss)] // 2^52 requests are not reached
            let intended = self.started + Duration::from_secs_f64(number as f64 / self.config.rate);
            if self.config.requests.is_some_and(|most| number >= most) || end.is_some_and(|end| intended >= end) {
                break;
            }
            if intended > Instant::now() {
                tokio::select! {
                    biased;
                    _ = &mut stopped => break,
                    () = sleep_until(intended) => {}
                }
            } else if !matches!(stopped.try_recv(), Err(oneshot::error::TryRecvError::Empty)) {
                break;
            }
            self.dispatch(Job { number, intended });
            number += 1;
        }
        while lock(&self.queue).running > 0 {
            self.idle.notified().await;
        }
        self.finish()
    }

    /// Sends on all connections as fast as answers come.
    async fn closed_loop(self: Arc<Self>, stopped: oneshot::Receiver<()>) -> Report {
        let end = self.started + self.config.duration.unwrap_or(Duration::from_secs(2));
        let numbers = Arc::new(AtomicU64::new(0));
        let mut workers = tokio::task::JoinSet::new();
        for _ in 0..self.config.concurrency() {
            let (run, numbers) = (Arc::clone(&self), Arc::clone(&numbers));
            workers.spawn(async move {
                while Instant::now() < end {
                    let number = numbers.fetch_add(1, Ordering::Relaxed);
                    if run.config.requests.is_some_and(|most| number >= most) {
                        break;
                    }
                    run.perform(Job { number, intended: Instant::now() }).await;
                }
            });
        }
        tokio::select! {
            _ = stopped => workers.abort_all(),
            () = async { while workers.join_next().await.is_some() {} } => {}
        }
        self.finish()
    }

    fn finish(&self) -> Report {
        std::mem::take(&mut *lock(&self.report)).finish(self.started.elapsed().as_secs_f64())
    }

    fn dispatch(self: &Arc<Self>, job: Job) {
        let mut queue = lock(&self.queue);
        if queue.running >= self.config.concurrency() {
            queue.waiting.push_back(job);
            return;
        }
        queue.running += 1;
        drop(queue);
        tokio::spawn(Arc::clone(self).work(job));
    }

    /// Performs `job` and then whatever waits.
    async fn work(self: Arc<Self>, mut job: Job) {
        loop {
            self.perform(job).await;
            let mut queue = lock(&self.queue);
            let Some(next) = queue.waiting.pop_front() else {
                queue.running -= 1;
                self.idle.notify_one();
                return;
            };
            job = next;
        }
    }

    async fn perform(&self, job: Job) {
        let count = self.targets.len() as u64;
        let prepared = &self.targets[usize::try_from(job.number % count).unwrap_or_default()];
        let deadline = job.intended + self.config.timeout;
        let result = match timeout_at(deadline, self.attempt(prepared, job.number)).await {
            Ok(result) => result,
            Err(_) => Err(Failure::new(Loss::Timeout, format_args!("no answer in {:?}", self.config.timeout))),
        };
        let mut report = lock(&self.report);
        match result {
            Ok(()) => {
                self.progress.answered.fetch_add(1, Ordering::Relaxed);
                report.answered(job.intended.elapsed());
            }
            Err(failure) => {
                self.progress.lost.fetch_add(1, Ordering::Relaxed);
                let target = || format!("{}{}", prepared.target.host, prepared.target.path);
                report.failed(self.started.elapsed(), target, failure);
            }
        }
    }

    async fn attempt(&self, prepared: &Prepared, number: u64) -> Result<(), Failure> {
        let group = &self.groups[prepared.group];
        let expected = Expected { status: prepared.target.status, service: prepared.target.service.as_deref() };
        if self.config.protocol == Protocol::Http2 {
            return self.attempt_http2(prepared, group, &expected, number).await;
        }
        let connection = match self.kept(group) {
            Some(connection) => connection,
            None => http1::Connection::new(self.connector.connect(group.address, group.name.as_ref()).await?),
        };
        let (connection, verdict) = connection.exchange(&prepared.http1, &expected).await;
        if self.config.protocol == Protocol::Http1KeepAlive
            && let Some(connection) = connection
        {
            lock(&group.idle).push(connection);
        }
        verdict
    }

    /// The kept connection that was used last, if it can be used: one that was closed meanwhile costs nothing.
    fn kept(&self, group: &Group) -> Option<http1::Connection> {
        loop {
            let connection = lock(&group.idle).pop()?;
            if connection.idle_since.elapsed() < self.config.idle && connection.is_usable() {
                return Some(connection);
            }
        }
    }

    async fn attempt_http2(&self, prepared: &Prepared, group: &Group, expected: &Expected<'_>, number: u64) -> Result<(), Failure> {
        let index = usize::try_from(number % group.shared.len() as u64).unwrap_or_default();
        let shared = &group.shared[index];
        loop {
            let connection = self.shared(group, shared).await?;
            let Some(connection) = connection.ready().await else {
                *shared.lock().await = None;
                continue;
            };
            // only a request that was never sent comes round again: that is no retry
            match connection.exchange(prepared.http2.clone(), expected).await {
                Some(verdict) => return verdict,
                None => *shared.lock().await = None,
            }
        }
    }

    async fn shared(&self, group: &Group, shared: &tokio::sync::Mutex<Option<http2::Connection>>) -> Result<http2::Connection, Failure> {
        let mut held = shared.lock().await;
        if let Some(connection) = &mut *held {
            let idle = connection.last_used.elapsed();
            if idle < self.config.idle {
                if idle > Duration::from_millis(100) {
                    // let the connection read a GOAWAY that may have come while nothing was sent
                    tokio::task::yield_now().await;
                    tokio::task::yield_now().await;
                }
                connection.last_used = Instant::now();
                return Ok(connection.clone());
            }
        }
        let connection = http2::Connection::new(self.connector.connect(group.address, group.name.as_ref()).await?).await?;
        *held = Some(connection.clone());
        Ok(connection)
    }
}

fn prepare(config: &Config) -> Result<(Vec<Group>, Vec<Prepared>), ConfigError> {
    let mut groups = Vec::new();
    let mut known = HashMap::new();
    let mut targets = Vec::with_capacity(config.targets.len());
    let (scheme, close) = (if config.tls.is_some() { "https" } else { "http" }, config.protocol == Protocol::Http1Close);
    let shared = if config.protocol == Protocol::Http2 { config.connections.max(1) } else { 0 };
    for target in &config.targets {
        let server_name = config.tls.as_ref().map(|tls| tls.server_name.as_ref().unwrap_or(&target.host).clone());
        let invalid = |reason: String| ConfigError::Target { host: target.host.clone(), path: target.path.clone(), reason };
        let name = match &server_name {
            // a port belongs to the Host header only
            Some(name) => Some(
                ServerName::try_from(name.split(':').next().unwrap_or_default().to_owned()).map_err(|error| invalid(error.to_string()))?,
            ),
            None => None,
        };
        let group = *known.entry((target.address, server_name)).or_insert_with(|| {
            groups.push(Group {
                address: target.address,
                name,
                idle: Mutex::default(),
                shared: (0..shared).map(|_| tokio::sync::Mutex::new(None)).collect(),
            });
            groups.len() - 1
        });
        let uri = format!("{scheme}://{}{}", target.host, target.path);
        let http2 = http::Request::get(uri).version(http::Version::HTTP_2).body(()).map_err(|error| invalid(error.to_string()))?;
        let connection = if close { "Connection: close\r\n" } else { "" };
        let http1 =
            format!("GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: fleet-load\r\nAccept: */*\r\n{connection}\r\n", target.path, target.host);
        targets.push(Prepared { group, target: target.clone(), http1: Bytes::from(http1), http2 });
    }
    Ok((groups, targets))
}
