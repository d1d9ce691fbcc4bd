//! The runtime API, through the master socket: one persistent connection to the worker named by its process
//! id, pipelined commands, and answers that are checked by their text.

mod command;
mod show;

pub use command::{Command, commands, delete_list_entry, undo};
pub use show::{Connections, ListLine, Processes, ServerState, connections, list_lines, map_entries, names, processes, server_states};

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// No answer for this long: the connection is given up. A first command that meets a worker before it is
/// ready is never answered.
const SILENCE: Duration = Duration::from_secs(5);
/// HAProxy closes a command connection after 10 s without a command: an older one is opened anew before.
const IDLE: Duration = Duration::from_secs(5);

/// A number that nobody can foresee, for marks and terminators.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// A connection to one worker.
#[derive(Debug)]
pub struct Session {
    stream: UnixStream,
    mark: String,
    sent: u64,
    used: Instant,
    buffer: Vec<u8>,
}

impl Session {
    /// Connects to the worker `pid` behind the master socket `socket` and makes sure that it is that one.
    pub async fn open(socket: &Path, pid: u32, patience: Duration) -> io::Result<Self> {
        let open = async {
            let mut stream = UnixStream::connect(socket).await?;
            stream.write_all(format!("@@!{pid} prompt i\n").as_bytes()).await?;
            let mark = format!("mark-{:016x}-", random());
            let mut session = Self { stream, mark, sent: 0, used: Instant::now(), buffer: Vec::new() };
            let answers = session.exchange(&[Command::plain("show info")]).await?;
            let expected = format!("Pid: {pid}");
            if answers.iter().flat_map(|answer| answer.lines()).any(|line| line == expected) {
                Ok(session)
            } else {
                Err(io::Error::other(format!("the master socket does not lead to worker {pid}")))
            }
        };
        tokio::time::timeout(patience, open).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    /// Whether HAProxy may be about to close it for being idle.
    pub fn is_stale(&self) -> bool {
        self.used.elapsed() > IDLE
    }

    /// Sends all of `commands` and returns their answers in order.
    pub async fn exchange(&mut self, commands: &[Command]) -> io::Result<Vec<String>> {
        let mut out = Vec::with_capacity(commands.len() * 64);
        let first = self.sent;
        for command in commands {
            out.extend_from_slice(&command.text);
            out.extend_from_slice(format!("echo {}{}\n", self.mark, self.sent).as_bytes());
            self.sent += 1;
        }
        let (mut reader, mut writer) = self.stream.split();
        let write = async { writer.write_all(&out).await };
        let buffer = &mut self.buffer;
        let mark = &self.mark;
        let read = async {
            let mut answers = Vec::with_capacity(commands.len());
            for number in first..first + commands.len() as u64 {
                answers.push(until(&mut reader, buffer, format!("{mark}{number}\n\n").as_bytes()).await?);
            }
            Ok(answers)
        };
        let ((), answers): ((), Vec<String>) = tokio::try_join!(write, read)?;
        if answers.iter().any(|answer| is_of_master(answer)) {
            return Err(io::Error::new(io::ErrorKind::ConnectionReset, "the worker has closed the connection"));
        }
        self.used = Instant::now();
        Ok(answers)
    }
}

/// Whether this is what the master says to a command for its worker: once the worker has closed its end, the master takes
/// over. A worker knows the first word of all that it is asked.
fn is_of_master(answer: &str) -> bool {
    let unknown = answer.trim_start().strip_prefix("Unknown command: '").and_then(|rest| rest.split_once('\''));
    unknown.is_some_and(|(words, _)| !words.contains(' '))
}

/// Reads up to and with `mark`; what stands before it is the answer.
async fn until(reader: &mut (impl AsyncReadExt + Unpin), buffer: &mut Vec<u8>, mark: &[u8]) -> io::Result<String> {
    let mut searched = 0;
    loop {
        let start = buffer[searched..].windows(mark.len()).position(|window| window == mark);
        if let Some(at) = start.map(|at| at + searched) {
            let answer = String::from_utf8_lossy(&buffer[..at]).into_owned();
            buffer.drain(..at + mark.len());
            return Ok(answer);
        }
        searched = buffer.len().saturating_sub(mark.len());
        let read = tokio::time::timeout(SILENCE, reader.read_buf(buffer)).await;
        match read {
            Ok(Ok(0)) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(error),
            Err(_) => return Err(io::ErrorKind::TimedOut.into()),
        }
    }
}

/// The master's command for what [`connections`] reads of the worker `pid`: its frontends and their binds.
pub fn ask_for_connections(pid: u32) -> String {
    format!("@!{pid} show stat -1 9 -1")
}

/// The master itself.
#[derive(Clone, Debug)]
pub struct Master {
    /// Its socket.
    pub socket: PathBuf,
}

impl Master {
    async fn ask(&self, command: &str, patience: Duration) -> io::Result<String> {
        let ask = async {
            let mut stream = UnixStream::connect(&self.socket).await?;
            stream.write_all(format!("{command}\n").as_bytes()).await?;
            stream.shutdown().await?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await?;
            Ok(String::from_utf8_lossy(&answer).into_owned())
        };
        tokio::time::timeout(patience, ask).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }

    /// Who runs.
    pub async fn processes(&self) -> io::Result<Processes> {
        Ok(processes(&self.ask("show proc", Duration::from_secs(2)).await?))
    }

    /// The connections of clients to each worker, also to those of earlier configurations.
    pub async fn connections(&self) -> io::Result<BTreeMap<u32, Connections>> {
        let mut found = BTreeMap::new();
        for worker in self.processes().await?.workers() {
            // one that has ended meanwhile has none
            let answer = self.ask(&ask_for_connections(worker), Duration::from_secs(2)).await?;
            found.extend(connections(&answer).map(|connections| (worker, connections)));
        }
        Ok(found)
    }

    /// Gives every worker the command `command`, also those of before a reload.
    pub(crate) async fn tell(&self, command: &str) -> io::Result<()> {
        for worker in self.processes().await?.workers() {
            // one that has just ended is told nothing
            let _ = self.ask(&format!("@!{worker} {command}"), Duration::from_millis(500)).await;
        }
        Ok(())
    }

    /// Starts a new worker with the present files; the answer begins with `Success=1` if it runs.
    pub async fn reload(&self) -> io::Result<String> {
        self.ask("reload", Duration::from_secs(120)).await
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tokio::io::{AsyncBufReadExt, BufReader};

    /// What comes of a command that is answered with `answer`.
    async fn exchanged(answer: &'static str) -> io::Result<Vec<String>> {
        let (stream, mut other) = UnixStream::pair().unwrap();
        tokio::spawn(async move {
            let (reader, mut writer) = other.split();
            let mut lines = BufReader::new(reader).lines();
            while let Some(line) = lines.next_line().await.unwrap() {
                let said = line.strip_prefix("echo ").map_or_else(|| answer.to_owned(), |mark| format!("{mark}\n\n"));
                writer.write_all(said.as_bytes()).await.unwrap();
            }
        });
        let mut session = Session { stream, mark: "mark-".to_owned(), sent: 0, used: Instant::now(), buffer: Vec::new() };
        session.exchange(&[Command::plain("set server a/b state drain")]).await
    }

    #[tokio::test]
    async fn an_answer_of_the_master_is_a_closed_connection_and_no_refusal() {
        // as HAProxy 3.4.7 and 3.2.26 say it
        let master = "Unknown command: 'set', but maybe one of the following ones is a better match:\n  \
                      @master                                 : send a command to the master process\n";
        assert_eq!(exchanged(master).await.unwrap_err().kind(), io::ErrorKind::ConnectionReset);
        assert_eq!(exchanged("No such server.\n\n").await.unwrap(), ["No such server.\n\n"]);
        assert!(exchanged("Unknown command: 'set server', but maybe …\n\n").await.is_ok());
    }
}
