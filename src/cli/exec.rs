//! `exec-with-parent`: a program that ends when whoever started it does.
//!
//! The kernel means the *thread* that started it: spawn from a thread that lives as long as the program shall,
//! such as a worker of the runtime, not from `spawn_blocking`, whose threads end when they are idle.

use super::arguments::ExecArguments;
use super::{Error, Exit};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Becomes the program, which gets SIGTERM when its parent ends, however it ends.
///
/// The kernel keeps the request over `exec`, but not for children: HAProxy's master ends its workers itself.
pub(super) fn with_parent(arguments: &ExecArguments) -> Result<Exit, Error> {
    let [program, rest @ ..] = arguments.command.as_slice() else { return Err(Error::new("no program to run", "")) };
    let parent = arguments.parent.or_else(|| getppid().map(Pid::as_raw_pid));
    set_parent_process_death_signal(Some(Signal::TERM))
        .map_err(|error| Error::new(format_args!("cannot ask to be told of the parent's end: {error}"), ""))?;
    // it may have ended before the request was made, and then no signal comes
    if getppid().map(Pid::as_raw_pid) != parent {
        return Err(Error::new("the process that started this one is gone", ""));
    }
    let error = Command::new(program).args(rest).exec();
    Err(Error::new(format_args!("cannot run {}: {error}", program.display()), ""))
}
