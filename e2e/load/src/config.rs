//! What to send where.

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
    /// The only good status.
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
    /// Without the whole answer that long after its intended start, a request is lost.
    pub timeout: Duration,
    /// A connection that was idle for longer is not used again: less than any sensible server keeps one, so that
    /// server and client do not race for its end.
    pub idle: Duration,
}

impl Config {
    /// 100 requests a second over at most 64 kept connections until stopped.
    pub fn new(targets: Vec<Target>) -> Self {
        Self {
            targets,
            protocol: Protocol::default(),
            tls: None,
            rate: 100.0,
            requests: None,
            duration: None,
            connections: 64,
            streams: 32,
            timeout: Duration::from_secs(10),
            idle: Duration::from_secs(4),
        }
    }

    /// How many requests may be under way at once.
    pub(crate) fn concurrency(&self) -> usize {
        match self.protocol {
            Protocol::Http2 => self.connections.saturating_mul(self.streams).max(1),
            Protocol::Http1Close | Protocol::Http1KeepAlive => self.connections.max(1),
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
    /// TLS settings that cannot be used.
    #[error("TLS: {0}")]
    Tls(String),
    /// The thread or its runtime did not start.
    #[error("the generator did not start: {0}")]
    Start(#[from] std::io::Error),
}
