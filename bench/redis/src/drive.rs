//! Many tasks that call one peer, each sequentially.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::Failed;
use crate::peers::Peer;

/// When the tasks stop.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Until {
    /// After this many decisions in total.
    Decisions(u64),
    /// After this time.
    Elapsed(Duration),
}

/// The users of the requests, in order.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Users {
    /// This many for the first user, then as many for the second, and so on.
    OneAfterAnother(u64),
    /// This many users in turn.
    InTurn(u64),
}

/// The number of decisions, and the time they took.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Progress {
    pub(crate) decisions: u64,
    pub(crate) allowed: u64,
    pub(crate) seconds: f64,
}

/// Runs this many tasks.
#[allow(clippy::disallowed_methods)] // the clock is what is read here
pub(crate) async fn drive(
    peer: &Arc<Peer>,
    tasks: u64,
    until: Until,
    users: Users,
) -> Result<Progress, Failed> {
    let start = Instant::now();
    let next = Arc::new(AtomicU64::new(0));
    let mut set = JoinSet::new();
    for _ in 0..tasks {
        let (peer, next) = (Arc::clone(peer), Arc::clone(&next));
        set.spawn(async move {
            let mut progress = Progress::default();
            loop {
                let request = next.fetch_add(1, Ordering::Relaxed);
                let over = match until {
                    Until::Decisions(decisions) => request >= decisions,
                    Until::Elapsed(time) => start.elapsed() >= time,
                };
                if over {
                    return Ok::<_, Failed>(progress);
                }
                let user = match users {
                    Users::OneAfterAnother(requests) => request / requests,
                    Users::InTurn(users) => request % users,
                };
                progress.decisions += 1;
                progress.allowed += u64::from(peer.decide(user).await?);
            }
        });
    }
    let mut all = Progress::default();
    while let Some(progress) = set.join_next().await {
        let progress = progress??;
        all.decisions += progress.decisions;
        all.allowed += progress.allowed;
    }
    all.seconds = start.elapsed().as_secs_f64();
    peer.was_served()?;
    Ok(all)
}
