//! Certificates, the lists that say who gets which, CA bundles.

use super::{Renderer, safe_name};
use crate::haproxy::bundle::{Content, ListEntry, ResourceKey};
use crate::haproxy::shape::ca_path;
use crate::model::{CertificateId, Model, Touched};
use crate::report::PrivateBytes;
use std::sync::Arc;

/// What is served where no name matches: the pod's own, unless a bundle has another one in its place.
pub const DEFAULT_CERTIFICATE: &str = "certs/_default.pem";

/// Keys of TLS session tickets. No bundle has them: they are the pod's, as its default certificate is.
pub const TICKET_KEYS: &str = "certs/_tickets.keys";

fn certificate_path(id: &CertificateId) -> String {
    format!("certs/{}.pem", safe_name(&id.0))
}

/// The file of a certificate list.
pub(super) fn list_path(list: &str) -> String {
    format!("lists/{}.list", safe_name(list))
}

impl Renderer {
    pub(super) fn update_certificates(&mut self, model: &Model, touched: &Touched, first: bool) {
        for id in &touched.certificates {
            let content =
                model.certificates.get(id).map(|certificate| (Content::Certificate(certificate.pem.clone()), certificate.sources.clone()));
            self.put(ResourceKey::Certificate(certificate_path(id).into()), content);
        }
        let default = model.default_certificate.as_ref();
        if first || touched.default_certificate || default.is_some_and(|id| touched.certificates.contains(id)) {
            let certificate = default.and_then(|id| model.certificates.get(id));
            let content = certificate.map(|certificate| (Content::Certificate(certificate.pem.clone()), certificate.sources.clone()));
            self.put(ResourceKey::Certificate(DEFAULT_CERTIFICATE.into()), content);
        }
        for (list, id) in &touched.list_entries {
            self.update_list_entry(model, list, id);
        }
        for id in &touched.certificates {
            // An entry without its certificate would be refused.
            let lists: Vec<_> = self.lists.iter().filter(|(_, ids)| ids.contains(id)).map(|(list, _)| list.clone()).collect();
            for list in lists {
                self.update_list_entry(model, &list, id);
            }
        }
        for id in &touched.ca_bundles {
            let content = model.ca_bundles.get(id).map(|bundle| {
                let bytes: Arc<[u8]> = bundle.pem.as_bytes().into();
                (Content::File(PrivateBytes::new(bytes)), bundle.sources.clone())
            });
            self.put(ResourceKey::File(ca_path(&id.0).into()), content);
        }
    }

    fn update_list_entry(&mut self, model: &Model, list: &super::Name, id: &CertificateId) {
        let names = model.certificate_lists.get(list).and_then(|entries| entries.entries.get(id));
        let wanted = self.lists.entry(list.clone()).or_default();
        if names.is_some() {
            wanted.insert(id.clone());
        } else {
            wanted.remove(id);
            if wanted.is_empty() {
                self.lists.remove(list);
            }
        }
        let good = |name: &str| {
            let plain = name.strip_prefix("*.").unwrap_or(name);
            !plain.is_empty() && plain.len() <= 253 && plain.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
        };
        let key = ResourceKey::CertificateList { list: list_path(list).into(), owner: certificate_path(id).into() };
        let content = names.zip(model.certificates.get(id)).and_then(|(names, certificate)| {
            let names: Vec<Box<str>> = names.iter().filter(|name| good(name)).cloned().collect();
            // A line without names would serve the certificate for its own ones.
            let entry = ListEntry { file: certificate_path(id).into(), names };
            (!entry.names.is_empty()).then(|| (Content::CertificateList(vec![entry]), certificate.sources.clone()))
        });
        self.put(key, content);
    }
}
