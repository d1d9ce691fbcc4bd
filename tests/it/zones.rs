//! Pods that keep to the servers of their zone, with real HAProxies.

use crate::models::{endpoints, id};
use crate::rig::{Origin, Rig, eventually};
use crate::site::{Site, Watch, all, all_by_https, listening, serve};
use crate::support::haproxies;
use haproxy_fleet::agent::{Agent, Status};
use haproxy_fleet::model::*;
use std::collections::BTreeMap;
use std::sync::Arc;

const HOST: &str = "zones.test";
const RULE: ZoneRule = ZoneRule { min_ready: 2, min_share: 75 };

/// Two origins in each of two zones.
struct Origins {
    near: [Origin; 2],
    far: [Origin; 2],
}

impl Origins {
    async fn start() -> Self {
        let near = [Origin::start("near-1").await, Origin::start("near-2").await];
        Self { near, far: [Origin::start("far-1").await, Origin::start("far-2").await] }
    }

    /// The first of those of the near zone, and all of the far one.
    fn endpoints(&self, near: usize) -> Arc<[Endpoint]> {
        let in_zone = |origins: &[Origin], zone: &str| {
            let addresses: Vec<_> = origins.iter().map(|origin| origin.address).collect();
            endpoints(&addresses).iter().map(|endpoint| Endpoint { zone: Some(zone.into()), ..endpoint.clone() }).collect::<Vec<_>>()
        };
        let mut all = [in_zone(&self.near[..near], "a"), in_zone(&self.far, "b")].concat();
        all.sort();
        all.into()
    }

    fn model(&self, near: usize, policy: Policy) -> Model {
        let (mut model, _) = listening();
        serve(&mut model, "shop", &[]);
        let shop = model.backends.get_mut(&id("shop")).unwrap();
        (shop.policy, shop.zones) = (Arc::new(policy), Some(RULE));
        has(&mut model, self.endpoints(near));
        all(&mut model, HOST, "shop");
        model
    }
}

fn has(model: &mut Model, endpoints: Arc<[Endpoint]>) {
    model.backends.get_mut(&id("shop")).unwrap().endpoints = endpoints;
}

const REQUESTS: usize = 60;

/// How many of so many requests each zone answers.
async fn share(rig: &Rig) -> (usize, usize) {
    let mut near = 0;
    for _ in 0..REQUESTS {
        let answer = rig.ask(HOST).await;
        assert!(answer.starts_with("near-") || answer.starts_with("far-"), "{answer}");
        near += usize::from(answer.starts_with("near-"));
    }
    (near, REQUESTS - near)
}

/// Nearly all requests stay in the zone: a far server has a 256th of the share of a near one.
async fn stays(rig: &Rig) {
    let (near, far) = share(rig).await;
    assert!(far <= 3, "{near} near, {far} far");
}

/// Requests go to all `servers` alike, of which two are far.
async fn spreads(rig: &Rig, servers: usize) {
    let (near, far) = share(rig).await;
    // others ask as well: it is not exactly by turns
    let expected = REQUESTS * 2 / servers;
    assert!(far > expected / 2 && near > (REQUESTS - expected) / 2, "{near} near, {far} far of {servers}");
}

async fn in_zone(rig: &Rig, zone: &str) -> Status {
    rig.agent.set_zone(zone.into());
    rig.until("in its zone", |status| status.zone.as_deref() == Some(zone)).await
}

/// The weights of the servers, by name.
async fn weights(rig: &Rig) -> BTreeMap<String, String> {
    let text = rig.command("show servers state").await;
    let fields = text.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields
        .filter(|fields| fields.get(1).is_some_and(|backend| backend.starts_with("shop_shop_80")))
        .map(|fields| (fields[3].into(), fields[7].into()))
        .collect()
}

/// How many servers HAProxy takes for alive.
async fn alive(rig: &Rig) -> usize {
    let text = rig.command("show stat -1 4 -1").await;
    let states = text.lines().filter(|line| line.starts_with("shop_shop_80")).filter_map(|line| line.split(',').nth(17));
    states.filter(|state| state.starts_with("UP")).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_stay_in_the_zone_while_enough_is_ready_there_and_nothing_is_reloaded_or_lost_for_it() {
    for (version, haproxy) in haproxies() {
        let origins = Origins::start().await;
        let mut site = Site::start(*version, haproxy, origins.model(2, Policy::default())).await;
        let watch = Watch::start(&site, &[("GET", HOST, "none"); 2]);
        spreads(&site.rig, 4).await;

        let before = site.rig.status();
        let status = in_zone(&site.rig, "a").await;
        // the two near servers got another weight, and that was all
        assert_eq!((status.keeps_zone, status.runtime_commands - before.runtime_commands), (1, 2), "{version}");
        stays(&site.rig).await;
        assert_eq!(site.rig.agent.check_drift().await, 0, "{version}");

        let fewer = site.change(|model| has(model, origins.endpoints(1))).await;
        assert_eq!(fewer.keeps_zone, 0, "{version}");
        spreads(&site.rig, 3).await;
        let again = site.change(|model| has(model, origins.endpoints(2))).await;
        assert_eq!(again.keeps_zone, 1, "{version}");
        stays(&site.rig).await;

        // what a Service asks for is live, too
        let off = site.change(|model| model.backends.get_mut(&id("shop")).unwrap().zones = None).await;
        assert_eq!(off.keeps_zone, 0, "{version}");
        spreads(&site.rig, 4).await;
        let on = site.change(|model| model.backends.get_mut(&id("shop")).unwrap().zones = Some(RULE)).await;
        assert_eq!((on.keeps_zone, on.reload_count, on.restarts), (1, before.reload_count, 0), "{version}");
        stays(&site.rig).await;
        assert_eq!(site.rig.agent.check_drift().await, 0, "{version}");
        watch.saw_only(&["near-1", "near-2", "far-1", "far-2"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_of_another_zone_has_the_same_bundle_and_other_weights() {
    let (version, haproxy) = &haproxies()[0];
    let origins = Origins::start().await;
    let model = origins.model(2, Policy::default());
    let site = Site::start(*version, haproxy, model.clone()).await;
    let other = Site::start(*version, haproxy, model).await;
    let (here, there) = (in_zone(&site.rig, "a").await, in_zone(&other.rig, "b").await);
    assert_eq!(here.digest, there.digest);
    stays(&site.rig).await;
    let (near, far) = share(&other.rig).await;
    assert!(near <= 3, "{near} near, {far} far");
}

#[tokio::test(flavor = "multi_thread")]
async fn ratios_of_weights_hold_within_the_zone() {
    for (version, haproxy) in haproxies() {
        let origins = Origins::start().await;
        let policy = Policy { server: ServerOptions { weight: Some(40), ..ServerOptions::default() }, ..Policy::default() };
        let mut site = Site::start(*version, haproxy, origins.model(2, policy)).await;
        in_zone(&site.rig, "a").await;
        let near = origins.near[0].address;
        site.change(|model| {
            let shop = model.backends.get_mut(&id("shop")).unwrap();
            let weighted =
                |endpoint: &Endpoint| Endpoint { weight: Some(if endpoint.address == near.ip() { 1 } else { 4 }), ..endpoint.clone() };
            shop.endpoints = shop.endpoints.iter().map(weighted).collect();
        })
        .await;
        let mut found: Vec<u16> = weights(&site.rig).await.values().map(|weight| weight.parse().unwrap()).collect();
        found.sort_unstable();
        assert_eq!(found, [1, 1, 64, 256], "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_haproxy_finds_dead_in_the_zone_is_answered_from_the_others() {
    for (version, haproxy) in haproxies() {
        let origins = Origins::start().await;
        let site = Site::start(*version, haproxy, origins.model(2, Policy::default())).await;
        in_zone(&site.rig, "a").await;
        stays(&site.rig).await;
        // nobody tells the operator
        let Origins { near, far } = origins;
        drop(near);
        // a few failed connections later HAProxy has found out by itself
        let up = async || alive(&site.rig).await;
        eventually(async || {
            site.rig.ask(HOST).await;
            (up().await == 2).then_some(())
        })
        .await;
        for _ in 0..REQUESTS {
            let answer = site.rig.ask(HOST).await;
            assert!(answer.starts_with("far-"), "{version}: {answer}");
        }
        drop(far);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_and_a_new_agent_keep_the_weights() {
    for (version, haproxy) in haproxies() {
        let origins = Origins::start().await;
        let mut site = Site::start(*version, haproxy, origins.model(2, Policy::default())).await;
        in_zone(&site.rig, "a").await;
        let before = weights(&site.rig).await;
        let status = site.change(|model| all_by_https(model, "other.test", "shop")).await;
        let reloads = status.reload_count;
        let status = site.change(|model| model.settings.unique_id = Some("X-Id".into())).await;
        assert_eq!(status.reload_count, reloads + 1, "{version}");
        // the files had them: HAProxy read these, and nothing was put right
        assert_eq!(weights(&site.rig).await, before, "{version}");
        stays(&site.rig).await;
        assert_eq!(site.rig.agent.check_drift().await, 0, "{version}");

        // HAProxy is started again from the files, and a new agent learns what is wanted
        site.rig.agent.kill().await;
        site.rig.agent = Agent::start(site.rig.settings.clone()).await.unwrap();
        eventually(async || (weights(&site.rig).await == before).then_some(())).await;
        site.rig.agent.set_zone("a".into());
        site.rig.deliver_all();
        let status = site.rig.settled().await;
        assert_eq!((status.keeps_zone, status.reload_count), (1, 0), "{version}");
        assert_eq!(site.rig.agent.check_drift().await, 0, "{version}");
        stays(&site.rig).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_changes_while_a_reload_is_validated_is_in_the_next_worker() {
    for (version, haproxy) in haproxies() {
        let origins = Origins::start().await;
        let (mut site, gate) = Site::gated(*version, haproxy, origins.model(2, Policy::default())).await;
        gate.close();
        site.send(|model| model.settings.unique_id = Some("X-Id".into()));
        gate.waited_at().await;
        // the very same resources, seen from a zone
        in_zone(&site.rig, "a").await;
        eventually(async || weights(&site.rig).await.values().any(|weight| weight == "256").then_some(())).await;
        gate.open();
        site.rig.settled().await;
        let status = site.rig.until("reloaded", |status| status.reload_count == 2).await;
        assert_eq!(status.keeps_zone, 1, "{version}");
        stays(&site.rig).await;
        assert_eq!(site.rig.agent.check_drift().await, 0, "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn balances_go_by_weight_but_that_of_least_connections_takes_whoever_is_idle() {
    for (version, haproxy) in haproxies() {
        for balance in [Balance::RoundRobin, Balance::Random(None), Balance::LeastConn] {
            let origins = Origins::start().await;
            let policy = Policy { balance: Some(balance.clone()), ..Policy::default() };
            let site = Site::start(*version, haproxy, origins.model(2, policy)).await;
            in_zone(&site.rig, "a").await;
            // one request at a time: every server is idle
            if balance == Balance::LeastConn { spreads(&site.rig, 4).await } else { stays(&site.rig).await }
        }
    }
}
