//! Programs that do part of the work, and waiting.

use crate::error::ClusterError;
use std::io::{self, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// How long is waited between two looks at a state.
const LOOK: Duration = Duration::from_millis(50);

/// Runs `command` to its end and returns what it printed.
pub(crate) fn output(command: &mut Command) -> Result<String, ClusterError> {
    let output = command.stdin(Stdio::null()).output().map_err(ClusterError::file(command.get_program()))?;
    checked(command, &output)
}

/// As [`output`], with `input` on its standard input.
pub(crate) fn output_with(command: &mut Command, input: &str) -> Result<String, ClusterError> {
    let run = |command: &mut Command| -> io::Result<Output> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let mut stdin = child.stdin.take();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // a program that reads no further tells of it by its status
                let _ = stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
            });
            child.wait_with_output()
        })
    };
    let output = run(command).map_err(ClusterError::file(command.get_program()))?;
    checked(command, &output)
}

fn checked(command: &Command, output: &Output) -> Result<String, ClusterError> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    if output.status.success() {
        return Ok(text(&output.stdout));
    }
    let printed = format!("{}{}", text(&output.stdout), text(&output.stderr));
    Err(ClusterError::Program { command: line(command), status: output.status.to_string(), output: printed.trim().to_owned() })
}

/// The command as one would type it, without care for quotes.
fn line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Looks until `ready` says so, for at most `limit`.
pub(crate) fn until(
    what: &str,
    limit: Duration,
    logs: &Path,
    mut ready: impl FnMut() -> Result<bool, ClusterError>,
) -> Result<(), ClusterError> {
    let deadline = Instant::now() + limit;
    while !ready()? {
        if Instant::now() >= deadline {
            return Err(ClusterError::Timeout { what: what.to_owned(), seconds: limit.as_secs(), logs: logs.to_owned() });
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}
