//! What has to be held while a reload is pending or refused: what it would replace goes on serving, from the
//! endpoints that there are now.

use crate::models::{host, id, name, prefix, route, to};
use crate::rig::Origin;
use crate::site::{Question, Site, Watch, all, ask, listening, of_kind, of_method, serve};
use crate::support::haproxies;
use haproxy_fleet::haproxy::bundle::ResourceKey;
use haproxy_fleet::model::*;
use std::sync::Arc;

/// Each question has this answer, however often it is asked.
fn answers(site: &Site, expected: &[(Question, &str)]) {
    for (question, answer) in expected {
        for _ in 0..3 {
            assert_eq!(ask(site.rig.http, *question), *answer, "{question:?}");
        }
    }
}

/// A service's endpoints go, as do all routes to it.
fn without(model: &mut Model, service: &str) {
    model.backends.remove(&id(service));
}

fn of(model: &mut Model, host_name: &str, first: Route, otherwise: &str) {
    host(model, name(host_name), vec![first, route(prefix("/"), to(otherwise))]);
}

/// HAProxy refuses the rules of the frontends: somebody's expression is none.
fn unacceptable(model: &mut Model) {
    let bad = route(PathMatch::Regex("(".into()), to("shop"));
    host(model, name("bad.test"), vec![bad, route(prefix("/"), to("shop"))]);
}

/// A policy that is another shape than the default one, and that HAProxy takes or not.
fn shaped(model: &mut Model, service: &str, accepted: bool) {
    let pattern = HttpCheckPattern::StatusRegex(if accepted { "^[0-9]+$" } else { "(" }.into());
    let check = HttpCheck { expect: Some(HttpCheckExpect { negate: false, pattern }), ..HttpCheck::default() };
    let policy = Policy { http_check: Some(check), ..Policy::default() };
    model.backends.get_mut(&id(service)).unwrap().policy = Arc::new(policy);
}

const PLAIN: Question = ("GET", "plain.test", "none");
const PLAIN_POST: Question = ("POST", "plain.test", "none");
const MIXED: Question = ("GET", "mixed.test", "none");
const MIXED_POST: Question = ("POST", "mixed.test", "none");
const MIXED_SPECIAL: Question = ("GET", "mixed.test", "special");
const STEADY: Question = ("GET", "steady.test", "none");
const STEADY_POST: Question = ("POST", "steady.test", "none");
const LATE: Question = ("GET", "late.test", "none");
const EVERYTHING: [Question; 7] = [PLAIN, PLAIN_POST, MIXED, MIXED_POST, MIXED_SPECIAL, STEADY, STEADY_POST];

/// `plain.test` has no conditions, what is posted to `mixed.test` and `steady.test` goes to `post`, all else to `shop`.
fn before(shop: &Origin, post: &Origin) -> Model {
    let (mut model, _) = listening();
    serve(&mut model, "shop", &[shop.address]);
    serve(&mut model, "post", &[post.address]);
    all(&mut model, "plain.test", "shop");
    of(&mut model, "mixed.test", of_method("POST", to("post")), "shop");
    of(&mut model, "steady.test", of_method("POST", to("post")), "shop");
    model
}

/// What is posted to `plain.test`, and what is special of `mixed.test`, goes to the new service `special`.
fn conditions_change(model: &mut Model, special: &Origin) {
    serve(model, "special", &[special.address]);
    of(model, "plain.test", of_method("POST", to("special")), "shop");
    of(model, "mixed.test", of_kind("special", to("special")), "shop");
}

#[tokio::test(flavor = "multi_thread")]
async fn while_a_reload_is_pending_the_old_conditions_lead_to_the_present_endpoints() {
    for (version, haproxy) in haproxies() {
        let (first, second) = (Origin::start("first").await, Origin::start("second").await);
        let (post, posts) = (Origin::start("post").await, Origin::start("posts").await);
        let (special, specials) = (Origin::start("special").await, Origin::start("specials").await);
        let (mut site, gate) = Site::gated(*version, haproxy, before(&first, &post)).await;
        let watch = Watch::start(&site, &EVERYTHING);
        let old = [(PLAIN, "first"), (PLAIN_POST, "first"), (MIXED, "first"), (MIXED_POST, "post"), (MIXED_SPECIAL, "first")];
        answers(&site, &old);

        gate.close();
        site.live(|model| conditions_change(model, &special)).await;
        gate.waited_at().await;
        answers(&site, &old);
        answers(&site, &[(STEADY, "first"), (STEADY_POST, "post")]);

        site.live(|model| {
            serve(model, "shop", &[second.address]);
            serve(model, "post", &[posts.address]);
            serve(model, "special", &[specials.address]);
        })
        .await;
        answers(&site, &[(PLAIN, "second"), (PLAIN_POST, "second"), (MIXED, "second"), (MIXED_POST, "posts"), (MIXED_SPECIAL, "second")]);
        answers(&site, &[(STEADY, "second"), (STEADY_POST, "posts")]);

        // a service goes that only conditions lead to which wait for their end
        let status = site
            .live(|model| {
                of(model, "steady.test", of_method("POST", to("shop")), "shop");
                without(model, "post");
            })
            .await;
        answers(&site, &[(MIXED_POST, "posts"), (STEADY_POST, "second")]);
        assert!(gate.is_waited_at() && status.reload_count == 1, "{version}: all of this was before the reload");

        gate.open();
        site.rig.settled().await;
        answers(&site, &[(PLAIN, "second"), (PLAIN_POST, "specials"), (MIXED, "second"), (MIXED_POST, "second")]);
        answers(&site, &[(MIXED_SPECIAL, "specials"), (STEADY, "second"), (STEADY_POST, "second")]);
        assert_eq!(site.rig.agent.check_drift().await, 0, "{version}");
        watch.saw_only(&["first", "second", "post", "posts", "special", "specials"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_rules_are_refused_the_old_conditions_lead_to_the_present_endpoints() {
    for (version, haproxy) in haproxies() {
        let (first, second, third) = (Origin::start("first").await, Origin::start("second").await, Origin::start("third").await);
        let (post, posts) = (Origin::start("post").await, Origin::start("posts").await);
        let special = Origin::start("special").await;
        let mut site = Site::start(*version, haproxy, before(&first, &post)).await;
        let watch = Watch::start(&site, &EVERYTHING);
        let refused = |status: &haproxy_fleet::agent::Status| {
            let keys: Vec<_> = status.refused.iter().map(|refusal| refusal.resource.clone()).collect();
            assert_eq!(keys, [ResourceKey::Section("20-frontends".into())], "{version}: {:?}", status.refused);
        };

        site.send(|model| {
            unacceptable(model);
            conditions_change(model, &special);
        });
        refused(&site.rig.until("refused", |status| !status.refused.is_empty()).await);
        answers(&site, &[(PLAIN, "first"), (PLAIN_POST, "first"), (MIXED, "first"), (MIXED_POST, "post"), (MIXED_SPECIAL, "first")]);

        site.change(|model| {
            serve(model, "shop", &[second.address]);
            serve(model, "post", &[posts.address]);
        })
        .await;
        answers(&site, &[(PLAIN, "second"), (PLAIN_POST, "second"), (MIXED, "second"), (MIXED_POST, "posts"), (MIXED_SPECIAL, "second")]);
        answers(&site, &[(STEADY, "second"), (STEADY_POST, "posts")]);

        // where the conditions stay what they are, what they lead to is live
        site.change(|model| of(model, "steady.test", of_method("POST", to("shop")), "post")).await;
        answers(&site, &[(STEADY, "posts"), (STEADY_POST, "second")]);
        site.change(|model| all(model, "late.test", "post")).await;
        answers(&site, &[(LATE, "posts")]);

        // a service that the old conditions lead to gets another policy, and then other endpoints
        site.send(|model| {
            shaped(model, "shop", true);
            shaped(model, "post", true);
        });
        site.rig.until("reloaded", |status| status.reload_count > 1 && status.generation == site.rig.generation).await;
        site.change(|model| {
            serve(model, "shop", &[third.address]);
            serve(model, "post", &[post.address]);
        })
        .await;
        answers(&site, &[(PLAIN, "third"), (PLAIN_POST, "third"), (MIXED, "third"), (MIXED_POST, "post"), (MIXED_SPECIAL, "third")]);
        answers(&site, &[(STEADY, "post"), (STEADY_POST, "third")]);
        refused(&site.rig.status());

        let status = site.change(|model| all(model, "bad.test", "shop")).await;
        assert!(status.refused.is_empty(), "{version}: {:?}", status.refused);
        answers(&site, &[(PLAIN, "third"), (PLAIN_POST, "special"), (MIXED, "third"), (MIXED_POST, "third"), (MIXED_SPECIAL, "special")]);
        assert_eq!(site.rig.agent.check_drift().await, 0, "{version}");
        watch.saw_only(&["first", "second", "third", "post", "posts", "special"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backend_whose_successor_is_refused_follows_the_endpoints_of_their_service() {
    for (version, haproxy) in haproxies() {
        let origins = [Origin::start("a").await, Origin::start("b").await, Origin::start("c").await];
        let [a, b, c] = [0, 1, 2].map(|number: usize| origins[number].address);
        let other = Origin::start("other").await;
        let (mut model, _) = listening();
        serve(&mut model, "shop", &[a]);
        serve(&mut model, "other", &[other.address]);
        all(&mut model, "plain.test", "shop");
        of(&mut model, "mixed.test", of_method("POST", to("shop")), "other");
        let mut site = Site::start(*version, haproxy, model).await;
        let watch = Watch::start(&site, &[PLAIN, MIXED_POST]);
        let worker = site.rig.status().worker_pid;

        site.send(|model| {
            shaped(model, "shop", false);
            serve(model, "shop", &[b]);
        });
        let status = site.rig.until("refused", |status| !status.refused.is_empty()).await;
        assert!(matches!(&status.refused[0].resource, ResourceKey::Section(name) if name.starts_with("30-shape-")), "{:?}", status.refused);
        answers(&site, &[(PLAIN, "b"), (MIXED_POST, "b"), (MIXED, "other")]);

        site.change(|model| serve(model, "shop", &[c])).await;
        answers(&site, &[(PLAIN, "c"), (MIXED_POST, "c")]);
        // it comes back, and one that goes takes nothing new
        site.change(|model| {
            serve(model, "shop", &[a, c]);
            let backend = model.backends.get_mut(&id("shop")).unwrap();
            let mut endpoints = backend.endpoints.to_vec();
            endpoints
                .iter_mut()
                .filter(|endpoint| endpoint.address == c.ip())
                .for_each(|endpoint| endpoint.state = EndpointState::Draining);
            backend.endpoints = endpoints.into();
        })
        .await;
        answers(&site, &[(PLAIN, "a"), (MIXED_POST, "a")]);
        // another route to it, and other conditions of the one that there is
        site.change(|model| all(model, "late.test", "shop")).await;
        answers(&site, &[(LATE, "a")]);
        site.send(|model| of(model, "mixed.test", of_kind("special", to("other")), "shop"));
        site.rig.until("reloaded", |status| status.reload_count == 2 && status.generation == site.rig.generation).await;
        assert_ne!(site.rig.status().worker_pid, worker);
        site.change(|model| serve(model, "shop", &[b])).await;
        answers(&site, &[(PLAIN, "b"), (LATE, "b"), (MIXED, "b"), (MIXED_POST, "b"), (MIXED_SPECIAL, "other")]);

        let status = site.change(|model| shaped(model, "shop", true)).await;
        assert!(status.refused.is_empty(), "{version}: {:?}", status.refused);
        answers(&site, &[(PLAIN, "b"), (LATE, "b"), (MIXED_POST, "b"), (MIXED_SPECIAL, "other")]);
        site.change(|model| serve(model, "shop", &[a])).await;
        answers(&site, &[(PLAIN, "a"), (MIXED_POST, "a")]);
        assert_eq!(site.rig.agent.check_drift().await, 0, "{version}");
        watch.saw_only(&["a", "b", "c"]).await;
    }
}
