//! `podTemplatePatch`: changes of the pod template that no field of the spec makes.

use super::{Fleet, guard};
use crate::api::{PatchOperation, PatchStep, PublishingType};
use crate::report::{Diagnostic, codes};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Value, json};

const FIELD: &str = "spec.podTemplatePatch";

/// `template` as the fleet's patch makes it, or why it does not.
pub(super) fn patched(fleet: Fleet<'_>, template: Value) -> Result<Value, Vec<Diagnostic>> {
    let steps = &fleet.deployment.spec.pod_template_patch;
    if steps.is_empty() {
        return Ok(template);
    }
    let refuse =
        |field: String, message: String, help: &str| vec![Diagnostic::error(&fleet.object(), field, codes::INVALID_VALUE, message, help)];
    let mut patched = template.clone();
    for (index, step) in steps.iter().enumerate() {
        apply(step, &mut patched).map_err(|message| {
            refuse(format!("{FIELD}[{index}]"), message, "compare the path with the pod template of the fleet's Deployment")
        })?;
    }
    unknown_field(&patched).map_or(Ok(()), |fault| {
        Err(refuse(FIELD.to_owned(), format!("the result is no pod template: {fault}"), "patch fields that a pod template has"))
    })?;
    let on_hosts = fleet.publishing() == PublishingType::HostNetwork;
    let faults = guard::faults(&template, &patched, on_hosts);
    if faults.is_empty() {
        return Ok(patched);
    }
    let help = "leave what HAProxy and its agent need as it is, and keep to the Restricted Pod Security Standard";
    Err(faults.into_iter().flat_map(|fault| refuse(FIELD.to_owned(), fault, help)).collect())
}

fn apply(step: &PatchStep, template: &mut Value) -> Result<(), String> {
    let mut operation = json!(step);
    if matches!(step.op, PatchOperation::Add | PatchOperation::Replace | PatchOperation::Test) {
        // `null` is a value, too
        operation["value"] = step.value.clone().unwrap_or(Value::Null);
    }
    let patch: json_patch::Patch = serde_json::from_value(json!([operation])).map_err(|error| error.to_string())?;
    json_patch::patch(template, &patch).map_err(|error| format!("the step cannot be done: {}", error.kind))
}

/// What of `template` a pod template does not have.
fn unknown_field(template: &Value) -> Option<String> {
    match serde_json::from_value::<PodTemplateSpec>(template.clone()) {
        Err(error) => Some(error.to_string()),
        Ok(typed) => difference(template, &json!(typed), ""),
    }
}

/// The first place where `known` lacks something of `value`. Empty lists and objects may be left out.
fn difference(value: &Value, known: &Value, path: &str) -> Option<String> {
    match value {
        Value::Object(members) => {
            members.iter().find_map(|(name, member)| difference(member, &known[name.as_str()], &format!("{path}.{name}")))
        }
        Value::Array(items) => {
            items.iter().enumerate().find_map(|(index, item)| difference(item, &known[index], &format!("{path}[{index}]")))
        }
        Value::Null => None,
        other => (other != known).then(|| format!("{} is not known", path.trim_start_matches('.'))),
    }
}
