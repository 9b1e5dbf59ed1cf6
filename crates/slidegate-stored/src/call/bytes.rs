//! Encodes calls.

use slidegate::internal::{HoldChange, NewHold, Part};
use slidegate::reserve::Unsettled;
use slidegate::{
    Excess, Quota,
    verb::{Role, Verb},
};

use super::{
    CANCEL, CallPart, ChangeCall, DecideCall, EXTEND, EXTEND_TIME, HAS_HOLDS, IS_ONCE, KeyChange, NO_COST,
    REFUND, SETTLE, SETTLE_PART, VERSION,
};
use crate::quota_bytes::lettered_quota;

/// Letters of a part's mode: verb, enforcement, excess, role, and whether it is denied over the
/// limit.
pub fn mode_letters(part: &Part, hold: Option<&NewHold>) -> [u8; 5] {
    let verb = match (part.verb, hold) {
        (Verb::Check, Some(_)) => b'h',
        (Verb::Refund, Some(_)) => b'x',
        (Verb::Check, None) => b'c',
        (Verb::Peek, _) => b'p',
        (Verb::Refund, None) => b'r',
        (Verb::Penalize, _) => b'n',
    };
    let excess = match part.excess {
        Excess::Refuse => b'-',
        Excess::Charge => b'+',
        Excess::Count => b'!',
    };
    let role = match part.role {
        Role::Deciding => b'd',
        Role::Together => b't',
        Role::Refusals => b'k',
    };
    [verb, if part.enforced { b'e' } else { b's' }, excess, role, if part.over_limit { b'o' } else { b'-' }]
}

/// A hold to make: its id, its time, and whether it is dropped at its end.
pub fn hold_bytes(hold: &NewHold) -> Vec<u8> {
    let NewHold { id, ttl_us, unsettled } = hold;
    let is_dropped = u8::from(*unsettled == Unsettled::Forget);
    [&id.to_le_bytes()[..], &ttl_us.to_le_bytes()[..5], &[is_dropped]].concat()
}

fn push(bytes: &mut Vec<u8>, number: u64, width: usize) {
    bytes.extend_from_slice(&number.to_le_bytes()[..width]);
}

impl DecideCall {
    /// The call as an argument. A verb that makes or cancels a hold needs the call to have holds.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(32 + 8 * self.costs.len() + 48 * self.parts.len());
        bytes.push(VERSION);
        let once = if self.once_ms.is_some() { IS_ONCE } else { 0 };
        bytes.push(if self.has_holds { HAS_HOLDS } else { 0 } | once);
        push(&mut bytes, self.latest, 7);
        if let Some(once_ms) = self.once_ms {
            push(&mut bytes, once_ms, 7);
        }
        push(&mut bytes, self.costs.len() as u64, 2);
        for cost in &self.costs {
            push(&mut bytes, *cost, 7);
        }
        let mut keys = 0;
        for CallPart { key, quota, part, own_cost, hold } in &self.parts {
            push(&mut bytes, *key as u64, 2);
            bytes.extend_from_slice(&mode_letters(part, hold.as_ref()));
            push(&mut bytes, own_cost.unwrap_or(NO_COST), 7);
            if *key == keys {
                bytes.extend_from_slice(&lettered_quota(quota));
                keys += 1;
            }
            bytes.extend(hold.iter().flat_map(hold_bytes));
        }
        bytes
    }
}

impl ChangeCall {
    /// The call as an argument.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        push(&mut bytes, self.latest, 7);
        for change in &self.changes {
            bytes.extend_from_slice(&lettered_quota(&change.quota));
            bytes.extend_from_slice(&change.bytes());
        }
        bytes
    }
}

impl KeyChange {
    /// The change, as scripts decode it. Numbers are at most [`Quota::MAX_COUNT`].
    pub fn bytes(&self) -> Vec<u8> {
        let (kind, total, ttl_us) = match self.change {
            HoldChange::Settle { total, ttl_us: None } => (SETTLE, total, 0),
            HoldChange::Settle { total, ttl_us: Some(ttl_us) } => (SETTLE_PART, total, ttl_us),
            HoldChange::Cancel => (CANCEL, 0, 0),
            HoldChange::Refund { cost } => (REFUND, cost, 0),
            HoldChange::Extend { total: Some(total), ttl_us } => (EXTEND, total, ttl_us),
            HoldChange::Extend { total: None, ttl_us } => (EXTEND_TIME, 0, ttl_us),
        };
        let mut bytes = self.id.to_le_bytes().to_vec();
        bytes.push(kind);
        let is_dropped = u64::from(self.unsettled == Unsettled::Forget);
        for (number, width) in
            [(total, 7), (ttl_us, 5), (self.amount, 7), (self.until, 7), (is_dropped, 1), (self.made, 7)]
        {
            push(&mut bytes, number.min(Quota::MAX_COUNT), width);
        }
        bytes
    }
}
