//! A short check that a cluster does what a real one does, of all that suites rely on.

use crate::cluster::Cluster;
use crate::command::until;
use crate::error::ClusterError;
use crate::images;
use crate::network::{DNS, Family, HOST, NODES, Node};
use fleet_image::Image;
use serde_json::Value;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

const MANIFESTS: &str = include_str!("../manifests/prove.yaml");
const SERVICE: &str = "echo.prove.svc.cluster.local";
const NODE_PORT: u16 = 30080;

/// How long what follows from a change may take, on a busy machine.
const SOON: Duration = Duration::from_secs(90);
/// How long one answer may take.
const ANSWER: Duration = Duration::from_secs(2);

type Proof = Result<(), ClusterError>;
type Check = (&'static str, fn(&Prover) -> Proof);

/// Checks the cluster, which must be up; the caller must be in its network ([`Cluster::is_inside`]). Tells `progress` of each
/// check that holds, and stops at the first that does not.
pub fn prove(cluster: &Cluster, progress: impl Fn(&str)) -> Proof {
    let prover = Prover { cluster: cluster.clone() };
    let checks: [Check; 13] = [
        ("four Ready nodes in three zones, with pod ranges of both families", Prover::nodes),
        ("pods run on every node, with addresses of both families", Prover::pods),
        ("a Service in DNS, A and AAAA", Prover::dns),
        ("a Service's cluster addresses", Prover::cluster_addresses),
        ("its port on each node", Prover::node_port),
        ("its balancer addresses", Prover::balancer_addresses),
        ("external traffic policy Local keeps the client's address", Prover::local_traffic),
        ("HAProxy of both lines, unprivileged", Prover::haproxies),
        ("an image gets to the nodes without a registry", Prover::image_import),
        ("traffic goes on while the API server is down or hangs", Prover::api_server_outage),
        ("traffic goes on while a zone is cut off", Prover::zone_outage),
        ("traffic goes on while a node is crashed, and it comes back", Prover::node_crash),
        ("metrics API, and a HorizontalPodAutoscaler that reads it", Prover::metrics),
    ];
    prover.prepare()?;
    for (name, check) in checks {
        check(&prover).map_err(|error| ClusterError::Unproven(format!("not so: {name}: {error}")))?;
        progress(name);
    }
    prover.clean("--wait=false")
}

struct Prover {
    cluster: Cluster,
}

impl Prover {
    fn prepare(&self) -> Proof {
        let manifests = MANIFESTS.replace("ECHO_IMAGE", images::ECHO).replace("HAPROXY_IMAGE", images::HAPROXY);
        self.clean("--timeout=90s")?; // what an earlier run left
        // a namespace is there before its default service account is, and without that pods are refused
        self.cluster.apply(MANIFESTS.split("\n---\n").next().unwrap_or_default())?;
        self.soon("the default service account", || Ok(self.get("serviceaccount", "default").is_ok()))?;
        self.cluster.apply(&manifests)
    }

    fn clean(&self, wait: &str) -> Proof {
        self.cluster.kubectl_output(&["delete", "namespace", "prove", "--ignore-not-found", wait]).map(drop)
    }

    fn nodes(&self) -> Proof {
        let nodes = self.json(&["get", "nodes", "--output=json"])?;
        for node in NODES {
            let of_it = |item: &&Value| item["metadata"]["name"] == node.name();
            let object = items(&nodes).iter().find(of_it).ok_or_else(|| unproven(format!("no {}", node.name())))?;
            let ranges = Family::ALL.map(|family| node.pods(family));
            let ready = items(&object["status"]["conditions"])
                .iter()
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
            let zone = &object["metadata"]["labels"]["topology.kubernetes.io/zone"];
            let addresses = object["status"]["addresses"].to_string();
            let own = Family::ALL.map(|family| node.addresses().of(family).to_string());
            let same = object["spec"]["podCIDRs"] == Value::from(ranges.to_vec()) && zone == node.zone;
            ensure(ready && same && own.iter().all(|address| addresses.contains(address)), || format!("{object}"))?;
        }
        Ok(())
    }

    fn pods(&self) -> Proof {
        self.rolled_out()?;
        let pods = self.json(&["--namespace=prove", "get", "pods", "--selector=app=echo", "--output=json"])?;
        let mut nodes: Vec<_> = items(&pods).iter().map(|pod| pod["spec"]["nodeName"].to_string()).collect();
        nodes.sort();
        nodes.dedup();
        ensure(nodes.len() == NODES.len(), || format!("pods are on {nodes:?}"))?;
        items(&pods).iter().flat_map(|pod| addresses(&pod["status"]["podIPs"])).try_for_each(|address| answers(address, 8080))
    }

    fn dns(&self) -> Proof {
        let service = self.get("service", "echo")?;
        for (family, kind) in [(Family::V4, 1), (Family::V6, 28)] {
            let wanted = of_family(&cluster_addresses(&service), family)?;
            self.soon("DNS", || Ok(resolve(DNS.of(Family::V4), SERVICE, kind).is_ok_and(|answer| answer.ends_with(&bytes(wanted)))))?;
            let server = DNS.of(family);
            let answer = resolve(server, SERVICE, kind).map_err(ClusterError::file("DNS"))?;
            ensure(answer.ends_with(&bytes(wanted)), || format!("{server} does not say {wanted}"))?;
        }
        Ok(())
    }

    fn cluster_addresses(&self) -> Proof {
        let service = self.get("service", "echo")?;
        Family::ALL.into_iter().try_for_each(|family| self.repeatedly(of_family(&cluster_addresses(&service), family)?, 80))
    }

    fn node_port(&self) -> Proof {
        let addresses = NODES.into_iter().flat_map(|node| Family::ALL.map(|family| node.addresses().of(family)));
        addresses.into_iter().try_for_each(|address| self.repeatedly(address, NODE_PORT))
    }

    fn balancer_addresses(&self) -> Proof {
        Family::ALL.into_iter().try_for_each(|family| self.repeatedly(self.balancer_address("echo", family)?, 80))
    }

    fn local_traffic(&self) -> Proof {
        for family in Family::ALL {
            let address = self.balancer_address("echo-local", family)?;
            self.repeatedly(address, 80)?;
            let told = get(address, 80)?;
            let client = told["remote"].as_str().and_then(|remote| remote.parse::<SocketAddr>().ok());
            ensure(client.is_some_and(|client| client.ip() == HOST.of(family)), || format!("{address} says {told}"))?;
        }
        Ok(())
    }

    fn haproxies(&self) -> Proof {
        for line in images::HAPROXY_LINES {
            let name = format!("haproxy-{line}");
            self.ready(&format!("pod/{name}"))?;
            let pod = self.get("pod", &name)?;
            for address in addresses(&pod["status"]["podIPs"]) {
                let text = get_text(address, 8080)?;
                ensure(text.contains(&format!("x-haproxy: {line}")), || format!("{name} answers {text}"))?;
            }
        }
        Ok(())
    }

    fn image_import(&self) -> Proof {
        let tag = "haproxy-fleet.dev/imported:1";
        let layout = self.cluster.layout();
        let (root, archive) = (layout.state().join("imported"), layout.state().join("imported.tar"));
        fs::create_dir_all(&root).map_err(ClusterError::file(&root))?;
        fs::copy(layout.program("echo"), root.join("echo")).map_err(ClusterError::file(&root))?;
        let image = Image { tags: vec![tag.parse()?], entrypoint: vec!["/echo".to_owned()], user: "65532".to_owned(), ..Image::default() };
        image.pack(&root, &archive)?;
        self.cluster.load_image(&archive)?;
        self.cluster.kubectl_output(&["--namespace=prove", "run", "imported", "--image-pull-policy=Never", &format!("--image={tag}")])?;
        self.ready("pod/imported")
    }

    fn api_server_outage(&self) -> Proof {
        let address = self.balancer_address("echo", Family::V4)?;
        let api_server = self.cluster.control("kube-apiserver")?;
        let asks = || self.cluster.kubectl_output(&["get", "namespaces", "--request-timeout=2s"]);

        api_server.freeze()?;
        ensure(asks().is_err(), || "a frozen API server answers".to_owned())?;
        serves(address)?;
        api_server.thaw()?;
        self.cluster.wait_for_api_server()?;

        api_server.stop()?;
        ensure(asks().is_err(), || "a stopped API server answers".to_owned())?;
        serves(address)?;
        api_server.start()?;
        self.cluster.wait_for_api_server()?;
        self.cluster.kubectl_output(&["--namespace=prove", "rollout", "restart", "deployment/echo"])?;
        self.rolled_out()
    }

    fn zone_outage(&self) -> Proof {
        let balancer = self.balancer_address("echo", Family::V6)?;
        let zone = self.cluster.zone("zone-a")?;
        let nodes: Vec<_> = zone.nodes().map(|node| node.addresses().v4).collect();
        zone.cut()?;
        ensure(nodes.iter().all(|node| get((*node).into(), NODE_PORT).is_err()), || "a node that is cut off answers".to_owned())?;
        self.soon("traffic beside the zone that is cut off", || Ok(serves(balancer).is_ok()))?;
        zone.mend()?;
        nodes.into_iter().try_for_each(|node| self.soon("a mended node", || Ok(get(node.into(), NODE_PORT).is_ok())))
    }

    fn node_crash(&self) -> Proof {
        let node = self.cluster.node(NODES[3].number)?;
        let balancer = self.balancer_address("echo", Family::V4)?;
        node.crash()?;
        self.soon("traffic beside the crashed node", || Ok(serves(balancer).is_ok()))?;
        self.soon("the crashed node's state", || Ok(!self.is_ready(node.node())?))?;
        node.start()?;
        self.soon("the return of the crashed node", || self.is_ready(node.node()))?;
        self.rolled_out()?;
        self.soon("traffic by way of the node that returned", || Ok(answers(node.node().addresses().v6.into(), NODE_PORT).is_ok()))
    }

    fn metrics(&self) -> Proof {
        let usage = || self.json(&["get", "--raw", "/apis/metrics.k8s.io/v1beta1/nodes"]);
        let all = || Ok(usage().is_ok_and(|nodes| items(&nodes).len() == NODES.len()));
        self.soon("the use of all nodes", all)?;
        self.soon("a HorizontalPodAutoscaler's reading", || {
            let scaler = self.get("horizontalpodautoscaler", "echo")?;
            Ok(scaler["status"]["currentMetrics"][0]["resource"]["current"]["averageUtilization"].is_number())
        })
    }

    fn is_ready(&self, node: Node) -> Result<bool, ClusterError> {
        let state = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        self.cluster.kubectl_output(&["get", "node", &node.name(), "--output", state]).map(|status| status == "True")
    }

    fn ready(&self, object: &str) -> Proof {
        self.cluster.kubectl_output(&["--namespace=prove", "wait", "--for=condition=Ready", object, "--timeout=90s"]).map(drop)
    }

    fn rolled_out(&self) -> Proof {
        self.cluster.kubectl_output(&["--namespace=prove", "rollout", "status", "deployment/echo", "--timeout=90s"]).map(drop)
    }

    fn json(&self, arguments: &[&str]) -> Result<Value, ClusterError> {
        Ok(serde_json::from_str(&self.cluster.kubectl_output(arguments)?)?)
    }

    fn get(&self, kind: &str, name: &str) -> Result<Value, ClusterError> {
        self.json(&["--namespace=prove", "get", kind, name, "--output=json"])
    }

    fn soon(&self, what: &str, ready: impl FnMut() -> Result<bool, ClusterError>) -> Proof {
        until(what, SOON, &self.cluster.layout().log(), ready)
    }

    fn balancer_address(&self, service: &str, family: Family) -> Result<IpAddr, ClusterError> {
        let mut found = None;
        self.soon("a balancer address", || {
            let status = self.get("service", service)?["status"]["loadBalancer"]["ingress"].take();
            found = addresses(&status).into_iter().find(|address| Family::of(*address) == family);
            Ok(found.is_some())
        })?;
        found.ok_or_else(|| unproven(format!("{service} has no address")))
    }

    /// Waits for the first answer, then wants one each time.
    fn repeatedly(&self, address: IpAddr, port: u16) -> Proof {
        self.soon(&format!("an answer of {address} at port {port}"), || Ok(get(address, port).is_ok()))?;
        (0..8).try_for_each(|_| answers(address, port))
    }
}

/// A Service of echo servers answers, each time.
fn serves(address: IpAddr) -> Proof {
    (0..8).try_for_each(|_| answers(address, 80))
}

fn items(list: &Value) -> &[Value] {
    list.as_array().or_else(|| list["items"].as_array()).map_or(&[], Vec::as_slice)
}

/// The addresses of a list of `{ip: …}`.
fn addresses(list: &Value) -> Vec<IpAddr> {
    items(list).iter().filter_map(|entry| entry["ip"].as_str()?.parse().ok()).collect()
}

fn cluster_addresses(service: &Value) -> Vec<IpAddr> {
    items(&service["spec"]["clusterIPs"]).iter().filter_map(|address| address.as_str()?.parse().ok()).collect()
}

fn of_family(addresses: &[IpAddr], family: Family) -> Result<IpAddr, ClusterError> {
    let found = addresses.iter().copied().find(|address| Family::of(*address) == family);
    found.ok_or_else(|| unproven(format!("no {family:?} among {addresses:?}")))
}

fn bytes(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn ensure(so: bool, otherwise: impl FnOnce() -> String) -> Proof {
    if so { Ok(()) } else { Err(unproven(otherwise())) }
}

fn unproven(text: String) -> ClusterError {
    ClusterError::Unproven(text)
}

/// One of our echo servers must answer.
fn answers(address: IpAddr, port: u16) -> Proof {
    let told = get(address, port)?;
    ensure(told["pod"].is_string(), || format!("{address} says {told}"))
}

fn get(address: IpAddr, port: u16) -> Result<Value, ClusterError> {
    let text = get_text(address, port)?;
    Ok(serde_json::from_str(text.split_once("\r\n\r\n").map_or("", |(_, body)| body))?)
}

fn get_text(address: IpAddr, port: u16) -> Result<String, ClusterError> {
    let address = SocketAddr::new(address, port);
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&address, ANSWER)?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    };
    ask().map_err(ClusterError::file(address.to_string()))
}

/// The answer to a question for the records of a name: RFC 1035, section 4. With one record it ends in its data.
fn resolve(server: IpAddr, name: &str, kind: u8) -> io::Result<Vec<u8>> {
    let mut question = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        question.push(u8::try_from(label.len()).map_err(io::Error::other)?);
        question.extend(label.as_bytes());
    }
    question.extend([0, 0, kind, 0, 1]);
    let any: IpAddr = if server.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let socket = UdpSocket::bind((any, 0))?;
    socket.set_read_timeout(Some(ANSWER))?;
    socket.connect((server, 53))?;
    socket.send(&question)?;
    let mut answer = vec![0; 512];
    let length = socket.recv(&mut answer)?;
    answer.truncate(length);
    Ok(answer)
}
