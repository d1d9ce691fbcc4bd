//! Documentation that is printed from the code it describes. `BLESS=1` rewrites it.

use haproxy_fleet::api::crds;
use haproxy_fleet::haproxy::shape::{Part, table};
use haproxy_fleet::telemetry::{Metrics, OperatorMetrics};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{JSONSchemaProps, JSONSchemaPropsOrArray};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

fn check(name: &str, text: &str) {
    check_file(&format!("docs/{name}"), text);
}

/// Holds the file `name` of the repository to `text`.
fn check_file(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, text).unwrap();
    }
    let known = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(known == text, "{name} does not say what the code does; `BLESS=1 cargo test --test it docs` rewrites it");
}

#[test]
fn the_page_on_policies_prints_the_table_that_splits_them() {
    let word = |part: Part| match part {
        Part::Shape => "shape",
        Part::Value => "value",
        Part::Server => "server",
        Part::Private => "private",
        Part::Refused => "refused",
    };
    let mut text = "# What a change of a policy costs\n\n\
        A policy is how a service is reached: what native annotations and `Backend` objects say, merged field by field\n\
        (Service over Ingress over fleet).\n\n\
        - **value**: an entry of a map. Changing it is live.\n\
        - **server**: keywords of each server. Changing it is live: new servers are added, the old ones drained.\n\
        - **shape**: part of a named `defaults` section that any number of backends share. Taking a shape that is in use is\n  \
        live on HAProxy 3.4; a new shape is one reload, coalesced with others. A namespace may have 50 of them.\n\
        - **private**: the backend is written in full, and changing it is a reload.\n\
        - **refused**: known, not supported; a finding says so.\n\n\
        | field | since 3.4 | on 3.2 | becomes |\n|---|---|---|---|\n"
        .to_owned();
    for row in table() {
        writeln!(text, "| `{}` | {} | {} | {} |", row.field, word(row.since_3_4), word(row.before), row.directives).unwrap();
    }
    check("policies.md", &text);
}

#[test]
fn the_page_on_metrics_prints_what_is_registered() {
    let mut metrics = Metrics::default();
    let both = metrics.described().len();
    OperatorMetrics::register(&mut metrics);
    let mut text = "# Metrics\n\n\
        `/metrics` of `haproxy-fleet operator` (port 8080 of its pods) and of `haproxy-fleet local --admin ADDR`, in the OpenMetrics\n\
        text format. What HAProxy itself counts is served by the pods of a fleet.\n\n\
        Every replica of the operator tells what it sees: for a fleet take the greatest over replicas, as in\n\
        `max by (namespace, fleet) (haproxy_fleet_lag_seconds)`. `namespace` and `fleet` are those of an IngressDeployment, `resource` and\n\
        `kind` those of kinds of objects: no label holds what somebody may choose who may not create fleets.\n\n\
        - Steps (`haproxy_fleet_step_seconds`): `wait` is from the first event of a batch until it is taken, `translate` and `render` are\n  \
        the pipeline, `publish` makes it what agents are sent. `haproxy_fleet_pipeline_seconds` is all but `wait`.\n\
        - Reasons of reloads: `shape`, `section`, `file`, `backend`, `server`, `certificate` ask for one by what changed;\n  \
        `refused-live`, `connection` and `drift` are repairs, `start` is the first configuration, `several` more than one of these, `other` none.\n\
        - A watch is `up`, `starting` (it has not told all there is), `failing`, `forbidden` (401, 403) or `absent` (no such kind).\n\
        - Writes are `done`, in `conflict` (409), `forbidden` (401, 403), `refused` (other 4xx), `failed` (5xx or no answer), or `fenced`:\n  \
        held back, as the replica did not lead. Statuses are those with `resource=~\".*/status\"`.\n\n\
        | metric | type | labels | in `local` | what it says |\n|---|---|---|---|---|\n"
        .to_owned();
    for (number, metric) in metrics.described().iter().enumerate() {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let local = if number < both { "yes" } else { "" };
        writeln!(text, "| `{}` | {} | {} | {local} | {} |", metric.name, metric.kind, labels.join(", "), metric.help).unwrap();
    }
    check("metrics.md", &text);
}

#[test]
fn the_page_on_custom_resources_prints_their_schemas() {
    let mut text = "# Custom resources\n\n\
        Printed from the schemas that `haproxy-fleet crds` writes. Fields that are not listed are refused by name or, where\n\
        they exist nowhere, told as unknown.\n"
        .to_owned();
    for definition in crds() {
        let names = &definition.spec.names;
        for version in &definition.spec.versions {
            writeln!(text, "\n## {} (`{}/{}`)\n", names.kind, definition.spec.group, version.name).unwrap();
            let root = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref()).unwrap();
            let properties = root.properties.as_ref().unwrap();
            writeln!(text, "{}\n", sentence(root)).unwrap();
            for part in ["spec", "status"] {
                let Some(schema) = properties.get(part) else { continue };
                writeln!(text, "### `{part}`\n\n| field | type | default | meaning |\n|---|---|---|---|").unwrap();
                rows(&mut text, "", schema);
                rules(&mut text, schema);
                text.push('\n');
            }
        }
    }
    check("crds.md", &format!("{}\n", text.trim_end()));
}

fn sentence(schema: &JSONSchemaProps) -> String {
    schema.description.as_deref().unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

/// Fields that Kubernetes' own types stand in: `kubectl explain` says what is in them.
const OF_KUBERNETES: [&str; 4] = ["affinity", "tolerations", "autoscaling.metrics", "autoscaling.behavior"];

fn rows(text: &mut String, prefix: &str, schema: &JSONSchemaProps) {
    for (name, field) in schema.properties.iter().flatten() {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        let (kind, inner) = kind(field);
        let inner = inner.filter(|_| !OF_KUBERNETES.contains(&path.as_str()));
        let required = schema.required.iter().flatten().any(|required| required == name);
        let default = match &field.default {
            Some(value) => format!("`{}`", value.0),
            None if required => "required".to_owned(),
            None => String::new(),
        };
        writeln!(text, "| `{path}` | {kind} | {default} | {} |", sentence(field)).unwrap();
        if let Some(inner) = inner {
            rows(text, &if kind.starts_with("list") { format!("{path}[]") } else { path }, inner);
        }
    }
}

fn kind(field: &JSONSchemaProps) -> (String, Option<&JSONSchemaProps>) {
    if let Some(JSONSchemaPropsOrArray::Schema(item)) = &field.items {
        let (of, _) = kind(item);
        return (format!("list of {of}"), Some(item));
    }
    if let Some(values) = &field.enum_ {
        let values = values.iter().filter(|value| !value.0.is_null());
        let values: Vec<String> = values.map(|value| format!("`{}`", value.0)).collect();
        return (values.join(", "), None);
    }
    let either = field.x_kubernetes_int_or_string == Some(true);
    let name = if either { "integer or string" } else { field.type_.as_deref().unwrap_or("any") };
    let range = match (field.minimum, field.maximum) {
        (Some(least), Some(most)) => format!(" {least} to {most}"),
        _ => String::new(),
    };
    (format!("{name}{range}"), Some(field).filter(|field| field.properties.is_some()))
}

fn rules(text: &mut String, schema: &JSONSchemaProps) {
    let mut messages = Vec::new();
    collect(&mut messages, "", schema);
    if !messages.is_empty() {
        text.push_str("\nRules:\n\n");
    }
    for message in messages {
        writeln!(text, "- {message}").unwrap();
    }
}

fn collect(messages: &mut Vec<String>, path: &str, schema: &JSONSchemaProps) {
    let own = schema.x_kubernetes_validations.iter().flatten().filter_map(|rule| rule.message.as_deref());
    messages.extend(own.map(|message| if path.is_empty() { message.to_owned() } else { format!("`{path}`: {message}") }));
    for (name, field) in schema.properties.iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        collect(messages, &path, field);
        if let Some(JSONSchemaPropsOrArray::Schema(item)) = &field.items {
            collect(messages, &format!("{path}[]"), item);
        }
    }
}

/// `examples/` with `edits` (file, what stands there, what is written in its place), in the directory `name` of `home`.
fn edited(home: &Path, name: &str, edits: &[(&str, &str, &str)]) {
    let directory = home.join(name);
    std::fs::create_dir(&directory).unwrap();
    for entry in std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")).unwrap().flatten() {
        let mut text = std::fs::read_to_string(entry.path()).unwrap();
        for (_, before, after) in edits.iter().filter(|(file, ..)| entry.file_name() == *file) {
            assert!(text.contains(before), "{before:?} is not in {}", entry.path().display());
            text = text.replacen(before, after, 1);
        }
        std::fs::write(directory.join(entry.file_name()), text).unwrap();
    }
}

fn transcript(home: &Path, arguments: &str) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_haproxy-fleet"));
    let output = command.args(arguments.split(' ')).current_dir(home).output().unwrap();
    let (said, status) = (String::from_utf8(output.stdout).unwrap(), output.status.code().unwrap());
    format!("```\n$ haproxy-fleet {arguments}; echo \"exit status $?\"\n{said}exit status {status}\n```\n")
}

#[test]
fn the_page_on_reviews_shows_what_lint_and_diff_say_of_mistakes_and_changes() {
    let home = tempfile::tempdir().unwrap();
    edited(home.path(), "examples", &[]);
    edited(
        home.path(),
        "mistakes",
        &[
            ("fleet.yaml", "replicas: 3", "replica: 3"),
            ("fleet.yaml", "name: defaults #", "name: default #"),
            (
                "shop.yaml",
                "name: cart\n                port:\n                  number: 80",
                "name: cart\n                port:\n                  name: web",
            ),
            ("shop.yaml", "hosts: [shop.localhost]", "hosts: [shop.localhost]\n      secretName: shop-tls"),
            ("shop.yaml", "algorithm: roundrobin", "algorithm: static-rr"),
            ("api.yaml", "haproxy-fleet.dev/timeout-server: 10s", "haproxy-fleet.dev/timeout-sever: 10s"),
            ("api.yaml", "host: old-api.localhost", "host: \"old api\""),
        ],
    );
    edited(
        home.path(),
        "changed",
        &[
            ("api.yaml", "timeout-server: 10s", "timeout-server: 20s"),
            ("api.yaml", "X-Api-Version: \"1\"", "X-Api-Version: \"2\""),
            ("shop.yaml", "nocache: true", "nocache: true\n    httponly: true"),
        ],
    );
    let text = format!(
        "# Reviews\n\n\
        `lint` and `diff` run the pipeline of the operator over files: in a terminal, in an editor, in the checks of a\n\
        repository. `-o json` gives both for machines.\n\n\
        ## What is wrong\n\n\
        The examples with seven mistakes in them. Each is told where it stands, with what happens meanwhile and what to do;\n\
        everything else is served.\n\n{}\n\
        ## What a change does\n\n\
        Without mistakes: a longer time-out and another header value are values, which are live; one more option of a cookie\n\
        is another shape, which one reload brings.\n\n{}\n\
        `--haproxy-version 3.2` says the same for fleets on the older line.\n",
        transcript(home.path(), "lint -f mistakes"),
        transcript(home.path(), "diff examples changed"),
    );
    check("reviews.md", &text);
}

#[test]
fn the_roles_in_config_are_those_of_the_table() {
    let mut text = String::from("# Printed from the table in src/operator/rbac.rs; `BLESS=1 cargo test --test it docs` rewrites it.\n");
    for role in haproxy_fleet::operator::rbac::roles() {
        text.push_str("---\n");
        text.push_str(&serde_saphyr::to_string(&role).unwrap());
    }
    check_file("config/rbac/roles.yaml", &text);
}
