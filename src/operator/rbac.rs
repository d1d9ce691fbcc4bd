//! What the operator may do in a cluster: one table, from which the roles in `config/rbac` are printed.
//!
//! The end-to-end suites compare it with the calls that were seen: nothing is granted that is not used.

use serde_json::{Value, json};

/// Where a grant counts, which is where its role is bound.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Everywhere: reading what routes are made of, and writing statuses and Events. No Secrets.
    Cluster,
    /// Wherever certificates and credentials of routes are: in all namespaces, or in those whose owners bind it.
    Secrets,
    /// In namespaces with fleets.
    Fleets,
    /// In the operator's own namespace.
    Operator,
}

/// One grant.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// Where it counts.
    pub role: Role,
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// Resources and subresources.
    pub resources: &'static [&'static str],
    /// Names, where only these are meant. `create` knows no names.
    pub names: &'static [&'static str],
    /// Verbs.
    pub verbs: &'static [&'static str],
    /// What it is for.
    pub why: &'static str,
}

/// `get` is for the object that an Event is about: its identity goes into the Event.
const READ: &[&str] = &["get", "list", "watch"];
const KEEP: &[&str] = &["get", "list", "watch", "create", "patch", "delete"];
const OWN: &[&str] = &["get", "list", "watch", "create", "patch"];
/// What is kept without being watched.
const MAYBE: &[&str] = &["get", "list", "create", "patch", "delete"];

const fn grant(
    role: Role,
    group: &'static str,
    resources: &'static [&'static str],
    verbs: &'static [&'static str],
    why: &'static str,
) -> Grant {
    Grant { role, group, resources, names: &[], verbs, why }
}

/// All grants.
pub const GRANTS: &[Grant] = &[
    grant(Role::Cluster, "haproxy-fleet.dev", &["ingressdeployments"], READ, "what is asked for"),
    grant(Role::Cluster, "haproxy-fleet.dev", &["backends"], READ, "how services are reached"),
    grant(Role::Cluster, "haproxy-fleet.dev", &["ingressdeployments/status", "backends/status"], &["patch"], "saying what is the case"),
    grant(Role::Cluster, "ingress.v3.haproxy.org", &["backends"], READ, "Backends that are read in place, where their kind exists"),
    grant(Role::Cluster, "networking.k8s.io", &["ingresses"], READ, "routes"),
    grant(Role::Cluster, "networking.k8s.io", &["ingresses/status"], &["patch"], "the addresses of whoever serves them"),
    grant(Role::Cluster, "networking.k8s.io", &["ingressclasses"], KEEP, "the class of every fleet"),
    grant(Role::Cluster, "gateway.networking.k8s.io", &["gatewayclasses"], READ, "saying that Gateway API is not served, where it exists"),
    grant(Role::Cluster, "", &["services", "namespaces", "configmaps"], READ, "what routes and Backends refer to"),
    grant(Role::Cluster, "discovery.k8s.io", &["endpointslices"], READ, "endpoints"),
    grant(Role::Cluster, "events.k8s.io", &["events"], &["create", "get", "patch"], "findings, at the objects that they are about"),
    grant(Role::Cluster, "authentication.k8s.io", &["tokenreviews"], &["create"], "who an agent is"),
    grant(Role::Secrets, "", &["secrets"], READ, "certificates and credentials of routes"),
    grant(Role::Fleets, "haproxy-fleet.dev", &["ingressdeployments"], &["patch"], "the finalizer, and what a rollout has to remember"),
    grant(Role::Fleets, "haproxy-fleet.dev", &["ingressdeployments/finalizers"], &["update"], "owning what a fleet is made of"),
    grant(Role::Fleets, "apps", &["deployments"], KEEP, "the pods of a fleet"),
    grant(Role::Fleets, "", &["services"], KEEP, "what they are reached by"),
    grant(Role::Fleets, "", &["configmaps", "serviceaccounts", "secrets"], OWN, "what they need; it goes with the fleet that owns it"),
    grant(Role::Fleets, "", &["secrets"], &["delete"], "revisions beyond the last ones that are kept"),
    grant(Role::Fleets, "", &["pods"], READ, "who is an agent, and what serves"),
    grant(Role::Fleets, "", &["pods"], &["patch"], "which pods go first when there are to be fewer"),
    grant(Role::Fleets, "policy", &["poddisruptionbudgets"], KEEP, "how many pods may be taken at a time"),
    grant(Role::Fleets, "autoscaling", &["horizontalpodautoscalers"], KEEP, "fleets that scale by themselves"),
    grant(Role::Fleets, "monitoring.coreos.com", &["podmonitors"], MAYBE, "telling Prometheus of the pods, where its operator is"),
    grant(Role::Fleets, "networking.k8s.io", &["networkpolicies"], KEEP, "who may talk to the pods"),
    grant(Role::Operator, "coordination.k8s.io", &["leases"], &["create"], "the Lease of the leader"),
    Grant {
        names: &["haproxy-fleet"],
        ..grant(Role::Operator, "coordination.k8s.io", &["leases"], &["get", "update"], "the Lease of the leader")
    },
    grant(Role::Operator, "", &["secrets"], &["create"], "the operator's own authority"),
    Grant {
        names: &["haproxy-fleet-authority"],
        ..grant(Role::Operator, "", &["secrets"], &["get", "update"], "the operator's own authority")
    },
];

/// Roles that people have beside those that the cluster has anyway: what they may see and change.
const FOR_PEOPLE: [(&str, &str, &[&str], &[&str]); 2] = [
    ("view", "haproxy-fleet-view", &["ingressdeployments", "backends"], READ),
    ("edit", "haproxy-fleet-edit", &["backends"], &["create", "update", "patch", "delete", "deletecollection"]),
];

impl Role {
    /// The kind and the name of the role.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Cluster => ("ClusterRole", "haproxy-fleet"),
            Self::Secrets => ("ClusterRole", "haproxy-fleet-secrets"),
            Self::Fleets => ("ClusterRole", "haproxy-fleet-fleets"),
            Self::Operator => ("Role", "haproxy-fleet"),
        }
    }
}

/// The roles, as manifests.
pub fn roles() -> Vec<Value> {
    let mut roles: Vec<Value> = [Role::Cluster, Role::Secrets, Role::Fleets, Role::Operator].into_iter().map(role).collect();
    roles.extend(FOR_PEOPLE.into_iter().map(|(part, name, resources, verbs)| {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": name, "labels": {format!("rbac.authorization.k8s.io/aggregate-to-{part}"): "true"}},
            "rules": [{"apiGroups": ["haproxy-fleet.dev"], "resources": resources, "verbs": verbs}],
        })
    }));
    roles
}

fn role(of: Role) -> Value {
    let (kind, name) = of.names();
    let rules: Vec<Value> = GRANTS
        .iter()
        .filter(|grant| grant.role == of)
        .map(|grant| {
            let mut rule = json!({"apiGroups": [grant.group], "resources": grant.resources, "verbs": grant.verbs});
            if !grant.names.is_empty() {
                rule["resourceNames"] = json!(grant.names);
            }
            rule
        })
        .collect();
    json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}, "rules": rules})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_role_grants_everything_or_the_way_to_it() {
        for grant in GRANTS {
            let words: Vec<&str> = grant.resources.iter().chain(grant.verbs).chain(grant.names).copied().collect();
            for refused in ["*", "escalate", "bind", "impersonate", "pods/exec", "roles", "clusterroles", "customresourcedefinitions"] {
                assert!(!words.contains(&refused), "{grant:?}");
            }
        }
    }

    #[test]
    fn the_role_that_counts_everywhere_has_no_secrets_and_starts_no_pods() {
        for grant in GRANTS.iter().filter(|grant| grant.role == Role::Cluster) {
            assert!(!grant.resources.contains(&"secrets"), "{grant:?}");
            let writes = grant.verbs.iter().any(|verb| !READ.contains(verb));
            let harmless =
                |resource: &&str| resource.ends_with("/status") || matches!(*resource, "events" | "tokenreviews" | "ingressclasses");
            assert!(!writes || grant.resources.iter().all(harmless), "{grant:?}");
        }
    }
}
