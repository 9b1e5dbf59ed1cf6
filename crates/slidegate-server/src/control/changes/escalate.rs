//! Escalation: blocks keys that were denied too often, each time for longer.
//!
//! It sets the same blocks as an operator. The document stores each block's level for as long again as the
//! block lasted, so all instances know it and an unblock forgets it.

use std::time::Duration;

use slidegate::shares::Shares;
use slidegate_http::headers::millis_ceil;
use tokio::time::sleep;

use super::control::Control;
use super::document::{Document, KeyChange, KeyKind, Level};
use super::refusal::{Cause, Refusal};
use crate::clock::at_text;
use crate::log_limit::{LogLimit, log_limited};
use crate::record::{EarnedBlock, NotBlocked};
use crate::wire::key_text::KeyText;

/// The author of these blocks.
const AUTHOR: &str = "escalation";
/// Maximum keys that are blocked by escalation or whose level is remembered. The other half of the document
/// is for operators.
const MAX_BLOCKED: usize = 500;
/// Maximum bytes of these keys, to leave room for other changes.
const MAX_KEY_BYTES: usize = 256 << 10;
/// Minimum interval between two changes of the document: each visits all keys in memory.
const CHANGE_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum blocks in one change.
const MAX_TOGETHER: usize = 1024;

/// The outcome of earned blocks.
#[derive(Debug, Default)]
struct BlockOutcome {
    keys: Vec<KeyChange>,
    /// Keys not blocked for lack of room.
    refused: usize,
    /// The policy of the last of these keys.
    refused_of: String,
}

/// Space in the document used by each policy's blocks.
struct Room {
    keys: Shares<String>,
    bytes: Shares<String>,
}

impl Control {
    /// Blocks keys that earned it, until the process ends.
    pub(crate) async fn escalate(&self) {
        let Some(mut queue) = self.app.observer().escalations.take_queue() else { return };
        let log_limit = LogLimit::default();
        let mut queued = Vec::new();
        while queue.recv_many(&mut queued, MAX_TOGETHER).await > 0 {
            let earned: Vec<_> = queued.drain(..).map(|(earned, _)| earned).collect();
            self.block_all(&earned, &log_limit).await;
            sleep(CHANGE_INTERVAL).await;
        }
    }

    async fn block_all(&self, earned: &[EarnedBlock], log_limit: &LogLimit) {
        let escalations = &self.app.observer().escalations;
        let policies = self.app.policies();
        let is_enforced = |one: &&EarnedBlock| {
            policies.by_name(&one.policy).is_some_and(|policy| policy.options().enforced)
        };
        let (earned, too_long): (Vec<_>, Vec<_>) =
            earned.iter().filter(is_enforced).partition(|one| one.key.len() <= KeyText::MAX);
        escalations.dropped(NotBlocked::KeyTooLong, too_long.len());
        let mut blocked = BlockOutcome::default();
        let edit = |document: &mut Document, now_ms| {
            blocked = document.escalate(&earned, now_ms);
            // Nothing to write.
            let nothing = || Refusal::new(Cause::Conflict, "no further key can be blocked");
            (!blocked.keys.is_empty()).then_some(()).ok_or_else(nothing)
        };
        let changed = self.change(edit).await;
        escalations.dropped(NotBlocked::TooManyBlocks, blocked.refused);
        if blocked.refused > 0 {
            log_limited!(
                WARN,
                None,
                keys = blocked.refused,
                policy = blocked.refused_of,
                max_keys = MAX_BLOCKED,
                max_bytes = MAX_KEY_BYTES,
                "not blocked: escalation blocks at most as many keys of a policy as it leaves free for others"
            );
        }
        match changed {
            Ok(()) => {
                escalations.blocked(blocked.keys.len());
                self.app.observer().mark_changed();
                self.log_blocked(&blocked.keys, log_limit);
                for KeyChange { policy, key, until_ms, by, .. } in &blocked.keys {
                    let denial = earned.iter().find(|one| one.policy == *policy && one.key == *key);
                    if let Some(denial) = denial.and_then(|one| one.denial.as_ref()) {
                        self.app.observer().record_block(denial, *until_ms, by);
                    }
                }
            }
            Err(refusal) if refusal.cause == Cause::Away || !blocked.keys.is_empty() => {
                escalations.dropped(NotBlocked::NotStored, earned.len() - blocked.refused);
                log_limited!(WARN, None, error = refusal.detail, "keys could not be blocked");
            }
            Err(_) => {}
        }
    }

    fn log_blocked(&self, keys: &[KeyChange], log_limit: &LogLimit) {
        for KeyChange { policy, key, until_ms, level, .. } in keys {
            let Some(suppressed) = log_limit.admit_key(format!("{policy} {key}").as_bytes()) else {
                continue;
            };
            tracing::info!(
                target: "slidegate::escalations",
                policy,
                key = self.app.observer().shown(policy, key),
                block = level.as_ref().map_or(1, |level| level.number + 1),
                until = at_text(*until_ms),
                suppressed = (suppressed > 0).then_some(suppressed),
                "blocked"
            );
        }
    }
}

impl Document {
    /// Blocks these keys, except those already blocked or without room.
    fn escalate(&mut self, earned: &[&EarnedBlock], now_ms: u64) -> BlockOutcome {
        let (mut blocked, mut room) = (BlockOutcome::default(), self.room());
        for EarnedBlock { policy, key, lengths, .. } in earned {
            let slot = (policy.as_str(), key.as_str(), true);
            let known = self.keys.iter().find(|change| change.slot() == slot);
            if known.is_some_and(|change| change.until_ms > now_ms) {
                continue;
            }
            let level = known.and_then(|change| change.level.as_ref());
            // The next block replaces the last one.
            let has_place = level.is_some();
            let level = level
                .filter(|level| level.forgotten_ms > now_ms)
                .map_or(0, |level| level.number.saturating_add(1));
            let number = level.min(lengths.len() - 1);
            let length_ms = millis_ceil(lengths[number]);
            let until_ms = now_ms.saturating_add(length_ms);
            let change = KeyChange {
                policy: policy.clone(),
                key: key.clone(),
                kind: KeyKind::Block,
                until_ms,
                by: AUTHOR.to_owned(),
                at_ms: 0,
                level: Some(Level { number, forgotten_ms: until_ms.saturating_add(length_ms) }),
            };
            if (has_place || self.makes_room(&mut room, &change, now_ms))
                && self.set_key(change.clone(), now_ms).is_ok()
            {
                if !has_place {
                    room.add(&change);
                }
                blocked.keys.push(change);
            } else {
                blocked.refused += 1;
                blocked.refused_of.clone_from(policy);
            }
        }
        blocked
    }

    fn room(&self) -> Room {
        let mut room = Room { keys: Shares::new(MAX_BLOCKED), bytes: Shares::new(MAX_KEY_BYTES) };
        self.keys.iter().filter(|change| change.level.is_some()).for_each(|change| room.add(change));
        room
    }

    /// Drops ended blocks, earliest first, until this one fits; false if it does not. A block whose level is
    /// still remembered is dropped only if its policy has at least as many as this one.
    fn makes_room(&mut self, room: &mut Room, one: &KeyChange, now_ms: u64) -> bool {
        while !room.has(one) {
            let own = room.keys.of(&one.policy);
            let may_go = |change: &KeyChange| {
                let is_over = |level: &Level| {
                    level.forgotten_ms <= now_ms
                        || change.until_ms <= now_ms && room.keys.of(&change.policy) >= own
                };
                change.level.as_ref().is_some_and(is_over)
            };
            let ended = self.keys.iter().enumerate().filter(|(_, change)| may_go(change));
            let Some((first, _)) = ended.min_by_key(|(_, change)| change.until_ms) else { return false };
            room.give_back(&self.keys.remove(first));
        }
        true
    }
}

impl Room {
    fn has(&self, one: &KeyChange) -> bool {
        let KeyChange { policy, key, .. } = one;
        self.keys.lacking(policy, 1) == 0 && self.bytes.lacking(policy, key.len()) == 0
    }

    fn add(&mut self, one: &KeyChange) {
        self.keys.add(&one.policy, 1);
        self.bytes.add(&one.policy, one.key.len());
    }

    fn give_back(&mut self, one: &KeyChange) {
        self.keys.give_back(&one.policy, 1);
        self.bytes.give_back(&one.policy, one.key.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE_MS: u64 = 60_000;
    const HOUR_MS: u64 = 60 * MINUTE_MS;

    fn earned(key: &str) -> EarnedBlock {
        let lengths = [2, 10, 60].map(|minutes| Duration::from_secs(minutes * 60));
        EarnedBlock { policy: "p".to_owned(), key: key.to_owned(), lengths: lengths.into(), denial: None }
    }

    /// Blocks a key; returns the end of the block, or `None` if it was not set.
    fn block(document: &mut Document, key: &str, now_ms: u64) -> Option<u64> {
        let blocked = document.escalate(&[&earned(key)], now_ms);
        document.trim(now_ms);
        blocked.keys.first().map(|change| change.until_ms - now_ms)
    }

    /// A key that goes on is blocked for longer each time; one that behaved for as long starts afresh.
    #[test]
    fn each_block_is_longer_until_the_key_was_free_for_as_long_as_it_was_blocked() {
        let (mut document, mut now) = (Document::default(), 1_000_000);
        for (pause, expected) in [
            (0, Some(2 * MINUTE_MS)),
            (2 * MINUTE_MS - 1, None), // blocked
            (1, Some(10 * MINUTE_MS)),
            (20 * MINUTE_MS - 1, Some(HOUR_MS)),
            (2 * HOUR_MS - 1, Some(HOUR_MS)),
            (2 * HOUR_MS, Some(2 * MINUTE_MS)),
        ] {
            now += pause;
            assert_eq!(block(&mut document, "alice", now), expected, "at {now}");
        }
        assert_eq!(block(&mut document, "bob", now), Some(2 * MINUTE_MS));
        // A config with fewer blocks.
        now += 2 * MINUTE_MS;
        let shorter = EarnedBlock { lengths: [Duration::from_secs(60)].into(), ..earned("bob") };
        assert_eq!(document.escalate(&[&shorter], now).keys[0].until_ms - now, MINUTE_MS);
    }

    /// Another instance, or a restarted one, must continue at the stored level.
    #[test]
    fn the_level_is_stored_with_the_block() {
        let mut document = Document::default();
        block(&mut document, "alice", 0);
        let mut read = Document::from_text(&document.stored().unwrap()).unwrap();
        assert_eq!(read, document);
        assert_eq!(block(&mut read, "alice", 3 * MINUTE_MS), Some(10 * MINUTE_MS));
    }

    /// An operator's unblock gives a fresh start, and an operator's block is not overruled.
    #[test]
    fn operators_end_blocks_and_levels_and_set_their_own() {
        let mut document = Document::default();
        block(&mut document, "alice", 0);
        assert!(document.clear_key("p", "alice", &KeyKind::Block, MINUTE_MS));
        assert_eq!(block(&mut document, "alice", MINUTE_MS), Some(2 * MINUTE_MS));
        assert!(!document.clear_key("p", "alice", &KeyKind::Block, 4 * MINUTE_MS), "it has ended");
        assert_eq!(block(&mut document, "alice", 4 * MINUTE_MS), Some(2 * MINUTE_MS));

        let own = KeyChange { until_ms: HOUR_MS, by: "ops".into(), level: None, ..document.keys[0].clone() };
        document.set_key(own, 5 * MINUTE_MS).unwrap();
        assert_eq!(block(&mut document, "alice", 6 * MINUTE_MS), None);
        assert_eq!((document.keys.len(), &*document.keys[0].by), (1, "ops"));
    }

    /// Clients without credentials can invent keys: they must not take the operators' room, nor all the room
    /// for blocks of other policies.
    #[test]
    fn a_policy_takes_half_of_what_is_free_of_half_of_the_changes_and_a_quarter_of_the_bytes() {
        let mut document = Document::default();
        let many = |policy: &str| -> Vec<_> {
            let of = |n| EarnedBlock { policy: policy.to_owned(), ..earned(&format!("invented-{n}")) };
            (0..5000).map(of).collect()
        };
        let blocks = |document: &mut Document, policy: &str, now_ms| {
            let blocked = document.escalate(&many(policy).iter().collect::<Vec<_>>(), now_ms);
            assert_eq!(blocked.keys.len() + blocked.refused, 5000);
            assert_eq!(blocked.refused_of, policy);
            blocked.keys.len()
        };
        assert_eq!(blocks(&mut document, "p", 0), MAX_BLOCKED / 2);
        let victim = EarnedBlock { policy: "login".to_owned(), ..earned("mallory") };
        assert_eq!(document.escalate(&[&victim], 1).keys.len(), 1, "other policies go on blocking");
        assert_eq!(blocks(&mut document, "q", 2), MAX_BLOCKED / 4);
        for n in 0..500 {
            let key = format!("operator-{n}");
            document.set_key(KeyChange { key, level: None, ..document.keys[0].clone() }, 0).unwrap();
        }
        assert_eq!(block(&mut document, "mallory", MINUTE_MS), None, "all of `p` are still blocked");
        // Ended blocks make room though remembered, but not those of a policy with fewer.
        assert!(blocks(&mut document, "r", 2 * MINUTE_MS + 2) >= MAX_BLOCKED / 4);
        let again = document.escalate(&[&victim], 2 * MINUTE_MS + 3);
        assert_eq!(again.keys[0].level.as_ref().unwrap().number, 1, "it is remembered");
        assert!(
            blocks(&mut document, "s", 5 * MINUTE_MS) >= MAX_BLOCKED / 4,
            "those that are forgotten leave"
        );

        let mut document = Document::default();
        let long: Vec<_> = (0..400).map(|n| earned(&format!("{n:01000}"))).collect();
        let blocked = document.escalate(&long.iter().collect::<Vec<_>>(), 0);
        assert_eq!((blocked.keys.len(), blocked.refused), (131, 269));
        assert!(document.stored().unwrap().len() < 512 << 10);
    }
}
