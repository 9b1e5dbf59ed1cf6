//! Resetting a policy: its progress, and where it continues.
//!
//! A policy may have millions of keys among those of others. Each step examines a bounded number of
//! keys, and leaves a cursor whose text any instance on the same store can go on with.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// The progress of the reset of a policy after a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyReset {
    /// Keys of the policy that were forgotten since the reset began.
    pub forgotten: u64,
    /// Keys of all policies that were examined since it began. Of a shared store this is an
    /// estimate.
    pub scanned: u64,
    /// Keys of all policies that there were when it began, if the store reports it.
    pub keys: Option<u64>,
    /// Where the next step continues; `None` when the reset is complete.
    pub next: Option<ResetCursor>,
}

/// Some keys of a policy in a store: one step of a list of all.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PolicyKeys {
    /// The texts of keys that the store can name, with addresses as they are stored. A key may be in
    /// several steps.
    pub keys: Vec<String>,
    /// Keys of the policy of which the store has only a hash.
    pub unnamed: u64,
    /// Keys of all policies that were examined since the list began. Of a shared store this is an
    /// estimate.
    pub scanned: u64,
    /// Where the next step continues; `None` when the list is complete.
    pub next: Option<ResetCursor>,
}

/// Where the next step of a reset or a list goes on. Its text, made by `Display` and read by `FromStr`, is
/// opaque.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResetCursor {
    #[doc(hidden)]
    pub place: Place,
    #[doc(hidden)]
    pub done: ResetCounts,
}

/// Counts of the steps before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResetCounts {
    /// Keys that were forgotten.
    pub forgotten: u64,
    /// Keys that were examined.
    pub scanned: u64,
    /// Keys that there were at the start.
    pub keys: Option<u64>,
}

impl ResetCounts {
    /// Adds what a step found.
    pub fn add(&mut self, found: ScannedKeys) {
        self.forgotten = self.forgotten.saturating_add(found.forgotten);
        self.scanned = self.scanned.saturating_add(found.scanned);
    }
}

/// Numbers of keys that one step of a reset examined and removed.
#[derive(Debug, Clone, Copy, Default)]
pub struct ScannedKeys {
    /// Keys that were removed.
    pub forgotten: u64,
    /// Keys that were examined, those included.
    pub scanned: u64,
}

/// The next keys to examine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A shard of the memory store, by its number.
    Memory {
        /// Its number.
        shard: u64,
    },
    /// A node of a shared store.
    Node {
        /// Stands for the names of all nodes. When those change, keys may have moved, and the scan
        /// begins again.
        nodes: u64,
        /// Among the nodes in the order of their names.
        at: u64,
        /// The cursor of the node's `SCAN`.
        cursor: u64,
    },
}

impl ResetCursor {
    /// Where a reset continues in a store in this process that numbers its parts, beside its totals.
    #[must_use]
    pub fn position(&self) -> Option<u64> {
        match self.place {
            Place::Memory { shard } => Some(shard),
            Place::Node { .. } => None,
        }
    }
}

impl PolicyReset {
    /// After a step of a reset in a store in this process: `from` is where it began, and `next` the
    /// [position](ResetCursor::position) at which the next step continues.
    ///
    /// # Errors
    /// If the cursor belongs to a shared store.
    pub fn step(
        from: Option<&ResetCursor>,
        keys: u64,
        scan: impl FnOnce(u64) -> (ScannedKeys, Option<u64>),
    ) -> Result<Self, Error> {
        let (position, mut done) = match from.map(|from| (from.place, from.done)) {
            None => (0, ResetCounts { keys: Some(keys), ..ResetCounts::default() }),
            Some((Place::Memory { shard }, done)) => (shard, done),
            Some((Place::Node { .. }, _)) => {
                return Err(Error::policy(
                    "the cursor is that of a shared store, and this one is in memory; give none to begin",
                ));
            }
        };
        let (found, next) = scan(position);
        done.add(found);
        Ok(Self::after(done, next.map(|shard| Place::Memory { shard })))
    }

    /// After a step that continues at `next`, if it does.
    pub fn after(done: ResetCounts, next: Option<Place>) -> Self {
        let ResetCounts { forgotten, scanned, keys } = done;
        let next = next.map(|place| ResetCursor { place, done });
        Self { forgotten, scanned, keys, next }
    }
}

impl fmt::Display for ResetCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Place::Memory { shard } => write!(f, "memory.{shard}")?,
            Place::Node { nodes, at, cursor } => write!(f, "node.{nodes}.{at}.{cursor}")?,
        }
        let ResetCounts { forgotten, scanned, keys } = self.done;
        write!(f, ".{forgotten}.{scanned}.")?;
        match keys {
            Some(keys) => write!(f, "{keys}"),
            None => f.write_str("-"),
        }
    }
}

impl FromStr for ResetCursor {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        read(text).ok_or_else(|| {
            let shown: String = text.chars().take(80).collect();
            let shown = shown.escape_debug();
            Error::policy(format!(
                "cursor `{shown}` is invalid; send the one from the last step, or none to begin"
            ))
        })
    }
}

fn read(text: &str) -> Option<ResetCursor> {
    let (kind, rest) = text.split_once('.')?;
    let (rest, keys) = rest.rsplit_once('.')?;
    let keys = if keys == "-" { None } else { Some(keys.parse().ok()?) };
    let numbers = rest.split('.').map(|number| number.parse().ok()).collect::<Option<Vec<u64>>>()?;
    let (place, forgotten, scanned) = match (kind, numbers.as_slice()) {
        ("memory", &[shard, forgotten, scanned]) => (Place::Memory { shard }, forgotten, scanned),
        ("node", &[nodes, at, cursor, forgotten, scanned]) => {
            (Place::Node { nodes, at, cursor }, forgotten, scanned)
        }
        _ => return None,
    };
    Some(ResetCursor { place, done: ResetCounts { forgotten, scanned, keys } })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A cursor that comes back as another one skips keys, which then keep usage that was to be
    /// forgotten.
    #[test]
    fn a_cursor_is_read_back_from_its_text() {
        let done = ResetCounts { forgotten: 7, scanned: u64::MAX, keys: None };
        for place in [Place::Memory { shard: 0 }, Place::Node { nodes: u64::MAX, at: 2, cursor: 1 << 63 }] {
            for done in [done, ResetCounts { keys: Some(12), ..done }] {
                let cursor = ResetCursor { place, done };
                assert_eq!(cursor.to_string().parse(), Ok(cursor));
            }
        }
        for text in
            ["", "memory", "memory.1.2", "memory.1.2.3.x", "node.1.2.3.-", "disk.1.2.3.-", "memory.-1.2.3.4"]
        {
            let error = text.parse::<ResetCursor>().unwrap_err();
            let message =
                format!("cursor `{text}` is invalid; send the one from the last step, or none to begin");
            assert_eq!(error.to_string(), message);
        }
    }
}
