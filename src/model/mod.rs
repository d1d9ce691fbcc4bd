//! What a fleet's proxies must do: free of Kubernetes and of HAProxy syntax.
//!
//! Gateway API's expressiveness, Ingress being the easy case. `translate` writes it, `haproxy::render`
//! reads it. Every text in here is data from a tenant unless said otherwise: it is checked for shape
//! where it enters (see each field), and the writer of `haproxy::config` is the second line of defence.
//!
//! Everything is keyed, so that a change is a set of keys ([`Touched`]) and costs what it touches.

mod backend;
mod policy;
mod route;
mod settings;
mod tls;

pub use backend::*;
pub use policy::*;
pub use route::*;
pub use settings::*;
pub use tls::*;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Names one fleet: the namespace and name of its `IngressDeployment`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FleetId {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl std::fmt::Display for FleetId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Everything that the proxies of one fleet must do.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Model {
    /// What listeners do with every request.
    pub settings: Settings,
    /// Ports that clients connect to, by name.
    pub listeners: BTreeMap<ListenerName, Listener>,
    /// Routing tables; several listeners may share one (Ingress: `http` and `https` do).
    pub tables: BTreeMap<TableName, RouteTable>,
    /// Where requests go.
    pub backends: BTreeMap<BackendId, Backend>,
    /// Certificates that the fleet serves.
    pub certificates: BTreeMap<CertificateId, Certificate>,
    /// Which names each certificate is served for, per certificate list.
    pub certificate_lists: BTreeMap<ListName, CertificateList>,
    /// Certificate served when no name matches; `None`: each pod's self-signed one.
    pub default_certificate: Option<CertificateId>,
    /// CA bundles that servers are verified with.
    pub ca_bundles: BTreeMap<CaId, CaBundle>,
}

/// The keys of a [`Model`] whose values may have changed (added, replaced or removed).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Whether the settings are others now.
    pub settings: bool,
    /// Listeners.
    pub listeners: BTreeSet<ListenerName>,
    /// Hosts of tables.
    pub hosts: BTreeSet<(TableName, HostMatch)>,
    /// Backends whose policy, kind or existence changed.
    pub backends: BTreeSet<BackendId>,
    /// Backends of which only the endpoints changed, or whether pods keep to those of their zone.
    pub endpoints: BTreeSet<BackendId>,
    /// Certificates.
    pub certificates: BTreeSet<CertificateId>,
    /// Entries of certificate lists.
    pub list_entries: BTreeSet<(ListName, CertificateId)>,
    /// Whether the default certificate is another one now.
    pub default_certificate: bool,
    /// CA bundles.
    pub ca_bundles: BTreeSet<CaId>,
}

impl Touched {
    /// Every key of `model`: for a first rendering.
    pub fn all(model: &Model) -> Self {
        Self {
            settings: true,
            listeners: model.listeners.keys().cloned().collect(),
            hosts: model.tables.iter().flat_map(|(table, routes)| routes.hosts.keys().map(|host| (table.clone(), host.clone()))).collect(),
            backends: model.backends.keys().cloned().collect(),
            endpoints: BTreeSet::new(),
            certificates: model.certificates.keys().cloned().collect(),
            list_entries: model
                .certificate_lists
                .iter()
                .flat_map(|(list, entries)| entries.entries.keys().map(|id| (list.clone(), id.clone())))
                .collect(),
            default_certificate: true,
            ca_bundles: model.ca_bundles.keys().cloned().collect(),
        }
    }

    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}
