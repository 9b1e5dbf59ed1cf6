//! Many tasks that ask one peer, each for its next decision when it has the last.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::Failed;
use crate::peers::Peer;

/// When the tasks stop.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Until {
    /// After so many decisions in all.
    Decisions(u64),
    /// After this time.
    Elapsed(Duration),
}

/// For whom the requests are, in their order.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Users {
    /// So many for the first, as many for the second, and so on.
    OneAfterAnother(u64),
    /// All of so many in turn.
    InTurn(u64),
}

/// What the tasks were told.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Told {
    pub(crate) decisions: u64,
    pub(crate) allowed: u64,
    pub(crate) seconds: f64,
}

/// Lets so many tasks ask.
#[allow(clippy::disallowed_methods)] // the clock is what is read here
pub(crate) async fn drive(peer: &Arc<Peer>, tasks: u64, until: Until, users: Users) -> Result<Told, Failed> {
    let start = Instant::now();
    let next = Arc::new(AtomicU64::new(0));
    let mut set = JoinSet::new();
    for _ in 0..tasks {
        let (peer, next) = (Arc::clone(peer), Arc::clone(&next));
        set.spawn(async move {
            let mut told = Told::default();
            loop {
                let request = next.fetch_add(1, Ordering::Relaxed);
                let over = match until {
                    Until::Decisions(decisions) => request >= decisions,
                    Until::Elapsed(time) => start.elapsed() >= time,
                };
                if over {
                    return Ok::<_, Failed>(told);
                }
                let user = match users {
                    Users::OneAfterAnother(requests) => request / requests,
                    Users::InTurn(users) => request % users,
                };
                told.decisions += 1;
                told.allowed += u64::from(peer.decide(user).await?);
            }
        });
    }
    let mut all = Told::default();
    while let Some(told) = set.join_next().await {
        let told = told??;
        all.decisions += told.decisions;
        all.allowed += told.allowed;
    }
    all.seconds = start.elapsed().as_secs_f64();
    peer.was_served()?;
    Ok(all)
}
