//! A node: its machine, its daemons and its cable.

use crate::cgroups;
use crate::command::{output, until};
use crate::error::ClusterError;
use crate::images;
use crate::layout::Layout;
use crate::machine::{Daemon, HOST, Machine};
use crate::network::{DNS, Family, HOST as HOST_ADDRESS, NODES, Node, PODS};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The daemons of a node, in the order in which they start.
pub const NODE_DAEMONS: [&str; 3] = ["containerd", "kubelet", "kube-proxy"];

/// What the kubelet wants of the kernel, and would set for the whole machine.
const KERNEL: [(&str, &str); 6] = [
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/keys/root_maxbytes", "25000000"),
];

/// A node of a cluster, up or not.
#[derive(Clone, Debug)]
pub struct NodeHandle {
    layout: Layout,
    node: Node,
    machine: Machine,
}

impl NodeHandle {
    pub(crate) fn new(layout: &Layout, node: Node) -> Self {
        Self { layout: layout.clone(), node, machine: Machine::new(layout, &node.name()) }
    }

    /// Which node it is.
    pub fn node(&self) -> Node {
        self.node
    }

    /// Whether it is powered on.
    pub fn is_up(&self) -> bool {
        self.machine.holder().is_some()
    }

    /// Boots it, unless it is up. Images and container records survive a crash, `/run` does not.
    pub fn start(&self) -> Result<(), ClusterError> {
        self.layout.require_built()?;
        if !self.is_up() {
            // a node that is half made would pass for one that is up
            self.boot().inspect_err(|_| drop(self.machine.kill()))?;
        }
        // each daemon starts unless it runs: a boot that was broken off goes on here
        for daemon in NODE_DAEMONS {
            self.start_daemon(daemon)?;
            if daemon == "containerd" {
                self.load_all()?;
            }
        }
        Ok(())
    }

    /// Kills everything on it at once, pods included, like a power cut.
    pub fn crash(&self) -> Result<(), ClusterError> {
        self.machine.kill()
    }

    /// Kills one daemon: `containerd`, `kubelet` or `kube-proxy`.
    pub fn stop(&self, daemon: &str) -> Result<(), ClusterError> {
        self.machine.stop(&self.daemon(daemon)?)
    }

    /// Kills one daemon, if it runs, and starts it again.
    pub fn restart(&self, daemon: &str) -> Result<(), ClusterError> {
        self.stop(daemon)?;
        self.start_daemon(daemon)
    }

    /// Starts one daemon, unless it runs.
    pub fn start_daemon(&self, name: &str) -> Result<(), ClusterError> {
        self.machine.start(&self.daemon(name)?)?;
        if name == "containerd" { self.wait_for_containerd() } else { Ok(()) }
    }

    /// Unplugs its network cable.
    pub fn cut(&self) -> Result<(), ClusterError> {
        self.cable("down")
    }

    /// Plugs its network cable in again.
    pub fn mend(&self) -> Result<(), ClusterError> {
        self.cable("up")
    }

    /// Imports an image archive. Pods use an image if its pull policy is not `Always`.
    pub fn load_image(&self, archive: &Path) -> Result<(), ClusterError> {
        let archive = archive.canonicalize().map_err(ClusterError::file(archive))?;
        let ctr = self.layout.program("ctr");
        output(self.machine.command(ctr)?.args(["--namespace", "k8s.io", "images", "import", "--local"]).arg(archive)).map(drop)
    }

    /// A command in all of its namespaces.
    pub fn command(&self, program: &str) -> Result<std::process::Command, ClusterError> {
        self.machine.command(program)
    }

    fn load_all(&self) -> Result<(), ClusterError> {
        let directories = [self.layout.images(), self.layout.loaded()];
        let files = directories.into_iter().filter_map(|directory| fs::read_dir(directory).ok()).flatten().flatten();
        let mut archives: Vec<_> = files.map(|entry| entry.path()).filter(|path| path.extension() == Some("tar".as_ref())).collect();
        archives.sort();
        archives.iter().try_for_each(|archive| self.load_image(archive))
    }

    fn boot(&self) -> Result<(), ClusterError> {
        self.configure()?;
        // after a crash a kubelet would look at each old cgroup in vain, for 3 s each
        cgroups::remove(&self.layout, Some(&self.node.name()))?;
        cgroups::make(&self.layout, &self.node.name())?;
        self.machine.hold()?;
        self.plug_in()?;
        self.machine.shell(&self.boot_script()).map(drop)
    }

    /// Lays the cable: one end on the host's bridge, the other is the node's `eth0`.
    fn plug_in(&self) -> Result<(), ClusterError> {
        let host = Machine::new(&self.layout, HOST);
        let holder = self.machine.holder().map(|pid| pid.to_string()).unwrap_or_default();
        let cable = self.node.cable();
        // the cable of a node that crashed goes with its namespaces, but not at once
        let mut old = host.command("ip")?;
        let _ = old.args(["link", "delete", &cable]).output();
        output(host.network("ip")?.args(["link", "add", &cable, "type", "veth", "peer", "name", "eth0", "netns", &holder]))?;
        output(host.network("ip")?.args(["link", "set", &cable, "master", "br0", "up"])).map(drop)
    }

    fn cable(&self, state: &str) -> Result<(), ClusterError> {
        output(Machine::new(&self.layout, HOST).command("ip")?.args(["link", "set", &self.node.cable(), state])).map(drop)
    }

    fn boot_script(&self) -> Vec<String> {
        let directory = self.layout.node(&self.node.name());
        let at = directory.display();
        let own = self.node.addresses();
        let mut lines = vec![
            format!("hostname {}", self.node.name()),
            "mount --make-rshared /".to_owned(), // volumes that the kubelet mounts must show up in containers
            "mount -t tmpfs tmpfs /run".to_owned(),
            format!("mount --bind {at}/lib /var/lib"),
            format!("mount --bind {at}/log /var/log"),
        ];
        lines.extend(KERNEL.map(|(knob, _)| format!("mount --bind {at}/kernel/{} /proc/sys/{knob}", knob.replace('/', "."))));
        lines.extend([
            "echo 1 >/proc/sys/net/ipv4/ip_forward".to_owned(),
            "echo 1 >/proc/sys/net/ipv6/conf/all/forwarding".to_owned(),
            // a pod's gateway answers at once, as its address is checked for no double
            "echo 0 >/proc/sys/net/ipv6/conf/default/accept_dad".to_owned(),
            "ip link set lo up".to_owned(),
            format!("ip addr add {}/24 dev eth0", own.v4),
            format!("ip addr add {}/64 dev eth0 nodad", own.v6),
            "ip link set eth0 up".to_owned(),
            format!("ip route add default via {}", HOST_ADDRESS.v4),
            format!("ip -6 route add default via {}", HOST_ADDRESS.v6),
        ]);
        lines.extend(NODES.into_iter().filter(|other| *other != self.node).flat_map(ways_to_pods));
        lines
    }

    fn configure(&self) -> Result<(), ClusterError> {
        let directory = self.layout.node(&self.node.name());
        for part in ["lib", "log", "cni", "kernel"] {
            let path = directory.join(part);
            fs::create_dir_all(&path).map_err(ClusterError::file(path))?;
        }
        let write = |name: &str, content: String| {
            let path = directory.join(name);
            fs::write(&path, content).map_err(ClusterError::file(&path))
        };
        for (knob, value) in KERNEL {
            write(&format!("kernel/{}", knob.replace('/', ".")), format!("{value}\n"))?;
        }
        write("resolv.conf", String::new())?; // no resolver but the cluster's own
        write("containerd.toml", self.containerd())?;
        write("cni/10-cluster.conflist", self.cni().to_string())?;
        write("kubelet.json", self.kubelet().to_string())?;
        write("kube-proxy.json", self.kube_proxy().to_string())
    }

    fn daemon(&self, name: &str) -> Result<Daemon, ClusterError> {
        let name = *NODE_DAEMONS.iter().find(|known| **known == name).ok_or_else(|| ClusterError::unknown("daemon", name, NODE_DAEMONS))?;
        let directory = self.layout.node(&self.node.name());
        let file = |name: &str| directory.join(name).display().to_string();
        let arguments = match name {
            "containerd" => vec!["--config".to_owned(), file("containerd.toml")],
            "kubelet" => self.kubelet_arguments(&file("kubelet.json")),
            _ => vec!["--config".to_owned(), file("kube-proxy.json")],
        };
        Ok(Daemon { name, program: self.layout.program(name), arguments })
    }

    fn kubelet_arguments(&self, config: &str) -> Vec<String> {
        let own = self.node.addresses();
        let kubeconfig = self.layout.conf().join(format!("{}.conf", self.node.name()));
        vec![
            format!("--config={config}"),
            format!("--kubeconfig={}", kubeconfig.display()),
            format!("--node-ip={},{}", own.v4, own.v6),
            // for a Node object that a test deletes: the kubelet makes it again
            format!("--node-labels=topology.kubernetes.io/zone={},topology.kubernetes.io/region=region", self.node.zone),
        ]
    }

    /// A kubelet whose containerd does not answer ends.
    fn wait_for_containerd(&self) -> Result<(), ClusterError> {
        let answers = || {
            let mut version = self.machine.command(self.layout.program("ctr"))?;
            version
                .args(["--connect-timeout", "2s", "version"])
                .output()
                .map(|output| output.status.success())
                .map_err(ClusterError::file("nsenter"))
        };
        until(&format!("containerd of {}", self.node.name()), Duration::from_secs(60), &self.layout.log(), answers)
    }

    fn containerd(&self) -> String {
        let cni = self.layout.node(&self.node.name()).join("cni");
        let bin = self.layout.bin();
        let (bin, cni, pause) = (bin.display(), cni.display(), images::PAUSE);
        format!(
            r#"version = 3
disabled_plugins = ["io.containerd.internal.v1.opt"] # it makes /opt/containerd
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
  restrict_oom_score_adj = true # the machine may lack CAP_SYS_RESOURCE
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "{bin}/runc"
      SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{bin}/cni"]
    conf_dir = "{cni}"
"#
        )
    }

    /// `ptp` routes each pod by itself, so that traffic between two pods of a node passes the node's packet filter, and
    /// services work without bridge filtering or hairpin mode.
    fn cni(&self) -> Value {
        let ranges: Vec<_> = Family::ALL.into_iter().map(|family| json!([{ "subnet": self.node.pods(family) }])).collect();
        let routes = json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]);
        json!({
            "cniVersion": "1.0.0", "name": "cluster",
            "plugins": [
                { "type": "nodad" },
                { "type": "ptp", "mtu": 1500, "ipam": { "type": "host-local", "ranges": ranges, "routes": routes } },
                { "type": "portmap", "backend": "nftables", "capabilities": { "portMappings": true } },
            ],
        })
    }

    fn kubelet(&self) -> Value {
        let pki = self.layout.pki();
        let name = self.node.name();
        let file = |name: String| pki.join(name);
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
            "failCgroupV1": false, // this machine may have the old layout
            "cgroupDriver": "cgroupfs", // there is no systemd
            "cgroupRoot": format!("{}/{name}", self.layout.cgroup()), // so that kubelets do not remove each other's pods
            "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
            "authentication": {
                "anonymous": { "enabled": false },
                "webhook": { "enabled": true },
                "x509": { "clientCAFile": file("ca.crt".to_owned()) },
            },
            "authorization": { "mode": "Webhook" },
            "tlsCertFile": file(format!("{name}.crt")),
            "tlsPrivateKeyFile": file(format!("{name}.key")),
            "clusterDomain": "cluster.local",
            "clusterDNS": [DNS.v4],
            "resolvConf": self.layout.node(&name).join("resolv.conf"),
            "volumePluginDir": "/var/lib/kubelet/plugins-exec", // the default is on the shared root
            "makeIPTablesUtilChains": false, // there are no iptables
            "failSwapOn": false,
            "oomScoreAdj": 0, // lowering it takes CAP_SYS_RESOURCE
            "serializeImagePulls": false,
            "nodeStatusUpdateFrequency": "4s",
            "nodeLeaseDurationSeconds": 12,
            // disk and memory are shared with everything else on the machine
            "imageGCHighThresholdPercent": 100,
            "evictionHard": {
                "memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%", "nodefs.inodesFree": "1%",
            },
        })
    }

    fn kube_proxy(&self) -> Value {
        json!({
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
            "mode": "nftables",
            "hostnameOverride": self.node.name(),
            "oomScoreAdj": 0,
            "clusterCIDR": PODS.both(), // whatever comes from elsewhere is masqueraded
            "clientConnection": { "kubeconfig": self.layout.conf().join("kube-proxy.conf") },
            "nftables": { "minSyncPeriod": "100ms" },
            // limits of connection tracking belong to the machine, not to a network namespace
            "conntrack": { "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s" },
        })
    }

    /// Its Node object: a kubelet may not set `podCIDRs`, so whoever starts the cluster does.
    pub(crate) fn object(&self) -> Value {
        let ranges: Vec<_> = Family::ALL.into_iter().map(|family| self.node.pods(family)).collect();
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {
                "name": self.node.name(),
                "labels": { "topology.kubernetes.io/zone": self.node.zone, "topology.kubernetes.io/region": "region" },
            },
            "spec": { "podCIDR": ranges[0], "podCIDRs": ranges },
        })
    }
}

/// The ways to the pods of a node, for everyone but itself.
pub(crate) fn ways_to_pods(node: Node) -> [String; 2] {
    Family::ALL.map(|family| format!("ip {} route add {} via {}", family.flag(), node.pods(family), node.addresses().of(family)))
}
