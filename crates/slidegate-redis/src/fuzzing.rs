//! Entry points of the fuzz targets: decode data from servers and other programs.

use std::borrow::Cow;

use redis::Value;
use slidegate::fuzzing::with_charges;
use slidegate::internal::{HEADER_BYTES, Holds};
use slidegate::store::KeyInspection;
use slidegate::{PolicySet, Quota, Request, verb::Verb};
use slidegate_stored::Pair;

use crate::admin::{control_document as document, inspect, scan};
use crate::call::{CallTerms, Subjects};
use crate::names::Names;
use crate::reply::{Reply, number, read};
pub use redis_once::fuzzing::{ReplyFraming, read_topology};

/// Decodes a stored value of a key under this quota, at this time in microseconds. A table of holds
/// is followed by the usage beside it.
///
/// # Errors
/// If the value is malformed.
pub fn stored_value(bytes: &[u8], quota: &Quota, now_us: u64, cost: u64) -> Result<KeyInspection, String> {
    let mut pair = Pair { key: Some(Cow::Borrowed(bytes)), usage: None };
    if pair.has_table() {
        let holds =
            bytes.get(29..31).map_or(0, |count| usize::from(u16::from_le_bytes([count[0], count[1]])));
        let (table, usage) = bytes.split_at(bytes.len().min(HEADER_BYTES + holds * Holds::HOLD_BYTES));
        pair = Pair {
            key: Some(Cow::Borrowed(table)),
            usage: Some(usage).filter(|usage| !usage.is_empty()).map(Cow::Borrowed),
        };
    }
    inspect::read(&mut pair, quota, now_us, cost)
}

/// Decodes a script's reply to a check of these costs: for each the decisions as (allowed, used,
/// remaining, limit).
///
/// # Errors
/// If no script sends this reply.
pub fn script_reply(
    policies: &PolicySet,
    request: &Request<'_>,
    verb: Verb,
    costs: &[u64],
    reply: Value,
) -> Result<Vec<Vec<slidegate::Decision>>, String> {
    let names = Names { secret: Names::NO_SECRET, always_hashed: false, hash_tag: None };
    let subjects = with_charges(policies, request, verb, |charges| Subjects::of(charges, &names));
    if subjects.0.is_empty() {
        return Ok(Vec::new());
    }
    let terms = |has_holds| CallTerms { costs, latest: 0, has_holds, is_once: false, leases: &[] };
    // As if the key had holds.
    let _ = read(&subjects, terms(true), reply.clone());
    match read(&subjects, terms(false), reply) {
        Ok(Reply::Late(_)) => Ok(Vec::new()),
        Ok(Reply::Done(answers, ..)) => Ok(answers.into_iter().map(|answer| answer.to_vec()).collect()),
        Err(unreadable) => Err(unreadable.0),
    }
}

/// Decodes a control document; `None` if slidegate did not write it. Returns what it would be
/// written as.
#[must_use]
pub fn control_document(bytes: &[u8]) -> Option<Vec<u8>> {
    let read = document::read(bytes)?;
    if read.id.is_absent() {
        return Some(Vec::new());
    }
    Some(format!("{}\n{}", read.id, read.text).into_bytes())
}

/// Decodes one step of a scan and other replies about keys.
pub fn scan_step(reply: &Value) {
    let _ = scan::scan_answer("node", reply);
    let _ = crate::calls::time_of(reply);
    let _ = number(reply);
}
