//! Which pod template a fleet asks for: one for all zones, and what a zone makes of it.

use super::in_use::{ANNOTATION_TEMPLATE, Applied, InUse};
use super::{Fleet, Template, patch, pod};
use crate::api::UpgradePolicy;
use crate::report::Diagnostic;
use serde_json::{Value, json};

/// The template that a fleet asks for.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    pub(super) template: Template,
    made_from: String,
    images: pod::Images,
    run_volume: u64,
}

impl Wanted {
    /// What `fleet` asks for.
    ///
    /// All its Deployments keep what they have as long as nothing changes that a template is made from, and the volume is
    /// large enough: an upgrade of the operator replaces no pod, even if this one would make another template, unless
    /// the fleet asks for that and it is its turn.
    pub(super) fn of(fleet: Fleet<'_>) -> Result<Self, Vec<Diagnostic>> {
        let made_from = hash(&inputs(fleet));
        let spec = &fleet.deployment.spec;
        let all = &fleet.observed.deployments;
        let take_new = spec.upgrade_policy == UpgradePolicy::Automatic && fleet.context.upgrade_turn;
        let alike: Vec<&InUse> = all.values().filter(|in_use| in_use.applied.made_from == made_from).collect();
        let images = pod::Images::of(fleet, alike.first().copied().filter(|_| !take_new));
        let in_use = alike.iter().filter_map(|in_use| in_use.run_volume).max();
        let run_volume = pod::run_volume_bytes(fleet.observed.bundle_bytes, in_use);
        let template = match common(fleet, &alike).filter(|_| !take_new && in_use == Some(run_volume)) {
            Some(common) => common,
            None => name(&patch::patched(fleet, pod::template(fleet, None, &images, run_volume))?, fleet.verbs().restarted_at.as_deref()),
        };
        Ok(Self { template, made_from, images, run_volume })
    }

    /// As the pods in `zone` have it.
    pub(super) fn in_zone(&self, fleet: Fleet<'_>, zone: Option<&str>) -> Result<Applied, Vec<Diagnostic>> {
        let mut body = patch::patched(fleet, pod::template(fleet, zone, &self.images, self.run_volume))?;
        body["metadata"]["annotations"][ANNOTATION_TEMPLATE] = json!(self.template.0);
        Ok(Applied { template: self.template.clone(), made_from: self.made_from.clone(), body })
    }
}

/// The template that all zones have, if these are all zones.
fn common(fleet: Fleet<'_>, alike: &[&InUse]) -> Option<Template> {
    let zones = &fleet.deployment.spec.zones;
    let has = |zone: Option<&str>| alike.iter().any(|in_use| in_use.zone.as_deref() == zone);
    let has_all = if zones.is_empty() { has(None) } else { zones.iter().all(|zone| has(Some(&zone.name))) };
    let first = &alike.first()?.applied.template;
    let is_common = alike.len() == fleet.observed.deployments.len() && alike.iter().all(|in_use| in_use.applied.template == *first);
    (has_all && is_common).then(|| first.clone())
}

/// Everything that a template is made from, but for what follows the operator's version and the size of the bundle.
fn inputs(fleet: Fleet<'_>) -> Value {
    let (spec, context, names) = (&fleet.deployment.spec, fleet.context, fleet.names());
    let tuning = spec.tuning.as_ref();
    json!({
        "fleet": [names.namespace, names.fleet],
        "operator": [context.operator_namespace, context.agents_service, context.agents_port],
        "haproxy": [spec.haproxy_version, spec.image],
        "placement": [spec.node_selector, spec.tolerations, spec.affinity, spec.topology_spread, spec.priority_class_name],
        "resources": spec.resources,
        "tuning": [tuning.and_then(|tuning| tuning.threads), tuning.and_then(|tuning| tuning.max_connections)],
        "metadata": [spec.pod_labels, spec.pod_annotations],
        "patch": spec.pod_template_patch,
        "drain": spec.drain,
        "publishing": [json!(spec.publishing.kind), json!(spec.publishing.host_network)],
        "restarted": fleet.verbs().restarted_at,
    })
}

/// Pods that are restarted by hand differ from those before in the name of their template only.
fn name(template: &Value, restarted: Option<&str>) -> Template {
    let hash = restarted.map_or_else(|| hash(template), |restarted| hash(&json!([template, restarted])));
    Template(hash[..10].into())
}

fn hash(value: &Value) -> String {
    blake3::hash(value.to_string().as_bytes()).to_hex()[..16].to_owned()
}
