//! `full_start` and `memory`.

use crate::context::Context;
use crate::measure::{peak_rss_mib, rss_mib};
use crate::origin::Origin;
use crate::result::Results;
use crate::rig::{Rig, alone, first_answer, in_memory};
use crate::world::Plan;
use haproxy_fleet::ingest::files::{Files, Limits};
use std::error::Error;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub fn full_start(context: &Context, results: &mut Results) -> Result<(), Box<dyn Error>> {
    let haproxy = context.haproxy();
    let origin = Origin::start(&haproxy.path)?;
    for &routes in &context.sizes {
        let input = tempfile::tempdir()?;
        let plan = Plan { loopback: true, port: origin.port(), ..Plan::new(routes) };
        let bytes = plan.write(input.path())?;
        let started = Instant::now();
        let mut files = Files::new(vec![input.path().to_owned()], Limits::default());
        let delta = files.load()?;
        let mut rig = Rig::empty(haproxy, plan, Duration::from_secs(5))?;
        rig.apply_delta(delta);
        first_answer(rig.http, &Plan::host(routes - 1))?;
        let seconds = started.elapsed().as_secs_f64();
        rig.settle()?;
        rig.kill();
        let haproxy_seconds = alone(&haproxy.path, &rig.live(), rig.http)?.as_secs_f64();
        #[allow(clippy::cast_precision_loss)] // a few MiB
        let input_mib = bytes as f64 / 1_048_576.0;
        results.add(
            context
                .line("full_start", haproxy)
                .with("routes", routes)
                .measured("seconds", seconds)
                .measured("haproxy_seconds", haproxy_seconds)
                .measured("input_mib", input_mib),
        );
    }
    Ok(())
}

/// The whole `haproxy-fleet local`, as a user runs it, without its HAProxies.
pub fn memory(context: &Context, results: &mut Results) -> Result<(), Box<dyn Error>> {
    let haproxy = context.haproxy();
    for &routes in &context.sizes {
        let (input, state) = (tempfile::tempdir()?, in_memory()?);
        Plan { loopback: true, ..Plan::new(routes) }.write(input.path())?;
        let admin = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let mut process = Command::new(env!("CARGO_BIN_EXE_haproxy-fleet"))
            .args(["local", "--output", "plain", "--admin", &admin.to_string(), "-f"])
            .arg(input.path())
            .arg("--state-dir")
            .arg(state.path())
            .arg("--haproxy")
            .arg(&haproxy.path)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let ready = ready(admin);
        let (held, peak) = (rss_mib(Some(process.id()))?, peak_rss_mib(Some(process.id()))?);
        // it ends its HAProxies with it, whatever was found
        process.kill()?;
        process.wait()?;
        ready?;
        results.add(context.line("memory", haproxy).with("routes", routes).measured("rss_mib", held).measured("peak_rss_mib", peak));
    }
    Ok(())
}

fn ready(admin: std::net::SocketAddr) -> Result<(), Box<dyn Error>> {
    use std::io::{Read, Write};
    let end = Instant::now() + Duration::from_secs(60);
    while Instant::now() < end {
        let asked = std::net::TcpStream::connect(admin).and_then(|mut stream| {
            stream.write_all(b"GET /readyz HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer.starts_with("HTTP/1.1 200"))
        });
        if asked.unwrap_or(false) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Err("local never got ready".into())
}
