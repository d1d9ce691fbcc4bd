//! `generator`: what the load generator itself can do, against a HAProxy that answers by itself. Other figures under
//! load mean something only far below this one.

use crate::context::Context;
use crate::measure::own_cpu;
use crate::result::Results;
use fleet_load::{Config, Load, Protocol, Target, capacity};
use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Requests a second that it must be able to make on one core with HAProxy on another.
const RATE: f64 = 10_000.0;

pub fn run(context: &Context, results: &mut Results) -> Result<(), Box<dyn Error>> {
    let home = tempfile::tempdir()?;
    let haproxy = context.haproxy();
    let address = free_port()?;
    let _server = Server::start(&haproxy.path, home.path(), address)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for (name, protocol) in [("close", Protocol::Http1Close), ("keep-alive", Protocol::Http1KeepAlive), ("h2", Protocol::Http2)] {
        let connections = if protocol == Protocol::Http2 { 4 } else { 32 };
        let target = Target::new(address, "a.example", "/");
        let config = Config { protocol, connections, duration: Some(Duration::from_secs(2)), ..Config::new(vec![target]) };
        let most = runtime.block_on(capacity(config.clone()))?;
        let rate = RATE.min(most / 2.0);
        let before = own_cpu();
        let report = runtime.block_on(Load::start(Config { rate, ..config })?.wait());
        let cpu = own_cpu().saturating_sub(before).as_secs_f64() / report.seconds;
        results.add(
            context
                .line("generator", haproxy)
                .with("protocol", name)
                .measured("capacity_rps", most)
                .measured("rps", report.rps)
                .measured("cpu", cpu)
                .measured("p50_ms", report.latency.p50_ms)
                .measured("p99_ms", report.latency.p99_ms)
                .losses(&report),
        );
    }
    Ok(())
}

/// An address of loopback that nobody listens on.
fn free_port() -> Result<SocketAddr, Box<dyn Error>> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// A HAProxy that answers every request by itself.
struct Server(Child);

impl Server {
    fn start(program: &Path, home: &Path, address: SocketAddr) -> Result<Self, Box<dyn Error>> {
        let file = home.join("haproxy.cfg");
        let configuration = format!(
            "global\n    nbthread 1\n    maxconn 1000\ndefaults\n    mode http\n    timeout client 10s\n    timeout http-keep-alive 10s\n\
             frontend web\n    bind {address}\n    http-request return status 200 content-type text/plain string hello\n"
        );
        std::fs::write(&file, configuration)?;
        let child = Command::new(program).arg("-db").arg("-f").arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let server = Self(child);
        let end = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(address).is_err() {
            if Instant::now() > end {
                return Err("HAProxy does not listen after 10 s".into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // it may have ended by itself
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
