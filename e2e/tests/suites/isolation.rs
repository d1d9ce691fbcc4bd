//! One bad object, one tenant, one fleet hurts no other.

use crate::run;
use haproxy_fleet_e2e::setting::{echo, fleet, ingress};
use haproxy_fleet_e2e::{Failure, SOON, eventually, http};
use serde_json::Value;

#[test]
fn a_bad_object_is_set_aside_says_so_and_everything_else_is_served() {
    run(|setting| async move {
        for namespace in ["bad", "bad-good", "bad-evil"] {
            setting.namespace(namespace).await?;
        }
        setting.apply(&fleet("bad", "edge", "bad", 2)).await?;
        setting.apply(&echo("bad-good", "web", 1)).await?;
        setting.apply(&ingress("bad-good", "web", "bad", "good.example", "web")).await?;
        setting.ready("bad", "edge").await?;
        let address = setting.address("bad", "edge", 80).await?;
        eventually("the good one", SOON, || http::expect(address, "good.example", "/", 200)).await?;
        let evil = ingress("bad-evil", "web", "bad", "evil.example", "nobody").replace(
            "metadata: {",
            "metadata: {annotations: {haproxy-fleet.dev/no-such-key: \"x\", haproxy.org/timeout-server: \"1s\\n  bind :1\"}, ",
        );
        setting.apply(&evil).await?;
        // not what `describe` says, which repeats the annotation
        eventually("an Event at the bad one", SOON, || async {
            let events = setting.get(&["-n", "bad-evil", "events"]).await?;
            let tells = |event: &Value| {
                let about = &event["involvedObject"];
                let is_about = about["kind"] == "Ingress" && about["name"] == "web";
                is_about && event["message"].as_str().unwrap_or_default().contains("haproxy-fleet.dev/no-such-key")
            };
            let told = events["items"].as_array().into_iter().flatten().any(tells);
            if told { Ok(()) } else { Err(Failure::new(events["items"].to_string())) }
        })
        .await?;
        http::expect(address, "good.example", "/", 200).await?;
        let status = setting.fleet("bad", "edge").await?;
        let ready = status["conditions"].as_array().into_iter().flatten().any(|one| one["type"] == "Ready" && one["status"] == "True");
        assert!(ready, "a tenant's mistake is not the fleet's: {status}");
        setting.remove(&["bad", "bad-good", "bad-evil"]).await
    });
}

#[test]
fn two_fleets_of_two_classes_are_strictly_apart() {
    run(|setting| async move {
        for namespace in ["one", "two", "apart"] {
            setting.namespace(namespace).await?;
        }
        for class in ["one", "two"] {
            setting.apply(&fleet(class, "edge", class, 2)).await?;
            setting.apply(&echo("apart", class, 1)).await?;
            setting.apply(&ingress("apart", class, class, &format!("{class}.example"), class)).await?;
        }
        for (class, other) in [("one", "two"), ("two", "one")] {
            setting.ready(class, "edge").await?;
            let address = setting.address(class, "edge", 80).await?;
            let host = format!("{class}.example");
            eventually(class, SOON, || http::expect(address, &host, "/", 200)).await?;
            http::expect(address, &format!("{other}.example"), "/", 404).await?;
        }
        // a second fleet of a class that is taken serves nothing and hurts nobody
        setting.apply(&fleet("two", "thief", "one", 1)).await?;
        eventually("the younger fleet to be told", SOON, || async {
            let status = setting.fleet("two", "thief").await?;
            let told = status["conditions"].as_array().into_iter().flatten().any(|one| one["type"] == "Stalled" && one["status"] == "True");
            if told { Ok(()) } else { Err(Failure::new(status)) }
        })
        .await?;
        let address = setting.address("one", "edge", 80).await?;
        http::expect(address, "one.example", "/", 200).await?;
        setting.remove(&["one", "two", "apart"]).await
    });
}
