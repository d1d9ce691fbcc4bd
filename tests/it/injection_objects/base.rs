//! Objects that between them fill every text field that is read, and the places in them where texts stand.

use crate::running::self_signed;
use serde_json::Value;
use std::fmt::Write as _;

/// What stands for a harmless text: comparisons look past it.
pub const HARMLESS: &str = "bnign";

const OBJECTS: &str = "
apiVersion: haproxy-fleet.dev/v1alpha1
kind: IngressDeployment
metadata: {namespace: infra, name: edge, creationTimestamp: '2020-01-01T00:00:00Z'}
spec:
  ingressClassName: edge
  zones: [{name: a}, {name: b}]
  defaultBackend: {service: {name: fallback, port: {name: http}}}
  backendRef: {name: wide}
  tls: {defaultCertificateRef: {name: cert}, clientTLS: {policy: Optional, caRef: {name: clients}}}
  http:
    headers:
      uniqueId: {name: X-Id}
      request: [{name: X-Fleet, type: Set, value: edge}, {name: X-Drop, type: Delete}]
      response: [{name: X-Frame-Options, type: Set, value: DENY}, {name: X-Gone, type: Delete}]
    errorPagesRef: {name: pages}
    compression: {mimeTypes: [text/html]}
  logging:
    access:
      destination: Syslog
      syslog: {address: 192.0.2.53, facility: local1}
      format: line
      captures:
        requestHeaders: [{name: X-In, maxLength: 8}]
        responseHeaders: [{name: X-Out, maxLength: 8}]
        cookies: [{name: session, maxLength: 8}]
---
apiVersion: v1
kind: ConfigMap
metadata: {namespace: infra, name: pages}
data: {503.html: sorry, 404.json: '{}'}
---
apiVersion: v1
kind: ConfigMap
metadata: {namespace: infra, name: clients}
data: {ca.crt: CERTIFICATE}
---
apiVersion: haproxy-fleet.dev/v1alpha1
kind: IngressDeployment
metadata: {namespace: infra, name: other, creationTimestamp: '2020-01-01T00:00:00Z'}
spec:
  ingressClassName: other
  configMapRef: {name: settings}
  routeAdmission: {namespaceOwnership: Strict}
  logging: {access: {}}
---
apiVersion: networking.k8s.io/v1
kind: IngressClass
metadata: {name: edge, annotations: {ingressclass.kubernetes.io/is-default-class: 'true'}}
spec: {controller: haproxy-fleet.dev/ingress}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {team: shop}}
---
apiVersion: v1
kind: ConfigMap
metadata: {namespace: infra, name: settings}
data: {cr-backend: wide}
---
apiVersion: v1
kind: ConfigMap
metadata: {namespace: shop, name: ca}
data: {ca.crt: CERTIFICATE}
---
apiVersion: v1
kind: Secret
metadata: {namespace: shop, name: ca}
stringData: {ca.crt: CERTIFICATE}
---
apiVersion: v1
kind: Secret
metadata: {namespace: shop, name: cert}
type: kubernetes.io/tls
stringData: {tls.crt: CERTIFICATE, tls.key: KEY}
---
apiVersion: v1
kind: Secret
metadata: {namespace: infra, name: cert}
type: kubernetes.io/tls
stringData: {tls.crt: CERTIFICATE, tls.key: KEY}
---
apiVersion: haproxy-fleet.dev/v1alpha1
kind: Backend
metadata: {namespace: infra, name: wide}
spec:
  retry_on: conn-failure 503
  forwardfor: {enabled: enabled, header: X-Client, except: 10.0.0.0/8}
  http_connection_mode: http-keep-alive
---
apiVersion: haproxy-fleet.dev/v1alpha1
kind: Backend
metadata: {namespace: shop, name: sticky}
spec:
  balance: {algorithm: hdr, hdr_name: X-User, hdr_use_domain_only: true}
  hash_type: {method: consistent, function: crc32, modifier: avalanche}
  cookie:
    name: SRV
    type: insert
    dynamic: true
    indirect: true
    maxidle: 60
    domain: [{value: .shop.test}]
    attr: [{value: SameSite=Lax}]
  dynamic_cookie_key: salt
  redispatch: {enabled: enabled, interval: 2}
  abortonclose: enabled
---
apiVersion: haproxy-fleet.dev/v1alpha1
kind: Backend
metadata: {namespace: shop, name: checked}
spec:
  balance: {algorithm: url_param, url_param: sid}
  adv_check: httpchk
  httpchk_params: {method: GET, uri: /health, version: HTTP/1.1, host: health.test}
  http_check_list:
  - {type: send, method: GET, uri: /live, version: HTTP/1.1, headers: [{name: Host, fmt: live.test}]}
  - {type: expect, match: string, pattern: fine}
  default_server: {check: enabled, ssl: enabled, verify: required, ssl_cafile: configmap/ca, sni: in.test, alpn: 'h2,http/1.1', send-proxy-v2: enabled}
---
apiVersion: haproxy-fleet.dev/v1alpha1
kind: Backend
metadata: {namespace: shop, name: rated}
spec:
  balance: {algorithm: rdp-cookie, rdp_cookie_name: msts}
  adv_check: httpchk
  http_check_list: [{type: expect, match: rstatus, pattern: '^2'}]
  default_server: {ssl: enabled, verify: required, ssl_cafile: secret/ca, sni: str(in.test)}
---
apiVersion: ingress.v3.haproxy.org/v3
kind: Backend
metadata: {namespace: shop, name: foreign}
spec:
  adv_check: httpchk
  httpchk_params: {uri: /old}
  http_check_list: [{type: expect, match: status, pattern: 200-299}]
---
apiVersion: v1
kind: Service
metadata:
  namespace: shop
  name: web
  labels: {app: web}
  annotations: {haproxy-fleet.dev/backend: sticky, haproxy-fleet.dev/response-header.X-Service: web}
spec:
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: web, protocol: TCP, appProtocol: http}]
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: api, annotations: {haproxy-fleet.dev/backend: checked}}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: pay, annotations: {haproxy-fleet.dev/backend: rated}}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: old, annotations: {haproxy-fleet.dev/backend: foreign}}
spec: {ports: [{name: http, port: 80, appProtocol: kubernetes.io/h2c}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: shop, name: far}
spec: {type: ExternalName, externalName: far.test, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {namespace: infra, name: fallback}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}]
endpoints:
- {addresses: [10.0.0.1], zone: a, nodeName: node-1, hints: {forZones: [{name: a}]}, targetRef: {kind: Pod, name: web-x}}
- {addresses: [10.0.0.2], zone: b}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {namespace: shop, name: api-1, labels: {kubernetes.io/service-name: api}}
addressType: IPv6
ports: [{name: http, port: 8080}]
endpoints: [{addresses: ['2001:db8::1']}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata:
  namespace: shop
  name: shop
  creationTimestamp: '2021-01-01T00:00:00Z'
  annotations:
    haproxy-fleet.dev/backend: sticky
    haproxy-fleet.dev/ssl-redirect: 'true'
    haproxy-fleet.dev/ssl-redirect-code: '301'
    haproxy-fleet.dev/rewrite-path-prefix: /v2
    haproxy-fleet.dev/request-header.X-Team: the shop
    haproxy-fleet.dev/request-header.Host: in.test
    haproxy-fleet.dev/response-header.Server: ''
    haproxy-fleet.dev/timeout-server: 90s
    haproxy-fleet.dev/timeout-connect: 250ms
    haproxy.org/check: 'true'
spec:
  ingressClassName: edge
  rules: [{host: shop.test, http: {paths: [{path: /app, pathType: Prefix, backend: {service: {name: web, port: {name: http}}}}]}}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: shop, name: routes, creationTimestamp: '2021-01-01T00:00:00Z'}
spec:
  ingressClassName: edge
  tls: [{hosts: [all.test, '*.all.test'], secretName: cert}]
  defaultBackend: {service: {name: old, port: {number: 80}}}
  rules:
  - host: all.test
    http: {paths: [{path: /exact, pathType: Exact, backend: {service: {name: old, port: {number: 80}}}}]}
  - host: '*.all.test'
    http:
      paths:
      - {path: /any, pathType: ImplementationSpecific, backend: {service: {name: old, port: {name: http}}}}
      - {path: /files, pathType: Prefix, backend: {resource: {apiGroup: k8s.io, kind: Bucket, name: files}}}
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: shop, name: moved, annotations: {haproxy-fleet.dev/redirect-to: 'https://new.test/x', haproxy-fleet.dev/ssl-redirect-code: '308'}}
spec:
  ingressClassName: edge
  rules: [{host: moved.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: old, port: {number: 80}}}}]}}]
---
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {namespace: shop, name: plain, annotations: {kubernetes.io/ingress.class: other}}
spec:
  rules:
  - {host: pay.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: pay, port: {number: 80}}}}]}}
  - {host: far.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: far, port: {number: 80}}}}]}}
  - {host: api.test, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: api, port: {number: 80}}}}]}}
";

/// The objects, all of them good.
pub fn objects() -> Vec<Value> {
    let mut objects: Vec<Value> = serde_saphyr::from_multiple(OBJECTS).unwrap();
    let pem = self_signed("shop.test");
    let (certificate, key) = pem.split_at(pem.find("-----BEGIN PRIVATE").unwrap());
    for object in &mut objects {
        for data in ["data", "stringData"] {
            for (_, text) in object.get_mut(data).and_then(Value::as_object_mut).into_iter().flatten() {
                match text.as_str() {
                    Some("CERTIFICATE") => *text = certificate.into(),
                    Some("KEY") => *text = key.into(),
                    _ => {}
                }
            }
        }
    }
    objects
}

/// Where a text stands: in which object, how to get there, and whether it is the key there that is meant.
#[derive(Clone, Debug)]
pub struct Place {
    pub object: usize,
    /// A JSON pointer.
    pub pointer: String,
    pub key: bool,
}

/// All places of texts. Keys count where anybody may choose them.
pub fn places(objects: &[Value]) -> Vec<Place> {
    let mut out = Vec::new();
    for (object, value) in objects.iter().enumerate() {
        find(object, value, String::new(), &mut out);
    }
    out
}

fn find(object: usize, value: &Value, pointer: String, out: &mut Vec<Place>) {
    match value {
        Value::String(_) => out.push(Place { object, pointer, key: false }),
        Value::Array(list) => list.iter().enumerate().for_each(|(index, value)| find(object, value, format!("{pointer}/{index}"), out)),
        Value::Object(map) => {
            let free = ["/annotations", "/labels", "/data", "/stringData", "/selector"].iter().any(|end| pointer.ends_with(end));
            for (key, value) in map {
                let inner = format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"));
                if free {
                    out.push(Place { object, pointer: inner.clone(), key: true });
                }
                find(object, value, inner, out);
            }
        }
        _ => {}
    }
}

/// How a text comes into its place.
#[derive(Clone, Copy, Debug)]
pub enum Way {
    Instead,
    Before,
    Inside,
    After,
}

/// Puts `text` into `place` of its object.
pub fn put(object: &mut Value, place: &Place, way: Way, text: &str) {
    let mixed = |old: &str| {
        let middle = (0..=old.len() / 2).rev().find(|at| old.is_char_boundary(*at)).unwrap();
        match way {
            Way::Instead => text.to_owned(),
            Way::Before => format!("{text}{old}"),
            Way::Inside => format!("{}{text}{}", &old[..middle], &old[middle..]),
            Way::After => format!("{old}{text}"),
        }
    };
    if place.key {
        let (parent, key) = place.pointer.rsplit_once('/').unwrap();
        let key = key.replace("~1", "/").replace("~0", "~");
        // An earlier text may have renamed it.
        let Some(map) = object.pointer_mut(parent).and_then(Value::as_object_mut) else { return };
        let Some(value) = map.remove(&key) else { return };
        map.insert(mixed(&key), value);
    } else if let Some(value) = object.pointer_mut(&place.pointer) {
        *value = mixed(value.as_str().unwrap_or_default()).into();
    }
}

/// A YAML document that means `value`, whatever is in its texts.
pub fn document(value: &Value) -> String {
    let mut out = "---\n".to_owned();
    write(&mut out, value);
    out.push('\n');
    out
}

fn write(out: &mut String, value: &Value) {
    match value {
        Value::String(text) => quote(out, text),
        Value::Array(list) => {
            out.push('[');
            for item in list {
                write(out, item);
                out.push_str(", ");
            }
            out.push(']');
        }
        Value::Object(map) => {
            out.push('{');
            for (key, value) in map {
                // A long key has to say that it is one.
                out.push_str(if key.len() > 100 { "? " } else { "" });
                quote(out, key);
                out.push_str(": ");
                write(out, value);
                out.push_str(", ");
            }
            out.push('}');
        }
        other => write!(out, "{other}").unwrap(),
    }
}

fn quote(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => out.extend(['\\', character]),
            ' '..='~' => out.push(character),
            _ => write!(out, "\\U{:08x}", u32::from(character)).unwrap(),
        }
    }
    out.push('"');
}
