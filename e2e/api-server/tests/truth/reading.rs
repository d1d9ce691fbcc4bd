//! Lists, watches, reviews.

use super::Session;
use super::session::{JSON, MERGE};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/NS/configmaps";

async fn some(s: &mut Session, names: &[&str]) -> String {
    let mut version = String::new();
    for name in names {
        let object = json!({"metadata": {"name": name, "labels": {"first": &name[..1]}}});
        let object = s.call(&format!("there is {name}"), "POST", MAPS, JSON, object).await;
        object["metadata"]["resourceVersion"].as_str().unwrap().clone_into(&mut version);
    }
    version
}

pub(crate) async fn lists(s: &mut Session) {
    some(s, &["b1", "a1", "a2"]).await;
    s.get("all, by name", MAPS).await;
    s.get("by label", &format!("{MAPS}?labelSelector=first%3Da")).await;
    s.get("by labels in a set", &format!("{MAPS}?labelSelector=first%20in%20(b,c)")).await;
    s.get("by the lack of a label", &format!("{MAPS}?labelSelector=!first")).await;
    s.get("by name", &format!("{MAPS}?fieldSelector=metadata.name%3Da2")).await;
    let first = s.get("the first page", &format!("{MAPS}?limit=2")).await;
    some(s, &["a3"]).await;
    let token: String = form_urlencoded::byte_serialize(first["metadata"]["continue"].as_str().unwrap().as_bytes()).collect();
    s.get("the second page is of the same moment", &format!("{MAPS}?limit=2&continue={token}")).await;
    let custom = "/apis/truth.haproxy-fleet.dev/v1/namespaces/NS/probes";
    s.call(
        "a custom resource",
        "POST",
        custom,
        JSON,
        json!({"apiVersion": "truth.haproxy-fleet.dev/v1", "kind": "Probe", "metadata": {"name": "p"}}),
    )
    .await;
    s.get("custom resources say in a list what they are", custom).await;
}

pub(crate) async fn watches(s: &mut Session) {
    let before = some(s, &["a1"]).await;
    s.call("a change", "PATCH", &format!("{MAPS}/a1"), MERGE, json!({"data": {"x": "1"}})).await;
    s.call("another label", "PATCH", &format!("{MAPS}/a1"), MERGE, json!({"metadata": {"labels": {"first": "z"}}})).await;
    some(s, &["b1"]).await;
    s.call("a deletion", "DELETE", &format!("{MAPS}/a1"), JSON, Value::Null).await;
    s.watch("every change since a version", &format!("{MAPS}?watch=true&resourceVersion={before}"), 4).await;
    let selected = format!("{MAPS}?watch=true&resourceVersion={before}&labelSelector=first%3Da");
    s.watch("what leaves the selection is deleted to it", &selected, 2).await;
    let entered = format!("{MAPS}?watch=true&resourceVersion={before}&labelSelector=first%3Dz");
    s.watch("what enters the selection is new to it", &entered, 2).await;
    s.watch("without a version it begins with what is there", &format!("{MAPS}?watch=true&fieldSelector=metadata.name%3Db1"), 1).await;
}

pub(crate) async fn streaming(s: &mut Session) {
    some(s, &["a1", "a2"]).await;
    let start = format!("{MAPS}?watch=true&sendInitialEvents=true&allowWatchBookmarks=true&resourceVersionMatch=NotOlderThan");
    s.watch("all there is, and a bookmark", &start, 3).await;
    s.watch("without a match", &format!("{MAPS}?watch=true&sendInitialEvents=true"), 1).await;
}

pub(crate) async fn reviews(s: &mut Session) {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "unknown", "audiences": ["x"]}});
    s.call("an unknown token", "POST", "/apis/authentication.k8s.io/v1/tokenreviews", JSON, review).await;
}
