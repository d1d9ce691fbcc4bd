//! The supported fields of a `Backend`.

// The columns of one kind name the same type more than once.
#![allow(clippy::duplicated_attributes)]

use super::BackendStatus;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a service is reached. Every field that says nothing leaves what a wider scope says: the nearest of
/// Service, Ingress and fleet wins, field by field. Fields of HAProxy's model that are not listed here are
/// kept, have no effect, and are reported.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "haproxy-fleet.dev",
    version = "v1alpha1",
    kind = "Backend",
    root = "BackendResource",
    plural = "backends",
    category = "haproxy-fleet",
    doc = "How services are reached: balancing, stickiness, time-outs, health checks, TLS. An Ingress or a Service names it by the annotation haproxy-fleet.dev/backend, a fleet by spec.backendRef; the nearest wins, field by field.",
    namespaced,
    derive = "PartialEq",
    status = "BackendStatus",
    printcolumn(name = "Balance", type_ = "string", json_path = ".spec.balance.algorithm"),
    printcolumn(name = "Uses", type_ = "integer", json_path = ".status.uses"),
    printcolumn(name = "State", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].reason"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp"),
    printcolumn(name = "Message", type_ = "string", json_path = ".status.conditions[?(@.type==\"Ready\")].message", priority = 1)
)]
#[serde(default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct BackendSpec {
    /// How a server is chosen.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub balance: Option<Balance>,
    /// Details of the hash that algorithms by hash use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash_type: Option<HashType>,
    /// Stickiness by cookie.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cookie: Option<Cookie>,
    /// Key that the values of a dynamic cookie are made with.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), pattern(r"^[^\s]+$"))]
    pub dynamic_cookie_key: Option<String>,
    /// Milliseconds to connect to a server.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub connect_timeout: Option<i64>,
    /// Milliseconds between two signs of life from a server.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub server_timeout: Option<i64>,
    /// Milliseconds to wait for a free slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub queue_timeout: Option<i64>,
    /// Milliseconds of silence allowed on an upgraded connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub tunnel_timeout: Option<i64>,
    /// Milliseconds for a health check to answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub check_timeout: Option<i64>,
    /// Attempts after a failed connection.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub retries: Option<i64>,
    /// On what to try again: words of HAProxy's `retry-on`, separated by blanks.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 256))]
    pub retry_on: Option<String>,
    /// Whether a retry may go to another server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub redispatch: Option<Redispatch>,
    /// How connections to servers are reused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub http_connection_mode: Option<HttpConnectionMode>,
    /// The header that names the client's address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forwardfor: Option<Forwardfor>,
    /// Connections at which dynamic limits of servers reach their maximum.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub fullconn: Option<i64>,
    /// Whether a request whose client has gone is dropped from the queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub abortonclose: Option<Switch>,
    /// The kind of health check. `httpchk` is supported.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub adv_check: Option<AdvCheck>,
    /// What an HTTP health check asks; needs `adv_check: httpchk`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub httpchk_params: Option<HttpchkParams>,
    /// Rules of an HTTP health check; needs `adv_check: httpchk`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 32))]
    pub http_check_list: Option<Vec<HttpCheck>>,
    /// What every server gets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_server: Option<DefaultServer>,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Switch {
    /// On.
    Enabled,
    /// Off.
    Disabled,
}

impl Switch {
    /// Whether it is on.
    pub fn is_on(self) -> bool {
        self == Self::Enabled
    }
}

/// How a server is chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Balance {
    /// The algorithm. `static-rr` and `hash` are not supported.
    pub algorithm: BalanceAlgorithm,
    /// For `hash`: the expression.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hash_expression: Option<String>,
    /// For `hdr`: the header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hdr_name: Option<String>,
    /// For `hdr`: only the domain part of a value like a host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hdr_use_domain_only: Option<bool>,
    /// For `random`: how many servers are compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub random_draws: Option<i64>,
    /// For `rdp-cookie`: the cookie.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(pattern(r"^[^\s]+$"))]
    pub rdp_cookie_name: Option<String>,
    /// For `uri`: how many directories are looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri_depth: Option<i64>,
    /// For `uri`: how many characters are looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri_len: Option<i64>,
    /// For `uri`: only the path, even of an absolute URI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri_path_only: Option<bool>,
    /// For `uri`: the query counts too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uri_whole: Option<bool>,
    /// For `url_param`: the query parameter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(pattern(r"^[^\s]+$"))]
    pub url_param: Option<String>,
    /// For `url_param`: bytes of a body to wait for and look into.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url_param_check_post: Option<i64>,
    /// For `url_param`: how long to wait for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url_param_max_wait: Option<i64>,
}

/// The algorithms of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // HAProxy's names
pub enum BalanceAlgorithm {
    First,
    Hash,
    Hdr,
    Leastconn,
    Random,
    #[serde(rename = "rdp-cookie")]
    RdpCookie,
    Roundrobin,
    Source,
    #[serde(rename = "static-rr")]
    StaticRr,
    Uri,
    #[serde(rename = "url_param")]
    UrlParam,
}

/// Details of a hash.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct HashType {
    /// `consistent`; `map-based` is not supported, as it forbids servers that come and go.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<HashMethod>,
    /// The function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<HashFunction>,
    /// Whether the result is mixed once more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modifier: Option<HashModifier>,
}

/// How a hash leads to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)] // HAProxy's names
pub enum HashMethod {
    MapBased,
    Consistent,
}

/// A hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // HAProxy's names
pub enum HashFunction {
    Sdbm,
    Djb2,
    Wt6,
    Crc32,
    None,
}

/// What is done to a hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // HAProxy's name
pub enum HashModifier {
    Avalanche,
}

/// Stickiness by cookie.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct Cookie {
    /// Its name.
    #[schemars(length(min = 1, max = 256), pattern(r"^[^\s]+$"))]
    pub name: String,
    /// Who sets it; if nothing is said it is only read.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<CookieType>,
    /// Its value is a hash of address and `dynamic_cookie_key`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic: Option<bool>,
    /// Removed from requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub indirect: Option<bool>,
    /// Answers that set it are not cached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nocache: Option<bool>,
    /// Set only in answers to POST.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub postonly: Option<bool>,
    /// One that the server sets is kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preserve: Option<bool>,
    /// `HttpOnly`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub httponly: Option<bool>,
    /// `Secure`
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secure: Option<bool>,
    /// Seconds of idleness after which it is ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maxidle: Option<i64>,
    /// Seconds of life after which it is ignored.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub maxlife: Option<i64>,
    /// Its domains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub domain: Vec<CookieValue>,
    /// More attributes, such as `SameSite=Lax`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub attr: Vec<CookieValue>,
}

/// Who sets a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // HAProxy's names
pub enum CookieType {
    Rewrite,
    Insert,
    Prefix,
}

/// A domain or an attribute.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CookieValue {
    /// Its text.
    #[serde(default)]
    #[schemars(length(max = 1024), pattern(r"^[^\s]+$"))]
    pub value: String,
}

/// Whether a retry may go to another server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Redispatch {
    /// Whether at all.
    pub enabled: Switch,
    /// After how many retries; negative: counted from the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interval: Option<i64>,
}

/// How connections to servers are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)] // HAProxy's names
pub enum HttpConnectionMode {
    #[serde(rename = "httpclose")]
    Httpclose,
    #[serde(rename = "http-server-close")]
    HttpServerClose,
    #[serde(rename = "http-keep-alive")]
    HttpKeepAlive,
}

/// The header that names the client's address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Forwardfor {
    /// Whether it is added. `disabled`, which the model does not have, switches the fleet's default off.
    pub enabled: Switch,
    /// Clients for which it is not added: an address or a network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(pattern(r"^[^\s]+$"))]
    pub except: Option<String>,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(pattern(r"^[^\s]+$"))]
    pub header: Option<String>,
    /// Only where the request does not have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ifnone: Option<bool>,
}

/// Kinds of health check of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)] // HAProxy's names
pub enum AdvCheck {
    Httpchk,
    LdapCheck,
    MysqlCheck,
    PgsqlCheck,
    RedisCheck,
    Smtpchk,
    SslHelloChk,
    TcpCheck,
}

/// What an HTTP health check asks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct HttpchkParams {
    /// The method.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub method: Option<CheckMethod>,
    /// The URI.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048), pattern("^[^ ]*$"))]
    pub uri: Option<String>,
    /// `HTTP/1.0` and the like.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub version: Option<String>,
    /// The Host header.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 253))]
    pub host: Option<String>,
}

/// A method of a health check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs)] // HTTP's names
pub enum CheckMethod {
    Head,
    Put,
    Post,
    Get,
    Trace,
    Patch,
    Delete,
    Connect,
    Options,
}

impl CheckMethod {
    /// As in a request.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Head => "HEAD",
            Self::Put => "PUT",
            Self::Post => "POST",
            Self::Get => "GET",
            Self::Trace => "TRACE",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
            Self::Connect => "CONNECT",
            Self::Options => "OPTIONS",
        }
    }
}

/// A rule of an HTTP health check. `send` and `expect` are supported, `comment` has no effect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct HttpCheck {
    /// What it does.
    #[serde(rename = "type")]
    pub kind: HttpCheckType,
    /// For `expect`: what is looked at.
    #[serde(default, rename = "match", skip_serializing_if = "Option::is_none")]
    pub matches: Option<HttpCheckMatch>,
    /// For `expect`: what it must look like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub pattern: Option<String>,
    /// For `expect`: it must not match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exclamation_mark: Option<bool>,
    /// For `send`: the method.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub method: Option<CheckMethod>,
    /// For `send`: the URI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 2048))]
    pub uri: Option<String>,
    /// For `send`: `HTTP/1.0` and the like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16))]
    pub version: Option<String>,
    /// For `send`: headers. `Host` is supported.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 32))]
    pub headers: Vec<HttpCheckHeader>,
}

/// What a rule of an HTTP health check does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[allow(missing_docs)] // HAProxy's names
pub enum HttpCheckType {
    #[serde(rename = "comment")]
    Comment,
    #[serde(rename = "connect")]
    Connect,
    #[serde(rename = "disable-on-404")]
    DisableOn404,
    #[serde(rename = "expect")]
    Expect,
    #[serde(rename = "send")]
    Send,
    #[serde(rename = "send-state")]
    SendState,
    #[serde(rename = "set-var")]
    SetVar,
    #[serde(rename = "set-var-fmt")]
    SetVarFmt,
    #[serde(rename = "unset-var")]
    UnsetVar,
}

/// What is looked at in the answer to a health check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // HAProxy's names
pub enum HttpCheckMatch {
    Status,
    Rstatus,
    Hdr,
    Fhdr,
    String,
    Rstring,
}

/// A header of a health check.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct HttpCheckHeader {
    /// Its name.
    #[schemars(length(max = 256))]
    pub name: String,
    /// Its value.
    #[schemars(length(max = 2048))]
    pub fmt: String,
}

/// What every server gets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(extend("x-kubernetes-preserve-unknown-fields" = true))]
pub struct DefaultServer {
    /// Health checks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub check: Option<Switch>,
    /// Milliseconds between checks.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub inter: Option<i64>,
    /// Good checks to be up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rise: Option<i64>,
    /// Bad checks to be down.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fall: Option<i64>,
    /// Connections at a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub maxconn: Option<i64>,
    /// Share, 0 to 256.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 256))]
    pub weight: Option<i64>,
    /// Milliseconds over which the share of a new server grows.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub slowstart: Option<i64>,
    /// TLS towards the server.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ssl: Option<Switch>,
    /// Whether its certificate is verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verify: Option<Verify>,
    /// What it is verified with: `secret/NAME` or `configmap/NAME` of the Backend's namespace, each with
    /// `/KEY` if it is not `ca.crt`, or just the name of a Secret. Never a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512), pattern(r"^[^\s]+$"))]
    pub ssl_cafile: Option<String>,
    /// The name that is sent to it: a DNS name (or `str(NAME)`), or `req.hdr(host)` for that of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512), pattern(r"^[^\s]+$"))]
    pub sni: Option<String>,
    /// Protocols that are offered, separated by commas.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128), pattern(r"^[^\s]+$"))]
    pub alpn: Option<String>,
    /// PROXY protocol, text form.
    #[serde(rename = "send-proxy", skip_serializing_if = "Option::is_none")]
    pub send_proxy: Option<Switch>,
    /// PROXY protocol, binary form.
    #[serde(rename = "send-proxy-v2", skip_serializing_if = "Option::is_none")]
    pub send_proxy_v2: Option<Switch>,
}

/// Whether a server's certificate is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[allow(missing_docs)] // HAProxy's names
pub enum Verify {
    None,
    Required,
}
