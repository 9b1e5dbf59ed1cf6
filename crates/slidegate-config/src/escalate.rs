//! The key `escalate`: after how many denials a key is blocked, and for how long.

use std::time::Duration;

use lined_config::{Form, List, Section};
use schemars::JsonSchema;
use serde::Deserialize;
use slidegate::{Quota, clock::parse_window};

use crate::values::{Parsed, Span, Text, form_of};

/// Maximum number of denials before a block. The time of each is stored.
const MAX_DENIALS: u64 = 1000;

/// How long a block may last, in milliseconds: 1 s to 366 d.
type BlockLength = Span<1000, 31_622_400_000>;

/// After how many denials the service blocks a key, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Escalation {
    /// How many denials in which time cause a block.
    pub after: Quota,
    /// Durations of a key's first and later blocks; the last one repeats. Not empty and never
    /// decreasing.
    pub blocks: Vec<Duration>,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("x-example" = "after: 5 denials in 1m, block: [2m, 10m, 1h]"))]
pub(crate) struct EscalateSpec {
    /// Denials for the policy's limit that earn a block.
    after: Parsed<Denials>,
    /// Durations of the first and later blocks, one or a list of at most 8 that does not get shorter; the last one
    /// repeats.
    #[schemars(extend("minItems" = 1, "maxItems" = 8))]
    block: List<BlockLength>,
}

/// A number of denials within a sliding window.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Denials(Quota);

impl Text for Denials {
    const FORM: Form =
        form_of::<Self>("denials", "1 to 1000 denials in 1ms to 366d, for example `5 denials in 1m`")
            .pattern(r"^\s*[0-9]+\s+denials?\s+in\s+.+$");

    fn parse(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let count = words.next().and_then(|word| word.parse().ok());
        let count = count.filter(|count| (1..=MAX_DENIALS).contains(count)).ok_or_else(String::new)?;
        if !matches!((words.next(), words.next()), (Some("denial" | "denials"), Some("in"))) {
            return Err(String::new());
        }
        let window = parse_window(&words.collect::<Vec<_>>().join(" ")).map_err(|_| String::new())?;
        Quota::new(count, window).map(Self).map_err(|_| String::new())
    }
}

impl EscalateSpec {
    /// Builds the escalation and reports mistakes. `must_not` is why the policy must not have one.
    pub(crate) fn build(&self, section: &Section<'_>, must_not: Option<&str>) -> Escalation {
        if let Some(why) = must_not {
            section.invalid("escalate", why);
        }
        let blocks: Vec<Duration> = self.block.0.iter().map(|length| length.0).collect();
        if !blocks.is_sorted() {
            let why =
                "a later block must not be shorter than an earlier one; write for example `[2m, 10m, 1h]`";
            section.child("escalate").invalid("block", why);
        }
        Escalation { after: self.after.0.0, blocks }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policies::Policies;

    /// A misread number or duration blocks the wrong clients.
    #[test]
    fn denials_in_a_time_earn_blocks_that_get_longer() {
        let read = |keys: &str| {
            let text = format!("policies: [{{name: p, scope: ip, quota: 5/1m, escalate: {{{keys}}}}}]");
            let policies = Policies::parse(&text, "f").unwrap_or_else(|errors| panic!("{errors}"));
            policies.escalations["p"].clone()
        };
        let seconds = |all: &[u64]| all.iter().map(|one| Duration::from_secs(*one)).collect::<Vec<_>>();
        let Escalation { after, blocks } = read("after: 5 denials in 1m, block: [2m, 10m, 1h]");
        assert_eq!((after, blocks), (Quota::per_minute(5), seconds(&[120, 600, 3600])));
        let Escalation { after, blocks } = read("after: ' 1  denial in 1h 30m', block: 1d");
        let window = Duration::from_secs(5400);
        assert_eq!((after, blocks), (Quota::new(1, window).unwrap(), seconds(&[86_400])));
        assert_eq!(Policies::parse("policies: [{name: p, quota: 1/1s}]", "f").unwrap().escalations.len(), 0);
    }
}
