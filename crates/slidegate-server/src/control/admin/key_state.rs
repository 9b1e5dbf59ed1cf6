//! Responses about one key: its usage, its denials, and what operators changed.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use slidegate::store::{KeyUse, RecordedCharge};
use slidegate::{Amount, Amounts, Policy, Reason};
use slidegate_http::headers::millis_ceil;

use crate::record;

/// Maximum charges in a response; further ones are merged with their neighbours.
const MAX_CHARGES: usize = 500;
/// Maximum open reservations in a response; those that end first are listed.
const MAX_HOLDS: usize = 100;

/// A key and its usage.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Key")]
pub(crate) struct ShownKey<'a> {
    pub(super) policy: &'a str,
    pub(super) key: &'a str,
    #[serde(flatten)]
    pub(super) state: KeyState,
}

/// A change of a key, and its usage after it. If the store could not be read then, the change is made and the
/// other fields are absent.
#[derive(Serialize, JsonSchema)]
pub(crate) struct KeyDone<'a> {
    pub(super) policy: &'a str,
    pub(super) key: &'a str,
    /// What was done, in words.
    pub(super) done: String,
    #[serde(flatten)]
    pub(super) state: Option<KeyState>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct KeyState {
    #[serde(flatten)]
    pub(super) usage: ShownUsage,
    /// Whether an override exempts the key from the policy.
    pub(super) unlimited: bool,
    /// The last denials, newest first.
    #[schemars(with = "Vec<record::Event>")]
    pub(super) denials: Vec<Value>,
    pub(super) r#override: Option<KeyOverride>,
    pub(super) block: Option<KeyBlock>,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct KeyBlock {
    pub(super) until: String,
    /// The name of the token that set it.
    pub(super) by: String,
}

#[derive(Serialize, JsonSchema)]
pub(super) struct KeyOverride {
    #[serde(flatten)]
    pub(super) ends: KeyBlock,
    /// `null`: the key is unlimited.
    pub(super) limit: Option<u64>,
    pub(super) window_ms: u64,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "KeyUsage")]
pub(super) struct ShownUsage {
    #[schemars(with = "u64")]
    pub(super) limit: Amount,
    pub(super) window_ms: u64,
    /// The calendar that the window follows, such as `month in Europe/Berlin`.
    pub(super) calendar: Option<String>,
    /// When the fixed window of its usage began; null under other algorithms.
    pub(super) window_starts: Option<String>,
    /// When that window ends, and the key is unused again.
    pub(super) window_ends: Option<String>,
    /// The unit of cost, if known, such as `requests` or `usd`.
    pub(super) unit: Option<String>,
    /// The key's tier. `null`: its last charge was under none, or several have this limit.
    pub(super) plan: Option<String>,
    pub(super) algorithm: &'static str,
    #[schemars(with = "f64", range(min = 0))]
    pub(super) used: Amount,
    /// Cost that open reservations hold.
    #[schemars(with = "f64", range(min = 0))]
    pub(super) held: Amount,
    #[schemars(with = "f64", range(min = 0))]
    pub(super) remaining: Amount,
    /// Why cost 1 is denied now; null if it fits.
    #[schemars(extend("enum" = ["over_limit", "blocked", "too_many_holds", "store_full", null]))]
    pub(super) reason: Option<&'static str>,
    /// Until cost 1 fits; null if it never fits.
    pub(super) retry_after_ms: Option<u64>,
    /// Until the key is unused.
    pub(super) reset_after_ms: u64,
    /// Until some cost is freed; null if nothing counts.
    pub(super) frees_after_ms: Option<u64>,
    /// Charges that count, oldest first. Neighbours are merged if there are many.
    pub(super) charges: Vec<ShownCharge>,
    /// The usage to come, if nothing more is charged.
    pub(super) room: Vec<ShownForecast>,
    /// The number of open reservations.
    pub(super) open_holds: usize,
    /// Open reservations, at most 100, in order of expiry.
    #[schemars(length(max = MAX_HOLDS))]
    pub(super) holds: Vec<ShownHold>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "KeyCharge")]
pub(super) struct ShownCharge {
    pub(super) at_ms_ago: u64,
    #[schemars(with = "f64", range(min = 0))]
    pub(super) cost: Amount,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "UsageForecast")]
pub(super) struct ShownForecast {
    pub(super) in_ms: u64,
    #[schemars(with = "f64", range(min = 0))]
    pub(super) used: Amount,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "OpenHold")]
pub(super) struct ShownHold {
    #[schemars(extend("pattern" = "^[0-9a-f]{16}$"))]
    pub(super) id: String,
    #[schemars(with = "f64", range(min = 0))]
    pub(super) held: Amount,
    /// What its settlements charged so far.
    #[schemars(with = "f64", range(min = 0))]
    pub(super) settled: Amount,
    pub(super) ends_in_ms: u64,
    /// What happens to what it holds when it expires.
    #[schemars(extend("enum" = ["charge", "forget"]))]
    pub(super) unsettled: &'static str,
    /// The name of the instance that [leases](leases.md) it; `null` of a reservation.
    pub(super) lease_of: Option<String>,
}

impl ShownUsage {
    /// How usage and limit differ afterwards, in words. `None`: they do not.
    pub(super) fn moved(&self, after: &Self) -> Option<String> {
        let (used, limit) = (self.used != after.used, self.limit != after.limit);
        let limits = || format!("limit {} -> {}", self.limit, after.limit);
        let uses = || format!("used {} -> {} of {}", self.used, after.used, after.limit);
        match (used, limit) {
            (true, true) => Some(format!("{}, {}", limits(), uses())),
            (true, false) => Some(uses()),
            (false, true) => Some(limits()),
            (false, false) => None,
        }
    }

    /// `lease_of` names the instance that has a hold with this id as a lease.
    pub(super) fn of(found: &KeyUse, policy: &Policy, lease_of: impl Fn(u64) -> Option<String>) -> Self {
        let decision = &found.decision;
        // A key that is full may still count in a window of before.
        let window = found.quota.window_at(found.charges.first().map_or(decision.at(), |charge| charge.at));
        let border = |at: usize| window.map(|borders| borders[at].to_rfc3339());
        let Amounts { limit, used, held, remaining, .. } = decision.amounts();
        let charges = joined(&found.charges).into_iter().map(|run| ShownCharge {
            at_ms_ago: millis_ceil(decision.at() - run.at),
            cost: found.amount(run.cost),
        });
        let room = found
            .forecast
            .iter()
            .map(|room| ShownForecast { in_ms: millis_ceil(room.after), used: found.amount(room.used) });
        let holds = found.holds.iter().take(MAX_HOLDS).map(|hold| ShownHold {
            id: format!("{:016x}", hold.id),
            held: found.amount(hold.held),
            settled: found.amount(hold.settled),
            ends_in_ms: millis_ceil(hold.until - decision.at()),
            unsettled: hold.unsettled.name(),
            lease_of: lease_of(hold.id),
        });
        Self {
            limit,
            window_ms: millis_ceil(found.quota.window()),
            calendar: found.quota.calendar_window().map(|calendar| calendar.to_string()),
            window_starts: border(0),
            window_ends: border(1),
            unit: policy.unit_name().map(str::to_owned),
            plan: policy.tier_with(&found.quota).map(str::to_owned),
            algorithm: found.quota.algorithm().name(),
            used,
            held,
            remaining,
            reason: decision.reason().map(Reason::name),
            retry_after_ms: decision.retry_after().map(millis_ceil),
            reset_after_ms: millis_ceil(decision.reset_after()),
            frees_after_ms: decision.frees_after().map(millis_ceil),
            charges: charges.collect(),
            room: room.collect(),
            open_holds: found.holds.len(),
            holds: holds.collect(),
        }
    }
}

/// At most [`MAX_CHARGES`]; neighbours are merged at the later one's time.
pub(super) fn joined(charges: &[RecordedCharge]) -> Vec<RecordedCharge> {
    let together = charges.len().div_ceil(MAX_CHARGES).max(1);
    let join = |runs: &[RecordedCharge]| {
        let mut last = runs[runs.len() - 1];
        last.cost = runs.iter().map(|run| run.cost).fold(0, u64::saturating_add);
        last
    };
    charges.chunks(together).map(join).collect()
}
