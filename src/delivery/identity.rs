//! Who is at the other end: which pod of which fleet, by the token that the kubelet put into it.

use crate::model::FleetId;
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::core::v1::Pod;
use kube::api::PostParams;
use kube::{Api, Client};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// What the token of an agent has to be made for: no other server takes it, and we take no other token.
pub const AUDIENCE: &str = "haproxy-fleet.dev/operator";
/// The label of a pod that names its fleet.
pub const FLEET_LABEL: &str = "haproxy-fleet.dev/fleet";
/// How long a review holds.
const REVIEW_HOLDS: Duration = Duration::from_secs(10);
/// How often a stream is reviewed again: each time costs the API server two requests.
const REVIEWS: Duration = Duration::from_secs(60);
/// Reviews that are remembered at most.
const REMEMBERED: usize = 4096;
/// Reviews that are asked for at a time.
const AT_ONCE: usize = 16;

/// A pod that has proven to be one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodIdentity {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub pod: String,
    /// Its uid.
    pub uid: String,
    /// Its service account.
    pub service_account: String,
    /// The fleet that it belongs to, which is in its namespace.
    pub fleet: FleetId,
    /// When its token ends.
    pub expires: SystemTime,
}

/// Why nobody is let in.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// It is not who it has to be.
    #[error("{0}")]
    Refused(String),
    /// Nobody could say who it is.
    #[error("the token cannot be reviewed: {0}")]
    Unavailable(String),
}

/// Says whose a token is.
pub trait Identity: Send + Sync + 'static {
    /// The pod that `token` belongs to.
    fn pod(&self, token: &str) -> impl Future<Output = Result<PodIdentity, IdentityError>> + Send;

    /// How often whoever was let in is to be asked about again.
    fn interval(&self) -> Duration {
        REVIEWS
    }
}

/// Asks the API server. A review is remembered for ten seconds, a refusal is not.
pub struct TokenReviews {
    client: Client,
    known: Mutex<BTreeMap<[u8; 32], (Instant, PodIdentity)>>,
    at_once: Semaphore,
    interval: Duration,
}

impl TokenReviews {
    /// Reviews by `client`, which has to be allowed to create `tokenreviews` and to get `pods`.
    pub fn new(client: Client) -> Self {
        Self { client, known: Mutex::default(), at_once: Semaphore::new(AT_ONCE), interval: REVIEWS }
    }

    /// The same, with another time between two reviews of a stream.
    #[must_use]
    pub fn every(self, interval: Duration) -> Self {
        Self { interval, ..self }
    }

    fn remembered(&self, key: &[u8; 32]) -> Option<PodIdentity> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, (reviewed, _)| reviewed.elapsed() < REVIEW_HOLDS);
        known.get(key).map(|(_, identity)| identity.clone())
    }

    fn remember(&self, key: [u8; 32], identity: &PodIdentity) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() < REMEMBERED {
            known.insert(key, (Instant::now(), identity.clone()));
        }
    }

    async fn review(&self, token: &str) -> Result<PodIdentity, IdentityError> {
        let _permit = self.at_once.acquire().await.map_err(|error| IdentityError::Unavailable(error.to_string()))?;
        let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: Some(vec![AUDIENCE.to_owned()]) };
        let review = TokenReview { spec, ..TokenReview::default() };
        let unavailable = |error: kube::Error| IdentityError::Unavailable(error.to_string());
        let answer = Api::<TokenReview>::all(self.client.clone()).create(&PostParams::default(), &review).await.map_err(unavailable)?;
        let bound = bound_pod(&answer)?;
        let pods = Api::<Pod>::namespaced(self.client.clone(), &bound.namespace);
        let pod = pods.get_opt(&bound.pod).await.map_err(unavailable)?;
        let fleet = fleet_of(pod.as_ref(), &bound)?;
        let expires = expiry(token).ok_or_else(|| refused("the token does not say when it ends"))?;
        let Bound { namespace, pod, uid, service_account } = bound;
        Ok(PodIdentity { namespace, pod, uid, service_account, fleet, expires })
    }
}

impl Identity for TokenReviews {
    async fn pod(&self, token: &str) -> Result<PodIdentity, IdentityError> {
        let key = *blake3::hash(token.as_bytes()).as_bytes();
        if let Some(known) = self.remembered(&key) {
            return Ok(known);
        }
        let identity = self.review(token).await?;
        self.remember(key, &identity);
        Ok(identity)
    }

    fn interval(&self) -> Duration {
        self.interval
    }
}

/// The pod that a token is bound to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Bound {
    namespace: String,
    pod: String,
    uid: String,
    service_account: String,
}

fn refused(why: impl Into<String>) -> IdentityError {
    IdentityError::Refused(why.into())
}

/// The pod that the reviewed token is bound to, if it is one for us.
fn bound_pod(review: &TokenReview) -> Result<Bound, IdentityError> {
    let status = review.status.as_ref().ok_or_else(|| refused("the review has no result"))?;
    if status.authenticated != Some(true) {
        let why = status.error.as_deref().filter(|error| !error.is_empty()).unwrap_or("it is not authentic");
        return Err(refused(format!("the token is refused: {why}")));
    }
    // an API server that knows no audiences leaves them out, and then the token may be for anybody
    if !status.audiences.iter().flatten().any(|audience| audience == AUDIENCE) {
        return Err(refused(format!("the token is not for the audience {AUDIENCE}")));
    }
    let user = status.user.as_ref().ok_or_else(|| refused("the review names no user"))?;
    let name = user.username.as_deref().unwrap_or_default();
    let account = name.strip_prefix("system:serviceaccount:").and_then(|rest| rest.split_once(':'));
    let (namespace, service_account) = account.ok_or_else(|| refused(format!("{name} is no service account")))?;
    let pod = extra(user, "authentication.kubernetes.io/pod-name").ok_or_else(|| refused("the token is not bound to a pod"))?;
    let uid = extra(user, "authentication.kubernetes.io/pod-uid").ok_or_else(|| refused("the token is not bound to a pod"))?;
    Ok(Bound { namespace: namespace.to_owned(), pod, uid, service_account: service_account.to_owned() })
}

fn extra(user: &UserInfo, name: &str) -> Option<String> {
    user.extra.as_ref()?.get(name)?.first().cloned()
}

/// The fleet that `pod`, as it is found, belongs to: it has to be the very pod that the token is bound to.
fn fleet_of(pod: Option<&Pod>, bound: &Bound) -> Result<FleetId, IdentityError> {
    let name = format!("{}/{}", bound.namespace, bound.pod);
    let pod = pod.ok_or_else(|| refused(format!("pod {name} is gone")))?;
    if pod.metadata.uid.as_deref() != Some(&bound.uid) {
        return Err(refused(format!("pod {name} is another one by now")));
    }
    let label = pod.metadata.labels.as_ref().and_then(|labels| labels.get(FLEET_LABEL));
    let fleet = label.ok_or_else(|| refused(format!("pod {name} has no label {FLEET_LABEL}")))?;
    Ok(FleetId { namespace: bound.namespace.as_str().into(), name: fleet.as_str().into() })
}

/// When `token`, a JWT, ends by its own word: whoever asks has to trust it already, or lose by a lie.
pub(crate) fn expiry(token: &str) -> Option<SystemTime> {
    #[derive(Deserialize)]
    struct Claims {
        exp: u64,
    }
    let payload = token.split('.').nth(1)?;
    let claims: Claims = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(claims.exp))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn review() -> serde_json::Value {
        json!({
            "spec": {"token": "t"},
            "status": {
                "authenticated": true,
                "audiences": [AUDIENCE],
                "user": {
                    "username": "system:serviceaccount:infra:edge",
                    "extra": {
                        "authentication.kubernetes.io/pod-name": ["edge-0"],
                        "authentication.kubernetes.io/pod-uid": ["u1"],
                    },
                },
            },
        })
    }

    fn bound(change: impl FnOnce(&mut serde_json::Value)) -> Result<Bound, String> {
        let mut value = review();
        change(&mut value["status"]);
        bound_pod(&serde_json::from_value(value).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_token_bound_to_a_pod_and_made_for_us_names_its_pod() {
        let found = bound(|_| ()).unwrap();
        assert_eq!((found.namespace.as_str(), found.pod.as_str(), found.uid.as_str()), ("infra", "edge-0", "u1"));
        assert_eq!(found.service_account, "edge");
    }

    #[test]
    fn any_other_token_is_refused() {
        let why = |change: fn(&mut serde_json::Value)| bound(change).unwrap_err();
        assert_eq!(why(|status| status["authenticated"] = json!(false)), "the token is refused: it is not authentic");
        assert!(why(|status| status["audiences"] = json!(["https://kubernetes.default.svc"])).contains("is not for the audience"));
        assert!(why(|status| status["audiences"] = json!(null)).contains("is not for the audience"));
        assert_eq!(why(|status| status["user"]["username"] = json!("admin")), "admin is no service account");
        assert_eq!(why(|status| status["user"]["extra"] = json!({})), "the token is not bound to a pod");
    }

    #[test]
    fn a_pod_that_is_gone_replaced_or_of_no_fleet_is_refused() {
        let bound = bound(|_| ()).unwrap();
        let pod = |uid: &str, labels: serde_json::Value| -> Pod {
            serde_json::from_value(json!({"metadata": {"name": "edge-0", "uid": uid, "labels": labels}})).unwrap()
        };
        let why = |pod: Option<&Pod>| fleet_of(pod, &bound).unwrap_err().to_string();
        assert_eq!(why(None), "pod infra/edge-0 is gone");
        assert_eq!(why(Some(&pod("u2", json!({FLEET_LABEL: "edge"})))), "pod infra/edge-0 is another one by now");
        assert_eq!(why(Some(&pod("u1", json!({})))), "pod infra/edge-0 has no label haproxy-fleet.dev/fleet");
        let fleet = fleet_of(Some(&pod("u1", json!({FLEET_LABEL: "edge"}))), &bound).unwrap();
        assert_eq!(fleet.to_string(), "infra/edge");
    }

    #[test]
    fn the_end_of_a_token_is_read_from_it() {
        let token = format!("h.{}.s", URL_SAFE_NO_PAD.encode(r#"{"exp":1000,"sub":"x"}"#));
        assert_eq!(expiry(&token), Some(SystemTime::UNIX_EPOCH + Duration::from_secs(1000)));
        for token in ["", "a.b.c", "opaque", &format!("h.{}.s", URL_SAFE_NO_PAD.encode("{}"))] {
            assert_eq!(expiry(token), None, "{token}");
        }
    }
}
