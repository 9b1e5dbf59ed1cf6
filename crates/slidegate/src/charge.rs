//! Charges: what a request would take from each of its policies, ready for a store.

use smallvec::SmallVec;

use crate::key::Key;
use crate::quota::Quota;

/// One policy's part of a request: this cost, from this key, under this quota.
#[derive(Debug, Clone)]
pub(crate) struct Charge<'a> {
    /// Tells the policy's usage from that of others. Stays with the policy's name when policies are configured anew.
    pub(crate) number: u32,
    /// What binds: the policy's own quota or the key's override.
    pub(crate) quota: &'a Quota,
    pub(crate) key: Key<'a>,
    pub(crate) cost: u64,
    /// Whether a denial denies the request: not under a shadow policy.
    pub(crate) enforced: bool,
    /// Where the policy stands in its set.
    pub(crate) policy: usize,
}

/// All that one request would charge, at most one charge for each policy, in the order of the policies.
pub(crate) type Plan<'a> = SmallVec<[Charge<'a>; 4]>;
