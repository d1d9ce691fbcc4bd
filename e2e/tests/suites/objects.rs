//! What a fleet is made of follows what is asked for, and what cannot be done is told.

use crate::run;
use haproxy_fleet_e2e::setting::{Setting, echo, fleet, ingress};
use haproxy_fleet_e2e::{Failure, Outcome, SOON, eventually, http};
use serde_json::{Value, json};
use std::time::Instant;

async fn patch(setting: &Setting, namespace: &str, spec: &Value) -> Outcome {
    let patch = json!({"spec": spec}).to_string();
    setting.kubectl(&["-n", namespace, "patch", "ingd", "edge", "--type=merge", "-p", &patch]).await.map(drop)
}

/// Waits until `object` (`KIND/NAME`) is there, and what `path` leads to is `wanted`.
async fn says(setting: &Setting, namespace: &str, object: &str, path: &str, wanted: Value) -> Outcome {
    eventually(&format!("{object}{path} to be {wanted}"), SOON, || async {
        let found = setting.get(&["-n", namespace, object]).await?;
        match found.pointer(path) {
            Some(value) if *value == wanted => Ok(()),
            other => Err(Failure::new(format_args!("it is {other:?}"))),
        }
    })
    .await
}

async fn is_gone(setting: &Setting, namespace: &str, object: &str) -> Outcome {
    eventually(&format!("{object} to be gone"), SOON, || async {
        let found = setting.kubectl(&["-n", namespace, "get", object, "--ignore-not-found", "-o", "name"]).await?;
        if found.trim().is_empty() { Ok(()) } else { Err(Failure::new(found)) }
    })
    .await
}

/// One object of each kind that the fleet of the next suite has, of those that are not made on demand.
const OBJECTS: [&str; 8] = [
    "deployment/edge",
    "service/edge",
    "configmap/edge-operator-ca",
    "secret/edge-keys",
    "serviceaccount/edge",
    "pdb/edge",
    "networkpolicy/edge",
    "ingressclass/objects",
];

#[test]
fn objects_follow_the_spec_and_what_others_change_of_ours_is_put_back() {
    run(|setting| async move {
        let name = "objects";
        setting.namespace(name).await?;
        setting.apply(&fleet(name, "edge", name, 2)).await?;
        says(setting, name, "deployment/edge", "/spec/replicas", json!(2)).await?;
        // an autoscaler in the place of a number, and back
        let scaled = |most: i32| json!({"replicas": null, "autoscaling": {"minReplicas": 2, "maxReplicas": most}});
        patch(setting, name, &scaled(3)).await?;
        says(setting, name, "hpa/edge", "/spec/maxReplicas", json!(3)).await?;
        patch(setting, name, &scaled(4)).await?;
        says(setting, name, "hpa/edge", "/spec/maxReplicas", json!(4)).await?;
        patch(setting, name, &json!({"autoscaling": null, "replicas": 2})).await?;
        is_gone(setting, name, "hpa/edge").await?;
        // one Service more, and less
        let inner = json!([{"name": "inner", "type": "Private"}]);
        patch(setting, name, &json!({"publishing": {"additionalServices": inner}})).await?;
        says(setting, name, "service/edge-inner", "/spec/type", json!("ClusterIP")).await?;
        patch(setting, name, &json!({"publishing": {"additionalServices": null}})).await?;
        is_gone(setting, name, "service/edge-inner").await?;
        // whatever is ours and was changed is put back; what is not ours stays
        for object in OBJECTS {
            setting
                .kubectl(&["-n", name, "label", object, "app.kubernetes.io/instance=nobody", "example.com/mine=yes", "--overwrite"])
                .await?;
        }
        // nothing of it is watched but what serves: a change of the spec is a reason to look
        patch(setting, name, &json!({"disruption": {"maxUnavailable": 2}})).await?;
        says(setting, name, "pdb/edge", "/spec/maxUnavailable", json!(2)).await?;
        for object in OBJECTS {
            says(setting, name, object, "/metadata/labels/app.kubernetes.io~1instance", json!("edge")).await?;
            says(setting, name, object, "/metadata/labels/example.com~1mine", json!("yes")).await?;
        }
        patch(setting, name, &json!({"networkPolicy": {"enabled": false}, "replicas": 1})).await?;
        is_gone(setting, name, "networkpolicy/edge").await?;
        is_gone(setting, name, "pdb/edge").await?;
        setting.remove(&[name]).await
    });
}

#[test]
fn what_cannot_be_done_is_told_with_reason_and_remedy_and_what_serves_goes_on() {
    run(|setting| async move {
        let name = "cannot";
        setting.namespace(name).await?;
        setting.apply(&echo(name, "web", 1)).await?;
        setting.apply(&ingress(name, "web", name, "web.example", "web")).await?;
        setting.apply(&fleet(name, "edge", name, 2)).await?;
        setting.ready(name, "edge").await?;
        let address = setting.address(name, "edge", 80).await?;
        eventually("the tenant", SOON, || http::expect(address, "web.example", "/", 200)).await?;
        let cases = [
            ("an image that is not there", json!({"image": "127.0.0.1:1/haproxy:3.4.7"}), json!({"image": null}), "spec.image"),
            ("a zone that is not there", json!({"zones": [{"name": "zone-x"}]}), json!({"zones": null}), "spec.zones"),
            ("a Secret that is not there", json!({"tls": {"defaultCertificateRef": {"name": "gone"}}}), json!({"tls": null}), "Secret"),
            (
                "a patch of our own containers",
                json!({"podTemplatePatch": [{"op": "remove", "path": "/spec/containers/0"}]}),
                json!({"podTemplatePatch": null}),
                "podTemplatePatch",
            ),
        ];
        for (what, wrong, right, remedy) in cases {
            let began = Instant::now();
            patch(setting, name, &wrong).await?;
            let told = eventually(what, SOON, || async {
                let status = setting.fleet(name, "edge").await?;
                let said = status["conditions"].as_array().into_iter().flatten().filter(|one| one["status"] == "False");
                let said: Vec<&str> = said.filter_map(|one| one["message"].as_str()).collect();
                said.iter()
                    .find(|message| message.contains(remedy))
                    .map(|message| (*message).to_owned())
                    .ok_or_else(|| Failure::new(format_args!("{said:?}")))
            })
            .await?;
            println!(
                "{}",
                json!({"figure": "told", "what": what, "ms": u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX), "message": told})
            );
            http::expect(address, "web.example", "/", 200).await?;
            patch(setting, name, &right).await?;
            setting.ready(name, "edge").await?;
        }
        setting.remove(&[name]).await
    });
}

#[test]
fn prometheus_finds_the_pods_and_reads_their_numbers() {
    const KIND: &str = "podmonitors.monitoring.coreos.com";
    run(|setting| async move {
        let name = "measured";
        setting.namespace(name).await?;
        setting.apply(&fleet(name, "edge", name, 1)).await?;
        setting.ready(name, "edge").await?;
        let is_there = setting.kubectl(&["get", "crd", KIND]).await.is_ok();
        if !is_there {
            setting.apply(&definition("monitoring.coreos.com", "v1", "Namespaced", "PodMonitor", "podmonitors")).await?;
        }
        patch(setting, name, &json!({"metrics": {"enabled": true, "podMonitor": {"interval": "10s"}}})).await?;
        says(setting, name, "podmonitor/edge", "/spec/podMetricsEndpoints/0/interval", json!("10s")).await?;
        patch(setting, name, &json!({"metrics": {"podMonitor": {"interval": "20s"}}})).await?;
        says(setting, name, "podmonitor/edge", "/spec/podMetricsEndpoints/0/interval", json!("20s")).await?;
        let pods = setting.get(&["-n", name, "pods", "-l", "haproxy-fleet.dev/fleet=edge"]).await?;
        let pod = pods["items"][0]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let path = format!("/api/v1/namespaces/{name}/pods/{pod}:8404/proxy/metrics");
        eventually("the numbers of HAProxy", SOON, || async {
            let numbers = setting.kubectl(&["get", "--raw", &path]).await?;
            if numbers.contains("haproxy_frontend_http_requests_total{proxy=\"http\"}") {
                Ok(())
            } else {
                Err(Failure::new("they are not among them"))
            }
        })
        .await?;
        patch(setting, name, &json!({"metrics": null})).await?;
        is_gone(setting, name, "podmonitor/edge").await?;
        if !is_there {
            setting.kubectl(&["delete", "crd", KIND, "--timeout=60s"]).await?;
        }
        setting.remove(&[name]).await
    });
}

/// A namespace with a tenant whose Ingress names `backend`.
async fn tenant_with_backend(setting: &Setting, name: &str, backend: &str) -> Outcome {
    setting.namespace(name).await?;
    setting.apply(&echo(name, "web", 1)).await?;
    let annotations = format!("metadata: {{annotations: {{haproxy-fleet.dev/backend: {backend}}}, ");
    setting.apply(&ingress(name, "web", name, "web.example", "web").replace("metadata: {", &annotations)).await
}

#[test]
fn a_backend_says_where_it_applies() {
    run(|setting| async move {
        let name = "scopes";
        tenant_with_backend(setting, name, "patient").await?;
        let backend = json!({"apiVersion": "haproxy-fleet.dev/v1alpha1", "kind": "Backend", "metadata": {"namespace": name, "name": "patient"},
            "spec": {"server_timeout": 7000}});
        setting.apply(&backend.to_string()).await?;
        setting.apply(&fleet(name, "edge", name, 1)).await?;
        says(setting, name, "backends.haproxy-fleet.dev/patient", "/status/usedBy/0/name", json!("web")).await?;
        setting.kubectl(&["-n", name, "wait", "--for=condition=Ready", "backends.haproxy-fleet.dev/patient", "--timeout=60s"]).await?;
        setting.remove(&[name]).await
    });
}

#[test]
fn backends_of_another_group_are_read_while_their_kind_exists() {
    run(|setting| async move {
        let name = "foreign";
        tenant_with_backend(setting, name, "theirs").await?;
        setting.apply(&fleet(name, "edge", name, 1)).await?;
        setting.ready(name, "edge").await?;
        let is_missed = || async {
            let status = setting.status().await?;
            Ok::<bool, Failure>(
                status["diagnostics"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .any(|one| one["message"].as_str().unwrap_or_default().contains("foreign/theirs")),
            )
        };
        eventually("a Backend that is missing", SOON, || async { if is_missed().await? { Ok(()) } else { Err(Failure::new("not told")) } })
            .await?;
        setting.apply(&definition("ingress.v3.haproxy.org", "v3", "Namespaced", "Backend", "backends")).await?;
        let theirs = json!({"apiVersion": "ingress.v3.haproxy.org/v3", "kind": "Backend", "metadata": {"namespace": name, "name": "theirs"}, "spec": {"server_timeout": 7000}}).to_string();
        eventually("the kind", SOON, || setting.apply(&theirs)).await?;
        eventually("it to be read", SOON, || async { if is_missed().await? { Err(Failure::new("still missed")) } else { Ok(()) } }).await?;
        setting.kubectl(&["delete", "crd", "backends.ingress.v3.haproxy.org", "--timeout=60s"]).await?;
        eventually("it to be missed again", SOON, || async { if is_missed().await? { Ok(()) } else { Err(Failure::new("not told")) } })
            .await?;
        setting.remove(&[name]).await
    });
}

#[test]
fn gateway_api_is_noticed_and_what_waits_for_us_there_is_told_what_to_do() {
    run(|setting| async move {
        // a cluster of somebody else may serve it already
        let is_there = setting.kubectl(&["get", "crd", "gatewayclasses.gateway.networking.k8s.io"]).await.is_ok();
        if !is_there {
            setting.apply(&definition("gateway.networking.k8s.io", "v1", "Cluster", "GatewayClass", "gatewayclasses")).await?;
        }
        let class = json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "GatewayClass", "metadata": {"name": "e2e-noticed"},
            "spec": {"controllerName": "haproxy-fleet.dev/gateway"}})
        .to_string();
        eventually("the kind", SOON, || setting.apply(&class)).await?;
        eventually("an Event that says so", SOON, || async {
            let events = setting.get(&["-n", "default", "events"]).await?;
            let of_it = |event: &&Value| event["involvedObject"]["name"] == "e2e-noticed";
            let events = events["items"].as_array().into_iter().flatten().filter(of_it);
            let notes: Vec<&str> = events.filter_map(|event| event["message"].as_str()).collect();
            if notes.iter().any(|note| note.contains("serves no Gateways") && note.contains("Ingress")) {
                Ok(())
            } else {
                Err(Failure::new(format!("{notes:?}")))
            }
        })
        .await?;
        setting.kubectl(&["delete", "gatewayclass", "e2e-noticed"]).await?;
        if !is_there {
            setting.kubectl(&["delete", "crd", "gatewayclasses.gateway.networking.k8s.io", "--timeout=60s"]).await?;
        }
        eventually("nothing to be said any more", SOON, || async {
            let status = setting.status().await?.to_string();
            if status.contains("e2e-noticed") { Err(Failure::new("it is still told")) } else { Ok(()) }
        })
        .await
    });
}

/// A definition of a kind of which everything is taken.
fn definition(group: &str, version: &str, scope: &str, kind: &str, plural: &str) -> String {
    let mut definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group, "scope": scope, "names": {"kind": kind, "plural": plural},
            "versions": [{"name": version, "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}],
        },
    });
    if group.ends_with("k8s.io") {
        definition["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "unapproved, a stand-in for tests"});
    }
    definition.to_string()
}
