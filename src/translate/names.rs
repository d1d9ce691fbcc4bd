//! Host names, paths, tokens and durations: what a tenant wrote, checked once, where it enters.

use crate::model::{HostMatch, Millis, PathMatch};
use std::fmt::Write as _;

/// Longest value of an annotation or field that is passed on to HAProxy.
pub(super) const MAX_VALUE: usize = 4096;
/// Longest path of a rule: longer ones do not fit a request line that HAProxy accepts by default.
pub(super) const MAX_PATH: usize = 4096;

/// What is wrong with a text; shown to its author.
pub(super) type Wrong = String;

/// A valid DNS name in lower case, without trailing dot: labels of letters, digits and inner dashes.
pub(super) fn dns_name(text: &str) -> Result<String, Wrong> {
    let name = text.to_ascii_lowercase();
    if name.is_empty() {
        return Err("is empty".to_owned());
    }
    if name.len() > 253 {
        return Err("is longer than 253 bytes".to_owned());
    }
    for label in name.split('.') {
        if label.is_empty() {
            return Err("has an empty label".to_owned());
        }
        if label.len() > 63 {
            return Err("has a label of more than 63 bytes".to_owned());
        }
        if let Some(bad) = label.chars().find(|c| !(c.is_ascii_alphanumeric() || *c == '-')) {
            return Err(format!("has {} in it, which no DNS name has", shown(bad)));
        }
        if label.starts_with('-') || label.ends_with('-') {
            return Err("has a label that starts or ends with a dash".to_owned());
        }
    }
    Ok(name)
}

/// The host of a rule: empty is any host, `*.` in front takes exactly one label.
pub(super) fn host(text: &str) -> Result<HostMatch, Wrong> {
    if text.is_empty() {
        return Ok(HostMatch::Any);
    }
    if text.parse::<std::net::IpAddr>().is_ok() {
        return Err("is an IP address, which Ingress does not allow".to_owned());
    }
    if let Some(suffix) = text.strip_prefix("*.") {
        let suffix = dns_name(suffix)?;
        // With its `*.` the whole must still fit a DNS name.
        if suffix.len() > 251 {
            return Err("is longer than 253 bytes".to_owned());
        }
        return Ok(HostMatch::Wildcard(suffix.into()));
    }
    Ok(HostMatch::Exact(dns_name(text)?.into()))
}

/// A host as a person writes it.
pub(super) fn host_text(host: &HostMatch) -> String {
    match host {
        HostMatch::Exact(name) => name.to_string(),
        HostMatch::Wildcard(suffix) => format!("*.{suffix}"),
        HostMatch::DeepWildcard(suffix) => format!("**.{suffix}"),
        HostMatch::Any => "any host".to_owned(),
    }
}

/// The wildcard that covers `host`, if it is a name.
pub(super) fn parent(host: &HostMatch) -> Option<HostMatch> {
    match host {
        HostMatch::Exact(name) => name.split_once('.').map(|(_, rest)| HostMatch::Wildcard(rest.into())),
        HostMatch::Wildcard(_) | HostMatch::DeepWildcard(_) | HostMatch::Any => None,
    }
}

/// What is wrong with the name of an object, if anything: names become parts of identities and file names.
pub(super) fn object_name(text: &str) -> Option<Wrong> {
    match dns_name(text) {
        Err(wrong) => Some(wrong),
        Ok(name) if name != text => Some("is not in lower case".to_owned()),
        Ok(_) => None,
    }
}

/// A path as it stands in a rule: starts with `/`, no blanks, no control bytes, no `#`, `?`.
pub(super) fn path(text: &str) -> Result<(), Wrong> {
    if !text.starts_with('/') {
        return Err("does not start with /".to_owned());
    }
    if text.len() > MAX_PATH {
        return Err(format!("is longer than {MAX_PATH} bytes"));
    }
    if let Some(bad) = text.chars().find(|c| c.is_whitespace() || c.is_control() || !c.is_ascii() || matches!(c, '#' | '?' | '\\')) {
        return Err(format!("has {} in it, which no request path has; encode it", shown(bad)));
    }
    if text.contains("//") {
        return Err("has an empty element (//), which is ambiguous".to_owned());
    }
    if text.split('/').any(|element| element == "." || element == "..") {
        return Err("has a dot element (. or ..), which clients resolve before they ask".to_owned());
    }
    Ok(())
}

/// The match for a prefix path: without trailing slash, but for `/`.
pub(super) fn prefix(path: &str) -> PathMatch {
    let trimmed = path.trim_end_matches('/');
    PathMatch::Prefix(if trimmed.is_empty() { "/".into() } else { trimmed.into() })
}

/// A token of HTTP (RFC 9110 5.6.2) of bounded length: names of headers, cookies, methods.
pub(super) fn token(text: &str) -> Result<(), Wrong> {
    if text.is_empty() {
        return Err("is empty".to_owned());
    }
    if text.len() > 128 {
        return Err("is longer than 128 bytes".to_owned());
    }
    match text.chars().find(|c| !(c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(*c))) {
        Some(bad) => Err(format!("has {} in it; only letters, digits and !#$%&'*+-.^_`|~ are allowed", shown(bad))),
        None => Ok(()),
    }
}

/// A text without control bytes, of bounded length.
pub(super) fn plain(text: &str) -> Result<(), Wrong> {
    if text.len() > MAX_VALUE {
        return Err(format!("is longer than {MAX_VALUE} bytes"));
    }
    match text.chars().find(|c| c.is_control() || matches!(c, '\u{2028}' | '\u{2029}')) {
        Some(bad) => Err(format!("has {} in it", shown(bad))),
        None => Ok(()),
    }
}

/// A [`plain`] text without blanks.
pub(super) fn word(text: &str) -> Result<(), Wrong> {
    plain(text)?;
    if text.is_empty() {
        return Err("is empty".to_owned());
    }
    if text.chars().any(char::is_whitespace) {
        return Err("has a blank in it".to_owned());
    }
    Ok(())
}

/// A duration: digits and `us`, `ms`, `s`, `m`, `h` or `d`; without a unit milliseconds, as in HAProxy.
pub(super) fn duration(text: &str) -> Result<Millis, Wrong> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit {
        "" | "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return Err("is not a duration such as 500ms, 30s, 5m or 1h".to_owned()),
    };
    let number: u64 = number.parse().map_err(|_| "is not a duration such as 500ms, 30s, 5m or 1h".to_owned())?;
    millis(number.saturating_mul(factor))
}

/// A duration in milliseconds, in HAProxy's range; 0 would mean for ever.
pub(super) fn millis(number: u64) -> Result<Millis, Wrong> {
    match u32::try_from(number) {
        Ok(0) => Err("is 0, which would wait for ever".to_owned()),
        Ok(n) if n <= 2_147_483_647 => Ok(Millis(n)),
        _ => Err("is longer than HAProxy's limit of 2147483647 milliseconds (24 days)".to_owned()),
    }
}

/// A piece of foreign text for a message: short, printable, quoted.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for (n, c) in text.chars().enumerate() {
        if n == 80 {
            out.push('…');
            break;
        }
        if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}') {
            let _ = write!(out, "\\u{{{:x}}}", u32::from(c));
        } else {
            out.push(c);
        }
    }
    out.push('"');
    out
}

fn shown(c: char) -> String {
    match c {
        ' ' => "a blank".to_owned(),
        c if c.is_control() || c.is_whitespace() => format!("the control or blank character U+{:04X}", u32::from(c)),
        c => format!("`{c}`"),
    }
}

/// The nearest of `known` to `word`, if it is near enough to be a slip of the pen.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if word.len() > 64 {
        return None;
    }
    known.into_iter().map(|k| (distance(word, k), k)).filter(|(d, k)| *d <= (k.len() / 3).clamp(1, 3)).min().map(|(_, k)| k)
}

/// Edit distance with transposition of neighbours.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut before: Vec<usize> = vec![0; b.len() + 1];
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            row[j] = (last[j] + 1).min(row[j - 1] + 1).min(last[j - 1] + usize::from(a[i - 1] != b[j - 1]));
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = std::mem::replace(&mut last, row);
    }
    last[b.len()]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn a_wildcard_takes_exactly_one_label() {
        let wide = host("*.Foo.com").unwrap();
        assert_eq!(wide, HostMatch::Wildcard("foo.com".into()));
        assert_eq!(parent(&host("a.foo.com").unwrap()), Some(wide.clone()));
        assert_ne!(parent(&host("b.a.foo.com").unwrap()), Some(wide.clone()));
        assert_ne!(parent(&host("foo.com").unwrap()), Some(wide));
    }

    #[test]
    fn wrong_hosts_are_refused() {
        for bad in
            ["foo_bar.com", "a..b", "a.b.", "-a.com", "*.*.com", "a.*.com", "*", "*foo.com", "1.2.3.4", "::1", "a b", "a\nb", "ä.com"]
        {
            assert!(host(bad).is_err(), "{bad:?}");
        }
        assert!(host(&format!("{}.com", "a".repeat(64))).is_err());
        assert!(host(&vec!["a".repeat(60); 5].join(".")).is_err());
    }

    #[test]
    fn wrong_paths_are_refused_and_encoded_ones_are_not() {
        for bad in ["", "a", "/a b", "/a\tb", "/a#b", "/a?b", "/a//b", "//", "/a\r\nb", "/../x", "/./", "/a\u{0}", "/ä", "/a\\b"] {
            assert!(path(bad).is_err(), "{bad:?}");
        }
        for good in ["/", "/a", "/a/", "/a%20b", "/a%2Fb", "/a+b;c=d", "/%{+}[x]$", "/a/.well-known/..x"] {
            assert!(path(good).is_ok(), "{good:?}");
        }
        assert!(path(&format!("/{}", "a".repeat(MAX_PATH))).is_err());
    }

    #[test]
    fn durations_are_read_as_haproxy_reads_them() {
        assert_eq!(duration("500"), Ok(Millis(500)));
        assert_eq!(duration("500ms"), Ok(Millis(500)));
        assert_eq!(duration("30s"), Ok(Millis(30_000)));
        assert_eq!(duration("24d"), Ok(Millis(2_073_600_000)));
        for bad in ["", "s", "0", "25d", "1w", "-1s", "1.5s", "99999999999999999999s", "1 s"] {
            assert!(duration(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn a_slip_of_the_pen_finds_the_known_word() {
        let known = ["ssl-redirect", "timeout-server", "backend"];
        assert_eq!(nearest("ssl-redirct", known), Some("ssl-redirect"));
        assert_eq!(nearest("server-timeout-x", known), None);
        assert_eq!(nearest("bakcend", known), Some("backend"));
    }
}
