//! Packs a directory as an OCI image archive.

use clap::Parser;
use fleet_image::{Image, Reference};
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Packs a directory as an OCI image archive: one layer, no base, the same bytes each time.
///
/// Every file is owned by root and dated 1970; modes and links are kept.
#[derive(Parser)]
#[command(
    version,
    after_help = "\
Examples:
  fleet-image --tag haproxy-fleet.dev/haproxy-fleet:0.1.0 --user 65532 --entrypoint /haproxy-fleet ROOT image.tar
  ctr --namespace k8s.io images import image.tar"
)]
struct Arguments {
    /// HOST/NAME:TAG (may be given more than once)
    #[arg(long = "tag", value_name = "NAME", required = true)]
    tags: Vec<Reference>,
    /// Who runs in it, as numbers [default: root]
    #[arg(long, value_name = "UID[:GID]", default_value = "", hide_default_value = true)]
    user: String,
    /// A variable of its environment (may be given more than once)
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// The program, then its arguments, one each time
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    entrypoint: Vec<String>,
    /// Further arguments that whoever starts it may replace, one each time
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    cmd: Vec<String>,
    /// The signal that asks it to stop [default: SIGTERM]
    #[arg(long, value_name = "SIGNAL", default_value = "", hide_default_value = true)]
    stop_signal: String,
    /// The directory to pack
    root: PathBuf,
    /// The file to write
    archive: PathBuf,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // a closed standard error leaves only the exit status, and that is kept
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> Result<(), Box<dyn Error>> {
    let Arguments { tags, user, env, entrypoint, cmd, stop_signal, root, archive } = arguments;
    Image { tags, user, env, entrypoint, cmd, stop_signal }.pack(&root, &archive)?;
    Ok(())
}
