//! The cluster with the operator in it.

use crate::{Failure, Outcome, SOON, eventually};
use fleet_cluster::{Cluster, Layout};
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use tokio::sync::OnceCell;

/// The operator's namespace.
pub const SYSTEM: &str = "haproxy-fleet-system";
/// A server that says who it is.
pub const ECHO: &str = fleet_cluster::ECHO;

static SETTING: OnceCell<Setting> = OnceCell::const_new();

/// The cluster with the operator in it, for all suites of a run.
#[derive(Debug)]
pub struct Setting {
    /// Ours on this machine. `None`: the one that `KUBECONFIG` names.
    cluster: Option<Cluster>,
}

impl Setting {
    /// The cluster: ours if this runs in its network, else the one that `KUBECONFIG` names.
    pub async fn shared() -> Outcome<&'static Self> {
        SETTING
            .get_or_try_init(|| async {
                let cluster = Cluster::new(Layout::from_environment()?);
                if cluster.is_inside() {
                    return Ok(Self { cluster: Some(cluster) });
                }
                if std::env::var_os("KUBECONFIG").is_none() {
                    return Err(Failure::new("there is no cluster: use `make e2e`, or set KUBECONFIG"));
                }
                Ok(Self { cluster: None })
            })
            .await
    }

    /// The cluster itself, to disturb it; `None` if it is not ours to disturb.
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// The cluster itself, where it has to be ours.
    pub fn ours(&self) -> Outcome<&Cluster> {
        self.cluster().ok_or_else(|| Failure::new("this takes the cluster of `make cluster-up`"))
    }

    /// A client of the API server.
    pub async fn client(&self) -> Outcome<kube::Client> {
        let config = match &self.cluster {
            Some(cluster) => {
                let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig()).map_err(Failure::new)?;
                kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.map_err(Failure::new)?
            }
            None => kube::Config::infer().await.map_err(Failure::new)?,
        };
        Ok(kube::Client::try_from(config)?)
    }

    pub(crate) fn kubectl_program(&self) -> PathBuf {
        self.cluster.as_ref().map_or_else(|| "kubectl".into(), |cluster| cluster.layout().program("kubectl"))
    }

    pub(crate) fn environment(&self) -> BTreeMap<OsString, OsString> {
        self.cluster.iter().map(|cluster| ("KUBECONFIG".into(), cluster.kubeconfig().into())).collect()
    }

    pub(crate) fn audit_log(&self) -> Option<PathBuf> {
        self.cluster.as_ref().map(|cluster| cluster.layout().audit_log())
    }

    /// Installs what `config/default` says, and waits until it runs.
    pub async fn install(&self) -> Outcome {
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/default");
        self.kubectl(&["apply", "--server-side", "--force-conflicts", "-k", &config.display().to_string()]).await?;
        self.kubectl(&["-n", SYSTEM, "rollout", "status", "deployment/haproxy-fleet", "--timeout=180s"]).await.map(drop)
    }

    /// Takes away what [`install`](Self::install) brought.
    pub async fn uninstall(&self) -> Outcome {
        let config = Path::new(env!("CARGO_MANIFEST_DIR")).join("../config/default");
        self.kubectl(&["delete", "-k", &config.display().to_string(), "--ignore-not-found", "--timeout=180s"]).await.map(drop)
    }

    /// A namespace with nothing in it. One that a former run left is removed first.
    pub async fn namespace(&self, name: &str) -> Outcome {
        self.kubectl(&["delete", "namespace", name, "--ignore-not-found", "--timeout=180s"]).await?;
        self.kubectl(&["create", "namespace", name]).await?;
        eventually("the default service account", SOON, || async {
            self.kubectl(&["-n", name, "get", "serviceaccount", "default"]).await.map(drop)
        })
        .await
    }

    /// Takes down the fleets of `namespaces` and then these, which need not be gone when this returns.
    pub async fn remove(&self, namespaces: &[&str]) -> Outcome {
        for namespace in namespaces {
            self.kubectl(&["-n", namespace, "delete", "ingd", "--all", "--timeout=180s"]).await?;
        }
        self.kubectl(&[&["delete", "namespace", "--wait=false"], namespaces].concat()).await.map(drop)
    }

    /// The address of the Service of a fleet, once it has one.
    pub async fn address(&self, namespace: &str, fleet: &str, port: u16) -> Outcome<SocketAddr> {
        eventually("an address of the fleet", SOON, || async {
            let status = self.fleet(namespace, fleet).await?;
            let address: IpAddr = status["address"].as_str().and_then(|text| text.parse().ok()).ok_or_else(|| Failure::new("none yet"))?;
            Ok(SocketAddr::new(address, port))
        })
        .await
    }

    /// The status of a fleet.
    pub async fn fleet(&self, namespace: &str, fleet: &str) -> Outcome<Value> {
        Ok(self.get(&["ingd", "-n", namespace, fleet]).await?["status"].clone())
    }

    /// Waits until a fleet is ready in its present generation.
    pub async fn ready(&self, namespace: &str, fleet: &str) -> Outcome {
        self.kubectl(&["-n", namespace, "wait", "--for=condition=Ready", "--timeout=180s", &format!("ingd/{fleet}")]).await.map(drop)
    }

    /// The pods of a fleet that are not on their way out, by name.
    pub async fn pods(&self, namespace: &str, fleet: &str) -> Outcome<Vec<Value>> {
        let list = self.get(&["pods", "-n", namespace, "-l", &format!("haproxy-fleet.dev/fleet={fleet}")]).await?;
        let pods = list["items"].as_array().cloned().unwrap_or_default();
        Ok(pods.into_iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null()).collect())
    }
}

/// Manifests of `replicas` echo servers behind the Service `name`.
pub fn echo(namespace: &str, name: &str, replicas: usize) -> String {
    format!(
        "apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 15
      containers:
      - name: echo
        image: {ECHO}
        ports: [{{name: http, containerPort: 8080}}]
        readinessProbe: {{httpGet: {{path: /readyz, port: http}}, periodSeconds: 1}}
        lifecycle: {{preStop: {{sleep: {{seconds: 3}}}}}}
        resources: {{requests: {{cpu: 5m, memory: 16Mi}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  selector: {{app: {name}}}
  ports: [{{name: http, port: 80, targetPort: http}}]
"
    )
}

/// An Ingress of `class` from `host` to the Service `service`.
pub fn ingress(namespace: &str, name: &str, class: &str, host: &str, service: &str) -> String {
    format!(
        "apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  ingressClassName: {class}
  rules:
  - host: {host}
    http:
      paths:
      - {{path: /, pathType: Prefix, backend: {{service: {{name: {service}, port: {{number: 80}}}}}}}}
"
    )
}

/// A fleet of `replicas` pods with short phases of its drain.
pub fn fleet(namespace: &str, name: &str, class: &str, replicas: usize) -> String {
    format!(
        "apiVersion: haproxy-fleet.dev/v1alpha1
kind: IngressDeployment
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  ingressClassName: {class}
  replicas: {replicas}
  rollout: {{minReadySeconds: 2}}
  drain: {{deregistrationDelay: 3s, timeout: 10s}}
"
    )
}
