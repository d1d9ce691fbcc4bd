//! Our own dialect: `haproxy-fleet.dev/…` on Ingress and Service. All keys hold on both; the Service is nearer.

use super::PREFIX;
use crate::model::{Name, Policy, Redirect, RedirectTo};
use crate::report::{Diagnostic, ObjectRef, codes};
use crate::translate::names;

/// Keys of one object that edit headers, at most.
const MAX_HEADERS: usize = 64;

const KEYS: [&str; 10] = [
    "backend",
    "ssl-redirect",
    "ssl-redirect-code",
    "redirect-to",
    "rewrite-path-prefix",
    "request-header.NAME",
    "response-header.NAME",
    "timeout-server",
    "timeout-connect",
    "zone-aware",
];

/// Keys that belong to kinds other than Ingress and Service.
const ELSEWHERE: [&str; 1] = ["adopt"];

/// Headers that belong to one connection, or frame the message: an edit could only break it.
const FRAMING: [&str; 9] =
    ["connection", "content-length", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade", "http2-settings"];

/// What the native keys of one object say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::translate) struct Native {
    /// Everything that does not depend on the matched path.
    pub policy: Policy,
    /// What the matched prefix is replaced by: starts with `/`, or empty.
    pub rewrite_prefix: Option<Box<str>>,
    /// A Backend of the object's namespace.
    pub backend: Option<Name>,
    /// Whether plain HTTP is sent to HTTPS.
    pub ssl_redirect: Option<bool>,
    /// With which code.
    pub ssl_redirect_code: Option<u16>,
}

impl Native {
    /// Takes the key `haproxy-fleet.dev/KEY`.
    pub(super) fn take(&mut self, object: &ObjectRef, key: &str, value: &str, diagnostics: &mut Vec<Diagnostic>) {
        let taken = match key {
            "backend" => kubernetes_name(value).map(|name| self.backend = Some(name)),
            "ssl-redirect" => boolean(value).map(|on| self.ssl_redirect = Some(on)),
            "ssl-redirect-code" => redirect_code(value).map(|code| self.ssl_redirect_code = Some(code)),
            "redirect-to" => location(value).map(|to| self.policy.redirect = Some(Redirect { code: 302, to })),
            "rewrite-path-prefix" => rewrite(value).map(|prefix| self.rewrite_prefix = Some(prefix)),
            "timeout-server" => names::duration(value).map(|time| self.policy.server_timeout = Some(time)).map_err(|w| wrong(value, &w)),
            "timeout-connect" => names::duration(value).map(|time| self.policy.connect_timeout = Some(time)).map_err(|w| wrong(value, &w)),
            "zone-aware" => boolean(value).map(|on| self.policy.zone_aware = Some(on)),
            _ => match (key.strip_prefix("request-header."), key.strip_prefix("response-header.")) {
                (Some(name), _) => self.header(true, name, value),
                (_, Some(name)) => self.header(false, name, value),
                _ => return diagnostics.push(unknown(object, key)),
            },
        };
        if let Err((message, help)) = taken {
            diagnostics.push(Diagnostic::error(object, super::field(&format!("{PREFIX}{key}")), codes::INVALID_VALUE, message, help));
        }
    }

    fn header(&mut self, request: bool, name: &str, value: &str) -> Result<(), (String, String)> {
        let help = "use a header name of letters, digits and dashes after the dot".to_owned();
        names::token(name).map_err(|w| (format!("the header name {} {w}", names::quoted(name)), help))?;
        let lower = name.to_ascii_lowercase();
        if FRAMING.contains(&lower.as_str()) {
            return Err((
                format!("{name} belongs to the connection or frames the message and cannot be changed"),
                "remove the key; HAProxy sets this header itself".to_owned(),
            ));
        }
        names::plain(value).map_err(|w| wrong(value, &w))?;
        if request && lower == "host" {
            let host = names::dns_name(value).map_err(|w| wrong(value, &w))?;
            self.policy.rewrite_host = Some(host.into());
            return Ok(());
        }
        let edits = if request { &mut self.policy.request_headers } else { &mut self.policy.response_headers };
        let twice = edits.set.iter().map(|(n, _)| n).chain(&edits.remove).find(|n| n.eq_ignore_ascii_case(name));
        if let Some(other) = twice {
            return Err((format!("{name} is the same header as {other}, which is given too"), "keep one of them".to_owned()));
        }
        if edits.set.len() + edits.remove.len() >= MAX_HEADERS {
            return Err((format!("more than {MAX_HEADERS} headers are changed"), "change fewer".to_owned()));
        }
        if value.is_empty() {
            edits.remove.push(name.into());
        } else {
            edits.set.push((name.into(), value.into()));
        }
        Ok(())
    }

    /// Looks at the keys together.
    pub(super) fn finish(&mut self, object: &ObjectRef, diagnostics: &mut Vec<Diagnostic>) {
        // The source is a sorted map, but a property of the model must not hang on that.
        self.policy.request_headers.set.sort();
        self.policy.response_headers.set.sort();
        self.policy.request_headers.remove.sort();
        self.policy.response_headers.remove.sort();
        if self.policy.redirect.is_some() && self.rewrite_prefix.take().is_some() {
            diagnostics.push(Diagnostic::warning(
                object,
                super::field("haproxy-fleet.dev/rewrite-path-prefix"),
                codes::CONFLICT,
                "rewrite-path-prefix has no effect beside redirect-to: no request reaches a server",
                "remove one of the two keys",
            ));
        }
    }
}

fn unknown(object: &ObjectRef, key: &str) -> Diagnostic {
    let field = super::field(&format!("{PREFIX}{key}"));
    if ELSEWHERE.contains(&key) {
        return Diagnostic::error(
            object,
            field,
            codes::UNKNOWN_FIELD,
            format!("{PREFIX}{key} does not belong on this kind ({})", object.kind),
            "remove the key",
        );
    }
    let help = match names::nearest(key, KEYS) {
        Some(known) => format!("did you mean {PREFIX}{known}?"),
        None => format!("known keys are {}", KEYS.join(", ")),
    };
    Diagnostic::error(object, field, codes::UNKNOWN_FIELD, format!("{} is not a known key", names::quoted(&format!("{PREFIX}{key}"))), help)
}

fn wrong(value: &str, what: &str) -> (String, String) {
    (format!("the value {} {what}", names::quoted(value)), "correct the value or remove the key".to_owned())
}

fn boolean(value: &str) -> Result<bool, (String, String)> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err((format!("the value {} is neither true nor false", names::quoted(value)), "write \"true\" or \"false\"".to_owned())),
    }
}

fn redirect_code(value: &str) -> Result<u16, (String, String)> {
    match value {
        "301" => Ok(301),
        "302" => Ok(302),
        "303" => Ok(303),
        "307" => Ok(307),
        "308" => Ok(308),
        _ => Err((format!("the value {} is not a redirect code", names::quoted(value)), "use 301, 302, 303, 307 or 308".to_owned())),
    }
}

fn location(value: &str) -> Result<RedirectTo, (String, String)> {
    names::word(value).map_err(|w| wrong(value, &w))?;
    let lower = value.to_ascii_lowercase();
    let rest = lower.strip_prefix("https://").or_else(|| lower.strip_prefix("http://"));
    let absolute = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['/', '?', '#', '@', ':']));
    let path = value.starts_with('/') && !value.starts_with("//") && !value.starts_with("/\\");
    if value.is_ascii() && (absolute || path) {
        Ok(RedirectTo::Location(value.into()))
    } else {
        Err((
            format!("the value {} is neither an absolute URL nor a path", names::quoted(value)),
            "write https://HOST/PATH, http://HOST/PATH or /PATH, encoded".to_owned(),
        ))
    }
}

fn rewrite(value: &str) -> Result<Box<str>, (String, String)> {
    names::path(value).map_err(|w| wrong(value, &w))?;
    Ok(value.trim_end_matches('/').into())
}

/// A name of an object: what a reference can hold.
fn kubernetes_name(value: &str) -> Result<Name, (String, String)> {
    if value.contains('/') {
        return Err((
            format!("{} names another namespace, which is not allowed", names::quoted(value)),
            "name a Backend of the same namespace".to_owned(),
        ));
    }
    match names::dns_name(value) {
        Ok(name) if name == value => Ok(name.into()),
        Ok(_) => Err(wrong(value, "is not in lower case")),
        Err(w) => Err(wrong(value, &w)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;
    use crate::model::Millis;
    use crate::report::{Code, Kind};

    fn read(pairs: &[(&str, &str)]) -> (Native, Vec<Diagnostic>) {
        let mut diagnostics = Vec::new();
        let object = ObjectRef::new(Kind::Ingress, "shop", "web");
        let native = super::super::read(&object, pairs.iter().copied(), &mut diagnostics);
        (native, diagnostics)
    }

    fn codes_of(pairs: &[(&str, &str)]) -> Vec<Code> {
        read(pairs).1.into_iter().map(|d| d.code).collect()
    }

    #[test]
    fn every_native_key_is_understood() {
        let (native, diagnostics) = read(&[
            ("haproxy-fleet.dev/backend", "fast"),
            ("haproxy-fleet.dev/ssl-redirect", "false"),
            ("haproxy-fleet.dev/ssl-redirect-code", "301"),
            ("haproxy-fleet.dev/rewrite-path-prefix", "/"),
            ("haproxy-fleet.dev/request-header.X-Team", "shop %[src] \"q\""),
            ("haproxy-fleet.dev/response-header.Server", ""),
            ("haproxy-fleet.dev/timeout-server", "90s"),
            ("haproxy-fleet.dev/timeout-connect", "250"),
            ("haproxy-fleet.dev/zone-aware", "true"),
        ]);
        assert_eq!(diagnostics, []);
        assert_eq!(native.backend.as_deref(), Some("fast"));
        assert_eq!((native.ssl_redirect, native.ssl_redirect_code), (Some(false), Some(301)));
        assert_eq!(native.rewrite_prefix.as_deref(), Some(""));
        assert_eq!(native.policy.server_timeout, Some(Millis(90_000)));
        assert_eq!(native.policy.connect_timeout, Some(Millis(250)));
        assert_eq!(native.policy.request_headers.set, [("X-Team".into(), "shop %[src] \"q\"".into())]);
        assert_eq!(native.policy.response_headers.remove, ["Server".into()]);
        assert_eq!(native.policy.zone_aware, Some(true));
    }

    #[test]
    fn an_unknown_key_names_its_nearest_neighbour() {
        let (_, diagnostics) = read(&[("haproxy-fleet.dev/ssl-redirct", "true")]);
        assert_eq!(diagnostics[0].code, codes::UNKNOWN_FIELD);
        assert!(diagnostics[0].help.contains("haproxy-fleet.dev/ssl-redirect"), "{}", diagnostics[0].help);
        assert_eq!(diagnostics[0].field, "metadata.annotations[\"haproxy-fleet.dev/ssl-redirct\"]");
    }

    #[test]
    fn keys_of_other_controllers_are_refused_by_name() {
        let (_, diagnostics) = read(&[
            ("haproxy.org/path-rewrite", "/x"),
            ("nginx.ingress.kubernetes.io/configuration-snippet", "x"),
            ("haproxy-ingress.github.io/balance-algorithm", "leastconn"),
            ("example.com/mine", "x"),
            ("kubernetes.io/ingress.class", "edge"),
        ]);
        assert_eq!(diagnostics.len(), 3);
        assert!(diagnostics.iter().all(|d| d.code == codes::UNSUPPORTED));
        assert!(diagnostics[0].help.contains("haproxy-fleet.dev/rewrite-path-prefix"));
        assert!(diagnostics[2].help.contains("balance of a Backend"));
    }

    #[test]
    fn wrong_values_have_no_effect_and_are_told() {
        for (key, value) in [
            ("ssl-redirect", "yes"),
            ("ssl-redirect-code", "200"),
            ("redirect-to", "example.com"),
            ("redirect-to", "//example.com"),
            ("redirect-to", "https:///x"),
            ("redirect-to", "javascript:alert(1)"),
            ("redirect-to", "https://a b"),
            ("redirect-to", "https://a\r\nSet-Cookie: x"),
            ("rewrite-path-prefix", "x"),
            ("rewrite-path-prefix", "/a b"),
            ("request-header.X-A", "a\r\nb: c"),
            ("request-header.X-A", "a\u{0}"),
            ("request-header.Content-Length", "0"),
            ("request-header.Host", "a b"),
            ("response-header.", "x"),
            ("timeout-server", "soon"),
            ("timeout-connect", "0s"),
            ("zone-aware", "Auto"),
            ("backend", "other/fast"),
            ("backend", "Fast"),
        ] {
            let key = format!("haproxy-fleet.dev/{key}");
            let (native, diagnostics) = read(&[(&key, value)]);
            assert_eq!(native, Native::default(), "{key} {value:?}");
            assert_eq!(diagnostics.len(), 1, "{key} {value:?}");
            assert_eq!(diagnostics[0].code, codes::INVALID_VALUE);
        }
        let long = "x".repeat(names::MAX_VALUE + 1);
        assert_eq!(codes_of(&[("haproxy-fleet.dev/request-header.X-A", &long)]), [codes::INVALID_VALUE]);
    }

    #[test]
    fn the_same_header_twice_is_told() {
        let (native, diagnostics) = read(&[("haproxy-fleet.dev/request-header.X-A", "1"), ("haproxy-fleet.dev/request-header.x-a", "2")]);
        assert_eq!(native.policy.request_headers.set.len(), 1);
        assert_eq!(diagnostics.len(), 1);
    }
}
