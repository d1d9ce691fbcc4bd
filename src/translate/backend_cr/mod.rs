//! The `Backend` kind: its fields as a policy. Values are checked here; fields that are known but not
//! supported are refused by name.

mod checks;
mod server;

use super::lookups::Key;
use super::names;
use crate::api::backend as api;
use crate::model::{
    Balance, CaBundle, CaId, Cookie, CookieMode, ForwardFor, HashFunction, HashType, HttpConnectionMode, Millis, Policy, Redispatch,
    RetryOn,
};
use crate::report::{Code, Diagnostic, Kind, ObjectRef, codes};
use crate::world::{Reference, World};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What a `Backend` says.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct BackendPolicy {
    /// Whether there is one.
    pub exists: bool,
    pub policy: Arc<Policy>,
    /// The CA certificates that it names, if they can be used.
    pub authorities: Option<(CaId, CaBundle)>,
    pub diagnostics: Vec<Diagnostic>,
    pub references: BTreeSet<Reference>,
}

/// The diagnostic for a reference to a `Backend` that is not there.
pub(super) fn missing(object: &ObjectRef, backend: &ObjectRef) -> Diagnostic {
    Diagnostic::error(
        object,
        super::annotations::field("haproxy-fleet.dev/backend"),
        codes::NOT_FOUND,
        format!("there is no {backend}; the wider scopes hold"),
        "create the Backend in the same namespace, or correct the name",
    )
}

/// What a native key and a field of a `Backend` both say.
struct Overlap {
    key: &'static str,
    field: &'static str,
    by_key: Millis,
    by_field: Millis,
}

/// Everything that native keys and a `Backend` both say: the native keys win.
fn overlaps(native: &Policy, backend: &Policy) -> impl Iterator<Item = Overlap> {
    let both = [
        ("timeout-server", "server_timeout", native.server_timeout, backend.server_timeout),
        ("timeout-connect", "connect_timeout", native.connect_timeout, backend.connect_timeout),
    ];
    both.into_iter().filter_map(|(key, field, by_key, by_field)| Some(Overlap { key, field, by_key: by_key?, by_field: by_field? }))
}

/// Top-level fields of the `Backend` named `backend` that native keys of `user` override, an Ingress or a Service.
pub(super) fn overridden(world: &World, user: &ObjectRef, backend: &Key) -> Vec<&'static str> {
    let (namespace, name) = (&*user.namespace, &*user.name);
    let meta = match user.kind {
        Kind::Ingress => world.ingress(namespace, name).map(|ingress| &ingress.meta),
        Kind::Service => world.service(namespace, name).map(|service| &service.meta),
        _ => None,
    };
    let Some(meta) = meta else { return Vec::new() };
    // whoever translates the object tells what is wrong with it
    let native = super::annotations::read(user, meta.annotations.iter(), &mut Vec::new());
    overlaps(&native.policy, &read(world, backend).policy).map(|overlap| overlap.field).collect()
}

/// Tells of fields that a native key and the `Backend` of one object both set: the native key wins.
pub(super) fn tell_overlap(
    object: &ObjectRef,
    native: &Policy,
    backend: &Policy,
    reference: &ObjectRef,
    diagnostics: &mut Vec<Diagnostic>,
) {
    for Overlap { key, field, by_key: a, by_field: b } in overlaps(native, backend) {
        if a != b {
            diagnostics.push(Diagnostic::warning(
                object,
                super::annotations::field(&format!("haproxy-fleet.dev/{key}")),
                codes::CONFLICT,
                format!("{key} says {} ms, {field} of {reference} says {} ms; the annotation is used", a.0, b.0),
                "say it in one place",
            ));
        }
    }
}

/// Reads the `Backend` named `key`.
pub(super) fn read(world: &World, key: &Key) -> BackendPolicy {
    let Some(backend) = world.backend(&key.0, &key.1) else { return BackendPolicy::default() };
    let mut reader = Reader {
        object: ObjectRef::new(Kind::Backend, key.0.clone(), key.1.clone()),
        policy: Policy::default(),
        diagnostics: Vec::new(),
        references: BTreeSet::new(),
        authorities: None,
    };
    reader.read(world, &backend.spec);
    reader.unsupported(backend);
    reader.diagnostics.sort();
    BackendPolicy {
        exists: true,
        policy: Arc::new(reader.policy),
        authorities: reader.authorities,
        diagnostics: reader.diagnostics,
        references: reader.references,
    }
}

struct Reader {
    object: ObjectRef,
    policy: Policy,
    diagnostics: Vec<Diagnostic>,
    references: BTreeSet<Reference>,
    authorities: Option<(CaId, CaBundle)>,
}

const CORRECT: &str = "correct the value or remove the field";

impl Reader {
    fn error(&mut self, field: &str, code: Code, message: impl Into<String>, help: impl Into<String>) {
        self.diagnostics.push(Diagnostic::error(&self.object, format!("spec.{field}"), code, message, help));
    }

    fn invalid(&mut self, field: &str, message: impl Into<String>) {
        self.error(field, codes::INVALID_VALUE, message, CORRECT);
    }

    fn refused(&mut self, field: &str, message: impl Into<String>, help: &str) {
        self.error(field, codes::UNSUPPORTED, message, help);
    }

    /// `value` if `check` has nothing against it.
    fn text(&mut self, field: &str, value: Option<&str>, check: fn(&str) -> Result<(), String>) -> Option<Box<str>> {
        let value = value?;
        match check(value) {
            Ok(()) => Some(value.into()),
            Err(wrong) => {
                self.invalid(field, format!("the value {} {wrong}", names::quoted(value)));
                None
            }
        }
    }

    fn number(&mut self, field: &str, value: Option<i64>, min: u32, max: u32) -> Option<u32> {
        let value = value?;
        match u32::try_from(value) {
            Ok(number) if (min..=max).contains(&number) => Some(number),
            _ => {
                self.invalid(field, format!("{value} is not a number from {min} to {max}"));
                None
            }
        }
    }

    fn millis(&mut self, field: &str, value: Option<i64>) -> Option<Millis> {
        self.number(field, value, 1, 2_147_483_647).map(Millis)
    }

    fn read(&mut self, world: &World, spec: &api::BackendSpec) {
        self.policy.balance = spec.balance.as_ref().and_then(|balance| self.balance(balance));
        self.policy.hash_type = spec.hash_type.as_ref().and_then(|hash| self.hash_type(hash));
        self.policy.cookie = spec.cookie.as_ref().and_then(|cookie| self.cookie(cookie));
        self.policy.dynamic_cookie_key = self.text("dynamic_cookie_key", spec.dynamic_cookie_key.as_deref(), names::word);
        self.policy.connect_timeout = self.millis("connect_timeout", spec.connect_timeout);
        self.policy.server_timeout = self.millis("server_timeout", spec.server_timeout);
        self.policy.queue_timeout = self.millis("queue_timeout", spec.queue_timeout);
        self.policy.tunnel_timeout = self.millis("tunnel_timeout", spec.tunnel_timeout);
        self.policy.check_timeout = self.millis("check_timeout", spec.check_timeout);
        self.policy.retries = self.number("retries", spec.retries, 0, 100);
        self.policy.retry_on = spec.retry_on.as_deref().and_then(|words| self.retry_on(words));
        self.policy.redispatch = spec.redispatch.as_ref().map(|r| Redispatch {
            enabled: r.enabled.is_on(),
            interval: r.interval.and_then(|interval| {
                let valid = i32::try_from(interval).ok().filter(|n| (-100..=100).contains(n));
                if valid.is_none() {
                    self.invalid("redispatch.interval", format!("{interval} is not a number from -100 to 100"));
                }
                valid
            }),
        });
        self.policy.http_connection_mode = spec.http_connection_mode.map(|mode| match mode {
            api::HttpConnectionMode::Httpclose => HttpConnectionMode::Close,
            api::HttpConnectionMode::HttpServerClose => HttpConnectionMode::ServerClose,
            api::HttpConnectionMode::HttpKeepAlive => HttpConnectionMode::KeepAlive,
        });
        self.policy.forwardfor = spec.forwardfor.as_ref().map(|f| ForwardFor {
            enabled: f.enabled.is_on(),
            header: self.text("forwardfor.header", f.header.as_deref(), names::token),
            except: self.text("forwardfor.except", f.except.as_deref(), network),
            ifnone: f.ifnone.unwrap_or(false),
        });
        self.policy.fullconn = self.number("fullconn", spec.fullconn, 1, 2_147_483_647);
        self.policy.abortonclose = spec.abortonclose.map(api::Switch::is_on);
        self.checks(spec);
        if let Some(server) = &spec.default_server {
            self.server(world, server);
        }
    }

    fn balance(&mut self, balance: &api::Balance) -> Option<Balance> {
        use api::BalanceAlgorithm as Algorithm;
        let limit = 1_048_576;
        if balance.url_param_max_wait.is_some() {
            self.refused("balance.url_param_max_wait", "url_param_max_wait is not supported", "remove it; HAProxy no longer has it");
        }
        Some(match balance.algorithm {
            Algorithm::Roundrobin => Balance::RoundRobin,
            Algorithm::Leastconn => Balance::LeastConn,
            Algorithm::First => Balance::First,
            Algorithm::Source => Balance::Source,
            Algorithm::Random => Balance::Random(self.number("balance.random_draws", balance.random_draws, 1, 1000)),
            Algorithm::Uri => Balance::Uri {
                depth: self.number("balance.uri_depth", balance.uri_depth, 1, limit),
                len: self.number("balance.uri_len", balance.uri_len, 1, limit),
                whole: balance.uri_whole.unwrap_or(false),
                path_only: balance.uri_path_only.unwrap_or(false),
            },
            Algorithm::UrlParam => {
                let name = self.required("balance.url_param", balance.url_param.as_deref())?;
                Balance::UrlParam { name, check_post: self.number("balance.url_param_check_post", balance.url_param_check_post, 1, limit) }
            }
            Algorithm::Hdr => {
                let name = self.required("balance.hdr_name", balance.hdr_name.as_deref())?;
                Balance::Header { name, domain_only: balance.hdr_use_domain_only.unwrap_or(false) }
            }
            Algorithm::RdpCookie => {
                Balance::RdpCookie(self.text("balance.rdp_cookie_name", balance.rdp_cookie_name.as_deref(), names::token))
            }
            Algorithm::StaticRr => {
                let why = "static-rr is not supported: it keeps servers from being added and removed without a reload";
                self.refused("balance.algorithm", why, "use roundrobin");
                return None;
            }
            Algorithm::Hash => {
                self.refused("balance.algorithm", "hash with an expression is not supported", "use source, uri, url_param or hdr");
                return None;
            }
        })
    }

    fn required(&mut self, field: &str, value: Option<&str>) -> Option<Box<str>> {
        if value.is_none() {
            self.error(
                field,
                codes::INVALID_FIELD,
                "the algorithm needs this field, which is missing",
                "add it, or choose another algorithm",
            );
        }
        self.text(field, value, names::token)
    }

    fn hash_type(&mut self, hash: &api::HashType) -> Option<HashType> {
        if hash.method == Some(api::HashMethod::MapBased) {
            let why = "map-based is not supported: it keeps servers from being added and removed without a reload";
            self.refused("hash_type.method", why, "use consistent, which is always used here");
        }
        if hash.function.is_none() && hash.modifier.is_none() {
            return None;
        }
        let function = hash.function.map(|function| match function {
            api::HashFunction::Sdbm => HashFunction::Sdbm,
            api::HashFunction::Djb2 => HashFunction::Djb2,
            api::HashFunction::Wt6 => HashFunction::Wt6,
            api::HashFunction::Crc32 => HashFunction::Crc32,
            api::HashFunction::None => HashFunction::None,
        });
        Some(HashType { function, avalanche: hash.modifier.is_some(), balance_factor: None })
    }

    fn cookie(&mut self, cookie: &api::Cookie) -> Option<Cookie> {
        let name = self.text("cookie.name", Some(&cookie.name), names::token)?;
        let mode = match cookie.kind {
            Some(api::CookieType::Insert) => CookieMode::Insert,
            Some(api::CookieType::Rewrite) => CookieMode::Rewrite,
            Some(api::CookieType::Prefix) => CookieMode::Prefix,
            None => {
                self.refused("cookie.type", "a cookie that is only read is not supported", "set type to insert, rewrite or prefix");
                return None;
            }
        };
        let on = |value: Option<bool>| value.unwrap_or(false);
        let mut indirect = on(cookie.indirect);
        let mut preserve = on(cookie.preserve);
        if indirect && mode != CookieMode::Insert {
            self.invalid("cookie.indirect", "indirect needs type insert");
            indirect = false;
        }
        if preserve && mode != CookieMode::Insert {
            self.invalid("cookie.preserve", "preserve needs type insert");
            preserve = false;
        }
        let mut domains = Vec::new();
        for (n, domain) in cookie.domain.iter().enumerate() {
            match names::dns_name(domain.value.strip_prefix('.').unwrap_or(&domain.value)) {
                Ok(name) if name.contains('.') => domains.push(name.into()),
                Ok(_) => self.invalid(&format!("cookie.domain[{n}].value"), "the domain has no dot in it"),
                Err(wrong) => {
                    self.invalid(&format!("cookie.domain[{n}].value"), format!("the domain {} {wrong}", names::quoted(&domain.value)));
                }
            }
        }
        let mut attributes = Vec::new();
        for (n, attribute) in cookie.attr.iter().enumerate() {
            attributes.extend(self.text(&format!("cookie.attr[{n}].value"), Some(&attribute.value), cookie_attribute));
        }
        Some(Cookie {
            name,
            mode,
            dynamic: on(cookie.dynamic),
            indirect,
            nocache: on(cookie.nocache),
            postonly: on(cookie.postonly),
            preserve,
            httponly: on(cookie.httponly),
            secure: on(cookie.secure),
            maxidle: self.number("cookie.maxidle", cookie.maxidle, 1, 2_147_483_647),
            maxlife: self.number("cookie.maxlife", cookie.maxlife, 1, 2_147_483_647),
            domains,
            attributes,
        })
    }

    fn retry_on(&mut self, words: &str) -> Option<Vec<RetryOn>> {
        let mut all = Vec::new();
        for word in words.split_whitespace() {
            let known = match word {
                "none" => Some(RetryOn::None),
                "conn-failure" => Some(RetryOn::ConnFailure),
                "empty-response" => Some(RetryOn::EmptyResponse),
                "junk-response" => Some(RetryOn::JunkResponse),
                "response-timeout" => Some(RetryOn::ResponseTimeout),
                "0rtt-rejected" => Some(RetryOn::ZeroRttRejected),
                "all-retryable-errors" => Some(RetryOn::AllRetryableErrors),
                "401" | "403" | "404" | "408" | "421" | "425" | "429" | "500" | "501" | "502" | "503" | "504" => {
                    word.parse().ok().map(RetryOn::Status)
                }
                _ => None,
            };
            match known {
                Some(known) if !all.contains(&known) => all.push(known),
                Some(_) => {}
                None => self.invalid("retry_on", format!("{} is not something to retry on", names::quoted(word))),
            }
        }
        if all.len() > 1 && all.contains(&RetryOn::None) {
            self.invalid("retry_on", "none stands beside other words");
            all.retain(|word| *word != RetryOn::None);
        }
        (!all.is_empty()).then_some(all)
    }

    /// Every other field of HAProxy's model is refused by name.
    fn unsupported(&mut self, backend: &crate::api::Backend) {
        for (path, value) in &backend.unsupported {
            // The model asks for both; they never had an effect on a Backend.
            if &**path == "name" || (&**path == "mode" && value == "http") {
                continue;
            }
            let help = match &**path {
                "http_request_rule_list" => {
                    "remove it; headers, rewrites and redirects are annotations: haproxy-fleet.dev/request-header.NAME and others"
                }
                "http_response_rule_list" => "remove it; headers are annotations: haproxy-fleet.dev/response-header.NAME",
                "mode" => "remove it; Ingress is always HTTP",
                _ => "remove the field",
            };
            self.refused(path, format!("{path} is not supported and has no effect"), help);
        }
    }
}

/// An address or a network.
fn network(text: &str) -> Result<(), String> {
    let (address, length) = text.split_once('/').map_or((text, None), |(address, length)| (address, Some(length)));
    let address: std::net::IpAddr = address.parse().map_err(|_| "is neither an address nor a network".to_owned())?;
    let most = if address.is_ipv4() { 32 } else { 128 };
    match length.map(str::parse::<u8>) {
        None => Ok(()),
        Some(Ok(length)) if length <= most => Ok(()),
        Some(_) => Err("has no valid prefix length".to_owned()),
    }
}

fn cookie_attribute(text: &str) -> Result<(), String> {
    names::word(text)?;
    if text.contains(';') || !text.is_ascii() { Err("has a semicolon or a non-ASCII character in it".to_owned()) } else { Ok(()) }
}
