//! Forms of the texts in a policy. The model promises them; this is the second look.

use std::net::IpAddr;

/// Whether `text` holds a control byte.
pub fn has_control(text: &str) -> bool {
    text.bytes().any(|b| b < 0x20 || b == 0x7f)
}

/// Whether `text` is a token as in HTTP header names.
pub fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// Whether `text` is a token of the characters that need no quoting anywhere.
pub fn is_simple_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
}

/// Whether `text` is a host name: letters, digits, dashes, dots, at most 253 bytes.
pub fn is_host(text: &str) -> bool {
    !text.is_empty() && text.len() <= 253 && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-.".contains(&b))
}

/// Whether `text` is printable ASCII or UTF-8 without blanks and control bytes.
pub fn is_unbroken(text: &str) -> bool {
    !text.is_empty() && !has_control(text) && !text.contains([' ', '\u{a0}'])
}

/// Whether `text` is an address or a network.
pub fn is_network(text: &str) -> bool {
    let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let most = if address.is_ipv4() { 32 } else { 128 };
    bits.is_none_or(|bits| bits.parse::<u8>().is_ok_and(|bits| bits <= most && !text.contains('+')))
}

/// Headers that frame a message or belong to one connection: HAProxy's business alone.
pub fn is_framing(name: &str) -> bool {
    const FRAMING: [&str; 8] =
        ["connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "keep-alive", "proxy-connection"];
    FRAMING.iter().any(|framing| name.eq_ignore_ascii_case(framing))
}
