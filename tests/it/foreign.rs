//! Certificates that somebody else changed through the runtime API: a look finds what is not as it should be, and
//! clients get the right certificates again.

use crate::rig::{Origin, eventually, pem};
use crate::site::{CERTIFIED, Site, all, certificate, listening, serve};
use crate::support::haproxies;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use std::sync::Arc;

const LIST: &str = "lists/https.list";
const SHOP: &str = "certs/shop_shop.pem";

/// A site that serves a certificate for `shop.test` and `www.shop.test`, and its PEM.
async fn start(version: haproxy_fleet::haproxy::version::Version, haproxy: &std::path::Path) -> (Site, String, Origin) {
    let origin = Origin::start("shop").await;
    let (mut model, _) = listening();
    serve(&mut model, "shop", &[origin.address]);
    all(&mut model, "shop.test", "shop");
    let shop = pem("shop.test");
    certificate(&mut model, "shop", &shop, &["shop.test", "www.shop.test"]);
    (Site::start(version, haproxy, model).await, shop, origin)
}

/// The certificate that a client gets which asks for `name`.
async fn served(site: &Site, name: &str) -> CertificateDer<'static> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions().unwrap();
    let config = builder.dangerous().with_custom_certificate_verifier(Arc::new(Anything(provider))).with_no_client_auth();
    let stream = tokio::net::TcpStream::connect(site.rig.https).await.unwrap();
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
}

/// Every certificate is good enough: which one it is, is looked at afterwards.
#[derive(Debug)]
struct Anything(Arc<rustls::crypto::CryptoProvider>);

impl rustls::client::danger::ServerCertVerifier for Anything {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::client::danger::ServerCertVerified, rustls::Error> {
        Ok(rustls::client::danger::ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn is(pem: &str, served: &CertificateDer<'_>) -> bool {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap() == *served
}

/// Says `command`, with `payload` where there is one.
async fn said(site: &Site, command: &str, payload: &str) -> String {
    if payload.is_empty() {
        return site.rig.command(command).await;
    }
    let payload: Vec<&str> = payload.lines().filter(|line| !line.is_empty()).collect();
    site.rig.command(&format!("{command} <<\n{}\n", payload.join("\n"))).await
}

/// The lines of the list that name `file`, as they are addressed.
async fn lines(site: &Site, file: &str) -> Vec<String> {
    let shown = said(site, &format!("show ssl crt-list -n {LIST}"), "").await;
    let words = shown.lines().filter_map(|line| line.split_whitespace().next());
    words.filter(|word| word.split(':').next() == Some(file)).map(str::to_owned).collect()
}

/// A look finds `count` things, and the next one nothing; without a reload.
async fn found(site: &Site, count: usize, what: &str) {
    assert_eq!(site.rig.agent.check_drift().await, count, "{what}");
    assert_eq!(site.rig.agent.check_drift().await, 0, "{what} is repaired");
    assert_eq!(site.rig.status().reload_count, 1, "{what} is repaired live: {:?}", site.rig.status().reloads);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_somebody_else_changed_is_put_back() {
    for (version, haproxy) in haproxies() {
        let (site, shop, _origin) = start(*version, haproxy).await;
        assert!(is(&shop, &served(&site, "shop.test").await), "{version}");
        found(&site, 0, "nothing").await;

        let other = pem("shop.test");
        let answer = said(&site, &format!("set ssl cert {SHOP}"), &other).await;
        assert!(answer.contains("ransaction created"), "{answer}");
        assert!(said(&site, &format!("commit ssl cert {SHOP}"), "").await.contains("Success!"));
        assert!(is(&other, &served(&site, "shop.test").await), "{version}: it is another one now");

        found(&site, 1, "another certificate").await;
        assert!(is(&shop, &served(&site, "shop.test").await), "{version}");
        assert!(is(&shop, &served(&site, "www.shop.test").await), "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_certificate_for_unknown_names_is_put_back_too() {
    const DEFAULT: &str = "certs/_default.pem";
    for (version, haproxy) in haproxies() {
        let (site, _, _origin) = start(*version, haproxy).await;
        let (own, other) = (site.rig.settings.pod.default_certificate.expose().to_vec(), pem("other.test"));
        let own = String::from_utf8(own).unwrap();
        assert!(is(&own, &served(&site, "unknown.test").await), "{version}");
        said(&site, &format!("set ssl cert {DEFAULT}"), &other).await;
        said(&site, &format!("commit ssl cert {DEFAULT}"), "").await;
        assert!(is(&other, &served(&site, "unknown.test").await), "{version}");
        found(&site, 1, "another default certificate").await;
        assert!(is(&own, &served(&site, "unknown.test").await), "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_somebody_else_removed_comes_back_with_its_entry() {
    for (version, haproxy) in haproxies() {
        let (mut site, shop, _origin) = start(*version, haproxy).await;
        for line in lines(&site, SHOP).await {
            assert!(said(&site, &format!("del ssl crt-list {LIST} {line}"), "").await.contains("deleted"));
        }
        assert!(!is(&shop, &served(&site, "shop.test").await), "{version}: its entry is gone");
        found(&site, 1, "an entry that is gone").await;
        assert!(is(&shop, &served(&site, "shop.test").await) && is(&shop, &served(&site, "www.shop.test").await), "{version}");

        for line in lines(&site, SHOP).await {
            said(&site, &format!("del ssl crt-list {LIST} {line}"), "").await;
        }
        eventually(async || said(&site, &format!("del ssl cert {SHOP}"), "").await.contains("deleted!").then_some(())).await;
        found(&site, 2, "a certificate and its entry that are gone").await;
        assert!(is(&shop, &served(&site, "shop.test").await) && is(&shop, &served(&site, "www.shop.test").await), "{version}");

        // what comes after that is done as ever
        let renewed = pem("shop.test");
        let status = site.change(|model| certificate(model, "shop", &renewed, &["shop.test"])).await;
        assert!(status.refused.is_empty() && status.reload_count == 1, "{version}: {status:?}");
        assert!(is(&renewed, &served(&site, "shop.test").await) && !is(&renewed, &served(&site, "www.shop.test").await), "{version}");
        found(&site, 0, "nothing").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_that_somebody_else_added_or_changed_are_taken_back() {
    for (version, haproxy) in haproxies() {
        let (site, shop, _origin) = start(*version, haproxy).await;
        let answer = said(&site, &format!("add ssl crt-list {LIST}"), &format!("{SHOP} stolen.test")).await;
        assert!(answer.contains("Success!"), "{answer}");
        assert!(is(&shop, &served(&site, "stolen.test").await), "{version}");
        found(&site, 1, "an entry too many").await;
        assert!(!is(&shop, &served(&site, "stolen.test").await), "{version}");

        // one name of the entry is taken away, and another put in its place
        let line = lines(&site, SHOP).await.remove(0);
        said(&site, &format!("del ssl crt-list {LIST} {line}"), "").await;
        said(&site, &format!("add ssl crt-list {LIST}"), &format!("{SHOP} shop.test stolen.test")).await;
        assert!(!is(&shop, &served(&site, "www.shop.test").await), "{version}");
        found(&site, 2, "an entry with other names").await;
        assert!(is(&shop, &served(&site, "www.shop.test").await) && !is(&shop, &served(&site, "stolen.test").await), "{version}");
        assert!(is(&shop, &served(&site, "shop.test").await), "{version}");

        // a foreign certificate for a name of ours
        let evil = pem("shop.test");
        said(&site, "new ssl cert certs/evil.pem", "").await;
        said(&site, "set ssl cert certs/evil.pem", &evil).await;
        said(&site, "commit ssl cert certs/evil.pem", "").await;
        for line in lines(&site, SHOP).await {
            said(&site, &format!("del ssl crt-list {LIST} {line}"), "").await;
        }
        said(&site, &format!("add ssl crt-list {LIST}"), "certs/evil.pem shop.test").await;
        assert!(is(&evil, &served(&site, "shop.test").await), "{version}");
        found(&site, 2, "a foreign certificate in the place of ours").await;
        assert!(is(&shop, &served(&site, "shop.test").await), "{version}");
        assert!(!lines(&site, SHOP).await.is_empty() && lines(&site, "certs/evil.pem").await.is_empty(), "{version}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_change_that_somebody_else_began_does_not_keep_a_renewal_away() {
    for (version, haproxy) in haproxies() {
        let (mut site, shop, _origin) = start(*version, haproxy).await;
        let answer = said(&site, "set ssl cert certs/shop_site.pem", &pem(CERTIFIED)).await;
        assert!(answer.contains("ransaction created"), "{answer}");
        assert!(is(&shop, &served(&site, "shop.test").await), "{version}");
        let renewed = pem("shop.test");
        let status = site.change(|model| certificate(model, "shop", &renewed, &["shop.test", "www.shop.test"])).await;
        assert!(status.refused.is_empty(), "{version}: {:?}", status.refused);
        assert!(is(&renewed, &served(&site, "shop.test").await), "{version}");
        // nor a new one
        let answer = said(&site, &format!("set ssl cert {SHOP}"), &pem("shop.test")).await;
        assert!(answer.contains("ransaction created"), "{answer}");
        let new = pem("new.test");
        let status = site.change(|model| certificate(model, "new", &new, &["new.test"])).await;
        assert!(status.refused.is_empty(), "{version}: {:?}", status.refused);
        assert!(is(&new, &served(&site, "new.test").await) && is(&renewed, &served(&site, "shop.test").await), "{version}");
        found(&site, 0, "nothing").await;
    }
}
