//! Every directive that may stand in a shape works for backends that are added at run time.

use crate::models::*;
use crate::policies;
use crate::running::*;
use crate::support::haproxies;
use haproxy_fleet::haproxy::bundle::{BackendClass, Content, ResourceKey};
use haproxy_fleet::haproxy::config::parse::parse;
use haproxy_fleet::haproxy::render::{Options, Renderer};
use haproxy_fleet::haproxy::shape::{ALLOWED, allowed};
use haproxy_fleet::haproxy::version::Capabilities;
use haproxy_fleet::model::*;

fn everything(origin: std::net::SocketAddr) -> Model {
    let mut model = empty();
    for (service, mut policy) in policies::all() {
        // The origin speaks neither TLS nor the PROXY protocol.
        policy.server = ServerOptions { check: Some(true), ..ServerOptions::default() };
        policy.http_check = policy.http_check.map(|check| HttpCheck { expect: None, ..check });
        backend(&mut model, service, &[origin], policy);
        host(&mut model, name(&format!("{service}.test")), vec![route(prefix("/"), to(service))]);
    }
    for (service, policy) in policies::speaking() {
        let service = format!("full-{service}");
        backend(&mut model, &service, &[], policy);
    }
    backend(&mut model, "external", &[], Policy::default());
    model.backends.get_mut(&id("external")).unwrap().kind = BackendKind::ExternalName { host: "none.test".into(), port: 80 };
    model
}

#[test]
fn shapes_hold_nothing_but_allowed_directives_and_use_every_one() {
    for version in ["3.4", "3.2"] {
        let model = everything(free());
        let fleet = FleetId { namespace: "infra".into(), name: "edge".into() };
        let mut renderer = Renderer::new(fleet, Capabilities::of(version.parse().unwrap()));
        renderer.update(&model, &Touched::all(&model));
        let mut used = vec![false; ALLOWED.len()];
        for resource in renderer.bundle().resources() {
            let (ResourceKey::Section(section), Content::Section(text)) = (&resource.key, &resource.content) else { continue };
            if !section.starts_with("30-shape-") {
                continue;
            }
            for directive in parse(text).unwrap().into_iter().flat_map(|section| section.directives) {
                let words: Vec<&str> = directive.iter().map(String::as_str).collect();
                assert!(allowed(&words), "{version} {words:?}");
                for (used, first) in used.iter_mut().zip(ALLOWED) {
                    *used |=
                        words.len() >= first.len() && first.iter().zip(&words).all(|(want, word)| word.split('(').next() == Some(want));
                }
            }
        }
        let unused: Vec<_> = ALLOWED.iter().zip(used).filter(|(_, used)| !used).map(|(first, _)| first).collect();
        assert!(unused.is_empty(), "{version}: {unused:?}");
    }
}

#[test]
fn a_backend_of_every_shape_can_be_added_used_and_deleted_at_run_time() {
    for (version, haproxy) in haproxies() {
        let capabilities = Capabilities::of(*version);
        if !capabilities.dynamic_backends {
            continue;
        }
        let origin = origin("added");
        let model = everything(origin);
        let fleet = FleetId { namespace: "infra".into(), name: "edge".into() };
        let mut renderer = Renderer::with_options(fleet, capabilities, Options { max_shapes: 1000, ..Options::default() });
        renderer.update(&model, &Touched::all(&model));
        let running = Running::start(haproxy, renderer.bundle(), &["http"]);
        let ok = |command: &str, want: &str| {
            let answer = running.command(command);
            let said = ["registered", "ublished", "eleted"].iter().any(|word| answer.contains(word));
            assert!(answer.contains(want) && (said || answer.is_empty()), "{command}: {answer}");
        };
        for resource in renderer.bundle().resources() {
            let (ResourceKey::Backend(like), Content::Backend(head)) = (&resource.key, &resource.content) else { continue };
            let BackendClass::Shaped { shape, mode, .. } = &head.class else { continue };
            let Some(Content::Servers(servers)) = renderer.bundle().get(&ResourceKey::Servers(like.clone())).map(|r| r.content.clone())
            else {
                continue;
            };
            ok(&format!("add backend new from {shape} mode {mode} guid new"), "");
            for server in servers.iter() {
                let name = &server.name;
                ok(
                    &format!("add server new/{name} {} id {} guid g {}", server.address, server.id, server.keywords),
                    "New server registered",
                );
                ok(&format!("enable server new/{name}"), "");
                if server.checked {
                    ok(&format!("enable health new/{name}"), "");
                }
            }
            ok("publish backend new", "");
            // The values of the backend that it is like.
            for key in renderer.bundle().resources().map(|r| &r.key) {
                let ResourceKey::MapEntries { map, owner } = key else { continue };
                let Content::MapEntries(entries) = &renderer.bundle().get(key).unwrap().content else { continue };
                for entry in entries.iter().filter(|_| owner == like) {
                    let (key, value) = (entry.key.replacen(&**like, "new", 1), entry.value.replace('\\', "\\\\").replace(' ', "\\ "));
                    ok(&format!("add map {map} {key} {}", value.replace(';', "\\;")), "");
                }
            }
            ok("add map maps/t/routes.map new.test/ new", "");
            let answer = running.get("new.test", "/app");
            let code = status(&answer);
            if servers.is_empty() || like.contains("_external_") {
                assert_eq!(code, 503, "{like}: {answer}");
            } else if like.contains("_location_") || like.contains("_parts_") {
                assert!(code / 100 == 3, "{like}: {answer}");
            } else {
                assert_eq!(code, 200, "{like}: {answer}");
            }
            ok("del map maps/t/routes.map new.test/", "");
            ok("unpublish backend new", "");
            for server in servers.iter() {
                ok(&format!("set server new/{} state maint", server.name), "");
                running.command(&format!("wait 5s srv-removable new/{}", server.name));
                ok(&format!("del server new/{}", server.name), "Server deleted");
            }
            running.command("wait 5s be-removable new");
            ok("del backend new", "");
            for map in renderer.bundle().files().filter(|path| path.starts_with("maps/values/")) {
                for key in ["new", "new/q0", "new/q1", "new/s0", "new/s1"] {
                    running.command(&format!("del map {map} {key}"));
                }
            }
        }
        assert_eq!(status(&running.get("default.test", "/")), 200, "it still serves");
    }
}
