//! A HAProxy with its agent that runs what the renderer makes of a model.

use crate::models::{backend, empty, host, name, prefix, route, source, to};
use crate::rig::{Gate, Rig, pem};
use crate::running;
use haproxy_fleet::agent::Status;
use haproxy_fleet::haproxy::render::Renderer;
use haproxy_fleet::haproxy::version::{Capabilities, Version};
use haproxy_fleet::model::*;
use haproxy_fleet::report::PrivateBytes;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub struct Site {
    pub rig: Rig,
    pub model: Model,
    renderer: Renderer,
}

impl Site {
    /// A HAProxy that serves `model`.
    pub async fn start(version: Version, haproxy: &Path, model: Model) -> Self {
        Self::on(version, Rig::bare(haproxy).await, model).await
    }

    /// The same, and what its validations have to pass.
    pub async fn gated(version: Version, haproxy: &Path, model: Model) -> (Self, Gate) {
        let (rig, gate) = Rig::gated(haproxy).await;
        (Self::on(version, rig, model).await, gate)
    }

    async fn on(version: Version, rig: Rig, model: Model) -> Self {
        let fleet = FleetId { namespace: "infra".into(), name: "edge".into() };
        let renderer = Renderer::new(fleet, Capabilities::of(version));
        let mut site = Self { rig, model, renderer };
        site.renderer.update(&site.model, &Touched::all(&site.model));
        site.rig.bundle = site.renderer.bundle().clone();
        site.rig.deliver_all();
        let status = site.rig.settled().await;
        assert!(status.refused.is_empty(), "{:?}", status.refused);
        site
    }

    /// Delivers what `change` does to the model.
    pub fn send(&mut self, change: impl FnOnce(&mut Model)) {
        let mut touched = Touched::all(&self.model);
        change(&mut self.model);
        let new = Touched::all(&self.model);
        touched.settings |= new.settings;
        touched.listeners.extend(new.listeners);
        touched.hosts.extend(new.hosts);
        touched.backends.extend(new.backends);
        touched.certificates.extend(new.certificates);
        touched.list_entries.extend(new.list_entries);
        touched.ca_bundles.extend(new.ca_bundles);
        self.renderer.update(&self.model, &touched);
        let bundle = self.renderer.bundle().clone();
        self.rig.send(|before| *before = bundle);
    }

    /// Delivers it and waits until nothing of it waits any more, or HAProxy refuses something.
    pub async fn change(&mut self, change: impl FnOnce(&mut Model)) -> Status {
        self.send(change);
        self.rig.settled().await
    }

    /// Delivers it and waits until all of it is done that can be done live.
    pub async fn live(&mut self, change: impl FnOnce(&mut Model)) -> Status {
        self.send(change);
        self.rig.live().await
    }
}

/// The name that the certificate of [`listening`] is for.
pub const CERTIFIED: &str = "site.test";

/// A model with an HTTP and an HTTPS listener on the table `t`, and the certificate of the latter.
pub fn listening() -> (Model, String) {
    let mut model = empty();
    let protocol = Protocol::Http { table: "t".into(), https_port: Some(8443) };
    model.listeners.insert("http".into(), Listener { protocol, public_port: 80, pod_port: 8080, proxy_protocol: false });
    let protocol = Protocol::Https { table: "t".into(), certificates: "https".into() };
    model.listeners.insert("https".into(), Listener { protocol, public_port: 8443, pod_port: 8443, proxy_protocol: false });
    let pem = pem(CERTIFIED);
    certificate(&mut model, "site", &pem, &[CERTIFIED]);
    (model, pem)
}

/// Serves `pem` for `names` on the HTTPS listener.
pub fn certificate(model: &mut Model, name: &str, pem: &str, names: &[&str]) {
    let id = CertificateId(format!("shop_{name}").into());
    let lines: Vec<&str> = pem.lines().filter(|line| !line.is_empty()).collect();
    let certificate = Certificate { pem: PrivateBytes::new((lines.join("\n") + "\n").into_bytes()), sources: Arc::new([source()]) };
    model.certificates.insert(id.clone(), certificate);
    let list = model.certificate_lists.entry("https".into()).or_default();
    list.entries.insert(id, names.iter().map(|name| Box::from(*name)).collect());
}

/// Replaces the endpoints of a service and leaves its policy as it is.
pub fn serve(model: &mut Model, service: &str, addresses: &[SocketAddr]) {
    let policy = model.backends.get(&crate::models::id(service)).map(|backend| Policy::clone(&backend.policy));
    backend(model, service, addresses, policy.unwrap_or_default());
}

/// Everything of `host_name` goes to `service`.
pub fn all(model: &mut Model, host_name: &str, service: &str) {
    host(model, name(host_name), vec![route(prefix("/"), to(service))]);
}

/// The same, but what comes by plain HTTP is sent to HTTPS.
pub fn all_by_https(model: &mut Model, host_name: &str, service: &str) {
    host(model, name(host_name), vec![Route { https_redirect: Some(308), ..route(prefix("/"), to(service)) }]);
}

/// A route for requests that have the header `x-kind` with this value.
pub fn of_kind(kind: &str, target: Target) -> Route {
    let conditions = Conditions { headers: vec![("x-kind".into(), ValueMatch::Exact(kind.into()))], ..Conditions::default() };
    Route { conditions, ..route(prefix("/"), target) }
}

/// A route for requests with this method.
pub fn of_method(method: &str, target: Target) -> Route {
    let conditions = Conditions { method: Some(method.into()), ..Conditions::default() };
    Route { conditions, ..route(prefix("/"), target) }
}

/// What is asked: method, host, and the kind that conditions look at.
pub type Question = (&'static str, &'static str, &'static str);

/// Who answers: the name of an origin, or a status code.
pub fn ask(http: SocketAddr, (method, host, kind): Question) -> String {
    let request = format!("{method} / HTTP/1.1\r\nHost: {host}\r\nX-Kind: {kind}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    let answer = running::ask(http, &request);
    match (running::status(&answer), answer.split_once("\r\n\r\n")) {
        (200, Some((_, body))) => body.to_owned(),
        (0, _) => "lost".to_owned(),
        (code, _) => code.to_string(),
    }
}

/// Clients that ask all the time.
pub struct Watch {
    stop: Arc<AtomicBool>,
    clients: Vec<(Question, tokio::task::JoinHandle<BTreeSet<String>>)>,
}

impl Watch {
    pub fn start(site: &Site, questions: &[Question]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let client = |question: &Question| {
            let (question, http, stop) = (*question, site.rig.http, stop.clone());
            let asking = move || {
                let mut seen = BTreeSet::new();
                while !stop.load(Ordering::Relaxed) {
                    seen.insert(ask(http, question));
                }
                seen
            };
            (question, tokio::task::spawn_blocking(asking))
        };
        let clients = questions.iter().map(client).collect();
        Self { stop, clients }
    }

    /// Nobody but `allowed` has ever answered.
    pub async fn saw_only(mut self, allowed: &[&str]) {
        self.stop.store(true, Ordering::Relaxed);
        for (question, client) in std::mem::take(&mut self.clients) {
            let seen = client.await.unwrap();
            assert!(seen.iter().all(|answer| allowed.contains(&answer.as_str())), "{question:?}: {seen:?}");
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
