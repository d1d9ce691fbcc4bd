//! What can be said on the command line.

use crate::haproxy::version::{FLOOR, Version};
use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

const EXIT: &str = "\
Exit status:
  0  nothing to complain about
  1  findings (lint, render: an error; diff: a change; status: a fleet that is not Ready)
  2  usage, or input that cannot be read";

/// Fleets of HAProxy as the entry layer of Kubernetes.
///
/// One pipeline takes manifests (IngressDeployment, Backend, Ingress, Service, EndpointSlice, Secret …) to running
/// HAProxies and changes them under load. The commands here run it without a cluster.
#[derive(Debug, Parser)]
#[command(version, propagate_version = true, arg_required_else_help = true, after_help = EXIT, after_long_help = LONG_HELP)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const LONG_HELP: &str = "\
Try it:
  haproxy-fleet status                       how the fleets of the cluster are
  haproxy-fleet local -f examples --echo     serve the examples; edit them and watch
  haproxy-fleet lint -f examples             what is wrong with them, by file and line
  haproxy-fleet render -f examples -o out    the configuration that HAProxy reads
  haproxy-fleet diff main/ branch/           what a change does, and whether it reloads

Exit status:
  0  nothing to complain about
  1  findings (lint, render: an error; diff: a change; status: a fleet that is not Ready)
  2  usage, or input that cannot be read

Environment:
  HAPROXY            the HAProxy that `local` runs (see --haproxy)
  HAPROXY_FLEET_LOG  what to log to standard error, such as `info` or `haproxy_fleet::agent=debug`
  NO_COLOR           if set, no colours";

/// The name under which kubectl finds its plugin `haproxy-fleet`: it writes dashes of a command as underscores.
const PLUGIN: &str = "kubectl-haproxy_fleet";
/// What runs beside pods or on this machine, and is no matter of kubectl.
const NO_PLUGIN: [&str; 3] = ["local", "agent", "operator"];

/// Reads a command line, the name of the program first. As kubectl's plugin it calls itself as people call it.
pub(super) fn read(line: impl IntoIterator<Item = OsString>) -> Result<Arguments, clap::Error> {
    let line: Vec<OsString> = line.into_iter().collect();
    let is_plugin = line.first().is_some_and(|program| Path::new(program).file_name().is_some_and(|name| name == PLUGIN));
    let mut command = Arguments::command();
    if is_plugin {
        command = command.bin_name("kubectl haproxy-fleet");
        for name in NO_PLUGIN {
            command = command.mut_subcommand(name, |command| command.hide(true));
        }
    }
    let mut matches = command.try_get_matches_from_mut(line)?;
    Arguments::from_arg_matches_mut(&mut matches).map_err(|error| error.format(&mut command))
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve manifests with real HAProxies on loopback addresses, and follow every change of the files
    #[command(after_long_help = LOCAL_HELP)]
    Local(LocalArguments),
    /// Write the configuration that HAProxy would read, and the objects that a fleet is in Kubernetes
    #[command(after_long_help = RENDER_HELP)]
    Render(RenderArguments),
    /// Find mistakes in manifests, by file and line, with a remedy
    #[command(after_long_help = LINT_HELP)]
    Lint(LintArguments),
    /// Say what a change of manifests would do to running HAProxies, and whether it reloads them
    #[command(after_long_help = DIFF_HELP)]
    Diff(DiffArguments),
    /// Bring what the operator says into the HAProxy of this pod
    #[command(after_long_help = super::agent::HELP)]
    Agent(Box<super::agent::AgentArguments>),
    /// Manage the fleets of a cluster (in a pod of its own)
    #[command(after_long_help = OPERATOR_HELP)]
    Operator(OperatorArguments),
    /// Say how the fleets are: of `local`, or of the cluster
    #[command(after_long_help = super::status::HELP)]
    Status(super::status::StatusArguments),
    /// Follow how the pods of a fleet are replaced, and stop, resume, abort or start that
    #[command(after_long_help = super::rollout::HELP)]
    Rollout(super::rollout::RolloutArguments),
    /// Lead clients away from pods, which stay
    #[command(after_long_help = super::rollout::DRAIN_HELP)]
    Drain(super::rollout::DrainArguments),
    /// Lead clients back to pods that are drained
    #[command(after_long_help = super::rollout::UNDRAIN_HELP)]
    Undrain(super::rollout::UndrainArguments),
    /// Show the HAProxy configuration that a fleet serves, and how revisions of it differ
    #[command(after_long_help = super::rollout::config::HELP)]
    Config(super::rollout::config::ConfigArguments),
    /// List the revisions of a fleet's configuration that are kept
    #[command(after_long_help = super::rollout::revisions::HISTORY_HELP)]
    History(super::rollout::revisions::HistoryArguments),
    /// Go back to a revision of a fleet's configuration, and return
    #[command(after_long_help = super::rollout::revisions::ROLLBACK_HELP)]
    Rollback(super::rollout::revisions::RollbackArguments),
    /// Print the custom resource definitions as YAML
    #[command(after_long_help = "Example:\n  haproxy-fleet crds | kubectl apply --server-side -f -")]
    Crds,
    /// Print the version
    Version,
    /// Run a program that ends when the process that started it does
    #[command(hide = true)]
    ExecWithParent(ExecArguments),
}

const LOCAL_HELP: &str = "\
Each IngressDeployment becomes one HAProxy per replica. In front of them a small HAProxy in
TCP mode plays Service and load balancer: its address of each listener stays the same whatever
happens behind it. Both kinds of addresses are printed.

Files may be edited in any way: a file that does not parse keeps its last good objects and is
reported. Ctrl-C drains, then stops; a second one stops at once. No process is left behind.

Examples:
  haproxy-fleet local -f examples --echo
  haproxy-fleet local -f base/ -f overlay/ingress.yaml --admin 127.0.0.1:9901 --output plain
  curl -s 127.0.0.1:9901/status | jq .

Exit status:
  0  stopped as asked
  2  usage, input that cannot be read, or no HAProxy that can be run";

const OPERATOR_HELP: &str = "\
Two or more of these run; one leads. The manifests that start it, with what it may do in the
cluster, are in config/: kubectl apply -k config/default.

Examples:
  kubectl -n haproxy-fleet-system port-forward deploy/haproxy-fleet 8080
  curl -s 127.0.0.1:8080/status
  curl -s -X PUT -d haproxy_fleet=debug 127.0.0.1:8080/log-level

Exit status:
  0  stopped as asked
  2  a part of it ended: its pod starts it again";

const RENDER_HELP: &str = "\
For each fleet OUT/NAMESPACE/NAME/ is written:
  haproxy/         the directory that HAProxy reads (haproxy -f haproxy): *.cfg, maps/, certs/ …
  objects.yaml     what the operator keeps in the cluster for the fleet: Deployments, Services …
  diagnostics.txt  findings, as lint prints them
Without -o everything goes to standard output, private keys excepted. What each pod adds by
itself has stand-ins here that guard nothing: 00-pod.cfg, certs/_default.pem, certs/_tickets.keys;
so has in the objects what only a cluster knows: the operator's images, address and CA, uids.

Examples:
  haproxy-fleet render -f examples -o out
  kustomize build overlays/prod | haproxy-fleet render -f - --haproxy-version 3.2

Exit status:
  0  written
  1  written, but something in the input is an error
  2  usage, or input that cannot be read";

const LINT_HELP: &str = "\
JSON: an array of {code, severity, object: {kind, namespace, name}, field, message, help, file, line}.

Examples:
  haproxy-fleet lint -f examples
  haproxy-fleet lint -f manifests/ --fail-on warning -o json

Exit status:
  0  no error (with --fail-on warning: no warning either)
  1  findings of that severity
  2  usage, or input that cannot be read";

const DIFF_HELP: &str = "\
Each change is one of
  live      made in the running HAProxy, at once
  deferred  a removal that waits for the next reload and asks for none
  reload    made by a new worker: connections are kept, but workers cost memory for a while

JSON: {changes: [{key, object, class, reason}], diagnostics: [as lint]}.

Examples:
  git worktree add ../main main && haproxy-fleet diff ../main/manifests manifests
  haproxy-fleet diff old.yaml new.yaml -o json | jq '.changes[] | select(.class == \"reload\")'

Exit status:
  0  nothing changes
  1  something changes
  2  usage, or input that cannot be read";

/// `local`.
#[derive(Debug, Args)]
pub struct LocalArguments {
    #[command(flatten)]
    pub(super) input: Input,
    /// Give Services without endpoints embedded servers that echo what they are asked
    #[arg(long)]
    pub echo: bool,
    /// Where to keep what must survive a restart, such as the last good configurations
    ///
    /// [default: below $XDG_STATE_HOME/haproxy-fleet or ~/.local/state/haproxy-fleet, one for each set of inputs]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Serve /healthz, /readyz, /metrics and /status (JSON) there, and answer `config`, `rollout`, `drain`, `undrain`, `history` and `rollback`
    #[arg(long, value_name = "IP:PORT")]
    pub admin: Option<SocketAddr>,
    /// The HAProxy to run; once for each release line that fleets ask for
    ///
    /// [default: $HAPROXY, else `haproxy` on PATH]
    #[arg(long, value_name = "PATH")]
    pub haproxy: Vec<PathBuf>,
    /// A live view (tty) or one line for each thing that happens (plain)
    #[arg(long, value_enum, default_value_t = View::Auto)]
    pub output: View,
}

/// What the operator is started with.
#[derive(Debug, Args)]
pub struct OperatorArguments {
    /// The operator's own namespace
    #[arg(long, value_name = "NAME")]
    pub namespace: String,
    /// The name of the operator's pod
    #[arg(long, value_name = "NAME")]
    pub pod_name: String,
    /// The operator's own image: agents are copied out of it
    #[arg(long, value_name = "IMAGE")]
    pub image: String,
    /// The image of HAProxy for a release line, such as 3.4=haproxy:3.4; once for each line
    #[arg(long, value_name = "LINE=IMAGE", value_parser = line_and_image, required = true)]
    pub haproxy_image: Vec<(String, String)>,
    /// Read this namespace only; may be given more than once
    ///
    /// [default: all namespaces]
    #[arg(long, value_name = "NAME")]
    pub watch_namespace: Vec<String>,
    /// Let fleets be in this namespace only; may be given more than once
    ///
    /// [default: all namespaces that are read]
    #[arg(long, value_name = "NAME")]
    pub fleet_namespace: Vec<String>,
    /// Where agents connect to
    #[arg(long, value_name = "IP:PORT", default_value = "[::]:9443")]
    pub delivery: SocketAddr,
    /// Serve /healthz, /readyz, /metrics, /status and /log-level there
    #[arg(long, value_name = "IP:PORT", default_value = "[::]:8080")]
    pub admin: SocketAddr,
}

/// Reads `3.4=IMAGE`.
fn line_and_image(text: &str) -> Result<(String, String), String> {
    let (line, image) = text.split_once('=').ok_or("write LINE=IMAGE, such as 3.4=haproxy:3.4")?;
    if !crate::api::HaproxyLine::ALL.iter().any(|known| known.as_str() == line) {
        let known: Vec<&str> = crate::api::HaproxyLine::ALL.iter().map(|line| line.as_str()).collect();
        return Err(format!("{line:?} is no release line that is known: use one of {}", known.join(", ")));
    }
    if image.is_empty() {
        return Err(format!("name the image of HAProxy {line}"));
    }
    Ok((line.to_owned(), image.to_owned()))
}

/// How `local` shows what goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum View {
    /// A live view if standard output is a terminal
    Auto,
    /// A live view
    Tty,
    /// Lines
    Plain,
}

/// Manifests to read.
#[derive(Debug, Args)]
pub(super) struct Input {
    /// Manifests: directories (with what is below them), files (YAML or JSON), or - for standard input
    #[arg(short, long = "file", value_name = "PATH", required = true, num_args = 1..)]
    pub files: Vec<PathBuf>,
}

impl LocalArguments {
    /// What to read.
    pub fn files(&self) -> &[PathBuf] {
        &self.input.files
    }
}

/// `render`.
#[derive(Debug, Args)]
pub struct RenderArguments {
    #[command(flatten)]
    pub(super) input: Input,
    /// Write there instead of to standard output
    #[arg(short, long = "output", value_name = "DIR")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub(super) haproxy: HaproxyVersion,
}

/// `lint`.
#[derive(Debug, Args)]
pub struct LintArguments {
    #[command(flatten)]
    pub(super) input: Input,
    /// For people or for programs
    #[arg(short, long = "output", value_enum, default_value_t = Format::Text)]
    pub output: Format,
    /// The least severity that makes the exit status 1
    #[arg(long, value_enum, default_value_t = FailOn::Error)]
    pub fail_on: FailOn,
    #[command(flatten)]
    pub(super) haproxy: HaproxyVersion,
}

/// `diff`.
#[derive(Debug, Args)]
pub struct DiffArguments {
    /// The older manifests: a directory or a file
    #[arg(value_name = "A")]
    pub before: PathBuf,
    /// The newer ones
    #[arg(value_name = "B")]
    pub after: PathBuf,
    /// For people or for programs
    #[arg(short, long = "output", value_enum, default_value_t = Format::Text)]
    pub output: Format,
    #[command(flatten)]
    pub(super) haproxy: HaproxyVersion,
}

#[derive(Debug, Args)]
pub(super) struct HaproxyVersion {
    /// The HAProxy to render for, where an IngressDeployment names none
    #[arg(id = "haproxy_version", long = "haproxy-version", value_name = "VERSION", default_value = "3.4", value_parser = version)]
    pub version: Version,
}

fn version(text: &str) -> Result<Version, String> {
    let version: Version = text.parse().map_err(|error: crate::haproxy::version::InvalidVersion| error.to_string())?;
    if version < FLOOR { Err(format!("{text} is older than {FLOOR}, the oldest HAProxy that fleets run on")) } else { Ok(version) }
}

/// For people or for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// For people
    Text,
    /// For programs
    Json,
}

/// The least severity that counts as a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FailOn {
    /// Part of an object has no effect
    Error,
    /// Or something probably works in another way than meant
    Warning,
}

/// `exec-with-parent`.
#[derive(Debug, Args)]
pub struct ExecArguments {
    /// Who started this: if that process is gone already, the program is not run
    #[arg(long, value_name = "PID")]
    pub parent: Option<i32>,
    /// The program and its arguments
    #[arg(required = true, last = true)]
    pub command: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_command_line_is_consistent_and_every_command_teaches() {
        let mut command = Arguments::command();
        command.clone().debug_assert();
        for sub in command.get_subcommands_mut().filter(|sub| !sub.is_hide_set() && !["crds", "version"].contains(&sub.get_name())) {
            let help = sub.render_long_help().to_string();
            assert!(help.contains("Examples:") && help.contains("Exit status:"), "{help}");
        }
    }

    #[test]
    fn as_a_plugin_it_calls_itself_as_kubectl_is_called() {
        let said = |line: &str| read(line.split(' ').map(OsString::from)).unwrap_err().to_string();
        let help = said("/usr/local/bin/kubectl-haproxy_fleet status --help");
        assert!(help.contains("Usage: kubectl haproxy-fleet status [OPTIONS]"), "{help}");
        let all = said("kubectl-haproxy_fleet --help");
        assert!(all.contains("\n  status ") && !all.contains("\n  agent "), "{all}");
        assert!(said("haproxy-fleet status --help").contains("Usage: haproxy-fleet status [OPTIONS]"));
        assert!(said("haproxy-fleet --help").contains("\n  agent "));
    }

    #[test]
    fn a_status_is_that_of_one_place() {
        let refused = |line: &str| read(line.split(' ').map(OsString::from)).is_err();
        assert!(refused("haproxy-fleet status --admin 127.0.0.1:1 --context a"));
        assert!(refused("haproxy-fleet status -A -n a"));
        assert!(!refused("kubectl-haproxy_fleet status --context a -n b --kubeconfig c -o json"));
    }

    #[test]
    fn inputs_may_follow_one_flag_or_several() {
        let parse = |line: &str| Arguments::try_parse_from(line.split(' ')).unwrap().command;
        let Command::Lint(lint) = parse("haproxy-fleet lint -f a b -f c -o json --fail-on warning --haproxy-version 3.2") else {
            unreachable!("lint")
        };
        assert_eq!(lint.input.files, ["a", "b", "c"].map(PathBuf::from));
        assert_eq!((lint.output, lint.fail_on, lint.haproxy.version.minor), (Format::Json, FailOn::Warning, 2));
        let Command::ExecWithParent(exec) = parse("haproxy-fleet exec-with-parent -- haproxy -f x") else { unreachable!("exec") };
        assert_eq!((exec.parent, exec.command), (None, ["haproxy", "-f", "x"].map(OsString::from).to_vec()));
    }

    #[test]
    fn a_haproxy_that_is_too_old_is_refused_by_name() {
        let error = Arguments::try_parse_from(["haproxy-fleet", "lint", "-f", "a", "--haproxy-version", "3.0"]).unwrap_err();
        assert!(error.to_string().contains("3.0 is older than 3.2.22"), "{error}");
    }
}
