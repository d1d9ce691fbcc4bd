//! `local`: gathers what is needed and hands over to [`crate::local`].

use super::arguments::{LocalArguments, View};
use super::evaluate::check;
use super::{Error, Exit, Output};
use crate::local::haproxies::{NoHaproxy, find};
use crate::local::interrupt::Interrupts;
use crate::local::state::default_directory;
use crate::local::{self, Settings};
use crate::telemetry::log_to_stderr;
use std::ffi::OsString;

pub(super) fn run(arguments: LocalArguments, out: Output) -> Result<Exit, Error> {
    check(arguments.files())?;
    let haproxies = find(&arguments.haproxy).map_err(|error| Error::new(error, NoHaproxy::help()))?;
    let live = match arguments.output {
        View::Auto => out.is_terminal(),
        View::Tty => true,
        View::Plain => false,
    };
    // events would tear a live view apart; whoever asks for them by the variable gets them
    log_to_stderr(if live { "off" } else { "warn" });
    let settings = Settings {
        state: arguments.state_dir.clone().unwrap_or_else(|| default_directory(arguments.files())),
        inputs: arguments.input.files,
        echo: arguments.echo,
        admin: arguments.admin,
        haproxies,
        launcher: Some(launcher()?),
        live,
    };
    let failed = |error: std::io::Error| Error::new(format_args!("cannot start: {error}"), "");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let interrupts = Interrupts::listen().map_err(failed)?;
        local::run(settings, out, interrupts).await.map_err(|error| Error::new(&error, error.help()))
    })?;
    Ok(Exit::Success)
}

/// What every HAProxy is started through: this program, as `exec-with-parent`, so that none outlives it.
fn launcher() -> Result<Vec<OsString>, Error> {
    let program = std::env::current_exe().map_err(|error| Error::new(format_args!("cannot find this program: {error}"), ""))?;
    Ok(vec![program.into(), "exec-with-parent".into(), "--parent".into(), std::process::id().to_string().into(), "--".into()])
}
