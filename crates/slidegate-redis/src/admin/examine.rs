//! Examinations: detect conditions that silently break limits, where the server permits it, and
//! describe them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redis_once::{Call, LastFailure, ReplyBound};
use slidegate::internal::instant;
use slidegate::store::{ClockJumps, StoreStats};

use super::{PATIENCE, servers};
use crate::calls::Calls;
use crate::names::Names;
use crate::reply::number;

/// Keys whose counts must never decrease, spread over a cluster's slots; outside a cluster, only
/// the first is used.
const CANARIES: usize = 16;
/// TTL of a canary that is not incremented, in seconds.
const CANARY_LIVES_S: u64 = 86_400;

/// Results of earlier examinations.
#[derive(Debug, Default)]
pub(crate) struct LastCounts(Mutex<KeyCounts>);

#[derive(Debug, Default)]
struct KeyCounts {
    /// Keys evicted by each node since it started.
    evicted: HashMap<String, u64>,
    /// Keys evicted by all nodes.
    evicted_keys: u64,
    usage_losses: u64,
    /// The last count of each canary.
    canaries: HashMap<usize, u64>,
    /// Clock jumps of the servers so far.
    jumps: ClockJumps,
}

impl LastCounts {
    fn lock(&self) -> MutexGuard<'_, KeyCounts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies what was found so far.
    pub(crate) fn write_to(&self, stats: &mut StoreStats) {
        let counts = self.lock();
        stats.evicted_keys = counts.evicted_keys;
        stats.usage_losses = counts.usage_losses;
    }

    /// Records how many keys a node has evicted since it was started. Returns how many are new.
    fn evicted(&self, node: &str, evicted: u64) -> u64 {
        let mut counts = self.lock();
        let before = counts.evicted.insert(node.to_owned(), evicted).unwrap_or(0);
        // A restarted node counts from 0.
        let new = evicted.checked_sub(before).unwrap_or(evicted);
        counts.evicted_keys += new;
        new
    }

    /// One line for each finding since the last call.
    pub(crate) async fn examine(&self, calls: &Calls) -> Vec<String> {
        let (mut findings, mut has_lost_usage) = (Vec::new(), false);
        for server in servers::ask(calls).await {
            let node = &server.node;
            if let Some(policy) = server.field("maxmemory_policy").filter(|policy| *policy != "noeviction") {
                findings.push(format!(
                    "redis at {node} evicts keys when it is full (maxmemory-policy is `{policy}`), which resets limits; set it \
                     to `noeviction`"
                ));
            }
            let evicted = server.field("evicted_keys").and_then(|evicted| evicted.parse().ok());
            let new = evicted.map_or(0, |evicted| self.evicted(node, evicted));
            if new > 0 {
                has_lost_usage = true;
                findings.push(format!(
                    "redis at {node} has evicted {new} keys: limits were reset; give it more memory"
                ));
            }
        }
        let lost = self.count_canaries(calls).await;
        if lost > 0 {
            has_lost_usage = true;
            findings.push(format!(
                "redis has lost history ({lost} counters went back): after a failover, a restart without persistence or a \
                 FLUSHALL, limits may be admitted twice for one window"
            ));
        }
        if has_lost_usage {
            self.lock().usage_losses += 1;
            // Denied keys have capacity again, and a denial may be cached for up to a month.
            calls.denials.invalidate(None, instant() + PATIENCE).await;
        }
        let jumps = calls.times.counts();
        let before = std::mem::replace(&mut self.lock().jumps, jumps);
        for (times, forward, what) in [
            (
                jumps.forward - before.forward,
                true,
                "so history expired early and limits may have been exceeded",
            ),
            (jumps.backward - before.backward, false, "so keys may stay full for up to one window longer"),
        ] {
            let Some((us, node)) = calls.times.last(forward).filter(|_| times > 0) else { continue };
            let direction = if forward { "ahead" } else { "back" };
            let (secs, millis) = (us.unsigned_abs() / 1_000_000, us.unsigned_abs() / 1000 % 1000);
            findings.push(format!(
                "the clock of redis at {node} jumped {direction} by {secs}.{millis:03} s ({times} such jumps), {what}; let a \
                 daemon such as chrony slew it, and keep the clocks of all replicas together"
            ));
        }
        findings
    }

    /// Counts every canary up. Returns how many had decreased.
    async fn count_canaries(&self, calls: &Calls) -> usize {
        let canaries = if calls.client.is_cluster() { CANARIES } else { 1 };
        let args = [CANARY_LIVES_S.to_string().into_bytes()];
        let mut lost = 0;
        for canary in 0..canaries {
            let keys = [Names::canary(canary).into_bytes()];
            let call = Call { script: &calls.scripts().canary, keys: &keys, args: &args, native: None };
            let (deadline, unread) = (instant() + PATIENCE, LastFailure::default());
            let counted = calls.reply(calls.client.run(call, ReplyBound::SMALL, deadline, &unread).await);
            if let Some(count) = counted.ok().and_then(|count| number(&count)) {
                let before = self.lock().canaries.insert(canary, count);
                lost += usize::from(before.is_some_and(|before| count <= before));
            }
        }
        lost
    }
}
