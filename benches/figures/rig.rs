//! The product around one HAProxy: objects go into `ingest`, the pipeline's bundles to a real agent.

use crate::context::Haproxy;
use crate::world::{FLEET, FLEET_NAMESPACE, Plan, yaml};
use haproxy_fleet::agent::runtime::{Command, Session};
use haproxy_fleet::agent::{Agent, Pod, Settings, Status, Update, UpdateContent};
use haproxy_fleet::haproxy::render;
use haproxy_fleet::haproxy::tickets::ticket_keys;
use haproxy_fleet::haproxy::version::Capabilities;
use haproxy_fleet::ingest::Delta;
use haproxy_fleet::ingest::files::{Files, Limits};
use haproxy_fleet::model::FleetId;
use haproxy_fleet::pipeline::{FleetChange, Options, Pipeline};
use haproxy_fleet::report::PrivateBytes;
use haproxy_fleet::translate;
use serde_json::Value;
use std::error::Error;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// A directory in memory, where there is one: that is where a pod keeps what HAProxy reads.
pub fn in_memory() -> std::io::Result<tempfile::TempDir> {
    let shared = Path::new("/dev/shm");
    if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() }
}

/// How long anything may take before the bench gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// The product around one HAProxy.
pub struct Rig {
    pub plan: Plan,
    pub runtime: Runtime,
    pub http: SocketAddr,
    pub https: SocketAddr,
    pipeline: Pipeline,
    agent: Agent,
    generation: u64,
    home: tempfile::TempDir,
}

/// The objects of `text`, as `ingest` reads them.
pub fn ingest(text: &str) -> Result<Delta, Box<dyn Error>> {
    let mut files = Files::new(vec![PathBuf::from("-")], Limits::default());
    let delta = files.load_with(&mut text.as_bytes())?;
    match files.diagnostics().into_iter().next() {
        Some(finding) => Err(format!("{}: {}", finding.object, finding.message).into()),
        None => Ok(delta),
    }
}

/// A pipeline for HAProxies like `haproxy`.
pub fn pipeline(haproxy: &Haproxy) -> Pipeline {
    let version = haproxy.version;
    Pipeline::new(Options {
        capabilities: Box::new(move |_| Capabilities::of(version)),
        translate: translate::Options { allow_loopback: true },
        render: render::Options { max_checked_servers: 0, ..render::Options::default() },
    })
}

fn free_address() -> Result<SocketAddr, Box<dyn Error>> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

fn certificate() -> Result<String, Box<dyn Error>> {
    let made = rcgen::generate_simple_self_signed(vec!["bench.example".to_owned()])?;
    Ok(format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem()))
}

impl Rig {
    /// Brings all objects of `plan` to a serving HAProxy.
    pub fn start(haproxy: &Haproxy, plan: Plan, reload_interval: Duration) -> Result<Self, Box<dyn Error>> {
        let mut rig = Self::empty(haproxy, plan, reload_interval)?;
        let objects: Vec<Value> =
            rig.plan.fleet().into_iter().chain((0..rig.plan.routes).flat_map(|route| rig.plan.route(route))).collect();
        rig.apply(&objects)?;
        rig.settle()?;
        Ok(rig)
    }

    /// An agent with a HAProxy that serves nothing yet.
    pub fn empty(haproxy: &Haproxy, plan: Plan, reload_interval: Duration) -> Result<Self, Box<dyn Error>> {
        let home = in_memory()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let (http, https) = (free_address()?, free_address()?);
        let settings = Settings {
            haproxy: haproxy.path.clone(),
            directory: home.path().join("state"),
            sockets: home.path().to_owned(),
            attach: None,
            pod: Pod {
                name: "bench".to_owned(),
                binds: [("http".to_owned(), vec![http]), ("https".to_owned(), vec![https])].into(),
                health: free_address()?,
                threads: Some(1),
                max_connections: 4_000,
                default_certificate: PrivateBytes::new(certificate()?.into_bytes()),
                ticket_keys: PrivateBytes::new(ticket_keys(b"bench", FLEET)),
            },
            reload_interval,
            drift_interval: Duration::from_secs(60),
            launcher: None,
        };
        std::fs::create_dir_all(&settings.directory)?;
        let agent = runtime.block_on(Agent::start(settings))?;
        Ok(Self { plan, runtime, http, https, pipeline: pipeline(haproxy), agent, generation: 0, home })
    }

    /// Lets `objects` enter `ingest`, and what follows go to the agent.
    pub fn apply(&mut self, objects: &[Value]) -> Result<(), Box<dyn Error>> {
        let delta = ingest(&yaml(objects)?)?;
        self.apply_delta(delta);
        Ok(())
    }

    /// The same for objects that were read already.
    pub fn apply_delta(&mut self, delta: Delta) {
        let fleet = FleetId { namespace: FLEET_NAMESPACE.into(), name: FLEET.into() };
        for update in self.pipeline.apply(delta.set, &delta.removed) {
            let FleetChange::Bundle(changes) = update.change else { continue };
            let Some(bundle) = self.pipeline.bundle(&fleet) else { continue };
            if changes.is_empty() {
                continue;
            }
            self.generation += 1;
            let content =
                if self.generation == 1 { UpdateContent::Full(Arc::new(bundle.clone())) } else { UpdateContent::Changes(changes.into()) };
            self.agent.deliver(Update { generation: self.generation, digest: bundle.digest(), content });
        }
    }

    /// Waits until everything that was delivered is applied.
    pub fn settle(&mut self) -> Result<(), Box<dyn Error>> {
        let (mut status, generation) = (self.agent.status(), self.generation);
        let done = self.runtime.block_on(async {
            let applied = status.wait_for(|status| status.ready && status.generation == generation && status.waiting == 0);
            tokio::time::timeout(PATIENCE, applied).await.map(|found| found.map(|_| ()))
        });
        done??;
        let refused = self.status().refused;
        if refused.is_empty() { Ok(()) } else { Err(format!("HAProxy refused {refused:?}").into()) }
    }

    /// What the agent says.
    pub fn status(&self) -> Status {
        self.agent.status().borrow().clone()
    }

    /// A session with the running worker, beside the agent's own.
    pub fn observe(&self) -> Result<Session, Box<dyn Error>> {
        let socket = std::fs::read_dir(self.home.path())?
            .flatten()
            .map(|entry| entry.path())
            .find(|path| path.extension().is_some_and(|e| e == "sock"));
        let (socket, pid) = (socket.ok_or("the agent has no master socket")?, self.status().worker_pid.ok_or("no worker runs")?);
        Ok(self.runtime.block_on(Session::open(&socket, pid, PATIENCE))?)
    }

    /// Asks the worker for `command` until the answer satisfies `done`.
    pub fn wait_for(&self, session: &mut Session, command: &str, done: impl Fn(&str) -> bool) -> Result<(), Box<dyn Error>> {
        let end = Instant::now() + PATIENCE;
        let commands = [Command::plain(command)];
        while Instant::now() < end {
            if self.runtime.block_on(session.exchange(&commands))?.iter().any(|answer| done(answer)) {
                return Ok(());
            }
        }
        Err(format!("`{command}` never showed the change").into())
    }

    /// The name of the backend of a route.
    pub fn backend(&self, route: usize) -> Result<String, Box<dyn Error>> {
        let fleet = FleetId { namespace: FLEET_NAMESPACE.into(), name: FLEET.into() };
        let prefix = format!("{}_{}_80_", Plan::namespace(route), Plan::name(route));
        let bundle = self.pipeline.bundle(&fleet).ok_or("no fleet")?;
        let name = bundle.resources().find_map(|resource| match &resource.key {
            haproxy_fleet::haproxy::bundle::ResourceKey::Backend(name) if name.starts_with(&prefix) => Some(name.to_string()),
            _ => None,
        });
        name.ok_or_else(|| format!("no backend {prefix}…").into())
    }

    /// The directory that HAProxy reads.
    pub fn live(&self) -> PathBuf {
        self.home.path().join("state/live")
    }

    /// Ends HAProxy; what it read stays.
    pub fn kill(&self) {
        self.runtime.block_on(self.agent.kill());
    }
}

/// Asks `address` for `http://HOST/` over one connection until the answer is 200; says how long that took.
pub fn first_answer(address: SocketAddr, host: &str) -> Result<Duration, Box<dyn Error>> {
    let started = Instant::now();
    let mut connection: Option<TcpStream> = None;
    let mut buffer = [0u8; 4096];
    while started.elapsed() < PATIENCE {
        let Some(stream) = connection.as_mut() else {
            match TcpStream::connect(address) {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    stream.set_read_timeout(Some(PATIENCE))?;
                    connection = Some(stream);
                }
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
            continue;
        };
        let asked = stream.write_all(format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).and_then(|()| stream.read(&mut buffer));
        match asked {
            Ok(read) if buffer[..read].starts_with(b"HTTP/1.1 200") => return Ok(started.elapsed()),
            Ok(read) if read > 0 && !buffer[..read].to_ascii_lowercase().windows(17).any(|w| w == b"connection: close") => {}
            _ => connection = None,
        }
    }
    Err(format!("{host} was never answered").into())
}

/// How long `haproxy -c` and a start take on `directory`, until `http` accepts.
pub fn alone(haproxy: &Path, directory: &Path, http: SocketAddr) -> Result<Duration, Box<dyn Error>> {
    let started = Instant::now();
    let quiet = |mut command: std::process::Command| {
        command.stdin(std::process::Stdio::null()).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        command
    };
    let mut check = std::process::Command::new(haproxy);
    check.arg("-c").arg("-f").arg(directory);
    if !quiet(check).status()?.success() {
        return Err("haproxy -c refused the configuration".into());
    }
    let mut serve = std::process::Command::new(haproxy);
    serve.args(["-db", "-f"]).arg(directory);
    let mut process = quiet(serve).spawn()?;
    while TcpStream::connect(http).is_err() {
        if started.elapsed() > PATIENCE || process.try_wait()?.is_some() {
            return Err("HAProxy alone does not serve".into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let took = started.elapsed();
    process.kill()?;
    process.wait()?;
    Ok(took)
}
