//! The command line.

use clap::Parser;
use fleet_load::{Config, Mix, Part, Protocol, Target, Tls, Trust, Unit};
use std::error::Error;
use std::net::SocketAddr;
use std::path::PathBuf;
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
  fleet-load --address 127.0.0.1:8080 --protocol websocket --rate 5 --lasts 10 --seconds 60 a.example/ws
  fleet-load --address 127.0.0.1:8080 --rate 200 --seconds 60 --svg load.svg \\
    --part 80:keep-alive:a.example/ --part 15:h2:a.example/ --part 5:download:a.example/large
  fleet-load --address 127.0.0.1:8080 --capacity --seconds 3 a.example/"
)]
pub(crate) struct Arguments {
    /// Where to connect to
    #[arg(long)]
    address: SocketAddr,
    /// HOST/PATH to ask for, in turn; HOST/PATH=NAMESPACE/SERVICE also wants that answer in `x-service`
    #[arg(required_unless_present = "parts", value_name = "HOST/PATH[=SERVICE]")]
    targets: Vec<String>,
    /// How requests travel, and what they are
    #[arg(long, value_enum, default_value = "keep-alive")]
    protocol: Wire,
    /// One of several loads at once, by its share of the rate; may be given again and again
    #[arg(long = "part", value_name = "SHARE:PROTOCOL:HOST/PATH[=SERVICE]", value_parser = part, conflicts_with_all = ["targets", "capacity"])]
    parts: Vec<PartArgument>,
    /// Requests a second
    #[arg(long, default_value_t = 100.0)]
    rate: f64,
    /// End after that many requests (of each part)
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
    /// Downloads and uploads: read or send at most that much
    #[arg(long, value_name = "BYTES", default_value_t = 100_000)]
    bytes_per_second: u64,
    /// Uploads: the size of the body
    #[arg(long, value_name = "BYTES", default_value_t = 1_000_000)]
    bytes: u64,
    /// WebSocket: seconds to the deadline, before which only the client may end one
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0)]
    lasts: f64,
    /// WebSocket: seconds between two messages
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0)]
    every: f64,
    /// WebSocket: seconds after the deadline in which it is left to the server to end one
    #[arg(long, value_name = "SECONDS", default_value_t = 0.0)]
    stays: f64,
    /// Count by the pod that this header of answers names
    #[arg(long, value_name = "NAME")]
    pod_header: Option<String>,
    #[command(flatten)]
    tls: TlsArguments,
    /// Print the whole report, with what happened in each second
    #[arg(long)]
    pub json: bool,
    /// Draw rate, latency and losses over time into this file
    #[arg(long, value_name = "FILE", conflicts_with = "capacity")]
    pub svg: Option<PathBuf>,
    /// Take each line of standard input for something that happens now: it is in the report and in the picture
    #[arg(long, conflicts_with = "capacity")]
    pub marks: bool,
    /// Measure the most requests a second instead, all connections busy
    #[arg(long)]
    pub capacity: bool,
}

#[derive(clap::Args)]
struct TlsArguments {
    /// TLS (with the certificates of --ca, or any with --insecure)
    #[arg(long)]
    tls: bool,
    /// Trust certificates signed by those in this file (PEM)
    #[arg(long, requires = "tls", conflicts_with = "insecure")]
    ca: Option<PathBuf>,
    /// Trust any certificate
    #[arg(long, requires = "tls")]
    insecure: bool,
}

impl TlsArguments {
    fn read(&self) -> Result<Option<Tls>, Box<dyn Error>> {
        if !self.tls {
            return Ok(None);
        }
        let trust = match (&self.ca, self.insecure) {
            (Some(path), _) => Trust::Pem(std::fs::read(path).map_err(|error| format!("{}: {error}", path.display()))?),
            (None, true) => Trust::Anything,
            (None, false) => return Err("--tls needs --ca FILE or --insecure".into()),
        };
        Ok(Some(Tls { trust, server_name: None }))
    }
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Wire {
    /// HTTP/1.1, a connection for each request
    Close,
    /// HTTP/1.1, kept connections
    KeepAlive,
    /// HTTP/2
    H2,
    /// HTTP/1.1 over TLS, a whole handshake for each request
    TlsHandshakes,
    /// A WebSocket whose messages must come back
    Websocket,
    /// HTTP/1.1, answers read slowly
    Download,
    /// HTTP/2, answers read slowly
    H2Download,
    /// HTTP/1.1, a body sent slowly
    Upload,
    /// HTTP/2, a body sent slowly
    H2Upload,
}

/// What a part is, as it was given.
#[derive(Clone)]
struct PartArgument {
    share: f64,
    wire: Wire,
    target: String,
    name: String,
}

fn part(text: &str) -> Result<PartArgument, String> {
    let mut pieces = text.splitn(3, ':');
    let (Some(share), Some(wire), Some(target)) = (pieces.next(), pieces.next(), pieces.next()) else {
        return Err("a part is SHARE:PROTOCOL:HOST/PATH".into());
    };
    let share = share.parse().map_err(|_| format!("the share {share} is not a number"))?;
    let name = format!("{wire} {target}");
    let wire = clap::ValueEnum::from_str(wire, false).map_err(|_| format!("{wire} is none of the protocols"))?;
    Ok(PartArgument { share, wire, target: target.to_owned(), name })
}

impl Arguments {
    /// Several loads, if parts were given.
    pub(crate) fn mix(&self) -> Result<Option<Mix>, Box<dyn Error>> {
        if self.parts.is_empty() {
            return Ok(None);
        }
        let part = |part: &PartArgument| {
            let config = self.config_of(part.wire, std::slice::from_ref(&part.target))?;
            Ok(Part { name: part.name.clone(), share: part.share, config })
        };
        let parts = self.parts.iter().map(part).collect::<Result<_, Box<dyn Error>>>()?;
        Ok(Some(Mix { rate: self.rate, duration: None, parts }))
    }

    /// The only load.
    pub(crate) fn config(&self) -> Result<Config, Box<dyn Error>> {
        self.config_of(self.protocol, &self.targets)
    }

    fn config_of(&self, wire: Wire, targets: &[String]) -> Result<Config, Box<dyn Error>> {
        let (protocol, unit) = self.what(wire)?;
        Ok(Config {
            protocol,
            unit,
            tls: self.tls.read()?,
            rate: self.rate,
            requests: self.requests,
            duration: self.seconds.map(Duration::try_from_secs_f64).transpose()?,
            connections: self.connections,
            streams: self.streams,
            timeout: Duration::try_from_secs_f64(self.timeout)?,
            pod_header: self.pod_header.clone(),
            ..Config::new(targets.iter().map(|text| self.target(text)).collect())
        })
    }

    fn what(&self, wire: Wire) -> Result<(Protocol, Unit), Box<dyn Error>> {
        let download = Unit::Download { bytes_per_second: self.bytes_per_second };
        let upload = Unit::Upload { bytes: self.bytes, bytes_per_second: self.bytes_per_second };
        let websocket = Unit::WebSocket {
            lasts: Duration::try_from_secs_f64(self.lasts)?,
            every: Duration::try_from_secs_f64(self.every)?,
            stays: Duration::try_from_secs_f64(self.stays)?,
        };
        Ok(match wire {
            Wire::Close => (Protocol::Http1Close, Unit::Request),
            Wire::KeepAlive => (Protocol::Http1KeepAlive, Unit::Request),
            Wire::H2 => (Protocol::Http2, Unit::Request),
            Wire::TlsHandshakes => (Protocol::TlsHandshakes, Unit::Request),
            Wire::Websocket => (Protocol::Http1KeepAlive, websocket),
            Wire::Download => (Protocol::Http1KeepAlive, download),
            Wire::H2Download => (Protocol::Http2, download),
            Wire::Upload => (Protocol::Http1KeepAlive, upload),
            Wire::H2Upload => (Protocol::Http2, upload),
        })
    }

    fn target(&self, text: &str) -> Target {
        let (url, service) = text.split_once('=').map_or((text, None), |(url, service)| (url, Some(service.to_owned())));
        let (host, path) = url.split_at(url.find('/').unwrap_or(url.len()));
        let path = if path.is_empty() { "/" } else { path };
        Target { service, ..Target::new(self.address, host, path).with_status(self.status) }
    }
}
