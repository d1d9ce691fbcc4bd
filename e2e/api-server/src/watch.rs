//! Watches: one line of JSON a change.
//!
//! Sources: "Efficient detection of changes" and "Streaming lists" of the API concepts in the Kubernetes documentation;
//! `k8s.io/apiserver/pkg/endpoints/handlers/watch.go`.

use crate::ApiServer;
use crate::call::Call;
use crate::failure::Failure;
use crate::kinds::Kind;
use crate::selector::Selector;
use crate::service::{Answer, selector};
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tower::BoxError;

/// How often a watcher is told how far it is when nothing changes.
const BOOKMARKS: Duration = Duration::from_secs(60);
/// How long a watch lasts when the client does not say.
const LONGEST: Duration = Duration::from_secs(30 * 60);

struct Watch {
    server: ApiServer,
    kind: Kind,
    namespace: String,
    selector: Selector,
    /// Up to here the client has seen everything.
    version: u64,
    lines: VecDeque<Value>,
    bookmark: Option<Instant>,
    end: Instant,
    changed: watch::Receiver<u64>,
    is_over: bool,
}

pub(crate) fn watch(server: &ApiServer, call: &Call, kind: Kind) -> Result<Answer, Failure> {
    let selector = selector(call)?;
    let asked = call.parameter("resourceVersion");
    let streams = call.parameter("sendInitialEvents") == "true";
    if streams && call.parameter("resourceVersionMatch") != "NotOlderThan" {
        let why = "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: sendInitialEvents requires setting \
                   resourceVersionMatch to NotOlderThan";
        return Err(Failure::new(422, "Invalid", why));
    }
    let bookmarks = call.parameter("allowWatchBookmarks") == "true";
    let lasts = call.parameter("timeoutSeconds").parse().map_or(LONGEST, Duration::from_secs);
    let now = Instant::now();
    let (changed, version, mut lines) = server.with(|world| {
        let initial: VecDeque<Value> = if streams || asked.is_empty() || asked == "0" {
            world.select(&kind, &call.namespace, &selector).map(|(_, object)| json!({"type": "ADDED", "object": object})).collect()
        } else {
            VecDeque::new()
        };
        (world.changed.subscribe(), world.version(), initial)
    });
    let version = if streams || asked.is_empty() || asked == "0" {
        version
    } else {
        asked.parse().map_err(|_| Failure::bad_request(format!("invalid resource version {asked:?}")))?
    };
    if streams && bookmarks {
        let mut line = bookmark(&kind, version);
        line["object"]["metadata"]["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        lines.push_back(line);
    }
    let watch = Watch {
        server: server.clone(),
        namespace: call.namespace.clone(),
        selector,
        version,
        lines,
        bookmark: bookmarks.then(|| now + BOOKMARKS),
        end: now + lasts,
        changed,
        is_over: false,
        kind,
    };
    let lines = stream::unfold(watch, |mut watch| async move {
        let line = watch.next().await?;
        let frame = http_body::Frame::data(bytes::Bytes::from(format!("{line}\n")));
        Some((Ok::<_, BoxError>(frame), watch))
    });
    Ok(Answer::stream(StreamBody::new(lines).boxed_unsync()))
}

fn bookmark(kind: &Kind, version: u64) -> Value {
    json!({"type": "BOOKMARK", "object": {
        "apiVersion": kind.api_version, "kind": kind.kind, "metadata": {"resourceVersion": version.to_string(), "creationTimestamp": null},
    }})
}

impl Watch {
    async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(line) = self.lines.pop_front() {
                return Some(line);
            }
            if self.is_over {
                return None;
            }
            self.read();
            if !self.lines.is_empty() {
                continue;
            }
            let wake = self.bookmark.map_or(self.end, |at| at.min(self.end));
            tokio::select! {
                biased;
                changed = self.changed.changed() => changed.ok()?,
                () = tokio::time::sleep_until(wake) => self.on_time(),
            }
        }
    }

    fn read(&mut self) {
        self.changed.mark_unchanged();
        let (server, version) = (self.server.clone(), self.version);
        let (seen, now) = server.with(|world| (world.since(version, &self.kind, &self.namespace, &self.selector), world.version()));
        match seen {
            Ok(changes) => {
                self.version = now;
                self.lines.extend(changes.into_iter().map(|(what, object)| json!({"type": what, "object": object})));
            }
            Err(failure) => {
                self.lines.push_back(json!({"type": "ERROR", "object": failure.to_json()}));
                self.is_over = true;
            }
        }
    }

    fn on_time(&mut self) {
        let now = Instant::now();
        if let Some(at) = self.bookmark
            && at <= now
        {
            self.lines.push_back(bookmark(&self.kind, self.version));
            self.bookmark = Some(now + BOOKMARKS);
        }
        self.is_over |= self.end <= now;
    }
}
