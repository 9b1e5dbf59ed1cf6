//! Charges: what a request would take from each of its policies, ready for a store.

use smallvec::SmallVec;

use crate::key::Key;
use crate::quota::Quota;

/// One policy's part of a request: this cost, from this key, under this quota.
#[derive(Debug, Clone)]
pub(crate) struct Charge<'a> {
    /// Tells the policy's usage from that of others. Stays with the policy's name when policies are configured anew.
    pub(crate) number: u32,
    /// What a shared store knows the policy by.
    #[cfg(feature = "redis")]
    pub(crate) name: &'a str,
    /// What binds: the policy's own quota or the key's override.
    pub(crate) quota: &'a Quota,
    pub(crate) key: Key<'a>,
    pub(crate) cost: u64,
    /// Whether a denial denies the request: not under a shadow policy.
    pub(crate) enforced: bool,
    /// What to do when a shared store does not answer.
    #[cfg(feature = "redis")]
    pub(crate) on_store_error: OnStoreError,
    /// Where the policy stands in its set.
    pub(crate) policy: usize,
}

/// What a policy does when the shared store does not answer in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnStoreError {
    /// Decide in the memory of this process, under its share of the limit.
    #[default]
    Local,
    /// Let every request pass: for limits that only smooth.
    Allow,
    /// Deny every request: for what must never be guessed, such as logins.
    Deny,
}

/// All that one request would charge, at most one charge for each policy, in the order of the policies.
pub(crate) type Plan<'a> = SmallVec<[Charge<'a>; 4]>;
