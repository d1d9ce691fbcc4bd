//! Health, metrics and the state of everything over HTTP: behind `--admin` in `local`, and in the operator.

mod config;
mod orders;
mod tally;

pub use config::{ConfigAsked, Configs};
pub use orders::{Done, DrainBody, Order, Ordered, Orders, Refusal, RefusalKind, Target};
pub use tally::CountFrom;

use crate::status::json::{Diagnostic, Status};
use crate::telemetry::{DiagnosticLabels, FleetLabels, LogLevel, Metrics, ReloadLabels, set_counter};
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, put};
use axum::{Json, Router};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use tally::Tally;
use tokio::net::TcpListener;
use tokio::sync::watch;

/// What is served.
#[derive(Clone)]
pub struct Served {
    /// The state of everything.
    pub status: watch::Receiver<Arc<Status>>,
    /// All metrics.
    pub metrics: Arc<Metrics>,
    /// Brings those metrics up to the present that do not follow from the status. Called before they are read.
    pub observe: Arc<dyn Fn() + Send + Sync>,
    /// From when on what replicas count is added up.
    pub count_from: CountFrom,
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
    serve_all(listener, served, Router::new(), shutdown).await
}

/// The same, and takes orders for fleets by `POST /fleets/NAMESPACE/NAME/rollout/pause`, `resume`, `abort` or `restart`, and
/// below the fleet by `drain`, `undrain` and `rollback`. `GET` there of `history` tells the revisions that can be gone back to,
/// and of `config` what its replicas are given. Orders and configurations are for who is on this machine only.
pub async fn serve_with_orders(
    listener: TcpListener,
    served: Served,
    orders: Orders,
    configs: Configs,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let orders = orders::router(orders, served.status.clone()).merge(config::router(configs));
    serve_all(listener, served, orders, shutdown).await
}

async fn serve_all(
    listener: TcpListener,
    served: Served,
    more: Router,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let tally = Arc::new(Mutex::new(Tally::new(served.count_from)));
    let following = follow(served.status.clone(), tally.clone());
    let service = router(&served, tally).merge(more).into_make_service_with_connect_info::<SocketAddr>();
    tokio::select! {
        ended = axum::serve(listener, service).with_graceful_shutdown(shutdown) => ended,
        () = following => Ok(()),
    }
}

/// Adds up what replicas do, as long as the server runs: they may come and go between two looks at the metrics.
async fn follow(mut status: watch::Receiver<Arc<Status>>, tally: Arc<Mutex<Tally>>) {
    loop {
        let present = status.borrow_and_update().clone();
        tally.lock().unwrap_or_else(PoisonError::into_inner).follow(&present);
        if status.changed().await.is_err() {
            // nobody says anything any more; what was said last is still served
            std::future::pending::<()>().await;
        }
    }
}

fn router(served: &Served, tally: Arc<Mutex<Tally>>) -> Router {
    let private = Router::new()
        .route("/status", get(document))
        .route("/log-level", put(set_log_level))
        .route_layer(middleware::from_fn_with_state(served.clone(), only_from_here));
    Router::new()
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(move |State(served): State<Served>| async move { exposition(&served, &tally) }))
        .merge(private)
        .with_state(served.clone())
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

fn exposition(served: &Served, tally: &Mutex<Tally>) -> Response {
    let status = Arc::clone(&served.status.borrow());
    // one reader at a time: what is brought up to the present is not whole meanwhile
    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    tally.follow(&status);
    record(&status, &tally, &served.metrics);
    (served.observe)();
    match served.metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, Metrics::CONTENT_TYPE)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Puts what the status says into the metrics. Fleets that are gone leave no series behind.
fn record(status: &Status, tally: &Tally, metrics: &Metrics) {
    let gauge = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let families = [&metrics.generation, &metrics.replicas, &metrics.ready_replicas, &metrics.refused];
    for family in families {
        family.clear();
    }
    metrics.reloads.clear();
    metrics.runtime_commands.clear();
    metrics.refusals.clear();
    for fleet in &status.fleets {
        let labels = FleetLabels { namespace: fleet.namespace.clone(), fleet: fleet.name.clone() };
        let ready = fleet.replicas.iter().filter(|replica| replica.ready).count();
        let refused: usize = fleet.replicas.iter().map(|replica| replica.refused.len()).sum();
        let values = [fleet.generation, fleet.replicas.len() as u64, ready as u64, refused as u64];
        for (family, value) in families.into_iter().zip(values) {
            family.get_or_create(&labels).set(gauge(value));
        }
        let Some(counts) = tally.of(&fleet.namespace, &fleet.name) else { continue };
        for (reason, count) in &counts.reloads {
            let labels = ReloadLabels { namespace: fleet.namespace.clone(), fleet: fleet.name.clone(), reason: reason.clone() };
            set_counter(&metrics.reloads.get_or_create(&labels), *count);
        }
        set_counter(&metrics.runtime_commands.get_or_create(&labels), counts.runtime_commands);
        set_counter(&metrics.refusals.get_or_create(&labels), counts.refusals);
    }
    metrics.diagnostics.clear();
    for ((kind, severity, code), count) in counted(&status.diagnostics) {
        let labels = DiagnosticLabels { kind: kind.to_owned(), severity: severity.to_owned(), code: code.to_owned() };
        metrics.diagnostics.get_or_create(&labels).set(count);
    }
}

/// Findings by kind, severity and code. A document in a file may call itself a kind of any name.
fn counted(diagnostics: &[Diagnostic]) -> BTreeMap<(&str, &str, &str), i64> {
    let mut counts = BTreeMap::new();
    for diagnostic in diagnostics {
        let kind = if KINDS.contains(&&*diagnostic.object.kind) { &*diagnostic.object.kind } else { "other" };
        *counts.entry((kind, &*diagnostic.severity, &*diagnostic.code)).or_default() += 1;
    }
    counts
}

/// The kinds that are read.
const KINDS: [&str; 9] =
    ["IngressDeployment", "Backend", "Ingress", "IngressClass", "Namespace", "Service", "EndpointSlice", "Secret", "ConfigMap"];

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::status::json::{Fleet, Object, Reload, Replica};
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
        let content = Served {
            status: receiver,
            metrics: Arc::new(Metrics::default()),
            observe: Arc::new(|| ()),
            count_from: CountFrom::Start,
            ready,
            log_level: None,
            open: false,
        };
        let server = tokio::spawn(serve(listener, content, shutdown));
        assert!(get(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 503"));
        let reload = |cause: &str| Reload { cause: cause.to_owned(), ..Reload::default() };
        let reloads = vec![reload("shape"), reload("section"), reload("shape")];
        let replica = |name: &str| Replica {
            name: name.to_owned(),
            ready: true,
            reload_count: 3,
            reloads: reloads.clone(),
            runtime_commands: 5,
            ..Replica::default()
        };
        let finding = |kind: &str| Diagnostic {
            code: "NotFound".into(),
            severity: "error".into(),
            object: Object { kind: kind.into(), namespace: "shop".into(), name: "web".into() },
            ..Diagnostic::default()
        };
        let fleet = Fleet {
            namespace: "edge".into(),
            name: "public".into(),
            generation: 7,
            replicas: vec![replica("public-0"), replica("public-1")],
            ..Fleet::default()
        };
        let diagnostics = vec![finding("Ingress"), finding("Ingress"), finding("Whatever")];
        sender.send_replace(Arc::new(Status { ready: true, fleets: vec![fleet], diagnostics, ..Status::default() }));
        assert!(get(address, "/readyz").await.starts_with("HTTP/1.1 200"));
        let metrics = get(address, "/metrics").await;
        for line in [
            r#"haproxy_fleet_generation{namespace="edge",fleet="public"} 7"#,
            r#"haproxy_fleet_ready_replicas{namespace="edge",fleet="public"} 2"#,
            r#"haproxy_fleet_reloads_total{namespace="edge",fleet="public",reason="shape"} 4"#,
            r#"haproxy_fleet_reloads_total{namespace="edge",fleet="public",reason="section"} 2"#,
            r#"haproxy_fleet_runtime_commands_total{namespace="edge",fleet="public"} 10"#,
            r#"haproxy_fleet_diagnostics{kind="Ingress",severity="error",code="NotFound"} 2"#,
            r#"haproxy_fleet_diagnostics{kind="other",severity="error",code="NotFound"} 1"#,
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
