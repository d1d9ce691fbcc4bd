//! All that runs for an `EndpointSlice`: its cost is that of the slices of one Service.

use crate::api::{AddressType, EndpointSlice, Protocol, ServicePort};
use crate::model::{Endpoint, EndpointState};
use crate::report::{Diagnostic, Kind, ObjectRef, codes};
use litemap::LiteMap;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// Refused addresses of one slice that are told one by one.
const MAX_TOLD: usize = 10;

/// Which endpoints each used port of a Service has.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ServiceEndpoints {
    /// By the Service's port number.
    pub by_port: LiteMap<u16, Arc<[Endpoint]>>,
    /// About the slices.
    pub diagnostics: Vec<Diagnostic>,
}

/// Collects the endpoints of the ports `ports` from the Service's `slices`.
///
/// An address and port that stands in several slices counts once; where they disagree the more alive state
/// wins. Of the addresses of one endpoint the first is taken, as Kubernetes' own proxy does. Endpoints of
/// both families that say they are the same pod count once, with IPv4.
pub(super) fn collect<'a>(
    slices: impl Iterator<Item = &'a EndpointSlice>,
    ports: &[&ServicePort],
    allow_loopback: bool,
) -> ServiceEndpoints {
    let mut out = ServiceEndpoints::default();
    let mut slices: Vec<&EndpointSlice> = slices.collect();
    // A pod that has an IPv4 address is not used by its IPv6 address too.
    slices.sort_by_key(|slice| (slice.address_type, &slice.meta.name));
    let mut found: BTreeMap<u16, Found> = ports.iter().map(|port| (port.port, Found::default())).collect();
    for slice in &slices {
        if slice.address_type == AddressType::Fqdn {
            out.diagnostics.push(Diagnostic::error(
                &reference(slice),
                "addressType",
                codes::UNSUPPORTED,
                "endpoints that are DNS names are not used",
                "use a Service of type ExternalName for a DNS name",
            ));
            continue;
        }
        let allowed = allowed(slice, allow_loopback, &mut out.diagnostics);
        for port in ports {
            let same = |name: Option<&Arc<str>>| name.map_or("", |name| &**name) == port.name.as_deref().unwrap_or("");
            let numbers = slice.ports.iter().filter(|p| p.protocol == Protocol::Tcp && same(p.name.as_ref())).filter_map(|p| p.port);
            if let Some(found) = found.get_mut(&port.port) {
                for number in numbers {
                    found.add(slice, number, &allowed);
                }
            }
        }
    }
    let by_port = found.into_iter().map(|(port, found)| (port, found.endpoints.into_values().collect()));
    out.by_port = LiteMap::from_sorted_store_unchecked(by_port.collect());
    out
}

/// The endpoints of one port, and the pods that they are on.
#[derive(Default)]
struct Found {
    endpoints: BTreeMap<(IpAddr, u16), Endpoint>,
    on_v4: BTreeSet<(u64, u16)>,
}

impl Found {
    fn add(&mut self, slice: &EndpointSlice, port: u16, allowed: &[Option<IpAddr>]) {
        for (endpoint, address) in slice.endpoints.iter().zip(allowed) {
            let Some(address) = *address else { continue };
            let state = if endpoint.is_ready() {
                EndpointState::Ready
            } else if endpoint.terminating.unwrap_or(false) && endpoint.is_serving() {
                EndpointState::Draining
            } else {
                continue;
            };
            if let Some(pod) = endpoint.target {
                if address.is_ipv4() {
                    self.on_v4.insert((pod, port));
                } else if self.on_v4.contains(&(pod, port)) {
                    continue;
                }
            }
            let new = Endpoint { address, port, state, weight: None, zone: endpoint.zone.clone() };
            self.endpoints
                .entry((address, port))
                .and_modify(|old| {
                    if (new.state, &new.zone) < (old.state, &old.zone) {
                        *old = new.clone();
                    }
                })
                .or_insert(new);
        }
    }
}

/// The address to use for each endpoint of `slice`.
fn allowed(slice: &EndpointSlice, allow_loopback: bool, diagnostics: &mut Vec<Diagnostic>) -> Vec<Option<IpAddr>> {
    let mut refused = 0;
    let mut out = Vec::with_capacity(slice.endpoints.len());
    for (index, endpoint) in slice.endpoints.iter().enumerate() {
        let address = endpoint.addresses.first().map(IpAddr::to_canonical);
        let why = address.and_then(|address| refusal(address, allow_loopback));
        out.push(if why.is_none() { address } else { None });
        if let (Some(address), Some(why)) = (address, why) {
            refused += 1;
            if refused <= MAX_TOLD {
                diagnostics.push(Diagnostic::error(
                    &reference(slice),
                    format!("endpoints[{index}].addresses[0]"),
                    codes::ADDRESS_REFUSED,
                    format!("{address} is {why}; no traffic is sent there"),
                    "use the addresses of pods or hosts",
                ));
            }
        }
    }
    if refused > MAX_TOLD {
        diagnostics.push(Diagnostic::error(
            &reference(slice),
            "endpoints",
            codes::ADDRESS_REFUSED,
            format!("{} more addresses are refused", refused - MAX_TOLD),
            "use the addresses of pods or hosts",
        ));
    }
    out
}

fn reference(slice: &EndpointSlice) -> ObjectRef {
    ObjectRef::new(Kind::EndpointSlice, slice.meta.namespace.clone(), slice.meta.name.clone())
}

/// Why traffic must not be sent to `address`, if so.
pub(super) fn refusal(address: IpAddr, allow_loopback: bool) -> Option<&'static str> {
    match address.to_canonical() {
        IpAddr::V4(v4) => refusal_v4(v4, allow_loopback),
        IpAddr::V6(v6) => refusal_v6(v6, allow_loopback),
    }
}

fn refusal_v4(address: Ipv4Addr, allow_loopback: bool) -> Option<&'static str> {
    let octets = address.octets();
    if address.is_loopback() {
        return (!allow_loopback).then_some("a loopback address");
    }
    if octets == [169, 254, 169, 254] || octets == [100, 100, 100, 200] || octets == [168, 63, 129, 16] {
        return Some("the address of a cloud's metadata service");
    }
    if address.is_link_local() {
        return Some("a link-local address");
    }
    if octets[0] == 0 {
        return Some("an unspecified address");
    }
    if address.is_multicast() {
        return Some("a multicast address");
    }
    (octets[0] >= 240).then_some("a broadcast or reserved address")
}

fn refusal_v6(address: Ipv6Addr, allow_loopback: bool) -> Option<&'static str> {
    let s = address.segments();
    if address.is_loopback() {
        return (!allow_loopback).then_some("a loopback address");
    }
    if address.is_unspecified() {
        return Some("an unspecified address");
    }
    if address.is_multicast() {
        return Some("a multicast address");
    }
    if s[0] & 0xffc0 == 0xfe80 || s[0] & 0xffc0 == 0xfec0 {
        return Some("a link-local address");
    }
    if s == [0xfd00, 0x0ec2, 0, 0, 0, 0, 0, 0x0254] || s == [0xfd20, 0x00ce, 0, 0, 0, 0, 0, 0x0254] {
        return Some("the address of a cloud's metadata service");
    }
    // Forms that carry an IPv4 address: compatible, NAT64, 6to4.
    let embedded = match s {
        [0, 0, 0, 0, 0, 0, hi, lo] | [0x64, 0xff9b, 0, 0, 0, 0, hi, lo] | [0x2002, hi, lo, ..] => Some((hi, lo)),
        _ => None,
    };
    let (hi, lo) = embedded?;
    let bits = (u32::from(hi) << 16) | u32::from(lo);
    // Nobody needs loopback in these forms, not even locally.
    refusal_v4(Ipv4Addr::from_bits(bits), false)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    #[test]
    fn addresses_that_lead_inside_are_refused_in_every_form() {
        for bad in [
            "127.0.0.1",
            "127.1.2.3",
            "::1",
            "::ffff:127.0.0.1",
            "::127.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "169.254.169.254",
            "::ffff:169.254.169.254",
            "169.254.0.7",
            "100.100.100.200",
            "168.63.129.16",
            "fd00:ec2::254",
            "fe80::1",
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
        ] {
            assert!(refusal(bad.parse().unwrap(), false).is_some(), "{bad}");
        }
        for good in ["10.0.0.1", "192.168.1.1", "2001:db8::1", "fd00::1", "64:ff9b::a00:1"] {
            assert!(refusal(good.parse().unwrap(), false).is_none(), "{good}");
        }
        assert!(refusal("127.0.0.9".parse().unwrap(), true).is_none());
        assert!(refusal("::1".parse().unwrap(), true).is_none());
        assert!(refusal("169.254.169.254".parse().unwrap(), true).is_some());
    }
}
