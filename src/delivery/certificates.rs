//! The operator's own authority and the certificate of its server: when they are made anew, and how they are used.
//!
//! Agents trust what the published bundle holds. A new authority is put beside the old one and signs nothing until
//! every agent has had time to read it; the old one stays as long as something that it signed may be in use. The
//! caller keeps the [`Material`] in a Secret and publishes its bundle: nothing here touches the cluster.

use crate::report::PrivateBytes;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
};
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use x509_parser::extensions::GeneralName;
use x509_parser::parse_x509_certificate;

/// Life of an authority.
pub const AUTHORITY_LIFE: Duration = Duration::from_secs(2 * 365 * 24 * 3600);
/// Life of a server certificate.
pub const SERVER_LIFE: Duration = Duration::from_secs(90 * 24 * 3600);
/// A clock may be late by this much: certificates hold from so long before they are made.
pub const SKEW: Duration = Duration::from_secs(600);
/// A new authority signs only after its certificate has been out for this long: a kubelet brings a changed ConfigMap
/// into a pod within about two minutes.
pub const PUBLISHED: Duration = Duration::from_secs(600);

/// A certificate with its key, both as PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    certificate: String,
    key: PrivateBytes,
    not_before: SystemTime,
    not_after: SystemTime,
    names: Vec<String>,
}

/// What is kept in the operator's Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Material {
    /// The authority that signs.
    signing: Pair,
    /// The one that will: it is published already.
    next: Option<Pair>,
    /// The one that did: what it signed may still be in use.
    previous: Option<Pair>,
    /// The server's.
    server: Pair,
}

/// What is to be done about the material.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan {
    /// Make all of it.
    Create,
    /// Nothing before that time.
    Keep {
        /// When to look again.
        until: SystemTime,
    },
    /// Make a new certificate of the server.
    RenewServer,
    /// Make another authority and publish it beside the present one.
    AddAuthority,
    /// Let the new authority sign.
    SwitchAuthority,
    /// Stop publishing the old one.
    DropAuthority,
}

/// Why material cannot be used or made.
#[derive(Debug, thiserror::Error)]
pub enum MaterialError {
    /// Something is not there.
    #[error("{0} is missing")]
    Missing(String),
    /// Something is not what it has to be.
    #[error("{name} {problem}")]
    Malformed {
        /// Which part.
        name: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A certificate cannot be made.
    #[error("no certificate can be made: {0}")]
    Make(#[from] rcgen::Error),
    /// The server's certificate and key do not work.
    #[error("the server's certificate cannot be used: {0}")]
    Use(#[from] rustls::Error),
}

/// What is to be done at `now` about `existing`, whose server is reached by `names`.
pub fn plan(now: SystemTime, existing: Option<&Material>, names: &[String]) -> Plan {
    let Some(material) = existing else { return Plan::Create };
    let Material { signing, next, previous, server } = material;
    if now >= signing.not_after {
        // no agent trusts anything of it any more
        return Plan::Create;
    }
    let switch = next.as_ref().map(|next| next.made() + PUBLISHED);
    if switch.is_some_and(|at| now >= at) {
        return Plan::SwitchAuthority;
    }
    if now >= server.renewal() || server.names != names {
        return Plan::RenewServer;
    }
    if next.is_none() && now >= signing.renewal() {
        return Plan::AddAuthority;
    }
    // every replica has read the new certificate of the server by then
    let drop = previous.as_ref().map(|_| server.made().max(signing.made() + PUBLISHED) + PUBLISHED);
    if drop.is_some_and(|at| now >= at) {
        return Plan::DropAuthority;
    }
    let add = next.is_none().then(|| signing.renewal());
    let until = [switch, add, drop].into_iter().flatten().fold(server.renewal(), SystemTime::min);
    Plan::Keep { until }
}

/// Does what `plan` says. `names` are those that the server is reached by.
pub fn carry_out(plan: Plan, existing: Option<Material>, now: SystemTime, names: &[String]) -> Result<Material, MaterialError> {
    let Some(mut material) = existing.filter(|_| plan != Plan::Create) else {
        let signing = authority(now)?;
        let server = server(&signing, now, names)?;
        return Ok(Material { signing, next: None, previous: None, server });
    };
    match plan {
        Plan::Create | Plan::Keep { .. } => {}
        Plan::RenewServer => material.server = server(&material.signing, now, names)?,
        Plan::AddAuthority => material.next = Some(authority(now)?),
        Plan::SwitchAuthority => {
            if let Some(next) = material.next.take() {
                material.server = server(&next, now, names)?;
                material.previous = Some(std::mem::replace(&mut material.signing, next));
            }
        }
        Plan::DropAuthority => material.previous = None,
    }
    Ok(material)
}

impl Pair {
    fn made(&self) -> SystemTime {
        self.not_before + SKEW
    }

    /// After two thirds of its life.
    fn renewal(&self) -> SystemTime {
        let life = self.not_after.duration_since(self.not_before).unwrap_or_default();
        self.not_before + life / 3 * 2
    }

    /// Reads the certificate `name` with its key.
    fn read(name: &str, certificate: &[u8], key: &[u8]) -> Result<Self, MaterialError> {
        let malformed = |problem: String| MaterialError::Malformed { name: format!("{name}.crt"), problem };
        let text = std::str::from_utf8(certificate).map_err(|_| malformed("is no text".to_owned()))?;
        let der = CertificateDer::from_pem_slice(certificate).map_err(|error| malformed(format!("is no certificate: {error}")))?;
        let (_, parsed) = parse_x509_certificate(&der).map_err(|error| malformed(format!("is no certificate: {error}")))?;
        let time = |seconds: i64| UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or_default());
        let (not_before, not_after) = (time(parsed.validity().not_before.timestamp()), time(parsed.validity().not_after.timestamp()));
        let alternative = parsed.subject_alternative_name().ok().flatten();
        let name_of = |name: &GeneralName<'_>| if let GeneralName::DNSName(name) = name { Some((*name).to_owned()) } else { None };
        let names = alternative.map(|extension| extension.value.general_names.iter().filter_map(name_of).collect()).unwrap_or_default();
        if PrivateKeyDer::from_pem_slice(key).is_err() {
            return Err(MaterialError::Malformed { name: format!("{name}.key"), problem: "is no key".to_owned() });
        }
        Ok(Self { certificate: text.to_owned(), key: PrivateBytes::new(key), not_before, not_after, names })
    }

    fn issuer(&self) -> Result<Issuer<'static, KeyPair>, MaterialError> {
        let key = String::from_utf8_lossy(self.key.expose()).into_owned();
        Ok(Issuer::from_ca_cert_pem(&self.certificate, KeyPair::from_pem(&key)?)?)
    }
}

fn parameters(now: SystemTime, life: Duration, names: &[String], title: &str) -> Result<CertificateParams, MaterialError> {
    let mut parameters = CertificateParams::new(names)?;
    parameters.not_before = (now - SKEW).into();
    parameters.not_after = (now - SKEW + life).into();
    parameters.distinguished_name.push(DnType::CommonName, title);
    parameters.use_authority_key_identifier_extension = true;
    Ok(parameters)
}

fn authority(now: SystemTime) -> Result<Pair, MaterialError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    // authorities that overlap must not have the same name, or one is tried for what the other signed
    let made = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let mut parameters = parameters(now, AUTHORITY_LIFE, &[], &format!("haproxy-fleet operator {made}"))?;
    parameters.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate = parameters.self_signed(&key)?;
    Pair::read(SIGNING, certificate.pem().as_bytes(), key.serialize_pem().as_bytes())
}

fn server(signing: &Pair, now: SystemTime, names: &[String]) -> Result<Pair, MaterialError> {
    let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let mut parameters = parameters(now, SERVER_LIFE, names, "haproxy-fleet operator")?;
    parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let certificate = parameters.signed_by(&key, &signing.issuer()?)?;
    Pair::read(SERVER, certificate.pem().as_bytes(), key.serialize_pem().as_bytes())
}

// The parts of the Secret.
const SIGNING: &str = "ca";
const NEXT: &str = "next-ca";
const PREVIOUS: &str = "previous-ca";
const SERVER: &str = "tls";

impl Material {
    /// What agents have to trust: goes into the ConfigMap of every fleet as `ca.crt`.
    pub fn bundle(&self) -> String {
        let published = [Some(&self.signing), self.next.as_ref(), self.previous.as_ref()];
        published.into_iter().flatten().map(|pair| pair.certificate.trim_end().to_owned() + "\n").collect()
    }

    /// As it is kept in a Secret.
    pub fn to_data(&self) -> BTreeMap<String, Vec<u8>> {
        let parts =
            [(SIGNING, Some(&self.signing)), (NEXT, self.next.as_ref()), (PREVIOUS, self.previous.as_ref()), (SERVER, Some(&self.server))];
        let data = |(name, pair): (&str, Option<&Pair>)| {
            let Pair { certificate, key, .. } = pair?;
            Some([(format!("{name}.crt"), certificate.clone().into_bytes()), (format!("{name}.key"), key.expose().to_vec())])
        };
        parts.into_iter().filter_map(data).flatten().collect()
    }

    /// From what a Secret holds.
    pub fn from_data(data: &BTreeMap<String, Vec<u8>>) -> Result<Self, MaterialError> {
        let part = |name: &str| -> Result<Option<Pair>, MaterialError> {
            let Some(certificate) = data.get(&format!("{name}.crt")) else { return Ok(None) };
            let key = format!("{name}.key");
            let key = data.get(&key).ok_or(MaterialError::Missing(key))?;
            Pair::read(name, certificate, key).map(Some)
        };
        let needed = |name: &str| part(name)?.ok_or_else(|| MaterialError::Missing(format!("{name}.crt")));
        Ok(Self { signing: needed(SIGNING)?, next: part(NEXT)?, previous: part(PREVIOUS)?, server: needed(SERVER)? })
    }

    /// What [`serve`](super::server::serve) shows to agents.
    pub fn server_config(&self) -> Result<Arc<ServerConfig>, MaterialError> {
        let malformed =
            |error: rustls::pki_types::pem::Error| MaterialError::Malformed { name: SERVER.to_owned(), problem: error.to_string() };
        let certificate = CertificateDer::from_pem_slice(self.server.certificate.as_bytes()).map_err(malformed)?;
        let key = PrivateKeyDer::from_pem_slice(self.server.key.expose()).map_err(malformed)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = config.with_no_client_auth().with_single_cert(vec![certificate], key)?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn start() -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    fn names() -> Vec<String> {
        vec!["haproxy-fleet-agents.system.svc".to_owned()]
    }

    fn fresh() -> Material {
        carry_out(Plan::Create, None, start(), &names()).unwrap()
    }

    /// Whether somebody who trusts `bundle` accepts the server of `material` at `now`.
    fn trusts(bundle: &str, material: &Material, now: SystemTime) -> bool {
        let mut roots = rustls::RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build().unwrap();
        let certificate = CertificateDer::from_pem_slice(material.server.certificate.as_bytes()).unwrap();
        let name = rustls::pki_types::ServerName::try_from(names()[0].clone()).unwrap();
        let now = rustls::pki_types::UnixTime::since_unix_epoch(now.duration_since(UNIX_EPOCH).unwrap());
        rustls::client::danger::ServerCertVerifier::verify_server_cert(&*verifier, &certificate, &[], &name, &[], now).is_ok()
    }

    #[test]
    fn what_was_made_is_trusted_also_by_a_clock_that_is_late() {
        let material = fresh();
        for now in [start() - SKEW, start(), start() + SERVER_LIFE - SKEW] {
            assert!(trusts(&material.bundle(), &material, now), "{now:?}");
        }
        assert!(!trusts(&fresh().bundle(), &material, start()));
        assert!(material.server_config().is_ok());
    }

    #[test]
    fn a_secret_holds_all_of_it_and_a_damaged_one_is_told_by_its_part() {
        let mut material = fresh();
        material = carry_out(Plan::AddAuthority, Some(material), start(), &names()).unwrap();
        let data = material.to_data();
        assert_eq!(Material::from_data(&data).unwrap(), material);
        let why = |change: fn(&mut BTreeMap<String, Vec<u8>>)| {
            let mut data = data.clone();
            change(&mut data);
            Material::from_data(&data).unwrap_err().to_string()
        };
        assert_eq!(why(|data| _ = data.remove("ca.crt")), "ca.crt is missing");
        assert_eq!(why(|data| _ = data.remove("next-ca.key")), "next-ca.key is missing");
        assert_eq!(why(|data| _ = data.insert("tls.key".to_owned(), b"x".to_vec())), "tls.key is no key");
        assert!(why(|data| _ = data.insert("tls.crt".to_owned(), b"x".to_vec())).starts_with("tls.crt is no certificate"));
    }

    #[test]
    fn another_name_of_the_server_needs_another_certificate() {
        let material = fresh();
        assert!(matches!(plan(start(), Some(&material), &names()), Plan::Keep { .. }));
        assert_eq!(plan(start(), Some(&material), &["other".to_owned()]), Plan::RenewServer);
        assert_eq!(plan(start(), None, &names()), Plan::Create);
        assert_eq!(plan(start() + AUTHORITY_LIFE, Some(&material), &names()), Plan::Create);
    }

    /// Goes through six years, looking every hour or when the plan says, with agents that read the bundle late.
    #[test]
    fn over_the_years_every_agent_trusts_the_server_at_any_time() {
        let mut material = fresh();
        let (mut now, end) = (start(), start() + 6 * 365 * DAY);
        // what an agent trusts that reads a change after two minutes
        let mut late = material.bundle();
        let mut steps = BTreeMap::new();
        while now < end {
            assert!(trusts(&late, &material, now), "{now:?} {steps:?}");
            let step = plan(now, Some(&material), &names());
            if let Plan::Keep { until } = step {
                assert!(until > now, "{until:?} is not after {now:?}");
                late = material.bundle();
                now = until.min(now + 20 * DAY);
                continue;
            }
            *steps.entry(format!("{step:?}")).or_insert(0) += 1;
            let before = material.server.clone();
            material = carry_out(step, Some(material), now, &names()).unwrap();
            // the change is made, and nobody has read the bundle yet
            assert!(trusts(&late, &material, now), "{step:?} at {now:?}");
            // a replica that still shows the old certificate
            let old = Material { server: before, ..material.clone() };
            assert!(trusts(&material.bundle(), &old, now), "{step:?} at {now:?}");
            now += Duration::from_secs(120);
        }
        assert_eq!(steps.keys().collect::<Vec<_>>(), ["AddAuthority", "DropAuthority", "RenewServer", "SwitchAuthority"]);
        assert_eq!((steps["AddAuthority"], steps["SwitchAuthority"], steps["DropAuthority"]), (4, 4, 4));
    }
}
