//! A Kubernetes cluster of real parts on one machine, as a command.

use clap::{Parser, Subcommand, ValueEnum};
use fleet_cluster::{ApiServer, Cluster, ClusterError, Layout};
use std::error::Error;
use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// A Kubernetes cluster of real parts on one machine: four nodes in three zones (1 and 2 in zone-a, 3 in zone-b, 4 in zone-c).
///
/// What is built lies in `cluster` of `HAPROXY_FLEET_CACHE` (else XDG_CACHE_HOME/haproxy-fleet, ~/.cache/haproxy-fleet), the
/// state of a cluster in `CLUSTER_DIR`, else beside it: with another `CLUSTER_DIR` a second cluster is up at the same time.
#[derive(Parser)]
#[command(
    version,
    after_help = "\
Every verb may be given again: what is so already stays so.

Examples:
  fleet-cluster build && fleet-cluster up
  fleet-cluster kubectl get pods --all-namespaces --output wide
  fleet-cluster enter curl http://10.91.0.1/
  fleet-cluster node crash 2; fleet-cluster zone cut zone-b; fleet-cluster control freeze kube-apiserver
  fleet-cluster down"
)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Build every program and image, and install the Debian packages that it takes
    Build,
    /// Start what does not run
    Up,
    /// Stop all of it and remove what it left, but nothing of what was built
    Down,
    /// kubectl, as the administrator
    #[command(disable_help_flag = true)]
    Kubectl {
        /// As kubectl takes them
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Run a command as a client beside the nodes (default: a shell)
    Enter {
        /// The command
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        command: Vec<OsString>,
    },
    /// Bring image archives to every node
    Load {
        /// OCI or Docker archives
        #[arg(required = true)]
        archives: Vec<PathBuf>,
    },
    /// Handle a node, or a daemon of it
    Node {
        /// What to do
        action: NodeAction,
        /// Its number
        number: u8,
        /// containerd, kubelet or kube-proxy, for stop and restart
        #[arg(required_if_eq_any([("action", "stop"), ("action", "restart")]))]
        daemon: Option<String>,
    },
    /// Handle all nodes of a zone
    Zone {
        /// What to do
        action: ZoneAction,
        /// Its name
        name: String,
    },
    /// Handle a daemon of the control plane
    Control {
        /// What to do
        action: ControlAction,
        /// etcd, kube-apiserver, kube-controller-manager, kube-scheduler or balancer
        daemon: String,
    },
    /// An API server alone, on loopback, for tests of controllers
    ApiServer {
        /// What to do
        action: ApiServerAction,
        /// Where its state is
        directory: PathBuf,
    },
    /// Check that the cluster that is up does what a real one does
    Prove,
    #[command(hide = true)]
    Balancer {
        #[arg(long)]
        kubeconfig: PathBuf,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum NodeAction {
    /// Boot it
    Start,
    /// Kill everything on it at once
    Crash,
    /// Kill one daemon
    Stop,
    /// Kill one daemon and start it again
    Restart,
    /// Unplug its network cable
    Cut,
    /// Plug it in again
    Mend,
}

#[derive(Clone, Copy, ValueEnum)]
enum ZoneAction {
    /// Kill everything in it at once
    Crash,
    /// Boot its nodes
    Start,
    /// Cut it off from the rest
    Cut,
    /// Connect it again
    Mend,
}

#[derive(Clone, Copy, ValueEnum)]
enum ControlAction {
    /// Stop it in its tracks: connections to it hang
    Freeze,
    /// Let it go on
    Thaw,
    /// Kill it and start it again
    Restart,
    /// Kill it
    Stop,
    /// Start it
    Start,
}

#[derive(Clone, Copy, ValueEnum)]
enum ApiServerAction {
    /// Start it, wait until it is ready, and print its kubeconfig
    Up,
    /// Stop it and remove its state
    Down,
}

fn main() -> ExitCode {
    match run(Arguments::parse().verb) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // a closed standard error leaves only the exit status, and that is kept
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(verb: Verb) -> Result<(), Box<dyn Error>> {
    let layout = Layout::from_environment()?;
    let cluster = Cluster::new(layout.clone());
    match verb {
        Verb::Build => fleet_cluster::build(&layout, stopwatch())?,
        Verb::Up => up(&cluster)?,
        Verb::Down => cluster.down()?,
        Verb::Kubectl { arguments } => return Err(cluster.kubectl()?.args(arguments).exec().into()),
        Verb::Enter { command } => return enter(&cluster, &command),
        Verb::Load { archives } => archives.iter().try_for_each(|archive| cluster.load_image(archive))?,
        Verb::Node { action, number, daemon } => node(&cluster, action, number, &daemon.unwrap_or_default())?,
        Verb::Zone { action, name } => zone(&cluster, action, &name)?,
        Verb::Control { action, daemon } => control(&cluster, action, &daemon)?,
        Verb::ApiServer { action: ApiServerAction::Up, directory } => {
            let server = ApiServer::new(&directory)?;
            server.up()?;
            writeln!(std::io::stdout(), "{}", server.kubeconfig().display())?;
        }
        Verb::ApiServer { action: ApiServerAction::Down, directory } => ApiServer::new(&directory)?.down()?,
        Verb::Prove if cluster.is_inside() => fleet_cluster::prove(&cluster, stopwatch())?,
        Verb::Prove => return Err(cluster.enter_command(std::env::current_exe()?)?.arg("prove").exec().into()),
        Verb::Balancer { kubeconfig } => {
            tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(fleet_cluster::balance(&kubeconfig))?;
        }
    }
    Ok(())
}

fn up(cluster: &Cluster) -> Result<(), Box<dyn Error>> {
    fleet_cluster::install_itself(cluster.layout())?;
    cluster.start(stopwatch())?;
    let own = std::env::current_exe()?;
    let (own, kubeconfig) = (own.display(), cluster.kubeconfig());
    writeln!(
        std::io::stdout(),
        "The cluster is up. It is reached from inside its network only:\n  {own} kubectl get pods -A\n  {own} enter COMMAND   (with KUBECONFIG={})",
        kubeconfig.display()
    )?;
    Ok(())
}

fn enter(cluster: &Cluster, command: &[OsString]) -> Result<(), Box<dyn Error>> {
    let shell = || std::env::var_os("SHELL").unwrap_or_else(|| "sh".into());
    let (program, arguments) = command.split_first().map_or_else(|| (shell(), [].as_slice()), |(program, rest)| (program.clone(), rest));
    Err(cluster.enter_command(program)?.args(arguments).exec().into())
}

fn node(cluster: &Cluster, action: NodeAction, number: u8, daemon: &str) -> Result<(), ClusterError> {
    let node = cluster.node(number)?;
    match action {
        NodeAction::Start => node.start(),
        NodeAction::Crash => node.crash(),
        NodeAction::Stop => node.stop(daemon),
        NodeAction::Restart => node.restart(daemon),
        NodeAction::Cut => node.cut(),
        NodeAction::Mend => node.mend(),
    }
}

fn zone(cluster: &Cluster, action: ZoneAction, name: &str) -> Result<(), ClusterError> {
    let zone = cluster.zone(name)?;
    match action {
        ZoneAction::Crash => zone.crash(),
        ZoneAction::Start => zone.start(),
        ZoneAction::Cut => zone.cut(),
        ZoneAction::Mend => zone.mend(),
    }
}

fn control(cluster: &Cluster, action: ControlAction, daemon: &str) -> Result<(), ClusterError> {
    let daemon = cluster.control(daemon)?;
    match action {
        ControlAction::Freeze => daemon.freeze(),
        ControlAction::Thaw => daemon.thaw(),
        ControlAction::Restart => daemon.restart(),
        ControlAction::Stop => daemon.stop(),
        ControlAction::Start => daemon.start(),
    }
}

/// Prints each step with the seconds since the start.
fn stopwatch() -> impl Fn(&str) {
    let start = Instant::now();
    move |step| {
        // a reader that is gone does not stop the work
        let _ = writeln!(std::io::stdout(), "{:6.1} s  {step}", start.elapsed().as_secs_f64());
    }
}
