//! Faults between a kube client and its API server, by plan or at a moment that the test chooses.
//!
//! ```text
//! Client::new(ServiceBuilder::new().layer(faults.clone()).service(server), "default")
//! ClientBuilder::try_from(config)?.with_layer(&faults).build()
//! ```

use crate::call::{Call, Verb};
use crate::service::{AnswerBody, whole};
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::{StreamExt, future, stream};
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, BodyStream, Empty, StreamBody};
use kube::client::Body;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use thiserror::Error;
use tokio::sync::watch;
use tower::{BoxError, Layer, Service};

/// What a faulty connection says instead of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Fault {
    /// The client is one of a process that has crashed.
    #[error("this client's process has crashed")]
    Crashed,
    /// The request was answered, but the answer was lost.
    #[error("the answer did not arrive in time")]
    Lost,
}

/// Requests that a rule is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Matcher {
    /// Only these verbs; any if there are none.
    pub verbs: Vec<Verb>,
    /// Only this kind, in plural; any if empty. Without it, Leases are not meant: they have tests of their own.
    pub plural: String,
    /// Only this object.
    pub name: String,
}

impl Matcher {
    /// Everything that writes.
    pub fn writes() -> Self {
        Self { verbs: vec![Verb::Create, Verb::Update, Verb::Patch, Verb::Apply, Verb::Delete], ..Self::default() }
    }

    /// One verb on one kind.
    pub fn of(verb: Verb, plural: &str) -> Self {
        Self { verbs: vec![verb], plural: plural.to_owned(), name: String::new() }
    }

    fn matches(&self, call: &Call) -> bool {
        let plural = if self.plural.is_empty() { call.plural != "leases" } else { self.plural == call.plural };
        (self.verbs.is_empty() || self.verbs.contains(&call.verb)) && plural && (self.name.is_empty() || self.name == call.name)
    }
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Not sent; answered with this code: 409, 410, 429, 500, 503.
    Answer(u16),
    /// Sent and done, but the answer is lost.
    LoseAnswer,
    /// Not sent, and this client fails from now on.
    CrashBefore,
    /// Sent and done, and this client fails from now on.
    CrashAfter,
    /// A watch that ends at once.
    CutWatch,
    /// A watch that says nothing and does not end.
    FreezeWatch,
    /// Answered as the same request was the last time.
    Stale,
    /// The answer comes later.
    Delay(Duration),
}

/// What happens to which requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Which.
    pub matcher: Matcher,
    /// The first of them that it happens to, from 1.
    pub from: u64,
    /// How many it happens to.
    pub times: u64,
    /// What happens.
    pub action: Action,
}

/// What is to go wrong. It prints itself, so that a failed test says what to repeat.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What it was drawn from; 0 if it was written by hand.
    pub seed: u64,
    /// The first rule that is about a request decides.
    pub rules: Vec<Rule>,
}

impl Plan {
    /// A plan of one rule.
    pub fn one(matcher: Matcher, from: u64, times: u64, action: Action) -> Self {
        Self { seed: 0, rules: vec![Rule { matcher, from, times, action }] }
    }

    /// Up to `count` faults among the first 40 requests, drawn from `seed`: refusals, lost answers, stale reads, watches cut and frozen.
    pub fn random(seed: u64, count: u64) -> Self {
        let mut random = Random(seed);
        let rules = (0..count).map(|_| {
            let from = 1 + random.below(40);
            let times = 1 + random.below(4);
            let (matcher, action) = match random.below(8) {
                0 => (Matcher::writes(), Action::Answer(429)),
                1 => (Matcher::writes(), Action::Answer(500)),
                2 => (Matcher::default(), Action::Answer(503)),
                3 | 4 => (Matcher::writes(), Action::LoseAnswer),
                5 => (Matcher { verbs: vec![Verb::Get, Verb::List], ..Matcher::default() }, Action::Stale),
                6 => (Matcher { verbs: vec![Verb::Watch], ..Matcher::default() }, Action::CutWatch),
                _ => (Matcher { verbs: vec![Verb::Watch], ..Matcher::default() }, Action::FreezeWatch),
            };
            Rule { matcher, from, times, action }
        });
        Self { seed, rules: rules.collect() }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "seed {}", self.seed)?;
        for Rule { matcher: Matcher { verbs, plural, name }, from, times, action } in &self.rules {
            let verbs = if verbs.is_empty() { "any".to_owned() } else { verbs.iter().map(Verb::to_string).collect::<Vec<_>>().join("|") };
            let plural = if plural.is_empty() { "*" } else { plural };
            write!(f, "; {verbs} {plural}")?;
            if !name.is_empty() {
                write!(f, "/{name}")?;
            }
            write!(f, " no. {from} to {}: {action:?}", from.saturating_add(*times) - 1)?;
        }
        Ok(())
    }
}

/// `SplitMix64`: the same numbers for the same seed, on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % bound
    }
}

/// What streams of watches follow while they are open.
#[derive(Clone, Debug, Default)]
struct Line {
    crashed: bool,
    frozen: BTreeSet<String>,
    /// How often the watches of a kind were cut.
    cuts: BTreeMap<String, u64>,
}

/// The faults of one client. Clones are the same faults.
#[derive(Clone, Debug)]
pub struct Faults {
    plan: Arc<Mutex<Plan>>,
    /// How many requests each rule has seen.
    seen: Arc<Mutex<Vec<u64>>>,
    /// The last answer to each read, by its URI.
    answers: Arc<Mutex<BTreeMap<String, Bytes>>>,
    line: Arc<watch::Sender<Line>>,
}

impl Faults {
    /// Faults by plan.
    pub fn new(plan: Plan) -> Self {
        let seen = vec![0; plan.rules.len()];
        Self {
            plan: Arc::new(Mutex::new(plan)),
            seen: Arc::new(Mutex::new(seen)),
            answers: Arc::default(),
            line: Arc::new(watch::Sender::new(Line::default())),
        }
    }

    /// Forgets the plan: from now on nothing goes wrong by itself.
    pub fn end(&self) {
        lock(&self.plan).rules.clear();
        lock(&self.seen).clear();
    }

    /// Lets every request of this client fail from now on, and ends its watches.
    pub fn crash(&self) {
        self.line.send_modify(|line| line.crashed = true);
    }

    /// Whether this client's process has crashed.
    pub fn has_crashed(&self) -> bool {
        self.line.borrow().crashed
    }

    /// Comes back when this client's process has crashed.
    pub async fn crashed(&self) {
        // the sender lives as long as `self`
        let _ = self.line.subscribe().wait_for(|line| line.crashed).await;
    }

    /// Lets the watches of a kind, open ones and new ones, say nothing until [`thaw`](Self::thaw).
    pub fn freeze(&self, plural: &str) {
        self.line.send_modify(|line| _ = line.frozen.insert(plural.to_owned()));
    }

    /// Lets the watches of a kind go on.
    pub fn thaw(&self, plural: &str) {
        self.line.send_modify(|line| _ = line.frozen.remove(plural));
    }

    /// Ends the open watches of a kind.
    pub fn cut(&self, plural: &str) {
        self.line.send_modify(|line| *line.cuts.entry(plural.to_owned()).or_default() += 1);
    }

    /// What happens to this request: the first rule whose turn it is decides; all that are about it count it.
    fn decide(&self, call: &Call) -> Option<Action> {
        let plan = lock(&self.plan);
        let mut decided = None;
        for (rule, seen) in plan.rules.iter().zip(lock(&self.seen).iter_mut()) {
            if !rule.matcher.matches(call) {
                continue;
            }
            *seen += 1;
            let is_due = (rule.from..rule.from.saturating_add(rule.times)).contains(seen);
            if is_due && decided.is_none() {
                decided = Some(rule.action);
            }
        }
        decided
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<S> Layer<S> for Faults {
    type Service = Faulty<S>;

    fn layer(&self, inner: S) -> Faulty<S> {
        Faulty { inner, faults: self.clone() }
    }
}

/// A client's connection with faults.
#[derive(Clone, Debug)]
pub struct Faulty<S> {
    inner: S,
    faults: Faults,
}

impl<S, B> Service<Request<Body>> for Faulty<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<AnswerBody>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<AnswerBody>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let faults = self.faults.clone();
        if faults.has_crashed() {
            return Box::pin(future::err(Fault::Crashed.into()));
        }
        let Some(call) = Call::of(&request) else {
            let sent = self.inner.call(request);
            return Box::pin(async move { Ok(sent.await.map_err(Into::into)?.map(boxed)) });
        };
        let uri = request.uri().to_string();
        let action = faults.decide(&call);
        match action {
            Some(Action::Answer(code)) => return Box::pin(future::ok(refusal(code))),
            Some(Action::CrashBefore) => {
                faults.crash();
                return Box::pin(future::err(Fault::Crashed.into()));
            }
            Some(Action::Stale) => {
                if let Some(old) = lock(&faults.answers).get(&uri) {
                    return Box::pin(future::ok(Response::new(whole(old.clone()))));
                }
            }
            _ => {}
        }
        let sent = self.inner.call(request);
        Box::pin(async move {
            let answer = sent.await.map_err(Into::into)?;
            match action {
                Some(Action::LoseAnswer) => return Err(Fault::Lost.into()),
                Some(Action::CrashAfter) => {
                    faults.crash();
                    return Err(Fault::Crashed.into());
                }
                Some(Action::Delay(time)) => tokio::time::sleep(time).await,
                _ => {}
            }
            if faults.has_crashed() {
                return Err(Fault::Crashed.into());
            }
            match call.verb {
                Verb::Watch => Ok(answer.map(|body| faults.watched(&call, body, action))),
                Verb::Get | Verb::List => faults.remember(uri, answer).await,
                _ => Ok(answer.map(boxed)),
            }
        })
    }
}

impl Faults {
    async fn remember<B>(&self, uri: String, answer: Response<B>) -> Result<Response<AnswerBody>, BoxError>
    where
        B: http_body::Body<Data = Bytes> + Send,
        B::Error: Into<BoxError>,
    {
        let (parts, body) = answer.into_parts();
        let body = body.collect().await.map_err(Into::into)?.to_bytes();
        if parts.status == StatusCode::OK {
            lock(&self.answers).insert(uri, body.clone());
        }
        Ok(Response::from_parts(parts, whole(body)))
    }

    fn watched<B>(&self, call: &Call, body: B, action: Option<Action>) -> AnswerBody
    where
        B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        match action {
            Some(Action::CutWatch) => return boxed(Empty::new()),
            Some(Action::FreezeWatch) => {
                let nothing = stream::pending::<Result<http_body::Frame<Bytes>, BoxError>>();
                return StreamBody::new(until(self.line.subscribe(), call.plural.clone(), nothing)).boxed_unsync();
            }
            _ => {}
        }
        let frames = BodyStream::new(body).map(|frame| frame.map_err(Into::into));
        StreamBody::new(until(self.line.subscribe(), call.plural.clone(), frames)).boxed_unsync()
    }
}

type Frame = Result<http_body::Frame<Bytes>, BoxError>;

/// The frames of a watch until it is cut or the client crashes; none while it is frozen.
fn until(
    line: watch::Receiver<Line>,
    plural: String,
    frames: impl stream::Stream<Item = Frame> + Send + Unpin + 'static,
) -> impl stream::Stream<Item = Frame> + Send + 'static {
    let cuts = line.borrow().cuts.get(&plural).copied();
    stream::unfold((line, frames), move |(mut line, mut frames)| {
        let plural = plural.clone();
        async move {
            let mut end = line.clone();
            let over = end.wait_for(|line| line.crashed || line.cuts.get(&plural).copied() != cuts);
            let next = async {
                let frame = frames.next().await;
                // the sender may be gone with the client; then nothing is frozen any more
                let _ = line.wait_for(|line| !line.frozen.contains(&plural)).await;
                frame
            };
            let frame = tokio::select! {
                biased;
                Ok(_) = over => None,
                frame = next => frame,
            };
            frame.map(|frame| (frame, (line, frames)))
        }
    })
}

fn boxed<B>(body: B) -> AnswerBody
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}

fn refusal(code: u16) -> Response<AnswerBody> {
    let reason = match code {
        409 => "Conflict",
        410 => "Expired",
        429 => "TooManyRequests",
        503 => "ServiceUnavailable",
        _ => "InternalError",
    };
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "a fault by plan", "reason": reason, "code": code,
    });
    let mut response = Response::new(whole(status.to_string()));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    if code == 429 {
        response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
    }
    response
}
