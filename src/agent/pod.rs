//! What belongs to this pod and to no bundle: `00-pod.cfg`, the default certificate, ticket keys, the bootstrap.

use super::last_good::PodFiles;
use crate::haproxy::config::{Line, Refused, Section, Word, write};
use crate::haproxy::files::pem_lines;
use crate::haproxy::render::{DEFAULT_CERTIFICATE, TICKET_KEYS};
use crate::report::PrivateBytes;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// This pod.
#[derive(Clone, Debug)]
pub struct Pod {
    /// Its name: the local peer.
    pub name: String,
    /// The addresses of each listener.
    pub binds: BTreeMap<String, Vec<SocketAddr>>,
    /// Where the health frontend answers.
    pub health: SocketAddr,
    /// Threads of HAProxy; its own default if not given.
    pub threads: Option<u16>,
    /// Connections of HAProxy at most.
    pub max_connections: u32,
    /// Served where no other certificate fits: chain and key.
    pub default_certificate: PrivateBytes,
    /// Keys of TLS session tickets, the oldest first, as `tls-ticket-keys` takes them: three lines of base64 of 80
    /// bytes. The same in all pods of a fleet, so that a client resumes its session with any of them.
    pub ticket_keys: PrivateBytes,
}

/// The environment variable that holds the addresses of `listener`.
pub fn bind_variable(listener: &str) -> String {
    format!("FLEET_BIND_{}", listener.to_ascii_uppercase().replace('-', "_"))
}

/// The files of `pod`. `relay` is the prefix of its internal sockets.
pub fn files(pod: &Pod, relay: &str) -> Result<PodFiles, Refused> {
    let certificate = pem_lines(pod.default_certificate.expose());
    Ok(BTreeMap::from([
        ("00-pod.cfg".to_owned(), write(&[global(pod, relay)?])?.into_bytes()),
        (DEFAULT_CERTIFICATE.to_owned(), certificate),
        (TICKET_KEYS.to_owned(), pod.ticket_keys.expose().to_vec()),
    ]))
}

/// A HAProxy that answers nothing but its health check, and that with 503.
pub fn bootstrap(pod: &Pod, relay: &str) -> Result<PodFiles, Refused> {
    let mut defaults = Section::new(Line::of("defaults _bootstrap"));
    defaults.add("mode http");
    defaults.add("timeout client 5s");
    let mut health = Section::new(Line::of("frontend _health from _bootstrap"));
    health.push(Line::of("bind").with(Word::env("", "FLEET_BIND_HEALTH", "")?));
    health.add("http-request return status 503");
    Ok(BTreeMap::from([
        ("00-pod.cfg".to_owned(), write(&[global(pod, relay)?])?.into_bytes()),
        ("10-bootstrap.cfg".to_owned(), write(&[defaults, health])?.into_bytes()),
    ]))
}

fn global(pod: &Pod, relay: &str) -> Result<Section, Refused> {
    let mut global = Section::new(Line::of("global"));
    if let Some(threads) = pod.threads {
        global.push(Line::of("nbthread").with(Word::number(threads)));
    }
    global.push(Line::of("maxconn").with(Word::number(pod.max_connections)));
    global.push(Line::of("localpeer").with(Word::name(&pod.name)?));
    let mut set = |variable: &str, value: &str| -> Result<(), Refused> {
        global.push(Line::of("setenv").with(Word::name(variable)?).with(Word::text(value)?));
        Ok(())
    };
    set("FLEET_RELAY", relay)?;
    set("FLEET_BIND_HEALTH", &pod.health.to_string())?;
    for (listener, addresses) in &pod.binds {
        let addresses: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
        set(&bind_variable(listener), &addresses.join(","))?;
    }
    Ok(global)
}

/// The addresses that the configuration text `after` binds and `before` does not.
pub fn new_addresses(pod: &Pod, before: &BTreeSet<String>, after: &BTreeSet<String>) -> Vec<SocketAddr> {
    pod.binds
        .iter()
        .filter(|(name, _)| after.contains(*name) && !before.contains(*name))
        .flat_map(|(_, addresses)| addresses.clone())
        .collect()
}

/// The listeners of `pod` that `text` binds.
pub fn listeners<'a>(pod: &Pod, texts: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for text in texts {
        let bound = |name: &&String| text.contains(&format!("${{{}}}", bind_variable(name)));
        found.extend(pod.binds.keys().filter(bound).cloned());
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_name_that_is_none_is_refused() {
        let pod = Pod {
            name: "p\nglobal".to_owned(),
            binds: BTreeMap::new(),
            health: SocketAddr::from(([127, 0, 0, 1], 3)),
            threads: None,
            max_connections: 100,
            default_certificate: PrivateBytes::new(Vec::new()),
            ticket_keys: PrivateBytes::new(Vec::new()),
        };
        assert!(files(&pod, "r").is_err());
        assert!(bootstrap(&pod, "r").is_err());
    }

    #[test]
    fn the_pod_file_names_every_address_of_every_listener() {
        let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let pod = Pod {
            name: "p1".to_owned(),
            binds: BTreeMap::from([("http-a".to_owned(), vec![address(1), address(2)])]),
            health: address(3),
            threads: Some(2),
            max_connections: 100,
            default_certificate: PrivateBytes::new(Vec::new()),
            ticket_keys: PrivateBytes::new(Vec::new()),
        };
        let text = write(&[global(&pod, "r").unwrap()]).unwrap();
        assert!(text.contains("setenv FLEET_BIND_HTTP_A '127.0.0.1:1,127.0.0.1:2'\n"), "{text}");
        assert!(text.contains("localpeer p1\n"), "{text}");
        let bound = listeners(&pod, ["bind \"${FLEET_BIND_HTTP_A}\""].into_iter());
        assert_eq!(new_addresses(&pod, &BTreeSet::new(), &bound), [address(1), address(2)]);
        assert!(new_addresses(&pod, &bound, &bound).is_empty());
    }
}
