//! A pod gets what its own fleet serves, and nobody else gets anything.

use crate::run;
use futures::StreamExt;
use haproxy_fleet::delivery::proto::delivery_client::DeliveryClient;
use haproxy_fleet::delivery::proto::{FromAgent, FromOperator, Hello, from_agent};
use haproxy_fleet_e2e::setting::{SYSTEM, Setting, echo, fleet, ingress};
use haproxy_fleet_e2e::{Failure, Outcome, SOON, eventually};
use std::time::Duration;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

const AUDIENCE: &str = "haproxy-fleet.dev/operator";

/// A token of a service account, bound to a pod or to nothing.
async fn token(setting: &Setting, namespace: &str, account: &str, audience: &str, pod: Option<&str>) -> Outcome<String> {
    let mut arguments = vec!["-n", namespace, "create", "token", account, "--duration=10m", "--audience", audience];
    if let Some(pod) = pod {
        arguments.extend(["--bound-object-kind", "Pod", "--bound-object-name", pod]);
    }
    Ok(setting.kubectl(&arguments).await?.trim().to_owned())
}

/// The first word of the operator to one that has `token` and says that it is `pod` of `namespace/fleet`.
async fn follow(setting: &Setting, token: &str, namespace: &str, fleet: &str, pod: &str) -> Outcome<FromOperator> {
    let operators = setting.get(&["pods", "-n", SYSTEM, "-l", "app.kubernetes.io/component=operator"]).await?;
    let address = operators["items"][0]["status"]["podIP"].as_str().unwrap_or_default().to_owned();
    let authorities = setting.get(&["configmap", "-n", namespace, &format!("{fleet}-operator-ca")]).await?;
    let authorities = authorities["data"]["ca.crt"].as_str().unwrap_or_default().to_owned();
    let tls =
        ClientTlsConfig::new().ca_certificate(Certificate::from_pem(authorities)).domain_name(format!("haproxy-fleet-agents.{SYSTEM}.svc"));
    let endpoint =
        Endpoint::from_shared(format!("https://{address}:9443")).and_then(|endpoint| endpoint.tls_config(tls)).map_err(Failure::new)?;
    let channel = endpoint.connect().await.map_err(Failure::new)?;
    let hello = Hello { namespace: namespace.to_owned(), fleet: fleet.to_owned(), pod: pod.to_owned(), ..Hello::default() };
    let hello = FromAgent { kind: Some(from_agent::Kind::Hello(hello)) };
    let mut request = tonic::Request::new(futures::stream::once(std::future::ready(hello)).chain(futures::stream::pending()));
    request.metadata_mut().insert("authorization", format!("Bearer {token}").parse().map_err(Failure::new)?);
    let mut answers = DeliveryClient::new(channel).follow(request).await.map_err(|status| refused(&status))?.into_inner();
    let first = tokio::time::timeout(Duration::from_secs(10), answers.message()).await.map_err(Failure::new)?;
    first.map_err(|status| refused(&status))?.ok_or_else(|| Failure::new("it ended"))
}

fn refused(status: &tonic::Status) -> Failure {
    Failure::new(format_args!("{:?}: {}", status.code(), status.message()))
}

#[test]
fn only_a_token_that_is_bound_to_a_pod_of_the_fleet_opens_a_stream() {
    run(|setting| async move {
        for name in ["trust-a", "trust-b"] {
            setting.namespace(name).await?;
            setting.apply(&echo(name, "web", 1)).await?;
            setting.apply(&ingress(name, "web", name, &format!("{name}.example"), "web")).await?;
            setting.apply(&fleet(name, "edge", name, 1)).await?;
        }
        for name in ["trust-a", "trust-b"] {
            setting.ready(name, "edge").await?;
        }
        let pods = setting.pods("trust-a", "edge").await?;
        let (pod, account) =
            (pods[0]["metadata"]["name"].as_str().unwrap_or_default(), pods[0]["spec"]["serviceAccountName"].as_str().unwrap_or_default());
        let others = setting.get(&["pods", "-n", "trust-a", "-l", "app=web"]).await?;
        let other = others["items"][0]["metadata"]["name"].as_str().unwrap_or_default();
        let own = token(setting, "trust-a", account, AUDIENCE, Some(pod)).await?;
        follow(setting, &own, "trust-a", "edge", pod).await?;
        let cases = [
            (
                "for another audience",
                token(setting, "trust-a", account, "https://kubernetes.default.svc", Some(pod)).await?,
                "trust-a",
                pod,
            ),
            ("bound to nothing", token(setting, "trust-a", account, AUDIENCE, None).await?, "trust-a", pod),
            ("of a pod that is of no fleet", token(setting, "trust-a", "default", AUDIENCE, Some(other)).await?, "trust-a", other),
            ("of a pod of another fleet", own.clone(), "trust-b", pod),
            ("of another pod", own.clone(), "trust-a", "edge-x"),
            ("that is none", "x.y.z".to_owned(), "trust-a", pod),
        ];
        for (what, token, namespace, pod) in cases {
            match follow(setting, &token, namespace, "edge", pod).await {
                Ok(_) => panic!("a token {what} opened a stream"),
                Err(failure) => assert!(
                    failure.to_string().starts_with("Unauthenticated") || failure.to_string().starts_with("PermissionDenied"),
                    "{what}: {failure}"
                ),
            }
        }
        // and none of a pod that is gone
        setting.kubectl(&["-n", "trust-a", "delete", "pod", pod, "--timeout=180s"]).await?;
        eventually("the token of a pod that is gone to be refused", SOON, || async {
            match follow(setting, &own, "trust-a", "edge", pod).await {
                Ok(_) => Err(Failure::new("it opens a stream")),
                Err(_) => Ok(()),
            }
        })
        .await?;
        setting.remove(&["trust-a", "trust-b"]).await
    });
}
