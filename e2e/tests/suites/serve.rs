//! A fleet serves what is asked of it.

use crate::run;
use fleet_load::{Config, Load, Protocol, Target};
use haproxy_fleet_e2e::setting::{Setting, echo, fleet, ingress};
use haproxy_fleet_e2e::{Failure, Outcome, SOON, eventually, http};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

/// A fleet of three in a namespace of its own, and two tenants.
async fn three(setting: &Setting, name: &str) -> Outcome<SocketAddr> {
    three_of(setting, name, &fleet(name, "edge", name, 3)).await
}

/// The same, of this manifest.
async fn three_of(setting: &Setting, name: &str, manifest: &str) -> Outcome<SocketAddr> {
    let (shop, blog) = (format!("{name}-shop"), format!("{name}-blog"));
    for namespace in [name, &shop, &blog] {
        setting.namespace(namespace).await?;
    }
    for (namespace, host) in [(&shop, "shop.example"), (&blog, "blog.example")] {
        setting.apply(&echo(namespace, "web", 2)).await?;
        setting.apply(&ingress(namespace, "web", name, host, "web")).await?;
    }
    setting.apply(manifest).await?;
    setting.ready(name, "edge").await?;
    setting.address(name, "edge", 80).await
}

async fn remove(setting: &Setting, name: &str) -> Outcome {
    setting.remove(&[name, &format!("{name}-shop"), &format!("{name}-blog")]).await
}

#[test]
fn ingresses_of_several_namespaces_are_served_updated_and_withdrawn() {
    run(|setting| async move {
        let name = "serve";
        let address = three(setting, name).await?;
        for host in ["shop.example", "blog.example"] {
            eventually(host, SOON, || http::expect(address, host, "/", 200)).await?;
        }
        // another host for the same Service
        setting.apply(&ingress("serve-shop", "web", name, "new.example", "web")).await?;
        eventually("the new host", SOON, || http::expect(address, "new.example", "/", 200)).await?;
        eventually("the old host", SOON, || http::expect(address, "shop.example", "/", 404)).await?;
        // the status of the Ingress says where it is reached
        eventually("the Ingress' status", SOON, || async {
            let status = setting.get(&["ingress", "-n", "serve-shop", "web"]).await?["status"].clone();
            let says =
                status["loadBalancer"]["ingress"].as_array().into_iter().flatten().any(|point| point["ip"] == address.ip().to_string());
            if says { Ok(()) } else { Err(Failure::new(status)) }
        })
        .await?;
        setting.kubectl(&["-n", "serve-shop", "delete", "ingress", "web"]).await?;
        eventually("the deleted Ingress", SOON, || http::expect(address, "new.example", "/", 404)).await?;
        http::expect(address, "blog.example", "/", 200).await?;
        // nothing of this was a reload
        let pods = setting.pods(name, "edge").await?;
        assert_eq!(pods.len(), 3);
        let zones: BTreeSet<String> = pods.iter().map(|pod| pod["spec"]["nodeName"].as_str().unwrap_or_default().to_owned()).collect();
        assert_eq!(zones.len(), 3, "pods are on nodes of their own");
        remove(setting, name).await
    });
}

#[test]
fn endpoints_come_and_go_under_load_and_no_request_is_lost() {
    run(|setting| async move {
        let name = "churn";
        let address = three(setting, name).await?;
        eventually("the shop", SOON, || http::expect(address, "shop.example", "/", 200)).await?;
        let config = Config {
            protocol: Protocol::Http1KeepAlive,
            rate: 150.0,
            duration: Some(Duration::from_secs(120)),
            connections: 16,
            ..Config::new(vec![Target::new(address, "shop.example", "/")])
        };
        let load = Load::start(config).map_err(Failure::new)?;
        for replicas in [5, 1, 4, 2] {
            setting.kubectl(&["-n", "churn-shop", "scale", "deployment/web", &format!("--replicas={replicas}")]).await?;
            setting.kubectl(&["-n", "churn-shop", "rollout", "status", "deployment/web", "--timeout=180s"]).await?;
        }
        setting.kubectl(&["-n", "churn-shop", "rollout", "restart", "deployment/web"]).await?;
        setting.kubectl(&["-n", "churn-shop", "rollout", "status", "deployment/web", "--timeout=180s"]).await?;
        let report = load.stop().await;
        println!("{}", haproxy_fleet_e2e::json_line("churn", 5, &report));
        assert_eq!(report.lost, 0, "{:?}", report.examples);
        remove(setting, name).await
    });
}

#[test]
fn a_fleet_that_is_deleted_under_load_leads_its_clients_away_first_and_leaves_nothing_behind() {
    run(|setting| async move {
        let name = "gone";
        // enough for clients to follow what the Ingress says
        let manifest = fleet(name, "edge", name, 3).replace("deregistrationDelay: 3s", "deregistrationDelay: 20s");
        let address = three_of(setting, name, &manifest).await?;
        eventually("the shop", SOON, || http::expect(address, "shop.example", "/", 200)).await?;
        let target = Target::new(address, "shop.example", "/");
        let config = Config { protocol: Protocol::Http1KeepAlive, connections: 16, ..Config::new(vec![target]) };
        let load = Load::start(config).map_err(Failure::new)?;
        setting.kubectl(&["-n", name, "delete", "ingd", "edge", "--cascade=foreground", "--wait=false"]).await?;
        eventually("the Ingress to lead nobody there any more", SOON, || async {
            let status = setting.get(&["ingress", "-n", "gone-shop", "web"]).await?["status"].clone();
            let leads = status["loadBalancer"]["ingress"].as_array().is_some_and(|points| !points.is_empty());
            if leads { Err(Failure::new(status)) } else { Ok(()) }
        })
        .await?;
        let report = load.stop().await;
        println!("{}", haproxy_fleet_e2e::json_line("deleted", 1, &report));
        assert_eq!(report.lost, 0, "{:?}", report.examples);
        setting.kubectl(&["-n", name, "wait", "--for=delete", "ingd/edge", "--timeout=180s"]).await?;
        let kinds = "deployments,services,configmaps,secrets,serviceaccounts,poddisruptionbudgets,networkpolicies,horizontalpodautoscalers";
        eventually("everything to be gone", SOON, || async {
            let left =
                setting.kubectl(&["-n", name, "get", kinds, "-l", "app.kubernetes.io/managed-by=haproxy-fleet", "-o", "name"]).await?;
            if left.trim().is_empty() { Ok(()) } else { Err(Failure::new(left)) }
        })
        .await?;
        setting.kubectl(&["delete", "namespace", name, "gone-shop", "gone-blog", "--wait=false"]).await.map(drop)
    });
}
