//! What the operator says of itself, and what the API server saw of it.

use crate::setting::{SYSTEM, Setting};
use crate::{Failure, Outcome};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use tokio::process::Command;

/// A call of the operator, as roles name it: API group, resource with subresource, verb.
pub type Call = (String, String, String);

/// How often something was allowed and how often refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Allowed, whatever came of it.
    pub allowed: u64,
    /// Refused as forbidden.
    pub forbidden: u64,
}

impl Setting {
    /// The document of `/status`, as people get it: by `haproxy-fleet status`, which forwards a port of the operator.
    pub async fn status(&self) -> Outcome<Value> {
        Ok(serde_json::from_str(&self.plugin(&["status", "--all-namespaces", "--output", "json"]).await?)?)
    }

    /// What `kubectl haproxy-fleet` with these arguments prints. That something is not as it should be is no failure.
    pub async fn plugin(&self, arguments: &[&str]) -> Outcome<String> {
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/image/root/haproxy-fleet");
        let mut command = Command::new(&program);
        command.args(arguments).envs(self.environment()).kill_on_drop(true);
        let output = command.stdin(Stdio::null()).output().await?;
        if matches!(output.status.code(), Some(0 | 1)) {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        Err(Failure::new(format_args!("{}: {}", program.display(), String::from_utf8_lossy(&output.stderr).trim())))
    }

    /// Reloads of the pods of a fleet since they started, by pod.
    pub async fn reloads(&self, namespace: &str, fleet: &str) -> Outcome<BTreeMap<String, u64>> {
        let status = self.status().await?;
        let found = status["fleets"].as_array().into_iter().flatten().find(|one| one["namespace"] == namespace && one["name"] == fleet);
        let replicas =
            found.and_then(|fleet| fleet["replicas"].as_array()).ok_or_else(|| Failure::new(format_args!("no fleet {fleet}: {status}")))?;
        Ok(replicas
            .iter()
            .map(|one| (one["name"].as_str().unwrap_or_default().to_owned(), one["reload_count"].as_u64().unwrap_or_default()))
            .collect())
    }

    /// What the operator asked of the API server since the cluster is up, or since `from` bytes of the log; and how long
    /// the log is now. `None`: this cluster's API server writes nothing down.
    pub async fn calls(&self, from: u64) -> Outcome<Option<(BTreeMap<Call, Tally>, u64)>> {
        let Some(log) = self.audit_log() else { return Ok(None) };
        let text = tokio::fs::read(log).await?;
        let mut calls: BTreeMap<Call, Tally> = BTreeMap::new();
        let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let since = usize::try_from(from).unwrap_or(usize::MAX).min(whole);
        for line in text[since..whole].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let event: Value = serde_json::from_slice(line)?;
            let Some(call) = call(&event) else { continue };
            let tally = calls.entry(call).or_default();
            match event["responseStatus"]["code"].as_u64() {
                Some(403) => tally.forbidden += 1,
                _ => tally.allowed += 1,
            }
        }
        Ok(Some((calls, u64::try_from(whole).unwrap_or(u64::MAX))))
    }
}

/// The call that an event of the audit log tells of, if it is the operator's.
fn call(event: &Value) -> Option<Call> {
    let object = event["objectRef"].as_object()?;
    if event["user"]["username"] != format!("system:serviceaccount:{SYSTEM}:haproxy-fleet") {
        return None;
    }
    let text = |field: &str| object.get(field).and_then(Value::as_str).unwrap_or_default().to_owned();
    let resource = match object.get("subresource").and_then(Value::as_str) {
        Some(part) => format!("{}/{part}", text("resource")),
        None => text("resource"),
    };
    // a server-side apply of what is not there yet takes the right to create as well
    let creates = event["verb"] == "patch" && event["responseStatus"]["code"] == 201;
    let verb = if creates { "create" } else { event["verb"].as_str().unwrap_or_default() };
    Some((text("apiGroup"), resource, verb.to_owned()))
}
