//! What the listeners of a fleet do with every request, whatever the routes say.

use super::{CaId, HeaderEdits, Millis};
use crate::report::ObjectRef;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

/// What the listeners of a fleet do with every request, whatever the routes say. Its default is that of a fleet that
/// says nothing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings {
    /// What servers are told of the client.
    pub forwarded: Forwarded,
    /// The header (a token) that names each request, where it does not have it.
    pub unique_id: Option<Box<str>>,
    /// Changes to requests, before those of backends.
    pub request_headers: HeaderEdits,
    /// Changes to all that clients get, after those of backends.
    pub response_headers: HeaderEdits,
    /// Strict-Transport-Security on responses to HTTPS.
    pub hsts: Option<Hsts>,
    /// Whether a connection that asks for nothing ends without an answer.
    pub ignore_empty_requests: bool,
    /// What HAProxy answers with by itself, by status: one of [`ErrorPage::STATUSES`].
    pub error_pages: BTreeMap<u16, ErrorPage>,
    /// Media types (two tokens with a slash between) of responses that are compressed.
    pub compressed: BTreeSet<Box<str>>,
    /// What clients may speak.
    pub tls: TlsVersions,
    /// Whether clients of HTTPS show certificates.
    pub client_certificates: Option<ClientCertificates>,
    /// A line for each request.
    pub access_log: Option<AccessLog>,
    /// Whether the listener for health checks has HAProxy's numbers for Prometheus, at `/metrics`.
    pub metrics: bool,
    /// How long is waited for a client that neither sends nor takes anything.
    pub client_timeout: Option<Millis>,
    /// The same once it has closed its half.
    pub client_fin_timeout: Option<Millis>,
    /// How long is waited for the headers of a request.
    pub http_request_timeout: Option<Millis>,
    /// How long is waited for the next request: at most ten seconds, or workers of before a reload are kept by it.
    pub keep_alive_timeout: Option<Millis>,
    /// Bytes of a buffer without what these settings add to headers; HAProxy's 16384 at least.
    pub buffer_bytes: Option<u32>,
    /// Whether health checks fail as soon as a pod asks its clients to leave, while it still serves: nobody else tells load
    /// balancers of it.
    pub unready_while_closing: bool,
    /// How long a worker of before a reload lives.
    pub hard_stop_after: Option<Millis>,
    /// Over how long a worker that ends spreads the closing of its connections; all at once if nothing is said. Less than
    /// `hard_stop_after`.
    pub close_spread: Option<Millis>,
}

/// A line for each request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLog {
    /// Where lines go.
    pub destination: LogDestination,
    /// What a line says, made of text and [`LOG_VARIABLES`]; HAProxy's HTTP log format if nothing is said.
    pub format: Option<LogFormat>,
    /// Bytes after which a line is cut off: 80 to 65535.
    pub max_length: u32,
    /// Headers of requests (tokens) that are written down, with the bytes of each.
    pub request_headers: Vec<(Box<str>, u32)>,
    /// Headers of responses.
    pub response_headers: Vec<(Box<str>, u32)>,
    /// Cookies of requests.
    pub cookies: Vec<(Box<str>, u32)>,
    /// Whether there is a line for a connection without a request.
    pub empty_requests: bool,
}

/// Where lines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogDestination {
    /// Standard output.
    Output,
    /// A server of syslog (RFC 5424), by UDP.
    Syslog {
        /// Where it is.
        address: SocketAddr,
        /// The number of its local facility: 0 to 7.
        facility: u8,
    },
}

/// A log format that has been read: text, and variables of HAProxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFormat(Vec<LogPart>);

/// Flags of a variable in a log format: whether it is on, and its letter.
pub type LogFlags = Vec<(bool, char)>;

/// A part of a log format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogPart {
    /// Text, taken literally.
    Text(Box<str>),
    /// A variable.
    Variable {
        /// `+` or `-` and one of `Q`, `X`, `E`, each: in quotes, in hexadecimal, escaped.
        flags: LogFlags,
        /// One of [`LOG_VARIABLES`].
        name: &'static str,
    },
}

/// The variables of log formats that both release lines know in HTTP mode (configuration manual, 8.2.6).
pub const LOG_VARIABLES: [&str; 62] = [
    "B", "CC", "CS", "H", "HM", "HP", "HPO", "HQ", "HU", "HV", "ID", "ST", "T", "Ta", "Tc", "Td", "Th", "Ti", "Tq", "TR", "Tr", "Ts", "Tt",
    "Tu", "Tw", "U", "ac", "b", "bc", "bi", "bp", "bq", "ci", "cp", "f", "fc", "fi", "fp", "ft", "hr", "hrl", "hs", "hsl", "lc", "ms",
    "pid", "r", "rc", "rt", "s", "sc", "si", "sp", "sq", "sslc", "sslv", "t", "tr", "trg", "trl", "ts", "tsc",
];

impl LogFormat {
    /// Reads a format. What is wrong with it is said in words.
    pub fn read(text: &str) -> Result<Self, String> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('%') {
            if !before.is_empty() {
                parts.push(LogPart::Text(before.into()));
            }
            if let Some(after) = after.strip_prefix('%') {
                parts.push(LogPart::Text("%".into()));
                rest = after;
                continue;
            }
            let (flags, after) = flags(after)?;
            let end = after.find(|letter: char| !letter.is_ascii_alphanumeric()).unwrap_or(after.len());
            let (written, after) = after.split_at(end);
            let Some(name) = LOG_VARIABLES.into_iter().find(|name| *name == written) else {
                return Err(match after.chars().next() {
                    Some('[') if written.is_empty() => "has an expression (%[…])".to_owned(),
                    _ if written.is_empty() => "has a % that begins no variable".to_owned(),
                    _ => format!("has the variable %{written}, which is not one of HTTP logs"),
                });
            };
            parts.push(LogPart::Variable { flags, name });
            rest = after;
        }
        if !rest.is_empty() {
            parts.push(LogPart::Text(rest.into()));
        }
        Ok(Self(parts))
    }

    /// Its parts, in order.
    pub fn parts(&self) -> &[LogPart] {
        &self.0
    }
}

/// The flags in front of a variable, and what follows them.
fn flags(text: &str) -> Result<(LogFlags, &str), String> {
    let Some(inner) = text.strip_prefix('{') else { return Ok((Vec::new(), text)) };
    let wrong = || "has flags other than +Q, +X, +E and their opposites in braces".to_owned();
    let (inner, after) = inner.split_once('}').ok_or_else(wrong)?;
    let flag = |flag: &str| match flag.as_bytes() {
        [sign @ (b'+' | b'-'), letter @ (b'Q' | b'X' | b'E')] => Ok((*sign == b'+', char::from(*letter))),
        _ => Err(wrong()),
    };
    Ok((inner.split(',').map(flag).collect::<Result<_, _>>()?, after))
}

/// What clients may speak, after Mozilla's recommendations for servers (version 5.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TlsVersions {
    /// TLS 1.0 and newer.
    Old,
    /// TLS 1.2 and newer, with forward secrecy and authenticated encryption.
    #[default]
    Intermediate,
    /// TLS 1.3.
    Modern,
}

/// Whether clients show certificates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientCertificates {
    /// Whether they have to.
    pub required: bool,
    /// Whom good ones are from. `None`: nobody's are good.
    pub authorities: Option<CaId>,
}

/// The body of an answer that HAProxy gives by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorPage {
    /// What the body is.
    pub kind: PageKind,
    /// At least one byte and at most [`ErrorPage::MAX_BYTES`], sent as it stands.
    pub body: Arc<str>,
    /// The objects that it comes from.
    pub sources: Arc<[ObjectRef]>,
}

impl ErrorPage {
    /// Statuses that both release lines let a page be for (`http-error`), but 200, which is no error, and 400, 408, 414
    /// and 431: requests that cannot be read have their answer before it is known whose page that would be.
    pub const STATUSES: [u16; 16] = [401, 403, 404, 405, 407, 410, 413, 421, 422, 425, 429, 500, 501, 502, 503, 504];
    /// What fits a buffer of HAProxy together with headers.
    pub const MAX_BYTES: usize = 12_288;
}

/// What the body of a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // media types
pub enum PageKind {
    Html,
    Json,
    Text,
}

/// What servers are told of the client in X-Forwarded-For and X-Forwarded-Proto. The first is set where servers are
/// chosen: what a backend's policy says of it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Forwarded {
    /// The client's own X-Forwarded-For stays, with its address added; X-Forwarded-Proto is set.
    #[default]
    Append,
    /// What the client says of both is dropped first.
    Replace,
    /// X-Forwarded-Proto is set where there is none.
    IfNone,
    /// X-Forwarded-Proto is left alone.
    Never,
}

/// Strict-Transport-Security.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hsts {
    /// Seconds that it holds for.
    pub max_age: u32,
    /// Whether it holds for the names below, too.
    pub include_sub_domains: bool,
    /// Whether browsers may be shipped with it.
    pub preload: bool,
}
