//! What was installed can be taken away, and nothing is left.

use crate::run;
use haproxy_fleet_e2e::setting::{SYSTEM, echo, fleet, ingress};
use haproxy_fleet_e2e::{Failure, SOON, eventually};

#[test]
fn what_is_uninstalled_leaves_nothing() {
    run(|setting| async move {
        let name = "leaving";
        setting.namespace(name).await?;
        setting.apply(&echo(name, "web", 1)).await?;
        setting.apply(&ingress(name, "web", name, "web.example", "web")).await?;
        setting.apply(&fleet(name, "edge", name, 2)).await?;
        setting.ready(name, "edge").await?;
        setting.kubectl(&["delete", "ingd", "--all", "--all-namespaces", "--timeout=180s"]).await?;
        setting.uninstall().await?;
        let kinds = "deployments,replicasets,pods,services,configmaps,secrets,serviceaccounts,poddisruptionbudgets,networkpolicies,horizontalpodautoscalers,roles,rolebindings,leases,clusterroles,clusterrolebindings,ingressclasses,customresourcedefinitions,namespaces";
        eventually("everything to be gone", SOON, || async {
            let all = setting.kubectl(&["get", kinds, "--all-namespaces", "-o", "name"]).await?;
            let labelled = setting
                .kubectl(&["get", kinds, "--all-namespaces", "-l", "app.kubernetes.io/managed-by=haproxy-fleet", "-o", "name"])
                .await?;
            let left: Vec<&str> =
                all.lines().filter(|line| line.contains("haproxy-fleet") || line.contains(SYSTEM)).chain(labelled.lines()).collect();
            if left.is_empty() { Ok(()) } else { Err(Failure::new(left.join(" "))) }
        })
        .await?;
        let status = setting.get(&["ingress", "-n", name, "web"]).await?["status"].clone();
        assert!(status["loadBalancer"]["ingress"].as_array().is_none_or(Vec::is_empty), "{status}");
        setting.kubectl(&["delete", "namespace", name, "--wait=false"]).await.map(drop)
    });
}
