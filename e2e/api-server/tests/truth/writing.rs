//! Creating, updating, patching, applying.

use super::Session;
use super::session::{APPLY, JSON, JSON_PATCH, MERGE};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/NS/configmaps";
const PROBES: &str = "/apis/truth.haproxy-fleet.dev/v1/namespaces/NS/probes";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/NS/leases";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/NS/deployments";
const SERVICES: &str = "/api/v1/namespaces/NS/services";

fn map(name: &str, data: Value) -> Value {
    let mut object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    if !data.as_object().unwrap().is_empty() {
        object["data"] = data;
    }
    object
}

#[allow(clippy::needless_pass_by_value)] // reads better where it is called
fn probe(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "truth.haproxy-fleet.dev/v1", "kind": "Probe", "metadata": {"name": name}, "spec": spec})
}

fn at(path: &str, name: &str) -> String {
    format!("{path}/{name}")
}

pub(crate) async fn by_version(s: &mut Session) {
    let a = at(MAPS, "a");
    let first = s.call("a new object", "POST", MAPS, JSON, map("a", json!({"x": "1"}))).await;
    s.call("a name that is taken", "POST", MAPS, JSON, map("a", json!({}))).await;
    s.call("a namespace that is not there", "POST", "/api/v1/namespaces/nowhere/configmaps", JSON, map("a", json!({}))).await;
    s.call("a new object with a version", "POST", MAPS, JSON, json!({"metadata": {"name": "b", "resourceVersion": "1"}})).await;
    s.call("a new object without a name", "POST", MAPS, JSON, json!({"metadata": {}})).await;
    s.get("an object", &a).await;
    s.get("an object that is not there", &at(MAPS, "none")).await;
    s.get("a kind that is not there", "/api/v1/namespaces/NS/nothings").await;
    let mut object = first.clone();
    object["data"]["x"] = json!("2");
    s.call("an update by version", "PUT", &a, JSON, object.clone()).await;
    s.call("an update of an older version", "PUT", &a, JSON, object.clone()).await;
    object["metadata"]["resourceVersion"] = Value::Null;
    s.call("an update without a version that changes nothing", "PUT", &a, JSON, object.clone()).await;
    object["data"]["x"] = json!("3");
    s.call("an update without a version", "PUT", &a, JSON, object.clone()).await;
    object["metadata"]["uid"] = json!("00000000-0000-0000-0000-000000000000");
    s.call("an update of another object of the name", "PUT", &a, JSON, object.clone()).await;
    s.call("an update of what is not there", "PUT", &at(MAPS, "none"), JSON, map("none", json!({}))).await;
    s.call("an update under another name", "PUT", &a, JSON, map("b", json!({}))).await;
    s.call("a merge patch", "PATCH", &a, MERGE, json!({"data": {"y": "1", "x": null}, "metadata": {"labels": {"l": "1"}}})).await;
    s.call("a merge patch that changes nothing", "PATCH", &a, MERGE, json!({"data": {"y": "1"}})).await;
    s.call("a merge patch of an older version", "PATCH", &a, MERGE, json!({"metadata": {"resourceVersion": "1"}})).await;
    s.call("a patch of what is not there", "PATCH", &at(MAPS, "none"), MERGE, json!({})).await;
    let test = json!([{"op": "test", "path": "/data/y", "value": "1"}, {"op": "add", "path": "/data/z", "value": "1"}]);
    s.call("a JSON patch", "PATCH", &a, JSON_PATCH, test.clone()).await;
    let test = json!([{"op": "test", "path": "/data/y", "value": "2"}, {"op": "remove", "path": "/data/z"}]);
    s.call("a JSON patch whose test fails", "PATCH", &a, JSON_PATCH, test).await;
    s.call(
        "an identity cannot be changed",
        "PATCH",
        &a,
        MERGE,
        json!({"metadata": {"creationTimestamp": "2020-01-01T00:00:00Z", "generation": 7}}),
    )
    .await;
}

pub(crate) async fn generations(s: &mut Session) {
    let a = at(PROBES, "a");
    let status = format!("{a}/status");
    let mut object = probe("a", json!({"text": "1", "unknown": 1, "nested": {}}));
    object["status"] = json!({"phase": "given at creation"});
    s.call("it is pruned, gets defaults, loses its status, is generation 1", "POST", PROBES, JSON, object).await;
    s.call("labels do not count", "PATCH", &a, MERGE, json!({"metadata": {"labels": {"l": "1"}}})).await;
    s.call("its spec counts", "PATCH", &a, MERGE, json!({"spec": {"text": "2"}})).await;
    s.call("its status is not written with it", "PATCH", &a, MERGE, json!({"status": {"phase": "x"}})).await;
    s.call("its status is written apart", "PATCH", &status, MERGE, json!({"status": {"phase": "x"}})).await;
    s.call("the same status again", "PATCH", &status, MERGE, json!({"status": {"phase": "x"}})).await;
    s.call("its spec is not written with its status", "PATCH", &status, MERGE, json!({"spec": {"text": "3"}, "status": {"phase": "y"}}))
        .await;
    s.call(
        "a status applied",
        "PATCH",
        &format!("{status}?fieldManager=judge"),
        APPLY,
        json!({
        "apiVersion": "truth.haproxy-fleet.dev/v1", "kind": "Probe", "metadata": {"name": "a"}, "status": {"seen": 2}}),
    )
    .await;
    s.call("an update without a version", "PUT", &a, JSON, probe("a", json!({"text": "4"}))).await;
    s.get("in the end", &a).await;
    s.get("a subresource that is not there", &format!("{a}/scale")).await;

    let d = at(DEPLOYMENTS, "d");
    s.call("a deployment counts from 1", "POST", DEPLOYMENTS, JSON, deployment("d", 2)).await;
    s.call("its replicas count", "PATCH", &d, MERGE, json!({"spec": {"replicas": 3}})).await;
    s.call("its annotations count as well", "PATCH", &d, MERGE, json!({"metadata": {"annotations": {"a": "1"}}})).await;
    s.call("its status does not count", "PATCH", &format!("{d}/status"), MERGE, json!({"status": {"replicas": 1}})).await;
}

fn deployment(name: &str, replicas: i32) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
        "replicas": replicas, "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "main", "image": "one"}]}},
    }})
}

pub(crate) async fn leases(s: &mut Session) {
    let a = at(LEASES, "a");
    let object = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "a"},
        "spec": {"holderIdentity": "one", "leaseDurationSeconds": 15, "leaseTransitions": 1}});
    let mut first = s.call("a lease", "POST", LEASES, JSON, object.clone()).await;
    s.call("without a version", "PUT", &a, JSON, object).await;
    first["spec"]["holderIdentity"] = json!("");
    first["metadata"]["annotations"] = json!({"generations": "100"});
    s.call("by version", "PUT", &a, JSON, first.clone()).await;
    s.call("by an older version", "PUT", &a, JSON, first).await;
}

pub(crate) async fn applying(s: &mut Session) {
    let a = at(PROBES, "a");
    s.apply("without a manager", &format!("{a}?fieldManager="), "", probe("a", json!({}))).await;
    s.apply("it is created", &a, "one", probe("a", json!({"text": "1", "grain": {"x": "1", "y": "1"}, "tags": ["b", "a"]}))).await;
    s.apply("the same again", &a, "one", probe("a", json!({"text": "1", "grain": {"x": "1", "y": "1"}, "tags": ["b", "a"]}))).await;
    s.apply("a dropped field goes", &a, "one", probe("a", json!({"text": "1", "grain": {"x": "1"}, "tags": ["a"]}))).await;
    let mut labelled = probe("a", json!({"grain": {"z": "2"}, "tags": ["c"]}));
    labelled["metadata"]["labels"] = json!({"team": "two"});
    s.apply("another manager adds", &a, "two", labelled).await;
    s.apply("what others own stays", &a, "one", probe("a", json!({"text": "2", "tags": ["a"]}))).await;
    s.apply("the same value has two owners", &a, "two", probe("a", json!({"text": "2", "grain": {"z": "2"}}))).await;
    s.apply("what one of two owners drops stays", &a, "one", probe("a", json!({"tags": ["a"]}))).await;
    s.apply("what the last owner drops goes", &a, "two", probe("a", json!({"grain": {"z": "2"}}))).await;
    s.call("an update takes what it changes", "PATCH", &format!("{a}?fieldManager=editor"), MERGE, json!({"spec": {"grain": {"z": "3"}}}))
        .await;
    s.apply("nothing owns nothing", &a, "one", probe("a", json!({}))).await;
    let mut object = probe("a", json!({"text": "9"}));
    object["metadata"]["managedFields"] = json!([]);
    s.apply("with managed fields", &a, "one", object).await;
    let mut object = probe("a", json!({"text": "9"}));
    object["metadata"]["resourceVersion"] = json!("1");
    s.apply("of an older version", &a, "one", object.clone()).await;
    object["metadata"]["name"] = json!("new");
    s.apply("of a version of what is not there", &at(PROBES, "new"), "one", object).await;
    s.apply("under another name", &a, "one", probe("b", json!({}))).await;
    let mut object = probe("a", json!({"text": "9"}));
    object["status"] = json!({"phase": "x"});
    s.apply("its status is left out", &a, "one", object).await;
}

pub(crate) async fn conflicts(s: &mut Session) {
    let a = at(PROBES, "a");
    s.apply("one", &a, "one", probe("a", json!({"text": "1", "atom": {"a": "1"}, "whole": ["a"], "zones": [{"name": "x", "size": 1}]})))
        .await;
    s.apply("another value", &a, "two", probe("a", json!({"text": "2"}))).await;
    s.apply("another atom and list", &a, "two", probe("a", json!({"atom": {"b": "1"}, "whole": ["a", "b"]}))).await;
    s.apply("another value of an item", &a, "two", probe("a", json!({"zones": [{"name": "x", "size": 2}]}))).await;
    s.apply(
        "forced",
        &format!("{a}?force=true"),
        "two",
        probe("a", json!({"text": "2", "atom": {"b": "1"}, "zones": [{"name": "x", "size": 2}]})),
    )
    .await;
    s.apply("and back", &a, "one", probe("a", json!({"text": "1", "whole": ["a"]}))).await;
    s.call("an update", "PATCH", &format!("{a}?fieldManager=editor"), MERGE, json!({"spec": {"whole": ["c"], "size": 5}})).await;
    s.apply("an update is a manager as well", &a, "one", probe("a", json!({"whole": ["d"]}))).await;
    s.apply("a default that nobody owns", &a, "three", probe("a", json!({"nested": {"deep": "else"}}))).await;
}

pub(crate) async fn lists(s: &mut Session) {
    let a = at(PROBES, "a");
    let zones = |names: &[&str]| json!({"zones": names.iter().map(|name| json!({"name": name})).collect::<Vec<_>>()});
    s.apply("in the order given", &a, "one", probe("a", zones(&["c", "a"]))).await;
    s.apply("another's items come after", &a, "two", probe("a", zones(&["b"]))).await;
    s.apply("one's own order", &a, "one", probe("a", zones(&["a", "c", "d"]))).await;
    s.apply("an item less", &a, "one", probe("a", zones(&["d"]))).await;
    s.apply("a shared item in another order", &a, "two", probe("a", zones(&["e", "d", "b"]))).await;
    s.apply("none", &a, "one", probe("a", json!({}))).await;

    let d = at(DEPLOYMENTS, "d");
    let with = |containers: Value| {
        let mut object = deployment("d", 1);
        object["spec"]["template"]["spec"]["containers"] = containers;
        object
    };
    let main = json!({"name": "main", "image": "one", "ports": [{"containerPort": 80}, {"containerPort": 443, "name": "tls"}],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]});
    s.apply("a deployment", &d, "one", with(json!([main]))).await;
    let side = json!({"name": "side", "image": "two"});
    s.apply(
        "a container and a variable of another",
        &d,
        "two",
        json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
        "spec": {"template": {"spec": {"containers": [side, {"name": "main", "env": [{"name": "C", "value": "3"}]}]}}}}),
    )
    .await;
    let less =
        json!({"name": "main", "image": "one", "ports": [{"containerPort": 443, "name": "tls"}], "env": [{"name": "B", "value": "3"}]});
    s.apply("they stay when one's own go", &d, "one", with(json!([less]))).await;
    s.call("somebody scales it", "PATCH", &format!("{d}?fieldManager=scaler"), MERGE, json!({"spec": {"replicas": 5}})).await;
    let mut without = with(json!([less]));
    without["spec"].as_object_mut().unwrap().remove("replicas");
    s.apply("its replicas stay when they are not applied any more", &d, "one", without).await;

    let service = |ports: Value| json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "s"}, "spec": {"type": "LoadBalancer", "selector": {"app": "d"}, "ports": ports}});
    let s_path = at(SERVICES, "s");
    s.apply("a service", &s_path, "one", service(json!([{"name": "http", "port": 80, "protocol": "TCP"}]))).await;
    s.apply(
        "with a second port",
        &s_path,
        "one",
        service(json!([{"name": "https", "port": 443, "protocol": "TCP"}, {"name": "http", "port": 80, "protocol": "TCP"}])),
    )
    .await;
    s.call(
        "an annotation of somebody else",
        "PATCH",
        &s_path,
        MERGE,
        json!({"metadata": {"annotations": {"cloud": "id"}, "finalizers": ["service.kubernetes.io/load-balancer-cleanup"]}}),
    )
    .await;
    s.apply("stays", &s_path, "one", service(json!([{"name": "https", "port": 443, "protocol": "TCP"}]))).await;
    s.call(
        "a status with an address",
        "PATCH",
        &format!("{s_path}/status"),
        MERGE,
        json!({"status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1", "ipMode": "VIP"}]}}}),
    )
    .await;
}

pub(crate) async fn dry_runs(s: &mut Session) {
    let a = at(MAPS, "a");
    s.call("created for nothing", "POST", &format!("{MAPS}?dryRun=All"), JSON, map("dry", json!({}))).await;
    s.get("it is not there", &at(MAPS, "dry")).await;
    s.call("an object", "POST", MAPS, JSON, map("a", json!({}))).await;
    s.apply("applied for nothing", &format!("{a}?dryRun=All"), "one", map("a", json!({"x": "1"}))).await;
    s.call("deleted for nothing", "DELETE", &a, JSON, json!({"dryRun": ["All"]})).await;
    s.get("it is as it was", &a).await;
}
