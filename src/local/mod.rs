//! The whole thing without a cluster: what `haproxy-fleet local` consists of.

pub mod admin;
pub mod echo;
pub mod haproxies;
pub mod interrupt;
pub mod state;
pub mod view;

use crate::cli::{Error, Output};
use interrupt::Interrupts;
use std::net::SocketAddr;
use std::path::PathBuf;

/// What to run.
#[derive(Debug)]
pub struct Settings {
    /// Manifests.
    pub inputs: Vec<PathBuf>,
    /// Whether Services without endpoints get echo servers.
    pub echo: bool,
    /// Where to keep what must survive a restart.
    pub state: PathBuf,
    /// Where to serve health, metrics and state.
    pub admin: Option<SocketAddr>,
    /// HAProxies to run, newest first; there is at least one.
    pub haproxies: Vec<haproxies::Haproxy>,
    /// Whether to show a live view instead of lines.
    pub live: bool,
}

/// Runs until interrupted.
#[allow(clippy::unused_async)] // the seam for the pipeline
pub async fn run(settings: Settings, out: Output, interrupts: Interrupts) -> Result<(), Error> {
    drop((settings, out, interrupts));
    Err(Error::new("the pipeline is not part of this build", ""))
}
