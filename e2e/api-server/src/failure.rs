//! Refusals, as the API server words them.

use serde_json::{Value, json};

/// A refusal: `metav1.Status` with `status: Failure`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Failure {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
    pub(crate) message: String,
    pub(crate) causes: Vec<Value>,
}

impl Failure {
    pub(crate) fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), causes: Vec::new() }
    }

    pub(crate) fn not_found(plural: &str, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{plural} \"{name}\" not found"))
    }

    pub(crate) fn exists(plural: &str, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{plural} \"{name}\" already exists"))
    }

    pub(crate) fn conflict(plural: &str, name: &str, why: &str) -> Self {
        Self::new(409, "Conflict", format!("Operation cannot be fulfilled on {plural} \"{name}\": {why}"))
    }

    /// The object was changed since the version that the request is about.
    pub(crate) fn stale(plural: &str, name: &str) -> Self {
        Self::conflict(plural, name, "the object has been modified; please apply your changes to the latest version and try again")
    }

    pub(crate) fn invalid(kind: &str, name: &str, why: &str) -> Self {
        Self::new(422, "Invalid", format!("{kind} \"{name}\" is invalid: {why}"))
    }

    pub(crate) fn bad_request(why: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", why)
    }

    pub(crate) fn gone(asked: u64, oldest: u64) -> Self {
        Self::new(410, "Expired", format!("too old resource version: {asked} ({oldest})"))
    }

    pub(crate) fn to_json(&self) -> Value {
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "code": self.code,
        });
        if !self.reason.is_empty() {
            status["reason"] = json!(self.reason);
        }
        if !self.causes.is_empty() {
            status["details"] = json!({ "causes": self.causes });
        }
        status
    }
}
