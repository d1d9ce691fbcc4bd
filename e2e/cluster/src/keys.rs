//! Keys, certificates and kubeconfigs of a cluster. They live as long as its state.

use crate::error::ClusterError;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
    SanType,
};
use serde_json::json;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

/// Who signs everything in a cluster.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    directory: PathBuf,
}

/// Whom a certificate is for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Subject<'a> {
    /// The user that the API server takes its bearer for.
    pub(crate) user: &'a str,
    /// The user's group.
    pub(crate) group: Option<&'a str>,
    /// Names it may serve under.
    pub(crate) names: &'a [&'a str],
    /// Addresses it may serve at.
    pub(crate) addresses: &'a [IpAddr],
}

impl Authority {
    /// A new one, with `ca.crt` and `ca.key` in `directory`.
    pub(crate) fn new(directory: &Path) -> Result<Self, ClusterError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "fleet-cluster-ca");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate()?;
        fs::create_dir_all(directory).map_err(ClusterError::file(directory))?;
        write(&directory.join("ca.crt"), &params.self_signed(&key)?.pem())?;
        write(&directory.join("ca.key"), &key.serialize_pem())?;
        Ok(Self { issuer: Issuer::new(params, key), directory: directory.to_owned() })
    }

    /// Signs a certificate for a new key: `NAME.crt` and `NAME.key`.
    pub(crate) fn sign(&self, name: &str, subject: Subject<'_>) -> Result<(), ClusterError> {
        let mut params = CertificateParams::new(subject.names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())?;
        params.subject_alt_names.extend(subject.addresses.iter().copied().map(SanType::IpAddress));
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, subject.user);
        if let Some(group) = subject.group {
            params.distinguished_name.push(DnType::OrganizationName, group);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        write(&self.directory.join(format!("{name}.crt")), &params.signed_by(&key, &self.issuer)?.pem())?;
        write(&self.directory.join(format!("{name}.key")), &key.serialize_pem())
    }

    /// Signs a certificate for a client of the API server at `server`, and writes a kubeconfig with it to `path`.
    pub(crate) fn kubeconfig(&self, path: &Path, server: &str, name: &str, subject: Subject<'_>) -> Result<(), ClusterError> {
        self.sign(name, subject)?;
        let file = |extension: &str| self.directory.join(format!("{name}.{extension}"));
        // JSON is YAML, and files instead of data keep it readable
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "cluster",
            "contexts": [{ "name": "cluster", "context": { "cluster": "cluster", "user": name } }],
            "clusters": [{ "name": "cluster", "cluster": { "server": server, "certificate-authority": self.directory.join("ca.crt") } }],
            "users": [{ "name": name, "user": { "client-certificate": file("crt"), "client-key": file("key") } }],
        });
        write(path, &format!("{config:#}\n"))
    }

    /// The key that signs the tokens of service accounts, and what verifies them: `service-accounts.key` and `.pub`.
    pub(crate) fn service_accounts(&self) -> Result<(), ClusterError> {
        let key = KeyPair::generate()?;
        write(&self.directory.join("service-accounts.key"), &key.serialize_pem())?;
        write(&self.directory.join("service-accounts.pub"), &key.public_key_pem())
    }
}

fn write(path: &Path, content: &str) -> Result<(), ClusterError> {
    use std::io::Write;
    use std::os::unix::fs::OpenOptionsExt;
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).map_err(ClusterError::file(path))?;
    file.write_all(content.as_bytes()).map_err(ClusterError::file(path))
}
