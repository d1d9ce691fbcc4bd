//! A diagnostic is shown where its cause is.

use super::*;

fn place(fixture: &Fixture, field: &str) -> (u32, u32, usize, String) {
    let object = ObjectRef::new(Kind::Ingress, "shop", "web");
    let found = fixture.files.locate(&object, field).unwrap();
    (found.line, found.column, found.width, found.text)
}

#[test]
fn a_field_is_found_by_its_path() {
    let mut fixture = Fixture::new(&[("a.yaml", &format!("# first\n{}---\n{INGRESS}", config_map("a", "")))]);
    fixture.load();
    let (line, column, width, text) = place(&fixture, "spec.rules[0].http.paths[1].path");
    assert_eq!((column, width, text.as_str()), (15, 6, "      - path: /named"));
    assert_eq!(line, 8 + 20);
    let (_, _, width, text) = place(&fixture, "metadata.annotations[\"haproxy-fleet.dev/ssl-redirect\"]");
    assert_eq!((width, text.trim()), (7, "haproxy-fleet.dev/ssl-redirect: \"false\""));
}

#[test]
fn of_a_missing_field_the_nearest_that_is_there_is_shown() {
    let mut fixture = Fixture::new(&[("a.yaml", INGRESS)]);
    fixture.load();
    let (_, column, width, text) = place(&fixture, "spec.rules[0].http.paths[7].path");
    assert_eq!((column, width, text.as_str()), (7, 5, "      paths:"));
    assert_eq!(place(&fixture, "nothing.like.this").0, 1);
}

#[test]
fn items_of_lists_are_found() {
    let one = |name: &str| format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"{name}"}},"data":{{"k":"v"}}}}"#);
    let text = format!("{{\"apiVersion\":\"v1\",\"kind\":\"List\",\"items\":[\n{},\n{}]}}", one("a"), one("b"));
    let mut fixture = Fixture::new(&[("a.json", &text)]);
    fixture.load();
    let found = fixture.files.locate(&ObjectRef::new(Kind::ConfigMap, "default", "b"), "data.k").unwrap();
    assert_eq!((found.line, found.width), (3, 3));
}

#[test]
fn an_object_in_no_file_has_no_place() {
    let mut fixture = Fixture::new(&[("a.yaml", INGRESS)]);
    fixture.load();
    assert_eq!(fixture.files.locate(&ObjectRef::new(Kind::Service, "shop", "web"), ""), None);
}

#[test]
fn content_of_a_secret_is_found_in_string_data_and_its_value_is_not_shown() {
    let text = "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData:\n  tls.key: very private\n";
    let mut fixture = Fixture::new(&[("a.yaml", text)]);
    fixture.load();
    let found = fixture.files.locate(&ObjectRef::new(Kind::Secret, "default", "a"), "data[\"tls.key\"]").unwrap();
    assert_eq!((found.line, found.text.contains("private")), (5, false), "{found:?}");
}
