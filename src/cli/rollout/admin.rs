//! `local`, by its admin server.

use super::Verbs;
use super::revisions::{Kept, Serves, To};
use crate::admin::{Done, Order, Refusal};
use crate::cli::Error;
use crate::cli::status::fetch;
use crate::status::json::{Fleet, Revision, Status};
use http::StatusCode;
use std::net::SocketAddr;

/// What serves `/status` at an address, and takes orders there.
pub(super) struct Admin {
    pub(super) address: SocketAddr,
}

impl Admin {
    /// The fleet as it is now.
    async fn present(&self, fleet: &Fleet) -> Result<Fleet, Error> {
        let status = fetch::from_address(self.address).await?;
        if status.operator.is_some() {
            let error = format_args!("{} is an operator, and revisions are Secrets of its cluster", self.address);
            return Err(Error::new(error, "leave --admin out"));
        }
        let found = status.fleets.into_iter().find(|found| found.namespace == fleet.namespace && found.name == fleet.name);
        found.ok_or_else(|| Error::new(format_args!("{}/{} is gone", fleet.namespace, fleet.name), ""))
    }
}

impl Verbs for Admin {
    async fn status(&self) -> Result<Status, Error> {
        fetch::from_address(self.address).await
    }

    async fn having(&self, _: &mut Status) -> Result<(), Error> {
        // its state has them
        Ok(())
    }

    async fn revisions(&self, fleet: &Fleet) -> Result<Vec<Kept>, Error> {
        let kept = |revision: Revision| Kept { number: revision.number, since: revision.since, digest: revision.digest };
        Ok(self.present(fleet).await?.revisions.into_iter().map(kept).collect())
    }

    async fn serves(&self, fleet: &Fleet) -> Result<Serves, Error> {
        let fleet = self.present(fleet).await?;
        let mut ready = fleet.replicas.iter().filter(|replica| replica.ready).peekable();
        let is_confirmed = ready.peek().is_some() && ready.all(|replica| replica.confirmed);
        Ok(Serves { revision: Some(fleet.revision), pinned: fleet.pinned, at: is_confirmed.then(|| To::of(fleet.pinned)) })
    }

    async fn order(&self, fleet: &Fleet, order: &Order) -> Result<Done, Error> {
        let path = format!("/fleets/{}/{}/{}", fleet.namespace, fleet.name, order.path());
        let body = order.body().map(|body| serde_json::to_vec(&body)).transpose();
        let body = body.map_err(|error| Error::new(format_args!("the order cannot be written: {error}"), ""))?;
        let (code, answer) = fetch::post(self.address, &path, body.unwrap_or_default()).await?;
        if let (StatusCode::OK, Ok(done)) = (code, serde_json::from_slice(&answer)) {
            return Ok(done);
        }
        match serde_json::from_slice::<Refusal>(&answer) {
            Ok(Refusal { error, help, .. }) => Err(Error::new(error, help)),
            Err(_) => Err(Error::new(
                format_args!("{} takes no orders: it answers with {code}", self.address),
                "name the address of `haproxy-fleet local --admin`; an operator takes orders by annotations only",
            )),
        }
    }
}
