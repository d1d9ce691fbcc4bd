//! The agent against the real HAProxy of both release lines.

use crate::rig::{
    Client, Origin, Rig, backend, certificate, eventually, file, frontends, list, map, pem, private, route, section, server, servers,
    skeleton, source, without_backend,
};
use crate::support::haproxies;
use haproxy_fleet::agent::{Agent, Drain};
use haproxy_fleet::haproxy::bundle::{Bundle, ResourceKey};
use haproxy_fleet::haproxy::tickets::{LENGTH, turned};
use haproxy_fleet::report::PrivateBytes;
use rustix::process::{Pid, Signal, kill_process};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(i32::try_from(pid).unwrap()).unwrap(), signal).unwrap();
}

fn one(origin: &Origin) -> Bundle {
    let mut bundle = skeleton();
    backend(&mut bundle, "one", &[origin.address]);
    route(&mut bundle, "one.example", "one");
    bundle
}

#[tokio::test(flavor = "multi_thread")]
async fn endpoints_routes_and_values_change_live_and_stay_as_they_are() {
    for (version, haproxy) in haproxies() {
        let (a, b, c) = (Origin::start("a").await, Origin::start("b").await, Origin::start("c").await);
        let mut rig = Rig::start(haproxy, one(&a)).await;
        assert_eq!(rig.ask("one.example").await, "a");
        assert_eq!(rig.ask("other.example").await, "404");

        rig.change(|bundle| backend(bundle, "one", &[b.address])).await;
        assert_eq!(rig.ask("one.example").await, "b");
        // it comes back, whether it has been deleted yet or not
        rig.change(|bundle| backend(bundle, "one", &[a.address])).await;
        assert_eq!(rig.ask("one.example").await, "a");
        // a draining server takes nothing new
        let mut draining = vec![server("one", a.address), server("one", c.address)];
        draining[0].drain = true;
        rig.change(|bundle| servers(bundle, "one", draining)).await;
        for _ in 0..4 {
            assert_eq!(rig.ask("one.example").await, "c", "{}", rig.command("show servers state one").await);
        }
        rig.change(|bundle| route(bundle, "two.example", "one")).await;
        assert_eq!(rig.ask("two.example").await, "c");
        rig.change(|bundle| route(bundle, "two.example", "_404")).await;
        assert_eq!(rig.ask("two.example").await, "404");
        rig.change(|bundle| {
            bundle.set(&ResourceKey::MapEntries { map: "maps/http/routes.map".into(), owner: "two.example".into() }, None);
            map(bundle, "maps/values/header.map", "one", &[("one", r"a value; with \ <<everything")]);
        })
        .await;
        assert_eq!(rig.ask("two.example").await, "404");
        assert!(rig.command("show map maps/values/header.map").await.contains(r"one a value; with \ <<everything"));
        rig.change(|bundle| map(bundle, "maps/values/header.map", "one", &[("one", r"b value; with \ something")])).await;
        assert!(rig.command("show map maps/values/header.map").await.contains(r"one b value; with \ something"));

        let status = rig.status();
        assert_eq!(status.reload_count, 1, "{version}: only the first configuration reloads: {:?}", status.reloads);
        assert!(status.refused.is_empty());
        assert_eq!(rig.agent.check_drift().await, 0);
        // and the files are what runs: starting from them gives the same
        let (home, settings) = (rig.home.clone(), rig.settings.clone());
        rig.agent.kill().await;
        rig.agent = Agent::start(settings).await.unwrap();
        assert_eq!(rig.ask("one.example").await, "c", "{}", home.display());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_is_changed_live_never_becomes_a_command_or_opens_a_payload() {
    const HOSTILE: [&str; 8] = [
        "a <<x",
        "a <<",
        r"a \ <<x",
        r"a\ <<x",
        "a; show version",
        r"a\; shutdown sessions server one/one",
        "a <<x;disable frontend http",
        "#a \"b\" 'c' ${HOME} %[path] <<%x",
    ];
    for (version, haproxy) in haproxies() {
        let origin = Origin::start("a").await;
        let mut rig = Rig::start(haproxy, one(&origin)).await;
        rig.change(|bundle| map(bundle, "maps/values/header.map", "one", &[("one", "harmless")])).await;
        for value in HOSTILE {
            let status = rig.change(|bundle| map(bundle, "maps/values/header.map", "one", &[("one", value)])).await;
            assert!(status.refused.is_empty(), "{version}: {value:?}: {:?}", status.refused);
            let shown = rig.command("show map maps/values/header.map").await;
            assert!(shown.lines().any(|line| line.ends_with(&format!(" one {value}"))), "{version}: {value:?} became {shown:?}");
        }
        assert_eq!(rig.ask("one.example").await, "a");
        assert_eq!(rig.status().reload_count, 1, "{version}: {:?}", rig.status().reloads);
        assert_eq!(rig.agent.check_drift().await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_backend_of_a_loaded_shape_is_live_where_haproxy_can_and_a_removed_one_never_reloads() {
    for (version, haproxy) in haproxies() {
        let (a, b) = (Origin::start("a").await, Origin::start("b").await);
        let mut rig = Rig::start(haproxy, one(&a)).await;
        let dynamic = rig.status().capabilities.dynamic_backends;
        let status = rig
            .change(|bundle| {
                backend(bundle, "two", &[b.address]);
                route(bundle, "two.example", "two");
            })
            .await;
        assert_eq!(status.reload_count, if dynamic { 1 } else { 2 }, "{version}: {:?}", status.reloads);
        rig.answers("two.example", "b").await;
        assert_eq!(rig.agent.check_drift().await, 0);
        let reloads = status.reload_count;
        let status = rig
            .change(|bundle| {
                without_backend(bundle, "one");
                route(bundle, "one.example", "two");
            })
            .await;
        assert_eq!(status.reload_count, reloads);
        rig.answers("one.example", "b").await;
        if dynamic {
            eventually(async || (!rig.command("show backend").await.contains("\none\n")).then_some(())).await;
        } else {
            eventually(async || (!rig.command("show servers state").await.contains(" one ")).then_some(())).await;
        }
        // it comes back
        let status = rig
            .change(|bundle| {
                backend(bundle, "one", &[a.address]);
                route(bundle, "one.example", "one");
            })
            .await;
        assert_eq!(status.reload_count, reloads);
        rig.answers("one.example", "a").await;
        assert_eq!(rig.agent.check_drift().await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_come_change_and_go_live_and_a_bad_one_is_refused_alone() {
    for (version, haproxy) in haproxies() {
        let a = Origin::start("a").await;
        let mut rig = Rig::start(haproxy, one(&a)).await;
        let first = pem("a.example");
        rig.change(|bundle| {
            certificate(bundle, "certs/a.pem", &first);
            list(bundle, "certs/a.pem", &[("certs/a.pem", &["a.example"])]);
        })
        .await;
        let serial = async |rig: &Rig| {
            let shown = rig.command("show ssl cert certs/a.pem").await;
            shown.lines().find(|line| line.starts_with("Serial")).map(str::to_owned)
        };
        let before = serial(&rig).await.expect("the certificate is there");
        rig.change(|bundle| certificate(bundle, "certs/a.pem", &pem("a.example"))).await;
        let renewed = serial(&rig).await.unwrap();
        assert_ne!(before, renewed);
        rig.change(|bundle| list(bundle, "certs/a.pem", &[("certs/a.pem", &["a.example", "b.example"])])).await;
        let lines = rig.command("show ssl crt-list -n lists/https.list").await;
        assert_eq!(lines.matches("certs/a.pem").count(), 1, "{lines}");
        assert!(lines.contains("b.example"), "{lines}");

        // the key of another certificate: refused, and the good one stays; so does a new one that is no PEM
        let (mine, other) = (pem("a.example"), pem("x.example"));
        let mixed = format!("{}{}", mine.split("-----BEGIN PRIVATE").next().unwrap(), &other[other.find("-----BEGIN PRIVATE").unwrap()..]);
        let status = rig
            .change(|bundle| {
                certificate(bundle, "certs/a.pem", &mixed);
                certificate(bundle, "certs/bad.pem", "nonsense");
                list(bundle, "certs/bad.pem", &[("certs/bad.pem", &["bad.example"])]);
                route(bundle, "late.example", "one");
            })
            .await;
        let mut refused: Vec<String> = status.refused.iter().map(|refusal| refusal.sources[0].name.to_string()).collect();
        refused.sort();
        assert_eq!(refused, ["certs/a.pem", "certs/bad.pem"], "{version}: {:?}", status.refused);
        assert_eq!(serial(&rig).await.unwrap(), renewed);
        assert_eq!(rig.ask("late.example").await, "a", "the rest is applied");
        // mended
        let status = rig
            .change(|bundle| {
                certificate(bundle, "certs/a.pem", &mine);
                certificate(bundle, "certs/bad.pem", &other);
            })
            .await;
        assert!(status.refused.is_empty(), "{:?}", status.refused);
        rig.until("settled", |status| status.waiting == 0).await;
        assert!(rig.command("show ssl crt-list -n lists/https.list").await.contains("bad.example"));
        rig.change(|bundle| {
            for path in ["certs/a.pem", "certs/bad.pem"] {
                bundle.set(&ResourceKey::Certificate(path.into()), None);
                bundle.set(&ResourceKey::CertificateList { list: "lists/https.list".into(), owner: path.into() }, None);
            }
        })
        .await;
        assert!(!rig.command("show ssl cert").await.contains("certs/a.pem"));
        assert_eq!(rig.status().reload_count, 1, "{:?}", rig.status().reloads);
        assert_eq!(rig.agent.check_drift().await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_bundle_again_sends_no_command() {
    for (_, haproxy) in haproxies() {
        let a = Origin::start("a").await;
        let mut rig = Rig::start(haproxy, one(&a)).await;
        let before = rig.status();
        rig.deliver_all();
        let after = rig.settled().await;
        assert_eq!((before.runtime_commands, before.reload_count), (after.runtime_commands, after.reload_count));
        // changes that do not fit are noticed, and cost nothing
        rig.generation += 1;
        let content = haproxy_fleet::agent::UpdateContent::Changes(Arc::new([]));
        let digest = haproxy_fleet::haproxy::bundle::Digest(1);
        rig.agent.deliver(haproxy_fleet::agent::Update { generation: rig.generation, digest, content });
        rig.until("out of sync", |status| status.out_of_sync).await;
        rig.deliver_all();
        assert!(!rig.settled().await.out_of_sync);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reloads_under_traffic_lose_nothing() {
    for (_, haproxy) in haproxies() {
        let a = Origin::start("a").await;
        let mut rig = Rig::start(haproxy, one(&a)).await;
        let stop = Arc::new(AtomicBool::new(false));
        let asked = Arc::new(AtomicU64::new(0));
        let mut clients = tokio::task::JoinSet::new();
        for number in 0..6 {
            let (stop, asked, http) = (stop.clone(), asked.clone(), rig.http);
            clients.spawn(async move {
                let mut client = Client::connect(http).await;
                while !stop.load(Ordering::Relaxed) {
                    // half of them open a connection for each request
                    if client.closed || number % 2 == 0 {
                        client = Client::connect(http).await;
                    }
                    assert_eq!(client.ask("one.example").await.expect("no answer"), "a");
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for number in 0..5 {
            let before = asked.load(Ordering::Relaxed);
            rig.change(|bundle| section(bundle, "20-frontends", &frontends(number))).await;
            eventually(async || (asked.load(Ordering::Relaxed) > before + 50).then_some(())).await;
        }
        stop.store(true, Ordering::Relaxed);
        while let Some(client) = clients.join_next().await {
            client.unwrap();
        }
        assert_eq!(rig.status().reload_count, 6);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_clients_of_an_old_worker_reach_endpoints_that_came_after_the_reload() {
    for (version, haproxy) in haproxies() {
        let old = Origin::start("old").await;
        let mut rig = Rig::start(haproxy, one(&old)).await;
        let mut idle = Vec::new();
        for _ in 0..8 {
            let mut client = Client::connect(rig.http).await;
            assert_eq!(client.ask("one.example").await.unwrap(), "old");
            idle.push(client);
        }
        rig.change(|bundle| section(bundle, "20-frontends", &frontends(1))).await;
        // all endpoints are replaced, and the old ones are really gone
        let new = Origin::start("new").await;
        rig.change(|bundle| backend(bundle, "one", &[new.address])).await;
        drop(old);
        for mut client in idle {
            assert_eq!(client.ask("one.example").await.expect("no answer"), "new", "{version}");
        }
        assert_eq!(rig.ask("one.example").await, "new");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_haproxy_refuses_is_set_aside_by_name_and_the_rest_is_applied() {
    for (_, haproxy) in haproxies() {
        let (a, b) = (Origin::start("a").await, Origin::start("b").await);
        let mut bundle = one(&a);
        private(&mut bundle, "own", "    http-request set-header x-a b\n", &[a.address]);
        route(&mut bundle, "own.example", "own");
        let mut rig = Rig::start(haproxy, bundle).await;
        let worker = rig.status().worker_pid;
        // one bad change alone: nothing moves
        let bad = "    nonsense here\n";
        rig.send(|bundle| private(bundle, "own", bad, &[a.address]));
        let status = rig.until("refused", |status| !status.refused.is_empty()).await;
        assert_eq!(status.refused[0].sources[..], [source("own")]);
        assert!(status.refused[0].message.contains("nonsense"), "{:?}", status.refused);
        assert_eq!(status.worker_pid, worker);
        assert_eq!(rig.ask("own.example").await, "a");
        // its endpoints follow all the same
        rig.change(|bundle| private(bundle, "own", bad, &[b.address])).await;
        rig.answers("own.example", "b").await;
        // several bad ones among good ones
        rig.send(|bundle| {
            for number in 0..4 {
                private(bundle, &format!("good{number}"), "    http-request set-header x-a c\n", &[b.address]);
                route(bundle, &format!("good{number}.example"), &format!("good{number}"));
            }
            private(bundle, "bad1", "    balance nonsense\n", &[b.address]);
            private(bundle, "bad2", "    http-request set-path \"%[nonsense]\"\n", &[b.address]);
            route(bundle, "bad1.example", "bad1");
            route(bundle, "one.example", "bad2");
        });
        let status = rig.until("all refused", |status| status.refused.len() == 3 && status.reload_count == 2).await;
        let mut names: Vec<&str> = status.refused.iter().map(|refusal| refusal.sources[0].name.as_ref()).collect();
        names.sort_unstable();
        assert_eq!(names, ["bad1", "bad2", "own"]);
        for number in 0..4 {
            rig.answers(&format!("good{number}.example"), "b").await;
        }
        assert_eq!(rig.ask("one.example").await, "a", "the route that led there before still does");
        // nothing is tried again by itself; mended, it comes
        rig.send(|bundle| {
            private(bundle, "own", "", &[b.address]);
            private(bundle, "bad1", "", &[b.address]);
            private(bundle, "bad2", "", &[b.address]);
        });
        let status = rig.until("mended", |status| status.refused.is_empty() && status.waiting == 0).await;
        assert_eq!(status.reload_count, 3);
        rig.answers("one.example", "b").await;
        assert_eq!(rig.agent.check_drift().await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn culprits_that_haproxy_does_not_locate_are_found_by_halving() {
    for (version, haproxy) in haproxies() {
        let a = Origin::start("a").await;
        let mut rig = Rig::start(haproxy, one(&a)).await;
        // no line is named when a static rule leads to a backend that does not exist
        rig.send(|bundle| {
            private(bundle, "good1", "    http-request set-header x-a c\n", &[a.address]);
            section(bundle, "25-lost", "frontend lost from _front\n    default_backend nowhere\n");
            private(bundle, "good2", "    http-request set-header x-a c\n", &[a.address]);
            route(bundle, "good1.example", "good1");
            route(bundle, "good2.example", "good2");
        });
        let status = rig.until("settled", |status| !status.refused.is_empty() && status.reload_count == 2).await;
        let names: Vec<&str> = status.refused.iter().map(|refusal| refusal.sources[0].name.as_ref()).collect();
        assert_eq!(names, ["25-lost"], "{version}: {:?}", status.refused);
        rig.answers("good1.example", "a").await;
        rig.answers("good2.example", "a").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_worker_or_master_comes_back_with_everything_that_was_live() {
    for (version, haproxy) in haproxies() {
        let (a, b) = (Origin::start("a").await, Origin::start("b").await);
        let mut rig = Rig::start(haproxy, one(&a)).await;
        rig.change(|bundle| backend(bundle, "one", &[b.address])).await;
        for (round, pid) in [(1, rig.status().worker_pid), (2, None)] {
            let pid = pid.or(rig.status().master_pid).unwrap();
            let worker = rig.status().worker_pid.unwrap();
            signal(pid, Signal::KILL);
            let status = rig.until("restarted", |status| status.restarts == round && status.ready).await;
            assert_ne!(status.worker_pid, Some(worker), "{version}");
            assert_eq!(rig.ask("one.example").await, "b");
            let line = std::fs::read(format!("/proc/{worker}/cmdline")).unwrap_or_default();
            assert!(line.is_empty(), "the old worker has ended");
            assert_eq!(rig.agent.check_drift().await, 0);
        }
        rig.change(|bundle| backend(bundle, "one", &[a.address])).await;
        assert_eq!(rig.ask("one.example").await, "a");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_agent_starts_from_the_last_good_state_if_it_is_whole() {
    for (version, haproxy) in haproxies() {
        let (a, b) = (Origin::start("a").await, Origin::start("b").await);
        let mut rig = Rig::bare(haproxy).await;
        let health = Client::connect(rig.health).await.ask("x").await.unwrap();
        assert_eq!(health, "503", "{version}");
        assert!(!rig.status().ready);
        rig.bundle = one(&a);
        rig.deliver_all();
        rig.settled().await;
        rig.change(|bundle| backend(bundle, "one", &[b.address])).await;
        rig.agent.kill().await;
        rig.agent = Agent::start(rig.settings.clone()).await.unwrap();
        assert!(rig.status().last_good && rig.status().ready);
        assert_eq!(rig.ask("one.example").await, "b");
        // the same bundle: nothing to do
        rig.deliver_all();
        let status = rig.settled().await;
        assert_eq!(status.reload_count, 0, "{version}: {:?}", status.reloads);
        assert!(!status.last_good);
        assert_eq!(rig.agent.check_drift().await, 0);
        rig.change(|bundle| backend(bundle, "one", &[a.address])).await;
        assert_eq!(rig.ask("one.example").await, "a");

        // one flipped bit
        rig.agent.kill().await;
        let file = rig.settings.directory.join("current/maps/http/routes.map");
        let mut bytes = std::fs::read(&file).unwrap();
        bytes[0] ^= 1;
        std::fs::write(&file, bytes).unwrap();
        rig.agent = Agent::start(rig.settings.clone()).await.unwrap();
        assert!(!rig.status().ready);
        assert_eq!(Client::connect(rig.health).await.ask("x").await.unwrap(), "503");
        rig.deliver_all();
        rig.settled().await;
        rig.answers("one.example", "a").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_somebody_else_changed_is_found_and_repaired() {
    for (version, haproxy) in haproxies() {
        let (a, b) = (Origin::start("a").await, Origin::start("b").await);
        let mut rig = Rig::start(haproxy, one(&a)).await;
        rig.change(|bundle| backend(bundle, "one", &[a.address, b.address])).await;
        let name = server("one", a.address).name;
        rig.command(&format!("set server one/{name} state maint;del server one/{name}")).await;
        rig.command("del map maps/http/routes.map one.example|/;add map maps/http/routes.map evil.example|/ one").await;
        rig.command("add server one/foreign 127.0.0.1:1 id 999").await;
        assert_eq!(rig.agent.check_drift().await, 4, "{version}");
        assert_eq!(rig.ask("evil.example").await, "404");
        eventually(async || (rig.ask("one.example").await == "a").then_some(())).await;
        assert_eq!(rig.agent.check_drift().await, 0);
        // a reload by somebody else
        let worker = rig.status().worker_pid;
        signal(rig.status().master_pid.unwrap(), Signal::USR2);
        eventually(async || (rig.agent.check_drift().await > 0).then_some(())).await;
        rig.change(|bundle| backend(bundle, "one", &[b.address])).await;
        assert_ne!(rig.status().worker_pid, worker);
        assert_eq!(rig.ask("one.example").await, "b");
        assert_eq!(rig.status().reload_count, 1);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drain_lets_connections_end_and_stops_at_its_deadline() {
    for (version, haproxy) in haproxies() {
        let a = Origin::start("a").await;
        let rig = Rig::start(haproxy, one(&a)).await;
        let mut client = Client::connect(rig.http).await;
        assert_eq!(client.ask("one.example").await.unwrap(), "a");
        let agent = rig.agent.clone();
        let drain = tokio::spawn(async move { agent.drain(Drain { deadline: Duration::from_secs(20) }).await });
        eventually(async || tokio::net::TcpStream::connect(rig.http).await.is_err().then_some(())).await;
        assert_eq!(client.ask("one.example").await.unwrap(), "a", "{version}: the idle connection is answered once more");
        assert!(client.closed);
        let drained = drain.await.unwrap();
        assert!(drained.in_time);
        let ending = drained.ending.unwrap();
        assert_eq!((ending.finished + ending.closed, ending.cut, ending.unseen), (1, 0, 0), "{version}: {ending:?}");
        assert!(rig.status().master_pid.is_none());

        let rig = Rig::start(haproxy, one(&a)).await;
        let mut client = Client::connect(rig.http).await;
        assert_eq!(client.ask("one.example").await.unwrap(), "a");
        let drained = rig.agent.drain(Drain { deadline: Duration::from_millis(50) }).await;
        assert!(!drained.in_time);
        assert_eq!(drained.ending.map(|ending| (ending.closed, ending.cut, ending.forced)), Some((0, 1, true)), "{version}");
        assert!(client.ask("one.example").await.is_err());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_address_in_use_stops_a_reload_before_haproxy_pauses() {
    for (_, haproxy) in haproxies() {
        let a = Origin::start("a").await;
        let mut rig = Rig::bare(haproxy).await;
        let taken = tokio::net::TcpListener::bind(rig.https).await.unwrap();
        rig.bundle = one(&a);
        rig.deliver_all();
        rig.until("looked at", |status| status.waiting > 0).await;
        assert!(!rig.status().ready);
        assert_eq!(Client::connect(rig.health).await.ask("x").await.unwrap(), "503");
        drop(taken);
        rig.settled().await;
        rig.answers("one.example", "a").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn thousands_of_routes_and_a_new_authority_are_live() {
    for (version, haproxy) in haproxies() {
        let a = Origin::start("a").await;
        let mut rig = Rig::start(haproxy, one(&a)).await;
        let entries: Vec<(String, &str)> = (0..3000).map(|n| (format!("host{n}.example|/"), "one")).collect();
        let entries: Vec<(&str, &str)> = entries.iter().map(|(key, value)| (key.as_str(), *value)).collect();
        rig.change(|bundle| map(bundle, "maps/http/routes.map", "many", &entries)).await;
        assert_eq!(rig.ask("host2999.example").await, "a");
        let chain = pem("ca.example");
        let authority = chain.split("-----BEGIN PRIVATE").next().unwrap();
        rig.change(|bundle| {
            file(bundle, "ca/one.pem", authority);
            let mut secure = server("one", a.address);
            secure.name = format!("{}-tls", secure.name).into();
            secure.guid = format!("{}-tls", secure.guid).into();
            secure.id += 100_000;
            secure.keywords = "ssl verify required ca-file ca/one.pem".into();
            secure.checked = false;
            servers(bundle, "one", vec![server("one", a.address), secure]);
        })
        .await;
        let status = rig.status();
        assert_eq!(status.reload_count, 1, "{version}: {:?}", status.reloads);
        assert!(status.refused.is_empty(), "{:?}", status.refused);
        assert_eq!(rig.agent.check_drift().await, 0);
        // what runs loads again
        rig.change(|bundle| section(bundle, "20-frontends", &frontends(1))).await;
        assert_eq!(rig.status().reload_count, 2);
        assert_eq!(rig.agent.check_drift().await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_haproxy_refuses_to_do_live_comes_by_a_reload() {
    for (version, haproxy) in haproxies() {
        let (a, b) = (Origin::start("a").await, Origin::start("b").await);
        let mut bundle = one(&a);
        private(&mut bundle, "own", "    balance static-rr\n", &[a.address]);
        route(&mut bundle, "own.example", "own");
        let mut rig = Rig::start(haproxy, bundle).await;
        let status = rig.change(|bundle| private(bundle, "own", "    balance static-rr\n", &[b.address])).await;
        assert_eq!(status.reload_count, 2, "{version}");
        assert!(status.refused.is_empty(), "{:?}", status.refused);
        assert!(status.reloads[1].reason.contains("refused it live"), "{:?}", status.reloads);
        rig.answers("own.example", "b").await;
        assert_eq!(rig.agent.check_drift().await, 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_session_tickets_take_turns_without_a_reload_and_stay_after_one() {
    for (version, haproxy) in haproxies() {
        let a = Origin::start("a").await;
        let mut bundle = skeleton();
        backend(&mut bundle, "a", &[a.address]);
        let mut rig = Rig::start(haproxy, bundle).await;
        let held = async |rig: &Rig| {
            let shown = rig.command("show tls-keys *").await;
            let keys = shown.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_whitespace().nth(1));
            keys.map(str::to_owned).collect::<Vec<_>>()
        };
        let lines = |keys: &[u8]| String::from_utf8(keys.to_vec()).unwrap().lines().map(str::to_owned).collect::<Vec<_>>();
        let mut keys = rig.settings.pod.ticket_keys.expose().to_vec();
        assert_eq!(held(&rig).await, lines(&keys), "{version}");
        for turn in 1..=2 {
            keys = turned(&keys, &[turn; LENGTH]).unwrap();
        }
        rig.agent.set_ticket_keys(PrivateBytes::new(b"no keys".to_vec())).await;
        rig.agent.set_ticket_keys(PrivateBytes::new(keys.clone())).await;
        eventually(async || (held(&rig).await == lines(&keys)).then_some(())).await;
        assert_eq!((rig.status().reload_count, rig.agent.check_drift().await), (1, 0), "{version}");
        rig.change(|bundle| section(bundle, "20-frontends", &frontends(1))).await;
        assert_eq!(rig.status().reload_count, 2);
        assert_eq!(held(&rig).await, lines(&keys), "{version}: after a reload");
    }
}
