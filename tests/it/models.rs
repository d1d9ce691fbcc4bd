//! Models written by hand, for tests of what is behind `translate`.

use haproxy_fleet::model::*;
use haproxy_fleet::report::{Kind, ObjectRef};
use std::net::SocketAddr;
use std::sync::Arc;

/// The object that everything in these models comes from.
pub fn source() -> ObjectRef {
    ObjectRef::new(Kind::Ingress, "shop", "web")
}

/// A backend's identity, by its service.
pub fn id(service: &str) -> BackendId {
    BackendId { namespace: "shop".into(), service: service.into(), port: 80, owner: Owner::Shared }
}

/// Endpoints at these addresses.
pub fn endpoints(addresses: &[SocketAddr]) -> Arc<[Endpoint]> {
    let mut list: Vec<Endpoint> = addresses
        .iter()
        .map(|a| Endpoint { address: a.ip(), port: a.port(), state: EndpointState::Ready, weight: None, zone: None })
        .collect();
    list.sort();
    list.into()
}

/// A plain route.
pub fn route(path: PathMatch, target: Target) -> Route {
    Route { path, conditions: Conditions::default(), target, https_redirect: None, source: source() }
}

/// `Prefix`.
pub fn prefix(path: &str) -> PathMatch {
    PathMatch::Prefix(path.into())
}

/// `Exact`.
pub fn exact(path: &str) -> PathMatch {
    PathMatch::Exact(path.into())
}

/// One backend.
pub fn to(service: &str) -> Target {
    Target::Backend(id(service))
}

/// A model with an HTTP listener on the table `t`.
pub fn empty() -> Model {
    let mut model = Model::default();
    let protocol = Protocol::Http { table: "t".into(), https_port: None };
    model.listeners.insert("http".into(), Listener { protocol, public_port: 80, pod_port: 8080, proxy_protocol: false });
    model.tables.insert("t".into(), RouteTable::default());
    model
}

/// Puts a backend in.
pub fn backend(model: &mut Model, service: &str, addresses: &[SocketAddr], policy: Policy) {
    let backend = Backend {
        kind: BackendKind::Endpoints,
        mode: Mode::Http,
        policy: Arc::new(policy),
        endpoints: endpoints(addresses),
        zones: None,
        sources: Arc::new([source()]),
    };
    model.backends.insert(id(service), backend);
}

/// Puts a host's routes in.
pub fn host(model: &mut Model, host: HostMatch, routes: Vec<Route>) {
    model.tables.entry("t".into()).or_default().hosts.insert(host, Host { routes });
}

/// `HostMatch::Exact`.
pub fn name(name: &str) -> HostMatch {
    HostMatch::Exact(name.into())
}
