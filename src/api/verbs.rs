//! Annotations of an `IngressDeployment` by which people steer a fleet without changing its spec: tools that deploy from
//! git leave them alone, and they go with `kubectl annotate`.

use super::meta::Pairs;
use crate::report::{Diagnostic, ObjectRef, codes};
use k8s_openapi::jiff::Timestamp;

/// `paused`: the rollout of the pod template stops where it is.
pub const ANNOTATION_ROLLOUT: &str = "haproxy-fleet.dev/rollout";
/// The pod template, by its hash in `status.rollout.template`, that is given up: zones go back to the one before.
pub const ANNOTATION_ABORT: &str = "haproxy-fleet.dev/abort";
/// All pods are replaced once for every new time (RFC 3339) here.
pub const ANNOTATION_RESTARTED_AT: &str = "haproxy-fleet.dev/restarted-at";
/// What is drained by hand: `pod/NAME`, `node/NAME` and `zone/NAME`, with commas between them. `:force` behind one: though
/// too few pods are left.
pub const ANNOTATION_DRAIN: &str = "haproxy-fleet.dev/drain";
/// The number of the revision that the configuration is pinned to.
pub const ANNOTATION_ROLLBACK: &str = "haproxy-fleet.dev/rollback";
/// The template that the whole fleet ran last. The operator writes it.
pub const ANNOTATION_STABLE: &str = "haproxy-fleet.dev/stable";

/// What is drained by hand.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// One pod.
    Pod(String),
    /// The pods on a node.
    Node(String),
    /// The pods of a listed zone.
    Zone(String),
}

/// A wish to drain something by hand.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DrainWish {
    /// What.
    pub place: Place,
    /// Whether it goes although too few pods are left.
    pub force: bool,
}

/// How a fleet is steered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verbs {
    /// Whether the rollout is paused.
    pub paused: bool,
    /// The template that is given up.
    pub aborted: Option<String>,
    /// The template that the whole fleet ran last.
    pub stable: Option<String>,
    /// When all pods were to be replaced last, as it was written.
    pub restarted_at: Option<String>,
    /// What is drained by hand, in order.
    pub drains: Vec<DrainWish>,
    /// What cannot be understood. The rest counts.
    pub faults: Vec<Diagnostic>,
}

impl Verbs {
    /// What `annotations` of `object` say.
    pub fn of(annotations: &Pairs, object: &ObjectRef) -> Self {
        let text = |name: &str| annotations.get(name).map(str::trim).filter(|text| !text.is_empty()).map(str::to_owned);
        let mut verbs = Self { aborted: text(ANNOTATION_ABORT), stable: text(ANNOTATION_STABLE), ..Self::default() };
        let mut fault = |name: &str, message: String, help: &str| {
            verbs.faults.push(Diagnostic::error(object, format!("metadata.annotations[\"{name}\"]"), codes::INVALID_VALUE, message, help));
        };
        match text(ANNOTATION_ROLLOUT) {
            Some(said) if said == "paused" => verbs.paused = true,
            Some(said) => fault(ANNOTATION_ROLLOUT, format!("`{said}` is not known"), "write `paused`, or take the annotation away"),
            None => {}
        }
        match text(ANNOTATION_RESTARTED_AT) {
            Some(said) if said.parse::<Timestamp>().is_ok() => verbs.restarted_at = Some(said),
            Some(said) => fault(ANNOTATION_RESTARTED_AT, format!("`{said}` is no time"), "write one such as 2026-01-31T12:00:00Z"),
            None => {}
        }
        for wish in text(ANNOTATION_DRAIN).iter().flat_map(|wishes| wishes.split(',')).map(str::trim).filter(|wish| !wish.is_empty()) {
            match DrainWish::parse(wish) {
                Some(wish) => verbs.drains.push(wish),
                None => fault(
                    ANNOTATION_DRAIN,
                    format!("`{wish}` is not known"),
                    "write pod/NAME, node/NAME or zone/NAME, with :force or without",
                ),
            }
        }
        verbs.drains.sort();
        verbs.drains.dedup();
        verbs
    }
}

impl DrainWish {
    fn parse(text: &str) -> Option<Self> {
        let (place, force) = text.strip_suffix(":force").map_or((text, false), |place| (place, true));
        let (kind, name) = place.split_once('/')?;
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'));
        let place = match kind {
            "pod" => Place::Pod,
            "node" => Place::Node,
            "zone" => Place::Zone,
            _ => return None,
        };
        is_name.then(|| Self { place: place(name.to_owned()), force })
    }
}

impl std::fmt::Display for DrainWish {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (kind, name) = match &self.place {
            Place::Pod(name) => ("pod", name),
            Place::Node(name) => ("node", name),
            Place::Zone(name) => ("zone", name),
        };
        write!(f, "{kind}/{name}{}", if self.force { ":force" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Kind;

    fn verbs(annotations: &[(&str, &str)]) -> Verbs {
        Verbs::of(&annotations.iter().copied().collect(), &ObjectRef::new(Kind::IngressDeployment, "infra", "edge"))
    }

    #[test]
    fn wishes_are_read_as_they_are_written() {
        let read = verbs(&[
            (ANNOTATION_ROLLOUT, "paused"),
            (ANNOTATION_RESTARTED_AT, "2026-01-31T12:00:00Z"),
            (ANNOTATION_DRAIN, "zone/b:force, pod/edge-1 ,node/n.example,pod/edge-1"),
        ]);
        assert!(read.paused && read.faults.is_empty(), "{read:?}");
        assert_eq!(read.restarted_at.as_deref(), Some("2026-01-31T12:00:00Z"));
        assert_eq!(read.drains.iter().map(ToString::to_string).collect::<Vec<_>>(), ["pod/edge-1", "node/n.example", "zone/b:force"]);
    }

    #[test]
    fn what_cannot_be_understood_is_told_and_the_rest_counts() {
        let read = verbs(&[
            (ANNOTATION_ROLLOUT, "stop"),
            (ANNOTATION_RESTARTED_AT, "yesterday"),
            (ANNOTATION_DRAIN, "pod/, pods/a, pod/a b, node/n"),
        ]);
        assert_eq!(read.drains.len(), 1);
        let told: Vec<(&str, &str)> = read.faults.iter().map(|fault| (&*fault.field, &*fault.message)).collect();
        assert_eq!(
            told,
            [
                (r#"metadata.annotations["haproxy-fleet.dev/rollout"]"#, "`stop` is not known"),
                (r#"metadata.annotations["haproxy-fleet.dev/restarted-at"]"#, "`yesterday` is no time"),
                (r#"metadata.annotations["haproxy-fleet.dev/drain"]"#, "`pod/` is not known"),
                (r#"metadata.annotations["haproxy-fleet.dev/drain"]"#, "`pods/a` is not known"),
                (r#"metadata.annotations["haproxy-fleet.dev/drain"]"#, "`pod/a b` is not known"),
            ]
        );
    }
}
