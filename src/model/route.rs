//! Listeners, hosts and routes.

use super::{BackendId, ListName, Name};
use crate::report::ObjectRef;
use std::collections::BTreeMap;

/// Name of a listener: lower-case letters, digits and dashes, chosen by us or checked.
pub type ListenerName = Name;
/// Name of a routing table.
pub type TableName = Name;

/// A port that clients connect to.
#[derive(Clone, Debug, PartialEq)]
pub struct Listener {
    /// What is spoken on it, and where requests go.
    pub protocol: Protocol,
    /// The port that clients use (a Service's port): what redirects name.
    pub public_port: u16,
    /// The port that the pod listens on.
    pub pod_port: u16,
    /// Whether what connects says first, by the PROXY protocol, for whom. All of it has to, or none.
    pub proxy_protocol: bool,
}

/// What is spoken on a listener.
#[derive(Clone, Debug, PartialEq)]
pub enum Protocol {
    /// Plain HTTP/1.1 and HTTP/2 with prior knowledge.
    Http {
        /// Where its requests are looked up.
        table: TableName,
        /// The public port of the HTTPS listener that `https_redirect` leads to; 443 is left out of URLs.
        https_port: Option<u16>,
    },
    /// HTTP over TLS that ends here; HTTP/2 by ALPN.
    Https {
        /// Where its requests are looked up.
        table: TableName,
        /// Certificates by name; the model's default certificate where none matches.
        certificates: ListName,
    },
    /// TLS that is passed on unopened, by the name in its hello. Connections without a match are closed.
    TlsPassthrough {
        /// Backend by name (exact or wildcard). Its backends must be in TCP mode.
        names: BTreeMap<HostMatch, BackendId>,
    },
    /// Plain TCP to one backend, which must be in TCP mode.
    Tcp {
        /// The backend.
        backend: BackendId,
    },
}

/// Which host names a set of routes is for. Names are lower case, without port or trailing dot, and valid
/// DNS names (letters, digits, dashes, dots, at most 253 bytes).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostMatch {
    /// Exactly this name.
    Exact(Box<str>),
    /// Exactly one more label in front of this suffix: `foo.com` for `*.foo.com`.
    Wildcard(Box<str>),
    /// One or more labels in front of this suffix (Gateway API).
    DeepWildcard(Box<str>),
    /// Every name that no other entry of the table matches, and none at all.
    Any,
}

/// Routes by host. The most specific host that matches is chosen first (exact, one-label wildcard, the
/// longest deep wildcard, any); only its routes are looked at. Who wants a request to fall through to a
/// less specific host puts those routes into the more specific one as well.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouteTable {
    /// Routes of each host.
    pub hosts: BTreeMap<HostMatch, Host>,
}

/// The routes of one host, in the order of precedence: the first that matches is taken. At most one route
/// without [`Conditions`] exists for each path match; it comes after those with conditions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Host {
    /// The routes.
    pub routes: Vec<Route>,
}

/// One way from a request to a target.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// Which paths.
    pub path: PathMatch,
    /// What else must hold; the plain Ingress case has nothing here.
    pub conditions: Conditions,
    /// Where the request goes.
    pub target: Target,
    /// On a plain HTTP listener that knows an HTTPS port, answer with this redirect (301, 302, 303, 307,
    /// 308) to HTTPS instead; never for `/.well-known/acme-challenge/`.
    pub https_redirect: Option<u16>,
    /// The object that asked for it.
    pub source: ObjectRef,
}

/// Which paths a route is for. Paths start with `/` and hold neither blanks nor control bytes nor `#`, `?`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathMatch {
    /// Exactly this path.
    Exact(Box<str>),
    /// This path and everything below it, element by element. Without a trailing slash, but for `/`.
    Prefix(Box<str>),
    /// A PCRE that matches the path somewhere; checked by the translator (length, nesting).
    Regex(Box<str>),
}

/// What must hold beside host and path. All of them must.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Conditions {
    /// The method, upper case.
    pub method: Option<Box<str>>,
    /// Request headers: name (a token, lower case) and value.
    pub headers: Vec<(Box<str>, ValueMatch)>,
    /// Query parameters: name and value, compared after decoding.
    pub query: Vec<(Box<str>, ValueMatch)>,
}

impl Conditions {
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.method.is_none() && self.headers.is_empty() && self.query.is_empty()
    }
}

/// How a value is compared.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ValueMatch {
    /// The same bytes.
    Exact(Box<str>),
    /// A PCRE that matches somewhere; checked by the translator.
    Regex(Box<str>),
    /// Any value, but it is there.
    Present,
}

/// Where a request goes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// One backend.
    Backend(BackendId),
    /// Several, chosen by chance in these proportions. A weight of 0 gets nothing; if all are 0 the answer is 503.
    Split(Vec<(Option<BackendId>, u32)>),
    /// There is a rule but nothing behind it: 503.
    Unavailable,
}
