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
    let (mut claim, mut known_term) = (lease.claim(), lease.known_term());
    let mut told = Authority::default();
    loop {
        let now = authority(*claim.borrow_and_update(), *known_term.borrow_and_update());
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
            changed = known_term.changed() => if changed.is_err() { return },
            changed = translated.changed() => if changed.is_err() { return },
        }
    }
}

fn authority(claim: Claim, known_term: u64) -> Authority {
    let led = claim.term(Instant::now());
    Authority { term: led.unwrap_or(known_term), leads: led.is_some() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::lease::{Driver, Settings, Timing};
    use super::*;
    use fleet_api_server::ApiServer;
    use fleet_api_server::faults::{Faults, Plan};
    use kube::Client;
    use tokio::task::JoinSet;
    use tower::Layer;

    /// One replica, and what its stage is told.
    struct Replica {
        faults: Faults,
        inputs: mpsc::Receiver<Input>,
        tasks: JoinSet<()>,
    }

    impl Replica {
        fn start(server: &ApiServer, identity: &str) -> Self {
            let faults = Faults::new(Plan::default());
            let client = Client::new(faults.layer(server.clone()), "kube-system");
            let (driver, handle) = Driver::new(Settings {
                namespace: "kube-system".to_owned(),
                name: "haproxy-fleet".to_owned(),
                identity: identity.to_owned(),
                timing: Timing::default(),
                highest_term: watch::channel(0).1,
            });
            let (sender, inputs) = mpsc::channel(16);
            let (translated, received) = watch::channel(Arc::default());
            let mut tasks = JoinSet::new();
            tasks.spawn(driver.run(client, std::future::pending()));
            tasks.spawn(async move {
                let _open = translated;
                follow(handle, sender, received).await;
            });
            Self { faults, inputs, tasks }
        }

        /// What its stage is told first of this term.
        async fn says_of(&mut self, term: u64) -> Authority {
            let found = async {
                loop {
                    match self.inputs.recv().await.unwrap() {
                        Input::Authority(authority) if authority.term == term => return authority,
                        _ => {}
                    }
                }
            };
            tokio::time::timeout(Duration::from_secs(60), found).await.unwrap_or_else(|_| panic!("it never says {term}"))
        }
    }

    // agents listen to nobody below the highest term that they have heard of: one that says 0 would never be heard
    #[tokio::test(start_paused = true)]
    async fn a_replica_that_stands_by_says_the_term_of_the_one_that_leads_and_of_the_next() {
        let server = ApiServer::new();
        let mut one = Replica::start(&server, "one");
        assert!(one.says_of(1).await.leads);
        let (mut two, mut three) = (Replica::start(&server, "two"), Replica::start(&server, "three"));
        assert!(!two.says_of(1).await.leads);
        assert!(!three.says_of(1).await.leads);
        one.faults.crash();
        one.tasks.abort_all();
        let (two, three) = tokio::join!(two.says_of(2), three.says_of(2));
        assert_ne!(two.leads, three.leads);
    }
}
