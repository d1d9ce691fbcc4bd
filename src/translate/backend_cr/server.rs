//! `default_server` of a `Backend`.

use super::Reader;
use crate::api::backend as api;
use crate::model::{CaId, SendProxy, ServerOptions, Sni, Verify};
use crate::report::{Kind, ObjectRef, codes};
use crate::translate::{authorities, names};
use crate::world::{Reference, World};

impl Reader {
    pub(super) fn server(&mut self, world: &World, server: &api::DefaultServer) {
        let options = ServerOptions {
            check_port: None,
            check: server.check.map(api::Switch::is_on),
            inter: self.millis("default_server.inter", server.inter),
            rise: self.number("default_server.rise", server.rise, 1, 1000),
            fall: self.number("default_server.fall", server.fall, 1, 1000),
            maxconn: self.number("default_server.maxconn", server.maxconn, 0, 2_147_483_647),
            weight: self.number("default_server.weight", server.weight, 0, 256).and_then(|n| u16::try_from(n).ok()),
            slowstart: self.millis("default_server.slowstart", server.slowstart),
            ssl: server.ssl.map(api::Switch::is_on),
            verify: server.verify.map(|verify| match verify {
                api::Verify::None => Verify::None,
                api::Verify::Required => Verify::Required,
            }),
            ca: server.ssl_cafile.as_deref().map(|text| self.authorities(world, text)),
            sni: server.sni.as_deref().and_then(|text| self.sni(text)),
            alpn: server.alpn.as_deref().and_then(|text| self.alpn(text)),
            h2c: None,
            send_proxy: self.send_proxy(server),
        };
        self.policy.server = options;
    }

    fn send_proxy(&mut self, server: &api::DefaultServer) -> Option<SendProxy> {
        let on = |switch: Option<api::Switch>| switch.map(api::Switch::is_on);
        match (on(server.send_proxy), on(server.send_proxy_v2)) {
            (Some(true), Some(true)) => {
                let help = "keep one of the two; version 2 is used";
                self.error("default_server.send-proxy", codes::CONFLICT, "send-proxy and send-proxy-v2 exclude each other", help);
                Some(SendProxy::V2)
            }
            (_, Some(true)) => Some(SendProxy::V2),
            (Some(true), _) => Some(SendProxy::V1),
            (None, None) => None,
            _ => Some(SendProxy::Off),
        }
    }

    fn sni(&mut self, text: &str) -> Option<Sni> {
        let lower = text.to_ascii_lowercase();
        if matches!(&*lower, "req.hdr(host)" | "hdr(host)" | "req.fhdr(host)" | "req.hdr(host),host_only" | "hdr(host),host_only") {
            return Some(Sni::RequestHost);
        }
        let name = lower.strip_prefix("str(").and_then(|rest| rest.strip_suffix(')')).unwrap_or(&lower);
        match names::dns_name(name) {
            Ok(name) => Some(Sni::Name(name.into())),
            Err(_) if lower.contains('(') => {
                let help = "give a DNS name, str(NAME), or req.hdr(host)";
                self.refused("default_server.sni", format!("the expression {} is not supported", names::quoted(text)), help);
                None
            }
            Err(wrong) => {
                self.invalid("default_server.sni", format!("the name {} {wrong}", names::quoted(text)));
                None
            }
        }
    }

    fn alpn(&mut self, text: &str) -> Option<Vec<Box<str>>> {
        let valid = |p: &str| !p.is_empty() && p.len() <= 32 && p.bytes().all(|b| b.is_ascii_alphanumeric() || b"/.-_".contains(&b));
        let protocols: Vec<Box<str>> = text.split(',').map(Into::into).collect();
        if protocols.len() <= 8 && protocols.iter().all(|p| valid(p)) {
            return Some(protocols);
        }
        self.invalid("default_server.alpn", format!("{} is not a list of protocols such as h2,http/1.1", names::quoted(text)));
        None
    }

    /// The CA certificates that `text` names. Where they cannot be used the identity stays, without a bundle:
    /// whoever wants to verify with them answers 503 instead of not verifying.
    fn authorities(&mut self, world: &World, text: &str) -> CaId {
        const FIELD: &str = "default_server.ssl_cafile";
        let namespace = self.object.namespace.clone();
        let reference = api::CaReference::parse(text).filter(|r| names::object_name(&r.name).is_none() && names::token(&r.key).is_ok());
        let Some(reference) = reference else {
            let message =
                format!("{} names neither a Secret nor a ConfigMap; backends that verify with it answer 503", names::quoted(text));
            self.error(FIELD, codes::INVALID_VALUE, message, "write secret/NAME or configmap/NAME, with /KEY if it is not ca.crt");
            return authorities::id(&[&namespace, "invalid", &self.object.name.clone(), ""]);
        };
        let kind = match reference.kind {
            api::CaKind::Secret => Kind::Secret,
            api::CaKind::ConfigMap => Kind::ConfigMap,
        };
        let source = ObjectRef::new(kind, namespace.clone(), &*reference.name);
        let ca = authorities::id(&[&namespace, authorities::tag(&source.kind), &reference.name, &reference.key]);
        self.references.insert(Reference::Object(source.clone()));
        match authorities::read(world, &source, &reference.key) {
            Ok(bundle) => self.authorities = Some((ca.clone(), bundle)),
            Err((code, message)) => {
                let message = format!("{message}; backends that verify with it answer 503");
                self.error(FIELD, code, message, "put PEM certificates there, or correct the reference");
            }
        }
        ca
    }
}
