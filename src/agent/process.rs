//! The HAProxy process: whose it is, start, version, validation, signals.

use super::attach::{Attached, Sighting};
use super::drain::{self, Drain, Drained};
use super::runtime::{Master, Session};
use crate::haproxy::files::complaints;
use crate::haproxy::version::Version;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;

/// The HAProxy that an agent stands beside.
#[derive(Debug)]
pub(crate) enum Haproxy {
    /// A child: it is started, signalled and waited for.
    Spawned(Child),
    /// Somebody else's: it is looked for, and never signalled.
    Attached(Attached),
}

/// What happened to it.
#[derive(Debug)]
pub(crate) enum Event {
    /// It is gone, and why.
    Died(String),
    /// One of somebody else is there, and this worker serves.
    Came(Session, u32),
    /// One of somebody else did not start.
    Failed,
}

impl Haproxy {
    /// Waits for the next thing that happens to it. Nothing is lost if that is given up in between.
    pub(crate) async fn event(&mut self) -> Event {
        match self {
            Self::Spawned(child) => Event::Died(child.wait().await.map_or_else(|error| error.to_string(), |status| status.to_string())),
            Self::Attached(attached) => match attached.sight().await {
                Sighting::Came(session, worker) => Event::Came(session, worker),
                Sighting::Went(why) => Event::Died(why.to_owned()),
                Sighting::Failed => Event::Failed,
            },
        }
    }

    /// Whether there is one.
    pub(crate) fn is_up(&self) -> bool {
        match self {
            Self::Spawned(child) => child.id().is_some(),
            Self::Attached(attached) => attached.is_up(),
        }
    }

    /// The process id of its master where that means something.
    pub(crate) fn id(&self) -> Option<u32> {
        if let Self::Spawned(child) = self { child.id() } else { None }
    }

    /// Stops it softly, if it is ours.
    pub(crate) async fn drain(&mut self, master: &Master, options: Drain) -> Drained {
        match self {
            Self::Spawned(child) => drain::drain(child, master, options).await,
            Self::Attached(_) => Drained::NOTHING,
        }
    }

    /// Stops it at once, if it is ours.
    pub(crate) async fn stop(&mut self) {
        if let Self::Spawned(child) = self {
            drain::stop(child).await;
        }
    }
}

/// Asks the program for its version.
pub async fn version(haproxy: &Path) -> io::Result<Version> {
    let output = Command::new(haproxy).arg("-v").stdin(Stdio::null()).output().await?;
    let banner = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = banner.split_whitespace().nth(2).unwrap_or_default();
    number.parse().map_err(|error| io::Error::other(format!("{}: {error}", haproxy.display())))
}

/// What a HAProxy that was started says on its standard error, which also goes to the log.
#[derive(Debug)]
pub struct LastWords(JoinHandle<VecDeque<String>>);

impl LastWords {
    /// How many lines are kept: enough for every alert of a start that fails.
    const KEPT: usize = 20;

    fn listen(child: &mut Child) -> Self {
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        if let Some(stdout) = stdout {
            // access logs, where a fleet has them
            let mut lines = BufReader::new(stdout).lines();
            tokio::spawn(async move {
                while let Ok(Some(line)) = lines.next_line().await {
                    tracing::debug!(target: "haproxy::access", "{line}");
                }
            });
        }
        Self(tokio::spawn(async move {
            let mut kept = VecDeque::new();
            let Some(stderr) = stderr else { return kept };
            let mut lines = BufReader::new(stderr).lines();
            while let Ok(Some(line)) = lines.next_line().await {
                tracing::debug!(target: "haproxy", "{line}");
                kept.push_back(line);
                if kept.len() > Self::KEPT {
                    kept.pop_front();
                }
            }
            kept
        }))
    }

    /// Why it ended, once it has: its alerts, else the last thing it said.
    pub async fn of_the_dead(self) -> Option<String> {
        // a worker that outlives its master holds the other end open
        let lines = Vec::from(tokio::time::timeout(Duration::from_secs(1), self.0).await.ok()?.ok()?);
        let alerts: Vec<String> = complaints(&lines.join("\n")).into_iter().map(|complaint| complaint.message).collect();
        if alerts.is_empty() { lines.into_iter().next_back() } else { Some(alerts.join("; ")) }
    }
}

/// Starts a master. What it says goes to the log.
pub fn spawn(launcher: Option<&[OsString]>, haproxy: &Path, socket: &Path, live: &Path) -> io::Result<(Child, LastWords)> {
    let mut words: Vec<OsString> = launcher.unwrap_or_default().to_vec();
    words.push(haproxy.into());
    let mut command = Command::new(&words[0]);
    let mut listen = socket.as_os_str().to_owned();
    listen.push(",mode,600");
    command.args(&words[1..]).args(["-W", "-db", "-S"]).arg(listen).arg("-f").arg(live);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    // Ctrl-C goes to the whole foreground group of a terminal: HAProxy is stopped by its agent, not by that
    command.process_group(0);
    let mut child = command.spawn()?;
    let words = LastWords::listen(&mut child);
    Ok((child, words))
}

/// What `haproxy -c` says about the directory `path`: `Err` with its output if it would not load it.
pub async fn validate(haproxy: &Path, path: &Path) -> io::Result<Result<(), String>> {
    let mut command = Command::new(haproxy);
    command.arg("-c").arg("-f").arg(path).stdin(Stdio::null()).kill_on_drop(true);
    let output = command.output().await?;
    if output.status.success() {
        return Ok(Ok(()));
    }
    let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.push_str(&String::from_utf8_lossy(&output.stdout));
    if text.is_empty() {
        text = format!("[ALERT] (0) : haproxy -c ended with {}", output.status);
    }
    Ok(Err(text))
}

/// Sends `signal` to the process `pid`, which may be gone.
pub fn signal(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        // it may have ended by itself
        let _ = kill_process(pid, signal);
    }
}

/// Ends those of `workers` that outlived their master. On every release tried they end by themselves when
/// it dies, whatever it died of; this makes sure before another HAProxy takes their addresses.
pub fn end_orphans(workers: &[u32], live: &Path) {
    let needle = live.as_os_str().as_encoded_bytes();
    for pid in workers {
        // process ids are reused: only one that was started with our directory is ours
        let command = std::fs::read(PathBuf::from(format!("/proc/{pid}/cmdline"))).unwrap_or_default();
        if command.windows(needle.len()).any(|window| window == needle) {
            signal(*pid, Signal::KILL);
        }
    }
}
