//! `generator`: what the load generator itself can do, against a HAProxy that answers by itself. Other figures under
//! load mean something only far below this one.

use crate::context::Context;
use crate::measure::own_cpu;
use crate::origin::Origin;
use crate::result::Results;
use fleet_load::{Config, Load, Protocol, Target, capacity};
use std::error::Error;
use std::time::Duration;

/// Requests a second that it must be able to make on one core with HAProxy on another.
const RATE: f64 = 10_000.0;

pub fn run(context: &Context, results: &mut Results) -> Result<(), Box<dyn Error>> {
    let haproxy = context.haproxy();
    let origin = Origin::start(&haproxy.path)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    for (name, protocol) in [("close", Protocol::Http1Close), ("keep-alive", Protocol::Http1KeepAlive), ("h2", Protocol::Http2)] {
        let connections = if protocol == Protocol::Http2 { 4 } else { 32 };
        let target = Target::new(origin.address(), "a.example", "/").answered_by("a.example");
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
