//! Parts of a policy that are the same in HTTP and TCP mode, and its health checks.

use super::{Builder, ValueMap, check};
use crate::haproxy::config::{Expr, Line, Refused, Word};
use crate::model::{Balance, HashFunction, HashType, HttpCheck, HttpCheckExpect, HttpCheckPattern, Millis, Mode};
use crate::report::codes;

/// HAProxy's largest time-out: what 0 (never) becomes.
const FOREVER: u32 = 2_147_483_647;

/// Time-outs where the policy says nothing, in milliseconds.
const CONNECT: u32 = 2_000;
const SERVER: u32 = 60_000;
const TUNNEL: u32 = 3_600_000;
const QUEUE: u32 = 30_000;

impl Builder<'_> {
    /// Mode, balance, time-outs, retries.
    pub(super) fn common(&mut self) {
        self.lines.push(Line::of(if self.mode == Mode::Http { "mode http" } else { "mode tcp" }));
        self.balance();
        let rules = self.mode == Mode::Http;
        let policy = self.policy;
        let late = rules && self.capabilities.set_timeout_connect;
        self.timeout("connect_timeout", "connect", policy.connect_timeout, CONNECT, late.then_some(ValueMap::ConnectTimeout));
        self.timeout("queue_timeout", "queue", policy.queue_timeout, QUEUE, late.then_some(ValueMap::QueueTimeout));
        self.timeout("server_timeout", "server", policy.server_timeout, SERVER, rules.then_some(ValueMap::ServerTimeout));
        self.timeout("tunnel_timeout", "tunnel", policy.tunnel_timeout, TUNNEL, rules.then_some(ValueMap::TunnelTimeout));
        if let Some(Millis(check)) = policy.check_timeout {
            self.lines.push(Line::of("timeout check").with(Word::millis(check.clamp(1, FOREVER))));
        }
        self.lines.push(Line::of("retries").with(Word::number(policy.retries.unwrap_or(3).min(100))));
        let line = match policy.redispatch {
            Some(redispatch) if !redispatch.enabled => Line::of("no option redispatch"),
            // An interval of 0 is what HAProxy calls off.
            Some(redispatch) => match redispatch.interval.unwrap_or(1) {
                0 => Line::of("no option redispatch"),
                interval => Line::of("option redispatch").with(Word::number(interval)),
            },
            None => Line::of("option redispatch 1"),
        };
        self.lines.push(line);
        if let Some(fullconn) = policy.fullconn {
            self.lines.push(Line::of("fullconn").with(Word::number(fullconn.clamp(1, 1_000_000_000))));
        }
        match policy.abortonclose {
            Some(true) => self.lines.push(Line::of("option abortonclose")),
            Some(false) => self.lines.push(Line::of("no option abortonclose")),
            None => {}
        }
        if !policy.mirror.is_empty() {
            self.refuse(
                "mirror",
                codes::UNSUPPORTED,
                "requests cannot be mirrored",
                "remove the mirror filter: the requests are served without a copy",
            );
        }
    }

    /// A time-out as a value where `map` can hold it, else as a directive.
    fn timeout(&mut self, field: &'static str, name: &'static str, wanted: Option<Millis>, default: u32, map: Option<ValueMap>) {
        let wanted = wanted.map(|Millis(millis)| if millis == 0 { FOREVER } else { millis.min(FOREVER) });
        let Some((map, millis)) = map.zip(wanted) else {
            self.lines.push(Line::of("timeout").and(name).with(Word::millis(wanted.unwrap_or(default))));
            return;
        };
        self.lines.push(Line::of("timeout").and(name).with(Word::millis(default)));
        let rule = lookup_or(map, "map_str_int", &default.to_string());
        self.take(field, rule.map(|expr| vec![Line::of("http-request set-timeout").and(name).with(Word::expr(&expr))]));
        self.value(field, map, "", &millis.to_string());
    }

    fn balance(&mut self) {
        let policy = self.policy;
        let Some(balance) = &policy.balance else {
            self.lines.push(Line::of("balance roundrobin"));
            return;
        };
        let mut line = Line::of("balance");
        let mut hash = true;
        line = match balance {
            Balance::RoundRobin => line.and("roundrobin"),
            Balance::LeastConn => line.and("leastconn"),
            Balance::First => line.and("first"),
            Balance::Random(None) => line.and("random"),
            Balance::Random(Some(draws)) => match Expr::fetch("random", &draws.clamp(&1, &64).to_string()) {
                Ok(expr) => line.with(Word::expr(&expr)),
                Err(_) => line.and("random"),
            },
            Balance::Source => line.and("source"),
            _ => {
                if let Some(line) = self.http_balance(balance, line.clone()) {
                    line
                } else {
                    hash = false;
                    line.and("roundrobin")
                }
            }
        };
        self.lines.push(line);
        hash &= !matches!(balance, Balance::RoundRobin | Balance::LeastConn | Balance::First | Balance::Random(_));
        if hash {
            self.hash_type(policy.hash_type.as_ref());
        }
    }

    /// Algorithms that look into the request; `None` where that cannot be had.
    fn http_balance(&mut self, balance: &Balance, line: Line) -> Option<Line> {
        let tcp = self.mode == Mode::Tcp && !matches!(balance, Balance::RdpCookie(_));
        let name = match balance {
            Balance::UrlParam { name, .. } | Balance::Header { name, .. } | Balance::RdpCookie(Some(name)) => Some(name),
            _ => None,
        };
        if tcp || name.is_some_and(|name| !check::is_simple_token(name)) {
            let why = if tcp { "needs HTTP mode" } else { "needs a name of letters, digits, dots, dashes and underscores" };
            self.refuse(
                "balance",
                codes::INVALID_VALUE,
                format!("the algorithm {why}; servers are chosen in turn"),
                "choose another algorithm",
            );
            return None;
        }
        let number = |line: Line, word: &'static str, number: Option<u32>| match number {
            Some(number) => line.and(word).with(Word::number(number.clamp(1, 65_535))),
            None => line,
        };
        Some(match balance {
            Balance::Uri { depth, len, whole, path_only } => {
                let mut line = number(number(line.and("uri"), "len", *len), "depth", *depth);
                if *whole {
                    line = line.and("whole");
                }
                if *path_only {
                    line = line.and("path-only");
                }
                line
            }
            Balance::UrlParam { name, check_post } => number(line.and("url_param").with(Word::name(name).ok()?), "check_post", *check_post),
            Balance::Header { name, domain_only } => {
                let line = line.with(Word::expr(&Expr::fetch("hdr", name).ok()?));
                if *domain_only { line.and("use_domain_only") } else { line }
            }
            Balance::RdpCookie(Some(name)) => line.with(Word::expr(&Expr::fetch("rdp-cookie", name).ok()?)),
            _ => line.and("rdp-cookie"),
        })
    }

    /// Always consistent: a map-based hash forbids servers at run time.
    fn hash_type(&mut self, wanted: Option<&HashType>) {
        let mut line = Line::of("hash-type consistent");
        if let Some(hash) = wanted {
            let function = match hash.function {
                Some(HashFunction::Sdbm) => Some("sdbm"),
                Some(HashFunction::Djb2) => Some("djb2"),
                Some(HashFunction::Wt6) => Some("wt6"),
                Some(HashFunction::Crc32) => Some("crc32"),
                Some(HashFunction::None) => Some("none"),
                // The modifier needs a function before it: HAProxy's default.
                None if hash.avalanche => Some("sdbm"),
                None => None,
            };
            if let Some(function) = function {
                line = line.and(function);
            }
            if hash.avalanche {
                line = line.and("avalanche");
            }
        }
        self.lines.push(line);
        if let Some(factor) = wanted.and_then(|hash| hash.balance_factor).filter(|factor| *factor > 0) {
            self.lines.push(Line::of("hash-balance-factor").with(Word::number(factor.clamp(101, 65_535))));
        }
    }

    /// `option httpchk` with its rules.
    pub(super) fn http_check(&mut self) {
        let Some(wanted) = &self.policy.http_check else { return };
        self.lines.push(Line::of("option httpchk"));
        let send = self.http_check_send(wanted);
        self.take("http_check", send.map(|line| vec![line]));
        if let Some(expect) = &wanted.expect {
            let line = http_check_expect(expect);
            match line {
                Ok(Some(line)) => self.lines.push(line),
                Ok(None) => self.refuse(
                    "http_check.expect",
                    codes::INVALID_VALUE,
                    "the status is not a list of codes and ranges",
                    "write it like 200-299,401",
                ),
                Err(refused) => {
                    self.take("http_check.expect", Err(refused));
                }
            }
        }
    }

    fn http_check_send(&mut self, wanted: &HttpCheck) -> Result<Line, Refused> {
        let mut line = Line::of("http-check send");
        match &wanted.method {
            Some(method) if check::is_simple_token(method) => line = line.and("meth").with(Word::text(method)?),
            Some(_) => self.refuse("http_check.method", codes::INVALID_VALUE, "the method is not a token", "use GET, HEAD or OPTIONS"),
            None => {}
        }
        match &wanted.uri {
            Some(uri) if check::is_unbroken(uri) && uri.starts_with('/') => {
                line = line.and("uri-lf").with(Word::value(&lookup(ValueMap::CheckUri)?));
                self.value("http_check.uri", ValueMap::CheckUri, "", uri);
            }
            Some(_) => self.refuse("http_check.uri", codes::INVALID_VALUE, "the URI is not a path", "start it with / and leave out blanks"),
            None => {}
        }
        let number = wanted.version.as_ref().map(|version| version.strip_prefix("HTTP/").unwrap_or(version));
        match number {
            Some("1.0" | "1.1") | None => {}
            Some(_) => {
                self.refuse("http_check.version", codes::INVALID_VALUE, "the version is not one of checks", "use HTTP/1.0 or HTTP/1.1");
            }
        }
        line = if number == Some("1.0") { line.and("ver HTTP/1.0") } else { line.and("ver HTTP/1.1") };
        if let Some(host) = &wanted.host {
            if check::is_unbroken(host) {
                line = line.and("hdr Host").with(Word::value(&lookup(ValueMap::CheckHost)?));
                self.value("http_check.host", ValueMap::CheckHost, "", host);
                return Ok(line);
            }
            self.refuse("http_check.host", codes::INVALID_VALUE, "the host holds blanks", "write a host name");
        }
        // Servers may refuse HTTP/1.1 without a Host.
        Ok(if number == Some("1.0") { line } else { line.and("hdr Host haproxy") })
    }
}

fn http_check_expect(expect: &HttpCheckExpect) -> Result<Option<Line>, Refused> {
    let mut line = Line::of("http-check expect");
    if expect.negate {
        line = line.and("!");
    }
    Ok(Some(match &expect.pattern {
        HttpCheckPattern::Status(codes) => {
            let code = |text: &str| text.len() == 3 && text.bytes().all(|b| b.is_ascii_digit());
            if !codes.split(',').all(|range| range.split_once('-').map_or_else(|| code(range), |(a, b)| code(a) && code(b) && a <= b)) {
                return Ok(None);
            }
            line.and("status").with(Word::text(codes)?)
        }
        HttpCheckPattern::StatusRegex(regex) => line.and("rstatus").with(Word::text(regex)?),
        HttpCheckPattern::String(text) => line.and("string").with(Word::text(text)?),
        HttpCheckPattern::StringRegex(regex) => line.and("rstring").with(Word::text(regex)?),
    }))
}

/// The text that `map` holds for the backend.
pub(super) fn lookup(map: ValueMap) -> Result<Expr, Refused> {
    Expr::of("be_name").then("map_str", &[map.path()])
}

/// The same by `converter`, with a default.
pub(super) fn lookup_or(map: ValueMap, converter: &'static str, default: &str) -> Result<Expr, Refused> {
    Expr::of("be_name").then(converter, &[map.path(), default])
}
