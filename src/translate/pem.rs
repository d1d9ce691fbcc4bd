//! Certificates and keys as PEM: checked before HAProxy sees them, and written the way it takes them.

use crate::report::PrivateBytes;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::public_key::PublicKey;

/// The most PEM that is looked at: a Secret cannot be larger.
const MAX_PEM: usize = 1 << 20;
/// The longest chain.
const MAX_CHAIN: usize = 10;

/// The kind of a certificate's key: one name may have one certificate of each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum KeyType {
    /// RSA.
    Rsa,
    /// ECDSA on any curve.
    Ecdsa,
    /// Ed25519 and whatever else there is.
    Other,
}

impl KeyType {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Rsa => "RSA",
            Self::Ecdsa => "ECDSA",
            Self::Other => "Ed25519",
        }
    }
}

/// A certificate that can be served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Checked {
    /// Chain, leaf first, then the key.
    pub pem: PrivateBytes,
    /// The kind of its key.
    pub key_type: KeyType,
}

/// Why one cannot: the key of the Secret that is to blame, what is wrong, what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Flaw {
    pub field: &'static str,
    pub message: String,
    pub help: &'static str,
}

fn flaw(field: &'static str, message: impl Into<String>, help: &'static str) -> Flaw {
    Flaw { field, message: message.into(), help }
}

const RENEW: &str = "put a PEM certificate chain into tls.crt, leaf first, and its unencrypted private key into tls.key";

/// Checks that `certificate` and `key` are PEM, that the key belongs to the first certificate, and that the
/// rest is its chain.
pub(super) fn check(certificate: Option<&[u8]>, key: Option<&[u8]>) -> Result<Checked, Flaw> {
    let certificate = present(certificate, "tls.crt")?;
    let key = present(key, "tls.key")?;
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(certificate)
        .collect::<Result<_, _>>()
        .map_err(|_| flaw("tls.crt", "tls.crt is not valid PEM", RENEW))?;
    if chain.len() > MAX_CHAIN {
        return Err(flaw("tls.crt", format!("tls.crt holds more than {MAX_CHAIN} certificates"), RENEW));
    }
    let key_type = check_chain(&chain)?;
    let mut keys = PrivateKeyDer::pem_slice_iter(key)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| flaw("tls.key", "tls.key is not valid PEM", RENEW))?;
    let key_der = match (keys.pop(), keys.is_empty()) {
        (Some(key), true) => key,
        (Some(_), false) => return Err(flaw("tls.key", "tls.key holds more than one private key", RENEW)),
        (None, _) if contains(key, b"BEGIN ENCRYPTED PRIVATE KEY") => {
            return Err(flaw("tls.key", "the private key in tls.key is encrypted", "store it without a passphrase"));
        }
        (None, _) => return Err(flaw("tls.key", "tls.key holds no private key", RENEW)),
    };
    let signing = rustls::crypto::ring::sign::any_supported_type(&key_der).map_err(|_| {
        flaw(
            "tls.key",
            "the private key in tls.key is broken or of an unsupported kind",
            "use RSA of 2048 to 8192 bits, ECDSA P-256 or P-384, or Ed25519",
        )
    })?;
    CertifiedKey::new(chain, signing).keys_match().map_err(|_| {
        flaw(
            "tls.key",
            "the private key in tls.key does not belong to the first certificate in tls.crt",
            "renew both together, with the leaf certificate first",
        )
    })?;
    let mut pem = sections(certificate, |label| label == "CERTIFICATE");
    pem.extend(sections(key, |label| label.ends_with("PRIVATE KEY")));
    Ok(Checked { pem: PrivateBytes::new(pem), key_type })
}

fn present<'a>(data: Option<&'a [u8]>, field: &'static str) -> Result<&'a [u8], Flaw> {
    match data {
        None => Err(flaw(field, format!("the Secret has no {field}"), RENEW)),
        Some([]) => Err(flaw(field, format!("{field} is empty"), RENEW)),
        Some(data) if data.len() > MAX_PEM => Err(flaw(field, format!("{field} is larger than 1 MiB"), RENEW)),
        Some(data) => Ok(data),
    }
}

fn check_chain(chain: &[CertificateDer<'_>]) -> Result<KeyType, Flaw> {
    let mut key_type = None;
    for (n, der) in chain.iter().enumerate() {
        let broken = || flaw("tls.crt", format!("certificate {} in tls.crt cannot be parsed", n + 1), RENEW);
        let (rest, certificate) = X509Certificate::from_der(der).map_err(|_| broken())?;
        if !rest.is_empty() {
            return Err(broken());
        }
        if n == 0 {
            key_type = Some(match certificate.public_key().parsed() {
                Ok(PublicKey::RSA(_)) => KeyType::Rsa,
                Ok(PublicKey::EC(_)) => KeyType::Ecdsa,
                _ => KeyType::Other,
            });
        } else if certificate.version().0 >= 2 && !certificate.is_ca() {
            // HAProxy would take it as part of the chain and send it to every client.
            return Err(flaw(
                "tls.crt",
                format!("certificate {} in tls.crt is another leaf, not an authority of the first one", n + 1),
                "use one Secret for each certificate; tls of an Ingress may name several for one host",
            ));
        }
    }
    key_type.ok_or_else(|| flaw("tls.crt", "tls.crt holds no certificate", RENEW))
}

/// CA certificates as PEM without anything between them.
pub(super) fn check_authorities(pem: &[u8]) -> Result<String, String> {
    if pem.len() > MAX_PEM {
        return Err("is larger than 1 MiB".to_owned());
    }
    let certificates = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(|_| "is not valid PEM".to_owned())?;
    if certificates.is_empty() {
        return Err("holds no certificate".to_owned());
    }
    for (n, der) in certificates.iter().enumerate() {
        if !X509Certificate::from_der(der).is_ok_and(|(rest, _)| rest.is_empty()) {
            return Err(format!("holds a certificate (the {}.) that cannot be parsed", n + 1));
        }
    }
    String::from_utf8(sections(pem, |label| label == "CERTIFICATE")).map_err(|_| "is not text".to_owned())
}

/// The PEM sections with a wanted label, without blank lines and without whatever stands between them.
fn sections(pem: &[u8], wanted: impl Fn(&str) -> bool) -> Vec<u8> {
    let mut out = Vec::with_capacity(pem.len());
    let mut copying = false;
    for line in pem.split(|b| matches!(b, b'\n' | b'\r')).map(<[u8]>::trim_ascii).filter(|line| !line.is_empty()) {
        if let Some(label) = line.strip_prefix(b"-----BEGIN ").and_then(|l| l.strip_suffix(b"-----")) {
            copying = std::str::from_utf8(label).is_ok_and(&wanted);
        }
        if copying {
            out.extend_from_slice(line);
            out.push(b'\n');
        }
        if line.starts_with(b"-----END ") {
            copying = false;
        }
    }
    out
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used)]
    use super::*;

    fn pair() -> (String, String) {
        let made = rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    #[test]
    fn a_certificate_with_its_key_is_taken_and_blank_lines_are_not() {
        let (certificate, key) = pair();
        let messy = format!("Subject: me\r\n\r\n{}\r\n\r\n", certificate.replace('\n', "\r\n"));
        let checked = check(Some(messy.as_bytes()), Some(format!("\n{key}\n\n").as_bytes())).unwrap();
        assert_eq!(checked.key_type, KeyType::Ecdsa);
        let text = std::str::from_utf8(checked.pem.expose()).unwrap();
        assert!(text.starts_with("-----BEGIN CERTIFICATE-----\n") && text.ends_with("-----END PRIVATE KEY-----\n"), "{text}");
        assert!(!text.contains("\n\n") && !text.contains('\r') && !text.contains("Subject"));
        assert_eq!(check(Some(certificate.as_bytes()), Some(key.as_bytes())).unwrap(), checked);
    }

    #[test]
    fn what_cannot_be_served_is_refused_and_says_why() {
        let (certificate, key) = pair();
        let (other, other_key) = pair();
        let wrong = |certificate: &str, key: &str| check(Some(certificate.as_bytes()), Some(key.as_bytes())).unwrap_err();
        assert!(wrong(&certificate, &other_key).message.contains("does not belong"));
        assert!(wrong(&certificate, &key[..key.len() / 2]).message.contains("tls.key"));
        assert!(wrong(&certificate[..100], &key).message.contains("tls.crt"));
        assert!(wrong(&format!("{certificate}{other}"), &key).message.contains("another leaf"));
        assert!(wrong(&certificate, &format!("{key}{other_key}")).message.contains("more than one"));
        assert!(wrong("", &key).message.contains("empty"));
        assert!(wrong(&key, &certificate).message.contains("no certificate"));
        assert!(check(None, Some(key.as_bytes())).unwrap_err().message.contains("no tls.crt"));
        assert!(check(Some(certificate.as_bytes()), None).unwrap_err().message.contains("no tls.key"));
    }

    #[test]
    fn authorities_are_checked_too() {
        let (certificate, key) = pair();
        assert!(check_authorities(format!("x\n\n{certificate}\n").as_bytes()).unwrap().starts_with("-----BEGIN"));
        assert!(check_authorities(key.as_bytes()).is_err());
        assert!(check_authorities(b"").is_err());
    }
}
