//! kubectl, as people use it.

use crate::setting::Setting;
use crate::{Failure, Outcome};
use serde_json::Value;
use std::process::Stdio;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

impl Setting {
    /// Runs kubectl; what it says if it succeeds.
    pub async fn kubectl(&self, arguments: &[&str]) -> Outcome<String> {
        self.kubectl_with(arguments, "").await
    }

    /// Runs kubectl with `input`.
    pub async fn kubectl_with(&self, arguments: &[&str], input: &str) -> Outcome<String> {
        let mut command = Command::new(self.kubectl_program());
        command.args(arguments).envs(self.environment()).kill_on_drop(true);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes()).await?;
        }
        let output = child.wait_with_output().await?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(text);
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(Failure::new(format_args!("kubectl {}: {}", arguments.join(" "), said.trim())))
    }

    /// Applies manifests.
    pub async fn apply(&self, manifests: &str) -> Outcome {
        self.kubectl_with(&["apply", "--server-side", "--force-conflicts", "-f", "-"], manifests).await.map(drop)
    }

    /// An object, or a list of some.
    pub async fn get(&self, arguments: &[&str]) -> Outcome<Value> {
        let text = self.kubectl(&[&["get", "--output=json"], arguments].concat()).await?;
        Ok(serde_json::from_str(&text)?)
    }
}
