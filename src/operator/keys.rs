//! The keys of every fleet: those of TLS session tickets, the same in all its pods, and the certificate that it serves
//! where no other fits. They are made once and kept in the fleet's Secret.

use crate::haproxy::tickets::ticket_keys;
use crate::model::FleetId;
use crate::report::PrivateBytes;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use std::collections::BTreeMap;
use tokio::sync::Mutex;

/// What the keys of tickets are called in the Secret.
const TICKETS: &str = "tickets";
/// What the certificate is called there.
const CERTIFICATE: &str = "default.pem";

/// The keys of one fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    /// As `tls-ticket-keys` takes them.
    pub(super) tickets: PrivateBytes,
    /// Certificate and key, PEM.
    pub(super) default_certificate: PrivateBytes,
}

/// Why there are no keys.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeysError {
    /// The Secret cannot be read.
    #[error("the Secret {name} cannot be read: {source}")]
    Read {
        /// Its name.
        name: String,
        /// Why.
        source: kube::Error,
    },
    /// No certificate can be made.
    #[error("no certificate can be made: {0}")]
    Certificate(#[from] rcgen::Error),
    /// There are no random numbers.
    #[error("the system has no random numbers")]
    Random,
}

/// The keys of all fleets.
pub(super) struct KeyStore {
    client: Client,
    known: Mutex<BTreeMap<FleetId, Keys>>,
}

impl KeyStore {
    pub(super) fn new(client: Client) -> Self {
        Self { client, known: Mutex::default() }
    }

    /// The keys of `fleet`, whose Secret is called `name`: those that it holds, else new ones. New ones stay the same
    /// until they are written.
    pub(super) async fn of(&self, fleet: &FleetId, name: &str) -> Result<Keys, KeysError> {
        let mut known = self.known.lock().await;
        if let Some(keys) = known.get(fleet) {
            return Ok(keys.clone());
        }
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &fleet.namespace);
        let secret = api.get_opt(name).await.map_err(|source| KeysError::Read { name: name.to_owned(), source })?;
        let keys = match secret.as_ref().and_then(held) {
            Some(keys) => keys,
            None => make(fleet)?,
        };
        known.insert(fleet.clone(), keys.clone());
        Ok(keys)
    }
}

/// The keys that a Secret holds, if it holds both.
fn held(secret: &Secret) -> Option<Keys> {
    let data = secret.data.as_ref()?;
    let part = |name: &str| data.get(name).filter(|bytes| !bytes.0.is_empty()).map(|bytes| PrivateBytes::new(bytes.0.clone()));
    Some(Keys { tickets: part(TICKETS)?, default_certificate: part(CERTIFICATE)? })
}

fn make(fleet: &FleetId) -> Result<Keys, KeysError> {
    let mut secret = [0; 32];
    rustls::crypto::ring::default_provider().secure_random.fill(&mut secret).map_err(|_| KeysError::Random)?;
    let made = rcgen::generate_simple_self_signed(vec![format!("{}.{}.invalid", fleet.name, fleet.namespace)])?;
    let pem = format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem());
    Ok(Keys {
        tickets: PrivateBytes::new(ticket_keys(&secret, &fleet.to_string())),
        default_certificate: PrivateBytes::new(pem.into_bytes()),
    })
}
