//! A machine of the cluster: a set of namespaces (mount, net, pid, uts, ipc) that one process holds open.
//!
//! The holder is pid 1 in there. Killing it makes the kernel kill everything inside and drop mounts, network devices and
//! routes: that is a node's crash and the cluster's end alike, and nothing is ever looked up by name and killed.

use crate::command::{output, until};
use crate::error::ClusterError;
use crate::layout::Layout;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The host: the control plane's machine, with the bridge that the nodes' cables lead to.
pub(crate) const HOST: &str = "host";

/// How long a killed process may take to be gone.
const GONE: Duration = Duration::from_secs(30);

/// A daemon of a machine.
#[derive(Clone, Debug)]
pub(crate) struct Daemon {
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
}

/// A machine, up or not.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    layout: Layout,
    name: String,
}

impl Machine {
    pub(crate) fn new(layout: &Layout, name: &str) -> Self {
        Self { layout: layout.clone(), name: name.to_owned() }
    }

    /// The holder's process id, if the machine is up.
    pub(crate) fn holder(&self) -> Option<u32> {
        let pid = fs::read_to_string(self.holder_file()).ok()?.trim().parse().ok()?;
        self.is_holder(pid).then_some(pid)
    }

    /// Makes the namespaces, unless they are there.
    pub(crate) fn hold(&self) -> Result<(), ClusterError> {
        if self.holder().is_some() {
            return Ok(());
        }
        let log = self.layout.log().join(format!("{}.log", self.name));
        let file = fs::File::create(&log).map_err(ClusterError::file(&log))?;
        let mut unshare = Command::new("setsid")
            .args(["unshare", "--mount", "--net", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"])
            .args(self.holder_command())
            .stdin(Stdio::null())
            .stdout(file.try_clone().map_err(ClusterError::file(&log))?)
            .stderr(file)
            .spawn()
            .map_err(ClusterError::file("setsid"))?;
        let children = format!("/proc/{0}/task/{0}/children", unshare.id());
        until(&format!("the namespaces of {}", self.name), GONE, &self.layout.log(), || {
            if let Some(status) = unshare.try_wait().map_err(ClusterError::file("unshare"))? {
                let printed = fs::read_to_string(&log).unwrap_or_default();
                return Err(ClusterError::Program { command: "unshare".to_owned(), status: status.to_string(), output: printed });
            }
            let child = fs::read_to_string(&children).ok().and_then(|text| text.split_whitespace().next()?.parse().ok());
            let Some(pid) = child.filter(|pid| self.is_holder(*pid)) else { return Ok(false) };
            fs::write(self.holder_file(), format!("{pid}\n")).map_err(ClusterError::file(self.holder_file()))?;
            Ok(true)
        })
    }

    /// Kills everything inside at once.
    pub(crate) fn kill(&self) -> Result<(), ClusterError> {
        let Some(pid) = self.holder() else { return Ok(()) };
        kill(pid);
        until(&format!("the end of {}", self.name), GONE, &self.layout.log(), || Ok(!Path::new("/proc").join(pid.to_string()).exists()))?;
        self.forget()
    }

    /// Removes the process ids of what ran here.
    fn forget(&self) -> Result<(), ClusterError> {
        let run = self.layout.run();
        let prefix = format!("{}.", self.name);
        for entry in fs::read_dir(&run).map_err(ClusterError::file(&run))?.flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                fs::remove_file(entry.path()).map_err(ClusterError::file(entry.path()))?;
            }
        }
        Ok(())
    }

    /// A command in all of the machine's namespaces.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Result<Command, ClusterError> {
        self.entered(&["--mount", "--net", "--pid", "--uts", "--ipc"], program)
    }

    /// A command in the machine's network only: files and processes are those of the one who runs it.
    pub(crate) fn network(&self, program: impl AsRef<OsStr>) -> Result<Command, ClusterError> {
        self.entered(&["--net"], program)
    }

    fn entered(&self, namespaces: &[&str], program: impl AsRef<OsStr>) -> Result<Command, ClusterError> {
        let remedy = if self.name == HOST { "up".to_owned() } else { format!("node start {}", self.name.trim_start_matches("node")) };
        let holder = self.holder().ok_or_else(|| ClusterError::NotUp { name: self.name.clone(), remedy })?;
        let mut command = Command::new("nsenter");
        command.arg("--target").arg(holder.to_string()).args(namespaces).arg("--").arg(program);
        Ok(command)
    }

    /// Runs shell lines inside; the first that fails ends it.
    pub(crate) fn shell(&self, lines: &[String]) -> Result<String, ClusterError> {
        output(self.command("sh")?.args(["-euc", &lines.join("\n")]))
    }

    /// Starts a daemon, unless it runs. Its process id, as seen inside, goes to `run`, what it prints to `log`.
    pub(crate) fn start(&self, daemon: &Daemon) -> Result<(), ClusterError> {
        if self.runs(daemon)? {
            return Ok(());
        }
        let path = format!("{}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", self.layout.bin().display());
        // the shell ends, so that the daemon becomes a child of the holder, which reaps it
        let start = "pidfile=$1 log=$2; shift 2; setsid \"$@\" >>\"$log\" 2>&1 </dev/null & echo $! >\"$pidfile\"";
        let mut command = self.command("env")?;
        command.args(["-i", &format!("PATH={path}"), "HOME=/root", "sh", "-euc", start, "start"]);
        command.arg(self.daemon_file(daemon.name)).arg(self.layout.log().join(format!("{}.{}.log", self.name, daemon.name)));
        output(command.arg(&daemon.program).args(&daemon.arguments)).map(drop)
    }

    /// Kills a daemon and waits until it is gone; one that does not run is fine.
    pub(crate) fn stop(&self, daemon: &Daemon) -> Result<(), ClusterError> {
        self.signal(daemon, "kill -KILL \"$1\"; while [ -e /proc/$1 ]; do sleep 0.02; done").map(drop)
    }

    /// Stops a daemon in its tracks: connections to it hang.
    pub(crate) fn freeze(&self, daemon: &Daemon) -> Result<(), ClusterError> {
        self.signal(daemon, "kill -STOP \"$1\"").map(drop)
    }

    /// Lets a frozen daemon go on.
    pub(crate) fn thaw(&self, daemon: &Daemon) -> Result<(), ClusterError> {
        self.signal(daemon, "kill -CONT \"$1\"").map(drop)
    }

    fn runs(&self, daemon: &Daemon) -> Result<bool, ClusterError> {
        self.signal(daemon, "echo runs").map(|printed| !printed.is_empty())
    }

    /// Does `action` with the daemon's process id as `$1`, if that process is the daemon.
    fn signal(&self, daemon: &Daemon, action: &str) -> Result<String, ClusterError> {
        let Ok(pid) = fs::read_to_string(self.daemon_file(daemon.name)) else { return Ok(String::new()) };
        // a program that was built again while it ran is "(deleted)"
        let script = format!("exe=$(readlink /proc/$1/exe) || exit 0\ncase $exe in \"$2\" | \"$2 (deleted)\") {action};; esac");
        output(self.command("sh")?.args(["-uc", &script, "signal", pid.trim()]).arg(&daemon.program))
    }

    fn daemon_file(&self, daemon: &str) -> PathBuf {
        self.layout.run().join(format!("{}.{daemon}", self.name))
    }

    fn holder_file(&self) -> PathBuf {
        self.layout.run().join(format!("{}.pid", self.name))
    }

    /// The holder's command line names the state directory: so it is told from other clusters' holders.
    fn holder_command(&self) -> [PathBuf; 3] {
        [self.layout.program("pause"), PathBuf::from(&self.name), self.layout.state().to_owned()]
    }

    fn is_holder(&self, pid: u32) -> bool {
        command_line(pid)
            .is_some_and(|words| words.iter().map(String::as_str).eq(self.holder_command().iter().filter_map(|word| word.to_str())))
    }
}

/// Kills every machine of this cluster, also those whose process id was lost, and waits until they are gone.
pub(crate) fn kill_all(layout: &Layout) -> Result<(), ClusterError> {
    let proc = fs::read_dir("/proc").map_err(ClusterError::file("/proc"))?;
    let pids = proc.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let holders: Vec<_> = pids.filter(|pid| holds(layout, *pid)).collect();
    for pid in &holders {
        kill(*pid);
    }
    let gone = || Ok(!holders.iter().any(|pid| Path::new("/proc").join(pid.to_string()).exists()));
    until("the end of all machines", GONE, &layout.log(), gone)
}

fn holds(layout: &Layout, pid: u32) -> bool {
    let pause = layout.program("pause");
    command_line(pid).is_some_and(|words| match words.as_slice() {
        [program, _, state] => Path::new(program) == pause && Path::new(state) == layout.state(),
        _ => false,
    })
}

pub(crate) fn command_line(pid: u32) -> Option<Vec<String>> {
    let bytes = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let text = String::from_utf8(bytes).ok()?;
    let words: Vec<_> = text.trim_end_matches('\0').split('\0').map(str::to_owned).collect();
    (!text.is_empty()).then_some(words)
}

/// `kill -9`: a process that is gone already is fine.
pub(crate) fn kill(pid: u32) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) {
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
    }
}
