//! The one place where writes to the API server are fenced: only the leader writes.
//!
//! A layer under the kube client, so that no controller can forget it:
//! `ClientBuilder::try_from(config)?.with_layer(&fence).build()`.

use super::lease::Claim;
use futures::future::BoxFuture;
use http::{Method, Request, Response};
use std::task::{Context, Poll};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::Instant;
use tower::{BoxError, Layer, Service};

/// Questions that are asked by creating an object that nobody keeps: every replica may ask them.
pub(super) const QUESTIONS: [&str; 2] =
    ["/apis/authentication.k8s.io/v1/tokenreviews", "/apis/authorization.k8s.io/v1/subjectaccessreviews"];

/// A write was not sent, or its answer was not waited for, because this replica does not lead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Fenced {
    /// It was not sent.
    #[error("{method} {path} was not sent: this replica does not lead")]
    NotSent {
        /// The method.
        method: Method,
        /// The path.
        path: String,
    },
    /// It was sent, and then the claim ended: whether it was done is not known.
    #[error("{method} {path} was broken off: this replica leads no more")]
    BrokenOff {
        /// The method.
        method: Method,
        /// The path.
        path: String,
    },
}

impl Fenced {
    /// The fence's word in an error of the client, if it is one.
    pub fn of(error: &kube::Error) -> Option<&Self> {
        match error {
            kube::Error::Service(error) => error.downcast_ref(),
            _ => None,
        }
    }
}

/// Lets writes pass only while the claim is valid. Reads, reviews and the writes of the election itself always pass.
#[derive(Clone, Debug)]
pub struct Fence {
    claim: watch::Receiver<Claim>,
    /// The path of the Leases of the operator's namespace, and that of its own one.
    leases: String,
    lease: String,
}

impl Fence {
    /// A fence by `claim`, which is held by the Lease `name` in `namespace`.
    pub fn new(claim: watch::Receiver<Claim>, namespace: &str, name: &str) -> Self {
        let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases");
        let lease = format!("{leases}/{name}");
        Self { claim, leases, lease }
    }

    fn is_free(&self, method: &Method, path: &str) -> bool {
        let is_read = matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS);
        let is_election = (path == self.leases && *method == Method::POST) || (path == self.lease && *method == Method::PUT);
        is_read || is_election || QUESTIONS.contains(&path)
    }
}

impl<S> Layer<S> for Fence {
    type Service = FencedService<S>;

    fn layer(&self, inner: S) -> FencedService<S> {
        FencedService { inner, fence: self.clone() }
    }
}

/// A client's connection behind the fence.
#[derive(Clone, Debug)]
pub struct FencedService<S> {
    inner: S,
    fence: Fence,
}

impl<S, A, B> Service<Request<A>> for FencedService<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<B>, BoxError>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        if self.fence.is_free(&method, &path) {
            let sent = self.inner.call(request);
            return Box::pin(async move { sent.await.map_err(Into::into) });
        }
        let claim = self.fence.claim.clone();
        let held = *claim.borrow();
        let Some(term) = held.term(Instant::now()) else {
            return Box::pin(async move { Err(Fenced::NotSent { method, path }.into()) });
        };
        let sent = self.inner.call(request);
        Box::pin(async move {
            tokio::select! {
                biased;
                answer = sent => answer.map_err(Into::into),
                () = ended(claim, term) => Err(Fenced::BrokenOff { method, path }.into()),
            }
        })
    }
}

/// Comes back when `term` is claimed no more.
async fn ended(mut claim: watch::Receiver<Claim>, term: u64) {
    loop {
        let held = *claim.borrow_and_update();
        let Claim::Leader { valid_until, .. } = held else { return };
        if held.term(Instant::now()) != Some(term) {
            return;
        }
        tokio::select! {
            changed = claim.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(valid_until) => {}
        }
    }
}
