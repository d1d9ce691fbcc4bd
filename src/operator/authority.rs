//! Keeps the operator's own authority in its Secret: the leader makes and renews it, every replica uses it.

use super::settings::AUTHORITY_SECRET;
use crate::delivery::certificates::{Material, MaterialError, Plan, carry_out, plan};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::sync::watch;

/// How often the Secret is read: what another replica made is used so much later.
const READ_INTERVAL: Duration = Duration::from_secs(10);
/// While there is nothing to use.
const HURRY: Duration = Duration::from_millis(500);

/// What others need of the authority.
#[derive(Clone, Debug)]
pub(super) struct Trust {
    /// What the server shows.
    pub(super) server: Arc<rustls::ServerConfig>,
    /// What agents have to trust, as PEM.
    pub(super) bundle: Arc<str>,
}

#[derive(Debug, thiserror::Error)]
enum AuthorityError {
    #[error(transparent)]
    Client(#[from] kube::Error),
    #[error(transparent)]
    Material(#[from] MaterialError),
}

/// Keeps `trust` up with the Secret, and the Secret with the time. `client` writes only at the leader.
pub(super) async fn keep(client: Client, namespace: String, names: Vec<String>, trust: watch::Sender<Option<Trust>>) {
    let api: Api<Secret> = Api::namespaced(client, &namespace);
    let mut known: Option<Material> = None;
    let mut troubled = false;
    loop {
        match read_or_make(&api, &names).await {
            Ok(material) => {
                troubled = false;
                if material.is_some() && material != known {
                    match material.as_ref().map(trust_of).transpose() {
                        Ok(found) => _ = trust.send_replace(found),
                        Err(error) => tracing::error!(%error, secret = AUTHORITY_SECRET, "the operator's authority cannot be used"),
                    }
                    known = material;
                }
            }
            Err(error) => {
                // a standby is not let through to write: that is no trouble
                if !matches!(&error, AuthorityError::Client(error) if super::fence::Fenced::of(error).is_some()) && !troubled {
                    tracing::error!(%error, secret = AUTHORITY_SECRET, "the operator's authority cannot be read or made; trying again");
                    troubled = true;
                }
            }
        }
        tokio::time::sleep(if known.is_some() { READ_INTERVAL } else { HURRY }).await;
    }
}

fn trust_of(material: &Material) -> Result<Trust, MaterialError> {
    Ok(Trust { server: material.server_config()?, bundle: material.bundle().into() })
}

/// What the Secret holds, after what had to be done about it. What is not readable is made anew.
async fn read_or_make(api: &Api<Secret>, names: &[String]) -> Result<Option<Material>, AuthorityError> {
    let secret = api.get_opt(AUTHORITY_SECRET).await?;
    let data: Option<BTreeMap<String, Vec<u8>>> =
        secret.as_ref().map(|secret| secret.data.iter().flatten().map(|(name, value)| (name.clone(), value.0.clone())).collect());
    let existing = match data.as_ref().map(Material::from_data).transpose() {
        Ok(existing) => existing,
        Err(error) => {
            tracing::error!(%error, secret = AUTHORITY_SECRET, "the operator's authority is damaged and made anew");
            None
        }
    };
    let now = SystemTime::now();
    let plan = plan(now, existing.as_ref(), names);
    if matches!(plan, Plan::Keep { .. }) {
        return Ok(existing);
    }
    let material = carry_out(plan, existing.clone(), now, names)?;
    match write(api, secret, &material).await {
        Ok(()) => {
            tracing::info!(?plan, "the operator's authority was renewed");
            Ok(Some(material))
        }
        // what is there still works for others, and for the time being for us
        Err(error) if existing.is_some() => {
            tracing::debug!(%error, ?plan, "the operator's authority was not renewed");
            Ok(existing)
        }
        Err(error) => Err(error.into()),
    }
}

async fn write(api: &Api<Secret>, secret: Option<Secret>, material: &Material) -> kube::Result<()> {
    let data = Some(material.to_data().into_iter().map(|(name, value)| (name, ByteString(value))).collect());
    let parameters = PostParams::default();
    if let Some(secret) = secret {
        // with its resourceVersion: two that write at once do not undo each other
        return api.replace(AUTHORITY_SECRET, &parameters, &Secret { data, ..secret }).await.map(drop);
    }
    let labels = Some(BTreeMap::from([("app.kubernetes.io/managed-by".to_owned(), "haproxy-fleet".to_owned())]));
    let metadata = ObjectMeta { name: Some(AUTHORITY_SECRET.to_owned()), labels, ..ObjectMeta::default() };
    api.create(&parameters, &Secret { metadata, data, ..Secret::default() }).await.map(drop)
}
