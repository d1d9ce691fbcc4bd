//! What people ask of a fleet, and how it is answered.

use crate::status::json::{Revision, Status};
use axum::body::Bytes;
use axum::extract::{ConnectInfo, Path, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot, watch};

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Order {
    /// The rollout stops where it is.
    Pause,
    /// It goes on.
    Resume,
    /// Its template is given up for the one before.
    Abort,
    /// All pods are replaced.
    Restart,
    /// Clients are led away from pods, which stay.
    Drain {
        /// Which.
        target: Target,
        /// Whatever else is the case.
        force: bool,
    },
    /// They are led back.
    Undrain(Target),
    /// Sections, backends and routes become those of this revision; `None`: those that are asked for now.
    Rollback(Option<u64>),
}

/// Pods, by what they have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// One, by its name.
    Pod(String),
    /// Those of a zone.
    Zone(String),
    /// Those on a node of a cluster.
    Node(String),
}

/// An order for a fleet.
#[derive(Debug)]
pub struct Ordered {
    /// The namespace of the fleet.
    pub namespace: String,
    /// Its name.
    pub fleet: String,
    /// What is asked.
    pub order: Order,
    /// Where the answer goes.
    pub answer: oneshot::Sender<Result<Done, Refusal>>,
}

/// Where orders go.
pub type Orders = mpsc::Sender<Ordered>;

/// An order that was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// What happens now.
    pub message: String,
}

/// An order that was not taken. Nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// What is wrong with it.
    #[serde(skip)]
    pub kind: RefusalKind,
    /// Which object, and why not.
    pub error: String,
    /// What to do about it.
    pub help: String,
}

/// What is wrong with an order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RefusalKind {
    /// It says nothing that can be understood.
    Invalid,
    /// What it is about does not exist.
    NotFound,
    /// It cannot be done as things are.
    #[default]
    Conflict,
}

/// The body of drains and their contrary, as it is sent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainBody {
    /// The name of a pod.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,
    /// Or that of a zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// Or that of a node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Whatever else is the case.
    #[serde(default)]
    pub force: bool,
}

/// The body of going back, as it is sent: a revision, or the present.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct RollbackBody {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    present: bool,
}

impl Order {
    /// Where it is sent to, below the path of its fleet.
    pub fn path(&self) -> &'static str {
        match self {
            Self::Pause => "rollout/pause",
            Self::Resume => "rollout/resume",
            Self::Abort => "rollout/abort",
            Self::Restart => "rollout/restart",
            Self::Drain { .. } => "drain",
            Self::Undrain(_) => "undrain",
            Self::Rollback(_) => "rollback",
        }
    }

    /// What is sent there.
    pub fn body(&self) -> Option<Value> {
        match self {
            Self::Drain { target, force } => Some(json!(DrainBody::of(target, *force))),
            Self::Undrain(target) => Some(json!(DrainBody::of(target, false))),
            Self::Rollback(revision) => Some(json!(RollbackBody { revision: *revision, present: revision.is_none() })),
            _ => None,
        }
    }

    /// The order that was sent to `path` with `body`; none if nothing is ordered there.
    pub fn read(path: &str, body: &[u8]) -> Option<Result<Self, Refusal>> {
        Some(match path {
            "rollout/pause" => Ok(Self::Pause),
            "rollout/resume" => Ok(Self::Resume),
            "rollout/abort" => Ok(Self::Abort),
            "rollout/restart" => Ok(Self::Restart),
            "drain" => DrainBody::read(body).map(|(target, force)| Self::Drain { target, force }),
            "undrain" => DrainBody::read(body).map(|(target, _)| Self::Undrain(target)),
            "rollback" => RollbackBody::read(body).map(Self::Rollback),
            _ => return None,
        })
    }
}

impl DrainBody {
    fn of(target: &Target, force: bool) -> Self {
        match target {
            Target::Pod(name) => Self { pod: Some(name.clone()), force, ..Self::default() },
            Target::Zone(name) => Self { zone: Some(name.clone()), force, ..Self::default() },
            Target::Node(name) => Self { node: Some(name.clone()), force, ..Self::default() },
        }
    }

    fn read(body: &[u8]) -> Result<(Target, bool), Refusal> {
        let help = r#"send {"pod": NAME} or {"zone": NAME}, with "force": true to drain whatever else is the case"#;
        let invalid = |error| invalid(error, help);
        let read: Self = serde_json::from_slice(body).map_err(|error| invalid(format!("the body cannot be read: {error}")))?;
        match (read.pod, read.zone, read.node) {
            (Some(pod), None, None) => Ok((Target::Pod(pod), read.force)),
            (None, Some(zone), None) => Ok((Target::Zone(zone), read.force)),
            (None, None, Some(node)) => Ok((Target::Node(node), read.force)),
            _ => Err(invalid("the body names no pod, zone or node, or more than one of them".to_owned())),
        }
    }
}

impl RollbackBody {
    fn read(body: &[u8]) -> Result<Option<u64>, Refusal> {
        let invalid = |error| invalid(error, r#"send {"revision": NUMBER}, or {"present": true} for what is asked for now"#);
        let read: Self = serde_json::from_slice(body).map_err(|error| invalid(format!("the body cannot be read: {error}")))?;
        if read.revision.is_some() == read.present {
            return Err(invalid("the body names no revision and not the present, or both".to_owned()));
        }
        Ok(read.revision)
    }
}

fn invalid(error: String, help: &str) -> Refusal {
    Refusal { kind: RefusalKind::Invalid, error, help: help.to_owned() }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pod(name) => write!(f, "pod/{name}"),
            Self::Zone(name) => write!(f, "zone/{name}"),
            Self::Node(name) => write!(f, "node/{name}"),
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some(("pod", name)) if !name.is_empty() => Ok(Self::Pod(name.to_owned())),
            Some(("zone", name)) if !name.is_empty() => Ok(Self::Zone(name.to_owned())),
            Some(("node", name)) if !name.is_empty() => Ok(Self::Node(name.to_owned())),
            _ => Err(format!("{text:?} names no pods: write pod/NAME, zone/NAME or node/NAME")),
        }
    }
}

pub(super) fn router(orders: Orders, status: watch::Receiver<Arc<Status>>) -> Router {
    Router::new()
        .route("/fleets/{namespace}/{fleet}/{*order}", post(take))
        .route_layer(middleware::from_fn(only_by_people_here))
        .with_state(orders)
        .merge(Router::new().route("/fleets/{namespace}/{fleet}/history", get(history)).with_state(status))
}

/// The revisions that a fleet can go back to, the oldest first.
async fn history(
    State(status): State<watch::Receiver<Arc<Status>>>,
    Path((namespace, name)): Path<(String, String)>,
) -> Result<Json<Vec<Revision>>, Refusal> {
    let status = Arc::clone(&status.borrow());
    let found = status.fleets.iter().find(|fleet| fleet.namespace == namespace && fleet.name == name);
    found.map(|fleet| Json(fleet.revisions.clone())).ok_or_else(|| Refusal {
        kind: RefusalKind::NotFound,
        error: format!("there is no fleet {namespace}/{name}"),
        help: "see which there are: haproxy-fleet status".to_owned(),
    })
}

/// Orders change what serves: they are taken from who is on this machine, and not from pages that a browser shows there. So are
/// questions that others have no business with.
pub(super) async fn only_by_people_here(ConnectInfo(client): ConnectInfo<SocketAddr>, request: Request, next: Next) -> Response {
    let is_of_page = request.headers().contains_key(header::ORIGIN);
    if client.ip().to_canonical().is_loopback() && !is_of_page {
        return next.run(request).await;
    }
    let error = if is_of_page { "this is not for web pages" } else { "this is for who is on this machine only" };
    let refusal = Refusal { kind: RefusalKind::Conflict, error: error.to_owned(), help: "use haproxy-fleet on this machine".to_owned() };
    (StatusCode::FORBIDDEN, Json(refusal)).into_response()
}

async fn take(
    State(orders): State<Orders>,
    Path((namespace, fleet, path)): Path<(String, String, String)>,
    body: Bytes,
) -> Result<Json<Done>, Refusal> {
    let order = Order::read(&path, &body).unwrap_or_else(|| {
        Err(Refusal {
            kind: RefusalKind::NotFound,
            error: format!("nothing is ordered by {path}"),
            help: "use rollout/pause, rollout/resume, rollout/abort, rollout/restart, drain, undrain or rollback".to_owned(),
        })
    })?;
    let stops = || Refusal {
        kind: RefusalKind::Conflict,
        error: format!("fleet {namespace}/{fleet} takes no orders: everything is about to end"),
        help: "start it again".to_owned(),
    };
    let (answer, answered) = oneshot::channel();
    let ordered = Ordered { namespace: namespace.clone(), fleet: fleet.clone(), order, answer };
    orders.send(ordered).await.map_err(|_| stops())?;
    answered.await.map_err(|_| stops())?.map(Json)
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let code = match self.kind {
            RefusalKind::Invalid => StatusCode::BAD_REQUEST,
            RefusalKind::NotFound => StatusCode::NOT_FOUND,
            RefusalKind::Conflict => StatusCode::CONFLICT,
        };
        (code, Json(self)).into_response()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_sent_is_what_is_read() {
        let drain = |target, force| Order::Drain { target, force };
        for order in [
            Order::Pause,
            Order::Resume,
            Order::Abort,
            Order::Restart,
            drain(Target::Pod("a".into()), false),
            drain(Target::Zone("b".into()), true),
            Order::Undrain(Target::Zone("b".into())),
            Order::Rollback(Some(7)),
            Order::Rollback(None),
        ] {
            let body = order.body().map(|body| serde_json::to_vec(&body).unwrap()).unwrap_or_default();
            assert_eq!(Order::read(order.path(), &body).unwrap().unwrap(), order);
        }
        assert_eq!(Order::read("rollout/undo", b""), None);
    }

    #[test]
    fn a_body_that_names_nothing_or_too_much_is_refused_with_what_to_send() {
        for body in ["", "{}", r#"{"pod": "a", "zone": "b"}"#, r#"{"pod": "a", "forced": true}"#] {
            let refusal = Order::read("drain", body.as_bytes()).unwrap().unwrap_err();
            assert!(refusal.kind == RefusalKind::Invalid && refusal.help.contains(r#"{"zone": NAME}"#), "{body}: {refusal:?}");
        }
        for body in ["", "{}", r#"{"revision": 7, "present": true}"#, r#"{"present": false}"#, r#"{"revision": "7"}"#] {
            let refusal = Order::read("rollback", body.as_bytes()).unwrap().unwrap_err();
            assert!(refusal.kind == RefusalKind::Invalid && refusal.help.contains(r#"{"revision": NUMBER}"#), "{body}: {refusal:?}");
        }
    }

    #[test]
    fn a_target_is_written_as_it_is_read() {
        for text in ["pod/edge-0", "zone/a", "node/worker-3"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        for text in ["edge-0", "pod/", "rack/a"] {
            assert!(text.parse::<Target>().unwrap_err().contains("write pod/NAME, zone/NAME or node/NAME"));
        }
    }
}
