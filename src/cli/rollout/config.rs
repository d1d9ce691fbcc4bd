//! `config`: the HAProxy configuration that a fleet serves, of a revision that is kept in a cluster or as `local` says it.

use super::admin::Admin;
use super::cluster::Cluster;
use super::revisions::{Kept, find};
use super::{Verbs, Whose, block_on, choice};
use crate::admin::Refusal;
use crate::cli::report::{Style, printable};
use crate::cli::status::fetch;
use crate::cli::{Error, Exit, Output, files};
use crate::fleet::build::LABEL_FLEET;
use crate::haproxy::bundle::{Bundle, Digest};
use crate::operator::revisions::{NUMBER, read};
use crate::report::with_causes;
use crate::status::json::{Config, ConfigFile, Fleet};
use clap::Args;
use http::StatusCode;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::ListParams;
use std::net::SocketAddr;

pub(in crate::cli) const HELP: &str = "\
Without more: the configuration files that HAProxy reads, in their order, each below its name. Maps,
lists and error pages are files of their own: --list names them. Private keys are never shown. What
each pod adds by itself, such as 00-pod.cfg, is not among them.

In a cluster it is that of the revision that is served, or of another one that is kept. A revision
holds no endpoints and certificates, which follow the present: each backend shows one server at most,
as an example, and differences of servers are not told. It takes the permission to list Secrets in the
fleet's namespace. With --admin it is all that the replicas of `local` are given.

Examples:
  kubectl haproxy-fleet config edge -n ingress
  kubectl haproxy-fleet config edge -n ingress --diff 6
  haproxy-fleet config --admin 127.0.0.1:9901 --list
  haproxy-fleet config infra/edge --admin 127.0.0.1:9901 --file maps/ingress/routes.map

Exit status:
  0  it is shown; --diff: nothing differs
  1  --diff: something differs
  2  usage, or it cannot be shown";

/// `config`.
#[derive(Debug, Args)]
pub struct ConfigArguments {
    #[command(flatten)]
    whose: Whose,
    /// Of this revision
    ///
    /// [default: the one that is served]
    #[arg(long, value_name = "NUMBER", conflicts_with = "admin")]
    revision: Option<u64>,
    /// How it differs from this revision
    #[arg(long, value_name = "NUMBER", conflicts_with_all = ["admin", "list"])]
    diff: Option<u64>,
    /// Show this file only, as --list names it
    #[arg(long, value_name = "NAME", conflicts_with = "list")]
    file: Option<String>,
    /// Name the files with their sizes
    #[arg(long)]
    list: bool,
}

pub(in crate::cli) fn run(arguments: &ConfigArguments, out: &mut Output) -> Result<Exit, Error> {
    block_on(async {
        match arguments.whose.admin {
            Some(address) => of_local(arguments, address, out).await,
            None => of_cluster(&arguments.whose.cluster().await?, arguments, out).await,
        }
    })
}

async fn of_local(arguments: &ConfigArguments, address: SocketAddr, out: &mut Output) -> Result<Exit, Error> {
    let status = Admin { address }.status().await?;
    let fleet = choice::fleet(&status, arguments.whose.fleet.as_ref(), None)?;
    let Config { revision, generation, files } = ask(address, fleet).await?;
    let title = format!("# {}, revision {revision}, generation {generation}", id(fleet));
    show(arguments, &title, &files, out)
}

async fn of_cluster(cluster: &Cluster, arguments: &ConfigArguments, out: &mut Output) -> Result<Exit, Error> {
    let status = cluster.status().await?;
    let fleet = choice::fleet(&status, arguments.whose.fleet.as_ref(), None)?;
    let kept = cluster.revisions(fleet).await?;
    let number = chosen(fleet, arguments.revision, &kept)?;
    if let Some(other) = arguments.diff.map(|other| chosen(fleet, Some(other), &kept)).transpose()? {
        let (old, new) = (kept_bundle(cluster, fleet, &kept, other).await?, kept_bundle(cluster, fleet, &kept, number).await?);
        return compare(arguments, (other, &old), (number, &new), out);
    }
    let bundle = kept_bundle(cluster, fleet, &kept, number).await?;
    let title = format!("# {}, revision {number}: without certificates, and with one server at most of each backend", id(fleet));
    show(arguments, &title, &files::shown(&bundle), out)
}

fn id(fleet: &Fleet) -> String {
    format!("{}/{}", fleet.namespace, fleet.name)
}

/// What `local` gives the replicas of `fleet`.
async fn ask(address: SocketAddr, fleet: &Fleet) -> Result<Config, Error> {
    let (code, answer) = fetch::get(address, &format!("/fleets/{}/config", id(fleet))).await?;
    if let (StatusCode::OK, Ok(config)) = (code, serde_json::from_slice(&answer)) {
        return Ok(config);
    }
    Err(match serde_json::from_slice::<Refusal>(&answer) {
        Ok(Refusal { error, help, .. }) => Error::new(error, help),
        Err(_) => Error::new(
            format_args!("{address} shows no configuration: it answers with {code}"),
            "name the address of a `haproxy-fleet local --admin` of this version; for a cluster leave --admin out",
        ),
    })
}

/// The revision that is `named`, or else served, if it is kept.
fn chosen(fleet: &Fleet, named: Option<u64>, kept: &[Kept]) -> Result<u64, Error> {
    if let Some(number) = named {
        return find(kept, number, &id(fleet)).map(|()| number);
    }
    let numbers: Vec<String> = kept.iter().map(|kept| kept.number.to_string()).collect();
    let numbers = numbers.join(", ");
    let Some(number) = Some(fleet.revision).filter(|revision| *revision > 0) else {
        let help = if kept.is_empty() {
            "a replica of the operator has to lead and to have looked at the fleet: its log tells why not".to_owned()
        } else {
            format!("show one that is kept by --revision: {numbers}")
        };
        return Err(Error::new(format_args!("which revision {} serves is not known", id(fleet)), help));
    };
    if kept.iter().any(|kept| kept.number == number) {
        return Ok(number);
    }
    let others = if kept.is_empty() { String::new() } else { format!(". Kept are {numbers}: show one by --revision") };
    let help = format!("a revision is kept once all pods have it: `status` says how far they are{others}");
    Err(Error::new(format_args!("revision {number} of {}, which it serves, is not kept", id(fleet)), help))
}

/// What is kept of the revision `number`.
async fn kept_bundle(cluster: &Cluster, fleet: &Fleet, kept: &[Kept], number: u64) -> Result<Bundle, Error> {
    let what = format!("revision {number} of {}", id(fleet));
    let secrets: Api<Secret> = Api::namespaced(cluster.client.clone(), &fleet.namespace);
    let selector = format!("{LABEL_FLEET}={},{NUMBER}={number}", fleet.name);
    // by listing, so that it takes no other permission than to know which there are
    let found = secrets.list(&ListParams::default().labels(&selector)).await.map_err(|error| {
        let help = format!("ask for the permission to list secrets in namespace {}", fleet.namespace);
        Error::new(format_args!("{what} cannot be read: {}", with_causes(&error)), help)
    })?;
    let digest = kept.iter().find(|kept| kept.number == number).and_then(|kept| u128::from_str_radix(&kept.digest, 16).ok());
    let (Some(secret), Some(digest)) = (found.items.first(), digest) else {
        return Err(Error::new(format_args!("{what} is not kept any more"), "see which are: kubectl haproxy-fleet history"));
    };
    let record = read(number, Digest(digest), secret);
    let damaged = |error| Error::new(format_args!("{what}: {error}"), "use the version of haproxy-fleet that the operator has");
    record.map(|record| record.bundle).map_err(damaged)
}

fn show(arguments: &ConfigArguments, title: &str, files: &[ConfigFile], out: &mut Output) -> Result<Exit, Error> {
    let text = match &arguments.file {
        _ if arguments.list => files::table(files),
        Some(name) => one(files, name)?.to_owned(),
        None => format!("{}\n{}", printable(title, false), files::page(files)),
    };
    out.write(if out.is_terminal() { files::for_terminal(&text) } else { text })?;
    Ok(Exit::Success)
}

fn one<'f>(files: &'f [ConfigFile], name: &str) -> Result<&'f str, Error> {
    let Some(file) = files.iter().find(|file| file.path == name) else {
        return Err(Error::new(format_args!("there is no file {name}"), "--list names those that are there"));
    };
    let private = || Error::new(format_args!("{name} is a private key, which is not shown"), "the Secret that it comes from has it");
    file.text.as_deref().ok_or_else(private)
}

/// Says how `new` differs from `old`; of the one file that is asked for, if one is.
fn compare(arguments: &ConfigArguments, old: (u64, &Bundle), new: (u64, &Bundle), out: &mut Output) -> Result<Exit, Error> {
    let [before, after] = [old.1, new.1].map(|bundle| {
        let mut shown = files::shown(&files::without_endpoints(bundle));
        shown.retain(|file| arguments.file.as_ref().is_none_or(|name| file.path == *name));
        shown
    });
    if let Some(name) = arguments.file.as_ref().filter(|_| before.is_empty() && after.is_empty()) {
        return Err(Error::new(format_args!("there is no file {name}"), "--list names those that are there"));
    }
    let names = (format!("revision-{}", old.0), format!("revision-{}", new.0));
    let plain = files::difference(&before, &after, (&names.0, &names.1));
    if plain.is_empty() {
        out.line(&format!("revisions {} and {} do not differ but for endpoints and certificates, which are not kept", old.0, new.0))?;
        return Ok(Exit::Success);
    }
    let style = Style { colours: out.has_colours() };
    out.write(if out.is_terminal() { files::painted(&files::for_terminal(&plain), style) } else { plain })?;
    Ok(Exit::Findings)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::cli::{Arguments, Command};
    use crate::delivery::packed::pack;
    use crate::haproxy::bundle::{Content, Resource, ResourceKey};
    use crate::operator::revisions::DIGEST;
    use clap::Parser;
    use serde_json::json;
    use std::sync::Arc;

    fn fleet(revision: u64) -> Fleet {
        Fleet { namespace: "infra".into(), name: "edge".into(), revision, ..Fleet::default() }
    }

    fn kept(numbers: &[u64]) -> Vec<Kept> {
        numbers.iter().map(|number| Kept { number: *number, since: String::new(), digest: String::new() }).collect()
    }

    #[test]
    fn the_revision_is_the_one_that_is_served_or_named_and_what_is_not_kept_says_what_is() {
        let of = |served, named, numbers: &[u64]| chosen(&fleet(served), named, &kept(numbers)).map_err(|error| error.to_string());
        assert_eq!(of(7, None, &[6, 7]).unwrap(), 7);
        assert_eq!(of(7, Some(6), &[6, 7]).unwrap(), 6);
        let late = of(8, None, &[6, 7]).unwrap_err();
        assert!(late.contains("revision 8 of infra/edge, which it serves, is not kept") && late.contains("Kept are 6, 7: show"), "{late}");
        assert!(of(7, Some(5), &[6, 7]).unwrap_err().contains("revision 5 of infra/edge is not kept\n   = help: choose one of 6, 7"));
        assert!(of(1, None, &[]).unwrap_err().contains("`status` says how far they are"));
        assert!(of(0, None, &[6]).unwrap_err().contains("show one that is kept by --revision: 6"));
    }

    /// What `config` says with these arguments where the revisions 6 and 7 of infra/edge are kept.
    async fn said(line: &str) -> (Result<Exit, String>, String) {
        let server = fleet_api_server::ApiServer::new();
        for definition in crate::api::crds() {
            assert!(server.define(&json!(definition)));
        }
        server.put(&json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "infra"}})).unwrap();
        server
            .put(&json!({
                "apiVersion": crate::api::API_VERSION, "kind": "IngressDeployment", "metadata": {"namespace": "infra", "name": "edge"},
                "spec": {"ingressClassName": "edge"}, "status": {"revision": 7},
            }))
            .unwrap();
        for (number, connections) in [(6, 100), (7, 200)] {
            let mut bundle = Bundle::default();
            let section =
                |name: &str, text: String| Resource::new(ResourceKey::Section(name.into()), Content::Section(text.into()), Arc::new([]));
            for part in
                [section("10-global", format!("global\n    maxconn {connections}\n")), section("20-frontends", "frontend x\n".into())]
            {
                bundle.set(&part.key.clone(), Some(part));
            }
            let bytes = pack(&bundle.resources().cloned().collect::<Vec<_>>()).unwrap();
            server
                .put(&json!({
                    "apiVersion": "v1", "kind": "Secret", "metadata": {
                        "namespace": "infra", "name": format!("edge-revision-{number}"),
                        "labels": {LABEL_FLEET: "edge", NUMBER: number.to_string()}, "annotations": {DIGEST: bundle.digest().to_string()},
                    },
                    "data": {"bundle.zst": k8s_openapi::ByteString(bytes)},
                }))
                .unwrap();
        }
        let line = line.split(' ').filter(|word| !word.is_empty());
        let Command::Config(arguments) = Arguments::try_parse_from(["haproxy-fleet", "config"].into_iter().chain(line)).unwrap().command
        else {
            unreachable!("config")
        };
        let cluster = Cluster { client: server.client(), namespace: Some("infra".to_owned()) };
        let written = tempfile::NamedTempFile::new().unwrap();
        let exit = of_cluster(&cluster, &arguments, &mut Output::new(written.reopen().unwrap(), false)).await;
        (exit.map_err(|error| error.to_string()), std::fs::read_to_string(written.path()).unwrap())
    }

    #[tokio::test]
    async fn what_is_kept_of_the_revision_that_is_served_is_shown_and_compared_with_others() {
        let (exit, text) = said("").await;
        assert_eq!(exit, Ok(Exit::Success), "{text}");
        assert!(text.starts_with("# infra/edge, revision 7: "), "{text}");
        assert!(text.ends_with("# ==> 10-global.cfg <==\nglobal\n    maxconn 200\n# ==> 20-frontends.cfg <==\nfrontend x\n"), "{text}");
        assert!(said("--revision 6").await.1.contains("maxconn 100"));
        assert_eq!(said("--file 20-frontends.cfg").await.1, "frontend x\n");
        assert_eq!(said("--list edge").await.1, "BYTES  FILE\n   23  10-global.cfg\n   11  20-frontends.cfg\n");
        let (exit, text) = said("--diff 6").await;
        assert_eq!(exit, Ok(Exit::Findings));
        assert!(text.starts_with("--- revision-6/10-global.cfg\n+++ revision-7/10-global.cfg\n") && !text.contains("frontend"), "{text}");
        assert!(text.contains("\n-    maxconn 100\n+    maxconn 200\n"), "{text}");
        assert_eq!(said("--diff 6 --file 20-frontends.cfg").await.0, Ok(Exit::Success));
        assert!(said("--diff 7").await.1.starts_with("revisions 7 and 7 do not differ"));
        assert!(said("--revision 5").await.0.unwrap_err().contains("revision 5 of infra/edge is not kept"));
        assert!(said("--diff 6 --file maps/none.map").await.0.unwrap_err().contains("there is no file maps/none.map"));
    }

    #[test]
    fn a_private_key_and_what_is_not_there_are_refused_by_name() {
        let files = [ConfigFile { path: "certs/a.pem".into(), bytes: 3, text: None }];
        assert!(one(&files, "certs/a.pem").unwrap_err().to_string().contains("certs/a.pem is a private key, which is not shown"));
        assert!(one(&files, "maps/b.map").unwrap_err().to_string().contains("--list names those that are there"));
    }
}
