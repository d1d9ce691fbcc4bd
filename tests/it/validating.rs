//! What is delivered while `haproxy -c` looks at the next configuration: it does not wait for that.

use crate::models::{host, name, prefix, route, to};
use crate::rig::{Gate, Origin};
use crate::site::{Site, Watch, all, listening, of_kind, of_method, serve};
use crate::support::haproxies;
use haproxy_fleet::haproxy::bundle::ResourceKey;
use haproxy_fleet::haproxy::version::Version;
use haproxy_fleet::model::*;
use std::path::Path;

/// `one.test` is served by `one` and `two.test` by `two`.
async fn start(version: Version, haproxy: &Path, one: &Origin, two: &Origin) -> (Site, Gate) {
    let (mut model, _) = listening();
    serve(&mut model, "one", &[one.address]);
    serve(&mut model, "two", &[two.address]);
    all(&mut model, "one.test", "one");
    all(&mut model, "two.test", "two");
    Site::gated(version, haproxy, model).await
}

/// What only a reload brings: a host that is told apart by a header.
fn by_reload(model: &mut Model, host_name: &str) {
    host(model, name(host_name), vec![of_kind("special", Target::Unavailable), route(prefix("/"), to("one"))]);
}

async fn answers(site: &Site, expected: &[(&str, &str)], when: &str) {
    for (host, answer) in expected {
        for _ in 0..3 {
            assert_eq!(site.rig.ask(host).await, *answer, "{host} {when}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn live_changes_reach_the_running_worker_during_a_validation_and_the_next_one_after_it() {
    for (version, haproxy) in haproxies() {
        let (one, two, new) = (Origin::start("one").await, Origin::start("two").await, Origin::start("new").await);
        let (mut site, gate) = start(*version, haproxy, &one, &two).await;
        let worker = site.rig.status().worker_pid;
        gate.close();
        site.send(|model| by_reload(model, "reload.test"));
        gate.waited_at().await;

        site.live(|model| serve(model, "one", &[new.address])).await;
        answers(&site, &[("one.test", "new"), ("reload.test", "404")], "once its endpoints are replaced").await;
        site.live(|model| all(model, "two.test", "one")).await;
        answers(&site, &[("two.test", "new")], "once its route is moved").await;
        site.live(|model| all(model, "added.test", "two")).await;
        answers(&site, &[("added.test", "two")], "once it is added").await;
        site.live(|model| serve(model, "one", &[two.address, new.address])).await;
        site.live(|model| serve(model, "one", &[two.address])).await;
        let expected = [("one.test", "two"), ("two.test", "two"), ("added.test", "two")];
        answers(&site, &expected, "while the validation waits").await;
        let status = site.rig.status();
        assert!(gate.is_waited_at(), "{version}: it was all done before the validation ended");
        assert_eq!((status.reload_count, status.worker_pid), (1, worker), "{version}");

        let watch = Watch::start(&site, &["one.test", "two.test", "added.test"].map(|host| ("GET", host, "none")));
        gate.open();
        let status = site.rig.settled().await;
        watch.saw_only(&["two"]).await;
        assert_ne!(status.worker_pid, worker, "{version}");
        assert_eq!(status.reload_count, 2, "{version}: one reload is enough: {:?}", status.reloads);
        answers(&site, &expected, "after the reload").await;
        answers(&site, &[("reload.test", "two")], "after the reload").await;
        assert_eq!(site.rig.agent.check_drift().await, 0, "{version}");
        assert!(status.refused.is_empty(), "{version}: {:?}", status.refused);

        // and the files have them too
        site.rig.agent.kill().await;
        site.rig.agent = haproxy_fleet::agent::Agent::start(site.rig.settings.clone()).await.unwrap();
        answers(&site, &expected, "after a start from the files").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn backends_that_come_and_go_during_a_validation_are_in_the_next_worker_as_they_are_wanted() {
    for (version, haproxy) in haproxies() {
        let (one, two, new) = (Origin::start("one").await, Origin::start("two").await, Origin::start("new").await);
        let (mut site, gate) = start(*version, haproxy, &one, &two).await;
        let dynamic = site.rig.status().capabilities.dynamic_backends;
        gate.close();
        site.send(|model| by_reload(model, "reload.test"));
        gate.waited_at().await;
        site.live(|model| {
            serve(model, "new", &[new.address]);
            all(model, "new.test", "new");
            all(model, "two.test", "one");
            model.backends.remove(&crate::models::id("two"));
        })
        .await;
        let expected = [("new.test", if dynamic { "new" } else { "404" }), ("one.test", "one"), ("two.test", "one")];
        answers(&site, &expected, "while the validation waits").await;
        assert!(gate.is_waited_at() && site.rig.status().reload_count == 1, "{version}");

        gate.open();
        let status = site.rig.settled().await;
        assert!(status.refused.is_empty(), "{version}: {:?}", status.refused);
        answers(&site, &[("new.test", "new"), ("one.test", "one"), ("two.test", "one"), ("reload.test", "one")], "after the reload").await;
        site.change(|model| serve(model, "new", &[two.address])).await;
        answers(&site, &[("new.test", "two")], "once its endpoints are replaced").await;
        assert_eq!(site.rig.agent.check_drift().await, 0, "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_needs_a_reload_itself_and_comes_during_a_validation_is_never_lost() {
    for (version, haproxy) in haproxies() {
        let (one, two, new) = (Origin::start("one").await, Origin::start("two").await, Origin::start("new").await);
        let (mut site, gate) = start(*version, haproxy, &one, &two).await;
        gate.close();
        site.send(|model| by_reload(model, "reload.test"));
        gate.waited_at().await;
        // other rules than those that are looked at, and then none of them any more
        site.live(|model| host(model, name("two.test"), vec![of_method("GET", to("one")), route(prefix("/"), to("two"))])).await;
        answers(&site, &[("one.test", "one"), ("two.test", "two")], "while the validation waits").await;
        site.live(|model| {
            serve(model, "one", &[new.address]);
            host(model, name("last.test"), vec![of_method("GET", to("two")), route(prefix("/"), to("one"))]);
        })
        .await;
        answers(&site, &[("one.test", "new"), ("two.test", "two")], "while the validation waits").await;
        // what is refused and taken back before anybody has looked
        site.live(|model| host(model, name("bad.test"), vec![route(PathMatch::Regex("(".into()), to("one"))])).await;
        site.live(|model| all(model, "bad.test", "one")).await;
        assert!(gate.is_waited_at() && site.rig.status().reload_count == 1, "{version}");

        gate.open();
        let status = site.rig.settled().await;
        assert!(status.refused.is_empty(), "{version}: {:?}", status.refused);
        let expected = [("one.test", "new"), ("two.test", "new"), ("last.test", "two"), ("reload.test", "new"), ("bad.test", "new")];
        answers(&site, &expected, "after the reload").await;
        assert_eq!(site.rig.agent.check_drift().await, 0, "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn live_changes_stay_where_the_validation_ends_with_a_refusal() {
    for (version, haproxy) in haproxies() {
        let (one, two, new) = (Origin::start("one").await, Origin::start("two").await, Origin::start("new").await);
        let (mut site, gate) = start(*version, haproxy, &one, &two).await;
        gate.close();
        site.send(|model| host(model, name("bad.test"), vec![route(PathMatch::Regex("(".into()), to("one"))]));
        gate.waited_at().await;
        site.live(|model| {
            serve(model, "one", &[new.address]);
            all(model, "two.test", "one");
        })
        .await;
        answers(&site, &[("one.test", "new"), ("two.test", "new")], "while the validation waits").await;
        gate.open();
        let status = site.rig.until("refused", |status| !status.refused.is_empty()).await;
        assert_eq!(status.refused[0].resource, ResourceKey::Section("20-frontends".into()), "{version}");
        answers(&site, &[("one.test", "new"), ("two.test", "new")], "after the refusal").await;
        assert_eq!(site.rig.agent.check_drift().await, 0, "{version}");
    }
}
