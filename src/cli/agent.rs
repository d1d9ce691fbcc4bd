//! `agent`: what runs in a pod beside HAProxy, and the small things that the pod's containers need of it.

use super::{Error, Exit, Output};
use crate::agent::room::make_room;
use crate::agent::stop::{self, MASTER_SOCKET, Stopped, Times, stop};
use crate::agent::{Agent, Pod, Settings, Status, linger, supervisor};
use crate::delivery::client::{self, Follower};
use crate::model::FleetId;
use crate::report::PrivateBytes;
use crate::telemetry::log_json_to_stderr;
use clap::{Args, Subcommand};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

pub(super) const HELP: &str = "\
It runs beside HAProxy in every pod of a fleet, follows the operator, and brings what the operator
says into HAProxy, which is found by its master socket. HAProxy reads DIR/config/live: the last good
configuration, else one that answers health checks with 503.

Examples:
  haproxy-fleet agent --fleet infra/edge --operator haproxy-fleet-agents.haproxy-fleet.svc:9443
  haproxy-fleet agent stop --deregistration-delay 45s --timeout 60s

Exit status:
  0  ended as asked
  1  started: there is nothing yet that HAProxy can start from
  2  usage, or it cannot run";

/// `agent`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct AgentArguments {
    #[command(subcommand)]
    command: Option<AgentCommand>,
    #[command(flatten)]
    run: Option<RunArguments>,
}

#[derive(Debug, Subcommand)]
enum AgentCommand {
    /// Copy this program into a directory, for other containers of the pod
    Install {
        /// The directory
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
    /// Succeed if there is something that HAProxy can start from
    Started {
        /// The directory that agent and HAProxy share
        #[arg(long, value_name = "DIR", default_value = DIRECTORY)]
        directory: PathBuf,
    },
    /// Stop the HAProxy of this container without losing a request, and return once it has ended
    Stop(StopArguments),
}

#[derive(Debug, Args)]
struct StopArguments {
    /// The directory that agent and HAProxy share
    #[arg(long, value_name = "DIR", default_value = DIRECTORY)]
    directory: PathBuf,
    /// For how long to serve on while load balancers take the pod out
    ///
    /// [default: what the agent was started with, else 45s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    deregistration_delay: Option<Duration>,
    /// For how long connections that are left may go on after that
    ///
    /// [default: what the agent was started with, else 60s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
    /// The process id of HAProxy's master
    #[arg(long, value_name = "PID", default_value_t = 1, hide = true)]
    pid: i32,
}

const DIRECTORY: &str = "/run/haproxy-fleet";

#[derive(Debug, Args)]
struct RunArguments {
    /// The fleet of the pod
    #[arg(long, value_name = "NAMESPACE/NAME", value_parser = fleet)]
    fleet: FleetId,
    /// Where the operator is; every address of the host is a replica
    #[arg(long, value_name = "HOST:PORT")]
    operator: String,
    /// The name that the operator's certificate is for, if it is not the host
    #[arg(long, value_name = "NAME", hide = true)]
    server_name: Option<String>,
    /// The directory that agent and HAProxy share; best in memory
    #[arg(long, value_name = "DIR", default_value = DIRECTORY)]
    directory: PathBuf,
    /// The token for the operator
    #[arg(long, value_name = "FILE", default_value = "/var/run/haproxy-fleet/token/token")]
    token: PathBuf,
    /// The authorities of the operator
    #[arg(long, value_name = "FILE", default_value = "/var/run/haproxy-fleet/ca/ca.crt")]
    ca: PathBuf,
    /// The directory with `tickets` and `default.pem`
    #[arg(long, value_name = "DIR", default_value = "/var/run/haproxy-fleet/keys")]
    keys: PathBuf,
    /// The port for HTTP
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    http: u16,
    /// The port for HTTPS
    #[arg(long, value_name = "PORT", default_value_t = 8443)]
    https: u16,
    /// The port for health checks
    #[arg(long, value_name = "PORT", default_value_t = 8404)]
    health: u16,
    /// The address to bind to
    ///
    /// [default: all, of both families where there is IPv6]
    #[arg(long, value_name = "IP")]
    address: Option<IpAddr>,
    /// Threads of HAProxy
    ///
    /// [default: as many as HAProxy finds processors]
    #[arg(long, value_name = "N")]
    threads: Option<u16>,
    /// Connections of HAProxy at most
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    max_connections: u32,
    /// What `agent stop` takes if it is told nothing else
    #[arg(long, value_name = "TIME", value_parser = duration)]
    deregistration_delay: Option<Duration>,
    /// What `agent stop` takes if it is told nothing else
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
    /// The least time between two reloads
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5s")]
    reload_interval: Duration,
    /// The HAProxy that validates: the very one that runs
    #[arg(long, value_name = "PATH", default_value = "haproxy")]
    haproxy: PathBuf,
    /// The name of the pod
    ///
    /// [default: `$POD_NAME`]
    #[arg(long, value_name = "NAME")]
    pod: Option<String>,
    /// Run as the child of this process, which starts it again
    #[arg(long, value_name = "PID", hide = true)]
    supervisor: Option<i32>,
}

fn fleet(text: &str) -> Result<FleetId, String> {
    match text.split_once('/') {
        Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
            Ok(FleetId { namespace: namespace.into(), name: name.into() })
        }
        _ => Err(format!("{text:?} is not NAMESPACE/NAME")),
    }
}

/// A time such as `45s`, `1h30m` or `500ms`.
fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time such as 45s, 1h30m or 500ms");
    let mut rest = text;
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (number, after) = rest.split_at(digits);
        let unit = after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let number: u32 = number.parse().map_err(|_| wrong())?;
        let one = match unit {
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            "h" => Duration::from_secs(3600),
            _ => return Err(wrong()),
        };
        sum = one.checked_mul(number).and_then(|part| sum.checked_add(part)).ok_or_else(wrong)?;
        rest = after;
    }
    if text.is_empty() { Err(wrong()) } else { Ok(sum) }
}

pub(super) fn run(arguments: Box<AgentArguments>, out: &mut Output) -> Result<Exit, Error> {
    match arguments.command {
        Some(AgentCommand::Install { directory }) => install(&directory),
        Some(AgentCommand::Started { directory }) => {
            let found = directory.join("config/live/00-pod.cfg").is_file();
            Ok(if found { Exit::Success } else { Exit::Findings })
        }
        Some(AgentCommand::Stop(arguments)) => stop_haproxy(&arguments, out),
        None => match arguments.run {
            Some(arguments) => match arguments.supervisor {
                Some(parent) => run_agent(&arguments, parent),
                None => supervise(&arguments),
            },
            None => Err(Error::new("an agent needs --fleet and --operator", "haproxy-fleet agent --help")),
        },
    }
}

fn install(directory: &Path) -> Result<Exit, Error> {
    let failed = |error: std::io::Error| {
        let directory = directory.display();
        Error::new(format_args!("cannot install into {directory}: {error}"), "mount a volume there that can be written")
    };
    let program = std::env::current_exe().map_err(failed)?;
    let new = directory.join(".haproxy-fleet.new");
    std::fs::copy(program, &new).map_err(failed)?;
    std::fs::set_permissions(&new, PermissionsExt::from_mode(0o755)).map_err(failed)?;
    std::fs::rename(new, directory.join("haproxy-fleet")).map_err(failed)?;
    Ok(Exit::Success)
}

/// The file with the keys of TLS session tickets, in the Secret of the fleet's keys.
const TICKETS: &str = "tickets";

/// What a pod is stopped with if nobody says anything.
const TIMES: Times = Times { deregistration: Duration::from_secs(45), timeout: Duration::from_secs(60) };

fn stop_haproxy(arguments: &StopArguments, out: &mut Output) -> Result<Exit, Error> {
    let known = Times::read(&arguments.directory).unwrap_or(TIMES);
    let times = Times {
        deregistration: arguments.deregistration_delay.unwrap_or(known.deregistration),
        timeout: arguments.timeout.unwrap_or(known.timeout),
    };
    match stop(&arguments.directory, arguments.pid, times).map_err(|error| Error::new(error, ""))? {
        Stopped::InTime => out.line("stopped: every connection ended by itself")?,
        Stopped::Cut => out.line("stopped: the deadline cut what was left")?,
    }
    Ok(Exit::Success)
}

fn cannot_start(error: impl std::fmt::Display) -> Error {
    Error::new(format_args!("the agent cannot start: {error}"), "")
}

/// Runs the same command as a child, again and again.
fn supervise(arguments: &RunArguments) -> Result<Exit, Error> {
    log_json_to_stderr("info");
    let program = std::env::current_exe().map_err(cannot_start)?;
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let child = move || {
        let mut command = Command::new(&program);
        command.args(&words).arg("--supervisor").arg(std::process::id().to_string());
        command
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(cannot_start)?;
    let ports = [arguments.http, arguments.https];
    let sent = linger::until_all_is_sent(&arguments.directory, &ports);
    runtime.block_on(supervisor::supervise(child, sent)).map_err(cannot_start)?;
    Ok(Exit::Success)
}

fn run_agent(arguments: &RunArguments, parent: i32) -> Result<Exit, Error> {
    log_json_to_stderr("info");
    // whoever supervises it may be killed as well: two agents would fight for one HAProxy
    set_parent_process_death_signal(Some(Signal::TERM)).map_err(cannot_start)?;
    if getppid().map(Pid::as_raw_pid) != Some(parent) {
        return Err(cannot_start("the process that started it is gone"));
    }
    // a task that is gone is not noticed by the others: the supervisor starts all of them anew
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        std::process::abort();
    }));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(cannot_start)?;
    runtime.block_on(follow(arguments))
}

async fn follow(arguments: &RunArguments) -> Result<Exit, Error> {
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot_start)?;
    let settings = settings(arguments)?;
    let agent = Agent::start(settings).await.map_err(cannot_start)?;
    let mut status = agent.status();
    let follower = client::Settings {
        fleet: arguments.fleet.clone(),
        pod: pod_name(arguments)?,
        operator: arguments.operator.clone(),
        server_name: arguments.server_name.clone(),
        token: arguments.token.clone(),
        authorities: arguments.ca.clone(),
        haproxy_version: status.borrow().version.to_string(),
        term_file: arguments.directory.join("term"),
    };
    let mut follower = Follower::start(follower, agent.clone())
        .map_err(|error| Error::new(format_args!("--operator {}: {error}", arguments.operator), "give HOST:PORT"))?;
    let applying = async { while status.changed().await.is_ok() {} };
    let renewing = renew_ticket_keys(&agent, &arguments.keys);
    tokio::select! {
        _ = terminate.recv() => {}
        () = follower.ended() => return Err(cannot_start("it follows the operator no more")),
        () = applying => return Err(cannot_start("it applies nothing any more")),
        () = renewing => return Err(cannot_start("it renews no keys any more")),
    }
    let ports = [arguments.http, arguments.https];
    let sent = linger::until_all_is_sent(&arguments.directory, &ports);
    tokio::join!(sent, take_leave(&follower, agent.status(), &arguments.directory));
    Ok(Exit::Success)
}

/// It is noticed within this that HAProxy has ended.
const NOTICED: Duration = Duration::from_secs(2);
/// Replicas of the operator have this long to take the last word.
const HEARD: Duration = Duration::from_secs(2);

/// Tells the operator how the connections ended, if HAProxy was stopped: in a pod that stops this container is ended after
/// that of HAProxy.
async fn take_leave(follower: &Follower, mut status: watch::Receiver<Status>, directory: &Path) {
    let Some(ending) = stop::result(directory) else { return };
    // only whether it is so: the state that comes back is locked as long as it is held
    let gone = tokio::time::timeout(NOTICED, status.wait_for(|status| status.worker_pid.is_none())).await.is_ok();
    if gone {
        // what was written last, as HAProxy ended
        let ending = stop::result(directory).unwrap_or(ending);
        tracing::info!(?ending, "HAProxy was stopped");
        follower.tell_ending(ending, HEARD).await;
    }
}

/// How often the mounted keys are read: the kubelet brings what changed in the Secret within about a minute.
const READ_KEYS: Duration = Duration::from_secs(30);

/// Takes over what becomes of the keys of TLS session tickets in `keys`.
async fn renew_ticket_keys(agent: &Agent, keys: &Path) {
    loop {
        tokio::time::sleep(READ_KEYS).await;
        match tokio::fs::read(keys.join(TICKETS)).await {
            Ok(read) => agent.set_ticket_keys(PrivateBytes::new(read)).await,
            Err(error) => tracing::warn!(%error, "the keys of TLS session tickets cannot be read"),
        }
    }
}

fn pod_name(arguments: &RunArguments) -> Result<String, Error> {
    let named = arguments.pod.clone().or_else(|| std::env::var("POD_NAME").ok());
    named.ok_or_else(|| Error::new("the pod has no name", "set POD_NAME by the downward API, or give --pod"))
}

fn settings(arguments: &RunArguments) -> Result<Settings, Error> {
    let key = |name: &str| {
        let path = arguments.keys.join(name);
        let failed = |error| Error::new(format_args!("cannot read {}: {error}", path.display()), "mount the Secret of the fleet's keys");
        std::fs::read(&path).map(PrivateBytes::new).map_err(failed)
    };
    let addresses: Vec<IpAddr> = arguments.address.map_or_else(everywhere, |address| vec![address]);
    let all = |port: u16| addresses.iter().map(|address| SocketAddr::new(*address, port)).collect::<Vec<_>>();
    let binds = BTreeMap::from([("http".to_owned(), all(arguments.http)), ("https".to_owned(), all(arguments.https))]);
    // that of IPv6 answers probes of both families
    let health = addresses.last().copied().unwrap_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED));
    // HAProxy's container has the same limit: it does not start with less than it asks for
    let connections = make_room().connections;
    if connections < arguments.max_connections {
        tracing::warn!(connections, asked = arguments.max_connections, "fewer connections than asked for: the file limit is too low");
    }
    let pod = Pod {
        name: pod_name(arguments)?,
        binds,
        health: SocketAddr::new(health, arguments.health),
        threads: arguments.threads,
        max_connections: arguments.max_connections.min(connections),
        default_certificate: key("default.pem")?,
        ticket_keys: key(TICKETS)?,
    };
    if arguments.deregistration_delay.is_some() || arguments.timeout.is_some() {
        let times = Times {
            deregistration: arguments.deregistration_delay.unwrap_or(TIMES.deregistration),
            timeout: arguments.timeout.unwrap_or(TIMES.timeout),
        };
        times.write(&arguments.directory).map_err(cannot_start)?;
    }
    Ok(Settings {
        haproxy: arguments.haproxy.clone(),
        directory: arguments.directory.join("config"),
        sockets: arguments.directory.clone(),
        attach: Some(arguments.directory.join(MASTER_SOCKET)),
        pod,
        reload_interval: arguments.reload_interval,
        drift_interval: Duration::from_secs(60),
        launcher: None,
    })
}

/// All interfaces, of both families where there is IPv6.
fn everywhere() -> Vec<IpAddr> {
    let mut all = vec![Ipv4Addr::UNSPECIFIED.into()];
    if TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok() {
        all.push(Ipv6Addr::UNSPECIFIED.into());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_kubernetes_writes_them() {
        assert_eq!(duration("45s"), Ok(Duration::from_secs(45)));
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("1m500ms"), Ok(Duration::from_millis(60_500)));
        for text in ["", "5", "s", "5d", "-5s", "5 s", "99999999999s"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_fleet_is_named_with_its_namespace() {
        assert_eq!(fleet("infra/edge").map(|fleet| fleet.to_string()), Ok("infra/edge".to_owned()));
        for text in ["edge", "/edge", "infra/"] {
            assert!(fleet(text).is_err(), "{text}");
        }
    }
}
