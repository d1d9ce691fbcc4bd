//! The load generator as a command: one line of JSON when it ends.

use clap::Parser;
use fleet_load::{Config, Load, Protocol, Target, Tls, Trust};
use std::error::Error;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Sends requests at a fixed rate, never twice, and accounts for each by kind of loss.
///
/// Prints one line of JSON: requests, lost, losses by kind, latency from the intended start, seconds, rps.
/// Ctrl-C ends the schedule, waits for what is under way and prints the line as well.
#[derive(Parser)]
#[command(
    version,
    after_help = "\
Exit status: 0 nothing was lost, 1 something was lost, 2 usage.

Examples:
  fleet-load --address 127.0.0.1:8080 --rate 500 --seconds 10 a.example/ b.example/api
  fleet-load --address 127.0.0.1:8443 --protocol h2 --tls --insecure --requests 1000 a.example/
  fleet-load --address 127.0.0.1:8080 --capacity --seconds 3 a.example/"
)]
struct Arguments {
    /// Where to connect to
    #[arg(long)]
    address: SocketAddr,
    /// HOST/PATH to ask for, in turn; HOST/PATH=NAMESPACE/SERVICE also wants that answer in `x-service`
    #[arg(required = true, value_name = "HOST/PATH[=SERVICE]")]
    targets: Vec<String>,
    /// How requests travel
    #[arg(long, value_enum, default_value = "keep-alive")]
    protocol: Wire,
    /// Requests a second
    #[arg(long, default_value_t = 100.0)]
    rate: f64,
    /// End after that many requests
    #[arg(long)]
    requests: Option<u64>,
    /// End after that many seconds
    #[arg(long)]
    seconds: Option<f64>,
    /// The only good status
    #[arg(long, default_value_t = 200)]
    status: u16,
    /// At most that many connections
    #[arg(long, default_value_t = 64)]
    connections: usize,
    /// HTTP/2: at most that many requests at once on a connection
    #[arg(long, default_value_t = 32)]
    streams: usize,
    /// An answer that takes longer (in seconds) is a loss
    #[arg(long, default_value_t = 10.0)]
    timeout: f64,
    /// TLS (with the certificates of --ca, or any with --insecure)
    #[arg(long)]
    tls: bool,
    /// Trust certificates signed by those in this file (PEM)
    #[arg(long, requires = "tls", conflicts_with = "insecure")]
    ca: Option<PathBuf>,
    /// Trust any certificate
    #[arg(long, requires = "tls")]
    insecure: bool,
    /// Measure the most requests a second instead, all connections busy
    #[arg(long)]
    capacity: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Wire {
    /// HTTP/1.1, a connection for each request
    Close,
    /// HTTP/1.1, kept connections
    KeepAlive,
    /// HTTP/2
    H2,
}

fn main() -> ExitCode {
    match run(Arguments::parse()) {
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
async fn run(arguments: Arguments) -> Result<bool, Box<dyn Error>> {
    let measure = arguments.capacity;
    let config = config(arguments)?;
    if measure {
        let rps = fleet_load::capacity(config).await?;
        writeln!(std::io::stdout(), "{}", serde_json::json!({ "rps": rps }))?;
        return Ok(true);
    }
    let load = Load::start(config)?;
    let report = load
        .wait_or(async {
            // without a way to hear Ctrl-C the default still ends the process
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
        })
        .await;
    writeln!(std::io::stdout(), "{}", serde_json::to_string(&report)?)?;
    Ok(report.lost == 0)
}

fn config(arguments: Arguments) -> Result<Config, Box<dyn Error>> {
    let targets = arguments.targets.iter().map(|text| target(text, arguments.address, arguments.status)).collect();
    let tls = match (arguments.tls, arguments.ca, arguments.insecure) {
        (false, ..) => None,
        (true, Some(path), _) => {
            let pem = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            Some(Tls { trust: Trust::Pem(pem), server_name: None })
        }
        (true, None, true) => Some(Tls { trust: Trust::Anything, server_name: None }),
        (true, None, false) => return Err("--tls needs --ca FILE or --insecure".into()),
    };
    Ok(Config {
        protocol: match arguments.protocol {
            Wire::Close => Protocol::Http1Close,
            Wire::KeepAlive => Protocol::Http1KeepAlive,
            Wire::H2 => Protocol::Http2,
        },
        tls,
        rate: arguments.rate,
        requests: arguments.requests,
        duration: arguments.seconds.map(Duration::try_from_secs_f64).transpose()?,
        connections: arguments.connections,
        streams: arguments.streams,
        timeout: Duration::try_from_secs_f64(arguments.timeout)?,
        ..Config::new(targets)
    })
}

fn target(text: &str, address: SocketAddr, status: u16) -> Target {
    let (url, service) = text.split_once('=').map_or((text, None), |(url, service)| (url, Some(service.to_owned())));
    let (host, path) = url.split_at(url.find('/').unwrap_or(url.len()));
    let path = if path.is_empty() { "/" } else { path };
    Target { service, ..Target::new(address, host, path).with_status(status) }
}
