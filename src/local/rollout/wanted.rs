//! What an `IngressDeployment` asks for, as far as replicas come and go by it.

use super::deployment::Strategy;
use super::template::PodTemplate;
use crate::admin::Target;
use crate::api::{
    ANNOTATION_DRAIN, ANNOTATION_ROLLBACK, DrainWish, IngressDeployment, IngressDeploymentSpec, IntOrPercent, Place, PublishingType, Verbs,
};
use crate::fleet::rollout::{Rules, Template, policy};
use crate::fleet::{ZoneSize, replicas};
use crate::local::fleet::MAX_REPLICAS;
use crate::report::{Diagnostic, Kind, ObjectRef, codes};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::local) struct Wanted {
    /// What replicas are made of, restarts apart.
    pub template: PodTemplate,
    /// How many there are in each zone, in the order of zones.
    pub zones: Vec<(Option<Arc<str>>, u32)>,
    pub rules: Rules,
    /// How many have to serve, if the spec says so.
    pub min_ready: Option<u32>,
    /// And in each listed zone.
    pub min_ready_in: BTreeMap<Arc<str>, u32>,
    /// How many may be missing at a time.
    pub disruptions: u32,
    /// `spec.paused`.
    pub frozen: bool,
    /// What annotations say.
    pub paused: bool,
    pub aborted: Option<Template>,
    pub restarted_at: Option<String>,
    /// What is to be drained, and whether by force.
    pub drains: BTreeMap<Target, bool>,
    surge: Option<IntOrPercent>,
    unavailable: Option<IntOrPercent>,
}

impl Wanted {
    /// What `deployment` asks for, of replicas on the release `line` with these `ports`.
    pub(in crate::local) fn of(deployment: &IngressDeployment, line: String, ports: BTreeMap<String, u16>) -> Self {
        let spec = &deployment.spec;
        let verbs = Verbs::of(&deployment.meta.annotations, &object(deployment));
        let total = pods(spec.total_replicas());
        Self {
            template: PodTemplate::of(spec, line, ports),
            zones: zones(spec),
            rules: policy::rules(spec),
            min_ready: spec.rollout.min_ready.map(pods),
            min_ready_in: spec.zones.iter().map(|zone| (zone.name.as_str().into(), policy::min_ready_in(spec, Some(&zone.name)))).collect(),
            disruptions: spec.disruption.max_unavailable.map_or((total / 4).max(1), pods),
            frozen: spec.paused,
            paused: verbs.paused,
            aborted: verbs.aborted.as_deref().map(|template| Template(template.into())),
            drains: verbs.drains.iter().filter_map(|wish| Some((target(&wish.place)?, wish.force))).collect(),
            restarted_at: verbs.restarted_at,
            surge: surge(spec),
            unavailable: spec.rollout.max_unavailable.clone(),
        }
    }

    /// How a zone of `size` replicas is changed: as in a cluster new ones come first, and where none may be added, a
    /// quarter is missing for a while, and at least one.
    pub(in crate::local) fn strategy(&self, size: u32) -> Strategy {
        let total = i32::try_from(size).unwrap_or(i32::MAX);
        let of = |share: &IntOrPercent, round_up| share.of(total, round_up).map_or(0, pods);
        let surge = self.surge.as_ref().map_or(size.div_ceil(4), |surge| of(surge, true));
        let unavailable = self.unavailable.as_ref().map_or(0, |unavailable| of(unavailable, false));
        if surge == 0 && unavailable == 0 {
            return Strategy { surge, unavailable: (size / 4).max(1) };
        }
        Strategy { surge, unavailable }
    }
}

/// With the network of hosts two pods cannot have the same ports. Here they could, but the rollout is to be the same.
fn surge(spec: &IngressDeploymentSpec) -> Option<IntOrPercent> {
    let on_hosts = spec.publishing.kind == PublishingType::HostNetwork;
    let none = || IntOrPercent(k8s_openapi::apimachinery::pkg::util::intstr::IntOrString::Int(0));
    spec.rollout.max_surge.clone().or_else(|| on_hosts.then(none))
}

fn zones(spec: &IngressDeploymentSpec) -> Vec<(Option<Arc<str>>, u32)> {
    let sizes: Vec<ZoneSize> =
        spec.zones.iter().map(|zone| ZoneSize { name: zone.name.as_str().into(), replicas: zone.replicas.map(pods) }).collect();
    let most = pods(MAX_REPLICAS);
    let all = replicas(pods(spec.total_replicas()).min(most), &sizes);
    let all = &all[..all.len().min(most as usize)];
    let size = |zone: Option<&str>| u32::try_from(all.iter().filter(|replica| replica.zone.as_deref() == zone).count()).unwrap_or(0);
    if spec.zones.is_empty() {
        return vec![(None, size(None))];
    }
    let mut zones: Vec<_> = sizes.iter().map(|zone| (Some(zone.name.clone()), size(Some(&zone.name)))).collect();
    zones.sort_by_key(|(zone, _)| policy::place(spec, zone.as_deref()));
    zones
}

fn pods(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

fn object(deployment: &IngressDeployment) -> ObjectRef {
    ObjectRef::new(Kind::IngressDeployment, deployment.meta.namespace.clone(), deployment.meta.name.clone())
}

/// What is drained, if that is something here.
fn target(place: &Place) -> Option<Target> {
    match place {
        Place::Pod(name) => Some(Target::Pod(name.clone())),
        Place::Zone(name) => Some(Target::Zone(name.clone())),
        Place::Node(_) => None,
    }
}

/// What the annotations of `deployment` say and cannot be done here.
pub(in crate::local) fn remarks(deployment: &IngressDeployment) -> Vec<Diagnostic> {
    let object = object(deployment);
    let verbs = Verbs::of(&deployment.meta.annotations, &object);
    let unknown = verbs.drains.iter().filter(|wish| target(&wish.place).is_none());
    let remark = |wish: &DrainWish| {
        let (field, message) = (format!("metadata.annotations[\"{ANNOTATION_DRAIN}\"]"), format!("{wish} is not here: there are no nodes"));
        Diagnostic::warning(&object, field, codes::INVALID_VALUE, message, "list pod/NAME and zone/NAME")
    };
    let mut found: Vec<Diagnostic> = unknown.map(remark).collect();
    if deployment.meta.annotations.get(ANNOTATION_ROLLBACK).is_some() {
        let (field, message) =
            (format!("metadata.annotations[\"{ANNOTATION_ROLLBACK}\"]"), "a fleet goes back by annotation in a cluster only");
        let help = "use haproxy-fleet rollback REVISION --admin IP:PORT";
        found.push(Diagnostic::warning(&object, field, codes::UNSUPPORTED, message, help));
    }
    found.extend(verbs.faults);
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::api::{
        ANNOTATION_ABORT as ABORT, ANNOTATION_DRAIN as DRAIN, ANNOTATION_RESTARTED_AT as RESTARTED_AT, ANNOTATION_ROLLOUT as PAUSED, Meta,
    };
    use serde_json::{Value, json};

    fn deployment(spec: Value, annotations: &[(&str, &str)]) -> IngressDeployment {
        let mut spec = spec;
        spec["ingressClassName"] = json!("edge");
        let meta = Meta { annotations: annotations.iter().copied().collect(), ..Meta::named("infra", "edge") };
        IngressDeployment { meta, spec: serde_json::from_value(spec).unwrap() }
    }

    fn wanted(spec: Value, annotations: &[(&str, &str)]) -> Wanted {
        Wanted::of(&deployment(spec, annotations), "3.4".into(), BTreeMap::new())
    }

    #[test]
    fn new_ones_come_first_unless_none_may_be_added() {
        let strategy = |rollout: Value, size| {
            let Strategy { surge, unavailable } = wanted(json!({"rollout": rollout}), &[]).strategy(size);
            (surge, unavailable)
        };
        assert_eq!([1, 4, 5].map(|size| strategy(json!({}), size)), [(1, 0), (1, 0), (2, 0)]);
        assert_eq!(strategy(json!({"maxSurge": 0}), 8), (0, 2));
        assert_eq!(strategy(json!({"maxSurge": "50%", "maxUnavailable": "50%"}), 3), (2, 1));
        let on_hosts = wanted(json!({"publishing": {"type": "HostNetwork"}}), &[]).strategy(2);
        assert_eq!((on_hosts.surge, on_hosts.unavailable), (0, 1));
    }

    #[test]
    fn zones_share_the_replicas_and_a_machine_runs_only_so_many() {
        let sizes = |spec: Value| wanted(spec, &[]).zones.iter().map(|(_, size)| *size).collect::<Vec<_>>();
        assert_eq!(sizes(json!({"replicas": 3, "zones": [{"name": "a"}, {"name": "b"}]})), [2, 1]);
        assert_eq!(sizes(json!({"replicas": 900})), [32]);
        assert_eq!(sizes(json!({"zones": [{"name": "a", "replicas": 30}, {"name": "b", "replicas": 30}]})), [30, 2]);
    }

    #[test]
    fn annotations_say_what_is_asked_and_what_they_say_in_vain_is_told() {
        let annotations =
            [(PAUSED, "paused"), (ABORT, "t1"), (RESTARTED_AT, "2026-01-01T00:00:00Z"), (DRAIN, "pod/edge-0, zone/a:force,node/n")];
        let wanted = wanted(json!({}), &annotations);
        assert!(wanted.paused && wanted.aborted == Some(Template("t1".into())) && wanted.restarted_at.is_some());
        assert_eq!(wanted.drains, BTreeMap::from([(Target::Pod("edge-0".into()), false), (Target::Zone("a".into()), true)]));
        let told = remarks(&deployment(json!({}), &annotations));
        assert!(told.len() == 1 && told[0].message.contains("node/n") && told[0].field.contains(DRAIN), "{told:?}");
        for unheard in [(PAUSED, "on"), (ANNOTATION_ROLLBACK, "7")] {
            assert_eq!(remarks(&deployment(json!({}), &[unheard])).len(), 1);
        }
    }
}
