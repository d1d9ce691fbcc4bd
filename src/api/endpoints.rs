//! `EndpointSlice`.

use super::Meta;
use super::service::{Protocol, bad_port};
use crate::report::{Diagnostic, Kind, ObjectRef, codes, object_number};
use k8s_openapi::api::discovery::v1 as full;
use std::net::IpAddr;
use std::sync::Arc;

/// The label that says which Service an `EndpointSlice` belongs to.
pub const LABEL_SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Some of the endpoints of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointSlice {
    /// Who it is. Of its labels only the one that names the Service is kept, as `service`.
    pub meta: Meta,
    /// The Service that it belongs to, from the label [`LABEL_SERVICE_NAME`].
    pub service: Option<Arc<str>>,
    /// What kind of addresses it holds.
    pub address_type: AddressType,
    /// The ports that every endpoint of the slice has.
    pub ports: Box<[EndpointPort]>,
    /// The endpoints.
    pub endpoints: Box<[Endpoint]>,
}

/// What kind of addresses a slice holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AddressType {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
    /// DNS names, which nothing supports (deprecated in Kubernetes); its endpoints have no addresses here.
    Fqdn,
}

/// A port of every endpoint of a slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EndpointPort {
    /// Name of the Service's port that leads to it; `None` where that has none.
    pub name: Option<Arc<str>>,
    /// Its number; `None`: every port (nothing that a route can lead to).
    pub port: Option<u16>,
    /// What it speaks below HTTP.
    pub protocol: Protocol,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// Its addresses; they mean the same endpoint. As written, IPv6-mapped IPv4 included; what is no address
    /// is left out (and told).
    pub addresses: Box<[IpAddr]>,
    /// `conditions.ready`; not said means ready.
    pub ready: Option<bool>,
    /// `conditions.serving`; not said means as `ready`.
    pub serving: Option<bool>,
    /// `conditions.terminating`; not said means no.
    pub terminating: Option<bool>,
    /// The zone that it is in.
    pub zone: Option<Arc<str>>,
    /// What it runs on (`targetRef`), by [`object_number`]: to see that two addresses are one pod's, and which pod it is.
    pub target: Option<u64>,
}

impl Endpoint {
    /// Whether it takes new work.
    pub fn is_ready(&self) -> bool {
        self.ready.unwrap_or(true) && !self.terminating.unwrap_or(false)
    }

    /// Whether it still answers, though it may be terminating.
    pub fn is_serving(&self) -> bool {
        self.serving.or(self.ready).unwrap_or(true)
    }
}

/// A number for what an endpoint runs on: the same for all its addresses.
fn target(reference: &k8s_openapi::api::core::v1::ObjectReference) -> u64 {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    object_number(&text(&reference.kind), &text(&reference.namespace), &text(&reference.name), &text(&reference.uid))
}

impl EndpointSlice {
    /// The lean form of `full`; what is left out goes to `diagnostics`.
    pub fn from_full(mut meta: Meta, full: full::EndpointSlice, diagnostics: &mut Vec<Diagnostic>) -> Self {
        let object = ObjectRef::new(Kind::EndpointSlice, meta.namespace.clone(), meta.name.clone());
        let service = meta.labels.get(LABEL_SERVICE_NAME).map(Arc::from);
        meta.labels = super::Pairs::default();
        meta.annotations = super::Pairs::default();
        let address_type = match full.address_type.as_str() {
            "IPv4" => AddressType::V4,
            "IPv6" => AddressType::V6,
            "FQDN" => AddressType::Fqdn,
            other => {
                let message = format!("`{other}` is no address type; the slice is not used");
                diagnostics.push(Diagnostic::error(&object, "addressType", codes::INVALID_VALUE, message, "use IPv4 or IPv6"));
                AddressType::Fqdn
            }
        };
        let mut zones = Zones::default();
        let ports = ports(&object, full.ports.unwrap_or_default(), diagnostics);
        let mut endpoints = Vec::with_capacity(full.endpoints.len());
        for (index, endpoint) in full.endpoints.into_iter().enumerate() {
            let conditions = endpoint.conditions.unwrap_or_default();
            endpoints.push(Endpoint {
                addresses: addresses(&object, index, address_type, &endpoint.addresses, diagnostics),
                ready: conditions.ready,
                serving: conditions.serving,
                terminating: conditions.terminating,
                zone: endpoint.zone.map(|zone| zones.share(zone)),
                target: endpoint.target_ref.as_ref().map(target),
            });
        }
        Self { meta, service, address_type, ports, endpoints: endpoints.into() }
    }
}

/// Endpoints of a slice are in few zones: one text for each.
#[derive(Default)]
struct Zones(Vec<Arc<str>>);

impl Zones {
    fn share(&mut self, zone: String) -> Arc<str> {
        if let Some(known) = self.0.iter().find(|known| ***known == *zone) {
            return known.clone();
        }
        let zone: Arc<str> = zone.into();
        self.0.push(zone.clone());
        zone
    }
}

fn ports(object: &ObjectRef, full: Vec<full::EndpointPort>, diagnostics: &mut Vec<Diagnostic>) -> Box<[EndpointPort]> {
    let mut ports = Vec::with_capacity(full.len());
    for (index, port) in full.into_iter().enumerate() {
        let number = match port.port {
            None => None,
            Some(number) => {
                let Some(valid) = u16::try_from(number).ok().filter(|valid| *valid != 0) else {
                    diagnostics.push(bad_port(object, format!("ports[{index}].port"), number));
                    continue;
                };
                Some(valid)
            }
        };
        ports.push(EndpointPort {
            name: port.name.filter(|name| !name.is_empty()).map(Into::into),
            port: number,
            protocol: port.protocol.into(),
        });
    }
    ports.into()
}

fn addresses(object: &ObjectRef, endpoint: usize, kind: AddressType, full: &[String], diagnostics: &mut Vec<Diagnostic>) -> Box<[IpAddr]> {
    if kind == AddressType::Fqdn {
        return Box::default();
    }
    let mut addresses = Vec::with_capacity(full.len());
    for (index, text) in full.iter().enumerate() {
        match text.parse::<IpAddr>() {
            Ok(address) if address.is_ipv4() == (kind == AddressType::V4) => addresses.push(address),
            _ => {
                let kind = if kind == AddressType::V4 { "IPv4" } else { "IPv6" };
                let message = format!("`{text}` is no {kind} address; it is left out");
                let field = format!("endpoints[{endpoint}].addresses[{index}]");
                diagnostics.push(Diagnostic::error(object, field, codes::INVALID_VALUE, message, format!("write an {kind} address")));
            }
        }
    }
    addresses.into()
}
