//! Words of other limiters, recognized to suggest ours but never accepted.
//!
//! A guess could enforce the wrong limit: the same word is a count in one limiter and a rate in
//! another, and the same number is seconds in one and milliseconds in another.

use lined_config::plain;
use slidegate::Algorithm;

/// Our keys, each with an example and its names in other limiters, for
/// [`Schema::with_synonyms`](lined_config::Schema::with_synonyms).
pub const KEYS: &str = "
limit: 100 | max_requests requests_per_unit max count requests points tokens threshold max_hits
window: 60s | window_size window_ms window_seconds period per interval duration time_window
burst: 20 | capacity max_burst burst_size bucket_size
mode: shadow | dry_run shadow shadow_mode report_only
scope: [user] | key keys by descriptor descriptors group_by partition_by dimensions variables
quota: 100/1m | rate rate_limit
algorithm: sliding-log | algo use_algo strategy type
when: {path: /login} | match matches if condition conditions filter
name: per-user | id identifier
key: alice | identifier value id
overrides: {alice: 1000} | exceptions override
policies: [{name: per-user, scope: [user], limit: 100, window: 60s}] | limits rules rate_limits ratelimits rate_limiter policy
server: {listen: 127.0.0.1:7979} | listen port bind shutdown_grace drain_delay
listen: 127.0.0.1:7979 | host port bind address
redis: redis://127.0.0.1:6379 | url uri host address redis_url
drain_delay: 5s | drain_time drain_timeout drain_period lame_duck shutdown_delay pre_stop
batch: true | coalesce
cache_denials: true | remember_denials
on_excess: wait 2s | wait queue delay on_limit max_wait
lease: true | leases leasing lease_ms quota_lease prefetch
leases: true | lease leasing
deadline: 50ms | timeout timeout_ms command_timeout
on_store_error: allow # or deny, or local | fail_open fail_closed failure_mode failure_mode_deny on_error on_backend_error fallback
store: {memory: {max_keys: 1000000}} | max_keys memory redis redis_url
max_keys: 1000000 | max_entries size
max_bytes: 1GiB | max_memory max_size maxmemory memory_limit
snapshot: {path: /var/lib/slidegate/usage.snapshot} | persistence persist dump save
path: /var/lib/slidegate/usage.snapshot | file dir directory
interval: 1m | every period
addresses: [ip] | ip ips address
";

/// Our algorithm for another limiter's name.
pub(crate) fn algorithm(theirs: &str) -> Option<Algorithm> {
    let theirs = plain(theirs).replace('_', "-");
    let ours = match theirs.as_str() {
        "sliding-window-log" | "sliding-window-logging" | "moving-window" | "rolling-window" | "exact" => {
            Algorithm::SlidingLog
        }
        "sliding-window-counter" | "sliding-counter" | "approximated-sliding-window" => {
            Algorithm::SlidingWindow
        }
        "fixed" | "fixed-window-counter" => Algorithm::FixedWindow,
        "gcra" | "leaky-bucket" | "leaky" | "bucket" => Algorithm::TokenBucket,
        // Our own names with underscores or spaces.
        ours => return ours.parse().ok(),
    };
    Some(ours)
}
