//! Going back to a revision, in all replicas at once, and keeping those that can be gone back to.

use super::super::revisions::{self, Kept, Served};
use super::{Addresses, FleetError, Life, LocalFleet, Replica, launch_of};
use crate::admin::{Done, Refusal, RefusalKind};
use crate::agent::check;
use crate::haproxy::bundle::{Bundle, ResourceKey};
use crate::haproxy::files::{complaints, culprits};
use crate::haproxy::revision::{Record, kept};
use crate::report::{Diagnostic, Kind, ObjectRef, codes};
use k8s_openapi::jiff::Timestamp;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

impl LocalFleet {
    /// Goes back to `revision`, or to `present`, which is asked for. A refusal has changed nothing.
    pub(in crate::local) async fn roll_back(
        &mut self,
        revision: Option<u64>,
        present: Option<&Bundle>,
        addresses: &mut Addresses,
    ) -> Result<Done, Refusal> {
        let Some(present) = present.filter(|_| self.delivered) else { return Err(self.no_manifest()) };
        let served = Served::of(revision.map(|number| self.recorded(number)).transpose()?).over(present);
        if let Some(number) = revision {
            self.accepts(number, served.bundle(present), self.served.bundle(present)).await?;
        }
        let changes = self.served.bundle(present).diff(served.bundle(present));
        let before = (std::mem::replace(&mut self.served, served), self.record.clone(), self.digest);
        self.record.pinned = revision;
        self.number(present, true);
        if let Err(trouble) = self.save() {
            (self.served, self.record, self.digest) = before;
            return Err(conflict(trouble.message, trouble.help));
        }
        self.unread = None;
        self.deliver(present, changes);
        // whoever wants to know how it goes on looks at the status
        let _ = self.converge(addresses).await;
        let what = revision.map_or_else(|| "what is asked for now".to_owned(), |number| format!("revision {number}"));
        Ok(Done { message: format!("{} goes to {what}", self.id) })
    }

    /// The revision `number`, if it is kept.
    fn recorded(&self, number: u64) -> Result<Record, Refusal> {
        let Some(kept) = self.record.revisions.get(&number) else {
            let error = format!("revision {number} of {} is not kept", self.id);
            return Err(Refusal { kind: RefusalKind::NotFound, error, help: self.others(None) });
        };
        let read = revisions::read(&self.environment.state, &self.id, number, kept);
        read.map_err(|error| conflict(format!("{} cannot go back to revision {number}: {error}", self.id), self.others(Some(number))))
    }

    /// Which revisions there are beside that of the number `but`.
    fn others(&self, but: Option<u64>) -> String {
        let others = self.record.revisions.keys().filter(|number| Some(**number) != but);
        let numbers: Vec<String> = others.map(ToString::to_string).collect();
        if numbers.is_empty() { "none is yet".to_owned() } else { format!("choose one of {}", numbers.join(", ")) }
    }

    /// Whether each HAProxy that replicas run on would load `candidate`, which the revision `number` leads to, in the place of
    /// what is `served`. What is wrong with both is not the revision's fault: replicas set that aside.
    async fn accepts(&self, number: u64, candidate: &Bundle, served: &Bundle) -> Result<(), Refusal> {
        let failed = |why: &dyn std::fmt::Display| {
            let error = format!("{} does not go back to revision {number}: {why}", self.id);
            conflict(error, format!("what serves stays as it is; {}", self.others(Some(number))))
        };
        for (line, replica) in self.by_line() {
            let Err(said) = self.loads(replica, candidate).await.map_err(|error| failed(&error))? else { continue };
            let blamed = blamed(candidate, served, &said);
            if blamed.is_none() && self.loads(replica, served).await.map_err(|error| failed(&error))?.is_err() {
                continue;
            }
            let first = || complaints(&said).into_iter().map(|complaint| complaint.message).next();
            let message = blamed.or_else(first).unwrap_or_else(|| said.trim().to_owned());
            return Err(failed(&format_args!("HAProxy {line} refuses what it leads to: {message}")));
        }
        Ok(())
    }

    /// A replica for each release that replicas run on.
    fn by_line(&self) -> BTreeMap<&str, &Replica> {
        let staying = self.replicas.values().filter(|replica| replica.stays());
        staying.filter_map(|replica| Some((&*self.record.rollout.template(&replica.record.template)?.line, replica))).collect()
    }

    /// Whether the HAProxy of `replica` would load `bundle`.
    async fn loads(&self, replica: &Replica, bundle: &Bundle) -> Result<Result<(), String>, FleetError> {
        let Some(template) = self.record.rollout.template(&replica.record.template) else { return Ok(Ok(())) };
        let address = replica.address.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let launch = launch_of(&self.environment, &replica.record.name, template, (PathBuf::new(), ""), address)?;
        let directory = super::record::directory(&self.environment.state, &self.id).join("check");
        let checked = check(&launch.program.path, directory, &self.environment.pod(&self.id, &launch), bundle).await;
        checked.map_err(super::io_error("HAProxy cannot be asked whether it takes that"))
    }

    /// Keeps the revision that all replicas have by now, if `present` is what is asked for.
    pub(in crate::local) async fn keep(&mut self, present: &Bundle) {
        let (number, identity) = (self.record.revision, &self.record.revision_digest);
        let is_kept = self.record.revisions.get(&number).is_some_and(|kept| kept.digest == *identity);
        let served = self.served.bundle(present);
        if is_kept || self.served.pinned().is_some() || served.digest() != self.digest || !self.is_settled() {
            return;
        }
        let (state, id, resources) = (self.environment.state.clone(), self.id.clone(), kept(served));
        let written = tokio::task::spawn_blocking(move || revisions::write(&state, &id, number, &resources)).await;
        match written.map_err(io::Error::other).and_then(|written| written) {
            Ok(()) => self.note_kept(number),
            Err(error) => self.unkept = Some(format!("revision {number} cannot be kept, and not be gone back to: {error}")),
        }
    }

    fn note_kept(&mut self, number: u64) {
        self.unkept = None;
        let kept = Kept { digest: self.record.revision_digest.clone(), since: second(Timestamp::now()) };
        self.record.revisions.insert(number, kept);
        let gone = revisions::beyond(&mut self.record.revisions);
        // what cannot be written now is with the next change
        let _ = self.save();
        revisions::remove(&self.environment.state, &self.id, &gone);
    }

    /// Whether all replicas that run have all of what is served.
    fn is_settled(&self) -> bool {
        let mut running = self.replicas.values().filter(|replica| replica.stays() && matches!(replica.life, Life::Running(_))).peekable();
        self.delivered && running.peek().is_some() && running.all(|replica| replica.has_all_of(self.record.generation))
    }

    /// What there is to say about what it serves instead of what is asked for, and about its revisions.
    pub(super) fn told_of_revisions(&self) -> Vec<Diagnostic> {
        let object = ObjectRef::new(Kind::IngressDeployment, self.id.namespace.clone(), self.id.name.clone());
        let pinned = self.served.pinned().map(|number| {
            let message = format!("the fleet is pinned to revision {number}: changes of routes and policies have no effect");
            let help = "return to what is asked for by haproxy-fleet rollback present; endpoints and certificates are those of now";
            Diagnostic::warning(&object, "", codes::PINNED, message, help)
        });
        let unread = self.unread.iter().map(|why| {
            let help = "what is asked for is served; go back to another revision, or on with haproxy-fleet rollback present";
            Diagnostic::error(&object, "", codes::NOT_APPLIED, why.clone(), help)
        });
        let unkept = self
            .unkept
            .iter()
            .map(|why| Diagnostic::warning(&object, "", codes::NOT_APPLIED, why.clone(), "see to the directory of --state-dir"));
        pinned.into_iter().chain(unread).chain(unkept).collect()
    }
}

/// What the fleet went back to before a restart; or, where that is lost, why.
pub(super) fn restored(state: &Path, id: &super::FleetId, record: &mut super::Record) -> (Served, Option<String>) {
    let Some(number) = record.pinned else { return (Served::default(), None) };
    let lost = match record.revisions.get(&number).map(|kept| revisions::read(state, id, number, kept)) {
        Some(Ok(revision)) => return (Served::of(Some(revision)), None),
        Some(Err(error)) => error.to_string(),
        None => "it is not kept".to_owned(),
    };
    record.pinned = None;
    (Served::default(), Some(format!("the fleet cannot go back to revision {number}: {lost}")))
}

/// What HAProxy says of something that is in `candidate` and not `served`.
fn blamed(candidate: &Bundle, served: &Bundle, said: &str) -> Option<String> {
    let changed: BTreeSet<ResourceKey> = served.diff(candidate).into_iter().map(|change| change.key).collect();
    let is_of_change = |complaint: &_| culprits(candidate, complaint).iter().any(|resource| changed.contains(&resource.key));
    complaints(said).into_iter().find(is_of_change).map(|complaint| complaint.message)
}

/// As the API server writes times.
fn second(time: Timestamp) -> String {
    Timestamp::from_second(time.as_second()).unwrap_or(time).to_string()
}

fn conflict(error: String, help: String) -> Refusal {
    Refusal { kind: RefusalKind::Conflict, error, help }
}
