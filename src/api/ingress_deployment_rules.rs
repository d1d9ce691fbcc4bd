//! What the API server would refuse of an `IngressDeployment`: the ranges and rules of its schema, for objects
//! that do not come from one. A test holds the two together.

use super::IngressDeploymentSpec;
use super::ingress_deployment::LocalRef;
use crate::report::{Diagnostic, ObjectRef, codes};
use std::collections::BTreeSet;

const HELP: &str = "correct it; until then the fleet is as it was last good, or not there at all";

impl IngressDeploymentSpec {
    /// What the API server would refuse, field by field. `object` is what it is the spec of.
    pub fn violations(&self, object: &ObjectRef) -> Vec<Diagnostic> {
        let mut rules = Rules { object, found: Vec::new() };
        rules.length("spec.ingressClassName", &self.ingress_class_name, 253);
        rules.range("spec.replicas", self.replicas, 0, 1000);
        rules.zones(self);
        if let Some(backend) = &self.default_backend {
            let service = &backend.service;
            rules.length("spec.defaultBackend.service.name", &service.name, 63);
            rules.range("spec.defaultBackend.service.port.number", service.port.number, 1, 65_535);
            if let Some(name) = &service.port.name {
                rules.length("spec.defaultBackend.service.port.name", name, 63);
            }
            if service.port.number.is_some() == service.port.name.is_some() {
                rules.broken("spec.defaultBackend.service.port", "give either number or name");
            }
        }
        rules.reference("spec.backendRef.name", self.backend_ref.as_ref());
        rules.reference("spec.configMapRef.name", self.config_map_ref.as_ref());
        rules.reference("spec.tls.defaultCertificateRef.name", self.tls.as_ref().and_then(|tls| tls.default_certificate_ref.as_ref()));
        rules.range("spec.ports.http", Some(self.ports.http), 1, 65_535);
        rules.range("spec.ports.https", Some(self.ports.https), 1, 65_535);
        if self.ports.http == self.ports.https {
            rules.broken("spec.ports.https", "http and https need different ports");
        }
        rules.found
    }
}

struct Rules<'o> {
    object: &'o ObjectRef,
    found: Vec<Diagnostic>,
}

impl Rules<'_> {
    fn broken(&mut self, field: impl Into<String>, message: impl Into<String>) {
        self.found.push(Diagnostic::error(self.object, field, codes::INVALID_VALUE, message, HELP));
    }

    fn length(&mut self, field: &str, text: &str, most: usize) {
        if text.is_empty() || text.chars().count() > most {
            self.broken(field, format!("this takes 1 to {most} characters"));
        }
    }

    fn range(&mut self, field: &str, number: Option<i32>, least: i32, most: i32) {
        if let Some(number) = number.filter(|number| !(least..=most).contains(number)) {
            self.broken(field, format!("{number} is not within {least} and {most}"));
        }
    }

    fn reference(&mut self, field: &str, reference: Option<&LocalRef>) {
        if let Some(reference) = reference {
            self.length(field, &reference.name, 253);
        }
    }

    fn zones(&mut self, spec: &IngressDeploymentSpec) {
        let zones = &spec.zones;
        if zones.len() > 32 {
            self.broken("spec.zones", format!("{} zones are more than 32", zones.len()));
        }
        let mut names = BTreeSet::new();
        for (index, zone) in zones.iter().enumerate() {
            let name = format!("spec.zones[{index}].name");
            self.length(&name, &zone.name, 63);
            self.range(&format!("spec.zones[{index}].replicas"), zone.replicas, 0, 1000);
            if !names.insert(&zone.name) {
                self.broken(name, "another zone has this name already");
            }
        }
        let (with, without): (Vec<_>, Vec<_>) = (0..).zip(zones).partition::<Vec<(usize, _)>, _>(|(_, zone)| zone.replicas.is_some());
        if spec.replicas.is_some() && !with.is_empty() {
            self.broken("spec.replicas", "replicas and zones[].replicas exclude each other");
        } else if let (false, Some((index, _))) = (with.is_empty(), without.first()) {
            self.broken(format!("spec.zones[{index}]"), "either every zone has replicas or none has");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::report::Kind;
    use serde_json::{Value, json};

    fn object() -> ObjectRef {
        ObjectRef::new(Kind::IngressDeployment, "infra", "edge")
    }

    fn found(mut spec: Value) -> Vec<(String, String)> {
        let fields = spec.as_object_mut().unwrap();
        fields.entry("ingressClassName").or_insert(json!("edge"));
        let spec: IngressDeploymentSpec = serde_json::from_value(spec).unwrap();
        spec.violations(&object()).into_iter().map(|found| (found.field, found.message)).collect()
    }

    /// Every constraint of the schema as `PATH CONSTRAINT`.
    fn constraints(schema: &Value, path: &str, out: &mut BTreeSet<String>) {
        for name in ["minimum", "maximum", "minLength", "maxLength", "maxItems", "minItems", "pattern", "x-kubernetes-list-map-keys"] {
            if schema.get(name).is_some() {
                out.insert(format!("{path} {name}"));
            }
        }
        for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
            out.insert(format!("{path} {}", rule["message"].as_str().unwrap()));
        }
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            constraints(property, &format!("{path}.{name}"), out);
        }
        if let Some(items) = schema.get("items") {
            constraints(items, &format!("{path}[]"), out);
        }
    }

    /// A spec that breaks one constraint of the schema, and the field that is told.
    fn breaches() -> Vec<(&'static str, Value, &'static str)> {
        let long = |length: usize| "a".repeat(length);
        let port = |port: Value| json!({"defaultBackend": {"service": {"name": "a", "port": port}}});
        let service = |name: String| json!({"defaultBackend": {"service": {"name": name, "port": {"number": 1}}}});
        let certificate = |name: String| json!({"tls": {"defaultCertificateRef": {"name": name}}});
        let zones = |count: usize| -> Vec<Value> { (0..count).map(|n| json!({"name": format!("z{n}")})).collect() };
        let number = "spec.defaultBackend.service.port.number";
        vec![
            ("spec.ingressClassName minLength", json!({"ingressClassName": ""}), "spec.ingressClassName"),
            ("spec.ingressClassName maxLength", json!({"ingressClassName": long(254)}), "spec.ingressClassName"),
            ("spec.replicas minimum", json!({"replicas": -1}), "spec.replicas"),
            ("spec.replicas maximum", json!({"replicas": 1001}), "spec.replicas"),
            ("spec.zones maxItems", json!({"zones": zones(33)}), "spec.zones"),
            ("spec.zones x-kubernetes-list-map-keys", json!({"zones": [{"name": "a"}, {"name": "a"}]}), "spec.zones[1].name"),
            ("spec.zones[].name minLength", json!({"zones": [{"name": ""}]}), "spec.zones[0].name"),
            ("spec.zones[].name maxLength", json!({"zones": [{"name": long(64)}]}), "spec.zones[0].name"),
            ("spec.zones[].replicas minimum", json!({"zones": [{"name": "a", "replicas": -1}]}), "spec.zones[0].replicas"),
            ("spec.zones[].replicas maximum", json!({"zones": [{"name": "a", "replicas": 1001}]}), "spec.zones[0].replicas"),
            (
                "spec replicas and zones[].replicas exclude each other",
                json!({"replicas": 3, "zones": [{"name": "a", "replicas": 1}]}),
                "spec.replicas",
            ),
            (
                "spec either every zone has replicas or none has",
                json!({"zones": [{"name": "a", "replicas": 1}, {"name": "b"}]}),
                "spec.zones[1]",
            ),
            ("spec.defaultBackend.service.name minLength", service(String::new()), "spec.defaultBackend.service.name"),
            ("spec.defaultBackend.service.name maxLength", service(long(64)), "spec.defaultBackend.service.name"),
            ("spec.defaultBackend.service.port give either number or name", port(json!({})), "spec.defaultBackend.service.port"),
            ("spec.defaultBackend.service.port.number minimum", port(json!({"number": 0})), number),
            ("spec.defaultBackend.service.port.number maximum", port(json!({"number": 65_536})), number),
            ("spec.defaultBackend.service.port.name minLength", port(json!({"name": ""})), "spec.defaultBackend.service.port.name"),
            ("spec.defaultBackend.service.port.name maxLength", port(json!({"name": long(64)})), "spec.defaultBackend.service.port.name"),
            ("spec.backendRef.name minLength", json!({"backendRef": {"name": ""}}), "spec.backendRef.name"),
            ("spec.backendRef.name maxLength", json!({"backendRef": {"name": long(254)}}), "spec.backendRef.name"),
            ("spec.configMapRef.name minLength", json!({"configMapRef": {"name": ""}}), "spec.configMapRef.name"),
            ("spec.configMapRef.name maxLength", json!({"configMapRef": {"name": long(254)}}), "spec.configMapRef.name"),
            ("spec.tls.defaultCertificateRef.name minLength", certificate(String::new()), "spec.tls.defaultCertificateRef.name"),
            ("spec.tls.defaultCertificateRef.name maxLength", certificate(long(254)), "spec.tls.defaultCertificateRef.name"),
            ("spec.ports http and https need different ports", json!({"ports": {"http": 443}}), "spec.ports.https"),
            ("spec.ports.http minimum", json!({"ports": {"http": 0}}), "spec.ports.http"),
            ("spec.ports.http maximum", json!({"ports": {"http": 65_536}}), "spec.ports.http"),
            ("spec.ports.https minimum", json!({"ports": {"https": 0}}), "spec.ports.https"),
            ("spec.ports.https maximum", json!({"ports": {"https": 65_536}}), "spec.ports.https"),
        ]
    }

    #[test]
    fn every_constraint_of_the_schema_is_held_without_an_api_server() {
        let crds = crate::api::crds();
        let crd = crds.iter().find(|crd| crd.spec.names.kind == "IngressDeployment").unwrap();
        let schema = serde_json::to_value(crd.spec.versions[0].schema.as_ref().unwrap()).unwrap();
        let mut constrained = BTreeSet::new();
        constraints(&schema["openAPIV3Schema"]["properties"]["spec"], "spec", &mut constrained);
        let known: BTreeSet<String> = breaches().iter().map(|(name, _, _)| (*name).to_owned()).collect();
        assert_eq!(constrained, known);
        for (name, spec, field) in breaches() {
            let found = found(spec);
            assert_eq!(found.len(), 1, "{name}: {found:?}");
            assert_eq!(found[0].0, field, "{name}");
            // Rules say the same here as there.
            if let Some((_, rule)) = name.split_once(' ').filter(|(_, rule)| rule.contains(' ')) {
                assert_eq!(found[0].1, rule);
            }
        }
    }

    #[test]
    fn a_spec_with_everything_in_order_breaks_no_rule() {
        let zones = json!([{"name": "a", "replicas": 1}, {"name": "b", "replicas": 0}]);
        assert_eq!(found(json!({"zones": zones, "ports": {"http": 8080}})), []);
        assert_eq!(found(json!({"replicas": 3, "zones": [{"name": "a"}, {"name": "b"}]})), []);
        assert_eq!(found(json!({"defaultBackend": {"service": {"name": "a", "port": {"name": "http"}}}})), []);
    }
}
