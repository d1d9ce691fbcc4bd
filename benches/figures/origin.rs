//! The server behind the proxies under test: a HAProxy that answers every request by itself, cheaply, and says in
//! `x-service` which host it was asked for.

use std::error::Error;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Answers on one port of all loopback addresses until it is dropped.
#[derive(Debug)]
pub struct Origin {
    process: Child,
    port: u16,
    _home: tempfile::TempDir,
}

impl Origin {
    /// Starts one with `program`, a HAProxy.
    pub fn start(program: &Path) -> Result<Self, Box<dyn Error>> {
        let home = tempfile::tempdir()?;
        let port = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?.local_addr()?.port();
        let file = home.path().join("haproxy.cfg");
        let configuration = format!(
            "global\n    nbthread 1\n    maxconn 4000\n\
             defaults\n    mode http\n    timeout client 60s\n    timeout http-keep-alive 60s\n\
             frontend origin\n    bind 0.0.0.0:{port}\n\
             \x20   http-request return status 200 content-type text/plain hdr x-service \"%[req.hdr(host),field(1,:)]\" string hello\n"
        );
        std::fs::write(&file, configuration)?;
        let mut command = Command::new(program);
        let complaints = home.path().join("stderr");
        command.args(["-db", "-f"]).arg(&file).stdin(Stdio::null()).stdout(Stdio::null()).stderr(std::fs::File::create(&complaints)?);
        let process = command.spawn()?;
        let mut origin = Self { process, port, _home: home };
        let end = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(origin.address()).is_err() {
            if Instant::now() > end || origin.process.try_wait()?.is_some() {
                return Err(format!("the origin does not listen: {}", std::fs::read_to_string(complaints)?).into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(origin)
    }

    /// Where it listens, among others.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Its port, on every loopback address.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        // it may have ended by itself
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
