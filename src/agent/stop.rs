//! The end of a pod, seen from the container of HAProxy, in which `agent stop` runs: the agent may be dead, and
//! HAProxy is process 1 there.
//!
//! HAProxy serves on while load balancers take the pod out, and asks its clients to close their connections; then it
//! stops softly (SIGUSR1), and what is left at the deadline is cut (SIGTERM). What says that a pod stops names the very
//! master that does: after a restart of the container nothing is left of it. Endpoints and configuration flow until the
//! soft stop. A reload after it would start a worker that accepts again, so the agent reloads only with a `Permit`, and
//! stopping waits for the one that is given.

use super::attach::SocketId;
use super::runtime::{Connections, ask_for_connections, connections, processes};
use super::tally::{Ending, Tally};
use crate::haproxy::maps;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

/// The master socket, in the directory that agent and HAProxy share.
pub const MASTER_SOCKET: &str = "master.sock";
/// There from the soft stop on.
const MARKER: &str = "stopping";
/// There from the beginning on: its time is when that was.
const BEGAN: &str = "stop-began";
const LOCK: &str = "reload.lock";
const TIMES: &str = "stop-times";
/// How connections ended, as far as that is known.
const RESULT: &str = "stop-result";
/// A reload that runs has this long before the pod is stopped all the same.
const RELOAD: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(100);
/// How often workers are told to ask their clients to leave: one that a reload starts does not know of it.
const ASK: Duration = Duration::from_secs(1);
/// The master answers within this.
const ANSWER: Duration = Duration::from_millis(500);
/// How often connections are counted while HAProxy serves on. After that it may end at any time.
const COUNT: Duration = Duration::from_secs(1);
/// A count that takes longer is given up.
const PATIENCE: Duration = Duration::from_secs(1);

/// The right to reload, as long as it is held.
#[derive(Debug)]
pub(crate) struct Permit {
    _lock: File,
}

impl Permit {
    /// The right to reload the HAProxy behind the master socket `socket`; an error says why not.
    pub(crate) fn for_reload(socket: &Path) -> Result<Self, &'static str> {
        let directory = socket.parent().unwrap_or(Path::new("."));
        let lock = open_lock(directory).map_err(|_| "the lock cannot be opened")?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| "the pod is about to stop")?;
        if stops_softly(socket) {
            return Err("the pod stops");
        }
        Ok(Self { _lock: lock })
    }
}

/// Whether the HAProxy behind the master socket `socket` was asked to stop softly, or is about to be. It takes nothing any more
/// then, and whoever stays connected to it keeps it there.
pub(super) fn stops_softly(socket: &Path) -> bool {
    let directory = socket.parent().unwrap_or(Path::new("."));
    fs::read_to_string(directory.join(MARKER)).is_ok_and(|stopping| stopping == present(directory))
}

fn open_lock(directory: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).open(directory.join(LOCK))
}

/// How a pod is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Times {
    /// How long to serve on: load balancers still send new connections.
    pub deregistration: Duration,
    /// How long connections that are left may go on after that; what is open then is cut.
    pub timeout: Duration,
}

impl Times {
    /// Writes them into `directory`, for whoever stops the pod.
    pub fn write(self, directory: &Path) -> io::Result<()> {
        replace(directory, TIMES, &format!("{} {}\n", self.deregistration.as_millis(), self.timeout.as_millis()))
    }

    /// What was written into `directory`, if it can be read.
    pub fn read(directory: &Path) -> Option<Self> {
        let text = fs::read_to_string(directory.join(TIMES)).ok()?;
        let mut numbers = text.split_whitespace().map(|word| word.parse().map(Duration::from_millis));
        let (Some(Ok(deregistration)), Some(Ok(timeout))) = (numbers.next(), numbers.next()) else { return None };
        Some(Self { deregistration, timeout })
    }
}

fn replace(directory: &Path, name: &str, text: &str) -> io::Result<()> {
    let new = directory.join(format!("{name}.new"));
    fs::write(&new, text)?;
    fs::rename(new, directory.join(name))
}

/// Why a pod is not stopped.
#[derive(Debug, thiserror::Error)]
pub enum StopError {
    /// The process is something else.
    #[error("process {pid} is {found:?}, not haproxy: this command runs in the container of HAProxy, before it is stopped")]
    NotHaproxy {
        /// Which process.
        pid: i32,
        /// What it is.
        found: String,
    },
    /// It cannot be signalled.
    #[error("process {pid} cannot be signalled: {source}")]
    Signal {
        /// Which process.
        pid: i32,
        /// Why not.
        source: io::Error,
    },
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stopped {
    /// All connections ended by themselves.
    InTime,
    /// The deadline came first, and what was left was cut.
    Cut,
}

/// Stops the master `pid`, process 1 in its container, whose socket is in `directory`. A second call waits for the
/// end of the first and changes nothing.
pub fn stop(directory: &Path, pid: i32, times: Times) -> Result<Stopped, StopError> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    if !is_haproxy(&words) {
        return Err(StopError::NotHaproxy { pid, found: String::from_utf8_lossy(&words).replace('\0', " ").trim_end().to_owned() });
    }
    let master = Pid::from_raw(pid).ok_or_else(|| StopError::Signal { pid, source: io::ErrorKind::InvalidInput.into() })?;
    // the agent has to know how long the pod may take; where nothing can be written it is stopped all the same
    let _ = times.write(directory);
    let (began, first) = began(directory, pid);
    let deregistration = if serves_nothing(directory) { Duration::ZERO } else { times.deregistration };
    let serve_until = began + deregistration;
    let cut_at = serve_until + times.timeout;
    let asking = Asking::start(master_socket(directory));
    // a second call has not seen what ended before it
    let mut count = first.then(|| Count { directory, began, tally: Tally::default(), asked: false, kept: None });
    if wait(master, serve_until, COUNT, &mut count) {
        return Ok(Stopped::InTime);
    }
    count.iter_mut().for_each(Count::look);
    if mark(directory) {
        // in vain where the master does not answer
        let _ = tell(&master_socket(directory), &keep_own());
        send(master, Signal::USR1)?;
    }
    drop(asking);
    if let Some(count) = &mut count {
        count.asked = true;
    }
    if wait(master, cut_at, LOOK, &mut count) {
        return Ok(Stopped::InTime);
    }
    count.iter_mut().for_each(Count::cut);
    send(master, Signal::TERM)?;
    wait(master, Instant::now() + Duration::from_secs(5), LOOK, &mut None);
    Ok(Stopped::Cut)
}

/// Whether HAProxy says that it never got anything to serve: the bootstrap knows nothing of the pod. No load balancer sends
/// anything to it. Which files there are does not tell: it may serve what they do not hold any more.
fn serves_nothing(directory: &Path) -> bool {
    let answer = ask(&master_socket(directory), &format!("@1 show map {}", maps::POD));
    answer.is_ok_and(|answer| answer.contains("Unknown map identifier"))
}

/// Whether a process with this command line is HAProxy, be it behind a program that only passes signals on.
fn is_haproxy(words: &[u8]) -> bool {
    words.split(|byte| *byte == 0).any(|word| word.rsplit(|byte| *byte == b'/').next() == Some(b"haproxy"))
}

fn send(master: Pid, signal: Signal) -> Result<(), StopError> {
    match kill_process(master, signal) {
        // it ended by itself
        Err(rustix::io::Errno::SRCH) | Ok(()) => Ok(()),
        Err(error) => Err(StopError::Signal { pid: master.as_raw_pid(), source: error.into() }),
    }
}

/// Waits until `deadline`, and looks that often at what is left; `true` if the master ended before. It ends when its last
/// worker has.
fn wait(master: Pid, deadline: Instant, every: Duration, count: &mut Option<Count<'_>>) -> bool {
    let mut due = Instant::now();
    loop {
        if test_kill_process(master).is_err() {
            return true;
        }
        if Instant::now() >= due {
            count.iter_mut().for_each(Count::look);
            due = Instant::now() + every;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        sleep(left.min(LOOK));
    }
}

/// Tells all workers again and again to ask their clients to leave, until it is dropped. Beside everything else: a
/// master that does not answer keeps no pod from being stopped.
struct Asking(Arc<AtomicBool>);

impl Asking {
    fn start(socket: PathBuf) -> Self {
        let goes_on = Arc::new(AtomicBool::new(true));
        let asks = goes_on.clone();
        std::thread::spawn(move || {
            while asks.load(Ordering::Relaxed) {
                // one that serves nothing yet, or is on its way out, does not take it
                let _ = ask_to_close(&socket);
                sleep(ASK);
            }
        });
        Self(goes_on)
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

fn ask_to_close(socket: &Path) -> io::Result<()> {
    tell(socket, &format!("set map {} {} {}", maps::POD, maps::CLOSING, maps::TRUE))
}

/// Keeps a worker of before a reload from passing its requests on to the present one, which listens no more after the soft
/// stop. It has the servers that it was started with, and nobody is told of others any more.
pub(super) fn keep_own() -> String {
    format!("del map {} {}", maps::POD, maps::RELAYED)
}

/// Gives every worker the command `command`, also those of before a reload.
fn tell(socket: &Path, command: &str) -> io::Result<()> {
    for worker in processes(&ask(socket, "show proc")?).workers() {
        // it is done once there is an answer; one that is on its way out, or serves nothing yet, does not give any
        let _ = ask(socket, &format!("@!{worker} {command}"));
    }
    Ok(())
}

fn ask(socket: &Path, command: &str) -> io::Result<String> {
    let mut master = UnixStream::connect(socket)?;
    master.set_read_timeout(Some(ANSWER))?;
    master.set_write_timeout(Some(ANSWER))?;
    master.write_all(format!("{command}\n").as_bytes())?;
    // else it waits for more
    master.shutdown(Shutdown::Write)?;
    let mut answer = Vec::new();
    master.read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// The connections of clients to each worker.
fn workers(socket: &Path) -> io::Result<BTreeMap<u32, Connections>> {
    let late = Instant::now() + PATIENCE;
    let mut found = BTreeMap::new();
    for worker in processes(&ask(socket, "show proc")?).workers() {
        if Instant::now() > late {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // one that has ended meanwhile has none
        found.extend(connections(&ask(socket, &ask_for_connections(worker))?).map(|connections| (worker, connections)));
    }
    Ok(found)
}

/// Counts how connections end. What is known is kept at once where the agent finds it: HAProxy is process 1 of its
/// container, and when it ends so does this process.
struct Count<'d> {
    directory: &'d Path,
    began: Instant,
    tally: Tally,
    /// Whether HAProxy was asked to stop softly.
    asked: bool,
    /// What was written last, and of which master: a reload gives it another name.
    kept: Option<(String, Ending)>,
}

impl Count<'_> {
    fn look(&mut self) {
        // a worker that is busy or has just ended is asked again soon
        if let Ok(workers) = workers(&master_socket(self.directory)) {
            self.tally.look(workers, self.asked);
            self.keep(self.tally.ending());
        }
    }

    /// HAProxy is about to be ended by force.
    fn cut(&mut self) {
        self.look();
        self.keep(self.tally.forced());
    }

    fn keep(&mut self, ending: Option<Ending>) {
        let of = present(self.directory);
        // one that is gone has no name any more
        let Some(ending) = ending.filter(|_| !of.is_empty()) else { return };
        let new = Some((of, ending));
        if new != self.kept {
            // a pod is stopped also where nothing can be written any more
            let _ = write_result(self.directory, Ending { time: self.began.elapsed(), ..ending });
            self.kept = new;
        }
    }
}

fn write_result(directory: &Path, ending: Ending) -> io::Result<()> {
    let Ending { finished, closed, cut, unseen, forced, time } = ending;
    let (forced, millis) = (u8::from(forced), time.as_millis());
    replace(directory, RESULT, &format!("{} {finished} {closed} {cut} {unseen} {forced} {millis}\n", present(directory)))
}

/// Forgets how an older HAProxy ended than the one behind the master socket `socket`, which is there now.
pub(super) fn forget_older(socket: &Path) {
    let directory = socket.parent().unwrap_or(Path::new("."));
    if result(directory).is_none() {
        // there is none, usually
        let _ = fs::remove_file(directory.join(RESULT));
    }
}

/// How the connections of the HAProxy ended that was stopped in `directory`; `None` if that was not seen, or another one
/// was started after it. One that has ended has taken its socket along, unless it was killed.
pub fn result(directory: &Path) -> Option<Ending> {
    let text = fs::read_to_string(directory.join(RESULT)).ok()?;
    let present = present(directory);
    let (of, numbers) = text.trim_end().split_once(' ')?;
    let numbers: Vec<u64> = numbers.split(' ').map(|number| number.parse().ok()).collect::<Option<_>>()?;
    let &[finished, closed, cut, unseen, forced, millis] = numbers.as_slice() else { return None };
    let ending = Ending { finished, closed, cut, unseen, forced: forced == 1, time: Duration::from_millis(millis) };
    (present.is_empty() || of == present).then_some(ending)
}

/// Says that the pod stops softly; `false` if that was said already. No reload runs after it, and none begins.
fn mark(directory: &Path) -> bool {
    let lock = open_lock(directory).ok();
    let patience = Instant::now() + RELOAD;
    while let Some(lock) = &lock {
        if flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok() || Instant::now() > patience {
            break;
        }
        sleep(Duration::from_millis(20));
    }
    is_first(directory, MARKER, &present(directory))
}

/// Whether `file` does not name `master` yet, which it does from now on.
fn is_first(directory: &Path, file: &str, master: &str) -> bool {
    let file = directory.join(file);
    if fs::read_to_string(&file).is_ok_and(|known| known == master) {
        return false;
    }
    // a pod is stopped also where nothing can be written any more
    let _ = fs::write(file, master);
    true
}

/// Names the master that runs; empty if there is none.
fn present(directory: &Path) -> String {
    SocketId::of(&master_socket(directory)).map(|id| id.to_string()).unwrap_or_default()
}

/// When the process `pid` was started, in the kernel's ticks (`proc_pid_stat(5)`). A master stays the same process when it
/// reloads, though it binds its socket anew.
fn started(pid: i32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // the name before it may hold anything
    let (_, fields) = text.rsplit_once(')')?;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// When stopping began, which a second call has to go on from, and whether this is the first.
fn began(directory: &Path, master: i32) -> (Instant, bool) {
    let now = Instant::now();
    let name = started(master).map_or_else(|| present(directory), |ticks| format!("{master} {ticks}"));
    if is_first(directory, BEGAN, &name) {
        return (now, true);
    }
    let written = fs::metadata(directory.join(BEGAN)).and_then(|found| found.modified());
    let age = written.ok().and_then(|written| SystemTime::now().duration_since(written).ok()).unwrap_or_default();
    (now.checked_sub(age).unwrap_or(now), false)
}

/// How much of its time the stop that began in `directory` has left; `None` if none began.
pub(crate) fn time_left(directory: &Path) -> Option<Duration> {
    let times = Times::read(directory)?;
    let began = fs::metadata(directory.join(BEGAN)).and_then(|found| found.modified()).ok()?;
    let all = times.deregistration + times.timeout;
    Some(all.saturating_sub(SystemTime::now().duration_since(began).unwrap_or_default()))
}

/// The master socket in `directory`.
pub fn master_socket(directory: &Path) -> PathBuf {
    directory.join(MASTER_SOCKET)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn haproxy_is_known_by_its_command_line() {
        assert!(is_haproxy(b"haproxy\0-W\0"));
        assert!(is_haproxy(b"/lib/ld.so\0--library-path\0/lib\0/usr/sbin/haproxy\0-W\0"));
        for other in [&b"haproxy-fleet\0agent\0"[..], b"sleep\x00600\0", b"", b"/pause\0"] {
            assert!(!is_haproxy(other));
        }
    }

    #[test]
    fn nothing_but_haproxy_is_stopped() {
        let directory = tempfile::tempdir().unwrap();
        // not this process: its command line may have the word, as the name of a test to run
        let mut other = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let times = Times { deregistration: Duration::ZERO, timeout: Duration::ZERO };
        let error = stop(directory.path(), i32::try_from(other.id()).unwrap(), times).unwrap_err().to_string();
        assert!(other.try_wait().unwrap().is_none(), "it goes on");
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(error.contains("not haproxy"), "{error}");
        assert_eq!(directory.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn a_stop_has_the_time_of_its_phases_from_when_it_began() {
        let directory = tempfile::tempdir().unwrap();
        let (deregistration, timeout) = (Duration::from_secs(45), Duration::from_secs(60));
        Times { deregistration, timeout }.write(directory.path()).unwrap();
        assert_eq!(time_left(directory.path()), None, "none began");
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(began(directory.path(), pid).1);
        // as a reload does
        fs::write(master_socket(directory.path()), "").unwrap();
        assert!(!began(directory.path(), pid).1, "a second one");
        let left = time_left(directory.path()).unwrap();
        assert!(left <= deregistration + timeout && left > timeout, "{left:?}");
        let long_ago = SystemTime::now() - Duration::from_secs(100);
        File::open(directory.path().join(BEGAN)).unwrap().set_modified(long_ago).unwrap();
        assert!(time_left(directory.path()).unwrap() <= Duration::from_secs(5));
    }

    #[test]
    fn times_are_read_as_they_were_written() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(Times::read(directory.path()), None);
        let times = Times { deregistration: Duration::from_secs(45), timeout: Duration::from_millis(1500) };
        times.write(directory.path()).unwrap();
        assert_eq!(Times::read(directory.path()), Some(times));
    }

    #[test]
    fn a_result_is_read_as_it_was_written_until_another_master_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let socket = master_socket(directory.path());
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(result(directory.path()), None);
        let ending = Ending { finished: 1, closed: 2, cut: 3, unseen: 4, forced: true, time: Duration::from_millis(5678) };
        write_result(directory.path(), ending).unwrap();
        drop(listener);
        assert_eq!(result(directory.path()), Some(ending));
        fs::remove_file(&socket).unwrap();
        assert_eq!(result(directory.path()), Some(ending));
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert_eq!(result(directory.path()), None);
        forget_older(&socket);
        fs::remove_file(&socket).unwrap();
        assert_eq!(result(directory.path()), None);
    }

    #[test]
    fn a_pod_that_stops_gets_no_permit_until_another_master_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let socket = master_socket(directory.path());
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let permit = Permit::for_reload(&socket).unwrap();
        assert!(Permit::for_reload(&socket).is_err(), "two at a time");
        drop(permit);
        assert!(mark(directory.path()));
        assert!(!mark(directory.path()), "a second call is told from the first");
        assert_eq!(Permit::for_reload(&socket).unwrap_err(), "the pod stops");
        fs::remove_file(&socket).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        assert!(Permit::for_reload(&socket).is_ok());
    }
}
