//! Between our own types and messages: total and strict. Whatever is not what it must be is refused by the name of
//! its field; a hash that comes along is computed again and compared.

use super::proto;
use super::proto::key::Kind as Keyed;
use super::proto::resource::Content as Message;
use crate::haproxy::bundle::{
    BackendClass, BackendHead, Content, Digest, ListEntry, MapEntry, Name, Resource, ResourceKey, Server, Servers,
};
use crate::model::ZoneRule;
use crate::report::{Kind, ObjectRef, PrivateBytes};
use std::fmt;
use std::sync::Arc;

/// A message that is not what it must be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {problem}")]
pub struct Malformed {
    /// Which field.
    field: &'static str,
    /// What is wrong with it.
    problem: String,
}

impl Malformed {
    fn new(field: &'static str, problem: impl fmt::Display) -> Self {
        Self { field, problem: problem.to_string() }
    }

    pub(crate) fn missing(field: &'static str) -> Self {
        Self::new(field, "is missing")
    }
}

// private keys are among the content
impl fmt::Debug for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl fmt::Debug for proto::Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resource").field("key", &self.key).field("content", &self.content).finish_non_exhaustive()
    }
}

/// The 16 bytes of a hash or digest.
pub(crate) fn hash_bytes(hash: u128) -> Vec<u8> {
    hash.to_le_bytes().to_vec()
}

fn hash_of(field: &'static str, bytes: &[u8]) -> Result<u128, Malformed> {
    let length = || Malformed::new(field, format_args!("has {} bytes instead of 16", bytes.len()));
    bytes.try_into().map(u128::from_le_bytes).map_err(|_| length())
}

/// A digest that has to be there.
pub(crate) fn digest(field: &'static str, bytes: &[u8]) -> Result<Digest, Malformed> {
    hash_of(field, bytes).map(Digest)
}

/// A digest that may be left out.
pub(crate) fn optional_digest(field: &'static str, bytes: &[u8]) -> Result<Option<Digest>, Malformed> {
    if bytes.is_empty() { Ok(None) } else { digest(field, bytes).map(Some) }
}

/// The message of `key`.
pub fn encode_key(key: &ResourceKey) -> proto::Key {
    let owned = |path: &Name, owner: &Name| proto::Owned { path: path.to_string(), owner: owner.to_string() };
    let kind = match key {
        ResourceKey::Section(name) => Keyed::Section(name.to_string()),
        ResourceKey::Backend(name) => Keyed::Backend(name.to_string()),
        ResourceKey::Servers(name) => Keyed::Servers(name.to_string()),
        ResourceKey::MapEntries { map, owner } => Keyed::MapEntries(owned(map, owner)),
        ResourceKey::Certificate(path) => Keyed::Certificate(path.to_string()),
        ResourceKey::CertificateList { list, owner } => Keyed::CertificateList(owned(list, owner)),
        ResourceKey::File(path) => Keyed::File(path.to_string()),
    };
    proto::Key { kind: Some(kind) }
}

/// The key of a message.
pub fn decode_key(key: Option<proto::Key>) -> Result<ResourceKey, Malformed> {
    let kind = key.and_then(|key| key.kind).ok_or_else(|| Malformed::missing("key"))?;
    let key = match kind {
        Keyed::Section(name) => ResourceKey::Section(file_name("key.section", &name)?),
        Keyed::Backend(name) => ResourceKey::Backend(name.into()),
        Keyed::Servers(name) => ResourceKey::Servers(name.into()),
        Keyed::MapEntries(of) => ResourceKey::MapEntries { map: path("key.map_entries.path", &of.path)?, owner: of.owner.into() },
        Keyed::Certificate(file) => ResourceKey::Certificate(path("key.certificate", &file)?),
        Keyed::CertificateList(of) => {
            ResourceKey::CertificateList { list: path("key.certificate_list.path", &of.path)?, owner: of.owner.into() }
        }
        Keyed::File(file) => ResourceKey::File(path("key.file", &file)?),
    };
    Ok(key)
}

/// A path below the configuration directory: nothing that leads out of it.
fn path(field: &'static str, text: &str) -> Result<Name, Malformed> {
    let fine = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains('\0');
    if text.split('/').all(fine) {
        Ok(text.into())
    } else {
        Err(Malformed::new(field, format_args!("{text:?} is no path below a directory")))
    }
}

fn file_name(field: &'static str, text: &str) -> Result<Name, Malformed> {
    if text.contains('/') { Err(Malformed::new(field, format_args!("{text:?} is no file name"))) } else { path(field, text) }
}

/// The messages of source objects.
pub(crate) fn encode_sources(sources: &[ObjectRef]) -> Vec<proto::ObjectRef> {
    let source = |source: &ObjectRef| proto::ObjectRef {
        kind: source.kind.to_string(),
        namespace: source.namespace.to_string(),
        name: source.name.to_string(),
    };
    sources.iter().map(source).collect()
}

/// The source objects of messages.
pub(crate) fn decode_sources(sources: Vec<proto::ObjectRef>) -> Result<Arc<[ObjectRef]>, Malformed> {
    sources
        .into_iter()
        .map(|source| {
            if source.kind.is_empty() {
                return Err(Malformed::missing("sources.kind"));
            }
            Ok(ObjectRef::new(kind(&source.kind), source.namespace, source.name))
        })
        .collect()
}

fn kind(name: &str) -> Kind {
    const KNOWN: [Kind; 10] = [
        Kind::IngressDeployment,
        Kind::Backend,
        Kind::Ingress,
        Kind::IngressClass,
        Kind::GatewayClass,
        Kind::Namespace,
        Kind::Service,
        Kind::EndpointSlice,
        Kind::Secret,
        Kind::ConfigMap,
    ];
    KNOWN.into_iter().find(|kind| kind.as_str() == name).unwrap_or_else(|| Kind::Other(name.into()))
}

/// The message of `resource`.
pub fn encode(resource: &Resource) -> proto::Resource {
    let content = match &resource.content {
        Content::Section(text) => Message::Section(text.to_string()),
        Content::Backend(head) => Message::Backend(encode_head(head)),
        Content::Servers(servers) => Message::Servers(encode_servers(servers)),
        Content::MapEntries(entries) => {
            let entry = |entry: &MapEntry| proto::MapEntry { key: entry.key.to_string(), value: entry.value.to_string() };
            Message::MapEntries(proto::MapEntries { entries: entries.iter().map(entry).collect() })
        }
        Content::Certificate(bytes) => Message::Certificate(bytes.expose().to_vec()),
        Content::CertificateList(entries) => {
            let names = |entry: &ListEntry| entry.names.iter().map(ToString::to_string).collect();
            let entry = |entry: &ListEntry| proto::ListEntry { file: entry.file.to_string(), names: names(entry) };
            Message::CertificateList(proto::CertificateList { entries: entries.iter().map(entry).collect() })
        }
        Content::File(bytes) => Message::File(bytes.expose().to_vec()),
    };
    proto::Resource {
        key: Some(encode_key(&resource.key)),
        hash: hash_bytes(resource.hash()),
        sources: encode_sources(&resource.sources),
        content: Some(content),
    }
}

fn encode_head(head: &BackendHead) -> proto::BackendHead {
    let shaped = match &head.class {
        BackendClass::Private => None,
        BackendClass::Shaped { shape, mode, guid } => {
            Some(proto::Shaped { shape: shape.to_string(), mode: (*mode).to_owned(), guid: guid.to_string() })
        }
    };
    proto::BackendHead { text: head.text.to_string(), shaped }
}

fn encode_servers(servers: &Servers) -> proto::Servers {
    let rule = |rule: ZoneRule| proto::ZoneRule { min_ready: rule.min_ready.into(), min_share: rule.min_share.into() };
    proto::Servers { servers: servers.iter().map(encode_server).collect(), zones: servers.zones.map(rule) }
}

fn encode_server(server: &Server) -> proto::Server {
    proto::Server {
        name: server.name.to_string(),
        address: server.address.to_string(),
        id: server.id,
        guid: server.guid.to_string(),
        keywords: server.keywords.to_string(),
        checked: server.checked,
        weight: server.weight.into(),
        drain: server.drain,
        zone: server.zone.as_deref().unwrap_or_default().to_owned(),
    }
}

/// The resource of a message, whose hash is what it says.
pub fn decode(message: proto::Resource) -> Result<Resource, Malformed> {
    let key = decode_key(message.key)?;
    let said = hash_of("hash", &message.hash)?;
    let sources = decode_sources(message.sources)?;
    let content = message.content.ok_or_else(|| Malformed::missing("content"))?;
    let resource = Resource::new(key.clone(), decode_content(&key, content)?, sources);
    if resource.hash() == said { Ok(resource) } else { Err(Malformed::new("hash", format_args!("is not that of {key}"))) }
}

fn decode_content(key: &ResourceKey, content: Message) -> Result<Content, Malformed> {
    let content = match (key, content) {
        (ResourceKey::Section(_), Message::Section(text)) => Content::Section(text.into()),
        (ResourceKey::Backend(_), Message::Backend(head)) => Content::Backend(decode_head(head)?),
        (ResourceKey::Servers(_), Message::Servers(all)) => {
            let zones = all.zones.map(decode_rule).transpose()?;
            Content::Servers(Servers { all: all.servers.into_iter().map(decode_server).collect::<Result<_, _>>()?, zones })
        }
        (ResourceKey::MapEntries { .. }, Message::MapEntries(all)) => {
            let entry = |entry: proto::MapEntry| MapEntry { key: entry.key.into(), value: entry.value.into() };
            Content::MapEntries(all.entries.into_iter().map(entry).collect())
        }
        (ResourceKey::Certificate(_), Message::Certificate(bytes)) => Content::Certificate(PrivateBytes::new(bytes)),
        (ResourceKey::CertificateList { .. }, Message::CertificateList(all)) => {
            let entry = |entry: proto::ListEntry| {
                let file = path("certificate_list.entries.file", &entry.file)?;
                Ok(ListEntry { file, names: entry.names.into_iter().map(Into::into).collect() })
            };
            Content::CertificateList(all.entries.into_iter().map(entry).collect::<Result<_, Malformed>>()?)
        }
        (ResourceKey::File(_), Message::File(bytes)) => Content::File(PrivateBytes::new(bytes)),
        (key, _) => return Err(Malformed::new("content", format_args!("is of another kind than {key}"))),
    };
    Ok(content)
}

fn decode_head(head: proto::BackendHead) -> Result<BackendHead, Malformed> {
    let class = match head.shaped {
        None => BackendClass::Private,
        Some(shaped) => {
            let mode = match shaped.mode.as_str() {
                "http" => "http",
                "tcp" => "tcp",
                other => return Err(Malformed::new("backend.shaped.mode", format_args!("{other:?} is neither http nor tcp"))),
            };
            BackendClass::Shaped { shape: shaped.shape.into(), mode, guid: shaped.guid.into() }
        }
    };
    Ok(BackendHead { text: head.text.into(), class })
}

fn decode_rule(rule: proto::ZoneRule) -> Result<ZoneRule, Malformed> {
    let number = |field, number: u32| u16::try_from(number).map_err(|_| Malformed::new(field, format_args!("{number} is too large")));
    Ok(ZoneRule {
        min_ready: number("servers.zones.min_ready", rule.min_ready)?,
        min_share: number("servers.zones.min_share", rule.min_share)?,
    })
}

fn decode_server(server: proto::Server) -> Result<Server, Malformed> {
    let address = server.address.parse().map_err(|_| Malformed::new("servers.address", format_args!("{:?} is none", server.address)))?;
    let weight =
        u16::try_from(server.weight).map_err(|_| Malformed::new("servers.weight", format_args!("{} is too large", server.weight)))?;
    Ok(Server {
        name: server.name.into(),
        address,
        id: server.id,
        guid: server.guid.into(),
        keywords: server.keywords.into(),
        checked: server.checked,
        weight,
        drain: server.drain,
        zone: (!server.zone.is_empty()).then(|| server.zone.into()),
        here: None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use prost::Message as _;

    fn resource(key: ResourceKey, content: Content) -> Resource {
        let sources = Arc::new([ObjectRef::new(Kind::Ingress, "shop", "web"), ObjectRef::new(Kind::Other("Gateway".into()), "", "g")]);
        Resource::new(key, content, sources)
    }

    /// One of each kind.
    fn all() -> Vec<Resource> {
        let server = Server {
            name: "s1".into(),
            address: "[fd00::1]:8080".parse().unwrap(),
            id: 7,
            guid: "b:s1".into(),
            keywords: "check inter 2000".into(),
            checked: true,
            weight: 256,
            drain: true,
            zone: None,
            here: None,
        };
        let near = Server { zone: Some("zone-a".into()), ..server.clone() };
        let rule = ZoneRule { min_ready: 2, min_share: 75 };
        let shaped = BackendClass::Shaped { shape: "shape-h1".into(), mode: "tcp", guid: "b:1".into() };
        let head = |class| Content::Backend(BackendHead { text: "backend b1 from shape-h1\n".into(), class });
        let entry = MapEntry { key: "a.example/".into(), value: "b1".into() };
        let line = ListEntry { file: "certs/a.pem".into(), names: vec!["a.example".into(), "b.example".into()] };
        vec![
            resource(ResourceKey::Section("10-global".into()), Content::Section("global\n".into())),
            resource(ResourceKey::Backend("b1".into()), head(shaped)),
            resource(ResourceKey::Backend("b2".into()), head(BackendClass::Private)),
            resource(ResourceKey::Servers("b1".into()), Content::Servers(vec![server].into())),
            resource(
                ResourceKey::MapEntries { map: "maps/t/routes.map".into(), owner: "a.example".into() },
                Content::MapEntries(vec![entry]),
            ),
            resource(ResourceKey::Certificate("certs/a.pem".into()), Content::Certificate(PrivateBytes::new(*b"key"))),
            resource(
                ResourceKey::CertificateList { list: "lists/https.list".into(), owner: "".into() },
                Content::CertificateList(vec![line]),
            ),
            resource(ResourceKey::File("ca/a.pem".into()), Content::File(PrivateBytes::new(*b"ca"))),
            resource(ResourceKey::Servers("b2".into()), Content::Servers(Servers { all: vec![near], zones: Some(rule) })),
        ]
    }

    #[test]
    fn every_kind_of_resource_comes_over_the_wire_as_it_is() {
        for resource in all() {
            let bytes = encode(&resource).encode_to_vec();
            assert_eq!(decode(proto::Resource::decode(&*bytes).unwrap()), Ok(resource));
        }
    }

    #[test]
    fn what_is_malformed_is_refused_by_the_name_of_its_field() {
        let refused = |number: usize, change: fn(&mut proto::Resource)| {
            let mut message = encode(&all()[number]);
            change(&mut message);
            decode(message).unwrap_err().to_string()
        };
        assert_eq!(refused(0, |message| message.key = None), "key is missing");
        assert_eq!(refused(0, |message| message.content = None), "content is missing");
        assert_eq!(refused(0, |message| message.hash.truncate(3)), "hash has 3 bytes instead of 16");
        assert_eq!(refused(0, |message| message.hash[0] ^= 1), "hash is not that of section 10-global");
        assert_eq!(
            refused(0, |message| message.content = Some(Message::File(Vec::new()))),
            "content is of another kind than section 10-global"
        );
        assert_eq!(refused(0, |message| message.sources[0].kind.clear()), "sources.kind is missing");
        let mode = refused(1, |message| {
            let Some(Message::Backend(head)) = &mut message.content else { unreachable!() };
            head.shaped.as_mut().unwrap().mode = "udp".to_owned();
        });
        assert_eq!(mode, "backend.shaped.mode \"udp\" is neither http nor tcp");
        let of_server = |change: fn(&mut proto::Server)| {
            let mut message = encode(&all()[3]);
            let Some(Message::Servers(servers)) = &mut message.content else { unreachable!() };
            change(&mut servers.servers[0]);
            decode(message).unwrap_err().to_string()
        };
        assert_eq!(of_server(|server| server.weight = 70_000), "servers.weight 70000 is too large");
        assert_eq!(of_server(|server| server.address = "a.example:80".to_owned()), "servers.address \"a.example:80\" is none");
    }

    #[test]
    fn no_path_leads_out_of_the_directory() {
        for text in ["/etc/passwd", "certs/../../x", "..", "", "certs//a", ".record"] {
            for kind in [Keyed::File(text.to_owned()), Keyed::Certificate(text.to_owned()), Keyed::Section(text.to_owned())] {
                assert!(decode_key(Some(proto::Key { kind: Some(kind) })).is_err(), "{text}");
            }
        }
    }

    #[test]
    fn a_private_key_is_not_in_what_is_logged() {
        let message = encode(&all()[5]);
        assert!(!format!("{message:?}").contains(&format!("{:?}", b"key")[1..8]));
        assert!(format!("{message:?}").contains("certs/a.pem"));
    }
}
