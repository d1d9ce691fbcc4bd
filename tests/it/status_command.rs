//! `status` as people and programs call it: against what serves `/status`, and against an API server that leads nowhere.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use haproxy_fleet::admin::{self, ConfigAsked, CountFrom, Refusal, RefusalKind, Served};
use haproxy_fleet::status::json::{Config, ConfigFile, Diagnostic, Fleet, Object, Operator, Replica, Status};
use haproxy_fleet::telemetry::Metrics;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::sync::watch;

const PROGRAM: &str = env!("CARGO_BIN_EXE_haproxy-fleet");

async fn run(program: impl AsRef<Path>, arguments: &[&str]) -> Output {
    Command::new(program.as_ref()).args(arguments).env_remove("KUBECONFIG").output().await.unwrap()
}

fn texts(output: &Output) -> (String, String) {
    (String::from_utf8(output.stdout.clone()).unwrap(), String::from_utf8(output.stderr.clone()).unwrap())
}

/// What an admin server serves that says `status`.
fn served(status: watch::Receiver<Arc<Status>>) -> Served {
    Served {
        status,
        metrics: Arc::new(Metrics::default()),
        observe: Arc::new(|| ()),
        count_from: CountFrom::Start,
        ready: Arc::new(|| true),
        log_level: None,
        open: false,
    }
}

/// An admin server that says `status`.
async fn serving(status: Status) -> (SocketAddr, watch::Sender<Arc<Status>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, receiver) = watch::channel(Arc::new(status));
    tokio::spawn(admin::serve(listener, served(receiver), std::future::pending()));
    (address, sender)
}

fn fleet(namespace: &str, ready: Option<bool>) -> Fleet {
    let replica = Replica { name: "edge-0".into(), ready: true, connected: true, confirmed: true, generation: 7, ..Replica::default() };
    let worst = Diagnostic {
        code: "NotFound".into(),
        severity: "error".into(),
        object: Object { kind: "Ingress".into(), namespace: "shop".into(), name: "web".into() },
        message: "there is no Service shop/cart".into(),
        help: "create it".into(),
        ..Diagnostic::default()
    };
    Fleet {
        namespace: namespace.into(),
        name: "edge".into(),
        ready,
        state: ready.map(|ready| if ready { "AsAsked" } else { "PodsBehind" }.to_owned()),
        desired: Some(1),
        replicas: vec![replica],
        worst: vec![worst],
        ..Fleet::default()
    }
}

fn status(fleets: Vec<Fleet>) -> Status {
    Status { operator: Some(Operator { pod: "operator-0".into(), leads: true, whole: true }), fleets, ..Status::default() }
}

#[tokio::test]
async fn the_exit_status_follows_the_fleets_that_are_asked_for() {
    let (address, said) = serving(status(vec![fleet("infra", Some(true)), fleet("other", Some(false))])).await;
    let admin = format!("--admin={address}");
    let all = run(PROGRAM, &["status", &admin]).await;
    let (out, _) = texts(&all);
    assert_eq!(all.status.code(), Some(1), "{out}");
    for part in
        ["infra/edge  AsAsked  1/1 pods, 1 confirmed", "other/edge  PodsBehind", "edge-0", "--> Ingress shop/web", "help: create it"]
    {
        assert!(out.contains(part), "{part} is not in\n{out}");
    }
    let one = run(PROGRAM, &["status", &admin, "-n", "infra", "-o", "json"]).await;
    assert_eq!(one.status.code(), Some(0));
    let document: Value = serde_json::from_slice(&one.stdout).unwrap();
    assert_eq!((document["fleets"].as_array().unwrap().len(), &document["fleets"][0]["namespace"]), (1, &json!("infra")));
    said.send_replace(Arc::new(status(vec![fleet("infra", None)])));
    let unknown = run(PROGRAM, &["status", &admin]).await;
    assert_eq!(unknown.status.code(), Some(2));
    assert!(texts(&unknown).1.contains("error: whether infra/edge is Ready is not known yet"), "{}", texts(&unknown).1);
    let none = run(PROGRAM, &["status", &admin, "-n", "nowhere"]).await;
    assert_eq!(
        (none.status.code(), texts(&none).1.as_str()),
        (Some(0), "no fleets in namespace nowhere; --all-namespaces shows 1 in others\n")
    );
}

#[tokio::test]
async fn the_configuration_of_a_fleet_of_local_is_shown_by_file_and_without_keys() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_said, receiver) = watch::channel(Arc::new(status(vec![fleet("infra", Some(true)), fleet("other", Some(true))])));
    let (configs, mut asked) = tokio::sync::mpsc::channel::<ConfigAsked>(1);
    let (orders, _ordered) = tokio::sync::mpsc::channel(1);
    tokio::spawn(admin::serve_with_orders(listener, served(receiver), orders, configs, std::future::pending()));
    tokio::spawn(async move {
        while let Some(asked) = asked.recv().await {
            let file = |path: &str, text: Option<&str>| ConfigFile { path: path.into(), bytes: 12, text: text.map(Into::into) };
            let files = vec![
                file("10-global.cfg", Some("global\n")),
                file("20-frontends.cfg", Some("frontend x\n")),
                file("certs/a.pem", None),
                file("maps/routes.map", Some("h/a/ b\n")),
            ];
            let _ = asked.answer.send(if asked.namespace == "infra" {
                Ok(Config { revision: 3, generation: 9, files })
            } else {
                Err(Refusal { kind: RefusalKind::Conflict, error: "no manifest".into(), help: "correct it".into() })
            });
        }
    });
    let admin = format!("--admin={address}");
    let shown = async |arguments: &[&str]| {
        let output = run(PROGRAM, &[&["config", &admin], arguments].concat()).await;
        (output.status.code(), texts(&output))
    };
    assert_eq!(
        shown(&["infra/edge"]).await,
        (
            Some(0),
            (
                "# infra/edge, revision 3, generation 9\n# ==> 10-global.cfg <==\nglobal\n# ==> 20-frontends.cfg <==\nfrontend x\n".into(),
                String::new()
            )
        )
    );
    assert_eq!(shown(&["infra/edge", "--file", "maps/routes.map"]).await, (Some(0), ("h/a/ b\n".into(), String::new())));
    let (_, (listed, _)) = shown(&["infra/edge", "--list"]).await;
    assert!(listed.contains("12  certs/a.pem  (a private key, which is not shown)\n"), "{listed}");
    for (arguments, complaint) in [
        (&["infra/edge", "--file", "certs/a.pem"][..], "certs/a.pem is a private key, which is not shown"),
        (&["infra/edge", "--file", "maps/none.map"], "there is no file maps/none.map"),
        (&["other/edge"], "error: no manifest\n   = help: correct it"),
        (&[], "name one of infra/edge, other/edge"),
        (&["infra/edge", "--revision", "2"], "cannot be used with"),
    ] {
        let (code, (_, err)) = shown(arguments).await;
        assert!(code == Some(2) && err.contains(complaint), "{arguments:?}: {err}");
    }
    // who takes no such questions, as the operator does
    let (address, _said) = serving(status(vec![fleet("infra", Some(true))])).await;
    let output = run(PROGRAM, &["config", "--admin", &address.to_string()]).await;
    let (_, err) = texts(&output);
    assert!(output.status.code() == Some(2) && err.contains("shows no configuration: it answers with 404"), "{err}");
}

#[tokio::test]
async fn a_place_where_nobody_answers_is_named_with_what_to_do() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let output = run(PROGRAM, &["status", "--admin", &address.to_string()]).await;
    let (_, err) = texts(&output);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        err.starts_with(&format!("error: cannot reach {address}: ")) && err.contains("= help: start `haproxy-fleet local --admin"),
        "{err}"
    );
}

/// A kubeconfig in `home` for an API server that answers the list of the operator's pods with `pods`.
async fn cluster(home: &Path, pods: (StatusCode, Value)) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer = get(move || async move { (pods.0, axum::Json(pods.1)) });
    let missing = || async {
        let body =
            json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "message": "not found", "code": 404});
        (StatusCode::NOT_FOUND, axum::Json(body))
    };
    let router = Router::new().route("/api/v1/namespaces/haproxy-fleet-system/pods", answer).fallback(missing);
    tokio::spawn(async move { axum::serve(listener, router).await });
    let path = home.join("config").to_str().unwrap().to_owned();
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": format!("http://{address}")}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test", "namespace": "infra"}}],
        "users": [{"name": "test", "user": {}}],
    });
    std::fs::write(&path, config.to_string()).unwrap();
    path
}

#[tokio::test]
async fn a_cluster_that_does_not_lead_to_an_operator_says_what_is_missing() {
    let home = tempfile::tempdir().unwrap();
    let plugin = home.path().join("kubectl-haproxy_fleet");
    std::os::unix::fs::symlink(PROGRAM, &plugin).unwrap();
    let list = |items: Value| json!({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items});
    let config = cluster(home.path(), (StatusCode::OK, list(json!([])))).await;
    let output = run(&plugin, &["status", "--kubeconfig", &config]).await;
    let (_, err) = texts(&output);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains("there is no operator in namespace haproxy-fleet-system") && err.contains("--operator-namespace"), "{err}");

    let starting = json!([{"metadata": {"name": "haproxy-fleet-0"}, "status": {"conditions": [{"type": "Ready", "status": "False"}]}}]);
    let config = cluster(home.path(), (StatusCode::OK, list(starting))).await;
    let (_, err) = texts(&run(&plugin, &["status", "--kubeconfig", &config]).await);
    assert!(err.contains("no pod of the operator in namespace haproxy-fleet-system is ready (1 is not)"), "{err}");

    let refused = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "message": "pods is forbidden", "code": 403});
    let config = cluster(home.path(), (StatusCode::FORBIDDEN, refused)).await;
    let (_, err) = texts(&run(&plugin, &["status", "--kubeconfig", &config]).await);
    assert!(err.contains("may not be listed: ") && err.contains("help: ask for the permission to list pods"), "{err}");

    // the port-forward itself: nobody is there to change the protocol
    let ready = json!([{"metadata": {"name": "haproxy-fleet-0"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}]);
    let config = cluster(home.path(), (StatusCode::OK, list(ready))).await;
    let output = run(&plugin, &["status", "--kubeconfig", &config]).await;
    let (_, err) = texts(&output);
    assert_eq!(output.status.code(), Some(2), "{err}");
    assert!(err.contains("port 8080 of pod haproxy-fleet-system/haproxy-fleet-0 cannot be forwarded: "), "{err}");
    assert!(err.contains("help: try it by hand: kubectl -n haproxy-fleet-system port-forward pod/haproxy-fleet-0 8080"), "{err}");

    let (_, err) = texts(&run(&plugin, &["status", "--kubeconfig", "/nowhere/config"]).await);
    assert!(err.contains("the kubeconfig /nowhere/config cannot be used: ") && err.contains("help: name a kubeconfig"), "{err}");
    let (_, err) = texts(&run(&plugin, &["status", "--kubeconfig", &config, "--context", "other"]).await);
    assert!(err.contains("cannot be used: ") && err.contains("other"), "{err}");
}
