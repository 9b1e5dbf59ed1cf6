//! `store.memory:` how much the memory store holds, and the file in which usage outlives a restart.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use slidegate::{
    Algorithm, Excess, MemoryEstimate, MemoryStore, MemoryStoreBuilder, Policy, Quota, format_window,
};

use super::check::Section;
use super::values::{ByteSize, Form, Parsed, Span, format_bytes, only_if};

/// The memory store.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "max_bytes: 1GiB"))]
pub(super) struct MemorySection {
    /// Most keys held. A full store drops the key that matters least, and reports it. Default:
    /// 1048576, or with `max_bytes` as many as fit.
    #[schemars(range(min = 1, max = 1_000_000_000))]
    max_keys: Option<usize>,
    /// Most bytes of all keys, as allocated. `serve --max-bytes` and `SLIDEGATE_MAX_BYTES` take
    /// precedence.
    max_bytes: Option<Parsed<ByteSize>>,
    /// A file in which usage outlives a restart.
    snapshot: Option<SnapshotSection>,
}

/// A file in which usage of the memory store outlives a restart.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "path: /var/lib/slidegate/usage.snapshot"))]
struct SnapshotSection {
    /// The file. Its directory must exist and be writable. `serve --snapshot` and
    /// `SLIDEGATE_SNAPSHOT` take precedence.
    #[schemars(extend("format" = "snapshot-path"))]
    path: String,
    /// Time between two snapshots: the most usage that a crash loses.
    #[schemars(extend("default" = "1m"))]
    interval: Span<100, 86_400_000>,
}

/// The memory store, as configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Memory {
    /// At least one. `None`: the default.
    pub(crate) max_keys: Option<usize>,
    /// At least [`MemoryStore::MIN_MAX_BYTES`].
    pub(crate) max_bytes: Option<usize>,
    /// Where usage is saved. Not with a shared store.
    pub(crate) snapshot: Option<SnapshotSettings>,
}

/// Where and how often usage is saved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SnapshotSettings {
    pub(crate) path: PathBuf,
    pub(crate) interval: Duration,
}

impl Memory {
    /// The store, to be built.
    pub(crate) fn builder(&self) -> MemoryStoreBuilder {
        let builder = MemoryStore::builder();
        let builder = self.max_keys.into_iter().fold(builder, MemoryStoreBuilder::max_keys);
        self.max_bytes.into_iter().fold(builder, MemoryStoreBuilder::max_bytes)
    }

    /// The most memory that the store takes under these policies, and the policy with the largest
    /// keys.
    pub(crate) fn worst_case<'p>(
        &self,
        policies: impl IntoIterator<Item = &'p Policy>,
        candidates: impl IntoIterator<Item = (&'p str, &'p Quota)>,
        has_inline_quotas: bool,
    ) -> WorstCase {
        let of_policy = |policy: &'p Policy| {
            let bytes = policy.quotas().map(|quota| MemoryStore::bytes_per_key(quota, policy.on_excess()));
            // There are at most as many open reservations as keys. One each takes the most.
            let holds = usize::from(policy.expects_reservations());
            let bytes = bytes.max().unwrap_or(0) + MemoryStore::bytes_per_holds(holds);
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

/// The most memory that the store takes under some policies. Shows as a sentence.
#[derive(Debug)]
pub(crate) struct WorstCase {
    pub(crate) estimate: MemoryEstimate,
    /// What has the largest keys.
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

/// As the start shows it: "memory, up to 1048576 keys".
impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.max_keys, self.max_bytes) {
            (None, Some(bytes)) => write!(f, "memory, up to {}", format_bytes(bytes as u64))?,
            (keys, bytes) => {
                write!(f, "memory, up to {} keys", keys.unwrap_or(MemoryStore::DEFAULT_MAX_KEYS))?;
                if let Some(bytes) = bytes {
                    write!(f, " and {}", format_bytes(bytes as u64))?;
                }
            }
        }
        match &self.snapshot {
            None => Ok(()),
            Some(SnapshotSettings { path, interval }) => {
                write!(f, ", saved to {} every {}", path.display(), format_window(*interval))
            }
        }
    }
}

impl MemorySection {
    pub(super) fn build(&self, section: &Section<'_>, is_shared: bool) -> Memory {
        let Self { max_keys, max_bytes, snapshot } = self;
        let max_bytes = max_bytes.map(|bytes| bytes.0.0);
        if is_shared && snapshot.is_some() {
            let why = "needs the memory store, and with redis usage is kept there; leave one of them out";
            section.invalid("snapshot", why);
        }
        let snapshot = snapshot.as_ref().map(|SnapshotSection { path, interval }| SnapshotSettings {
            path: path.into(),
            interval: interval.0,
        });
        Memory { max_keys: *max_keys, max_bytes, snapshot }
    }
}

/// The path of a file that is yet to be written.
pub(super) const SNAPSHOT_PATH: Form = Form::new(
    "snapshot-path",
    "the path of a file, for example `path: /var/lib/slidegate/usage.snapshot`",
    |path| {
        let names_file = !path.ends_with('/') && Path::new(path).file_name().is_some();
        only_if(names_file && !path.contains('\0'), path)
    },
);

#[cfg(test)]
mod tests {
    use crate::config::Config;

    fn worst_case(text: &str) -> String {
        let config = Config::parse(text, "slidegate.yaml").unwrap_or_else(|errors| panic!("{errors}"));
        let candidates = config.candidates.iter().map(|(name, quota)| (name.as_str(), quota));
        config.memory.worst_case(config.policies.iter(), candidates, config.resp.is_some()).to_string()
    }

    /// An operator who sizes a container reads this line, and needs the policy that takes most.
    #[test]
    fn the_worst_case_names_the_policy_with_the_largest_keys_and_the_bound() {
        let policies = "\npolicies:\n  - {name: a, quota: 100/1m}\n  - {name: b, quota: 10/1m, algorithm: token-bucket}\n";
        let more = " Checks with an idempotency key take up to 20.0 MiB more.";
        let described = |store: &str| worst_case(&format!("store: {{memory: {{{store}}}}}{policies}"));
        assert_eq!(
            described(""),
            format!(
                "At worst it takes 617 MiB: 1048576 keys of up to 617 bytes, as of policy `a`. Set max_bytes to bound it.{more}"
            )
        );
        assert_eq!(
            described("max_keys: 1000, max_bytes: 1GiB"),
            format!(
                "At worst it takes 603 KiB, less than max_bytes: 1000 keys of up to 617 bytes, as of policy `a`.{more}"
            )
        );
        assert_eq!(
            described("max_bytes: 64MiB"),
            format!(
                "At worst it takes 64.0 MiB, its max_bytes; 1636801 keys of up to 617 bytes, as of policy `a`, would take \
                 963 MiB.{more}"
            )
        );
    }
}
