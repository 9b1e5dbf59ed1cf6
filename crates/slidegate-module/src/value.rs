//! Stored values: applies a decision's writes to a key and sends them to replicas.
//!
//! Replicas and the append-only file get the effects, never the command, which would need the module and
//! decide again at their time.

use std::borrow::Cow;

use slidegate_stored::{Effect, Pair, Patch, Write};

use crate::api::Key;

/// Maximum bytes of a log's header and new entry that are replicated as one `SETRANGE`. Above it, two
/// commands in a transaction take fewer bytes.
const ONE_COMMAND: usize = 256;

/// Stores a decision's changes.
pub(crate) fn store(key: &mut Key<'_>, write: &Write) {
    match write {
        Write::Value { bytes, expire_at_ms } => {
            if key.value().map(<[u8]>::len) == Some(bytes.len()) {
                key.overwrite(0, bytes);
            } else {
                key.replace(bytes);
            }
            key.expire_at(*expire_at_ms);
            key.replicate_set(bytes, *expire_at_ms);
        }
        Write::Patch { head, entry, expire_at_ms } => {
            if let Some((from, entry)) = entry {
                key.overwrite(*from, entry);
            }
            key.overwrite(0, head);
            let end = entry.as_ref().map_or(head.len(), |(from, entry)| from + entry.len());
            if end <= ONE_COMMAND {
                key.replicate_range(0, end);
            } else {
                if let Some((from, entry)) = entry {
                    key.replicate_range(*from, entry.len());
                }
                key.replicate_range(0, head.len());
            }
            if let Some(at_ms) = expire_at_ms {
                key.expire_at(*at_ms);
                key.replicate_expiry(*at_ms);
            }
        }
    }
    key.signal();
}

/// A key, and the key of its usage next to holds, which calls without holds do not name.
pub(crate) struct Keys<'c> {
    pub(crate) key: Key<'c>,
    pub(crate) usage: Option<Key<'c>>,
}

impl Keys<'_> {
    /// The stored values.
    pub(crate) fn pair(&self) -> Pair<'_> {
        let usage = self.usage.as_ref().and_then(Key::value);
        Pair { key: self.key.value().map(Cow::Borrowed), usage: usage.map(Cow::Borrowed) }
    }

    /// Applies an effect and sends it to replicas.
    pub(crate) fn apply(&mut self, effect: &Effect) {
        let has_table = self.key.value().is_some_and(|value| value.first() == Some(&TABLE));
        let Self { key, usage } = self;
        let state = match usage {
            Some(usage) if has_table => usage,
            _ => &mut *key,
        };
        match effect {
            Effect::Usage(write) => return store(state, write),
            Effect::NoUsage => {
                state.delete();
                state.replicate_delete();
                return state.signal();
            }
            Effect::Table { patches, expire_at_ms } => {
                overwrite(key, patches);
                if let Some(at_ms) = expire_at_ms {
                    key.expire_at(*at_ms);
                    key.replicate_expiry(*at_ms);
                }
            }
            Effect::NewTable { bytes, expire_at_ms, has_usage } => {
                if let Some(usage) = usage.as_mut().filter(|_| !has_table) {
                    if usage.value().is_some() {
                        // Leftovers of an evicted table do not count.
                        usage.delete();
                        usage.replicate_delete();
                        usage.signal();
                    }
                    if *has_usage {
                        rename(key, usage);
                    }
                }
                key.replace(bytes);
                key.expire_at(*expire_at_ms);
                key.replicate_set(bytes, *expire_at_ms);
            }
            Effect::NoTable => match usage.as_mut().filter(|usage| usage.value().is_some()) {
                Some(usage) => rename(usage, key),
                None => {
                    key.delete();
                    key.replicate_delete();
                }
            },
        }
        key.signal();
    }
}

/// The first byte of a table of holds.
const TABLE: u8 = 0x15;

/// Moves a value with its expiry, replacing the target.
fn rename(from: &mut Key<'_>, to: &mut Key<'_>) {
    let Some(value) = from.value() else { return };
    to.replace(value);
    if let Some(at_ms) = from.expiry() {
        to.expire_at(at_ms);
    }
    from.delete();
    from.replicate_rename(to);
    from.signal();
    to.signal();
}

/// Overwrites parts of a table, which may become longer.
fn overwrite(key: &mut Key<'_>, patches: &[Patch]) {
    let end = patches.iter().map(|(from, bytes)| from + bytes.len()).max().unwrap_or(0);
    if key.value().is_none_or(|value| value.len() < end) {
        key.grow(end);
    }
    for (from, bytes) in patches {
        key.overwrite(*from, bytes);
    }
    if (1..=ONE_COMMAND).contains(&end) {
        key.replicate_range(0, end);
    } else {
        patches.iter().for_each(|(from, bytes)| key.replicate_range(*from, bytes.len()));
    }
}
