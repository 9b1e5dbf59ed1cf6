//! Describes a policy in words, for `slidegate validate`.

use std::time::Duration;

use slidegate::{
    Algorithm, Counts, Excess, MemoryStore, OnStoreError, Policy, Quota, Unsettled, format_window,
};

/// Bytes of a key in Redis by `MEMORY USAGE`, where policy and id have some 30 bytes together; see
/// docs/operations.md.
const REDIS_COUNTERS_BYTES: u64 = 120;
/// The same where the counters fit into 12 bytes.
const REDIS_COMPACT_BYTES: u64 = 104;
/// The same of a log, besides its value.
const REDIS_KEY_BYTES: u64 = 88;
/// A log's own header, and what Redis puts around a value.
const REDIS_HEADER_BYTES: u64 = 48 + 6;

/// The header of a table of holds, and a hold in it; see docs/redis-layout.md.
const REDIS_HOLDS_HEADER_BYTES: u64 = 32;
const REDIS_HOLD_BYTES: u64 = 30;
/// Most open reservations of a key.
const MAX_HOLDS: usize = 1024;

/// Where usage lives.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Counted {
    /// In this process's memory.
    Here,
    /// In Redis, which this many instances share, if their number is known.
    Shared { instances: Option<u64> },
}

/// What a policy does, in sentences on one line.
///
/// "login-per-ip: requests whose path is `/login` are limited to 5 per 1m for each ip (exact
/// sliding log). Denies. A key takes about 153 bytes at most."
pub(crate) fn describe(policy: &Policy, counted: Counted) -> String {
    let quota = policy.quota();
    let is_in_flight = quota.algorithm() == Algorithm::InFlight;
    let per =
        if is_in_flight { "in flight".to_owned() } else { format!("per {}", format_window(quota.window())) };
    let mut words = format!(
        "{}: requests{} are limited to {} {per} {} ({}).",
        policy.name(),
        conditions(policy),
        quota.limit(),
        scope(policy),
        algorithm(quota)
    );
    words += &reservations(policy);
    words += if policy.is_enforced() { " Denies." } else { " Shadow: reports and never denies." };
    words += match policy.on_excess() {
        Excess::Refuse => "",
        Excess::Charge => " A cost is admitted while anything remains; later requests wait for the excess.",
        Excess::Count => " Denied requests count as well.",
    };
    if quota.capacity() == 0 {
        words += " Nothing passes that costs anything.";
    }
    let holds = open_reservations(policy);
    let (size, held, unit) = match counted {
        Counted::Here => {
            let size = MemoryStore::bytes_per_key(quota, policy.on_excess());
            (size as u64, MemoryStore::bytes_per_holds(holds) as u64, "bytes")
        }
        Counted::Shared { .. } => (redis_bytes(quota), redis_holds_bytes(holds), "bytes in Redis"),
    };
    let held = format!("about {held} {unit}");
    let more = match holds {
        0 => String::new(),
        1 => format!("; an open reservation takes {held} more"),
        _ => format!("; {holds} open reservations, as many as fit, take {held} more"),
    };
    let size = format!("about {size} {unit} at most{more}.");
    words += &match policy.override_count() {
        0 if is_in_flight => format!(" A key with {holds} in flight takes {held}."),
        1 if is_in_flight => " 1 key has a limit of its own.".to_owned(),
        count if is_in_flight => format!(" {count} keys have limits of their own."),
        0 => format!(" A key takes {size}"),
        1 => format!(" 1 key has a quota of its own; any other takes {size}"),
        count => format!(" {count} keys have quotas of their own; any other takes {size}"),
    };
    words += &match policy.block_count() {
        0 => String::new(),
        1 => " 1 key is blocked.".to_owned(),
        count => format!(" {count} keys are blocked."),
    };
    if let Counted::Shared { instances } = counted {
        words += " ";
        words += &fallback(policy, instances);
    }
    words
}

/// How many reservations a key has open if each holds the estimate, and as many are open as fit; none
/// under a policy that expects none.
fn open_reservations(policy: &Policy) -> usize {
    if !policy.expects_reservations() {
        return 0;
    }
    let fitting = policy.quota().capacity() / policy.estimated().unwrap_or(1).max(1);
    usize::try_from(fitting).unwrap_or(MAX_HOLDS).clamp(1, MAX_HOLDS)
}

/// A short form of a quota: `100/1m`, or `20 in flight (lease 30s)`.
pub(crate) fn quota_text(quota: &Quota) -> String {
    match quota.algorithm() {
        Algorithm::InFlight => {
            format!("{} in flight (lease {})", quota.limit(), format_window(quota.window()))
        }
        _ => quota.to_string(),
    }
}

/// The counted cost, as in the configuration.
pub(crate) fn counted_name(counts: &Counts) -> &str {
    match counts {
        Counts::Cost => "cost",
        Counts::Requests => "requests",
        Counts::Named(name) => name,
    }
}

/// The counted cost and the reservations of a policy, where they differ from the defaults.
fn reservations(policy: &Policy) -> String {
    let is_in_flight = policy.quota().algorithm() == Algorithm::InFlight;
    let mut words = match policy.counted() {
        Counts::Requests if is_in_flight => String::new(),
        Counts::Cost if is_in_flight => " A request counts by its cost.".to_owned(),
        Counts::Cost => String::new(),
        Counts::Requests => " Each request counts as 1.".to_owned(),
        Counts::Named(name) => format!(" Only the cost `{name}` counts."),
    };
    if let Some(estimate) = policy.estimated() {
        let learned = if policy.learns_estimate() { " until an estimate is learned" } else { "" };
        words += &format!(" A reservation without a cost holds {estimate}{learned}.");
    }
    if !is_in_flight && policy.on_unsettled() == Unsettled::Forget {
        words += " Reserved cost that expires unsettled is dropped.";
    }
    words
}

/// What the policy does while a shared store is unreachable.
fn fallback(policy: &Policy, instances: Option<u64>) -> String {
    let quota = policy.quota();
    let share = match instances {
        Some(instances) => quota.limit().div_ceil(instances.max(1)).to_string(),
        None => format!("its share of {}", quota.limit()),
    };
    let meanwhile = match policy.fallback() {
        OnStoreError::Local if quota.algorithm() == Algorithm::InFlight => {
            format!("each instance counts by itself, up to {share} in flight")
        }
        OnStoreError::Local => {
            format!("each instance counts by itself, up to {share} per {}", format_window(quota.window()))
        }
        OnStoreError::Allow => "it allows everything".to_owned(),
        OnStoreError::Deny if policy.is_enforced() => "it denies everything".to_owned(),
        OnStoreError::Deny => "it reports everything as denied".to_owned(),
    };
    format!("While Redis is unreachable, {meanwhile}.")
}

fn conditions(policy: &Policy) -> String {
    if policy.is_only_when_named() {
        return " that name it".to_owned();
    }
    let conditions: Vec<_> =
        policy.conditions().iter().map(|(attribute, condition)| format!("{attribute} {condition}")).collect();
    if conditions.is_empty() { String::new() } else { format!(" whose {}", conditions.join(" and ")) }
}

fn scope(policy: &Policy) -> String {
    match policy.scope_attributes() {
        [] => "for all of them together".to_owned(),
        attributes => format!("for each {}", attributes.join(" and ")),
    }
}

fn algorithm(quota: &Quota) -> String {
    match quota.algorithm() {
        Algorithm::SlidingLog if is_exact(quota) => "exact sliding log".to_owned(),
        Algorithm::SlidingLog => {
            let step = quota.window() / u32::from(quota.slots());
            format!(
                "sliding log of {} steps: a charge may count {} too long",
                quota.slots(),
                format_window(step)
            )
        }
        Algorithm::SlidingWindow => "sliding window of two counters, not exact".to_owned(),
        Algorithm::FixedWindow => "fixed window: up to twice the limit around its border".to_owned(),
        Algorithm::TokenBucket => format!("token bucket, {} at once", quota.capacity()),
        Algorithm::InFlight => {
            format!("released when settled, or {} after the last heartbeat", format_window(quota.window()))
        }
        other => other.to_string(),
    }
}

fn is_exact(quota: &Quota) -> bool {
    quota.limit() <= u64::from(quota.slots())
}

/// What a key takes in Redis when it is full, by the server's own count, if no single cost is above
/// the limit.
fn redis_bytes(quota: &Quota) -> u64 {
    if quota.algorithm() != Algorithm::SlidingLog {
        return if is_compact(quota) { REDIS_COMPACT_BYTES } else { REDIS_COUNTERS_BYTES };
    }
    // The newest run lies in the header.
    let value = REDIS_HEADER_BYTES + log_runs(quota).saturating_sub(1) * run_bytes(quota);
    REDIS_KEY_BYTES + redis_allocated(value)
}

/// What the table of so many holds takes in Redis: its usage is another key meanwhile. See
/// docs/redis-layout.md.
fn redis_holds_bytes(holds: usize) -> u64 {
    // A value that is appended to gets twice the room that it needs.
    let (mut value, mut allocated) = (REDIS_HOLDS_HEADER_BYTES, 0);
    for _ in 0..holds {
        value += REDIS_HOLD_BYTES;
        let around = |value: u64| value + if value < 256 { 4 } else { 6 };
        if around(value) > allocated {
            allocated = redis_allocated(around(2 * value));
        }
    }
    REDIS_KEY_BYTES + allocated
}

/// The sizes that Redis's allocator has: 16 bytes apart at first, then four to each doubling.
fn redis_allocated(value: u64) -> u64 {
    value.next_multiple_of((value.next_power_of_two() / 8).max(16))
}

/// Whether a full key's counters fit into 12 bytes; see docs/redis-layout.md.
fn is_compact(quota: &Quota) -> bool {
    let most = match quota.algorithm() {
        Algorithm::FixedWindow => 1 << 40,
        Algorithm::SlidingWindow => 1 << 20,
        _ => return false,
    };
    let secs = quota.window().as_secs();
    // At most 16,383 units, of which an hour is the longest that matters.
    let is_counted = [1, 60, 3600].iter().any(|unit| secs.is_multiple_of(*unit) && secs / unit <= 16_383);
    quota.limit() < most && quota.window().subsec_nanos() == 0 && is_counted
}

/// Runs of a full log.
fn log_runs(quota: &Quota) -> u64 {
    if is_exact(quota) { quota.limit() } else { u64::from(quota.slots()) + 1 }
}

/// Bytes of a run: its stamp and its cost.
fn run_bytes(quota: &Quota) -> u64 {
    let step =
        if is_exact(quota) { Duration::from_micros(1) } else { quota.window() / u32::from(quota.slots()) };
    // A stamp tells apart the microseconds of a window and a step; a cost takes as many bytes as
    // the limit.
    let stamp = if (quota.window() + step).as_micros() < 1 << 32 { 4 } else { 6 };
    let cost = match quota.limit() {
        0..=1 => 0,
        2..=0xFF => 1,
        0x100..=0xFFFF => 2,
        0x1_0000..=0xFFFF_FFFF => 4,
        _ => 8,
    };
    stamp + cost
}

#[cfg(test)]
mod tests {
    use super::redis_holds_bytes;

    /// An operator who sizes a Redis server must not read too little: `MEMORY USAGE` of Redis 7.0 for a
    /// table that grew by one hold after the other, where the key's name has 33 bytes.
    #[test]
    fn tables_of_holds_in_redis_take_what_the_server_says() {
        for (holds, bytes) in
            [(1, 216), (3, 216), (4, 408), (8, 408), (10, 856), (20, 856), (50, 1880), (100, 4184)]
        {
            assert_eq!(redis_holds_bytes(holds), bytes, "{holds}");
        }
    }
}
