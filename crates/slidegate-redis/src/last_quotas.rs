//! The quota under which a key was last charged, stored beside it if it depends on requests: with a tier or an
//! inline quota, views and operators could not know it.
//!
//! Written after a decision, which does not wait for it, and by each instance at most once a minute for a key and
//! quota. So a view may show the quota of up to a minute ago.

use std::hash::{DefaultHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use redis::Value;
use redis_once::Failure;
use slidegate::internal::{MILLION, NewHold, SetTable, instant, millis_ceil};
use slidegate::store::{Charge, LastQuota};
use slidegate::{Key, Quota, verb::Verb};
use slidegate_stored::call::linger_ms;
use tokio::time::Instant;

use crate::admin::PATIENCE;
use crate::call::{Answers, Subjects};
use crate::calls::{Calls, explain};
use crate::names::Names;

/// How long a written quota is not written again.
const WRITTEN_FOR: Duration = Duration::from_secs(60);
/// Most writes on their way. Further ones are left to the next charge of their keys.
const MAX_WRITES: usize = 256;

/// The quotas written by this instance in the last minute, by key.
#[derive(Debug, Default)]
pub(crate) struct LastQuotas {
    written: SetTable<u64, (LastQuota, Instant)>,
    writes: AtomicUsize,
}

impl LastQuotas {
    /// Writes the quotas of charged keys that depend on the request, without waiting.
    pub(crate) fn note(
        self: &Arc<Self>,
        calls: &Arc<Calls>,
        charges: &[Charge<'_>],
        subjects: &Subjects,
        answers: &Answers,
    ) {
        for ((charge, subject), decision) in charges.iter().zip(&subjects.0).zip(answers) {
            let is_charged = charge.verb() != Verb::Refund && decision.cost > 0;
            if charge.keeps_quota && is_charged && self.is_due(&subject.name, charge.quota()) {
                let (quotas, calls) = (Arc::clone(self), Arc::clone(calls));
                let (name, quota, hold) = (subject.name.clone(), *charge.quota(), subject.hold);
                tokio::spawn(async move {
                    if write(&calls, &name, &quota, hold).await.is_err() {
                        let hash = hash(&name);
                        quotas.written.set(hash).remove(hash);
                    }
                    quotas.writes.fetch_sub(1, Relaxed);
                });
            }
        }
    }

    /// Whether the quota of this key has to be written now. If so, counts the write.
    fn is_due(&self, name: &[u8], quota: &Quota) -> bool {
        let (hash, quota, now) = (hash(name), LastQuota::of(quota), instant());
        let mut written = self.written.set(hash);
        if written.get_mut(hash).is_some_and(|(last, until)| *last == quota && now < *until) {
            return false;
        }
        if self.writes.fetch_add(1, Relaxed) >= MAX_WRITES {
            self.writes.fetch_sub(1, Relaxed);
            return false;
        }
        written.insert(hash, (quota, now + WRITTEN_FOR), |(_, until)| *until);
        true
    }
}

/// Kept for as long as usage can count, and until it is written again.
async fn write(calls: &Calls, name: &[u8], quota: &Quota, hold: Option<NewHold>) -> Result<(), Failure> {
    let held_ms = hold.map_or(0, |hold| hold.ttl_us / 1000);
    let ttl_ms = linger_ms(quota) + held_ms + millis_ceil(WRITTEN_FOR);
    let mut command = redis::cmd("SET");
    command.arg(Names::last_quota(name)).arg(LastQuota::of(quota).to_string()).arg("PX").arg(ttl_ms);
    calls.client.command(Some(name), &command, instant() + PATIENCE).await.map(drop)
}

/// The stored quota of a key, in units of its policy. An invalid value counts as absent.
pub(crate) async fn read(calls: &Calls, names: &Names, key: &Key<'_>) -> Result<Option<LastQuota>, Failure> {
    let name = names.name(key);
    let mut command = redis::cmd("GET");
    command.arg(Names::last_quota(&name));
    let value = calls.client.command(Some(&name), &command, instant() + PATIENCE).await.map_err(explain)?;
    let Value::BulkString(text) = value else { return Ok(None) };
    let last: Option<LastQuota> = std::str::from_utf8(&text).ok().and_then(|text| text.parse().ok());
    Ok(last.map(|last| last.divided(if key.space.in_millionths { MILLION } else { 1 })))
}

fn hash(name: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(name);
    hasher.finish()
}
