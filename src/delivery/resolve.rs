//! The addresses of the operator's replicas. The program is linked statically and cannot use the name service of the
//! C library, so it asks the name servers of `/etc/resolv.conf` itself, with its search list.

use hickory_resolver::TokioResolver;
use hickory_resolver::config::LookupIpStrategy;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

/// Finds all addresses that were named.
#[derive(Debug)]
pub(super) struct Resolver {
    fixed: Vec<SocketAddr>,
    names: Vec<(String, u16)>,
    servers: Option<TokioResolver>,
}

impl Resolver {
    /// For `operator`: `HOST:PORT` or `ADDRESS:PORT`, or several of them with commas between.
    pub(super) fn new(operator: &str) -> io::Result<Self> {
        let (mut fixed, mut names) = (Vec::new(), Vec::new());
        for part in operator.split(',') {
            if let Ok(address) = part.parse() {
                fixed.push(address);
                continue;
            }
            let pair = part.rsplit_once(':').and_then(|(host, port)| Some((host.to_owned(), port.parse().ok()?)));
            let pair = pair.filter(|(host, _)| !host.is_empty());
            names.push(pair.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, format!("{part:?} is not HOST:PORT")))?);
        }
        let servers = if names.is_empty() { None } else { Some(system()?) };
        Ok(Self { fixed, names, servers })
    }

    /// All of them at present, each once, in order. An error if one of the names is not found.
    pub(super) async fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        let mut found = self.fixed.clone();
        for (host, port) in &self.names {
            let Some(servers) = &self.servers else { continue };
            let addresses = servers.lookup_ip(host.as_str()).await.map_err(io::Error::other)?;
            found.extend(addresses.iter().map(|address| SocketAddr::new(address, *port)));
        }
        found.sort_unstable();
        found.dedup();
        Ok(found)
    }
}

fn system() -> io::Result<TokioResolver> {
    let mut builder = TokioResolver::builder_tokio().map_err(io::Error::other)?;
    let options = builder.options_mut();
    // a replica has an address of each family: one is enough
    options.ip_strategy = LookupIpStrategy::Ipv4thenIpv6;
    options.timeout = Duration::from_secs(2);
    // who asks every few seconds wants to know the present
    options.positive_max_ttl = Some(Duration::ZERO);
    options.negative_max_ttl = Some(Duration::ZERO);
    builder.build().map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn addresses_are_taken_as_they_are_and_each_once() {
        let resolver = Resolver::new("127.0.0.2:9443,[::1]:9443,127.0.0.2:9443").unwrap();
        let expected: [SocketAddr; 2] = ["127.0.0.2:9443".parse().unwrap(), "[::1]:9443".parse().unwrap()];
        assert_eq!(resolver.addresses().await.unwrap(), expected);
    }

    #[tokio::test]
    async fn a_host_of_the_hosts_file_is_found() {
        let found = Resolver::new("localhost:9443").unwrap().addresses().await.unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 9443), "{found:?}");
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn what_names_no_host_and_port_is_refused() {
        for text in ["", "operator", "operator:", "operator:x", ":9443", "operator:9443,"] {
            assert!(Resolver::new(text).is_err(), "{text}");
        }
    }
}
