//! An agent, its HAProxy's master or its worker are killed at any point of a sequence of deliveries: what comes back
//! serves what was delivered last, and whoever was not concerned is never answered wrongly.
//!
//! `KILLED_SEED` tries another sequence, `KILLED_ROUNDS` a longer one.

use crate::crosscheck::Random;
use crate::rig::{Client, Origin, Rig, backend, eventually, frontends, map, route, section, skeleton, without_backend};
use crate::seeds::fixed_seed;
use crate::support::haproxies;
use haproxy_fleet::agent::Agent;
use haproxy_fleet::haproxy::bundle::{Bundle, ResourceKey};
use haproxy_fleet::haproxy::files::render_bytes;
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

/// The route that nothing here changes, and who answers it.
const KEPT: (&str, &str) = ("kept.example", "kept");
const BACKENDS: [&str; 4] = ["b0", "b1", "b2", "b3"];
const HOSTS: [&str; 6] = ["h0.example", "h1.example", "h2.example", "h3.example", "h4.example", "h5.example"];

/// What was delivered last, as clients see it: the origin of each backend, the backend of each host.
#[derive(Default)]
struct Wanted {
    origins: BTreeMap<&'static str, usize>,
    routes: BTreeMap<&'static str, &'static str>,
    frontends: usize,
}

impl Wanted {
    /// Something else, in the bundle as well.
    fn change(&mut self, random: &mut Random, bundle: &mut Bundle, origins: &[Origin]) -> String {
        let (name, host) = (BACKENDS[random.below(BACKENDS.len())], HOSTS[random.below(HOSTS.len())]);
        match random.below(6) {
            0 => {
                self.frontends += 1;
                section(bundle, "20-frontends", &frontends(self.frontends));
                format!("frontends {}", self.frontends)
            }
            1 if self.routes.contains_key(host) => {
                self.routes.remove(host);
                bundle.set(&ResourceKey::MapEntries { map: "maps/http/routes.map".into(), owner: host.into() }, None);
                format!("no {host}")
            }
            2 if self.origins.contains_key(name) && !self.routes.values().any(|to| *to == name) => {
                self.origins.remove(name);
                without_backend(bundle, name);
                format!("no {name}")
            }
            3 => {
                let value = format!("value {}", random.below(1000));
                map(bundle, "maps/values/header.map", "kept", &[("kept", &value)]);
                value
            }
            4 if self.origins.contains_key(name) => {
                self.routes.insert(host, name);
                route(bundle, host, name);
                format!("{host} to {name}")
            }
            _ => {
                let origin = random.below(origins.len());
                self.origins.insert(name, origin);
                backend(bundle, name, &[origins[origin].address]);
                format!("{name} at {origin}")
            }
        }
    }

    /// Who has to answer for `host`.
    fn answer(&self, host: &str) -> String {
        self.routes.get(host).map_or_else(|| "404".to_owned(), |backend| format!("o{}", self.origins[backend]))
    }
}

/// The answer to one request on a new connection; none if it is lost on the way.
async fn ask(address: SocketAddr, host: &str) -> Option<String> {
    let stream = TcpStream::connect(address).await.ok()?;
    Client::of(stream).ask(host).await.ok()
}

/// What is not as it was delivered last.
async fn difference(rig: &Rig, wanted: &Wanted) -> Option<String> {
    for host in HOSTS {
        let (found, wanted) = (ask(rig.http, host).await, wanted.answer(host));
        if found.as_ref() != Some(&wanted) {
            return Some(format!("{host}: {found:?} instead of {wanted}"));
        }
    }
    let drift = rig.agent.check_drift().await;
    if drift > 0 {
        return Some(format!("{drift} things run that are not in the files"));
    }
    // after the check, which would have repaired it
    let found = ask(rig.http, KEPT.0).await;
    (found.as_deref() != Some(KEPT.1)).then(|| format!("{}: {found:?}", KEPT.0))
}

/// Every file is what the bundle says.
fn assert_files(rig: &Rig, context: &str) {
    let directory = rig.settings.directory.join("current");
    for path in rig.bundle.files() {
        let file = std::fs::read(directory.join(&**path)).unwrap_or_default();
        assert!(file == render_bytes(&rig.bundle, path), "{context}: {path} holds {:?}", String::from_utf8_lossy(&file));
    }
}

fn is_gone(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default().is_empty()
}

#[test]
fn whatever_is_killed_what_comes_back_serves_what_was_delivered_last() {
    let seed = fixed_seed("KILLED_SEED", 7);
    std::thread::scope(|scope| {
        for (version, haproxy) in haproxies() {
            scope.spawn(move || survive(haproxy, &format!("KILLED_SEED={seed}, HAProxy {version}"), Random(seed)));
        }
    });
}

fn survive(haproxy: &Path, context: &str, mut random: Random) {
    let world = Runtime::new().unwrap();
    let origins: Vec<Origin> = (0..4).map(|number| world.block_on(Origin::start(&format!("o{number}")))).collect();
    let kept = world.block_on(Origin::start(KEPT.1));
    let mut bundle = skeleton();
    backend(&mut bundle, "kept", &[kept.address]);
    route(&mut bundle, KEPT.0, "kept");
    // An agent has a runtime of its own: to end that is to end the agent wherever it is.
    let mut life = Runtime::new().unwrap();
    let mut rig = life.block_on(Rig::start(haproxy, bundle));
    let mut wanted = Wanted::default();
    let (right, http) = (Arc::new(AtomicU64::new(0)), rig.http);
    let count = right.clone();
    let client = world.spawn(async move {
        loop {
            match ask(http, KEPT.0).await {
                Some(answer) if answer == KEPT.1 => _ = count.fetch_add(1, Ordering::Relaxed),
                Some(answer) => break answer,
                None => tokio::task::yield_now().await,
            }
        }
    });
    let rounds: usize = std::env::var("KILLED_ROUNDS").map_or(16, |text| text.parse().unwrap());
    for round in 0..rounds {
        let mut done = Vec::new();
        for _ in 0..=random.below(4) {
            rig.send(|bundle| done.push(wanted.change(&mut random, bundle, &origins)));
        }
        // As many requests later as it may be; now and then after all is done.
        if random.one_in(4) {
            world.block_on(rig.settled());
        } else {
            let asked = right.load(Ordering::Relaxed) + u64::try_from(random.below(60)).unwrap();
            world.block_on(eventually(async || (right.load(Ordering::Relaxed) >= asked).then_some(())));
        }
        let before = rig.status();
        let (master, worker) = (before.master_pid.unwrap(), before.worker_pid.unwrap());
        let victim = ["worker", "master", "agent"][round % 3];
        let context = format!("{context}, round {round}: {done:?}, {victim} killed");
        match victim {
            "agent" => {
                life.shutdown_timeout(Duration::from_secs(30));
                world.block_on(eventually(async || (is_gone(master) && is_gone(worker)).then_some(())));
                life = Runtime::new().unwrap();
                rig.agent = life.block_on(Agent::start(rig.settings.clone())).unwrap();
                let status = rig.status();
                assert!(status.ready && status.last_good, "{context}: it starts with what it had: {status:?}");
                assert_eq!(world.block_on(ask(rig.http, KEPT.0)).as_deref(), Some(KEPT.1), "{context}: before anything is delivered");
                rig.deliver_all();
            }
            name => {
                let pid = Pid::from_raw(i32::try_from(if name == "worker" { worker } else { master }).unwrap()).unwrap();
                // A worker may just have ended after a reload.
                _ = kill_process(pid, Signal::KILL);
            }
        }
        let (generation, digest) = (rig.generation, rig.bundle.digest());
        world.block_on(rig.until(&context, |status| {
            let new = victim == "agent" || status.worker_pid.is_some_and(|pid| pid != worker);
            new && status.ready && status.generation == generation && status.digest == digest && status.waiting == 0
        }));
        let mut last = None;
        let right = world.block_on(async {
            let all = eventually(async || {
                last = difference(&rig, &wanted).await;
                last.is_none().then_some(())
            });
            tokio::time::timeout(Duration::from_secs(25), all).await
        });
        assert!(right.is_ok(), "{context}: {last:?}");
        assert!(rig.status().refused.is_empty(), "{context}: {:?}", rig.status().refused);
        assert_files(&rig, &context);
    }
    assert!(!client.is_finished(), "{context}: {:?} instead of {}", world.block_on(client), KEPT.1);
    client.abort();
}
