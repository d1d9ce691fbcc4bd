use super::{Case, ingress, secret, service};
use crate::report::{Kind, codes};
use crate::translate::CERTIFICATES;

fn with_tls(name: &str, host: &str, tls: &str) -> String {
    ingress(name, host, "a").replace("  rules:", &format!("  tls: {tls}\n  rules:"))
}

/// Names by certificate.
fn served(case: &Case) -> Vec<(String, Vec<String>)> {
    let list = &case.translator.model().certificate_lists[CERTIFICATES];
    let names = |names: &std::collections::BTreeSet<Box<str>>| names.iter().map(ToString::to_string).collect();
    list.entries.iter().map(|(id, all)| (id.0.to_string(), names(all))).collect()
}

fn entry(id: &str, names: &[&str]) -> (String, Vec<String>) {
    (id.to_owned(), names.iter().map(ToString::to_string).collect())
}

#[test]
fn a_certificate_is_served_for_the_hosts_under_tls_and_http_redirects() {
    let case = Case::edge(
        &(service("a") + &secret("cert", "foo.com") + &with_tls("web", "foo.com", "[{hosts: [Foo.com, '*.foo.com'], secretName: cert}]")),
    );
    assert_eq!(served(&case), [entry("shop_cert", &["*.foo.com", "foo.com"])]);
    assert_eq!(case.translator.model().certificates.len(), 1);
    assert_eq!(case.route("foo.com", "/").https_redirect, Some(308));
    case.silent();
}

#[test]
fn without_hosts_under_tls_those_of_the_rules_are_meant() {
    let case = Case::edge(&(service("a") + &secret("cert", "foo.com") + &with_tls("web", "foo.com", "[{secretName: cert}]")));
    assert_eq!(served(&case), [entry("shop_cert", &["foo.com"])]);
}

#[test]
fn a_wildcard_under_tls_covers_the_hosts_of_its_rules() {
    let case = Case::edge(
        &(service("a") + &secret("cert", "*.foo.com") + &with_tls("web", "a.foo.com", "[{hosts: ['*.foo.com'], secretName: cert}]")),
    );
    assert_eq!(case.route("a.foo.com", "/").https_redirect, Some(308));
}

#[test]
fn the_redirect_can_be_switched_off_forced_and_given_a_code() {
    let annotated = |yaml: &str, keys: &str| yaml.replace("{name: web}", &format!("{{name: web, annotations: {{{keys}}}}}"));
    let tls = with_tls("web", "foo.com", "[{hosts: [foo.com]}]");
    let redirect = |yaml: &str| Case::edge(&(service("a") + yaml)).route("foo.com", "/").https_redirect;
    assert_eq!(redirect(&tls), Some(308));
    assert_eq!(redirect(&annotated(&tls, "haproxy-fleet.dev/ssl-redirect: 'false'")), None);
    assert_eq!(redirect(&annotated(&tls, "haproxy-fleet.dev/ssl-redirect-code: '301'")), Some(301));
    assert_eq!(redirect(&ingress("web", "foo.com", "a")), None);
    assert_eq!(redirect(&annotated(&ingress("web", "foo.com", "a"), "haproxy-fleet.dev/ssl-redirect: 'true'")), Some(308));
}

#[test]
fn a_second_certificate_of_the_same_key_type_is_told() {
    let both = with_tls("web", "foo.com", "[{hosts: [foo.com], secretName: one}, {hosts: [foo.com], secretName: two}]");
    let case = Case::edge(&(service("a") + &secret("one", "foo.com") + &secret("two", "foo.com") + &both));
    assert_eq!(served(&case), [entry("shop_one", &["foo.com"])]);
    assert_eq!(case.told(), [(codes::CONFLICT, "Ingress shop/web".to_owned(), "spec.tls[1].hosts[0]")]);
}

#[test]
fn a_certificate_of_another_namespace_is_not_served_for_a_host_it_does_not_own() {
    let other = |yaml: String| yaml.replace("metadata: {name", "metadata: {namespace: zoo, name");
    let yaml = service("a")
        + &ingress("web", "foo.com", "a")
        + &other(secret("cert", "foo.com"))
        + &other(with_tls("web", "foo.com", "[{hosts: [foo.com], secretName: cert}]"));
    let case = Case::edge(&(yaml + &other(service("a"))));
    assert_eq!(served(&case), []);
    assert!(case.translator.model().certificates.is_empty());
    assert_eq!(case.told().iter().filter(|(code, ..)| *code == codes::CONFLICT).count(), 2);
}

#[test]
fn a_missing_secret_is_told_and_used_once_it_appears() {
    let mut case = Case::edge(&(service("a") + &with_tls("web", "foo.com", "[{hosts: [foo.com], secretName: cert}]")));
    assert_eq!(case.told(), [(codes::NOT_FOUND, "Ingress shop/web".to_owned(), "spec.tls[0].secretName")]);
    let touched = case.set(&secret("cert", "foo.com"));
    assert_eq!((touched.certificates.len(), touched.list_entries.len(), touched.hosts.len()), (1, 1, 0));
    case.silent();
    let renewed = case.set(&secret("cert", "foo.com"));
    assert_eq!(crate::model::Touched { certificates: renewed.certificates.clone(), ..Default::default() }, renewed);
    assert_eq!(renewed.certificates.len(), 1);
    case.remove(Kind::Secret, "cert");
    assert_eq!(served(&case), []);
    assert!(case.translator.model().certificates.is_empty());
}

#[test]
fn half_a_key_is_one_diagnostic_on_the_secret() {
    let whole = secret("cert", "foo.com");
    let half: String = whole.lines().take(whole.lines().count() - 3).map(|line| format!("{line}\n")).collect();
    let tls = with_tls("web", "foo.com", "[{hosts: [foo.com], secretName: cert}]");
    let mut case = Case::edge(&(service("a") + &half + "---\n" + &tls + &with_tls("web2", "bar.com", "[{secretName: cert}]")));
    assert_eq!(case.told(), [(codes::INVALID_CERTIFICATE, "Secret shop/cert".to_owned(), "data[\"tls.key\"]")]);
    assert_eq!(served(&case), []);
    case.set(&whole);
    case.silent();
    assert_eq!(served(&case).len(), 1);
}

#[test]
fn a_secret_of_another_namespace_cannot_be_named() {
    let case = Case::edge(&(service("a") + &with_tls("web", "foo.com", "[{hosts: [foo.com], secretName: infra/cert}]")));
    assert_eq!(case.told(), [(codes::REF_NOT_PERMITTED, "Ingress shop/web".to_owned(), "spec.tls[0].secretName")]);
}

#[test]
fn the_fleets_default_certificate_is_of_its_own_namespace() {
    let fleet = "kind: IngressDeployment\nmetadata: {namespace: infra, name: edge}\nspec: {ingressClassName: edge, tls: {defaultCertificateRef: {name: cert}}}\n---\n";
    let mut case = Case::of(fleet);
    assert_eq!(case.told(), [(codes::NOT_FOUND, "IngressDeployment infra/edge".to_owned(), "spec.tls.defaultCertificateRef.name")]);
    let mine = || secret("cert", "x.com").replace("{name: cert}", "{namespace: infra, name: cert}");
    let touched = case.set(&mine());
    assert!(touched.default_certificate);
    assert_eq!(case.translator.model().default_certificate.as_ref().unwrap().0.as_ref(), "infra_cert");
    assert_eq!(case.translator.model().certificates.len(), 1);
    let touched = case.set(&mine());
    assert!(!touched.default_certificate && touched.certificates.len() == 1);
    case.silent();
}
