//! Keys of other controllers: none is ignored in silence. Each is refused by name, with what to use instead.

use super::PREFIX;
use crate::report::{Diagnostic, ObjectRef, codes};

const PREFIXES: [&str; 5] =
    ["haproxy.org/", "haproxy.com/", "haproxy-ingress.github.io/", "ingress.kubernetes.io/", "nginx.ingress.kubernetes.io/"];

/// What says the same here: `.` in front means a field of a Backend.
const ALTERNATIVES: [(&str, &str); 58] = [
    ("abortonclose", ".abortonclose"),
    ("affinity", ".cookie"),
    ("agent-check-interval", ".default_server"),
    ("app-root", "redirect-to"),
    ("backend-check-interval", ".default_server.inter"),
    ("backend-config-snippet", "."),
    ("backend-protocol", ".default_server.ssl"),
    ("balance-algorithm", ".balance"),
    ("check", ".default_server.check"),
    ("check-http", ".adv_check with httpchk_params"),
    ("check-interval", ".default_server.inter"),
    ("connection-proxy-header", "request-header.NAME"),
    ("cookie-persistence", ".cookie"),
    ("cookie-persistence-no-dynamic", ".cookie"),
    ("cr-backend", "backend"),
    ("custom-headers", "response-header.NAME"),
    ("force-ssl-redirect", "ssl-redirect"),
    ("forwarded-for", ".forwardfor"),
    ("forwardfor", ".forwardfor"),
    ("headers", "request-header.NAME"),
    ("health-check-interval", ".default_server.inter"),
    ("health-check-uri", ".adv_check with httpchk_params"),
    ("limit-connections", ".default_server.maxconn"),
    ("load-balance", ".balance"),
    ("maxconn-server", ".default_server.maxconn"),
    ("path-rewrite", "rewrite-path-prefix"),
    ("permanent-redirect", "redirect-to"),
    ("pod-maxconn", ".default_server.maxconn"),
    ("proxy-connect-timeout", "timeout-connect"),
    ("proxy-next-upstream", ".retry_on"),
    ("proxy-next-upstream-tries", ".retries"),
    ("proxy-protocol", ".default_server.send-proxy"),
    ("proxy-read-timeout", "timeout-server"),
    ("proxy-send-timeout", "timeout-server"),
    ("proxy-set-headers", "request-header.NAME"),
    ("proxy-ssl-name", ".default_server.sni"),
    ("proxy-ssl-secret", ".default_server.ssl_cafile"),
    ("proxy-ssl-verify", ".default_server.verify"),
    ("redirect-to", "redirect-to"),
    ("request-redirect", "redirect-to"),
    ("request-set-header", "request-header.NAME"),
    ("response-set-header", "response-header.NAME"),
    ("rewrite-target", "rewrite-path-prefix"),
    ("secure-verify-ca-secret", ".default_server.ssl_cafile"),
    ("send-proxy-protocol", ".default_server.send-proxy"),
    ("server-ca", ".default_server.ssl_cafile"),
    ("server-ssl", ".default_server.ssl"),
    ("slots-increment", "nothing: servers are added live"),
    ("ssl-redirect", "ssl-redirect"),
    ("ssl-redirect-code", "ssl-redirect-code"),
    ("temporal-redirect", "redirect-to"),
    ("timeout-check", ".check_timeout"),
    ("timeout-connect", "timeout-connect"),
    ("timeout-queue", ".queue_timeout"),
    ("timeout-server", "timeout-server"),
    ("timeout-tunnel", ".tunnel_timeout"),
    ("upstream-hash-by", ".balance"),
    ("whitelist-source-range", "nothing yet"),
];

/// Refuses `key` by name if it is of another controller's dialect.
pub(super) fn refuse(object: &ObjectRef, key: &str, diagnostics: &mut Vec<Diagnostic>) {
    let Some(short) = PREFIXES.iter().find_map(|prefix| key.strip_prefix(prefix)) else { return };
    let help = match ALTERNATIVES.iter().find(|(name, _)| *name == short).map(|(_, instead)| *instead) {
        None => "remove it, or keep it for the other controller only; there is no counterpart here".to_owned(),
        Some("nothing yet") => "there is no counterpart here yet".to_owned(),
        Some(".") => format!("use fields of a Backend, named by {PREFIX}backend"),
        Some(instead) => match instead.strip_prefix('.') {
            Some(field) => format!("use {field} of a Backend, named by {PREFIX}backend"),
            None if instead.starts_with("nothing") => instead.to_owned(),
            None => format!("use {PREFIX}{instead}"),
        },
    };
    diagnostics.push(Diagnostic::warning(
        object,
        super::field(key),
        codes::UNSUPPORTED,
        format!("{key} is a key of another controller and has no effect here"),
        help,
    ));
}
