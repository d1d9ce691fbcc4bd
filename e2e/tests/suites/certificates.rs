//! Certificates are renewed under load.

use crate::run;
use fleet_load::{Config, Load, Protocol, Target, Tls, Trust};
use haproxy_fleet_e2e::setting::{echo, fleet, ingress};
use haproxy_fleet_e2e::{Failure, Outcome, SOON, eventually};
use std::net::SocketAddr;

const HOST: &str = "tls.example";

/// A certificate for [`HOST`] as a Secret, and in PEM.
fn secret(namespace: &str) -> Outcome<(String, Vec<u8>)> {
    let key = rcgen::KeyPair::generate().map_err(Failure::new)?;
    let mut parameters = rcgen::CertificateParams::new(vec![HOST.to_owned()]).map_err(Failure::new)?;
    parameters.is_ca = rcgen::IsCa::NoCa;
    let certificate = parameters.self_signed(&key).map_err(Failure::new)?.pem();
    let manifest = serde_json::json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "metadata": {"name": "tls", "namespace": namespace},
        "stringData": {"tls.crt": certificate, "tls.key": key.serialize_pem()},
    });
    Ok((manifest.to_string(), certificate.into_bytes()))
}

fn config(address: SocketAddr, trust: Trust) -> Config {
    Config {
        protocol: Protocol::Http1Close,
        tls: Some(Tls { trust, server_name: None }),
        rate: 20.0,
        connections: 8,
        ..Config::new(vec![Target::new(address, HOST, "/")])
    }
}

/// Whether `address` answers with the certificate `pem` and no other.
async fn answers_with(address: SocketAddr, pem: &[u8]) -> Outcome {
    let load = Load::start(Config { requests: Some(3), ..config(address, Trust::Pem(pem.to_vec())) }).map_err(Failure::new)?;
    let report = load.wait().await;
    if report.lost == 0 { Ok(()) } else { Err(Failure::new(format_args!("{address}: {:?}", report.examples))) }
}

#[test]
fn a_certificate_is_renewed_without_a_reload_or_a_lost_request() {
    run(|setting| async move {
        let name = "renewal";
        setting.namespace(name).await?;
        setting.apply(&echo(name, "web", 2)).await?;
        let (old, old_pem) = secret(name)?;
        setting.apply(&old).await?;
        let with_tls =
            ingress(name, "web", name, HOST, "web").replace("spec:\n", &format!("spec:\n  tls: [{{hosts: [{HOST}], secretName: tls}}]\n"));
        setting.apply(&with_tls).await?;
        setting.apply(&fleet(name, "edge", name, 2)).await?;
        setting.ready(name, "edge").await?;
        let address = setting.address(name, "edge", 443).await?;
        eventually("the first certificate", SOON, || answers_with(address, &old_pem)).await?;
        let reloads = setting.reloads(name, "edge").await?;
        let load = Load::start(config(address, Trust::Anything)).map_err(Failure::new)?;
        for _ in 0..3 {
            let (new, pem) = secret(name)?;
            setting.apply(&new).await?;
            for pod in setting.pods(name, "edge").await? {
                let ip = pod["status"]["podIP"].as_str().and_then(|ip| ip.parse().ok());
                let pod = SocketAddr::new(ip.ok_or_else(|| Failure::new("a pod has no address"))?, 8443);
                eventually("the new certificate", SOON, || answers_with(pod, &pem)).await?;
            }
        }
        let report = load.stop().await;
        println!("{}", haproxy_fleet_e2e::json_line("certificates", 3, &report));
        assert_eq!(report.lost, 0, "{:?}", report.examples);
        assert_eq!(setting.reloads(name, "edge").await?, reloads, "a certificate is changed live");
        setting.remove(&[name]).await
    });
}
