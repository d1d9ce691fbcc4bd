//! Which loopback address each listener and each replica has, remembered over restarts: the last good
//! configuration of a replica and the bookmarks of its user name them.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self as unix, UnixListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where every replica answers health checks, on its own address.
pub const HEALTH_PORT: u16 = 8404;

/// Addresses by what they are for, kept in a file of the state directory.
#[derive(Debug)]
pub struct Addresses {
    file: PathBuf,
    book: Book,
    /// What others that look for addresses at the same time must not take. HAProxy itself would share an address
    /// with any other HAProxy of the same user, and each would get half of the requests.
    reserved: BTreeMap<String, UnixListener>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Book {
    listeners: BTreeMap<String, SocketAddr>,
    replicas: BTreeMap<String, Ipv4Addr>,
}

impl Addresses {
    /// The addresses remembered below `state`; none if there are none or they cannot be read.
    pub fn open(state: &Path) -> Self {
        let file = state.join("addresses.json");
        let book = std::fs::read(&file).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default();
        Self { file, book, reserved: BTreeMap::new() }
    }

    /// The stable address of a listener: the remembered one, else 127.0.0.1 with the `preferred` port (0: none)
    /// if that is free, else with a free port.
    pub fn listener(&mut self, purpose: &str, preferred: u16) -> io::Result<SocketAddr> {
        if let Some(address) = self.book.listeners.get(purpose).copied() {
            // if somebody else has it, whoever starts something there says so
            self.reserve(&address.to_string());
            return Ok(address);
        }
        let address = self.free_listener(preferred)?;
        self.book.listeners.insert(purpose.to_owned(), address);
        self.save()?;
        Ok(address)
    }

    /// The IP address of a replica: the remembered one if it is free and not in `taken`, else the first of
    /// 127.1.0.0/16 on which all `ports` and the health port are free.
    pub fn replica(&mut self, purpose: &str, ports: &[u16], taken: &BTreeSet<IpAddr>) -> io::Result<IpAddr> {
        if let Some(address) = self.book.replicas.get(purpose).copied()
            && !taken.contains(&IpAddr::V4(address))
            && self.reserve(&address.to_string())
            && are_free(address, ports)
        {
            return Ok(IpAddr::V4(address));
        }
        let address = self.free_replica(ports)?;
        self.book.replicas.insert(purpose.to_owned(), address);
        self.save()?;
        Ok(IpAddr::V4(address))
    }

    /// Forgets the replica's address: it is gone for good, or somebody else uses it.
    pub fn forget_replica(&mut self, purpose: &str) -> io::Result<()> {
        let Some(address) = self.book.replicas.remove(purpose) else { return Ok(()) };
        self.reserved.remove(&address.to_string());
        self.save()
    }

    /// Forgets all addresses of a fleet that is gone for good.
    pub fn forget_fleet(&mut self, fleet: &str) -> io::Result<()> {
        let of_fleet = |purpose: &String| purpose.strip_prefix(fleet).is_some_and(|rest| rest.starts_with('/'));
        let reserved = &mut self.reserved;
        let mut release = |gone: bool, address: String| {
            if gone {
                reserved.remove(&address);
            }
            !gone
        };
        self.book.listeners.retain(|purpose, address| release(of_fleet(purpose), address.to_string()));
        self.book.replicas.retain(|purpose, address| release(of_fleet(purpose), address.to_string()));
        self.save()
    }

    /// Everything that is remembered of listeners and of the given ports of replicas.
    pub fn remembered(&self, replica_ports: &[u16]) -> Vec<SocketAddr> {
        let of_replica = |ip: &Ipv4Addr| replica_ports.iter().map(|port| SocketAddr::from((*ip, *port))).collect::<Vec<_>>();
        self.book.listeners.values().copied().chain(self.book.replicas.values().flat_map(of_replica)).collect()
    }

    /// Whether `address` is this one's, for as long as it lives: the kernel gives such a name to one process only,
    /// and takes it back when that ends, however it ends.
    fn reserve(&mut self, address: &str) -> bool {
        if self.reserved.contains_key(address) {
            return true;
        }
        let name = unix::SocketAddr::from_abstract_name(format!("haproxy-fleet-local-{address}"));
        let Ok(reservation) = name.and_then(|name| UnixListener::bind_addr(&name)) else { return false };
        self.reserved.insert(address.to_owned(), reservation);
        true
    }

    fn free_listener(&mut self, preferred: u16) -> io::Result<SocketAddr> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, preferred));
        if preferred != 0 && self.is_new(address) && is_free(address) && self.reserve(&address.to_string()) {
            return Ok(address);
        }
        loop {
            let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
            if self.is_new(address) && self.reserve(&address.to_string()) {
                return Ok(address);
            }
        }
    }

    fn is_new(&self, address: SocketAddr) -> bool {
        self.book.listeners.values().all(|other| *other != address)
    }

    fn free_replica(&mut self, ports: &[u16]) -> io::Result<Ipv4Addr> {
        let known: BTreeSet<Ipv4Addr> = self.book.replicas.values().copied().collect();
        (0..=255u8)
            .flat_map(|third| (1..=254u8).map(move |fourth| Ipv4Addr::new(127, 1, third, fourth)))
            .find(|address| !known.contains(address) && are_free(*address, ports) && self.reserve(&address.to_string()))
            .ok_or_else(|| io::Error::new(io::ErrorKind::AddrInUse, "no free address in 127.1.0.0/16"))
    }

    fn save(&self) -> io::Result<()> {
        let new = self.file.with_extension("json.new");
        std::fs::write(&new, serde_json::to_vec_pretty(&self.book)?)?;
        std::fs::rename(new, &self.file)
    }
}

fn are_free(address: Ipv4Addr, ports: &[u16]) -> bool {
    ports.iter().chain([&HEALTH_PORT]).all(|port| is_free(SocketAddr::from((address, *port))))
}

/// Whether nobody listens there. To be asked before HAProxy is started: it shares addresses with every other
/// HAProxy of the same user, which then gets half of the requests.
pub fn is_free(address: SocketAddr) -> bool {
    TcpListener::bind(address).is_ok()
}

/// Waits until nobody listens on any of `addresses`, for `patience` at most.
pub async fn wait_until_free(addresses: Vec<SocketAddr>, patience: Duration) {
    let released = async {
        for address in addresses {
            while !is_free(address) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    };
    // whoever starts something there says what is wrong
    let _ = tokio::time::timeout(patience, released).await;
}

/// The port that a listener gets where it can: privileged ones are moved up, 80 to 8080, 443 to 8443.
pub fn preferred_port(public_port: u16) -> u16 {
    match public_port {
        port if port < 1024 => port + 8000,
        port => port,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_address_is_the_same_after_a_restart() {
        let state = tempfile::tempdir().unwrap();
        let mut addresses = Addresses::open(state.path());
        let first = (addresses.listener("edge/http", 0).unwrap(), addresses.replica("edge-0", &[8080], &BTreeSet::new()).unwrap());
        drop(addresses);
        let mut again = Addresses::open(state.path());
        assert_eq!((again.listener("edge/http", 0).unwrap(), again.replica("edge-0", &[8080], &BTreeSet::new()).unwrap()), first);
    }

    #[test]
    fn without_a_preferred_port_a_free_one_is_taken() {
        let state = tempfile::tempdir().unwrap();
        assert_ne!(Addresses::open(state.path()).listener("edge/health", 0).unwrap().port(), 0);
    }

    #[test]
    fn a_preferred_port_that_is_in_use_is_left_to_its_user() {
        let state = tempfile::tempdir().unwrap();
        let user = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = user.local_addr().unwrap().port();
        assert_ne!(Addresses::open(state.path()).listener("edge/http", port).unwrap().port(), port);
    }

    #[test]
    fn a_replica_is_not_put_where_one_of_its_ports_is_in_use() {
        let state = tempfile::tempdir().unwrap();
        let first = Addresses::open(state.path()).replica("edge-0", &[18_080], &BTreeSet::new()).unwrap();
        let _user = TcpListener::bind((first, 18_080)).unwrap();
        let other = tempfile::tempdir().unwrap();
        assert_ne!(Addresses::open(other.path()).replica("edge-0", &[18_080], &BTreeSet::new()).unwrap(), first);
    }

    #[test]
    fn two_that_look_at_the_same_time_never_share_an_address() {
        let states = [0, 1].map(|_| tempfile::tempdir().unwrap());
        // nobody listens anywhere yet: only the reservations keep them apart
        let mut all = states.each_ref().map(|state| Addresses::open(state.path()));
        let given: BTreeSet<_> = all.iter_mut().map(|addresses| addresses.replica("edge-0", &[], &BTreeSet::new()).unwrap()).collect();
        assert_eq!(given.len(), 2);
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let given: BTreeSet<_> = all.iter_mut().map(|addresses| addresses.listener("edge/http", port).unwrap()).collect();
        assert_eq!(given.len(), 2);
    }

    #[test]
    fn two_purposes_never_share_an_address() {
        let state = tempfile::tempdir().unwrap();
        let mut addresses = Addresses::open(state.path());
        let given: BTreeSet<_> = (0..50).map(|n| addresses.replica(&n.to_string(), &[], &BTreeSet::new()).unwrap()).collect();
        assert_eq!(given.len(), 50);
    }

    #[test]
    fn privileged_ports_are_moved_up() {
        assert_eq!([80, 443, 81, 9000].map(preferred_port), [8080, 8443, 8081, 9000]);
    }
}
