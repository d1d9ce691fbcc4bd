//! `local`, by its admin server.

use super::Verbs;
use crate::admin::{Done, Order, Refusal};
use crate::cli::Error;
use crate::cli::status::fetch;
use crate::status::json::{Fleet, Status};
use http::StatusCode;
use std::net::SocketAddr;

/// What serves `/status` at an address, and takes orders there.
pub(super) struct Admin {
    pub(super) address: SocketAddr,
}

impl Verbs for Admin {
    async fn status(&self) -> Result<Status, Error> {
        fetch::from_address(self.address).await
    }

    async fn having(&self, _: &mut Status) -> Result<(), Error> {
        // its state has them
        Ok(())
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
