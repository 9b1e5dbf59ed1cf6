//! One decision as a line of JSON, for other programs.

use std::io::{self, Write};

use serde::Serialize;
use slidegate::{Decisions, clock::Timestamp};

use crate::wording::Words;

/// The printed fields of one decision.
#[derive(Serialize)]
pub(crate) struct DecisionLine<'a> {
    time: String,
    allowed: bool,
    policy: Option<&'a str>,
    key: Option<String>,
    remaining: Option<u64>,
    why: String,
}

impl<'a> DecisionLine<'a> {
    pub(crate) fn of(now: Timestamp, decisions: &'a Decisions<'_>, words: &Words) -> Self {
        let strictest = decisions.strictest();
        Self {
            time: rfc3339(now.as_micros()),
            allowed: decisions.is_allowed(),
            policy: strictest.map(|decision| decision.policy().name()),
            key: strictest.map(|decision| words.key(&decision)),
            remaining: strictest.map(|decision| decision.decision().remaining()),
            why: words.why(strictest.as_ref()),
        }
    }

    pub(crate) fn write(&self, mut out: impl Write) -> io::Result<()> {
        serde_json::to_writer(&mut out, self)?;
        out.write_all(b"\n")
    }
}

pub(crate) fn rfc3339(time_us: u64) -> String {
    let micros = i64::try_from(time_us).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(micros).map_or_else(|_| format!("{micros} us"), |time| time.to_string())
}
