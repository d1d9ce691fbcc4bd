//! Who is where: addresses of both families, zones, names of nodes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Nodes and their zones: two nodes in the first zone, so that a zone can lose one and go on.
pub const NODES: [Node; 4] = [Node::new(1, "zone-a"), Node::new(2, "zone-a"), Node::new(3, "zone-b"), Node::new(4, "zone-c")];

/// The host's own addresses: the API server is there.
pub const HOST: Addresses = Addresses { v4: Ipv4Addr::new(10, 89, 0, 1), v6: Ipv6Addr::new(0xfd00, 0x89, 0, 0, 0, 0, 0, 1) };
/// Cluster addresses.
pub const SERVICES: Ranges = Ranges { v4: "10.96.0.0/16", v6: "fd00:96::/112" };
/// The address of the API server's own Service.
pub const API_SERVICE: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 1);
/// The address of the cluster's DNS.
pub const DNS: Addresses = Addresses { v4: Ipv4Addr::new(10, 96, 0, 10), v6: Ipv6Addr::new(0xfd00, 0x96, 0, 0, 0, 0, 0, 0xa) };
/// Addresses of all pods.
pub const PODS: Ranges = Ranges { v4: "10.90.0.0/16", v6: "fd00:90::/48" };
/// Addresses of Services of type `LoadBalancer`.
pub const BALANCERS: Ranges = Ranges { v4: "10.91.0.0/24", v6: "fd00:91::/112" };
/// The last parts of further addresses of the host (written as in the address), for clients that open many connections.
pub const CLIENTS: std::ops::RangeInclusive<u8> = 101..=132;
/// kube-proxy's health port.
pub const PROXY_HEALTH: u16 = 10256;

/// An address of each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// IPv4.
    pub v4: Ipv4Addr,
    /// IPv6.
    pub v6: Ipv6Addr,
}

impl Addresses {
    /// The one of a family.
    pub fn of(self, family: Family) -> IpAddr {
        match family {
            Family::V4 => self.v4.into(),
            Family::V6 => self.v6.into(),
        }
    }
}

/// A range of addresses of each family, in CIDR notation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// IPv4.
    pub v4: &'static str,
    /// IPv6.
    pub v6: &'static str,
}

impl Ranges {
    /// The one of a family.
    pub fn of(self, family: Family) -> &'static str {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }

    /// Both, as Kubernetes' flags take them.
    pub fn both(self) -> String {
        format!("{},{}", self.v4, self.v6)
    }
}

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both, the cluster's primary one first.
    pub const ALL: [Self; 2] = [Self::V4, Self::V6];

    /// `ip`'s flag.
    pub fn flag(self) -> &'static str {
        match self {
            Self::V4 => "-4",
            Self::V6 => "-6",
        }
    }

    /// The family that `address` is of.
    pub fn of(address: IpAddr) -> Self {
        if address.is_ipv4() { Self::V4 } else { Self::V6 }
    }
}

/// A node: its number, from which everything else follows, and its zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// From 1.
    pub number: u8,
    /// `topology.kubernetes.io/zone`.
    pub zone: &'static str,
}

impl Node {
    const fn new(number: u8, zone: &'static str) -> Self {
        Self { number, zone }
    }

    /// Its name in the cluster, and its host name.
    pub fn name(self) -> String {
        format!("node{}", self.number)
    }

    /// Its own addresses: 10.89.0.1N and `fd00:89::1N`.
    pub fn addresses(self) -> Addresses {
        let number = u16::from(self.number);
        Addresses { v4: Ipv4Addr::new(10, 89, 0, 10 + self.number), v6: Ipv6Addr::new(0xfd00, 0x89, 0, 0, 0, 0, 0, 0x10 + number) }
    }

    /// The range of its pods, of a family.
    pub fn pods(self, family: Family) -> String {
        match family {
            Family::V4 => format!("10.90.{}.0/24", self.number),
            Family::V6 => format!("fd00:90:0:{}::/64", self.number),
        }
    }

    /// The cable on the host's side.
    pub fn cable(self) -> String {
        format!("veth{}", self.number)
    }
}
