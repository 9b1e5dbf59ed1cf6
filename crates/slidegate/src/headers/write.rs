//! Fields as text: their names, and what one policy has to say in each form.

use std::time::Duration;

use super::Header;
use crate::decision::Decision;
use crate::gate::PolicyDecision;
use crate::quota::Quota;
use crate::time::{SECOND_US, millis_ceil, secs_ceil};

/// A field's name. In the order in which fields are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Name {
    RateLimitPolicy,
    RateLimit,
    RateLimitLimit,
    RateLimitRemaining,
    RateLimitReset,
    XRateLimitLimit,
    XRateLimitRemaining,
    XRateLimitReset,
    RetryAfter,
    RetryAfterMs,
}

impl Name {
    #[cfg(feature = "tower")]
    pub(super) const ALL: [Self; 10] = [
        Self::RateLimitPolicy,
        Self::RateLimit,
        Self::RateLimitLimit,
        Self::RateLimitRemaining,
        Self::RateLimitReset,
        Self::XRateLimitLimit,
        Self::XRateLimitRemaining,
        Self::XRateLimitReset,
        Self::RetryAfter,
        Self::RetryAfterMs,
    ];
    pub(super) const PARTS: [Self; 3] =
        [Self::RateLimitLimit, Self::RateLimitRemaining, Self::RateLimitReset];
    pub(super) const X_PARTS: [Self; 3] =
        [Self::XRateLimitLimit, Self::XRateLimitRemaining, Self::XRateLimitReset];

    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::RateLimitPolicy => "ratelimit-policy",
            Self::RateLimit => "ratelimit",
            Self::RateLimitLimit => "ratelimit-limit",
            Self::RateLimitRemaining => "ratelimit-remaining",
            Self::RateLimitReset => "ratelimit-reset",
            Self::XRateLimitLimit => "x-ratelimit-limit",
            Self::XRateLimitRemaining => "x-ratelimit-remaining",
            Self::XRateLimitReset => "x-ratelimit-reset",
            Self::RetryAfter => "retry-after",
            Self::RetryAfterMs => "retry-after-ms",
        }
    }
}

/// The largest Integer of a structured field: 15 digits (RFC 9651, 3.3.1). Greater numbers are written as this one.
pub(super) const MAX_INTEGER: u64 = 999_999_999_999_999;

/// A number as fields may carry it.
pub(super) fn integer(number: u64) -> u64 {
    number.min(MAX_INTEGER)
}

/// Where header fields are written to.
pub(crate) trait Fields {
    /// Adds a field; `write` appends its value to the text it is given, which may hold other values already.
    fn field(&mut self, name: Name, write: impl FnOnce(&mut String));
}

impl Fields for Vec<Header> {
    fn field(&mut self, name: Name, write: impl FnOnce(&mut String)) {
        let mut value = String::new();
        write(&mut value);
        self.push((name.as_str(), value));
    }
}

/// What one policy has to say.
#[derive(Debug, Clone, Copy)]
pub(super) struct Answer<'d> {
    pub(super) name: &'d str,
    pub(super) quota: &'d Quota,
    pub(super) decision: &'d Decision,
}

impl<'d> From<&PolicyDecision<'d>> for Answer<'d> {
    fn from(one: &PolicyDecision<'d>) -> Self {
        Self { name: one.policy().name(), quota: one.quota(), decision: one.decision() }
    }
}

impl Answer<'_> {
    /// The wait of a denial, if waiting helps.
    fn wait(&self) -> Option<Duration> {
        self.decision.retry_after().filter(|_| self.decision.is_denied())
    }

    pub(super) fn retry_after_s(&self) -> Option<u64> {
        self.wait().map(|wait| integer(secs_ceil(wait).max(1)))
    }

    pub(super) fn retry_after_ms(&self) -> Option<u64> {
        self.wait().map(|wait| integer(millis_ceil(wait).max(1)))
    }

    /// Limit, remaining and this reset.
    pub(super) fn numbers(&self, reset_s: u64) -> [u64; 3] {
        [self.decision.limit, self.decision.remaining, reset_s].map(integer)
    }

    /// An item of drafts 6 and 7, where `w` is required: windows under a second are written as one.
    pub(super) fn unnamed_policy(&self, out: &mut String) {
        write_number(out, integer(self.quota.limit()));
        write_part(out, ";w=", secs_ceil(self.quota.window()));
    }

    /// An item of draft 10's `RateLimit-Policy`.
    pub(super) fn policy_item(&self, out: &mut String) {
        self.write_name(out);
        write_part(out, ";q=", self.quota.limit());
        if self.quota.window_us() >= SECOND_US {
            write_part(out, ";w=", secs_ceil(self.quota.window()));
        }
    }

    /// An item of draft 10's `RateLimit`.
    pub(super) fn limit_item(&self, out: &mut String, retry_after_s: Option<u64>) {
        self.write_name(out);
        write_part(out, ";r=", self.decision.remaining);
        let frees_s = self.decision.frees_after().map(secs_ceil);
        // `Retry-After` is not to end before `t` and has precedence: a policy that frees later says nothing.
        let sooner = |secs: &u64| retry_after_s.is_none_or(|retry_after_s| *secs <= retry_after_s);
        if let Some(secs) = frees_s.filter(sooner) {
            write_part(out, ";t=", secs);
        }
    }

    /// The name as a String of RFC 9651. A policy's holds no other characters, a limiter's may.
    fn write_name(&self, out: &mut String) {
        let plain = |c| matches!(c, ' '..='~') && !matches!(c, '"' | '\\');
        out.push('"');
        if self.name.bytes().all(|byte| plain(char::from(byte))) {
            out.push_str(self.name);
        } else {
            out.extend(self.name.chars().map(|c| if plain(c) { c } else { '_' }));
        }
        out.push('"');
    }
}

/// Fields of one number each.
pub(super) fn write_numbers(out: &mut impl Fields, names: [Name; 3], numbers: [u64; 3]) {
    for (name, number) in names.into_iter().zip(numbers) {
        out.field(name, |text| write_number(text, number));
    }
}

/// A number that fields may carry, after its name.
pub(super) fn write_part(out: &mut String, name: &str, number: u64) {
    out.push_str(name);
    write_number(out, integer(number));
}

/// Decimal digits. By hand, as the headers of a response hold a dozen numbers, and formatting is half of what they cost.
pub(super) fn write_number(out: &mut String, mut number: u64) {
    let mut digits = [b'0'; 20];
    let mut first = digits.len() - 1;
    loop {
        #[allow(clippy::cast_possible_truncation)] // a digit
        let digit = (number % 10) as u8;
        digits[first] = b'0' + digit;
        number /= 10;
        if number == 0 {
            break;
        }
        first -= 1;
    }
    out.push_str(str::from_utf8(&digits[first..]).expect("digits are ASCII"));
}

/// A List of RFC 9651.
pub(super) fn write_list<'d>(
    out: &mut String,
    answers: &[Answer<'d>],
    write_item: impl Fn(&Answer<'d>, &mut String),
) {
    for (at, answer) in answers.iter().enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        write_item(answer, out);
    }
}
