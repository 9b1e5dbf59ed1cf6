//! The section `store.memory`: bounds of the memory store, and snapshots.

use std::fmt;
use std::path::PathBuf;

use schemars::JsonSchema;
use serde::Deserialize;
use slidegate::{
    Algorithm, Excess, MemoryStore, Policy, Quota,
    clock::format_window,
    store::{MemoryEstimate, MemoryStoreBuilder},
};
use slidegate_config::values::{Parsed, Span};

use super::values::{ByteSize, format_bytes, some_bytes};

/// The memory store.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "max_bytes: 1GiB"))]
pub(crate) struct Memory {
    /// Maximum number of keys: see [a full store](bounds.md#a-full-memory-store). Default: 1048576; with
    /// `max_bytes` as many as fit.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    pub(crate) max_keys: Option<usize>,
    /// Maximum bytes of all keys: see [a full store](bounds.md#a-full-memory-store). Units of Kubernetes, such as
    /// `Mi`, are accepted, too. `serve --max-bytes` and `SLIDEGATE_MAX_BYTES` take precedence.
    #[serde(default, deserialize_with = "some_bytes")]
    #[schemars(with = "Option<Parsed<ByteSize>>")]
    pub(crate) max_bytes: Option<usize>,
    /// A file for [snapshots](day-to-day.md#snapshots-of-the-memory-store), in which usage outlives a restart. Not
    /// with `redis`.
    pub(crate) snapshot: Option<SnapshotSettings>,
}

/// A file in which usage of the memory store outlives a restart.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "path: /var/lib/slidegate/usage.snapshot"))]
pub(crate) struct SnapshotSettings {
    /// The file, in a directory that exists and is writable. `serve --snapshot` and `SLIDEGATE_SNAPSHOT` take
    /// precedence.
    #[schemars(extend("format" = "new-file"))]
    pub(crate) path: PathBuf,
    /// Time between two snapshots: the most usage that a crash loses.
    #[schemars(extend("default" = "1m"))]
    pub(crate) interval: Span<100, 86_400_000>,
}

impl Memory {
    /// Maximum number of keys, unless their bytes bound them.
    pub(crate) fn most_keys(&self) -> usize {
        self.max_keys.unwrap_or(MemoryStore::DEFAULT_MAX_KEYS)
    }

    /// The builder of the store.
    pub(crate) fn builder(&self) -> MemoryStoreBuilder {
        let builder = MemoryStore::builder();
        let builder = self.max_keys.into_iter().fold(builder, MemoryStoreBuilder::max_keys);
        self.max_bytes.into_iter().fold(builder, MemoryStoreBuilder::max_bytes)
    }

    /// The maximum memory of the store under these policies, and which of them has the largest keys.
    pub(crate) fn worst_case<'p>(
        &self,
        policies: impl IntoIterator<Item = &'p Policy>,
        candidates: impl IntoIterator<Item = (&'p str, &'p Quota)>,
        has_inline_quotas: bool,
    ) -> WorstCase {
        let of_policy = |policy: &'p Policy| {
            let bytes = policy.quotas().map(|quota| {
                MemoryStore::bytes_per_key(&policy.options().counts.counted(quota), policy.options().excess)
            });
            // There are at most as many open reservations as keys; one per key takes the most memory.
            let holds = usize::from(policy.expects_reservations());
            let options = policy.options();
            let has_special = options.tiers.is_some() || options.anchor_attribute.is_some();
            let tier = if has_special { MemoryStore::bytes_per_inline_quota() } else { 0 };
            let bytes = bytes.max().unwrap_or(0) + tier + MemoryStore::bytes_per_holds(holds);
            (bytes, format!("policy `{}`", policy.name()))
        };
        let of_candidate = |(policy, quota): (&str, &Quota)| {
            let bytes = MemoryStore::bytes_per_key(quota, Excess::Refuse);
            (bytes, format!("the candidate of policy `{policy}`"))
        };
        let inline = has_inline_quotas.then(|| {
            let quota = Quota::per_second(1).with_algorithm(Algorithm::TokenBucket);
            let bytes = MemoryStore::bytes_per_key(&quota, Excess::Refuse);
            (bytes + MemoryStore::bytes_per_inline_quota(), "quotas in RESP commands".to_owned())
        });
        let all = policies.into_iter().map(of_policy).chain(candidates.into_iter().map(of_candidate));
        let (bytes_per_key, largest) = all.chain(inline).max_by_key(|(bytes, _)| *bytes).unwrap_or_default();
        WorstCase { estimate: self.builder().estimate(bytes_per_key), largest, max_bytes: self.max_bytes }
    }
}

/// The maximum memory of the store. Displays as a sentence.
#[derive(Debug)]
pub(crate) struct WorstCase {
    pub(crate) estimate: MemoryEstimate,
    /// The policy with the largest keys.
    largest: String,
    max_bytes: Option<usize>,
}

impl fmt::Display for WorstCase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = |bytes: usize| format_bytes(bytes as u64);
        let MemoryEstimate { keys, bytes_per_key, unbounded_bytes, bytes, .. } = self.estimate;
        let keys = format!("{keys} keys of up to {bytes_per_key} bytes, as of {}", self.largest);
        let beside = size(MemoryStore::IDEMPOTENCY_BYTES);
        match self.max_bytes {
            None => write!(f, "At worst it takes {}: {keys}. Set max_bytes to bound it.", size(bytes))?,
            Some(bound) if unbounded_bytes <= bound => {
                write!(f, "At worst it takes {}, less than max_bytes: {keys}.", size(bytes))?;
            }
            Some(_) => write!(
                f,
                "At worst it takes {}, its max_bytes; {keys}, would take {}.",
                size(bytes),
                size(unbounded_bytes)
            )?,
        }
        write!(f, " Checks with an idempotency key take up to {beside} more.")
    }
}

/// As shown at startup: "memory, up to 1048576 keys".
impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.max_keys, self.max_bytes) {
            (None, Some(bytes)) => write!(f, "memory, up to {}", format_bytes(bytes as u64))?,
            (_, bytes) => {
                write!(f, "memory, up to {} keys", self.most_keys())?;
                if let Some(bytes) = bytes {
                    write!(f, " and {}", format_bytes(bytes as u64))?;
                }
            }
        }
        match &self.snapshot {
            None => Ok(()),
            Some(SnapshotSettings { path, interval }) => {
                write!(f, ", saved to {} every {}", path.display(), format_window(interval.0))
            }
        }
    }
}
