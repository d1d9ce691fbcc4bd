//! Garbage collection.

use super::Session;
use super::session::{JSON, MERGE};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/NS/configmaps";

async fn owner(s: &mut Session, name: &str) -> Value {
    s.call(&format!("owner {name}"), "POST", MAPS, JSON, json!({"metadata": {"name": name}})).await
}

async fn owned(s: &mut Session, name: &str, owners: &[&Value], blocks: bool, finalizers: Value) {
    let references: Vec<Value> = owners
        .iter()
        .map(|owner| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], "blockOwnerDeletion": blocks}))
        .collect();
    let object = json!({"metadata": {"name": name, "ownerReferences": references, "finalizers": finalizers}});
    s.call(&format!("owned {name}"), "POST", MAPS, JSON, object).await;
}

fn is_gone(code: u16, _: &Value) -> bool {
    code == 404
}

pub(crate) async fn background(s: &mut Session) {
    let (a, b) = (owner(s, "a").await, owner(s, "b").await);
    owned(s, "of-a", &[&a], true, Value::Null).await;
    owned(s, "of-both", &[&a, &b], true, Value::Null).await;
    s.call("the owner goes at once", "DELETE", &format!("{MAPS}/a"), JSON, json!({"propagationPolicy": "Background"})).await;
    s.collect("what it owned goes later", &format!("{MAPS}/of-a"), is_gone).await;
    s.collect("the other owner keeps it", &format!("{MAPS}/of-both"), |code, _| code == 200).await;
    let mut stranger = b.clone();
    stranger["metadata"]["uid"] = json!("00000000-0000-4000-8000-00000000dead");
    owned(s, "of-nobody", &[&stranger], false, Value::Null).await;
    s.collect("an owner of the name is not the owner", &format!("{MAPS}/of-nobody"), is_gone).await;
}

pub(crate) async fn foreground(s: &mut Session) {
    let a = owner(s, "a").await;
    owned(s, "blocks", &[&a], true, json!(["x.io/hold"])).await;
    owned(s, "does-not-block", &[&a], false, json!(["x.io/hold"])).await;
    s.call("the owner is marked", "DELETE", &format!("{MAPS}/a"), JSON, json!({"propagationPolicy": "Foreground"})).await;
    let is_marked = |_: u16, object: &Value| !object["metadata"]["deletionTimestamp"].is_null();
    s.collect("what it owns is deleted first", &format!("{MAPS}/blocks"), is_marked).await;
    s.collect("all of it", &format!("{MAPS}/does-not-block"), is_marked).await;
    s.get("it waits for what blocks it", &format!("{MAPS}/a")).await;
    s.call("that goes", "PATCH", &format!("{MAPS}/blocks"), MERGE, json!({"metadata": {"finalizers": null}})).await;
    s.collect("then the owner goes", &format!("{MAPS}/a"), is_gone).await;
    s.call("without waiting for the rest", "PATCH", &format!("{MAPS}/does-not-block"), MERGE, json!({"metadata": {"finalizers": null}}))
        .await;
}

pub(crate) async fn orphans(s: &mut Session) {
    let a = owner(s, "a").await;
    owned(s, "orphan", &[&a], true, Value::Null).await;
    s.call("the owner is marked", "DELETE", &format!("{MAPS}/a"), JSON, json!({"propagationPolicy": "Orphan"})).await;
    s.collect("it goes", &format!("{MAPS}/a"), is_gone).await;
    s.collect("what it owned stays, without an owner", &format!("{MAPS}/orphan"), |_, object| {
        object["metadata"]["ownerReferences"].is_null()
    })
    .await;
}
