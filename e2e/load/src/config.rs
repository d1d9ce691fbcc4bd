//! What to send where.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// How requests travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1, a new connection for every request (`Connection: close`).
    Http1Close,
    /// HTTP/1.1 over kept connections.
    #[default]
    Http1KeepAlive,
    /// HTTP/2: by prior knowledge in the clear, by ALPN over TLS.
    Http2,
    /// HTTP/1.1 over TLS, a new connection with a full handshake for every request: no session is resumed, as
    /// [`Protocol::Http1Close`] over TLS does.
    TlsHandshakes,
}

/// What one unit of load is. Each counts as one request, whatever it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unit {
    /// A `GET` and its answer.
    #[default]
    Request,
    /// A `GET` whose answer is read no faster than it says.
    Download {
        /// Bytes read a second. The planned duration is the size of the body divided by it.
        bytes_per_second: u64,
    },
    /// A `POST` whose body is sent no faster than it says. It must be answered, and not before all of it was sent.
    Upload {
        /// Size of the body.
        bytes: u64,
        /// Bytes sent a second. The planned duration is `bytes` divided by it.
        bytes_per_second: u64,
    },
    /// A WebSocket over HTTP/1.1 on which every message must come back as it was sent, in order.
    ///
    /// From its deadline on the server may end it, and messages sent later may then be without an echo; until then only
    /// the client may.
    WebSocket {
        /// The planned duration: from the server's 101 to the deadline.
        lasts: Duration,
        /// Time between two messages, whether the echo of the one before has come or not.
        every: Duration,
        /// For how long after the deadline the client goes on and leaves it to the server to end it, before it closes
        /// the WebSocket itself. [`crate::Handle::stop`] makes it zero.
        stays: Duration,
    },
}

impl Unit {
    /// How long the unit is to take at least, where the client decides that alone.
    pub(crate) fn planned(&self) -> Duration {
        match *self {
            Self::Request | Self::Download { .. } => Duration::ZERO,
            Self::Upload { bytes, bytes_per_second } => time_of(bytes, bytes_per_second),
            Self::WebSocket { lasts, stays, .. } => lasts.saturating_add(stays),
        }
    }
}

/// Some 30 years: more than anybody waits, and few enough to be added to a time.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(1_000_000_000);

/// How long so many bytes take at that rate.
#[allow(clippy::cast_precision_loss)] // no transfer has 2^52 bytes
pub(crate) fn time_of(bytes: u64, bytes_per_second: u64) -> Duration {
    Duration::try_from_secs_f64(bytes as f64 / bytes_per_second as f64).map_or(FOR_EVER, |time| time.min(FOR_EVER))
}

/// One request that is sent again and again, and the answer that counts as good.
#[derive(Clone, Debug)]
pub struct Target {
    /// Where to connect to.
    pub address: SocketAddr,
    /// The `Host` header, and the server name in TLS unless [`Tls::server_name`] says otherwise.
    pub host: String,
    /// Path and query.
    pub path: String,
    /// The only good status; of a WebSocket it is 101, whatever this says.
    pub status: u16,
    /// What the header `x-service` must say, if anything.
    pub service: Option<String>,
}

impl Target {
    /// A `GET` of `path` that must be answered with 200.
    pub fn new(address: SocketAddr, host: impl Into<String>, path: impl Into<String>) -> Self {
        Self { address, host: host.into(), path: path.into(), status: 200, service: None }
    }

    /// The same, answered by `service` (`namespace/name` in the header `x-service`).
    #[must_use]
    pub fn answered_by(self, service: impl Into<String>) -> Self {
        Self { service: Some(service.into()), ..self }
    }

    /// The same with another good status.
    #[must_use]
    pub fn with_status(self, status: u16) -> Self {
        Self { status, ..self }
    }
}

/// Whose certificates are good.
#[derive(Clone, Debug)]
pub enum Trust {
    /// Those signed by one of these certificates (PEM), or such a one itself if it is self-signed and no CA
    /// (`openssl req -x509` makes CAs unless told otherwise).
    Pem(Vec<u8>),
    /// All. For tests of what travels, not of who answers.
    Anything,
}

/// TLS, if it is wanted.
#[derive(Clone, Debug)]
pub struct Tls {
    /// Whose certificates are good.
    pub trust: Trust,
    /// The server name to ask for instead of each target's host: targets of one address then share connections.
    pub server_name: Option<String>,
}

/// A whole run.
#[derive(Clone, Debug)]
pub struct Config {
    /// Requests, sent in turn.
    pub targets: Vec<Target>,
    /// How they travel.
    pub protocol: Protocol,
    /// What each of them is.
    pub unit: Unit,
    /// Over TLS or not.
    pub tls: Option<Tls>,
    /// Requests a second.
    pub rate: f64,
    /// End after that many requests.
    pub requests: Option<u64>,
    /// End after that time.
    pub duration: Option<Duration>,
    /// At most that many connections (for each address and server name).
    pub connections: usize,
    /// HTTP/2: at most that many requests at once on a connection.
    pub streams: usize,
    /// Without the whole answer that long after its intended start, a request is lost. A download, an upload or a
    /// WebSocket is lost when it is so much behind its plan: with its begin, a piece of its body, its answer or an echo.
    pub timeout: Duration,
    /// A connection that was idle for longer is not used again: less than any sensible server keeps one, so that
    /// server and client do not race for its end.
    pub idle: Duration,
    /// The header of answers that names the pod, such as `x-pod`: the report then counts by pod, and says of a loss
    /// which pod had answered on its connection.
    pub pod_header: Option<String>,
}

/// One of several loads that run side by side.
#[derive(Clone, Debug)]
pub struct Part {
    /// What the report calls it.
    pub name: String,
    /// Its share of the rate, in proportion to the shares of the others.
    pub share: f64,
    /// What to send. The rate is the mix's business, and so is the duration if the mix has one.
    pub config: Config,
}

/// Several loads at once: protocols, units, targets.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Units a second, of all parts together.
    pub rate: f64,
    /// End after that time.
    pub duration: Option<Duration>,
    /// Who has which share of it.
    pub parts: Vec<Part>,
}

impl Mix {
    /// The configurations of the parts under their names.
    pub(crate) fn configs(self) -> Result<BTreeMap<String, Config>, ConfigError> {
        let total: f64 = self.parts.iter().map(|part| part.share).sum();
        let mut configs = BTreeMap::new();
        for part in self.parts {
            let rate = self.rate * part.share / total;
            let duration = self.duration.or(part.config.duration);
            if configs.insert(part.name.clone(), Config { rate, duration, ..part.config }).is_some() {
                return Err(ConfigError::SameName(part.name));
            }
        }
        if configs.is_empty() { Err(ConfigError::NoTarget) } else { Ok(configs) }
    }
}

impl Config {
    /// 100 requests a second over at most 64 kept connections until stopped.
    pub fn new(targets: Vec<Target>) -> Self {
        Self {
            targets,
            protocol: Protocol::default(),
            unit: Unit::default(),
            tls: None,
            rate: 100.0,
            requests: None,
            duration: None,
            connections: 64,
            streams: 32,
            timeout: Duration::from_secs(10),
            idle: Duration::from_secs(4),
            pod_header: None,
        }
    }

    /// Refuses what cannot run.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        if !(self.rate.is_finite() && self.rate > 0.0) {
            return Err(ConfigError::Rate(self.rate));
        }
        if self.protocol == Protocol::TlsHandshakes && self.tls.is_none() {
            return Err(ConfigError::Tls("handshakes are wanted, but no TLS".into()));
        }
        match self.unit {
            Unit::Download { bytes_per_second: 0 } | Unit::Upload { bytes_per_second: 0, .. } => {
                return Err(ConfigError::Unit("a transfer of 0 bytes a second never ends".into()));
            }
            Unit::WebSocket { every: Duration::ZERO, .. } => {
                return Err(ConfigError::Unit("messages of a WebSocket need time between them".into()));
            }
            Unit::WebSocket { .. } if self.protocol == Protocol::Http2 => {
                return Err(ConfigError::Unit("WebSockets travel over HTTP/1.1 here".into()));
            }
            _ => {}
        }
        self.check_room()
    }

    /// Refuses units that last so long that they would wait for each other's connections.
    fn check_room(&self) -> Result<(), ConfigError> {
        let planned = self.unit.planned();
        let at_once = self.rate * self.duration.map_or(planned, |duration| duration.min(planned)).as_secs_f64();
        #[allow(clippy::cast_precision_loss)] // counts far below 2^52
        let at_once = self.requests.map_or(at_once, |requests| at_once.min(requests as f64));
        #[allow(clippy::cast_precision_loss)] // counts far below 2^52
        if planned.is_zero() || at_once <= self.concurrency() as f64 {
            return Ok(());
        }
        let connections = self.connections;
        Err(ConfigError::Unit(format!(
            "units of {planned:?} at this rate are {at_once:.0} at once, too many for {connections} connections"
        )))
    }

    /// How many requests may be under way at once.
    pub(crate) fn concurrency(&self) -> usize {
        match self.protocol {
            Protocol::Http2 => self.connections.saturating_mul(self.streams).max(1),
            Protocol::Http1Close | Protocol::Http1KeepAlive | Protocol::TlsHandshakes => self.connections.max(1),
        }
    }
}

/// A configuration that cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// Nothing to send.
    #[error("there is no target")]
    NoTarget,
    /// A rate that is no positive number.
    #[error("a rate of {0} requests a second is not possible")]
    Rate(f64),
    /// A target that is no request.
    #[error("{host}{path} is not a request: {reason}")]
    Target {
        /// The target's host.
        host: String,
        /// The target's path.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// A unit that cannot be.
    #[error("{0}")]
    Unit(String),
    /// Two parts of a mix with one name.
    #[error("two parts are called {0}")]
    SameName(String),
    /// TLS settings that cannot be used.
    #[error("TLS: {0}")]
    Tls(String),
    /// The thread or its runtime did not start.
    #[error("the generator did not start: {0}")]
    Start(#[from] std::io::Error),
}
