//! Text of header fields: their names, and one policy's part of each.

use std::time::Duration;

use http::HeaderName;
use slidegate::Algorithm;
use slidegate::internal::{NamedDecision, integer, secs_ceil};

use super::buffer::{FieldBuffer, write_number};

/// The three numbers of draft 6.
pub(super) static PARTS: [HeaderName; 3] = [
    HeaderName::from_static("ratelimit-limit"),
    HeaderName::from_static("ratelimit-remaining"),
    HeaderName::from_static("ratelimit-reset"),
];
/// The `X-RateLimit-*` fields.
pub(super) static X_PARTS: [HeaderName; 3] = [
    HeaderName::from_static("x-ratelimit-limit"),
    HeaderName::from_static("x-ratelimit-remaining"),
    HeaderName::from_static("x-ratelimit-reset"),
];
pub(super) static POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(super) static RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(super) static RETRY_AFTER: HeaderName = http::header::RETRY_AFTER;
pub(super) static RETRY_AFTER_MS: HeaderName = HeaderName::from_static("retry-after-ms");

/// Limit, remaining and `reset_s`.
pub(super) fn numbers(one: &NamedDecision<'_>, reset_s: u64) -> [u64; 3] {
    [one.decision.limit(), one.decision.remaining(), reset_s].map(integer)
}

/// Writes the policy as drafts 6 and 7 do. `w` is required there, so windows under one second are
/// written as 1, and what has no window is left out.
pub(super) fn unnamed_policy(one: &NamedDecision<'_>, out: &mut FieldBuffer) {
    if one.quota.algorithm() == Algorithm::InFlight {
        return;
    }
    out.field(&POLICY, |text| {
        write_number(text, integer(one.quota.limit()));
        write_part(text, ";w=", secs_ceil(one.quota.window()));
    });
}

/// An item of draft 10's `RateLimit-Policy`.
pub(super) fn policy_item(one: &NamedDecision<'_>, out: &mut String) {
    write_name(one, out);
    write_part(out, ";q=", one.quota.limit());
    if one.quota.algorithm() == Algorithm::InFlight {
        out.push_str(r#";qu="concurrent-requests""#);
    } else if one.quota.window() >= Duration::from_secs(1) {
        write_part(out, ";w=", secs_ceil(one.quota.window()));
    }
}

/// An item of draft 10's `RateLimit`.
pub(super) fn limit_item(one: &NamedDecision<'_>, out: &mut String, retry_after_s: Option<u64>) {
    write_name(one, out);
    write_part(out, ";r=", one.decision.remaining());
    let frees_s = one.decision.frees_after().map(secs_ceil);
    // `Retry-After` takes precedence and must not end before `t`, so a later `t` is omitted.
    let sooner = |secs: &u64| retry_after_s.is_none_or(|retry_after_s| *secs <= retry_after_s);
    if let Some(secs) = frees_s.filter(sooner) {
        write_part(out, ";t=", secs);
    }
}

/// The name as a String (RFC 9651). Policy names contain only valid characters; names for a
/// limiter may not.
fn write_name(one: &NamedDecision<'_>, out: &mut String) {
    let plain = |c| matches!(c, ' '..='~') && !matches!(c, '"' | '\\');
    out.push('"');
    if one.name.bytes().all(|byte| plain(char::from(byte))) {
        out.push_str(one.name);
    } else {
        out.extend(one.name.chars().map(|c| if plain(c) { c } else { '_' }));
    }
    out.push('"');
}

/// Writes three fields of one number each.
pub(super) fn write_numbers(out: &mut FieldBuffer, names: &'static [HeaderName; 3], numbers: [u64; 3]) {
    for (name, number) in names.iter().zip(numbers) {
        out.number(name, number);
    }
}

/// Writes a parameter: its name, then a number that structured fields can contain.
pub(super) fn write_part(out: &mut String, name: &str, number: u64) {
    out.push_str(name);
    write_number(out, integer(number));
}

/// Writes a List (RFC 9651).
pub(super) fn write_list<'d>(
    out: &mut String,
    decisions: &[NamedDecision<'d>],
    write_item: impl Fn(&NamedDecision<'d>, &mut String),
) {
    for (index, decision) in decisions.iter().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        write_item(decision, out);
    }
}
