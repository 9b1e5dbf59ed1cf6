//! Merging: combines two documents, so that a loss drops no change made on either side.
//!
//! Each policy, and each block or override of a key, is a last-writer-wins register: its last
//! change or removal, with a stamp. The newer register wins, so all instances that merge converge
//! on the same active changes, in any order.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::document::{Change, ChangeSlot, ClearedKey, Document, KeyChange, What};
use super::terms::Terms;

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
enum KeyRegister<'d> {
    Set(&'d KeyChange),
    Cleared(&'d ClearedKey),
}

/// The registers of all keys of a document.
type KeyRegisters<'d> = BTreeMap<ChangeSlot<'d>, KeyRegister<'d>>;

impl<'d> KeyRegister<'d> {
    fn slot(&self) -> ChangeSlot<'d> {
        match self {
            Self::Set(change) => change.slot(),
            Self::Cleared(cleared) => cleared.slot(),
        }
    }

    fn stamp(&self) -> u64 {
        match self {
            Self::Set(change) => change.at_ms,
            Self::Cleared(cleared) => cleared.at_ms,
        }
    }

    fn until_ms(&self) -> u64 {
        match self {
            Self::Set(change) => change.until_ms,
            Self::Cleared(cleared) => cleared.until_ms,
        }
    }
}

/// Whether a register is newer. Ties, from concurrent changes on two instances, are broken by the
/// serialized text: any deterministic rule works.
fn newer<T: PartialEq + Serialize>((stamp, value): (u64, &T), (other_stamp, other): (u64, &T)) -> Ordering {
    stamp.cmp(&other_stamp).then_with(|| {
        let text = |value: &T| serde_json::to_string(value).expect("our own types serialize");
        if value == other { Ordering::Equal } else { text(value).cmp(&text(other)) }
    })
}

impl Document {
    /// Whether this document contains every register of `other`, or a newer one. Expired changes
    /// may be missing.
    pub(super) fn holds(&self, other: &Self, now_ms: u64) -> bool {
        let keys = self.key_registers();
        other.stamps.keys().all(|name| self.holds_policy(other, name))
            && other
                .key_registers()
                .values()
                .all(|theirs| theirs.until_ms() <= now_ms || self.holds_key(&keys, theirs))
    }

    /// The union of two documents, with the newer of each register. The history keeps this
    /// document's numbers; conflicting numbers of `other` change.
    pub(super) fn merged(&self, other: &Self) -> Self {
        let mut merged = self.clone();
        for name in other.stamps.keys().filter(|name| !self.holds_policy(other, name)) {
            merged.take_policy(other, name);
        }
        for name in self.stamps.keys().filter(|name| other.forgot_policy(name, self.stamps[*name])) {
            merged.policies.remove(name);
            merged.stamps.remove(name);
        }
        let (ours, theirs) = (self.key_registers(), other.key_registers());
        let mut all: BTreeMap<_, _> =
            ours.iter().filter(|(_, register)| !other.forgot_key(&theirs, register)).collect();
        all.extend(theirs.iter().filter(|(_, register)| !self.holds_key(&ours, register)));
        (merged.keys, merged.cleared) = (Vec::new(), Vec::new());
        for register in all.into_values() {
            match *register {
                KeyRegister::Set(change) => merged.keys.push(change.clone()),
                KeyRegister::Cleared(one) => merged.cleared.push(one.clone()),
            }
        }
        merged.add_history(other);
        merged.newest_ms = merged.newest_ms.max(other.newest_ms);
        merged.forgotten.policies_ms = merged.forgotten.policies_ms.max(other.forgotten.policies_ms);
        merged.forgotten.keys_ms = merged.forgotten.keys_ms.max(other.forgotten.keys_ms);
        merged
    }

    /// Whether this document has this policy's register of `other`, or a newer one.
    fn holds_policy(&self, other: &Self, name: &str) -> bool {
        let theirs: (u64, &Option<&Terms>) = (other.stamps[name], &other.policies.get(name));
        match self.stamps.get(name) {
            Some(stamp) => newer((*stamp, &self.policies.get(name)), theirs).is_ge(),
            None => self.forgot_policy(name, theirs.0),
        }
    }

    /// Whether this policy was reverted here after this stamp, and its tombstone was dropped.
    fn forgot_policy(&self, name: &str, stamp: u64) -> bool {
        !self.stamps.contains_key(name) && stamp < self.forgotten.policies_ms
    }

    fn take_policy(&mut self, other: &Self, name: &str) {
        self.stamps.insert(name.to_owned(), other.stamps[name]);
        match other.policies.get(name) {
            Some(terms) => self.policies.insert(name.to_owned(), terms.clone()),
            None => self.policies.remove(name),
        };
    }

    fn key_registers(&self) -> KeyRegisters<'_> {
        let set = self.keys.iter().map(|change| (change.slot(), KeyRegister::Set(change)));
        let cleared = self.cleared.iter().map(|one| (one.slot(), KeyRegister::Cleared(one)));
        cleared.chain(set).collect()
    }

    /// Whether this document has this register of a key, or a newer one.
    fn holds_key(&self, ours: &KeyRegisters<'_>, theirs: &KeyRegister<'_>) -> bool {
        match ours.get(&theirs.slot()) {
            Some(register) => newer((register.stamp(), register), (theirs.stamp(), theirs)).is_ge(),
            None => self.forgot_key(ours, theirs),
        }
    }

    /// Whether this change of a key was removed here, and its tombstone was dropped.
    fn forgot_key(&self, ours: &KeyRegisters<'_>, theirs: &KeyRegister<'_>) -> bool {
        !ours.contains_key(&theirs.slot()) && theirs.stamp() < self.forgotten.keys_ms
    }

    /// Adds the history entries that only the other document has, in order of time.
    fn add_history(&mut self, other: &Self) {
        let mut last_id = self.last_id.max(other.last_id);
        let mut numbers = HashMap::new();
        let mut added = Vec::new();
        for theirs in &other.changes {
            if let Some(ours) = self.changes.iter().find(|ours| is_same(ours, theirs)) {
                numbers.insert(theirs.id, ours.id);
                continue;
            }
            let mut change = theirs.clone();
            if self.changes.iter().any(|ours| ours.id == change.id) {
                last_id += 1;
                change.id = last_id;
            }
            numbers.insert(theirs.id, change.id);
            added.push(change);
        }
        for change in &mut added {
            if let What::Undo(undone) = &mut change.what {
                *undone = numbers.get(undone).copied().unwrap_or(*undone);
            }
        }
        let new = other.actions.iter().filter(|theirs| !self.actions.contains(theirs));
        self.actions.extend(new.cloned().collect::<Vec<_>>());
        self.actions.sort_by_key(|done| done.at_ms);
        self.changes.append(&mut added);
        self.changes.sort_by_key(|change| (change.at_ms, change.id));
        self.last_id = last_id;
    }
}

/// Whether two history entries are the same change. Its number, and that of the change it undoes,
/// may differ.
fn is_same(one: &Change, other: &Change) -> bool {
    let Change { id: _, at_ms, by, policy, what, before, after } = one;
    let is_what = match (what, &other.what) {
        (What::Undo(_), What::Undo(_)) => true,
        (what, other) => what == other,
    };
    is_what
        && (at_ms, by, policy, before, after)
            == (&other.at_ms, &other.by, &other.policy, &other.before, &other.after)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::changes::Counting;
    use crate::control::changes::document::KeyKind;
    use slidegate::Quota;
    use slidegate_config::policy::Mode;

    fn terms(limit: u64) -> Option<Terms> {
        let quota = Counting::of(&Quota::per_second(limit));
        Some(Terms { quota, mode: Mode::Enforce, candidate: None, added: None })
    }

    fn block(document: &mut Document, key: &str, now_ms: u64) {
        let (policy, key, kind) = ("p".to_owned(), key.to_owned(), KeyKind::Block);
        let change =
            KeyChange { policy, key, kind, until_ms: 1_000_000, by: "ops".to_owned(), at_ms: 0, level: None };
        document.set_key(change, now_ms).unwrap();
    }

    fn blocked(document: &Document) -> Vec<&str> {
        document.keys.iter().map(|change| change.key.as_str()).collect()
    }

    /// Merges both ways and asserts the properties of a merge.
    fn merged(one: &Document, other: &Document) -> Document {
        let (a, b) = (one.merged(other), other.merged(one));
        assert!(a.holds(&b, 0) && b.holds(&a, 0) && a.digest(0) == b.digest(0));
        assert!(a.holds(one, 0) && a.holds(other, 0));
        assert_eq!((a.merged(one), a.merged(other), a.merged(&a)), (a.clone(), a.clone(), a.clone()));
        a
    }

    /// Two concurrent changes in one millisecond: instances that merge in different orders must
    /// agree.
    #[test]
    fn of_changes_with_one_stamp_the_same_one_wins_everywhere() {
        let (mut one, mut other) = (Document::default(), Document::default());
        one.set_policy("p", terms(1), What::Set, "ops", 10);
        other.set_policy("p", terms(2), What::Set, "support", 10);
        block(&mut one, "alice", 20);
        block(&mut other, "alice", 19);
        assert!(other.clear_key("p", "alice", &KeyKind::Block, 20));
        let (a, b) = (merged(&one, &other), merged(&other, &one));
        assert_eq!((&a.policies, blocked(&a)), (&b.policies, blocked(&b)));
    }

    /// An unblocked customer must not be blocked again by an instance that missed the removal.
    #[test]
    fn what_was_put_back_is_not_brought_back() {
        let mut stale = Document::default();
        stale.set_policy("p", terms(1), What::Set, "ops", 10);
        block(&mut stale, "alice", 20);
        let mut newer = stale.clone();
        newer.set_policy("p", None, What::Unset, "ops", 5);
        // The clock of the remover is behind that of the blocker.
        assert!(newer.clear_key("p", "alice", &KeyKind::Block, 7));
        let mut both = merged(&newer, &stale);
        assert!(both.policies.is_empty() && both.keys.is_empty());
        assert_eq!(both.undo(Some(2), "ops", 30).unwrap().after, terms(1));

        // Also if its tombstone was dropped since.
        for n in 0..2000 {
            block(&mut newer, &n.to_string(), 40);
            assert!(newer.clear_key("p", &n.to_string(), &KeyKind::Block, 41));
            newer.set_policy(&n.to_string(), terms(1), What::Set, "ops", 42);
            newer.set_policy(&n.to_string(), None, What::Unset, "ops", 43);
        }
        newer.trim(50);
        assert!(newer.holds(&stale, 0));
        let both = merged(&newer, &stale);
        assert!(both.policies.is_empty() && both.keys.is_empty());
        // Later changes are not affected.
        block(&mut stale, "bob", 5000);
        assert!(!newer.holds(&stale, 0));
        assert_eq!(blocked(&merged(&newer, &stale)), ["bob"]);
    }

    /// Two instances used the same number: undo must revert the intended change.
    #[test]
    fn the_history_of_both_sides_is_kept_under_numbers_of_its_own() {
        let mut base = Document::default();
        base.set_policy("p", terms(1), What::Set, "ops", 10);
        let (mut one, mut other) = (base.clone(), base);
        one.set_policy("q", terms(2), What::Set, "ops", 20);
        other.set_policy("r", terms(3), What::Set, "ops", 15);
        other.undo(Some(2), "ops", 16).unwrap();
        let both = one.merged(&other);
        let merged_history: Vec<_> =
            both.changes.iter().map(|one| (one.id, one.policy.as_str(), one.what.clone())).collect();
        let expected =
            [(1, "p", What::Set), (4, "r", What::Set), (3, "r", What::Undo(4)), (2, "q", What::Set)];
        assert_eq!(merged_history, expected);
        assert_eq!((both.undone_by(4), both.undone_by(2), both.last_id), (Some(3), None, 4));
        assert_eq!(both.merged(&other), both, "a change is not taken for another one because of its number");
    }

    /// The next writer drops expired changes, which is not a loss.
    #[test]
    fn what_has_ended_may_be_missing() {
        let mut document = Document::default();
        block(&mut document, "alice", 0);
        assert!(!Document::default().holds(&document, 999_999));
        assert!(Document::default().holds(&document, 1_000_000));
    }
}
