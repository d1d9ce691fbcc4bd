//! What a fleet writes down.

use super::patterns::{HEADER_NAME, LOCAL_FACILITY, PRINTABLE};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the fleet writes down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Logging {
    /// A line for each request. There are none if nothing is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub access: Option<AccessLog>,
}

/// A line for each request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.syslog) == (self.destination == 'Syslog')")
    .message("destination Syslog needs syslog, and Container takes none"))]
pub struct AccessLog {
    /// Where lines go. Container: to the output of the container `haproxy`, for whatever collects logs in the cluster.
    /// Syslog: to a server, by UDP.
    #[serde(default)]
    pub destination: LogDestination,
    /// The server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub syslog: Option<Syslog>,
    /// What a line says: text with the variables of HAProxy's log formats, such as `%ci %tr "%{+Q}r" %ST`. Expressions
    /// (`%[…]`) are refused: capture headers and cookies, which `%hr` and `%hs` print. HAProxy's HTTP log format if nothing
    /// is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 2048), pattern(PRINTABLE))]
    pub format: Option<String>,
    /// After how many bytes a line is cut off.
    #[serde(default = "max_length")]
    #[schemars(range(min = 480, max = 8192))]
    pub max_length: i32,
    /// What is written down of requests and responses beside the usual.
    #[serde(default, skip_serializing_if = "Captures::is_empty")]
    pub captures: Captures,
    /// Whether there is a line for a connection that ended without a request.
    #[serde(default)]
    pub empty_requests: LogEmptyRequests,
}

fn max_length() -> i32 {
    1024
}

/// Where lines go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LogDestination {
    /// The output of the container.
    #[default]
    Container,
    /// A server.
    Syslog,
}

/// A server of syslog (RFC 5424).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Syslog {
    /// Its IP address.
    #[schemars(length(min = 1, max = 45))]
    #[x_kube(validation = Rule::new("isIP(self)").message("this takes an IP address"))]
    pub address: String,
    /// Its UDP port.
    #[serde(default = "syslog_port")]
    #[schemars(range(min = 1, max = 65535))]
    pub port: i32,
    /// The facility of the lines: `local0` to `local7`.
    #[serde(default = "facility")]
    #[schemars(length(max = 6), pattern(LOCAL_FACILITY))]
    pub facility: String,
}

fn syslog_port() -> i32 {
    514
}

fn facility() -> String {
    "local0".to_owned()
}

/// Headers and cookies that are written down, in this order: `%hr` prints what is captured of requests, `%hs` of
/// responses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Captures {
    /// Headers of requests, as they are after the fleet's own changes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub request_headers: Vec<Capture>,
    /// Headers of responses of servers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub response_headers: Vec<Capture>,
    /// Cookies of requests. Mind whose secrets they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 8))]
    pub cookies: Vec<Capture>,
}

impl Captures {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// A header or cookie that is written down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Capture {
    /// Its name.
    #[schemars(length(min = 1, max = 64), pattern(HEADER_NAME))]
    pub name: String,
    /// How many bytes of its value.
    #[schemars(range(min = 1, max = 512))]
    pub max_length: i32,
}

/// Whether there is a line for a connection that ended without a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum LogEmptyRequests {
    /// There is.
    Log,
    /// There is none.
    #[default]
    Ignore,
}
