//! Redis fails while callers wait: everybody gets an answer, and waiters go on afterwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use slidegate::{OnStoreError, Policy, Quota, Request};
use slidegate_redis::RedisGate;
use slidegate_testkit::redis::RedisServer;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::callers::{gate, hasty};

/// How long each caller waits for a turn.
const PATIENCE: Duration = Duration::from_secs(5);
/// Nothing takes so long.
const HANGS: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy)]
enum Outage {
    Killed,
    Frozen,
    Paused,
    Flushed,
}

impl Outage {
    async fn happen(self, server: &RedisServer) {
        let some_time = || sleep(Duration::from_millis(1500));
        match self {
            Self::Killed => {
                server.kill();
                some_time().await;
                server.restart();
            }
            Self::Frozen => {
                server.pause();
                some_time().await;
                server.resume();
            }
            Self::Paused => {
                server.admin(&["CLIENT", "PAUSE", "1500"]);
                some_time().await;
            }
            Self::Flushed => drop(server.admin(&["FLUSHALL"])),
        }
    }
}

/// Waits again and again. Counts turns; each answer comes in time.
async fn caller(gate: Arc<RedisGate>, turns: Arc<AtomicU64>, over: Arc<AtomicBool>) {
    let request = Request::new().with("user", "alice");
    while !over.load(Ordering::SeqCst) {
        // Longer than the patience only because the machine may be busy.
        let answer = timeout(HANGS, gate.acquire(&request).timeout(PATIENCE)).await;
        if answer.expect("nobody hangs").is_ok() {
            turns.fetch_add(1, Ordering::SeqCst);
        } else {
            sleep(Duration::from_millis(10)).await;
        }
    }
}

async fn until_turns(turns: &AtomicU64, what: Outage) {
    let before = turns.load(Ordering::SeqCst);
    for _ in 0..6000 {
        if turns.load(Ordering::SeqCst) >= before + 40 {
            return;
        }
        sleep(Duration::from_millis(10)).await;
    }
    panic!("no turns: {what:?}");
}

/// An outage must end with the outage, whatever the fallback says meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiters_are_answered_while_redis_is_away_and_go_on_afterwards() {
    for on_error in [OnStoreError::Local, OnStoreError::Deny] {
        let server = RedisServer::builder().start();
        let policy = || Policy::new("p", Quota::per_second(20)).unwrap().with_scope(["user"]);
        let gates =
            [(); 2].map(|()| gate([policy().with_on_store_error(on_error)], hasty(&server.url_as_user())));
        let (turns, over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let callers: JoinSet<_> = (0..16)
            .map(|number| caller(Arc::clone(&gates[number % 2]), Arc::clone(&turns), Arc::clone(&over)))
            .collect();
        for outage in [Outage::Killed, Outage::Frozen, Outage::Paused, Outage::Flushed] {
            until_turns(&turns, outage).await;
            outage.happen(&server).await;
            until_turns(&turns, outage).await;
            let calls = server.commandstats("evalsha").calls;
            until_turns(&turns, outage).await;
            assert!(server.commandstats("evalsha").calls > calls, "the store decides again: {outage:?}");
        }
        over.store(true, Ordering::SeqCst);
        timeout(HANGS, callers.join_all()).await.expect("nobody hangs");
        assert!(gates.iter().all(|gate| gate.gate().waiting() == 0));
    }
}
