//! API servers alone. They need what `fleet-cluster build` makes: `cargo test -p fleet-cluster -- --ignored` runs them.
#![allow(clippy::unwrap_used)]

use fleet_cluster::ApiServer;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ListParams};
use kube::config::{KubeConfigOptions, Kubeconfig};

async fn namespaces(server: &ApiServer) -> Vec<String> {
    let file = Kubeconfig::read_from(server.kubeconfig()).unwrap();
    let config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.unwrap();
    let api: Api<Namespace> = Api::all(kube::Client::try_from(config).unwrap());
    api.list(&ListParams::default()).await.unwrap().items.into_iter().filter_map(|namespace| namespace.metadata.name).collect()
}

#[tokio::test]
#[ignore = "needs the programs that `fleet-cluster build` makes"]
async fn several_run_at_once_and_leave_nothing() {
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let servers = directories.each_ref().map(|directory| ApiServer::new(directory.path()).unwrap().guarded().unwrap());
    for server in &servers {
        assert!(namespaces(server).await.contains(&"default".to_owned()));
        server.up().unwrap(); // again: it is up
    }
    drop(servers);
    assert!(directories.iter().all(|directory| !directory.path().exists()));
}
