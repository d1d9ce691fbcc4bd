//! What of an `IngressDeployment` cannot be done to pods, as the operator refuses it.

use crate::api::IngressDeployment;
use crate::cli::placeholder;
use crate::fleet::build::{Fleet, Observed, build};
use crate::report::Diagnostic;

/// The field that means something to pods only, and is refused all the same.
const FIELD: &str = "spec.podTemplatePatch";

/// What of the patch of the pod template cannot be done.
pub(super) fn refused(deployment: &IngressDeployment) -> Vec<Diagnostic> {
    if deployment.spec.pod_template_patch.is_empty() {
        return Vec::new();
    }
    let (context, observed) = (placeholder::context(), Observed::default());
    let fleet = Fleet { deployment, uid: placeholder::UID, context: &context, observed: &observed, change: None };
    let found = build(fleet).err().unwrap_or_default();
    found.into_iter().filter(|finding| finding.field.starts_with(FIELD)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::api::Meta;
    use serde_json::{Value, json};

    fn said(patch: &Value) -> Vec<(String, String)> {
        let spec = serde_json::from_value(json!({"ingressClassName": "edge", "podTemplatePatch": patch})).unwrap();
        let found = refused(&IngressDeployment { meta: Meta::named("infra", "edge"), spec });
        found.into_iter().map(|finding| (finding.field, finding.message)).collect()
    }

    #[test]
    fn a_patch_is_refused_as_in_a_cluster_and_one_that_can_be_done_is_not() {
        assert_eq!(said(&json!([{"op": "add", "path": "/spec/hostname", "value": "edge"}])), []);
        let nowhere = said(&json!([{"op": "replace", "path": "/spec/nowhere/at", "value": "x"}]));
        assert!(nowhere[0].0 == "spec.podTemplatePatch[0]" && nowhere[0].1.contains("the step cannot be done"), "{nowhere:?}");
        let fixed = said(&json!([{"op": "add", "path": "/spec/hostNetwork", "value": true}]));
        assert!(fixed.iter().any(|(_, message)| message == "spec.hostNetwork has to stay as it is"), "{fixed:?}");
    }
}
