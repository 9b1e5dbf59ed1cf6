//! Inspection: the stored values of one key in full, for operators, as a decision reads them.

use slidegate::internal::{Hold, Holds, Setting, TableList, for_algorithm, inspect_with_holds};
use slidegate::store::{KeyInspection, OpenHold};
use slidegate::{Quota, clock::Timestamp};

use crate::key::OpenKey;
use crate::pair::{Pair, is_sound, read_table, settle_due};
use crate::state::{Stored, Unusable, Value};

/// The full usage of a key at this time in microseconds since the Unix epoch, with the decision of a peek at
/// `cost`. Expired holds are charged in `pair`.
///
/// # Errors
/// If another program wrote one of the values, or it is damaged.
pub fn inspect(
    pair: &mut Pair<'_>,
    quota: &Quota,
    now_us: u64,
    cost: u64,
) -> Result<KeyInspection, Unusable> {
    settle_due(pair, quota, now_us, &mut Vec::new())?;
    let table = pair.key.as_deref().filter(|_| pair.has_table());
    let holds = table.map(read_table).transpose()?.unwrap_or_default();
    for_algorithm!(quota.algorithm(), S => {
        let key = OpenKey::<Value<'_, S>>::open(pair.state(), quota, now_us)?;
        inspect_open(&key, holds, quota, Timestamp::from_micros(now_us), cost)
    })
}

fn inspect_open<'v, S: Stored<'v>>(
    key: &OpenKey<S>,
    holds: Holds<TableList<'_>>,
    quota: &Quota,
    now: Timestamp,
    cost: u64,
) -> Result<KeyInspection, Unusable> {
    let charges = key.state.charges(quota);
    key.is_readable()?;
    // In `u128`, because costs that another program wrote may overflow.
    let sum: u128 = charges.iter().map(|charge| u128::from(charge.cost)).sum();
    if quota.algorithm().setting() == Setting::Slots && sum != key.used(quota).into() {
        return Err(Unusable::damaged("the sum of its runs is not its usage"));
    }
    let held: u128 = holds.iter().map(|hold| u128::from(hold.held)).sum();
    is_sound(&holds)?;
    if held != holds.sum().into() {
        return Err(Unusable::damaged("its holds do not add up"));
    }
    let (mut found, holds) = inspect_with_holds(key.state.clone(), holds, quota, (now, now), cost);
    let open = |hold: Hold| OpenHold {
        id: hold.id,
        held: hold.held,
        settled: hold.settled,
        until: Timestamp::from_micros(hold.until),
        unsettled: hold.unsettled,
    };
    found.holds = holds.iter().filter(|hold| !hold.has_ended).map(open).collect();
    found.holds.sort_by_key(|hold| hold.until);
    Ok(found)
}
