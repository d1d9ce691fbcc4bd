//! Merging per host: whose claim wins, and which certificates the host gets.

use super::names;
use super::pem::KeyType;
use crate::api::{Created, Meta, NamespaceOwnership};
use crate::model::{CertificateId, Conditions, Host, HostMatch, Name, PathMatch, Route, Target};
use crate::report::{Diagnostic, ObjectRef, codes};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// The order of claims: the older object first, then by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Age {
    undated: bool,
    created: Option<Created>,
    pub namespace: Name,
    pub name: Name,
}

impl Age {
    /// Before every age that there is.
    pub(super) fn first() -> Self {
        Self { undated: false, created: None, namespace: "".into(), name: "".into() }
    }

    pub(super) fn of(meta: &Meta) -> Self {
        Self { undated: meta.creation.is_none(), created: meta.creation, namespace: meta.namespace.clone(), name: meta.name.clone() }
    }
}

/// One path that an object claims.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Claim {
    pub path: PathMatch,
    pub target: Target,
    pub https_redirect: Option<u16>,
    /// Where the object says so.
    pub field: Box<str>,
}

/// A certificate that an object wants to be served for a host.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TlsClaim {
    /// A Secret of the object's namespace.
    pub secret: Name,
    /// `None` if it cannot be served.
    pub key_type: Option<KeyType>,
    /// Where the object says so.
    pub field: Box<str>,
}

/// What one object says about one host.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct HostClaims {
    pub rules: Vec<Claim>,
    /// The object's default backend: the path `/` where nobody claims it.
    pub fallback: Option<Claim>,
    pub tls: Vec<TlsClaim>,
}

impl HostClaims {
    fn routes(&self) -> bool {
        !self.rules.is_empty() || self.fallback.is_some()
    }
}

/// Who claims.
pub(super) struct Claimant<'a> {
    pub age: &'a Age,
    pub object: &'a ObjectRef,
    pub claims: &'a HostClaims,
}

/// What a host is, all claims considered.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Merged {
    /// Its routes; `None`: the table does not know it.
    pub host: Option<Host>,
    /// Its certificates.
    pub certificates: Vec<CertificateId>,
    /// To those who lost.
    pub diagnostics: Vec<Diagnostic>,
}

/// The identity of the certificate in the Secret `namespace/name`.
pub(super) fn certificate_id(namespace: &str, name: &str) -> CertificateId {
    CertificateId(format!("{namespace}_{name}").into())
}

/// Merges what `claimants` (the oldest first) say about `host`. `last` is the fleet's default backend.
pub(super) fn merge(
    host: &HostMatch,
    claimants: &[Claimant<'_>],
    ownership: NamespaceOwnership,
    last: Option<(&Target, &ObjectRef)>,
) -> Merged {
    let mut merged = Merged::default();
    let owner = claimants.iter().find(|c| c.claims.routes());
    let mut admitted: Vec<&Claimant<'_>> = Vec::with_capacity(claimants.len());
    for claimant in claimants {
        match owner {
            Some(owner) if ownership == NamespaceOwnership::Strict && owner.age.namespace != claimant.age.namespace => {
                merged.diagnostics.push(not_yours(host, claimant, owner));
            }
            _ => admitted.push(claimant),
        }
    }
    let mut routes = routes(host, &admitted, &mut merged.diagnostics);
    if let Some((target, source)) = last
        && (!routes.is_empty() || *host == HostMatch::Any)
    {
        let root = PathMatch::Prefix("/".into());
        let route = Route {
            path: root.clone(),
            conditions: Conditions::default(),
            target: target.clone(),
            https_redirect: None,
            source: source.clone(),
        };
        routes.entry(root).or_insert(route);
    }
    if !routes.is_empty() {
        merged.host = Some(Host { routes: in_order(routes) });
    }
    certificates(host, owner.map(|o| &o.age.namespace), &admitted, &mut merged);
    merged.diagnostics.sort();
    merged.diagnostics.dedup();
    merged
}

/// The first that matches is taken: exact paths, then the longest prefix.
fn in_order(routes: BTreeMap<PathMatch, Route>) -> Vec<Route> {
    let mut routes: Vec<Route> = routes.into_values().collect();
    routes.sort_by(|a, b| rank(&a.path).cmp(&rank(&b.path)));
    routes
}

fn rank(path: &PathMatch) -> (u8, std::cmp::Reverse<usize>, &str) {
    match path {
        PathMatch::Exact(path) => (0, std::cmp::Reverse(path.len()), path),
        PathMatch::Prefix(path) => (1, std::cmp::Reverse(path.len()), path),
        PathMatch::Regex(path) => (2, std::cmp::Reverse(path.len()), path),
    }
}

fn routes(host: &HostMatch, claimants: &[&Claimant<'_>], diagnostics: &mut Vec<Diagnostic>) -> BTreeMap<PathMatch, Route> {
    let mut routes: BTreeMap<PathMatch, Route> = BTreeMap::new();
    let mut by_fallback: Option<&ObjectRef> = None;
    let rules = claimants.iter().flat_map(|c| c.claims.rules.iter().map(move |claim| (*c, claim, false)));
    let fallbacks = claimants.iter().filter_map(|c| c.claims.fallback.as_ref().map(|claim| (*c, claim, true)));
    for (claimant, claim, fallback) in rules.chain(fallbacks) {
        match routes.entry(claim.path.clone()) {
            Entry::Vacant(free) => {
                if fallback {
                    by_fallback = Some(claimant.object);
                }
                free.insert(Route {
                    path: claim.path.clone(),
                    conditions: Conditions::default(),
                    target: claim.target.clone(),
                    https_redirect: claim.https_redirect,
                    source: claimant.object.clone(),
                });
            }
            // A default backend is meant for what nobody claims: no conflict unless two of them meet.
            Entry::Occupied(taken) if !fallback || by_fallback == Some(&taken.get().source) => {
                diagnostics.push(taken_already(host, claimant.object, claim, &taken.get().source));
            }
            Entry::Occupied(_) => {}
        }
    }
    routes
}

fn taken_already(host: &HostMatch, loser: &ObjectRef, claim: &Claim, winner: &ObjectRef) -> Diagnostic {
    let (kind, path) = match &claim.path {
        PathMatch::Exact(path) => ("exact path", path),
        PathMatch::Prefix(path) => ("path prefix", path),
        PathMatch::Regex(path) => ("path pattern", path),
    };
    let host = names::host_text(host);
    let message = if loser == winner {
        format!("host {host}, {kind} {path} stands twice in this {}; the first is used", loser.kind)
    } else {
        format!("host {host}, {kind} {path} is claimed by the older {winner}, which is used")
    };
    Diagnostic::warning(loser, &*claim.field, codes::CONFLICT, message, "use another host or path, or remove one of the two")
}

fn not_yours(host: &HostMatch, loser: &Claimant<'_>, owner: &Claimant<'_>) -> Diagnostic {
    let claims = loser.claims;
    let field = claims.rules.first().or(claims.fallback.as_ref()).map(|c| &c.field).or_else(|| claims.tls.first().map(|t| &t.field));
    Diagnostic::error(
        loser.object,
        field.map(ToString::to_string).unwrap_or_default(),
        codes::CONFLICT,
        format!(
            "{} belongs to namespace {}, whose {} is the oldest to claim it; the fleet lets no other namespace have routes for it",
            names::host_text(host),
            owner.age.namespace,
            owner.object
        ),
        "use another host, or ask the owner of the namespace",
    )
}

/// The certificates of `host`: those of its owner's namespace, of each key type the oldest.
fn certificates(host: &HostMatch, owner: Option<&Name>, claimants: &[&Claimant<'_>], merged: &mut Merged) {
    let mut taken: BTreeMap<KeyType, (&Name, &ObjectRef)> = BTreeMap::new();
    let owner = owner.or_else(|| claimants.iter().find(|c| !c.claims.tls.is_empty()).map(|c| &c.age.namespace));
    for claimant in claimants {
        for tls in &claimant.claims.tls {
            let namespace = &claimant.age.namespace;
            let host = || names::host_text(host);
            if Some(namespace) != owner {
                let message = format!(
                    "the certificate of {} is that of namespace {}, which has the oldest claim to it; this one is not served",
                    host(),
                    owner.map_or("", |o| o)
                );
                merged.diagnostics.push(Diagnostic::warning(
                    claimant.object,
                    &*tls.field,
                    codes::CONFLICT,
                    message,
                    "remove the tls entry, or use another host",
                ));
                continue;
            }
            let Some(key_type) = tls.key_type else { continue };
            match taken.entry(key_type) {
                Entry::Vacant(free) => {
                    free.insert((&tls.secret, claimant.object));
                    merged.certificates.push(certificate_id(namespace, &tls.secret));
                }
                Entry::Occupied(first) if first.get().0 == &tls.secret => {}
                Entry::Occupied(first) => {
                    let (secret, object) = first.get();
                    let message = format!(
                        "{} has the {} certificate of Secret {secret} from {object} already; this one is not served",
                        host(),
                        key_type.as_str()
                    );
                    let help = "remove one of the two, or use a key of another type";
                    merged.diagnostics.push(Diagnostic::warning(claimant.object, &*tls.field, codes::CONFLICT, message, help));
                }
            }
        }
    }
}
