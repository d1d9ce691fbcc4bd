//! Splits a policy into its shape (a named defaults section), its values (map entries keyed by backend) and
//! the keywords of its servers. [`table`] says which field is what.

pub(in crate::haproxy) mod check;
mod cors;
mod directives;
mod http;
mod server;
mod table;

pub use server::ServerKeywords;
pub(in crate::haproxy) use server::ca_path;
pub use table::{ALLOWED, Part, Row, allowed, table};

use super::config::{Line, Refused};
use super::render::Options;
use super::version::Capabilities;
use crate::model::{Backend, BackendKind, Mode, Policy};
use crate::report::{Code, codes};

/// A map of policy values, keyed by backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // the paths say it
pub enum ValueMap {
    ServerTimeout,
    TunnelTimeout,
    ConnectTimeout,
    QueueTimeout,
    Strip,
    Path,
    Host,
    Redirect,
    Headers,
    CheckUri,
    CheckHost,
    External,
    ExternalPort,
}

impl ValueMap {
    /// All of them.
    pub const ALL: [Self; 13] = [
        Self::ServerTimeout,
        Self::TunnelTimeout,
        Self::ConnectTimeout,
        Self::QueueTimeout,
        Self::Strip,
        Self::Path,
        Self::Host,
        Self::Redirect,
        Self::Headers,
        Self::CheckUri,
        Self::CheckHost,
        Self::External,
        Self::ExternalPort,
    ];

    /// Its file.
    pub fn path(self) -> &'static str {
        match self {
            Self::ServerTimeout => "maps/values/timeout-server.map",
            Self::TunnelTimeout => "maps/values/timeout-tunnel.map",
            Self::ConnectTimeout => "maps/values/timeout-connect.map",
            Self::QueueTimeout => "maps/values/timeout-queue.map",
            Self::Strip => "maps/values/rewrite-strip.map",
            Self::Path => "maps/values/rewrite-path.map",
            Self::Host => "maps/values/rewrite-host.map",
            Self::Redirect => "maps/values/redirect.map",
            Self::Headers => "maps/values/headers.map",
            Self::CheckUri => "maps/values/check-uri.map",
            Self::CheckHost => "maps/values/check-host.map",
            Self::External => "maps/values/external-name.map",
            Self::ExternalPort => "maps/values/external-port.map",
        }
    }
}

/// One value of a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// In which map.
    pub map: ValueMap,
    /// What follows the backend's name in the key.
    pub suffix: Box<str>,
    /// What it says: no control bytes, not empty, no blank at either end.
    pub text: Box<str>,
}

/// Part of a policy that is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The field of the policy.
    pub field: &'static str,
    /// What kind of finding.
    pub code: Code,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub help: &'static str,
}

/// A policy in its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// HTTP or TCP.
    pub mode: Mode,
    /// Lines of the shape.
    pub lines: Vec<Line>,
    /// Lines that must not stand in a shape: with any, the backend is private.
    pub own: Vec<Line>,
    /// Values.
    pub values: Vec<Value>,
    /// Keywords of the servers.
    pub servers: ServerKeywords,
    /// Whether requests would be answered wrongly, and not only worse, without the shape's rules.
    pub essential: bool,
}

/// Splits the policy of `backend`. What cannot be had is left out and told.
pub fn split(backend: &Backend, capabilities: Capabilities, options: &Options, checks: bool) -> (Split, Vec<Problem>) {
    let mut builder = Builder::new(backend.mode, &backend.policy, capabilities);
    builder.common();
    if backend.mode == Mode::Http {
        builder.http();
        if let BackendKind::ExternalName { host, port } = &backend.kind {
            builder.external(host, *port, options);
        }
    } else if matches!(backend.kind, BackendKind::ExternalName { .. }) {
        builder.refuse("kind", codes::UNSUPPORTED, "an ExternalName Service cannot be reached in TCP mode", "use a Service with endpoints");
    }
    builder.http_check();
    let external = matches!(backend.kind, BackendKind::ExternalName { .. });
    let cookie = backend.policy.cookie.as_ref().is_some_and(|cookie| !builder.dynamic_cookie(cookie.dynamic)) && backend.mode == Mode::Http;
    let servers = server::keywords(&backend.policy, backend.mode, (!external).then_some(checks), cookie, &mut builder.problems);
    let split =
        Split { mode: backend.mode, lines: builder.lines, own: builder.own, values: builder.values, servers, essential: builder.essential };
    (split, builder.problems)
}

/// What grows while a policy is split.
struct Builder<'a> {
    mode: Mode,
    policy: &'a Policy,
    capabilities: Capabilities,
    lines: Vec<Line>,
    own: Vec<Line>,
    values: Vec<Value>,
    problems: Vec<Problem>,
    essential: bool,
}

impl<'a> Builder<'a> {
    fn new(mode: Mode, policy: &'a Policy, capabilities: Capabilities) -> Self {
        Self { mode, policy, capabilities, lines: Vec::new(), own: Vec::new(), values: Vec::new(), problems: Vec::new(), essential: false }
    }

    fn refuse(&mut self, field: &'static str, code: Code, message: impl Into<String>, help: &'static str) {
        self.problems.push(Problem { field, code, message: message.into(), help });
    }

    /// Takes over what `lines` makes, or tells why the writer refused it.
    fn take(&mut self, field: &'static str, lines: Result<Vec<Line>, Refused>) -> bool {
        match lines {
            Ok(lines) => {
                self.lines.extend(lines);
                true
            }
            Err(refused) => {
                self.refuse(field, codes::INVALID_VALUE, format!("the value {refused}"), "write a value without it");
                false
            }
        }
    }

    /// Adds a value; a text that no map can hold is told. Empty ones are left out: a look-up that finds
    /// nothing gives the same.
    fn value(&mut self, field: &'static str, map: ValueMap, suffix: impl Into<Box<str>>, text: &str) {
        let text = text.trim_matches([' ', '\t']);
        if check::has_control(text) {
            self.refuse(field, codes::INVALID_VALUE, "the value holds a control byte", "write a value without it");
        } else if !text.is_empty() {
            self.values.push(Value { map, suffix: suffix.into(), text: text.into() });
        }
    }
}
