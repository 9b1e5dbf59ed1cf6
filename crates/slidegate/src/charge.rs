//! Charges: what a request would take from each of its policies, ready for a store.

use smallvec::SmallVec;

use crate::block::Block;
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
    /// Where the caller told the quota: the one that it stands for.
    pub(crate) instead_of: Option<&'a Quota>,
    pub(crate) key: Key<'a>,
    /// The key's block, which may be over.
    pub(crate) block: Option<&'a Block>,
    pub(crate) part: Part,
    /// What to do when a shared store does not answer.
    #[cfg(feature = "redis")]
    pub(crate) on_store_error: OnStoreError,
    /// Where the policy stands in its set.
    pub(crate) policy: usize,
    /// Which of the requests it is for.
    pub(crate) request: usize,
}

/// How one key takes part in a decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Part {
    pub(crate) cost: u64,
    /// Whether a denial denies the request: not under a shadow policy.
    pub(crate) enforced: bool,
    pub(crate) excess: Excess,
}

impl Part {
    /// What has to fit for the cost to be charged.
    pub(crate) fn asks(&self) -> u64 {
        match self.excess {
            Excess::Refuse | Excess::Count => self.cost,
            Excess::Charge => self.cost.min(1),
        }
    }
}

/// What a policy does with a cost that is more than what remains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Excess {
    /// Deny it and charge nothing.
    #[default]
    Refuse,
    /// Admit it while anything remains and charge it in full, up to [`Quota::max_used`](crate::Quota::max_used), so that later
    /// requests wait out what it exceeds the limit by: for costs that are known only when they have arisen, such as tokens of
    /// a language model.
    Charge,
    /// Deny it and charge it all the same, as limiters do that count every hit. The cost is charged whatever becomes of
    /// the request, also when it is another policy that denies it. A client that keeps asking stays denied.
    Count,
}

impl Excess {
    /// The one of this name, as configurations write it: `refuse`, `charge` or `count`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "refuse" => Some(Self::Refuse),
            "charge" => Some(Self::Charge),
            "count" => Some(Self::Count),
            _ => None,
        }
    }
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

/// All that is charged in one step.
pub(crate) type Charges<'a> = SmallVec<[Charge<'a>; 4]>;

/// What requests would charge: in their order and that of the policies, each key at most once.
#[derive(Debug, Default)]
pub(crate) struct Plan<'a> {
    pub(crate) charges: Charges<'a>,
    /// Requests that met an earlier one on a key, with the place of its charge, which carries the cost of both.
    pub(crate) met: Vec<(usize, usize)>,
}
