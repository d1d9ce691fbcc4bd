//! Echo servers for Services that have no endpoints, and the endpoint slices that lead to them.

use super::echo::Echo;
use crate::api::{AddressType, Endpoint, EndpointPort, EndpointSlice, Meta, Service, ServiceKind, ServicePort};
use crate::report::{Kind, ObjectRef};
use crate::world::{Object, World};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// Pods that each echoing Service pretends to have.
const PODS: usize = 2;

/// What the names of their slices end with. Nobody else names one so.
const SUFFIX: &str = ".echo.haproxy-fleet.dev";

/// The echo servers that run, by Service.
#[derive(Debug, Default)]
pub(super) struct Echoes {
    running: BTreeMap<(Arc<str>, Arc<str>), Running>,
}

#[derive(Debug)]
struct Running {
    /// The ports that they stand for.
    ports: Box<[ServicePort]>,
    _servers: Vec<Echo>,
}

/// For how long servers answer after they were taken out: as pods do, until everybody has noticed.
const NOTICE: Duration = Duration::from_secs(10);

impl Running {
    /// Answers until nobody asks any more.
    async fn leave(self) {
        tokio::time::sleep(NOTICE).await;
    }
}

/// What to change in the world so that it holds the slices of the echo servers.
#[derive(Debug, Default)]
pub(super) struct EchoDelta {
    /// Slices to put in.
    pub set: Vec<Object>,
    /// Slices to take out.
    pub removed: Vec<ObjectRef>,
}

impl Echoes {
    /// Starts servers for Services that have no endpoint slices, and ends those of Services that have
    /// got real ones, have other ports now, or are gone.
    pub(super) async fn follow(&mut self, world: &World) -> EchoDelta {
        let mut delta = EchoDelta::default();
        let wanted: BTreeMap<(Arc<str>, Arc<str>), Arc<Service>> = world
            .services()
            .filter(|service| !matches!(service.kind, ServiceKind::ExternalName { .. }) && !has_real_endpoints(world, service))
            .map(|service| ((service.meta.namespace.clone(), service.meta.name.clone()), service.clone()))
            .collect();
        let stays = |key: &(Arc<str>, Arc<str>), running: &Running| wanted.get(key).is_some_and(|service| service.ports == running.ports);
        let ended: Vec<_> = self.running.iter().filter(|(key, running)| !stays(key, running)).map(|(key, _)| key.clone()).collect();
        for key in ended {
            self.running.remove(&key).map(|running| tokio::spawn(running.leave()));
            let slices = world.endpoint_slices_of(&key.0, &key.1).filter(|slice| is_echo(slice));
            delta.removed.extend(slices.map(|slice| reference(&slice.meta.namespace, &slice.meta.name)));
        }
        for (key, service) in wanted {
            let Entry::Vacant(place) = self.running.entry(key) else { continue };
            match start(&service).await {
                Ok((servers, slices)) => {
                    place.insert(Running { ports: service.ports.clone(), _servers: servers });
                    delta.set.extend(slices);
                }
                // the others have theirs; with the next change it is tried again
                Err(error) => tracing::error!(service = %service.meta.name, %error, "no echo server for a Service"),
            }
        }
        delta
    }
}

fn has_real_endpoints(world: &World, service: &Service) -> bool {
    world.endpoint_slices_of(&service.meta.namespace, &service.meta.name).any(|slice| !is_echo(slice))
}

fn is_echo(slice: &EndpointSlice) -> bool {
    slice.meta.name.ends_with(SUFFIX)
}

fn reference(namespace: &Arc<str>, name: &str) -> ObjectRef {
    ObjectRef::new(Kind::EndpointSlice, namespace.clone(), name)
}

async fn start(service: &Service) -> io::Result<(Vec<Echo>, Vec<Object>)> {
    let (mut echoes, mut slices) = (Vec::new(), Vec::new());
    for port in &service.ports {
        let name = port.name.as_deref().unwrap_or_default();
        let echo = Echo::start(&service.meta.namespace, &service.meta.name, name, PODS).await?;
        for (pod, address) in echo.addresses().iter().enumerate() {
            slices.push(Object::EndpointSlice(Arc::new(slice(service, port, pod, *address))));
        }
        echoes.push(echo);
    }
    Ok((echoes, slices))
}

/// One slice for one address: every server has a port of its own.
fn slice(service: &Service, port: &ServicePort, pod: usize, address: SocketAddr) -> EndpointSlice {
    let name = format!("{}-{}-{pod}{SUFFIX}", service.meta.name, port.port);
    let addresses = Box::new([address.ip()]);
    let endpoint = Endpoint { addresses, ready: Some(true), serving: None, terminating: None, zone: None, target: None };
    EndpointSlice {
        meta: Meta::named(service.meta.namespace.clone(), name),
        service: Some(service.meta.name.clone()),
        address_type: AddressType::V4,
        ports: Box::new([EndpointPort { name: port.name.clone(), port: Some(address.port()), protocol: port.protocol }]),
        endpoints: Box::new([endpoint]),
    }
}
