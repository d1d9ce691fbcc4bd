//! Deletion.

use super::Session;
use super::session::{JSON, MERGE};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/NS/configmaps";
const PROBES: &str = "/apis/truth.haproxy-fleet.dev/v1/namespaces/NS/probes";

pub(crate) async fn finalizers(s: &mut Session) {
    let a = format!("{PROBES}/a");
    let object = json!({"apiVersion": "truth.haproxy-fleet.dev/v1", "kind": "Probe", "metadata": {"name": "a", "finalizers": ["x.io/one", "x.io/two"]}});
    s.call("with finalizers", "POST", PROBES, JSON, object).await;
    s.call("it is marked, and that counts", "DELETE", &a, JSON, Value::Null).await;
    s.call("once more", "DELETE", &a, JSON, Value::Null).await;
    s.call("no new finalizer", "PATCH", &a, MERGE, json!({"metadata": {"finalizers": ["x.io/one", "x.io/two", "x.io/three"]}})).await;
    s.call("it can be changed", "PATCH", &a, MERGE, json!({"spec": {"text": "1"}})).await;
    s.call("the mark cannot be taken away", "PATCH", &a, MERGE, json!({"metadata": {"deletionTimestamp": null}})).await;
    s.call("one finalizer less", "PATCH", &a, MERGE, json!({"metadata": {"finalizers": ["x.io/two"]}})).await;
    s.get("it is still there", &a).await;
    s.call("the last finalizer", "PATCH", &a, MERGE, json!({"metadata": {"finalizers": null}})).await;
    s.get("it is gone", &a).await;
}

pub(crate) async fn preconditions(s: &mut Session) {
    let a = format!("{MAPS}/a");
    s.call("not there", "DELETE", &a, JSON, Value::Null).await;
    let object = s.call("an object", "POST", MAPS, JSON, json!({"metadata": {"name": "a"}})).await;
    s.call("another identity", "DELETE", &a, JSON, json!({"preconditions": {"uid": "00000000-0000-0000-0000-000000000000"}})).await;
    s.call("another version", "DELETE", &a, JSON, json!({"preconditions": {"resourceVersion": "1"}})).await;
    s.get("it is there", &a).await;
    let these = json!({"preconditions": {"uid": object["metadata"]["uid"], "resourceVersion": object["metadata"]["resourceVersion"]}});
    s.call("this very object", "DELETE", &a, JSON, these).await;
    s.get("it is gone", &a).await;
}
