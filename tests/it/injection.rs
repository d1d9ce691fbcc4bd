//! No text of a tenant adds or alters a directive.
//!
//! Each case puts a hostile text into one field and compares what our own reader of the configuration
//! finds with what it finds for harmless texts. `PROPTEST_CASES` sets the number of cases.

use crate::hostile::PIECES;
use crate::models::*;
use crate::running::*;
use crate::seeds::cases;
use crate::support::haproxies;
use haproxy_fleet::haproxy::bundle::{Change, Content};
use haproxy_fleet::haproxy::config::parse::parse;
use haproxy_fleet::haproxy::render::Renderer;
use haproxy_fleet::haproxy::version::Capabilities;
use haproxy_fleet::model::*;
use haproxy_fleet::report::{Kind, ObjectRef};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What stands for a harmless text: comparisons look past it.
const HARMLESS: &str = "bnign";

/// Number of fields that a text can stand in.
const FIELDS: usize = 36;

/// A policy, host and routes with `text` in the field of this number.
fn place(field: usize, text: &str) -> (Policy, BackendId, HostMatch, Vec<Route>) {
    let at = |number: usize, usual: &str| -> Box<str> { if number == field { text.into() } else { usual.into() } };
    let path = |number: usize| -> Box<str> { if number == field { format!("/{text}").into() } else { "/p".into() } };
    let only = |number: usize| field == number;
    let mut policy = Policy::default();
    if only(0) || only(1) || only(2) {
        policy.request_headers.set = vec![(at(0, "X-A"), at(1, "v"))];
        policy.response_headers.add = vec![("X-B".into(), at(2, "v"))];
    }
    policy.request_headers.remove.extend(only(3).then(|| at(3, "X-C")));
    policy.balance = match field {
        4 => Some(Balance::Header { name: at(4, "x"), domain_only: false }),
        5 => Some(Balance::UrlParam { name: at(5, "x"), check_post: None }),
        6 => Some(Balance::RdpCookie(Some(at(6, "x")))),
        _ => None,
    };
    if (7..=10).contains(&field) {
        policy.cookie = Some(Cookie {
            name: at(7, "C"),
            mode: CookieMode::Insert,
            dynamic: true,
            indirect: false,
            nocache: false,
            postonly: false,
            preserve: false,
            httponly: false,
            secure: false,
            maxidle: None,
            maxlife: None,
            domains: vec![at(8, "a.test")],
            attributes: vec![at(9, "SameSite=Lax")],
        });
        policy.dynamic_cookie_key = Some(at(10, "key"));
    }
    if only(11) || only(12) {
        policy.forwardfor =
            Some(ForwardFor { enabled: true, header: Some(at(11, "X-F")), except: Some(at(12, "10.0.0.0/8")), ifnone: false });
    }
    if (13..=17).contains(&field) {
        let pattern = HttpCheckPattern::String(at(17, "ok"));
        policy.http_check = Some(HttpCheck {
            method: Some(at(13, "GET")),
            uri: Some(path(14)),
            version: Some(at(15, "HTTP/1.1")),
            host: Some(at(16, "h")),
            expect: Some(HttpCheckExpect { negate: false, pattern }),
        });
    }
    match field {
        18 => policy.rewrite = Some(PathRewrite::Full(path(18))),
        19 => policy.rewrite = Some(PathRewrite::Prefix { matched: path(19), replacement: path(19) }),
        20 => policy.rewrite_host = Some(at(20, "h.test")),
        21 => policy.redirect = Some(Redirect { code: 301, to: RedirectTo::Location(at(21, "/x")) }),
        22 => {
            let to = RedirectTo::Parts { scheme: Some(at(22, "https")), host: Some(at(22, "h")), port: None, path: None };
            policy.redirect = Some(Redirect { code: 301, to });
        }
        23 => {
            let list = || vec![at(23, "x")];
            let (allow_origins, allow_methods, allow_headers, expose_headers) = (list(), list(), list(), list());
            policy.cors =
                Some(Cors { allow_origins, allow_methods, allow_headers, expose_headers, allow_credentials: true, max_age: None });
        }
        24 => policy.server = ServerOptions { ssl: Some(true), sni: Some(Sni::Name(at(24, "h"))), ..ServerOptions::default() },
        25 => policy.server = ServerOptions { ssl: Some(true), alpn: Some(vec![at(25, "h2")]), ..ServerOptions::default() },
        26 => policy.server = ServerOptions { ssl: Some(true), ca: Some(CaId(text.into())), ..ServerOptions::default() },
        _ => {}
    }
    let owner = if only(27) { Owner::Rule { name: text.into(), path: text.into() } } else { Owner::Shared };
    let id = BackendId { namespace: "shop".into(), service: (*at(28, "web")).into(), port: 80, owner };
    let conditions = match field {
        29 => Conditions { method: Some(at(29, "GET")), ..Conditions::default() },
        30 => Conditions { headers: vec![(at(30, "x"), ValueMatch::Present)], ..Conditions::default() },
        31 => Conditions { headers: vec![("x".into(), ValueMatch::Exact(at(31, "v")))], ..Conditions::default() },
        32 => Conditions { query: vec![(at(32, "q"), ValueMatch::Exact(at(32, "v")))], ..Conditions::default() },
        _ => Conditions::default(),
    };
    let routes = vec![
        Route { conditions, ..route(PathMatch::Prefix(path(33)), Target::Backend(id.clone())) },
        Route { https_redirect: Some(308), ..route(PathMatch::Exact(path(34)), Target::Backend(id.clone())) },
    ];
    let host = HostMatch::Exact(at(35, "a.test"));
    (policy, id, host, routes)
}

/// A renderer that each case is put into and taken out of again: a case costs what it changes.
struct Bench {
    renderer: Renderer,
    model: Model,
}

impl Bench {
    fn new(version: &str) -> Self {
        let fleet = FleetId { namespace: "infra".into(), name: "edge".into() };
        let mut bench = Self { renderer: Renderer::new(fleet, Capabilities::of(version.parse().unwrap())), model: empty() };
        bench.renderer.update(&bench.model, &Touched::all(&bench.model));
        bench
    }

    fn put(&mut self, field: usize, text: &str) -> Vec<Change> {
        let (policy, id, matched, routes) = place(field, text);
        let endpoints = endpoints(&[std::net::SocketAddr::from(([10, 0, 0, 1], 80))]);
        let sources = Arc::new([ObjectRef::new(Kind::Ingress, "shop", "web")]);
        let backend = Backend { kind: BackendKind::Endpoints, mode: Mode::Http, policy: Arc::new(policy), endpoints, zones: None, sources };
        let touched = Touched { backends: [id.clone()].into(), hosts: [("t".into(), matched.clone())].into(), ..Touched::default() };
        self.model.backends.insert(id.clone(), backend);
        host(&mut self.model, matched.clone(), routes);
        let changes = self.renderer.update(&self.model, &touched);
        self.model.backends.remove(&id);
        self.model.tables.get_mut("t").unwrap().hosts.remove(&matched);
        self.renderer.update(&self.model, &touched);
        changes
    }
}

/// The directives in `changes`, names that depend on texts made the same.
fn directives(changes: &[Change]) -> Result<BTreeSet<Vec<String>>, String> {
    let mut out = BTreeSet::new();
    for content in changes.iter().filter_map(|change| change.after.as_ref()).map(|resource| &resource.content) {
        let text: &str = match content {
            Content::Section(text) => text,
            Content::Backend(head) => &head.text,
            Content::Servers(servers) => {
                for server in servers.iter() {
                    let good = |b: u8| b.is_ascii_alphanumeric() || b"_.:/@,()- ".contains(&b);
                    if !server.keywords.bytes().all(good) {
                        return Err(format!("keywords {:?}", server.keywords));
                    }
                    let words = format!("server {}", server.keywords);
                    out.insert(words.split(' ').map(normal).collect());
                }
                continue;
            }
            Content::MapEntries(entries) => {
                for entry in entries {
                    let bad = |text: &str| text.is_empty() || text.bytes().any(|b| b < 0x20 || b == 0x7f);
                    let value = &*entry.value;
                    if bad(&entry.key)
                        || entry.key.contains(' ')
                        || entry.key.starts_with('#')
                        || bad(value)
                        || value.trim_matches([' ', '\t']) != value
                    {
                        return Err(format!("entry {entry:?}"));
                    }
                }
                continue;
            }
            _ => continue,
        };
        for section in parse(text).map_err(|error| format!("{error}: {text:?}"))? {
            for line in std::iter::once(section.head).chain(section.directives) {
                out.insert(line.iter().map(|word| normal(word)).collect());
            }
        }
    }
    Ok(out)
}

/// `word` without the hashes in our names, and without the names of backends.
fn normal(word: &str) -> String {
    if word.starts_with("shop_") {
        return "BACKEND".to_owned();
    }
    let hex = |text: &str| text.len() >= 10 && text.bytes().all(|b| b.is_ascii_hexdigit());
    if word.len() == 11 && word.is_ascii() && hex(&word[1..]) {
        return "SHAPE".to_owned();
    }
    match word.split_once('~') {
        Some((before, rest)) if rest.len() >= 12 && rest.is_char_boundary(12) && hex(&rest[..12]) => format!("{before}~{}", &rest[12..]),
        _ => word.to_owned(),
    }
}

/// Whether `line` is one of `known`, where a word with a harmless text stands for any word.
fn is_known(line: &[String], known: &BTreeSet<Vec<String>>) -> bool {
    known.contains(line)
        || known
            .iter()
            .any(|other| other.len() == line.len() && other.iter().zip(line).all(|(other, word)| other == word || covers(other, word)))
}

/// Whether `word` is `pattern` with other texts for the harmless ones.
fn covers(pattern: &str, word: &str) -> bool {
    let Some((before, rest)) = pattern.split_once(HARMLESS) else { return false };
    let after = rest.rsplit(HARMLESS).next().unwrap_or(rest);
    word.len() >= before.len() + after.len() && word.starts_with(before) && word.ends_with(after)
}

/// Directives that a field may lead to: with a harmless text, and where texts of some form are left out.
fn known(bench: &mut Bench) -> Vec<BTreeSet<Vec<String>>> {
    let texts = [
        HARMLESS,
        "bnign.bnign",
        "/bnign",
        "*bnign",
        "bnign*",
        "bnign*bnign",
        "/bnign/",
        "",
        "\n",
        "a b",
        "a#",
        "*",
        "HTTP/1.0",
        "https",
        "http",
        "none",
        ".bnign.bnign",
        "}",
        ";",
        ",",
    ];
    (0..FIELDS).map(|field| texts.iter().flat_map(|text| directives(&bench.put(field, text)).unwrap()).collect()).collect()
}

#[test]
fn no_text_adds_or_alters_a_directive() {
    // In two threads, each with half of the fields and of the cases.
    std::thread::scope(|scope| {
        let halves: Vec<_> = [0, 1].into_iter().map(|half| scope.spawn(move || prove(half))).collect();
        for half in halves {
            if let Err(failure) = half.join().unwrap() {
                panic!("{failure}");
            }
        }
    });
}

fn prove(half: usize) -> Result<(), String> {
    let mut bench = Bench::new("3.4");
    let known = known(&mut bench);
    let config = Config { cases: cases() / 2, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new(config);
    let strategy = ((0..FIELDS / 2).prop_map(move |index| index * 2 + half), prop::collection::vec(0..PIECES.len(), 0..6));
    let bench = std::cell::RefCell::new(bench);
    let result = runner.run(&strategy, |(field, pieces)| {
        let text: String = pieces.iter().map(|piece| PIECES[*piece]).collect();
        let changes = bench.borrow_mut().put(field, &text);
        let found = directives(&changes).map_err(|error| TestCaseError::fail(format!("field {field} {text:?}: {error}")))?;
        for line in &found {
            prop_assert!(is_known(line, &known[field]), "field {field} {text:?}: {line:?}");
        }
        Ok(())
    });
    result.map_err(|error| error.to_string())
}

#[test]
fn haproxy_accepts_a_sample_of_hostile_texts() {
    for (version, haproxy) in haproxies() {
        let mut runner = TestRunner::deterministic();
        let strategy = prop::collection::vec(prop::collection::vec(0..PIECES.len(), 0..6), FIELDS * 12);
        let texts = strategy.new_tree(&mut runner).unwrap().current();
        let mut model = empty();
        for (index, pieces) in texts.iter().enumerate() {
            let text: String = pieces.iter().map(|piece| PIECES[*piece]).collect();
            // Files of CA bundles come with the model that names them.
            let field = index % FIELDS;
            if field == 26 {
                continue;
            }
            let (policy, mut id, matched, mut routes) = place(field, &text);
            id.namespace = format!("n{index}").into();
            let sources = Arc::new([source()]);
            let endpoints = endpoints(&[std::net::SocketAddr::from(([10, 0, 0, 1], 80))]);
            let backend =
                Backend { kind: BackendKind::Endpoints, mode: Mode::Http, policy: Arc::new(policy), endpoints, zones: None, sources };
            model.backends.insert(id.clone(), backend);
            for route in &mut routes {
                route.target = Target::Backend(id.clone());
            }
            let matched = if field == 35 { matched } else { name(&format!("h{index}.test")) };
            host(&mut model, matched, routes);
        }
        let fleet = FleetId { namespace: "infra".into(), name: "edge".into() };
        let mut renderer = Renderer::new(fleet, Capabilities::of(*version));
        renderer.update(&model, &Touched::all(&model));
        let directory = tempfile::tempdir().unwrap();
        let pod = pod(&[("http", free())], free(), &directory.path().join("s"));
        write_bundle(renderer.bundle(), directory.path(), &pod);
        assert_accepted(haproxy, directory.path(), "hostile texts");
    }
}
