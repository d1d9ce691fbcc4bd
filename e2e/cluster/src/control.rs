//! The control plane: etcd, API server, controllers, scheduler, and the balancer, all on the host.

use crate::error::ClusterError;
use crate::layout::Layout;
use crate::machine::{Daemon, HOST, Machine};
use crate::network::{CLIENTS, HOST as HOST_ADDRESS, NODES, SERVICES};
use crate::node::ways_to_pods;
use std::path::{Path, PathBuf};

/// The daemons of the control plane.
pub const CONTROL_DAEMONS: [&str; 5] = ["etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "balancer"];

/// A daemon of the control plane, to disturb.
#[derive(Clone, Debug)]
pub struct Control {
    machine: Machine,
    daemon: Daemon,
}

impl Control {
    pub(crate) fn new(layout: &Layout, name: &str) -> Result<Self, ClusterError> {
        let known = CONTROL_DAEMONS.iter().find(|known| **known == name);
        let name = *known.ok_or_else(|| ClusterError::unknown("daemon", name, CONTROL_DAEMONS))?;
        let program = if name == "balancer" { "fleet-cluster" } else { name };
        let arguments = match name {
            "etcd" => etcd(&layout.state().join("etcd"), 2379, 2380),
            "kube-apiserver" => kube_apiserver(layout),
            "kube-controller-manager" => kube_controller_manager(layout),
            "kube-scheduler" => kube_scheduler(layout),
            _ => vec!["balancer".to_owned(), "--kubeconfig".to_owned(), layout.kubeconfig().display().to_string()],
        };
        Ok(Self { machine: Machine::new(layout, HOST), daemon: Daemon { name, program: layout.program(program), arguments } })
    }

    /// Starts it, unless it runs.
    pub fn start(&self) -> Result<(), ClusterError> {
        self.machine.start(&self.daemon)
    }

    /// Kills it.
    pub fn stop(&self) -> Result<(), ClusterError> {
        self.machine.stop(&self.daemon)
    }

    /// Kills it and starts it again.
    pub fn restart(&self) -> Result<(), ClusterError> {
        self.stop()?;
        self.start()
    }

    /// Stops it in its tracks: connections to it hang.
    pub fn freeze(&self) -> Result<(), ClusterError> {
        self.machine.freeze(&self.daemon)
    }

    /// Lets it go on.
    pub fn thaw(&self) -> Result<(), ClusterError> {
        self.machine.thaw(&self.daemon)
    }
}

/// Makes the host: the bridge, its addresses, and the ways to pods by way of their nodes. The balancer adds those to services.
pub(crate) fn make_host(machine: &Machine) -> Result<(), ClusterError> {
    machine.hold()?;
    let mut lines = vec![
        "hostname host".to_owned(),
        "ip link set lo up".to_owned(),
        "ip link add br0 type bridge".to_owned(),
        format!("ip addr add {}/24 dev br0", HOST_ADDRESS.v4),
        format!("ip addr add {}/64 dev br0 nodad", HOST_ADDRESS.v6),
    ];
    lines.extend(CLIENTS.flat_map(|last| {
        [format!("ip addr add 10.89.0.{last}/24 dev br0"), format!("ip addr add fd00:89::{last}/64 dev br0 nodad preferred_lft 0")]
    }));
    lines.extend([
        "ip link set br0 up".to_owned(),
        "echo 1 >/proc/sys/net/ipv4/ip_forward".to_owned(),
        "echo 1 >/proc/sys/net/ipv6/conf/all/forwarding".to_owned(),
        "echo 1 >/proc/sys/net/ipv4/fib_multipath_hash_policy".to_owned(),
        "echo 1 >/proc/sys/net/ipv6/fib_multipath_hash_policy".to_owned(),
    ]);
    lines.extend(NODES.into_iter().flat_map(ways_to_pods));
    machine.shell(&lines).map(drop)
}

/// etcd without the safety of a disk flush for each write: a cluster for tests does not outlive the machine.
pub(crate) fn etcd(directory: &Path, client: u16, peer: u16) -> Vec<String> {
    let (client, peer) = (format!("http://127.0.0.1:{client}"), format!("http://127.0.0.1:{peer}"));
    vec![
        "--name=etcd".to_owned(),
        format!("--data-dir={}", directory.display()),
        "--unsafe-no-fsync".to_owned(),
        "--log-level=warn".to_owned(),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=etcd={peer}"),
    ]
}

/// What every API server here is told: certificates, tokens, who may do what.
pub(crate) fn api_server_basics(pki: &Path) -> Vec<String> {
    let file = |flag: &str, name: &str| format!("--{flag}={}", pki.join(name).display());
    vec![
        "--allow-privileged".to_owned(),
        "--authorization-mode=Node,RBAC".to_owned(),
        file("client-ca-file", "ca.crt"),
        file("tls-cert-file", "apiserver.crt"),
        file("tls-private-key-file", "apiserver.key"),
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local".to_owned(),
        file("service-account-key-file", "service-accounts.pub"),
        file("service-account-signing-key-file", "service-accounts.key"),
    ]
}

/// What the API server writes down: who of the pods asked for what, not what was said. Kubernetes' own are left out.
pub(crate) const AUDIT_POLICY: &str = "\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: None
  userGroups: [system:serviceaccounts:kube-system]
- level: Metadata
  userGroups: [system:serviceaccounts]
- level: None
";

fn kube_apiserver(layout: &Layout) -> Vec<String> {
    let pki = layout.pki();
    let file = |flag: &str, name: &str| format!("--{flag}={}", pki.join(name).display());
    let mut arguments = api_server_basics(&pki);
    arguments.extend([
        "--etcd-servers=http://127.0.0.1:2379".to_owned(),
        format!("--advertise-address={}", HOST_ADDRESS.v4),
        "--secure-port=6443".to_owned(),
        format!("--service-cluster-ip-range={}", SERVICES.both()),
        "--enable-admission-plugins=NodeRestriction".to_owned(),
        file("kubelet-client-certificate", "kubelet-client.crt"),
        file("kubelet-client-key", "kubelet-client.key"),
        file("kubelet-certificate-authority", "ca.crt"),
        "--kubelet-preferred-address-types=InternalIP".to_owned(),
        // aggregated APIs know the caller by these headers from a front proxy that they trust
        file("requestheader-client-ca-file", "ca.crt"),
        "--requestheader-allowed-names=front-proxy".to_owned(),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        file("proxy-client-cert-file", "front-proxy.crt"),
        file("proxy-client-key-file", "front-proxy.key"),
        format!("--audit-policy-file={}", layout.audit_policy().display()),
        format!("--audit-log-path={}", layout.audit_log().display()),
        "--audit-log-maxsize=4096".to_owned(), // MB: a file that is begun anew would lose what suites look for
        "--enable-aggregator-routing".to_owned(), // to the pod itself: the host has no kube-proxy
        // a lost node's pods are replaced after a minute, not after six
        "--default-not-ready-toleration-seconds=10".to_owned(),
        "--default-unreachable-toleration-seconds=10".to_owned(),
    ]);
    arguments
}

fn kube_controller_manager(layout: &Layout) -> Vec<String> {
    let pki = layout.pki();
    let file = |flag: &str, path: PathBuf| format!("--{flag}={}", path.display());
    vec![
        file("kubeconfig", layout.conf().join("kube-controller-manager.conf")),
        "--leader-elect=false".to_owned(),
        "--use-service-account-credentials".to_owned(),
        file("service-account-private-key-file", pki.join("service-accounts.key")),
        file("root-ca-file", pki.join("ca.crt")),
        file("cluster-signing-cert-file", pki.join("ca.crt")),
        file("cluster-signing-key-file", pki.join("ca.key")),
        file("flex-volume-plugin-dir", layout.state().join("flex")), // the default is in /usr
        "--allocate-node-cidrs=false".to_owned(),
        "--bind-address=127.0.0.1".to_owned(),
        // with the default 20 the service accounts take 4 s
        "--kube-api-qps=200".to_owned(),
        "--kube-api-burst=400".to_owned(),
        // A node that falls silent is NotReady after 50 s, as everywhere. With less, nodes are taken for lost when the API
        // server was away: for up to half a minute afterwards nobody has asked it again how they are.
        "--node-monitor-period=2s".to_owned(),
        "--node-monitor-grace-period=50s".to_owned(),
        // autoscaling in a test's time, not in minutes
        "--horizontal-pod-autoscaler-sync-period=5s".to_owned(),
        "--horizontal-pod-autoscaler-cpu-initialization-period=20s".to_owned(),
        "--horizontal-pod-autoscaler-initial-readiness-delay=5s".to_owned(),
    ]
}

fn kube_scheduler(layout: &Layout) -> Vec<String> {
    let kubeconfig = layout.conf().join("kube-scheduler.conf");
    vec![format!("--kubeconfig={}", kubeconfig.display()), "--leader-elect=false".to_owned(), "--bind-address=127.0.0.1".to_owned()]
}
