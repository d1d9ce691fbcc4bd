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
    restarted: Option<String>,
    images: pod::Images,
    run_volume: u64,
}

impl Wanted {
    /// What `fleet` asks for.
    ///
    /// Its Deployments keep what they have, and those that are new get the same, as long as nothing changes that a template
    /// is made from, and the volume is large enough: an upgrade of the operator replaces no pod, even if this one would
    /// make another template, unless the fleet asks for that and it is its turn. What has to be made anew is made with
    /// the images that go with whoever makes it.
    pub(super) fn of(fleet: Fleet<'_>) -> Result<Self, Vec<Diagnostic>> {
        let restarted = restarted(fleet);
        let made_from = hash(&inputs(fleet, restarted.as_deref()));
        let upgrades = fleet.deployment.spec.upgrade_policy == UpgradePolicy::Automatic && fleet.context.upgrade_turn;
        let in_use = in_use(fleet, &made_from).filter(|_| !upgrades);
        let run_volume = pod::run_volume_bytes(fleet.observed.bundle_bytes, in_use.and_then(|in_use| in_use.run_volume));
        let in_use = in_use.filter(|in_use| in_use.run_volume == Some(run_volume));
        let images = pod::Images::of(fleet, in_use);
        let template = match in_use {
            Some(in_use) => in_use.applied.template.clone(),
            None => name(&made_from, &patch::patched(fleet, pod::template(fleet, None, &images, run_volume))?),
        };
        Ok(Self { template, made_from, restarted, images, run_volume })
    }

    /// As the pods in `zone` have it.
    pub(super) fn in_zone(&self, fleet: Fleet<'_>, zone: Option<&str>) -> Result<Applied, Vec<Diagnostic>> {
        if let Some(applied) = known(fleet, &self.template, zone) {
            return Ok(applied);
        }
        let mut body = patch::patched(fleet, pod::template(fleet, zone, &self.images, self.run_volume))?;
        body["metadata"]["annotations"][ANNOTATION_TEMPLATE] = json!(self.template.0);
        let (template, made_from, restarted) = (self.template.clone(), self.made_from.clone(), self.restarted.clone());
        Ok(Applied { template, made_from, restarted, body })
    }
}

/// The Deployment whose template stays: one that was made from the same; while several templates were, that to which the
/// fleet is on its way.
fn in_use<'f>(fleet: Fleet<'f>, made_from: &str) -> Option<&'f InUse> {
    let is_listed = !fleet.deployment.spec.zones.is_empty();
    let all = fleet.observed.deployments.values();
    let alike = all.filter(|in_use| in_use.applied.made_from == made_from && in_use.zone.is_some() == is_listed);
    let stable = fleet.verbs().stable;
    alike.min_by_key(|in_use| stable.as_deref() == Some(&*in_use.applied.template.0))
}

/// The template of that name as the pods in `zone` have it, if any zone has it or had it before.
pub(super) fn known(fleet: Fleet<'_>, template: &Template, zone: Option<&str>) -> Option<Applied> {
    let all = fleet.observed.deployments.values();
    let mut has = all.filter_map(|in_use| {
        let applied = std::iter::once(&in_use.applied).chain(&in_use.previous).find(|applied| applied.template == *template);
        applied.map(|applied| (in_use.zone.as_deref(), applied))
    });
    let own = has.clone().find(|(of, _)| *of == zone);
    let (of, applied) = own.or_else(|| has.find(|(of, _)| of.is_some() && zone.is_some()))?;
    let mut applied = applied.clone();
    if let (Some(from), Some(to)) = (of, zone.filter(|zone| Some(*zone) != of)) {
        pod::move_to_zone(&mut applied.body, from, to);
    }
    Some(applied)
}

/// When all pods were asked to be replaced last. Who takes the annotation away, or writes what is no time, asks for nothing.
fn restarted(fleet: Fleet<'_>) -> Option<String> {
    let before = fleet.observed.deployments.values().filter_map(|in_use| in_use.applied.restarted.clone()).max();
    fleet.verbs().restarted_at.or(before)
}

/// Everything that a template is made from, but for what follows the operator's version and the size of the bundle.
fn inputs(fleet: Fleet<'_>, restarted: Option<&str>) -> Value {
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
        "restarted": restarted,
    })
}

/// Begins with what the template was made from: see [`Template::is_alike`].
fn name(made_from: &str, template: &Value) -> Template {
    Template([&made_from[..Template::ASKED], &hash(template)[..5]].concat().into())
}

fn hash(value: &Value) -> String {
    blake3::hash(value.to_string().as_bytes()).to_hex()[..16].to_owned()
}
