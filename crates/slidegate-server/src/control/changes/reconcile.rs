//! Reconciling: compares the active document with the stored one and decides what to activate and
//! write.
//!
//! A store can lose the document: an empty restart, `FLUSHALL`, a deleted key, or a failover to a
//! lagging replica, with or without later writes. All cases reduce to one question: does the stored
//! document contain every active change? If so, it is adopted. If not, both are merged and the
//! result replaces exactly the document that was read. Such a write is always a superset of what it
//! replaces, so each instance adds its changes at most once and all instances converge. No instance
//! needs to know what happened to the store or which other instances exist.
//!
//! A random epoch, a version and a random revision identify a stored document. Every write has a
//! new revision, which distinguishes documents with equal epoch and version, as a failover can
//! leave. Every write after a loss has a new epoch. The version never decreases as far as any
//! instance knows.

use std::fmt;
use std::sync::Arc;

use slidegate::store::ControlDocumentId;

use super::document::Document;

/// The active document of an instance.
#[derive(Debug, Clone, Default)]
pub(super) struct Held {
    /// The id of the stored document it corresponds to: [`ControlDocumentId::ABSENT`] before the
    /// first one.
    pub(super) id: ControlDocumentId,
    pub(super) document: Arc<Document>,
}

#[derive(Debug, Clone, Default)]
pub(super) struct StoredDocument {
    pub(super) id: ControlDocumentId,
    pub(super) document: Document,
}

/// The document to activate.
#[derive(Debug)]
pub(super) struct Reconciliation {
    pub(super) document: Document,
    /// The loss of the stored document; `None` if it is complete and equal to `document`.
    pub(super) loss: Option<Loss>,
}

/// How the stored document is incomplete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// It is absent.
    Absent,
    /// It is an older version.
    Older { found: u64, held: u64 },
    /// Its writer did not know all changes that are active here.
    Incomplete { found: ControlDocumentId },
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str("the store has no document"),
            Self::Older { found, held } => {
                write!(f, "the store has version {found} of the document, and version {held} is in force")
            }
            Self::Incomplete { found } => write!(
                f,
                "the store's document (epoch {:016x}, version {}) lacks changes that are in force",
                found.epoch, found.version
            ),
        }
    }
}

/// The document to activate, from the active and the stored one.
pub(super) fn reconcile(held: &Held, found: &StoredDocument, now_ms: u64) -> Reconciliation {
    let loss = if found.id.is_absent() {
        (!held.id.is_absent()).then_some(Loss::Absent)
    } else if found.id.epoch == held.id.epoch && found.id.version < held.id.version {
        Some(Loss::Older { found: found.id.version, held: held.id.version })
    } else if !found.document.holds(&held.document, now_ms) {
        Some(Loss::Incomplete { found: found.id })
    } else {
        None
    };
    let document = match loss {
        None => found.document.clone(),
        Some(_) => found.document.merged(&held.document),
    };
    Reconciliation { document, loss }
}

/// The id of the document that replaces `found`. `random` returns non-zero numbers.
///
/// # Errors
/// The errors of `random`.
pub(super) fn next_id<E>(
    held: &Held,
    found: &StoredDocument,
    is_after_loss: bool,
    mut random: impl FnMut() -> Result<u64, E>,
) -> Result<ControlDocumentId, E> {
    // The first document has no epoch yet.
    let epoch = if is_after_loss || found.id.epoch == 0 { random()? } else { found.id.epoch };
    let version = held.id.version.max(found.id.version) + 1;
    Ok(ControlDocumentId { epoch, version, revision: random()? })
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use proptest::prelude::*;
    use slidegate::Quota;
    use slidegate_config::policy::Mode;

    use super::*;
    use crate::control::changes::{Counting, KeyChange, KeyKind, Terms, What};

    /// When changes of keys expire by default.
    const FAR_MS: u64 = 1_000_000_000;

    fn block(key: &str, until_ms: u64) -> KeyChange {
        let (policy, key, kind) = ("p".to_owned(), key.to_owned(), KeyKind::Block);
        KeyChange { policy, key, kind, until_ms, by: "ops".to_owned(), at_ms: 0, level: None }
    }

    fn terms(limit: u64) -> Terms {
        let quota = Counting::of(&Quota::per_second(limit));
        Terms { quota, mode: Mode::Enforce, candidate: None, added: None }
    }

    /// A store with compare-and-set.
    #[derive(Default)]
    struct Store {
        now: StoredDocument,
        random: u64,
    }

    impl Store {
        fn replace(
            &mut self,
            held: &Held,
            found: &StoredDocument,
            document: Document,
            is_after_loss: bool,
        ) -> bool {
            let id = next_id(held, found, is_after_loss, || {
                self.random += 1;
                Ok::<_, Infallible>(self.random)
            });
            let Ok(id) = id;
            let is_there = self.now.id == found.id;
            if is_there {
                self.now = StoredDocument { id, document };
            }
            is_there
        }
    }

    /// Instances as in `Control`, each step one call of the store.
    #[derive(Default)]
    struct Instance {
        held: Held,
        /// Read and not yet written.
        read: Option<StoredDocument>,
        losses: u32,
    }

    impl Instance {
        fn read(&mut self, store: &Store) {
            self.read = Some(store.now.clone());
        }

        /// The rest of a poll. Returns whether it is complete.
        fn settle(&mut self, store: &mut Store, now_ms: u64) -> bool {
            let Some(found) = self.read.take() else { return true };
            let Reconciliation { mut document, loss } = reconcile(&self.held, &found, now_ms);
            if loss.is_none() {
                self.held = StoredDocument::held(found);
                return true;
            }
            self.losses += 1;
            self.held.document = Arc::new(document.clone());
            document.trim(now_ms);
            if !store.replace(&self.held, &found, document, true) {
                return false;
            }
            self.held = StoredDocument::held(store.now.clone());
            true
        }

        fn poll(&mut self, store: &mut Store, now_ms: u64) {
            self.read(store);
            while !self.settle(store, now_ms) {
                self.read(store);
            }
        }

        fn change(&mut self, store: &mut Store, now_ms: u64, edit: impl Fn(&mut Document)) {
            // One call at a time: a poll that has read continues, or reads again.
            self.read = None;
            let found = store.now.clone();
            let Reconciliation { mut document, loss } = reconcile(&self.held, &found, now_ms);
            self.losses += u32::from(loss.is_some());
            edit(&mut document);
            document.trim(now_ms);
            assert!(store.replace(&self.held, &found, document, loss.is_some()));
            self.held = StoredDocument::held(store.now.clone());
        }

        fn block(&mut self, store: &mut Store, key: &str, now_ms: u64) {
            self.change(store, now_ms, |document| document.set_key(block(key, FAR_MS), now_ms).unwrap());
        }

        fn blocked(&self, now_ms: u64) -> Vec<&str> {
            let mut keys: Vec<_> = self.held.document.living(now_ms).map(|one| one.key.as_str()).collect();
            keys.sort_unstable();
            keys
        }
    }

    impl StoredDocument {
        fn held(found: Self) -> Held {
            Held { id: found.id, document: Arc::new(found.document) }
        }
    }

    /// No loss may be reported without one: operators disable alerts that fire for nothing.
    #[test]
    fn starting_and_following_others_is_not_a_loss() {
        let (mut store, mut a, mut b) = (Store::default(), Instance::default(), Instance::default());
        a.poll(&mut store, 1);
        assert!(store.now.id.is_absent());
        a.change(&mut store, 2, |document| document.set_key(block("short", 50), 2).unwrap());
        b.poll(&mut store, 3);
        for round in 0..300 {
            let name = format!("added-{round}");
            a.change(&mut store, 100, |document| {
                document.set_policy(&name, Some(terms(1)), What::Set, "ops", 100);
            });
            a.change(&mut store, 100, |document| {
                document.set_policy(&name, None, What::Unset, "ops", 100);
            });
        }
        b.poll(&mut store, 400_000);
        assert_eq!((a.losses, b.losses, b.held.id), (0, 0, a.held.id));
    }

    /// An old copy of the document must not restore an expired block.
    #[test]
    fn what_has_ended_stays_ended_after_a_loss() {
        let (mut store, mut a) = (Store::default(), Instance::default());
        a.change(&mut store, 1, |document| document.set_key(block("short", 50), 1).unwrap());
        store.now = StoredDocument::default();
        a.poll(&mut store, 49);
        assert_eq!((a.losses, a.blocked(49)), (1, vec!["short"]));
        let old = store.now.clone();
        a.block(&mut store, "other", 400_000);
        assert_eq!(store.now.document.keys.len(), 1);
        store.now = old;
        a.poll(&mut store, 400_001);
        assert_eq!(a.blocked(400_001), ["other"]);
        store.now = StoredDocument::default();
        a.poll(&mut store, 400_002);
        assert_eq!(store.now.document.keys.len(), 1, "it is not written back either");
    }

    #[derive(Debug, Clone)]
    enum Step {
        Block {
            instance: usize,
            key: u8,
        },
        Clear {
            instance: usize,
            key: u8,
        },
        Set {
            instance: usize,
            policy: u8,
            limit: Option<u64>,
        },
        /// A poll reads; others may act before it continues.
        Read {
            instance: usize,
        },
        Settle {
            instance: usize,
        },
        Lose,
        /// The store reverts by this many writes.
        RollBack(usize),
        /// An instance restarts while others run.
        Restart {
            instance: usize,
        },
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let instance = || 0..3_usize;
        let step = prop_oneof![
            3 => (instance(), 0..4_u8).prop_map(|(instance, key)| Step::Block { instance, key }),
            2 => (instance(), 0..4_u8).prop_map(|(instance, key)| Step::Clear { instance, key }),
            2 => (instance(), 0..3_u8, proptest::option::of(1..9_u64))
                .prop_map(|(instance, policy, limit)| Step::Set { instance, policy, limit }),
            4 => instance().prop_map(|instance| Step::Read { instance }),
            4 => instance().prop_map(|instance| Step::Settle { instance }),
            1 => Just(Step::Lose),
            1 => (1..4_usize).prop_map(Step::RollBack),
            1 => instance().prop_map(|instance| Step::Restart { instance }),
        ];
        proptest::collection::vec(step, 1..60)
    }

    proptest! {
        /// After any loss and any interleaving of writes and polls, all instances converge on the
        /// last change of each register.
        #[test]
        fn all_instances_converge_and_no_change_is_dropped(steps in steps()) {
            let mut store = Store::default();
            let mut instances: [Instance; 3] = Default::default();
            let mut copies = vec![StoredDocument::default()];
            // The last change of each register, by stamp.
            let mut blocks = std::collections::BTreeMap::new();
            let mut limits = std::collections::BTreeMap::new();
            for (at, step) in steps.into_iter().enumerate() {
                let now = 100 * (at as u64 + 1);
                match step {
                    Step::Block { instance, key } => {
                        instances[instance].block(&mut store, &key.to_string(), now);
                        blocks.insert(key, true);
                    }
                    Step::Clear { instance, key } => {
                        // An instance cannot remove a block it does not know.
                        let name = key.to_string();
                        let mut was_there = false;
                        let found = store.now.clone();
                        let known = reconcile(&instances[instance].held, &found, now).document;
                        if known.living(now).any(|one| one.key == name) {
                            was_there = true;
                        }
                        instances[instance].change(&mut store, now, |document| {
                            document.clear_key("p", &name, &KeyKind::Block, now);
                        });
                        if was_there {
                            blocks.insert(key, false);
                        }
                    }
                    Step::Set { instance, policy, limit } => {
                        let name = policy.to_string();
                        instances[instance].change(&mut store, now, |document| {
                            document.set_policy(&name, limit.map(terms), What::Set, "ops", now);
                        });
                        limits.insert(name, limit);
                    }
                    Step::Read { instance } => instances[instance].read(&store),
                    Step::Settle { instance } => {
                        instances[instance].settle(&mut store, now);
                    }
                    Step::Lose => store.now = StoredDocument::default(),
                    Step::RollBack(back) => {
                        store.now = copies[copies.len().saturating_sub(back + 1)].clone();
                    }
                    Step::Restart { instance } => {
                        // The others polled before, so nothing is known to this one alone.
                        for one in &mut instances {
                            one.poll(&mut store, now);
                        }
                        instances[instance] = Instance::default();
                        instances[instance].poll(&mut store, now);
                    }
                }
                if copies.last().is_none_or(|copy| copy.id != store.now.id) {
                    copies.push(store.now.clone());
                }
            }
            let now = 1_000_000;
            for _ in 0..2 {
                for one in &mut instances {
                    one.read = None;
                    one.poll(&mut store, now);
                }
            }
            let expected: Vec<_> =
                blocks.iter().filter(|(_, is)| **is).map(|(key, _)| key.to_string()).collect();
            for one in &instances {
                prop_assert_eq!(one.held.id, store.now.id);
                prop_assert_eq!(one.blocked(now), expected.clone());
                prop_assert_eq!(one.held.document.digest(now), instances[0].held.document.digest(now));
                for (name, limit) in &limits {
                    let held = one.held.document.policies.get(name).map(|terms| terms.quota.limit);
                    prop_assert_eq!(held, *limit);
                }
            }
            // Polling again finds nothing to do.
            let (id, losses) = (store.now.id, instances.iter().map(|one| one.losses).sum::<u32>());
            for one in &mut instances {
                one.poll(&mut store, now);
            }
            prop_assert_eq!(store.now.id, id);
            prop_assert_eq!(instances.iter().map(|one| one.losses).sum::<u32>(), losses);
        }
    }
}
