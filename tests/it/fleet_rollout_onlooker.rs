//! Looks on while a fleet is rolled out, and notes what must never happen.

use crate::fleet_rollout_world::{View, is_drained, now, ready_since, stays};
use haproxy_fleet::api::IngressDeploymentSpec;
use haproxy_fleet::fleet::build::{ANNOTATION_TEMPLATE, ANNOTATION_TURN};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

/// Why a pod is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    Rollout,
    /// All new pods are available: the last old ones go, whether it is paused or not.
    Closing,
    Size,
    /// The autoscaler has its own mind.
    Others,
}

/// What it remembers of a Deployment.
#[derive(Clone, PartialEq)]
struct Before {
    uid: Value,
    template: Value,
    paused: bool,
}

#[derive(Default)]
struct Memory {
    deployments: BTreeMap<String, Before>,
    /// Pods that clients were led away from, by our doing, and their Deployments.
    leaving: BTreeMap<String, String>,
    wrongs: Vec<String>,
}

pub(crate) struct Onlooker {
    start: Instant,
    memory: Mutex<Memory>,
    /// Whether operators decide on what is the case. If not, they decide on what was, once.
    is_prompt: AtomicBool,
}

/// A Deployment and its pods.
struct Zone<'v> {
    name: String,
    deployment: &'v Value,
    pods: Vec<&'v Value>,
    /// Pods that count, and those that Kubernetes calls available.
    ready: i64,
    available: i64,
}

impl Zone<'_> {
    fn replicas(&self) -> i64 {
        self.deployment["spec"]["replicas"].as_i64().unwrap_or(1)
    }

    fn has_turn(&self) -> bool {
        self.deployment["metadata"]["annotations"][ANNOTATION_TURN] == "true"
    }

    /// Whether it has the turn, and anything that can be taken.
    fn may_lose(&self) -> bool {
        self.has_turn() && (self.replicas() > 0 || !self.pods.is_empty())
    }

    fn is_whole(&self) -> bool {
        self.pods.iter().all(|pod| stays(pod)) && self.ready >= self.replicas()
    }

    fn is_mixed(&self) -> bool {
        let template = &self.deployment["metadata"]["annotations"][ANNOTATION_TEMPLATE];
        self.pods.iter().any(|pod| stays(pod) && pod["metadata"]["annotations"][ANNOTATION_TEMPLATE] != *template)
    }
}

impl Onlooker {
    pub(crate) fn new(start: Instant) -> Self {
        Self { start, memory: Mutex::default(), is_prompt: AtomicBool::new(true) }
    }

    /// From now on operators may decide on what was once the case.
    pub(crate) fn expect_old_decisions(&self) {
        self.is_prompt.store(false, Ordering::Relaxed);
    }

    fn is_prompt(&self) -> bool {
        self.is_prompt.load(Ordering::Relaxed)
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock().unwrap()
    }

    pub(crate) fn wrongs(&self) -> Vec<String> {
        self.memory().wrongs.clone()
    }

    /// Forgets what happened so far, and says how much that was.
    pub(crate) fn forgive(&self) -> usize {
        std::mem::take(&mut self.memory().wrongs).len()
    }

    fn expect(&self, is_so: bool, what: impl Fn() -> String) {
        if !is_so {
            let seconds = self.start.elapsed().as_secs_f32();
            self.memory().wrongs.push(format!("after {seconds} s: {}", what()));
        }
    }

    fn zones<'v>(&self, view: &'v View) -> Vec<Zone<'v>> {
        let now = now(self.start);
        let zone = |deployment: &'v Value| {
            let metadata = &deployment["metadata"];
            let is_of = |pod: &&Value| pod["metadata"]["ownerReferences"][0]["uid"] == metadata["uid"];
            let pods: Vec<&Value> = view.pods.iter().filter(is_of).collect();
            let available: Vec<&&Value> = pods.iter().filter(|pod| is_available(pod, deployment, now)).collect();
            let count = |number: usize| i64::try_from(number).unwrap();
            let ready = count(available.iter().filter(|pod| !is_drained(pod, deployment)).count());
            let available = count(available.len());
            Zone { name: metadata["name"].as_str().unwrap().to_owned(), pods, ready, available, deployment }
        };
        view.deployments.iter().map(zone).collect()
    }

    /// What was written since it looked last.
    pub(crate) fn look(&self, view: &View) {
        let zones = self.zones(view);
        for zone in &zones {
            let spec = &zone.deployment["spec"];
            let uid = zone.deployment["metadata"]["uid"].clone();
            let after = Before { uid, template: spec["template"].clone(), paused: spec["paused"] == true };
            let before = self.memory().deployments.insert(zone.name.clone(), after.clone());
            let Some(before) = before.filter(|before| before.uid == after.uid) else { continue };
            let (is_changed, opens) = (before.template != after.template, before.paused && !after.paused && zone.is_mixed());
            if !is_changed && !opens {
                continue;
            }
            let what = if is_changed { "gets another template" } else { "goes on" };
            let others = || zones.iter().filter(|other| other.name != zone.name);
            self.expect(zone.has_turn(), || format!("{} {what} out of turn", zone.name));
            let are_whole = others().all(Zone::is_whole);
            self.expect(are_whole || !zone.is_whole() || !self.is_prompt(), || {
                format!("{} {what} while another one is not whole", zone.name)
            });
            self.expect(!self.is_prompt() || !others().any(Zone::may_lose), || format!("{} {what} while two have the turn", zone.name));
        }
        let mut memory = self.memory();
        // pods outlive their Deployment
        memory.leaving.retain(|name, _| view.pods.iter().any(|pod| pod["metadata"]["name"] == *name));
        let names: Vec<String> = zones.iter().map(|zone| zone.name.clone()).collect();
        memory.deployments.retain(|name, _| names.contains(name));
    }

    /// A pod is about to be taken.
    pub(crate) fn takes(&self, view: &View, pod: &Value, deployment: &str, cause: Cause) {
        if cause == Cause::Others || ready_since(pod).is_none() {
            return;
        }
        let name = pod["metadata"]["name"].as_str().unwrap();
        let mut zones = self.zones(view);
        let zone = zones.remove(zones.iter().position(|zone| zone.name == deployment).unwrap());
        let (leaving, draining) = {
            let mut memory = self.memory();
            memory.leaving.insert(name.to_owned(), deployment.to_owned());
            let is_there = |name: &str| view.pods.iter().any(|pod| pod["metadata"]["name"] == *name);
            let leaving: Vec<&str> = memory.leaving.iter().filter(|(pod, _)| is_there(pod)).map(|(_, zone)| zone.as_str()).collect();
            (leaving.iter().any(|other| *other != deployment), format!("{:?}", memory.leaving))
        };
        self.expect(!leaving, || format!("{name} is taken while another zone drains: {draining}"));
        // what is there beyond the size of a zone goes whatever anybody does
        let is_new = pod["metadata"]["annotations"][ANNOTATION_TEMPLATE] == zone.deployment["metadata"]["annotations"][ANNOTATION_TEMPLATE];
        let cause = if is_new && cause == Cause::Rollout { Cause::Closing } else { cause };
        let counted = is_available(pod, zone.deployment, now(self.start)) && !is_drained(pod, zone.deployment);
        if cause == Cause::Closing {
            let is_more = zone.available > zone.replicas();
            return self.expect(!counted || is_more, || format!("{name} is taken as the last old one, and {deployment} misses it"));
        }
        let least = least(view, &zones, &zone);
        let spare = |ready: i64, least: i64| !counted || ready > least;
        self.expect(spare(zone.available, least.zone), || format!("{name} is taken, {deployment} has {} ready", zone.available));
        if !self.is_prompt() {
            return;
        }
        let ready = zone.ready + zones.iter().map(|zone| zone.ready).sum::<i64>();
        self.expect(spare(zone.ready, least.zone), || format!("{name} is taken, {deployment} has {} that count", zone.ready));
        self.expect(spare(ready, least.fleet), || format!("{name} is taken, the fleet has {ready} that count, least is {}", least.fleet));
        self.expect(!counted || zones.iter().all(Zone::is_whole), || format!("{name} is taken while another zone is not whole"));
        self.expect(zone.has_turn(), || format!("{name} is taken out of turn ({cause:?})"));
        self.expect(!zones.iter().any(Zone::may_lose), || format!("{name} is taken while two have the turn"));
    }
}

fn least(view: &View, others: &[Zone], zone: &Zone) -> Least {
    let spec: IngressDeploymentSpec = serde_json::from_value(view.fleet["spec"].clone()).unwrap();
    let asked = i64::from(spec.total_replicas());
    let there = zone.replicas() + others.iter().map(Zone::replicas).sum::<i64>();
    let total = if spec.autoscaling.is_some() { there } else { asked.min(there) };
    let budget = spec.disruption.max_unavailable.map_or((asked / 4).max(1), i64::from);
    let label = &zone.deployment["spec"]["selector"]["matchLabels"]["haproxy-fleet.dev/zone"];
    let listed = spec.zones.iter().find(|listed| *label == *listed.name);
    Least {
        fleet: spec.rollout.min_ready.map_or(total - budget, i64::from),
        zone: listed.and_then(|listed| listed.min_ready).map_or(0, i64::from),
    }
}

/// What has to serve.
struct Least {
    fleet: i64,
    zone: i64,
}

/// Whether Kubernetes calls a pod available.
fn is_available(pod: &Value, deployment: &Value, now: Timestamp) -> bool {
    let wait = SignedDuration::from_secs(deployment["spec"]["minReadySeconds"].as_i64().unwrap_or(0));
    stays(pod) && ready_since(pod).is_some_and(|since| since + wait <= now)
}
