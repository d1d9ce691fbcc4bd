//! What a replica is made of. A change of any of it replaces replicas, as it does pods in a cluster.

use crate::api::{self, Drain, IngressDeploymentSpec};
use crate::fleet::rollout::Template;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

/// What a replica is started with and keeps to its end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::local) struct PodTemplate {
    /// The release line of its program, such as `3.4`.
    pub line: String,
    /// Threads of HAProxy.
    pub threads: Option<u16>,
    /// Connections that HAProxy takes at most.
    pub max_connections: Option<u32>,
    /// Its ports, by listener.
    pub ports: BTreeMap<String, u16>,
    /// How it ends.
    #[serde(default, skip_serializing_if = "is_default")]
    pub drain: Drain,
    /// Stands for what means something to pods only. It replaces replicas all the same.
    declared: String,
    /// When it was asked for restarts: by an annotation, by hand.
    restarts: Vec<String>,
}

impl PodTemplate {
    /// That of a fleet on the release `line`, whose replicas have these `ports`.
    pub(in crate::local) fn of(spec: &IngressDeploymentSpec, line: String, ports: BTreeMap<String, u16>) -> Self {
        let tuning = spec.tuning.as_ref();
        let declared = json!([spec.pod_labels, spec.pod_annotations, spec.pod_template_patch]).to_string();
        Self {
            line,
            threads: tuning.and_then(|tuning| u16::try_from(tuning.threads?).ok()),
            max_connections: tuning.and_then(|tuning| u32::try_from(tuning.max_connections?).ok()),
            ports,
            drain: spec.drain.clone(),
            declared: blake3::hash(declared.as_bytes()).to_hex()[..16].to_owned(),
            restarts: Vec::new(),
        }
    }

    /// The same, restarted at these times.
    pub(in crate::local) fn restarted<'a>(&self, times: impl IntoIterator<Item = &'a str>) -> Self {
        Self { restarts: times.into_iter().map(str::to_owned).collect(), ..self.clone() }
    }

    /// For how long one that is to end serves on, if the spec says so: the load balancer here needs no time.
    pub(in crate::local) fn deregistration(&self) -> Duration {
        Duration::from_secs(self.drain.deregistration_delay.as_ref().and_then(api::Duration::seconds).unwrap_or(0).into())
    }

    /// For how long what is left may finish then.
    pub(in crate::local) fn timeout(&self) -> Duration {
        Duration::from_secs(self.drain.timeout.seconds().unwrap_or(0).into())
    }

    /// What it is called: the same content has the same name.
    pub(in crate::local) fn name(&self) -> Template {
        let content = json!(self).to_string();
        Template(blake3::hash(content.as_bytes()).to_hex()[..10].into())
    }
}

/// Nothing is said about it: it has the name that it had before this could be said.
fn is_default(drain: &Drain) -> bool {
    *drain == Drain::default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::Value;

    fn name(spec: &Value) -> Template {
        let mut spec = spec.clone();
        spec["ingressClassName"] = json!("edge");
        let ports = BTreeMap::from([("http".to_owned(), 8080)]);
        PodTemplate::of(&serde_json::from_value(spec).unwrap(), "3.4".into(), ports).name()
    }

    #[test]
    fn what_a_start_takes_makes_another_template_and_what_is_live_does_not() {
        let plain = name(&json!({}));
        let others = [
            json!({"tuning": {"threads": 2}}),
            json!({"tuning": {"maxConnections": 200}}),
            json!({"podLabels": {"a": "b"}}),
            json!({"podAnnotations": {"a": "b"}}),
            json!({"drain": {"timeout": "5s"}}),
            json!({"drain": {"deregistrationDelay": "5s"}}),
            json!({"podTemplatePatch": [{"op": "add", "path": "/spec/hostname", "value": "a"}]}),
        ];
        let names: std::collections::BTreeSet<Template> = others.iter().map(name).chain([plain.clone()]).collect();
        assert_eq!(names.len(), others.len() + 1);
        for same in [
            json!({"replicas": 7}),
            json!({"tuning": {"timeouts": {"client": "5s"}}}),
            json!({"rollout": {"maxSurge": 3}}),
            json!({"ports": {"http": 81}}),
        ] {
            assert_eq!(name(&same), plain, "{same}");
        }
    }

    #[test]
    fn a_replica_ends_as_the_spec_said_when_it_was_made() {
        let times = |drain: &Value| {
            let spec = serde_json::from_value(json!({"ingressClassName": "edge", "drain": drain})).unwrap();
            let template = PodTemplate::of(&spec, "3.4".into(), BTreeMap::new());
            (template.deregistration().as_secs(), template.timeout().as_secs())
        };
        assert_eq!(times(&json!({})), (0, 60));
        assert_eq!(times(&json!({"deregistrationDelay": "2m", "timeout": "1h"})), (120, 3600));
    }

    #[test]
    fn a_restart_and_another_release_make_another_template() {
        let template =
            PodTemplate::of(&serde_json::from_value(json!({"ingressClassName": "edge"})).unwrap(), "3.4".into(), BTreeMap::new());
        let other_line = PodTemplate { line: "3.2".into(), ..template.clone() };
        let names = [template.name(), other_line.name(), template.restarted(["now"]).name(), template.restarted(["then"]).name()];
        assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), names.len());
        assert_eq!(template.restarted([]).name(), template.name());
    }
}
