//! What a person may type to try a fleet out. Pure.

use crate::model::{HostMatch, Model, PathMatch, Protocol, Route};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

/// Hosts that are shown, and paths of each.
const HOSTS: usize = 12;
const PATHS: usize = 3;

/// The URLs of some of the routes of `model`, whose listeners are at `ip`: of each host the first few paths.
/// Where plain HTTP is redirected to HTTPS, that is what is shown.
pub(super) fn of(model: &Model, ip: IpAddr) -> Vec<String> {
    let port_of = |wanted: fn(&Protocol) -> bool| {
        model.listeners.values().find(|listener| wanted(&listener.protocol)).map(|listener| listener.public_port)
    };
    let https = port_of(|protocol| matches!(protocol, Protocol::Https { .. }));
    let mut urls = Vec::new();
    for listener in model.listeners.values() {
        let Protocol::Http { table, .. } = &listener.protocol else { continue };
        let hosts = model.tables.get(table).into_iter().flat_map(|table| &table.hosts);
        for (host, routes) in hosts.take(HOSTS) {
            let name = match host {
                HostMatch::Exact(name) => name.to_string(),
                HostMatch::Wildcard(suffix) | HostMatch::DeepWildcard(suffix) => format!("any.{suffix}"),
                HostMatch::Any => SocketAddr::new(ip, 0).ip().to_string(),
            };
            let mut seen = BTreeSet::new();
            let shown = routes.routes.iter().filter_map(|route| url(route, &name, listener.public_port, https));
            urls.extend(shown.filter(|url| seen.insert(url.clone())).take(PATHS));
        }
    }
    urls
}

fn url(route: &Route, host: &str, http: u16, https: Option<u16>) -> Option<String> {
    let path = match &route.path {
        PathMatch::Exact(path) | PathMatch::Prefix(path) if route.conditions.is_empty() => path,
        _ => return None,
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-._~".contains(c);
    // a tenant's path goes to a terminal and from there into a shell: only what means nothing to either
    if !path.chars().all(plain) {
        return None;
    }
    Some(match https {
        Some(port) if route.https_redirect.is_some() => format!("https://{host}:{port}{path}"),
        _ => format!("http://{host}:{http}{path}"),
    })
}

/// The command that asks for `url`, whose name leads to `ip` whatever name servers say.
pub(super) fn command(url: &str, ip: IpAddr) -> String {
    let insecure = if url.starts_with("https:") { "-k " } else { "" };
    let authority = url.split('/').nth(2).unwrap_or_default();
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host);
    let local = host == "localhost" || host.ends_with(".localhost") || host.parse::<IpAddr>().is_ok();
    let resolve = if local { String::new() } else { format!("--resolve {authority}:{ip} ") };
    format!("curl {insecure}{resolve}{url}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::model::{Conditions, Host, Listener, RouteTable, Target};
    use crate::report::{Kind, ObjectRef};
    use std::collections::BTreeMap;

    fn route(path: &str, redirect: bool) -> Route {
        Route {
            path: PathMatch::Prefix(path.into()),
            conditions: Conditions::default(),
            target: Target::Unavailable,
            https_redirect: redirect.then_some(308),
            source: ObjectRef::new(Kind::Ingress, "shop", "web"),
        }
    }

    #[test]
    fn every_host_is_shown_with_the_scheme_that_serves_it() {
        let mut model = Model::default();
        let listener = |protocol, public_port| Listener { protocol, public_port, pod_port: public_port, proxy_protocol: false };
        model.listeners.insert("http".into(), listener(Protocol::Http { table: "t".into(), https_port: Some(8443) }, 8080));
        model.listeners.insert("https".into(), listener(Protocol::Https { table: "t".into(), certificates: "l".into() }, 8443));
        let hosts = BTreeMap::from([
            (HostMatch::Exact("api.localhost".into()), Host { routes: vec![route("/v1", false), route("/;rm", false)] }),
            (HostMatch::Wildcard("shop.example".into()), Host { routes: vec![route("/", true)] }),
            (HostMatch::Any, Host { routes: vec![route("/", false)] }),
        ]);
        model.tables.insert("t".into(), RouteTable { hosts });
        let ip = IpAddr::from([127, 0, 0, 1]);
        let urls = of(&model, ip);
        assert_eq!(urls, ["http://api.localhost:8080/v1", "https://any.shop.example:8443/", "http://127.0.0.1:8080/"]);
        let commands: Vec<String> = urls.iter().map(|url| command(url, ip)).collect();
        assert_eq!(
            commands,
            [
                "curl http://api.localhost:8080/v1",
                "curl -k --resolve any.shop.example:8443:127.0.0.1 https://any.shop.example:8443/",
                "curl http://127.0.0.1:8080/"
            ]
        );
    }
}
