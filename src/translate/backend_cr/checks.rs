//! HTTP health checks of a `Backend`.

use super::Reader;
use crate::api::backend as api;
use crate::model::{HttpCheck, HttpCheckExpect, HttpCheckPattern};
use crate::report::codes;
use crate::translate::names;
use std::iter::Peekable;
use std::str::Chars;

/// The longest pattern.
const MAX_PATTERN: usize = 256;

impl Reader {
    pub(super) fn checks(&mut self, spec: &api::BackendSpec) {
        match spec.adv_check {
            Some(api::AdvCheck::Httpchk) => {}
            other => {
                if other.is_some() {
                    self.refused("adv_check", "only httpchk is supported", "use httpchk, or remove the field for checks by connection");
                }
                for (given, field) in
                    [(spec.httpchk_params.is_some(), "httpchk_params"), (spec.http_check_list.is_some(), "http_check_list")]
                {
                    if given {
                        self.error(
                            field,
                            codes::INVALID_FIELD,
                            format!("{field} has no effect without adv_check: httpchk"),
                            "add adv_check: httpchk",
                        );
                    }
                }
                return;
            }
        }
        let mut check = HttpCheck::default();
        if let Some(params) = &spec.httpchk_params {
            check.method = self.method("httpchk_params.method", params.method);
            check.uri = self.text("httpchk_params.uri", params.uri.as_deref(), uri);
            check.version = self.text("httpchk_params.version", params.version.as_deref(), version);
            check.host = self.text("httpchk_params.host", params.host.as_deref(), host);
        }
        for (n, rule) in spec.http_check_list.iter().flatten().enumerate() {
            self.rule(&mut check, rule, &format!("http_check_list[{n}]"));
        }
        self.policy.http_check = Some(check);
    }

    fn method(&mut self, field: &str, method: Option<api::CheckMethod>) -> Option<Box<str>> {
        let method = method?;
        if method == api::CheckMethod::Connect {
            self.invalid(field, "CONNECT is no method for a health check");
            return None;
        }
        Some(method.as_str().into())
    }

    fn rule(&mut self, check: &mut HttpCheck, rule: &api::HttpCheck, field: &str) {
        match rule.kind {
            api::HttpCheckType::Comment => {}
            api::HttpCheckType::Send => {
                let at = |name: &str| format!("{field}.{name}");
                check.method = self.method(&at("method"), rule.method).or(check.method.take());
                check.uri = self.text(&at("uri"), rule.uri.as_deref(), uri).or(check.uri.take());
                check.version = self.text(&at("version"), rule.version.as_deref(), version).or(check.version.take());
                for (n, header) in rule.headers.iter().enumerate() {
                    if header.name.eq_ignore_ascii_case("host") {
                        check.host = self.text(&at(&format!("headers[{n}].fmt")), Some(&header.fmt), host).or(check.host.take());
                    } else {
                        self.refused(
                            &at(&format!("headers[{n}].name")),
                            "only the Host header of a check is supported",
                            "remove the header",
                        );
                    }
                }
            }
            api::HttpCheckType::Expect if check.expect.is_some() => {
                self.refused(field, "only one expect is supported", "remove all but one");
            }
            api::HttpCheckType::Expect => check.expect = self.expect(rule, field),
            _ => self.refused(&format!("{field}.type"), "only send and expect are supported", "remove the rule"),
        }
    }

    fn expect(&mut self, rule: &api::HttpCheck, field: &str) -> Option<HttpCheckExpect> {
        let (at_match, at_pattern) = (format!("{field}.match"), format!("{field}.pattern"));
        let check: fn(&str) -> Result<(), String> = match rule.matches {
            Some(api::HttpCheckMatch::Status) => status,
            Some(api::HttpCheckMatch::String) => literal,
            Some(api::HttpCheckMatch::Rstatus | api::HttpCheckMatch::Rstring) => pattern,
            Some(api::HttpCheckMatch::Hdr | api::HttpCheckMatch::Fhdr) => {
                self.refused(&at_match, "expectations of headers are not supported", "use status, rstatus, string or rstring");
                return None;
            }
            None => {
                self.error(
                    &at_match,
                    codes::INVALID_FIELD,
                    "the expectation says not what is looked at",
                    "set match to status, rstatus, string or rstring",
                );
                return None;
            }
        };
        if rule.pattern.is_none() {
            self.error(&at_pattern, codes::INVALID_FIELD, "the expectation has no pattern", "add a pattern");
        }
        let text = self.text(&at_pattern, rule.pattern.as_deref(), check)?;
        let pattern = match rule.matches {
            Some(api::HttpCheckMatch::Status) => HttpCheckPattern::Status(text),
            Some(api::HttpCheckMatch::Rstatus) => HttpCheckPattern::StatusRegex(text),
            Some(api::HttpCheckMatch::Rstring) => HttpCheckPattern::StringRegex(text),
            _ => HttpCheckPattern::String(text),
        };
        Some(HttpCheckExpect { negate: rule.exclamation_mark.unwrap_or(false), pattern })
    }
}

fn uri(text: &str) -> Result<(), String> {
    names::word(text)?;
    if !text.starts_with('/') || !text.is_ascii() { Err("is not an absolute, encoded path".to_owned()) } else { Ok(()) }
}

fn version(text: &str) -> Result<(), String> {
    if matches!(text, "HTTP/1.0" | "HTTP/1.1") { Ok(()) } else { Err("is neither HTTP/1.0 nor HTTP/1.1".to_owned()) }
}

fn host(text: &str) -> Result<(), String> {
    let (name, port) = text.rsplit_once(':').map_or((text, None), |(name, port)| (name, Some(port)));
    if port.is_some_and(|port| port.parse::<u16>().is_err()) {
        return Err("has no valid port".to_owned());
    }
    names::dns_name(name).map(drop)
}

fn status(text: &str) -> Result<(), String> {
    let code = |text: &str| text.parse::<u16>().ok().filter(|code| text.len() == 3 && (100..=999).contains(code));
    let range = |part: &str| match part.split_once('-') {
        None => code(part).is_some(),
        Some((low, high)) => matches!((code(low), code(high)), (Some(low), Some(high)) if low <= high),
    };
    if text.len() <= MAX_PATTERN && text.split(',').all(range) {
        Ok(())
    } else {
        Err("is not a list of status codes and ranges such as 200,300-399".to_owned())
    }
}

fn literal(text: &str) -> Result<(), String> {
    names::plain(text)?;
    if text.is_empty() { Err("is empty".to_owned()) } else { Ok(()) }
}

/// A pattern that has a chance to compile and no way to run for ever: quantifiers of groups that hold
/// quantifiers, and back references, are refused.
fn pattern(text: &str) -> Result<(), String> {
    literal(text)?;
    if text.len() > MAX_PATTERN {
        return Err(format!("is longer than {MAX_PATTERN} bytes"));
    }
    let broken = || "is not a valid pattern".to_owned();
    // For each open group: whether it holds a quantifier.
    let mut groups = vec![false];
    let mut closed = None;
    let mut chars = text.chars().peekable();
    let mut operand = false;
    while let Some(c) = chars.next() {
        let group_before = closed.take();
        match c {
            '\\' => {
                let escaped = chars.next().ok_or_else(broken)?;
                if !may_be_escaped(escaped) {
                    return Err("has a back reference or an escape that is not allowed".to_owned());
                }
                operand = true;
            }
            '[' => {
                class(&mut chars).ok_or_else(broken)?;
                operand = true;
            }
            '(' => {
                if chars.peek() == Some(&'?') {
                    chars.next();
                    if chars.next() != Some(':') {
                        return Err("has a group that is not allowed; only ( and (?: are".to_owned());
                    }
                } else if chars.peek() == Some(&'*') {
                    return Err(broken());
                }
                groups.push(false);
                operand = false;
            }
            ')' => {
                let inner = groups.pop().ok_or_else(broken)?;
                let outer = groups.last_mut().ok_or_else(broken)?;
                *outer |= inner;
                closed = Some(inner);
                operand = true;
            }
            '*' | '+' | '?' | '{' if operand => {
                if c == '{' {
                    bounds(&mut chars).ok_or_else(broken)?;
                }
                if group_before == Some(true) {
                    return Err("has a quantifier of a group that holds quantifiers, which can take for ever".to_owned());
                }
                if let Some(group) = groups.last_mut() {
                    *group = true;
                }
                if chars.peek() == Some(&'?') {
                    chars.next();
                }
                operand = false;
            }
            '*' | '+' | '?' | '{' => return Err(broken()),
            '|' | '^' => operand = false,
            _ => operand = true,
        }
    }
    if groups.len() == 1 { Ok(()) } else { Err(broken()) }
}

/// Escapes that mean the same everywhere: of signs, and of the usual classes.
fn may_be_escaped(c: char) -> bool {
    c.is_ascii_punctuation() || "dDwWsSbBntr".contains(c)
}

/// The rest of a character class. Classes by name (`[:alpha:]`) are not read: `[` stands for itself when escaped.
fn class(chars: &mut Peekable<Chars<'_>>) -> Option<()> {
    chars.next_if_eq(&'^');
    let mut first = true;
    loop {
        let low = match chars.next()? {
            ']' if !first => return Some(()),
            c => member(c, chars)?,
        };
        first = false;
        // A dash before the end stands for itself.
        if chars.peek() == Some(&'-') && chars.clone().nth(1) != Some(']') {
            chars.next();
            let high = chars.next()?;
            let high = member(high, chars)?;
            if low? > high? {
                return None;
            }
        }
    }
}

/// A member of a class that starts with `c`; `Some(None)` for an escape that means several characters.
#[allow(clippy::option_option)] // no member, a member that is no character, a character
fn member(c: char, chars: &mut Peekable<Chars<'_>>) -> Option<Option<char>> {
    match c {
        '[' => None,
        '\\' => {
            let escaped = chars.next().filter(|c| may_be_escaped(*c))?;
            Some(escaped.is_ascii_punctuation().then_some(escaped))
        }
        c => Some(Some(c)),
    }
}

/// The rest of `{n}`, `{n,}` or `{n,m}`, at most 100.
fn bounds(chars: &mut impl Iterator<Item = char>) -> Option<()> {
    let mut text = String::new();
    loop {
        match chars.next()? {
            '}' => break,
            c => text.push(c),
        }
    }
    let (low, high) = text.split_once(',').unwrap_or((&text, &text));
    let low: u32 = low.parse().ok()?;
    let high: u32 = if high.is_empty() { low } else { high.parse().ok()? };
    (low <= high && high <= 100).then_some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_do_not_compile_or_never_end_are_refused() {
        for bad in [
            "(",
            ")",
            "[a",
            "a{2",
            "*a",
            "a**",
            "(a+)+",
            "((a|b*)c)*",
            "a\\",
            "(?=a)",
            "\\1",
            "(a)\\1",
            "a{1000}",
            "",
            "a{3,2}",
            "(*FAIL)",
            "[[:foo:]]",
            "[z-a]",
            "[a-\\d]",
            "\\p{Xx}",
            "\\x",
            "[",
            "[]",
            "[^]",
            "[a\\",
        ] {
            assert!(pattern(bad).is_err(), "{bad}");
        }
        for good in ["^2[0-9]{2}$", "ok", "(ok|fine)", "^(?:[23]..|404)$", "a+b*c?", "[]a]", "[^]]x", "\\d+"] {
            assert!(pattern(good).is_ok(), "{good} {:?}", pattern(good));
        }
    }

    #[test]
    fn status_lists_are_checked() {
        assert!(status("200").is_ok() && status("200,300-399").is_ok());
        for bad in ["", "2xx", "200,", "399-300", "20", "200 201", "99999"] {
            assert!(status(bad).is_err(), "{bad}");
        }
    }
}
