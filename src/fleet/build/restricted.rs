//! The Restricted Pod Security Standard, as the pod security admission of Kubernetes checks it
//! (kubernetes.io, "Pod Security Standards").

use super::pod::HAPROXY;
use serde_json::{Value, json};

/// Volume types that are allowed.
const VOLUME_TYPES: [&str; 8] =
    ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"];
const SELINUX_TYPES: [&str; 4] = ["", "container_t", "container_init_t", "container_kvm_t"];
/// Kernel settings that concern the pod alone.
const SYSCTLS: [&str; 10] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.ping_group_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
];
const APPARMOR_ANNOTATION: &str = "container.apparmor.security.beta.kubernetes.io/";

/// What of the pod template `template` the standard does not allow. `on_hosts`: the host's network, and ports of it for
/// HAProxy, are what the fleet asks for.
pub(super) fn faults(template: &Value, on_hosts: bool) -> Vec<String> {
    let pod = &template["spec"];
    let mut found = Vec::new();
    let mut forbid = |broken: bool, what: &str| {
        if broken {
            found.push(format!("{what} is not allowed by the Restricted Pod Security Standard"));
        }
    };
    for host in ["hostPID", "hostIPC"] {
        forbid(pod[host] == true, &format!("spec.{host}"));
    }
    forbid(pod["hostNetwork"] == true && !on_hosts, "spec.hostNetwork");
    forbid(pod["os"]["name"] == "windows", "spec.os.name windows");
    for volume in items(&pod["volumes"]) {
        let types = volume.as_object().into_iter().flatten().filter(|(name, value)| *name != "name" && !value.is_null());
        let known = types.clone().count() == 1 && types.clone().all(|(name, _)| VOLUME_TYPES.contains(&name.as_str()));
        forbid(!known, &format!("the volume {}", volume["name"]));
    }
    for sysctl in items(&pod["securityContext"]["sysctls"]) {
        forbid(!SYSCTLS.iter().any(|known| sysctl["name"] == *known), &format!("the sysctl {}", sysctl["name"]));
    }
    let annotations = template["metadata"]["annotations"].as_object();
    for (key, value) in annotations.into_iter().flatten().filter(|(key, _)| key.starts_with(APPARMOR_ANNOTATION)) {
        let known = value.as_str().is_some_and(|value| value == "runtime/default" || value.starts_with("localhost/"));
        forbid(!known, &format!("the annotation {key}"));
    }
    for part in context(&pod["securityContext"]) {
        forbid(true, &format!("{part} of spec.securityContext"));
    }
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for container in items(&pod[list]) {
            for part in container_faults(pod, container, on_hosts) {
                forbid(true, &format!("{part} of the container {}", container["name"]));
            }
        }
    }
    found
}

fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// What pods and containers may not say alike.
fn context(context: &Value) -> Vec<&'static str> {
    let profile = |name: &str, allowed: &[&str]| match &context[name] {
        Value::Null => false,
        profile => !allowed.iter().any(|known| profile["type"] == *known),
    };
    let selinux = &context["seLinuxOptions"];
    let named = |part: &str| selinux[part].as_str().is_some_and(|text| !text.is_empty());
    let broken = [
        ("runAsNonRoot", context["runAsNonRoot"] == false),
        ("runAsUser", context["runAsUser"] == 0),
        ("seccompProfile", profile("seccompProfile", &["RuntimeDefault", "Localhost"])),
        ("appArmorProfile", profile("appArmorProfile", &["RuntimeDefault", "Localhost"])),
        ("seLinuxOptions", named("user") || named("role") || selinux["type"].as_str().is_some_and(|kind| !SELINUX_TYPES.contains(&kind))),
        ("windowsOptions", context["windowsOptions"]["hostProcess"] == true),
    ];
    broken.into_iter().filter(|(_, broken)| *broken).map(|(part, _)| part).collect()
}

fn container_faults(pod: &Value, container: &Value, on_hosts: bool) -> Vec<&'static str> {
    let (own, pods) = (&container["securityContext"], &pod["securityContext"]);
    let mut found = context(own);
    let capabilities = &own["capabilities"];
    let drops_all = items(&capabilities["drop"]).any(|name| name == "ALL");
    let adds = items(&capabilities["add"]).any(|name| name != "NET_BIND_SERVICE");
    let ports = items(&container["ports"]).any(|port| port["hostPort"].as_i64().is_some_and(|port| port != 0));
    let hosts =
        |handler: &Value| ["httpGet", "tcpSocket"].iter().any(|way| handler[*way]["host"].as_str().is_some_and(|host| !host.is_empty()));
    let handlers = ["livenessProbe", "readinessProbe", "startupProbe"].map(|probe| &container[probe]);
    let hooks = ["postStart", "preStop"].map(|hook| &container["lifecycle"][hook]);
    let broken = [
        ("privileged", own["privileged"] == true),
        ("allowPrivilegeEscalation", own["allowPrivilegeEscalation"] != false),
        ("capabilities", !drops_all || adds),
        ("runAsNonRoot", own["runAsNonRoot"] != true && (pods["runAsNonRoot"] != true)),
        ("seccompProfile", own["seccompProfile"].is_null() && pods["seccompProfile"].is_null()),
        ("procMount", !own["procMount"].is_null() && own["procMount"] != json!("Default")),
        ("hostPort", ports && !(on_hosts && container["name"] == HAPROXY)),
        ("the host of a probe or a hook", handlers.into_iter().chain(hooks).any(hosts)),
    ];
    found.extend(broken.into_iter().filter(|(_, broken)| *broken).map(|(part, _)| part));
    found
}
