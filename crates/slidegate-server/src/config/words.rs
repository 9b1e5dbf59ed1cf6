//! Policies described in words, for `slidegate validate`.

use std::borrow::Cow;
use std::time::Duration;

use slidegate::{
    Algorithm, Counts, Excess, MemoryStore, OnMissing, OnStoreError, Policy, PolicySet, Quota,
    clock::format_window, reserve::Unsettled,
};
use slidegate_replay::{grouped, redis_bytes_at_most, redis_holds_bytes, redis_table_bytes};

use super::values::format_bytes;

/// Maximum number of open reservations of a key.
const MAX_HOLDS: usize = 1024;

/// Where usage lives.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Storage {
    /// In this process's memory.
    Memory,
    /// In Redis, shared by this many instances if their number is known.
    Redis { instances: Option<u64> },
}

/// Describes a policy in sentences on one line.
///
/// "login-per-ip: requests whose path is `/login` are limited to 5 per 1m for each ip (exact
/// sliding log). Denies. A key takes about 153 bytes at most."
pub(crate) fn describe(policy: &Policy, storage: Storage) -> String {
    let quota = policy.quota();
    let is_in_flight = quota.algorithm() == Algorithm::InFlight;
    let per = if is_in_flight { "in flight".to_owned() } else { format!("per {}", quota.window_text()) };
    let mut words = format!(
        "{}: requests{} are limited to {} {per} {} ({}).",
        policy.name(),
        conditions(policy),
        quota.limit(),
        scope(policy),
        slidegate::internal::describe(quota)
    );
    words += &missing(policy);
    words += &folds(policy);
    words += &tiers(policy);
    if let Some(attribute) = &policy.options().anchor_attribute {
        words += &format!(" Windows begin on the day of the month that {attribute} says.");
    }
    words += &reservations(policy);
    words += if policy.options().enforced { " Denies." } else { " Shadow: reports and never denies." };
    words += match policy.options().excess {
        Excess::Refuse => "",
        Excess::Charge => " A cost is admitted while anything remains; later requests wait for the excess.",
        Excess::Count => " Denied requests count as well.",
    };
    if let Some(wait) = policy.options().wait {
        words += &format!(" Requests of proxies wait up to {} for their turn.", format_window(wait));
    }
    if quota.capacity() == 0 {
        words += " Nothing passes that costs anything.";
    }
    if let (Storage::Redis { .. }, Some(lease)) = (storage, policy.lease()) {
        let length = Duration::from_micros(lease.us(quota));
        words += &format!(" Instances may lease hot keys, for {} at a time.", format_window(length));
    }
    let holds = open_reservations(policy);
    let KeySize { usage: size, held } = KeySize::of(policy, storage);
    let unit = if matches!(storage, Storage::Memory) { "bytes" } else { "bytes in Redis" };
    let held = format!("about {held} {unit}");
    let more = match holds {
        0 => String::new(),
        1 => format!("; an open reservation takes {held} more"),
        _ => format!("; {holds} open reservations, as many as fit, take {held} more"),
    };
    let size = format!("about {size} {unit} at most{more}.");
    words += &match policy.options().override_count() {
        0 if is_in_flight => format!(" A key with {holds} in flight takes {held}."),
        1 if is_in_flight => " 1 key has a limit of its own.".to_owned(),
        count if is_in_flight => format!(" {count} keys have limits of their own."),
        0 => format!(" A key takes {size}"),
        1 => format!(" 1 key has a quota of its own; any other takes {size}"),
        count => format!(" {count} keys have quotas of their own; any other takes {size}"),
    };
    words += &match policy.options().block_count() {
        0 => String::new(),
        1 => " 1 key is blocked.".to_owned(),
        count => format!(" {count} keys are blocked."),
    };
    if let Storage::Redis { instances } = storage {
        words += " ";
        words += &fallback(policy, instances);
    }
    words
}

/// The maximum size of one key and of `keys` keys, in memory and in Redis, on one line.
pub(crate) fn describe_keys(policy: &Policy, keys: u64) -> String {
    let one = |storage| {
        let KeySize { usage, held } = KeySize::of(policy, storage);
        if policy.quota().algorithm() == Algorithm::InFlight { held } else { usage + held }
    };
    let [memory, redis] = [Storage::Memory, Storage::Redis { instances: None }].map(one);
    let tables = if policy.expects_reservations() { 2 } else { 1 };
    let all_redis = redis.saturating_mul(keys).saturating_add(tables * redis_table_bytes(keys));
    format!(
        "{}: a key takes at most {memory} bytes in memory and {redis} in Redis; {} keys take {} and {}.",
        policy.name(),
        grouped(keys),
        format_bytes(memory.saturating_mul(keys)),
        format_bytes(all_redis)
    )
}

/// Maximum bytes of a key in a store.
struct KeySize {
    usage: u64,
    /// Bytes of its open reservations.
    held: u64,
}

impl KeySize {
    fn of(policy: &Policy, storage: Storage) -> Self {
        let holds = open_reservations(policy);
        let quotas = std::iter::once(policy.quota())
            .chain(policy.options().tiers.iter().flat_map(|tiers| tiers.quotas.values()));
        let quotas = quotas.map(|quota| policy.options().counts.counted(quota));
        let (usage, held) = match storage {
            Storage::Memory => {
                let usage = |quota| MemoryStore::bytes_per_key(&quota, policy.options().excess) as u64;
                (quotas.map(usage).max(), MemoryStore::bytes_per_holds(holds) as u64)
            }
            Storage::Redis { .. } => (
                quotas.map(|quota| redis_bytes_at_most(&quota)).max(),
                if holds == 0 { 0 } else { redis_holds_bytes(holds) },
            ),
        };
        Self { usage: usage.unwrap_or_default(), held }
    }
}

/// How many reservations of the estimated cost fit into a key's limit; 0 if the policy expects no
/// reservations.
fn open_reservations(policy: &Policy) -> usize {
    if !policy.expects_reservations() {
        return 0;
    }
    let each = policy.estimate().map_or(1, |estimate| policy.options().counts.count(estimate)).max(1);
    let fitting = policy.options().counts.counted(policy.quota()).capacity() / each;
    usize::try_from(fitting).unwrap_or(MAX_HOLDS).clamp(1, MAX_HOLDS)
}

/// The policy whose window is the longest: for that long, lost usage is felt.
pub(crate) fn longest_window(policies: &PolicySet) -> Option<&Policy> {
    let charged = policies.iter().filter(|policy| policy.quota().algorithm() != Algorithm::InFlight);
    charged.max_by_key(|policy| policy.quota().window())
}

/// A short form of a quota: `100/1m`, or `20 in flight (lease 30s)`.
pub(crate) fn quota_text(quota: &Quota) -> String {
    if quota.algorithm() == Algorithm::InFlight {
        return format!("{} in flight (lease {})", quota.limit(), format_window(quota.window()));
    }
    quota.to_string()
}

/// The counted cost, as in the config.
pub(crate) fn counted_name(counts: &Counts) -> Cow<'_, str> {
    match counts {
        Counts::Cost => "cost".into(),
        Counts::Requests => "requests".into(),
        Counts::Named(name) => name.into(),
        Counts::Weighted(weights) => {
            let weights = weights.iter().map(|(name, weight)| format!("{weight} {name}"));
            weights.collect::<Vec<_>>().join(" + ").into()
        }
    }
}

/// The counted cost and reservations, where they differ from the defaults.
fn reservations(policy: &Policy) -> String {
    let is_in_flight = policy.quota().algorithm() == Algorithm::InFlight;
    let mut words = match &policy.options().counts {
        Counts::Requests if is_in_flight => String::new(),
        Counts::Cost if is_in_flight => " A request counts by its cost.".to_owned(),
        Counts::Cost => String::new(),
        Counts::Requests => " Each request counts as 1.".to_owned(),
        Counts::Named(name) => format!(" Only the cost `{name}` counts."),
        weighted @ Counts::Weighted(_) => {
            format!(
                " What counts is {}, in {}.",
                counted_name(weighted),
                policy.unit_name().unwrap_or("units")
            )
        }
    };
    if let Some(estimate) = policy.estimate() {
        let learned = if policy.options().learns_estimate { " until an estimate is learned" } else { "" };
        words += &format!(" A reservation without a cost holds {estimate}{learned}.");
    }
    if !is_in_flight && policy.unsettled() == Unsettled::Forget {
        words += " Reserved cost that expires unsettled is dropped.";
    }
    words
}

/// Decisions while the shared store is unreachable.
fn fallback(policy: &Policy, instances: Option<u64>) -> String {
    let quota = policy.quota();
    let share = match instances {
        Some(instances) => quota.limit().div_ceil(instances.max(1)).to_string(),
        None => format!("its share of {}", quota.limit()),
    };
    let meanwhile = match policy.options().on_store_error {
        OnStoreError::Local if quota.algorithm() == Algorithm::InFlight => {
            format!("each instance counts by itself, up to {share} in flight")
        }
        OnStoreError::Local => {
            format!("each instance counts by itself, up to {share} per {}", quota.window_text())
        }
        OnStoreError::Allow => "it allows everything".to_owned(),
        OnStoreError::Deny if policy.options().enforced => "it denies everything".to_owned(),
        OnStoreError::Deny => "it reports everything as denied".to_owned(),
    };
    format!("While Redis is unreachable, {meanwhile}.")
}

/// The limits of the first tiers and the number of others.
fn tiers(policy: &Policy) -> String {
    const MOST: usize = 8;
    let Some(tiers) = &policy.options().tiers else { return String::new() };
    let mut limits: Vec<_> = tiers
        .quotas
        .iter()
        .take(MOST)
        .map(|(value, quota)| format!("{} for `{value}`", quota.limit()))
        .collect();
    let more = tiers.quotas.len().saturating_sub(MOST);
    if more > 0 {
        limits.push(format!("others for {more} more"));
    }
    format!(
        " The limit is chosen by {}: {}; anything else has {}.",
        tiers.attribute,
        limits.join(", "),
        policy.quota().limit()
    )
}

fn conditions(policy: &Policy) -> String {
    if policy.options().only_when_named {
        return " that name it".to_owned();
    }
    let conditions: Vec<_> = policy
        .options()
        .conditions
        .iter()
        .map(|(attribute, condition)| format!("{attribute} {condition}"))
        .collect();
    if conditions.is_empty() { String::new() } else { format!(" whose {}", conditions.join(" and ")) }
}

/// Requests without an attribute of the scope, if the policy has `on_missing`.
fn missing(policy: &Policy) -> String {
    let attributes = policy.scope().join(" or ");
    match policy.options().on_missing {
        None => String::new(),
        Some(OnMissing::Skip) => format!(" Requests without {attributes} are not under it."),
        Some(OnMissing::OneKey) => format!(" Requests without {attributes} count as one."),
        Some(OnMissing::Deny) => format!(" Requests without {attributes} are denied."),
    }
}

/// The attributes that are folded.
fn folds(policy: &Policy) -> String {
    let folds: Vec<_> =
        policy.options().folds.iter().map(|(attribute, fold)| format!("{attribute} by {fold}")).collect();
    if folds.is_empty() { String::new() } else { format!(" Spellings are one: {}.", folds.join(", ")) }
}

fn scope(policy: &Policy) -> String {
    match policy.scope() {
        [] => "for all of them together".to_owned(),
        attributes => format!("for each {}", attributes.join(" and ")),
    }
}
