//! How a service is reached: the one policy type that every dialect and the `Backend` kind fill.
//!
//! Fields that are `None` (or empty) leave HAProxy's or the fleet's default. Merging scopes is field by
//! field, the nearest wins: [`Policy::or`].

use super::{CaId, Name};
use std::sync::{Arc, LazyLock};

/// A duration in milliseconds, at most `2_147_483_647` (HAProxy's limit, about 24 days).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Millis(pub u32);

/// How a service is reached.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Policy {
    /// How a server is chosen.
    pub balance: Option<Balance>,
    /// Details of the consistent hash that balance algorithms by hash use.
    pub hash_type: Option<HashType>,
    /// Stickiness by cookie.
    pub cookie: Option<Cookie>,
    /// Key that cookie values of a dynamic cookie are made with (a secret of the fleet's tenants).
    pub dynamic_cookie_key: Option<Box<str>>,
    /// Time to connect to a server.
    pub connect_timeout: Option<Millis>,
    /// Time between two signs of life from a server.
    pub server_timeout: Option<Millis>,
    /// Time to wait for a free slot.
    pub queue_timeout: Option<Millis>,
    /// Silence allowed on an upgraded connection.
    pub tunnel_timeout: Option<Millis>,
    /// Time for a health check to answer.
    pub check_timeout: Option<Millis>,
    /// Attempts after a failed connection.
    pub retries: Option<u32>,
    /// On what to try again.
    pub retry_on: Option<Vec<RetryOn>>,
    /// Whether a retry may go to another server; the number is HAProxy's interval (−1: only the last).
    pub redispatch: Option<Redispatch>,
    /// How connections are reused.
    pub http_connection_mode: Option<HttpConnectionMode>,
    /// The header that names the client's address.
    pub forwardfor: Option<ForwardFor>,
    /// Connections at which dynamic server limits reach their maximum.
    pub fullconn: Option<u32>,
    /// Whether a request whose client has gone is dropped from the queue.
    pub abortonclose: Option<bool>,
    /// HTTP health checks.
    pub http_check: Option<HttpCheck>,
    /// What every server gets.
    pub server: ServerOptions,
    /// Replacement of the path.
    pub rewrite: Option<PathRewrite>,
    /// Replacement of the Host header (a valid host name).
    pub rewrite_host: Option<Box<str>>,
    /// Answer with a redirect instead of asking a server.
    pub redirect: Option<Redirect>,
    /// Changes to request headers.
    pub request_headers: HeaderEdits,
    /// Changes to response headers.
    pub response_headers: HeaderEdits,
    /// Cross-origin resource sharing.
    pub cors: Option<Cors>,
    /// Whether the pods of a zone prefer the endpoints of that zone.
    pub zone_aware: Option<bool>,
    /// Where a copy of each request goes, with its share in percent.
    pub mirror: Vec<(super::BackendId, u8)>,
}

/// How a server is chosen.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Balance {
    /// In turn.
    RoundRobin,
    /// The one with the fewest connections.
    LeastConn,
    /// The first with a free slot.
    First,
    /// The better of this many picked by chance (default 2).
    Random(Option<u32>),
    /// By client address.
    Source,
    /// By path, or parts of it.
    Uri {
        /// Number of directories to look at.
        depth: Option<u32>,
        /// Number of characters to look at.
        len: Option<u32>,
        /// Whether the query counts.
        whole: bool,
        /// Whether host and query are left out of absolute URIs.
        path_only: bool,
    },
    /// By a query parameter (a token).
    UrlParam {
        /// Its name.
        name: Box<str>,
        /// Bytes of a POST body to wait for and look into.
        check_post: Option<u32>,
    },
    /// By a request header (a token).
    Header {
        /// Its name.
        name: Box<str>,
        /// Only the domain part of a host-like value.
        domain_only: bool,
    },
    /// By a cookie of the RDP protocol.
    RdpCookie(Option<Box<str>>),
}

/// Details of the consistent hash.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HashType {
    /// The function; HAProxy's default is sdbm.
    pub function: Option<HashFunction>,
    /// Whether the result is mixed once more.
    pub avalanche: bool,
    /// Bounded load, in percent of the average (at least 100); 0 is off.
    pub balance_factor: Option<u32>,
}

/// A hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // HAProxy's names
pub enum HashFunction {
    Sdbm,
    Djb2,
    Wt6,
    Crc32,
    None,
}

/// Stickiness by cookie.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(clippy::struct_excessive_bools)] // one for each of HAProxy's keywords
pub struct Cookie {
    /// Its name: a token.
    pub name: Box<str>,
    /// Who sets it.
    pub mode: CookieMode,
    /// Value is a hash of address and the dynamic key.
    pub dynamic: bool,
    /// Removed from requests.
    pub indirect: bool,
    /// Marks the answer as not cacheable.
    pub nocache: bool,
    /// Only on answers to POST.
    pub postonly: bool,
    /// Keeps a cookie that the server sets.
    pub preserve: bool,
    /// `HttpOnly`.
    pub httponly: bool,
    /// `Secure`.
    pub secure: bool,
    /// Seconds of idleness after which it is ignored.
    pub maxidle: Option<u32>,
    /// Seconds of life after which it is ignored.
    pub maxlife: Option<u32>,
    /// Domains (valid names).
    pub domains: Vec<Box<str>>,
    /// More attributes, such as `SameSite=Lax`: no control bytes, no semicolon.
    pub attributes: Vec<Box<str>>,
}

/// Who sets a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // HAProxy's names
pub enum CookieMode {
    Insert,
    Rewrite,
    Prefix,
}

/// On what a request is tried again (HAProxy's `retry-on` words).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum RetryOn {
    None,
    ConnFailure,
    EmptyResponse,
    JunkResponse,
    ResponseTimeout,
    ZeroRttRejected,
    AllRetryableErrors,
    /// One of 401, 403, 404, 408, 421, 425, 429, 500, 501, 502, 503, 504.
    Status(u16),
}

/// Whether a retry may go to another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Redispatch {
    /// Whether at all.
    pub enabled: bool,
    /// After how many retries; negative: counted from the last.
    pub interval: Option<i32>,
}

/// How server connections are reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HttpConnectionMode {
    /// `option http-keep-alive`
    KeepAlive,
    /// `option http-server-close`
    ServerClose,
    /// `option httpclose`
    Close,
}

/// The header that names the client's address.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ForwardFor {
    /// Whether it is added.
    pub enabled: bool,
    /// Its name (a token); `X-Forwarded-For` if none.
    pub header: Option<Box<str>>,
    /// Clients for which it is not added: an address or network.
    pub except: Option<Box<str>>,
    /// Only where the request does not have one.
    pub ifnone: bool,
}

/// HTTP health checks: `option httpchk` with its rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HttpCheck {
    /// The method (a token); HAProxy's default is OPTIONS.
    pub method: Option<Box<str>>,
    /// The URI: no blanks, no control bytes. A value, not a shape.
    pub uri: Option<Box<str>>,
    /// `HTTP/1.0` and the like.
    pub version: Option<Box<str>>,
    /// Host header of the check.
    pub host: Option<Box<str>>,
    /// What an answer must look like; a status of 2xx or 3xx if nothing is said.
    pub expect: Option<HttpCheckExpect>,
}

/// What the answer to a health check must look like.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HttpCheckExpect {
    /// Whether it must *not* match.
    pub negate: bool,
    /// What is looked at.
    pub pattern: HttpCheckPattern,
}

/// What is looked at in the answer to a health check.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HttpCheckPattern {
    /// Status codes and ranges: digits, commas and dashes.
    Status(Box<str>),
    /// A PCRE on the status.
    StatusRegex(Box<str>),
    /// A text in the body.
    String(Box<str>),
    /// A PCRE on the body.
    StringRegex(Box<str>),
}

/// What every server of a backend gets: HAProxy's `default-server`, written out on each server because
/// servers added at run time do not inherit it.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerOptions {
    /// Health checks on or off.
    pub check: Option<bool>,
    /// Time between checks.
    pub inter: Option<Millis>,
    /// Good checks to be up.
    pub rise: Option<u32>,
    /// Bad checks to be down.
    pub fall: Option<u32>,
    /// The port that checks go to, where it is not the server's own.
    pub check_port: Option<u16>,
    /// Connections at a time.
    pub maxconn: Option<u32>,
    /// Share, 0 to 256.
    pub weight: Option<u16>,
    /// Time over which a new server's share grows.
    pub slowstart: Option<Millis>,
    /// TLS towards the server.
    pub ssl: Option<bool>,
    /// Whether its certificate is verified.
    pub verify: Option<Verify>,
    /// What it is verified with.
    pub ca: Option<CaId>,
    /// Name sent to the server: a valid DNS name, or taken from the request's Host.
    pub sni: Option<Sni>,
    /// Protocols offered, such as `h2`.
    pub alpn: Option<Vec<Box<str>>>,
    /// HTTP/2 without TLS and without asking first; over TLS `alpn` decides.
    pub h2c: Option<bool>,
    /// PROXY protocol version 1 or 2.
    pub send_proxy: Option<SendProxy>,
}

/// Whether a server's certificate is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verify {
    /// Not at all.
    None,
    /// It must chain to the CA.
    Required,
}

/// The name sent to a TLS server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Sni {
    /// This name.
    Name(Box<str>),
    /// The request's Host.
    RequestHost,
}

/// PROXY protocol towards a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SendProxy {
    /// Off, where a wider scope turns it on.
    Off,
    /// Text form.
    V1,
    /// Binary form.
    V2,
}

/// Replacement of the path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathRewrite {
    /// The matched prefix (without a trailing slash; empty for `/`) is replaced by this one (likewise).
    Prefix {
        /// What the route matched.
        matched: Box<str>,
        /// What stands there afterwards: starts with `/` unless empty.
        replacement: Box<str>,
    },
    /// The whole path becomes this one.
    Full(Box<str>),
}

/// An answer that sends the client elsewhere.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Redirect {
    /// 301, 302, 303, 307 or 308.
    pub code: u16,
    /// Where to.
    pub to: RedirectTo,
}

/// Where a redirect leads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RedirectTo {
    /// Exactly this location: an absolute URL or a path, without control bytes or blanks.
    Location(Box<str>),
    /// The request's own URL with some parts replaced.
    Parts {
        /// `http` or `https`.
        scheme: Option<Box<str>>,
        /// A valid host name.
        host: Option<Box<str>>,
        /// The port; the scheme's own if none.
        port: Option<u16>,
        /// The path.
        path: Option<PathRewrite>,
    },
}

/// Changes to the headers of a message. Names are tokens; values hold no control bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HeaderEdits {
    /// Replaced, or added where missing.
    pub set: Vec<(Box<str>, Box<str>)>,
    /// Added to what is there.
    pub add: Vec<(Box<str>, Box<str>)>,
    /// Removed.
    pub remove: Vec<Box<str>>,
}

/// Cross-origin resource sharing, as in Gateway API.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cors {
    /// Origins, with `*` as a whole or as the first label.
    pub allow_origins: Vec<Box<str>>,
    /// Methods.
    pub allow_methods: Vec<Box<str>>,
    /// Request headers.
    pub allow_headers: Vec<Box<str>>,
    /// Response headers that scripts may see.
    pub expose_headers: Vec<Box<str>>,
    /// Cookies and the like.
    pub allow_credentials: bool,
    /// Seconds that a browser may remember the answer.
    pub max_age: Option<u32>,
}

impl HeaderEdits {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.add.is_empty() && self.remove.is_empty()
    }

    /// These edits, and of `wider` those whose header is not named here.
    fn or(self, wider: &Self) -> Self {
        let named = |name: &str| {
            let same = |other: &str| other.eq_ignore_ascii_case(name);
            self.set.iter().any(|(n, _)| same(n)) || self.add.iter().any(|(n, _)| same(n)) || self.remove.iter().any(|n| same(n))
        };
        let pairs = |list: &[(Box<str>, Box<str>)]| list.iter().filter(|(n, _)| !named(n)).cloned().collect::<Vec<_>>();
        let (set, add) = (pairs(&wider.set), pairs(&wider.add));
        let remove: Vec<_> = wider.remove.iter().filter(|n| !named(n)).cloned().collect();
        Self { set: [self.set, set].concat(), add: [self.add, add].concat(), remove: [self.remove, remove].concat() }
    }
}

impl ServerOptions {
    fn or(self, wider: &Self) -> Self {
        Self {
            check: self.check.or(wider.check),
            inter: self.inter.or(wider.inter),
            rise: self.rise.or(wider.rise),
            fall: self.fall.or(wider.fall),
            check_port: self.check_port.or(wider.check_port),
            maxconn: self.maxconn.or(wider.maxconn),
            weight: self.weight.or(wider.weight),
            slowstart: self.slowstart.or(wider.slowstart),
            ssl: self.ssl.or(wider.ssl),
            verify: self.verify.or(wider.verify),
            ca: self.ca.or_else(|| wider.ca.clone()),
            sni: self.sni.or_else(|| wider.sni.clone()),
            alpn: self.alpn.or_else(|| wider.alpn.clone()),
            h2c: self.h2c.or(wider.h2c),
            send_proxy: self.send_proxy.or(wider.send_proxy),
        }
    }
}

impl Policy {
    /// The policy, shared: all that say nothing are one, and most say nothing.
    pub fn shared(self) -> Arc<Self> {
        static NOTHING: LazyLock<Arc<Policy>> = LazyLock::new(Arc::default);
        if self == **NOTHING { NOTHING.clone() } else { Arc::new(self) }
    }

    /// This policy, and where it says nothing what `wider` says.
    #[must_use]
    pub fn or(self, wider: &Self) -> Self {
        Self {
            balance: self.balance.or_else(|| wider.balance.clone()),
            hash_type: self.hash_type.or_else(|| wider.hash_type.clone()),
            cookie: self.cookie.or_else(|| wider.cookie.clone()),
            dynamic_cookie_key: self.dynamic_cookie_key.or_else(|| wider.dynamic_cookie_key.clone()),
            connect_timeout: self.connect_timeout.or(wider.connect_timeout),
            server_timeout: self.server_timeout.or(wider.server_timeout),
            queue_timeout: self.queue_timeout.or(wider.queue_timeout),
            tunnel_timeout: self.tunnel_timeout.or(wider.tunnel_timeout),
            check_timeout: self.check_timeout.or(wider.check_timeout),
            retries: self.retries.or(wider.retries),
            retry_on: self.retry_on.or_else(|| wider.retry_on.clone()),
            redispatch: self.redispatch.or(wider.redispatch),
            http_connection_mode: self.http_connection_mode.or(wider.http_connection_mode),
            forwardfor: self.forwardfor.or_else(|| wider.forwardfor.clone()),
            fullconn: self.fullconn.or(wider.fullconn),
            abortonclose: self.abortonclose.or(wider.abortonclose),
            http_check: self.http_check.or_else(|| wider.http_check.clone()),
            server: self.server.or(&wider.server),
            rewrite: self.rewrite.or_else(|| wider.rewrite.clone()),
            rewrite_host: self.rewrite_host.or_else(|| wider.rewrite_host.clone()),
            redirect: self.redirect.or_else(|| wider.redirect.clone()),
            request_headers: self.request_headers.or(&wider.request_headers),
            response_headers: self.response_headers.or(&wider.response_headers),
            cors: self.cors.or_else(|| wider.cors.clone()),
            zone_aware: self.zone_aware.or(wider.zone_aware),
            mirror: if self.mirror.is_empty() { wider.mirror.clone() } else { self.mirror },
        }
    }

    /// The name of the CA bundle that its servers are verified with.
    pub fn ca(&self) -> Option<&Name> {
        self.server.ca.as_ref().map(|id| &id.0)
    }
}
