//! What is the same for every fleet: global settings, rule-free defaults, name servers.

use super::Renderer;
use super::hosts::entry;
use crate::haproxy::bundle::{Content, ResourceKey};
use crate::haproxy::config::{Line, Refused, Section, Word, write};
use crate::haproxy::maps;
use crate::haproxy::shape::ValueMap;
use crate::model::{HeaderEdits, Millis, Settings, TlsVersions};
use std::net::SocketAddr;
use std::sync::Arc;

impl Renderer {
    /// The global section, and the files that shapes name.
    pub(super) fn write_global(&mut self, settings: &Settings) {
        let mut sections = vec![global(settings, self.options.max_close_spread)];
        match resolvers(&self.options.resolvers) {
            Ok(section) => sections.push(section),
            // Numbers of addresses and ports: nothing that could be refused.
            Err(_) => sections.push(Section::new(Line::of("resolvers _dns"))),
        }
        sections.extend(defaults(settings));
        let text = write(&sections).unwrap_or_default();
        let sources: Arc<[_]> = Arc::new([self.fleet_object()]);
        self.put_entries(maps::POD, "pod", vec![entry(maps::CLOSING, maps::FALSE), entry(maps::DRAINED, maps::FALSE)], &sources);
        self.put(ResourceKey::Section("10-global".into()), Some((Content::Section(text.into()), sources)));
        for map in ValueMap::ALL {
            self.stand(ResourceKey::MapEntries { map: map.path().into(), owner: "".into() });
        }
    }

    /// Makes a file exist even while nothing is in it.
    pub(super) fn stand(&mut self, key: ResourceKey) {
        if self.standing.insert(key.clone()) {
            let content = match key {
                ResourceKey::CertificateList { .. } => Content::CertificateList(Vec::new()),
                _ => Content::MapEntries(Vec::new()),
            };
            self.put(key, Some((content, Arc::new([]))));
        }
    }
}

/// HAProxy's own `tune.bufsize` and `tune.maxrewrite`. On 3.2 the former has to hold payloads of the runtime API, too.
const BUFFER: usize = 16_384;
const REWRITING: usize = 1_024;

/// Bytes that settings may add to the headers of one message, in steps of a kilobyte. HAProxy answers 500 where a
/// header does not fit any more, and a buffer full of body has the space for rewriting left and no more.
fn added(settings: &Settings) -> usize {
    let size = |edits: &HeaderEdits| edits.set.iter().map(|(name, value)| name.len() + value.len() + 16).sum::<usize>();
    size(&settings.request_headers).max(size(&settings.response_headers)).div_ceil(1_024) * 1_024
}

/// A time as HAProxy is told it, in whole seconds and at least one.
fn seconds(time: Option<Millis>, otherwise: u32) -> Word {
    Word::seconds(time.map_or(otherwise, |Millis(millis)| millis.div_ceil(1000)).max(1))
}

fn global(settings: &Settings, max_close_spread: Millis) -> Section {
    let added = added(settings);
    let rewriting = REWRITING + added;
    // HAProxy does not keep more than half of a buffer for rewriting
    let base = settings.buffer_bytes.map_or(BUFFER, |bytes| usize::try_from(bytes).unwrap_or(BUFFER).max(BUFFER));
    let buffer = (base + added).max(2 * rewriting);
    let bytes = |bytes: usize| Word::number(i64::try_from(bytes).unwrap_or(i64::MAX));
    let mut section = Section::new(Line::of("global"));
    section
        .add("default-path config")
        // Life of old workers after a reload; connections that outlive it are cut.
        .push(Line::of("hard-stop-after").with(seconds(settings.hard_stop_after, 3600)));
    if let Some(Millis(spread)) = settings.close_spread.map(|spread| spread.min(max_close_spread)).filter(|spread| spread.0 > 0) {
        // Clients that a worker asks to leave do not connect anew all at once.
        section.push(Line::of("close-spread-time").with(Word::millis(spread)));
    }
    section.add("mworker-max-reloads 50").push(Line::of("tune.bufsize").with(bytes(buffer)));
    if added > 0 {
        section.push(Line::of("tune.maxrewrite").with(bytes(rewriting)));
    }
    section.add("ssl-load-extra-files none");
    section.lines.extend(tls(settings.tls));
    section.add("ssl-default-server-options ssl-min-ver TLSv1.2").add("tune.ssl.default-dh-param 2048");
    section
}

/// Mozilla's recommendations, version 5.7. The suites of TLS 1.3 are all good and all of OpenSSL's: they are left to it,
/// and tickets are not turned off, as their keys are shared and change.
fn tls(versions: TlsVersions) -> Vec<Line> {
    match versions {
        TlsVersions::Modern => vec![Line::of("ssl-default-bind-options prefer-client-ciphers ssl-min-ver TLSv1.3")],
        TlsVersions::Intermediate => vec![
            Line::of("ssl-default-bind-options prefer-client-ciphers ssl-min-ver TLSv1.2"),
            Line::of("ssl-default-bind-ciphers").and(INTERMEDIATE),
        ],
        TlsVersions::Old => {
            vec![Line::of("ssl-default-bind-options ssl-min-ver TLSv1.0"), Line::of("ssl-default-bind-ciphers").and(OLD)]
        }
    }
}

const INTERMEDIATE: &str = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:\
    ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305:DHE-RSA-AES128-GCM-SHA256:\
    DHE-RSA-AES256-GCM-SHA384:DHE-RSA-CHACHA20-POLY1305";

/// With the security level at which OpenSSL 3 still signs handshakes of TLS 1.0 and 1.1.
const OLD: &str = "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:\
    ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305:DHE-RSA-AES128-GCM-SHA256:\
    DHE-RSA-AES256-GCM-SHA384:DHE-RSA-CHACHA20-POLY1305:ECDHE-ECDSA-AES128-SHA256:ECDHE-RSA-AES128-SHA256:\
    ECDHE-ECDSA-AES128-SHA:ECDHE-RSA-AES128-SHA:ECDHE-ECDSA-AES256-SHA384:ECDHE-RSA-AES256-SHA384:ECDHE-ECDSA-AES256-SHA:\
    ECDHE-RSA-AES256-SHA:DHE-RSA-AES128-SHA256:DHE-RSA-AES256-SHA256:AES128-GCM-SHA256:AES256-GCM-SHA384:AES128-SHA256:\
    AES256-SHA256:AES128-SHA:AES256-SHA:DES-CBC3-SHA:@SECLEVEL=0";

/// A start never waits for a name server: names are only resolved for requests.
fn resolvers(servers: &[SocketAddr]) -> Result<Section, Refused> {
    let mut section = Section::new(Line::of("resolvers _dns"));
    for (index, server) in servers.iter().enumerate() {
        let address = if server.is_ipv6() { format!("ipv6@{}:{}", server.ip(), server.port()) } else { server.to_string() };
        section.push(Line::of("nameserver").with(Word::name(&format!("ns{}", index + 1))?).with(Word::text(&address)?));
    }
    if servers.is_empty() {
        section.add("parse-resolv-conf");
    }
    section
        .add("accepted_payload_size 1232")
        .add("resolve_retries 2")
        .add("timeout resolve 1s")
        .add("timeout retry 1s")
        .add("hold valid 10s")
        .add("hold nx 2s")
        .add("hold timeout 2s")
        .add("hold refused 2s")
        .add("hold other 2s");
    Ok(section)
}

/// Without rules: a defaults section with rules cannot be shared by frontends and backends.
fn defaults(settings: &Settings) -> [Section; 6] {
    let section = |head| Section::new(Line::of(head));
    let mut front = section("defaults _front");
    front.add("mode http").push(Line::of("timeout client").with(seconds(settings.client_timeout, 60)));
    if let Some(timeout) = settings.client_fin_timeout {
        front.push(Line::of("timeout client-fin").with(seconds(Some(timeout), 0)));
    }
    front
        .push(Line::of("timeout http-request").with(seconds(settings.http_request_timeout, 10)))
        .push(Line::of("timeout http-keep-alive").with(seconds(settings.keep_alive_timeout, 10)))
        // A reload answers the next request of a waiting connection instead of racing with it.
        .add("option idle-close-on-response")
        .add("option http-restrict-req-hdr-names delete")
        // Connections of clients are told from those that a worker of before a reload passes on.
        .add("option socket-stats")
        .add("option dontlognull");
    let mut front_tcp = section("defaults _front_tcp");
    front_tcp
        .add("mode tcp")
        .add("timeout client 3600s")
        .add("timeout client-fin 30s")
        .add("option socket-stats")
        .add("option dontlognull");
    let mut fixed = section("defaults _static");
    fixed.add("mode http").add("timeout connect 2s").add("timeout server 60s").add("timeout tunnel 3600s").add("retries 3");
    let mut fixed_tcp = section("defaults _static_tcp");
    fixed_tcp.add("mode tcp").add("timeout connect 2s").add("timeout server 60s");
    let mut private_http = section("defaults _private_http");
    private_http.add("mode http");
    let mut private_tcp = section("defaults _private_tcp");
    private_tcp.add("mode tcp");
    [front, front_tcp, fixed, fixed_tcp, private_http, private_tcp]
}
