//! Stored values: what a decision writes, applied to a key and sent to replicas.
//!
//! Replicas and the append-only file get the effects and never the command, which would decide again
//! at their time, and would need the module.

use slidegate::stored::Write;

use crate::api::Key;

/// Up to this length, a log's header and its new entry are replicated as one `SETRANGE`. Above it,
/// two commands in a transaction take fewer bytes.
const ONE_COMMAND: usize = 256;

/// Stores what a decision has changed.
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
                let value = key.value().unwrap_or_default();
                key.replicate_overwrite(0, value.get(..end).unwrap_or(value));
            } else {
                if let Some((from, entry)) = entry {
                    key.replicate_overwrite(*from, entry);
                }
                key.replicate_overwrite(0, head);
            }
            if let Some(at_ms) = expire_at_ms {
                key.expire_at(*at_ms);
                key.replicate_expiry(*at_ms);
            }
        }
    }
    key.signal();
}
