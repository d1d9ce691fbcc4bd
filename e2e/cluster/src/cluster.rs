//! The whole cluster.

use crate::cgroups;
use crate::command::{output, output_with, until};
use crate::control::{AUDIT_POLICY, CONTROL_DAEMONS, Control, make_host};
use crate::error::ClusterError;
use crate::keys::{Authority, Subject};
use crate::layout::Layout;
use crate::machine::{self, HOST, Machine};
use crate::manifests;
use crate::network::{API_SERVICE, HOST as HOST_ADDRESS, NODES, Node};
use crate::node::NodeHandle;
use std::ffi::OsStr;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long a part of the cluster may take to be ready, on a busy machine.
const READY: Duration = Duration::from_secs(180);

/// A cluster, up or not.
#[derive(Clone, Debug)]
pub struct Cluster {
    layout: Layout,
}

impl Cluster {
    /// The cluster of these directories, as it is.
    pub fn new(layout: Layout) -> Self {
        Self { layout }
    }

    /// The cluster that the environment names, brought up if it is not.
    pub fn up() -> Result<Self, ClusterError> {
        let cluster = Self::new(Layout::from_environment()?);
        cluster.start(|_| ())?;
        Ok(cluster)
    }

    /// Its directories.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Whether its host is there.
    pub fn is_up(&self) -> bool {
        self.host().holder().is_some()
    }

    /// Starts what does not run: all of it, or the nodes and daemons that are down. Tells `progress` of each stage.
    pub fn start(&self, progress: impl Fn(&str)) -> Result<(), ClusterError> {
        self.layout.require_built()?;
        let _lock = self.layout.lock()?;
        if !self.is_up() {
            self.remove()?; // what a cluster that died left
        }
        self.make_directories()?;
        self.make_keys()?;
        if !self.is_up() {
            // a host that is half made would pass for one that is up
            make_host(&self.host()).inspect_err(|_| drop(self.host().kill()))?;
        }
        std::thread::scope(|scope| {
            let nodes: Vec<_> = self.nodes().map(|node| scope.spawn(move || node.start())).collect();
            self.start_control_plane(&progress)?;
            // a thread that panicked has said so itself
            nodes.into_iter().filter_map(|node| node.join().ok()).collect::<Result<(), _>>()
        })?;
        progress("daemons of the nodes run");
        self.kubectl_output(&["wait", "--for=condition=Ready", "node", "--all", "--timeout=180s"])?;
        progress("nodes are Ready");
        self.kubectl_output(&["--namespace=kube-system", "rollout", "status", "deployment/coredns", "--timeout=180s"])?;
        progress("cluster DNS is ready");
        Ok(())
    }

    /// Stops all of it, and removes all that it left but what `build` made. Fine at any time.
    pub fn down(&self) -> Result<(), ClusterError> {
        if !self.layout.bin().exists() {
            return Ok(()); // without programs there never was one
        }
        let _lock = self.layout.lock()?;
        self.remove()
    }

    /// The kubeconfig of the administrator. Its API server answers inside the cluster's network only.
    pub fn kubeconfig(&self) -> PathBuf {
        self.layout.kubeconfig()
    }

    /// `program` as a client beside the nodes: it reaches API server, nodes, pods, services and balancer addresses, and
    /// nothing else. Only the network changes; files and processes are those of the one who runs it.
    pub fn enter_command(&self, program: impl AsRef<OsStr>) -> Result<Command, ClusterError> {
        let mut command = self.host().network(program)?;
        command.env("KUBECONFIG", self.kubeconfig()).env("KUBECACHEDIR", self.layout.state().join("kubectl"));
        Ok(command)
    }

    /// Whether this process is in the cluster's network already.
    pub fn is_inside(&self) -> bool {
        let network = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
        self.host().holder().is_some_and(|holder| network(&holder.to_string()) == network("self"))
    }

    /// kubectl, as the administrator.
    pub fn kubectl(&self) -> Result<Command, ClusterError> {
        self.enter_command(self.layout.program("kubectl"))
    }

    /// What kubectl prints with these arguments.
    pub fn kubectl_output(&self, arguments: &[&str]) -> Result<String, ClusterError> {
        output(self.kubectl()?.args(arguments))
    }

    /// Applies manifests, YAML or JSON.
    pub fn apply(&self, manifests: &str) -> Result<(), ClusterError> {
        let mut kubectl = self.kubectl()?;
        output_with(kubectl.args(["apply", "--server-side", "--force-conflicts", "-f", "-"]), manifests).map(drop)
    }

    /// All nodes, up or not.
    pub fn nodes(&self) -> impl Iterator<Item = NodeHandle> {
        NODES.into_iter().map(|node| NodeHandle::new(&self.layout, node))
    }

    /// A node by its number.
    pub fn node(&self, number: u8) -> Result<NodeHandle, ClusterError> {
        let known = || ClusterError::unknown("node", &number.to_string(), NODES.map(|node| node.number));
        self.nodes().find(|node| node.node().number == number).ok_or_else(known)
    }

    /// A zone by its name.
    pub fn zone(&self, name: &str) -> Result<Zone, ClusterError> {
        let nodes: Vec<_> = self.nodes().filter(|node| node.node().zone == name).collect();
        if nodes.is_empty() {
            let mut zones = NODES.map(|node| node.zone).to_vec();
            zones.dedup();
            return Err(ClusterError::unknown("zone", name, zones));
        }
        Ok(Zone { nodes })
    }

    /// A daemon of the control plane by its name.
    pub fn control(&self, daemon: &str) -> Result<Control, ClusterError> {
        Control::new(&self.layout, daemon)
    }

    /// Waits until the API server says that it is ready.
    pub fn wait_for_api_server(&self) -> Result<(), ClusterError> {
        let answers = || Ok(self.kubectl_output(&["get", "--raw", "/readyz", "--request-timeout=2s"]).is_ok());
        until("the API server", READY, &self.layout.log(), answers)
    }

    /// Brings an image archive to every node, to one that is down when it boots. No registry is asked.
    pub fn load_image(&self, archive: &Path) -> Result<(), ClusterError> {
        let kept = self.keep(archive)?;
        each(self.nodes().filter(NodeHandle::is_up), |node| node.load_image(&kept))
    }

    /// Puts an archive where nodes look when they boot, in place of an earlier one from the same path.
    fn keep(&self, archive: &Path) -> Result<PathBuf, ClusterError> {
        let archive = archive.canonicalize().map_err(ClusterError::file(archive))?;
        let directory = self.layout.loaded();
        let name = archive.display().to_string().trim_matches('/').trim_end_matches(".tar").replace('/', "-");
        let kept = directory.join(format!("{name}.tar"));
        let new = directory.join("new");
        fs::create_dir_all(&directory).map_err(ClusterError::file(&directory))?;
        fs::copy(&archive, &new).map_err(ClusterError::file(archive))?;
        fs::rename(&new, &kept).map_err(ClusterError::file(&kept))?;
        Ok(kept)
    }

    fn host(&self) -> Machine {
        Machine::new(&self.layout, HOST)
    }

    fn remove(&self) -> Result<(), ClusterError> {
        machine::kill_all(&self.layout)?;
        cgroups::remove(&self.layout, None)?;
        match fs::remove_dir_all(self.layout.state()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(ClusterError::file(self.layout.state())(error)),
            _ => Ok(()),
        }
    }

    fn make_directories(&self) -> Result<(), ClusterError> {
        let directories = [self.layout.pki(), self.layout.conf(), self.layout.run(), self.layout.log()];
        directories.into_iter().try_for_each(|path| fs::create_dir_all(&path).map_err(ClusterError::file(path)))?;
        let policy = self.layout.audit_policy();
        fs::write(&policy, AUDIT_POLICY).map_err(ClusterError::file(policy))
    }

    fn start_control_plane(&self, progress: &impl Fn(&str)) -> Result<(), ClusterError> {
        let (stores, clients) = CONTROL_DAEMONS.split_at(2);
        stores.iter().try_for_each(|daemon| self.control(daemon)?.start())?;
        self.wait_for_api_server()?;
        progress("API server is ready");
        // only now: clients that find no API server back off for seconds
        clients.iter().try_for_each(|daemon| self.control(daemon)?.start())?;
        let nodes: Vec<_> = self.nodes().map(|node| node.object().to_string()).collect();
        self.apply(&nodes.join("\n---\n"))?;
        self.apply(&manifests::all(&self.layout)?)
    }

    fn make_keys(&self) -> Result<(), ClusterError> {
        let (pki, conf) = (self.layout.pki(), self.layout.conf());
        let done = pki.join("done");
        if done.exists() {
            return Ok(());
        }
        let authority = Authority::new(&pki)?;
        authority.service_accounts()?;
        authority.sign("apiserver", api_server_subject())?;
        authority.sign(
            "kubelet-client",
            Subject { user: "kube-apiserver-kubelet-client", group: Some("system:masters"), ..Subject::default() },
        )?;
        authority.sign("front-proxy", Subject { user: "front-proxy", ..Subject::default() })?;
        authority
            .sign("metrics-server", Subject { user: "metrics-server", names: &["metrics-server.kube-system.svc"], ..Subject::default() })?;

        let server = format!("https://{}:6443", HOST_ADDRESS.v4);
        let kubeconfig =
            |name: &str, subject: Subject<'_>| authority.kubeconfig(&conf.join(format!("{name}.conf")), &server, name, subject);
        kubeconfig("admin", Subject { user: "admin", group: Some("system:masters"), ..Subject::default() })?;
        for name in ["kube-controller-manager", "kube-scheduler", "kube-proxy"] {
            kubeconfig(name, Subject { user: &format!("system:{name}"), ..Subject::default() })?;
        }
        for node in NODES {
            let (name, own) = (node.name(), node.addresses());
            let subject = Subject {
                user: &format!("system:node:{name}"),
                group: Some("system:nodes"),
                names: &[&name],
                addresses: &[own.v4.into(), own.v6.into()],
            };
            kubeconfig(&name, subject)?;
        }
        fs::write(&done, "").map_err(ClusterError::file(done))
    }
}

fn api_server_subject() -> Subject<'static> {
    const ADDRESSES: [IpAddr; 4] =
        [IpAddr::V4(API_SERVICE), IpAddr::V4(HOST_ADDRESS.v4), IpAddr::V6(HOST_ADDRESS.v6), IpAddr::V4(Ipv4Addr::LOCALHOST)];
    Subject {
        user: "kube-apiserver",
        names: &["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost"],
        addresses: &ADDRESSES,
        ..Subject::default()
    }
}

/// The nodes of a zone, which fail together.
#[derive(Clone, Debug)]
pub struct Zone {
    nodes: Vec<NodeHandle>,
}

impl Zone {
    /// Its nodes.
    pub fn nodes(&self) -> impl Iterator<Item = Node> {
        self.nodes.iter().map(NodeHandle::node)
    }

    /// Kills everything in it at once.
    pub fn crash(&self) -> Result<(), ClusterError> {
        each(self.nodes.iter().cloned(), super::node::NodeHandle::crash)
    }

    /// Boots all its nodes that are down.
    pub fn start(&self) -> Result<(), ClusterError> {
        each(self.nodes.iter().cloned(), super::node::NodeHandle::start)
    }

    /// Cuts it off from the rest.
    pub fn cut(&self) -> Result<(), ClusterError> {
        each(self.nodes.iter().cloned(), super::node::NodeHandle::cut)
    }

    /// Connects it again.
    pub fn mend(&self) -> Result<(), ClusterError> {
        each(self.nodes.iter().cloned(), super::node::NodeHandle::mend)
    }
}

/// Does the same to several nodes at once.
fn each(
    nodes: impl Iterator<Item = NodeHandle>,
    action: impl Fn(&NodeHandle) -> Result<(), ClusterError> + Sync,
) -> Result<(), ClusterError> {
    let action = &action;
    std::thread::scope(|scope| {
        let running: Vec<_> = nodes.map(|node| scope.spawn(move || action(&node))).collect();
        // a thread that panicked has said so itself
        running.into_iter().filter_map(|node| node.join().ok()).collect()
    })
}
