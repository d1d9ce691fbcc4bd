//! Parts of a policy that only HTTP has.

use super::directives::{lookup, lookup_or};
use super::{Builder, ValueMap, check};
use crate::haproxy::config::{Expr, Fmt, Line, Refused, Word};
use crate::haproxy::render::Options;
use crate::model::{Cookie, CookieMode, HeaderEdits, HttpConnectionMode, PathRewrite, Redirect, RedirectTo, RetryOn};
use crate::report::codes;

impl Builder<'_> {
    /// Everything but health checks and time-outs.
    pub(super) fn http(&mut self) {
        self.connection();
        self.retry_on();
        if let Some(cookie) = &self.policy.cookie {
            self.cookie(cookie);
        }
        self.cors();
        if let Some(redirect) = &self.policy.redirect {
            self.essential = true;
            self.redirect(redirect);
        } else if let Some(rewrite) = &self.policy.rewrite {
            self.essential = true;
            self.rewrite("rewrite", rewrite);
        }
        if let Some(host) = &self.policy.rewrite_host {
            self.essential = true;
            if check::is_host(host.split(':').next().unwrap_or_default()) && check::is_unbroken(host) {
                let line = lookup(ValueMap::Host).map(|expr| vec![Line::of("http-request set-header Host").with(Word::value(&expr))]);
                self.take("rewrite_host", line);
                self.value("rewrite_host", ValueMap::Host, "", host);
            } else {
                self.refuse("rewrite_host", codes::INVALID_VALUE, "the host is not a valid name", "write a DNS name");
            }
        }
        let (request, response) = (&self.policy.request_headers, &self.policy.response_headers);
        self.essential |= !request.is_empty() || !response.is_empty();
        self.headers("request_headers", "http-request", 'q', request);
        self.headers("response_headers", "http-response", 's', response);
    }

    fn connection(&mut self) {
        match self.policy.http_connection_mode {
            Some(HttpConnectionMode::KeepAlive) => self.lines.push(Line::of("option http-keep-alive")),
            Some(HttpConnectionMode::ServerClose) => self.lines.push(Line::of("option http-server-close")),
            Some(HttpConnectionMode::Close) => self.lines.push(Line::of("option httpclose")),
            None => {}
        }
        let Some(wanted) = &self.policy.forwardfor else {
            self.lines.push(Line::of("option forwardfor"));
            return;
        };
        if !wanted.enabled {
            return;
        }
        let mut line = Line::of("option forwardfor");
        match &wanted.except {
            Some(except) if check::is_network(except) => {
                if let Ok(word) = Word::text(except) {
                    line = line.and("except").with(word);
                }
            }
            Some(_) => {
                self.refuse("forwardfor.except", codes::INVALID_VALUE, "the exception is not a network", "write an address or a network");
            }
            None => {}
        }
        match &wanted.header {
            Some(name) if check::is_simple_token(name) && !check::is_framing(name) => {
                if let Ok(word) = Word::text(name) {
                    line = line.and("header").with(word);
                }
            }
            Some(_) => self.refuse("forwardfor.header", codes::INVALID_VALUE, "the header cannot be set", "choose another name"),
            None => {}
        }
        self.lines.push(if wanted.ifnone { line.and("if-none") } else { line });
    }

    fn retry_on(&mut self) {
        let Some(wanted) = self.policy.retry_on.as_deref().filter(|list| !list.is_empty()) else { return };
        let mut line = Line::of("retry-on");
        for on in wanted {
            line = match on {
                // It rules out the others.
                RetryOn::None => {
                    line = Line::of("retry-on none");
                    break;
                }
                RetryOn::ConnFailure => line.and("conn-failure"),
                RetryOn::EmptyResponse => line.and("empty-response"),
                RetryOn::JunkResponse => line.and("junk-response"),
                RetryOn::ResponseTimeout => line.and("response-timeout"),
                RetryOn::ZeroRttRejected => line.and("0rtt-rejected"),
                RetryOn::AllRetryableErrors => line.and("all-retryable-errors"),
                RetryOn::Status(code @ (401 | 403 | 404 | 408 | 421 | 425 | 429 | 500..=504)) => line.with(Word::number(*code)),
                RetryOn::Status(code) => {
                    self.refuse("retry_on", codes::UNSUPPORTED, format!("{code} is not tried again"), "see the list of codes");
                    line
                }
            };
        }
        if line.words().len() > 1 {
            self.lines.push(line);
        }
    }

    /// Whether cookie values come from the backend's key (else each server names its own).
    pub(super) fn dynamic_cookie(&self, wanted: bool) -> bool {
        wanted && self.policy.dynamic_cookie_key.as_ref().is_some_and(|key| check::is_unbroken(key))
    }

    fn cookie(&mut self, cookie: &Cookie) {
        if !check::is_simple_token(&cookie.name) {
            self.refuse(
                "cookie.name",
                codes::INVALID_VALUE,
                "the cookie's name is not a token",
                "use letters, digits, dots, dashes and underscores",
            );
            return;
        }
        let dynamic = self.dynamic_cookie(cookie.dynamic);
        let line = self.cookie_line(cookie, dynamic);
        if self.take("cookie", line.map(|line| vec![line])) && dynamic {
            let key = self.policy.dynamic_cookie_key.as_deref().unwrap_or_default();
            self.take("dynamic_cookie_key", Word::text(key).map(|word| vec![Line::of("dynamic-cookie-key").with(word)]));
        } else if cookie.dynamic && !dynamic {
            self.refuse(
                "dynamic_cookie_key",
                codes::INVALID_VALUE,
                "a dynamic cookie needs a key without blanks; a hash of the server's address is used instead",
                "set dynamic_cookie_key",
            );
        }
    }

    fn cookie_line(&mut self, cookie: &Cookie, dynamic: bool) -> Result<Line, Refused> {
        let mut line = Line::of("cookie").with(Word::text(&cookie.name)?);
        line = line.and(match cookie.mode {
            CookieMode::Insert => "insert",
            CookieMode::Rewrite => "rewrite",
            CookieMode::Prefix => "prefix",
        });
        let insert = cookie.mode == CookieMode::Insert;
        let flags = [
            (cookie.indirect && cookie.mode != CookieMode::Rewrite, "indirect"),
            (cookie.nocache, "nocache"),
            (cookie.postonly, "postonly"),
            (cookie.preserve && insert, "preserve"),
            (cookie.httponly, "httponly"),
            (cookie.secure, "secure"),
            (dynamic, "dynamic"),
        ];
        for (_, flag) in flags.into_iter().filter(|(set, _)| *set) {
            line = line.and(flag);
        }
        for (word, seconds) in [("maxidle", cookie.maxidle), ("maxlife", cookie.maxlife)] {
            if let Some(seconds) = seconds.filter(|_| insert) {
                // HAProxy keeps these dates in units of four seconds in 30 bits.
                line = line.and(word).with(Word::text(&format!("{}s", seconds.clamp(1, 2_000_000)))?);
            }
        }
        for domain in cookie.domains.iter().take(8) {
            if check::is_host(domain) && domain.contains('.') {
                line = line.and("domain").with(Word::text(domain)?);
            } else {
                self.refuse("cookie.domain", codes::INVALID_VALUE, "a domain is not a name with a dot", "write a DNS name");
            }
        }
        for attribute in cookie.attributes.iter().take(8) {
            if attribute.contains(';') {
                self.refuse("cookie.attr", codes::INVALID_VALUE, "an attribute holds a semicolon", "write one attribute an entry");
            } else {
                line = line.and("attr").with(Word::text(attribute)?);
            }
        }
        Ok(line)
    }

    /// The matched length and what comes instead are values, so one shape serves every rewrite.
    fn rewrite(&mut self, field: &'static str, rewrite: &PathRewrite) {
        let path = match rewrite {
            PathRewrite::Full(path) => path,
            PathRewrite::Prefix { replacement, .. } => replacement,
        };
        let full = matches!(rewrite, PathRewrite::Full(_));
        let bad = !path.is_empty() && (!path.starts_with('/') || !check::is_unbroken(path) || path.contains(['?', '#']));
        if bad || (full && path.is_empty()) {
            self.refuse(field, codes::INVALID_VALUE, "the new path is not a path", "start it with / and leave out blanks, ? and #");
            return;
        }
        match rewrite {
            PathRewrite::Full(path) => {
                self.take(field, lookup(ValueMap::Path).map(|expr| vec![Line::of("http-request set-path").with(Word::value(&expr))]));
                self.value(field, ValueMap::Path, "", path);
            }
            PathRewrite::Prefix { matched, replacement } => {
                self.take(field, prefix_rules());
                let matched = matched.trim_end_matches('/');
                if !matched.is_empty() {
                    self.value(field, ValueMap::Strip, "", &matched.len().to_string());
                }
                self.value(field, ValueMap::Path, "", replacement.trim_end_matches('/'));
            }
        }
    }

    fn redirect(&mut self, redirect: &Redirect) {
        let code = match redirect.code {
            301 => "code 301",
            303 => "code 303",
            307 => "code 307",
            308 => "code 308",
            _ => "code 302",
        };
        let location = match &redirect.to {
            RedirectTo::Location(location) => {
                if !check::is_unbroken(location) {
                    self.refuse("redirect", codes::INVALID_VALUE, "the location holds blanks", "write a URL or a path, encoded");
                    self.lines.push(Line::of("http-request deny deny_status 503"));
                    return;
                }
                self.value("redirect", ValueMap::Redirect, "", location);
                lookup(ValueMap::Redirect).map(|expr| Word::value(&expr))
            }
            RedirectTo::Parts { scheme, host, port, path } => {
                if let Some(path) = path {
                    self.rewrite("redirect.path", path);
                }
                self.redirect_parts(scheme.as_deref(), host.as_deref(), *port)
            }
        };
        self.take("redirect", location.map(|word| vec![Line::of("http-request redirect location").with(word).and(code)]));
    }

    /// `SCHEME://HOST:PORT` and the path as it is by now. Host and port are values.
    fn redirect_parts(&mut self, scheme: Option<&str>, host: Option<&str>, port: Option<u16>) -> Result<Word, Refused> {
        // The frontend says there what it speaks; its own TLS may have ended in another worker.
        let (own_scheme, own_host) = (Expr::of("req.hdr(x-forwarded-proto)"), Expr::of("req.hdr(host),host_only"));
        let (authority, path) = (lookup(ValueMap::Redirect)?, Expr::of("pathq"));
        let host = host.filter(|host| {
            let good = check::is_host(host);
            if !good {
                self.refuse("redirect.host", codes::INVALID_VALUE, "the host is not a valid name", "write a DNS name");
            }
            good
        });
        let port = port.map(|port| format!(":{port}")).unwrap_or_default();
        self.value("redirect", ValueMap::Redirect, "", &format!("{}{port}", host.unwrap_or_default()));
        let mut parts = match scheme {
            Some("https") => vec![Fmt::Text("https")],
            Some("http") => vec![Fmt::Text("http")],
            _ => vec![Fmt::Expr(&own_scheme)],
        };
        parts.push(Fmt::Text("://"));
        if host.is_none() {
            parts.push(Fmt::Expr(&own_host));
        }
        parts.extend([Fmt::Expr(&authority), Fmt::Expr(&path)]);
        Word::fmt(&parts)
    }

    fn headers(&mut self, field: &'static str, stage: &'static str, side: char, edits: &HeaderEdits) {
        let changes = edits.set.iter().map(|pair| ("set-header", pair)).chain(edits.add.iter().map(|pair| ("add-header", pair)));
        for (index, (action, (name, value))) in changes.enumerate() {
            if !self.may_edit(field, name) {
                continue;
            }
            if check::has_control(value) {
                self.refuse(field, codes::INVALID_VALUE, format!("the value of {name} holds a control byte"), "write a value without it");
                continue;
            }
            let suffix = format!("/{side}{index}");
            let line = header_value(&suffix)
                .and_then(|expr| Ok(vec![Line::of(stage).and(action).with(Word::text(name)?).with(Word::value(&expr))]));
            if self.take(field, line) {
                self.value(field, ValueMap::Headers, suffix, value);
            }
        }
        for name in &edits.remove {
            if self.may_edit(field, name) {
                self.take(field, Word::text(name).map(|word| vec![Line::of(stage).and("del-header").with(word)]));
            }
        }
    }

    fn may_edit(&mut self, field: &'static str, name: &str) -> bool {
        if !check::is_token(name) {
            self.refuse(field, codes::INVALID_VALUE, format!("{name:?} is not the name of a header"), "use letters, digits and dashes");
            return false;
        }
        if check::is_framing(name) {
            self.refuse(field, codes::UNSUPPORTED, format!("{name} belongs to the connection and is HAProxy's"), "leave this header alone");
            return false;
        }
        true
    }

    /// A name that is resolved for each request; nothing that tenants must not reach.
    pub(super) fn external(&mut self, host: &str, port: u16, options: &Options) {
        self.essential = true;
        if !check::is_host(host) {
            self.refuse("kind", codes::INVALID_VALUE, "the external name is not a valid DNS name", "write a DNS name");
            self.lines.push(Line::of("http-request deny deny_status 503"));
            return;
        }
        if self.take("kind", external_rules(options)) {
            self.value("kind", ValueMap::External, "", host);
            self.value("kind", ValueMap::ExternalPort, "", &port.to_string());
        }
    }
}

fn header_value(suffix: &str) -> Result<Expr, Refused> {
    Expr::of("be_name").then("concat", &[suffix])?.then("map_str", &[ValueMap::Headers.path()])
}

/// The first N bytes of the path are cut off, something stands in front of the rest, and never is it empty.
fn prefix_rules() -> Result<Vec<Line>, Refused> {
    let (rest, new) = (Expr::of("path,bytes(txn.strip)"), Expr::of("var(txn.path)"));
    Ok(vec![
        Line::of("http-request set-var(txn.strip)").with(Word::expr(&lookup_or(ValueMap::Strip, "map_str_int", "0")?)),
        Line::of("http-request set-var-fmt(txn.path)").with(Word::fmt(&[Fmt::Expr(&lookup(ValueMap::Path)?), Fmt::Expr(&rest)])?),
        Line::of("http-request set-path").with(Word::value(&new)).and("if { var(txn.path) -m len ge 1 }"),
        Line::of("http-request set-path / unless { var(txn.path) -m len ge 1 }"),
    ])
}

fn external_rules(options: &Options) -> Result<Vec<Line>, Refused> {
    let name = lookup(ValueMap::External)?;
    let port = lookup_or(ValueMap::ExternalPort, "map_str_int", "0")?;
    let mut lines = vec![
        Line::of("http-request do-resolve(txn.dst,_dns)").with(Word::expr(&name)),
        Line::of("http-request deny deny_status 503 unless { var(txn.dst) -m found }"),
    ];
    // A line takes 64 words.
    for networks in options.blocked_networks.chunks(32) {
        let mut line = Line::of("http-request deny deny_status 503 if { var(txn.dst) -m ip --");
        for network in networks {
            line = line.with(Word::text(network)?);
        }
        lines.push(line.and("}"));
    }
    lines.push(Line::of("http-request set-dst var(txn.dst)"));
    lines.push(Line::of("http-request set-dst-port").with(Word::expr(&port)));
    Ok(lines)
}
