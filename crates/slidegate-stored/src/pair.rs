//! A key and the key of its usage beside holds: their values and effects on them.
//!
//! Without holds, the key holds its usage. The first hold moves the usage to the other key, and the
//! last one moves it back; see docs/redis-layout.md.

use std::borrow::Cow;

use slidegate::Quota;
use slidegate::internal::{Holds, SECOND_US, TAG, TableList, for_algorithm};
use smallvec::SmallVec;

use crate::call::linger_ms;
use crate::key::OpenKey;
use crate::state::{Stored, Unusable, Value};
use crate::write::Write;

/// A part of a value, and where it begins.
pub type Patch = (usize, Vec<u8>);

/// An effect on a key that may have holds. Effects are applied in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Writes the usage: to the usage key if the key has a table, else to the key itself.
    Usage(Write),
    /// Removes the usage.
    NoUsage,
    /// Overwrites parts of the table. One of them may begin at its end.
    Table {
        /// The new parts.
        patches: SmallVec<[Patch; 2]>,
        /// The new expiry in milliseconds since the Unix epoch, if it changes.
        expire_at_ms: Option<u64>,
    },
    /// Stores this table in the key. If the key had none, its usage moves to the usage key with its
    /// expiry, and replaces the value there.
    NewTable {
        /// The table.
        bytes: Vec<u8>,
        /// When it expires, in milliseconds since the Unix epoch.
        expire_at_ms: u64,
        /// Whether the key's value is its usage. A limit on requests in flight has none.
        has_usage: bool,
    },
    /// Removes the table and moves the usage back to the key.
    NoTable,
}

/// The values of a key and of its usage beside holds.
#[derive(Debug, Clone, Default)]
pub struct Pair<'v> {
    /// The key's value.
    pub key: Option<Cow<'v, [u8]>>,
    /// The value of the usage key; also `None` if the call has no such keys.
    pub usage: Option<Cow<'v, [u8]>>,
}

impl Pair<'_> {
    /// Whether the key is a table of holds.
    #[must_use]
    pub fn has_table(&self) -> bool {
        self.key.as_ref().is_some_and(|value| value.first() == Some(&TAG))
    }

    pub(super) fn state(&self) -> Option<&[u8]> {
        if self.has_table() { self.usage.as_deref() } else { self.key.as_deref() }
    }

    /// Applies an effect to the values, without their expiry.
    pub fn apply(&mut self, effect: &Effect) {
        let has_table = self.has_table();
        let state = if has_table { &mut self.usage } else { &mut self.key };
        match effect {
            Effect::Usage(Write::Value { bytes, .. }) => *state = Some(Cow::Owned(bytes.to_vec())),
            Effect::Usage(Write::Patch { head, entry, .. }) => {
                let value = state.get_or_insert_default().to_mut();
                if let Some((from, entry)) = entry {
                    patch(value, *from, entry);
                }
                patch(value, 0, head);
            }
            Effect::NoUsage => *state = None,
            Effect::Table { patches, .. } => {
                let table = self.key.get_or_insert_default().to_mut();
                for (from, bytes) in patches {
                    patch(table, *from, bytes);
                }
            }
            Effect::NewTable { bytes, has_usage, .. } => {
                if !has_table {
                    self.usage = self.key.take().filter(|_| *has_usage);
                }
                self.key = Some(Cow::Owned(bytes.clone()));
            }
            Effect::NoTable => self.key = self.usage.take(),
        }
    }
}

fn patch(value: &mut Vec<u8>, from: usize, bytes: &[u8]) {
    let end = from + bytes.len();
    if value.len() < end {
        value.resize(end, 0);
    }
    value[from..end].copy_from_slice(bytes);
}

/// The expiry of a table with its last end then.
pub(super) fn table_expires_ms(quota: &Quota, now: u64, latest: u64) -> u64 {
    now / 1000 + latest.saturating_sub(now) / 1000 + linger_ms(quota)
}

/// Charges the expired holds of a pair, in the order of their ends and at these times. Each is a
/// separate step, as in a script.
pub(super) fn settle_due(
    pair: &mut Pair<'_>,
    quota: &Quota,
    now: u64,
    effects: &mut Vec<Effect>,
) -> Result<(), Unusable> {
    let Some(table) = pair.key.as_deref().filter(|_| pair.has_table()) else { return Ok(()) };
    let mut holds = read_table(table)?;
    if now >= holds.seen() && now < holds.earliest() {
        return Ok(());
    }
    let arrived = holds.arrive(now, quota.window_us().min(SECOND_US));
    let due = holds.take_due(arrived);
    is_sound(&holds)?;
    if due.is_empty() {
        return Ok(());
    }
    let table = if holds.is_empty() {
        Effect::NoTable
    } else {
        let bytes = [&holds.header()[..], &holds.list(holds.count())].concat();
        let expire_at_ms = table_expires_ms(quota, now, holds.latest());
        Effect::NewTable { bytes, expire_at_ms, has_usage: true }
    };
    for hold in due.iter().filter(|hold| hold.charged_at_end() > 0) {
        // The end of a request in flight charges nothing.
        let charged = for_algorithm!(quota.algorithm(), S => {
            charge_at_end::<Value<'_, S>>(pair.state(), quota, hold.until, hold.charged_at_end())?
        });
        if let Some(write) = charged {
            // Its expiry was computed as of the end.
            let later_ms = (now / 1000).saturating_sub(hold.until / 1000);
            let effect = Effect::Usage(write.later(later_ms));
            pair.apply(&effect);
            effects.push(effect);
        }
    }
    pair.apply(&table);
    effects.push(table);
    Ok(())
}

pub(super) fn read_table(table: &[u8]) -> Result<Holds<TableList<'_>>, Unusable> {
    Holds::of_table(table).map_err(|message| Unusable { message, write: None })
}

/// Whether holds that were read are there and add up.
pub(super) fn is_sound(holds: &Holds<TableList<'_>>) -> Result<(), Unusable> {
    if holds.is_cut_off() {
        return Err(holds_cut_off());
    }
    if holds.is_countable() { Ok(()) } else { Err(Unusable::damaged("its holds do not add up")) }
}

pub(super) fn holds_cut_off() -> Unusable {
    Unusable::damaged("its holds are cut off")
}

/// Bytes of the value of a key with this usage, which is in one entry of a log.
#[must_use]
pub fn value_bytes(quota: &Quota, used: u64) -> usize {
    // Any time of whole windows.
    const NOW_US: u64 = 20_000 * 86_400 * SECOND_US;
    let write =
        for_algorithm!(quota.algorithm(), S => charge_at_end::<Value<'_, S>>(None, quota, NOW_US, used));
    match write {
        Ok(Some(Write::Value { bytes, .. })) => bytes.len(),
        _ => 0,
    }
}

fn charge_at_end<'v, S: Stored<'v>>(
    value: Option<&'v [u8]>,
    quota: &Quota,
    until: u64,
    cost: u64,
) -> Result<Option<Write>, Unusable> {
    let mut key = OpenKey::<S>::open(value, quota, until)?;
    let cost = cost.min(quota.max_used().saturating_sub(key.used(quota)));
    if cost == 0 {
        return Ok(None);
    }
    key.state.charge(quota, key.settled, cost);
    let write = key.state.write(quota, until, &key.before)?;
    key.is_readable()?;
    Ok(write)
}
