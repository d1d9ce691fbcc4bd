//! An API server alone: etcd and kube-apiserver on loopback addresses, without nodes or controllers, ready in seconds.
//!
//! For tests of controllers that want a real one. Several run at once, each in a directory of its own. Nothing is garbage
//! collected, no namespace's deletion ends, no `ServiceAccount` is made: that is what a controller manager does.

use crate::command::{output, until};
use crate::control::{api_server_basics, etcd};
use crate::error::ClusterError;
use crate::keys::{Authority, Subject};
use crate::layout::Layout;
use crate::machine::{command_line, kill};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

const READY: Duration = Duration::from_secs(120);
const GONE: Duration = Duration::from_secs(30);

/// An API server of its own, up or not.
#[derive(Clone, Debug)]
pub struct ApiServer {
    layout: Layout,
}

impl ApiServer {
    /// The one whose state is in `directory`, as it is; programs are those that the cluster's `build` made.
    pub fn new(directory: &Path) -> Result<Self, ClusterError> {
        let built = Layout::from_environment()?;
        let built = built.bin().parent().map(Path::to_owned).unwrap_or_default();
        Ok(Self { layout: Layout::new(&built, directory)? })
    }

    /// Brings it up, unless it is, and waits until it is ready.
    pub fn up(&self) -> Result<(), ClusterError> {
        let needed = self.layout.program("kube-apiserver");
        if !needed.exists() {
            return Err(ClusterError::NotBuilt { path: needed });
        }
        if self.pids().len() < 2 {
            self.stop()?;
            self.start()?;
        }
        let kubeconfig = self.kubeconfig();
        let ready = || {
            let mut kubectl = Command::new(self.layout.program("kubectl"));
            kubectl.args(["get", "--raw", "/readyz", "--request-timeout=2s"]).env("KUBECONFIG", &kubeconfig);
            kubectl.env("KUBECACHEDIR", self.layout.state().join("kubectl"));
            Ok(output(&mut kubectl).is_ok())
        };
        until("the API server", READY, &self.layout.log(), ready)
    }

    /// Brings it up for as long as the guard lives: a test that panics leaves nothing running.
    pub fn guarded(self) -> Result<ApiServerGuard, ClusterError> {
        let guard = ApiServerGuard(self);
        guard.0.up()?;
        Ok(guard)
    }

    /// Stops it and removes what it left. Fine at any time.
    pub fn down(&self) -> Result<(), ClusterError> {
        self.stop()?;
        // what others have put into the directory stays, and so does it then
        let _ = fs::remove_dir(self.layout.state());
        Ok(())
    }

    /// The kubeconfig of the administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        self.layout.kubeconfig()
    }

    fn start(&self) -> Result<(), ClusterError> {
        let layout = &self.layout;
        for path in [layout.pki(), layout.conf(), layout.log()] {
            fs::create_dir_all(&path).map_err(ClusterError::file(path))?;
        }
        let [client, peer, api] = free_ports()?;
        let authority = Authority::new(&layout.pki())?;
        authority.service_accounts()?;
        let addresses = [IpAddr::V4(Ipv4Addr::LOCALHOST)];
        authority
            .sign("apiserver", Subject { user: "kube-apiserver", names: &["localhost"], addresses: &addresses, ..Subject::default() })?;
        let administrator = Subject { user: "admin", group: Some("system:masters"), ..Subject::default() };
        authority.kubeconfig(&layout.kubeconfig(), &format!("https://127.0.0.1:{api}"), "admin", administrator)?;

        self.spawn("etcd", &etcd(&layout.state().join("etcd"), client, peer))?;
        let mut arguments = api_server_basics(&layout.pki());
        arguments.extend([
            format!("--etcd-servers=http://127.0.0.1:{client}"),
            "--bind-address=127.0.0.1".to_owned(),
            "--advertise-address=127.0.0.1".to_owned(),
            format!("--secure-port={api}"),
            "--service-cluster-ip-range=10.96.0.0/16,fd00:96::/112".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(), // a loopback address is no endpoint
            "--disable-admission-plugins=ServiceAccount".to_owned(), // there is nobody to make service accounts
        ]);
        self.spawn("kube-apiserver", &arguments)
    }

    fn spawn(&self, name: &str, arguments: &[String]) -> Result<(), ClusterError> {
        let path = self.layout.log().join(format!("{name}.log"));
        let log = fs::File::create(&path).map_err(ClusterError::file(&path))?;
        let errors = log.try_clone().map_err(ClusterError::file(&path))?;
        // in the background of a session of its own: it outlives this process and its terminal
        let mut setsid = Command::new("setsid");
        setsid.arg("--fork").arg(self.layout.program(name)).args(arguments).stdin(Stdio::null()).stdout(log).stderr(errors);
        let status = setsid.status().map_err(ClusterError::file("setsid"))?;
        if status.success() {
            return Ok(());
        }
        Err(ClusterError::Program { command: format!("setsid --fork {name}"), status: status.to_string(), output: String::new() })
    }

    fn stop(&self) -> Result<(), ClusterError> {
        let pids = self.pids();
        pids.iter().copied().for_each(kill);
        let gone = || Ok(!pids.iter().any(|pid| command_line(*pid).is_some()));
        until("the end of the API server", GONE, &self.layout.log(), gone)?;
        for part in ["etcd", "pki", "conf", "log", "kubectl"] {
            let path = self.layout.state().join(part);
            match fs::remove_dir_all(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(ClusterError::file(path)(error)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Its processes, known by the directories that their command lines name.
    fn pids(&self) -> Vec<u32> {
        let Ok(proc) = fs::read_dir("/proc") else { return Vec::new() };
        let pids = proc.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter(|pid| command_line(*pid).is_some_and(|words| self.is_own(&words))).collect()
    }

    fn is_own(&self, words: &[String]) -> bool {
        let etcd = format!("--data-dir={}", self.layout.state().join("etcd").display());
        let api_server = format!("--client-ca-file={}", self.layout.pki().join("ca.crt").display());
        let program = words.first().map(String::as_str);
        let is = |name: &str| program == self.layout.program(name).to_str();
        (is("etcd") && words.contains(&etcd)) || (is("kube-apiserver") && words.contains(&api_server))
    }
}

/// An API server that goes down with this value.
#[derive(Debug)]
pub struct ApiServerGuard(ApiServer);

impl std::ops::Deref for ApiServerGuard {
    type Target = ApiServer;

    fn deref(&self) -> &ApiServer {
        &self.0
    }
}

impl Drop for ApiServerGuard {
    fn drop(&mut self) {
        // there is nobody to tell, and `down` may be called again
        let _ = self.0.down();
    }
}

/// Ports that are free now. They may be taken before they are used; then the server does not come up and says so.
fn free_ports<const N: usize>() -> Result<[u16; N], ClusterError> {
    let mut held = Vec::new();
    let mut ports = [0; N];
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(ClusterError::file("127.0.0.1"))?;
        *port = listener.local_addr().map_err(ClusterError::file("127.0.0.1"))?.port();
        held.push(listener);
    }
    Ok(ports)
}
