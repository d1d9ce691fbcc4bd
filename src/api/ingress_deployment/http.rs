//! What a fleet does with every request and response, whatever the routes say.

use super::ConfigMapRef;
use super::patterns::{HEADER_NAME, MEDIA_TYPE, PRINTABLE};
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a fleet does with every request and response, whatever the routes say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Http {
    /// Headers of requests and responses.
    #[serde(default)]
    pub headers: HttpHeaders,
    /// Strict-Transport-Security, which keeps browsers to HTTPS: it is set on responses to HTTPS that do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hsts: Option<Hsts>,
    /// What a connection gets that ends or times out before it has asked for anything, as health checks of load
    /// balancers and connections that browsers open in advance do.
    #[serde(default)]
    pub empty_requests: EmptyRequests,
    /// A ConfigMap of the fleet's namespace with the bodies of what HAProxy answers by itself. Its keys are a status
    /// and what the body is: `503.html`, `404.json`, `429.txt`. A body has at most 12288 bytes and is sent as it
    /// stands. Answers of servers stay theirs, and requests that cannot be read get a plain 400, 408, 414 or 431.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_pages_ref: Option<ConfigMapRef>,
    /// Which responses are compressed (gzip) for clients that take it. Mind that compression can give away secrets
    /// which stand in a response beside what a client sent (BREACH).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compression: Option<Compression>,
}

/// Headers of requests and responses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpHeaders {
    /// What servers are told of the client in X-Forwarded-For and X-Forwarded-Proto. Append adds the client's address
    /// and sets the protocol; Replace drops what the client says, too; `IfNone` sets what is missing, for a fleet behind
    /// another proxy; Never leaves both alone. A Backend's `forwardfor` comes before it for its services.
    #[serde(default)]
    pub forwarded_policy: ForwardedPolicy,
    /// A header that names each request, for logs and traces. A request that has it already keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unique_id: Option<UniqueId>,
    /// Changes of requests, made before those of routes and Backends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub request: Vec<HeaderAction>,
    /// Changes of all that clients get, errors and redirects included, made after those of routes and Backends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    #[x_kube(merge_strategy = ListMerge::Map(vec!["name".into()]))]
    pub response: Vec<HeaderAction>,
}

/// What servers are told of the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ForwardedPolicy {
    /// The client's address is added to X-Forwarded-For, and X-Forwarded-Proto is set.
    #[default]
    Append,
    /// The same, and nothing of what the client says is left.
    Replace,
    /// Each is set where the request does not have it.
    IfNone,
    /// Both stay as they are.
    Never,
}

/// The rule for names of headers that a fleet may change: [`RESERVED_HEADERS`] in CEL.
const NOT_RESERVED: &str = "!(self.lowerAscii() in ['connection', 'content-length', 'cookie', 'host', 'keep-alive', 'proxy-connection', \
    'set-cookie', 'strict-transport-security', 'te', 'trailer', 'transfer-encoding', 'upgrade', 'x-forwarded-for', 'x-forwarded-proto'])";

/// What is said where [`NOT_RESERVED`] does not hold.
pub(in crate::api) const RESERVED: &str = "this header belongs to the connection, to routing or to another field";

/// Headers that frame messages, that routing and stickiness read, and that `forwardedPolicy` and `hsts` set.
pub(in crate::api) const RESERVED_HEADERS: [&str; 14] = [
    "connection",
    "content-length",
    "cookie",
    "host",
    "keep-alive",
    "proxy-connection",
    "set-cookie",
    "strict-transport-security",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
    "x-forwarded-for",
    "x-forwarded-proto",
];

/// A header that names each request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct UniqueId {
    /// The name of the header. Its value is a UUID.
    #[serde(default = "unique_id")]
    #[schemars(length(min = 1, max = 64), pattern(HEADER_NAME))]
    #[x_kube(validation = Rule::new(NOT_RESERVED).message(RESERVED))]
    pub name: String,
}

fn unique_id() -> String {
    "X-Request-ID".to_owned()
}

/// A change of one header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("has(self.value) == (self.type == 'Set')").message("type Set needs value, and Delete takes none"))]
pub struct HeaderAction {
    /// Its name, in any case.
    #[schemars(length(min = 1, max = 64), pattern(HEADER_NAME))]
    #[x_kube(validation = Rule::new(NOT_RESERVED).message(RESERVED))]
    pub name: String,
    /// Set puts `value` in the place of every value that it has; Delete takes it away.
    #[serde(rename = "type")]
    pub kind: HeaderActionType,
    /// Its value, taken literally.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), pattern(PRINTABLE))]
    pub value: Option<String>,
}

/// What becomes of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum HeaderActionType {
    /// It has this value and no other.
    Set,
    /// It is gone.
    Delete,
}

/// Strict-Transport-Security.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!self.preload || self.includeSubDomains && self.maxAge >= 31536000")
    .message("preload needs includeSubDomains and a maxAge of at least 31536000"))]
pub struct Hsts {
    /// For how many seconds browsers keep to HTTPS; 0 makes them forget.
    #[serde(default = "a_year")]
    #[schemars(range(min = 0, max = 63_072_000))]
    pub max_age: i32,
    /// Whether it holds for the names below the one that was asked, too.
    #[serde(default)]
    pub include_sub_domains: bool,
    /// Whether the names may be put on the list that browsers are shipped with. They do not come off it soon.
    #[serde(default)]
    pub preload: bool,
}

fn a_year() -> i32 {
    31_536_000
}

/// What a connection gets that asks for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
pub enum EmptyRequests {
    /// An answer that says so, 400 or 408.
    #[default]
    Respond,
    /// The end of the connection, without a word and without counting as an error.
    Ignore,
}

/// Which responses are compressed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct Compression {
    /// Those of these media types, such as `text/html`, whatever their parameters are.
    #[schemars(length(min = 1, max = 32), inner(length(max = 127), pattern(MEDIA_TYPE)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub mime_types: Vec<String>,
}
