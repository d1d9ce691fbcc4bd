//! What follows from the claim: the stage learns who leads, and gets numbers for its generations.

use super::lease::{Claim, Handle};
use super::numbers::BLOCK;
use super::stage::{Input, Translated};
use crate::delivery::Authority;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// What failed is tried again after this long.
const RETRY: Duration = Duration::from_millis(500);

/// Tells the stage who leads, and reserves numbers for it while this replica does.
pub(super) async fn follow(lease: Handle, inputs: mpsc::Sender<Input>, mut translated: watch::Receiver<Arc<Translated>>) {
    let mut claim = lease.claim();
    let mut told = Authority::default();
    loop {
        let now = authority(*claim.borrow_and_update());
        if now != told {
            told = now;
            tracing::info!(term = told.term, leads = told.leads, "the leader changed");
            if inputs.send(Input::Authority(told)).await.is_err() {
                return;
            }
        }
        // the stage says whether it runs low only once it knows that it leads
        if told.leads && translated.borrow_and_update().numbers_low {
            match lease.reserve(BLOCK).await {
                Ok(block) => {
                    if inputs.send(Input::Numbers(block)).await.is_err() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::debug!(%error, "no generation numbers");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            }
        }
        tokio::select! {
            changed = claim.changed() => if changed.is_err() { return },
            changed = translated.changed() => if changed.is_err() { return },
        }
    }
}

fn authority(claim: Claim) -> Authority {
    claim.term(Instant::now()).map_or_else(Authority::default, |term| Authority { term, leads: true })
}
