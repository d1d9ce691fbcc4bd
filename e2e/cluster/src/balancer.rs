//! The cluster's load balancer and its router, on the host.
//!
//! Once a second it gives every Service of type `LoadBalancer` that lacks one an address of each of its families, and asks
//! the nodes for their health: that of kube-proxy, or for a Service with external traffic policy `Local` whether the node
//! has an endpoint of it (its health-check node port). New connections to the Service's address go to its healthy nodes in
//! turn; a connection stays with its node to the end, as connection tracking holds the node's mark: a cloud's load balancer
//! that drains does so, too. Cluster addresses lead to all healthy nodes. A Service with a `loadBalancerClass` is left to
//! someone else; `loadBalancerSourceRanges` are kube-proxy's business.

use crate::command::{output, output_with};
use crate::error::ClusterError;
use crate::network::{BALANCERS, Family, NODES, Node, PROXY_HEALTH, SERVICES};
use k8s_openapi::api::core::v1::Service;
use kube::api::{Api, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::process::Command;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// How often services and nodes are looked at.
const ROUND: Duration = Duration::from_secs(1);
/// How long a node may take to tell of its health.
const ANSWER: Duration = Duration::from_millis(500);
/// The mark and the routing table that lead nowhere; node N has the one that is N more.
const NOWHERE: u32 = 100;

/// Where health is asked for: on a node's address of a family, at a port.
type Health = BTreeMap<(Family, u16), Vec<Node>>;
/// Which nodes an address leads to.
type Targets = BTreeMap<IpAddr, Vec<Node>>;

/// Balances until it is killed. What it changes, and what it could not do, goes to standard output.
pub async fn run(kubeconfig: &Path) -> Result<(), ClusterError> {
    let file = Kubeconfig::read_from(kubeconfig)?;
    let mut config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    config.connect_timeout = Some(Duration::from_secs(2));
    config.read_timeout = Some(Duration::from_secs(5));
    let client = kube::Client::try_from(config).map_err(Box::new)?;
    prepare()?;
    let mut balancer = Balancer { services: Api::all(client.clone()), client, set: BTreeMap::new() };
    loop {
        if let Err(error) = balancer.round().await {
            say(&format!("error: {error}"));
        }
        tokio::time::sleep(ROUND).await;
    }
}

struct Balancer {
    client: kube::Client,
    services: Api<Service>,
    /// What was last set in the kernel, by subject.
    set: BTreeMap<&'static str, String>,
}

impl Balancer {
    async fn round(&mut self) -> Result<(), ClusterError> {
        let services = self.services.list(&ListParams::default()).await.map_err(Box::new)?.items;
        let mut balanced: Vec<_> = services.into_iter().filter(is_ours).collect();
        for (index, addresses) in assign(&balanced) {
            balanced[index] = self.publish(&balanced[index], &addresses).await?;
        }
        let health = ask(&ports(&balanced)).await;
        self.spread(health.get(&(Family::V4, PROXY_HEALTH)).map_or(&[], Vec::as_slice))?;
        self.balance(&targets(&balanced, &health))
    }

    async fn publish(&self, service: &Service, addresses: &[IpAddr]) -> Result<Service, ClusterError> {
        let namespace = service.metadata.namespace.as_deref().unwrap_or_default();
        let name = service.metadata.name.as_deref().unwrap_or_default();
        let ingress: Vec<_> = addresses.iter().map(|address| json!({ "ip": address })).collect();
        let status = Patch::Merge(json!({ "status": { "loadBalancer": { "ingress": ingress } } }));
        let api: Api<Service> = Api::namespaced(self.client.clone(), namespace);
        Ok(api.patch_status(name, &PatchParams::default(), &status).await.map_err(Box::new)?)
    }

    /// Leads cluster addresses by way of all these nodes.
    fn spread(&mut self, nodes: &[Node]) -> Result<(), ClusterError> {
        let text = format!("{nodes:?}");
        if self.set.get("services") == Some(&text) {
            return Ok(());
        }
        for family in Family::ALL {
            ip(family, &format!("route replace {}", way_to_services(family, nodes)))?;
        }
        self.set.insert("services", text);
        Ok(())
    }

    /// Leads balancer addresses to their nodes; all rules change in one transaction.
    fn balance(&mut self, targets: &Targets) -> Result<(), ClusterError> {
        let rules = rules(targets);
        if self.set.get("rules") == Some(&rules) {
            return Ok(());
        }
        output_with(Command::new("nft").args(["-f", "-"]), &rules)?;
        self.set.insert("rules", rules);
        for (address, nodes) in targets {
            let names: Vec<_> = nodes.iter().map(|node| node.name()).collect();
            say(&format!("{address} via {}", if names.is_empty() { "nowhere".to_owned() } else { names.join(" ") }));
        }
        Ok(())
    }
}

/// A routing table for each node and one that leads nowhere, chosen by mark.
fn prepare() -> Result<(), ClusterError> {
    for family in Family::ALL {
        for mark in std::iter::once(NOWHERE).chain(NODES.map(mark)) {
            // from an earlier run: there may be none
            let _ = Command::new("ip").args([family.flag(), "rule", "del", "fwmark", &mark.to_string()]).output();
            ip(family, &format!("rule add fwmark {mark} lookup {mark}"))?;
        }
        ip(family, &format!("route replace unreachable default table {NOWHERE}"))?;
        for node in NODES {
            ip(family, &format!("route replace default via {} table {}", node.addresses().of(family), mark(node)))?;
        }
        // only to find a source address: the mark then decides the way
        ip(family, &format!("route replace {} via {}", BALANCERS.of(family), NODES[0].addresses().of(family)))?;
    }
    Ok(())
}

fn ip(family: Family, arguments: &str) -> Result<(), ClusterError> {
    output(Command::new("ip").arg(family.flag()).args(arguments.split(' '))).map(drop)
}

fn mark(node: Node) -> u32 {
    NOWHERE + u32::from(node.number)
}

fn way_to_services(family: Family, nodes: &[Node]) -> String {
    let range = SERVICES.of(family);
    if nodes.is_empty() {
        return format!("unreachable {range}");
    }
    nodes.iter().fold(range.to_owned(), |way, node| format!("{way} nexthop via {}", node.addresses().of(family)))
}

fn is_ours(service: &Service) -> bool {
    let spec = service.spec.as_ref();
    spec.is_some_and(|spec| spec.type_.as_deref() == Some("LoadBalancer") && spec.load_balancer_class.is_none())
}

fn families(service: &Service) -> Vec<Family> {
    let named = service.spec.as_ref().and_then(|spec| spec.ip_families.as_deref()).unwrap_or_default();
    let is_named = |family: &Family| named.iter().any(|name| name == if *family == Family::V4 { "IPv4" } else { "IPv6" });
    Family::ALL.into_iter().filter(is_named).collect()
}

fn addresses(service: &Service) -> Vec<IpAddr> {
    let status = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = status.and_then(|status| status.ingress.as_deref()).unwrap_or_default();
    ingress.iter().filter_map(|ingress| ingress.ip.as_deref()?.parse().ok()).collect()
}

/// The addresses of services (by index) that lack one of a family; those that they have they keep. What
/// `loadBalancerIP` asks for is given if it is free.
fn assign(services: &[Service]) -> Vec<(usize, Vec<IpAddr>)> {
    let mut taken: BTreeSet<IpAddr> = services.iter().flat_map(addresses).collect();
    let mut assigned = Vec::new();
    for (index, service) in services.iter().enumerate() {
        let wanted = families(service);
        let had = addresses(service);
        let mut has: Vec<_> = had.iter().copied().filter(|address| wanted.contains(&Family::of(*address))).collect();
        for family in wanted {
            if has.iter().any(|address| Family::of(*address) == family) {
                continue;
            }
            let asked = service.spec.as_ref().and_then(|spec| spec.load_balancer_ip.as_deref()?.parse().ok());
            let free = asked.into_iter().chain(pool(family)).find(|address| in_pool(*address, family) && !taken.contains(address));
            taken.extend(free);
            has.extend(free);
        }
        if has != had {
            assigned.push((index, has));
        }
    }
    assigned
}

/// All addresses to give, of a family: those of `BALANCERS` that end in 1 to 254.
fn pool(family: Family) -> impl Iterator<Item = IpAddr> {
    (1..=254).map(move |last: u8| match family {
        Family::V4 => Ipv4Addr::new(10, 91, 0, last).into(),
        Family::V6 => Ipv6Addr::new(0xfd00, 0x91, 0, 0, 0, 0, 0, last.into()).into(),
    })
}

fn in_pool(address: IpAddr, family: Family) -> bool {
    pool(family).any(|given| given == address)
}

fn health_port(service: &Service) -> Option<u16> {
    let port = service.spec.as_ref().and_then(|spec| spec.health_check_node_port)?;
    u16::try_from(port).ok().filter(|port| *port != 0)
}

/// kube-proxy's own health is told on IPv4 only; that of a service with local traffic on its families.
fn health_of(service: &Service, family: Family) -> (Family, u16) {
    health_port(service).map_or((Family::V4, PROXY_HEALTH), |port| (family, port))
}

fn ports(services: &[Service]) -> BTreeSet<(Family, u16)> {
    let of_services = services.iter().flat_map(|service| families(service).into_iter().map(|family| health_of(service, family)));
    of_services.chain([(Family::V4, PROXY_HEALTH)]).collect()
}

async fn ask(ports: &BTreeSet<(Family, u16)>) -> Health {
    let questions = ports.iter().flat_map(|port| NODES.map(|node| (*port, node)));
    let answers = futures::future::join_all(questions.map(async |((family, port), node)| {
        let healthy = is_healthy(node.addresses().of(family), port).await;
        healthy.then_some(((family, port), node))
    }));
    let mut health = Health::new();
    for (port, node) in answers.await.into_iter().flatten() {
        health.entry(port).or_default().push(node);
    }
    health
}

async fn is_healthy(address: IpAddr, port: u16) -> bool {
    let question = async {
        let mut stream = TcpStream::connect((address, port)).await?;
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n").await?;
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await?;
        Ok::<_, std::io::Error>(answer.ends_with(b" 200"))
    };
    matches!(tokio::time::timeout(ANSWER, question).await, Ok(Ok(true)))
}

fn targets(services: &[Service], health: &Health) -> Targets {
    let healthy = |service: &Service, address: IpAddr| health.get(&health_of(service, Family::of(address))).cloned().unwrap_or_default();
    let of_service = |service| addresses(service).into_iter().map(move |address| (address, healthy(service, address)));
    services.iter().flat_map(of_service).collect()
}

/// The rules of both families: the first packet of a connection draws a node, all others follow it.
fn rules(targets: &Targets) -> String {
    Family::ALL.into_iter().map(|family| rules_of(family, targets)).collect()
}

fn rules_of(family: Family, targets: &Targets) -> String {
    let table = if family == Family::V4 { "ip" } else { "ip6" };
    let range = BALANCERS.of(family);
    let mut choose = format!("ct mark set {NOWHERE}");
    for (address, nodes) in targets.iter().filter(|(address, nodes)| Family::of(**address) == family && !nodes.is_empty()) {
        let turns: Vec<_> = nodes.iter().enumerate().map(|(turn, node)| format!("{turn} : {}", mark(*node))).collect();
        // a text takes all that is written to it
        let _ = write!(choose, "\n    {table} daddr {address} ct mark set numgen inc mod {} map {{ {} }}", nodes.len(), turns.join(", "));
    }
    format!(
        "add table {table} balancer
flush table {table} balancer
table {table} balancer {{
  chain choose {{
    {choose}
  }}
  chain output {{
    type route hook output priority mangle;
    {table} daddr {range} ct state new jump choose
    {table} daddr {range} meta mark set ct mark
  }}
}}
"
    )
}

/// The log is standard output; a reader that is gone changes nothing about the balancing.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn service(families: &[&str], addresses: &[&str]) -> Service {
        let ingress: Vec<_> = addresses.iter().map(|address| json!({ "ip": address })).collect();
        serde_json::from_value(json!({
            "apiVersion": "v1", "kind": "Service",
            "spec": { "type": "LoadBalancer", "ipFamilies": families },
            "status": { "loadBalancer": { "ingress": ingress } },
        }))
        .unwrap()
    }

    fn texts(addresses: &[IpAddr]) -> Vec<String> {
        addresses.iter().map(IpAddr::to_string).collect()
    }

    #[test]
    fn a_service_gets_an_address_of_each_family_that_no_other_has() {
        let services = [service(&["IPv4"], &["10.91.0.1"]), service(&["IPv6", "IPv4"], &[]), service(&["IPv6"], &[])];
        let assigned = assign(&services);
        assert_eq!(assigned.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(texts(&assigned[0].1), ["10.91.0.2", "fd00:91::1"]);
        assert_eq!(texts(&assigned[1].1), ["fd00:91::2"]);
    }

    #[test]
    fn a_service_that_becomes_single_stack_keeps_its_other_address_only() {
        assert_eq!(texts(&assign(&[service(&["IPv4"], &["10.91.0.7", "fd00:91::7"])])[0].1), ["10.91.0.7"]);
        assert!(assign(&[service(&["IPv4", "IPv6"], &["10.91.0.7", "fd00:91::7"])]).is_empty());
    }

    #[test]
    fn an_address_that_is_asked_for_is_given_unless_another_has_it() {
        let mut asking = service(&["IPv4"], &[]);
        asking.spec.as_mut().unwrap().load_balancer_ip = Some("10.91.0.9".to_owned());
        assert_eq!(texts(&assign(std::slice::from_ref(&asking))[0].1), ["10.91.0.9"]);
        assert_eq!(texts(&assign(&[asking, service(&["IPv4"], &["10.91.0.9"])])[0].1), ["10.91.0.1"]);
    }

    #[test]
    fn a_class_of_someone_else_is_left_alone() {
        let mut other = service(&["IPv4"], &[]);
        assert!(is_ours(&other));
        other.spec.as_mut().unwrap().load_balancer_class = Some("a.example/b".to_owned());
        assert!(!is_ours(&other));
    }

    #[test]
    fn local_traffic_goes_where_the_health_port_of_the_service_says() {
        let mut local = service(&["IPv4", "IPv6"], &["10.91.0.1", "fd00:91::1"]);
        local.spec.as_mut().unwrap().health_check_node_port = Some(31000);
        let services = [local, service(&["IPv4"], &["10.91.0.2"])];
        let health = Health::from([
            ((Family::V4, 31000), vec![NODES[1]]),
            ((Family::V6, 31000), vec![NODES[2]]),
            ((Family::V4, PROXY_HEALTH), vec![NODES[0], NODES[3]]),
        ]);
        assert_eq!(ports(&services), health.keys().copied().collect());
        let targets = targets(&services, &health);
        assert_eq!(targets[&"10.91.0.1".parse().unwrap()], [NODES[1]]);
        assert_eq!(targets[&"fd00:91::1".parse().unwrap()], [NODES[2]]);
        let rules = rules(&targets);
        assert!(rules.contains("ip daddr 10.91.0.2 ct mark set numgen inc mod 2 map { 0 : 101, 1 : 104 }"), "{rules}");
        assert!(rules.contains("ip6 daddr fd00:91::1 ct mark set numgen inc mod 1 map { 0 : 103 }"), "{rules}");
    }

    #[test]
    fn an_address_without_a_healthy_node_leads_nowhere() {
        let targets = targets(&[service(&["IPv4"], &["10.91.0.1"])], &Health::new());
        assert!(!rules(&targets).contains("10.91.0.1"));
        assert_eq!(way_to_services(Family::V6, &[]), "unreachable fd00:96::/112");
    }
}
