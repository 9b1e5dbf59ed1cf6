//! The document: all that was changed at run time, as it lies in the store. docs/redis-layout.md shows one.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use slidegate::{Quota, millis_ceil};

use super::terms::Terms;
use super::{Cause, Refusal};

/// The form that this release writes and reads.
const LAYOUT: u32 = 1;
/// Most keys that are blocked or have another limit at a time: every decision under such a policy looks among them.
pub(crate) const MAX_KEYS: usize = 1000;
/// Changes that are remembered; older ones can no longer be undone.
const MAX_CHANGES: usize = 100;
/// Largest document, as the store takes it.
const MAX_BYTES: usize = (1 << 20) - 32;

/// What was changed, and who did it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Document {
    layout: u32,
    /// Policies that are not as the configuration says, by name.
    #[serde(default)]
    pub(crate) policies: BTreeMap<String, Terms>,
    /// Keys that are not as their policies say.
    #[serde(default)]
    pub(crate) keys: Vec<KeyChange>,
    /// The last changes of policies, the oldest first.
    #[serde(default)]
    pub(crate) changes: Vec<Change>,
    /// The number of the last change.
    #[serde(default)]
    last_id: u64,
}

/// One key that is blocked, or has a limit of its own, until a time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeyChange {
    pub(crate) policy: String,
    /// As answers print it.
    pub(crate) key: String,
    #[serde(flatten)]
    pub(crate) kind: KeyKind,
    /// When it ends by itself, in milliseconds since the epoch.
    pub(crate) until_ms: u64,
    /// The token that it was made with.
    pub(crate) by: String,
}

/// What is with a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub(crate) enum KeyKind {
    /// Nothing that costs anything passes.
    Block,
    /// Another limit, counted as the policy counts.
    Override { limit: u64, window_ms: u64 },
}

impl KeyKind {
    pub(crate) fn of(quota: &Quota) -> Self {
        Self::Override { limit: quota.limit(), window_ms: millis_ceil(quota.window()) }
    }

    /// The quota that the key is under, in a policy of this one.
    pub(crate) fn quota(&self, policy: &Quota) -> Result<Quota, String> {
        let (limit, window) = match self {
            Self::Block => (0, policy.window()),
            Self::Override { limit, window_ms } => (*limit, Duration::from_millis(*window_ms)),
        };
        let quota = Quota::new(limit, window).map_err(|error| error.to_string())?;
        Ok(quota.with_algorithm(policy.algorithm()).with_slots(policy.slots()))
    }

    /// Whether both are blocks, or neither is.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        matches!(self, Self::Block) == matches!(other, Self::Block)
    }
}

/// One change of a policy, with all that is needed to undo it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Change {
    pub(crate) id: u64,
    pub(crate) at_ms: u64,
    pub(crate) by: String,
    pub(crate) policy: String,
    pub(crate) what: What,
    /// `None`: as the configuration says.
    pub(crate) before: Option<Terms>,
    pub(crate) after: Option<Terms>,
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum What {
    Set,
    Unset,
    Promote,
    /// The change of this number.
    Undo(u64),
}

impl Default for Document {
    fn default() -> Self {
        let (policies, keys, changes) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { layout: LAYOUT, policies, keys, changes, last_id: 0 }
    }
}

impl Document {
    /// Reads what a store holds; nothing is a document without changes.
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

    /// As it is stored. Where that would be too large, the oldest changes can no longer be undone.
    pub(crate) fn stored(&mut self) -> Result<String, Refusal> {
        loop {
            let text = serde_json::to_string(self).expect("our own types have a JSON form");
            if text.len() <= MAX_BYTES {
                return Ok(text);
            }
            if self.changes.len() <= 1 {
                let detail =
                    format!("all changes together would take {} bytes; {MAX_BYTES} is the most", text.len());
                return Err(Refusal::new(Cause::Conflict, detail));
            }
            self.changes.drain(..self.changes.len() / 2);
        }
    }

    /// The keys of a policy that was added at run time.
    pub(crate) fn added(&self, policy: &str) -> Option<&serde_json::Map<String, serde_json::Value>> {
        self.policies.get(policy)?.added.as_ref()
    }

    /// How many policies were added at run time.
    pub(crate) fn count_added(&self) -> usize {
        self.policies.values().filter(|terms| terms.added.is_some()).count()
    }

    /// Changes of keys that have not ended.
    pub(crate) fn living(&self, now_ms: u64) -> impl Iterator<Item = &KeyChange> {
        self.keys.iter().filter(move |change| change.until_ms > now_ms)
    }

    pub(crate) fn drop_ended(&mut self, now_ms: u64) {
        self.keys.retain(|change| change.until_ms > now_ms);
    }

    pub(crate) fn drop_old_history(&mut self) {
        let old = self.changes.len().saturating_sub(MAX_CHANGES);
        self.changes.drain(..old);
    }

    /// Puts a change of a key in the place of the one of its kind.
    pub(crate) fn set_key(&mut self, change: KeyChange) -> Result<(), Refusal> {
        self.clear_key(&change.policy, &change.key, &change.kind);
        if self.keys.len() >= MAX_KEYS {
            let detail = format!(
                "{MAX_KEYS} keys are blocked or have a limit of their own, which is the most; clear some, or \
                                  write lasting ones into the configuration"
            );
            return Err(Refusal::new(Cause::Conflict, detail));
        }
        self.keys.push(change);
        Ok(())
    }

    /// Ends a key's change of this kind; says whether there was one.
    pub(crate) fn clear_key(&mut self, policy: &str, key: &str, kind: &KeyKind) -> bool {
        let before = self.keys.len();
        self.keys.retain(|one| !(one.policy == policy && one.key == key && one.kind.is_like(kind)));
        self.keys.len() < before
    }

    /// Puts a policy under other terms, or back to its configuration, and remembers that.
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
        let (id, by, policy) = (self.last_id, by.to_owned(), policy.to_owned());
        self.changes.push(Change { id, at_ms: now_ms, by, policy, what, before, after });
        id
    }

    /// The number of the change that undid this one.
    pub(crate) fn undone_by(&self, id: u64) -> Option<u64> {
        self.changes.iter().find(|change| change.what == What::Undo(id)).map(|change| change.id)
    }

    /// Puts a policy back to what it was before a change, or before the last one that is not undone.
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
    use crate::control::terms::{Counting, Mode};

    fn terms(limit: u64) -> Option<Terms> {
        let quota =
            Counting { limit, window_ms: 1000, algorithm: "sliding-log".into(), burst: None, slots: None };
        Some(Terms { quota, mode: Mode::Enforce, candidate: None, added: None })
    }

    fn limit(document: &Document) -> Option<u64> {
        document.policies.get("p").map(|terms| terms.quota.limit)
    }

    /// Undo is pressed in a hurry: it must put back what was there, and nothing that somebody changed meanwhile.
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

    /// A large change must not keep every later one from being made: what was done long ago goes first.
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

    /// What is kept for the whole fleet must not grow for ever, and what ends must end.
    #[test]
    fn history_and_keys_are_bounded_and_end() {
        let mut document = Document::default();
        for n in 0..150 {
            document.set_policy("p", terms(n), What::Set, "ops", 0);
        }
        document.drop_old_history();
        assert_eq!((document.changes.len(), document.changes[0].id), (MAX_CHANGES, 51));
        let key = |n: usize, until_ms| KeyChange {
            policy: "p".into(),
            key: n.to_string(),
            kind: KeyKind::Block,
            until_ms,
            by: "ops".into(),
        };
        for n in 0..MAX_KEYS {
            document.set_key(key(n, 10 + n as u64)).unwrap();
        }
        document.set_key(key(7, 5000)).unwrap();
        assert_eq!(document.set_key(key(MAX_KEYS, 1)).unwrap_err().cause, Cause::Conflict);
        document.drop_ended(10);
        assert_eq!(document.keys.len(), MAX_KEYS - 1);
        assert_eq!(document.living(1009).count(), 1);
    }

    /// An older release must not run on half of what it can read.
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
