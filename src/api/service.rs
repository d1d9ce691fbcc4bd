//! `Service`.

use super::Meta;
use crate::report::{Diagnostic, Kind, ObjectRef, codes};
use k8s_openapi::api::core::v1 as full;
use std::sync::Arc;

/// The annotation that asked for what `spec.trafficDistribution` asks for, before that field was there.
pub const TOPOLOGY_MODE: &str = "service.kubernetes.io/topology-mode";

/// A name for a set of endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Service {
    /// Who it is.
    pub meta: Meta,
    /// Where its endpoints come from.
    pub kind: ServiceKind,
    /// Its ports. Those with an impossible number are left out (and told).
    pub ports: Box<[ServicePort]>,
    /// Whether it asks, in the ways of Kubernetes, that requests stay in the zone that they come from: by
    /// `spec.trafficDistribution`, or by the annotation [`TOPOLOGY_MODE`].
    pub prefers_zone: bool,
}

/// Where a Service's endpoints come from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServiceKind {
    /// `EndpointSlice` objects: `ClusterIP`, `NodePort`, `LoadBalancer`.
    Cluster {
        /// Whether it has no address of its own (`clusterIP: None`).
        headless: bool,
    },
    /// A DNS name, as written.
    ExternalName(Box<str>),
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServicePort {
    /// Its name; `None` for the only port of a Service, which may have none.
    pub name: Option<Arc<str>>,
    /// Its number.
    pub port: u16,
    /// What it speaks below HTTP.
    pub protocol: Protocol,
    /// `appProtocol`, such as `kubernetes.io/h2c`.
    pub app_protocol: Option<Box<str>>,
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP, the default.
    #[default]
    Tcp,
    /// UDP.
    Udp,
    /// SCTP, or something unknown: nothing that we can talk.
    Other,
}

impl From<Option<String>> for Protocol {
    fn from(name: Option<String>) -> Self {
        match name.as_deref() {
            None | Some("" | "TCP") => Self::Tcp,
            Some("UDP") => Self::Udp,
            Some(_) => Self::Other,
        }
    }
}

impl Service {
    /// The port with this number.
    pub fn port_by_number(&self, number: i32) -> Option<&ServicePort> {
        self.ports.iter().find(|port| i32::from(port.port) == number)
    }

    /// The port with this name.
    pub fn port_by_name(&self, name: &str) -> Option<&ServicePort> {
        self.ports.iter().find(|port| port.name.as_deref() == Some(name))
    }

    /// The lean form of `full`; what is left out goes to `diagnostics`.
    pub fn from_full(meta: Meta, full: Option<full::ServiceSpec>, diagnostics: &mut Vec<Diagnostic>) -> Self {
        let spec = full.unwrap_or_default();
        let object = ObjectRef::new(Kind::Service, meta.namespace.clone(), meta.name.clone());
        let kind = if spec.type_.as_deref() == Some("ExternalName") {
            ServiceKind::ExternalName(spec.external_name.unwrap_or_default().into())
        } else {
            ServiceKind::Cluster { headless: spec.cluster_ip.as_deref() == Some("None") }
        };
        let mut ports = Vec::new();
        for (index, port) in spec.ports.unwrap_or_default().into_iter().enumerate() {
            let Some(number) = u16::try_from(port.port).ok().filter(|number| *number != 0) else {
                diagnostics.push(bad_port(&object, format!("spec.ports[{index}].port"), port.port));
                continue;
            };
            ports.push(ServicePort {
                name: port.name.filter(|name| !name.is_empty()).map(Into::into),
                port: number,
                protocol: port.protocol.into(),
                app_protocol: port.app_protocol.map(Into::into),
            });
        }
        // the same node is in the same zone
        let close = matches!(spec.traffic_distribution.as_deref(), Some("PreferClose" | "PreferSameZone" | "PreferSameNode"));
        let by_annotation = meta.annotations.get(TOPOLOGY_MODE).is_some_and(|mode| matches!(mode, "Auto" | "auto"));
        Self { meta, kind, ports: ports.into(), prefers_zone: close || by_annotation }
    }
}

/// A port number that no port has.
pub(super) fn bad_port(object: &ObjectRef, field: String, number: i32) -> Diagnostic {
    let message = format!("{number} is no port number; this port is left out");
    Diagnostic::error(object, field, codes::INVALID_VALUE, message, "use a number from 1 to 65535")
}
