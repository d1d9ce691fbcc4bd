//! Plays what of Kubernetes a rollout meets: the Deployment controller, as `kubernetes/pkg/controller/deployment` has it
//! (`sync.go`, `rolling.go`, `progress.go`, `util/deployment_util.go`), the `ReplicaSet` controller and kubelets. Every pod
//! that is taken is judged.

use crate::fleet_rollout_onlooker::{Cause, Onlooker};
use fleet_api_server::ApiServer;
use haproxy_fleet::api::IntOrPercent;
use haproxy_fleet::fleet::build::{ANNOTATION_DRAINED, LABEL_FLEET, LABEL_ZONE};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// When the clock of every API server starts.
const EPOCH: &str = "2026-01-01T00:00:00Z";
/// How often everything is looked at.
pub(crate) const TICK: Duration = Duration::from_millis(500);
/// When a pod that was denied is asked for again.
const DENIED: Duration = Duration::from_secs(3);
/// The annotation of a pod by which tests tell templates apart. What is of one that begins so never becomes ready.
pub(crate) const VERSION: &str = "example.com/version";
pub(crate) const BAD: &str = "bad";
/// The label of nodes and pods that names their zone.
const NODE_ZONE: &str = "topology.kubernetes.io/zone";
const DELETION_COST: &str = "controller.kubernetes.io/pod-deletion-cost";
/// Zones that there are nodes in, two in each.
const ZONES: [&str; 3] = ["a", "b", "c"];

/// The present on the clock of a server that was made at `start`.
pub(crate) fn now(start: Instant) -> Timestamp {
    let epoch: Timestamp = EPOCH.parse().unwrap();
    epoch + SignedDuration::try_from(start.elapsed()).unwrap()
}

/// The present as objects hold it.
pub(crate) fn time(start: Instant) -> String {
    let now = now(start).as_second();
    Timestamp::from_second(now).unwrap().to_string()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn number(value: &Value) -> i64 {
    value.as_i64().unwrap_or(0)
}

fn condition<'v>(status: &'v Value, kind: &str) -> Option<&'v Value> {
    status["conditions"].as_array().into_iter().flatten().find(|condition| condition["type"] == kind)
}

/// Since when a pod is ready, if it is.
pub(crate) fn ready_since(pod: &Value) -> Option<Timestamp> {
    let ready = condition(&pod["status"], "Ready").filter(|ready| ready["status"] == "True")?;
    Some(ready["lastTransitionTime"].as_str().unwrap().parse().unwrap())
}

pub(crate) fn stays(pod: &Value) -> bool {
    pod["metadata"]["deletionTimestamp"].is_null()
}

/// Whether a pod is drained by hand.
pub(crate) fn is_drained(pod: &Value, deployment: &Value) -> bool {
    let drained = deployment["metadata"]["annotations"][ANNOTATION_DRAINED].as_str().unwrap_or_default();
    drained.split(',').any(|name| pod["metadata"]["name"] == name)
}

/// A number between `least` and `least + more` that follows from `name`.
fn drawn(name: &str, least: u64, more: u64) -> u64 {
    least + u64::from(blake3::hash(name.as_bytes()).as_bytes()[0]) % (more + 1)
}

/// What a Deployment asks for.
struct Spec {
    name: String,
    uid: Value,
    generation: i64,
    replicas: i64,
    paused: bool,
    surge: i64,
    unavailable: i64,
    min_ready: i64,
    deadline: i64,
    template: Value,
    /// `pod-template-hash`.
    hash: String,
    is_autoscaled: bool,
}

impl Spec {
    fn of(deployment: &Value, is_autoscaled: bool) -> Self {
        let spec = &deployment["spec"];
        let replicas = spec["replicas"].as_i64().unwrap_or(1);
        let rolling = |field: &str, round_up: bool| {
            let said: IntOrPercent = serde_json::from_value(spec["strategy"]["rollingUpdate"][field].clone()).unwrap();
            i64::from(said.of(i32::try_from(replicas).unwrap(), round_up).unwrap())
        };
        let (surge, unavailable) = (rolling("maxSurge", true), rolling("maxUnavailable", false));
        Self {
            name: text(&deployment["metadata"]["name"]),
            uid: deployment["metadata"]["uid"].clone(),
            generation: number(&deployment["metadata"]["generation"]),
            replicas,
            paused: spec["paused"] == true,
            surge,
            // where a percentage comes to nothing, something has to go on
            unavailable: if surge == 0 && unavailable == 0 { 1 } else { unavailable },
            min_ready: number(&spec["minReadySeconds"]),
            deadline: number(&spec["progressDeadlineSeconds"]),
            template: spec["template"].clone(),
            hash: blake3::hash(spec["template"].to_string().as_bytes()).to_hex()[..10].to_owned(),
            is_autoscaled,
        }
    }

    fn most(&self) -> i64 {
        self.replicas + self.surge
    }

    fn least(&self) -> i64 {
        self.replicas - self.unavailable
    }
}

/// A `ReplicaSet`.
#[derive(Clone, Debug)]
struct Set {
    hash: String,
    template: Value,
    size: i64,
    /// Its annotations `desired-replicas` and `max-replicas`.
    desired: i64,
    most: i64,
    /// Its status: pods, ready ones, available ones.
    pods: i64,
    ready: i64,
    available: i64,
    /// Pods that it ever made.
    made: u64,
}

impl Set {
    fn scale(&mut self, spec: &Spec, size: i64) -> bool {
        let is_scaled = self.size != size;
        (self.size, self.desired, self.most) = (size, spec.replicas, spec.most());
        is_scaled
    }

    /// `GetReplicaSetProportion`.
    fn proportion(&self, spec: &Spec, to_add: i64, added: i64, pods: i64) -> i64 {
        if self.size == 0 || to_add == 0 || to_add == added {
            return 0;
        }
        let fraction = if spec.replicas == 0 {
            -self.size
        } else {
            let before = if self.most == 0 { pods } else { self.most };
            #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss)]
            let size = if before == 0 { self.size } else { (self.size as f64 * spec.most() as f64 / before as f64).round() as i64 };
            size - self.size
        };
        let allowed = to_add - added;
        if to_add > 0 { fraction.min(allowed) } else { fraction.max(allowed) }
    }
}

/// All of one Deployment, in the order in which they were made.
type Sets = Vec<Set>;

/// The status of a Deployment as it is written.
#[derive(Clone)]
struct Status(Value);

impl Status {
    fn number(&self, field: &str) -> i64 {
        number(&self.0[field])
    }

    fn progress(&self) -> Option<&Value> {
        condition(&self.0, "Progressing")
    }

    fn has_reason(&self, reason: &str) -> bool {
        self.progress().is_some_and(|progress| progress["reason"] == reason)
    }

    /// `SetDeploymentCondition`.
    fn set(&mut self, (kind, status, reason): (&str, &str, &str), now: &str) {
        let current = condition(&self.0, kind);
        if current.is_some_and(|current| current["status"] == status && current["reason"] == reason) {
            return;
        }
        let same = current.filter(|current| current["status"] == status);
        let since = same.map_or_else(|| json!(now), |current| current["lastTransitionTime"].clone());
        self.drop(kind);
        let new = json!({"type": kind, "status": status, "reason": reason, "lastUpdateTime": now, "lastTransitionTime": since});
        self.0["conditions"].as_array_mut().unwrap().push(new);
    }

    fn drop(&mut self, kind: &str) {
        if !self.0["conditions"].is_array() {
            self.0["conditions"] = json!([]);
        }
        self.0["conditions"].as_array_mut().unwrap().retain(|condition| condition["type"] != kind);
    }

    /// `calculateStatus`.
    fn next(&self, spec: &Spec, sets: &Sets, now: &str) -> Self {
        let sum = |what: fn(&Set) -> i64| sets.iter().map(what).sum::<i64>();
        let updated = sets.iter().find(|set| set.hash == spec.hash).map_or(0, |set| set.pods);
        let available = sum(|set| set.available);
        let mut next = Self(json!({
            "observedGeneration": spec.generation, "replicas": sum(|set| set.pods), "updatedReplicas": updated,
            "readyReplicas": sum(|set| set.ready), "availableReplicas": available,
            "unavailableReplicas": (sum(|set| set.size) - available).max(0), "conditions": self.0["conditions"],
        }));
        let is_available = available >= spec.least();
        let said = if is_available { ("True", "MinimumReplicasAvailable") } else { ("False", "MinimumReplicasUnavailable") };
        next.set(("Available", said.0, said.1), now);
        next
    }

    /// `syncRolloutStatus`.
    fn tell_progress(&mut self, before: &Self, spec: &Spec, (start, now): (Instant, &str)) {
        let (pods, updated) = (self.number("replicas"), self.number("updatedReplicas"));
        if pods == updated && before.has_reason("NewReplicaSetAvailable") {
            return;
        }
        let is_complete = [pods, updated, self.number("availableReplicas")] == [spec.replicas; 3];
        let rose = |field: &str| self.number(field) > before.number(field);
        let old = |status: &Self| status.number("replicas") - status.number("updatedReplicas");
        let has_progressed = rose("updatedReplicas") || old(self) < old(before) || rose("readyReplicas") || rose("availableReplicas");
        if is_complete {
            self.set(("Progressing", "True", "NewReplicaSetAvailable"), now);
        } else if has_progressed {
            let since = before.progress().filter(|progress| progress["status"] == "True").map(|it| it["lastTransitionTime"].clone());
            self.drop("Progressing");
            self.set(("Progressing", "True", "ReplicaSetUpdated"), now);
            if let Some(since) = since {
                self.0["conditions"].as_array_mut().unwrap().last_mut().unwrap()["lastTransitionTime"] = since;
            }
        } else if before.progress().is_some_and(|progress| has_timed_out(progress, spec, start)) {
            self.set(("Progressing", "False", "ProgressDeadlineExceeded"), now);
        }
    }
}

/// `DeploymentTimedOut`.
fn has_timed_out(progress: &Value, spec: &Spec, start: Instant) -> bool {
    match progress["reason"].as_str().unwrap() {
        "NewReplicaSetAvailable" => false,
        "ProgressDeadlineExceeded" => true,
        _ => {
            let since: Timestamp = progress["lastUpdateTime"].as_str().unwrap().parse().unwrap();
            since + SignedDuration::from_secs(spec.deadline) < now(start)
        }
    }
}

/// What plays the cluster.
pub(crate) struct World {
    server: ApiServer,
    start: Instant,
    onlooker: Arc<Onlooker>,
    sets: BTreeMap<String, Sets>,
    /// When pods begin to be ready, and when those on their way out end.
    starts: BTreeMap<String, Instant>,
    ends: BTreeMap<String, Instant>,
    /// Up to here everything was looked at.
    version: u64,
    /// Pods that a quota lets there be.
    quota: Arc<AtomicUsize>,
    /// When time alone changes something.
    due: Option<Instant>,
    view: Arc<View>,
}

/// Everything that is there at some version.
#[derive(Default)]
pub(crate) struct View {
    pub(crate) version: u64,
    pub(crate) fleet: Value,
    pub(crate) deployments: Vec<Value>,
    pub(crate) pods: Vec<Value>,
}

impl View {
    pub(crate) fn of(server: &ApiServer) -> Self {
        Self {
            version: server.version(),
            fleet: server.get("haproxy-fleet.dev/v1alpha1", "IngressDeployment", "infra", "edge").unwrap_or_default(),
            deployments: server.all("apps/v1", "Deployment"),
            pods: server.all("v1", "Pod"),
        }
    }
}

impl World {
    pub(crate) fn new(server: ApiServer, start: Instant, onlooker: Arc<Onlooker>, quota: Arc<AtomicUsize>) -> Self {
        let (sets, starts, ends, view) = Default::default();
        Self { server, start, onlooker, sets, starts, ends, version: 0, quota, due: None, view }
    }

    pub(crate) async fn run(mut self) {
        loop {
            tokio::time::sleep(TICK).await;
            if self.server.version() == self.version && self.due.is_none_or(|due| due > Instant::now()) {
                continue;
            }
            let view = self.view();
            self.onlooker.look(&view);
            self.version = self.server.version();
            self.due = None;
            // nothing else of a Deployment is taken along
            if self.sets.keys().any(|name| view.deployments.iter().all(|deployment| deployment["metadata"]["name"] != *name)) {
                self.server.collect_garbage();
            }
            self.kubelets();
            self.deployments();
        }
    }

    /// Everything is looked at again then, at the latest.
    fn wait_until(&mut self, moment: Instant) {
        self.due = Some(self.due.map_or(moment, |due| due.min(moment)));
    }

    fn wait_for(&mut self, moment: Timestamp) {
        let left = moment.duration_since(now(self.start));
        if left.is_positive() {
            self.wait_until(Instant::now() + Duration::try_from(left).unwrap());
        }
    }

    fn view(&mut self) -> Arc<View> {
        if self.view.version != self.server.version() {
            self.view = Arc::new(View::of(&self.server));
        }
        Arc::clone(&self.view)
    }

    fn deployments(&mut self) {
        let view = self.view();
        let names: BTreeSet<String> = view.deployments.iter().map(|deployment| text(&deployment["metadata"]["name"])).collect();
        self.sets.retain(|name, _| names.contains(name));
        for deployment in &view.deployments {
            self.sync(deployment, &Spec::of(deployment, view.fleet["spec"]["autoscaling"].is_object()));
        }
    }

    /// `syncDeployment`, and what the `ReplicaSet` controller makes of it.
    fn sync(&mut self, deployment: &Value, spec: &Spec) {
        let now = time(self.start);
        let mut before = Status(deployment["status"].clone());
        if !before.0.is_object() {
            before.0 = json!({"conditions": []});
        }
        let is_told = before.has_reason("DeploymentPaused");
        if !before.has_reason("ProgressDeadlineExceeded") && spec.paused != is_told {
            let reason = if spec.paused { "DeploymentPaused" } else { "DeploymentResumed" };
            before.set(("Progressing", "Unknown", reason), &now);
        }
        let sets = self.sets.entry(spec.name.clone()).or_default();
        let is_scaled = sets.iter().any(|set| set.size > 0 && set.desired != spec.replicas);
        let status = if spec.paused || is_scaled {
            scale(spec, sets, before.number("replicas"));
            before.next(spec, sets, &now)
        } else {
            roll(spec, sets, &mut before, &now);
            let mut next = before.next(spec, sets, &now);
            next.tell_progress(&before, spec, (self.start, &now));
            next
        };
        if let Some(progress) = status.progress().filter(|progress| progress["reason"] != "NewReplicaSetAvailable") {
            let since: Timestamp = progress["lastUpdateTime"].as_str().unwrap().parse().unwrap();
            self.wait_for(since + SignedDuration::from_secs(spec.deadline + 1));
        }
        if deployment["status"] != status.0 {
            let metadata = json!({"namespace": "infra", "name": spec.name});
            self.server.put(&json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "status": status.0})).unwrap();
        }
        let cause = match is_scaled {
            _ if spec.is_autoscaled && (is_scaled || spec.paused) => Cause::Others,
            true => Cause::Size,
            false if spec.paused => Cause::Closing,
            false => Cause::Rollout,
        };
        self.replica_sets(spec, cause);
    }

    /// Makes and takes pods until every `ReplicaSet` has its number.
    fn replica_sets(&mut self, spec: &Spec, cause: Cause) {
        let mut sets = self.sets.remove(&spec.name).unwrap();
        for set in &mut sets {
            let is_mine = |pod: &Value| {
                let labels = &pod["metadata"]["labels"];
                stays(pod) && labels["pod-template-hash"] == set.hash && pod["metadata"]["ownerReferences"][0]["uid"] == spec.uid
            };
            let mine: Vec<Value> = self.view().pods.iter().filter(|pod| is_mine(pod)).cloned().collect();
            let there = i64::try_from(mine.len()).unwrap();
            for _ in there..set.size {
                if self.server.all("v1", "Pod").len() < self.quota.load(Ordering::Relaxed) {
                    self.make(spec, set);
                } else {
                    self.wait_until(Instant::now() + DENIED);
                }
            }
            if there > set.size {
                self.take(spec, mine, usize::try_from(there - set.size).unwrap(), cause);
            }
        }
        let (now, view) = (now(self.start), self.view());
        let wait = SignedDuration::from_secs(spec.min_ready);
        for set in &mut sets {
            let mine = || {
                let is_of = |pod: &&Value| pod["metadata"]["labels"]["pod-template-hash"] == set.hash && stays(pod);
                view.pods.iter().filter(is_of).filter(|pod| pod["metadata"]["ownerReferences"][0]["uid"] == spec.uid)
            };
            let is_available = |since: &Timestamp| *since + wait <= now;
            mine().filter_map(ready_since).for_each(|since| self.wait_for(since + wait));
            let count = |number: usize| i64::try_from(number).unwrap();
            let (all, ready) = (count(mine().count()), count(mine().filter_map(ready_since).count()));
            let available = count(mine().filter_map(ready_since).filter(is_available).count());
            if (set.pods, set.ready, set.available) != (all, ready, available) {
                // its status is news to the controller of Deployments
                self.wait_until(Instant::now());
            }
            (set.pods, set.ready, set.available) = (all, ready, available);
        }
        self.sets.insert(spec.name.clone(), sets);
    }

    fn make(&mut self, spec: &Spec, set: &mut Set) {
        let view = self.view();
        let crowd = |node: &(&str, usize)| {
            let name = format!("node-{}-{}", node.0, node.1);
            let here = view.pods.iter().filter(|pod| stays(pod) && pod["spec"]["nodeName"] == name);
            let in_zone = view.pods.iter().filter(|pod| stays(pod) && pod["metadata"]["labels"][NODE_ZONE] == node.0);
            (in_zone.filter(|pod| pod["metadata"]["labels"]["pod-template-hash"] == set.hash).count(), here.count())
        };
        let listed = set.template["metadata"]["labels"][LABEL_ZONE].as_str().unwrap_or_default();
        let nodes = ZONES.iter().filter(|zone| listed.is_empty() || listed == **zone).flat_map(|zone| [(*zone, 1), (*zone, 2)]);
        let (zone, number) = nodes.min_by_key(crowd).expect("a zone with nodes");
        set.made += 1;
        let mut metadata = set.template["metadata"].clone();
        metadata["name"] = json!(format!("{}-{}-{}", spec.name, set.hash, set.made));
        metadata["namespace"] = json!("infra");
        metadata["labels"]["pod-template-hash"] = json!(set.hash);
        metadata["labels"][NODE_ZONE] = json!(zone);
        let owner = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": spec.name, "uid": spec.uid});
        let name = format!("{}-{}", spec.name, set.hash);
        let of_set = json!({"namespace": "infra", "name": name, "ownerReferences": [owner]});
        let replica_set = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": of_set});
        let uid = self.server.put(&replica_set).unwrap()["metadata"]["uid"].clone();
        // by the Deployment all that is of it is found here
        let set_owner = json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": uid, "controller": true});
        metadata["ownerReferences"] = json!([owner, set_owner]);
        // the containers of a pod are nobody's concern here
        let grace = &set.template["spec"]["terminationGracePeriodSeconds"];
        let pod = json!({"nodeName": format!("node-{zone}-{number}"), "terminationGracePeriodSeconds": grace});
        let ready = json!({"type": "Ready", "status": "False", "lastTransitionTime": time(self.start)});
        let status = json!({"phase": "Running", "conditions": [ready]});
        self.server.put(&json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod, "status": status})).unwrap();
    }

    /// `ActivePodsWithRanks`: which go first.
    fn take(&mut self, spec: &Spec, mut mine: Vec<Value>, number: usize, cause: Cause) {
        let nodes: Vec<Value> = self.view().pods.iter().filter(|pod| stays(pod)).map(|pod| pod["spec"]["nodeName"].clone()).collect();
        mine.sort_by_key(|pod| {
            let metadata = &pod["metadata"];
            let cost: i64 = metadata["annotations"][DELETION_COST].as_str().map_or(0, |cost| cost.parse().unwrap());
            let beside = nodes.iter().filter(|node| **node == pod["spec"]["nodeName"]).count();
            let since = ready_since(pod).map(|since| -since.as_second());
            (since.is_some(), cost, -i64::try_from(beside).unwrap(), since, text(&metadata["name"]))
        });
        for pod in mine.iter().take(number) {
            let name = text(&pod["metadata"]["name"]);
            let view = self.view();
            self.onlooker.takes(&view, pod, &spec.name, cause);
            self.server.delete("v1", "Pod", "infra", &name, "Background").unwrap();
        }
    }

    fn kubelets(&mut self) {
        let view = self.view();
        let names: BTreeSet<String> = view.pods.iter().map(|pod| text(&pod["metadata"]["name"])).collect();
        self.starts.retain(|name, _| names.contains(name));
        self.ends.retain(|name, _| names.contains(name));
        for pod in view.pods.iter().filter(|pod| pod["metadata"]["labels"][LABEL_FLEET] == "edge") {
            let name = text(&pod["metadata"]["name"]);
            let later = |seconds: u64| Instant::now() + Duration::from_secs(seconds);
            if !stays(pod) {
                let end = *self.ends.entry(name.clone()).or_insert_with(|| later(drawn(&name, 2, 2)));
                if Instant::now() >= end {
                    self.server.remove("v1", "Pod", "infra", &name);
                } else {
                    self.wait_until(end);
                }
                continue;
            }
            let start = *self.starts.entry(name.clone()).or_insert_with(|| later(drawn(&name, 1, 1)));
            if Instant::now() < start {
                self.wait_until(start);
            }
            let is_bad = pod["metadata"]["annotations"][VERSION].as_str().is_some_and(|version| version.starts_with(BAD));
            let is_out = view.deployments.iter().any(|deployment| is_drained(pod, deployment));
            let is_ready = Instant::now() >= start && !is_bad && !is_out;
            if is_ready != ready_since(pod).is_some() {
                self.turn(&name, is_ready);
            }
        }
    }

    fn turn(&self, name: &str, is_ready: bool) {
        let status = if is_ready { "True" } else { "False" };
        let ready = json!({"type": "Ready", "status": status, "lastTransitionTime": time(self.start)});
        let pod =
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "infra", "name": name}, "status": {"conditions": [ready]}});
        self.server.put(&pod).unwrap();
    }
}

/// While it is paused or was scaled: all `ReplicaSet`s in proportion.
fn scale(spec: &Spec, sets: &mut Sets, pods: i64) {
    let active: Vec<usize> = (0..sets.len()).filter(|index| sets[*index].size > 0).collect();
    let new = sets.iter().position(|set| set.hash == spec.hash);
    let only = match active[..] {
        [] => new.or_else(|| sets.len().checked_sub(1)),
        [only] => Some(only),
        _ => None,
    };
    if let Some(only) = only {
        if sets[only].size != spec.replicas {
            sets[only].scale(spec, spec.replicas);
        }
        return;
    }
    if active.is_empty() {
        return;
    }
    let is_saturated = |set: &Set| [set.desired, set.size, set.available] == [spec.replicas; 3];
    if new.is_some_and(|new| is_saturated(&sets[new])) {
        sets.iter_mut().filter(|set| set.hash != spec.hash && set.size > 0).for_each(|set| _ = set.scale(spec, 0));
        return;
    }
    let allowed = if spec.replicas > 0 { spec.most() } else { 0 };
    let to_add = allowed - sets.iter().map(|set| set.size).sum::<i64>();
    let mut order = active;
    // the largest first; of equal ones the newer grows first, the older shrinks first
    order.sort_by_key(|index| {
        let age = i64::try_from(*index).unwrap();
        (-sets[*index].size, if to_add > 0 { -age } else { age })
    });
    let mut added = 0;
    let mut sizes = Map::new();
    for index in &order {
        let more = sets[*index].proportion(spec, to_add, added, pods);
        sizes.insert(sets[*index].hash.clone(), json!(sets[*index].size + more));
        added += more;
    }
    for (place, index) in order.iter().enumerate() {
        let rest = if place == 0 { to_add - added } else { 0 };
        let size = (number(&sizes[&sets[*index].hash]) + rest).max(0);
        sets[*index].scale(spec, size);
    }
}

/// `rolloutRolling`: either the new `ReplicaSet` grows, or the old ones shrink.
fn roll(spec: &Spec, sets: &mut Sets, status: &mut Status, now: &str) {
    let total = |sets: &Sets| sets.iter().map(|set| set.size).sum::<i64>();
    let grown = |size: i64, total: i64| {
        if total >= spec.most() { size } else { size + (spec.most() - total).min(spec.replicas - size) }
    };
    let new = sets.iter().position(|set| set.hash == spec.hash);
    if new.is_some() && status.progress().is_none() {
        status.set(("Progressing", "True", "FoundNewReplicaSet"), now);
    }
    let new = new.unwrap_or_else(|| {
        let (hash, template, size) = (spec.hash.clone(), spec.template.clone(), grown(0, total(sets)));
        let (desired, most) = (spec.replicas, spec.most());
        sets.push(Set { hash, template, size, desired, most, pods: 0, ready: 0, available: 0, made: 0 });
        status.set(("Progressing", "True", "NewReplicaSetCreated"), now);
        sets.len() - 1
    });
    let size = sets[new].size;
    if size > spec.replicas {
        sets[new].scale(spec, spec.replicas);
        return;
    }
    if size < spec.replicas && {
        let size = grown(size, total(sets));
        sets[new].scale(spec, size)
    } {
        return;
    }
    shrink(spec, sets, new);
}

/// `reconcileOldReplicaSets`: those that are not available first.
fn shrink(spec: &Spec, sets: &mut Sets, new: usize) {
    let old: Vec<usize> = (0..sets.len()).filter(|index| *index != new && sets[*index].size > 0).collect();
    let total: i64 = sets.iter().map(|set| set.size).sum();
    let mut fewer = total - spec.least() - (sets[new].size - sets[new].available);
    if old.is_empty() || fewer <= 0 {
        return;
    }
    for index in &old {
        let broken = (sets[*index].size - sets[*index].available).min(fewer).max(0);
        if broken > 0 {
            let size = sets[*index].size - broken;
            sets[*index].scale(spec, size);
            fewer -= broken;
        }
    }
    let available: i64 = sets.iter().map(|set| set.available).sum();
    let mut fewer = available - spec.least();
    for index in &old {
        let taken = sets[*index].size.min(fewer).max(0);
        if taken > 0 {
            let size = sets[*index].size - taken;
            sets[*index].scale(spec, size);
            fewer -= taken;
        }
    }
}
