//! The patterns of the schema, for texts that do not come from an API server.

use super::values::{DURATION, Duration, IntOrPercent, PERCENT, QUANTITY, Quantity};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// A value of a label.
pub(super) const LABEL_VALUE: &str = "^[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$";
/// A value of a label, which may be empty.
pub(super) const ANY_LABEL_VALUE: &str = "^([A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?)?$";
/// The name of a label, with or without a prefix.
pub(super) const LABEL_KEY: &str = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-_.A-Za-z0-9]*[A-Za-z0-9])?$";
/// A label of a DNS name.
pub(super) const DNS_LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// A DNS name.
pub(super) const DNS_NAME: &str = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$";
/// A reference of an image.
pub(super) const IMAGE: &str = "^[A-Za-z0-9][-A-Za-z0-9._:/@]*$";

/// All of them.
#[cfg(test)]
pub(in crate::api) const ALL: [&str; 9] =
    [DURATION, PERCENT, QUANTITY, LABEL_VALUE, ANY_LABEL_VALUE, LABEL_KEY, DNS_LABEL, DNS_NAME, IMAGE];

/// Whether `text` has the `pattern`, which is one of the above.
pub(in crate::api) fn matches(pattern: &str, text: &str) -> bool {
    match pattern {
        DURATION => Duration::from(text).seconds().is_some(),
        PERCENT => IntOrPercent(IntOrString::String(text.to_owned())).of(100, true).is_some(),
        QUANTITY => Quantity::from(text).thousandths().is_some(),
        LABEL_VALUE => is_word(text, "-_.", |byte| byte.is_ascii_alphanumeric()),
        ANY_LABEL_VALUE => text.is_empty() || matches(LABEL_VALUE, text),
        LABEL_KEY => match text.split_once('/') {
            Some((prefix, name)) => matches(DNS_NAME, prefix) && matches(LABEL_VALUE, name),
            None => matches(LABEL_VALUE, text),
        },
        DNS_LABEL => is_word(text, "-", |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()),
        DNS_NAME => is_word(text, "-.", |byte| byte.is_ascii_lowercase() || byte.is_ascii_digit()),
        IMAGE => {
            let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:/@".contains(&byte);
            text.starts_with(|first: char| first.is_ascii_alphanumeric()) && text.bytes().all(inner)
        }
        _ => false,
    }
}

/// Whether `text` begins and ends with letters and has `between` beside them inside.
fn is_word(text: &str, between: &str, is_letter: fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    is_letter(*first) && is_letter(*last) && bytes.iter().all(|byte| is_letter(*byte) || between.as_bytes().contains(byte))
}
