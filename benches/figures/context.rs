//! What all measurements share: the machine and the HAProxies on it.

use crate::result::Line;
use haproxy_fleet::haproxy::version::Version;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Sizes that are measured, in routes.
const SIZES: [usize; 3] = [100, 1_000, 5_000];

/// A HAProxy that can be run.
#[derive(Clone, Debug)]
pub struct Haproxy {
    /// Its release line: 3.4 or 3.2.
    pub line: &'static str,
    /// Its version.
    pub version: Version,
    /// Its program.
    pub path: PathBuf,
}

/// The machine and the HAProxies on it.
#[derive(Debug)]
pub struct Context {
    /// Processor cores that may be used.
    pub cores: usize,
    /// Newest first.
    pub haproxies: Vec<Haproxy>,
    /// Sizes to measure, in routes.
    pub sizes: Vec<usize>,
}

impl Context {
    /// Finds out.
    pub fn new() -> Result<Self, Box<dyn Error>> {
        let sizes = match std::env::var("ROUTES") {
            Ok(text) if !text.is_empty() => text.split(',').map(str::parse).collect::<Result<_, _>>()?,
            _ => SIZES.to_vec(),
        };
        let haproxies = ["3.4", "3.2"].into_iter().map(haproxy).collect::<Result<_, _>>()?;
        Ok(Self { cores: std::thread::available_parallelism()?.get(), haproxies, sizes })
    }

    /// The HAProxy that fleets run on by default.
    pub fn haproxy(&self) -> &Haproxy {
        // `new` puts both there
        &self.haproxies[0]
    }

    /// A result line of `bench` with `haproxy`.
    pub fn line(&self, bench: &str, haproxy: &Haproxy) -> Line {
        Line::new(bench).with("cores", self.cores).with("haproxy_version", haproxy.version.to_string())
    }
}

fn haproxy(line: &'static str) -> Result<Haproxy, Box<dyn Error>> {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/haproxy");
    let output = Command::new(tool).arg(line).output()?;
    if !output.status.success() {
        return Err(format!("tools/haproxy {line}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let stdout = String::from_utf8(output.stdout)?;
    let path = PathBuf::from(stdout.lines().last().ok_or("tools/haproxy printed no path")?);
    let banner = String::from_utf8(Command::new(&path).arg("-v").output()?.stdout)?;
    let version = banner.split_whitespace().nth(2).ok_or("haproxy -v printed no version")?.parse()?;
    Ok(Haproxy { line, version, path })
}
