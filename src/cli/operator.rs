//! `operator`: gathers what is needed and hands over to [`crate::operator`].

use super::arguments::OperatorArguments;
use super::{Error, Exit};
use crate::ingest::cluster::Namespaces;
use crate::local::interrupt::Interrupts;
use crate::operator::{self, Settings};
use crate::telemetry::log_json_to_stderr;
use std::sync::Arc;

/// Threads of the operator: translation may keep one busy for seconds, and agents must not wait for that.
const THREADS: usize = 4;

pub(super) fn run(arguments: OperatorArguments) -> Result<Exit, Error> {
    let log_level = log_json_to_stderr("info");
    let settings = Settings {
        namespace: arguments.namespace,
        pod: arguments.pod_name,
        image: arguments.image,
        haproxy_images: arguments.haproxy_image.into_iter().collect(),
        fleets: if arguments.fleet_namespace.is_empty() {
            namespaces(&arguments.watch_namespace)
        } else {
            namespaces(&arguments.fleet_namespace)
        },
        namespaces: namespaces(&arguments.watch_namespace),
        delivery: arguments.delivery,
        admin: arguments.admin,
    };
    let failed = |error: std::io::Error| Error::new(format_args!("cannot start: {error}"), "");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(THREADS).enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let interrupts = Interrupts::listen().map_err(failed)?;
        operator::run(settings, log_level, interrupts.drain()).await.map_err(|error| Error::new(&error, error.help()))
    })?;
    Ok(Exit::Success)
}

/// These, or all if none is named.
fn namespaces(names: &[String]) -> Namespaces {
    if names.is_empty() {
        return Namespaces::All;
    }
    Namespaces::Only(names.iter().map(|name| Arc::from(name.as_str())).collect())
}
