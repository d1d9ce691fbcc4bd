//! What a request asks for, read from its method, path and query.

use http::{Method, Request};
use std::collections::BTreeMap;
use std::fmt;

/// What a request does, by the words of RBAC; `Apply` is a patch by server-side apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Verb {
    /// One object.
    Get,
    /// Many objects.
    List,
    /// Changes of objects.
    Watch,
    /// A new object.
    Create,
    /// A whole object.
    Update,
    /// A merge patch or JSON patch.
    Patch,
    /// Server-side apply.
    Apply,
    /// A deletion.
    Delete,
}

impl Verb {
    /// Whether it changes something.
    pub fn is_write(self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Apply => "apply",
            Self::Delete => "delete",
        })
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// What it does.
    pub verb: Verb,
    /// `v1`, `apps/v1`.
    pub api_version: String,
    /// The kind, in plural; empty for what is not about a kind.
    pub plural: String,
    /// The namespace; empty for cluster-scoped kinds and for all namespaces.
    pub namespace: String,
    /// The name; empty for lists, watches and creations.
    pub name: String,
    /// `status`, or empty.
    pub subresource: String,
    /// The parameters of the query.
    pub query: BTreeMap<String, String>,
}

impl Call {
    /// Reads a request. None if its path is not one of the API.
    pub fn of<B>(request: &Request<B>) -> Option<Self> {
        let query: BTreeMap<String, String> =
            form_urlencoded::parse(request.uri().query().unwrap_or_default().as_bytes()).into_owned().collect();
        let mut parts = request.uri().path().split('/').filter(|part| !part.is_empty());
        let api_version = match parts.next()? {
            "api" => parts.next()?.to_owned(),
            "apis" => format!("{}/{}", parts.next()?, parts.next()?),
            _ => return None,
        };
        let mut rest: Vec<&str> = parts.collect();
        // a Namespace itself is not in a namespace
        let is_within = rest.len() > 2 && rest[0] == "namespaces" && !matches!(rest[2], "status" | "finalize");
        let namespace = if is_within { rest.drain(..2).nth(1).unwrap_or_default().to_owned() } else { String::new() };
        let at = |index: usize| rest.get(index).map(|part| (*part).to_owned()).unwrap_or_default();
        let name = at(1);
        let content = request.headers().get(http::header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let verb = match *request.method() {
            Method::GET if query.get("watch").is_some_and(|watch| watch == "true" || watch == "1") => Verb::Watch,
            Method::GET if name.is_empty() => Verb::List,
            Method::GET => Verb::Get,
            Method::POST => Verb::Create,
            Method::PUT => Verb::Update,
            Method::PATCH if content.starts_with("application/apply-patch") => Verb::Apply,
            Method::PATCH => Verb::Patch,
            Method::DELETE => Verb::Delete,
            _ => return None,
        };
        Some(Self { verb, api_version, plural: at(0), namespace, name, subresource: at(2), query })
    }

    /// A parameter of the query; empty if it is not given.
    pub(crate) fn parameter(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.plural)?;
        for part in [&self.namespace, &self.name, &self.subresource] {
            if !part.is_empty() {
                write!(f, "/{part}")?;
            }
        }
        Ok(())
    }
}
