//! `endpoint_change` and `new_route`: from a change that enters `ingest` to the HAProxy that shows it.

use crate::context::{Context, Haproxy};
use crate::measure::{Samples, own_cpu};
use crate::origin::Origin;
use crate::result::Results;
use crate::rig::{Rig, first_answer};
use crate::world::Plan;
use std::error::Error;
use std::time::{Duration, Instant};

/// Changes back to back.
const BURST: usize = 300;
/// Changes at one a second.
const PACED: usize = 10;
/// New routes of each kind that need no reload.
const ROUTES: usize = 50;
/// New routes that do: each waits for the interval between reloads.
const RELOADING_ROUTES: usize = 3;

pub fn endpoint_change(context: &Context, results: &mut Results) -> Result<(), Box<dyn Error>> {
    let haproxy = context.haproxy();
    for &routes in &context.sizes {
        let mut rig = Rig::start(haproxy, Plan::new(routes), Duration::from_secs(5))?;
        let before = rig.status().reload_count;
        for (pace, changes) in [("back to back", BURST), ("one a second", PACED)] {
            let mut samples = Samples::default();
            let mut session = rig.observe()?;
            for change in 0..changes {
                if pace != "back to back" {
                    std::thread::sleep(Duration::from_secs(1));
                }
                samples.add(shown(&mut rig, &mut session, change, changes)?);
            }
            // processor time apart: asking HAProxy whether it shows the change is not the product's work
            let cpu = if pace == "back to back" { Some(cpu_of_changes(&mut rig)?) } else { None };
            let line = context.line("endpoint_change", haproxy).with("routes", routes).with("pace", pace);
            let line = line.measured("p50_ms", samples.quantile_ms(0.5)).measured("p99_ms", samples.quantile_ms(0.99));
            let line = if let Some(cpu) = cpu { line.measured("cpu_ms", cpu) } else { line };
            results.add(line.with("reloads", rig.status().reload_count - before));
        }
    }
    Ok(())
}

/// Replaces one endpoint; says how long it took until the runtime socket showed the new one.
fn shown(
    rig: &mut Rig,
    session: &mut haproxy_fleet::agent::runtime::Session,
    change: usize,
    salt: usize,
) -> Result<Duration, Box<dyn Error>> {
    let route = change * 7 % rig.plan.routes;
    let backend = rig.backend(route)?;
    let mut addresses = rig.plan.addresses(route);
    addresses[change % rig.plan.endpoints] = rig.plan.address(route, change % rig.plan.endpoints, 1 + (change + salt) % 99);
    let wanted = format!(" {} ", addresses[change % rig.plan.endpoints]);
    let slice = rig.plan.endpoint_slice(route, &addresses);
    let command = format!("show servers state {backend}");
    let started = Instant::now();
    rig.apply(&[slice])?;
    rig.wait_for(session, &command, |answer| answer.contains(&wanted))?;
    Ok(started.elapsed())
}

#[allow(clippy::cast_precision_loss)] // a few hundred
fn cpu_of_changes(rig: &mut Rig) -> Result<f64, Box<dyn Error>> {
    let slices: Vec<_> = (0..BURST)
        .map(|change| {
            let route = change * 11 % rig.plan.routes;
            let mut addresses = rig.plan.addresses(route);
            addresses[0] = rig.plan.address(route, 0, 50 + change % 49);
            rig.plan.endpoint_slice(route, &addresses)
        })
        .collect();
    rig.settle()?;
    let before = own_cpu();
    for slice in &slices {
        rig.apply(std::slice::from_ref(slice))?;
        rig.settle()?;
    }
    Ok(own_cpu().saturating_sub(before).as_secs_f64() * 1000.0 / BURST as f64)
}

pub fn new_route(context: &Context, results: &mut Results) -> Result<(), Box<dyn Error>> {
    for haproxy in &context.haproxies {
        let origin = Origin::start(&haproxy.path)?;
        for &routes in &context.sizes {
            for service in ["existing", "new"] {
                route_of(context, haproxy, &origin, routes, service, results)?;
            }
        }
    }
    Ok(())
}

fn route_of(
    context: &Context,
    haproxy: &Haproxy,
    origin: &Origin,
    routes: usize,
    service: &str,
    results: &mut Results,
) -> Result<(), Box<dyn Error>> {
    let plan = Plan { loopback: true, port: origin.port(), ..Plan::new(routes) };
    let mut rig = Rig::start(haproxy, plan, Duration::from_secs(5))?;
    let before = rig.status().reload_count;
    let count = if service == "new" && haproxy.line == "3.2" { RELOADING_ROUTES } else { ROUTES };
    let mut samples = Samples::default();
    for number in 0..count {
        let route = routes + number;
        let mut objects = rig.plan.route(route).to_vec();
        if service == "existing" {
            // the same host, on the Service of a route that is served
            objects = vec![Plan::ingress(route)];
            objects[0]["metadata"]["namespace"] = Plan::namespace(0).into();
            objects[0]["spec"]["rules"][0]["http"]["paths"][0]["backend"]["service"]["name"] = Plan::name(0).into();
        }
        let started = Instant::now();
        rig.apply(&objects)?;
        first_answer(rig.http, &Plan::host(route))?;
        samples.add(started.elapsed());
    }
    results.add(
        context
            .line("new_route", haproxy)
            .with("routes", routes)
            .with("haproxy", haproxy.line)
            .with("service", service)
            .measured("p50_ms", samples.quantile_ms(0.5))
            .measured("p99_ms", samples.quantile_ms(0.99))
            .with("reloads", rig.status().reload_count - before),
    );
    Ok(())
}
