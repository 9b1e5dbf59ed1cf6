//! A policy said back in words, for whoever wants to know what a file really asks for.

use std::time::Duration;

use slidegate::{Algorithm, Policy, Quota, format_window};

/// Bytes of a key in the memory store, at most; see `MemoryStore` for where these come from.
const COUNTERS_BYTES: u64 = 63;
const LOG_BYTES: u64 = 94;
/// Bytes of a log's runs that lie in the key's own slot.
const LOG_BYTES_HERE: u64 = 23;

/// What a policy does, in sentences on one line.
///
/// "login-per-ip: requests whose path is `/login` are limited to 5 per 1m for each ip (exact sliding log). Denies. A key
/// takes about 119 bytes at most."
pub(crate) fn describe(policy: &Policy) -> String {
    let quota = policy.quota();
    let mut words = format!(
        "{}: requests{} are limited to {} per {} {} ({}).",
        policy.name(),
        conditions(policy),
        quota.limit(),
        format_window(quota.window()),
        scope(policy),
        algorithm(quota)
    );
    words += if policy.is_enforced() { " Denies." } else { " Shadow: reports and never denies." };
    if quota.capacity() == 0 {
        words += " Nothing passes that costs anything.";
    }
    let bytes = bytes(quota);
    words += &match policy.override_count() {
        0 => format!(" A key takes about {bytes} bytes at most."),
        1 => format!(" 1 key has a quota of its own; any other takes about {bytes} bytes at most."),
        count => {
            format!(" {count} keys have quotas of their own; any other takes about {bytes} bytes at most.")
        }
    };
    words
}

fn conditions(policy: &Policy) -> String {
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
        other => other.to_string(),
    }
}

fn is_exact(quota: &Quota) -> bool {
    quota.limit() <= u64::from(quota.slots())
}

/// What a key takes in the memory store when it is full, if no single cost is above the limit.
fn bytes(quota: &Quota) -> u64 {
    if quota.algorithm() != Algorithm::SlidingLog {
        return COUNTERS_BYTES;
    }
    let slots = u64::from(quota.slots());
    let (runs, step) = if is_exact(quota) {
        (quota.limit(), Duration::from_micros(1))
    } else {
        (slots + 1, quota.window() / u32::from(quota.slots()))
    };
    // A stamp tells apart the microseconds of a window and a step; a cost takes as many bytes as the limit.
    let stamp = if (quota.window() + step).as_micros() < 1 << 32 { 4 } else { 6 };
    let cost = match quota.limit() {
        0..=1 => 0,
        2..=0xFF => 1,
        0x100..=0xFFFF => 2,
        0x1_0000..=0xFFFF_FFFF => 4,
        _ => 8,
    };
    let ring = runs * (stamp + cost);
    LOG_BYTES + if ring > LOG_BYTES_HERE { ring } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::describe;
    use crate::config::tests::policy;

    /// What is said back is how a wrong file is noticed before it denies anyone.
    #[test]
    fn a_policy_is_said_back_whole() {
        for (keys, words) in [
            (
                "when: {path: /login}, scope: [ip], limit: 5, window: 1m",
                "requests whose path is `/login` are limited to 5 per 1m for each ip (exact sliding log). Denies. A key \
                 takes about 119 bytes at most.",
            ),
            (
                "when: {method: [GET, HEAD], user: {present: false}}, scope: [ip, path], quota: 10/s, mode: shadow",
                "requests whose method is `GET` or `HEAD` and user is absent are limited to 10 per 1s for each ip and \
                 path (exact sliding log). Shadow: reports and never denies. A key takes about 144 bytes at most.",
            ),
            (
                "quota: 1/1d",
                "requests are limited to 1 per 1d for all of them together (exact sliding log). Denies. A key takes \
                 about 94 bytes at most.",
            ),
            (
                "scope: user, quota: 5000/1h, overrides: {alice: 1}",
                "requests are limited to 5000 per 1h for each user (sliding log of 1024 steps: a charge may count \
                 3516ms too long). Denies. 1 key has a quota of its own; any other takes about 6244 bytes at most.",
            ),
            (
                "scope: user, quota: 5/1h, algorithm: sliding-window, overrides: {alice: 1, bob: 2}",
                "requests are limited to 5 per 1h for each user (sliding window of two counters, not exact). Denies. 2 \
                 keys have quotas of their own; any other takes about 63 bytes at most.",
            ),
            (
                "quota: 5/1h, algorithm: fixed-window",
                "requests are limited to 5 per 1h for all of them together (fixed window: up to twice the limit around \
                 its border). Denies. A key takes about 63 bytes at most.",
            ),
            (
                "quota: 5/1h, algorithm: token-bucket, burst: 20",
                "requests are limited to 5 per 1h for all of them together (token bucket, 20 at once). Denies. A key \
                 takes about 63 bytes at most.",
            ),
            (
                "quota: 0/1h",
                "requests are limited to 0 per 1h for all of them together (exact sliding log). Denies. Nothing passes \
                 that costs anything. A key takes about 94 bytes at most.",
            ),
        ] {
            assert_eq!(describe(&policy(keys)), format!("p: {words}"));
        }
    }
}
