//! What the settings of a fleet add to its frontends.

use super::Renderer;
use crate::haproxy::bundle::{Content, ResourceKey};
use crate::haproxy::config::{Expr, Fmt, Line, Refused, Word};
use crate::haproxy::shape::{Problem, ca_path, check};
use crate::model::{AccessLog, ClientCertificates, ErrorPage, Forwarded, HeaderEdits, Hsts, LogDestination, PageKind, Settings};
use crate::report::{PrivateBytes, codes};
use std::sync::Arc;

impl Renderer {
    /// Writes the pages of `settings`, and takes those away that it does not have.
    pub(super) fn write_error_pages(&mut self, settings: &Settings) {
        let pages = settings.error_pages.iter().map(|(status, page)| (page_path(*status, page), page));
        let pages: Vec<(super::Name, &ErrorPage)> = pages.map(|(path, page)| (path.into(), page)).collect();
        let wanted = pages.iter().map(|(path, _)| path.clone()).collect();
        for gone in std::mem::replace(&mut self.error_pages, wanted).difference(&self.error_pages.clone()) {
            self.put(ResourceKey::File(gone.clone()), None);
        }
        for (path, page) in pages {
            let body: Arc<[u8]> = page.body.as_bytes().into();
            self.put(ResourceKey::File(path), Some((Content::File(PrivateBytes::new(body)), page.sources.clone())));
        }
    }
}

fn page_path(status: u16, page: &ErrorPage) -> String {
    let extension = match page.kind {
        PageKind::Html => "html",
        PageKind::Json => "json",
        PageKind::Text => "txt",
    };
    format!("errors/{status}.{extension}")
}

/// `line`, which says what a page is for, with the page for `status`.
fn with_page(line: Line, status: u16, page: &ErrorPage) -> Result<Line, Refused> {
    let line = line.and("status").with(Word::number(status)).and("content-type").with(Word::text(match page.kind {
        PageKind::Html => "text/html; charset=utf-8",
        PageKind::Json => "application/json",
        PageKind::Text => "text/plain; charset=utf-8",
    })?);
    // as HAProxy's own pages say
    Ok(line.and("file").with(Word::text(&page_path(status, page))?).and("hdr Cache-Control no-cache"))
}

/// Answers every request with `status`, and with its page if there is one.
pub(super) fn answer(settings: &Settings, status: u16) -> Result<Line, Refused> {
    let line = Line::of("http-request return");
    match settings.error_pages.get(&status) {
        Some(page) => with_page(line, status, page),
        None => Ok(line.and("status").with(Word::number(status))),
    }
}

/// What is said where TLS ends, of the certificates of clients.
pub(super) fn verification(settings: &Settings) -> Vec<Word> {
    let Some(ClientCertificates { required, authorities: Some(ca) }) = &settings.client_certificates else { return Vec::new() };
    // such a path has nothing that could be refused
    let Ok(file) = Word::text(&ca_path(&ca.0)) else { return Vec::new() };
    vec![Word::of("ca-file"), file, Word::of("verify"), Word::of(if *required { "required" } else { "optional" })]
}

/// The lines that `settings` add to an HTTP frontend in front of its routing, and what had to be left out of them.
/// `secure`: its clients speak TLS.
pub(super) fn lines(settings: &Settings, secure: bool) -> (Vec<Line>, Vec<Problem>) {
    let mut builder = Builder { settings, secure, lines: Vec::new(), problems: Vec::new() };
    builder.client_certificates();
    builder.pages();
    builder.compression();
    builder.log();
    builder.requests();
    builder.captures();
    builder.responses();
    (builder.lines, builder.problems)
}

struct Builder<'a> {
    settings: &'a Settings,
    secure: bool,
    lines: Vec<Line>,
    problems: Vec<Problem>,
}

impl Builder<'_> {
    /// Takes over what `line` makes, or tells why the writer refused it.
    fn take(&mut self, field: &'static str, line: Result<Line, Refused>) {
        match line {
            Ok(line) => self.lines.push(line),
            Err(refused) => self.refuse(field, format!("a value {refused}; it is left out")),
        }
    }

    fn refuse(&mut self, field: &'static str, message: String) {
        self.problems.push(Problem { field, code: codes::INVALID_VALUE, message, help: "write a value without it" });
    }

    /// What a worker of before a reload passes on comes without TLS, and has its headers from there.
    fn client_certificates(&mut self) {
        let Some(wanted) = &self.settings.client_certificates else { return };
        if !self.secure {
            self.lines.push(Line::of("http-request del-header X-SSL-Client- -m beg"));
            return;
        }
        match (&wanted.authorities, wanted.required) {
            (None, true) => self.lines.push(Line::of("tcp-request connection reject")),
            // a session of before may be resumed without one
            (Some(_), true) => self.lines.push(Line::of("http-request deny deny_status 403 if { ssl_fc } !{ ssl_c_used }")),
            (_, false) => {}
        }
        self.lines.push(Line::of("http-request del-header X-SSL-Client- -m beg if { ssl_fc }"));
        if wanted.authorities.is_some() {
            // in this form nothing in a name can end a header
            let (subject, fingerprint) = (Expr::of("ssl_c_s_dn(,0,rfc2253)"), Expr::of("ssl_c_der,sha2(256),hex"));
            let line = |header, value| Line::of("http-request set-header").and(header).with(Word::value(value)).and("if { ssl_c_used }");
            self.lines.push(line("X-SSL-Client-DN", &subject));
            self.lines.push(line("X-SSL-Client-SHA256", &fingerprint));
        }
    }

    /// What goes wrong in a backend is answered with a page of the frontend, as no backend has its own.
    fn pages(&mut self) {
        for (status, page) in &self.settings.error_pages {
            self.take("spec.http.errorPagesRef", with_page(Line::of("http-error"), *status, page));
        }
    }

    fn log(&mut self) {
        let Some(log) = &self.settings.access_log else { return };
        self.take("spec.logging.access", destination(log));
        if log.empty_requests {
            self.lines.push(Line::of("no option dontlognull"));
        }
        match &log.format {
            Some(format) => {
                self.take("spec.logging.access.format", Word::log_format(format.parts()).map(|word| Line::of("log-format").with(word)));
            }
            None => self.lines.push(Line::of("option httplog")),
        }
        for (name, bytes) in log.response_headers.iter().take(32) {
            if self.is_named("spec.logging.access.captures.responseHeaders", name) {
                let line = Word::text(name).map(|word| Line::of("capture response header").with(word));
                self.take("spec.logging.access.captures.responseHeaders", line.map(|line| line.and("len").with(Word::number(*bytes))));
            }
        }
    }

    /// By rules, which see what the fleet itself has made of requests.
    fn captures(&mut self) {
        let Some(log) = &self.settings.access_log else { return };
        let captures = log.request_headers.iter().map(|capture| ("req.hdr", "spec.logging.access.captures.requestHeaders", capture));
        let captures = captures.chain(log.cookies.iter().map(|capture| ("req.cook", "spec.logging.access.captures.cookies", capture)));
        for (fetch, field, (name, bytes)) in captures.take(64) {
            if self.is_named(field, name) {
                let line = Expr::fetch(fetch, name).map(|value| Line::of("http-request capture").with(Word::expr(&value)));
                self.take(field, line.map(|line| line.and("len").with(Word::number(*bytes))));
            }
        }
    }

    fn is_named(&mut self, field: &'static str, name: &str) -> bool {
        let named = check::is_simple_token(name);
        if !named {
            self.refuse(field, format!("{name:?} is not the name of a header or cookie"));
        }
        named
    }

    /// In frontends, for backends of every kind: what a shape says of it holds for static ones only.
    fn compression(&mut self) {
        let mut line = Line::of("compression type");
        for kind in self.settings.compressed.iter().take(32) {
            match Word::text(kind) {
                Ok(word) if check::is_unbroken(kind) => line = line.with(word),
                _ => self.refuse("spec.http.compression.mimeTypes", format!("{kind:?} is not a media type")),
            }
        }
        if line.words().len() > 2 {
            self.lines.push(Line::of("compression algo gzip"));
            self.lines.push(line);
        }
    }

    /// Requests that a worker of before a reload passes on come through here twice: nothing may add up.
    fn requests(&mut self) {
        let settings = self.settings;
        if settings.ignore_empty_requests {
            self.lines.push(Line::of("option http-ignore-probes"));
        }
        if settings.forwarded == Forwarded::Replace {
            self.lines.push(Line::of("http-request del-header X-Forwarded-For"));
        }
        let proto = Line::of(if self.secure {
            "http-request set-header X-Forwarded-Proto https"
        } else {
            "http-request set-header X-Forwarded-Proto http"
        });
        match settings.forwarded {
            Forwarded::Append | Forwarded::Replace => self.lines.push(proto),
            Forwarded::IfNone => self.lines.push(proto.and("unless { req.hdr(X-Forwarded-Proto) -m found }")),
            Forwarded::Never => {}
        }
        self.headers("spec.http.headers.request", "http-request", &settings.request_headers);
        if let Some(name) = settings.unique_id.as_deref().filter(|name| self.may_edit("spec.http.headers.uniqueId", name)) {
            self.take("spec.http.headers.uniqueId", unique_id(name));
        }
    }

    /// After-response rules see what HAProxy answers by itself, too.
    fn responses(&mut self) {
        let settings = self.settings;
        self.headers("spec.http.headers.response", "http-after-response", &settings.response_headers);
        if let Some(hsts) = settings.hsts.filter(|_| self.secure) {
            self.take("spec.http.hsts", strict_transport(hsts));
        }
    }

    fn headers(&mut self, field: &'static str, stage: &'static str, edits: &HeaderEdits) {
        for (name, value) in &edits.set {
            if self.may_edit(field, name) {
                let line = Word::text(name).and_then(|name| Ok((name, Word::fmt(&[Fmt::Text(value)])?)));
                self.take(field, line.map(|(name, value)| Line::of(stage).and("set-header").with(name).with(value)));
            }
        }
        for name in &edits.remove {
            if self.may_edit(field, name) {
                self.take(field, Word::text(name).map(|name| Line::of(stage).and("del-header").with(name)));
            }
        }
    }

    fn may_edit(&mut self, field: &'static str, name: &str) -> bool {
        let may = check::is_simple_token(name) && !check::is_framing(name);
        if !may {
            self.refuse(field, format!("{name:?} is not the name of a header that can be changed"));
        }
        may
    }
}

fn destination(log: &AccessLog) -> Result<Line, Refused> {
    const FACILITIES: [&str; 8] = ["local0", "local1", "local2", "local3", "local4", "local5", "local6", "local7"];
    let bytes = Word::number(log.max_length.clamp(80, 65_535));
    Ok(match log.destination {
        LogDestination::Output => Line::of("log stdout len").with(bytes).and("format raw local0 info"),
        LogDestination::Syslog { address, facility } => {
            let address = if address.is_ipv6() { format!("ipv6@{}:{}", address.ip(), address.port()) } else { address.to_string() };
            let line = Line::of("log").with(Word::text(&address)?).and("len").with(bytes).and("format rfc5424");
            line.and(FACILITIES[usize::from(facility) % FACILITIES.len()]).and("info")
        }
    })
}

fn unique_id(name: &str) -> Result<Line, Refused> {
    let present = Expr::fetch("req.hdr", name)?;
    let line = Line::of("http-request set-header").with(Word::text(name)?).with(Word::value(&Expr::of("uuid")));
    Ok(line.and("unless {").with(Word::expr(&present)).and("-m found }"))
}

fn strict_transport(hsts: Hsts) -> Result<Line, Refused> {
    let sub_domains = if hsts.include_sub_domains { "; includeSubDomains" } else { "" };
    let preload = if hsts.preload { "; preload" } else { "" };
    let value = format!("max-age={}{sub_domains}{preload}", hsts.max_age);
    let line = Line::of("http-after-response set-header Strict-Transport-Security").with(Word::text(&value)?);
    Ok(line.and("unless { res.hdr(Strict-Transport-Security) -m found }"))
}
