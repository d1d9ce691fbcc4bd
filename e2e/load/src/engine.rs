//! The schedule, and the pool of connections.

use crate::account::{Account, Progress, lock};
use crate::config::{Config, ConfigError, FOR_EVER, Protocol, Target, Unit};
use crate::connect::Connector;
use crate::http1::{self, Expected, Upload};
use crate::http2::{self, Window};
use crate::pace::Pace;
use crate::report::{Answer, Failure, Loss, Report};
use crate::websocket::{Plan, Talk};
use bytes::Bytes;
use rustls::pki_types::ServerName;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout_at};
use tokio_tungstenite::tungstenite::handshake::{client::generate_key, derive_accept_key};

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

/// One load: its schedule, its connections, its account.
pub(crate) struct Run {
    config: Config,
    connector: Connector,
    groups: Vec<Group>,
    targets: Vec<Prepared>,
    started: Instant,
    account: Account,
    queue: Mutex<Queue>,
    idle: Notify,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Job>,
    running: usize,
}

/// Waits until the run is to stop: it is told so, or nobody is there to tell.
async fn told_to_stop(stop: &mut watch::Receiver<bool>) {
    // an error is the latter
    let _ = stop.wait_for(|stop| *stop).await;
}

impl Run {
    pub(crate) fn new(config: Config, started: Instant, progress: Arc<Progress>) -> Result<Self, ConfigError> {
        if config.targets.is_empty() {
            return Err(ConfigError::NoTarget);
        }
        config.check()?;
        let connector = Connector::new(&config)?;
        let (groups, targets) = prepare(&config)?;
        let account = Account::new(started, progress);
        Ok(Self { config, connector, groups, targets, started, account, queue: Mutex::default(), idle: Notify::new() })
    }

    /// Starts requests at their times, whatever the answers do.
    pub(crate) async fn open_loop(self: Arc<Self>, stop: watch::Receiver<bool>) -> Report {
        let end = self.config.duration.map(|duration| self.started + duration);
        let mut stopped = stop.clone();
        let mut number = 0;
        loop {
            #[allow(clippy::cast_precision_loss)] // 2^52 requests are not reached
            let intended = self.started + Duration::from_secs_f64(number as f64 / self.config.rate);
            if self.config.requests.is_some_and(|most| number >= most) || end.is_some_and(|end| intended >= end) {
                break;
            }
            let due = async {
                // a request that is late already does not wait for the timer's next tick as well
                if intended > Instant::now() {
                    sleep_until(intended).await;
                }
            };
            tokio::select! {
                biased;
                () = told_to_stop(&mut stopped) => break,
                () = due => {}
            }
            self.dispatch(Job { number, intended }, &stop);
            number += 1;
        }
        while lock(&self.queue).running > 0 {
            self.idle.notified().await;
        }
        self.account.close()
    }

    /// Sends on all connections as fast as answers come.
    pub(crate) async fn closed_loop(self: Arc<Self>, mut stop: watch::Receiver<bool>) -> Report {
        let end = self.started + self.config.duration.unwrap_or(Duration::from_secs(2));
        let numbers = Arc::new(AtomicU64::new(0));
        let mut workers = tokio::task::JoinSet::new();
        for _ in 0..self.config.concurrency() {
            let (run, numbers, stop) = (Arc::clone(&self), Arc::clone(&numbers), stop.clone());
            workers.spawn(async move {
                while Instant::now() < end {
                    let number = numbers.fetch_add(1, Ordering::Relaxed);
                    if run.config.requests.is_some_and(|most| number >= most) {
                        break;
                    }
                    run.perform(Job { number, intended: Instant::now() }, &stop).await;
                }
            });
        }
        tokio::select! {
            () = told_to_stop(&mut stop) => workers.abort_all(),
            () = async { while workers.join_next().await.is_some() {} } => {}
        }
        self.account.close()
    }

    fn dispatch(self: &Arc<Self>, job: Job, stop: &watch::Receiver<bool>) {
        let mut queue = lock(&self.queue);
        if queue.running >= self.config.concurrency() {
            queue.waiting.push_back(job);
            return;
        }
        queue.running += 1;
        drop(queue);
        tokio::spawn(Arc::clone(self).work(job, stop.clone()));
    }

    /// Performs `job` and then whatever waits.
    async fn work(self: Arc<Self>, mut job: Job, stop: watch::Receiver<bool>) {
        loop {
            self.perform(job, &stop).await;
            let mut queue = lock(&self.queue);
            let Some(next) = queue.waiting.pop_front() else {
                queue.running -= 1;
                self.idle.notify_one();
                return;
            };
            job = next;
        }
    }

    async fn perform(&self, job: Job, stop: &watch::Receiver<bool>) {
        self.account.sent(job.intended);
        let count = self.targets.len() as u64;
        let prepared = &self.targets[usize::try_from(job.number % count).unwrap_or_default()];
        let result = match (self.config.unit, self.config.protocol) {
            (Unit::WebSocket { lasts, every, stays }, _) => {
                let plan = Plan { lasts: lasts.min(FOR_EVER), every, stays: stays.min(FOR_EVER), patience: self.config.timeout };
                self.websocket(prepared, job, plan, stop).await
            }
            (unit, Protocol::Http2) => self.http2(prepared, job, unit).await,
            (unit, _) => self.http1(prepared, job, unit).await,
        };
        match result {
            Ok(answer) => self.account.answered(job.intended, &answer),
            Err(failure) => self.account.failed(|| format!("{}{}", prepared.target.host, prepared.target.path), failure),
        }
    }

    /// What `step` comes to, unless the timeout of `job` is over before; that may be later by `planned`.
    async fn in_time<T>(&self, job: Job, planned: Duration, step: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let late = |_| Failure::new(Loss::Timeout, format_args!("not done {:?} after its time", self.config.timeout));
        timeout_at(job.intended + planned + self.config.timeout, step).await.map_err(late)?
    }

    fn pace(&self, bytes_per_second: u64) -> Pace {
        Pace::new(bytes_per_second, self.config.timeout)
    }

    fn expected<'a>(&'a self, prepared: &'a Prepared) -> Expected<'a> {
        let Target { status, service, .. } = &prepared.target;
        Expected { status: *status, service: service.as_deref(), pod_header: self.config.pod_header.as_deref(), accept: None }
    }

    async fn connect(&self, group: &Group, job: Job) -> Result<http1::Connection, Failure> {
        let connect = self.connector.connect(group.address, group.name.as_ref());
        Ok(http1::Connection::new(self.in_time(job, Duration::ZERO, connect).await?))
    }

    async fn http1(&self, prepared: &Prepared, job: Job, unit: Unit) -> Result<Answer, Failure> {
        let group = &self.groups[prepared.group];
        let mut connection = match self.kept(group) {
            Some(connection) => connection,
            None => self.connect(group, job).await?,
        };
        let result = self.http1_unit(&mut connection, prepared, job, unit).await;
        let pod = connection.pod();
        if self.config.protocol == Protocol::Http1KeepAlive && connection.is_reusable() {
            lock(&group.idle).push(connection);
        }
        result.map_err(|failure| failure.with_pod(pod))
    }

    async fn http1_unit(&self, connection: &mut http1::Connection, prepared: &Prepared, job: Job, unit: Unit) -> Result<Answer, Failure> {
        let (expected, planned) = (self.expected(prepared), unit.planned());
        match unit {
            Unit::Download { bytes_per_second } => {
                let begun = self.in_time(job, planned, connection.ask(&prepared.http1, &expected)).await?;
                connection.download(begun, self.pace(bytes_per_second)).await
            }
            Unit::Upload { bytes, bytes_per_second } => {
                let upload = Upload { bytes, bytes_per_second };
                self.in_time(job, planned, connection.upload(&prepared.http1, &expected, &upload, self.pace(bytes_per_second))).await
            }
            Unit::Request | Unit::WebSocket { .. } => self.in_time(job, planned, connection.request(&prepared.http1, &expected)).await,
        }
    }

    async fn websocket(&self, prepared: &Prepared, job: Job, plan: Plan, stop: &watch::Receiver<bool>) -> Result<Answer, Failure> {
        let mut connection = self.connect(&self.groups[prepared.group], job).await?;
        let key = generate_key();
        let accept = derive_accept_key(key.as_bytes());
        let expected = Expected { status: 101, accept: Some(&accept), ..self.expected(prepared) };
        let request = Bytes::from([&prepared.http1[..], format!("Sec-WebSocket-Key: {key}\r\n\r\n").as_bytes()].concat());
        let begun = self.in_time(job, Duration::ZERO, connection.ask(&request, &expected)).await;
        let pod = connection.pod();
        begun.and_then(|begun| begun.verdict).map_err(|failure| failure.with_pod(pod.clone()))?;
        let (io, read) = connection.into_parts();
        let talk = Talk::new(io, read.to_vec(), plan, job.number, &self.account).await;
        match talk.run(stop.clone()).await {
            Ok(answer) => Ok(Answer { pod, ..answer }),
            Err(failure) => Err(failure.with_pod(pod)),
        }
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

    async fn http2(&self, prepared: &Prepared, job: Job, unit: Unit) -> Result<Answer, Failure> {
        let mut exchange = self.in_time(job, Duration::ZERO, self.http2_exchange(prepared, job, unit)).await?;
        let result = self.http2_unit(&mut exchange, prepared, job, unit).await;
        result.map_err(|failure| failure.with_pod(exchange.pod()))
    }

    async fn http2_unit(&self, exchange: &mut http2::Exchange, prepared: &Prepared, job: Job, unit: Unit) -> Result<Answer, Failure> {
        let (expected, planned) = (self.expected(prepared), unit.planned());
        match unit {
            Unit::Download { bytes_per_second } => {
                let begun = self.in_time(job, planned, exchange.head(&expected)).await?;
                exchange.download(begun, self.pace(bytes_per_second)).await
            }
            Unit::Upload { bytes, bytes_per_second } => {
                let upload = Upload { bytes, bytes_per_second };
                self.in_time(job, planned, exchange.upload(&expected, &upload, self.pace(bytes_per_second))).await
            }
            Unit::Request | Unit::WebSocket { .. } => self.in_time(job, planned, exchange.request(&expected)).await,
        }
    }

    /// Sends a request on a connection that takes it.
    async fn http2_exchange(&self, prepared: &Prepared, job: Job, unit: Unit) -> Result<http2::Exchange, Failure> {
        let group = &self.groups[prepared.group];
        let index = usize::try_from(job.number % group.shared.len() as u64).unwrap_or_default();
        let shared = &group.shared[index];
        loop {
            let connection = self.shared(group, shared).await?;
            let ready = connection.ready().await;
            // only a request that was never sent comes round again: that is no retry
            match ready.and_then(|ready| ready.send(prepared.http2.clone(), matches!(unit, Unit::Upload { .. }))) {
                Some(exchange) => return Ok(exchange),
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
        let window = if matches!(self.config.unit, Unit::Download { .. }) { Window::Narrow } else { Window::Wide };
        let connection = http2::Connection::new(self.connector.connect(group.address, group.name.as_ref()).await?, window).await?;
        *held = Some(connection.clone());
        Ok(connection)
    }
}

fn prepare(config: &Config) -> Result<(Vec<Group>, Vec<Prepared>), ConfigError> {
    let mut groups = Vec::new();
    let mut known = HashMap::new();
    let mut targets = Vec::with_capacity(config.targets.len());
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
        let http2 = http2_request(config, target).map_err(|error| invalid(error.to_string()))?;
        targets.push(Prepared { group, target: target.clone(), http1: http1_request(config, target), http2 });
    }
    Ok((groups, targets))
}

fn method(unit: Unit) -> http::Method {
    if matches!(unit, Unit::Upload { .. }) { http::Method::POST } else { http::Method::GET }
}

fn http2_request(config: &Config, target: &Target) -> Result<http::Request<()>, http::Error> {
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let request = http::Request::builder()
        .method(method(config.unit))
        .uri(format!("{scheme}://{}{}", target.host, target.path))
        .version(http::Version::HTTP_2);
    match config.unit {
        Unit::Upload { bytes, .. } => request.header(http::header::CONTENT_LENGTH, bytes).body(()),
        _ => request.body(()),
    }
}

/// The head of a request; of a WebSocket's handshake, without the key, which is each one's own, and the end.
fn http1_request(config: &Config, target: &Target) -> Bytes {
    let close = matches!(config.protocol, Protocol::Http1Close | Protocol::TlsHandshakes);
    let fields = match config.unit {
        Unit::WebSocket { .. } => "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n".to_owned(),
        Unit::Upload { bytes, .. } => format!("Content-Length: {bytes}\r\n{}\r\n", connection(close)),
        Unit::Request | Unit::Download { .. } => format!("{}\r\n", connection(close)),
    };
    let (method, Target { path, host, .. }) = (method(config.unit), target);
    Bytes::from(format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: fleet-load\r\nAccept: */*\r\n{fields}"))
}

fn connection(close: bool) -> &'static str {
    if close { "Connection: close\r\n" } else { "" }
}
