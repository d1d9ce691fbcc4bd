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

/// The name of a header: what needs no quotes anywhere of what RFC 9110 calls a token.
pub(super) const HEADER_NAME: &str = "^[-._0-9A-Za-z]+$";
/// A media type without parameters.
pub(super) const MEDIA_TYPE: &str = "^[-+._0-9A-Za-z]+/[-+._0-9A-Za-z]+$";
/// A facility of syslog for local use.
pub(super) const LOCAL_FACILITY: &str = "^local[0-7]$";
/// A [`Duration`] from a second to about a day, in seconds or minutes, or up to 99 hours: HAProxy takes no time-out of
/// more than 24 days.
pub(super) const TIMEOUT: &str = "^([1-9][0-9]{0,4}s|[1-9][0-9]{0,3}m|[1-9][0-9]?h)$";
/// A [`Duration`] of one second to ten.
pub(super) const TEN_SECONDS: &str = "^([1-9]|10)s$";
/// Text of one line.
pub(super) const PRINTABLE: &str = "^[^\\x00-\\x1f\\x7f]+$";

/// All of them.
#[cfg(test)]
pub(in crate::api) const ALL: [&str; 15] = [
    DURATION,
    PERCENT,
    QUANTITY,
    LABEL_VALUE,
    ANY_LABEL_VALUE,
    LABEL_KEY,
    DNS_LABEL,
    DNS_NAME,
    IMAGE,
    HEADER_NAME,
    MEDIA_TYPE,
    LOCAL_FACILITY,
    TIMEOUT,
    TEN_SECONDS,
    PRINTABLE,
];

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
        HEADER_NAME => !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte)),
        MEDIA_TYPE => {
            let part = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-+._".contains(&byte));
            text.split_once('/').is_some_and(|(kind, subtype)| part(kind) && part(subtype))
        }
        LOCAL_FACILITY => text.strip_prefix("local").is_some_and(|number| matches!(number.as_bytes(), [b'0'..=b'7'])),
        TIMEOUT => {
            let most = if text.ends_with('s') {
                5
            } else if text.ends_with('m') {
                4
            } else {
                2
            };
            text.len() <= most + 1 && Duration::from(text).seconds().is_some_and(|seconds| seconds > 0)
        }
        TEN_SECONDS => text.ends_with('s') && Duration::from(text).seconds().is_some_and(|seconds| (1..=10).contains(&seconds)),
        PRINTABLE => !text.is_empty() && text.bytes().all(|byte| byte >= 0x20 && byte != 0x7f),
        _ => false,
    }
}

/// Whether `text` begins and ends with letters and has `between` beside them inside.
fn is_word(text: &str, between: &str, is_letter: fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else { return false };
    is_letter(*first) && is_letter(*last) && bytes.iter().all(|byte| is_letter(*byte) || between.as_bytes().contains(byte))
}
