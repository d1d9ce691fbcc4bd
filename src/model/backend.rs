//! Backends and their endpoints.

use super::Policy;
use crate::report::ObjectRef;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

/// A short shared text that names something.
pub type Name = Arc<str>;

/// Identity of a backend. Policy *values* are no part of it, so that they can change in place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendId {
    /// Namespace of the service: a DNS label.
    pub namespace: Name,
    /// The service, or for a backend without one (a redirect) the object that wants it.
    pub service: Name,
    /// The service's port.
    pub port: u16,
    /// Who sets per-route fields of its policy.
    pub owner: Owner,
}

/// Who sets per-route fields of a backend's policy: one backend for each of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// Nobody: shared by all routes to the service.
    Shared,
    /// The routes of one Ingress (or one route object).
    Route {
        /// Name of the object, in the service's namespace.
        name: Name,
    },
    /// One rule of it: the policy depends on the matched path.
    Rule {
        /// Name of the object.
        name: Name,
        /// The path of the rule, as written.
        path: Name,
    },
}

impl fmt::Display for BackendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.namespace, self.service, self.port)?;
        match &self.owner {
            Owner::Shared => Ok(()),
            Owner::Route { name } => write!(f, " for {name}"),
            Owner::Rule { name, path } => write!(f, " for {name} {path}"),
        }
    }
}

/// Where requests go, and how.
#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    /// What stands behind it.
    pub kind: BackendKind,
    /// HTTP or plain TCP.
    pub mode: Mode,
    /// How it is reached.
    pub policy: Arc<Policy>,
    /// The servers, sorted by address and port, without duplicates. Not serving ones are left out.
    pub endpoints: Arc<[Endpoint]>,
    /// When the pods of a zone keep to the endpoints of that zone; `None`: they never do.
    pub zones: Option<ZoneRule>,
    /// The objects that it comes from: what a complaint about it is told to.
    pub sources: Arc<[ObjectRef]>,
}

/// When the pods of a zone keep to the endpoints of that zone: while enough of them are ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ZoneRule {
    /// Ready endpoints that the zone has at least.
    pub min_ready: u16,
    /// Percent of the zone's fair share of all ready endpoints that it has at least.
    pub min_share: u16,
}

/// What stands behind a backend.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BackendKind {
    /// Endpoints that are told to us.
    Endpoints,
    /// A DNS name that is resolved for each request; 503 while it does not resolve or resolves to an
    /// address that tenants must not reach.
    ExternalName {
        /// The name: a valid DNS name, lower case.
        host: Box<str>,
        /// The port.
        port: u16,
    },
    /// Nothing: the policy answers (a redirect), or 503.
    None,
}

/// What a backend speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// HTTP.
    #[default]
    Http,
    /// Plain TCP.
    Tcp,
}

/// One address that serves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    /// Its address, IPv6-mapped IPv4 already unwrapped.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Whether it takes new work.
    pub state: EndpointState,
    /// Its share, 1 to 256, on top of the policy's weight; `None`: the policy's alone.
    pub weight: Option<u16>,
    /// The zone it is in.
    pub zone: Option<Name>,
}

/// Whether an endpoint takes new work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndpointState {
    /// It does.
    Ready,
    /// It is terminating but still serves: only clients bound to it (by cookie), unless there is no other.
    Draining,
}
