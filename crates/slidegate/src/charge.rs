//! Charges: a request's cost under each of its policies, ready for a store.

use std::collections::HashMap;
use std::hash::BuildHasher;

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use crate::block::Block;
use crate::hold::{DEFAULT_TTL_US, NewHold, Unsettled, new_id};
use crate::key::Key;
use crate::quota::{Algorithm, Quota};
use crate::verb::{Role, Verb};

/// One policy's part of a request: a [`Store`](crate::store::Store) applies it to one key.
#[derive(Debug, Clone)]
pub struct Charge<'a> {
    /// Identifies the policy's usage. Stays with the policy's name when policies are configured
    /// again.
    pub(crate) number: u32,
    /// The quota in force: the request's inline quota, the key's override, the request's tier, or
    /// the policy's own.
    #[doc(hidden)]
    pub quota: &'a Quota,
    /// The key's override or the policy's own quota, if another quota is in force. A store must
    /// remember that one while it knows the key.
    pub(crate) instead_of: Option<&'a Quota>,
    /// Whether the key's quota depends on the request, so that a shared store must keep it for
    /// views.
    #[doc(hidden)]
    pub keeps_quota: bool,
    #[doc(hidden)]
    pub key: Key<'a>,
    /// The key's block, possibly expired.
    pub(crate) block: Option<&'a Block>,
    #[doc(hidden)]
    pub part: Part,
    /// Set for a check whose cost is held instead of charged.
    #[doc(hidden)]
    pub reserve: Option<Reserve<'a>>,
    /// Applies if a shared store does not reply.
    pub(crate) on_store_error: OnStoreError,
    /// Whether it is retried until allowed, so that it must soon notice settlements by other
    /// instances.
    #[doc(hidden)]
    pub is_waiting: bool,
    /// The policy's position in its set.
    pub(crate) policy: u32,
    /// The index of its request.
    pub(crate) request: u32,
    /// Whether costs and limits are millionths of a unit. Stores need not know.
    pub(crate) in_millionths: bool,
}

/// The quota in force at a reservation, as far as a store knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MetQuota {
    /// The policy's, or an override.
    OfPolicy,
    /// An inline quota.
    Inline(Quota),
    /// A tier's or an anchor's, or an inline quota.
    Listed(Quota),
    /// An override's, a tier's or an anchor's.
    Other(Quota),
}

/// How a cost is held.
#[derive(Debug, Clone, Copy)]
pub struct Reserve<'a> {
    pub terms: &'a HoldTerms,
    pub unsettled: Unsettled,
}

/// The common terms of a reservation's holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HoldTerms {
    pub id: u64,
    /// As requested. By default, a permit lasts for its policy's lease.
    pub ttl_us: Option<u64>,
    /// See [`Charge::is_waiting`].
    pub is_waiting: bool,
}

impl HoldTerms {
    /// The terms of a reservation made now.
    pub fn new(ttl_us: Option<u64>) -> Self {
        Self { id: new_id(), ttl_us, is_waiting: false }
    }

    /// How long a hold under this quota lasts.
    pub fn ttl_us(&self, quota: &Quota) -> u64 {
        let is_lease = quota.algorithm() == Algorithm::InFlight;
        self.ttl_us.unwrap_or(if is_lease { quota.window_us() } else { DEFAULT_TTL_US })
    }
}

impl<'a> Charge<'a> {
    /// The policy's name. Together with the key it identifies the usage in a store that outlives
    /// this process.
    #[must_use]
    pub fn policy_name(&self) -> &'a str {
        &self.key.space.policy
    }

    /// The number of the policy and its scope, below 2^24. It survives a new configuration and is
    /// never reused for another policy. Together with the key it identifies the usage in a store in
    /// this process.
    #[must_use]
    pub fn policy_number(&self) -> u32 {
        self.number
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &Key<'a> {
        &self.key
    }

    /// The quota in force: the request's, else the key's override, else the request's tier, else
    /// the policy's. In millionths of a unit, like the cost, if the policy
    /// [weights](crate::Counts::Weighted) costs.
    #[must_use]
    pub fn quota(&self) -> &'a Quota {
        self.quota
    }

    /// The cost.
    #[must_use]
    pub fn cost(&self) -> u64 {
        self.part.cost
    }

    /// The hold to make instead of a charge.
    #[inline]
    pub fn new_hold(&self) -> Option<NewHold> {
        let Reserve { terms, unsettled } = self.reserve?;
        Some(NewHold { id: terms.id, ttl_us: terms.ttl_us(self.quota), unsettled })
    }

    /// How the cost is applied.
    #[must_use]
    pub fn verb(&self) -> Verb {
        self.part.verb
    }
}

/// The part of one key in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Part {
    /// How the cost is applied.
    pub verb: Verb,
    /// [`Role::Refusals`] follow the part that they belong to, with only others of that part
    /// between.
    pub role: Role,
    /// The cost.
    pub cost: u64,
    /// Whether a denial denies the request; false under a shadow policy.
    pub enforced: bool,
    /// Applies if the cost does not fit.
    pub excess: Excess,
    /// Whether it is also denied while the key is over its limit. See
    /// [`Request::deny_over_limit`](crate::Request::deny_over_limit).
    pub over_limit: bool,
}

impl AsRef<Self> for Part {
    fn as_ref(&self) -> &Self {
        self
    }
}

impl AsRef<Part> for Charge<'_> {
    fn as_ref(&self) -> &Part {
        &self.part
    }
}

impl Part {
    /// The cost that must fit: all of it, or its first unit if the rest may exceed the limit.
    #[inline]
    pub fn asks(&self) -> u64 {
        match self.excess {
            Excess::Charge if self.verb.is_question() => self.cost.min(1),
            Excess::Refuse | Excess::Count | Excess::Charge => self.cost,
        }
    }

    /// Whether a full key can deny it.
    pub fn is_deniable(&self) -> bool {
        self.verb.is_question() && (self.cost > 0 || self.over_limit)
    }

    /// Whether one step on its key is enough, if it is the only part of its call.
    #[inline]
    pub fn is_one_step(&self) -> bool {
        self.is_unconditional() && (self.verb != Verb::Check || self.excess == Excess::Refuse)
    }

    /// Whether only the key's usage decides it.
    #[inline]
    pub fn is_unconditional(&self) -> bool {
        self.role == Role::Deciding && !self.over_limit
    }
}

/// Handling of a cost that exceeds what remains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Excess {
    /// Deny it and charge nothing.
    #[default]
    Refuse,
    /// Admit it while anything remains and charge it in full, up to
    /// [`Quota::max_used`](crate::Quota::max_used), so that later requests wait out the excess: for
    /// costs that are known only afterwards, such as tokens of a language model.
    Charge,
    /// Deny it and still charge it, like limiters that count every hit. The cost is charged
    /// whatever the request's verdict, even if another policy denies it. A client that keeps
    /// retrying stays denied.
    Count,
}

impl Excess {
    /// Parses the name used in configurations: `refuse`, `charge` or `count`.
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

/// Handling of a request that meets a policy's conditions but lacks an attribute of its scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnMissing {
    /// Do not apply the policy.
    #[default]
    Skip,
    /// Count all such requests under one key, with `*` for the missing value. The other values of
    /// the scope stay in the key.
    OneKey,
    /// Deny it like a blocked key: nothing is charged, and the wait does not end.
    Deny,
}

impl OnMissing {
    /// Parses the name used in configurations: `skip`, `one-key` or `deny`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "skip" => Some(Self::Skip),
            "one-key" => Some(Self::OneKey),
            "deny" => Some(Self::Deny),
            _ => None,
        }
    }
}

/// Handling of a request if the shared store does not reply in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum OnStoreError {
    /// Decide in this process's memory, with its share of the limit.
    #[default]
    Local,
    /// Allow every request: for limits that only smooth traffic.
    Allow,
    /// Deny every request: for limits that must not be guessed, such as on logins.
    Deny,
}

/// The position of a policy, a request or a charge, in few bytes.
pub(crate) fn place(at: usize) -> u32 {
    u32::try_from(at).expect("a call has fewer than 2^32 requests, and a set fewer policies")
}

/// All charges of one step.
pub(crate) type Charges<'a> = PerCharge<Charge<'a>>;

/// One value per charge of a call: in place for the usual number of charges, else in one
/// allocation.
pub type PerCharge<T> = SmallVec<[T; 4]>;

/// The charges of requests, in the order of the requests, then the policies; each key at most once.
#[derive(Debug)]
pub(crate) struct Plan<'a> {
    /// Whether its requests are reserved as one.
    pub is_reservation: bool,
    pub charges: Charges<'a>,
    /// Requests that share a key with an earlier one, with the position of its charge, which
    /// carries the cost of both.
    pub met: Vec<(u32, usize)>,
    /// Positions of charges, except for refusals, by the hash of their policy and key; only for
    /// calls with more than [`MOST_SCANNED`].
    index: Option<HashMap<u64, usize, RandomState>>,
}

/// Up to this many charges, comparing each is faster than hashing keys.
const MOST_SCANNED: usize = 16;

impl<'a> Plan<'a> {
    /// An empty plan.
    pub(crate) fn new(is_reservation: bool) -> Self {
        Self { is_reservation, charges: Charges::new(), met: Vec::new(), index: None }
    }

    /// Marks its requests as retried until they are allowed. See [`Charge::is_waiting`].
    pub(crate) fn set_waiting(&mut self) {
        self.charges.iter_mut().for_each(|charge| charge.is_waiting = true);
    }

    /// Adds a charge of the last request. If an earlier request shares its key, the costs are added
    /// up: checked one by one, each might fit where both do not. Requests reserved together are
    /// settled to one cost, so the larger one is held.
    #[inline] // it is copied twice otherwise
    pub(crate) fn add(&mut self, mut charge: Charge<'a>) {
        let is_refusals = charge.part.role == Role::Refusals;
        if charge.request == 0 && !is_refusals {
            // There is no earlier request to share a key with.
            return self.charges.push(charge);
        }
        // Refusals are added to those of the same base, and stand behind them.
        let mut among = 0..self.charges.len();
        if is_refusals {
            let Some(base) = self.base_of(&charge) else { return };
            charge.part.verb = match self.charges[base].part.verb {
                Verb::Check => Verb::Penalize,
                Verb::Peek => Verb::Peek,
                Verb::Refund | Verb::Penalize => return,
            };
            charge.part.over_limit = false;
            let is_other = |known: &Charge<'_>| known.part.role != Role::Refusals;
            let next = self.charges[base + 1..].iter().position(is_other);
            among = base + 1..next.map_or(among.end, |next| base + 1 + next);
        }
        let part = charge.part;
        let same = |known: &Charge<'_>| {
            known.request < charge.request
                && known.policy == charge.policy
                && known.part.verb == part.verb
                && (known.part.role == Role::Refusals) == is_refusals
                && known.key == charge.key
        };
        let is_indexed = !is_refusals && charge.request > 0 && self.charges.len() > MOST_SCANNED;
        let indexed = is_indexed.then(|| self.indexed(&charge)).flatten();
        let met = match indexed {
            // An equal hash is no proof, and refusals that came between move what stands behind them.
            Some(at) if same(&self.charges[at]) => Some(at),
            None if is_indexed => None,
            Some(_) | None => among.clone().find(|at| same(&self.charges[*at])),
        };
        let Some(position) = met else {
            if among.end == self.charges.len() {
                self.charges.push(charge);
                return;
            }
            self.charges.insert(among.end, charge);
            let met = self.met.iter_mut().map(|(_, at)| at);
            met.filter(|at| **at >= among.end).for_each(|at| *at += 1);
            return;
        };
        self.met.push((charge.request, position));
        let known = &mut self.charges[position].part;
        known.cost = if self.is_reservation {
            known.cost.max(part.cost)
        } else {
            known.cost.saturating_add(part.cost)
        };
        known.over_limit |= part.over_limit;
        known.role = known.role.min(part.role);
    }

    /// The position of the first charge with this one's hash, which stands at the end from now on if
    /// there is none.
    fn indexed(&mut self, charge: &Charge<'_>) -> Option<usize> {
        let hash = |by: &RandomState, one: &Charge<'_>| by.hash_one((one.policy, one.part.verb, &one.key));
        let charges = &self.charges;
        let index = self.index.get_or_insert_with(|| {
            let mut index = HashMap::with_hasher(RandomState::default());
            for (at, known) in charges.iter().enumerate().filter(|(_, one)| one.part.role != Role::Refusals) {
                let hash = hash(index.hasher(), known);
                index.entry(hash).or_insert(at);
            }
            index
        });
        let hash = hash(index.hasher(), charge);
        let at = *index.entry(hash).or_insert(charges.len());
        (at < charges.len()).then_some(at)
    }

    /// The position of the charge that a charge for refusals belongs to: under the same policy, of
    /// the request just before.
    fn base_of(&self, charge: &Charge<'_>) -> Option<usize> {
        let before = charge.request.checked_sub(1)?;
        let is_base = |known: &Charge<'_>| known.policy == charge.policy && known.part.role != Role::Refusals;
        let own = self.charges.iter().position(|known| known.request == before && is_base(known));
        own.or_else(|| {
            let met = self.met.iter().find(|(request, at)| *request == before && is_base(&self.charges[*at]));
            met.map(|(_, at)| *at)
        })
    }
}
