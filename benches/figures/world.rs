//! Synthetic manifests: N routes, each with a Service of its own and its endpoints.

use serde_json::{Value, json};
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

/// Namespace of the fleet.
pub const FLEET_NAMESPACE: &str = "edge";
/// Its name.
pub const FLEET: &str = "public";
/// The class of all Ingresses.
pub const CLASS: &str = "haproxy";
/// Routes that share a namespace.
const PER_NAMESPACE: usize = 50;

/// What to make.
#[derive(Clone, Debug)]
pub struct Plan {
    /// How many routes: one Ingress, Service and EndpointSlice each.
    pub routes: usize,
    /// How many endpoints each has.
    pub endpoints: usize,
    /// Replicas of the fleet.
    pub replicas: usize,
    /// The port of all endpoints.
    pub port: u16,
    /// Whether endpoints are loopback addresses, which a server that listens on all of them answers for.
    pub loopback: bool,
    /// The fleet's default certificate and key (PEM), if it shall speak TLS.
    pub certificate: Option<(String, String)>,
}

impl Plan {
    /// `routes` routes with 10 endpoints that nobody answers for.
    pub fn new(routes: usize) -> Self {
        Self { routes, endpoints: 10, replicas: 1, port: 8080, loopback: false, certificate: None }
    }

    /// The host of a route.
    pub fn host(route: usize) -> String {
        format!("r{route}.bench.example")
    }

    /// The namespace of a route.
    pub fn namespace(route: usize) -> String {
        format!("team-{}", route / PER_NAMESPACE)
    }

    /// The name of a route's Ingress and Service.
    pub fn name(route: usize) -> String {
        format!("app-{route}")
    }

    /// The address of an endpoint; `generation` counts replacements of it.
    #[allow(clippy::cast_possible_truncation)] // taken apart into bytes on purpose
    pub fn address(&self, route: usize, endpoint: usize, generation: usize) -> Ipv4Addr {
        let number = route * self.endpoints + endpoint + 1;
        if self.loopback {
            return Ipv4Addr::new(127, 1 + (generation % 250) as u8, (endpoint / 250) as u8, (endpoint % 250 + 1) as u8);
        }
        Ipv4Addr::new(10 + (generation % 100) as u8, (number >> 16) as u8, (number >> 8) as u8, number as u8)
    }

    /// The first addresses of all endpoints of a route.
    pub fn addresses(&self, route: usize) -> Vec<Ipv4Addr> {
        (0..self.endpoints).map(|endpoint| self.address(route, endpoint, 0)).collect()
    }

    /// The fleet and what belongs to it.
    pub fn fleet(&self) -> Vec<Value> {
        let mut spec = json!({ "ingressClassName": CLASS, "replicas": self.replicas });
        let mut objects = Vec::new();
        if let Some((certificate, key)) = &self.certificate {
            spec["tls"] = json!({ "defaultCertificateRef": { "name": "default-tls" } });
            objects.push(json!({
                "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
                "metadata": { "namespace": FLEET_NAMESPACE, "name": "default-tls" },
                "stringData": { "tls.crt": certificate, "tls.key": key },
            }));
        }
        objects.push(json!({
            "apiVersion": "haproxy-fleet.dev/v1alpha1", "kind": "IngressDeployment",
            "metadata": { "namespace": FLEET_NAMESPACE, "name": FLEET }, "spec": spec,
        }));
        objects
    }

    /// The Ingress of a route.
    pub fn ingress(route: usize) -> Value {
        let service = json!({ "name": Self::name(route), "port": { "name": "http" } });
        json!({
            "apiVersion": "networking.k8s.io/v1", "kind": "Ingress",
            "metadata": { "namespace": Self::namespace(route), "name": Self::name(route), "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "ingressClassName": CLASS, "rules": [{
                "host": Self::host(route),
                "http": { "paths": [{ "path": "/", "pathType": "Prefix", "backend": { "service": service } }] },
            }] },
        })
    }

    /// The Service of a route.
    pub fn service(route: usize) -> Value {
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": { "namespace": Self::namespace(route), "name": Self::name(route) },
            "spec": { "ports": [{ "name": "http", "port": 80, "targetPort": "http" }] },
        })
    }

    /// The EndpointSlice of a route with these addresses.
    pub fn endpoint_slice(&self, route: usize, addresses: &[Ipv4Addr]) -> Value {
        let endpoint = |address: &Ipv4Addr| json!({ "addresses": [address.to_string()], "conditions": { "ready": true, "serving": true, "terminating": false } });
        json!({
            "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
            "metadata": {
                "namespace": Self::namespace(route), "name": format!("{}-1", Self::name(route)),
                "labels": { "kubernetes.io/service-name": Self::name(route) },
            },
            "ports": [{ "name": "http", "port": self.port, "protocol": "TCP" }],
            "endpoints": addresses.iter().map(endpoint).collect::<Vec<_>>(),
        })
    }

    /// All objects of a route.
    pub fn route(&self, route: usize) -> [Value; 3] {
        [Self::service(route), self.endpoint_slice(route, &self.addresses(route)), Self::ingress(route)]
    }

    /// Writes everything below `directory`, one file for each route; says how many bytes that are.
    pub fn write(&self, directory: &Path) -> Result<usize, Box<dyn Error>> {
        let mut written = 0;
        let mut write = |path: &Path, objects: &[Value]| -> Result<(), Box<dyn Error>> {
            let text = yaml(objects)?;
            written += text.len();
            Ok(fs::write(path, text)?)
        };
        fs::create_dir_all(directory)?;
        write(&directory.join("fleet.yaml"), &self.fleet())?;
        for route in 0..self.routes {
            let home = directory.join(Self::namespace(route));
            if route % PER_NAMESPACE == 0 {
                fs::create_dir_all(&home)?;
            }
            write(&home.join(format!("{}.yaml", Self::name(route))), &self.route(route))?;
        }
        Ok(written)
    }
}

/// Objects as a stream of YAML documents.
pub fn yaml(objects: &[Value]) -> Result<String, Box<dyn Error>> {
    let mut text = String::new();
    for object in objects {
        writeln!(text, "---\n{}", serde_saphyr::to_string(object)?.trim_end())?;
    }
    Ok(text)
}
