//! `rollout`, `drain` and `undrain`: what people ask of a fleet, and how it goes on.

mod admin;
mod choice;
mod cluster;
pub(super) mod config;
mod live;
mod pods;
mod progress;
pub(super) mod revisions;
mod tree;

use super::{Error, Exit, Output};
use crate::admin::{Done, Order, Target};
use crate::status::json::{Fleet, Status};
use admin::Admin;
use choice::FleetName;
use clap::{ArgAction, Args, Subcommand};
use cluster::Cluster;
use pods::HasPods;
use revisions::{Kept, Serves};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::Instant;

pub(super) const HELP: &str = "\
`status` follows the rollout until it is done, or says what it waits for when it does not go on by
itself: on a terminal as a tree of zones and pods, elsewhere in a line for each thing that changes.
`pause` stops it where it is; sizes and drains by hand go on. `abort` goes back to the template that
the whole fleet ran last. `restart` replaces all pods.

In a cluster, orders are annotations of the IngressDeployment, and its status says how it goes. With
--admin they are given to `local`.

Examples:
  kubectl haproxy-fleet rollout status -n ingress
  kubectl haproxy-fleet rollout pause edge -n ingress
  haproxy-fleet rollout abort --admin 127.0.0.1:9901

Exit status:
  0  it is done, or the order was taken
  1  status: it is not done, or does not go on by itself
  2  usage, or the order was not taken";

pub(super) const DRAIN_HELP: &str = "\
A pod that is drained gets no new connections and keeps what it has: nothing of it ends, and
`undrain` gives it back. What would take the last ready pod is refused, unless it is forced. A
rollout waits as long as a pod is drained by hand.

Examples:
  kubectl haproxy-fleet drain node/worker-3 -n ingress
  haproxy-fleet drain pod/edge-0 --admin 127.0.0.1:9901
  haproxy-fleet drain zone/a infra/edge --force --admin 127.0.0.1:9901

Exit status:
  0  the order was taken
  2  usage, or the order was not taken";

pub(super) const UNDRAIN_HELP: &str = "\
Examples:
  kubectl haproxy-fleet undrain node/worker-3 -n ingress
  haproxy-fleet undrain pod/edge-0 --admin 127.0.0.1:9901
  haproxy-fleet undrain zone/a infra/edge --admin 127.0.0.1:9901

Exit status:
  0  the order was taken
  2  usage, or the order was not taken";

/// A change is seen so soon, if there is anybody to see it: a status is written at most once in five seconds.
const SEEN_WITHIN: Duration = Duration::from_secs(15);

/// How often the state is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// `rollout`.
#[derive(Debug, Args)]
pub struct RolloutArguments {
    #[command(subcommand)]
    verb: RolloutVerb,
}

#[derive(Debug, Subcommand)]
enum RolloutVerb {
    /// Say how far it is, and what it waits for
    Status {
        /// Wait until it is done, or does not go on by itself
        #[arg(short, long, action = ArgAction::Set, default_value_t = true)]
        watch: bool,
        #[command(flatten)]
        whose: Whose,
    },
    /// Stop it where it is
    Pause(Whose),
    /// Let it go on
    Resume(Whose),
    /// Go back to the template that the whole fleet ran last
    Abort(Whose),
    /// Replace all pods, one after the other
    Restart(Whose),
}

/// `drain`.
#[derive(Debug, Args)]
pub struct DrainArguments {
    /// What is drained
    #[arg(value_name = "pod/NAME|zone/NAME|node/NAME")]
    target: Target,
    /// Drain it whatever else is the case
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    whose: Whose,
}

/// `undrain`.
#[derive(Debug, Args)]
pub struct UndrainArguments {
    /// What is drained
    #[arg(value_name = "pod/NAME|zone/NAME|node/NAME")]
    target: Target,
    #[command(flatten)]
    whose: Whose,
}

/// A fleet, and where it is.
#[derive(Debug, Args)]
struct Whose {
    /// The fleet
    ///
    /// [default: the only one, or the only one that has what is named]
    #[arg(value_name = "[NAMESPACE/]FLEET")]
    fleet: Option<FleetName>,
    /// Where `local --admin` listens, instead of a cluster
    #[arg(long, value_name = "IP:PORT", conflicts_with_all = ["kubeconfig", "context", "namespace", "all_namespaces"])]
    admin: Option<SocketAddr>,
    /// The namespace of the fleet
    ///
    /// [default: that of the context]
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,
    /// Look for the fleet in all namespaces
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
}

/// Where a fleet is looked for.
enum Namespace {
    All,
    Named(String),
    OfContext,
}

/// Where fleets are seen and take orders.
trait Verbs {
    /// The state of everything.
    async fn status(&self) -> Result<Status, Error>;

    /// Adds the pods of the fleets, where that takes another look.
    async fn having(&self, status: &mut Status) -> Result<(), Error>;

    /// The revisions of a fleet that are kept, the oldest first.
    async fn revisions(&self, fleet: &Fleet) -> Result<Vec<Kept>, Error>;

    /// Which of them it serves.
    async fn serves(&self, fleet: &Fleet) -> Result<Serves, Error>;

    /// Gives an order to a fleet.
    async fn order(&self, fleet: &Fleet, order: &Order) -> Result<Done, Error>;
}

pub(super) fn run(arguments: &RolloutArguments, out: &mut Output) -> Result<Exit, Error> {
    match &arguments.verb {
        RolloutVerb::Status { watch, whose } => whose.follow(*watch, out),
        RolloutVerb::Pause(whose) => whose.give(&Order::Pause, out),
        RolloutVerb::Resume(whose) => whose.give(&Order::Resume, out),
        RolloutVerb::Abort(whose) => whose.give(&Order::Abort, out),
        RolloutVerb::Restart(whose) => whose.give(&Order::Restart, out),
    }
}

pub(super) fn drain(arguments: &DrainArguments, out: &mut Output) -> Result<Exit, Error> {
    arguments.whose.give(&Order::Drain { target: arguments.target.clone(), force: arguments.force }, out)
}

pub(super) fn undrain(arguments: &UndrainArguments, out: &mut Output) -> Result<Exit, Error> {
    arguments.whose.give(&Order::Undrain(arguments.target.clone()), out)
}

impl Whose {
    async fn cluster(&self) -> Result<Cluster, Error> {
        let namespace = match (&self.namespace, self.fleet.as_ref().and_then(FleetName::namespace)) {
            _ if self.all_namespaces => Namespace::All,
            (_, Some(name)) | (Some(name), None) => Namespace::Named(name.clone()),
            (None, None) => Namespace::OfContext,
        };
        Cluster::connect(self.kubeconfig.as_deref(), self.context.as_deref(), &namespace).await
    }

    fn give(&self, order: &Order, out: &mut Output) -> Result<Exit, Error> {
        let fleet = self.fleet.as_ref();
        block_on(async {
            match self.admin {
                Some(address) => give(&Admin { address }, fleet, order, out).await,
                None => give(&self.cluster().await?, fleet, order, out).await,
            }
        })
    }

    fn follow(&self, watch: bool, out: &mut Output) -> Result<Exit, Error> {
        let fleet = self.fleet.as_ref();
        block_on(async {
            match self.admin {
                Some(address) => follow(&Admin { address }, fleet, watch, out).await,
                None => follow(&self.cluster().await?, fleet, watch, out).await,
            }
        })
    }
}

fn block_on(work: impl Future<Output = Result<Exit, Error>>) -> Result<Exit, Error> {
    let failed = |error: std::io::Error| Error::new(format_args!("cannot start: {error}"), "");
    tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?.block_on(work)
}

async fn give(verbs: &impl Verbs, named: Option<&FleetName>, order: &Order, out: &mut Output) -> Result<Exit, Error> {
    let mut status = if *order == Order::Abort { known(verbs, named).await? } else { verbs.status().await? };
    let target = match order {
        Order::Drain { target, .. } | Order::Undrain(target) => Some(target),
        _ => None,
    };
    if target.is_some() {
        verbs.having(&mut status).await?;
    }
    let fleet = choice::fleet(&status, named, target)?;
    out.line(&verbs.order(fleet, order).await?.message)?;
    Ok(Exit::Success)
}

/// The state, once it says how the rollout goes: what changed a moment ago is not seen yet.
async fn known(verbs: &impl Verbs, named: Option<&FleetName>) -> Result<Status, Error> {
    let end = Instant::now() + SEEN_WITHIN;
    loop {
        let status = verbs.status().await?;
        if choice::fleet(&status, named, None)?.rollout.is_some() || Instant::now() >= end {
            return Ok(status);
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Says how a rollout goes on: in a line for each thing that changes, or on a terminal as a tree.
async fn follow(verbs: &(impl Verbs + HasPods), named: Option<&FleetName>, watch: bool, out: &mut Output) -> Result<Exit, Error> {
    if out.can_redraw() {
        return live::follow(verbs, named, watch, out).await;
    }
    let mut said = Vec::new();
    loop {
        let status = known(verbs, named).await?;
        let fleet = choice::fleet(&status, named, None)?;
        let progress = progress::of(fleet)?;
        for line in progress.lines.iter().filter(|line| !said.contains(*line)) {
            out.line(&super::report::printable(line, false))?;
        }
        if progress.is_over || !watch {
            return Ok(if progress.is_done { Exit::Success } else { Exit::Findings });
        }
        said = progress.lines;
        tokio::time::sleep(LOOK).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::status::json::Rollout;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// A fleet whose rollout is known at the look of that number.
    struct Late(AtomicUsize, usize);

    impl Verbs for Late {
        async fn status(&self) -> Result<Status, Error> {
            let is_known = self.0.fetch_add(1, Ordering::Relaxed) >= self.1;
            let fleet = Fleet { name: "edge".into(), rollout: is_known.then(Rollout::default), ..Fleet::default() };
            Ok(Status { fleets: vec![fleet], ..Status::default() })
        }

        async fn having(&self, _: &mut Status) -> Result<(), Error> {
            Ok(())
        }

        async fn revisions(&self, _: &Fleet) -> Result<Vec<Kept>, Error> {
            Ok(Vec::new())
        }

        async fn serves(&self, _: &Fleet) -> Result<Serves, Error> {
            Ok(Serves::default())
        }

        async fn order(&self, _: &Fleet, _: &Order) -> Result<Done, Error> {
            Err(Error::new("no", ""))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_change_of_a_moment_ago_is_waited_for_and_not_for_ever() {
        let seen = async |at: usize| known(&Late(AtomicUsize::new(0), at), None).await.unwrap().fleets[0].rollout.is_some();
        assert!(seen(0).await && seen(20).await);
        assert!(!seen(usize::MAX).await);
    }
}
