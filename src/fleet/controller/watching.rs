//! Watches of fleets and of what they are made of, and what these have told.

use super::FleetState;
use crate::fleet::apply::{FLEET, FleetKey, KINDS, MANAGED_BY, POD_MONITOR, api};
use futures::StreamExt;
use kube::Client;
use kube::core::DynamicObject;
use kube::runtime::{WatchStreamExt, watcher};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// A fleet that is affected by news.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Watched {
    pub(super) fleet: FleetKey,
    /// Whether what is asked for, or what was made of it, changed: else it is a matter of status only.
    pub(super) is_asked: bool,
}

/// What a watch told.
#[derive(Debug)]
pub(super) struct News {
    kind: &'static str,
    /// The watched namespace; empty: all.
    namespace: String,
    what: What,
}

#[derive(Debug)]
enum What {
    Is(Value),
    Gone(Value),
    /// All there is; what is not among it is gone.
    All(Vec<Value>),
}

const FLEETS: &str = "IngressDeployment";
const PODS: &str = "Pod";

/// Failures in a row that are not worth a word.
const HICCUPS: u32 = 2;

/// Tells once that a watch is lost, and once that it is back.
struct Loss {
    kind: &'static str,
    namespace: String,
    failures: u32,
}

impl Loss {
    fn failed(&mut self, error: &watcher::Error) {
        self.failures = self.failures.saturating_add(1);
        if self.failures == HICCUPS + 1 {
            let Self { kind, namespace, .. } = self;
            tracing::warn!(kind, namespace, %error, "what fleets are made of cannot be followed; trying again");
        } else {
            tracing::debug!(kind = self.kind, %error, "a watch has to begin again");
        }
    }

    fn works(&mut self) {
        if std::mem::take(&mut self.failures) > HICCUPS {
            tracing::info!(kind = self.kind, namespace = self.namespace, "what fleets are made of is followed again");
        }
    }
}

/// Starts a watch for each kind and namespace.
pub(super) fn start(client: &Client, namespaces: Option<&BTreeSet<String>>, news: &mpsc::Sender<News>, watches: &mut JoinSet<()>) {
    let fleets = (crate::api::API_VERSION, FLEETS, "ingressdeployments", true);
    let pods = ("v1", PODS, "pods", true);
    for (api_version, kind, plural, namespaced) in [fleets, pods].into_iter().chain(KINDS).filter(|(_, kind, ..)| *kind != POD_MONITOR) {
        let places = match namespaces {
            Some(namespaces) if namespaced => namespaces.iter().map(|namespace| Some(namespace.as_str())).collect(),
            _ => vec![None],
        };
        for namespace in places {
            let api = api(client, api_version, kind, plural, namespace);
            let ours = format!("{}={}", MANAGED_BY.0, MANAGED_BY.1);
            let config = if kind == FLEETS { watcher::Config::default() } else { watcher::Config::default().labels(&ours) };
            let (news, namespace) = (news.clone(), namespace.unwrap_or_default().to_owned());
            watches.spawn(follow(kind, namespace, watcher(api, config), news));
        }
    }
}

async fn follow(
    kind: &'static str,
    namespace: String,
    events: impl futures::Stream<Item = watcher::Result<watcher::Event<DynamicObject>>>,
    news: mpsc::Sender<News>,
) {
    let mut events = std::pin::pin!(events.default_backoff());
    let mut initial = Vec::new();
    let mut loss = Loss { kind, namespace: namespace.clone(), failures: 0 };
    while let Some(event) = events.next().await {
        // that a list begins says nothing: it is told before the server was asked
        if matches!(event, Ok(ref event) if !matches!(event, watcher::Event::Init)) {
            loss.works();
        }
        let what = match event {
            Ok(watcher::Event::Init) => {
                initial.clear();
                continue;
            }
            Ok(watcher::Event::InitApply(object)) => {
                initial.push(lean(&object));
                continue;
            }
            Ok(watcher::Event::InitDone) => What::All(std::mem::take(&mut initial)),
            Ok(watcher::Event::Apply(object)) => What::Is(lean(&object)),
            Ok(watcher::Event::Delete(object)) => What::Gone(lean(&object)),
            Err(error) => {
                loss.failed(&error);
                continue;
            }
        };
        if news.send(News { kind, namespace: namespace.clone(), what }).await.is_err() {
            return;
        }
    }
}

/// The object without what takes room and is never looked at here.
fn lean(object: &DynamicObject) -> Value {
    let mut object = json!(object);
    if object["kind"] == "Secret" || object["kind"] == "ConfigMap" {
        // that it changed is told by its version; what it holds is read when it matters
        object.as_object_mut().into_iter().for_each(|map| map.retain(|name, _| name == "kind" || name == "metadata"));
    }
    object["metadata"].as_object_mut().into_iter().for_each(|metadata| _ = metadata.remove("managedFields"));
    object
}

type Place = (String, String);

/// What all watches have told.
#[derive(Debug, Default)]
pub(super) struct Store(BTreeMap<&'static str, BTreeMap<Place, Arc<Value>>>);

impl Store {
    pub(super) fn has_fleet(&self, fleet: &FleetKey) -> bool {
        self.0.get(FLEETS).is_some_and(|fleets| fleets.contains_key(&(fleet.namespace.clone(), fleet.name.clone())))
    }

    /// Takes news in, and says which fleets they affect.
    pub(super) fn take(&mut self, News { kind, namespace, what }: News) -> Vec<Watched> {
        let objects = self.0.entry(kind).or_default();
        let mut affected = Vec::new();
        match what {
            What::Is(object) => affected.extend(put(kind, objects, object)),
            What::Gone(object) => affected.extend(take_out(kind, objects, &place(&object))),
            What::All(all) => {
                let there: BTreeSet<Place> = all.iter().map(place).collect();
                let is_meant = |place: &Place| namespace.is_empty() || place.0 == namespace;
                let gone: Vec<Place> = objects.keys().filter(|place| is_meant(place) && !there.contains(place)).cloned().collect();
                affected.extend(gone.iter().filter_map(|place| take_out(kind, objects, place)));
                affected.extend(all.into_iter().filter_map(|object| put(kind, objects, object)));
            }
        }
        affected
    }

    /// Puts what is there of a fleet into what is observed of it.
    pub(super) fn observe(&self, fleet: &FleetKey, state: &mut FleetState) {
        let place = (fleet.namespace.clone(), fleet.name.clone());
        state.fleet = self.0.get(FLEETS).and_then(|fleets| fleets.get(&place)).cloned();
        state.deployments = self.of("Deployment", fleet);
        state.services = self.of("Service", fleet);
        state.pods = self.of(PODS, fleet);
    }

    fn of(&self, kind: &str, fleet: &FleetKey) -> BTreeMap<String, Arc<Value>> {
        let start = (fleet.namespace.clone(), String::new());
        let objects = self.0.get(kind).into_iter().flat_map(|objects| objects.range(start.clone()..));
        let here = objects.take_while(|((namespace, _), _)| *namespace == fleet.namespace);
        let mine = here.filter(|(_, object)| object["metadata"]["labels"][FLEET] == fleet.name);
        mine.map(|((_, name), object)| (name.clone(), object.clone())).collect()
    }
}

fn put(kind: &str, objects: &mut BTreeMap<Place, Arc<Value>>, object: Value) -> Option<Watched> {
    let fleet = fleet_of(kind, &object);
    let before = objects.get(&place(&object));
    let is_asked = kind != PODS && before.is_none_or(|before| asked(kind, before) != asked(kind, &object));
    objects.insert(place(&object), Arc::new(object));
    fleet.map(|fleet| Watched { fleet, is_asked })
}

fn take_out(kind: &str, objects: &mut BTreeMap<Place, Arc<Value>>, place: &Place) -> Option<Watched> {
    let object = objects.remove(place)?;
    // a pod that is gone may be what a deletion waits for
    fleet_of(kind, &object).map(|fleet| Watched { fleet, is_asked: true })
}

fn place(object: &Value) -> Place {
    let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

fn fleet_of(kind: &str, object: &Value) -> Option<FleetKey> {
    let metadata = &object["metadata"];
    if kind == FLEETS {
        let (namespace, name) = place(object);
        return Some(FleetKey { namespace, name });
    }
    let name = metadata["labels"][FLEET].as_str()?.to_owned();
    let namespace = metadata["namespace"].as_str().or_else(|| metadata["labels"]["haproxy-fleet.dev/fleet-namespace"].as_str())?;
    Some(FleetKey { namespace: namespace.to_owned(), name })
}

/// An object without its status and, where its content is at hand, without its version.
fn asked(kind: &str, object: &Value) -> Map<String, Value> {
    let mut object = object.as_object().cloned().unwrap_or_default();
    object.remove("status");
    let has_content = kind != "Secret" && kind != "ConfigMap";
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut).filter(|_| has_content) {
        metadata.remove("resourceVersion");
    }
    object
}
