//! `status`: how the fleets are, by the word of `local` or of the operator in a cluster.

pub(super) mod cluster;
pub(super) mod fetch;
mod table;

use super::report::Style;
use super::{Error, Exit, Output};
use crate::status::json::Status;
use clap::{Args, ValueEnum};
use cluster::Place;
use std::net::SocketAddr;
use std::path::PathBuf;

pub(super) const HELP: &str = "\
Without --admin the operator in the cluster is asked, as kubectl would reach it: by a port-forward to
its pod that leads. That takes the permission to list pods and to create pods/portforward in the
operator's namespace; to get Leases there saves asking the other replicas.

As a plugin of kubectl: ln -s $(which haproxy-fleet) ~/.local/bin/kubectl-haproxy_fleet

JSON: the document of /status, with the fleets and findings that are asked for.

Examples:
  haproxy-fleet status --admin 127.0.0.1:9901
  kubectl haproxy-fleet status -n ingress
  haproxy-fleet status -A -o json | jq '.fleets[] | {name, state, generation}'

Exit status:
  0  all fleets are Ready
  1  some are not
  2  usage, or it cannot be told";

/// `status`.
#[derive(Debug, Args)]
pub struct StatusArguments {
    /// Ask what serves /status there, as `local --admin` does, instead of a cluster
    #[arg(long, value_name = "IP:PORT", conflicts_with_all = ["kubeconfig", "context", "operator_namespace"])]
    admin: Option<SocketAddr>,
    /// Show the fleets of this namespace
    ///
    /// [default: that of the context; with --admin: all]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Show the fleets of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    all_namespaces: bool,
    /// The context of the kubeconfig
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// The kubeconfig
    ///
    /// [default: $KUBECONFIG, else ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Where the operator is
    #[arg(long, value_name = "NAME", default_value = "haproxy-fleet-system")]
    operator_namespace: String,
    /// For people or for programs
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

/// For people or for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Table,
    /// For programs
    Json,
}

pub(super) fn run(arguments: &StatusArguments, out: &mut Output, err: &mut Output) -> Result<Exit, Error> {
    let failed = |error: std::io::Error| Error::new(format_args!("cannot start: {error}"), "");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let (status, context_namespace) = runtime.block_on(ask(arguments))?;
    let shown = match (&arguments.namespace, context_namespace) {
        _ if arguments.all_namespaces => None,
        (Some(namespace), _) => Some(namespace.clone()),
        (None, of_context) => of_context,
    };
    let others = shown.as_ref().map_or(0, |shown| status.fleets.iter().filter(|fleet| fleet.namespace != *shown).count());
    let status = only(status, shown.as_deref());
    match arguments.output {
        Format::Json => out.json(&status)?,
        Format::Table => out.write(table::page(&status, Style { colours: out.has_colours() }))?,
    }
    if status.fleets.is_empty() {
        err.line(&nothing(shown.as_deref(), others))?;
    }
    exit(&status)
}

/// The state of everything, and the namespace of the context if there is one.
async fn ask(arguments: &StatusArguments) -> Result<(Status, Option<String>), Error> {
    if let Some(address) = arguments.admin {
        return Ok((fetch::from_address(address).await?, None));
    }
    let place = Place {
        kubeconfig: arguments.kubeconfig.as_deref(),
        context: arguments.context.as_deref(),
        namespace: &arguments.operator_namespace,
    };
    let (status, namespace) = cluster::status(&place).await?;
    Ok((status, Some(namespace)))
}

/// What concerns the fleets of `namespace`; everything if it is `None`.
fn only(mut status: Status, namespace: Option<&str>) -> Status {
    let Some(namespace) = namespace else { return status };
    status.fleets.retain(|fleet| fleet.namespace == namespace);
    let shown: Vec<_> = status.fleets.iter().flat_map(|fleet| fleet.worst.clone()).collect();
    status.diagnostics.retain(|diagnostic| diagnostic.object.namespace == namespace || shown.contains(diagnostic));
    status
}

fn nothing(namespace: Option<&str>, others: usize) -> String {
    match namespace {
        Some(namespace) if others > 0 => format!("no fleets in namespace {namespace}; --all-namespaces shows {others} in others"),
        Some(namespace) => format!("no fleets in namespace {namespace}, nor in any other"),
        None => "no fleets: there is no IngressDeployment".to_owned(),
    }
}

fn exit(status: &Status) -> Result<Exit, Error> {
    if status.fleets.iter().any(|fleet| fleet.ready == Some(false)) {
        return Ok(Exit::Findings);
    }
    match status.fleets.iter().find(|fleet| fleet.ready.is_none()) {
        Some(fleet) => Err(Error::new(
            format_args!("whether {}/{} is Ready is not known yet", fleet.namespace, fleet.name),
            "ask again in some seconds: a replica of the operator has to lead and to have looked at the fleet; its log tells why not",
        )),
        None => Ok(Exit::Success),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::status::json::{Diagnostic, Fleet, Object};

    fn fleet(namespace: &str, ready: Option<bool>) -> Fleet {
        Fleet { namespace: namespace.into(), name: "edge".into(), ready, ..Fleet::default() }
    }

    fn status(fleets: Vec<Fleet>) -> Status {
        Status { fleets, ..Status::default() }
    }

    #[test]
    fn the_exit_status_says_whether_all_are_ready_some_are_not_or_nobody_knows() {
        let of = |ready: &[Option<bool>]| exit(&status(ready.iter().map(|ready| fleet("a", *ready)).collect()));
        assert_eq!(of(&[]).unwrap(), Exit::Success);
        assert_eq!(of(&[Some(true), Some(true)]).unwrap(), Exit::Success);
        assert_eq!(of(&[Some(true), Some(false), None]).unwrap(), Exit::Findings);
        let error = of(&[Some(true), None]).unwrap_err().to_string();
        assert!(error.contains("a/edge is Ready is not known") && error.contains("help: ask again"), "{error}");
    }

    #[test]
    fn a_namespace_shows_its_fleets_with_what_is_wrong_there_and_with_what_they_serve() {
        let finding = |namespace: &str, name: &str| Diagnostic {
            object: Object { kind: "Ingress".into(), namespace: namespace.into(), name: name.into() },
            ..Diagnostic::default()
        };
        let mut infra = fleet("infra", Some(true));
        infra.worst = vec![finding("shop", "served")];
        let diagnostics = vec![finding("infra", "here"), finding("shop", "served"), finding("shop", "of another fleet")];
        let all = Status { fleets: vec![infra, fleet("other", Some(true))], diagnostics, ..Status::default() };
        let shown = only(all.clone(), Some("infra"));
        assert_eq!(shown.fleets.len(), 1);
        assert_eq!(shown.diagnostics.iter().map(|one| &*one.object.name).collect::<Vec<_>>(), ["here", "served"]);
        assert_eq!(only(all.clone(), None), all);
    }
}
