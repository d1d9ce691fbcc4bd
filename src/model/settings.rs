//! What the listeners of a fleet do with every request, whatever the routes say.

use super::{CaId, HeaderEdits};
use crate::report::ObjectRef;
use std::collections::{BTreeMap, BTreeSet};
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
