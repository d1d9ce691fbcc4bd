//! How a change gets from pod to pod, and back: the operator's part of it against real agents and HAProxies.

use crate::delivery::{Cluster, FleetPod, Replica};
use crate::rig::{
    Client, Origin, backend, eventually, frontends, private, route, section, server, servers, skeleton, source, without_backend,
};
use crate::support::haproxies;
use haproxy_fleet::agent::Status;
use haproxy_fleet::delivery::packed::{pack, unpack};
use haproxy_fleet::fleet::release::Rules;
use haproxy_fleet::haproxy::bundle::{Bundle, Change, Digest};
use haproxy_fleet::model::FleetId;
use haproxy_fleet::operator::serving::{Kept, News, Place, Places, Serving, Timing};
use haproxy_fleet::report::ObjectRef;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinSet;

/// As long as it takes to see who was let and who was not.
const SHORT: Duration = Duration::from_millis(1500);
/// As long as it takes agents to say how their HAProxies fare.
const LONG: Duration = Duration::from_secs(7);

fn fleet() -> FleetId {
    FleetId { namespace: "infra".into(), name: "edge".into() }
}

/// What an operator does with a fleet, without a cluster to read it from.
struct Operator {
    replica: Replica,
    serving: Serving,
    present: Bundle,
    generation: u64,
    started: std::time::Instant,
}

impl Operator {
    async fn start(cluster: &Cluster, present: Bundle, observation: Duration) -> Self {
        let replica = Replica::start(cluster).await;
        let rules = Rules { observation, patience: Duration::from_secs(60) };
        let mut serving = Serving::new(replica.feeds.clone(), Timing { rules, gathering: Duration::ZERO });
        replica.leads(1);
        serving.lead(true, Duration::ZERO, &|_| None);
        let mut operator = Self { replica, serving, present, generation: 0, started: std::time::Instant::now() };
        let all = Bundle::default().diff(&operator.present);
        operator.publish(&all);
        operator
    }

    fn served(&self) -> &Bundle {
        self.serving.bundle(&fleet(), &self.present)
    }

    fn publish(&mut self, changes: &[Change]) {
        self.generation += 1;
        let bundle = self.served().clone();
        self.replica.publish(self.generation, changes, &bundle);
        self.serving.published(&fleet(), self.generation, changes, bundle.digest(), revision(&bundle));
    }

    /// What is asked for changes.
    fn change(&mut self, change: impl FnOnce(&mut Bundle)) {
        let before = self.present.clone();
        change(&mut self.present);
        let changes = before.diff(&self.present);
        let changes = self.serving.follow(&fleet(), &changes, &self.present).unwrap().into_owned();
        self.publish(&changes);
        if let Some(changes) = self.serving.touched(&fleet(), &|_: &ObjectRef| false, &self.present) {
            self.publish(&changes);
        }
    }

    fn look(&mut self) {
        let agents = self.replica.feeds.agents().borrow().clone();
        let place = |pod: &str| Place { zone: pod[..1].into(), serves: true, ends: false };
        let places: Places = agents.keys().map(|(_, pod)| (pod.clone(), place(pod))).collect();
        let present = self.present.clone();
        let news = self.serving.look(self.started.elapsed(), &agents, &|_| places.clone(), &|_| Some(&present));
        for news in news {
            if let News::Serves(_, changes) = news {
                self.publish(&changes);
            }
        }
    }

    /// Does its part until `condition`.
    async fn until(&mut self, condition: impl Fn(&Self) -> bool) {
        eventually(async || {
            self.look();
            condition(self).then_some(())
        })
        .await;
    }

    /// Waits until all pods have what is served, and that is known.
    async fn settled(&mut self, pods: &[FleetPod]) -> Option<Kept> {
        self.until(|operator| {
            let digest = operator.served().digest();
            pods.iter().all(|pod| has(&pod.rig.status(), digest)) && operator.serving.is_settled(&fleet())
        })
        .await;
        self.serving.to_keep(&fleet(), &self.present)
    }

    fn findings(&self) -> Vec<(ObjectRef, &'static str)> {
        self.serving.findings(&fleet()).into_iter().map(|finding| (finding.object, finding.code.as_str())).collect()
    }
}

fn revision(bundle: &Bundle) -> Digest {
    let of_revision = bundle.resources().filter(|resource| resource.key.is_of_revision());
    Digest(of_revision.fold(0, |sum, resource| sum.wrapping_add(resource.hash())))
}

fn has(status: &Status, digest: Digest) -> bool {
    status.digest == digest && status.waiting == 0
}

/// Two zones of two pods that serve `origin` at `a.example`.
async fn four(haproxy: &Path, origin: &Origin, observation: Duration) -> (Cluster, Operator, Vec<FleetPod>) {
    let cluster = Cluster::new();
    let mut bundle = skeleton();
    backend(&mut bundle, "shop_web_80_a", &[origin.address]);
    route(&mut bundle, "a.example", "shop_web_80_a");
    let mut operator = Operator::start(&cluster, bundle, observation).await;
    let mut pods = Vec::new();
    for name in ["a-0", "a-1", "b-0", "b-1"] {
        pods.push(FleetPod::start(&cluster, haproxy, name, &[operator.replica.address]).await);
    }
    operator.until(|operator| operator.replica.feeds.agents().borrow().len() == 4).await;
    operator.settled(&pods).await;
    (cluster, operator, pods)
}

fn reloads(pods: &[FleetPod]) -> Vec<u64> {
    pods.iter().map(|pod| pod.rig.status().reload_count).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reload_goes_to_one_pod_then_to_its_zone_then_on_and_what_is_live_waits_for_nothing() {
    for (_, haproxy) in haproxies() {
        let (a, b) = (Origin::start("a").await, Origin::start("b").await);
        let (_cluster, mut operator, pods) = four(haproxy, &a, SHORT).await;
        assert_eq!(reloads(&pods), [1; 4], "whoever serves nothing waits for nobody");
        operator.change(|bundle| section(bundle, "20-frontends", &frontends(1)));
        let mut seen = vec![reloads(&pods)];
        while *seen.last().unwrap() != [2; 4] {
            let last = seen.last().unwrap().clone();
            operator.until(|_| reloads(&pods) != last).await;
            if seen.len() == 1 {
                // in the middle of it, endpoints are everybody's at once
                operator.change(|bundle| servers(bundle, "shop_web_80_a", vec![server("shop_web_80_a", b.address)]));
                for pod in &pods {
                    pod.rig.answers("a.example", "b").await;
                }
                assert_eq!(reloads(&pods), [2, 1, 1, 1]);
            }
            seen.push(reloads(&pods));
        }
        assert_eq!((&seen[1][..], &seen[2][..]), (&[2, 1, 1, 1][..], &[2, 2, 1, 1][..]), "{seen:?}");
        operator.settled(&pods).await;
        assert_eq!(reloads(&pods), [2; 4]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_haproxy_refuses_stays_in_the_first_pod_and_the_rest_goes_on() {
    for (_, haproxy) in haproxies() {
        let a = Origin::start("a").await;
        let (_cluster, mut operator, pods) = four(haproxy, &a, SHORT).await;
        operator.change(|bundle| {
            private(bundle, "bad", "    no-such-directive\n", &[a.address]);
            route(bundle, "bad.example", "bad");
            private(bundle, "good", "    http-request set-header x-good 1\n", &[a.address]);
            route(bundle, "good.example", "good");
        });
        operator.until(|operator| !operator.findings().is_empty()).await;
        assert_eq!(operator.findings(), [(source("bad"), "Quarantined")]);
        operator.settled(&pods).await;
        for pod in &pods {
            assert_eq!(pod.rig.ask("good.example").await, "a");
            assert_eq!(pod.rig.ask("a.example").await, "a");
            assert_eq!(pod.rig.ask("bad.example").await, "404", "it leads nowhere, rather than to what is not there");
        }
        // nobody but the first one has ever seen it
        let agents = operator.replica.feeds.agents().borrow().clone();
        assert!(agents.values().all(|report| report.state.as_ref().unwrap().refused_count == 0));
        // and it is tried again once it is something else
        operator.change(|bundle| private(bundle, "bad", "    http-request set-header x-bad 1\n", &[a.address]));
        operator.settled(&pods).await;
        assert_eq!(operator.findings(), []);
        for pod in &pods {
            assert_eq!(pod.rig.ask("bad.example").await, "a");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_goes_back_to_a_revision_and_returns_at_once_while_endpoints_and_certificates_go_on() {
    for (_, haproxy) in haproxies() {
        let (a, b) = (Origin::start("a").await, Origin::start("b").await);
        let (_cluster, mut operator, pods) = four(haproxy, &a, SHORT).await;
        let first = operator.serving.to_keep(&fleet(), &operator.present);
        // nobody has said yet which revisions are kept
        assert!(first.is_none());
        operator.serving.set_revisions(&fleet(), [].into(), None);
        let first = operator.serving.to_keep(&fleet(), &operator.present).unwrap();
        // another policy: a new shape, so a new backend in the place of the old one, and a route that is new
        operator.change(|bundle| {
            private(bundle, "shop_web_80_b", "    http-request set-header x-new 1\n", &[a.address]);
            route(bundle, "a.example", "shop_web_80_b");
            route(bundle, "new.example", "shop_web_80_b");
            without_backend(bundle, "shop_web_80_a");
        });
        operator.serving.set_revisions(&fleet(), [(1, first.digest)].into(), None);
        let second = operator.settled(&pods).await.unwrap();
        operator.serving.set_revisions(&fleet(), [(1, first.digest), (2, second.digest)].into(), None);
        assert_eq!(pods[3].rig.ask("new.example").await, "a");

        let bytes = pack(&first.resources).unwrap();
        let record = unpack(1, first.digest, &bytes).unwrap();
        operator.serving.want(&fleet(), Some("1".into()), Some(&operator.present));
        let changes = operator.serving.go_back(&fleet(), "1", record, &operator.present).unwrap();
        operator.publish(&changes);
        operator.settled(&pods).await;
        assert_eq!(operator.findings(), [(ObjectRef::new(haproxy_fleet::report::Kind::IngressDeployment, "infra", "edge"), "Pinned")]);
        for pod in &pods {
            assert_eq!(pod.rig.ask("a.example").await, "a");
            assert_eq!(pod.rig.ask("new.example").await, "404");
        }
        // the backend of then has the endpoints of now
        operator.change(|bundle| servers(bundle, "shop_web_80_b", vec![server("shop_web_80_b", b.address)]));
        for pod in &pods {
            operator.until(|_| true).await;
            pod.rig.answers("a.example", "b").await;
        }
        // and back
        let changes = operator.serving.want(&fleet(), None, Some(&operator.present)).unwrap();
        operator.publish(&changes);
        assert_eq!(operator.served().digest(), operator.present.digest());
        operator.settled(&pods).await;
        assert_eq!(operator.findings(), []);
        for pod in &pods {
            assert_eq!(pod.rig.ask("new.example").await, "b");
        }
    }
}

/// Clients of every pod, and how often each got which answer.
struct Traffic {
    answers: Arc<Mutex<BTreeMap<(usize, String), u64>>>,
    _clients: JoinSet<()>,
}

impl Traffic {
    fn start(pods: &[FleetPod]) -> Self {
        let answers: Arc<Mutex<BTreeMap<(usize, String), u64>>> = Arc::default();
        let mut clients = JoinSet::new();
        for (number, pod) in pods.iter().enumerate() {
            let (address, answers) = (pod.rig.http, answers.clone());
            clients.spawn(async move {
                let mut pace = tokio::time::interval(Duration::from_millis(20));
                loop {
                    pace.tick().await;
                    let answer = Client::connect(address).await.ask("a.example").await.unwrap_or_else(|error| format!("lost: {error}"));
                    *answers.lock().unwrap().entry((number, answer)).or_default() += 1;
                }
            });
        }
        Self { answers, _clients: clients }
    }

    fn got(&self, pod: usize, answer: &str) -> u64 {
        self.answers.lock().unwrap().get(&(pod, answer.to_owned())).copied().unwrap_or(0)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_makes_the_first_pod_fail_is_taken_back_there_and_reaches_no_other() {
    for (_, haproxy) in haproxies() {
        let a = Origin::start("a").await;
        let (_cluster, mut operator, pods) = four(haproxy, &a, LONG).await;
        let traffic = Traffic::start(&pods);
        let before = operator.present.digest();
        // HAProxy takes it, and clients are worse off
        let bad = frontends(1)
            .replace("http-request set-var-fmt(txn.key)", "http-request return status 500\n    http-request set-var-fmt(txn.key)");
        operator.change(|bundle| section(bundle, "20-frontends", &bad));
        operator.until(|operator| !operator.findings().is_empty()).await;
        assert_eq!(operator.findings(), [(source("20-frontends"), "Quarantined")]);
        assert_eq!(operator.served().digest(), before);
        operator.settled(&pods).await;
        assert_eq!(reloads(&pods), [3, 1, 1, 1], "there and back");
        let served = traffic.got(0, "a");
        operator.until(|_| traffic.got(0, "a") > served + 10).await;
        assert!(traffic.got(0, "500") > 0);
        for pod in 1..4 {
            assert!(traffic.got(pod, "a") > 0);
            assert_eq!(traffic.got(pod, "500"), 0, "pod {pod}");
        }
        // whoever touches it has it tried again
        operator.change(|bundle| section(bundle, "20-frontends", &frontends(2)));
        operator.settled(&pods).await;
        assert_eq!((operator.findings(), reloads(&pods)), (vec![], vec![4, 2, 2, 2]));
    }
}
