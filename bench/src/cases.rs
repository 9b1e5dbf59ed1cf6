//! Cases: which keys are checked, and under which limit.

use std::time::Duration;

use rand::SeedableRng;
use rand::distr::{Distribution, Uniform};
use rand::rngs::StdRng;
use rand_distr::Zipf;

/// One case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    /// One key, a limit that is never reached.
    Hot,
    /// One key, and a limit that the exact log counts to the microsecond: about a thousand entries
    /// that keep expiring.
    HotExact,
    /// One key that has used up its limit.
    Denied,
    /// Many keys, all equally likely, 100 per hour: nothing is denied.
    Uniform,
    /// Many keys, the n-th with a probability proportional to 1/n, a limit that is never reached.
    Zipf,
    /// The same under 100 per hour: about half of the requests are denied.
    ZipfLimited,
    /// Many keys, all of which have used up their limit.
    DeniedMany,
    /// Many keys, all equally likely, a limit that is never reached.
    Growth,
}

/// The limit that every contender enforces.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rule {
    /// Maximum requests per window; also the bucket's size.
    pub(crate) limit: u32,
    /// The window.
    pub(crate) window: Duration,
}

impl Case {
    /// The cases of `decisions`, in the order of the report.
    pub(crate) const RACES: [Self; 7] = [
        Self::Hot,
        Self::HotExact,
        Self::Denied,
        Self::Uniform,
        Self::Zipf,
        Self::ZipfLimited,
        Self::DeniedMany,
    ];

    /// The name on the command line and in the report.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Hot => "hot",
            Self::HotExact => "hot-exact",
            Self::Denied => "denied",
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
            Self::ZipfLimited => "zipf-limited",
            Self::DeniedMany => "denied-many",
            Self::Growth => "growth",
        }
    }

    /// The limit of this case.
    ///
    /// With many keys, a request takes at least half a minute to drain from a bucket: otherwise,
    /// stores that drop drained buckets would hold fewer keys than the others.
    pub(crate) fn rule(self) -> Rule {
        const HOUR: Duration = Duration::from_secs(3600);
        const YEAR: Duration = Duration::from_secs(366 * 86_400);
        let (limit, window) = match self {
            Self::Hot => (1_000_000_000, HOUR),
            Self::HotExact => (60_000, Duration::from_millis(1)),
            Self::Denied | Self::DeniedMany => (3, HOUR),
            Self::Uniform | Self::ZipfLimited => (100, HOUR),
            Self::Zipf => (1_000_000, YEAR),
            Self::Growth => (100_000, YEAR),
        };
        Rule { limit, window }
    }

    /// How often every key is charged before the measurement.
    pub(crate) fn passes(self) -> u32 {
        match self {
            Self::Denied | Self::DeniedMany => self.rule().limit + 1,
            _ => 1,
        }
    }

    /// The number of keys, where a case with many keys has `many`.
    pub(crate) fn keys(self, many: u32) -> u32 {
        match self {
            Self::Hot | Self::HotExact | Self::Denied => 1,
            _ => many,
        }
    }

    /// Decisions of one thread in one round.
    pub(crate) fn decisions(self) -> usize {
        match self {
            Self::Hot | Self::HotExact | Self::Denied => 2_000_000,
            _ => 1_000_000,
        }
    }

    /// The keys that one thread checks in one round, the same in every run.
    pub(crate) fn draw(self, keys: u32, decisions: usize, seed: usize) -> Vec<u32> {
        let rng = StdRng::seed_from_u64(seed as u64);
        match self {
            Self::Hot | Self::HotExact | Self::Denied => vec![0; decisions],
            Self::Uniform | Self::DeniedMany | Self::Growth => {
                let uniform = Uniform::new(0, keys).expect("there is a key");
                uniform.sample_iter(rng).take(decisions).collect()
            }
            Self::Zipf | Self::ZipfLimited => {
                let zipf = Zipf::new(f64::from(keys), 1.0).expect("there is a key");
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 1 to `keys`
                let index = |rank: f64| (rank as u32 - 1).min(keys - 1);
                zipf.sample_iter(rng).take(decisions).map(index).collect()
            }
        }
    }
}
