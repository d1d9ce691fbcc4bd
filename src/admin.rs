//! Health, metrics and the state of everything over HTTP: behind `--admin` in `local`, and in the operator.

use crate::status::json::Status;
use crate::telemetry::{FleetLabels, LogLevel, Metrics, SeverityLabels};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// What is served.
#[derive(Clone)]
pub struct Served {
    /// The state of everything.
    pub status: watch::Receiver<Arc<Status>>,
    /// All metrics.
    pub metrics: Arc<Metrics>,
    /// Whether to send work here.
    pub ready: Arc<dyn Fn() -> bool + Send + Sync>,
    /// What is logged, if that may be changed.
    pub log_level: Option<LogLevel>,
    /// Whether `/status` and `/log-level` answer everybody, and not only who is on this machine (as `kubectl port-forward`
    /// is): the state names objects of all tenants.
    pub open: bool,
}

/// Serves `/healthz`, `/readyz`, `/metrics`, `/status` and `/log-level` on `listener` until `shutdown` completes.
pub async fn serve(listener: TcpListener, served: Served, shutdown: impl Future<Output = ()> + Send + 'static) -> std::io::Result<()> {
    let service = router(served).into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, service).with_graceful_shutdown(shutdown).await
}

fn router(served: Served) -> Router {
    let private = Router::new()
        .route("/status", get(document))
        .route("/log-level", put(set_log_level))
        .route_layer(middleware::from_fn_with_state(served.clone(), only_from_here));
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(exposition))
        .merge(private)
        .with_state(served)
}

async fn only_from_here(
    State(served): State<Served>,
    ConnectInfo(client): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    if served.open || client.ip().to_canonical().is_loopback() {
        return next.run(request).await;
    }
    (StatusCode::FORBIDDEN, "only from this pod: use kubectl port-forward\n").into_response()
}

async fn ready(State(served): State<Served>) -> (StatusCode, &'static str) {
    if (served.ready)() { (StatusCode::OK, "ready\n") } else { (StatusCode::SERVICE_UNAVAILABLE, "not ready\n") }
}

async fn document(State(served): State<Served>) -> Json<Arc<Status>> {
    let status = Arc::clone(&served.status.borrow());
    Json(status)
}

async fn set_log_level(State(served): State<Served>, level: String) -> Response {
    let Some(log_level) = &served.log_level else { return StatusCode::NOT_FOUND.into_response() };
    match log_level.set(level.trim()) {
        Ok(()) => (StatusCode::OK, format!("logging {}\n", level.trim())).into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    }
}

async fn exposition(State(served): State<Served>) -> Response {
    let status = Arc::clone(&served.status.borrow());
    record(&status, &served.metrics);
    match served.metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, Metrics::CONTENT_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Puts what the status says into the metrics. Fleets that are gone leave no series behind.
fn record(status: &Status, metrics: &Metrics) {
    let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let families = [&metrics.generation, &metrics.replicas, &metrics.ready_replicas, &metrics.refused];
    for family in families {
        family.clear();
    }
    metrics.reloads.clear();
    metrics.runtime_commands.clear();
    for fleet in &status.fleets {
        let labels = FleetLabels { namespace: fleet.namespace.clone(), fleet: fleet.name.clone() };
        let ready = fleet.replicas.iter().filter(|replica| replica.ready).count();
        let refused: usize = fleet.replicas.iter().map(|replica| replica.refused.len()).sum();
        let values = [fleet.generation, fleet.replicas.len() as u64, ready as u64, refused as u64];
        for (family, value) in families.into_iter().zip(values) {
            family.get_or_create(&labels).set(gauge(value));
        }
        let total = |of: fn(&crate::status::json::Replica) -> u64| fleet.replicas.iter().map(of).sum();
        metrics.reloads.get_or_create(&labels).inner().store(total(|replica| replica.reload_count), Ordering::Relaxed);
        metrics.runtime_commands.get_or_create(&labels).inner().store(total(|replica| replica.runtime_commands), Ordering::Relaxed);
    }
    for severity in ["error", "warning", "info"] {
        let count = status.diagnostics.iter().filter(|diagnostic| diagnostic.severity == severity).count();
        metrics.diagnostics.get_or_create(&SeverityLabels { severity }).set(gauge(count as u64));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::status::json::{Fleet, Replica};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    async fn get(address: std::net::SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: admin\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn the_admin_server_tells_health_readiness_metrics_and_status() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, receiver) = watch::channel(Arc::new(Status::default()));
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let shutdown = async move {
            let _ = stopped.await;
        };
        let ready = {
            let present = receiver.clone();
            Arc::new(move || present.borrow().ready)
        };
        let content = Served { status: receiver, metrics: Arc::new(Metrics::default()), ready, log_level: None, open: false };
        let server = tokio::spawn(serve(listener, content, shutdown));
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 503"));
        let replica = Replica { ready: true, reload_count: 3, runtime_commands: 5, ..Replica::default() };
        let fleet = Fleet {
            namespace: "edge".into(),
            name: "public".into(),
            generation: 7,
            replicas: vec![replica.clone(), replica],
            ..Fleet::default()
        };
        sender.send_replace(Arc::new(Status { ready: true, fleets: vec![fleet], ..Status::default() }));
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        let metrics = get(address, "/metrics").await;
        for line in [
            r#"haproxy_fleet_generation{namespace="edge",fleet="public"} 7"#,
            r#"haproxy_fleet_ready_replicas{namespace="edge",fleet="public"} 2"#,
            r#"haproxy_fleet_reloads_total{namespace="edge",fleet="public"} 6"#,
            r#"haproxy_fleet_runtime_commands_total{namespace="edge",fleet="public"} 10"#,
            r#"haproxy_fleet_diagnostics{severity="error"} 0"#,
            "# TYPE haproxy_fleet_pipeline_seconds histogram",
        ] {
            assert!(metrics.contains(line), "{line} is not in\n{metrics}");
        }
        let status = get(address, "/status").await;
        let status: Status = serde_json::from_str(status.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(status, **sender.borrow());
        stop.send(()).unwrap();
        server.await.unwrap().unwrap();
    }
}
