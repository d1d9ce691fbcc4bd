//! Takes a fleet down: clients are led away, then pods drain and end, then the load balancer goes, then the fleet.
//!
//! Each look takes every step that can be taken, from what is there; nothing but the start of a wait is remembered. Every
//! wait is bounded: a fleet can always be deleted.

use super::Settings;
use super::look::{Withdraw, has_finalizer};
use crate::fleet::apply::{Applier, ApplyError, FLEET, FleetKey, KINDS, MANAGED_BY, api};
use crate::report::{Diagnostic, codes};
use kube::Client;
use kube::api::ListParams;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How far a deletion is: what it waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Ingresses stop telling the fleet's address.
    Withdrawing,
    /// Pods drain and end.
    Draining,
    /// The load balancer is taken down.
    Releasing,
    /// Nothing: the fleet may go.
    Done,
}

/// Grace that pods have when nothing is said.
const DEFAULT_GRACE: u64 = 30;

/// The deletion of one fleet.
pub(super) struct Deletion {
    fleet: FleetKey,
    withdraw: Arc<dyn Withdraw>,
    namespaces: Option<BTreeSet<String>>,
    withdrawal: Duration,
    slack: Duration,
    /// Whose: one of the same name that comes later is another one.
    uid: String,
    /// When it was first seen to be deleted, and when each wait began.
    since: Option<Instant>,
    draining: Option<Instant>,
    releasing: Option<Instant>,
    /// The longest grace period of a pod that was seen.
    grace: Duration,
}

impl Deletion {
    pub(super) fn new(fleet: FleetKey, settings: &Settings, withdraw: Arc<dyn Withdraw>) -> Self {
        Self {
            fleet,
            withdraw,
            namespaces: settings.namespaces.clone(),
            withdrawal: settings.withdrawal,
            slack: settings.slack,
            uid: String::new(),
            since: None,
            draining: None,
            releasing: None,
            grace: Duration::ZERO,
        }
    }

    /// Goes as far as it can, and says what it waits for. `fleet` is the object.
    pub(super) async fn advance(
        &mut self,
        client: &Client,
        applier: &Applier,
        fleet: &Value,
    ) -> Result<(Step, Vec<Diagnostic>), ApplyError> {
        self.is_of(fleet["metadata"]["uid"].as_str().unwrap_or_default());
        let (spec, mut problems) = (&fleet["spec"], Vec::new());
        let since = *self.since.get_or_insert_with(Instant::now);
        if !self.withdraw.is_withdrawn(&self.fleet) {
            if since.elapsed() < self.withdrawal {
                return Ok((Step::Withdrawing, problems));
            }
            problems.push(self.given_up("some Ingresses still tell its address"));
        }
        // what would make new pods first
        let scalers = self.remove_all(applier, "HorizontalPodAutoscaler").await?;
        let deployments = self.remove_all(applier, "Deployment").await?;
        let pods = self.pods(client).await?;
        if scalers + deployments + pods.len() > 0 {
            self.grace = pods.iter().map(grace).max().unwrap_or_default().max(self.grace);
            let since = *self.draining.get_or_insert_with(Instant::now);
            if scalers + deployments > 0 || since.elapsed() < self.grace + self.slack {
                return Ok((Step::Draining, problems));
            }
            problems.push(self.given_up("some of its pods do not end"));
        }
        let services = self.remove(applier, "Service", |service| !is_retained(spec, &self.fleet.name, service)).await?;
        if services > 0 {
            let since = *self.releasing.get_or_insert_with(Instant::now);
            if since.elapsed() < self.slack {
                return Ok((Step::Releasing, problems));
            }
            problems.push(self.given_up("its load balancer is not taken down; its own controller goes on with that"));
        }
        // the rest has the fleet as its owner
        let is_done = match self.heir(client, spec["ingressClassName"].as_str().unwrap_or_default()).await? {
            Some(heir) => applier.hand_over(&heir).await?,
            None => self.remove_all(applier, "IngressClass").await? == 0,
        };
        Ok((if is_done { Step::Done } else { Step::Releasing }, problems))
    }

    /// Forgets the waits of a fleet of the same name that is gone.
    fn is_of(&mut self, uid: &str) {
        if self.uid != uid {
            uid.clone_into(&mut self.uid);
            (self.since, self.draining, self.releasing, self.grace) = (None, None, None, Duration::ZERO);
        }
    }

    /// The oldest of the other fleets of the class that have objects and stay.
    async fn heir(&self, client: &Client, class: &str) -> Result<Option<FleetKey>, ApplyError> {
        let places: Vec<Option<&str>> = match &self.namespaces {
            Some(namespaces) => namespaces.iter().map(|namespace| Some(namespace.as_str())).collect(),
            None => vec![None],
        };
        let mut heirs = Vec::new();
        for namespace in places {
            let api = api(client, crate::api::API_VERSION, "IngressDeployment", "ingressdeployments", namespace);
            let found = api.list(&ListParams::default()).await;
            let found = found.map_err(|error| ApplyError::new("list", "IngressDeployment", "", error))?;
            heirs.extend(found.items.into_iter().filter_map(|fleet| {
                let fleet = json!(fleet);
                let text = |field: &str| fleet["metadata"][field].as_str().unwrap_or_default().to_owned();
                let key = FleetKey { namespace: text("namespace"), name: text("name") };
                let stays = fleet["spec"]["ingressClassName"] == class && fleet["metadata"]["deletionTimestamp"].is_null();
                // one that nothing was made for has no finalizer, and would take nothing along when it goes
                (stays && has_finalizer(&fleet) && key != self.fleet).then(|| (text("creationTimestamp"), key))
            }));
        }
        // times of one form sort as texts
        Ok(heirs.into_iter().min().map(|(_, heir)| heir))
    }

    /// Deletes all objects of a kind, and says how many are still there.
    async fn remove_all(&self, applier: &Applier, kind: &str) -> Result<usize, ApplyError> {
        self.remove(applier, kind, |_| true).await
    }

    /// The same of those that `goes` is true of.
    async fn remove(&self, applier: &Applier, kind: &str, goes: impl Fn(&Value) -> bool) -> Result<usize, ApplyError> {
        let mut left = 0;
        for (api_version, kind, plural, namespaced) in KINDS.into_iter().filter(|(_, other, ..)| *other == kind) {
            for object in applier.ours(api_version, kind, plural, namespaced).await?.into_iter().filter(&goes) {
                let is_going = !object["metadata"]["deletionTimestamp"].is_null();
                if is_going || !applier.remove(api_version, kind, plural, &object).await? {
                    left += 1;
                }
            }
        }
        Ok(left)
    }

    async fn pods(&self, client: &Client) -> Result<Vec<Value>, ApplyError> {
        let selector = format!("{FLEET}={},{}={}", self.fleet.name, MANAGED_BY.0, MANAGED_BY.1);
        let api = api(client, "v1", "Pod", "pods", Some(&self.fleet.namespace));
        let found = api.list(&ListParams::default().labels(&selector)).await;
        let found = found.map_err(|error| ApplyError::new("list", "Pod", "", error))?;
        Ok(found.items.into_iter().map(|pod| json!(pod)).collect())
    }

    fn given_up(&self, why: &str) -> Diagnostic {
        let help = "its deletion goes on";
        Diagnostic::warning(&self.fleet.object(), "", codes::NOT_APPLIED, format!("waited long enough while it is deleted: {why}"), help)
    }
}

/// Whether a Service of the fleet is to outlive it.
fn is_retained(spec: &Value, fleet: &str, service: &Value) -> bool {
    let name = service["metadata"]["name"].as_str().unwrap_or_default();
    let publishing = &spec["publishing"];
    let mut additional = publishing["additionalServices"].as_array().into_iter().flatten();
    let said = match name.strip_prefix(fleet) {
        Some("") => Some(publishing),
        Some(rest) => additional.find(|service| service["name"].as_str().is_some_and(|name| rest.strip_prefix('-') == Some(name))),
        None => None,
    };
    service["spec"]["type"] == "LoadBalancer" && said.is_some_and(|said| said["loadBalancer"]["deletionPolicy"] == "Retain")
}

fn grace(pod: &Value) -> Duration {
    Duration::from_secs(pod["spec"]["terminationGracePeriodSeconds"].as_u64().unwrap_or(DEFAULT_GRACE))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Nobody;

    impl Withdraw for Nobody {
        fn is_withdrawn(&self, _: &FleetKey) -> bool {
            true
        }
    }

    #[tokio::test]
    async fn a_fleet_that_is_made_anew_under_its_name_is_waited_for_anew() {
        let key = FleetKey { namespace: "infra".to_owned(), name: "edge".to_owned() };
        let mut deletion = Deletion::new(key, &Settings::default(), Arc::new(Nobody));
        deletion.is_of("uid-1");
        (deletion.since, deletion.draining, deletion.grace) = (Some(Instant::now()), Some(Instant::now()), Duration::from_secs(60));
        deletion.is_of("uid-1");
        assert!(deletion.since.is_some() && deletion.draining.is_some());
        deletion.is_of("uid-2");
        assert_eq!((deletion.since, deletion.draining, deletion.grace), (None, None, Duration::ZERO));
    }
}
