//! The control document: all run-time changes, as stored. docs/redis-layout.md shows one.
//!
//! It also lists reverted changes with a timestamp (tombstones). Without them, a change that is
//! still active on another instance could not be distinguished from one that the store lost.

use std::collections::BTreeMap;
use std::time::Duration;

use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};
use slidegate::{Algorithm, Counts, Quota};
use slidegate_http::headers::millis_ceil;

use super::refusal::{Cause, Refusal};
use super::terms::Terms;

/// The format version that this release reads and writes.
const LAYOUT: u32 = 1;
/// Maximum keys with a block or override: every decision under their policy searches them.
pub(crate) const MAX_KEYS: usize = 1000;
/// Maximum changes in the history, of which older ones cannot be undone, and maximum actions on keys.
pub(super) const MAX_CHANGES: usize = 100;
/// Maximum tombstones of reverted policies. An instance that missed more than these uses
/// [`Forgotten`].
const MAX_REMOVED: usize = 256;
/// Maximum tombstones of blocks and overrides that were removed before their end.
const MAX_CLEARED: usize = 1000;
/// How long an expired change of a key is kept, in milliseconds. An instance whose clock is behind
/// by less than this never mistakes an expired change for a lost one.
const KEPT_AFTER_END_MS: u64 = 5 * 60 * 1000;
/// Maximum size of the document in the store.
const MAX_BYTES: usize = (1 << 20) - 32;

/// All run-time changes and their authors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Document {
    layout: u32,
    /// Policies that differ from the config, by name.
    #[serde(default)]
    pub(crate) policies: BTreeMap<String, Terms>,
    /// Keys with a block or override.
    #[serde(default)]
    pub(crate) keys: Vec<KeyChange>,
    /// The history of policy changes, oldest first.
    #[serde(default)]
    pub(crate) changes: Vec<Change>,
    /// What operators did to single keys, oldest first.
    #[serde(default)]
    pub(crate) actions: Vec<ActionRecord>,
    /// The number of the last change.
    #[serde(default)]
    pub(super) last_id: u64,
    /// The stamp of the last change per policy. A policy that is here and not in `policies` was
    /// reverted.
    #[serde(default)]
    pub(super) stamps: BTreeMap<String, u64>,
    /// Tombstones of blocks and overrides that were removed before their end.
    #[serde(default)]
    pub(super) cleared: Vec<ClearedKey>,
    /// The newest stamp.
    #[serde(default)]
    pub(super) newest_ms: u64,
    #[serde(default)]
    pub(super) forgotten: Forgotten,
}

/// The tombstone of a block or override that was removed before its end.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClearedKey {
    pub(super) policy: String,
    pub(super) key: String,
    /// Whether it was a block; an override otherwise.
    pub(super) is_block: bool,
    /// The stamp of the removal.
    pub(super) at_ms: u64,
    /// When it would have expired; the tombstone is not needed after that.
    pub(super) until_ms: u64,
}

/// Stamps up to which tombstones were dropped: an older change that is not in this document was
/// reverted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Forgotten {
    pub(super) policies_ms: u64,
    pub(super) keys_ms: u64,
}

/// A block or override of one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeyChange {
    pub(crate) policy: String,
    /// The key, as printed in responses.
    pub(crate) key: String,
    #[serde(flatten)]
    pub(crate) kind: KeyKind,
    /// When it expires, in milliseconds since the epoch.
    pub(crate) until_ms: u64,
    /// The token of its author.
    pub(crate) by: String,
    /// Its stamp, set by [`Document::set_key`].
    pub(crate) at_ms: u64,
    /// Set if the key's denials earned the block.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) level: Option<Level>,
}

/// The position of a block in its policy's `escalate` list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Level {
    /// Index in the list, from 0.
    pub(super) number: usize,
    /// Until then, the key's next block is the next in the list. Later than the block's end.
    pub(super) forgotten_ms: u64,
}

/// The kind of a key's change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum KeyKind {
    /// A block: denies every cost above 0.
    Block,
    /// An override: another limit, with the policy's algorithm.
    Override {
        limit: u64,
        window_ms: u64,
        /// Whether the key has no limit. Releases that do not know this use `limit`, which is
        /// [`KeyKind::ABOUT_UNLIMITED`].
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        unlimited: bool,
    },
}

/// A key's terms while a change of it is active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyTerms {
    /// Blocked, with its quota unchanged.
    Blocked,
    /// Another quota.
    Quota(Quota),
    Unlimited,
}

impl KeyKind {
    pub(crate) fn of(quota: &Quota) -> Self {
        Self::Override { limit: quota.limit(), window_ms: millis_ceil(quota.window()), unlimited: false }
    }

    /// A limit that every store can count and that no key reaches.
    pub(crate) const ABOUT_UNLIMITED: u64 = Counts::MAX_WEIGHTED_LIMIT;

    /// No limit, for a policy with this quota.
    pub(crate) fn unlimited(policy: &Quota) -> Self {
        let window_ms = millis_ceil(policy.window());
        Self::Override { limit: Self::ABOUT_UNLIMITED, window_ms, unlimited: true }
    }

    /// The key's terms under a policy with this quota.
    pub(crate) fn terms(&self, policy: &Quota) -> Result<KeyTerms, String> {
        match self {
            Self::Block => Ok(KeyTerms::Blocked),
            Self::Override { unlimited: true, .. } => Ok(KeyTerms::Unlimited),
            Self::Override { limit, window_ms, .. } => {
                Self::quota(*limit, *window_ms, policy).map(KeyTerms::Quota)
            }
        }
    }

    fn quota(limit: u64, window_ms: u64, policy: &Quota) -> Result<Quota, String> {
        if policy.algorithm() == Algorithm::InFlight {
            // The lease stays the policy's.
            return Quota::in_flight(limit, policy.window()).map_err(|error| error.to_string());
        }
        if policy.calendar_window().is_some() && window_ms == millis_ceil(policy.window()) {
            return Ok(policy.with_limit(limit));
        }
        let quota = Quota::new(limit, Duration::from_millis(window_ms)).map_err(|error| error.to_string())?;
        Ok(quota.with_algorithm(policy.algorithm()).with_slots(policy.slots()))
    }
}

/// Identifies a change of a key: policy name, key, and whether it is a block. There is at most one
/// change of each.
pub(super) type ChangeSlot<'d> = (&'d str, &'d str, bool);

impl KeyChange {
    pub(super) fn slot(&self) -> ChangeSlot<'_> {
        (&self.policy, &self.key, self.kind == KeyKind::Block)
    }
}

impl ClearedKey {
    pub(super) fn slot(&self) -> ChangeSlot<'_> {
        (&self.policy, &self.key, self.is_block)
    }
}

/// One entry of the history, with everything needed to undo it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Change {
    pub(crate) id: u64,
    /// Its stamp: milliseconds since the epoch, or the previous stamp plus one if that is later.
    pub(crate) at_ms: u64,
    pub(crate) by: String,
    pub(crate) policy: String,
    pub(crate) what: What,
    /// `None`: as configured.
    pub(crate) before: Option<Terms>,
    pub(crate) after: Option<Terms>,
}

/// What an operator did to a key, for the list of changes. The change itself is in [`keys`](Document::keys) or in the usage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ActionRecord {
    pub(crate) at_ms: u64,
    pub(crate) by: String,
    pub(crate) policy: String,
    pub(crate) key: String,
    pub(crate) action: String,
    pub(crate) words: String,
}

/// The kind of a policy change.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum What {
    Set,
    Unset,
    Promote,
    /// Undoes the change with this number.
    Undo(u64),
}

impl Default for Document {
    fn default() -> Self {
        Self {
            layout: LAYOUT,
            policies: BTreeMap::new(),
            keys: Vec::new(),
            changes: Vec::new(),
            actions: Vec::new(),
            last_id: 0,
            stamps: BTreeMap::new(),
            cleared: Vec::new(),
            newest_ms: 0,
            forgotten: Forgotten::default(),
        }
    }
}

impl Document {
    /// Parses the stored document; an absent one has no changes.
    pub(crate) fn from_text(text: &str) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Layout {
            layout: u32,
        }
        if text.is_empty() {
            return Ok(Self::default());
        }
        let foreign = |error| {
            format!("`sg1:control` holds no changes of limits: {error}; does another program write it?")
        };
        let Layout { layout } = serde_json::from_str(text).map_err(foreign)?;
        if layout != LAYOUT {
            return Err(format!(
                "`sg1:control` has layout {layout} and this release reads {LAYOUT}; upgrade it"
            ));
        }
        serde_json::from_str(text).map_err(foreign)
    }

    /// Serializes the document. If it is too large, drops the oldest history entries, which can
    /// then not be undone.
    pub(crate) fn stored(&mut self) -> Result<String, Refusal> {
        loop {
            let text = serde_json::to_string(self).expect("our own types have a JSON form");
            if text.len() <= MAX_BYTES {
                return Ok(text);
            }
            if !self.actions.is_empty() {
                self.actions.drain(..self.actions.len().div_ceil(2));
                continue;
            }
            if self.changes.len() <= 1 && !self.cleared.is_empty() {
                self.forget_cleared(self.cleared.len() / 2);
                continue;
            }
            if self.changes.len() <= 1 {
                let detail =
                    format!("all changes together would take {} bytes; {MAX_BYTES} is the most", text.len());
                return Err(Refusal::new(Cause::Conflict, detail));
            }
            self.changes.drain(..self.changes.len() / 2);
        }
    }

    /// The config keys of a policy added at run time.
    pub(crate) fn added(&self, policy: &str) -> Option<&serde_json::Map<String, serde_json::Value>> {
        self.policies.get(policy)?.added.as_ref()
    }

    /// Number of policies added at run time.
    pub(crate) fn count_added(&self) -> usize {
        self.policies.values().filter(|terms| terms.added.is_some()).count()
    }

    /// Number of active changes.
    pub(crate) fn count_in_force(&self, now_ms: u64) -> usize {
        self.policies.len() + self.living(now_ms).count()
    }

    /// Changes of keys that have not expired.
    pub(crate) fn living(&self, now_ms: u64) -> impl Iterator<Item = &KeyChange> {
        self.keys.iter().filter(move |change| change.until_ms > now_ms)
    }

    /// Digest of the active changes, equal on instances that enforce the same ones. 0 for none.
    ///
    /// 48 bits of SHA-256, exact in a double, because Prometheus compares it between instances.
    pub(crate) fn digest(&self, now_ms: u64) -> u64 {
        let mut keys: Vec<_> = self.living(now_ms).collect();
        if keys.is_empty() && self.policies.is_empty() {
            return 0;
        }
        keys.sort_by_key(|change| change.slot());
        let keys: Vec<_> =
            keys.iter().map(|change| (&change.policy, &change.key, &change.kind, change.until_ms)).collect();
        let text = serde_json::to_vec(&(&self.policies, keys)).expect("our own types have a JSON form");
        let hash = digest(&SHA256, &text);
        hash.as_ref()[..6].iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// Drops expired changes of keys, and the oldest entries over each bound.
    pub(crate) fn trim(&mut self, now_ms: u64) {
        self.drop_ended(now_ms.saturating_sub(KEPT_AFTER_END_MS));
        self.changes.drain(..self.changes.len().saturating_sub(MAX_CHANGES));
        self.actions.drain(..self.actions.len().saturating_sub(MAX_CHANGES));
        self.forget_cleared(MAX_CLEARED);
        let mut removed: Vec<_> =
            self.stamps.iter().filter(|(name, _)| !self.policies.contains_key(*name)).collect();
        removed.sort_by_key(|(name, stamp)| (**stamp, name.as_str()));
        let old = removed.len().saturating_sub(MAX_REMOVED);
        let old: Vec<_> = removed[..old].iter().map(|(name, stamp)| ((*name).clone(), **stamp)).collect();
        for (name, stamp) in old {
            self.stamps.remove(&name);
            self.forgotten.policies_ms = self.forgotten.policies_ms.max(stamp.saturating_add(1));
        }
    }

    /// Drops the oldest tombstones of keys, keeping this many.
    fn forget_cleared(&mut self, left: usize) {
        self.cleared.sort_by_key(|one| one.at_ms);
        let old = self.cleared.len().saturating_sub(left);
        for one in self.cleared.drain(..old) {
            self.forgotten.keys_ms = self.forgotten.keys_ms.max(one.at_ms.saturating_add(1));
        }
    }

    fn drop_ended(&mut self, now_ms: u64) {
        let kept_ms =
            |change: &KeyChange| change.level.as_ref().map_or(change.until_ms, |level| level.forgotten_ms);
        self.keys.retain(|change| kept_ms(change) > now_ms);
        self.cleared.retain(|one| one.until_ms > now_ms);
    }

    /// The stamp of a new change: later than all earlier ones, independent of clock differences, so
    /// that a change made with knowledge of another is always newer.
    fn stamp(&mut self, now_ms: u64) -> u64 {
        self.newest_ms = now_ms.max(self.newest_ms.saturating_add(1));
        self.newest_ms
    }

    /// Sets a key's block or override, replacing the one of its kind.
    pub(crate) fn set_key(&mut self, mut change: KeyChange, now_ms: u64) -> Result<(), Refusal> {
        self.keys.retain(|one| one.slot() != change.slot());
        self.cleared.retain(|one| one.slot() != change.slot());
        if self.keys.len() >= MAX_KEYS {
            self.drop_ended(now_ms);
        }
        if self.keys.len() >= MAX_KEYS {
            let detail = format!(
                "{MAX_KEYS} keys are blocked or have a limit of their own, which is the most; clear some, or \
                                  write lasting ones into the configuration"
            );
            return Err(Refusal::new(Cause::Conflict, detail));
        }
        change.at_ms = self.stamp(now_ms);
        self.keys.push(change);
        Ok(())
    }

    /// Removes a key's block or override and forgets the level of earlier blocks. Returns whether one was
    /// active.
    pub(crate) fn clear_key(&mut self, policy: &str, key: &str, kind: &KeyKind, now_ms: u64) -> bool {
        let slot = (policy, key, *kind == KeyKind::Block);
        let Some(at) = self.keys.iter().position(|one| one.slot() == slot) else { return false };
        if self.keys[at].until_ms <= now_ms {
            self.keys[at].level = None;
            return false;
        }
        let KeyChange { policy, key, kind, until_ms, .. } = self.keys.remove(at);
        let is_block = kind == KeyKind::Block;
        let at_ms = self.stamp(now_ms);
        self.cleared.push(ClearedKey { policy, key, is_block, at_ms, until_ms });
        true
    }

    /// Adds what an operator did to a key.
    pub(crate) fn note_action(&mut self, mut done: ActionRecord, now_ms: u64) {
        done.at_ms = now_ms;
        self.actions.push(done);
    }

    /// Changes a policy, or reverts it to the config, and records that in the history.
    pub(crate) fn set_policy(
        &mut self,
        policy: &str,
        after: Option<Terms>,
        what: What,
        by: &str,
        now_ms: u64,
    ) -> u64 {
        let before = match &after {
            Some(terms) => self.policies.insert(policy.to_owned(), terms.clone()),
            None => self.policies.remove(policy),
        };
        self.last_id += 1;
        let at_ms = self.stamp(now_ms);
        let (id, by, policy) = (self.last_id, by.to_owned(), policy.to_owned());
        self.stamps.insert(policy.clone(), at_ms);
        self.changes.push(Change { id, at_ms, by, policy, what, before, after });
        id
    }

    /// The number of the change that undid this one, if any.
    pub(crate) fn undone_by(&self, id: u64) -> Option<u64> {
        self.changes.iter().find(|change| change.what == What::Undo(id)).map(|change| change.id)
    }

    /// Undoes a change, or the last one that is not yet undone.
    pub(crate) fn undo(&mut self, id: Option<u64>, by: &str, now_ms: u64) -> Result<Change, Refusal> {
        let is_open =
            |change: &&Change| !matches!(change.what, What::Undo(_)) && self.undone_by(change.id).is_none();
        let found = match id {
            Some(id) => self.changes.iter().find(|change| change.id == id),
            None => self.changes.iter().rev().find(is_open),
        };
        let Some(change) = found.cloned() else {
            let detail = match id {
                Some(id) => {
                    format!("there is no change {id}; `GET /v1/changes` lists those that can be undone")
                }
                None => "there is no change that could be undone".to_owned(),
            };
            return Err(Refusal::new(Cause::Unknown, detail));
        };
        let Change { id, policy, .. } = &change;
        if let Some(by) = self.undone_by(*id) {
            return Err(Refusal::new(
                Cause::Conflict,
                format!("change {id} is undone already, by change {by}"),
            ));
        }
        if self.policies.get(policy) != change.after.as_ref() {
            let later =
                self.changes.iter().rev().find(|later| later.policy == *policy).map_or(0, |later| later.id);
            let detail =
                format!("policy `{policy}` was changed again after change {id}; undo change {later} first");
            return Err(Refusal::new(Cause::Conflict, detail));
        }
        let undone = self.set_policy(policy, change.before.clone(), What::Undo(*id), by, now_ms);
        self.changes
            .iter()
            .find(|change| change.id == undone)
            .cloned()
            .ok_or_else(|| Refusal::new(Cause::Conflict, "the change was forgotten"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::changes::terms::Counting;
    use slidegate_config::policy::Mode;

    fn terms(limit: u64) -> Option<Terms> {
        let quota = Counting::of(&Quota::per_second(limit));
        Some(Terms { quota, mode: Mode::Enforce, candidate: None, added: None })
    }

    fn block(key: &str, until_ms: u64) -> KeyChange {
        let (policy, key, kind) = ("p".to_owned(), key.to_owned(), KeyKind::Block);
        KeyChange { policy, key, kind, until_ms, by: "ops".to_owned(), at_ms: 0, level: None }
    }

    fn limit(document: &Document) -> Option<u64> {
        document.policies.get("p").map(|terms| terms.quota.limit)
    }

    /// Undo must restore the previous state, and must not revert later changes by others.
    #[test]
    fn a_change_is_undone_to_what_was_before_unless_it_was_changed_again() {
        let mut document = Document::default();
        assert_eq!(document.undo(None, "ops", 0).unwrap_err().cause, Cause::Unknown);
        document.set_policy("p", terms(1), What::Set, "ops", 0);
        document.set_policy("p", terms(2), What::Set, "ops", 0);
        let error = document.undo(Some(1), "ops", 0).unwrap_err();
        assert_eq!(error.detail, "policy `p` was changed again after change 1; undo change 2 first");
        assert_eq!(document.undo(None, "ops", 0).unwrap().id, 3);
        assert_eq!(limit(&document), Some(1));
        let error = document.undo(Some(2), "ops", 0).unwrap_err();
        assert_eq!(error.detail, "change 2 is undone already, by change 3");
        document.undo(None, "ops", 0).unwrap();
        assert_eq!(limit(&document), None);
        assert_eq!(document.undo(Some(4), "ops", 0).unwrap().what, What::Undo(4));
        assert_eq!(limit(&document), Some(1));
        assert_eq!(Document::from_text(&document.stored().unwrap()).unwrap(), document);
    }

    /// A large change must not prevent later ones: the oldest history is dropped first.
    #[test]
    fn history_makes_room_for_what_is_in_force() {
        let mut document = Document::default();
        let long = || {
            let mut terms = terms(1).unwrap();
            terms.added = serde_json::json!({ "scope": ["x".repeat(20_000)] }).as_object().cloned();
            Some(terms)
        };
        for _ in 0..60 {
            document.set_policy("p", long(), What::Set, "ops", 0);
        }
        let text = document.stored().unwrap();
        assert!(text.len() <= MAX_BYTES && document.changes.len() == 15, "{}", document.changes.len());
        assert_eq!(document.undo(None, "ops", 0).unwrap().what, What::Undo(60));
        document.policies.insert("q".into(), terms(1).unwrap());
        for n in 0..60 {
            document.policies.insert(n.to_string(), long().unwrap());
        }
        assert_eq!(document.stored().unwrap_err().cause, Cause::Conflict);
    }

    /// The shared document must not grow without bound, and changes must expire.
    #[test]
    fn history_and_keys_are_bounded_and_end() {
        let mut document = Document::default();
        for n in 0..150 {
            document.set_policy("p", terms(n), What::Set, "ops", 0);
        }
        document.trim(0);
        assert_eq!((document.changes.len(), document.changes[0].id), (MAX_CHANGES, 51));
        let key = |n: usize, until_ms| block(&n.to_string(), until_ms);
        for n in 0..MAX_KEYS {
            document.set_key(key(n, 10 + n as u64), 0).unwrap();
        }
        document.set_key(key(7, 5000), 0).unwrap();
        assert_eq!(document.set_key(key(MAX_KEYS, 9999), 9).unwrap_err().cause, Cause::Conflict);
        // Expired changes are dropped if space is needed, otherwise some time after their end.
        document.set_key(key(MAX_KEYS, 9999), 10).unwrap();
        assert_eq!(document.keys.len(), MAX_KEYS);
        document.trim(11 + KEPT_AFTER_END_MS);
        assert_eq!(document.keys.len(), MAX_KEYS - 1);
        assert_eq!(document.living(1009).count(), 2);
        assert!(!document.clear_key("p", "11", &KeyKind::Block, 21), "it has ended");
        assert!(document.clear_key("p", "11", &KeyKind::Block, 20));
    }

    /// Tombstones are kept for instances that missed the removal, and must be bounded too.
    #[test]
    fn what_was_put_back_is_listed_up_to_a_bound_and_its_stamp_after_that() {
        let mut document = Document::default();
        for n in 0..MAX_REMOVED + 2 {
            document.set_policy(&n.to_string(), terms(1), What::Set, "ops", 0);
            document.set_policy(&n.to_string(), None, What::Unset, "ops", 0);
        }
        document.trim(0);
        assert_eq!((document.stamps.len(), document.forgotten.policies_ms), (MAX_REMOVED, 5));
        for n in 0..MAX_CLEARED + 1 {
            document.set_key(block(&n.to_string(), 9999), 0).unwrap();
            assert!(document.clear_key("p", &n.to_string(), &KeyKind::Block, 0));
        }
        let first = document.cleared[0].at_ms;
        document.trim(0);
        assert_eq!((document.cleared.len(), document.forgotten.keys_ms), (MAX_CLEARED, first + 1));
        document.set_key(block("7", 9999), 0).unwrap();
        assert_eq!(document.cleared.len(), MAX_CLEARED - 1, "it is blocked again");
    }

    /// Operators compare digests of instances: they must be equal exactly if the same changes are enforced.
    #[test]
    fn the_digest_is_of_what_is_in_force() {
        let (mut one, mut other) = (Document::default(), Document::default());
        assert_eq!(one.digest(0), 0);
        for (key, until_ms) in [("a", 50), ("b", 60)] {
            one.set_key(KeyChange { by: "other".into(), ..block(key, until_ms) }, 0).unwrap();
        }
        for change in [block("b", 60), block("c", 9), block("a", 50)] {
            other.set_key(change, 7).unwrap();
        }
        assert_ne!(one.digest(8), other.digest(8), "c is blocked in one of them");
        assert_eq!(one.digest(9), other.digest(9));
        assert!(one.digest(9) > 0 && one.digest(9) < 1 << 48);
        one.set_policy("p", terms(1), What::Set, "ops", 0);
        assert_ne!(one.digest(9), other.digest(9));
        assert_eq!(other.digest(60), 0);
    }

    /// An older release must not apply a part of a document it does not fully understand.
    #[test]
    fn another_layout_and_other_texts_are_refused() {
        let error = Document::from_text(r#"{"layout":2}"#).unwrap_err();
        assert_eq!(error, "`sg1:control` has layout 2 and this release reads 1; upgrade it");
        for text in ["x", "[]", r#"{"layout":1,"keys":[{}]}"#] {
            assert!(
                Document::from_text(text)
                    .unwrap_err()
                    .starts_with("`sg1:control` holds no changes of limits")
            );
        }
    }
}
