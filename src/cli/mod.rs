//! The commands. `main.rs` calls [`main`] and nothing else.

mod agent;
mod arguments;
mod crds;
mod diff;
pub mod evaluate;
mod exec;
pub mod files;
mod lint;
mod local;
mod operator;
mod output;
pub(crate) mod placeholder;
mod render;
pub mod report;
mod rollout;
pub mod screen;
mod status;

pub use arguments::{Arguments, Command, DiffArguments, LintArguments, LocalArguments, OperatorArguments, RenderArguments};
pub use evaluate::{Comparison, Evaluation, FleetFiles, OutputFile};
pub use output::Output;

use std::fmt;
use std::process::ExitCode;

/// How a command ended, if it ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// Nothing to complain about: 0.
    Success,
    /// Findings, or changes: 1.
    Findings,
}

/// Why a command could not run: exit status 2.
#[derive(Debug)]
pub struct Error {
    message: String,
    help: String,
}

impl Error {
    /// What is wrong, and what to do about it (may be empty).
    pub fn new(message: impl fmt::Display, help: impl fmt::Display) -> Self {
        Self { message: message.to_string(), help: help.to_string() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        if self.help.is_empty() { Ok(()) } else { write!(f, "\n   = help: {}", self.help) }
    }
}

/// Reads the command line, runs the command, and says how it ended: 0, 1 (findings) or 2 (usage, unreadable input).
pub fn main() -> ExitCode {
    let arguments = match arguments::read(std::env::args_os()) {
        Ok(arguments) => arguments,
        Err(error) => {
            // help and version go to standard output and are no errors; a closed pipe is none either
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    let (mut out, mut err) = (Output::stdout(), Output::stderr());
    match run(arguments.command, &mut out, &mut err) {
        Ok(Exit::Success) => ExitCode::SUCCESS,
        Ok(Exit::Findings) => ExitCode::from(1),
        Err(error) => {
            // there is nobody left to tell that this failed
            let _ = err.line(&report::printable(&error.to_string(), true));
            ExitCode::from(2)
        }
    }
}

fn run(command: Command, out: &mut Output, err: &mut Output) -> Result<Exit, Error> {
    match command {
        Command::Local(arguments) => local::run(arguments, Output::stdout()),
        Command::Render(arguments) => render::run(&arguments, out, err),
        Command::Lint(arguments) => lint::run(&arguments, out),
        Command::Diff(arguments) => diff::run(&arguments, out),
        Command::Agent(arguments) => agent::run(arguments, out),
        Command::Operator(arguments) => operator::run(arguments),
        Command::Crds => crds::run(out),
        Command::Status(arguments) => status::run(&arguments, out, err),
        Command::Rollout(arguments) => rollout::run(&arguments, out),
        Command::Drain(arguments) => rollout::drain(&arguments, out),
        Command::Undrain(arguments) => rollout::undrain(&arguments, out),
        Command::Config(arguments) => rollout::config::run(&arguments, out),
        Command::History(arguments) => rollout::revisions::history(&arguments, out),
        Command::Rollback(arguments) => rollout::revisions::rollback(&arguments, out),
        Command::Version => {
            out.line(concat!("haproxy-fleet ", env!("CARGO_PKG_VERSION")))?;
            Ok(Exit::Success)
        }
        Command::ExecWithParent(arguments) => exec::with_parent(&arguments),
    }
}
