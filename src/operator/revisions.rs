//! The last revisions of every fleet, kept as Secrets beside it: a bundle may hold headers and error pages that are
//! nobody else's matter. Written by the replica that leads, once all pods have a revision, and read by all.
//!
//! A revision has the number that the status of its fleet gives it, so it is kept once that says it.

use super::serving::{Kept, Revisions, no_way_back, too_large};
use super::stage::{FleetView, Input, Translated};
use crate::delivery::packed::{Unreadable, pack, unpack};
use crate::fleet::apply::FleetKey;
use crate::fleet::build::{LABEL_FLEET, Names};
use crate::fleet::controller::States;
use crate::haproxy::bundle::Digest;
use crate::haproxy::revision::Record;
use crate::model::FleetId;
use crate::report::Diagnostic;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// How many are kept.
const LAST: usize = 20;
/// The least time between two writes for one fleet.
const INTERVAL: Duration = Duration::from_secs(5);
/// What failed is tried again after this long.
const RETRY: Duration = Duration::from_secs(2);
/// The API server takes no Secret that holds more than a mebibyte.
const LARGEST: usize = 1 << 20;
/// Its own field manager: what the controller of fleets has not written it does not remove.
const MANAGER: &str = "haproxy-fleet-revisions";
/// The type of these Secrets: nobody who looks for certificates has to read them.
const TYPE: &str = "haproxy-fleet.dev/revision";
/// The label with the number, and the annotation with the identity.
pub(crate) const NUMBER: &str = "haproxy-fleet.dev/revision";
pub(crate) const DIGEST: &str = "haproxy-fleet.dev/revision-digest";
/// What it is called in the Secret.
const BUNDLE: &str = "bundle.zst";

/// What is told.
pub(super) struct Sources {
    pub(super) translated: watch::Receiver<Arc<Translated>>,
    pub(super) states: watch::Receiver<Arc<States>>,
    pub(super) leads: Box<dyn Fn() -> bool + Send + Sync>,
}

/// What is known of the revisions of one fleet.
#[derive(Default)]
struct Book {
    revisions: Option<Revisions>,
    /// What was tried last, and may be tried again from then on.
    due: Option<Instant>,
    /// What is too large to be kept.
    too_large: Option<Digest>,
}

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Api(#[from] kube::Error),
    #[error("it cannot be packed: {0}")]
    Pack(#[from] std::io::Error),
    #[error("a task died: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// Keeps revisions, and gets those that fleets are to go back to.
pub(super) async fn keep(client: Client, mut sources: Sources, inputs: mpsc::Sender<Input>) {
    let mut keeper = Keeper { client, inputs, books: BTreeMap::new(), led: false };
    loop {
        let (translated, states) = (sources.translated.borrow_and_update().clone(), sources.states.borrow_and_update().clone());
        let leads = (sources.leads)();
        if translated.whole {
            keeper.pass(&translated, &states, leads).await;
        }
        let due = keeper.books.values().filter_map(|book| book.due).min();
        tokio::select! {
            changed = sources.translated.changed() => if changed.is_err() { return },
            changed = sources.states.changed() => if changed.is_err() { return },
            () = async { tokio::time::sleep_until(due.unwrap_or_else(Instant::now)).await }, if due.is_some() => {}
        }
    }
}

struct Keeper {
    client: Client,
    inputs: mpsc::Sender<Input>,
    books: BTreeMap<FleetId, Book>,
    led: bool,
}

impl Keeper {
    async fn pass(&mut self, translated: &Translated, states: &States, leads: bool) {
        if std::mem::replace(&mut self.led, leads) != leads {
            // somebody else may have kept some meanwhile
            self.books.clear();
        }
        let is_there = |fleet: &FleetId| translated.fleets.contains_key(fleet) || translated.rollbacks.contains_key(fleet);
        self.books.retain(|fleet, _| is_there(fleet));
        let fleets: Vec<FleetId> = translated.fleets.keys().chain(translated.rollbacks.keys()).cloned().collect();
        let now = Instant::now();
        for fleet in fleets {
            let book = self.books.entry(fleet.clone()).or_default();
            if book.due.take_if(|due| *due <= now).is_none() && book.due.is_some() {
                continue;
            }
            let outcome = match translated.rollbacks.get(&fleet) {
                Some(wanted) => self.get(&fleet, wanted).await,
                None => self.follow(&fleet, translated.fleets.get(&fleet), states, leads).await,
            };
            if let Err(error) = outcome {
                tracing::warn!(%fleet, %error, "the revisions of a fleet cannot be kept or read; trying again");
                self.books.entry(fleet).or_default().due = Some(Instant::now() + RETRY);
            }
        }
    }

    async fn follow(&mut self, fleet: &FleetId, view: Option<&FleetView>, states: &States, leads: bool) -> Result<(), Failure> {
        if self.books.get(fleet).is_none_or(|book| book.revisions.is_none()) {
            self.list(fleet).await?;
        }
        let Some(keep) = view.and_then(|view| view.keep.as_ref()).filter(|_| leads) else { return Ok(()) };
        let key = FleetKey { namespace: fleet.namespace.to_string(), name: fleet.name.to_string() };
        let Some(object) = states.get(&key).filter(|state| state.deletion.is_none()).and_then(|state| state.fleet.as_ref()) else {
            return Ok(());
        };
        match numbered(object, keep.digest) {
            Some(number) => self.write(fleet, number, keep, object).await,
            // its status says it soon
            None => Ok(()),
        }
    }

    async fn list(&mut self, fleet: &FleetId) -> Result<(), Failure> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &fleet.namespace);
        let selector = format!("{NUMBER},{LABEL_FLEET}={}", fleet.name);
        let found = api.list_metadata(&ListParams::default().labels(&selector)).await?;
        let one = |secret: &kube::core::PartialObjectMeta<Secret>| {
            let number = secret.metadata.labels.as_ref()?.get(NUMBER)?.parse().ok()?;
            let digest = u128::from_str_radix(secret.metadata.annotations.as_ref()?.get(DIGEST)?, 16).ok()?;
            Some((number, Digest(digest)))
        };
        self.know(fleet, found.items.iter().filter_map(one).collect()).await;
        Ok(())
    }

    async fn know(&mut self, fleet: &FleetId, revisions: Revisions) {
        self.books.entry(fleet.clone()).or_default().revisions = Some(revisions.clone());
        // nobody takes it when the operator ends
        let _ = self.inputs.send(Input::Revisions(fleet.clone(), revisions, None)).await;
    }

    async fn write(&mut self, fleet: &FleetId, number: u64, keep: &Kept, object: &Value) -> Result<(), Failure> {
        let book = self.books.entry(fleet.clone()).or_default();
        let mut revisions = book.revisions.clone().unwrap_or_default();
        if revisions.get(&number) == Some(&keep.digest) || book.too_large == Some(keep.digest) {
            return Ok(());
        }
        let resources = keep.resources.clone();
        let bytes = tokio::task::spawn_blocking(move || pack(&resources)).await??;
        if bytes.len() + 1024 > LARGEST {
            book.too_large = Some(keep.digest);
            let why = Box::new(too_large(fleet, number, bytes.len()));
            let _ = self.inputs.send(Input::Revisions(fleet.clone(), revisions, Some(why))).await;
            return Ok(());
        }
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &fleet.namespace);
        let secret = secret(fleet, number, keep.digest, bytes, object);
        let name = secret["metadata"]["name"].as_str().unwrap_or_default();
        api.patch(name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&secret)).await?;
        revisions.insert(number, keep.digest);
        while revisions.len() > LAST {
            let Some((oldest, _)) = revisions.pop_first() else { break };
            match api.delete(&named(fleet, oldest), &DeleteParams::default()).await {
                Ok(_) => {}
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.know(fleet, revisions).await;
        self.books.entry(fleet.clone()).or_default().due = Some(Instant::now() + INTERVAL);
        Ok(())
    }

    /// Gets the revision that a fleet is to go back to.
    async fn get(&mut self, fleet: &FleetId, wanted: &Arc<str>) -> Result<(), Failure> {
        self.list(fleet).await?;
        let known = self.books.get(fleet).and_then(|book| book.revisions.clone()).unwrap_or_default();
        let found = match wanted.parse::<u64>().ok().and_then(|number| Some((number, *known.get(&number)?))) {
            Some((number, digest)) => {
                let api: Api<Secret> = Api::namespaced(self.client.clone(), &fleet.namespace);
                match api.get_opt(&named(fleet, number)).await? {
                    Some(secret) => read(number, digest, &secret).map_err(|error| damaged(fleet, wanted, &error)),
                    None => Err(unknown(fleet, wanted, &known)),
                }
            }
            None => Err(unknown(fleet, wanted, &known)),
        };
        let found = found.map(Box::new).map_err(Box::new);
        let _ = self.inputs.send(Input::Record(fleet.clone(), wanted.clone(), found)).await;
        // until that is taken in
        self.books.entry(fleet.clone()).or_default().due = Some(Instant::now() + RETRY);
        Ok(())
    }
}

/// The revision `number` with the identity `digest` that `secret` keeps.
pub(crate) fn read(number: u64, digest: Digest, secret: &Secret) -> Result<Record, Unreadable> {
    let bytes = secret.data.as_ref().and_then(|data| data.get(BUNDLE)).map(|bytes| bytes.0.as_slice()).unwrap_or_default();
    unpack(number, digest, bytes)
}

fn damaged(fleet: &FleetId, wanted: &str, error: &Unreadable) -> Diagnostic {
    no_way_back(fleet, wanted, &error.to_string(), "choose another one, or remove the annotation")
}

fn unknown(fleet: &FleetId, wanted: &str, known: &Revisions) -> Diagnostic {
    let numbers: Vec<String> = known.keys().map(ToString::to_string).collect();
    let help = if numbers.is_empty() {
        "none was kept so far: a revision is kept once all pods have it".to_owned()
    } else {
        format!("choose one of {}, or remove the annotation", numbers.join(", "))
    };
    no_way_back(fleet, wanted, "it is not kept", help)
}

/// The number that the status of a fleet gives the revision `digest`.
fn numbered(fleet: &Value, digest: Digest) -> Option<u64> {
    let status = &fleet["status"];
    let is_said = status["revisionDigest"].as_str() == Some(&digest.to_string());
    status["revision"].as_u64().filter(|_| is_said)
}

fn named(fleet: &FleetId, number: u64) -> String {
    format!("{}-revision-{number}", fleet.name)
}

fn secret(fleet: &FleetId, number: u64, digest: Digest, bytes: Vec<u8>, object: &Value) -> Value {
    let mut labels = Names { namespace: &fleet.namespace, fleet: &fleet.name }.labels();
    labels[NUMBER] = json!(number.to_string());
    let owner = json!({
        "apiVersion": crate::api::API_VERSION, "kind": "IngressDeployment", "name": *fleet.name, "uid": object["metadata"]["uid"],
        "controller": true,
    });
    json!({
        "apiVersion": "v1", "kind": "Secret", "type": TYPE,
        "metadata": {
            "name": named(fleet, number), "namespace": *fleet.namespace, "labels": labels,
            "annotations": {DIGEST: digest.to_string()}, "ownerReferences": [owner],
        },
        "data": {BUNDLE: k8s_openapi::ByteString(bytes)},
    })
}
