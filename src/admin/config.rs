//! What the replicas of a fleet are given, on demand: it is large, and few ask for it.

use super::orders::{Refusal, RefusalKind, only_by_people_here};
use crate::status::json::Config;
use axum::extract::{Path, State};
use axum::middleware;
use axum::routing::get;
use axum::{Json, Router};
use tokio::sync::{mpsc, oneshot};

/// Somebody asks what the replicas of a fleet are given.
#[derive(Debug)]
pub struct ConfigAsked {
    /// The namespace of the fleet.
    pub namespace: String,
    /// Its name.
    pub fleet: String,
    /// Where the answer goes.
    pub answer: oneshot::Sender<Result<Config, Refusal>>,
}

/// Where such questions go.
pub type Configs = mpsc::Sender<ConfigAsked>;

/// A configuration names what is behind a fleet and holds headers that it sets: it is for who may give orders, too.
pub(super) fn router(configs: Configs) -> Router {
    Router::new()
        .route("/fleets/{namespace}/{fleet}/config", get(show))
        .route_layer(middleware::from_fn(only_by_people_here))
        .with_state(configs)
}

async fn show(State(configs): State<Configs>, Path((namespace, fleet)): Path<(String, String)>) -> Result<Json<Config>, Refusal> {
    let stops = || Refusal {
        kind: RefusalKind::Conflict,
        error: "it shows no configuration: everything is about to end".to_owned(),
        help: "start it again".to_owned(),
    };
    let (answer, answered) = oneshot::channel();
    configs.send(ConfigAsked { namespace, fleet, answer }).await.map_err(|_| stops())?;
    answered.await.map_err(|_| stops())?.map(Json)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use axum::body::Body;
    use axum::extract::ConnectInfo;
    use axum::http::{Request, Response, StatusCode};
    use http_body_util::BodyExt;
    use std::net::SocketAddr;
    use tower::ServiceExt;

    /// What a fleet `infra/edge` answers to `client`, whose browser may say which page asks.
    async fn asked(client: &str, origin: Option<&str>, fleet: &str) -> (StatusCode, String) {
        let (configs, mut questions) = mpsc::channel::<ConfigAsked>(1);
        tokio::spawn(async move {
            while let Some(asked) = questions.recv().await {
                let refusal = Refusal { kind: RefusalKind::NotFound, error: "there is no such fleet".into(), help: String::new() };
                let is_it = (&*asked.namespace, &*asked.fleet) == ("infra", "edge");
                let _ = asked.answer.send(if is_it { Ok(Config { revision: 7, ..Config::default() }) } else { Err(refusal) });
            }
        });
        let client: SocketAddr = client.parse().unwrap();
        let request = Request::get(format!("/fleets/infra/{fleet}/config")).extension(ConnectInfo(client));
        let request = origin.into_iter().fold(request, |request, origin| request.header("origin", origin));
        let answer: Response<Body> = router(configs).oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        let code = answer.status();
        (code, String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap())
    }

    #[tokio::test]
    async fn who_is_here_sees_what_replicas_are_given_and_nobody_else() {
        let (code, text) = asked("127.0.0.1:1", None, "edge").await;
        assert_eq!((code, serde_json::from_str::<Config>(&text).unwrap().revision), (StatusCode::OK, 7));
        assert_eq!(asked("127.0.0.1:1", None, "other").await.0, StatusCode::NOT_FOUND);
        assert_eq!(asked("192.0.2.1:1", None, "edge").await.0, StatusCode::FORBIDDEN);
        assert_eq!(asked("127.0.0.1:1", Some("http://page.example"), "edge").await.0, StatusCode::FORBIDDEN);
    }
}
