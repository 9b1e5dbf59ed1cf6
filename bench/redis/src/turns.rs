//! How late the first waiter of a key has its turn, after time or another instance has made room.

use std::time::Duration;

use slidegate::{Policy, PolicySet, Quota, Request, SharedGate};
use slidegate_redis::{RedisGate, RedisOptions, RedisStore};
use tokio::time::Instant;

use crate::Failed;
use crate::peers::DEADLINE;
use crate::server::Server;

/// Turns of each row.
const TURNS: usize = 1000;
/// The window of the limit whose turns come by time.
const WINDOW: Duration = Duration::from_millis(20);
/// Longer than any wait.
const TIMEOUT: Duration = Duration::from_secs(2 * 86_400);

pub(crate) async fn run(server: &Server) -> Result<(), Failed> {
    server.meter().await?.forget_keys().await?;
    let (waiting, other) = (gate(server)?, gate(server)?);
    let turn = |policy: &'static str| {
        let gate = waiting.clone();
        async move {
            let request = Request::new().under(policy);
            gate.acquire(&request).timeout(TIMEOUT).await.map(drop).map_err(|error| error.to_string())
        }
    };
    println!("\n| the first waiter of a key over Redis | median, ms | p99, ms |\n|---|--:|--:|");
    report(
        "a round trip",
        &each(async || {
            let begun = Instant::now();
            waiting.peek(&Request::new().under("by-event")).await;
            Ok(begun.elapsed())
        })
        .await?,
    );

    let mut last = None;
    report(
        "late, room by time",
        &each(async || {
            turn("by-time").await?;
            let now = Instant::now();
            // The first turn follows none.
            let late = last.replace(now).map_or(Duration::ZERO, |last| (now - last).saturating_sub(WINDOW));
            Ok(late)
        })
        .await?,
    );

    turn("by-event").await?;
    let by_event = Request::new().under("by-event");
    let mut refunds = Vec::new();
    let freed = each(async || {
        let waiter = tokio::spawn(turn("by-event"));
        while waiting.gate().waiting() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // It has asked, and its instance has announced the key.
        tokio::time::sleep(Duration::from_millis(100)).await;
        let begun = Instant::now();
        let refund = async {
            drop(other.refund(&by_event).await);
            refunds.push(begun.elapsed());
        };
        let (_, turn) = tokio::join!(refund, async { (waiter.await, begun.elapsed()) });
        turn.0??;
        Ok(turn.1)
    })
    .await?;
    refunds.sort_unstable();
    report("a refund after a pause of 100 ms", &refunds);
    report("late, counted from the begin of another instance's refund", &freed);
    Ok(())
}

fn gate(server: &Server) -> Result<RedisGate, Failed> {
    let policies = PolicySet::new([
        Policy::new("by-time", Quota::new(1, WINDOW)?)?.with_only_when_named(),
        Policy::new("by-event", Quota::per_day(1))?.with_only_when_named(),
    ])?;
    let redis = RedisOptions::new(&server.url())?.with_deadline(DEADLINE);
    Ok(SharedGate::new(policies, RedisStore::new(redis)?)?)
}

/// What each turn took, in order of length.
async fn each(mut turn: impl AsyncFnMut() -> Result<Duration, Failed>) -> Result<Vec<Duration>, Failed> {
    let mut took = Vec::new();
    for _ in 0..TURNS {
        took.push(turn().await?);
    }
    took.sort_unstable();
    Ok(took)
}

fn report(what: &str, took: &[Duration]) {
    let ms = |share: usize| took[took.len() * share / 100].as_secs_f64() * 1e3;
    println!("| {what} | {:.2} | {:.2} |", ms(50), ms(99));
}
