//! The operator in a cluster: which of its pods to ask, and the way there.
//!
//! `/status` answers only from within the pod, which a port-forward is. So whoever may forward ports of the operator may
//! see it: it names objects of all tenants.

use super::fetch::{self, FetchError};
use crate::cli::Error;
use crate::operator::LEASE;
use crate::report::{counted, with_causes};
use crate::status::json::Status;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};
use std::error::Error as StdError;
use std::path::Path;
use std::time::Duration;

/// The pods of the operator, as `config/operator` labels them.
const OPERATOR: &str = "app.kubernetes.io/name=haproxy-fleet,app.kubernetes.io/component=operator";
/// The port of `/status`, by name and if nothing has that name.
const PORT: (&str, u16) = ("admin", 8080);
/// Time to connect to the API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// An answer of the API server takes no longer.
const READ_TIMEOUT: Duration = Duration::from_secs(30);

/// Where the operator is.
pub(super) struct Place<'p> {
    pub(super) kubeconfig: Option<&'p Path>,
    pub(super) context: Option<&'p str>,
    /// Its namespace.
    pub(super) namespace: &'p str,
}

/// What the operator says, and the namespace of the context.
pub(super) async fn status(place: &Place<'_>) -> Result<(Status, String), Error> {
    let (client, namespace) = client(place.kubeconfig, place.context).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), place.namespace);
    let found = pods.list(&ListParams::default().labels(OPERATOR)).await.map_err(|error| not_listed(&error, place.namespace))?;
    let candidates = candidates(&found.items, holder(client, place.namespace).await.as_deref());
    if candidates.is_empty() {
        return Err(none_ready(found.items.len(), place.namespace));
    }
    first_that_leads(&pods, &candidates, place.namespace).await.map(|status| (status, namespace))
}

/// A client of the cluster that a kubeconfig leads to, and the namespace of its context.
pub(in crate::cli) async fn client(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<(Client, String), Error> {
    let config = config(kubeconfig, context).await?;
    let namespace = config.default_namespace.clone();
    let failed = |error: kube::Error| Error::new(format_args!("cannot reach the cluster: {}", with_causes(&error)), "");
    Ok((Client::try_from(config).map_err(failed)?, namespace))
}

async fn config(kubeconfig: Option<&Path>, context: Option<&str>) -> Result<Config, Error> {
    let options = KubeConfigOptions { context: context.map(str::to_owned), ..KubeConfigOptions::default() };
    let unusable = |what: String, error: &(dyn StdError + 'static)| {
        let help = "name a kubeconfig by --kubeconfig or KUBECONFIG, and one of its contexts by --context";
        Error::new(format_args!("{what} cannot be used: {}", with_causes(error)), help)
    };
    let mut config = match kubeconfig {
        Some(path) => {
            let what = || format!("the kubeconfig {}", path.display());
            let read = Kubeconfig::read_from(path).map_err(|error| unusable(what(), &error))?;
            Config::from_custom_kubeconfig(read, &options).await.map_err(|error| unusable(what(), &error))?
        }
        None if context.is_some() => {
            Config::from_kubeconfig(&options).await.map_err(|error| unusable("the kubeconfig".to_owned(), &error))?
        }
        // in a pod its service account
        None => Config::infer().await.map_err(|error| unusable("the kubeconfig".to_owned(), &error))?,
    };
    config.connect_timeout = Some(CONNECT_TIMEOUT);
    config.read_timeout = Some(READ_TIMEOUT);
    Ok(config)
}

/// The pod that leads, if its Lease may be read.
async fn holder(client: Client, namespace: &str) -> Option<String> {
    let leases: Api<Lease> = Api::namespaced(client, namespace);
    let lease = leases.get_opt(LEASE).await.ok().flatten()?;
    let identity = lease.spec?.holder_identity?;
    Some(identity.rsplit_once('_').map_or(identity.as_str(), |(pod, _)| pod).to_owned())
}

/// A pod that may be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Candidate {
    name: String,
    port: u16,
}

/// The pods that are ready, `leader` before the others.
fn candidates(pods: &[Pod], leader: Option<&str>) -> Vec<Candidate> {
    let is_ready = |pod: &&Pod| {
        let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
        pod.metadata.deletion_timestamp.is_none()
            && conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
    };
    let mut found: Vec<Candidate> = pods
        .iter()
        .filter(is_ready)
        .map(|pod| Candidate { name: pod.metadata.name.clone().unwrap_or_default(), port: admin_port(pod) })
        .collect();
    found.sort_by_key(|candidate| (Some(candidate.name.as_str()) != leader, candidate.name.clone()));
    found
}

fn admin_port(pod: &Pod) -> u16 {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let mut ports = containers.flat_map(|container| container.ports.iter().flatten());
    let named = ports.find(|port| port.name.as_deref() == Some(PORT.0));
    named.and_then(|port| u16::try_from(port.container_port).ok()).unwrap_or(PORT.1)
}

/// What the first pod says that leads; a standby knows less, and is heard if nobody leads.
async fn first_that_leads(pods: &Api<Pod>, candidates: &[Candidate], namespace: &str) -> Result<Status, Error> {
    let mut standby = None;
    let mut failure = None;
    for candidate in candidates {
        match forwarded(pods, candidate).await {
            Ok(status) if status.operator.as_ref().is_none_or(|operator| operator.leads) => return Ok(status),
            Ok(status) => _ = standby.get_or_insert(status),
            Err(error) => _ = failure.get_or_insert_with(|| error.told(candidate, namespace)),
        }
    }
    let unknown = || Error::new("no pod of the operator was asked", "");
    standby.ok_or_else(|| failure.unwrap_or_else(unknown))
}

/// Why a pod could not be asked.
#[derive(Debug)]
enum Unreached {
    /// The API server leads nobody there.
    Way(kube::Error),
    /// The way is there, and what comes over it is of no use.
    Fetch(FetchError),
}

async fn forwarded(pods: &Api<Pod>, candidate: &Candidate) -> Result<Status, Unreached> {
    let mut forwarder = pods.portforward(&candidate.name, &[candidate.port]).await.map_err(Unreached::Way)?;
    // it is taken once
    let Some(stream) = forwarder.take_stream(candidate.port) else { return Err(Unreached::Fetch(FetchError::Late)) };
    fetch::from_stream(stream).await.map_err(Unreached::Fetch)
}

impl Unreached {
    fn told(&self, candidate: &Candidate, namespace: &str) -> Error {
        let pod = format!("{namespace}/{}", candidate.name);
        match self {
            Self::Way(error) if is_forbidden(error) => Error::new(
                format_args!("no port of pod {pod} may be forwarded: {}", with_causes(error)),
                format_args!("ask for the permission to create pods/portforward in namespace {namespace}"),
            ),
            Self::Way(error) => Error::new(
                format_args!("the port {} of pod {pod} cannot be forwarded: {}", candidate.port, with_causes(error)),
                format_args!("try it by hand: kubectl -n {namespace} port-forward pod/{} {}", candidate.name, candidate.port),
            ),
            Self::Fetch(error) => Error::new(format_args!("pod {pod}, port {}: {error}", candidate.port), error.help()),
        }
    }
}

/// A refused port-forward is no answer of the API, but a refused change of protocol.
fn is_forbidden(error: &kube::Error) -> bool {
    use kube::client::UpgradeConnectionError::ProtocolSwitch;
    match error {
        kube::Error::Api(status) => status.is_forbidden(),
        kube::Error::UpgradeConnection(ProtocolSwitch(code)) => *code == http::StatusCode::FORBIDDEN,
        _ => false,
    }
}

fn not_listed(error: &kube::Error, namespace: &str) -> Error {
    if is_forbidden(error) {
        return Error::new(
            format_args!("the pods of namespace {namespace} may not be listed: {}", with_causes(error)),
            format_args!(
                "ask for the permission to list pods and to create pods/portforward in namespace {namespace}, where the operator is"
            ),
        );
    }
    Error::new(
        format_args!("the API server does not answer: {}", with_causes(error)),
        "see whether kubectl gets an answer with the same context",
    )
}

fn none_ready(pods: usize, namespace: &str) -> Error {
    if pods == 0 {
        return Error::new(
            format_args!("there is no operator in namespace {namespace}"),
            "name its namespace by --operator-namespace, or install it: kubectl apply --server-side -k config/default",
        );
    }
    Error::new(
        format_args!("no pod of the operator in namespace {namespace} is ready ({})", counted(pods, "is not", "are not")),
        format_args!("see why: kubectl -n {namespace} describe pods -l {OPERATOR}"),
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use fleet_api_server::ApiServer;
    use serde_json::{Value, json};

    fn pod(name: &str, ready: bool, ports: &Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"containers": [{"name": "operator", "ports": ports}]},
            "status": {"conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}]},
        }))
        .unwrap()
    }

    #[test]
    fn the_leader_is_asked_before_others_and_who_is_not_ready_is_not_asked() {
        let ports = json!([{"name": "delivery", "containerPort": 9443}, {"name": "admin", "containerPort": 8081}]);
        let pods = [pod("a", true, &ports), pod("b", false, &json!([])), pod("c", true, &json!([]))];
        let names = |leader| candidates(&pods, leader).into_iter().map(|one| (one.name, one.port)).collect::<Vec<_>>();
        let (a, c) = (("a".to_owned(), 8081), ("c".to_owned(), 8080));
        assert_eq!(names(Some("c")), [c.clone(), a.clone()]);
        assert_eq!(names(None), [a.clone(), c.clone()]);
        assert_eq!(names(Some("b")), [a, c]);
    }

    #[tokio::test]
    async fn the_holder_of_the_lease_is_the_pod_that_leads() {
        let server = ApiServer::new();
        assert_eq!(holder(server.client(), "kube-system").await, None);
        let metadata = json!({"namespace": "kube-system", "name": LEASE});
        let lease = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata,
            "spec": {"holderIdentity": "haproxy-fleet-5d_0123456789abcdef"}});
        server.put(&lease).unwrap();
        assert_eq!(holder(server.client(), "kube-system").await.as_deref(), Some("haproxy-fleet-5d"));
    }

    #[test]
    fn what_is_not_permitted_names_the_permission() {
        let candidate = Candidate { name: "haproxy-fleet-0".into(), port: 8080 };
        let refused = kube::client::UpgradeConnectionError::ProtocolSwitch(http::StatusCode::FORBIDDEN);
        let told = Unreached::Way(kube::Error::UpgradeConnection(refused)).told(&candidate, "system").to_string();
        assert!(told.contains("no port of pod system/haproxy-fleet-0 may be forwarded"), "{told}");
        assert!(told.contains("help: ask for the permission to create pods/portforward in namespace system"), "{told}");
        assert!(none_ready(0, "system").to_string().contains("there is no operator in namespace system\n   = help: name its namespace"));
        assert!(none_ready(2, "system").to_string().contains("no pod of the operator in namespace system is ready (2 are not)"));
    }
}
