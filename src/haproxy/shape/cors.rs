//! Cross-origin resource sharing. Its rules hold the tenant's words, so such a backend is private.

use super::{Builder, check};
use crate::haproxy::config::{Expr, Fmt, Line, Refused, Word};
use crate::model::Cors;
use crate::report::codes;

impl Builder<'_> {
    /// A preflight is answered here; other answers get the headers of the origin that asked.
    pub(super) fn cors(&mut self) {
        let Some(cors) = &self.policy.cors else { return };
        let lists = Lists {
            origins: self.usable(&cors.allow_origins, "cors.allow_origins"),
            methods: self.usable(&cors.allow_methods, "cors.allow_methods"),
            headers: self.usable(&cors.allow_headers, "cors.allow_headers"),
            expose: self.usable(&cors.expose_headers, "cors.expose_headers"),
        };
        self.essential = true;
        match rules(cors, &lists) {
            Ok(lines) => self.own.extend(lines),
            Err(refused) => self.refuse("cors", codes::INVALID_VALUE, format!("a value {refused}"), "write a value without it"),
        }
    }

    fn usable<'b>(&mut self, list: &'b [Box<str>], field: &'static str) -> Vec<&'b str> {
        let (good, bad): (Vec<&str>, Vec<&str>) =
            list.iter().map(|text| &**text).partition(|text| check::is_unbroken(text) && !text.contains(','));
        if !bad.is_empty() {
            self.refuse(field, codes::INVALID_VALUE, "an entry holds blanks, commas or control bytes", "write one name an entry");
        }
        good
    }
}

struct Lists<'a> {
    origins: Vec<&'a str>,
    methods: Vec<&'a str>,
    headers: Vec<&'a str>,
    expose: Vec<&'a str>,
}

const ALLOWED: &str = "if { var(txn.cors) -m found }";

fn rules(cors: &Cors, lists: &Lists<'_>) -> Result<Vec<Line>, Refused> {
    let (origin, allowed) = (Expr::of("req.hdr(origin)"), Expr::of("var(txn.cors)"));
    let allow = || Line::of("http-request set-var(txn.cors) req.hdr(origin) if");
    let mut lines = Vec::new();
    for wanted in &lists.origins {
        lines.push(match wanted.split_once('*') {
            Some(("", "")) => allow().and("{ req.hdr(origin) -m found }"),
            Some((before, after)) => {
                let line = if before.is_empty() { allow() } else { allow().test(&origin, "beg", before)? };
                if after.is_empty() { line } else { line.test(&origin, "end", after)? }
            }
            None => allow().test(&origin, "str", wanted)?,
        });
    }
    let any = lists.origins.contains(&"*") && !cors.allow_credentials;
    let who = if any { Word::of("*") } else { Word::value(&allowed) };

    let mut preflight = Line::of("http-request return status 204 hdr Access-Control-Allow-Origin").with(who.clone());
    let asked = [
        ("Access-Control-Allow-Methods", &lists.methods, Expr::of("req.hdr(access-control-request-method)")),
        ("Access-Control-Allow-Headers", &lists.headers, Expr::of("req.hdr(access-control-request-headers)")),
    ];
    for (header, list, echo) in asked {
        if list.contains(&"*") {
            preflight = preflight.and("hdr").and(header).with(Word::value(&echo));
        } else if !list.is_empty() {
            preflight = preflight.and("hdr").and(header).with(Word::fmt(&[Fmt::Text(&list.join(", "))])?);
        }
    }
    if let Some(age) = cors.max_age {
        preflight = preflight.and("hdr Access-Control-Max-Age").with(Word::number(age));
    }
    let asks = "{ method OPTIONS } { req.hdr(access-control-request-method) -m found }";
    lines.push(preflight.and(ALLOWED).and(asks));

    let answer = |name: &'static str, value: Word| Line::of("http-after-response set-header").and(name).with(value).and(ALLOWED);
    lines.push(answer("Access-Control-Allow-Origin", who));
    if cors.allow_credentials {
        lines.push(answer("Access-Control-Allow-Credentials", Word::of("true")));
    }
    if !lists.expose.is_empty() {
        lines.push(answer("Access-Control-Expose-Headers", Word::fmt(&[Fmt::Text(&lists.expose.join(", "))])?));
    }
    if !any {
        lines.push(Line::of("http-after-response add-header Vary Origin"));
    }
    Ok(lines)
}
