//! The lines of a recording: requests, reservations and their changes as JSON, with redacted attributes.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::IpAddr;
use std::time::Duration;

use slidegate::client_addr::{Ipv6Prefix, group};
use slidegate::{Cost, Request, Role, Value, Verb, reserve::Unsettled};
use slidegate_config::policy::KeysShown;

use crate::telemetry::redaction::Redactor;
use crate::telemetry::verb_name;

/// Writes the lines of requests, but for their time.
pub(super) struct LineWriter<'w> {
    /// How attributes are redacted, by their names.
    pub(super) hidden: &'w HashMap<String, Hidden>,
    pub(super) redactor: &'w Redactor,
}

/// How an attribute is redacted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Hidden {
    pub(super) keys_shown: KeysShown,
    /// Addresses are counted by this prefix, so their hashes are those of the network.
    pub(super) ipv6_prefix: Ipv6Prefix,
}

/// A reservation, as a call made it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordedReservation {
    /// The ticket's id, if it is allowed.
    pub(crate) id: Option<u64>,
    /// The time that the call set.
    pub(crate) ttl: Option<Duration>,
    pub(crate) unsettled: Unsettled,
}

/// A change of a reservation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RecordedChange<'c> {
    /// The ticket's id.
    pub(crate) id: u64,
    /// `settle`, `settle_so_far`, `extend` or `cancel`.
    pub(crate) kind: &'static str,
    pub(crate) cost: Option<&'c Cost<'c>>,
    pub(crate) ttl: Option<Duration>,
}

impl LineWriter<'_> {
    /// `","cost":1,"attributes":{...}}` and a line end.
    pub(super) fn rest_of_line(&self, verb: Verb, request: &Request<'_>) -> Vec<u8> {
        let mut rest = Vec::with_capacity(192);
        rest.extend_from_slice(b"\",");
        self.write_request(&mut rest, verb, request, false);
        rest.extend_from_slice(b"}\n");
        rest
    }

    /// `","requests":[{"cost":1,"attributes":{...}},...]}` and a line end, with `reservation` before
    /// them if they are one.
    pub(super) fn rest_of_call<'r>(
        &self,
        requests: impl Iterator<Item = (Verb, &'r Request<'r>)>,
        reservation: Option<RecordedReservation>,
    ) -> Vec<u8> {
        let mut rest = Vec::with_capacity(512);
        rest.extend_from_slice(b"\",");
        if let Some(RecordedReservation { id, ttl, unsettled }) = reservation {
            let reservation = serde_json::json!({
                "id": id.map(|id| format!("{id:016x}")),
                "ttl_us": ttl.map(|ttl| u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX)),
                "is_forgotten": unsettled == Unsettled::Forget,
            });
            _ = write!(rest, "\"reservation\":{reservation},");
        }
        rest.extend_from_slice(b"\"requests\":[");
        for (at, (verb, request)) in requests.enumerate() {
            rest.extend_from_slice(if at == 0 { b"{" } else { b",{" });
            if let Some(role) = role_name(request.role()) {
                rest.extend_from_slice(b"\"role\":\"");
                rest.extend_from_slice(role.as_bytes());
                rest.extend_from_slice(b"\",");
            }
            if request.is_denied_over_limit() {
                rest.extend_from_slice(b"\"deny_over_limit\":true,");
            }
            self.write_request(&mut rest, verb, request, reservation.is_some());
            rest.push(b'}');
        }
        rest.extend_from_slice(b"]}\n");
        rest
    }

    /// `"cost":1,"attributes":{...}`; what reserves and does not say its cost has `null`.
    fn write_request(&self, rest: &mut Vec<u8>, verb: Verb, request: &Request<'_>, reserves: bool) {
        match request.own_cost() {
            Some(cost) => write_cost(rest, cost),
            None if reserves => rest.extend_from_slice(b"\"cost\":null"),
            None => write_cost(rest, &Cost::from(request.cost())),
        }
        if verb != Verb::Check {
            rest.extend_from_slice(b",\"verb\":\"");
            rest.extend_from_slice(verb_name(verb).as_bytes());
            rest.push(b'"');
        }
        if let Some(policy) = request.named_policy() {
            rest.extend_from_slice(b",\"policy\":");
            write_text(rest, policy);
        }
        rest.extend_from_slice(b",\"attributes\":{");
        for (at, (name, value)) in request.attributes().enumerate() {
            if at > 0 {
                rest.push(b',');
            }
            write_text(rest, name);
            rest.push(b':');
            match (self.hidden.get(name), value) {
                (None, Value::Bytes(bytes)) => match std::str::from_utf8(bytes) {
                    Ok(text) => write_text(rest, text),
                    Err(_) => write_text(rest, &escaped(bytes)),
                },
                (None, other) => write_text(rest, &text_of(other, Ipv6Prefix::OFF)),
                (Some(hidden), value) => {
                    let text = text_of(value, hidden.ipv6_prefix);
                    write_text(rest, &self.redactor.distinct(&text, hidden.keys_shown));
                }
            }
        }
        rest.push(b'}');
    }
}

impl RecordedChange<'_> {
    /// `","change":{"id":...}}` and a line end.
    pub(super) fn rest(&self) -> Vec<u8> {
        let mut rest = Vec::with_capacity(128);
        _ = write!(rest, "\",\"change\":{{\"id\":\"{:016x}\",\"kind\":\"{}\"", self.id, self.kind);
        if let Some(cost) = self.cost {
            rest.push(b',');
            write_cost(&mut rest, cost);
        }
        if let Some(ttl) = self.ttl {
            _ = write!(rest, ",\"ttl_us\":{}", ttl.as_micros());
        }
        rest.extend_from_slice(b"}}\n");
        rest
    }
}

/// Whether a request is a line of its own, without a list.
pub(super) fn is_line(request: &Request<'_>) -> bool {
    request.own_cost().is_none_or(|cost| cost.named().is_empty())
}

/// `"cost":1`, or `"costs":{"input":1}`; of two with one name, their sum.
fn write_cost(rest: &mut Vec<u8>, cost: &Cost<'_>) {
    if cost.named().is_empty() {
        rest.extend_from_slice(b"\"cost\":");
        rest.extend_from_slice(itoa::Buffer::new().format(cost.total()).as_bytes());
        return;
    }
    let mut costs: BTreeMap<&str, u64> = BTreeMap::new();
    for (name, cost) in cost.named() {
        let sum = costs.entry(name).or_default();
        *sum = sum.saturating_add(*cost);
    }
    rest.extend_from_slice(b"\"costs\":");
    serde_json::to_writer(rest, &costs).expect("numbers are JSON");
}

/// How a request takes part in its call, unless it decides.
fn role_name(role: Role) -> Option<&'static str> {
    match role {
        Role::Together => Some("together"),
        Role::Refusals => Some("refusals"),
        _ => None,
    }
}

/// A value as text; different values have different texts.
pub(super) fn text_of(value: Value<'_>, prefix: Ipv6Prefix) -> String {
    match value {
        Value::Address(ip) => match group(ip, prefix) {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => ip.to_string(),
        },
        Value::Bytes(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => escaped(bytes),
        },
        _ => String::new(),
    }
}

/// Bytes that are not UTF-8, percent-encoded, as in the text of keys.
pub(super) fn escaped(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 3);
    for byte in bytes {
        match byte {
            b'%' | 0..=0x1f | 0x7f.. => _ = write!(text, "%{byte:02X}"),
            plain => text.push(char::from(*plain)),
        }
    }
    text
}

/// All values of a request, to sample one that no policy applies to.
pub(super) fn values_of(request: &Request<'_>) -> String {
    request.attributes().map(|(_, value)| text_of(value, Ipv6Prefix::OFF)).collect::<Vec<_>>().join(",")
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    serde_json::to_writer(out, text).expect("a text is JSON");
}
