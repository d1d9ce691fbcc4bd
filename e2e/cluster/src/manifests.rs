//! What every cluster holds from the start: its DNS and its metrics API.

use crate::error::ClusterError;
use crate::images;
use crate::layout::Layout;
use crate::network::DNS;
use serde_json::{Value, json};
use std::fs;

const COREDNS: &str = include_str!("../manifests/coredns.yaml");
const METRICS_SERVER: &str = include_str!("../manifests/metrics-server.yaml");

/// All of it, to apply.
pub(crate) fn all(layout: &Layout) -> Result<String, ClusterError> {
    let read = |name: &str| {
        let path = layout.pki().join(name);
        fs::read_to_string(&path).map_err(ClusterError::file(path))
    };
    let tls = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": { "name": "metrics-server", "namespace": "kube-system" },
        "stringData": { "tls.crt": read("metrics-server.crt")?, "tls.key": read("metrics-server.key")? },
    });
    let parts = [
        COREDNS.replace("IMAGE", images::COREDNS).replace("DNS_V4", &DNS.v4.to_string()).replace("DNS_V6", &DNS.v6.to_string()),
        METRICS_SERVER.replace("IMAGE", images::METRICS_SERVER),
        tls.to_string(),
        metrics_api(&read("ca.crt")?).to_string(),
    ];
    Ok(parts.join("\n---\n"))
}

/// Where the API server finds the metrics API, and whom it trusts there.
fn metrics_api(authority: &str) -> Value {
    json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
        "metadata": { "name": "v1beta1.metrics.k8s.io" },
        "spec": {
            "group": "metrics.k8s.io", "version": "v1beta1", "groupPriorityMinimum": 100, "versionPriority": 100,
            "service": { "name": "metrics-server", "namespace": "kube-system" },
            "caBundle": k8s_openapi::ByteString(authority.as_bytes().to_vec()),
        },
    })
}
