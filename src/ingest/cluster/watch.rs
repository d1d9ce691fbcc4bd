//! One watch: it lists, follows, and starts again when it has to.

use super::SeenBackend;
use super::source::{Raw, Resource, Source};
use crate::api::backend::BackendStatus;
use crate::ingest::object::{self, Read, json};
use crate::report::{Kind, ObjectRef, with_causes};
use futures::StreamExt;
use kube::runtime::watcher::{self, Event, InitialListStrategy, watcher};
use kube::{Api, Client, ResourceExt};
use serde::Deserialize;
use serde_json::Value;
use std::time::Duration;
use tokio::sync::mpsc;

/// A connection that says nothing for this long (and 5 s more) is taken for dead, and asked for anew. The server is told
/// to end it then, so that a live one ends in time.
const WATCH_SECONDS: u32 = 55;
/// Bytes of one object, as texts: what etcd holds is smaller.
const OBJECT_BYTES: usize = 2_000_000;
/// The pause after a failure, and after several.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// Failures in a row that are not worth a word.
const HICCUPS: u32 = 2;
/// Where it worked before, so many refusals in a row are doubted, and asked about again after so long: an API server that
/// has just started knows neither custom resources nor who may what for a moment.
const DOUBTS: u32 = 15;
const DOUBT_AGAIN: Duration = Duration::from_secs(1);
/// How often somebody who was turned away asks again, and how often an optional kind is looked for.
const ASK_AGAIN: Duration = Duration::from_secs(15);

/// What a watch tells.
#[derive(Debug)]
pub(super) enum News {
    /// Everything follows, up to [`News::Listed`].
    Listing,
    /// What is not among what was found since [`News::Listing`] is gone.
    Listed,
    /// An object is there.
    Found(Box<Found>),
    /// An object is gone.
    Gone(ObjectRef),
    /// The cluster has no such kind.
    Absent,
    /// We may not.
    Forbidden(String),
    /// It did not work, and is tried again.
    Failed(String),
}

/// An object that is there.
#[derive(Debug)]
pub(super) struct Found {
    /// What it is.
    pub(super) read: Read,
    /// Where its status says that clients connect to: that of an Ingress, nothing for others.
    pub(super) addresses: Box<[Box<str>]>,
    /// What it says of itself, if it is a `Backend` of ours.
    pub(super) backend: Option<Box<SeenBackend>>,
}

/// Why a watch does not go on.
enum Stopped {
    /// It is to start from the beginning, with lists if the server cannot stream them.
    Again,
    /// Nobody listens any more.
    Unheard,
}

/// Follows `source` until nobody listens any more.
pub(super) async fn follow(client: Client, source: Source, news: mpsc::Sender<(Source, News)>) {
    let mut watch = Watch { client, source, news, strategy: InitialListStrategy::StreamingList, failures: 0, was_listed: false };
    while matches!(watch.run().await, Stopped::Again) {}
}

struct Watch {
    client: Client,
    source: Source,
    news: mpsc::Sender<(Source, News)>,
    strategy: InitialListStrategy,
    failures: u32,
    was_listed: bool,
}

impl Watch {
    async fn run(&mut self) -> Stopped {
        let resource = self.source.resource.api_resource();
        let api: Api<Raw> = match &self.source.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        let mut stream = watcher(api, self.config()).boxed();
        while let Some(event) = stream.next().await {
            let outcome = match event {
                Ok(event) => {
                    self.failures = 0;
                    self.was_listed |= matches!(event, Event::InitDone);
                    self.say(self.news_of(event)).await
                }
                Err(error) => self.fail(&error).await,
            };
            if let Err(stopped) = outcome {
                return stopped;
            }
        }
        Stopped::Again
    }

    fn config(&self) -> watcher::Config {
        let (fields, labels) = self.source.resource.selectors();
        watcher::Config {
            field_selector: fields.map(str::to_owned),
            label_selector: labels.map(str::to_owned),
            initial_list_strategy: self.strategy.clone(),
            ..watcher::Config::default().timeout(WATCH_SECONDS)
        }
    }

    async fn say(&self, news: News) -> Result<(), Stopped> {
        self.news.send((self.source.clone(), news)).await.map_err(|_| Stopped::Unheard)
    }

    fn news_of(&self, event: Event<Raw>) -> News {
        match event {
            Event::Init => News::Listing,
            Event::InitDone => News::Listed,
            Event::Apply(raw) | Event::InitApply(raw) => News::Found(Box::new(found(self.source.resource, &raw.value))),
            Event::Delete(raw) => News::Gone(reference(self.source.resource, &raw)),
        }
    }

    /// Tells why it did not work, and waits before it is tried again.
    async fn fail(&mut self, error: &watcher::Error) -> Result<(), Stopped> {
        let code = code(error);
        let streams = self.strategy == InitialListStrategy::StreamingList;
        let starts = matches!(error, watcher::Error::WatchStartFailed(_));
        match code {
            // servers before 1.32 know no such parameter, later ones may have it switched off
            Some(400 | 422) if streams && starts => {
                self.strategy = InitialListStrategy::ListWatch;
                return Err(Stopped::Again);
            }
            Some(401 | 403 | 404) => {
                self.failures = self.failures.saturating_add(1);
                let lasts = !self.was_listed || self.failures > DOUBTS;
                if lasts {
                    let forbidden = || News::Forbidden(with_causes(error));
                    self.say(if code == Some(404) { News::Absent } else { forbidden() }).await?;
                }
                self.pause(if lasts { ASK_AGAIN } else { DOUBT_AGAIN }).await?;
                return Err(Stopped::Again);
            }
            // the watcher itself starts from the beginning only when this comes later
            Some(410) if starts => return Err(Stopped::Again),
            _ => {
                let doubled = PAUSE.0.saturating_mul(1 << self.failures.min(6));
                self.failures = self.failures.saturating_add(1);
                let lasts = self.failures > HICCUPS;
                if lasts {
                    self.say(News::Failed(with_causes(error))).await?;
                }
                self.pause(doubled.min(PAUSE.1)).await?;
                if lasts {
                    // where a watch goes on, nothing says that it does; where it starts anew, its list does
                    return Err(Stopped::Again);
                }
            }
        }
        Ok(())
    }

    /// Waits for about `time`: not all at the same moment.
    async fn pause(&self, time: Duration) -> Result<(), Stopped> {
        let jitter = f64::from(crate::ingest::cluster::random() % 1024) / 1024.0;
        tokio::select! {
            () = tokio::time::sleep(time.mul_f64(0.75 + jitter / 2.0)) => Ok(()),
            () = self.news.closed() => Err(Stopped::Unheard),
        }
    }
}

/// What the object `value` of this kind is.
pub(super) fn found(resource: Resource, value: &Value) -> Found {
    let (api_version, kind, _) = resource.names();
    let read = object::read(&json::object(value, api_version, kind), OBJECT_BYTES);
    let points = value.pointer("/status/loadBalancer/ingress").filter(|_| resource == Resource::Ingresses);
    let text = |point: &Value| point.get("ip").or_else(|| point.get("hostname"))?.as_str().map(Box::from);
    let addresses = points.and_then(Value::as_array).into_iter().flatten().filter_map(text).collect();
    let backend = (resource == Resource::Backends).then(|| Box::new(seen_backend(value)));
    Found { read, addresses, backend }
}

fn seen_backend(value: &Value) -> SeenBackend {
    let text = |path: &str| value.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
    SeenBackend {
        uid: text("/metadata/uid"),
        generation: value.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(0),
        // one that cannot be read is written anew
        status: value.get("status").and_then(|status| BackendStatus::deserialize(status).ok()).unwrap_or_default(),
    }
}

fn reference(resource: Resource, raw: &Raw) -> ObjectRef {
    ObjectRef::new(resource.kind(), raw.namespace().unwrap_or_default(), raw.name_any())
}

/// The HTTP status that the server answered with, if it did.
fn code(error: &watcher::Error) -> Option<u16> {
    let (watcher::Error::WatchError(status)
    | watcher::Error::InitialListFailed(kube::Error::Api(status))
    | watcher::Error::WatchStartFailed(kube::Error::Api(status))
    | watcher::Error::WatchFailed(kube::Error::Api(status))) = error
    else {
        return None;
    };
    Some(status.code)
}

impl Resource {
    /// As reports name it.
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::IngressDeployments => Kind::IngressDeployment,
            Self::Backends | Self::HaproxyOrgBackends => Kind::Backend,
            Self::IngressClasses => Kind::IngressClass,
            Self::GatewayClasses => Kind::GatewayClass,
            Self::Namespaces => Kind::Namespace,
            Self::Ingresses => Kind::Ingress,
            Self::Services => Kind::Service,
            Self::EndpointSlices => Kind::EndpointSlice,
            Self::Secrets => Kind::Secret,
            Self::ConfigMaps => Kind::ConfigMap,
        }
    }
}
