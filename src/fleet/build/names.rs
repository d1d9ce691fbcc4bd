//! Names and labels: functions of the fleet's name and nothing else, so that no change of a spec makes an object anew.

use serde_json::{Map, Value, json};

/// The fleet that an object belongs to: in the object's namespace.
pub const LABEL_FLEET: &str = "haproxy-fleet.dev/fleet";
/// The namespace of the fleet, on objects that have none.
pub const LABEL_FLEET_NAMESPACE: &str = "haproxy-fleet.dev/fleet-namespace";
/// The listed zone that a pod belongs to; empty where none are listed.
pub const LABEL_ZONE: &str = "haproxy-fleet.dev/zone";
/// The value of `app.kubernetes.io/component` of all that serves.
pub const COMPONENT: &str = "proxy";
const LABEL_COMPONENT: &str = "app.kubernetes.io/component";

/// Names and labels of a fleet's objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub fleet: &'a str,
}

impl Names<'_> {
    /// The Deployment of a listed zone, or the only one.
    pub fn deployment(&self, zone: Option<&str>) -> String {
        zone.map_or_else(|| self.fleet.to_owned(), |zone| format!("{}-{}", self.fleet, zone_in_name(zone)))
    }

    /// An additional Service.
    pub fn additional_service(&self, name: &str) -> String {
        format!("{}-{name}", self.fleet)
    }

    /// The ConfigMap with the CA certificates that agents trust.
    pub fn operator_ca(&self) -> String {
        format!("{}-operator-ca", self.fleet)
    }

    /// The Secret with ticket keys and default certificate.
    pub fn keys(&self) -> String {
        format!("{}-keys", self.fleet)
    }

    /// The labels of every object and pod of the fleet.
    pub fn labels(&self) -> Value {
        json!({
            "app.kubernetes.io/name": "haproxy-fleet",
            "app.kubernetes.io/instance": self.fleet,
            LABEL_COMPONENT: COMPONENT,
            "app.kubernetes.io/managed-by": "haproxy-fleet",
            LABEL_FLEET: self.fleet,
        })
    }

    /// What selects all pods of the fleet.
    pub fn selector(&self) -> Value {
        json!({LABEL_COMPONENT: COMPONENT, LABEL_FLEET: self.fleet})
    }

    /// What selects the pods of one Deployment.
    pub fn deployment_selector(&self, zone: Option<&str>) -> Value {
        json!({LABEL_COMPONENT: COMPONENT, LABEL_FLEET: self.fleet, LABEL_ZONE: zone.unwrap_or_default()})
    }
}

/// The selector of all pods of the fleet `name` as text: `status.selector` of the scale subresource.
pub fn selector_text(name: &str) -> String {
    format!("{LABEL_COMPONENT}={COMPONENT},{LABEL_FLEET}={name}")
}

/// A zone's name as part of an object's: as it is where that is possible, else a readable rest and a hash.
fn zone_in_name(zone: &str) -> String {
    let valid = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if zone.len() <= 40 && zone.bytes().all(valid) && !zone.starts_with('-') && !zone.ends_with('-') {
        return zone.to_owned();
    }
    let letters = zone.bytes().map(|byte| byte.to_ascii_lowercase()).map(|byte| if valid(byte) { char::from(byte) } else { '-' });
    let text: String = letters.take(30).collect();
    format!("{}-{}", text.trim_matches('-'), &blake3::hash(zone.as_bytes()).to_hex()[..8])
}

/// `texts` on top of `labels`.
pub(super) fn with(mut labels: Value, texts: impl IntoIterator<Item = (String, String)>) -> Value {
    let map: Map<String, Value> = texts.into_iter().map(|(key, value)| (key, value.into())).collect();
    if let Value::Object(labels) = &mut labels {
        labels.extend(map);
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_that_is_no_part_of_a_name_gets_a_hash() {
        let names = Names { namespace: "infra", fleet: "edge" };
        assert_eq!(names.deployment(None), "edge");
        assert_eq!(names.deployment(Some("eu-west-1a")), "edge-eu-west-1a");
        let (upper, lower) = (names.deployment(Some("Zone_A")), names.deployment(Some("zone.a")));
        assert!(upper.starts_with("edge-zone-a-") && lower.starts_with("edge-zone-a-") && upper != lower, "{upper} {lower}");
    }
}
