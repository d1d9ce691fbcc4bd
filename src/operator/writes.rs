//! Counts what is written to the API server, by kind and outcome: a layer under the client, beside the fence.

use super::fence::{Fenced, QUESTIONS};
use crate::telemetry::{OperatorMetrics, WriteLabels};
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use std::task::{Context, Poll};
use tower::{BoxError, Layer, Service};

/// Counts the writes that go through it. Outside of the fence it sees those, too, that are held back.
#[derive(Clone)]
pub(super) struct CountWrites(pub(super) OperatorMetrics);

impl<S> Layer<S> for CountWrites {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, metrics: self.0.clone() }
    }
}

/// A client's connection whose writes are counted.
#[derive(Clone)]
pub(super) struct Counted<S> {
    inner: S,
    metrics: OperatorMetrics,
}

impl<S, A, B> Service<Request<A>> for Counted<S>
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
        let written = written(request.method(), request.uri().path());
        let metrics = self.metrics.clone();
        let sent = self.inner.call(request);
        Box::pin(async move {
            let answer = sent.await.map_err(Into::into);
            if let Some((resource, verb)) = written {
                let labels = WriteLabels { resource, verb, outcome: outcome(answer.as_ref().map(Response::status)) };
                metrics.api_writes.get_or_create(&labels).inc();
            }
            answer
        })
    }
}

fn outcome(answer: Result<StatusCode, &BoxError>) -> &'static str {
    match answer {
        Ok(status) if status.is_success() => "done",
        Ok(StatusCode::CONFLICT) => "conflict",
        Ok(StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => "forbidden",
        Ok(status) if status.is_client_error() => "refused",
        Err(error) if error.is::<Fenced>() => "fenced",
        Ok(_) | Err(_) => "failed",
    }
}

/// What a request writes (`PLURAL.GROUP`, with a subresource) and how; `None` if it writes nothing.
fn written(method: &Method, path: &str) -> Option<(String, &'static str)> {
    let verb = match *method {
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => return None,
    };
    if QUESTIONS.contains(&path) {
        return None;
    }
    let mut parts = path.trim_start_matches('/').split('/');
    let group = match parts.next()? {
        "api" => "",
        "apis" => parts.next()?,
        _ => return None,
    };
    let rest: Vec<&str> = parts.skip(1).collect();
    let resource = match *rest.as_slice() {
        // a Namespace itself is no place of anything
        ["namespaces", _, plural, ref object @ ..] if plural != "status" => (plural, object),
        [plural, ref object @ ..] => (plural, object),
        [] => return None,
    };
    let (plural, object) = resource;
    let group = if group.is_empty() { String::new() } else { format!(".{group}") };
    let subresource = object.get(1).map_or_else(String::new, |name| format!("/{name}"));
    Some((format!("{plural}{group}{subresource}"), verb))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::telemetry::Metrics;
    use tower::ServiceExt;

    #[test]
    fn a_path_says_the_kind_that_is_written_and_no_name() {
        let of = |method, path| written(&method, path).map(|(resource, verb)| format!("{verb} {resource}"));
        for (method, path, says) in [
            (Method::POST, "/api/v1/namespaces/a/secrets", "create secrets"),
            (Method::PATCH, "/api/v1/namespaces/a/services/b", "patch services"),
            (Method::PUT, "/apis/coordination.k8s.io/v1/namespaces/a/leases/b", "update leases.coordination.k8s.io"),
            (Method::DELETE, "/apis/networking.k8s.io/v1/ingressclasses/b", "delete ingressclasses.networking.k8s.io"),
            (Method::PATCH, "/apis/haproxy-fleet.dev/v1alpha1/namespaces/a/backends/b/status", "patch backends.haproxy-fleet.dev/status"),
        ] {
            assert_eq!(of(method, path).as_deref(), Some(says), "{path}");
        }
        assert_eq!(of(Method::GET, "/api/v1/namespaces/a/secrets/b"), None);
        assert_eq!(of(Method::POST, QUESTIONS[0]), None, "that is a question");
    }

    #[tokio::test]
    async fn every_write_is_counted_with_its_outcome_and_no_read_is() {
        let mut metrics = Metrics::default();
        let operator = OperatorMetrics::register(&mut metrics);
        let answers = tower::service_fn(|request: Request<()>| async move {
            match request.uri().query() {
                Some("fenced") => {
                    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
                    Err(BoxError::from(Fenced::NotSent { method, path }))
                }
                Some("gone") => Err(BoxError::from("connection refused")),
                status => Ok(Response::builder().status(status.unwrap_or("200")).body(()).unwrap()),
            }
        });
        let mut client = CountWrites(operator).layer(answers);
        for query in ["200", "201", "409", "403", "422", "500", "gone", "fenced"] {
            let request = Request::patch(format!("/api/v1/namespaces/a/services/b?{query}")).body(()).unwrap();
            drop(client.ready().await.unwrap().call(request).await);
        }
        let read = Request::get("/api/v1/namespaces/a/services/b?200").body(()).unwrap();
        client.ready().await.unwrap().call(read).await.unwrap();
        let text = metrics.encode().unwrap();
        for (outcome, count) in [("done", 2), ("conflict", 1), ("forbidden", 1), ("refused", 1), ("failed", 2), ("fenced", 1)] {
            let line = format!(r#"haproxy_fleet_api_writes_total{{resource="services",verb="patch",outcome="{outcome}"}} {count}"#);
            assert!(text.contains(&line), "{line} is not in\n{text}");
        }
    }
}
