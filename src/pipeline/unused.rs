//! Backends that no fleet uses: the question that no single fleet can answer.

use crate::report::{Diagnostic, Kind, ObjectRef, codes};
use crate::translate::{Translator, check_backend};
use crate::world::{Changed, World};
use std::collections::BTreeMap;

/// Findings about Backends that no fleet uses, kept up with the world.
#[derive(Debug, Default)]
pub(super) struct Unused {
    findings: BTreeMap<ObjectRef, Vec<Diagnostic>>,
}

impl Unused {
    /// The findings, by object.
    pub(super) fn diagnostics(&self) -> impl Iterator<Item = &Diagnostic> {
        self.findings.values().flatten()
    }

    /// Looks at all Backends after a change that may have to do with them; what endpoints cost stays as it is.
    pub(super) fn update<'a>(&mut self, world: &World, fleets: &(impl Iterator<Item = &'a Translator> + Clone), changed: &[Changed]) {
        let changed = || changed.iter().map(|change| &change.object);
        if changed().all(|object| object.kind == Kind::EndpointSlice) {
            return;
        }
        if changed().any(|object| matches!(object.kind, Kind::Secret | Kind::ConfigMap)) {
            // they may hold the CA certificates that a Backend names
            self.findings.clear();
        }
        for object in changed().filter(|object| object.kind == Kind::Backend) {
            self.findings.remove(object);
        }
        for backend in world.backends() {
            let (namespace, name) = (&backend.meta.namespace, &backend.meta.name);
            let object = ObjectRef::new(Kind::Backend, namespace.clone(), name.clone());
            if fleets.clone().any(|fleet| fleet.uses_backend(namespace, name)) {
                self.findings.remove(&object);
            } else {
                self.findings.entry(object).or_insert_with_key(|object| {
                    let mut findings = check_backend(world, namespace, name);
                    findings.push(unused(object));
                    findings
                });
            }
        }
    }
}

fn unused(object: &ObjectRef) -> Diagnostic {
    Diagnostic::info(
        object,
        "",
        codes::UNUSED,
        "nothing that a fleet serves names this Backend, so it has no effect",
        "name it by the annotation haproxy-fleet.dev/backend of an Ingress or Service of its namespace, or by a fleet's spec.backendRef",
    )
}
