#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]

use super::*;
use crate::api::{AddressType, PathType, PortRef};
use crate::report::Severity;
use std::fs;
use tempfile::TempDir;

mod faults;
mod positions;
mod watching;

/// A directory of manifests and what is read from it.
pub(super) struct Fixture {
    pub(super) dir: TempDir,
    pub(super) files: Files,
}

impl Fixture {
    pub(super) fn new(files: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let inputs = vec![dir.path().to_owned()];
        let this = Self { dir, files: Files::new(inputs, Limits::default()) };
        for (name, text) in files {
            this.write(name, text);
        }
        this
    }

    pub(super) fn write(&self, name: &str, text: &str) {
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(super) fn load(&mut self) -> Delta {
        self.files.load().unwrap()
    }

    /// What is loaded at last, as text.
    pub(super) fn set(&mut self) -> Vec<String> {
        names(&self.load())
    }

    pub(super) fn only_diagnostic(&self) -> Diagnostic {
        let all = self.files.diagnostics();
        assert_eq!(all.len(), 1, "{all:#?}");
        all.into_iter().next().unwrap()
    }
}

pub(super) fn names(delta: &Delta) -> Vec<String> {
    delta.set.iter().map(|object| object.reference().to_string()).collect()
}

pub(super) fn config_map(name: &str, value: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\ndata:\n  key: \"{value}\"\n")
}

const INGRESS: &str = r#"apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  name: web
  namespace: shop
  annotations:
    haproxy-fleet.dev/ssl-redirect: "false"
spec:
  ingressClassName: public
  tls:
  - hosts: [a.example]
    secretName: cert
  rules:
  - host: a.example
    http:
      paths:
      - path: /
        pathType: Prefix
        backend: {service: {name: web, port: {number: 80}}}
      - path: /named
        pathType: Exact
        backend: {service: {name: web, port: {name: http}}}
"#;

#[test]
fn every_kind_that_is_needed_is_read() {
    let mut fixture = Fixture::new(&[(
        "all.yaml",
        &format!(
            "{INGRESS}---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {{name: public, annotations: {{ingressclass.kubernetes.io/is-default-class: \"true\"}}}}
spec: {{controller: haproxy-fleet.dev/ingress}}
---
apiVersion: v1
kind: Service
metadata: {{name: web, namespace: shop}}
spec: {{ports: [{{name: http, port: 80, targetPort: web}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: web-1, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}
addressType: IPv4
ports: [{{name: http, port: 8080}}]
endpoints:
- addresses: [10.0.0.1]
  conditions: {{ready: true}}
  zone: a
---
apiVersion: v1
kind: Secret
metadata: {{name: cert, namespace: shop}}
type: kubernetes.io/tls
data: {{tls.crt: YQ==}}
stringData: {{tls.key: b}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: settings, namespace: shop}}
data: {{cr-backend: shop/all}}
---
apiVersion: v1
kind: Namespace
metadata: {{name: shop}}
---
apiVersion: haproxy-fleet.dev/v1alpha1
kind: IngressDeployment
metadata: {{name: edge, namespace: shop}}
spec: {{ingressClassName: public}}
---
apiVersion: haproxy-fleet.dev/v1alpha1
kind: Backend
metadata: {{name: all, namespace: shop}}
spec: {{balance: {{algorithm: leastconn}}}}
"
        ),
    )]);
    let delta = fixture.load();
    assert_eq!(fixture.files.diagnostics(), []);
    assert_eq!(
        names(&delta),
        [
            "IngressDeployment shop/edge",
            "Backend shop/all",
            "Ingress shop/web",
            "IngressClass public",
            "Namespace shop",
            "Service shop/web",
            "EndpointSlice shop/web-1",
            "Secret shop/cert",
            "ConfigMap shop/settings",
        ]
    );
    for object in &delta.set {
        match object {
            Object::Ingress(ingress) => {
                assert_eq!(ingress.class_name(), Some("public"));
                assert_eq!(ingress.meta.annotations.get("haproxy-fleet.dev/ssl-redirect"), Some("false"));
                let paths = ingress.rules[0].paths.as_ref().unwrap();
                assert_eq!((paths.len(), &paths[1].path_type), (2, &PathType::Exact));
                assert_eq!(paths[1].backend.service.as_ref().unwrap().port, Some(PortRef::Name("http".into())));
                assert_eq!(ingress.tls[0].secret.as_deref(), Some("cert"));
            }
            Object::EndpointSlice(slice) => {
                assert_eq!((slice.service.as_deref(), slice.address_type), (Some("web"), AddressType::V4));
                assert_eq!(slice.endpoints[0].addresses[0].to_string(), "10.0.0.1");
                assert!(slice.endpoints[0].is_ready());
            }
            Object::Secret(secret) => {
                assert_eq!(secret.get("tls.crt").unwrap().expose(), b"a");
                assert_eq!(secret.get("tls.key").unwrap().expose(), b"b");
            }
            Object::IngressDeployment(fleet) => {
                assert_eq!((fleet.spec.total_replicas(), fleet.spec.ports.https), (2, 443));
            }
            Object::IngressClass(class) => assert!(class.is_default()),
            _ => {}
        }
    }
}

#[test]
fn lists_json_and_streams_of_json_are_read() {
    let one = |name: &str| format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}}}}"#);
    let list = format!("{{\n\t\"apiVersion\": \"v1\", \"kind\": \"List\",\n\t\"items\": [{}, {}]}}", one("a"), one("b"));
    let typed = "apiVersion: v1\nkind: ConfigMapList\nitems:\n- apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: e}\n";
    let mut fixture = Fixture::new(&[("list.json", &list), ("stream.json", &format!("{}\n{}", one("c"), one("d"))), ("typed.yml", typed)]);
    let expected = ["a", "b", "c", "d", "e"].map(|name| format!("ConfigMap default/{name}"));
    assert_eq!(fixture.set(), expected);
    assert_eq!(fixture.files.diagnostics(), []);
}

#[test]
fn directories_are_read_whole_and_hidden_or_other_files_are_not() {
    let mut fixture = Fixture::new(&[
        ("b/c/deep.yml", &config_map("deep", "")),
        ("top.yaml", &config_map("top", "")),
        (".hidden.yaml", &config_map("hidden", "")),
        (".git/x.yaml", &config_map("git", "")),
        ("notes.txt", "not: yaml: at: all"),
    ]);
    assert_eq!(fixture.set(), ["ConfigMap default/deep", "ConfigMap default/top"]);
    assert_eq!(fixture.files.diagnostics(), []);
}

#[test]
fn a_mounted_volume_is_read_once_and_followed_when_its_link_is_swapped() {
    let mut fixture = Fixture::new(&[("..1/a.yaml", &config_map("a", "old")), ("..2/a.yaml", &config_map("a", "new"))]);
    let path = fixture.dir.path().to_owned();
    std::os::unix::fs::symlink("..1", path.join("..data")).unwrap();
    std::os::unix::fs::symlink("..data/a.yaml", path.join("a.yaml")).unwrap();
    assert_eq!(fixture.set(), ["ConfigMap default/a"]);
    std::os::unix::fs::symlink("..2", path.join("..tmp")).unwrap();
    fs::rename(path.join("..tmp"), path.join("..data")).unwrap();
    let delta = fixture.load();
    let Object::ConfigMap(map) = &delta.set[0] else { panic!("{delta:?}") };
    assert_eq!(map.data.get("key"), Some("new"));
    assert_eq!(fixture.files.diagnostics(), []);
}

#[test]
fn standard_input_is_read_once() {
    let mut files = Files::new(vec!["-".into()], Limits::default());
    let text = config_map("a", "x");
    assert_eq!(names(&files.load_with(&mut text.as_bytes()).unwrap()), ["ConfigMap default/a"]);
    assert!(files.load_with(&mut "garbage".as_bytes()).unwrap().is_empty());
    let place = files.locate(&ObjectRef::new(Kind::ConfigMap, "default", "a"), "data.key").unwrap();
    assert_eq!((place.file.as_str(), place.line), ("<stdin>", 6));
}

#[test]
fn an_input_that_is_not_there_is_an_error_at_first_and_keeps_its_objects_later() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    let mut files = Files::new(vec![path.clone()], Limits::default());
    assert_eq!(files.load().unwrap_err().path, path);
    fs::write(&path, config_map("a", "x")).unwrap();
    assert_eq!(names(&files.load().unwrap()), ["ConfigMap default/a"]);
    fs::remove_file(&path).unwrap();
    assert!(files.load().unwrap().is_empty());
    assert_eq!(files.diagnostics()[0].code, codes::NOT_FOUND);
    fs::write(&path, config_map("a", "y")).unwrap();
    assert_eq!(names(&files.load().unwrap()), ["ConfigMap default/a"]);
    assert_eq!(files.diagnostics(), []);
}

#[test]
fn only_what_changed_is_told() {
    let mut fixture = Fixture::new(&[("a.yaml", &format!("{}---\n{}", config_map("a", "1"), config_map("b", "1")))]);
    assert_eq!(fixture.load().set.len(), 2);
    assert!(fixture.load().is_empty());
    fixture.write("a.yaml", &format!("{}---\n{}", config_map("a", "1"), config_map("b", "2")));
    assert_eq!(fixture.set(), ["ConfigMap default/b"]);
    fixture.write("a.yaml", &format!("# a comment\n{}---\n{}", config_map("a", "1"), config_map("b", "2")));
    assert!(fixture.load().is_empty());
}

#[test]
fn what_is_gone_from_a_file_or_with_it_is_removed() {
    let mut fixture =
        Fixture::new(&[("a.yaml", &format!("{}---\n{}", config_map("a", "1"), config_map("b", "1"))), ("c.yaml", &config_map("c", "1"))]);
    fixture.load();
    fixture.write("a.yaml", &config_map("a", "1"));
    fs::remove_file(fixture.dir.path().join("c.yaml")).unwrap();
    let delta = fixture.load();
    assert_eq!(delta.removed.iter().map(ToString::to_string).collect::<Vec<_>>(), ["ConfigMap default/b", "ConfigMap default/c"]);
}

#[test]
fn of_two_the_first_is_used_and_the_second_is_told_where_it_is() {
    let mut fixture = Fixture::new(&[("a.yaml", &config_map("x", "first")), ("b.yaml", &format!("\n{}", config_map("x", "second")))]);
    let delta = fixture.load();
    let [Object::ConfigMap(map)] = delta.set.as_slice() else { panic!("{delta:?}") };
    assert_eq!(map.data.get("key"), Some("first"));
    let diagnostic = fixture.only_diagnostic();
    assert_eq!(diagnostic.code, codes::DUPLICATE_OBJECT);
    assert!(diagnostic.message.contains("a.yaml:1") && diagnostic.message.contains("b.yaml:2"), "{}", diagnostic.message);
    assert!(fixture.files.locate_diagnostic(&diagnostic).unwrap().file.ends_with("b.yaml"));
    // When the first goes, the second takes its place.
    fs::remove_file(fixture.dir.path().join("a.yaml")).unwrap();
    let delta = fixture.load();
    let [Object::ConfigMap(map)] = delta.set.as_slice() else { panic!("{delta:?}") };
    assert_eq!((map.data.get("key"), delta.removed.len()), (Some("second"), 0));
    assert_eq!(fixture.files.diagnostics(), []);
}

#[test]
fn the_same_file_by_two_inputs_is_read_once() {
    let fixture = Fixture::new(&[("a.yaml", &config_map("a", ""))]);
    let mut files = Files::new(vec![fixture.dir.path().to_owned(), fixture.dir.path().join("a.yaml")], Limits::default());
    assert_eq!(files.load().unwrap().set.len(), 1);
    assert_eq!(files.diagnostics(), []);
}

#[test]
fn what_is_loaded_does_not_depend_on_the_order_of_files_and_documents() {
    use proptest::prelude::*;
    let documents: Vec<String> = (0..12).map(|at| if at == 5 { INGRESS.to_owned() } else { config_map(&format!("n{at}"), "x") }).collect();
    let expected = {
        let mut fixture = Fixture::new(&[("all.yaml", &documents.join("---\n"))]);
        fixture.load()
    };
    let shuffled = Just(documents).prop_shuffle().prop_flat_map(|documents| {
        let count = documents.len();
        (Just(documents), proptest::collection::vec(0..4_usize, count))
    });
    proptest!(ProptestConfig::with_cases(32), |((documents, homes) in shuffled)| {
        let fixture = Fixture::new(&[]);
        let mut texts = BTreeMap::new();
        for (document, home) in documents.iter().zip(homes) {
            let text: &mut String = texts.entry(format!("d{}/f{home}.yaml", home % 2)).or_default();
            text.push_str("---\n");
            text.push_str(document);
        }
        for (name, text) in &texts {
            fixture.write(name, text);
        }
        let mut files = Files::new(vec![fixture.dir.path().to_owned()], Limits::default());
        prop_assert_eq!(files.load().unwrap(), expected.clone());
        prop_assert!(files.diagnostics().is_empty());
    });
}

#[test]
#[ignore = "a measurement: cargo test --release -- --ignored --nocapture fifteen_thousand"]
fn fifteen_thousand_objects_load() {
    use std::fmt::Write;
    let mut kinds = [String::new(), String::new(), String::new()];
    for at in 0..5000 {
        let _ = write!(kinds[0], "---\n{}", INGRESS.replace("name: web", &format!("name: web-{at}")));
        let _ = write!(
            kinds[1],
            "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: web-{at}\n  namespace: shop\nspec:\n  ports:\n  - name: http\n    port: 80\n"
        );
        let _ = write!(
            kinds[2],
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: web-{at}\n  namespace: shop\n  labels:\n    kubernetes.io/service-name: web-{at}\naddressType: IPv4\nports:\n- name: http\n  port: 8080\nendpoints:\n"
        );
        for endpoint in 0..10 {
            let address = format!("10.{}.{}.{endpoint}", at / 250, at % 250);
            let _ = write!(
                kinds[2],
                "- addresses:\n  - {address}\n  conditions:\n    ready: true\n    serving: true\n    terminating: false\n  nodeName: node-{endpoint}\n  zone: zone-{}\n",
                endpoint % 3
            );
        }
    }
    let bytes: usize = kinds.iter().map(String::len).sum();
    let mut fixture = Fixture::new(&[("i.yaml", &kinds[0]), ("s.yaml", &kinds[1]), ("e.yaml", &kinds[2])]);
    let resident = || fs::read_to_string("/proc/self/status").unwrap().lines().find(|line| line.starts_with("RssAnon")).unwrap().to_owned();
    drop(kinds);
    let before = resident();
    let start = std::time::Instant::now();
    let delta = fixture.load();
    let cold = start.elapsed();
    let objects = delta.set.len();
    let mut world = crate::world::World::default();
    for object in delta.set {
        world.set(object);
    }
    let start = std::time::Instant::now();
    fixture.load();
    eprintln!(
        "{objects} objects, {bytes} bytes: {cold:?}, again {:?}; {before} then {}; {} diagnostics",
        start.elapsed(),
        resident(),
        fixture.files.diagnostics().len()
    );
    let start = std::time::Instant::now();
    let text = fs::read_to_string(fixture.dir.path().join("e.yaml")).unwrap();
    fixture.write("e.yaml", &text.replacen("10.3.3.3", "10.3.3.99", 1));
    let delta = fixture.load();
    eprintln!("one endpoint of a large file: {} object, {:?}", delta.set.len(), start.elapsed());
    let many = Fixture::new(&[]);
    for (at, document) in text.split("---\n").enumerate() {
        many.write(&format!("{at}.yaml"), document);
    }
    let mut files = Files::new(vec![many.dir.path().to_owned()], Limits::default());
    let start = std::time::Instant::now();
    let objects = files.load().unwrap().set.len();
    eprintln!("{objects} files: {:?}", start.elapsed());
    let start = std::time::Instant::now();
    files.load().unwrap();
    eprintln!("again: {:?}", start.elapsed());
}
