//! The keys of every fleet: those of TLS session tickets, the same in all its pods, and the certificate that it serves
//! where no other fits. They are kept in the fleet's Secret; the certificate as it was made, those of tickets from turn to
//! turn.

use crate::fleet::build::ANNOTATION_TICKETS_SINCE;
use crate::haproxy::tickets::{ticket_keys, turned};
use crate::model::FleetId;
use crate::report::PrivateBytes;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::{Api, Client};
use std::collections::BTreeMap;
use tokio::sync::Mutex;

/// What the keys of tickets are called in the Secret.
const TICKETS: &str = "tickets";
/// What the certificate is called there.
const CERTIFICATE: &str = "default.pem";

/// A key is known to all pods for so long, then encrypts for so long, and then is good for tickets of before for so long.
const TURN: SignedDuration = SignedDuration::from_hours(12);

/// The keys of one fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    /// As `tls-ticket-keys` takes them.
    pub(super) tickets: PrivateBytes,
    /// Since when these.
    pub(super) since: Timestamp,
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
    /// What was made for a fleet and may not be in its Secret yet, with what was there then.
    made: Mutex<BTreeMap<FleetId, (Option<Keys>, Keys)>>,
}

impl KeyStore {
    pub(super) fn new(client: Client) -> Self {
        Self { client, made: Mutex::default() }
    }

    /// The keys of `fleet` at `now`, whose Secret is called `name`: those that it holds, a turn later once it is time, else
    /// new ones. What is made stays the same until it is written.
    pub(super) async fn of(&self, fleet: &FleetId, name: &str, now: Timestamp) -> Result<Keys, KeysError> {
        let mut made = self.made.lock().await;
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &fleet.namespace);
        let secret = api.get_opt(name).await.map_err(|source| KeysError::Read { name: name.to_owned(), source })?;
        let held = secret.as_ref().and_then(|secret| held(secret, now));
        if let Some(held) = held.as_ref().filter(|held| now.duration_since(held.since) < TURN) {
            made.remove(fleet);
            return Ok(held.clone());
        }
        if let Some((_, keys)) = made.get(fleet).filter(|(before, _)| *before == held) {
            return Ok(keys.clone());
        }
        let keys = match &held {
            Some(held) => turn(fleet, held, now)?,
            None => make(fleet, now)?,
        };
        made.insert(fleet.clone(), (held, keys.clone()));
        Ok(keys)
    }
}

/// The keys that a Secret holds, if it holds both. Since `now`, if it does not say since when.
fn held(secret: &Secret, now: Timestamp) -> Option<Keys> {
    let data = secret.data.as_ref()?;
    let part = |name: &str| data.get(name).filter(|bytes| !bytes.0.is_empty()).map(|bytes| PrivateBytes::new(bytes.0.clone()));
    let said = secret.metadata.annotations.as_ref().and_then(|annotations| annotations.get(ANNOTATION_TICKETS_SINCE));
    // a clock that was ahead is not waited for
    let since = said.and_then(|text| text.parse::<Timestamp>().ok()).map_or(now, |since| since.min(now));
    Some(Keys { tickets: part(TICKETS)?, since, default_certificate: part(CERTIFICATE)? })
}

/// `held` a turn later; if there are no keys in it, new ones.
fn turn(fleet: &FleetId, held: &Keys, now: Timestamp) -> Result<Keys, KeysError> {
    let tickets = match turned(held.tickets.expose(), &random()?) {
        Some(tickets) => tickets,
        None => ticket_keys(&random::<32>()?, &fleet.to_string()),
    };
    Ok(Keys { tickets: PrivateBytes::new(tickets), since: now, ..held.clone() })
}

fn random<const LENGTH: usize>() -> Result<[u8; LENGTH], KeysError> {
    let mut bytes = [0; LENGTH];
    rustls::crypto::ring::default_provider().secure_random.fill(&mut bytes).map_err(|_| KeysError::Random)?;
    Ok(bytes)
}

fn make(fleet: &FleetId, now: Timestamp) -> Result<Keys, KeysError> {
    let made = rcgen::generate_simple_self_signed(vec![format!("{}.{}.invalid", fleet.name, fleet.namespace)])?;
    let pem = format!("{}{}", made.cert.pem(), made.signing_key.serialize_pem());
    Ok(Keys {
        tickets: PrivateBytes::new(ticket_keys(&random::<32>()?, &fleet.to_string())),
        since: now,
        default_certificate: PrivateBytes::new(pem.into_bytes()),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::haproxy::tickets::to_give;
    use fleet_api_server::ApiServer;
    use serde_json::json;

    const NAME: &str = "edge-keys";

    fn fleet() -> FleetId {
        FleetId { namespace: "infra".into(), name: "edge".into() }
    }

    fn server() -> ApiServer {
        let server = ApiServer::new();
        server.put(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "infra"}})).unwrap();
        server
    }

    fn store(server: &ApiServer) -> KeyStore {
        KeyStore::new(Client::new(server.clone(), "default"))
    }

    fn at(hours: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + hours * 3600).unwrap()
    }

    /// What the controller does with the keys that it is given.
    fn write(server: &ApiServer, keys: &Keys) {
        let text = |bytes: &PrivateBytes| json!(k8s_openapi::ByteString(bytes.expose().to_vec()));
        let annotations = json!({ANNOTATION_TICKETS_SINCE: keys.since.to_string()});
        let metadata = json!({"namespace": "infra", "name": NAME, "annotations": annotations});
        let data = json!({TICKETS: text(&keys.tickets), CERTIFICATE: text(&keys.default_certificate)});
        server.put(&json!({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data})).unwrap();
    }

    /// How many of the keys of `after` are new to somebody who holds `before`.
    fn new(before: &Keys, after: &Keys) -> usize {
        to_give(before.tickets.expose(), after.tickets.expose()).unwrap().len()
    }

    #[tokio::test]
    async fn keys_are_made_once_and_take_a_turn_twice_a_day_whoever_leads() {
        let server = server();
        let (one, two) = (store(&server), store(&server));
        let made = one.of(&fleet(), NAME, at(0)).await.unwrap();
        assert_eq!(one.of(&fleet(), NAME, at(1)).await.unwrap(), made, "the write of before may have failed");
        write(&server, &made);
        for store in [&one, &two] {
            assert_eq!(store.of(&fleet(), NAME, at(11)).await.unwrap(), made);
        }
        let turned = two.of(&fleet(), NAME, at(13)).await.unwrap();
        assert_eq!((new(&made, &turned), turned.since), (1, at(13)));
        assert_eq!(turned.default_certificate, made.default_certificate);
        assert_eq!(two.of(&fleet(), NAME, at(14)).await.unwrap(), turned, "the write of before may have failed");
        write(&server, &turned);
        assert_eq!(one.of(&fleet(), NAME, at(15)).await.unwrap(), turned, "what it knew of before counts no more");
        assert_eq!(new(&turned, &one.of(&fleet(), NAME, at(400)).await.unwrap()), 1, "one turn, however long nobody was there");
    }

    #[tokio::test]
    async fn keys_that_are_none_are_made_anew_and_those_of_no_known_time_are_from_now_on() {
        let server = server();
        let store = store(&server);
        let made = store.of(&fleet(), NAME, at(0)).await.unwrap();
        write(&server, &Keys { tickets: PrivateBytes::new(b"damaged".to_vec()), ..made.clone() });
        assert_eq!(new(&made, &store.of(&fleet(), NAME, at(13)).await.unwrap()), 3);
        write(&server, &made);
        let take = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "infra", "name": NAME,
            "annotations": {ANNOTATION_TICKETS_SINCE: "yesterday"}}});
        server.put(&take).unwrap();
        assert_eq!(store.of(&fleet(), NAME, at(400)).await.unwrap(), Keys { since: at(400), ..made });
    }
}
