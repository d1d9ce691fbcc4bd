//! The load generator as a command: one line of JSON when it ends.

mod arguments;

use arguments::Arguments;
use clap::Parser;
use fleet_load::{Handle, Load, Report};
use std::error::Error;
use std::io::{BufRead, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            // a closed standard error leaves only the exit status, and that is kept
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::from(2)
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn run(arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    if arguments.capacity {
        let rps = fleet_load::capacity(arguments.config()?).await?;
        writeln!(std::io::stdout(), "{}", serde_json::json!({ "rps": rps }))?;
        return Ok(true);
    }
    let load = match arguments.mix()? {
        Some(mix) => Load::start_mix(mix)?,
        None => Load::start(arguments.config()?)?,
    };
    if arguments.marks {
        mark_lines(&load);
    }
    let report = load
        .wait_or(async {
            // without a way to hear Ctrl-C the default still ends the process
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
        })
        .await;
    let was_lost = report.lost > 0;
    write(arguments, report)?;
    Ok(!was_lost)
}

fn write(arguments: &Arguments, report: Report) -> Result<(), Box<dyn Error>> {
    if let Some(path) = &arguments.svg {
        std::fs::write(path, report.svg()).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let report = if arguments.json { report } else { report.without_series() };
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(())
}

/// Marks what standard input says, on a thread that nobody waits for: the run does not end with the input, nor the other way
/// round.
fn mark_lines(load: &Handle) {
    let marker = load.marker();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            marker.mark(line);
        }
    });
}
