//! `Backend`: how a service is reached.
//!
//! Names and shapes of the fields are those of HAProxy's client-native model (`snake_case`, dashes as there),
//! so that a Backend of HAProxy Technologies' ingress controller works as it is. Supported fields are typed
//! here. The others are kept by path, so that each can be told about: see [`Backend::unsupported`] and
//! [`is_known`]. So that the API server lets them through instead of dropping them unseen, the objects of the
//! schema preserve unknown fields.

mod ca;
mod known_fields;
mod spec;
mod status;

pub use ca::{CaKind, CaReference, DEFAULT_CA_KEY};
pub use known_fields::is_known;
pub use spec::*;
pub use status::{BackendStatus, BackendUse};

use super::Meta;
use std::collections::BTreeMap;

/// How a service is reached.
#[derive(Clone, Debug, PartialEq)]
pub struct Backend {
    /// Who it is.
    pub meta: Meta,
    /// Which group it was found in.
    pub group: BackendGroup,
    /// What is supported of it.
    pub spec: BackendSpec,
    /// What the model has but we do not support: its content by path, relative to `spec`, such as
    /// `http_request_rule_list` or `default_server.tfo`. Nothing in here has an effect; the translator says so
    /// for each. (Fields that the model does not have are told by whoever read the object.)
    pub unsupported: BTreeMap<Box<str>, serde_json::Value>,
}

/// Which group a Backend was found in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BackendGroup {
    /// Ours.
    HaproxyFleet,
    /// That of HAProxy Technologies' ingress controller, read in place.
    HaproxyOrg,
}
