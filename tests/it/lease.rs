//! The election of the operator against an API server, with every fault that the connection to it can have.

use fleet_api_server::ApiServer;
use fleet_api_server::faults::{Action, Faults, Matcher, Plan};
use fleet_api_server::{Answered, Verb};
use haproxy_fleet::operator::fence::{Fence, Fenced};
use haproxy_fleet::operator::lease::{Claim, Driver, Handle, LeaseError, Settings, Timing};
use k8s_openapi::api::authentication::v1::TokenReview;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::time::Duration;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tower::{Layer, ServiceBuilder};

const SECOND: Duration = Duration::from_secs(1);

struct Replica {
    handle: Handle,
    faults: Faults,
    task: JoinHandle<()>,
    stop: Option<oneshot::Sender<()>>,
}

impl Replica {
    fn start(server: &ApiServer, name: &str, plan: Plan) -> Self {
        Self::start_hearing(server, name, plan, watch::channel(0).1)
    }

    fn start_hearing(server: &ApiServer, name: &str, plan: Plan, heard: watch::Receiver<u64>) -> Self {
        let faults = Faults::new(plan);
        let client = Client::new(faults.layer(server.clone()), "default");
        let (driver, handle) = Driver::new(Settings {
            namespace: "kube-system".to_owned(),
            name: "haproxy-fleet".to_owned(),
            identity: name.to_owned(),
            timing: Timing::default(),
            highest_term: heard,
        });
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(driver.run(client, async { _ = stopped.await }));
        Self { handle, faults, task, stop: Some(stop) }
    }

    fn term(&self) -> Option<u64> {
        self.handle.claim().borrow().term(Instant::now())
    }

    /// Comes back with the term when this replica leads, and how long that took.
    async fn leads(&self) -> (u64, Duration) {
        let start = Instant::now();
        let mut claim = self.handle.claim();
        let leads = claim.wait_for(|claim| claim.term(Instant::now()).is_some());
        let claim = *tokio::time::timeout(60 * SECOND, leads).await.expect("it never leads").unwrap();
        (claim.term(Instant::now()).unwrap(), start.elapsed())
    }

    async fn stands_by(&self) {
        let mut claim = self.handle.claim();
        let stands_by = claim.wait_for(|claim| *claim == Claim::Standby);
        _ = tokio::time::timeout(60 * SECOND, stands_by).await.expect("it leads for ever").unwrap();
    }

    /// Ends it as a kill does: no request of it arrives any more.
    fn kill(&self) {
        self.faults.crash();
        self.task.abort();
    }

    async fn stop(mut self) {
        self.stop.take().unwrap().send(()).unwrap();
        self.task.await.unwrap();
    }
}

fn lease(server: &ApiServer) -> Value {
    server.get("coordination.k8s.io/v1", "Lease", "kube-system", "haproxy-fleet").expect("there is a lease")
}

fn accepted_writes(server: &ApiServer) -> Vec<Answered> {
    server.writes().into_iter().filter(|answered| answered.code < 300).collect()
}

#[tokio::test(start_paused = true)]
async fn the_first_replica_leads_at_once_and_the_second_waits() {
    let server = ApiServer::new();
    let one = Replica::start(&server, "one", Plan::default());
    let (term, took) = one.leads().await;
    assert_eq!((term, took), (1, Duration::ZERO));
    let two = Replica::start(&server, "two", Plan::default());
    for _ in 0..120 {
        tokio::time::sleep(SECOND).await;
        assert_eq!((one.term(), two.term()), (Some(1), None));
    }
    assert_eq!(lease(&server)["spec"]["holderIdentity"], "one");
    // one creation, and a renewal every five seconds
    assert!((23..=25).contains(&accepted_writes(&server).len()), "{:?}", accepted_writes(&server).len());
}

#[tokio::test(start_paused = true)]
async fn a_killed_leader_is_replaced_within_twenty_seconds_whenever_it_is_killed() {
    for after in 0..50 {
        let server = ApiServer::new();
        let one = Replica::start(&server, "one", Plan::default());
        one.leads().await;
        let two = Replica::start(&server, "two", Plan::default());
        tokio::time::sleep(30 * SECOND + Duration::from_millis(after * 100)).await;
        one.kill();
        let (term, took) = two.leads().await;
        assert_eq!(term, 2);
        assert!(took < 20 * SECOND, "after {took:?} of virtual time");
        assert_eq!(lease(&server)["spec"]["leaseTransitions"], 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_is_stopped_gives_the_lease_back_and_the_next_one_does_not_wait_for_its_end() {
    let server = ApiServer::new();
    let one = Replica::start(&server, "one", Plan::default());
    one.leads().await;
    let two = Replica::start(&server, "two", Plan::default());
    tokio::time::sleep(SECOND).await;
    let claim = one.handle.claim();
    one.stop().await;
    assert_eq!(*claim.borrow(), Claim::Standby);
    let (term, took) = two.leads().await;
    assert_eq!(term, 2);
    assert!(took <= 3 * SECOND, "it read the released lease after {took:?} of virtual time");
}

#[tokio::test(start_paused = true)]
async fn a_leader_that_cannot_write_gives_up_before_anybody_else_leads() {
    let server = ApiServer::new();
    // its renewals are refused from the third write on
    let refuse = Plan::one(Matcher::of(Verb::Update, "leases"), 3, u64::MAX / 2, Action::Answer(500));
    let one = Replica::start(&server, "one", refuse);
    one.leads().await;
    let two = Replica::start(&server, "two", Plan::default());
    one.stands_by().await;
    assert_eq!((one.term(), two.term()), (None, None));
    let (term, took) = two.leads().await;
    assert_eq!(term, 2);
    assert!(took > 2 * SECOND, "{took:?} of virtual time between the two");
}

#[tokio::test(start_paused = true)]
async fn a_leader_without_an_answer_for_ten_seconds_stands_by_while_the_request_hangs() {
    let server = ApiServer::new();
    let hang = Plan::one(Matcher { plural: "leases".to_owned(), ..Matcher::default() }, 4, u64::MAX / 2, Action::Delay(600 * SECOND));
    let one = Replica::start(&server, "one", hang);
    one.leads().await;
    let start = Instant::now();
    one.stands_by().await;
    assert!(start.elapsed() <= 15 * SECOND, "{:?} of virtual time", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_whose_answer_is_lost_does_not_cost_the_lead() {
    let server = ApiServer::new();
    let lose = Plan::one(Matcher::of(Verb::Update, "leases"), 1, 1, Action::LoseAnswer);
    let one = Replica::start(&server, "one", lose);
    one.leads().await;
    let two = Replica::start(&server, "two", Plan::default());
    for _ in 0..60 {
        tokio::time::sleep(SECOND).await;
        assert_eq!((one.term(), two.term()), (Some(1), None));
    }
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_whose_answer_is_lost_is_made_again_in_a_higher_term() {
    let server = ApiServer::new();
    let lose = Plan::one(Matcher::of(Verb::Create, "leases"), 1, 1, Action::LoseAnswer);
    let one = Replica::start(&server, "one", lose);
    let (term, _) = one.leads().await;
    assert_eq!(term, 2);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_somebody_else_edits_is_read_again_and_kept() {
    let server = ApiServer::new();
    let one = Replica::start(&server, "one", Plan::default());
    one.leads().await;
    for _ in 0..5 {
        tokio::time::sleep(7 * SECOND).await;
        let edit = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"namespace": "kube-system", "name": "haproxy-fleet", "annotations": {"team": format!("{:?}", Instant::now())}}});
        server.put(&edit).unwrap();
        assert_eq!(one.term(), Some(1));
    }
    tokio::time::sleep(7 * SECOND).await;
    assert_eq!(one.term(), Some(1));
    assert!(lease(&server)["metadata"]["annotations"]["team"].is_string(), "what others write on the lease stays");
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_deleted_is_made_again() {
    let server = ApiServer::new();
    let one = Replica::start(&server, "one", Plan::default());
    one.leads().await;
    server.delete("coordination.k8s.io/v1", "Lease", "kube-system", "haproxy-fleet", "Background").unwrap();
    tokio::time::sleep(12 * SECOND).await;
    assert!(one.term().is_some());
    assert_eq!(lease(&server)["spec"]["holderIdentity"], "one");
}

#[tokio::test(start_paused = true)]
async fn the_claim_ends_with_the_task() {
    let server = ApiServer::new();
    let one = Replica::start(&server, "one", Plan::default());
    one.leads().await;
    one.task.abort();
    one.stands_by().await;
    let mut claim = one.handle.claim();
    claim.mark_unchanged();
    assert!(claim.changed().await.is_err(), "and whoever waits for changes is told");
    assert_eq!(one.handle.reserve(1).await, Err(LeaseError::Ended));
}

#[tokio::test(start_paused = true)]
async fn with_any_faults_no_two_replicas_lead_at_once_and_terms_only_grow() {
    for seed in 0..60 {
        let server = ApiServer::new();
        let mut plan = Plan::random(seed, 6);
        for rule in &mut plan.rules {
            rule.matcher.plural = "leases".to_owned();
        }
        let text = plan.to_string();
        let replicas = [Replica::start(&server, "one", plan.clone()), Replica::start(&server, "two", plan)];
        let mut highest = 0;
        for _ in 0..600 {
            tokio::time::sleep(Duration::from_millis(250)).await;
            let terms: Vec<u64> = replicas.iter().filter_map(Replica::term).collect();
            assert!(terms.len() < 2, "two lead at once with {text}");
            for term in terms {
                assert!(term >= highest, "term {term} after {highest} with {text}");
                highest = term;
            }
        }
        for replica in &replicas {
            replica.faults.end();
        }
        tokio::time::sleep(20 * SECOND).await;
        assert!(replicas.iter().any(|replica| replica.term().is_some()), "in the end nobody leads with {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn generations_are_reserved_before_they_are_used_and_never_twice() {
    let server = ApiServer::new();
    let lose = Plan::one(Matcher::of(Verb::Update, "leases"), 2, 1, Action::LoseAnswer);
    let one = Replica::start(&server, "one", lose);
    one.leads().await;
    let first = one.handle.reserve(100).await.unwrap();
    assert_eq!(first, 1..=100);
    assert_eq!(lease(&server)["metadata"]["annotations"]["haproxy-fleet.dev/generations"], "100");
    // the answer to this one is lost: the numbers that it may have reserved are left out
    let second = one.handle.reserve(100).await.unwrap();
    assert_eq!(second, 201..=300);
    let two = Replica::start(&server, "two", Plan::default());
    assert_eq!(two.handle.reserve(1).await, Err(LeaseError::NotLeading));
    one.kill();
    two.leads().await;
    assert_eq!(two.handle.reserve(50).await.unwrap(), 301..=350);
}

fn config_map(name: &str) -> ConfigMap {
    serde_json::from_value(json!({"metadata": {"name": name}})).unwrap()
}

struct Writer {
    client: Client,
}

impl Writer {
    fn new(server: &ApiServer, replica: &Replica, plan: Plan) -> Self {
        let fence = Fence::new(replica.handle.claim(), "kube-system", "haproxy-fleet");
        let service = ServiceBuilder::new().layer(fence).layer(Faults::new(plan)).service(server.clone());
        Self { client: Client::new(service, "default") }
    }

    fn config_maps(&self) -> Api<ConfigMap> {
        Api::default_namespaced(self.client.clone())
    }
}

fn is_not_sent(error: &kube::Error) -> bool {
    matches!(Fenced::of(error), Some(Fenced::NotSent { .. }))
}

#[tokio::test(start_paused = true)]
async fn a_standby_reads_and_reviews_but_no_write_of_it_is_sent() {
    let server = ApiServer::new();
    let one = Replica::start(&server, "one", Plan::default());
    one.leads().await;
    let two = Replica::start(&server, "two", Plan::default());
    let writer = Writer::new(&server, &two, Plan::default());
    let api = writer.config_maps();
    server.put(&json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "default", "name": "there"}})).unwrap();
    assert_eq!(api.list(&kube::api::ListParams::default()).await.unwrap().items.len(), 1);
    let review = TokenReview { spec: serde_json::from_value(json!({"token": "x"})).unwrap(), ..TokenReview::default() };
    Api::<TokenReview>::all(writer.client.clone()).create(&PostParams::default(), &review).await.unwrap();

    let apply = Patch::Apply(json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "b"}}));
    let merge = Patch::Merge(json!({"data": {"a": "b"}}));
    let refused = [
        api.create(&PostParams::default(), &config_map("new")).await.unwrap_err(),
        api.replace("there", &PostParams::default(), &config_map("there")).await.unwrap_err(),
        api.patch("there", &PatchParams::apply("test"), &apply).await.unwrap_err(),
        api.patch("there", &PatchParams::default(), &merge).await.unwrap_err(),
        api.delete("there", &DeleteParams::default()).await.unwrap_err(),
    ];
    assert!(refused.iter().all(is_not_sent), "{refused:?}");
    let text = refused[4].to_string();
    assert!(text.contains("DELETE /api/v1/namespaces/default/configmaps/there was not sent"), "{text}");
    assert!(server.writes().iter().all(|answered| answered.call.plural == "leases"), "{:?}", server.writes());
    // another Lease is not the election's
    let other: Api<k8s_openapi::api::coordination::v1::Lease> = Api::namespaced(writer.client.clone(), "kube-system");
    let merge = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    assert!(is_not_sent(&other.patch("haproxy-fleet", &PatchParams::default(), &merge).await.unwrap_err()));
    assert!(is_not_sent(&other.delete("other", &DeleteParams::default()).await.unwrap_err()));
}

#[tokio::test(start_paused = true)]
async fn the_writes_of_a_leader_pass_until_its_claim_ends_even_if_nobody_tells_it() {
    let server = ApiServer::new();
    let one = Replica::start(&server, "one", Plan::default());
    one.leads().await;
    let api = Writer::new(&server, &one, Plan::default()).config_maps();
    api.create(&PostParams::default(), &config_map("first")).await.unwrap();
    // the connection of the election dies; nothing else does
    one.faults.crash();
    one.stands_by().await;
    assert!(is_not_sent(&api.create(&PostParams::default(), &config_map("second")).await.unwrap_err()));
}

#[tokio::test(start_paused = true)]
async fn a_write_that_hangs_is_broken_off_when_the_claim_ends() {
    let server = ApiServer::new();
    let one = Replica::start(&server, "one", Plan::default());
    one.leads().await;
    let slow = Plan::one(Matcher::of(Verb::Create, "configmaps"), 1, 1, Action::Delay(600 * SECOND));
    let api = Writer::new(&server, &one, slow).config_maps();
    one.faults.crash();
    let error = api.create(&PostParams::default(), &config_map("slow")).await.unwrap_err();
    assert!(matches!(Fenced::of(&error), Some(Fenced::BrokenOff { .. })), "{error}");
    assert_eq!(one.term(), None);
}

#[tokio::test(start_paused = true)]
async fn a_write_that_takes_longer_than_a_term_of_the_claim_passes_while_the_claim_is_renewed() {
    let server = ApiServer::new();
    let one = Replica::start(&server, "one", Plan::default());
    one.leads().await;
    let slow = Plan::one(Matcher::of(Verb::Create, "configmaps"), 1, 1, Action::Delay(60 * SECOND));
    let api = Writer::new(&server, &one, slow).config_maps();
    api.create(&PostParams::default(), &config_map("slow")).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_begins_anew_goes_on_above_the_term_that_agents_obey() {
    let server = ApiServer::new();
    let (agents, heard) = watch::channel(0);
    let replica = Replica::start_hearing(&server, "a", Plan::default(), heard);
    assert_eq!(replica.leads().await.0, 1);
    // an agent comes that obeyed a leader of a Lease that somebody deleted
    agents.send_replace(41);
    let mut claim = replica.handle.claim();
    claim.wait_for(|claim| claim.term(Instant::now()) == Some(42)).await.unwrap();
}
