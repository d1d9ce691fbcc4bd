//! Keywords of servers: written out on each, as servers added at run time inherit nothing.

use super::{Problem, check};
use crate::model::{Millis, Mode, Policy, SendProxy, ServerOptions, Sni, Verify};
use crate::report::codes;
use std::fmt::Write as _;
use std::sync::Arc;

/// What every server of a backend gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerKeywords {
    /// Keywords, safe for configuration and runtime API alike: words of `[A-Za-z0-9_.:/@,()-]`.
    pub text: Arc<str>,
    /// Whether servers are health checked.
    pub checked: bool,
    /// Share of each.
    pub weight: u16,
    /// Whether each also gets `cookie` with a value of its own.
    pub cookie: bool,
}

/// Keywords for the servers of a backend with `policy`. `checks`: whether they are checked where nothing is said.
///
/// `None`: they cannot be, as a rule sets where connections go.
pub(super) fn keywords(policy: &Policy, mode: Mode, checks: Option<bool>, cookie: bool, problems: &mut Vec<Problem>) -> ServerKeywords {
    let options = &policy.server;
    // Without it hashing differs between pods and across reloads.
    let mut out = String::from("hash-key addr-port");
    let explicit = options.check == Some(true) || policy.http_check.is_some() && options.check != Some(false);
    let checked = checks.is_some_and(|default| explicit || (default && options.check.is_none()));
    let mut word = |text: std::fmt::Arguments<'_>| {
        // Infallible for a String.
        let _ = out.write_fmt(format_args!(" {text}"));
    };
    if checked {
        word(format_args!("check inter {}", options.inter.map_or(2_000, |Millis(millis)| millis.clamp(1, 86_400_000))));
        word(format_args!("rise {} fall {}", options.rise.unwrap_or(2).clamp(1, 1_000), options.fall.unwrap_or(3).clamp(1, 1_000)));
        word(format_args!("observe layer4"));
        if let Some(port) = options.check_port.filter(|port| *port > 0) {
            word(format_args!("port {port}"));
        }
    }
    if let Some(most) = options.maxconn {
        word(format_args!("maxconn {}", most.min(1_000_000_000)));
    }
    if let Some(Millis(millis)) = options.slowstart.filter(|millis| millis.0 > 0) {
        word(format_args!("slowstart {}", millis.min(86_400_000)));
    }
    match options.send_proxy {
        Some(SendProxy::V1) => word(format_args!("send-proxy")),
        Some(SendProxy::V2) => word(format_args!("send-proxy-v2")),
        Some(SendProxy::Off) | None => {}
    }
    // A check of another port is not the server's own protocol.
    if checked && options.check_port.is_none() && matches!(options.send_proxy, Some(SendProxy::V1 | SendProxy::V2)) {
        word(format_args!("check-send-proxy"));
    }
    if options.ssl == Some(true) {
        tls(options, mode, checked, problems, &mut out);
    } else if options.h2c == Some(true) && mode == Mode::Http {
        out.push_str(" proto h2");
    }
    ServerKeywords { text: out.into(), checked, weight: options.weight.unwrap_or(1).min(256), cookie }
}

fn tls(options: &ServerOptions, mode: Mode, checked: bool, problems: &mut Vec<Problem>, out: &mut String) {
    let mut refuse = |field, message: &str, help| {
        problems.push(Problem { field, code: codes::INVALID_VALUE, message: message.into(), help });
    };
    out.push_str(" ssl");
    let ca = options.ca.as_ref().map(|ca| ca_path(&ca.0));
    match (options.verify, ca) {
        (Some(Verify::None), _) | (None, None) => out.push_str(" verify none"),
        (_, Some(path)) => {
            out.push_str(" verify required ca-file ");
            out.push_str(&path);
        }
        (Some(Verify::Required), None) => out.push_str(" verify required ca-file @system-ca"),
    }
    match &options.sni {
        Some(Sni::Name(name)) if check::is_host(name) => {
            let _ = write!(out, " sni str({name})");
            if checked {
                let _ = write!(out, " check-sni {name}");
            }
        }
        Some(Sni::Name(_)) => refuse("server.sni", "the name is not a DNS name", "write a DNS name"),
        Some(Sni::RequestHost) if mode == Mode::Http => out.push_str(" sni req.hdr(host),host_only"),
        Some(Sni::RequestHost) => refuse("server.sni", "there is no Host in TCP mode", "write a DNS name"),
        None => {}
    }
    let protocols = options.alpn.as_deref().unwrap_or_default();
    let good = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"./-".contains(&b)) && name.len() <= 32;
    if !protocols.iter().all(|name| good(name)) || protocols.len() > 8 {
        refuse("server.alpn", "a protocol's name is not letters, digits, dots, dashes", "use h2 and http/1.1");
    } else if !protocols.is_empty() {
        let _ = write!(out, " alpn {}", protocols.join(","));
    }
}

/// The file of a CA bundle.
pub(in crate::haproxy) fn ca_path(id: &str) -> String {
    format!("ca/{}.pem", crate::haproxy::render::safe_name(id))
}
