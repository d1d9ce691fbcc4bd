//! Annotations: one file per dialect, all onto one policy type.

mod foreign;
mod native;

pub(super) use native::Native;

use crate::report::{Diagnostic, ObjectRef};

/// The prefix of our own keys.
pub(super) const PREFIX: &str = "haproxy-fleet.dev/";

/// The field path of an annotation.
pub(super) fn field(key: &str) -> String {
    format!("metadata.annotations[\"{key}\"]")
}

/// Reads the annotations of an Ingress or a Service: what they say, and what is wrong with them.
pub(super) fn read<'a>(
    object: &ObjectRef,
    annotations: impl Iterator<Item = (&'a str, &'a str)>,
    diagnostics: &mut Vec<Diagnostic>,
) -> Native {
    let mut native = Native::default();
    for (key, value) in annotations {
        if let Some(short) = key.strip_prefix(PREFIX) {
            native.take(object, short, value, diagnostics);
        } else {
            foreign::refuse(object, key, diagnostics);
        }
    }
    native.finish(object, diagnostics);
    native
}
